//! Changes of user, groups and root: `setuid`, `setgroups`, `chroot` and their like.
//!
//! To the kernel they concern one thread; the C library has every thread make the
//! change, Terrace's included, by a signal that it never blocks
//! ([`crate::state::signals_blocked`] leaves it through for that reason). Its handler reads the call, from the caller's
//! stack, and with `setgroups` the kernel reads the list. A thread of Terrace's must not
//! find either absent: it could have to wait for itself.

use core::ffi::c_char;

use libc::{c_int, gid_t, uid_t};
use terrace_live::sys;

use crate::state::{before_root_changes, before_user_changes, config};
use crate::words::{is_managed, keep, real};

/// What the C library uses of the caller's stack for the call, with room.
const FRAMES: usize = 2 << 10;
/// As many groups as the kernel takes (`NGROUPS_MAX`).
const MOST_GROUPS: usize = 65_536;

/// Keeps what the call itself will use of the stack.
#[inline(never)]
fn keep_stack() {
    let here = 0u8;
    let at = core::ptr::from_ref(&here) as usize;
    // Less than a page apart: all that lies between is in one of the two.
    keep(at - FRAMES, 1);
    keep(at, 1);
}

macro_rules! change {
    ($before:expr; $($name:ident($($argument:ident: $type:ty),+) $text:literal;)+) => {$(
        /// Changes whose program this is.
        ///
        /// # Safety
        /// As of the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),+) -> c_int {
            type Change = unsafe extern "C" fn($($type),+) -> c_int;
            let Some(real) = real!($text, Change) else { return -1 };
            $before();
            keep_stack();
            // SAFETY: the caller's.
            unsafe { real($($argument),+) }
        }
    )+};
}

change! {
    before_user_changes;
    setuid(user: uid_t) c"setuid";
    seteuid(user: uid_t) c"seteuid";
    setreuid(user: uid_t, effective: uid_t) c"setreuid";
    setresuid(user: uid_t, effective: uid_t, saved: uid_t) c"setresuid";
}

// The rights that managing takes are the user's.
change! {
    || ();
    setgid(group: gid_t) c"setgid";
    setegid(group: gid_t) c"setegid";
    setregid(group: gid_t, effective: gid_t) c"setregid";
    setresgid(group: gid_t, effective: gid_t, saved: gid_t) c"setresgid";
}

/// Changes the root directory: `chroot(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    type Chroot = unsafe extern "C" fn(*const c_char) -> c_int;
    let Some(real) = real!(c"chroot", Chroot) else { return -1 };
    before_root_changes();
    // SAFETY: the caller's.
    unsafe { real(path) }
}

/// Sets the supplementary groups: `setgroups(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setgroups(count: usize, list: *const gid_t) -> c_int {
    type Set = unsafe extern "C" fn(usize, *const gid_t) -> c_int;
    let Some(real) = real!(c"setgroups", Set) else { return -1 };
    keep_stack();
    // What the kernel would refuse it is to refuse itself.
    if count == 0 || count > MOST_GROUPS || !is_managed(list as usize) {
        // SAFETY: the caller's.
        return unsafe { real(count, list) };
    }
    let len = count * size_of::<gid_t>();
    with_own_memory(len, |copy| {
        // SAFETY: mapped just now for this length, and nobody else knows of it.
        let groups = unsafe { core::slice::from_raw_parts_mut(copy.cast(), len) };
        let read = sys::read_memory(list as usize, groups);
        // SAFETY: as many groups as the caller's list has, or its own.
        unsafe { real(count, if read { copy } else { list }) }
    })
}

/// Sets the supplementary groups to those of a user: `initgroups(3)`. The C library's
/// would hand the kernel a list that it allocates, and by a call that is not hooked.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn initgroups(user: *const c_char, group: gid_t) -> c_int {
    type Init = unsafe extern "C" fn(*const c_char, gid_t) -> c_int;
    if config().is_none() {
        let Some(real) = real!(c"initgroups", Init) else { return -1 };
        // SAFETY: the caller's.
        return unsafe { real(user, group) };
    }
    with_own_memory(MOST_GROUPS * size_of::<gid_t>(), |groups| {
        let mut count = MOST_GROUPS as c_int;
        // SAFETY: there is room for as many. With more it gives the first of them,
        // which is what the C library then sets.
        unsafe { libc::getgrouplist(user, group, groups, &raw mut count) };
        let count = usize::try_from(count).map_or(0, |count| count.min(MOST_GROUPS));
        // SAFETY: as many as are there. A kernel that takes fewer gets the first.
        let set = |count| unsafe { setgroups(count, groups) };
        let refused = |result| result == -1 && sys::errno() == libc::EINVAL;
        (1..=count).rev().map(set).find(|&result| !refused(result)).unwrap_or(-1)
    })
}

/// Makes a call with memory for it that cannot be absent; its error number stays.
fn with_own_memory(len: usize, call: impl FnOnce(*mut gid_t) -> c_int) -> c_int {
    let (result, error) = match sys::map_private(len) {
        Ok(at) => {
            let result = call(at as *mut gid_t);
            let error = sys::errno();
            // SAFETY: mapped just now, and the call is over.
            let _ = unsafe { sys::munmap(at, len) };
            (result, error)
        }
        Err(error) => (-1, error),
    };
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = error };
    result
}
