//! One guest thread's buffer.
//!
//! QEMU calls back on the thread itself, so a buffer is used by one thread at a
//! time; only the end of the program looks at all of them, when they stand
//! still.

use core::ffi::c_uint;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::call::Call;
use crate::pipe;

/// Accesses in a buffer: 32 KiB.
const ACCESSES: usize = 4096;
/// Threads that can be told apart; the guest's later ones share buffers of
/// nobody and are not recorded.
const THREADS: usize = 4096;

/// Instructions that an access can have before it.
const MOST_BETWEEN: u64 = 254;
/// In place of how many there are: the instruction of the access before makes this one, too.
const SAME: u64 = 255;
/// An entry that accesses nothing: its lower 48 bits are instructions.
const PASSES: u64 = 1 << 57 | 1 << 59;

/// A guest thread.
pub(crate) struct Thread {
    number: u32,
    buffer: Vec<u64>,
    /// Instructions up to the block that runs, and in it.
    before: u64,
    block: u64,
    /// Instructions that were told of.
    told: u64,
    /// The system call under way.
    pub(crate) call: Call,
}

/// End of the heap, as `brk` said last; 0 before.
static END_OF_HEAP: AtomicU64 = AtomicU64::new(0);

static ALL: [AtomicPtr<Thread>; THREADS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; THREADS];

/// Does something with a thread's buffer.
#[inline]
pub(crate) fn with(vcpu: c_uint, work: impl FnOnce(&mut Thread)) {
    let Some(slot) = ALL.get(vcpu as usize) else { return };
    let mut thread = slot.load(Ordering::Acquire);
    if thread.is_null() {
        thread = Box::into_raw(Box::new(Thread::new(vcpu)));
        slot.store(thread, Ordering::Release);
    }
    // SAFETY: it was made here, is never freed, and only this guest thread, on
    // which QEMU calls back, uses it.
    work(unsafe { &mut *thread });
}

/// Sends what all threads have left. The program has ended.
pub(crate) fn flush_all() {
    for slot in &ALL {
        let thread = slot.load(Ordering::Acquire);
        if !thread.is_null() {
            // SAFETY: as above; the guest's threads run no more.
            unsafe { &mut *thread }.end();
        }
    }
}

impl Thread {
    fn new(number: c_uint) -> Self {
        Self {
            number,
            buffer: Vec::with_capacity(ACCESSES + 2),
            before: 0,
            block: 0,
            told: 0,
            call: Call::NONE,
        }
    }

    /// A block of so many instructions begins.
    #[inline]
    pub(crate) fn begin_block(&mut self, instructions: u64) {
        self.before += self.block;
        self.block = instructions;
    }

    /// Instruction `index` of the block accesses `1 << shift` bytes. The bits
    /// are those of `terrace_sim::exact::Access`.
    #[inline]
    pub(crate) fn access(&mut self, address: u64, shift: u32, store: bool, index: u64) {
        let instruction = self.before + index;
        // An access stands for its instruction, further ones of the same for none.
        let between = if instruction < self.told {
            SAME
        } else {
            let between = instruction - self.told;
            self.told = instruction + 1;
            if between > MOST_BETWEEN {
                self.pass(between);
                0
            } else {
                between
            }
        };
        let crosses = (address & 63) + (1 << shift.min(6)) > 64;
        self.buffer.push(
            address & ((1 << 48) - 1)
                | between << 48
                | u64::from(store) << 56
                | u64::from(crosses) << 58
                | u64::from(shift.min(15)) << 60,
        );
        if self.buffer.len() >= ACCESSES {
            self.flush();
        }
    }

    /// So many instructions passed without an access.
    fn pass(&mut self, instructions: u64) {
        self.buffer.push(instructions & ((1 << 48) - 1) | PASSES);
    }

    /// The thread ended: sends what is in the buffer, and what it did after its
    /// last access.
    pub(crate) fn end(&mut self) {
        let executed = self.before + self.block;
        let left = executed.saturating_sub(self.told);
        if left > 0 {
            self.pass(left);
        }
        self.told = self.told.max(executed);
        self.flush();
    }

    /// Sends what is in the buffer.
    pub(crate) fn flush(&mut self) {
        if !self.buffer.is_empty() {
            pipe::send(1, self.number, &self.buffer);
            self.buffer.clear();
        }
    }

    pub(crate) fn mapped(&mut self, start: u64, len: u64, origin: u64) {
        self.flush();
        pipe::send(5, self.number, &[origin]);
        pipe::send(2, self.number, &[start, len]);
    }

    pub(crate) fn unmapped(&mut self, start: u64, len: u64) {
        self.flush();
        pipe::send(3, self.number, &[start, len]);
    }

    /// A system call for I/O has ended.
    pub(crate) fn called(&mut self, words: &[u64]) {
        self.flush();
        pipe::send(7, self.number, words);
    }

    /// The heap ends at `end` now. All threads share it, whoever moved its end
    /// before.
    pub(crate) fn broke(&mut self, end: u64) {
        let before = END_OF_HEAP.swap(end, Ordering::Relaxed);
        if before == 0 {
            return;
        }
        if end > before {
            self.mapped(before, end - before, crate::origin::HEAP);
        } else if end < before {
            self.unmapped(end, before - end);
        }
    }
}
