//! What the engine does by itself, priced: pages that come back ahead of walks, those that zram writes to
//! a file, and those that it compresses again. No policy proposes these, and most runs have none.
//!
//! Its economist is another one than a policy's. A recording has what a policy's was told, so that a
//! replay gives the same plans; of questions in between it would know nothing. And what a fault spares,
//! and what becomes of a page that nobody wanted, is something else here ([`calibration`]).

use terrace_core::{
    Abort, Action, Bytes, Done, Frequency, Heat, Nanos, Outcome, PageSize, PerSecond, Proposal,
    Reason, Telemetry, TierId, Urgency,
};
use terrace_economics::walks::Became;
use terrace_economics::{Calibration, Decision, Economist};

use super::books::{Room, SWAP};
use super::world::World;
use crate::repack::{Idle, Repacked};
use crate::setup::SwapKind;
use crate::store::Written;

/// The file that compressed pages are written to.
const FILE: TierId = TierId(2);
/// Files that are mapped, and memory that processes share.
pub(super) const MAPPED: TierId = TierId(3);
/// Processor time that it takes to bring a page back ahead of a walk, with its copy. It holds until
/// outcomes say more. This figure and those below are measured: `docs/engines.md`.
const BROUGHT: Nanos = Nanos(4_900);
/// What a page that came back ahead spares the program beside that time. A touch takes 8 µs where the page
/// is compressed, and 1.9 µs where it has come back.
const SPARED: Nanos = Nanos(1_200);
/// The same where it has to be read from a disk, for which nobody's processor is busy.
const SPARED_BY_DISK: Nanos = Nanos::micros(100);

/// What the engine's own actions cost and spare, where pages are swapped to this.
pub fn calibration(swap: SwapKind) -> Calibration {
    let spared = match swap {
        SwapKind::Zram | SwapKind::Zswap => SPARED,
        SwapKind::Disk => SPARED_BY_DISK,
    };
    Calibration {
        user_fault: spared,
        // A system call of each window.
        promote_fixed: Nanos::micros(1),
        // A page that came back and was not touched is mapped nowhere, and swap still has it. It goes
        // without being written, and no processor has to forget it.
        demote_fixed: Nanos::ZERO,
        compress: Nanos::ZERO,
        shootdown_per_cpu: Nanos::ZERO,
        ..terrace_live::activate::calibrate()
    }
}

/// Where the engine asks about what it does by itself.
#[derive(Debug)]
pub(super) struct Desk {
    economist: Economist,
    /// Decisions that nobody has taken yet; `None` where nobody will.
    decided: Option<Vec<Decision>>,
    /// Idle pages that were let be compressed again, and are not yet.
    repacks: Option<Proposal>,
    /// Pages that have come back from zram's file, as far as that is in the account.
    returned: u64,
}

impl Desk {
    pub(super) fn new(economist: Economist) -> Self {
        Self { economist, decided: None, repacks: None, returned: 0 }
    }

    pub(super) fn economist(&self) -> &Economist {
        &self.economist
    }

    pub(super) fn clock(&self) -> Frequency {
        self.economist.calibration().clock
    }

    pub(super) fn keep_decisions(&mut self, keep: bool) {
        self.decided = keep.then(Vec::new);
    }

    pub(super) fn take_decided(&mut self) -> Vec<Decision> {
        self.decided.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The world as the prices of these actions see it. What a page of mapped files takes to be brought in
    /// is `mapped`, once that is known.
    pub(super) fn telemetry(
        &self,
        world: &mut dyn World,
        room: &Room,
        mapped: Option<Nanos>,
    ) -> Telemetry {
        let mut telemetry = room.telemetry(world.now());
        telemetry.cpu_load = world.load();
        // The copy has an item of its own, and no time would count as unknown.
        let copied = self.economist.calibration().copy_bandwidth.time_for(PageSize::Base.bytes());
        let fetch = |brought: Nanos| (brought - copied).max(Nanos(1));
        telemetry.tiers[SWAP.index()].read_latency = fetch(BROUGHT);
        telemetry.tiers[MAPPED.index()].read_latency = fetch(mapped.unwrap_or(BROUGHT));
        telemetry
    }

    /// Asks about an action, and charges what asking took; the proposal if it may be carried out.
    pub(super) fn consider(
        &mut self,
        world: &mut dyn World,
        action: Action,
        heat: Heat,
        why: (Urgency, Reason),
        telemetry: &Telemetry,
    ) -> Option<Proposal> {
        let begin = world.cpu();
        let (proposal, decision) =
            self.economist.consider(action, PageSize::Base, heat, why, telemetry);
        let took = world.cpu().saturating_sub(begin);
        self.economist.spent(self.clock().cycles(took));
        if let Some(decided) = &mut self.decided {
            decided.push(decision);
        }
        decision.passes.then_some(proposal)
    }

    /// What has become of walks.
    pub(super) fn became(&mut self, became: &Became, telemetry: &Telemetry) {
        if let Some((proposal, outcome)) = became.ended {
            self.economist.settle(&Done { proposal, outcome }, telemetry);
        }
        if let Some((used, cost)) = became.brought {
            self.economist.walked_into(used, cost);
        }
        if let Some(pages) = &became.left_out {
            self.economist.left_out(pages);
        }
    }

    /// Pages went to zram's file. They went because the user bounds what compressed pages take: nobody
    /// could refuse it, so it is one forced action for all of them.
    pub(super) fn wrote_back(&mut self, world: &mut dyn World, room: &Room, written: &Written) {
        // Nobody says what it takes to read one.
        self.economist.came_back(written.returned.saturating_sub(self.returned), Nanos::ZERO);
        self.returned = written.returned;
        let mut telemetry = self.telemetry(world, room, None);
        // The room that compressed pages may take is what is scarce.
        let store = &mut telemetry.tiers[SWAP.index()];
        (store.capacity, store.free) = (written.limit.max(Bytes(1)), written.limit - written.held);
        // What a page takes to be read the kernel does not say: the model has a figure for that.
        telemetry.tiers[FILE.index()].write_latency = written.took / written.pages.max(1);
        telemetry.tier_count = 3;
        let heat = returns(written.returned, written.there, written.window);
        let pages = u32::try_from(written.pages).unwrap_or(u32::MAX);
        let action = Action::Reclaim { from: SWAP, to: FILE, pages, bytes: written.bytes };
        let why = (Urgency::Forced, Reason::StoreFull);
        if let Some(proposal) = self.consider(world, action, heat, why, &telemetry) {
            let cost = self.clock().cycles(written.took);
            let moved = PageSize::Base.bytes() * written.pages;
            let outcome = Outcome::Completed { cost, moved };
            self.economist.settle(&Done { proposal, outcome }, &telemetry);
        }
    }

    /// Whether idle pages are to be compressed again, so that they take less where they lie.
    pub(super) fn may_recompress(
        &mut self,
        world: &mut dyn World,
        room: &Room,
        idle: &Idle,
    ) -> bool {
        let mut telemetry = self.telemetry(world, room, None);
        let store = &mut telemetry.tiers[SWAP.index()];
        (store.capacity, store.free) = (idle.room.0.max(Bytes(1)), idle.room.1);
        let heat = returns(idle.returned, idle.there, idle.window);
        let [least, saves, most] = idle.saves;
        let action = Action::Recompress {
            tier: SWAP,
            below: idle.has_file.then_some(FILE),
            pages: u32::try_from(idle.pages).unwrap_or(u32::MAX),
            each: idle.each,
            least,
            saves,
            most,
        };
        if let Some(proposal) = self.repacks.take() {
            // It was too late for the turn that it was about.
            let outcome = Outcome::Aborted(Abort::Stale);
            self.economist.settle(&Done { proposal, outcome }, &telemetry);
        }
        let why = (Urgency::Voluntary, Reason::PackedIdle);
        self.repacks = self.consider(world, action, heat, why, &telemetry);
        self.repacks.is_some()
    }

    /// Idle pages have been compressed again.
    pub(super) fn recompressed(&mut self, world: &mut dyn World, room: &Room, repacked: &Repacked) {
        let Some(proposal) = self.repacks.take() else { return };
        let telemetry = self.telemetry(world, room, None);
        let cost = self.clock().cycles(repacked.took);
        let moved = PageSize::Base.bytes() * repacked.pages;
        let outcome = Outcome::Completed { cost, moved };
        self.economist.settle(&Done { proposal, outcome }, &telemetry);
    }
}

/// How often a page comes back, where so many of those that lie somewhere did within a time.
fn returns(returned: u64, there: u64, window: Nanos) -> Heat {
    Heat {
        loads: PerSecond::from_count(returned as f64 / there.max(1) as f64, window),
        samples: u32::try_from(returned).unwrap_or(u32::MAX),
        window,
        ..Heat::default()
    }
}
