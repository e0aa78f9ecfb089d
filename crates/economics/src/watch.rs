//! Watches what becomes of moved pages: the realised benefit, by observation.
//!
//! Not every moved page can be watched, and a sample must be handled in a few
//! nanoseconds. So there is one direct-mapped table of fixed size. Which moves
//! are watched is decided by a hash of their number, never by heat, more
//! sparsely as the table fills; each watched page stands for itself and all
//! moves of its kind since the last watched one, so that no move is left out of
//! the extrapolation, also when a place in the table was taken.

use terrace_core::{
    Access, ActionClass, Cycles, Nanos, OpId, PageNo, PageRange, PageRef, RegionId, Sample,
    SampleSource,
};

use crate::access::Saving;
use crate::account::Account;
use crate::economist::CLASSES;

/// Places in the table.
const PLACES: usize = 1024;

/// Whether a page went up or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Its accesses gain.
    Up,
    /// Its accesses lose.
    Down,
    /// It was held out: its accesses would have gained.
    HeldOut,
}

/// A moved page, to be watched until the horizon of its decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    /// The page.
    pub(crate) page: PageRef,
    /// The action that moved it.
    pub(crate) class: ActionClass,
    /// Where it went.
    pub(crate) direction: Direction,
    /// What was predicted of its accesses, in cycles.
    pub(crate) predicted: f64,
    /// What each access gains or loses.
    pub(crate) each: Saving,
    /// For how long that was predicted.
    pub(crate) horizon: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Watch {
    moved: Move,
    /// Moves that this one stands for; 0 for a free place.
    weight: u32,
    begin: Nanos,
    end: Nanos,
    observed: f64,
    touched: bool,
}

impl Watch {
    const FREE: Self = Self {
        moved: Move {
            page: PageRef { region: RegionId(0), page: PageNo(0) },
            class: ActionClass::Promote,
            direction: Direction::Up,
            predicted: 0.0,
            each: Saving { load: 0.0, store: 0.0, touch: 0.0 },
            horizon: Nanos::ZERO,
        },
        weight: 0,
        begin: Nanos::ZERO,
        end: Nanos::ZERO,
        observed: 0.0,
        touched: false,
    };

    /// The part of its time that it has had.
    fn share_at(&self, now: Nanos) -> f64 {
        let had = now.saturating_sub(self.begin).as_f64();
        let whole = self.moved.horizon.as_f64();
        if whole > 0.0 { (had / whole).min(1.0) } else { 1.0 }
    }
}

/// The table of watched pages.
#[derive(Clone, Debug)]
pub(crate) struct Watches {
    places: Box<[Watch]>,
    open: usize,
    /// Moves since the last watched one, by class and direction.
    unwatched: [[u32; 3]; 3],
    /// Where the next sweep for ended watches begins.
    hand: usize,
}

impl Watches {
    /// An empty table; without places if nothing is to be watched.
    pub(crate) fn new(enabled: bool) -> Self {
        let places = if enabled { PLACES } else { 0 };
        Self {
            places: vec![Watch::FREE; places].into_boxed_slice(),
            open: 0,
            unwatched: [[0; 3]; 3],
            hand: 0,
        }
    }

    /// Forgets everything that is watched.
    pub(crate) fn clear(&mut self) {
        self.unwatched = [[0; 3]; 3];
        if self.open > 0 {
            self.places.fill(Watch::FREE);
            self.open = 0;
        }
    }

    /// One move in so many is watched: all while there is room.
    fn sparsity(&self) -> u64 {
        match self.open * 4 / PLACES {
            0 => 1,
            1 => 4,
            2 => 16,
            _ => 64,
        }
    }

    /// A page was moved: ends what was watched about it, and perhaps watches it.
    pub(crate) fn moved(
        &mut self,
        op: OpId,
        moved: Move,
        now: Nanos,
        accounts: &mut [Account; CLASSES],
    ) {
        if self.places.is_empty() {
            return;
        }
        let place = place_of(moved.page);
        if self.holds(place, moved.page) {
            // What was held out, and is proposed anew, was without it for a part of the time only.
            let share = match self.places[place].moved.direction {
                Direction::HeldOut => self.places[place].share_at(now),
                Direction::Up | Direction::Down => 1.0,
            };
            self.close(place, share, accounts);
        }
        let unwatched = &mut self.unwatched[moved.class.index()][moved.direction as usize];
        *unwatched = unwatched.saturating_add(1);
        let weight = *unwatched;
        if self.places[place].weight == 0 && lot(op).is_multiple_of(self.sparsity()) {
            self.unwatched[moved.class.index()][moved.direction as usize] = 0;
            self.places[place] = Watch {
                moved,
                weight,
                begin: now,
                end: now + moved.horizon,
                observed: 0.0,
                touched: false,
            };
            self.open += 1;
        }
    }

    /// Accesses were observed; each nominal sample stands for `period` of them.
    pub(crate) fn observe(
        &mut self,
        samples: &[Sample],
        period: u64,
        now: Nanos,
        accounts: &mut [Account; CLASSES],
    ) {
        if self.open == 0 {
            return;
        }
        for sample in samples {
            let place = place_of(sample.page);
            if !self.holds(place, sample.page) {
                continue;
            }
            let watch = &mut self.places[place];
            if now > watch.end {
                continue;
            }
            let Saving { load, store, touch } = watch.moved.each;
            // What was seen access by access is not extrapolated.
            let period = match sample.source {
                SampleSource::Exact | SampleSource::Refault => 1,
                _ => period.max(1),
            };
            let accesses = f64::from(sample.weight) * period as f64;
            let each = match sample.access {
                Access::Read => load,
                Access::Write => store,
            };
            let mut cycles = accesses * each;
            if !watch.touched {
                watch.touched = true;
                cycles += touch;
            }
            watch.observed += cycles;
            let account = &mut accounts[watch.moved.class.index()];
            // What turns out the other way round is on the other side, as in a ledger.
            let all = cycles * f64::from(watch.weight);
            let (as_said, otherwise) =
                (Cycles::from_f64(all.max(0.0)), Cycles::from_f64((-all).max(0.0)));
            let (benefit, harm) = match watch.moved.direction {
                Direction::Up => (as_said, otherwise),
                Direction::Down => (otherwise, as_said),
                // It counts when the watch ends, together with what was predicted.
                Direction::HeldOut => continue,
            };
            account.realised_benefit += benefit;
            account.realised_harm += harm;
        }
    }

    /// Pages were given back: what was predicted of them has to be judged by
    /// what they did until now.
    pub(crate) fn forget(&mut self, range: PageRange, accounts: &mut [Account; CLASSES]) {
        if self.open == 0 {
            return;
        }
        if (range.count as usize) < PLACES {
            for page in range.pages() {
                let place = place_of(page);
                if self.holds(place, page) {
                    self.close(place, 1.0, accounts);
                }
            }
        } else {
            for place in 0..self.places.len() {
                if self.places[place].weight > 0 && range.contains(self.places[place].moved.page) {
                    self.close(place, 1.0, accounts);
                }
            }
        }
    }

    /// Ends the watches whose horizon has passed, looking at `count` places.
    pub(crate) fn sweep(&mut self, count: usize, now: Nanos, accounts: &mut [Account; CLASSES]) {
        if self.open == 0 {
            return;
        }
        for _ in 0..count {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.places.len();
            if self.places[place].weight > 0 && now > self.places[place].end {
                self.close(place, 1.0, accounts);
            }
        }
    }

    /// Ends every watch: those that have not reached their horizon are judged
    /// by the part of the prediction that fell into the time they had.
    pub(crate) fn finish(&mut self, now: Nanos, accounts: &mut [Account; CLASSES]) {
        for place in 0..self.places.len() {
            let watch = &self.places[place];
            if watch.weight > 0 {
                let share = watch.share_at(now);
                self.close(place, share, accounts);
            }
        }
    }

    fn holds(&self, place: usize, page: PageRef) -> bool {
        self.places[place].weight > 0 && self.places[place].moved.page == page
    }

    fn close(&mut self, place: usize, share: f64, accounts: &mut [Account; CLASSES]) {
        let watch = &mut self.places[place];
        let weight = f64::from(watch.weight);
        let account = &mut accounts[watch.moved.class.index()];
        let predicted = Cycles::from_f64(watch.moved.predicted * share * weight);
        let observed = Cycles::from_f64(watch.observed * weight);
        account.judged += u64::from(watch.moved.direction != Direction::HeldOut);
        match watch.moved.direction {
            Direction::Up => {
                account.judged_predicted_benefit += predicted;
                account.judged_realised_benefit += observed;
            }
            Direction::Down => {
                account.judged_predicted_harm += predicted;
                account.judged_realised_harm += observed;
            }
            Direction::HeldOut => {
                account.held_out_predicted += predicted;
                account.held_out_observed += observed;
            }
        }
        watch.weight = 0;
        self.open -= 1;
    }
}

/// A page's place in the table.
fn place_of(page: PageRef) -> usize {
    scatter(page) % PLACES
}

/// Spreads pages (Fibonacci hashing; the high bits are the good ones).
pub(crate) fn scatter(page: PageRef) -> usize {
    let key = (u64::from(page.region.0) << 32) | u64::from(page.page.0);
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize
}

/// A number drawn for an action. Unrelated to the pages' places, or else the
/// chosen moves would all compete for the same few.
pub(crate) fn lot(op: OpId) -> u64 {
    terrace_core::splitmix64(op.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageRef = PageRef { region: RegionId(1), page: PageNo(7) };
    const CLASS: ActionClass = ActionClass::Promote;

    /// A page that went there, of which each load gains or loses 10 cycles, and each store 4 the
    /// other way round.
    fn watching(direction: Direction) -> (Watches, [Account; CLASSES]) {
        let (mut watches, mut accounts) = (Watches::new(true), [Account::default(); CLASSES]);
        let moved = Move {
            page: PAGE,
            class: CLASS,
            direction,
            predicted: 1000.0,
            each: Saving { load: 10.0, store: -4.0, touch: 0.0 },
            horizon: Nanos::SECOND,
        };
        watches.moved(OpId(1), moved, Nanos::ZERO, &mut accounts);
        (watches, accounts)
    }

    fn samples(loads: u32, stores: u32) -> Vec<Sample> {
        let of = |access| Sample { page: PAGE, access, source: SampleSource::Exact, weight: 1 };
        let loads = (0..loads).map(|_| of(Access::Read));
        loads.chain((0..stores).map(|_| of(Access::Write))).collect()
    }

    /// Under load latencies cross, and a page may be worse off where it was to be better.
    #[test]
    fn what_turns_out_the_other_way_round_is_not_left_out() {
        for (direction, benefit, harm) in [(Direction::Up, 30, 20), (Direction::Down, 20, 30)] {
            let (mut watches, mut accounts) = watching(direction);
            watches.observe(&samples(3, 5), 1, Nanos(1), &mut accounts);
            let account = accounts[CLASS.index()];
            let found = (account.realised_benefit, account.realised_harm);
            assert_eq!(found, (Cycles(benefit), Cycles(harm)), "{direction:?}");
        }
    }

    /// The ratio of both would be of different pages.
    #[test]
    fn what_was_held_out_counts_with_what_was_predicted_of_it() {
        let (mut watches, mut accounts) = watching(Direction::HeldOut);
        watches.observe(&samples(3, 5), 1, Nanos(1), &mut accounts);
        let account = accounts[CLASS.index()];
        assert_eq!((account.held_out_predicted, account.held_out_observed), Default::default());
        watches.finish(Nanos::SECOND, &mut accounts);
        let account = accounts[CLASS.index()];
        let found = (account.held_out_predicted, account.held_out_observed);
        assert_eq!(found, (Cycles(1000), Cycles(10)));
        assert!(account.realised_benefit.is_zero() && account.realised_harm.is_zero());
    }

    /// A policy proposes again at the next tick what was refused. Were all counted that was predicted
    /// of a whole horizon, nothing that was held out would seem to be worth anything.
    #[test]
    fn what_was_held_out_and_comes_later_is_judged_by_the_time_that_it_was_without() {
        let (mut watches, mut accounts) = watching(Direction::HeldOut);
        watches.observe(&samples(3, 5), 1, Nanos(1), &mut accounts);
        let moved = Move { direction: Direction::Up, ..watches.places[place_of(PAGE)].moved };
        watches.moved(OpId(2), moved, Nanos::millis(100), &mut accounts);
        let account = accounts[CLASS.index()];
        let found = (account.held_out_predicted, account.held_out_observed);
        assert_eq!(found, (Cycles(100), Cycles(10)), "a tenth of a second's thousand");
        assert_eq!(account.judged, 0);
    }
}
