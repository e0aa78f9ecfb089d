//! Ours: every way to a huge page has its price, and the best way that pays is taken.
//!
//! The prices are those of [`terrace_economics`], by the code that decides in live runs: this
//! policy proposes, and an [`Economist`](terrace_economics::Economist) with the simulated kernel's
//! costs says what passes.
//!
//! | way | proposed as | what it costs beside the model's items |
//! |---|---|---|
//! | at the first touch, from a free block | first-touch | the program waits for the fault |
//! | at the first touch, by compaction | first-touch | it waits for a block as well |
//! | later, by collapsing | collapse | |
//! | none: base pages, filled some at a time | populate | the program waits for those that it never touches |
//! | blocks ahead of their use | compact | |
//! | zeros ahead of their use | prezero | |
//!
//! The economist is told what came of each decision: what it took, and what it brought where the
//! simulated kernel sees that. It sees the zeros that were taken, the pages that were filled and then
//! touched, and what base pages cost where a huge page was held out. So costs are corrected and the
//! kill switch works as in live runs.
//!
//! What compaction takes is learned from what it took. The benefit of a collapse and of a block
//! ahead is of the rest of the time that the profile's run took. That of a first touch is of all of
//! that time, whenever it comes: the horizon is as long, and what a profile has of a page's walks
//! came after the page's first touch.

use terrace_core::{
    Abort, Action, ActionClass, Bytes, BytesPerSecond, Cycles, Done, Frequency, Heat, HugePages,
    Nanos, OpId, Outcome, PageNo, PageRange, PageSize, Pages, PerSecond, Proposal, Reason,
    RegionId, Telemetry, TierTelemetry, Urgency,
};
use terrace_economics::{Calibration, Decision, Interval, LookedAt, Mode, Parameters, Verdict};
use terrace_profile::Share;

use super::{
    Ahead, AheadAsk, Ask, Background, Became, Books, Candidate, Choice, ClassBook, Effort,
    Khugepaged, Memory, MmPolicy, Prezero, Seen, ZeroAsk,
};
use crate::analytic::listeners::OnDecisions;
use crate::mm::benefit::{Known, LastRule, Place, Profile};
use crate::mm::costs::Costs;
use crate::mm::eager::PIECE;
use crate::mm::physical::PAGES;

/// What a block is expected to take, from those that were made.
fn expected(made: u64, compacting: Cycles, prior: Cycles) -> Cycles {
    // The prior counts as one block that was made.
    Cycles((prior + compacting).get() / (made + 1))
}

/// The kernel's costs as prices. `duration` is how long the program runs, by its profile.
fn calibration(costs: &Costs, clock: Frequency, duration: Option<Cycles>) -> Calibration {
    let time = |cycles: Cycles| clock.nanos(cycles);
    let base = PageSize::Base.bytes();
    let moving = costs.move_page.saturating_sub(costs.zero_base);
    Calibration {
        clock,
        // The program's own processor, and that of the kernel's thread that works for it.
        cpus: 2,
        // Cycles of walks are those in which any page walker of the processor was at work. Walks at the
        // same time count once in them already, also where collapsing is told of them as so many walks
        // of a length, and nothing else here is shared.
        mlp: Interval::new(1.0, 1.0, 1.0),
        // Of zeros: what first touches and huge pages take.
        copy_bandwidth: BytesPerSecond::from_amount(base, time(costs.zero_base).max(Nanos(1))),
        promote_fixed: time(costs.map_huge),
        demote_fixed: time(moving),
        exchange_fixed: time(moving) * 2,
        write_protect: Nanos::ZERO,
        shootdown: time(costs.flush),
        // What the program loses by it.
        shootdown_per_cpu: time(costs.collapse_stall),
        shootdown_batch: 1,
        page_walk: WALK,
        user_fault: time(costs.fault + costs.take_base),
        // The kernel brings no anonymous page along.
        fault_pages: 1.0,
        fill_fixed: time(costs.populate + costs.take_base),
        compress: time(costs.swap_out),
        decompress: time(costs.swap_in),
        // The simulated kernel's costs are its costs.
        cost_spread: 1.0,
        tiers: Default::default(),
        parameters: Parameters {
            // Simulated programs use their memory until they end, and the profile's run says when
            // that is.
            idle: duration.map_or(Parameters::default().idle, time).max(Nanos(1)),
            // What is done for the sake of learning has no second run to bring anything in.
            explore: 0,
            kill_switch: true,
            ..Parameters::default()
        },
    }
}

/// What a walk takes in the model of collapsing: cycles of walks are counted here, and are told as
/// so many walks of this length. It cancels out.
const WALK: Nanos = Nanos(50);

/// The policy.
pub struct Economist {
    profile: Profile,
    pricing: terrace_economics::Economist,
    telemetry: Telemetry,
    clock: Frequency,
    ops: u64,
    /// Decisions that nobody has paid for yet.
    decided: u64,
    /// Of the last questions, about the share to which a huge page was the answer, or would have
    /// been with a block at hand: blocks made ahead are as likely to be asked for.
    demand: f64,
    /// What those averted, on the mean: cycles.
    averted: f64,
    prior: Cycles,
    /// First touches to which a huge page was the answer.
    wants: Wants,
    /// What a first touch waits for the zeros of a huge page.
    zeros: Cycles,
    /// Pages that could be moved in the time of splitting a huge page.
    split_pages: u64,
    /// Blocks that were zeroed during the run and not taken yet.
    zeroed: u64,
    /// What a base page's first touch takes that a huge page spares.
    each: Cycles,
    under_way: UnderWay,
    last: LastRule,
    collapsing: Option<Collapsing>,
    on_decisions: Option<OnDecisions>,
}

/// What was wanted within about this time says what will be: assumed. At the pace of the zeroing thread
/// it is some thousand blocks.
const RECENT: Nanos = Nanos::SECOND;

/// First touches that wanted a huge page, forgotten exponentially.
#[derive(Clone, Copy, Debug, Default)]
struct Wants {
    count: f64,
    last: Cycles,
}

impl Wants {
    fn at(&self, now: Cycles, clock: Frequency) -> f64 {
        let age = clock.nanos(now.saturating_sub(self.last)).as_f64() / RECENT.as_f64();
        self.count * (-age).exp()
    }

    fn add(&mut self, now: Cycles, clock: Frequency) {
        *self = Self { count: self.at(now, clock) + 1.0, last: now };
    }

    /// How many are to be expected: as many as of late, or the part of it that there is time for.
    fn within(&self, left: Nanos, now: Cycles, clock: Frequency) -> f64 {
        self.at(now, clock) * (left.as_f64() / RECENT.as_f64()).min(1.0)
    }
}

/// The last price of a collapse. It is the same for every range of which a profile says the same,
/// and ranges are ranked by the ten thousand at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Collapsing {
    averted: Cycles,
    now: Cycles,
    memory: Memory,
    /// What it brings beyond its cost, without that of a block; `None` where it does not pay.
    margin: Option<f64>,
    /// To decide the same for each range that is collapsed.
    action: Action,
    heat: Heat,
    proposal: Option<Proposal>,
}

/// What has passed, and of which nothing was told yet.
#[derive(Clone, Copy, Debug, Default)]
struct UnderWay {
    /// The last decision, if it let anything pass.
    latest: Option<Proposal>,
    touch: Option<Proposal>,
    making: Option<Proposal>,
    zeroing: Option<Proposal>,
}

/// What a profile says of a range.
#[derive(Clone, Copy, Debug)]
struct Said {
    averted: Cycles,
    touched: Share,
}

impl Economist {
    /// With a program's profile, on a kernel with such costs.
    pub fn new(profile: Profile, costs: &Costs, clock: Frequency) -> Self {
        let calibration = calibration(costs, clock, profile.duration);
        let moving = costs.move_page + costs.flush;
        Self {
            profile,
            pricing: terrace_economics::Economist::new(Mode::Enforce, calibration),
            telemetry: Telemetry { tier_count: 1, sample_period: 1, ..Telemetry::default() },
            clock,
            ops: 0,
            decided: 0,
            demand: 1.0,
            averted: 0.0,
            prior: costs.scan_page * 512 + costs.move_page,
            wants: Wants::default(),
            zeros: costs.zero_huge,
            split_pages: costs.split_huge.get().div_ceil(moving.get().max(1)),
            zeroed: 0,
            each: costs.fault + costs.take_base + costs.zero_base,
            under_way: UnderWay::default(),
            last: LastRule::default(),
            collapsing: None,
            on_decisions: None,
        }
    }

    /// The same, and one in so many huge pages that pay is held out; none for 0.
    #[must_use]
    pub fn holding_out(mut self, one_in: u32) -> Self {
        let mut calibration = *self.pricing.calibration();
        calibration.parameters.hold_out = one_in;
        self.pricing = terrace_economics::Economist::new(Mode::Enforce, calibration);
        self
    }

    /// What the profile says of a place.
    fn said(&mut self, place: Place) -> Said {
        let known = self.last.find(&self.profile, place);
        Said {
            averted: known.and_then(|known| known.rule.averted).unwrap_or_default(),
            touched: known.map_or(Share::UNKNOWN, |known: &Known| known.touched),
        }
    }

    /// The world as it is.
    fn look(&mut self, now: Cycles, memory: Memory) {
        self.telemetry.now = self.clock.nanos(now);
        self.telemetry.cpu_load = 0.0;
        self.telemetry.tiers[0] = TierTelemetry {
            capacity: memory.all,
            free: memory.free,
            addressable: true,
            read_latency: Nanos(81),
            write_latency: Nanos(81),
            ..TierTelemetry::default()
        };
    }

    fn decide(&mut self, action: Action, heat: Heat, reason: Reason) -> Decision {
        let op = OpId(self.ops);
        self.ops += 1;
        self.decided += 1;
        let page_size = match action {
            Action::Populate { .. } => PageSize::Base,
            _ => PageSize::Huge,
        };
        let proposal = Proposal {
            op,
            action,
            page_size,
            heat,
            victim_heat: Heat::default(),
            urgency: Urgency::Voluntary,
            reason,
        };
        let decision = self.pricing.decide(&proposal, &self.telemetry);
        self.under_way.latest = decision.passes.then_some(proposal);
        if let Some(on_decisions) = &mut self.on_decisions {
            on_decisions(std::slice::from_ref(&decision));
        }
        decision
    }

    /// Something that has passed was carried out at such a cost.
    fn completed(&mut self, proposal: Option<Proposal>, cost: Cycles) {
        self.ended(proposal, Outcome::Completed { cost, moved: Bytes::ZERO });
    }

    /// Something that has passed came to nothing, at such a cost.
    fn in_vain(&mut self, proposal: Option<Proposal>, cost: Cycles, why: Abort) {
        self.given_up(proposal, 0.0, cost, why);
    }

    /// The same, when such a part of it was done.
    fn given_up(&mut self, proposal: Option<Proposal>, part: f64, cost: Cycles, why: Abort) {
        if let Some(proposal) = &proposal {
            self.pricing.in_vain(proposal, part, cost);
        }
        self.ended(proposal, Outcome::Aborted(why));
    }

    fn ended(&mut self, proposal: Option<Proposal>, outcome: Outcome) {
        if let Some(proposal) = proposal {
            self.pricing.settle(&Done { proposal, outcome }, &self.telemetry);
        }
    }

    /// The time in which comes about what the profile says.
    fn within(&self) -> Nanos {
        self.profile.duration.map_or_else(|| self.pricing.lifetime(), |time| self.clock.nanos(time))
    }

    /// A huge page on a first touch, in a way for which the program waits so long.
    pub fn price(&mut self, ask: &Ask<'_>, waits: Cycles) -> Decision {
        let place = ask.place();
        let Said { averted, touched } = self.said(place);
        let pages = |share: f64| (share * 512.0).round() as u16;
        // What is said of a whole run without a time would be no benefit: of the horizon, then.
        let within = self.within();
        let action = Action::FirstTouch {
            range: range(place),
            touched: pages(touched.expected),
            unsure: pages(touched.unsure),
            // The simulated machine made the profile, too.
            least: averted,
            averted,
            most: averted,
            within,
            left: within.saturating_sub(self.clock.nanos(ask.now)),
            waits,
        };
        self.decide(action, Heat::default(), Reason::Profiled)
    }

    /// What collapsing a range brings beyond what it costs, apart from a block for it, or `None`
    /// where it does not pay.
    fn margin_of_collapse(&mut self, candidate: &Candidate) -> Option<f64> {
        let place = candidate.place();
        let (averted, now, memory) = (self.said(place).averted, candidate.now, candidate.memory);
        if let Some(last) = self.collapsing
            && (last.averted, last.now, last.memory) == (averted, now, memory)
        {
            return last.margin;
        }
        self.look(now, memory);
        let left = self.profile.aged(averted, now).as_f64();
        let horizon = self.pricing.lifetime();
        let walk = self.clock.cycles(WALK).as_f64().max(1.0);
        let heat = Heat {
            loads: PerSecond::from_count(left / walk, horizon),
            stores: PerSecond::ZERO,
            // Every walk was counted.
            samples: u32::try_from((left / walk) as u64).unwrap_or(u32::MAX),
            window: horizon,
        };
        let action = Action::Collapse { range: range(place) };
        let decision = self.decide(action, heat, Reason::PageWalksCounted);
        let margin = decision.passes.then(|| decision.margin());
        let proposal = self.under_way.latest.take();
        // Ranges that others are better than are ranked, and priced anew before their turn comes: what
        // was let pass for them is over.
        let outdated = self.collapsing.take().and_then(|last| last.proposal);
        self.in_vain(outdated, Cycles::ZERO, Abort::Stale);
        self.collapsing = Some(Collapsing { averted, now, memory, margin, action, heat, proposal });
        margin
    }
}

/// A slot as a range of pages; only its name.
fn range(place: Place) -> PageRange {
    let start = PageNo((place.offset.get() >> 12) as u32);
    PageRange { region: RegionId(place.process), start, count: 512 }
}

impl MmPolicy for Economist {
    fn name(&self) -> &'static str {
        "terrace"
    }

    fn background(&self) -> Background {
        Background {
            // At 1.3 M cycles each about a fifth of a processor.
            khugepaged: Some(Khugepaged {
                sleep: Cycles(22_000_000),
                slots: 4,
                compact: true,
                ranked: true,
            }),
            // A tenth of a processor at most. Before the program starts the machine is idle: zeros cost
            // nobody anything then.
            prezero: Some(Prezero {
                warm: Cycles(22_000_000_000),
                pages: 512,
                sleep: Cycles(2_300_000),
            }),
            ahead: Some(Ahead { blocks: 256, share: 0.2 }),
        }
    }

    fn spent(&mut self, costs: &Costs) -> Cycles {
        let spent = costs.quote * std::mem::take(&mut self.decided);
        self.pricing.spent(spent);
        spent
    }

    fn first_touch(&mut self, ask: &Ask<'_>) -> Choice {
        self.look(ask.now, ask.memory);
        let ready = ask.costs.huge_fault(ask.free_zeroed > 0);
        let free = self.price(ask, ready);
        let proposal = self.under_way.latest.take();
        let wanted = free.passes;
        let held_out = free.verdict == Verdict::HeldOut;
        self.demand += (f64::from(u8::from(wanted || held_out)) - self.demand) / 16.0;
        if wanted {
            self.wants.add(ask.now, self.clock);
            let all = self.said(ask.place()).averted;
            let averted = self.profile.aged(all, ask.now).as_f64();
            self.averted += (averted - self.averted) / 16.0;
        }
        if held_out {
            return Choice::HeldOut;
        }
        if ask.free_huge > 0 {
            self.under_way.touch = proposal;
            return if wanted { Choice::Huge(Effort::Free) } else { Choice::Base };
        }
        self.in_vain(proposal, Cycles::ZERO, Abort::NoMemory);
        let block = expected(ask.made, ask.compacting, self.prior);
        if !(wanted && ask.can_compact) {
            return Choice::Base;
        }
        let made = self.price(ask, ready + block);
        self.under_way.touch = self.under_way.latest.take();
        if !made.passes {
            let held_out = made.verdict == Verdict::HeldOut;
            return if held_out { Choice::HeldOut } else { Choice::Base };
        }
        // Time-boxed: what is left of what a program should wait, and never less than a block
        // usually takes.
        let budget = self.pricing.calibration().parameters.stall_budget;
        let left = self.clock.cycles(budget).saturating_sub(ready);
        Choice::Huge(Effort::Compact(left.max(block)))
    }

    fn fills_when_touched(&mut self, ask: &Ask<'_>) -> bool {
        let place = ask.place();
        let touched = self.said(place).touched;
        if !touched.is_known() {
            return false;
        }
        self.look(ask.now, ask.memory);
        // All but those whose touches fill the others.
        let count = PAGES - PAGES / PIECE;
        let pages = |share: f64| (share * f64::from(count)).round() as u16;
        let action = Action::Populate {
            range: PageRange { count, ..range(place) },
            touched: pages(touched.expected),
            unsure: pages(touched.unsure),
        };
        // It is the program's own processor that fills.
        self.telemetry.cpu_load = 1.0;
        let passes = self.decide(action, Heat::default(), Reason::Profiled).passes;
        // What filling takes is known: as many pages as there are.
        let proposal = self.under_way.latest.take();
        self.completed(proposal, ask.costs.filled_base() * u64::from(count));
        passes
    }

    fn collapse(&mut self, candidate: &Candidate) -> f64 {
        if candidate.free_huge == 0 && !candidate.can_compact {
            return 0.0;
        }
        let Some(margin) = self.margin_of_collapse(candidate) else { return 0.0 };
        let block = if candidate.free_huge > 0 {
            Cycles::ZERO
        } else {
            expected(candidate.made, candidate.compacting, self.prior)
        };
        margin - block.as_f64()
    }

    fn makes_ahead(&mut self, ask: &AheadAsk) -> bool {
        self.look(ask.now, ask.memory);
        self.telemetry.cpu_load = ask.busy;
        let blocks = HugePages(ask.blocks);
        let wanted = HugePages::from_f64(blocks.as_f64() * self.demand);
        let each = ask.moved.checked_div(ask.made).unwrap_or(1).max(1);
        // A huge page that is split for it takes as long as some pages that are moved.
        let splitting = Pages(ask.splits.saturating_mul(self.split_pages));
        // What first touches averted was aged by then: all of it is still to come.
        let left = match self.profile.duration {
            Some(duration) => self.clock.nanos(duration.saturating_sub(ask.now)).max(Nanos(1)),
            None => self.pricing.lifetime(),
        };
        let action = Action::Compact {
            blocks,
            wanted,
            brings: Cycles::from_f64(self.averted * wanted.as_f64()),
            within: left,
            left,
            pages: Pages(each.saturating_mul(ask.blocks)) + splitting,
        };
        let passes = self.decide(action, Heat::default(), Reason::NoFreeBlock).passes;
        self.under_way.making = self.under_way.latest.take();
        passes
    }

    fn zeroes_ahead(&mut self, ask: &ZeroAsk) -> bool {
        self.look(ask.now, ask.memory);
        self.telemetry.cpu_load = ask.busy;
        let left = self
            .profile
            .duration
            .map_or(RECENT, |duration| self.clock.nanos(duration.saturating_sub(ask.now)));
        let action = Action::ZeroAhead {
            blocks: HugePages(ask.zeroed + 1),
            wanted: HugePages::from_f64(self.wants.within(left, ask.now, self.clock)),
            spares: self.zeros,
        };
        let passes = self.decide(action, Heat::default(), Reason::WalksFreshMemory).passes;
        self.under_way.zeroing = self.under_way.latest.take();
        passes
    }

    fn became(&mut self, became: Became) {
        match became {
            Became::Touched { huge: true, cost } => {
                let proposal = self.under_way.touch.take();
                self.completed(proposal, cost);
            }
            Became::Touched { huge: false, cost } => {
                let proposal = self.under_way.touch.take();
                self.in_vain(proposal, cost, Abort::NoMemory);
            }
            Became::Collapsed { done, cost } => {
                let Some(last) = &mut self.collapsing else { return };
                let (action, heat) = (last.action, last.heat);
                // Others of which the profile says the same were priced with it.
                let proposal = last.proposal.take().or_else(|| {
                    self.decide(action, heat, Reason::PageWalksCounted);
                    self.under_way.latest.take()
                });
                if done {
                    self.completed(proposal, cost);
                } else {
                    self.in_vain(proposal, cost, Abort::NoMemory);
                }
            }
            Became::Made { made, of, cost } => {
                let proposal = self.under_way.making.take();
                if made >= of {
                    self.completed(proposal, cost);
                } else {
                    // What was predicted of all is compared with a part as far as it goes.
                    let part = made as f64 / of as f64;
                    self.given_up(proposal, part, cost, Abort::RateLimited);
                }
            }
            Became::Zeroed { cost } => {
                let proposal = self.under_way.zeroing.take();
                self.completed(proposal, cost);
                self.zeroed += 1;
            }
            Became::NotZeroed => {
                let proposal = self.under_way.zeroing.take();
                self.in_vain(proposal, Cycles::ZERO, Abort::NoMemory);
            }
            // What was zeroed last is taken first, so that zeros of before the run come last.
            Became::ZerosTaken if self.zeroed > 0 => {
                self.zeroed -= 1;
                self.pricing.zeros_taken(self.zeros);
            }
            Became::ZerosTaken => {}
        }
    }

    fn seen(&mut self, seen: &Seen) {
        let Said { averted, touched } = self.said(seen.place);
        let part = self.clock.nanos(seen.time).as_f64() / self.within().as_f64().max(1.0);
        let faults = |pages: f64| pages * self.each.as_f64();
        let said = averted.as_f64() * part.min(1.0) + faults(touched.expected * f64::from(PAGES));
        let was = seen.walks + faults(f64::from(seen.touched));
        let ratio = if said > 0.0 { was / said } else { 1.0 };
        self.pricing.looked_at(ActionClass::FirstTouch, LookedAt::times(ratio));
    }

    fn filled(&mut self, place: Place, filled: u32, used: u32) {
        if filled > 0 {
            let said = self.said(place).touched.expected;
            let was = f64::from(used) / f64::from(filled);
            self.pricing.looked_at(ActionClass::Populate, LookedAt { said, was });
        }
    }

    fn books(&self) -> Option<Books> {
        let proposed = |class: &ActionClass| self.pricing.account(*class).proposed > 0;
        let book = |class| ClassBook {
            class,
            correction: self.pricing.correction(class).expected,
            account: *self.pricing.account(class),
            unfinished: self.pricing.account(class).unfinished(),
        };
        let classes = ActionClass::ALL.into_iter().filter(proposed).map(book).collect();
        Some(Books { classes, deciding: self.pricing.own_cost() })
    }

    fn hear(&mut self, decisions: OnDecisions) {
        self.on_decisions = Some(decisions);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::mm::space::Section;

    const CLOCK: Frequency = Frequency(2.2e9);

    fn memory(free: u64) -> Memory {
        Memory { all: Bytes::gib(192), free: Bytes::gib(free) }
    }

    fn ask(costs: &Costs) -> Ask<'_> {
        Ask {
            process: 0,
            section: Section::Mmap,
            offset: Bytes::ZERO,
            address: 0x20_0000,
            advised: false,
            free_huge: 10,
            free_zeroed: 0,
            unsplit: 0,
            can_compact: true,
            now: Cycles::ZERO,
            made: 0,
            compacting: Cycles::ZERO,
            memory: memory(192),
            costs,
        }
    }

    fn ahead() -> AheadAsk {
        AheadAsk {
            blocks: 256,
            made: 100,
            moved: 150,
            splits: 0,
            busy: 0.0,
            now: Cycles::ZERO,
            memory: memory(20),
        }
    }

    fn with(text: &str) -> Economist {
        let mut profile: Profile = text.parse().expect("a good profile");
        profile.duration = Some(Cycles(220_000_000_000));
        Economist::new(profile, &Costs::builtin(), CLOCK)
    }

    /// Zeroing 2 MiB costs 526 000, and has to be earned one and a half times. A range that brings
    /// less, and of whose touches nothing is known, stays in base pages.
    #[test]
    fn what_does_not_pay_is_not_done() {
        let costs = Costs::builtin();
        let choice = |text: &str, ask: &Ask<'_>| with(text).first_touch(ask);
        assert_eq!(choice("huge,mmap,770000", &ask(&costs)), Choice::Base);
        assert_eq!(choice("huge,mmap,830000", &ask(&costs)), Choice::Huge(Effort::Free));
        let zeroed = Ask { free_zeroed: 1, ..ask(&costs) };
        assert_eq!(choice("huge,mmap,30000", &zeroed), Choice::Huge(Effort::Free));
    }

    #[test]
    fn what_is_left_of_a_run_is_what_a_page_can_bring() {
        let costs = Costs::builtin();
        let late = Ask { now: Cycles(219_000_000_000), ..ask(&costs) };
        // The horizon is the run's length, so a run that goes on beyond its profile is not at its
        // end. What is said of it is then the same again.
        assert_eq!(with("huge,mmap,830000").first_touch(&late), Choice::Huge(Effort::Free));
        let candidate = |now| Candidate {
            process: 0,
            section: Section::Mmap,
            offset: Bytes::ZERO,
            address: 0x20_0000,
            advised: false,
            present: 512,
            used: 512,
            free_huge: 1,
            can_compact: true,
            now,
            made: 0,
            compacting: Cycles::ZERO,
            memory: memory(192),
        };
        let mut ours = with("huge,mmap,30000000");
        assert!(ours.collapse(&candidate(Cycles::ZERO)) > 0.0);
        assert!(ours.collapse(&candidate(Cycles(219_999_000_000))) <= 0.0, "too late");
    }

    #[test]
    fn compaction_is_boxed_and_what_it_took_is_learned() {
        let costs = Costs::builtin();
        let none = Ask { free_huge: 0, ..ask(&costs) };
        let mut ours = with("huge,mmap,9000000");
        let Choice::Huge(Effort::Compact(most)) = ours.first_touch(&none) else {
            panic!("a block of a scan and a move pays");
        };
        assert!(most <= CLOCK.cycles(Nanos::millis(1)));
        // Blocks took 3 M cycles so far, the last of them beyond what a program should wait.
        let dear = Ask { made: 10, compacting: Cycles(33_000_000), ..none };
        assert_eq!(ours.first_touch(&dear), Choice::Base);
    }

    #[test]
    fn blocks_are_made_ahead_while_somebody_asks_for_them() {
        let costs = Costs::builtin();
        let ahead = ahead();
        let mut ours = with("huge,mmap,9000000");
        assert!(ours.makes_ahead(&ahead));
        let mut nobody = with("huge,mmap,1");
        for _ in 0..128 {
            nobody.first_touch(&ask(&costs));
        }
        assert!(!nobody.makes_ahead(&ahead), "{}", nobody.demand);
        let full = AheadAsk { moved: 100 * 512 * 100, ..ahead };
        assert!(!ours.makes_ahead(&full), "more pages than that is worth");
    }

    /// Splitting is work as moving is: as many pages as it takes the time of.
    #[test]
    fn huge_pages_that_are_split_for_blocks_are_in_their_price() {
        let mut ours = with("huge,mmap,9000000");
        let pages = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&pages);
        ours.hear(Box::new(move |decisions: &[Decision]| {
            let cost = |decision: &Decision| match decision.action {
                Action::Compact { pages, .. } => (pages.get(), decision.cost.expected),
                _ => (0, 0.0),
            };
            into.lock().expect("no panic").extend(decisions.iter().map(cost));
        }));
        ours.makes_ahead(&ahead());
        ours.makes_ahead(&AheadAsk { splits: 256, ..ahead() });
        let heard = pages.lock().expect("no panic").clone();
        // 100 000 cycles each, in pages of 12 100.
        assert_eq!([heard[0].0, heard[1].0], [256, 256 + 9 * 256]);
        assert!(heard[1].1 > 9.0 * heard[0].1, "{heard:?}");
    }

    /// Demand is of first touches, whether there were zeros for them or not; and it is of now.
    #[test]
    fn zeros_are_made_as_far_as_first_touches_are_to_be_expected() {
        let costs = Costs::builtin();
        let mut ours = with("huge,mmap,9000000");
        let zero =
            |zeroed, busy, now| ZeroAsk { zeroed, busy, now: Cycles(now), memory: memory(20) };
        assert!(!ours.zeroes_ahead(&zero(0, 0.0, 0)), "nobody has asked");
        (0..100).for_each(|_| {
            ours.first_touch(&ask(&costs));
        });
        assert!(ours.zeroes_ahead(&zero(0, 0.0, 0)));
        assert!(ours.zeroes_ahead(&zero(200, 0.0, 0)), "on an idle processor the odds may be low");
        assert!(!ours.zeroes_ahead(&zero(100_000, 0.0, 0)), "but not nil");
        assert!(ours.zeroes_ahead(&zero(50, 0.5, 0)));
        assert!(!ours.zeroes_ahead(&zero(200, 0.5, 0)), "a busy one has to be paid");
        assert!(!ours.zeroes_ahead(&zero(0, 0.0, 22_000_000_000)), "ten seconds later");
        let end = Ask { now: Cycles(219_999_000_000), ..ask(&costs) };
        (0..100).for_each(|_| {
            ours.first_touch(&end);
        });
        assert!(!ours.zeroes_ahead(&zero(0, 0.0, 219_999_000_000)), "the run is over");
    }

    /// Built-in prices zero as a fault does; the thread does it around the caches, and faster.
    #[test]
    fn what_zeroing_took_corrects_its_price_and_what_was_taken_is_its_benefit() {
        let costs = Costs::builtin();
        let mut ours = with("huge,mmap,9000000");
        (0..100).for_each(|_| {
            ours.first_touch(&ask(&costs));
        });
        for zeroed in 0..20 {
            let ask = ZeroAsk { zeroed, busy: 0.0, now: Cycles::ZERO, memory: memory(20) };
            assert!(ours.zeroes_ahead(&ask));
            ours.became(Became::Zeroed { cost: costs.prezero_base * 512 });
        }
        // Of 25 that were taken, five were zeroed before the program came.
        (0..25).for_each(|_| ours.became(Became::ZerosTaken));
        let books = ours.books().expect("it keeps books");
        let book = books.classes.iter().find(|book| book.class == ActionClass::Prezero);
        let book = book.expect("proposed");
        assert_eq!((book.account.proposed, book.account.completed), (20, 20));
        assert_eq!(book.account.realised_cost, costs.prezero_base * 512 * 20);
        assert_eq!(book.account.realised_benefit, costs.zero_huge * 20);
        let ratio = costs.prezero_base / costs.zero_base;
        assert!((book.correction - ratio).abs() < 0.02, "{} {ratio}", book.correction);
    }

    /// What nobody takes stops the zeroing, if it goes on.
    #[test]
    fn zeros_that_nobody_takes_stop_their_class() {
        let costs = Costs::builtin();
        let after = |taken: usize| {
            let profile: Profile = "huge,mmap,9000000".parse().expect("a good profile");
            // Without a time the horizon is ten seconds.
            let mut ours = Economist::new(profile, &costs, CLOCK);
            let mut zeroes = |zeroed, now| {
                let now = Cycles(now);
                (0..100).for_each(|_| {
                    ours.first_touch(&Ask { now, ..ask(&costs) });
                });
                let zeroes =
                    ours.zeroes_ahead(&ZeroAsk { zeroed, busy: 0.0, now, memory: memory(20) });
                if zeroes {
                    ours.became(Became::Zeroed { cost: costs.prezero_base * 512 });
                }
                zeroes
            };
            assert!((0..64).all(|zeroed| zeroes(zeroed, 1_000)));
            (0..taken).for_each(|_| ours.became(Became::ZerosTaken));
            let (now, memory) = (Cycles(50_000_000_000), memory(20));
            (0..100).for_each(|_| {
                ours.first_touch(&Ask { now, ..ask(&costs) });
            });
            ours.zeroes_ahead(&ZeroAsk { zeroed: 0, busy: 0.0, now, memory })
        };
        assert!(after(64) && !after(0));
    }

    /// What passes and does not come about is aborted. Only the last price of a range that waits for its
    /// turn has no end yet.
    #[test]
    fn what_passes_has_an_end() {
        let costs = Costs::builtin();
        let mut ours = with("huge,mmap,30000000");
        let candidate = |now| Candidate {
            process: 0,
            section: Section::Mmap,
            offset: Bytes::ZERO,
            address: 0x20_0000,
            advised: false,
            present: 512,
            used: 512,
            free_huge: 1,
            can_compact: true,
            now: Cycles(now),
            made: 0,
            compacting: Cycles::ZERO,
            memory: memory(192),
        };
        assert!((0..3).all(|now| ours.collapse(&candidate(now)) > 0.0));
        ours.became(Became::Collapsed { done: true, cost: Cycles(1_300_000) });
        assert!(ours.collapse(&candidate(3)) > 0.0);
        (0..100).for_each(|_| {
            ours.first_touch(&ask(&costs));
        });
        for ends in [Became::Zeroed { cost: Cycles(7) }, Became::NotZeroed] {
            let zero = ZeroAsk { zeroed: 0, busy: 0.0, now: Cycles(4), memory: memory(20) };
            assert!(ours.zeroes_ahead(&zero));
            ours.became(ends);
        }
        let books = ours.books().expect("it keeps books");
        for (class, completed, aborted, unfinished) in
            [(ActionClass::Collapse, 1, 2, 1), (ActionClass::Prezero, 1, 1, 0)]
        {
            let book = books.classes.iter().find(|book| book.class == class).expect("proposed");
            let ends = (book.account.completed, book.account.aborted, book.unfinished);
            assert_eq!(ends, (completed, aborted, unfinished), "{class:?}");
        }
    }

    /// A price that nobody hears of explains nothing. One that was asked for before is not heard
    /// again: it is the same.
    #[test]
    fn whoever_listens_hears_of_every_price() {
        use ActionClass::{Collapse, Compact, FirstTouch};

        let costs = Costs::builtin();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let mut ours = with("huge,mmap,9000000");
        let into = Arc::clone(&heard);
        ours.hear(Box::new(move |decisions: &[Decision]| {
            let classes = decisions.iter().map(|decision| decision.action.class());
            into.lock().expect("no panic").extend(classes);
        }));
        // Neither a free block nor one that is made: two ways, two prices.
        ours.first_touch(&Ask { free_huge: 0, ..ask(&costs) });
        ours.makes_ahead(&ahead());
        let candidate = Candidate {
            process: 0,
            section: Section::Mmap,
            offset: Bytes::ZERO,
            address: 0x20_0000,
            advised: false,
            present: 512,
            used: 512,
            free_huge: 1,
            can_compact: true,
            now: Cycles::ZERO,
            made: 0,
            compacting: Cycles::ZERO,
            memory: memory(192),
        };
        ours.collapse(&candidate);
        ours.collapse(&candidate);
        let heard = heard.lock().expect("no panic");
        assert_eq!(*heard, [FirstTouch, FirstTouch, Compact, Collapse]);
    }
}
