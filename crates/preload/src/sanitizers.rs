//! Programs that a sanitizer checks (`AddressSanitizer`, `ThreadSanitizer`, `LeakSanitizer`, ...).
//!
//! Its runtime library takes the program's calls of the allocator and of `mmap`, to know which
//! memory there is, and would stand in front of every other library for that. It stands behind
//! this one (`terrace run` turns its check of the order off), and is handed every call. Nothing
//! is managed: its allocator asks the kernel by system calls that nobody else sees, and memory
//! that it does not know of would be neither checked nor searched for pointers.

use core::sync::atomic::{AtomicBool, Ordering::*};

use terrace_live::sys::symbols;

static HERE: AtomicBool = AtomicBool::new(false);

/// Why nothing is managed.
pub(crate) const WHY: &str = "a sanitizer checks it, whose allocator's memory nobody else sees";

/// Looks for a sanitizer's runtime; whether there is one.
pub(crate) fn look() -> bool {
    // Every runtime that has an allocator exports it (`sanitizer/allocator_interface.h`);
    // `UndefinedBehaviorSanitizer`, which is in nobody's way, does not.
    let here = symbols::find(c"__sanitizer_get_allocated_size", None).is_some();
    HERE.store(here, Release);
    here
}

/// Whether there is one.
#[inline]
pub(crate) fn are_here() -> bool {
    HERE.load(Relaxed)
}

/// Where a sanitizer is here: returns what its function of a name returns, or whatever function
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
