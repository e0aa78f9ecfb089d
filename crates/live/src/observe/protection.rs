//! Accesses that a page's protection tells of.
//!
//! Some resident pages, drawn at random, are protected through the userfaultfd, in a mode in
//! which the kernel lets the first access through by itself and remembers it in the page table.
//! A while later `PAGEMAP_SCAN` says which of them were touched, and what is still protected is
//! given free. A thread that touches such a page takes a fault in the kernel and waits for
//! nobody.
//!
//! | | protects against | kernel | told as |
//! |---|---|---|---|
//! | [`Tracks::Stores`] | stores | Linux 6.7 (`WP_ASYNC`) | `PAGE_IS_WRITTEN` |
//! | [`Tracks::Accesses`] | loads and stores | newer than 6.18 (`RWP_ASYNC`) | `PAGE_IS_ACCESSED` |
//!
//! To the kernel every page that is not protected counts as touched. So only what was protected
//! is asked about, and of that only what has not left in the meantime: a page that comes back
//! is not protected any more, whoever asked for it ([`Departed`]).
//!
//! Empty places are never protected. Write protection would mark them, and into a marked place
//! `UFFDIO_MOVE` does not move a page: it says that there is one (`EEXIST`). Hence write
//! protection comes from `PAGEMAP_SCAN`, which can be told to take what is present, and looks
//! and protects under one lock; read-write protection never marks an empty place.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::*};

use terrace_core::{Access, Nanos, PageRef, Sample, SampleSource, Xorshift};
use terrace_policy::Needs;
use terrace_sampler::pagemap::{Query, Run, is};

use crate::config::Observer;
use crate::evict::pinned_pages::PINNED;
use crate::pager::Pager;
use crate::space::page_state::PageState;
use crate::space::proc_maps::Pagemap;
use crate::sys::PAGE;
use crate::sys::uffd::{Uffd, feature, mode};

/// How long pages are protected: as long as pages are armed (`evict/reclaim.rs`).
const INTERVAL: Nanos = Nanos::millis(100);
/// Ranges that are protected at once, before the governor makes it fewer.
const RANGES: u32 = 64;
/// Pages of a range at most: neighbours share the kernel's calls and the flush of the TLBs.
const RUN: usize = 8;

/// What protection tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracks {
    /// Stores.
    Stores,
    /// Loads and stores alike.
    Accesses,
}

impl Tracks {
    /// The features that a handle needs for it.
    pub const fn features(self) -> u64 {
        match self {
            Self::Stores => feature::WP_ASYNC,
            Self::Accesses => feature::RWP | feature::RWP_ASYNC,
        }
    }

    /// What ranges are registered for, beside missing pages.
    pub const fn mode(self) -> u64 {
        match self {
            Self::Stores => mode::WP,
            Self::Accesses => mode::RWP,
        }
    }

    /// What a kernel with these features lacks for it; `None` if nothing.
    pub const fn lack(self, features: u64) -> Option<&'static str> {
        if features & self.features() == self.features() {
            return None;
        }
        Some(match self {
            Self::Stores => "this kernel's userfaultfd has no WP_ASYNC",
            Self::Accesses => "this kernel's userfaultfd has no read-write protection",
        })
    }

    /// What `PAGEMAP_SCAN` calls a page that was touched.
    const fn touched(self) -> u64 {
        match self {
            Self::Stores => is::WRITTEN,
            Self::Accesses => is::ACCESSED,
        }
    }

    /// A touched page as a sample. Which kind an access was is not known: like DAMON's, it counts
    /// as a load.
    const fn sample(self, page: PageRef) -> Sample {
        let (access, source) = match self {
            Self::Stores => (Access::Write, SampleSource::WriteTrack),
            Self::Accesses => (Access::Read, SampleSource::HintFault),
        };
        Sample { page, access, source, weight: 1 }
    }
}

/// What is tracked for a policy with such needs, by a kernel with these features. `hardware`
/// samples better where the policy needs samples.
///
/// Accesses take the place of hint faults. Where they cannot be had, hint faults show what the
/// first access to a page is; that there are stores behind a load, only tracking shows.
pub fn choose(observer: Observer, needs: &Needs, features: u64, hardware: bool) -> Option<Tracks> {
    let has = |tracks: &Tracks| tracks.lack(features).is_none();
    match observer {
        Observer::Rwp => Some(Tracks::Accesses).filter(has),
        Observer::Hardware | Observer::PageFaults => None,
        Observer::Auto if needs.samples && hardware => None,
        Observer::Auto => {
            let accesses = (needs.samples || needs.scans).then_some(Tracks::Accesses).filter(has);
            let stores = (needs.samples && needs.reads_and_writes).then_some(Tracks::Stores);
            accesses.or(stores.filter(has))
        }
    }
}

/// Pages that have left DRAM lately: a filter that may take a page for one of them that is
/// not, never the other way round.
#[derive(Debug)]
pub struct Departed([AtomicU64; WORDS]);

/// 64 Ki bits. Several thousand pages leave in an interval; some hundred are looked up.
const WORDS: usize = 1024;

impl Departed {
    /// Nothing has left.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// A page leaves. To be called before it moves.
    pub fn note(&self, address: usize) {
        let (word, bit) = Self::place(address);
        self.0[word].fetch_or(bit, AcqRel);
    }

    /// Whether a page may have left since the last [`Self::forget`].
    pub fn contains(&self, address: usize) -> bool {
        let (word, bit) = Self::place(address);
        self.0[word].load(Acquire) & bit != 0
    }

    /// Begins anew.
    pub fn forget(&self) {
        for word in &self.0 {
            word.store(0, Release);
        }
    }

    const fn place(address: usize) -> (usize, u64) {
        // Fibonacci hashing: the upper bits of the product depend on all of the number.
        let hash = ((address / PAGE) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        (hash as usize / 64 % WORDS, 1 << (hash % 64))
    }
}

impl Default for Departed {
    fn default() -> Self {
        Self::new()
    }
}

/// What a tracker asks of a kernel; tests have one of their own.
pub(crate) trait Protection {
    /// Protects what is present in a range, if it can be.
    fn protect(&mut self, range: &Range<usize>) -> Result<(), i32>;
    /// Calls `each` for every run of pages in a range that are not protected.
    fn touched(&mut self, range: &Range<usize>, each: &mut dyn FnMut(Run)) -> Result<(), i32>;
    /// Ends protection in a range.
    fn release(&mut self, range: &Range<usize>) -> Result<(), i32>;
}

/// This kernel.
pub(crate) struct Kernel<'a> {
    pub(crate) tracks: Tracks,
    pub(crate) uffd: Uffd,
    pub(crate) pagemap: &'a Pagemap,
}

impl Protection for Kernel<'_> {
    fn protect(&mut self, range: &Range<usize>) -> Result<(), i32> {
        match self.tracks {
            Tracks::Stores => {
                let query = Query { any: is::PRESENT, tell: is::PRESENT, protect: true };
                self.pagemap.scan(range.start, range.end, query, &mut |_| {})
            }
            Tracks::Accesses => self.uffd.read_write_protect(range.start, range.len(), true),
        }
    }

    fn touched(&mut self, range: &Range<usize>, each: &mut dyn FnMut(Run)) -> Result<(), i32> {
        let touched = self.tracks.touched();
        let query = Query { any: touched, tell: touched, protect: false };
        self.pagemap.scan(range.start, range.end, query, each)
    }

    fn release(&mut self, range: &Range<usize>) -> Result<(), i32> {
        match self.tracks {
            Tracks::Stores => self.uffd.write_unprotect(range.start, range.len()),
            Tracks::Accesses => self.uffd.read_write_protect(range.start, range.len(), false),
        }
    }
}

/// What a tracker needs to know of managed memory.
pub(crate) trait Memory {
    /// Some resident pages side by side, at random; `None` if the draw was a blank.
    fn draw(&mut self) -> Option<Range<usize>>;
    /// The page at an address, if it is resident and has not left since it was drawn.
    fn page_at(&self, address: usize) -> Option<PageRef>;
    /// From here on pages that leave are remembered.
    fn remember(&mut self);
}

/// Protects pages and asks about them.
#[derive(Debug)]
pub(crate) struct Tracker {
    tracks: Tracks,
    /// What is protected; no two overlap.
    protected: Vec<Range<usize>>,
    due: Nanos,
    rarity: u32,
}

impl Tracker {
    pub(crate) fn new(tracks: Tracks) -> Self {
        let protected = Vec::with_capacity(RANGES as usize);
        Self { tracks, protected, due: Nanos::ZERO, rarity: 1 }
    }

    pub(crate) const fn tracks(&self) -> Tracks {
        self.tracks
    }

    /// Makes samples so many times as rare.
    pub(crate) fn set_rarity(&mut self, factor: u32) {
        self.rarity = factor.max(1);
    }

    /// Once the interval is over: adds what was touched, and, if `more` is wanted, protects
    /// other pages. Returns how many pages were touched: so many faults the program took.
    pub(crate) fn look(
        &mut self,
        now: Nanos,
        more: bool,
        kernel: &mut impl Protection,
        memory: &mut impl Memory,
        out: &mut Vec<Sample>,
    ) -> u64 {
        if now < self.due {
            return 0;
        }
        let mut touched = 0;
        for range in self.protected.drain(..) {
            touched += collect(self.tracks, &range, kernel, memory, out);
        }
        if more {
            self.protect(kernel, memory);
        }
        // What fewer ranges do not save, longer intervals do.
        self.due = now + INTERVAL * u64::from((self.rarity / RANGES).max(1));
        touched
    }

    fn protect(&mut self, kernel: &mut impl Protection, memory: &mut impl Memory) {
        let most = (RANGES / self.rarity).max(1) as usize;
        memory.remember();
        for _ in 0..4 * most {
            if self.protected.len() >= most {
                break;
            }
            let Some(range) = memory.draw() else { continue };
            let overlaps =
                |other: &Range<usize>| range.start < other.end && other.start < range.end;
            // What was unmapped or discarded a moment ago, or is registered without protection
            // (memory that was only reserved then), cannot be protected.
            if !self.protected.iter().any(overlaps) && kernel.protect(&range).is_ok() {
                self.protected.push(range);
            }
        }
    }
}

/// Samples of what of a protected range was touched; returns how many pages.
fn collect(
    tracks: Tracks,
    range: &Range<usize>,
    kernel: &mut impl Protection,
    memory: &impl Memory,
    out: &mut Vec<Sample>,
) -> u64 {
    let mut touched = 0;
    let told = kernel.touched(range, &mut |run| {
        if run.flags & tracks.touched() == 0 {
            return;
        }
        let (start, end) = (range.start.max(run.start as usize), range.end.min(run.end as usize));
        for address in (start..end).step_by(PAGE) {
            if let Some(page) = memory.page_at(address) {
                out.push(tracks.sample(page));
                touched += 1;
            }
        }
    });
    // What is still protected would stand in the way of huge pages, and cost a later access a
    // fault that tells nothing. That fails where nothing is mapped any more.
    if told.is_err() || touched < (range.len() / PAGE) as u64 {
        let _ = kernel.release(range);
    }
    touched
}

/// The memory of a pager.
pub(crate) struct Managed<'a> {
    pub(crate) pager: &'a Pager,
    pub(crate) random: &'a mut Xorshift,
}

impl Memory for Managed<'_> {
    fn draw(&mut self) -> Option<Range<usize>> {
        let pager = self.pager;
        let total: u64 = pager.regions.iter().map(|(_, r)| u64::from(r.pages())).sum();
        let mut nth = self.random.below(total)?;
        // As for a page that is armed: a sample is not worth a huge page, unless memory is
        // short and it will be split.
        let spare = pager.resident() + 2 * pager.headroom() < pager.budget();
        for (_, region) in pager.regions.iter() {
            let pages = u64::from(region.pages());
            if nth >= pages {
                nth -= pages;
                continue;
            }
            let start = region.start() + nth as usize * PAGE;
            let suits = |&i: &usize| {
                let address = start + i * PAGE;
                let word = region.get(nth as u32 + i as u32);
                word.is_some_and(|word| word.load(Relaxed) == PageState::Resident.word())
                    && !(spare && pager.regions.is_huge(address))
                    && !PINNED.contains(address)
            };
            let count = (0..RUN).take_while(suits).count();
            // The kernel splits what is protected in part.
            (0..count).for_each(|i| pager.splits(start + i * PAGE));
            return (count > 0).then(|| start..start + count * PAGE);
        }
        None
    }

    fn page_at(&self, address: usize) -> Option<PageRef> {
        let place = self.pager.regions.find(address)?;
        let resident = place.word.load(Acquire) == PageState::Resident.word();
        (resident && !self.pager.handle.departed.contains(address)).then(|| Pager::page_ref(&place))
    }

    fn remember(&mut self) {
        self.pager.handle.departed.forget();
    }
}

#[cfg(test)]
mod tests;
