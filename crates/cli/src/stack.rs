//! Room for what a command calls, where a limit leaves its first thread a small stack (`ulimit -s`).
//!
//! To read the command line alone takes more than 96 KiB. The limit is the program's, which inherits it as
//! it is: the command's work is done by a thread whose stack it does not concern.

use std::panic;
use std::process::ExitCode;
use std::thread;

use rustix::process::{Resource, getrlimit};

use crate::failure::Failure;

/// What a first thread has where nobody has set a limit, bytes.
const ENOUGH: usize = 8 << 20;

/// Does a command's work, on the calling thread's stack if that may grow large enough.
pub(crate) fn with_enough(work: fn() -> ExitCode) -> Result<ExitCode, Failure> {
    if getrlimit(Resource::Stack).current.is_none_or(|most| most >= ENOUGH as u64) {
        return Ok(work());
    }
    let thread = thread::Builder::new().stack_size(ENOUGH).spawn(work).map_err(|error| {
        Failure::failed(format!(
            "a limit (`ulimit -s`) leaves too small a stack, and a thread with a larger one cannot be \
             had: {error}"
        ))
    })?;
    // A panic ends the command as it would have without the thread.
    Ok(thread.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked)))
}
