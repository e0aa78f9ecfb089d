//! Small files of sysfs and procfs, read.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::DiscoverError;

/// Files below a root directory.
pub(super) struct Files(PathBuf);

impl Files {
    pub(super) fn below(root: &Path) -> Self {
        Self(root.to_owned())
    }

    pub(super) fn path(&self, relative: &str) -> PathBuf {
        self.0.join(relative)
    }

    fn io(&self, relative: &str, error: std::io::Error) -> DiscoverError {
        DiscoverError::Io { path: self.path(relative), error }
    }

    /// The error of a file whose content is not what the kernel writes there.
    pub(super) fn content(&self, relative: &str, what: impl Into<String>) -> DiscoverError {
        DiscoverError::Content { path: self.path(relative), what: what.into() }
    }

    pub(super) fn text(&self, relative: &str) -> Result<String, DiscoverError> {
        fs::read_to_string(self.path(relative)).map_err(|error| self.io(relative, error))
    }

    /// A file that not every kernel has.
    pub(super) fn optional(&self, relative: &str) -> Result<Option<String>, DiscoverError> {
        match fs::read_to_string(self.path(relative)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.io(relative, error)),
        }
    }

    /// Whether a list of processors, such as `0-3,8`, names any.
    pub(super) fn any_processor(&self, relative: &str) -> Result<bool, DiscoverError> {
        let text = self.text(relative)?;
        let list = text.trim();
        let number = |text: &str| text.parse::<u32>().ok();
        let is_range = |range: &str| match range.split_once('-') {
            Some((first, last)) => {
                number(first).zip(number(last)).is_some_and(|(first, last)| first <= last)
            }
            None => number(range).is_some(),
        };
        if list.is_empty() || list.split(',').all(is_range) {
            return Ok(!list.is_empty());
        }
        Err(self.content(relative, format!("`{list}` is no list of processors")))
    }

    /// A setting that is on or off; `None` where the kernel has no such file.
    pub(super) fn switch(&self, relative: &str) -> Result<Option<bool>, DiscoverError> {
        let Some(text) = self.optional(relative)? else { return Ok(None) };
        match text.trim() {
            // The kernel says `force` of page descriptors in the memory itself that waste some of it.
            "1" | "Y" | "y" | "true" | "force" => Ok(Some(true)),
            "0" | "N" | "n" | "false" => Ok(Some(false)),
            other => Err(self.content(relative, format!("`{other}` is neither on nor off"))),
        }
    }

    /// A hexadecimal number without a prefix, as `block_size_bytes` is written.
    pub(super) fn hex(&self, relative: &str) -> Result<u64, DiscoverError> {
        let text = self.text(relative)?;
        u64::from_str_radix(text.trim(), 16)
            .ok()
            .filter(|number| number.is_power_of_two())
            .ok_or_else(|| self.content(relative, format!("`{}` is no block size", text.trim())))
    }

    /// The numbers of entries such as `node0`, `node1`, in ascending order; none where there is
    /// no such directory.
    pub(super) fn numbered(&self, directory: &str, name: &str) -> Result<Vec<u64>, DiscoverError> {
        let number = |entry: &String| entry.strip_prefix(name)?.parse().ok();
        let mut numbers: Vec<u64> = self.entries(directory)?.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Names in a directory, sorted; none where there is no such directory.
    pub(super) fn entries(&self, directory: &str) -> Result<Vec<String>, DiscoverError> {
        let entries = match fs::read_dir(self.path(directory)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.io(directory, error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| self.io(directory, error))?;
            names.extend(entry.file_name().into_string().ok());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The last part of where a link leads; `None` where there is no link.
    pub(super) fn link_name(&self, relative: &str) -> Option<String> {
        let target = fs::read_link(self.path(relative)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }
}
