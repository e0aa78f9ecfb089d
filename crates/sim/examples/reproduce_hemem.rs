//! HeMem's first figure, without the command line's trimmings.
//!
//! ```text
//! cargo run --release -p terrace-sim --example reproduce_hemem [DRAM]
//! ```
//!
//! With an amount (`128GiB`), policies may use so much of the machine's DRAM.

use terrace_sim::reproduce::{HememConfig, hemem};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let managed_dram = std::env::args().nth(1).map(|text| text.parse()).transpose()?;
    let config = HememConfig { managed_dram, ..HememConfig::default() };
    let table = hemem(&config, &|progress| {
        eprintln!(
            "{:>3}/{} {} at {}: {:.4} GUPS",
            progress.done, progress.total, progress.system, progress.hot_set, progress.gups
        );
    })?;
    println!("{table}");
    println!("{:.0} s", table.host_seconds);
    Ok(())
}
