//! Frames of the tiers, the pages in them, and what an access to one takes.
//!
//! A page is placed when it is first used, where the policy says, and lies there until it is
//! freed or moved. Kernel pages are one region of the policy's world
//! ([`ContextId::SHARED`]: events of contexts tell whose they are), the program's pages another.

use terrace_core::{
    Access, BytesPerSecond, ContextId, FaultKind, Frequency, Machine, Nanos, PageNo, PageRange,
    PageRef, PageSize, Plan, Region, RegionId, Sample, SampleSource, Telemetry, TierId,
};
use terrace_policy::Brain;

use super::call::CallError;
use super::counts::{Class, Counts};
use super::mover::Mover;
use super::sockets::{Request as SocketRequest, Sockets};
use crate::exact::hierarchy::{Hierarchy, Level, Request, WriteBacks};

/// The region of the kernel's pages.
pub(super) const KERNEL: RegionId = RegionId(0);
/// The region of the program's pages.
pub(super) const PROGRAM: RegionId = RegionId(1);

/// No page.
pub(super) const NONE: u32 = u32::MAX;
/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// Lines of a page.
const LINES: u64 = 64;
/// Lines of a run of which the host's memory is asked for ahead.
const ASKED_AHEAD: u32 = 8;

/// What a page holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    /// Nothing: it is free.
    #[default]
    Free,
    /// Memory of the program.
    Program,
    /// A page of a file.
    Cache,
    /// Slab objects.
    Slab,
    /// Packets, written by the network device.
    Receive,
    /// Requests, read by the disk.
    Requests,
}

/// It was used since somebody looked.
pub(super) const ACCESSED: u8 = 1;
/// In the page cache's lists: used once since it came there.
pub(super) const REFERENCED: u8 = 2;
/// On the active list.
pub(super) const ACTIVE: u8 = 4;
/// The disk does not have what it holds.
pub(super) const DIRTY: u8 = 8;
/// The disk is writing it.
pub(super) const WRITEBACK: u8 = 16;
/// The disk is reading it.
pub(super) const READING: u8 = 32;
/// The read that finds it starts the next one ahead.
pub(super) const MARKER: u8 = 64;
/// What it holds does not grow with the program's data.
pub(super) const FIXED: u8 = 128;

/// All that is known of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// Number of the object, for pages that are objects.
    pub(super) object: u64,
    /// File of a cached page, socket of a receive buffer, number of a slab.
    pub(super) owner: u32,
    /// Where in its file a cached page is.
    pub(super) index: u32,
    /// Neighbours in a list of the page cache.
    pub(super) prev: u32,
    pub(super) next: u32,
    /// Its frame: which of the machine's.
    frame: u32,
    /// The machine's clock of touched lines when it was last touched, in pages.
    touched: u32,
    /// When it was placed, in units of [`BORN_UNIT`].
    born: u32,
    /// The buffer head of a cached page: slab and place in it.
    pub(super) head: u32,
    pub(super) head_slot: u8,
    /// The next touch is a hint fault.
    pub(super) armed: bool,
    pub(super) tier: TierId,
    pub(super) flags: u8,
    pub(super) role: Role,
}

const _: () = assert!(size_of::<Page>() <= 48, "the documented state per page");

/// Nanoseconds in which ages are kept: 11 hours fit.
const BORN_UNIT: f64 = 10_000.0;

impl Page {
    const FREE: Self = Self {
        object: 0,
        owner: NONE,
        index: 0,
        prev: NONE,
        next: NONE,
        frame: NONE,
        touched: 0,
        born: 0,
        head: NONE,
        head_slot: 0,
        armed: false,
        tier: TierId::FASTEST,
        flags: 0,
        role: Role::Free,
    };

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A page of the kernel or of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageId {
    Kernel(u32),
    Program(u32),
}

impl PageId {
    pub(super) fn named(page: PageRef) -> Self {
        if page.region == KERNEL { Self::Kernel(page.page.0) } else { Self::Program(page.page.0) }
    }

    pub(super) fn name(self) -> PageRef {
        match self {
            Self::Kernel(number) => PageRef { region: KERNEL, page: PageNo(number) },
            Self::Program(number) => PageRef { region: PROGRAM, page: PageNo(number) },
        }
    }
}

/// Lines of a page that are touched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    /// The first.
    pub(super) first: u32,
    /// How many.
    pub(super) count: u32,
    /// Whether they are written.
    pub(super) store: bool,
    /// Whether each is found by the one before, so that no two are fetched at once.
    pub(super) chained: bool,
}

impl Lines {
    /// A run of data that is read or written through.
    pub(super) fn run(first: u32, count: u32, store: bool) -> Self {
        Self { first, count, store, chained: false }
    }

    /// Fields of an object.
    pub(super) fn fields(first: u32, count: u32, store: bool) -> Self {
        Self { first, count, store, chained: true }
    }
}

/// A tier's frames and device.
#[derive(Debug)]
struct TierFrames {
    /// Number of its first frame among the machine's.
    base: u32,
    frames: u32,
    used: u32,
    /// Frames that were never used begin here.
    fresh: u32,
    free: Vec<u32>,
    read_latency: f64,
    write_latency: f64,
    /// Nanoseconds of the device's time for a byte.
    read_time: f64,
    write_time: f64,
    granularity: u64,
    /// When the device has done all that it was asked for.
    idle_at: f64,
}

impl TierFrames {
    fn take(&mut self) -> Option<u32> {
        let frame = self.free.pop().or_else(|| {
            let fresh = self.fresh;
            (fresh < self.frames).then(|| {
                self.fresh += 1;
                self.base + fresh
            })
        })?;
        self.used += 1;
        Some(frame)
    }

    fn give(&mut self, frame: u32) {
        self.used -= 1;
        self.free.push(frame);
    }

    /// The device is busy for so long with a request. It begins where the device is idle, and
    /// not before the thread that is furthest behind (`behind`) asks for anything: a thread that
    /// has waited for the disk within its call is ahead of the others by that, and they do not
    /// wait for what it asks for then.
    fn occupy(&mut self, behind: f64, busy: f64) {
        self.idle_at = self.idle_at.max(behind) + busy;
    }

    /// Time until `lines` that no cache has are there, asked for at `at`. Later requests wait
    /// while the device is busy with these.
    fn fetch(&mut self, behind: f64, at: f64, lines: u32, lines_at_once: f64, store: bool) -> f64 {
        let bytes = (u64::from(lines) * 64).next_multiple_of(self.granularity) as f64;
        // A line that is written is read first, and written back later.
        let busy = bytes * (self.read_time + if store { self.write_time } else { 0.0 });
        let latency = if store { self.write_latency } else { self.read_latency };
        self.occupy(behind, busy);
        let done = (at + latency * (f64::from(lines) / lines_at_once).max(1.0)).max(self.idle_at);
        done - at
    }
}

/// How accesses reach memory.
enum Reach {
    /// By page: one that was touched a short while ago is cached. A while is as many touched
    /// lines as the last level holds.
    /// For what a scale makes smaller, that is an n-th of it.
    Placement { cached_pages: u32, cached_data_pages: u32 },
    /// Line by line, through the caches of a core.
    /// `early`: the first level may be filled before the others know of a miss.
    Caches { hierarchy: Box<Hierarchy>, cores: usize, hit: f64, early: bool },
}

/// All memory of the machine.
pub(super) struct ObjectMemory {
    kernel: Vec<Page>,
    free_numbers: Vec<u32>,
    program: Vec<Page>,
    /// Pages of the program that do not grow with its data: the first.
    fixed: u32,
    tiers: Vec<TierFrames>,
    /// Two sockets in Memory Mode, which tiers 0 and 1 are the memories of.
    pub(super) sockets: Option<Box<Sockets>>,
    reach: Reach,
    /// Lines that were touched so far.
    touched: u64,
    slots: f64,
    /// The clock of the thread that is furthest behind.
    pub(super) behind: f64,
    pub(super) brain: Brain,
    pub(super) telemetry: Telemetry,
    pub(super) plan: Plan,
    pub(super) mover: Mover,
    pub(super) counts: Counts,
    pub(super) clock: Frequency,
}

impl ObjectMemory {
    /// Memory of a machine; `hierarchy` to send accesses through its caches, of so many cores.
    ///
    /// The program has so many pages, of which the first `fixed` do not grow with its data.
    pub(super) fn new(
        machine: &Machine,
        (program, fixed): (u32, u32),
        scale: u64,
        hierarchy: Option<(Hierarchy, usize)>,
        (sockets, streamed): (Option<Sockets>, u32),
        mut brain: Brain,
        mover: Mover,
    ) -> Self {
        let mut base = 0;
        let last = machine.tiers.len() - 1;
        let tiers: Vec<TierFrames> = machine
            .tiers
            .iter()
            .enumerate()
            .map(|(number, file)| {
                let frames = (file.capacity.value.get() / PAGE) as u32;
                // What is streamed through is nobody else's.
                let frames = if number == last { frames - streamed } else { frames };
                let time = |bandwidth: BytesPerSecond| 1e9 / bandwidth.get();
                let tier = TierFrames {
                    base,
                    frames,
                    used: 0,
                    fresh: 0,
                    free: Vec::new(),
                    read_latency: file.read_latency.value.as_f64(),
                    write_latency: file.write_latency.value.as_f64(),
                    read_time: time(file.read_bandwidth.value),
                    write_time: time(file.write_bandwidth.value),
                    granularity: file.granularity.value.get(),
                    idle_at: 0.0,
                };
                base += frames;
                tier
            })
            .collect();
        let mut telemetry = Telemetry { tier_count: tiers.len() as u8, ..Telemetry::default() };
        for (tier, known) in tiers.iter().zip(&mut telemetry.tiers) {
            known.capacity = PageSize::Base.bytes() * u64::from(tier.frames);
            known.free = known.capacity;
            known.addressable = true;
            known.read_latency = Nanos::from_f64(tier.read_latency);
            known.write_latency = Nanos::from_f64(tier.write_latency);
        }
        if sockets.as_ref().is_some_and(|sockets| sockets.at == 1) {
            // The program's memory is bound to the socket that it runs on.
            telemetry.tiers[0].addressable = false;
        }
        let page_size = PageSize::Base;
        brain.alloc(&Region { id: KERNEL, pages: base, page_size, context: ContextId::SHARED });
        if program > 0 {
            let context = ContextId::ANONYMOUS;
            brain.alloc(&Region { id: PROGRAM, pages: program, page_size, context });
        }
        let reach = match hierarchy {
            None => Reach::Placement {
                cached_pages: (machine.cpu.llc.value.get() / PAGE).max(1) as u32,
                cached_data_pages: (machine.cpu.llc.value.get() / scale.max(1) / PAGE).max(1)
                    as u32,
            },
            Some((hierarchy, cores)) => Reach::Caches {
                early: hierarchy.fills_early(),
                hierarchy: Box::new(hierarchy),
                cores,
                hit: machine.cpu.llc_latency.value.as_f64(),
            },
        };
        Self {
            kernel: Vec::new(),
            free_numbers: Vec::new(),
            program: vec![Page::FREE; program as usize],
            fixed,
            tiers,
            sockets: sockets.map(Box::new),
            reach,
            // What was never touched is not cached.
            touched: LINES << 31,
            slots: machine.cpu.miss_slots.value,
            behind: 0.0,
            brain,
            telemetry,
            plan: Plan::new(),
            mover,
            counts: Counts::default(),
            clock: machine.cpu.clock.value,
        }
    }

    pub(super) fn page(&self, number: u32) -> &Page {
        &self.kernel[number as usize]
    }

    pub(super) fn page_mut(&mut self, number: u32) -> &mut Page {
        &mut self.kernel[number as usize]
    }

    /// A page that is placed.
    pub(super) fn placed(&mut self, id: PageId) -> Option<&mut Page> {
        let page = match id {
            PageId::Kernel(number) => self.kernel.get_mut(number as usize),
            PageId::Program(number) => self.program.get_mut(number as usize),
        };
        page.filter(|page| page.role != Role::Free && page.frame != NONE)
    }

    /// Frames of the machine that are not in use.
    pub(super) fn free_frames(&self) -> u32 {
        self.tiers.iter().map(|tier| tier.frames - tier.used).sum()
    }

    /// All frames of the machine.
    pub(super) fn frames(&self) -> u32 {
        self.tiers.iter().map(|tier| tier.frames).sum()
    }

    /// Bytes of the simulator's own memory for pages.
    pub(super) fn heap_bytes(&self) -> usize {
        (self.kernel.capacity() + self.program.capacity()) * size_of::<Page>()
            + self.free_numbers.capacity() * 4
            + self.tiers.iter().map(|tier| tier.free.capacity() * 4).sum::<usize>()
            + self.sockets.as_ref().map_or(0, |sockets| sockets.heap_bytes())
    }

    /// A number for a new kernel page. [`Self::place`] gives it a frame; whoever it belongs to
    /// is told in between, so that the policy knows.
    pub(super) fn reserve(&mut self, role: Role, owner: u32, index: u32) -> u32 {
        let page = Page { owner, index, role, ..Page::FREE };
        if let Some(number) = self.free_numbers.pop() {
            self.kernel[number as usize] = page;
            number
        } else {
            // Doubling would have half of the state lie idle.
            if self.kernel.len() == self.kernel.capacity() {
                self.kernel.reserve_exact(self.kernel.len() / 16 + 64);
            }
            self.kernel.push(page);
            (self.kernel.len() - 1) as u32
        }
    }

    /// Gives a page its frame, where the policy says.
    pub(super) fn place(&mut self, id: PageId, at: f64) -> Result<(), CallError> {
        self.telemetry.now = Nanos::from_f64(at);
        let kind = FaultKind::FirstTouch(Access::Write);
        let tier = self.brain.fault(id.name(), kind, &self.telemetry);
        let frame = self.tiers.get_mut(tier.index()).and_then(TierFrames::take);
        // A policy names a tier that has room, if there is one.
        let frame = frame.ok_or(CallError::OutOfMemory)?;
        self.telemetry.tiers[tier.index()].free -= PageSize::Base.bytes();
        let page = match id {
            PageId::Kernel(number) => &mut self.kernel[number as usize],
            PageId::Program(number) => &mut self.program[number as usize],
        };
        (page.frame, page.tier, page.touched) = (frame, tier, 0);
        page.born = (at / BORN_UNIT) as u32;
        self.counts.placed(Class::of(page.role), tier);
        Ok(())
    }

    /// Frees a kernel page.
    pub(super) fn release(&mut self, number: u32, at: f64) {
        let page = core::mem::replace(&mut self.kernel[number as usize], Page::FREE);
        self.free_numbers.push(number);
        self.freed(PageId::Kernel(number), page, at);
    }

    /// The program gives a page back.
    pub(super) fn release_program(&mut self, number: u32, at: f64) {
        let page = core::mem::replace(&mut self.program[number as usize], Page::FREE);
        if page.role != Role::Free {
            self.freed(PageId::Program(number), page, at);
        }
    }

    fn freed(&mut self, id: PageId, page: Page, at: f64) {
        if page.frame == NONE {
            return;
        }
        let name = id.name();
        self.brain.free(PageRange { region: name.region, start: name.page, count: 1 }, false);
        self.tiers[page.tier.index()].give(page.frame);
        self.telemetry.tiers[page.tier.index()].free += PageSize::Base.bytes();
        let age = (at - f64::from(page.born) * BORN_UNIT).max(0.0);
        self.counts.freed(Class::of(page.role), page.tier, age);
    }

    /// Ages of the pages that are placed, by class, told to the counts.
    pub(super) fn count_living(&mut self, at: f64) {
        self.counts.forget_living();
        for page in self.kernel.iter().chain(&self.program).filter(|page| page.frame != NONE) {
            let age = (at - f64::from(page.born) * BORN_UNIT).max(0.0);
            self.counts.living(Class::of(page.role), age);
        }
    }

    /// The program touches one of its pages; it is placed if it was not. Gives the time that
    /// takes without the fault, and whether there was one.
    pub(super) fn touch_program(
        &mut self,
        number: u32,
        lines: Lines,
        core: usize,
        at: f64,
    ) -> Result<(f64, bool), CallError> {
        let page = self.program.get_mut(number as usize).ok_or(CallError::NoPage(number))?;
        let fresh = page.role == Role::Free;
        if fresh {
            page.role = Role::Program;
            if number < self.fixed {
                page.flags |= FIXED;
            }
            if let Err(error) = self.place(PageId::Program(number), at) {
                self.program[number as usize] = Page::FREE;
                return Err(error);
            }
            // The kernel zeroes it.
            let zeroing = Lines::run(0, LINES as u32, true);
            self.touch(PageId::Program(number), zeroing, core, at);
        }
        let page = &mut self.program[number as usize];
        let hinted = core::mem::take(&mut page.armed);
        if hinted {
            self.telemetry.now = Nanos::from_f64(at);
            let access = if lines.store { Access::Write } else { Access::Read };
            let name = PageId::Program(number).name();
            self.brain.fault(name, FaultKind::Hint(access), &self.telemetry);
        }
        Ok((self.touch(PageId::Program(number), lines, core, at), fresh || hinted))
    }

    /// The program is moved to socket 0, whose caches know nothing of it, and may have memory
    /// there; threads begin to stream through socket 1's.
    pub(super) fn move_to_near_socket(&mut self, at: f64) {
        let Some(sockets) = &mut self.sockets else { return };
        if sockets.at == 1 {
            if let Reach::Placement { cached_pages, .. } = self.reach {
                self.touched += u64::from(cached_pages) * LINES;
            }
            self.telemetry.tiers[0].addressable = true;
        }
        sockets.begin(at);
    }

    /// Pages of the program in a range fault at the next touch. Gives how many were looked at.
    pub(super) fn arm(&mut self, range: PageRange) -> u32 {
        let mut looked = 0;
        for name in range.pages() {
            // The kernel's pages are in no page table that could be changed.
            let PageId::Program(number) = PageId::named(name) else { continue };
            if let Some(page) = self.placed(PageId::Program(number)) {
                page.armed = true;
                looked += 1;
            }
        }
        looked
    }

    /// A page's frame, counted from the beginning of its tier.
    fn frame_in_tier(&self, tier: TierId, frame: u32) -> u32 {
        frame - self.tiers[tier.index()].base
    }

    /// Time to copy a page from one socket's memory to another frame, if there are sockets:
    /// through both caches, and over the link where it is between.
    fn copy_between(&mut self, from: (TierId, u32), to: (TierId, u32), at: f64) -> Option<f64> {
        let frames = [from, to].map(|(tier, frame)| self.frame_in_tier(tier, frame));
        let (slots, behind) = (self.slots, at);
        let sockets = self.sockets.as_mut()?;
        let lines = LINES as u32;
        let request = |home: TierId, frame, store| SocketRequest {
            at_once: slots,
            ..SocketRequest::of(home.index(), frame, 0, lines, store)
        };
        let read = sockets.fetch(request(from.0, frames[0], false), behind, at);
        let written = sockets.fetch(request(to.0, frames[1], true), behind, at);
        Some(read.max(written))
    }

    /// Time that an access to a page takes, beyond what it takes if all caches hit.
    pub(super) fn touch(&mut self, id: PageId, lines: Lines, core: usize, at: f64) -> f64 {
        let page = match id {
            PageId::Kernel(number) => &mut self.kernel[number as usize],
            PageId::Program(number) => &mut self.program[number as usize],
        };
        page.flags |= ACCESSED;
        let tier = page.tier;
        let clock = (self.touched / LINES) as u32;
        let age = clock.wrapping_sub(page.touched);
        page.touched = clock;
        let (frame, class) = (page.frame, Class::of(page.role));
        let fixed = page.flags & FIXED != 0 || matches!(page.role, Role::Receive | Role::Requests);
        self.touched += u64::from(lines.count);
        let behind = self.behind;
        let at_once = if lines.chained { 1.0 } else { self.slots };
        let (missed, time) = match &mut self.reach {
            Reach::Placement { cached_pages, cached_data_pages } => {
                let cached = if fixed { *cached_pages } else { *cached_data_pages };
                let missed = if age < cached { 0 } else { lines.count };
                let time = if missed == 0 {
                    0.0
                } else if let Some(sockets) = &mut self.sockets {
                    let frame = frame - self.tiers[tier.index()].base;
                    let (first, count) = (lines.first % LINES as u32, missed);
                    let of = SocketRequest::of(tier.index(), frame, first, count, lines.store);
                    sockets.fetch(SocketRequest { at_once, ..of }, behind, at)
                } else {
                    self.tiers[tier.index()].fetch(behind, at, missed, at_once, lines.store)
                };
                (missed, time)
            }
            Reach::Caches { hierarchy, cores, hit, early } => {
                let request = if lines.store { Request::Store } else { Request::Load };
                let first = u64::from(frame) * LINES;
                let (mut missed, mut found) = (0, 0u32);
                let core = core % *cores;
                let end = lines.first + lines.count;
                let number = |line: u32| first + u64::from(line) % LINES;
                // A run is known ahead: the host's memory is asked for its sets before they are
                // looked up.
                for line in lines.first + 1..end.min(lines.first + ASKED_AHEAD) {
                    hierarchy.prefetch(core, number(line));
                }
                for line in lines.first..end {
                    if line + ASKED_AHEAD < end {
                        hierarchy.prefetch(core, number(line + ASKED_AHEAD));
                    }
                    if line + 2 < end {
                        hierarchy.prefetch_victim(core, number(line + 2));
                    }
                    let line = number(line);
                    let mut written = WriteBacks::default();
                    let level = if *early {
                        match hierarchy.first_or_fill(core, line, request, true) {
                            None => continue,
                            Some(displaced) => {
                                let written = &mut written;
                                hierarchy.beyond_filled(core, line, request, displaced, written)
                            }
                        }
                    } else {
                        hierarchy.access(core, line, request, &mut written)
                    };
                    match level {
                        Level::Memory => missed += 1,
                        Level::Llc => found += 1,
                        Level::L1 | Level::L2 => {}
                    }
                    for &line in written.lines() {
                        let frame = (line / LINES) as u32;
                        let place = self.tiers.partition_point(|tier| tier.base <= frame) - 1;
                        let tier = &mut self.tiers[place];
                        tier.occupy(behind, 64.0 * tier.write_time);
                    }
                }
                let mut time = f64::from(found) * *hit / at_once;
                if missed > 0 {
                    // What is written back later is counted then.
                    time +=
                        self.tiers[tier.index()].fetch(behind, at + time, missed, at_once, false);
                }
                (missed, time)
            }
        };
        self.counts.referenced(class, tier, lines.count, missed);
        if missed > 0 {
            // Scans look at the program's pages alone, and most of what moves is the kernel's.
            let access = if lines.store { Access::Write } else { Access::Read };
            let (source, weight) = (SampleSource::Exact, u16::try_from(missed).unwrap_or(u16::MAX));
            self.brain.witness(&[Sample { page: id.name(), access, source, weight }]);
        }
        time
    }

    /// Copies a page to another tier, and gives the time that takes a processor which copies a
    /// byte in `copy` nanoseconds. None if the tier has no room.
    pub(super) fn copy(&mut self, id: PageId, to: TierId, at: f64, copy: f64) -> Option<f64> {
        let new = self.tiers.get_mut(to.index())?.take()?;
        let page = match id {
            PageId::Kernel(number) => &mut self.kernel[number as usize],
            PageId::Program(number) => &mut self.program[number as usize],
        };
        let (from, old) = (page.tier, core::mem::replace(&mut page.frame, new));
        (page.tier, page.touched) = (to, 0);
        let class = Class::of(page.role);
        self.tiers[from.index()].give(old);
        self.telemetry.tiers[from.index()].free += PageSize::Base.bytes();
        self.telemetry.tiers[to.index()].free -= PageSize::Base.bytes();
        self.telemetry.migrated += PageSize::Base.bytes();
        self.counts.moved(class, from, to);
        let copied = at + PAGE as f64 * copy;
        if let Some(time) = self.copy_between((from, old), (to, new), at) {
            return Some(time.max(copied - at));
        }
        let read = PAGE as f64 * self.tiers[from.index()].read_time;
        let write = PAGE as f64 * self.tiers[to.index()].write_time;
        let mut done = at + PAGE as f64 * copy;
        for (tier, busy) in [(from, read), (to, write)] {
            let tier = &mut self.tiers[tier.index()];
            tier.idle_at = tier.idle_at.max(at) + busy;
            done = done.max(tier.idle_at);
        }
        Some(done - at)
    }

    /// Exchanges the frames of two pages; as [`Self::copy`].
    pub(super) fn swap(&mut self, up: PageId, down: PageId, at: f64, copy: f64) -> f64 {
        let fast = self.placed(down).map_or(TierId::FASTEST, |page| page.tier);
        let place = |page: &mut Page| (page.frame, page.tier);
        let (Some(a), Some(b)) = (self.placed(up).map(place), self.placed(down).map(place)) else {
            return 0.0;
        };
        let mut classes = [(Class::Program, a.1, fast); 2];
        for (class, id, (frame, tier), from) in [(0, up, b, a.1), (1, down, a, b.1)] {
            if let Some(page) = self.placed(id) {
                (page.frame, page.tier, page.touched) = (frame, tier, 0);
                classes[class] = (Class::of(page.role), from, tier);
            }
        }
        for (class, from, to) in classes {
            self.counts.moved(class, from, to);
        }
        self.telemetry.migrated += PageSize::Base.bytes() * 2;
        let mut done = at + 2.0 * PAGE as f64 * copy;
        if self.sockets.is_some() {
            let (a, b) = ((a.1, a.0), (b.1, b.0));
            let first = self.copy_between(a, b, at).unwrap_or(0.0);
            let second = self.copy_between(b, a, at).unwrap_or(0.0);
            return (first + second).max(done - at);
        }
        for tier in [a.1, b.1] {
            let tier = &mut self.tiers[tier.index()];
            let busy = PAGE as f64 * (tier.read_time + tier.write_time);
            tier.idle_at = tier.idle_at.max(at) + busy;
            done = done.max(tier.idle_at);
        }
        done - at
    }

    /// Checks frames and pages against each other. Visits everything.
    pub(super) fn audit(&self) -> Result<(), String> {
        let mut used = vec![0u32; self.tiers.len()];
        let mut frames = std::collections::BTreeSet::new();
        for page in self.kernel.iter().chain(&self.program).filter(|page| page.frame != NONE) {
            let tier = &self.tiers[page.tier.index()];
            if !(tier.base..tier.base + tier.frames).contains(&page.frame) {
                return Err(format!("frame {} is not of tier {}", page.frame, page.tier.0));
            }
            if !frames.insert(page.frame) {
                return Err(format!("frame {} has two pages", page.frame));
            }
            used[page.tier.index()] += 1;
        }
        for (number, (tier, used)) in self.tiers.iter().zip(used).enumerate() {
            let free = self.telemetry.tiers[number].free.get() / PAGE;
            if tier.used != used || u64::from(tier.frames - used) != free {
                return Err(format!("tier {number} has {used} pages, counted {}", tier.used));
            }
        }
        Ok(())
    }
}
