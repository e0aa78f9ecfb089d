//! `terrace sim --kernel`: a program's accesses and its calls for I/O, in a simulated kernel.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use terrace_core::context::ContextChange;
use terrace_core::{Bytes, ContextEvent, ContextId, EventRef, Nanos, ObjectKind, PageRef};
use terrace_economics::{Decision, Mode};
use terrace_kloc::policy::{Strategy, StrategyConfig};
use terrace_sim::analytic::report::ClassAccount;
use terrace_sim::kernel::played::{PlayError, Survey, leave_room_for, memory_of_calls, play};
use terrace_sim::kernel::programs::{Amount, Program, Shapes};
use terrace_sim::kernel::recorded::{self, Recording, Replay};
use terrace_sim::kernel::{Class, Costs, Detail, Kernel, KernelConfig, KernelReport};
use terrace_sim::machines;
use terrace_sim::trace::Format;

use super::exact::SEED;
use super::input::{Input, Repeatable, failure, tell, told};
use super::{ONLY, SharedFile, finish};
use crate::args::one_of;
use crate::failure::Failure;
use crate::output::{self, Files, count, facts, table};
use crate::progress::Progress;
use crate::records::Record;
use crate::run::render::advice;

const STRATEGIES: &[Strategy] = &[
    Strategy::AllFast,
    Strategy::AllSlow,
    Strategy::Naive,
    Strategy::Nimble,
    Strategy::NimblePlusPlus,
    Strategy::KlocsNoMigration,
    Strategy::Klocs,
    Strategy::KlocsGuarded,
    Strategy::KlocsPrefetch,
];
const SHAPES: &[Program] = &Program::ALL;

/// By how much `--shape`'s data and the machine's memories are smaller than they are called, and
/// operations of each thread: those of `terrace reproduce klocs --quick`.
const SCALE: u64 = 512;
const OPERATIONS: u64 = 4_000;

/// A kernel that does I/O.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "A kernel that does I/O")]
pub(crate) struct Played {
    /// Make the program's calls, too, in a simulated kernel: its accesses and the kernel's own go
    /// through the same caches, and pages of both are placed by this strategy.
    #[arg(long, value_name = "STRATEGY", value_parser = one_of(STRATEGIES, Strategy::name))]
    kernel: Option<Strategy>,

    /// Calls made up in the shape of a program, with data and memories a 512th of their size, in
    /// place of a recording.
    #[arg(long, value_name = "PROGRAM", requires = "kernel",
          conflicts_with_all = ["trace", "program", "algorithm"],
          value_parser = one_of(SHAPES, Program::name))]
    shape: Option<Program>,

    /// What calls cost: a file of `terrace calibrate kernel`; the built-in one if not given.
    #[arg(long, value_name = "FILE", requires = "kernel")]
    costs: Option<PathBuf>,
}

/// What else `sim` was told.
pub(super) struct Around<'a> {
    pub(super) input: &'a Input,
    pub(super) machine: &'a str,
    pub(super) fast: Option<Bytes>,
    pub(super) economist: Mode,
}

#[derive(Serialize)]
struct Document<'a> {
    program: &'a str,
    machine: &'a str,
    strategy: &'static str,
    /// Line by line through the caches, or pages alone.
    caches: bool,
    /// The program's own accesses.
    accesses: u64,
    report: &'a KernelReport,
    /// The economist's accounts, of classes that saw a proposal.
    accounts: &'a [ClassAccount],
    /// Why a trace was not read to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<&'a str>,
}

/// What came of it.
struct Ran {
    report: KernelReport,
    /// The program's own accesses.
    accesses: u64,
    accounts: Vec<ClassAccount>,
    /// Why a trace was not read to its end.
    cut: Option<String>,
}

impl Ran {
    fn new(kernel: &mut Kernel, report: KernelReport) -> Self {
        kernel.finish();
        let accounts = ClassAccount::all(kernel.economist());
        Self { report, accesses: 0, accounts, cut: None }
    }
}

/// What is played.
enum What {
    Shape(Program),
    /// With why it was not read to its end.
    Calls(Recording, Option<String>),
    Trace(Repeatable),
}

impl Played {
    /// Whether such a kernel was asked for.
    pub(super) fn strategy(&self) -> Option<Strategy> {
        self.kernel
    }

    /// Tells which files are read.
    pub(super) fn names(&self, files: &mut Files) {
        if let Some(costs) = &self.costs {
            files.reads("--costs", costs);
        }
    }

    /// What calls cost.
    fn costs(&self) -> Result<Costs, Failure> {
        let Some(path) = &self.costs else { return Ok(Costs::builtin()) };
        let name = path.display().to_string();
        let bad = |e| Failure::bad_input(format!("--costs: {name}: {e}"));
        let text = terrace_core::read_text(path).map_err(bad)?;
        Costs::parse(&name, &text).map_err(Failure::bad_input)
    }

    /// What is played, and what people call it.
    fn program(&self, input: &Input) -> Result<(What, String), Failure> {
        if let Some(shape) = self.shape {
            return Ok((What::Shape(shape), shape.name().to_owned()));
        }
        if let Some((path, Format::Terrace)) = input.trace()
            && is_calls(path)
        {
            let (recording, cut) = read_calls(path, input.is_partial())?;
            let name = recording.program.join(" ");
            return Ok((What::Calls(recording, cut), name));
        }
        let repeatable = input.repeatable(SEED)?;
        let (source, _) = repeatable.open().map_err(failure)?;
        let name = source.describe();
        Ok((What::Trace(repeatable), name))
    }

    pub(super) fn execute(
        &self,
        strategy: Strategy,
        around: &Around<'_>,
        record: impl FnOnce(String, &KernelConfig) -> Result<Option<SharedFile>, Failure>,
        json: bool,
    ) -> Result<ExitCode, Failure> {
        if around.fast.is_some() && matches!(strategy, Strategy::AllFast | Strategy::AllSlow) {
            let what = format!("--fast: has no effect with --kernel {strategy}");
            return Err(Failure::bad_input(what));
        }
        let mut machine = machines::load(around.machine).map_err(Failure::bad_input)?;
        let scale = if self.shape.is_some() { SCALE } else { 1 };
        for tier in &mut machine.tiers {
            tier.capacity.value = Bytes(tier.capacity.value.get() / scale);
        }
        if let Some(fast) = around.fast {
            machine.tiers[0].capacity.value = fast;
        }
        machines::refuse_too_large(&machine, around.fast).map_err(failure)?;
        if strategy == Strategy::AllFast {
            let all = machine.tiers.iter().map(|tier| tier.capacity.value).sum();
            machine.tiers[0].capacity.value = all;
        }
        let detail = match (machine.detail.is_some(), self.shape) {
            // Data are scaled down, caches cannot be.
            (true, None) => Detail::Caches,
            _ => Detail::Placement,
        };
        let config = KernelConfig {
            costs: self.costs()?.scaled(scale),
            detail,
            scale,
            economist: around.economist,
            tells_ahead: strategy == Strategy::KlocsPrefetch,
            ..KernelConfig::new(machine)
        };
        let (program, name) = self.program(around.input)?;
        let out = record(name.clone(), &config)?;
        output::remove_when_interrupted();
        let bar = Progress::new().bar(strategy.name());
        let ran = run(program, strategy, &config, out.as_ref());
        bar.finish();
        if let Some(file) = &out {
            finish(file)?;
        }
        let ran = ran?;
        let document = Document {
            program: &name,
            machine: &config.machine.name,
            strategy: strategy.name(),
            caches: detail == Detail::Caches,
            accesses: ran.accesses,
            report: &ran.report,
            accounts: &ran.accounts,
            cut: ran.cut.as_deref(),
        };
        let text = if json {
            output::json("terrace.sim.kernel", &document)?
        } else {
            render(&document, &config)
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A recording of calls begins as a zstd frame does. A foreign trace that was packed is named as
/// one.
fn is_calls(path: &Path) -> bool {
    let mut begin = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && recorded::is_meant(&begin)
}

/// Reads it; with `partial` as far as it goes, and why no further.
fn read_calls(path: &Path, partial: bool) -> Result<(Recording, Option<String>), Failure> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|e| Failure::bad_input(format!("{name}: {e}")))?;
    match recorded::read(&name, BufReader::new(file)) {
        Ok(recording) => Ok((recording, None)),
        Err(error) if error.readable.calls.is_empty() => Err(Failure::bad_input(error)),
        Err(error) if partial => {
            output::warn(format_args!("only a part was used: {error}"));
            let cut = error.to_string();
            Ok((*error.readable, Some(cut)))
        }
        Err(error) => {
            Err(Failure::bad_input(format!("{error} (--partial uses what comes before)")))
        }
    }
}

/// Runs it.
fn run(
    program: What,
    strategy: Strategy,
    config: &KernelConfig,
    out: Option<&SharedFile>,
) -> Result<Ran, Failure> {
    let (mut config, scale) = (config.clone(), config.scale);
    let build = |threads: usize| strategy.build(&StrategyConfig::new(threads, scale));
    match program {
        What::Shape(shape) => {
            let shapes = Shapes::builtin();
            let data = Bytes(shapes.data.large.value.get() / scale);
            let (operations, seed) = (OPERATIONS, SEED);
            let amount = Amount { data, scale, operations, seed };
            let mut calls = shape.calls(&shapes, &amount);
            let threads = calls.threads();
            let mut kernel = Kernel::new(&config, build(threads), threads, calls.pages())
                .map_err(Failure::bad_input)?;
            listen(&mut kernel, out);
            let report = kernel.run(calls.as_mut()).map_err(Failure::failed)?;
            Ok(Ran::new(&mut kernel, report))
        }
        What::Calls(recording, cut) => {
            leave_room_for(&mut config.machine, memory_of_calls(&recording));
            let threads = recording.threads.max(1) as usize;
            let mut kernel =
                Kernel::new(&config, build(threads), threads, 0).map_err(Failure::bad_input)?;
            listen(&mut kernel, out);
            for (number, file) in recording.files.iter().enumerate().filter(|(_, f)| f.existed) {
                kernel.put_on_disk(number as u32, file.bytes).map_err(Failure::bad_input)?;
            }
            let mut calls = Replay::new(&recording, "recorded calls");
            let report = kernel.run(&mut calls).map_err(Failure::bad_input)?;
            Ok(Ran { cut, ..Ran::new(&mut kernel, report) })
        }
        What::Trace(repeatable) => {
            let survey = {
                let (mut source, _) = repeatable.open().map_err(failure)?;
                Survey::of(source.as_mut()).map_err(failure)?
            };
            if survey.accesses == 0 && survey.calls == 0 {
                return Err(Failure::bad_input("nothing to simulate: there is no access"));
            }
            let accesses = survey.accesses;
            leave_room_for(&mut config.machine, survey.memory());
            let mut kernel =
                survey.kernel(&config, build(survey.threads())).map_err(Failure::bad_input)?;
            listen(&mut kernel, out);
            let (mut source, _) = repeatable.open().map_err(failure)?;
            let report = play(&mut kernel, &config, source.as_mut(), survey);
            let report = report.map_err(|error| match error {
                PlayError::Trace(error) => failure(error),
                PlayError::Refused(refused) => Failure::bad_input(refused),
            })?;
            let name = source.describe();
            tell(&name, source.summary().as_ref());
            drop(source);
            Ok(Ran { accesses, cut: told(repeatable.cut()), ..Ran::new(&mut kernel, report) })
        }
    }
}

/// Has a kernel's decisions written, and what is needed to explain those about contexts.
fn listen(kernel: &mut Kernel, out: Option<&SharedFile>) {
    let Some(file) = out else { return };
    let book = ContextBook { file: Arc::clone(file), pages: HashMap::new(), told: HashMap::new() };
    let book = Arc::new(Mutex::new(book));
    let other = Arc::clone(&book);
    kernel.record(Some(Box::new(move |event| {
        if let EventRef::Context { event } = event {
            book.lock().unwrap_or_else(PoisonError::into_inner).happened(event);
        }
    })));
    kernel.record_decisions(Some(Box::new(move |decisions| {
        other.lock().unwrap_or_else(PoisonError::into_inner).decided(decisions);
    })));
}

/// Whose pages are whose while a run is recorded.
struct ContextBook {
    file: SharedFile,
    /// The context of pages of the kernel that are one object.
    pages: HashMap<PageRef, ContextId>,
    /// Whose each was said to be last.
    told: HashMap<PageRef, ContextId>,
}

impl ContextBook {
    /// Members come and go too often to be written each; whose a page is, is written when
    /// something is decided about it.
    fn happened(&mut self, event: &ContextEvent) {
        match event.change {
            ContextChange::Added { kind, page, .. } => {
                if kind.is_page() && kind != ObjectKind::BlkMqRequest {
                    self.pages.insert(page, event.context);
                }
            }
            ContextChange::Removed { .. }
            | ContextChange::Accessed
            | ContextChange::Ahead { .. } => {}
            _ => {
                let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
                file.write(&Record::Context { event: *event });
            }
        }
    }

    fn decided(&mut self, decisions: &[Decision]) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        for decision in decisions {
            if let Some(page) = decision.action.page()
                && let Some(&context) = self.pages.get(&page)
                && self.told.insert(page, context) != Some(context)
            {
                file.write(&Record::PageOf { page, context });
            }
            file.write(&Record::Decision { process: ONLY, decision: Box::new(*decision) });
        }
    }
}

fn render(document: &Document<'_>, config: &KernelConfig) -> String {
    let Document { report, .. } = document;
    let counts = &report.all;
    let mut text = format!(
        "{} on {}, a simulated kernel, strategy {}\n",
        document.program, document.machine, document.strategy
    );
    let how = if document.caches {
        "line by line through the caches"
    } else {
        "by page: the machine file has no part `detail`, or data are scaled down"
    };
    let calls = format!(
        "{} of the kernel, {} steps in all",
        count(report.kernel_calls),
        count(report.calls)
    );
    let time = Nanos::from_f64(report.nanos);
    let mut rows = vec![
        ("calls", calls),
        ("memory", how.to_owned()),
        ("simulated", format!("{time} until the last operation was done")),
        (
            "page cache",
            format!(
                "{} found, {} not, {} read ahead, {} reclaimed, {} written back",
                count(counts.cache_hits),
                count(counts.cache_misses),
                count(counts.read_ahead),
                count(counts.reclaimed),
                count(counts.written_back)
            ),
        ),
        ("policy", format!("{} of state", report.policy_bytes)),
    ];
    if document.accesses > 0 {
        rows.insert(0, ("accesses", count(document.accesses)));
    }
    let mode = config.economist.name();
    let lines = super::render::lines(document.accounts);
    rows.extend(advice(mode, &lines));
    text.push_str(&facts("  ", &rows));
    text.push('\n');
    let tiers = &config.machine.tiers;
    let rows: Vec<_> = Class::ALL
        .into_iter()
        .map(|class| {
            let of = counts.class(class);
            let missed: u64 = of.misses.iter().sum();
            let in_fast = of.misses[0];
            [
                class.name().to_owned(),
                count(of.pages()),
                count(of.placed[0]),
                count(of.references),
                count(missed),
                count(in_fast),
                count(of.demoted),
                count(of.promoted),
            ]
        })
        .collect();
    let fast = &tiers[0].name;
    text.push_str(&table(
        ["pages of", "placed", fast, "lines", "missed", fast, "down", "up"],
        &rows,
    ));
    super::render::of_economist(mode, &lines, &mut text);
    text
}
