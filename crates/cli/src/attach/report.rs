//! The report of an attachment.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use serde::Serialize;
use terrace_core::{ActionClass, Bytes, BytesPerSecond, MAX_TIERS, Memory, Nanos, TierId};
use terrace_live::attach::Attach;
use terrace_live::attach::host::Host;
use terrace_live::attach::space::WINDOW;
use terrace_report::run::AccountReport;

use super::size_name;
use crate::output::{count, facts, percent, table};
use crate::run::render::{accounts, section};

/// Regions that the report shows; JSON has them all.
const TOP_REGIONS: usize = 8;

/// What an attachment observed and did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct AttachReport {
    /// Processes that there were, with their names.
    processes: Vec<ProcessLine>,
    /// How long.
    elapsed: Nanos,
    /// Whether nothing was to be moved.
    dry_run: bool,
    /// The tiers, fastest first.
    tiers: Vec<TierLine>,
    /// Pages moved to a faster tier.
    promotions: u64,
    /// Pages moved to a slower tier.
    demotions: u64,
    /// Pages of these that had been moved the other way before.
    ping_pongs: u64,
    /// Pages that somebody else had moved.
    moved_by_others: u64,
    /// Pages that came back from swap.
    refaults: u64,
    /// Migration traffic.
    moved: Bytes,
    /// The bound on it, bytes a second.
    limit: BytesPerSecond,
    /// Time spent in system calls that move pages.
    moving: Nanos,
    /// Actions that were not carried out, by reason.
    aborted: BTreeMap<String, u64>,
    /// Our processor time: planning, moving, passes over the page tables.
    own_cpu: Nanos,
    /// The policy's name.
    policy: String,
    /// Samples that it was given.
    samples: u64,
    /// Its own memory.
    policy_bytes: Bytes,
    /// The samplers.
    samplers: Vec<SamplerLine>,
    /// Why these.
    sampler_reason: String,
    /// Processor time of all samplers.
    sampling: Nanos,
    /// The most of one processor that they may use.
    sampling_cap: f64,
    /// What the economist did with its opinion.
    economist: String,
    /// Its accounts by class of action.
    accounts: Vec<AccountReport>,
    /// What was managed, largest first.
    regions: Vec<RegionLine>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ProcessLine {
    process: u32,
    command: String,
}

/// One tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct TierLine {
    memory: String,
    /// What the programs may use of it; `None` for what it has.
    capacity: Option<Bytes>,
    /// What it held of them after the first look.
    at_begin: Bytes,
    /// What it holds now.
    now: Bytes,
    /// The share of the accesses observed lately that it served.
    recent_accesses: Option<f64>,
    /// The share of all accesses observed.
    all_accesses: Option<f64>,
}

/// One sampler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct SamplerLine {
    name: &'static str,
    samples: u64,
    lost: u64,
    throttled: u64,
}

/// Adjacent windows of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct RegionLine {
    process: u32,
    start: u64,
    end: u64,
    page_size: &'static str,
    /// Bytes in each tier.
    held: Vec<Bytes>,
}

/// What the command itself knows.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) processes: Vec<(u32, String)>,
    pub(crate) elapsed: Nanos,
    pub(crate) dry_run: bool,
    pub(crate) economist: String,
    pub(crate) sampler_reason: String,
    pub(crate) sampling_cap: f64,
    pub(crate) limit: BytesPerSecond,
}

/// Processes with their commands' names.
pub(crate) fn names(processes: &[u32]) -> Vec<(u32, String)> {
    processes
        .iter()
        .filter_map(|&process| {
            let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
            Some((process, name.trim_end().to_owned()))
        })
        .collect()
}

/// What each tier holds of the programs.
pub(crate) fn held<H: Host>(engine: &Attach<H>) -> Vec<Bytes> {
    let tiers = engine.ladder().tiers.len() as u8;
    (0..tiers).map(|tier| Bytes(engine.space().used(TierId(tier)))).collect()
}

impl AttachReport {
    pub(crate) fn collect<H: Host>(
        head: Head,
        engine: &Attach<H>,
        at_begin: Option<&[Bytes]>,
    ) -> Self {
        let stats = engine.stats();
        let now = held(engine);
        let all: u64 = stats.accesses.iter().sum();
        let tiers = engine
            .ladder()
            .tiers
            .iter()
            .enumerate()
            .map(|(i, tier)| TierLine {
                memory: tier.memory.to_string(),
                capacity: tier.capacity,
                at_begin: at_begin.map_or(now[i], |begin| begin[i]),
                now: now[i],
                recent_accesses: stats.recent_share(TierId(i as u8)),
                all_accesses: (all > 0 && matches!(tier.memory, Memory::Numa(_)))
                    .then(|| stats.accesses[i] as f64 / all as f64),
            })
            .collect();
        let processes = head
            .processes
            .into_iter()
            .map(|(process, command)| ProcessLine { process, command })
            .collect();
        Self {
            processes,
            elapsed: head.elapsed,
            dry_run: head.dry_run,
            tiers,
            promotions: stats.promotions,
            demotions: stats.demotions,
            ping_pongs: stats.ping_pongs,
            moved_by_others: stats.moved_by_others,
            refaults: stats.refaults,
            moved: stats.moved,
            limit: head.limit,
            moving: stats.moving,
            aborted: stats.aborted.clone(),
            own_cpu: stats.own_cpu,
            policy: engine.brain().name().to_owned(),
            samples: stats.samples,
            policy_bytes: engine.brain().footprint().bytes,
            samplers: engine
                .samplers()
                .map(|(name, health)| SamplerLine {
                    name,
                    samples: health.delivered,
                    lost: health.lost,
                    throttled: health.throttled,
                })
                .collect(),
            sampler_reason: head.sampler_reason,
            sampling: engine.health().cpu,
            sampling_cap: head.sampling_cap,
            economist: head.economist,
            accounts: account_lines(engine),
            regions: regions(engine),
        }
    }

    /// The report as people read it.
    pub(crate) fn render(&self) -> String {
        let whom = match self.processes.as_slice() {
            // Over before the first look at it.
            [] => "no process".to_owned(),
            [one] => format!("{} ({})", one.command, one.process),
            [first, others @ ..] => {
                format!("{} ({}) and {} more", first.command, first.process, others.len())
            }
        };
        let dry = if self.dry_run { ", moving nothing" } else { "" };
        let mut text = format!("terrace: attached to {whom} for {}{dry}\n", self.elapsed);
        section(&mut text, &self.tier_table());
        text.push('\n');
        text.push_str(&facts("  ", &self.summary()));
        section(&mut text, &accounts(&self.accounts));
        section(&mut text, &self.region_table());
        text
    }

    fn summary(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![
            ("promotions", count(self.promotions)),
            (
                "demotions",
                format!("{}, {} ping-pongs", count(self.demotions), count(self.ping_pongs)),
            ),
            ("traffic", format!("{} in {}, at most {}", self.moved, self.moving, self.limit)),
        ];
        if self.refaults > 0 {
            rows.push(("came back", format!("{} pages from swap", count(self.refaults))));
        }
        if self.moved_by_others > 0 {
            rows.push(("moved by others", format!("{} pages", count(self.moved_by_others))));
        }
        if !self.aborted.is_empty() {
            let reasons: Vec<_> = self
                .aborted
                .iter()
                .map(|(reason, number)| format!("{} {reason}", count(*number)))
                .collect();
            rows.push(("not carried out", reasons.join(", ")));
        }
        rows.push((
            "policy",
            format!(
                "{}, {} samples, {} of its own",
                self.policy,
                count(self.samples),
                self.policy_bytes
            ),
        ));
        for sampler in &self.samplers {
            let mut line = format!("{}, {} samples", sampler.name, count(sampler.samples));
            if sampler.lost > 0 {
                let _ = write!(line, " ({} lost)", count(sampler.lost));
            }
            if sampler.throttled > 0 {
                let _ = write!(line, ", throttled {} times", count(sampler.throttled));
            }
            rows.push(("sampler", line));
        }
        rows.push(("chosen because", self.sampler_reason.clone()));
        let share = |time: Nanos| {
            if self.elapsed.is_zero() { 0.0 } else { time / self.elapsed }
        };
        rows.push((
            "sampling",
            format!(
                "{}, {} of one processor, {} at most",
                self.sampling,
                percent(share(self.sampling)),
                percent(self.sampling_cap)
            ),
        ));
        rows.push((
            "our processors",
            format!("{}, {} of the time", self.own_cpu, percent(share(self.own_cpu))),
        ));
        let decisions: u64 = self.accounts.iter().map(|line| line.proposed).sum();
        rows.push(("economist", format!("{}, {} decisions", self.economist, count(decisions))));
        rows
    }

    fn tier_table(&self) -> String {
        let share = |share: Option<f64>| share.map_or("-".to_owned(), percent);
        let rows: Vec<_> = self
            .tiers
            .iter()
            .map(|tier| {
                [
                    tier.memory.clone(),
                    tier.capacity.map_or("-".to_owned(), |capacity| capacity.to_string()),
                    tier.at_begin.to_string(),
                    tier.now.to_string(),
                    share(tier.all_accesses),
                    share(tier.recent_accesses),
                ]
            })
            .collect();
        table(["tiers", "capacity", "at begin", "now", "accesses", "lately"], &rows)
    }

    fn region_table(&self) -> String {
        if self.regions.is_empty() {
            return String::new();
        }
        let rows: Vec<_> = self
            .regions
            .iter()
            .take(TOP_REGIONS)
            .map(|region| {
                let held: Vec<_> = region.held.iter().map(ToString::to_string).collect();
                [
                    format!("{:x}-{:x}", region.start, region.end),
                    region.process.to_string(),
                    region.page_size.to_owned(),
                    held.join(" + "),
                ]
            })
            .collect();
        let more = self.regions.len().saturating_sub(TOP_REGIONS);
        let tail = if more > 0 { format!("and {more} more\n") } else { String::new() };
        table(["regions", "process", "pages", "in tiers"], &rows) + &tail
    }
}

fn account_lines<H: Host>(engine: &Attach<H>) -> Vec<AccountReport> {
    ActionClass::ALL
        .into_iter()
        .map(|class| AccountReport::new(class, engine.brain().economist().account(class)))
        .filter(|line| line.proposed > 0)
        .collect()
}

/// Adjacent windows together, the largest first.
fn regions<H: Host>(engine: &Attach<H>) -> Vec<RegionLine> {
    let tiers = engine.ladder().tiers.len();
    let mut lines: Vec<RegionLine> = Vec::new();
    for (_, window) in engine.space().windows() {
        let mut held = [0u64; MAX_TIERS];
        for page in 0..window.pages() {
            if let Some(tier) = window.word(terrace_core::PageNo(page)).tier() {
                held[tier.index()] += window.page_size.bytes().get();
            }
        }
        let page_size = size_name(window.page_size);
        let end = window.base + WINDOW;
        match lines.last_mut() {
            Some(last)
                if (last.process, last.end, last.page_size)
                    == (window.process, window.base, page_size) =>
            {
                last.end = end;
                for (sum, more) in last.held.iter_mut().zip(held) {
                    *sum += Bytes(more);
                }
            }
            _ => lines.push(RegionLine {
                process: window.process,
                start: window.base,
                end,
                page_size,
                held: held[..tiers].iter().map(|&bytes| Bytes(bytes)).collect(),
            }),
        }
    }
    let size = |line: &RegionLine| line.held.iter().map(|bytes| bytes.get()).sum::<u64>();
    lines.sort_by_key(|line| (std::cmp::Reverse(size(line)), line.start));
    lines
}
