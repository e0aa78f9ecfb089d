//! The memory files that come with Terrace, by name.

use crate::file::MemoryFile;

/// Name and text of every built-in memory file.
pub const BUILTIN: [(&str, &str); 7] = [
    ("ddr4-2400", include_str!("../../../machines/memory/ddr4-2400.toml")),
    ("ddr4-3200", include_str!("../../../machines/memory/ddr4-3200.toml")),
    ("ddr5-4800", include_str!("../../../machines/memory/ddr5-4800.toml")),
    ("hbm2", include_str!("../../../machines/memory/hbm2.toml")),
    ("kindle", include_str!("../../../machines/memory/kindle.toml")),
    ("kindle-dram", include_str!("../../../machines/memory/kindle-dram.toml")),
    ("optane", include_str!("../../../machines/memory/optane.toml")),
];

/// A memory that comes with Terrace; `None` for a name that is not of these.
pub fn builtin(name: &str) -> Option<MemoryFile> {
    let (_, text) = BUILTIN.iter().find(|(n, _)| *n == name)?;
    Some(
        MemoryFile::parse(&format!("{name}.toml"), text)
            .expect("tests parse every built-in memory file"),
    )
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
