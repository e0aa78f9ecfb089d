//! STREAM (J. McCalpin): copy, scale, add and triad over three arrays of
//! doubles, one after the other, again and again.

use core::ops::Range;

use terrace_core::Bytes;

use super::observed::{Kernel, Observer, Span, Step};
use super::share::part;

/// Bytes of an element.
const ELEMENT: u64 = 8;

/// Three arrays, and where the loops are.
pub struct Streams {
    arrays: [Span; 3],
    /// Each thread's elements.
    parts: Vec<Range<u64>>,
    /// Each thread's loop and element.
    places: Vec<(usize, u64)>,
}

impl Streams {
    /// Three arrays of together so many bytes.
    pub fn new(size: Bytes, threads: usize, observer: &mut Observer) -> Self {
        let each = (size.get() / 3).max(4096);
        let arrays: [Span; 3] = core::array::from_fn(|_| observer.allocate(each));
        let elements = arrays[0].bytes() / ELEMENT;
        let parts: Vec<_> = (0..threads).map(|thread| part(elements, thread, threads)).collect();
        let places = parts.iter().map(|part| (0, part.start)).collect();
        Self { arrays, parts, places }
    }
}

impl Kernel for Streams {
    fn describe(&self) -> String {
        format!("stream, {}", Bytes(self.arrays.iter().map(|array| array.bytes()).sum()))
    }

    fn threads(&self) -> usize {
        self.places.len()
    }

    fn step(&mut self, thread: usize, observer: &mut Observer) -> Step {
        let [a, b, c] = self.arrays;
        let part = self.parts[thread].clone();
        let (kernel, at) = &mut self.places[thread];
        // What each loop reads and writes, and its arithmetic.
        let (reads, write, arithmetic): (&[Span], Span, u64) = match *kernel {
            0 => (&[a], c, 0),
            1 => (&[c], b, 1),
            2 => (&[a, b], c, 1),
            _ => (&[b, c], a, 2),
        };
        for read in reads {
            read.load(*at * ELEMENT, observer);
        }
        observer.work(arithmetic);
        write.store(*at * ELEMENT, observer);
        // Counting and branching.
        observer.work(2);
        *at += 1;
        if *at < part.end {
            return Step::More;
        }
        (*kernel, *at) = ((*kernel + 1) % 4, part.start);
        Step::Barrier
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::{Batch, Source};
    use crate::workload::observed::Program;

    #[test]
    fn a_round_reads_six_arrays_and_writes_four() {
        let mut observer = Observer::default();
        let kernel = Streams::new(Bytes::kib(96), 1, &mut observer);
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
