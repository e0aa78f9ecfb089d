//! What the processes of a group have touched since they were last asked.
//!
//! The kernel marks pages that are accessed, and `/proc/PID/clear_refs` takes the marks off; what
//! is marked again was touched. The kernel's own lists lose by it: for a while they know less of
//! what is hot. A page that stays in a processor's TLB is not marked again: at most some
//! thousand small pages, or as many huge ones.

use std::fs;
use std::io;

use terrace_core::Bytes;
use terrace_live::attach::host::is_gone;
use terrace_live::numa::moves::{Advice, ProcessHandle};

use crate::files::{Root, read, write};

/// Takes the marks off all pages of a process.
///
/// # Errors
/// The system's.
pub fn forget(root: &Root, process: u32) -> io::Result<()> {
    write(&root.path(format!("/proc/{process}/clear_refs")), "1")
}

/// Makes all memory of a process equally old: takes the marks off, and has the kernel put the pages on the
/// list that it looks at first. Marked anew they stay there, and the kernel takes what is not (`MADV_COLD`;
/// `folio_check_references` of `mm/vmscan.c`).
///
/// # Errors
/// The system's; of kind `PermissionDenied` without `CAP_SYS_NICE`.
pub fn level(root: &Root, process: u32) -> io::Result<()> {
    forget(root, process)?;
    // A process that has ended and was not waited for has no mappings.
    let Ok(maps) = read(&root.path(format!("/proc/{process}/maps"))) else { return Ok(()) };
    let told = ProcessHandle::open(process)
        .and_then(|handle| handle.advise(Advice::Cold, &swapped_ranges(&maps)));
    match told {
        Err(e) if is_gone(&e) => Ok(()),
        told => told,
    }
}

/// Start and length of the mappings that go to swap, in a text of `/proc/PID/maps`.
fn swapped_ranges(maps: &str) -> Vec<(u64, u64)> {
    let heads = maps.lines().filter_map(head).filter(|head| can_be_swapped(head.path));
    heads.map(|head| (head.start, head.end.saturating_sub(head.start))).collect()
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
    /// kernel's to drop. Memory that is locked cannot leave, and counts as touched.
    pub fn parse(text: &str) -> Self {
        let (mut sum, mut one, mut counts) = (Self::default(), Self::default(), false);
        for line in text.lines() {
            let kib = |rest: &str| {
                let number = rest.trim_start().strip_suffix(" kB")?;
                number.parse().ok().map(Bytes::kib)
            };
            if let Some(resident) = line.strip_prefix("Rss:").and_then(kib) {
                one.resident = resident;
            } else if let Some(touched) = line.strip_prefix("Referenced:").and_then(kib) {
                one.touched = touched.min(one.resident);
            } else if let Some(locked) = line.strip_prefix("Locked:").and_then(kib) {
                if !locked.is_zero() {
                    one.touched = one.resident;
                }
            } else if let Some(head) = head(line) {
                sum.add(std::mem::take(&mut one), counts);
                counts = can_be_swapped(head.path);
            }
        }
        sum.add(one, counts);
        sum
    }

    /// Adds a mapping, if it counts.
    fn add(&mut self, one: Self, counts: bool) {
        if counts {
            self.touched += one.touched;
            self.resident += one.resident;
        }
    }
}

/// The line that a mapping begins with.
struct Head<'a> {
    start: u64,
    end: u64,
    /// Empty where it has none.
    path: &'a str,
}

/// The mapping that a line begins, if it begins one.
fn head(line: &str) -> Option<Head<'_>> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let address = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(Head {
        start: address(start)?,
        end: address(end)?,
        // Permissions, offset, device, inode; then the path, with blanks in front and perhaps within.
        path: rest.splitn(5, ' ').nth(4).unwrap_or("").trim_start(),
    })
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
    use crate::support::may_advise;

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

    /// What cannot leave is neither idle nor missing.
    #[test]
    fn locked_memory_counts_as_touched() {
        let locked = SMAPS.replace(
            "Referenced:          100 kB\n",
            "Referenced:          100 kB\nLocked:             4000 kB\nVmFlags: rd wr mr lo\n",
        );
        let expected = Marked { touched: Bytes::kib(4000 + 200 + 8), resident: Bytes::kib(4216) };
        assert_eq!(Marked::parse(&locked), expected);
        let unlocked = locked.replace("Locked:             4000 kB", "Locked:                0 kB");
        assert_eq!(Marked::parse(&unlocked), Marked::parse(SMAPS));
    }

    #[test]
    fn what_is_made_old_is_what_counts() {
        let expected: [(u64, u64); 3] =
            [(0x7f00_0000_0000, 4 << 20), (0x7f00_0050_0000, 1 << 20), (0x7f00_0070_0000, 1 << 20)];
        assert_eq!(swapped_ranges(SMAPS), expected);
    }

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

        // Here, for marks are those of the whole process, and tests run beside each other.
        if !may_advise() {
            return terrace_shown::is_missing("CAP_SYS_NICE");
        }
        level(&root, own).unwrap();
        let level = since(&root, own).unwrap();
        assert!(level.resident >= Bytes::mib(64), "{level:?}");
        assert!(level.touched < Bytes::mib(30), "{level:?}");
        let is_kept = |page: &[u8]| page[1..].iter().all(|&byte| byte == 1);
        assert!(memory.chunks(4096).all(is_kept), "content is kept");
    }
}
