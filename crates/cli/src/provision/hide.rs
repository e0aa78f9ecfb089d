//! `terrace provision hide`: slow memory that the kernel does not see at boot.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use terrace_provision::NodeId;
use terrace_provision::hiding::{self, HidingError};

use super::plan::discover;
use crate::failure::Failure;
use crate::output::{self, Files, Kind};

/// Say the boot arguments that hide slow memory until it is needed, or write them for GRUB.
///
/// With --node, all memory of a node is hidden that the firmware calls ordinary. Persistent
/// memory and memory for a special purpose is hidden without: then the arguments only keep it
/// from coming online by itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace provision hide --node 2 \
                        --write /etc/default/grub.d/terrace.cfg")]
pub(crate) struct Args {
    /// Hide the memory of this node, which has no processors. More than once for several.
    #[arg(long, value_name = "NODE")]
    node: Vec<u32>,

    /// Have page descriptors lie in the memory that they describe, instead of in DRAM.
    #[arg(long)]
    memmap_on_memory: bool,

    /// Write them to this file for GRUB; `-` is standard output. A file that is not ours is not
    /// overwritten.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,

    /// Read the procfs and sysfs below this directory instead of this machine's.
    #[arg(long, env = "TERRACE_ROOT", hide = true)]
    root: Option<PathBuf>,
}

#[derive(Serialize)]
struct Document<'a> {
    arguments: &'a [String],
    /// Those that the kernel was not booted with.
    lacking: Vec<&'a String>,
    written: Option<&'a Path>,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let root = self.root.clone().unwrap_or_else(|| PathBuf::from("/"));
        let machine = discover(self.root.as_deref())?;
        let mut blocks = Vec::new();
        for &node in &self.node {
            let bad = |what: &str| Failure::bad_input(format!("--node: {} {what}", NodeId(node)));
            let known = machine.nodes.iter().find(|other| other.node == NodeId(node));
            match known {
                None => return Err(bad("is not there")),
                Some(known) if known.has_cpu => {
                    return Err(bad("has processors: its memory is no slow memory"));
                }
                Some(_) => {
                    let own = machine.blocks_of(&root, NodeId(node)).map_err(Failure::failed)?;
                    blocks.extend(own);
                }
            }
        }
        blocks.sort_unstable();
        let ranges = if self.node.is_empty() {
            Vec::new()
        } else {
            hiding::ranges(&blocks, machine.block)
                .map_err(|error: HidingError| Failure::bad_input(format!("--node: {error}")))?
        };
        let arguments = hiding::arguments(&ranges, self.memmap_on_memory);
        let booted = fs::read_to_string(root.join("proc/cmdline")).unwrap_or_default();
        let lacking = hiding::lacking(&arguments, &booted);
        let is_stdout = self.write.as_deref() == Some(Path::new("-"));
        if is_stdout && json {
            return Err(Failure::bad_input(
                "--write: `-` is standard output, where the document of --json goes",
            ));
        }
        if let Some(file) = &self.write {
            write(file, &hiding::grub(&arguments))?;
            if is_stdout {
                return Ok(ExitCode::SUCCESS);
            }
        }
        let text = if json {
            let document =
                Document { arguments: &arguments, lacking, written: self.write.as_deref() };
            output::json("terrace.provision.hide", &document)?
        } else {
            let mut text = arguments.join(" ") + "\n";
            if lacking.is_empty() {
                text += "the kernel was booted with all of them\n";
            } else if let Some(file) = &self.write {
                text += &format!("written to {}; next: update-grub, and reboot\n", file.display());
            } else {
                text +=
                    "the kernel was not booted with all of them; --write writes them for GRUB\n";
            }
            text
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes a file that is new or ours.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let name = path.display();
    let bad = |what: &str| Failure::bad_input(format!("--write: {name} {what}"));
    let is_stdout = path == Path::new("-");
    let there = if is_stdout { Err(ErrorKind::NotFound.into()) } else { fs::metadata(path) };
    let is_new = match there {
        // Before it is opened: a FIFO would be waited for, and a device has no end.
        Ok(there) if !there.is_file() => return Err(bad("is there, and is no file")),
        Ok(_) => {
            let mut begin = Vec::new();
            File::open(path)
                .and_then(|file| file.take(hiding::MARK.len() as u64).read_to_end(&mut begin))
                .map_err(|e| Failure::bad_input(format!("--write: {name}: {e}")))?;
            if begin != hiding::MARK.as_bytes() {
                return Err(bad("is there, and `terrace provision hide` has not written it"));
            }
            false
        }
        // What else stands in its way, who opens it says.
        Err(_) => true,
    };
    Files::new().writes("--write", path, Kind::Whole)?.write_whole(text.as_bytes())?;
    if is_new && !is_stdout {
        // Everybody may read boot arguments, as in every such file.
        fs::set_permissions(path, fs::Permissions::from_mode(0o644))
            .map_err(|e| Failure::failed(format!("--write: {name}: {e}")))?;
    }
    Ok(())
}
