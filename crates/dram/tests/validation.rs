//! The comparisons of `make validate`, as a test: a change that moves a result
//! away from a formula or a published figure fails here.

use terrace_dram::validation::{Check, closed_forms, ddr4_curve, optane};

fn hold(checks: &[Check]) {
    let bad: Vec<String> = checks.iter().filter(|c| !c.holds()).map(Check::to_string).collect();
    assert!(bad.is_empty(), "\n{}", bad.join("\n"));
}

#[test]
fn the_ddr4_curve_is_the_published_one() {
    hold(&ddr4_curve());
}

#[test]
fn queues_roofs_and_refresh_obey_their_formulas() {
    hold(&closed_forms());
}

#[test]
fn optane_has_its_published_shape() {
    hold(&optane());
}
