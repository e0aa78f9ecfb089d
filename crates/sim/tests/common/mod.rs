//! A machine of the paper's proportions at a thousandth of its size, so that
//! tests take seconds: 192 MiB of DRAM, 768 MiB of slow memory.

#![allow(dead_code, reason = "not every test file uses everything")]

use terrace_core::{Bytes, Machine, Nanos};
use terrace_policy::PolicyName;
use terrace_sim::{
    Gups, GupsConfig, Phases, SimConfig, SimPolicy, SimReport, Simulation, Span, machines,
};

pub(crate) const HEMEM: SimPolicy = SimPolicy::Policy(PolicyName::HeMem);
pub(crate) const FIRST_TOUCH: SimPolicy = SimPolicy::Policy(PolicyName::FirstTouch);

pub(crate) fn small_machine() -> Machine {
    let mut machine = machines::optane_cascade_lake();
    "small".clone_into(&mut machine.name);
    machine.tiers[0].capacity.value = Bytes::mib(192);
    machine.tiers[1].capacity.value = Bytes::mib(768);
    machine.cpu.llc.value = Bytes::kib(32);
    machine
}

/// 4 threads on 512 MiB.
pub(crate) fn small_gups(hot: Bytes) -> GupsConfig {
    GupsConfig { threads: 4, working_set: Bytes::mib(512), ..GupsConfig::hemem(hot) }
}

/// One second of warm-up and one second measured.
pub(crate) fn config(gups: GupsConfig, policy: SimPolicy) -> SimConfig {
    let workload = Gups::new(gups).expect("the parameters are valid");
    let second = Span::Time(Nanos::SECOND);
    SimConfig {
        phases: Phases { warm_up: second, runs: 1, run: second },
        scale: 16,
        ..SimConfig::new(small_machine(), Box::new(workload), policy)
    }
}

pub(crate) fn simulation(config: SimConfig) -> Simulation {
    Simulation::new(config).expect("the configuration is valid")
}

pub(crate) fn run(config: SimConfig) -> SimReport {
    simulation(config).run(&mut |_| ())
}

/// Relative difference.
pub(crate) fn apart(a: f64, b: f64) -> f64 {
    (a / b - 1.0).abs()
}
