//! Page compression: same-filled pages to one word, what suits it by
//! zero-byte elimination if that is to be quick, the rest by LZ4. A packed page begins with a byte
//! that says which: 0 for LZ4, anything else for [`crate::store::zero_bytes`].

use lz4_sys::LZ4_decompress_safe;

use crate::store::zero_bytes;
use crate::sys::{self, PAGE};
use terrace_core::{Bytes, Nanos};
use terrace_economics::Packing;

// The crate builds these but does not declare them; signatures of `lz4.h`.
unsafe extern "C" {
    fn LZ4_sizeofState() -> i32;
    fn LZ4_compress_fast_extState(
        state: *mut core::ffi::c_void,
        src: *const core::ffi::c_char,
        dst: *mut core::ffi::c_char,
        src_size: i32,
        dst_capacity: i32,
        acceleration: i32,
    ) -> i32;
}

/// A page's bytes.
pub type PageBytes = [u8; PAGE];

/// Above this size a compressed page is kept as it is: saving less than a
/// sixteenth does not pay for decompressing it.
const WORTHWHILE: usize = PAGE - PAGE / 16;

/// The first byte of a page packed by LZ4.
const LZ4: u8 = 0;

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packed {
    /// One word repeated.
    Same(u64),
    /// Compressed into so many bytes of the output.
    Compressed(usize),
    /// Does not compress.
    Raw,
}

/// How much time packing may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As little as possible.
    Quick,
    /// What a good ratio needs.
    Tight,
}

/// What both efforts make of a page, for [`crate::store::density`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// What quick packing takes.
    pub quick: Packing,
    /// What tight packing takes.
    pub tight: Packing,
}

/// One thread's compressor.
pub struct Codec {
    /// LZ4's hash table. Allocated once, so that compressing allocates nothing.
    state: Box<[u64]>,
    out: Box<[u8; zero_bytes::OUTPUT]>,
    /// Whether the processor can do zero-byte elimination.
    fast: bool,
}

impl Codec {
    /// A compressor.
    pub fn new() -> Self {
        // SAFETY: returns a constant.
        let size = unsafe { LZ4_sizeofState() } as usize;
        Self {
            state: vec![0; size.div_ceil(8)].into(),
            out: Box::new([0; zero_bytes::OUTPUT]),
            fast: zero_bytes::is_supported(),
        }
    }

    /// Compresses a page; the bytes are in [`Codec::output`].
    pub fn pack(&mut self, page: &PageBytes, effort: Effort) -> Packed {
        if let Some(word) = same_filled(page) {
            return Packed::Same(word);
        }
        #[cfg(target_arch = "x86_64")]
        if self.fast && effort == Effort::Quick {
            // SAFETY: asked for when `self` was made.
            let packed = unsafe { zero_bytes::pack(page, &mut self.out) };
            if let Some(n) = packed {
                return Packed::Compressed(n);
            }
        }
        self.out[0] = LZ4;
        // SAFETY: the state is as large as LZ4 asked for and 8-byte aligned;
        // both buffers have the lengths that are passed.
        let n = unsafe {
            LZ4_compress_fast_extState(
                self.state.as_mut_ptr().cast(),
                page.as_ptr().cast(),
                self.out[1..].as_mut_ptr().cast(),
                PAGE as i32,
                WORTHWHILE as i32,
                1,
            )
        };
        if n > 0 { Packed::Compressed(1 + n as usize) } else { Packed::Raw }
    }

    /// Packs a page in both ways, and unpacks it again; `None` where that is the same.
    pub fn compare(&mut self, page: &PageBytes) -> Option<Compared> {
        let mut back = [0; PAGE];
        let mut measure = |effort| {
            // Twice, and the shorter time: a thread of ours may lose its processor.
            let mut packing = Packing { time: Nanos(u64::MAX), size: Bytes::ZERO };
            for _ in 0..2 {
                let start = sys::now();
                let Packed::Compressed(n) = self.pack(page, effort) else { return None };
                if effort == Effort::Quick && self.out[0] == LZ4
                    || !unpack(&self.out[..n], &mut back)
                {
                    return None;
                }
                packing.time = packing.time.min(Nanos(sys::now() - start));
                packing.size = Bytes(n as u64);
            }
            Some(packing)
        };
        Some(Compared { quick: measure(Effort::Quick)?, tight: measure(Effort::Tight)? })
    }

    /// The last compressed page.
    pub fn output(&self, len: usize) -> &[u8] {
        &self.out[..len]
    }
}

impl Default for Codec {
    fn default() -> Self {
        Self::new()
    }
}

/// Decompresses a page; false if the bytes are not a compressed page.
#[must_use]
pub fn unpack(bytes: &[u8], page: &mut PageBytes) -> bool {
    let bytes = match bytes {
        [LZ4, rest @ ..] => rest,
        // SAFETY: this processor can.
        #[cfg(target_arch = "x86_64")]
        [_, ..] if zero_bytes::is_supported() => return unsafe { zero_bytes::unpack(bytes, page) },
        _ => return zero_bytes::unpack_anywhere(bytes, page),
    };
    // SAFETY: both buffers have the lengths that are passed; the function
    // checks its input against them.
    let n = unsafe {
        LZ4_decompress_safe(
            bytes.as_ptr().cast(),
            page.as_mut_ptr().cast(),
            bytes.len() as i32,
            PAGE as i32,
        )
    };
    n == PAGE as i32
}

/// Fills a page with one word.
pub fn fill(page: &mut PageBytes, word: u64) {
    for chunk in page.as_chunks_mut::<8>().0 {
        *chunk = word.to_ne_bytes();
    }
}

/// The word that a page repeats, if it does.
pub fn same_filled(page: &PageBytes) -> Option<u64> {
    let words = page.as_chunks::<8>().0;
    let first = words[0];
    // The last word first: most pages that begin with zeros do not end so.
    if words[words.len() - 1] != first {
        return None;
    }
    words.iter().all(|w| *w == first).then(|| u64::from_ne_bytes(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(page: &PageBytes, effort: Effort) -> PageBytes {
        let mut codec = Codec::new();
        let mut back = [0xeeu8; PAGE];
        match codec.pack(page, effort) {
            Packed::Same(word) => fill(&mut back, word),
            Packed::Compressed(n) => assert!(unpack(codec.output(n), &mut back)),
            Packed::Raw => back = *page,
        }
        back
    }

    proptest! {
        /// A page that comes back different is data lost.
        #[test]
        fn every_page_comes_back_as_it_was(seed in any::<u64>(), period in 1usize..3000, noise in 0usize..4096) {
            let mut page = [0u8; PAGE];
            let mut x = seed | 1;
            for i in 0..PAGE {
                page[i] = if i >= period && i >= noise { page[i - period] } else {
                    x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (x >> 56) as u8
                };
            }
            prop_assert_eq!(round_trip(&page, Effort::Quick), page);
            prop_assert_eq!(round_trip(&page, Effort::Tight), page);
        }

        /// Damaged bytes must be refused or decode to something, never overrun.
        #[test]
        fn damaged_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut page = [0u8; PAGE];
            let _ = unpack(&bytes, &mut page);
        }
    }

    #[test]
    fn tight_packing_makes_less_of_a_page_of_repeated_text() {
        let mut page = [0; PAGE];
        for (i, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = [b'a' + (i % 7) as u8, 1, 2, 3, 0, 0, 0, 0];
        }
        let mut codec = Codec::new();
        let compared = codec.compare(&page);
        if zero_bytes::is_supported() {
            let compared = compared.expect("both ways differ");
            assert!(compared.tight.size < compared.quick.size, "{compared:?}");
        } else {
            assert_eq!(compared, None, "there is one way alone");
        }
    }

    #[test]
    fn same_filled_pages_become_one_word() {
        let mut codec = Codec::new();
        assert_eq!(codec.pack(&[0; PAGE], Effort::Quick), Packed::Same(0));
        assert_eq!(codec.pack(&[7; PAGE], Effort::Tight), Packed::Same(0x0707_0707_0707_0707));
        let mut page = [0; PAGE];
        page[2000] = 1;
        assert!(matches!(codec.pack(&page, Effort::Quick), Packed::Compressed(_)));
    }
}
