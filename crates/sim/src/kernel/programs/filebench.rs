//! Filebench: each thread reads and writes blocks of a file of its own.

use super::Amount;
use super::queues::Queues;
use super::shapes::{self, Shapes};
use crate::kernel::{Call, Calls};

/// Bytes of a write while the files are made.
const FILL: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct Filebench {
    shape: shapes::Filebench,
    threads: usize,
    file_bytes: u64,
    queues: Queues,
    /// Bytes written so far while the file is made, by thread.
    filled: Vec<u64>,
    /// Where each thread's sequential blocks go on.
    position: Vec<u64>,
    left: Vec<u64>,
    measuring: bool,
}

impl Filebench {
    pub(super) fn new(shapes: &Shapes, amount: &Amount) -> Self {
        let threads = shapes.data.threads.value as usize;
        let block = shapes.filebench.block.value.get();
        let file_bytes = (amount.data.get() / threads as u64 / block).max(1) * block;
        Self {
            shape: shapes.filebench.clone(),
            threads,
            file_bytes,
            queues: Queues::new(threads, amount.seed),
            filled: vec![0; threads],
            position: vec![0; threads],
            left: vec![amount.operations; threads],
            measuring: false,
        }
    }

    fn refill(&mut self, thread: usize) -> bool {
        let file = thread as u32;
        if self.filled[thread] < self.file_bytes {
            let offset = self.filled[thread];
            let bytes = FILL.min(self.file_bytes - offset);
            if offset == 0 {
                self.queues.push(thread, Call::Create { file });
            }
            self.queues.push(thread, Call::Write { file, offset, bytes: bytes as u32 });
            self.filled[thread] += bytes;
            return true;
        }
        if !self.measuring {
            if self.filled.iter().any(|&filled| filled < self.file_bytes) {
                // The others are not ready.
                self.queues.compute(thread, terrace_core::Nanos::micros(100));
                return true;
            }
            self.measuring = true;
            self.queues.push(thread, Call::Measure);
        }
        if self.left[thread] == 0 {
            return false;
        }
        self.left[thread] -= 1;
        let block = self.shape.block.value.get();
        let offset = if self.queues.chance(self.shape.sequential.value) {
            let offset = self.position[thread];
            self.position[thread] = (offset + block) % self.file_bytes;
            offset
        } else {
            self.queues.below(self.file_bytes / block) * block
        };
        let bytes = block as u32;
        let pages = u64::from(self.shape.program_pages.value);
        let page = file * pages as u32 + self.queues.below(pages) as u32;
        let lines = self.shape.program_lines.value as u8;
        self.queues.push(thread, Call::Touch { page, lines, store: true });
        let read = self.queues.chance(self.shape.reads.value);
        self.queues.push(
            thread,
            if read {
                Call::Read { file, offset, bytes }
            } else {
                Call::Write { file, offset, bytes }
            },
        );
        self.queues.push(thread, Call::Done);
        true
    }
}

impl Calls for Filebench {
    fn name(&self) -> &'static str {
        "filebench"
    }
    fn threads(&self) -> usize {
        self.threads
    }
    fn pages(&self) -> u32 {
        self.threads as u32 * self.shape.program_pages.value
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
