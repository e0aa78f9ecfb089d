//! Zero-byte elimination: a page codec that takes well under a microsecond.
//!
//! Heaps and arrays of numbers are full of words whose upper bytes are zero,
//! or equal to those of the word a fixed distance before. Each word is
//! combined with that one by exclusive or, and only the bytes that are not zero are kept, after a map
//! of where they belong. AVX-512 VBMI2 does 64 bytes at a time
//! (`vpcompressb`, `vpexpandb`); processors without it use LZ4 alone.
//!
//! Layout: the distance in words plus one (1 byte), 64 maps of 64 bits, little
//! endian, one for each 64 bytes of the page, then the bytes.

use crate::store::codec::PageBytes;
use crate::sys::PAGE;

const LINES: usize = PAGE / 64;
/// Before the bytes: distance and maps.
const HEADER: usize = 1 + LINES * 8;
/// Distances that are tried, in words of 8 bytes: none, neighbours, and the
/// strides of small objects and of cache lines.
const DISTANCES: [u8; 6] = [0, 1, 2, 3, 4, 8];
/// Longer results are refused: LZ4 then has a better ratio to offer, and its
/// time is worth it. 9/16 of a page.
pub(crate) const LIMIT: usize = PAGE / 16 * 9;
/// Room for the output: the last line's store writes 64 bytes, used or not.
pub(crate) const OUTPUT: usize = HEADER + PAGE + 64;

/// Whether this processor has what it takes.
pub(crate) fn is_supported() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512vbmi2")
            && std::arch::is_x86_feature_detected!("bmi2")
            && std::arch::is_x86_feature_detected!("popcnt")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Compresses a page; the length, or `None` if it exceeds [`LIMIT`].
///
/// # Safety
/// [`is_supported`] has said yes.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn pack(page: &PageBytes, out: &mut [u8; OUTPUT]) -> Option<usize> {
    // SAFETY: the caller's.
    unsafe { x86::pack(page, out) }
}

/// Decompresses a page; false if the bytes are not a page packed by [`pack`].
///
/// # Safety
/// [`is_supported`] has said yes.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub(crate) unsafe fn unpack(bytes: &[u8], page: &mut PageBytes) -> bool {
    // SAFETY: the caller's.
    unsafe { x86::unpack(bytes, page) }
}

/// The same as [`unpack`] on any processor, and slowly: for the dump of a program that ran
/// elsewhere.
#[must_use]
pub(crate) fn unpack_anywhere(bytes: &[u8], page: &mut PageBytes) -> bool {
    let Some((header, mut rest)) = bytes.split_at_checked(HEADER) else { return false };
    let Some(distance) = header[0].checked_sub(1).filter(|d| DISTANCES.contains(d)) else {
        return false;
    };
    let distance = usize::from(distance) * 8;
    for i in 0..PAGE {
        let mut byte = 0;
        if header[1 + i / 8] >> (i % 8) & 1 != 0 {
            let Some((first, others)) = rest.split_first() else { return false };
            (byte, rest) = (*first, others);
        }
        if distance > 0 && i >= distance {
            byte ^= page[i - distance];
        }
        page[i] = byte;
    }
    rest.is_empty()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        __m512i, _bzhi_u64, _mm512_alignr_epi64, _mm512_loadu_si512, _mm512_maskz_compress_epi8,
        _mm512_maskz_expand_epi8, _mm512_maskz_loadu_epi8, _mm512_setzero_si512,
        _mm512_storeu_si512, _mm512_test_epi8_mask, _mm512_xor_si512,
    };

    use super::{DISTANCES, HEADER, LIMIT, LINES, OUTPUT};
    use crate::store::codec::PageBytes;

    /// Every so many lines is looked at to choose a distance.
    const SAMPLE: usize = 4;

    /// A line combined by exclusive or with the words `D` before.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
    #[inline]
    fn difference<const D: usize>(line: __m512i, before: __m512i) -> __m512i {
        let shifted = match D {
            0 => return line,
            1 => _mm512_alignr_epi64::<7>(line, before),
            2 => _mm512_alignr_epi64::<6>(line, before),
            3 => _mm512_alignr_epi64::<5>(line, before),
            4 => _mm512_alignr_epi64::<4>(line, before),
            _ => before,
        };
        _mm512_xor_si512(line, shifted)
    }

    /// The inverse: `line` is what `difference` gave, `before` the restored line before.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
    #[inline]
    fn restore<const D: usize>(line: __m512i, before: __m512i) -> __m512i {
        let zero = _mm512_setzero_si512();
        let xor = |a, b| _mm512_xor_si512(a, b);
        match D {
            0 => line,
            1 => {
                let v = xor(line, _mm512_alignr_epi64::<7>(zero, before));
                let v = xor(v, _mm512_alignr_epi64::<7>(v, zero));
                let v = xor(v, _mm512_alignr_epi64::<6>(v, zero));
                xor(v, _mm512_alignr_epi64::<4>(v, zero))
            }
            2 => {
                let v = xor(line, _mm512_alignr_epi64::<6>(zero, before));
                let v = xor(v, _mm512_alignr_epi64::<6>(v, zero));
                xor(v, _mm512_alignr_epi64::<4>(v, zero))
            }
            3 => {
                let v = xor(line, _mm512_alignr_epi64::<5>(zero, before));
                let v = xor(v, _mm512_alignr_epi64::<5>(v, zero));
                xor(v, _mm512_alignr_epi64::<2>(v, zero))
            }
            4 => {
                let v = xor(line, _mm512_alignr_epi64::<4>(zero, before));
                xor(v, _mm512_alignr_epi64::<4>(v, zero))
            }
            _ => xor(line, before),
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
    #[inline]
    fn load(page: &PageBytes, line: usize) -> __m512i {
        let bytes: &[u8; 64] = page[line * 64..line * 64 + 64].try_into().expect("64 bytes");
        // SAFETY: 64 bytes, no alignment needed.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
    #[inline]
    fn count(line: __m512i) -> u32 {
        _mm512_test_epi8_mask(line, line).count_ones()
    }

    /// The distance that leaves the fewest bytes in a sample of lines, and how
    /// many that were.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
    fn choose(page: &PageBytes) -> (usize, u32) {
        let mut counts = [0u32; DISTANCES.len()];
        for line in (1..LINES).step_by(SAMPLE) {
            let (now, before) = (load(page, line), load(page, line - 1));
            counts[0] += count(difference::<0>(now, before));
            counts[1] += count(difference::<1>(now, before));
            counts[2] += count(difference::<2>(now, before));
            counts[3] += count(difference::<3>(now, before));
            counts[4] += count(difference::<4>(now, before));
            counts[5] += count(difference::<8>(now, before));
        }
        let mut best = 0;
        for i in 1..counts.len() {
            if counts[i] < counts[best] {
                best = i;
            }
        }
        (best, counts[best])
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
    fn pack_by<const D: usize>(page: &PageBytes, out: &mut [u8; OUTPUT]) -> usize {
        let mut at = HEADER;
        let mut before = _mm512_setzero_si512();
        for line in 0..LINES {
            let now = load(page, line);
            let rest = difference::<D>(now, before);
            let map = _mm512_test_epi8_mask(rest, rest);
            out[1 + line * 8..9 + line * 8].copy_from_slice(&map.to_le_bytes());
            let packed = _mm512_maskz_compress_epi8(map, rest);
            let room: &mut [u8; 64] = (&mut out[at..at + 64]).try_into().expect("64 bytes");
            // SAFETY: 64 bytes, no alignment needed.
            unsafe { _mm512_storeu_si512(room.as_mut_ptr().cast(), packed) };
            at += map.count_ones() as usize;
            before = now;
        }
        at
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
    pub(super) fn pack(page: &PageBytes, out: &mut [u8; OUTPUT]) -> Option<usize> {
        let (best, sampled) = choose(page);
        // Clearly too long: not worth doing. The sample's error is allowed for.
        if sampled as usize * SAMPLE > LIMIT {
            return None;
        }
        out[0] = DISTANCES[best] + 1;
        let len = match best {
            0 => pack_by::<0>(page, out),
            1 => pack_by::<1>(page, out),
            2 => pack_by::<2>(page, out),
            3 => pack_by::<3>(page, out),
            4 => pack_by::<4>(page, out),
            _ => pack_by::<8>(page, out),
        };
        (len <= LIMIT).then_some(len)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
    fn unpack_by<const D: usize>(maps: &[[u8; 8]], mut bytes: &[u8], page: &mut PageBytes) {
        let mut before = _mm512_setzero_si512();
        for (line, map) in page.as_chunks_mut::<64>().0.iter_mut().zip(maps) {
            let map = u64::from_le_bytes(*map);
            let n = map.count_ones();
            // SAFETY: only the first `n` bytes are read, and the caller has
            // counted that they are there.
            let packed =
                unsafe { _mm512_maskz_loadu_epi8(_bzhi_u64(u64::MAX, n), bytes.as_ptr().cast()) };
            bytes = &bytes[n as usize..];
            let now = restore::<D>(_mm512_maskz_expand_epi8(map, packed), before);
            // SAFETY: 64 bytes, no alignment needed.
            unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), now) };
            before = now;
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
    pub(super) fn unpack(bytes: &[u8], page: &mut PageBytes) -> bool {
        if bytes.len() < HEADER {
            return false;
        }
        let (header, bytes) = bytes.split_at(HEADER);
        let maps = header[1..].as_chunks::<8>().0;
        let wanted: u32 = maps.iter().map(|m| u64::from_le_bytes(*m).count_ones()).sum();
        if wanted as usize != bytes.len() {
            return false;
        }
        match header[0] {
            1 => unpack_by::<0>(maps, bytes, page),
            2 => unpack_by::<1>(maps, bytes, page),
            3 => unpack_by::<2>(maps, bytes, page),
            4 => unpack_by::<3>(maps, bytes, page),
            5 => unpack_by::<4>(maps, bytes, page),
            9 => unpack_by::<8>(maps, bytes, page),
            _ => return false,
        }
        true
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the format says, byte by byte.
    fn reference(bytes: &[u8]) -> PageBytes {
        let mut page = [0x5a; PAGE];
        assert!(unpack_anywhere(bytes, &mut page));
        page
    }

    /// A page of records with a stride, whose fields vary in their lower bytes.
    fn records(seed: u64, stride: usize, width: u32) -> PageBytes {
        let mut x = seed | 1;
        let mut page = [0u8; PAGE];
        for (i, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let base = 0x7f00_1234_0000_0000u64.wrapping_mul(1 + (i % stride) as u64);
            *word = (base | (x >> 40 & ((1 << width) - 1))).to_le_bytes();
        }
        page
    }

    proptest! {
        /// A page that comes back different is data lost.
        #[test]
        fn every_page_that_is_packed_comes_back(seed in any::<u64>(), stride in 1usize..10, width in 0u32..20) {
            if is_supported() {
                let page = records(seed, stride, width);
                let mut out = [0; OUTPUT];
                // SAFETY: it is supported.
                if let Some(n) = unsafe { pack(&page, &mut out) } {
                    prop_assert!(n <= LIMIT);
                    let mut back = [0xee; PAGE];
                    // SAFETY: as above.
                    let unpacked = unsafe { unpack(&out[..n], &mut back) };
                    prop_assert!(unpacked);
                    prop_assert_eq!(back, page);
                    prop_assert_eq!(reference(&out[..n]), page);
                }
            }
        }

        /// Damaged bytes must be refused or decode to something, never overrun.
        #[test]
        fn damaged_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..5000), distance in 0u8..12) {
            if is_supported() {
                let mut bytes = bytes;
                if let Some(first) = bytes.first_mut() {
                    *first = distance;
                }
                let (mut page, mut slowly) = ([0u8; PAGE], [0u8; PAGE]);
                // SAFETY: it is supported.
                let unpacked = unsafe { unpack(&bytes, &mut page) };
                prop_assert_eq!(unpack_anywhere(&bytes, &mut slowly), unpacked);
                if unpacked {
                    prop_assert_eq!(slowly, page);
                }
            }
        }
    }

    #[test]
    fn each_distance_is_found_and_restored() {
        if !is_supported() {
            return;
        }
        for stride in [1usize, 2, 3, 4, 8] {
            let page = records(5, stride, 4);
            let mut out = [0; OUTPUT];
            // SAFETY: it is supported.
            let n = unsafe { pack(&page, &mut out) }.expect("packs");
            let found = usize::from(out[0] - 1);
            assert!(found > 0 && found.is_multiple_of(stride), "stride {stride}: {found}");
            assert!(n < 1200, "stride {stride}: {n}");
            assert_eq!(reference(&out[..n]), page);
        }
    }

    #[test]
    fn noise_is_refused() {
        if is_supported() {
            let mut x = 1u64;
            let page: PageBytes = core::array::from_fn(|_| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (x >> 56) as u8
            });
            // SAFETY: it is supported.
            assert_eq!(unsafe { pack(&page, &mut [0; OUTPUT]) }, None);
        }
    }
}
