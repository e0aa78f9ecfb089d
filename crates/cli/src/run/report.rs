//! The report of a run: what every process's statistics page says, and the
//! sums over them.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;
use terrace_core::{ActionClass, Bytes, Cycles, Nanos, PageSize};
use terrace_live::shared::{ClassCounters, Counters, ProcessPage, State, Text};

use super::child::End;

/// What a run used, did and cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RunReport {
    /// The program with its arguments.
    pub(crate) program: Vec<String>,
    /// How it ended; `None` while it runs.
    pub(crate) end: Option<End>,
    /// How long it has run, by the clock on the wall.
    pub(crate) elapsed: Nanos,
    /// The policy's name.
    pub(crate) policy: String,
    /// What the economist did with its opinion.
    pub(crate) economist: String,
    /// DRAM that each process was allowed.
    pub(crate) budget: Bytes,
    /// Whether every process stayed within it.
    pub(crate) budget_kept: bool,
    /// Why nothing was managed, if nothing was.
    pub(crate) unmanaged: Option<String>,
    /// All processes together. Peaks are sums of peaks, so upper bounds.
    pub(crate) total: Figures,
    /// Each process that loaded the library, in the order of their numbers.
    pub(crate) processes: Vec<ProcessReport>,
    /// Decisions that were taken faster than they could be recorded; `None`
    /// without a recording.
    pub(crate) decisions_lost: Option<u64>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ProcessReport {
    /// Its number.
    pub(crate) pid: u32,
    /// Its command's name.
    pub(crate) command: String,
    /// Whether its memory was managed.
    pub(crate) state: ProcessState,
    /// Why it was given up, if it was.
    pub(crate) failure: Option<String>,
    /// How accesses were observed, and why in this way.
    pub(crate) sampler: String,
    /// Its figures.
    pub(crate) figures: Figures,
    /// Its regions, most faults first.
    pub(crate) regions: Vec<RegionReport>,
}

/// How far a process's pager came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProcessState {
    /// Nothing had to be managed.
    Dormant,
    /// Managed.
    Managed,
    /// Given up; it went on on plain memory.
    Failed,
}

/// Figures of one process, or of all together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Figures {
    /// Managed memory mapped now.
    pub(crate) mapped: Bytes,
    /// The most of it at once.
    pub(crate) mapped_peak: Bytes,
    /// Managed memory resident in DRAM now.
    pub(crate) resident: Bytes,
    /// The most of it at once.
    pub(crate) resident_peak: Bytes,
    /// Faults by kind.
    pub(crate) faults: Vec<FaultReport>,
    /// Faults that found their page already there.
    pub(crate) faults_spurious: u64,
    /// Faults that had to make room themselves.
    pub(crate) direct_reclaims: u64,
    /// Pages brought in from a slower tier.
    pub(crate) promotions: u64,
    /// Pages that left for a slower tier.
    pub(crate) demotions: u64,
    /// Demotions given up because the program touched the page in time.
    pub(crate) demotions_cancelled: u64,
    /// Demotions that the kernel refused (page locked, pinned or shared).
    pub(crate) demotions_refused: u64,
    /// What slower tiers hold.
    pub(crate) store: StoreReport,
    /// Time that threads of the program waited for Terrace.
    pub(crate) waited: Nanos,
    /// Processor time of Terrace's own threads.
    pub(crate) own_cpu: Nanos,
    /// Samples that the policy was given.
    pub(crate) samples: u64,
    /// Samples lost because the policy could not keep up.
    pub(crate) samples_lost: u64,
    /// The policy's own memory.
    pub(crate) policy_bytes: Bytes,
    /// The pages that it is about.
    pub(crate) policy_pages: u64,
    /// The economist's accounts by class of action.
    pub(crate) accounts: Vec<AccountReport>,
}

/// Faults of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FaultReport {
    /// The kind.
    pub(crate) kind: &'static str,
    /// How many.
    pub(crate) count: u64,
    /// Half of them took at most this long to serve.
    pub(crate) p50: Nanos,
    /// 99 in 100.
    pub(crate) p99: Nanos,
    /// 999 in 1000.
    pub(crate) p999: Nanos,
    /// The longest.
    pub(crate) max: Nanos,
}

/// The slower tiers: compressed RAM, and the spill file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct StoreReport {
    /// Pages held compressed.
    pub(crate) compressed_pages: u64,
    /// Pages held as one repeated word.
    pub(crate) same_filled_pages: u64,
    /// Bytes of the compressed pages' content.
    pub(crate) compressed: Bytes,
    /// Bytes of memory used for it.
    pub(crate) occupied: Bytes,
    /// The most of it at once.
    pub(crate) occupied_peak: Bytes,
    /// Bytes in the spill file.
    pub(crate) spilled: Bytes,
    /// Pages compressed since the start.
    pub(crate) compressions: u64,
    /// Time spent on it.
    pub(crate) compress_time: Nanos,
    /// Pages decompressed since the start.
    pub(crate) decompressions: u64,
    /// Time spent on it.
    pub(crate) decompress_time: Nanos,
    /// Pages that did not compress.
    pub(crate) incompressible: u64,
}

impl StoreReport {
    /// Uncompressed by compressed size of what is held; `None` while nothing is.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let content = PageSize::Base.bytes() * self.compressed_pages;
        (!self.compressed.is_zero()).then(|| content / self.compressed)
    }

    /// Memory used beyond the compressed content itself.
    pub(crate) fn overhead(&self) -> Bytes {
        self.occupied - self.compressed
    }
}

/// One class's account.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct AccountReport {
    /// The class of action.
    pub(crate) class: ActionClass,
    /// Proposals seen.
    pub(crate) proposed: u64,
    /// Refused by the economist.
    pub(crate) vetoed: u64,
    /// Carried out.
    pub(crate) completed: u64,
    /// Let pass but not carried out.
    pub(crate) aborted: u64,
    /// Predicted cost of what was carried out.
    pub(crate) predicted_cost: Cycles,
    /// What it cost.
    pub(crate) realised_cost: Cycles,
    /// Predicted benefit of what was carried out.
    pub(crate) predicted_benefit: Cycles,
    /// Benefit as far as it was observed.
    pub(crate) realised_benefit: Cycles,
}

/// One region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RegionReport {
    /// Its first address.
    pub(crate) start: u64,
    /// Its length.
    pub(crate) length: Bytes,
    /// What of it is resident in DRAM.
    pub(crate) resident: Bytes,
    /// Faults in it.
    pub(crate) faults: u64,
}

/// In the order of the statistics page's histograms.
const FAULT_KINDS: [&str; 3] = ["first-touch", "absent", "hint"];

impl RunReport {
    /// Puts the processes' pages together.
    pub(crate) fn collect<'a>(
        head: Head,
        pages: impl IntoIterator<Item = &'a ProcessPage>,
        decisions_lost: Option<u64>,
    ) -> Self {
        let mut pages: Vec<_> = pages.into_iter().collect();
        pages.sort_by_key(|page| page.pid.load(Relaxed));
        let processes: Vec<_> = pages.iter().map(|page| ProcessReport::of(page)).collect();
        let budget = head.budget;
        Self {
            program: head.program,
            end: head.end,
            elapsed: head.elapsed,
            policy: head.policy,
            economist: head.economist,
            budget,
            budget_kept: processes.iter().all(|p| p.figures.resident_peak <= budget),
            unmanaged: head.unmanaged,
            total: Figures::of(&pages),
            processes,
            decisions_lost,
        }
    }
}

/// What `run` itself knows of the run.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) program: Vec<String>,
    pub(crate) end: Option<End>,
    pub(crate) elapsed: Nanos,
    pub(crate) policy: String,
    pub(crate) economist: String,
    pub(crate) budget: Bytes,
    pub(crate) unmanaged: Option<String>,
}

impl ProcessReport {
    fn of(page: &ProcessPage) -> Self {
        let mut regions: Vec<_> = page
            .regions
            .iter()
            .map(|region| RegionReport {
                start: region.start.load(Relaxed),
                length: Bytes(region.len.load(Relaxed)),
                resident: Bytes(region.resident.load(Relaxed)),
                faults: region.faults.load(Relaxed),
            })
            .filter(|region| region.start != 0)
            .collect();
        regions.sort_by_key(|region| (std::cmp::Reverse(region.faults), region.start));
        Self {
            pid: page.pid.load(Relaxed),
            command: page.text(Text::Command),
            state: match page.state() {
                State::Dormant => ProcessState::Dormant,
                State::Active => ProcessState::Managed,
                State::Failed => ProcessState::Failed,
            },
            failure: Some(page.text(Text::Failure)).filter(|text| !text.is_empty()),
            sampler: page.text(Text::Sampler),
            figures: Figures::of(&[page]),
            regions,
        }
    }
}

impl Figures {
    fn of(pages: &[&ProcessPage]) -> Self {
        let sum = |counter: fn(&Counters) -> &AtomicU64| -> u64 {
            pages.iter().map(|page| counter(&page.counters).load(Relaxed)).sum()
        };
        let bytes = |counter| Bytes(sum(counter));
        let nanos = |counter| Nanos(sum(counter));
        Self {
            mapped: bytes(|c| &c.mapped_bytes),
            mapped_peak: bytes(|c| &c.mapped_peak_bytes),
            resident: bytes(|c| &c.resident_bytes),
            resident_peak: bytes(|c| &c.resident_peak_bytes),
            faults: (0..FAULT_KINDS.len()).map(|kind| FaultReport::of(pages, kind)).collect(),
            faults_spurious: sum(|c| &c.faults_spurious),
            direct_reclaims: sum(|c| &c.direct_reclaims),
            promotions: sum(|c| &c.promotions),
            demotions: sum(|c| &c.demotions),
            demotions_cancelled: sum(|c| &c.demotions_cancelled),
            demotions_refused: sum(|c| &c.demotions_refused),
            store: StoreReport {
                compressed_pages: sum(|c| &c.stored_pages),
                same_filled_pages: sum(|c| &c.same_pages),
                compressed: bytes(|c| &c.blob_bytes),
                occupied: bytes(|c| &c.store_bytes),
                occupied_peak: bytes(|c| &c.store_peak_bytes),
                spilled: bytes(|c| &c.spill_bytes),
                compressions: sum(|c| &c.compressed),
                compress_time: nanos(|c| &c.compress_ns),
                decompressions: sum(|c| &c.decompressed),
                decompress_time: nanos(|c| &c.decompress_ns),
                incompressible: sum(|c| &c.incompressible),
            },
            waited: pages.iter().map(|page| waited(page)).sum(),
            own_cpu: nanos(|c| &c.own_cpu_ns),
            samples: sum(|c| &c.samples),
            samples_lost: sum(|c| &c.samples_lost),
            policy_bytes: bytes(|c| &c.policy_bytes),
            policy_pages: sum(|c| &c.policy_pages),
            accounts: accounts(pages),
        }
    }

    /// Decisions that the economist took: one on each proposal.
    pub(crate) fn decisions(&self) -> u64 {
        self.accounts.iter().map(|account| account.proposed).sum()
    }

    /// The policy's memory a page; zero without pages.
    pub(crate) fn policy_bytes_per_page(&self) -> f64 {
        if self.policy_pages == 0 {
            0.0
        } else {
            self.policy_bytes.as_f64() / self.policy_pages as f64
        }
    }
}

/// Time that threads of a process spent in faults: our service time as
/// measured, and what the kernel adds to each fault before and after it.
fn waited(page: &ProcessPage) -> Nanos {
    let overhead = Nanos(page.counters.fault_overhead_ns.load(Relaxed));
    page.latency.iter().map(|latency| latency.total() + overhead * latency.count()).sum()
}

impl FaultReport {
    fn of(pages: &[&ProcessPage], kind: usize) -> Self {
        let mut counts = BTreeMap::<Nanos, u64>::new();
        let mut max = Nanos::ZERO;
        for page in pages {
            for (upper, count) in page.latency[kind].counts().filter(|&(_, count)| count > 0) {
                *counts.entry(upper).or_default() += count;
            }
            max = max.max(page.latency[kind].max());
        }
        let percentile = |share| percentile(&counts, share).min(max);
        Self {
            kind: FAULT_KINDS[kind],
            count: counts.values().sum(),
            p50: percentile(0.5),
            p99: percentile(0.99),
            p999: percentile(0.999),
            max,
        }
    }
}

/// The duration that a share of all did not exceed; zero of none.
fn percentile(counts: &BTreeMap<Nanos, u64>, share: f64) -> Nanos {
    let all: u64 = counts.values().sum();
    let rank = ((all as f64 * share).ceil() as u64).max(1);
    let mut seen = 0;
    counts
        .iter()
        .find(|&(_, count)| {
            seen += count;
            seen >= rank
        })
        .map_or(Nanos::ZERO, |(&upper, _)| upper)
}

/// The accounts of the classes that anything was proposed in.
fn accounts(pages: &[&ProcessPage]) -> Vec<AccountReport> {
    ActionClass::ALL
        .into_iter()
        .map(|class| {
            let sum = |counter: fn(&ClassCounters) -> &AtomicU64| -> u64 {
                pages.iter().map(|page| counter(&page.classes[class.index()]).load(Relaxed)).sum()
            };
            AccountReport {
                class,
                proposed: sum(|c| &c.proposed),
                vetoed: sum(|c| &c.vetoed),
                completed: sum(|c| &c.completed),
                aborted: sum(|c| &c.aborted),
                predicted_cost: Cycles(sum(|c| &c.predicted_cost)),
                realised_cost: Cycles(sum(|c| &c.realised_cost)),
                predicted_benefit: Cycles(sum(|c| &c.predicted_benefit)),
                realised_benefit: Cycles(sum(|c| &c.realised_benefit)),
            }
        })
        .filter(|report| report.proposed > 0)
        .collect()
}
