//! What keeps the economist itself honest: a budget for exploring, hold-outs, a kill switch.

use terrace_core::{Nanos, OpId, PageRef, splitmix64};

use crate::account::Account;
use crate::watch::{key_of, lot};

/// Actions that have to be behind a judgement of a class.
const LEAST_COMPLETED: u64 = 64;

/// What exploring may cost: cycles that come in with time, and are kept for one horizon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purse {
    cycles: f64,
    last: Nanos,
}

impl Purse {
    /// A full purse, or else nothing could ever be learnt at the beginning.
    pub(crate) const fn full() -> Self {
        Self { cycles: f64::INFINITY, last: Nanos::ZERO }
    }

    /// Takes in what time has brought at so many cycles a second.
    pub(crate) fn fill(&mut self, rate: f64, horizon: Nanos, now: Nanos) {
        let came = rate * now.saturating_sub(self.last).as_secs();
        self.cycles = (self.cycles + came).min(rate * horizon.as_secs());
        self.last = self.last.max(now);
    }

    /// Pays for an action, if there is enough for any part of it: a dear action must be possible
    /// once in a while.
    pub(crate) fn pay(&mut self, cycles: f64) -> bool {
        if self.cycles <= 0.0 {
            return false;
        }
        self.cycles -= cycles;
        true
    }
}

/// Whether an action that pays is held out, to see what becomes of its page without it: drawn by
/// a number, one in so many; none for 0. Processes that number alike have different salts, or
/// else all of them would leave out the same.
pub(crate) fn is_held_out(number: u64, salt: u64, one_in: u32) -> bool {
    // Other bits than those that choose what is watched.
    one_in > 0 && (lot(OpId(number ^ salt)) >> 32).is_multiple_of(u64::from(one_in))
}

/// The number by which the moves of a page are drawn: the same for one horizon. A policy proposes a
/// page with every tick until it has moved, which may take many where traffic is bounded. Were each
/// proposal drawn by itself, such a page would be held out in the end for certain.
pub(crate) fn number_of(page: PageRef, horizon: Nanos, now: Nanos) -> u64 {
    key_of(page) ^ splitmix64(now.get() / horizon.get().max(1))
}

/// A process's salt.
pub(crate) fn salt_of(process: u32) -> u64 {
    lot(OpId(u64::from(process)))
}

/// The kill switch of one class of action.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Switch {
    /// The account when it was judged last, and when that was.
    completed: u64,
    net: f64,
    judged: Nanos,
    /// Until when the class stands still.
    stopped: Nanos,
}

impl Switch {
    /// Whether the class stands still. It is judged when enough was done and long enough has passed;
    /// what it has lost by then stops it for a horizon. `account` is of actions whose benefits have
    /// had the time to come about, as far as that takes long.
    pub(crate) fn is_off(&mut self, account: &Account, horizon: Nanos, now: Nanos) -> bool {
        if now < self.stopped {
            return true;
        }
        if self.judged.is_zero() {
            // Its first period begins: what is done now has to have time to come about.
            self.judged = now.max(Nanos(1));
        }
        if account.completed < self.completed + LEAST_COMPLETED || now < self.judged + horizon * 2 {
            return false;
        }
        let gained = account.net() - self.net;
        (self.completed, self.net, self.judged) = (account.completed, account.net(), now);
        if gained < 0.0 {
            self.stopped = now + horizon;
        }
        gained < 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::{Cycles, PageNo, RegionId};

    #[test]
    fn one_in_so_many_is_held_out_at_random() {
        for one_in in [20, 50, 100] {
            for salt in [0, salt_of(17), salt_of(18)] {
                let held = (0..100_000).filter(|&op| is_held_out(op, salt, one_in)).count();
                let share = held as f64 * f64::from(one_in) / 1e5;
                assert!((0.9..1.1).contains(&share), "{one_in}: {share}");
            }
        }
        assert!((0..1000).all(|op| !is_held_out(op, 0, 0)));
    }

    #[test]
    fn a_page_that_is_proposed_with_every_tick_is_drawn_once_in_a_horizon() {
        let horizon = Nanos::seconds(10);
        let page = |n| PageRef { region: RegionId(3), page: PageNo(n) };
        let is_drawn = |n, now| is_held_out(number_of(page(n), horizon, now), salt_of(17), 64);
        let ticks = || (0..100).map(|tick| Nanos::seconds(100) + Nanos::millis(100) * tick);
        let ever = |n: &u32| ticks().any(|now| is_drawn(*n, now));
        let drawn: Vec<u32> = (0..10_000).filter(ever).collect();
        assert!((100..220).contains(&drawn.len()), "one of 64: {}", drawn.len());
        let all = |n: &u32| ticks().all(|now| is_drawn(*n, now));
        assert!(drawn.iter().all(all), "for all of it");
        // Nor are the same pages left out for ever.
        let later = Nanos::seconds(110);
        let again = drawn.iter().filter(|n| is_drawn(**n, later)).count();
        assert!(again * 8 < drawn.len(), "{again} of {}", drawn.len());
    }

    /// A shell that starts the same program twice has two processes that number alike.
    #[test]
    fn siblings_hold_out_different_actions() {
        let of = |process| -> Vec<u64> {
            (0..10_000).filter(|&op| is_held_out(op, salt_of(process), 64)).collect()
        };
        let (one, other) = (of(4711), of(4712));
        let both = one.iter().filter(|op| other.contains(op)).count();
        assert!(both * 8 < one.len(), "{both} of {}", one.len());
    }

    #[test]
    fn a_purse_pays_until_it_is_empty_and_fills_with_time() {
        let mut purse = Purse::full();
        purse.fill(100.0, Nanos::seconds(10), Nanos::ZERO);
        assert!(purse.pay(600.0) && purse.pay(600.0), "the last may overdraw it");
        assert!(!purse.pay(1.0));
        purse.fill(100.0, Nanos::seconds(10), Nanos::seconds(1));
        assert!(!purse.pay(1.0), "200 were owed");
        purse.fill(100.0, Nanos::seconds(10), Nanos::seconds(60));
        assert!(purse.pay(1e9) && !purse.pay(1.0), "no more than a horizon's worth is kept");
    }

    #[test]
    fn a_class_that_loses_stands_still_for_a_while() {
        let mut switch = Switch::default();
        let horizon = Nanos::seconds(10);
        let account = |completed, benefit, cost| Account {
            completed,
            realised_benefit: Cycles(benefit),
            realised_cost: Cycles(cost),
            ..Account::default()
        };
        let at = Nanos::seconds;
        assert!(!switch.is_off(&account(64, 0, 1000), horizon, at(70)), "it has just begun");
        assert!(!switch.is_off(&account(64, 0, 1000), horizon, at(89)), "nothing came about yet");
        assert!(!switch.is_off(&account(10, 0, 1000), horizon, at(100)), "too few to judge");
        assert!(switch.is_off(&account(64, 500, 1000), horizon, at(100)));
        assert!(switch.is_off(&account(64, 500, 1000), horizon, at(109)));
        assert!(!switch.is_off(&account(64, 500, 1000), horizon, at(111)), "it may try again");
        // What was lost before does not count twice.
        assert!(!switch.is_off(&account(200, 1_500, 1_800), horizon, at(130)));
        assert!(switch.is_off(&account(300, 1_500, 9_000), horizon, at(160)));
    }
}
