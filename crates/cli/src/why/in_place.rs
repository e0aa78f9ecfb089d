//! A page of a program whose memory stays mapped: where it is, and what was decided about it.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Nanos, PageSize};
use terrace_live::numa::moves;
use terrace_report::RegionLine;

use super::{Args, Found, PageChoice, Search, live, render_decisions};
use crate::failure::Failure;
use crate::output;
use crate::runs::{self, LiveRun};

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Whereabouts {
    /// In the memory of this node.
    Numa(u32),
    Swap,
    /// Never touched, or given back.
    Nowhere,
    /// The process cannot be asked.
    Unknown,
}

/// What is known of a page.
#[derive(Serialize)]
struct Answer<'a> {
    program: &'a [String],
    process: u32,
    address: u64,
    region: (u64, u64),
    r#where: Whereabouts,
    /// Where the decisions come from.
    source: &'a str,
    decisions: &'a [Found],
}

/// An address in a process of an attachment.
pub(super) struct Place {
    run: LiveRun,
    region: RegionLine,
}

impl Place {
    pub(super) fn process(&self) -> u32 {
        self.region.process
    }
}

/// The processes in which an address is watched.
pub(super) fn places(args: &Args, address: u64) -> Result<Vec<Place>, Failure> {
    let mut places = Vec::new();
    for run in runs::choose(args.of.as_deref())?.into_iter().filter(|run| run.manifest.in_place) {
        let regions = run.attached().map(|report| report.regions).unwrap_or_default();
        places.extend(
            regions
                .into_iter()
                .filter(|region| args.process.is_none_or(|pid| pid == region.process))
                .filter(|region| (region.start..region.end).contains(&address))
                .map(|region| Place { run: run.clone(), region }),
        );
    }
    Ok(places)
}

/// Prints what there is to say of the address.
pub(super) fn explain(
    args: &Args,
    place: &Place,
    address: u64,
    json: bool,
) -> Result<ExitCode, Failure> {
    let process = place.process();
    let wanted =
        Args { page: Some(PageChoice::Address(address)), process: Some(process), ..args.clone() };
    let mut search = Search::new(&wanted);
    let manifest = &place.run.manifest;
    let source = match manifest.record.as_deref().map(|file| search.read(file, true)) {
        Some(Ok(_)) => "recording",
        _ => "none are kept without --record",
    };
    let Search { found, begin, .. } = search;
    let found = Vec::from(found);
    let at = whereabouts(process, address);
    let RegionLine { start, end, .. } = place.region;
    let text = if json {
        let answer = Answer {
            program: &manifest.program,
            process,
            address,
            region: (start, end),
            r#where: at,
            source,
            decisions: &found,
        };
        output::json("terrace.why-mapped-page", &answer)?
    } else {
        let name = manifest.name();
        let mut text = format!(
            "{address:#x} is in process {process} ({name}), in the region {start:x}-{end:x}\n"
        );
        let _ = match at {
            Whereabouts::Numa(node) => writeln!(text, "it is in the memory of node {node}"),
            Whereabouts::Swap => writeln!(text, "it is in swap"),
            Whereabouts::Nowhere => writeln!(text, "it was never touched, or was given back"),
            Whereabouts::Unknown => writeln!(text, "where it is cannot be asked"),
        };
        let many = output::count(found.len() as u64);
        let _ = writeln!(text, "{many} decisions about it ({source})");
        let begin = begin.unwrap_or(Nanos::ZERO).min(manifest.started);
        text + &render_decisions(&live::header(&place.run), &found, begin)
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Bit 62 of an entry of the page map: the page is in swap.
const SWAPPED: u64 = 1 << 62;

fn whereabouts(process: u32, address: u64) -> Whereabouts {
    let page = address & !(PageSize::Base.bytes().get() - 1);
    let mut places = Vec::new();
    if moves::locate(process, &[page], &mut places).is_err() {
        return Whereabouts::Unknown;
    }
    if let Some(moves::Place::Node(node)) = places.first() {
        return Whereabouts::Numa(*node);
    }
    let entry = || -> Option<u64> {
        let map = File::open(format!("/proc/{process}/pagemap")).ok()?;
        let mut entry = [0; 8];
        map.read_exact_at(&mut entry, (address >> PageSize::Base.shift()) * 8).ok()?;
        Some(u64::from_ne_bytes(entry))
    };
    match entry() {
        None => Whereabouts::Unknown,
        Some(entry) if entry & SWAPPED != 0 => Whereabouts::Swap,
        Some(_) => Whereabouts::Nowhere,
    }
}
