//! What of a group's memory is neither resident, as a governor counts that, nor in swap.
//!
//! A group is charged for more than anonymous and shared memory. Without this, a report's two sums would be
//! some MiB less than what the kernel says that the group has, and nobody would know of what kind the rest is.

use serde::Serialize;
use terrace_core::Bytes;

/// Memory of a group that cannot be swapped, or that no process has mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Beside {
    /// Pages of files.
    pub files: Bytes,
    /// The kernel's own for the group: stacks of threads, page tables, objects, buffers of sockets.
    pub kernel: Bytes,
    /// Pages of programs that lie in DRAM, and that no process has mapped: those that were read from swap
    /// ahead, and those that are on their way out.
    pub unmapped: Bytes,
    /// Charged, and of none of these kinds: mostly what processors have charged ahead, 64 pages each. The
    /// kernel's counts of kinds lag behind what is charged by about as much.
    pub rest: Bytes,
}

impl Beside {
    /// Of what is charged, beside what is resident. `of` tells an amount of `memory.stat`, and `kernel` is what
    /// the kernel has for the group.
    pub(super) fn new(
        charged: Bytes,
        resident: Bytes,
        kernel: Bytes,
        of: impl Fn(&str) -> u64,
    ) -> Self {
        // Under version 1 `cache` is what version 2 calls `file`: both have shared memory in them.
        let files = Bytes(of("cache").max(of("file"))) - Bytes(of("shmem"));
        let listed = Bytes(of("inactive_anon") + of("active_anon"));
        let unmapped = listed - resident;
        let rest = charged - (resident + files + kernel + unmapped);
        Self { files, kernel, unmapped, rest }
    }

    /// All of it.
    pub fn all(&self) -> Bytes {
        self.files + self.kernel + self.unmapped + self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_that_is_charged_is_of_one_kind() {
        let mib = Bytes::mib;
        let stat = |name: &str| match name {
            "cache" => 9 << 20,
            "shmem" => 2 << 20,
            "inactive_anon" => 30 << 20,
            "active_anon" => 5 << 20,
            _ => 0,
        };
        let beside = Beside::new(mib(45), mib(34), mib(2), stat);
        let expected = Beside { files: mib(7), kernel: mib(2), unmapped: mib(1), rest: mib(1) };
        assert_eq!(beside, expected);
        assert_eq!(mib(34) + beside.all(), mib(45));
        // The kernel counts kinds a little later than what is charged.
        assert_eq!(Beside::new(mib(40), mib(34), mib(2), stat).rest, Bytes::ZERO);
    }
}
