//! What a group has and does, as the kernel counts it.

use std::io;
use std::path::{Path, PathBuf};

use terrace_core::{Bytes, Nanos};
use terrace_live::sys;
use terrace_sampler::cpu_time;

use super::Governed;
use super::beside::Beside;
use super::taker::Taker;
use super::touched;
use crate::files::{Root, number, read};
use crate::setup::group::{Group, Version};
use crate::setup::swap;
use crate::support::may_advise;

/// One look at a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// When.
    pub at: Nanos,
    /// What it has in DRAM of what can be swapped: anonymous and shared memory.
    pub resident: Bytes,
    /// What it has in swap.
    pub swapped: Bytes,
    /// What it has in DRAM beside that.
    pub beside: Beside,
    /// Pages of anonymous memory that came back, since it exists.
    pub refaults: u64,
    /// For how long some thread of it waited for memory, since it exists; `None` where the kernel
    /// does not say.
    pub stalled: Option<Nanos>,
    /// Processor time of it, since it exists.
    pub cpu: Nanos,
    /// Swap that is free.
    pub swap_free: Option<Bytes>,
}

/// A group that is looked at, and that memory is taken from.
#[derive(Debug)]
pub struct Looked {
    group: Group,
    root: Root,
    taker: Taker,
    /// Processor time by process, and of those that have ended: where the kernel does not add it up.
    cpu: CpuByProcess,
}

#[derive(Clone, Debug, Default)]
struct CpuByProcess {
    last: std::collections::BTreeMap<u32, Nanos>,
    sum: Nanos,
}

impl CpuByProcess {
    /// What all have had; of one that ends, what was seen last.
    fn look(&mut self, processes: &[u32], time: impl Fn(u32) -> Nanos) -> Nanos {
        for &process in processes {
            let now = time(process);
            let before = self.last.insert(process, now).unwrap_or(Nanos::ZERO);
            self.sum += now.saturating_sub(before);
        }
        self.last.retain(|process, _| processes.contains(process));
        self.sum
    }
}

impl Looked {
    /// A group, below a root directory with the kernel's files.
    pub fn new(root: Root, group: Group) -> Self {
        Self { taker: Taker::new(group.clone()), group, root, cpu: CpuByProcess::default() }
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Whether memory is being taken from it at the moment. If the group has grown since that began, it
    /// is stopped: to be asked often, for as long as it is so.
    pub fn is_taken_from(&self) -> bool {
        self.taker.is_at_work()
    }

    /// Takes nothing any more, and waits until that is so: no limit is set afterwards.
    pub fn leave(&mut self) {
        self.taker.end();
    }

    /// Processor time that was spent on taking memory since the last call, beside the calling thread.
    pub fn take_cpu(&self) -> Nanos {
        self.taker.take_cpu()
    }

    /// Looks; `None` if the group is gone.
    pub fn look(&mut self) -> Option<Look> {
        let directory = self.group.directory();
        let stat = read(&directory.join("memory.stat")).ok()?;
        let version = self.group.version();
        let of = |name: &str| field(&stat, version, name);
        let resident = match version {
            // The kernel's `rss` is anonymous memory alone.
            Version::One => of("rss") + of("shmem"),
            Version::Two => of("anon") + of("shmem"),
        };
        let swapped = match version {
            Version::One => of("swap"),
            Version::Two => number(&directory.join("memory.swap.current")).unwrap_or(0),
        };
        let charged = self.group.charged()?;
        let kernel = match version {
            Version::One => number(&directory.join("memory.kmem.usage_in_bytes")).unwrap_or(0),
            // Before Linux 5.18 it is not told as one number. Sockets' buffers are beside it.
            Version::Two => {
                of("kernel").max(of("kernel_stack") + of("pagetables") + of("slab")) + of("sock")
            }
        };
        let beside = Beside::new(charged, Bytes(resident), Bytes(kernel), of);
        let refaults = of("workingset_refault_anon");
        let stalled = self.group.stalled();
        let areas = swap::areas(&self.root);
        let swap_free = areas.iter().fold(Bytes::ZERO, |sum, area| sum + area.free());
        let cpu = cpu_usage(directory).unwrap_or_else(|| {
            let processes = self.group.members_below();
            self.cpu.look(&processes, cpu_time)
        });
        Some(Look {
            at: Nanos(sys::now()),
            resident: Bytes(resident),
            swapped: Bytes(swapped),
            beside,
            refaults,
            stalled,
            cpu,
            swap_free: Some(swap_free),
        })
    }
}

impl Governed for Looked {
    fn look(&mut self) -> Option<Look> {
        Self::look(self)
    }

    fn reclaim(&mut self, bytes: Bytes) -> io::Result<bool> {
        self.taker.take(bytes)
    }

    fn asked(&self) -> Bytes {
        self.taker.asked()
    }

    fn stop(&mut self) {
        self.taker.stop();
    }

    fn is_taking(&mut self) -> bool {
        self.is_taken_from()
    }

    fn forget(&mut self) -> Option<Nanos> {
        if !may_advise() {
            return None;
        }
        let before = sys::thread_cpu();
        for process in self.group.members_below() {
            // One that has ended meanwhile has no memory.
            if touched::level(&self.root, process).is_err()
                && self.root.path(format!("/proc/{process}")).exists()
            {
                return None;
            }
        }
        Some(sys::thread_cpu().saturating_sub(before))
    }

    fn idle(&mut self) -> Bytes {
        let processes = self.group.members_below().into_iter();
        let seen = processes.filter_map(|process| touched::since(&self.root, process).ok());
        seen.fold(Bytes::ZERO, |sum, marked| sum + (marked.resident - marked.touched))
    }
}

/// A counter of `memory.stat`, with those of groups below; 0 where the kernel does not say.
fn field(stat: &str, version: Version, name: &str) -> u64 {
    let prefix = match version {
        Version::One => "total_",
        Version::Two => "",
    };
    let line = stat
        .lines()
        .find_map(|line| line.strip_prefix(prefix)?.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// Processor time of a group, where the kernel adds it up there.
fn cpu_usage(directory: &Path) -> Option<Nanos> {
    let file: PathBuf = directory.join("cpu.stat");
    let text = read(&file).ok()?;
    let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    usage.trim().parse().ok().map(Nanos::micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_that_of_its_name_and_of_all_groups_below() {
        let stat = "rss 1\nrss_huge 2\ntotal_rss 4096\ntotal_rss_huge 5\ntotal_shmem 6\n";
        assert_eq!(field(stat, Version::One, "rss"), 4096);
        assert_eq!(field(stat, Version::One, "shmem"), 6);
        assert_eq!(field("anon 7\nanon_thp 9\n", Version::Two, "anon"), 7);
        assert_eq!(field("anon 7\n", Version::Two, "workingset_refault_anon"), 0);
    }

    #[test]
    fn what_a_process_that_ended_had_stays() {
        let mut cpu = CpuByProcess::default();
        assert_eq!(cpu.look(&[1, 2], |process| Nanos(u64::from(process) * 10)), Nanos(30));
        assert_eq!(cpu.look(&[2], |_| Nanos(25)), Nanos(35));
        // The number was used again.
        assert_eq!(cpu.look(&[1, 2], |_| Nanos(25)), Nanos(60));
    }
}
