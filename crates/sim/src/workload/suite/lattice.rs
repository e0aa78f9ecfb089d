//! Fields on a lattice in space, each point from its neighbours: 410.bwaves, 433.milc,
//! 434.zeusmp, 436.cactusADM, 437.leslie3d, 459.GemsFDTD, 470.lbm, 481.wrf.

use terrace_core::Bytes;

use crate::workload::observed::{Kernel, Observer, Span, Step};

/// Bytes of a number.
const NUMBER: u64 = 8;

/// What a method reads, computes and writes at each point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// Fields that are read at the point and at its six neighbours.
    pub around: u64,
    /// Fields that are read at the point only.
    pub here: u64,
    /// Fields that are written.
    pub written: u64,
    /// Operations at a point.
    pub work: u64,
}

/// Fields, and where the sweep is.
pub struct Lattice {
    fields: Vec<Span>,
    method: Method,
    /// Points on an edge.
    edge: u64,
    at: u64,
}

impl Lattice {
    /// Fields of together about so many bytes.
    pub fn new(size: Bytes, method: Method, observer: &mut Observer) -> Self {
        let count = method.around + method.here + method.written;
        let points = size.get() / NUMBER / count;
        let edge = ((points as f64).cbrt() as u64).max(8);
        let fields = (0..count).map(|_| observer.allocate(edge.pow(3) * NUMBER)).collect();
        let mut lattice = Self { fields, method, edge, at: 0 };
        lattice.at = lattice.first();
        lattice
    }

    /// The first point that has all neighbours.
    fn first(&self) -> u64 {
        self.edge * self.edge + self.edge + 1
    }
}

impl Kernel for Lattice {
    fn describe(&self) -> String {
        format!("{} fields on {}³ points", self.fields.len(), self.edge)
    }

    fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
        let Method { around, here, written, work } = self.method;
        let (row, plane) = (self.edge, self.edge * self.edge);
        let each = work / (around + here + written).max(1);
        for (number, field) in (0_u64..).zip(&self.fields) {
            let at = self.at * NUMBER;
            if number < around {
                for near in [plane, row, 1] {
                    field.load(at - near * NUMBER, observer);
                    field.load(at + near * NUMBER, observer);
                }
            }
            if number < around + here {
                field.load(at, observer);
            } else {
                field.store(at, observer);
            }
            observer.work(each);
        }
        self.at += 1;
        if self.at + self.first() >= self.edge.pow(3) {
            self.at = self.first();
        }
        Step::More
    }
}
