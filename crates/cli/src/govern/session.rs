//! A group that is being governed.

use std::time::{Duration, Instant};

use terrace_core::Nanos;
use terrace_kernel::files::Root;
use terrace_kernel::govern::curves::Curves;
use terrace_kernel::govern::look::Looked;
use terrace_kernel::govern::working_set::forecast;
use terrace_kernel::govern::{Governing, GroupGovernor};
use terrace_kernel::setup::group::Group;
use terrace_kernel::setup::{swap, zram};
use terrace_live::sys;
use terrace_report::End;
use terrace_report::govern::{GovernReport, Idle};

use super::{Args, render};
use crate::failure::Failure;
use crate::mode::Mode;
use crate::output;

/// How often is looked, and memory put out.
pub(super) const EVERY: Nanos = Nanos::seconds(1);
/// How often is looked whether a group grows while memory is being taken from it.
const WATCH: Duration = Duration::from_millis(10);
/// The longest time within which is looked what is touched: while memory is only looked at, and
/// before any is put out. That is twice as long as memory is left alone at most before it leaves, so
/// that a forecast knows what comes back of it in as long a time.
const LONGEST: Nanos = Nanos::seconds(128);
const LONGEST_BEFORE: Nanos = Nanos::seconds(32);
/// Slowdowns that are forecast whatever the target.
const SLOWDOWNS: [f64; 3] = [0.01, 0.02, 0.05];

pub(super) struct Session {
    name: String,
    governor: GroupGovernor<Looked>,
    curves: Curves,
    mode: Mode,
    target: f64,
    begun: Instant,
    next: Instant,
    own_cpu: Nanos,
    lacks: Vec<String>,
    /// Whether nothing can be forecast: then memory is put out before anything was.
    is_blind: bool,
    /// Whether the last step has looked.
    looked: bool,
}

impl Session {
    /// `lacks` is what keeps its processes from being looked at.
    pub(super) fn new(name: String, group: Group, args: &Args, lacks: Vec<String>) -> Self {
        let root = Root::machine();
        let mut governor = GroupGovernor::new(Looked::new(root.clone(), group), args.target);
        governor.enforce(false);
        let longest = match args.mode {
            Mode::Observe => {
                // So that there is one whole curve at least, if that can be.
                let whole = args.duration.map_or(LONGEST, |time| time.min(LONGEST));
                std::iter::successors(Some(EVERY), |time| Some(Nanos(time.get() * 2)))
                    .take_while(|time| *time <= whole)
                    .last()
                    .unwrap_or(EVERY)
            }
            Mode::Enforce => LONGEST_BEFORE,
        };
        Self {
            name,
            governor,
            curves: Curves::new(root, longest),
            mode: args.mode,
            target: args.target,
            begun: Instant::now(),
            next: Instant::now(),
            own_cpu: Nanos::ZERO,
            is_blind: !lacks.is_empty(),
            lacks,
            looked: false,
        }
    }

    /// Something else that the report is to say.
    pub(super) fn note(&mut self, lack: String) {
        self.lacks.push(lack);
    }

    /// Whether the last step has looked: the figures are new.
    pub(super) fn has_looked(&self) -> bool {
        self.looked
    }

    /// Time that was spent for the group beside the steps.
    pub(super) fn charge(&mut self, time: Nanos) {
        self.own_cpu += time;
    }

    /// How long it has been governed, or looked at.
    pub(super) fn elapsed(&self) -> Nanos {
        Nanos(self.begun.elapsed().as_nanos() as u64)
    }

    /// Looks and puts out what may go, when it is time to; for how long there is nothing to do then,
    /// or `None` if the group is gone.
    pub(super) fn step(&mut self) -> Result<Option<Duration>, Failure> {
        let (now, cpu) = (Instant::now(), sys::thread_cpu());
        self.looked = now >= self.next;
        if !self.looked {
            // What was leaving in the last look may have left.
            self.governor.begin_turn(Nanos(sys::now()));
            let wait = self.until(self.next - now);
            self.own_cpu += sys::thread_cpu().saturating_sub(cpu);
            return Ok(Some(wait));
        }
        let is_there = self.governor.step().map_err(|e| {
            Failure::failed(format!("{}: memory cannot be put out: {e}", self.name))
        })?;
        if !is_there {
            return Ok(None);
        }
        if !self.governor.enforces() {
            let processes = self.governor.world().group().members_below();
            let look = self.governor.last().unwrap_or_default();
            self.curves.step(Nanos(sys::now()), &processes, look.cpu, look.resident);
            let is_known = self.curves.whole() > 0 || self.is_blind;
            if let Some(age) = self.curves.age(self.target) {
                self.governor.start_at(age);
            }
            self.governor.enforce(self.mode == Mode::Enforce && is_known);
        }
        // Of what is late nothing is made up for.
        self.next = (self.next + Duration::from_nanos(EVERY.get())).max(Instant::now());
        let wait = self.until(self.next.saturating_duration_since(Instant::now()));
        let taking = self.governor.world().take_cpu();
        self.own_cpu += sys::thread_cpu().saturating_sub(cpu) + taking;
        Ok(Some(wait))
    }

    /// For how long there is nothing to do, if the next look is due so much later.
    fn until(&mut self, next: Duration) -> Duration {
        if self.governor.world().is_taken_from() { next.min(WATCH) } else { next }
    }

    /// The group is left alone from now on: before what was made for it is undone.
    pub(super) fn leave(&mut self) {
        self.own_cpu += self.governor.world().take_cpu();
        self.governor.world().leave();
    }

    pub(super) fn report(&self, end: Option<End>) -> GovernReport {
        let mut slowdowns = SLOWDOWNS.to_vec();
        if !slowdowns.iter().any(|slowdown| (slowdown - self.target).abs() < 1e-9) {
            slowdowns.push(self.target);
            slowdowns.sort_by(f64::total_cmp);
        }
        let known = self.curves.known();
        let mut lacks = self.lacks.clone();
        match self.curves.denied() {
            0 => {}
            1 => lacks.push("one process could not be looked at".to_owned()),
            n => {
                lacks.push(format!("{} processes could not be looked at", output::count(n as u64)));
            }
        }
        // What keeps processes from being looked at was said already.
        if let Some(lack) = self.curves.lack().filter(|_| !self.is_blind) {
            lacks.push(format!("nothing is forecast: {lack}"));
        }
        let areas = swap::areas(&Root::machine());
        let devices: Vec<u32> = areas.iter().filter_map(swap::SwapArea::zram).collect();
        GovernReport {
            group: self.name.clone(),
            end,
            enforced: self.mode == Mode::Enforce,
            target: self.target,
            done: Governing { elapsed: self.elapsed(), ..self.governor.done() },
            forecasts: slowdowns.iter().filter_map(|&at| forecast(known, at)).collect(),
            recommended: None,
            forecast_error: None,
            curves: self.curves.whole(),
            idle: self
                .curves
                .idle()
                .into_iter()
                .map(|(time, memory)| Idle { time, memory })
                .collect(),
            store: zram::held(&Root::machine(), &devices),
            own_cpu: self.own_cpu,
            lacks,
        }
        .complete()
    }

    pub(super) fn text(&self, end: Option<End>, json: bool) -> Result<String, Failure> {
        let report = self.report(end);
        if json { output::json("terrace.govern", &report) } else { Ok(render::render(&report)) }
    }
}
