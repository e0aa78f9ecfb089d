//! Programs that run under Valgrind, whichever of its tools it is.
//!
//! Valgrind runs a program's instructions on a processor of its own, one thread at a time, and knows the
//! threads that were made by the calls it expects. A thread of the program's that waits for one of ours in
//! a fault would wait for ever.

use core::arch::asm;

/// Asks how many Valgrinds run this, one in the other (`RUNNING_ON_VALGRIND`, `valgrind.h`).
const RUNNING_ON_VALGRIND: usize = 0x1001;

/// Whether it runs this program.
pub fn runs_us() -> bool {
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0_usize;
    // SAFETY: to a processor it is nothing: a register is rotated by 128 bits, and exchanged with
    // itself. Valgrind takes it for a question, reads the request, and changes only the answer.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") answer,
            options(nostack),
        );
    }
    answer != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "there is no assembler")]
    fn a_processor_does_not_answer() {
        assert!(!runs_us());
    }
}
