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
    /// `terrace run --total` the budget.
    TerraceTotal,
}

impl System {
    /// What a table calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Kernel => "kernel",
            Self::Terrace | Self::TerraceTotal => "terrace",
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
            System::Terrace | System::TerraceTotal => {
                let option = if system == System::Terrace { "--fast" } else { "--total" };
                let report = self.directory.join("report.json");
                let budget = format!("{}B", budget.get());
                let words = ["--json", "run", option, &budget, "--report"].map(String::from);
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

/// What `terrace run --total` may have where all that it takes is to be as much as its
/// peer takes.
///
/// From one run with another budget, that took `dram` altogether, `budget` of it resident
/// and `store` compressed: the rest is Terrace's own, and of the program's that is not
/// managed, and remains the same. `None` where the peer has less than that.
pub fn equal_total(peer: Bytes, dram: Bytes, budget: Bytes, store: Bytes) -> Option<Bytes> {
    let own = dram.get().saturating_sub(budget.get() + store.get());
    peer.get().checked_sub(own).filter(|&left| left > 0).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_resident_nor_compressed_is_not_ours_to_divide() {
        let mib = Bytes::mib;
        let equal = |peer| equal_total(peer, mib(1024 + 768 + 100), mib(1024), mib(768));
        assert_eq!(equal(mib(1750)), Some(mib(1650)));
        assert_eq!(equal(mib(90)), None, "less than our own");
    }
}
