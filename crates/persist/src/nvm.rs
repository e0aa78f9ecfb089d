//! What is where in non-volatile memory: a header, two contexts, a log, the
//! allocator's bitmap, a list, and frames.

use crate::fault::Fault;
use crate::pmem::{Persist, Pmem};

/// Says that this memory was formatted: a word of ours.
pub const MAGIC: u64 = 0x5465_7272_6163_6531;

/// Where things lie, in bytes.
pub mod layout {
    /// Magic, number of the last complete checkpoint, root of the tables, life.
    pub const HEADER: u64 = 0;
    /// Two contexts, used in turn.
    pub const CONTEXT: [u64; 2] = [1 << 16, 2 << 16];
    /// Bytes of one context.
    pub const CONTEXT_BYTES: u64 = 1 << 16;
    /// The log.
    pub const LOG: u64 = 1 << 20;
    /// Records that the log holds.
    pub const LOG_RECORDS: u64 = 1 << 18;
    /// The bitmap of frames.
    pub const BITMAP: u64 = 16 << 20;
    /// The published scheme's list of mappings.
    pub const LIST: u64 = 64 << 20;
    /// What shadow paging knows of each frame: a line each.
    pub const SHADOWS: u64 = 128 << 20;
    /// The log of data or of their bitmaps, for schemes that bring data back.
    pub const DATA_LOG: u64 = 256 << 20;
    /// Records that it holds.
    pub const DATA_LOG_RECORDS: u64 = 1 << 20;
    /// The frames.
    pub const FRAMES: u64 = 1 << 30;
}

/// A page frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame(pub u64);

impl Frame {
    /// Its first byte.
    pub fn address(self) -> u64 {
        layout::FRAMES + self.0 * 4096
    }
}

/// Memory, frames and log: what persistence schemes work with.
#[derive(Debug)]
pub struct Nvm {
    /// The memory.
    pub pmem: Pmem,
    /// Which frames are in use.
    pub frames: Frames,
    /// The log.
    pub log: Log,
}

impl Nvm {
    /// Formats a memory of `frames` frames.
    pub fn format(mut pmem: Pmem, frames: u64) -> Persist<Self> {
        let frames = Frames::format(&mut pmem, frames);
        pmem.store(layout::HEADER + 8, 0);
        pmem.store(layout::HEADER + 16, 0);
        pmem.store(layout::HEADER + 24, 1);
        pmem.store(layout::HEADER + 32, 0);
        pmem.flush(layout::HEADER);
        pmem.store(layout::LIST, 0);
        pmem.flush(layout::LIST);
        pmem.fence()?;
        pmem.persist(layout::HEADER, MAGIC)?;
        Ok(Self { pmem, frames, log: Log::new(layout::LOG, layout::LOG_RECORDS, 1) })
    }

    /// Takes a memory after a failure; `None` if it was never formatted.
    pub fn recover(mut pmem: Pmem, frames: u64) -> Option<Self> {
        if pmem.load(layout::HEADER) != MAGIC {
            return None;
        }
        let frames = Frames::read(&mut pmem, frames);
        let life = pmem.load(layout::HEADER + 24);
        Some(Self { pmem, frames, log: Log::new(layout::LOG, layout::LOG_RECORDS, life) })
    }

    /// Recovery is complete: what is in the log belongs to a life that is over.
    /// Without this, records that a failure left behind would be taken for
    /// those of a later checkpoint with the same number.
    pub fn begin_life(&mut self) -> Persist {
        self.log.life += 1;
        self.log.length = 0;
        self.pmem.persist(layout::HEADER + 24, self.log.life)
    }

    /// The number of the last complete checkpoint; 0 before the first.
    pub fn epoch(&mut self) -> u64 {
        self.pmem.load(layout::HEADER + 8)
    }

    /// Completes a checkpoint: one aligned store decides.
    pub fn commit(&mut self, epoch: u64) -> Persist {
        self.pmem.persist(layout::HEADER + 8, epoch)
    }

    /// The last checkpoint whose data log needs no second reading.
    pub fn applied(&mut self) -> u64 {
        self.pmem.load(layout::HEADER + 32)
    }

    /// What the data log of a checkpoint says is done: from now on it may be
    /// undone by what comes later.
    pub fn set_applied(&mut self, epoch: u64) -> Persist {
        self.pmem.persist(layout::HEADER + 32, epoch)
    }

    /// The root of the tables, 0 if there is none.
    pub fn root(&mut self) -> u64 {
        self.pmem.load(layout::HEADER + 16)
    }

    /// Sets the root.
    pub fn set_root(&mut self, entry: u64) -> Persist {
        self.pmem.persist(layout::HEADER + 16, entry)
    }

    /// Makes a line of data durable before the next fence.
    pub fn flush_data(&mut self, address: u64) {
        let hits = !self.pmem.has_fault(Fault::WrongDataFlush);
        self.pmem.flush(if hits { address } else { layout::FRAMES - 64 });
    }

    /// Makes a line of metadata durable before the next fence.
    pub fn flush_metadata(&mut self, address: u64) {
        // The seeded fault writes the caller's stack back instead.
        let hits = !self.pmem.has_fault(Fault::WrongFlush);
        self.pmem.flush(if hits { address } else { layout::FRAMES - 64 });
    }
}

/// The allocator: a bitmap in non-volatile memory, with a copy in DRAM.
#[derive(Clone, Debug)]
pub struct Frames {
    words: Vec<u64>,
    next: u64,
    count: u64,
}

impl Frames {
    fn format(pmem: &mut Pmem, count: u64) -> Self {
        let words = vec![0; count.div_ceil(64) as usize];
        for (i, word) in words.iter().enumerate() {
            pmem.store(layout::BITMAP + i as u64 * 8, *word);
            pmem.flush(layout::BITMAP + i as u64 * 8);
        }
        Self { words, next: 0, count }
    }

    fn read(pmem: &mut Pmem, count: u64) -> Self {
        let words = (0..count.div_ceil(64)).map(|i| pmem.load(layout::BITMAP + i * 8)).collect();
        Self { words, next: 0, count }
    }

    fn write(&mut self, pmem: &mut Pmem, frame: Frame, used: bool) {
        let (word, bit) = ((frame.0 / 64) as usize, 1 << (frame.0 % 64));
        if used {
            self.words[word] |= bit;
        } else {
            self.words[word] &= !bit;
        }
        let address = layout::BITMAP + word as u64 * 8;
        pmem.store(address, self.words[word]);
        if !pmem.has_fault(Fault::BitmapNotPersisted) {
            pmem.flush(address);
        }
    }

    /// Takes a frame. It is durably taken after the next fence, which must come
    /// before anything that points to it is durable.
    ///
    /// Panics if there is none left.
    pub fn allocate(&mut self, pmem: &mut Pmem) -> Frame {
        let free = |frame: &u64| self.words[(frame / 64) as usize] & (1 << (frame % 64)) == 0;
        let frame = (self.next..self.count)
            .chain(0..self.next)
            .find(free)
            .map(Frame)
            .expect("non-volatile memory is full");
        self.next = frame.0 + 1;
        self.write(pmem, frame, true);
        frame
    }

    /// Gives a frame back; durable after the next fence.
    pub fn release(&mut self, pmem: &mut Pmem, frame: Frame) {
        self.write(pmem, frame, false);
        // The next allocation may take it at once: reuse is where mistakes show.
        self.next = self.next.min(frame.0);
    }

    /// Whether a frame is taken.
    pub fn is_used(&self, frame: Frame) -> bool {
        frame.0 < self.count && self.words[(frame.0 / 64) as usize] & (1 << (frame.0 % 64)) != 0
    }

    /// Gives back frames that nothing points to: what was allocated when the
    /// power failed, but not yet used.
    pub fn sweep(&mut self, pmem: &mut Pmem, reachable: &[Frame]) {
        let mut keep = vec![0u64; self.words.len()];
        for frame in reachable.iter().filter(|frame| frame.0 < self.count) {
            keep[(frame.0 / 64) as usize] |= 1 << (frame.0 % 64);
        }
        for (i, keep) in keep.iter().enumerate() {
            if self.words[i] & !keep != 0 {
                self.words[i] &= keep;
                pmem.store(layout::BITMAP + i as u64 * 8, self.words[i]);
                pmem.flush(layout::BITMAP + i as u64 * 8);
            }
        }
    }
}

/// A log of pairs (page and entry, or frame and bitmap, or address and value)
/// that belong to one epoch. A record lies in one line and ends with a check of
/// itself, so it is there as a whole or not at all; a record of another epoch,
/// or of a life before a failure, is no record.
#[derive(Clone, Debug)]
pub struct Log {
    base: u64,
    capacity: u64,
    length: u64,
    life: u64,
}

/// A record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// The page, or what else the record is about.
    pub page: u64,
    /// Its entry, or what else there is to say of it.
    pub entry: u64,
}

impl Log {
    /// A log of so many records at an address, in a life.
    pub fn new(base: u64, capacity: u64, life: u64) -> Self {
        Self { base, capacity, length: 0, life }
    }

    /// The life that its records belong to.
    pub fn life(&self) -> u64 {
        self.life
    }

    fn check(&self, epoch: u64, index: u64, record: LogRecord) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for word in [self.life, epoch, index, record.page, record.entry] {
            hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
        hash
    }

    /// Appends a record; durable after the next fence.
    ///
    /// Panics if the log is full; see [`Log::is_full`].
    pub fn append(&mut self, pmem: &mut Pmem, epoch: u64, record: LogRecord) {
        assert!(!self.is_full(), "the log is full");
        let address = self.base + self.length * 32;
        pmem.store(address, epoch);
        pmem.store(address + 8, record.page);
        pmem.store(address + 16, record.entry);
        pmem.store(address + 24, self.check(epoch, self.length, record));
        pmem.flush(address);
        self.length += 1;
    }

    /// Whether a checkpoint must come before the next record.
    pub fn is_full(&self) -> bool {
        self.length >= self.capacity
    }

    /// Begins anew, for the next epoch.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// The durable records of an epoch, in order.
    pub fn read(&self, pmem: &mut Pmem, epoch: u64) -> Vec<LogRecord> {
        let mut records = Vec::new();
        for index in 0..self.capacity {
            let address = self.base + index * 32;
            let record = LogRecord { page: pmem.load(address + 8), entry: pmem.load(address + 16) };
            let valid = pmem.load(address) == epoch
                && pmem.load(address + 24) == self.check(epoch, index, record);
            if !valid {
                break;
            }
            records.push(record);
        }
        records
    }
}
