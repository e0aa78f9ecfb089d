//! The memory files that come with Terrace, by name.

use std::path::PathBuf;

use terrace_core::Shelf;

use crate::file::MemoryFile;

/// Name and text of every built-in memory file.
pub const BUILTIN: [(&str, &str); 11] = [
    ("cxl-battery", include_str!("../../../machines/memory/cxl-battery.toml")),
    ("ddr4-2400", include_str!("../../../machines/memory/ddr4-2400.toml")),
    ("ddr4-3200", include_str!("../../../machines/memory/ddr4-3200.toml")),
    ("ddr5-4800", include_str!("../../../machines/memory/ddr5-4800.toml")),
    ("hbm2", include_str!("../../../machines/memory/hbm2.toml")),
    ("kindle", include_str!("../../../machines/memory/kindle.toml")),
    ("kindle-dram", include_str!("../../../machines/memory/kindle-dram.toml")),
    ("kindle-two-channels", include_str!("../../../machines/memory/kindle-two-channels.toml")),
    ("optane", include_str!("../../../machines/memory/optane.toml")),
    ("optane-hybrid", include_str!("../../../machines/memory/optane-hybrid.toml")),
    ("stt-ram", include_str!("../../../machines/memory/stt-ram.toml")),
];

/// A memory that comes with Terrace; `None` for a name that is not of these.
pub fn builtin(name: &str) -> Option<MemoryFile> {
    let (_, text) = BUILTIN.iter().find(|(n, _)| *n == name)?;
    Some(
        MemoryFile::parse(&format!("{name}.toml"), text)
            .expect("tests parse every built-in memory file"),
    )
}

/// The file that a memory is read from; `None` for one that is built in, or not there.
pub fn file(name_or_path: &str) -> Option<PathBuf> {
    if BUILTIN.iter().any(|(name, _)| *name == name_or_path) {
        return None;
    }
    Shelf::Memories.find(name_or_path).ok()
}

/// A built-in memory by its name, else the memory file at that path or [of that
/// name](Shelf::find).
///
/// # Errors
///
/// What is wrong, in a sentence.
pub fn load(name_or_path: &str) -> Result<MemoryFile, String> {
    if let Some(memory) = builtin(name_or_path) {
        return Ok(memory);
    }
    let names = || BUILTIN.map(|(name, _)| format!("`{name}`")).join(", ");
    let path = Shelf::Memories.find(name_or_path).map_err(|missing| {
        format!("{name_or_path}: {missing} (memories that come with Terrace are {})", names())
    })?;
    let text = terrace_core::read_text(&path).map_err(|e| {
        format!("{}: {e} (memories that come with Terrace are {})", path.display(), names())
    })?;
    MemoryFile::parse(&path.display().to_string(), &text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_memory_parses_and_bears_its_name() {
        for (name, _) in BUILTIN {
            assert_eq!(builtin(name).expect("built in").name, name);
        }
    }
}
