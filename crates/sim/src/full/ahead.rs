//! What is to come: a source is read ahead, and its misses are counted by page.
//!
//! A policy that knows the future is to know what reaches the memories, not
//! what the caches answer. So accesses that are read ahead go through a
//! direct-mapped table of as many lines as the last-level cache has; those that
//! it does not know count.

use std::collections::{HashMap, VecDeque};

use terrace_core::{PageRef, Upcoming};

use super::machine::FullMachine;
use super::source::{Batch, Source};
use crate::error::SimError;

/// Accesses that are read ahead at most: 128 MiB of them.
const MOST: u64 = 16 << 20;

/// Memory accesses that are read ahead and have not been made.
#[derive(Default)]
struct Misses {
    loads: u32,
    stores: u32,
}

/// A batch that was read ahead, with what of it will miss.
struct Read {
    batch: Batch,
    /// By 4 KiB of address space.
    misses: Vec<(u64, u32, u32)>,
}

/// A source that is read ahead.
pub(super) struct Ahead<'a> {
    source: &'a mut dyn Source,
    read: VecDeque<Read>,
    /// Accesses in `read`.
    accesses: u64,
    /// Misses in `read`, by 4 KiB of address space.
    coming: HashMap<u64, Misses>,
    /// Lines as a cache would hold them.
    lines: Vec<u64>,
    ended: bool,
}

impl<'a> Ahead<'a> {
    /// Reads a source ahead for a cache of so many lines.
    pub(super) fn new(source: &'a mut dyn Source, lines: u64) -> Self {
        Self {
            source,
            read: VecDeque::new(),
            accesses: 0,
            coming: HashMap::new(),
            lines: vec![u64::MAX; lines.max(1) as usize],
            ended: false,
        }
    }

    /// The next batch, with the source read ahead of it as far as it goes.
    pub(super) fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        while !self.ended && self.accesses < MOST {
            let mut batch = Batch::default();
            if self.source.next(&mut batch)? {
                self.take_in(batch);
            } else {
                self.ended = true;
            }
        }
        let Some(read) = self.read.pop_front() else { return Ok(false) };
        self.accesses -= read.batch.accesses.len() as u64;
        for (page, loads, stores) in read.misses {
            if let Some(misses) = self.coming.get_mut(&page) {
                misses.loads -= loads;
                misses.stores -= stores;
                if misses.loads + misses.stores == 0 {
                    self.coming.remove(&page);
                }
            }
        }
        *batch = read.batch;
        Ok(true)
    }

    fn take_in(&mut self, batch: Batch) {
        let mut misses: HashMap<u64, (u32, u32)> = HashMap::new();
        let sets = self.lines.len() as u64;
        for access in batch.accesses.iter().filter(|access| !access.is_fetch()) {
            let line = access.line();
            let place = &mut self.lines[(line % sets) as usize];
            if *place != line {
                *place = line;
                let counts = misses.entry(line >> 6).or_default();
                if access.is_store() {
                    counts.1 += 1;
                } else {
                    counts.0 += 1;
                }
            }
        }
        // In one order in every run, whatever the hasher's seed.
        let mut misses: Vec<_> = misses.into_iter().map(|(p, (l, s))| (p, l, s)).collect();
        misses.sort_unstable();
        for &(page, loads, stores) in &misses {
            let coming = self.coming.entry(page).or_default();
            coming.loads += loads;
            coming.stores += stores;
        }
        self.accesses += batch.accesses.len() as u64;
        self.read.push_back(Read { batch, misses });
    }
}

impl FullMachine {
    /// Tells the policy what is to come.
    pub(super) fn tell_future(&mut self, ahead: &Ahead<'_>) {
        let mut upcoming: Vec<Upcoming> = Vec::with_capacity(ahead.coming.len());
        let mut pages: Vec<(&u64, &Misses)> = ahead.coming.iter().collect();
        pages.sort_unstable_by_key(|(page, _)| **page);
        for (&page, misses) in pages {
            let Some((page, _)) = self.areas.page(page << 12) else { continue };
            let (loads, stores) = (misses.loads as f32, misses.stores as f32);
            let same = |last: &PageRef| *last == page;
            match upcoming.last_mut().filter(|last| same(&last.page)) {
                Some(last) => {
                    last.loads += loads;
                    last.stores += stores;
                }
                None => upcoming.push(Upcoming { page, loads, stores }),
            }
        }
        if let Some(brain) = &mut self.world.brain {
            brain.foresee(&upcoming);
        }
    }

    /// Whether a policy asks for what is to come.
    pub(super) fn wants_future(&self) -> bool {
        self.world.brain.as_ref().is_some_and(|brain| brain.needs().foresight.is_some())
    }
}
