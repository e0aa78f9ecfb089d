//! Filters on system calls (seccomp): what has to be done before one is installed.
//!
//! A filter for all threads would be for Terrace's, too, which could then bring nothing in any
//! more: they leave before, and the program goes on on plain memory. The same in strict mode,
//! in which only the end of its last thread can end the process.
//!
//! Before any other filter management begins: threads that were created by one under a filter
//! would be under it themselves.

use core::ffi::{c_int, c_ulong};

use terrace_live::failsafe::give_up::Retires;
use terrace_live::sys;
use terrace_live::workers::idle_priority;

use crate::sanitizers::hand_on;
use crate::{halves, state, words};

/// `linux/seccomp.h`: operations of `seccomp(2)`, and a flag.
const SET_MODE_STRICT: usize = 0;
const SET_MODE_FILTER: usize = 1;
const FILTER_FLAG_TSYNC: usize = 1;

/// The program is about to call `seccomp(2)`.
pub(crate) fn seccomp(operation: usize, flags: usize, filter: usize) {
    if operation == SET_MODE_STRICT || operation == SET_MODE_FILTER && filter != 0 {
        halves::before_filter();
        // Whoever installs it: a process that was forked past the C library does so, too.
        idle_priority::leave_alone();
    }
    match operation {
        SET_MODE_STRICT => state::retire(Retires::Filter),
        // Without a filter it only asks which flags the kernel knows.
        SET_MODE_FILTER if filter != 0 && flags & FILTER_FLAG_TSYNC != 0 => {
            state::retire(Retires::Filter);
        }
        SET_MODE_FILTER if filter != 0 => state::begin(),
        _ => {}
    }
}

/// The same by `prctl(2)`, which knows no flags.
pub(crate) fn control(option: usize, mode: usize, filter: usize) {
    if option == libc::PR_SET_SECCOMP as usize {
        match mode as u32 {
            libc::SECCOMP_MODE_STRICT => seccomp(SET_MODE_STRICT, 0, 0),
            libc::SECCOMP_MODE_FILTER => seccomp(SET_MODE_FILTER, 0, filter),
            _ => {}
        }
    }
}

/// Changes what the kernel does for this thread: `prctl(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    hand_on!(
        c"prctl", option => c_int, a => c_ulong, b => c_ulong, c => c_ulong, d => c_ulong; c_int
    );
    control(option as usize, a as usize, b as usize);
    let arguments = [option as usize, a as usize, b as usize, c as usize, d as usize, 0];
    // SAFETY: what the program asked for. Arguments that it did not give are whatever stood in
    // the registers, as they are for the C library.
    let result = unsafe { sys::raw(libc::SYS_prctl, arguments) };
    words::returned(result) as c_int
}
