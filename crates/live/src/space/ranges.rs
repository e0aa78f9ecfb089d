//! A set of address ranges, without memory beyond its own.

/// Ranges that it has room for.
pub const MOST: usize = 1024;

/// Ranges without overlap, in no order.
#[derive(Clone, Debug)]
pub struct Ranges {
    held: [(usize, usize); MOST],
    count: usize,
    /// All of them lie in it.
    span: (usize, usize),
}

impl Default for Ranges {
    fn default() -> Self {
        Self::new()
    }
}

impl Ranges {
    /// None.
    pub const fn new() -> Self {
        Self { held: [(0, 0); MOST], count: 0, span: (0, 0) }
    }

    /// Adds a range; false if there are too many, and it is left out.
    #[must_use]
    pub fn add(&mut self, start: usize, end: usize) -> bool {
        let complete = self.remove(start, end);
        // Parts that are mapped one after the other become one.
        let touches = |&(s, e): &(usize, usize)| e == start || s == end;
        if let Some(i) = self.held[..self.count].iter().position(touches) {
            let (s, e) = self.held[i];
            self.held[i] = (s.min(start), e.max(end));
            self.widen(start, end);
            complete
        } else {
            self.push(start, end) && complete
        }
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// False if there is no room.
    fn push(&mut self, start: usize, end: usize) -> bool {
        if start >= end {
            return true;
        }
        let Some(free) = self.held.get_mut(self.count) else { return false };
        *free = (start, end);
        self.count += 1;
        self.widen(start, end);
        true
    }

    fn widen(&mut self, start: usize, end: usize) {
        let (s, e) = if self.count == 1 { self.held[0] } else { self.span };
        self.span = (s.min(start), e.max(end));
    }

    /// From the first to the last of them, or more; empty if there are none.
    pub const fn span(&self) -> (usize, usize) {
        if self.count == 0 { (0, 0) } else { self.span }
    }

    /// Takes a range out of all that overlap it. Where that leaves more ranges than there is
    /// room for, a smaller part of one is left out, too; false then.
    pub fn remove(&mut self, start: usize, end: usize) -> bool {
        let mut complete = true;
        let mut i = 0;
        while i < self.count {
            let (s, e) = self.held[i];
            if s >= end || e <= start {
                i += 1;
                continue;
            }
            self.count -= 1;
            self.held[i] = self.held[self.count];
            // What remains on both sides lies outside, and is not looked at again.
            let (before, after) = ((s, start.min(e)), (end.max(s), e));
            let length = |range: (usize, usize)| range.1.saturating_sub(range.0);
            let (more, less) =
                if length(before) < length(after) { (after, before) } else { (before, after) };
            complete &= self.push(more.0, more.1) & self.push(less.0, less.1);
        }
        complete
    }

    /// Takes out what of a range is in one of these; `None` once none of it is in any.
    pub fn take(&mut self, start: usize, end: usize) -> Option<(usize, usize)> {
        let mut held = self.held[..self.count].iter();
        let &(s, e) = held.find(|&&(s, e)| s < end && start < e)?;
        let part = (s.max(start), e.min(end));
        self.remove(part.0, part.1);
        Some(part)
    }

    /// Takes any of them out.
    pub fn pop(&mut self) -> Option<(usize, usize)> {
        self.count = self.count.checked_sub(1)?;
        Some(self.held[self.count])
    }

    /// How much of a range is in these.
    pub fn shared_with(&self, start: usize, end: usize) -> usize {
        let shared = |&(s, e): &(usize, usize)| e.min(end).saturating_sub(s.max(start));
        self.held[..self.count].iter().map(shared).sum()
    }

    /// The one that an address is in.
    pub fn find(&self, address: usize) -> Option<(usize, usize)> {
        self.held[..self.count].iter().copied().find(|&(s, e)| s <= address && address < e)
    }

    /// The least first address above one.
    pub fn next_start(&self, address: usize) -> Option<usize> {
        self.held[..self.count].iter().map(|&(s, _)| s).filter(|&s| s > address).min()
    }

    /// Whether any of a range is in these.
    pub fn overlaps(&self, start: usize, end: usize) -> bool {
        self.held[..self.count].iter().any(|&(s, e)| s < end && start < e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(ranges: &Ranges) -> Vec<(usize, usize)> {
        let mut list = ranges.held[..ranges.count].to_vec();
        list.sort_unstable();
        list
    }

    #[test]
    fn what_is_unmapped_in_the_middle_leaves_both_ends() {
        let mut ranges = Ranges::new();
        assert!(ranges.add(10, 20) && ranges.add(20, 30));
        assert_eq!(list(&ranges), [(10, 30)], "neighbours are one");
        assert!(ranges.remove(15, 18));
        assert_eq!(list(&ranges), [(10, 15), (18, 30)]);
        assert!(ranges.remove(0, 12) && ranges.remove(29, 99));
        assert_eq!(list(&ranges), [(12, 15), (18, 29)]);
        assert_eq!(ranges.shared_with(14, 20), 3);
        assert!(ranges.overlaps(14, 16) && !ranges.overlaps(15, 18));
    }

    #[test]
    fn what_is_taken_out_is_what_both_have_part_by_part() {
        let mut ranges = Ranges::new();
        assert!(ranges.add(10, 20) && ranges.add(30, 40) && ranges.add(50, 60));
        let mut taken = [ranges.take(15, 35), ranges.take(15, 35)];
        taken.sort_unstable();
        assert_eq!(taken, [Some((15, 20)), Some((30, 35))]);
        assert_eq!(ranges.take(15, 35), None);
        assert_eq!(list(&ranges), [(10, 15), (35, 40), (50, 60)]);
    }

    #[test]
    fn what_is_mapped_again_is_noted_once() {
        let mut ranges = Ranges::new();
        assert!(ranges.add(10, 30) && ranges.add(15, 20) && ranges.add(5, 12));
        assert_eq!(list(&ranges).iter().map(|(s, e)| e - s).sum::<usize>(), 25);
    }

    #[test]
    fn all_ranges_lie_in_the_span_and_an_empty_set_has_none() {
        let mut ranges = Ranges::new();
        assert_eq!(ranges.span(), (0, 0));
        assert!(ranges.add(50, 60) && ranges.add(20, 30) && ranges.add(60, 70));
        assert_eq!(ranges.span(), (20, 70));
        assert!(ranges.remove(0, 100));
        assert_eq!(ranges.span(), (0, 0));
        assert!(ranges.add(90, 95));
        assert_eq!(ranges.span(), (90, 95), "what was there before is forgotten");
        assert_eq!(ranges.pop(), Some((90, 95)));
        assert_eq!(ranges.span(), (0, 0));
    }

    #[test]
    fn a_full_table_forgets_nothing_that_is_in_it() {
        let mut ranges = Ranges::new();
        for i in 1..=MOST + 5 {
            assert_eq!(ranges.add(i * 10, i * 10 + 3), i <= MOST);
        }
        assert_eq!(ranges.count, MOST);
        assert!(ranges.overlaps(10, 11) && !ranges.overlaps(MOST * 10 + 10, MOST * 10 + 11));
        assert!(!ranges.remove(11, 12), "there is no room for both ends");
        assert_eq!(ranges.find(10), Some((10, 11)));
        assert_eq!((ranges.find(12), ranges.next_start(12)), (None, Some(20)));
    }
}
