//! Terrace's threads in a program: one manager, and a fault handler on each of
//! a few processors.
//!
//! They have a descriptor table of their own: the program neither sees their
//! descriptors nor can close them, and they keep none of the program's open.
//! They run with all signals blocked, on stacks of ours, and the C library does not know of
//! them ([`crate::workers::spawn`]).

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering::*};

use crate::broker::number;
use crate::failsafe::give_up;
use crate::failsafe::inject::{self, Point};
use crate::fork::register;
use crate::observe::protection::Tracks;
use crate::pager::{HANDLERS, MANAGER, MAX_WORKERS, Pager, WRITER};
use crate::space::proc_maps;
use crate::spill::writer::Desk;
use crate::stats::process_page::State;
use crate::sys::{self, limits};
use crate::workers::early_handles::{self, ReadyHandle};
use crate::workers::processors::{self, Processors};
use crate::workers::worker::Worker;
use crate::workers::{spawn, tls};

const STACK: usize = 256 << 10;

/// The stacks' range, so that code of the program's can tell whose thread it is in. What a thread
/// has of it ends with its thread-local storage.
static STACKS: AtomicUsize = AtomicUsize::new(0);
/// How much of it each has.
static ROOM: AtomicUsize = AtomicUsize::new(0);

/// Whether the calling thread is one of ours.
#[inline]
pub fn is_ours() -> bool {
    let here = 0u8;
    let at = core::ptr::from_ref(&here) as usize;
    let base = STACKS.load(Relaxed);
    base != 0 && at.wrapping_sub(base) < MAX_WORKERS * ROOM.load(Relaxed)
}

/// What the manager finds when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    /// Regions are to be found.
    Fresh {
        /// In the heap, too.
        heap: bool,
    },
    /// A fork's child: regions are known.
    Child,
}

struct Start {
    pager: &'static Pager,
    begin: Begin,
    /// 0: starting; 1: running; 2: failed.
    state: AtomicU32,
    /// Why it failed.
    error: AtomicI32,
    /// Whether that was since a child's memory could not be taken over.
    memory: AtomicBool,
}

/// Why a forked child cannot be managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoChild {
    /// In words.
    pub why: &'static str,
    /// The error number.
    pub error: i32,
}

/// Starts managing what lies in the window, and the heap if asked to (not where
/// Terrace's own threads allocate from it). Returns once it
/// has begun, or the error number if it could not; then nothing has changed.
/// To be called with all signals blocked.
pub fn start(pager: &'static Pager, heap: bool) -> Result<(), i32> {
    start_as(pager, Begin::Fresh { heap }).map_err(|failed| failed.error)
}

/// Starts managing again in a forked child. If that fails, nothing of its memory is registered.
pub fn resume(pager: &'static Pager) -> Result<(), NoChild> {
    start_as(pager, Begin::Child)
}

fn start_as(pager: &'static Pager, begin: Begin) -> Result<(), NoChild> {
    const NO_THREADS: &str = "a forked child could not have threads of ours";
    const NO_MEMORY: &str = "a forked child's memory could not be managed any more";
    let no_threads = |error| NoChild { why: NO_THREADS, error };
    make_stacks(begin).map_err(no_threads)?;
    let start = Start {
        pager,
        begin,
        state: AtomicU32::new(0),
        error: AtomicI32::new(0),
        memory: AtomicBool::new(false),
    };
    spawn(pager, MANAGER, manager, core::ptr::from_ref(&start).cast_mut().cast())
        .map_err(no_threads)?;
    while start.state.load(Acquire) == 0 {
        sys::futex_wait(&start.state, 0, None, false);
    }
    if start.state.load(Acquire) == 1 {
        return Ok(());
    }
    let why = if start.memory.load(Relaxed) { NO_MEMORY } else { NO_THREADS };
    Err(NoChild { why, error: start.error.load(Relaxed) })
}

/// Has stacks for all of them, with nothing on them.
fn make_stacks(begin: Begin) -> Result<(), i32> {
    let room = spawn::room(STACK).ok_or(libc::ENOTSUP)?;
    let stacks = STACKS.load(Relaxed);
    if begin == Begin::Child && stacks != 0 {
        // Those of its parent's threads, which are not here.
        let len = MAX_WORKERS * room;
        // SAFETY: memory of ours that nobody in this process uses.
        if unsafe { sys::madvise(stacks, len, libc::MADV_DONTNEED) }.is_err() {
            // SAFETY: as above; it is locked, and so present.
            unsafe { (stacks as *mut u8).write_bytes(0, len) };
        }
        return Ok(());
    }
    let stacks = sys::map_private(MAX_WORKERS * room)?;
    ROOM.store(room, Relaxed);
    STACKS.store(stacks, Relaxed);
    Ok(())
}

/// Gives their stacks back.
///
/// # Safety
/// None of our threads is left, and none will be.
pub(crate) unsafe fn give_back() {
    let stacks = STACKS.swap(0, AcqRel);
    if stacks != 0 {
        // SAFETY: memory of ours that nobody uses; the caller's.
        let _ = unsafe { sys::munmap(stacks, MAX_WORKERS * ROOM.load(Relaxed)) };
    }
}

/// Creates a thread on the stack of a worker.
fn spawn(
    pager: &'static Pager,
    worker: usize,
    main: spawn::Main,
    argument: *mut c_void,
) -> Result<(), i32> {
    let room = ROOM.load(Relaxed);
    let stack = STACKS.load(Relaxed) + worker * room;
    // SAFETY: mapped, unused and never unmapped; `argument` outlives the thread's use of it.
    unsafe { spawn::spawn(stack..stack + room, &pager.workers[worker].lives, main, argument) }
}

/// Looks up what threads need of the C library: at the start of the program, for it
/// takes the loader's lock. Managing may begin in a thread that has it (a library's
/// constructor, the end of the first thread that ends by `pthread_exit`) and waits for ours.
pub fn init() {
    tls::layout();
}

fn tid() -> i32 {
    // SAFETY: has no memory effects.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Gives the calling thread, and those that it creates, a descriptor table
/// that holds nothing of the program's, but what was [prepared](crate::workers::early_handles) for us.
fn own_descriptors() {
    const CLOSE_RANGE_UNSHARE: u32 = 1 << 1;
    // SAFETY: descriptors of the new table only; this thread uses none yet.
    let close = |first: u32, last: u32, how: u32| unsafe {
        libc::syscall(libc::SYS_close_range, first, last, how);
    };
    if let Some(held) = early_handles::held() {
        let held = held.cast_unsigned();
        // Only the first makes the new table.
        if held > 0 {
            close(0, held - 1, CLOSE_RANGE_UNSHARE);
            close(held + 1, u32::MAX, 0);
        } else {
            close(held + 1, u32::MAX, CLOSE_RANGE_UNSHARE);
        }
    } else {
        close(0, u32::MAX, CLOSE_RANGE_UNSHARE);
    }
    // SAFETY: new descriptors.
    unsafe {
        // 0, 1 and 2, so that no descriptor of ours gets a meaning by its
        // number; they are freed again by `leave_room`.
        for _ in 0..3 {
            libc::eventfd(0, libc::EFD_CLOEXEC);
        }
    }
}

/// Frees the least descriptors once ours are open: the kernel reports a fork
/// with a descriptor, which must fit under whatever limit the program sets.
fn leave_room() {
    for fd in 0..3 {
        // SAFETY: the placeholders of `own_descriptors`.
        unsafe { libc::close(fd) };
    }
}

extern "C" fn manager(arg: *mut c_void) {
    // SAFETY: `start_as` keeps it until it has seen the state change.
    let start = unsafe { &*(arg as *const Start) };
    let pager = start.pager;
    pager.workers[MANAGER].tid.store(tid(), Relaxed);
    crate::workers::idle_priority::enlist(MANAGER, tid(), None);
    let (mut worker, began) = limits::with_more_descriptors(|| {
        own_descriptors();
        let mut worker = Worker::new(pager, MANAGER);
        pager.phase.set_beginning(true);
        let began = open_handles(pager).and_then(|()| begin_managing(&mut worker, start));
        (worker, began)
    });
    leave_room();
    let ok = began.is_ok();
    // A child knows what its parent found. To measure again would have its manager wait for
    // handlers that may need it.
    let measures = start.begin != Begin::Child;
    if ok {
        pager.write_anchor();
    }
    if let Err(error) = began {
        start.error.store(error, Relaxed);
        // Those of our threads that could be had.
        pager.leave_program();
        pager.say_farewell();
    }
    let state = if ok { State::Active } else { State::Failed };
    pager.stats().state.store(state as u32, Relaxed);
    pager.phase.set_beginning(false);
    start.state.store(if ok { 1 } else { 2 }, Release);
    sys::futex_wake(&start.state, false);
    // `start` is gone from here on.
    if ok {
        if measures {
            worker.measure_fault_overhead();
        }
        guarded(pager, MANAGER, || worker.manage());
    }
}

/// Opens the userfaultfd and the spill file.
fn open_handles(pager: &Pager) -> Result<(), i32> {
    let mut tracks = None;
    let opened = ReadyHandle::open(|features| {
        tracks = crate::observe::samples::tracks(pager, features);
        // A kernel refuses the handshake for a feature that it does not know.
        tracks.map_or(0, Tracks::features)
    });
    let handle = match (opened, early_handles::handle()) {
        (Ok(handle), held) => {
            if let Some(held) = held {
                held.uffd.close();
            }
            handle
        }
        (Err(_), Some(held)) => {
            tracks = None;
            held
        }
        (Err(error), None) => return Err(error),
    };
    pager.handle.features.store(handle.features, Relaxed);
    pager.set_uffd(handle.uffd, tracks);
    pager.open_farewell();
    register::register_slots(pager)?;
    if let Some(path) = &pager.config.spill
        && !pager.spill.is_open()
    {
        let mut name = path.clone().into_os_string();
        name.push(format!(".{}", number::name()));
        if let Err(e) = pager.spill.open(name.as_ref(), pager.config.spill_mapped) {
            let error = std::io::Error::from_raw_os_error(e).to_string();
            sys::complain(&["the spill file is not used: ", &error]);
        }
    }
    Ok(())
}

fn begin_managing(worker: &mut Worker<'_>, start: &Start) -> Result<(), i32> {
    let pager = start.pager;
    // Handlers first: as soon as a range is registered, its faults wait for them.
    let handlers = HANDLERS.min(Processors::allowed().count().max(1));
    let writers = usize::from(pager.spill.is_open());
    for id in (1..=handlers).chain(WRITER..WRITER + writers) {
        let main = if id == WRITER { writer } else { handler };
        spawn(pager, id, main, core::ptr::from_ref(pager).cast_mut().cast())?;
    }
    match start.begin {
        Begin::Child => register::adopt(worker).inspect_err(|_| {
            start.memory.store(true, Relaxed);
            // What is absent is brought in by the program's thread, which must not wait for us.
            give_up::unregister_all(pager);
        })?,
        Begin::Fresh { heap } => {
            pager.fork.watch(pager)?;
            let mut heap_end = 0;
            let mut ranges = Vec::new();
            let is_told = proc_maps::for_each_mapping(|m| {
                let ours = crate::space::regions::in_window(m.start);
                if ours && m.is_manageable() || heap && m.heap && m.is_ordinary() {
                    ranges.push((m.start, m.end));
                    if m.heap && heap {
                        heap_end = m.end;
                    }
                }
            });
            if !is_told {
                pager.window_is_not_known();
            }
            pager.regions.heap_end.store(heap_end, Release);
            inject::at(Point::Listed);
            for (start, end) in ranges {
                // What cannot be managed is told of by the statistics.
                if worker.manage_range(start, end).is_ok() {
                    worker.guided(start, end);
                }
            }
        }
    }
    // They open files, for which the limit may have been raised just now.
    for id in (1..=handlers).chain(WRITER..WRITER + writers) {
        let mut spins = 0;
        while pager.workers[id].tid.load(Acquire) == 0 {
            crate::sys::spin::backoff(&mut spins);
        }
    }
    Ok(())
}

/// Keeps the calling thread on the n-th processor that it may run on: a fault
/// is served fastest by a handler on the same processor, which needs no
/// interrupt to another one (measured: `bench/mechanisms`). Whether it is pinned.
fn pin(nth: usize) -> bool {
    let all = Processors::allowed();
    // More processors than handlers: let the scheduler place them.
    all.count() <= HANDLERS && all.iter().nth(nth).is_some_and(processors::pin_to)
}

extern "C" fn handler(arg: *mut c_void) {
    // SAFETY: a pager is never freed.
    let pager = unsafe { &*(arg as *const Pager) };
    let stack = STACKS.load(Relaxed);
    let here = 0u8;
    let id = (core::ptr::from_ref(&here) as usize - stack) / ROOM.load(Relaxed);
    let pinned = pin(id - 1);
    crate::workers::idle_priority::enlist(id, tid(), pinned.then(processors::current));
    let mut worker = Worker::new(pager, id);
    pager.workers[id].tid.store(tid(), Release);
    guarded(pager, id, || worker.handle(pinned));
}

extern "C" fn writer(arg: *mut c_void) {
    // SAFETY: a pager is never freed.
    let pager = unsafe { &*(arg as *const Pager) };
    let mut worker = Worker::new(pager, WRITER);
    let desk = Desk::new(&pager.spill);
    pager.workers[WRITER].tid.store(tid(), Release);
    crate::workers::idle_priority::enlist(WRITER, tid(), None);
    guarded(pager, WRITER, || {
        if let Some(mut desk) = desk {
            worker.write_back(&mut desk);
        } else {
            sys::complain(&["the spill file is not used: there is no memory for its buffers"]);
            while !pager.is_stopped() {
                sys::sleep(1_000_000_000);
            }
        }
    });
}

/// Runs a thread's work. If it panics, the program is put on plain memory.
fn guarded(pager: &Pager, id: usize, work: impl FnOnce()) {
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    // What it had beside was given back, if by the panic.
    pager.workers[id].beside.store(0, Release);
    if let Err(payload) = ended {
        let why = give_up::reason(&*payload);
        sys::complain(&[why, "; the program goes on without Terrace"]);
        give_up::give_up(pager, id, why);
    }
    // Another one may be bringing everything in, which no message may overtake: who faults on a
    // page that is not there yet would find zeros.
    while pager.is_stopped() && !pager.phase.is_over() && !pager.is_leaving() {
        sys::sleep(100_000);
    }
    // Not the thread's end: who unmaps or forks waits until his message is read.
    let mut worker = Worker::new(pager, id);
    give_up::remain(&mut worker);
    worker.give_back();
    give_up::leave(pager);
}
