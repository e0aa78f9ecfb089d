//! Where a budget is divided: looks at what came back on either side, and moves the share of the
//! files by a step when the economist says that it pays.
//!
//! A step that is taken back was too large, or all that was gained by it was a matter of chance. So
//! the next one is half of it, and is waited for twice as long; steps that go on in one direction
//! become larger again.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos};
use terrace_economics::division::{Division, Evidence, Prices, Side};

/// For how long it is counted what comes back before something is decided.
pub const WINDOW: Nanos = Nanos::seconds(2);
/// What came back for so long after a step was still on its way.
pub const SETTLE: Nanos = Nanos::seconds(1);
/// The longest that is waited after steps to and fro.
const REST: Nanos = Nanos::seconds(64);
/// Steps, as parts of the budget: at first, the largest and the smallest.
const STEPS: (u64, u64, u64) = (64, 16, 512);
/// Files keep so much of the budget: the program's own code is among them.
const FILES_KEEP: u64 = 64;
/// The program keeps so much of it.
const PROGRAM_KEEPS: u64 = 8;
/// Decisions that are kept to be explained.
const MOST_DECISIONS: usize = 16;
/// Shares are multiples of this.
const UNIT: Bytes = Bytes::kib(64);

/// What was seen since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Look {
    /// When this look is.
    pub at: Nanos,
    /// Whether the budget is as good as full, so that shares matter.
    pub full: bool,
    /// Of files; its window is ignored.
    pub files: Evidence,
    /// Of the program; its window is ignored.
    pub program: Evidence,
}

/// How a budget is divided, as it is reported.
///
/// Each field is a figure of the report of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Divided {
    /// Files' pages in memory.
    pub files: Bytes,
    /// The program's memory: all that is charged and no file's.
    pub program: Bytes,
    /// What of the budget is for files when it is full.
    pub share: Bytes,
    /// Times that this went up, and by how much in all.
    pub to_files: (u64, Bytes),
    /// Times that it went down, and by how much in all.
    pub to_program: (u64, Bytes),
    /// Pages of files that came back.
    pub files_came_back: u64,
    /// Pages of the program that came back.
    pub program_came_back: u64,
    /// What a page of a file takes to be read.
    #[serde(default)]
    pub file_page: Nanos,
    /// Whether that was measured, of pages that came back to this run, and not assumed.
    #[serde(default)]
    pub file_page_measured: bool,
    /// What a page of the program takes to come back.
    #[serde(default)]
    pub program_page: Nanos,
    /// The same is measured, and not assumed.
    #[serde(default)]
    pub program_page_measured: bool,
    /// Files of which nothing could be learnt at the last look.
    #[serde(default)]
    pub files_unread: u64,
    /// Cycles a second that a MiB more averts: for files, and for the program; as of the last
    /// decision.
    pub averts: Option<(f64, f64)>,
    /// The last decisions that passed, and the last one of all, the oldest first.
    pub decisions: Vec<Division>,
}

/// Divides a budget.
#[derive(Debug)]
pub struct Divider {
    budget: Bytes,
    /// What is for files; `None` before the budget was full for the first time.
    share: Option<Bytes>,
    /// Files' part of the budget as it was decided last. A budget that a broker divides changes many
    /// times a second, and a part of rounded shares would be worn off.
    part: f64,
    prices: Prices,
    step: Bytes,
    /// The last step, and how many went the same way in a row.
    last: Option<(Side, u32)>,
    /// How long is waited after a step to and fro.
    rest: Nanos,
    /// Nothing is decided, or counted, before.
    not_before: Nanos,
    /// When counting began.
    since: Option<Nanos>,
    /// What came back since then: of files, and of the program.
    counted: (u64, u64),
    number: u64,
    passed: VecDeque<Division>,
    latest: Option<Division>,
    to_files: (u64, Bytes),
    to_program: (u64, Bytes),
    came_back: (u64, u64),
    held: (Bytes, Bytes),
}

impl Divider {
    /// For a budget. Until it is full for the first time each side has what it takes.
    pub fn new(budget: Bytes, prices: Prices) -> Self {
        Self {
            budget,
            share: None,
            part: 0.0,
            prices,
            step: part(budget, STEPS.0),
            last: None,
            rest: Nanos::ZERO,
            not_before: Nanos::ZERO,
            since: None,
            counted: (0, 0),
            number: 0,
            passed: VecDeque::new(),
            latest: None,
            to_files: (0, Bytes::ZERO),
            to_program: (0, Bytes::ZERO),
            came_back: (0, 0),
            held: (Bytes::ZERO, Bytes::ZERO),
        }
    }

    /// What files have of the budget when it is full; half before that was the case.
    pub fn share(&self) -> Bytes {
        self.share.unwrap_or(self.budget / 2)
    }

    /// Another budget: both sides have the same part of it as before, and steps are the same part.
    pub fn set_budget(&mut self, budget: Bytes) {
        let before = std::mem::replace(&mut self.budget, budget);
        let (first, most, least) = STEPS;
        if self.share.is_none() {
            self.step = part(budget, first);
            return;
        }
        let share = Bytes::from_f64(budget.as_f64() * self.part) + UNIT / 2;
        self.share = Some(self.within(share));
        let step = Bytes::from_f64(self.step.as_f64() * (budget / before.max(Bytes(1))));
        self.step = step.max(part(budget, least)).min(part(budget, most));
    }

    /// Files have so much of the budget from now on.
    fn set_share(&mut self, share: Bytes) {
        self.share = Some(share);
        self.part = share / self.budget.max(Bytes(1));
    }

    /// What is too much or too little for files is not.
    fn within(&self, share: Bytes) -> Bytes {
        let least = (self.budget / FILES_KEEP).max(UNIT);
        let most = (self.budget - self.budget / PROGRAM_KEEPS).max(least);
        let share = Bytes(share.get() / UNIT.get() * UNIT.get());
        share.max(least).min(most)
    }

    /// Takes a look into account; what was decided, if something was.
    pub fn look(&mut self, look: &Look) -> Option<&Division> {
        self.came_back.0 += look.files.came_back;
        self.came_back.1 += look.program.came_back;
        self.held = (look.files.held, look.program.held);
        if !look.full {
            // Nobody lacks anything that the other side could give.
            (self.since, self.counted) = (None, (0, 0));
            return None;
        }
        if self.share.is_none() {
            self.set_share(self.within(look.files.held));
        }
        if look.at < self.not_before {
            (self.since, self.counted) = (None, (0, 0));
            return None;
        }
        let Some(since) = self.since else {
            // What came back before this look did so before counting began.
            self.since = Some(look.at);
            return None;
        };
        self.counted.0 += look.files.came_back;
        self.counted.1 += look.program.came_back;
        let window = look.at.saturating_sub(since);
        if window < WINDOW {
            return None;
        }
        let of = |evidence: Evidence, came_back| Evidence { came_back, window, ..evidence };
        let (files, program) = (of(look.files, self.counted.0), of(look.program, self.counted.1));
        (self.since, self.counted) = (Some(look.at), (0, 0));
        self.decide(look.at, files, program);
        self.latest.as_ref()
    }

    fn decide(&mut self, at: Nanos, files: Evidence, program: Evidence) {
        let share = self.share();
        let least = part(self.budget, STEPS.2);
        let wants = |evidence: &Evidence| evidence.averts(least).expected;
        let to = if wants(&files) >= wants(&program) { Side::Files } else { Side::Program };
        self.number += 1;
        let priced = |step: Bytes| {
            // Bounds may leave nothing to decide.
            let bytes = match to {
                Side::Files => self.within(share + step) - share,
                Side::Program => share - self.within(share - step),
            };
            Division::decide(
                (self.number, at),
                (to, bytes),
                (self.budget, share),
                (files, program),
                &self.prices,
            )
        };
        // More than is missed does not pay where a part of it would.
        let steps = std::iter::successors(Some(self.step), |step| {
            (*step > least).then(|| Bytes(step.get() / 2).max(least))
        });
        let mut division = priced(least);
        for step in steps {
            let one = priced(step);
            if one.passes {
                (division, self.step) = (one, step);
                break;
            }
        }
        if division.passes {
            let bytes = division.bytes;
            let (target, moved) = match to {
                Side::Files => (share + bytes, &mut self.to_files),
                Side::Program => (share - bytes, &mut self.to_program),
            };
            *moved = (moved.0 + 1, moved.1 + bytes);
            self.set_share(target);
            self.pace(to, at);
            if self.passed.len() == MOST_DECISIONS {
                self.passed.pop_front();
            }
            self.passed.push_back(division);
        }
        self.latest = Some(division);
    }

    /// How large the next step is, and when.
    fn pace(&mut self, to: Side, at: Nanos) {
        let (_, most, least) = STEPS;
        let in_a_row = match self.last {
            Some((last, times)) if last == to => times + 1,
            Some(_) => {
                self.step = Bytes(self.step.get() / 2).max(part(self.budget, least));
                self.rest = Nanos(self.rest.get() * 2).max(WINDOW * 2).min(REST);
                0
            }
            None => 0,
        };
        if in_a_row >= 2 {
            // It is a change of what the program does.
            self.step = (self.step * 2).min(part(self.budget, most));
            self.rest = Nanos::ZERO;
        }
        self.last = Some((to, in_a_row));
        self.not_before = at + SETTLE + self.rest;
        (self.since, self.counted) = (None, (0, 0));
    }

    /// The figures.
    pub fn report(&self) -> Divided {
        let mut decisions: Vec<_> = self.passed.iter().copied().collect();
        let latest = self.latest.filter(|latest| {
            decisions.last().is_none_or(|last: &Division| last.number != latest.number)
        });
        decisions.extend(latest);
        let mib = Bytes::mib(1);
        Divided {
            files: self.held.0,
            program: self.held.1,
            share: self.share(),
            to_files: self.to_files,
            to_program: self.to_program,
            files_came_back: self.came_back.0,
            program_came_back: self.came_back.1,
            file_page: Nanos::ZERO,
            file_page_measured: false,
            program_page: Nanos::ZERO,
            program_page_measured: false,
            files_unread: 0,
            averts: self.latest.map(|latest| {
                (latest.files.averts(mib).expected, latest.program.averts(mib).expected)
            }),
            decisions,
        }
    }
}

/// A part of a budget as a step: whole units.
fn part(budget: Bytes, part: u64) -> Bytes {
    Bytes((budget.get() / part / UNIT.get()).max(1) * UNIT.get())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use terrace_economics::Interval;

    use super::*;

    const PAGE: f64 = 4096.0;
    const PRICES: Prices = Prices {
        horizon: Nanos::seconds(10),
        hurdle: 1.5,
        put_out: (
            Interval { low: 1e3, expected: 2e3, high: 4e3 },
            Interval { low: 5e3, expected: 1e4, high: 2e4 },
        ),
    };

    /// Misses a second that fall, the less steeply the more there is: `rate · (1 - x/size)^bend`.
    #[derive(Clone, Copy, Debug)]
    struct Curve {
        rate: f64,
        size: f64,
        bend: f64,
        each: f64,
    }

    impl Curve {
        fn misses(&self, has: f64) -> f64 {
            self.rate * (1.0 - has / self.size).max(0.0).powf(self.bend)
        }

        /// Cycles a second that a byte more averts.
        fn slope(&self, has: f64) -> f64 {
            if has >= self.size {
                return 0.0;
            }
            self.misses(has) * self.bend / (self.size - has) * self.each
        }

        /// What would be seen at that size in half a second, with what is out such that what comes
        /// back over it is the slope.
        fn seen(&self, has: f64) -> Evidence {
            Evidence {
                held: Bytes::from_f64(has),
                absent: Bytes::from_f64((self.size - has).max(0.0) / self.bend),
                came_back: (self.misses(has) / 2.0).round() as u64,
                window: Nanos::ZERO,
                each: Interval::exact(self.each),
            }
        }
    }

    struct Model {
        budget: Bytes,
        files: Curve,
        program: Curve,
        divider: Divider,
        now: Nanos,
    }

    impl Model {
        fn new(budget: Bytes, files: Curve, program: Curve) -> Self {
            let divider = Divider::new(budget, PRICES);
            Self { budget, files, program, divider, now: Nanos::ZERO }
        }

        fn sides(&self) -> (f64, f64) {
            let share = self.divider.share().as_f64();
            (share, self.budget.as_f64() - share)
        }

        /// Two looks a second.
        fn run(&mut self, seconds: u64) -> Vec<Bytes> {
            let mut shares = Vec::new();
            for _ in 0..seconds * 2 {
                self.now += Nanos::millis(500);
                let (files, program) = self.sides();
                let look = Look {
                    at: self.now,
                    full: true,
                    files: self.files.seen(files),
                    program: self.program.seen(program),
                };
                self.divider.look(&look);
                shares.push(self.divider.share());
            }
            shares
        }
    }

    fn model(files: Curve, program: Curve) -> Model {
        Model::new(Bytes::gib(1), files, program)
    }

    const GIB: f64 = (1u64 << 30) as f64;

    #[test]
    fn who_misses_more_for_a_byte_gets_it_and_gives_it_back_when_that_changes() {
        let file = Curve { rate: 20_000.0, size: 0.8 * GIB, bend: 2.0, each: 200e3 };
        let heap = Curve { rate: 20_000.0, size: 0.8 * GIB, bend: 2.0, each: 16e3 };
        let mut model = model(file, heap);
        model.run(300);
        let files = model.sides().0;
        assert!(files > 0.6 * GIB, "{files}");
        // The file is not read any more, and the heap is.
        model.files.rate = 0.0;
        model.run(300);
        assert!(model.sides().1 > 0.7 * GIB, "{:?}", model.sides());
        let report = model.divider.report();
        assert!(report.to_files.0 > 0 && report.to_program.0 > 0, "{report:?}");
        assert!(report.decisions.len() <= MOST_DECISIONS + 1);
    }

    #[test]
    fn what_is_not_full_is_not_divided() {
        let mut divider = Divider::new(Bytes::mib(512), PRICES);
        for second in 0..60 {
            let files = Evidence { came_back: 1000, ..Evidence::default() };
            let look = Look { at: Nanos::seconds(second), files, ..Look::default() };
            assert!(divider.look(&look).is_none());
        }
        assert_eq!(divider.report().files_came_back, 60_000);
        assert!(divider.report().decisions.is_empty());
    }

    /// The first time it begins with what there is: nothing has to leave for the division alone.
    #[test]
    fn it_begins_with_what_each_side_has() {
        let mut divider = Divider::new(Bytes::mib(512), PRICES);
        let files = Evidence { held: Bytes::mib(77), ..Evidence::default() };
        divider.look(&Look { full: true, files, ..Look::default() });
        assert_eq!(divider.share(), Bytes::mib(77));
        divider.set_budget(Bytes::mib(256));
        assert_eq!(divider.share(), Bytes(77 << 19));
    }

    /// As the budget of a run does that has joined a broker.
    #[test]
    fn a_budget_that_goes_to_and_fro_wears_nothing_off_either_side() {
        let budget = Bytes::mib(512);
        let mut divider = Divider::new(Bytes::mib(1), PRICES);
        divider.set_budget(budget);
        assert_eq!(divider.step, part(budget, STEPS.0), "as if it had begun with it");
        let files = Evidence { held: Bytes::mib(200), ..Evidence::default() };
        divider.look(&Look { full: true, files, ..Look::default() });
        let step = divider.step;
        for round in 0..10_000u64 {
            let budget = budget - Bytes(round * 7919 * 4096 % (256 << 20));
            divider.set_budget(budget);
            let part = divider.share() / budget;
            assert!((part - 200.0 / 512.0).abs() < 0.001, "{part} of {budget} after {round}");
        }
        divider.set_budget(budget);
        assert_eq!(divider.share(), Bytes::mib(200));
        assert!(divider.step.get().abs_diff(step.get()) < UNIT.get(), "{:?}", divider.step);
    }

    fn curve() -> impl Strategy<Value = Curve> {
        // Up to 64 K misses a second, of 4 to 1000 Kcycles each.
        (10.0f64..64e3, 0.05f64..4.0, 1.0f64..4.0, 4e3f64..1e6)
            .prop_map(|(rate, size, bend, each)| Curve { rate, size: size * GIB, bend, each })
    }

    proptest! {
        /// Two convex curves: the division comes to where a byte is worth the same on both sides,
        /// as far as an action is taken at all (1.5 times the cost, and what puts a page out), or to
        /// a bound. It stays there: from then on it moves by the smallest steps at most.
        #[test]
        fn a_division_comes_to_equal_benefit_and_stays(
            files in curve(),
            program in curve(),
            budget in 64u64..4096,
        ) {
            let mut model = Model::new(Bytes::mib(budget), files, program);
            model.run(1200);
            let shares = model.run(1200);
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            let smallest = part(model.budget, STEPS.2);
            // One step, and the one to take it back.
            let wanders = *most - *least;
            prop_assert!(wanders <= smallest * 8, "{wanders} {least:?}..{most:?}");

            let (has_files, has_program) = model.sides();
            let (low, high) = (model.divider.within(Bytes::ZERO), model.divider.within(Bytes::MAX));
            let is_bound = |to: Side| match to {
                Side::Files => model.divider.share() + smallest * 8 > high,
                Side::Program => model.divider.share() < low + smallest * 8,
            };
            let around = smallest.as_f64() * 8.0;
            for (to, gains, loses, put_out) in [
                (Side::Files, (files, has_files), (program, has_program), PRICES.put_out.1),
                (Side::Program, (program, has_program), (files, has_files), PRICES.put_out.0),
            ] {
                // The best that the next steps could see of either.
                let gain = gains.0.slope(gains.1 + around);
                let lose = loses.0.slope((loses.1 - around).max(0.0));
                let floor = 1.5 * put_out.expected / PAGE / 10.0;
                let misses = gains.0.misses(gains.1 + around) * 2.0;
                // Of few misses the least is much less than what is expected.
                let sure = 1.0 - 1.5 / misses.max(1.0).sqrt();
                let pays = gain * sure > 1.5 * lose * 1.3 + floor * 1.3;
                // Of a side of which nothing comes back within a window nobody knows.
                let unknown = loses.0.misses(loses.1) * 2.0 < 2.0;
                prop_assert!(
                    is_bound(to) || !pays || misses < 16.0 || unknown,
                    "{to:?} still pays: {gain} {lose} {floor} {misses} at {has_files} {has_program}"
                );
            }
        }

        /// Whatever is seen, both sides have their least, and together the budget.
        #[test]
        fn shares_are_never_more_than_the_budget(
            budget in 1u64 << 20..1 << 44,
            looks in proptest::collection::vec(
                (0u64..8000, any::<bool>(), 0u64..1 << 44, 0u64..1 << 44, 0u64..1 << 30,
                 0u64..1 << 30, 0.0f64..1e9, proptest::option::of(1u64 << 20..1 << 44)),
                1..80,
            ),
        ) {
            let mut divider = Divider::new(Bytes(budget), PRICES);
            let mut budget = budget;
            let mut now = Nanos::ZERO;
            for (after, full, held, absent, a, b, each, changed) in looks {
                now += Nanos::millis(after);
                if let Some(changed) = changed {
                    budget = changed;
                    divider.set_budget(Bytes(budget));
                }
                let side = |came_back| Evidence {
                    held: Bytes(held),
                    absent: Bytes(absent),
                    came_back,
                    window: Nanos::ZERO,
                    each: Interval::exact(each),
                };
                let before = divider.share();
                let changed = changed.is_some();
                let look = Look { at: now, full, files: side(a), program: side(b) };
                let decided = divider.look(&look).copied();
                let share = divider.share();
                prop_assert!(share.get() <= budget, "{share:?} {budget}");
                prop_assert!(share.get() > 0);
                if let Some(decided) = decided.filter(|_| !changed) {
                    let by = Bytes(share.get().abs_diff(before.get()));
                    prop_assert_eq!(by, if decided.passes { decided.bytes } else { Bytes::ZERO });
                    prop_assert!(by.get() <= budget / STEPS.1 + UNIT.get());
                }
            }
        }
    }
}
