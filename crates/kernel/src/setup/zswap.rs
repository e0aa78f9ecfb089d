//! zswap: compressed memory in front of swap that is there, switched on where no zram device can be
//! made, and off again at the end.
//!
//! zram is preferred: once zswap was ever on, the kernel brings pages back one by one until it is
//! started anew (`docs/engines.md`).

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use terrace_core::Bytes;

use super::records::boot;
use super::zram::Held;
use crate::files::{Root, read, write};

/// The directory of zswap's parameters; it is there if the kernel has zswap.
const PARAMETERS: &str = "/sys/module/zswap/parameters";
/// What is set, in this order: what compresses, where the kernel has it, and then that it does.
const WANTED: [(&str, &str); 2] = [("compressor", "lz4"), ("enabled", "Y")];

/// What was there before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ZswapRecord {
    pub(super) schema: u32,
    pub(super) boot: String,
    /// Parameters and their values.
    before: Vec<(String, String)>,
}

impl ZswapRecord {
    /// The record's name: the machine has one zswap.
    pub(super) const NAME: &str = "zswap.json";

    /// What is there now.
    pub(super) fn new(root: &Root, schema: u32) -> io::Result<Self> {
        let value = |(name, _): (&str, &str)| {
            let text = read(&parameter(root, name))?;
            Ok((name.to_owned(), text.trim().to_owned()))
        };
        let before = WANTED.into_iter().map(value).collect::<io::Result<_>>()?;
        Ok(Self { schema, boot: boot(root), before })
    }
}

fn parameter(root: &Root, name: &str) -> PathBuf {
    root.path(PARAMETERS).join(name)
}

/// Whether it is on.
pub fn is_on(root: &Root) -> bool {
    read(&parameter(root, "enabled")).is_ok_and(|text| text.trim() == "Y")
}

/// What keeps it from being switched on here; `None` if nothing does.
pub fn lack(root: &Root) -> Option<String> {
    let enabled = parameter(root, "enabled");
    if !enabled.exists() {
        return Some("this kernel has no zswap (CONFIG_ZSWAP)".into());
    }
    let write = std::fs::OpenOptions::new().write(true).open(&enabled);
    write.err().map(|e| format!("{}: {e} (root is needed)", enabled.display()))
}

/// The pages that it holds, of all programs; `None` where the kernel does not tell (before Linux 5.19). The
/// kernel tells no peak, so `peak` is what it takes now.
pub fn held(root: &Root) -> Option<Held> {
    let text = root.read("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_ascii_whitespace().next()?.parse().ok().map(Bytes::kib)
    };
    let (original, memory) = (field("Zswapped:")?, field("Zswap:")?);
    Some(Held { original, memory, peak: memory })
}

/// Switches it on. What was there has been written down.
pub(super) fn begin(root: &Root) -> io::Result<()> {
    for (name, value) in WANTED {
        let done = write(&parameter(root, name), value);
        // A kernel without this codec goes on with its own.
        if name == "enabled" {
            done?;
        }
    }
    Ok(())
}

/// Sets back what is still as it was set. What it holds stays there until it is touched.
pub(super) fn end(root: &Root, record: &ZswapRecord) -> io::Result<()> {
    // Off first: the codec of what is on would be changed for others.
    for (name, before) in record.before.iter().rev() {
        let path = parameter(root, name);
        let ours = WANTED.iter().find(|(wanted, _)| wanted == name).map(|(_, value)| *value);
        if ours.is_some_and(|ours| ours != before && read(&path).is_ok_and(|t| t.trim() == ours)) {
            write(&path, before)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_holds_is_among_what_the_machine_s_memory_is_used_for() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let put = |text: &str| {
            std::fs::create_dir_all(root.path("/proc")).unwrap();
            std::fs::write(root.path("/proc/meminfo"), text).unwrap();
        };
        put("MemTotal:  100 kB\nSwapFree:  50 kB\n");
        assert_eq!(held(&root), None);
        put("MemTotal:  100 kB\nZswap:      8 kB\nZswapped:  24 kB\n");
        let (original, memory) = (Bytes::kib(24), Bytes::kib(8));
        assert_eq!(held(&root), Some(Held { original, memory, peak: memory }));
    }
}
