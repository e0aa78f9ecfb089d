//! GUPS with a hot set, as in HeMem's evaluation.
//!
//! Each thread updates (loads, adds, stores) 8-byte elements of its own part
//! of the working set: most updates go to its hot set, which lies at the start
//! of its part, the others to anywhere in its part. Both uniformly.
//!
//! Two properties of the published benchmark (`microbenchmarks/gups.c` of the
//! artifact) decide its speed, and are modelled as they are there:
//!
//! - **One update at a time.** A `rdtscp` stands before and after each update.
//!   It waits until all earlier instructions have executed, the load among
//!   them, so a thread has one memory access in flight, not as many as its
//!   core could have.
//! - **About 120 cycles of instructions an update**: two `rdtscp` (32 cycles
//!   each), one 64-bit division for `% hotsize` (42), the random number and
//!   `% 100` (about 11), the update itself. (Cycles recalled from instruction
//!   tables for Skylake-SP.)

use rand_xoshiro::rand_core::Rng;
use serde::Serialize;
use terrace_core::{Bytes, ContextId, Cycles, Nanos, PageSize, Region, RegionId};

use super::{Access, AccessKind, SimRng, Workload};
use crate::analytic::cache::ReuseClass;
use crate::error::SimError;
use crate::machines::MOST_MEMORY;

/// Bytes of an element.
pub const ELEMENT: u64 = 8;

/// Parameters of GUPS.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GupsConfig {
    /// Threads, each with its own part of the working set.
    pub threads: u32,
    /// Memory of all threads together.
    pub working_set: Bytes,
    /// Hot memory of all threads together.
    pub hot_set: Bytes,
    /// Percentage of the updates that go to the hot set.
    pub hot_percent: u32,
    /// The size in which memory is placed.
    pub page_size: PageSize,
    /// Updates that a thread has in flight; `None` for as many as its core can.
    pub in_flight: Option<f64>,
    /// Processor time of an update.
    pub compute: Cycles,
    /// When a part of the hot set moves, if it does.
    pub shift: Option<Shift>,
}

/// A move of a part of the hot set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shift {
    /// When, from the begin of the simulation.
    pub at: Nanos,
    /// The first 1/n of each thread's hot set moves to just after it.
    pub part: u64,
}

impl GupsConfig {
    /// HeMem's GUPS: 16 threads, 512 GiB, 90 % of the updates to the hot set,
    /// 2 MiB pages, one update at a time.
    pub fn hemem(hot_set: Bytes) -> Self {
        Self {
            threads: 16,
            working_set: Bytes::gib(512),
            hot_set,
            hot_percent: 90,
            page_size: PageSize::Huge,
            in_flight: Some(1.0),
            compute: Cycles(120),
            shift: None,
        }
    }

    /// The same without the time stamps around each update: the core overlaps
    /// as many updates as it has fill buffers.
    pub fn overlapping(hot_set: Bytes) -> Self {
        Self { in_flight: None, compute: Cycles(56), ..Self::hemem(hot_set) }
    }

    /// HeMem's shifting hot set (`gups-hotset-move.c`): 16 GiB hot, of which the
    /// first quarter of each thread's part moves to just after it.
    pub fn hotset_move(at: Nanos) -> Self {
        Self { shift: Some(Shift { at, part: 4 }), ..Self::hemem(Bytes::gib(16)) }
    }
}

/// GUPS, ready to run.
#[derive(Clone, Debug)]
pub struct Gups {
    config: GupsConfig,
    page_shift: u32,
    /// Elements of one thread's part, and of its hot set.
    part: u64,
    hot: u64,
    /// Of 2^32 draws, how many go to the hot set.
    hot_draws: u64,
    /// Elements of the hot set that move.
    moving: u64,
}

impl Gups {
    /// Checks the parameters.
    pub fn new(config: GupsConfig) -> Result<Self, SimError> {
        let threads = u64::from(config.threads);
        if threads == 0 {
            return Err(SimError::parameter("threads", "must be at least 1"));
        }
        let page = config.page_size.bytes().get();
        if config.working_set.is_zero() || !config.working_set.get().is_multiple_of(page * threads)
        {
            let message = format!(
                "{} is not a whole number of {} pages for each of {threads} threads",
                config.working_set,
                config.page_size.bytes()
            );
            return Err(SimError::parameter("working set", message));
        }
        // Pages have numbers of 32 bits.
        if config.working_set >= MOST_MEMORY {
            let message = format!(
                "must be less than {MOST_MEMORY}, which no simulated machine holds (is {})",
                config.working_set
            );
            return Err(SimError::parameter("working set", message));
        }
        if config.hot_percent > 100 {
            return Err(SimError::parameter("hot percent", "must be at most 100"));
        }
        let part = config.working_set.get() / threads / ELEMENT;
        let hot = config.hot_set.get() / threads / ELEMENT;
        if hot == 0 || hot > part {
            let message = format!(
                "must be above zero and at most the working set of {} (is {})",
                config.working_set, config.hot_set
            );
            return Err(SimError::parameter("hot set", message));
        }
        if config.in_flight.is_some_and(|n| n.is_nan() || n < 1.0) {
            return Err(SimError::parameter("updates in flight", "must be at least 1"));
        }
        let moving = config.shift.map_or(0, |shift| hot / shift.part.max(1));
        if hot + moving > part {
            let message = "does not fit into its thread's part after the shift";
            return Err(SimError::parameter("hot set", message));
        }
        Ok(Self {
            page_shift: config.page_size.shift(),
            part,
            hot,
            hot_draws: (u64::from(config.hot_percent) << 32) / 100,
            moving,
            config,
        })
    }

    /// The parameters.
    pub fn config(&self) -> &GupsConfig {
        &self.config
    }

    fn shifted(&self, now: Nanos) -> bool {
        self.config.shift.is_some_and(|shift| now >= shift.at)
    }

    /// Where the hot set begins and ends in a thread's part, in elements.
    fn hot_range(&self, now: Nanos) -> (u64, u64) {
        if self.shifted(now) { (self.moving, self.hot + self.moving) } else { (0, self.hot) }
    }
}

/// A number below `n`, from 64 random bits.
#[inline]
fn below(random: u64, n: u64) -> u64 {
    ((u128::from(random) * u128::from(n)) >> 64) as u64
}

impl Workload for Gups {
    fn name(&self) -> &'static str {
        "gups"
    }

    fn describe(&self) -> String {
        let c = &self.config;
        format!(
            "GUPS: {} threads, {} working set, {} hot with {} % of the updates",
            c.threads, c.working_set, c.hot_set, c.hot_percent
        )
    }

    fn threads(&self) -> usize {
        self.config.threads as usize
    }

    fn regions(&self) -> Vec<Region> {
        vec![Region {
            id: RegionId(0),
            pages: (self.config.working_set.get() >> self.page_shift) as u32,
            page_size: self.config.page_size,
            context: ContextId::ANONYMOUS,
        }]
    }

    fn compute(&self) -> Cycles {
        self.config.compute
    }

    fn in_flight(&self) -> Option<f64> {
        self.config.in_flight
    }

    fn classes(&self) -> Vec<ReuseClass> {
        let total = self.config.working_set.as_f64();
        let hot = self.config.hot_set.as_f64();
        let directed = f64::from(self.config.hot_percent) / 100.0;
        let share = directed + (1.0 - directed) * hot / total;
        vec![
            ReuseClass { bytes: self.config.hot_set, share },
            ReuseClass { bytes: self.config.working_set - self.config.hot_set, share: 1.0 - share },
        ]
    }

    fn fill(&mut self, thread: usize, now: Nanos, rng: &mut SimRng, accesses: &mut [Access]) {
        let base = thread as u64 * self.part;
        let (hot_begin, hot_end) = self.hot_range(now);
        let mask = (1u64 << self.page_shift) - 1;
        for access in accesses {
            let directed = (rng.next_u64() >> 32) < self.hot_draws;
            let (begin, length) = if directed { (hot_begin, self.hot) } else { (0, self.part) };
            let element = begin + below(rng.next_u64(), length);
            let address = (base + element) * ELEMENT;
            *access = Access {
                page: (address >> self.page_shift) as u32,
                offset: (address & mask) as u32,
                class: u8::from(!(hot_begin..hot_end).contains(&element)),
                kind: AccessKind::Update,
            };
        }
    }

    fn next_change(&self, now: Nanos) -> Option<Nanos> {
        self.config.shift.map(|shift| shift.at).filter(|&at| at > now)
    }

    /// Every access is an update.
    fn store_share(&self, thread: usize, page: u32, now: Nanos) -> f64 {
        self.share(thread, page, now)
    }

    fn share(&self, thread: usize, page: u32, now: Nanos) -> f64 {
        let elements = (1u64 << self.page_shift) / ELEMENT;
        let begin = u64::from(page) * elements;
        let base = thread as u64 * self.part;
        if begin < base || begin >= base + self.part {
            return 0.0;
        }
        let begin = begin - base;
        let (hot_begin, hot_end) = self.hot_range(now);
        let overlap = (begin + elements).min(hot_end).saturating_sub(begin.max(hot_begin));
        let directed = f64::from(self.config.hot_percent) / 100.0;
        directed * overlap as f64 / self.hot as f64
            + (1.0 - directed) * elements as f64 / self.part as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::rand_core::SeedableRng;

    fn small() -> GupsConfig {
        GupsConfig {
            threads: 4,
            working_set: Bytes::mib(256),
            hot_set: Bytes::mib(32),
            ..GupsConfig::hemem(Bytes::mib(32))
        }
    }

    fn draw(gups: &mut Gups, thread: usize, now: Nanos, n: usize) -> Vec<Access> {
        let mut accesses = vec![Access::default(); n];
        gups.fill(thread, now, &mut SimRng::seed_from_u64(7), &mut accesses);
        accesses
    }

    #[test]
    fn each_thread_stays_in_its_part_and_ninety_percent_are_hot() {
        let mut gups = Gups::new(small()).expect("valid");
        let accesses = draw(&mut gups, 2, Nanos::ZERO, 100_000);
        // 32 pages of 2 MiB a thread, the first four of them hot.
        assert!(accesses.iter().all(|a| (64..96).contains(&a.page)));
        let hot = accesses.iter().filter(|a| a.page < 68).count() as f64 / 1e5;
        let expected = 0.9 + 0.1 * 4.0 / 32.0;
        assert!((hot - expected).abs() < 0.005, "{hot}");
        assert!(accesses.iter().all(|a| (a.class == 0) == (a.page < 68)));
    }

    #[test]
    fn the_first_quarter_moves_to_just_after_the_hot_set() {
        let shift = Shift { at: Nanos::seconds(5), part: 4 };
        let mut gups = Gups::new(GupsConfig { shift: Some(shift), ..small() }).expect("valid");
        let hot_pages = |now, gups: &mut Gups| {
            let mut counts = [0u32; 32];
            for access in draw(gups, 0, now, 100_000) {
                counts[access.page as usize] += 1;
            }
            (0..32).filter(|&p| counts[p as usize] > 10_000).collect::<Vec<u32>>()
        };
        assert_eq!(hot_pages(Nanos::seconds(4), &mut gups), [0, 1, 2, 3]);
        assert_eq!(hot_pages(Nanos::seconds(5), &mut gups), [1, 2, 3, 4]);
    }

    #[test]
    fn the_shares_that_charge_stalls_are_those_that_accesses_have() {
        let gups = Gups::new(small()).expect("valid");
        let share = |page| gups.store_share(1, page, Nanos::ZERO);
        let total: f64 = (0..128).map(share).sum();
        assert!((total - 1.0).abs() < 1e-9, "{total}");
        assert!(share(31) <= 0.0);
        assert!((share(32) - (0.9 / 4.0 + 0.1 / 32.0)).abs() < 1e-9);
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused_by_name() {
        let refused = |config| Gups::new(config).expect_err("refused").to_string();
        let too_hot = GupsConfig { hot_set: Bytes::mib(512), ..small() };
        assert!(refused(too_hot).starts_with("hot set: "));
        let ragged = GupsConfig { working_set: Bytes::mib(255), ..small() };
        assert!(refused(ragged).starts_with("working set: "));
        // Its pages could not be counted.
        let endless = GupsConfig { working_set: MOST_MEMORY, ..small() };
        assert!(refused(endless).starts_with("working set: must be less than "));
        assert!(refused(GupsConfig { threads: 0, ..small() }).starts_with("threads: "));
        assert!(refused(GupsConfig { in_flight: Some(0.0), ..small() }).contains("in flight"));
    }
}
