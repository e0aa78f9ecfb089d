//! The comparisons of `make validate`, as a test: a change that moves a result
//! away from a formula or a published figure fails here. And the other way round:
//! a model with a fault must not pass.

use terrace_dram::validation::{Check, closed_forms, ddr4_curve, optane};
use terrace_dram::{MemoryFile, presets};

fn memory(name: &str) -> MemoryFile {
    presets::builtin(name).expect("built in")
}

fn hold(checks: &[Check]) {
    let bad: Vec<String> = checks.iter().filter(|c| !c.holds()).map(Check::to_string).collect();
    assert!(bad.is_empty(), "\n{}", bad.join("\n"));
}

/// Names of what fails.
fn failing(checks: &[Check]) -> Vec<&str> {
    checks.iter().filter(|c| !c.holds()).map(|c| c.what.as_str()).collect()
}

/// Names of what checks arithmetic only.
fn arithmetic(checks: &[Check]) -> Vec<&str> {
    checks.iter().filter(|c| c.arithmetic).map(|c| c.what.as_str()).collect()
}

/// A formula by a standard that the scheduler has to come to is no number that was put in, though
/// its parameters were.
#[test]
fn the_ddr4_curve_is_the_published_one() {
    let checks = ddr4_curve(&memory("ddr4-2400"));
    hold(&checks);
    assert_eq!(arithmetic(&checks), [""; 0]);
}

#[test]
fn queues_roofs_and_refresh_obey_their_formulas() {
    let checks = closed_forms(&MemoryFile::clone);
    hold(&checks);
    // The model's own counts, and the period of a timer that was put in.
    let only = arithmetic(&checks);
    assert!(
        only.iter().all(|what| what.contains("Little's law") || what.contains("share of time"))
    );
    assert_eq!(only.len(), 5, "{only:?}");
}

#[test]
fn optane_has_its_published_shape() {
    let checks = optane(&memory("optane"));
    hold(&checks);
    assert_eq!(arithmetic(&checks).len(), 6);
}

/// If it did, nobody would notice a scheduler that forgets a timing rule.
#[test]
fn a_memory_that_opens_rows_too_slowly_is_not_on_the_curve() {
    let mut slow = memory("ddr4-2400");
    let opening = &mut slow.dram.as_mut().expect("DRAM").timing.tRCD.value;
    (opening.cycles, opening.nanos) = (opening.cycles * 2, opening.nanos * 2.0);

    let checks = ddr4_curve(&slow);
    let failing = failing(&checks);
    assert!(failing.iter().any(|what| what.contains("first data")), "{failing:?}");
    assert!(failing.iter().any(|what| what.contains("latency")), "{failing:?}");
}

#[test]
fn a_bank_that_is_free_too_early_breaks_the_queue_and_one_refreshed_too_long_the_roof() {
    let checks = closed_forms(&|file| {
        let mut file = file.clone();
        let timing = &mut file.dram.as_mut().expect("DRAM").timing;
        (timing.tRAS.value.cycles, timing.tRAS.value.nanos) = (1, 0.0);
        let away = &mut timing.tRFC.value;
        (away.cycles, away.nanos) = (away.cycles * 2, away.nanos * 2.0);
        file
    });
    let failing = failing(&checks);
    assert!(failing.iter().any(|what| what.starts_with("M/D/1")), "{failing:?}");
    assert!(failing.iter().any(|what| what.contains("under refresh")), "{failing:?}");
}

#[test]
fn modules_that_do_not_combine_writes_are_not_optane() {
    let mut plain = memory("optane");
    plain.nvm.as_mut().expect("modules").write_combining.value = 0;

    let checks = optane(&plain);
    let failing = failing(&checks);
    assert!(failing.iter().any(|what| what.contains("writes")), "{failing:?}");
}
