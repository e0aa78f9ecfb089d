//! What became of ranges in base pages: of those that were held out, and of those that are filled
//! ahead.
//!
//! They are looked at when they are unmapped, some time after their first touch, or at the end.
//! Until then khugepaged leaves those alone that were held out. The policy is told what was seen, and
//! compares it with what it had predicted.

use std::collections::VecDeque;

use terrace_core::{Bytes, Cycles};

use super::benefit::Place;
use super::kernel::Mm;
use super::policy::Seen;
use super::space::{Backing, Page, Watched};

/// So long after its first touch: ten seconds, as in live runs, at 2.2 GHz.
const LATER: Cycles = Cycles(22_000_000_000);
/// Of ranges that are filled ahead one in so many is looked at.
const ONE_IN: u32 = 16;

/// What is looked at later.
#[derive(Clone, Copy, Debug)]
struct Watch {
    slot: u32,
    place: Place,
    since: Cycles,
    /// Cycles of page walks that the slot had before.
    walks: f64,
}

/// All of them, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Watches(VecDeque<Watch>);

impl Mm {
    /// A slot gets base pages although a huge one would pay.
    pub(super) fn watch_held_out(&mut self, slot: u32) {
        self.watch(slot, Watched::HeldOut);
    }

    /// A slot gets base pages, some of which are filled ahead.
    pub(super) fn watch_filled(&mut self, slot: u32) {
        if slot.is_multiple_of(ONE_IN) {
            self.watch(slot, Watched::Filled);
        }
    }

    fn watch(&mut self, number: u32, watched: Watched) {
        let (process, address) = {
            let slot = self.spaces.slot(number);
            (slot.process, slot.address)
        };
        let Some(area) = self.spaces.area(process, address) else { return };
        let (section, offset) = (area.section, Bytes(address.saturating_sub(area.start)));
        let place = Place { process, section, offset, address };
        let slot = self.spaces.slot_mut(number);
        slot.watched = watched;
        let (since, walks) = (self.now, slot.walk_cycles);
        self.watches.0.push_back(Watch { slot: number, place, since, walks });
    }

    /// Looks at those whose time has come.
    pub(super) fn look_at_watched(&mut self) {
        while let Some(watch) = self.watches.0.front().copied() {
            if self.now - watch.since < LATER {
                return;
            }
            self.watches.0.pop_front();
            self.look_at(&watch);
        }
    }

    /// A slot is about to be unmapped, at least a part of it.
    pub(super) fn look_at_last(&mut self, slot: u32) {
        if self.spaces.slot(slot).watched == Watched::No {
            return;
        }
        if let Some(at) = self.watches.0.iter().position(|watch| watch.slot == slot)
            && let Some(watch) = self.watches.0.remove(at)
        {
            self.look_at(&watch);
        }
    }

    /// The run is over: looks at all that is left.
    pub fn finish(&mut self) {
        while let Some(watch) = self.watches.0.pop_front() {
            self.look_at(&watch);
        }
    }

    fn look_at(&mut self, watch: &Watch) {
        let slot = self.spaces.slot_mut(watch.slot);
        let watched = std::mem::take(&mut slot.watched);
        let Backing::Base(pages) = slot.backing() else { return };
        let there = pages.iter().filter(|page| **page != Page::ABSENT).count() as u32;
        let (waiting, filled) = (slot.waiting(), u32::from(slot.filled));
        let walks = slot.walk_cycles - watch.walks;
        if watched == Watched::Filled {
            self.policy.filled(watch.place, filled, filled.saturating_sub(waiting));
            return;
        }
        let own = self.counts.huge_walks / self.counts.huge_given.max(1) as f64;
        self.policy.seen(&Seen {
            place: watch.place,
            time: self.now - watch.since,
            touched: there - waiting.min(there),
            walks: (walks - own).max(0.0),
        });
    }
}
