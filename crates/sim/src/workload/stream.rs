//! STREAM (J. McCalpin): copy, scale, add and triad over three arrays of
//! doubles, one after the other, again and again.

use terrace_core::Bytes;

use super::observed::{Kernel, Observer, Span};

/// Bytes of an element.
const ELEMENT: u64 = 8;

/// Three arrays, and where the loops are.
pub struct Streams {
    arrays: [Span; 3],
    kernel: usize,
    at: u64,
}

impl Streams {
    /// Three arrays of together so many bytes.
    pub fn new(size: Bytes, observer: &mut Observer) -> Self {
        let each = (size.get() / 3).max(4096);
        Self { arrays: core::array::from_fn(|_| observer.allocate(each)), kernel: 0, at: 0 }
    }
}

impl Kernel for Streams {
    fn describe(&self) -> String {
        format!("stream, {}", Bytes(self.arrays.iter().map(|array| array.bytes()).sum()))
    }

    fn step(&mut self, _thread: u32, observer: &mut Observer) -> bool {
        let [a, b, c] = self.arrays;
        // What each loop reads and writes, and its arithmetic.
        let (reads, write, arithmetic): (&[Span], Span, u64) = match self.kernel {
            0 => (&[a], c, 0),
            1 => (&[c], b, 1),
            2 => (&[a, b], c, 1),
            _ => (&[b, c], a, 2),
        };
        for read in reads {
            read.load(self.at, observer);
        }
        observer.work(arithmetic);
        write.store(self.at, observer);
        // Counting and branching.
        observer.work(2);
        self.at += ELEMENT;
        if self.at + ELEMENT > a.bytes() {
            self.at = 0;
            self.kernel = (self.kernel + 1) % 4;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::full::{Batch, Source};
    use crate::workload::observed::Program;

    #[test]
    fn a_round_reads_six_arrays_and_writes_four() {
        let mut observer = Observer::default();
        let kernel = Streams::new(Bytes::kib(96), &mut observer);
        let each = kernel.arrays[0].bytes() / ELEMENT;
        let mut program = Program::new(Box::new(kernel), observer, each * 10);
        let (mut batch, mut kinds) = (Batch::default(), Vec::new());
        while program.next(&mut batch).expect("no input") {
            kinds.extend(batch.accesses.iter().map(|access| access.is_store()));
        }
        let kinds = &kinds[program.initial() as usize..];
        assert_eq!(kinds.iter().filter(|&&store| store).count() as u64, each * 4);
        assert_eq!(kinds.len() as u64, each * 10);
    }
}
