//! Walks: major faults at ascending addresses, ahead of which pages can be brought back.
//!
//! A page that is in memory again when it is touched costs a fault of 1.9 µs instead of 7 to 8
//! with zram (`docs/engines.md`). The kernel reads nothing ahead from zram by itself.
//!
//! Nobody hears of touches of pages that are there. So before each chunk that is asked for ahead of
//! another one, a page is left out: the program faults on it, and so tells where it is while the
//! chunk is before it.

/// Size of a page.
const PAGE: u64 = 4096;
/// Walks that are followed at once.
const FOLLOWED: usize = 16;
/// A fault so many pages ahead of what was expected belongs to the walk.
const GAP: u64 = 8;
/// Faults in a row that make a walk.
const CONFIRMED: u32 = 4;
/// Pages of a chunk, at first and at most: 2 MiB.
const CHUNK: (u64, u64) = (32, 512);
/// The most pages that are asked for at once.
pub(super) const MOST: u64 = CHUNK.1;
/// While not more than so many chunks are ahead of a walk, another one is asked for. The engine hears of
/// a fault a third of a millisecond later and takes some two to bring 512 pages back, and a program may be
/// through them in less.
const AHEAD: u64 = 2;
/// A chunk is at most this part of the budget: what else is in use would leave for it.
const PART: u64 = 64;
/// For so many steps after pages were brought back walks count as under way: some 5 ms.
const STEPS: u32 = 16;

/// A walk of one process. All in pages.
#[derive(Clone, Copy, Debug)]
struct Walk {
    process: u32,
    /// The page after the last one that faulted.
    next: u64,
    /// What that was when a chunk was asked for last, or it began.
    before: u64,
    /// The end of what was asked for.
    asked: u64,
    /// What that was before the last chunk.
    asked_before: u64,
    faults: u32,
    /// Pages of the last chunk.
    chunk: u64,
    /// Whether it has gone on since the last step.
    goes_on: bool,
}

impl Walk {
    /// The next chunk, if it is time: its first page and the page behind it.
    fn chunk(&mut self, most: u64) -> Option<(u64, u64)> {
        let ahead = self.asked.saturating_sub(self.next);
        if !std::mem::take(&mut self.goes_on)
            || self.faults < CONFIRMED
            || ahead > AHEAD * self.chunk
        {
            return None;
        }
        // What it goes through between two steps is less than it will until the one after the next.
        self.chunk = (self.chunk * 2).max(self.next - self.before).clamp(CHUNK.0, most);
        self.before = self.next;
        let left_out = u64::from(ahead > 0);
        let start = self.next.max(self.asked) + left_out;
        (self.asked_before, self.asked) = (self.asked, start + self.chunk);
        Some((start, self.asked))
    }
}

/// Pages to bring back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) process: u32,
    /// Addresses: its first, and the one behind it.
    pub(super) range: (u64, u64),
}

/// The walks that are under way.
#[derive(Debug, Default)]
pub(super) struct Walks {
    /// The one that went on last is the last.
    walks: Vec<Walk>,
    /// For how many more steps they count as under way.
    left: u32,
}

impl Walks {
    /// A process faulted at an address.
    pub(super) fn fault(&mut self, process: u32, address: u64) {
        let page = address / PAGE;
        let is_it = |walk: &Walk| {
            walk.process == process && page >= walk.next && page <= walk.next.max(walk.asked) + GAP
        };
        let mut walk = if let Some(at) = self.walks.iter().position(is_it) {
            self.walks.remove(at)
        } else {
            if self.walks.len() == FOLLOWED {
                self.walks.remove(0);
            }
            let (next, chunk, goes_on) = (page, CHUNK.0 / 2, true);
            let (before, asked, asked_before) = (page, page, page);
            Walk { process, next, before, asked, asked_before, faults: 0, chunk, goes_on }
        };
        walk.next = page + 1;
        walk.faults = walk.faults.saturating_add(1);
        walk.goes_on = true;
        self.walks.push(walk);
    }

    /// All faults of a step were told.
    pub(super) fn told(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// What to bring back next, where the budget has so many pages: once a step for each walk that has
    /// gone on. A walk that is not asked about has its turn in the next step.
    pub(super) fn next_chunk(&mut self, budget: u64) -> Option<Chunk> {
        let most = (budget / PART).clamp(CHUNK.0, CHUNK.1);
        self.walks.iter_mut().find_map(|walk| {
            let (start, end) = walk.chunk(most)?;
            Some(Chunk { process: walk.process, range: (start * PAGE, end * PAGE) })
        })
    }

    /// Pages were brought back in this step: the next chunk may be due in a moment. What there is no room
    /// for, and what does not pay, is no reason to look often.
    pub(super) fn went_ahead(&mut self) {
        self.left = STEPS;
    }

    /// Of a chunk, nothing was asked for from this address on.
    pub(super) fn cut(&mut self, chunk: &Chunk, from: u64) {
        let end = chunk.range.1 / PAGE;
        let is_it = |walk: &&mut Walk| walk.process == chunk.process && walk.asked == end;
        if let Some(walk) = self.walks.iter_mut().find(is_it) {
            // The page in front of a chunk of which nothing was asked for is in front of the next one.
            walk.asked = if from <= chunk.range.0 { walk.asked_before } else { from / PAGE };
        }
    }

    /// Whether the next chunk may be due in a moment.
    pub(super) fn are_under_way(&self) -> bool {
        self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many pages as no chunk is bounded by.
    const ENOUGH: u64 = 1 << 20;

    impl Walks {
        /// A step that has time for all of them.
        fn chunks(&mut self, budget: u64) -> Vec<Chunk> {
            self.told();
            std::iter::from_fn(|| self.next_chunk(budget)).collect()
        }
    }

    /// Faults at pages, and then a step: what is asked for, its first page and how many.
    fn asked(
        walks: &mut Walks,
        process: u32,
        pages: impl IntoIterator<Item = u64>,
    ) -> Vec<(u64, u64)> {
        pages.into_iter().for_each(|page| walks.fault(process, page * PAGE + 17));
        let pages = |chunk: Chunk| (chunk.range.0 / PAGE, (chunk.range.1 - chunk.range.0) / PAGE);
        walks.chunks(ENOUGH).into_iter().map(pages).collect()
    }

    #[test]
    fn a_walk_is_followed_by_growing_chunks_with_a_page_left_out_between() {
        let mut walks = Walks::default();
        assert_eq!(asked(&mut walks, 7, 100..104), [(104, 32)]);
        // Another one is ahead before the program is through the first.
        assert_eq!(asked(&mut walks, 7, [104]), [(137, 64)]);
        assert_eq!(asked(&mut walks, 7, []), []);
        // What was brought back does not fault any more, but for the page that was left out.
        assert_eq!(asked(&mut walks, 7, [136]), [(202, 128)]);
        assert_eq!(asked(&mut walks, 7, [201]), [(331, 256)]);
        let mut left_out = [330, 587];
        for _ in 0..4 {
            let [now, then] = left_out;
            let chunk = asked(&mut walks, 7, [now])[0];
            assert_eq!(chunk, (then + 1, 512), "no chunk is larger");
            left_out = [then, then + 513];
        }
    }

    /// Who is through a chunk before the engine looks again has a larger one.
    #[test]
    fn a_fast_walk_has_chunks_as_long_as_its_steps() {
        let mut walks = Walks::default();
        assert_eq!(asked(&mut walks, 7, 0..200), [(200, 200)]);
        assert_eq!(asked(&mut walks, 7, 200..420), [(420, 400)]);
    }

    /// A budget of 64 MiB is not put out for a walk.
    #[test]
    fn a_chunk_is_a_small_part_of_the_budget() {
        let mut walks = Walks::default();
        (0..500).for_each(|page| walks.fault(7, page * PAGE));
        let chunk = walks.chunks(64 * 100)[0];
        assert_eq!(chunk.range, (500 * PAGE, 600 * PAGE));
        (500..550).for_each(|page| walks.fault(7, page * PAGE));
        assert_eq!(walks.chunks(1).len(), 1);
    }

    #[test]
    fn what_was_not_asked_for_after_all_is_asked_for_again() {
        let mut walks = Walks::default();
        (0..40).for_each(|page| walks.fault(7, page * PAGE));
        let chunk = walks.chunks(ENOUGH)[0];
        assert_eq!(chunk.range, (40 * PAGE, 80 * PAGE));
        walks.cut(&chunk, 50 * PAGE);
        assert_eq!(asked(&mut walks, 7, [40]), [(51, 80)]);
        walks.cut(&Chunk { process: 8, ..chunk }, 0);
        walks.cut(&Chunk { process: 7, range: (51 * PAGE, 131 * PAGE) }, 60 * PAGE);
        assert_eq!(asked(&mut walks, 7, [41])[0].0, 61);
    }

    /// Each page that is left out is a fault of the program's.
    #[test]
    fn where_nothing_of_a_chunk_was_asked_for_no_second_page_is_left_out() {
        let mut walks = Walks::default();
        (0..40).for_each(|page| walks.fault(7, page * PAGE));
        assert_eq!(walks.chunks(ENOUGH)[0].range, (40 * PAGE, 80 * PAGE));
        for page in 40..43 {
            walks.fault(7, page * PAGE);
            let chunk = walks.chunks(ENOUGH)[0];
            assert_eq!(chunk.range.0, 81 * PAGE, "page 80 alone is left out");
            walks.cut(&chunk, chunk.range.0);
        }
    }

    #[test]
    fn a_walk_that_a_step_had_no_time_for_has_its_turn_in_the_next_one() {
        let mut walks = Walks::default();
        for process in [7, 8] {
            (0..4).for_each(|page| walks.fault(process, page * PAGE));
        }
        let turn = |walks: &mut Walks| walks.next_chunk(ENOUGH).map(|chunk| chunk.process);
        assert_eq!(turn(&mut walks), Some(7));
        walks.told();
        assert_eq!((turn(&mut walks), turn(&mut walks)), (Some(8), None));
    }

    #[test]
    fn a_walk_is_under_way_for_a_while() {
        let mut walks = Walks::default();
        assert_eq!(asked(&mut walks, 7, 0..4).len(), 1);
        assert!(!walks.are_under_way(), "nothing has come of it");
        walks.went_ahead();
        for _ in 0..STEPS {
            assert!(walks.are_under_way());
            assert_eq!(asked(&mut walks, 7, []), []);
        }
        assert!(!walks.are_under_way());
    }

    #[test]
    fn random_faults_are_no_walk_and_do_not_hide_one() {
        let mut walks = Walks::default();
        let mut random = 1u64;
        let mut found = Vec::new();
        for page in 5000..5005 {
            for _ in 0..3 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                assert_eq!(asked(&mut walks, 7, [random >> 20]), []);
            }
            found.extend(asked(&mut walks, 7, [page]));
        }
        assert_eq!(found, [(5004, 32), (5037, 64)]);
    }

    #[test]
    fn processes_and_directions_are_told_apart() {
        let mut walks = Walks::default();
        for page in 0..8 {
            assert_eq!(asked(&mut walks, page as u32, [page]), []);
        }
        assert!(asked(&mut walks, 9, (0..20).rev()).is_empty(), "downwards");
    }
}
