//! A tracepoint of the kernel, as tracefs describes it: its number, and where its fields are.

use std::fs;
use std::path::{Path, PathBuf};

/// Where tracefs may be mounted, below the root.
const TRACEFS: [&str; 2] = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];

/// What is known of a tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    /// What it is opened by.
    pub number: u64,
    format: String,
}

impl Tracepoint {
    /// Looks it up by its group and name.
    ///
    /// # Errors
    /// What is missing, in words.
    pub fn read(root: &Path, group: &str, name: &str) -> Result<Self, String> {
        let events = |base: &&str| root.join(base).join("events").join(group).join(name);
        let directory: PathBuf =
            TRACEFS.iter().map(events).find(|path| path.exists()).ok_or_else(|| {
                format!("no tracepoint {group}:{name} below /sys/kernel/tracing (tracefs, root)")
            })?;
        let path = directory.join("format");
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::parse(text).ok_or_else(|| format!("{}: it has no number", path.display()))
    }

    /// Of the text of a `format` file.
    pub(crate) fn parse(format: String) -> Option<Self> {
        let number =
            format.lines().find_map(|line| line.strip_prefix("ID: "))?.trim().parse().ok()?;
        Some(Self { number, format })
    }

    /// The offset of a field of so many bytes; `None` if there is none.
    pub fn field(&self, name: &str, size: usize) -> Option<usize> {
        // `field:unsigned int nr_regions;	offset:16;	size:4;	signed:0;`
        let mut fields = self.format.lines().filter_map(|line| line.trim().strip_prefix("field:"));
        let line = fields.find(|line| {
            let declared = line.split(';').next();
            declared.and_then(|declared| declared.rsplit(' ').next()) == Some(name)
        })?;
        let number = |what: &str| {
            let mut parts = line.split(';').map(str::trim);
            parts.find_map(|part| part.strip_prefix(what))?.parse::<usize>().ok()
        };
        (number("size:")? == size).then(|| number("offset:"))?
    }
}
