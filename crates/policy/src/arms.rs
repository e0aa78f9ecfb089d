//! ARMS: no thresholds to tune; what a move costs is measured, and has to pay.
//!
//! Of each page two means of its accesses are kept, over one second and over
//! ten. Their weighted sum is its score, and the pages with the best scores, as
//! many as the fast tier holds, should be there. Usually the long mean weighs
//! more. When the traffic of the slow tier rises beyond its usual noise (a
//! Page-Hinkley test), the hot set is taken to have changed: then the short mean
//! does, and samples are taken twice as often. A page is promoted when it has
//! been among the best for more than one interval, and if the time that it is
//! expected to save exceeds what the moves have cost lately by half.

use bytemuck::Zeroable;
use terrace_core::{
    Access, Action, Bytes, BytesPerSecond, Done, FaultKind, Frequency, Heat, Nanos, Outcome,
    PageRange, PageRef, PageSize, PerSecond, Plan, Reason, Region, Sample, SampleSource, Telemetry,
    TierId, Urgency,
};

use crate::contract::{Footprint, Needs, Policy};
use crate::roster::{Candidate, End, Next, PerPage, Raised, Roster, Standing};

/// Lists: pages by the logarithm of their scores.
const LISTS: usize = 16;
/// Scores are ranked by their sign, exponent and five bits of mantissa.
const RANKS: usize = 1 << 13;
/// Parts in which all pages are visited in an interval.
const PARTS: u64 = 10;
/// Seconds in which only the usual traffic and its noise are learnt.
const LEARNS: u32 = 10;
/// Pages that are considered for a move in an interval, each way.
const CONSIDERED: usize = 4096;

/// ARMS's parameters.
///
/// "The code" is `arms_kernel` of the artifact (`SujayYadalam94/tiering_solutions`);
/// the paper is Yadalam et al., *ARMS: Adaptive and Robust Memory Tiering
/// System*, 2025. Where the code differs by machine, its values for two sockets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArmsConfig {
    /// How often scores are computed: 500 ms (`PEBS_KSWAPD_INTERVAL_BIG`).
    pub interval: Nanos,
    /// The windows of the two means: 1 s and 10 s; a mean over n intervals
    /// takes `2 / (n + 1)` of the latest.
    pub windows: [Nanos; 2],
    /// Weights of the two means when nothing changes: 0.4 and 0.6 (`HIST_BIAS`).
    pub history: [f32; 2],
    /// And after the hot set has changed: 0.731 and 0.269 (`RECN_BIAS`).
    pub recency: [f32; 2],
    /// Weights of the latest second in the mean of the slow tier's traffic and
    /// in that of its variance: 0.1 and 0.2 (`HCD_EWMA_ALPHA`, `HCD_STD_ALPHA`).
    pub traffic_weights: [f64; 2],
    /// Deviations that are noise, and their sum that is a change, in standard
    /// deviations: 0.5 and 6 (`HCD_PH_DRIFT`, `HCD_PH_THRESHOLD`).
    pub drift: f64,
    /// See `drift`.
    pub threshold: f64,
    /// Traffic of the slow tier below which nothing is a change: 0.3 GiB/s
    /// (`HCD_RECN_MIN_NVM_BW`).
    pub least_traffic: BytesPerSecond,
    /// Seconds that the short mean weighs more: 20 (`HCD_RECN_MAX_PERIODS`).
    pub recency_lasts: u32,
    /// Accesses a sample: usually, and after a change: 10007 and 5003.
    pub periods: [u64; 2],
    /// What a move has to bring, in what it costs: 1.5 (`CB_MULTIPLIER`).
    pub margin: f64,
    /// What a store counts, in loads: 1 (`NVM_WRITES_WEIGHT`; 3 for Optane).
    pub store_weight: u16,
    /// The least cost of a move: the time to copy the page at this bandwidth,
    /// 15 GiB/s (`NVM_RD_BW_KNEE`), and what follows.
    pub copy_bandwidth: BytesPerSecond,
    /// What else a huge page costs: 500 us (`MIGRATION_METADATA_COST`).
    pub huge_overhead: Nanos,
    /// What else a base page costs: 2 us; ours, as the code moves none.
    pub base_overhead: Nanos,
    /// Weight of the latest move in the mean of the costs: 2/21
    /// (`MIGRATION_COST_ALPHA`).
    pub cost_weight: f64,
    /// By what costs are divided after an interval without moves: 1.5
    /// (`MIGRATION_COST_DECAY_RATE`).
    pub cost_decay: f64,
    /// Turns the cycles that a world reports into time; the code takes the time.
    pub clock: Frequency,
}

impl Default for ArmsConfig {
    fn default() -> Self {
        Self {
            interval: Nanos::millis(500),
            windows: [Nanos::SECOND, Nanos::seconds(10)],
            history: [0.4, 0.6],
            recency: [0.731, 0.269],
            traffic_weights: [0.1, 0.2],
            drift: 0.5,
            threshold: 6.0,
            least_traffic: BytesPerSecond(0.3 * (1u64 << 30) as f64),
            recency_lasts: 20,
            periods: [10_007, 5_003],
            margin: 1.5,
            store_weight: 1,
            copy_bandwidth: BytesPerSecond((15u64 << 30) as f64),
            huge_overhead: Nanos::micros(500),
            base_overhead: Nanos::micros(2),
            cost_weight: 2.0 / 21.0,
            cost_decay: 1.5,
            clock: Frequency::ghz(2.4),
        }
    }
}

impl ArmsConfig {
    /// What a score says of a page's use.
    fn heat(&self, score: f32, telemetry: &Telemetry) -> Heat {
        let window = self.windows[1];
        let loads = PerSecond::from_count(score.into(), self.interval);
        let samples = loads.over(window) / telemetry.sample_period.max(1) as f64;
        // A mean that has faded is no sample any more.
        let samples = (samples + 0.5) as u32;
        Heat { loads, samples, window, ..Heat::default() }
    }
}

/// What is remembered of a page: 12 B. Accesses are those of an interval.
#[derive(Clone, Copy, Debug, Default, Zeroable)]
struct State {
    /// Means of accesses over the short and the long window.
    means: [f32; 2],
    /// Samples in this interval.
    samples: u16,
    /// Intervals that it has been among the best.
    age: u8,
    /// Whether it has to prove itself before it is promoted; a new page need not.
    on_trial: bool,
}

const _: () = assert!(size_of::<State>() == 12, "the documented state per page");

/// Whether the traffic of a tier has changed: a Page-Hinkley test.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    mean: f64,
    variance: f64,
    sum: f64,
    /// Seconds seen, up to [`LEARNS`].
    seconds: u32,
}

impl Change {
    /// Another second's traffic; whether it makes a change.
    fn observe(&mut self, traffic: f64, config: &ArmsConfig) -> bool {
        let [mean, variance] = config.traffic_weights;
        if self.seconds == 0 {
            self.mean = traffic;
        }
        self.mean += (traffic - self.mean) * mean;
        let off = traffic - self.mean;
        // By the noise so far: a change must not hide itself.
        let deviation = self.variance.sqrt().max(1e-6);
        self.variance += (off * off - self.variance) * variance;
        if self.seconds < LEARNS {
            self.seconds += 1;
            return false;
        }
        self.sum = (self.sum + off - config.drift * deviation).max(0.0);
        let changed = self.sum > config.threshold * deviation;
        if changed {
            self.sum = 0.0;
        }
        changed
    }
}

/// What moves cost, in nanoseconds: of base and of huge pages, up and down.
#[derive(Clone, Copy, Debug)]
struct Costs {
    least: [f64; 2],
    mean: [[f64; 2]; 2],
}

impl Costs {
    fn new(config: &ArmsConfig) -> Self {
        let sizes =
            [(PageSize::Base, config.base_overhead), (PageSize::Huge, config.huge_overhead)];
        let least = sizes.map(|(size, overhead)| {
            (config.copy_bandwidth.time_for(size.bytes()) + overhead).as_f64()
        });
        Self { least, mean: least.map(|least| [least; 2]) }
    }

    fn of(&self, size: PageSize) -> [f64; 2] {
        self.mean[usize::from(size == PageSize::Huge)]
    }

    fn paid(&mut self, size: PageSize, down: bool, cost: Nanos, weight: f64) {
        let mean = &mut self.mean[usize::from(size == PageSize::Huge)][usize::from(down)];
        *mean += (cost.as_f64() - *mean) * weight;
    }

    fn decay(&mut self, by: f64) {
        for (means, least) in self.mean.iter_mut().zip(self.least) {
            for mean in means {
                *mean = (*mean / by).max(least);
            }
        }
    }
}

/// The ARMS policy.
#[derive(Debug)]
pub struct Arms {
    config: ArmsConfig,
    roster: Roster<LISTS>,
    states: PerPage<State>,
    /// The latest weights of the means.
    alphas: [f32; 2],
    change: Change,
    costs: Costs,
    /// Seconds left in which the short mean weighs more.
    recency: Option<u32>,
    /// Accesses that a sample stands for.
    period: f32,
    /// Bytes of pages by the rank of their scores, in the interval under way.
    ranks: Vec<u64>,
    /// The rank from which on a page was among the best in the last interval.
    best: usize,
    /// Pages to promote, and pages that could make room, with their scores.
    up: Vec<(f32, u32)>,
    down: Vec<(f32, u32)>,
    /// How far this interval's visit of all pages has got.
    cursor: u32,
    part: u64,
    next_part: Nanos,
    next_second: Nanos,
    /// Whether anything was moved in this interval.
    moved: bool,
}

fn rank(score: f32) -> usize {
    (score.max(0.0).to_bits() >> 18) as usize
}

fn score(means: [f32; 2], weights: [f32; 2]) -> f32 {
    means[0] * weights[0] + means[1] * weights[1]
}

/// The list of a page with such a score: by how many eighths of a sample in an
/// interval it is worth.
fn list_of(score: f32, period: f32) -> usize {
    let eighths = (score / period * 8.0).min(65e3) as u32;
    ((eighths + 1).ilog2() as usize).min(LISTS - 1)
}

impl Arms {
    /// The policy without regions.
    pub fn new(config: ArmsConfig) -> Self {
        let alpha =
            |window: Nanos| (2.0 / (window.as_f64() / config.interval.as_f64() + 1.0)) as f32;
        Self {
            config,
            roster: Roster::new(),
            states: PerPage::default(),
            alphas: config.windows.map(alpha),
            change: Change::default(),
            costs: Costs::new(&config),
            recency: None,
            period: 1.0,
            ranks: vec![0; RANKS],
            best: 0,
            up: Vec::with_capacity(2 * CONSIDERED),
            down: Vec::with_capacity(2 * CONSIDERED),
            cursor: 0,
            part: 0,
            next_part: Nanos::ZERO,
            next_second: Nanos::ZERO,
            moved: false,
        }
    }

    /// Whether the hot set is taken to have changed lately.
    pub fn follows_change(&self) -> bool {
        self.recency.is_some()
    }

    /// Checks the lists. Visits all pages.
    pub fn audit(&self) -> Result<(), String> {
        self.roster.audit()
    }

    fn weights(&self) -> [f32; 2] {
        if self.recency.is_some() { self.config.recency } else { self.config.history }
    }

    fn score(&self, slot: u32) -> f32 {
        score(self.states[slot].means, self.weights())
    }

    /// Looks at the slow tiers' traffic of the last second.
    fn watch(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        let slower = telemetry.ladder().skip(1).filter(|(_, tier)| tier.addressable);
        let traffic: f64 =
            slower.map(|(_, tier)| tier.read_bandwidth.get() + tier.write_bandwidth.get()).sum();
        let was = self.recency.is_some();
        if self.change.observe(traffic, &self.config) {
            if traffic > self.config.least_traffic.get() && !was {
                self.recency = Some(self.config.recency_lasts);
            }
        } else if let Some(left) = &mut self.recency {
            *left = left.saturating_sub(1);
            if *left == 0 && self.change.sum <= 0.0 {
                self.recency = None;
            }
        }
        if was != self.recency.is_some() {
            let period = self.config.periods[usize::from(self.recency.is_some())];
            let action = Action::SetPeriod { source: SampleSource::Pmu, period };
            let (size, heat) = (PageSize::Base, Heat::default());
            plan.push(action, size, heat, Urgency::Voluntary, Reason::Observes);
        }
    }

    /// Visits the next pages: brings their scores up to date.
    fn visit(&mut self, pages: u32) {
        let end = (self.cursor + pages).min(self.roster.slots() as u32);
        while self.cursor < end {
            let (part, any) = self.roster.first_part(&(self.cursor..end));
            self.cursor = part.end;
            for slot in part.filter(|_| any) {
                let standing = self.roster.standing(slot);
                if let Standing::Listed(tier, _) | Standing::UnderWay(tier, _) = standing {
                    self.update(slot, tier);
                }
            }
        }
    }

    fn update(&mut self, slot: u32, tier: TierId) {
        let weights = self.weights();
        let Some((_, size)) = self.roster.page(slot) else { return };
        let state = &mut self.states[slot];
        let accesses = f32::from(core::mem::take(&mut state.samples)) * self.period;
        let before = score(state.means, weights);
        for (mean, alpha) in state.means.iter_mut().zip(self.alphas) {
            *mean += (accesses - *mean) * alpha;
        }
        let now = score(state.means, weights);
        let rank = rank(now);
        self.ranks[rank] += size.bytes().get();
        if now > 0.0 && rank >= self.best {
            state.age = state.age.saturating_add(1);
            state.on_trial &= !(state.age > 1 && now >= before);
        } else {
            state.age = 0;
            state.on_trial = true;
        }
        let promising = state.age > 0 && !state.on_trial;
        if let Standing::Listed(..) = self.roster.standing(slot) {
            if tier != TierId::FASTEST && promising {
                keep_first(&mut self.up, (now, slot), |a, b| b.0.total_cmp(&a.0));
            } else if tier == TierId::FASTEST && self.states[slot].age == 0 {
                keep_first(&mut self.down, (now, slot), |a, b| a.0.total_cmp(&b.0));
            }
            let list = list_of(now, self.period);
            if self.roster.standing(slot) != Standing::Listed(tier, list) {
                self.roster.relist(slot, list, End::Young);
            }
        }
    }

    /// All pages have been visited: which are the best, and what to move.
    fn decide(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        let fast = telemetry.tier(TierId::FASTEST);
        let (mut held, mut best) = (0, RANKS);
        while best > 0 && held + self.ranks[best - 1] <= fast.capacity.get() {
            best -= 1;
            held += self.ranks[best];
        }
        self.best = best;
        self.ranks.fill(0);
        self.up.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        self.down.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        self.promote(telemetry, plan);
        self.up.clear();
        self.down.clear();
        if !core::mem::take(&mut self.moved) {
            self.costs.decay(self.config.cost_decay);
        }
    }

    fn promote(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        let fast = TierId::FASTEST;
        let (mut spent, mut next_down) = (0.0, 0);
        for at in 0..self.up.len() {
            let (hot, slot) = self.up[at];
            let Some((_, size)) = self.roster.page(slot) else { continue };
            let Standing::Listed(from, _) = self.roster.standing(slot) else { continue };
            let saved = telemetry.tier(from).read_latency.as_f64()
                - telemetry.tier(fast).read_latency.as_f64();
            let age = f64::from(self.states[slot].age);
            let pays =
                |score: f32, cost: f64| f64::from(score) * age * saved >= self.config.margin * cost;
            let [up, down] = self.costs.of(size);
            spent += up + down;
            // As the code: the first that does not pay ends it.
            if !pays(hot, up) || spent > self.config.interval.as_f64() {
                return;
            }
            let page = Candidate { slot, heat: self.config.heat(self.score(slot), telemetry) };
            let (config, states, downs) = (&self.config, &self.states, &self.down);
            let reason = Reason::AmongHottest;
            let raised = self.roster.raise(page, fast, reason, telemetry, plan, |roster| {
                loop {
                    let &(cold, loser) = downs.get(next_down)?;
                    if !matches!(roster.standing(loser), Standing::Listed(tier, _) if tier == fast)
                    {
                        next_down += 1;
                        continue;
                    }
                    let least = states[slot].means.into_iter().fold(f32::INFINITY, f32::min);
                    let most = states[loser].means.into_iter().fold(0.0, f32::max);
                    if least < most || !pays(hot - cold, up + down) {
                        return None;
                    }
                    next_down += 1;
                    // The long mean of a page that is new does not tell much.
                    return Some(Candidate { slot: loser, heat: config.heat(most, telemetry) });
                }
            });
            match raised {
                Raised::Proposed | Raised::NotMovable => {}
                Raised::NoRoom | Raised::NoBudget => return,
            }
        }
    }
}

/// Enters a page among the first by some order, as long as it is among the
/// `CONSIDERED` first; allocates nothing.
fn keep_first(
    pages: &mut Vec<(f32, u32)>,
    page: (f32, u32),
    order: impl Fn(&(f32, u32), &(f32, u32)) -> core::cmp::Ordering,
) {
    if pages.len() == pages.capacity() {
        pages.select_nth_unstable_by(CONSIDERED, |a, b| order(a, b).then(a.1.cmp(&b.1)));
        pages.truncate(CONSIDERED);
    }
    pages.push(page);
}

impl Policy for Arms {
    fn name(&self) -> &'static str {
        "arms"
    }

    fn needs(&self) -> Needs {
        let tick = Nanos(self.config.interval.get() / PARTS);
        Needs {
            samples: true,
            reads_and_writes: self.config.store_weight != 1,
            tick: Some(tick),
            ..Needs::default()
        }
    }

    fn alloc(&mut self, region: &Region) {
        let slots = self.roster.alloc(region);
        self.states.grow(slots);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        let (states, period, weights) = (&self.states, self.period, self.weights());
        self.roster.fault(page, kind, telemetry, |_, slot, _| {
            list_of(score(states[slot].means, weights), period)
        })
    }

    fn samples(&mut self, samples: &[Sample]) {
        for sample in samples {
            let Some(slot) = self.roster.slot(sample.page) else { continue };
            if self.roster.tier(slot).is_some() {
                let store = sample.access == Access::Write;
                let weight = if store { self.config.store_weight } else { 1 };
                let state = &mut self.states[slot];
                state.samples = state.samples.saturating_add(sample.weight.saturating_mul(weight));
            }
        }
    }

    fn free(&mut self, range: PageRange, whole: bool) {
        let states = &mut self.states;
        self.roster.free(range, whole, |slot| states[slot] = State::default());
    }

    fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        self.roster.survey(telemetry);
        self.period = telemetry.sample_period.max(1) as f32;
        if telemetry.now >= self.next_second {
            self.next_second = telemetry.now + Nanos::SECOND;
            self.watch(telemetry, plan);
        }
        if telemetry.now < self.next_part {
            return;
        }
        self.next_part = telemetry.now + Nanos(self.config.interval.get() / PARTS);
        self.part += 1;
        let slots = self.roster.slots() as u64;
        let share = if self.part == PARTS { slots } else { slots.div_ceil(PARTS) };
        self.visit(share as u32);
        if self.part == PARTS {
            (self.part, self.cursor) = (0, 0);
            self.decide(telemetry, plan);
        }
    }

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        self.roster.relieve(tier, bytes, telemetry, plan, |roster| {
            let (list, slot) =
                (0..LISTS).find_map(|list| roster.oldest(tier, list).map(|slot| (list, slot)))?;
            let reason = if list == 0 { Reason::PressureCold } else { Reason::PressureNoneCold };
            Some((crate::lru::unknown(slot), reason))
        });
    }

    fn done(&mut self, done: &Done) {
        if let Outcome::Completed { cost, .. } = done.outcome {
            let (cost, size) = (self.config.clock.nanos(cost), done.proposal.page_size);
            let weight = self.config.cost_weight;
            let half = Nanos(cost.get() / 2);
            match done.proposal.action {
                Action::Promote { .. } => self.costs.paid(size, false, cost, weight),
                Action::Demote { .. } => self.costs.paid(size, true, cost, weight),
                Action::Exchange { .. } => {
                    self.costs.paid(size, false, half, weight);
                    self.costs.paid(size, true, half, weight);
                }
                _ => {}
            }
            self.moved |= done.proposal.action.page().is_some();
        }
        let (states, period) = (&self.states, self.period);
        let weights = self.weights();
        self.roster.done(done, |ended| {
            let list = list_of(score(states[ended.slot].means, weights), period);
            Next::List(list, ended.usual_end())
        });
    }

    fn footprint(&self) -> Footprint {
        let fixed = self.ranks.len() * size_of::<u64>()
            + (self.up.capacity() + self.down.capacity()) * size_of::<(f32, u32)>();
        let heap = self.roster.heap_bytes() + self.states.heap_bytes() + fixed;
        Footprint::of(size_of::<Self>(), heap, self.roster.slots())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::TierTelemetry;

    /// Traffic of the slow tier in GB/s, second by second; whether ARMS follows a
    /// change after each, and which sampling periods it asked for.
    fn watch(traffic: impl IntoIterator<Item = f64>) -> (Vec<bool>, Vec<u64>) {
        let mut arms = Arms::new(ArmsConfig::default());
        let (mut follows, mut periods) = (Vec::new(), Vec::new());
        for (second, gb) in traffic.into_iter().enumerate() {
            let mut telemetry = Telemetry { tier_count: 2, ..Telemetry::default() };
            telemetry.now = Nanos::seconds(second as u64);
            telemetry.tiers[1] = TierTelemetry {
                addressable: true,
                read_bandwidth: BytesPerSecond(gb * 1e9),
                ..TierTelemetry::default()
            };
            let mut plan = Plan::new();
            arms.tick(&telemetry, &mut plan);
            for proposal in plan.proposals() {
                if let Action::SetPeriod { period, .. } = proposal.action {
                    periods.push(period);
                }
            }
            follows.push(arms.follows_change());
        }
        (follows, periods)
    }

    /// Two GB/s that go up and down by a tenth.
    fn steady(seconds: usize) -> impl Iterator<Item = f64> {
        (0..seconds).map(|second| 2.0 + if second % 2 == 0 { 0.1 } else { -0.1 })
    }

    #[test]
    fn traffic_that_rises_beyond_its_noise_is_a_change_and_ends_after_its_time() {
        let (follows, periods) = watch(steady(60).chain([6.0; 4]).chain(steady(60)));
        assert!(follows[40..60].iter().all(|follows| !follows), "{follows:?}");
        assert!(follows[60..64].iter().any(|follows| *follows), "{follows:?}");
        assert!(!follows[100], "{follows:?}");
        assert!(periods.ends_with(&[5_003, 10_007]), "{periods:?}");
    }

    /// A program that begins to use less of the slow tier has not moved away
    /// from what is in the fast one.
    #[test]
    fn traffic_that_falls_or_is_small_is_no_change() {
        let (follows, _) = watch(steady(60).chain([0.4; 30]));
        assert!(follows[40..].iter().all(|follows| !follows), "{follows:?}");
        let (follows, _) = watch([0.01; 40].into_iter().chain([0.2; 10]));
        assert!(follows.iter().all(|follows| !follows), "{follows:?}");
    }

    /// If order and rank differed, the best pages would not be the best.
    #[test]
    fn ranks_are_in_the_order_of_scores() {
        let scores = [0.0, 1e-30, 0.5, 0.6, 1.0, 7.0, 1e5, 1e30, f32::MAX];
        assert!(scores.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        assert!(rank(f32::MAX) < RANKS && rank(-1.0) == 0);
    }

    /// A world with 3 of 64 pages to move must not be asked to look at the rest.
    #[test]
    fn the_first_are_kept_when_there_are_too_many() {
        let mut pages = Vec::with_capacity(2 * CONSIDERED);
        let room = pages.capacity();
        for slot in 0..3 * room as u32 {
            let score = (slot.wrapping_mul(2_654_435_761) >> 8) as f32;
            keep_first(&mut pages, (score, slot), |a, b| b.0.total_cmp(&a.0));
        }
        assert_eq!(pages.capacity(), room);
        let best = (0..3 * room as u32).map(|slot| slot.wrapping_mul(2_654_435_761) >> 8).max();
        let kept = pages.iter().map(|page| page.0 as u32).max();
        assert_eq!(kept, best.map(|best| best as f32 as u32));
    }
}
