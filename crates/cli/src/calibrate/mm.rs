//! `terrace calibrate mm`: what the kernel's memory management costs on this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use terrace_core::{Cycles, Nanos};
use terrace_live::activate;
use terrace_live::costs::Fingerprint;
use terrace_live::costs::kernel_memory::{Wanted, measure};
use terrace_sim::mm::{Costs, MeasuredCosts};

use super::{Machine, alone};
use crate::failure::Failure;
use crate::output::{self, Files, Kind, facts};

/// Measure what the kernel's memory management costs: faults, zeroing, collapses, moves, flushes.
///
/// Times real operations, each many times, and writes a file of costs for the simulated kernel
/// (`terrace reproduce cbmm --costs FILE`), with a fingerprint of machine and kernel. What cannot
/// be measured here keeps its built-in value, and is named. To be run when the machine is idle:
/// where other programs use more than a tenth of a processor meanwhile, nothing is kept.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace calibrate mm -o mm.toml")]
pub(super) struct MmArgs {
    /// Where to write the costs.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Compact all of memory, to see what moving a page takes where there is one node of memory.
    /// Needs root; other programs wait for it.
    #[arg(long)]
    compaction: bool,

    /// Keep what was measured, whatever other programs did meanwhile.
    #[arg(long)]
    busy: bool,
}

#[derive(Serialize)]
struct Document {
    file: String,
    machine: Machine,
    /// Cycles, by piece of work.
    cycles: BTreeMap<String, Cycles>,
    /// What could not be measured, and why.
    unmeasured: BTreeMap<&'static str, String>,
    /// What was not tried, as only the simulation tells it apart: built-in values.
    built_in: Vec<&'static str>,
    /// How long measuring took.
    elapsed: Nanos,
    others: Option<f64>,
}

impl MmArgs {
    pub(super) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let out = Files::new().writes("--output", &self.output, Kind::Whole)?;
        output::remove_when_interrupted();
        let begun = Instant::now();
        let wanted = Wanted { compaction: self.compaction };
        let (measured, others) =
            alone("calibrate mm", 5.0, self.busy, |told| measure(wanted, told))?;
        let clock = activate::calibrate().clock;
        let cycles = |time: Nanos| clock.cycles(time).max(Cycles(1));
        let file = MeasuredCosts {
            machine: here(),
            clock,
            costs: measured
                .times
                .iter()
                .map(|&(name, time)| (name.to_owned(), cycles(time)))
                .collect(),
        };
        out.write_whole(file.to_text().as_bytes())?;
        let unmeasured: BTreeMap<_, _> = measured.unmeasured.into_iter().collect();
        let sources = Costs::builtin().sources();
        let names = sources.iter().map(|sourced| sourced.name);
        let document = Document {
            file: self.output.display().to_string(),
            built_in: names
                .filter(|name| !file.costs.contains_key(*name) && !unmeasured.contains_key(name))
                .collect(),
            machine: Machine::from(Fingerprint::of_this_machine()),
            cycles: file.costs,
            unmeasured,
            elapsed: Nanos(begun.elapsed().as_nanos() as u64),
            others,
        };
        let text =
            if json { output::json("terrace.calibrate-mm", &document)? } else { render(&document) };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn render(document: &Document) -> String {
    let builtin: BTreeMap<_, _> =
        Costs::builtin().sources().into_iter().map(|one| (one.name, one.value)).collect();
    let rows: Vec<(&str, String)> = document
        .cycles
        .iter()
        .map(|(name, cycles)| {
            let was = builtin.get(name.as_str()).copied().unwrap_or_default();
            (name.as_str(), format!("{cycles}, built in {was}"))
        })
        .collect();
    let mut text =
        format!("measured in {:.1} s\n{}", document.elapsed.as_f64() / 1e9, facts("  ", &rows));
    for (name, why) in &document.unmeasured {
        text += &format!("not measured, built-in value kept: {name} ({why})\n");
    }
    text + &format!("built in: {}\n{}\n", document.built_in.join(", "), document.file)
}

/// What identifies this machine and kernel.
fn here() -> BTreeMap<String, String> {
    let Fingerprint { processor, processors, kernel, memory, huge_pages } =
        Fingerprint::of_this_machine();
    BTreeMap::from([
        ("processor".to_owned(), processor),
        ("processors".to_owned(), processors.to_string()),
        ("kernel".to_owned(), kernel),
        ("memory".to_owned(), memory.0.to_string()),
        ("huge-pages".to_owned(), huge_pages),
    ])
}

/// Reads such a file for a simulation, and warns where it is of another machine or kernel.
pub(crate) fn read(option: &str, path: &Path) -> Result<MeasuredCosts, Failure> {
    let name = path.display();
    let text = terrace_core::text::read_text(path)
        .map_err(|e| Failure::bad_input(format!("{option}: {name}: {e}")))?;
    let measured = MeasuredCosts::parse(&name.to_string(), &text)
        .map_err(|e| Failure::bad_input(format!("{option}: {e}")))?;
    if let Some(difference) = measured.difference(&here()) {
        output::warn(format_args!(
            "{option}: {name} was measured on another machine or kernel ({difference}); its costs \
             are used as they are"
        ));
    }
    Ok(measured)
}
