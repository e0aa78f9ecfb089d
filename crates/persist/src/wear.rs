//! Energy of memories, and how often cells of non-volatile memory are written.

use serde::Serialize;
use terrace_core::Nanos;
use terrace_dram::MemoryFile;

use crate::clock::Traffic;

/// Bits of a line.
const LINE_BITS: f64 = 512.0;

/// A count for each line of a memory, where most lines have none.
#[derive(Clone, Debug, Default)]
pub struct LineCounts {
    /// By page; none where no line was counted.
    pages: Vec<Option<Box<[u32; 64]>>>,
}

impl LineCounts {
    /// Counts a line, by its number.
    #[inline]
    pub fn count(&mut self, line: u64) {
        let page = (line / 64) as usize;
        if page >= self.pages.len() {
            self.pages.resize(page + 1, None);
        }
        let counts = self.pages[page].get_or_insert_with(|| Box::new([0; 64]));
        counts[(line % 64) as usize] += 1;
    }

    /// Counts above zero, in order of lines.
    pub fn values(&self) -> impl Iterator<Item = u32> + '_ {
        let lines = self.pages.iter().flatten().flat_map(|counts| counts.iter());
        lines.copied().filter(|count| *count > 0)
    }
}

/// Writes of lines, by how often each was written.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Wear {
    /// Lines that were written at all.
    pub lines: u64,
    /// Writes of all of them.
    pub writes: u64,
    /// Writes of the line that was written most.
    pub most: u32,
    /// Lines written 1, 2 to 3, 4 to 7, … times.
    pub histogram: Vec<u64>,
    /// Time until the line that is written most is worn out, if the program
    /// goes on like this and nothing moves lines about; `None` if the memory
    /// file says nothing of endurance.
    pub years_as_is: Option<f64>,
    /// The same if writes were spread over the whole memory evenly.
    pub years_levelled: Option<f64>,
}

/// Energy of accesses to memory, in microjoules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Energy {
    /// Reads and writes of DRAM lines.
    pub dram: f64,
    /// Reads of lines of non-volatile memory.
    pub nvm_reads: f64,
    /// Writes of lines of non-volatile memory.
    pub nvm_writes: f64,
}

const YEAR: f64 = 365.25 * 86_400.0;

/// Years until cells are worn out that are written so often in so much time;
/// `None` if the file says nothing of endurance, or nothing is written.
fn years(file: &MemoryFile, writes: f64, time: Nanos) -> Option<f64> {
    let cells = file.nvm.as_ref()?.cells.as_ref()?;
    let seconds = time.as_f64() / 1e9;
    (writes > 0.0).then(|| cells.endurance.value / (writes / seconds) / YEAR)
}

/// The same for lines written anywhere, if writes are spread over the whole
/// memory evenly.
pub fn years_levelled(file: &MemoryFile, lines: f64, time: Nanos) -> Option<f64> {
    let nvm = file.nvm.as_ref()?;
    let all = nvm.capacity.value.as_f64() * f64::from(file.channel.channels.value);
    years(file, lines * 64.0 / all, time)
}

impl Wear {
    /// The wear of a program that ran so long.
    pub fn new(traffic: &Traffic, file: &MemoryFile, time: Nanos) -> Self {
        let mut wear = Self::default();
        for writes in traffic.wear.values() {
            wear.lines += 1;
            wear.writes += u64::from(writes);
            wear.most = wear.most.max(writes);
            let class = writes.ilog2() as usize;
            if wear.histogram.len() <= class {
                wear.histogram.resize(class + 1, 0);
            }
            wear.histogram[class] += 1;
        }
        wear.years_as_is = years(file, f64::from(wear.most), time);
        wear.years_levelled = years_levelled(file, wear.writes as f64, time);
        wear
    }
}

impl Energy {
    /// The energy of what came to the memories; `None` if the memory file says
    /// nothing of it.
    pub fn new(traffic: &Traffic, file: &MemoryFile) -> Option<Self> {
        let nvm = file.nvm.as_ref()?.cells.as_ref()?;
        let dram = file.dram.as_ref()?.cells.as_ref()?;
        let micro = |lines: u64, per_bit: f64| lines as f64 * LINE_BITS * per_bit / 1e6;
        Some(Self {
            dram: micro(traffic.dram_reads, dram.read_energy.value)
                + micro(traffic.dram_writes, dram.write_energy.value),
            nvm_reads: micro(traffic.nvm_reads, nvm.read_energy.value),
            nvm_writes: micro(traffic.nvm_writes, nvm.write_energy.value),
        })
    }

    /// All of it.
    pub fn total(&self) -> f64 {
        self.dram + self.nvm_reads + self.nvm_writes
    }
}
