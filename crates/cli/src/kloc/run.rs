//! `terrace kloc run`: the daemon.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use terrace_core::Nanos;
use terrace_kloc_live::decide::decider::DeciderConfig;
use terrace_kloc_live::decide::marks::Marks;
use terrace_kloc_live::observe::hooks::{HookSet, Wanted};
use terrace_kloc_live::service::daemon::{Daemon, RunError, Setup};
use terrace_kloc_live::service::documents::Status;
use terrace_kloc_live::service::state;
use terrace_report::openmetrics::Kloc;
use terrace_signals::may_stop;

use super::top;
use crate::args::one_of;
use crate::attach::percent;
use crate::cgroups;
use crate::failure::Failure;
use crate::metrics::{self, Listen};
use crate::mode::Mode;
use crate::output;

/// Watch files, and have pages of those that nobody uses leave when memory is short.
///
/// `observe`, the default, drops nothing: it says what would leave, and how much of that was
/// opened again soon after (the regret). The daemon runs until it is told to end (SIGTERM), and
/// leaves everything as it is then. It never writes to a file, and never drops what is dirty: that
/// is written back first.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace kloc run --mode enforce --cgroup system.slice\n         \
                        terrace kloc run --for 60s --json")]
pub(crate) struct Args {
    /// Only files that programs of this control group, or of one within it, use last, when the group
    /// is nearly at its limit. Without it, all groups that have a limit, and the machine.
    #[arg(long, value_name = "PATH")]
    cgroup: Vec<PathBuf>,

    /// Drop only files below this directory.
    #[arg(long, value_name = "DIRECTORY")]
    path: Vec<PathBuf>,

    /// Look only at files of the file system on this block device.
    #[arg(long, value_name = "DEVICE")]
    device: Vec<PathBuf>,

    /// Say what would leave, or have it leave.
    #[arg(long, value_name = "MODE", default_value = "observe",
          value_parser = one_of(&Mode::ALL, Mode::name))]
    mode: Mode,

    /// Count block transfers, requests, what files ask the journal for, packets and receive
    /// buffers, too, and with trampolines names of files as they come and go. Reads that are cached
    /// cost the same; each transfer costs 0.1 µs more.
    #[arg(long)]
    objects: bool,

    /// Use this set of hooks. Without it, the best that can be had of the first three. `polled` looks
    /// from time to time which files are open, so numbers of opens are lower bounds.
    #[arg(long, value_name = "SET", value_parser = one_of(&HookSet::ALL, HookSet::name))]
    hooks: Option<HookSet>,

    /// Files leave when more than this share of a memory is in use, page cache included. Without
    /// --high and --low, 90 %, but no more than 512 MiB are kept free.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    high: Option<f64>,

    /// They leave until no more than this share is in use. Without --high and --low, 82 %, but no
    /// more than 922 MiB are kept free.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    low: Option<f64>,

    /// How many files are known at most. The ones that were closed first are forgotten.
    #[arg(long, value_name = "COUNT", default_value = "65536")]
    contexts: u32,

    /// End after this time.
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<Nanos>,

    /// Serve the figures for Prometheus: PORT (on the loopback address), ADDRESS:PORT, or
    /// unix:PATH, which its owner alone can read.
    #[arg(long, value_name = "WHERE")]
    metrics: Option<Listen>,

    /// Where the daemon keeps its lock, and the socket that it is asked through.
    #[arg(long, value_name = "DIRECTORY", default_value = state::DIRECTORY)]
    state: PathBuf,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let setup = self.setup()?;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| may_stop(signal)) {
            signal_hook::flag::register(signal, Arc::clone(&stop))
                .map_err(|e| Failure::failed(format!("signals: {e}")))?;
        }
        let failure = |error: RunError| match error {
            RunError::BadInput(what) => Failure::bad_input(what),
            RunError::Unsupported(what) => Failure::unsupported(what),
            RunError::Failed(what) => Failure::failed(what),
        };
        let mut daemon = Daemon::new(setup).map_err(failure)?;
        let figures = Arc::new(Mutex::new(None::<Kloc>));
        let read = Arc::clone(&figures);
        let _socket = self
            .metrics
            .as_ref()
            .map(|to| {
                metrics::serve_text(to, false, move || {
                    let figures = (*read.lock().unwrap_or_else(PoisonError::into_inner))?;
                    terrace_report::openmetrics::kloc(figures).ok()
                })
            })
            .transpose()?;
        for line in daemon.status().refused {
            output::say(format_args!("not used: {line}"));
        }
        let mut unseen = Unseen::default();
        let run = daemon.run(
            || stop.load(Ordering::Relaxed),
            |status| {
                unseen.look(status, status.running >= PATIENCE);
                *figures.lock().unwrap_or_else(PoisonError::into_inner) = Some(figures_of(status));
            },
        );
        run.map_err(failure)?;
        let status = daemon.status();
        unseen.look(&status, true);
        let text =
            if json { output::json("terrace.kloc.run", &status)? } else { top::render(&status) };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    fn setup(&self) -> Result<Setup, Failure> {
        let groups = self.cgroup.iter().map(|group| {
            let directory = cgroups::directory("--cgroup", group)?;
            // As the daemon finds it, by whatever links or relative path it was named.
            std::fs::canonicalize(&directory)
                .map_err(|e| Failure::bad_input(format!("--cgroup: {}: {e}", directory.display())))
        });
        let mut devices = Vec::new();
        for device in &self.device {
            let name = device.display();
            let is = std::fs::metadata(device)
                .map_err(|e| Failure::bad_input(format!("--device: {name}: {e}")))?;
            if !is.file_type().is_block_device() {
                return Err(Failure::bad_input(format!("--device: {name}: no block device")));
            }
            devices.push(is.rdev());
        }
        let mut paths = Vec::new();
        for path in &self.path {
            let name = path.display();
            let bad =
                |e: &dyn std::fmt::Display| Failure::bad_input(format!("--path: {name}: {e}"));
            let path = std::fs::canonicalize(path).map_err(|e| bad(&e))?;
            if !path.is_dir() {
                return Err(bad(&"no directory"));
            }
            paths.push(path);
        }
        if !self.path.is_empty() && self.mode == Mode::Observe {
            return Err(Failure::bad_input(
                "--path: has no effect with --mode observe, which opens no file and so knows none \
                 by its path",
            ));
        }
        if self.contexts == 0 {
            return Err(Failure::bad_input("--contexts: at least one file has to be known"));
        }
        let marks = Marks { high: self.high, low: self.low };
        if !marks.are_in_order() {
            return Err(Failure::bad_input("--low: must be less than --high"));
        }
        Ok(Setup {
            groups: groups.collect::<Result<_, _>>()?,
            paths,
            wanted: Wanted { devices, objects: self.objects, set: self.hooks },
            config: DeciderConfig {
                capacity: self.contexts as usize,
                enforce: self.mode == Mode::Enforce,
                ..DeciderConfig::default()
            },
            marks,
            state: self.state.clone(),
            duration: self.duration,
        })
    }
}

/// For so long nothing may be seen of what was asked for before that is said.
const PATIENCE: Nanos = Nanos::seconds(60);

/// Says once of what nothing was seen.
#[derive(Default)]
struct Unseen {
    told: bool,
}

impl Unseen {
    fn look(&mut self, status: &Status, is_due: bool) {
        if !is_due || std::mem::replace(&mut self.told, true) {
            return;
        }
        for filter in &status.unseen {
            output::warn(format_args!("nothing seen in {}: {filter}", super::time(status.running)));
        }
    }
}

/// The status as figures for Prometheus.
fn figures_of(status: &Status) -> Kloc {
    let totals = &status.totals;
    Kloc {
        contexts: status.contexts,
        active: status.active,
        cached: status.cached,
        events: totals.events,
        lost: status.lost,
        left: totals.left_bytes,
        regretted: totals.regretted_bytes,
        in_use: totals.in_use,
    }
}
