//! Moving pages of another process between nodes, and giving them to swap.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use terrace_core::Abort;

use crate::sys::errno;

/// Where a page is, or why nobody can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On this node.
    Node(u32),
    /// Not in memory, or no page at all.
    Absent,
    /// There, but it does not move now: locked, pinned, shared with another process.
    Stuck,
    /// The target node has no room.
    NoRoom,
}

impl Place {
    /// What `move_pages` writes for one page.
    fn of_status(status: i32) -> Self {
        match u32::try_from(status) {
            Ok(node) => Self::Node(node),
            Err(_) => match -status {
                libc::ENOENT | libc::EFAULT => Self::Absent,
                libc::ENOMEM => Self::NoRoom,
                _ => Self::Stuck,
            },
        }
    }

    /// Why a move to a node did not happen; `None` if it did.
    pub fn abort(self, target: u32) -> Option<Abort> {
        match self {
            Self::Node(node) if node == target => None,
            Self::Node(_) | Self::Stuck => Some(Abort::Busy),
            Self::Absent => Some(Abort::Stale),
            Self::NoRoom => Some(Abort::NoMemory),
        }
    }
}

/// A status that the kernel never writes: of a page that it did not come to.
const UNTOLD: i32 = i32::MIN;

/// `linux/mempolicy.h`: pages that nobody else maps.
pub(crate) const MPOL_MF_MOVE: i32 = 1 << 1;

fn move_pages(
    process: u32,
    pages: &[u64],
    nodes: Option<&[i32]>,
    status: &mut [i32],
) -> Result<i64, i32> {
    debug_assert!(pages.len() == status.len() && nodes.is_none_or(|n| n.len() == pages.len()));
    let nodes = nodes.map_or(core::ptr::null(), <[i32]>::as_ptr);
    // SAFETY: three arrays of this length; addresses of another process are
    // numbers to us. Moving keeps content.
    let r = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            process as i32,
            pages.len(),
            pages.as_ptr(),
            nodes,
            status.as_mut_ptr(),
            MPOL_MF_MOVE,
        )
    };
    match r {
        0.. => Ok(r),
        // Of a process that has ended and has not been waited for, the kernel says that it is
        // one of its own threads: neither has memory. Nothing else here is invalid.
        _ if errno() == libc::EINVAL => Err(libc::ESRCH),
        _ => Err(errno()),
    }
}

/// Where pages of a process are, in their order.
pub fn locate(process: u32, pages: &[u64], places: &mut Vec<Place>) -> io::Result<()> {
    let mut status = vec![UNTOLD; pages.len()];
    move_pages(process, pages, None, &mut status).map_err(io::Error::from_raw_os_error)?;
    places.extend(status.into_iter().map(Place::of_status));
    Ok(())
}

/// Moves pages of a process to a node; adds where each is afterwards.
///
/// The kernel stops in the middle when a page refuses, and then says neither
/// which pages it had moved nor why the others were not; so where its answer is
/// not plain success, it is asked again where each page lies.
pub fn relocate(process: u32, pages: &[u64], node: u32, places: &mut Vec<Place>) -> io::Result<()> {
    let nodes = vec![node as i32; pages.len()];
    let mut status = vec![UNTOLD; pages.len()];
    let moved = move_pages(process, pages, Some(&nodes), &mut status);
    match moved {
        Ok(0) => {}
        Err(e @ (libc::EPERM | libc::ESRCH | libc::ENODEV | libc::EACCES)) => {
            return Err(io::Error::from_raw_os_error(e));
        }
        Ok(_) | Err(_) => {
            let reasons = status.clone();
            status.fill(UNTOLD);
            move_pages(process, pages, None, &mut status).map_err(io::Error::from_raw_os_error)?;
            // A reason that was told is worth more than "it is still there".
            for (now, reason) in status.iter_mut().zip(reasons) {
                if *now != node as i32 && reason < 0 && reason != UNTOLD {
                    *now = reason;
                }
            }
            if moved == Err(libc::ENOMEM) {
                for now in status.iter_mut().filter(|now| **now >= 0 && **now != node as i32) {
                    *now = -libc::ENOMEM;
                }
            }
        }
    }
    places.extend(status.into_iter().map(Place::of_status));
    Ok(())
}

/// A process that cannot be confused with another one of the same number.
#[derive(Debug)]
pub struct ProcessHandle(OwnedFd);

/// The most ranges of one system call.
const IOV_MAX: usize = 1024;

/// What is said about pages of another process; their content is kept whatever is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// They will be wanted: they are brought back from swap (`MADV_WILLNEED`).
    WillNeed = 3,
    /// They will not be wanted soon: where memory is short they go before others (`MADV_COLD`).
    Cold = 20,
    /// They are to go to swap now (`MADV_PAGEOUT`).
    PageOut = 21,
}

impl ProcessHandle {
    /// A handle of a process.
    pub fn open(process: u32) -> io::Result<Self> {
        // SAFETY: takes numbers and returns a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process as i32, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Asks the kernel to put ranges (start, length) into swap. What is not mapped any more,
    /// or locked, stays as it is. The content is kept whatever happens.
    pub fn page_out(&self, ranges: &[(u64, u64)]) -> io::Result<()> {
        self.advise(Advice::PageOut, ranges)
    }

    /// Says something about ranges (start, length). What is not mapped any more, or cannot be
    /// dealt with so, stays as it is.
    pub fn advise(&self, advice: Advice, ranges: &[(u64, u64)]) -> io::Result<()> {
        let vectors: Vec<libc::iovec> = ranges
            .iter()
            .map(|&(start, len)| libc::iovec {
                iov_base: start as *mut libc::c_void,
                iov_len: len as usize,
            })
            .collect();
        let mut rest = &vectors[..];
        while !rest.is_empty() {
            let part = &rest[..rest.len().min(IOV_MAX)];
            // SAFETY: addresses of another process; this advice keeps content.
            let r = unsafe {
                libc::syscall(
                    libc::SYS_process_madvise,
                    self.0.as_raw_fd(),
                    part.as_ptr(),
                    part.len(),
                    advice as i32,
                    0,
                )
            };
            if r < 0 {
                let error = io::Error::last_os_error();
                if !matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EINVAL)) {
                    return Err(error);
                }
            }
            // It ends at the first range that it cannot take, and says what it took before.
            let mut taken = usize::try_from(r).unwrap_or(0);
            let whole = part.iter().take_while(|range| {
                let it = taken >= range.iov_len;
                taken = taken.saturating_sub(range.iov_len);
                it
            });
            let whole = whole.count();
            rest = &rest[if whole < part.len() { whole + 1 } else { whole }..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{PAGE, map_private};

    /// One locked or unmapped range had an attachment end.
    #[test]
    fn ranges_that_cannot_go_to_swap_do_not_keep_others_from_it() {
        let at = map_private(16 * PAGE).expect("memory");
        // SAFETY: within the mapping, which nobody else uses.
        unsafe {
            core::slice::from_raw_parts_mut(at as *mut u8, 16 * PAGE).fill(7);
            assert_eq!(libc::munmap((at + 4 * PAGE) as *mut libc::c_void, 2 * PAGE), 0);
            assert_eq!(libc::mlock((at + 8 * PAGE) as *const libc::c_void, PAGE), 0);
        }
        let us = ProcessHandle::open(std::process::id()).expect("a handle");
        let ranges: Vec<_> =
            (0..16).step_by(2).map(|page| ((at + page * PAGE) as u64, 2 * PAGE as u64)).collect();

        us.page_out(&ranges).expect("what can go goes");
        us.page_out(&ranges[2..3]).expect("a range that is not mapped");
        us.page_out(&ranges[4..5]).expect("a range that is locked");

        // SAFETY: mapped, and written before.
        assert_eq!(unsafe { *((at + 15 * PAGE) as *const u8) }, 7);
    }

    /// Between its end and being waited for a process has no memory, for which `move_pages`
    /// says `EINVAL`: an attachment to a shell that starts programs ended with that.
    #[test]
    fn of_a_process_that_has_ended_there_are_no_pages() {
        let mut ended = std::process::Command::new("true").spawn().expect("a process");
        let stat = format!("/proc/{}/stat", ended.id());
        while !std::fs::read_to_string(&stat).expect("not waited for").contains(") Z ") {
            std::thread::yield_now();
        }

        let located = locate(ended.id(), &[0x1000], &mut Vec::new());
        let moved = relocate(ended.id(), &[0x1000], 0, &mut Vec::new());

        for error in [located.unwrap_err(), moved.unwrap_err()] {
            assert_eq!(error.raw_os_error(), Some(libc::ESRCH), "{error}");
        }
        ended.wait().expect("its status");
    }

    /// Works on one node as well: there, pages already are where they should be.
    #[test]
    fn each_page_of_a_batch_has_its_own_result() {
        let me = std::process::id();
        let at = map_private(8 * PAGE).expect("memory");
        for page in [0, 2, 5] {
            // SAFETY: within the mapping.
            unsafe { ((at + page * PAGE) as *mut u8).write(page as u8 + 1) };
        }
        let pages: Vec<u64> = (0..8).map(|page| (at + page * PAGE) as u64).collect();
        let mut places = Vec::new();

        match locate(me, &pages, &mut places) {
            Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => {
                terrace_shown::is_missing("move_pages");
                return;
            }
            result => result.expect("a question"),
        }
        let Place::Node(node) = places[0] else { panic!("{places:?}") };
        for (page, place) in places.iter().enumerate() {
            let there = [0, 2, 5].contains(&page);
            assert_eq!(matches!(place, Place::Node(_)), there, "{page}: {places:?}");
        }

        let mut after = Vec::new();
        relocate(me, &pages, node, &mut after).expect("a move to where they are");
        assert_eq!(after[2].abort(node), None);
        assert_eq!(after[1].abort(node), Some(Abort::Stale), "there is no page to move");
        // SAFETY: within the mapping.
        assert_eq!(unsafe { ((at + 5 * PAGE) as *const u8).read() }, 6, "content is kept");
    }

    #[test]
    fn reasons_are_told_apart_because_policies_act_on_them() {
        assert_eq!(Place::of_status(1).abort(1), None);
        assert_eq!(Place::of_status(0).abort(1), Some(Abort::Busy));
        assert_eq!(Place::of_status(-libc::EBUSY).abort(1), Some(Abort::Busy));
        assert_eq!(Place::of_status(-libc::EACCES).abort(1), Some(Abort::Busy));
        assert_eq!(Place::of_status(-libc::ENOENT).abort(1), Some(Abort::Stale));
        assert_eq!(Place::of_status(-libc::ENOMEM).abort(1), Some(Abort::NoMemory));
    }

    #[test]
    fn a_process_that_is_gone_is_an_error_and_not_a_result() {
        let mut places = Vec::new();
        // Numbers end at 2^22.
        let error = locate(1 << 23, &[0x1000], &mut places).expect_err("nobody");
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
        assert!(ProcessHandle::open(1 << 23).is_err());
    }
}
