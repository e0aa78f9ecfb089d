//! Filters on system calls (seccomp), which a program puts on itself.
//!
//! A filter is a thread's, and of those that it creates. Terrace's threads have none, and
//! go on. With `SECCOMP_FILTER_FLAG_TSYNC` it is every thread's; ours could then do nothing
//! any more, so they leave before ([`crate::failsafe::give_up`]). A child that is forked by a thread
//! with a filter has it, too, in all threads that it would create: it is put on plain memory.

use std::fs::File;
use std::io::Read;

/// A thread's mode (`SECCOMP_MODE_*`), and how many filters it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Filters {
    mode: u32,
    count: u32,
}

impl Filters {
    /// From a thread's `status` file; `None` if it does not say. The count is there from
    /// Linux 5.9 on.
    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok())
        };
        Some(Self { mode: field("Seccomp:")?, count: field("Seccomp_filters:").unwrap_or(0) })
    }

    fn of(thread: &str) -> Option<Self> {
        // In one piece: each read costs a fork some microseconds.
        let mut text = Vec::with_capacity(4096);
        File::open(format!("/proc/{thread}/status")).ok()?.read_to_end(&mut text).ok()?;
        Self::parse(&String::from_utf8_lossy(&text))
    }
}

/// Whether a thread of this process may have filters that the calling one has not. A filter
/// that both have was there before the program was.
pub(crate) fn differ(thread: i32) -> bool {
    let Some(own) = Filters::of("thread-self") else { return false };
    Filters::of(&format!("self/task/{thread}")) != Some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_filters_is_told_from_one_with_two() {
        let none = "NoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n";
        let two = "NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t2\n";

        assert_eq!(Filters::parse(none), Some(Filters { mode: 0, count: 0 }));
        assert_eq!(Filters::parse(two), Some(Filters { mode: 2, count: 2 }));
        assert_eq!(Filters::parse("Name:\tx\n"), None, "a kernel without seccomp");
    }

    #[test]
    fn a_thread_is_like_itself_and_one_that_is_not_there_is_not() {
        // SAFETY: asks for this thread's number.
        let own = unsafe { libc::gettid() };

        assert!(!differ(own), "every child would be put on plain memory");
        assert!(differ(-1), "a thread that may not say who it is has a filter");
    }
}
