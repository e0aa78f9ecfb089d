//! A process that persists: its context, its address space, checkpoints, and
//! the way back.

use std::collections::BTreeSet;

use crate::costs::Costs;
use crate::nvm::{Frame, Nvm, layout};
use crate::pmem::{LINE, Persist, Pmem};
use crate::scheme::Scheme;
use crate::table::{PRESENT, WRITABLE, entry_for, frame_of};
use crate::touched::Touched;
use crate::volatile::{IN_DRAM, Volatile};

/// General registers, flags and instruction pointer of a thread.
pub const REGISTERS: usize = 20;
/// Open files whose state is kept.
pub const FILES: usize = 16;

/// A mapped range of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Area {
    /// The first page.
    pub start: u64,
    /// How many.
    pub pages: u64,
    /// Whether stores are allowed.
    pub writable: bool,
    /// Which memory its pages are taken from at their first touch.
    pub home: Home,
}

/// Where an area's pages lie: what `mmap` was told by its flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Home {
    /// In non-volatile memory (Kindle's `MAP_NVM`).
    #[default]
    Nvm,
    /// In DRAM: the area survives a power failure, its pages do not.
    Dram,
}

impl Area {
    /// A writable area in non-volatile memory.
    pub fn nvm(start: u64, pages: u64) -> Self {
        Self { start, pages, writable: true, home: Home::Nvm }
    }

    /// A writable area in DRAM.
    pub fn dram(start: u64, pages: u64) -> Self {
        Self { home: Home::Dram, ..Self::nvm(start, pages) }
    }

    /// Whether another area can be one with this one, which it follows.
    fn goes_on_with(&self, next: &Self) -> bool {
        self.end() == next.start && (self.writable, self.home) == (next.writable, next.home)
    }

    fn end(&self) -> u64 {
        self.start + self.pages
    }
}

/// What a process is, apart from its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Registers of each thread; the stacks are areas.
    pub threads: Vec<[u64; REGISTERS]>,
    /// Areas by start; they do not overlap.
    pub areas: Vec<Area>,
    /// Position of each open file; 0 if it is closed.
    pub files: [u64; FILES],
}

impl Context {
    fn words(&self) -> Vec<u64> {
        let mut words = vec![self.threads.len() as u64];
        words.extend(self.threads.iter().flatten());
        words.push(self.areas.len() as u64);
        for area in &self.areas {
            let flags = u64::from(area.writable) | u64::from(area.home == Home::Dram) << 1;
            words.extend([area.start, area.pages, flags]);
        }
        words.extend(self.files);
        words.push(digest(&words));
        words
    }

    /// Reads a context; `None` if it is not whole.
    fn read(pmem: &mut Pmem, base: u64) -> Option<Self> {
        let mut words = Vec::new();
        let mut next = |words: &mut Vec<u64>| {
            let address = base + words.len() as u64 * 8;
            if address >= base + layout::CONTEXT_BYTES {
                return None;
            }
            words.push(pmem.load(address));
            words.last().copied()
        };
        let mut context = Self::default();
        for _ in 0..next(&mut words)? {
            let mut registers = [0; REGISTERS];
            for register in &mut registers {
                *register = next(&mut words)?;
            }
            context.threads.push(registers);
        }
        for _ in 0..next(&mut words)? {
            let (start, pages) = (next(&mut words)?, next(&mut words)?);
            let flags = next(&mut words)?;
            let home = if flags & 2 == 0 { Home::Nvm } else { Home::Dram };
            context.areas.push(Area { start, pages, writable: flags & 1 == 1, home });
        }
        for file in &mut context.files {
            *file = next(&mut words)?;
        }
        let expected = digest(&words);
        (next(&mut words)? == expected).then_some(context)
    }

    fn area_of(&self, page: u64) -> Option<&Area> {
        let after = self.areas.partition_point(|area| area.start <= page);
        self.areas[..after].last().filter(|area| page < area.end())
    }

    /// Takes a range out of the areas; returns what was there.
    fn carve(&mut self, start: u64, pages: u64) -> Vec<Area> {
        let end = start + pages;
        let mut taken = Vec::new();
        let mut kept = Vec::new();
        for area in self.areas.drain(..) {
            let (from, to) = (area.start.max(start), area.end().min(end));
            if from >= to {
                kept.push(area);
                continue;
            }
            taken.push(Area { start: from, pages: to - from, ..area });
            if area.start < from {
                kept.push(Area { pages: from - area.start, ..area });
            }
            if to < area.end() {
                kept.push(Area { start: to, pages: area.end() - to, ..area });
            }
        }
        kept.sort();
        self.areas = kept;
        taken
    }

    /// Inserts an area where none is, and makes it one with its neighbours
    /// where they are alike, as kernels do.
    fn insert(&mut self, mut area: Area) {
        let mut place = self.areas.partition_point(|other| other.start < area.start);
        if let Some(next) = self.areas.get(place).filter(|next| area.goes_on_with(next)) {
            area.pages += next.pages;
            self.areas.remove(place);
        }
        if place > 0 && self.areas[place - 1].goes_on_with(&area) {
            place -= 1;
            area = Area { pages: self.areas[place].pages + area.pages, ..self.areas[place] };
            self.areas.remove(place);
        }
        self.areas.insert(place, area);
    }
}

fn digest(words: &[u64]) -> u64 {
    words.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| {
        (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
    })
}

/// Why a memory could not be brought back to life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unrecoverable {
    /// The power failed again; what is there now can be recovered in turn.
    PowerFailure(Box<Unfinished>),
    /// The memory was never formatted.
    NotFormatted,
    /// The context of the last complete checkpoint is damaged.
    Context,
}

/// A memory in the middle of its recovery.
#[derive(Debug)]
pub struct Unfinished(pub Pmem);

impl PartialEq for Unfinished {
    fn eq(&self, _: &Self) -> bool {
        false
    }
}
impl Eq for Unfinished {}
impl Clone for Unfinished {
    fn clone(&self) -> Self {
        // Everything volatile is lost anyway.
        Self(self.0.after_failure(&vec![0; self.0.choices().len()]))
    }
}

/// A machine with one process.
#[derive(Debug)]
pub struct System {
    /// Its memory.
    pub nvm: Nvm,
    /// How the mapping survives.
    pub scheme: Box<dyn Scheme>,
    /// The process.
    pub context: Context,
    epoch: u64,
    /// Frames that the last complete checkpoint still needs.
    leaving: Vec<Frame>,
    /// Lines of data that were stored to since then.
    touched: Touched,
    /// Whether pages' content matters, or their cost alone.
    content: bool,
    /// Pages of areas in DRAM.
    volatile: Volatile,
}

impl System {
    /// Formats a memory and starts a process on it.
    pub fn new(pmem: Pmem, frames: u64, scheme: Box<dyn Scheme>) -> Persist<Self> {
        let nvm = Nvm::format(pmem, frames)?;
        Ok(Self::with(nvm, scheme, Context::default(), 0))
    }

    fn with(nvm: Nvm, scheme: Box<dyn Scheme>, context: Context, epoch: u64) -> Self {
        let (leaving, touched) = (Vec::new(), Touched::default());
        let volatile = Volatile::default();
        Self { nvm, scheme, context, epoch, leaving, touched, content: true, volatile }
    }

    /// Pages' content is not kept, its cost is: for measurements of gigabytes.
    #[must_use]
    pub fn without_content(mut self) -> Self {
        self.content = false;
        self
    }

    /// Brings back what a power failure left: the process as it was at the last
    /// complete checkpoint, ready to go on.
    pub fn recover(
        pmem: Pmem,
        frames: u64,
        scheme: Box<dyn Scheme>,
    ) -> Result<Self, Unrecoverable> {
        let mut nvm = Nvm::recover(pmem, frames).ok_or(Unrecoverable::NotFormatted)?;
        let epoch = nvm.epoch();
        let context = if epoch == 0 {
            Some(Context::default())
        } else {
            Context::read(&mut nvm.pmem, layout::CONTEXT[(epoch % 2) as usize])
        };
        let context = context.ok_or(Unrecoverable::Context)?;
        let mut system = Self::with(nvm, scheme, context, epoch);
        match system.restore() {
            Ok(()) => Ok(system),
            Err(_) => Err(Unrecoverable::PowerFailure(Box::new(Unfinished(system.nvm.pmem)))),
        }
    }

    fn restore(&mut self) -> Persist {
        self.scheme.recover(&mut self.nvm, self.epoch)?;
        let (entries, mut used) = self.scheme.mappings(&mut self.nvm);
        used.extend(entries.iter().map(|(_, entry)| frame_of(*entry)));
        let Nvm { pmem, frames, .. } = &mut self.nvm;
        frames.sweep(pmem, &used);
        pmem.fence()?;
        self.nvm.begin_life()
    }

    /// Complete checkpoints.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Maps an area; whatever was there is unmapped first.
    pub fn map(&mut self, area: Area) -> Persist {
        self.unmap(area.start, area.pages)?;
        self.context.insert(area);
        Ok(())
    }

    /// Unmaps a range. Its frames stay until the next checkpoint, for the last
    /// one still needs them.
    pub fn unmap(&mut self, start: u64, pages: u64) -> Persist {
        self.nvm.pmem.spend(|costs| costs.syscall);
        for area in self.context.carve(start, pages) {
            for page in area.start..area.end() {
                self.nvm.pmem.spend(|costs| costs.page);
                if area.home == Home::Dram {
                    self.volatile.remove(page);
                    continue;
                }
                let entry = self.scheme.lookup(&mut self.nvm, page);
                if entry & PRESENT != 0 {
                    self.set(page, 0)?;
                    self.leaving.push(frame_of(entry));
                }
            }
        }
        Ok(())
    }

    /// Allows or forbids stores to a range.
    pub fn protect(&mut self, start: u64, pages: u64, writable: bool) -> Persist {
        self.nvm.pmem.spend(|costs| costs.syscall);
        for area in self.context.carve(start, pages) {
            self.context.insert(Area { writable, ..area });
            for page in area.start..area.end() {
                self.nvm.pmem.spend(|costs| costs.page);
                if area.home == Home::Dram {
                    self.volatile.protect(page, writable);
                    continue;
                }
                let entry = self.scheme.lookup(&mut self.nvm, page);
                if entry & PRESENT != 0 {
                    self.set(page, entry_for(frame_of(entry), writable))?;
                }
            }
        }
        Ok(())
    }

    /// Moves a range to another place with its frames (`mremap`); what was at
    /// the new place is unmapped.
    pub fn relocate(&mut self, start: u64, pages: u64, to: u64) -> Persist {
        if start < to + pages && to < start + pages {
            return Ok(());
        }
        self.unmap(to, pages)?;
        for area in self.context.carve(start, pages) {
            for page in area.start..area.end() {
                self.nvm.pmem.spend(|costs| costs.page);
                if area.home == Home::Dram {
                    self.volatile.relocate(page, page - start + to);
                    continue;
                }
                let entry = self.scheme.lookup(&mut self.nvm, page);
                if entry & PRESENT != 0 {
                    self.set(page, 0)?;
                    self.set(page - start + to, entry)?;
                }
            }
            self.context.insert(Area { start: area.start - start + to, ..area });
        }
        Ok(())
    }

    fn set(&mut self, page: u64, entry: u64) -> Persist {
        if self.nvm.log.is_full() {
            self.checkpoint()?;
        }
        self.scheme.set(&mut self.nvm, page, entry)
    }

    /// Stores a page's first word; see [`System::store_at`].
    pub fn store(&mut self, page: u64, value: u64) -> Persist<bool> {
        self.store_at(page, 0, value)
    }

    /// Stores a word of a page; the first touch faults a frame in. Says whether
    /// it was allowed.
    pub fn store_at(&mut self, page: u64, offset: u64, value: u64) -> Persist<bool> {
        if self.scheme.is_full() {
            self.checkpoint()?;
        }
        let Some(&area) = self.context.area_of(page) else { return Ok(false) };
        if !area.writable {
            return Ok(false);
        }
        let mut entry = self.entry(page);
        if entry & PRESENT == 0 {
            entry = self.fault(page, area)?;
        }
        if self.content {
            self.store_mapped(entry, offset, value)?;
        } else {
            self.nvm.pmem.spend(|costs: &Costs| costs.word);
        }
        Ok(true)
    }

    /// A page's entry for a load or a store; the first touch faults a frame in.
    /// `None` where nothing is mapped.
    pub fn translate(&mut self, page: u64) -> Persist<Option<u64>> {
        let entry = self.entry(page);
        if entry & PRESENT != 0 {
            return Ok(Some(entry));
        }
        let Some(&area) = self.context.area_of(page) else { return Ok(None) };
        self.fault(page, area).map(Some)
    }

    /// A page's entry, whatever memory it is in.
    fn entry(&mut self, page: u64) -> u64 {
        // Areas in DRAM are few; most processes have none.
        if let Some(entry) = self.volatile.get(page) {
            self.nvm.pmem.spend(|costs| costs.word);
            return entry;
        }
        self.scheme.lookup(&mut self.nvm, page)
    }

    /// Stores a word of a page whose entry is known.
    pub fn store_mapped(&mut self, entry: u64, offset: u64, value: u64) -> Persist {
        if entry & IN_DRAM != 0 {
            let address = Volatile::address(entry) + offset;
            if let Some(clock) = self.nvm.pmem.clock_mut() {
                clock.store_dram(address);
            }
            if self.content && self.nvm.pmem.keeps_data() {
                self.volatile.words.insert(address, value);
            }
            return Ok(());
        }
        let line = self.scheme.store(&mut self.nvm, entry, offset, value)?;
        if let Some(address) = line {
            self.touched.insert(address);
        }
        Ok(())
    }

    /// Reads a word of a page whose entry is known.
    pub fn load_mapped(&mut self, entry: u64, offset: u64) -> u64 {
        if entry & IN_DRAM != 0 {
            let address = Volatile::address(entry) + offset;
            if let Some(clock) = self.nvm.pmem.clock_mut() {
                clock.load_dram(address);
            }
            return self.volatile.words.get(&address).copied().unwrap_or(0);
        }
        self.scheme.load(&mut self.nvm, entry, offset)
    }

    fn fault(&mut self, page: u64, area: Area) -> Persist<u64> {
        let Nvm { pmem, frames, .. } = &mut self.nvm;
        pmem.spend(|costs| costs.fault);
        if area.home == Home::Dram {
            let entry = self.volatile.take(page, area.writable);
            if let Some(clock) = pmem.clock_mut() {
                for line in 0..4096 / LINE {
                    clock.store_dram(Volatile::address(entry) + line * LINE);
                }
            }
            return Ok(entry);
        }
        let frame = frames.allocate(pmem);
        if self.content && pmem.keeps_data() {
            pmem.zero_page(frame.address());
        } else {
            pmem.zero_page_unseen(frame.address());
        }
        self.scheme.taken(&mut self.nvm, frame);
        self.nvm.pmem.fence()?;
        let entry = entry_for(frame, area.writable);
        self.set(page, entry)?;
        Ok(entry)
    }

    /// Reads a page's first word; see [`System::load_at`].
    pub fn load(&mut self, page: u64) -> Option<u64> {
        self.load_at(page, 0)
    }

    /// Reads a word of a page; `None` where nothing is mapped.
    pub fn load_at(&mut self, page: u64, offset: u64) -> Option<u64> {
        let entry = self.entry(page);
        (entry & PRESENT != 0).then(|| self.load_mapped(entry, offset))
    }

    /// The scheme's thread in the background gets its turn.
    pub fn background(&mut self) -> Persist {
        self.scheme.background(&mut self.nvm)
    }

    /// A checkpoint: from its commit on, a failure leads back to here.
    pub fn checkpoint(&mut self) -> Persist {
        self.nvm.pmem.spend(|costs| costs.checkpoint);
        for address in self.touched.take() {
            self.nvm.flush_data(address);
        }
        let epoch = self.epoch + 1;
        let base = layout::CONTEXT[(epoch % 2) as usize];
        let words = self.context.words();
        assert!((words.len() as u64) * 8 <= layout::CONTEXT_BYTES, "the context is too large");
        for (i, word) in words.iter().enumerate() {
            self.nvm.pmem.store(base + i as u64 * 8, *word);
        }
        for line in 0..(words.len() as u64 * 8).div_ceil(LINE) {
            self.nvm.flush_metadata(base + line * LINE);
        }
        self.nvm.pmem.fence()?;
        let areas = self.context.areas.clone();
        let durable = areas.iter().filter(|area| area.home == Home::Nvm);
        let mut pages = durable.flat_map(|area| area.start..area.end());
        self.scheme.prepare(&mut self.nvm, epoch, &mut pages)?;
        self.nvm.commit(epoch)?;
        self.epoch = epoch;
        self.scheme.committed(&mut self.nvm, epoch)?;
        for frame in self.leaving.drain(..) {
            self.scheme.released(&mut self.nvm, frame);
            let Nvm { pmem, frames, .. } = &mut self.nvm;
            frames.release(pmem, frame);
        }
        self.nvm.pmem.fence()
    }

    /// Everything that must hold of a system, whatever happened: every mapped
    /// page lies in an area with its rights, every frame is taken and used once.
    pub fn audit(&mut self) -> Result<(), String> {
        let (entries, tables) = self.scheme.mappings(&mut self.nvm);
        let mut used: BTreeSet<Frame> = BTreeSet::new();
        for frame in &tables {
            if !self.nvm.frames.is_used(*frame) {
                return Err(format!("table frame {} is free in the allocator's bitmap", frame.0));
            }
            if !used.insert(*frame) {
                return Err(format!("frame {} holds two tables", frame.0));
            }
        }
        for (page, entry) in entries {
            let frame = frame_of(entry);
            let Some(area) = self.context.area_of(page) else {
                return Err(format!("page {page:#x} is mapped, but lies in no area"));
            };
            if area.home == Home::Dram {
                return Err(format!(
                    "page {page:#x} has a frame that lasts, its area lies in DRAM"
                ));
            }
            if area.writable != (entry & WRITABLE != 0) {
                return Err(format!("page {page:#x} has other rights than its area"));
            }
            if !self.nvm.frames.is_used(frame) {
                return Err(format!(
                    "page {page:#x} has frame {}, which is free in the allocator's bitmap",
                    frame.0
                ));
            }
            if !used.insert(frame) {
                return Err(format!("frame {} is used twice, once by page {page:#x}", frame.0));
            }
        }
        Ok(())
    }
}
