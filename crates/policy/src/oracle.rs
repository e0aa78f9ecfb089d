//! The oracle: knows what the program will do, and moves what pays.
//!
//! It is told the accesses that the program is about to make to each page, and
//! brings up the page that will be used most in place of the one that will be
//! used least, as long as the time saved until the end of what it foresees is
//! longer than the time that the move takes. No policy that has to guess can
//! place pages better by how much they are used: the upper bound for those.
//!
//! It is no bound for a policy that leaves hot pages in the slower tier because
//! the faster one is overloaded; the oracle only stops bringing pages up then.

use core::cmp::Ordering;

use terrace_core::{
    Bytes, BytesPerSecond, Done, FaultKind, Heat, Nanos, PageRange, PageRef, PageSize, PerSecond,
    Plan, Reason, Region, Sample, Telemetry, TierId, Upcoming,
};

use crate::contract::{Footprint, Needs, Policy};
use crate::roster::{Candidate, Next, PerPage, Raised, Roster, Standing};

/// The oracle's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OracleConfig {
    /// How far it sees: 30 s. Beyond the time in which the largest migration
    /// that a run allows (10 GiB/s) fills any of our machines' fast tiers.
    pub foresight: Nanos,
    /// How often it plans.
    pub tick: Nanos,
    /// What a move takes beside the copy: 4 us, two changes of a mapping with a
    /// write-protection and a TLB shootdown of 1 us each (`machines/*.toml`).
    pub remap: Nanos,
    /// The rate of the copy: 10 GiB/s, HeMem's bound of migration.
    pub copy: BytesPerSecond,
}

impl Default for OracleConfig {
    fn default() -> Self {
        Self {
            foresight: Nanos::seconds(30),
            tick: Nanos::millis(10),
            remap: Nanos::micros(4),
            copy: BytesPerSecond((10u64 << 30) as f64),
        }
    }
}

/// A page that may move, with what is to come.
#[derive(Clone, Copy, Debug)]
struct Fate {
    slot: u32,
    /// Accesses to come, for each byte of the page: how well it uses room.
    density: f32,
    /// Its turn among those that are alike: that of arrival.
    turn: u32,
}

/// The oracle.
#[derive(Debug)]
pub struct Oracle {
    config: OracleConfig,
    roster: Roster<1>,
    /// Accesses to come.
    coming: PerPage<f32>,
    /// Slots of which any are to come.
    named: Vec<u32>,
    /// Whether anything has changed since the last plan that found nothing to do.
    settled: bool,
    up: Vec<Fate>,
    down: Vec<Fate>,
}

impl Oracle {
    /// The policy without regions.
    pub fn new(config: OracleConfig) -> Self {
        Self {
            config,
            roster: Roster::new(),
            coming: PerPage::default(),
            named: Vec::new(),
            settled: false,
            up: Vec::new(),
            down: Vec::new(),
        }
    }

    /// Checks the lists. Visits all pages.
    pub fn audit(&self) -> Result<(), String> {
        self.roster.audit()
    }

    fn heat(&self, slot: u32) -> Heat {
        let window = self.config.foresight;
        let accesses = f64::from(self.coming[slot]);
        Heat {
            loads: PerSecond::from_count(accesses, window),
            samples: accesses as u32,
            window,
            ..Heat::default()
        }
    }

    /// Lists the pages of tier `to`, least used first, and of slower
    /// addressable tiers, most used first, as many of each as may be moved.
    fn rank(&mut self, to: TierId, telemetry: &Telemetry) {
        self.up.clear();
        self.down.clear();
        for (tier, _) in telemetry.ladder().filter(|(tier, _)| *tier >= to) {
            let up = tier > to;
            if up && !telemetry.tier(tier).addressable {
                continue;
            }
            for slot in self.roster.iter(tier, 0) {
                let coming = self.coming[slot];
                if up && coming <= 0.0 {
                    continue;
                }
                let Some((_, size)) = self.roster.page(slot) else { continue };
                let density = coming / size.bytes().as_f64() as f32;
                let fates = if up { &mut self.up } else { &mut self.down };
                fates.push(Fate { slot, density, turn: fates.len() as u32 });
            }
        }
        // No more than the budget moves; of the others the order is no matter.
        let most = self.roster.budget().get() / PageSize::Base.bytes().get();
        first_of(&mut self.up, most as usize, |a, b| b.density.total_cmp(&a.density));
        first_of(&mut self.down, most as usize, |a, b| a.density.total_cmp(&b.density));
    }
}

/// Keeps the first `most` in an order, in that order. Ties go by turn.
fn first_of(fates: &mut Vec<Fate>, most: usize, order: impl Fn(&Fate, &Fate) -> Ordering) {
    let order = |a: &Fate, b: &Fate| order(a, b).then(a.turn.cmp(&b.turn));
    if most < fates.len() {
        fates.select_nth_unstable_by(most, order);
        fates.truncate(most);
    }
    fates.sort_unstable_by(order);
}

impl Policy for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn needs(&self) -> Needs {
        Needs {
            tick: Some(self.config.tick),
            foresight: Some(self.config.foresight),
            ..Needs::default()
        }
    }

    fn alloc(&mut self, region: &Region) {
        let slots = self.roster.alloc(region);
        self.coming.grow(slots);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        self.settled = false;
        self.roster.fault(page, kind, telemetry, |_, _, _| 0)
    }

    fn samples(&mut self, _samples: &[Sample]) {}

    fn foresee(&mut self, upcoming: &[Upcoming]) {
        self.settled = false;
        for &slot in &self.named {
            self.coming[slot] = 0.0;
        }
        self.named.clear();
        for coming in upcoming {
            if let Some(slot) = self.roster.slot(coming.page) {
                self.coming[slot] = coming.loads + coming.stores;
                self.named.push(slot);
            }
        }
    }

    fn free(&mut self, range: PageRange, whole: bool) {
        let coming = &mut self.coming;
        self.roster.free(range, whole, |slot| coming[slot] = 0.0);
        self.settled = false;
    }

    fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        if self.settled {
            return;
        }
        self.roster.survey(telemetry);
        let mut moved = false;
        let faster = telemetry.tier_count.saturating_sub(1);
        for to in (0..faster).map(TierId).filter(|&t| telemetry.tier(t).addressable) {
            self.rank(to, telemetry);
            let (up, down) = (core::mem::take(&mut self.up), core::mem::take(&mut self.down));
            let mut losers = down.iter().peekable();
            for winner in &up {
                let Standing::Listed(from, _) = self.roster.standing(winner.slot) else { continue };
                let Some((_, size)) = self.roster.page(winner.slot) else { continue };
                let slow = telemetry.tier(from).read_latency;
                let fast = telemetry.tier(to).read_latency;
                let saved = (slow.as_f64() - fast.as_f64()).max(0.0);
                let cost = (self.config.remap + self.config.copy.time_for(size.bytes())).as_f64();
                let bytes = size.bytes().as_f64();
                let gain = |density: f32| f64::from(density) * bytes * saved;
                if gain(winner.density) <= cost {
                    break;
                }
                let page = Candidate { slot: winner.slot, heat: self.heat(winner.slot) };
                let coming = &self.coming;
                let window = self.config.foresight;
                let raised = self.roster.raise(page, to, Reason::Foreseen, telemetry, plan, |_| {
                    let loser = losers
                        .next_if(|loser| gain(winner.density - loser.density) > 2.0 * cost)?;
                    let accesses = f64::from(coming[loser.slot]);
                    let loads = PerSecond::from_count(accesses, window);
                    let heat = Heat { loads, window, ..Heat::default() };
                    Some(Candidate { slot: loser.slot, heat })
                });
                moved |= raised == Raised::Proposed || raised == Raised::NoBudget;
                if matches!(raised, Raised::NoRoom | Raised::NoBudget) {
                    break;
                }
            }
            (self.up, self.down) = (up, down);
        }
        // What is under way may still come to nothing: `done` looks again.
        self.settled = !moved;
    }

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        self.settled = false;
        self.roster.survey(telemetry);
        self.rank(tier, telemetry);
        let down = core::mem::take(&mut self.down);
        let mut losers = down.iter();
        self.roster.relieve(tier, bytes, telemetry, plan, |roster| {
            // Beyond the ranked ones all is alike: the order of arrival.
            let waits = |slot| matches!(roster.standing(slot), Standing::Listed(..));
            let slot = match losers.find(|loser| waits(loser.slot)) {
                Some(loser) => loser.slot,
                None => roster.oldest(tier, 0)?,
            };
            Some((Candidate { slot, heat: Heat::default() }, Reason::PressureCold))
        });
        self.down = down;
    }

    fn done(&mut self, done: &Done) {
        self.settled = false;
        self.roster.done(done, |ended| Next::List(0, ended.usual_end()));
    }

    fn footprint(&self) -> Footprint {
        let fates = (self.up.capacity() + self.down.capacity()) * size_of::<Fate>();
        let heap = self.roster.heap_bytes()
            + self.coming.heap_bytes()
            + self.named.capacity() * size_of::<u32>()
            + fates;
        Footprint::of(size_of::<Self>(), heap, self.roster.slots())
    }
}
