//! `terrace provision reload`: hidden memory comes into reach.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use terrace_provision::live::reload::{carry_out, user, writes};
use terrace_provision::live::{Files, Kernel};

use crate::failure::Failure;
use crate::output;

/// Make a hidden region of memory a DAX device, which `run` can bring in.
///
/// What the region holds is lost: it is said what would be written, and written only
/// with --destroy.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace provision reload namespace0.0 --destroy")]
pub(crate) struct Args {
    /// The namespace, as `terrace provision plan` names it.
    namespace: String,

    /// Do it, although what is on it is lost.
    #[arg(long)]
    destroy: bool,

    /// Read the procfs and sysfs below this directory instead of this machine's.
    #[arg(long, env = "TERRACE_ROOT", hide = true)]
    root: Option<PathBuf>,
}

#[derive(Serialize)]
struct Document {
    namespace: String,
    /// Whether it was done.
    done: bool,
    writes: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    path: String,
    text: String,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let root = self.root.unwrap_or_else(|| PathBuf::from("/"));
        let namespace = &self.namespace;
        if !root.join("sys/bus/nd/devices").is_dir() {
            return Err(Failure::unsupported(
                "persistent memory: there is no /sys/bus/nd (modprobe nd_pmem, and nd_e820 or nfit)",
            ));
        }
        let kernel = Files::below(&root);
        let (_, writes) = writes(&kernel, namespace).map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidInput => Failure::bad_input(e),
            _ => Failure::failed(format!("{namespace}: {e}")),
        })?;
        if let Some(user) = user(&kernel, namespace, &disks(&root, namespace)) {
            return Err(Failure::bad_input(format!("{user}: it is in use")));
        }
        if self.destroy {
            if kernel.link(&format!("sys/bus/nd/devices/{namespace}/driver")).is_none() {
                output::warn(format_args!("{namespace} had no driver"));
            }
            carry_out(&kernel, namespace, &writes).map_err(Failure::failed)?;
        }
        let lines: Vec<_> = writes
            .into_iter()
            .map(|write| Line { path: format!("/{}", write.path), text: write.text })
            .collect();
        let text = if json {
            let document =
                Document { namespace: namespace.clone(), done: self.destroy, writes: lines };
            output::json("terrace.provision.reload", &document)?
        } else {
            let mut text = String::new();
            for line in &lines {
                let _ = writeln!(text, "echo {} >{}", line.text, line.path);
            }
            if !self.destroy {
                text += "nothing was done: --destroy does it, and what is on it is lost\n";
            }
            text
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The block devices that a namespace is.
fn disks(root: &Path, namespace: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root.join(format!("sys/bus/nd/devices/{namespace}/block")));
    let names = entries.into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
