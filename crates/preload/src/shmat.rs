//! `shmat` with `SHM_REMAP`: shared memory of System V in the place of what is mapped there.
//!
//! The kernel unmaps that without a word to the userfaultfd that it is registered with (`do_shmat` of
//! `ipc/shm.c`). In our books it would stay mapped, content and all, and be found again in what comes to
//! lie there after the shared memory. So the hook tells the pager of it, and ends the marks of what
//! children were to find empty.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use libc::{c_int, c_long};
use terrace_live::fork::{Covered, wiped};
use terrace_live::sys::{self, PAGE};
use terrace_live::workers::command::Command;
use terrace_live::workers::{idle_priority, threads};

use crate::sanitizers::hand_on;
use crate::{attributes, mapped, mapping, places, state, words};

/// Attaches shared memory: `shmat(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(segment: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    hand_on!(c"shmat", segment => c_int, at => *const c_void, flags => c_int; *mut c_void);
    let (segment, flags) = (segment as usize, flags as usize);
    // SAFETY: the caller's.
    (unsafe { attach([segment, at as usize, flags, 0, 0, 0]) }) as *mut c_void
}

/// The same for whoever asks by `syscall(2)`: what the kernel is given.
///
/// # Safety
/// As of [`shmat`].
pub(crate) unsafe fn attach(arguments: [usize; 6]) -> c_long {
    // SAFETY: the caller's.
    let attach = || unsafe { sys::raw(libc::SYS_shmat, arguments) };
    let [segment, at, flags, ..] = arguments;
    // Elsewhere it comes only to where nothing is. And how long it is takes a call for which the program
    // might be killed where it is under a filter.
    let replaces = flags as c_int & libc::SHM_REMAP != 0
        && !threads::is_ours()
        && !idle_priority::is_left_alone();
    let len = if replaces { length(segment) } else { None };
    let Some(len) = len else { return words::returned(attach()) };
    // Where it is rounded to (`SHM_RND`).
    let start = at & !(PAGE - 1);
    if mapping::is_taken(start, len) {
        return words::returned(-c_long::from(libc::ENOMEM));
    }
    attributes::changed(start, len);
    state::await_child();
    let end = start.saturating_add(len);
    // A handler that leaves by a jump would leave the range in a list.
    let attached = state::signals_blocked(|| attach_over((start, end), attach));
    if is_done(attached) {
        mapped::count_roughly();
        places::unmapped(start, end);
    }
    words::returned(attached)
}

/// Bytes of a segment, in whole pages; `None` if the kernel does not say.
fn length(segment: usize) -> Option<usize> {
    let mut about = MaybeUninit::<libc::shmid_ds>::uninit();
    let arguments = [segment, libc::IPC_STAT as usize, about.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: writes a structure. (Not by the C library, which sets the error number.)
    if unsafe { sys::raw(libc::SYS_shmctl, arguments) } != 0 {
        return None;
    }
    // SAFETY: written by the kernel.
    unsafe { about.assume_init() }.shm_segsz.checked_next_multiple_of(PAGE)
}

/// Has the kernel attach a segment over a range, and the pager know of that. A child whose copy is made before
/// the pager has done so finds the range in a list, as of guards.
fn attach_over(range: (usize, usize), attach: impl FnOnce() -> c_long) -> c_long {
    let covered = Covered { start: range.0, end: range.1, by_guards: false };
    let (attached, pager) = mapping::between_copies(|| {
        let attached = attach();
        if !is_done(attached) || state::config().is_none() {
            return (attached, None);
        }
        // Afterwards: it cannot be marked while the segment is there.
        wiped::unmark(range);
        let pager = state::pager_even_if_broken();
        if let Some(pager) = pager {
            pager.fork.covered.lock().push(covered);
        }
        (attached, pager)
    });
    if let Some(pager) = pager {
        pager.commands.ask(pager, Command::Unmapped, range.0, range.1);
        mapping::between_copies(|| {
            let mut list = pager.fork.covered.lock();
            if let Some(i) = list.iter().position(|&listed| listed == covered) {
                list.swap_remove(i);
            }
        });
    }
    attached
}

/// Whether what the kernel has returned is an address.
fn is_done(result: c_long) -> bool {
    !(-4095..0).contains(&result)
}
