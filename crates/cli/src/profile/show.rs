//! `terrace profile show`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Bytes, Cycles, PerSecond};
use terrace_profile::{Estimate, Profile, SLOT, picture};

use super::{RegionDocument, Summary, read};
use crate::failure::Failure;
use crate::output::{self, facts, percent};

/// Width of the picture, in signs.
const WIDTH: usize = 64;

/// Draw a profile: the address space with what huge pages avert in it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace profile show sort.profile")]
pub(crate) struct Args {
    /// The profile.
    file: PathBuf,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    summary: Summary,
    region: Vec<Shown>,
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    region: RegionDocument,
    ranges: Vec<RangeDocument>,
}

#[derive(Serialize)]
struct RangeDocument {
    offset: Bytes,
    len: Bytes,
    averted: Cycles,
    low: Cycles,
    high: Cycles,
    rate: PerSecond,
    touched: f64,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let profile = read(&self.file)?;
        let text = if json {
            output::json("terrace.profile.show", &document(&profile))?
        } else {
            words(&profile)
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn document(profile: &Profile) -> Document {
    let region = profile.regions.iter().map(|region| Shown {
        region: RegionDocument::new(region),
        ranges: region
            .ranges
            .iter()
            .map(|range| {
                let estimate = Estimate::new(
                    range.averted,
                    range.deviation,
                    profile.runs,
                    profile.horizon,
                    profile.walk_time,
                );
                RangeDocument {
                    offset: range.offset,
                    len: range.len,
                    averted: range.averted,
                    low: estimate.low,
                    high: estimate.high,
                    rate: estimate.rate(),
                    touched: f64::from(range.touched) / 512.0,
                }
            })
            .collect(),
    });
    Document { summary: Summary::new(profile), region: region.collect() }
}

fn words(profile: &Profile) -> String {
    let mut text = facts("", &Summary::new(profile).facts());
    let mut regions: Vec<_> = profile.regions.iter().collect();
    regions.sort_by(|a, b| b.total().cmp(&a.total()).then_with(|| a.key.cmp(&b.key)));
    for region in regions {
        let slots: u64 = region.ranges.iter().map(terrace_profile::Range::slots).sum();
        let of_one: Cycles = region.ranges.iter().map(terrace_profile::Range::total).sum();
        let each = of_one / slots.max(1);
        let mappings = if region.instances > region.seen {
            format!(" as {} mappings one after the other", region.instances)
        } else {
            String::new()
        };
        let _ = writeln!(
            text,
            "\n{}  {}, in {} of {} runs{mappings}, {} touched: {} averted, {each} a huge page",
            region.key,
            region.len,
            region.seen,
            profile.runs,
            percent(region.touched()),
            region.total(),
        );
        let parts = picture::parts(region, WIDTH).len() as u64;
        let each = Bytes(region.len.get().div_ceil(SLOT.get()).max(1) * SLOT.get() / parts.max(1));
        let _ = writeln!(text, "  |{}|  {each} a sign", picture::line(region, WIDTH));
    }
    for rule in &profile.rules {
        let averted = rule.averted.map_or("all of it".to_owned(), |averted| averted.to_string());
        let _ = write!(text, "\nrule {} {}: {averted}", rule.policy.name(), rule.section.name());
        for condition in &rule.conditions {
            let (quantity, compare) = (condition.quantity.name(), condition.compare.name());
            let _ = write!(text, ", {quantity} {compare} {:#x}", condition.value);
        }
    }
    if !profile.rules.is_empty() {
        text.push('\n');
    }
    if !profile.regions.is_empty() {
        let _ = writeln!(text, "\n{}", picture::LEGEND);
    }
    text
}
