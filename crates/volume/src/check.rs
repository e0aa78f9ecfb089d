//! What is wrong with a volume: damage is named entry by entry, and nothing is changed here.

use core::fmt;
use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeMap, BTreeSet};

use crate::entry::{Block, Content, Entry};
use crate::error::{PART, Result, VolumeError};
use crate::free::{Free, Marks};
use crate::pm::Pm;
use crate::superblock::{NO_MAGIC, Superblock};

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
    /// A repair found its block in another entry, too, and was stopped before it gave both up.
    Disputed {
        /// The sector.
        lba: u64,
        /// The block.
        block: Block,
    },
    /// It names a block that another entry names, too. Which of the two sectors the block
    /// belongs to cannot be told, so both are unreadable.
    Duplicate {
        /// The sector.
        lba: u64,
        /// The first sector with the same block; the disputed one, if one is.
        other: u64,
        /// The block.
        block: Block,
    },
}

impl Damage {
    /// The sectors whose content it makes unknown.
    pub fn sectors(&self) -> impl Iterator<Item = u64> {
        let (lba, other) = match *self {
            Self::Malformed { lba, .. }
            | Self::OutOfRange { lba, .. }
            | Self::Disputed { lba, .. } => (lba, None),
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
            Self::Disputed { lba, block } => write!(
                f,
                "sector {lba}: its block {} was another sector's, too, and the repair of that was stopped",
                block.0
            ),
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

/// What is wrong with a superblock that the image has no room for.
const TOO_SHORT: &str = "the image ends before it";

/// Entries that are read at a time: 8 KiB, so that they and the bits of the blocks that they name
/// fit into the smallest cache (32 KiB) of a processor.
const CHUNK: usize = 1024;

/// Entries of a cache line.
const LINE: usize = 8;

/// Calls a function with the entries of up to eight sectors in a row, as they are stored, and the
/// first one's number.
fn lines(pm: &impl Pm, superblock: &Superblock, mut each: impl FnMut(u64, &[[u8; 8]])) -> Result {
    let mut buffer = vec![0; CHUNK * 8];
    let mut lba = 0;
    while lba < superblock.sectors {
        let count = (superblock.sectors - lba).min(CHUNK as u64) as usize;
        let bytes = &mut buffer[..count * 8];
        pm.read(superblock.entry_at(lba), bytes)?;
        for line in bytes.as_chunks::<8>().0.chunks(LINE) {
            // Fetches the next entries meanwhile, one line for each that is looked at: a
            // processor has only about a dozen fetches under way at a time.
            pm.expect_read(superblock.entry_at(lba + CHUNK as u64), 64);
            each(lba, line);
            lba += line.len() as u64;
        }
    }
    Ok(())
}

/// Calls a function with each sector's entry.
pub(crate) fn entries(
    pm: &impl Pm,
    superblock: &Superblock,
    mut each: impl FnMut(u64, Entry),
) -> Result {
    lines(pm, superblock, |first, line| {
        for (lba, stored) in (first..).zip(line) {
            each(lba, Entry::of(*stored));
        }
    })
}

/// What is found in the map beside blocks that one entry names.
#[derive(Default)]
struct Findings {
    usage: Usage,
    damage: Vec<Damage>,
    /// Blocks that more than one entry names.
    twice: BTreeSet<Block>,
    /// Blocks that a repair which was stopped found to be named twice: where the other entry is
    /// left, it names the block alone.
    disputed: BTreeMap<Block, u64>,
}

impl Findings {
    /// Counts an entry that names no block of its own. It is kept out of the loop over all
    /// entries, which has few registers as it is.
    #[cold]
    #[inline(never)]
    fn note(&mut self, lba: u64, entry: Entry, blocks: u64) {
        match entry.content() {
            None => match entry.disputed().filter(|block| block.0 < blocks) {
                Some(block) => {
                    self.disputed.entry(block).or_insert(lba);
                    self.damage.push(Damage::Disputed { lba, block });
                }
                None => self.damage.push(Damage::Malformed { lba, entry }),
            },
            Some(Content::Unwritten) => self.usage.unwritten += 1,
            Some(Content::Zero) => self.usage.zero += 1,
            Some(Content::Lost) => self.usage.lost += 1,
            Some(Content::In(block)) if block.0 >= blocks => {
                self.damage.push(Damage::OutOfRange { lba, block });
            }
            Some(Content::In(block)) => {
                self.usage.written += 1;
                self.twice.insert(block);
            }
        }
    }
}

/// Reads the whole map. `each` is called with the entries of up to eight sectors in a row, as they
/// are stored.
pub(crate) fn scan(
    pm: &impl Pm,
    superblock: &Superblock,
    mut each: impl FnMut(&[[u8; 8]]),
) -> Result<Scan> {
    let mut findings = Findings::default();
    let mut marks = Marks::new(superblock.blocks);
    lines(pm, superblock, |first, line| {
        // Sums of a line stay in registers. To add to one in memory takes about as long as all
        // the rest that is done for an entry, which is why it is done once for a line.
        let (mut written, mut unwritten) = (0, 0);
        for (lba, stored) in (first..).zip(line) {
            let entry = Entry::of(*stored);
            if entry.block().is_some_and(|block| marks.mark(block)) {
                written += 1;
            } else if entry == Entry::UNWRITTEN {
                unwritten += 1;
            } else {
                findings.note(lba, entry, superblock.blocks);
            }
        }
        findings.usage.written += written;
        findings.usage.unwritten += unwritten;
        each(line);
    })?;
    let Findings { usage, mut damage, twice, disputed } = findings;
    if !twice.is_empty() || !disputed.is_empty() {
        // Who had them first is looked up only where somebody had.
        let mut first = disputed.clone();
        entries(pm, superblock, |lba, entry| {
            let Some(block) = entry.block() else { return };
            if !twice.contains(&block) && !disputed.contains_key(&block) {
                return;
            }
            match first.entry(block) {
                Vacant(free) => {
                    free.insert(lba);
                }
                Occupied(taken) => {
                    damage.push(Damage::Duplicate { lba, other: *taken.get(), block });
                }
            }
        })?;
    }
    Ok(Scan { usage, damage, free: marks.rest() })
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
                return Ok(Err(TOO_SHORT.into()));
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
            Some(if old.generation == current.generation {
                format!("generation {} like the other, and something else in it", old.generation)
            } else {
                format!("generation {} instead of {}", old.generation, current.generation)
            })
        };
        first_wrong = first_wrong.or_else(|| stale(&first));
        last_wrong = last_wrong.or_else(|| stale(&last));
        if last_wrong.is_none() && at(current.last())? != Ok(current) {
            last_wrong = Some("not where the volume ends".into());
        }
        Ok(Self { current, first: first_wrong, last: last_wrong })
    }

    /// Whether an error of [`Superblocks::read`] is damage of something that is, or was, a volume.
    pub fn is_damage(error: &VolumeError) -> bool {
        match error {
            VolumeError::NoSuperblock { first, last } => {
                [first, last].iter().any(|wrong| *wrong != NO_MAGIC && *wrong != TOO_SHORT)
            }
            VolumeError::ForeignUuid { .. } | VolumeError::Truncated { .. } => true,
            _ => false,
        }
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
