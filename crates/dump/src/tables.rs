//! Terrace's tables in a dump: what the anchor says, and what it leads to.

use terrace_live::evict::staging;
use terrace_live::failsafe::core_tables::{Anchor, MAGIC, VERSION};

use crate::image::Image;
use crate::source::Source;
use crate::{Error, PAGE};

/// The most parts of the table of regions, regions in one, and bytes of one that are believed.
const MOST: (u64, u64, u64) = (64, 1 << 20, 1 << 12);
/// The most staging slots.
const MOST_SLOTS: u64 = 1 << 20;
/// One past the highest address of a program.
const TOP: u64 = 1 << 47;

/// A managed region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its number in the table.
    pub id: u32,
    /// First address.
    pub start: u64,
    /// Length in pages.
    pub pages: u32,
    /// Address of its pages' words.
    pub words: u64,
}

/// The spill file, as far as a dump tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillFile {
    /// The process, as it knows itself.
    pub process: u32,
    /// A thread that has the file open.
    pub thread: u32,
    /// The descriptor in that thread.
    pub descriptor: u32,
    /// Its device and inode.
    pub identity: (u64, u64),
}

/// What is in a dump.
#[derive(Clone, Debug)]
pub struct Tables {
    /// The process, as it knows itself.
    pub process: u64,
    /// Whether Terrace had brought everything in, and managed nothing any more.
    pub over: bool,
    /// Whether a fork was under way.
    pub forking: bool,
    /// The regions.
    pub regions: Vec<Region>,
    /// The first staging slot's address.
    pub slots: u64,
    /// The slots' owners.
    pub owners: Vec<u64>,
    /// Where in memory the spill file lies, and how much of it, if it is mapped.
    pub mapped: Option<(u64, u64)>,
    /// The spill file.
    pub spill: Option<SpillFile>,
}

impl Tables {
    /// Finds them.
    pub fn find<S: Source + ?Sized>(image: &Image<'_, S>) -> Result<Self, Error> {
        let anchor = find_anchor(image)?;
        if anchor.version != VERSION {
            return Err(Error::Version { found: anchor.version, known: VERSION });
        }
        if anchor.page != PAGE {
            return Err(Error::damaged(format!("pages of {} bytes", anchor.page)));
        }
        let need32 = |what: &str, at| image.word32(at)?.ok_or_else(|| not_there(what));
        let over = need32("how far managing had come", anchor.over)? != 0;
        let forking = need32("whether a fork was under way", anchor.frozen)? != 0;
        Ok(Self {
            process: anchor.pid,
            over,
            forking,
            regions: read_regions(image, &anchor)?,
            slots: anchor.slots,
            owners: read_owners(image, &anchor)?,
            mapped: read_mapped(image, &anchor)?,
            spill: spill_of(&anchor),
        })
    }

    /// The address of a staging slot, if there is such a one.
    pub fn slot(&self, slot: u32) -> Option<u64> {
        let there = (slot as usize) < self.owners.len();
        there.then(|| self.slots.checked_add(u64::from(slot) * PAGE)).flatten()
    }

    /// The slot that a page has been moved to, if its word does not say so yet.
    pub fn slot_of(&self, region: u32, page: u32) -> Option<u32> {
        let owner = staging::owner(region, page);
        self.owners.iter().position(|&other| other == owner).map(|slot| slot as u32)
    }
}

fn not_there(what: &str) -> Error {
    Error::damaged(format!("{what} is not in the dump"))
}

/// Looks at the first words of each segment.
fn find_anchor<S: Source + ?Sized>(image: &Image<'_, S>) -> Result<Anchor, Error> {
    const BYTES: usize = (MAGIC.len() + Anchor::WORDS) * 8;
    let mut found = None;
    for segment in image.segments().iter().filter(|segment| segment.stored >= BYTES as u64) {
        let mut bytes = [0; BYTES];
        if !image.read(segment.start, &mut bytes[..16])? || bytes[..16] != magic() {
            continue;
        }
        image.read(segment.start, &mut bytes)?;
        let words = bytes.as_chunks::<8>().0;
        let word = |i: usize| u64::from_le_bytes(words[MAGIC.len() + i]);
        if found.replace(Anchor::from_words(core::array::from_fn(word))).is_some() {
            return Err(Error::damaged("there are two of them"));
        }
    }
    found.ok_or(Error::NoTables)
}

fn magic() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&MAGIC[0].to_le_bytes());
    bytes[8..].copy_from_slice(&MAGIC[1].to_le_bytes());
    bytes
}

fn read_regions<S: Source + ?Sized>(
    image: &Image<'_, S>,
    anchor: &Anchor,
) -> Result<Vec<Region>, Error> {
    let (count, len, size) = (anchor.segment_count, anchor.segment_len, anchor.region_size);
    let fits = |at: u64, bytes: u64| at.checked_add(bytes).is_some_and(|end| end <= size);
    if count > MOST.0
        || len == 0
        || len > MOST.1
        || size > MOST.2
        || !fits(anchor.region_start, 8)
        || !fits(anchor.region_pages, 4)
        || !fits(anchor.region_words, 8)
    {
        return Err(Error::damaged("the table of regions has no sensible shape"));
    }
    let used = image.word32(anchor.used)?.ok_or_else(|| not_there("the number of regions"))?;
    if u64::from(used) > count * len {
        return Err(Error::damaged(format!("{used} regions in a table for {}", count * len)));
    }
    let mut regions = Vec::new();
    let mut part = vec![0; (len * size).min(u64::from(used) * size) as usize];
    for first in (0..u64::from(used)).step_by(len as usize) {
        let at = anchor.segments.checked_add(first / len * 8);
        let at = at.map(|at| image.word64(at)).transpose()?.flatten();
        let bytes = &mut part[..((u64::from(used) - first).min(len) * size) as usize];
        if !at.map(|at| image.read(at, bytes)).transpose()?.unwrap_or(false) {
            return Err(not_there("a part of the table of regions"));
        }
        for (i, entry) in bytes.chunks_exact(size as usize).enumerate() {
            let region = Region {
                id: first as u32 + i as u32,
                start: word(entry, anchor.region_start),
                pages: word(entry, anchor.region_pages) as u32,
                words: word(entry, anchor.region_words),
            };
            if region.pages != 0 {
                check(&region)?;
                regions.push(region);
            }
        }
    }
    // Each region has words of its own: so they are not longer than what was dumped, however
    // often a damaged table names them.
    let words: u64 = regions.iter().map(|region| u64::from(region.pages) * 8).sum();
    if words > image.segments().iter().map(|segment| segment.stored).sum() {
        return Err(Error::damaged("its regions have more pages than it has room for"));
    }
    Ok(regions)
}

/// Up to eight bytes of an entry, as a number.
fn word(entry: &[u8], at: u64) -> u64 {
    let mut bytes = [0; 8];
    let from = &entry[at as usize..entry.len().min(at as usize + 8)];
    bytes[..from.len()].copy_from_slice(from);
    u64::from_le_bytes(bytes)
}

fn check(region: &Region) -> Result<(), Error> {
    let end = region.start.checked_add(u64::from(region.pages) * PAGE);
    let sensible = region.start.is_multiple_of(PAGE) && end.is_some_and(|end| end <= TOP);
    if sensible && region.words.is_multiple_of(8) && region.words < TOP {
        return Ok(());
    }
    let (id, start) = (region.id, region.start);
    Err(Error::damaged(format!("region {id} begins at {start:#x} and has {} pages", region.pages)))
}

fn read_owners<S: Source + ?Sized>(
    image: &Image<'_, S>,
    anchor: &Anchor,
) -> Result<Vec<u64>, Error> {
    if anchor.slot_count > MOST_SLOTS {
        return Err(Error::damaged(format!("{} staging slots", anchor.slot_count)));
    }
    let mut bytes = vec![0; anchor.slot_count as usize * 8];
    if !image.read(anchor.owners, &mut bytes)? {
        return Err(not_there("who owns the staging slots"));
    }
    Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

fn read_mapped<S: Source + ?Sized>(
    image: &Image<'_, S>,
    anchor: &Anchor,
) -> Result<Option<(u64, u64)>, Error> {
    let mut open = [0];
    if !image.read(anchor.mapped, &mut open)? {
        return Err(not_there("whether the spill file is mapped"));
    }
    if open[0] == 0 {
        return Ok(None);
    }
    let at = image.word64(anchor.mapped_at)?;
    let len = image.word64(anchor.mapped_len)?;
    Ok(at.zip(len))
}

fn spill_of(anchor: &Anchor) -> Option<SpillFile> {
    Some(SpillFile {
        process: u32::try_from(anchor.pid).ok()?,
        thread: u32::try_from(anchor.spill_thread).ok()?,
        descriptor: u32::try_from(anchor.spill_fd).ok()?,
        identity: (anchor.spill_device, anchor.spill_inode),
    })
}
