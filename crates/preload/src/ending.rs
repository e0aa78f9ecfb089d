//! The program's end: our threads are to die as fast as its own.
//!
//! The last thread of a process to die gives its memory back. Threads of ours
//! may stand aside for others just then, and would do so for a minute where the
//! processors are in use.

use core::ffi::c_int;

use crate::{sanitizers, words};

/// Runs when the program returns from `main` or calls `exit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = {
    extern "C" fn end() {
        terrace_live::aside::end();
    }
    end
};

fn end(status: c_int) -> ! {
    terrace_live::aside::end();
    loop {
        // SAFETY: does not return. It is all that the C library's function does.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// Leaves it to a sanitizer, where one is here: it may have found what is worth another status.
fn hand_on(status: c_int) {
    if sanitizers::are_here()
        && let Some(next) = words::real!(c"_exit", unsafe extern "C" fn(c_int))
    {
        // SAFETY: does not return.
        unsafe { next(status) };
    }
}

/// Ends the process at once: `_exit(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    hand_on(status);
    end(status)
}

/// The same by its other name.
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(status: c_int) -> ! {
    hand_on(status);
    end(status)
}
