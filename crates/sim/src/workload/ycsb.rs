//! YCSB's workload B on a key-value store in memory (Cooper et al., Cloud Computing 2010):
//! 95 % reads of a record, 5 % updates of one of its fields, keys by a scrambled
//! Zipfian distribution. The store is a hash table with open addressing over
//! records of ten fields.

use rand_xoshiro::rand_core::Rng;
use terrace_core::Bytes;

use super::SimRng;
use super::observed::{Array, Kernel, Observer, Step};
use super::share::generators;
use super::updates::below;

/// Lines of a record: ten fields of 100 bytes, in 1 KiB.
const LINES: usize = 16;
/// YCSB's constant.
const THETA: f64 = 0.99;
/// Updates among the operations, in percent: workload B.
const UPDATES: u64 = 5;

/// YCSB's Zipfian generator (Gray et al., SIGMOD 1994).
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    /// For so many items. Takes time in proportion to them.
    pub fn new(items: u64) -> Self {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-THETA)).sum::<f64>();
        let all = zeta(items);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - THETA)) / (1.0 - zeta(2) / all);
        Self { items, zeta: all, eta }
    }

    /// An item, counted from the most frequent one.
    pub fn rank(&self, rng: &mut SimRng) -> u64 {
        let u = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let scaled = u * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        (rank as u64).min(self.items - 1)
    }
}

/// FNV-1a of eight bytes: how YCSB scrambles ranks, and our hash function.
pub fn fnv(value: u64) -> u64 {
    value.to_le_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A store and its client.
pub struct Ycsb {
    /// Key plus one, and the record's number; 0 where nothing is.
    index: Array<[u64; 2]>,
    records: Array<[u64; 8]>,
    keys: u64,
    zipfian: Zipfian,
    /// One a thread.
    rngs: Vec<SimRng>,
    reads: u64,
    updates: u64,
}

impl Ycsb {
    /// A store of about so many bytes, loaded.
    pub fn new(size: Bytes, seed: u64, threads: usize, observer: &mut Observer) -> Self {
        let keys = (size.get() / (LINES as u64 * 64 + 32)).max(16);
        // Half full at most.
        let mut index = vec![[0u64; 2]; (keys * 2).next_power_of_two() as usize];
        for key in 0..keys {
            let mut slot = fnv(key) as usize % index.len();
            while index[slot][0] != 0 {
                slot = (slot + 1) % index.len();
            }
            index[slot] = [key + 1, key];
        }
        let records = (0..keys * LINES as u64).map(|line| [line; 8]).collect();
        Self {
            index: observer.array(index),
            records: observer.array(records),
            keys,
            zipfian: Zipfian::new(keys),
            rngs: generators(seed, threads),
            reads: 0,
            updates: 0,
        }
    }

    fn find(&self, key: u64, observer: &mut Observer) -> Option<usize> {
        // Hashing eight bytes: an exclusive or and a multiplication each.
        observer.work(16);
        let mut slot = fnv(key) as usize % self.index.len();
        loop {
            let [found, record] = self.index.get(slot, observer);
            observer.work(3);
            match found {
                0 => return None,
                _ if found == key + 1 => return Some(record as usize),
                _ => slot = (slot + 1) % self.index.len(),
            }
        }
    }
}

impl Kernel for Ycsb {
    fn describe(&self) -> String {
        format!("ycsb, workload B, {} records of 1 KiB", self.keys)
    }

    fn threads(&self) -> usize {
        self.rngs.len()
    }

    fn step(&mut self, thread: usize, observer: &mut Observer) -> Step {
        // Drawing a Zipfian number: two powers.
        observer.work(60);
        let rng = &mut self.rngs[thread];
        let key = fnv(self.zipfian.rank(rng)) % self.keys;
        let update = below(rng, 100) < UPDATES;
        let Some(record) = self.find(key, observer) else { return Step::More };
        let rng = &mut self.rngs[thread];
        let first = record * LINES;
        if update {
            self.updates += 1;
            // The lines of one field of 100 bytes.
            let field = below(rng, 10) as usize * 100;
            let value = rng.next_u64();
            for line in field / 64..=(field + 99) / 64 {
                self.records.set(first + line, [value; 8], observer);
                observer.work(16);
            }
        } else {
            self.reads += 1;
            let mut sum = 0u64;
            for line in 0..LINES {
                let words = if line == 0 {
                    self.records.follow(first, observer)
                } else {
                    self.records.get(first + line, observer)
                };
                sum = words.iter().fold(sum, |sum, word| sum.wrapping_add(*word));
                observer.work(16);
            }
            std::hint::black_box(sum);
        }
        Step::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_found_and_no_other() {
        let mut observer = Observer::default();
        let store = Ycsb::new(Bytes::mib(1), 1, 1, &mut observer);
        for key in 0..store.keys {
            assert_eq!(store.find(key, &mut observer), Some(key as usize));
        }
        assert_eq!(store.find(store.keys, &mut observer), None);
    }

    #[test]
    fn operations_have_workload_b_s_shares_and_favour_few_keys() {
        let mut observer = Observer::default();
        let mut store = Ycsb::new(Bytes::mib(8), 1, 1, &mut observer);
        for _ in 0..20_000 {
            store.step(0, &mut observer);
        }
        let share = store.updates as f64 / (store.updates + store.reads) as f64;
        assert!((share - 0.05).abs() < 0.01, "{share}");
        let mut counts = vec![0u32; store.keys as usize];
        for _ in 0..100_000 {
            counts[store.zipfian.rank(&mut store.rngs[0]) as usize] += 1;
        }
        // The first of n items gets 1 / zeta(n) of them.
        let first = f64::from(counts[0]) / 1e5;
        assert!((first - 1.0 / store.zipfian.zeta).abs() < 0.01, "{first}");
        assert!(counts[..counts.len() / 10].iter().sum::<u32>() > 65_000);
    }
}
