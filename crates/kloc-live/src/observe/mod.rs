//! What happens to files and sockets, as the running kernel tells it.
//!
//! | file | concept |
//! |---|---|
//! | `btf` | the kernel's types: where fields are |
//! | `layout` | those fields that are read |
//! | `assembler` | instructions of eBPF |
//! | `programs` | what runs in the kernel |
//! | `object_file` | programs and maps as the loader wants them |
//! | `hooks` | sets of hooks |
//! | `load` | programs that are attached |
//! | `polls` | which files are open, by looking from time to time |
//! | `event` | what they tell |
//! | `fanotify` | notifications, where eBPF cannot be had |
//! | `sockets` | memory and age of each socket |

pub mod assembler;
pub mod btf;
pub mod event;
pub mod fanotify;
pub mod hooks;
pub mod layout;
pub mod load;
pub mod object_file;
pub mod polls;
pub mod programs;
pub mod sockets;

use std::os::unix::fs::MetadataExt;

use terrace_core::Nanos;

/// The time on the clock that hooks read (`CLOCK_MONOTONIC`).
pub fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Whether this process is in the machine's first process namespace, where processes have the
/// numbers that the kernel's hooks see.
pub(crate) fn is_first_process_namespace() -> bool {
    // `PROC_PID_INIT_INO` of `linux/proc_ns.h`.
    const FIRST: u64 = 0xEFFF_FFFC;
    // Where it cannot be told, processes may well have other numbers.
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|is| is.ino() == FIRST)
}
