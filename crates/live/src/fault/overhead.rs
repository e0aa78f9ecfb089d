//! What a fault takes on top of being served, measured once when managing begins.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use terrace_core::Nanos;

use crate::sys::spin::backoff;
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// Where faults are timed; 0 before that was done.
static PROBED: AtomicUsize = AtomicUsize::new(0);

/// Whether an address is the first that `measure_fault_overhead` touches.
pub(crate) fn is_probed(address: usize) -> bool {
    address == PROBED.load(Relaxed)
}

/// Faults that are timed.
const FAULTS: usize = 32;
/// Too far for a stream: each touch is to be a fault of its own.
const APART: usize = 32;

/// What faults took on top of being served, ns: apart for handlers that slept and that polled.
struct Overheads {
    taken: [[u64; FAULTS]; 2],
    count: [usize; 2],
}

/// What one fault took on top of being served: from the touch (`start`) until a handler began with
/// it, and from when that was done until the thread ran again.
///
/// Whoever wakes a thread may still be at it when that one runs: then the service took longer than
/// anybody waited, and the way back nothing.
fn on_top(start: u64, (began, done): (u64, u64), runs: u64) -> u64 {
    began.saturating_sub(start) + runs.saturating_sub(done)
}

impl Overheads {
    const fn new() -> Self {
        Self { taken: [[0; FAULTS]; 2], count: [0; 2] }
    }

    /// Enters one; not if handlers polled at its beginning or at its end only.
    fn enter(&mut self, polled: [bool; 2], taken: u64) {
        if polled[0] == polled[1] {
            let how = usize::from(polled[0]);
            self.taken[how][self.count[how]] = taken;
            self.count[how] += 1;
        }
    }

    /// Those of handlers that slept, and of those that polled; sorted.
    fn sorted(&mut self) -> [&[u64]; 2] {
        let [sleeping, polling] = &mut self.taken;
        let (sleeping, polling) = (&mut sleeping[..self.count[0]], &mut polling[..self.count[1]]);
        sleeping.sort_unstable();
        polling.sort_unstable();
        [sleeping, polling]
    }
}

impl Worker<'_> {
    /// Times faults on memory of ours, from touch to return, so that the
    /// report can add what the program pays beyond our own service time, and of that what it
    /// pays in processor time. After some faults handlers poll: what that takes is told apart.
    pub fn measure_fault_overhead(&mut self) {
        /// A handler is done with a fault after the thread runs again, soon.
        const SOON: u64 = 10_000_000;
        let pager = self.pager;
        // Always at the same place, which is managed and must be nothing else's.
        let Ok(at) = sys::map_private_at(&PROBED, FAULTS * APART * PAGE) else { return };
        if self.manage_range(at, at + FAULTS * APART * PAGE).is_ok() {
            let mut overheads = Overheads::new();
            let mut own = [Nanos::ZERO; FAULTS];
            for (i, own) in own.iter_mut().enumerate() {
                let polled = pager.fault.handlers.is_polling();
                let page = at + i * APART * PAGE;
                pager.fault.handlers.probe(page);
                let ran = sys::thread_cpu();
                let start = sys::now();
                // SAFETY: our own mapping. The handlers serve the fault.
                unsafe { (page as *mut u8).write_volatile(1) };
                let runs = sys::now();
                let fault = sys::thread_cpu();
                *own = (fault - ran) - (sys::thread_cpu() - fault);
                let mut spins = 0;
                while pager.fault.handlers.probed().is_none() && sys::now() - start < SOON {
                    backoff(&mut spins);
                }
                if let Some(served) = pager.fault.handlers.probed() {
                    let polls = pager.fault.handlers.is_polling();
                    overheads.enter([polled, polls], on_top(start, served, runs));
                }
            }
            let [sleeping, polling] = overheads.sorted();
            pager.fault.handlers.set_overheads(sleeping, polling);
            // Interrupts and cold caches only add to it.
            own.sort_unstable();
            pager.stats().counters.fault_own_ns.store(own[FAULTS / 4].get(), Relaxed);
        }
        // SAFETY: nobody else knows of it. The handlers take the message.
        unsafe { sys::munmap_managed(at, FAULTS * APART * PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::fixture;
    use crate::space::proc_maps;

    #[test]
    fn on_top_of_the_service_are_the_way_there_and_the_way_back() {
        assert_eq!(on_top(1000, (1300, 1900), 2100), 300 + 200);
        assert_eq!(on_top(1000, (1300, 1900), 1700), 300, "it ran before its handler was done");
    }

    #[test]
    fn each_way_to_handle_faults_has_its_own_median_and_what_changed_meanwhile_counts_for_none() {
        let pager = fixture::pager(1);
        let mut overheads = Overheads::new();
        for taken in [9, 1, 5] {
            overheads.enter([false, false], taken);
            overheads.enter([true, true], taken + 100);
            overheads.enter([false, true], 10_000);
            overheads.enter([true, false], 10_000);
        }
        overheads.enter([true, true], 0);
        let [sleeping, polling] = overheads.sorted();
        assert_eq!((sleeping, polling), (&[1, 5, 9][..], &[0, 101, 105, 109][..]));
        pager.fault.handlers.set_overheads(sleeping, polling);
        assert!(!pager.fault.handlers.is_polling());
        assert_eq!(pager.fault.handlers.overhead(), 5);
        pager.fault.handlers.set_overheads(&[], polling);
        assert_eq!(pager.fault.handlers.overhead(), 105, "for want of another");
    }

    /// The fixture's kernel manages nothing: a touch would find memory at once, which is no fault.
    #[test]
    fn where_memory_cannot_be_managed_nothing_is_told_and_the_place_is_free_again() {
        let pager = fixture::pager(1);
        let mut worker = Worker::new(pager, 0);
        let mut places = Vec::new();
        for _ in 0..2 {
            worker.measure_fault_overhead();
            let at = PROBED.load(Relaxed);
            assert!(is_probed(at) && !is_probed(at + PAGE));
            let mut is_free = true;
            assert!(proc_maps::for_each_mapping(|m| is_free &= at < m.start || m.end <= at));
            assert!(is_free);
            places.push(at);
        }
        assert_eq!(places[0], places[1], "its number is what tells it from the program's memory");
        assert_eq!(pager.fault.handlers.overhead(), 0);
        assert_eq!(pager.stats().counters.fault_own_ns.load(Relaxed), 0);
    }
}
