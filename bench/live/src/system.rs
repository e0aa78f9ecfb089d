//! Under what a program runs: nothing, kernel swap in a memory cgroup, or
//! `terrace run`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use terrace_core::Bytes;
use terrace_report::RunReport;

use crate::peer::{Backing, Cgroup, Swap};

/// Which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// As much memory as it likes.
    Plain,
    /// A memory cgroup of the budget, and swap.
    Kernel,
    /// `terrace run --fast` the budget.
    Terrace,
}

impl System {
    /// What a table calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Kernel => "kernel",
            Self::Terrace => "terrace",
        }
    }
}

/// How the systems are set up on this machine.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The command to measure.
    pub terrace: PathBuf,
    /// What the kernel swaps to.
    pub backing: Backing,
    /// Room for what is swapped.
    pub swap: Bytes,
    /// Further arguments of `terrace run`.
    pub options: Vec<String>,
    /// Where reports go.
    pub directory: PathBuf,
}

/// A system that is ready for one run. The machine is as it was when it is dropped.
#[derive(Debug)]
pub struct Ready {
    words: Vec<String>,
    budget: Bytes,
    // In this order: a group can only go when nothing of it is in use.
    group: Option<Cgroup>,
    swap: Option<Swap>,
    report: Option<PathBuf>,
}

/// What a run has cost beside time.
#[derive(Debug)]
pub struct Cost {
    /// All DRAM that it took, at most.
    ///
    /// - Kernel: the group's limit, and the most that zram or zswap occupied. (The
    ///   first version of cgroups does not charge either to the group. The second
    ///   charges zswap, which then counts twice here.)
    /// - Terrace, plain: the most that the largest of the processes had resident, the
    ///   compressed store and Terrace's own tables included.
    pub dram: Bytes,
    /// What `terrace run` reported.
    pub report: Option<RunReport>,
}

impl Setup {
    /// Makes a system ready.
    pub fn ready(&self, system: System, budget: Bytes) -> io::Result<Ready> {
        let mut ready = Ready { words: Vec::new(), budget, group: None, swap: None, report: None };
        match system {
            System::Plain => {}
            System::Kernel => {
                ready.swap = Some(Swap::on(self.backing, self.swap)?);
                let group = Cgroup::new(budget)?;
                ready.words = group.wrap();
                ready.group = Some(group);
            }
            System::Terrace => {
                let report = self.directory.join("report.json");
                let budget = format!("{}B", budget.get());
                let words = ["--json", "run", "--fast", &budget, "--report"].map(String::from);
                ready.words = vec![self.terrace.display().to_string()];
                ready.words.extend(words);
                ready.words.push(report.display().to_string());
                ready.words.extend(self.options.iter().cloned());
                ready.words.push("--".to_owned());
                ready.report = Some(report);
            }
        }
        Ok(ready)
    }
}

impl Ready {
    /// A command line under the system.
    pub fn command(&self, program: &Path) -> std::process::Command {
        let mut words = self.words.iter();
        let Some(first) = words.next() else { return std::process::Command::new(program) };
        let mut command = std::process::Command::new(first);
        command.args(words).arg(program);
        command
    }

    /// Processes that the kernel has killed for want of memory.
    pub fn killed(&self) -> u64 {
        self.group.as_ref().map_or(0, Cgroup::killed)
    }

    /// What the run has cost, whose process had so much resident.
    pub fn cost(&self, resident: Bytes) -> io::Result<Cost> {
        if let Some(swap) = &self.swap {
            return Ok(Cost { dram: self.budget + swap.occupied_peak(), report: None });
        }
        let Some(report) = &self.report else {
            return Ok(Cost { dram: resident, report: None });
        };
        let wrong = |e: String| io::Error::other(format!("{}: {e}", report.display()));
        let text = fs::read(report).map_err(|e| wrong(e.to_string()))?;
        let report: RunReport = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
        if let Some(failed) = report.processes.iter().find_map(|p| p.failure.as_ref()) {
            return Err(io::Error::other(format!("terrace gave up: {failed}")));
        }
        Ok(Cost { dram: resident, report: Some(report) })
    }
}

/// The budget with which `terrace run` takes as much DRAM altogether as its peer.
///
/// From one run with another budget, that took `dram` altogether and had `store` of it
/// in its store, for `managed` memory: what a page takes in the store is the same, and
/// so is all that is neither resident nor stored.
///
/// `None` where no budget does it: the peer has less than the store alone would take.
pub fn equal_budget(
    peer: Bytes,
    dram: Bytes,
    budget: Bytes,
    store: Bytes,
    managed: Bytes,
) -> Option<Bytes> {
    let own = (dram - budget - store).as_f64();
    let out = (managed - budget).as_f64();
    if out == 0.0 {
        return Some(budget);
    }
    let kept = store.as_f64() / out;
    // budget' + kept (managed - budget') + own = peer
    let equal = (peer.as_f64() - own - kept * managed.as_f64()) / (1.0 - kept);
    (kept < 1.0 && equal >= 1.0).then(|| Bytes::from_f64(equal.min(managed.as_f64())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 4 GiB in 1 GiB at 4:1 with 100 MiB of its own: 1024 + 768 + 100 MiB.
    #[test]
    fn at_the_equal_budget_all_parts_make_up_the_peers_total() {
        let mib = Bytes::mib;
        let (budget, managed, store) = (mib(1024), mib(4096), mib(768));
        let dram = mib(1024 + 768 + 100);
        assert_eq!(equal_budget(dram, dram, budget, store, managed), Some(budget));
        let peer = mib(1750);
        let equal = equal_budget(peer, dram, budget, store, managed).unwrap();
        let total = equal.as_f64() + (managed - equal).as_f64() / 4.0 + mib(100).as_f64();
        assert!((total - peer.as_f64()).abs() < 8.0, "{equal}");
    }

    #[test]
    fn a_peer_that_has_less_than_the_store_alone_cannot_be_equalled() {
        let mib = Bytes::mib;
        assert_eq!(equal_budget(mib(900), mib(1892), mib(1024), mib(768), mib(4096)), None);
        assert_eq!(
            equal_budget(mib(9000), mib(1892), mib(1024), mib(0), mib(1024)),
            Some(mib(1024))
        );
    }
}
