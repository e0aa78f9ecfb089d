//! A search through a game's positions with a table of those seen before: 458.sjeng, 445.gobmk.

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_core::{Bytes, splitmix64};

use crate::workload::SimRng;
use crate::workload::observed::{Kernel, Observer, Span, Step};

/// Bytes of an entry; a position's place has four of them, in a line.
const ENTRY: u64 = 16;
/// The board, lists of moves, piece tables: what each node of the search goes through again.
const BOARD: u64 = 16 << 10;
/// Accesses to the board for each node, and instructions for each. Assumed: generating and
/// evaluating moves takes some thousand instructions.
const LOOKS: u64 = 400;
const WORK: u64 = 4;

/// A table of positions, and a board.
pub struct GameTree {
    table: Span,
    board: Span,
    position: u64,
    rng: SimRng,
}

impl GameTree {
    /// A table of about so many bytes.
    pub fn new(size: Bytes, seed: u64, observer: &mut Observer) -> Self {
        let board = observer.allocate(BOARD);
        let table = observer.allocate(size.get().saturating_sub(BOARD).max(4096));
        Self { table, board, position: splitmix64(seed), rng: SimRng::seed_from_u64(seed) }
    }
}

impl Kernel for GameTree {
    fn describe(&self) -> String {
        format!("a game's positions, a table of {}", Bytes(self.table.bytes()))
    }

    fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
        // A move changes the position's hash.
        self.position ^= splitmix64(self.rng.next_u64() & 0xffff);
        let lines = self.table.bytes() / 64;
        let line = ((u128::from(splitmix64(self.position)) * u128::from(lines)) >> 64) as u64 * 64;
        for entry in 0..4 {
            self.table.load(line + entry * ENTRY, observer);
            observer.work(2);
        }
        for _ in 0..LOOKS {
            let random = self.rng.next_u64();
            let at = (random % BOARD) & !7;
            if random >> 60 == 0 {
                self.board.store(at, observer);
            } else {
                self.board.load(at, observer);
            }
            observer.work(WORK);
        }
        self.table.store(line + (self.position & 3) * ENTRY, observer);
        Step::More
    }
}
