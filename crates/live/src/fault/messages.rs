//! What the kernel reports: read in order, changes of the address space carried out at once, faults
//! served or kept until they can be.

use core::sync::atomic::Ordering::*;

use terrace_core::Nanos;

use crate::failsafe::give_up;
use crate::fault::serve::Served;
use crate::pager::MANAGER;
use crate::sys::uffd::{Message, Uffd};
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// Faults that wait for the address space to settle before they are tried again.
pub(crate) const PENDING: usize = 64;

/// A fault that was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fault {
    /// The page's address.
    pub page: usize,
    /// Whether it was a write.
    pub write: bool,
    /// Whose.
    pub thread: i32,
}

/// For how long (ns) faults are tried in vain before threads that change the address space wait.
const IN_VAIN: u64 = 25_000;

/// Faults that were read and could not be served yet.
pub struct Pending {
    /// Which.
    pub faults: [Fault; PENDING],
    /// How many there are.
    pub count: usize,
    /// Those for which there was no room.
    pub unkept: Unkept,
    /// Since when (ns) some of them have been tried in vain; 0 while there are none.
    since: u64,
}

impl Pending {
    /// None.
    pub fn new() -> Self {
        Self { faults: [Fault::default(); PENDING], count: 0, unkept: Unkept::default(), since: 0 }
    }

    /// Wakes all whose faults were read: they fault again. For who is about to wait for one of
    /// them.
    pub fn let_go(&mut self, uffd: Uffd) {
        for fault in &self.faults[..self.count] {
            let _ = uffd.wake(fault.page, PAGE);
        }
        self.count = 0;
        self.unkept.wake(uffd);
    }

    /// Whether threads wait for what has been read.
    pub fn is_any(&self) -> bool {
        self.count > 0 || self.unkept.is_any()
    }
}

impl Default for Pending {
    fn default() -> Self {
        Self::new()
    }
}

/// Faults that were read and are not kept: their threads are woken, and fault again.
///
/// The kernel gives faults first, and what has happened to the address space after them. While
/// that is unread no page can be filled. So however many threads fault, all that they report is
/// read; and they are not woken before, or they would be in front of it again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unkept {
    /// From the lowest page to the end of the highest.
    pages: Option<(usize, usize)>,
}

impl Unkept {
    /// One more.
    pub fn add(&mut self, page: usize) {
        let (start, end) = self.pages.unwrap_or((page, page));
        self.pages = Some((start.min(page), end.max(page + PAGE)));
    }

    /// Whether there are any.
    pub const fn is_any(&self) -> bool {
        self.pages.is_some()
    }

    /// Wakes whoever waits between the first and the last: others fault again, too.
    pub fn wake(&mut self, uffd: Uffd) {
        if let Some((start, end)) = self.pages.take() {
            let _ = uffd.wake(start, end - start);
        }
    }
}

impl Worker<'_> {
    /// Takes what has been reported and serves it; whether there was a fault.
    pub(crate) fn serve_messages(&mut self, pending: &mut Pending) -> bool {
        let before = pending.count;
        let serving = &self.pager.workers[self.id].serving_since;
        let began = sys::now();
        if self.polls {
            // From here on a fault may be in our hands.
            serving.store(began, Relaxed);
        }
        self.take_messages(pending);
        if pending.unkept.is_any() && !self.pager.uffd().is_changing() {
            pending.unkept.wake(self.pager.uffd());
        }
        let found = pending.count > before;
        if pending.count == 0 {
            serving.store(0, Relaxed);
            return false;
        }
        if found && self.pager.fault.handlers.fault(began, self.id != MANAGER) {
            self.pager.ring();
        }
        let mut kept = 0;
        for i in 0..pending.count {
            let fault = pending.faults[i];
            serving.store(began, Relaxed);
            (self.counted, self.armed) = (Nanos::ZERO, false);
            match self.serve(fault.page, fault.write, began) {
                Served::Retry => {
                    pending.faults[kept] = fault;
                    kept += 1;
                }
                Served::Refused(error) => give_up::refused(error),
                Served::Done => {
                    self.pager.fault.handlers.served(fault.page, began);
                    let overhead = self.pager.fault.handlers.overhead();
                    let counters = &self.pager.stats().counters;
                    counters.fault_overhead_ns.fetch_add(overhead, Relaxed);
                    let took = self.counted + Nanos(overhead);
                    if self.armed {
                        counters.sampling_ns.fetch_add(took.get(), Relaxed);
                    }
                    self.pager.fault.stalls.count(fault.thread, took);
                }
            }
        }
        serving.store(0, Relaxed);
        pending.count = kept;
        self.look_after_late(pending, began);
        found
    }

    /// Where faults have been tried in vain for a while, somebody changes the address space without
    /// a pause.
    fn look_after_late(&self, pending: &mut Pending, now: u64) {
        if pending.count == 0 {
            if core::mem::take(&mut pending.since) != 0 {
                self.pager.hold_changes(None);
            }
        } else if pending.since == 0 {
            pending.since = now;
        } else if now - pending.since > IN_VAIN {
            self.pager.hold_changes(Some(now));
        }
    }

    /// Reads messages until one is a fault that can be kept, or there is none; carries out
    /// everything else at once, in order.
    pub(crate) fn take_messages(&mut self, pending: &mut Pending) {
        let pager = self.pager;
        let _reading = pager.reading.lock();
        loop {
            let is_full = pending.count == PENDING;
            // What waits for something else than its turn behind faults is served first.
            if is_full && !pager.uffd().is_changing() {
                return;
            }
            let Some(message) = pager.uffd().read() else { return };
            match message {
                Message::Fault { page, .. } if is_full => pending.unkept.add(page),
                Message::Fault { page, write, thread } => {
                    pending.faults[pending.count] = Fault { page, write, thread };
                    pending.count += 1;
                    // Leave the others to the other handlers.
                    return;
                }
                Message::Fork { child } => pager.forked(self, Uffd::from_raw(child)),
                event => self.event(event),
            }
        }
    }

    /// Carries out an event; later, if a fork is under way. (To wait for its end here would
    /// stop the fork's own message from being read.)
    ///
    /// What began before that goes by the books as they are, and an event that is kept does not wait
    /// for its pages. Its thread runs already: it may unmap more, and move other pages there. Of these, one
    /// would be taken for the old page, or an old one be brought in there. So those at work
    /// finish first, before the next event can be read; until then, the kernel neither lets a page leave
    /// nor come in once anything else has changed. They do not wait for the lock for reading
    /// meanwhile (`no_events`).
    fn event(&self, event: Message) {
        let pager = self.pager;
        let carries_out = pager.enter(self.id);
        if carries_out {
            pager.carry_out(event);
        }
        pager.leave(self.id);
        if !carries_out {
            // No freeze ends while the lock for reading is held.
            pager.wait_quiet(self.id);
            pager.freeze.deferred.lock().push(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They would go by books that are not true any more, and nothing would keep them from it.
    #[test]
    fn an_event_is_kept_for_later_when_those_are_done_who_were_at_work_before_the_fork() {
        use crate::pager::fixture::{START, pager};
        use crate::pager::freeze::Why;
        let pager = pager(2);
        assert!(pager.enter(1));
        pager.freeze.begin(Why::Fork);
        let noted = || pager.freeze.deferred.lock().noted();
        let is_early = std::thread::scope(|threads| {
            let unmap = Message::Unmap { start: START, end: START + PAGE };
            let reader = threads.spawn(move || Worker::new(pager, 0).event(unmap));
            let is_early = (0..100).any(|_| {
                std::thread::yield_now();
                noted() != 0
            });
            pager.leave(1);
            reader.join().expect("no panic");
            is_early
        });
        assert_eq!((is_early, noted()), (false, 1));
        assert_eq!(pager.workers[0].busy.load(Relaxed), 0, "nobody waits for who has kept it");
    }

    #[test]
    fn what_is_not_kept_reaches_from_the_lowest_page_to_the_highest() {
        let mut pending = Pending::new();
        assert!(!pending.is_any());

        for page in [7, 3, 9, 4] {
            pending.unkept.add(page * PAGE);
        }

        assert!(pending.is_any(), "threads wait for it");
        assert_eq!(pending.unkept.pages, Some((3 * PAGE, 10 * PAGE)));
    }
}
