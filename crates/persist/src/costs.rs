//! What processors take; memory's part comes from `terrace-dram`.

use terrace_dram::Picos;

/// Processor time of what the operating system does, in Kindle's machine: one
/// in-order core at 3 GHz (`TimingSimpleCPU` of gem5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A word read or written in the first-level cache. Kindle's config.ini:
    /// tag 1 and data 2 cycles of 333 ps.
    pub word: Picos,
    /// Sending one line off. Assumed: one instruction and the walk through
    /// three cache levels' tags (1 + 3 + 5 cycles).
    pub flush: Picos,
    /// A fence that has nothing to wait for. Assumed: ten cycles.
    pub fence: Picos,
    /// A page fault's code without memory. Fitted to one number: Kindle's
    /// persistent scheme takes 215 ms for 512 MB once console input and output
    /// are taken out, of which zeroing the pages is more than half here.
    pub fault: Picos,
    /// A system call's code, and its share for each page. Assumed.
    pub syscall: Picos,
    /// Per page of an unmapped or protected range. Assumed.
    pub page: Picos,
    /// One step along the published V2P list: load, compare, branch on a core
    /// without overlap. Fitted to one number, the rebuild scheme at 64 MB (359
    /// ms expected, of which some 90 ms are console input and output);
    /// everything else of the rebuild scheme follows.
    pub visit: Picos,
    /// Hashing an address and comparing the key found, of a library that keeps a
    /// table of addresses. Assumed: twelve instructions.
    pub alias: Picos,
    /// Timer interrupt, saving registers. Assumed.
    pub checkpoint: Picos,
}

impl Costs {
    /// Kindle's machine.
    pub const KINDLE: Self = Self {
        word: Picos(333),
        flush: Picos(3_000),
        fence: Picos(3_330),
        fault: Picos(1_150_000),
        syscall: Picos(500_000),
        page: Picos(30_000),
        visit: Picos(20_000),
        alias: Picos(4_000),
        checkpoint: Picos(2_000_000),
    };
}
