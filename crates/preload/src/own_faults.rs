//! Programs that use userfaultfd themselves: emulators that migrate, run-time systems that move
//! objects, restored checkpoints.
//!
//! The kernel gives a range of memory to one userfaultfd only. Where the program asks for a range
//! that is managed, it gets it: all memory comes in, Terrace's threads end, and the program goes
//! on without Terrace. (To take out that range alone would leave a program whose faults we serve
//! with a second server of faults, each of which may wait for the other.)

use core::ffi::{c_int, c_long, c_ulong, c_void};

use terrace_live::failsafe::give_up::Retires;
use terrace_live::sys;
use terrace_live::sys::uffd::UFFDIO_REGISTER;
use terrace_live::workers::threads;

use crate::sanitizers::hand_on;
use crate::{state, words};

/// Controls a device: `ioctl(2)`. Hooked for `UFFDIO_REGISTER`.
///
/// # Safety
/// As of the C library's. There it is variadic; an argument that the program did not give is
/// whatever stood in the register, as it is for the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    hand_on!(c"ioctl", fd => c_int, request => c_ulong, argument => *mut c_void; c_int);
    // SAFETY: the caller's.
    (unsafe { control([fd as usize, request as usize, argument as usize, 0, 0, 0]) }) as c_int
}

/// The same for whoever asks by `syscall(2)`: what the kernel is given.
///
/// # Safety
/// As of [`ioctl`].
pub(crate) unsafe fn control(arguments: [usize; 6]) -> c_long {
    // SAFETY: what the program asked for.
    let call = || unsafe { sys::raw(libc::SYS_ioctl, arguments) };
    let mut result = call();
    let [_, request, argument, ..] = arguments;
    let registers = request as c_ulong == UFFDIO_REGISTER;
    if registers && result == -c_long::from(libc::EBUSY) && !threads::is_ours() {
        // SAFETY: the kernel has just read it.
        let [start, len] = unsafe { (argument as *const [u64; 2]).read_unaligned() };
        // Else somebody else has it.
        if state::is_managed(start as usize, start.saturating_add(len) as usize) {
            state::retire(Retires::Userfaultfd);
            result = call();
        }
    }
    words::returned(result)
}
