//! The simulated kernel against a naive model: any calls, under any strategy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use terrace_core::context::{ContextChange, ContextIdentity, ObjectId};
use terrace_core::{
    Action, Bytes, ContextEvent, ContextId, EventRef, FaultKind, ObjectKind, PageRef, TierId,
};
use terrace_kloc::policy::{
    KernelObjects, Leaving, ObjectsConfig, Strategy as Tiering, StrategyConfig,
};
use terrace_kloc::{GuardConfig, Kmap, KmapConfig};
use terrace_policy::Policy;
use terrace_sim::kernel::{
    Advice, Call, CallError, Costs, Detail, Kernel, KernelConfig, SocketsConfig,
};
use terrace_sim::machines;

/// Few enough files and sockets that calls meet.
const NAMES: u32 = 6;

/// A machine of 6 MiB, an eighth of it fast: a few hundred pages of files have to leave.
fn config(detail: Detail) -> KernelConfig {
    let mut machine = machines::load("kloc-two-tier").expect("built in");
    machine.tiers[0].capacity.value = Bytes::kib(768);
    machine.tiers[1].capacity.value = Bytes::kib(5376);
    if detail == Detail::Placement {
        machine.cpu.llc.value = Bytes::kib(64);
    }
    let costs = Costs::builtin().scaled(10_000);
    KernelConfig { costs, detail, tells_ahead: true, ..KernelConfig::new(machine) }
}

/// Two sockets of 6 MiB and 1 MiB of cache each; the program runs on one and is moved to the other.
fn sockets() -> KernelConfig {
    let mut machine = machines::load("kloc-memory-mode").expect("built in");
    machine.tiers[0].capacity.value = Bytes::kib(6144);
    // What is streamed through takes 2 MiB.
    machine.tiers[1].capacity.value = Bytes::kib(8192);
    machine.dram_cache.as_mut().expect("it has one").capacity.value = Bytes::kib(1024);
    machine.cpu.llc.value = Bytes::kib(64);
    let sockets = Some(SocketsConfig { streams: 2, moves: true });
    KernelConfig { costs: Costs::builtin().scaled(10_000), sockets, ..KernelConfig::new(machine) }
}

/// What contexts have, by the events alone.
#[derive(Debug, Default)]
struct Naive {
    objects: BTreeMap<ObjectId, (ContextId, ObjectKind, PageRef)>,
    contexts: BTreeMap<ContextId, (ContextIdentity, u32)>,
    cache_pages: BTreeSet<PageRef>,
    /// Whether a page lies somewhere, of those that were heard of.
    placed: BTreeMap<PageRef, bool>,
    ended: u64,
    moved: u64,
    wrong: Vec<String>,
}

impl Naive {
    fn hear(&mut self, event: EventRef<'_>) {
        match event {
            EventRef::Context { event } => self.context(event),
            EventRef::Fault { page, kind: FaultKind::FirstTouch(_), .. } => {
                let twice = self.placed.insert(page, true) == Some(true);
                self.wrong.extend(twice.then(|| format!("{page} is placed twice")));
            }
            EventRef::Discard { range } => {
                for page in range.pages() {
                    if self.placed.insert(page, false) == Some(false) {
                        self.wrong.push(format!("{page} is freed twice"));
                    }
                }
            }
            EventRef::Done { done, .. } if done.outcome.is_completed() => {
                let pages: Vec<PageRef> = match done.proposal.action {
                    Action::Promote { page, .. } | Action::Demote { page, .. } => vec![page],
                    Action::Exchange { promote, demote, .. } => vec![promote, demote],
                    _ => return,
                };
                self.moved += pages.len() as u64;
                // All objects of an ended context are freed, and their pages with them.
                for page in pages.iter().filter(|&page| self.placed.get(page) == Some(&false)) {
                    self.wrong.push(format!("{page} is moved, and lies nowhere"));
                }
            }
            _ => {}
        }
    }

    fn context(&mut self, event: &ContextEvent) {
        let id = event.context;
        let known = self.contexts.contains_key(&id);
        if known == matches!(event.change, ContextChange::Created { .. }) {
            self.wrong.push(format!("{event:?}: the context lives: {known}"));
        }
        match event.change {
            ContextChange::Created { identity } => {
                self.contexts.insert(id, (identity, 0));
            }
            ContextChange::Opened => self.contexts.get_mut(&id).expect("known").1 += 1,
            ContextChange::Closed => {
                let opens = &mut self.contexts.get_mut(&id).expect("known").1;
                *opens = opens.checked_sub(1).expect("closed as often as it was opened");
            }
            ContextChange::Added { object, kind, page } => {
                if self.objects.insert(object, (id, kind, page)).is_some() {
                    self.wrong.push(format!("{object:?} is added twice"));
                }
                if kind == ObjectKind::PageCachePage && !self.cache_pages.insert(page) {
                    self.wrong.push(format!("{page} is in two files"));
                }
            }
            ContextChange::Removed { object, kind } => match self.objects.remove(&object) {
                Some((context, had, page)) if (context, had) == (id, kind) => {
                    if kind == ObjectKind::PageCachePage {
                        self.cache_pages.remove(&page);
                    }
                }
                other => self.wrong.push(format!("{event:?}: it was {other:?}")),
            },
            ContextChange::Deleted | ContextChange::Evicted => {
                let left = self.objects.values().filter(|object| object.0 == id).count();
                let (_, opens) = self.contexts.remove(&id).expect("known");
                if left > 0 || opens > 0 {
                    self.wrong.push(format!("{id:?} ends with {left} objects, open {opens} times"));
                }
                self.ended += 1;
            }
            ContextChange::Ahead { object } => {
                if self.objects.get(&object).is_none_or(|&(owner, _, _)| owner != id) {
                    self.wrong.push(format!("{event:?}: no member of it"));
                }
            }
            ContextChange::Accessed | ContextChange::Renamed => {}
        }
    }
}

/// What a file is, for a caller.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    exists: bool,
    named: bool,
    handles: u32,
    maps: u32,
    size: u64,
}

/// What calls come to, by their meaning alone.
#[derive(Debug, Default)]
struct Meaning {
    files: [Known; NAMES as usize],
    sockets: [Option<u32>; NAMES as usize],
}

impl Meaning {
    /// The error that a call has, or none; then it is done.
    fn call(&mut self, call: Call) -> Option<CallError> {
        match call {
            Call::Create { file } => {
                let known = &mut self.files[file as usize];
                if known.exists {
                    return Some(CallError::FileExists(file));
                }
                *known = Known { exists: true, named: true, handles: 1, ..Known::default() };
            }
            Call::Open { file } | Call::Stat { file } | Call::Rename { file } => {
                let known = &mut self.files[file as usize];
                if !known.named {
                    return Some(CallError::NoFile(file));
                }
                known.handles += u32::from(matches!(call, Call::Open { .. }));
            }
            Call::Unlink { file } => {
                let known = &mut self.files[file as usize];
                if !known.named {
                    return Some(CallError::NoFile(file));
                }
                known.named = false;
                known.end();
            }
            Call::Close { file }
            | Call::Fsync { file }
            | Call::Map { file }
            | Call::Advise { file, .. }
            | Call::Read { file, .. }
            | Call::Write { file, .. } => {
                let known = &mut self.files[file as usize];
                if !known.exists {
                    return Some(CallError::NoFile(file));
                }
                if known.handles == 0 {
                    return Some(CallError::NotOpen(file));
                }
                match call {
                    Call::Close { .. } => {
                        known.handles -= 1;
                        known.end();
                    }
                    Call::Map { .. } => known.maps += 1,
                    Call::Write { offset, bytes, .. } => {
                        known.size = known.size.max(offset + u64::from(bytes));
                    }
                    _ => {}
                }
            }
            Call::Unmap { file } => {
                let known = &mut self.files[file as usize];
                if !known.exists {
                    return Some(CallError::NoFile(file));
                }
                if known.maps == 0 {
                    return Some(CallError::NotMapped(file));
                }
                known.maps -= 1;
                known.end();
            }
            Call::Access { file, offset, bytes, .. } => {
                let known = &self.files[file as usize];
                if !known.exists {
                    return Some(CallError::NoFile(file));
                }
                if known.maps == 0 {
                    return Some(CallError::NotMapped(file));
                }
                if offset + u64::from(bytes) > known.size {
                    return Some(CallError::BeyondEnd(file, offset));
                }
            }
            Call::Socket { socket } | Call::Accept { socket } => {
                if self.sockets[socket as usize].is_some() {
                    return Some(CallError::SocketExists(socket));
                }
                self.sockets[socket as usize] = Some(0);
            }
            Call::Arrive { socket, .. } => match &mut self.sockets[socket as usize] {
                Some(waiting) => *waiting += 1,
                None => return Some(CallError::NoSocket(socket)),
            },
            Call::Recv { socket } | Call::Epoll { socket } => {
                match &mut self.sockets[socket as usize] {
                    None => return Some(CallError::NoSocket(socket)),
                    Some(0) => return Some(CallError::NothingArrived(socket)),
                    Some(waiting) if matches!(call, Call::Recv { .. }) => *waiting = 0,
                    Some(_) => {}
                }
            }
            Call::Connect { socket } | Call::Send { socket, .. } => {
                let there = self.sockets[socket as usize].is_some();
                return (!there).then_some(CallError::NoSocket(socket));
            }
            Call::CloseSocket { socket } => {
                let there = self.sockets[socket as usize].take().is_some();
                return (!there).then_some(CallError::NoSocket(socket));
            }
            _ => {}
        }
        None
    }
}

impl Known {
    /// A file without a name ends with its last use.
    fn end(&mut self) {
        if !self.named && self.handles == 0 && self.maps == 0 {
            *self = Self::default();
        }
    }
}

fn calls() -> impl Strategy<Value = Call> {
    let file = 0..NAMES;
    let place = (0..NAMES, 0u64..400_000, 1u32..150_000);
    prop_oneof![
        3 => file.clone().prop_map(|file| Call::Create { file }),
        3 => file.clone().prop_map(|file| Call::Open { file }),
        3 => file.clone().prop_map(|file| Call::Close { file }),
        8 => place.clone().prop_map(|(file, offset, bytes)| Call::Read { file, offset, bytes }),
        8 => place.clone().prop_map(|(file, offset, bytes)| Call::Write { file, offset, bytes }),
        1 => file.clone().prop_map(|file| Call::Fsync { file }),
        2 => (place.clone(), 0usize..5).prop_map(|((file, offset, bytes), advice)| {
            // 0 stands for all up to the end.
            let bytes = u64::from(bytes).saturating_sub(50_000);
            Call::Advise { file, offset, bytes, advice: Advice::ALL[advice] }
        }),
        1 => file.clone().prop_map(|file| Call::Unlink { file }),
        1 => file.clone().prop_map(|file| Call::Rename { file }),
        1 => file.clone().prop_map(|file| Call::Stat { file }),
        1 => (0u32..100).prop_map(|entries| Call::ReadDir { entries }),
        1 => file.clone().prop_map(|file| Call::Map { file }),
        1 => file.clone().prop_map(|file| Call::Unmap { file }),
        2 => (place, any::<bool>()).prop_map(|((file, offset, bytes), store)| {
            Call::Access { file, offset, bytes: bytes % 9000 + 1, store }
        }),
        1 => file.clone().prop_map(|socket| Call::Socket { socket }),
        1 => file.clone().prop_map(|socket| Call::Accept { socket }),
        1 => file.clone().prop_map(|socket| Call::Connect { socket }),
        3 => (file.clone(), 1u32..20_000)
            .prop_map(|(socket, bytes)| Call::Arrive { socket, bytes }),
        2 => file.clone().prop_map(|socket| Call::Epoll { socket }),
        2 => file.clone().prop_map(|socket| Call::Recv { socket }),
        2 => (file.clone(), 1u32..20_000)
            .prop_map(|(socket, bytes)| Call::Send { socket, bytes }),
        1 => file.prop_map(|socket| Call::CloseSocket { socket }),
        2 => (0u32..100, 1u8..65, any::<bool>())
            .prop_map(|(page, lines, store)| Call::Touch { page, lines, store }),
        1 => (0u32..90, 1u32..10).prop_map(|(page, count)| Call::Release { page, count }),
        1 => (1u64..3_000_000)
            .prop_map(|time| Call::Compute { time: terrace_core::Nanos(time) }),
    ]
}

const STRATEGIES: [Tiering; 9] = [
    Tiering::AllSlow,
    Tiering::Naive,
    Tiering::Nimble,
    Tiering::NimblePlusPlus,
    Tiering::KlocsNoMigration,
    Tiering::Klocs,
    Tiering::KlocsGuarded,
    Tiering::KlocsPrefetch,
    Tiering::AllFast,
];

fn policy(strategy: usize) -> Box<dyn Policy> {
    let config = StrategyConfig::new(2, 1000);
    STRATEGIES[strategy % STRATEGIES.len()].build(&config)
}

/// Makes those of the calls that their meaning allows, then lets go of everything; gives what
/// was heard.
fn run(
    policy: Box<dyn Policy>,
    config: &KernelConfig,
    calls: &[(usize, Call)],
) -> Result<(Naive, Kernel), TestCaseError> {
    let mut kernel = Kernel::new(config, policy, 2, 100).expect("it fits");
    let naive = Arc::new(Mutex::new(Naive::default()));
    let ears = Arc::clone(&naive);
    let known = Arc::new(Mutex::new(Kmap::new(KmapConfig::new(2, 3))));
    let kmap = Arc::clone(&known);
    let journal = kernel.journal_context();
    kernel.record(Some(Box::new(move |event| {
        // The journal's own file was there before anybody listened.
        if let EventRef::Context { event } = event {
            if event.context == journal {
                return;
            }
            kmap.lock().expect("no panic").event(event).expect("legal");
        }
        ears.lock().expect("no panic").hear(event);
    })));
    let mut meaning = Meaning::default();
    for &(thread, call) in calls {
        if meaning.copy().call(call).is_some() {
            continue;
        }
        meaning.call(call);
        if let Err(refused) = kernel.call(thread, call) {
            prop_assert!(false, "{call:?}: {refused}");
        }
    }
    kernel.audit().map_err(TestCaseError::fail)?;
    {
        let (naive, kmap) = (naive.lock().expect("no panic"), known.lock().expect("no panic"));
        prop_assert_eq!(&naive.wrong, &Vec::<String>::new());
        kmap.audit().map_err(TestCaseError::fail)?;
        let members: usize = kmap.knodes().map(terrace_kloc::Knode::len).sum();
        prop_assert_eq!(members, naive.objects.len());
        prop_assert_eq!(kmap.knodes().count(), naive.contexts.len());
        prop_assert_eq!(naive.cache_pages.len() as u32, kernel.cached_pages());
        for file in 0..NAMES {
            let known = meaning.files[file as usize];
            let of = |c: &&(ContextIdentity, u32)| matches!(c.0, ContextIdentity::File { inode, .. } if inode == u64::from(file));
            let opens: u32 = naive.contexts.values().filter(of).map(|c| c.1).sum();
            prop_assert_eq!(opens, known.handles + known.maps, "file {}", file);
        }
    }
    // Everything is closed and deleted.
    for file in 0..NAMES {
        let known = meaning.files[file as usize];
        let mut last = vec![Call::Close { file }; known.handles as usize];
        last.extend(vec![Call::Unmap { file }; known.maps as usize]);
        if known.named {
            last.push(Call::Unlink { file });
        }
        for call in last {
            kernel.call(0, call).expect("legal");
        }
        if meaning.sockets[file as usize].is_some() {
            kernel.call(1, Call::CloseSocket { socket: file }).expect("legal");
        }
    }
    kernel.audit().map_err(TestCaseError::fail)?;
    prop_assert_eq!(kernel.cached_pages(), 0);
    kernel.record(None);
    let naive = core::mem::take(&mut *naive.lock().expect("no panic"));
    prop_assert_eq!(&naive.wrong, &Vec::<String>::new());
    prop_assert!(naive.contexts.is_empty(), "{:?} live on", naive.contexts);
    prop_assert!(naive.objects.is_empty(), "{:?} live on", naive.objects);
    Ok((naive, kernel))
}

impl Meaning {
    fn copy(&self) -> Self {
        Self { files: self.files, sockets: self.sockets }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// No object outlives its context, a page belongs to one file, nothing that is gone is
    /// moved, and all books are those of the naive model.
    #[test]
    fn random_calls_keep_all_books(
        strategy in 0usize..9,
        calls in prop::collection::vec((0usize..2, calls()), 1..250),
    ) {
        run(policy(strategy), &config(Detail::Placement), &calls)?;
    }

    /// The same on two sockets, where pages follow a program that was moved.
    #[test]
    fn random_calls_on_two_sockets_keep_all_books(
        strategy in 0usize..5,
        moved_after in 0usize..250,
        calls in prop::collection::vec((0usize..2, calls()), 1..250),
    ) {
        let policy = Tiering::SOCKETS[strategy].build(&StrategyConfig::new(2, 1000));
        let mut calls = calls;
        calls.insert(moved_after.min(calls.len()), (0, Call::Measure));
        run(policy, &sockets(), &calls)?;
    }

    /// A call that its meaning forbids is refused, with the error that says why, and nothing
    /// else is.
    #[test]
    fn what_a_call_cannot_mean_is_refused(
        calls in prop::collection::vec((0usize..2, calls()), 1..120),
    ) {
        let mut kernel =
            Kernel::new(&config(Detail::Placement), policy(1), 2, 100).expect("it fits");
        let mut meaning = Meaning::default();
        for (number, (thread, call)) in calls.into_iter().enumerate() {
            let expected = meaning.call(call);
            let got = kernel.call(thread, call).err();
            prop_assert_eq!(got.map(|refused| refused.error), expected, "{:?}", call);
            if let Some(refused) = got {
                prop_assert_eq!(refused.number, number as u64 + 1);
            }
        }
        kernel.audit().map_err(TestCaseError::fail)?;
    }

    /// The kmap inside of the policy is right, too, wherever pages were moved.
    #[test]
    fn the_policy_knows_where_everything_lies(
        guarded in any::<bool>(),
        calls in prop::collection::vec((0usize..2, calls()), 1..250),
    ) {
        let guard = Leaving::UnderPressure(GuardConfig { high: 0.5, low: 0.3, hits: 1 });
        let leaving = if guarded { guard } else { Leaving::AtClose };
        let objects = KernelObjects::new(ObjectsConfig {
            tick: terrace_core::Nanos::micros(100),
            pass: terrace_core::Nanos::millis(1),
            ..ObjectsConfig::new(2, leaving)
        });
        let shared = Shared(Arc::new(Mutex::new(objects)));
        run(Box::new(Shared(Arc::clone(&shared.0))), &config(Detail::Placement), &calls)?;
        shared.0.lock().expect("no panic").audit().map_err(TestCaseError::fail)?;
    }
}

/// A policy that can be looked at while a kernel has it.
struct Shared(Arc<Mutex<KernelObjects>>);

macro_rules! with {
    ($self:ident . $method:ident ( $($argument:expr),* )) => {
        $self.0.lock().expect("no panic").$method($($argument),*)
    };
}

impl Policy for Shared {
    fn name(&self) -> &'static str {
        "shared"
    }
    fn needs(&self) -> terrace_policy::Needs {
        with!(self.needs())
    }
    fn alloc(&mut self, region: &terrace_core::Region) {
        with!(self.alloc(region));
    }
    fn fault(
        &mut self,
        page: PageRef,
        kind: FaultKind,
        telemetry: &terrace_core::Telemetry,
    ) -> TierId {
        with!(self.fault(page, kind, telemetry))
    }
    fn samples(&mut self, samples: &[terrace_core::Sample]) {
        with!(self.samples(samples));
    }
    fn context(&mut self, event: &ContextEvent) {
        with!(self.context(event));
    }
    fn free(&mut self, range: terrace_core::PageRange, whole: bool) {
        with!(self.free(range, whole));
    }
    fn tick(&mut self, telemetry: &terrace_core::Telemetry, plan: &mut terrace_core::Plan) {
        with!(self.tick(telemetry, plan));
    }
    fn pressure(
        &mut self,
        tier: TierId,
        bytes: Bytes,
        telemetry: &terrace_core::Telemetry,
        plan: &mut terrace_core::Plan,
    ) {
        with!(self.pressure(tier, bytes, telemetry, plan));
    }
    fn done(&mut self, done: &terrace_core::Done) {
        with!(self.done(done));
    }
    fn footprint(&self) -> terrace_policy::Footprint {
        with!(self.footprint())
    }
}

/// A file of 4 MiB: written, closed, and opened again.
fn cycle(kernel: &mut Kernel, file: u32, bytes: u64) {
    let mut call = |call| kernel.call(0, call).expect("legal");
    call(Call::Create { file });
    for offset in (0..bytes).step_by(65536) {
        call(Call::Write { file, offset, bytes: 65536 });
    }
    call(Call::Fsync { file });
    call(Call::Close { file });
}

/// The paper's case: what is closed leaves the fast memory at once, and no scan has to find out.
#[test]
fn pages_of_a_closed_file_leave_and_come_back_when_it_is_opened() {
    for (strategy, leaves) in
        [(Tiering::Klocs, true), (Tiering::KlocsNoMigration, false), (Tiering::Naive, false)]
    {
        let policy = strategy.build(&StrategyConfig::new(2, 1));
        let mut kernel = Kernel::new(&config(Detail::Placement), policy, 1, 10).expect("fits");
        cycle(&mut kernel, 0, 128 << 10);
        let pause = Call::Compute { time: terrace_core::Nanos::millis(20) };
        kernel.call(0, pause).expect("legal");
        kernel.call(0, Call::Stat { file: 0 }).expect("legal");
        let cache = terrace_sim::kernel::Class::PageCache;
        let down = kernel.counts().class(cache).demoted;
        assert_eq!(down > 0, leaves, "{strategy}: {down}");
        if leaves {
            kernel.call(0, Call::Open { file: 0 }).expect("legal");
            kernel.call(0, pause).expect("legal");
            kernel.call(0, Call::Stat { file: 0 }).expect("legal");
            assert_eq!(kernel.counts().class(cache).promoted, down);
        }
    }
}

/// KLOCs places the program's pages before the kernel's (section 4.2.2): a file that is in use, and was
/// there first, does not keep them out of the fast memory.
#[test]
fn pages_of_the_program_come_before_those_of_open_files() {
    use terrace_sim::kernel::Class;

    let file = 0;
    for (strategy, comes) in
        [(Tiering::Klocs, true), (Tiering::KlocsGuarded, true), (Tiering::Naive, false)]
    {
        let policy = strategy.build(&StrategyConfig::new(1, 250));
        let mut kernel = Kernel::new(&config(Detail::Placement), policy, 1, 40).expect("it fits");
        make(&mut kernel, &[Call::Create { file }]);
        // More than the fast memory holds.
        for offset in (0..1 << 20).step_by(65536) {
            make(&mut kernel, &[Call::Write { file, offset, bytes: 65536 }]);
        }
        let use_both = |kernel: &mut Kernel, rounds: u32| {
            for n in 0..rounds {
                let offset = u64::from(n * 7 % 256) * 4096;
                let touch = Call::Touch { page: n % 40, lines: 16, store: true };
                let read = Call::Read { file, offset, bytes: 4096 };
                let compute = Call::Compute { time: terrace_core::Nanos::micros(20) };
                make(kernel, &[touch, read, compute]);
            }
        };
        use_both(&mut kernel, 8000);
        let before = kernel.counts().clone();
        use_both(&mut kernel, 400);
        let counts = kernel.counts().since(&before);
        let [fast, slow] = [0, 1].map(|tier| counts.class(Class::Program).misses[tier]);
        assert!(fast + slow > 0, "{strategy}: they are not in the last-level cache");
        assert_eq!(slow == 0, comes, "{strategy}: {slow} misses in slow memory, {fast} in fast");
        let demoted = kernel.counts().class(Class::PageCache).demoted;
        assert_eq!(demoted > 0, comes, "{strategy}: {demoted} pages of the file left");
        kernel.audit().expect("the books are right");
    }
}

/// Counts of objects are those that the tool counted on a running kernel
/// (`crates/kloc/data/linux-6.18-ext4-journal.toml`).
#[test]
fn calls_allocate_what_linux_allocates() {
    let mut kernel = Kernel::new(&config(Detail::Placement), policy(1), 1, 10).expect("it fits");
    let mut count = |call| {
        let before = kernel.counts().objects;
        kernel.call(0, call).expect("legal");
        let after = kernel.counts().objects;
        move |kind: ObjectKind| after[kind.index()] - before[kind.index()]
    };
    let file = 0;
    let create = count(Call::Create { file });
    assert_eq!((create(ObjectKind::Inode), create(ObjectKind::Dentry)), (1, 1));
    let first = count(Call::Write { file, offset: 0, bytes: 4096 });
    assert_eq!((first(ObjectKind::PageCachePage), first(ObjectKind::Extent)), (1, 2));
    let next = count(Call::Write { file, offset: 4096, bytes: 4096 });
    assert_eq!((next(ObjectKind::PageCachePage), next(ObjectKind::Extent)), (1, 0));
    let again = count(Call::Write { file, offset: 0, bytes: 4096 });
    assert_eq!(again(ObjectKind::PageCachePage), 0);
    let sync = count(Call::Fsync { file });
    // One of the data, one of the journal, which the kernel's own thread writes.
    assert_eq!(sync(ObjectKind::Bio), 2);
    let rename = count(Call::Rename { file });
    assert_eq!(rename(ObjectKind::Dentry), 1);
    let accept = count(Call::Accept { socket: 0 });
    assert_eq!((accept(ObjectKind::Sock), accept(ObjectKind::Inode)), (1, 1));
    let send = count(Call::Send { socket: 0, bytes: 400 });
    assert_eq!((send(ObjectKind::Skbuff), send(ObjectKind::SkbuffData)), (1, 1));
}

/// A reader that goes on where it ended finds its pages in place; one that jumps does not.
#[test]
fn sequential_readers_are_read_ahead_for() {
    let mut kernel = Kernel::new(&config(Detail::Placement), policy(1), 1, 10).expect("it fits");
    // Larger than memory: only the end is still cached.
    cycle(&mut kernel, 0, 8 << 20);
    kernel.call(0, Call::Open { file: 0 }).expect("legal");
    let before = kernel.counts().clone();
    for page in 0..64u64 {
        let read = Call::Read { file: 0, offset: page * 4096, bytes: 4096 };
        kernel.call(0, read).expect("legal");
    }
    let counts = kernel.counts().since(&before);
    assert!(counts.cache_misses <= 2, "{} of 64 missed", counts.cache_misses);
    let before = kernel.counts().clone();
    for page in 0..32u64 {
        let read = Call::Read { file: 0, offset: (200 + page * 13) * 4096, bytes: 4096 };
        kernel.call(0, read).expect("legal");
    }
    let counts = kernel.counts().since(&before);
    assert_eq!((counts.cache_misses, counts.read_ahead), (32, 0));
}

/// Makes calls that are legal.
fn make(kernel: &mut Kernel, calls: &[Call]) {
    for &call in calls {
        kernel.call(0, call).unwrap_or_else(|refused| panic!("{call:?}: {refused}"));
    }
}

/// The kernel acts on advice. Of a file that is read in no order it reads nothing ahead, and twice as
/// much of one that is read in sequence. What is not needed leaves, if the disk has it and nobody maps
/// it.
#[test]
fn advice_changes_what_is_read_ahead_and_what_stays() {
    let file = 0;
    let mut kernel = Kernel::new(&config(Detail::Placement), policy(1), 1, 10).expect("it fits");
    let advise = |advice| Call::Advise { file, offset: 0, bytes: 0, advice };
    let pause = Call::Compute { time: terrace_core::Nanos::millis(20) };
    cycle(&mut kernel, file, 2 << 20);
    make(&mut kernel, &[Call::Open { file }]);
    let mut read_ahead = |advice: Option<Advice>| {
        make(&mut kernel, &[pause, advise(Advice::DontNeed)]);
        assert_eq!(kernel.cached_pages(), 0, "all of it is on the disk");
        if let Some(advice) = advice {
            make(&mut kernel, &[advise(advice)]);
        } else {
            // Whoever opens it anew has said nothing.
            make(&mut kernel, &[Call::Close { file }, Call::Open { file }]);
        }
        let before = kernel.counts().clone();
        for page in 0..64u64 {
            make(&mut kernel, &[Call::Read { file, offset: page * 4096, bytes: 4096 }]);
        }
        let counts = kernel.counts().since(&before);
        (counts.cache_misses, counts.read_ahead)
    };
    let (misses, normal) = read_ahead(Some(Advice::Normal));
    assert!(misses <= 2 && normal > 64, "{misses} misses, {normal} read ahead");
    let (misses, sequential) = read_ahead(Some(Advice::Sequential));
    assert!(misses <= 2 && sequential > normal, "{sequential} against {normal} read ahead");
    assert_eq!(read_ahead(Some(Advice::Random)), (64, 0));
    assert_eq!(read_ahead(None), (misses, normal));

    let soon = Call::Advise { file, offset: 8192, bytes: 4 * 4096, advice: Advice::WillNeed };
    make(&mut kernel, &[pause, advise(Advice::DontNeed), soon, pause, Call::Stat { file }]);
    assert_eq!(kernel.cached_pages(), 4, "they were read ahead");
    // The second and the third of the four whole, the first and the fourth in part.
    let part = Call::Advise { file, offset: 8193, bytes: 3 * 4096, advice: Advice::DontNeed };
    make(&mut kernel, &[part]);
    assert_eq!(kernel.cached_pages(), 2, "pages of which a part is needed stay");
    let write = Call::Write { file, offset: 8192, bytes: 4096 };
    make(&mut kernel, &[write, advise(Advice::DontNeed)]);
    assert_eq!(kernel.cached_pages(), 1, "the disk does not have it yet");
    make(&mut kernel, &[pause, Call::Map { file }, advise(Advice::DontNeed)]);
    assert_eq!(kernel.cached_pages(), 1, "it is mapped");
    make(&mut kernel, &[Call::Unmap { file }, advise(Advice::DontNeed)]);
    assert_eq!(kernel.cached_pages(), 0);
    kernel.audit().expect("the books are right");
}

/// The same calls cost the same, and more in slow memory; through the caches as well.
#[test]
fn slow_memory_takes_longer() {
    for detail in [Detail::Placement, Detail::Caches] {
        let time = |strategy: Tiering| {
            let mut config = config(detail);
            config.machine.tiers[0].capacity.value = Bytes::mib(64);
            config.machine.tiers[1].capacity.value = Bytes::mib(64);
            if detail == Detail::Caches {
                config.machine.cpu.llc.value = Bytes::mib(5);
            }
            let policy = strategy.build(&StrategyConfig::new(1, 1));
            let mut kernel = Kernel::new(&config, policy, 1, 10).expect("it fits");
            cycle(&mut kernel, 0, 16 << 20);
            kernel.call(0, Call::Open { file: 0 }).expect("legal");
            let begin = kernel.clock(0).expect("a thread");
            for page in 0..4096u64 {
                let offset = page * 7 % 4096 * 4096;
                let read = Call::Read { file: 0, offset, bytes: 4096 };
                kernel.call(0, read).expect("legal");
            }
            kernel.clock(0).expect("a thread") - begin
        };
        let (fast, slow) = (time(Tiering::AllFast), time(Tiering::AllSlow));
        assert!((time(Tiering::AllFast) - fast).abs() < 1e-9, "deterministic");
        assert!(slow > fast * 1.1, "{detail:?}: {slow} against {fast}");
    }
}

/// No policy scans the kernel's pages. What their accesses gain where they are now is seen all the same,
/// and nothing is told as realised that nobody looked at.
#[test]
fn accesses_to_promoted_pages_of_files_are_in_the_account() {
    use terrace_core::{ActionClass, Nanos};

    let economist = terrace_economics::Mode::Shadow;
    let config = KernelConfig { economist, ..config(Detail::Placement) };
    let policy = Tiering::Klocs.build(&StrategyConfig::new(2, 1));
    let mut kernel = Kernel::new(&config, policy, 1, 10).expect("it fits");
    cycle(&mut kernel, 0, 128 << 10);
    let pause = Call::Compute { time: Nanos::millis(20) };
    let mut call = |call| kernel.call(0, call).expect("legal");
    call(pause);
    call(Call::Stat { file: 0 });
    call(Call::Open { file: 0 });
    call(pause);
    // More than the caches hold, again and again.
    for _ in 0..4 {
        call(Call::Read { file: 0, offset: 0, bytes: 128 << 10 });
    }
    let account = *kernel.economist().account(ActionClass::Promote);
    assert!(account.completed > 0, "{account:?}");
    assert!(!account.realised_benefit.is_zero(), "{account:?}");
    kernel.finish();
    let account = kernel.economist().account(ActionClass::Promote);
    assert!(!account.judged_realised_benefit.is_zero(), "{account:?}");
}

/// A file of 64 pages is closed: the economist judges that once, not 64 times, and nothing else is
/// counted for the pages that move.
#[test]
fn a_closed_file_leaves_by_one_decision() {
    use terrace_core::ActionClass;

    let config =
        KernelConfig { economist: terrace_economics::Mode::Shadow, ..config(Detail::Placement) };
    let strategy = StrategyConfig::new(2, 1000);
    let mut kernel =
        Kernel::new(&config, Tiering::Klocs.build(&strategy), 2, 100).expect("it fits");
    cycle(&mut kernel, 0, 64 * 4096);
    for _ in 0..40 {
        let time = terrace_core::Nanos::millis(1);
        kernel.call(0, Call::Compute { time }).expect("legal");
    }
    let whole = kernel.economist().account(ActionClass::DemoteContext);
    let single = kernel.economist().account(ActionClass::Demote);
    let demoted = kernel.counts().class(terrace_sim::kernel::Class::PageCache).demoted;
    assert!(demoted >= 60, "{demoted}");
    assert_eq!(single.completed, 0, "{single:?}");
    assert!((1..=4).contains(&whole.completed), "{whole:?}");
    assert!(whole.realised_cost.get() > 0 && whole.predicted_cost.get() > 0, "{whole:?}");
}
