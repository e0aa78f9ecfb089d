//! The model of a free block that is zeroed before anybody takes it.
//!
//! Whoever takes it is spared the wait for zeros. Blocks are taken by first touches, which come one
//! by one, as in a Poisson process: if `w` are expected, at least `w - z * sqrt(w)` come. A block that
//! nobody takes was zeroed for nothing, and cannot be used in parts without losing its zeros.

use terrace_core::{Cycles, HugePages, PageSize, TierId};

use crate::conditions::Conditions;
use crate::interval::Interval;
use crate::ledger::{Ledger, TermKind};
use crate::movement::interference;

/// Prices one more block, with which there are so many, of which so many are expected to be taken; each
/// spares so much. Pure.
pub(crate) fn price(
    (blocks, wanted): (HugePages, HugePages),
    spares: Cycles,
    page: PageSize,
    conditions: &Conditions<'_>,
) -> Ledger {
    const FAST: TierId = TierId(0);
    let mut ledger = Ledger::default();
    let calibration = conditions.calibration;
    let taken = taken(blocks, wanted, conditions.z());
    ledger.enter(TermKind::AvoidedFault, taken.scale(spares.as_f64()));

    let bytes = page.bytes();
    let correction = conditions.market.correction;
    let zeroing = conditions.cycles(calibration.copy_bandwidth.time_for(bytes));
    ledger.enter(TermKind::Zero, correction.scale(conditions.cpu_price() * zeroing));
    ledger.processor = zeroing;
    // Off the lists of free memory and back: whoever allocates meanwhile waits for that.
    let fixed = conditions.cycles(calibration.promote_fixed);
    ledger.enter(TermKind::Fixed, Interval::exact(fixed));
    let waiting = interference(FAST, FAST, bytes, conditions);
    ledger.enter(TermKind::Interference, Interval::exact(waiting));
    let rent = conditions.market.ask.scale(bytes.as_f64() * conditions.horizon());
    let held = 1.0 - taken.expected;
    ledger.enter(TermKind::Room, rent.scale(conditions.scarcity(FAST) * held));
    ledger
}

/// Of so many blocks the share that is taken, if so many are expected to be asked for: that the next one
/// is among them.
fn taken(blocks: HugePages, wanted: HugePages, z: f64) -> Interval {
    let (blocks, wanted) = (blocks.as_f64().max(1.0), wanted.as_f64());
    let error = z * wanted.sqrt();
    let share = |count: f64| (count / blocks).clamp(0.0, 1.0);
    Interval::new(share(wanted - error), share(wanted), share(wanted + error))
}

#[cfg(test)]
mod tests {
    use terrace_core::{Bytes, Machine, Nanos, Telemetry, TierTelemetry};

    use super::*;
    use crate::calibration::Calibration;
    use crate::conditions::Market;

    #[test]
    fn the_more_are_ready_the_less_one_more_is_taken() {
        let of = |blocks, wanted| taken(HugePages(blocks), HugePages(wanted), 1.0);
        assert_eq!(of(1, 0), Interval::ZERO);
        let enough = of(10, 100);
        assert!((enough.low - 1.0).abs() < 1e-9 && (enough.high - 1.0).abs() < 1e-9);
        let half = of(200, 100);
        assert!((half.expected - 0.5).abs() < 1e-9 && (half.low - 0.45).abs() < 1e-9);
        assert!((of(0, u64::MAX).low - 1.0).abs() < 1e-9);
    }

    /// Worked by hand: the zeros that are spared against zeroing at the price of processor time.
    #[test]
    fn zeroing_pays_as_far_as_it_is_taken_and_by_how_busy_the_processor_is() {
        let machine = include_str!("../../../machines/laptop.toml");
        let machine = Machine::parse("laptop", machine).expect("a machine");
        let prices = Calibration { cost_spread: 1.0, ..Calibration::from_machine(&machine) };
        let mut telemetry = Telemetry { tier_count: 1, ..Telemetry::default() };
        telemetry.tiers[0] = TierTelemetry {
            capacity: Bytes::gib(4),
            free: Bytes::gib(2),
            addressable: true,
            read_latency: Nanos(100),
            write_latency: Nanos(100),
            ..TierTelemetry::default()
        };
        let market = Market {
            horizon: 10.0,
            bid: Interval::ZERO,
            ask: Interval::ZERO,
            correction: Interval::exact(1.0),
            touched: 1.0,
        };
        let price = |wanted, busy| {
            let mut telemetry = telemetry;
            telemetry.cpu_load = busy;
            let conditions = Conditions::new(&telemetry, &prices, market);
            let blocks = (HugePages(100), HugePages(wanted));
            super::price(blocks, Cycles(526_000), PageSize::Huge, &conditions)
        };
        let cycles = |time: Nanos| prices.clock.cycles(time).as_f64();
        let zeroing = cycles(prices.copy_bandwidth.time_for(Bytes::mib(2)));
        let busy = price(25, 1.0);
        assert!((busy.benefit.expected - 131_500.0).abs() < 1.0, "a quarter is taken");
        assert!((busy.benefit.low - 105_200.0).abs() < 1.0, "or five less of 25");
        let cost = zeroing + cycles(prices.promote_fixed);
        assert!((busy.cost.expected / cost - 1.0).abs() < 1e-3, "{:?}", busy.cost);
        let idle = price(25, 0.0);
        assert!((idle.cost.expected - (busy.cost.expected - zeroing)).abs() < 2.0);
        assert!(price(100, 0.0).margin(1.5) > 0.0, "all of it is taken");
        assert!(price(0, 0.0).margin(1.5) < 0.0, "and nothing of it, at whatever price");
    }
}
