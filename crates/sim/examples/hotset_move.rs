//! HeMem's shifting hot set at the paper's scale: throughput second by second,
//! with HeMem and with first touch. After 150 s a quarter of the hot set moves.
//!
//! ```text
//! cargo run --release -p terrace-sim --example hotset_move
//! ```

use terrace_core::{Nanos, PerSecond};
use terrace_policy::PolicyName;
use terrace_sim::{
    Gups, GupsConfig, Phases, SimConfig, SimPolicy, SimReport, Simulation, Span, machines,
};

/// Before the measured part: as long as HeMem's warm-up round takes.
const WARM_UP: Nanos = Nanos::seconds(160);
const MOVE: Nanos = Nanos::seconds(150);

fn run(policy: PolicyName) -> Result<SimReport, terrace_sim::SimError> {
    let workload = Gups::new(GupsConfig::hotset_move(WARM_UP + MOVE))?;
    let mut config = SimConfig::new(
        machines::optane_cascade_lake(),
        Box::new(workload),
        SimPolicy::Policy(policy),
    );
    config.scale = 256;
    config.phases =
        Phases { warm_up: Span::Time(WARM_UP), runs: 1, run: Span::Time(Nanos::seconds(250)) };
    Ok(Simulation::new(config)?.run(&mut |_| ()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hemem = run(PolicyName::HeMem)?;
    let first_touch = run(PolicyName::FirstTouch)?;
    let gups = |rate: PerSecond| rate.get() / 1e9;
    println!("{:>7} {:>8} {:>13} {:>12}", "second", "hemem", "hemem in DRAM", "first touch");
    for (a, b) in hemem.series.iter().zip(&first_touch.series) {
        let second = (a.at.as_secs() - WARM_UP.as_secs()).round();
        if (145.0..175.0).contains(&second) || second % 25.0 == 0.0 {
            println!(
                "{second:>7.0} {:>8.4} {:>11.2} % {:>12.4}",
                gups(a.throughput),
                a.fast_share * 100.0,
                gups(b.throughput)
            );
        }
    }
    Ok(())
}
