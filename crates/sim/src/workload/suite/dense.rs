//! Products of small dense matrices, again and again: what stays in the caches computes
//! (453.povray, 454.calculix, 465.tonto).

use terrace_core::Bytes;

use crate::workload::observed::{Kernel, Observer, Span, Step};

/// Rows and columns of a block.
const EDGE: u64 = 48;
const NUMBER: u64 = 8;

/// Matrices, and the product that is computed.
pub struct Dense {
    matrices: Span,
    count: u64,
    at: u64,
    row: u64,
}

impl Dense {
    /// As many matrices as fit into so many bytes.
    pub fn new(size: Bytes, observer: &mut Observer) -> Self {
        let each = EDGE * EDGE * NUMBER;
        let count = (size.get() / each).max(3);
        Self { matrices: observer.allocate(count * each), count, at: 0, row: 0 }
    }
}

impl Kernel for Dense {
    fn describe(&self) -> String {
        format!("products of {} matrices of {EDGE} rows", self.count)
    }

    fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
        let each = EDGE * EDGE * NUMBER;
        let matrix = |offset: u64| (self.at + offset) % self.count * each;
        let (a, b, c) = (matrix(0), matrix(1), matrix(2));
        for column in 0..EDGE {
            for k in 0..EDGE {
                self.matrices.load(a + (self.row * EDGE + k) * NUMBER, observer);
                self.matrices.load(b + (k * EDGE + column) * NUMBER, observer);
                observer.work(2);
            }
            self.matrices.store(c + (self.row * EDGE + column) * NUMBER, observer);
        }
        self.row += 1;
        if self.row == EDGE {
            (self.row, self.at) = (0, (self.at + 1) % self.count);
        }
        Step::More
    }
}
