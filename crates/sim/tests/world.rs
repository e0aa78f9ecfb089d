//! What must hold of the simulated world whatever it simulates.

mod common;

use common::{FIRST_TOUCH, HEMEM, apart, config, run, simulation, small_gups, small_machine};
use proptest::prelude::*;
use terrace_core::{Bytes, Cycles, Nanos, TierId};
use terrace_economics::Mode;
use terrace_sim::analytic::report::ClassAccount;
use terrace_sim::{
    Frames, Gups, GupsConfig, SamplerConfig, Shift, SimConfig, SimPolicy, SimReport, Simulation,
};

/// A report without the one figure that depends on the computer.
fn comparable(report: SimReport) -> serde_json::Value {
    let mut value = serde_json::to_value(report).expect("serialises");
    value["host_speed"] = serde_json::Value::Null;
    value
}

#[test]
fn the_same_seed_gives_the_same_report() {
    for policy in [HEMEM, SimPolicy::MemoryMode] {
        let report = |seed| {
            let gups = small_gups(Bytes::mib(96));
            comparable(run(SimConfig { seed, ..config(gups, policy) }))
        };
        assert_eq!(report(5), report(5), "{policy}");
        assert_ne!(report(5), report(6), "{policy} ignores the seed");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(20), ..ProptestConfig::default() })]

    /// A page that were in two tiers, or in none, would make every figure wrong;
    /// a tier that holds more than its capacity would make tiering pointless.
    #[test]
    fn every_page_lies_in_exactly_one_tier_and_no_tier_overflows(
        hot_mib in 4u64..400,
        seed in 0u64..1000,
        period in 50u64..5000,
        shift_ms in 50u64..300,
    ) {
        let shift = (hot_mib < 300).then_some(Shift { at: Nanos::millis(shift_ms), part: 4 });
        let gups = GupsConfig { shift, ..small_gups(Bytes::mib(hot_mib)) };
        let sampler = SamplerConfig { period, ..SamplerConfig::hemem() };
        let mut world = simulation(SimConfig { seed, sampler, ..config(gups, HEMEM) });
        for _ in 0..20 {
            world.run_for(Nanos::millis(25));
            let pages = world.pages();
            let (census, nowhere) = pages.census();
            prop_assert_eq!(nowhere, 0);
            prop_assert_eq!(census.iter().sum::<u64>(), 256);
            for (tier, &count) in census.iter().enumerate() {
                let tier = TierId(tier as u8);
                let used = Bytes::mib(2) * count;
                prop_assert!(used <= pages.capacity(tier));
                prop_assert_eq!(pages.free(tier), pages.capacity(tier) - used);
            }
            prop_assert!((0..256).filter(|&page| pages.is_moving(page)).count() <= 2);
        }
    }
}

/// What is proposed comes to an end, or waits when a run is over: nothing falls out of the accounts.
/// What waits is counted by who makes it wait.
#[test]
fn every_proposal_is_in_one_column_of_the_accounts() {
    let mut waited = 0;
    for mode in [Mode::Off, Mode::Shadow, Mode::Enforce] {
        for policy in ["hemem", "memtis", "tpp", "autonuma"] {
            let by_name: SimPolicy = policy.parse().expect("a policy");
            let config = config(small_gups(Bytes::mib(96)), by_name);
            let mut world = simulation(SimConfig { economist: mode, scale: 64, ..config });
            for _ in 0..60 {
                world.run_for(Nanos::millis(25));
                let mut unfinished = 0;
                for ClassAccount { class, account } in world.accounts() {
                    let refused = account.vetoed + account.held_out;
                    let not_done = account.aborted + account.unfinished();
                    let all = refused + account.completed + not_done;
                    assert_eq!(account.proposed, all, "{policy}, {class:?}: {account:?}");
                    unfinished += account.unfinished();
                }
                assert_eq!(unfinished, world.unfinished(), "{policy}, {}", mode.name());
                waited += unfinished;
            }
        }
    }
    assert!(waited > 0, "nothing was ever looked at while it waited");
}

#[test]
fn results_do_not_depend_on_how_many_accesses_one_stands_for() {
    for policy in [HEMEM, FIRST_TOUCH, SimPolicy::MemoryMode, SimPolicy::AllDram] {
        let throughput = |scale| {
            let gups = small_gups(Bytes::mib(96));
            run(SimConfig { scale, ..config(gups, policy) }).gups()
        };
        let reference = throughput(8);
        for scale in [64, 256] {
            let scaled = throughput(scale);
            assert!(apart(scaled, reference) < 0.02, "{policy} at {scale}: {scaled} {reference}");
        }
    }
}

#[test]
fn samples_do_not_depend_on_how_many_accesses_one_stands_for() {
    let counts = |scale| {
        let gups = small_gups(Bytes::mib(96));
        run(SimConfig { scale, ..config(gups, HEMEM) }).samples
    };
    let (fine, coarse) = (counts(8), counts(256));
    assert!(fine.stores > 1000);
    assert!(apart(fine.stores as f64, coarse.stores as f64) < 0.03, "{fine:?} {coarse:?}");
    assert!(apart(fine.fast_loads as f64, coarse.fast_loads as f64) < 0.05, "{fine:?} {coarse:?}");
}

#[test]
fn dram_alone_reaches_the_closed_forms() {
    // One update at a time: compute and one idle latency each.
    let report = run(config(small_gups(Bytes::mib(96)), SimPolicy::AllDram));
    let expected = 4.0 / (120.0 / 2.2 + 81.0);
    assert!(apart(report.gups(), expected) < 0.005, "{} for {expected}", report.gups());
    // Many at a time: the bus, 64 B read and 64 B written for each.
    let gups =
        GupsConfig { threads: 24, working_set: Bytes::mib(576), ..small_gups(Bytes::mib(96)) };
    let gups = GupsConfig { in_flight: None, compute: Cycles(20), ..gups };
    let report = run(SimConfig { scale: 256, ..config(gups, SimPolicy::AllDram) });
    let roof = 113.0 / 128.0;
    assert!(report.gups() <= roof * 1.001, "{} above {roof}", report.gups());
    assert!(report.gups() > 0.85 * roof, "{} far below {roof}", report.gups());
}

#[test]
fn slow_memory_alone_is_bound_by_its_granularity() {
    // 256 B read and 256 B written for each 64 B line: 40 M updates a second.
    let gups = GupsConfig { threads: 16, in_flight: None, ..small_gups(Bytes::mib(96)) };
    let report = run(SimConfig { scale: 64, ..config(gups, SimPolicy::AllSlow) });
    let roof = 1.0 / (256.0 / 39.4 + 256.0 / 13.9);
    assert!(report.gups() <= roof * 1.001 && report.gups() > 0.95 * roof, "{}", report.gups());
}

/// Threads that begin as if their memory were fast make accesses for which they have no
/// time; with few that stand for many, those count.
#[test]
fn slow_memory_alone_takes_its_latency_at_any_scale() {
    let expected = 4.0 / (120.0 / 2.2 + 305.0);
    for scale in [16, 256, 1024] {
        let gups = small_gups(Bytes::mib(96));
        let report = run(SimConfig { scale, ..config(gups, SimPolicy::AllSlow) });
        assert!(apart(report.gups(), expected) < 0.005, "{scale}: {}", report.gups());
    }
}

#[test]
fn memory_mode_hits_by_the_closed_form() {
    // 256 pages in contiguous frames on 96 places: 64 places have three
    // competitors, 32 have two; a place hits for one of its competitors.
    let gups = GupsConfig { hot_percent: 0, ..small_gups(Bytes::mib(512)) };
    let report = run(SimConfig {
        frames: Frames::Contiguous,
        scale: 64,
        ..config(gups, SimPolicy::MemoryMode)
    });
    let ratio = report.memory_mode_hit_ratio.expect("it is Memory Mode");
    assert!((ratio - 96.0 / 256.0).abs() < 0.005, "{ratio}");
}

#[test]
fn traffic_is_whole_units_for_each_access() {
    let report = run(config(small_gups(Bytes::mib(96)), FIRST_TOUCH));
    let misses = report.runs[0].accesses as f64 * (1.0 - report.llc_hit_ratio);
    for (tier, unit) in report.tiers.iter().zip([64.0, 256.0]) {
        let expected = misses * tier.share * unit;
        assert!(apart(tier.read.as_f64(), expected) < 0.01, "{}", tier.name);
        assert!(apart(tier.written.as_f64(), expected) < 0.01, "{}", tier.name);
    }
}

#[test]
fn a_small_sample_buffer_loses_samples_and_says_how_many() {
    // Records come every 50 events; the draining thread takes 1 ms for each.
    let sampler = SamplerConfig {
        period: 50,
        buffer: Bytes(40 * 16),
        record: Bytes(40),
        drain: Nanos::millis(1),
    };
    let report = run(SimConfig { sampler, ..config(small_gups(Bytes::mib(96)), HEMEM) });
    let counts = report.samples;
    assert!(counts.lost > 0);
    // 2 s of draining at 1 ms each, and what the buffers still hold.
    assert!(counts.delivered.abs_diff(2000) < 100, "{counts:?}");
    let kept = counts.fast_loads + counts.slow_loads + counts.stores;
    assert!(kept - counts.delivered <= 4 * 3 * 16, "{counts:?}");
    // With room and time nothing is lost.
    let report = run(config(small_gups(Bytes::mib(96)), HEMEM));
    assert_eq!(report.samples.lost, 0);
    assert!(report.samples.delivered > 0);
}

#[test]
fn sampling_costs_the_sampled_threads_their_time() {
    let throughput = |period| {
        let sampler = SamplerConfig { period, ..SamplerConfig::hemem() };
        // Everything fits into DRAM, so that sampling changes nothing else.
        let gups = GupsConfig { working_set: Bytes::mib(128), ..small_gups(Bytes::mib(16)) };
        run(SimConfig { sampler, ..config(gups, HEMEM) }).gups()
    };
    // A record of 250 ns for each 100 loads and each 100 stores: 5 ns an update
    // of 136 ns.
    let slowdown = 1.0 - throughput(100) / throughput(1 << 40);
    assert!((slowdown - 5.0 / 141.0).abs() < 0.005, "{slowdown}");
}

#[test]
fn moves_are_slow_where_bandwidth_is_scarce() {
    let busy_per_byte = |bandwidth: f64| {
        let gups = small_gups(Bytes::mib(96));
        let mut config = config(gups, HEMEM);
        config.machine.tiers[1].write_bandwidth.value = terrace_core::BytesPerSecond(bandwidth);
        let report = run(config);
        assert!(report.migrated.exchanges > 10, "{:?}", report.migrated);
        report.migrated.busy.as_f64() / report.migrated.moved.as_f64()
    };
    let (plenty, scarce) = (busy_per_byte(13.9e9), busy_per_byte(2e9));
    assert!(scarce > 1.5 * plenty, "{scarce} and {plenty} ns a byte");
}

#[test]
fn a_rate_limit_holds() {
    let gups = small_gups(Bytes::mib(96));
    let mut config = config(gups, HEMEM);
    config.migration.limit = terrace_core::BytesPerSecond(50e6);
    let report = run(config);
    let rate = report.migrated.moved.as_f64() / report.time.as_secs();
    assert!(rate < 55e6, "{rate}");
    assert!(rate > 20e6, "the limit was used: {rate}");
}

#[test]
fn threads_that_write_to_moving_pages_wait() {
    let report = run(config(small_gups(Bytes::mib(96)), HEMEM));
    // Half of the pages that move are hot, and an exchange takes about 0.5 ms,
    // in which a thread touches each of its hot pages several hundred times.
    assert!(report.migrated.stalled > Nanos::micros(100) * report.migrated.exchanges / 2);
    assert!(report.migrated.interrupted > Nanos::ZERO);
}

#[test]
fn hemem_finds_the_hot_set_and_beats_first_touch() {
    let gups = || small_gups(Bytes::mib(96));
    let all_dram = run(config(gups(), SimPolicy::AllDram)).gups();
    let hemem = run(config(gups(), HEMEM));
    let first_touch = run(config(gups(), FIRST_TOUCH)).gups();
    assert!(hemem.gups() > 0.85 * all_dram, "{} of {all_dram}", hemem.gups());
    assert!(first_touch < 0.75 * all_dram, "{first_touch} of {all_dram}");
}

#[test]
fn hemem_follows_a_hot_set_that_moves_and_first_touch_does_not() {
    // The hot set fills DRAM nearly, so that what moves has to displace
    // formerly hot pages.
    let gups = GupsConfig {
        shift: Some(Shift { at: Nanos::seconds(3), part: 4 }),
        ..small_gups(Bytes::mib(176))
    };
    let series = |policy| {
        let mut config = config(gups.clone(), policy);
        config.phases.run = terrace_sim::Span::Time(Nanos::seconds(7));
        run(config).series.iter().map(|point| point.fast_share).collect::<Vec<f64>>()
    };
    let hemem = series(HEMEM);
    let (before, after) = (hemem[2], hemem[7]);
    assert!(before > 0.9, "{hemem:?}");
    assert!(hemem[3] < before - 0.01, "the shift is felt: {hemem:?}");
    assert!(after > before - 0.02, "it recovers: {hemem:?}");
    let first_touch = series(FIRST_TOUCH);
    assert!(first_touch[7] < before - 0.1, "{first_touch:?}");
    assert!(first_touch[7] <= first_touch[3] + 0.01, "nothing moves: {first_touch:?}");
}

#[test]
fn the_papers_scale_takes_little_memory_for_each_page() {
    let workload = Gups::new(GupsConfig::hemem(Bytes::gib(16))).expect("valid");
    let machine = terrace_sim::machines::optane_cascade_lake();
    let mut config = SimConfig::new(machine, Box::new(workload), HEMEM);
    config.scale = 1024;
    config.phases.warm_up = terrace_sim::Span::Time(Nanos::millis(100));
    config.phases.run = terrace_sim::Span::Time(Nanos::millis(100));
    let report = run(config);
    assert_eq!(report.tiers.iter().map(|tier| tier.pages.get()).sum::<u64>(), 1 << 18);
    let footprint = report.footprint.expect("HeMem is a policy");
    assert!(footprint.bytes_per_page <= 16.0, "{footprint:?}");
}

#[test]
fn what_cannot_be_simulated_is_refused_by_name() {
    let refused = |machine, gups, policy| {
        let workload = Box::new(Gups::new(gups).expect("valid"));
        let config = SimConfig::new(machine, workload, policy);
        Simulation::new(config).err().expect("refused").to_string()
    };
    let gups = || small_gups(Bytes::mib(96));
    let laptop = terrace_sim::machines::builtin("laptop").expect("built in");
    assert!(refused(laptop, gups(), HEMEM).contains("`lz4`"));
    let many = GupsConfig { threads: 32, ..gups() };
    assert!(refused(small_machine(), many, HEMEM).contains("24 cores for 32 threads"));
    let large = GupsConfig { working_set: Bytes::gib(1), ..gups() };
    assert!(refused(small_machine(), large.clone(), HEMEM).contains("needs 1.00 GiB"));
    assert!(refused(small_machine(), large, SimPolicy::MemoryMode).contains("holds 768 MiB"));
}
