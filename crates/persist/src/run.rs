//! Whole programs under a scheme, timed: every access of a source through a
//! TLB, page walks, caches and the command timing of a memory file, with a
//! checkpoint at an interval. The schemes are the ones that [`crate::crash`]
//! fails everywhere; only the content of data is not kept.
//!
//! The core is Kindle's: in order, one access at a time (gem5's
//! `TimingSimpleCPU`), so that times are comparable with its figures.

use serde::Serialize;
use terrace_core::{Nanos, Replacement};
use terrace_dram::{Memory, MemoryFile, Picos};
use terrace_sim::SimError;
use terrace_sim::exact::hierarchy::{CacheGeometry, Hierarchy, HierarchyGeometry};
use terrace_sim::exact::{Access, Batch, Source, SpaceEvent};
use terrace_sim::trace::Summary;

use crate::clock::{CacheTimes, Clock};
use crate::costs::Costs;
use crate::lru::Lru;
use crate::pmem::{Pmem, PowerFailure};
use crate::scheme::{Scheme, SchemeKind, Ssp, SspConfig};
use crate::system::{Area, REGISTERS, System};
use crate::wear::{Energy, Wear};

/// Frames of the simulated machine: 2 GiB of non-volatile memory, as Kindle maps.
const FRAMES: u64 = 1 << 19;

/// How a program's state survives.
#[derive(Clone, Copy, Debug)]
pub enum Survival {
    /// Not at all: what others are compared with.
    None,
    /// By a scheme, as it is crashed in the tests.
    Scheme(SchemeKind),
    /// By SSP with other parameters.
    Ssp(SspConfig),
    /// By a scheme that is not one of ours: its name, and how it is made, for each
    /// life anew.
    Other(&'static str, fn() -> Box<dyn Scheme>),
}

impl Survival {
    /// What can be asked for by name.
    pub const ALL: [Self; 6] = [
        Self::None,
        Self::Scheme(SchemeKind::Persistent),
        Self::Scheme(SchemeKind::RebuildList),
        Self::Scheme(SchemeKind::RebuildIndexed),
        Self::Scheme(SchemeKind::Ssp),
        Self::Scheme(SchemeKind::SoftWrap),
    ];

    fn make(self) -> Box<dyn Scheme> {
        match self {
            Self::None => SchemeKind::RebuildIndexed.make(),
            Self::Scheme(kind) => kind.make(),
            Self::Ssp(config) => Box::new(Ssp::new(config)),
            Self::Other(_, make) => make(),
        }
    }

    /// Whether anything survives.
    pub fn is_some(self) -> bool {
        !matches!(self, Self::None)
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Scheme(kind) => kind.name(),
            Self::Ssp(_) => "ssp",
            Self::Other(name, _) => name,
        }
    }
}

/// How to run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// How the program survives.
    pub survival: Survival,
    /// The memory; it needs a part that is not volatile.
    pub memory: MemoryFile,
    /// Time from the end of a checkpoint to the next.
    pub interval: Nanos,
    /// Time between two turns of the scheme's thread in the background.
    pub background: Nanos,
    /// Accesses before anything is measured (initialisation), without
    /// checkpoints.
    pub skip: u64,
    /// A range of addresses (its start and its length in bytes) that is mapped
    /// in DRAM; everything else is in non-volatile memory.
    pub in_dram: Option<(u64, u64)>,
}

impl RunConfig {
    /// Kindle's interval, and its consolidation every millisecond.
    pub fn new(survival: Survival, memory: MemoryFile) -> Self {
        let (interval, background) = (Nanos::millis(10), Nanos::millis(1));
        Self { survival, memory, interval, background, skip: 0, in_dram: None }
    }
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunReport {
    /// How the program survived.
    pub scheme: &'static str,
    /// The program.
    pub workload: String,
    /// The memory.
    pub memory: String,
    /// Accesses that were measured.
    pub accesses: u64,
    /// Simulated time of them, checkpoints included.
    pub time: Nanos,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Time of them.
    pub in_checkpoints: Nanos,
    /// Time of the thread in the background.
    pub in_background: Nanos,
    /// Memory that the program touched.
    pub footprint: terrace_core::Bytes,
    /// Lines read from and written to DRAM.
    pub dram_lines: [u64; 2],
    /// Lines read from and written to non-volatile memory.
    pub nvm_lines: [u64; 2],
    /// What the scheme did.
    pub work: Vec<(&'static str, u64)>,
    /// How often lines were written.
    pub wear: Wear,
    /// Energy of the memories, if the memory file tells.
    pub energy: Option<Energy>,
    /// Simulated time from power-up until the program goes on, after a failure
    /// at its end; `None` if nothing survives.
    pub recovery: Option<Nanos>,
    /// What was read, where the source was a file or a recorder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Summary>,
}

/// Translations of the data TLB: Kindle's.
const TLB: usize = 64;
/// An instruction at 3 GHz (a cycle is 333 ps in gem5): `TimingSimpleCPU`
/// fetches each one from the first-level cache, which takes 2 cycles
/// (`config.ini`), and executes it in one.
const INSTRUCTION: Picos = Picos(3 * 333);

/// Kindle's caches: 32 KiB, 512 KiB, 2 MiB.
fn caches() -> Hierarchy {
    let lru = |bytes: u64, ways: u32| CacheGeometry {
        replacement: Replacement::Lru,
        ..CacheGeometry::lru(bytes, ways)
    };
    Hierarchy::new(&HierarchyGeometry {
        cores: 1,
        l1: lru(32 << 10, 8),
        l1i: None,
        l2: Some(lru(512 << 10, 16)),
        llc: lru(2 << 20, 16),
        inclusion: terrace_core::Inclusion::NonInclusive,
    })
}

/// What they take: tag, data and response cycles of Kindle's `config.ini` (1/2/2,
/// 3/9/9, 5/15/15). Derived: a hit of the first level takes 2 cycles, of the
/// second 1 + 9 + 2, of the third 1 + 3 + 15 + 9 + 2.
///
/// A `clwb` goes through all tags (9 cycles) and over the system's crossbar to
/// the point of coherence and back (3 + 4 + 2 cycles at 1 GHz, gem5's
/// `SystemXBar`), and its answer through the responses (2 + 9 + 15 cycles and 4
/// of the crossbars between caches); the loop around it is eight instructions
/// (assumed).
const CACHE_TIMES: CacheTimes = CacheTimes {
    levels: [Picos(2 * 333), Picos(10 * 333), Picos(18 * 333)],
    clwb: Picos((9 + 26 + 4) * 333 + 9_000 + 8 * INSTRUCTION.0),
};

/// A fully associative TLB.
#[derive(Debug)]
struct Tlb {
    pages: Lru,
    entries: [u64; TLB],
}

impl Tlb {
    fn new() -> Self {
        Self { pages: Lru::new(TLB), entries: [0; TLB] }
    }

    #[inline]
    fn find(&mut self, page: u64) -> Option<u64> {
        self.pages.find(page).map(|place| self.entries[place])
    }

    fn enter(&mut self, page: u64, entry: u64) {
        let (place, _) = self.pages.enter(page);
        self.entries[place] = entry;
    }
}

/// A program on the machine.
struct Runner {
    system: System,
    tlb: Tlb,
    config: RunConfig,
    measuring: bool,
    armed: Picos,
    background: Picos,
    in_checkpoints: Picos,
    in_background: Picos,
}

fn timed(pmem: Pmem, memory: &MemoryFile) -> Pmem {
    let base = memory.nvm_begins().get();
    let clock = Clock::new(Memory::new(memory), base, Costs::KINDLE);
    pmem.timed(clock.with_caches(caches(), CACHE_TIMES))
}

impl Runner {
    fn new(config: &RunConfig) -> Result<Self, PowerFailure> {
        let pmem = timed(Pmem::used().without_data(), &config.memory);
        let system = System::new(pmem, FRAMES, config.survival.make())?;
        Ok(Self {
            system,
            tlb: Tlb::new(),
            config: config.clone(),
            measuring: false,
            armed: Picos::ZERO,
            background: Picos::ZERO,
            in_checkpoints: Picos::ZERO,
            in_background: Picos::ZERO,
        })
    }

    fn now(&self) -> Picos {
        self.system.nvm.pmem.now()
    }

    fn event(&mut self, event: SpaceEvent) -> Result<(), PowerFailure> {
        self.tlb = Tlb::new();
        match event {
            SpaceEvent::Map { len: 0, .. } | SpaceEvent::Unmap { len: 0, .. } => Ok(()),
            SpaceEvent::Map { start, len } => {
                let (first, end) = (start >> 12, (start + len).div_ceil(4096));
                self.system.map(Area { start: first, pages: end - first, ..self.area(first) })
            }
            SpaceEvent::Unmap { start, len } => {
                let (first, end) = (start >> 12, (start + len).div_ceil(4096));
                self.system.unmap(first, end - first)
            }
        }
    }

    /// Instructions that access nothing.
    fn pass(&mut self, instructions: u64) -> Result<(), PowerFailure> {
        if let Some(clock) = self.system.nvm.pmem.clock_mut() {
            clock.pass(Picos(INSTRUCTION.0.saturating_mul(instructions)));
        }
        if self.measuring && self.config.survival.is_some() { self.timers() } else { Ok(()) }
    }

    fn access(&mut self, access: Access) -> Result<(), PowerFailure> {
        let page = access.address() >> 12;
        if let Some(clock) = self.system.nvm.pmem.clock_mut() {
            clock.pass(Picos(INSTRUCTION.0 * access.counted()));
        }
        let entry = if let Some(entry) = self.tlb.find(page) {
            entry
        } else {
            self.walk(page);
            let entry = if let Some(entry) = self.system.translate(page)? {
                entry
            } else {
                // A recording that does not tell of every mapping.
                self.system.map(self.area(page))?;
                self.system.translate(page)?.expect("mapped just now")
            };
            self.tlb.enter(page, entry);
            entry
        };
        let offset = access.address() & 0xff8;
        if access.is_store() {
            if self.system.scheme.is_full() {
                self.checkpoint()?;
            }
            // Larger accesses store every word; what matters are the lines and,
            // where words are logged, their number.
            let words = if access.crosses() { 1 } else { access.size().div_ceil(8).min(8) };
            for word in 0..words {
                self.system.store_mapped(entry, (offset + word * 8) & 0xfff, 0)?;
            }
        } else {
            self.system.load_mapped(entry, offset);
        }
        if self.measuring && self.config.survival.is_some() {
            self.timers()?;
        }
        Ok(())
    }

    /// A page's area: in non-volatile memory, unless it was asked for in DRAM.
    fn area(&self, page: u64) -> Area {
        let (start, len) = self.config.in_dram.unwrap_or_default();
        if (start..start + len).contains(&(page << 12)) {
            Area::dram(page, 1)
        } else {
            Area::nvm(page, 1)
        }
    }

    /// The walker reads four entries, where tables are in DRAM; those in NVM are
    /// read by their scheme.
    fn walk(&mut self, page: u64) {
        const TABLES: u64 = 2 << 30;
        if let Some(clock) = self.system.nvm.pmem.clock_mut() {
            for level in (0..4).rev() {
                // Tables lie one after the other, those of a level together.
                let entry = (page >> (9 * level)) * 8 % (256 << 20);
                clock.load_dram(TABLES + (level << 28) + entry);
            }
        }
    }

    fn timers(&mut self) -> Result<(), PowerFailure> {
        let now = self.now();
        if now - self.armed >= Picos::from(self.config.interval) {
            self.checkpoint()?;
        }
        let now = self.now();
        if now - self.background >= Picos::from(self.config.background) {
            self.system.background()?;
            self.background = self.now();
            self.in_background = self.in_background + (self.background - now);
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), PowerFailure> {
        let now = self.now();
        self.system.checkpoint()?;
        self.armed = self.now();
        self.in_checkpoints = self.in_checkpoints + (self.armed - now);
        Ok(())
    }
}

/// Runs a source to its end.
///
/// # Errors
///
/// What the source reports; and memory without a part that is not volatile.
pub fn run(
    source: &mut dyn Source,
    config: &RunConfig,
    progress: &mut dyn FnMut(u64),
) -> Result<RunReport, SimError> {
    if config.memory.nvm.is_none() {
        let message = format!("`{}` has no [nvm]: nothing would survive", config.memory.name);
        return Err(SimError::parameter("memory", message));
    }
    let workload = source.describe();
    let mut runner = Runner::new(config).expect(POWERED);
    let mut batch = Batch::default();
    let (mut total, mut begun, mut start) = (0u64, Picos::ZERO, 0);
    let (mut first_checkpoint, mut before) = (0, Vec::new());
    while source.next(&mut batch)? {
        // Every thread that ran has registers to save; its stack is an area.
        let threads = &mut runner.system.context.threads;
        if threads.len() <= batch.thread as usize {
            threads.resize(batch.thread as usize + 1, [0; REGISTERS]);
        }
        for event in &batch.events {
            runner.event(*event).expect(POWERED);
        }
        if !runner.measuring && total >= config.skip {
            runner.measuring = true;
            // What was initialised is written back and committed before
            // anything is measured, whatever the scheme.
            runner.checkpoint().expect(POWERED);
            runner.system.background().expect(POWERED);
            before = runner.system.scheme.work();
            (begun, start) = (runner.now(), total);
            (runner.armed, runner.background) = (begun, begun);
            (runner.in_checkpoints, runner.in_background) = (Picos::ZERO, Picos::ZERO);
            first_checkpoint = runner.system.epoch();
            if let Some(clock) = runner.system.nvm.pmem.clock_mut() {
                clock.take_traffic();
            }
        }
        for access in &batch.accesses {
            if access.is_data() {
                runner.access(*access).expect(POWERED);
                total += 1;
            } else {
                runner.pass(access.counted()).expect(POWERED);
            }
        }
        progress(total);
    }
    let time = (runner.now() - begun).nanos();
    let traffic = runner.system.nvm.pmem.clock_mut().map(Clock::take_traffic).unwrap_or_default();
    let pages = runner.system.scheme.mappings(&mut runner.system.nvm).0.len() as u64;
    let (epoch, mut work) = (runner.system.epoch(), runner.system.scheme.work());
    for ((_, number), (_, earlier)) in work.iter_mut().zip(before) {
        *number -= earlier;
    }
    let recovery = config.survival.is_some().then(|| recover(runner.system, config));
    Ok(RunReport {
        scheme: config.survival.name(),
        workload,
        memory: config.memory.name.clone(),
        accesses: total - start,
        time,
        checkpoints: epoch - first_checkpoint,
        in_checkpoints: runner.in_checkpoints.nanos(),
        in_background: runner.in_background.nanos(),
        footprint: terrace_core::Bytes(pages * 4096),
        dram_lines: [traffic.dram_reads, traffic.dram_writes],
        nvm_lines: [traffic.nvm_reads, traffic.nvm_writes],
        work,
        wear: Wear::new(&traffic, &config.memory, time),
        energy: Energy::new(&traffic, &config.memory),
        recovery,
        input: source.summary(),
    })
}

const POWERED: &str = "the power does not fail while a program is measured";

/// The power fails; simulated time until the program goes on.
fn recover(system: System, config: &RunConfig) -> Nanos {
    let pmem = system.nvm.pmem;
    let lost = vec![0; pmem.choices().len()];
    let left = timed(pmem.after_failure(&lost), &config.memory);
    let again = System::recover(left, FRAMES, config.survival.make())
        .expect("what was committed can be recovered");
    again.nvm.pmem.now().nanos()
}
