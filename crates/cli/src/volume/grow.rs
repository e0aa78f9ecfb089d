//! `terrace volume grow`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::Bytes;
use terrace_volume::maintain::plan_growth;
use terrace_volume::{Image, Medium, Report, VolumeError, grow};

use crate::failure::Failure;
use crate::output;

use super::{exactly, failure, no_size};

/// Make a volume larger; what it holds stays, also if the power fails meanwhile.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace volume grow --size 2GiB disk.vol")]
pub(crate) struct Args {
    /// The image, which nobody may use meanwhile.
    image: PathBuf,

    /// Bytes that the file has afterwards; without it, the volume fills the device or the
    /// file, which has become larger.
    #[arg(long, value_name = "SIZE")]
    size: Option<Bytes>,

    /// Blocks beside those of the sectors that it has afterwards at least: each thread that
    /// writes uses up to 32. Without it, as many as before.
    #[arg(long, value_name = "COUNT", value_parser = crate::args::whole(2..=1 << 30))]
    spare: Option<u64>,
}

/// What became of it, as a document.
#[derive(Serialize)]
struct Grown {
    image: PathBuf,
    capacity_before: Bytes,
    capacity: Bytes,
    sectors: u64,
    spare_blocks: u64,
    generation: u64,
    durability: &'static str,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let wrong = |e| failure(&self.image, &e);
        let there = std::fs::metadata(&self.image);
        if self.size.is_some() && there.is_ok_and(|there| !there.is_file()) {
            return Err(no_size(&self.image));
        }
        let mut before = None;
        let plan = |medium: &Medium| {
            // Before the file is touched.
            let report = Report::of(medium)?;
            let old = report.superblocks.current;
            if let Some(size) = self.size {
                plan_growth(&old, size, self.spare)?;
            }
            if !report.damage.is_empty() {
                return Err(VolumeError::Damaged(report.damage));
            }
            before = Some(old);
            Ok(self.size)
        };
        let (image, new) =
            Image::grow(&self.image, plan, |medium| grow(medium, self.spare)).map_err(wrong)?;
        let before = before.ok_or_else(|| Failure::failed("nobody looked at the volume"))?;
        let grown = Grown {
            image: self.image,
            capacity_before: before.capacity(),
            capacity: new.capacity(),
            sectors: new.sectors,
            spare_blocks: new.spare(),
            generation: new.generation,
            durability: image.durability.name(),
        };
        let text = if json {
            output::json("terrace.volume.grow", &grown)?
        } else {
            output::facts(
                "",
                &[
                    ("capacity before", exactly(grown.capacity_before)),
                    ("capacity", exactly(grown.capacity)),
                    ("spare blocks", output::count(grown.spare_blocks)),
                    ("durability", grown.durability.to_owned()),
                ],
            )
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
