//! What HeMem proposes.

use terrace_core::{
    Action, Bytes, Heat, PageRef, PageSize, Plan, Reason, Telemetry, TierId, Urgency,
};

use super::HeMem;
use super::page::Class;
use crate::regions::Room;

/// A page that is about to be proposed.
#[derive(Clone, Copy)]
struct Candidate {
    slot: u32,
    page: PageRef,
    size: PageSize,
    heat: Heat,
}

/// Whether to look at further candidates.
#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    /// Nothing more from this list.
    ListDone,
    /// This tier takes no more pages.
    TierDone,
    /// Nothing more may be proposed in this tick.
    TickDone,
}

/// What is left of a tick's limits.
struct Limits {
    room: Room,
    /// Migration traffic.
    bytes: Bytes,
    /// Proposals.
    proposals: u32,
    /// Pages that may be found to have cooled since they were listed.
    refreshes: u32,
    /// Pages of the list at hand that may still be found not hot enough.
    refusals: u32,
}

/// Pages of one list that are compared in a tick with the coldest page of the
/// faster tier without success, before we take it that none is hot enough.
/// Each goes to the young end, so the others have their turn in later ticks.
const REFUSALS: u32 = 64;

impl HeMem {
    /// Proposes hot pages of slower tiers for faster ones.
    pub(super) fn promote(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        let mut limits = Limits {
            room: Room::new(telemetry, &self.incoming),
            bytes: self.allowance.min(telemetry.migration_budget),
            proposals: self.proposal_cap,
            refreshes: self.state.config.sweep_pages,
            refusals: REFUSALS,
        };
        let before = limits.bytes;
        let tiers = telemetry.tier_count;
        'tick: for to in (0..tiers).map(TierId).filter(|&t| telemetry.tier(t).addressable) {
            'tier: for class in [Class::WriteHeavy, Class::Hot] {
                // The slowest tier first: there is most to gain.
                for from in (to.0 + 1..tiers).rev().map(TierId) {
                    // Pages of a tier that is not addressable come in by faults.
                    if !telemetry.tier(from).addressable {
                        continue;
                    }
                    limits.refusals = REFUSALS;
                    while let Some(slot) = self.state.oldest(from, class) {
                        match self.promote_one(
                            slot,
                            class,
                            (from, to),
                            telemetry,
                            &mut limits,
                            plan,
                        ) {
                            Next::Continue => {}
                            Next::ListDone => break,
                            Next::TierDone => break 'tier,
                            Next::TickDone => break 'tick,
                        }
                    }
                }
            }
        }
        self.proposed = self.proposal_cap - limits.proposals;
        self.allowance -= before - limits.bytes;
    }

    /// Proposes one page of a hot list, unless it has cooled meanwhile.
    fn promote_one(
        &mut self,
        slot: u32,
        class: Class,
        (from, to): (TierId, TierId),
        telemetry: &Telemetry,
        limits: &mut Limits,
        plan: &mut Plan,
    ) -> Next {
        if limits.proposals == 0 {
            return Next::TickDone;
        }
        if self.state.refresh(slot, class) != class {
            limits.refreshes = limits.refreshes.saturating_sub(1);
            return if limits.refreshes == 0 { Next::TickDone } else { Next::Continue };
        }
        let Some(hot) = self.candidate(slot, telemetry) else { return Next::TickDone };
        let reason =
            if class == Class::WriteHeavy { Reason::WriteHeavy } else { Reason::HotByLoads };
        let bytes = hot.size.bytes();

        if limits.room.fits(to, hot.size) {
            if limits.bytes < bytes {
                return Next::TickDone;
            }
        } else {
            let Some(cold) = self.state.oldest(to, Class::Cold) else {
                // Everything in the faster tier is hot: moving would not help.
                return Next::TierDone;
            };
            let Some(cold) = self.candidate(cold, telemetry) else { return Next::TickDone };
            if !self.state.is_colder(cold.slot, hot.slot) {
                limits.refusals -= 1;
                self.state.relist(hot.slot);
                return if limits.refusals == 0 { Next::ListDone } else { Next::Continue };
            }
            if cold.size == hot.size && self.can_exchange {
                if limits.bytes < bytes * 2 {
                    return Next::TickDone;
                }
                self.propose_exchange(hot, cold, (from, to), reason, plan);
                limits.bytes -= bytes * 2;
                limits.proposals -= 1;
                return Next::Continue;
            }
            // Demotions come before the promotion in the plan, so the room
            // that they make is there when it is carried out.
            match self.make_room(hot.size, (from, to), telemetry, limits, plan) {
                Next::Continue => {}
                stop => return stop,
            }
        }
        let op = plan.push(
            Action::Promote { page: hot.page, from, to },
            hot.size,
            hot.heat,
            Urgency::Voluntary,
            reason,
        );
        self.state.begin(hot.slot, op);
        self.incoming.begin(to, hot.size);
        limits.room.moved(from, to, hot.size);
        limits.bytes -= bytes;
        limits.proposals = limits.proposals.saturating_sub(1);
        Next::Continue
    }

    fn propose_exchange(
        &mut self,
        hot: Candidate,
        cold: Candidate,
        (slow, fast): (TierId, TierId),
        reason: Reason,
        plan: &mut Plan,
    ) {
        let op = plan.push_with_victim(
            Action::Exchange { promote: hot.page, demote: cold.page, fast, slow },
            hot.size,
            hot.heat,
            cold.heat,
            Urgency::Voluntary,
            reason,
        );
        self.state.begin(hot.slot, op);
        self.state.begin(cold.slot, op);
    }

    /// Proposes demotions of cold pages out of `to` until a page of `size` fits.
    fn make_room(
        &mut self,
        size: PageSize,
        (from, to): (TierId, TierId),
        telemetry: &Telemetry,
        limits: &mut Limits,
        plan: &mut Plan,
    ) -> Next {
        while !limits.room.fits(to, size) {
            let Some(cold) = self.state.oldest(to, Class::Cold) else { return Next::TierDone };
            let Some(cold) = self.candidate(cold, telemetry) else { return Next::TickDone };
            // The promotion that this is for has to be affordable as well.
            if limits.bytes < cold.size.bytes() + size.bytes() || limits.proposals < 2 {
                return Next::TickDone;
            }
            let below = if limits.room.fits(from, cold.size) {
                from
            } else {
                match limits.room.below(to, cold.size, telemetry) {
                    Some(tier) if limits.room.fits(tier, cold.size) => tier,
                    _ => return Next::TierDone,
                }
            };
            self.demote(cold, to, below, Urgency::Voluntary, Reason::MakesRoom, plan);
            limits.room.moved(to, below, cold.size);
            limits.bytes -= cold.size.bytes();
            limits.proposals -= 1;
        }
        Next::Continue
    }

    /// Proposes to free `bytes` of a tier, whatever it holds.
    pub(super) fn relieve(
        &mut self,
        tier: TierId,
        bytes: Bytes,
        telemetry: &Telemetry,
        plan: &mut Plan,
    ) {
        let mut room = Room::new(telemetry, &self.incoming);
        let mut freed = Bytes::ZERO;
        while freed < bytes {
            let Some(slot) = self.coldest(tier) else { return };
            let reason = match self.state.class(slot) {
                Class::Cold => Reason::PressureCold,
                Class::Hot | Class::WriteHeavy => Reason::PressureNoneCold,
            };
            let Some(victim) = self.candidate(slot, telemetry) else { return };
            let Some(to) = room.below(tier, victim.size, telemetry) else { return };
            self.demote(victim, tier, to, Urgency::Forced, reason, plan);
            room.moved(tier, to, victim.size);
            freed += victim.size.bytes();
        }
    }

    /// The page that a tier gives up next: of the cold the oldest, else of the
    /// hot by loads, else of the write-heavy. A page whose fault waits for room comes after
    /// all others: it cannot make that itself.
    fn coldest(&self, tier: TierId) -> Option<u32> {
        let mut any = None;
        for class in Class::ALL {
            for slot in self.state.list(tier, class).take(2) {
                if self.waits != Some(slot) {
                    return Some(slot);
                }
                any = Some(slot);
            }
        }
        any
    }

    fn demote(
        &mut self,
        victim: Candidate,
        from: TierId,
        to: TierId,
        urgency: Urgency,
        reason: Reason,
        plan: &mut Plan,
    ) {
        let action = Action::Demote { page: victim.page, from, to };
        let op = plan.push(action, victim.size, victim.heat, urgency, reason);
        self.state.begin(victim.slot, op);
        self.incoming.begin(to, victim.size);
    }

    fn candidate(&self, slot: u32, telemetry: &Telemetry) -> Option<Candidate> {
        let found = self.state.regions.page(slot);
        debug_assert!(found.is_some(), "a listed page belongs to a region");
        let (page, size) = found?;
        Some(Candidate { slot, page, size, heat: self.state.heat(slot, telemetry) })
    }
}
