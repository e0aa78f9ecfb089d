//! `TeraSort`: data are generated, read and divided by their keys into files of the shuffle, and
//! these are read and merged into the result.

use super::Amount;
use super::queues::Queues;
use super::shapes::{self, Shapes};
use crate::kernel::{Call, Calls};

/// What a task has still to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Generate,
    Map,
    Reduce,
    Over,
}

#[derive(Debug)]
pub(super) struct TeraSort {
    shape: shapes::Spark,
    threads: usize,
    partitions: u64,
    partition: u64,
    /// Pages that a thread sorts in.
    pages: u64,
    queues: Queues,
    phase: Phase,
    /// The next task of the phase, and how many are done.
    next: u64,
    done: u64,
    /// The task of each thread, and how many blocks of it are done.
    tasks: Vec<Option<(u64, u64)>>,
    measuring: bool,
}

impl TeraSort {
    pub(super) fn new(shapes: &Shapes, amount: &Amount) -> Self {
        let threads = shapes.data.threads.value as usize;
        let block = shapes.spark.block.value.get();
        // TeraSort reads its data once and writes them twice; the input is a quarter of all that
        // is on the disk then. Half of Table 3's 40 GB is 20 GB of data.
        let input = amount.data.get() / 2;
        let partition = (shapes.spark.partition.value.get() / amount.scale).max(4 * block);
        let partition = partition.next_multiple_of(block);
        let partitions = (input / partition).max(threads as u64);
        Self {
            shape: shapes.spark.clone(),
            threads,
            partitions,
            partition,
            pages: (partition / 4096).max(1),
            queues: Queues::new(threads, amount.seed),
            phase: Phase::Generate,
            next: 0,
            done: 0,
            tasks: vec![None; threads],
            measuring: false,
        }
    }

    fn input(task: u64) -> u32 {
        task as u32
    }
    fn shuffle(&self, task: u64) -> u32 {
        (self.partitions + task) as u32
    }
    fn output(&self, task: u64) -> u32 {
        (2 * self.partitions + task) as u32
    }

    fn blocks(&self) -> u64 {
        self.partition / self.shape.block.value.get()
    }

    /// The thread works on records of a block.
    fn work(&mut self, thread: usize, block: u64, store: bool) {
        let pages = self.shape.block.value.get() / 4096;
        for page in 0..pages {
            let page = (block * pages + page) % self.pages;
            let page = (thread as u64 * self.pages + page) as u32;
            self.queues.push(thread, Call::Touch { page, lines: 64, store });
        }
        self.queues.compute(thread, self.shape.compute.value);
    }

    fn refill(&mut self, thread: usize) -> bool {
        if self.phase == Phase::Over {
            return false;
        }
        let Some((task, block)) = self.tasks[thread] else {
            if self.next < self.partitions {
                if self.phase != Phase::Generate && !self.measuring {
                    self.measuring = true;
                    self.queues.push(thread, Call::Measure);
                }
                self.begin(thread, self.next);
                self.tasks[thread] = Some((self.next, 0));
                self.next += 1;
            } else {
                // The others are not ready.
                self.queues.compute(thread, terrace_core::Nanos::micros(200));
            }
            return true;
        };
        if block < self.blocks() {
            self.go_on(thread, task, block);
            self.tasks[thread] = Some((task, block + 1));
            return true;
        }
        self.end(thread, task);
        self.tasks[thread] = None;
        self.done += 1;
        if self.done == self.partitions {
            (self.next, self.done) = (0, 0);
            self.phase = match self.phase {
                Phase::Generate => Phase::Map,
                Phase::Map => Phase::Reduce,
                Phase::Reduce | Phase::Over => Phase::Over,
            };
        }
        true
    }

    fn begin(&mut self, thread: usize, task: u64) {
        match self.phase {
            Phase::Generate => self.queues.push(thread, Call::Create { file: Self::input(task) }),
            Phase::Map => {
                self.queues.push(thread, Call::Open { file: Self::input(task) });
                self.queues.push(thread, Call::Create { file: self.shuffle(task) });
            }
            _ => self.queues.push(thread, Call::Create { file: self.output(task) }),
        }
    }

    fn go_on(&mut self, thread: usize, task: u64, block: u64) {
        let bytes = self.shape.block.value.get() as u32;
        let offset = block * u64::from(bytes);
        match self.phase {
            Phase::Generate => {
                self.work(thread, block, true);
                self.queues.push(thread, Call::Write { file: Self::input(task), offset, bytes });
            }
            Phase::Map => {
                self.queues.push(thread, Call::Read { file: Self::input(task), offset, bytes });
                self.work(thread, block, true);
                self.queues.push(thread, Call::Write { file: self.shuffle(task), offset, bytes });
            }
            _ => {
                // A block of what each map task wrote for this reducer.
                let from = (task * self.blocks() + block) % self.partitions;
                let file = self.shuffle(from);
                let at = (task + block * self.partitions) / self.partitions % self.blocks();
                self.queues.push(thread, Call::Open { file });
                let offset_in = at * u64::from(bytes);
                self.queues.push(thread, Call::Read { file, offset: offset_in, bytes });
                self.queues.push(thread, Call::Close { file });
                self.work(thread, block, true);
                self.queues.push(thread, Call::Write { file: self.output(task), offset, bytes });
            }
        }
        if self.phase != Phase::Generate {
            self.queues.push(thread, Call::Done);
        }
    }

    fn end(&mut self, thread: usize, task: u64) {
        match self.phase {
            Phase::Generate => self.queues.push(thread, Call::Close { file: Self::input(task) }),
            Phase::Map => {
                self.queues.push(thread, Call::Close { file: Self::input(task) });
                self.queues.push(thread, Call::Close { file: self.shuffle(task) });
            }
            _ => {
                self.queues.push(thread, Call::Fsync { file: self.output(task) });
                self.queues.push(thread, Call::Close { file: self.output(task) });
            }
        }
    }
}

impl Calls for TeraSort {
    fn name(&self) -> &'static str {
        "spark"
    }
    fn threads(&self) -> usize {
        self.threads
    }
    fn pages(&self) -> u32 {
        (self.pages * self.threads as u64) as u32
    }
    fn next(&mut self, thread: usize) -> Option<Call> {
        loop {
            if let Some(call) = self.queues.pop(thread) {
                return Some(call);
            }
            if !self.refill(thread) {
                return None;
            }
        }
    }
}
