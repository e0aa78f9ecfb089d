//! What happened when: counters and residency over a run's time, in bounded
//! memory, and latencies by how often they occurred. Off unless asked for.

use terrace_core::{Bytes, MAX_TIERS, Nanos, PageSize, TierId};

use super::machine::ExactMachine;
use super::tiers::Tier;

/// Columns at most; then every other is dropped, and half as many follow.
const MOST: usize = 512;
/// Regions in a column: the largest.
const REGIONS: usize = 8;
/// Parts of a region.
pub const PARTS: usize = 48;
/// Pages that a part is judged by.
const PROBES: u64 = 4;
/// A part that holds nothing.
pub const EMPTY: u8 = u8::MAX;
/// Buckets of latency: four for each doubling.
pub const BUCKETS: usize = 80;

/// One memory at a moment; counters since the run began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TierMoment {
    /// Memory in use.
    pub used: Bytes,
    /// Lines read for the program.
    pub reads: u64,
    /// Bytes read, and bytes written.
    pub moved: [f64; 2],
    /// Sum of the latencies of reads and walks, and their number.
    pub latency: (f64, u64),
}

/// A region's share in the fastest memory, part by part.
#[derive(Clone, Debug, PartialEq)]
pub struct RegionMoment {
    /// First address.
    pub start: u64,
    /// How large it is.
    pub length: Bytes,
    /// Percent of each part's pages, or [`EMPTY`].
    pub parts: [u8; PARTS],
}

/// A moment; counters since the run began.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// When.
    pub at: Nanos,
    /// Accesses.
    pub accesses: u64,
    /// Time that cores waited, all together.
    pub waited: Nanos,
    /// Pages that moved: up, and down.
    pub moved: [u64; 2],
    /// First touches.
    pub faults: u64,
    /// Memories, fastest first.
    pub tiers: Vec<TierMoment>,
    /// The largest regions.
    pub regions: Vec<RegionMoment>,
}

/// A run's moments.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// In the order of time.
    pub moments: Vec<Moment>,
    /// Reads by latency, for each memory.
    pub latencies: Vec<[u64; BUCKETS]>,
    /// Cores that were used.
    pub cores: usize,
    step: u64,
    next: u64,
}

/// The bucket of a latency in nanoseconds.
pub(super) fn bucket(latency: f64) -> usize {
    ((latency.max(1.0).log2() * 4.0) as usize).min(BUCKETS - 1)
}

/// The latency that a bucket ends at.
pub fn bucket_end(bucket: usize) -> Nanos {
    Nanos::from_f64(2.0_f64.powf((bucket + 1) as f64 / 4.0))
}

impl ExactMachine {
    /// Keeps a timeline from now on.
    pub fn keep_timeline(&mut self) {
        self.timeline = Some(Box::new(Timeline { step: 1 << 12, ..Timeline::default() }));
        for tier in &mut self.tiers {
            tier.keep_latencies();
        }
    }

    /// The timeline, if one was kept.
    pub fn take_timeline(&mut self) -> Option<Timeline> {
        self.note_moment();
        let mut timeline = *self.timeline.take()?;
        timeline.latencies = self.tiers.iter().filter_map(Tier::latencies).collect();
        timeline.cores = self.cores.iter().filter(|core| core.used).count();
        Some(timeline)
    }

    /// Notes a moment if it is time for one.
    #[inline]
    pub(super) fn pass_timeline(&mut self) {
        if self.timeline.is_some() {
            let accesses: u64 = self.cores.iter().map(|core| core.accesses).sum();
            if self.timeline.as_ref().is_some_and(|timeline| accesses >= timeline.next) {
                self.note_moment();
            }
        }
    }

    fn note_moment(&mut self) {
        let moment = self.moment();
        let Some(timeline) = &mut self.timeline else { return };
        timeline.next = moment.accesses + timeline.step;
        timeline.moments.push(moment);
        if timeline.moments.len() > MOST {
            let mut odd = false;
            timeline.moments.retain(|_| {
                odd = !odd;
                odd
            });
            timeline.step *= 2;
        }
    }

    fn moment(&self) -> Moment {
        let frames = &self.memory.frames;
        let tiers = self.tiers.iter().enumerate().take(MAX_TIERS).map(|(i, tier)| {
            let (id, counts) = (TierId(i as u8), &tier.counts);
            TierMoment {
                used: frames.capacity(id) - frames.free(id),
                reads: counts.reads,
                moved: [counts.bytes_read, counts.bytes_written],
                latency: (counts.latency, counts.reads + counts.walk_reads),
            }
        });
        let mut largest: Vec<_> = self
            .areas
            .regions()
            .map(|(start, region)| (start, region.page_size.bytes() * u64::from(region.pages)))
            .collect();
        largest.sort_by_key(|&(start, length)| (core::cmp::Reverse(length), start));
        largest.truncate(REGIONS);
        largest.sort_unstable();
        let moves = &self.runtime.mover.counts;
        Moment {
            at: self.now(),
            accesses: self.cores.iter().map(|core| core.accesses).sum(),
            waited: Nanos::from_f64(self.cores.iter().map(|core| core.clock.waited).sum()),
            moved: [moves.promotions + moves.exchanges, moves.demotions + moves.exchanges],
            faults: self.runtime.faults.first_touches,
            tiers: tiers.collect(),
            regions: largest
                .into_iter()
                .map(|(start, length)| self.residency(start, length))
                .collect(),
        }
    }

    fn residency(&self, start: u64, length: Bytes) -> RegionMoment {
        let part = |part: usize| {
            let (mut fast, mut all) = (0u32, 0u32);
            for probe in 0..PROBES {
                let at = (part as u64 * PROBES + probe) * length.get() / (PARTS as u64 * PROBES);
                let address = (start + at) & !(PageSize::Base.bytes().get() - 1);
                if let Some(frame) = self.memory.table.frame_of(address) {
                    all += 1;
                    fast += u32::from(self.memory.frames.tier_of(frame) == TierId::FASTEST);
                }
            }
            (fast * 100).checked_div(all).map_or(EMPTY, |share| share as u8)
        };
        RegionMoment { start, length, parts: core::array::from_fn(part) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analytic::config::SimPolicy;
    use crate::exact::{ExactConfig, Stream, StreamKind, setup};
    use crate::machines;

    #[test]
    fn a_long_run_keeps_a_bounded_number_of_moments_that_add_up() {
        let machine = machines::builtin("cxl").expect("built in");
        let mut config =
            ExactConfig::new(machine, SimPolicy::Policy(terrace_policy::PolicyName::FirstTouch));
        config.fast = Some(Bytes::mib(32));
        let mut machine = ExactMachine::new(&config).expect("set up");
        machine.keep_timeline();
        let mut stream = Stream::new(StreamKind::Gups, 3_000_000, 64 << 20);
        let report =
            setup::run(&mut machine, &config, &mut stream, &mut |_, _| ()).expect("simulated");
        let timeline = machine.take_timeline().expect("kept");

        assert!((100..=MOST + 1).contains(&timeline.moments.len()), "{}", timeline.moments.len());
        assert!(timeline.moments.windows(2).all(|pair| pair[0].at <= pair[1].at));
        let last = timeline.moments.last().expect("moments");
        assert_eq!(last.accesses, report.accesses);
        for (tier, counts) in last.tiers.iter().zip(&timeline.latencies) {
            assert_eq!(counts.iter().sum::<u64>(), tier.latency.1, "each read has a latency");
        }
        // Half of the memory does not fit, and first touches fill the fast half.
        let parts = &last.regions[0].parts;
        assert!(parts.contains(&100) && parts.contains(&0), "{parts:?}");
        assert!(timeline.moments[0].regions[0].parts.contains(&EMPTY));
    }
}
