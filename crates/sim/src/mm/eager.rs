//! Eager paging: base pages that are filled before the program touches them.
//!
//! It spares the fault, and not the zeroing, of each page that is touched later. It takes a frame
//! and zeros for each that never is.
//!
//! | when | how much | who wants it so |
//! |---|---|---|
//! | memory is mapped | all of what the policy names | CBMM, by the eager rules of a profile |
//! | a fault backs a page | its [`PIECE`] of the 2 MiB | ours, where the price says that it pays |
//!
//! Nobody is pushed out for it: it ends where memory is short.

use core::ops::Range;

use terrace_core::{Bytes, Cycles};

use super::benefit::Place;
use super::kernel::Mm;
use super::outcome::{Fault, Outcome};
use super::physical::{Owner, PAGES};
use super::space::{Backing, Page, SLOT};

/// Base pages that a fault fills, its own included: as many as Linux maps around a fault on a file
/// (`fault_around_bytes`, 64 KiB). More would spare hardly more faults, and make each wait longer.
pub(super) const PIECE: u32 = 16;

impl Mm {
    /// A fault on a base page brings its neighbours along where that is wanted.
    pub(super) fn fill_around(&mut self, fault: Fault, number: u32, index: u32) -> Fault {
        let slot = self.spaces.slot(number);
        let is_there = match slot.backing() {
            Backing::Base(pages) => pages[index as usize].frame().is_some(),
            _ => false,
        };
        if !(slot.fills && is_there) {
            return fault;
        }
        let first = index / PIECE * PIECE;
        let (filled, time) = self.fill(number, first..first + PIECE);
        let is_plain = filled > 0 && fault.outcome == Outcome::Base;
        let outcome = if is_plain { Outcome::BaseFilled } else { fault.outcome };
        Fault { outcome, cycles: fault.cycles + time }
    }

    /// Fills what is mapped and absent of some base pages of a slot; returns how many it were, and
    /// the time.
    fn fill(&mut self, number: u32, pages: Range<u32>) -> (u64, Cycles) {
        let (process, start) = (self.spaces.slot(number).process, self.spaces.slot(number).address);
        let mut filled = 0;
        for index in pages {
            let Backing::Base(here) = self.spaces.slot(number).backing() else { break };
            let is_absent = here[index as usize] == Page::ABSENT;
            if !is_absent || self.spaces.area(process, start + (u64::from(index) << 12)).is_none() {
                continue;
            }
            if self.physical.free() <= self.physical.watermarks.low {
                break;
            }
            let Some(frame) = self.physical.take(Owner::page(number, index)) else { break };
            self.set(number, index, Page::at(frame));
            self.spaces.slot_mut(number).put_ahead(index);
            filled += 1;
        }
        self.counts.filled += filled;
        (filled, self.costs.filled_base() * filled)
    }

    /// What was just mapped is filled as far as the policy wants it; returns the time.
    pub(super) fn fill_mapping(&mut self, process: u32, start: u64, len: Bytes) -> Cycles {
        let mut cycles = Cycles::ZERO;
        if !self.policy.fills_mappings() {
            return cycles;
        }
        let (mut at, end) = (start, start + len.get());
        while at < end {
            let next = (((at >> SLOT) + 1) << SLOT).min(end);
            let Some(area) = self.spaces.area(process, at) else { break };
            let (section, offset) = (area.section, Bytes(at - area.start));
            let place = Place { process, section, offset, address: at };
            if self.policy.fills_when_mapped(place) {
                cycles += self.fill_part(process, at, next);
            }
            at = next;
        }
        cycles + self.decided()
    }

    /// Fills a part of a slot that the program has touched nowhere: as the kernel populates, by the
    /// fault handler without a trap. Where that finds a huge page, the slot is filled.
    fn fill_part(&mut self, process: u32, from: u64, to: u64) -> Cycles {
        let Some(number) = self.spaces.slot_at(process, from) else { return Cycles::ZERO };
        let Some(area) = self.spaces.area(process, from) else { return Cycles::ZERO };
        let first = (from >> 12) as u32 % PAGES;
        let last = first + ((to - from).div_ceil(4096)) as u32;
        let mut cycles = Cycles::ZERO;
        if matches!(self.spaces.slot(number).backing(), Backing::Empty) {
            let fault = self.first_touch(&area, number, first, true);
            cycles += fault.cycles.saturating_sub(self.costs.fault) + self.costs.populate;
            let is_base = matches!(self.spaces.slot(number).backing(), Backing::Base(_));
            if is_base && fault.outcome != Outcome::OutOfMemory {
                self.spaces.slot_mut(number).put_ahead(first);
                self.counts.filled += 1;
            }
        }
        let (_, time) = self.fill(number, first..last);
        cycles + time
    }
}
