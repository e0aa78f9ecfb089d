//! What a miss costs at least on this machine: the cheapest fault that there is,
//! and decompression.

use std::time::Instant;

use terrace_core::Nanos;
use terrace_live::store::codec::{Codec, Effort, Packed, PageBytes, unpack};

const PAGE: usize = 4096;
/// Fresh memory that is touched, in pages.
const TOUCHED: usize = 16 * 1024;
/// How often; the least counts, since a limit is asked for.
const TIMES: usize = 5;

/// The parts of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The kernel's own fault that maps a page of zeros.
    pub zero_fill: Nanos,
    /// Decompressing one page of the corpus, with what `terrace run` uses.
    pub decompress: Nanos,
}

impl Limits {
    /// Measures both. `None` if no page of the corpus compresses.
    pub fn measure(corpus: &[u8]) -> Option<Self> {
        let zero_fill = (0..TIMES).map(|_| zero_fill()).min()?;
        let decompress = decompress(corpus)?;
        Some(Self { zero_fill, decompress })
    }

    /// Both together.
    pub fn total(self) -> Nanos {
        self.zero_fill + self.decompress
    }
}

fn zero_fill() -> Nanos {
    let length = TOUCHED * PAGE;
    // SAFETY: a fresh private mapping, advised, touched inside of its bounds, unmapped.
    unsafe {
        let base = libc::mmap(
            core::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert!(base != libc::MAP_FAILED, "no memory for 64 MiB");
        libc::madvise(base, length, libc::MADV_NOHUGEPAGE);
        let began = Instant::now();
        for page in 0..TOUCHED {
            base.cast::<u8>().add(page * PAGE).write_volatile(1);
        }
        let each = began.elapsed().as_nanos() as u64 / TOUCHED as u64;
        libc::munmap(base, length);
        Nanos(each)
    }
}

fn decompress(corpus: &[u8]) -> Option<Nanos> {
    let mut codec = Codec::new();
    let packed: Vec<Vec<u8>> = corpus
        .as_chunks::<PAGE>()
        .0
        .iter()
        .filter_map(|page| match codec.pack(page, Effort::Quick) {
            Packed::Compressed(n) => Some(codec.output(n).to_vec()),
            Packed::Same(_) | Packed::Raw => None,
        })
        .collect();
    let mut page: Box<PageBytes> = Box::new([0; PAGE]);
    let mut all = || {
        let began = Instant::now();
        for bytes in &packed {
            assert!(unpack(bytes, &mut page), "what was packed unpacks");
            std::hint::black_box(&page);
        }
        began.elapsed()
    };
    let least = (0..TIMES).map(|_| all()).min()?;
    (!packed.is_empty()).then(|| Nanos(least.as_nanos() as u64 / packed.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit of zero would make every distance to it infinite.
    #[test]
    fn both_parts_take_time() {
        let corpus: Vec<u8> = (0..64 * PAGE).map(|i| (i / 7 % 251) as u8).collect();
        let limits = Limits::measure(&corpus).unwrap();
        assert!(limits.zero_fill > Nanos(50) && limits.decompress > Nanos(20), "{limits:?}");
        assert_eq!(limits.total(), limits.zero_fill + limits.decompress);
    }

    #[test]
    fn a_corpus_that_does_not_compress_has_no_limit() {
        let mut x = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x.to_le_bytes()
        })
        .take(PAGE)
        .flatten()
        .collect();
        assert_eq!(Limits::measure(&noise), None);
    }
}
