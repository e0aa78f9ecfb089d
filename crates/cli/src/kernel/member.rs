//! A run's part in a budget that it shares with runs of either engine: that of a `terrace broker`, or
//! of a run whose memory a pager serves.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use terrace_core::Bytes;
use terrace_kernel::division::Keeper;
use terrace_kernel::engine::stats::Stats;
use terrace_live::broker::outsider::{Has, Outsider};
use terrace_live::broker::page::{FILE, Summary};
use terrace_live::broker::share::LEAST;
use terrace_report::RunLevel;

use crate::broker::Joined;
use crate::failure::Failure;

/// How often the broker is told, and asked.
const EVERY: Duration = Duration::from_millis(100);

/// How long it is waited for the first share: a broker answers within a few milliseconds, unless
/// others have to give back first.
const PATIENCE: Duration = Duration::from_millis(300);

/// The part.
pub(crate) struct Member {
    outsider: Outsider,
    due: Instant,
    /// The process of the broker, or of the run.
    run: u32,
    /// The file with the figures of all that share.
    page: PathBuf,
}

impl Member {
    /// Joins the broker that a process's number, a program's name or `cgroup` names.
    pub(crate) fn join(choice: &str) -> Result<Self, Failure> {
        let joined = Joined::find(choice)?;
        if joined.holds_store {
            return Err(Failure::bad_input(format!(
                "--join: the budget of `{choice}` is for what is compressed, too (--total), which is \
                 not divided with a run of --engine kernel"
            )));
        }
        let page = joined.directory.join(FILE);
        let outsider =
            Outsider::join(&page).map_err(|e| Failure::failed(format!("--join {choice}: {e}")))?;
        // Its first share comes with the broker's next look.
        let until = Instant::now() + PATIENCE;
        while outsider.share() <= LEAST && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(Self { outsider, due: Instant::now(), run: joined.run, page })
    }

    /// The process of the broker, or of the run whose budget it is.
    pub(crate) fn run(&self) -> u32 {
        self.run
    }

    /// The whole budget beside what all have of it; `None` if whoever divides it has ended.
    pub(crate) fn level(&self) -> Option<RunLevel> {
        Summary::read(&self.page).ok().map(RunLevel::from)
    }

    /// What the run may have.
    pub(crate) fn share(&self) -> Bytes {
        self.outsider.share()
    }

    /// When the next word with the broker is due.
    pub(crate) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Tells the broker what the run has; what it may have from now on.
    /// Where files are in its budget, their pages that left and came back count as the program's do.
    pub(crate) fn follow(
        &mut self,
        stats: &Stats,
        swapped: Option<Bytes>,
        files: Option<&Keeper>,
    ) -> Bytes {
        self.due = Instant::now() + EVERY;
        self.outsider.follow(has(stats, swapped, files.map(Keeper::missed)))
    }
}

/// What a run has and misses. Where files are in its budget they are in what is resident, and `files`
/// says what of them is out, and what came back of both sides.
fn has(stats: &Stats, swapped: Option<Bytes>, files: Option<(Bytes, u64)>) -> Has {
    let (absent, refaults) = files.unwrap_or((Bytes::ZERO, stats.faults));
    Has { resident: stats.resident, absent: swapped.unwrap_or_default() + absent, refaults }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_asks_for_its_files_side_as_well() {
        let stats = Stats { resident: Bytes::mib(60), faults: 50, ..Stats::default() };
        let swapped = Some(Bytes::mib(20));
        let with_files = has(&stats, swapped, Some((Bytes::mib(30), 900)));
        assert_eq!(
            with_files,
            Has { resident: Bytes::mib(60), absent: Bytes::mib(50), refaults: 900 }
        );
        let without = has(&stats, swapped, None);
        assert_eq!(without, Has { absent: Bytes::mib(20), refaults: 50, ..with_files });
        assert_eq!(has(&stats, None, None).absent, Bytes::ZERO);
    }
}
