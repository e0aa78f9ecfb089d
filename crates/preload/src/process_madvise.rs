//! `process_madvise`: advice that a process gives on its own memory, by a descriptor of itself.
//!
//! Since Linux 6.13 that may be any advice. For another process's memory the kernel takes no advice that
//! discards it, or marks it. So where such advice was taken, it was for this process, and our books are
//! told as by `madvise`: afterwards, for nobody knows before. (A child whose copy is made in between has
//! what the kernel has done, and not what we do.)

use libc::{c_int, c_long, c_uint, iovec, size_t, ssize_t};
use terrace_live::space::advised;
use terrace_live::sys;

use crate::sanitizers::hand_on;
use crate::{attributes, mapping, state, wiped, words};

/// Advises on memory of a process: `process_madvise(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    process: c_int,
    parts: *const iovec,
    count: size_t,
    advice: c_int,
    flags: c_uint,
) -> ssize_t {
    hand_on!(
        c"process_madvise", process => c_int, parts => *const iovec, count => size_t,
        advice => c_int, flags => c_uint; ssize_t
    );
    let (process, advice) = (process as usize, advice as usize);
    // SAFETY: the caller's.
    let done = unsafe { advise([process, parts as usize, count, advice, flags as usize, 0]) };
    done as ssize_t
}

/// The same for whoever asks by `syscall(2)`: what the kernel is given.
///
/// # Safety
/// As of [`process_madvise`].
pub(crate) unsafe fn advise(arguments: [usize; 6]) -> c_long {
    state::await_child();
    // SAFETY: the caller's.
    let result = unsafe { sys::raw(libc::SYS_process_madvise, arguments) };
    let [_, parts, count, advice, ..] = arguments;
    if result > 0 {
        let error = sys::errno();
        // SAFETY: the kernel has read them.
        unsafe { taken(parts as *const iovec, count, result as usize, advice as c_int) };
        // SAFETY: this thread's own variable.
        unsafe { *libc::__errno_location() = error };
    }
    words::returned(result)
}

/// The kernel has taken advice on some parts, from the first on, of so many bytes.
///
/// # Safety
/// There are as many parts, and the kernel has taken the advice.
unsafe fn taken(parts: *const iovec, count: usize, mut bytes: usize, advice: c_int) {
    for i in 0..count {
        if bytes == 0 {
            break;
        }
        // SAFETY: the caller's.
        let part = unsafe { parts.wrapping_add(i).read_unaligned() };
        let len = part.iov_len.min(bytes);
        bytes -= len;
        attributes::advised(part.iov_base as usize, len, advice);
        match advice {
            libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK
                if state::config().is_some() && !state::borrows() =>
            {
                let range = advised::whole_pages(part.iov_base as usize, len);
                mapping::between_copies(|| {
                    wiped::advised(&[range], advice == libc::MADV_WIPEONFORK);
                });
            }
            sys::MADV_GUARD_INSTALL => {
                // Once more, which changes nothing: what the pager has brought in over them goes.
                // SAFETY: it has been done.
                unsafe { mapping::heed(part.iov_base, len, advice) };
            }
            _ => {}
        }
    }
}
