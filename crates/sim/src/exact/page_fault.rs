//! Demand faults, hint faults, and what the program maps and unmaps.

use serde::Serialize;
use terrace_core::{
    Access as Kind, FaultKind, Nanos, PageRange, PageRef, PageSize, Region, Sample, SampleSource,
    TierId,
};

use super::address_space::{map_size, take_any};
use super::machine::ExactMachine;
use super::page_table::{Entry, MapSize};
use crate::error::SimError;

/// What faults cost the program, item by item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FaultCosts {
    /// Pages that were touched for the first time.
    pub first_touches: u64,
    /// Of those, huge pages.
    pub huge: u64,
    /// Faults that were asked for to see an access.
    pub hints: u64,
    /// Stores that waited for a page being moved.
    pub write_protected: u64,
    /// Pages that were demoted while the program waited for their room: their tier
    /// was full.
    pub forced: u64,
    /// Page tables that were made.
    pub tables: u64,
    /// Entering and leaving the kernel, and finding the mapping.
    pub trap: Nanos,
    /// Clearing pages.
    pub zeroing: Nanos,
    /// Clearing page tables.
    pub table_zeroing: Nanos,
    /// Waiting for pages being moved.
    pub waiting: Nanos,
    /// Demoting pages to make room.
    pub reclaiming: Nanos,
}

impl ExactMachine {
    /// The program maps memory.
    pub fn map(&mut self, start: u64, len: u64) {
        let regions = self.areas.map(start, len, self.runtime.page_size);
        self.announce(&regions);
    }

    /// Memory that the program has in the fastest tier by its own wish (a
    /// placement flag of `mmap`): the policy never hears of it. To be said before
    /// the range is mapped.
    pub fn pin(&mut self, start: u64, len: u64) {
        self.runtime.pinned = (start, start.saturating_add(len));
    }

    fn announce(&mut self, regions: &[Region]) {
        for region in regions {
            let page = PageRef { region: region.id, page: terrace_core::PageNo(0) };
            let start = self.areas.address(page).map_or(0, |(address, _)| address);
            if self.runtime.is_pinned(start) {
                continue;
            }
            if let Some(brain) = &mut self.runtime.brain {
                brain.alloc(region);
            }
        }
    }

    /// The program unmaps memory.
    pub fn unmap(&mut self, start: u64, len: u64) {
        for (range, whole) in self.areas.parts(start, len) {
            self.discard(range);
            let known = !self.runtime.is_pinned(start);
            if let (Some(brain), true) = (&mut self.runtime.brain, known) {
                brain.free(range, whole);
            }
            if whole {
                self.areas.remove(range.region);
            }
        }
    }

    /// Pages of a range lie nowhere any more.
    fn discard(&mut self, range: PageRange) {
        for page in range.pages() {
            let Some((address, size)) = self.areas.address(page) else { return };
            // The address of a page that was split belongs to another region.
            let place = self.memory.table.place(address);
            if place.is_none_or(|place| place.size() != map_size(size)) {
                continue;
            }
            if let Some((size, entry)) = self.memory.table.unmap(address) {
                self.shoot_down(address, size);
                self.forget_lines(entry.frame(), size);
                self.memory.frames.give(entry.frame(), size.order());
            }
        }
    }

    /// No core knows a page's translation any more.
    pub(super) fn shoot_down(&mut self, address: u64, size: MapSize) {
        for core in self.cores.iter_mut().filter(|core| core.used) {
            core.tlbs.forget(address, size);
            core.filter.forget();
        }
    }

    /// No cache holds anything of a block of frames any more.
    pub(super) fn forget_lines(&mut self, frame: u64, size: MapSize) {
        let lines = 64u64 << size.order();
        (0..lines).for_each(|i| self.caches.forget((frame << 6) + i));
    }

    /// A translation that the hardware cannot find, or is told to stop at.
    /// `None` when the simulation cannot go on.
    #[cold]
    #[inline(never)]
    pub(super) fn fault(&mut self, core: usize, address: u64, store: bool) -> Option<()> {
        let kind = if store { Kind::Write } else { Kind::Read };
        let place = self.memory.table.place(address);
        if let Some(place) = place
            && self.memory.table.entry(place).is_present()
        {
            self.memory.table.entry_mut(place).0 &= !Entry::ARMED;
            self.hint(core, address, kind);
            return Some(());
        }
        let (page, size) = if let Some(found) = self.areas.page(address) {
            found
        } else {
            let regions = self.areas.imply(address, self.runtime.page_size);
            self.announce(&regions);
            self.areas.page(address)?
        };
        let tier = if self.runtime.is_pinned(address) {
            TierId::FASTEST
        } else {
            self.choose_new(page, size, FaultKind::FirstTouch(kind))
        };
        let size = map_size(size);
        if self.memory.frames.free_in(tier, size.order()).is_zero() {
            self.reclaim(core, tier, page, size);
        }
        // What a yardstick is to hold must fit: elsewhere it would measure something else.
        let is_yardstick = self.runtime.brain.is_none() && tier != TierId::FASTEST;
        if is_yardstick && self.memory.frames.free_in(tier, size.order()).is_zero() {
            let held = self.memory.frames.capacity(tier);
            self.error = Some(SimError::parameter(
                "machine",
                format!(
                    "the slowest tier is full ({held}) at address {address:#x}: with all-slow \
                     everything lies there"
                ),
            ));
            return None;
        }
        // Where nothing could be made free the page lies where there is room.
        let Some(frame) = take_any(&mut self.memory.frames, tier, size.order()) else {
            self.error = Some(self.out_of_memory(address));
            return None;
        };
        let start = address & !((1 << size.shift()) - 1);
        let Some(tables) = self.memory.map(start, size, frame) else {
            self.error = Some(self.out_of_memory(address));
            return None;
        };
        self.charge_first_touch(core, size, tables);
        Some(())
    }

    pub(super) fn out_of_memory(&self, address: u64) -> SimError {
        let held: Vec<String> = (0..self.tiers.len())
            .map(|i| self.memory.frames.capacity(TierId(i as u8)).to_string())
            .collect();
        SimError::parameter(
            "machine",
            format!("no memory left for address {address:#x}: the tiers hold {}", held.join(" + ")),
        )
    }

    /// Where a page goes that is touched for the first time.
    fn choose_new(&mut self, page: PageRef, size: PageSize, kind: FaultKind) -> TierId {
        let telemetry = self.telemetry();
        let runtime = &mut self.runtime;
        let Some(brain) = &mut runtime.brain else { return runtime.fixed };
        let (tier, asked) = brain.place(page, size, kind, &telemetry);
        if asked {
            runtime.tell_decisions();
        }
        tier
    }

    fn choose(&mut self, page: PageRef, kind: FaultKind) -> TierId {
        let telemetry = self.telemetry();
        match &mut self.runtime.brain {
            Some(brain) => brain.fault(page, kind, &telemetry),
            None => self.runtime.fixed,
        }
    }

    fn charge_first_touch(&mut self, core: usize, size: MapSize, tables: u32) {
        let costs = &self.runtime.costs;
        let bandwidth = costs.copy_bandwidth.value;
        let trap = costs.kernel_fault.value;
        let base = PageSize::Base.bytes();
        let zeroing = bandwidth.time_for(base * (1 << size.order()));
        let table_zeroing = bandwidth.time_for(base * u64::from(tables));
        let faults = &mut self.runtime.faults;
        faults.first_touches += 1;
        faults.huge += u64::from(size == MapSize::Huge);
        faults.tables += u64::from(tables);
        faults.trap += trap;
        faults.zeroing += zeroing;
        faults.table_zeroing += table_zeroing;
        let me = &mut self.cores[core];
        me.clock.spend(me.instructions, (trap + zeroing + table_zeroing).as_f64());
    }

    fn hint(&mut self, core: usize, address: u64, kind: Kind) {
        let trap = self.runtime.costs.kernel_fault.value;
        self.runtime.faults.hints += 1;
        self.runtime.faults.trap += trap;
        let me = &mut self.cores[core];
        me.clock.spend(me.instructions, trap.as_f64());
        if let Some((page, _)) = self.areas.page(address) {
            self.choose(page, FaultKind::Hint(kind));
            self.runtime.sampler.counts.hint_faults += 1;
            let sample = Sample { page, access: kind, source: SampleSource::HintFault, weight: 1 };
            if let Some(brain) = &mut self.runtime.brain {
                brain.samples(&[sample]);
            }
        }
    }

    /// A store to a page that is being moved waits until the move is over.
    #[cold]
    pub(super) fn wait_for_move(&mut self, core: usize, address: u64) {
        let fault = self.runtime.costs.user_fault.value;
        self.runtime.faults.write_protected += 1;
        let me = &mut self.cores[core];
        let now = me.clock.time(me.instructions);
        let end = self.runtime.mover.end_of_move().unwrap_or(now).max(now);
        let waiting = end - now + fault.as_f64();
        me.clock.spend(me.instructions, waiting);
        self.runtime.faults.waiting += Nanos::from_f64(waiting);
        self.move_pages(end);
        if let Some((page, _)) = self.areas.page(address) {
            self.choose(page, FaultKind::WriteProtected);
        }
    }
}
