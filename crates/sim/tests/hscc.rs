//! HSCC on Kindle's machine: what the hardware counts, the policy moves, and the
//! program pays for on its own core.

use terrace_core::Bytes;
use terrace_economics::Mode;
use terrace_policy::{Hscc, HsccConfig, PolicyName};
use terrace_sim::exact::{ExactConfig, ExactMachine, ExactReport, Source, setup};
use terrace_sim::workload::catalog::{ProgramName, ProgramSpec};
use terrace_sim::{MigrationConfig, SimPolicy, machines};

fn run(threshold: Option<u16>) -> ExactReport {
    let machine = machines::builtin("kindle").expect("built in");
    let policy = match threshold {
        None => SimPolicy::AllSlow,
        Some(_) => SimPolicy::Policy(PolicyName::Hscc),
    };
    let mut config = ExactConfig::new(machine, policy);
    config.economist = Mode::Off;
    config.migration = MigrationConfig::kindle();
    config.fast = Some(Bytes::mib(3));
    let spec = ProgramSpec::new(ProgramName::Ycsb, Bytes::mib(12), 3_000_000);
    let mut program = spec.build().expect("good parameters");
    config.warm_up = program.initial();
    let hscc = threshold.map(|threshold| {
        let config = HsccConfig { threshold, ..HsccConfig::default() };
        Box::new(Hscc::new(config)) as Box<dyn terrace_policy::Policy>
    });
    let mut machine = ExactMachine::with_policy(&config, hscc).expect("set up");
    let source: &mut dyn Source = &mut program;
    setup::run(&mut machine, &config, source, &mut |_, _| {}).expect("it fits")
}

/// Kindle's Figure 6 and its tables: fewer pages the higher the threshold, and
/// nearly all of the time of a migration is the copy.
#[test]
fn fewer_pages_move_the_higher_the_threshold_and_copying_is_nearly_all_of_it() {
    let plain = run(None);
    assert!(plain.tlb_counts.is_none() && plain.migrated.moved.is_zero());
    let reports = [2, 10, 40].map(|threshold| run(Some(threshold)));
    let moved = reports.each_ref().map(|report| report.migrated.moved);
    assert!(moved[0] > moved[1] && moved[1] > moved[2], "{moved:?}");
    let costs = reports[0].tlb_counts.expect("hscc counts");
    assert!(costs.passes > 1 && costs.entries > 1000);
    let copied = costs.copying / (costs.copying + costs.selecting);
    assert!((0.9..1.0).contains(&copied), "{copied}");
    // What was moved is in DRAM, and read there.
    assert!(reports[0].tiers[0].reads > 0 && plain.tiers[0].reads == 0);
}
