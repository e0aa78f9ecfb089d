//! Quiet windows: moments in which no other processor runs the program.
//!
//! Taking a page out of a mapping flushes TLBs: the kernel interrupts every
//! processor that runs the program just now and waits for it. In virtual
//! machines that costs 12 µs a page here and the other processor half of its
//! time (decision 0002), for `UFFDIO_MOVE` takes scattered pages one by one. A
//! processor that runs something else is not interrupted; the kernel brings
//! its TLB up to date when it comes back to the program. So for a batch of
//! pages we have the other processors run something else: `terrace run` keeps
//! a thread for each, that spins until the batch has moved. Opening such a
//! window costs some 16 µs, and every page in it then 1.2 µs.
//!
//! Nothing depends on it but speed: pages move just as safely without. Where
//! interrupts are cheap (the first move of some batches tells), where there are
//! many processors, or where nobody keeps windows, none is opened.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use crate::sys;
use crate::sys::mapped;
use crate::workers::processors::{self, Processors};

/// On more processors, stopping all of them costs more than interrupting the
/// few that run the program.
pub const MAX_CPUS: usize = 4;
/// The file's name in the run's directory.
pub const FILE: &str = "quiet";
/// A processor is given back after so long (ns) whatever happens.
const LONGEST: u64 = 600_000;
/// Nobody waits longer (ns) than this for a window to open.
const PATIENCE: u64 = 80_000;
/// A move that took so long (ns) has interrupted other processors: without, it
/// takes 1.2 µs here, and 12 µs with (`bench/mechanisms/eviction.c`).
const INTERRUPTED: u64 = 4_000;
/// So many moves in a row that took so long did not do so by chance.
const SURE: u32 = 2;
/// One in so many batches is begun without a window, to see whether moves still interrupt.
const TRIAL: u32 = 16;
/// A taker that has not given the window back after so long (ns) is dead.
const DEAD: u64 = 10_000_000;
/// How long (ns) windows are not tried after one did not open: at least, and at
/// most, as it doubles each time.
const REST: (u64, u64) = (1_000_000, 10_000_000_000);

/// Whether a run keeps windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuietWindows {
    /// Where there are two to [`MAX_CPUS`] processors, as far as moves show that it pays.
    Auto,
    /// Not at all: other programs on the machine are worth more than this one's speed.
    Never,
}

impl QuietWindows {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Auto, Self::Never];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Never => "never",
        }
    }
}

/// What the keeper and the pagers of a run share: a file in its directory.
#[repr(C)]
pub struct QuietPage {
    /// When (ns) somebody took the window; 0 while nobody has it.
    taken: AtomicU64,
    turn: AtomicU32,
    stop: AtomicU32,
    cpus: [QuietCpu; MAX_CPUS],
}

#[repr(C, align(64))]
struct QuietCpu {
    /// One more than the processor's number; 0 if the place is empty.
    cpu: AtomicU32,
    /// The last turn asked for, and the futex on which the thread sleeps.
    go: AtomicU32,
    /// The last turn for which the processor was held.
    ready: AtomicU32,
    /// The last turn that is over.
    done: AtomicU32,
}

// SAFETY: atomic integers, and an array of structures of them.
unsafe impl mapped::Atomics for QuietPage {}

fn map(path: &Path, create: bool) -> io::Result<&'static QuietPage> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(create).open(path)?;
    if create { mapped::make(&file, size_of::<QuietPage>()) } else { mapped::map(&file) }
}

/// Holds processors still when a pager asks for it. Dropping ends that.
#[derive(Debug)]
pub struct Keeper {
    page: &'static QuietPage,
}

impl core::fmt::Debug for QuietPage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("QuietPage").finish_non_exhaustive()
    }
}

impl Keeper {
    /// Begins to keep windows for the run in this directory. `None` where they
    /// would not pay or cannot be kept.
    pub fn start(directory: &Path) -> Option<Self> {
        let cpus = Processors::allowed();
        if !(2..=MAX_CPUS).contains(&cpus.count()) {
            return None;
        }
        let page = map(&directory.join(FILE), true).ok()?;
        for (place, cpu) in cpus.iter().enumerate() {
            let thread = std::thread::Builder::new().name(format!("quiet-{cpu}"));
            thread.spawn(move || keep(page, place, cpu)).ok()?;
        }
        Some(Self { page })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.page.stop.store(1, Release);
        for place in &self.page.cpus {
            place.go.fetch_add(1, Release);
            sys::futex_wake(&place.go, true);
        }
    }
}

/// The life of a processor's thread.
fn keep(page: &QuietPage, place: usize, cpu: u32) {
    processors::block_signals();
    if !processors::pin_to(cpu) {
        return;
    }
    // Without the right to it, an ordinary thread that wakes up gets its
    // processor soon enough, most often.
    processors::run_first();
    let own = &page.cpus[place];
    let mut seen = own.go.load(Acquire);
    own.cpu.store(cpu + 1, Release);
    while page.stop.load(Acquire) == 0 {
        sys::futex_wait(&own.go, seen, None, true);
        let asked = own.go.load(Acquire);
        if asked == seen {
            continue;
        }
        seen = asked;
        own.ready.store(seen, Release);
        let until = sys::now() + LONGEST;
        while own.done.load(Acquire) != seen && sys::now() < until {
            core::hint::spin_loop();
        }
    }
    own.cpu.store(0, Release);
}

/// What [`prepare`] has mapped.
static PREPARED: AtomicPtr<QuietPage> = AtomicPtr::new(core::ptr::null_mut());

/// Maps the page of the run in this directory, which may be out of reach later.
pub(crate) fn prepare(directory: &Path) {
    if PREPARED.load(Acquire).is_null()
        && let Ok(page) = map(&directory.join(FILE), false)
    {
        PREPARED.store(core::ptr::from_ref(page).cast_mut(), Release);
    }
}

/// A pager's side.
#[derive(Debug, Default)]
pub struct Quiet {
    page: Option<&'static QuietPage>,
    /// Moves outside of windows in a row, up to [`SURE`], that interrupted others.
    interrupted: AtomicU32,
    /// Batches that could have had a window.
    batches: AtomicU32,
    rest_until: AtomicU64,
    rest: AtomicU64,
}

impl Quiet {
    /// Windows of the run in this directory, if it keeps any.
    pub fn open(directory: &Path) -> Self {
        let page = map(&directory.join(FILE), false).ok();
        // SAFETY: only set from `&'static`.
        let page = page.or_else(|| unsafe { PREPARED.load(Acquire).as_ref() });
        Self { page, ..Self::default() }
    }

    /// Whether pages should leave in large batches: a window would be opened.
    pub fn pays(&self) -> bool {
        self.page.is_some()
            && self.interrupted.load(Relaxed) != 0
            && sys::now() >= self.rest_until.load(Relaxed)
    }

    /// The same, without a look at what the first move of this batch does: once in so many
    /// batches that is to be seen.
    pub fn is_known_to_pay(&self) -> bool {
        let sure = self.interrupted.load(Relaxed) == SURE;
        sure && self.pays() && !self.batches.fetch_add(1, Relaxed).is_multiple_of(TRIAL)
    }

    /// Tells how long a move outside of a window took (ns); whether it
    /// interrupted other processors.
    pub fn moved(&self, took: u64) -> bool {
        let interrupted = took > INTERRUPTED;
        let before = self.interrupted.load(Relaxed);
        self.interrupted.store(if interrupted { SURE.min(before + 1) } else { 0 }, Relaxed);
        interrupted && self.pays()
    }

    /// Has all other processors run something else until the window is dropped.
    /// Whoever has one open must not wait for another thread.
    pub fn window(&self) -> Option<Window<'_>> {
        let page = self.page?;
        let now = sys::now();
        let taken = page.taken.load(Acquire);
        let free = taken == 0 || now.saturating_sub(taken) > DEAD;
        if !free || page.taken.compare_exchange(taken, now, AcqRel, Relaxed).is_err() {
            return None;
        }
        let turn = page.turn.fetch_add(1, AcqRel).wrapping_add(1).max(1);
        let own = processors::current() + 1;
        let mut window = Window { page, taken: now, turn, asked: [false; MAX_CPUS] };
        for (asked, place) in window.asked.iter_mut().zip(&page.cpus) {
            let cpu = place.cpu.load(Acquire);
            if cpu != 0 && cpu != own {
                *asked = true;
                place.go.store(turn, Release);
                sys::futex_wake(&place.go, true);
            }
        }
        let until = now + PATIENCE;
        let asked = page.cpus.iter().zip(window.asked).filter(|(_, asked)| *asked);
        for (place, _) in asked {
            while place.ready.load(Acquire) != turn {
                core::hint::spin_loop();
                let now = sys::now();
                if now > until {
                    let rest = (self.rest.load(Relaxed) * 2).clamp(REST.0, REST.1);
                    self.rest.store(rest, Relaxed);
                    self.rest_until.store(now + rest, Relaxed);
                    return None;
                }
            }
        }
        self.rest.store(0, Relaxed);
        Some(window)
    }
}

/// While it exists, other processors do not run the program.
#[derive(Debug)]
pub struct Window<'q> {
    page: &'q QuietPage,
    /// When it was taken, which tells it apart from one that another has taken since.
    taken: u64,
    turn: u32,
    asked: [bool; MAX_CPUS],
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        // Declared dead, because we did not get to run: processors have long been given back,
        // and what is open now is another's.
        if self.page.taken.load(Acquire) != self.taken {
            return;
        }
        for (place, _) in self.page.cpus.iter().zip(self.asked).filter(|(_, asked)| *asked) {
            place.done.store(self.turn, Release);
        }
        let _ = self.page.taken.compare_exchange(self.taken, 0, Release, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs a second processor; on others there is nothing to keep still.
    #[test]
    fn a_window_keeps_other_processors_busy_and_gives_them_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let Some(_keeper) = Keeper::start(directory.path()) else {
            terrace_shown::is_missing("a second processor");
            return;
        };
        let quiet = Quiet::open(directory.path());
        let page = quiet.page.expect("the keeper has made it");
        while page.cpus.iter().filter(|c| c.cpu.load(Acquire) != 0).count()
            < Processors::allowed().count()
        {
            std::thread::yield_now();
        }
        let window = (0..1000).find_map(|_| {
            let Some(window) = quiet.window() else {
                sys::sleep(1_000_000);
                return None;
            };
            let other = quiet.window();
            // Who waited for a processor for so long counts as dead, which shows nothing.
            if sys::now() - window.taken > DEAD {
                return None;
            }
            assert!(other.is_none(), "one at a time");
            Some(window)
        });
        let window = window.expect("a window opens sooner or later");
        drop(window);
        assert_eq!(page.taken.load(Acquire), 0);
        assert!(page.cpus.iter().all(|c| c.go.load(Acquire) == c.done.load(Acquire)));
    }

    /// Where interrupts have become cheap, or no other thread runs any more, windows have to
    /// end by themselves.
    #[test]
    fn now_and_then_a_batch_begins_without_a_window() {
        let directory = tempfile::tempdir().expect("a directory");
        let page = map(&directory.path().join(FILE), true).expect("a page");
        let quiet = Quiet { page: Some(page), ..Quiet::default() };
        assert!(!quiet.is_known_to_pay(), "nobody has seen an interrupt yet");
        assert!(quiet.moved(2 * INTERRUPTED));
        assert!(!quiet.is_known_to_pay(), "it may have been put off");
        assert!(quiet.moved(2 * INTERRUPTED));
        let known = (0..4 * TRIAL).filter(|_| quiet.is_known_to_pay()).count();
        assert_eq!(known as u32, 4 * (TRIAL - 1));
        assert!(!quiet.moved(INTERRUPTED / 2));
        assert!(!quiet.is_known_to_pay());
    }

    #[test]
    fn without_a_keeper_there_are_no_windows() {
        let directory = tempfile::tempdir().expect("a directory");
        let quiet = Quiet::open(directory.path());
        assert!(!quiet.moved(1_000_000));
        assert!(quiet.window().is_none());
    }

    #[test]
    fn a_window_whose_taker_died_is_free_again() {
        let page: &'static QuietPage =
            map(&tempfile::tempdir().expect("a directory").path().join(FILE), true)
                .expect("a page");
        let quiet = Quiet { page: Some(page), ..Quiet::default() };
        page.taken.store(u64::MAX, Release);
        assert!(quiet.window().is_none(), "taken just now, and for however long this takes");
        page.taken.store(sys::now() - DEAD - 1, Release);
        assert!(quiet.window().is_some());
    }

    /// Or two could have windows at once, and each would take the other's processors for held.
    #[test]
    fn who_was_taken_for_dead_does_not_give_another_s_window_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let page = map(&directory.path().join(FILE), true).expect("a page");
        let quiet = Quiet { page: Some(page), ..Quiet::default() };
        let late = quiet.window().expect("nobody has it");
        sys::sleep(DEAD + 1_000_000);
        let next = quiet.window().expect("whoever had it is dead");
        let taken = page.taken.load(Acquire);

        drop(late);

        assert_eq!((page.taken.load(Acquire), next.taken), (taken, taken));
        drop(next);
        assert_eq!(page.taken.load(Acquire), 0);
    }
}
