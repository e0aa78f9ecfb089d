//! The superblock: what a volume is, in 4096 bytes at each of its ends.

use terrace_core::Bytes;
use uuid::Uuid;

use crate::entry::MOST_BLOCKS;
use crate::error::{PART, Result, VolumeError};

/// The first bytes of every superblock.
pub const MAGIC: [u8; 8] = *b"TERRAVOL";
/// The version of the format that this crate reads and writes.
pub const VERSION: u32 = 1;
/// What is wrong with bytes that were never a superblock.
pub(crate) const NO_MAGIC: &str = "not a Terrace volume (the magic bytes are missing)";
/// Blocks that a lane may hold at a time, where there are enough spare ones.
pub(crate) const HELD: u64 = 32;
const CHECKSUM_AT: usize = PART.0 as usize - 4;
static CRC32C: crc::Crc<u32, crc::Table<16>> =
    crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISCSI);

/// Bytes of a sector: the unit that is never torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorSize {
    /// 512 bytes.
    B512,
    /// 4096 bytes.
    B4096,
}

impl SectorSize {
    /// How many bytes it has.
    #[inline]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }

    /// The size with so many bytes, if there is one.
    pub const fn of(bytes: u32) -> Option<Self> {
        match bytes {
            512 => Some(Self::B512),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }
}

/// What a superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Which volume it is.
    pub uuid: Uuid,
    /// Bytes of a sector.
    pub sector: SectorSize,
    /// Sectors that a user sees.
    pub sectors: u64,
    /// Blocks that hold sectors; more than there are sectors, by the spare ones.
    pub blocks: u64,
    /// Where the map begins.
    pub map: u64,
    /// Where the blocks begin.
    pub data: u64,
    /// Bytes from the beginning of the first superblock to the end of the last.
    pub total: u64,
    /// One more with each change of the superblock.
    pub generation: u64,
}

/// An identity for a new volume.
pub fn new_uuid() -> Uuid {
    Uuid::new_v4()
}

/// The identity with so many bytes.
pub fn uuid_of(bytes: [u8; 16]) -> Uuid {
    Uuid::from_bytes(bytes)
}

/// How many spare blocks a volume has if nobody says.
pub fn default_spare(total: Bytes, sector: SectorSize) -> u64 {
    // A thirty-second of small volumes, and no more than 64 threads use at once of large ones.
    (total.0 / u64::from(sector.bytes()) / 32).clamp(16, 2048)
}

fn align_up(bytes: u64) -> u64 {
    bytes.div_ceil(PART.0) * PART.0
}

impl Superblock {
    /// A new volume that fills a medium: as many sectors as fit beside the spare blocks.
    pub fn plan(total: Bytes, sector: SectorSize, spare: u64, uuid: Uuid) -> Result<Self> {
        let given = total.0;
        let total = given / PART.0 * PART.0;
        let size = u64::from(sector.bytes());
        let too_small = || {
            VolumeError::BadGeometry(format!(
                "{given} bytes are too few for a volume with {spare} spare blocks of {size} bytes"
            ))
        };
        if spare < 2 {
            return Err(VolumeError::BadGeometry(
                "a volume needs at least 2 spare blocks: a write goes to one".into(),
            ));
        }
        let inside = total.checked_sub(2 * PART.0).ok_or_else(too_small)?;
        let for_sectors = spare
            .checked_mul(size)
            .and_then(|spare| inside.checked_sub(spare))
            .ok_or_else(too_small)?;
        let mut sectors = for_sectors / (size + 8);
        // The map is rounded up to whole parts.
        while sectors > 0 && align_up(sectors * 8) + (sectors + spare) * size > inside {
            sectors -= 1;
        }
        if sectors == 0 {
            return Err(too_small());
        }
        let data = PART.0 + align_up(sectors * 8);
        let blocks = (total - PART.0 - data) / size;
        let new = Self { uuid, sector, sectors, blocks, map: PART.0, data, total, generation: 1 };
        new.check().map_err(VolumeError::BadGeometry)?;
        Ok(new)
    }

    /// Blocks that hold no sector when all sectors are written.
    pub fn spare(&self) -> u64 {
        self.blocks - self.sectors
    }

    /// Threads that can write at a time, and clients that can be connected, if nobody says: each may
    /// use 32 spare blocks.
    pub fn lanes(&self) -> u64 {
        (self.spare() / HELD).clamp(1, 1024)
    }

    /// Bytes that a user sees.
    pub fn capacity(&self) -> Bytes {
        Bytes(self.sectors * u64::from(self.sector.bytes()))
    }

    /// Where the map ends.
    pub fn map_end(&self) -> u64 {
        self.map + self.sectors * 8
    }

    /// Where the last superblock is.
    pub fn last(&self) -> u64 {
        self.total - PART.0
    }

    /// Where a block is.
    #[inline]
    pub fn block_at(&self, block: u64) -> u64 {
        self.data + block * u64::from(self.sector.bytes())
    }

    /// Where a sector's entry is.
    #[inline]
    pub fn entry_at(&self, lba: u64) -> u64 {
        self.map + lba * 8
    }

    /// Whether the parts lie inside the volume and apart from each other.
    pub fn check(&self) -> std::result::Result<(), String> {
        let size = u64::from(self.sector.bytes());
        let Self { sectors, blocks, map, data, total, .. } = *self;
        let bad = |what: String| Err(what);
        // A write takes one block, and the one that it replaces is free after a fence.
        let least = self.sectors.saturating_add(2);
        if self.sectors == 0 || self.blocks < least || self.blocks > MOST_BLOCKS {
            return bad(format!(
                "impossible numbers of sectors and blocks (`sectors` {sectors}, `blocks` {blocks})"
            ));
        }
        for (name, at) in [("map", map), ("data", data), ("total", total)] {
            if !at.is_multiple_of(PART.0) {
                return bad(format!("`{name}` is {at}, no multiple of 4096"));
            }
        }
        let map_ends = self.sectors.checked_mul(8).and_then(|bytes| self.map.checked_add(bytes));
        let data_ends =
            self.blocks.checked_mul(size).and_then(|bytes| self.data.checked_add(bytes));
        let last = total.saturating_sub(PART.0);
        let parts = [("map", map, map_ends), ("data", data, data_ends)];
        for (name, at, end) in parts {
            if at < PART.0 || end.is_none_or(|end| end > last) {
                let end = end.map_or("beyond 2^64".into(), |end| end.to_string());
                return bad(format!(
                    "`{name}` is outside of the volume (from {at} to {end}, `total` {total})"
                ));
            }
        }
        let (map_end, data_end) = (map_ends.unwrap_or(last), data_ends.unwrap_or(last));
        if self.map < data_end && self.data < map_end {
            return bad(format!(
                "`map` (from {map} to {map_end}) overlaps `data` (from {data} to {data_end})"
            ));
        }
        Ok(())
    }

    /// As it is stored.
    pub fn encode(&self) -> [u8; PART.0 as usize] {
        let mut bytes = [0; PART.0 as usize];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.sector.bytes().to_le_bytes());
        bytes[16..32].copy_from_slice(self.uuid.as_bytes());
        let numbers = [self.sectors, self.blocks, self.map, self.data, self.total, self.generation];
        for (i, number) in numbers.into_iter().enumerate() {
            bytes[32 + i * 8..40 + i * 8].copy_from_slice(&number.to_le_bytes());
        }
        let checksum = CRC32C.checksum(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a superblock; says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, String> {
        if bytes.len() != PART.0 as usize {
            return Err(format!("a superblock has 4096 bytes, not {}", bytes.len()));
        }
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        let long = |at: usize| bytes[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        if bytes[0..8] != MAGIC {
            return Err(NO_MAGIC.into());
        }
        let checksum = CRC32C.checksum(&bytes[..CHECKSUM_AT]);
        if word(CHECKSUM_AT) != checksum {
            let stored = word(CHECKSUM_AT);
            return Err(format!("the checksum is {stored:#010x} and should be {checksum:#010x}"));
        }
        if word(8) != VERSION {
            return Err(format!("version {} of the format, and only {VERSION} is known", word(8)));
        }
        let sector = SectorSize::of(word(12))
            .ok_or_else(|| format!("sectors of {} bytes, neither 512 nor 4096", word(12)))?;
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[16..32]);
        let read = Self {
            uuid: Uuid::from_bytes(uuid),
            sector,
            sectors: long(32),
            blocks: long(40),
            map: long(48),
            data: long(56),
            total: long(64),
            generation: long(72),
        };
        read.check()?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(total: u64, sector: SectorSize) -> Superblock {
        Superblock::plan(Bytes(total), sector, 16, Uuid::from_bytes([7; 16])).unwrap()
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        for sector in [SectorSize::B512, SectorSize::B4096] {
            let written = plan(1 << 20, sector);
            assert_eq!(Superblock::decode(&written.encode()), Ok(written));
        }
    }

    /// A flipped bit must not become another geometry.
    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = plan(1 << 20, SectorSize::B512).encode();
        for bit in (0..100 * 8).chain(4092 * 8..4096 * 8) {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    /// A later version may mean anything by the same bytes.
    #[test]
    fn other_versions_are_refused_by_their_number() {
        let mut bytes = plan(1 << 20, SectorSize::B512).encode();
        bytes[8..12].copy_from_slice(&(VERSION + 1).to_le_bytes());
        let checksum = CRC32C.checksum(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        let refused = Superblock::decode(&bytes).unwrap_err();
        assert!(refused.contains("version 2"), "{refused}");
    }

    #[test]
    fn a_plan_uses_the_medium_and_stays_inside() {
        for total in (100_000..5_000_000).step_by(77_777) {
            for sector in [SectorSize::B512, SectorSize::B4096] {
                let plan = plan(total, sector);
                plan.check().unwrap();
                let unused = plan.last() - plan.block_at(plan.blocks);
                assert!(unused < u64::from(sector.bytes()), "{unused} bytes unused of {total}");
                assert!(plan.spare() < 16 + 10 + 4096 / 8, "{plan:?}");
            }
        }
    }

    /// With one spare block nothing could be written twice.
    #[test]
    fn a_volume_without_two_spare_blocks_is_none() {
        let good = plan(1 << 20, SectorSize::B512);
        for spare in 0..2 {
            let bad = Superblock { blocks: good.sectors + spare, ..good };
            assert!(Superblock::decode(&bad.encode()).is_err(), "{spare} spare blocks");
        }
        let least = Superblock { blocks: good.sectors + 2, ..good };
        assert_eq!(Superblock::decode(&least.encode()), Ok(least));
    }

    #[test]
    fn a_medium_that_is_too_small_is_refused() {
        for total in [0, 4096, 8192, 20_000] {
            assert!(Superblock::plan(Bytes(total), SectorSize::B4096, 16, Uuid::nil()).is_err());
        }
    }
}
