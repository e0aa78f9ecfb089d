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
//! A handler whose processor sees no faults *parks*: it sleeps on a word of
//! ours instead of the descriptor, and looks after the others now and then.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use crate::serve::Worker;
use crate::sys;

/// This many faults in a row, each within [`NEAR`] of the one before, begin
/// polling: below that rate, waking is cheaper than an idle processor's time.
const BEGIN: u32 = 8;
const NEAR: u64 = 200_000;
/// Without a fault for so long, polling ends.
const QUIET: u64 = 2_000_000;
/// A handler that has served none from its own processor for so long parks.
const PARK: u64 = 2_000_000;
/// A parked handler, and the manager, look for forgotten faults this often.
pub const LOOK: u64 = 1_000_000;
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

/// What the handlers agree on.
#[derive(Default)]
pub struct Duty {
    polling: AtomicU32,
    last_fault: AtomicU64,
    near: AtomicU32,
    /// Changes to call parked handlers.
    call: AtomicU32,
    last_call: AtomicU64,
    /// Until when (ns) handlers sleep whatever happens, and how long that was.
    rest_until: AtomicU64,
    rest: AtomicU64,
    /// Times in a row that the manager found a fault that no handler had read.
    found: AtomicU32,
}

impl Duty {
    /// Whether handlers poll.
    pub fn is_polling(&self) -> bool {
        self.polling.load(Relaxed) != 0
    }

    /// Counts a fault that was read now; may begin polling.
    fn fault(&self, now: u64) {
        let before = self.last_fault.swap(now, Relaxed);
        if self.is_polling() {
            return;
        }
        if now.saturating_sub(before) > NEAR {
            self.near.store(0, Relaxed);
        } else if self.near.fetch_add(1, Relaxed) >= BEGIN && now >= self.rest_until.load(Relaxed) {
            self.near.store(0, Relaxed);
            self.polling.store(1, Relaxed);
        }
    }

    fn end_polling(&self) {
        self.polling.store(0, Relaxed);
        self.call_parked();
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
    pub fn reset(&self) {
        self.polling.store(0, Relaxed);
        self.near.store(0, Relaxed);
    }
}

/// Faults that wait for the address space to settle before they are tried again.
pub const PENDING: usize = 64;

/// Faults that were read and could not be served yet.
pub struct Pending {
    /// Page address, and whether it was a write.
    pub faults: [(usize, bool); PENDING],
    /// How many there are.
    pub count: usize,
}

impl Pending {
    /// None.
    pub fn new() -> Self {
        Self { faults: [(0, false); PENDING], count: 0 }
    }
}

impl Worker<'_> {
    /// A handler's life. `may_poll`: it is the only handler of a processor.
    pub fn handle(&mut self, may_poll: bool) {
        let mut pending = Pending::new();
        loop {
            if may_poll && self.pager.duty.is_polling() {
                self.poll(&mut pending);
            } else {
                let mut poll =
                    libc::pollfd { fd: self.pager.uffd().raw(), events: libc::POLLIN, revents: 0 };
                let timeout = if pending.count > 0 { 0 } else { -1 };
                // SAFETY: one descriptor to look at.
                unsafe { libc::poll(&raw mut poll, 1, timeout) };
                self.serve_messages(&mut pending);
                if pending.count > 0 {
                    sys::yield_now();
                }
            }
        }
    }

    /// Polls until faults become rare.
    fn poll(&mut self, pending: &mut Pending) {
        let duty = &self.pager.duty;
        self.polls = true;
        sys::yield_to_all(true);
        let mut last = sys::now();
        let (mut looked, mut useful) = (last, last);
        let mut away = last.wrapping_sub(sys::thread_cpu().get());
        // A thread that was just served may have run and faulted again unseen.
        let mut again = false;
        while duty.is_polling() {
            core::hint::spin_loop();
            let now = sys::now();
            let mut visited = again;
            again = false;
            if now - last > GAP {
                let away_now = sys::now().wrapping_sub(sys::thread_cpu().get());
                visited |= away_now.wrapping_sub(away) as i64 > VISIT as i64;
                away = away_now;
            }
            last = now;
            if !visited && now - looked < LATE && pending.count == 0 {
                continue;
            }
            looked = now;
            let mut served = false;
            while self.serve_messages(pending) {
                served = true;
            }
            if served {
                again = true;
                last = sys::now();
                if visited {
                    useful = last;
                } else {
                    duty.call_for_help(last);
                }
            }
            if now.saturating_sub(duty.last_fault.load(Relaxed)) > QUIET {
                duty.end_polling();
            } else if now.saturating_sub(useful) > PARK && pending.count == 0 {
                if self.park(pending) {
                    useful = sys::now();
                }
                again = true;
            }
        }
        self.polls = false;
        sys::yield_to_all(false);
    }

    /// Sleeps until called, or until a look finds a fault that nobody served.
    fn park(&mut self, pending: &mut Pending) -> bool {
        let duty = &self.pager.duty;
        self.polls = false;
        sys::yield_to_all(false);
        while duty.is_polling() {
            let call = duty.call.load(Acquire);
            sys::futex_wait(&duty.call, call, Some(LOOK), false);
            if self.serve_messages(pending) || duty.call.load(Acquire) != call {
                self.polls = true;
                sys::yield_to_all(true);
                return true;
            }
            if sys::now().saturating_sub(duty.last_fault.load(Relaxed)) > QUIET {
                duty.end_polling();
            }
        }
        false
    }

    /// The manager's part while handlers poll: sees to it that none starves.
    pub fn guard(&mut self, pending: &mut Pending) {
        let pager = self.pager;
        let duty = &pager.duty;
        if !duty.is_polling() && pending.count == 0 {
            duty.found.store(0, Relaxed);
            return;
        }
        let now = sys::now();
        // One may be on its way to a handler just now; three times in a row
        // is no chance.
        let missed = if self.serve_messages(pending) {
            duty.found.fetch_add(1, Relaxed) >= 2
        } else {
            duty.found.store(0, Relaxed);
            false
        };
        for worker in &pager.workers[1..] {
            // It may only have been preempted by the thread that it served,
            // but may also hold what others wait for: let it finish.
            let since = worker.serving_since.load(Relaxed);
            if since != 0 && now.saturating_sub(since) > STARVED {
                sys::schedule(worker.tid.load(Relaxed), false);
            }
        }
        if missed {
            duty.rest(now);
            for worker in &pager.workers[1..] {
                let tid = worker.tid.load(Relaxed);
                if tid != 0 {
                    sys::schedule(tid, false);
                }
            }
        }
    }

    /// Takes what has been reported and serves it; whether there was a fault.
    fn serve_messages(&mut self, pending: &mut Pending) -> bool {
        let before = pending.count;
        self.take_messages(pending);
        let found = pending.count > before;
        if found {
            self.pager.duty.fault(sys::now());
        }
        let began = sys::now();
        let mut kept = 0;
        for i in 0..pending.count {
            let (page, write) = pending.faults[i];
            self.pager.workers[self.id].serving_since.store(began, Relaxed);
            if self.serve(page, write) == crate::serve::Served::Retry {
                pending.faults[kept] = (page, write);
                kept += 1;
            }
        }
        self.pager.workers[self.id].serving_since.store(0, Relaxed);
        if self.polls && sys::now().saturating_sub(began) > STARVED {
            // The manager may have helped us: see `guard`.
            sys::yield_to_all(true);
        }
        pending.count = kept;
        found
    }
}

impl Default for Pending {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_while_handlers_starve_and_begin_anew_later() {
        let duty = Duty::default();
        let mut now = 1;
        for expected in [1, 2, 4, 8] {
            duty.rest(now);
            assert_eq!(duty.rest_until.load(Relaxed), now + expected * REST.0);
            now += expected * REST.0 + 1;
        }
        now += 2 * REST.1;
        duty.rest(now);
        assert_eq!(duty.rest_until.load(Relaxed), now + REST.0);
    }

    #[test]
    fn polling_begins_with_frequent_faults_only() {
        let duty = Duty::default();
        for i in 0..100 {
            duty.fault(i * 2 * NEAR);
        }
        assert!(!duty.is_polling(), "rare faults keep the processors free");
        for i in 0..=u64::from(BEGIN) {
            assert!(!duty.is_polling());
            duty.fault(1_000 * NEAR + i * NEAR / 2);
        }
        duty.fault(1_005 * NEAR);
        assert!(duty.is_polling());
        duty.end_polling();
        assert!(!duty.is_polling());
    }
}
