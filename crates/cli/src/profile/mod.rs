//! `terrace profile`: what huge pages bring where in a program's memory.
//!
//! | file | concept |
//! |---|---|
//! | [`record`] | a profile from one run |
//! | [`refine`] | walks that a processor counts take the place of simulated ones |
//! | [`show`] | a picture of the address space with its benefit |
//! | [`diff`] | how much of one profile another has as well |
//! | [`merge`] | several runs become one profile |
//! | [`import`], [`export`] | CBMM's CSV |
//! | [`applied`] | whether a profile fits a run |
//! | [`worth`] | whether memory that fits is managed for its sake |

pub(crate) mod applied;
mod diff;
mod export;
mod import;
mod merge;
mod record;
mod refine;
mod show;
pub(crate) mod worth;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use terrace_core::{Bytes, Cycles, Nanos};
use terrace_profile::{Key, Profile, Region, WalkTime};

use crate::failure::Failure;
use crate::output::{self, Files, Kind};
use crate::sim::recorder;

/// Make, look at, compare and exchange profiles: what huge pages bring where in a program's memory.
///
/// `terrace run --profile FILE` uses one.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

/// What is done with a profile.
#[derive(Debug, Subcommand)]
enum What {
    Record(record::Args),
    Refine(refine::Args),
    Show(show::Args),
    Diff(diff::Args),
    Merge(merge::Args),
    Import(import::Args),
    Export(export::Args),
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        match self.what {
            What::Record(args) => args.execute(json),
            What::Refine(args) => args.execute(json),
            What::Show(args) => args.execute(json),
            What::Diff(args) => args.execute(json),
            What::Merge(args) => args.execute(json),
            What::Import(args) => args.execute(json),
            What::Export(args) => args.execute(json),
        }
    }
}

/// Reads a profile.
pub(crate) fn read(path: &Path) -> Result<Profile, Failure> {
    let name = path.display().to_string();
    let text = terrace_core::text::read_text(path)
        .map_err(|e| Failure::bad_input(format!("{name}: {e}")))?;
    Profile::parse(&name, &text).map_err(Failure::bad_input)
}

/// What identifies a program's file, if it is there and says so.
pub(crate) fn build_id_of(program: &OsString) -> Option<String> {
    record::build_id(&recorder::executable(program).ok()?)
}

/// Writes a text whole to where `--output` says, or not at all.
fn write(files: &mut Files, path: &Path, text: &str) -> Result<bool, Failure> {
    let out = files.writes("--output", path, Kind::Whole)?;
    output::remove_when_interrupted();
    let named = out.path().is_some();
    out.write_whole(text.as_bytes())?;
    Ok(named)
}

/// Says something: on stdout, or on stderr where the file itself goes to stdout.
fn tell(named: bool, text: &str) -> Result<(), Failure> {
    if named {
        output::print(text)?;
    } else {
        output::show(text);
    }
    Ok(())
}

/// A region, as documents have it.
#[derive(Serialize)]
struct RegionDocument {
    key: String,
    section: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    build_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<u32>,
    len: Bytes,
    seen: u32,
    instances: u32,
    averted: Cycles,
    touched: f64,
}

impl RegionDocument {
    fn new(region: &Region) -> Self {
        let (build_id, class, order) = match &region.key {
            Key::Image { build_id, .. } => (Some(build_id.clone()), None, None),
            Key::Heap => (None, None, None),
            Key::Mapping { class, order } => (None, Some(*class), Some(*order)),
        };
        Self {
            key: region.key.to_string(),
            section: region.key.section().name(),
            build_id,
            class,
            order,
            len: region.len,
            seen: region.seen,
            instances: region.instances,
            averted: region.total(),
            touched: region.touched(),
        }
    }
}

/// A profile in a few lines.
#[derive(Serialize)]
struct Summary {
    program: Vec<String>,
    machine: String,
    runs: u32,
    horizon: Nanos,
    regions: usize,
    rules: usize,
    /// Cycles in a run; nothing where there are rules alone, which are of one huge page each.
    averted: Option<Cycles>,
    /// Of the time of a run. Above 1 where several processors walked at a time.
    averted_share: Option<f64>,
    /// `summed`: of walks under way at the same time, each counts; `elapsed`: they count once.
    /// Rules are of counters in any case.
    walk_time: &'static str,
}

impl Summary {
    fn new(profile: &Profile) -> Self {
        let time = profile.clock.cycles(profile.horizon).as_f64().max(1.0);
        let rules_alone = profile.regions.is_empty() && !profile.rules.is_empty();
        let averted = (!rules_alone).then(|| profile.total());
        Self {
            program: profile.program.clone(),
            machine: profile.machine.clone(),
            runs: profile.runs,
            horizon: profile.horizon,
            regions: profile.regions.len(),
            rules: profile.rules.len(),
            averted,
            averted_share: averted.map(|averted| averted.as_f64() / time),
            walk_time: if rules_alone { WalkTime::Elapsed } else { profile.walk_time }.name(),
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![
            ("program", self.program.join(" ")),
            ("machine", self.machine.clone()),
            ("runs", self.runs.to_string()),
            ("a run takes", self.horizon.to_string()),
            ("regions", self.regions.to_string()),
        ];
        if self.rules > 0 {
            facts.push(("imported rules", self.rules.to_string()));
        }
        let averted = match self.averted.zip(self.averted_share) {
            Some((averted, share)) => {
                let of = if share > 1.0 { "a processor's time in it" } else { "its time" };
                format!("{averted} a run, {} of {of}", output::percent(share))
            }
            None => "not known of a run: rules are of one huge page each".to_owned(),
        };
        facts.push(("walks averted", averted));
        facts
    }
}
