//! Walks: major faults at ascending addresses, ahead of which pages can be brought back.
//!
//! A page that is in memory again when it is touched costs a fault of 1.9 µs instead of 7 to 8
//! with zram (`docs/engines.md`). The kernel reads nothing ahead from zram by itself.

/// Size of a page.
const PAGE: u64 = 4096;
/// Walks that are followed at once.
const FOLLOWED: usize = 16;
/// A fault so many pages ahead of what was expected belongs to the walk.
const GAP: u64 = 8;
/// Faults in a row that make a walk.
const CONFIRMED: u32 = 4;
/// Pages that are brought back at first, and at most: 2 MiB.
const WINDOW: (u64, u64) = (32, 512);
/// The most pages that are asked for at once.
pub(super) const MOST: u64 = WINDOW.1;

/// A walk of one process.
#[derive(Clone, Copy, Debug)]
struct Walk {
    process: u32,
    /// The page after the last one that faulted.
    next: u64,
    /// The end of what was asked for.
    asked: u64,
    faults: u32,
    window: u64,
}

/// The walks that are under way.
#[derive(Debug, Default)]
pub(super) struct Walks {
    /// The one that went on last is the last.
    walks: Vec<Walk>,
}

impl Walks {
    /// A process faulted at an address; the range (start, length) to bring back, if it walks.
    pub(super) fn fault(&mut self, process: u32, address: u64) -> Option<(u64, u64)> {
        let page = address / PAGE;
        let is_it = |walk: &Walk| {
            walk.process == process && page >= walk.next && page <= walk.next.max(walk.asked) + GAP
        };
        let Some(at) = self.walks.iter().position(is_it) else {
            if self.walks.len() == FOLLOWED {
                self.walks.remove(0);
            }
            let (next, asked) = (page + 1, page + 1);
            self.walks.push(Walk { process, next, asked, faults: 1, window: WINDOW.0 });
            return None;
        };
        let mut walk = self.walks.remove(at);
        walk.next = page + 1;
        walk.faults += 1;
        let mut range = None;
        // Half of the last window before its end (the next one is twice as large), or a walk
        // waits at every window's.
        let ahead = walk.asked.saturating_sub(walk.next);
        if walk.faults >= CONFIRMED && ahead <= walk.window / 4 {
            let (start, end) = (walk.asked.max(walk.next), walk.next + walk.window);
            if end > start {
                range = Some((start * PAGE, (end - start) * PAGE));
                walk.asked = end;
                walk.window = (walk.window * 2).min(WINDOW.1);
            }
        }
        self.walks.push(walk);
        range
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults at pages; what is asked for, in pages.
    fn asked(
        walks: &mut Walks,
        process: u32,
        pages: impl IntoIterator<Item = u64>,
    ) -> Vec<(u64, u64)> {
        let faults = pages.into_iter().filter_map(|page| walks.fault(process, page * PAGE + 17));
        faults.map(|(start, length)| (start / PAGE, length / PAGE)).collect()
    }

    #[test]
    fn a_walk_is_followed_by_growing_windows_without_gaps() {
        let mut walks = Walks::default();

        let first = asked(&mut walks, 7, 100..104);
        assert_eq!(first, [(104, 32)]);
        // What was brought back does not fault any more: the next fault is behind it.
        let then = asked(&mut walks, 7, [136, 201]);
        assert_eq!(then, [(137, 64), (202, 128)]);
        let mut at = 330;
        for _ in 0..4 {
            let range = asked(&mut walks, 7, [at]);
            assert_eq!(range[0].0, at + 1);
            at += range[0].1 + 1;
        }
        assert_eq!(asked(&mut walks, 7, [at])[0].1, 512, "no window is larger");
    }

    #[test]
    fn random_faults_are_no_walk_and_do_not_hide_one() {
        let mut walks = Walks::default();
        let mut random = 1u64;
        let mut found = Vec::new();
        for page in 5000..5010 {
            for _ in 0..3 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                assert_eq!(walks.fault(7, (random >> 20) * PAGE), None);
            }
            found.extend(asked(&mut walks, 7, [page]));
        }
        assert_eq!(found, [(5004, 32)], "and half of the window lies ahead still");
    }

    #[test]
    fn processes_and_directions_are_told_apart() {
        let mut walks = Walks::default();
        for page in 0..8 {
            assert_eq!(walks.fault(page as u32, page * PAGE), None);
        }
        assert!(asked(&mut walks, 9, (0..20).rev()).is_empty(), "downwards");
    }
}
