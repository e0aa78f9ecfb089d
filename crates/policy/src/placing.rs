//! Where new memory goes, run by run.
//!
//! A page's first memory is the answer of [`crate::Policy::fault`]. The economist is asked about it once
//! for many: pages of one mapping that are touched for the first time one after the other, get the same
//! answer, and find the memories as full as before. What it refuses goes elsewhere by asking the
//! policy again with that memory shown as full: so the policy knows where its pages lie.

use std::collections::BTreeMap;

use terrace_core::{Bytes, PageSize, Region, RegionId, Telemetry, TierId};

/// Mappings that are followed at once: programs seldom fill more at a time.
const RUNS: usize = 8;
/// First touches for which an answer of the economist holds: 2 MiB of base pages.
const PAGES: u32 = 512;

/// How short a memory is of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Ample,
    Scarce,
    None,
}

impl Room {
    fn of(telemetry: &Telemetry, tier: TierId, size: PageSize, ample: f64) -> Self {
        let memory = telemetry.tier(tier);
        if memory.free < size.bytes() {
            Self::None
        } else if memory.free.as_f64() < ample * memory.capacity.as_f64() {
            Self::Scarce
        } else {
            Self::Ample
        }
    }
}

/// The choice that there is for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// What the policy says.
    pub(crate) tier: TierId,
    /// Where the page would lie otherwise.
    pub(crate) instead: TierId,
    room: [Room; 2],
}

impl Choice {
    /// For a page that the policy puts into a memory: the next slower one that the program can use, or
    /// else the next faster; `None` if there is no other. So much of a memory is to be free, as a share,
    /// for its room to be ample.
    pub(crate) fn of(
        tier: TierId,
        size: PageSize,
        telemetry: &Telemetry,
        ample: f64,
    ) -> Option<Self> {
        let addressable = || telemetry.ladder().filter(|(_, it)| it.addressable).map(|(id, _)| id);
        addressable().find(|&id| id == tier)?;
        let slower = addressable().find(|&id| id > tier);
        let instead = slower.or_else(|| addressable().filter(|&id| id < tier).last())?;
        let room = [tier, instead].map(|id| Room::of(telemetry, id, size, ample));
        Some(Self { tier, instead, room })
    }

    /// Whether the page could lie there, too.
    pub(crate) fn is_free(self) -> bool {
        self.room[1] != Room::None
    }
}

/// First touches of one mapping.
#[derive(Clone, Copy, Debug)]
struct Run {
    region: RegionId,
    choice: Choice,
    refused: bool,
    /// For how many more pages that holds.
    left: u32,
    /// The step of all runs at which it was used last.
    used: u64,
}

/// The runs, and what is mapped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placing {
    runs: [Option<Run>; RUNS],
    steps: u64,
    mappings: BTreeMap<RegionId, Bytes>,
    mapped: Bytes,
}

impl Placing {
    /// The program mapped a region, maybe with the number of one that is gone.
    pub(crate) fn map(&mut self, region: &Region) {
        self.unmap(region.id);
        let bytes = region.page_size.bytes() * u64::from(region.pages);
        self.mappings.insert(region.id, bytes);
        self.mapped += bytes;
    }

    /// A region is gone. Parts of one that went on as regions of their own count with it.
    pub(crate) fn unmap(&mut self, region: RegionId) {
        let bytes = self.mappings.remove(&region).unwrap_or(Bytes::ZERO);
        self.mapped = self.mapped.saturating_sub(bytes);
    }

    /// What the program has mapped, touched or not.
    pub(crate) fn mapped(&self) -> Bytes {
        self.mapped
    }

    /// A mapping's run, used now; `None` if it is not followed.
    fn run(&mut self, region: RegionId) -> Option<&mut Run> {
        self.steps += 1;
        let run = self.runs.iter_mut().flatten().find(|run| run.region == region)?;
        run.used = self.steps;
        Some(run)
    }

    /// Takes a page of a mapping to which a refusal applies, if one does: the memories are as full as
    /// they were, and there is room in the other one. The memory that is refused.
    pub(crate) fn refused(
        &mut self,
        region: RegionId,
        size: PageSize,
        telemetry: &Telemetry,
        ample: f64,
    ) -> Option<TierId> {
        let run = self.run(region).filter(|run| run.refused)?;
        let tier = run.choice.tier;
        let now = Choice::of(tier, size, telemetry, ample);
        if run.left == 0 || now != Some(run.choice) || !run.choice.is_free() {
            return None;
        }
        run.left -= 1;
        Some(tier)
    }

    /// Takes a page of a mapping; whether the economist's last answer holds for it.
    pub(crate) fn goes_on(&mut self, region: RegionId, choice: Choice) -> bool {
        let same = |run: &&mut Run| run.choice == choice && !run.refused && run.left > 0;
        if let Some(run) = self.run(region).filter(same) {
            run.left -= 1;
            return true;
        }
        false
    }

    /// The economist has answered for a page and those that follow it. The run that was used longest ago
    /// gives way where there is no place.
    pub(crate) fn begin(&mut self, region: RegionId, choice: Choice, refused: bool) {
        self.steps += 1;
        let run = Run { region, choice, refused, left: PAGES - 1, used: self.steps };
        let order = |place: &&mut Option<Run>| match place {
            Some(own) if own.region == region => (0, 0),
            None => (1, 0),
            Some(other) => (2, other.used),
        };
        if let Some(place) = self.runs.iter_mut().min_by_key(order) {
            *place = Some(run);
        }
    }
}

/// What is shown to a policy whose choice was refused.
pub(crate) fn without(telemetry: &Telemetry, tier: TierId) -> Telemetry {
    let mut shown = *telemetry;
    if let Some(memory) = shown.tiers.get_mut(tier.index()) {
        memory.free = Bytes::ZERO;
    }
    shown
}

#[cfg(test)]
mod tests {
    use terrace_core::{
        Access, Action, ContextId, FaultKind, Machine, Nanos, PageNo, PageRef, PerSecond, Reason,
        TierTelemetry, Urgency,
    };
    use terrace_economics::{Calibration, Economist, Mode, Verdict};

    use super::*;
    use crate::brain::Brain;
    use crate::registry::PolicyName;

    const FAST: TierId = TierId(0);
    const SLOW: TierId = TierId(1);

    fn telemetry(fast: u64, slow: u64, addressable: bool) -> Telemetry {
        let mut telemetry = Telemetry { tier_count: 2, cpu_load: 1.0, ..Telemetry::default() };
        let tier = |free, addressable, latency| TierTelemetry {
            capacity: Bytes::mib(64),
            free: Bytes(free),
            addressable,
            read_latency: latency,
            write_latency: latency,
            accesses: PerSecond(1e6),
            ..TierTelemetry::default()
        };
        telemetry.tiers[0] = tier(fast, true, Nanos(81));
        telemetry.tiers[1] = tier(slow, addressable, Nanos(305));
        telemetry
    }

    fn brain(mode: Mode, policy: PolicyName) -> Brain {
        let machine = include_str!("../../../machines/cxl.toml");
        let machine = Machine::parse("cxl", machine).expect("a machine");
        let economist = Economist::new(mode, Calibration::from_machine(&machine));
        let mut brain = Brain::new(policy.build(), economist);
        for id in [1, 2] {
            brain.alloc(&region(id));
        }
        brain
    }

    fn region(id: u32) -> Region {
        let (page_size, context) = (PageSize::Base, ContextId::ANONYMOUS);
        Region { id: RegionId(id), pages: 4096, page_size, context }
    }

    /// Where a page goes, and whether that was asked.
    fn touch(
        brain: &mut Brain,
        (region, page): (u32, u32),
        telemetry: &Telemetry,
    ) -> (TierId, bool) {
        let page = PageRef { region: RegionId(region), page: PageNo(page) };
        brain.place(page, PageSize::Base, FaultKind::FirstTouch(Access::Write), telemetry)
    }

    const HALF: u64 = 32 << 20;

    #[test]
    fn one_answer_holds_for_a_run_of_a_mapping() {
        let mut brain = brain(Mode::Shadow, PolicyName::FirstTouch);
        let roomy = telemetry(HALF, HALF, true);
        let asked: Vec<_> = (0..PAGES + 2)
            .filter(|&page| {
                // Another mapping's first touches in between are a run of their own.
                let (_, other) = touch(&mut brain, (2, page), &roomy);
                assert_eq!(other, page.is_multiple_of(PAGES));
                touch(&mut brain, (1, page), &roomy).1
            })
            .collect();
        assert_eq!(asked, [0, PAGES]);
        let decision = brain.decisions().last().expect("just decided");
        let page = PageRef { region: RegionId(1), page: PageNo(PAGES) };
        let mapped = Bytes::mib(32);
        assert_eq!(decision.action, Action::Place { page, to: FAST, instead: SLOW, mapped });
        assert_eq!((decision.reason, decision.urgency), (Reason::NewMemory, Urgency::Voluntary));
        // As the memory becomes short, and then full, it is another choice.
        let scarce = telemetry(1 << 20, HALF, true);
        assert_eq!(touch(&mut brain, (1, PAGES + 2), &scarce), (FAST, true));
        assert_eq!(touch(&mut brain, (1, PAGES + 3), &scarce), (FAST, false));
        let full = telemetry(0, HALF, true);
        assert_eq!(touch(&mut brain, (1, PAGES + 4), &full), (SLOW, true));
        let decision = brain.decisions().last().expect("just decided");
        assert_eq!(decision.verdict, Verdict::Forced, "there is no room elsewhere");
    }

    /// How mappings are numbered says nothing of how they are used.
    #[test]
    fn mappings_have_runs_whatever_their_numbers_and_the_one_used_longest_ago_gives_way() {
        const RUNS: u32 = super::RUNS as u32;
        let roomy = telemetry(HALF, HALF, true);
        let number = |n| (n + 1) * RUNS;
        // What is let pass, and what is refused.
        for (mode, policy) in
            [(Mode::Shadow, PolicyName::FirstTouch), (Mode::Enforce, PolicyName::Hscc)]
        {
            let mut brain = brain(mode, policy);
            (0..=RUNS).for_each(|n| brain.alloc(&region(number(n))));
            let mut asked = |n, page| touch(&mut brain, (number(n), page), &roomy).1;
            for page in 0..3 {
                for n in 0..RUNS {
                    assert_eq!(asked(n, page), page == 0, "{mode:?}: {n}, {page}");
                }
            }
            // The first was used again, so it is the second that gives way.
            assert!(!asked(0, 3));
            assert!(asked(RUNS, 0), "one more");
            assert!(!asked(0, 4));
            assert!((2..RUNS).all(|n| !asked(n, 3)), "{mode:?}");
            assert!(asked(1, 3), "{mode:?}");
        }
    }

    /// The policy puts new pages into the slowest memory, and the fast one is free: nothing is gained by
    /// that. The first page lies where the policy said; it knows of all where they lie.
    #[test]
    fn what_is_refused_goes_to_the_other_memory_and_the_policy_knows() {
        let roomy = telemetry(HALF, HALF, true);
        let mut shadow = brain(Mode::Shadow, PolicyName::Hscc);
        assert!((0..9).all(|page| touch(&mut shadow, (1, page), &roomy).0 == SLOW));
        let mut enforce = brain(Mode::Enforce, PolicyName::Hscc);
        assert_eq!(touch(&mut enforce, (1, 0), &roomy), (SLOW, true));
        assert_eq!(enforce.decisions().last().map(|it| it.verdict), Some(Verdict::Vetoed));
        for page in 1..PAGES {
            assert_eq!(touch(&mut enforce, (1, page), &roomy), (FAST, false), "{page}");
        }
        assert_eq!(touch(&mut enforce, (1, PAGES), &roomy), (SLOW, true), "it is asked again");
        let hint = |page| {
            let page = PageRef { region: RegionId(1), page: PageNo(page) };
            (page, FaultKind::Hint(Access::Read))
        };
        for (page, lies) in [(0, SLOW), (1, FAST)] {
            let (page, kind) = hint(page);
            assert_eq!(enforce.fault(page, kind, &roomy), lies, "{page}");
        }
        // Where the other memory is full there is no choice.
        let full = telemetry(0, HALF, true);
        assert_eq!(touch(&mut enforce, (1, PAGES + 1), &full), (SLOW, true));
    }

    #[test]
    fn without_a_choice_or_an_economist_nothing_is_asked() {
        let one = telemetry(HALF, HALF, false);
        let mut alone = brain(Mode::Enforce, PolicyName::FirstTouch);
        assert_eq!(touch(&mut alone, (1, 0), &one), (FAST, false));
        let mut off = brain(Mode::Off, PolicyName::FirstTouch);
        assert_eq!(touch(&mut off, (1, 0), &telemetry(HALF, HALF, true)), (FAST, false));
    }
}
