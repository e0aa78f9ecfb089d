//! `terrace volume check`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_volume::{Damage, Image, Report, Superblocks, repair};

use crate::failure::Failure;
use crate::output;

use super::{failure, open};

/// Damaged entries that are listed for people.
const LISTED: usize = 20;

/// Look for damage in an image, and repair what can be repaired.
///
/// The exit code is 0 if nothing is wrong (any more), and 1 if something is. A damaged or
/// stale superblock is written anew from the other. A sector whose entry in the map is
/// damaged cannot be told from the others: its content is given up only if asked to.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace volume check --repair disk.vol")]
pub(crate) struct Args {
    /// The image.
    image: PathBuf,

    /// Repair what can be repaired without losing anything.
    #[arg(long)]
    repair: bool,

    /// Declare sectors lost whose entries are damaged: they cannot be read until they are
    /// written, and the volume can be mounted for writing again.
    #[arg(long, requires = "repair")]
    mark_lost: bool,
}

/// What was found, as a document.
#[derive(Serialize)]
struct Found {
    image: PathBuf,
    clean: bool,
    first_superblock: Option<String>,
    last_superblock: Option<String>,
    damage: Vec<String>,
    lost_sectors: u64,
    repaired_superblocks: u32,
    newly_lost: Vec<u64>,
    durability: &'static str,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let image = open(&self.image, self.repair, None)?;
        let wrong = |e| failure(&self.image, &e);
        let report = match Report::of(&image.medium) {
            Err(e) if Superblocks::is_damage(&e) => {
                // It is, or was, a volume; nothing of it tells where its parts are.
                let found = Found { damage: vec![e.to_string()], ..self.nothing(&image) };
                return found.print(json);
            }
            report => report.map_err(wrong)?,
        };
        let mut found = Found {
            clean: report.is_clean(),
            first_superblock: report.superblocks.first,
            last_superblock: report.superblocks.last,
            damage: report.damage.iter().map(Damage::to_string).collect(),
            lost_sectors: report.usage.lost,
            ..self.nothing(&image)
        };
        if self.repair {
            let done = repair(&image.medium, self.mark_lost).map_err(wrong)?;
            found.clean = done.left.is_empty();
            found.repaired_superblocks = done.superblocks;
            found.newly_lost = done.lost;
        }
        found.print(json)
    }

    /// Before anything was found.
    fn nothing(&self, image: &Image) -> Found {
        Found {
            image: self.image.clone(),
            clean: false,
            first_superblock: None,
            last_superblock: None,
            damage: Vec::new(),
            lost_sectors: 0,
            repaired_superblocks: 0,
            newly_lost: Vec::new(),
            durability: image.durability.name(),
        }
    }
}

impl Found {
    fn print(&self, json: bool) -> Result<ExitCode, Failure> {
        let text = if json { output::json("terrace.volume.check", self)? } else { render(self) };
        output::print(&text)?;
        Ok(if self.clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn render(found: &Found) -> String {
    let mut text = String::new();
    for (which, wrong) in [("first", &found.first_superblock), ("last", &found.last_superblock)] {
        if let Some(wrong) = wrong {
            text += &format!("the {which} superblock: {wrong}\n");
        }
    }
    for damage in found.damage.iter().take(LISTED) {
        text += &format!("{damage}\n");
    }
    if found.damage.len() > LISTED {
        text += &format!("and {} more (--json lists all)\n", found.damage.len() - LISTED);
    }
    if found.repaired_superblocks > 0 {
        text += &format!("{} superblock(s) written anew\n", found.repaired_superblocks);
    }
    if !found.newly_lost.is_empty() {
        let count = output::count(found.newly_lost.len() as u64);
        text += &format!("{count} sectors are lost from now on\n");
    }
    if found.lost_sectors > 0 {
        let count = output::count(found.lost_sectors);
        text += &format!("{count} sectors were declared lost before\n");
    }
    let verdict = if found.clean { "clean" } else { "DAMAGED" };
    text + &format!("{verdict} (durability: {})\n", found.durability)
}
