//! Which pages of a dump are absent, and which of them can be brought back.

use std::collections::HashMap;

use serde::Serialize;
use terrace_live::evict::staging::{NOBODY, ORPHAN, owner};
use terrace_live::space::page_state::{BUSY, PageState};

use crate::content::{Contents, From};
use crate::image::{Image, Place, is_zero};
use crate::source::Source;
use crate::tables::{Region, Tables};
use crate::{Error, PAGE};

/// gdb reads a mapping so many bytes at a time, and leaves it at the first that it cannot read.
const DEBUGGER_READS: u64 = 1 << 20;
/// Words of pages that are read at once.
const WORDS: usize = 512;

/// Why a page's content cannot be brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lost {
    /// It was in the spill file, which has no name and is gone, or has something else there now.
    Spilled,
    /// What holds it is not in the dump, or is damaged.
    Damaged,
    /// Its address is not in the dump: it was being moved or unmapped, or a completed dump says so
    /// that it was missing.
    Unmapped,
    /// It was in DRAM; the debugger that made the dump stopped at an absent page before it.
    Debugger,
}

/// Pages side by side that cannot be brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Why.
    pub why: Lost,
}

/// Pages of managed memory, by what the dump has of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pages {
    /// Absent, and brought back from the store.
    pub compressed: u64,
    /// The same of pages that did not compress.
    pub raw: u64,
    /// The same of pages that repeat one word.
    pub same: u64,
    /// On their way out of DRAM, and brought back from there.
    pub staged: u64,
    /// Brought back from the spill file.
    pub spilled: u64,
    /// Absent, and all zeros: the dump is right about them.
    pub zero: u64,
    /// Absent by the tables, and there: they had just come in.
    pub arrived: u64,
    /// Absent, in memory that the dump leaves out (`MADV_DONTDUMP`, or `coredump_filter`).
    pub left_out: u64,
    /// Cannot be brought back.
    pub missing: u64,
}

impl Pages {
    /// Pages that were brought back.
    pub fn restored(&self) -> u64 {
        self.compressed + self.raw + self.same + self.staged + self.spilled
    }

    fn count(&mut self, from: From) {
        let counter = match from {
            From::Compressed(_) => &mut self.compressed,
            From::Raw(_) => &mut self.raw,
            From::Same(_) => &mut self.same,
            From::Staged(_) => &mut self.staged,
            From::Spilled(_) => &mut self.spilled,
        };
        *counter += 1;
    }
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// By what the dump has of them.
    pub pages: Pages,
    /// What cannot be brought back, in the order of addresses.
    pub missing: Vec<Missing>,
    /// Where in the file the pages are that can, in that order, and where their content is.
    pub(crate) absent: Vec<(u64, From)>,
}

/// Looks at every page of managed memory, and tries to bring back each that is absent.
pub fn survey<S: Source + ?Sized>(contents: &Contents<'_, S>) -> Result<Survey, Error> {
    let (image, tables) = (contents.image, contents.tables);
    let mut survey = Survey::default();
    if tables.over {
        return Ok(survey);
    }
    check_apart(tables)?;
    let debugger = Debugger::new(image, tables)?;
    let mut look = Look {
        contents,
        debugger,
        slots: (0..)
            .zip(&tables.owners)
            .filter(|(_, owner)| ![NOBODY, ORPHAN].contains(owner))
            .map(|(slot, &owner)| (owner, slot))
            .collect(),
        survey: &mut survey,
    };
    for region in &tables.regions {
        for_each_word(image, region, |page, word| look.page(region, page, word))?;
    }
    survey.absent.sort_unstable_by_key(|(offset, _)| *offset);
    survey.missing.sort_unstable_by_key(|missing| missing.start);
    if survey.absent.windows(2).any(|pair| pair[0].0 + PAGE > pair[1].0) {
        return Err(Error::damaged("two of its pages are at the same address"));
    }
    survey.missing = merged(&survey.missing);
    Ok(survey)
}

/// Regions' words are apart from each other, so that reading all of them ends.
fn check_apart(tables: &Tables) -> Result<(), Error> {
    let mut words: Vec<_> = tables.regions.iter().map(|r| (r.words, r.pages)).collect();
    words.sort_unstable();
    let overlap = |pair: &[(u64, u32)]| pair[0].0 + u64::from(pair[0].1) * 8 > pair[1].0;
    if words.windows(2).any(overlap) {
        return Err(Error::damaged("two regions share what is known of their pages"));
    }
    Ok(())
}

/// Calls `each` with the number and the word of each page of a region that is not fresh.
fn for_each_word<S: Source + ?Sized>(
    image: &Image<'_, S>,
    region: &Region,
    mut each: impl FnMut(u32, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut first = 0;
    while first < region.pages {
        let count = (region.pages - first).min(WORDS as u32);
        let mut bytes = [0; WORDS * 8];
        let bytes = &mut bytes[..count as usize * 8];
        let at = region.words + u64::from(first) * 8;
        if !image.read(at, bytes)? {
            // The kernel leaves out what nobody has ever written to: all of them are fresh.
            let untouched = image.place(at) == Place::LeftOut
                && image.segment(at).is_some_and(|s| s.stored == 0);
            let Some(segment) = image.segment(at).filter(|_| untouched) else {
                let id = region.id;
                let what = format!("what is known of the pages of region {id} is not in the dump");
                return Err(Error::damaged(what));
            };
            let rest = (segment.end() - at) / 8;
            first =
                u64::from(first).saturating_add(rest.max(1)).min(u64::from(region.pages)) as u32;
            continue;
        }
        if !is_zero(bytes) {
            for (page, word) in (first..).zip(bytes.as_chunks::<8>().0) {
                let word = u64::from_le_bytes(*word);
                if word != PageState::Fresh.word() {
                    each(page, word)?;
                }
            }
        }
        first += count;
    }
    Ok(())
}

/// What is needed to look at one page after the other.
struct Look<'a, 's, S: Source + ?Sized> {
    contents: &'a Contents<'a, S>,
    debugger: Option<Debugger>,
    /// The slots that have an owner.
    slots: HashMap<u64, u32>,
    survey: &'s mut Survey,
}

impl<S: Source + ?Sized> Look<'_, '_, S> {
    fn page(&mut self, region: &Region, page: u32, word: u64) -> Result<(), Error> {
        let address = region.start + u64::from(page) * PAGE;
        let from = match PageState::of(word) {
            PageState::Fresh | PageState::Gone => return Ok(()),
            PageState::Resident => match self.moving(region, page, word) {
                Some(from) => from,
                None => return self.resident(address),
            },
            PageState::Staged(slot) => {
                let Some(at) = self.contents.tables.slot(slot) else {
                    self.lost(address, Lost::Damaged);
                    return Ok(());
                };
                From::Staged(at)
            }
            PageState::Compressed(at) => From::Compressed(at as u64),
            PageState::Raw(at) => From::Raw(at as u64),
            PageState::Same(0) => {
                let zero = self.contents.image.is_zero_page(address)?;
                let pages = &mut self.survey.pages;
                *if zero { &mut pages.zero } else { &mut pages.arrived } += 1;
                return Ok(());
            }
            PageState::Same(at) => From::Same(at as u64),
            PageState::Spilled(location) => From::Spilled(location),
        };
        let offset = match self.contents.image.place(address) {
            Place::Stored(offset) => offset,
            Place::LeftOut => {
                self.survey.pages.left_out += 1;
                return Ok(());
            }
            Place::Unmapped => {
                self.lost(address, Lost::Unmapped);
                return Ok(());
            }
        };
        // What is there is newer than what is held.
        if !self.contents.image.is_zero_page(address)? {
            self.survey.pages.arrived +=
                u64::from(!matches!(PageState::of(word), PageState::Resident));
            return Ok(());
        }
        let mut content = [0; PAGE as usize];
        if let Err(why) = self.contents.read(from, &mut content)? {
            {
                self.lost(address, why);
                return Ok(());
            }
        }
        if let From::Staged(at) = from
            && is_zero(&content)
            && self.debugger.as_ref().is_some_and(|debugger| debugger.gave_up(at))
        {
            {
                self.lost(address, Lost::Debugger);
                return Ok(());
            }
        }
        if is_zero(&content) {
            self.survey.pages.zero += 1;
            return Ok(());
        }
        self.survey.pages.count(from);
        self.survey.absent.push((offset, from));
        Ok(())
    }

    /// Where a page is that is marked resident, and was being moved out.
    fn moving(&self, region: &Region, page: u32, word: u64) -> Option<From> {
        let slot = (word & BUSY != 0).then(|| self.slots.get(&owner(region.id, page)))??;
        self.contents.tables.slot(*slot).map(From::Staged)
    }

    /// A page that was in DRAM.
    fn resident(&mut self, address: u64) -> Result<(), Error> {
        let gave_up = self.debugger.as_ref().is_some_and(|debugger| debugger.gave_up(address));
        if gave_up && self.contents.image.is_zero_page(address)? {
            {
                self.lost(address, Lost::Debugger);
                return Ok(());
            }
        }
        Ok(())
    }

    fn lost(&mut self, address: u64, why: Lost) {
        self.survey.pages.missing += 1;
        let missing = &mut self.survey.missing;
        match missing.last_mut().filter(|last| last.end == address && last.why == why) {
            Some(last) => last.end += PAGE,
            None => missing.push(Missing { start: address, end: address + PAGE, why }),
        }
    }
}

/// Ranges in order, those side by side made one.
fn merged(missing: &[Missing]) -> Vec<Missing> {
    let mut merged: Vec<Missing> = Vec::new();
    for next in missing {
        match merged.last_mut() {
            Some(last) if last.why == next.why && next.start <= last.end => {
                last.end = last.end.max(next.end);
            }
            _ => merged.push(*next),
        }
    }
    merged
}

/// What a debugger left out of its dump: of each mapping all from the first part on that has an
/// absent page in it.
struct Debugger {
    /// Where it gave a segment up, and the segment's end.
    ranges: Vec<(u64, u64)>,
}

impl Debugger {
    /// `None` if no debugger made the dump.
    fn new<S: Source + ?Sized>(
        image: &Image<'_, S>,
        tables: &Tables,
    ) -> Result<Option<Self>, Error> {
        if !image.is_by_debugger() {
            return Ok(None);
        }
        // Of each segment with managed memory the first page that could not be read.
        let mut first: HashMap<u64, u64> = HashMap::new();
        for region in &tables.regions {
            let mut unread = |page: u32| {
                let at = region.start + u64::from(page) * PAGE;
                if let Some(segment) = image.segment(at) {
                    let first = first.entry(segment.start).or_insert(at);
                    *first = at.min(*first);
                }
            };
            let mut next = 0;
            for_each_word(image, region, |page, word| {
                // Those between are fresh.
                if page > next {
                    unread(next);
                }
                next = page + 1;
                if !matches!(PageState::of(word), PageState::Resident | PageState::Gone) {
                    unread(page);
                }
                Ok(())
            })?;
            if next < region.pages {
                unread(next);
            }
        }
        if let Some(segment) = image.segment(tables.slots) {
            first.insert(segment.start, zeros_from(image, segment.start)?.max(tables.slots));
        }
        let mut ranges = Vec::new();
        for (start, first) in first {
            let Some(segment) = image.segment(start) else { continue };
            let from = first - (first - start) % DEBUGGER_READS;
            // Another version may go on behind it.
            if zeros_from(image, start)? <= from {
                ranges.push((from, segment.end()));
            }
        }
        ranges.sort_unstable();
        Ok(Some(Self { ranges }))
    }

    /// Whether it did not read this page.
    fn gave_up(&self, address: u64) -> bool {
        let after = self.ranges.partition_point(|(from, _)| *from <= address);
        self.ranges[..after].last().is_some_and(|(_, end)| address < *end)
    }
}

/// From where on a segment is all zeros, by the parts that a debugger reads.
fn zeros_from<S: Source + ?Sized>(image: &Image<'_, S>, start: u64) -> Result<u64, Error> {
    let Some(segment) = image.segment(start) else { return Ok(start) };
    let mut part = vec![0; DEBUGGER_READS as usize];
    for i in (0..segment.stored.div_ceil(DEBUGGER_READS)).rev() {
        let at = start + i * DEBUGGER_READS;
        let part = &mut part[..(segment.stored_end() - at).min(DEBUGGER_READS) as usize];
        if !image.read(at, part)? || !is_zero(part) {
            return Ok(at + part.len() as u64);
        }
    }
    Ok(start)
}
