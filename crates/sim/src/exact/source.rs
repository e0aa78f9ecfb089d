//! Where accesses come from: batches of one thread each, with what the program
//! did to its address space in between.

use terrace_core::Xorshift;

use super::access::Access;
use crate::error::SimError;
use crate::trace::{IoRecord, Summary};

/// What happened to the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceEvent {
    /// Memory was mapped.
    Map {
        /// First address.
        start: u64,
        /// How many bytes.
        len: u64,
    },
    /// Memory was unmapped.
    Unmap {
        /// First address.
        start: u64,
        /// How many bytes.
        len: u64,
    },
}

/// Where mapped memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Anonymous memory.
    Anonymous,
    /// Address space that is only reserved.
    Reserved,
    /// A file.
    File,
    /// The heap grew.
    Heap,
}

/// A part of the program's own file, mapped before its first instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// First address.
    pub start: u64,
    /// How many bytes; of data, with the zeros behind what is in the file.
    pub len: u64,
    /// The file.
    pub path: String,
    /// Whether it is data.
    pub writable: bool,
}

/// Accesses of one thread, in order, after what happened before them.
///
/// How long a batch is means nothing. Batches of several threads may come in any
/// order in which every thread that is at work comes again within about as many
/// batches as there are threads; the threads run at the same time.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// How many threads, this one among them, wait at a barrier before anything
    /// else; 0 for none.
    pub barrier: u32,
    /// What happened to the address space before the first access.
    pub events: Vec<SpaceEvent>,
    /// What was mapped, where a recorder tells: the event's number, and its origin.
    pub origins: Vec<(usize, Origin)>,
    /// Parts of the program's own file that became known before the first access.
    pub images: Vec<Image>,
    /// What the thread asked the kernel for before the first access, after what happened to the
    /// address space.
    pub io: Vec<IoRecord>,
    /// Which thread.
    pub thread: u32,
    /// Its accesses.
    pub accesses: Vec<Access>,
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.events.clear();
        self.origins.clear();
        self.images.clear();
        self.io.clear();
        self.accesses.clear();
        self.barrier = 0;
        self.thread = 0;
    }
}

/// A stream of accesses.
pub trait Source {
    /// What it is, in a phrase.
    fn describe(&self) -> String;

    /// Replaces a batch's content by what comes next; false at the end.
    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError>;

    /// Whether threads take turns of any length, so that a thread which does not come for long may
    /// still be at work: what other tools recorded.
    fn has_long_turns(&self) -> bool {
        false
    }

    /// What was read up to now, and what of it was skipped, dropped or folded;
    /// nothing for what is generated here.
    fn summary(&self) -> Option<Summary> {
        None
    }
}

impl Source for Box<dyn Source + '_> {
    fn describe(&self) -> String {
        (**self).describe()
    }
    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        (**self).next(batch)
    }
    fn has_long_turns(&self) -> bool {
        (**self).has_long_turns()
    }
    fn summary(&self) -> Option<Summary> {
        (**self).summary()
    }
}

impl Source for &mut dyn Source {
    fn describe(&self) -> String {
        (**self).describe()
    }
    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        (**self).next(batch)
    }
    fn has_long_turns(&self) -> bool {
        (**self).has_long_turns()
    }
    fn summary(&self) -> Option<Summary> {
        (**self).summary()
    }
}

/// Accesses a batch of the generators.
const BATCH: usize = 4096;

/// The streams that simulators are compared with, as the published figures
/// have them: `gups`, `seq` and `mix`.
#[derive(Clone, Debug)]
pub struct Stream {
    kind: StreamKind,
    left: u64,
    random: Xorshift,
    bytes: u64,
    position: u64,
    mapped: bool,
}

/// Which stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Updates (a load and a store of eight bytes) of random elements, 90 % of
    /// them in a tenth of the memory. Four instructions an update.
    Gups,
    /// Reads one array and writes another in order, eight bytes at a time.
    Sequential,
    /// Loads and stores, 90 % in 16 KiB, 8 % in 1 MiB, the others anywhere.
    /// Seven instructions for two accesses.
    Mix,
    /// A chain of loads through all lines of the memory in random order, each
    /// depending on the one before.
    Chase,
}

impl StreamKind {
    /// Every stream.
    pub const ALL: [Self; 4] = [Self::Gups, Self::Sequential, Self::Mix, Self::Chase];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gups => "gups",
            Self::Sequential => "seq",
            Self::Mix => "mix",
            Self::Chase => "chase",
        }
    }
}

/// Where the streams' memory begins.
const START: u64 = 0x1000_0000_0000;

impl Stream {
    /// A stream of so many accesses in so many bytes.
    pub fn new(kind: StreamKind, accesses: u64, bytes: u64) -> Self {
        let bytes = bytes.max(1 << 21).next_multiple_of(1 << 21);
        Self {
            kind,
            left: accesses,
            random: Xorshift::new(0x1234_5678_9abc_def1),
            bytes,
            position: 0,
            mapped: false,
        }
    }

    /// A random number below `n`.
    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n).unwrap_or(0)
    }

    fn fill(&mut self, out: &mut Vec<Access>, count: usize) {
        while out.len() + 1 < count {
            match self.kind {
                StreamKind::Gups => {
                    let hot = self.below(10) < 9;
                    let span = if hot { self.bytes / 10 } else { self.bytes };
                    let address = START + (self.below(span) & !7);
                    out.push(Access::load(address).after(1));
                    out.push(Access::store(address).after(1));
                }
                StreamKind::Sequential => {
                    let half = self.bytes / 2;
                    let address = START + self.position;
                    self.position = (self.position + 8) % half;
                    out.push(Access::load(address).after(1));
                    out.push(Access::store(address + half).after(1));
                }
                StreamKind::Mix => {
                    for store in [false, true] {
                        let span = match self.below(100) {
                            0..90 => 16 << 10,
                            90..98 => 1 << 20,
                            _ => self.bytes,
                        };
                        let address = START + (self.below(span.min(self.bytes)) & !7);
                        let access =
                            if store { Access::store(address) } else { Access::load(address) };
                        out.push(access.after(if store { 2 } else { 3 }));
                    }
                }
                StreamKind::Chase => {
                    // A congruence of full period visits every number below a power
                    // of two once a round; those that are no lines are passed over.
                    let lines = self.bytes / 64;
                    let period = lines.next_power_of_two();
                    for _ in 0..2 {
                        loop {
                            let next = self.position.wrapping_mul(0x5851_f42d_4c95_7f2d);
                            self.position = next.wrapping_add(1) % period;
                            if self.position < lines {
                                break;
                            }
                        }
                        out.push(Access::load(START + self.position * 64).dependent());
                    }
                }
            }
        }
    }
}

impl Source for Stream {
    fn describe(&self) -> String {
        let bytes = terrace_core::Bytes(self.bytes);
        format!("{} in {bytes}, {} accesses", self.kind.name(), self.left)
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        batch.clear();
        if !self.mapped {
            batch.events.push(SpaceEvent::Map { start: START, len: self.bytes });
            self.mapped = true;
        }
        let count = BATCH.min(self.left.next_multiple_of(2) as usize);
        self.fill(&mut batch.accesses, count);
        self.left -= (count as u64).min(self.left);
        Ok(!batch.accesses.is_empty() || !batch.events.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the lines would fit caches of half the size.
    #[test]
    fn a_chase_comes_to_every_line_of_its_memory_once_a_round() {
        for bytes in [2 << 20, 6 << 20, 8 << 20] {
            let lines = bytes / 64;
            let mut chase = Stream::new(StreamKind::Chase, lines, bytes);
            let (mut batch, mut seen) = (Batch::default(), vec![0u8; lines as usize]);
            while chase.next(&mut batch).expect("a stream does not fail") {
                for access in &batch.accesses {
                    seen[((access.address() - START) / 64) as usize] += 1;
                }
            }
            assert!(seen.iter().all(|&times| times == 1), "{bytes} bytes");
        }
    }
}
