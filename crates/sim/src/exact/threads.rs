//! The program's threads: what was read of each, and what it does next.
//!
//! A source hands out accesses in batches, each of one thread. How long batches
//! are, and how those of several threads lie between each other, says how the
//! accesses were carried and not when they are made. So every thread has a queue,
//! and when one of them is needed that is empty, the source is read until it comes.
//!
//! A thread that the source does not come to within a stretch sleeps: it waits for
//! something that nobody recorded, or is over, or has not begun. It wakes when its
//! next batch is read. The stretch is twice as long as what it takes to hand out a
//! batch of the longest kind for every core and every thread that is awake, so that
//! threads that take turns are all seen, whatever the length of their turns. What
//! sleeps keeps nobody waiting, and a queue does not grow without bound for it.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use super::access::Access;
use super::lookahead::Ahead;
use super::source::{Batch, Source, SpaceEvent};
use crate::error::SimError;

/// Accesses below which a piece takes in the batch that follows it.
const PIECE: usize = 2048;
/// Accesses that are kept in all queues together before a thread that has not come
/// is taken to sleep: 512 MiB of them.
const MOST: u64 = 64 << 20;
/// Accesses of a turn, where turns may have any length: longer than the buffers of a thread that
/// other recorders write at once (`DynamoRIO`'s hold some 5,000).
const LONG_TURN: u64 = 1 << 15;
/// Empty buffers that are kept.
const MOST_EMPTY: usize = 8;

/// A run of accesses with what comes before it.
#[derive(Debug, Default)]
struct Piece {
    /// How many threads wait at a barrier first.
    barrier: u32,
    events: Vec<SpaceEvent>,
    accesses: Vec<Access>,
    /// How many of them have been handed out.
    at: usize,
    /// Whether the buffer is with a turn.
    lent: bool,
}

/// A thread.
#[derive(Debug)]
struct Thread {
    id: u32,
    pieces: VecDeque<Piece>,
    /// Accesses in its pieces.
    queued: u64,
    /// Accesses that had been read of all threads when it was seen last.
    seen: u64,
    awake: bool,
}

/// What a thread does next.
#[derive(Debug)]
pub(super) enum Step {
    /// It makes these accesses of a buffer, which is to be given back.
    Turn(Vec<Access>, Range<usize>),
    /// It changes the address space.
    Events(Vec<SpaceEvent>),
    /// It waits at a barrier for so many threads, itself among them.
    Barrier(u32),
    /// Nothing that is known.
    Sleep,
}

/// All threads, and where their accesses come from.
pub(super) struct Threads<'a> {
    source: &'a mut dyn Source,
    all: Vec<Thread>,
    by_id: HashMap<u32, usize>,
    cores: usize,
    awake: usize,
    /// How often one that slept woke.
    slept: u64,
    /// Accesses that were read, and of those the ones in queues.
    read: u64,
    queued: u64,
    /// The longest batch so far.
    longest: u64,
    ended: bool,
    batch: Batch,
    empty: Vec<Vec<Access>>,
    /// Threads that woke since somebody asked.
    woken: Vec<usize>,
    /// Memory that is going to be mapped.
    maps: Vec<(u64, u64)>,
    /// What tells a policy of what is to come.
    ahead: Option<Ahead>,
}

impl<'a> Threads<'a> {
    /// The threads of a program that runs on so many cores.
    pub(super) fn new(source: &'a mut dyn Source, cores: usize, ahead: Option<Ahead>) -> Self {
        let longest = if source.has_long_turns() { LONG_TURN } else { 0 };
        Self {
            source,
            all: Vec::new(),
            by_id: HashMap::new(),
            cores,
            awake: 0,
            slept: 0,
            read: 0,
            queued: 0,
            longest,
            ended: false,
            batch: Batch::default(),
            empty: Vec::new(),
            woken: Vec::new(),
            maps: Vec::new(),
            ahead,
        }
    }

    /// A thread's number in the source.
    pub(super) fn id(&self, thread: usize) -> u32 {
        self.all[thread].id
    }

    /// Whether something is known of a thread.
    pub(super) fn is_awake(&self, thread: usize) -> bool {
        self.all[thread].awake
    }

    /// Reads one batch more; false when there is none.
    pub(super) fn read_more(&mut self) -> Result<bool, SimError> {
        self.read_batch()?;
        Ok(!self.ended)
    }

    /// Threads that have woken since this was asked last.
    pub(super) fn woken(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.woken)
    }

    /// How often a thread was taken to sleep, and came again.
    pub(super) fn slept(&self) -> u64 {
        self.slept
    }

    /// Memory that is known to be mapped later, since this was asked last.
    pub(super) fn maps(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.maps)
    }

    /// What tells of what is to come, if a policy wants to know.
    pub(super) fn ahead(&mut self) -> Option<&mut Ahead> {
        self.ahead.as_mut()
    }

    /// Accesses within which a thread has to come.
    fn stretch(&self) -> u64 {
        2 * self.cores.max(self.awake) as u64 * self.longest
    }

    /// Reads far enough to know the threads that the program begins with.
    pub(super) fn begin(&mut self) -> Result<(), SimError> {
        while !self.ended && self.read <= self.stretch() {
            self.read_batch()?;
        }
        Ok(())
    }

    /// Reads a batch into its thread's queue.
    fn read_batch(&mut self) -> Result<(), SimError> {
        let mut batch = std::mem::take(&mut self.batch);
        if batch.accesses.capacity() == 0 {
            batch.accesses = self.empty.pop().unwrap_or_default();
        }
        if self.source.next(&mut batch)? {
            self.take_in(&mut batch);
        } else {
            self.ended = true;
        }
        self.batch = batch;
        Ok(())
    }

    fn take_in(&mut self, batch: &mut Batch) {
        // Calls for I/O alone: they are not made here, and change nothing.
        if batch.events.is_empty() && batch.accesses.is_empty() && batch.barrier == 0 {
            return;
        }
        let accesses = batch.accesses.len() as u64;
        self.read += accesses;
        self.queued += accesses;
        self.longest = self.longest.max(accesses);
        let threads = &mut self.all;
        let number = *self.by_id.entry(batch.thread).or_insert_with(|| {
            let pieces = VecDeque::new();
            threads.push(Thread { id: batch.thread, pieces, queued: 0, seen: 0, awake: false });
            threads.len() - 1
        });
        let thread = &mut threads[number];
        if !thread.awake {
            self.slept += u64::from(thread.seen > 0);
            thread.awake = true;
            self.awake += 1;
            self.woken.push(number);
        }
        thread.seen = self.read;
        thread.queued += accesses;
        for event in &batch.events {
            if let SpaceEvent::Map { start, len } = *event {
                self.maps.push((start, len));
            }
        }
        if let Some(ahead) = &mut self.ahead {
            ahead.read(number, &batch.accesses);
        }
        if batch.events.is_empty()
            && batch.barrier == 0
            && let Some(last) = thread.pieces.back_mut()
            && !last.lent
            && last.accesses.len() < PIECE
        {
            last.accesses.append(&mut batch.accesses);
            return;
        }
        thread.pieces.push_back(Piece {
            barrier: batch.barrier,
            events: std::mem::take(&mut batch.events),
            accesses: std::mem::take(&mut batch.accesses),
            ..Piece::default()
        });
    }

    /// Reads until so many accesses of a thread are known, and what a policy wants to
    /// know beyond them, or it is clear that there are not as many.
    pub(super) fn know(&mut self, thread: usize, accesses: usize) -> Result<(), SimError> {
        let wanted = accesses as u64 + self.ahead.as_ref().map_or(0, Ahead::window);
        loop {
            let Thread { queued, seen, .. } = self.all[thread];
            if queued >= wanted
                || self.ended
                || self.read - seen > self.stretch()
                || self.queued >= MOST
            {
                return Ok(());
            }
            self.read_batch()?;
        }
    }

    /// Whether accesses are what a thread does next, as far as it is known.
    pub(super) fn accesses_next(&self, thread: usize) -> bool {
        self.all[thread].pieces.front().is_some_and(|first| {
            first.barrier == 0 && first.events.is_empty() && first.at < first.accesses.len()
        })
    }

    /// What a thread does next, of what is known; a turn of at most so many accesses.
    pub(super) fn next(&mut self, thread: usize, most: usize) -> Step {
        let me = &mut self.all[thread];
        while let Some(piece) = me.pieces.front_mut() {
            if piece.barrier > 0 {
                return Step::Barrier(std::mem::take(&mut piece.barrier));
            }
            if !piece.events.is_empty() {
                return Step::Events(std::mem::take(&mut piece.events));
            }
            if piece.at < piece.accesses.len() {
                return self.turn(thread, most);
            }
            let done = std::mem::take(&mut piece.accesses);
            me.pieces.pop_front();
            keep(&mut self.empty, done);
        }
        me.awake = false;
        self.awake -= 1;
        Step::Sleep
    }

    /// The next accesses of a thread whose first piece has some: as many as are
    /// wanted, wherever pieces end, but none beyond what happens in between.
    fn turn(&mut self, thread: usize, most: usize) -> Step {
        let me = &mut self.all[thread];
        let next_is_plain =
            me.pieces.get(1).is_some_and(|next| next.barrier == 0 && next.events.is_empty());
        let first = &mut me.pieces[0];
        let (at, left) = (first.at, first.accesses.len() - first.at);
        let (accesses, range) = if left >= most || !next_is_plain {
            first.lent = true;
            (std::mem::take(&mut first.accesses), at..at + left.min(most))
        } else {
            let mut joined = self.empty.pop().unwrap_or_default();
            while joined.len() < most
                && let Some(piece) = me.pieces.front_mut()
                && (joined.is_empty() || piece.barrier == 0 && piece.events.is_empty())
            {
                let rest = &piece.accesses[piece.at..];
                let taken = rest.len().min(most - joined.len());
                joined.extend_from_slice(&rest[..taken]);
                piece.at += taken;
                if piece.at == piece.accesses.len() {
                    let done = std::mem::take(&mut piece.accesses);
                    me.pieces.pop_front();
                    keep(&mut self.empty, done);
                }
            }
            let range = 0..joined.len();
            (joined, range)
        };
        let made = range.len() as u64;
        me.queued -= made;
        self.queued -= made;
        if let Some(ahead) = &mut self.ahead {
            ahead.made(thread, made);
        }
        Step::Turn(accesses, range)
    }

    /// Takes a turn's buffer back, of which `end` accesses have been made.
    pub(super) fn give_back(&mut self, thread: usize, accesses: Vec<Access>, end: usize) {
        let me = &mut self.all[thread];
        let Some(first) = me.pieces.front_mut().filter(|first| first.lent) else {
            return keep(&mut self.empty, accesses);
        };
        first.lent = false;
        if end < accesses.len() {
            (first.accesses, first.at) = (accesses, end);
        } else {
            me.pieces.pop_front();
            keep(&mut self.empty, accesses);
        }
    }
}

/// Keeps a buffer that is not needed now.
fn keep(empty: &mut Vec<Vec<Access>>, mut buffer: Vec<Access>) {
    if empty.len() < MOST_EMPTY && buffer.capacity() > 0 {
        buffer.clear();
        empty.push(buffer);
    }
}
