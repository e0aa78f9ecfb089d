//! What the exact engine runs: a trace, an algorithm, or a program as it runs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tempfile::TempPath;
use terrace_core::Bytes;
use terrace_sim::SimError;
use terrace_sim::exact::{ExactConfig, Source};
use terrace_sim::trace::partial::Cut;
use terrace_sim::trace::{Format, Summary, TraceReader, import};
use terrace_sim::workload::catalog::{ProgramName, ProgramSpec};

use super::exact::{SEED, Shared};
use super::recorder::{self, Recording, Via};
use crate::args::one_of;
use crate::failure::Failure;
use crate::output::{self, Files};

const FORMATS: &[Format] = &Format::ALL;
const ALGORITHMS: &[ProgramName] = &ProgramName::ALL;

/// What to simulate access by access.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Single accesses")]
pub(crate) struct Input {
    /// A recorded program.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["program", "algorithm"])]
    trace: Option<PathBuf>,

    /// Use what can be read of a trace that is cut off or damaged.
    #[arg(long, requires = "trace")]
    partial: bool,

    /// The trace's format; without it the file's name decides.
    #[arg(long, value_name = "FORMAT", value_parser = one_of(FORMATS, Format::name))]
    format: Option<Format>,

    /// An algorithm that comes with Terrace, its accesses observed one by one.
    #[arg(long, value_name = "NAME", conflicts_with = "program",
          value_parser = one_of(ALGORITHMS, |name| name.name()))]
    algorithm: Option<ProgramName>,

    /// About how much memory the algorithm uses.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    size: Bytes,

    /// Accesses of the algorithm after its initialisation, of all cores together.
    #[arg(long, value_name = "COUNT", default_value_t = 20_000_000)]
    accesses: u64,

    /// A parameter of the algorithm (hot, hot-percent); may be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,

    /// Cores in use: threads of a program run on them by their number, an
    /// algorithm's work is divided over them.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    cores: usize,

    /// Accesses before anything is measured; for an algorithm its
    /// initialisation if not given.
    #[arg(long, value_name = "COUNT")]
    skip: Option<u64>,

    /// Accesses between two samples of a policy that samples.
    #[arg(long, value_name = "COUNT")]
    sample_period: Option<u64>,

    /// What records a program that is given.
    #[arg(long, value_name = "TOOL")]
    via: Option<Via>,

    /// Run this program, and simulate it as it runs.
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// A source, how many of its accesses come before what is measured, and what
/// has to be ended when it was read.
pub(crate) struct Opened {
    source: Option<Box<dyn Source>>,
    pub(crate) skip: u64,
    recording: Option<Recording>,
    cut: Option<Cut>,
}

impl Opened {
    pub(crate) fn source(&mut self) -> Option<&mut dyn Source> {
        match (&mut self.source, &mut self.recording) {
            (Some(source), _) => Some(source.as_mut()),
            (None, Some(recording)) => Some(recording.source.as_mut()),
            (None, None) => None,
        }
    }

    /// Waits for a program that ran; says why a trace was not read to its end.
    pub(crate) fn end(self) -> Result<Option<String>, Failure> {
        drop(self.source);
        if let Some(recording) = self.recording {
            recording.end()?;
        }
        Ok(told(self.cut.as_ref()))
    }
}

/// An input that can be read again and again.
pub(crate) enum Repeatable {
    /// A file; where it is read as far as it goes, why that is not to its end.
    Trace(PathBuf, Format, u64, Option<Cut>),
    /// A recording that goes away with us, and its length.
    Recorded { path: TempPath, name: String, skip: u64, accesses: u64 },
    /// An algorithm.
    Algorithm(ProgramSpec, Option<u64>),
}

impl Input {
    /// Whether it was said how often policies are told of accesses.
    pub(crate) fn samples(&self) -> bool {
        self.sample_period.is_some()
    }

    /// Whether anything of this kind was asked for.
    pub(crate) fn is_wanted(&self) -> bool {
        self.trace.is_some() || self.algorithm.is_some() || !self.program.is_empty()
    }

    /// Cores in use.
    pub(crate) fn cores(&self) -> usize {
        self.cores
    }

    /// Whether it is what a program did, and not an algorithm of ours.
    pub(crate) fn is_recorded(&self) -> bool {
        self.trace.is_some() || !self.program.is_empty()
    }

    /// The trace that is read, and its format.
    pub(crate) fn trace(&self) -> Option<(&Path, Format)> {
        let path = self.trace.as_deref()?;
        Some((path, self.format.unwrap_or_else(|| Format::of(path))))
    }

    /// Whether a trace is read as far as it goes.
    pub(crate) fn is_partial(&self) -> bool {
        self.partial
    }

    /// Names the files that it reads.
    pub(crate) fn names(&self, files: &mut Files) {
        if let Some(trace) = &self.trace {
            files.reads("--trace", trace);
        }
        if !self.program.is_empty() {
            // Why it cannot be run is told when it is to be.
            let _ = recorder::names(files, &self.program);
        }
    }

    /// The configuration of a simulation on a machine.
    pub(crate) fn config(&self, shared: &Shared<'_>) -> Result<ExactConfig, Failure> {
        let machine = terrace_sim::machines::load(shared.machine).map_err(Failure::bad_input)?;
        let mut config = ExactConfig::new(machine, shared.policy);
        config.economist = shared.economist;
        config.page_size = shared.page_size;
        config.seed = shared.seed.unwrap_or(SEED);
        // An algorithm is set up for as many before the machine is.
        let most = config.machine.cpu.cores.value;
        if self.cores == 0 || self.cores > most as usize {
            let name = &config.machine.name;
            let what = format!("--cores: must be 1 to {most}, the cores of `{name}`");
            return Err(Failure::bad_input(what));
        }
        config.cores = self.cores;
        if let Some(period) = self.sample_period {
            if period == 0 {
                return Err(Failure::bad_input("--sample-period: must be above zero"));
            }
            config.sampler.period = period;
        }
        Ok(config)
    }

    fn spec(&self, name: ProgramName, seed: u64) -> Result<ProgramSpec, Failure> {
        if self.size < Bytes::mib(1) {
            return Err(Failure::bad_input("--size: must be at least 1 MiB"));
        }
        let mut spec = ProgramSpec::new(name, self.size, self.accesses);
        spec.seed = seed;
        spec.threads = self.cores;
        for text in &self.set {
            let (name, value) = text.split_once('=').ok_or_else(|| {
                Failure::bad_input(format!("--set: `{text}` is not of the form name=value"))
            })?;
            if ProgramSpec::OF_HOT_SET.contains(&name) && !spec.name.has_hot_set() {
                let what =
                    format!("--set: {name}: has no effect on {}, which has no hot set", spec.name);
                return Err(Failure::bad_input(what));
            }
            spec.set(name, value).map_err(|e| Failure::bad_input(format!("--set: {e}")))?;
        }
        spec.check().map_err(failure)?;
        Ok(spec)
    }

    /// Opens it to be read once.
    pub(crate) fn open(&self, seed: u64) -> Result<Opened, Failure> {
        if self.program.is_empty() {
            let repeatable = self.repeatable(seed)?;
            let (source, skip) = repeatable.open().map_err(failure)?;
            let cut = repeatable.cut().cloned();
            return Ok(Opened { source: Some(source), skip, recording: None, cut });
        }
        let recording = recorder::start(&self.program, self.via)?;
        let skip = self.skip.unwrap_or(0);
        Ok(Opened { source: None, skip, recording: Some(recording), cut: None })
    }

    /// Makes it readable again and again; a program is recorded for that.
    pub(crate) fn repeatable(&self, seed: u64) -> Result<Repeatable, Failure> {
        let skip = self.skip.unwrap_or(0);
        if let Some(path) = &self.trace {
            let format = self.format.unwrap_or_else(|| Format::of(path));
            let cut = self.partial.then(Cut::default);
            return Ok(Repeatable::Trace(path.clone(), format, skip, cut));
        }
        if let Some(name) = self.algorithm {
            return Ok(Repeatable::Algorithm(self.spec(name, seed)?, self.skip));
        }
        if self.program.is_empty() {
            let what = "nothing to simulate: give --trace, --algorithm or -- PROGRAM";
            return Err(Failure::bad_input(what));
        }
        let (path, name, accesses) = record(&self.program, self.via)?;
        Ok(Repeatable::Recorded { path, name, skip, accesses })
    }
}

/// What an error of a simulation means. Of a trace that is damaged behind its beginning a part can
/// be used; a parameter is called as its option is.
pub(crate) fn failure(error: SimError) -> Failure {
    match &error {
        SimError::Trace(trace) if trace.readable > 0 => {
            Failure::bad_input(format!("{error} (--partial uses what comes before)"))
        }
        SimError::Parameter { parameter, message } => {
            Failure::bad_input(format!("{}: {message}", option_of(parameter)))
        }
        _ => Failure::bad_input(error),
    }
}

/// The option that gives a parameter of a simulation; the parameter itself where none does.
fn option_of(parameter: &str) -> &str {
    match parameter {
        "accesses" => "--accesses",
        "budget" => "--budget",
        "cores" => "--cores",
        "fast" => "--fast",
        // Of an algorithm.
        "hot" => "--set: hot",
        "hot-percent" => "--set: hot-percent",
        "hot percent" => "--hot-percent",
        "hot set" => "--hot",
        "machine" => "--machine",
        "price" => "--price",
        "scale" => "--scale",
        "size" => "--size",
        "slowdown" => "--slowdown",
        "threads" => "--threads",
        "tier" => "--tier",
        "working set" => "--working-set",
        other => other,
    }
}

impl Repeatable {
    /// Why it was not read to its end, if it was not.
    pub(crate) fn cut(&self) -> Option<&Cut> {
        match self {
            Self::Trace(.., cut) => cut.as_ref(),
            _ => None,
        }
    }

    /// How many accesses it has, where that is known before it is read.
    pub(crate) fn accesses(&self) -> Option<u64> {
        match self {
            // What is wrong with it is told when it is opened.
            Self::Trace(path, Format::Terrace, _, None) => {
                path.is_file().then(|| TraceReader::open(path).ok()?.survey().ok()).flatten()
            }
            Self::Trace(..) => None,
            Self::Recorded { accesses, .. } => Some(*accesses),
            Self::Algorithm(spec, _) => Some(spec.build().ok()?.initial() + spec.accesses),
        }
    }

    /// Opens it once more: the source, and how much of it comes before what is measured.
    pub(crate) fn open(&self) -> Result<(Box<dyn Source>, u64), SimError> {
        match self {
            Self::Trace(path, format, skip, None) => Ok((import::open(path, *format)?, *skip)),
            Self::Trace(path, format, skip, Some(cut)) => {
                Ok((import::open_partial(path, *format, cut.clone())?, *skip))
            }
            Self::Recorded { path, name, skip, .. } => {
                let source = import::open(path, Format::Terrace)?;
                Ok((Box::new(Named(source, name.clone())), *skip))
            }
            Self::Algorithm(spec, skip) => {
                let program = spec.build()?;
                let skip = skip.unwrap_or(program.initial());
                Ok((Box::new(program), skip))
            }
        }
    }
}

/// Says on stderr that a trace was not read to its end, and returns why.
pub(crate) fn told(cut: Option<&Cut>) -> Option<String> {
    let why = cut?.get()?.clone();
    output::warn(format_args!("only a part was used: {why}"));
    Some(why)
}

/// Says on stderr what of a trace was skipped, dropped or folded.
pub(crate) fn tell(name: &str, summary: Option<&Summary>) {
    if let Some(line) = summary.and_then(Summary::line) {
        output::say(format_args!("{name}: {line}"));
    }
}

/// The same of accesses alone, for whoever does nothing with calls for I/O.
pub(crate) fn tell_accesses(name: &str, summary: Option<&Summary>) {
    if let Some(line) = summary.and_then(Summary::line_of_accesses) {
        output::say(format_args!("{name}: {line}"));
    }
}

/// Says on stderr that a trace has calls that this engine does not make.
pub(crate) fn tell_calls(name: &str, summary: Option<&Summary>) {
    if let Some(calls) = summary.map(|summary| summary.calls).filter(|&calls| calls > 0) {
        let calls = output::count(calls);
        output::say(format_args!(
            "{name}: {calls} calls for I/O are passed over; `terrace sim --kernel` makes them"
        ));
    }
}

/// A source under another name.
struct Named(Box<dyn Source>, String);

impl Source for Named {
    fn describe(&self) -> String {
        self.1.clone()
    }
    fn has_long_turns(&self) -> bool {
        self.0.has_long_turns()
    }
    fn summary(&self) -> Option<Summary> {
        self.0.summary()
    }
    fn next(&mut self, batch: &mut terrace_sim::exact::Batch) -> Result<bool, SimError> {
        self.0.next(batch)
    }
}

/// Records a program into a file that goes away with its path.
fn record(program: &[OsString], via: Option<Via>) -> Result<(TempPath, String, u64), Failure> {
    use std::io::BufWriter;
    use terrace_sim::exact::Batch;
    use terrace_sim::trace::{TraceHeader, TraceWriter};

    let bad = |e: std::io::Error| Failure::failed(format!("cannot record the program: {e}"));
    let mut recording = recorder::start(program, via)?;
    let names: Vec<_> = program.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let (file, path) = tempfile::NamedTempFile::new().map_err(bad)?.into_parts();
    let header = TraceHeader {
        program: names.clone(),
        recorder: format!("terrace {}", env!("CARGO_PKG_VERSION")),
        fetches: false,
    };
    let mut writer = TraceWriter::new(BufWriter::new(file), &header).map_err(bad)?;
    let mut batch = Batch::default();
    while recording.source.next(&mut batch).map_err(Failure::failed)? {
        writer.write(&batch).map_err(bad)?;
    }
    let summary = recording.source.summary();
    recording.end()?;
    let accesses = writer.accesses();
    writer.finish().map_err(bad)?;
    tell(&names.join(" "), summary.as_ref());
    if accesses == 0 {
        let name = Path::new(&program[0]).display();
        return Err(Failure::failed(format!("{name}: nothing was recorded")));
    }
    Ok((path, names.join(" "), accesses))
}
