//! Prices actions, decides, and keeps the accounts.

use terrace_core::{
    Abort, Action, ActionClass, Bytes, Cycles, Done, Heat, MAX_TIERS, Nanos, OpId, Outcome,
    PageRange, PageRef, PageSize, Proposal, Reason, Sample, SampleSource, Telemetry, TierId,
    Urgency,
};

use crate::access::{self, Saving};
use crate::account::{Account, Balance};
use crate::alternative::{self, Alternative, MAX_ALTERNATIVES};
use crate::calibration::Calibration;
use crate::conditions::{Conditions, Market};
use crate::correction::Correction;
use crate::decision::Decision;
use crate::guard::{self, Purse, Switch};
use crate::heat::Rates;
use crate::held_block::{self, HeldBlock};
use crate::interval::{Interval, finite};
use crate::ledger::Ledger;
use crate::lifetime::Lifetimes;
use crate::mode::{Mode, Verdict};
use crate::model;
use crate::observe;
use crate::prefetch;
use crate::prezero;
use crate::quote::Quote;
use crate::reclaim;
use crate::touches::{LookedAt, Touches};
use crate::walks::LeftOut;
use crate::watch::{Direction, Move, Watches};

/// Predictions that wait for their outcome. More actions under way than this,
/// and the oldest predictions are lost (and counted).
const PENDING: usize = 4096;

/// Actions on many pages that are under way at once: two kinds of walks, reclaim, and compressing again.
const BATCHES: usize = 4;

/// Places of the watch table that are looked at for each decision or outcome:
/// 256 of them find every watch that has ended.
const SWEEP: usize = 4;

/// Classes of action.
pub const CLASSES: usize = ActionClass::ALL.len();

/// Prices actions and keeps the accounts.
///
/// Pure in the sense of the project: what it says follows from what it was
/// told, without a clock, a thread or a system call. Allocates only in
/// [`Economist::new`], about 350 KiB; next to nothing when it is off.
///
/// What it has learnt, each from a part of what it was told: a field each.
#[derive(Clone, Debug)]
pub struct Economist {
    mode: Mode,
    calibration: Calibration,
    accounts: [Account; CLASSES],
    corrections: [Correction; CLASSES],
    /// By tier: what those who want in offer, and those who may have to go earn.
    bids: [Quote; MAX_TIERS],
    asks: [Quote; MAX_TIERS],
    outflows: [Outflow; MAX_TIERS],
    /// Bytes that promotions took up, and that demotions took down.
    promoted: Bytes,
    demoted: Bytes,
    pending: Box<[Option<Pending>]>,
    /// The same of actions on many pages that go on for a while: other actions do not push them out.
    batches: [Option<Pending>; BATCHES],
    watches: Watches,
    lifetimes: Lifetimes,
    /// Refusals for want of evidence, by class.
    undecided: [u32; CLASSES],
    /// The last proposal whose offers are already in the prices.
    surveyed: Option<OpId>,
    /// Proposals of the world's own.
    considered: u64,
    now: Nanos,
    sample_period: u64,
    /// A sampler takes samples at a rate that was proposed and carried out.
    is_paced: bool,
    /// What exploring may still cost.
    purse: Purse,
    /// By class.
    switches: [Switch; CLASSES],
    /// By class: what came of memory that a profile speaks of.
    touches: [Touches; CLASSES],
    /// A block for which pages are not moved together for a while.
    held_block: Option<HeldBlock>,
    /// Sets this process's draws apart from those of others that number alike.
    salt: u64,
    /// What deciding itself has cost, as the world has timed it.
    own_cost: Cycles,
}

/// A prediction that waits for its outcome.
#[derive(Clone, Copy, Debug)]
struct Pending {
    op: OpId,
    /// Processor time as calibrated, and as predicted with what was learnt.
    calibrated: f32,
    predicted: f32,
    gain: f32,
    harm: f32,
    /// All of its benefit, also what another action has in its account.
    worth: f32,
    /// What was known then of how good profiles are.
    true_of: f32,
    /// What each access of the page that goes up gains, or of the one that goes
    /// down loses.
    load: f32,
    store: f32,
    touch: f32,
    horizon: f32,
}

impl Pending {
    fn new(
        proposal: &Proposal,
        ledger: &Ledger,
        (fast, slow): (TierId, TierId),
        conditions: &Conditions<'_>,
    ) -> Self {
        let Saving { load, store, touch } =
            access::saving(slow, fast, proposal.page_size.bytes(), conditions);
        let correction = conditions.market.correction.expected;
        Self {
            op: proposal.op,
            calibrated: ledger.processor as f32,
            predicted: (ledger.processor * correction) as f32,
            gain: ledger.gain as f32,
            harm: ledger.harm as f32,
            worth: ledger.benefit.expected as f32,
            // As it was priced: prices bound what places that were touched against all that was said
            // can do to them.
            true_of: conditions.touched() as f32,
            load: load as f32,
            store: store as f32,
            touch: touch as f32,
            horizon: (conditions.horizon() * 1e9) as f32,
        }
    }

    fn each(&self) -> Saving {
        Saving {
            load: f64::from(self.load),
            store: f64::from(self.store),
            touch: f64::from(self.touch),
        }
    }

    fn horizon(&self) -> Nanos {
        Nanos::from_f64(f64::from(self.horizon))
    }
}

/// Bytes that left a tier, forgotten exponentially.
#[derive(Clone, Copy, Debug, Default)]
struct Outflow {
    bytes: f64,
    last: Nanos,
}

impl Outflow {
    fn add(&mut self, bytes: Bytes, lifetime: Nanos, now: Nanos) {
        self.bytes = self.rate(lifetime, now) * lifetime.as_secs() + bytes.as_f64();
        self.last = now;
    }

    /// Bytes a second.
    fn rate(&self, lifetime: Nanos, now: Nanos) -> f64 {
        let age = now.saturating_sub(self.last).as_secs() / lifetime.as_secs();
        self.bytes * (-age).exp() / lifetime.as_secs()
    }
}

impl Economist {
    /// An economist with its prices.
    pub fn new(mode: Mode, calibration: Calibration) -> Self {
        let priced = mode != Mode::Off;
        let pending = if priced { PENDING } else { 0 };
        Self {
            mode,
            calibration,
            accounts: Default::default(),
            corrections: Default::default(),
            bids: Default::default(),
            asks: Default::default(),
            outflows: Default::default(),
            promoted: Bytes::ZERO,
            demoted: Bytes::ZERO,
            pending: vec![None; pending].into_boxed_slice(),
            batches: [None; BATCHES],
            lifetimes: Lifetimes::new(priced, idle(&calibration)),
            watches: Watches::new(priced, idle(&calibration)),
            undecided: [0; CLASSES],
            surveyed: None,
            considered: 0,
            now: Nanos::ZERO,
            sample_period: 0,
            is_paced: false,
            purse: Purse::full(),
            switches: Default::default(),
            touches: Default::default(),
            held_block: None,
            salt: 0,
            own_cost: Cycles::ZERO,
        }
    }

    /// It decides for this process: what is drawn is drawn apart from what others draw.
    pub fn set_process(&mut self, process: u32) {
        self.salt = guard::salt_of(process);
    }

    /// It goes on in a forked child: with all that was learnt, but with accounts of its own, as
    /// what is in them so far is the parent's, and in the parent's report. What is watched ends in
    /// the parent; what is under way is carried out in both.
    pub fn forked(&mut self, process: u32) {
        self.set_process(process);
        self.accounts = Default::default();
        (self.promoted, self.demoted) = (Bytes::ZERO, Bytes::ZERO);
        self.switches = Default::default();
        self.own_cost = Cycles::ZERO;
        self.watches.clear();
        self.held_block = None;
        self.touches.iter_mut().for_each(Touches::forked);
    }

    /// What it does with its opinion.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Its prices.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// What a page walk costs was measured.
    pub fn set_page_walk(&mut self, cost: Nanos) {
        self.calibration.page_walk = cost;
    }

    /// The account of a class of action.
    pub fn account(&self, class: ActionClass) -> &Account {
        &self.accounts[class.index()]
    }

    /// All accounts, in the order of [`ActionClass::ALL`].
    pub fn accounts(&self) -> &[Account; CLASSES] {
        &self.accounts
    }

    /// Deciding has cost so much: the economist has no clock, and its world has.
    pub fn spent(&mut self, cost: Cycles) {
        self.own_cost += cost;
    }

    /// What deciding has cost.
    pub fn own_cost(&self) -> Cycles {
        self.own_cost
    }

    /// Cycles gained by all actions, less what deciding on them has cost; negative if lost. What is
    /// not observed brings nothing here, so that it is below zero wherever pages have to leave; see
    /// [`Economist::balance`].
    pub fn net(&self) -> f64 {
        self.accounts.iter().map(Account::net).sum::<f64>() - self.own_cost.as_f64()
    }

    /// Gains and costs of the actions that the kill switch judges by, and of the demotions that made room
    /// for promotions, with their part of the cost of deciding: each decision takes as long as another.
    /// All zero where there is no kill switch, since nobody sees there what actions bring.
    pub fn balance(&self) -> Balance {
        if self.mode == Mode::Off || !self.calibration.parameters.kill_switch {
            return Balance::default();
        }
        let (mut brought, mut took) = (Cycles::ZERO, Cycles::ZERO);
        let (mut asked, mut all) = (0.0, 0);
        for class in ActionClass::ALL {
            let proposed = self.accounts[class.index()].proposed;
            all += proposed;
            let (judged, part) = match class {
                ActionClass::Demote => (self.watches.tried(class), self.part_for_room()),
                _ => (self.judged(class), 1.0),
            };
            if let Some(judged) = judged {
                let part_of = |all: Cycles| Cycles::from_f64(all.as_f64() * part);
                asked += proposed as f64 * part;
                brought += part_of(judged.realised_benefit);
                took += part_of(judged.whole_cost() + judged.realised_harm);
            }
        }
        let part = asked / all.max(1) as f64;
        let clock = self.calibration.clock;
        Balance {
            brought: clock.nanos(brought),
            took: clock.nanos(took),
            deciding: clock.nanos(Cycles::from_f64(self.own_cost.as_f64() * part)),
        }
    }

    /// The part of the demotions that made room for promotions: as much as went up took the place of what
    /// went down. The rest had to leave.
    fn part_for_room(&self) -> f64 {
        if self.demoted.is_zero() { 0.0 } else { (self.promoted / self.demoted).min(1.0) }
    }

    /// By which factor the real cost of a class of action differs from the
    /// calibrated, as far as outcomes tell. Applied to its prices.
    pub fn correction(&self, class: ActionClass) -> Interval {
        self.corrections[class.index()].factor(self.calibration.cost_spread)
    }

    /// How long a page that is in use stays in use: as observed, or as
    /// configured until enough was observed.
    pub fn lifetime(&self) -> Nanos {
        let z = self.calibration.parameters.z;
        self.lifetimes.estimate(z.clamp(0.0, 1e3)).unwrap_or(idle(&self.calibration))
    }

    /// Looks at a whole plan before its proposals are decided one by one: the
    /// promotions at its end are what the room is for that the demotions at its
    /// beginning make. To be called on every tick, also with an empty plan: it
    /// is also how the economist learns the time.
    pub fn survey(&mut self, proposals: &[Proposal], telemetry: &Telemetry) {
        if self.mode == Mode::Off {
            return;
        }
        self.advance(telemetry);
        for proposal in proposals {
            self.take_offers(proposal, telemetry);
            self.surveyed = Some(proposal.op);
        }
    }

    /// The world has something to propose that is no policy's business: decides on it. Such proposals are
    /// numbered apart from a policy's, so that a replay gives those the same numbers. Does not allocate.
    pub fn consider(
        &mut self,
        action: Action,
        page_size: PageSize,
        heat: Heat,
        (urgency, reason): (Urgency, Reason),
        telemetry: &Telemetry,
    ) -> (Proposal, Decision) {
        // Readers of JSON that keep numbers as doubles have them exact up to 2^53.
        const APART: u64 = 1 << 52;
        let op = OpId(APART + self.considered);
        self.considered += 1;
        let victim_heat = Heat::default();
        let proposal = Proposal { op, action, page_size, heat, victim_heat, urgency, reason };
        let decision = self.decide(&proposal, telemetry);
        (proposal, decision)
    }

    /// Prices a proposal and says whether it passes. Does not allocate.
    pub fn decide(&mut self, proposal: &Proposal, telemetry: &Telemetry) -> Decision {
        let class = proposal.action.class();
        self.accounts[class.index()].proposed += 1;
        if self.mode == Mode::Off {
            return Decision::unpriced(proposal, telemetry.now, Verdict::Off);
        }
        if let Action::Place { .. } = proposal.action {
            // Within a fault, and often: what is watched is looked through when there is more time.
            self.now = self.now.max(telemetry.now);
        } else {
            self.advance(telemetry);
        }
        if self.surveyed.is_none_or(|last| proposal.op > last) {
            self.take_offers(proposal, telemetry);
        }
        let (fast, slow) = ladder(&proposal.action);
        let market = self.market(fast, slow, proposal.page_size, class, telemetry);
        let calibration = self.calibration;
        let conditions = Conditions::new(telemetry, &calibration, market);
        let ledger = model::price(proposal, &conditions);
        if let Some(page) = moved_up(&proposal.action) {
            self.lifetimes.begin(page, self.now);
        }
        let verdict = self.judge(proposal, &ledger, conditions.hurdle());
        if let Action::Place { .. } = proposal.action {
            // Nothing moves: what passes is done with that. What comes of it is not watched.
            if verdict.passes() {
                let account = &mut self.accounts[class.index()];
                account.completed += 1;
                account.predicted_benefit += Cycles::from_f64(ledger.gain);
                account.predicted_harm += Cycles::from_f64(ledger.harm);
            }
        } else if verdict.passes() {
            let pending = Pending::new(proposal, &ledger, (fast, slow), &conditions);
            self.put_pending(proposal, pending);
        } else if verdict == Verdict::HeldOut {
            let pending = Pending::new(proposal, &ledger, (fast, slow), &conditions);
            self.watch_held_out(proposal, &pending);
        }
        let hurdle = conditions.hurdle();
        // What has to be done does not turn at any rate; and under pressure,
        // when a program waits, half of our time would go into finding one.
        let (flip, alternatives) = match verdict {
            Verdict::Forced => (None, [None; MAX_ALTERNATIVES]),
            _ => (
                model::flip(proposal, &ledger, &conditions),
                self.alternatives(proposal, hurdle, telemetry),
            ),
        };
        let decision = Decision::priced(proposal, telemetry.now, &ledger, hurdle, flip, verdict);
        Decision { alternatives, ..decision }
    }

    /// What else could be done, each with the price that it would have as a proposal; the best of
    /// them. They are not accounted for. Does not allocate.
    fn alternatives(
        &self,
        proposal: &Proposal,
        hurdle: f64,
        telemetry: &Telemetry,
    ) -> [Option<Alternative>; MAX_ALTERNATIVES] {
        let mut best = [None; MAX_ALTERNATIVES];
        alternative::each(proposal, telemetry, |instead| {
            let Some(action) = instead.of(&proposal.action) else { return };
            let other = Proposal { action, victim_heat: Heat::default(), ..*proposal };
            let ((fast, slow), class) = (ladder(&action), action.class());
            let market = self.market(fast, slow, other.page_size, class, telemetry);
            let conditions = Conditions::new(telemetry, &self.calibration, market);
            let ledger = model::price(&other, &conditions);
            let one = Alternative::new(instead, &ledger);
            alternative::keep(&mut best, one, &proposal.action, hurdle);
        });
        best
    }

    /// Accesses were observed: refines what carried-out actions brought. A few
    /// nanoseconds a sample; does not allocate.
    pub fn observe(&mut self, samples: &[Sample]) {
        self.pay_for(samples);
        self.lifetimes.observe(samples, self.now);
        self.watches.observe(samples, self.sample_period, self.now, &mut self.accounts);
    }

    /// The world has seen accesses of which no policy is told: refines what carried-out actions brought, and
    /// is no evidence for anything else, as a run that cannot see them would not have it.
    pub fn witness(&mut self, samples: &[Sample]) {
        self.watches.observe(samples, self.sample_period, self.now, &mut self.accounts);
    }

    /// A rate costs nothing when it is set, but with each sample that it brings: nobody times those one
    /// by one, so each is entered at its price.
    fn pay_for(&mut self, samples: &[Sample]) {
        if !self.is_paced {
            return;
        }
        let of_rate = samples.iter().filter(|sample| sample.source == SampleSource::Pmu).count();
        let each = self.calibration.clock.cycles(observe::SAMPLE).as_f64();
        let cost = Cycles::from_f64(of_rate as f64 * each);
        self.accounts[ActionClass::Rate.index()].realised_cost += cost;
    }

    /// Pages were given back: what was being observed about them ends.
    pub fn forget(&mut self, range: PageRange) {
        self.lifetimes.forget(range);
        self.watches.forget(range, &mut self.accounts);
    }

    /// An action came to its end.
    pub fn settle(&mut self, done: &Done, telemetry: &Telemetry) {
        let (proposal, class) = (&done.proposal, done.proposal.action.class());
        if self.mode != Mode::Off {
            self.advance(telemetry);
        }
        let pending = self.take_pending(proposal);
        let account = &mut self.accounts[class.index()];
        let Outcome::Completed { cost, moved } = done.outcome else {
            // A veto is an end as well, but counted where it was decided.
            let vetoed = Outcome::Aborted(Abort::Vetoed);
            account.aborted += u64::from(done.outcome != vetoed);
            if let (Some(pending), Outcome::Aborted(Abort::NoMemory)) = (pending, done.outcome) {
                account.found_block(class, f64::from(pending.worth), false);
            }
            return;
        };
        account.completed += 1;
        account.realised_cost += cost;
        self.is_paced |= matches!(proposal.action, Action::SetPeriod { .. });
        if self.mode == Mode::Off {
            return;
        }
        match proposal.action {
            Action::Promote { .. } => self.promoted += moved,
            Action::Demote { .. } | Action::DemoteContext { .. } => self.demoted += moved,
            _ => {}
        }
        let Some(pending) = pending else {
            account.unmatched += 1;
            return;
        };
        let part = part_done(&proposal.action, moved);
        let predicted = |of: f32| Cycles::from_f64(f64::from(of) * part);
        account.predicted_cost += predicted(pending.predicted);
        account.predicted_benefit += predicted(pending.gain);
        account.predicted_harm += predicted(pending.harm);
        account.found_block(class, f64::from(pending.worth), true);
        self.corrections[class.index()].outcome(f64::from(pending.calibrated) * part, cost);
        if by_profile(class) {
            let touches = &mut self.touches[class.index()];
            touches.carried_out(f64::from(pending.gain), f64::from(pending.true_of), cost);
        }
        let bytes = match proposal.action {
            Action::DemoteContext { .. } => moved,
            _ => proposal.page_size.bytes(),
        };
        if let Action::Demote { from: tier, .. }
        | Action::DemoteContext { from: tier, .. }
        | Action::Exchange { fast: tier, .. } = proposal.action
            && let Some(outflow) = self.outflows.get_mut(tier.index())
        {
            outflow.add(bytes, idle(&self.calibration), self.now);
        }
        self.watch(proposal, &pending, cost);
    }

    /// An action that was let pass has cost so much, and is given up when such a part of it is done, 0 if
    /// it came to nothing. To be told before it is settled as aborted.
    pub fn in_vain(&mut self, proposal: &Proposal, part: f64, cost: Cycles) {
        let class = proposal.action.class().index();
        self.accounts[class].aborted_cost += cost;
        if let Some(pending) = self.take_pending(proposal) {
            self.corrections[class].given_up(f64::from(pending.calibrated), part, cost);
            self.put_pending(proposal, pending);
        }
    }

    /// The program has walked through pages that were zeroed for it ahead of time.
    pub fn walked_through(&mut self, pages: u64, size: PageSize) {
        let saved = prezero::saved(size, &self.calibration) * pages as f64;
        self.accounts[ActionClass::Prezero.index()].realised_benefit += Cycles::from_f64(saved);
    }

    /// A block that was zeroed ahead was taken: the program was spared so much.
    pub fn zeros_taken(&mut self, spared: Cycles) {
        self.accounts[ActionClass::Prezero.index()].realised_benefit += spared;
    }

    /// Of pages that came in ahead of walks, so many were asked for, as far as can be told by those
    /// that were left out; bringing them in had cost so much.
    pub fn walked_into(&mut self, used: f64, cost: Cycles) {
        let brought = prefetch::brought(used, cost, &self.calibration);
        self.accounts[ActionClass::Prefetch.index()].realised_benefit += brought;
    }

    /// Of pages that walks would have had ahead, these were left out, and it is known what came of them:
    /// beside what was expected, what having them would have spared.
    pub fn left_out(&mut self, pages: &LeftOut) {
        if self.mode == Mode::Off {
            return;
        }
        let z = self.calibration.parameters.z;
        let (predicted, observed) = prefetch::left_out(pages, z, &self.calibration);
        let account = &mut self.accounts[ActionClass::Prefetch.index()];
        account.held_out_predicted += predicted;
        account.held_out_observed += observed;
    }

    /// So many pages have come back from the file that reclaim has put them in, each after such a time of
    /// reading; nothing where nobody times it.
    pub fn came_back(&mut self, pages: u64, each: Nanos) {
        if self.mode == Mode::Off {
            return;
        }
        let each = if each.is_zero() { reclaim::READ } else { each };
        let harm = self.calibration.clock.cycles(each) * pages;
        self.accounts[ActionClass::Reclaim.index()].realised_harm += harm;
    }

    /// A huge page is wanted, and the kernel has a free block for it or has none. To be told before
    /// moving pages together is proposed: where that was held out, it says what has become without it.
    pub fn saw_blocks(&mut self, is_any: bool, now: Nanos) {
        let Some(held) = self.held_block else { return };
        if let Some(observed) = held.judge(is_any, now) {
            let account = &mut self.accounts[ActionClass::Compact.index()];
            account.held_out_predicted += held.worth();
            account.held_out_observed += observed;
            self.held_block = None;
        }
    }

    /// A place that a profile speaks of was held out, and looked at later: what was touched of it
    /// says what the others of its class have brought, and what profiles are worth from now on.
    pub fn looked_at(&mut self, class: ActionClass, place: LookedAt) {
        let brought = self.touches[class.index()].look(place);
        self.accounts[class.index()].realised_benefit += brought;
    }

    /// Of what a profile says will be touched, the part that came true where it could be seen.
    pub fn true_of_profiles(&self, class: ActionClass) -> f64 {
        self.touches[class.index()].true_of()
    }

    /// Judges everything that is still being watched by the time it had: for
    /// the report at the end of a run.
    pub fn finish(&mut self, now: Nanos) {
        self.now = self.now.max(now);

        self.watches.finish(self.now, &mut self.accounts);
    }

    /// What was learnt that bears on moves of pages of `page` between two tiers.
    pub fn market(
        &self,
        fast: TierId,
        slow: TierId,
        page: PageSize,
        class: ActionClass,
        telemetry: &Telemetry,
    ) -> Market {
        let mut market = Market {
            horizon: self.horizon(fast, telemetry),
            bid: Interval::UNKNOWN,
            ask: Interval::UNKNOWN,
            correction: self.correction(class),
            touched: self.touches[class.index()].true_of(),
        };
        let conditions = Conditions::new(telemetry, &self.calibration, market);
        let (lifetime, z) = (idle(&self.calibration), conditions.z());
        let quote = |quotes: &[Quote; MAX_TIERS], ignorance| {
            quotes
                .get(fast.index())
                .copied()
                .unwrap_or_default()
                .price(ignorance, z, lifetime, self.now)
        };
        let bid = quote(&self.bids, unknown_bid(fast, slow, page, &conditions));
        let ask = quote(&self.asks, unknown_ask(fast, slow, page, &conditions));
        market.bid = bid;
        market.ask = ask;
        market
    }

    /// How long a placement in a tier lasts, in seconds: until the page is no
    /// longer in use, until the tier's turnover takes it away, until the end of
    /// the program; the rates at which these come add up.
    fn horizon(&self, tier: TierId, telemetry: &Telemetry) -> f64 {
        let memory = idle(&self.calibration);
        let capacity = telemetry.tiers.get(tier.index()).map_or(0.0, |t| t.capacity.as_f64());
        let outflow = self.outflows.get(tier.index()).map_or(0.0, |o| o.rate(memory, self.now));
        let turnover = if capacity > 0.0 { outflow / capacity } else { 0.0 };
        let exit =
            self.calibration.parameters.exit.map_or(0.0, |exit| 1.0 / exit.max(Nanos(1)).as_secs());
        1.0 / (1.0 / self.lifetime().as_secs() + turnover + exit)
    }

    /// What the kill switch judges a class of action by; `None` of those of which nobody sees what
    /// they bring.
    fn judged(&self, class: ActionClass) -> Option<&Account> {
        match class {
            // It comes about over time: those that have just been done prove nothing.
            ActionClass::Promote | ActionClass::Exchange => self.watches.tried(class),
            // And this within moments.
            ActionClass::Prezero | ActionClass::Prefetch => Some(&self.accounts[class.index()]),
            other if by_profile(other) => Some(self.touches[class.index()].judged()),
            _ => None,
        }
    }

    /// Whether a class of action stands still, as it has cost more than it brought.
    fn is_stopped(&mut self, class: ActionClass) -> bool {
        let Some(judged) = self.judged(class).copied() else { return false };
        let horizon = idle(&self.calibration);
        self.switches[class.index()].is_off(&judged, horizon, self.now)
    }

    /// Whether an action is drawn to be held out.
    fn is_drawn(&self, proposal: &Proposal) -> bool {
        let one_in = self.calibration.parameters.hold_out;
        if let Some(page) = moved_up(&proposal.action) {
            let number = guard::number_of(page, idle(&self.calibration), self.now);
            return self.watches.has_room(page, self.now)
                && guard::is_held_out(number, self.salt, one_in);
        }
        let number = match proposal.action.class() {
            ActionClass::Compact => held_block::number_of(self.now),
            class => by_profile(class).then_some(proposal.op.0),
        };
        number.is_some_and(|number| guard::is_held_out(number, self.salt, one_in))
    }

    /// Whether it pays, and what follows from that.
    fn judge(&mut self, proposal: &Proposal, ledger: &Ledger, hurdle: f64) -> Verdict {
        let class = proposal.action.class();
        if proposal.urgency == Urgency::Forced {
            self.accounts[class.index()].forced += 1;
            return Verdict::Forced;
        }
        let parameters = self.calibration.parameters;
        // One page in so many is left where it is for all of its time, however often it is proposed
        // meanwhile: or else it would move with the next tick, and nothing would have been seen.
        let stays = match proposal.action {
            // Neither is a block made for another one meanwhile.
            Action::Compact { .. } => self.held_block.is_some_and(|held| !held.is_over(self.now)),
            action => moved_up(&action).is_some_and(|page| self.watches.holds_out(page, self.now)),
        };
        if model::pays(&proposal.action, ledger.benefit, ledger.cost, hurdle) {
            if !self.mode.refuses() {
                return Verdict::Passed;
            }
            if parameters.kill_switch && self.is_stopped(class) {
                self.accounts[class.index()].vetoed += 1;
                return Verdict::Stopped;
            }
            if stays {
                // The same one, again.
                self.accounts[class.index()].vetoed += 1;
                return Verdict::HeldOut;
            }
            if self.is_drawn(proposal) {
                self.accounts[class.index()].held_out += 1;
                return Verdict::HeldOut;
            }
            return Verdict::Passed;
        }
        let account = &mut self.accounts[class.index()];
        if !self.mode.refuses() {
            account.would_veto += 1;
            account.would_veto_cost += Cycles::from_f64(ledger.cost.expected);
            account.would_veto_benefit += Cycles::from_f64(ledger.benefit.expected);
            return Verdict::ShadowVeto;
        }
        // It would pay if things are as expected; only the evidence is thin.
        let explore = parameters.explore;
        if explore > 0 && !stays && ledger.benefit.expected > hurdle * ledger.cost.expected {
            let class = class.index();
            let turn = self.undecided[class].is_multiple_of(explore);
            self.undecided[class] = self.undecided[class].wrapping_add(1);
            let clock = finite(self.calibration.clock.get()).max(0.0);
            let budget = finite(parameters.explore_budget).clamp(0.0, 1.0) * clock;
            self.purse.fill(budget, idle(&self.calibration), self.now);
            if turn && self.purse.pay(ledger.cost.expected) {
                account.explored += 1;
                return Verdict::Explored;
            }
        }
        account.vetoed += 1;
        Verdict::Vetoed
    }

    /// Enters what a proposal's pages would earn in the faster tier into its prices.
    fn take_offers(&mut self, proposal: &Proposal, telemetry: &Telemetry) {
        if !matches!(
            proposal.action,
            Action::Promote { .. }
                | Action::Demote { .. }
                | Action::DemoteContext { .. }
                | Action::Exchange { .. }
        ) {
            return;
        }
        let (fast, slow) = ladder(&proposal.action);
        if fast.index() >= MAX_TIERS || slow.index() >= MAX_TIERS {
            return;
        }
        let market = Market {
            horizon: self.horizon(fast, telemetry),
            bid: Interval::ZERO,
            ask: Interval::ZERO,
            correction: Interval::exact(1.0),
            touched: 1.0,
        };
        let conditions = Conditions::new(telemetry, &self.calibration, market);
        let (page, bytes) = (proposal.page_size, proposal.page_size.bytes());
        let earns = |heat, tier| {
            let rates = Rates::of(heat, tier, page, &conditions);
            access::density(&rates, slow, fast, bytes, &conditions)
        };
        let (z, now) = (conditions.z(), self.now);
        if let Action::Promote { .. } | Action::Exchange { .. } = proposal.action {
            self.bids[fast.index()].offer(earns(&proposal.heat, slow), z, now);
        }
        if let Action::Demote { .. } = proposal.action {
            self.asks[fast.index()].offer(earns(&proposal.heat, fast), z, now);
        }
        if let Action::Exchange { .. } = proposal.action {
            self.asks[fast.index()].offer(earns(&proposal.victim_heat, fast), z, now);
        }
    }

    fn advance(&mut self, telemetry: &Telemetry) {
        // Replays and outcomes may come with older or no telemetry.
        self.now = self.now.max(telemetry.now);
        if telemetry.sample_period > 0 {
            self.sample_period = telemetry.sample_period;
        }
        self.lifetimes.sweep(SWEEP, self.now);
        self.watches.sweep(SWEEP, self.now, &mut self.accounts);
    }

    fn put_pending(&mut self, proposal: &Proposal, pending: Pending) {
        if !is_batch(&proposal.action) {
            self.pending[proposal.op.0 as usize % PENDING] = Some(pending);
            return;
        }
        let age = |place: &&mut Option<Pending>| place.map_or(0, |it| it.op.0 + 1);
        if let Some(place) = self.batches.iter_mut().min_by_key(age) {
            *place = Some(pending);
        }
    }

    fn take_pending(&mut self, proposal: &Proposal) -> Option<Pending> {
        let op = proposal.op;
        if is_batch(&proposal.action) {
            let here = |place: &&mut Option<Pending>| place.is_some_and(|it| it.op == op);
            return self.batches.iter_mut().find(here).and_then(Option::take);
        }
        if self.pending.is_empty() {
            return None;
        }
        let place = &mut self.pending[op.0 as usize % PENDING];
        if place.as_ref().is_some_and(|p| p.op == op) { place.take() } else { None }
    }

    /// Watches a page that stays where it is, or a block that is not made, for comparison.
    fn watch_held_out(&mut self, proposal: &Proposal, pending: &Pending) {
        if let Action::Compact { .. } = proposal.action {
            if self.held_block.is_none_or(|held| held.is_over(self.now)) {
                self.held_block = Some(HeldBlock::new(f64::from(pending.worth), self.now));
            }
            return;
        }
        let Some(page) = moved_up(&proposal.action) else { return };
        // As for those that are carried out: of an exchange, the harm is the other page's.
        let harm = match proposal.action {
            Action::Promote { .. } => f64::from(pending.harm),
            _ => 0.0,
        };
        // What is predicted comes about over the horizon, of which a hot page is not left out for all.
        let horizon = pending.horizon().min(idle(&self.calibration));
        let part = horizon.as_f64() / pending.horizon().as_f64().max(1.0);
        let watched = Move {
            page,
            class: proposal.action.class(),
            direction: Direction::HeldOut,
            predicted: (f64::from(pending.gain) - harm) * part,
            each: pending.each(),
            horizon,
            cost: Cycles::ZERO,
        };
        self.watches.hold_out(watched, self.now, &mut self.accounts);
    }

    /// Watches the pages of an action that was carried out, and has cost so much.
    fn watch(&mut self, proposal: &Proposal, pending: &Pending, cost: Cycles) {
        let class = proposal.action.class();
        let (each, horizon) = (pending.each(), pending.horizon());
        let (gain, harm) = (f64::from(pending.gain), f64::from(pending.harm));
        let mut begin = |page, direction, predicted, cost| {
            let watched = Move { page, class, direction, predicted, each, horizon, cost };
            self.watches.moved(proposal.op, watched, self.now, &mut self.accounts);
        };
        match proposal.action {
            // Loads may gain where stores lose; what is observed is the balance.
            Action::Promote { page, .. } => begin(page, Direction::Up, gain - harm, cost),
            Action::Demote { page, .. } => begin(page, Direction::Down, harm - gain, cost),
            Action::Exchange { promote, demote, .. } => {
                begin(promote, Direction::Up, gain, cost);
                begin(demote, Direction::Down, harm, Cycles::ZERO);
            }
            _ => {}
        }
    }
}

/// The two tiers that an action's price depends on, the faster first.
fn ladder(action: &Action) -> (TierId, TierId) {
    match *action {
        Action::Promote { from, to, .. } => (to, from),
        Action::Demote { from, to, .. } | Action::DemoteContext { from, to, .. } => (from, to),
        Action::Exchange { fast, slow, .. } => (fast, slow),
        Action::Place { to, instead, .. } => (to.min(instead), to.max(instead)),
        // What they take or set free is the fastest tier's.
        Action::Prefetch { from: Some(from), .. }
        | Action::Reclaim { from, .. }
        | Action::Recompress { tier: from, .. } => (TierId::FASTEST, from),
        _ => (TierId(0), TierId(1)),
    }
}

/// Whether an action is on many pages that are not named, and goes on for a while.
fn is_batch(action: &Action) -> bool {
    matches!(action, Action::Prefetch { .. } | Action::Reclaim { .. } | Action::Recompress { .. })
}

/// Of an action on many pages that goes on until the next one of its kind is decided, the part that
/// was carried out: more than all of it if there were more.
fn part_done(action: &Action, moved: Bytes) -> f64 {
    match *action {
        Action::Prefetch { pages, .. }
        | Action::Reclaim { pages, .. }
        | Action::Recompress { pages, .. } => {
            let all = PageSize::Base.bytes() * u64::from(pages.max(1));
            finite(moved.as_f64() / all.as_f64())
        }
        _ => 1.0,
    }
}

/// Whether a profile is what a class of action rests on: places that are held out say what it is
/// worth.
fn by_profile(class: ActionClass) -> bool {
    matches!(class, ActionClass::FirstTouch | ActionClass::Populate)
}

/// The page that an action moves to a faster tier, if it does. That may be left out without harm, and
/// what becomes of the page without it can be seen.
fn moved_up(action: &Action) -> Option<PageRef> {
    match *action {
        Action::Promote { page, .. } | Action::Exchange { promote: page, .. } => Some(page),
        _ => None,
    }
}

fn idle(calibration: &Calibration) -> Nanos {
    calibration.parameters.idle.max(Nanos(1))
}

/// What is known of the value of free memory before anybody asked for it: the
/// best page outside is at least as hot as the average one outside, if that is
/// measured, and at most takes every access that the processors can make.
fn unknown_bid(
    fast: TierId,
    slow: TierId,
    page: PageSize,
    conditions: &Conditions<'_>,
) -> Interval {
    let density = |rate| density_at(rate, fast, slow, page, conditions);
    let mean = density(conditions.mean_rate(slow, page));
    let most = density(conditions.most_accesses(slow));
    let measured = conditions.tier(slow).accesses.get() > 0.0;
    Interval::new(if measured { mean } else { 0.0 }, (mean * most).sqrt(), most)
}

/// What is known of the worth of the least useful resident before anybody
/// proposed to demote one: it is between nothing and that of the average.
fn unknown_ask(
    fast: TierId,
    slow: TierId,
    page: PageSize,
    conditions: &Conditions<'_>,
) -> Interval {
    let mean = density_at(conditions.mean_rate(fast, page), fast, slow, page, conditions);
    Interval::new(0.0, mean / 2.0, mean)
}

fn density_at(
    rate: f64,
    fast: TierId,
    slow: TierId,
    page: PageSize,
    conditions: &Conditions<'_>,
) -> f64 {
    let rates =
        Rates { loads: Interval::exact(rate), stores: Interval::ZERO, confidence: 1.0, floor: 0.0 };
    access::density(&rates, slow, fast, page.bytes(), conditions).expected
}

#[cfg(test)]
mod tests {
    use terrace_core::{Machine, PageNo, RegionId, TierTelemetry};

    use super::*;

    /// Prices count a profile at most twice. To take out more than that when what was carried out is
    /// put down would let huge pages that come true look like a loss.
    #[test]
    fn what_a_profile_said_is_put_down_as_it_was_priced() {
        let machine = include_str!("../../../machines/laptop.toml");
        let machine = Machine::parse("laptop", machine).expect("a machine");
        let mut economist = Economist::new(Mode::Enforce, Calibration::from_machine(&machine));
        let mut telemetry = Telemetry { tier_count: 1, ..Telemetry::default() };
        telemetry.tiers[0] = TierTelemetry {
            capacity: Bytes::gib(4),
            free: Bytes::gib(2),
            addressable: true,
            ..TierTelemetry::default()
        };
        let class = ActionClass::FirstTouch;
        // Nothing was to be touched, and all was.
        for _ in 0..100 {
            economist.looked_at(class, LookedAt { said: 0.0, was: 1.0 });
        }
        assert!(economist.true_of_profiles(class) > 4.0);
        let range = PageRange { region: RegionId(2), start: PageNo(0), count: 512 };
        let proposal = Proposal {
            op: OpId(1),
            action: Action::FirstTouch {
                range,
                touched: 100,
                unsure: 0,
                least: Cycles(90_000_000),
                averted: Cycles(90_000_000),
                most: Cycles(90_000_000),
                within: Nanos::SECOND,
                left: Nanos::SECOND,
                waits: Cycles::ZERO,
            },
            page_size: PageSize::Huge,
            heat: Heat::default(),
            victim_heat: Heat::default(),
            urgency: Urgency::Voluntary,
            reason: Reason::Profiled,
        };
        let decision = economist.decide(&proposal, &telemetry);
        assert!(decision.passes, "{decision}");
        let outcome = Outcome::Completed { cost: Cycles(500_000), moved: Bytes::mib(2) };
        economist.settle(&Done { proposal, outcome }, &telemetry);
        let before = economist.account(class).realised_benefit;
        economist.looked_at(class, LookedAt { said: 1.0, was: 1.0 });
        let brought = economist.account(class).realised_benefit.saturating_sub(before);
        // The walks are not doubled in the price, and the faults are: half of all is the least.
        let least = decision.benefit.expected / 2.01;
        assert!(brought.as_f64() > least, "{brought} of {}", decision.benefit.expected);
    }
}
