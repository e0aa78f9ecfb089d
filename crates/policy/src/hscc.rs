//! HSCC: DRAM as a cache that the operating system manages (Liu et al., ICS
//! 2017, "Hardware/software cooperative caching for hybrid DRAM/NVM memory
//! architectures"), in the form that Kindle evaluates.
//!
//! Pages begin in the slowest tier. Hardware counts the last-level misses of
//! each page beside its TLB entry; every 31.25 ms the operating system goes over
//! the pages in order of address and brings up those that reached the fetch
//! threshold: into free room, else in place of the page that came first among
//! the clean ones, else among the dirty ones. A page is never ranked against
//! another, and what was brought up stays until its room is wanted.
//!
//! Where it differs from the publication: the contract moves pages and keeps no
//! copy in the slow tier, so a clean page that gives way is copied back, too;
//! and the threshold is fixed, as in Kindle, where the paper lets it follow what
//! migration brings.

use terrace_core::{
    Access, Bytes, Done, FaultKind, Heat, Nanos, PageRange, PageRef, PerSecond, Plan, Reason,
    Region, Sample, Telemetry, TierId,
};

use crate::contract::{Footprint, Needs, Policy};
use crate::roster::{Candidate, End, Next, PerPage, Raised, Roster, Standing};

/// HSCC's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HsccConfig {
    /// Counted misses from which on a page is brought up: Kindle tries 5, 25
    /// and 50.
    pub threshold: u16,
    /// Time between two passes: 31.25 ms (Kindle, section on HSCC).
    pub interval: Nanos,
}

impl Default for HsccConfig {
    fn default() -> Self {
        Self { threshold: 25, interval: Nanos::micros(31_250) }
    }
}

/// Lists of a tier.
const CLEAN: usize = 0;
const DIRTY: usize = 1;

/// The HSCC policy.
#[derive(Debug)]
pub struct Hscc {
    config: HsccConfig,
    roster: Roster<2>,
    /// Misses counted since the page came to where it lies.
    counts: PerPage<u16>,
    /// The pass since which a page has a count, for what the count says of time.
    since: PerPage<u16>,
    pass: u16,
}

impl Hscc {
    /// The policy without regions; a threshold of at least 1.
    pub fn new(config: HsccConfig) -> Self {
        let config = HsccConfig {
            threshold: config.threshold.max(1),
            interval: config.interval.max(Nanos::millis(1)),
        };
        Self {
            config,
            roster: Roster::new(),
            counts: PerPage::default(),
            since: PerPage::default(),
            pass: 0,
        }
    }

    /// Checks the lists. Visits all pages.
    pub fn audit(&self) -> Result<(), String> {
        self.roster.audit()
    }

    /// What a count says of a page's use. A counter that sees every miss has no
    /// sampling period.
    fn heat(&self, slot: u32, telemetry: &Telemetry) -> Heat {
        let count = self.counts[slot];
        let passes = self.pass.wrapping_sub(self.since[slot]).max(1);
        let window = self.config.interval * u64::from(passes);
        let misses = f64::from(count) * telemetry.sample_period.max(1) as f64;
        let loads = PerSecond::from_count(misses, window);
        Heat { loads, samples: u32::from(count), window, ..Heat::default() }
    }
}

impl Policy for Hscc {
    fn name(&self) -> &'static str {
        "hscc"
    }

    fn needs(&self) -> Needs {
        Needs {
            samples: true,
            reads_and_writes: true,
            tick: Some(self.config.interval),
            ..Needs::default()
        }
    }

    fn alloc(&mut self, region: &Region) {
        let slots = self.roster.alloc(region);
        self.counts.grow(slots);
        self.since.grow(slots);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        let slot = self.roster.slot(page);
        if let (Some(slot), FaultKind::Hint(_) | FaultKind::WriteProtected) = (slot, kind)
            && let Some(tier) = self.roster.tier(slot)
            && telemetry.tier(tier).addressable
        {
            return tier;
        }
        // The fast tier is a cache: what is new goes to the slowest with room.
        let size = self.roster.page_size(page);
        let addressable = || telemetry.ladder().filter(|(_, tier)| tier.addressable);
        let tier = addressable()
            .filter(|(_, tier)| tier.free >= size.bytes())
            .last()
            .or_else(|| addressable().next())
            .map_or(TierId::FASTEST, |(id, _)| id);
        if let Some(slot) = slot {
            self.counts[slot] = 0;
            self.roster.place(slot, tier, CLEAN, telemetry);
        }
        tier
    }

    fn samples(&mut self, samples: &[Sample]) {
        for sample in samples {
            let Some(slot) = self.roster.slot(sample.page) else { continue };
            if self.counts[slot] == 0 {
                self.since[slot] = self.pass;
            }
            self.counts[slot] = self.counts[slot].saturating_add(sample.weight);
            if sample.access == Access::Write
                && let Standing::Listed(TierId::FASTEST, CLEAN) = self.roster.standing(slot)
            {
                self.roster.relist(slot, DIRTY, End::Young);
            }
        }
    }

    fn free(&mut self, range: PageRange, whole: bool) {
        let counts = &mut self.counts;
        self.roster.free(range, whole, |slot| counts[slot] = 0);
    }

    fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        self.roster.survey(telemetry);
        self.pass = self.pass.wrapping_add(1);
        for slot in 0..self.roster.slots() as u32 {
            if self.counts[slot] < self.config.threshold {
                continue;
            }
            let page = Candidate { slot, heat: self.heat(slot, telemetry) };
            let to = TierId::FASTEST;
            let raised =
                self.roster.raise(page, to, Reason::OftenUsed, telemetry, plan, |roster| {
                    let oldest = |list| roster.oldest(to, list);
                    let slot = oldest(CLEAN).or_else(|| oldest(DIRTY))?;
                    // HSCC's hardware counts nothing in the fast tier.
                    Some(Candidate { slot, heat: Heat::default() })
                });
            if matches!(raised, Raised::NoRoom | Raised::NoBudget) {
                break;
            }
        }
    }

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        self.roster.relieve(tier, bytes, telemetry, plan, |roster| {
            let slot = roster.oldest(tier, CLEAN).or_else(|| roster.oldest(tier, DIRTY))?;
            Some((Candidate { slot, heat: Heat::default() }, Reason::PressureOldest))
        });
    }

    fn done(&mut self, done: &Done) {
        let counts = &mut self.counts;
        self.roster.done(done, |ended| {
            if ended.outcome.is_completed() {
                // The count, and the dirty bit, begin anew.
                counts[ended.slot] = 0;
                return Next::List(CLEAN, ended.usual_end());
            }
            Next::List(ended.list, ended.usual_end())
        });
    }

    fn footprint(&self) -> Footprint {
        let heap = self.roster.heap_bytes() + self.counts.heap_bytes() + self.since.heap_bytes();
        Footprint::of(size_of::<Self>(), heap, self.roster.slots())
    }
}
