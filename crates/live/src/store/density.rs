//! How tightly pages are packed: as quickly as possible where there is room enough, and
//! by what takes less of it where room is worth more than the time.
//!
//! Of some pages that leave both is tried and timed; every so many of them the economist
//! is asked. Room is worth something where the budget is for packed pages, too, and
//! where the store is full and the file below it slow.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use terrace_core::{Bytes, Nanos};
use terrace_economics::{Mode, Packing, Room, tighter_pays};

use crate::config::Counted;
use crate::pager::Pager;
use crate::stats::histogram::Histogram;
use crate::store::codec::{Codec, Effort, PageBytes};
use crate::sys::PAGE;

/// One page of so many is packed in both ways: some 15 µs of work for them all.
const ONE_OF: u64 = 256;
/// The economist is asked after so many of these.
const ROUND: u64 = 16;
/// Misses after which their observed time is believed.
const ENOUGH: u64 = 64;
/// The index of faults on absent pages in the statistics page's latencies.
const ABSENT: usize = 1;

/// What has been tried since the economist was last asked, and what it said.
pub(crate) struct Density {
    mode: Mode,
    /// What a miss takes as long as none has been observed.
    usual: Nanos,
    tight: AtomicBool,
    packed: AtomicU64,
    tried: AtomicU64,
    quick_ns: AtomicU64,
    quick_bytes: AtomicU64,
    tight_ns: AtomicU64,
    tight_bytes: AtomicU64,
}

impl Density {
    /// Quick, until something is known; `usual` is what a miss takes where none has been
    /// observed.
    pub(crate) fn new(mode: Mode, usual: Nanos) -> Self {
        Self {
            mode,
            usual,
            tight: AtomicBool::new(false),
            packed: AtomicU64::new(0),
            tried: AtomicU64::new(0),
            quick_ns: AtomicU64::new(0),
            quick_bytes: AtomicU64::new(0),
            tight_ns: AtomicU64::new(0),
            tight_bytes: AtomicU64::new(0),
        }
    }

    /// How to pack a page that leaves.
    pub(crate) fn choose(&self, pager: &Pager, codec: &mut Codec, page: &PageBytes) -> Effort {
        if self.packed.fetch_add(1, Relaxed).is_multiple_of(ONE_OF)
            && self.mode == Mode::Enforce
            && let Some(compared) = codec.compare(page)
        {
            self.enter(compared.quick, compared.tight);
            if self.tried.fetch_add(1, Relaxed) % ROUND == ROUND - 1 {
                self.ask(self.room(pager));
            }
        }
        if self.tight.load(Relaxed) { Effort::Tight } else { Effort::Quick }
    }

    fn enter(&self, quick: Packing, tight: Packing) {
        self.quick_ns.fetch_add(quick.time.get(), Relaxed);
        self.quick_bytes.fetch_add(quick.size.get(), Relaxed);
        self.tight_ns.fetch_add(tight.time.get(), Relaxed);
        self.tight_bytes.fetch_add(tight.size.get(), Relaxed);
    }

    /// Asks the economist about what was tried, and forgets it.
    fn ask(&self, room: Room) {
        let packing = |time: &AtomicU64, size: &AtomicU64| Packing {
            time: Nanos(time.swap(0, Relaxed) / ROUND),
            size: Bytes(size.swap(0, Relaxed) / ROUND),
        };
        let quick = packing(&self.quick_ns, &self.quick_bytes);
        let tight = packing(&self.tight_ns, &self.tight_bytes);
        self.tight.store(tighter_pays(quick, tight, room), Relaxed);
    }

    /// What room is worth now.
    fn room(&self, pager: &Pager) -> Room {
        if pager.config.counted == Counted::Total {
            return Room::Scarce { page: Bytes(PAGE as u64), miss: self.miss(pager) };
        }
        let counters = &pager.stats().counters;
        let full = pager.spill.is_open() && pager.store.occupied() > pager.store_limit();
        match pager.spill.time_to_read() {
            // Room for one blob more keeps one page from being read.
            Some(miss) if full => {
                let blobs = counters.stored_pages.load(Relaxed).max(1);
                let page = Bytes(counters.blob_bytes.load(Relaxed) / blobs);
                Room::Scarce { page, miss }
            }
            _ => Room::Free,
        }
    }

    /// What it costs that a page is not in DRAM: bringing it in, and packing another one.
    fn miss(&self, pager: &Pager) -> Nanos {
        let stats = pager.stats();
        let absent = &stats.latency[ABSENT];
        let faults = absent.count();
        if faults < ENOUGH {
            return self.usual;
        }
        let counters = &stats.counters;
        let packed = counters.compressed.load(Relaxed).max(1);
        let all: u64 = stats.latency.iter().map(Histogram::count).sum();
        let overhead = Nanos(counters.fault_overhead_ns.load(Relaxed)) / all.max(1);
        let beyond = Nanos(counters.overcounted_ns.load(Relaxed)) / all.max(1);
        let pack = Nanos(counters.compress_ns.load(Relaxed)) / packed;
        absent.total() / faults + overhead - beyond + pack
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_economist_hears_of_averages_and_only_of_this_round() {
        let density = Density::new(Mode::Enforce, Nanos(10_000));
        let quick = Packing { time: Nanos(1_000), size: Bytes(2_048) };
        let tight = Packing { time: Nanos(3_000), size: Bytes(1_024) };
        let scarce = Room::Scarce { page: Bytes(4_096), miss: Nanos(10_000) };

        for _ in 0..ROUND {
            density.enter(quick, tight);
        }
        density.ask(scarce);
        assert!(density.tight.load(Relaxed), "2500 ns of room for 2000 ns");

        for _ in 0..ROUND {
            density.enter(quick, Packing { time: Nanos(4_000), ..tight });
        }
        density.ask(scarce);
        assert!(!density.tight.load(Relaxed), "2500 ns of room for 3000 ns");
    }
}
