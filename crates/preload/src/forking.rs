//! `fork`: the child gets a pager of its own.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering::*};

use terrace_live::fork::Announced;

use crate::state;

type Fork = unsafe extern "C" fn() -> libc::pid_t;

/// The C library's.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

pub(crate) fn init() {
    // SAFETY: a NUL-terminated name.
    REAL.store(unsafe { libc::dlsym(libc::RTLD_NEXT, c"fork".as_ptr()) }, Release);
}

fn real() -> Option<Fork> {
    let at = REAL.load(Acquire);
    if at.is_null() {
        init();
    }
    let at = REAL.load(Acquire);
    // SAFETY: the C library's `fork`, or null, which is `None`.
    unsafe { core::mem::transmute::<*mut c_void, Option<Fork>>(at) }
}

/// Forks while there is no pager.
fn plain_fork(real: Fork) -> libc::pid_t {
    state::forks_dormant();
    // SAFETY: the C library's own.
    let pid = unsafe { real() };
    if pid == 0 {
        // SAFETY: a fork has just left this thread alone.
        unsafe { crate::OWN.after_fork() };
        state::forked_dormant();
    }
    pid
}

/// Forks: `fork(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    let Some(real) = real() else { return -1 };
    state::before_fork();
    let Some(pager) = state::pager_even_if_broken() else {
        return plain_fork(real);
    };
    state::signals_blocked(|| {
        match pager.before_fork() {
            Ok(Announced::Yes) => {}
            Ok(Announced::Unneeded) => return plain_fork(real),
            Err(error) => {
                // SAFETY: this thread's own variable.
                unsafe { *libc::__errno_location() = error };
                return -1;
            }
        }
        // SAFETY: the C library's own.
        let pid = unsafe { real() };
        if pid == 0 {
            // SAFETY: the fork was announced, and this thread is alone.
            let managed = unsafe {
                crate::OWN.after_fork();
                pager.after_fork_in_child()
            };
            if managed {
                state::forked(pager);
            } else {
                state::switch_off();
            }
        } else {
            let error = terrace_live::sys::errno();
            pager.after_fork_in_parent(pid);
            // SAFETY: this thread's own variable.
            unsafe { *libc::__errno_location() = error };
        }
        pid
    })
}
