//! Log-structured merge trees: a buffer of new entries with a log, tables on the disk, and a
//! thread that writes buffers to tables and merges tables.

use std::collections::{BTreeSet, VecDeque};

use terrace_core::Nanos;

use super::Amount;
use super::queues::{Queues, share};
use super::shapes::{self, Shapes};
use crate::kernel::{Call, Calls};

/// Bytes of a read or write while tables are made and merged.
const CHUNK: u64 = 64 << 10;
/// Bytes of a block of a table (`block_size`, `RocksDB`'s default).
const BLOCK: u64 = 4 << 10;
/// Tables of the first level that are merged (`level0_file_num_compaction_trigger`).
const MERGED: usize = 4;
/// So many make writers wait (`level0_slowdown_writes_trigger`).
const TOO_MANY: usize = 20;
/// Tables of the next level in a merge: each level is ten times as large as the one before
/// (`max_bytes_for_level_multiplier`).
const OVERLAP: usize = 10;
/// Bytes of a request or an answer without its value.
const HEADER: u32 = 64;

/// What the background thread is doing.
#[derive(Debug)]
enum Job {
    /// Writes a full buffer to a table.
    Flush { log: u32, table: u32 },
    /// Merges tables into others.
    Merge { inputs: Vec<u32>, outputs: Vec<u32> },
}

/// More than 20 fields: a tree's files (made, fresh, sorted, obsolete, open, its log) change
/// together with each job of the background thread and each thread's operation, and its shape is
/// worked out once.
#[derive(Debug)]
pub(super) struct Lsm {
    name: &'static str,
    shape: shapes::Lsm,
    behind_sockets: bool,
    threads: usize,
    tables: u64,
    table_bytes: u64,
    buffer_bytes: u64,
    buffer_pages: u64,
    cache_pages: u64,
    queues: Queues,
    /// Tables made so far of each thread's share.
    made: Vec<u64>,
    left: Vec<u64>,
    /// Whether each thread's socket is open.
    accepted: Vec<bool>,
    fresh: Vec<u32>,
    sorted: Vec<u32>,
    /// Tables that were merged, and logs of buffers that were written; they are deleted when nobody reads them.
    obsolete: Vec<u32>,
    /// Tables that are kept open, used last at the end.
    open: VecDeque<u32>,
    is_open: BTreeSet<u32>,
    most_open: usize,
    /// The table that a thread's operation reads, or the log that it writes.
    pinned: Vec<Option<u32>>,
    /// Position of each thread's sequential reads: table and block.
    position: Vec<(usize, u64)>,
    log: Option<u32>,
    log_bytes: u64,
    /// Logs of full buffers.
    full: VecDeque<u32>,
    job: Option<Job>,
    next_file: u32,
    measuring: bool,
}

impl Lsm {
    pub(super) fn rocksdb(shapes: &Shapes, amount: &Amount) -> Self {
        // Its block cache holds 8 MiB of 40 GB.
        let cache = (8 << 20) / amount.scale;
        Self::new("rocksdb", &shapes.rocksdb, false, cache, shapes, amount)
    }

    pub(super) fn cassandra(shapes: &Shapes, amount: &Amount) -> Self {
        // KLOCs, section 7.1: a cache of 512MB.
        let cache = (512 << 20) / amount.scale;
        Self::new("cassandra", &shapes.cassandra, true, cache, shapes, amount)
    }

    fn new(
        name: &'static str,
        shape: &shapes::Lsm,
        behind_sockets: bool,
        cache_bytes: u64,
        shapes: &Shapes,
        amount: &Amount,
    ) -> Self {
        let threads = shapes.data.threads.value as usize;
        // Never fewer than 64 tables, or there would be no levels.
        let table_bytes = (shape.file.value.get().min(amount.data.get() / 64) / CHUNK).max(1);
        let table_bytes = table_bytes * CHUNK;
        let tables = (amount.data.get() / table_bytes).max(threads as u64);
        let buffer_bytes = (shape.write_buffer.value.get() / amount.scale).max(table_bytes);
        let most_open = ((tables as f64 * shape.open_files.value) as usize).max(2);
        Self {
            name,
            shape: shape.clone(),
            behind_sockets,
            threads,
            tables,
            table_bytes,
            buffer_bytes,
            buffer_pages: buffer_bytes.div_ceil(4096),
            cache_pages: cache_bytes.div_ceil(4096).max(threads as u64),
            queues: Queues::new(threads + 1, amount.seed),
            made: vec![0; threads],
            left: vec![amount.operations; threads],
            accepted: vec![false; threads],
            fresh: Vec::new(),
            sorted: (0..tables as u32).collect(),
            obsolete: Vec::new(),
            open: VecDeque::new(),
            is_open: BTreeSet::new(),
            most_open,
            pinned: vec![None; threads],
            position: vec![(0, 0); threads],
            log: None,
            log_bytes: 0,
            full: VecDeque::new(),
            job: None,
            next_file: tables as u32,
            measuring: false,
        }
    }

    fn new_file(&mut self) -> u32 {
        self.next_file += 1;
        self.next_file - 1
    }

    fn make_table(&mut self, thread: usize, file: u32, sync: bool) {
        self.queues.push(thread, Call::Create { file });
        self.write_table(thread, file);
        if sync {
            self.queues.push(thread, Call::Fsync { file });
        }
        self.queues.push(thread, Call::Close { file });
    }

    fn write_table(&mut self, thread: usize, file: u32) {
        for offset in (0..self.table_bytes).step_by(CHUNK as usize) {
            self.queues.push(thread, Call::Write { file, offset, bytes: CHUNK as u32 });
        }
    }

    // --- the threads that serve -------------------------------------------------

    fn serve(&mut self, thread: usize) -> bool {
        self.pinned[thread] = None;
        let own = share(self.tables, self.threads as u64, thread as u64);
        if self.made[thread] < own.end - own.start {
            let file = (own.start + self.made[thread]) as u32;
            self.make_table(thread, file, false);
            self.made[thread] += 1;
            return true;
        }
        if !self.measuring {
            if self.made.iter().sum::<u64>() < self.tables {
                self.queues.compute(thread, Nanos::micros(100));
                return true;
            }
            self.measuring = true;
            let log = self.new_file();
            self.log = Some(log);
            self.is_open.insert(log);
            self.queues.push(thread, Call::Create { file: log });
            self.queues.push(thread, Call::Measure);
            return true;
        }
        if self.behind_sockets && !core::mem::replace(&mut self.accepted[thread], true) {
            // Alone: what an operation opens must be its first call.
            self.queues.push(thread, Call::Accept { socket: thread as u32 });
            return true;
        }
        if self.left[thread] == 0 {
            return false;
        }
        if self.fresh.len() > TOO_MANY || self.full.len() > 2 {
            self.queues.compute(thread, Nanos::micros(100));
            return true;
        }
        self.left[thread] -= 1;
        let read = self.queues.chance(self.shape.reads.value);
        let table = if read { self.table_to_read(thread) } else { None };
        if let Some((file, _)) = table {
            self.have_open(thread, file);
        }
        let value = self.shape.value.value.get();
        let socket = thread as u32;
        if self.behind_sockets {
            let bytes = HEADER + if read { 0 } else { value as u32 };
            self.queues.push(thread, Call::Arrive { socket, bytes });
            self.queues.push(thread, Call::Epoll { socket });
            self.queues.push(thread, Call::Recv { socket });
        }
        self.queues.compute(thread, self.shape.compute.value);
        // Down the buffer's skip list.
        for _ in 0..self.shape.lookup_pages.value {
            let page = self.queues.below(self.buffer_pages) as u32;
            self.queues.push(thread, Call::Touch { page, lines: 1, store: false });
        }
        if let Some((file, offset)) = table {
            self.queues.push(thread, Call::Read { file, offset, bytes: BLOCK as u32 });
        } else if read {
            let page = self.buffer_pages + self.queues.below(self.cache_pages);
            let lines = (value / 64).min(64) as u8;
            self.queues.push(thread, Call::Touch { page: page as u32, lines, store: false });
        } else {
            self.put(thread, value);
        }
        if self.behind_sockets {
            let bytes = HEADER + if read { value as u32 } else { 0 };
            self.queues.push(thread, Call::Send { socket, bytes });
        }
        self.queues.push(thread, Call::Done);
        true
    }

    /// The table and the offset that a look-up reads; nothing if it finds its block in memory.
    fn table_to_read(&mut self, thread: usize) -> Option<(u32, u64)> {
        if self.queues.chance(self.shape.cache_hits.value) {
            return None;
        }
        let blocks = self.table_bytes / BLOCK;
        if self.shape.sequential.value > 0.0 && self.queues.chance(self.shape.sequential.value) {
            let (mut table, mut block) = self.position[thread];
            if block >= blocks || table >= self.sorted.len() {
                table = self.queues.below(self.sorted.len() as u64) as usize;
                block = 0;
            }
            self.position[thread] = (table, block + 1);
            return Some((self.sorted[table], block * BLOCK));
        }
        let all = (self.sorted.len() + self.fresh.len()) as u64;
        let number = self.queues.below(all) as usize;
        let file = match self.sorted.get(number) {
            Some(&file) => file,
            None => self.fresh[number - self.sorted.len()],
        };
        Some((file, self.queues.below(blocks) * BLOCK))
    }

    /// A table is open and stays so while the operation lasts. These are the operation's first
    /// calls: no other thread's come between them and what this notes.
    fn have_open(&mut self, thread: usize, file: u32) {
        self.pinned[thread] = Some(file);
        if self.is_open.insert(file) {
            self.queues.push(thread, Call::Open { file });
        } else {
            self.open.retain(|&other| other != file);
        }
        self.open.push_back(file);
        if self.open.len() > self.most_open
            && let Some(place) = self.open.iter().position(|f| !self.pinned.contains(&Some(*f)))
            && let Some(oldest) = self.open.remove(place)
        {
            self.is_open.remove(&oldest);
            self.queues.push(thread, Call::Close { file: oldest });
        }
    }

    /// An entry goes into the log and the buffer.
    fn put(&mut self, thread: usize, value: u64) {
        let Some(file) = self.log else { return };
        self.pinned[thread] = Some(file);
        let (offset, bytes) = (self.log_bytes, value as u32);
        self.queues.push(thread, Call::Write { file, offset, bytes });
        let page = (self.log_bytes / 4096 % self.buffer_pages) as u32;
        let lines = (value / 64).clamp(1, 64) as u8;
        self.queues.push(thread, Call::Touch { page, lines, store: true });
        self.log_bytes += value;
        if self.log_bytes >= self.buffer_bytes {
            let new = self.new_file();
            // Before another thread writes it.
            self.queues.push_first(thread, Call::Create { file: new });
            self.is_open.insert(new);
            self.full.push_back(file);
            (self.log, self.log_bytes) = (Some(new), 0);
        }
    }

    // --- the background thread ---------------------------------------------------

    fn maintain(&mut self) -> bool {
        let thread = self.threads;
        match self.job.take() {
            Some(Job::Flush { log, table }) => {
                self.obsolete.push(log);
                self.fresh.push(table);
            }
            Some(Job::Merge { inputs, outputs }) => {
                self.fresh.retain(|file| !inputs.contains(file));
                self.sorted.retain(|file| !inputs.contains(file));
                self.sorted.extend(outputs);
                self.obsolete.extend(inputs);
            }
            None => {}
        }
        self.delete_obsolete(thread);
        if self.left.iter().all(|&left| left == 0) {
            return self.queues.has(thread);
        }
        if let Some(log) = self.full.pop_front() {
            let table = self.new_file();
            for page in 0..self.buffer_pages as u32 {
                self.queues.push(thread, Call::Touch { page, lines: 64, store: false });
            }
            self.make_table(thread, table, true);
            self.job = Some(Job::Flush { log, table });
        } else if self.fresh.len() >= MERGED && !self.sorted.is_empty() {
            self.merge(thread);
        } else {
            self.queues.compute(thread, Nanos::micros(100));
        }
        true
    }

    fn merge(&mut self, thread: usize) {
        let overlap = OVERLAP.min(self.sorted.len());
        let first = self.queues.below((self.sorted.len() - overlap + 1) as u64) as usize;
        let mut inputs: Vec<u32> = self.fresh[..MERGED].to_vec();
        inputs.extend(&self.sorted[first..first + overlap]);
        // What was written again replaces what was there.
        let outputs: Vec<u32> = (0..overlap).map(|_| self.new_file()).collect();
        for (number, &file) in inputs.iter().enumerate() {
            self.queues.push(thread, Call::Open { file });
            for offset in (0..self.table_bytes).step_by(CHUNK as usize) {
                self.queues.push(thread, Call::Read { file, offset, bytes: CHUNK as u32 });
            }
            self.queues.push(thread, Call::Close { file });
            if let Some(&output) = outputs.get(number) {
                self.make_table(thread, output, true);
            }
        }
        self.job = Some(Job::Merge { inputs, outputs });
    }

    fn delete_obsolete(&mut self, thread: usize) {
        let pinned: BTreeSet<u32> = self.pinned.iter().flatten().copied().collect();
        let (kept, gone): (Vec<u32>, Vec<u32>) =
            self.obsolete.iter().partition(|file| pinned.contains(file));
        self.obsolete = kept;
        for file in gone {
            if self.is_open.remove(&file) {
                self.open.retain(|&other| other != file);
                self.queues.push(thread, Call::Close { file });
            }
            self.queues.push(thread, Call::Unlink { file });
        }
    }
}

impl Calls for Lsm {
    fn name(&self) -> &'static str {
        self.name
    }
    fn threads(&self) -> usize {
        self.threads + 1
    }
    fn pages(&self) -> u32 {
        (self.buffer_pages + self.cache_pages) as u32
    }
    fn next(&mut self, thread: usize) -> Option<Call> {
        loop {
            if let Some(call) = self.queues.pop(thread) {
                return Some(call);
            }
            let more = if thread < self.threads { self.serve(thread) } else { self.maintain() };
            if !more {
                return None;
            }
        }
    }
}
