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

/// Closed contexts in the order in which they may leave.
#[derive(Clone, Debug)]
pub struct ReuseGuard {
    config: GuardConfig,
    known: HashMap<ContextId, Known>,
    queue: VecDeque<(ContextId, u64)>,
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

    /// A context was closed for the last time.
    pub fn closed(&mut self, context: ContextId) {
        self.closes += 1;
        let known = self.known.entry(context).or_default();
        (known.open, known.close) = (false, self.closes);
        if known.hits <= self.config.hits {
            self.queue.push_back((context, self.closes));
        }
    }

    /// A context has ended.
    pub fn ended(&mut self, context: ContextId) {
        self.known.remove(&context);
    }

    /// So much of the memory is in use: gives the contexts to `leave` that go now, the ones
    /// closed first first, until enough will be free. `leave` says how much that frees.
    pub fn relieve(
        &mut self,
        used: Bytes,
        capacity: Bytes,
        mut leave: impl FnMut(ContextId) -> Bytes,
    ) {
        if used.as_f64() <= self.config.high * capacity.as_f64() {
            return;
        }
        let target = Bytes::from_f64(self.config.low * capacity.as_f64());
        let mut left = used;
        while left > target {
            let Some((context, close)) = self.queue.pop_front() else { return };
            let valid = self.known.get(&context).is_some_and(|k| !k.open && k.close == close);
            if valid {
                left -= leave(context);
            }
        }
    }

    /// Contexts that wait to leave, with places that are void.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }
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
        assert_eq!(leavers(&mut guard, 90), []);
        assert_eq!(leavers(&mut guard, 91), [1]);
        assert_eq!(leavers(&mut guard, 91), [], "it has left");
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

    #[test]
    fn what_is_open_again_or_ended_does_not_leave() {
        let mut guard = guard();
        cycle(&mut guard, 1, false);
        cycle(&mut guard, 2, false);
        guard.opened(ContextId(1), true);
        guard.ended(ContextId(2));
        assert_eq!(leavers(&mut guard, 100), []);
    }
}
