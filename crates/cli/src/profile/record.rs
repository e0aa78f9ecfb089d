//! `terrace profile record`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use object::Object;
use serde::Serialize;
use terrace_core::{Cycles, Machine};
use terrace_profile::{Difference, Profile};
use terrace_report::End;
use terrace_sim::SimError;
use terrace_sim::exact::Batch;
use terrace_sim::exact::walk_profile::{WalkCounts, WalkProfiler};

use super::Summary;
use crate::failure::Failure;
use crate::output::{self, Files, Kind, count, facts, percent};
use crate::run::child::exit_code;
use crate::sim::input::tell_accesses;
use crate::sim::recorder::{self, Via};
use crate::sim::setup::names_machine;

/// Make a profile from one run of a program.
///
/// Every access of the program goes through simulated TLBs, page-walk caches and data caches, once
/// with base pages and once with huge pages wherever they fit. It runs under QEMU's user mode; it
/// must be an x86-64 program, and needs no change. Children that it starts are not recorded. Where
/// nothing goes wrong, the exit code is the program's own, as of `terrace run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace profile record -o sort.profile -- sort -n numbers.txt")]
pub(crate) struct Args {
    /// Where the profile goes.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// The machine whose TLBs and caches are simulated: a name or a file.
    #[arg(long, value_name = "MACHINE", default_value = "laptop")]
    machine: String,

    /// Run the program once more, and say how much of the benefit is there again.
    #[arg(long)]
    again: bool,

    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    summary: Summary,
    walks: WalkCounts,
    again: Option<Again>,
    exit_code: Option<i32>,
}

/// What a second run says.
#[derive(Serialize)]
struct Again {
    averted: Cycles,
    matched: Cycles,
    matched_share: Option<f64>,
}

/// A run under the profiler.
struct Run {
    profile: Profile,
    counts: WalkCounts,
    end: End,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let machine = terrace_sim::machines::load(&self.machine).map_err(Failure::bad_input)?;
        let mut files = Files::new();
        recorder::names(&mut files, &self.program)?;
        names_machine(&mut files, "--machine", &self.machine);
        let out = files.writes("--output", &self.output, Kind::Whole)?;
        // An interrupt goes to the program, whose end is that of the profile.
        let first = self.run(&machine)?;
        if first.counts.accesses == 0 {
            return Err(recorder::nothing_recorded(&self.program[0], first.end));
        }
        let named = out.path().is_some();
        out.write_whole(first.profile.to_text().as_bytes())?;
        if let End::Killed(signal) = first.end {
            output::warn(format_args!(
                "signal {signal} ended the program: the profile is of what it did until then"
            ));
        }
        if !first.counts.touched_at_random.is_zero() {
            output::warn(format_args!(
                "{} lie in mappings whose pages are touched for the first time in random order: \
                 where memory fits into the budget, these touches take longer under `terrace run \
                 --profile` than without a profile",
                first.counts.touched_at_random
            ));
        }
        let again = if self.again {
            // A comparison with a part of a run says nothing, and the profile is written.
            output::remove_when_interrupted();
            let second = self.run(&machine)?;
            let difference = Difference::new(&first.profile, &second.profile);
            let Difference { after: averted, matched, .. } = difference;
            Some(Again { averted, matched, matched_share: difference.share() })
        } else {
            None
        };
        let document = Document {
            summary: Summary::new(&first.profile),
            walks: first.counts,
            again,
            exit_code: match first.end {
                End::Exited(code) => Some(i32::from(code)),
                End::Killed(_) => None,
            },
        };
        let text = if json {
            output::json("terrace.profile.record", &document)?
        } else {
            words(&document)
        };
        // The program's own output goes to stdout; ours must not mix with it.
        if json && named {
            output::print(&text)?;
        } else {
            output::show(&text);
        }
        Ok(exit_code(first.end))
    }

    fn run(&self, machine: &Machine) -> Result<Run, Failure> {
        let mut profiler =
            WalkProfiler::new(machine, build_id).map_err(|e| Failure::bad_input(format!("{e}")))?;
        // As in a managed run: requests of a megabyte and more are mappings of their own.
        let environment = [("MALLOC_MMAP_THRESHOLD_", "1048576")];
        let mut recording = recorder::start_with(&self.program, Some(Via::Qemu), &environment)?;
        let mut batch = Batch::default();
        let broken: Option<SimError> = loop {
            match recording.source.next(&mut batch) {
                Ok(true) => profiler.batch(&batch),
                Ok(false) => break None,
                Err(error) => break Some(error),
            }
        };
        let summary = recording.source.summary();
        let end = recording.end()?;
        tell_accesses(&self.program[0].to_string_lossy(), summary.as_ref());
        match broken {
            Some(broken) if matches!(end, End::Killed(_)) => {
                output::warn(format_args!("the last accesses are missing: {broken}"));
            }
            Some(broken) => return Err(Failure::failed(broken)),
            None => {}
        }
        let words = self.program.iter().map(|word| word.to_string_lossy().into_owned());
        let (mut profile, counts) = profiler.finish(words.collect());
        profile.build_id = build_id(&recorder::executable(&self.program[0])?);
        Ok(Run { profile, counts, end })
    }
}

/// What identifies a file, if it says so.
pub(super) fn build_id(path: &Path) -> Option<String> {
    let file = std::fs::File::open(path).ok()?;
    let cache = object::ReadCache::new(file);
    let file = object::File::parse(&cache).ok()?;
    let id = file.build_id().ok()??;
    let id = id.get(..64).unwrap_or(id);
    let mut text = String::new();
    for byte in id {
        // A text takes everything.
        let _ = write!(text, "{byte:02x}");
    }
    (!text.is_empty()).then_some(text)
}

fn words(document: &Document) -> String {
    let counts = &document.walks;
    let mut rows = document.summary.facts();
    rows.push(("accesses", count(counts.accesses)));
    let walks = |walks, cycles: Cycles| format!("{} in {cycles}", count(walks));
    rows.push(("walks, base pages", walks(counts.base_walks, counts.base_cycles)));
    rows.push(("walks, huge pages", walks(counts.huge_walks, counts.huge_cycles)));
    let share = counts.nameless_cycles.as_f64() / counts.base_cycles.as_f64().max(1.0);
    rows.push(("in memory without a name", percent(share)));
    if let Some(again) = &document.again {
        let share = again.matched_share.map_or("no benefit to match".to_owned(), |share| {
            format!("{} of the benefit, {}", percent(share), again.matched)
        });
        rows.push(("matched in a second run", share));
    }
    facts("", &rows)
}
