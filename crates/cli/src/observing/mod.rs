//! What shows a run while it is under way, and draws it afterwards: options that
//! `terrace run` and `terrace attach` have in common.
//!
//! | file | concept |
//! |---|---|
//! | [`watch`](mod@watch) | the counters again and again |
//! | here | the options |

mod watch;

use std::path::PathBuf;
use std::time::Duration;

use terrace_core::Nanos;

use crate::failure::Failure;
use crate::metrics::Listen;
use crate::output::{Files, Kind, Output};

pub(crate) use self::watch::Watcher;

// Not a doc comment: it would become the help of the command.
// How a run is shown.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Observing {
    /// Print the counters again and again, as JSON lines on stderr: every
    /// second, or at another interval.
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, require_equals = true,
          default_missing_value = "1s")]
    watch: Option<Nanos>,

    /// Write what --watch prints to a file instead.
    #[arg(long, value_name = "FILE", requires = "watch")]
    watch_to: Option<PathBuf>,

    /// Serve the figures as OpenMetrics while the program runs: at PORT (on the
    /// loopback address), ADDRESS:PORT, or unix:PATH.
    #[arg(long, value_name = "WHERE")]
    pub(crate) metrics: Option<Listen>,

    /// Draw the run as an HTML page when it is over.
    #[arg(long, value_name = "FILE")]
    pub(crate) report_html: Option<PathBuf>,
}

impl Observing {
    /// Notes what none of the files may take the place of.
    pub(crate) fn names(&self, files: &mut Files) {
        if let Some(Listen::Unix(path)) = &self.metrics {
            files.binds("--metrics", path);
        }
    }

    /// Opens what `--watch` writes to: what cannot be written is known at once.
    pub(crate) fn open_watch(&self, files: &mut Files) -> Result<Option<Watcher>, Failure> {
        let Some(interval) = self.watch else { return Ok(None) };
        let to = self.watch_to.as_deref();
        let to = to.map(|path| files.writes("--watch-to", path, Kind::Log)).transpose()?;
        Watcher::new(interval, to).map(Some)
    }

    /// Opens the page.
    pub(crate) fn open_page(&self, files: &mut Files) -> Result<Option<Output>, Failure> {
        let path = self.report_html.as_deref();
        path.map(|path| files.writes("--report-html", path, Kind::Whole)).transpose()
    }
}

/// How often figures are recorded at first.
const MOMENT: Duration = Duration::from_millis(100);
/// Into how many moments the time that has passed is divided afterwards.
const MOMENTS: u32 = 400;

/// When figures are recorded again: more rarely as the run gets longer, so that a
/// recording grows with the logarithm of the time, and its pictures have as many columns
/// as a screen shows.
pub(crate) fn next_moment(elapsed: Duration) -> Duration {
    elapsed + MOMENT.max(elapsed / MOMENTS)
}
