//! Redis: instances behind sockets, each with its keys in memory, and checkpoints of them.

use terrace_core::Nanos;

use super::Amount;
use super::queues::{Queues, share};
use super::shapes::{self, Shapes};
use crate::kernel::{Call, Calls};

/// Bytes of a request or an answer without its value.
const HEADER: u32 = 64;

#[derive(Debug)]
pub(super) struct Redis {
    shape: shapes::Redis,
    instances: usize,
    /// Pages of an instance's keys.
    pages: u64,
    queues: Queues,
    loaded: Vec<u64>,
    left: Vec<u64>,
    /// Keys that were set since the last checkpoint, by instance.
    changes: Vec<u64>,
    /// The instance whose checkpoint is being written, and how far it is.
    saving: Option<(usize, u64)>,
    /// Numbers of each instance's checkpoint files.
    saved: Vec<Option<u32>>,
    next_file: u32,
    measuring: bool,
}

impl Redis {
    pub(super) fn new(shapes: &Shapes, amount: &Amount) -> Self {
        let instances = shapes.data.threads.value as usize;
        // The data set is what the checkpoints write; the keys are a third of it, as Table 3's
        // 14 GB are of 40.
        let pages = (amount.data.get() * 14 / 40 / 4096 / instances as u64).max(2);
        Self {
            shape: shapes.redis.clone(),
            instances,
            pages,
            queues: Queues::new(instances + 1, amount.seed),
            loaded: vec![0; instances],
            left: vec![amount.operations; instances],
            changes: vec![0; instances],
            saving: None,
            saved: vec![None; instances],
            next_file: 0,
            measuring: false,
        }
    }

    fn page(&self, instance: usize, page: u64) -> u32 {
        (instance as u64 * self.pages + page) as u32
    }

    fn serve(&mut self, instance: usize) -> bool {
        let socket = instance as u32;
        if self.loaded[instance] < self.pages {
            if self.loaded[instance] == 0 {
                self.queues.push(instance, Call::Accept { socket });
            }
            for _ in 0..64.min(self.pages - self.loaded[instance]) {
                let page = self.page(instance, self.loaded[instance]);
                self.queues.push(instance, Call::Touch { page, lines: 64, store: true });
                self.loaded[instance] += 1;
            }
            return true;
        }
        if !self.measuring {
            if self.loaded.iter().any(|&loaded| loaded < self.pages) {
                self.queues.compute(instance, Nanos::micros(100));
                return true;
            }
            self.measuring = true;
            self.queues.push(instance, Call::Measure);
        }
        if self.left[instance] == 0 {
            return false;
        }
        self.left[instance] -= 1;
        let set = self.queues.chance(self.shape.sets.value);
        let value = self.shape.value.value.get() as u32;
        let request = if set { HEADER + value } else { HEADER };
        let answer = if set { HEADER } else { HEADER + value };
        self.queues.push(instance, Call::Arrive { socket, bytes: request });
        self.queues.push(instance, Call::Epoll { socket });
        self.queues.push(instance, Call::Recv { socket });
        self.queues.compute(instance, self.shape.compute.value);
        // A bucket of the table, the entry, and the value.
        for _ in 0..2 {
            let page = self.queues.below(self.pages);
            let page = self.page(instance, page);
            self.queues.push(instance, Call::Touch { page, lines: 1, store: false });
        }
        let page = self.queues.below(self.pages);
        let page = self.page(instance, page);
        let lines = (value / 64).min(64) as u8;
        self.queues.push(instance, Call::Touch { page, lines, store: set });
        self.queues.push(instance, Call::Send { socket, bytes: answer });
        self.queues.push(instance, Call::Done);
        self.changes[instance] += u64::from(set);
        true
    }

    /// The process that writes checkpoints.
    fn save(&mut self) -> bool {
        let saver = self.instances;
        let Some((instance, done)) = self.saving else {
            if self.left.iter().all(|&left| left == 0) {
                return false;
            }
            let least = (self.pages as f64 * self.shape.saves_after.value) as u64;
            let due = (0..self.instances).find(|&i| self.changes[i] >= least.max(1));
            if let Some(instance) = due {
                self.changes[instance] = 0;
                self.saving = Some((instance, 0));
                self.queues.push(saver, Call::Create { file: self.next_file });
            } else {
                self.queues.compute(saver, Nanos::micros(100));
            }
            return true;
        };
        let file = self.next_file;
        if done < self.pages {
            let pages = 16.min(self.pages - done);
            for page in done..done + pages {
                let page = self.page(instance, page);
                self.queues.push(saver, Call::Touch { page, lines: 64, store: false });
            }
            let (offset, bytes) = (done * 4096, (pages * 4096) as u32);
            self.queues.push(saver, Call::Write { file, offset, bytes });
            self.saving = Some((instance, done + pages));
        } else {
            self.queues.push(saver, Call::Fsync { file });
            self.queues.push(saver, Call::Close { file });
            self.queues.push(saver, Call::Rename { file });
            if let Some(old) = self.saved[instance].replace(file) {
                self.queues.push(saver, Call::Unlink { file: old });
            }
            self.next_file += 1;
            self.saving = None;
        }
        true
    }
}

impl Calls for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }
    fn threads(&self) -> usize {
        self.instances + 1
    }
    fn pages(&self) -> u32 {
        share(self.pages * self.instances as u64, 1, 0).end as u32
    }
    fn next(&mut self, thread: usize) -> Option<Call> {
        loop {
            if let Some(call) = self.queues.pop(thread) {
                return Some(call);
            }
            let more = if thread < self.instances { self.serve(thread) } else { self.save() };
            if !more {
                return None;
            }
        }
    }
}
