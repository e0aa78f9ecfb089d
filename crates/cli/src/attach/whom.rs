//! Processes that cannot be attached to, found before anything begins.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use terrace_sampler::proc_text;

use crate::failure::Failure;

/// Refuses a process whose memory is not to be moved, and says why.
pub(super) fn check(process: u32) -> Result<(), Failure> {
    let directory = format!("/proc/{process}");
    // One that is not there is told of by who looks for processes.
    let Ok(status) = proc_text(format!("{directory}/status")) else { return Ok(()) };
    if process == std::process::id() {
        let what =
            format!("--pid: {process} is this command itself, whose memory stays where it is");
        return Err(Failure::bad_input(what));
    }
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let state = field("State:").unwrap_or_default();
    let is_gone = state.starts_with(['Z', 'X']);
    if !is_gone && field("VmSize:").is_none() {
        let name = field("Name:").unwrap_or_default();
        return Err(Failure::bad_input(format!(
            "--pid: process {process}, `{name}`, is a thread of the kernel: it has no memory of \
             its own"
        )));
    }
    match File::open(format!("{directory}/maps")) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            let owner = fs::metadata(&directory).map_or(0, |there| there.uid());
            let us = rustix::process::geteuid().as_raw();
            let whose = if owner == us {
                "does not let other programs see its memory".to_owned()
            } else {
                format!("is of user {owner}, and this is user {us}")
            };
            Err(Failure::unsupported(format!(
                "--pid: process {process} {whose}: CAP_SYS_PTRACE is needed"
            )))
        }
        _ => Ok(()),
    }
}
