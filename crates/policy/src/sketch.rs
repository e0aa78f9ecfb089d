//! How often something was seen, in a few bits and without a table of all: a
//! counting Bloom filter in blocks of a cache line.
//!
//! An entry has four counters of four bits, all in one line; its frequency is
//! the least of them, so that others sharing a counter can only make it look
//! more frequent. After so many additions all counters are halved.
//!
//! Sources: `TinyLFU` (Einziger, Friedman, Manes, ACM Transactions on Storage
//! 2017) as in Caffeine; in blocks as in `HybridTier`'s
//! `frequency_sketch_block.hpp`.

/// Counters of an entry.
const HASHES: u32 = 4;
/// The highest count.
pub(crate) const MOST: u8 = 15;
/// Words of a block: a cache line.
const BLOCK: usize = 8;
/// Words at least: room for some fifty entries.
const LEAST: usize = 64;
/// How often a stranger looks like an entry, at most: 0.001
/// (`FALSE_POSITIVE_PROB` in the published code).
const FALSE_POSITIVES: f64 = 0.001;

/// The filter.
#[derive(Debug, Default)]
pub(crate) struct Sketch {
    /// Memory that may be used; what is beyond `used` was never touched.
    words: Vec<u64>,
    used: usize,
    added: u64,
}

/// Words for so many entries: `-k / ln(1 - p^(1/k))` counters for each, sixteen
/// a word, rounded up to a power of two.
pub(crate) fn words_for(entries: u64) -> usize {
    part_of_words_for(entries, 1)
}

/// One of so many parts of the words for so many entries, rounded up as well.
pub(crate) fn part_of_words_for(entries: u64, parts: u32) -> usize {
    let hashes = f64::from(HASHES);
    let counters = -hashes / (-(FALSE_POSITIVES.ln() / hashes).exp()).ln_1p();
    let words = (entries as f64 * counters / 16.0 / f64::from(parts)).ceil();
    (words as usize).next_power_of_two().max(LEAST)
}

impl Sketch {
    /// Takes memory for up to so many words. They are zeroed by the system
    /// when they are first touched.
    pub(crate) fn reserve(&mut self, words: usize) {
        let words = words.next_power_of_two().max(LEAST);
        if words > self.words.len() {
            let mut larger = vec![0; words];
            larger[..self.used].copy_from_slice(&self.words[..self.used]);
            self.words = larger;
        }
        self.used = self.used.max(LEAST);
    }

    /// Uses so many words from now on, as far as they are reserved. What was
    /// counted stays: a block's entries go on in both of the blocks that it
    /// becomes. Never shrinks.
    pub(crate) fn fit(&mut self, words: usize) {
        let words = words.min(self.words.len());
        while self.used > 0 && self.used * 2 <= words {
            self.words.copy_within(..self.used, self.used);
            self.used *= 2;
        }
    }

    /// The block of an entry, and the place of each of its counters in it.
    fn places(&self, entry: u64) -> Option<(usize, [(usize, u32); HASHES as usize])> {
        let hash = terrace_core::splitmix64(entry);
        let blocks = self.used / BLOCK;
        let block = (hash as u32 as usize & blocks.checked_sub(1)?) * BLOCK;
        let places = [0, 1, 2, 3].map(|i: u32| {
            let bits = (hash >> (32 + 8 * i)) as u32;
            (i as usize * 2 + (bits & 1) as usize, (bits >> 1 & 15) * 4)
        });
        Some((block, places))
    }

    /// How often an entry was seen, 15 at most.
    pub(crate) fn count(&self, entry: u64) -> u8 {
        let Some((block, places)) = self.places(entry) else { return 0 };
        let counts = places.map(|(word, shift)| (self.words[block + word] >> shift & 15) as u8);
        counts.into_iter().min().unwrap_or(0)
    }

    /// An entry was seen so often; returns its count now. All counts are halved
    /// once `period` have been seen; says whether they were.
    pub(crate) fn add(&mut self, entry: u64, times: u16, period: u64) -> (u8, bool) {
        let Some((block, places)) = self.places(entry) else { return (0, false) };
        let mut least = MOST;
        for (word, shift) in places {
            let word = &mut self.words[block + word];
            let count = (*word >> shift & 15) as u16;
            let more = count.saturating_add(times).min(u16::from(MOST));
            *word += u64::from(more - count) << shift;
            least = least.min(more as u8);
        }
        self.added += u64::from(times);
        if self.added < period {
            return (least, false);
        }
        self.age();
        (least / 2, true)
    }

    /// Takes one off an entry's counters that are at their end, so that it can
    /// be seen whether they rise again.
    pub(crate) fn lower(&mut self, entry: u64) {
        let Some((block, places)) = self.places(entry) else { return };
        for (word, shift) in places {
            let word = &mut self.words[block + word];
            if *word >> shift & 15 == u64::from(MOST) {
                *word -= 1 << shift;
            }
        }
    }

    /// Halves all counts.
    pub(crate) fn age(&mut self) {
        for word in &mut self.words[..self.used] {
            *word = *word >> 1 & 0x7777_7777_7777_7777;
        }
        self.added /= 2;
    }

    /// Memory in use.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.used * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch(entries: u64) -> Sketch {
        let mut sketch = Sketch::default();
        sketch.reserve(words_for(entries));
        sketch.fit(words_for(entries));
        sketch
    }

    /// 64 GiB of base pages take 256 MiB, as the paper's code does.
    #[test]
    fn the_size_is_that_of_the_published_code() {
        assert_eq!(words_for(16 << 20) * 8, 256 << 20);
    }

    /// A count that is too low would leave a hot page where it lies.
    #[test]
    fn counts_are_never_too_low_and_seldom_too_high() {
        let mut sketch = sketch(1000);
        for entry in 0..1000 {
            for _ in 0..entry % 7 {
                sketch.add(entry, 1, u64::MAX);
            }
        }
        let count = |entry| u64::from(sketch.count(entry));
        assert!((0..1000).all(|entry| count(entry) >= entry % 7));
        let high = (0..1000).filter(|&entry| count(entry) > entry % 7).count();
        // Blocks fill unevenly, so that more than one in a thousand is too high.
        assert!(high < 30, "{high} of 1000 counts are too high");
    }

    #[test]
    fn all_counts_are_halved_after_a_period() {
        let mut sketch = sketch(1000);
        sketch.add(1, 9, 100);
        assert_eq!(sketch.add(2, 200, 100), (7, true));
        assert_eq!((sketch.count(1), sketch.count(2)), (4, 7));
    }

    /// A program grows while it runs; what was known of its pages must not go.
    #[test]
    fn a_filter_that_grows_forgets_nothing() {
        let mut sketch = Sketch::default();
        sketch.reserve(words_for(10));
        for entry in 0..40 {
            sketch.add(entry, 3, u64::MAX);
        }
        sketch.reserve(words_for(5000));
        sketch.fit(words_for(5000));
        assert_eq!(sketch.heap_bytes(), words_for(5000) * 8);
        assert!((0..40).all(|entry| sketch.count(entry) >= 3));
    }

    #[test]
    fn a_count_at_its_end_can_be_lowered_by_one() {
        let mut sketch = sketch(10);
        sketch.add(5, 40, u64::MAX);
        assert_eq!(sketch.count(5), MOST);
        sketch.lower(5);
        assert_eq!(sketch.count(5), MOST - 1);
    }
}
