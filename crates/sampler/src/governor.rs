//! The cap on what sampling may cost.
//!
//! Two means, because a mean alone is not a cap. Every [`WINDOW`] the cost of
//! the last window decides whether samples become rarer or denser, by powers
//! of two, as MEMTIS does. And whatever was spent beyond the cap is a debt:
//! sampling rests until it is paid off. So a sampler that rests when it is told
//! to cannot cost more than the cap and the one look that exceeded it; one that
//! the kernel drives (DAMON's thread) becomes as rare as pays for it.
//!
//! Who works in bursts is judged by a window that has several of them. A burst
//! that looked like a rate made sampling rarer each time, until nothing was seen.

use terrace_core::Nanos;

/// Over how long a cost is judged.
const WINDOW: Nanos = Nanos::seconds(1);
/// Over how long at least: sooner than at its end, if all of a window's allowance is spent.
const SHORT: Nanos = Nanos::millis(250);
/// Below this share of the cap there is room for twice as many samples.
const DENSER: f64 = 0.4;
/// From so rare on, a sampler that the kernel drives takes orders late: DAMON does when a picture is
/// complete, which takes most of a window then,
const LATE: u32 = 8;
/// and has fewer regions one picture later: so many windows go by.
const LAG: u32 = 2;

/// Keeps sampling below a share of one processor.
#[derive(Clone, Debug)]
pub struct Governor {
    cap: f64,
    rarity: u32,
    /// When the present window began, and what had been spent then.
    since: Option<(Nanos, Nanos)>,
    /// What was spent beyond the cap before the present window.
    debt: Nanos,
    /// Windows that have to run to their ends since samples became rarer, the present one
    /// included: until orders are taken the old cost says nothing. Only the last one is judged.
    settling: u32,
    /// Whether resting makes it cheaper. If not, a debt says nothing of what the rarity at hand
    /// costs.
    rests: bool,
}

/// What a governor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Samples are to be so many times as rare as configured.
    pub rarity: u32,
    /// Nothing is to be sampled before this moment.
    pub rest_until: Nanos,
}

impl Governor {
    /// The share of one processor that sampling may use unless told otherwise:
    /// 3 %, as MEMTIS has it.
    pub const DEFAULT_CAP: f64 = 0.03;

    /// The rarest that samples may become: 65,536 times the configured
    /// distance. Beyond that a sampler is as good as off.
    const RAREST: u32 = 1 << 16;

    /// A governor for a cap between 0 and 1; a cap that is no number is taken
    /// for the default.
    pub fn new(cap: f64) -> Self {
        let cap = if cap.is_finite() { cap.clamp(1e-4, 1.0) } else { Self::DEFAULT_CAP };
        Self { cap, rarity: 1, since: None, debt: Nanos::ZERO, settling: 0, rests: true }
    }

    /// The same for who is driven by others, and costs what its rarity makes it cost.
    pub fn of_driven(cap: f64) -> Self {
        Self { rests: false, ..Self::new(cap) }
    }

    /// The share of one processor that sampling may use.
    pub fn cap(&self) -> f64 {
        self.cap
    }

    /// Judges the cost so far (`spent`, since the beginning) at a moment.
    pub fn judge(&mut self, now: Nanos, spent: Nanos) -> Order {
        let (begin, before) = *self.since.get_or_insert((now, spent));
        let elapsed = now.saturating_sub(begin);
        let cost = spent.saturating_sub(before);
        let allowed = Nanos::from_f64(elapsed.as_f64() * self.cap);
        let debt = (self.debt + cost).saturating_sub(allowed);
        let rest_until = now + Nanos::from_f64(debt.as_f64() / self.cap);
        let excessive = cost > Nanos::from_f64(WINDOW.as_f64() * self.cap);
        if elapsed >= WINDOW || elapsed >= SHORT && excessive && self.settling == 0 {
            let share = cost.as_f64() / elapsed.as_f64();
            let before = self.rarity;
            if self.settling > 1 {
                // What the old orders cost. Taken for the cost of the new ones it would make
                // samples rarer twice.
            } else if share > self.cap {
                // At once as rare as it has to be.
                let factor = (share / self.cap).ceil().min(f64::from(Self::RAREST)) as u32;
                let factor = factor.max(2).next_power_of_two();
                self.rarity = self.rarity.saturating_mul(factor).min(Self::RAREST);
            } else if share < self.cap * DENSER && (debt.is_zero() || !self.rests) {
                self.rarity = (self.rarity / 2).max(1);
            }
            self.settling = match self.rarity > before {
                true if self.rests || before < LATE => 1,
                true => LAG + 1,
                false => self.settling.saturating_sub(1),
            };
            self.since = Some((now, spent));
            self.debt = debt;
        }
        Order { rarity: self.rarity, rest_until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A sampler whose looks cost `look / rarity` each, driven by a clock that
    /// exists only here. Returns the share that sampling used.
    fn drive(governor: &mut Governor, look: impl Fn(Nanos) -> Nanos, length: Nanos) -> (f64, u32) {
        let (mut now, mut spent) = (Nanos::ZERO, Nanos::ZERO);
        let mut rarity = 1;
        while now < length {
            let order = governor.judge(now, spent);
            rarity = order.rarity;
            if now >= order.rest_until {
                let cost = Nanos(look(now).get() / u64::from(rarity));
                spent += cost;
                now += cost;
            }
            now += Nanos::millis(10);
        }
        (spent / now, rarity)
    }

    proptest! {
        /// The promise to the operator. If resting were left out, a sampler
        /// ten times too dear would take the whole share it wants until the
        /// rarity has caught up.
        #[test]
        fn no_cost_of_a_look_exceeds_the_cap(
            cap in 0.005f64..0.2, look_us in 1u64..200_000, spikes in 1u64..50,
        ) {
            let mut governor = Governor::new(cap);
            let dear = |now: Nanos| {
                let spike = (now.get() / 1_000_000_000).is_multiple_of(spikes);
                Nanos::micros(if spike { look_us * 4 } else { look_us })
            };
            let length = Nanos::seconds(120);
            let (share, _) = drive(&mut governor, dear, length);
            // One look of the dearest kind may end just behind the end.
            let last = Nanos::micros(look_us * 4) / length;
            prop_assert!(share <= cap * 1.01 + last, "{share} of {cap}");
        }
    }

    /// DAMON's thread goes on while we rest: only rarity helps. If resting kept the rarity from
    /// being judged, it would be too dear for ever. And it works in bursts, one a look: taken for
    /// rates they once made it ever rarer.
    #[test]
    fn a_sampler_that_cannot_rest_becomes_as_rare_as_it_must_be() {
        let mut governor = Governor::of_driven(0.03);
        let (mut spent, mut late) = (Nanos::ZERO, Nanos::ZERO);
        let (mut rarity, mut next) = (1, Nanos::ZERO);
        for tick in 0..6_000u64 {
            let now = Nanos::millis(tick * 10);
            rarity = governor.judge(now, spent).rarity;
            if now < next {
                continue;
            }
            // A look takes 15 % of the time to the next one as configured; but not below 300 ms,
            // when it becomes smaller instead.
            let distance = 10 * u64::from(rarity);
            let cost = Nanos::millis(10) * 15 / 100 * distance.min(300) / distance;
            spent += cost;
            next = now + Nanos::millis(distance.min(300));
            if tick >= 3_000 {
                late += cost;
            }
        }
        let share = late / Nanos::seconds(30);
        assert!(share <= 0.03, "{share} at rarity {rarity}");
        assert!(share >= 0.01, "{share} at rarity {rarity}: rarer than it has to be");
    }

    /// DAMON takes an order when a picture is complete, a second after it was given, and another
    /// goes by until it has fewer regions. What the old order cost was judged as the new one's:
    /// samples became 16 times as rare as they had to be, and nothing was seen for ten seconds.
    #[test]
    fn an_order_that_is_taken_late_is_not_given_twice() {
        let mut governor = Governor { rarity: 16, ..Governor::of_driven(0.03) };
        let mut orders = std::collections::VecDeque::from([16; 200]);
        let (mut spent, mut rarest) = (Nanos::ZERO, 0);
        for tick in 0..3_000u64 {
            let rarity = governor.judge(Nanos::millis(tick * 10), spent).rarity;
            orders.push_back(rarity);
            let in_force = orders.pop_front().expect("two seconds of orders");
            // At 512 times as rare it would be just within the cap.
            spent += Nanos::from_f64(0.03 * 10e6 * 500.0 / f64::from(in_force));
            rarest = rarest.max(rarity);
        }
        assert!((512..=1024).contains(&rarest), "{rarest}");
    }

    #[test]
    fn a_cheap_sampler_runs_as_configured() {
        let (share, rarity) =
            drive(&mut Governor::new(0.03), |_| Nanos::micros(50), Nanos::seconds(20));
        assert_eq!(rarity, 1);
        assert!(share < 0.01);
    }

    #[test]
    fn a_dear_sampler_becomes_rare_and_dense_again_when_it_is_cheap() {
        let mut governor = Governor::new(0.03);
        let (_, rare) = drive(&mut governor, |_| Nanos::millis(20), Nanos::seconds(30));
        assert!(rare >= 2, "what takes twice the time there is has to become rarer, got {rare}");
        governor.since = None;
        governor.debt = Nanos::ZERO;
        let (_, dense) = drive(&mut governor, |_| Nanos::micros(10), Nanos::seconds(60));
        assert_eq!(dense, 1, "what was a burst must not blind the policy for ever");
    }
}
