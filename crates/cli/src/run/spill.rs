//! What `--spill` names: a file, or one that is memory.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use terrace_core::{Bytes, SpillTier};
use terrace_kernel::setup::Backing;
use terrace_live::config::RunConfig;

use crate::failure::Failure;

/// In front of a file that is to be mapped.
const MAPPED: &[u8] = b"dax:";

/// The value of `--spill`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpillFile {
    path: PathBuf,
    mapped: bool,
}

impl From<OsString> for SpillFile {
    fn from(value: OsString) -> Self {
        match value.as_bytes().strip_prefix(MAPPED) {
            Some(path) => Self { path: OsString::from_vec(path.to_vec()).into(), mapped: true },
            None => Self { path: value.into(), mapped: false },
        }
    }
}

impl From<&SpillTier> for SpillFile {
    fn from(tier: &SpillTier) -> Self {
        Self { path: tier.path.clone(), mapped: tier.mapped }
    }
}

impl SpillFile {
    /// The smallest file: it is written in parts, between which records move.
    pub(super) const LEAST: Bytes = Bytes::mib(1);

    /// Refuses what processes could not make files beside.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let shown = self.path.display();
        if self.path.as_os_str().is_empty() {
            let what =
                if self.mapped { "a file is missing behind `dax:`" } else { "the path is empty" };
            return Err(Failure::bad_input(format!("--spill: {what}")));
        }
        match std::fs::metadata(&self.path) {
            Ok(there) if there.is_dir() => {
                Err(Failure::bad_input(format!("--spill: {shown} is a directory")))
            }
            // A file beside it would lie in /dev, which is RAM.
            Ok(there) if there.file_type().is_char_device() => Err(Failure::bad_input(format!(
                "--spill: {shown} is a device; a file on a file system mounted with `-o dax` is \
                 needed (a DAX device is a tier: `--slow dax:DEVICE`)"
            ))),
            _ => self.can_be_made(),
        }
    }

    /// Whether files can be made beside it: tried, since rights do not tell of
    /// file systems that are full or may not be written.
    fn can_be_made(&self) -> Result<(), Failure> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = parent.unwrap_or(Path::new("."));
        tempfile::tempfile_in(directory).map(drop).map_err(|e| {
            let directory = directory.display();
            Failure::bad_input(format!("--spill: no file can be made in {directory}: {e}"))
        })
    }

    /// Enters it into what the program's processes are told.
    pub(super) fn configure(&self, config: &mut RunConfig) {
        // The program may change its directory before the file is made.
        config.spill = Some(super::absolute(&self.path));
        config.spill_mapped = self.mapped;
    }

    /// The same for the kernel engine, whose zram device writes to it.
    pub(super) fn backing(&self, size: Bytes) -> Result<Backing, Failure> {
        if self.mapped {
            return Err(Failure::bad_input(
                "--spill: with --engine kernel a file, and not one that is mapped (`dax:`)",
            ));
        }
        self.check()?;
        if size < Self::LEAST {
            return Err(Failure::bad_input(format!(
                "--spill-size: the file must be at least {}",
                Self::LEAST
            )));
        }
        let path = super::absolute(&self.path);
        let directory = path.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(Backing { directory, size })
    }

    /// The tier's name.
    pub(super) fn tier(&self) -> &'static str {
        if self.mapped { "dax" } else { "file" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_front_of_a_file_says_how_it_is_used() {
        let file = |text: &str| SpillFile::from(OsString::from(text));
        assert_eq!(file("a:b"), SpillFile { path: "a:b".into(), mapped: false });
        assert_eq!(file("dax:/mnt/a"), SpillFile { path: "/mnt/a".into(), mapped: true });
        assert!(file("dax:").check().is_err() && file("/").check().is_err());
        let Err(Failure::BadInput(empty)) = file("").check() else { panic!("it was accepted") };
        assert_eq!(empty, "--spill: the path is empty");
        assert!(file("dax:/dev/null").check().is_err(), "a device");
        assert!(file("dax:/nowhere/yet").check().is_err());
        assert!(file("dax:/tmp/a-file-that-is-not-there-yet").check().is_ok());
    }
}
