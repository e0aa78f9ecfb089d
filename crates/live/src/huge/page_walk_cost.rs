//! What a page walk costs here: timed once a process, when that is to be known.
//!
//! Reads of the kernel's page of zeros, mapped at more addresses than any TLB has entries:
//! the data is always the same and in the first cache, so what an access takes longer
//! than at few addresses is the walk. Each address follows from what the last read gave,
//! so that nothing overlaps. The page table is small and stays in the caches: a program's
//! walks cost no less than this.

use terrace_core::Nanos;

use crate::sys::{self, PAGE};

/// Twice as many as the largest second-level TLB has entries, to the next power of two.
const PAGES: usize = 8192;
/// Few enough for a first-level TLB.
const FEW: usize = 16;
/// Accesses in one round.
const ACCESSES: usize = 4096;
/// Rounds of which the fastest counts.
const ROUNDS: usize = 3;

/// `MADV_POPULATE_READ` (Linux 5.14).
const POPULATE_READ: i32 = 22;

/// Times it, in some 3 ms; `None` if there is no room. Takes no memory but that of the
/// page table.
pub(crate) fn measure() -> Option<Nanos> {
    let len = PAGES * PAGE;
    let at = sys::map_private(len).ok()?;
    // SAFETY: changes no content; in huge pages there would be no walks.
    let mapped = unsafe { sys::madvise(at, len, libc::MADV_NOHUGEPAGE) }
        .and_then(|()| unsafe { sys::madvise(at, len, POPULATE_READ) });
    let cost = mapped.ok().map(|()| {
        let many = fastest(at, PAGES);
        Nanos(many.saturating_sub(fastest(at, FEW)) / ACCESSES as u64)
    });
    // SAFETY: ours, and nobody else knows of it.
    let _ = unsafe { sys::munmap(at, len) };
    cost
}

/// The time of the fastest round (ns).
fn fastest(at: usize, pages: usize) -> u64 {
    (0..ROUNDS)
        .map(|_| {
            let start = sys::now();
            chase(at, pages);
            sys::now() - start
        })
        .min()
        .unwrap_or(0)
}

fn chase(at: usize, pages: usize) {
    let mut page = 0usize;
    for _ in 0..ACCESSES {
        // SAFETY: within the mapping, which reads as zeros.
        let zero = unsafe { ((at + page * PAGE) as *const usize).read_volatile() };
        // A full cycle over a power of two (Knuth: the multiplier is 1 modulo 4, the
        // increment odd), in no order that a prefetcher knows.
        page = page.wrapping_mul(1_664_525).wrapping_add(1_013_904_223 + zero) % pages;
    }
    core::hint::black_box(page);
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_walk_takes_some_nanoseconds_and_no_microseconds() {
        let cost = measure().expect("address space");
        assert!((Nanos(1)..Nanos::micros(5)).contains(&cost), "{cost}");
    }
}
