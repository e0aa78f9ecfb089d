//! A block that is not made, to see whether one becomes free without it.
//!
//! Pages move together where a huge page is wanted and no block is free. The kernel frees blocks by itself,
//! too, as programs end and give memory back. One of so many times nothing is moved for a while: if there is
//! a block meanwhile, moving pages would have brought nothing; if there is none, all of it.

use terrace_core::{Cycles, Nanos};

/// For how long nothing is moved: a huge page that comes later was not ahead of anything.
const WAITED: Nanos = Nanos::SECOND;

/// A time in which no pages are moved together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldBlock {
    /// What a block was expected to bring.
    worth: f64,
    until: Nanos,
}

impl HeldBlock {
    /// From now on.
    pub(crate) fn new(worth: f64, now: Nanos) -> Self {
        Self { worth, until: now + WAITED }
    }

    /// What a block was expected to bring.
    pub(crate) fn worth(&self) -> Cycles {
        Cycles::from_f64(self.worth)
    }

    /// Whether that is over.
    pub(crate) fn is_over(&self, now: Nanos) -> bool {
        now >= self.until
    }

    /// Somebody has looked for a free block: what a made one would have brought, once that is known.
    pub(crate) fn judge(&self, is_any: bool, now: Nanos) -> Option<Cycles> {
        match (is_any, self.is_over(now)) {
            (true, _) => Some(Cycles::ZERO),
            (false, true) => Some(self.worth()),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_comes_by_itself_need_not_be_made() {
        let begin = Nanos::seconds(7);
        let held = HeldBlock::new(500.0, begin);
        let soon = begin + Nanos::millis(100);
        assert_eq!(held.judge(false, soon), None, "it may still come");
        assert_eq!(held.judge(true, soon), Some(Cycles::ZERO));
        assert_eq!(held.judge(false, begin + WAITED), Some(Cycles(500)));
    }
}
