//! How far the pager is: it begins, serves, has broken, has brought everything in, leaves the program.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use crate::failsafe::give_up::GRACE;
use crate::pager::Pager;
use crate::sys;

/// The phases that have begun. None is ever taken back but the first.
#[derive(Default)]
pub(crate) struct Phase {
    /// Whether the program's memory is being registered for the first time.
    beginning: AtomicU32,
    /// When (ns) something of ours broke; 0: never.
    stopped: AtomicU64,
    /// Whether everything has been brought in since. A core dump's reader looks at it.
    over: AtomicU32,
    /// Whether our threads are to end.
    leaving: AtomicU32,
}

impl Phase {
    /// Whether the program's memory is being registered for the first time.
    pub(crate) fn is_beginning(&self) -> bool {
        self.beginning.load(Acquire) != 0
    }
    /// That it is, or is no longer.
    pub(crate) fn set_beginning(&self, yes: bool) {
        self.beginning.store(u32::from(yes), SeqCst);
    }
    /// Whether all memory is plain since something of ours broke.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Acquire) != 0
    }
    /// It is, from now on.
    pub(crate) fn set_over(&self) {
        self.over.store(1, Release);
    }
    /// Where that is said, for who reads a core dump.
    pub(crate) fn over(&self) -> &AtomicU32 {
        &self.over
    }
}

impl Pager {
    /// Notes that something of ours broke; true if it had already.
    pub fn stop(&self) -> bool {
        self.phase.stopped.compare_exchange(0, sys::now(), AcqRel, Acquire).is_err()
    }

    /// Whether something of ours broke: the program is on plain memory, or will
    /// be in a moment.
    pub fn is_stopped(&self) -> bool {
        self.phase.stopped.load(Relaxed) != 0
    }

    /// Whether our threads are to end: the program is on plain memory for good.
    pub fn is_leaving(&self) -> bool {
        self.phase.leaving.load(Acquire) != 0
    }

    /// They are, from now on.
    pub(crate) fn leave_program(&self) {
        self.phase.leaving.store(1, Release);
    }

    /// Whether that was so long ago that a thread which is still at it never ends.
    pub(super) fn is_abandoned(&self) -> bool {
        let stopped = self.phase.stopped.load(Relaxed);
        stopped != 0 && sys::now() > stopped + GRACE / 2
    }
}
