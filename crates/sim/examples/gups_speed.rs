//! How fast the simulator is: updates of GUPS simulated one by one in a second
//! of one host core, at the paper's scale with HeMem at work.
//!
//! ```text
//! cargo run --release -p terrace-sim --example gups_speed [POLICY [HOT_GIB]]
//! ```

use std::time::Instant;

use terrace_core::{Bytes, Nanos};
use terrace_policy::PolicyName;
use terrace_sim::{Gups, GupsConfig, Phases, SimConfig, SimPolicy, Simulation, Span, machines};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let policy = match arguments.next() {
        Some(name) => name.parse()?,
        None => SimPolicy::Policy(PolicyName::HeMem),
    };
    let hot = arguments.next().map_or(Ok(16), |text| text.parse())?;
    println!("{policy}, 16 threads, {hot} GiB hot of 512 GiB, 2 MiB pages");
    println!(
        "{:>6} {:>12} {:>10} {:>14} {:>12}",
        "scale", "simulated", "host time", "updates/s", "GUPS"
    );
    for scale in [1u32, 16, 128] {
        let workload = Gups::new(GupsConfig::hemem(Bytes::gib(hot)))?;
        let mut config =
            SimConfig::new(machines::optane_cascade_lake(), Box::new(workload), policy);
        config.scale = scale;
        let time = Nanos::millis(1000 * u64::from(scale).min(40));
        config.phases = Phases { warm_up: Span::Time(time), runs: 1, run: Span::Time(time) };
        let simulation = Simulation::new(config)?;
        let started = Instant::now();
        let report = simulation.run(&mut |_| ());
        println!(
            "{scale:>6} {:>12} {:>8.2} s {:>12.1} M {:>12.4}",
            report.simulated_accesses,
            started.elapsed().as_secs_f64(),
            report.host_speed.get() / 1e6,
            report.gups(),
        );
    }
    Ok(())
}
