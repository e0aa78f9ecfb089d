//! Products of a sparse matrix and a vector: 447.dealII, 450.soplex.

use rand_xoshiro::rand_core::SeedableRng;
use terrace_core::Bytes;

use crate::exact::Access;
use crate::workload::SimRng;
use crate::workload::observed::{Kernel, Observer, Span, Step};
use crate::workload::updates::below;

/// Elements of a row. Assumed: finite elements in space have 27 neighbours.
const ROW: u64 = 27;

/// A matrix by rows, and two vectors.
pub struct Sparse {
    values: Span,
    columns: Span,
    from: Span,
    to: Span,
    rows: u64,
    /// How far from the diagonal elements lie; zero for anywhere.
    band: u64,
    at: u64,
    rng: SimRng,
}

impl Sparse {
    /// A matrix of about so many bytes; its elements lie in a band around the diagonal of so
    /// many rows (zero for anywhere).
    pub fn new(size: Bytes, band: u64, seed: u64, observer: &mut Observer) -> Self {
        let rows = (size.get() / (ROW * 12 + 16)).max(64);
        Self {
            values: observer.allocate(rows * ROW * 8),
            columns: observer.allocate(rows * ROW * 4),
            from: observer.allocate(rows * 8),
            to: observer.allocate(rows * 8),
            rows,
            band: if band == 0 { rows } else { band.min(rows) },
            at: 0,
            rng: SimRng::seed_from_u64(seed),
        }
    }
}

impl Kernel for Sparse {
    fn describe(&self) -> String {
        format!("a sparse matrix of {} rows", self.rows)
    }

    fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
        for i in 0..ROW {
            let element = self.at * ROW + i;
            self.values.load(element * 8, observer);
            self.columns.load((element * 4) & !7, observer);
            let column = (self.at + below(&mut self.rng, self.band)) % self.rows;
            observer.access(Access::load(self.from.address(column * 8)).dependent());
            observer.work(3);
        }
        self.to.store(self.at * 8, observer);
        observer.work(4);
        self.at = (self.at + 1) % self.rows;
        Step::More
    }
}
