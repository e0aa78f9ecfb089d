//! CBMM (Mansi, Tabatabai and Swift, USENIX ATC 2022): huge pages where a profile promises more
//! than they cost.
//!
//! The models are those of `mm/estimator.c` of its kernel (read): a huge page costs nothing if
//! one is free and zeroed, 200 000 cycles more if it must be zeroed, and 2^32 if none is free;
//! the benefit is the profile's. Compaction and khugepaged have a benefit of 0 there and never
//! run. Settings of its zeroing thread are those of its runner.
//!
//! It fills memory when it is mapped where an eager rule brings more than 10 us. The rules that its
//! artifact ships have a benefit of 1, a flag, in a model that compares cycles: as read (and not
//! executed), it fills nothing by them. Rules whose benefit is in cycles do what was meant.

use terrace_core::Cycles;

use super::{Ask, Background, Candidate, Choice, Effort, MmPolicy, Prezero};
use crate::mm::benefit::{Benefit, Place, Profile};
use crate::mm::costs::Costs;

/// What zeroing costs in its model: 100 µs, at 2000 cycles each.
const ZEROING: u64 = 200_000;
/// What a block costs that is not free.
const NONE_FREE: u64 = 1 << 32;
/// What filling a range costs: 10 us, at the 2.2 GHz of its machine.
const FILLING: Cycles = Cycles(22_000);
/// What an eager rule brings that says no more than that.
const FLAG: Cycles = Cycles(1);

/// CBMM.
#[derive(Clone, Debug)]
pub struct Cbmm {
    name: &'static str,
    profile: Profile,
    /// Questions that nobody has paid for yet.
    asked: u64,
}

impl Cbmm {
    /// With a profile.
    pub const fn new(name: &'static str, profile: Profile) -> Self {
        Self { name, profile, asked: 0 }
    }

    /// The price in its model.
    pub const fn cost(free: u64, zeroed: u64) -> Cycles {
        let block = if free > 0 { 0 } else { NONE_FREE };
        Cycles(block + if zeroed > 0 { 0 } else { ZEROING })
    }
}

impl MmPolicy for Cbmm {
    fn name(&self) -> &'static str {
        self.name
    }

    fn background(&self) -> Background {
        // 10 s to itself, then 10 base pages each 100 ms.
        let warm = Cycles(22_000_000_000);
        let prezero = Prezero { warm, pages: 10, sleep: Cycles(220_000_000) };
        Background { prezero: Some(prezero), ..Background::default() }
    }

    fn spent(&mut self, costs: &Costs) -> Cycles {
        costs.estimate * std::mem::take(&mut self.asked)
    }

    fn fills_mappings(&self) -> bool {
        self.profile.has_eager()
    }

    fn fills_when_mapped(&mut self, place: Place) -> bool {
        self.asked += 1;
        let rule = self.profile.eager(place);
        rule.is_some_and(|rule| rule.averted.unwrap_or(FLAG) > FILLING)
    }

    fn first_touch(&mut self, ask: &Ask<'_>) -> Choice {
        self.asked += 1;
        let benefit = self.profile.benefit(ask.place());
        let cost = Self::cost(ask.free_huge, ask.free_zeroed);
        // What is decided is carried out without compaction: `__GFP_DEADLINE`.
        if benefit > cost { Choice::Huge(Effort::Free) } else { Choice::Base }
    }

    fn collapse(&mut self, _candidate: &Candidate) -> f64 {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of `estimator.c`.
    #[test]
    fn prices_are_those_of_its_model() {
        assert_eq!(Cbmm::cost(5, 5), Cycles::ZERO);
        assert_eq!(Cbmm::cost(5, 0), Cycles(200_000));
        assert_eq!(Cbmm::cost(0, 0), Cycles(4_295_167_296));
    }
}
