//! `terrace clean`: undoes what runs with the kernel's engine have left that were killed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use terrace_kernel::setup::{Site, clean, directory_of_records};

use crate::failure::Failure;
use crate::output;

/// Undo what killed runs with the kernel's engine have left.
///
/// `terrace run --engine kernel` makes a control group and, where there is no such swap, a zram
/// device, and undoes both at its end. If it is killed, a process that it has started has this
/// command do it: it takes off limits and brakes, removes groups and devices that belong to no
/// living process, and leaves all others. It can be run at any time, and again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace clean")]
pub(crate) struct Args {}

/// Where runs of this user write down what they make.
pub(crate) fn records() -> PathBuf {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.as_deref().filter(|path: &&Path| path.is_absolute());
    directory_of_records(rustix::process::geteuid().as_raw(), runtime)
}

impl Args {
    #[allow(clippy::unused_self)] // as every verb's
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let cleaned = clean::clean(&Site::machine(records())).map_err(Failure::failed)?;
        let text = if json {
            output::json("terrace.clean", &cleaned)?
        } else {
            let mut text = String::new();
            for what in &cleaned.removed {
                text.push_str(&format!("removed: {what}\n"));
            }
            for kept in &cleaned.kept {
                text.push_str(&format!("kept: {}: {}\n", kept.what, kept.why));
            }
            if text.is_empty() {
                text.push_str("nothing was left behind\n");
            }
            text
        };
        output::print(&text)?;
        match cleaned.kept.iter().find(|kept| !kept.in_use) {
            None => Ok(ExitCode::SUCCESS),
            Some(kept) => Err(Failure::failed(format!("{}: {}", kept.what, kept.why))),
        }
    }
}
