//! What a run's compressed pages take of the zram devices that it swaps to. A device that was made for one run is swap
//! of the whole machine: other runs and programs may have pages there, too. What of its memory is whose the kernel does
//! not say, so it is estimated by what the run has in swap.

use std::time::{Duration, Instant};

use terrace_core::Bytes;
use terrace_kernel::files::Root;
use terrace_kernel::setup::SwapUse;
use terrace_kernel::setup::zram::{self, Held};

/// How often it is looked at, for the most of it.
const EVERY: Duration = Duration::from_millis(100);

/// What was seen of it.
#[derive(Debug, Default)]
pub(super) struct Stored {
    due: Option<Instant>,
    /// The most that the run's pages took.
    most: Bytes,
    /// Whether others were ever seen to have pages there.
    is_shared: bool,
}

/// What the devices hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// Of the run.
    pub(super) run: Option<Held>,
    /// Of everybody, if that is more: the run's is estimated then.
    pub(super) all: Option<Held>,
}

impl Stored {
    /// Whether it is time to look.
    pub(super) fn is_due(&self) -> bool {
        self.due.is_none_or(|due| Instant::now() >= due)
    }

    /// Looks; `swapped` is what the run has of swap, if that is known.
    pub(super) fn look(&mut self, root: &Root, swap: &SwapUse, swapped: Option<Bytes>) -> Parts {
        self.due = Some(Instant::now() + EVERY);
        match zram::held(root, &swap.devices) {
            Some(held) => self.note(held, swapped, swap.own),
            None => Parts::default(),
        }
    }

    fn note(&mut self, held: Held, swapped: Option<Bytes>, is_own: bool) -> Parts {
        let share = swapped.and_then(|swapped| held.share(swapped, is_own));
        self.is_shared |= share.is_some();
        let run = share.unwrap_or(held);
        self.most = self.most.max(run.memory);
        if self.is_shared {
            Parts { run: Some(Held { peak: self.most, ..run }), all: Some(held) }
        } else {
            Parts { run: Some(held), all: None }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn held(original: u64, memory: u64, peak: u64) -> Held {
        Held { original: Bytes::mib(original), memory: Bytes::mib(memory), peak: Bytes::mib(peak) }
    }

    /// A second run comes while the first one has 30 MiB there, and goes.
    #[test]
    fn what_another_run_has_in_the_device_is_told_apart() {
        let mut stored = Stored::default();
        let swapped = |mib| Some(Bytes::mib(mib));
        let alone = held(30, 10, 12);
        assert_eq!(stored.note(alone, swapped(30), true), Parts { run: Some(alone), all: None });
        let both = held(120, 40, 41);
        let parts = stored.note(both, swapped(30), true);
        assert_eq!(parts, Parts { run: Some(held(30, 10, 10)), all: Some(both) });
        let parts = stored.note(held(20, 8, 41), swapped(20), true);
        assert_eq!(parts.run, Some(held(20, 8, 10)), "its own most and not the device's");
    }

    #[test]
    fn where_nobody_knows_whose_it_is_all_is_told() {
        let all = held(30, 10, 12);
        let parts = Stored::default().note(all, None, false);
        assert_eq!(parts, Parts { run: Some(all), all: None });
    }
}
