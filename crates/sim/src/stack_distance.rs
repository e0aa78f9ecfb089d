//! Misses of every size of memory at once.
//!
//! Under LRU a reference hits exactly those memories that hold more pages than
//! were touched since the page's last reference (Mattson et al., 1970). One
//! pass over a trace gives the number of misses for all sizes. Distances are
//! counted in a Fenwick tree over the time of last references, as Bennett and
//! Kruskal have it: O(log n) a reference, memory by pages in use.

use std::collections::HashMap;

/// Misses by size of an LRU memory.
#[derive(Clone, Debug, Default)]
pub struct StackDistances {
    /// Time of each page's last reference.
    last: HashMap<u64, u32>,
    /// Fenwick tree: one for each time that is some page's last reference.
    tree: Vec<u32>,
    now: u32,
    /// References by distance: the pages touched since, this one included.
    hits: Vec<u64>,
    cold: u64,
}

impl StackDistances {
    /// Nothing was referenced yet.
    pub fn new() -> Self {
        Self { tree: vec![0; 1 << 10], ..Self::default() }
    }

    fn add(&mut self, time: u32, delta: i32) {
        let mut i = time as usize + 1;
        while i < self.tree.len() {
            self.tree[i] = self.tree[i].wrapping_add_signed(delta);
            i += i & i.wrapping_neg();
        }
    }

    /// Last references at times below `time`.
    fn below(&self, time: u32) -> u32 {
        let (mut i, mut sum) = (time as usize, 0);
        while i > 0 {
            sum += self.tree[i];
            i -= i & i.wrapping_neg();
        }
        sum
    }

    /// References a page.
    pub fn reference(&mut self, page: u64) {
        if self.now as usize + 1 >= self.tree.len() {
            self.renumber();
        }
        let now = self.now;
        self.now += 1;
        if let Some(then) = self.last.insert(page, now) {
            let live = self.last.len() as u32;
            let distance = (live - self.below(then)) as usize;
            self.add(then, -1);
            if self.hits.len() <= distance {
                self.hits.resize(distance + 1, 0);
            }
            self.hits[distance] += 1;
        } else {
            self.cold += 1;
        }
        self.add(now, 1);
    }

    /// Times are used up: pages are numbered anew in the order of their last
    /// references, in a tree with as much room again.
    fn renumber(&mut self) {
        let mut pages: Vec<(u32, u64)> = self.last.iter().map(|(&p, &t)| (t, p)).collect();
        pages.sort_unstable();
        self.tree = vec![0; (pages.len() * 2 + 2).next_power_of_two().max(1 << 10) + 1];
        self.now = pages.len() as u32;
        for (time, (_, page)) in pages.into_iter().enumerate() {
            self.last.insert(page, time as u32);
            self.add(time as u32, 1);
        }
    }

    /// Pages that were referenced.
    pub fn pages(&self) -> u64 {
        self.cold
    }

    /// References so far.
    pub fn references(&self) -> u64 {
        self.cold + self.hits.iter().sum::<u64>()
    }

    /// Misses of a memory of `pages` pages under LRU, first references included.
    pub fn misses(&self, pages: u64) -> u64 {
        let from = usize::try_from(pages).unwrap_or(usize::MAX).saturating_add(1);
        self.cold + self.hits.get(from..).map_or(0, |rest| rest.iter().sum())
    }

    /// Misses for every size from 0 to the number of pages.
    pub fn curve(&self) -> Vec<u64> {
        let mut curve = vec![self.cold; self.cold as usize + 1];
        for pages in (0..self.cold as usize).rev() {
            curve[pages] = curve[pages + 1] + self.hits.get(pages + 1).copied().unwrap_or(0);
        }
        curve
    }
}

/// Misses of the best possible replacement, which knows the future (Belady,
/// 1966): gives up the page whose next reference is farthest.
pub fn belady_misses(references: &[u64], pages: usize) -> u64 {
    let mut next_of: HashMap<u64, usize> = HashMap::new();
    let mut next = vec![usize::MAX; references.len()];
    for (i, page) in references.iter().enumerate().rev() {
        if let Some(later) = next_of.insert(*page, i) {
            next[i] = later;
        }
    }
    let mut held: HashMap<u64, usize> = HashMap::new();
    let mut by_next = std::collections::BTreeSet::new();
    let mut misses = 0;
    for (i, &page) in references.iter().enumerate() {
        if let Some(old) = held.insert(page, next[i]) {
            by_next.remove(&(old, page));
        } else {
            misses += 1;
            if held.len() > pages
                && let Some(&(far, victim)) = by_next.iter().next_back()
            {
                by_next.remove(&(far, victim));
                held.remove(&victim);
            }
        }
        by_next.insert((next[i], page));
    }
    misses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::sets::Sets;
    use proptest::prelude::*;
    use terrace_core::Replacement;

    /// Misses of our own LRU array, fully associative.
    fn simulated(references: &[u64], ways: u32, replacement: Replacement) -> u64 {
        let mut array = Sets::new(1, ways, replacement);
        references
            .iter()
            .filter(|&&page| {
                let miss = !array.access(page, false);
                if miss {
                    array.insert(page, false);
                }
                miss
            })
            .count() as u64
    }

    proptest! {
        /// One pass must say what a simulation of each size says, and nothing
        /// may miss less than the policy that knows the future.
        #[test]
        fn one_pass_equals_a_simulation_of_each_size_and_belady_is_the_least(
            references in prop::collection::vec(0u64..40, 1..3000),
        ) {
            let mut distances = StackDistances::new();
            for &page in &references {
                distances.reference(page);
            }
            let curve = distances.curve();
            prop_assert_eq!(distances.references(), references.len() as u64);
            for pages in 1..=16u32 {
                let lru = simulated(&references, pages, Replacement::Lru);
                prop_assert_eq!(distances.misses(u64::from(pages)), lru, "{} pages", pages);
                if let Some(&misses) = curve.get(pages as usize) {
                    prop_assert_eq!(misses, lru);
                }
                let best = belady_misses(&references, pages as usize);
                for replacement in [Replacement::Lru, Replacement::Fifo, Replacement::Random, Replacement::Srrip] {
                    prop_assert!(best <= simulated(&references, pages, replacement));
                }
            }
        }
    }

    #[test]
    fn belady_on_the_textbook_string() {
        // 1 2 3 4 1 2 5 1 2 3 4 5 with three frames: 7 misses; LRU has 10.
        let string = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
        assert_eq!(belady_misses(&string, 3), 7);
        assert_eq!(simulated(&string, 3, Replacement::Lru), 10);
    }
}
