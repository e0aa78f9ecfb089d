//! What kernel objects take on this machine, beside programs' own memory: Figure 2.

use std::fs;

use serde::{Deserialize, Serialize};
use terrace_core::Bytes;

/// Memory by who has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// All memory.
    pub total: Bytes,
    /// Programs' own.
    pub anonymous: Bytes,
    /// Pages of files, without shared memory.
    pub page_cache: Bytes,
    /// Slab objects: inodes, names, extents, bios, sockets, packets and all others.
    pub slab: Bytes,
    /// Page tables and stacks of the kernel.
    pub tables: Bytes,
}

impl Footprint {
    /// This machine's.
    pub fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/meminfo").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(Bytes::kib)
        };
        let cache = field("Cached")? + field("Buffers")?;
        Some(Self {
            total: field("MemTotal")?,
            anonymous: field("AnonPages")?,
            page_cache: cache.saturating_sub(field("Shmem")?),
            slab: field("Slab")?,
            tables: field("PageTables")? + field("KernelStack").unwrap_or_default(),
        })
    }

    /// The share of kernel objects, page cache among them, in all memory that is in use.
    pub fn kernel_share(&self) -> f64 {
        let kernel = self.page_cache + self.slab + self.tables;
        let all = kernel + self.anonymous;
        if all.is_zero() { 0.0 } else { kernel.as_f64() / all.as_f64() }
    }
}

/// Names in the machine's cache of names.
pub fn dentries() -> Option<u64> {
    let text = fs::read_to_string("/proc/sys/fs/dentry-state").ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_no_file() {
        let text = "MemTotal: 1000 kB\nBuffers: 10 kB\nCached: 300 kB\nShmem: 60 kB\n\
                    AnonPages: 200 kB\nSlab: 40 kB\nPageTables: 8 kB\nKernelStack: 2 kB\n";
        let found = Footprint::parse(text).expect("complete");
        assert_eq!(found.page_cache, Bytes::kib(250));
        assert!((found.kernel_share() - 0.6).abs() < 1e-9);
        assert_eq!(Footprint::parse("MemTotal: 5 kB\n"), None);
    }
}
