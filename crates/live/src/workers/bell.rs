//! The manager sleeps until somebody rings.

use core::sync::atomic::{AtomicU32, Ordering::*};

use crate::pager::Pager;
use crate::sys;

/// What it sleeps on.
#[derive(Default)]
pub(crate) struct Bell {
    /// Counted up by whoever rings.
    rings: AtomicU32,
    asleep: AtomicU32,
}

impl Bell {
    /// Whether the manager sleeps.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Relaxed) != 0
    }
    /// In a forked child: the manager is not here.
    pub(crate) fn reset(&self) {
        self.asleep.store(0, Relaxed);
    }
}

impl Pager {
    /// Wakes the manager if it sleeps.
    pub fn ring(&self) {
        self.bell.rings.fetch_add(1, Release);
        if self.bell.asleep.load(SeqCst) != 0 {
            sys::futex_wake(&self.bell.rings, false);
        }
    }

    /// In the manager: sleeps until somebody rings, so long at most (ns), unless there is
    /// something to do.
    pub(crate) fn sleep_unless(&self, wait: u64, busy: impl FnOnce() -> bool) {
        let bell = self.bell.rings.load(Acquire);
        self.bell.asleep.store(1, SeqCst);
        if !busy() {
            sys::futex_wait(&self.bell.rings, bell, Some(wait), false);
        }
        self.bell.asleep.store(0, SeqCst);
    }
}
