//! Properties of the models as pure functions.
// Where a term has to be zero, it has to be exactly that.
#![allow(clippy::float_cmp)]

mod common;

use common::{
    DRAM, SLOW, demote, exchange, heat, laptop, laptop_telemetry, market, optane, optane_telemetry,
    page, promote,
};
use proptest::prelude::*;
use terrace_core::{
    Action, Bytes, BytesPerSecond, Frequency, Heat, Nanos, PageRange, PageSize, PerSecond,
    Proposal, Telemetry, TierId, TierTelemetry,
};
use terrace_economics::model::{flip, price};
use terrace_economics::{Calibration, Conditions, Interval, Ledger, Market, Parameters, TermKind};

fn ledger_of(
    proposal: &Proposal,
    telemetry: &Telemetry,
    calibration: &Calibration,
    market: Market,
) -> Ledger {
    let conditions = Conditions::new(telemetry, calibration, market);
    price(proposal, &conditions)
}

/// The least benefit less the expected cost, each cycle of which must bring 1.5.
fn margin(
    proposal: &Proposal,
    telemetry: &Telemetry,
    calibration: &Calibration,
    market: Market,
) -> f64 {
    let hurdle = 1.0 + calibration.parameters.hysteresis;
    ledger_of(proposal, telemetry, calibration, market).margin(hurdle)
}

fn term(ledger: &Ledger, kind: TermKind) -> Interval {
    ledger
        .terms()
        .iter()
        .flatten()
        .filter(|t| t.kind == kind)
        .map(terrace_economics::Term::cycles)
        .fold(Interval::ZERO, |sum, cycles| sum + cycles)
}

prop_compose! {
    /// Evidence from "not looked at" to "very hot".
    fn any_heat()(
        loads in prop_oneof![Just(0.0), 1.0..1e3, 1e3..1e7],
        stores in prop_oneof![Just(0.0), 1.0..1e3, 1e3..1e7],
        samples in prop_oneof![Just(0u32), 1u32..20, 20u32..10_000],
        window_ms in prop_oneof![Just(0u64), 1u64..60_000],
    ) -> Heat {
        Heat {
            loads: PerSecond(loads),
            stores: PerSecond(stores),
            samples,
            window: Nanos::millis(window_ms),
        }
    }
}

prop_compose! {
    /// A world whose slow tier is slower, be it addressable or not.
    fn any_world()(
        addressable in any::<bool>(),
        free in prop_oneof![Just(0u64), 0u64..16 << 30],
        slow_read in 100u64..5_000,
        slow_write in 90u64..5_000,
        load in 0.0..1.0f64,
        accesses in prop_oneof![Just(0.0), 1.0..1e9],
        traffic in 0.0..20e9f64,
        period in prop_oneof![Just(0u64), 1u64..20_000],
    ) -> (Telemetry, Calibration) {
        let (mut telemetry, calibration) = if addressable {
            (optane_telemetry(), optane())
        } else {
            (laptop_telemetry(), laptop())
        };
        telemetry.tiers[0].free = Bytes(free);
        telemetry.tiers[1].read_latency = Nanos(slow_read);
        telemetry.tiers[1].write_latency = Nanos(slow_write);
        telemetry.tiers[1].accesses = PerSecond(accesses);
        telemetry.tiers[1].read_bandwidth = BytesPerSecond(traffic);
        telemetry.tiers[1].write_bandwidth = BytesPerSecond(traffic / 2.0);
        telemetry.cpu_load = load;
        telemetry.sample_period = period;
        (telemetry, calibration)
    }
}

prop_compose! {
    fn any_market()(
        horizon in 0.01..100.0f64,
        bid in 0.0..20.0f64,
        ask in 0.0..20.0f64,
        correction in 0.2..5.0f64,
    ) -> Market {
        Market {
            horizon,
            bid: Interval::new(bid * 0.7, bid, bid * 2.0),
            ask: Interval::new(ask * 0.7, ask, ask * 2.0),
            correction: Interval::new(correction * 0.7, correction, correction * 1.4),
            touched: 1.0,
        }
    }
}

fn any_size() -> impl Strategy<Value = PageSize> {
    prop_oneof![Just(PageSize::Base), Just(PageSize::Huge)]
}

/// The same evidence of a page that is used `factor` times as much.
fn hotter(heat: Heat, factor: f64) -> Heat {
    Heat {
        loads: PerSecond(heat.loads.get() * factor),
        stores: PerSecond(heat.stores.get() * factor),
        ..heat
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases * 2, ..ProptestConfig::default() })]

    /// A model that lost a promotion by more heat would punish hot pages.
    #[test]
    fn a_hotter_page_never_loses_a_promotion(
        heat in any_heat(), more_loads in 1.0..100.0f64, more_stores in 1.0..100.0f64,
        (telemetry, calibration) in any_world(), market in any_market(), size in any_size(),
    ) {
        let cold = Proposal { page_size: size, ..promote(heat) };
        let mut hot = cold;
        // Both at once, so that the mix may change as well, but stalls, which
        // stores cause and loads do not, are not the only thing that grows.
        let factor = more_loads.max(more_stores);
        hot.heat.loads = PerSecond(heat.loads.get() * factor);
        hot.heat.stores = PerSecond(heat.stores.get() * more_stores);

        let before = margin(&cold, &telemetry, &calibration, market);
        let after = margin(&hot, &telemetry, &calibration, market);

        prop_assert!(before <= 0.0 || after > 0.0, "{before} {after}");
    }

    /// The reverse for demotions: heat only speaks against them.
    #[test]
    fn a_colder_page_never_loses_a_demotion(
        heat in any_heat(), factor in 1.0..100.0f64,
        (telemetry, calibration) in any_world(), market in any_market(), size in any_size(),
    ) {
        let cold = Proposal { page_size: size, ..demote(heat) };
        let hot = Proposal { heat: hotter(heat, factor), ..cold };

        let if_cold = margin(&cold, &telemetry, &calibration, market);
        let if_hot = margin(&hot, &telemetry, &calibration, market);

        prop_assert!(if_hot <= if_cold + if_cold.abs() * 1e-9, "{if_cold} {if_hot}");
    }

    /// An exchange wants its one page hot and its other page cold.
    #[test]
    fn an_exchange_gains_by_a_hotter_page_and_a_colder_victim(
        heat in any_heat(), victim in any_heat(), factor in 1.0..100.0f64,
        (telemetry, calibration) in any_world(), market in any_market(), size in any_size(),
    ) {
        let base = Proposal { page_size: size, ..exchange(heat, victim) };
        let hot = Proposal { heat: hotter(heat, factor), ..base };
        let hot_victim = Proposal { victim_heat: hotter(victim, factor), ..base };

        let m = margin(&base, &telemetry, &calibration, market);
        let with_hot_victim = margin(&hot_victim, &telemetry, &calibration, market);

        prop_assert!(m <= 0.0 || margin(&hot, &telemetry, &calibration, market) > 0.0);
        prop_assert!(with_hot_victim <= m + m.abs() * 1e-9, "{m} {with_hot_victim}");
    }

    /// To swap pages of the same heat is work for nothing.
    #[test]
    fn an_exchange_of_equal_heats_never_pays(
        heat in any_heat(), (telemetry, calibration) in any_world(), market in any_market(),
        size in any_size(),
    ) {
        let proposal = Proposal { page_size: size, ..exchange(heat, heat) };
        let m = margin(&proposal, &telemetry, &calibration, market);
        prop_assert!(m <= 0.0, "{m}");
    }

    /// Whatever becomes dearer, no action gains by it.
    #[test]
    fn dearer_mechanisms_never_make_an_action_pay(
        heat in any_heat(), victim in any_heat(), which in 0usize..7, factor in 1.0..50.0f64,
        (telemetry, calibration) in any_world(), market in any_market(), size in any_size(),
        action in 0usize..3,
    ) {
        let proposal = [promote(heat), demote(heat), exchange(heat, victim)][action];
        let proposal = Proposal { page_size: size, ..proposal };
        let mut dearer = calibration;
        let times = |d: Nanos| Nanos::from_f64(d.as_f64() * factor);
        match which {
            0 => dearer.copy_bandwidth = BytesPerSecond(dearer.copy_bandwidth.get() / factor),
            1 => {
                dearer.promote_fixed = times(dearer.promote_fixed);
                dearer.demote_fixed = times(dearer.demote_fixed);
                dearer.exchange_fixed = times(dearer.exchange_fixed);
            }
            2 => dearer.write_protect = times(dearer.write_protect),
            3 => dearer.shootdown = times(dearer.shootdown),
            4 => dearer.shootdown_per_cpu = times(dearer.shootdown_per_cpu),
            5 => dearer.parameters.hysteresis *= factor,
            // An avoided fault is worth more the dearer it is; only between
            // addressable tiers is a fault nothing but a cost.
            _ => {
                if telemetry.tiers[1].addressable {
                    dearer.user_fault = times(dearer.user_fault);
                }
            }
        }
        let before = margin(&proposal, &telemetry, &calibration, market);
        let after = margin(&proposal, &telemetry, &dearer, market);
        prop_assert!(after <= before + before.abs() * 1e-9, "{before} {after}");
    }

    /// What `terrace why` prints as the turning point has to be one.
    #[test]
    fn the_decision_turns_at_the_flip_point(
        heat in any_heat(), victim in any_heat(), action in 0usize..3,
        (telemetry, calibration) in any_world(), market in any_market(), size in any_size(),
    ) {
        let proposal = [promote(heat), demote(heat), exchange(heat, victim)][action];
        let proposal = Proposal { page_size: size, ..proposal };
        let conditions = Conditions::new(&telemetry, &calibration, market);
        let ledger = price(&proposal, &conditions);
        let (loads, stores) = (heat.loads.get(), heat.stores.get());
        let share = if loads + stores > 0.0 { loads / (loads + stores) } else { 1.0 };
        let at = |rate: f64| {
            let heat = Heat {
                loads: PerSecond(rate * share),
                stores: PerSecond(rate * (1.0 - share)),
                ..heat
            };
            margin(&Proposal { heat, ..proposal }, &telemetry, &calibration, market)
        };
        if let Some(PerSecond(rate)) = flip(&proposal, &ledger, &conditions) {
            let (below, above) = (at(rate * 0.999), at(rate * 1.001));
            // Where a touch is all but certain, no rate makes a difference
            // that a double can hold.
            let saturated = rate * market.horizon > 20.0 && !telemetry.tiers[1].addressable;
            let turns = if action == 1 {
                below > 0.0 && above <= 0.0
            } else {
                below <= 0.0 && above > 0.0
            };
            prop_assert!(turns || saturated, "at {rate}: {below} {above}");
        } else {
            let sides = [at(0.0) > 0.0, at(1e3) > 0.0, at(1e6) > 0.0, at(1e9) > 0.0];
            prop_assert!(sides.iter().all(|&s| s == sides[0]), "{sides:?}");
        }
    }

    /// More samples of the same rate can only help a promotion.
    #[test]
    fn more_evidence_of_the_same_rate_narrows_the_price(
        loads in 1.0..1e6f64, samples in 1u32..1000, more in 1u32..1000,
        (telemetry, calibration) in any_world(), market in any_market(),
    ) {
        let few = ledger_of(
            &promote(heat(loads, 0.0, samples)), &telemetry, &calibration, market,
        );
        let many = ledger_of(
            &promote(heat(loads, 0.0, samples + more)), &telemetry, &calibration, market,
        );
        prop_assert!(many.benefit.low >= few.benefit.low);
        prop_assert!(many.benefit.high <= few.benefit.high);
    }
}

/// Floats that break formulas.
fn any_float() -> BoxedStrategy<f64> {
    // Boxed: a tree of these as one value is larger than a test's stack.
    prop_oneof![
        Just(0.0),
        Just(-0.0),
        Just(f64::MIN_POSITIVE),
        Just(f64::MAX),
        Just(f64::MIN),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        -1e6..1e6f64,
        0.0..1e12f64,
    ]
    .boxed()
}

fn any_nanos() -> BoxedStrategy<Nanos> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>(), 0u64..1_000_000]
        .prop_map(Nanos)
        .boxed()
}

prop_compose! {
    fn wild_tier()(
        capacity in any::<u64>(), free in any::<u64>(), addressable in any::<bool>(),
        read_latency in any_nanos(), write_latency in any_nanos(),
        read in any_float(), write in any_float(), accesses in any_float(),
    ) -> TierTelemetry {
        TierTelemetry {
            capacity: Bytes(capacity),
            free: Bytes(free),
            addressable,
            read_latency,
            write_latency,
            read_bandwidth: BytesPerSecond(read),
            write_bandwidth: BytesPerSecond(write),
            accesses: PerSecond(accesses),
        }
    }
}

prop_compose! {
    fn wild_telemetry()(
        tiers in prop::array::uniform4(wild_tier().boxed()), count in 0u8..=8, now in any_nanos(),
        load in any_float(), period in any::<u64>(),
    ) -> Telemetry {
        let mut telemetry = Telemetry {
            now,
            tier_count: count,
            cpu_load: load,
            sample_period: period,
            ..Telemetry::default()
        };
        telemetry.tiers[..4].copy_from_slice(&tiers);
        telemetry
    }
}

prop_compose! {
    fn wild_calibration()(
        floats in prop::array::uniform12(any_float()),
        times in prop::array::uniform10(any_nanos()),
        cpus in any::<u32>(), batch in any::<u32>(), idle in any_nanos(),
        exit in prop::option::of(any_nanos()),
    ) -> Calibration {
        let mut calibration = optane();
        let f = floats;
        calibration.clock = Frequency(f[0]);
        calibration.cpus = cpus;
        calibration.mlp = Interval { low: f[1], expected: f[2], high: f[3] };
        calibration.copy_bandwidth = BytesPerSecond(f[4]);
        calibration.promote_fixed = times[0];
        calibration.demote_fixed = times[1];
        calibration.exchange_fixed = times[2];
        calibration.write_protect = times[3];
        calibration.shootdown = times[4];
        calibration.shootdown_per_cpu = times[5];
        calibration.shootdown_batch = batch;
        calibration.user_fault = times[6];
        calibration.compress = times[7];
        calibration.decompress = times[8];
        calibration.page_walk = times[9];
        calibration.cost_spread = f[5];
        calibration.tiers[1].read_bandwidth = BytesPerSecond(f[6]);
        calibration.tiers[0].write_bandwidth = BytesPerSecond(f[7]);
        calibration.tiers[1].load_knee = f[8];
        calibration.parameters = Parameters {
            idle,
            exit,
            z: f[9],
            hysteresis: f[10],
            ample_free: f[11],
            ..Parameters::default()
        };
        calibration
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases * 3, ..ProptestConfig::default() })]

    /// A NaN compares false with everything: it would veto, or pass, silently.
    #[test]
    fn no_input_makes_a_price_that_is_not_a_number(
        telemetry in wild_telemetry().boxed(), calibration in wild_calibration().boxed(),
        floats in prop::array::uniform8(any_float()), samples in any::<u32>(),
        window in any_nanos(), tiers in (0u8..10, 0u8..10), size in any_size(),
        action in 0usize..4,
    ) {
        let heat = Heat {
            loads: PerSecond(floats[0]), stores: PerSecond(floats[1]), samples, window,
        };
        let (a, b) = (TierId(tiers.0), TierId(tiers.1));
        let action = [
            Action::Promote { page: page(1), from: a, to: b },
            Action::Demote { page: page(1), from: a, to: b },
            Action::Exchange { promote: page(1), demote: page(2), fast: a, slow: b },
            Action::Collapse {
                range: PageRange { region: page(1).region, start: page(1).page, count: 512 },
            },
        ][action];
        let proposal = Proposal {
            action,
            page_size: size,
            victim_heat: Heat { loads: PerSecond(floats[2]), ..heat },
            ..promote(heat)
        };
        let interval = |i: usize| Interval::new(floats[i], floats[i + 1], floats[i + 2]);
        let market = Market {
            horizon: floats[3], bid: interval(3), ask: interval(4), correction: interval(5),
            touched: floats[6],
        };
        let conditions = Conditions::new(&telemetry, &calibration, market);

        let ledger = price(&proposal, &conditions);
        let again = price(&proposal, &conditions);
        let turn = flip(&proposal, &ledger, &conditions);

        prop_assert_eq!(ledger, again);
        let terms = ledger.terms().iter().flatten().map(terrace_economics::Term::cycles);
        for i in terms.chain([ledger.cost, ledger.benefit]) {
            prop_assert!(i.low.is_finite() && i.high.is_finite(), "{i:?}");
            prop_assert!(i.low <= i.expected && i.expected <= i.high, "{i:?}");
        }
        prop_assert!(ledger.processor.is_finite() && ledger.duration.is_finite());
        prop_assert!(turn.is_none_or(|r| r.get().is_finite() && r.get() >= 0.0), "{turn:?}");
    }
}

#[test]
fn a_promotion_is_worth_its_accesses_times_the_latency_they_save() {
    // The formula worked by hand, so that a wrong unit or a lost factor shows:
    // 10 000 loads/s for 10 s save 305 - 81 ns each, at 2.2 GHz, of which
    // 24/13 are in flight at once, the harmonic mean of 1 and 12.
    let ledger = ledger_of(
        &promote(heat(10_000.0, 0.0, 100)),
        &optane_telemetry(),
        &idle(optane()),
        market(),
    );
    let by_hand = 10_000.0 * 10.0 * (305.0 - 81.0) * 2.2 / (24.0 / 13.0);
    assert!((ledger.benefit.expected / by_hand - 1.0).abs() < 1e-9, "{ledger:?}");
    // 2 MiB at 5 GB/s of one processor, at 2.2 GHz.
    let copy = 2_097_152.0 / 5e9 * 2.2e9;
    assert!((term(&ledger, TermKind::Copy).expected / copy - 1.0).abs() < 1e-3);
}

/// A calibration on which Little's law has nothing to say.
fn idle(mut calibration: Calibration) -> Calibration {
    calibration.mlp = Interval::exact(24.0 / 13.0);
    calibration
}

#[test]
fn little_s_law_raises_the_parallelism_that_is_assumed() {
    // Accesses a second times their latency are in flight, spread over 24
    // processors: a lower bound. With 12 as the upper, the harmonic mean.
    let mut telemetry = optane_telemetry();
    let calibration = optane();
    let mut price_at = |accesses: f64| {
        telemetry.tiers[1].accesses = PerSecond(accesses);
        let proposal = promote(heat(1e4, 0.0, 100));
        ledger_of(&proposal, &telemetry, &calibration, market()).benefit.expected
    };
    let in_flight = |slow: f64| (400e6 * 81e-9 + slow * 305e-9) / 24.0;
    let cost = |least: f64| 1.0 / least + 1.0 / 12.0;
    let (few, many) = (price_at(20e6), price_at(600e6));
    let by_hand = cost(in_flight(20e6)) / cost(in_flight(600e6));
    assert!((few / many / by_hand - 1.0).abs() < 1e-9, "{few} {many} {by_hand}");
}

#[test]
fn a_page_that_was_never_seen_is_neither_cold_nor_hot() {
    // CBMM gives a page without a profile a benefit of zero.
    let ledger = ledger_of(&promote(heat(0.0, 0.0, 0)), &optane_telemetry(), &optane(), market());
    assert_eq!(ledger.benefit.low, 0.0);
    assert!(ledger.benefit.expected > 0.0);
    assert!(ledger.benefit.high > 10.0 * ledger.benefit.expected, "{:?}", ledger.benefit);
    // Nobody saw it in a second: at most three samples of 5000 accesses each,
    // as loads and as stores, of which at least one is in flight at a time.
    let saved = (224.0 + 13.0) * 2.2 * 10.0;
    assert!(ledger.benefit.high < 3.0 * 5000.0 * saved, "{:?}", ledger.benefit);
}

#[test]
fn looking_longer_in_vain_makes_a_page_colder() {
    let demotion = |seconds: u64| {
        let mut proposal = demote(heat(0.0, 0.0, 0));
        proposal.heat.window = Nanos::seconds(seconds);
        ledger_of(&proposal, &optane_telemetry(), &optane(), market()).cost
    };
    assert!(demotion(1).expected > demotion(10).expected);
    assert!(demotion(1).high > demotion(10).high);
}

#[test]
fn memory_is_worth_nothing_while_there_is_plenty() {
    let mut telemetry = optane_telemetry();
    let freed = |telemetry: &Telemetry| {
        let ledger = ledger_of(&demote(heat(0.0, 0.0, 0)), telemetry, &optane(), market());
        term(&ledger, TermKind::FreedMemory).expected
    };
    let full = freed(&telemetry);
    telemetry.tiers[0].free = Bytes(telemetry.tiers[0].capacity.get() / 100);
    let nearly = freed(&telemetry);
    telemetry.tiers[0].free = Bytes(telemetry.tiers[0].capacity.get() / 10);
    assert!(full > nearly && nearly > 0.0, "{full} {nearly}");
    assert_eq!(freed(&telemetry), 0.0);
}

#[test]
fn a_newcomer_pays_for_moving_somebody_out_only_without_a_free_page() {
    let mut telemetry = optane_telemetry();
    let room = |telemetry: &Telemetry| {
        let ledger = ledger_of(&promote(heat(1e5, 0.0, 20)), telemetry, &optane(), market());
        term(&ledger, TermKind::Room).expected
    };
    let full = room(&telemetry);
    telemetry.tiers[0].free = Bytes::mib(2);
    let one_page = room(&telemetry);
    telemetry.tiers[0].free = Bytes::gib(50);
    assert!(full > one_page + 900_000.0, "{full} {one_page}");
    assert!(one_page > 0.0);
    assert_eq!(room(&telemetry), 0.0);
}

#[test]
fn idle_processors_move_pages_for_less_but_not_for_free() {
    let mut telemetry = optane_telemetry();
    let cost = |telemetry: &Telemetry| {
        let ledger = ledger_of(&promote(heat(1e5, 1e4, 20)), telemetry, &optane(), market());
        (term(&ledger, TermKind::Copy).expected, term(&ledger, TermKind::Shootdown).expected)
    };
    let (copy, shootdown) = cost(&telemetry);
    telemetry.cpu_load = 0.0;
    let (idle_copy, idle_shootdown) = cost(&telemetry);
    assert!(copy > 0.0 && idle_copy == 0.0);
    // The interrupted processors are the program's.
    assert!(idle_shootdown > 0.0 && idle_shootdown < shootdown);
}

#[test]
fn bytes_that_are_copied_through_a_loaded_tier_slow_everybody() {
    let mut telemetry = optane_telemetry();
    let waiting = |telemetry: &Telemetry| {
        let ledger = ledger_of(&promote(heat(1e5, 0.0, 20)), telemetry, &optane(), market());
        term(&ledger, TermKind::Interference).expected
    };
    assert_eq!(waiting(&telemetry), 0.0, "below the knee nothing waits");
    telemetry.tiers[1].read_bandwidth = BytesPerSecond(30e9);
    let loaded = waiting(&telemetry);
    telemetry.tiers[1].read_bandwidth = BytesPerSecond(36e9);
    assert!(loaded > 0.0 && waiting(&telemetry) > loaded);
}

#[test]
fn a_prefetch_from_compressed_memory_is_worth_the_fault_it_avoids() {
    let sure = heat(1e6, 0.0, 1000);
    let calibration = laptop();
    let mut telemetry = laptop_telemetry();
    telemetry.tiers[0].free = Bytes::gib(4);
    let base = Proposal { page_size: PageSize::Base, ..promote(sure) };
    let ledger = ledger_of(&base, &telemetry, &calibration, market());
    // 11 us of fault and 2 us of decompression at 3 GHz, once.
    let fault = term(&ledger, TermKind::AvoidedFault).expected;
    assert!((fault / (13e-6 * 3e9) - 1.0).abs() < 1e-9, "{fault}");
    assert_eq!(term(&ledger, TermKind::SavedLoads), Interval::ZERO);
    assert!(term(&ledger, TermKind::Fetch).expected > 0.0);
}

#[test]
fn a_demotion_into_compressed_memory_costs_what_bringing_it_back_may() {
    let cost_of = |loads| {
        let proposal = Proposal { page_size: PageSize::Base, ..demote(heat(loads, 0.0, 100)) };
        let ledger = ledger_of(&proposal, &laptop_telemetry(), &laptop(), market());
        term(&ledger, TermKind::Refault).expected
    };
    // With DRAM full: fault, decompression, and compressing somebody else.
    let certain = cost_of(1e6);
    assert!((certain / (21e-6 * 3e9) - 1.0).abs() < 1e-9, "{certain}");
    // Ten seconds at one access in a hundred seconds: 1 - e^-0.1.
    let rare = cost_of(0.01);
    assert!((rare / certain - (1.0 - (-0.1f64).exp())).abs() < 1e-9, "{rare}");
}

#[test]
fn when_the_fast_tier_is_the_slower_one_a_promotion_harms() {
    // Colloid's case: under load the latencies cross.
    let mut telemetry = optane_telemetry();
    telemetry.tiers[0].read_latency = Nanos(700);
    telemetry.tiers[0].write_latency = Nanos(700);
    let ledger = ledger_of(&promote(heat(1e6, 1e5, 1000)), &telemetry, &optane(), market());
    assert_eq!(ledger.benefit, Interval::ZERO);
    assert!(term(&ledger, TermKind::SlowerLoads).expected > 0.0);
    let ledger = ledger_of(&demote(heat(1e6, 1e5, 1000)), &telemetry, &optane(), market());
    assert!(term(&ledger, TermKind::SavedLoads).expected > 0.0);
}

#[test]
fn moves_that_cross_more_than_one_tier_are_priced_between_their_ends() {
    let mut telemetry = laptop_telemetry();
    telemetry.tier_count = 3;
    telemetry.tiers[2] = telemetry.tiers[1];
    telemetry.tiers[2].read_latency = Nanos::micros(80);
    let sure = heat(1e6, 0.0, 1000);
    let action = Action::Promote { page: page(1), from: TierId(2), to: SLOW };
    let proposal = Proposal { action, page_size: PageSize::Base, ..promote(sure) };
    let ledger = ledger_of(&proposal, &telemetry, &laptop(), market());
    // From file to compressed memory: the fault remains, its fetch is shorter.
    let saved = term(&ledger, TermKind::AvoidedFault).expected;
    assert!((saved / (78e-6 * 3e9) - 1.0).abs() < 1e-9, "{saved}");
    assert!(term(&ledger, TermKind::Store).expected > 0.0);
    assert_ne!(SLOW, DRAM);
}
