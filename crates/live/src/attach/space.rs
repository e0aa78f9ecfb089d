//! Which pages there are, and where each lies: the world's own books.
//!
//! A program's mappings come, grow, merge and go. So that the regions which
//! policies know do not have to follow every change, a region is an aligned
//! *window* of a process's address space: it comes with the first eligible
//! mapping in it and goes with the last. Pages of a window that are not mapped
//! are simply not placed.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ops::Range;

use terrace_core::{ContextId, PageNo, PageRange, PageRef, PageSize, Region, RegionId, TierId};
use terrace_sampler::{Pages, ProcessRange};

use super::parts::{PART, Part};
use crate::stats::process_page::PARTS;

/// A window's size. Its state is a byte a page, so 16 KiB a window; a policy's
/// some 14 bytes a page, but only where pages are placed.
pub const WINDOW: u64 = 64 << 20;

/// Where a page lies, and what we did with it: one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageWord(u8);

impl PageWord {
    const TIER: u8 = 0x0f;
    const PROMOTED: u8 = 1 << 7;
    const DEMOTED: u8 = 1 << 6;

    /// The tier that the page lies in; `None` if it is not placed.
    pub fn tier(self) -> Option<TierId> {
        (self.0 & Self::TIER).checked_sub(1).map(TierId)
    }
    /// Whether we have promoted it.
    pub fn was_promoted(self) -> bool {
        self.0 & Self::PROMOTED != 0
    }
    /// Whether we have demoted it.
    pub fn was_demoted(self) -> bool {
        self.0 & Self::DEMOTED != 0
    }
}

/// One window.
#[derive(Debug)]
pub struct Window {
    /// The process.
    pub process: u32,
    /// Its first address.
    pub base: u64,
    /// The size in which its pages are placed.
    pub page_size: PageSize,
    words: Box<[PageWord]>,
    parts: Box<[Part; PARTS]>,
}

impl Window {
    /// A page's address.
    pub fn address(&self, page: PageNo) -> u64 {
        self.base + (u64::from(page.0) << self.page_size.shift())
    }
    /// How many pages it has, placed or not.
    pub fn pages(&self) -> u32 {
        self.words.len() as u32
    }
    /// A page's word.
    pub fn word(&self, page: PageNo) -> PageWord {
        self.words[page.0 as usize]
    }
    /// Its parts, in the order of their addresses.
    pub fn parts(&self) -> &[Part; PARTS] {
        &self.parts
    }
}

/// All windows of all processes.
#[derive(Debug, Default)]
pub struct Space {
    /// By process and base address.
    index: BTreeMap<(u32, u64), RegionId>,
    /// By number.
    windows: Vec<Option<Window>>,
    /// Bytes placed in each tier.
    used: [u64; terrace_core::MAX_TIERS],
    /// Parts of windows in which something lies, as ranges; empty after that has changed.
    ranges: OnceCell<Vec<ProcessRange>>,
}

impl Space {
    /// A space without windows.
    pub fn new() -> Self {
        Self::default()
    }

    /// A window by its number.
    pub fn window(&self, id: RegionId) -> Option<&Window> {
        self.windows.get(id.0 as usize)?.as_ref()
    }

    /// The windows of all processes, in the order of processes and addresses.
    pub fn windows(&self) -> impl Iterator<Item = (RegionId, &Window)> {
        self.index.values().filter_map(|id| Some((*id, self.window(*id)?)))
    }

    /// The window at a base address.
    pub fn find(&self, process: u32, base: u64) -> Option<RegionId> {
        self.index.get(&(process, base)).copied()
    }

    /// Bytes placed in a tier.
    pub fn used(&self, tier: TierId) -> u64 {
        self.used[tier.index()]
    }

    /// Makes a window; what a policy is to be told of it.
    pub fn insert(&mut self, process: u32, base: u64, page_size: PageSize) -> Region {
        let free = self.windows.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.windows.push(None);
            self.windows.len() - 1
        });
        let id = RegionId(number as u32);
        let pages = (WINDOW >> page_size.shift()) as u32;
        let words = vec![PageWord::default(); pages as usize].into_boxed_slice();
        let parts = Box::new([Part::default(); PARTS]);
        self.windows[number] = Some(Window { process, base, page_size, words, parts });
        self.index.insert((process, base), id);
        Region { id, pages, page_size, context: ContextId::ANONYMOUS }
    }

    /// Removes a window; the range that it had.
    pub fn remove(&mut self, id: RegionId) -> Option<PageRange> {
        let window = self.windows.get_mut(id.0 as usize)?.take()?;
        for word in &window.words {
            if let Some(tier) = word.tier() {
                self.used[tier.index()] -= window.page_size.bytes().get();
            }
        }
        self.index.remove(&(window.process, window.base));
        self.ranges.take();
        let count = window.words.len() as u32;
        Some(PageRange { region: id, start: PageNo(0), count })
    }

    /// Notes where a page lies; forgets what we did with it if it lies nowhere.
    pub fn place(&mut self, page: PageRef, tier: Option<TierId>) {
        let Some(Some(window)) = self.windows.get_mut(page.region.0 as usize) else { return };
        let size = window.page_size.bytes().get();
        let word = &mut window.words[page.page.0 as usize];
        let part = &mut window.parts[Part::index(page.page.0, window.page_size)];
        let was_empty = part.is_empty();
        if let Some(old) = word.tier() {
            self.used[old.index()] -= size;
            part.remove(old, window.page_size);
        }
        *word = match tier {
            None => PageWord::default(),
            Some(tier) => {
                self.used[tier.index()] += size;
                part.add(tier, window.page_size);
                PageWord((word.0 & !PageWord::TIER) | (tier.0 + 1))
            }
        };
        if part.is_empty() != was_empty {
            self.ranges.take();
        }
    }

    /// Parts in which something lies; those side by side are one range.
    fn occupied(&self) -> Vec<ProcessRange> {
        let mut ranges: Vec<ProcessRange> = Vec::new();
        for (_, window) in self.windows() {
            let process = window.process;
            for (start, part) in (window.base..).step_by(PART as usize).zip(window.parts.iter()) {
                if part.is_empty() {
                    continue;
                }
                let end = start + PART;
                match ranges.last_mut() {
                    Some(last) if last.process == process && last.end == start => last.end = end,
                    _ => ranges.push(ProcessRange { process, start, end }),
                }
            }
        }
        ranges
    }

    /// Notes that we have moved a page up or down; whether we had moved it the
    /// other way before (a ping-pong).
    pub fn note_moved(&mut self, page: PageRef, up: bool) -> bool {
        let Some(Some(window)) = self.windows.get_mut(page.region.0 as usize) else { return false };
        let word = &mut window.words[page.page.0 as usize];
        let back = if up { word.was_demoted() } else { word.was_promoted() };
        let done = if up { PageWord::PROMOTED } else { PageWord::DEMOTED };
        let undone = PageWord::PROMOTED | PageWord::DEMOTED;
        word.0 = (word.0 & !undone) | done;
        back
    }

    /// Notes that accesses to a page were observed.
    pub fn observe(&mut self, page: PageRef, weight: u32) {
        let Some(Some(window)) = self.windows.get_mut(page.region.0 as usize) else { return };
        window.parts[Part::index(page.page.0, window.page_size)].observe(weight);
    }

    /// What was observed so far becomes what was observed before.
    pub fn age_accesses(&mut self) {
        let windows = self.windows.iter_mut().flatten();
        windows.for_each(|window| window.parts.iter_mut().for_each(Part::age));
    }

    /// A page's word; the default of one that is not known.
    pub fn word(&self, page: PageRef) -> PageWord {
        self.window(page.region)
            .and_then(|window| window.words.get(page.page.0 as usize).copied())
            .unwrap_or_default()
    }
}

impl Pages for Space {
    fn page_at(&self, process: u32, address: u64) -> Option<PageRef> {
        let region = self.find(process, address & !(WINDOW - 1))?;
        let window = self.window(region)?;
        let page = PageNo(((address - window.base) >> window.page_size.shift()) as u32);
        window.word(page).tier().map(|_| PageRef { region, page })
    }

    fn pages_in(&self, range: ProcessRange, each: &mut dyn FnMut(PageRef, Range<u64>)) {
        let first = range.start & !(WINDOW - 1);
        for (_, id) in self.index.range((range.process, first)..(range.process, range.end)) {
            let Some(window) = self.window(*id) else { continue };
            let shift = window.page_size.shift();
            let start = range.start.saturating_sub(window.base) >> shift;
            let end = (range.end - window.base).div_ceil(1 << shift).min(window.words.len() as u64);
            for page in start..end {
                if window.words[page as usize].tier().is_some() {
                    let at = window.base + (page << shift);
                    each(PageRef { region: *id, page: PageNo(page as u32) }, at..at + (1 << shift));
                }
            }
        }
    }

    fn ranges(&self) -> Vec<ProcessRange> {
        self.ranges.get_or_init(|| self.occupied()).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: TierId = TierId(0);
    const T1: TierId = TierId(1);

    fn page(region: &Region, page: u32) -> PageRef {
        PageRef { region: region.id, page: PageNo(page) }
    }

    #[test]
    fn bytes_in_a_tier_are_those_of_the_pages_that_lie_there() {
        let mut space = Space::new();
        let base = space.insert(7, 0, PageSize::Base);
        let huge = space.insert(7, WINDOW, PageSize::Huge);
        space.place(page(&base, 3), Some(T0));
        space.place(page(&base, 4), Some(T1));
        space.place(page(&huge, 31), Some(T0));
        assert_eq!((space.used(T0), space.used(T1)), (4096 + (2 << 20), 4096));
        space.place(page(&base, 3), Some(T1));
        space.place(page(&base, 4), None);
        assert_eq!((space.used(T0), space.used(T1)), (2 << 20, 4096));
        space.remove(huge.id);
        space.remove(base.id);
        assert_eq!((space.used(T0), space.used(T1)), (0, 0));
        assert_eq!(space.insert(8, 0, PageSize::Base).id, base.id, "numbers are used again");
    }

    #[test]
    fn a_part_holds_what_lies_in_it_and_forgets_accesses_after_the_second_time() {
        let mut space = Space::new();
        let base = space.insert(7, 0, PageSize::Base);
        let huge = space.insert(7, WINDOW, PageSize::Huge);
        // The second page of the second part, and the last huge page.
        let (small, large) = (page(&base, 513), page(&huge, 31));
        space.place(small, Some(T0));
        space.place(large, Some(T1));
        space.observe(small, 3);
        let part = |space: &Space, id, i: usize| space.window(id).expect("a window").parts()[i];
        assert_eq!(part(&space, base.id, 1).held(T0), PageSize::Base.bytes());
        assert_eq!(part(&space, base.id, 0).held(T0), terrace_core::Bytes::ZERO);
        assert_eq!(part(&space, huge.id, 31).held(T1), PageSize::Huge.bytes());
        space.age_accesses();
        space.observe(small, 1);
        assert_eq!(part(&space, base.id, 1).accesses(), 4, "both times");
        space.age_accesses();
        assert_eq!(part(&space, base.id, 1).accesses(), 1);
        space.place(small, Some(T1));
        let moved = part(&space, base.id, 1);
        assert_eq!((moved.held(T0).get(), moved.held(T1).get()), (0, 4096));
    }

    #[test]
    fn an_address_is_found_in_its_own_process_and_only_where_a_page_lies() {
        let mut space = Space::new();
        let region = space.insert(7, 5 * WINDOW, PageSize::Base);
        space.place(page(&region, 2), Some(T1));
        let address = 5 * WINDOW + 2 * 4096 + 77;
        assert_eq!(space.page_at(7, address), Some(page(&region, 2)));
        assert_eq!(space.page_at(8, address), None, "another process");
        assert_eq!(space.page_at(7, address + 4096), None, "nothing lies there");
        assert_eq!(space.page_at(7, address - WINDOW), None);
    }

    #[test]
    fn a_range_across_windows_yields_each_placed_page_once() {
        let mut space = Space::new();
        let a = space.insert(7, 0, PageSize::Base);
        let b = space.insert(7, WINDOW, PageSize::Huge);
        let last = (WINDOW / 4096 - 1) as u32;
        for p in [page(&a, 0), page(&a, last), page(&b, 0), page(&b, 1)] {
            space.place(p, Some(T0));
        }
        let mut found = Vec::new();
        let range = ProcessRange { process: 7, start: 4096, end: WINDOW + 4096 };
        space.pages_in(range, &mut |p, bytes| found.push((p, bytes)));
        let (end, huge) = (WINDOW - 4096..WINDOW, WINDOW..WINDOW + (2 << 20));
        assert_eq!(found, [(page(&a, last), end), (page(&b, 0), huge)]);
        let range = |start: u64, end: u64| ProcessRange { process: 7, start, end };
        let (first, across) = (range(0, 2 << 20), range(WINDOW - (2 << 20), WINDOW + (4 << 20)));
        assert_eq!(space.ranges(), [first, across], "two MiB at a time, across windows");
        space.place(page(&a, 0), None);
        assert_eq!(space.ranges(), [across], "where nothing lies any more nobody has to look");
        space.remove(a.id);
        assert_eq!(space.ranges(), [range(WINDOW, across.end)]);
    }

    #[test]
    fn up_and_down_again_is_a_ping_pong_and_up_alone_is_none() {
        let mut space = Space::new();
        let region = space.insert(7, 0, PageSize::Base);
        let p = page(&region, 1);
        space.place(p, Some(T1));
        assert!(!space.note_moved(p, true));
        assert!(!space.note_moved(p, true), "twice up: over two tiers");
        assert!(space.note_moved(p, false));
        space.place(p, None);
        assert!(!space.note_moved(p, true), "a page that went has no past");
    }
}
