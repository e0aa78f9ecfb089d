//! The processor's instructions that write past its caches, and out of them.
//!
//! Raw pointers into mapped memory are read and written by several threads, and by the kernel;
//! what the compiler may assume of Rust's own memory does not hold there. On `x86_64` all of it is
//! therefore done by instructions that the compiler does not look into. Other processors copy
//! words through atomics, and offer no DAX.

/// How a cache line is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteBack {
    /// `clwb`: the line stays in the cache.
    Clwb,
    /// `clflushopt`: the line leaves the cache.
    Clflushopt,
    /// `clflush`: the same, one line after the other.
    Clflush,
    /// There is no such instruction that this crate knows.
    None,
}

impl WriteBack {
    /// The best that this processor has.
    pub fn detect() -> Self {
        arch::detect()
    }

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clwb => "clwb",
            Self::Clflushopt => "clflushopt",
            Self::Clflush => "clflush",
            Self::None => "none",
        }
    }
}

pub(super) use arch::{
    copy_in, copy_out, copy_out_wide, fence, is_wide, prefetch, prefetch_changed, write_back,
};

#[cfg(target_arch = "x86_64")]
mod arch {
    use core::arch::asm;
    use core::arch::x86_64::{__cpuid, __cpuid_count};

    use super::WriteBack;

    pub(super) fn detect() -> WriteBack {
        if __cpuid(0).eax < 7 {
            return WriteBack::Clflush;
        }
        // Intel SDM, CPUID leaf 7: bit 24 of EBX is CLWB, bit 23 CLFLUSHOPT.
        let features = __cpuid_count(7, 0).ebx;
        if features >> 24 & 1 == 1 {
            WriteBack::Clwb
        } else if features >> 23 & 1 == 1 {
            WriteBack::Clflushopt
        } else {
            WriteBack::Clflush
        }
    }

    /// Copies bytes with non-temporal stores.
    ///
    /// # Safety
    /// `to` is writable for the length of `from`; both are multiples of 8.
    #[inline]
    pub(in crate::pm) unsafe fn copy_in(to: *mut u8, from: &[u8]) {
        let mut to = to;
        let mut source = from.as_ptr();
        let mut left = from.len();
        // SAFETY: the caller's; each step stays inside what is left. The instructions that touch
        // `to` are opaque to the compiler, and order themselves by `fence`.
        unsafe {
            while left > 0 && (!to.addr().is_multiple_of(64) || left < 64) {
                let word: u64;
                asm!("mov {w}, [{s}]", "movnti [{t}], {w}", w = out(reg) word, s = in(reg) source,
                     t = in(reg) to, options(nostack, preserves_flags));
                let _ = word;
                (to, source, left) = (to.add(8), source.add(8), left - 8);
            }
            if left >= 64 {
                let end = source.add(left / 64 * 64);
                asm!(
                    "2:",
                    "movups {a}, [{s}]",
                    "movups {b}, [{s} + 16]",
                    "movups {c}, [{s} + 32]",
                    "movups {d}, [{s} + 48]",
                    "movntps [{t}], {a}",
                    "movntps [{t} + 16], {b}",
                    "movntps [{t} + 32], {c}",
                    "movntps [{t} + 48], {d}",
                    "add {s}, 64",
                    "add {t}, 64",
                    "cmp {s}, {e}",
                    "jne 2b",
                    s = inout(reg) source,
                    t = inout(reg) to,
                    e = in(reg) end,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack),
                );
                left %= 64;
            }
            while left > 0 {
                let word: u64;
                asm!("mov {w}, [{s}]", "movnti [{t}], {w}", w = out(reg) word, s = in(reg) source,
                     t = in(reg) to, options(nostack, preserves_flags));
                let _ = word;
                (to, source, left) = (to.add(8), source.add(8), left - 8);
            }
        }
    }

    /// Whether this processor has what [`copy_out_wide`] takes.
    pub(in crate::pm) fn is_wide() -> bool {
        std::arch::is_x86_feature_detected!("avx")
    }

    /// Copies bytes that may be changing, 256 at a time.
    ///
    /// # Safety
    /// `from` is readable for the length of `to`, which is a multiple of 256 and not 0; the processor
    /// [`is_wide`].
    #[inline]
    pub(in crate::pm) unsafe fn copy_out_wide(from: *const u8, to: &mut [u8]) {
        let target = to.as_mut_ptr();
        // SAFETY: the caller's; each step stays inside. The compiler does not look into the
        // instructions that touch `from`.
        unsafe {
            let end = target.add(to.len());
            asm!(
                "2:",
                "vmovups ymm0, [{s}]",
                "vmovups ymm1, [{s} + 32]",
                "vmovups ymm2, [{s} + 64]",
                "vmovups ymm3, [{s} + 96]",
                "vmovups ymm4, [{s} + 128]",
                "vmovups ymm5, [{s} + 160]",
                "vmovups ymm6, [{s} + 192]",
                "vmovups ymm7, [{s} + 224]",
                "vmovups [{t}], ymm0",
                "vmovups [{t} + 32], ymm1",
                "vmovups [{t} + 64], ymm2",
                "vmovups [{t} + 96], ymm3",
                "vmovups [{t} + 128], ymm4",
                "vmovups [{t} + 160], ymm5",
                "vmovups [{t} + 192], ymm6",
                "vmovups [{t} + 224], ymm7",
                "add {s}, 256",
                "add {t}, 256",
                "cmp {t}, {e}",
                "jne 2b",
                "vzeroupper",
                s = inout(reg) from => _,
                t = inout(reg) target => _,
                e = in(reg) end,
                // `vzeroupper` changes all of them.
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack),
            );
        }
    }

    /// Copies bytes that may be changing.
    ///
    /// # Safety
    /// `from` is readable for the length of `to`.
    #[inline]
    pub(in crate::pm) unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
        let mut from = from;
        let mut target = to.as_mut_ptr();
        let mut left = to.len();
        // SAFETY: the caller's; each step stays inside. The compiler does not look into the
        // instructions that touch `from`. The direction flag is clear, by the calling convention.
        unsafe {
            // The fewer instructions a line takes, the more lines are under way at a time: for a
            // sector of 512 bytes, `rep movsb` takes half as long again as the second loop.
            if left >= 256 && is_wide() {
                let whole = left / 256 * 256;
                copy_out_wide(from, to.split_at_mut_unchecked(whole).0);
                // Anew from `to`, which was borrowed in between.
                target = to.as_mut_ptr().add(whole);
                (from, left) = (from.add(whole), left - whole);
            }
            let lines = left / 64 * 64;
            if lines > 0 {
                let end = target.add(lines);
                asm!(
                    "2:",
                    "movups {a}, [{s}]",
                    "movups {b}, [{s} + 16]",
                    "movups {c}, [{s} + 32]",
                    "movups {d}, [{s} + 48]",
                    "movups [{t}], {a}",
                    "movups [{t} + 16], {b}",
                    "movups [{t} + 32], {c}",
                    "movups [{t} + 48], {d}",
                    "add {s}, 64",
                    "add {t}, 64",
                    "cmp {t}, {e}",
                    "jne 2b",
                    s = inout(reg) from,
                    t = inout(reg) target,
                    e = in(reg) end,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack),
                );
            }
            let rest = left - lines;
            if rest > 0 {
                asm!("rep movsb", inout("rcx") rest => _, inout("rdi") target => _,
                     inout("rsi") from => _, options(nostack, preserves_flags));
            }
        }
    }

    /// Begins to fetch a line that will be read.
    #[inline]
    pub(in crate::pm) fn prefetch(line: *const u8) {
        // SAFETY: a hint, which never faults.
        unsafe {
            asm!("prefetcht0 [{l}]", l = in(reg) line,
                 options(nostack, preserves_flags, readonly));
        }
    }

    /// Begins to fetch a line that will be changed.
    #[inline]
    pub(in crate::pm) fn prefetch_changed(line: *const u8) {
        // SAFETY: a hint, which never faults; processors without it take it for no operation.
        unsafe {
            asm!("prefetchw [{l}]", l = in(reg) line,
                 options(nostack, preserves_flags, readonly));
        }
    }

    /// Begins to write back the line of an address.
    ///
    /// # Safety
    /// The address is mapped, and the processor has the instruction.
    #[inline]
    pub(in crate::pm) unsafe fn write_back(how: WriteBack, line: *mut u8) {
        // SAFETY: the caller's.
        unsafe {
            match how {
                WriteBack::Clwb => {
                    asm!("clwb [{l}]", l = in(reg) line, options(nostack, preserves_flags));
                }
                WriteBack::Clflushopt => {
                    asm!("clflushopt [{l}]", l = in(reg) line, options(nostack, preserves_flags));
                }
                WriteBack::Clflush => {
                    asm!("clflush [{l}]", l = in(reg) line, options(nostack, preserves_flags));
                }
                WriteBack::None => {}
            }
        }
    }

    /// `sfence`.
    #[inline]
    pub(in crate::pm) fn fence() {
        // SAFETY: every x86_64 processor has it. It clobbers memory, so that nothing which the
        // compiler knows of moves across.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence as atomic_fence};

    use super::WriteBack;

    pub(super) fn detect() -> WriteBack {
        WriteBack::None
    }

    /// Copies bytes, word by word.
    ///
    /// # Safety
    /// `to` is writable for the length of `from`; both are multiples of 8.
    pub(in crate::pm) unsafe fn copy_in(to: *mut u8, from: &[u8]) {
        for (i, word) in from.chunks_exact(8).enumerate() {
            let value = word.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            // SAFETY: the caller's; `to` is aligned.
            unsafe { AtomicU64::from_ptr(to.add(i * 8).cast()).store(value, Ordering::Relaxed) };
        }
    }

    /// Whether this processor has what [`copy_out_wide`] takes.
    pub(in crate::pm) fn is_wide() -> bool {
        false
    }

    /// As [`copy_out`].
    ///
    /// # Safety
    /// `from` is readable for the length of `to`.
    pub(in crate::pm) unsafe fn copy_out_wide(from: *const u8, to: &mut [u8]) {
        // SAFETY: the caller's.
        unsafe { copy_out(from, to) }
    }

    /// Copies bytes that may be changing.
    ///
    /// # Safety
    /// `from` is readable for the length of `to`.
    pub(in crate::pm) unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
        for (i, byte) in to.iter_mut().enumerate() {
            // SAFETY: the caller's.
            *byte = unsafe { AtomicU8::from_ptr(from.add(i).cast_mut()).load(Ordering::Relaxed) };
        }
    }

    pub(in crate::pm) fn prefetch(_line: *const u8) {}

    pub(in crate::pm) fn prefetch_changed(_line: *const u8) {}

    pub(in crate::pm) unsafe fn write_back(_how: WriteBack, _line: *mut u8) {}

    pub(in crate::pm) fn fence() {
        atomic_fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beginnings, ends and lengths around a cache line take different instructions.
    #[test]
    fn copies_arrive_whole_wherever_they_begin_and_end() {
        let source: Vec<u8> = (0..=255).cycle().take(1024).collect();
        for begin in (0..128).step_by(8) {
            for length in (0..400).step_by(8) {
                let mut words = vec![0xeeee_eeee_eeee_eeee_u64; 128];
                let to = words.as_mut_ptr().cast::<u8>();
                // SAFETY: 1024 bytes are there, and 528 are the most that are touched.
                unsafe { copy_in(to.add(begin), &source[8..8 + length]) };
                fence();
                let mut back = vec![0; 1024];
                // SAFETY: as many are there.
                unsafe { copy_out(to, &mut back) };
                assert_eq!(back[begin..begin + length], source[8..8 + length]);
                assert!(back[..begin].iter().chain(&back[begin + length..]).all(|b| *b == 0xee));
            }
        }
    }

    /// What is left over of a length takes other instructions than most of it.
    #[test]
    fn bytes_of_any_number_are_read_and_nothing_behind_them_is_written() {
        let source: Vec<u8> = (0..=255).cycle().take(1024).collect();
        for begin in [0, 1, 63] {
            for length in 0..900 {
                let mut back = vec![0xee; 1024];
                // SAFETY: 963 bytes are the most that are touched.
                unsafe { copy_out(source[begin..].as_ptr(), &mut back[..length]) };
                assert!(back[..length] == source[begin..begin + length], "{begin}, {length}");
                assert!(back[length..].iter().all(|b| *b == 0xee), "{begin}, {length}");
            }
        }
    }

    #[test]
    fn the_instruction_that_was_detected_can_be_executed() {
        let mut line = [7u64; 8];
        // SAFETY: the line is ours.
        unsafe { write_back(WriteBack::detect(), line.as_mut_ptr().cast()) };
        fence();
        assert_eq!(line, [7; 8]);
    }
}
