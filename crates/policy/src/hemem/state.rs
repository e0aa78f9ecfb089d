//! Pages, counters and lists, and the operations that keep them consistent.
//!
//! Invariant: a placed page is either in exactly one list, the one that its
//! tier and standing name, or under way and in none.

use core::ops::Range;

use terrace_core::{Access, Heat, MAX_TIERS, Nanos, OpId, PageRef, PerSecond, Telemetry, TierId};

use super::clock::CoolingClock;
use super::config::HeMemConfig;
use super::page::{Class, Page, Standing};
use crate::dense::{InUse, PerPage};
use crate::fifo::{Fifo, Links};
use crate::regions::Regions;

/// A full sweep takes at most this many ticks, and there is at most one
/// cooling a tick: so no page is ever 256 coolings behind, where its clock of
/// eight bits would be ambiguous.
const SWEEP_TICKS: usize = 128;

/// Pages are remembered to be at most this old, in ticks. It must exceed the
/// longest window of [`CoolingClock::window`], two cooling intervals, and stay
/// below 2^16 by more than the time between two sweeps.
const OLDEST: u16 = 1 << 15;

/// The longest cooling interval that ages of 16 bits allow, in ticks.
pub(super) const LONGEST_COOLING: u64 = 1 << 13;

/// At which end of its list a page is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It is taken last.
    Young,
    /// It is taken next.
    Old,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) config: HeMemConfig,
    pub(super) regions: Regions,
    pages: PerPage<Page>,
    in_use: InUse,
    links: Links,
    /// By tier and class.
    lists: [[Fifo; 3]; MAX_TIERS],
    clock: CoolingClock,
    /// The latest time that the world told.
    now: Nanos,
    /// Whether the pages were cooled since the last tick.
    cooled: bool,
    /// The slot that the sweep visits next.
    cursor: u32,
    /// Slots that the sweep has yet to visit since the last cooling.
    unswept: usize,
}

impl State {
    pub(super) fn new(config: HeMemConfig) -> Self {
        Self {
            config,
            regions: Regions::default(),
            pages: PerPage::default(),
            in_use: InUse::default(),
            links: Links::default(),
            lists: [[Fifo::EMPTY; 3]; MAX_TIERS],
            clock: CoolingClock::default(),
            now: Nanos::ZERO,
            cooled: false,
            cursor: 0,
            unswept: 0,
        }
    }

    /// Makes state for slots below `slots`.
    pub(super) fn grow(&mut self, slots: usize) {
        if self.unswept > 0 {
            // New slots lie before the cursor's wrap: without this their
            // visits would be taken off those of old slots.
            self.unswept += slots.saturating_sub(self.pages.len());
        }
        self.pages.grow(slots);
        self.in_use.grow(slots);
        self.links.grow(slots);
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.regions.heap_bytes()
            + self.pages.heap_bytes()
            + self.in_use.heap_bytes()
            + self.links.heap_bytes()
    }

    pub(super) fn page(&self, slot: u32) -> Page {
        self.pages[slot]
    }

    /// How many slots there are.
    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    /// The pages of a list, oldest first.
    pub(super) fn list(&self, tier: TierId, class: Class) -> impl Iterator<Item = u32> {
        self.lists[tier.index()][class as usize].iter(&self.links)
    }

    /// Whether the last cooling has reached every page.
    pub(super) fn is_swept(&self) -> bool {
        self.unswept == 0
    }

    /// What a page's counters say, due coolings applied.
    pub(super) fn class(&self, slot: u32) -> Class {
        let mut page = self.page(slot);
        page.cool(self.clock.stamp());
        page.class(&self.config)
    }

    pub(super) fn oldest(&self, tier: TierId, class: Class) -> Option<u32> {
        self.lists[tier.index()][class as usize].oldest()
    }

    /// The world's clock; it never runs backward here.
    pub(super) fn set_now(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    // --- placement -------------------------------------------------------

    /// Enters a page that was placed for the first time.
    pub(super) fn place_new(&mut self, slot: u32, tier: TierId) {
        self.unplace(slot);
        self.in_use.add(slot);
        self.pages[slot] = Page::placed(self.ticks(), self.clock.stamp());
        self.enlist(slot, tier, End::Young);
    }

    /// Enters a page that was brought in, with what is known of it.
    pub(super) fn place_known(&mut self, slot: u32, tier: TierId) {
        if self.page(slot).standing() == Standing::Unplaced {
            self.place_new(slot, tier);
        } else {
            self.delist(slot);
            self.enlist(slot, tier, End::Young);
        }
    }

    /// Forgets a page.
    fn unplace(&mut self, slot: u32) {
        if self.page(slot).standing() != Standing::Unplaced {
            self.delist(slot);
            self.pages[slot] = Page::default();
            self.in_use.remove(slot);
        }
    }

    /// Forgets a run of pages.
    pub(super) fn unplace_all(&mut self, mut run: Range<u32>) {
        while !run.is_empty() {
            let (part, any) = self.in_use.first_part(&run);
            run.start = part.end;
            if any {
                part.for_each(|slot| self.unplace(slot));
            }
        }
    }

    /// Takes a page out of its list, if it is in one.
    fn delist(&mut self, slot: u32) {
        let page = self.page(slot);
        if let Standing::Listed(class) = page.standing() {
            self.lists[page.tier().index()][class as usize].remove(&mut self.links, slot);
        }
    }

    /// Cools a page that is in no list, and enters it into the one it belongs to.
    fn enlist(&mut self, slot: u32, tier: TierId, end: End) {
        let page = &mut self.pages[slot];
        page.cool(self.clock.stamp());
        let class = page.class(&self.config);
        page.set(tier, Standing::Listed(class));
        let list = &mut self.lists[tier.index()][class as usize];
        match end {
            End::Young => list.push(&mut self.links, slot),
            End::Old => list.push_oldest(&mut self.links, slot),
        }
    }

    // --- proposals -------------------------------------------------------

    /// Takes a page out of its list while a proposal about it is under way.
    pub(super) fn begin(&mut self, slot: u32, op: OpId) {
        self.delist(slot);
        let page = &mut self.pages[slot];
        page.set(page.tier(), Standing::UnderWay);
        self.links.set_op(slot, op);
    }

    /// The slot of a page if this proposal about it is the one under way: not
    /// if the page was freed meanwhile, even if it was placed again since.
    pub(super) fn under_way(&self, page: PageRef, op: OpId) -> Option<u32> {
        let slot = self.regions.slot(page)?;
        (self.page(slot).standing() == Standing::UnderWay && self.links.op(slot) == op)
            .then_some(slot)
    }

    /// A proposal about a page ended, and the page lies in `tier`.
    pub(super) fn end(&mut self, slot: u32, tier: TierId, end: End) {
        debug_assert_eq!(self.page(slot).standing(), Standing::UnderWay);
        self.enlist(slot, tier, end);
    }

    // --- samples and cooling ---------------------------------------------

    /// Counts an access to a placed page.
    pub(super) fn count(&mut self, slot: u32, access: Access, weight: u16) {
        let stamp = self.clock.stamp();
        let page = &mut self.pages[slot];
        // A sample may come late, when the page is gone.
        let standing = page.standing();
        if standing == Standing::Unplaced {
            return;
        }
        page.cool(stamp);
        if page.count(access, weight, &self.config) && !self.cooled {
            self.cool_all();
        }
        let page = &mut self.pages[slot];
        page.cool(self.clock.stamp());
        if let Standing::Listed(class) = standing {
            // A cold page is moved to the young end also when it stays cold:
            // it was used more recently than those that nobody saw used.
            if class == Class::Cold || page.class(&self.config) != class {
                self.relist(slot);
            }
        }
    }

    /// Moves a listed page to the young end of the list it now belongs to.
    pub(super) fn relist(&mut self, slot: u32) {
        self.delist(slot);
        self.enlist(slot, self.page(slot).tier(), End::Young);
    }

    /// Applies due coolings to a listed page; says what it is now.
    pub(super) fn refresh(&mut self, slot: u32, class: Class) -> Class {
        let page = &mut self.pages[slot];
        page.cool(self.clock.stamp());
        let now = page.class(&self.config);
        if now != class {
            self.relist(slot);
        }
        now
    }

    /// Halves all counters, from now on.
    fn cool_all(&mut self) {
        self.cooled = true;
        self.clock.advance(self.now);
        self.unswept = self.pages.len();
    }

    /// Cools by time, and lets coolings reach pages that nobody samples.
    pub(super) fn sweep(&mut self) {
        self.cooled = false;
        if self.now.saturating_sub(self.clock.last()) >= self.config.cooling_interval {
            self.cool_all();
        }
        let share = self.pages.len().div_ceil(SWEEP_TICKS);
        let visits = share.max(self.config.sweep_pages as usize).min(self.unswept);
        let mut left = visits as u32;
        while left > 0 && self.unswept > 0 {
            if self.cursor >= self.pages.len() as u32 {
                self.cursor = 0;
            }
            let end = self.pages.len().min(self.cursor as usize + self.unswept) as u32;
            let (mut part, any) = self.in_use.first_part(&(self.cursor..end));
            if any {
                part.end = part.end.min(part.start + left);
                left -= part.len() as u32;
                part.clone().for_each(|slot| self.visit(slot));
            } else {
                // A glance at the count of the chunk is all it takes.
                left -= 1;
            }
            self.unswept -= part.len();
            self.cursor = part.end;
        }
    }

    /// Applies due coolings to one page, and keeps its age within bounds.
    fn visit(&mut self, slot: u32) {
        let ticks = self.ticks();
        let page = &mut self.pages[slot];
        if ticks.wrapping_sub(page.since) > OLDEST {
            page.since = ticks.wrapping_sub(OLDEST);
        }
        match page.standing() {
            Standing::Unplaced => {}
            Standing::UnderWay => page.cool(self.clock.stamp()),
            Standing::Listed(class) => {
                self.refresh(slot, class);
            }
        }
    }

    // --- evidence --------------------------------------------------------

    /// Whether one page is so much colder than another that an exchange is
    /// worth it: see [`HeMemConfig::exchange_ratio`].
    pub(super) fn is_colder(&self, cold: u32, hot: u32) -> bool {
        let threshold = u32::from(self.config.hot_loads) * u32::from(self.config.hot_stores);
        let ratio = u32::from(self.config.exchange_ratio);
        threshold + ratio * self.weight(cold) <= self.weight(hot)
    }

    /// How hot a page is, on a scale on which a page at either threshold has
    /// the product of the two.
    fn weight(&self, slot: u32) -> u32 {
        let mut page = self.page(slot);
        page.cool(self.clock.stamp());
        u32::from(page.loads) * u32::from(self.config.hot_stores)
            + u32::from(page.stores) * u32::from(self.config.hot_loads)
    }

    /// The time in ticks, as pages store it.
    fn ticks(&self) -> u16 {
        (self.now.get() / self.config.tick.get()) as u16
    }

    /// How much a page is used, as far as its counters tell.
    pub(super) fn heat(&self, slot: u32, telemetry: &Telemetry) -> Heat {
        let mut page = self.page(slot);
        page.cool(self.clock.stamp());
        let age = self.config.tick * u64::from(self.ticks().wrapping_sub(page.since));
        // What happened within the current tick took at most a tick.
        let window = self.clock.window(self.now, age).max(self.config.tick);
        let period = telemetry.sample_period.max(1) as f64;
        let rate = |count: u8| PerSecond::from_count(f64::from(count) * period, window);
        Heat {
            loads: rate(page.loads),
            stores: rate(page.stores),
            samples: u32::from(page.loads) + u32::from(page.stores),
            window,
        }
    }
}
