//! `terrace attach`: tiers for programs that run already.
//!
//! | file | concept |
//! |---|---|
//! | [`report`] | what was observed, moved, and what came of it |
//! | here | the options, and the loop |

mod report;

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use terrace_core::{Bytes, BytesPerSecond, Ladder, LadderTier, Memory, Nanos, PageSize, RegionId};
use terrace_economics::{Decision, Economist, Mode};
use terrace_live::activate;
use terrace_live::attach::host::{Host, LinuxHost};
use terrace_live::attach::targets::Targets;
use terrace_live::attach::{Attach, Options};
use terrace_live::numa::nodes::Nodes;
use terrace_live::probe::UffdProbe;
use terrace_policy::{Brain, PolicyName};
use terrace_sampler::{Capabilities, Choice, Governor, Kind, Sampler, choose};

use self::report::{AttachReport, Head};
use crate::args::{economist, mode_name, one_of};
use crate::cgroups;
use crate::failure::Failure;
use crate::output;
use crate::records::{Header, MachineFacts, Record, RegionRecord, World, Writer};
use crate::run::create;

/// Move the pages of programs that run already between memories.
///
/// Watches the programs' accesses from outside, lets a policy plan, and moves
/// pages between NUMA nodes, or into swap. Pages stay mapped and nothing
/// faults. Ends with the programs, or when it is interrupted; what was moved
/// stays where it is. SIGUSR1 prints the report while it runs.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: terrace attach --pid 4711 --fast numa:0=4GiB --slow numa:1",
    group = clap::ArgGroup::new("whom").required(true).args(["pid", "cgroup"]),
    group = clap::ArgGroup::new("where").required(true).args(["tiers", "fast"])
)]
pub(crate) struct Args {
    /// The process.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,

    /// Also the processes that it started.
    #[arg(long, requires = "pid")]
    tree: bool,

    /// A control group, by its directory or its path below /sys/fs/cgroup:
    /// every process in it and below it.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,

    /// The tiers, from a ladder file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fast", "slow"])]
    tiers: Option<PathBuf>,

    /// The fastest tier: `numa:N`, with a capacity as `numa:N=SIZE`.
    #[arg(long, value_name = "TIER", requires = "slow")]
    fast: Option<LadderTier>,

    /// A slower tier: `numa:N`, or `swap`; several, faster ones first.
    #[arg(long, value_name = "TIER", requires = "fast")]
    slow: Vec<LadderTier>,

    /// Bound on the traffic between tiers; 1GiB/s unless a file says otherwise.
    #[arg(long, value_name = "RATE")]
    limit: Option<BytesPerSecond>,

    /// Which policy decides what lies where.
    #[arg(long, value_name = "NAME", default_value = "hemem",
          value_parser = one_of(&PolicyName::LIVE, PolicyName::name))]
    policy: PolicyName,

    /// What the economist does: nothing, price and record, or also refuse what does not pay.
    #[arg(long, value_name = "MODE", default_value = "enforce", value_parser = economist())]
    economist: Mode,

    /// How accesses are observed; the best that there is unless told otherwise.
    #[arg(long, value_name = "KIND", value_parser = one_of(&Kind::ALL, Kind::name))]
    sampler: Vec<Kind>,

    /// The most of one processor that observing may use.
    #[arg(long, value_name = "PERCENT", default_value = "3%", value_parser = percent)]
    sampling_cap: f64,

    /// Anonymous mappings of at least this size are managed.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    min_region: Bytes,

    /// End after so long.
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<Nanos>,

    /// Plan and report, but move nothing.
    #[arg(long)]
    dry_run: bool,

    /// Write the report to a file instead of stdout.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Write every decision to a file, for `terrace why`.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Print no warnings.
    #[arg(long, short)]
    quiet: bool,
}

/// The most processes that are looked for again in this time.
const LOOK: Nanos = Nanos::millis(500);
/// The longest sleep, so that signals are obeyed soon.
const NAP: Duration = Duration::from_millis(50);

/// A share: `3%`.
fn percent(text: &str) -> Result<f64, String> {
    text.strip_suffix('%')
        .and_then(|number| number.trim().parse::<f64>().ok())
        .filter(|share| *share > 0.0 && *share <= 100.0)
        .map(|share| share / 100.0)
        .ok_or_else(|| format!("`{text}` is not a share between 0% and 100%, such as `3%`"))
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let ladder = self.ladder()?;
        let targets = self.targets()?;
        let processes = targets.list().map_err(Failure::bad_input)?;
        if let (Targets::Process { process, .. }, []) = (&targets, processes.as_slice()) {
            return Err(Failure::bad_input(format!("--pid: there is no process {process}")));
        }
        let report_to = match &self.report {
            Some(path) => Some((path.clone(), create("--report", path)?)),
            None => None,
        };
        let mut session = Session::new(&self, ladder, targets)?;
        let end = session.run(json);
        let text = session.finish(json)?;
        match report_to {
            Some((path, mut file)) => file
                .write_all(text.as_bytes())
                .map_err(|e| Failure::failed(format!("--report: {}: {e}", path.display())))?,
            None => output::print(&text)?,
        }
        end.map(|()| ExitCode::SUCCESS)
    }

    /// What `terrace run --slow` (or `--tiers`) attaches by to the program that it starts.
    pub(crate) fn of_run(
        tiers: Option<PathBuf>,
        (fast, slow): (Option<LadderTier>, Vec<LadderTier>),
        (policy, economist): (PolicyName, Mode),
        min_region: Bytes,
        record: Option<PathBuf>,
        quiet: bool,
    ) -> Self {
        Self {
            pid: Some(std::process::id()),
            tree: true,
            cgroup: None,
            tiers,
            fast,
            slow,
            limit: None,
            policy,
            economist,
            sampler: Vec::new(),
            sampling_cap: Governor::DEFAULT_CAP,
            min_region,
            duration: None,
            dry_run: false,
            report: None,
            record,
            quiet,
        }
    }

    /// The tiers, as the options or the file say.
    pub(crate) fn ladder(&self) -> Result<Ladder, Failure> {
        let mut ladder = if let Some(path) = &self.tiers {
            let name = path.display().to_string();
            let text = fs::read_to_string(path)
                .map_err(|e| Failure::bad_input(format!("--tiers: {name}: {e}")))?;
            Ladder::parse(&name, &text).map_err(Failure::bad_input)?
        } else {
            let tiers = self.fast.iter().chain(&self.slow).copied().collect();
            Ladder::new(tiers).map_err(|what| Failure::bad_input(format!("--slow: {what}")))?
        };
        if let Some(limit) = self.limit {
            if limit.get() <= 0.0 {
                return Err(Failure::bad_input("--limit: must be above zero"));
            }
            ladder.migration.limit = limit;
        }
        Ok(ladder)
    }

    fn targets(&self) -> Result<Targets, Failure> {
        if let Some(process) = self.pid {
            return Ok(Targets::Process { process, tree: self.tree });
        }
        let given = self.cgroup.clone().unwrap_or_default();
        cgroups::directory("--cgroup", &given).map(Targets::Cgroup)
    }

    /// What observes: as asked for, else the best that there is.
    fn choose(&self, brain: &Brain, ladder: &Ladder) -> Result<Choice, Failure> {
        let capabilities = Capabilities::probe(UffdProbe::run().features);
        if !self.sampler.is_empty() {
            for kind in &self.sampler {
                if let Some(lack) = capabilities.lack(*kind) {
                    let what = format!("--sampler {}: {lack}", kind.name());
                    return Err(Failure::unsupported(what));
                }
            }
            let reason = "as asked for".to_owned();
            return Ok(Choice { kinds: self.sampler.clone(), reason });
        }
        if !brain.needs().samples && !brain.needs().scans {
            let reason = format!("the policy {} needs none", brain.name());
            return Ok(Choice { kinds: Vec::new(), reason });
        }
        match choose::choose(&capabilities) {
            Ok(choice) => Ok(choice),
            // Into swap, what comes back is itself an observation.
            Err(lacks) if reclaims_only(ladder) => {
                let reason = format!("pages that come back from swap are all there is: {lacks}");
                Ok(Choice { kinds: Vec::new(), reason })
            }
            Err(lacks) => Err(Failure::unsupported(format!(
                "accesses cannot be observed here ({lacks}); \
                 `--policy first-touch` needs no samples"
            ))),
        }
    }

    /// What will not go as one might expect.
    fn warn(&self, ladder: &Ladder) {
        if self.quiet {
            return;
        }
        let nodes = ladder.tiers.iter().filter(|t| matches!(t.memory, Memory::Numa(_))).count();
        let balancing = fs::read_to_string("/proc/sys/kernel/numa_balancing").unwrap_or_default();
        if nodes > 1 && !["", "0"].contains(&balancing.trim()) {
            eprintln!(
                "terrace: warning: the kernel's NUMA balancing moves pages, too \
                 (sysctl kernel.numa_balancing=0 stops it)"
            );
        }
    }

    fn recorder(&self, ladder: &Ladder, brain: &Brain) -> Result<Option<Recorder>, Failure> {
        let Some(path) = &self.record else { return Ok(None) };
        let file = BufWriter::new(create("--record", path)?);
        let machine = MachineFacts {
            name: terrace_live::doctor::Facts::read(Path::new("/")).cpu.model,
            clock: Some(brain.economist().calibration().clock),
            tiers: ladder.tiers.iter().map(|tier| tier.memory.to_string()).collect(),
        };
        let whom = self.pid.map_or_else(
            || self.cgroup.clone().unwrap_or_default().display().to_string(),
            |pid| pid.to_string(),
        );
        let policy = self.policy.name().to_owned();
        let header = Header::new(World::Live, vec![whom], policy, self.economist, machine);
        let failed = |e| Failure::failed(format!("--record: {}: {e}", path.display()));
        let writer = Writer::new(file, &header).map_err(failed)?;
        let told = std::collections::BTreeSet::new();
        Ok(Some(Recorder { path: path.clone(), writer, told, failed: None }))
    }
}

/// Whether there is nothing below the first memory but swap.
fn reclaims_only(ladder: &Ladder) -> bool {
    ladder.tiers.get(1).is_some_and(|tier| tier.memory == Memory::Swap)
}

/// Every memory of a ladder must be there.
fn check_memories(ladder: &Ladder) -> Result<(), Failure> {
    let nodes = Nodes::new(Path::new("/"));
    for tier in &ladder.tiers {
        match tier.memory {
            Memory::Numa(node) if !nodes.exists(node) => {
                return Err(Failure::unsupported(format!(
                    "`{}`: this machine has no such node (`terrace doctor` lists them)",
                    tier.memory
                )));
            }
            Memory::Swap if LinuxHost::new().swap_memory().0.is_zero() => {
                return Err(Failure::unsupported("`swap`: this machine has no swap space"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes decisions down.
struct Recorder {
    path: PathBuf,
    writer: Writer<BufWriter<fs::File>>,
    /// Regions that are written down already.
    told: std::collections::BTreeSet<(u32, RegionId)>,
    failed: Option<std::io::Error>,
}

impl Recorder {
    fn write(&mut self, record: &Record) {
        if self.failed.is_none() {
            self.failed = self.writer.write(record).err();
        }
    }

    /// Decisions of one step, after the regions that they name.
    fn decisions(&mut self, engine: &Attach<LinuxHost>, decided: Vec<(u32, Decision)>) {
        for (process, decision) in decided {
            let region = decision.action.page().map(|page| page.region);
            let window = region.and_then(|id| Some((id, engine.space().window(id)?)));
            if let Some((region, window)) = window
                && self.told.insert((process, region))
            {
                let (start, pages, page_size) = (window.base, window.pages(), window.page_size);
                let record = RegionRecord { process, region, start, pages, page_size };
                self.write(&Record::Region(record));
            }
            self.write(&Record::Decision { process, decision: Box::new(decision) });
        }
    }

    fn finish(&mut self) -> Result<(), Failure> {
        let flushed = self.writer.flush();
        match self.failed.take().or(flushed.err()) {
            None => Ok(()),
            Some(e) => Err(Failure::failed(format!("--record: {}: {e}", self.path.display()))),
        }
    }
}

/// An attachment that is under way.
pub(crate) struct Session<'a> {
    args: &'a Args,
    choice: Choice,
    targets: Targets,
    engine: Attach<LinuxHost>,
    recorder: Option<Recorder>,
    limit: BytesPerSecond,
    started: Nanos,
    /// The processes at the last look, and when that was.
    processes: Vec<u32>,
    looked: Option<Nanos>,
    names: Vec<(u32, String)>,
    /// What each tier held after the first pass.
    at_begin: Option<Vec<Bytes>>,
}

impl<'a> Session<'a> {
    /// Chooses samplers and opens everything; nothing is moved yet.
    pub(crate) fn new(args: &'a Args, ladder: Ladder, targets: Targets) -> Result<Self, Failure> {
        check_memories(&ladder)?;
        let economist = Economist::new(args.economist, activate::calibrate());
        let brain = Brain::new(args.policy.build(), economist);
        let choice = args.choose(&brain, &ladder)?;
        let mut samplers: Vec<Box<dyn Sampler>> = Vec::new();
        for kind in &choice.kinds {
            samplers.push(kind.open().map_err(Failure::unsupported)?);
        }
        let recorder = args.recorder(&ladder, &brain)?;
        args.warn(&ladder);
        let options = Options {
            dry_run: args.dry_run,
            min_region: args.min_region,
            sampling_cap: args.sampling_cap,
            ..Options::default()
        };
        let limit = ladder.migration.limit;
        let mut engine = Attach::new(LinuxHost::new(), ladder, brain, samplers, options);
        Ok(Self {
            args,
            choice,
            targets,
            recorder,
            limit,
            started: engine.host().now(),
            engine,
            processes: Vec::new(),
            looked: None,
            names: Vec::new(),
            at_begin: None,
        })
    }

    /// Steps until the programs have ended, the time is over or somebody stops us.
    fn run(&mut self, json: bool) -> Result<(), Failure> {
        let (stop, ask) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for (signal, flag) in [(SIGINT, &stop), (SIGTERM, &stop), (SIGHUP, &stop), (SIGUSR1, &ask)]
        {
            signal_hook::flag::register(signal, flag.clone())
                .map_err(|e| Failure::failed(format!("signal {signal}: {e}")))?;
        }
        while !stop.load(Relaxed) {
            let now = self.engine.host().now();
            if self.args.duration.is_some_and(|time| now >= self.started + time) {
                break;
            }
            let wait = self.step()?;
            if self.processes.is_empty() {
                break;
            }
            if ask.swap(false, Relaxed) {
                output::print(&self.report(json)?)?;
            }
            std::thread::sleep(wait);
        }
        Ok(())
    }

    /// One step; how long to wait for the next.
    pub(crate) fn step(&mut self) -> Result<Duration, Failure> {
        let now = self.engine.host().now();
        if self.looked.is_none_or(|at| now >= at + LOOK) {
            self.looked = Some(now);
            // A group that is gone has no processes either.
            self.processes = self.targets.list().unwrap_or_default();
            for (process, name) in report::names(&self.processes) {
                if !self.names.iter().any(|(other, _)| *other == process) {
                    self.names.push((process, name));
                }
            }
        }
        if self.processes.is_empty() {
            return Ok(NAP);
        }
        let mut decided = Vec::new();
        let wanted = self.recorder.is_some();
        let next = self
            .engine
            .step(&self.processes, &mut |process, decision| {
                if wanted {
                    decided.push((process, *decision));
                }
            })
            .map_err(Failure::failed)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.decisions(&self.engine, decided);
        }
        self.complain()?;
        if self.at_begin.is_none() && self.engine.stats().passes > 0 {
            self.at_begin = Some(report::held(&self.engine));
        }
        let wait = next.saturating_sub(self.engine.host().now()).get();
        Ok(Duration::from_nanos(wait).min(NAP))
    }

    /// Says what stopped working.
    fn complain(&mut self) -> Result<(), Failure> {
        for (process, why) in self.engine.take_refused() {
            if self.processes == [process] {
                return Err(Failure::failed(format!("process {process}: {why}")));
            }
            if !self.args.quiet {
                eprintln!("terrace: warning: process {process} is left alone: {why}");
            }
        }
        for degraded in self.engine.take_degraded() {
            if !self.args.quiet {
                eprintln!("terrace: warning: {degraded}");
            }
        }
        Ok(())
    }

    /// The last report; completes the recording.
    pub(crate) fn finish(&mut self, json: bool) -> Result<String, Failure> {
        self.engine.finish();
        let text = self.report(json)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.finish()?;
        }
        Ok(text)
    }

    /// The report as it is now.
    pub(crate) fn report(&mut self, json: bool) -> Result<String, Failure> {
        let head = Head {
            processes: self.names.clone(),
            elapsed: self.engine.host().now().saturating_sub(self.started),
            dry_run: self.args.dry_run,
            economist: mode_name(self.args.economist).to_owned(),
            sampler_reason: self.choice.reason.clone(),
            sampling_cap: self.args.sampling_cap,
            limit: self.limit,
        };
        let report = AttachReport::collect(head, &self.engine, self.at_begin.as_deref());
        if json { output::json("terrace.attach", &report) } else { Ok(report.render()) }
    }
}

/// A size's name, for tables.
const fn size_name(size: PageSize) -> &'static str {
    match size {
        PageSize::Base => "4 KiB",
        PageSize::Huge => "2 MiB",
    }
}
