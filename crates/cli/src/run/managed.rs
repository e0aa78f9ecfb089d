//! A run whose memory is compressed: the library is loaded into the program, and
//! everything that goes on around it meanwhile.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use terrace_live::activate;
use terrace_live::broker::{self, keeper::Broker, page::Summary};
use terrace_live::config::{self, Counted, HugePages, ProfileFrom, RunConfig};
use terrace_live::doctor::facts::Facts;
use terrace_live::evict::quiet_window::{Keeper, QuietWindows};
use terrace_live::stats::process_page::{ProcessPage, State, process_namespace};
use terrace_live::sys;
use terrace_report::run::CoreDumpReport;
use terrace_report::{End, Head, Moment, RunReport, SharedReport, Usage};
use terrace_signals::Environment;

use super::child::{Outcome, Running, Watch, exit_code};
use super::nodes;
use super::outside::OutsideWatch;
use super::program::Program;
use super::recorder::Recorder;
use super::render::render;
use super::warning::Warnings;
use super::{Args, Outputs, absolute, library, not_started};
use crate::advice::{self, Signs};
use crate::args::mode_name;
use crate::attach::Session;
use crate::broker::{Joined, start_broker};
use crate::calibrate::{self, Source};
use crate::failure::Failure;
use crate::metrics;
use crate::observing::{Watcher, next_moment};
use crate::output::{self, Files, Kind, Output, facts};
use crate::procs::{self, Stat};
use crate::profile::applied;
use crate::profile::worth::{self, Worth};
use crate::records::{Header, LiveFacts, MachineFacts, World};
use crate::runs::{Manifest, RunDirectory};

/// How often figures are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How often what is recorded is drained while that is little: a burst may begin at any moment.
const DRAIN: Duration = Duration::from_millis(10);
/// How often they are drained while so many are taken that the ring would
/// come around before long.
const DRAIN_FAST: Duration = Duration::from_millis(2);

/// What a line of `--watch` is.
const LINE: &str = "terrace.watch";

impl Args {
    pub(super) fn run_managed(
        &self,
        program: &Program,
        joined: Option<Joined>,
        json: bool,
    ) -> Result<ExitCode, Failure> {
        let fast = joined.as_ref().map_or(self.fast(), |joined| joined.budget);
        let prices = calibrate::for_run(self.quiet)?;
        // What the machine lacks comes before what the installation does.
        let nodes = nodes::session(self, &prices)?;
        let library = library::find()?;
        let Outputs { report, record, watch, page } = self.open(program)?;
        let plain_fault = procs::plain_fault();
        let holds_store = self.total.is_some() || joined.as_ref().is_some_and(|j| j.holds_store);
        let mut manifest = Manifest::new(
            self.shown(),
            self.policy().name(),
            mode_name(self.economist),
            fast,
            plain_fault,
            self.tiers(),
            record.as_ref().and_then(Output::path).map(absolute),
        );
        manifest.holds_store = holds_store;
        manifest.joined = joined.as_ref().map(|joined| joined.directory.clone());
        let directory = RunDirectory::create(&manifest)?;
        let _socket = match &self.observing.metrics {
            Some(listen) => {
                let nodes = nodes.as_ref().and_then(Session::directory);
                let all: Vec<_> = [Some(directory.path()), nodes].into_iter().flatten().collect();
                metrics::serve(listen, &all, self.quiet)?
            }
            None => None,
        };
        let keeps_windows = self.quiet_windows != Some(QuietWindows::Never);
        let _keeper = keeps_windows.then(|| Keeper::start(directory.path())).flatten();
        let broker = match joined {
            Some(joined) => Divided::Elsewhere(joined),
            None => Divided::Here(start_broker(directory.path(), fast)?),
        };
        let mut config = self.config(directory.path(), fast)?;
        config.measured = prices.measured;
        config.broker = Some(broker.page(directory.path()));
        if holds_store {
            config.counted = Counted::Total;
        }
        let worth = worth_of_profile(&config, plain_fault)?;
        if let Some(worth) = &worth {
            if !worth.at_once {
                config.profile_from = ProfileFrom::Shortage;
            }
            if !self.quiet {
                output::say(format!("--profile: {}", worth.line()));
            }
        }
        let mut command = self.command(program);
        let environment = environment(&library, &config)?;
        let record = self.begin_record(record, &config, plain_fault)?;
        let recorder = Recorder::new(directory.path(), record)?;

        let mut run = Run {
            args: self,
            json,
            started: Instant::now(),
            unmanaged: None,
            costs: Some(prices.source),
            worth,
            recorder,
            plain_fault,
            watch,
            next_moment: Duration::ZERO,
            budget: fast,
            holds_store,
            broker: Some(broker),
            nodes,
            outside: Some(OutsideWatch::new(
                &library,
                directory.path(),
                config.broker.as_deref(),
                fast,
                holds_store,
                config.min_region,
            )),
            warnings: (!self.quiet).then(Warnings::new),
            told_unpublished: false,
            core_dump: None,
        };
        let running =
            Running::start_in(&mut command, &environment).map_err(|e| not_started(program, &e))?;
        let program = running.id();
        run.recorder.program_is(program);
        let Outcome { end, elapsed, dumped_core } = running
            .wait(&mut run)
            .map_err(|e| Failure::failed(format!("waiting for the program: {e}")))?;
        if dumped_core {
            run.core_dump = absent_in_dump(run.recorder.pages(), program);
        }
        run.recorder.program_has_ended(program);
        if let Some(outside) = &mut run.outside {
            outside.complete(&run.recorder.pages().collect::<Vec<_>>());
        }
        let recording = run.finish_recording(end, elapsed);
        let told = run.publish(report, end, elapsed);
        let drawn =
            page.zip(recording).map(|(page, recording)| crate::report::draw(&recording, page));
        // The program's own status is worth more than ours.
        for failure in told.err().into_iter().chain(drawn.and_then(Result::err)) {
            failure.report();
        }
        Ok(exit_code(end))
    }

    pub(super) fn run_unmanaged(
        &self,
        program: &Program,
        why: String,
        json: bool,
    ) -> Result<ExitCode, Failure> {
        let Outputs { report, watch, .. } = self.open(program)?;
        let recorder = Recorder::none();
        let plain_fault = Nanos::ZERO;
        let mut run = Run {
            args: self,
            json,
            started: Instant::now(),
            unmanaged: Some(why),
            costs: None,
            worth: None,
            recorder,
            plain_fault,
            watch,
            next_moment: Duration::ZERO,
            budget: self.fast(),
            holds_store: false,
            broker: None,
            nodes: None,
            outside: None,
            warnings: None,
            told_unpublished: false,
            core_dump: None,
        };
        let running =
            Running::start(&mut self.command(program)).map_err(|e| not_started(program, &e))?;
        let Outcome { end, elapsed, .. } = running
            .wait(&mut run)
            .map_err(|e| Failure::failed(format!("waiting for the program: {e}")))?;
        if let Err(failure) = run.publish(report, end, elapsed) {
            failure.report();
        }
        Ok(exit_code(end))
    }

    fn config(&self, directory: &Path, fast: Bytes) -> Result<RunConfig, Failure> {
        let mut config = RunConfig::new(fast, directory.to_owned());
        config.pid_namespace = process_namespace();
        config.quiet = self.quiet;
        config.policy = self.policy();
        config.economist = self.economist;
        config.min_region = self.min_region;
        config.store_limit = self.store_limit;
        if let Some(spill) = &self.spill {
            spill.configure(&mut config);
        }
        config.spill_size = self.spill_size;
        config.huge_pages = self.huge_pages.unwrap_or(HugePages::Auto);
        if let Some(path) = &self.profile {
            // A copy: what was checked is what is read, by children that start later, too.
            let profile = crate::profile::read(path)?;
            let build_id = self.program.first().and_then(crate::profile::build_id_of);
            let here = applied::Here {
                program: &self.shown(),
                build_id: build_id.as_deref(),
                processor: &Facts::read(Path::new("/")).cpu.model,
            };
            let told = applied::check(path, &profile, &here)?;
            if !self.quiet {
                told.iter().for_each(output::warn);
            }
            let copy = directory.join("profile");
            std::fs::write(&copy, profile.to_text())
                .map_err(|e| Failure::failed(format!("--profile: {}: {e}", copy.display())))?;
            config.profile = Some(copy);
        }
        config.observer = self.moving.observer()?;
        config.sampling_cap = self.moving.cap();
        config.record = self.record.is_some();
        Ok(config)
    }

    /// What a recording begins with. For the run's picture alone it is made in the run's own
    /// directory.
    fn begin_record(
        &self,
        record: Option<Output>,
        config: &RunConfig,
        plain_fault: Nanos,
    ) -> Result<Option<(Output, Header)>, Failure> {
        let out = match record {
            Some(out) => out,
            None if self.observing.report_html.is_some() => {
                let path = config.dir.join("recording");
                Files::default().writes("--report-html", &path, Kind::Recording)?
            }
            None => return Ok(None),
        };
        let calibration = activate::calibration(config);
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
        Ok(Some((out, header)))
    }
}

/// What the program's environment is, with what has the library be loaded into it.
fn environment(library: &Path, config: &RunConfig) -> Result<Environment, Failure> {
    let mut environment = Environment::inherited();
    let preloaded = library::preload_list(library, environment.last(library::PRELOAD));
    // The sanitizer takes the first of several.
    let options = library::sanitizer_options(std::env::var_os(library::SANITIZER));
    let ours = [
        (config::VARIABLE, config.encode().into()),
        (library::PRELOAD, preloaded),
        (library::SANITIZER, options),
    ];
    for (name, value) in ours {
        let set = environment.set(name, &value);
        set.map_err(|e| Failure::failed(format!("{name}: {e}")))?;
    }
    Ok(environment)
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

    /// The process of the run whose budget it is, if that is another.
    fn run(&self) -> Option<u32> {
        match self {
            Self::Here(_) => None,
            Self::Elsewhere(joined) => Some(joined.run),
        }
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

/// Whether the profile of a run is used while memory fits; `None` if it has none.
fn worth_of_profile(config: &RunConfig, plain_fault: Nanos) -> Result<Option<Worth>, Failure> {
    let Some(path) = &config.profile else { return Ok(None) };
    let profile = crate::profile::read(path)?;
    let prices = activate::calibration(config);
    Ok(Some(Worth::of(&profile, config.economist, plain_fault, &prices)))
}

/// A report with what only `run` knows.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    report: &'a RunReport,
    /// Where the economist's prices come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    costs: Option<&'a Source>,
    /// Which engine it is and why, if another was chosen and could not be set up.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<&'a str>,
    /// Whether a profile is used from the first large mapping on, and whether it was, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<worth::Outcome<'a>>,
    /// Lines of the command's own that stderr did not take.
    #[serde(skip_serializing_if = "Option::is_none")]
    lines_lost: Option<u64>,
}

/// A run that is under way.
struct Run<'a> {
    args: &'a Args,
    json: bool,
    started: Instant,
    unmanaged: Option<String>,
    /// Where the economist's prices come from, if it has any.
    costs: Option<Source>,
    /// Whether its profile is used while memory fits, if it has one.
    worth: Option<Worth>,
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
    /// What moves resident pages between several memories, if there are.
    nodes: Option<Session>,
    /// What looks at all processes from outside.
    outside: Option<OutsideWatch>,
    /// What is warned of while it goes on; `None` where nobody is to be told.
    warnings: Option<Warnings>,
    /// Whether it was said that others cannot be told.
    told_unpublished: bool,
    /// What the program's core dump lacks, if there is one.
    core_dump: Option<CoreDumpReport>,
}

/// What a core dump of a process lacks: all that was not in DRAM. `None` if that is nothing.
fn absent_in_dump<'a>(
    mut pages: impl Iterator<Item = &'a ProcessPage>,
    process: u32,
) -> Option<CoreDumpReport> {
    let page = pages.find(|page| page.pid() == process && page.state() == State::Active)?;
    let counters = &page.counters;
    let absent = counters.stored_pages.load(Relaxed) + counters.same_pages.load(Relaxed);
    let spilled = Bytes(counters.spill_bytes.load(Relaxed));
    let spilled_pages = counters.spilled_pages.load(Relaxed);
    let report = CoreDumpReport { process, absent, spilled_pages, spilled };
    (absent > 0 || !spilled.is_zero()).then_some(report)
}

impl Run<'_> {
    fn collect(&mut self, end: Option<End>, elapsed: Duration) -> RunReport {
        let shared = self.broker.as_ref().and_then(Divided::summary);
        let head = Head {
            program: self.args.shown(),
            end,
            elapsed: Nanos(elapsed.as_nanos() as u64),
            policy: self.args.policy().name().to_owned(),
            economist: mode_name(self.args.economist).to_owned(),
            sampling_cap: Some(self.args.moving.cap()),
            budget: shared.map_or(self.budget, |shared| shared.budget),
            shared: shared.map(SharedReport::from),
            budget_of: self.broker.as_ref().and_then(Divided::run),
            holds_store: self.holds_store,
            unmanaged: self.unmanaged.clone(),
            unread: self.recorder.unread(),
        };
        let lost = self.recorder.lost();
        let usage = Usage {
            cpu: self.cpu(end),
            plain_fault: self.plain_fault,
            command_cpu: procs::own_cpu(),
        };
        let report = RunReport::collect(head, self.recorder.pages(), &usage, lost);
        // The kernel counts a program's predecessor in its process, too, which is us.
        let (own, of_processes) = sys::most_resident();
        let is_known = end.is_some() && of_processes > own;
        let process_peak = if is_known { Bytes(of_processes) } else { Bytes::ZERO };
        let report = RunReport { core_dump: self.core_dump, process_peak, ..report };
        let beside = self.outside.as_ref().map(OutsideWatch::report).unwrap_or_default();
        beside.put_into(report)
    }

    /// The figures with those of the memories that pages lie in.
    fn collect_all(&mut self, end: Option<End>, elapsed: Duration) -> Result<RunReport, Failure> {
        let mut report = self.collect(end, elapsed);
        report.nodes = match (&mut self.nodes, end) {
            (None, _) => None,
            (Some(nodes), None) => Some(Box::new(nodes.figures())),
            (Some(nodes), Some(_)) => Some(Box::new(nodes.complete()?)),
        };
        Ok(report)
    }

    /// Looks at all processes from outside, if it is time to, and lets others know what was found;
    /// how long the next look can wait.
    fn look_from_outside(&mut self) -> Option<Duration> {
        let outside = self.outside.as_mut()?;
        let due = outside.poll(|| self.recorder.pages().collect());
        if let Err(e) = outside.publish() {
            // Told once; the report at the end has it all the same.
            if !std::mem::replace(&mut self.told_unpublished, true) {
                Failure::failed(format!("what lies outside of the budget: {e}")).report();
            }
        }
        Some(due)
    }

    /// Says what goes wrong while it does, if it is time to look.
    fn warn(&mut self) {
        if !self.warnings.as_ref().is_some_and(Warnings::is_due) {
            return;
        }
        let report = self.collect(None, self.started.elapsed());
        let run = advice::whose(&report, std::process::id());
        let told = self.warnings.as_mut().map(|warnings| {
            let times = (report.elapsed, report.total.thrashing);
            warnings.look(times, |thrashing| Signs::of(&report, thrashing), run)
        });
        told.into_iter().flatten().for_each(output::warn);
    }

    /// Moves resident pages between memories; how long to wait for the next time.
    fn step_nodes(&mut self) -> Duration {
        let Some(nodes) = &mut self.nodes else { return Duration::MAX };
        nodes.step().unwrap_or_else(|failure| {
            // Pages stay where they are, and the program goes on.
            failure.report();
            self.nodes = None;
            Duration::MAX
        })
    }

    fn report_now(&mut self) -> Result<String, Failure> {
        let report = self.collect_all(None, self.started.elapsed())?;
        self.text(&report)
    }

    fn text(&self, report: &RunReport) -> Result<String, Failure> {
        let (costs, engine) = (self.costs.as_ref(), self.args.instead_of_kernel.as_deref());
        let known = report.total.huge.mappings_known;
        let profile = self.worth.as_ref().map(|worth| worth::Outcome::new(worth, known));
        if self.json {
            let lines_lost = output::lines_lost();
            let told = Told { report, costs, engine, profile, lines_lost };
            return output::json("terrace.run", &told);
        }
        let mut text = render(report);
        let rows: Vec<_> = costs
            .map(|costs| ("costs", costs.line()))
            .into_iter()
            .chain(engine.map(|engine| ("engine", engine.to_owned())))
            .chain(profile.map(|profile| ("profile", profile.line())))
            .chain(output::lost_row())
            .collect();
        text.push_str(&facts("  ", &rows));
        Ok(text)
    }

    /// Processor time of the program's processes: of those that have been
    /// waited for when it has ended, of those that run while it runs.
    fn cpu(&mut self, end: Option<End>) -> Nanos {
        if end.is_some() {
            return Stat::of(std::process::id()).map_or(Nanos::ZERO, |us| us.children_cpu);
        }
        self.recorder.pages().filter_map(|page| Stat::of(page.pid())).map(|stat| stat.cpu).sum()
    }

    /// Writes the figures down.
    fn record_moment(&mut self) {
        let elapsed = self.started.elapsed();
        if self.recorder.is_recording() && elapsed >= self.next_moment {
            self.next_moment = next_moment(elapsed);
            let report = self.collect(None, elapsed);
            self.recorder.moment(report);
        }
    }

    fn finish_recording(&mut self, end: End, elapsed: Duration) -> Option<PathBuf> {
        self.recorder.drain();
        let report = self.collect(Some(end), elapsed);
        self.recorder.finish(report)
    }

    /// The last report, when the program has ended.
    fn publish(&mut self, to: Option<Output>, end: End, elapsed: Duration) -> Result<(), Failure> {
        let report = self.collect_all(Some(end), elapsed)?;
        if let Some(mut watch) = self.watch.take()
            && let Err(failure) = watch.tell(LINE, &Moment::from(report.clone()))
        {
            failure.report();
        }
        let text = self.text(&report)?;
        match to {
            Some(to) => return to.write_whole(text.as_bytes()),
            None if !self.args.quiet => output::show(&text),
            None => {}
        }
        Ok(())
    }
}

impl Watch for Run<'_> {
    fn poll(&mut self) -> Duration {
        let busy = self.recorder.drain();
        self.record_moment();
        let next = match busy | self.recorder.look_after() {
            true => DRAIN_FAST,
            false if self.recorder.is_recording() => DRAIN,
            false => LOOK,
        };
        let next = self.look_from_outside().map_or(next, |due| next.min(due));
        let next = next.min(self.step_nodes());
        self.warn();
        let Some(mut watch) = self.watch.take() else { return next };
        if watch.is_due() {
            let report = self.collect_all(None, self.started.elapsed());
            let told = report.and_then(|report| watch.tell(LINE, &Moment::from(report)));
            if let Err(failure) = told {
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
        match self.report_now() {
            Ok(text) => output::show(&text),
            Err(failure) => {
                failure.report();
            }
        }
    }
}
