//! What is to come: threads are read ahead, and their misses are counted by page.
//!
//! A policy that knows the future is to know what reaches the memories, not
//! what the caches answer. So accesses that are read ahead go through a
//! direct-mapped table of a thread's share of the lines that the last-level cache
//! has; those that it does not know count.

use std::collections::{HashMap, VecDeque};

use terrace_core::{PageRef, Upcoming};

use super::access::Access;
use super::machine::ExactMachine;

/// Accesses that are read ahead: 128 MiB of them.
const MOST: u64 = 16 << 20;
/// Accesses that come and go together.
const PIECE: u64 = 4096;

/// Memory accesses that are read ahead and have not been made.
#[derive(Default)]
struct Misses {
    loads: u32,
    stores: u32,
}

/// Accesses of a thread, one after the other, and what of them will miss.
#[derive(Default)]
struct Piece {
    /// How many accesses of the thread there are up to its end.
    end: u64,
    /// Loads and stores by 4 KiB of address space.
    misses: HashMap<u64, (u32, u32)>,
}

/// A thread that is read ahead.
struct Thread {
    /// Lines as a cache would hold them.
    lines: Vec<u64>,
    /// Pieces that are not made yet.
    pieces: VecDeque<Piece>,
    /// How many of them are among what is coming.
    coming: usize,
    /// Accesses that were read, and of those the ones that were made.
    read: u64,
    made: u64,
}

/// Threads that are read ahead.
pub(super) struct Ahead {
    threads: Vec<Thread>,
    /// Accesses that each thread is read ahead.
    window: u64,
    /// Lines of the table of each.
    lines: usize,
    /// Misses by 4 KiB of address space.
    coming: HashMap<u64, Misses>,
}

impl Ahead {
    /// For threads on so many cores, with a cache of so many lines.
    pub(super) fn new(cores: usize, lines: u64) -> Self {
        Self {
            threads: Vec::new(),
            window: (MOST / cores as u64).next_multiple_of(PIECE),
            lines: (lines as usize / cores).max(1),
            coming: HashMap::new(),
        }
    }

    /// Accesses that a thread is to be read ahead.
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// More of a thread was read.
    pub(super) fn read(&mut self, thread: usize, accesses: &[Access]) {
        while self.threads.len() <= thread {
            let lines = vec![u64::MAX; self.lines];
            self.threads.push(Thread {
                lines,
                pieces: VecDeque::new(),
                coming: 0,
                read: 0,
                made: 0,
            });
        }
        let Thread { lines, pieces, coming, read, .. } = &mut self.threads[thread];
        let sets = lines.len() as u64;
        for access in accesses {
            // What was told of does not grow.
            if read.is_multiple_of(PIECE) || pieces.len() == *coming {
                pieces.push_back(Piece::default());
            }
            let Some(piece) = pieces.back_mut() else { return };
            *read += 1;
            piece.end = *read;
            if !access.is_data() {
                continue;
            }
            let line = access.line();
            let place = &mut lines[(line % sets) as usize];
            if *place != line {
                *place = line;
                let counts = piece.misses.entry(line >> 6).or_default();
                if access.is_store() {
                    counts.1 += 1;
                } else {
                    counts.0 += 1;
                }
            }
        }
    }

    /// A thread has made so many more accesses.
    pub(super) fn made(&mut self, thread: usize, accesses: u64) {
        self.threads[thread].made += accesses;
    }

    /// Brings what is coming up to date.
    fn settle(&mut self) {
        for thread in &mut self.threads {
            while thread.pieces.front().is_some_and(|piece| piece.end <= thread.made)
                && let Some(piece) = thread.pieces.pop_front()
            {
                if thread.coming == 0 {
                    continue;
                }
                thread.coming -= 1;
                for (page, (loads, stores)) in piece.misses {
                    if let Some(misses) = self.coming.get_mut(&page) {
                        misses.loads -= loads;
                        misses.stores -= stores;
                        if misses.loads + misses.stores == 0 {
                            self.coming.remove(&page);
                        }
                    }
                }
            }
            let until = thread.made / PIECE * PIECE + self.window;
            while let Some(piece) = thread.pieces.get(thread.coming).filter(|p| p.end <= until) {
                for (&page, &(loads, stores)) in &piece.misses {
                    let coming = self.coming.entry(page).or_default();
                    coming.loads += loads;
                    coming.stores += stores;
                }
                thread.coming += 1;
            }
        }
    }
}

impl ExactMachine {
    /// Tells the policy what is to come.
    pub(super) fn tell_future(&mut self, ahead: &mut Ahead) {
        ahead.settle();
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
        if let Some(brain) = &mut self.runtime.brain {
            brain.foresee(&upcoming);
        }
    }

    /// Whether a policy asks for what is to come.
    pub(super) fn wants_future(&self) -> bool {
        self.runtime.brain.as_ref().is_some_and(|brain| brain.needs().foresight.is_some())
    }
}
