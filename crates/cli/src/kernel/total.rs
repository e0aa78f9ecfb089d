//! A budget that covers compressed pages as well (`--total`): the memory that they take, and both together.

use terrace_core::Bytes;
use terrace_kernel::files::Root;
use terrace_kernel::setup::group::Group;
use terrace_kernel::setup::{SwapKind, SwapUse, zram, zswap};

/// What the budget covers, as it was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    /// What is resident and compressed now.
    pub(super) now: Bytes,
    /// The most at once.
    pub(super) peak: Bytes,
    /// The most above the budget, since it was kept for the first time.
    pub(super) exceeded: Bytes,
    /// Whether it was kept since it was set.
    pub(super) settled: bool,
}

impl Total {
    /// Takes a look.
    pub(super) fn look(&mut self, both: Bytes, budget: Bytes) {
        self.now = both;
        self.peak = self.peak.max(both);
        if both <= budget {
            self.settled = true;
        } else if self.settled {
            self.exceeded = self.exceeded.max(both - budget);
        }
    }

    /// From now on the budget is another one: what is above that has to leave first.
    pub(super) fn set_budget(&mut self, budget: Bytes) {
        self.settled &= self.now <= budget;
    }
}

/// Memory that the compressed pages of a run take. Of memory that others swap to as well it is the part that
/// belongs to the run, if it is known what of it lies there.
pub(super) fn store(root: &Root, swap: &SwapUse, group: Option<&Group>) -> Bytes {
    let held = match swap.kind {
        SwapKind::Zram => zram::held(root, &swap.devices),
        SwapKind::Zswap => zswap::held(root),
        SwapKind::Disk => None,
    };
    let Some(held) = held else { return Bytes::ZERO };
    match group.filter(|_| !swap.own).and_then(Group::swapped) {
        Some(swapped) => held.part(swapped),
        None => held.memory,
    }
}

/// A difference from what `--total` promises; `None` if the run has a device of its own.
pub(crate) fn lack(root: &Root, swap: &SwapUse, has_group: bool) -> Option<String> {
    let what = &swap.what;
    match swap.kind {
        SwapKind::Disk => None,
        SwapKind::Zswap if zswap::held(root).is_none() => Some(
            "--total: this kernel does not say what zswap takes (Linux 5.19), which is beside the \
             budget"
                .to_owned(),
        ),
        _ if swap.own => None,
        _ if has_group => Some(format!(
            "--total: others swap to {what}, too; what this run's compressed pages take of it is \
             estimated, by the mean of all"
        )),
        _ => Some(format!("--total: what other programs have in {what} is taken off, too")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const BUDGET: Bytes = Bytes::mib(64);

    #[test]
    fn what_is_above_the_budget_counts_once_it_was_kept() {
        let mut total = Total::default();
        total.look(Bytes::mib(90), BUDGET);
        assert_eq!((total.settled, total.exceeded), (false, Bytes::ZERO));
        total.look(Bytes::mib(64), BUDGET);
        total.look(Bytes::mib(80), BUDGET);
        total.look(Bytes::mib(70), BUDGET);
        assert_eq!(
            total,
            Total {
                now: Bytes::mib(70),
                peak: Bytes::mib(90),
                exceeded: Bytes::mib(16),
                settled: true,
            }
        );
        total.set_budget(Bytes::mib(50));
        total.look(Bytes::mib(69), Bytes::mib(50));
        assert_eq!((total.settled, total.exceeded), (false, Bytes::mib(16)));
        total.look(Bytes::mib(50), Bytes::mib(50));
        assert!(total.settled);
    }

    #[test]
    fn what_compressed_pages_take_is_the_run_s_part_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("sys/block/zram3/mm_stat", "4194304 900000 1048576 0 2097152 0 0 0 0\n");
        put("proc/meminfo", "MemTotal: 9 kB\nZswap: 512 kB\nZswapped: 2048 kB\n");
        // A group of version 2 with 1 MiB in swap.
        put("group/memory.current", "5000\n");
        put("group/memory.swap.current", "1048576\n");
        let root = Root::at(directory.path());
        let group = Group::at(&directory.path().join("group")).unwrap();
        let swap = |kind, own| SwapUse {
            kind,
            what: "zram3".into(),
            devices: vec![3],
            own,
            recompresses: false,
            writes_back: false,
            scarce: None,
        };
        let of = |kind, own, group| store(&root, &swap(kind, own), group);

        assert_eq!(of(SwapKind::Zram, true, Some(&group)), Bytes::mib(1), "all of its own");
        assert_eq!(of(SwapKind::Zram, false, Some(&group)), Bytes::kib(256));
        assert_eq!(of(SwapKind::Zram, false, None), Bytes::mib(1), "nobody knows whose it is");
        assert_eq!(of(SwapKind::Zswap, false, Some(&group)), Bytes::kib(256));
        assert_eq!(of(SwapKind::Disk, false, Some(&group)), Bytes::ZERO);

        let said = |kind, own, has_group| lack(&root, &swap(kind, own), has_group);
        assert_eq!(said(SwapKind::Zram, true, true), None);
        assert_eq!(said(SwapKind::Disk, false, true), None);
        assert!(said(SwapKind::Zram, false, true).unwrap().contains("estimated"));
        assert!(said(SwapKind::Zswap, false, false).unwrap().contains("is taken off, too"));
        put("proc/meminfo", "MemTotal: 9 kB\n");
        assert!(said(SwapKind::Zswap, false, true).unwrap().contains("beside the budget"));
    }
}
