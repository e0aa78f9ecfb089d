//! How many pages of a run have left DRAM for swap, whoever put them out: the engine, the program's own
//! threads, or the kernel in place of pages that were brought ahead. What the kernel was asked for does not
//! tell it: pages that are locked or in use stay, and are asked for again.
//!
//! The figure is that of the first of these that there is:
//!
//! 1. what the run's control group counts (version 2, from Linux 6.12 on);
//! 2. the writes to a zram device of the run's own. Pages of zeros are not written (Linux 6.12): the kernel
//!    counts them for the whole machine, which is taken where no other swap is there;
//! 3. pages that came back, and what more lies in swap than at the beginning. What the program gave back
//!    while it lay there is not in it.

use terrace_core::Bytes;

use crate::files::Root;
use crate::repack;
use crate::setup::group::Group;
use crate::setup::swap::areas;
use crate::setup::{SwapKind, SwapUse};

/// Size of a page.
const PAGE: u64 = 4096;

/// What counts the pages.
#[derive(Clone, Debug)]
enum By {
    Group(Group),
    /// A device of the run's own, and whether all pages of zeros are the run's, too.
    Device(u32, bool),
    Nothing,
}

/// Counts the pages of a run that left.
#[derive(Clone, Debug)]
pub struct Left {
    root: Root,
    by: By,
    /// What was counted at the beginning; without a counter, what lay in swap at the first look.
    before: Option<u64>,
    /// The last figure: it never goes back.
    last: Option<u64>,
}

impl Left {
    /// Counts from now on what leaves for this swap, from this group if the run has one.
    pub fn begin(root: Root, swap: &SwapUse, group: Option<&Group>) -> Self {
        let own = swap.devices.first().filter(|_| swap.own && swap.kind == SwapKind::Zram);
        let alone = areas(&root).iter().all(|area| area.zram().as_ref() == own);
        let ways = group.map(|group| By::Group(group.clone())).into_iter();
        let mut ways = ways.chain(own.map(|&device| By::Device(device, alone)));
        let known = |by: By| by.count(&root).map(|before| (by, Some(before)));
        let (by, before) = ways.find_map(known).unwrap_or((By::Nothing, None));
        Self { root, by, before, last: None }
    }

    /// Whether nothing counts the pages: what lies in swap has to be looked at again and again, as it is
    /// gone with the program.
    pub fn is_derived(&self) -> bool {
        matches!(self.by, By::Nothing)
    }

    /// How many have left by now; `None` if that is not known. So many pages came back until now, and so
    /// much lies in swap.
    pub fn look(&mut self, came_back: u64, swapped: Option<Bytes>) -> Option<u64> {
        let now = match &self.by {
            By::Nothing => swapped.map(|swapped| {
                let there = swapped.get() / PAGE;
                (there + came_back).saturating_sub(*self.before.get_or_insert(there))
            }),
            by => by.count(&self.root).zip(self.before).map(|(now, then)| now.saturating_sub(then)),
        };
        self.last = self.last.max(now);
        self.last
    }
}

impl By {
    /// Pages that have left since the counter exists.
    fn count(&self, root: &Root) -> Option<u64> {
        match self {
            Self::Group(group) => group.swapped_out(),
            Self::Device(device, all_zeros) => {
                let (_, written) = repack::traffic(root, *device)?;
                let zeros = if *all_zeros { zeros(root) } else { 0 };
                Some(written + zeros)
            }
            Self::Nothing => None,
        }
    }
}

/// Pages of zeros that have left on this machine; 0 where they are written like others.
fn zeros(root: &Root) -> u64 {
    let text = root.read("/proc/vmstat").unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix("swpout_zero "));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn swap(own: bool) -> SwapUse {
        SwapUse {
            kind: SwapKind::Zram,
            what: "zram3".into(),
            devices: vec![3],
            own,
            recompresses: false,
            writes_back: false,
            scarce: None,
        }
    }

    fn written(root: &Path, pages: u64) {
        put(root, "sys/block/zram3/stat", &format!("0 0 80 0 0 0 {} 0\n", pages * 8));
    }

    /// What was asked for, and what came back, does not matter there.
    #[test]
    fn what_a_device_of_the_run_s_own_was_written_has_left() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        written(at, 1);
        put(at, "proc/swaps", "Filename Type Size Used Priority\n/dev/zram3 partition 9 1 100\n");
        put(at, "proc/vmstat", "pswpout 500\nswpout_zero 40\n");
        let mut left = Left::begin(Root::at(at), &swap(true), None);
        assert!(!left.is_derived());
        assert_eq!(left.look(0, Some(Bytes::mib(9))), Some(0), "the header of the swap area");
        written(at, 301);
        put(at, "proc/vmstat", "pswpout 800\nswpout_zero 50\n");
        assert_eq!(left.look(7, None), Some(310), "pages of zeros are written nowhere");
        fs::remove_file(at.join("sys/block/zram3/stat")).unwrap();
        assert_eq!(left.look(7, None), Some(310), "the device is gone");
    }

    #[test]
    fn zeros_are_counted_only_where_nobody_else_swaps() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        written(at, 1);
        put(
            at,
            "proc/swaps",
            "Filename Type Size Used Priority\n/dev/zram3 partition 9 1 100\n\
             /dev/sda2 partition 9 1 -2\n",
        );
        put(at, "proc/vmstat", "swpout_zero 40\n");
        let mut left = Left::begin(Root::at(at), &swap(true), None);
        put(at, "proc/vmstat", "swpout_zero 90\n");
        assert_eq!(left.look(0, None), Some(0));
    }

    #[test]
    fn a_group_that_counts_what_leaves_is_asked_first() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        written(at, 1);
        put(at, "group/memory.current", "0\n");
        let stat = |pswpout: u64| {
            let text =
                format!("anon 5\npswpout {pswpout}\nswpout_zero 10\nzswpout 100\nzswpwb 30\n");
            put(at, "group/memory.stat", &text);
        };
        stat(1000);
        let group = Group::at(&at.join("group")).unwrap();
        let mut left = Left::begin(Root::at(at), &swap(true), Some(&group));
        assert_eq!(left.look(5, None), Some(0));
        stat(1250);
        written(at, 9000);
        assert_eq!(left.look(5, None), Some(250));
    }

    #[test]
    fn where_nothing_counts_it_is_what_came_back_and_what_lies_in_swap_since() {
        let directory = tempfile::tempdir().unwrap();
        let mut left = Left::begin(Root::at(directory.path()), &swap(false), None);
        assert!(left.is_derived());
        assert_eq!(left.look(0, None), None, "nothing is known");
        assert_eq!(left.look(0, Some(Bytes(40 * PAGE))), Some(0), "it lay there before");
        assert_eq!(left.look(10, Some(Bytes(50 * PAGE))), Some(20));
        assert_eq!(left.look(12, Some(Bytes::ZERO)), Some(20), "the program has ended");
        assert_eq!(left.look(12, None), Some(20));
    }
}
