//! This machine.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_core::{Bytes, Nanos};
use terrace_live::attach::targets::{self, Targets};
use terrace_live::decide::processors::ProcessorLoad;
use terrace_live::numa::moves::ProcessHandle;
use terrace_live::space::proc_maps::{self, Mapping};
use terrace_live::sys;
use terrace_sampler::pagemap::{Pagemap, Query, is};
use terrace_sampler::perf::direct::DirectReclaims;
use terrace_sampler::perf::major::MajorFaults;
use terrace_sampler::proc_text;

use super::bound::Bound;
use super::brake::{Brake, Braked, Holder};
use super::guard::{Guard, Guarded, free_swap, undo};
use super::reclaimer::Reclaimer;
use super::world::{Advice, DirectReclaim, MajorFault, Run, World};
use super::{CHUNK, room_ahead};
use crate::division::Division;
use crate::division::count::Counts;
use crate::setup::group::{Group, Pace, Version, event};

/// How often the files' pages of a group are read: the kernel adds its counters up for that.
const FILES: Nanos = Nanos::millis(200);
/// The same while there seems to be more than the budget: files that were read in meanwhile are none of
/// it.
const FILES_ABOVE: Nanos = Nanos::millis(2);
/// The same once there seems to be more than ever before, by such a part and by so much: files that came since they
/// were read last would be told as the program's most.
const MOST: (u64, Bytes) = (64, Bytes::kib(64));
/// Where `memory.high` is set above the budget, under version 2 of control groups: below what is
/// promised (5 %), and above what room is made for.
const HIGH: f64 = 1.03;
/// It goes with the files' pages in steps of such a part of the budget: they change singly, and the
/// kernel may put memory out at each write. It lies eight times as far above the budget, and so does
/// what is promised above it.
const HIGH_STEP: u64 = 256;
/// Processes that are open at once. Each takes two descriptors, of which this process often may have no
/// more than 1,024; without one that is left, a limit can be neither raised nor taken off.
const OPEN: usize = 128;
const PAGE: u64 = 4096;

/// Whose memory it is.
#[derive(Clone, Debug)]
pub enum Whose {
    /// That of a control group of the run's own.
    Run(Group),
    /// That of a control group that is somebody else's: no limit of it is changed.
    Group(Group),
    /// That of processes, wherever they are.
    Processes(Targets),
    /// That of what this process has started.
    Started,
}

impl Whose {
    /// The group that counts the memory.
    fn counted(&self) -> Option<&Group> {
        match self {
            Self::Run(group) | Self::Group(group) => Some(group),
            Self::Processes(_) | Self::Started => None,
        }
    }

    /// The group whose limits may be changed.
    fn own(&self) -> Option<&Group> {
        match self {
            Self::Run(group) => Some(group),
            _ => None,
        }
    }

    /// The group that the kernel can be asked to put memory of out.
    fn reclaims(&self) -> Option<&Group> {
        match self {
            Self::Run(group) => Some(group),
            // It takes a limit under version 1.
            Self::Group(group) => Some(group).filter(|group| group.can_be_reclaimed()),
            _ => None,
        }
    }
}

/// Programs on this machine.
#[derive(Debug)]
pub struct LinuxWorld {
    whose: Whose,
    faults: Option<MajorFaults>,
    direct: io::Result<DirectReclaims>,
    load: ProcessorLoad,
    /// Under version 1, what slows the run down, and who is woken when it has to be. The guard goes
    /// before the reclaimer, which it asks.
    guard: Option<Guard>,
    /// What a guard that has ended had done.
    guarded: Guarded,
    brake: Option<Arc<Brake>>,
    /// Under version 1, the limit above the budget.
    bound: Option<Arc<Bound>>,
    /// A guard could not be started.
    unguarded: bool,
    /// Started when memory is short for the first time.
    reclaimer: Option<Reclaimer>,
    /// Whether what it is at may be for a smaller budget than there is by now.
    stale: bool,
    open: BTreeMap<u32, Open>,
    /// The budget, of a group of the run's own.
    fast: Option<Bytes>,
    /// Where the kernel slows the run down by itself, without the files' pages.
    hold: Option<Bytes>,
    /// Where it does with them, as it has taken it.
    high: Option<Bytes>,
    /// Whether it does not for now.
    loose: bool,
    /// What of the group's memory is beside the budget, and when that was read.
    beside: (Bytes, Option<Nanos>),
    /// Of it, the kernel's own.
    kernel: Bytes,
    /// The most that the run had when they were read.
    most: Bytes,
    /// How the budget is divided, if files are in it.
    division: Option<Arc<Division>>,
}

/// Opened anew for every pass, and with each look at the processes, as a program that executes another has
/// a new page table.
#[derive(Debug)]
struct Open {
    pagemap: Pagemap,
    handle: ProcessHandle,
}

impl LinuxWorld {
    /// Somebody's memory. Without a watch for major faults, whose
    /// absence is the error of the second value, nothing is seen of what comes back.
    pub fn new(whose: Whose) -> (Self, io::Result<()>) {
        let (faults, lack) = match MajorFaults::open() {
            Ok(faults) => (Some(faults), Ok(())),
            Err(e) => (None, Err(e)),
        };
        let one = whose.own().filter(|group| group.version() == Version::One);
        let brake = one.map(|group| Arc::new(Brake::new(group.clone())));
        let world = Self {
            direct: DirectReclaims::open(Path::new("/")),
            load: ProcessorLoad::begin(),
            whose,
            faults,
            guard: None,
            guarded: Guarded::default(),
            brake,
            bound: None,
            unguarded: false,
            reclaimer: None,
            stale: false,
            open: BTreeMap::new(),
            fast: None,
            hold: None,
            high: None,
            loose: false,
            beside: (Bytes::ZERO, None),
            most: Bytes::ZERO,
            kernel: Bytes::ZERO,
            division: None,
        };
        (world, lack)
    }

    /// Has files' pages count, and what leaves taken from either side as the budget is divided. To be
    /// called before [`LinuxWorld::hold`].
    pub fn divide(&mut self, division: Arc<Division>) {
        self.division = Some(division);
    }

    /// Holds the run near a budget, files' pages not counted unless it is divided, without being asked again: under
    /// version 2 of control groups the kernel slows down who allocates from 3 % above it on, under
    /// version 1 a guard does who is woken before. To be called again when the budget changes.
    /// `policy` says whether one chooses what leaves.
    ///
    /// # Errors
    /// The first thing that is missing. The run is held by the rest: under version 1 by the guard
    /// without the limit, or by the engine without either.
    pub fn hold(&mut self, fast: Bytes, policy: bool) -> io::Result<()> {
        let Some(group) = self.whose.own().cloned() else { return Ok(()) };
        // Under version 1 the kernel goes on until the group is as small as was asked for, however
        // much of the new budget it takes meanwhile. What room is made ahead is no reason to begin anew.
        self.stale |= self.fast.is_some_and(|before| fast > before + room_ahead(before));
        self.give_up_stale();
        self.fast = Some(fast);
        if group.version() == Version::Two {
            let at = Bytes::from_f64(fast.as_f64() * HIGH);
            self.hold = Some(at);
            // With the files' pages, from the next look on.
            self.beside.1 = None;
            return self.slow_down_from(at + self.beside.0, Bytes::ZERO);
        }
        if let Some(guard) = &self.guard {
            guard.set_fast(fast);
            return Ok(());
        }
        let Some(brake) = self.brake.clone().filter(|brake| brake.is_there()) else {
            return Ok(());
        };
        if self.unguarded {
            return Ok(());
        }
        // Whoever kept this group before may have been killed while it braked. What cannot be set
        // is no reason to have no guard.
        let released = group.release();
        let weighed = if self.division.is_some() {
            // Where the program makes room itself neither side is preferred, from its first page on.
            group.balance()
        } else {
            group.prefer_swap()
        };
        let waits = event().inspect_err(|_| self.unguarded = true)?;
        // Without it processor time brakes.
        let bound = Bound::new(group.clone(), &waits).map(Arc::new);
        self.bound = bound.as_ref().ok().cloned();
        match self.watch(group, fast, brake, waits) {
            Ok(guard) => {
                guard.set_policy(policy);
                self.guard = Some(guard);
                released.and(weighed).and(bound.map(|_| ()))
            }
            Err(error) => {
                // The engine goes on by itself, and does not try again at each new budget.
                self.unguarded = true;
                (self.bound, self.reclaimer) = (None, None);
                Err(error)
            }
        }
    }

    /// Starts the guard, and who makes room for it. Without them there is no limit, and the killer is on.
    fn watch(
        &mut self,
        group: Group,
        fast: Bytes,
        brake: Arc<Brake>,
        waits: OwnedFd,
    ) -> io::Result<Guard> {
        let make_room = make_room(group.clone(), self.bound.clone(), self.division.clone());
        // Not two that set limits.
        self.reclaimer = None;
        let reclaimer = match Reclaimer::start(make_room) {
            Ok(reclaimer) => reclaimer,
            Err(error) => return Err(undo(error, self.bound.as_deref(), &brake)),
        };
        let asking = self.reclaimer.insert(reclaimer).asking();
        let bounds = self.bound.clone().map(|bound| (bound, waits));
        let files_count = self.division.is_some();
        Guard::start((group, files_count), fast, brake, bounds, asking, free_swap)
    }

    /// Has the kernel slow the run down from so much memory on, under version 2. Where it does already,
    /// or from no more than `within` above or below that, nothing is written: before Linux 6.16 the
    /// kernel puts out what is above it with each write, in the writing thread.
    fn slow_down_from(&mut self, at: Bytes, within: Bytes) -> io::Result<()> {
        let is_far = |high: Bytes| high.max(at) - high.min(at) > within;
        let Some(group) = self.whose.own().filter(|_| self.high.is_none_or(is_far)) else {
            return Ok(());
        };
        // What becomes of a write that fails is not known.
        self.high = None;
        group.brake(at)?;
        self.high = Some(at);
        Ok(())
    }

    /// Has what is being put out for a smaller budget given up, until it is.
    fn give_up_stale(&mut self) {
        let stale = self.stale;
        match self.reclaimer.as_ref().filter(|reclaimer| stale && reclaimer.is_busy()) {
            Some(reclaimer) => reclaimer.give_up(),
            None => self.stale = false,
        }
    }

    /// The group that counts its memory, if one does.
    pub fn group(&self) -> Option<&Group> {
        self.whose.counted()
    }

    /// What of its memory lies in swap; `None` where the kernel does not tell.
    pub fn swapped(&self, processes: &[u32]) -> Option<Bytes> {
        if let Some(group) = self.whose.counted() {
            return group.swapped();
        }
        let of = |process: &u32| {
            let text = proc_text(format!("/proc/{process}/status")).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix("VmSwap:"))?;
            line.split_ascii_whitespace().next()?.parse().ok().map(Bytes::kib)
        };
        Some(processes.iter().filter_map(of).fold(Bytes::ZERO, |a, b| a + b))
    }

    /// Major faults that the kernel could not tell of.
    pub fn lost(&self) -> u64 {
        self.faults.as_ref().map_or(0, MajorFaults::lost)
    }

    /// Why nothing is known of what programs put out themselves; `None` if that is known.
    pub fn lacks_direct(&self) -> Option<&io::Error> {
        self.direct.as_ref().err()
    }

    /// Times that programs put memory out themselves that the kernel could not tell of.
    pub fn direct_lost(&self) -> u64 {
        self.direct.as_ref().map_or(0, DirectReclaims::lost)
    }

    /// Threads whose major faults could not be watched.
    pub fn unwatched(&self) -> u64 {
        self.faults.as_ref().map_or(0, MajorFaults::unwatched)
    }

    fn open(&mut self, process: u32) -> io::Result<&mut Open> {
        use std::collections::btree_map::Entry;
        make_space(&mut self.open, process);
        match self.open.entry(process) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => Ok(entry.insert(Open {
                pagemap: Pagemap::open(process)?,
                handle: ProcessHandle::open(process)?,
            })),
        }
    }
}

/// Lets go of one process where no more may be open, unless this one is. A pass goes through them in the
/// order of their numbers, so that the first one is the one that it has done with.
fn make_space<T>(open: &mut BTreeMap<u32, T>, process: u32) {
    if open.len() >= OPEN && !open.contains_key(&process) {
        open.pop_first();
    }
}

/// How the kernel is asked to put so much of a group's memory out, until that is not wanted any more.
fn make_room(
    group: Group,
    bound: Option<Arc<Bound>>,
    division: Option<Arc<Division>>,
) -> impl Fn(Bytes, &AtomicBool) -> io::Result<()> + Send + 'static {
    move |bytes, gives_up: &AtomicBool| {
        let ask = |bytes: Bytes| match &bound {
            Some(bound) => bound.reclaim(bytes),
            None if group.version() == Version::Two => group.reclaim(bytes),
            None => by_steps(bytes, gives_up, |step| group.reclaim(step)),
        };
        let Some(division) = &division else { return ask(bytes) };
        division.reclaim(
            bytes,
            || Counts::of(&group).ok(),
            |kind, bytes| {
                if gives_up.load(Ordering::Acquire) {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                group.reclaim_kind(kind, bytes, ask)
            },
        )
    }
}

/// Has so much put out in small steps. Where no limit above the budget bounds the group it may grow all
/// the while, and the kernel does not return from a step before as much has gone as that is below what
/// was charged when it began.
fn by_steps(
    bytes: Bytes,
    gives_up: &AtomicBool,
    mut reclaim: impl FnMut(Bytes) -> io::Result<()>,
) -> io::Result<()> {
    let mut left = bytes;
    while !left.is_zero() {
        if gives_up.load(Ordering::Acquire) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let step = left.min(CHUNK.1);
        reclaim(step)?;
        left -= step;
    }
    Ok(())
}

/// What a process has in memory that is no file's, from `/proc/PID/statm`. Memory that is shared is left
/// out: whose it is this file does not say.
fn anonymous(process: u32) -> Option<Bytes> {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let mut pages = text.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
    Some(Bytes(resident.saturating_sub(shared) * PAGE))
}

impl World for LinuxWorld {
    fn now(&mut self) -> Nanos {
        Nanos(sys::now())
    }

    fn cpu(&mut self) -> Nanos {
        sys::thread_cpu()
    }

    fn load(&mut self) -> f64 {
        self.load.now()
    }

    fn processes(&mut self) -> Vec<u32> {
        // One of them may have ended, or execute another program by now, which has a new page table.
        self.open.clear();
        match &self.whose {
            Whose::Run(group) => group.members(),
            Whose::Group(group) => group.members_below(),
            // What is gone has no processes.
            Whose::Processes(targets) => targets.list().unwrap_or_default(),
            Whose::Started => targets::started(std::process::id()),
        }
    }

    fn resident(&mut self, processes: &[u32]) -> Bytes {
        let now = self.now();
        let Some((group, charged)) = self.whose.counted().and_then(|g| Some((g, g.charged()?)))
        else {
            return processes.iter().filter_map(|&p| anonymous(p)).fold(Bytes::ZERO, |a, b| a + b);
        };
        let beside = self.guard.as_ref().map_or(self.beside.0, Guard::beside);
        let is_above = self.fast.is_some_and(|fast| charged > fast + beside);
        let every = if is_above { FILES_ABOVE } else { FILES };
        let is_most = charged - beside > self.most + MOST.1.max(self.most / MOST.0);
        let is_due = is_most || self.beside.1.is_none_or(|at| now >= at + every);
        if is_due {
            // Of a group that is somebody else's no limit follows it: what it has counts.
            let budget = self.fast.unwrap_or(Bytes(u64::MAX));
            if let Some(beside) = group.beside(budget, self.division.is_some()) {
                (self.beside.0, self.kernel) = (beside.all(), beside.kernel);
            }
            self.beside.1 = Some(now);
            if let Some(guard) = &self.guard {
                guard.set_beside(self.beside.0);
            }
            if let Some(at) = self.hold.filter(|_| !self.loose) {
                // The kernel counts files' pages, which are beside the budget. A group that is
                // gone needs no brake; one that stays where it was brakes too early.
                let step = self.fast.unwrap_or_default() / HIGH_STEP;
                let _ = self.slow_down_from(at + self.beside.0, step);
            }
        }
        // The guard reads them more often where it matters.
        let resident = charged - self.guard.as_ref().map_or(self.beside.0, Guard::beside);
        if is_due {
            self.most = self.most.max(resident);
        }
        resident
    }

    fn kernel_beside(&self) -> Bytes {
        self.kernel
    }

    fn mappings(&mut self, process: u32) -> io::Result<Vec<(u64, u64)>> {
        self.open.remove(&process);
        let text = std::fs::read(format!("/proc/{process}/maps"))?;
        Ok(text
            .split(|&byte| byte == b'\n')
            .filter_map(proc_maps::parse)
            .filter(Mapping::is_ordinary)
            .map(|m| (m.start as u64, m.end as u64))
            .collect())
    }

    fn content(
        &mut self,
        process: u32,
        start: u64,
        end: u64,
        each: &mut dyn FnMut(Run),
    ) -> io::Result<()> {
        let query = Query {
            any: is::PRESENT | is::SWAPPED,
            tell: is::PRESENT | is::SWAPPED | is::FILE | is::ZERO,
            protect: false,
        };
        self.open(process)?.pagemap.scan(start, end, query, each)
    }

    fn advise(&mut self, process: u32, advice: Advice, ranges: &[(u64, u64)]) -> io::Result<()> {
        self.open(process)?.handle.advise(advice, ranges)
    }

    fn can_reclaim(&self) -> bool {
        self.whose.reclaims().is_some()
    }

    fn reclaim(&mut self, bytes: Bytes) -> io::Result<bool> {
        let Some(group) = self.whose.reclaims() else { return Ok(false) };
        if let Some(reclaimer) = &self.reclaimer {
            return reclaimer.ask(bytes);
        }
        let make_room = make_room(group.clone(), None, self.division.clone());
        let reclaimer = Reclaimer::start(make_room)?;
        self.reclaimer.insert(reclaimer).ask(bytes)
    }

    fn take_helped(&mut self) -> Nanos {
        self.give_up_stale();
        self.reclaimer.as_ref().map_or(Nanos::ZERO, Reclaimer::take_cpu)
    }

    fn take_guarded(&mut self) -> Guarded {
        self.guard.as_ref().map_or_else(|| std::mem::take(&mut self.guarded), Guard::take)
    }

    fn take_braked(&mut self) -> Braked {
        self.brake.as_ref().map_or_else(Braked::default, |brake| brake.take())
    }

    fn brake(&mut self, on: bool) -> io::Result<bool> {
        // That of version 2 acts by itself, and only above the budget.
        let Some(brake) = &self.brake else { return Ok(false) };
        // At the limit above the budget it puts memory out itself.
        let on = on && !self.is_bound();
        brake.set(Holder::Engine, on.then_some(Pace::Tenth))?;
        Ok(on && brake.is_there())
    }

    fn is_bound(&self) -> bool {
        // `memory.high`, or the limit of version 1.
        let is_held = self.hold.is_some() && !self.loose;
        is_held || self.has_hard_limit()
    }

    fn has_hard_limit(&self) -> bool {
        self.bound.as_ref().is_some_and(|bound| bound.is_on())
    }

    fn left(&mut self) -> Option<Bytes> {
        // Where files' pages count, what the kernel has reclaimed is the measure.
        let own = self.whose.own().filter(|_| self.division.is_none());
        own.and_then(Group::put_out)
    }

    fn reclaimed_by_itself(&mut self) -> Option<Bytes> {
        // Version 1 counts nothing of the kind, and adds much up to say so.
        let two = self.whose.own().filter(|group| group.version() == Version::Two);
        two.and_then(Group::reclaimed_by_itself)
    }

    fn stalled(&mut self) -> Option<Nanos> {
        self.whose.counted().and_then(Group::stalled)
    }

    fn let_go(&mut self, go: bool) -> io::Result<()> {
        self.loose = go;
        if let Some(guard) = &self.guard {
            guard.set_loose(go);
        }
        // Below the budget again it is held from the next look at its files' pages on.
        (self.beside.1, self.high) = (None, None);
        match self.whose.own().filter(|g| go && g.version() == Version::Two) {
            Some(group) => group.release(),
            None => Ok(()),
        }
    }

    fn release(&mut self) -> io::Result<()> {
        // What is taken off below takes descriptors.
        self.open.clear();
        // They would set a brake or a limit anew.
        if let Some(guard) = self.guard.take() {
            self.guarded = guard.end();
        }
        self.reclaimer = None;
        (self.hold, self.high) = (None, None);
        self.whose.own().map_or(Ok(()), Group::release)
    }

    fn swap(&mut self) -> (Bytes, Bytes) {
        use terrace_live::attach::host::{Host, LinuxHost};
        LinuxHost::new().swap_memory()
    }

    fn faults(&mut self, processes: &[u32], each: &mut dyn FnMut(MajorFault)) -> io::Result<()> {
        let now = self.now();
        self.faults.as_mut().map_or(Ok(()), |faults| faults.collect(now, processes, each))
    }

    fn direct_reclaims(&mut self, processes: &[u32], each: &mut dyn FnMut(DirectReclaim)) {
        if let Ok(direct) = &mut self.direct {
            direct.collect(processes, each);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::bound::tests::Directory;
    use super::*;

    /// A group of version 2 that is a directory, which has `files` of files' pages.
    fn version_two(files: Bytes) -> (tempfile::TempDir, LinuxWorld) {
        let directory = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| fs::write(directory.path().join(file), text).unwrap();
        put("memory.current", "2000000000\n");
        put("memory.swap.current", "8192\n");
        put("memory.high", "");
        put("memory.stat", &format!("file {}\nworkingset_refault_anon 1\n", files.get()));
        let group = Group::at(directory.path()).unwrap();
        (directory, LinuxWorld::new(Whose::Run(group)).0)
    }

    fn division() -> Arc<Division> {
        Arc::new(Division::new(Bytes::gib(1), Bytes::mib(512)))
    }

    /// The kernel's own reclaim would take all of it from the program before the division has said anything.
    #[test]
    fn a_divided_run_begins_with_neither_side_preferred() {
        for (divides, swappiness) in [(false, "200"), (true, "100")] {
            let (directory, group) = Directory::new();
            let cpu = tempfile::tempdir().unwrap();
            // A processor controller's group is there only with a hierarchy of version 1.
            let mut group = serde_json::to_value(&group).unwrap();
            group["cpu"] = serde_json::to_value(cpu.path()).unwrap();
            directory.put("memory.swappiness", "");
            let group = serde_json::from_value(group).unwrap();
            let (mut world, _) = LinuxWorld::new(Whose::Run(group));
            if divides {
                world.divide(division());
            }
            world.hold(Bytes::gib(1), false).unwrap();
            assert_eq!(directory.take("memory.swappiness"), swappiness);
            world.release().unwrap();
        }
    }

    #[test]
    fn without_a_limit_above_the_budget_room_is_made_in_small_steps() {
        let gives_up = AtomicBool::new(false);
        let mut steps = Vec::new();
        let all = CHUNK.1 * 2 + Bytes::kib(4);
        by_steps(all, &gives_up, |step| {
            steps.push(step);
            Ok(())
        })
        .unwrap();
        assert_eq!(steps, [CHUNK.1, CHUNK.1, Bytes::kib(4)]);

        let mut steps = 0;
        let stopped = by_steps(all, &gives_up, |_| {
            steps += 1;
            gives_up.store(true, Ordering::Release);
            Ok(())
        });
        assert_eq!((steps, stopped.unwrap_err().kind()), (1, io::ErrorKind::WouldBlock));
    }

    /// Of the larger budget the kernel would put out what the program takes of it, for as long as it does.
    #[test]
    fn what_leaves_for_a_budget_leaves_for_a_larger_one_no_longer() {
        let (directory, group) = Directory::new();
        directory.charge(Bytes::gib(1));
        let (mut world, _) = LinuxWorld::new(Whose::Run(group));
        world.hold(Bytes::gib(1), false).unwrap();
        let _pipe = directory.hold_up("memory.limit_in_bytes");
        assert!(world.reclaim(Bytes::mib(64)).unwrap());
        let wait = || std::thread::sleep(std::time::Duration::from_millis(1));
        // Nobody is killed at the limit meanwhile.
        while directory.peek("memory.oom_control") != "1" {
            wait();
        }
        // What lifts it is not held up.
        directory.put("memory.limit_in_bytes", "");
        let is_busy = |world: &LinuxWorld| world.reclaimer.as_ref().is_some_and(Reclaimer::is_busy);
        // As much as with `--total`, where the budget goes up and down.
        world.hold(Bytes::gib(1) + Bytes::mib(64), false).unwrap();
        assert!(!world.stale && is_busy(&world));

        world.hold(Bytes::gib(2), false).unwrap();
        while is_busy(&world) {
            world.take_helped();
            wait();
        }
        assert_eq!(directory.peek("memory.limit_in_bytes"), "-1");
        assert_eq!(directory.peek("memory.oom_control"), "0");
        assert_eq!(world.reclaim(Bytes::mib(64)).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        world.take_helped();
        assert!(!world.stale, "what is asked for from now on is for the new one");
    }

    /// With all descriptors taken, no limit could be raised for threads that wait at it.
    #[test]
    fn of_a_run_of_thousands_of_processes_few_are_open() {
        let mut open = BTreeMap::new();
        for process in 0..5000 {
            make_space(&mut open, process);
            open.insert(process, process);
            assert!(open.len() <= OPEN);
        }
        assert_eq!(open.len(), OPEN);
        make_space(&mut open, 4999);
        assert_eq!(open.len(), OPEN, "it is open already");
    }

    /// Where files' pages count, those that leave are what has left, too.
    #[test]
    fn what_has_left_is_what_the_budget_covers() {
        let (_directory, mut world) = version_two(Bytes::mib(9));
        assert_eq!(world.left(), Some(Bytes(8192 + 4096)));
        world.divide(division());
        assert_eq!(world.left(), None);
    }

    #[test]
    fn where_the_kernel_slows_a_run_down_is_written_when_it_changes() {
        let (directory, mut world) = version_two(Bytes::mib(9));
        let high = directory.path().join("memory.high");
        let look = |world: &mut LinuxWorld| {
            world.beside.1 = None;
            world.resident(&[]);
            let text = fs::read_to_string(&high).unwrap();
            fs::write(&high, "").unwrap();
            text
        };
        let at = Bytes::from_f64(Bytes::gib(1).as_f64() * HIGH);
        world.hold(Bytes::gib(1), false).unwrap();
        // What was written lies over what was there.
        let beside = (at + Bytes::mib(9)).get().to_string();
        assert_eq!(look(&mut world), beside);
        assert_eq!((look(&mut world), look(&mut world)), (String::new(), String::new()));
        let files = |files: Bytes| {
            let text = format!("file {}\n", files.get());
            fs::write(directory.path().join("memory.stat"), text).unwrap();
        };
        files(Bytes(4096));
        assert_eq!(look(&mut world), (at.get() + 4096).to_string());
        assert_eq!(look(&mut world), "");
        // Files' pages change singly, all the time.
        let step = Bytes::gib(1) / HIGH_STEP;
        for more in [Bytes(8192), step / 2, step, Bytes::ZERO] {
            files(Bytes(4096) + more);
            assert_eq!(look(&mut world), "", "{more}");
        }
        let steps = Bytes(8192) + step;
        files(steps);
        assert_eq!(look(&mut world), (at + steps).get().to_string());
        files(Bytes(4096));
        assert_eq!(look(&mut world), (at.get() + 4096).to_string(), "down as well");
        // Another budget is another one, however near.
        world.hold(Bytes::gib(1) + Bytes(4096), false).unwrap();
        assert!(!fs::read_to_string(&high).unwrap().is_empty());
        world.hold(Bytes::gib(1), false).unwrap();
        look(&mut world);

        // It is let go, and held again at the same.
        world.let_go(true).unwrap();
        assert_eq!(look(&mut world), "max");
        world.let_go(false).unwrap();
        assert_eq!(look(&mut world), (at.get() + 4096).to_string());
        // What fails is tried again.
        fs::remove_file(&high).unwrap();
        files(Bytes::mib(8));
        world.beside.1 = None;
        world.resident(&[]);
        fs::write(&high, "").unwrap();
        assert_eq!(look(&mut world), (at + Bytes::mib(8)).get().to_string());
    }

    /// Memory of `memfd_secret` is counted as files' pages are.
    #[test]
    fn files_that_came_since_they_were_read_are_not_the_most_that_a_run_had() {
        let (directory, mut world) = version_two(Bytes::ZERO);
        let mut look = |charged: Bytes, files: Bytes| {
            let put = |file: &str, value: String| {
                fs::write(directory.path().join(file), value).unwrap();
            };
            put("memory.current", charged.get().to_string());
            put("memory.stat", format!("file {}\n", files.get()));
            world.resident(&[])
        };
        let (own, files) = (Bytes::mib(1), Bytes::mib(40));
        assert_eq!(look(own, Bytes::ZERO), own);
        assert_eq!(look(own + files, files), own);
        assert_eq!(look(own + files * 2, files * 2), own);
        assert_eq!(look(own * 3 + files * 2, files * 2), own * 3);
    }

    /// It would have neither a limit nor anybody who slows it down near its budget, for the want of one.
    #[test]
    fn a_run_that_can_have_no_limit_has_a_guard() {
        for missing in ["memory.limit_in_bytes", "memory.oom_control", "cgroup.event_control"] {
            let (directory, group) = Directory::new();
            let cpu = tempfile::tempdir().unwrap();
            let mut group = serde_json::to_value(&group).unwrap();
            group["cpu"] = serde_json::to_value(cpu.path()).unwrap();
            let group = serde_json::from_value(group).unwrap();
            directory.refuse(missing, true);
            let (mut world, _) = LinuxWorld::new(Whose::Run(group));

            let lack = world.hold(Bytes::gib(1), false).unwrap_err();
            assert!(lack.to_string().contains(missing), "{lack}");
            assert!(world.guard.is_some(), "{missing}");
            assert!(!world.has_hard_limit(), "{missing}");

            // It is told once, and another budget is kept in the same way.
            world.hold(Bytes::mib(512), false).unwrap();
            // What was never set need not be taken off.
            let _ = world.release();
        }
    }
}
