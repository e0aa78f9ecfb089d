//! Creating Terrace's own threads, without the C library.
//!
//! `pthread_create` calls the allocator, which may be the program's, and be the very caller in
//! whose middle management begins: it would wait for a lock that its caller holds. So our threads
//! come by the system call, on stacks and with thread-local storage ([`crate::workers::tls`]) of our own. The C
//! library does not know of them: it neither counts them, nor waits for them, nor has
//! them change their user ([`crate::workers::credentials`] does).

use core::arch::asm;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, Ordering::*};

use crate::sys;
use crate::workers::tls;

/// What a thread runs.
pub(crate) type Main = extern "C" fn(*mut c_void);

/// As for the C library's own threads, but for the robust list.
const FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// What [`begin`] finds at the top of its stack.
#[repr(C)]
struct Begin {
    entry: extern "C" fn(*const Begin) -> !,
    this: *const Begin,
    main: Main,
    argument: *mut c_void,
    classes: tls::Classes,
}

/// Bytes that a thread needs with a stack of this size; `None` if none can be made.
pub(crate) fn room(stack: usize) -> Option<usize> {
    tls::layout().size().map(|size| (size + stack).next_multiple_of(sys::PAGE))
}

/// Creates a thread that runs `main` and then ends. All signals but those that are
/// [always left through](crate::workers::credentials::SIGNAL) are blocked in it.
///
/// # Safety
/// The range is mapped, zeroed, [large enough](room), and the thread's alone for as long as it runs.
/// `argument` is what `main` takes. `lives` stays where it is: it is not 0 for as long as the thread
/// exists.
pub(crate) unsafe fn spawn(
    memory: core::ops::Range<usize>,
    lives: &AtomicI32,
    main: Main,
    argument: *mut c_void,
) -> Result<(), i32> {
    let layout = tls::layout();
    let size = layout.size().ok_or(libc::ENOTSUP)?;
    // SAFETY: the caller's.
    let thread = unsafe { layout.lay_out(memory.end) };
    let top = (memory.end - size) & !(sys::PAGE - 1);
    let at = (top - size_of::<Begin>().next_multiple_of(16)) as *mut Begin;
    // SAFETY: at the top of the new stack.
    unsafe {
        at.write(Begin { entry: begin, this: at, main, argument, classes: layout.classes() });
    }
    let mut ignored = 0;
    let tid = if thread.tid.is_null() { &raw mut ignored } else { thread.tid };
    lives.store(1, Release);
    let mask = sys::block_signals();
    let result: i64;
    // SAFETY: the parent goes on behind it with all but the result unchanged. The new thread has
    // the stack to itself and never comes here: it takes two words from it, and calls what does
    // not return.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, [rsp + 8]",
            "call [rsp]",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone => result,
            in("rdi") i64::from(FLAGS),
            in("rsi") at,
            in("rdx") tid,
            in("r10") lives.as_ptr(),
            in("r8") thread.pointer,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    sys::restore_signals(mask);
    if result < 0 {
        lives.store(0, Release);
        return Err(-result as i32);
    }
    Ok(())
}

extern "C" fn begin(this: *const Begin) -> ! {
    // SAFETY: written by `spawn`, at the top of this thread's own stack.
    let Begin { main, argument, classes, .. } = unsafe { this.read() };
    tls::layout().begin(classes);
    main(argument);
    end()
}

/// Ends the calling thread, one of ours. Nothing is run at its end.
pub(crate) fn end() -> ! {
    loop {
        // SAFETY: ends this thread, which holds nothing that others need; its stack stays.
        unsafe { sys::raw(libc::SYS_exit, [0; 6]) };
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, AtomicUsize};
    use std::sync::Mutex;

    use super::*;

    struct Seen {
        done: AtomicU32,
        errno: AtomicUsize,
        tid: AtomicUsize,
        text: Mutex<String>,
    }

    /// What our threads rely on: the C library's variables, the standard library's, panics that are
    /// caught, the thread's own number.
    extern "C" fn look(argument: *mut c_void) {
        // SAFETY: the test's, which waits.
        let seen = unsafe { &*argument.cast::<Seen>() };
        // SAFETY: fails, and sets this thread's own variable.
        unsafe { libc::close(-1) };
        seen.errno.store(sys::errno() as usize, Relaxed);
        // SAFETY: has no memory effects.
        seen.tid.store(unsafe { libc::gettid() } as usize, Relaxed);
        let caught = std::panic::catch_unwind(|| {
            // Not by the macro, whose message the test harness would print.
            std::panic::resume_unwind(Box::new("thrown"));
        });
        let thrown = caught.unwrap_err();
        let thrown = thrown.downcast_ref::<&str>().unwrap_or(&"");
        // SAFETY: reads the tables of character classes.
        let upper = unsafe { libc::toupper(i32::from(b'q')) };
        // SAFETY: as above.
        let is_alpha = unsafe { libc::isalpha(i32::from(b'q')) } != 0;
        // SAFETY: asks the kernel, as `struct rseq` is not registered.
        let cpu = unsafe { libc::sched_getcpu() };
        *seen.text.lock().unwrap() = format!("{thrown} {upper} {is_alpha} {}", cpu >= 0);
        seen.done.store(1, Release);
        sys::futex_wake(&seen.done, false);
    }

    #[test]
    fn a_thread_of_ours_has_what_the_libraries_expect_and_ends_alone() {
        const STACK: usize = 256 << 10;
        static LIVES: AtomicI32 = AtomicI32::new(0);
        let seen = Seen {
            done: AtomicU32::new(0),
            errno: AtomicUsize::new(0),
            tid: AtomicUsize::new(0),
            text: Mutex::default(),
        };
        let len = room(STACK).unwrap();
        let at = sys::map_private(len).unwrap();
        // SAFETY: a mapping of the test's, which outlives the thread.
        unsafe { *libc::__errno_location() = 77 };
        // SAFETY: as above.
        unsafe { spawn(at..at + len, &LIVES, look, (&raw const seen).cast_mut().cast()) }.unwrap();
        while seen.done.load(Acquire) == 0 {
            sys::futex_wait(&seen.done, 0, None, false);
        }

        assert_eq!(seen.errno.load(Relaxed), libc::EBADF as usize);
        assert_eq!(sys::errno(), 77, "each has its own");
        assert_eq!(*seen.text.lock().unwrap(), "thrown 81 true true");
        let tid = seen.tid.load(Relaxed) as i32;
        assert_ne!(tid, sys::pid());
        while sys::is_thread(tid) {
            sys::yield_now();
        }
        assert_eq!(LIVES.load(Acquire), 0, "the kernel says so");
    }

    #[test]
    fn where_no_thread_can_be_had_the_error_is_told() {
        const STACK: usize = 64 << 10;
        let len = room(STACK).unwrap();
        let at = sys::map_private(len).unwrap();
        // SAFETY: a child of its own, whose limit is its own; it only makes system calls.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            let mut error = libc::EAGAIN;
            // SAFETY: as above. Root is not limited, and becomes somebody else before.
            unsafe {
                libc::syscall(libc::SYS_setresuid, 65_533, 65_533, 65_533);
                libc::setrlimit(libc::RLIMIT_NPROC, &raw const none);
                if libc::syscall(libc::SYS_getuid) != 0 {
                    let lives = AtomicI32::new(0);
                    let spawned = spawn(at..at + len, &lives, look, core::ptr::null_mut());
                    error = spawned.err().unwrap_or(0) + lives.load(Relaxed);
                }
                libc::_exit(i32::from(error != libc::EAGAIN));
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
