//! What a group has in memory, and what came back to it.

use std::path::Path;

use terrace_core::Bytes;

use crate::files::read;
use crate::setup::group::{Group, Version};

/// Counts of a group. Those of pages only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All that it is charged for.
    pub charged: Bytes,
    /// Of it, files' pages.
    pub files: Bytes,
    /// What of it lies in swap.
    pub swapped: Bytes,
    /// Base pages of files that had left and were read again.
    pub files_came_back: u64,
    /// Base pages that came back from swap.
    pub program_came_back: u64,
}

impl Counts {
    /// What is no file's.
    pub fn program(&self) -> Bytes {
        self.charged - self.files
    }

    /// The counts of a group now.
    ///
    /// # Errors
    /// What this kernel does not count, or that the group is gone.
    pub fn of(group: &Group) -> Result<Self, String> {
        let stat = group.directory().join("memory.stat");
        let text = read(&stat).map_err(|e| e.to_string())?;
        let lacks = |what: &str| format!("{}: {what} is not counted", stat.display());
        let charged = group.charged().ok_or_else(|| lacks("what is charged"))?;
        let swapped = group.swapped().ok_or_else(|| lacks("what lies in swap"))?;
        parse(&text, group.version(), charged, swapped).map_err(lacks)
    }
}

/// Reads the text of `memory.stat`; the error is what it lacks.
fn parse(
    text: &str,
    version: Version,
    charged: Bytes,
    swapped: Bytes,
) -> Result<Counts, &'static str> {
    let field = |name: &'static str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse::<u64>().ok()).ok_or(name)
    };
    let [all, shared, file, anonymous] = match version {
        // With the groups below it.
        Version::One => [
            "total_cache",
            "total_shmem",
            "total_workingset_refault_file",
            "total_workingset_refault_anon",
        ],
        Version::Two => ["file", "shmem", "workingset_refault_file", "workingset_refault_anon"],
    };
    Ok(Counts {
        charged,
        // Shared memory is swapped as the program's own is.
        files: Bytes(field(all)?) - Bytes(field(shared).unwrap_or(0)),
        swapped,
        files_came_back: field(file)?,
        program_came_back: field(anonymous)?,
    })
}

/// Whether the kernel can be asked for files' pages of a group alone; why not.
pub(super) fn reclaims_files(group: &Group) -> Result<(), String> {
    let has = |file: &str| -> Result<(), String> {
        let path: &Path = &group.directory().join(file);
        path.exists().then_some(()).ok_or_else(|| format!("{} is missing", path.display()))
    };
    match group.version() {
        Version::One => has("memory.swappiness"),
        Version::Two => {
            has("memory.reclaim")?;
            group.probe_swappiness().map_err(|e| {
                format!("the kernel's memory.reclaim takes no swappiness= (Linux 6.9): {e}")
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_all_that_is_charged_to_the_group() {
        let one = "cache 1\nshmem 1\nworkingset_refault_file 9\ntotal_cache 8192\ntotal_shmem 4096\n\
                   total_workingset_refault_anon 3\ntotal_workingset_refault_file 5\n";
        let counts = parse(one, Version::One, Bytes(20_480), Bytes(7)).unwrap();
        assert_eq!((counts.files, counts.program()), (Bytes(4096), Bytes(16_384)));
        assert_eq!((counts.files_came_back, counts.program_came_back), (5, 3));
        let two =
            "anon 1\nfile 8192\nshmem 0\nworkingset_refault_anon 4\nworkingset_refault_file 6\n";
        let counts = parse(two, Version::Two, Bytes(20_480), Bytes(7)).unwrap();
        assert_eq!(counts.files, Bytes(8192));
        assert_eq!((counts.files_came_back, counts.program_came_back), (6, 4));
    }

    /// Before Linux 5.9 both kinds were one number.
    #[test]
    fn what_the_kernel_does_not_count_is_named() {
        let text = "file 8192\nshmem 0\nworkingset_refault 6\n";
        let lack = parse(text, Version::Two, Bytes::ZERO, Bytes::ZERO).unwrap_err();
        assert_eq!(lack, "workingset_refault_file");
    }
}
