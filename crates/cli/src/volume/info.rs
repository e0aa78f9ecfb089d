//! `terrace volume info`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::Bytes;
use terrace_volume::{Damage, Durability, Report};

use crate::failure::Failure;
use crate::output;

use super::{durability, exactly, failure, open};

/// Say what an image is, and what a mount of it gives.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace volume info disk.vol")]
pub(crate) struct Args {
    /// The image.
    image: PathBuf,

    /// What has to survive what; without it, the best that the medium gives.
    #[arg(long, value_name = "WHAT", value_parser = durability())]
    durability: Option<Durability>,
}

/// What it is, as a document.
#[derive(Serialize)]
struct Info {
    image: PathBuf,
    uuid: String,
    generation: u64,
    sector: u32,
    sectors: u64,
    capacity: Bytes,
    written: u64,
    zero: u64,
    unwritten: u64,
    lost: u64,
    spare_blocks: u64,
    /// Threads that can write at a time, or clients of a server.
    lanes: u64,
    free_blocks: u64,
    damaged_entries: usize,
    /// Sectors that cannot be read because of them.
    unreadable: usize,
    durability: &'static str,
    durability_reason: String,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let image = open(&self.image, false, self.durability)?;
        let report = Report::of(&image.medium).map_err(|e| failure(&self.image, &e))?;
        let volume = report.superblocks.current;
        // Two share a damaged block.
        let unreadable: BTreeSet<u64> = report.damage.iter().flat_map(Damage::sectors).collect();
        let info = Info {
            image: self.image,
            uuid: volume.uuid.to_string(),
            generation: volume.generation,
            sector: volume.sector.bytes(),
            sectors: volume.sectors,
            capacity: volume.capacity(),
            written: report.usage.written,
            zero: report.usage.zero,
            unwritten: report.usage.unwritten,
            lost: report.usage.lost,
            spare_blocks: volume.spare(),
            lanes: volume.lanes(),
            free_blocks: report.free,
            damaged_entries: report.damage.len(),
            unreadable: unreadable.len(),
            durability: image.durability.name(),
            durability_reason: image.reason,
        };
        let text = if json {
            output::json("terrace.volume.info", &info)?
        } else {
            let count = output::count;
            let zeros = info.zero + info.unwritten;
            let mut rows = vec![
                ("volume", info.uuid),
                ("capacity", exactly(info.capacity)),
                ("sectors", format!("{} of {} B", count(info.sectors), info.sector)),
                ("with data", count(info.written)),
                ("that read as zeros", count(zeros)),
                ("free blocks", count(info.free_blocks)),
                ("lanes", format!("{} ({} spare blocks)", info.lanes, count(info.spare_blocks))),
                ("generation", count(info.generation)),
                ("durability", format!("{}: {}", info.durability, info.durability_reason)),
            ];
            if info.lost > 0 {
                rows.push(("lost sectors", count(info.lost)));
            }
            if info.damaged_entries > 0 {
                rows.push(("damaged entries", count(info.damaged_entries as u64)));
                rows.push(("unreadable sectors", count(info.unreadable as u64)));
            }
            output::facts("", &rows)
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
