//! Which closed contexts may leave the fast memory, and when.
//!
//! Plain KLOCs lets the objects of a context leave as soon as it is closed. A program that
//! opens, reads and closes the same file again and again then loses all of its hits. The
//! guard waits until memory is short, takes what was closed first, and spares what came back
//! while its pages were still in place (a *residency hit*). Opens alone are no sign of reuse:
//! a program that scans many files in turn opens each of them again, long after its pages
//! have left.

use std::collections::{HashMap, VecDeque};

use terrace_core::{Bytes, ContextId};

/// Parameters of the guard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardConfig {
    /// A context with more residency hits than this stays.
    pub hits: u32,
    /// Contexts leave when more than this share of the memory is in use.
    pub high: f64,
    /// They leave until no more than this share is in use.
    pub low: f64,
}

impl Default for GuardConfig {
    /// As measured on Linux 6.18: files closed more than twice with their pages in place stay;
    /// between 90 % and 82 % of the memory is left free for what streams through.
    fn default() -> Self {
        Self { hits: 2, high: 0.90, low: 0.82 }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    hits: u32,
    /// Number of its last close; an older place in the queue is void.
    close: u64,
    open: bool,
}

/// A place in the queue.
#[derive(Clone, Copy, Debug)]
struct Place {
    context: ContextId,
    /// The number of the close that it stands for.
    close: u64,
}

/// Closed contexts in the order in which they may leave.
#[derive(Clone, Debug)]
pub struct ReuseGuard {
    config: GuardConfig,
    known: HashMap<ContextId, Known>,
    queue: VecDeque<Place>,
    closes: u64,
}

impl ReuseGuard {
    /// A guard that knows no context.
    pub fn new(config: GuardConfig) -> Self {
        Self { config, known: HashMap::new(), queue: VecDeque::new(), closes: 0 }
    }

    /// A context was opened that nobody had open; `resident` if objects of it were in the fast
    /// memory then.
    pub fn opened(&mut self, context: ContextId, resident: bool) {
        let known = self.known.entry(context).or_default();
        known.open = true;
        if resident {
            known.hits = known.hits.saturating_add(1);
        }
    }

    /// How often a context was opened again while objects of it were in the fast memory.
    pub fn hits(&self, context: ContextId) -> u32 {
        self.known.get(&context).map_or(0, |known| known.hits)
    }

    /// A context was closed for the last time.
    pub fn closed(&mut self, context: ContextId) {
        self.closes += 1;
        let known = self.known.entry(context).or_default();
        (known.open, known.close) = (false, self.closes);
        if known.hits <= self.config.hits {
            self.queue.push_back(Place { context, close: self.closes });
        }
        self.forget_void();
    }

    /// Places that are void are forgotten before there are more of them than contexts: where
    /// memory is never short, nothing else takes them out.
    fn forget_void(&mut self) {
        if self.queue.len() > 2 * self.known.len() + 64 {
            let Self { known, queue, .. } = self;
            queue.retain(|place| stands(known, place));
        }
    }

    /// A context comes from another guard, where it had come back so often in place.
    pub fn take_over(&mut self, context: ContextId, hits: u32) {
        self.known.entry(context).or_default().hits = hits;
    }

    /// The number of a context's last close, while nobody has it open.
    pub fn last_close(&self, context: ContextId) -> Option<u64> {
        self.known.get(&context).filter(|known| !known.open).map(|known| known.close)
    }

    /// A context that was given to `leave` could not leave: it is the first again, unless it was
    /// opened since the close of this number. Says whether it was put back.
    pub fn put_back(&mut self, context: ContextId, close: u64) -> bool {
        let stands = self.last_close(context) == Some(close);
        if stands {
            self.queue.push_front(Place { context, close });
        }
        stands
    }

    /// A context has ended.
    pub fn ended(&mut self, context: ContextId) {
        self.known.remove(&context);
    }

    /// Takes the context that leaves next, if any waits.
    pub fn take_first(&mut self) -> Option<ContextId> {
        let mut first = None;
        // Whatever it has is enough.
        self.relieve_between(Bytes(1), Bytes::ZERO, Bytes::ZERO, |context| {
            first = Some(context);
            Bytes(1)
        });
        first
    }

    /// So much of the memory is in use: gives the contexts to `leave` that go now, the ones
    /// closed first first, until enough will be free. `leave` says how much that frees.
    pub fn relieve(&mut self, used: Bytes, capacity: Bytes, leave: impl FnMut(ContextId) -> Bytes) {
        let share = |share: f64| Bytes::from_f64(share * capacity.as_f64());
        self.relieve_between(used, share(self.config.high), share(self.config.low), leave);
    }

    /// The same, where contexts leave when more than `high` is in use, until no more than `low` is.
    pub fn relieve_between(
        &mut self,
        used: Bytes,
        high: Bytes,
        low: Bytes,
        mut leave: impl FnMut(ContextId) -> Bytes,
    ) {
        if used <= high {
            return;
        }
        let target = low;
        let mut left = used;
        while left > target {
            let Some(place) = self.queue.pop_front() else { return };
            if stands(&self.known, &place) {
                left -= leave(place.context);
            }
        }
    }

    /// Contexts that wait to leave, with places that are void.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }
}

/// Whether a place is that of the context's last close, and nobody has opened it since.
fn stands(known: &HashMap<ContextId, Known>, place: &Place) -> bool {
    known.get(&place.context).is_some_and(|k| !k.open && k.close == place.close)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Bytes = Bytes(100);

    fn guard() -> ReuseGuard {
        ReuseGuard::new(GuardConfig::default())
    }

    fn leavers(guard: &mut ReuseGuard, used: u64) -> Vec<u32> {
        let mut left = Vec::new();
        guard.relieve(Bytes(used), CAPACITY, |context| {
            left.push(context.0);
            Bytes(5)
        });
        left
    }

    fn cycle(guard: &mut ReuseGuard, context: u32, resident: bool) {
        guard.opened(ContextId(context), resident);
        guard.closed(ContextId(context));
    }

    /// Dropping on close makes a file that is read again and again miss each time.
    #[test]
    fn nothing_leaves_without_pressure() {
        let mut guard = guard();
        cycle(&mut guard, 1, false);
        assert_eq!(leavers(&mut guard, 90), Vec::<u32>::new());
        assert_eq!(leavers(&mut guard, 91), [1]);
        assert_eq!(leavers(&mut guard, 91), Vec::<u32>::new(), "it has left");
    }

    #[test]
    fn what_was_closed_first_goes_first_and_no_more_than_needed() {
        let mut guard = guard();
        for context in [3, 1, 2] {
            cycle(&mut guard, context, false);
        }
        assert_eq!(leavers(&mut guard, 92), [3, 1]);
    }

    #[test]
    fn what_comes_back_in_place_stays() {
        let mut guard = guard();
        cycle(&mut guard, 1, false);
        for _ in 0..3 {
            cycle(&mut guard, 1, true);
        }
        cycle(&mut guard, 2, false);
        // The places of its first three closes are void.
        assert_eq!(leavers(&mut guard, 100), [2]);
    }

    /// Counting opens instead would protect each file of a cyclic scan.
    #[test]
    fn what_comes_back_after_it_left_is_not_protected() {
        let mut guard = guard();
        for _ in 0..10 {
            cycle(&mut guard, 1, false);
            assert_eq!(leavers(&mut guard, 100), [1]);
        }
    }

    /// A machine that makes and deletes files all day, and is never short of memory.
    #[test]
    fn the_queue_is_no_longer_than_what_is_known() {
        let mut guard = guard();
        for file in 0..10_000 {
            cycle(&mut guard, file, false);
            guard.ended(ContextId(file));
        }
        assert!(guard.waiting() <= 65, "{} places of files that are gone", guard.waiting());
        for _ in 0..10_000 {
            cycle(&mut guard, 1, false);
        }
        assert!(guard.waiting() <= 66, "{} places of one file", guard.waiting());
        assert_eq!(leavers(&mut guard, 100), [1]);
    }

    /// What could not leave is asked for again; what was opened and closed since has a place of its
    /// own, and one that is open has none.
    #[test]
    fn what_could_not_leave_is_first_again_unless_it_was_opened_since() {
        let mut guard = guard();
        cycle(&mut guard, 1, false);
        cycle(&mut guard, 2, false);
        let close = guard.last_close(ContextId(1)).expect("it is closed");
        assert_eq!(leavers(&mut guard, 91), [1, 2]);
        assert!(guard.put_back(ContextId(1), close));
        assert_eq!(leavers(&mut guard, 91), [1]);
        cycle(&mut guard, 1, false);
        assert!(!guard.put_back(ContextId(1), close), "that was the close before");
        assert_eq!(leavers(&mut guard, 91), [1], "once");
        guard.opened(ContextId(1), false);
        assert_eq!(guard.last_close(ContextId(1)), None);
        assert!(!guard.put_back(ContextId(9), 0), "it is not known");
    }

    /// Against a list without void places, through random calls.
    #[test]
    fn what_leaves_is_what_a_naive_list_gives() {
        let mut seed = 1u64;
        let mut below = |end: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % end
        };
        let mut guard = ReuseGuard::new(GuardConfig { hits: u32::MAX, ..GuardConfig::default() });
        // In the order of closes.
        let mut naive: Vec<u32> = Vec::new();
        for _ in 0..20_000 {
            let context = below(40) as u32;
            match below(4) {
                0 => {
                    guard.opened(ContextId(context), true);
                    naive.retain(|other| *other != context);
                }
                1 => {
                    guard.closed(ContextId(context));
                    naive.retain(|other| *other != context);
                    naive.push(context);
                }
                2 if below(8) == 0 => {
                    // From 93 to 82.
                    let gone: Vec<u32> = naive.drain(..naive.len().min(3)).collect();
                    assert_eq!(leavers(&mut guard, 93), gone);
                }
                2 => {}
                _ => {
                    guard.ended(ContextId(context));
                    naive.retain(|other| *other != context);
                }
            }
        }
    }

    /// Of several guards, the one is asked whose first context was closed before those of others.
    #[test]
    fn the_first_is_taken_one_by_one_and_can_be_put_back() {
        let mut guard = guard();
        for context in 1..=3 {
            cycle(&mut guard, context, false);
        }
        guard.opened(ContextId(1), true);
        assert_eq!(guard.take_first(), Some(ContextId(2)), "1 is open");
        let close = guard.last_close(ContextId(2)).expect("it is closed");
        assert!(guard.put_back(ContextId(2), close));
        assert_eq!([(); 3].map(|()| guard.take_first().map(|it| it.0)), [Some(2), Some(3), None]);
    }

    #[test]
    fn what_is_open_again_or_ended_does_not_leave() {
        let mut guard = guard();
        cycle(&mut guard, 1, false);
        cycle(&mut guard, 2, false);
        guard.opened(ContextId(1), true);
        guard.ended(ContextId(2));
        assert_eq!(leavers(&mut guard, 100), Vec::<u32>::new());
    }
}
