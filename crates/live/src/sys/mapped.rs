//! Files of atomics that processes share.
//!
//! Such a file has room in its file system before it is mapped. Who writes to a mapping where there is
//! none is killed (`SIGBUS`), and there is no error that could be handled: a full tmpfs ended the
//! command, and would end the program. What is long and seldom used as a whole has its room step by
//! step ([`Room`]).

use core::sync::atomic::{AtomicU64, Ordering::*};
use std::fs::File;
use std::io;

use crate::sys::{self, PAGE, limits};

/// What a file may be mapped as.
///
/// # Safety
/// Every field is an atomic integer, or an array or structure of such: any bytes are a value, and
/// that other processes write them at any time is no data race.
pub unsafe trait Atomics: Sized + 'static {}

/// Maps the beginning of a file, for good.
///
/// # Errors
/// The file is shorter than a `T`: who read beyond its end would be killed. Or the kernel's.
pub fn map<T: Atomics>(file: &File) -> io::Result<&'static T> {
    if file.metadata()?.len() < size_of::<T>() as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "shorter than what it is to hold"));
    }
    let at = super::map_shared_file(file, size_of::<T>())?;
    // SAFETY: a mapping of that size, aligned to pages, which nobody unmaps (but `Opened`, whose
    // maker says that it is its own); any bytes are a value.
    Ok(unsafe { &*at.cast::<T>() })
}

/// Gives a file the length of a `T`, and room in its file system for the first `room` bytes of that;
/// maps it, for good.
///
/// # Errors
/// There is no room ([`is_full`]), or the kernel's. The file may be longer then than it was.
pub fn make<T: Atomics>(file: &File, room: usize) -> io::Result<&'static T> {
    let (room, len) = (room as u64, size_of::<T>() as u64);
    limits::with_files_of(len, || {
        sys::take_room(file, room)?;
        file.set_len(len)
    })?;
    map(file)
}

/// Whether it is an error that there is no room in a file system.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// What a process says of it.
pub const NO_ROOM: &str = "there is no room in the directory of the run (XDG_RUNTIME_DIR)";

/// How much of a part of a mapped file has room in its file system, from the part's first byte on. Room
/// is taken as it is needed: most processes use little of a long ring. One writer at a time.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Room {
    bytes: AtomicU64,
    /// Questions that are answered by themselves, as there was no room a moment ago.
    pause: AtomicU64,
}

impl Room {
    /// So much is taken at once.
    const STEP: usize = 64 << 10;
    /// So many questions in a row are not asked after one that was answered by no.
    const PAUSE: u64 = 1 << 10;

    /// Whether there is known to be room for so many bytes. Also for a reader: what has no room is not
    /// to be read.
    pub fn reaches(&self, bytes: usize) -> bool {
        bytes as u64 <= self.bytes.load(Acquire)
    }

    /// Takes room for so many bytes of a part that is mapped at an address; false if there is none.
    pub fn take(&self, (start, len): (usize, usize), bytes: usize) -> bool {
        if self.reaches(bytes) {
            return true;
        }
        let pause = self.pause.load(Relaxed);
        if pause > 0 {
            self.pause.store(pause - 1, Relaxed);
            return false;
        }
        let known = self.bytes.load(Relaxed) as usize;
        let next = bytes.max(known + Self::STEP).min(len);
        let (from, to) = ((start + known) & !(PAGE - 1), (start + next).next_multiple_of(PAGE));
        let is_there = sys::can_be_written(from, to - from);
        if is_there {
            self.bytes.store(next as u64, Release);
        } else {
            self.pause.store(Self::PAUSE, Relaxed);
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Four pages.
    #[repr(C)]
    struct Words([AtomicU64; 4 * PAGE / 8]);

    // SAFETY: an array of atomic integers.
    unsafe impl Atomics for Words {}

    /// A file in memory that has a name's place and no name.
    fn file() -> File {
        tempfile::tempfile_in("/dev/shm").expect("a tmpfs")
    }

    /// It had a length and no room, and who wrote to it in a full tmpfs was killed.
    #[test]
    fn what_is_mapped_has_room_in_its_file_system() {
        let file = file();
        let words = make::<Words>(&file, 2 * PAGE).expect("memory");
        let made = file.metadata().expect("a file");
        assert_eq!(made.len(), 4 * PAGE as u64);
        assert!(made.blocks() * 512 >= 2 * PAGE as u64, "{} blocks", made.blocks());
        words.0[0].store(7, Relaxed);
        let again = make::<Words>(&file, size_of::<Words>()).expect("memory");
        assert!(file.metadata().expect("a file").blocks() * 512 >= 4 * PAGE as u64);
        assert_eq!(again.0[0].load(Relaxed), 7, "what was there");
    }

    /// A file that ends refuses as a file system does that is full.
    #[test]
    fn room_that_is_not_there_is_no_end_of_the_process() {
        const LEN: usize = 4 * Room::STEP;
        let file = file();
        file.set_len(LEN as u64).expect("a file");
        let start = sys::map_shared_file(&file, LEN).expect("a mapping") as usize;
        file.set_len(Room::STEP as u64).expect("a file");
        let room = Room::default();
        let take = |bytes| room.take((start, LEN), bytes);
        assert!(!room.reaches(1));
        assert!(take(1) && room.reaches(Room::STEP), "it is taken in steps");
        assert!(!take(Room::STEP + 1) && !room.reaches(Room::STEP + 1));

        file.set_len(LEN as u64).expect("a file");
        let asked = (0..2 * Room::PAUSE).find(|_| take(Room::STEP + 1));
        assert_eq!(asked, Some(Room::PAUSE), "the kernel is not asked each time");
        assert!(take(LEN) && room.reaches(LEN) && !room.reaches(LEN + 1));
        // SAFETY: nobody else knows of it.
        unsafe { sys::munmap(start, LEN).expect("mapped") };
    }
}
