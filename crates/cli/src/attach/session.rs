//! An attachment that is under way.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use terrace_core::{Bytes, DaxDevice, Home, Ladder, Memory, Nanos};
use terrace_economics::{Economist, Mode};
use terrace_live::activate;
use terrace_live::attach::host::{Host, LinuxHost};
use terrace_live::attach::targets::Targets;
use terrace_live::attach::{Attach, Options};
use terrace_live::numa::dax::{DaxDevices, DaxState};
use terrace_live::numa::nodes::Nodes;
use terrace_live::sys::thread_cpu;
use terrace_policy::{Brain, Policy, PolicyName};
use terrace_report::AttachReport;
use terrace_report::attach::{Head, held};
use terrace_sampler::{Choice, Sampler, Stores};

use super::moving::Moving;
use super::recorder::{self, Recorder};
use super::render::render;
use super::showing::Showing;
use crate::advice::Loss;
use crate::args::mode_name;
use crate::calibrate::{Prices, Source};
use crate::failure::Failure;
use crate::observing::Observing;
use crate::output::{self, Files, Kind, facts};
use crate::run::absolute;
use crate::runs::Manifest;

/// The most processes that are looked for again in this time.
const LOOK: Nanos = Nanos::millis(500);
/// The longest sleep, so that signals are obeyed soon.
const NAP: Duration = Duration::from_millis(50);

/// What an attachment is to do.
#[derive(Debug)]
pub(crate) struct How {
    /// The command that it is of.
    pub(crate) verb: &'static str,
    /// What it is called: the program with its arguments, or the control group.
    pub(crate) program: Vec<String>,
    /// The tiers.
    pub(crate) ladder: Ladder,
    /// The processes.
    pub(crate) targets: Targets,
    /// Which policy decides.
    pub(crate) policy: PolicyName,
    /// What the economist does with its opinion.
    pub(crate) economist: Mode,
    /// The prices by which the economist decides.
    pub(crate) prices: Prices,
    /// How is observed and moved.
    pub(crate) moving: Moving,
    /// Smaller mappings are left alone.
    pub(crate) min_region: Bytes,
    /// Whether nothing is to be moved.
    pub(crate) dry_run: bool,
    /// Where decisions are written down.
    pub(crate) record: Option<PathBuf>,
    /// How it is shown.
    pub(crate) observing: Observing,
    /// What is read and written.
    pub(crate) files: Files,
    /// Whether warnings are kept back.
    pub(crate) quiet: bool,
}

/// The figures, as they are told.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    report: &'a AttachReport,
    /// Where the economist's prices come from.
    costs: &'a Source,
    /// Lines of the command's own that stderr did not take.
    #[serde(skip_serializing_if = "Option::is_none")]
    lines_lost: Option<u64>,
}

/// An attachment that is under way.
pub(crate) struct Session {
    how: How,
    choice: Choice,
    /// Why no class of action is stopped that loses, where that is so.
    no_kill_switch: Option<String>,
    engine: Attach<LinuxHost>,
    recorder: Option<Recorder>,
    showing: Showing,
    started: Nanos,
    /// The processes at the last look, and when that was.
    processes: Vec<u32>,
    looked: Option<Nanos>,
    names: Vec<(u32, String)>,
    /// Whether it was told that more is spent than it brings.
    told_loss: bool,
    /// What each tier held after the first pass.
    at_begin: Option<Vec<Bytes>>,
}

impl Session {
    /// Chooses samplers and opens everything; nothing is moved yet.
    pub(crate) fn new(mut how: How) -> Result<Self, Failure> {
        let policy = how.policy.build();
        check_policy(&*policy, &how.ladder)?;
        let homes = find_homes(&how.ladder)?;
        let choice = how.moving.choose(&*policy, &how.ladder)?;
        let blind = choice.blind_to_benefit();
        let measured = how.prices.measured.as_ref();
        let calibration = activate::calibration_in_place(measured, blind.is_none());
        let mut brain = Brain::new(policy, Economist::new(how.economist, calibration));
        brain.set_process(std::process::id());
        let (stores, mut samplers) = (Stores::default(), Vec::<Box<dyn Sampler>>::new());
        for kind in &choice.kinds {
            samplers.push(kind.open(&stores).map_err(Failure::unsupported)?);
        }
        let tiers: Vec<_> = how.ladder.tiers.iter().map(|tier| tier.memory.to_string()).collect();
        let record = how.record.as_deref();
        let record = record.map(|path| how.files.writes("--record", path, Kind::Recording));
        let header = || recorder::header(how.program.clone(), how.economist, tiers.clone(), &brain);
        let mut recorder = record.transpose()?.map(|out| Recorder::create(out, &header()));
        let recording = recorder.as_mut().and_then(Recorder::path).map(absolute);
        let manifest = manifest(&how, tiers, recording);
        let showing = Showing::new(how.verb, &manifest, &how.observing, &mut how.files, how.quiet)?;
        if !how.quiet {
            warn(&how.ladder);
        }
        let options = Options {
            dry_run: how.dry_run,
            min_region: how.min_region,
            sampling_cap: how.moving.cap(),
            ..Options::default()
        };
        let is_enforced = how.economist == Mode::Enforce;
        let ladder = how.ladder.clone();
        let mut engine = Attach::new(LinuxHost::new(), ladder, &homes, brain, samplers, options);
        Ok(Self {
            how,
            choice,
            no_kill_switch: blind.filter(|_| is_enforced),
            recorder,
            showing,
            started: engine.host().now(),
            engine,
            processes: Vec::new(),
            looked: None,
            names: Vec::new(),
            told_loss: false,
            at_begin: None,
        })
    }

    /// Steps until the programs have ended, the time is over or somebody stops us.
    pub(super) fn run(&mut self, duration: Option<Nanos>, json: bool) -> Result<(), Failure> {
        let (stop, ask) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let taken = [(SIGINT, &stop), (SIGTERM, &stop), (SIGHUP, &stop), (SIGUSR1, &ask)];
        for (signal, flag) in
            taken.into_iter().filter(|&(signal, _)| terrace_signals::may_stop(signal))
        {
            signal_hook::flag::register(signal, flag.clone())
                .map_err(|e| Failure::failed(format!("signal {signal}: {e}")))?;
        }
        while !stop.load(Relaxed) {
            let now = self.engine.host().now();
            if duration.is_some_and(|time| now >= self.started + time) {
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
        let wait = self.advance()?;
        self.show();
        Ok(wait.min(NAP).min(self.due_in()))
    }

    fn advance(&mut self) -> Result<Duration, Failure> {
        let now = self.engine.host().now();
        if self.looked.is_none_or(|at| now >= at + LOOK) {
            self.looked = Some(now);
            // A group that is gone has no processes either.
            self.processes = self.how.targets.list().unwrap_or_default();
            for (process, name) in names(&self.processes) {
                // A process may have executed another program since the last look.
                match self.names.iter_mut().find(|(other, _)| *other == process) {
                    Some((_, old)) => *old = name,
                    None => self.names.push((process, name)),
                }
            }
        }
        if self.processes.is_empty() {
            return Ok(NAP);
        }
        let mut decided = Vec::new();
        let wanted = self.recorder.is_some() || self.showing.wants_decisions();
        let next = self
            .engine
            .step(&self.processes, &mut |process, decision| {
                if wanted {
                    decided.push((process, *decision));
                }
            })
            .map_err(Failure::failed)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.decisions(Some(self.engine.space()), &decided);
        }
        self.showing.decided(&decided);
        self.complain()?;
        if self.at_begin.is_none() && self.engine.stats().passes > 0 {
            self.at_begin = Some(held(&self.engine));
        }
        let wait = next.saturating_sub(self.engine.host().now()).get();
        Ok(Duration::from_nanos(wait))
    }

    /// How long it is until figures have to be shown or written down.
    fn due_in(&self) -> Duration {
        let recorder = self.recorder.as_ref().map_or(Duration::MAX, Recorder::due_in);
        self.showing.due_in().min(recorder)
    }

    /// Shows what is due to be shown. That is work for this attachment, too.
    fn show(&mut self) {
        if self.due_in().is_zero() {
            let cpu = thread_cpu();
            let report = self.figures();
            self.showing.show(&report);
            if let Some(recorder) = &mut self.recorder {
                recorder.moment(&report);
            }
            self.engine.charge(thread_cpu().saturating_sub(cpu));
        }
    }

    /// Says what stopped working.
    fn complain(&mut self) -> Result<(), Failure> {
        for (process, why) in self.engine.take_refused() {
            if self.processes == [process] {
                return Err(Failure::failed(format!("process {process}: {why}")));
            }
            if !self.how.quiet {
                output::warn(format_args!("process {process} is left alone: {why}"));
            }
        }
        for degraded in self.engine.take_degraded() {
            if !self.how.quiet {
                output::warn(degraded);
            }
        }
        self.complain_of_loss();
        Ok(())
    }

    /// Says, once, that more is spent than it brings.
    fn complain_of_loss(&mut self) {
        if self.told_loss || self.how.quiet {
            return;
        }
        let elapsed = self.engine.host().now().saturating_sub(self.started);
        let balance = self.engine.brain().economist().balance();
        if balance.loses(elapsed) {
            self.told_loss = true;
            output::warn(Loss(balance));
        }
    }

    /// The last figures as a report; completes the recording and the page.
    pub(crate) fn finish(&mut self, json: bool) -> Result<String, Failure> {
        let report = self.complete()?;
        self.text(&report, json)
    }

    /// The last figures; completes the recording and the page.
    pub(crate) fn complete(&mut self) -> Result<AttachReport, Failure> {
        self.engine.finish();
        let report = self.figures();
        self.showing.finish(&report)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.finish(&report)?;
        }
        Ok(report)
    }

    /// Where other commands find the figures, if they do.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.showing.directory()
    }

    /// The report as it is now.
    pub(crate) fn report(&mut self, json: bool) -> Result<String, Failure> {
        let report = self.figures();
        self.text(&report, json)
    }

    fn text(&self, report: &AttachReport, json: bool) -> Result<String, Failure> {
        let costs = &self.how.prices.source;
        if json {
            let lines_lost = output::lines_lost();
            return output::json("terrace.attach", &Told { report, costs, lines_lost });
        }
        let mut rows = vec![("costs", costs.line())];
        rows.extend(output::lost_row());
        Ok(render(report) + &facts("  ", &rows))
    }

    /// The figures as they are now.
    pub(crate) fn figures(&mut self) -> AttachReport {
        let head = Head {
            processes: self.names.clone(),
            elapsed: self.engine.host().now().saturating_sub(self.started),
            dry_run: self.how.dry_run,
            economist: mode_name(self.how.economist).to_owned(),
            sampler_reason: self.choice.reason.clone(),
            no_kill_switch: self.no_kill_switch.clone(),
            sampling_cap: self.how.moving.cap(),
            limit: Some(self.how.ladder.migration.limit),
        };
        AttachReport::collect(head, &self.engine, self.at_begin.as_deref())
    }
}

/// What an attachment says of itself.
fn manifest(how: &How, tiers: Vec<String>, recording: Option<PathBuf>) -> Manifest {
    let budget = how.ladder.tiers.first().and_then(|tier| tier.capacity);
    let mut manifest = Manifest::new(
        how.program.clone(),
        how.policy.name(),
        mode_name(how.economist),
        budget.unwrap_or(Bytes::ZERO),
        Nanos::ZERO,
        tiers,
        recording,
    );
    manifest.in_place = true;
    manifest
}

/// Processes with their commands' names.
pub(crate) fn names(processes: &[u32]) -> Vec<(u32, String)> {
    processes
        .iter()
        .filter_map(|&process| {
            let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
            Some((process, name.trim_end().to_owned()))
        })
        .collect()
}

/// A policy that learns by pages that come back has to see some do so.
fn check_policy(policy: &dyn Policy, ladder: &Ladder) -> Result<(), Failure> {
    let node = ladder.tiers.iter().skip(1).find(|t| t.memory.is_addressable());
    match node.filter(|_| policy.needs().refaults) {
        None => Ok(()),
        Some(tier) => Err(Failure::bad_input(format!(
            "--policy {}: not where pages stay mapped: it learns by pages that come back, and \
             from `{}` none has to",
            policy.name(),
            tier.memory
        ))),
    }
}

/// Where the pages of each tier lie. Every memory of a ladder must be there.
fn find_homes(ladder: &Ladder) -> Result<Vec<Home>, Failure> {
    let devices = DaxDevices::new(Path::new("/"));
    let homes = ladder.homes(|device| node_of(device, devices.state(device)))?;
    let nodes = Nodes::new(Path::new("/"));
    for (i, (tier, home)) in ladder.tiers.iter().zip(&homes).enumerate() {
        // Two names, which the ladder cannot know.
        if let Some(other) = homes[..i].iter().position(|other| other == home) {
            let other = ladder.tiers[other].memory;
            let what = format!("`{}`: another tier, `{other}`, is the same node", tier.memory);
            return Err(Failure::bad_input(what));
        }
        match *home {
            Home::Node(node) if !nodes.exists(node) => {
                return Err(Failure::unsupported(format!(
                    "`{}`: this machine has no such node (`terrace doctor` lists them)",
                    tier.memory
                )));
            }
            Home::Swap if LinuxHost::new().swap_memory().0.is_zero() => {
                return Err(Failure::unsupported("`swap`: this machine has no swap space"));
            }
            _ => {}
        }
    }
    Ok(homes)
}

/// The node that a DAX device is.
fn node_of(device: DaxDevice, state: Option<DaxState>) -> Result<u32, Failure> {
    let Some(state) = state else {
        return Err(Failure::bad_input(format!(
            "`dax:{device}`: there is no such device (`terrace doctor` lists them)"
        )));
    };
    state.tier().map_err(|lacks| Failure::unsupported(format!("`dax:{device}`: {lacks}")))
}

/// Says what will not go as one might expect.
fn warn(ladder: &Ladder) {
    let nodes = ladder.tiers.iter().filter(|t| t.memory.is_addressable()).count();
    let balancing = fs::read_to_string("/proc/sys/kernel/numa_balancing").unwrap_or_default();
    if nodes > 1 && !["", "0"].contains(&balancing.trim()) {
        output::warn(format_args!(
            "the kernel's NUMA balancing moves pages, too \
             (sysctl kernel.numa_balancing=0 stops it)"
        ));
    }
    let devices = DaxDevices::new(Path::new("/"));
    for tier in &ladder.tiers {
        if let Memory::Dax(device) = tier.memory
            && devices.state(device).is_some_and(|state| state.shares_node)
        {
            output::warn(format_args!(
                "`{}`: its node has other memory, too, and a page that is \
                 moved there may lie in either",
                tier.memory
            ));
        }
    }
}
