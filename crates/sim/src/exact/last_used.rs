//! What was used last, so that the hot path need not look it up.
//!
//! For each set of the first-level cache the filter knows the two lines used
//! last, and for each set of the first-level TLBs the two pages used last, in
//! order. Exact: where the caches' state is changed otherwise, the filter
//! forgets, and where an access of the second of two would change the order in
//! a way that it does not know (other rules than LRU, more sets than it has),
//! it knows only one, or none. While programs jump about so much that it seldom knows
//! anything, it is out of use.

#![allow(clippy::inline_always)] // measured: a call on the hot path costs more than the work

use terrace_core::Replacement;

use super::access::Access;
use super::page_table::MapSize;

/// Sets of lines that the filter knows.
const LINES: usize = 64;
/// Sets of pages of each size that the filter knows.
const PAGES: usize = 16;
/// A line or page that there is not.
const NOTHING: u64 = u64::MAX;
/// Turns that pass before a filter that was out of use is tried again.
const PAUSE: u32 = 15;

/// The two used last in each of `N` sets, last first. A key is a number times
/// two, and a bit that stores need: the line is dirty; the page takes stores.
#[derive(Clone, Debug)]
struct Recent<const N: usize> {
    keys: [[u64; 2]; N],
    mask: u64,
    /// How many of a set it may know: 0 to 2.
    most: u8,
}

/// What of a structure the filter has to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// How many sets.
    pub(super) sets: usize,
    /// Its rule of replacement.
    pub(super) replacement: Replacement,
    /// Entries of a set.
    pub(super) ways: u32,
}

/// Where an access was found that needs no lookup.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) line_set: usize,
    /// The line comes before the other one from now on.
    pub(super) line_second: bool,
    /// The line is dirty from now on.
    pub(super) stored: bool,
    /// The page comes before the other one from now on.
    pub(super) page_second: Option<(MapSize, usize)>,
}

/// The lines and pages that were used last in their sets.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    lines: Recent<LINES>,
    base_pages: Recent<PAGES>,
    huge_pages: Recent<PAGES>,
    /// Turns that it is out of use.
    pause: u32,
}

impl<const N: usize> Recent<N> {
    fn new(shape: Shape) -> Self {
        let sets = shape.sets.min(N);
        let most = match shape.replacement {
            Replacement::Lru if shape.ways > 1 && sets == shape.sets => 2,
            // A second use says more than the first one.
            Replacement::Srrip => 0,
            _ => 1,
        };
        Self { keys: [[NOTHING; 2]; N], mask: sets as u64 - 1, most }
    }

    #[inline(always)]
    fn set(&self, number: u64) -> usize {
        (number & self.mask) as usize % N
    }

    #[inline(always)]
    fn remember(&mut self, number: u64, takes_stores: bool) {
        let set = self.set(number);
        let key = number << 1 | u64::from(takes_stores);
        let [last, _] = self.keys[set];
        if last >> 1 == number {
            self.keys[set][0] |= key;
        } else if self.most > 0 {
            self.keys[set] = [key, if self.most > 1 { last } else { NOTHING }];
        }
    }
}

impl Filter {
    /// A filter for a cache and for TLBs of base and huge pages.
    pub(super) fn new(lines: Shape, base_pages: Shape, huge_pages: Shape) -> Self {
        Self {
            lines: Recent::new(lines),
            base_pages: Recent::new(base_pages),
            huge_pages: Recent::new(huge_pages),
            pause: 0,
        }
    }

    /// It may know nothing any more.
    pub(super) fn forget(&mut self) {
        self.lines.keys = [[NOTHING; 2]; LINES];
        self.base_pages.keys = [[NOTHING; 2]; PAGES];
        self.huge_pages.keys = [[NOTHING; 2]; PAGES];
    }

    /// The lines that were used last in a line's set are others now.
    #[inline(always)]
    pub(super) fn forget_line(&mut self, line: u64) {
        let set = self.lines.set(line);
        self.lines.keys[set] = [NOTHING; 2];
    }

    /// A line, and its page, are the ones used last in their sets; whether the
    /// line is dirty for sure, and whether the page takes stores.
    #[inline(always)]
    pub(super) fn remember(&mut self, line: u64, size: MapSize, dirty: bool, stores: bool) {
        self.lines.remember(line, dirty);
        match size {
            MapSize::Base => self.base_pages.remember(line >> 6, stores),
            MapSize::Huge => self.huge_pages.remember(line >> 15, stores),
            MapSize::Giant => {}
        }
    }

    /// Finds an access among the two lines and pages of its sets, and makes
    /// them the last.
    #[inline(always)]
    pub(super) fn find(&mut self, access: Access) -> Option<Known> {
        if access.is_special() {
            return None;
        }
        let line = access.line();
        let store = u64::from(access.is_store());
        let line_set = self.lines.set(line);
        let [last, second] = self.lines.keys[line_set];
        if last >> 1 == line {
            let stored = last & 1 < store;
            if stored && self.lines.most < 2 {
                return None;
            }
            let page_second = self.find_page(line, store)?;
            if stored {
                self.lines.keys[line_set][0] = last | 1;
            }
            return Some(Known { line_set, line_second: false, stored, page_second });
        }
        if second >> 1 != line {
            return None;
        }
        let page_second = self.find_page(line, store)?;
        self.lines.keys[line_set] = [second | store, last];
        Some(Known { line_set, line_second: true, stored: second & 1 < store, page_second })
    }

    /// Finds the page of a line, and makes it the last of its set: which set that
    /// is, where it was not the last before.
    #[allow(clippy::option_option)] // a type of its own here would say no more
    #[inline(always)]
    fn find_page(&mut self, line: u64, store: u64) -> Option<Option<(MapSize, usize)>> {
        let page = line >> 6;
        let set = self.base_pages.set(page);
        let [last, second] = self.base_pages.keys[set];
        // A store needs a key that takes stores, a load takes any.
        let fits = |key: u64, number: u64| key >> 1 == number && key & 1 >= store;
        if fits(last, page) {
            return Some(None);
        }
        if fits(second, page) {
            self.base_pages.keys[set] = [second, last];
            return Some(Some((MapSize::Base, set)));
        }
        let huge = line >> 15;
        let set = self.huge_pages.set(huge);
        let [last, second] = self.huge_pages.keys[set];
        if fits(last, huge) {
            return Some(None);
        }
        if fits(second, huge) {
            self.huge_pages.keys[set] = [second, last];
            return Some(Some((MapSize::Huge, set)));
        }
        None
    }

    /// Whether it is used in the turn that begins now.
    pub(super) fn in_use(&mut self) -> bool {
        if self.pause == 0 {
            return true;
        }
        self.pause -= 1;
        // Meanwhile it was told of some accesses only.
        self.forget();
        self.pause == 0
    }

    /// It is not used any more.
    #[cfg(test)]
    pub(super) fn stop(&mut self) {
        self.pause = u32::MAX;
    }

    /// How many accesses of a turn it did not know: with too many it does more
    /// harm than good.
    pub(super) fn rate(&mut self, accesses: usize, unknown: usize) {
        if unknown * 4 > accesses {
            self.pause = PAUSE;
        }
    }
}
