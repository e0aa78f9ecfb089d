//! The model of a huge page at the first touch of memory, or ahead of it, by a profile.
//!
//! It saves what a profile of an earlier run says of its page walks, as far as they come about
//! in the time that is left, and the faults on its base pages. It costs what a huge page of zeros
//! does that backs memory ahead of a walk ([`crate::prezero`]); where the program waits for it,
//! that time in full, and the more so beyond what it should ever wait.

use terrace_core::{Cycles, Nanos, PageSize};

use crate::conditions::Conditions;
use crate::interval::Interval;
use crate::ledger::{Ledger, TermKind};
use crate::prezero;

/// What a profile says of a huge page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    /// Base pages that will be touched.
    pub(crate) touched: u16,
    /// By how many more or fewer.
    pub(crate) unsure: u16,
    /// Cycles of waiting for page walks that it averts: at least, expected, at most.
    pub(crate) averted: [Cycles; 3],
    /// The time in which they come about.
    pub(crate) within: Nanos,
    /// What of it is still to come.
    pub(crate) left: Nanos,
    /// What the program waits for the page.
    pub(crate) waits: Cycles,
}

/// The part that can still come about of what comes about within a time, so much of which is left.
///
/// What a profile says is of the time after the page's first touch, so it all comes about unless the
/// run is at its end. A run that has outlived its profile's goes on for a horizon, as far as anybody
/// knows. Of a benefit without a time nothing does.
pub(crate) fn still_to_come(within: Nanos, left: Nanos, conditions: &Conditions<'_>) -> f64 {
    let time = conditions.horizon().max(left.as_secs());
    let within = within.as_secs();
    if within > 0.0 { (time / within).min(1.0) } else { 0.0 }
}

/// Prices one page. Pure.
pub(crate) fn price(evidence: &Evidence, page: PageSize, conditions: &Conditions<'_>) -> Ledger {
    let mut ledger = Ledger::default();
    let part = still_to_come(evidence.within, evidence.left, conditions);
    // What is not touched averts no walks: there, too, the profile is as good as it was elsewhere.
    let true_of = conditions.touched();
    let part = part * true_of.min(1.0);
    let [least, averted, most] = evidence.averted.map(|cycles| cycles.as_f64() * part);
    // Walks that are under way at the same time count once in it already.
    ledger.enter(TermKind::SavedWalks, Interval::new(least, averted, most));
    let share = prezero::share(evidence.touched, evidence.unsure, prezero::bases(page), true_of);
    prezero::back(&mut ledger, share, page, evidence.waits, conditions);
    ledger
}

#[cfg(test)]
mod tests {
    use terrace_core::{HugePages, Machine, Pages, Telemetry};

    use super::*;
    use crate::calibration::Calibration;
    use crate::compact;
    use crate::conditions::Market;

    /// Who proposes it knows whether its cycles are a sum of walks or the time of them. If time were
    /// divided here, a profile of counters would count a third of what it says.
    #[test]
    fn waiting_that_is_averted_is_worth_itself_however_many_misses_are_under_way() {
        let machine = include_str!("../../../machines/laptop.toml");
        let machine = Machine::parse("laptop", machine).expect("a machine");
        let prices = Calibration::from_machine(&machine);
        let telemetry = Telemetry { tier_count: 1, cpu_load: 1.0, ..Telemetry::default() };
        let market = Market {
            horizon: 10.0,
            bid: Interval::ZERO,
            ask: Interval::ZERO,
            correction: Interval::exact(1.0),
            touched: 1.0,
        };
        let evidence = Evidence {
            touched: 0,
            unsure: 0,
            averted: [250_000, 1_000_000, 3_000_000].map(Cycles),
            within: Nanos::SECOND,
            left: Nanos::SECOND,
            waits: Cycles::ZERO,
        };
        let walks = |ledger: &Ledger| {
            let terms = ledger.terms().iter().flatten();
            let walks = terms.filter(|term| term.kind == TermKind::SavedWalks);
            walks.map(|term| term.cycles().expected).sum::<f64>()
        };
        for mlp in [1.0, 3.0, 10.0] {
            let calibration = Calibration { mlp: Interval::exact(mlp), ..prices };
            let conditions = Conditions::new(&telemetry, &calibration, market);
            let touch = price(&evidence, PageSize::Huge, &conditions);
            assert!((walks(&touch) - 1e6).abs() < 1.0, "{mlp}: {}", walks(&touch));
            let wanted = compact::Evidence {
                blocks: HugePages(1),
                wanted: HugePages(1),
                brings: Cycles(1_000_000),
                within: Nanos::SECOND,
                left: Nanos::SECOND,
            };
            let block = compact::price(&wanted, Pages(9), &conditions);
            assert!((walks(&block) - 1e6).abs() < 1.0, "{mlp}: {}", walks(&block));
            assert!((calibration.parallelism() - mlp).abs() < 1e-9);
        }
        let odd = Calibration { mlp: Interval { low: 0.0, expected: 0.1, high: 0.5 }, ..prices };
        assert!((odd.parallelism() - 1.0).abs() < 1e-9, "one at a time is the least");
    }
}
