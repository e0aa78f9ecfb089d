//! The synthetic mix of `terrace validate`'s fourth part as a ChampSim trace, so
//! that who has ChampSim can run both on the same accesses:
//!
//!     cargo run --release -p terrace-sim --example champsim_mix > mix.champsim
//!     bin/champsim --warmup-instructions 0 --simulation-instructions 500000 mix.champsim

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use terrace_sim::trace::import::export_champsim;
use terrace_sim::validation::champsim;

fn main() -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    let written = export_champsim(&mut champsim::stream(), &mut out);
    match written.map_err(|e| e.to_string()).and_then(|count| {
        out.flush().map_err(|e| e.to_string())?;
        Ok(count)
    }) {
        Ok(instructions) => {
            eprintln!("{instructions} instructions");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
