//! The fault handler: every path, and what it costs.

use terrace_core::{Bytes, Cycles};

use super::compaction::{COMPACT_GAP, Compacted};
use super::costs::Costs;
use super::kernel::Mm;
use super::outcome::{Fault, Outcome};
use super::physical::{Owner, PAGES};
use super::policy::{Ask, Choice, Effort};
use super::space::{Area, Backing, Page};

/// Pages that a call of direct reclaim wants, whatever for (`SWAP_CLUSTER_MAX`).
const WANTED: u64 = 32;

impl Mm {
    /// A program touches memory that [`lookup`](Mm::lookup) does not find. `None` where nothing
    /// is mapped.
    pub fn fault(&mut self, process: u32, address: u64, store: bool) -> Option<Fault> {
        let area = self.spaces.area(process, address)?;
        let number = self.spaces.slot_at(process, address)?;
        let index = (address >> 12) as u32 % PAGES;
        let fault = match self.spaces.slot(number).backing() {
            Backing::Empty => self.first_touch(&area, number, index, store),
            Backing::Huge(frame) => {
                let frame = *frame;
                self.split_mapping(number, frame);
                let copy = self.copy_shared(number, index);
                Fault { outcome: Outcome::CowHugeSplit, ..copy }
            }
            Backing::Base(pages) => match pages[index as usize] {
                Page::ABSENT => {
                    let fault = self.base(number, index, store, Outcome::Base, Cycles::ZERO);
                    self.fill_around(fault, number, index)
                }
                Page::ZERO if store => {
                    self.base(number, index, true, Outcome::CowZeroed, Cycles::ZERO)
                }
                Page::SWAPPED => self.swap_in(number, index),
                _ => self.copy_shared(number, index),
            },
        };
        self.counts.faults.record(fault);
        Some(fault)
    }

    /// The first touch of a slot.
    pub(super) fn first_touch(&mut self, area: &Area, slot: u32, index: u32, store: bool) -> Fault {
        let address = self.spaces.slot(slot).address;
        self.spaces.slot_mut(slot).fills = false;
        if !area.holds_huge(address) {
            return self.first_base(slot, index, store, Outcome::Base, Cycles::ZERO);
        }
        self.counts.asked += 1;
        let costs = self.costs;
        let ask = self.ask(area, address, &costs);
        let (outcome, cycles) = match self.policy.first_touch(&ask) {
            Choice::Base => (Outcome::Base, Cycles::ZERO),
            Choice::Huge(effort) => match self.huge(slot, effort) {
                (Ok(outcome), cycles) => return Fault { outcome, cycles: cycles + self.decided() },
                (Err(outcome), cycles) => (outcome, cycles),
            },
        };
        let ask = self.ask(area, address, &costs);
        let fills = self.policy.fills_when_touched(&ask);
        let cycles = cycles + self.decided();
        let fault = self.first_base(slot, index, store, outcome, cycles);
        self.spaces.slot_mut(slot).fills = fills;
        self.fill_around(fault, slot, index)
    }

    /// What a policy is told of the first touch of a range.
    fn ask<'a>(&self, area: &Area, address: u64, costs: &'a Costs) -> Ask<'a> {
        Ask {
            process: area.process,
            section: area.section,
            offset: Bytes(address - area.start),
            address,
            advised: area.advised,
            free_huge: self.physical.free_huge(),
            free_zeroed: self.physical.free_zeroed(),
            unsplit: self.physical.unsplit(),
            can_compact: self.can_compact(),
            now: self.now,
            made: self.counts.compaction.made,
            compacting: self.counts.compaction.cycles,
            memory: self.memory(),
            costs,
        }
    }

    /// Backs a slot with a huge page; the error is how the base page is called that follows.
    fn huge(&mut self, slot: u32, effort: Effort) -> (Result<Outcome, Outcome>, Cycles) {
        // A free block is taken down to the least that has to be free, before anything else is tried
        // (the second look of `__alloc_pages_slowpath`; the first, at the lower limit, finds no other).
        if self.has_room_for_huge()
            && let Some(zeroed) = self.back_with_huge(slot)
        {
            let outcome = if zeroed { Outcome::HugePrezeroed } else { Outcome::Huge };
            return (Ok(outcome), self.costs.huge_fault(zeroed));
        }
        let most = match effort {
            Effort::Free => return (Err(Outcome::BaseFallback), Cycles::ZERO),
            Effort::Wake => {
                self.wake_kcompactd();
                return (Err(Outcome::BaseFallback), Cycles::ZERO);
            }
            Effort::Compact(most) => most,
            Effort::Reclaim => Cycles::MAX,
        };
        // Direct compaction, asynchronous: it is not deferred after a failure.
        let (compacted, mut cycles) = self.compact(most);
        if compacted == Compacted::Made
            && let Some(zeroed) = self.back_with_huge(slot)
        {
            return (Ok(Outcome::HugeCompacted), cycles + self.costs.huge_fault(zeroed));
        }
        if effort != Effort::Reclaim || compacted == Compacted::Skipped {
            let outcome = match compacted {
                Compacted::Skipped => Outcome::BaseFallback,
                _ => Outcome::FailedCompacted,
            };
            return (Err(outcome), cycles);
        }
        // What others take meanwhile must leave compaction enough; so there is reclaim up to a higher
        // limit than the one from which compaction is tried (`compaction_ready`).
        let enough = self.physical.watermarks.high + COMPACT_GAP;
        let (reclaimed, time) = self.reclaim(WANTED, self.physical.free() < enough);
        cycles += time;
        if self.has_room_for_huge()
            && let Some(zeroed) = self.back_with_huge(slot)
        {
            return (Ok(Outcome::HugeReclaimed), cycles + self.costs.huge_fault(zeroed));
        }
        let (compacted, time) = self.compact(Cycles::MAX);
        cycles += time;
        if compacted == Compacted::Made
            && let Some(zeroed) = self.back_with_huge(slot)
        {
            let cycles = cycles + self.costs.huge_fault(zeroed);
            return (Ok(Outcome::HugeCompactedReclaimed), cycles);
        }
        let outcome = match reclaimed {
            0 => Outcome::FailedCompacted,
            _ => Outcome::FailedCompactedReclaimed,
        };
        (Err(outcome), cycles)
    }

    /// Takes a free block for a slot, and says whether it was zeroed.
    pub(super) fn back_with_huge(&mut self, number: u32) -> Option<bool> {
        let (frame, zeroed) = self.physical.take_huge(number)?;
        self.spaces.back(number, Backing::Huge(frame));
        let slot = self.spaces.slot_mut(number);
        slot.present = PAGES as u16;
        slot.used = true;
        Some(zeroed)
    }

    /// The first base page of a slot: with the table that it needs.
    fn first_base(
        &mut self,
        number: u32,
        index: u32,
        store: bool,
        outcome: Outcome,
        before: Cycles,
    ) -> Fault {
        self.spaces.back(number, Backing::Base(Box::new([Page::ABSENT; PAGES as usize])));
        self.spaces.slot_mut(number).present = 0;
        let table = self.costs.take_base + self.costs.zero_base;
        self.base(number, index, store, outcome, before + table)
    }

    /// Maps a base page of zeros.
    fn base(
        &mut self,
        number: u32,
        index: u32,
        store: bool,
        outcome: Outcome,
        before: Cycles,
    ) -> Fault {
        let costs = self.costs;
        if !store {
            self.set(number, index, Page::ZERO);
            let outcome = if outcome == Outcome::Base { Outcome::SharedZero } else { outcome };
            return Fault { outcome, cycles: before + costs.fault };
        }
        let mut cycles = before + costs.base_fault();
        let (frame, reclaimed, time) = self.take_base(Owner::page(number, index));
        cycles += time;
        let Some(frame) = frame else { return Fault { outcome: Outcome::OutOfMemory, cycles } };
        self.set(number, index, Page::at(frame));
        let plain = matches!(outcome, Outcome::Base | Outcome::BaseFallback);
        let outcome = if reclaimed && plain { Outcome::BaseReclaimed } else { outcome };
        Fault { outcome, cycles }
    }

    pub(super) fn set(&mut self, number: u32, index: u32, page: Page) {
        let slot = self.spaces.slot_mut(number);
        slot.used = true;
        // What was filled ahead here had gone before anybody touched it.
        slot.take_ahead(index);
        let Some(pages) = slot.pages_mut() else { return };
        let before = std::mem::replace(&mut pages[index as usize], page);
        match (before.frame(), page.frame()) {
            (None, Some(_)) => {
                slot.present += 1;
                slot.touched = slot.touched.max(slot.present);
            }
            (Some(_), None) => slot.present -= 1,
            _ => {}
        }
    }

    /// A frame, with reclaim before it where memory is short: whether there was any, and time.
    fn take_base(&mut self, owner: Owner) -> (Option<u64>, bool, Cycles) {
        if self.physical.free() > self.physical.watermarks.min
            && let Some(frame) = self.physical.take(owner)
        {
            return (Some(frame), false, Cycles::ZERO);
        }
        let mut cycles = Cycles::ZERO;
        // The kernel tries several times before it kills anybody (`MAX_RECLAIM_RETRIES`); what
        // lies below the lowest limit is for itself.
        for _ in 0..16 {
            let (_, time) = self.reclaim(WANTED, true);
            cycles += time;
            if self.physical.free() > self.physical.watermarks.min
                && let Some(frame) = self.physical.take(owner)
            {
                return (Some(frame), true, cycles);
            }
        }
        (None, true, cycles)
    }

    fn swap_in(&mut self, number: u32, index: u32) -> Fault {
        let mut cycles = self.costs.fault + self.costs.take_base + self.costs.swap_in;
        let (frame, _, time) = self.take_base(Owner::page(number, index));
        cycles += time;
        let Some(frame) = frame else { return Fault { outcome: Outcome::OutOfMemory, cycles } };
        self.swap.release();
        self.set(number, index, Page::at(frame));
        Fault { outcome: Outcome::SwappedIn, cycles }
    }

    /// A store to a page that a child shares: the parent gets a copy.
    fn copy_shared(&mut self, number: u32, index: u32) -> Fault {
        let costs = self.costs;
        let mut cycles = costs.fault + costs.take_base + costs.copy_base + costs.flush;
        let (frame, _, time) = self.take_base(Owner::page(number, index));
        cycles += time;
        let Some(frame) = frame else { return Fault { outcome: Outcome::OutOfMemory, cycles } };
        let Backing::Base(pages) = self.spaces.slot(number).backing() else {
            return Fault { outcome: Outcome::OutOfMemory, cycles };
        };
        if let Some(old) = pages[index as usize].frame() {
            self.physical.hand_over(old, Owner::CHILD);
        }
        self.set(number, index, Page::at(frame));
        self.flushed(number);
        Fault { outcome: Outcome::CowCopied, cycles }
    }
}
