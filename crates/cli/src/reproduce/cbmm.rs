//! `terrace reproduce cbmm`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::Bytes;
use terrace_economics::Mode;
use terrace_report::html::{Figure, figures_page};
use terrace_sim::mm::stand_ins::StandIn;
use terrace_sim::mm::{Fragmentation, MmConfig, MmPolicyName, RunReport};
use terrace_sim::reproduce::{CbmmConfig, CbmmTable, cbmm_heard};

use super::recording;
use crate::args::one_of;
use crate::calibrate::mm;
use crate::failure::Failure;
use crate::output::{self, Files, Kind};
use crate::progress::Progress;
use crate::records::{Header, MachineFacts, World};
use crate::sim::{begin_record, finish, listener};

/// CBMM: huge pages on fragmented memory, and how long page faults take.
///
/// Figures 4, 5 and 6 in a simulated kernel: run time against Linux, latency of soft faults to
/// the longest, memory in huge pages; unfragmented, fragmented by the paper's program with its
/// memory released, and with it still in unsplit huge pages. Nine policies: never, always, madvise,
/// defer and defer+madvise of Linux, `HawkEye`, CBMM with a profile of the program, CBMM with its
/// general profile, and Terrace's estimator. Programs are stand-ins in the shape of the paper's, at
/// its sizes; recordings may be added. Each claim of the paper is printed with its criterion and what
/// came of it. The exit code is 0 also where a claim does not hold: that is a result, not a failure.
#[derive(Debug, clap::Args)]
pub(super) struct CbmmArgs {
    /// A sixteenth of memory and work: a look in a minute or two. Longest faults are shorter.
    #[arg(long)]
    quick: bool,

    /// Some of the paper's programs, not all.
    #[arg(long, value_name = "PROGRAMS", value_delimiter = ',',
          value_parser = one_of(&StandIn::ALL, StandIn::name))]
    only: Vec<StandIn>,

    /// Some policies, not all. `never` and `always` of Linux are run in any case, as profiles are
    /// made of them. Without `cbmm` and `terrace` no claim is judged.
    #[arg(long, value_name = "POLICIES", value_delimiter = ',',
          value_parser = one_of(&MmPolicyName::ALL, MmPolicyName::name))]
    policies: Vec<MmPolicyName>,

    /// A recording (`terrace record`) beside the paper's programs, under a name of its own. May
    /// be given several times.
    #[arg(long, value_name = "NAME=FILE")]
    trace: Vec<String>,

    /// What work costs in the kernel: a file of `terrace calibrate mm`, in place of the built-in
    /// numbers.
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,

    /// Leave out one in so many of the huge pages that Terrace's estimator would put, to see what
    /// they avert: then its books say what the others have brought. As many of the ranges whose base
    /// pages it would fill ahead, and of the seconds in which it makes free blocks, are left out too.
    /// None for 0; live runs have 64. The runs take longer by what those would have brought.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    hold_out: u32,

    /// Where all randomness comes from.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Write the figures to a page that needs nothing else.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write what Terrace's estimator decides to a file, for `terrace why`. Each program in each
    /// state of memory is a process there, numbered from 1 in the order of the tables; `why`
    /// names them. Refused where `--policies` lacks `terrace`.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

#[derive(Serialize)]
struct Document {
    paper: &'static str,
    table: CbmmTable,
}

impl CbmmArgs {
    pub(super) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        // Before the file is touched: one with a header alone looks like a run that was cut off.
        let is_ours = |policies: &[MmPolicyName]| policies.contains(&MmPolicyName::Economist);
        if self.record.is_some() && !self.policies.is_empty() && !is_ours(&self.policies) {
            return Err(Failure::bad_input(
                "--record: what it writes is decided by `terrace`, which is not among `--policies`; \
                 add it there, or leave `--record` out",
            ));
        }
        let mut files = Files::new();
        for (_, path) in self.trace.iter().filter_map(|text| text.split_once('=')) {
            files.reads("--trace", path);
        }
        if let Some(path) = &self.costs {
            files.reads("--costs", path);
        }
        let html = self.html.as_deref();
        let html = html.map(|path| files.writes("--html", path, Kind::Whole)).transpose()?;
        let record = match &self.record {
            Some(path) => Some((path, files.writes("--record", path, Kind::Recording)?)),
            None => None,
        };
        output::remove_when_interrupted();
        let mut config = if self.quick { CbmmConfig::quick() } else { CbmmConfig::whole() };
        config.size.seed = self.seed;
        config.hold_out = self.hold_out;
        if let Some(path) = &self.costs {
            config.costs = mm::read("--costs", path)?.costs();
        }
        if !self.only.is_empty() {
            // In the order of the paper's figure, each once.
            config.programs.retain(|program| self.only.contains(program));
        }
        if !self.policies.is_empty() {
            config.policies.clone_from(&self.policies);
        }
        for text in &self.trace {
            let recorded = recording(text)?;
            let taken = config.recorded.iter().any(|(name, _)| *name == recorded.0);
            if taken || StandIn::ALL.iter().any(|one| one.name() == recorded.0) {
                let message = format!("--trace: `{}` is the name of another program", recorded.0);
                return Err(Failure::bad_input(message));
            }
            config.recorded.push(recorded);
        }
        let runs = runs_of_ours(&config);
        let record = match record {
            Some((path, out)) => Some(begin_record(path, out, &header(&runs))?),
            None => None,
        };
        let progress = Progress::new();
        let bar = progress.bar("reproduce cbmm");
        let shown = |done: usize, total: usize, what: &str| {
            bar.set(done as f64 / total as f64, format!("{done}/{total} {what}"));
        };
        let hear = |program: &str, state: Fragmentation| {
            let is_it = |(name, of): &(String, Fragmentation)| name == program && *of == state;
            let number = runs.iter().position(is_it)?;
            Some(listener(record.as_ref()?, number as u32 + 1))
        };
        let table = cbmm_heard(&config, &shown, &hear).map_err(Failure::bad_input)?;
        bar.finish();
        if let Some(record) = record {
            finish(&record)?;
        }
        if let Some(html) = html {
            html.write_whole(page(&table).as_bytes())?;
        }
        let text = if json {
            let paper = "CBMM, USENIX ATC 2022";
            output::json("terrace.reproduce", &Document { paper, table })?
        } else {
            table.to_string()
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The programs and states of memory for which Terrace's estimator decides: by program, then state.
fn runs_of_ours(config: &CbmmConfig) -> Vec<(String, Fragmentation)> {
    let ours = config.programs.iter().map(|program| program.name().to_owned());
    let recorded = config.recorded.iter().map(|(name, _)| name.clone());
    let of = |program: String| Fragmentation::ALL.map(|state| (program.clone(), state));
    ours.chain(recorded).flat_map(of).collect()
}

/// What a recording begins with.
fn header(runs: &[(String, Fragmentation)]) -> Header {
    let programs = runs
        .iter()
        .enumerate()
        .map(|(i, (program, state))| format!("{}={program} ({})", i + 1, state.name()));
    let ours = MmConfig::new(Bytes::ZERO, MmPolicyName::Economist);
    let machine = MachineFacts {
        name: "one socket of Intel Xeon Silver 4114".to_owned(),
        clock: Some(ours.clock),
        tiers: vec!["dram".to_owned()],
    };
    let policy = ours.policy.name().to_owned();
    // Packed: there are thousands for each gigabyte.
    Header::new(World::Sim, programs.collect(), policy, Mode::Enforce, machine).packed()
}

/// The page: pictures of time, longest faults and huge pages by program, and of each program's
/// distribution of faults.
fn page(table: &CbmmTable) -> String {
    let mut figures = Vec::new();
    for state in Fragmentation::ALL {
        figures.push(by_program(
            table,
            format!("Figure 5: run time, {}", state.name()),
            "Run time over that of Linux (always) in the same state of memory.",
            ("times", false),
            (state, &|run, linux| run.time.as_f64() / linux.time.as_f64()),
        ));
        figures.push(by_program(
            table,
            format!("Figure 4: the longest soft fault, {}", state.name()),
            "Milliseconds.",
            ("ms", true),
            (state, &|run, _| run.soft.max.as_f64() / 2.2e6),
        ));
        figures.push(by_program(
            table,
            format!("Figure 6: memory in huge pages, {}", state.name()),
            "Percent of the memory in use when it was most.",
            ("%", false),
            (state, &|run, _| run.huge_share * 100.0),
        ));
    }
    for row in &table.programs {
        for state in Fragmentation::ALL {
            figures.push(tail(table, &row.program, state));
        }
    }
    figures.retain(|figure| !figure.places.is_empty());
    figures_page(
        "reproduce cbmm",
        "CBMM (USENIX ATC 2022), in a simulated kernel",
        "Computed by the run that wrote this page. Programs are stand-ins in the shape of the \
         paper's, or recordings.",
        &figures,
    )
}

/// The policies of the pictures: as many as can be told apart.
const SHOWN: [MmPolicyName; 5] = [
    MmPolicyName::Never,
    MmPolicyName::Always,
    MmPolicyName::HawkEye,
    MmPolicyName::Cbmm,
    MmPolicyName::Economist,
];

/// Those of them that were run.
fn shown(table: &CbmmTable) -> impl Iterator<Item = MmPolicyName> {
    SHOWN.into_iter().filter(|policy| table.runs.iter().any(|run| run.policy == *policy))
}

fn find<'a>(
    table: &'a CbmmTable,
    program: &str,
    state: Fragmentation,
    policy: MmPolicyName,
) -> Option<&'a RunReport> {
    table
        .runs
        .iter()
        .find(|run| run.program == program && run.fragmentation == state && run.policy == policy)
}

type Value<'a> = &'a dyn Fn(&RunReport, &RunReport) -> f64;

fn by_program(
    table: &CbmmTable,
    title: String,
    note: &str,
    (unit, logarithmic): (&'static str, bool),
    (state, value): (Fragmentation, Value<'_>),
) -> Figure {
    let of = |policy: MmPolicyName| {
        let values = table.programs.iter().map(|row| {
            let linux = find(table, &row.program, state, MmPolicyName::Always);
            let run = find(table, &row.program, state, policy);
            run.zip(linux).map_or(0.0, |(run, linux)| value(run, linux))
        });
        (policy.name().to_owned(), values.collect())
    };
    Figure {
        title,
        note: note.into(),
        unit,
        logarithmic,
        places: table.programs.iter().map(|row| row.program.clone()).collect(),
        series: shown(table).map(of).collect(),
        also: Vec::new(),
        across: (unit == "times").then_some(1.0),
        top: None,
    }
}

/// The share of soft faults that take longer than powers of ten of a microsecond.
fn tail(table: &CbmmTable, program: &str, state: Fragmentation) -> Figure {
    const MICROS: [u64; 7] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];
    let above = |run: &RunReport, micros: u64| {
        let longer = run.tail.iter().filter(|(time, _)| *time > micros * 1000);
        longer.map(|(_, share)| *share).fold(0.0, f64::max)
    };
    let of = |policy: MmPolicyName| {
        let run = find(table, program, state, policy);
        let values = MICROS.map(|micros| run.map_or(0.0, |run| above(run, micros) * 1e6));
        (policy.name().to_owned(), values.to_vec())
    };
    let words = |micros: u64| match micros {
        m if m < 1_000 => format!("> {m} us"),
        m if m < 1_000_000 => format!("> {} ms", m / 1_000),
        m => format!("> {} s", m / 1_000_000),
    };
    Figure {
        title: format!("Figure 4: soft faults of {program}, {}", state.name()),
        note: "Of a million soft faults, how many take longer.".into(),
        unit: "of a million",
        logarithmic: true,
        places: MICROS.map(words).to_vec(),
        series: shown(table).map(of).collect(),
        also: Vec::new(),
        across: None,
        top: None,
    }
}
