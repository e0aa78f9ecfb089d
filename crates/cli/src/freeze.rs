//! `terrace freeze` and `terrace thaw`: sandboxes that idle.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use terrace_kernel::files::Root;
use terrace_kernel::frozen::{Freezer, Moved};
use terrace_kernel::setup::swap;
use terrace_kernel::support::may_advise;

use crate::cgroups;
use crate::clean::records;
use crate::failure::Failure;
use crate::output;

/// Freeze a control group and put all its memory out.
///
/// For sandboxes that wait for their users: their processes stand still, and their memory goes to
/// swap (a zram device, say). What they had in DRAM is written down, so that `terrace thaw` brings
/// it back before they go on. Under version 1 of control groups the group is one of the freezer
/// controller.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace freeze --cgroup sandboxes/one && \
                        terrace thaw --cgroup sandboxes/one")]
pub(crate) struct FreezeArgs {
    /// The group: its directory, or its path below `/sys/fs/cgroup`. Groups below it belong to it.
    #[arg(long, value_name = "PATH")]
    cgroup: PathBuf,
}

/// Bring the memory of a frozen control group back, and let it go on.
///
/// What the group had in DRAM when `terrace freeze` froze it is read from swap ahead, in the order
/// of addresses, and then its processes go on. A group that somebody else has frozen goes on
/// as well.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace thaw --cgroup sandboxes/one")]
pub(crate) struct ThawArgs {
    /// The group: its directory, or its path below `/sys/fs/cgroup`.
    #[arg(long, value_name = "PATH")]
    cgroup: PathBuf,
}

/// What was done, as a document.
#[derive(Serialize)]
struct Told {
    group: PathBuf,
    #[serde(flatten)]
    moved: Moved,
    took: Nanos,
}

fn freezer(path: &std::path::Path) -> Result<(PathBuf, Freezer), Failure> {
    let directory = cgroups::directory("--cgroup", path)?;
    let freezer = Freezer::of(&directory)
        .map_err(|why| Failure::bad_input(format!("--cgroup: {}: {why}", directory.display())))?;
    if !may_advise() {
        return Err(Failure::unsupported(
            "memory of other processes is put out and brought back by process_madvise, which needs \
             CAP_SYS_NICE",
        ));
    }
    Ok((directory, freezer))
}

fn tell(kind: &str, told: &Told, what: &str, json: bool) -> Result<ExitCode, Failure> {
    let text = if json {
        output::json(kind, told)?
    } else {
        let Moved { processes, memory, skipped } = told.moved;
        let skipped = match skipped {
            0 => String::new(),
            n => format!(", {n} of them ended or became others"),
        };
        let (group, took) = (told.group.display(), told.took);
        format!("{group}: {what} {memory} of {processes} processes{skipped} in {took}\n")
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

impl FreezeArgs {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let (group, freezer) = freezer(&self.cgroup)?;
        let free = swap::areas(&Root::machine()).iter().fold(Bytes::ZERO, |all, a| all + a.free());
        if free.is_zero() {
            return Err(Failure::unsupported(
                "there is no swap that memory could go to (a zram device, say)",
            ));
        }
        if freezer.holds(std::process::id()) {
            let group = group.display();
            return Err(Failure::bad_input(format!(
                "--cgroup: {group}: this command runs in it, and would be frozen with it"
            )));
        }
        if freezer.is_frozen().map_err(Failure::failed)? {
            let group = group.display();
            return Err(Failure::bad_input(format!("--cgroup: {group}: it is frozen already")));
        }
        let begin = Instant::now();
        let moved = freezer.freeze(&records()).map_err(Failure::failed)?;
        let took = Nanos(begin.elapsed().as_nanos() as u64);
        tell("terrace.freeze", &Told { group, moved, took }, "frozen, and put out", json)
    }
}

impl ThawArgs {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let (group, freezer) = freezer(&self.cgroup)?;
        let begin = Instant::now();
        let moved = freezer.thaw(&records()).map_err(Failure::failed)?;
        let took = Nanos(begin.elapsed().as_nanos() as u64);
        tell("terrace.thaw", &Told { group, moved, took }, "goes on, after bringing back", json)
    }
}
