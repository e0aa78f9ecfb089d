//! The daemon: one loop over events, pressure and questions.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::mm::{MlockAllFlags, mlockall};
use terrace_core::{Bytes, ContextIdentity, Nanos};

use super::documents::{File, List, MemoryStatus, Objects, Sockets as SocketList, Status, Why};
use super::filters::{Filters, Untold};
use super::listing::{Listing, MOST};
use super::source::Source;
use super::state::{Asked, Question, State, StateError};
use super::worker::{self, Done, Way, Worker, is_work};
use crate::act::handle::{self, Mounts};
use crate::act::privileges;
use crate::act::residency::residency;
use crate::decide::contexts::Tracked;
use crate::decide::decider::{Aim, Decider, DeciderConfig, Fill, Request};
use crate::decide::marks::Marks;
use crate::decide::nodes::slow_node;
use crate::decide::scope::Scopes;
use crate::observe::event::{Kind, page};
use crate::observe::hooks::{JOURNAL, JOURNAL_BY_FILE, NAMES, Wanted};
use crate::observe::now;
use crate::observe::programs::Count;
use crate::observe::sockets::{Socket, Sockets};
use crate::report::footprint::{Footprint, dentries};
use crate::report::table::{Known, table};

/// What the daemon is to do.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Control groups whose files are looked at; without any, all that have a limit, and the
    /// machine.
    pub groups: Vec<PathBuf>,
    /// Only files below these directories are touched.
    pub paths: Vec<PathBuf>,
    /// Devices, objects, set of hooks.
    pub wanted: Wanted,
    /// Policy.
    pub config: DeciderConfig,
    /// When memories are short.
    pub marks: Marks,
    /// Its directory.
    pub state: PathBuf,
    /// End after this time.
    pub duration: Option<Nanos>,
}

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// What was asked for cannot be.
    #[error("{0}")]
    BadInput(String),
    /// This machine, or this user, cannot.
    #[error("{0}")]
    Unsupported(String),
    /// Something broke.
    #[error("{0}")]
    Failed(String),
}

/// How long the loop sleeps where memory is not short. The ring has room for 20 000 events.
const PAUSE: Nanos = Nanos::millis(20);
/// How long it sleeps at least and at most where memory is nearly short. A group of 24 MiB keeps 2.4 MiB
/// free, which a program fills within 2 ms.
const NEAR: (Nanos, Nanos) = (Nanos::micros(200), Nanos::millis(2));
/// The daemon's priority (nice).
const PRIORITY: i32 = -10;
/// How often groups, transfers and figures are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// All groups are looked at each so many times.
const LOOKS: u32 = 5;
/// Events that are taken before pressure is looked at again.
const BATCH: usize = 4096;
/// For so long batches are taken before questions and signals are looked at, however many wait. An
/// event of a program in the kernel takes a microsecond, one of fanotify ten or more.
const TURN: Duration = Duration::from_millis(50);

/// A daemon that runs.
///
/// Its parts, and what it shows of itself: a field each.
#[derive(Debug)]
pub struct Daemon {
    setup: Setup,
    source: Source,
    refused: Vec<String>,
    decider: Decider,
    scopes: Scopes,
    worker: Worker,
    state: State,
    sockets: Result<Sockets, String>,
    mounts: Mounts,
    node: Option<u32>,
    rights: Vec<String>,
    locked: bool,
    begun: Nanos,
    transfers: u64,
    /// Blocks that files asked the journal for.
    journal_blocks: u64,
    left_alone: BTreeMap<u64, u64>,
    filters: Filters,
    unknown_groups: bool,
    /// Whether events waited when they were taken last.
    behind: bool,
    /// Lists that are being made, each for whoever asked for it, with how many files were known.
    lists: VecDeque<(Asked, u64, Listing<Tracked, File>)>,
    /// Events that were lost by the last look.
    lost: u64,
    looks: u32,
}

impl Daemon {
    /// Prepares everything; nothing is done to any file yet.
    pub fn new(setup: Setup) -> Result<Self, RunError> {
        let acts = setup.config.enforce;
        let missing = privileges::missing(acts);
        if !missing.is_empty() {
            let names: Vec<_> =
                missing.iter().map(|need| format!("{} (to {})", need.name, need.reason)).collect();
            return Err(RunError::Unsupported(format!(
                "this user lacks {}; root has them, and a systemd unit may give them \
                 (AmbientCapabilities=)",
                names.join(", ")
            )));
        }
        let node = slow_node().filter(|_| setup.groups.is_empty());
        let scopes = Scopes::new(&setup.groups, setup.marks, node).map_err(RunError::BadInput)?;
        let mut state = State::take(&setup.state).map_err(|e| match e {
            StateError::Runs(..) => RunError::Failed(e.to_string()),
            _ => RunError::BadInput(format!("--state: {e}")),
        })?;
        let sentence = |(set, why): &(crate::observe::hooks::HookSet, String)| {
            format!("{}: {why}", set.name())
        };
        let (source, refused) = Source::new(&setup.wanted).map_err(|refused| {
            let all: Vec<_> = refused.iter().map(sentence).collect();
            RunError::Unsupported(format!("no hooks can be had here: {}", all.join("; ")))
        })?;
        let sockets = Sockets::new();
        // By this other daemons know what it does.
        let _ = rustix::thread::set_name(worker::MAIN);
        // It has to run before those that fill memory; without that, it is late more often.
        let _ = rustix::process::setpriority_process(None, PRIORITY);
        // What there is now, for memory is short where the daemon is needed. Not what is mapped later:
        // files would be read whole, and be locked.
        let locked = mlockall(MlockAllFlags::CURRENT).is_ok();
        // From here on only what is needed to open and drop files.
        let rights = privileges::drop_others()
            .map_err(|e| RunError::Failed(format!("dropping rights: {e}")))?;
        state.listen().map_err(|e| RunError::Failed(format!("a thread: {e}")))?;
        let worker = Worker::new(setup.paths.clone())
            .map_err(|e| RunError::Failed(format!("a thread: {e}")))?;
        let slow = scopes.slow().map(|(_, scope)| scope);
        let mut decider = Decider::new(setup.config).moving_to(slow);
        decider.lie_within(scopes.below().to_vec());
        Ok(Self {
            decider,
            refused: refused.iter().map(sentence).collect(),
            rights: rights.into_iter().map(str::to_owned).collect(),
            node,
            mounts: Mounts::default(),
            begun: now(),
            transfers: 0,
            journal_blocks: 0,
            left_alone: BTreeMap::new(),
            filters: Filters::new(&setup.wanted.devices, &setup.groups, worker.paths()),
            unknown_groups: false,
            behind: false,
            lists: VecDeque::new(),
            lost: 0,
            looks: 0,
            setup,
            source,
            scopes,
            worker,
            state,
            sockets,
            locked,
        })
    }

    /// Runs until it is told to stop, or its time is over. `publish` is given the status once a
    /// second.
    ///
    /// # Errors
    /// [`RunError::Failed`] if pages cannot leave any more.
    pub fn run(
        &mut self,
        mut stop: impl FnMut() -> bool,
        mut publish: impl FnMut(&Status),
    ) -> Result<(), RunError> {
        let begun = Instant::now();
        let mut looked = Instant::now();
        self.step();
        publish(&self.status());
        loop {
            let is_over = self
                .setup
                .duration
                .is_some_and(|duration| begun.elapsed() >= Duration::from_nanos(duration.get()));
            self.step();
            if looked.elapsed() >= LOOK || is_over {
                looked = Instant::now();
                self.look();
                publish(&self.status());
            }
            if is_over || stop() || self.worker.broken().is_some() {
                break;
            }
            let pause = pause(self.scopes.pause(NEAR), self.behind || !self.lists.is_empty());
            std::thread::sleep(Duration::from_nanos(pause.get()));
        }
        // What was begun is waited for no longer than it takes; the last status tells of it.
        self.worker.end();
        self.take_done();
        match self.worker.broken() {
            Some(why) => {
                Err(RunError::Failed(format!("the thread that has pages leave has failed: {why}")))
            }
            None => Ok(()),
        }
    }

    /// Takes events, relieves memories, answers questions.
    fn step(&mut self) {
        self.source.poll(self.scopes.are_near());
        self.behind = batches(Instant::now, || {
            let left = self.take_events();
            self.take_done();
            self.relieve();
            left
        });
        for asked in self.state.asked() {
            self.answer(asked);
        }
        self.go_on_with_lists();
    }

    /// Takes a batch of events; whether there may be more.
    fn take_events(&mut self) -> bool {
        for _ in 0..BATCH {
            let Some(event) = self.source.next_event() else { return false };
            if is_work(&event) {
                continue;
            }
            // Of a group that came since the last look, it is not known yet whose memory it is.
            if event.group != 0 && !self.scopes.knows(event.group) {
                if self.scopes.is_to_be_found(event.group, now()) {
                    self.look_at_groups();
                }
                self.unknown_groups |= !self.scopes.knows(event.group);
            }
            // The inode of a file may be dropped by anybody; and who has a file open may give it to
            // a group that is not looked at, or have ended before it could be asked whose it is.
            let known = self.decider.scope_of(&event.file);
            let of_group = match event.kind {
                Kind::Evicted => None,
                _ if event.group == 0 && known.is_some() => None,
                _ => self.scopes.of(event.group),
            };
            let Some(scope) = of_group.or(known) else { continue };
            self.filters.saw(&event.file, self.scopes.group(scope));
            if !handle::is_supported(event.magic) {
                *self.left_alone.entry(event.magic).or_default() += 1;
                continue;
            }
            if let Some(request) = self.decider.event(&event, scope) {
                self.ask(request, Way::Drop);
            }
        }
        true
    }

    fn take_done(&mut self) {
        for Done { decision, outcome, again, at } in self.worker.done() {
            self.decider.done(decision, outcome, again, at);
        }
    }

    fn ask(&mut self, request: Request, way: Way) {
        if let Some(Done { decision, outcome, again, at }) = self.worker.ask(request, way) {
            self.decider.done(decision, outcome, again, at);
        }
    }

    /// Relieves memories that can be short by now.
    fn relieve(&mut self) {
        for scope in 0..self.scopes.len() {
            let now = now();
            let is_machine = self.scopes.is_machine(scope);
            let Some(fill) = self.scopes.look_at(scope, now) else { continue };
            let requests = self.decider.relieve(scope, fill, now);
            // What a group is charged for does not get less by moving it.
            let way = match self.node {
                Some(node) if is_machine => Way::Node(node),
                _ => Way::Drop,
            };
            for request in requests {
                self.ask(request, way);
            }
        }
    }

    fn look(&mut self) {
        let lost = self.source.lost();
        // What looks tell to be closed is closed, whatever was lost.
        if std::mem::replace(&mut self.lost, lost) != lost && self.source.set().tells_each_open() {
            self.decider.doubt();
        }
        if let Some(open) = self.source.open_files() {
            self.decider.counted(|file| open.pages(file));
        }
        // A group that has got a limit since has told of nothing.
        self.looks += 1;
        if std::mem::take(&mut self.unknown_groups) || self.looks.is_multiple_of(LOOKS) {
            self.look_at_groups();
        } else {
            self.scopes.look_at_limits();
        }
        self.look_for_paths();
        if self.setup.wanted.objects {
            let taken = self.source.take_transfers();
            self.transfers += taken.values().map(|(count, _)| count).sum::<u64>();
            self.decider.transferred(&taken);
            let taken = self.source.take_journal();
            self.journal_blocks += taken.values().map(|asked| asked.blocks).sum::<u64>();
            self.decider.journaled(&taken);
            // They are taken in any case, so that the table has room. With some of the hooks alone a
            // name would come and never go.
            let taken = self.source.take_names();
            if self.source.knows(NAMES) {
                self.decider.named(&taken);
            }
        }
    }

    /// Looks at which groups there are; files of those that went belong to others.
    fn look_at_groups(&mut self) {
        for gone in self.scopes.look() {
            self.decider.merge(gone.scope, gone.to);
        }
        self.decider.lie_within(self.scopes.below().to_vec());
    }

    /// Has files looked at where nothing was seen below a directory that was named.
    fn look_for_paths(&mut self) {
        let contexts = self.decider.contexts();
        let known = contexts.iter().map(|tracked| (tracked.arrival, tracked.context.id));
        self.filters.hand_over(known, |context| {
            let Some(tracked) = contexts.get(context) else { return false };
            let (file, magic, bytes) = (tracked.context.identity, tracked.magic, tracked.bytes());
            let request = Request { context, decision: 0, file, magic, bytes, aim: Aim::Look };
            self.worker.look(request)
        });
    }

    /// Filters of which nothing was seen, a sentence each.
    fn unseen(&self) -> Vec<String> {
        let contexts = self.decider.contexts();
        self.filters.unseen(&Untold {
            files: contexts.ever(),
            waiting: self.filters.waiting(contexts.iter().map(|tracked| tracked.arrival)),
            lost: self.source.lost(),
            behind: self.behind,
        })
    }

    /// What it does.
    pub fn status(&self) -> Status {
        let contexts = self.decider.contexts();
        Status {
            process: std::process::id(),
            running: now().saturating_sub(self.begun),
            enforce: self.decider.config().enforce,
            hooks: self.source.set(),
            refused: self.refused.clone(),
            lacks: self.lacks(),
            rights: self.rights.clone(),
            locked: self.locked,
            way: match self.node {
                Some(node) => {
                    format!("moved to node {node}, dropped where that is short; dropped for groups")
                }
                None => "dropped".to_owned(),
            },
            memories: (0..self.scopes.len())
                .filter_map(|scope| {
                    let Fill { name, used, limit, high, .. } = self.scopes.fill(scope)?.clone();
                    let waiting = self.decider.waiting(scope) as u64;
                    Some(MemoryStatus { name, used, limit, high, waiting })
                })
                .collect(),
            contexts: contexts.len() as u64,
            active: contexts.iter().filter(|tracked| tracked.is_active()).count() as u64,
            cached: contexts.iter().map(Tracked::bytes).sum(),
            lost: self.source.lost(),
            full: self.source.count(Count::Full).unwrap_or(0),
            doubts: contexts.doubts(),
            totals: self.decider.totals(),
            left_alone: self
                .left_alone
                .iter()
                .map(|(&magic, &count)| (handle::file_system_name(magic), count))
                .collect(),
            unseen: self.unseen(),
            processor: Nanos(terrace_clocks::process_time().as_nanos() as u64),
        }
    }

    fn lacks(&self) -> Vec<String> {
        let mut lacks = self.source.lacks();
        if let Err(why) = &self.sockets {
            lacks.push(format!("sockets: {why}"));
        }
        lacks
    }

    fn file(mounts: &mut Mounts, tracked: &Tracked, memory: String) -> File {
        let context = &tracked.context;
        let name = mounts
            .open(&context.identity, tracked.magic)
            .ok()
            .and_then(|file| Mounts::name(&file))
            .map(|name| name.display().to_string());
        let end = tracked.command.iter().position(|&byte| byte == 0).unwrap_or(16);
        File {
            name,
            file: context.identity,
            file_system: handle::file_system_name(tracked.magic),
            active: tracked.is_active(),
            opens: context.opens,
            opened: tracked.opened,
            hits: tracked.hits,
            cached: tracked.bytes(),
            length: tracked.length,
            extents: tracked.extents,
            names: tracked.names.map(|names| names.count),
            transfers: tracked.transfers,
            transferred: tracked.transferred,
            journal_handles: tracked.journaled.handles,
            journal_blocks: tracked.journaled.blocks,
            closed_for: (!tracked.is_active())
                .then(|| context.last_close.map(|at| now().saturating_sub(at)))
                .flatten(),
            gone: tracked.gone.is_some(),
            memory,
            command: String::from_utf8_lossy(&tracked.command[..end]).into_owned(),
        }
    }

    fn memory_name(scopes: &Scopes, scope: usize) -> String {
        scopes.fill(scope).map_or_else(|| "gone".to_owned(), |fill| fill.name.clone())
    }

    /// Begins a list for whoever asked for it.
    fn list(&mut self, asked: Asked, count: usize) {
        let contexts = self.decider.contexts();
        let known = contexts.len() as u64;
        let mut all: Vec<_> = contexts.iter().collect();
        all.sort_unstable_by_key(|t| (std::cmp::Reverse(t.pages), t.context.id));
        let listing = Listing::new(all.into_iter().cloned(), count, Instant::now());
        self.lists.push_back((asked, known, listing));
    }

    /// Makes a part of the list that was asked for first; answers when that is all of it.
    fn go_on_with_lists(&mut self) {
        let (mounts, scopes) = (&mut self.mounts, &self.scopes);
        let Some((_, _, first)) = self.lists.front_mut() else { return };
        let is_last = first.go_on(Instant::now, |tracked| {
            Self::file(mounts, tracked, Self::memory_name(scopes, tracked.scope))
        });
        if is_last && let Some((asked, known, listing)) = self.lists.pop_front() {
            let (files, cut) = listing.into_files();
            let bounds = self.source.set().bounds().map(str::to_owned);
            asked.answer(&List { known, files, cut, bounds, unseen: self.unseen() });
        }
    }

    fn why(&mut self, identity: &ContextIdentity) -> Why {
        let tracked = self.decider.contexts().find(identity).cloned();
        let decisions: Vec<_> = self.decider.journal().of(identity).take(16).cloned().collect();
        let Some(tracked) = tracked else {
            let because = vec![
                "no open and no close of it has been seen since the daemon began, or it was \
                 forgotten since; what is not known does not leave"
                    .to_owned(),
            ];
            return Why { file: None, cached: None, because, decisions };
        };
        let memory = Self::memory_name(&self.scopes, tracked.scope);
        let opened = self.mounts.open(identity, tracked.magic).ok();
        let cached = opened.and_then(|file| residency(&file).ok()).map(|r| page() * r.cached);
        let because = self.because(&tracked, cached);
        let file = Self::file(&mut self.mounts, &tracked, memory);
        Why { file: Some(file), cached, because, decisions }
    }

    /// What holds for a file, in sentences.
    fn because(&self, tracked: &Tracked, cached: Option<Bytes>) -> Vec<String> {
        let mut because = Vec::new();
        let most = self.decider.config().hits;
        if tracked.is_active() {
            let times = tracked.context.opens;
            because.push(format!("it stays: it is open {times} times, and what is open stays"));
        } else if tracked.hits > most {
            because.push(format!(
                "it stays: it was opened again {} times while its pages were in place, and more \
                 than {} are reuse",
                tracked.hits, most
            ));
        } else if let Some(gone) = tracked.gone {
            let verb = if self.decider.config().enforce { "have left" } else { "would have left" };
            because.push(format!("{} of it {verb}; nobody has opened it since", gone.bytes));
        } else if cached.is_some_and(Bytes::is_zero) {
            because.push("nothing of it is cached".to_owned());
        } else {
            because.push(format!(
                "it waits: nobody has it open, and it came back {} times in place, which is no \
                 reuse yet; what was closed first leaves first",
                tracked.hits
            ));
        }
        if tracked.refusals > 0 {
            because.push(format!(
                "it could not leave {} times since it was closed, and is tried again ever more \
                 seldom while memory is short",
                tracked.refusals
            ));
        }
        because.extend(self.source.set().bounds().map(str::to_owned));
        if let Some(Fill { name, used, limit, high, .. }) = self.scopes.fill(tracked.scope) {
            let share = used.as_f64() / limit.as_f64();
            let verb = if used > high { "is" } else { "is not" };
            because.push(format!(
                "{name} {verb} short: {used} of {limit} are in use, {:.1} %; files leave above \
                 {high}",
                share * 100.0,
            ));
        }
        because
    }

    fn objects(&mut self) -> Objects {
        let sockets = self.list_sockets();
        let (objects, source) = (self.setup.wanted.objects, &self.source);
        let counted = |what: Count| source.count(what).filter(|_| objects);
        let contexts = self.decider.contexts();
        let extents: Vec<u64> = contexts.iter().filter_map(|t| t.extents.map(u64::from)).collect();
        let receive = counted(Count::ReceiveHeld)
            .zip(counted(Count::ReceiveReleased))
            .map(|(held, released)| held.saturating_sub(released));
        let names = contexts.iter().filter_map(|tracked| tracked.names);
        let known = Known {
            set: Some(self.source.set()),
            contexts: contexts.len() as u64,
            pages: contexts.iter().map(|t| t.pages).sum(),
            extents: (!extents.is_empty()).then(|| extents.iter().sum()),
            objects,
            dentries: dentries(),
            names: source.has_names().then(|| names.map(|names| u64::from(names.count)).sum()),
            names_live: source.knows(NAMES),
            transfers: objects.then_some(self.transfers),
            requests: counted(Count::Requests),
            journal: counted(Count::Journal).filter(|_| source.knows(JOURNAL)),
            journal_blocks: source.knows(JOURNAL_BY_FILE).then_some(self.journal_blocks),
            sockets: sockets
                .as_ref()
                .ok()
                .map(|all| (all.len() as u64, all.iter().map(Socket::memory).sum())),
            packets: counted(Count::Packets),
            receive,
        };
        Objects {
            hooks: Some(self.source.set()),
            observed: now().saturating_sub(self.begun),
            table: table(&known, page()),
            footprint: Footprint::now(),
            lifetimes: self.decider.contexts().lifetimes().clone(),
            lacks: self.lacks(),
            unseen: self.unseen(),
        }
    }

    fn list_sockets(&mut self) -> Result<Vec<Socket>, String> {
        match &mut self.sockets {
            Ok(sockets) => sockets.list(now()),
            Err(why) => Err(why.clone()),
        }
    }

    fn answer(&mut self, asked: Asked) {
        match asked.question.clone() {
            Question::Status => asked.answer(&self.status()),
            Question::List { count } => self.list(asked, count),
            Question::Why { file } => asked.answer(&self.why(&file)),
            Question::Report => asked.answer(&self.objects()),
            Question::Sockets { count } => {
                let answer = self.list_sockets().map(|mut all| {
                    all.sort_by_key(|socket| std::cmp::Reverse(socket.memory()));
                    let (known, memory) = (all.len() as u64, all.iter().map(Socket::memory).sum());
                    let cut = count.min(all.len()) > MOST;
                    all.truncate(count.min(MOST));
                    SocketList { known, memory, sockets: all, cut }
                });
                asked.answer(&answer);
            }
        }
    }
}

/// How long the loop sleeps, where memories have to be looked at after so long; not at all where there is
/// more to do already: the ring would be full meanwhile.
fn pause(until: Option<Nanos>, has_more: bool) -> Nanos {
    if has_more { Nanos::ZERO } else { until.map_or(PAUSE, |until| until.min(PAUSE)) }
}

/// Takes batches until one says that nothing is left, or for a turn: whether something is.
fn batches(mut now: impl FnMut() -> Instant, mut batch: impl FnMut() -> bool) -> bool {
    let begun = now();
    while batch() {
        if now().saturating_duration_since(begun) >= TURN {
            return true;
        }
    }
    false
}

/// What can be said of kernel objects where no daemon runs: which hooks there would be is tried, and
/// of what they would tell there is nothing yet.
pub fn objects_without_daemon(wanted: &Wanted) -> Objects {
    let mut known = Known { dentries: dentries(), ..Known::default() };
    let mut lacks: Vec<String> = match Source::new(wanted) {
        Ok((source, _)) => {
            known.set = Some(source.set());
            known.names = source.has_names().then_some(0);
            known.extents = source.has_extents().then_some(0);
            source.lacks()
        }
        Err(refused) => refused.iter().map(|(set, why)| format!("{}: {why}", set.name())).collect(),
    };
    match Sockets::new() {
        Ok(_) => known.sockets = Some((0, Bytes::ZERO)),
        Err(why) => lacks.push(format!("sockets: {why}")),
    }
    Objects {
        hooks: known.set,
        observed: Nanos::ZERO,
        table: table(&known, page()),
        footprint: Footprint::now(),
        lifetimes: crate::report::lifetimes::Lifetimes::default(),
        lacks,
        unseen: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Programs may open and close files faster than anybody looks at that.
    #[test]
    fn who_asks_has_a_turn_however_many_events_wait() {
        let clock = Cell::new(Instant::now());
        let take = |until: usize, each: Duration| {
            let mut taken = 0;
            let left = batches(
                || clock.get(),
                || {
                    taken += 1;
                    clock.set(clock.get() + each);
                    taken < until
                },
            );
            (taken, left)
        };
        assert_eq!(take(usize::MAX, TURN / 10), (10, true), "there is always more");
        assert_eq!(take(usize::MAX, TURN * 2), (1, true), "slow ones");
        assert_eq!(take(3, TURN / 10), (3, false), "it is all");
        assert_eq!(take(1, TURN * 2), (1, false));
    }

    /// The ring is full before a pause is over.
    #[test]
    fn there_is_no_pause_while_events_wait() {
        assert_eq!([Some(NEAR.1), None].map(|near| pause(near, true)), [Nanos::ZERO; 2]);
        assert_eq!([Some(NEAR.1), None].map(|near| pause(near, false)), [NEAR.1, PAUSE]);
    }
}
