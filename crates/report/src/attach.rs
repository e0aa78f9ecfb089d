//! The report of memory whose pages stay mapped: what `terrace attach`, and
//! `terrace run` with slower memories, observed and moved.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use terrace_core::{
    ActionClass, Bytes, BytesPerSecond, Cycles, Home, Memory, Nanos, PageSize, PerSecond, TierId,
};
use terrace_economics::{Account, Balance};
use terrace_kernel::engine::Engine;
use terrace_kernel::engine::world::World;
use terrace_live::attach::host::Host;
use terrace_live::attach::parts::Part;
use terrace_live::attach::space::{Space, WINDOW, Window};
use terrace_live::attach::{Attach, LatencyFrom};
use terrace_live::stats::process_page::PARTS;
use terrace_policy::Brain;

use crate::in_place::InPlaceSlowdown;
use crate::kernel::KernelReport;
use crate::page_size;
use crate::run::AccountReport;

/// What an attachment observed and did.
///
/// As many fields as there are figures: it is what `--json` prints, flat for who reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttachReport {
    /// Processes that there were, with their names.
    pub processes: Vec<ProcessLine>,
    /// How long.
    pub elapsed: Nanos,
    /// Whether nothing was to be moved.
    pub dry_run: bool,
    /// The tiers, fastest first.
    pub tiers: Vec<TierLine>,
    /// Pages moved to a faster tier.
    pub promotions: u64,
    /// Pages moved to a slower tier; `None` where that is not known.
    pub demotions: Option<u64>,
    /// Pages of these that had been moved the other way before; `None` where that is not observed: the
    /// kernel does not tell which pages it put out.
    #[serde(default)]
    pub ping_pongs: Option<u64>,
    /// Pages that somebody else had moved; `None` with the kernel's engine, to which the kernel is nobody else.
    pub moved_by_others: Option<u64>,
    /// Pages that came back from swap.
    pub refaults: u64,
    /// How much slower the programs ran than in the fastest memory alone, at most; `None` in
    /// recordings from before that was estimated.
    #[serde(default)]
    pub slowdown: Option<InPlaceSlowdown>,
    /// Migration traffic; `None` where that is not known.
    pub moved: Option<Bytes>,
    /// The bound on it, bytes a second; `None` where there is none.
    pub limit: Option<BytesPerSecond>,
    /// Time spent in system calls that move pages.
    pub moving: Nanos,
    /// Actions that were not carried out, by reason.
    pub aborted: BTreeMap<String, u64>,
    /// Threads that moved pages at once, the most.
    #[serde(default)]
    pub movers: u32,
    /// Our processor time: planning, moving, passes over the page tables, and showing
    /// all this.
    pub own_cpu: Nanos,
    /// The policy's name.
    pub policy: String,
    /// Samples that it was given.
    pub samples: u64,
    /// Its own memory.
    pub policy_bytes: Bytes,
    /// The samplers.
    pub samplers: Vec<SamplerLine>,
    /// Why these.
    pub sampler_reason: String,
    /// Processor time of all samplers.
    pub sampling: Nanos,
    /// The most of one processor that they may use.
    pub sampling_cap: f64,
    /// What the economist did with its opinion.
    pub economist: String,
    /// Why no class of action is stopped that has cost more than it brought, where that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_kill_switch: Option<String>,
    /// Its accounts by class of action.
    pub accounts: Vec<AccountReport>,
    /// What deciding on actions has cost; 0 in recordings from before that was timed.
    #[serde(default)]
    pub deciding: Cycles,
    /// Gains and costs of the actions whose gain is known.
    #[serde(default)]
    pub balance: Balance,
    /// What was managed, largest first.
    pub regions: Vec<RegionLine>,
    /// Where the kernel serves the faults: what only that engine tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Box<KernelReport>>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLine {
    /// Its number.
    pub process: u32,
    /// Its command's name.
    pub command: String,
}

/// One tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierLine {
    /// What it is called: `numa:0`, `dax:dax0.0`, `swap`.
    pub memory: String,
    /// The node that a DAX device is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// What the programs may use of it; `None` for what it has.
    pub capacity: Option<Bytes>,
    /// What it held of them after the first look.
    pub at_begin: Bytes,
    /// What it holds now.
    pub now: Bytes,
    /// The share of the accesses observed lately that it served.
    pub recent_accesses: Option<f64>,
    /// The share of all accesses observed.
    pub all_accesses: Option<f64>,
    /// What a load takes there; of swap, what a page takes to come back.
    #[serde(default)]
    pub latency: Option<Nanos>,
    /// Where that is known from.
    #[serde(default)]
    pub latency_from: Option<LatencyFrom>,
}

impl TierLine {
    /// What it is called, and which node that is where the name does not say so.
    pub fn title(&self) -> String {
        match self.node {
            Some(node) => format!("{} (numa:{node})", self.memory),
            None => self.memory.clone(),
        }
    }
}

/// One sampler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerLine {
    /// Its name.
    pub name: String,
    /// Samples that it delivered.
    pub samples: u64,
    /// Samples that the kernel or the hardware lost.
    pub lost: u64,
    /// Times that the kernel throttled it.
    pub throttled: u64,
}

/// Adjacent windows of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionLine {
    /// The process.
    pub process: u32,
    /// The first address.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
    /// The size in which its pages are placed.
    #[serde(with = "page_size")]
    pub page_size: PageSize,
    /// Bytes in each tier.
    pub held: Vec<Bytes>,
    /// Accesses that were observed in it lately: in the last two to four seconds.
    pub accesses: u64,
    /// The same by equal parts, first address first.
    pub parts: [u32; PARTS],
    /// Of what lies in each part, the share that lies in the fastest tier, percent;
    /// `None` where nothing lies.
    pub fastest: [Option<u8>; PARTS],
}

/// What the command itself knows.
#[derive(Clone, Debug)]
pub struct Head {
    /// Processes that there were, with their names.
    pub processes: Vec<(u32, String)>,
    /// How long.
    pub elapsed: Nanos,
    /// Whether nothing was to be moved.
    pub dry_run: bool,
    /// What the economist does with its opinion.
    pub economist: String,
    /// Why these samplers.
    pub sampler_reason: String,
    /// Why no class of action is stopped that has cost more than it brought, where that is so.
    pub no_kill_switch: Option<String>,
    /// The most of one processor that they may use.
    pub sampling_cap: f64,
    /// The bound on migration traffic, if there is one.
    pub limit: Option<BytesPerSecond>,
}

/// What each tier holds of the programs.
pub fn held<H: Host>(engine: &Attach<H>) -> Vec<Bytes> {
    tiers(engine).map(|tier| Bytes(engine.space().used(tier))).collect()
}

fn tiers<H: Host>(engine: &Attach<H>) -> impl Iterator<Item = TierId> + use<H> {
    (0..engine.ladder().tiers.len() as u8).map(TierId)
}

impl AttachReport {
    /// What an engine knows now. `at_begin` is what the tiers [`held`] after the first
    /// look.
    pub fn collect<H: Host>(head: Head, engine: &Attach<H>, at_begin: Option<&[Bytes]>) -> Self {
        let stats = engine.stats();
        let now = held(engine);
        let every: Vec<_> = tiers(engine).collect();
        let all: u64 = stats.accesses.iter().sum();
        let tiers: Vec<_> = engine
            .ladder()
            .tiers
            .iter()
            .zip(engine.homes())
            .zip(engine.latencies())
            .enumerate()
            .map(|(i, ((tier, home), (latency, from)))| TierLine {
                memory: tier.memory.to_string(),
                node: match (tier.memory, home) {
                    (Memory::Dax(_), Home::Node(node)) => Some(node),
                    _ => None,
                },
                capacity: tier.capacity,
                at_begin: at_begin.map_or(now[i], |begin| begin[i]),
                now: now[i],
                recent_accesses: stats.recent_share(TierId(i as u8)),
                all_accesses: (all > 0 && tier.memory.is_addressable())
                    .then(|| stats.accesses[i] as f64 / all as f64),
                latency: Some(latency),
                latency_from: Some(from),
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
            slowdown: Some(InPlaceSlowdown::estimate(head.elapsed, &tiers, stats.refaults)),
            tiers,
            promotions: stats.promotions,
            demotions: Some(stats.demotions),
            ping_pongs: Some(stats.ping_pongs),
            moved_by_others: Some(stats.moved_by_others),
            refaults: stats.refaults,
            moved: Some(stats.moved),
            limit: head.limit,
            moving: stats.moving,
            movers: stats.movers,
            aborted: stats.aborted.clone(),
            own_cpu: stats.own_cpu,
            policy: engine.brain().name().to_owned(),
            samples: stats.samples,
            policy_bytes: engine.brain().footprint().bytes,
            samplers: engine
                .samplers()
                .map(|(name, health)| SamplerLine {
                    name: name.to_owned(),
                    samples: health.delivered,
                    lost: health.lost,
                    throttled: health.throttled,
                })
                .collect(),
            sampler_reason: head.sampler_reason,
            sampling: engine.health().cpu,
            sampling_cap: head.sampling_cap,
            economist: head.economist,
            no_kill_switch: head.no_kill_switch,
            accounts: account_lines(|class| Some(engine.brain().economist().account(class))),
            deciding: engine.brain().economist().own_cost(),
            balance: engine.brain().economist().balance(),
            regions: regions(engine.space(), &every),
            kernel: None,
        }
    }

    /// What an engine knows that leaves the faults to the kernel. Tier 0 is DRAM, tier 1 swap.
    pub fn of_kernel<W: World>(
        head: Head,
        engine: &Engine<W>,
        at_begin: Option<Bytes>,
        report: KernelReport,
    ) -> Self {
        const TIERS: [TierId; 2] = [TierId(0), TierId(1)];
        let (stats, brain) = (engine.stats(), engine.brain());
        let page = PageSize::Base.bytes();
        let promotions = stats.faults + stats.ahead.get() / page.get();
        let swapped = report.swapped.unwrap_or_default();
        let line = |memory: &str, capacity, at_begin, now| TierLine {
            memory: memory.to_owned(),
            node: None,
            capacity,
            at_begin,
            now,
            recent_accesses: None,
            all_accesses: None,
            latency: None,
            latency_from: None,
        };
        let processes = head.processes.into_iter();
        let not_done = [("stayed", stats.stayed), ("found too little", stats.short)];
        Self {
            processes: processes
                .map(|(process, command)| ProcessLine { process, command })
                .collect(),
            elapsed: head.elapsed,
            dry_run: false,
            tiers: vec![
                line(
                    "dram",
                    Some(engine.fast()),
                    at_begin.unwrap_or(stats.resident),
                    stats.resident,
                ),
                line("swap", None, Bytes::ZERO, swapped),
            ],
            promotions,
            demotions: report.demotions,
            ping_pongs: None,
            moved_by_others: None,
            refaults: stats.faults,
            slowdown: None,
            moved: report.demotions.map(|demotions| page * (promotions + demotions)),
            limit: head.limit,
            moving: stats.own_cpu.saturating_sub(stats.observing_cpu),
            movers: 0,
            aborted: not_done
                .into_iter()
                .filter(|(_, n)| *n > 0)
                .map(|(why, n)| (why.to_owned(), n))
                .collect(),
            own_cpu: stats.own_cpu,
            policy: brain.map_or("kernel", Brain::name).to_owned(),
            samples: if brain.is_some() { stats.faults } else { 0 },
            policy_bytes: report.policy_bytes,
            samplers: std::iter::once(SamplerLine {
                name: "major faults".to_owned(),
                samples: stats.faults,
                lost: report.faults_lost,
                throttled: 0,
            })
            .chain(engine.samplers().into_iter().map(|(name, health)| SamplerLine {
                name: name.to_owned(),
                samples: health.delivered,
                lost: health.lost,
                throttled: health.throttled,
            }))
            .collect(),
            sampler_reason: head.sampler_reason,
            sampling: stats.observing_cpu + stats.sampling_cpu,
            sampling_cap: head.sampling_cap,
            economist: head.economist,
            no_kill_switch: head.no_kill_switch,
            accounts: account_lines(|class| engine.account(class)),
            deciding: engine.deciding(),
            balance: brain.map_or_else(Balance::default, |brain| brain.economist().balance()),
            regions: engine.space().map(|space| regions(space, &TIERS)).unwrap_or_default(),
            kernel: Some(Box::new(report)),
        }
    }

    /// A share of the time.
    pub fn share(&self, time: Nanos) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { time / self.elapsed }
    }

    /// Whom it was about: the first process, and how many more there were.
    pub fn whom(&self) -> String {
        match self.processes.as_slice() {
            // Over before the first look at it.
            [] => "no process".to_owned(),
            [one] => format!("{} ({})", one.command, one.process),
            [first, others @ ..] => {
                format!("{} ({}) and {} more", first.command, first.process, others.len())
            }
        }
    }
}

/// The accounts of all classes of which anything was proposed.
fn account_lines<'a>(of: impl Fn(ActionClass) -> Option<&'a Account>) -> Vec<AccountReport> {
    ActionClass::ALL
        .into_iter()
        .filter_map(|class| Some(AccountReport::new(class, of(class)?)))
        .filter(|line| line.proposed > 0)
        .collect()
}

/// Adjacent windows together, the largest first.
fn regions(space: &Space, tiers: &[TierId]) -> Vec<RegionLine> {
    let mut lines: Vec<RegionLine> = Vec::new();
    let mut adjacent: Vec<&Window> = Vec::new();
    for (_, window) in space.windows() {
        let goes_on = adjacent.last().is_some_and(|last| {
            (last.process, last.base + WINDOW, last.page_size)
                == (window.process, window.base, window.page_size)
        });
        if !goes_on {
            lines.extend(RegionLine::of(&adjacent, tiers));
            adjacent.clear();
        }
        adjacent.push(window);
    }
    lines.extend(RegionLine::of(&adjacent, tiers));
    lines.sort_by_key(|line| (std::cmp::Reverse(line.placed()), line.start));
    lines
}

impl RegionLine {
    /// Adjacent windows as one; `None` without any.
    fn of(windows: &[&Window], tiers: &[TierId]) -> Option<Self> {
        let first = windows.first()?;
        let all: Vec<&Part> = windows.iter().flat_map(|window| window.parts()).collect();
        // As many of the windows' parts to one of ours as there are windows.
        let ours = |i: usize| &all[i * windows.len()..(i + 1) * windows.len()];
        let sum = |parts: &[&Part], tier: TierId| -> Bytes {
            Bytes(parts.iter().map(|part| part.held(tier).get()).sum())
        };
        let parts: [u32; PARTS] = std::array::from_fn(|i| {
            ours(i).iter().fold(0, |sum: u32, part| sum.saturating_add(part.accesses()))
        });
        let fastest = std::array::from_fn(|i| {
            let held = |tier: &TierId| sum(ours(i), *tier).get();
            let all: u64 = tiers.iter().map(held).sum();
            (held(&TierId(0)) * 100).checked_div(all).map(|percent| percent as u8)
        });
        Some(Self {
            process: first.process,
            start: first.base,
            end: first.base + WINDOW * windows.len() as u64,
            page_size: first.page_size,
            held: tiers.iter().map(|tier| sum(&all, *tier)).collect(),
            accesses: parts.iter().map(|&n| u64::from(n)).sum(),
            parts,
            fastest,
        })
    }

    /// The size of its pages, as tables have it.
    pub const fn page_size_name(&self) -> &'static str {
        page_size::name(self.page_size)
    }

    /// What of it lies anywhere.
    pub fn placed(&self) -> Bytes {
        Bytes(self.held.iter().map(|bytes| bytes.get()).sum())
    }

    /// Its length, holes included.
    pub fn length(&self) -> Bytes {
        Bytes(self.end - self.start)
    }

    /// The part in which an address lies, if it is in the region.
    pub fn part_at(&self, process: u32, address: u64) -> Option<usize> {
        let inside = self.process == process && (self.start..self.end).contains(&address);
        inside.then(|| {
            let (at, length) = (address - self.start, self.end - self.start);
            (u128::from(at) * PARTS as u128 / u128::from(length)) as usize
        })
    }
}

/// What happened between two looks at an attachment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttachRates {
    /// The interval's length.
    pub interval: Nanos,
    /// Pages moved to a faster tier.
    pub promotions: PerSecond,
    /// Pages moved to a slower tier; `None` where that is not known.
    pub demotions: Option<PerSecond>,
    /// Pages of these that had been moved the other way before; `None` where that is not observed.
    #[serde(default)]
    pub ping_pongs: Option<PerSecond>,
    /// Pages that came back from swap.
    pub refaults: PerSecond,
    /// Samples that the policy was given.
    pub samples: PerSecond,
    /// Migration traffic; `None` where that is not known.
    pub moved: Option<BytesPerSecond>,
    /// Processors that Terrace took on average, samplers aside.
    pub own_cpu: f64,
    /// Processors that the samplers took on average.
    pub sampling: f64,
    /// The part of the time in which the programs thrashed; 0 unless the kernel serves their faults.
    #[serde(default)]
    pub thrashing: f64,
}

impl AttachRates {
    /// Rates between two looks, or since the beginning; `None` if no time has passed.
    pub fn between(before: Option<&AttachReport>, after: &AttachReport) -> Option<Self> {
        let interval = after.elapsed - before.map_or(Nanos::ZERO, |before| before.elapsed);
        if interval.is_zero() {
            return None;
        }
        let since = |count: fn(&AttachReport) -> u64| {
            let gone = count(after).saturating_sub(before.map_or(0, count));
            gone as f64 * 1e9 / interval.get() as f64
        };
        let rate = |count| PerSecond(since(count));
        Some(Self {
            interval,
            promotions: rate(|report| report.promotions),
            demotions: after.demotions.map(|_| rate(|report| report.demotions.unwrap_or(0))),
            ping_pongs: after.ping_pongs.map(|_| rate(|report| report.ping_pongs.unwrap_or(0))),
            refaults: rate(|report| report.refaults),
            samples: rate(|report| report.samples),
            moved: after
                .moved
                .map(|_| BytesPerSecond(since(|report| report.moved.map_or(0, Bytes::get)))),
            // Nanoseconds a second.
            own_cpu: since(|report| report.own_cpu.get()) / 1e9,
            sampling: since(|report| report.sampling.get()) / 1e9,
            thrashing: since(|report| {
                report.kernel.as_ref().map_or(0, |kernel| kernel.stats.thrashing.get())
            }) / 1e9,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report of two tiers at its n-th second.
    pub(crate) fn report(n: u64) -> AttachReport {
        let tier = |memory: &str, now| TierLine {
            memory: memory.to_owned(),
            node: None,
            capacity: (memory == "numa:0").then_some(Bytes::mib(8)),
            at_begin: Bytes::mib(16),
            now,
            recent_accesses: Some(0.5),
            all_accesses: Some(0.5),
            latency: Some(Nanos(if memory == "numa:0" { 100 } else { 300 })),
            latency_from: Some(LatencyFrom::Firmware),
        };
        let tiers = vec![tier("numa:0", Bytes::mib(8)), tier("numa:1", Bytes::mib(24))];
        let slowdown = InPlaceSlowdown::estimate(Nanos::seconds(n), &tiers, 0);
        let mut fastest = [None; PARTS];
        fastest[..2].copy_from_slice(&[Some(100), Some(0)]);
        AttachReport {
            processes: vec![ProcessLine { process: 42, command: "redis<".into() }],
            elapsed: Nanos::seconds(n),
            dry_run: false,
            tiers,
            slowdown: Some(slowdown),
            promotions: 10 * n,
            demotions: Some(30 * n),
            ping_pongs: Some(n),
            moved_by_others: Some(0),
            refaults: 2 * n,
            moved: Some(Bytes::kib(160) * n),
            limit: Some(BytesPerSecond(1e9)),
            moving: Nanos::millis(n),
            movers: 1,
            aborted: BTreeMap::from([("busy".to_owned(), n)]),
            own_cpu: Nanos::millis(20) * n,
            policy: "hemem".into(),
            samples: 1_000 * n,
            policy_bytes: Bytes::kib(64),
            samplers: Vec::new(),
            sampler_reason: "as asked for".into(),
            sampling: Nanos::millis(10) * n,
            sampling_cap: 0.03,
            economist: "enforce".into(),
            no_kill_switch: None,
            accounts: Vec::new(),
            deciding: Cycles::ZERO,
            balance: Balance::default(),
            regions: vec![RegionLine {
                process: 42,
                start: 0x7000_0000_0000,
                end: 0x7000_0400_0000,
                page_size: PageSize::Base,
                held: vec![Bytes::mib(2), Bytes::mib(2)],
                accesses: 7,
                parts: std::array::from_fn(|i| if i == 0 { 7 } else { 0 }),
                fastest,
            }],
            kernel: None,
        }
    }

    #[test]
    fn rates_are_of_the_interval_and_of_all_without_a_look_before() {
        let (first, second) = (report(1), AttachReport { promotions: 50, ..report(3) });

        let rates = AttachRates::between(Some(&first), &second).unwrap();
        let all = AttachRates::between(None, &first).unwrap();

        assert_eq!(rates.promotions, PerSecond(20.0));
        assert_eq!(rates.moved, Some(BytesPerSecond(160.0 * 1024.0)));
        assert!((rates.sampling - 0.01).abs() < 1e-9 && (rates.own_cpu - 0.02).abs() < 1e-9);
        assert!(rates.thrashing < 1e-9);
        let thrashed = |mut report: AttachReport, time| {
            let mut kernel = crate::kernel::tests::report();
            kernel.stats.thrashing = time;
            report.kernel = Some(Box::new(kernel));
            report
        };
        let (before, after) =
            (thrashed(report(1), Nanos::millis(200)), thrashed(report(3), Nanos::millis(1_700)));
        let thrashing = AttachRates::between(Some(&before), &after).unwrap().thrashing;
        assert!((thrashing - 0.75).abs() < 1e-9, "{thrashing}");
        assert_eq!((all.interval, all.promotions), (Nanos::seconds(1), PerSecond(10.0)));
        assert_eq!(AttachRates::between(Some(&first), &first), None);
        assert_eq!(rates.ping_pongs, Some(PerSecond(1.0)));
        let unseen = AttachReport { ping_pongs: None, demotions: None, moved: None, ..second };
        let rates = AttachRates::between(Some(&first), &unseen).unwrap();
        assert_eq!((rates.ping_pongs, rates.demotions, rates.moved), (None, None, None));
    }

    #[test]
    fn an_address_lies_in_one_part_of_its_own_process() {
        let region = &report(1).regions[0];
        assert_eq!(region.part_at(42, region.start), Some(0));
        assert_eq!(region.part_at(42, region.start + (2 << 20)), Some(1));
        assert_eq!(region.part_at(42, region.end - 1), Some(PARTS - 1));
        assert_eq!(region.part_at(42, region.end), None);
        assert_eq!(region.part_at(43, region.start), None);
    }

    #[test]
    fn adjacent_windows_are_one_region_whose_parts_are_twice_as_long() {
        use terrace_core::{PageNo, PageRef};
        use terrace_live::attach::space::Space;

        let mut space = Space::new();
        let regions = [0, WINDOW].map(|base| space.insert(7, base, PageSize::Base));
        let page = |window: usize, page| PageRef { region: regions[window].id, page: PageNo(page) };
        // In the first of 2 MiB: a fast page, and in the second three slow ones. In the
        // other window, the last page of all.
        space.place(page(0, 0), Some(TierId(0)));
        for slow in 512..515 {
            space.place(page(0, slow), Some(TierId(1)));
        }
        let last = page(1, (WINDOW >> PageSize::Base.shift()) as u32 - 1);
        space.place(last, Some(TierId(1)));
        space.observe(last, 9);
        let windows: Vec<_> = space.windows().map(|(_, window)| window).collect();

        let line = RegionLine::of(&windows, &[TierId(0), TierId(1)]).unwrap();

        assert_eq!((line.start, line.end), (0, 2 * WINDOW));
        assert_eq!(line.held, [Bytes(4096), Bytes(4 * 4096)]);
        assert_eq!((line.fastest[0], line.fastest[1]), (Some(25), None));
        assert_eq!((line.fastest[PARTS - 1], line.parts[PARTS - 1]), (Some(0), 9));
        assert_eq!(line.accesses, 9);
    }

    #[test]
    fn a_dax_device_has_both_its_names() {
        let mut report = report(1);
        assert_eq!(report.tiers[1].title(), "numa:1");
        (report.tiers[1].memory, report.tiers[1].node) = ("dax:dax0.0".into(), Some(2));
        assert_eq!(report.tiers[1].title(), "dax:dax0.0 (numa:2)");
    }

    #[test]
    fn what_is_published_is_read_as_it_was() {
        let text = serde_json::to_string(&report(2)).unwrap();
        assert_eq!(serde_json::from_str::<AttachReport>(&text).unwrap(), report(2));
    }

    #[test]
    fn the_size_of_pages_is_in_bytes_and_older_recordings_with_its_name_are_read() {
        let mut line = report(1).regions.remove(0);
        for (size, bytes, name) in
            [(PageSize::Base, 4096, "4 KiB"), (PageSize::Huge, 2 << 20, "2 MiB")]
        {
            line.page_size = size;
            let mut written = serde_json::to_value(&line).unwrap();
            assert_eq!(written["page_size"], bytes);
            assert_eq!(line.page_size_name(), name);

            written["page_size"] = name.into();
            assert_eq!(serde_json::from_value::<RegionLine>(written.clone()).unwrap(), line);
            for none in [serde_json::json!(8192), "8 KiB".into()] {
                written["page_size"] = none;
                assert!(serde_json::from_value::<RegionLine>(written.clone()).is_err());
            }
        }
    }
}
