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

/// What was added to a count. In a child whose file is its own they begin anew.
fn added(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

/// How long pages have been in the file, all together.
#[derive(Debug)]
struct Stay {
    page_seconds: f64,
    /// At the last look: when (ns) that was, the pages in the file, and those that had gone there.
    seen: u64,
    there: u64,
    went: u64,
}

impl Stay {
    /// So many pages are there, and so many have gone there since the start.
    fn look(&mut self, now: u64, there: u64, went: u64) {
        // What went and came back since the last look was there for half of the time, for all that is
        // known.
        let mean = (self.there + there).max(added(went, self.went)) as f64 / 2.0;
        self.page_seconds += Nanos(now.saturating_sub(self.seen)).as_secs() * mean;
        (self.seen, self.there, self.went) = (now, there, went);
    }
}

/// Shows the economist what went. The manager's.
#[derive(Debug)]
pub(crate) struct Showing {
    shown: Counts,
    began: u64,
    /// Pages that had come back then.
    returned: u64,
    /// Pages that had come back when that was told last.
    told: u64,
    stay: Stay,
    rest_until: u64,
}

impl Showing {
    /// What went so far was shown.
    pub(crate) fn new(pager: &Pager) -> Self {
        let (shown, began) = (pager.spill.to_file.now(), sys::now());
        let stay = Stay { page_seconds: 0.0, seen: began, there: there(pager), went: shown.pages };
        let returned = pager.spill.returned();
        Self { shown, began, returned, told: returned, stay, rest_until: 0 }
    }

    /// Shows what went since the last time, if anything did, and tells what has come back.
    pub(crate) fn look(&mut self, pager: &Pager) {
        let spill = &pager.spill;
        let now = sys::now();
        let counts = spill.to_file.now();
        self.stay.look(now, there(pager), counts.pages);
        if now < self.rest_until || !spill.is_open() || pager.freeze.is_on() {
            return;
        }
        let pages = added(counts.pages, self.shown.pages);
        let returned = spill.returned();
        let back = added(returned, self.told);
        if pages == 0 && back == 0 {
            return;
        }
        self.rest_until = now + EVERY;
        let read = spill.time_to_read().unwrap_or_default();
        if back > 0 {
            self.told = returned;
            pager.decide.decider.lock().came_back(pager.stats(), back, read);
        }
        if pages == 0 {
            return;
        }
        let bytes = Bytes(added(counts.bytes, self.shown.bytes));
        let took = Nanos(added(counts.ns, self.shown.ns));
        self.shown = counts;
        let write = Nanos(counts.ns / counts.pages.max(1));
        let times = Times { read, write };
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let action = Action::Reclaim { from: COMPRESSED, to: FILE, pages, bytes };
        let (heat, load) = (self.heat(pager, now), pager.huge.cpu_load());
        pager.decide.decider.lock().reclaimed(pager, action, heat, times, (load, took));
    }

    /// How often a page of the file has come back, for the time that it was there: most may have come
    /// back, and would count for the few that are left.
    fn heat(&self, pager: &Pager, now: u64) -> Heat {
        let returned = pager.spill.returned().saturating_sub(self.returned);
        let page_seconds = self.stay.page_seconds;
        let rate = if page_seconds > 0.0 { returned as f64 / page_seconds } else { 0.0 };
        Heat {
            loads: PerSecond(rate),
            samples: u32::try_from(returned).unwrap_or(u32::MAX),
            window: Nanos(now.saturating_sub(self.began).max(1)),
            ..Heat::default()
        }
    }
}

/// Pages in the file.
fn there(pager: &Pager) -> u64 {
    pager.stats().counters.spilled_pages.load(Relaxed)
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
        // What comes back is what it has cost in the end.
        assert_eq!(class.realised_harm.load(Relaxed), 0);
        (0..3).for_each(|_| pager.spill.count_page_read(Nanos::micros(100)));
        look();
        look();
        let harm = class.realised_harm.load(Relaxed);
        assert!(harm.abs_diff(pager.clock.cycles(Nanos::micros(300)).get()) < 100, "{harm}");
        assert_eq!(seen(), [1, 0, 1], "that is no decision");
    }

    /// How often a page comes back is a share of what was there, not of what is left of it.
    #[test]
    fn what_most_has_come_back_of_is_no_hotter_than_what_was_there() {
        let pager = configured(8, |_| {});
        let come_back = |pages| (0..pages).for_each(|_| pager.spill.count_page_read(Nanos(1)));
        come_back(5);
        let mut showing = Showing::new(pager);
        let began = showing.began;
        let mut look = |seconds, there| {
            let now = began + Nanos::seconds(seconds).get();
            showing.stay.look(now, there, pager.spill.to_file.now().pages);
            showing.heat(pager, now)
        };
        assert_eq!(look(0, 1000).loads, PerSecond(0.0), "nothing came back, in no time");
        assert_eq!(look(9, 1000).samples, 0, "what came back before is the parent's");
        come_back(990);
        let heat = look(10, 10);
        assert_eq!((heat.samples, heat.window), (990, Nanos::seconds(10)));
        // 1000 pages for 9 s, and 505 for one.
        let rate = heat.loads.get();
        assert!((rate - 990.0 / 9505.0).abs() < 1e-9, "{rate}");
    }

    #[test]
    fn what_went_and_came_back_between_two_looks_was_there_for_half_of_the_time() {
        let mut stay = Stay { page_seconds: 0.0, seen: 0, there: 0, went: 7 };
        stay.look(Nanos::seconds(1).get(), 0, 107);
        assert!((stay.page_seconds - 50.0).abs() < 1e-9, "{stay:?}");
        // A file of a child's own, to which 3 pages went.
        stay.look(Nanos::seconds(3).get(), 3, 3);
        assert!((stay.page_seconds - 53.0).abs() < 1e-9, "{stay:?}");
    }
}
