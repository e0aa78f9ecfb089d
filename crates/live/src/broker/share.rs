//! Who gets how much: a pure function of what the processes hold and miss.
//!
//! Memory is worth most where most is missed for want of it. What a further
//! page would save a process cannot be observed; what can is how often its pages
//! come back. That *need* (refaults a second for each of its pages, absent or not)
//! falls as its share grows, also where a process does nothing but wait for faults
//! and refaults as often with any share. Counted for each *absent* page it is exactly
//! what a page is worth where accesses are uniform; but that rises as less is absent:
//! of two equal programs that waited for faults, the one with fourteen times as much
//! looked needier, and kept it. Need is weighed by the root of what a process
//! has already, so that equals end up with equal shares, and somebody much
//! needier with much more instead of everything.

use std::collections::HashMap;

use terrace_core::Bytes;

/// No process gets less as long as the budget has so much for each: the least
/// that a pager works well with.
pub const LEAST: Bytes = Bytes::mib(1);
/// Shares are multiples of a page.
const GRAIN: u64 = 4096;
/// Refaults a second below which a process is not worth taking memory from
/// another for: less than a thousandth of its time at 50 µs each.
pub(super) const NEEDY: f64 = 20.0;
/// How much needier the taker must be than the giver: below that, an estimate's
/// noise would send the same pages to and fro.
const CLEARLY: f64 = 1.5;
/// The part of the budget that changes hands in one balancing at least; four
/// times that where the difference is fourfold.
const STEP: u64 = 64;

/// A process, as the broker sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Claim {
    /// Its share.
    pub grant: Bytes,
    /// What it may still hold: more than its share while it gives back.
    pub held: Bytes,
    /// The most that it could use.
    pub want: Bytes,
    /// Pages that came back to it, a second.
    pub refaults: f64,
    /// What of its memory is not in DRAM.
    pub absent: Bytes,
}

impl Claim {
    /// What its share should not exceed. In coarse steps, so that a process that
    /// grows does not have to ask again and again.
    fn cap(&self, budget: Bytes, least: u64) -> u64 {
        let step = (budget.get() / 32).max(GRAIN);
        self.want.get().next_multiple_of(step).clamp(least, budget.get().max(least))
    }

    /// How badly it needs memory; see the module's text.
    fn score(&self, grant: u64) -> f64 {
        if self.refaults < NEEDY {
            return 0.0;
        }
        let pages = ((self.held + self.absent).get() / GRAIN).max(1) as f64;
        self.refaults / pages / (grant.max(GRAIN) as f64).sqrt()
    }
}

/// All of what is in common, see [`Pool`].
pub const WHOLE: u32 = 1 << 16;

/// A process that may have relatives: its family, and what it has in common with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relative {
    /// The same for all that were forked from one program; 0 if it has none.
    pub family: u32,
    /// Resident memory in frames that others have, too.
    pub common: Bytes,
    /// Whether it is managed: else it can let go of nothing.
    pub managed: bool,
}

/// A budget, without what processes have in common.
///
/// A frame that is mapped by several is one frame. What of them a process lets go of frees
/// nothing as long as another has it, and each that does packs the same content again. So the
/// frames in common count once, and stay, as long as others can do with the rest of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// What is divided among the processes, for all else.
    pub others: Bytes,
    /// What of its frames in common each may hold beside: so many parts of [`WHOLE`].
    pub scale: u32,
    /// What all families have in common together.
    pub common: Bytes,
}

/// What a family has in common, bytes: the most that any has, and the most that any has who is
/// not managed.
struct Family {
    common: u64,
    stays: u64,
    size: u32,
}

/// How many of them are of each one's family: 0 for who has no relatives.
pub fn family_sizes(members: &[Relative]) -> Vec<u32> {
    let mut sizes = HashMap::new();
    for member in members.iter().filter(|member| member.family != 0) {
        *sizes.entry(member.family).or_insert(0) += 1;
    }
    let size = |member: &Relative| sizes.get(&member.family).copied().unwrap_or(0);
    members.iter().map(size).map(|size| if size < 2 { 0 } else { size }).collect()
}

/// Sets aside what processes have in common. `patience`, between 0 and 1, falls as they
/// lack memory although it is set aside: then it has to leave, from each of them. Of a family of
/// two that costs little more than it brings (two packed pages for a frame), of many it costs
/// many times as much, and is not done.
pub fn pool(budget: Bytes, members: &[Relative], patience: f64) -> Pool {
    let sizes = family_sizes(members);
    let mut families = HashMap::new();
    for (member, &size) in members.iter().zip(&sizes).filter(|&(_, &size)| size > 0) {
        // What any two have in common is from before they were forked, and most of what was
        // there then is with each that has changed little: with who has most, nearly all.
        let family = families.entry(member.family).or_insert(Family { common: 0, stays: 0, size });
        family.common = member.common.get().max(family.common);
        if !member.managed {
            family.stays = member.common.get().max(family.stays);
        }
    }
    let sum = |of: fn(&Family) -> u64| families.values().fold(0u64, |n, f| n.saturating_add(of(f)));
    let common = sum(|family| family.common);
    // What one has that lets go of nothing stays where it is, whatever the others do.
    let stays = sum(|family| family.stays);
    let largest = families.values().map(|family| family.size).max().unwrap_or(2);
    let most = 7.0 / 8.0;
    let least = 1.0 - 2.0 / f64::from(largest);
    let part = (least + (most - least) * patience.clamp(0.0, 1.0)).min(most);
    let share = |part: f64| (budget.as_f64() * part) as u64;
    let cap = Bytes(share(part).max(stays).min(share(most)));
    let kept = Bytes(common).min(cap);
    let scale = if common <= cap.get() {
        WHOLE
    } else {
        (kept.as_f64() / common as f64 * f64::from(WHOLE)) as u32
    };
    Pool { others: budget - kept, scale, common: Bytes(common) }
}

/// New shares for processes, in the same order. With `balance`, shares also move
/// from the less needy to the needier by one step; without, only what is free is
/// given out, and what nobody can use or is due to others taken back.
///
/// The shares add up to the budget at most. If any is raised, what all processes
/// hold or may hold then does so, too.
pub fn share(budget: Bytes, claims: &[Claim], balance: bool) -> Vec<Bytes> {
    let total = budget.get() / GRAIN * GRAIN;
    let count = claims.len() as u64;
    if count == 0 {
        return Vec::new();
    }
    let least = LEAST.get().min(total / count / GRAIN * GRAIN);
    let cap: Vec<u64> = if count == 1 {
        vec![total]
    } else {
        claims.iter().map(|claim| claim.cap(budget, least) / GRAIN * GRAIN).collect()
    };
    let mut grant: Vec<u64> =
        claims.iter().zip(&cap).map(|(claim, &cap)| claim.grant.get().min(cap)).collect();
    fit(total, least, &mut grant);
    let free = |grant: &[u64]| {
        let held = claims.iter().zip(grant).map(|(claim, &grant)| claim.held.get().max(grant));
        total.saturating_sub(held.sum())
    };
    // What is on its way back will be free in a moment.
    let coming = |grant: &[u64]| {
        let back = claims.iter().zip(grant).map(|(claim, &g)| claim.held.get().saturating_sub(g));
        back.sum::<u64>()
    };
    // Nobody starves: those who have least are owed it by those who have more.
    let owed: u64 = grant.iter().map(|&g| least.saturating_sub(g)).sum();
    let lacking = owed.saturating_sub(free(&grant) + coming(&grant));
    take(lacking, least, &mut grant);
    if balance {
        let available = free(&grant) + coming(&grant);
        rebalance(total, least, claims, &cap, &mut grant, available);
    }
    let mut left = free(&grant) / GRAIN * GRAIN;
    for g in &mut grant {
        let more = least.saturating_sub(*g).min(left);
        *g += more;
        left -= more;
    }
    give(left, claims, &cap, &mut grant);
    grant.into_iter().map(Bytes).collect()
}

/// Lowers shares until they fit, each in proportion to what it has beyond the least.
fn fit(total: u64, least: u64, grant: &mut [u64]) {
    let sum: u64 = grant.iter().sum();
    take(sum.saturating_sub(total), least, grant);
    // Processes that were many times as many as the budget is large.
    let mut over = grant.iter().sum::<u64>().saturating_sub(total);
    for g in grant.iter_mut() {
        let less = (*g).min(over);
        *g -= less;
        over -= less;
    }
}

/// Takes an amount from those who have more than the least, in proportion.
fn take(amount: u64, least: u64, grant: &mut [u64]) {
    let above: u64 = grant.iter().map(|&g| g.saturating_sub(least)).sum();
    let amount = amount.min(above);
    if amount == 0 {
        return;
    }
    for g in grant.iter_mut() {
        let spare = g.saturating_sub(least);
        let part = (u128::from(spare) * u128::from(amount)).div_ceil(u128::from(above)) as u64;
        *g -= part.next_multiple_of(GRAIN).min(spare);
    }
}

/// Lowers the share of the least needy process if another needs it more; what it
/// gives back is given out when it is free.
fn rebalance(
    total: u64,
    least: u64,
    claims: &[Claim],
    cap: &[u64],
    grant: &mut [u64],
    available: u64,
) {
    let score = |i: usize| claims[i].score(grant[i]);
    let all = 0..claims.len();
    let taker =
        all.clone().filter(|&i| grant[i] < cap[i]).max_by(|&a, &b| score(a).total_cmp(&score(b)));
    let Some(taker) = taker.filter(|&i| score(i) > 0.0) else { return };
    let giver = all
        .filter(|&i| i != taker && grant[i] > least)
        .min_by(|&a, &b| score(a).total_cmp(&score(b)).then(grant[b].cmp(&grant[a])));
    let Some(giver) = giver else { return };
    let ratio = score(taker) / score(giver);
    if ratio < CLEARLY || ratio.is_nan() {
        return;
    }
    let step = (total / STEP) as f64 * (2.0 * ratio.log2()).clamp(1.0, 4.0);
    let deficit = cap[taker] - grant[taker];
    let amount = (step as u64)
        .min(deficit)
        // What is free or on its way serves first.
        .saturating_sub(available)
        .min(grant[giver] - least);
    grant[giver] -= amount.next_multiple_of(GRAIN).min(grant[giver] - least);
}

/// Gives out what is free: to the neediest first, half of it to each, and among
/// those who need nothing to those who have least.
fn give(mut left: u64, claims: &[Claim], cap: &[u64], grant: &mut [u64]) {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    order.sort_by(|&a, &b| {
        let score = |i: usize| claims[i].score(grant[i]);
        score(b).total_cmp(&score(a)).then(grant[a].cmp(&grant[b]))
    });
    // Every round gives at least half of what is left, or all that is wanted.
    while left >= GRAIN {
        let before = left;
        for &i in &order {
            let half = (left / 2).next_multiple_of(GRAIN).min(left);
            let more = cap[i].saturating_sub(grant[i]).min(half) / GRAIN * GRAIN;
            grant[i] += more;
            left -= more;
        }
        if left == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(shares: &[Bytes]) -> Bytes {
        shares.iter().fold(Bytes::ZERO, |sum, &share| sum + share)
    }

    fn claim(grant: u64, want: u64, refaults: f64, absent: u64) -> Claim {
        Claim {
            grant: Bytes::mib(grant),
            held: Bytes::mib(grant),
            want: Bytes::mib(want),
            refaults,
            absent: Bytes::mib(absent),
        }
    }

    /// Processes that access memory uniformly, as often as their misses let them,
    /// and give back at once what they are asked for.
    fn settle(budget: Bytes, claims: Vec<Claim>, eager: &[f64], rounds: usize) -> Vec<Claim> {
        settle_waiting(budget, claims, eager, 0.0, rounds)
    }

    /// The same where a fault takes so many seconds.
    fn settle_waiting(
        budget: Bytes,
        mut claims: Vec<Claim>,
        eager: &[f64],
        fault: f64,
        rounds: usize,
    ) -> Vec<Claim> {
        for _ in 0..rounds {
            for (claim, eager) in claims.iter_mut().zip(eager) {
                let missing = claim.want - claim.grant;
                claim.absent = missing;
                let miss = missing.as_f64() / claim.want.as_f64();
                claim.refaults = miss / (1.0 / eager + miss * fault);
            }
            let shares = share(budget, &claims, true);
            for (claim, share) in claims.iter_mut().zip(shares) {
                (claim.grant, claim.held) = (share, share);
            }
        }
        claims
    }

    fn relative(family: u32, common: u64) -> Relative {
        Relative { family, common: Bytes::mib(common), managed: true }
    }

    #[test]
    fn what_a_family_has_in_common_counts_once() {
        let members = [relative(7, 60), relative(7, 58), relative(0, 30), relative(9, 20)];

        let pool = pool(Bytes::mib(100), &members, 1.0);

        // Of 9 there is nobody else, and 0 is nobody's family.
        assert_eq!((pool.common, pool.others, pool.scale), (Bytes::mib(60), Bytes::mib(40), WHOLE));
        assert_eq!(family_sizes(&members), [2, 2, 0, 0]);
    }

    #[test]
    fn others_have_an_eighth_of_the_budget_whatever_is_in_common() {
        let pool = pool(Bytes::mib(80), &[relative(7, 100), relative(7, 100)], 1.0);

        assert_eq!(pool.others, Bytes::mib(10));
        assert_eq!(pool.scale, WHOLE / 100 * 70 + WHOLE % 100 * 70 / 100, "70 MiB may stay");
    }

    /// Impatience is in vain where a frame stays whoever lets go of it.
    #[test]
    fn what_is_in_common_with_who_is_not_managed_stays() {
        let parent = Relative { managed: false, ..relative(7, 50) };

        let pool = pool(Bytes::mib(100), &[parent, relative(7, 60)], 0.0);

        assert_eq!(pool.others, Bytes::mib(50));
        assert_eq!(pool.scale, (50.0 / 60.0 * f64::from(WHOLE)) as u32);
    }

    /// A page that two have in common is packed twice to give one frame, and the same by
    /// sixteen would be packed sixteen times.
    #[test]
    fn impatience_costs_two_relatives_all_that_they_have_in_common_and_many_little() {
        let two = [relative(7, 100), relative(7, 100)];
        let many = [relative(7, 100); 16];

        assert_eq!(pool(Bytes::mib(100), &two, 0.0).others, Bytes::mib(100));
        assert_eq!(pool(Bytes::mib(100), &two, 0.0).scale, 0);
        assert!(pool(Bytes::mib(100), &two, 0.5).others < Bytes::mib(100));
        assert!(pool(Bytes::mib(100), &many, 0.0).others < Bytes::mib(13));
    }

    proptest! {
        /// What is set aside and what is divided add up to the budget, and what each may keep
        /// of what is in common is no more than was set aside, or each has less.
        #[test]
        fn a_pool_is_never_more_than_the_budget(
            budget in 0u64..1 << 40,
            members in proptest::collection::vec((0u32..4, 0u64..1 << 40, any::<bool>()), 0..12),
            patience in 0.0f64..1.0,
        ) {
            let members: Vec<_> = members
                .into_iter()
                .map(|(family, common, managed)| Relative { family, common: Bytes(common), managed })
                .collect();

            let pool = pool(Bytes(budget), &members, patience);

            let aside = budget - pool.others.get();
            prop_assert!(aside <= budget / 8 * 7 + 7);
            let kept = u128::from(pool.common.get()) * u128::from(pool.scale) / u128::from(WHOLE);
            prop_assert!(kept <= u128::from(aside));
        }
    }

    #[test]
    fn one_process_has_everything_at_once() {
        let alone = [claim(0, 1, 0.0, 0)];

        assert_eq!(share(Bytes::mib(100), &alone, false), [Bytes::mib(100)]);
    }

    #[test]
    fn what_a_process_cannot_use_goes_to_one_that_can() {
        // As it is when a second process begins: the first has everything.
        let mut first = claim(64, 4, 0.0, 0);
        first.held = Bytes::mib(4);
        let shares = share(Bytes::mib(64), &[first, claim(0, 40, 0.0, 0)], false);

        assert!(shares[0] <= Bytes::mib(6), "{shares:?}");
        assert!(shares[1] >= Bytes::mib(40), "{shares:?}");
    }

    #[test]
    fn memory_that_was_not_given_back_yet_is_given_to_nobody() {
        let busy = claim(64, 100, 0.0, 0);

        let shares = share(Bytes::mib(64), &[busy, claim(0, 40, 100.0, 30)], true);

        assert_eq!(shares[1], Bytes::ZERO);
        assert!(shares[0] < Bytes::mib(64), "it is asked to give some back");
    }

    #[test]
    fn equals_end_up_equal_and_the_needier_with_more() {
        let budget = Bytes::mib(64);
        let start = vec![claim(60, 64, 0.0, 0), claim(4, 64, 0.0, 0)];

        let equal = settle(budget, start.clone(), &[1e4, 1e4], 200);
        let needier = settle(budget, start, &[1e3, 2e4], 200);

        let ratio = equal[0].grant / equal[1].grant;
        assert!((0.4..2.5).contains(&ratio), "{equal:?}");
        assert!(needier[1].grant > Bytes::mib(50), "{needier:?}");
        assert!(needier[0].grant >= LEAST, "{needier:?}");
    }

    /// Two of one program, on memory that they use all of, at every access: a fault takes 400
    /// times as long as an access, so whatever its share, each refaults as fast as faults are
    /// served. They once stayed at 14.7 and 1.1 of 16 MiB.
    #[test]
    fn equals_that_do_nothing_but_wait_for_faults_end_up_equal_too() {
        for budget in [16, 40, 60] {
            let start = vec![claim(budget - 1, 32, 0.0, 0), claim(1, 32, 0.0, 0)];

            let end = settle_waiting(Bytes::mib(budget), start, &[2e7, 2e7], 20e-6, 400);

            let ratio = end[0].grant / end[1].grant;
            assert!((0.4..2.5).contains(&ratio), "{budget} MiB: {end:?}");
        }
    }

    #[test]
    fn who_needs_nothing_gives_way_to_who_does() {
        let budget = Bytes::mib(64);
        let start = vec![claim(60, 64, 0.0, 0), claim(4, 64, 0.0, 0)];

        let end = settle(budget, start, &[0.0, 1e4], 100);

        assert!(end[1].grant > Bytes::mib(55), "{end:?}");
    }

    #[test]
    fn nothing_moves_between_processes_that_do_not_miss() {
        let claims = [claim(60, 64, 1.0, 4), claim(4, 64, 2.0, 60)];

        assert_eq!(share(Bytes::mib(64), &claims, true), [Bytes::mib(60), Bytes::mib(4)]);
    }

    #[test]
    fn a_lower_budget_is_kept_at_once_by_the_shares() {
        let claims = [claim(60, 64, 1e4, 4), claim(4, 64, 1e4, 60), claim(0, 3, 0.0, 0)];

        let shares = share(Bytes::mib(16), &claims, true);

        assert!(sum(&shares) <= Bytes::mib(16), "{shares:?}");
        assert!(shares[0] > shares[1], "in proportion: {shares:?}");
    }

    fn any_claim() -> impl Strategy<Value = Claim> {
        let pages = || prop_oneof![Just(0u64), 0..64u64, 0..100_000u64];
        (pages(), pages(), pages(), 0.0..1e5f64, pages()).prop_map(
            |(grant, held, want, refaults, absent)| Claim {
                grant: Bytes(grant * GRAIN),
                held: Bytes(held * GRAIN),
                want: Bytes(want * GRAIN + want % 7),
                refaults,
                absent: Bytes(absent * GRAIN),
            },
        )
    }

    proptest! {
        /// Whatever processes say of themselves.
        #[test]
        fn shares_never_add_up_to_more_than_the_budget(
            budget in 0..2_000_000_000u64,
            claims in proptest::collection::vec(any_claim(), 0..40),
            balance: bool,
        ) {
            let shares = share(Bytes(budget), &claims, balance);

            prop_assert_eq!(shares.len(), claims.len());
            prop_assert!(sum(&shares).get() <= budget, "{shares:?}");
            let raised = shares.iter().zip(&claims).any(|(share, claim)| *share > claim.grant);
            let held: u64 = shares.iter().zip(&claims).map(|(s, c)| s.max(&c.held).get()).sum();
            prop_assert!(!raised || held <= budget, "raised, but {held} of {budget} is held");
        }

        /// Processes that do as they are asked, some slowly: everybody gets the
        /// least, the budget is kept all the time, and nothing usable lies idle.
        #[test]
        fn processes_that_give_back_leave_nobody_without(
            budget in 4_000_000..1_000_000_000u64,
            claims in proptest::collection::vec(any_claim(), 1..12),
        ) {
            let total = Bytes(budget);
            let mut claims = claims;
            for claim in &mut claims {
                (claim.grant, claim.held) = (Bytes::ZERO, Bytes::ZERO);
            }
            for round in 0..400u64 {
                let shares = share(total, &claims, true);
                for (i, (claim, share)) in claims.iter_mut().zip(shares).enumerate() {
                    claim.grant = share;
                    let slow = (round + i as u64).is_multiple_of(3);
                    claim.held = if slow { claim.held.max(share) } else { share };
                }
                let held: u64 = claims.iter().map(|c| c.held.max(c.grant).get()).sum();
                prop_assert!(held <= budget, "{held} of {budget} in round {round}");
            }
            let least = LEAST.get().min(budget / claims.len() as u64 / GRAIN * GRAIN);
            for claim in &claims {
                prop_assert!(claim.grant.get() >= least, "{claim:?} {claims:?}");
            }
        }
    }
}
