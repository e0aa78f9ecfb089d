//! The daemon as a whole, on a machine whose kernel refuses, hangs, and loses things.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use terrace_core::{Bytes, Nanos};

use super::*;
use crate::action::{Action, How, Setting, Target};
use crate::config::{Config, Text};
use crate::decision::Change;
use crate::fixture::{FakeKernel, Fault, Fixture};
use crate::journal::{self, Event};
use crate::live::worker::Done;
use crate::view::{NodeId, NodeView, Watermarks};

/// The shortest times that a configuration may have.
fn config() -> Config {
    let mut config = Config::default();
    config.sampling.idle = Text(Nanos::millis(20));
    config.sampling.armed = Text(Nanos::millis(10));
    config.sampling.armed_for = Text(Nanos::millis(100));
    config.resolved.hold = Some(Text(Nanos::millis(100)));
    config.offline.deadline = Text(Nanos::millis(200));
    config.offline.pause = Text(Nanos::millis(400));
    config.offline.unbind_after = Text(Nanos::millis(100));
    config
}

/// A daemon that runs in a thread of its own.
struct Running {
    kernel: Arc<FakeKernel>,
    directory: tempfile::TempDir,
    stop: Stop,
    events: Receiver<Event>,
    thread: JoinHandle<Result<(), RunError>>,
}

impl Running {
    fn start(kernel: FakeKernel, config: Config, dry_run: bool) -> Self {
        Self::start_for(Nanos::seconds(20), kernel, config, dry_run)
    }

    fn start_for(duration: Nanos, kernel: FakeKernel, config: Config, dry_run: bool) -> Self {
        let kernel = Arc::new(kernel);
        let directory = tempfile::tempdir().unwrap();
        let mut state = State::lock(&directory.path().join("state")).unwrap();
        let stop = Stop::new().unwrap();
        let (tell, events) = mpsc::channel();
        let setup = Setup {
            config,
            root: kernel.fixture.root().to_owned(),
            dry_run,
            duration: Some(duration),
            processors: 1,
            prices: None,
            kernel: Some(Arc::clone(&kernel) as Arc<dyn Kernel>),
            protect: false,
            pressure: false,
        };
        let thread = thread::spawn({
            let (kernel, stop) = (Arc::clone(&kernel), stop.clone());
            move || {
                let root = kernel.fixture.root().to_owned();
                let mut host = Host::new(root, Bytes::kib(4), None, true, How::default())?;
                let actuator = Box::new(Sysfs::new(kernel));
                let mut show = |event: &Event| {
                    let _ = tell.send(event.clone());
                };
                run(setup, &mut host, actuator, &mut state, &stop, &mut show, &mut |_| {})
            }
        });
        Self { kernel, directory, stop, events, thread }
    }

    /// Waits for an event of a kind.
    fn until(&self, what: &str, mut is: impl FnMut(&Event) -> bool) -> Event {
        let begun = Instant::now();
        let mut seen = Vec::new();
        while begun.elapsed() < Duration::from_secs(10) {
            if let Ok(event) = self.events.recv_timeout(Duration::from_millis(50)) {
                if is(&event) {
                    return event;
                }
                seen.push(event.to_string());
            }
        }
        panic!("no {what} within 10 s:\n{}", seen.join("\n"));
    }

    fn done(&self, what: &str) {
        self.until(what, |event| {
            matches!(event, Event::Done { action, .. } if action.to_string().contains(what))
        });
    }

    fn end(self) -> (Arc<FakeKernel>, tempfile::TempDir) {
        self.stop.stop();
        self.thread.join().unwrap().unwrap();
        (self.kernel, self.directory)
    }
}

fn machine() -> FakeKernel {
    let kernel = FakeKernel::new(Fixture::new());
    kernel.demand(Bytes::gib(1));
    kernel
}

/// A disk that takes its time at the beginning is no reason to end without a word.
#[test]
fn a_run_of_a_moment_looks_once() {
    let running = Running::start_for(Nanos(1), machine(), config(), true);
    running.until("decision", |event| matches!(event, Event::Decided { .. }));
    running.end();
}

#[test]
fn memory_comes_with_demand_and_leaves_after_it() {
    let kernel = machine();
    kernel.fixture.device();
    let running = Running::start(kernel, config(), false);
    running.done("write 500 to /proc/sys/vm/watermark_scale_factor");
    // Everything that is idle leaves first; 3.5 GiB used then bring in all there is, and for what
    // is missing the device.
    running.done("memory block 40 of node 2 offline");
    running.kernel.demand(Bytes::mib(3584 + 256));
    running.done("block 41 of node 2 online");
    running.done("make dax1.0 memory");
    running.done("block 49 of node 2 online");
    running.kernel.demand(Bytes::mib(512));
    running.done("make dax1.0 a device again");
    let (kernel, directory) = running.end();
    assert_eq!([40, 41, 42].map(|b| kernel.fixture.state(b)), ["offline"; 3]);
    let scale = Setting::WatermarkScaleFactor.path();
    assert_eq!(kernel.fixture.read(scale), "10", "nothing is in use: it is as it was");

    let journal = fs::read(directory.path().join("state/journal")).unwrap();
    let entries = journal::read(&journal[..]).unwrap();
    assert!(matches!(entries[0].what, Event::Started { .. }));
    assert!(matches!(entries.last().unwrap().what, Event::Stopped { .. }));
    let status = fs::read_to_string(directory.path().join("state/status.json")).unwrap();
    let status: Status = serde_json::from_str(&status).unwrap();
    assert_eq!(status.counters.brought, status.counters.given_back - Bytes::mib(128));
}

#[test]
fn a_block_that_refuses_is_left_alone_and_the_others_leave() {
    let kernel = machine();
    kernel.fixture.block(41, 2, "online", "Movable");
    kernel.demand(Bytes::gib(1));
    kernel.fault("memory41/state", Fault::Error(libc::EBUSY), 1);
    let running = Running::start(kernel, config(), false);
    let is_failed = |event: &Event| matches!(event, Event::Failed { .. });
    let failed = running.until("failure", is_failed).to_string();
    assert!(failed.contains("busy (os error 16); left alone for 400 ms"), "{failed}");
    running.done("block 40 of node 2 offline");
    // And then it is tried again.
    running.done("block 41 of node 2 offline");
    running.end();
}

#[test]
fn no_memory_for_a_block_is_no_reason_to_end() {
    let kernel = machine();
    kernel.fault("memory41/state", Fault::Error(libc::ENOMEM), 2);
    kernel.demand(Bytes::mib(3900));
    let running = Running::start(kernel, config(), false);
    let is_failed = |event: &Event| matches!(event, Event::Failed { .. });
    let failed = running.until("failure", is_failed).to_string();
    assert!(failed.contains("Cannot allocate memory"), "{failed}");
    running.done("block 42 of node 2 online");
    running.done("block 41 of node 2 online");
    running.end();
}

#[test]
fn a_step_that_hangs_is_interrupted_at_its_deadline() {
    let kernel = machine();
    kernel.fault("memory40/state", Fault::Hangs, 1);
    let running = Running::start(kernel, config(), false);
    let failed = running.until("failure", |event| matches!(event, Event::Failed { .. }));
    let Event::Failed { took, why, .. } = failed else { unreachable!() };
    assert_eq!(why, "interrupted: its 200 ms are over");
    assert!(took < Nanos::seconds(5), "{took}");
    running.done("block 40 of node 2 offline");
    running.end();
}

#[test]
fn who_is_told_to_end_leaves_no_step_half_done() {
    let kernel = machine();
    kernel.fault("memory40/state", Fault::Hangs, 1);
    let mut patient = config();
    patient.offline.deadline = Text(Nanos::seconds(19));
    let running = Running::start(kernel, patient, false);
    running.until("decision", |event| matches!(event, Event::Decided { .. }));
    thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    let (kernel, directory) = running.end();
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(kernel.fixture.state(40), "online");
    let journal = fs::read_to_string(directory.path().join("state/journal")).unwrap();
    assert!(journal.contains("interrupted: the daemon ends"), "{journal}");
    // Slow memory is in use: DRAM keeps its floor, and what it was is known.
    assert_eq!(kernel.fixture.read(Setting::WatermarkScaleFactor.path()), "500");
    assert!(directory.path().join("state/settings.json").exists());
}

#[test]
fn a_pool_that_vanishes_is_no_reason_to_end() {
    let kernel = machine();
    kernel.demand(Bytes::mib(3900));
    kernel.fault("memory41/state", Fault::Vanishes, 1);
    let running = Running::start(kernel, config(), false);
    let failed = running.until("failure", |event| matches!(event, Event::Failed { .. }));
    assert!(failed.to_string().contains("memory41/state is no longer there"), "{failed}");
    running.done("block 42 of node 2 online");
    // All of node 2 goes away.
    for number in [40, 42] {
        let here = format!("sys/devices/system/memory/memory{number}");
        fs::remove_dir_all(running.kernel.fixture.root().join(here)).unwrap();
    }
    thread::sleep(Duration::from_millis(100));
    running.end();
}

/// A directory that goes away is as a disk that is full: nothing can be written to it.
#[test]
fn a_journal_that_cannot_be_written_is_no_reason_to_end_and_is_told() {
    let kernel = machine();
    let running = Running::start(kernel, config(), false);
    running.done("memory block 40 of node 2 offline");
    let state = running.directory.path().join("state");
    fs::rename(&state, running.directory.path().join("away")).unwrap();
    fs::remove_file(running.directory.path().join("away/journal")).unwrap();
    running.kernel.demand(Bytes::mib(3900));
    let told = |what: &'static str| move |event: &Event| event.to_string().starts_with(what);
    running.until("word of the journal", told("the journal cannot be written (No such file"));
    running.done("block 41 of node 2 online");
    let mut modes = fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut modes, 0o700).create(&state).unwrap();
    running.kernel.demand(Bytes::mib(512));
    running.until("word of it again", told("the journal can be written again: "));
    running.done("memory block 41 of node 2 offline");
    let (_kernel, directory) = running.end();
    let journal = fs::read(directory.path().join("state/journal")).unwrap();
    let entries = journal::read(&journal[..]).unwrap();
    assert!(entries[0].what.to_string().contains("entries are not in it"));
    assert!(matches!(entries.last().unwrap().what, Event::Stopped { .. }));
}

#[test]
fn a_dry_run_says_once_what_it_would_do_and_writes_nothing() {
    let kernel = machine();
    kernel.demand(Bytes::mib(3900));
    let running = Running::start(kernel, config(), true);
    running.until("decision", |event| matches!(event, Event::Decided { .. }));
    thread::sleep(Duration::from_millis(200));
    let again = running.events.try_iter().filter(|e| matches!(e, Event::Decided { .. })).count();
    assert_eq!(again, 0);
    let (kernel, _directory) = running.end();
    assert_eq!(kernel.written(), Vec::<String>::new());
}

#[test]
fn no_other_process_is_given_the_lock_of_a_directory() {
    // The lock is a process's: a second one of this process would be given it. What a second daemon
    // is told is tested on the command line.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let _first = State::lock(&path).unwrap();
    let python =
        "import fcntl,sys; fcntl.lockf(open(sys.argv[1],'r+'), fcntl.LOCK_EX|fcntl.LOCK_NB)";
    let second =
        std::process::Command::new("python3").args(["-c", python]).arg(path.join("lock")).output();
    if let Ok(output) = second {
        assert!(!output.status.success(), "somebody else was given the lock");
    }
}

#[test]
fn a_directory_that_others_may_use_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let error = State::lock(directory.path()).unwrap_err().to_string();
    assert_eq!(
        error,
        "others than its owner may use it (its mode is 755); the least that works is 700"
    );
}

/// A world of one node that says what a test wants it to.
struct Told {
    view: NodeView,
    room: Result<(), String>,
    room_left: Result<(), String>,
}

impl Told {
    fn new(free: Bytes, online: Bytes) -> Self {
        let view = NodeView {
            node: NodeId(0),
            now: Nanos::ZERO,
            dram: Bytes::gib(4),
            dram_free: free.saturating_sub(online),
            integrated: online,
            integrated_free: online.min(free),
            hidden: Bytes::gib(8) - online,
            block: Bytes::mib(128),
            watermarks: Watermarks::default(),
        };
        Self { view, room: Ok(()), room_left: Ok(()) }
    }
}

impl World for Told {
    fn look(&mut self, _: bool) -> Result<(), LookError> {
        Ok(())
    }
    fn nodes(&self) -> Vec<NodeId> {
        vec![NodeId(0)]
    }
    fn view(&self, _: NodeId, now: Nanos) -> Option<NodeView> {
        Some(NodeView { now, ..self.view })
    }
    fn elsewhere(&self, _: NodeId) -> Bytes {
        Bytes::gib(64)
    }
    fn steps(&self, _: NodeId, change: Change, may: &dyn Fn(&Target) -> bool) -> Vec<Action> {
        let (node, size) = (NodeId(2), Bytes::mib(128));
        let blocks = (0..change.amount().get() / size.get()).filter(|&n| may(&Target::Block(n)));
        blocks
            .map(|block| match change {
                Change::Remove(_) => Action::Offline { block, node, size },
                _ => Action::Online { block, node, size, r#use: crate::Use::Movable },
            })
            .collect()
    }
    fn room(&self, _: &Action, _: Bytes, begun: bool) -> Result<(), String> {
        if begun { self.room_left.clone() } else { self.room.clone() }
    }
    fn idle(&self) -> Vec<Action> {
        Vec::new()
    }
}

fn seconds(n: u64) -> Nanos {
    Nanos::seconds(n)
}

fn begun(orders: &[Order]) -> &Action {
    match orders {
        [Order::Begin(action)] => action,
        other => panic!("{other:?}"),
    }
}

fn done(action: &Action, outcome: Result<(), ActionError>) -> Done {
    Done { action: action.clone(), outcome, took: Nanos::millis(5) }
}

#[test]
fn one_step_at_a_time_and_no_decision_before_all_are_done() {
    let mut manager = Manager::new(Config::default(), 1, None, false);
    let world = Told::new(Bytes::gib(2), Bytes::ZERO);
    let mut action = begun(&manager.tick(&world, seconds(1))).clone();
    for block in 0..16 {
        assert!(matches!(action, Action::Online { block: b, .. } if b == block));
        assert_eq!(manager.tick(&world, seconds(1)), [], "one is under way");
        manager.done(done(&action, Ok(())), seconds(1));
        if block < 15 {
            action = begun(&manager.tick(&world, seconds(1))).clone();
        }
    }
    let decided = manager.events().into_iter().filter(|e| matches!(e, Event::Decided { .. }));
    assert_eq!(decided.count(), 1, "2 GiB in sixteen blocks are one decision");
    assert_eq!(manager.counters().brought, Bytes::gib(2));
}

#[test]
fn a_dry_run_prices_what_it_decides_once() {
    let path = format!("{}/../../machines/four-node.toml", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path).unwrap();
    let machine = terrace_core::Machine::parse("four-node", &text).unwrap();
    let figures = crate::economist::Figures::of(&machine, None).unwrap();
    let economist = crate::config::Economist {
        mode: crate::config::Pricing::Shadow,
        machine: "four-node".to_owned(),
        accesses: None,
    };
    let config = Config { economist: Some(economist), ..Config::default() };
    let mut manager = Manager::new(config, 1, Some((figures, Bytes::kib(4))), true);
    let world = Told::new(Bytes::gib(2), Bytes::ZERO);
    for second in 1..5 {
        assert_eq!(manager.tick(&world, seconds(second)), []);
    }
    let events = manager.events();
    let [Event::Priced { .. }, Event::Decided { .. }] = &events[..] else {
        panic!("{events:?}");
    };
}

#[test]
fn a_node_that_becomes_short_has_nothing_more_taken_from_it() {
    let mut manager = Manager::new(Config::default(), 1, None, false);
    let idle = Told::new(Bytes::gib(7), Bytes::gib(4));
    let leaving = begun(&manager.tick(&idle, seconds(100))).clone();
    assert!(leaving.takes());
    let short = Told::new(Bytes::mib(100), Bytes::gib(4));
    assert_eq!(manager.tick(&short, seconds(101)), [Order::Interrupt]);
    let said: Vec<String> = manager.events().iter().map(ToString::to_string).collect();
    assert!(said.iter().any(|line| line.contains("given up: its node is short")), "{said:?}");
    manager.done(done(&leaving, Err(ActionError::Interrupted)), seconds(101));
    let next = manager.tick(&short, seconds(102));
    assert!(matches!(begun(&next), Action::Online { .. }));
}

#[test]
fn a_node_that_fills_between_plan_and_act_is_left_alone() {
    let mut manager = Manager::new(Config::default(), 1, None, false);
    let mut world = Told::new(Bytes::gib(7), Bytes::gib(4));
    world.room = Err("only 12.0 MiB are free".to_owned());
    assert_eq!(manager.tick(&world, seconds(100)), []);
    let events = manager.events();
    assert!(matches!(&events[1], Event::Refused { why, .. } if why.contains("only 12.0 MiB")));
    assert!(matches!(events[2], Event::Dropped { .. }));
    assert_eq!(manager.counters().refusals, 1);
}

#[test]
fn a_node_that_fills_while_a_block_leaves_keeps_it() {
    let mut manager = Manager::new(Config::default(), 1, None, false);
    let mut world = Told::new(Bytes::gib(7), Bytes::gib(4));
    let leaving = begun(&manager.tick(&world, seconds(100))).clone();
    world.room_left = Err("only 9.00 MiB are free where pages move to".to_owned());
    assert_eq!(manager.tick(&world, seconds(101)), [Order::Interrupt]);
    // A signal may have come too early.
    assert_eq!(manager.tick(&world, seconds(102)), [Order::Interrupt]);
    manager.done(done(&leaving, Err(ActionError::Interrupted)), seconds(102));
    let failed = manager.events().into_iter().find(|e| matches!(e, Event::Failed { .. }));
    let failed = failed.unwrap().to_string();
    assert!(failed.contains("interrupted: only 9.00 MiB are free where"), "{failed}");
}

#[test]
fn pauses_grow_with_each_failure_and_end_with_success() {
    let mut manager = Manager::new(Config::default(), 1, None, false);
    let world = Told::new(Bytes::mib(3500), Bytes::mib(128));
    let mut now = seconds(100);
    for expected in [60, 120, 240] {
        let leaving = begun(&manager.tick(&world, now)).clone();
        let busy = std::io::Error::from_raw_os_error(libc::EBUSY);
        let refused = ActionError::Refused { path: "/x".to_owned(), error: busy };
        manager.done(done(&leaving, Err(refused)), now);
        let events = manager.events();
        let pause = events.iter().find_map(|event| match event {
            Event::Failed { pause, .. } => Some(*pause),
            _ => None,
        });
        assert_eq!(pause, Some(seconds(expected)));
        assert_eq!(manager.tick(&world, now + seconds(expected - 1)), [], "left alone");
        now += seconds(expected + 30);
    }
    let leaving = begun(&manager.tick(&world, now)).clone();
    manager.done(done(&leaving, Ok(())), now);
    assert_eq!(manager.counters().given_back, Bytes::mib(128));
}

#[test]
fn looks_are_frequent_where_memory_is_short_or_falls() {
    let mut manager = Manager::new(Config::default(), 1, None, false);
    let idle = Config::default().sampling.idle.0;
    let plenty = Told::new(Bytes::gib(4), Bytes::ZERO);
    let mut eight = Manager::new(Config::default(), 8, None, false);
    eight.tick(&plenty, seconds(1));
    // 4 GiB at 8 · 1.4 GB/s are used up within 383 ms.
    assert_eq!(eight.next_look(seconds(1)).get() / 1_000_000, 191);
    manager.tick(&plenty, seconds(1));
    assert_eq!(manager.next_look(seconds(1)), idle);
    let falls = Told::new(Bytes::mib(4096 - 300), Bytes::ZERO);
    manager.tick(&falls, seconds(2));
    assert_eq!(manager.next_look(seconds(2)), Config::default().sampling.armed.0);
    assert_eq!(manager.next_look(seconds(13)), idle);
    manager.pressure(seconds(20));
    assert!(manager.is_armed(seconds(29)) && !manager.is_armed(seconds(31)));
}
