//! The managed regions: which address belongs to which page word.
//!
//! Looked up at every fault, without a lock; changed rarely, under one. Most
//! regions lie in a window of addresses of our own choice, in which every
//! 2 MiB chunk names its region; others (the heap, what `mremap` moved) are
//! found by walking the table.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use crate::page_state::PageState;
use crate::shared::PARTS;
use crate::spare;
use crate::spin::SpinLock;
use crate::sys::{self, PAGE};

/// Where managed mappings are put: an address range far from everything that
/// the kernel chooses by itself. It is not reserved: a mapping in it is made
/// only where nothing is.
pub const WINDOW: usize = 0x1000_0000_0000;
/// Length of the window, 4 TiB.
pub const WINDOW_LEN: usize = 4 << 40;
/// Whether an address lies in the window.
pub fn in_window(address: usize) -> bool {
    address.wrapping_sub(WINDOW) < WINDOW_LEN
}
/// Alignment of regions in the window.
pub const CHUNK: usize = 2 << 20;
/// The most regions managed at once.
pub const MAX_REGIONS: usize = 16_384;

const CHUNKS: usize = WINDOW_LEN / CHUNK;
/// Regions outside of the window that are found without a look at all regions.
const MOST_OUTSIDE: usize = 512;

/// What a policy keeps of a page, at most (bytes): `memtis` 26.
const BOOKS: usize = 32;
/// From so many pages on it is more than what is kept for such cases ([`spare`]).
const MANY: u32 = (spare::KEPT / BOOKS / 4) as u32;

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
    /// Whether the policy was told to forget a page, see [`crate::common`].
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
        // SAFETY: behind `pages` words lie the bits of as many pages, see `mapped_for`; they are
        // unmapped together.
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
        crate::presence::Pagemap::open().for_each_present(from, to, |start, pages| {
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

/// Bytes for the words of so many pages, and a bit for each behind them.
const fn mapped_for(pages: u32) -> usize {
    (pages as usize + (pages as usize).div_ceil(64)) * size_of::<AtomicU64>()
}

struct Retired {
    id: u32,
    words: usize,
    len: usize,
    epoch: u64,
}

struct Changes {
    free_ids: Vec<u32>,
    retired: Vec<Retired>,
}

/// All regions.
pub struct Regions {
    table: &'static [Region],
    chunks: &'static [AtomicU32],
    /// By chunk: whether it is backed by one huge page, as far as we know.
    huge: &'static [AtomicU8],
    used: AtomicU32,
    /// Regions outside of the window: number plus one, 0 where there is none.
    outside: &'static [AtomicU32],
    /// Whether there were ever more than fit.
    more_outside: AtomicBool,
    changes: SpinLock<Changes>,
    epoch: AtomicU64,
}

impl Regions {
    /// No regions yet. Takes address space only; fails if there is none.
    pub fn new() -> Result<Self, i32> {
        let table = sys::map_private(MAX_REGIONS * size_of::<Region>())?;
        let chunks = sys::map_private(CHUNKS * 4)?;
        let huge = sys::map_private(CHUNKS)?;
        let outside = sys::map_private(MOST_OUTSIDE * 4)?;
        // SAFETY: the mappings are zeroed, page-aligned, long enough and
        // never unmapped, and zero bytes are valid atomics.
        unsafe {
            Ok(Self {
                table: core::slice::from_raw_parts(table as *const Region, MAX_REGIONS),
                chunks: core::slice::from_raw_parts(chunks as *const AtomicU32, CHUNKS),
                huge: core::slice::from_raw_parts(huge as *const AtomicU8, CHUNKS),
                used: AtomicU32::new(0),
                outside: core::slice::from_raw_parts(outside as *const AtomicU32, MOST_OUTSIDE),
                more_outside: AtomicBool::new(false),
                changes: SpinLock::new(Changes {
                    free_ids: Vec::with_capacity(MAX_REGIONS),
                    retired: Vec::with_capacity(MAX_REGIONS),
                }),
                epoch: AtomicU64::new(1),
            })
        }
    }

    /// The region of an address.
    pub fn find(&self, address: usize) -> Option<Place<'_>> {
        if let Some(chunk) = address.checked_sub(WINDOW).map(|o| o / CHUNK)
            && let Some(entry) = self.chunks.get(chunk)
        {
            let id = entry.load(Acquire);
            if id != 0
                && let Some(place) = self.place(id - 1, address)
                && !is_gone(&place)
            {
                return Some(place);
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

    fn place(&self, id: u32, address: usize) -> Option<Place<'_>> {
        let region = &self.table[id as usize];
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
        self.table.get(id as usize).filter(|r| r.pages() != 0)
    }

    /// Every region.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.iter_from(0)
    }

    /// Every region from a number on.
    pub fn iter_from(&self, id: u32) -> impl Iterator<Item = (u32, &Region)> {
        (id..self.used.load(Acquire)).filter_map(|id| self.get(id).map(|r| (id, r)))
    }

    /// Enters a region whose pages are all fresh. `None` if the table is full
    /// or there is no memory for the words, or for what a policy keeps of so many pages.
    pub fn insert(&self, start: usize, pages: u32) -> Option<u32> {
        let words = spare::map(mapped_for(pages)).ok()?;
        if !is_room_for_books(pages) {
            // SAFETY: nobody knows of these words.
            let _ = unsafe { sys::munmap(words, mapped_for(pages)) };
            return None;
        }
        let mut changes = self.changes.lock();
        let id = if let Some(id) = changes.free_ids.pop() {
            id
        } else {
            let id = self.used.load(Relaxed);
            if id as usize == MAX_REGIONS {
                drop(changes);
                // SAFETY: nobody knows of these words.
                let _ = unsafe { sys::munmap(words, mapped_for(pages)) };
                return None;
            }
            self.used.store(id + 1, Release);
            id
        };
        let region = &self.table[id as usize];
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
        Some(id)
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
        self.huge.get(address.checked_sub(WINDOW)? / CHUNK)
    }

    /// Lets the chunks that name no region name this one.
    pub fn index(&self, id: u32) {
        let region = &self.table[id as usize];
        for chunk in chunks_of(region.start(), region.pages()) {
            let _ = self.chunks[chunk].compare_exchange(0, id + 1, AcqRel, Relaxed);
        }
    }

    /// Takes a region out. Its number and words are reused once
    /// [`Regions::reclaim`] has seen that nobody holds on to them.
    pub fn remove(&self, id: u32) {
        let mut changes = self.changes.lock();
        let region = &self.table[id as usize];
        let pages = region.pages.swap(0, AcqRel);
        if pages == 0 {
            return;
        }
        for chunk in chunks_of(region.start(), pages) {
            let _ = self.chunks[chunk].compare_exchange(id + 1, 0, AcqRel, Relaxed);
        }
        self.no_longer_huge(region.start(), pages);
        for entry in self.outside.iter().filter(|entry| entry.load(Relaxed) == id + 1) {
            entry.store(0, Release);
        }
        let epoch = self.epoch.fetch_add(1, AcqRel);
        changes.retired.push(Retired {
            id,
            words: region.words.load(Acquire),
            len: mapped_for(pages),
            epoch,
        });
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
                let _ = unsafe { sys::munmap(retired.words, retired.len) };
                changes.free_ids.push(retired.id);
            } else {
                i += 1;
            }
        }
    }

    /// The least start of a region above an address.
    pub fn next_start(&self, address: usize) -> Option<usize> {
        self.iter().map(|(_, r)| r.start()).filter(|&s| s > address).min()
    }

    /// The greatest end of a region at or below an address.
    pub fn last_end(&self, address: usize) -> Option<usize> {
        self.iter().map(|(_, r)| r.end()).filter(|&e| e <= address).max()
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

fn is_gone(place: &Place<'_>) -> bool {
    PageState::of(place.word.load(Acquire)) == PageState::Gone
}

fn chunks_of(start: usize, pages: u32) -> core::ops::Range<usize> {
    match start.checked_sub(WINDOW) {
        Some(offset) if offset < WINDOW_LEN => {
            let end = (offset + pages as usize * PAGE).div_ceil(CHUNK);
            offset / CHUNK..end.min(CHUNKS)
        }
        _ => 0..0,
    }
}

/// The word of a page that was never touched.
pub const FRESH: u64 = PageState::Fresh.word();

/// Whether the kernel gives what a policy will keep of a region. It will be asked for when the
/// policy hears of it, where to fail would be the program's end.
fn is_room_for_books(pages: u32) -> bool {
    if pages < MANY {
        return true;
    }
    let len = pages as usize * BOOKS + spare::KEPT;
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
        assert_ne!(regions.insert(WINDOW, 1), Some(a), "still in use");
        regions.reclaim(regions.epoch());
        assert_eq!(regions.insert(WINDOW + CHUNK, 1), Some(a));
    }
}
