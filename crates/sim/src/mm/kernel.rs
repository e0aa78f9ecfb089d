//! The simulated kernel: physical memory, address spaces, a policy, threads of its own.

use rand_xoshiro::rand_core::SeedableRng;
use serde::Serialize;
use terrace_core::{Bytes, Cycles, Frequency};

use super::background::Threads;
use super::benefit::Profile;
use super::compaction::{CompactionCounts, Scanners};
use super::costs::Costs;
use super::outcome::Faults;
use super::physical::{Fragmentation, Owner, PAGES, Physical};
use super::policy::{Memory, MmPolicy, MmPolicyName};
use super::reclaim::{ReclaimCounts, Swap};
use super::space::{Backing, Page, Section, Spaces};
use crate::analytic::listeners::OnDecisions;
use crate::error::SimError;
use crate::workload::SimRng;

/// What to simulate.
#[derive(Clone, Debug)]
pub struct MmConfig {
    /// The machine's memory.
    pub memory: Bytes,
    /// Of it, what the kernel holds and cannot move.
    pub kernel: Bytes,
    /// Of it, clean pages of files when the program starts.
    pub files: Bytes,
    /// The swap device.
    pub swap: Bytes,
    /// Who decides about huge pages.
    pub policy: MmPolicyName,
    /// How memory was fragmented before.
    pub fragmentation: Fragmentation,
    /// What work costs.
    pub costs: Costs,
    /// The processor's clock.
    pub clock: Frequency,
    /// Where all randomness comes from.
    pub seed: u64,
}

impl MmConfig {
    /// A machine of so much memory. A 64th is the kernel's (descriptors of 64 B for 4 KiB;
    /// derived), a 48th are files and a 24th is swap (assumed: 4 GiB and 8 GiB on the paper's
    /// machine).
    pub fn new(memory: Bytes, policy: MmPolicyName) -> Self {
        Self {
            memory,
            kernel: memory / 64,
            files: memory / 48,
            swap: memory / 24,
            policy,
            fragmentation: Fragmentation::None,
            costs: Costs::builtin(),
            clock: Frequency(2.2e9),
            seed: 1,
        }
    }
}

/// What the kernel counted.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Faults.
    pub faults: Faults,
    /// Compaction.
    pub compaction: CompactionCounts,
    /// Reclaim.
    pub reclaim: ReclaimCounts,
    /// Huge pages that were made of base pages.
    pub collapsed: u64,
    /// Of attempts to do so, those that found no block.
    pub collapse_failed: u64,
    /// Blocks zeroed in the background.
    pub prezeroed: u64,
    /// What the kernel's threads worked.
    pub background: Cycles,
    /// What programs lost to the kernel's threads.
    pub stalled: Cycles,
    /// Questions to the policy, on faults.
    pub asked: u64,
    /// Base pages that were filled before anybody touched them.
    pub filled: u64,
    /// Of those, pages that were touched later.
    pub filled_used: u64,
    /// What the policy took for deciding: in faults programs waited for it, the rest is the threads'.
    pub deciding: Cycles,
}

/// The kernel.
pub struct Mm {
    pub(super) physical: Physical,
    pub(super) spaces: Spaces,
    pub(super) scanners: Scanners,
    pub(super) swap: Swap,
    pub(super) threads: Threads,
    pub(super) policy: Box<dyn MmPolicy>,
    pub(super) costs: Costs,
    pub(super) clock: Frequency,
    pub(super) now: Cycles,
    pub(super) counts: Counts,
    /// Translations that processors must forget.
    pub(super) stale: Vec<Stale>,
}

/// Translations that processors must forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Whose.
    pub process: u32,
    /// The huge page and every base page of a slot, by its address; `None` for all.
    pub address: Option<u64>,
}

/// How memory is backed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Backed {
    /// In base pages.
    pub base: Bytes,
    /// In huge pages.
    pub huge: Bytes,
}

impl Backed {
    /// The share of huge pages, 0 to 1.
    pub fn share(&self) -> f64 {
        self.huge.as_f64() / (self.huge + self.base).as_f64().max(1.0)
    }
}

impl Mm {
    /// A kernel that has booted, and whose memory was fragmented as asked for.
    ///
    /// # Errors
    ///
    /// Where the memory is too small to hold what the kernel holds, or a policy needs a profile.
    pub fn new(config: &MmConfig, profile: Option<&Profile>) -> Result<Self, SimError> {
        let taken = config.kernel + config.files + Bytes::mib(8);
        if config.memory < taken * 2 {
            let message = format!("{} is too little: {taken} are taken at once", config.memory);
            return Err(SimError::parameter("memory", message));
        }
        let policy = config.policy.build(profile, &config.costs, config.clock)?;
        let mut physical = Physical::new(config.memory);
        for _ in 0..config.kernel.get() / 4096 {
            physical.take_kernel();
        }
        for _ in 0..config.files.get() / 4096 {
            physical.take(Owner::FILE);
        }
        let mut rng = SimRng::seed_from_u64(config.seed);
        // The thread zeroes before the fragmenter comes, as in the paper's runs.
        let threads = Threads::new(policy.background());
        let warm = threads.warm_blocks(&config.costs);
        let prezeroed = physical.zero_many(warm);
        physical.fragment(config.fragmentation, &mut rng);
        Ok(Self {
            physical,
            spaces: Spaces::default(),
            scanners: Scanners::default(),
            swap: Swap::new(config.swap),
            threads,
            policy,
            costs: config.costs,
            clock: config.clock,
            now: Cycles::ZERO,
            counts: Counts { prezeroed, ..Counts::default() },
            stale: Vec::new(),
        })
    }

    /// What was counted.
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Physical memory.
    pub const fn physical(&self) -> &Physical {
        &self.physical
    }

    /// Address spaces.
    pub const fn spaces(&self) -> &Spaces {
        &self.spaces
    }

    /// An address of a slot is in use.
    #[inline]
    pub fn used(&mut self, slot: u32, address: u64) {
        self.spaces.slot_mut(slot).used = true;
        self.touched(slot, address);
    }

    /// A program touches what is there: if it was filled ahead, that has spared a fault.
    #[inline]
    pub fn touched(&mut self, slot: u32, address: u64) {
        let index = (address >> 12) as u32 % PAGES;
        self.counts.filled_used += u64::from(self.spaces.slot_mut(slot).take_ahead(index));
    }

    /// A page walk was made for a slot, for so many, and took so many cycles for all of them.
    #[inline]
    pub fn walked(&mut self, slot: u32, cycles: f64, count: f64) {
        self.spaces.slot_mut(slot).walk_cycles += cycles;
        self.spaces.missed(slot, count as f32);
    }

    /// What the policy has taken for deciding since this was called last.
    pub(super) fn decided(&mut self) -> Cycles {
        let spent = self.policy.spent(&self.costs);
        self.counts.deciding += spent;
        spent
    }

    /// How much memory there is.
    pub(super) fn memory(&self) -> Memory {
        let bytes = |pages: u64| Bytes(pages << 12);
        Memory { all: bytes(self.physical.len()), free: bytes(self.physical.free()) }
    }

    /// The processor's clock.
    pub const fn clock(&self) -> Frequency {
        self.clock
    }

    /// The policy's name.
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// From now on somebody hears of the policy's decisions, if it is one that prices them.
    pub fn hear(&mut self, decisions: OnDecisions) {
        self.policy.hear(decisions);
    }

    /// Translations that processors must forget since this was last asked.
    pub fn take_stale(&mut self) -> Vec<Stale> {
        std::mem::take(&mut self.stale)
    }

    /// Whether there are any.
    pub fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    pub(super) fn flushed(&mut self, slot: u32) {
        let slot = self.spaces.slot(slot);
        let stale = Stale { process: slot.process, address: Some(slot.address) };
        if self.stale.last() != Some(&stale) {
            self.stale.push(stale);
        }
    }

    /// A program maps memory; returns what it waits beyond that: for what the policy has filled at
    /// once.
    pub fn map(&mut self, process: u32, start: u64, len: Bytes, section: Section) -> Cycles {
        self.spaces.map(process, start, len, section);
        self.fill_mapping(process, start, len)
    }

    /// A program advises huge pages for an area.
    pub fn advise(&mut self, process: u32, address: u64) {
        self.spaces.advise(process, address);
    }

    /// A program unmaps a range; returns what it waits. Processors forget all translations.
    pub fn unmap(&mut self, process: u32, start: u64, len: Bytes) -> Cycles {
        let parts = self.spaces.unmap(process, start, len);
        let mut cycles = self.costs.fault;
        for &(number, from, to) in &parts {
            let slot = self.spaces.slot_mut(number);
            let shared = slot.shared;
            if let Backing::Huge(frame) = *slot.backing() {
                if to - from == PAGES && !shared {
                    slot.present = 0;
                    self.spaces.back(number, Backing::Empty);
                    self.physical.give_huge(frame);
                    cycles += self.costs.free_huge;
                    continue;
                }
                // A part of it, or a child keeps it: in base pages.
                self.split_mapping(number, frame);
                cycles += self.costs.split_huge;
            }
            let slot = self.spaces.slot_mut(number);
            let Some(pages) = slot.pages_mut() else { continue };
            let mut gone = 0;
            for page in &mut pages[from as usize..to as usize] {
                let page = std::mem::take(page);
                if let Some(frame) = page.frame() {
                    if page.is_shared() {
                        self.physical.hand_over(frame, Owner::CHILD);
                    } else {
                        self.physical.give(frame);
                    }
                    gone += 1;
                    cycles += self.costs.free_base;
                } else if page == Page::SWAPPED {
                    self.swap.release();
                }
            }
            let empty = pages.iter().all(|page| *page == Page::ABSENT);
            slot.present -= gone;
            if empty {
                // What a child shared is gone: a huge page that comes here later is its own.
                slot.shared = false;
                self.spaces.back(number, Backing::Empty);
            }
        }
        if parts.is_empty() {
            return Cycles::ZERO;
        }
        self.stale.push(Stale { process, address: None });
        cycles
    }

    /// A slot's huge page is mapped as base pages in the same frames.
    pub(super) fn split_mapping(&mut self, number: u32, frame: u64) {
        self.physical.split_huge(frame);
        let slot = self.spaces.slot(number);
        let shared = slot.shared;
        let stale = Stale { process: slot.process, address: Some(slot.address) };
        let pages: [Page; PAGES as usize] = core::array::from_fn(|index| {
            let page = Page::at(frame + index as u64);
            if shared { page.shared() } else { page }
        });
        self.spaces.back(number, Backing::Base(Box::new(pages)));
        self.stale.push(stale);
    }

    /// A child is made: it shares every page until one of both stores to it.
    pub fn fork(&mut self, process: u32) -> Cycles {
        let mut entries = 0;
        for number in 0..self.spaces.len() {
            let slot = self.spaces.slot_mut(number);
            if slot.process == process {
                slot.shared = !matches!(slot.backing(), Backing::Empty);
                if let Some(pages) = slot.pages_mut() {
                    for page in pages.iter_mut().filter(|page| page.frame().is_some()) {
                        *page = page.shared();
                    }
                    entries += u64::from(PAGES);
                } else {
                    entries += u64::from(slot.shared);
                }
            }
        }
        self.costs.fault + self.costs.scan_table * entries
    }

    /// The child ends: what only it still had is free, the rest is the parent's alone.
    pub fn child_ends(&mut self, process: u32) {
        for number in 0..self.spaces.len() {
            let slot = self.spaces.slot_mut(number);
            if slot.process == process {
                slot.shared = false;
                if let Some(pages) = slot.pages_mut() {
                    for page in pages {
                        *page = page.unshared();
                    }
                }
            }
        }
        for frame in 0..self.physical.len() {
            if self.physical.owner(frame) == Owner::CHILD {
                self.physical.give(frame);
            }
        }
    }

    /// How a program's memory is backed.
    pub fn backed(&self, process: Option<u32>) -> Backed {
        let mut backed = Backed::default();
        for number in 0..self.spaces.len() {
            let slot = self.spaces.slot(number);
            if process.is_none_or(|process| slot.process == process) {
                match slot.backing() {
                    Backing::Huge(_) => backed.huge += Bytes::mib(2),
                    _ => backed.base += Bytes(u64::from(slot.present) * 4096),
                }
            }
        }
        backed
    }

    /// Time comes to a point; the kernel's threads work up to it.
    pub fn advance(&mut self, now: Cycles) {
        if now > self.now {
            self.now = now;
            self.background();
        }
    }

    /// Where an address lies, without any fault: physical address, whether it is a huge page,
    /// and the slot.
    #[inline]
    pub fn lookup(&mut self, process: u32, address: u64, store: bool) -> Option<(u64, bool, u32)> {
        let number = self.spaces.slot_at(process, address)?;
        let slot = self.spaces.slot(number);
        match slot.backing() {
            Backing::Empty => None,
            Backing::Huge(_) if store && slot.shared => None,
            Backing::Huge(frame) => Some(((frame << 12) + (address & 0x1f_ffff), true, number)),
            Backing::Base(pages) => {
                let page = pages[(address >> 12) as usize % PAGES as usize];
                if store && page.is_shared() {
                    return None;
                }
                if page == Page::ZERO {
                    // One frame for all: the last of memory stands for it.
                    let frame = self.physical.len();
                    return (!store).then_some(((frame << 12) + (address & 0xfff), false, number));
                }
                page.frame().map(|frame| ((frame << 12) + (address & 0xfff), false, number))
            }
        }
    }
}
