//! Passes over elements in order: gates on a register of qubits (462.libquantum).

use terrace_core::Bytes;

use crate::workload::observed::{Kernel, Observer, Span, Step};

/// Bytes of an element: amplitude and state.
const ELEMENT: u64 = 16;

/// A register, and the gate that is applied.
pub struct Sweep {
    register: Span,
    at: u64,
    gate: u64,
}

impl Sweep {
    /// A register of so many bytes.
    pub fn new(size: Bytes, observer: &mut Observer) -> Self {
        Self { register: observer.allocate(size.get()), at: 0, gate: 0 }
    }
}

impl Kernel for Sweep {
    fn describe(&self) -> String {
        format!("gates on {} states", self.register.bytes() / ELEMENT)
    }

    fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
        self.register.load(self.at + 8, observer);
        observer.work(4);
        // A controlled gate turns a bit where the control bits are set: in a quarter.
        let state = self.at / ELEMENT;
        let controls = 0b11 << (self.gate % 16);
        if state & controls == controls {
            self.register.store(self.at + 8, observer);
            observer.work(1);
        }
        self.at += ELEMENT;
        if self.at + ELEMENT > self.register.bytes() {
            (self.at, self.gate) = (0, self.gate + 1);
        }
        Step::More
    }
}
