//! A process's line in `/proc/PID/stat`, or a thread's in `/proc/PID/task/TID/stat`
//! (`proc_pid_stat(5)`).

use core::str::FromStr;
use std::fs;
use std::io;
use std::path::Path;

/// The fields of a line. They are numbered from 1, as the manual numbers them.
#[derive(Clone, Copy, Debug)]
pub struct ProcStat<'a> {
    /// From the third field on: the second is the name, which may contain anything, spaces and
    /// parentheses included, and ends at the last parenthesis.
    rest: &'a str,
}

/// The text of a file of the kernel's that has a process's name in it. A name ends after 15 bytes, also in the
/// middle of a letter: such a text is no UTF-8.
///
/// # Errors
/// The system's.
pub fn proc_text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = fs::read(path)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into()))
}

impl<'a> ProcStat<'a> {
    /// Of a line; `None` if it is none.
    pub fn parse(line: &'a str) -> Option<Self> {
        let (_, rest) = line.rsplit_once(')')?;
        Some(Self { rest })
    }
    /// A field from the third on; `None` if the line has fewer, or it is no such value.
    pub fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        self.rest.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
    }
    /// The state, a letter (`R`, `S`, `Z`, …).
    pub fn state(&self) -> Option<char> {
        self.field(3)
    }
    /// Whether it has ended and was not waited for.
    pub fn has_ended(&self) -> bool {
        matches!(self.state(), Some('Z' | 'X'))
    }
    /// The parent's number.
    pub fn parent(&self) -> Option<u32> {
        self.field(4)
    }
    /// The number of its process group.
    pub fn group(&self) -> Option<i32> {
        self.field(5)
    }
    /// The kernel's flags (`PF_EXITING`, …).
    pub fn flags(&self) -> Option<u64> {
        self.field(9)
    }
    /// Faults that needed no reading from a disk.
    pub fn minor_faults(&self) -> Option<u64> {
        self.field(10)
    }
    /// Processor time in user and kernel mode, in ticks of the clock.
    pub fn cpu_ticks(&self) -> Option<u64> {
        Some(self.field::<u64>(14)? + self.field::<u64>(15)?)
    }
    /// The same of the children that it has waited for.
    pub fn children_cpu_ticks(&self) -> Option<u64> {
        Some(self.field::<u64>(16)? + self.field::<u64>(17)?)
    }
    /// When it started, in ticks of the clock since the machine did.
    pub fn started(&self) -> Option<u64> {
        self.field(22)
    }
    /// How it is scheduled (`SCHED_IDLE`, …).
    pub fn policy(&self) -> Option<i32> {
        self.field(41)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "77 (a) Z (b c)) S 3 77 5 0 -1 4194560 120 0 2 0 40 2 7 1 20 0 1 0 9001 0 \
                        0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 1 0 5 0 0 0\n";

    /// The first 15 bytes of a name of 16.
    #[test]
    fn a_name_that_ends_within_a_letter_hides_no_process() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("stat");
        let line = [&b"77 (abcdefghijklmn\xc3"[..], &LINE.as_bytes()[14..]].concat();
        fs::write(&path, line).expect("a file");
        let text = proc_text(&path).expect("a text");
        assert_eq!(ProcStat::parse(&text).and_then(|stat| stat.started()), Some(9001));
    }

    #[test]
    fn fields_follow_the_last_parenthesis_of_the_name() {
        let stat = ProcStat::parse(LINE).expect("a line");
        assert_eq!(stat.state(), Some('S'));
        assert!(!stat.has_ended());
        assert_eq!((stat.parent(), stat.group()), (Some(3), Some(77)));
        assert_eq!(stat.flags(), Some(4_194_560));
        assert_eq!(stat.minor_faults(), Some(120));
        assert_eq!((stat.cpu_ticks(), stat.children_cpu_ticks()), (Some(42), Some(8)));
        assert_eq!(stat.started(), Some(9001));
        assert_eq!(stat.policy(), Some(5));
    }

    #[test]
    fn what_is_missing_is_said() {
        assert!(ProcStat::parse("no line").is_none());
        let short = ProcStat::parse("1 (x) Z 2").expect("a line");
        assert!(short.has_ended());
        assert_eq!((short.group(), short.cpu_ticks(), short.field::<u64>(1)), (None, None, None));
    }

    #[test]
    fn this_process_runs_and_has_a_parent() {
        let line = std::fs::read_to_string("/proc/self/stat").expect("procfs");
        let stat = ProcStat::parse(&line).expect("a line");
        assert!(!stat.has_ended());
        assert_eq!(stat.parent(), Some(std::os::unix::process::parent_id()));
    }
}
