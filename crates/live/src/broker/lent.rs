//! What a process that is not managed has in common with its relatives. It says itself only how
//! much it has mapped, for it has no thread of ours to look at its page map; the kernel says how much
//! of it others have, too.

use terrace_core::Bytes;
use terrace_sampler::{ProcStat, proc_text};

/// After so many page faults it is looked again: fewer copies make little difference.
const MANY_FAULTS: u64 = 256;

/// As of the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lent {
    /// So much.
    pub(super) bytes: Bytes,
    /// Page faults that the process had taken then: each copy of a frame in common is one.
    faults: u64,
    looked: bool,
}

impl Lent {
    /// Looks, if the process may have changed much since the last time. A look walks its page
    /// tables: the more it has, the more must have happened.
    pub(super) fn look(&mut self, pid: u32) {
        let read = |file: &str| proc_text(format!("/proc/{pid}/{file}")).ok();
        let faults = read("stat").and_then(|text| minor_faults(&text)).unwrap_or(u64::MAX);
        let many = MANY_FAULTS.max(self.bytes.get() / 4096 / 64);
        if self.looked && faults.saturating_sub(self.faults) < many {
            return;
        }
        let bytes = read("smaps_rollup").and_then(|text| shared(&text)).unwrap_or(Bytes::ZERO);
        *self = Self { bytes, faults, looked: true };
    }
}

#[cfg(test)]
impl Lent {
    /// So much, whatever the process does.
    pub(super) const fn always(bytes: Bytes) -> Self {
        Self { bytes, faults: u64::MAX, looked: true }
    }
}

/// The tenth field of `/proc/PID/stat` (`proc_pid_stat(5)`).
fn minor_faults(stat: &str) -> Option<u64> {
    ProcStat::parse(stat)?.minor_faults()
}

/// Anonymous memory that others have mapped, too, or less: `/proc/PID/smaps_rollup`. What is
/// private may be a file's; and of the part in proportion (`Pss_Anon`) what is shared is a half at most.
fn shared(rollup: &str) -> Option<Bytes> {
    let field = |name: &str| -> Option<u64> {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    };
    let all = field("Anonymous:")?;
    let least = field("Private_Dirty:").into_iter().chain(field("Pss_Anon:")).min()?;
    Some(Bytes::kib(all.saturating_sub(least)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_is_what_is_anonymous_and_not_private() {
        let rollup = "7ffe rollup\nRss: 900 kB\nShared_Clean:  300 kB\nPrivate_Dirty:  120 kB\n\
                      Anonymous:         500 kB\n";

        assert_eq!(shared(rollup), Some(Bytes::kib(380)));
        let of_files = "Pss_Anon: 250 kB\nPrivate_Dirty: 990 kB\nAnonymous: 400 kB\n";
        assert_eq!(shared(of_files), Some(Bytes::kib(150)), "of 300 that two share");
        assert_eq!(shared("Rss: 900 kB\n"), None);
    }

    #[test]
    fn faults_are_found_behind_any_name() {
        assert_eq!(minor_faults("12 (a) b (c) S 1 2 3 4 5 6 77 8 9"), Some(77));
        assert_eq!(minor_faults("12 (a"), None);
    }

    #[test]
    fn what_a_process_has_from_its_parent_is_lent_until_it_writes() {
        const LEN: usize = 8 << 20;
        let at = crate::sys::map_private(LEN).expect("memory");
        let write = |bytes: usize| {
            for page in (0..bytes).step_by(4096) {
                // SAFETY: within the mapping.
                unsafe { ((at + page) as *mut u8).write_volatile(1) };
            }
        };
        write(LEN);
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        // SAFETY: the child writes to its memory and a pipe, and waits to be killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            write(LEN / 2);
            // SAFETY: as above.
            unsafe {
                libc::write(std::os::fd::AsRawFd::as_raw_fd(&writer), c"x".as_ptr().cast(), 1);
                libc::pause();
                libc::_exit(0);
            }
        }
        std::io::Read::read_exact(&mut reader, &mut [0]).expect("a byte");
        let mut lent = Lent::default();

        lent.look(child.cast_unsigned());

        // SAFETY: our own child.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, core::ptr::null_mut(), 0);
        }
        let (all, half) = (Bytes(LEN as u64), Bytes(LEN as u64 / 2));
        assert!(lent.bytes >= half, "{lent:?}");
        let others = Bytes::mib(64);
        assert!(lent.bytes < all + others, "{lent:?}");
    }
}
