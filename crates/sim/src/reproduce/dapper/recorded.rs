//! A recorded program in place of an algorithm.
//!
//! Its memory is what the recording touches. All of it is touched before anything else, page by
//! page in the order in which the program did, so that it lies where it would have come to lie.
//! Then come the recording's last accesses: half of them fill the caches, the other half is
//! measured. Memory that was given back and mapped again at the same address counts once.

use std::collections::HashSet;
use std::path::Path;

use terrace_core::{Bytes, PageSize};

use super::timing::Shape;
use crate::error::SimError;
use crate::exact::{Access, Batch, Source};
use crate::trace::{Format, import};

/// Stores in a batch of the first touches.
const BATCH: usize = 4096;
/// Characters of a command that are shown.
const SHOWN: usize = 48;

/// The end of a recording, in memory that was touched before.
pub struct Recorded {
    source: Box<dyn Source>,
    /// Its pages in the order of first touches.
    pages: Vec<u64>,
    /// How many of them were touched.
    touched: usize,
    /// Accesses in front of the end.
    skipped: u64,
}

impl Recorded {
    /// Of a recording, so many accesses are measured, and as many come before them; of a short
    /// one, half of it.
    ///
    /// # Errors
    ///
    /// Where it cannot be read.
    pub fn open(path: &Path, accesses: u64) -> Result<(Self, Shape), SimError> {
        let open = || import::open(path, Format::of(path));
        let (mut source, mut batch) = (open()?, Batch::default());
        let (mut seen, mut pages, mut all) = (HashSet::new(), Vec::new(), 0);
        let mut last = u64::MAX;
        while source.next(&mut batch)? {
            for access in batch.accesses.iter().filter(|access| access.is_data()) {
                all += 1;
                let page = access.address() >> PageSize::Base.shift();
                if page != last && seen.insert(page) {
                    pages.push(page);
                }
                last = page;
            }
        }
        let end = all.min(accesses * 2);
        let shape = Shape {
            memory: Bytes(pages.len() as u64 * PageSize::Base.bytes().get()),
            initial: pages.len() as u64 + end / 2,
        };
        Ok((Self { source: open()?, pages, touched: 0, skipped: all - end }, shape))
    }
}

impl Source for Recorded {
    fn describe(&self) -> String {
        let command = self.source.describe();
        let name = |word: &str| word.rsplit('/').next().unwrap_or(word).to_owned();
        let words: Vec<String> = command.split(' ').map(name).collect();
        let shown: String = words.join(" ").chars().take(SHOWN).collect();
        format!("recorded: {shown}")
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        let left = &self.pages[self.touched..];
        if !left.is_empty() {
            batch.clear();
            let next = &left[..left.len().min(BATCH)];
            let store = |page: &u64| Access::store(page << PageSize::Base.shift());
            batch.accesses.extend(next.iter().map(store));
            self.touched += next.len();
            return Ok(true);
        }
        loop {
            if !self.source.next(batch)? {
                return Ok(false);
            }
            if self.skipped > 0 {
                let skipped = &mut self.skipped;
                batch.accesses.retain(|access| {
                    let drops = *skipped > 0;
                    *skipped -= u64::from(drops && access.is_data());
                    !drops
                });
            }
            if batch.accesses.is_empty() {
                continue;
            }
            // All of it was touched; its threads run on one processor, as they were recorded.
            let accesses = std::mem::take(&mut batch.accesses);
            batch.clear();
            batch.accesses = accesses;
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// Loads of a page each, first all from the last page down, then again and again the first.
    #[test]
    fn pages_are_touched_in_the_program_s_order_and_then_comes_the_recording_s_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("down.lackey");
        let mut text = String::from("I  0400d7d4,8\n");
        for page in (0..100u64).rev().chain(std::iter::repeat_n(0, 60)) {
            writeln!(text, " L {:08x},8", 0x1000_0000 + page * 4096).unwrap();
        }
        std::fs::write(&path, text).unwrap();
        for (measured, end) in [(20, 40), (50, 100), (1000, 160)] {
            let (mut recorded, shape) = Recorded::open(&path, measured).unwrap();
            assert_eq!(shape.memory, Bytes::kib(400));
            assert_eq!(shape.initial, 100 + end / 2);
            let (mut batch, mut all) = (Batch::default(), Vec::new());
            while recorded.next(&mut batch).unwrap() {
                assert!(batch.events.is_empty() && batch.thread == 0);
                all.extend(batch.accesses.iter().filter(|a| a.is_data()).copied());
            }
            let page = |access: &Access| (access.address() - 0x1000_0000) / 4096;
            assert!(
                all[..100].iter().map(page).eq((0..100).rev()),
                "in the order of first touches"
            );
            assert!(all[..100].iter().all(|access| access.is_store()));
            assert_eq!(all.len() as u64 - 100, end, "{measured}");
            assert!(all[all.len() - 20..].iter().all(|a| page(a) == 0 && !a.is_store()));
        }
    }
}
