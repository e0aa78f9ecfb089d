//! HeMem's first figure, without the command line's trimmings.
//!
//! ```text
//! cargo run --release -p terrace-sim --example reproduce_hemem
//! ```

use terrace_sim::reproduce::{HememConfig, hemem};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let table = hemem(&HememConfig::default(), &|progress| {
        eprintln!(
            "{:>3}/{} {} at {}: {:.4} GUPS",
            progress.done, progress.total, progress.system, progress.hot_set, progress.gups
        );
    })?;
    println!("{table}");
    println!("{:.0} s", table.host_seconds);
    Ok(())
}
