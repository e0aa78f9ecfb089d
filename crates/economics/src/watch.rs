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
    /// What the move has cost; nothing of a page that was held out, or that makes room in an exchange.
    pub(crate) cost: Cycles,
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
    /// How often anybody had looked when it began.
    looks: u64,
    /// Whether it is among those that the kill switch judges by.
    judged: bool,
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
            cost: Cycles::ZERO,
        },
        weight: 0,
        begin: Nanos::ZERO,
        end: Nanos::ZERO,
        observed: 0.0,
        touched: false,
        looks: 0,
        judged: false,
    };

    fn begin(moved: Move, weight: u32, looks: u64, now: Nanos) -> Self {
        let end = now + moved.horizon;
        let (observed, touched, judged) = (0.0, false, false);
        Self { moved, weight, begin: now, end, observed, touched, looks, judged }
    }

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
    unwatched: [[u32; 2]; MOVES],
    /// Where the next sweep for ended watches begins.
    hand: usize,
    /// How often accesses were observed. A refault does not count: it says nothing of pages that are
    /// mapped.
    looks: u64,
    /// How long a move is watched before the kill switch judges by it, unless it ends before that.
    trial: Nanos,
    /// By class: moves that have been watched for so long, and at which somebody looked, with the part
    /// of their cost that falls to that time. The kill switch judges by them.
    tried: [Account; MOVES],
}

/// Classes of action that move pages of their own: promote, demote, exchange.
const MOVES: usize = 3;

impl Watches {
    /// An empty table; without places if nothing is to be watched.
    pub(crate) fn new(enabled: bool, trial: Nanos) -> Self {
        let places = if enabled { PLACES } else { 0 };
        Self {
            places: vec![Watch::FREE; places].into_boxed_slice(),
            open: 0,
            unwatched: [[0; 2]; MOVES],
            hand: 0,
            looks: 0,
            trial,
            tried: Default::default(),
        }
    }

    /// Forgets everything that is watched.
    pub(crate) fn clear(&mut self) {
        self.unwatched = [[0; 2]; MOVES];
        self.tried = Default::default();
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
            // What was held out, and moves all the same, was without it for a part of the time only.
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
            self.places[place] = Watch::begin(moved, weight, self.looks, now);
            self.open += 1;
        }
    }

    /// Whether a page that stays where it is could be watched. Where another one is watched, or this
    /// one for a move, it could not be, and to hold it out would teach nothing.
    pub(crate) fn has_room(&self, page: PageRef, now: Nanos) -> bool {
        let watch = self.places.get(place_of(page));
        watch.is_some_and(|watch| watch.weight == 0 || now > watch.end)
    }

    /// Whether a page's move was held out, and its time is not over.
    pub(crate) fn holds_out(&self, page: PageRef, now: Nanos) -> bool {
        let watch = self.places.get(place_of(page));
        watch.is_some_and(|watch| {
            let is_it = watch.weight > 0 && watch.moved.page == page;
            is_it && watch.moved.direction == Direction::HeldOut && now <= watch.end
        })
    }

    /// A page's move is held out: watches the page where it is, for all of the time. It stands for
    /// itself alone, and is watched however full the table is: there is one for dozens of moves.
    pub(crate) fn hold_out(&mut self, moved: Move, now: Nanos, accounts: &mut [Account; CLASSES]) {
        debug_assert_eq!(moved.direction, Direction::HeldOut);
        if !self.has_room(moved.page, now) {
            return;
        }
        let place = place_of(moved.page);
        if self.places[place].weight > 0 {
            self.close(place, 1.0, accounts);
        }
        self.places[place] = Watch::begin(moved, 1, self.looks, now);
        self.open += 1;
    }

    /// The account of a class's moves that have been tried; `None` of classes that move nothing.
    pub(crate) fn tried(&self, class: ActionClass) -> Option<&Account> {
        self.tried.get(class.index())
    }

    /// Enters a watch into what the kill switch judges by, with a part of what the move has cost.
    fn judge(&mut self, place: usize, part: f64) {
        let watch = &mut self.places[place];
        watch.judged = true;
        // A move at which nobody looked may have brought anything.
        if self.looks == watch.looks {
            return;
        }
        let weight = f64::from(watch.weight);
        let (gained, moves) = match watch.moved.direction {
            Direction::Up => (watch.observed * weight, watch.weight),
            Direction::Down => (-watch.observed * weight, 0),
            Direction::HeldOut => return,
        };
        let Some(tried) = self.tried.get_mut(watch.moved.class.index()) else { return };
        tried.completed += u64::from(moves);
        tried.realised_cost += Cycles::from_f64(watch.moved.cost.as_f64() * weight * part);
        tried.realised_benefit += Cycles::from_f64(gained.max(0.0));
        tried.realised_harm += Cycles::from_f64((-gained).max(0.0));
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
        let is_look = samples.iter().any(|sample| sample.source != SampleSource::Refault);
        self.looks += u64::from(is_look);
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

    /// Ends the watches whose horizon has passed, and judges those that have been watched for long,
    /// looking at `count` places. A horizon may be an hour: a class that loses is not to go on for it.
    pub(crate) fn sweep(&mut self, count: usize, now: Nanos, accounts: &mut [Account; CLASSES]) {
        if self.open == 0 {
            return;
        }
        for _ in 0..count {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.places.len();
            let watch = &self.places[place];
            if watch.weight == 0 {
                continue;
            }
            if now > watch.end {
                self.close(place, 1.0, accounts);
            } else if !watch.judged && now > watch.begin + self.trial {
                let part = watch.share_at(now);
                self.judge(place, part);
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
        // What ends with the run before its time is over has not brought all that it brings.
        if !self.places[place].judged && share >= 1.0 {
            self.judge(place, 1.0);
        }
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
    (key_of(page).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize
}

/// A page as a number.
pub(crate) fn key_of(page: PageRef) -> u64 {
    (u64::from(page.region.0) << 32) | u64::from(page.page.0)
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
        let mut watches = Watches::new(true, Nanos::seconds(10));
        let mut accounts = [Account::default(); CLASSES];
        let moved = Move {
            page: PAGE,
            class: CLASS,
            direction,
            predicted: 1000.0,
            each: Saving { load: 10.0, store: -4.0, touch: 0.0 },
            horizon: Nanos::SECOND,
            cost: Cycles(25),
        };
        if direction == Direction::HeldOut {
            watches.hold_out(moved, Nanos::ZERO, &mut accounts);
        } else {
            watches.moved(OpId(1), moved, Nanos::ZERO, &mut accounts);
        }
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

    /// A second watch on the same page would be of less than the whole time; and where another page is
    /// watched, nobody would see what becomes of this one.
    #[test]
    fn a_page_is_held_out_for_all_of_its_time_and_only_where_it_can_be_watched() {
        let (mut watches, mut accounts) = watching(Direction::HeldOut);
        let moved = watches.places[place_of(PAGE)].moved;
        let half = Nanos::millis(500);
        assert!(watches.holds_out(PAGE, half) && !watches.has_room(PAGE, half));
        watches.hold_out(moved, half, &mut accounts);
        assert_eq!(accounts[CLASS.index()], Account::default(), "the first goes on");
        let other = PageRef { region: RegionId(2), ..PAGE };
        assert!(!watches.holds_out(other, half));
        let over = Nanos::seconds(2);
        assert!(!watches.holds_out(PAGE, over) && watches.has_room(PAGE, over));
        watches.hold_out(moved, over, &mut accounts);
        assert_eq!(accounts[CLASS.index()].held_out_predicted, Cycles(1000), "it had all its time");
        assert!(watches.holds_out(PAGE, Nanos::millis(2900)) && watches.open == 1);
        let (moving, _) = watching(Direction::Down);
        assert!(!moving.has_room(PAGE, half), "what it is missed for there is still being watched");
        let off = Watches::new(false, Nanos::SECOND);
        assert!(!off.has_room(PAGE, half), "nothing is watched at all");
    }

    /// Not to be seen is not to be idle.
    #[test]
    fn what_nobody_looked_at_is_not_judged_and_what_came_back_is_no_look() {
        let close = |looks: &[Sample]| {
            let (mut watches, mut accounts) = watching(Direction::Up);
            watches.observe(looks, 1, Nanos(1), &mut accounts);
            watches.sweep(PLACES, Nanos::seconds(2), &mut accounts);
            *watches.tried(CLASS).expect("it moves pages")
        };
        assert_eq!(close(&[]), Account::default());
        let sample = samples(1, 0)[0];
        let elsewhere = PageRef { region: RegionId(9), ..PAGE };
        let back = Sample { page: elsewhere, source: SampleSource::Refault, ..sample };
        assert_eq!(close(&[back]), Account::default());
        let idle = close(&[Sample { page: elsewhere, ..sample }]);
        assert_eq!((idle.completed, idle.realised_cost), (1, Cycles(25)));
        assert!(idle.realised_benefit.is_zero(), "it was looked at, and is idle");
        assert!((close(&samples(3, 5)).net() - (30.0 - 20.0 - 25.0)).abs() < 1e-9);
    }

    /// It has cost all that it costs.
    #[test]
    fn what_ends_with_the_run_before_its_time_is_not_judged() {
        let (mut watches, mut accounts) = watching(Direction::Up);
        watches.observe(&samples(1, 0), 1, Nanos(1), &mut accounts);
        watches.finish(Nanos::millis(300), &mut accounts);
        assert_eq!(watches.tried(CLASS), Some(&Account::default()));
        assert_eq!(watches.tried(ActionClass::Prezero), None);
    }

    /// Pages of a steady program are taken to stay in use for an hour.
    #[test]
    fn a_move_with_a_long_horizon_is_judged_when_it_was_tried_by_its_part_of_the_cost() {
        let (mut watches, mut accounts) = watching(Direction::Up);
        let moved = Move { horizon: Nanos::seconds(100), ..watches.places[place_of(PAGE)].moved };
        watches.clear();
        watches.moved(OpId(1), moved, Nanos::ZERO, &mut accounts);
        watches.observe(&samples(1, 0), 1, Nanos(1), &mut accounts);
        watches.sweep(PLACES, Nanos::seconds(10), &mut accounts);
        assert_eq!(watches.tried(CLASS), Some(&Account::default()));
        watches.sweep(PLACES, Nanos::seconds(20), &mut accounts);
        let tried = *watches.tried(CLASS).expect("it moves pages");
        let found = (tried.completed, tried.realised_benefit, tried.realised_cost);
        assert_eq!(found, (1, Cycles(10), Cycles(5)), "a fifth of 25");
        watches.sweep(PLACES, Nanos::seconds(101), &mut accounts);
        assert_eq!(watches.tried(CLASS), Some(&tried), "once");
        assert_eq!(accounts[CLASS.index()].judged, 1, "and it was watched to its end");
    }
}
