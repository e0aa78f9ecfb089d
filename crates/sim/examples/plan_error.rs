//! Prints every prediction of the held-out programs beside what was measured.

use terrace_sim::plan::PlanError;
use terrace_sim::plan::held_out;

fn main() {
    let machine = held_out::machine().expect("built in");
    let all = held_out::measure(&held_out::PROGRAMS, 2, &machine).expect("simulated");
    for p in &all {
        println!(
            "{:10} {:>10} {:8.4} {:8.4} {:7.4}",
            p.program.name(),
            p.fast.to_string(),
            p.predicted,
            p.measured,
            p.error()
        );
    }
    println!("{:?}", PlanError::of(&all));
}
