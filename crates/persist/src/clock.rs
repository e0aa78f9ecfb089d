//! Simulated time of one in-order core: what it waits for in caches and memories.
//!
//! Two models of caches. The coarse one (a direct-mapped last level) is enough
//! where a scheme's metadata are all that is accessed; the other is the
//! hierarchy of the full simulator, for programs.

use terrace_core::Access;
use terrace_dram::{Memory, Picos};
use terrace_sim::exact::hierarchy::{Hierarchy, Level, Request, WriteBacks};

use crate::costs::Costs;
use crate::pmem::LINE;
use crate::wear::LineCounts;

/// Lines of the coarse last-level cache: 2 MB (Kindle's `config.ini`). One way
/// instead of sixteen: it decides about metadata alone, which are far from
/// filling it.
const COARSE: u64 = 32_768;

/// Where the kernel's stack and a library's table lie in DRAM.
const STACK_SLOT: u64 = 1 << 20;
const ALIAS_TABLE: u64 = 1 << 30;
/// Bytes of the table: 2^16 buckets of a key and a value. Assumed: several times
/// the words that an interval of 10 ms stores.
const ALIAS_BYTES: u64 = 1 << 20;

/// Caches.
#[derive(Debug)]
enum Caches {
    /// Which line stands in each place.
    Coarse(Vec<u64>),
    /// Three levels and their latencies.
    Full(Box<Hierarchy>, CacheTimes),
}

/// What caches take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheTimes {
    /// What the look-up in each level adds.
    pub levels: [Picos; 3],
    /// How long a core that waits for each access waits for a `clwb`, the
    /// memory's part not included.
    pub clwb: Picos,
}

/// What came to a memory.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// Lines read from DRAM.
    pub dram_reads: u64,
    /// Lines written to DRAM.
    pub dram_writes: u64,
    /// Lines read from non-volatile memory.
    pub nvm_reads: u64,
    /// Lines written to non-volatile memory.
    pub nvm_writes: u64,
    /// Writes of each line of non-volatile memory, by its number.
    pub wear: LineCounts,
}

/// Simulated time.
#[derive(Debug)]
pub struct Clock {
    now: Picos,
    /// When all writes that were sent are in the persistence domain.
    accepted: Picos,
    memory: Memory,
    base: u64,
    costs: Costs,
    caches: Caches,
    traffic: Traffic,
}

impl Clock {
    /// A core with coarse caches at time 0, on a memory whose non-volatile part
    /// begins at `base`.
    pub fn new(memory: Memory, base: u64, costs: Costs) -> Self {
        let caches = Caches::Coarse(vec![u64::MAX; COARSE as usize]);
        let (now, accepted) = (Picos::ZERO, Picos::ZERO);
        Self { now, accepted, memory, base, costs, caches, traffic: Traffic::default() }
    }

    /// The same with a hierarchy of caches.
    #[must_use]
    pub fn with_caches(mut self, caches: Hierarchy, times: CacheTimes) -> Self {
        self.caches = Caches::Full(Box::new(caches), times);
        self
    }

    /// The time.
    pub fn now(&self) -> Picos {
        self.now
    }

    /// What processors take.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// What came to the memories so far.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// What came to the memories since it was last taken.
    pub fn take_traffic(&mut self) -> Traffic {
        std::mem::take(&mut self.traffic)
    }

    /// Lets processor time pass.
    pub fn pass(&mut self, time: Picos) {
        self.now = self.now + time;
    }

    /// A load from non-volatile memory.
    pub fn load(&mut self, address: u64) {
        self.touch(self.base + address, true, false);
    }

    /// A store to non-volatile memory; a line that is stored to as a whole is
    /// not read.
    pub fn store(&mut self, address: u64, read: bool) {
        self.touch(self.base + address, read, true);
    }

    /// A line of non-volatile memory is stored to under another address: the
    /// hardware changes its tag, and nothing of the old address stays cached.
    pub fn retag(&mut self, from: u64, to: u64) {
        self.load(from);
        let line = (self.base + from) / LINE;
        match &mut self.caches {
            Caches::Coarse(places) => places[(line % COARSE) as usize] = u64::MAX,
            Caches::Full(caches, _) => caches.forget(line),
        }
        self.store(to, false);
    }

    /// A load from DRAM.
    pub fn load_dram(&mut self, address: u64) {
        self.touch(address, true, false);
    }

    /// A store to DRAM.
    pub fn store_dram(&mut self, address: u64) {
        self.touch(address, true, true);
    }

    /// A line is wanted: it is in a cache, or the memory is read.
    fn touch(&mut self, address: u64, read: bool, store: bool) {
        let line = address / LINE;
        match &mut self.caches {
            Caches::Coarse(places) => {
                self.now = self.now + self.costs.word;
                let place = &mut places[(line % COARSE) as usize];
                if *place != line {
                    *place = line;
                    if read {
                        self.read(address);
                    }
                }
            }
            Caches::Full(caches, times) => {
                if caches.hits_l1(0, line, store) {
                    self.now = self.now + times.levels[0];
                    return;
                }
                let request = if store { Request::Store } else { Request::Load };
                let mut out = WriteBacks::default();
                let level = caches.access(0, line, request, &mut out);
                // A request that goes on waits for the look-up of each level.
                let looked_up = match level {
                    Level::L1 => 1,
                    Level::L2 => 2,
                    Level::Llc | Level::Memory => 3,
                };
                for latency in &times.levels[..looked_up] {
                    self.now = self.now + *latency;
                }
                if level == Level::Memory && read {
                    self.read(address);
                }
                for &line in out.lines() {
                    self.write(line * LINE);
                }
            }
        }
    }

    fn read(&mut self, address: u64) {
        if address >= self.base {
            self.traffic.nvm_reads += 1;
        } else {
            self.traffic.dram_reads += 1;
        }
        self.now = self.memory.access(Access::Read, address, self.now);
    }

    /// A line goes to memory: the core waits until the controller takes it.
    fn write(&mut self, address: u64) {
        if address >= self.base {
            self.traffic.nvm_writes += 1;
            self.traffic.wear.count((address - self.base) / LINE);
        } else {
            self.traffic.dram_writes += 1;
        }
        let sent = self.memory.submit(Access::Write, address, self.now);
        self.now = self.now.max(sent.released);
        self.accepted = self.accepted.max(sent.accepted);
    }

    /// `clwb` of a line of non-volatile memory.
    pub fn flush(&mut self, address: u64) {
        self.flush_line(self.base + address);
    }

    fn flush_line(&mut self, address: u64) {
        let dirty = match &mut self.caches {
            Caches::Coarse(_) => {
                self.now = self.now + self.costs.flush;
                true
            }
            Caches::Full(caches, times) => {
                self.now = self.now + times.clwb;
                caches.clean(address / LINE)
            }
        };
        if dirty {
            self.write(address);
        }
    }

    /// A store to a place on the kernel's stack and a flush of it.
    pub fn flush_stack_slot(&mut self) {
        self.store_dram(STACK_SLOT);
        self.flush_line(STACK_SLOT);
    }

    /// One look into a library's table of addresses.
    pub fn alias(&mut self, address: u64, store: bool) {
        self.now = self.now + self.costs.alias;
        let hash = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        self.touch(ALIAS_TABLE + hash % ALIAS_BYTES, true, store);
    }

    /// `sfence`: waits for what was flushed.
    pub fn fence(&mut self) {
        self.now = self.now.max(self.accepted) + self.costs.fence;
        self.memory.advance(self.now);
    }
}
