//! A non-volatile module: a buffer in front of media that are slow, and slower
//! to write than to read.
//!
//! Without write combining and with one kept granule a partition it behaves as
//! gem5's `NVMInterface` (24.0): a read is started, waits for the media and is
//! fetched; a write occupies its partition for `tWRITE`. With write combining
//! it behaves as the published observations of Optane DC (Izraelevitz et al.,
//! arXiv 1903.05714; Yang et al., arXiv 1908.03583): writes gather in lines of
//! a granule, a full line is written at once, a line that must leave before it
//! is full is read, merged and written.

use std::collections::VecDeque;

use crate::file::NvmFile;
use crate::timing::{NvmCycles, READ, WRITE};

/// A request to the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct NvmRequest {
    pub(super) id: u64,
    pub(super) arrived: u64,
    pub(super) order: u64,
    pub(super) granule: u64,
    pub(super) column: u32,
}

/// What the module's part of the scheduler would send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NvmStep {
    /// Start the media for the oldest read.
    Start,
    /// Fetch the data of a started read: its index.
    Fetch(usize),
    /// Send the oldest write.
    Write,
}

/// A line of the combining buffer.
#[derive(Clone, Copy, Debug)]
struct Line {
    granule: u64,
    /// A bit for each burst that was written.
    written: u64,
    /// When the line can be used again; 0 while it gathers.
    free_at: u64,
    /// When it was last written, for choosing which line leaves.
    used: u64,
}

/// What the media did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediaCounts {
    /// Granules read for the host.
    pub reads: u64,
    /// Reads that the buffer served.
    pub buffered_reads: u64,
    /// Granules written.
    pub writes: u64,
    /// Granules read because only a part of them was written.
    pub merges: u64,
}

/// The module.
#[derive(Clone, Debug)]
pub(super) struct Nvm {
    pub(super) times: NvmCycles,
    partitions: usize,
    pending_reads: usize,
    pending_writes: usize,
    combining: bool,
    full_line: u64,
    /// Reads that wait to be started.
    pub(super) waiting: VecDeque<NvmRequest>,
    /// Reads that the media work on or have finished, with the time.
    pub(super) started: Vec<(u64, NvmRequest)>,
    /// Writes that wait.
    pub(super) writes: VecDeque<NvmRequest>,
    busy: Vec<u64>,
    last: Vec<u64>,
    buffer: VecDeque<u64>,
    buffer_size: usize,
    lines: Vec<Line>,
    /// When each buffered write is on the media (without combining), ascending.
    finishing: Vec<u64>,
    /// Earliest time of the next column command, by direction.
    pub(super) column_ready: [u64; 2],
    pub(super) media: MediaCounts,
}

impl Nvm {
    pub(super) fn new(file: &NvmFile, times: NvmCycles, burst_bytes: u64) -> Self {
        let columns = file.granularity.value.get() / burst_bytes;
        let partitions = file.partitions.value as usize;
        Self {
            times,
            partitions,
            pending_reads: file.pending_reads.value as usize,
            pending_writes: file.pending_writes.value as usize,
            combining: file.write_combining.value == 1,
            full_line: if columns >= 64 { u64::MAX } else { (1 << columns) - 1 },
            waiting: VecDeque::new(),
            started: Vec::new(),
            writes: VecDeque::new(),
            busy: vec![0; partitions],
            last: vec![u64::MAX; partitions],
            buffer: VecDeque::new(),
            buffer_size: file.read_buffer.value as usize,
            lines: Vec::new(),
            finishing: Vec::new(),
            column_ready: [0; 2],
            media: MediaCounts::default(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.started.is_empty() && self.writes.is_empty()
    }

    /// Whether a write to this burst waits.
    pub(super) fn holds_write(&self, granule: u64, column: u32) -> bool {
        self.writes.iter().any(|w| (w.granule, w.column) == (granule, column))
    }

    /// The command that may go first, and when: in write mode writes, else
    /// reads. Reads are started in both.
    pub(super) fn next(&self, direction: usize) -> Option<(u64, NvmStep)> {
        let mut best: Option<(u64, NvmStep)> = None;
        let mut offer = |at: u64, step: NvmStep| {
            if best.is_none_or(|(other, _)| at < other) {
                best = Some((at, step));
            }
        };
        if direction == WRITE {
            if let Some(write) = self.writes.front() {
                offer(self.column_ready[WRITE].max(self.slot_free(write)), NvmStep::Write);
            }
        } else {
            let ready = self.started.iter().enumerate().min_by_key(|(_, (at, r))| (*at, r.order));
            if let Some((index, (at, _))) = ready {
                offer(self.column_ready[READ].max(*at), NvmStep::Fetch(index));
            }
        }
        if !self.waiting.is_empty() && self.started.len() < self.pending_reads {
            offer(0, NvmStep::Start);
        }
        best
    }

    /// When the buffer can take a write.
    fn slot_free(&self, write: &NvmRequest) -> u64 {
        if !self.combining {
            let over = self.finishing.len().checked_sub(self.pending_writes);
            return over.map_or(0, |i| self.finishing[i]);
        }
        let gathers = |line: &&Line| line.granule == write.granule && line.free_at == 0;
        if self.lines.len() < self.pending_writes || self.lines.iter().any(|l| gathers(&l)) {
            return 0;
        }
        self.lines.iter().map(|l| l.free_at).filter(|&at| at > 0).min().unwrap_or(0)
    }

    fn partition(&self, granule: u64) -> usize {
        (granule % self.partitions as u64) as usize
    }

    /// Starts the oldest read's access to the media.
    pub(super) fn start(&mut self, at: u64) -> NvmRequest {
        let request = self.waiting.pop_front().expect("`next` offered it");
        let partition = self.partition(request.granule);
        let ready = if self.is_buffered(request.granule, partition) {
            self.media.buffered_reads += 1;
            // Without a buffer of its own the granule sits in the partition,
            // which must finish what it is doing.
            if self.buffer_size == 0 { at.max(self.busy[partition]) } else { at }
        } else {
            self.media.reads += 1;
            let begin = at.max(self.busy[partition]);
            self.busy[partition] = begin + self.times.read_cycle;
            self.keep(request.granule, partition);
            begin + self.times.read
        };
        self.started.push((ready, request));
        request
    }

    fn is_buffered(&mut self, granule: u64, partition: usize) -> bool {
        if self.combining
            && self.lines.iter().any(|l| l.granule == granule && l.written == self.full_line)
        {
            return true;
        }
        if self.buffer_size == 0 {
            return self.last[partition] == granule;
        }
        let Some(index) = self.buffer.iter().position(|g| *g == granule) else { return false };
        self.buffer.remove(index);
        self.buffer.push_back(granule);
        true
    }

    fn keep(&mut self, granule: u64, partition: usize) {
        self.last[partition] = granule;
        if self.buffer_size > 0 {
            if self.buffer.len() == self.buffer_size {
                self.buffer.pop_front();
            }
            self.buffer.push_back(granule);
        }
    }

    /// Takes the data of a started read.
    pub(super) fn fetch(&mut self, index: usize) -> NvmRequest {
        self.started.swap_remove(index).1
    }

    /// Puts the oldest write into the buffer; its data are there at `arrives`.
    pub(super) fn write(&mut self, at: u64, arrives: u64) -> NvmRequest {
        let request = self.writes.pop_front().expect("`next` offered it");
        if self.combining {
            self.combine(request, at, arrives);
            return request;
        }
        let partition = self.partition(request.granule);
        let done = self.busy[partition].max(arrives) + self.times.write;
        self.busy[partition] = done;
        self.last[partition] = request.granule;
        self.media.writes += 1;
        self.finishing.retain(|&time| time > at);
        let place = self.finishing.partition_point(|&time| time <= done);
        self.finishing.insert(place, done);
        request
    }

    fn combine(&mut self, request: NvmRequest, at: u64, arrives: u64) {
        let bit = 1 << request.column;
        self.lines.retain(|line| line.free_at == 0 || line.free_at > at);
        let gathers =
            self.lines.iter().position(|l| l.granule == request.granule && l.free_at == 0);
        let index = gathers.unwrap_or_else(|| {
            self.lines.push(Line { granule: request.granule, written: 0, free_at: 0, used: 0 });
            self.lines.len() - 1
        });
        let line = &mut self.lines[index];
        line.written |= bit;
        line.used = request.order;
        if line.written == self.full_line {
            self.evict(index, arrives);
        }
        // A quarter of the lines is kept for those that leave: enough for all
        // partitions to be busy, whichever lines these fall to.
        let gathering = self.lines.iter().filter(|l| l.free_at == 0).count();
        if gathering > self.pending_writes - self.pending_writes / 4 {
            let oldest = (0..self.lines.len())
                .filter(|&i| self.lines[i].free_at == 0)
                .min_by_key(|&i| self.lines[i].used);
            if let Some(oldest) = oldest {
                self.evict(oldest, arrives);
            }
        }
    }

    /// Writes a line to the media.
    fn evict(&mut self, index: usize, at: u64) {
        let line = self.lines[index];
        let partition = self.partition(line.granule);
        // A merge's read is taken as done while the line gathered: published
        // bandwidth below 256 B falls in proportion to size (Yang et al.),
        // which leaves no room for a cost beyond the amplification.
        self.media.merges += u64::from(line.written != self.full_line);
        let done = self.busy[partition].max(at) + self.times.write;
        self.media.writes += 1;
        self.busy[partition] = done;
        self.lines[index].free_at = done;
    }

    /// A column command of this module was sent.
    pub(super) fn column(&mut self, direction: usize, at: u64) {
        for next in [READ, WRITE] {
            let ready = at + self.times.column_gap(direction, next);
            self.column_ready[next] = self.column_ready[next].max(ready);
        }
    }

    /// The data bus is in use by DRAM until a cycle.
    pub(super) fn data_bus_taken(&mut self, until: u64) {
        let limit = until.saturating_sub(self.times.send);
        for ready in &mut self.column_ready {
            *ready = (*ready).max(limit);
        }
    }
}
