//! At which addresses managed memory lies, and Terrace's own.
//!
//! A program may map memory at addresses of its own choice (`MAP_FIXED`), wherever it knows that
//! nothing is: sanitizers, run-time systems, emulators and JITs do. It knows where the kernel puts things,
//! and cannot know of us. So we are where the kernel puts nothing by itself, and where hardly anybody
//! else goes:
//!
//! - The kernel maps from the top down, from no more than 16 TiB below 128 TiB; executables and the heap
//!   behind them lie from 85.3 TiB on, up to 16 TiB further up. With the old layout (`ulimit -s unlimited`,
//!   `setarch -L`) it maps from 42.7 TiB up, by up to 16 TiB further up.
//! - Below 64 TiB is where programs go that choose by themselves: Go from 0.75 TiB on, ZGC's heaps at
//!   4, 8 and 16 TiB, allocators and JavaScript's engines anywhere with addresses of 46 bits.
//!
//! That leaves 68 to 84 TiB for memory that is managed, and for ours, of which there is little, 59 to
//! 68 TiB. In these ranges each process has a place of its own, where nothing was at its start: by
//! chance, as its library lies by chance, so that what a program chooses hits something that is in use
//! as rarely as something of the kernel's.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::*};

use libc::c_int;

use super::{PAGE, mmap, munmap_managed};

/// Where memory of Terrace's own lies, in whichever process.
const OWN_RANGE: Range<usize> = 0x3b00_0000_0000..0x4400_0000_0000;
/// Where managed memory is put, in whichever process.
const WINDOW_RANGE: Range<usize> = 0x4400_0000_0000..0x5400_0000_0000;
/// Addresses for memory of our own in one process, 2 TiB.
pub(super) const OWN_LEN: usize = 2 << 40;
/// Length of the window in one process, 4 TiB.
pub const WINDOW_LEN: usize = 4 << 40;
/// Where the window is in a process that has not chosen another place.
pub const WINDOW: usize = WINDOW_RANGE.start;

const _: () = {
    const TIB: usize = 1 << 40;
    const THIRD: usize = 128 * TIB / 3;
    // The old layout of mappings; addresses of 46 bits; executables.
    assert!(OWN_RANGE.start > THIRD + 16 * TIB && OWN_RANGE.end <= WINDOW_RANGE.start);
    assert!(WINDOW_RANGE.start >= 64 * TIB && WINDOW_RANGE.end < 2 * THIRD);
};

/// A place begins at a multiple of this.
const STEP: usize = 1 << 30;
/// Places that are tried until one is free.
const TRIES: usize = 8;

static OWN_START: AtomicUsize = AtomicUsize::new(OWN_RANGE.start);
static WINDOW_START: AtomicUsize = AtomicUsize::new(WINDOW);

/// Chooses this process's places: at the start of a program, before anything is there.
pub fn choose() {
    // The kernel has put it somewhere by chance, unless the program is to have none (`setarch -R`).
    let seed = (&raw const OWN_START).addr();
    OWN_START.store(free_place(&OWN_RANGE, OWN_LEN, seed), Relaxed);
    WINDOW_START.store(free_place(&WINDOW_RANGE, WINDOW_LEN, seed), Release);
}

/// The window: where managed mappings are put in this process. It is not reserved: a mapping in it is
/// made only where nothing is.
pub fn window() -> usize {
    WINDOW_START.load(Relaxed)
}

/// Whether an address lies in the window.
pub fn in_window(address: usize) -> bool {
    address.wrapping_sub(window()) < WINDOW_LEN
}

/// Whether the window of a process may be there, whichever process it is.
pub fn may_be_window(address: usize) -> bool {
    WINDOW_RANGE.contains(&address)
}

/// Whether memory of Terrace's own may be there, in whichever process.
pub(super) fn may_be_own(address: usize) -> bool {
    OWN_RANGE.contains(&address)
}

/// Where memory of our own lies in this process.
pub(super) fn own() -> Range<usize> {
    let start = OWN_START.load(Relaxed);
    start..start + OWN_LEN
}

/// A place in a range where nothing is, as far as that can be found out.
fn free_place(range: &Range<usize>, len: usize, seed: usize) -> usize {
    let places = (range.len() - len) / STEP + 1;
    let nth = |i| range.start + mixed(seed ^ range.start, i) % places * STEP;
    // Whatever is there is left alone in any case.
    (0..TRIES).map(nth).find(|&at| is_free(at, len)).unwrap_or_else(|| nth(0))
}

/// Whether nothing is mapped there. Under a limit of the address space nobody can tell.
fn is_free(at: usize, len: usize) -> bool {
    const FLAGS: c_int =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    if cfg!(miri) {
        return true;
    }
    // SAFETY: replaces nothing; what was mapped is unmapped, and was known to nobody.
    unsafe {
        match mmap(at, len, libc::PROT_NONE, FLAGS, -1, 0) {
            Ok(mapped) => {
                munmap_managed(mapped, len);
                mapped == at
            }
            Err(error) => error != libc::EEXIST,
        }
    }
}

/// The number with this index of a series that begins as it is told (`SplitMix64`).
fn mixed(seed: usize, index: usize) -> usize {
    let mut z = (seed / PAGE) as u64;
    z = z.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_not_chosen_has_its_window_at_the_beginning() {
        assert!(in_window(window()) && !in_window(window() - 1));
        assert!(in_window(window() + WINDOW_LEN - 1) && !in_window(window() + WINDOW_LEN));
        assert!(may_be_window(window()) && !may_be_own(window()));
        assert!(may_be_own(own().start) && !may_be_window(own().end));
    }

    #[test]
    #[cfg_attr(miri, ignore = "nothing is mapped at a fixed place")]
    fn a_place_is_within_its_range_and_where_nothing_is() {
        let place = |seed: usize| free_place(&WINDOW_RANGE, WINDOW_LEN, seed << 12);
        let mut places: Vec<_> = (1..200).map(place).collect();
        for &at in &places {
            assert!(WINDOW_RANGE.contains(&at) && at + WINDOW_LEN <= WINDOW_RANGE.end, "{at:#x}");
            assert!(at.is_multiple_of(STEP));
        }
        let first = places[0];
        places.sort_unstable();
        places.dedup();
        assert!(places.len() > 150, "{} of 199 are different", places.len());

        // In the middle, where no other test maps anything.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let middle = first + WINDOW_LEN / 2 + 123 * PAGE;
        // SAFETY: replaces nothing, and is unmapped.
        unsafe {
            let mapped = mmap(middle, PAGE, libc::PROT_READ, flags, -1, 0).expect("memory");
            assert!(!is_free(first, WINDOW_LEN));
            let other = place(1);
            munmap_managed(mapped, PAGE);
            assert!(!(other..other + WINDOW_LEN).contains(&mapped), "{first:#x} {other:#x}");
        }
    }
}
