//! `terrace volume grow`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::Bytes;
use terrace_volume::maintain::plan_growth;
use terrace_volume::{Image, Report, grow};

use crate::failure::Failure;
use crate::output;

use super::{exactly, failure, open};

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
}

/// What became of it, as a document.
#[derive(Serialize)]
struct Grown {
    image: PathBuf,
    capacity_before: Bytes,
    capacity: Bytes,
    sectors: u64,
    generation: u64,
    durability: &'static str,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let wrong = |e| failure(&self.image, &e);
        let image = open(&self.image, false, None)?;
        let before = Report::of(&image.medium).map_err(wrong)?.superblocks.current;
        drop(image);
        if let Some(size) = self.size {
            // Before the file is touched.
            plan_growth(&before, size).map_err(wrong)?;
            if std::fs::metadata(&self.image).is_ok_and(|there| !there.is_file()) {
                return Err(Failure::bad_input("--size: a device has its own size"));
            }
            Image::extend(&self.image, size).map_err(wrong)?;
        }
        let image = open(&self.image, true, None)?;
        let new = grow(&image.medium).map_err(wrong)?;
        let grown = Grown {
            image: self.image,
            capacity_before: before.capacity(),
            capacity: new.capacity(),
            sectors: new.sectors,
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
                    ("durability", grown.durability.to_owned()),
                ],
            )
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
