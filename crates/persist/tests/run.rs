//! Programs under schemes: what each costs, and in which order.

use terrace_core::{Bytes, Nanos};
use terrace_dram::presets;
use terrace_persist::SchemeKind;
use terrace_persist::folded::Folded;
use terrace_persist::run::{RunConfig, RunReport, Survival, run};
use terrace_persist::scheme::{FlushScope, SspConfig};
use terrace_sim::workload::catalog::{ProgramName, ProgramSpec};

fn runs(survival: Survival, interval: Nanos, memory: &str) -> RunReport {
    let memory = presets::builtin(memory).expect("built in");
    let spec = ProgramSpec::new(ProgramName::Sssp, Bytes::mib(8), 600_000);
    let program = spec.build().expect("good parameters");
    let mut config = RunConfig::new(survival, memory);
    (config.interval, config.skip) = (interval, program.initial());
    run(&mut Folded::new(program), &config, &mut |_| {}).expect("it runs")
}

fn ssp(flush: FlushScope, interval: Nanos) -> RunReport {
    runs(Survival::Ssp(SspConfig { flush, ..SspConfig::KINDLE }), interval, "kindle")
}

/// Kindle's Figure 5: the longer the interval, the less is flushed.
#[test]
fn the_published_ssp_costs_less_the_longer_the_interval() {
    let plain = runs(Survival::None, Nanos::millis(1), "kindle");
    let at = |ms| ssp(FlushScope::Everything, Nanos::millis(ms)).time / plain.time;
    let (one, two, four) = (at(1), at(2), at(4));
    assert!(one > two && two > four && four > 1.0, "{one} {two} {four}");
}

#[test]
fn flushing_what_was_updated_is_cheaper_than_flushing_everything() {
    let updated = ssp(FlushScope::Updated, Nanos::millis(1));
    let everything = ssp(FlushScope::Everything, Nanos::millis(1));
    let checkpoint = |run: &RunReport| run.in_checkpoints.as_f64() / run.checkpoints as f64;
    assert!(checkpoint(&updated) * 3.0 < checkpoint(&everything));
    // A checkpoint cannot be had for less than its flushes.
    assert!(updated.nvm_lines[1] > 0 && updated.in_checkpoints > Nanos::ZERO);
}

/// What writes more lines wears more, and takes more energy.
#[test]
fn persistence_is_paid_in_wear_and_energy_and_recovery_takes_time() {
    let interval = Nanos::millis(1);
    let plain = runs(Survival::None, interval, "kindle");
    assert_eq!((plain.checkpoints, plain.recovery), (0, None));
    for kind in [SchemeKind::Ssp, SchemeKind::SoftWrap] {
        let run = runs(Survival::Scheme(kind), interval, "kindle");
        assert!(run.wear.writes > plain.wear.writes, "{}", kind.name());
        let energy = |run: &RunReport| run.energy.expect("kindle has cells").total();
        assert!(energy(&run) > energy(&plain), "{}", kind.name());
        assert!(run.recovery.expect("it survives") > Nanos::ZERO);
        assert_eq!(run.wear.histogram.iter().sum::<u64>(), run.wear.lines);
        assert!(run.time > plain.time, "{}", kind.name());
    }
}

#[test]
fn a_faster_memory_makes_persistence_cheaper() {
    let slow = runs(Survival::Scheme(SchemeKind::Ssp), Nanos::millis(1), "optane-hybrid");
    let fast = runs(Survival::Scheme(SchemeKind::Ssp), Nanos::millis(1), "stt-ram");
    assert!(fast.time < slow.time, "{} {}", fast.time, slow.time);
    let years = |run: &RunReport| run.wear.years_as_is.expect("they have cells");
    assert!(years(&fast) > 1e5 * years(&slow), "10^15 writes and 1.4 million");
}

#[test]
fn a_memory_without_a_durable_part_is_refused() {
    let memory = presets::builtin("ddr4-2400").expect("built in");
    let spec = ProgramSpec::new(ProgramName::Chase, Bytes::mib(1), 1000);
    let config = RunConfig::new(Survival::None, memory);
    let error = run(&mut spec.build().expect("good"), &config, &mut |_| {}).expect_err("refused");
    assert!(error.to_string().contains("ddr4-2400"), "{error}");
}
