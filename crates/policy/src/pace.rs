//! How much room the live pager kept free in a recorded run, event by event.
//!
//! The pager makes room in the background as fast as it has processors for that, now more and now
//! less than its policy asks for. What left too early came back: a model that keeps always the
//! same room free has fewer misses than the run that was recorded.

use std::collections::HashMap;

use terrace_core::{
    Action, Bytes, Event, FaultKind, Nanos, PageRange, PageRef, PageSize, RegionId, Telemetry,
};

/// What of a budget is told as free at most: beyond it nobody made room.
const MOST: f64 = 0.125;

fn pages(budget: Bytes) -> u64 {
    (budget.get() >> PageSize::Base.shift()).max(1)
}

/// What the process might have in DRAM when an event happened, if the event tells: its share of
/// the budget where it shared one, which others and `terrace set` change.
pub(crate) fn budget_at(event: &Event) -> Option<Bytes> {
    let capacity = telemetry(event)?.tiers[0].capacity;
    Some(capacity).filter(|capacity| !capacity.is_zero())
}

fn telemetry(event: &Event) -> Option<&Telemetry> {
    match event {
        Event::Fault { telemetry, .. }
        | Event::Tick { telemetry }
        | Event::Pressure { telemetry, .. }
        | Event::Done { telemetry, .. } => Some(telemetry),
        _ => None,
    }
}

/// A page in the recorded run.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    resident: bool,
    /// When it left last.
    left: Nanos,
    /// How long it was away then, until it came back; zero if it never did.
    away: Nanos,
    /// Whether it came because another page was touched.
    ahead: bool,
}

/// The recorded run's resident pages.
#[derive(Debug)]
pub struct Pace {
    budget: u64,
    resident: u64,
    now: Nanos,
    regions: HashMap<RegionId, Vec<Page>>,
    /// Pages that have left; zero as long as no room has been made.
    left: u64,
    /// How many of them were touched again, and how long these were away together.
    back: u64,
    away: Nanos,
}

impl Pace {
    /// Of a process with a budget.
    pub fn new(budget: Bytes) -> Self {
        let (resident, now, regions) = (0, Nanos::ZERO, HashMap::new());
        let (left, back, away) = (0, 0, Nanos::ZERO);
        Self { budget: pages(budget), resident, now, regions, left, back, away }
    }

    /// Takes in an event.
    pub fn feed(&mut self, event: &Event) {
        if let Some(telemetry) = telemetry(event) {
            self.now = self.now.max(telemetry.now);
        }
        if let Some(budget) = budget_at(event) {
            self.budget = pages(budget);
        }
        match event {
            Event::Alloc { region } => {
                self.clear(region.range(), true);
                self.regions.insert(region.id, vec![Page::default(); region.pages as usize]);
            }
            Event::Fault { page, kind, .. } => match kind {
                FaultKind::FirstTouch(_) => self.set(*page, true),
                FaultKind::Absent(_) => self.comes_back(*page, false),
                FaultKind::Ahead => self.comes_back(*page, true),
                FaultKind::Hint(_) | FaultKind::WriteProtected => {}
            },
            Event::Done { done, .. } if done.outcome.is_completed() => {
                if let Action::Demote { page, .. } = done.proposal.action {
                    self.left += 1;
                    self.set(page, false);
                }
            }
            Event::Discard { range } => self.clear(*range, false),
            Event::Free { range } => self.clear(*range, true),
            _ => {}
        }
    }

    /// The share of the budget that is free now; `None` as long as no room has been made.
    pub fn free(&self) -> Option<f64> {
        let free = self.budget.saturating_sub(self.resident) as f64 / self.budget as f64;
        (self.left > 0).then(|| free.min(MOST))
    }

    /// Whether a page is in DRAM.
    pub fn is_resident(&self, page: PageRef) -> bool {
        let pages = self.regions.get(&page.region);
        pages.and_then(|pages| pages.get(page.page.0 as usize)).is_some_and(|page| page.resident)
    }

    /// How long a page was away when it left last, and whether it came back because another page
    /// was touched; `None` if it never came back.
    pub fn away(&self, page: PageRef) -> Option<(Nanos, bool)> {
        let page = self.regions.get(&page.region)?.get(page.page.0 as usize)?;
        (!page.away.is_zero()).then_some((page.away, page.ahead))
    }

    fn comes_back(&mut self, page: PageRef, ahead: bool) {
        let now = self.now;
        if let Some(found) = self.page(page).filter(|page| !page.left.is_zero()) {
            // Not zero, which says that it never came back.
            let away = (now - found.left).max(Nanos(1));
            (found.away, found.ahead) = (away, ahead);
            if !ahead {
                self.away += away;
                self.back += 1;
            }
        }
        self.set(page, true);
    }

    /// The share of all pages that left which were touched again so far, and after how long on
    /// average.
    pub fn come_back(&self) -> (f64, Nanos) {
        (self.back as f64 / self.left.max(1) as f64, self.away / self.back.max(1))
    }

    fn page(&mut self, page: PageRef) -> Option<&mut Page> {
        self.regions.get_mut(&page.region)?.get_mut(page.page.0 as usize)
    }

    fn set(&mut self, page: PageRef, resident: bool) {
        let now = self.now;
        let Some(page) = self.page(page).filter(|page| page.resident != resident) else { return };
        page.resident = resident;
        if resident {
            self.resident += 1;
        } else {
            page.left = now;
            self.resident -= 1;
        }
    }

    fn clear(&mut self, range: PageRange, whole: bool) {
        let Some(pages) = self.regions.get_mut(&range.region) else { return };
        let end = (range.start.0 as usize).saturating_add(range.count as usize).min(pages.len());
        let start = if whole { 0 } else { (range.start.0 as usize).min(end) };
        let cleared = if whole { &mut pages[..] } else { &mut pages[start..end] };
        self.resident -= cleared.iter().filter(|page| page.resident).count() as u64;
        cleared.fill(Page::default());
        if whole {
            self.regions.remove(&range.region);
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::{Access, ContextId, PageNo, Region, TierTelemetry};

    use super::*;

    const REGION: RegionId = RegionId(1);

    fn telemetry(millis: u64, budget: Bytes) -> Box<Telemetry> {
        let mut telemetry = Telemetry { now: Nanos::millis(millis), ..Telemetry::default() };
        telemetry.tiers[0] = TierTelemetry { capacity: budget, ..TierTelemetry::default() };
        Box::new(telemetry)
    }

    fn touch(pace: &mut Pace, number: u32, kind: FaultKind, millis: u64) {
        let page = PageRef { region: REGION, page: PageNo(number) };
        let telemetry = telemetry(millis, Bytes::mib(4));
        pace.feed(&Event::Fault { page, kind, telemetry });
    }

    fn demoted(pace: &mut Pace, number: u32, millis: u64) {
        use terrace_core::{Cycles, Done, Heat, OpId, Outcome, Proposal, Reason, TierId, Urgency};

        let page = PageRef { region: REGION, page: PageNo(number) };
        let proposal = Proposal {
            op: OpId(1),
            action: Action::Demote { page, from: TierId(0), to: TierId(1) },
            page_size: PageSize::Base,
            heat: Heat::default(),
            victim_heat: Heat::default(),
            urgency: Urgency::Forced,
            reason: Reason::PressureCold,
        };
        let outcome = Outcome::Completed { cost: Cycles(1), moved: PageSize::Base.bytes() };
        let done = Done { proposal, outcome };
        pace.feed(&Event::Done { done, telemetry: telemetry(millis, Bytes::mib(4)) });
    }

    #[test]
    fn what_is_free_and_how_long_pages_were_away_is_followed() {
        let mut pace = Pace::new(Bytes::mib(4));
        let context = ContextId::ANONYMOUS;
        let region = Region { id: REGION, pages: 4096, page_size: PageSize::Base, context };
        pace.feed(&Event::Alloc { region });
        let page = PageRef { region: REGION, page: PageNo(3) };
        for number in 0..1024 {
            touch(&mut pace, number, FaultKind::FirstTouch(Access::Write), 1);
        }
        assert_eq!(pace.free(), None, "no room was made yet");

        for number in 0..32 {
            demoted(&mut pace, number, 10);
        }
        assert_eq!(pace.free(), Some(32.0 / 1024.0));
        assert!(!pace.is_resident(page) && pace.away(page).is_none());

        touch(&mut pace, 3, FaultKind::Absent(Access::Read), 25);
        touch(&mut pace, 4, FaultKind::Ahead, 25);
        assert_eq!(pace.away(page), Some((Nanos::millis(15), false)));
        assert_eq!(pace.free(), Some(30.0 / 1024.0));
        assert_eq!(pace.come_back(), (1.0 / 32.0, Nanos::millis(15)));

        let range = PageRange { region: REGION, start: PageNo(0), count: 1024 };
        pace.feed(&Event::Discard { range });
        assert_eq!(pace.free(), Some(MOST), "what the program gave back is no pace");
        assert!(!pace.is_resident(page));
    }
}
