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

    /// Adds a range; false if there are too many, and it is left out. Nothing else is.
    #[must_use]
    pub fn add(&mut self, start: usize, end: usize) -> bool {
        let within = |&(s, e): &(usize, usize)| s <= start && end <= e;
        if start >= end || self.held[..self.count].iter().any(within) {
            return true;
        }
        // It lies in the middle of none, so of each one part at most remains.
        let lost = self.remove(start, end);
        debug_assert_eq!(lost, None);
        // Parts that are mapped one after the other become one.
        let touches = |&(s, e): &(usize, usize)| e == start || s == end;
        if let Some(i) = self.held[..self.count].iter().position(touches) {
            let (s, e) = self.held[i];
            self.held[i] = (s.min(start), e.max(end));
            self.widen(start, end);
            true
        } else {
            self.push(start, end)
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

    /// Takes a range out of all that overlap it. Taken out of the middle of one, it leaves one more than
    /// there was. Where there is no room for that, the smaller of both parts is taken out as well, and
    /// returned.
    #[must_use]
    pub fn remove(&mut self, start: usize, end: usize) -> Option<(usize, usize)> {
        let mut lost = None;
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
            let has_room = self.push(more.0, more.1);
            debug_assert!(has_room, "that of the one that was there");
            if !self.push(less.0, less.1) {
                lost = Some(less);
            }
        }
        lost
    }

    /// Takes out what of a range is in one of these; `None` once none of it is in any. Where there is
    /// no room for what remains on both sides, the smaller side comes with it.
    pub fn take(&mut self, start: usize, end: usize) -> Option<(usize, usize)> {
        let mut held = self.held[..self.count].iter();
        let &(s, e) = held.find(|&&(s, e)| s < end && start < e)?;
        let part = (s.max(start), e.min(end));
        let beside = self.remove(part.0, part.1).unwrap_or(part);
        Some((part.0.min(beside.0), part.1.max(beside.1)))
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
        assert_eq!(ranges.remove(15, 18), None);
        assert_eq!(list(&ranges), [(10, 15), (18, 30)]);
        assert_eq!((ranges.remove(0, 12), ranges.remove(29, 99)), (None, None));
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
        assert_eq!(ranges.remove(0, 100), None);
        assert_eq!(ranges.span(), (0, 0));
        assert!(ranges.add(90, 95));
        assert_eq!(ranges.span(), (90, 95), "what was there before is forgotten");
        assert_eq!(ranges.pop(), Some((90, 95)));
        assert_eq!(ranges.span(), (0, 0));
    }

    /// As many as there is room for: the last is (`MOST` * 10, `MOST` * 10 + 9).
    fn full() -> Ranges {
        let mut ranges = Ranges::new();
        assert!((1..=MOST).all(|i| ranges.add(i * 10, i * 10 + 9)));
        ranges
    }

    #[test]
    fn a_full_table_forgets_nothing_that_is_in_it() {
        let mut ranges = full();
        let beyond = MOST * 10 + 10;
        assert!(!ranges.add(beyond, beyond + 9) && !ranges.overlaps(beyond, beyond + 9));
        assert_eq!((ranges.count, list(&ranges)), (MOST, list(&full())));
        assert!(ranges.add(13, 15), "it is in it already");
        assert!(ranges.add(17, 22) && ranges.add(beyond - 1, beyond + 5), "beside what there is");
        assert_eq!((ranges.find(10), ranges.find(22)), (Some((10, 22)), Some((22, 29))));
    }

    /// Memory that nobody notes any more is managed by nobody, and told of by nobody.
    #[test]
    fn what_a_full_table_has_no_room_for_is_told() {
        let mut ranges = full();
        assert_eq!(ranges.remove(12, 13), Some((10, 12)), "the smaller of both ends");
        assert_eq!((ranges.find(11), ranges.find(13)), (None, Some((13, 19))));
        assert_eq!((ranges.count, ranges.remove(0, 15)), (MOST, None));
        assert_eq!(ranges.remove(26, 27), Some((27, 29)));
        assert_eq!(list(&ranges)[..3], [(15, 19), (20, 26), (30, 39)]);
    }

    #[test]
    fn what_is_taken_out_of_a_full_table_takes_along_what_there_is_no_room_for() {
        let mut ranges = full();
        assert_eq!(ranges.take(12, 14), Some((10, 14)));
        assert_eq!(ranges.take(27, 28), Some((27, 29)));
        assert_eq!(list(&ranges)[..3], [(14, 19), (20, 27), (30, 39)]);
        assert_eq!(ranges.take(30, 49), Some((30, 39)), "the whole of one");
        assert_eq!(ranges.take(42, 44), Some((42, 44)), "there is room again");
    }
}
