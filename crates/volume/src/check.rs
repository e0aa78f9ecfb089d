//! What is wrong with a volume: damage is named entry by entry, and nothing is changed here.

use core::fmt;

use crate::entry::{Block, Content, Entry};
use crate::error::{PART, Result, VolumeError};
use crate::free::Free;
use crate::pm::Pm;
use crate::superblock::Superblock;

/// An entry of the map that no correct volume has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The word means nothing.
    Malformed {
        /// The sector.
        lba: u64,
        /// Its entry.
        entry: Entry,
    },
    /// It names a block that the volume does not have.
    OutOfRange {
        /// The sector.
        lba: u64,
        /// The block.
        block: Block,
    },
    /// It names a block that an entry before it names, too. Which of the two sectors the block
    /// belongs to cannot be told, so both are unreadable.
    Duplicate {
        /// The sector.
        lba: u64,
        /// The first sector with the same block.
        other: u64,
        /// The block.
        block: Block,
    },
}

impl Damage {
    /// The sectors whose content it makes unknown.
    pub fn sectors(&self) -> impl Iterator<Item = u64> {
        let (lba, other) = match *self {
            Self::Malformed { lba, .. } | Self::OutOfRange { lba, .. } => (lba, None),
            Self::Duplicate { lba, other, .. } => (lba, Some(other)),
        };
        std::iter::once(lba).chain(other)
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { lba, entry } => {
                write!(f, "sector {lba}: its entry {entry:?} means nothing")
            }
            Self::OutOfRange { lba, block } => {
                write!(f, "sector {lba}: block {} does not exist", block.0)
            }
            Self::Duplicate { lba, other, block } => {
                write!(f, "sectors {other} and {lba}: both are in block {}", block.0)
            }
        }
    }
}

/// What the sectors of a volume hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sectors with data.
    pub written: u64,
    /// Sectors that were written with zeros or trimmed.
    pub zero: u64,
    /// Sectors that were never written.
    pub unwritten: u64,
    /// Sectors that a repair declared lost.
    pub lost: u64,
}

/// What the map says.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) usage: Usage,
    pub(crate) damage: Vec<Damage>,
    pub(crate) free: Free,
}

/// Entries that are read at a time.
const CHUNK: usize = 8192;

/// Calls a function with each sector's entry.
pub(crate) fn entries(
    pm: &impl Pm,
    superblock: &Superblock,
    mut each: impl FnMut(u64, Entry),
) -> Result {
    let mut buffer = vec![0; CHUNK * 8];
    let mut lba = 0;
    while lba < superblock.sectors {
        let count = (superblock.sectors - lba).min(CHUNK as u64) as usize;
        let bytes = &mut buffer[..count * 8];
        pm.read(superblock.entry_at(lba), bytes)?;
        for chunk in bytes.chunks_exact(8) {
            let word = chunk.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            each(lba, Entry(word));
            lba += 1;
        }
    }
    Ok(())
}

/// Reads the whole map.
pub(crate) fn scan(
    pm: &impl Pm,
    superblock: &Superblock,
    mut each: impl FnMut(Entry),
) -> Result<Scan> {
    let mut usage = Usage::default();
    let mut damage = Vec::new();
    let mut free = Free::new(superblock.blocks);
    let mut twice = Vec::new();
    entries(pm, superblock, |lba, entry| {
        match entry.content() {
            None => damage.push(Damage::Malformed { lba, entry }),
            Some(Content::Unwritten) => usage.unwritten += 1,
            Some(Content::Zero) => usage.zero += 1,
            Some(Content::Lost) => usage.lost += 1,
            Some(Content::In(block)) if block.0 >= superblock.blocks => {
                damage.push(Damage::OutOfRange { lba, block });
            }
            Some(Content::In(block)) => {
                usage.written += 1;
                if !free.mark(block) {
                    twice.push((block, lba));
                }
            }
        }
        each(entry);
    })?;
    if !twice.is_empty() {
        // Who had them first is looked up only where somebody had.
        twice.sort_unstable_by_key(|(block, lba)| (block.0, *lba));
        let mut first = std::collections::HashMap::new();
        entries(pm, superblock, |lba, entry| {
            if let Some(block) = entry.block()
                && twice.binary_search_by_key(&block.0, |(block, _)| block.0).is_ok()
            {
                first.entry(block).or_insert(lba);
            }
        })?;
        damage.extend(twice.iter().map(|&(block, lba)| {
            let other = first.get(&block).copied().unwrap_or(lba);
            Damage::Duplicate { lba, other, block }
        }));
    }
    Ok(Scan { usage, damage, free })
}

/// The superblocks of a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblocks {
    /// The one that counts.
    pub current: Superblock,
    /// What is wrong with the first one, if something is.
    pub first: Option<String>,
    /// What is wrong with the last one, if something is.
    pub last: Option<String>,
}

impl Superblocks {
    /// Reads both, and chooses. The one with the higher generation counts: the other is from
    /// before a change that was interrupted.
    pub fn read(pm: &impl Pm) -> Result<Self> {
        let size = pm.size();
        let at = |at: u64| -> Result<std::result::Result<Superblock, String>> {
            let mut bytes = vec![0; PART.0 as usize];
            if at + PART.0 > size {
                return Ok(Err("the image ends before it".into()));
            }
            pm.read(at, &mut bytes)?;
            Ok(Superblock::decode(&bytes))
        };
        let first = at(0)?;
        // At the end of the medium; or where the first one says, if the medium has grown since.
        let end = at((size / PART.0 * PART.0).saturating_sub(PART.0))?;
        let last = match (&first, end) {
            (_, Ok(end)) if size >= PART.0 * 2 => Ok(end),
            (Ok(first), _) if first.total <= size => at(first.last())?,
            (_, end) => end,
        };
        let (current, mut first_wrong, mut last_wrong) = match (&first, &last) {
            (Ok(a), Ok(b)) if a.uuid != b.uuid => {
                return Err(VolumeError::ForeignUuid { first: a.uuid, last: b.uuid });
            }
            (Ok(a), Ok(b)) if b.generation > a.generation => (*b, None, None),
            (Ok(a), Ok(_)) => (*a, None, None),
            (Ok(a), Err(wrong)) => (*a, None, Some(wrong.clone())),
            (Err(wrong), Ok(b)) => (*b, Some(wrong.clone()), None),
            (Err(first), Err(last)) => {
                let (first, last) = (first.clone(), last.clone());
                return Err(VolumeError::NoSuperblock { first, last });
            }
        };
        if current.total > size {
            return Err(VolumeError::Truncated { expected: current.total, found: size });
        }
        let stale = |read: &std::result::Result<Superblock, String>| {
            let old = read.as_ref().ok().filter(|read| **read != current)?;
            Some(format!("generation {} instead of {}", old.generation, current.generation))
        };
        first_wrong = first_wrong.or_else(|| stale(&first));
        last_wrong = last_wrong.or_else(|| stale(&last));
        if last_wrong.is_none() && at(current.last())? != Ok(current) {
            last_wrong = Some("not where the volume ends".into());
        }
        Ok(Self { current, first: first_wrong, last: last_wrong })
    }

    /// Whether both say the same.
    pub fn agree(&self) -> bool {
        self.first.is_none() && self.last.is_none()
    }
}

/// What was found in an image.
#[derive(Debug)]
pub struct Report {
    /// Its superblocks.
    pub superblocks: Superblocks,
    /// What the sectors hold.
    pub usage: Usage,
    /// Blocks that hold no sector.
    pub free: u64,
    /// Entries that no correct volume has.
    pub damage: Vec<Damage>,
}

impl Report {
    /// Looks at a medium, and changes nothing.
    pub fn of(pm: &impl Pm) -> Result<Self> {
        let superblocks = Superblocks::read(pm)?;
        let scan = scan(pm, &superblocks.current, |_| ())?;
        let (usage, free, damage) = (scan.usage, scan.free.count(), scan.damage);
        Ok(Self { superblocks, usage, free, damage })
    }

    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.superblocks.agree() && self.damage.is_empty()
    }
}
