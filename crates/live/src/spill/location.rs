//! Where a blob lies in the spill file, in the 60 bits that a page's word has for it.

use crate::sys::PAGE;

/// Records begin at multiples of this (bytes): small enough to waste little,
/// large enough that a word can name 1 PiB.
pub const UNIT: usize = 16;
/// In front of a record's bytes: its checksum.
pub const HEADER: usize = 4;
/// The longest blob: a page of LZ4's and its first byte.
pub const LONGEST: usize = PAGE + 1;

const LEN_BITS: u32 = 13;

/// A record's place, length and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location(u64);

impl Location {
    /// A record at a byte offset that is a multiple of [`UNIT`], with so many
    /// bytes of a page that is `raw` or compressed.
    pub const fn new(at: u64, len: usize, raw: bool) -> Self {
        debug_assert!(at.is_multiple_of(UNIT as u64) && len <= LONGEST);
        Self((at / UNIT as u64) << (LEN_BITS + 1) | (len as u64) << 1 | raw as u64)
    }
    /// What [`Location::bits`] gave.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
    /// The location as a number below 2^60.
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// Where the record begins in the file, bytes.
    pub const fn at(self) -> u64 {
        (self.0 >> (LEN_BITS + 1)) * UNIT as u64
    }
    /// Bytes of the blob.
    pub const fn len(self) -> usize {
        (self.0 >> 1) as usize & ((1 << LEN_BITS) - 1)
    }
    /// Whether the blob is empty; none is.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
    /// Whether the blob is a page as it is.
    pub const fn is_raw(self) -> bool {
        self.0 & 1 != 0
    }
    /// Bytes of the file that the record takes.
    pub const fn extent(self) -> usize {
        extent(self.len())
    }
}

/// Bytes of the file that a blob of that length takes.
pub const fn extent(len: usize) -> usize {
    (HEADER + len).next_multiple_of(UNIT)
}

/// A record's checksum, which depends on its place, too: bytes of another time or
/// place are never taken for the ones that were asked for. Multiply and fold, as
/// wyhash does; it has to notice accidents, not attacks.
pub fn checksum(location: Location, bytes: &[u8]) -> u32 {
    const KEY: u64 = 0xa076_1d64_78bd_642f;
    let fold = |x: u64| {
        let product = u128::from(x) * u128::from(KEY ^ 0xe703_7ed1_a0b4_28db);
        product as u64 ^ (product >> 64) as u64
    };
    let mut hash = fold(location.bits() ^ KEY);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        hash = fold(hash ^ u64::from_le_bytes(*word)).wrapping_add(KEY);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    hash = fold(hash ^ u64::from_le_bytes(last));
    (hash ^ hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A word that named another place would give a page another one's content.
        #[test]
        fn a_location_says_what_was_put_in(unit in 0..1u64 << 46, len in 1..=LONGEST, raw: bool) {
            let location = Location::new(unit * UNIT as u64, len, raw);
            prop_assert!(location.bits() < 1 << 60);
            let again = Location::from_bits(location.bits());
            prop_assert_eq!(again.at(), unit * UNIT as u64);
            prop_assert_eq!((again.len(), again.is_raw()), (len, raw));
            prop_assert!(again.extent() >= HEADER + len && again.extent().is_multiple_of(UNIT));
        }

        /// What this misses is given to the program.
        #[test]
        fn a_checksum_notices_every_flipped_bit_and_every_other_place(
            mut bytes in prop::collection::vec(any::<u8>(), 1..200), bit: prop::sample::Index, unit in 1..1000u64,
        ) {
            let location = Location::new(unit * UNIT as u64, bytes.len(), false);
            let elsewhere = Location::new((unit - 1) * UNIT as u64, bytes.len(), false);
            let sum = checksum(location, &bytes);
            prop_assert_ne!(sum, checksum(elsewhere, &bytes));
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(sum, checksum(location, &bytes));
        }
    }
}
