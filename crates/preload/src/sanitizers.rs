//! Programs that a checker watches: a sanitizer (`AddressSanitizer`, `ThreadSanitizer`,
//! `LeakSanitizer`, ...), or Valgrind. Nothing of them is managed.
//!
//! A sanitizer's runtime library takes the program's calls of the allocator and of `mmap`, to know
//! which memory there is, and would stand in front of every other library for that. It stands behind
//! this one (`terrace run` turns its check of the order off), and is handed every call. Its allocator
//! asks the kernel by system calls that nobody else sees, and memory that it does not know of would be
//! neither checked nor searched for pointers.
//!
//! Valgrind runs no threads of ours ([`valgrind`]).

use core::sync::atomic::{AtomicBool, Ordering::*};

use terrace_live::failsafe::valgrind;
use terrace_live::sys::symbols;

static HERE: AtomicBool = AtomicBool::new(false);

/// Why nothing is managed.
const SANITIZER: &str = "a sanitizer checks it, whose allocator's memory nobody else sees";
const VALGRIND: &str = "Valgrind runs it, on a processor of its own that runs no threads of ours";

/// Looks for a sanitizer's runtime, and for Valgrind; why nothing is managed, if one of them is here.
pub(crate) fn look() -> Option<&'static str> {
    let why =
        if valgrind::runs_us() { Some(VALGRIND) } else { have_allocator().then_some(SANITIZER) };
    HERE.store(why.is_some(), Release);
    why
}

/// Whether a sanitizer's runtime with an allocator is loaded. Every such runtime exports this name
/// (`sanitizer/allocator_interface.h`); `UndefinedBehaviorSanitizer`, which is in nobody's way, does not.
pub(crate) fn have_allocator() -> bool {
    symbols::find(c"__sanitizer_get_allocated_size", None).is_some()
}

/// Whether there is one.
#[inline]
pub(crate) fn are_here() -> bool {
    HERE.load(Relaxed)
}

/// Where a checker is here: returns what its function of a name returns, or whatever function
/// comes next.
macro_rules! hand_on {
    ($name:literal, $($argument:expr => $type:ty),+; $result:ty) => {
        if $crate::sanitizers::are_here()
            && let Some(next) = $crate::words::real!($name, unsafe extern "C" fn($($type),+) -> $result)
        {
            // SAFETY: the caller's arguments.
            return unsafe { next($($argument),+) };
        }
    };
}
pub(crate) use hand_on;
