//! Who waits for faults, and how: asleep while they are rare, polling while
//! they are frequent.
//!
//! A handler that sleeps on the descriptor must be woken for each fault, and
//! the kernel wakes those of all processors, at some 10 to 40 µs for each that
//! idles (measured: `bench/mechanisms`). While faults are frequent, handlers
//! therefore *poll*: each watches the clock, and looks for a message only
//! after somebody else has run on its processor, for that is when a thread can have
//! faulted. The thread that blocks on a fault hands its processor straight to
//! the handler that serves it, and no other processor hears of it.
//!
//! A polling handler runs only where nobody else wants to (`SCHED_IDLE`): a
//! thread that it has served takes its processor back at once, and is not sent
//! to another one that looks less busy. Should something else occupy the
//! processor, the manager notices within a millisecond or three ([`Worker::guard`]) and
//! sends the handlers back to sleep as ordinary threads.
//!
//! A handler whose processor sees no faults *parks*: it sleeps on a word of ours
//! instead of the descriptor until another finds more than it can serve.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use terrace_core::Nanos;

use crate::fault::messages::Pending;
use crate::sys;
use crate::sys::spin;
use crate::workers::idle_priority;
use crate::workers::worker::Worker;

/// This many faults in a row, each within [`NEAR`] of the one before, begin
/// polling: below that rate, waking is cheaper than an idle processor's time.
const BEGIN: u32 = 8;
const NEAR: u64 = 200_000;
/// Without a fault for so long, polling ends.
const QUIET: u64 = 2_000_000;
/// A handler that has served none from its own processor for so long parks.
const PARK: u64 = 2_000_000;
/// A parked handler, and the manager, look for forgotten faults this often.
pub(crate) const LOOK: u64 = 1_000_000;
/// A handler that has been serving one fault for so long does not get its
/// processor.
const STARVED: u64 = 1_000_000;
/// How long handlers sleep as ordinary threads after faults had to wait for
/// them: at least, and, as it doubles each time, at most.
const REST: (u64, u64) = (50_000_000, 10_000_000_000);
/// A gap between two looks at the clock that is worth a closer look.
const GAP: u64 = 1_200;
/// Time away from the processor that only another thread's visit can explain.
/// Interrupts count as time on it: those of other processors' TLB shootdowns
/// come often just when faults are frequent, and say nothing.
const VISIT: u64 = 700;
/// Faults of a thread that then did not leave its processor to us (another
/// thread runs there) are looked for this often.
const LATE: u64 = 25_000;
/// A handler on whose processor nobody has run for so long makes room for the others'
/// faults. Not sooner: one of its own would wait until it is through.
const UNUSED: u64 = 100_000;
/// A fault that nobody has read for so long is not on its way to the handler of
/// its own processor: that one is busy or does not run.
const GRACE: u64 = 8_000;

/// What the handlers agree on.
#[derive(Default)]
pub(crate) struct Handlers {
    polling: AtomicU32,
    last_fault: AtomicU64,
    near: AtomicU32,
    /// Handlers that are parked.
    parked: AtomicU32,
    /// Changes to call parked handlers.
    call: AtomicU32,
    last_call: AtomicU64,
    /// Until when (ns) handlers sleep whatever happens, and how long that was.
    rest_until: AtomicU64,
    rest: AtomicU64,
    /// Faults read, by whomever, and by handlers.
    read: AtomicU32,
    handled: AtomicU32,
    /// What `handled` was, plus one, when the manager last saw a fault wait; 0
    /// if none did.
    waiting_at: AtomicU32,
    /// Looks of the manager in a row that found handlers starving.
    found: AtomicU32,
    /// What a fault takes on top of being served, ns: by handlers that sleep, and by those
    /// that poll.
    overheads: [AtomicU64; 2],
    probe: Probe,
}

/// A fault of ours whose handling is timed.
#[derive(Default)]
struct Probe {
    /// The page; 0 if there is none.
    page: AtomicUsize,
    /// When a handler began with it and when it was done (`CLOCK_MONOTONIC`, ns); 0 before.
    began: AtomicU64,
    done: AtomicU64,
}

impl Handlers {
    /// Whether handlers poll.
    pub(crate) fn is_polling(&self) -> bool {
        self.polling.load(Relaxed) != 0
    }

    /// They do from now on.
    #[cfg(test)]
    pub(crate) fn begin_polling(&self) {
        self.polling.store(1, Relaxed);
    }

    /// Whether a handler may wait for its processor in vain: also for a while
    /// after polling ended, when one was put off in the middle of a fault.
    pub(crate) fn needs_guard(&self) -> bool {
        self.is_polling() || idle_priority::any()
    }

    /// Whether the manager should make room ahead of faults. While handlers poll,
    /// that takes a processor from which no faults come; without one, it would
    /// only take the handlers' time.
    pub(crate) fn has_spare_processor(&self) -> bool {
        !self.is_polling() || self.parked.load(Relaxed) > 0
    }

    /// Counts a fault that was read now, by a handler or by the manager. Says
    /// whether polling begins with it: the manager is to know.
    pub(crate) fn fault(&self, now: u64, by_handler: bool) -> bool {
        self.read.fetch_add(1, Relaxed);
        self.handled.fetch_add(u32::from(by_handler), Relaxed);
        let before = self.last_fault.swap(now, Relaxed);
        if self.is_polling() {
            return false;
        }
        if now.saturating_sub(before) > NEAR {
            self.near.store(0, Relaxed);
        } else if self.near.fetch_add(1, Relaxed) >= BEGIN && now >= self.rest_until.load(Relaxed) {
            self.near.store(0, Relaxed);
            // As an ordinary thread it would take the program's processor.
            if idle_priority::has_way_back() {
                self.polling.store(1, Relaxed);
                return true;
            }
        }
        false
    }

    /// What faults took on top of being served (ns), with sleeping and with polling
    /// handlers, in order; what nobody has seen is as the other.
    pub(crate) fn set_overheads(&self, sleeping: &[u64], polling: &[u64]) {
        let median = |taken: &[u64]| taken.get(taken.len() / 2).copied();
        let (sleeping, polling) = (median(sleeping), median(polling));
        self.overheads[0].store(sleeping.or(polling).unwrap_or(0), Relaxed);
        self.overheads[1].store(polling.or(sleeping).unwrap_or(0), Relaxed);
    }

    /// From now on the handling of a fault on this page is timed.
    pub(crate) fn probe(&self, page: usize) {
        self.probe.done.store(0, Relaxed);
        self.probe.page.store(page, Release);
    }

    /// When a handler began with the page that is timed and when it was done; `None` if it
    /// is not done yet.
    pub(crate) fn probed(&self) -> Option<(u64, u64)> {
        let done = self.probe.done.load(Acquire);
        (done != 0).then(|| (self.probe.began.load(Relaxed), done))
    }

    pub(crate) fn served(&self, page: usize, began: u64) {
        if self.probe.page.load(Relaxed) == page {
            self.probe.page.store(0, Relaxed);
            self.probe.began.store(began, Relaxed);
            self.probe.done.store(sys::now(), Release);
        }
    }

    /// What a fault that is read now takes on top of being served, ns.
    pub(crate) fn overhead(&self) -> u64 {
        self.overheads[usize::from(self.is_polling())].load(Relaxed)
    }

    /// Handlers sleep from now on.
    pub(crate) fn end_polling(&self) {
        if self.polling.swap(0, Relaxed) != 0 {
            self.call_parked();
        }
    }

    /// Handlers did not get their processors: these are wanted by others.
    fn rest(&self, now: u64) {
        let calm = now.saturating_sub(self.rest_until.load(Relaxed)) > REST.1;
        let last = if calm { 0 } else { self.rest.load(Relaxed) };
        let rest = (last * 2).clamp(REST.0, REST.1);
        self.rest.store(rest, Relaxed);
        self.rest_until.store(now + rest, Relaxed);
        self.end_polling();
    }

    /// Whether a fault waits now, did at the last look, and no handler has read
    /// one since: none gets its processor. What the manager reads in their place
    /// does not count, or it would go on doing so, once in two looks.
    fn is_starved(&self, waits: bool) -> bool {
        let mark = self.handled.load(Relaxed).wrapping_add(1).max(1);
        let last = self.waiting_at.swap(if waits { mark } else { 0 }, Relaxed);
        waits && last == mark
    }

    fn call_parked(&self) {
        self.call.fetch_add(1, Release);
        sys::futex_wake(&self.call, false);
    }

    /// A fault came from a processor whose handler is not polling.
    fn call_for_help(&self, now: u64) {
        let last = self.last_call.load(Relaxed);
        if now.saturating_sub(last) > LOOK
            && self.last_call.compare_exchange(last, now, Relaxed, Relaxed).is_ok()
        {
            self.call_parked();
        }
    }

    /// In a forked child, which has no handlers yet.
    pub(crate) fn reset(&self) {
        self.polling.store(0, Relaxed);
        self.near.store(0, Relaxed);
        self.parked.store(0, Relaxed);
    }
}

impl Worker<'_> {
    /// A handler's life. `may_poll`: it is the only handler of a processor.
    pub fn handle(&mut self, may_poll: bool) {
        self.settle_down();
        let mut pending = Pending::new();
        while !self.pager.is_leaving() {
            if may_poll && self.pager.fault.handlers.is_polling() {
                self.poll(&mut pending);
            } else {
                self.pager.await_message(pending.is_any().then_some(Nanos::ZERO));
                idle_priority::rest(self.id);
                self.serve_messages(&mut pending);
                if pending.is_any() {
                    spin::give_way();
                }
            }
        }
    }

    /// Polls until faults become rare.
    fn poll(&mut self, pending: &mut Pending) {
        let handlers = &self.pager.fault.handlers;
        self.set_idle_priority(true);
        let mut last = sys::now();
        let (mut looked, mut useful, mut visit) = (last, last, last);
        let mut away = last.wrapping_sub(sys::thread_cpu().get());
        // A thread that was just served may have run and faulted again unseen.
        let mut again = false;
        while handlers.is_polling() {
            core::hint::spin_loop();
            if !idle_priority::has_way_back() {
                // The program has become another user.
                handlers.end_polling();
            } else if idle_priority::was_called(self.id) {
                self.set_idle_priority(true);
            }
            idle_priority::rest(self.id);
            let now = sys::now();
            let mut visited = again;
            again = false;
            if now - last > GAP {
                let away_now = sys::now().wrapping_sub(sys::thread_cpu().get());
                visited |= away_now.wrapping_sub(away) as i64 > VISIT as i64;
                away = away_now;
            }
            last = now;
            if visited {
                visit = now;
            }
            if !visited && now - looked < LATE && !pending.is_any() {
                if now - visit > UNUSED && self.make_headroom() {
                    useful = sys::now();
                }
                continue;
            }
            looked = now;
            // Others' faults are theirs, if they get to them.
            if !visited && !pending.is_any() && !self.is_left_waiting() {
                if now - handlers.last_fault.load(Relaxed).min(now) > QUIET {
                    handlers.end_polling();
                } else if now - useful > PARK {
                    self.park();
                    useful = sys::now();
                    again = true;
                }
                continue;
            }
            let mut served = false;
            while self.serve_messages(pending) {
                served = true;
            }
            if served {
                again = true;
                last = sys::now();
                useful = last;
                if !visited {
                    handlers.call_for_help(last);
                }
            }
        }
        self.set_idle_priority(false);
    }

    /// Runs only where nobody else wants to, or as any other thread again.
    fn set_idle_priority(&mut self, yes: bool) {
        if yes {
            idle_priority::begin(self.id, self.pager.workers[self.id].tid.load(Relaxed));
        } else {
            idle_priority::end(self.id);
        }
        self.polls = yes;
    }

    /// Whether a fault waits and nobody reads it within a moment.
    fn is_left_waiting(&self) -> bool {
        let pager = self.pager;
        let read = pager.fault.handlers.read.load(Relaxed);
        if !pager.uffd().has_message() {
            return false;
        }
        let until = sys::now() + GRACE;
        while sys::now() < until {
            core::hint::spin_loop();
            if pager.fault.handlers.read.load(Relaxed) != read {
                return false;
            }
        }
        pager.uffd().has_message()
    }

    /// Sleeps until called, or until faults become rare.
    fn park(&mut self) {
        let handlers = &self.pager.fault.handlers;
        self.set_idle_priority(false);
        let call = handlers.call.load(Acquire);
        handlers.parked.fetch_add(1, Relaxed);
        while handlers.is_polling() && handlers.call.load(Acquire) == call {
            sys::futex_wait(&handlers.call, call, Some(LOOK), false);
            if sys::now().saturating_sub(handlers.last_fault.load(Relaxed)) > QUIET {
                handlers.end_polling();
            }
        }
        handlers.parked.fetch_sub(1, Relaxed);
        if handlers.is_polling() {
            self.set_idle_priority(true);
        }
    }

    /// The manager's part while handlers poll: sees to it that none starves.
    pub fn guard(&mut self, pending: &mut Pending) {
        let pager = self.pager;
        let handlers = &pager.fault.handlers;
        if !handlers.needs_guard() && !pending.is_any() {
            handlers.waiting_at.store(0, Relaxed);
            return;
        }
        let now = sys::now();
        // Handlers end it themselves, if they get to run. A program that ends
        // while one of them runs at idle priority may have to wait for it to die.
        let quiet = now.saturating_sub(handlers.last_fault.load(Relaxed)) > 2 * QUIET;
        if quiet || !idle_priority::has_way_back() {
            handlers.end_polling();
        }
        if !handlers.is_polling() {
            idle_priority::call_all();
        }
        // Faults that wait just now are on their way to a handler, most often.
        let starved = handlers.is_starved(pager.uffd().has_message());
        if starved || pending.is_any() {
            self.serve_messages(pending);
        }
        if !starved {
            handlers.found.store(0, Relaxed);
        }
        for (id, worker) in pager.workers.iter().enumerate().skip(1) {
            // It may only have been preempted by the thread that it served,
            // but may also hold what others wait for: let it finish.
            let since = worker.serving_since.load(Relaxed);
            if since != 0 && now.saturating_sub(since) > STARVED {
                idle_priority::call(id);
            }
        }
        if starved {
            // First the parked ones are to help; if that does not, nobody polls.
            handlers.call_parked();
            if handlers.found.fetch_add(1, Relaxed) < 2 {
                return;
            }
            handlers.rest(now);
            idle_priority::call_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_while_handlers_starve_and_begin_anew_later() {
        let handlers = Handlers::default();
        let mut now = 1;
        for expected in [1, 2, 4, 8] {
            handlers.rest(now);
            assert_eq!(handlers.rest_until.load(Relaxed), now + expected * REST.0);
            now += expected * REST.0 + 1;
        }
        now += 2 * REST.1;
        handlers.rest(now);
        assert_eq!(handlers.rest_until.load(Relaxed), now + REST.0);
    }

    #[test]
    fn what_a_fault_takes_besides_depends_on_how_handlers_wait() {
        let handlers = Handlers::default();
        handlers.set_overheads(&[9_000, 20_000, 90_000], &[400, 500]);
        assert_eq!(handlers.overhead(), 20_000);
        handlers.polling.store(1, Relaxed);
        assert_eq!(handlers.overhead(), 500);
        handlers.set_overheads(&[20_000], &[]);
        assert_eq!(handlers.overhead(), 20_000, "nothing better is known");
    }

    #[test]
    fn only_the_page_that_is_asked_about_is_timed() {
        let handlers = Handlers::default();
        handlers.probe(0x5000);
        handlers.served(0x6000, 70);
        assert_eq!(handlers.probed(), None, "another page");
        handlers.served(0x5000, 80);
        let (began, done) = handlers.probed().expect("it was served");
        assert_eq!(began, 80);
        handlers.served(0x5000, 90);
        assert_eq!(handlers.probed(), Some((began, done)), "it was timed already");
    }

    #[test]
    fn handlers_starve_only_if_a_fault_waits_and_none_is_read() {
        let handlers = Handlers::default();
        assert!(!handlers.is_starved(true), "seen for the first time");
        handlers.fault(1, true);
        assert!(!handlers.is_starved(true), "another one was read since");
        assert!(!handlers.is_starved(false));
        assert!(!handlers.is_starved(true), "none waited in between");
        assert!(handlers.is_starved(true));
        handlers.fault(2, false);
        assert!(handlers.is_starved(true), "the manager's help is no handler's work");
    }

    #[test]
    fn polling_begins_with_frequent_faults_only() {
        let handlers = Handlers::default();
        for i in 0..100 {
            handlers.fault(i * 2 * NEAR, true);
        }
        assert!(!handlers.is_polling(), "rare faults keep the processors free");
        for i in 0..=u64::from(BEGIN) {
            assert!(!handlers.fault(1_000 * NEAR + i * NEAR / 2, true));
        }
        assert!(handlers.fault(1_005 * NEAR, true), "the manager has to be told");
        assert!(handlers.is_polling());
        assert!(!handlers.fault(1_005 * NEAR, true), "once");
        handlers.end_polling();
        assert!(!handlers.is_polling());
    }
}
