//! The memory files that come with Terrace, by name.

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

/// A built-in memory by its name, else the memory file at that path.
///
/// # Errors
///
/// What is wrong, in a sentence.
pub fn load(name_or_path: &str) -> Result<MemoryFile, String> {
    if let Some(memory) = builtin(name_or_path) {
        return Ok(memory);
    }
    let text = terrace_core::read_text(name_or_path).map_err(|e| {
        let names = BUILTIN.map(|(name, _)| format!("`{name}`")).join(", ");
        format!("{name_or_path}: {e} (memories that come with Terrace are {names})")
    })?;
    MemoryFile::parse(name_or_path, &text).map_err(|e| e.to_string())
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
