//! The managed regions: which address belongs to which page word.
//!
//! Looked up at every fault, without a lock; changed rarely, under one. Most
//! regions lie in a window of addresses of our own choice, in which every
//! 2 MiB chunk names its region; others (the heap, what `mremap` moved) are
//! found by walking the table.

use core::mem::offset_of;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*,
};
use std::alloc::{Layout, alloc_zeroed, dealloc};

use crate::failsafe::core_tables::RegionLayout;
use crate::failsafe::reserve_memory;
use crate::space::page_state::PageState;
use crate::space::unmanaged::Unmanaged;
use crate::stats::process_page::PARTS;
use crate::sys::spin::SpinLock;
use crate::sys::{self, PAGE};

pub use crate::sys::addresses::{WINDOW, WINDOW_LEN, in_window, window};

/// Alignment of regions in the window.
pub const CHUNK: usize = 2 << 20;
/// The most regions managed at once. Many more than a process may have mappings by default
/// (`vm.max_map_count`, 65 530): those that lie side by side are one mapping for the kernel.
pub const MAX_REGIONS: usize = SEGMENTS * SEGMENT;
/// The table grows by so many at a time, as they are needed.
const SEGMENT: usize = 16_384;
const SEGMENTS: usize = 8;
/// From so many regions on that were taken out, those that nobody uses any more are freed before
/// another one is entered. Their words take memory, and mappings of the process.
const MANY_RETIRED: usize = 64;
/// The same by their pages, of a few large ones: 8 MiB of words.
const MANY_RETIRED_PAGES: usize = 1 << 20;

const CHUNKS: usize = WINDOW_LEN / CHUNK;
/// Beside a region's number in a chunk: there are, or were, others in it, which are not named.
const SHARED: u32 = 1 << 31;
/// Regions outside of the window that are found without a look at all regions.
const MOST_OUTSIDE: usize = 512;

/// What a policy keeps of a page, at most (bytes): `memtis` 26.
const BOOKS: usize = 32;
/// From so many pages on it is more than what is kept for such cases ([its reserve](crate::failsafe::reserve_memory)).
const MANY: u32 = (reserve_memory::RESERVE / BOOKS / 4) as u32;

/// One region. All zeros while the entry is unused.
#[derive(Default)]
pub struct Region {
    start: AtomicUsize,
    pages: AtomicU32,
    /// Pages that are no longer mapped.
    gone: AtomicU32,
    /// Address of the page words.
    words: AtomicUsize,
    /// Pages resident now.
    pub resident: AtomicU32,
    /// Faults taken.
    pub faults: AtomicU64,
    /// The same by equal parts.
    pub parts: [AtomicU32; PARTS],
}

/// A page's place: its region, its number in it, and its word.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The region's number.
    pub id: u32,
    /// The region.
    pub region: &'a Region,
    /// The page's number in it.
    pub page: u32,
    /// The page's word.
    pub word: &'a AtomicU64,
}

impl Place<'_> {
    /// The page's address.
    pub fn address(&self) -> usize {
        self.region.start() + self.page as usize * PAGE
    }
}

impl Region {
    /// First address.
    pub fn start(&self) -> usize {
        self.start.load(Acquire)
    }
    /// Length in pages; 0 while unused.
    pub fn pages(&self) -> u32 {
        self.pages.load(Acquire)
    }
    /// One past the last address.
    pub fn end(&self) -> usize {
        self.start() + self.pages() as usize * PAGE
    }
    /// A page's word; `None` if the region has no such page, or is being taken away.
    pub fn get(&self, page: u32) -> Option<&AtomicU64> {
        // SAFETY: as below. The words stay for who has found the region, whatever becomes of
        // it behind this comparison.
        (page < self.pages()).then(|| unsafe { self.word_at(page) })
    }
    /// A page's word.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn word(&self, page: u32) -> &AtomicU64 {
        // Who has found the region may still look at what is being taken away, which has no
        // pages any more.
        debug_assert!(page < self.pages() || self.pages() == 0);
        // SAFETY: the page is, or was, the region's.
        unsafe { self.word_at(page) }
    }
    /// A page's word.
    ///
    /// # Safety
    /// The region has had such a page since the caller found it.
    unsafe fn word_at(&self, page: u32) -> &AtomicU64 {
        // SAFETY: the words are as many as the pages, and are unmapped only
        // after every thread that could have found the region has let go of it.
        unsafe { &*(self.words.load(Acquire) as *const AtomicU64).add(page as usize) }
    }
    /// Whether the policy was told to forget a page, see [`crate::fork::shared_frames`].
    pub fn is_apart(&self, page: u32) -> bool {
        let (word, bit) = self.apart(page);
        word.load(Relaxed) & bit != 0
    }
    /// Sets that.
    pub fn set_apart(&self, page: u32, apart: bool) {
        let (word, bit) = self.apart(page);
        if apart {
            word.fetch_or(bit, Relaxed);
        } else {
            word.fetch_and(!bit, Relaxed);
        }
    }
    /// A page's bit, which lies behind the words of all pages.
    fn apart(&self, page: u32) -> (&AtomicU64, u64) {
        let pages = self.pages();
        debug_assert!(page < pages, "the manager alone takes regions away, and asks this");
        let at = self.words.load(Acquire) as *const AtomicU64;
        // SAFETY: behind `pages` words lie the bits of as many pages, see `words_for`; they go
        // together.
        (unsafe { &*at.add(pages as usize + page as usize / 64) }, 1 << (page % 64))
    }
    /// Counts a fault on a page.
    #[inline]
    pub fn count_fault(&self, page: u32) {
        self.faults.fetch_add(1, Relaxed);
        let part = u64::from(page) * PARTS as u64 / u64::from(self.pages().max(1));
        // A region that is being taken away has no pages any more.
        self.parts[(part as usize).min(PARTS - 1)].fetch_add(1, Relaxed);
    }
    /// Calls `each` for every run of page words whose memory was ever touched:
    /// first page and how many. All others are fresh.
    pub fn for_each_touched(&self, first: u32, count: u32, mut each: impl FnMut(u32, u32)) {
        let words = self.words.load(Acquire);
        let at = |page: u32| words + page as usize * size_of::<AtomicU64>();
        let (from, to) = (at(first) & !(PAGE - 1), at(first + count).next_multiple_of(PAGE));
        crate::space::proc_maps::Pagemap::open().for_each_present(from, to, |start, pages| {
            let index = |at: usize| (at.saturating_sub(words) / size_of::<AtomicU64>()) as u32;
            let start_page = index(start).max(first);
            let end_page = index(start + pages * PAGE).min(first + count);
            each(start_page, end_page - start_page);
        });
    }
    /// Pages that are mapped.
    pub fn mapped(&self) -> u32 {
        self.pages() - self.gone.load(Acquire)
    }
    /// Counts pages as no longer mapped, and says whether that was the last.
    pub fn count_gone(&self, pages: u32) -> bool {
        self.gone.fetch_add(pages, AcqRel) + pages == self.pages()
    }
    /// A page is mapped again.
    pub fn count_back(&self) {
        self.gone.fetch_sub(1, AcqRel);
    }
}

struct Retired {
    id: u32,
    words: usize,
    pages: u32,
    epoch: u64,
}

/// Words for so many pages, and a bit for each behind them.
const fn words_for(pages: u32) -> usize {
    (pages as usize + (pages as usize).div_ceil(64)) * size_of::<AtomicU64>()
}

/// Up to this size they come from the allocator: each mapping counts against a limit that the
/// program shares with us (`vm.max_map_count`), and small regions may be many.
const SMALL_WORDS: usize = 8 << 10;

/// The words of a new region, and the bits behind them, all zero.
fn map_words(pages: u32) -> Result<usize, Unmanaged> {
    let len = words_for(pages);
    if len > SMALL_WORDS {
        return reserve_memory::map(len).map_err(|_| Unmanaged::NoMemory);
    }
    let layout = Layout::array::<u64>(len / size_of::<u64>()).map_err(|_| Unmanaged::NoMemory)?;
    // SAFETY: a region has pages, so this is not empty.
    let at = unsafe { alloc_zeroed(layout) };
    if at.is_null() { Err(Unmanaged::NoMemory) } else { Ok(at.expose_provenance()) }
}

/// Gives them back.
///
/// # Safety
/// They came from [`map_words`] for as many pages, and nobody uses them any more.
unsafe fn unmap_words(words: usize, pages: u32) {
    let len = words_for(pages);
    if len > SMALL_WORDS {
        // SAFETY: the caller's.
        let _ = unsafe { sys::munmap(words, len) };
    } else if let Ok(layout) = Layout::array::<u64>(len / size_of::<u64>()) {
        // SAFETY: the caller's.
        unsafe { dealloc(core::ptr::with_exposed_provenance_mut(words), layout) };
    }
}

struct Changes {
    free_ids: Vec<u32>,
    retired: Vec<Retired>,
}

/// All regions.
pub struct Regions {
    /// The table: [`SEGMENT`] regions each, null where it has not grown so far.
    segments: [AtomicPtr<Region>; SEGMENTS],
    chunks: &'static [AtomicU32],
    /// By chunk: whether it is backed by one huge page, as far as we know.
    huge: &'static [AtomicU8],
    used: AtomicU32,
    /// Regions outside of the window: number plus one, 0 where there is none.
    outside: &'static [AtomicU32],
    /// Whether there were ever more than fit.
    more_outside: AtomicBool,
    changes: SpinLock<Changes>,
    /// How many were taken out and are not free yet, and their pages.
    retired: AtomicUsize,
    retired_pages: AtomicUsize,
    epoch: AtomicU64,
    /// One past the heap's last managed address; 0 if it is not managed.
    pub heap_end: AtomicUsize,
}

impl Regions {
    /// No regions yet. Takes address space only; fails if there is none.
    pub fn new() -> Result<Self, i32> {
        let segment = map_segment()?;
        let chunks = sys::map_private(CHUNKS * 4)?;
        let huge = sys::map_private(CHUNKS)?;
        let outside = sys::map_private(MOST_OUTSIDE * 4)?;
        // SAFETY: the mappings are zeroed, page-aligned, long enough and
        // never unmapped, and zero bytes are valid atomics.
        unsafe {
            Ok(Self {
                segments: core::array::from_fn(|i| {
                    AtomicPtr::new(if i == 0 { segment } else { core::ptr::null_mut() })
                }),
                chunks: core::slice::from_raw_parts(chunks as *const AtomicU32, CHUNKS),
                huge: core::slice::from_raw_parts(huge as *const AtomicU8, CHUNKS),
                used: AtomicU32::new(0),
                outside: core::slice::from_raw_parts(outside as *const AtomicU32, MOST_OUTSIDE),
                more_outside: AtomicBool::new(false),
                changes: SpinLock::new(Changes {
                    free_ids: Vec::with_capacity(SEGMENT),
                    retired: Vec::with_capacity(SEGMENT),
                }),
                retired: AtomicUsize::new(0),
                retired_pages: AtomicUsize::new(0),
                heap_end: AtomicUsize::new(0),
                epoch: AtomicU64::new(1),
            })
        }
    }

    /// Where the table is and what it looks like, for who reads it in a dump.
    pub(crate) fn layout(&self) -> RegionLayout {
        let address = |at: *const u8| at.addr() as u64;
        RegionLayout {
            segments: address(self.segments.as_ptr().cast()),
            segment_count: SEGMENTS as u64,
            segment_len: SEGMENT as u64,
            start: offset_of!(Region, start) as u64,
            pages: offset_of!(Region, pages) as u64,
            words: offset_of!(Region, words) as u64,
            used: address(self.used.as_ptr().cast_const().cast()),
        }
    }

    /// The region of an address.
    pub fn find(&self, address: usize) -> Option<Place<'_>> {
        if let Some(chunk) = address.checked_sub(window()).map(|o| o / CHUNK)
            && let Some(entry) = self.chunks.get(chunk)
        {
            let entry = entry.load(Acquire);
            let named = named(entry).and_then(|id| self.place(id, address));
            if entry & SHARED == 0 || named.is_some_and(|place| !is_gone(&place)) {
                return named;
            }
        }
        // A region that has lost this address may hide one that has it now.
        let mut gone = None;
        if !in_window(address) && !self.more_outside.load(Acquire) {
            for id in self.outside.iter().map(|entry| entry.load(Acquire)).filter(|&id| id != 0) {
                if let Some(place) = self.place(id - 1, address) {
                    if !is_gone(&place) {
                        return Some(place);
                    }
                    gone = Some(place);
                }
            }
            return gone;
        }
        for id in 0..self.used.load(Acquire) {
            if let Some(place) = self.place(id, address) {
                if !is_gone(&place) {
                    return Some(place);
                }
                gone = Some(place);
            }
        }
        gone
    }

    /// An entry of the table; `None` beyond its end.
    fn entry(&self, id: u32) -> Option<&Region> {
        let segment = self.segments.get(id as usize / SEGMENT)?.load(Acquire);
        // SAFETY: null, or the first of so many, which are never unmapped.
        (!segment.is_null()).then(|| unsafe { &*segment.add(id as usize % SEGMENT) })
    }

    fn place(&self, id: u32, address: usize) -> Option<Place<'_>> {
        let region = self.entry(id)?;
        let pages = region.pages();
        let page = address.checked_sub(region.start())? / PAGE;
        (page < pages as usize).then(|| Place {
            id,
            region,
            page: page as u32,
            word: region.word(page as u32),
        })
    }

    /// A region by its number; `None` while that number is unused.
    pub fn get(&self, id: u32) -> Option<&Region> {
        self.entry(id).filter(|r| r.pages() != 0)
    }

    /// Whether any page of a range was ever touched.
    pub fn is_touched(&self, start: usize, end: usize) -> bool {
        self.iter().any(|(_, region)| {
            let (from, to) = (start.max(region.start()), end.min(region.end()));
            let page = |at: usize| ((at - region.start()) / PAGE) as u32;
            from < to
                && (from..to)
                    .step_by(PAGE)
                    .any(|at| region.get(page(at)).is_some_and(|word| word.load(Acquire) != FRESH))
        })
    }

    /// Every region.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.iter_from(0)
    }

    /// Every region from a number on.
    pub fn iter_from(&self, id: u32) -> impl Iterator<Item = (u32, &Region)> {
        (id..self.used.load(Acquire)).filter_map(|id| self.get(id).map(|r| (id, r)))
    }

    /// Enters a region whose pages are all fresh, or says why it cannot be: the table is full, or
    /// there is no memory for the words, or for what a policy keeps of so many pages.
    pub fn insert(&self, start: usize, pages: u32) -> Result<u32, Unmanaged> {
        let words = map_words(pages)?;
        let entered = if is_room_for_books(pages) {
            self.enter(start, pages, words)
        } else {
            Err(Unmanaged::NoMemory)
        };
        // SAFETY: nobody knows of these words.
        entered.inspect_err(|_| unsafe { unmap_words(words, pages) })
    }

    fn enter(&self, start: usize, pages: u32, words: usize) -> Result<u32, Unmanaged> {
        let mut changes = self.changes.lock();
        let id = match changes.free_ids.pop() {
            Some(id) => id,
            None => self.next_id(&mut changes)?,
        };
        let region = self.entry(id).ok_or(Unmanaged::TableFull)?;
        region.start.store(start, Relaxed);
        region.words.store(words, Relaxed);
        region.gone.store(0, Relaxed);
        region.resident.store(0, Relaxed);
        region.faults.store(0, Relaxed);
        region.parts.iter().for_each(|part| part.store(0, Relaxed));
        region.pages.store(pages, Release);
        self.index(id);
        if chunks_of(start, pages).is_empty() {
            let free = |entry: &&AtomicU32| entry.load(Relaxed) == 0;
            match self.outside.iter().find(free) {
                Some(entry) => entry.store(id + 1, Release),
                None => self.more_outside.store(true, Release),
            }
        }
        Ok(id)
    }

    /// The first number that was never used; the table grows if it has to.
    fn next_id(&self, changes: &mut Changes) -> Result<u32, Unmanaged> {
        let id = self.used.load(Relaxed);
        let segment = self.segments.get(id as usize / SEGMENT).ok_or(Unmanaged::TableFull)?;
        if segment.load(Relaxed).is_null() {
            // So that nothing has to be allocated where a number is given back.
            let (free, retired) = (changes.free_ids.len(), changes.retired.len());
            let most = id as usize + SEGMENT;
            changes.free_ids.try_reserve_exact(most - free).map_err(|_| Unmanaged::NoMemory)?;
            changes.retired.try_reserve_exact(most - retired).map_err(|_| Unmanaged::NoMemory)?;
            segment.store(map_segment().map_err(|_| Unmanaged::NoMemory)?, Release);
        }
        self.used.store(id + 1, Release);
        Ok(id)
    }

    /// Notes that an address lies in a huge page, or no longer; says whether it did.
    pub fn set_huge(&self, address: usize, huge: bool) -> bool {
        // A look is cheaper than a write that changes nothing.
        self.huge_mark(address).is_some_and(|mark| {
            let was = mark.load(Relaxed) != 0;
            if was != huge {
                mark.store(u8::from(huge), Relaxed);
            }
            was
        })
    }

    /// Notes that nothing from an address on, so many pages long, lies in a huge page.
    pub fn no_longer_huge(&self, address: usize, pages: u32) {
        for chunk in chunks_of(address, pages) {
            if self.huge[chunk].load(Relaxed) != 0 {
                self.huge[chunk].store(0, Relaxed);
            }
        }
    }

    /// Whether an address lies in a huge page, as far as we know.
    pub fn is_huge(&self, address: usize) -> bool {
        self.huge_mark(address).is_some_and(|mark| mark.load(Relaxed) != 0)
    }

    fn huge_mark(&self, address: usize) -> Option<&AtomicU8> {
        self.huge.get(address.checked_sub(window())? / CHUNK)
    }

    /// Lets the chunks that name no region name this one.
    pub fn index(&self, id: u32) {
        let Some(region) = self.entry(id) else { return };
        for chunk in chunks_of(region.start(), region.pages()) {
            let name = |entry| match named(entry) {
                None => Some(entry | (id + 1)),
                Some(other) => (other != id).then_some(entry | SHARED),
            };
            let _ = self.chunks[chunk].fetch_update(AcqRel, Acquire, name);
        }
    }

    /// Takes a region out; false if that was done before. Its number and words are reused once
    /// [`Regions::reclaim`] has seen that nobody holds on to them.
    pub fn remove(&self, id: u32) -> bool {
        let mut changes = self.changes.lock();
        let Some(region) = self.entry(id) else { return false };
        let pages = region.pages.swap(0, AcqRel);
        if pages == 0 {
            return false;
        }
        for chunk in chunks_of(region.start(), pages) {
            let unname = |entry| (named(entry) == Some(id)).then_some(entry & SHARED);
            let _ = self.chunks[chunk].fetch_update(AcqRel, Acquire, unname);
        }
        self.no_longer_huge(region.start(), pages);
        for entry in self.outside.iter().filter(|entry| entry.load(Relaxed) == id + 1) {
            entry.store(0, Release);
        }
        let epoch = self.epoch.fetch_add(1, AcqRel);
        changes.retired.push(Retired { id, words: region.words.load(Acquire), pages, epoch });
        self.retired.fetch_add(1, Relaxed);
        self.retired_pages.fetch_add(pages as usize, Relaxed);
        true
    }

    /// Whether it is time to free what was taken out.
    pub fn has_many_retired(&self) -> bool {
        self.retired.load(Relaxed) >= MANY_RETIRED
            || self.retired_pages.load(Relaxed) >= MANY_RETIRED_PAGES
    }

    /// The present epoch: a thread that begins to use regions notes it.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// Frees what was removed before `oldest`, the least epoch that a thread
    /// which still uses regions has noted.
    pub fn reclaim(&self, oldest: u64) {
        let mut changes = self.changes.lock();
        let mut i = 0;
        while i < changes.retired.len() {
            if changes.retired[i].epoch < oldest {
                let retired = changes.retired.swap_remove(i);
                // SAFETY: no thread that could know these words is left.
                unsafe { unmap_words(retired.words, retired.pages) };
                changes.free_ids.push(retired.id);
                self.retired.fetch_sub(1, Relaxed);
                self.retired_pages.fetch_sub(retired.pages as usize, Relaxed);
            } else {
                i += 1;
            }
        }
    }

    /// Calls `each` for the regions that a range lies in, in no order. Where each chunk of it has
    /// one region, as most have, others are not looked at.
    pub fn for_each_in(&self, start: usize, end: usize, mut each: impl FnMut(u32, &Region)) {
        let overlaps = |region: &Region| region.start() < end && start < region.end();
        let Some(chunks) = self.chunks_alone(start, end) else {
            return self.iter().filter(|(_, r)| overlaps(r)).for_each(|(id, r)| each(id, r));
        };
        let mut last = None;
        for id in chunks.filter_map(|entry| named(entry.load(Acquire))) {
            // One that covers several chunks.
            if last.replace(id) != Some(id)
                && let Some(region) = self.get(id).filter(|region| overlaps(region))
            {
                each(id, region);
            }
        }
    }

    /// The chunks of a range in the window of which none has several regions; `None` of any other.
    fn chunks_alone(&self, start: usize, end: usize) -> Option<impl Iterator<Item = &AtomicU32>> {
        if !in_window(start) || !in_window(end - 1) {
            return None;
        }
        let chunk = |at: usize| (at - window()) / CHUNK;
        let chunks = &self.chunks[chunk(start)..=chunk(end - 1)];
        let alone = chunks.iter().all(|entry| entry.load(Acquire) & SHARED == 0);
        alone.then(|| chunks.iter())
    }

    /// The first address of a region in a range, after its beginning; the range's end if there is none.
    pub fn next_start_in(&self, start: usize, end: usize) -> usize {
        let mut next = end;
        self.for_each_in(start, end, |_, region| {
            if region.start() > start {
                next = next.min(region.start());
            }
        });
        next
    }

    /// The least start of a region above an address.
    pub fn next_start(&self, address: usize) -> Option<usize> {
        self.iter().map(|(_, r)| r.start()).filter(|&s| s > address).min()
    }

    /// The greatest end of a region at or below an address.
    pub fn last_end(&self, address: usize) -> Option<usize> {
        self.iter().map(|(_, r)| r.end()).filter(|&e| e <= address).max()
    }

    /// Gives the tables and the words back to the kernel.
    ///
    /// # Safety
    /// Nobody looks at them any more, nor will.
    pub(crate) unsafe fn give_back(&self) {
        for (_, region) in self.iter() {
            let pages = region.pages.swap(0, AcqRel);
            // SAFETY: the caller's.
            unsafe { unmap_words(region.words.load(Acquire), pages) };
        }
        self.reclaim(u64::MAX);
        self.used.store(0, Release);
        let unmap = |at: usize, len: usize| {
            // SAFETY: mappings of ours, of these lengths; the caller's.
            let _ = unsafe { sys::munmap(at, len) };
        };
        for segment in &self.segments {
            let at = segment.swap(core::ptr::null_mut(), AcqRel);
            if !at.is_null() {
                unmap(at.addr(), SEGMENT * size_of::<Region>());
            }
        }
        unmap(self.chunks.as_ptr().addr(), CHUNKS * 4);
        unmap(self.huge.as_ptr().addr(), CHUNKS);
        unmap(self.outside.as_ptr().addr(), MOST_OUTSIDE * 4);
        let mut changes = self.changes.lock();
        (changes.free_ids, changes.retired) = (Vec::new(), Vec::new());
    }

    /// For a forked child: the parent's threads are not here.
    ///
    /// # Safety
    /// Only the calling thread may exist.
    pub unsafe fn after_fork(&self) {
        // SAFETY: the caller's; the parent changes nothing while it forks.
        unsafe { self.changes.force_unlock() };
    }
}

/// Whether a page is not mapped any more, as far as its books say.
pub fn is_gone(place: &Place<'_>) -> bool {
    PageState::of(place.word.load(Acquire)) == PageState::Gone
}

/// The region that a chunk's entry names.
const fn named(entry: u32) -> Option<u32> {
    (entry & !SHARED).checked_sub(1)
}

fn chunks_of(start: usize, pages: u32) -> core::ops::Range<usize> {
    match start.checked_sub(window()) {
        Some(offset) if offset < WINDOW_LEN => {
            let end = (offset + pages as usize * PAGE).div_ceil(CHUNK);
            offset / CHUNK..end.min(CHUNKS)
        }
        _ => 0..0,
    }
}

/// Memory for more of the table, never unmapped. Zero bytes are unused regions.
fn map_segment() -> Result<*mut Region, i32> {
    let at = sys::map_private(SEGMENT * size_of::<Region>())?;
    Ok(core::ptr::with_exposed_provenance_mut(at))
}

/// The word of a page that was never touched.
pub const FRESH: u64 = PageState::Fresh.word();

/// Whether the kernel gives what a policy will keep of a region. It will be asked for when the
/// policy hears of it, where to fail would be the program's end.
fn is_room_for_books(pages: u32) -> bool {
    if pages < MANY {
        return true;
    }
    let len = pages as usize * BOOKS + reserve_memory::RESERVE;
    // SAFETY: what was just mapped, and nobody has.
    sys::map_private(len).is_ok_and(|at| unsafe { sys::munmap(at, len) }.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_to_their_region_and_no_other() {
        let regions = Regions::new().expect("address space");
        let a = regions.insert(WINDOW, 512).expect("room");
        let b = regions.insert(WINDOW + CHUNK, 3).expect("room");
        let heap = regions.insert(0x5555_0000_0000, 10).expect("room");
        for (address, id, page) in [
            (WINDOW, a, 0),
            (WINDOW + CHUNK - 1, a, 511),
            (WINDOW + CHUNK + PAGE, b, 1),
            (0x5555_0000_0000 + 9 * PAGE, heap, 9),
        ] {
            let place = regions.find(address).expect("managed");
            assert_eq!((place.id, place.page), (id, page), "{address:#x}");
        }
        assert!(regions.find(WINDOW + CHUNK + 3 * PAGE).is_none());
        assert!(regions.find(0x1234).is_none());
    }

    /// Small ones may share a chunk, and each may be the first to go.
    #[test]
    fn regions_that_share_a_chunk_are_found_whichever_came_first() {
        let regions = Regions::new().expect("address space");
        let at = |page: usize| WINDOW + page * PAGE;
        let a = regions.insert(at(0), 8).expect("room");
        let b = regions.insert(at(8), 8).expect("room");
        let found = |address| regions.find(address).map(|place| place.id);
        let in_range = |from, to| {
            let mut ids = Vec::new();
            regions.for_each_in(at(from), at(to), |id, _| ids.push(id));
            ids
        };
        assert_eq!((found(at(7)), found(at(8)), found(at(16))), (Some(a), Some(b), None));
        assert_eq!((in_range(0, 8), in_range(7, 9)), (vec![a], vec![a, b]));
        assert_eq!(
            (regions.next_start_in(at(0), at(16)), regions.next_start_in(at(9), at(16))),
            (at(8), at(16))
        );

        regions.remove(a);

        assert_eq!((found(at(7)), found(at(8))), (None, Some(b)));
        let c = regions.insert(at(0), 8).expect("room");
        regions.remove(b);
        assert_eq!((found(at(7)), found(at(8))), (Some(c), None));
        let large = regions.insert(WINDOW + CHUNK, 3 * 512).expect("room");
        assert_eq!(found(WINDOW + 3 * CHUNK), Some(large));
        let mut ids = Vec::new();
        regions.for_each_in(WINDOW + CHUNK, WINDOW + 9 * CHUNK, |id, _| ids.push(id));
        assert_eq!(ids, [large], "once, though it is in three chunks");
    }

    /// The bits lie behind the words: neither may reach into the other.
    #[test]
    fn pages_are_set_apart_one_by_one() {
        let regions = Regions::new().expect("address space");
        let id = regions.insert(WINDOW, 130).expect("room");
        let region = regions.get(id).expect("just entered");
        let apart = || (0..130).filter(|&page| region.is_apart(page)).collect::<Vec<_>>();
        region.word(129).store(u64::MAX, Relaxed);

        for page in [0, 63, 64, 129] {
            region.set_apart(page, true);
        }

        assert_eq!(apart(), [0, 63, 64, 129]);
        region.set_apart(64, false);
        assert_eq!(apart(), [0, 63, 129]);
        assert!((0..129).all(|page| region.word(page).load(Relaxed) == 0));
    }

    #[test]
    fn a_number_is_reused_only_after_everyone_has_let_go() {
        let regions = Regions::new().expect("address space");
        let a = regions.insert(WINDOW, 1).expect("room");
        let user = regions.epoch();
        regions.remove(a);
        regions.reclaim(user);
        assert_ne!(regions.insert(WINDOW, 1), Ok(a), "still in use");
        regions.reclaim(regions.epoch());
        assert_eq!(regions.insert(WINDOW + CHUNK, 1), Ok(a));
    }

    /// Programs map and unmap all day long without touching anything.
    #[test]
    fn numbers_and_words_of_what_is_gone_are_enough_for_what_comes() {
        let regions = Regions::new().expect("address space");
        for round in 0..40_000 {
            if regions.has_many_retired() {
                regions.reclaim(regions.epoch());
            }
            let id = regions.insert(WINDOW + round % 7 * CHUNK, 512).expect("room");
            assert!(id as usize <= MANY_RETIRED, "{id}");
            regions.remove(id);
        }
    }

    #[test]
    fn the_words_of_a_few_large_regions_do_not_wait_for_many_small_ones() {
        let regions = Regions::new().expect("address space");
        let pages = MANY_RETIRED_PAGES as u32 / 2;
        for _ in 0..2 {
            assert!(!regions.has_many_retired());
            let id = regions.insert(WINDOW, pages).expect("room");
            regions.remove(id);
        }
        assert!(regions.has_many_retired());
        regions.reclaim(regions.epoch());
        assert!(!regions.has_many_retired());
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes long")]
    fn the_table_grows_until_it_is_full_and_says_so() {
        let regions = Regions::new().expect("address space");
        for id in 0..MAX_REGIONS {
            assert_eq!(regions.insert(WINDOW + id * CHUNK, 1), Ok(id as u32));
        }

        assert_eq!(regions.insert(0x5555_0000_0000, 1), Err(Unmanaged::TableFull));
        let last = MAX_REGIONS - 1;
        let place = regions.find(WINDOW + last * CHUNK).expect("managed");
        assert_eq!((place.id, place.page), (last as u32, 0));
        regions.remove(7);
        regions.reclaim(regions.epoch());
        assert_eq!(regions.insert(0x5555_0000_0000, 1), Ok(7));
    }
}
