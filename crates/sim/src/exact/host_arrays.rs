//! The host's memory, where the simulator's own arrays lie.
//!
//! A random access of a simulated program touches half a dozen places of these
//! arrays, most of them far from any cache of the host. So sets begin at host
//! lines, large arrays ask for large pages (a walk of the host's page tables
//! costs as much as the miss), and what is known to be needed is asked for
//! early.

#![allow(clippy::inline_always)] // measured: a call on the hot path costs more than the work

use rustix::mm::{Advice, madvise};

/// Bytes of a host's large page.
const LARGE: usize = 2 << 20;

/// A line of the host.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// Words that begin at a host line; many of them, in large pages.
#[derive(Debug)]
pub(super) struct HugeArray(Vec<Line>);

impl HugeArray {
    /// At least so many words, all of them 0.
    pub(super) fn new(words: usize) -> Self {
        let count = words.div_ceil(8);
        let mut lines = Vec::with_capacity(count);
        ask_for_large_pages(lines.spare_capacity_mut());
        lines.resize(count, Line([0; 8]));
        Self(lines)
    }
}

impl AsRef<[u64]> for HugeArray {
    #[inline(always)]
    fn as_ref(&self) -> &[u64] {
        // SAFETY: a line is eight words without padding, in the array's order.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * 8) }
    }
}

impl AsMut<[u64]> for HugeArray {
    #[inline(always)]
    fn as_mut(&mut self) -> &mut [u64] {
        // SAFETY: as above, and the array is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * 8) }
    }
}

impl Clone for HugeArray {
    /// The copy asks for large pages, too.
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.0.len() * 8);
        copy.0.copy_from_slice(&self.0);
        copy
    }
}

/// Asks the host to back what is whole large pages of an array by such pages.
/// A host that has none goes on with small ones.
fn ask_for_large_pages<T>(array: &[T]) {
    let begin = array.as_ptr().addr();
    let end = (begin + size_of_val(array)) & !(LARGE - 1);
    let first = begin.next_multiple_of(LARGE);
    if first >= end {
        return;
    }
    let start = array.as_ptr().cast::<u8>().wrapping_add(first - begin);
    // SAFETY: the range lies within the array, which is anonymous memory of this
    // process; the advice changes nothing that it holds.
    let _ = unsafe { madvise(start.cast_mut().cast(), end - first, Advice::LinuxHugepage) };
}

/// Asks the host to bring an element near.
#[inline]
pub(super) fn prefetch<T>(array: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(element) = array.get(index) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing architecturally, and the address is
        // that of an element of the array.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(element).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (array, index);
}

/// Whether the host's processor has the instructions that the hot path is also
/// compiled for: x86-64-v3, without those of floating point, which stays as it is.
pub(super) fn is_modern() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
        && std::arch::is_x86_feature_detected!("lzcnt")
        && std::arch::is_x86_feature_detected!("popcnt");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Defines a method of `ExactMachine` whose body, a method that is always inlined, is
/// compiled twice: for every processor, and for those with x86-64-v3.
macro_rules! for_this_processor {
    (
        $(#[$about:meta])*
        $seen:vis fn $name:ident | $modern:ident
            (&mut self $(, $argument:ident: $kind:ty)*) $(-> $result:ty)? = $body:ident
    ) => {
        $(#[$about])*
        #[inline(never)]
        $seen fn $name(&mut self $(, $argument: $kind)*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            if self.modern {
                // SAFETY: it is set only where the processor has what the
                // method is compiled for (`is_modern`).
                return unsafe { self.$modern($($argument),*) };
            }
            self.$body($($argument),*)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
        fn $modern(&mut self $(, $argument: $kind)*) $(-> $result)? {
            self.$body($($argument),*)
        }
    };
}
pub(super) use for_this_processor;

#[cfg(test)]
mod tests {
    use super::*;

    /// A set that straddles two host lines would cost two misses a lookup.
    #[test]
    fn arrays_begin_at_host_lines_and_copies_do_too() {
        for len in [1, 8, 1000, 1 << 19] {
            let mut array = HugeArray::new(len);
            array.as_mut()[len - 1] = 7;
            let copy = array.clone();
            assert_eq!(copy.as_ref(), array.as_ref());
            assert_eq!(array.as_ref().iter().sum::<u64>(), 7, "it begins with zeros");
            for array in [&array, &copy] {
                assert_eq!(array.as_ref().as_ptr().addr() % 64, 0, "{len} words");
            }
        }
    }
}
