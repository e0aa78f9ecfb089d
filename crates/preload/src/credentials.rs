//! Changes of user, groups, root and rights: `setuid`, `setgroups`, `chroot`, `capset` and their like.
//!
//! To the kernel they concern one thread; the C library has every thread of the program's make the
//! change, and then Terrace's make it ([`terrace_live::workers::credentials`]). With `setgroups` the kernel
//! reads a list. A thread of Terrace's must not find it absent: it could have to wait for itself.

use core::ffi::{c_char, c_ulong, c_void};
use core::sync::atomic::Ordering::Acquire;

use libc::{c_int, gid_t, uid_t};
use terrace_live::failsafe::give_up::Retires;
use terrace_live::pager::Pager;
use terrace_live::sys;
use terrace_live::workers::credentials::change;

use crate::state::{self, before_rights_change, before_root_changes, config};
use crate::words::real;

/// As many groups as the kernel takes (`NGROUPS_MAX`).
const MOST_GROUPS: usize = 65_536;

/// The pager whose threads change with the program's, once it has all of them.
fn pager() -> Option<&'static Pager> {
    state::await_start();
    state::pager_even_if_broken()
}

/// Whether threads of ours may have to make a change, too: not that of a process that only
/// borrows our memory.
fn concerns_ours() -> bool {
    config().is_some() && state::is_owner()
}

/// To the kernel: it stays as it is.
const SAME: usize = usize::MAX;

macro_rules! changes {
    ($before:expr; $($name:ident($($argument:ident: $type:ty),+) $text:literal => $number:ident[$($call:expr),+];)+) => {$(
        /// Changes whose program this is.
        ///
        /// # Safety
        /// As of the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),+) -> c_int {
            type Change = unsafe extern "C" fn($($type),+) -> c_int;
            let Some(real) = real!($text, Change) else { return -1 };
            $before();
            // SAFETY: the caller's.
            let make = || unsafe { real($($argument),+) };
            if !concerns_ours() {
                return make();
            }
            let arguments = [$($call as usize),+];
            let mut call = [libc::$number as usize, 0, 0, 0];
            call[1..=arguments.len()].copy_from_slice(&arguments);
            change(call, make, pager)
        }
    )+};
}

changes! {
    before_rights_change;
    setuid(user: uid_t) c"setuid" => SYS_setuid[user];
    seteuid(user: uid_t) c"seteuid" => SYS_setresuid[SAME, user, SAME];
    setreuid(user: uid_t, effective: uid_t) c"setreuid" => SYS_setreuid[user, effective];
    setresuid(user: uid_t, effective: uid_t, saved: uid_t) c"setresuid"
        => SYS_setresuid[user, effective, saved];
}

// The rights that managing takes are the user's.
changes! {
    || ();
    setgid(group: gid_t) c"setgid" => SYS_setgid[group];
    setegid(group: gid_t) c"setegid" => SYS_setresgid[SAME, group, SAME];
    setregid(group: gid_t, effective: gid_t) c"setregid" => SYS_setregid[group, effective];
    setresgid(group: gid_t, effective: gid_t, saved: gid_t) c"setresgid"
        => SYS_setresgid[group, effective, saved];
}

/// Sets the calling thread's capabilities: `capset(2)`. Browsers have their renderers drop all.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn capset(header: *mut c_void, data: *const c_void) -> c_int {
    type Capset = unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int;
    let Some(real) = real!(c"capset", Capset) else { return -1 };
    before_rights_change();
    // SAFETY: the caller's.
    unsafe { real(header, data) }
}

/// Leaves namespaces, or tables, that are shared with other processes: `unshare(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    type Unshare = unsafe extern "C" fn(c_int) -> c_int;
    let Some(real) = real!(c"unshare", Unshare) else { return -1 };
    if flags & libc::CLONE_NEWUSER != 0 {
        // In a user namespace of its own a process has no rights outside of it.
        before_rights_change();
    }
    // SAFETY: the caller's.
    let make = || unsafe { real(flags) };
    as_one_thread(make, || flags & (libc::CLONE_NEWUSER | ALONE) != 0)
}

/// Enters another process's namespace: `setns(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(descriptor: c_int, kinds: c_int) -> c_int {
    type Setns = unsafe extern "C" fn(c_int, c_int) -> c_int;
    let Some(real) = real!(c"setns", Setns) else { return -1 };
    let needs = || {
        // SAFETY: asks for a number; what is no namespace (a process, say) refuses.
        let kind = unsafe { libc::ioctl(descriptor, NS_GET_NSTYPE) };
        let kinds = if kind == -1 { kinds } else { kind };
        kinds & (libc::CLONE_NEWUSER | libc::CLONE_NEWNS) != 0
    };
    if needs() {
        before_rights_change();
    }
    // SAFETY: the caller's.
    as_one_thread(|| unsafe { real(descriptor, kinds) }, needs)
}

/// What only a process of one thread may leave by itself.
const ALONE: c_int = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
/// Asks of what kind a namespace is (`linux/nsfs.h`).
const NS_GET_NSTYPE: c_ulong = 0xb703;

/// Makes a change that the kernel refuses a process of several threads. Where all but the calling
/// one are Terrace's, the program goes on without Terrace, and makes it.
fn as_one_thread(make: impl Fn() -> c_int, needs: impl Fn() -> bool) -> c_int {
    let result = make();
    let error = sys::errno();
    if result == -1
        && error == libc::EINVAL
        && concerns_ours()
        && needs()
        && state::signals_blocked(is_one_thread)
    {
        state::retire(Retires::Namespace);
        return make();
    }
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = error };
    result
}

/// Whether the program has one thread, and is managed.
fn is_one_thread() -> bool {
    let Some(pager) = pager() else { return false };
    let ours = pager.workers.iter().map(|worker| worker.tid.load(Acquire));
    let ours = ours.filter(|&tid| tid != 0 && sys::is_thread(tid)).count();
    // Not by listing them: the C library would ask the program's allocator.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let all = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    all.and_then(|count| count.trim().parse().ok()) == Some(ours + 1)
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
    // SAFETY: the caller's.
    let make = |list| unsafe { real(count, list) };
    // What the kernel would refuse it is to refuse itself.
    if !concerns_ours() || count > MOST_GROUPS {
        return make(list);
    }
    let number = libc::SYS_setgroups as usize;
    if count == 0 {
        return change([number, 0, 0, 0], || make(list), pager);
    }
    with_own_memory(count * size_of::<gid_t>(), |copy| {
        let make_and_copy = || {
            let result = make(list);
            if result == 0 {
                // SAFETY: the kernel has just read as many; mapped just now for so many.
                unsafe { copy.copy_from_nonoverlapping(list, count) };
            }
            result
        };
        change([number, count, copy as usize, 0], make_and_copy, pager)
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
