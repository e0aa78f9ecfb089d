//! SSP: shadow sub-paging (Ni et al., MICRO 2019, "SSP: Eliminating redundant
//! writes in failure-atomic NVRAMs via shadow sub-paging"), in the form that
//! Kindle evaluates: whole processes, made consistent at intervals.
//!
//! A page has two frames. For each of its lines a bit of `current` says in
//! which frame the running process has it; the first store to a line in an
//! interval moves it to the other frame and sets its bit in `updated`, so what
//! the last checkpoint needs is never overwritten. The TLB holds the second
//! frame and both bitmaps of the pages that it translates; what it gives up
//! goes to the page's entry in NVM, and comes back from there. At the end of an
//! interval lines that were updated are written back, and the bitmaps become
//! the pages' `committed` ones, all together, through a journal (which Kindle
//! lacks: [`Fault::NoJournal`]). A thread in the background consolidates pages
//! that the TLB does not hold: lines go home to the first frame, and the second
//! is given back.
//!
//! | word of an entry | content |
//! |---|---|
//! | 0 | the second frame, plus one |
//! | 1 | `current`, when the TLB does not hold the page |
//! | 2 | `updated`, likewise |
//! | 3 | whether the TLB gave the page up (`evicted`) |
//! | 4 | `committed`: what a failure leads back to |

use std::collections::BTreeSet;

use super::{Form, Rebuild, Scheme};
use crate::fault::Fault;
use crate::lru::Lru;
use crate::nvm::{Frame, Log, LogRecord, Nvm, layout};
use crate::pmem::{LINE, Persist};
use crate::table::frame_of;

/// Parameters of the hardware and of its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SspConfig {
    /// Translations of the TLB, each with a second frame and two bitmaps.
    pub tlb_entries: usize,
    /// What an interval's end writes back.
    pub flush: FlushScope,
}

/// What is written back at the end of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushScope {
    /// Lines that were updated.
    Updated,
    /// Every line of every page, as Kindle's kernel does.
    Everything,
    /// As often as that, but always the line of a pointer on the kernel's
    /// stack: what Kindle's kernel does as it was shipped.
    StackSlot,
}

impl FlushScope {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Updated, Self::Everything, Self::StackSlot];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Updated => "updated",
            Self::Everything => "everything",
            Self::StackSlot => "stack-slot",
        }
    }
}

impl SspConfig {
    /// Kindle's TLB, and our flushes.
    pub const KINDLE: Self = Self { tlb_entries: 64, flush: FlushScope::Updated };
}

/// What SSP did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SspCounts {
    /// Pages that the TLB did not hold.
    pub tlb_misses: u64,
    /// Pages that it gave up.
    pub tlb_evictions: u64,
    /// First stores to a line in an interval.
    pub lines_moved: u64,
    /// Pages whose bitmap was committed.
    pub pages_committed: u64,
    /// Pages that were consolidated.
    pub pages_merged: u64,
    /// Lines that were copied for that.
    pub lines_merged: u64,
}

/// A page that the TLB holds.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    frame: u64,
    shadow: u64,
    current: u64,
    updated: u64,
}

/// The scheme's volatile state.
#[derive(Debug)]
pub struct Ssp {
    config: SspConfig,
    tables: Rebuild,
    /// The TLB, and which frame's page stands in each of its places.
    tlb: Vec<Held>,
    places: Lru,
    /// Frames with a line that was updated in this interval.
    updated: BTreeSet<u64>,
    /// Frames that have a second one.
    shadowed: BTreeSet<u64>,
    /// All first frames: what [`FlushScope::Everything`] goes over.
    pages: BTreeSet<u64>,
    log: Log,
    counts: SspCounts,
}

/// The words of an entry.
const SHADOW: u64 = 0;
const CURRENT: u64 = 8;
const UPDATED: u64 = 16;
const EVICTED: u64 = 24;
const COMMITTED: u64 = 32;

fn entry_of(frame: u64) -> u64 {
    layout::SHADOWS + frame * LINE
}

impl Ssp {
    /// A scheme for a memory that is new or is to be recovered.
    pub fn new(config: SspConfig) -> Self {
        Self {
            config,
            tables: Rebuild::new(Form::Indexed),
            tlb: vec![Held::default(); config.tlb_entries.max(1)],
            places: Lru::new(config.tlb_entries),
            updated: BTreeSet::new(),
            shadowed: BTreeSet::new(),
            pages: BTreeSet::new(),
            log: Log::new(layout::DATA_LOG, layout::DATA_LOG_RECORDS, 1),
            counts: SspCounts::default(),
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> SspCounts {
        self.counts
    }

    /// The TLB's entry of a frame's page: three reads and a write if it has to
    /// be fetched, up to three writes for the one that has to go.
    fn held(&mut self, nvm: &mut Nvm, frame: u64) -> usize {
        match self.places.find(frame) {
            Some(place) => place,
            None => self.fetch(nvm, frame),
        }
    }

    fn fetch(&mut self, nvm: &mut Nvm, frame: u64) -> usize {
        self.counts.tlb_misses += 1;
        let entry = entry_of(frame);
        let held = Held {
            frame,
            shadow: nvm.pmem.load(entry + SHADOW),
            current: nvm.pmem.load(entry + CURRENT),
            updated: nvm.pmem.load(entry + UPDATED),
        };
        nvm.pmem.store(entry + EVICTED, 0);
        let (place, gone) = self.places.enter(frame);
        let gone = gone.map(|_| self.tlb[place]);
        self.tlb[place] = held;
        if let Some(gone) = gone {
            self.counts.tlb_evictions += 1;
            Self::give_up(nvm, &gone);
        }
        place
    }

    /// What the TLB knows of a frame's page, if it holds it.
    fn known(&self, frame: u64) -> Option<&Held> {
        self.places.place(frame).map(|place| &self.tlb[place])
    }

    fn give_up(nvm: &mut Nvm, gone: &Held) {
        let entry = entry_of(gone.frame);
        nvm.pmem.store(entry + CURRENT, gone.current);
        nvm.pmem.store(entry + UPDATED, gone.updated);
        nvm.pmem.store(entry + EVICTED, 1);
    }

    /// Where the running process has a line.
    fn place(held: &Held, offset: u64) -> u64 {
        let line = offset / LINE;
        let frame = if held.current >> line & 1 == 0 { held.frame } else { held.shadow - 1 };
        Frame(frame).address() + offset
    }

    fn forget(&mut self, frame: u64) {
        self.places.remove(frame);
        self.updated.remove(&frame);
        self.shadowed.remove(&frame);
        self.pages.remove(&frame);
    }

    /// Copies the committed lines of a page home and gives its second frame back.
    fn merge(&mut self, nvm: &mut Nvm, frame: u64) -> Persist {
        let entry = entry_of(frame);
        let committed = nvm.pmem.load(entry + COMMITTED);
        let shadow = nvm.pmem.load(entry + SHADOW);
        let mut lines = committed;
        if nvm.pmem.has_fault(Fault::UncommittedOverwrite) {
            lines |= nvm.pmem.load(entry + CURRENT);
        }
        self.counts.pages_merged += 1;
        for line in (0..64).filter(|line| lines >> line & 1 != 0) {
            let (from, to) = (Frame(shadow - 1).address(), Frame(frame).address());
            nvm.pmem.copy_line(from + line * LINE, to + line * LINE);
            nvm.flush_data(to + line * LINE);
            self.counts.lines_merged += 1;
        }
        nvm.pmem.fence()?;
        // One aligned store decides from which frame a failure takes the lines.
        nvm.pmem.store(entry + CURRENT, 0);
        nvm.pmem.persist(entry + COMMITTED, 0)?;
        nvm.pmem.store(entry + SHADOW, 0);
        nvm.flush_metadata(entry);
        self.shadowed.remove(&frame);
        let Nvm { pmem, frames, .. } = nvm;
        frames.release(pmem, Frame(shadow - 1));
        Ok(())
    }

    /// Kindle's flushes, for their cost: every line, or one line as often.
    fn flush_everything(&mut self, nvm: &mut Nvm) {
        for frame in &self.pages {
            let held = self.known(*frame);
            let (shadow, current) = held.map_or_else(
                || (nvm.pmem.peek(entry_of(*frame)), nvm.pmem.peek(entry_of(*frame) + CURRENT)),
                |held| (held.shadow, held.current),
            );
            for line in 0..64 {
                let home = current >> line & 1 == 0;
                let frame = Frame(if home { *frame } else { shadow - 1 });
                match self.config.flush {
                    FlushScope::StackSlot => nvm.pmem.flush_stack_slot(),
                    _ => nvm.pmem.flush(frame.address() + line * LINE),
                }
            }
        }
    }
}

impl Scheme for Ssp {
    fn name(&self) -> &'static str {
        "ssp"
    }

    fn lookup(&mut self, nvm: &mut Nvm, page: u64) -> u64 {
        self.tables.lookup(nvm, page)
    }

    fn set(&mut self, nvm: &mut Nvm, page: u64, entry: u64) -> Persist {
        self.tables.set(nvm, page, entry)
    }

    fn prepare(&mut self, nvm: &mut Nvm, epoch: u64, _: &mut dyn Iterator<Item = u64>) -> Persist {
        self.tables.prepare(nvm, epoch, &mut std::iter::empty())?;
        if self.config.flush != FlushScope::Updated {
            self.flush_everything(nvm);
        }
        // The hardware writes what the TLB knows (Kindle's SYNC register).
        for (_, place) in self.places.all() {
            let held = &mut self.tlb[place];
            if std::mem::take(&mut held.updated) == 0 {
                continue;
            }
            let entry = entry_of(held.frame);
            nvm.pmem.store(entry + CURRENT, held.current);
            nvm.pmem.store(entry + UPDATED, 0);
        }
        if self.log.life() != nvm.log.life() {
            self.log = Log::new(layout::DATA_LOG, layout::DATA_LOG_RECORDS, nvm.log.life());
        }
        self.log.clear();
        for &frame in &self.updated {
            let entry = entry_of(frame);
            nvm.pmem.store(entry + UPDATED, 0);
            let current = nvm.pmem.load(entry + CURRENT);
            // The second frame's number is durable before a commit needs it.
            nvm.flush_metadata(entry);
            if nvm.pmem.has_fault(Fault::NoJournal) {
                nvm.pmem.persist(entry + COMMITTED, current)?;
            } else {
                let record = LogRecord { page: frame, entry: current };
                self.log.append(&mut nvm.pmem, epoch, record);
            }
        }
        nvm.pmem.fence()
    }

    fn committed(&mut self, nvm: &mut Nvm, epoch: u64) -> Persist {
        let early = nvm.pmem.has_fault(Fault::EarlyTruncation);
        if early {
            nvm.set_applied(epoch)?;
        }
        for frame in std::mem::take(&mut self.updated) {
            self.counts.pages_committed += 1;
            let entry = entry_of(frame);
            let current = nvm.pmem.load(entry + CURRENT);
            nvm.pmem.store(entry + COMMITTED, current);
            nvm.flush_metadata(entry);
        }
        nvm.pmem.fence()?;
        if !early {
            nvm.set_applied(epoch)?;
        }
        self.tables.committed(nvm, epoch)
    }

    fn recover(&mut self, nvm: &mut Nvm, epoch: u64) -> Persist {
        self.tables.recover(nvm, epoch)?;
        self.log = Log::new(layout::DATA_LOG, layout::DATA_LOG_RECORDS, nvm.log.life());
        if nvm.applied() < epoch {
            for record in self.log.read(&mut nvm.pmem, epoch) {
                nvm.pmem.store(entry_of(record.page) + COMMITTED, record.entry);
                nvm.flush_metadata(entry_of(record.page));
            }
            nvm.pmem.fence()?;
            nvm.set_applied(epoch)?;
        }
        for (_, mapping) in self.tables.mappings(nvm).0 {
            let frame = frame_of(mapping).0;
            let entry = entry_of(frame);
            let committed = nvm.pmem.load(entry + COMMITTED);
            self.pages.insert(frame);
            if committed == 0 {
                nvm.pmem.store(entry + SHADOW, 0);
            } else {
                self.shadowed.insert(frame);
            }
            nvm.pmem.store(entry + CURRENT, committed);
            nvm.pmem.store(entry + UPDATED, 0);
            nvm.pmem.store(entry + EVICTED, 1);
            nvm.flush_metadata(entry);
        }
        nvm.pmem.fence()
    }

    fn mappings(&mut self, nvm: &mut Nvm) -> (Vec<(u64, u64)>, Vec<Frame>) {
        let (entries, mut frames) = self.tables.mappings(nvm);
        let shadow = |frame: &u64| nvm.pmem.peek(entry_of(*frame) + SHADOW);
        let shadows = self.shadowed.iter().map(shadow).filter(|shadow| *shadow != 0);
        frames.extend(shadows.map(|shadow| Frame(shadow - 1)));
        (entries, frames)
    }

    fn keeps_data(&self) -> bool {
        true
    }

    fn store(
        &mut self,
        nvm: &mut Nvm,
        entry: u64,
        offset: u64,
        value: u64,
    ) -> Persist<Option<u64>> {
        let frame = frame_of(entry).0;
        let held = self.held(nvm, frame);
        let bit = 1 << (offset / LINE);
        if self.tlb[held].updated & bit == 0 {
            if self.tlb[held].shadow == 0 {
                let Nvm { pmem, frames, .. } = nvm;
                let shadow = frames.allocate(pmem).0 + 1;
                pmem.store(entry_of(frame) + SHADOW, shadow);
                self.tlb[held].shadow = shadow;
                self.shadowed.insert(frame);
            }
            let held = &mut self.tlb[held];
            let from = Self::place(held, offset / LINE * LINE);
            held.current ^= bit;
            held.updated |= bit;
            nvm.pmem.retag_line(from, Self::place(held, offset / LINE * LINE));
            // The hardware posts the new bitmap.
            nvm.pmem.store(entry_of(frame) + UPDATED, held.updated);
            self.updated.insert(frame);
            self.counts.lines_moved += 1;
        }
        let address = Self::place(&self.tlb[held], offset);
        nvm.pmem.store_data(address, value);
        Ok((self.config.flush == FlushScope::Updated).then_some(address))
    }

    fn work(&self) -> Vec<(&'static str, u64)> {
        let SspCounts { tlb_misses, tlb_evictions, lines_moved, .. } = self.counts;
        let SspCounts { pages_committed, pages_merged, lines_merged, .. } = self.counts;
        vec![
            ("translations fetched", tlb_misses),
            ("translations given up", tlb_evictions),
            ("lines moved to the other frame", lines_moved),
            ("pages committed", pages_committed),
            ("pages consolidated", pages_merged),
            ("lines copied for that", lines_merged),
        ]
    }

    fn load(&mut self, nvm: &mut Nvm, entry: u64, offset: u64) -> u64 {
        let held = self.held(nvm, frame_of(entry).0);
        let address = Self::place(&self.tlb[held], offset);
        nvm.pmem.load_data(address)
    }

    fn taken(&mut self, nvm: &mut Nvm, frame: Frame) {
        self.pages.insert(frame.0);
        let entry = entry_of(frame.0);
        for word in [SHADOW, CURRENT, UPDATED, EVICTED, COMMITTED] {
            nvm.pmem.store(entry + word, 0);
        }
        nvm.flush_metadata(entry);
    }

    fn released(&mut self, nvm: &mut Nvm, frame: Frame) {
        if self.shadowed.contains(&frame.0) {
            let held = self.known(frame.0);
            let shadow =
                held.map_or_else(|| nvm.pmem.load(entry_of(frame.0) + SHADOW), |held| held.shadow);
            let Nvm { pmem, frames, .. } = nvm;
            frames.release(pmem, Frame(shadow - 1));
        }
        self.forget(frame.0);
    }

    fn background(&mut self, nvm: &mut Nvm) -> Persist {
        let all: Vec<u64> = self.shadowed.iter().copied().collect();
        let careless = nvm.pmem.has_fault(Fault::UncommittedOverwrite);
        for frame in all {
            let idle = self.places.place(frame).is_none();
            if idle && (careless || !self.updated.contains(&frame)) {
                self.merge(nvm, frame)?;
            }
        }
        Ok(())
    }
}
