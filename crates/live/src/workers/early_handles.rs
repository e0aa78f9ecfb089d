//! What managing will need and only some may open, opened while this process still may.
//!
//! Services are started by root, and go on as a user of their own before they have much memory.
//! By then the kernel refuses them a userfaultfd that reports forks, and the run's directory is out
//! of their reach. So a process that changes its user while nothing is managed opens both
//! before. The handle is inert until something is registered; it lies in the program's own
//! table of descriptors, high up, and goes to Terrace's threads when managing begins. A program
//! that closes it nevertheless is as one that had none. It is of this process's memory: a
//! forked child cannot use it.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::*};

use libc::c_int;

use crate::config::RunConfig;
use crate::decide::event_ring;
use crate::evict::quiet_window;
use crate::sys::limits;
use crate::sys::uffd::{Uffd, feature};

/// From this number on: the program's own next descriptors stay small ones.
const HIGH: c_int = 200;

/// The handle of the program's memory; -1 if there is none.
static HELD: AtomicI32 = AtomicI32::new(-1);
/// What it is, as the program may have closed it and reused its number.
static INODE: AtomicU64 = AtomicU64::new(0);
/// All features that the kernel has.
static FEATURES: AtomicU64 = AtomicU64::new(0);

/// Features of the handle, but for tracking.
const FEATURES_USED: u64 = feature::EVENT_FORK
    | feature::EVENT_REMAP
    | feature::EVENT_REMOVE
    | feature::EVENT_UNMAP
    | feature::MOVE
    | feature::THREAD_ID;

/// A handle that is ready to register memory with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyHandle {
    pub uffd: Uffd,
    /// All features that the kernel has.
    pub features: u64,
}

impl ReadyHandle {
    /// Opens it. `more` gives further features, of those that the kernel has.
    pub(crate) fn open(more: impl FnOnce(u64) -> u64) -> Result<Self, i32> {
        // What the kernel has it says once for each handle, together with what this one is to have.
        let (asked, features) = open(feature::MOVE)?;
        asked.close();
        let (uffd, _) = open(FEATURES_USED | more(features))?;
        Ok(Self { uffd, features })
    }
}

fn open(features: u64) -> Result<(Uffd, u64), i32> {
    let (uffd, _) = Uffd::open()?;
    match uffd.handshake(features) {
        Ok(all) => Ok((uffd, all)),
        Err(error) => {
            uffd.close();
            Err(error)
        }
    }
}

/// Opens what is not open yet; whether it is all there. In a thread of the program's, with all
/// signals blocked.
pub fn prepare(config: &RunConfig) -> bool {
    if held().is_some() {
        return true;
    }
    let Ok(opened) = limits::with_more_descriptors(|| ReadyHandle::open(|_| 0)) else {
        return false;
    };
    let fd = move_up(opened.uffd);
    INODE.store(inode(fd).unwrap_or(0), Relaxed);
    HELD.store(fd, Release);
    FEATURES.store(opened.features, Release);
    quiet_window::prepare(&config.dir);
    if config.record {
        event_ring::prepare(config);
    }
    true
}

/// Gives a handle a high number, if there is room for one.
fn move_up(uffd: Uffd) -> c_int {
    // SAFETY: copies a descriptor of ours.
    let high = unsafe { libc::fcntl(uffd.raw(), libc::F_DUPFD_CLOEXEC, HIGH) };
    if high < 0 {
        return uffd.raw();
    }
    uffd.close();
    high
}

fn inode(fd: c_int) -> Option<u64> {
    // SAFETY: writes into a plain structure.
    unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        (libc::fstat(fd, &raw mut stat) == 0).then_some(stat.st_ino)
    }
}

/// The descriptor, if it still is what it was.
pub(crate) fn held() -> Option<c_int> {
    let fd = HELD.load(Acquire);
    (fd >= 0 && inode(fd) == Some(INODE.load(Relaxed))).then_some(fd)
}

/// The handle, for the calling thread, whose table has it.
pub(crate) fn handle() -> Option<ReadyHandle> {
    let uffd = Uffd::from_raw(held()?);
    Some(ReadyHandle { uffd, features: FEATURES.load(Acquire) })
}

/// Closes it in the calling thread's table: managing has begun, or it is of a parent's memory.
pub fn forget() {
    if let Some(fd) = held() {
        Uffd::from_raw(fd).close();
    }
    HELD.store(-1, Release);
}
