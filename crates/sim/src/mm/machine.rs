//! A processor before the kernel: caches, TLBs and page walks of the exact engine, and time.
//!
//! Each program runs on a core of its own; the last level is shared. Accesses of a program may
//! be a sample of many: then their time counts so many times, and faults among them once.

use terrace_core::{Cycles, Frequency, Machine, TierId};

use super::kernel::Mm;
use crate::error::SimError;
use crate::exact::Access;
use crate::exact::clock::{CoreClock, CoreGeometry};
use crate::exact::hierarchy::{Hierarchy, Level, Request, WriteBacks};
use crate::exact::machine::hierarchy_geometry;
use crate::exact::page_table::{Entry, MapSize};
use crate::exact::tlb::{Tlbs, TlbsGeometry, Translation};

/// Stale translations beyond which everything is forgotten.
const MANY: usize = 32;
/// Page walks of a core at the same time. Recalled: two since Broadwell (Intel 64 and IA-32
/// Optimization Reference Manual).
const WALKERS: usize = 2;
/// Slots whose tables have addresses of their own.
const SLOTS: u64 = 1 << 22;

/// A core.
struct Core {
    tlbs: Tlbs,
    clock: CoreClock,
    instructions: u64,
    /// When each page walker is free again.
    walkers: [f64; WALKERS],
    /// Up to when any was at work.
    walked: f64,
}

/// What translated an address.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// The first level.
    First,
    /// The second.
    Second,
    /// A page walk.
    Walk {
        /// The slot.
        slot: u32,
        /// What the walk's reads take, in nanoseconds.
        time: f64,
    },
}

impl Core {
    /// A walk that can begin at a time: when it ends, and how much longer any walker is at work
    /// for it.
    fn walk(&mut self, at: f64, time: f64) -> (f64, f64) {
        let first = usize::from(self.walkers[1] < self.walkers[0]);
        let begin = at.max(self.walkers[first]);
        let end = begin + time;
        self.walkers[first] = end;
        let active = (end - begin.max(self.walked)).max(0.0);
        self.walked = self.walked.max(end);
        (end, active)
    }
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Latencies {
    l1: f64,
    l2: f64,
    llc: f64,
    memory: f64,
    stlb: f64,
}

/// Cores and caches.
pub struct Processor {
    caches: Hierarchy,
    cores: Vec<Core>,
    latencies: Latencies,
    clock: Frequency,
    /// Where page tables lie: behind all memory.
    tables: u64,
}

/// What some accesses came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// Nanoseconds without faults.
    pub time: f64,
    /// Nanoseconds of faults.
    pub faults: f64,
    /// Of the time, that in which any page walk was at work, as the processor's counter
    /// `walk_active` has it. It overlaps with everything else.
    pub walking: f64,
    /// Page walks.
    pub walks: u64,
    /// Instructions.
    pub instructions: u64,
}

impl Processor {
    /// A processor for so many programs.
    ///
    /// # Errors
    ///
    /// Where the machine file has no details.
    pub fn new(machine: &Machine, cores: usize, memory: u64) -> Result<Self, SimError> {
        let geometry = hierarchy_geometry(machine, cores)?;
        let detail = machine.detail.as_ref().ok_or_else(|| {
            SimError::parameter("machine", format!("`{}` has no [detail]", machine.name))
        })?;
        let clock = machine.cpu.clock.value;
        let cycles = |cycles: u64| cycles as f64 * 1e9 / clock.get();
        let core = CoreGeometry {
            instruction: 1e9 / clock.get() / detail.issue_width.value,
            slots: machine.cpu.miss_slots.value as usize,
            window: u64::from(detail.reorder_buffer.value),
        };
        let tlbs = Tlbs::new(&TlbsGeometry::from(detail));
        let cores = (0..cores)
            .map(|_| Core {
                tlbs: tlbs.clone(),
                clock: CoreClock::new(core),
                instructions: 0,
                walkers: [0.0; WALKERS],
                walked: 0.0,
            })
            .collect();
        Ok(Self {
            caches: Hierarchy::new(&geometry),
            cores,
            latencies: Latencies {
                l1: cycles(detail.l1.latency.value.get()),
                l2: detail.l2.as_ref().map_or(0.0, |l2| cycles(l2.latency.value.get())),
                llc: machine.cpu.llc_latency.value.as_f64(),
                memory: machine.tiers[TierId::FASTEST.index()].read_latency.value.as_f64(),
                stlb: cycles(detail.stlb_latency.value.get()),
            },
            clock,
            tables: memory.next_multiple_of(1 << 21) + (1 << 21),
        })
    }

    fn latency(&self, level: Level) -> f64 {
        match level {
            Level::L1 => self.latencies.l1,
            Level::L2 => self.latencies.l2,
            Level::Llc => self.latencies.llc,
            Level::Memory => self.latencies.memory,
        }
    }

    /// Cores forget what is no longer so.
    pub fn forget(&mut self, mm: &mut Mm) {
        if !mm.has_stale() {
            return;
        }
        let stale = mm.take_stale();
        if stale.len() > MANY {
            self.cores.iter_mut().for_each(|core| core.tlbs.flush());
            return;
        }
        for stale in stale {
            let Some(core) = self.cores.get_mut(stale.process as usize) else { continue };
            let Some(address) = stale.address else {
                core.tlbs.flush();
                continue;
            };
            core.tlbs.forget(address, MapSize::Huge);
            for page in 0..512 {
                core.tlbs.forget(address + (page << 12), MapSize::Base);
            }
        }
    }

    /// A program makes accesses, each of which stands for `weight`. `None` where it touches what
    /// is not mapped, or memory is out.
    pub fn run(
        &mut self,
        mm: &mut Mm,
        process: u32,
        accesses: &[Access],
        weight: f64,
    ) -> Option<Done> {
        self.forget(mm);
        let number = process as usize;
        let begin = {
            let core = &mut self.cores[number];
            core.clock.drain(core.instructions)
        };
        let mut done = Done::default();
        let before = self.cores[number].instructions;
        for access in accesses {
            self.cores[number].instructions += access.counted();
            if !access.is_data() {
                continue;
            }
            let (address, store) = (access.address(), access.is_store());
            let (translation, way) = self.translate(mm, process, address, store, &mut done)?;
            let line = translation.physical(address) >> 6;
            let request = if store { Request::Store } else { Request::Load };
            let level = self.caches.access(number, line, request, &mut WriteBacks::default());
            let latency = self.latency(level);
            let core = &mut self.cores[number];
            if level == Level::L1 && way == Way::First {
                if access.is_dependent() {
                    core.clock.chained_hit(core.instructions, latency, !store);
                }
                continue;
            }
            let at = core.clock.begin(core.instructions, access.is_dependent());
            let translated = match way {
                Way::First => at,
                Way::Second => at + self.latencies.stlb,
                Way::Walk { slot, time } => {
                    let (end, active) = core.walk(at + self.latencies.stlb, time);
                    done.walking += active;
                    mm.walked(slot, self.clock.get() * active / 1e9 * weight, weight);
                    end
                }
            };
            core.clock.end(core.instructions, translated + latency, !store);
        }
        let core = &mut self.cores[number];
        let end = core.clock.drain(core.instructions);
        done.instructions = core.instructions - before;
        done.time = end - begin - done.faults;
        Some(done)
    }

    /// Translates; says what that took beside the first level.
    fn translate(
        &mut self,
        mm: &mut Mm,
        process: u32,
        address: u64,
        store: bool,
        done: &mut Done,
    ) -> Option<(Translation, Way)> {
        let number = process as usize;
        let tlbs = &mut self.cores[number].tlbs;
        let known = match tlbs.first(address) {
            Some(translation) => Some((translation, Way::First)),
            None => tlbs.second(address).map(|translation| (translation, Way::Second)),
        };
        if let Some((translation, way)) = known {
            if !(store && translation.entry.has(Entry::PROTECTED)) {
                return Some((translation, way));
            }
            tlbs.forget(address, translation.size);
        }
        let found = if let Some(found) = mm.lookup(process, address, store) {
            found
        } else {
            let fault = mm.fault(process, address, store)?;
            let time = self.clock.nanos(fault.cycles).as_f64();
            let core = &mut self.cores[number];
            core.clock.spend(core.instructions, time);
            done.faults += time;
            self.forget(mm);
            mm.lookup(process, address, store)?
        };
        let (physical, huge, slot) = found;
        let size = if huge { MapSize::Huge } else { MapSize::Base };
        let time = self.walk(number, process, address, slot, huge);
        done.walks += 1;
        mm.used(slot, address);
        let mask = (1u64 << size.shift()) - 1;
        let mut entry = Entry::mapping((physical & !mask) >> 12);
        if !store && mm.lookup(process, address, true).is_none() {
            entry.0 |= Entry::PROTECTED;
        }
        let translation = Translation { entry, size };
        self.cores[number].tlbs.fill(address, translation);
        Some((translation, Way::Walk { slot, time }))
    }

    /// A page walk through the caches; returns its nanoseconds.
    fn walk(&mut self, core: usize, process: u32, address: u64, slot: u32, huge: bool) -> f64 {
        let depth = if huge { 3 } else { 4 };
        let known = self.cores[core].tlbs.walk_begin(address, depth);
        let (slot, process) = (u64::from(slot), u64::from(process));
        // Page tables by slot, then directories (eight bytes a slot), then what lies above.
        let directories = self.tables + (SLOTS << 12);
        let above = directories + (SLOTS << 3) + (process << 22);
        let entries = [
            above + (1 << 21) + (address >> 39) * 8,
            above + (address >> 30) * 8,
            directories + slot * 8,
            self.tables + (slot << 12) + (address >> 12) % 512 * 8,
        ];
        let mut time = 0.0;
        for entry in &entries[known..depth] {
            let out = &mut WriteBacks::default();
            let level = self.caches.access(core, entry >> 6, Request::Walk, out);
            time += self.latency(level);
        }
        time
    }
}

/// Nanoseconds as cycles of a clock.
pub fn cycles(clock: Frequency, nanos: f64) -> Cycles {
    Cycles::from_f64(nanos * clock.get() / 1e9)
}
