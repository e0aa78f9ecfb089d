//! Hint faults: pages are made to fault, and the time until they do says how
//! often they are used.
//!
//! As Linux's NUMA balancing has it: a walk over memory takes the access rights
//! of so many bytes at a time away; a page that is touched soon after is hot.

use terrace_core::{Action, Bytes, Nanos, PageSize, Plan};

use crate::lru::{Walk, observe};
use crate::roster::{PerPage, Roster};

/// How memory is walked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HintConfig {
    /// Memory that is armed at a time: 256 MB
    /// (`numa_balancing_scan_size_mb`, `kernel/sched/fair.c`).
    pub scan_size: Bytes,
    /// Time from one to the next: 1000 ms, with which a task begins
    /// (`numa_balancing_scan_delay`, `kernel/sched/fair.c`). Linux adapts it to
    /// the share of local faults, which in its mode for memory tiers does not
    /// see the slow tier's faults (`task_numa_fault` returns before); so we
    /// leave it as it is.
    pub scan_period: Nanos,
}

impl Default for HintConfig {
    fn default() -> Self {
        Self { scan_size: Bytes::mib(256), scan_period: Nanos::SECOND }
    }
}

/// When pages were armed, and the walk that arms them.
#[derive(Debug)]
pub(crate) struct Hints {
    config: HintConfig,
    /// When each page was armed, in milliseconds; 0 for not armed.
    armed: PerPage<u32>,
    walk: Walk,
    next: Nanos,
}

/// A time as it is remembered.
fn stamp(now: Nanos) -> u32 {
    (now.get() / 1_000_000) as u32 | 1
}

impl Hints {
    pub(crate) fn new(config: HintConfig) -> Self {
        Self { config, armed: PerPage::default(), walk: Walk::default(), next: Nanos::ZERO }
    }

    pub(crate) fn grow(&mut self, slots: usize) {
        self.armed.grow(slots);
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.armed.heap_bytes()
    }

    /// Nothing is known of a page any more.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.armed[slot] = 0;
    }

    /// Arms the next pages, if it is time.
    pub(crate) fn arm<const L: usize>(
        &mut self,
        now: Nanos,
        roster: &Roster<L>,
        wanted: impl Fn(u32) -> bool,
        plan: &mut Plan,
    ) {
        if now < self.next {
            return;
        }
        self.next = now + self.config.scan_period;
        let Self { armed, walk, config, .. } = self;
        let wanted = |slot: u32| {
            let wanted = wanted(slot);
            if wanted {
                armed[slot] = stamp(now);
            }
            wanted
        };
        let weight = |size: PageSize| size.bytes().get();
        walk.step(roster, config.scan_size.get(), weight, wanted, |range| {
            observe(Action::Arm { range }, plan);
        });
    }

    /// A page that was armed faulted: how long after.
    pub(crate) fn latency(&mut self, slot: u32, now: Nanos) -> Option<Nanos> {
        let armed = core::mem::take(&mut self.armed[slot]);
        (armed != 0).then(|| Nanos::millis(u64::from(stamp(now).wrapping_sub(armed))))
    }
}
