//! What the processes of a group have touched since they were last asked.
//!
//! The kernel marks pages that are accessed, and `/proc/PID/clear_refs` takes the marks off; what
//! is marked again was touched. The kernel's own lists lose by it: for a while they know less of
//! what is hot. A page that stays in a processor's TLB is not marked again: at most some
//! thousand small pages, or as many huge ones.

use std::fs;
use std::io;

use terrace_core::Bytes;

use crate::files::{Root, read, write};

/// Takes the marks off all pages of a process.
///
/// # Errors
/// The system's.
pub fn forget(root: &Root, process: u32) -> io::Result<()> {
    write(&root.path(format!("/proc/{process}/clear_refs")), "1")
}

/// Anonymous memory of a process that has been touched since [`forget`], and all that it has.
///
/// # Errors
/// The system's.
pub fn since(root: &Root, process: u32) -> io::Result<Marked> {
    read(&root.path(format!("/proc/{process}/smaps"))).map(|text| Marked::parse(&text))
}

/// What is marked as touched, and all that there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marked {
    /// Touched.
    pub touched: Bytes,
    /// In DRAM.
    pub resident: Bytes,
}

impl Marked {
    /// Adds up the mappings of anonymous and shared memory in a text of `/proc/PID/smaps`; files' are the
    /// kernel's to drop.
    pub fn parse(text: &str) -> Self {
        let (mut sum, mut counts, mut resident) = (Self::default(), false, Bytes::ZERO);
        for line in text.lines() {
            let kib = |rest: &str| {
                let number = rest.trim_start().strip_suffix(" kB")?;
                number.parse().ok().map(Bytes::kib)
            };
            if let Some(rss) = line.strip_prefix("Rss:").and_then(kib) {
                resident = rss;
                if counts {
                    sum.resident += rss;
                }
            } else if let Some(touched) = line.strip_prefix("Referenced:").and_then(kib) {
                if counts {
                    sum.touched += touched.min(resident);
                }
            } else if let Some(path) = head(line) {
                counts = can_be_swapped(path);
            }
        }
        sum
    }
}

/// The path of a mapping, if the line begins one; empty where it has none.
fn head(line: &str) -> Option<&str> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let is_address = |text: &str| u64::from_str_radix(text, 16).is_ok();
    if !is_address(start) || !is_address(end) {
        return None;
    }
    // Permissions, offset, device, inode; then the path, with blanks in front and perhaps within.
    Some(rest.splitn(5, ' ').nth(4).unwrap_or("").trim_start())
}

/// Whether memory with this path goes to swap rather than to a file.
fn can_be_swapped(path: &str) -> bool {
    const NAMES: [&str; 6] =
        ["/dev/zero", "/memfd:", "/dev/shm/", "/SYSV", "anon_inode:", "/anon_hugepage"];
    path.is_empty()
        || path == "[heap]"
        || path.starts_with("[stack")
        || path.starts_with("[anon")
        || NAMES.iter().any(|name| path.starts_with(name))
}

/// Whether this process may ask about another at all.
pub fn may_look(process: u32) -> io::Result<()> {
    fs::File::options().write(true).open(format!("/proc/{process}/clear_refs")).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
555500000000-555500010000 r-xp 00000000 fd:00 1234                       /usr/bin/a b
Rss:                  64 kB
Referenced:           64 kB
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
Size:               4096 kB
Rss:                4000 kB
Referenced:          100 kB
Anonymous:          4000 kB
7f0000500000-7f0000600000 rw-p 00000000 00:00 0                          [heap]
Rss:                 200 kB
Referenced:          300 kB
7f0000700000-7f0000800000 rw-s 00000000 00:01 9                          /memfd:x y (deleted)
Rss:                  16 kB
Referenced:            8 kB
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
Rss:                   4 kB
Referenced:            4 kB
";

    #[test]
    fn files_pages_do_not_count() {
        let expected = Marked { touched: Bytes::kib(100 + 200 + 8), resident: Bytes::kib(4216) };
        assert_eq!(Marked::parse(SMAPS), expected);
        assert_eq!(Marked::parse(""), Marked::default());
    }

    /// What is parsed here has to be what this kernel writes.
    #[test]
    fn memory_that_was_touched_is_seen_and_memory_that_was_not_is_not() {
        let root = Root::machine();
        let own = std::process::id();
        let Ok(()) = may_look(own) else { return terrace_shown::is_missing("clear_refs") };
        let mut memory = vec![1u8; 64 << 20];
        forget(&root, own).unwrap();
        let before = since(&root, own).unwrap();
        for page in memory[..32 << 20].chunks_mut(4096) {
            page[0] += 1;
        }
        let after = since(&root, own).unwrap();
        std::hint::black_box(&memory);
        let grown = after.touched - before.touched.min(after.touched);
        assert!(after.resident >= Bytes::mib(64), "{after:?}");
        assert!(grown >= Bytes::mib(30), "{before:?} {after:?}");
        assert!(after.touched < Bytes::mib(60), "{before:?} {after:?}");
    }
}
