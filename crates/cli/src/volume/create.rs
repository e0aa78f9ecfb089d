//! `terrace volume create`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::Bytes;
use terrace_volume::superblock::{default_spare, new_uuid};
use terrace_volume::{Durability, Image, Pm, SectorSize, Superblock, create};

use crate::failure::Failure;
use crate::output::{self, Draft};

use super::{durability, exactly, failure, no_size};

pub(super) const SECTORS: [SectorSize; 2] = [SectorSize::B512, SectorSize::B4096];

pub(super) fn sector_name(size: SectorSize) -> &'static str {
    match size {
        SectorSize::B512 => "512",
        SectorSize::B4096 => "4096",
    }
}

/// Make a volume in a new file, or on a device.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace volume create --size 1GiB disk.vol")]
pub(crate) struct Args {
    /// The file, which must not be there yet, or the device.
    image: PathBuf,

    /// Bytes that the file has, all of them allocated; a device has its own size.
    #[arg(long, value_name = "SIZE")]
    size: Option<Bytes>,

    /// Bytes of a sector, the unit that is never torn.
    #[arg(long, value_name = "BYTES", default_value = "4096",
          value_parser = crate::args::one_of(&SECTORS, sector_name))]
    sector: SectorSize,

    /// Blocks beside those of the sectors: each thread that writes uses up to 32. By
    /// default a thirty-second of all, at least 16 and at most 2048.
    #[arg(long, value_name = "COUNT", value_parser = crate::args::whole(2..=1 << 30))]
    spare: Option<u64>,

    /// What has to survive what; without it, the best that the medium gives.
    #[arg(long, value_name = "WHAT", value_parser = durability())]
    durability: Option<Durability>,

    /// Use a file that is there, or a device that is not blank, and overwrite what it holds.
    #[arg(long)]
    replace: bool,
}

/// What was made, as a document.
#[derive(Serialize)]
struct Made {
    image: PathBuf,
    uuid: String,
    sector: u32,
    sectors: u64,
    capacity: Bytes,
    spare_blocks: u64,
    durability: &'static str,
    durability_reason: String,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let there = std::fs::metadata(&self.image).ok();
        match (self.size, there.as_ref().is_none_or(std::fs::Metadata::is_file)) {
            (Some(_), false) => return Err(no_size(&self.image)),
            (_, true) if there.is_some() && !self.replace => {
                let name = self.image.display();
                return Err(Failure::bad_input(format!(
                    "{name}: there is a file already; --replace uses it, and overwrites what it holds"
                )));
            }
            (None, true) if !self.replace => {
                return Err(Failure::bad_input("--size: is needed for a file that is made"));
            }
            _ => {}
        }
        if let Some(size) = self.size {
            // Before anything is made.
            let spare = self.spare.unwrap_or_else(|| default_spare(size, self.sector));
            Superblock::plan(size, self.sector, spare, new_uuid())
                .map_err(|e| Failure::bad_input(format!("--size: {e}")))?;
        }
        let wrong = |e| failure(&self.image, &e);
        output::remove_when_interrupted();
        let draft = Draft::default();
        let made = || draft.begin(&self.image);
        let image =
            Image::create_and_tell(&self.image, self.size, self.replace, self.durability, &made)
                .map_err(wrong)?;
        let total = Bytes(image.medium.size());
        let spare = self.spare.unwrap_or_else(|| default_spare(total, self.sector));
        let plan = Superblock::plan(total, self.sector, spare, new_uuid()).map_err(wrong)?;
        create(&image.medium, &plan, self.replace).map_err(wrong)?;
        draft.complete();
        let made = Made {
            image: self.image,
            uuid: plan.uuid.to_string(),
            sector: plan.sector.bytes(),
            sectors: plan.sectors,
            capacity: plan.capacity(),
            spare_blocks: plan.spare(),
            durability: image.durability.name(),
            durability_reason: image.reason,
        };
        let text = if json {
            output::json("terrace.volume.create", &made)?
        } else {
            output::facts(
                "",
                &[
                    ("volume", made.uuid),
                    ("capacity", exactly(made.capacity)),
                    ("sectors", format!("{} of {} B", output::count(made.sectors), made.sector)),
                    ("spare blocks", output::count(made.spare_blocks)),
                    ("durability", format!("{}: {}", made.durability, made.durability_reason)),
                ],
            )
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
