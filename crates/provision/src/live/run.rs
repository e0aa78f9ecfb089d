//! The daemon: looks, decides, has things done, writes down why.
//!
//! It is woken by its timer, by the kernel where programs wait for memory, by
//! the worker whose step is over, and by whoever wants it to end.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MlockAllFlags, mlockall};
use terrace_core::{Bytes, Nanos};
use thiserror::Error;

use super::actuator::Actuator;
use super::guard::{self, Guard};
use super::kernel::Kernel;
use super::manager::{Manager, Order};
use super::pressure::Pressure;
use super::state::{NodeStatus, State, Status, wall_clock};
use super::worker::{Bell, Worker};
use super::world::{LookError, World};
use crate::action::Action;
use crate::config::Config;
use crate::economist::Figures;
use crate::journal::Event;

/// How often everything is looked at, where nothing has changed that we know of.
const THOROUGH: Nanos = Nanos::seconds(10);
/// How often the status is written at most.
const SHOWN: Nanos = Nanos::millis(500);
/// So many looks in a row may fail before the daemon ends.
const FAILED_LOOKS: u32 = 30;

/// Tells the daemon to end, from any thread.
#[derive(Clone, Debug)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    bell: Bell,
}

impl Stop {
    /// Nobody has told it to end yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self { flag: Arc::default(), bell: Bell::new()? })
    }

    /// Tells it to end.
    pub fn stop(&self) {
        self.flag.store(true, Ordering::Relaxed);
        self.bell.ring();
    }
}

/// Why the daemon ended without having been told to.
#[derive(Debug, Error)]
pub enum RunError {
    /// It could not look at the machine any more.
    #[error(transparent)]
    Look(#[from] LookError),
    /// Something that it needs of the system.
    #[error("{what}: {error}")]
    Io {
        /// What it is.
        what: String,
        /// What the system said.
        error: io::Error,
    },
    /// The thread that carries out steps has ended.
    #[error("the thread that carries out steps has ended")]
    Worker,
}

fn io_error(what: &str) -> impl FnOnce(io::Error) -> RunError {
    move |error| RunError::Io { what: what.to_owned(), error }
}

/// What the daemon is given.
pub struct Setup {
    /// What its operator wants.
    pub config: Config,
    /// Where procfs is.
    pub root: PathBuf,
    /// Whether it only says what it would do.
    pub dry_run: bool,
    /// When it ends by itself.
    pub duration: Option<Nanos>,
    /// How many processors may use memory up at once.
    pub processors: usize,
    /// Prices of this machine, with the size of a base page.
    pub prices: Option<(Figures, Bytes)>,
    /// The settings that are made, by these files; `None` for a virtual machine.
    pub kernel: Option<Arc<dyn Kernel>>,
    /// Whether its own memory is locked, and it is kept from being killed.
    pub protect: bool,
    /// Whether pressure on this machine's memory is a sign of anything.
    pub pressure: bool,
}

/// Runs until it is told to end. `show` is told what happens; `publish` is given each status.
pub fn run(
    setup: Setup,
    world: &mut dyn World,
    actuator: Box<dyn Actuator>,
    state: &mut State,
    stop: &Stop,
    show: &mut dyn FnMut(&Event),
    publish: &mut dyn FnMut(&Status),
) -> Result<(), RunError> {
    Daemon::new(setup, actuator, state, stop, show, publish)?.run(world)
}

struct Daemon<'a> {
    setup: Setup,
    manager: Manager,
    worker: Worker,
    guard: Guard,
    bell: Bell,
    pressure: Option<Pressure>,
    locked: bool,
    state: &'a mut State,
    stop: &'a Stop,
    show: &'a mut dyn FnMut(&Event),
    publish: &'a mut dyn FnMut(&Status),
    begun: Instant,
    shown: Nanos,
    /// What was told already, that would be told again at each look.
    told: BTreeSet<String>,
    /// Entries that the journal lacks since it could not be written.
    lost: u64,
    /// Whether the last status could not be written.
    unshown: bool,
}

impl<'a> Daemon<'a> {
    fn new(
        setup: Setup,
        actuator: Box<dyn Actuator>,
        state: &'a mut State,
        stop: &'a Stop,
        show: &'a mut dyn FnMut(&Event),
        publish: &'a mut dyn FnMut(&Status),
    ) -> Result<Self, RunError> {
        let bell = Bell::new().map_err(io_error("eventfd"))?;
        let worker = Worker::start(actuator, bell.clone()).map_err(io_error("a thread"))?;
        let settings = state.path("settings.json");
        let guard = Guard::open(&settings).map_err(io_error("settings"))?;
        let manager =
            Manager::new(setup.config.clone(), setup.processors, setup.prices, setup.dry_run);
        Ok(Self {
            setup,
            manager,
            worker,
            guard,
            bell,
            pressure: None,
            locked: false,
            state,
            stop,
            show,
            publish,
            begun: Instant::now(),
            shown: Nanos::ZERO,
            told: BTreeSet::new(),
            lost: 0,
            unshown: false,
        })
    }

    fn now(&self) -> Nanos {
        Nanos(self.begun.elapsed().as_nanos() as u64)
    }

    /// Tells what happened, and writes it down. A full disk is no reason to leave programs without
    /// memory: what the journal lacks is told instead, and how much it was when it can be written
    /// again.
    fn note(&mut self, event: &Event) {
        (self.show)(event);
        if self.lost > 0 {
            let s = if self.lost == 1 { "entry is" } else { "entries are" };
            let what = format!("the journal can be written again: {} {s} not in it", self.lost);
            let again = Event::Told { what };
            if self.state.note(&again).is_err() {
                self.lost += 1;
                return;
            }
            self.lost = 0;
            (self.show)(&again);
        }
        if let Err(error) = self.state.note(event) {
            self.lost = 1;
            let what = format!(
                "the journal cannot be written ({error}): until it can, what happens is told here \
                 only"
            );
            (self.show)(&Event::Told { what });
        }
    }

    fn tell(&mut self, what: String) {
        if self.told.insert(what.clone()) {
            self.note(&Event::Told { what });
        }
    }

    fn run(mut self, world: &mut dyn World) -> Result<(), RunError> {
        self.note(&Event::Started {
            pid: std::process::id(),
            policy: self.setup.config.policy,
            dry_run: self.setup.dry_run,
        });
        self.prepare();
        let mut looked = self.now();
        let mut failed = 0;
        let mut thorough = true;
        // However long the beginning took, it looks once: a run of a moment says something, too.
        let mut has_looked = false;
        loop {
            let now = self.now();
            let is_over = has_looked && self.setup.duration.is_some_and(|most| now >= most);
            if is_over || self.stop.flag.load(Ordering::Relaxed) {
                let why = if is_over { "its time is over" } else { "it was told to" };
                return self.end(world, why);
            }
            while let Some(done) = self.worker.next() {
                self.manager.done(done, now);
                thorough = true;
            }
            if self.worker.is_dead() {
                return Err(RunError::Worker);
            }
            thorough |= now - looked >= THOROUGH;
            has_looked = true;
            match world.look(thorough) {
                Ok(()) => {
                    failed = 0;
                    if thorough {
                        looked = now;
                        thorough = false;
                        self.keep_settings();
                    }
                    let orders = self.manager.tick(world, now);
                    self.obey(orders);
                }
                // Something may be in the middle of coming or going.
                Err(error) => {
                    failed += 1;
                    if failed == FAILED_LOOKS {
                        self.note(&Event::Stopped { why: error.to_string() });
                        return Err(error.into());
                    }
                    self.tell(format!("a look failed: {error}"));
                    thorough = true;
                }
            }
            self.write_down(world);
            let sleep = self.manager.next_look(now);
            self.wait(sleep)?;
        }
    }

    /// Everything that has to be so before the first step.
    fn prepare(&mut self) {
        if self.setup.protect {
            match mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
                Ok(()) => self.locked = true,
                Err(error) => self.tell(format!(
                    "its own memory is not locked ({error}): it may wait for memory itself when \
                     it is needed most"
                )),
            }
            if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-1000") {
                self.tell(format!("the kernel may kill it for want of memory ({error})"));
            }
        }
        if self.setup.pressure {
            let sampling = &self.setup.config.sampling;
            match Pressure::open(&self.setup.root, sampling.stall.0, sampling.window.0) {
                Ok(pressure) => self.pressure = Some(pressure),
                Err(error) => self.tell(format!(
                    "the kernel does not tell of memory pressure (/proc/pressure/memory: {error}); \
                     memory is looked at every {}",
                    sampling.idle.0
                )),
            }
        }
        self.keep_settings();
    }

    /// Makes the settings that are not as they should be: at the start, and where somebody has
    /// changed them since.
    fn keep_settings(&mut self) {
        let Some(kernel) = self.setup.kernel.clone() else { return };
        let (wanted, told) = guard::wanted(&*kernel, &self.setup.config.kernel);
        for what in told {
            self.tell(format!("a setting cannot be had: {what}"));
        }
        for wanted in wanted {
            let guard::Wanted { setting, is, to } = &wanted;
            if self.setup.dry_run {
                self.tell(format!("would write {to} to /{} (it is {is})", setting.path()));
                continue;
            }
            let begun = Instant::now();
            let action = Action::Set { setting: *setting, to: to.clone() };
            match self.guard.set(&*kernel, &wanted) {
                Ok(()) => {
                    let took = Nanos(begun.elapsed().as_nanos() as u64);
                    self.note(&Event::Done { action, took });
                }
                Err(error) => self.tell(format!("{action}: {error}")),
            }
        }
    }

    fn obey(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Begin(action) => self.worker.begin(action),
                Order::Interrupt => self.worker.interrupt(),
            }
        }
    }

    fn write_down(&mut self, world: &dyn World) {
        let events = self.manager.events();
        let is_news = !events.is_empty();
        for event in events {
            self.note(&event);
        }
        let now = self.now();
        if is_news || self.shown.is_zero() || now - self.shown >= SHOWN {
            self.shown = now;
            let status = self.status(world, now);
            let shown = self.state.show(&status);
            (self.publish)(&status);
            match shown {
                Err(error) if !self.unshown => {
                    self.unshown = true;
                    let what = format!("the status cannot be written ({error})");
                    self.note(&Event::Told { what });
                }
                Ok(()) if self.unshown => {
                    self.unshown = false;
                    self.note(&Event::Told { what: "the status can be written again".into() });
                }
                _ => {}
            }
        }
    }

    fn status(&self, world: &dyn World, now: Nanos) -> Status {
        let node = |node| {
            let view = world.view(node, now)?;
            Some(NodeStatus {
                node,
                dram: view.dram,
                dram_free: view.dram_free,
                online: view.integrated,
                online_free: view.integrated_free,
                hidden: view.hidden,
            })
        };
        Status {
            pid: std::process::id(),
            policy: self.setup.config.policy,
            dry_run: self.setup.dry_run,
            at: wall_clock(),
            running: now,
            armed: self.manager.is_armed(now),
            pressure: self.pressure.is_some(),
            locked: self.locked,
            nodes: world.nodes().into_iter().filter_map(node).collect(),
            under_way: self.manager.under_way(),
            counters: self.manager.counters(),
        }
    }

    fn wait(&mut self, sleep: Nanos) -> Result<(), RunError> {
        let until = self.begun.elapsed() + Duration::from_nanos(sleep.get());
        loop {
            let rest = until.saturating_sub(self.begun.elapsed());
            if rest.is_zero() {
                return Ok(());
            }
            let (bell, end) = (self.bell.as_fd(), self.stop.bell.as_fd());
            let pressure = self.pressure.as_ref().map(AsFd::as_fd);
            let fired = wait_for(bell, end, pressure, rest).map_err(io_error("poll"))?;
            if fired {
                let now = self.now();
                let was_armed = self.manager.is_armed(now);
                self.manager.pressure(now);
                // It fires once a window for as long as it lasts; looks are frequent then anyway.
                if was_armed {
                    continue;
                }
                return Ok(());
            }
            if self.bell.take() || self.stop.bell.take() {
                return Ok(());
            }
        }
    }

    /// Leaves the machine as it is, with no step half done.
    fn end(mut self, world: &mut dyn World, why: &str) -> Result<(), RunError> {
        let orders = self.manager.stop();
        self.obey(orders);
        while self.manager.is_working() {
            self.wait(self.setup.config.sampling.armed.0)?;
            while let Some(done) = self.worker.next() {
                let now = self.now();
                self.manager.done(done, now);
            }
            if self.worker.is_dead() {
                return Err(RunError::Worker);
            }
            let orders = self.manager.stop();
            self.obey(orders);
        }
        let looked = world.look(true);
        // While slow memory is in use, DRAM needs its floor.
        let now = self.now();
        let is_unused = looked.is_ok()
            && world
                .nodes()
                .iter()
                .all(|&node| world.view(node, now).is_none_or(|v| v.integrated.is_zero()));
        if let Some(kernel) = self.setup.kernel.clone()
            && !self.guard.is_empty()
        {
            if is_unused {
                for (setting, before, result) in self.guard.restore(&*kernel) {
                    let action = Action::Set { setting, to: before };
                    match result {
                        Ok(took) => self.note(&Event::Done { action, took }),
                        Err(error) => self.tell(format!("{action}: {error}")),
                    }
                }
            } else {
                self.tell(
                    "slow memory is still in use: settings of the kernel stay, and the next start \
                     knows what they were"
                        .to_owned(),
                );
            }
        }
        self.write_down(world);
        self.note(&Event::Stopped { why: why.to_owned() });
        self.worker.end();
        Ok(())
    }
}

/// Waits for one of these; whether it was the kernel that tells of pressure.
fn wait_for(
    bell: BorrowedFd<'_>,
    end: BorrowedFd<'_>,
    pressure: Option<BorrowedFd<'_>>,
    rest: Duration,
) -> io::Result<bool> {
    let of = |fd, flags| PollFd::from_borrowed_fd(fd, flags);
    let mut fds = vec![of(bell, PollFlags::IN), of(end, PollFlags::IN)];
    fds.extend(pressure.map(|fd| of(fd, PollFlags::PRI)));
    let timeout =
        Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: i64::from(rest.subsec_nanos()) };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(fds.get(2).is_some_and(|fd| fd.revents().contains(PollFlags::PRI)))
}
