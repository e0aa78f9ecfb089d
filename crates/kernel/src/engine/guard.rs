//! A thread that the kernel wakes as soon as a group of version 1 comes near its budget.
//!
//! The engine sleeps as long as a program would need to fill half of what is free, by one thread and
//! page by page. Two threads, or huge pages, are faster than that, and the engine may have to wait
//! for a processor. Version 1 has no `memory.high`, but it tells of each crossing of a mark
//! (`cgroup.event_control`, see `Documentation/admin-guide/cgroup-v1/memory.rst`), within 128 pages
//! of each processor, and at no cost before that. So a thread that runs before all ordinary ones
//! waits for that, and
//!
//! - asks for room at the mark at which the engine would,
//! - brakes a program that comes from there to half as much above in less than a [`SLOW_FILL`]
//!   would, or comes up to its budget,
//! - and lets it go on when there is room again.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use terrace_core::{Bytes, BytesPerSecond, Nanos};
use terrace_live::sys;

use super::bound::{Bound, Patience};
use super::brake::{Brake, Holder, run_first, visit_processors};
use super::reclaimer::{Asking, EACH, INTERRUPT, interrupts, unblock};
use super::{BATCH, LOW, part};
use crate::setup::group::{Group, Pace, event};

/// What fills memory no faster than this is not braked below its budget: pages that come back from
/// zram do at 8 µs each, and are put out about as fast.
const SLOW_FILL: BytesPerSecond = BytesPerSecond(600.0 * (1u64 << 20) as f64);
/// Below this distance to the budget the stronger brake is used at once: a thread fills 1 MiB in the
/// millisecond that the other one leaves in ten.
const NEAR: Bytes = Bytes::mib(8);
/// Marks are set anew when they have moved by more than this: files' pages count in them.
const MOVED: Bytes = Bytes::kib(512);
/// How often the guard looks by itself: while it brakes; while there is little room, or it is not
/// woken; and otherwise. Where files' pages are many it is in between, see [`while_files_may_go`].
const LOOKS: (Nanos, Nanos, Nanos) = (Nanos::millis(1), Nanos::millis(4), Nanos::millis(250));
/// Over how long at least it is judged how fast memory fills.
const LATELY: Duration = Duration::from_millis(2);
/// The limit above the budget is in force while so much of swap is free: what two threads put out in
/// 20 ms, of which the guard looks at each.
const SWAP_LEFT: Bytes = Bytes::mib(16);
/// For so long charges may be refused at it and nothing leave, before it is raised. The kernel gives up
/// after sixteen passes over all that there is: 50 ms and more for 20 MiB that are in use.
const PATIENCE: Duration = Duration::from_millis(5);
/// The same where the run is slowed down: it comes to the limit rarely then, and others have memory
/// leave for it.
const PATIENCE_BRAKED: Duration = Duration::from_millis(15);
/// While memory leaves again, one such step is taken back as often.
const GIVEN_BACK: Duration = Duration::from_millis(20);
/// The same where what has left is known from `memory.stat`, which the kernel adds up anew only after
/// 64 changes for each processor: it was seen to be the same for 8 ms with 33 charges in between.
const PATIENCE_OF_STAT: Duration = Duration::from_millis(25);
/// For so long the kernel may be at a limit that it is given: one that it can take is set in some µs.
const SETTING: Nanos = Nanos::millis(2);
/// Beyond so much of the budget it is not raised, but taken off, and for how long.
const RAISED: f64 = 0.125;
const LIFTED: Duration = Duration::from_millis(200);
/// How often it reads what files' pages are: at the budget; near it, or at as much with the files'
/// pages, if those are more than [`FEW`] of it; and near it otherwise. The kernel adds its counters up
/// for that, some 20 µs. Nothing tells of files' pages that go, and what comes in their place is not
/// seen as long as they are believed to be there.
const FILES: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(4), Duration::from_millis(20)];
/// A 32nd.
const FEW: u64 = 32;
/// No processor is taken to fill memory faster than this, with huge pages neither.
const FASTEST: BytesPerSecond = BytesPerSecond(10.0 * (1u64 << 30) as f64);

/// What the guard has done since it was asked last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guarded {
    /// What it has asked the kernel to put out.
    pub asked: Bytes,
    /// Its own processor time.
    pub cpu: Nanos,
    /// Whether it brakes now.
    pub brakes: bool,
    /// The most that it has seen above the budget since it was asked last: a peak, not what is above it
    /// now.
    pub exceeded: Bytes,
    /// Times that the limit above the budget had to be raised: the kernel found nothing to put out,
    /// and threads waited.
    pub lifted: u64,
    /// Why it is not woken, and looks every 4 ms instead.
    pub lack: Option<String>,
}

#[derive(Debug)]
struct Shared {
    /// The budget.
    fast: AtomicU64,
    /// What of the charge is beside the budget, as it was read last.
    beside: AtomicU64,
    /// The run may have more than its budget for now.
    loose: AtomicBool,
    /// Files' pages are in the budget, so none of them are beside it.
    files_count: bool,
    /// A policy chooses what leaves: the kernel is asked only when it is too late for that.
    policy: AtomicBool,
    over: AtomicBool,
    told: Mutex<Guarded>,
    /// Marks that the kernel has taken, and the guard has not yet.
    ready: Mutex<Option<(OwnedFd, Marks)>>,
    /// Whether some are being set.
    setting: AtomicBool,
    /// The kernel tells of no crossings.
    refused: AtomicBool,
}

/// The thread, as the engine has it.
#[derive(Debug)]
pub(super) struct Guard {
    shared: Arc<Shared>,
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
    bound: Option<Arc<Bound>>,
    /// Whether it can be interrupted.
    interrupts: bool,
}

impl Guard {
    /// Begins to watch a group; `files_count` says whether its files' pages are in the budget.
    ///
    /// # Errors
    /// If the system has no thread or no event left for it. There is no limit then, the group is not
    /// slowed down, and the killer is on.
    pub(super) fn start(
        group: (Group, bool),
        fast: Bytes,
        brake: Arc<Brake>,
        bound: Option<(Arc<Bound>, OwnedFd)>,
        asking: Asking,
        free_swap: fn() -> Bytes,
    ) -> io::Result<Self> {
        let (at, slowed) = (bound.as_ref().map(|(at, _)| Arc::clone(at)), Arc::clone(&brake));
        match Watch::new(group, fast, brake, bound, asking, free_swap) {
            Ok(watch) => Self::begin(watch, spawn),
            Err(error) => Err(undo(error, at.as_deref(), &slowed)),
        }
    }

    /// Looks for the first time, and has it go on in a thread.
    fn begin(
        mut watch: Watch,
        spawn: impl FnOnce(Watch) -> io::Result<JoinHandle<()>>,
    ) -> io::Result<Self> {
        let (shared, interrupts) = (Arc::clone(&watch.shared), interrupts());
        let bound = watch.bound.as_ref().map(|(bound, _)| Arc::clone(bound));
        let brake = Arc::clone(&watch.brake);
        let started = watch.woken.try_clone().and_then(|wake| {
            // The limit is there before the program has its first page.
            watch.look(Instant::now());
            Ok((wake, spawn(watch)?))
        });
        match started {
            Ok((wake, thread)) => {
                Ok(Self { shared, wake, thread: Some(thread), bound, interrupts })
            }
            Err(error) => Err(undo(error, bound.as_deref(), &brake)),
        }
    }

    /// The budget from now on.
    pub(super) fn set_fast(&self, fast: Bytes) {
        self.shared.fast.store(fast.get(), Ordering::Release);
        self.poke();
    }

    /// What of the charge is beside the budget ([`Group::beside`]).
    pub(super) fn set_beside(&self, beside: Bytes) {
        self.shared.beside.store(beside.get(), Ordering::Release);
    }

    /// The same as it was read last, by whomever.
    pub(super) fn beside(&self) -> Bytes {
        Bytes(self.shared.beside.load(Ordering::Acquire))
    }

    /// Whether a policy chooses what leaves.
    pub(super) fn set_policy(&self, policy: bool) {
        self.shared.policy.store(policy, Ordering::Release);
    }

    /// Lets the run have more than its budget, or no longer.
    pub(super) fn set_loose(&self, loose: bool) {
        self.shared.loose.store(loose, Ordering::Release);
        self.poke();
    }

    /// What it has done since the last call. Where it does nothing, since the kernel is at a limit
    /// that it was given, it is freed from that.
    pub(super) fn take(&self) -> Guarded {
        self.free();
        let mut told = self.shared.told.lock().unwrap_or_else(PoisonError::into_inner);
        let brakes = told.brakes;
        std::mem::replace(&mut *told, Guarded { brakes, ..Guarded::default() })
    }

    /// Ends it; what it has done since the last call of [`Guard::take`].
    pub(super) fn end(self) -> Guarded {
        let shared = Arc::clone(&self.shared);
        drop(self);
        std::mem::take(&mut *shared.told.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has the kernel give up a limit that it cannot take at once. What the guard may be at by now
    /// goes on, or is begun anew, when a signal comes.
    fn free(&self) {
        let is_kept = self.bound.as_ref().is_some_and(|bound| bound.is_kept_busy(SETTING));
        if let Some(thread) = self.thread.as_ref().filter(|_| is_kept && self.interrupts) {
            // SAFETY: the thread has not been joined, so that its handle is valid.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), INTERRUPT) };
        }
    }

    fn poke(&self) {
        signal(&self.wake);
    }
}

/// Starts the thread.
fn spawn(watch: Watch) -> io::Result<JoinHandle<()>> {
    let builder = thread::Builder::new().name("terrace-guard".into());
    let lack = |e: io::Error| io::Error::new(e.kind(), format!("a thread of the guard's: {e}"));
    builder.spawn(move || watch.run()).map_err(lack)
}

/// Takes off what the first look has set: nobody would raise the limit for threads that wait at it. What
/// went wrong at first, and now.
pub(super) fn undo(error: io::Error, bound: Option<&Bound>, brake: &Brake) -> io::Error {
    let ended = bound.map_or(Ok(()), Bound::end);
    let released = brake.set(Holder::Guard, None).map(|_| ());
    match ended.and(released) {
        Ok(()) => error,
        Err(also) => io::Error::new(error.kind(), format!("{error}; {also}")),
    }
}

/// By how much the limit above the budget is raised at once.
fn step(fast: Bytes) -> Bytes {
    (fast / 100).max(Bytes::kib(64))
}

/// Wakes whoever waits for an event.
fn signal(event: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: eight bytes to an event of ours. A full counter wakes as well.
    let _ = unsafe { libc::write(event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.poke();
        // What goes on without the run may charge more for ever.
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            thread::sleep(EACH);
            self.free();
        }
        if let Some(thread) = self.thread.take() {
            // The brake is taken off by the engine's end in any case.
            let _ = thread.join();
        }
    }
}

/// What is free of all swap.
pub(super) fn free_swap() -> Bytes {
    let mut info = MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: fills a structure of that size; one of zeroes is one of numbers, too.
    let info = unsafe {
        libc::sysinfo(info.as_mut_ptr());
        info.assume_init()
    };
    Bytes(info.freeswap * u64::from(info.mem_unit))
}

/// How long may be waited while files' pages may go and the program's come in their place, where it has so
/// much room: until all processors could have filled half of that.
///
/// Not longer while a run seems to be at rest: nothing would tell that it goes on. What is charged stays
/// the same, so no mark is crossed. The kernel tells of its own reclaim (`memory.pressure_level`), but only
/// for the limit of the group itself, and not of pages that go because all memory is short, or because
/// somebody has deleted the file. So a run that rests near its budget is looked at as often as one that
/// does not.
fn while_files_may_go(room: Bytes, processors: u64) -> Nanos {
    let all = BytesPerSecond(FASTEST.0 * processors as f64);
    all.time_for(room / 2).max(LOOKS.1).min(LOOKS.2)
}

/// Processors that there are.
pub(crate) fn processors() -> u64 {
    // SAFETY: takes a number.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u64::try_from(online).unwrap_or(1).max(1)
}

/// What is kept in the thread. So many fields, since what a look decides depends on all that the looks
/// before it have seen, done and owe.
struct Watch {
    shared: Arc<Shared>,
    group: Group,
    brake: Arc<Brake>,
    /// The limit above the budget, and what is signalled where threads wait at it in vain.
    bound: Option<(Arc<Bound>, OwnedFd)>,
    /// By how much it is raised for that, as the kernel has taken it, and what of that is to stay.
    raised: Bytes,
    keeps: Bytes,
    /// When the latter was changed, and since when the limit is off.
    changed: Instant,
    lifted: Option<Instant>,
    /// When it was raised last.
    rose: Option<Instant>,
    /// Threads wait at it, and it could not be raised.
    owed: bool,
    /// Since when charges are refused at it and nothing leaves.
    waiting: Option<Patience>,
    asking: Asking,
    woken: OwnedFd,
    /// Signalled at crossings of these charges.
    crossed: Option<(OwnedFd, Marks)>,
    /// How much the run had when it was seen above the first mark last, some [`LATELY`] ago.
    came: Option<(Instant, Bytes)>,
    /// Whether the guard brakes.
    brakes: bool,
    /// Whether the run has its budget, and is bounded by the limit above it.
    at_bound: bool,
    /// When files' pages were read.
    read: Option<Instant>,
    /// How long files' pages may go unseen, if without them there would be as much as is room made at.
    watches_files: Option<Nanos>,
    /// Processors that fill memory.
    processors: u64,
    /// What cannot be put out at all.
    locked: Bytes,
    /// What of swap is free.
    free_swap: fn() -> Bytes,
}

/// Amounts at which something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    /// Room is asked for.
    low: Bytes,
    /// One that fills fast is braked.
    high: Bytes,
    /// Everybody is.
    budget: Bytes,
}

impl Marks {
    pub(super) fn of(fast: Bytes) -> Self {
        let low = part(fast, LOW);
        Self { low: fast - low, high: fast - low / 2, budget: fast }
    }

    /// With the files' pages, as the group is charged.
    fn above(self, files: Bytes) -> Self {
        Self { low: self.low + files, high: self.high + files, budget: self.budget + files }
    }
}

/// What is to be done about so much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// There is room: nothing is braked.
    GoOn,
    /// Room is to be made.
    MakeRoom,
    /// And a limit bounds the run meanwhile.
    AtBound,
    /// And the run is slowed down meanwhile.
    Brake(Pace),
}

/// Decides. `fills` says how fast memory has grown since it came above the first mark; `None` if it
/// was not seen below.
pub(super) fn order(resident: Bytes, fast: Bytes, fills: Option<BytesPerSecond>) -> Order {
    let marks = Marks::of(fast);
    let is_fast = fills.is_none_or(|rate| rate.0 > SLOW_FILL.0);
    if resident < marks.low {
        Order::GoOn
    } else if resident >= marks.budget || is_fast && resident >= marks.high {
        // What thrashes comes up to its budget all the time, and must get on.
        let is_near = is_fast && marks.budget - marks.low < NEAR;
        let is_above = resident > fast + fast / 32;
        Order::Brake(if is_near || is_above { Pace::Hundredth } else { Pace::Tenth })
    } else {
        Order::MakeRoom
    }
}

impl Watch {
    /// As it is before the first look.
    fn new(
        (group, files_count): (Group, bool),
        fast: Bytes,
        brake: Arc<Brake>,
        bound: Option<(Arc<Bound>, OwnedFd)>,
        asking: Asking,
        free_swap: fn() -> Bytes,
    ) -> io::Result<Self> {
        let beside = group.beside(fast, files_count).map(|beside| beside.all()).unwrap_or_default();
        let shared = Arc::new(Shared {
            fast: AtomicU64::new(fast.get()),
            beside: AtomicU64::new(beside.get()),
            files_count,
            loose: AtomicBool::new(false),
            policy: AtomicBool::new(false),
            over: AtomicBool::new(false),
            told: Mutex::default(),
            ready: Mutex::default(),
            setting: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        });
        Ok(Self {
            woken: event()?,
            shared,
            crossed: None,
            group,
            brake,
            bound,
            raised: Bytes::ZERO,
            keeps: Bytes::ZERO,
            changed: Instant::now(),
            lifted: None,
            rose: None,
            owed: false,
            waiting: None,
            asking,
            came: None,
            brakes: false,
            at_bound: false,
            read: None,
            watches_files: None,
            processors: processors(),
            locked: Bytes::ZERO,
            free_swap,
        })
    }

    fn run(mut self) {
        run_first();
        if interrupts() {
            unblock();
        }
        let mut spent = sys::thread_cpu();
        while !self.shared.over.load(Ordering::Acquire) {
            self.look(Instant::now());
            let now = sys::thread_cpu();
            self.tell(|told| told.cpu += now.saturating_sub(spent));
            spent = now;
            self.wait();
        }
        // Not to be left on by somebody who is gone.
        if let Some((bound, _)) = &self.bound {
            let _ = bound.set(None, Bytes::ZERO);
        }
        let _ = self.brake.set(Holder::Guard, None);
        self.tell_braking(false);
    }

    fn tell(&self, change: impl FnOnce(&mut Guarded)) {
        change(&mut self.shared.told.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The most above the budget that was told since somebody asked.
    fn exceeded(&self) -> Bytes {
        self.shared.told.lock().unwrap_or_else(PoisonError::into_inner).exceeded
    }

    fn fast(&self) -> Bytes {
        Bytes(self.shared.fast.load(Ordering::Acquire))
    }

    fn beside(&self) -> Bytes {
        Bytes(self.shared.beside.load(Ordering::Acquire))
    }

    /// Has the kernel tell of the marks as they are now. It takes some 10 ms for each, in a thread of
    /// its own: until then those that were set before are waited for, and the guard looks by itself.
    fn set_marks(&mut self) {
        let ready = self.shared.ready.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The old event is closed, and by that forgotten.
        self.crossed = ready.or(self.crossed.take());
        // Files' pages are looked at from here on.
        let first = Marks::of(self.fast()).low;
        let marks = Marks::of(self.fast()).above(self.beside());
        let is_near = |(_, old): &(OwnedFd, Marks)| {
            old.budget.max(marks.budget) - old.budget.min(marks.budget) <= MOVED
        };
        let is_set = self.crossed.as_ref().is_some_and(is_near);
        let refused = self.shared.refused.load(Ordering::Acquire);
        if refused && !is_set {
            // Those of another budget tell of nothing: the guard looks by itself.
            self.crossed = None;
        }
        if is_set || refused || self.shared.setting.swap(true, Ordering::AcqRel) {
            return;
        }
        let (shared, group) = (Arc::clone(&self.shared), self.group.clone());
        let set = self.woken.try_clone().and_then(|woken| {
            let builder = thread::Builder::new().name("terrace-marks".into());
            builder.spawn(move || {
                let event = event().and_then(|event| {
                    let all = [first, marks.low, marks.high, marks.budget];
                    group.tell_of_crossings(&event, &all).map(|()| event)
                });
                match event {
                    Ok(event) => {
                        let mut ready = shared.ready.lock().unwrap_or_else(PoisonError::into_inner);
                        *ready = Some((event, marks));
                    }
                    // The run has ended.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => {
                        shared.refused.store(true, Ordering::Release);
                        let mut told = shared.told.lock().unwrap_or_else(PoisonError::into_inner);
                        told.lack = Some(e.to_string());
                    }
                }
                shared.setting.store(false, Ordering::Release);
                signal(&woken);
            })
        });
        if let Err(error) = set {
            self.shared.setting.store(false, Ordering::Release);
            self.shared.refused.store(true, Ordering::Release);
            self.tell(|told| told.lack = Some(error.to_string()));
        }
    }

    /// Waits for a crossing, a word of the engine's, or the next look.
    fn wait(&mut self) {
        let is_blind = self.crossed.is_none() || self.shared.setting.load(Ordering::Acquire);
        let timeout = if self.brakes || self.at_bound || self.owed {
            LOOKS.0
        } else if self.came.is_some() || is_blind {
            LOOKS.1
        } else {
            self.watches_files.unwrap_or(LOOKS.2)
        };
        let crossed = self.crossed.as_ref().map_or(-1, |(event, _)| event.as_raw_fd());
        let waits = self.bound.as_ref().map_or(-1, |(_, event)| event.as_raw_fd());
        let mut all = [waits, crossed, self.woken.as_raw_fd()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        let milliseconds = (timeout.get() / 1_000_000) as i32;
        // SAFETY: so many entries, of descriptors that are open, or of none.
        unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, milliseconds) };
        let mut count = [0u8; 8];
        for ready in all.iter().filter(|one| one.revents & libc::POLLIN != 0) {
            // SAFETY: an event of ours gives eight bytes, and does not block.
            unsafe { libc::read(ready.fd, count.as_mut_ptr().cast(), count.len()) };
        }
        if all[0].revents & libc::POLLIN != 0 {
            self.lift(Instant::now());
        }
    }

    /// Raises the limit at once: threads wait at it for which the kernel found no room.
    fn lift(&mut self, now: Instant) {
        let Some((bound, _)) = &self.bound else { return };
        let fast = self.fast();
        let step = step(fast);
        let mut raised = self.raised + step;
        let is_too_much = raised.as_f64() > fast.as_f64() * RAISED;
        let done = if is_too_much {
            raised = Bytes::ZERO;
            bound.set(None, Bytes::ZERO).map(|_| ())
        } else {
            // It may be above where it belongs, as more was charged.
            bound.raise(step, Bound::place(fast, self.beside()) + raised)
        };
        // Who waits is not told of again: the next look tries once more. A group that is gone has none.
        self.owed = done.is_err();
        if self.owed {
            return;
        }
        if is_too_much {
            self.lifted = Some(now);
        }
        (self.raised, self.keeps, self.changed) = (raised, raised, now);
        (self.waiting, self.rose) = (None, Some(now));
        self.tell(|told| told.lifted += 1);
    }

    /// Whether threads are at the limit, and have been for a while, and nothing leaves.
    fn is_stuck(&mut self, now: Instant, is_braked: bool) -> bool {
        let Some((bound, _)) = &self.bound else { return false };
        let is = bound.progress(self.shared.files_count);
        let patience = match (self.shared.files_count, is_braked) {
            (true, _) => PATIENCE_OF_STAT,
            (false, true) => PATIENCE_BRAKED,
            (false, false) => PATIENCE,
        };
        match &mut self.waiting {
            Some(waiting) if !waiting.has_left(is) => return waiting.is_over(is, now, patience),
            // While it is braked above the limit's place others have it leave.
            Some(_) if !is_braked && now >= self.changed + GIVEN_BACK => {
                self.keeps -= step(self.fast()).min(self.keeps);
                self.changed = now;
            }
            // At the first look after it was raised nobody knows whether anything leaves.
            _ => {}
        }
        self.waiting = Some(Patience::since(is));
        false
    }

    /// Has the limit where it belongs; whether it is in force.
    fn bound(&mut self, fast: Bytes, charged: Bytes, now: Instant) -> bool {
        let Some((bound, _)) = &self.bound else { return false };
        let is_loose = self.shared.loose.load(Ordering::Acquire);
        let is_lifted = self.lifted.is_some_and(|at| now < at + LIFTED);
        // It would find nothing to put out, and system calls would fail for that.
        let has_to_put_out = (self.free_swap)() >= SWAP_LEFT && self.locked <= fast / 2;
        let place = Bound::place(fast, self.beside());
        let at = (!is_loose && !is_lifted && has_to_put_out).then(|| {
            // Where shares move, one side grows while the other one is being put out.
            if self.shared.files_count {
                bound.following(place, charged)
            } else {
                place + self.keeps
            }
        });
        // What the kernel does not take is to be tried again, and what was there is in force.
        let is_on = bound.set(at, charged).unwrap_or_else(|_| bound.is_on());
        // A step is given back when it is no longer part of the limit: until then another one comes on
        // top of it.
        self.raised = self.raised.min(bound.above(place)).max(self.keeps);
        is_on
    }

    /// Looks what the group has, and does what is to be done.
    fn look(&mut self, now: Instant) {
        let Some(charged) = self.group.charged() else {
            // A group that is gone has nothing. What cannot be read for now (there may be no descriptor
            // left, for which the limit could not be raised either) has threads that wait all the same.
            self.owed &= self.group.directory().exists();
            return;
        };
        let fast = self.fast();
        let marks = Marks::of(fast);
        let mut resident = charged - self.beside();
        let are_many = self.beside() > fast / FEW;
        let every = match (resident >= marks.budget, are_many) {
            (true, _) => FILES[0],
            (false, true) => FILES[1],
            (false, false) => FILES[2],
        };
        let is_due = self.read.is_none_or(|at| now >= at + every);
        // Files' pages may have come meanwhile, which are no part of what is told below.
        let is_most = resident > fast + self.exceeded();
        let reads = charged >= marks.low && (is_due || is_most);
        if reads {
            self.read = Some(now);
            if let Some(beside) = self.group.beside(fast, self.shared.files_count) {
                self.shared.beside.store(beside.all().get(), Ordering::Release);
                self.locked = beside.locked;
            }
            resident = charged - self.beside();
        }
        let are_many = self.beside() > fast / FEW;
        self.watches_files = (are_many && charged >= marks.low).then(|| {
            let is_known = self.read == Some(now);
            let room = if is_known { marks.low - resident } else { Bytes::ZERO };
            while_files_may_go(room, self.processors)
        });
        let is_bound = self.bound(fast, charged, now);
        if std::mem::take(&mut self.owed) && is_bound {
            self.lift(now);
        }
        let fills = self.came.and_then(|(at, had)| {
            let time = now.duration_since(at).as_secs_f64();
            let grown = resident - had.min(resident);
            (time > 0.0).then(|| BytesPerSecond(grown.as_f64() / time))
        });
        let mut order = order(resident, fast, fills);
        // Pages of files that the kernel has dropped leave room below the limit that is not the
        // program's: what it has taken of that has to be put out first.
        let taken = Bound::place(fast, Bytes::ZERO) + self.keeps + fast / 100;
        if is_bound && resident <= taken && matches!(order, Order::Brake(_)) {
            order = Order::AtBound;
        }
        if self.shared.loose.load(Ordering::Acquire) {
            order = Order::GoOn;
        }
        self.at_bound = order == Order::AtBound;
        if resident < fast {
            (self.keeps, self.waiting) = (Bytes::ZERO, None);
        }
        match order {
            Order::GoOn => {
                self.came = None;
                self.slow_down(None);
            }
            Order::MakeRoom => {
                // What it did long ago says nothing of what it does now.
                if self.came.is_none_or(|(at, _)| now >= at + LATELY) {
                    self.came = Some((now, resident));
                }
                if !self.shared.policy.load(Ordering::Acquire) {
                    self.make_room(resident, fast);
                }
            }
            Order::AtBound => {
                if self.is_stuck(now, false) {
                    self.lift(now);
                } else if self.shared.files_count && self.rose.is_none_or(|at| now >= at + LIFTED) {
                    // It follows what is charged there, with or without these.
                    (self.raised, self.keeps) = (Bytes::ZERO, Bytes::ZERO);
                }
                self.came.get_or_insert((now, resident));
                self.slow_down(None);
                self.make_room(resident, fast);
            }
            Order::Brake(pace) => {
                // Even with a hundredth of a processor a thread comes to the limit, and what it is in the
                // kernel for goes on while it is slowed down.
                if is_bound && self.is_stuck(now, true) {
                    self.lift(now);
                }
                self.came.get_or_insert((now, resident));
                self.slow_down(Some(pace));
                self.make_room(resident, fast);
            }
        }
        // What was not read just now was no more than what was told. By now that may have been asked for.
        if reads && resident > fast {
            self.tell(|told| told.exceeded = told.exceeded.max(resident - fast));
        }
        self.set_marks();
    }

    fn make_room(&self, resident: Bytes, fast: Bytes) {
        let wanted = resident + part(fast, LOW) + part(fast, BATCH) - fast;
        if self.asking.ask_unless_failed(wanted) {
            self.tell(|told| told.asked += wanted);
        }
    }

    fn slow_down(&mut self, pace: Option<Pace>) {
        // Of a group that is gone there is nothing to slow down.
        if self.brake.set(Holder::Guard, pace).unwrap_or(false) {
            visit_processors();
        }
        self.tell_braking(pace.is_some());
    }

    /// It brakes, or does no longer.
    fn tell_braking(&mut self, brakes: bool) {
        if std::mem::replace(&mut self.brakes, brakes) != brakes {
            self.tell(|told| told.brakes = brakes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bound::tests::Directory;
    use super::super::reclaimer::Reclaimer;
    use super::*;

    /// 1 GiB: room is asked for 24.6 MiB below it.
    const FAST: Bytes = Bytes::gib(1);

    #[test]
    fn what_fills_fast_is_braked_before_its_budget_and_the_rest_at_it() {
        let slow = Some(BytesPerSecond(3e8));
        let quick = Some(BytesPerSecond(2e9));
        let at = |below: u64| FAST - Bytes::mib(below);

        assert_eq!(order(at(30), FAST, None), Order::GoOn);
        assert_eq!(order(at(20), FAST, None), Order::MakeRoom);
        assert_eq!(order(at(10), FAST, slow), Order::MakeRoom);
        assert_eq!(order(at(10), FAST, quick), Order::Brake(Pace::Tenth));
        assert_eq!(order(at(10), FAST, None), Order::Brake(Pace::Tenth), "it was not seen coming");
        assert_eq!(order(FAST, FAST, slow), Order::Brake(Pace::Tenth));
        assert_eq!(order(FAST + Bytes::mib(40), FAST, slow), Order::Brake(Pace::Hundredth));
    }

    #[test]
    fn a_small_budget_has_the_stronger_brake_at_once() {
        let fast = Bytes::mib(16);
        assert_eq!(order(fast - Bytes::kib(900), fast, None), Order::Brake(Pace::Hundredth));
        assert_eq!(order(fast - Bytes::mib(3), fast, None), Order::GoOn);
    }

    #[test]
    fn marks_lie_above_each_other_and_go_with_the_files() {
        for mib in [1, 16, 1024, 65_536] {
            let marks = Marks::of(Bytes::mib(mib));
            assert!(marks.low < marks.high && marks.high < marks.budget, "{mib}: {marks:?}");
            let above = marks.above(Bytes::mib(5));
            assert_eq!(above.budget - marks.budget, Bytes::mib(5));
        }
    }

    #[test]
    fn files_are_looked_for_the_less_often_the_more_room_the_program_has() {
        let after = |room, processors| while_files_may_go(room, processors);
        assert_eq!(after(Bytes::mib(20), 2), LOOKS.1, "near its budget as often as ever");
        assert_eq!(after(Bytes::gib(2), 2), Nanos::millis(50));
        assert_eq!(after(Bytes::gib(2), 4), Nanos::millis(25));
        assert_eq!(after(Bytes::gib(64), 2), LOOKS.2);

        let mut bench = Bench::new();
        bench.watch.processors = 1;
        let mut files = |mib: u64| {
            let text = format!("total_cache {}\ntotal_unevictable 0\n", mib << 20);
            bench.directory.put("memory.stat", &text);
            bench.directory.charge(FAST + Bytes::mib(76));
            let at = bench.begin + Duration::from_secs(1100 - mib);
            bench.watch.look(at);
            // Read a moment ago, it is not read again.
            let first = bench.watch.watches_files;
            bench.watch.look(at + Duration::from_millis(1));
            (first, bench.watch.watches_files)
        };
        // The program has 100 MiB: some 900 MiB are left for it.
        let (at_rest, again) = files(1000);
        assert!(at_rest.is_some_and(|wait| (LOOKS.1 * 10..LOOKS.1 * 12).contains(&wait)));
        assert_eq!(again, Some(LOOKS.1));
        // It has 980 MiB.
        assert_eq!(files(120).0, Some(LOOKS.1));
        assert_eq!(files(1).0, None, "there are hardly any");
    }

    /// A guard of a run in a group that is a directory.
    fn guard(directory_of: &Group, swap: fn() -> Bytes) -> (Guard, OwnedFd, Reclaimer) {
        let waits = event().unwrap();
        let signals = waits.try_clone().unwrap();
        let bound = Arc::new(Bound::new(directory_of.clone(), &waits).unwrap());
        let brake = Arc::new(Brake::new(directory_of.clone()));
        let reclaimer = Reclaimer::start(|_, _| Ok(())).unwrap();
        let asking = reclaimer.asking();
        let group = directory_of.clone();
        let bound = Some((bound, waits));
        let guard = Guard::start((group, false), FAST, brake, bound, asking, swap).unwrap();
        (guard, signals, reclaimer)
    }

    /// More may be charged just when a limit is set than fits below it, and go on coming for ever.
    #[test]
    fn a_guard_whose_limit_the_kernel_does_not_take_goes_on_and_comes_to_its_end() {
        let (directory, group) = Directory::new();
        let (guard, _waits, _reclaimer) = guard(&group, || Bytes::gib(1));
        let bound = guard.bound.clone().expect("one was given");
        let _pipe = directory.hold_up("memory.limit_in_bytes");
        guard.set_fast(FAST / 2);
        let begun = loop {
            match bound.since() {
                0 => thread::yield_now(),
                since => break since,
            }
        };
        while bound.since() == begun {
            thread::sleep(EACH);
            guard.take();
        }
        // It is at the next by now, or will be.
        drop(guard);
    }

    /// What the thread has, without a thread: the test says what time it is.
    struct Bench {
        watch: Watch,
        directory: Directory,
        begin: Instant,
        refused: u64,
        _reclaimer: Reclaimer,
    }

    impl Bench {
        fn new() -> Self {
            let (directory, group) = Directory::new();
            let waits = event().unwrap();
            let bound = Arc::new(Bound::new(group.clone(), &waits).unwrap());
            let brake = Arc::new(Brake::new(group.clone()));
            let reclaimer = Reclaimer::start(|_, _| Ok(())).unwrap();
            let (bound, asking) = (Some((bound, waits)), reclaimer.asking());
            let swap: fn() -> Bytes = || Bytes::gib(1);
            let watch = Watch::new((group, false), FAST, brake, bound, asking, swap).unwrap();
            Self { watch, directory, begin: Instant::now(), refused: 0, _reclaimer: reclaimer }
        }

        /// Looks at a time, in ms.
        fn look(&mut self, at: u64) {
            self.watch.look(self.begin + Duration::from_millis(at));
        }

        /// A charge does not fit below the limit.
        fn refuse(&mut self) {
            self.refused += 1;
            self.directory.put("memory.failcnt", &format!("{}\n", self.refused));
        }

        /// So much is charged, and as much as this lies in swap.
        fn charge(&self, charged: Bytes, swapped: Bytes) {
            self.directory.charge(charged);
            let both = (charged + swapped).get();
            self.directory.put("memory.memsw.usage_in_bytes", &format!("{both}\n"));
        }

        /// Times that the limit was raised since the last call.
        fn lifted(&self) -> u64 {
            std::mem::take(&mut self.watch.shared.told.lock().unwrap().lifted)
        }
    }

    /// Processor time slows a thread down, but a system call that needs memory goes on to be refused it.
    #[test]
    fn the_limit_is_raised_while_the_guard_brakes_too() {
        let mut bench = Bench::new();
        bench.look(0);
        // Files' pages were dropped, and the program has taken their place: it is far above its budget.
        let charged = Bound::place(FAST, Bytes::mib(60));
        bench.charge(charged, Bytes::mib(9));
        bench.look(1);
        assert!(bench.watch.brakes && !bench.watch.at_bound);
        bench.refuse();
        bench.look(2);
        bench.look(16);
        assert_eq!(bench.lifted(), 0, "not before its time");
        bench.look(17);
        assert!(bench.watch.brakes, "braked all the time");
        assert_eq!(bench.lifted(), 1);
    }

    /// One that is braked puts nothing out for a while, as it does not run.
    #[test]
    fn it_is_not_raised_while_nothing_is_refused() {
        let mut bench = Bench::new();
        bench.look(0);
        bench.charge(Bound::place(FAST, Bytes::mib(60)), Bytes::mib(9));
        for at in 1..400 {
            bench.look(at);
        }
        assert!(bench.watch.brakes);
        // The quiet while does not count for the first one that is refused.
        bench.refuse();
        bench.look(400);
        bench.look(404);
        assert_eq!(bench.lifted(), 0);
        // What leaves has the time begin anew, with what is refused then.
        bench.charge(Bound::place(FAST, Bytes::mib(60)), Bytes::mib(10));
        for at in 405..500 {
            bench.look(at);
        }
        assert_eq!(bench.lifted(), 0);
    }

    /// A program at its limit does not let it be lowered: with each step that is given back only in the
    /// books it would come up by another one.
    #[test]
    fn a_step_is_given_back_when_the_limit_has_come_down() {
        let mut bench = Bench::new();
        let (at, step) = (Bound::place(FAST, Bytes::ZERO), step(FAST));
        bench.look(0);
        bench.charge(at, Bytes::ZERO);
        bench.watch.lift(bench.begin);
        assert_eq!((bench.watch.raised, bench.lifted()), (step, 1));
        // The program has taken that, and goes on: memory leaves, and as much comes.
        let raised = at + step;
        bench.directory.take("memory.limit_in_bytes");
        for pages in 1..100 {
            bench.charge(raised, Bytes(pages * 4096));
            bench.look(pages);
        }
        assert_eq!((bench.watch.raised, bench.watch.keeps), (step, Bytes::ZERO));
        assert!(bench.watch.at_bound, "it has no more than it was given");
        assert_eq!(bench.directory.take("memory.limit_in_bytes"), "", "it would not fit");
        // Another step comes on top of the one that is in use.
        bench.watch.lift(bench.begin + Duration::from_millis(100));
        assert_eq!(bench.watch.raised, step * 2);

        // There is room, but the kernel does not take the lower limit.
        bench.charge(at - Bytes::mib(1), Bytes::mib(9));
        bench.directory.refuse("memory.limit_in_bytes", true);
        bench.look(200);
        assert_eq!(bench.watch.keeps, step * 2, "late as this look is, nothing has left since");
        bench.charge(at - Bytes::mib(1), Bytes::mib(10));
        bench.look(220);
        bench.look(221);
        assert_eq!((bench.watch.raised, bench.watch.keeps), (step * 2, step));
        bench.directory.refuse("memory.limit_in_bytes", false);
        bench.look(222);
        assert_eq!(bench.watch.raised, step);
        assert_eq!(bench.directory.take("memory.limit_in_bytes"), raised.get().to_string());

        // What leaves while it is braked says nothing of what it can put out at its limit.
        bench.charge(at + Bytes::mib(60), Bytes::mib(8));
        bench.look(300);
        assert!(bench.watch.brakes);
        assert_eq!(bench.watch.keeps, step);
        bench.charge(at, Bytes::mib(7));
        bench.look(301);
        assert_eq!((bench.watch.at_bound, bench.watch.keeps), (true, Bytes::ZERO));
    }

    /// The kernel tells of threads that wait once.
    #[test]
    fn a_limit_that_could_not_be_raised_is_raised_at_the_next_look() {
        let mut bench = Bench::new();
        let at = Bound::place(FAST, Bytes::ZERO);
        bench.look(0);
        bench.charge(at, Bytes::ZERO);
        bench.directory.refuse("memory.limit_in_bytes", true);
        bench.watch.lift(bench.begin);
        assert_eq!((bench.watch.raised, bench.lifted()), (Bytes::ZERO, 0), "nothing has changed");
        assert!(bench.watch.owed);
        // Whoever has no descriptor left cannot read either.
        bench.directory.refuse("memory.usage_in_bytes", true);
        bench.look(1);
        assert!(bench.watch.owed, "they wait all the same");
        bench.directory.refuse("memory.usage_in_bytes", false);
        bench.charge(at, Bytes::ZERO);
        bench.directory.refuse("memory.limit_in_bytes", false);
        bench.look(1);
        assert_eq!((bench.watch.raised, bench.lifted()), (step(FAST), 1));
        let raised = (at + step(FAST)).get().to_string();
        assert_eq!(bench.directory.take("memory.limit_in_bytes"), raised);
        bench.look(2);
        assert!(!bench.watch.owed && bench.lifted() == 0, "once");

        bench.directory.refuse("memory.limit_in_bytes", true);
        bench.watch.lift(bench.begin);
        assert!(bench.watch.owed);
        std::fs::remove_dir_all(bench.watch.group.directory()).unwrap();
        bench.look(3);
        assert!(!bench.watch.owed, "a group that is gone has no threads");
    }

    /// The guard would be woken by a budget that is none any more, and look by itself four times a second.
    #[test]
    fn marks_of_another_budget_are_not_waited_for_where_no_others_can_be_set() {
        let mut bench = Bench::new();
        bench.watch.crossed = Some((event().unwrap(), Marks::of(FAST)));
        bench.watch.shared.refused.store(true, Ordering::Release);
        bench.look(0);
        assert!(bench.watch.crossed.is_some(), "they are where they belong");
        bench.watch.shared.fast.store((FAST / 2).get(), Ordering::Release);
        bench.look(1);
        assert!(bench.watch.crossed.is_none());
    }

    /// Nobody would raise the limit for threads that wait at it, with the killer off.
    #[test]
    fn without_its_thread_no_limit_is_left_and_the_killer_is_on() {
        let bench = Bench::new();
        let Bench { watch, directory, .. } = bench;
        directory.charge(FAST - Bytes::mib(5));
        assert_eq!(directory.take("memory.oom_control"), "1");
        let bound = Arc::clone(&watch.bound.as_ref().unwrap().0);
        let limit = Bound::place(FAST, Bytes::ZERO).get().to_string();
        let begun = Guard::begin(watch, |watch| {
            assert_eq!(directory.take("memory.limit_in_bytes"), limit, "the first look has set it");
            drop(watch);
            Err(io::ErrorKind::WouldBlock.into())
        });
        assert_eq!(begun.expect_err("no thread").kind(), io::ErrorKind::WouldBlock);
        assert_eq!(directory.take("memory.limit_in_bytes"), "-1");
        assert_eq!(directory.take("memory.oom_control"), "0");
        assert!(!bound.is_on());
    }

    /// Waits until the limit is as it should be. What is written lies over what was there.
    fn until(directory: &Directory, is_so: impl Fn(&str) -> bool) {
        while !is_so(&directory.peek("memory.limit_in_bytes")) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn threads_that_wait_at_the_limit_in_vain_go_on_and_it_is_set_again_when_there_is_room() {
        let (directory, group) = Directory::new();
        let (guard, waits, _reclaimer) = guard(&group, || Bytes::gib(1));
        let limit = Bound::place(FAST, Bytes::ZERO).get().to_string();
        until(&directory, |text| text == limit);

        directory.charge(Bound::place(FAST, Bytes::ZERO));
        signal(&waits);

        let raised = (Bound::place(FAST, Bytes::ZERO) + FAST / 100).get().to_string();
        until(&directory, |text| text == raised);
        directory.charge(Bytes::mib(1));
        until(&directory, |text| text == limit);
        assert_eq!(guard.take().lifted, 1);
        drop(guard);
        assert!(directory.peek("memory.limit_in_bytes").starts_with("-1"), "nobody would lift it");
    }

    /// The kernel would kill there in the end, or have a system call fail.
    #[test]
    fn the_limit_is_raised_before_the_kernel_gives_up() {
        let (directory, group) = Directory::new();
        let at = Bound::place(FAST, Bytes::ZERO);
        let (guard, _waits, _reclaimer) = guard(&group, || Bytes::gib(1));
        until(&directory, |text| text == at.get().to_string());
        directory.put("memory.memsw.usage_in_bytes", "99");
        directory.charge(at);
        let mut refused = 0;
        while guard.take().lifted == 0 {
            refused += 1;
            directory.put("memory.failcnt", &format!("{refused}\n"));
            thread::sleep(Duration::from_millis(1));
        }
        until(&directory, |text| text.parse::<u64>().is_ok_and(|limit| limit > at.get()));
    }

    /// A step that was needed once is not kept for as long as the run is at its limit.
    #[test]
    fn what_the_limit_was_raised_by_is_taken_back_while_memory_leaves() {
        let (directory, group) = Directory::new();
        let at = Bound::place(FAST, Bytes::ZERO);
        let (guard, waits, _reclaimer) = guard(&group, || Bytes::gib(1));
        until(&directory, |text| text == at.get().to_string());
        directory.charge(at - Bytes::mib(1));
        signal(&waits);
        until(&directory, |text| text == (at + FAST / 100).get().to_string());

        let mut out = 0;
        while directory.peek("memory.limit_in_bytes") != at.get().to_string() {
            out += 4096;
            directory.put("memory.memsw.usage_in_bytes", &(at.get() + out).to_string());
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(guard.take().lifted, 1);
    }

    /// A program that writes a file has pages of it beside its budget. When they are dropped, memory of
    /// the program's comes in their place, below the limit.
    #[test]
    fn room_that_files_have_left_is_not_the_programs() {
        let (directory, group) = Directory::new();
        let files = |mib: u64| format!("total_cache {}\ntotal_unevictable 0\n", mib << 20);
        directory.put("memory.stat", &files(100));
        let at = Bound::place(FAST, Bytes::mib(100));
        let (guard, _waits, _reclaimer) = guard(&group, || Bytes::gib(1));
        until(&directory, |text| text == at.get().to_string());
        directory.charge(at);
        guard.set_fast(FAST);
        thread::sleep(Duration::from_millis(20));
        assert!(!guard.take().brakes, "the files are beside it");

        directory.put("memory.stat", &files(0));
        while !guard.take().brakes {
            guard.set_fast(FAST);
            thread::sleep(Duration::from_millis(1));
        }
        directory.charge(Bound::place(FAST, Bytes::ZERO));
        while guard.take().brakes {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!directory.peek("memory.limit_in_bytes").starts_with("-1"));
    }

    /// After a larger excess, files' pages that have come since would pass for memory of the program
    /// that lies above its budget.
    #[test]
    fn what_is_above_the_budget_is_told_as_the_most_since_it_was_asked() {
        let (directory, group) = Directory::new();
        let reclaimer = Reclaimer::start(|_, _| Ok(())).unwrap();
        let (brake, asking) = (Arc::new(Brake::new(group.clone())), reclaimer.asking());
        let swap: fn() -> Bytes = || Bytes::gib(1);
        let mut watch = Watch::new((group, false), FAST, brake, None, asking, swap).unwrap();
        let mut exceeded = |files: u64, charged: Bytes| {
            let stat = format!("total_cache {}\ntotal_unevictable 0\n", files << 20);
            directory.put("memory.stat", &stat);
            directory.charge(charged);
            // It is not time yet to read what files' pages are.
            watch.read = Some(Instant::now() + Duration::from_hours(1));
            watch.look(Instant::now());
            let mut told = watch.shared.told.lock().unwrap();
            std::mem::take(&mut told.exceeded)
        };
        assert_eq!(exceeded(0, FAST + Bytes::mib(50)), Bytes::mib(50));
        assert_eq!(exceeded(0, FAST), Bytes::ZERO, "it is there no longer");
        assert_eq!(exceeded(20, FAST + Bytes::mib(20)), Bytes::ZERO, "those are files' pages");
        assert_eq!(exceeded(20, FAST + Bytes::mib(30)), Bytes::mib(10), "less than once is told");
    }

    /// A limit at the budget would be a wall for a run with thousands of threads: their stacks alone would
    /// fill it, and system calls that need memory would fail however much of the program's left.
    #[test]
    fn what_the_kernel_has_for_a_run_is_beside_its_budget() {
        let mut bench = Bench::new();
        let kernel = Bytes::gib(2);
        bench.directory.put("memory.kmem.usage_in_bytes", &format!("{}\n", kernel.get()));
        // A quarter of the budget is for it.
        let beside = kernel - FAST / 4;
        bench.directory.charge(FAST - Bytes::mib(50) + beside);
        bench.look(0);
        let limit = Bound::place(FAST, beside);
        assert_eq!(bench.directory.take("memory.limit_in_bytes"), limit.get().to_string());
        assert!(!bench.watch.brakes, "the program has less than its budget");
        bench.directory.charge(FAST + Bytes::mib(50) + beside);
        bench.look(1);
        assert!(bench.watch.brakes, "and now it has more");
    }

    /// With swap full, or memory locked, the kernel would find nothing.
    #[test]
    fn there_is_no_limit_where_nothing_can_be_put_out() {
        let full: fn() -> Bytes = || SWAP_LEFT - Bytes(1);
        for (swap, locked) in [(full, 0), (|| Bytes::gib(1), 700 << 20)] {
            let (directory, group) = Directory::new();
            directory.put("memory.stat", &format!("total_cache 0\ntotal_unevictable {locked}\n"));
            directory.charge(FAST - Bytes::mib(1));
            let (guard, _waits, _reclaimer) = guard(&group, swap);
            // It looks at once, and again whenever it is told of a budget.
            for _ in 0..20 {
                guard.set_fast(FAST);
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(directory.take("memory.limit_in_bytes"), "", "{locked} locked");
        }
    }
}
