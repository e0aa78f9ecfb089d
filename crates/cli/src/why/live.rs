//! A page of a running program: which it is, where it is, and what was decided
//! about it.
//!
//! Where the run is recorded, its history comes from the recording. Otherwise
//! decisions are asked for: the pager writes them into its ring of the last
//! ones for as long as somebody wants them.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace_core::{Nanos, PageSize, RegionId};
use terrace_economics::Mode;
use terrace_live::doctor::facts::Facts;
use terrace_live::stats::opened::Opened;
use terrace_live::stats::process_page::ProcessPage;

use super::document::RegionDocument;
use super::{Args, Found, PageChoice, Search, in_place, render_decisions};
use crate::failure::Failure;
use crate::output;
use crate::records::{Header, MachineFacts, Record, RegionRecord, World};
use crate::runs::{self, LiveRun};

/// How often the ring is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Where a page is, as far as it can be seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Whereabouts {
    /// At its address.
    Dram,
    /// Not at its address: compressed, in the spill file, waiting to be
    /// compressed, or never touched.
    Elsewhere,
    /// The page map cannot be read.
    Unknown,
}

/// What is known of a page.
#[derive(Serialize)]
struct Answer<'a> {
    program: &'a [String],
    process: u32,
    address: u64,
    region: RegionDocument,
    page: u32,
    r#where: Whereabouts,
    /// Where the decisions come from.
    source: &'a str,
    decisions_lost: u64,
    decisions: &'a [Found],
}

/// A page in a process of a run.
struct Place {
    run: LiveRun,
    page: Opened<ProcessPage>,
    region: RegionRecord,
    number: u32,
}

pub(super) fn explain(args: &Args, address: u64, json: bool) -> Result<ExitCode, Failure> {
    let (mut managed, mut mapped) = (places(args, address)?, in_place::places(args, address)?);
    match (managed.pop(), mapped.pop()) {
        (Some(place), None) if managed.is_empty() => explain_managed(args, &place, address, json),
        (None, Some(place)) if mapped.is_empty() => in_place::explain(args, &place, address, json),
        (None, None) => {
            let what = "is not managed in any running program";
            Err(Failure::bad_input(format!("{address:#x} {what}")))
        }
        (one, other) => {
            let managed = managed.iter().chain(&one).map(|place| place.region.process);
            let mapped = mapped.iter().chain(&other).map(in_place::Place::process);
            let pids: Vec<_> = managed.chain(mapped).map(|pid| pid.to_string()).collect();
            let what = format!("{address:#x} is managed in several processes; choose one with");
            Err(Failure::bad_input(format!("{what} --process: {}", pids.join(", "))))
        }
    }
}

fn explain_managed(
    args: &Args,
    place: &Place,
    address: u64,
    json: bool,
) -> Result<ExitCode, Failure> {
    let process = place.region.process;
    let wanted =
        Args { page: Some(PageChoice::Address(address)), process: Some(process), ..args.clone() };
    let mut search = Search::new(&wanted);
    let mut source = "recording".to_owned();
    let recorded = place.run.manifest.record.as_deref();
    match recorded.map(|file| search.read(file, true)) {
        Some(Ok(_)) => {}
        // Not recorded, or to a pipe: ask.
        _ => source = ask(place, &mut search, args.patience),
    }
    let header = header(&place.run);
    let Search { found, begin, lost, .. } = search;
    let found = Vec::from(found);
    let at = whereabouts(process, address);
    let text = if json {
        let answer = Answer {
            program: &place.run.manifest.program,
            process,
            address,
            region: place.region.into(),
            page: place.number,
            r#where: at,
            source: &source,
            decisions_lost: lost,
            decisions: &found,
        };
        output::json("terrace.why-page", &answer)?
    } else {
        let mut text = headline(place, address, at);
        let many = |count| output::counted(count, "decision", "decisions");
        let _ = writeln!(text, "{} about it ({source})", many(found.len() as u64));
        if lost > 0 {
            let _ = writeln!(text, "{} not seen", many(lost));
        }
        let begin = begin.unwrap_or(Nanos::ZERO).min(place.run.manifest.started);
        text + &render_decisions(&header, &found, begin)
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The processes in which an address is managed.
fn places(args: &Args, address: u64) -> Result<Vec<Place>, Failure> {
    let mut places = Vec::new();
    for run in runs::choose(args.of.as_deref())? {
        for page in run.live_pages() {
            if args.process.is_some_and(|pid| pid != page.pid()) {
                continue;
            }
            let region = regions(&page).find(|region| region.page_at(address).is_some());
            if let Some((region, at)) = region.and_then(|r| Some((r, r.page_at(address)?))) {
                let run = run.clone();
                places.push(Place { run, page, region, number: at.page.0 });
            }
        }
    }
    Ok(places)
}

fn regions(page: &ProcessPage) -> impl Iterator<Item = RegionRecord> {
    let (process, size) = (page.pid(), PageSize::Base);
    let lines = page.regions.iter().filter(|line| line.start.load(Relaxed) != 0);
    lines.map(move |line| RegionRecord {
        process,
        region: RegionId(line.id.load(Relaxed) as u32),
        start: line.start.load(Relaxed),
        pages: (line.len.load(Relaxed) >> size.shift()) as u32,
        page_size: size,
    })
}

/// Has decisions written to the ring for a while; says how they were come by.
fn ask(place: &Place, search: &mut Search<'_>, patience: Nanos) -> String {
    let wanted = &place.page.counters.decisions_wanted_until_ns;
    wanted.fetch_max((runs::now() + patience).get(), Relaxed);
    search.look_at(Record::Region(place.region));
    let process = place.region.process;
    // What an earlier question has left in the ring is history, too.
    let mut next = 0;
    let begun = Instant::now();
    let mut lost = 0;
    loop {
        let first = next == 0;
        let missed = place.page.drain_decisions(&mut next, |decision| {
            search.look_at(Record::Decision { process, decision: Box::new(decision) });
        });
        // What had been overwritten before we looked was not asked for.
        lost += if first { 0 } else { missed };
        if begun.elapsed() >= Duration::from_nanos(patience.get()) {
            break;
        }
        std::thread::sleep(LOOK);
    }
    search.look_at(Record::Lost { process, count: lost });
    format!("the last ones, and those of {patience} of watching; `run --record` keeps all")
}

/// Bit 63 of an entry of the page map: the page is present.
const PRESENT: u64 = 1 << 63;

fn whereabouts(process: u32, address: u64) -> Whereabouts {
    let entry = || -> Option<u64> {
        let map = File::open(format!("/proc/{process}/pagemap")).ok()?;
        let mut entry = [0; 8];
        map.read_exact_at(&mut entry, (address >> PageSize::Base.shift()) * 8).ok()?;
        Some(u64::from_ne_bytes(entry))
    };
    match entry() {
        None => Whereabouts::Unknown,
        Some(entry) if entry & PRESENT != 0 => Whereabouts::Dram,
        Some(_) => Whereabouts::Elsewhere,
    }
}

fn headline(place: &Place, address: u64, at: Whereabouts) -> String {
    let region = &place.region;
    let at = match at {
        Whereabouts::Dram => "in DRAM",
        Whereabouts::Elsewhere => {
            "not in DRAM: compressed, in the spill file, about to be, or never touched"
        }
        Whereabouts::Unknown => "the page map cannot be read",
    };
    format!(
        "{address:#x} is page {}:{} of process {} ({}), in the region {:x}-{:x}\nit is {at}\n",
        region.region.0,
        place.number,
        region.process,
        place.run.manifest.name(),
        region.start,
        region.start + (u64::from(region.pages) << region.page_size.shift()),
    )
}

/// What an explanation needs to know of the run.
pub(super) fn header(run: &LiveRun) -> Header {
    let manifest = &run.manifest;
    let mode = Mode::of_name(&manifest.economist).unwrap_or_default();
    let machine = MachineFacts {
        name: Facts::read(Path::new("/")).cpu.model,
        clock: None,
        tiers: manifest.tiers.clone(),
    };
    let program = manifest.program.clone();
    Header::new(World::Live, program, manifest.policy.clone(), mode, machine)
}
