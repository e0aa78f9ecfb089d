//! The example of `docs/policies/adding.md` does what the page says.

#[allow(dead_code, reason = "its `main` is for who runs the example")]
#[path = "../examples/recent.rs"]
mod recent;

#[test]
fn a_policy_in_one_file_runs_and_finds_the_hot_set() {
    let recent = recent::simulate(Some(recent::Recent::default())).expect("valid");
    let slow = recent::simulate(None).expect("valid");

    assert_eq!(recent.policy.name(), "recent");
    assert!(recent.throughput.get() > 1.5 * slow.throughput.get(), "{}", recent.throughput);
    // 512 of 4096 MiB are hot; first touch would have a quarter in DRAM.
    assert!(recent.tiers[0].share > 0.6, "{}", recent.tiers[0].share);
    assert!(recent.migrated.exchanges > 100, "{:?}", recent.migrated);
}
