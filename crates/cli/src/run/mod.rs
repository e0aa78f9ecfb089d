//! `terrace run`: runs a program with a part of its memory in DRAM and the
//! rest compressed.
//!
//! | file | concept |
//! |---|---|
//! | [`program`] | finds the program, and says why it could not be managed |
//! | [`library`] | finds the library that is loaded into it |
//! | [`child`] | starts it, hands signals on, waits |
//! | [`recorder`] | reads its statistics pages, writes its decisions down |
//! | [`across`] | several memories instead of compression |
//! | [`render`] | what the run used, did and cost |
//! | [`spill`] | what `--spill` names |
//! | [`watch`](mod@watch) | the counters again and again |

mod across;
mod child;
mod library;
mod program;
mod recorder;
pub(crate) mod render;
mod spill;
mod watch;

use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use terrace_core::{Bytes, Compressing, LadderFile, LadderTier, Nanos};
use terrace_economics::Mode;
use terrace_live::activate;
use terrace_live::broker::{self, keeper::Broker, page::Summary};
use terrace_live::config::{self, Counted, RunConfig};
use terrace_live::doctor::Facts;
use terrace_live::probe::UffdProbe;
use terrace_live::quiet::Keeper;
use terrace_policy::PolicyName;
use terrace_report::{End, Head, RunReport, SharedReport, Usage};

use self::child::{Running, Watch, exit_code};
use self::program::Program;
use self::recorder::Recorder;
pub(crate) use self::render::render;
use self::spill::SpillFile;
use self::watch::{MIN_WATCH, Watcher};
use crate::args::{economist, mode_name, one_of};
use crate::broker::{Joined, start_broker};
use crate::failure::Failure;
use crate::metrics::{self, Listen, Server, SocketFile};
use crate::output;
use crate::procs::{self, Stat};
use crate::records::{Header, LiveFacts, MachineFacts, World};
use crate::runs::{LiveRun, Manifest, RunDirectory};

/// Run a program with at most so much of its memory in DRAM.
///
/// Large anonymous mappings and large allocations of the program are managed:
/// the part that does not fit the budget is held compressed. The program's own
/// exit status passes through. SIGUSR1 prints the report while it runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace run --fast 256MiB -- sort -S 1G big.txt")]
pub(crate) struct Args {
    /// DRAM that managed memory of all the program's processes together may use,
    /// at least 1MiB. They share it by need; `terrace set` changes it.
    #[arg(long, value_name = "SIZE", required_unless_present_any = ["join", "tiers", "total"])]
    fast: Option<Bytes>,

    /// DRAM for the same and for what is compressed of it: how much is which follows
    /// from how well it compresses, and pages are packed as tightly as pays.
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["fast", "join", "slow"])]
    total: Option<Bytes>,

    /// All tiers from a ladder file instead: DRAM, compressed RAM and a file, or several
    /// memories as with `--slow`.
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["fast", "total", "join", "slow", "spill", "spill_size", "store_limit"])]
    tiers: Option<PathBuf>,

    /// Share the budget of another `terrace run`, or of a `terrace broker`: the
    /// number of a process, or the program's name; or `cgroup` for the broker of the
    /// control group that this is in.
    #[arg(long, value_name = "PID|NAME|cgroup", conflicts_with_all = ["fast", "slow"])]
    join: Option<String>,

    /// Instead of compressing it, let the rest lie in a slower memory: `numa:N`,
    /// or `swap`; several, faster ones first. Nothing is loaded into the
    /// program, all its processes together have `--fast`, and pages stay mapped.
    #[arg(long, value_name = "TIER",
          conflicts_with_all = ["spill", "watch", "metrics", "report_html", "best_effort"])]
    slow: Vec<LadderTier>,

    /// Which policy decides what stays in DRAM.
    #[arg(long, value_name = "NAME", default_value = "2q",
          value_parser = one_of(&PolicyName::LIVE, PolicyName::name))]
    policy: PolicyName,

    /// What the economist does: nothing, price and record, or also refuse what does not pay.
    #[arg(long, value_name = "MODE", default_value = "enforce", value_parser = economist())]
    economist: Mode,

    /// File that takes compressed pages beyond `--store-limit`, the oldest first; each
    /// process makes its own, which has no name any more and goes with it. With `dax:` in
    /// front it is mapped and used as memory, for file systems mounted with `-o dax`.
    #[arg(long, value_name = "[dax:]FILE")]
    spill: Option<SpillFile>,

    /// How large the file may be.
    #[arg(long, value_name = "SIZE", requires = "spill", default_value = "64GiB")]
    spill_size: Bytes,

    /// RAM that compressed pages may use before they go to the spill file; as much
    /// as the process has of `--fast` if this is not given.
    #[arg(long, value_name = "SIZE", requires = "spill")]
    store_limit: Option<Bytes>,

    /// Anonymous mappings of at least this size are managed.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    min_region: Bytes,

    /// Whether memory that the program walks into may be backed by huge pages, as
    /// far as that pays.
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "never"])]
    huge_pages: String,

    /// Write the report to a file instead of stderr.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Write every decision to a file, for `terrace why`.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Print the counters again and again, as JSON lines on stderr: every
    /// second, or at another interval.
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, require_equals = true,
          default_missing_value = "1s")]
    watch: Option<Nanos>,

    /// Write what --watch prints to a file instead.
    #[arg(long, value_name = "FILE", requires = "watch")]
    watch_to: Option<PathBuf>,

    /// Serve the figures as OpenMetrics while the program runs: at PORT (on the
    /// loopback address), ADDRESS:PORT, or unix:PATH.
    #[arg(long, value_name = "WHERE")]
    metrics: Option<Listen>,

    /// Draw the run as an HTML page when the program has ended.
    #[arg(long, value_name = "FILE")]
    report_html: Option<PathBuf>,

    /// Where memory cannot be managed, run the program unmanaged instead of failing.
    #[arg(long)]
    best_effort: bool,

    /// Print neither a report nor warnings.
    #[arg(long, short)]
    quiet: bool,

    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true,
          value_name = "PROGRAM", value_hint = clap::ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// How often figures are recorded at first.
const MOMENT: Duration = Duration::from_millis(100);
/// Into how many moments the time that has passed is divided afterwards.
const MOMENTS: u32 = 400;

/// How often decisions are drained while few are taken.
const DRAIN: Duration = Duration::from_millis(100);
/// How often they are drained while so many are taken that the ring would
/// come around before long.
const DRAIN_FAST: Duration = Duration::from_millis(2);

impl Args {
    pub(crate) fn execute(mut self, json: bool) -> Result<ExitCode, Failure> {
        match self.ladder()? {
            Some(LadderFile::InPlace(_)) => {
                self.refuse_what_needs_the_library()?;
                let program = Program::locate(&self.program[0]).map_err(Failure::bad_input)?;
                return across::run(&self, &program, json);
            }
            Some(LadderFile::Compressing(ladder)) => self.take(&ladder)?,
            None => {}
        }
        let joined = self.join.as_deref().map(crate::broker::Joined::find).transpose()?;
        if self.fast() < RunConfig::MIN_FAST && joined.is_none() {
            let option = if self.total.is_some() { "--total" } else { "--fast" };
            let what = format!("{option}: the budget must be at least {}", RunConfig::MIN_FAST);
            return Err(Failure::bad_input(what));
        }
        if !self.slow.is_empty() {
            let program = Program::locate(&self.program[0]).map_err(Failure::bad_input)?;
            return across::run(&self, &program, json);
        }
        if let Some(spill) = &self.spill {
            spill.check()?;
        }
        let program = Program::resolve(&self.program[0]).map_err(Failure::bad_input)?;
        match UffdProbe::run().usable() {
            Ok(()) => self.run_managed(&program, joined, json),
            Err(why) if self.best_effort => {
                if !self.quiet {
                    eprintln!("terrace: warning: running unmanaged: {why}");
                }
                self.run_unmanaged(&program, why, json)
            }
            Err(why) => Err(Failure::unsupported(format!(
                "memory cannot be managed here: {why} (`terrace doctor` says more; \
                 --best-effort runs the program unmanaged)"
            ))),
        }
    }

    /// What `--tiers` names.
    fn ladder(&self) -> Result<Option<LadderFile>, Failure> {
        let Some(path) = &self.tiers else { return Ok(None) };
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|e| Failure::bad_input(format!("--tiers: {name}: {e}")))?;
        LadderFile::parse(&name, &text).map(Some).map_err(Failure::bad_input)
    }

    /// Goes on as if the options had said so.
    fn take(&mut self, ladder: &Compressing) -> Result<(), Failure> {
        if ladder.dram < RunConfig::MIN_FAST {
            let name = self.tiers.as_deref().unwrap_or(Path::new("")).display().to_string();
            let least = RunConfig::MIN_FAST;
            let what = format!("{name}: field `tier[0].capacity`: must be at least {least}");
            return Err(Failure::bad_input(what));
        }
        self.fast = Some(ladder.dram);
        self.store_limit = ladder.store;
        self.spill = ladder.spill.as_ref().map(SpillFile::from);
        if let Some(size) = ladder.spill.as_ref().and_then(|spill| spill.size) {
            self.spill_size = size;
        }
        Ok(())
    }

    /// What the parser refuses beside `--slow`, for a file that says the same.
    fn refuse_what_needs_the_library(&self) -> Result<(), Failure> {
        let given = [
            (self.watch.is_some(), "--watch"),
            (self.metrics.is_some(), "--metrics"),
            (self.report_html.is_some(), "--report-html"),
            (self.best_effort, "--best-effort"),
        ];
        match given.into_iter().find(|(given, _)| *given) {
            None => Ok(()),
            Some((_, option)) => Err(Failure::bad_input(format!(
                "{option}: not where pages stay mapped, as in the memories that --tiers names"
            ))),
        }
    }

    fn run_managed(
        &self,
        program: &Program,
        joined: Option<Joined>,
        json: bool,
    ) -> Result<ExitCode, Failure> {
        let fast = joined.as_ref().map_or(self.fast(), |joined| joined.budget);
        let library = library::find()?;
        let plain_fault = procs::plain_fault();
        let holds_store = self.total.is_some() || joined.as_ref().is_some_and(|j| j.holds_store);
        let mut manifest = Manifest::new(
            self.shown(),
            self.policy.name(),
            mode_name(self.economist),
            fast,
            plain_fault,
            self.tiers(),
            self.record.as_deref().map(absolute),
        );
        manifest.holds_store = holds_store;
        let directory = RunDirectory::create(&manifest)?;
        let _server = self.serve_metrics(&directory)?;
        let _keeper = Keeper::start(directory.path());
        let broker = match joined {
            Some(joined) => Divided::Elsewhere(joined),
            None => Divided::Here(start_broker(directory.path(), fast)?),
        };
        let mut config = self.config(directory.path(), fast);
        config.broker = Some(broker.page(directory.path()));
        if holds_store {
            config.counted = Counted::Total;
        }
        let mut command = self.command(program);
        command.env(config::VARIABLE, config.encode());
        command.env("LD_PRELOAD", library::preload_list(&library, std::env::var_os("LD_PRELOAD")));
        let report_to = self.open_report()?;
        let recorder = Recorder::new(directory.path(), self.open_record(&config, plain_fault)?)?;
        let watch = self.open_watch()?;
        let page = self.report_html.as_deref().map(|path| create("--report-html", path));
        let mut page = page.transpose()?;

        let mut run = Run {
            args: self,
            json,
            started: Instant::now(),
            unmanaged: None,
            recorder,
            plain_fault,
            watch,
            next_moment: Duration::ZERO,
            budget: fast,
            holds_store,
            broker: Some(broker),
        };
        let running = Running::start(&mut command).map_err(|e| not_started(program, &e))?;
        let (end, elapsed) = running
            .wait(&mut run)
            .map_err(|e| Failure::failed(format!("waiting for the program: {e}")))?;
        let complete = run.finish_recording(end, elapsed);
        run.publish(report_to, end, elapsed)?;
        if let Some((page, recording)) = page.as_mut().zip(self.recording(directory.path())) {
            crate::report::draw(&recording, page)?;
        }
        // A recording that is incomplete must not look complete; but the
        // program's own failure is worth more than ours.
        match complete {
            Err(failure) if end == End::Exited(0) => Err(failure),
            Err(failure) => {
                failure.report();
                Ok(exit_code(end))
            }
            Ok(()) => Ok(exit_code(end)),
        }
    }

    fn run_unmanaged(
        &self,
        program: &Program,
        why: String,
        json: bool,
    ) -> Result<ExitCode, Failure> {
        let report_to = self.open_report()?;
        let recorder = Recorder::none();
        let (watch, plain_fault) = (self.open_watch()?, Nanos::ZERO);
        let mut run = Run {
            args: self,
            json,
            started: Instant::now(),
            unmanaged: Some(why),
            recorder,
            plain_fault,
            watch,
            next_moment: Duration::ZERO,
            budget: self.fast(),
            holds_store: false,
            broker: None,
        };
        let running =
            Running::start(&mut self.command(program)).map_err(|e| not_started(program, &e))?;
        let (end, elapsed) = running
            .wait(&mut run)
            .map_err(|e| Failure::failed(format!("waiting for the program: {e}")))?;
        run.publish(report_to, end, elapsed)?;
        Ok(exit_code(end))
    }

    fn command(&self, program: &Program) -> Command {
        use std::os::unix::process::CommandExt;

        let mut command = Command::new(&program.path);
        // A program may look at the name that it was called by.
        command.arg0(&self.program[0]).args(&self.program[1..]);
        command
    }

    fn fast(&self) -> Bytes {
        self.fast.or(self.total).unwrap_or_default()
    }

    fn config(&self, directory: &Path, fast: Bytes) -> RunConfig {
        let mut config = RunConfig::new(fast, directory.to_owned());
        config.policy = self.policy;
        config.economist = self.economist;
        config.min_region = self.min_region;
        config.store_limit = self.store_limit;
        if let Some(spill) = &self.spill {
            spill.configure(&mut config);
        }
        config.spill_size = self.spill_size;
        config.huge_pages = self.huge_pages == "auto";
        config.record = self.record.is_some();
        config
    }

    /// Opened before the program starts: what cannot be written is known at once.
    fn open_report(&self) -> Result<Option<(PathBuf, File)>, Failure> {
        let Some(path) = &self.report else { return Ok(None) };
        let file = create("--report", path)?;
        Ok(Some((path.clone(), file)))
    }

    fn open_record(
        &self,
        config: &RunConfig,
        plain_fault: Nanos,
    ) -> Result<Option<(PathBuf, Header, BufWriter<File>)>, Failure> {
        let Some(path) = self.recording(&config.dir) else { return Ok(None) };
        let file = create("--record", &path)?;
        let calibration = activate::calibrate();
        let machine = MachineFacts {
            name: Facts::read(Path::new("/")).cpu.model,
            clock: Some(calibration.clock),
            tiers: self.tiers(),
        };
        let header = Header::new(
            World::Live,
            self.shown(),
            config.policy.name().to_owned(),
            config.economist,
            machine,
        );
        let budget = config.fast;
        let header = header.of_live_run(LiveFacts { budget, plain_fault, calibration });
        Ok(Some((path, header, BufWriter::new(file))))
    }

    /// Answers from a thread of its own, like any other reader of the run.
    fn serve_metrics(&self, directory: &RunDirectory) -> Result<Option<SocketFile>, Failure> {
        let Some(listen) = &self.metrics else { return Ok(None) };
        let server = Server::bind(listen)?;
        if !self.quiet {
            eprintln!("terrace: serving metrics at {}", server.address());
        }
        let Some(run) = LiveRun::open(directory.path()) else { return Ok(None) };
        let runs = [run];
        // Not waited for: it ends with us.
        std::thread::spawn(move || server.serve(|| metrics::text(&runs).ok()));
        Ok(SocketFile::of(listen))
    }

    /// Where the run is recorded: for its picture alone, in its own directory.
    fn recording(&self, directory: &Path) -> Option<PathBuf> {
        let for_picture = self.report_html.is_some().then(|| directory.join("recording"));
        self.record.clone().or(for_picture)
    }

    fn open_watch(&self) -> Result<Option<Watcher>, Failure> {
        let Some(interval) = self.watch else { return Ok(None) };
        if interval < MIN_WATCH {
            return Err(Failure::bad_input(format!("--watch: at least {MIN_WATCH}")));
        }
        let to = self.watch_to.as_deref().map(|path| create("--watch-to", path)).transpose()?;
        Ok(Some(Watcher::new(interval, to)))
    }

    /// The tiers' names, fastest first.
    fn tiers(&self) -> Vec<String> {
        let mut tiers = vec!["dram".to_owned(), "compressed".to_owned()];
        tiers.extend(self.spill.iter().map(|spill| spill.tier().to_owned()));
        tiers
    }

    /// The command line as text.
    fn shown(&self) -> Vec<String> {
        self.program.iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
    }
}

/// Who divides the budget of a run.
enum Divided {
    Here(Broker),
    Elsewhere(Joined),
}

impl Divided {
    /// The page that the program's processes find their shares in.
    fn page(&self, directory: &Path) -> PathBuf {
        let directory = match self {
            Self::Here(_) => directory,
            Self::Elsewhere(joined) => &joined.directory,
        };
        directory.join(broker::page::FILE)
    }

    fn summary(&self) -> Option<Summary> {
        match self {
            Self::Here(broker) => Some(broker.summary()),
            Self::Elsewhere(joined) => {
                Summary::read(&joined.directory.join(broker::page::FILE)).ok()
            }
        }
    }
}

/// A run that is under way.
struct Run<'a> {
    args: &'a Args,
    json: bool,
    started: Instant,
    unmanaged: Option<String>,
    recorder: Recorder,
    /// What the first touch of a page takes without us, measured at the start.
    plain_fault: Nanos,
    watch: Option<Watcher>,
    /// When the next moment is recorded.
    next_moment: Duration,
    /// DRAM, as asked for.
    budget: Bytes,
    /// Whether that is for what is compressed, too.
    holds_store: bool,
    /// Who divides it.
    broker: Option<Divided>,
}

impl Run<'_> {
    fn collect(&mut self, end: Option<End>, elapsed: Duration) -> RunReport {
        let shared = self.broker.as_ref().and_then(Divided::summary);
        let head = Head {
            program: self.args.shown(),
            end,
            elapsed: Nanos(elapsed.as_nanos() as u64),
            policy: self.args.policy.name().to_owned(),
            economist: mode_name(self.args.economist).to_owned(),
            budget: shared.map_or(self.budget, |shared| shared.budget),
            shared: shared.map(SharedReport::from),
            holds_store: self.holds_store,
            unmanaged: self.unmanaged.clone(),
        };
        let lost = self.recorder.lost();
        let usage = Usage { cpu: self.cpu(end), plain_fault: self.plain_fault };
        RunReport::collect(head, self.recorder.pages(), &usage, lost)
    }

    fn report_now(&mut self, end: Option<End>, elapsed: Duration) -> Result<String, Failure> {
        let report = self.collect(end, elapsed);
        if self.json { output::json("terrace.run", &report) } else { Ok(render(&report)) }
    }

    /// Processor time of the program's processes: of those that have been
    /// waited for when it has ended, of those that run while it runs.
    fn cpu(&mut self, end: Option<End>) -> Nanos {
        if end.is_some() {
            return Stat::of(std::process::id()).map_or(Nanos::ZERO, |us| us.children_cpu);
        }
        self.recorder.pages().filter_map(|page| Stat::of(page.pid())).map(|stat| stat.cpu).sum()
    }

    /// Writes the figures down, more rarely as the run gets longer: a recording
    /// grows with the logarithm of the time, and its pictures have as many
    /// columns as a screen shows.
    fn record_moment(&mut self) {
        let elapsed = self.started.elapsed();
        if self.recorder.is_recording() && elapsed >= self.next_moment {
            self.next_moment = elapsed + MOMENT.max(elapsed / MOMENTS);
            let report = self.collect(None, elapsed);
            self.recorder.moment(report);
        }
    }

    fn finish_recording(&mut self, end: End, elapsed: Duration) -> Result<(), Failure> {
        self.recorder.drain();
        let report = self.collect(Some(end), elapsed);
        self.recorder.finish(report)
    }

    /// The last report, when the program has ended.
    fn publish(
        &mut self,
        to: Option<(PathBuf, File)>,
        end: End,
        elapsed: Duration,
    ) -> Result<(), Failure> {
        use std::io::Write;

        if let Some(mut watch) = self.watch.take() {
            watch.tell(self.collect(Some(end), elapsed))?;
        }
        let text = self.report_now(Some(end), elapsed)?;
        if let Some((path, mut file)) = to {
            file.write_all(text.as_bytes())
                .map_err(|e| Failure::failed(format!("--report: {}: {e}", path.display())))?;
        } else if !self.args.quiet {
            eprint!("{text}");
        }
        Ok(())
    }
}

impl Watch for Run<'_> {
    fn poll(&mut self) -> Duration {
        let busy = self.recorder.drain();
        self.record_moment();
        let next = if busy | self.recorder.hasten_dying() { DRAIN_FAST } else { DRAIN };
        let Some(mut watch) = self.watch.take() else { return next };
        if watch.is_due() {
            let report = self.collect(None, self.started.elapsed());
            if let Err(failure) = watch.tell(report) {
                // Told once; the program must not suffer for it.
                failure.report();
                return next;
            }
        }
        let due = watch.due_in();
        self.watch = Some(watch);
        next.min(due)
    }

    /// Asked for by SIGUSR1, so printed even under `--quiet`.
    fn report(&mut self) {
        let elapsed = self.started.elapsed();
        match self.report_now(None, elapsed) {
            Ok(text) => eprint!("{text}"),
            Err(failure) => {
                failure.report();
            }
        }
    }
}

fn not_started(program: &Program, error: &std::io::Error) -> Failure {
    let path = program.path.display();
    Failure::failed(format!("program `{path}` could not be started: {error}"))
}

/// Creates a file that an option names.
pub(crate) fn create(option: &str, path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|e| Failure::bad_input(format!("{option}: {}: {e}", path.display())))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
