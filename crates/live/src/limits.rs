//! Limits that the process runs under (`setrlimit`, `ulimit`): what they leave to Terrace.

use crate::sys;

/// How large a file this process may write (`RLIMIT_FSIZE`).
pub fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes into a plain structure.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    if known { limit.rlim_cur } else { u64::MAX }
}

/// How much more this process may map (`RLIMIT_AS`, `ulimit -v`); `None` if that has no limit, or
/// what is mapped is not known.
pub fn address_space_left() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes into a plain structure.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
    if !known || limit.rlim_cur == libc::RLIM_INFINITY {
        return None;
    }
    let mut text = [0u8; 32];
    let length = sys::read_file(c"/proc/self/statm", &mut text)?;
    let text = core::str::from_utf8(&text[..length]).ok()?;
    let pages: u64 = text.split(' ').next()?.parse().ok()?;
    Some(limit.rlim_cur.saturating_sub(pages * sys::PAGE as u64))
}

/// Runs something that needs descriptors although the program's limit may
/// leave none: the limit is raised meanwhile, if we may. A limit that the program sets meanwhile
/// stays.
pub fn with_more_descriptors<T>(mut work: impl FnMut() -> T) -> T {
    const ENOUGH: libc::rlim_t = 64;
    let Some(before) = swap_descriptor_limit(None) else { return work() };
    let more = libc::rlimit { rlim_cur: ENOUGH, rlim_max: before.rlim_max.max(ENOUGH) };
    if before.rlim_cur >= ENOUGH {
        return work();
    }
    let Some(before) = swap_descriptor_limit(Some(more)) else { return work() };
    let result = work();
    // What is not as we left it is the program's.
    let (mut ours, mut wanted) = (more, before);
    while let Some(found) = swap_descriptor_limit(Some(wanted))
        && (found.rlim_cur, found.rlim_max) != (ours.rlim_cur, ours.rlim_max)
    {
        (ours, wanted) = (wanted, found);
    }
    result
}

/// Sets the limit of descriptors, if one is given, and returns what it was, in one step; `None`
/// if it may not be set.
fn swap_descriptor_limit(limit: Option<libc::rlimit>) -> Option<libc::rlimit> {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let new = limit.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: reads from and writes into plain structures.
    let done = unsafe { libc::prlimit(0, libc::RLIMIT_NOFILE, new, &raw mut before) } == 0;
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

    fn descriptors() -> (u64, u64) {
        let limit = swap_descriptor_limit(None).unwrap();
        (limit.rlim_cur, limit.rlim_max)
    }

    /// In a process of its own: limits are the process's.
    #[test]
    fn a_limit_that_the_program_sets_while_ours_is_raised_stays() {
        let hard = descriptors().1;
        let (low, lower) = ((10.min(hard), hard), (7.min(hard), hard));
        let set = |(rlim_cur, rlim_max)| {
            assert!(swap_descriptor_limit(Some(libc::rlimit { rlim_cur, rlim_max })).is_some());
        };
        // SAFETY: the child calls nothing that could wait for a thread that it does not have.
        let child = unsafe { libc::fork() };
        if child == 0 {
            set(low);
            let raised = with_more_descriptors(descriptors);
            let back = descriptors();
            with_more_descriptors(|| set(lower));
            let ok = raised.0 == 64.min(hard) && back == low && descriptors() == lower;
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!ok)) };
        }
        let mut status = 0;
        // SAFETY: writes into a plain integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
