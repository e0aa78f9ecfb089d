//! Non-volatile memory behind volatile caches, as the x86 persistency model
//! has it (Raad et al., POPL 2020, "Persistency semantics of the Intel-x86
//! architecture").
//!
//! A store is visible at once and durable some time later: when its cache line
//! is written back, which may happen at any time (eviction), and has happened
//! when a `clwb` of the line was followed by an `sfence` (the write-pending
//! queue is inside the persistence domain, ADR). Stores to one line become
//! durable in program order; stores to different lines in any order. After a
//! power failure each line therefore holds some prefix of the stores that were
//! made to it.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use rand_xoshiro::rand_core::Rng;
use terrace_core::outcomes;
use terrace_dram::Picos;

use crate::clock::Clock;
use crate::costs::Costs;
use crate::fault::Fault;

/// Words of a cache line.
pub const WORDS: usize = 8;
/// Bytes of a cache line.
pub const LINE: u64 = 64;

/// The power failed: nothing that was being done is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerFailure;

/// The result of whatever touches non-volatile memory.
pub type Persist<T = ()> = Result<T, PowerFailure>;

/// A line that differs from what is durable.
#[derive(Clone, Debug)]
struct Dirty {
    words: [u64; WORDS],
    /// Stores in program order since the line was last known durable.
    stores: Vec<(u8, u64)>,
    /// How many of them a `clwb` covers that no fence followed yet.
    flushed: usize,
}

/// What was done, for costs that are reported apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Words read.
    pub loads: u64,
    /// Words written.
    pub stores: u64,
    /// Lines written back on request.
    pub flushes: u64,
    /// Fences.
    pub fences: u64,
    /// Steps along linked lists.
    pub visits: u64,
}

/// Numbers of lines need no defence against attackers, and recovery asks for
/// millions of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

/// Non-volatile memory, its caches, and (where time matters) its controller.
#[derive(Debug)]
pub struct Pmem {
    durable: HashMap<u64, [u64; WORDS], BuildHasherDefault<LineHasher>>,
    dirty: BTreeMap<u64, Dirty>,
    flushing: Vec<u64>,
    fences: u64,
    fail_at: Option<u64>,
    /// A bit for each seeded fault.
    faults: u16,
    counts: Counts,
    /// Whether the content of data is kept, or their cost alone.
    data: bool,
    clock: Option<Box<Clock>>,
}

impl Pmem {
    /// Memory that was used before: it holds remains that look like valid
    /// mappings, as memory does that a kernel hands out again.
    pub fn used() -> Self {
        Self {
            durable: HashMap::default(),
            dirty: BTreeMap::new(),
            flushing: Vec::new(),
            fences: 0,
            fail_at: None,
            faults: 0,
            counts: Counts::default(),
            data: true,
            clock: None,
        }
    }

    /// The same with a clock.
    #[must_use]
    pub fn timed(mut self, clock: Clock) -> Self {
        self.clock = Some(Box::new(clock));
        self
    }

    /// The clock.
    pub fn clock(&self) -> Option<&Clock> {
        self.clock.as_deref()
    }

    /// The clock, for whoever lets a program's own time pass.
    pub fn clock_mut(&mut self) -> Option<&mut Clock> {
        self.clock.as_deref_mut()
    }

    /// The content of data is not kept, their cost is, and what is stored is
    /// durable at once: for programs with millions of accesses, which are measured
    /// and not crashed.
    #[must_use]
    pub fn without_data(mut self) -> Self {
        self.data = false;
        self
    }

    /// Whether the content of data is kept.
    pub fn keeps_data(&self) -> bool {
        self.data
    }

    /// Seeded faults, to see whether crashes find them.
    #[must_use]
    pub fn with_faults(mut self, faults: impl IntoIterator<Item = Fault>) -> Self {
        self.faults = faults.into_iter().fold(self.faults, |bits, fault| bits | bit(fault));
        self
    }

    /// Lets the power fail in front of the n-th fence from now, counted from 1.
    pub fn fail_at(&mut self, fence: Option<u64>) {
        self.fail_at = fence.map(|fence| self.fences + fence);
    }

    /// Fences so far: the points where the power can fail. What a failure
    /// between two of them leaves behind, one in front of the second can, too.
    pub fn fences(&self) -> u64 {
        self.fences
    }

    /// Whether a fault was seeded.
    pub fn has_fault(&self, fault: Fault) -> bool {
        self.faults & bit(fault) != 0
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Simulated time; zero without a clock.
    pub fn now(&self) -> Picos {
        self.clock.as_ref().map_or(Picos::ZERO, |clock| clock.now())
    }

    /// Lets processor time pass.
    pub fn spend(&mut self, cost: impl Fn(&Costs) -> Picos) {
        if let Some(clock) = &mut self.clock {
            let time = cost(clock.costs());
            clock.pass(time);
        }
    }

    /// Lets `visits` steps along a list in non-volatile memory pass.
    pub fn visit(&mut self, visits: u64) {
        self.counts.visits += visits;
        self.spend(|costs| Picos(costs.visit.0 * visits));
    }

    fn word(address: u64) -> (u64, usize) {
        (address / LINE, (address % LINE / 8) as usize)
    }

    /// Reads an aligned word.
    pub fn load(&mut self, address: u64) -> u64 {
        self.pay_load(address);
        self.peek(address)
    }

    /// What reading an aligned word costs, for callers that know its content from [`Pmem::peek_line`].
    pub fn pay_load(&mut self, address: u64) {
        self.counts.loads += 1;
        if let Some(clock) = &mut self.clock {
            clock.load(address);
        }
    }

    /// Reads an aligned word of data; 0 where their content is not kept.
    pub fn load_data(&mut self, address: u64) -> u64 {
        self.pay_load(address);
        if self.data { self.peek(address) } else { 0 }
    }

    /// Writes an aligned word of data.
    pub fn store_data(&mut self, address: u64, value: u64) {
        if self.data {
            return self.store(address, value);
        }
        self.counts.stores += 1;
        if let Some(clock) = &mut self.clock {
            clock.store(address, true);
        }
    }

    /// Copies a line of data.
    pub fn copy_line(&mut self, from: u64, to: u64) {
        for word in 0..WORDS as u64 {
            let value = self.load_data(from + word * 8);
            self.store_data(to + word * 8, value);
        }
    }

    /// Gives a line of data another address, as hardware does that changes the
    /// tag of a cached line.
    pub fn retag_line(&mut self, from: u64, to: u64) {
        if self.data {
            for word in 0..WORDS as u64 {
                let value = self.peek(from + word * 8);
                self.store(to + word * 8, value);
            }
        } else if let Some(clock) = &mut self.clock {
            clock.retag(from, to);
        }
    }

    /// Reads an aligned word at no cost: for checks.
    pub fn peek(&self, address: u64) -> u64 {
        let (line, word) = Self::word(address);
        match self.dirty.get(&line) {
            Some(dirty) => dirty.words[word],
            None => self.durable_word(line, word),
        }
    }

    /// Reads the whole line of an address at no cost.
    pub fn peek_line(&self, address: u64) -> [u64; WORDS] {
        let (line, _) = Self::word(address);
        let known = self.dirty.get(&line).map(|dirty| &dirty.words);
        let known = known.or_else(|| self.durable.get(&line));
        known.copied().unwrap_or_else(|| std::array::from_fn(|word| remains(line, word)))
    }

    fn durable_word(&self, line: u64, word: usize) -> u64 {
        self.durable.get(&line).map_or_else(|| remains(line, word), |words| words[word])
    }

    /// Writes an aligned word; it is visible at once and durable some time later.
    pub fn store(&mut self, address: u64, value: u64) {
        self.counts.stores += 1;
        let (line, word) = Self::word(address);
        if let Some(clock) = &mut self.clock {
            // The first word of a line that is written whole needs no read.
            clock.store(address, word != 0);
        }
        if !self.data {
            // Nobody asks what a failure in between would leave: of the states
            // that are allowed, the one in which all is durable.
            let words = self
                .durable
                .entry(line)
                .or_insert_with(|| std::array::from_fn(|word| remains(line, word)));
            words[word] = value;
            return;
        }
        let durable = &self.durable;
        let dirty = self.dirty.entry(line).or_insert_with(|| Dirty {
            words: durable
                .get(&line)
                .copied()
                .unwrap_or_else(|| std::array::from_fn(|word| remains(line, word))),
            stores: Vec::new(),
            flushed: 0,
        });
        dirty.words[word] = value;
        dirty.stores.push((word as u8, value));
    }

    /// `clwb`: begins to write back the line of an address.
    pub fn flush(&mut self, address: u64) {
        self.counts.flushes += 1;
        let (line, _) = Self::word(address);
        self.send(line);
        if let Some(dirty) = self.dirty.get_mut(&line) {
            dirty.flushed = dirty.stores.len();
            self.flushing.push(line);
        }
    }

    fn send(&mut self, line: u64) {
        if let Some(clock) = &mut self.clock {
            clock.flush(line * LINE);
        }
    }

    /// The time of a store to the kernel's stack, in DRAM, and of a flush of it.
    pub fn flush_stack_slot(&mut self) {
        self.counts.flushes += 1;
        if let Some(clock) = &mut self.clock {
            clock.flush_stack_slot();
        }
    }

    /// The time of one look into a table in DRAM that a library keeps of
    /// addresses.
    pub fn alias(&mut self, address: u64, store: bool) {
        if let Some(clock) = &mut self.clock {
            clock.alias(address, store);
        }
    }

    /// `sfence`: waits until everything that was flushed is durable.
    pub fn fence(&mut self) -> Persist {
        if self.fail_at == Some(self.fences + 1) {
            return Err(PowerFailure);
        }
        self.fences += 1;
        self.counts.fences += 1;
        if let Some(clock) = &mut self.clock {
            clock.fence();
        }
        for line in std::mem::take(&mut self.flushing) {
            let Some(dirty) = self.dirty.get_mut(&line) else { continue };
            let words = self
                .durable
                .entry(line)
                .or_insert_with(|| std::array::from_fn(|word| remains(line, word)));
            for (word, value) in dirty.stores.drain(..dirty.flushed) {
                words[usize::from(word)] = value;
            }
            dirty.flushed = 0;
            if dirty.stores.is_empty() {
                self.dirty.remove(&line);
            }
        }
        Ok(())
    }

    /// Stores a word and makes it durable.
    pub fn persist(&mut self, address: u64, value: u64) -> Persist {
        self.store(address, value);
        self.flush(address);
        self.fence()
    }

    /// Fills a page with zeros and begins to write it back.
    pub fn zero_page(&mut self, address: u64) {
        for line in 0..4096 / LINE {
            for word in 0..WORDS as u64 {
                self.store(address + line * LINE + word * 8, 0);
            }
            self.flush(address + line * LINE);
        }
    }

    /// The time and traffic of [`Pmem::zero_page`] for a page whose content
    /// nobody will look at.
    pub fn zero_page_unseen(&mut self, address: u64) {
        self.counts.stores += 512;
        self.counts.flushes += 64;
        for line in 0..4096 / LINE {
            self.spend(|costs| Picos(costs.word.0 * WORDS as u64));
            self.send(address / LINE + line);
        }
    }

    /// For each line that is not durable, how many states it can be left in.
    pub fn choices(&self) -> Vec<usize> {
        self.dirty.values().map(|dirty| dirty.stores.len() + 1).collect()
    }

    /// The memory after a power failure: of each line that was not durable, the
    /// given number of stores has become so.
    #[must_use]
    pub fn after_failure(&self, prefixes: &[usize]) -> Self {
        let mut durable = self.durable.clone();
        for ((line, dirty), &prefix) in self.dirty.iter().zip(prefixes) {
            if prefix > 0 {
                let words = durable
                    .entry(*line)
                    .or_insert_with(|| std::array::from_fn(|word| remains(*line, word)));
                for (word, value) in &dirty.stores[..prefix] {
                    words[usize::from(*word)] = *value;
                }
            }
        }
        Self { durable, faults: self.faults, data: self.data, ..Self::used() }
    }

    /// States that a power failure can leave: all of them if there are at most
    /// `budget`, else the extremes (nothing, everything, each line alone, all
    /// but one line) and a sample.
    pub fn failures(&self, budget: usize, random: &mut impl Rng) -> Vec<Vec<usize>> {
        outcomes(&self.choices(), budget, || random.next_u64())
    }
}

fn bit(fault: Fault) -> u16 {
    1 << fault as u16
}

/// What a word holds that was never written since the machine was built: it
/// looks like the entry of a page table.
fn remains(line: u64, word: usize) -> u64 {
    let mixed = (line * 8 + word as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 30 & 0x3f) << 12 | 0x3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_what_its_words_hold() {
        let mut pmem = Pmem::used();
        pmem.persist(8, 5).expect("the power stays");
        pmem.store(16, 6);
        pmem.persist(LINE + 24, 7).expect("the same");
        // Not yet durable, durable, and never written.
        for address in [0, LINE, 2 * LINE] {
            let words: [u64; WORDS] =
                std::array::from_fn(|word| pmem.peek(address + word as u64 * 8));
            assert_eq!(pmem.peek_line(address), words, "{address}");
        }
    }
}
