//! Under what a program runs: nothing, kernel swap in a memory cgroup, or
//! `terrace run` with one of its engines.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use terrace_core::Bytes;
use terrace_report::RunReport;
use terrace_report::kernel::KernelReport;

use crate::peer::{Backing, Cgroup, Swap};

/// Which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// As much memory as it likes.
    Plain,
    /// A memory cgroup of the budget, and swap.
    Kernel,
    /// `terrace run --fast` the budget, by its pager.
    Terrace,
    /// The same by the kernel engine.
    Engine,
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
            Self::Engine => "engine",
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
    /// Further arguments of `terrace run` with the pager.
    pub options: Vec<String>,
    /// Where reports go.
    pub directory: PathBuf,
    /// Whether memory is counted by a control group, so that of all processes together; else what the
    /// largest of them had is known. Needs root.
    pub counts: bool,
}

/// A system that is ready for one run. The machine is as it was when it is dropped.
#[derive(Debug)]
pub struct Ready {
    /// What goes before the command line.
    words: Vec<String>,
    /// How many of them belong to the group, before the command of ours.
    outer: usize,
    /// Whether who runs the program is root, and makes what it needs, whoever the program is.
    by_root: bool,
    budget: Bytes,
    /// The command that undoes what a killed run of the kernel engine leaves.
    clean: Option<PathBuf>,
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
    ///   compressed store and Terrace's own tables included; all of them together where a
    ///   control group counts.
    /// - The kernel engine: the most that the run had resident, and the most that zram occupied.
    pub dram: Bytes,
    /// What `terrace run` with the pager reported.
    pub report: Option<RunReport>,
    /// What `terrace run` with the kernel engine reported.
    pub engine: Option<Box<KernelReport>>,
}

/// `setpriv`'s words for a user who is not root: some programs refuse to be.
const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
/// And for one who may still use userfaultfd.
const WITH_FAULTS: [&str; 2] = ["--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace"];

/// A command line of a program that refuses to be root.
pub fn nobody(program: &Path) -> std::process::Command {
    // SAFETY: asks for this process's user.
    if unsafe { libc::geteuid() } != 0 {
        return std::process::Command::new(program);
    }
    Ready::join(NOBODY.into_iter().chain(["--"]), program)
}

impl Setup {
    /// Makes a system ready. Four times the budget comes back from a virtual machine's host first, which
    /// is about what the programs here need.
    pub fn ready(&self, system: System, budget: Bytes) -> io::Result<Ready> {
        crate::host::bring_back(Bytes(budget.get().saturating_mul(4)))?;
        let mut ready = Ready {
            words: Vec::new(),
            outer: 0,
            by_root: true,
            budget,
            clean: None,
            group: None,
            swap: None,
            report: None,
        };
        if self.counts && matches!(system, System::Plain | System::Terrace) {
            let group = Cgroup::counting()?;
            ready.words = group.wrap();
            ready.outer = ready.words.len();
            ready.group = Some(group);
        }
        match system {
            System::Plain => {}
            System::Kernel => {
                ready.swap = Some(Swap::on(self.backing, self.swap)?);
                let group = Cgroup::new(budget)?;
                ready.words = group.wrap();
                ready.group = Some(group);
            }
            System::Terrace | System::TerraceTotal | System::Engine => {
                let option = if system == System::TerraceTotal { "--total" } else { "--fast" };
                let report = self.directory.join("report.json");
                if let Err(e) = fs::remove_file(&report)
                    && e.kind() != io::ErrorKind::NotFound
                {
                    return Err(e);
                }
                let budget = format!("{}B", budget.get());
                let words = ["--json", "run", option, &budget, "--report"].map(String::from);
                ready.words.push(self.terrace.display().to_string());
                ready.words.extend(words);
                ready.words.push(report.display().to_string());
                if system == System::Engine {
                    ready.words.extend(["--engine", "kernel"].map(String::from));
                    ready.clean = Some(self.terrace.clone());
                } else {
                    // Not by the kernel because swap happens to be on.
                    ready.words.extend(["--engine", "pager"].map(String::from));
                    ready.words.extend(self.options.iter().cloned());
                    // What it loads into the program asks for the faults, as the program's user.
                    ready.by_root = false;
                }
                ready.words.push("--".to_owned());
                ready.report = Some(report);
            }
        }
        Ok(ready)
    }
}

impl Ready {
    /// Whatever the words before a command line do with it, which may be none.
    pub fn under(words: Vec<String>) -> Self {
        Self {
            outer: words.len(),
            words,
            by_root: true,
            budget: Bytes(0),
            clean: None,
            group: None,
            swap: None,
            report: None,
        }
    }

    /// A command line under the system.
    pub fn command(&self, program: &Path) -> std::process::Command {
        Self::join(self.words.iter().map(String::as_str), program)
    }

    /// The same for a program that refuses to be root; it is whoever this process is otherwise.
    pub fn command_as_nobody(&self, program: &Path) -> std::process::Command {
        // SAFETY: asks for this process's user.
        if unsafe { libc::geteuid() } != 0 {
            return self.command(program);
        }
        let at = if self.by_root { self.words.len() } else { self.outer };
        let (before, after) = self.words.split_at(at);
        let rights = if self.by_root { &[][..] } else { &WITH_FAULTS[..] };
        let nobody = NOBODY.iter().chain(rights).copied().chain(["--"]);
        let words = before.iter().map(String::as_str).chain(nobody);
        Self::join(words.chain(after.iter().map(String::as_str)), program)
    }

    fn join<'a>(mut words: impl Iterator<Item = &'a str>, program: &Path) -> std::process::Command {
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
            let dram = self.budget + swap.occupied_peak();
            return Ok(Cost { dram, report: None, engine: None });
        }
        let dram = self.group.as_ref().map_or(resident, Cgroup::resident_peak);
        let Some(report) = &self.report else {
            return Ok(Cost { dram, report: None, engine: None });
        };
        let wrong = |e: String| io::Error::other(format!("{}: {e}", report.display()));
        let text = fs::read(report).map_err(|e| wrong(e.to_string()))?;
        if self.clean.is_some() {
            let engine: KernelReport =
                serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
            let dram =
                engine.stats.resident_peak + engine.store.map_or(Bytes(0), |store| store.peak);
            return Ok(Cost { dram, report: None, engine: Some(Box::new(engine)) });
        }
        let report: RunReport = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
        if let Some(failed) = report.processes.iter().find_map(|p| p.failure.as_ref()) {
            return Err(io::Error::other(format!("terrace gave up: {failed}")));
        }
        Ok(Cost { dram, report: Some(report), engine: None })
    }
}

impl Drop for Ready {
    /// A run that was killed leaves a device and a group, which its report would tell to be gone.
    fn drop(&mut self) {
        let is_told = self.report.as_ref().is_some_and(|report| report.exists());
        if let Some(terrace) = self.clean.as_ref().filter(|_| !is_told) {
            let output = std::process::Command::new(terrace).arg("clean").output();
            if !output.as_ref().is_ok_and(|output| output.status.success()) {
                eprintln!("`terrace clean` failed: {output:?}");
            }
        }
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
