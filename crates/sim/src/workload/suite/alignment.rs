//! Alignment of sequences with a model by dynamic programming (Viterbi): 456.hmmer.

use terrace_core::Bytes;

use crate::workload::observed::{Kernel, Observer, Span, Step};

/// States of the model, and rows of scores: match, insert, delete, each now and before.
const STATES: u64 = 400;
const ROWS: u64 = 6;
/// Bytes of a score.
const SCORE: u64 = 4;
/// Instructions of a cell: additions and maxima.
const WORK: u64 = 14;

/// A model's rows, and sequences that are read once.
pub struct Alignment {
    rows: Span,
    scores: Span,
    sequences: Span,
    letter: u64,
}

impl Alignment {
    /// Sequences of about so many bytes.
    pub fn new(size: Bytes, observer: &mut Observer) -> Self {
        Self {
            rows: observer.allocate(ROWS * STATES * SCORE),
            scores: observer.allocate(20 * STATES * SCORE),
            sequences: observer.allocate(size.get()),
            letter: 0,
        }
    }
}

impl Kernel for Alignment {
    fn describe(&self) -> String {
        format!("alignment with {STATES} states, {} of sequences", Bytes(self.sequences.bytes()))
    }

    fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
        self.sequences.load(self.letter & !7, observer);
        let score = self.letter % 20 * STATES * SCORE;
        let (now, before) = if self.letter.is_multiple_of(2) { (0, 3) } else { (3, 0) };
        for state in 0..STATES {
            for row in 0..3 {
                self.rows.load((((before + row) * STATES + state) * SCORE) & !7, observer);
            }
            self.scores.load((score + state * SCORE) & !7, observer);
            observer.work(WORK);
            for row in 0..3 {
                self.rows.store((((now + row) * STATES + state) * SCORE) & !7, observer);
            }
        }
        self.letter = (self.letter + 1) % self.sequences.bytes();
        Step::More
    }
}
