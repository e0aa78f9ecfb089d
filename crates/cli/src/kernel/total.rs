//! A budget that covers compressed pages as well (`--total`): the memory that they take, and both together.

use terrace_core::Bytes;
use terrace_kernel::files::Root;
use terrace_kernel::setup::group::Group;
use terrace_kernel::setup::zram::Held;
use terrace_kernel::setup::{SwapKind, SwapUse, zram, zswap};
use terrace_report::kernel::AtOnce;

use super::LEAST;

/// How much of the total may go to compressed pages: incompressible memory would take all.
const STORE_AT_MOST: f64 = 0.75;
/// So much leaves, at 400 MB/s, before the budget has followed what compressed pages take. Terrace looks every
/// 2 ms at the soonest, and may have to wait for a processor. What is above the new budget has to leave first.
const UNDER_WAY: Bytes = Bytes::mib(4);
/// What is kept free for that is no more than this part of the total.
const AHEAD_AT_MOST: u64 = 16;
/// The ratio that is assumed until so much is out that the device's own ratio tells.
const ASSUMED: (f64, Bytes) = (0.5, Bytes::mib(1));
/// A device of a run's own holds so many times the total, or this if that is more. Its tables in the kernel
/// take 1/200 of what it can hold: for one as large as a machine of 24 GiB, 112 MiB.
const DEVICE: (u64, Bytes) = (16, Bytes::gib(1));

/// How large a device is made for a run with this total, on a machine with so much memory.
pub(crate) fn device_size(total: Bytes, machine: Bytes) -> Bytes {
    (total * DEVICE.0).max(DEVICE.1).min(machine)
}

/// What the budget covers, as it was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    /// What is resident and compressed now.
    pub(super) now: Bytes,
    /// The most at once, and how much of it was compressed.
    pub(super) peak: AtOnce,
    /// The most above the budget, since it was kept for the first time.
    pub(super) exceeded: Bytes,
    /// Whether it was kept since it was set.
    pub(super) settled: bool,
}

impl Total {
    /// Takes a look.
    pub(super) fn look(&mut self, resident: Bytes, store: Bytes, budget: Bytes) {
        let both = resident + store;
        self.now = both;
        if both > self.peak.both() {
            self.peak = AtOnce { resident, store };
        }
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

/// Compressed pages in what a run swaps to, also those of other programs. `None` where the kernel does not tell
/// how many, or nothing is compressed.
fn held(root: &Root, swap: &SwapUse) -> Option<Held> {
    match swap.kind {
        SwapKind::Zram => zram::held(root, &swap.devices),
        SwapKind::Zswap => zswap::held(root),
        SwapKind::Disk => None,
    }
}

/// Compressed pages of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Store {
    /// Memory that they take.
    pub(super) memory: Bytes,
    /// What a byte that leaves takes there, as far as is known.
    ratio: f64,
}

impl Store {
    /// As it is now. Where others swap to the same it is the part that belongs to the run, if it is known what
    /// of it lies there.
    pub(super) fn of(root: &Root, swap: &SwapUse, group: Option<&Group>) -> Self {
        let Some(held) = held(root, swap) else { return Self::default() };
        let swapped = group.and_then(Group::has_of_swap);
        let share = swapped.and_then(|swapped| held.share(swapped, swap.own));
        let memory = share.unwrap_or(held).memory;
        let ratio = if held.original < ASSUMED.1 {
            ASSUMED.0
        } else {
            (held.memory.as_f64() / held.original.as_f64()).min(1.0)
        };
        Self { memory, ratio }
    }

    /// What is left of a total for what is resident, of which there is so much now. What has yet to leave
    /// will take memory compressed, and so will what leaves before the next look: both are taken off ahead.
    pub(super) fn leaves(self, total: Bytes, resident: Bytes) -> Bytes {
        let most = Bytes::from_f64(total.as_f64() * STORE_AT_MOST);
        let left = total - self.memory.min(most);
        let to_leave = (resident - left) + UNDER_WAY;
        let ahead = Bytes::from_f64(to_leave.as_f64() * self.ratio).min(total / AHEAD_AT_MOST);
        (total - (self.memory + ahead).min(most)).max(LEAST)
    }
}

/// Whether a budget is so far from the one in force that this is changed at once. Each change wakes a thread,
/// or writes a limit.
pub(super) fn is_far(new: Bytes, old: Bytes, total: Bytes) -> bool {
    new.max(old) - new.min(old) >= total / 256
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
        let mib = Bytes::mib;
        total.look(mib(70), mib(20), BUDGET);
        assert_eq!((total.settled, total.exceeded), (false, Bytes::ZERO));
        total.look(mib(40), mib(24), BUDGET);
        total.look(mib(40), mib(40), BUDGET);
        total.look(mib(40), mib(30), BUDGET);
        assert_eq!(
            total,
            Total {
                now: Bytes::mib(70),
                peak: AtOnce { resident: mib(70), store: mib(20) },
                exceeded: Bytes::mib(16),
                settled: true,
            }
        );
        total.set_budget(Bytes::mib(50));
        total.look(mib(40), mib(29), mib(50));
        assert_eq!((total.settled, total.exceeded), (false, Bytes::mib(16)));
        total.look(mib(40), mib(10), mib(50));
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
        let of = |kind, own, group| Store::of(&root, &swap(kind, own), group).memory;

        assert_eq!(of(SwapKind::Zram, true, None), Bytes::mib(1), "all of its own");
        assert_eq!(of(SwapKind::Zram, true, Some(&group)), Bytes::kib(256), "others came");
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

    #[test]
    fn what_will_be_compressed_is_taken_off_ahead() {
        let mib = Bytes::mib;
        let left = |memory: u64, ratio, resident: u64| {
            Store { memory: mib(memory), ratio }.leaves(BUDGET, mib(resident))
        };
        assert_eq!(left(0, 0.5, 10), mib(62), "what leaves before the next look");
        assert_eq!(left(16, 0.25, 48), mib(47));
        assert_eq!(left(16, 0.25, 52), mib(46), "of 4 MiB that have to leave a quarter stays");
        assert_eq!(left(16, 0.5, 64), mib(44), "a sixteenth of the total at most");
        // Pages that do not compress.
        assert_eq!(left(60, 1.0, 30), mib(16));
        assert_eq!(Store { memory: mib(15), ratio: 1.0 }.leaves(mib(16), mib(9)), mib(4));
    }

    #[test]
    fn a_device_has_no_larger_tables_than_its_total_is_worth() {
        let (machine, gib) = (Bytes::gib(24), Bytes::gib);
        assert_eq!(device_size(Bytes::mib(48), machine), gib(1));
        assert_eq!(device_size(Bytes::mib(512), machine), gib(8));
        assert_eq!(device_size(gib(4), machine), machine);
    }
}
