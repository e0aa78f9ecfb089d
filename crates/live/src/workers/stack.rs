//! A stack of our own for a thread of the program's.
//!
//! Management begins in whichever thread maps memory, and takes more than 64 KiB of stack (a pager is
//! put together there). It goes on in a child in whichever thread has forked. Programs have threads with
//! less.

use core::arch::asm;
use core::ffi::c_void;
use core::mem::MaybeUninit;

use crate::sys;

/// Its size.
const SIZE: usize = 512 << 10;

struct Call<F, T> {
    work: Option<F>,
    result: MaybeUninit<T>,
}

extern "C" fn call<F: FnOnce() -> T, T>(call: *mut c_void) {
    // SAFETY: what `with_own` passes, which waits.
    let call = unsafe { &mut *call.cast::<Call<F, T>>() };
    if let Some(work) = call.work.take() {
        call.result.write(work());
    }
}

/// Not inlined, or what the work takes would lie on the thread's own stack in any case.
#[cold]
#[inline(never)]
fn on_this_one<F: FnOnce() -> T, T>(work: F) -> T {
    work()
}

/// Runs something on a stack that is mapped for it; on the thread's own if there is no memory. To
/// be called with signals blocked: a handler that leaves by `longjmp` would leave it behind.
pub fn with_own<F: FnOnce() -> T, T>(work: F) -> T {
    let Ok(stack) = sys::map_private(SIZE) else { return on_this_one(work) };
    let mut this = Call { work: Some(work), result: MaybeUninit::uninit() };
    // SAFETY: the stack is ours alone, its end is aligned, and what is called comes back: a panic
    // ends the program, as it does in every hook. All registers that a call may change are named.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {stack}",
            "call {call}",
            "mov rsp, r12",
            stack = in(reg) stack + SIZE,
            call = in(reg) call::<F, T> as extern "C" fn(*mut c_void),
            in("rdi") &raw mut this,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    // SAFETY: nobody is on it any more.
    let _ = unsafe { sys::munmap(stack, SIZE) };
    // SAFETY: the work was there, and has been done.
    unsafe { this.result.assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far more than the thread has.
    #[test]
    #[cfg_attr(miri, ignore = "there is no assembler")]
    #[expect(clippy::large_stack_arrays, reason = "that is what it is for")]
    fn a_thread_with_a_small_stack_does_what_takes_a_large_one() {
        let thread = std::thread::Builder::new().stack_size(32 << 10);
        let sum = thread.spawn(|| {
            with_own(|| {
                let many = core::hint::black_box([7u8; 96 << 10]);
                many.iter().map(|&byte| u64::from(byte)).sum::<u64>()
            })
        });
        assert_eq!(sum.expect("a thread").join().expect("its result"), 7 * (96 << 10));
    }
}
