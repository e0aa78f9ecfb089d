//! What goes to the file, priced.
//!
//! Pages go there because the store holds as much as it may: nobody can refuse that, and the writer asks
//! nobody. What it has written is counted, and the manager shows it to the economist, all that went
//! since it looked last as one action: what that sets free, and what it costs if the pages come back.

use core::sync::atomic::{AtomicU64, Ordering::*};

use terrace_core::{Action, Bytes, Heat, Nanos, PerSecond};

use crate::decide::decider::{COMPRESSED, FILE};
use crate::pager::Pager;
use crate::sys;

/// The least time (ns) between two looks.
const EVERY: u64 = 50_000_000;

/// What the writer has put into the file since the start.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pages: AtomicU64,
    /// What they took in the store.
    bytes: AtomicU64,
    /// The writer's processor time for it, ns.
    ns: AtomicU64,
}

impl Written {
    /// So many pages are in the file now.
    pub(crate) fn count(&self, pages: u64, bytes: u64, took: Nanos) {
        self.pages.fetch_add(pages, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.ns.fetch_add(took.get(), Relaxed);
    }

    /// In a child: what its parent wrote is the parent's.
    pub(crate) fn reset(&self) {
        for count in [&self.pages, &self.bytes, &self.ns] {
            count.store(0, Relaxed);
        }
    }

    fn now(&self) -> Counts {
        Counts {
            pages: self.pages.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            ns: self.ns.load(Relaxed),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    pages: u64,
    bytes: u64,
    ns: u64,
}

/// What a page takes on its way to the file and back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Zero if none has been read.
    pub(crate) read: Nanos,
    pub(crate) write: Nanos,
}

/// Shows the economist what went. The manager's.
#[derive(Debug)]
pub(crate) struct Showing {
    shown: Counts,
    began: u64,
    rest_until: u64,
}

impl Showing {
    /// What went so far was shown.
    pub(crate) fn new(pager: &Pager) -> Self {
        Self { shown: pager.spill.to_file.now(), began: sys::now(), rest_until: 0 }
    }

    /// Shows what went since the last time, if anything did.
    pub(crate) fn look(&mut self, pager: &Pager) {
        let spill = &pager.spill;
        let now = sys::now();
        if now < self.rest_until || !spill.is_open() || pager.freeze.is_on() {
            return;
        }
        let counts = spill.to_file.now();
        // In a child whose file is its own they begin anew.
        let new = |now: u64, shown: u64| now.checked_sub(shown).unwrap_or(now);
        let pages = new(counts.pages, self.shown.pages);
        if pages == 0 {
            return;
        }
        let bytes = Bytes(new(counts.bytes, self.shown.bytes));
        let took = Nanos(new(counts.ns, self.shown.ns));
        self.shown = counts;
        self.rest_until = now + EVERY;
        let write = Nanos(counts.ns / counts.pages.max(1));
        let times = Times { read: spill.time_to_read().unwrap_or_default(), write };
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let action = Action::Reclaim { from: COMPRESSED, to: FILE, pages, bytes };
        let (heat, load) = (self.heat(pager, now), pager.huge.cpu_load());
        pager.decide.decider.lock().reclaimed(pager, action, heat, times, (load, took));
    }

    /// How often a page of the file has come back.
    fn heat(&self, pager: &Pager, now: u64) -> Heat {
        let window = Nanos(now.saturating_sub(self.began).max(1));
        let returned = pager.spill.returned();
        let there = pager.stats().counters.spilled_pages.load(Relaxed).max(1);
        Heat {
            loads: PerSecond::from_count(returned as f64 / there as f64, window),
            samples: u32::try_from(returned).unwrap_or(u32::MAX),
            window,
            ..Heat::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::{ActionClass, Urgency};
    use terrace_economics::{Mode, Verdict};

    use super::*;
    use crate::pager::fixture::configured;

    /// It had to be, whatever the economist thinks of it, and it is in the accounts at once.
    #[test]
    fn what_went_to_the_file_is_one_action_for_all_since_the_last_look() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("spill");
        let pager = configured(8, |config| {
            config.economist = Mode::Enforce;
            config.spill = Some(file.clone());
            config.spill_size = Bytes::mib(1);
            config.store_limit = Some(Bytes::ZERO);
        });
        let class = &pager.stats().classes[ActionClass::Reclaim.index()];
        let seen = || [&class.proposed, &class.vetoed, &class.completed].map(|n| n.load(Relaxed));
        let mut showing = Showing::new(pager);
        let mut look = || {
            showing.rest_until = 0;
            showing.look(pager);
        };
        pager.spill.to_file.count(1, 1, Nanos(1));
        look();
        assert_eq!(seen(), [0, 0, 0], "there is no file");
        pager.spill.open(&file, false).expect("a file");
        pager.spill.to_file.count(99, 99_999, Nanos::micros(199));
        pager.spill.to_file.count(100, 100_000, Nanos::micros(200));
        look();
        assert_eq!(seen(), [1, 0, 1]);
        let wanted =
            Action::Reclaim { from: COMPRESSED, to: FILE, pages: 200, bytes: Bytes(200_000) };
        {
            let decider = pager.decide.decider.lock();
            let decision = decider.brain().decisions().last().expect("just decided");
            assert_eq!((decision.action, decision.urgency), (wanted, Urgency::Forced));
            assert_eq!(decision.verdict, Verdict::Forced);
            assert!(decision.cost.expected > 0.0, "{decision}");
        }
        let cost = class.realised_cost.load(Relaxed);
        assert!(cost.abs_diff(pager.clock.cycles(Nanos::micros(399)).get()) < 100, "{cost}");
        look();
        assert_eq!(seen(), [1, 0, 1], "nothing is new");
    }
}
