//! Limits that the process runs under (`setrlimit`, `ulimit`): what they leave to Terrace.

use std::io;

use crate::space::proc_maps;
use crate::sys;

type Resource = libc::__rlimit_resource_t;

/// A limit, soft and hard.
fn limit(resource: Resource) -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes into a plain structure.
    let known = unsafe { libc::getrlimit(resource, &raw mut limit) } == 0;
    known.then_some(limit)
}

/// How large a file this process may write (`RLIMIT_FSIZE`).
pub fn file_size_limit() -> u64 {
    limit(libc::RLIMIT_FSIZE).map_or(u64::MAX, |limit| limit.rlim_cur)
}

/// How many seconds of processor time this process may use (`RLIMIT_CPU`, `ulimit -t`); `None`
/// without a limit.
pub fn processor_time_limit() -> Option<u64> {
    limit(libc::RLIMIT_CPU).map(|limit| limit.rlim_cur).filter(|&most| most != libc::RLIM_INFINITY)
}

/// How much more private memory this process may map (`RLIMIT_AS`, `ulimit -v`; `RLIMIT_DATA`,
/// `ulimit -d`); `None` if neither has a limit, or what is mapped is not known.
pub fn address_space_left() -> Option<u64> {
    let bytes = |resource| limit(resource).map_or(libc::RLIM_INFINITY, |limit| limit.rlim_cur);
    let (space, data) = (bytes(libc::RLIMIT_AS), bytes(libc::RLIMIT_DATA));
    if space == libc::RLIM_INFINITY && data == libc::RLIM_INFINITY {
        return None;
    }
    let mut text = [0u8; 128];
    let length = sys::read_file(c"/proc/self/statm", &mut text)?;
    left(core::str::from_utf8(&text[..length]).ok()?, space, data)
}

/// Has all threads of a command share one heap where address space is limited: the C library would
/// reserve 64 MiB for each thread, and the last ones would get nothing at all.
pub fn share_one_heap_if_limited() {
    let is_limited = |resource| limit(resource).is_some_and(|l| l.rlim_cur != libc::RLIM_INFINITY);
    if is_limited(libc::RLIMIT_AS) || is_limited(libc::RLIMIT_DATA) {
        // SAFETY: sets a number of the C library's.
        #[cfg(target_env = "gnu")]
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
        }
    }
}

/// Whether a limit leaves less private memory than so many bytes.
pub fn is_short_of(len: u64) -> bool {
    let mut left = None;
    with_more_descriptors(|| left = address_space_left());
    left.is_some_and(|left| left < len)
}

/// Whether so many bytes of private memory are refused by a limit, and would not be if nothing of
/// Terrace's own were mapped.
pub fn would_fit_without_us(len: u64) -> bool {
    let (mut left, mut own) = (None, 0);
    with_more_descriptors(|| {
        left = address_space_left();
        own = 0;
        if left.is_some_and(|left| left < len) {
            proc_maps::for_each_mapping(|m| {
                own += if sys::is_own(m.start) { (m.end - m.start) as u64 } else { 0 };
            });
        }
    });
    left.is_some_and(|left| left < len && len - left <= own)
}

/// Whether the process has as many mappings as it may have (`vm.max_map_count`), with those of
/// Terrace's own.
pub fn has_all_mappings() -> bool {
    /// The kernel's limit where nobody has set one.
    const DEFAULT: u64 = 65_530;
    /// A request may make two of one mapping, and its own.
    const NEAR: u64 = 4;
    let mut all = false;
    with_more_descriptors(|| {
        let mut text = [0u8; 24];
        let length = sys::read_file(c"/proc/sys/vm/max_map_count", &mut text).unwrap_or(0);
        let most = core::str::from_utf8(&text[..length]).ok().and_then(|t| t.trim().parse().ok());
        let (mut count, mut own) = (0, 0);
        proc_maps::for_each_mapping(|m| {
            count += 1;
            own += u64::from(sys::is_own(m.start));
        });
        all = own > NEAR && count + NEAR >= most.unwrap_or(DEFAULT);
    });
    all
}

/// [`address_space_left`], of limits and a text of `/proc/PID/statm`.
fn left(statm: &str, space: u64, data: u64) -> Option<u64> {
    // The fields are the whole, resident, shared, text, libraries, and data with stacks.
    let bytes = |field| {
        let pages: u64 = statm.split_ascii_whitespace().nth(field)?.parse().ok()?;
        Some(pages * sys::PAGE as u64)
    };
    Some(space.saturating_sub(bytes(0)?).min(data.saturating_sub(bytes(5)?)))
}

/// Runs something that needs descriptors although the program's limit may
/// leave none: the limit is raised meanwhile, if we may.
pub fn with_more_descriptors<T>(work: impl FnMut() -> T) -> T {
    const ENOUGH: libc::rlim_t = 64;
    raised(libc::RLIMIT_NOFILE, ENOUGH, work)
}

/// Runs something that makes a file of so many bytes, of Terrace's own and in memory, although
/// the process may write none as large: the limit is raised meanwhile. Where it may not be,
/// nothing is tried (`EFBIG`): the kernel would send `SIGXFSZ`, which ends a program.
pub fn with_files_of<T>(len: u64, mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    raised(libc::RLIMIT_FSIZE, len, || {
        if file_size_limit() < len {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        work()
    })
}

/// Runs something while a limit is at least so high, if it may be raised so far. A limit that the
/// program sets meanwhile stays.
fn raised<T>(resource: Resource, enough: libc::rlim_t, mut work: impl FnMut() -> T) -> T {
    let Some(before) = swap(resource, None) else { return work() };
    if before.rlim_cur >= enough {
        return work();
    }
    let more = libc::rlimit { rlim_cur: enough, rlim_max: before.rlim_max.max(enough) };
    let Some(before) = swap(resource, Some(more)) else { return work() };
    let result = work();
    // What is not as we left it is the program's.
    let (mut ours, mut wanted) = (more, before);
    while let Some(found) = swap(resource, Some(wanted))
        && (found.rlim_cur, found.rlim_max) != (ours.rlim_cur, ours.rlim_max)
    {
        (ours, wanted) = (wanted, found);
    }
    result
}

/// Sets a limit, if one is given, and returns what it was, in one step; `None` if it may not be
/// set.
fn swap(resource: Resource, limit: Option<libc::rlimit>) -> Option<libc::rlimit> {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let new = limit.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: reads from and writes into plain structures.
    let done = unsafe { libc::prlimit(0, resource, new, &raw mut before) } == 0;
    done.then_some(before)
}

/// How many descriptors may be open.
pub fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes into a plain structure.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearer_of_both_limits_counts() {
        let statm = "1000 500 100 10 0 300 0\n";
        let page = sys::PAGE as u64;
        assert_eq!(left(statm, 1500 * page, libc::RLIM_INFINITY), Some(500 * page));
        assert_eq!(left(statm, libc::RLIM_INFINITY, 320 * page), Some(20 * page));
        assert_eq!(left(statm, 1500 * page, 320 * page), Some(20 * page));
        assert_eq!(left(statm, 1500 * page, 100 * page), Some(0));
        assert_eq!(left("1000 500", 1500 * page, 100 * page), None);
    }

    fn descriptors() -> (u64, u64) {
        let limit = swap(libc::RLIMIT_NOFILE, None).unwrap();
        (limit.rlim_cur, limit.rlim_max)
    }

    /// What a forked child finds: limits are a process's.
    fn in_a_process_of_its_own(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls nothing that could wait for a thread that it does not have.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let found = check();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!found)) };
        }
        let mut status = -1;
        // SAFETY: writes into a plain integer.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        ended == child && status == 0
    }

    #[test]
    fn a_limit_that_the_program_sets_while_ours_is_raised_stays() {
        let hard = descriptors().1;
        let (low, lower) = ((10.min(hard), hard), (7.min(hard), hard));
        let set = |(rlim_cur, rlim_max)| {
            let limit = libc::rlimit { rlim_cur, rlim_max };
            assert!(swap(libc::RLIMIT_NOFILE, Some(limit)).is_some());
        };
        assert!(in_a_process_of_its_own(|| {
            set(low);
            let raised = with_more_descriptors(descriptors);
            let back = descriptors();
            with_more_descriptors(|| set(lower));
            raised.0 == 64.min(hard) && back == low && descriptors() == lower
        }));
    }

    /// The kernel sends a signal that ends who makes a file longer than it may be.
    #[test]
    fn a_file_of_ours_may_be_longer_than_the_program_s_and_nothing_is_tried_in_vain() {
        let file = tempfile::tempfile().unwrap();
        let set = |resource, rlim_cur, rlim_max| {
            swap(resource, Some(libc::rlimit { rlim_cur, rlim_max })).is_some()
        };
        assert!(in_a_process_of_its_own(|| {
            let set = set(libc::RLIMIT_FSIZE, 4096, libc::RLIM_INFINITY);
            let made = with_files_of(1 << 20, || file.set_len(1 << 20)).is_ok();
            set && made && file_size_limit() == 4096
        }));
        assert!(in_a_process_of_its_own(|| {
            // SAFETY: gives up what the process may do beyond others.
            let plain = unsafe { libc::setuid(65_534) } == 0 || sys::errno() == libc::EPERM;
            let set = set(libc::RLIMIT_FSIZE, 4096, 8192);
            let refused = with_files_of(1 << 21, || file.set_len(1 << 21));
            plain && set && refused.is_err_and(|e| e.raw_os_error() == Some(libc::EFBIG))
        }));
    }
}
