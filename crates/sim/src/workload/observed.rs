//! Programs whose accesses are observed: algorithms that run here, on memory
//! that notes what they touch.
//!
//! An algorithm is a [`Kernel`]. It keeps its data in [`Array`]s (or, where what
//! it does does not depend on what it reads, in a [`Span`] that holds none) and
//! passes an [`Observer`] to every access. [`Program`] makes it a
//! [`Source`] for the exact engine.
//!
//! Initialisation is observed as a `memset` is seen by the caches: one store a
//! line, in the order of allocation. [`Program::initial`] says how many accesses
//! that are, for whoever wants to measure what comes after.

use terrace_core::{Bytes, PageSize};

use crate::error::SimError;
use crate::exact::{Access, Batch, Source, SpaceEvent};

/// Where observed memory begins.
const START: u64 = 0x2000_0000_0000;
/// Bytes of a line, the step of initialisation.
const LINE: u64 = terrace_core::detail::CACHE_LINE;
/// Accesses of a batch, about: a batch ends with a step.
const BATCH: usize = 4096;

/// Notes what an algorithm accesses.
#[derive(Clone, Debug, Default)]
pub struct Observer {
    accesses: Vec<Access>,
    events: Vec<SpaceEvent>,
    /// Memory that was allocated and not yet initialised, with how much of it was.
    fresh: Vec<(u64, u64)>,
    allocated: u64,
    instructions: u64,
}

impl Observer {
    /// Allocates memory at the next multiple of 2 MiB; initialised when its
    /// turn comes, in the order of allocation.
    pub fn allocate(&mut self, bytes: u64) -> Span {
        let start = START + self.allocated;
        let bytes = bytes.max(1).next_multiple_of(LINE);
        let huge = PageSize::Huge.bytes().get();
        // A page between allocations stays unmapped, as the guard that a C library leaves.
        self.allocated += bytes.next_multiple_of(huge) + huge;
        self.events.push(SpaceEvent::Map { start, len: bytes });
        self.fresh.push((start, bytes));
        Span { start, bytes }
    }

    /// Allocates an array.
    pub fn array<T: Copy>(&mut self, data: Vec<T>) -> Array<T> {
        let span = self.allocate((data.len() * size_of::<T>()) as u64);
        Array { span, data }
    }

    /// Instructions that access no memory.
    #[inline]
    pub fn work(&mut self, instructions: u64) {
        self.instructions += instructions;
    }

    /// An access.
    #[inline]
    pub fn access(&mut self, access: Access) {
        access.push_after(&mut self.accesses, self.instructions);
        self.instructions = 0;
    }

    /// Memory that was allocated.
    pub fn footprint(&self) -> Bytes {
        let mapped = |event: &SpaceEvent| match *event {
            SpaceEvent::Map { len, .. } => len,
            SpaceEvent::Unmap { .. } => 0,
        };
        Bytes(self.events.iter().map(mapped).sum())
    }
}

/// Memory without content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u64,
    bytes: u64,
}

impl Span {
    /// How large it is.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }
    /// Address of a byte.
    pub const fn address(self, offset: u64) -> u64 {
        self.start + offset
    }
    /// Loads eight bytes.
    #[inline]
    pub fn load(self, offset: u64, observer: &mut Observer) {
        observer.access(Access::load(self.start + offset));
    }
    /// Stores eight bytes.
    #[inline]
    pub fn store(self, offset: u64, observer: &mut Observer) {
        observer.access(Access::store(self.start + offset));
    }
    /// Loads some bytes, line by line.
    pub fn load_all(self, offset: u64, bytes: u64, observer: &mut Observer) {
        self.lines(offset, bytes, Access::load, observer);
    }
    /// Stores some bytes, line by line.
    pub fn store_all(self, offset: u64, bytes: u64, observer: &mut Observer) {
        self.lines(offset, bytes, Access::store, observer);
    }
    fn lines(self, offset: u64, bytes: u64, kind: fn(u64) -> Access, observer: &mut Observer) {
        let (from, to) = (self.start + offset, self.start + offset + bytes);
        let mut at = from;
        while at < to {
            observer.access(kind(at & !7));
            at = (at & !(LINE - 1)) + LINE;
        }
    }
}

/// An array whose elements are in observed memory.
#[derive(Clone, Debug)]
pub struct Array<T> {
    span: Span,
    data: Vec<T>,
}

impl<T: Copy> Array<T> {
    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.data.len()
    }
    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }
    fn at(&self, i: usize, kind: terrace_core::Access) -> Access {
        let size = size_of::<T>() as u64;
        Access::new(self.span.start + i as u64 * size, size, kind)
    }
    /// Reads an element.
    #[inline]
    pub fn get(&self, i: usize, observer: &mut Observer) -> T {
        observer.access(self.at(i, terrace_core::Access::Read));
        self.data[i]
    }
    /// Reads an element whose index came from the load before.
    #[inline]
    pub fn follow(&self, i: usize, observer: &mut Observer) -> T {
        observer.access(self.at(i, terrace_core::Access::Read).dependent());
        self.data[i]
    }
    /// Writes an element.
    #[inline]
    pub fn set(&mut self, i: usize, value: T, observer: &mut Observer) {
        observer.access(self.at(i, terrace_core::Access::Write));
        self.data[i] = value;
    }
    /// Looks at the data without being seen: for preparations.
    pub fn unseen(&self) -> &[T] {
        &self.data
    }
    /// Changes the data without being seen: for preparations.
    pub fn unseen_mut(&mut self) -> &mut [T] {
        &mut self.data
    }
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The thread has more to do.
    More,
    /// It goes on when every thread has come to its next barrier.
    Barrier,
    /// It had nothing to do, and never will.
    Over,
}

/// An algorithm.
pub trait Kernel: Send {
    /// What people call it, with its parameters.
    fn describe(&self) -> String;

    /// How many threads work; each has steps of its own.
    fn threads(&self) -> usize {
        1
    }

    /// Does a small piece of a thread's work (an update, a look-up, a vertex).
    fn step(&mut self, thread: usize, observer: &mut Observer) -> Step;
}

/// A kernel as a source of accesses.
pub struct Program {
    kernel: Box<dyn Kernel>,
    observer: Observer,
    /// How many of `observer.fresh` are initialised, and bytes of the next.
    initialised: (usize, u64),
    initial: u64,
    footprint: Bytes,
    /// Accesses that are left after initialisation.
    left: u64,
    /// Whose turn it is.
    thread: usize,
    /// Accesses of each thread's turn in this round: a batch, or at the end an equal part of what
    /// is left.
    share: u64,
    threads: Vec<State>,
}

/// What a thread of a program is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At work; first it waits at a barrier, or does not.
    Runs {
        barrier: bool,
    },
    /// It has come to a barrier.
    Waits,
    Over,
}

impl Program {
    /// A kernel that was set up with this observer, and stops after so many
    /// accesses (to the next step) if it does not end before.
    pub fn new(kernel: Box<dyn Kernel>, mut observer: Observer, accesses: u64) -> Self {
        let initial = observer.fresh.iter().map(|(_, bytes)| bytes / LINE).sum();
        // What the set-up touched is replaced by the initialisation.
        observer.accesses.clear();
        let threads = kernel.threads().max(1);
        let footprint = observer.footprint();
        // One thread initialises; the others begin when it has.
        let state = State::Runs { barrier: threads > 1 };
        Self {
            kernel,
            observer,
            initialised: (0, 0),
            initial,
            footprint,
            left: accesses,
            thread: 0,
            share: 0,
            threads: vec![state; threads],
        }
    }

    /// Accesses of the initialisation.
    pub fn initial(&self) -> u64 {
        self.initial
    }

    /// Memory that it allocated when it was set up.
    pub fn footprint(&self) -> Bytes {
        self.footprint
    }

    /// The initialisation's next accesses; false when it is done.
    fn initialise(&mut self, batch: &mut Batch) -> bool {
        let (mut index, mut done) = self.initialised;
        while batch.accesses.len() < BATCH {
            let Some(&(start, bytes)) = self.observer.fresh.get(index) else { break };
            if done == bytes {
                (index, done) = (index + 1, 0);
                continue;
            }
            // Eight stores of eight bytes fill a line; the caches see the first.
            batch.accesses.push(Access::store(start + done).after(7));
            done += LINE;
        }
        self.initialised = (index, done);
        !batch.accesses.is_empty()
    }
}

impl Program {
    /// The thread whose turn it is; `None` when all have come to their end.
    fn next_thread(&mut self) -> Option<usize> {
        let count = self.threads.len();
        let find = |threads: &[State], from: usize| {
            let turns = (0..count).map(|i| (from + i) % count);
            turns.into_iter().find(|&thread| matches!(threads[thread], State::Runs { .. }))
        };
        find(&self.threads, self.thread).or_else(|| {
            // Everybody has come to the barrier, or is over.
            for state in self.threads.iter_mut().filter(|state| **state == State::Waits) {
                *state = State::Runs { barrier: true };
            }
            find(&self.threads, 0)
        })
    }
}

impl Source for Program {
    fn describe(&self) -> String {
        self.kernel.describe()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        batch.clear();
        batch.events.append(&mut self.observer.events);
        if self.initialise(batch) {
            return Ok(true);
        }
        let Some(thread) = (if self.left == 0 { None } else { self.next_thread() }) else {
            return Ok(!batch.events.is_empty());
        };
        batch.thread = thread as u32;
        if self.threads[thread] == (State::Runs { barrier: true }) {
            batch.barrier = self.threads.len() as u32;
            self.threads[thread] = State::Runs { barrier: false };
        }
        // The batch's memory and the observer's take turns.
        std::mem::swap(&mut batch.accesses, &mut self.observer.accesses);
        if self.share == 0 || thread < self.thread {
            let running = self.threads.iter().filter(|state| **state != State::Over).count();
            self.share = self.left.div_ceil(running.max(1) as u64).min(BATCH as u64);
        }
        let target = self.share.min(self.left) as usize;
        while self.observer.accesses.len() < target {
            match self.kernel.step(thread, &mut self.observer) {
                Step::More => {}
                // Nobody waits for a single thread.
                Step::Barrier if self.threads.len() == 1 => {}
                Step::Barrier => {
                    self.threads[thread] = State::Waits;
                    break;
                }
                Step::Over => {
                    self.threads[thread] = State::Over;
                    break;
                }
            }
        }
        std::mem::swap(&mut batch.accesses, &mut self.observer.accesses);
        batch.events.append(&mut self.observer.events);
        let made = batch.accesses.iter().filter(|access| access.is_data()).count() as u64;
        self.left -= made.min(self.left);
        self.thread = (thread + 1) % self.threads.len();
        if self.thread == 0 {
            self.share = 0;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums an array: element by element, with an addition each.
    struct Sum {
        array: Array<u64>,
        at: usize,
        total: u64,
    }

    impl Kernel for Sum {
        fn describe(&self) -> String {
            "sum".into()
        }
        fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
            if self.at == self.array.len() {
                return Step::Over;
            }
            self.total += self.array.get(self.at, observer);
            observer.work(1);
            self.at += 1;
            Step::More
        }
    }

    #[test]
    fn initialisation_comes_first_and_then_every_access_of_the_algorithm_in_order() {
        let mut observer = Observer::default();
        let array = observer.array((0..10_000u64).collect());
        let first = array.span.address(0);
        let kernel = Box::new(Sum { array, at: 0, total: 0 });
        let mut program = Program::new(kernel, observer, u64::MAX);
        assert_eq!(program.initial(), 10_000 * 8 / 64);

        let (mut batch, mut all, mut events) = (Batch::default(), Vec::new(), Vec::new());
        while program.next(&mut batch).expect("no input can fail") {
            all.extend_from_slice(&batch.accesses);
            events.extend_from_slice(&batch.events);
        }

        assert_eq!(events, [SpaceEvent::Map { start: first, len: 80_000 }]);
        let (initial, rest) = all.split_at(1250);
        assert!(initial.iter().all(|access| access.is_store()));
        assert_eq!(rest.len(), 10_000);
        for (i, access) in rest.iter().enumerate() {
            assert_eq!(access.address(), first + i as u64 * 8);
            assert_eq!(access.instructions(), u64::from(i > 0), "the addition before it");
        }
    }

    /// Adds to numbers of its own, for ever.
    struct Add(Vec<Span>);

    impl Kernel for Add {
        fn describe(&self) -> String {
            "add".into()
        }
        fn threads(&self) -> usize {
            self.0.len()
        }
        fn step(&mut self, thread: usize, observer: &mut Observer) -> Step {
            self.0[thread].load(0, observer);
            Step::More
        }
    }

    /// With whole batches 8192 accesses kept two threads of any number busy.
    #[test]
    fn however_few_accesses_there_are_each_thread_has_an_equal_part() {
        for (threads, accesses) in [(4, 8192u64), (16, 1000), (16, 20_000), (32, 200_000), (3, 3)] {
            let mut observer = Observer::default();
            let spans = (0..threads).map(|_| observer.allocate(64)).collect();
            let mut program = Program::new(Box::new(Add(spans)), observer, accesses);
            let (mut batch, mut made) = (Batch::default(), vec![0u64; threads]);
            while program.next(&mut batch).expect("no input can fail") {
                made[batch.thread as usize] += batch.accesses.len() as u64;
            }
            made[0] -= program.initial();
            let (least, most) = (made.iter().min().unwrap(), made.iter().max().unwrap());
            assert_eq!(made.iter().sum::<u64>(), accesses);
            assert!(most - least <= threads as u64, "{threads} threads: {made:?}");
        }
    }

    #[test]
    fn a_program_ends_after_so_many_accesses() {
        let mut observer = Observer::default();
        let array = observer.array(vec![0u64; 100_000]);
        let kernel = Box::new(Sum { array, at: 0, total: 0 });
        let mut program = Program::new(kernel, observer, 5000);
        let (mut batch, mut count) = (Batch::default(), 0);
        while program.next(&mut batch).expect("no input can fail") {
            count += batch.accesses.len() as u64;
        }
        assert_eq!(count - program.initial(), 5000);
    }
}
