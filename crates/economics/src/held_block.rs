//! A block that is not made, to see whether one becomes free without it.
//!
//! Pages move together where a huge page is wanted and no block is free. The kernel frees blocks by itself,
//! too, as programs end and give memory back. In one of so many seconds nothing is moved: if there is a block
//! meanwhile, moving pages would have brought nothing; if there is none, all of it.
//!
//! It is the second that is drawn, and not the proposal. Where blocks are asked for thousands of times a
//! second, one of the first dozens would be drawn, and with it all the others of its second.

use terrace_core::{Cycles, Nanos};

/// For how long nothing is moved at most: a huge page that comes later was not ahead of anything.
const WAITED: Nanos = Nanos::SECOND;

/// The number by which a time is drawn; `None` if too little of its second is left to see anything.
pub(crate) fn number_of(now: Nanos) -> Option<u64> {
    let (turn, had) = (now.get() / WAITED.get(), now.get() % WAITED.get());
    (had < WAITED.get() / 2).then_some(turn)
}

/// A time in which no pages are moved together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldBlock {
    /// What a block was expected to bring.
    worth: f64,
    until: Nanos,
}

impl HeldBlock {
    /// From now on until its second is over.
    pub(crate) fn new(worth: f64, now: Nanos) -> Self {
        let over = (now.get() / WAITED.get()).saturating_add(1).saturating_mul(WAITED.get());
        Self { worth, until: Nanos(over) }
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

    #[test]
    fn a_second_is_over_for_all_of_it_and_its_end_is_too_late_to_begin() {
        let (early, late) = (Nanos::millis(7_400), Nanos::millis(7_600));
        assert_eq!((number_of(early), number_of(late)), (Some(7), None));
        let held = HeldBlock::new(500.0, early);
        assert!(!held.is_over(late) && held.is_over(Nanos::seconds(8)));
    }
}
