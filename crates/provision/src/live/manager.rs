//! Decisions become steps, one at a time.
//!
//! A state machine without threads or clocks: the driver tells it the time and
//! what happened, and it answers with what to begin or to interrupt. So every
//! course of events can be tested, whatever the kernel would do.
//!
//! - A node that is brought memory is not decided about until its steps are
//!   done: what was decided is a target.
//! - A node that is short while memory is being taken from it gets none taken:
//!   the step under way is interrupted, the rest is given up.
//! - Room is looked for before each block and again while it leaves. The kernel
//!   has no such check: it isolates the block's free pages first, and the next
//!   page fault of any process may find nothing.
//! - What failed is left alone for a while, twice as long each time.

use std::collections::{BTreeMap, VecDeque};

use terrace_core::{Bytes, BytesPerSecond, Nanos};

use super::actuator::ActionError;
use super::worker::Done;
use super::world::World;
use crate::action::{Action, Target};
use crate::config::{Config, Pricing, Sampling};
use crate::decision::{Change, Decision, Reason};
use crate::economist::{Figures, Verdict};
use crate::journal::Event;
use crate::policy::Provisioner;
use crate::rotation::Rotation;
use crate::view::NodeId;

/// Pauses are doubled up to this.
const LONGEST_PAUSE: Nanos = Nanos::seconds(3600);
/// How long what could not be brought in, or was not begun for want of room, is left alone at first.
const SHORT_PAUSE: Nanos = Nanos::seconds(1);
/// A node is armed if its free memory falls by this share of its DRAM between two looks.
const FALLS: u64 = 16;

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Have the worker begin this step.
    Begin(Action),
    /// Interrupt the step that is under way.
    Interrupt,
}

#[derive(Debug)]
struct Job {
    node: NodeId,
    steps: VecDeque<Action>,
}

#[derive(Debug)]
struct Flight {
    action: Action,
    node: Option<NodeId>,
    begun: Nanos,
    /// Why it was interrupted.
    interrupted: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Nanos,
    length: Nanos,
}

/// How often things happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// Looks at the machine.
    pub looks: u64,
    /// Decisions that changed something.
    pub decisions: u64,
    /// Memory brought in.
    pub brought: Bytes,
    /// Memory given back.
    pub given_back: Bytes,
    /// Steps that failed.
    pub failures: u64,
    /// Steps that were not begun for want of room.
    pub refusals: u64,
    /// Times that the kernel told of pressure.
    pub pressure: u64,
}

/// Decisions, and the steps that are still to be done.
pub struct Manager {
    config: Config,
    policy: Box<dyn Provisioner + Send>,
    prices: Option<(Figures, Pricing, Bytes)>,
    rotation: Option<Rotation>,
    jobs: VecDeque<Job>,
    flight: Option<Flight>,
    pauses: BTreeMap<Target, Pause>,
    /// What was told last about a node for which nothing could be done.
    told: BTreeMap<NodeId, String>,
    free: BTreeMap<NodeId, Bytes>,
    /// How fast all processors together can use memory up.
    fill: BytesPerSecond,
    /// The time in which they could use up what is free near a node with hidden memory.
    used_up: Nanos,
    armed_until: Nanos,
    /// Since when a device has been memory that nobody uses.
    idle_since: BTreeMap<String, Nanos>,
    dry_run: bool,
    stopping: bool,
    events: Vec<Event>,
    counters: Counters,
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { jobs, flight, .. } = self;
        f.debug_struct("Manager")
            .field("jobs", jobs)
            .field("flight", flight)
            .finish_non_exhaustive()
    }
}

impl Manager {
    /// Has decided nothing yet. `prices` are figures of the machine with the size of a base page.
    pub fn new(
        config: Config,
        processors: usize,
        prices: Option<(Figures, Bytes)>,
        dry_run: bool,
    ) -> Self {
        let mode = config.economist.as_ref().map(|economist| economist.mode).unwrap_or_default();
        Self {
            policy: config.build(),
            prices: prices.map(|(figures, page)| (figures, mode, page)),
            rotation: None,
            jobs: VecDeque::new(),
            flight: None,
            pauses: BTreeMap::new(),
            told: BTreeMap::new(),
            free: BTreeMap::new(),
            fill: BytesPerSecond(config.sampling.fill.0.get() * processors as f64),
            used_up: Nanos::MAX,
            config,
            armed_until: Nanos::ZERO,
            idle_since: BTreeMap::new(),
            dry_run,
            stopping: false,
            events: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// What happened since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// How often things happened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What is under way or waits for its turn, in words.
    pub fn under_way(&self) -> Vec<String> {
        let flight = self.flight.iter().map(|flight| flight.action.to_string());
        let waiting =
            self.jobs.iter().map(|job| format!("{} more for {}", job.steps.len(), job.node));
        flight.chain(waiting).collect()
    }

    /// The kernel tells that programs wait for memory.
    pub fn pressure(&mut self, now: Nanos) {
        self.counters.pressure += 1;
        self.arm(now);
    }

    fn arm(&mut self, now: Nanos) {
        self.armed_until = self.armed_until.max(now + self.config.sampling.armed_for.0);
    }

    /// Whether looks are frequent now.
    pub fn is_armed(&self, now: Nanos) -> bool {
        now < self.armed_until
    }

    /// How long until the next look.
    pub fn next_look(&self, now: Nanos) -> Nanos {
        let is_busy = self.flight.is_some() || !self.jobs.is_empty();
        let Sampling { armed, idle, .. } = &self.config.sampling;
        if is_busy || self.is_armed(now) {
            armed.0
        } else {
            // Half of it, so that what is seen can still be acted on.
            (self.used_up / 2).clamp(armed.0, idle.0)
        }
    }

    /// No more steps are begun; one that takes memory away is interrupted.
    pub fn stop(&mut self) -> Vec<Order> {
        self.stopping = true;
        let jobs = std::mem::take(&mut self.jobs);
        for job in jobs {
            self.drop_job(&job, "the daemon ends");
        }
        self.interrupt(Action::takes, "the daemon ends")
    }

    /// Whether a step is under way.
    pub fn is_working(&self) -> bool {
        self.flight.is_some()
    }

    fn drop_job(&mut self, job: &Job, why: &str) {
        if !job.steps.is_empty() {
            self.events.push(Event::Dropped {
                node: job.node,
                steps: job.steps.len(),
                why: why.to_owned(),
            });
        }
    }

    fn interrupt(&mut self, which: impl Fn(&Action) -> bool, why: &str) -> Vec<Order> {
        match &mut self.flight {
            // It is sent again until the step is over: a signal may come too early.
            Some(flight) if flight.interrupted.is_some() => vec![Order::Interrupt],
            Some(flight) if which(&flight.action) => {
                flight.interrupted = Some(why.to_owned());
                vec![Order::Interrupt]
            }
            _ => Vec::new(),
        }
    }

    /// Whether a node has steps of a kind, under way or waiting.
    fn has(&self, node: NodeId, takes: bool) -> bool {
        let is = |action: &Action| action.takes() == takes;
        self.jobs.iter().any(|job| job.node == node && job.steps.iter().any(is))
            || self.flight.as_ref().is_some_and(|f| f.node == Some(node) && is(&f.action))
    }

    /// A look at the machine, which the driver has just told to look: decides, and says what to do.
    pub fn tick(&mut self, world: &dyn World, now: Nanos) -> Vec<Order> {
        self.counters.looks += 1;
        let mut orders = self.watch_flight(world, now);
        if self.stopping {
            return orders;
        }
        let nodes = world.nodes();
        self.used_up = Nanos::MAX;
        let rotation = self.rotation.get_or_insert_with(|| Rotation::new(nodes));
        let turn: Vec<NodeId> = rotation.turn().collect();
        for node in turn {
            orders.extend(self.consider(world, node, now));
        }
        self.give_metadata_back(world, now);
        orders.extend(self.begin_next(world, now));
        orders
    }

    /// The step under way must end in time, and leave room.
    fn watch_flight(&mut self, world: &dyn World, now: Nanos) -> Vec<Order> {
        let Some(flight) = &self.flight else { return Vec::new() };
        if !flight.action.takes() {
            return Vec::new();
        }
        let deadline = self.config.offline.deadline.0;
        let why = if now.saturating_sub(flight.begun) >= deadline {
            Some(format!("its {deadline} are over"))
        } else {
            world.room(&flight.action, self.config.offline.headroom.0, true).err()
        };
        let is_interrupted = flight.interrupted.is_some();
        match why {
            Some(why) => self.interrupt(|_| true, &why),
            None if is_interrupted => vec![Order::Interrupt],
            None => Vec::new(),
        }
    }

    fn consider(&mut self, world: &dyn World, node: NodeId, now: Nanos) -> Vec<Order> {
        let Some(view) = world.view(node, now) else { return Vec::new() };
        let free = view.local_free();
        let short = Bytes::from_f64(view.dram.as_f64() * self.config.first_threshold());
        let falls = self
            .free
            .insert(node, free)
            .is_some_and(|before| before.saturating_sub(free) > view.dram / FALLS);
        if !view.hidden.is_zero() {
            self.used_up = self.used_up.min(self.fill.time_for(free));
        }
        if falls || (free <= short && !view.hidden.is_zero()) {
            self.arm(now);
        }
        if self.has(node, false) {
            return Vec::new();
        }
        let decision = self.policy.tick(&view);
        let is_leaving = self.has(node, true);
        match decision.change {
            Change::Nothing => {
                // What it wants and cannot have is worth a line, once.
                if matches!(decision.reason, Reason::Exhausted { .. } | Reason::NoRow) {
                    self.tell_once(&decision, "there is no more");
                } else {
                    self.told.remove(&node);
                }
                Vec::new()
            }
            Change::Remove(_) if is_leaving => Vec::new(),
            Change::Remove(_) => {
                self.enqueue(world, decision, now);
                Vec::new()
            }
            Change::Integrate(_) => {
                let orders = if is_leaving { self.stop_leaving(node) } else { Vec::new() };
                self.enqueue(world, decision, now);
                orders
            }
        }
    }

    /// A node that is short has nothing taken away.
    fn stop_leaving(&mut self, node: NodeId) -> Vec<Order> {
        let why = "its node is short";
        let (leaving, rest): (VecDeque<Job>, VecDeque<Job>) = std::mem::take(&mut self.jobs)
            .into_iter()
            .partition(|job| job.node == node && job.steps.iter().any(Action::takes));
        self.jobs = rest;
        for job in leaving {
            self.drop_job(&job, why);
        }
        let is_its_own = self.flight.as_ref().is_some_and(|flight| flight.node == Some(node));
        if is_its_own { self.interrupt(Action::takes, why) } else { Vec::new() }
    }

    fn tell_once(&mut self, decision: &Decision, why: &str) {
        let key = format!("{:?} {why}", core::mem::discriminant(&decision.reason));
        if self.told.insert(decision.node, key.clone()).as_ref() != Some(&key) {
            self.events.push(Event::Nothing { decision: *decision, why: why.to_owned() });
        }
    }

    fn enqueue(&mut self, world: &dyn World, decision: Decision, now: Nanos) {
        let Decision { node, change, .. } = decision;
        self.pauses.retain(|_, pause| pause.until + LONGEST_PAUSE > now);
        let pauses = &self.pauses;
        let is_free = |target: &Target| pauses.get(target).is_none_or(|pause| pause.until <= now);
        let steps: VecDeque<Action> = world.steps(node, change, &is_free).into();
        if steps.is_empty() {
            let why = if pauses.values().any(|pause| pause.until > now) {
                "what could change has failed before and is left alone for a while"
            } else {
                "nothing that could change is here"
            };
            return self.tell_once(&decision, why);
        }
        // Nothing will change in a dry run, so that it would be priced and decided again at each
        // look.
        let key = format!("{:?}", decision.change);
        if self.dry_run && self.told.get(&node) == Some(&key) {
            return;
        }
        if self.is_vetoed(world, &decision) {
            return;
        }
        if self.dry_run {
            self.told.insert(node, key);
            self.counters.decisions += 1;
            self.events.push(Event::Decided { decision, steps: steps.into() });
            return;
        }
        self.told.remove(&node);
        self.counters.decisions += 1;
        self.events.push(Event::Decided { decision, steps: steps.clone().into() });
        let job = Job { node, steps };
        // Who is short comes before who has too much.
        if matches!(change, Change::Integrate(_)) {
            let at = self.jobs.iter().position(|job| job.steps.iter().any(Action::takes));
            self.jobs.insert(at.unwrap_or(self.jobs.len()), job);
        } else {
            self.jobs.push_back(job);
        }
    }

    /// Prices what is to be brought in; whether it is not to be.
    fn is_vetoed(&mut self, world: &dyn World, decision: &Decision) -> bool {
        let (Some((figures, mode, page)), Change::Integrate(amount)) =
            (&self.prices, decision.change)
        else {
            return false;
        };
        let Some(view) = world.view(decision.node, decision.at) else { return false };
        let stays = self.config.resolved.hold.map_or(Nanos::seconds(30), |hold| hold.0);
        let elsewhere = world.elsewhere(decision.node);
        let quote = figures.quote(amount, view.block, *page, stays, elsewhere);
        let vetoed = *mode == Pricing::Enforce && quote.verdict == Verdict::DoesNotPay;
        let key = format!("{:?} {vetoed}", quote.verdict);
        let is_new = self.told.get(&decision.node) != Some(&key);
        if is_new {
            self.events.push(Event::Priced { node: decision.node, quote, vetoed });
        }
        if vetoed {
            self.told.insert(decision.node, key);
        }
        vetoed
    }

    /// Devices that nobody has used for a while are devices again.
    fn give_metadata_back(&mut self, world: &dyn World, now: Nanos) {
        if self.flight.is_some() || !self.jobs.is_empty() || self.dry_run {
            return;
        }
        let idle = world.idle();
        let name = |action: &Action| match action {
            Action::Unbind { device, .. } => Some(device.clone()),
            _ => None,
        };
        let names: Vec<String> = idle.iter().filter_map(name).collect();
        self.idle_since.retain(|device, _| names.contains(device));
        for action in idle {
            let Some(device) = name(&action) else { continue };
            let since = *self.idle_since.entry(device).or_insert(now);
            let is_paused =
                self.pauses.get(&action.target()).is_some_and(|pause| pause.until > now);
            if now.saturating_sub(since) >= self.config.offline.unbind_after.0 && !is_paused {
                // It belongs to no node's job.
                self.jobs.push_back(Job { node: NodeId::default(), steps: [action].into() });
                return;
            }
        }
    }

    fn begin_next(&mut self, world: &dyn World, now: Nanos) -> Vec<Order> {
        while self.flight.is_none() {
            let Some(job) = self.jobs.front_mut() else { return Vec::new() };
            let node = job.node;
            let Some(action) = job.steps.pop_front() else {
                self.jobs.pop_front();
                continue;
            };
            if let Err(why) = world.room(&action, self.config.offline.headroom.0, false) {
                self.counters.refusals += 1;
                // Nothing has failed: there may be room as soon as a program ends.
                let pause = self.pause(action.target(), now, SHORT_PAUSE);
                let why = format!("{why}; left alone for {pause}");
                self.events.push(Event::Refused { action, why });
                // What has no room for this has none for the next.
                if let Some(job) = self.jobs.pop_front() {
                    self.drop_job(&job, "there is no room");
                }
                continue;
            }
            self.flight = Some(Flight {
                action: action.clone(),
                node: Some(node),
                begun: now,
                interrupted: None,
            });
            return vec![Order::Begin(action)];
        }
        Vec::new()
    }

    /// What is needed is tried again soon; what is only to be saved can wait.
    fn first_pause(&self, action: &Action) -> Nanos {
        let can_wait = action.takes() || matches!(action, Action::Unbind { .. });
        if can_wait { self.config.offline.pause.0 } else { SHORT_PAUSE }
    }

    fn pause(&mut self, target: Target, now: Nanos, first: Nanos) -> Nanos {
        let length = self.pauses.get(&target).map_or(first, |pause| pause.length * 2);
        let length = length.min(LONGEST_PAUSE.max(first));
        self.pauses.insert(target, Pause { until: now + length, length });
        length
    }

    /// A step is over. The driver looks thoroughly before the next tick.
    pub fn done(&mut self, done: Done, now: Nanos) {
        let flight = self.flight.take();
        let Done { action, outcome, took } = done;
        match outcome {
            Ok(()) => {
                self.pauses.remove(&action.target());
                match &action {
                    Action::Online { size, .. } => self.counters.brought += *size,
                    Action::Offline { size, .. } => self.counters.given_back += *size,
                    Action::Resize { from, to, .. } => {
                        self.counters.brought += *to - *from;
                        self.counters.given_back += *from - *to;
                    }
                    Action::Bind { .. } | Action::Unbind { .. } | Action::Set { .. } => {}
                }
                self.events.push(Event::Done { action, took });
            }
            Err(error) => {
                self.counters.failures += 1;
                let why = match (&error, flight.and_then(|flight| flight.interrupted)) {
                    (ActionError::Interrupted, Some(why)) => format!("interrupted: {why}"),
                    _ => error.to_string(),
                };
                let first = self.first_pause(&action);
                let pause = self.pause(action.target(), now, first);
                self.events.push(Event::Failed { action, took, why, pause });
            }
        }
        if self.jobs.front().is_some_and(|job| job.steps.is_empty()) {
            self.jobs.pop_front();
        }
    }
}
