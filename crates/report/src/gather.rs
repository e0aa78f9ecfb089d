//! Puts statistics pages together into a report.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use terrace_core::{ActionClass, Bytes, Cycles, Nanos};
use terrace_economics::account::{benefit_is_observed, harm_is_observed};
use terrace_economics::{Account, Balance};
use terrace_live::stats::freed_regions::Freed;
use terrace_live::stats::histogram::Histogram;
use terrace_live::stats::process_page::{ClassCounters, Counters, ProcessPage, State, Text};

use crate::run::{
    AccountReport, AdviceReport, CheckReport, FaultClass, FaultReport, Figures, FreedRegionReport,
    Head, HugeReport, ProcessReport, ProcessState, RegionReport, RunReport, SharedReport,
    StallReport, StoreReport, Usage, most_allowed, percentile,
};
use crate::slowdown::Slowdown;

impl RunReport {
    /// Puts the processes' pages together; one of no process (0) has the figures of further ones
    /// that have ended. `usage` is what is known of them
    /// beyond the pages.
    pub fn collect<'a>(
        head: Head,
        pages: impl IntoIterator<Item = &'a ProcessPage>,
        usage: &Usage,
        decisions_lost: Option<u64>,
    ) -> Self {
        let mut pages: Vec<_> = pages.into_iter().collect();
        pages.sort_by_key(|page| page.pid.load(Relaxed));
        let single = pages.iter().filter(|page| page.pid() != 0);
        let processes: Vec<_> = single.map(|page| ProcessReport::of(page)).collect();
        let ended = pages.iter().map(|page| page.counters.ended_processes.load(Relaxed)).sum();
        let budget = head.budget;
        let largest = head.shared.map_or(budget, |shared| shared.budget_peak);
        let single = pages.iter().map(|page| {
            let counters = &page.counters;
            let resident = counters.resident_peak_bytes.load(Relaxed);
            Bytes(resident.max(counters.held_peak_bytes.load(Relaxed)))
        });
        // The broker looks now and then; a process by itself is never missed.
        let peak = single.chain(head.shared.map(|shared| shared.resident_peak)).max();
        let shared = head
            .shared
            .map(|shared| SharedReport { resident_peak: peak.unwrap_or_default(), ..shared });
        let total = Figures::of(&pages);
        let slowdown =
            (!processes.is_empty()).then(|| Slowdown::estimate(head.elapsed, &total, usage));
        let kept = peak.unwrap_or_default() <= most_allowed(largest, head.holds_store);
        let report = Self {
            program: head.program,
            end: head.end,
            elapsed: head.elapsed,
            policy: head.policy,
            economist: head.economist,
            sampling_cap: head.sampling_cap,
            budget,
            budget_holds_store: head.holds_store,
            budget_kept: kept,
            budget_kept_managed: kept,
            shared,
            budget_of: head.budget_of,
            unmanaged: head.unmanaged,
            slowdown,
            total,
            command_cpu: usage.command_cpu,
            processes,
            ended_processes: ended,
            unread_processes: head.unread,
            decisions_lost,
            nodes: None,
            core_dump: None,
            plain: None,
            outside: None,
            process_peak: Bytes::ZERO,
            unseen_peak: Bytes::ZERO,
            nothing_managed: None,
        };
        report.beside(None, None)
    }
}

impl ProcessReport {
    fn of(page: &ProcessPage) -> Self {
        let mut regions: Vec<_> = page
            .regions
            .iter()
            .map(|region| RegionReport {
                start: region.start.load(Relaxed),
                length: Bytes(region.len.load(Relaxed)),
                resident: if page.has_ended() {
                    Bytes::ZERO
                } else {
                    Bytes(region.resident.load(Relaxed))
                },
                faults: region.faults.load(Relaxed),
                parts: std::array::from_fn(|i| region.parts[i].load(Relaxed)),
            })
            .filter(|region| region.start != 0)
            .collect();
        regions.sort_by_key(|region| (std::cmp::Reverse(region.faults), region.start));
        Self {
            pid: page.pid.load(Relaxed),
            command: page.text(Text::Command),
            ended: page.has_ended(),
            state: match page.state() {
                State::Dormant => ProcessState::Dormant,
                State::Active => ProcessState::Managed,
                State::Failed => ProcessState::Failed,
            },
            failure: Some(page.text(Text::Failure)).filter(|text| !text.is_empty()),
            sampler: page.text(Text::Sampler),
            figures: Figures::of(&[page]),
            regions,
            freed_regions: freed_regions(page),
        }
    }
}

/// What a process had, most faults first.
fn freed_regions(page: &ProcessPage) -> Vec<FreedRegionReport> {
    let started = page.counters.started_ns.load(Relaxed);
    let report = |freed: Freed| FreedRegionReport {
        start: freed.start,
        length: Bytes(freed.len),
        faults: freed.faults,
        parts: freed.parts,
        times: freed.times,
        after: Nanos(freed.at_ns.saturating_sub(started)),
    };
    let mut all: Vec<_> = page.freed.iter().map(report).collect();
    all.sort_by_key(|region| (std::cmp::Reverse(region.faults), region.start));
    all
}

impl Figures {
    fn of(pages: &[&ProcessPage]) -> Self {
        let sum = |counter: fn(&Counters) -> &AtomicU64| -> u64 {
            pages.iter().map(|page| counter(&page.counters).load(Relaxed)).sum()
        };
        // What a process had that has ended, it has no longer.
        let level = |counter: fn(&Counters) -> &AtomicU64| -> u64 {
            let living = pages.iter().filter(|page| !page.has_ended());
            living.map(|page| counter(&page.counters).load(Relaxed)).sum()
        };
        let most = |counter: fn(&Counters) -> &AtomicU64| -> u64 {
            let peaks = pages.iter().map(|page| counter(&page.counters).load(Relaxed));
            peaks.max().unwrap_or_default()
        };
        let bytes = |counter| Bytes(sum(counter));
        let bytes_now = |counter| Bytes(level(counter));
        // The most seen at once: by one process itself, by who looks now and then, or now.
        let peak = |peak, now| Bytes(most(peak).max(level(now)));
        let nanos = |counter| Nanos(sum(counter));
        let living = pages.iter().copied().filter(|page| !page.has_ended());
        let store = ProcessPage::store_of(living);
        Self {
            mapped: bytes_now(|c| &c.mapped_bytes),
            mapped_peak: peak(|c| &c.mapped_peak_bytes, |c| &c.mapped_bytes),
            resident: bytes_now(|c| &c.resident_bytes),
            resident_peak: peak(|c| &c.resident_peak_bytes, |c| &c.resident_bytes),
            held_peak: Bytes(most(|c| &c.held_peak_bytes)),
            given_up: Bytes(most(|c| &c.given_up_bytes)),
            faults: FaultClass::ALL.map(|kind| FaultReport::of(pages, kind)).to_vec(),
            faults_spurious: sum(|c| &c.faults_spurious),
            direct_reclaims: sum(|c| &c.direct_reclaims),
            promotions: sum(|c| &c.promotions),
            ahead: sum(|c| &c.ahead),
            moves_uncounted: sum(|c| &c.moves_uncounted),
            huge: HugeReport {
                zeroed: sum(|c| &c.huge_zeroed),
                backed: sum(|c| &c.huge_backed),
                walked_through: sum(|c| &c.huge_used),
                split: sum(|c| &c.huge_split),
                collapsed: sum(|c| &c.huge_collapsed),
                profiled: sum(|c| &c.huge_profiled),
                populated: sum(|c| &c.populated),
                mappings_known: sum(|c| &c.profile_known),
                mappings_unknown: sum(|c| &c.profile_unknown),
                profile_mapped: bytes(|c| &c.profile_mapped_bytes),
                profile_unknown: bytes(|c| &c.profile_unknown_bytes),
                profile_benefit: Cycles(most(|c| &c.profile_benefit_cycles)),
                profile_matched: Cycles(most(|c| &c.profile_matched_cycles)),
                profile_unread: sum(|c| &c.profile_unread),
            },
            demotions: sum(|c| &c.demotions),
            demotions_cancelled: sum(|c| &c.demotions_cancelled),
            demotions_refused: sum(|c| &c.demotions_refused),
            forks_unmanaged: sum(|c| &c.forks_unmanaged),
            store: StoreReport {
                compressed_pages: level(|c| &c.stored_pages),
                same_filled_pages: level(|c| &c.same_pages),
                compressed: bytes_now(|c| &c.blob_bytes),
                occupied: Bytes(store),
                occupied_peak: Bytes(most(|c| &c.store_peak_bytes).max(store)),
                over_limit_peak: Bytes(most(|c| &c.store_over_peak_bytes)),
                over_limit: nanos(|c| &c.store_over_ns),
                spilled: bytes_now(|c| &c.spill_bytes),
                spill_read: bytes(|c| &c.spill_read_bytes),
                spill_written: bytes(|c| &c.spill_written_bytes),
                compressions: sum(|c| &c.compressed),
                compress_time: nanos(|c| &c.compress_ns),
                decompressions: sum(|c| &c.decompressed),
                decompress_time: nanos(|c| &c.decompress_ns),
                packed_tightly: sum(|c| &c.packed_tightly),
                incompressible: level(|c| &c.incompressible),
                refused: sum(|c| &c.store_refused),
            },
            ping_pongs: sum(|c| &c.ping_pongs),
            thrashing: nanos(|c| &c.thrash_ns),
            waited: pages.iter().map(|page| page.waited()).sum(),
            waited_running: pages.iter().map(|page| page.waited_running()).sum(),
            stall: stall(pages),
            own_cpu: nanos(|c| &c.own_cpu_ns),
            samples: sum(|c| &c.samples),
            samples_lost: sum(|c| &c.samples_lost),
            samples_throttled: sum(|c| &c.samples_throttled),
            sampling: Nanos(sum(|c| &c.sampling_ns)),
            policy_bytes: bytes_now(|c| &c.policy_bytes),
            policy_pages: level(|c| &c.policy_pages),
            accounts: accounts(pages),
            deciding: Cycles(sum(|c| &c.deciding_cycles)),
            balance: Balance {
                brought: nanos(|c| &c.brought_ns),
                took: nanos(|c| &c.took_ns),
                deciding: nanos(|c| &c.judging_ns),
            },
        }
    }
}

fn stall(pages: &[&ProcessPage]) -> StallReport {
    let mut all = StallReport::default();
    for page in pages {
        let c = &page.counters;
        let nanos = |counter: &AtomicU64| Nanos(counter.load(Relaxed));
        let served: Nanos = page.latency.iter().map(Histogram::total).sum();
        let known = nanos(&c.direct_reclaim_ns) + nanos(&c.decompress_ns) + nanos(&c.copy_ns);
        all += StallReport {
            wake_up: nanos(&c.fault_overhead_ns),
            reclaim: nanos(&c.direct_reclaim_ns),
            decompress: nanos(&c.decompress_ns),
            copy: nanos(&c.copy_ns),
            // Saturating: the counters are read one after the other.
            other: served - known,
        }
        .without(nanos(&c.overcounted_ns));
    }
    all
}

impl FaultReport {
    fn of(pages: &[&ProcessPage], kind: FaultClass) -> Self {
        let mut counts = BTreeMap::<Nanos, u64>::new();
        let mut max = Nanos::ZERO;
        for page in pages {
            for (upper, count) in
                page.latency[kind as usize].counts().filter(|&(_, count)| count > 0)
            {
                *counts.entry(upper).or_default() += count;
            }
            max = max.max(page.latency[kind as usize].max());
        }
        let percentile = |share| percentile(&counts, share).min(max);
        Self {
            kind,
            count: counts.values().sum(),
            p50: percentile(0.5),
            p99: percentile(0.99),
            p999: percentile(0.999),
            max,
            total: pages.iter().map(|page| page.latency[kind as usize].total()).sum(),
            histogram: counts.into_iter().collect(),
        }
    }
}

/// The accounts of the classes that anything was proposed in.
fn accounts(pages: &[&ProcessPage]) -> Vec<AccountReport> {
    ActionClass::ALL
        .into_iter()
        .map(|class| {
            let sum = |counter: fn(&ClassCounters) -> &AtomicU64| -> u64 {
                pages.iter().map(|page| counter(&page.classes[class.index()]).load(Relaxed)).sum()
            };
            // As in the economist's own account, of all processes together.
            let counted = Account {
                proposed: sum(|c| &c.proposed),
                vetoed: sum(|c| &c.vetoed),
                held_out: sum(|c| &c.held_out),
                completed: sum(|c| &c.completed),
                aborted: sum(|c| &c.aborted),
                ..Account::default()
            };
            AccountReport {
                class,
                proposed: counted.proposed,
                vetoed: counted.vetoed,
                completed: counted.completed,
                aborted: counted.aborted,
                unfinished: counted.unfinished(),
                predicted_cost: Cycles(sum(|c| &c.predicted_cost)),
                realised_cost: Cycles(sum(|c| &c.realised_cost)),
                predicted_benefit: Cycles(sum(|c| &c.predicted_benefit)),
                realised_benefit: benefit_is_observed(class)
                    .then(|| Cycles(sum(|c| &c.realised_benefit))),
                checks: CheckReport {
                    explored: sum(|c| &c.explored),
                    held_out: counted.held_out,
                    judged_predicted_benefit: Cycles(sum(|c| &c.judged_predicted_benefit)),
                    judged_realised_benefit: Cycles(sum(|c| &c.judged_realised_benefit)),
                    predicted_harm: Cycles(sum(|c| &c.predicted_harm)),
                    realised_harm: harm_is_observed(class)
                        .then(|| Cycles(sum(|c| &c.realised_harm))),
                    held_out_predicted: Cycles(sum(|c| &c.held_out_predicted)),
                    held_out_observed: Cycles(sum(|c| &c.held_out_observed)),
                },
                advice: AdviceReport {
                    refusals: sum(|c| &c.would_veto),
                    cost: Cycles(sum(|c| &c.would_veto_cost)),
                    benefit: Cycles(sum(|c| &c.would_veto_benefit)),
                },
            }
        })
        .filter(|report| report.proposed > 0)
        .collect()
}
