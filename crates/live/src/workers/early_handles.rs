//! What managing will need and only some may open, opened while this process still may.
//!
//! Services are started by root, and go on as a user of their own before they have much memory.
//! By then the kernel refuses them a userfaultfd that reports forks, and the run's directory is out
//! of their reach. So a process that changes its user while nothing is managed opens both
//! before. The handles are inert until something is registered; they lie in the program's own
//! table of descriptors, high up, and go to Terrace's threads when managing begins. A program
//! that closes them nevertheless is as one that had none. They are of this process's memory: a
//! forked child cannot use them.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::*};

use libc::c_int;

use crate::config::RunConfig;
use crate::decide::event_ring;
use crate::evict::quiet_window;
use crate::sys::limits;
use crate::sys::uffd::{Uffd, feature};

/// From this number on: the program's own next descriptors stay small ones.
const HIGH: c_int = 200;

/// The handles of the staging slots and of the program's memory; -1 if there are none.
static HELD: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
/// What they are, as the program may have closed and reused their numbers.
static INODES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// All features that the kernel has.
static FEATURES: AtomicU64 = AtomicU64::new(0);

/// Features of the staging slots' handle. No events: we discard the slots' frames ourselves.
/// And nobody is to wait for a frame in an empty slot: `mlockall` tries to have them all.
pub(crate) const STAGING: u64 = feature::MOVE | feature::SIGBUS;
/// Features of the program's memory's, but for tracking.
pub(crate) const MAIN: u64 = feature::EVENT_FORK
    | feature::EVENT_REMAP
    | feature::EVENT_REMOVE
    | feature::EVENT_UNMAP
    | feature::MOVE
    | feature::THREAD_ID;

/// Two handles, ready to register memory with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handles {
    pub staging: Uffd,
    pub main: Uffd,
    /// All features that the kernel has.
    pub features: u64,
}

impl Handles {
    /// Opens them. `more` gives further features of the main one, of those that the kernel has.
    pub(crate) fn open(more: impl FnOnce(u64) -> u64) -> Result<Self, i32> {
        let (staging, features) = open(STAGING)?;
        match open(MAIN | more(features)) {
            Ok((main, _)) => Ok(Self { staging, main, features }),
            Err(error) => {
                staging.close();
                Err(error)
            }
        }
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
    let Ok(handles) = limits::with_more_descriptors(|| Handles::open(|_| 0)) else { return false };
    let moved = [handles.staging, handles.main].map(move_up);
    for (i, fd) in moved.into_iter().enumerate() {
        INODES[i].store(inode(fd).unwrap_or(0), Relaxed);
        HELD[i].store(fd, Release);
    }
    FEATURES.store(handles.features, Release);
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

/// The descriptors, if both are still what they were.
pub(crate) fn held() -> Option<[c_int; 2]> {
    let held = [0, 1].map(|i| {
        let fd = HELD[i].load(Acquire);
        (fd >= 0 && inode(fd) == Some(INODES[i].load(Relaxed))).then_some(fd)
    });
    Some([held[0]?, held[1]?])
}

/// The handles, for the calling thread, whose table has them.
pub(crate) fn handles() -> Option<Handles> {
    let [staging, main] = held()?.map(Uffd::from_raw);
    Some(Handles { staging, main, features: FEATURES.load(Acquire) })
}

/// Closes them in the calling thread's table: managing has begun, or they are of a parent's memory.
pub fn forget() {
    for fd in held().into_iter().flatten() {
        Uffd::from_raw(fd).close();
    }
    for fd in &HELD {
        fd.store(-1, Release);
    }
}
