//! The program's end: what it has then is told, and our threads are to die as fast as its own.
//!
//! The last thread of a process to die gives its memory back. Threads of ours
//! may run at idle priority just then, and would do so for a minute where the
//! processors are in use.

use core::arch::naked_asm;
use core::ffi::c_int;

use crate::{sanitizers, state, words};

/// Runs when the program returns from `main` or calls `exit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = {
    extern "C" fn end() {
        begin();
    }
    end
};

fn begin() {
    state::tell_ending();
    state::leave_memory();
    terrace_live::workers::idle_priority::end_process();
}

fn end(status: c_int) -> ! {
    begin();
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

/// In place of a function that this C library does not have.
#[cfg(target_arch = "x86_64")]
extern "C" fn is_missing() -> c_int {
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

/// Functions that have the process execute another program, by the C library's names: its memory
/// ends, and others may go on with it. Some take as many arguments as they are given; whatever they
/// are, the next function of the name gets them.
macro_rules! execute {
    ($($name:ident $text:literal),+) => { $(
        /// Executes another program.
        ///
        /// # Safety
        /// As of the C library's.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[cfg(target_arch = "x86_64")]
        pub unsafe extern "C" fn $name() {
            extern "C" fn leave() -> usize {
                state::leave_memory();
                words::real!($text, unsafe extern "C" fn())
                    .map_or(is_missing as *const () as usize, |next| next as usize)
            }
            naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "call {leave}",
                "mov r11, rax",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                leave = sym leave,
            )
        }
    )+ };
}

execute! {
    execve c"execve", execv c"execv", execvp c"execvp", execvpe c"execvpe", execl c"execl",
    execlp c"execlp", execle c"execle", fexecve c"fexecve", execveat c"execveat"
}
