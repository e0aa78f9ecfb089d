//! Summing a simulation up.

use std::time::Instant;

use terrace_core::{Bytes, BytesPerSecond, Nanos, Pages, PerSecond};

use super::Simulation;
use crate::analytic::migration::MigrationCounts;
use crate::analytic::report::{RunResult, SimReport, TierReport, mean_and_spread};

impl Simulation {
    /// The report of a simulation whose phases have ended.
    pub(super) fn report(
        mut self,
        runs: Vec<RunResult>,
        warm: &MigrationCounts,
        started: Instant,
    ) -> SimReport {
        let elapsed = started.elapsed().as_secs_f64().max(1e-9);
        let simulated: u64 = self.threads.iter().map(|t| t.accesses).sum();
        let (throughput, spread) = mean_and_spread(&runs);
        let tally = &self.sums.tally;
        let misses: u64 = tally.misses.iter().sum();
        let (census, _) = self.pages.census();
        let scale = f64::from(self.config.scale);
        let tiers = self
            .machine
            .tiers
            .iter()
            .enumerate()
            .map(|(i, tier)| {
                let served = tally.misses[i] as f64;
                let traffic = self.sums.traffic[i];
                TierReport {
                    name: tier.name.clone(),
                    capacity: tier.capacity.value,
                    pages: Pages(census[i]),
                    share: served / misses.max(1) as f64,
                    latency: Nanos::from_f64(self.sums.waited[i] / (served * scale).max(1.0)),
                    read: Bytes::from_f64(traffic.read),
                    written: Bytes::from_f64(traffic.write),
                    bandwidth: BytesPerSecond(
                        (traffic.read + traffic.write) / self.sums.time.max(1.0) * 1e9,
                    ),
                    load: self.sums.load[i] / self.sums.time.max(1.0),
                }
            })
            .collect();
        // What is watched is judged by the time that it had. Else only pages that left again would be
        // judged in a run that is shorter than a horizon.
        if let Some(brain) = &mut self.brain {
            brain.finish(self.now);
        }
        let accounts = self.accounts();
        SimReport {
            schema: 1,
            machine: self.machine.name.clone(),
            workload: self.workload.describe(),
            policy: self.policy,
            seed: self.config.seed,
            scale: self.config.scale,
            phases: self.config.phases,
            sampler: self.config.sampler,
            migration: self.config.migration,
            throughput,
            spread,
            runs,
            time: self.now,
            llc_hit_ratio: tally.llc_hits as f64 / tally.accesses.max(1) as f64,
            memory_mode_hit_ratio: self
                .memory_mode
                .as_ref()
                .map(|_| tally.misses[0] as f64 / misses.max(1) as f64),
            tiers,
            migrated: self.engine.counts,
            migrated_measured: self.engine.counts.since(warm),
            samples: self.sampler.counts,
            series: self.series,
            accounts,
            footprint: self.brain.as_ref().map(|brain| brain.footprint().into()),
            simulated_accesses: simulated,
            host_speed: PerSecond(simulated as f64 / elapsed),
        }
    }
}
