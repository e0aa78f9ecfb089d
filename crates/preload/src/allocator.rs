//! The allocator's functions by their names, and who serves them.
//!
//! That is the module `malloc`, unless a sanitizer's runtime comes next. The runtime gets each
//! request by a jump, so that its caller is the program, or the loader, as without this library.
//! `LeakSanitizer` goes by the caller: the loader's blocks are reached from memory that it does not
//! search, and it excuses what was allocated from there.
//!
//! A block of the scratch memory that is handed out while functions are looked up comes back to the hook
//! `free`, which knows it. Nobody makes such a block larger: a runtime's `realloc` would not know it.

use core::arch::naked_asm;
use core::ffi::c_void;
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, Ordering::*};

use libc::{c_int, size_t};
use terrace_live::sys::symbols;

use crate::{malloc, sanitizers};

macro_rules! exports {
    ($(
        $(#[$about:meta])*
        $text:literal $name:ident($($argument:ident: $type:ty),+) -> $result:ty;
    )+) => {
        /// A sanitizer's functions; null where there is none.
        struct Checking { $($name: AtomicPtr<c_void>,)+ }
        static CHECKING: Checking =
            Checking { $($name: AtomicPtr::new(core::ptr::null_mut()),)+ };

        /// Where a sanitizer's runtime is here, has it serve all requests from now on.
        pub(crate) fn look_for_sanitizers() {
            if sanitizers::have_allocator() {
                $(CHECKING.$name.store(symbols::next($text), Release);)+
            }
        }

        $(
        $(#[$about])*
        ///
        /// # Safety
        /// As of the C library's.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($argument: $type),+) -> $result {
            naked_asm!(
                "cmp qword ptr [rip + {checking} + {at}], 0",
                "je {ours}",
                "jmp qword ptr [rip + {checking} + {at}]",
                checking = sym CHECKING,
                at = const offset_of!(Checking, $name),
                ours = sym malloc::$name,
            )
        }
        )+
    };
}

exports! {
    /// Allocates: `malloc(3)`.
    c"malloc" malloc(size: size_t) -> *mut c_void;
    /// Allocates zeroed memory: `calloc(3)`.
    c"calloc" calloc(count: size_t, size: size_t) -> *mut c_void;
    /// Changes a size: `realloc(3)`.
    c"realloc" realloc(p: *mut c_void, size: size_t) -> *mut c_void;
    /// Changes an array's size: `reallocarray(3)`.
    c"reallocarray" reallocarray(p: *mut c_void, count: size_t, size: size_t) -> *mut c_void;
    /// Allocates aligned memory: `memalign(3)`.
    c"memalign" memalign(align: size_t, size: size_t) -> *mut c_void;
    /// Allocates aligned memory: `aligned_alloc(3)`.
    c"aligned_alloc" aligned_alloc(align: size_t, size: size_t) -> *mut c_void;
    /// Allocates aligned memory: `posix_memalign(3)`.
    c"posix_memalign" posix_memalign(to: *mut *mut c_void, align: size_t, size: size_t) -> c_int;
    /// Allocates whole pages: `valloc(3)`.
    c"valloc" valloc(size: size_t) -> *mut c_void;
    /// Allocates whole pages: `pvalloc(3)`.
    c"pvalloc" pvalloc(size: size_t) -> *mut c_void;
}
