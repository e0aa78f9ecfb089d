//! How segments get into the file: by `io_uring`, several at a time, while the
//! writer goes on; where that is refused, by `pwrite`.
//!
//! The crate `io-uring` makes the ring and its entries: the layout of the shared
//! rings is the kernel's, and it is the one that is widely used and kept.

use io_uring::{IoUring, opcode, types};

use crate::sys::{self, PAGE};

/// Segments that are written at once: enough to keep a disk busy.
pub(crate) const DEPTH: usize = 4;

#[derive(Clone, Copy)]
struct Job {
    from: usize,
    len: usize,
    at: u64,
}

/// Writes what is submitted.
pub(crate) struct Device {
    fd: i32,
    ring: Option<IoUring>,
    /// Whether the kernel has refused us to submit: from then on the ring is only
    /// looked at. An entry that lies in it unsubmitted must never be: its pages hold
    /// something else by then.
    refused: bool,
    /// What the ring has.
    jobs: [Option<Job>; DEPTH],
    /// What is done, with its error number or 0, and has not been asked for.
    done: [Option<i32>; DEPTH],
}

/// A ring, or the error number that the kernel refuses one with.
fn ring() -> Result<IoUring, i32> {
    let error = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::ENOSYS);
    // Not for children: they have no descriptor for it.
    IoUring::builder().dontfork().build(DEPTH as u32).map_err(error)
}

/// Whether the kernel lets us have a ring; else the error number.
pub(crate) fn probe() -> Result<(), i32> {
    ring().map(drop)
}

/// Whether files in this directory can be written past the page cache; else the
/// error number. Files that have no name are tried, so `EOPNOTSUPP` may be about that.
pub(crate) fn probe_direct(directory: &std::path::Path) -> Result<(), i32> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_TMPFILE | libc::O_DIRECT)
        .open(directory)
        .map(drop)
        .map_err(|e| e.raw_os_error().unwrap_or(libc::EINVAL))
}

impl Device {
    /// For a file.
    pub(crate) fn new(fd: i32) -> Self {
        Self { fd, ring: ring().ok(), refused: false, jobs: [None; DEPTH], done: [None; DEPTH] }
    }

    /// For a file that is written in another way.
    pub(crate) const fn none(fd: i32) -> Self {
        Self { fd, ring: None, refused: true, jobs: [None; DEPTH], done: [None; DEPTH] }
    }

    /// What is to be written under a number, which is free, has been, or was refused with
    /// an error number.
    pub(crate) fn finished(&mut self, number: usize, error: i32) {
        self.done[number] = Some(error);
    }

    /// Writes pages at an offset of the file.
    ///
    /// # Safety
    /// The pages stay as they are until [`Device::wait`] has returned this number,
    /// which is free.
    pub(crate) unsafe fn submit(&mut self, number: usize, pages: &[u8], at: u64) {
        let job = Job { from: pages.as_ptr() as usize, len: pages.len(), at };
        debug_assert!(job.len.is_multiple_of(PAGE) && self.is_free(number));
        let fd = types::Fd(self.fd);
        if let Some(ring) = self.ring.as_mut().filter(|_| !self.refused) {
            let entry = opcode::Write::new(fd, pages.as_ptr(), pages.len() as u32)
                .offset(at)
                .build()
                .user_data(number as u64);
            // SAFETY: the caller keeps the pages; the file stays open.
            let queued = unsafe { ring.submission().push(&entry) }.is_ok();
            if queued && ring.submit().is_ok_and(|n| n == 1) {
                self.jobs[number] = Some(job);
                return;
            }
            // Perhaps by a filter of system calls that the program has set.
            self.refused = true;
        }
        self.done[number] = Some(write_all(self.fd, job, 0));
    }

    /// Whether a number may be submitted.
    pub(crate) fn is_free(&self, number: usize) -> bool {
        self.jobs[number].is_none() && self.done[number].is_none()
    }

    /// Waits for a write; its number and error number or 0. `None` if there is none.
    pub(crate) fn wait(&mut self) -> Option<(usize, i32)> {
        loop {
            if let Some(number) = self.done.iter().position(Option::is_some) {
                return self.done[number].take().map(|error| (number, error));
            }
            if self.jobs.iter().all(Option::is_none) {
                return None;
            }
            self.reap();
        }
    }

    /// Takes what the ring has done, waiting for something.
    fn reap(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        if ring.completion().is_empty() && !self.refused {
            let waited = ring.submit_and_wait(1);
            self.refused = waited.is_err_and(|e| e.raw_os_error() != Some(libc::EINTR));
        }
        // What has begun goes on, and still reads our pages.
        while self.refused && ring.completion().is_empty() {
            sys::sleep(1_000_000);
        }
        for entry in ring.completion() {
            let number = entry.user_data() as usize;
            if let Some(job) = self.jobs[number].take() {
                let written = usize::try_from(entry.result()).unwrap_or(0);
                // A short write, or one that the ring cannot do: again, in full.
                self.done[number] =
                    Some(if written == job.len { 0 } else { write_all(self.fd, job, written) });
            }
        }
    }
}

/// Writes pages at an offset of a file by `pwrite`; 0 or an error number.
pub(crate) fn write_now(fd: i32, pages: &[u8], at: u64) -> i32 {
    write_all(fd, Job { from: pages.as_ptr() as usize, len: pages.len(), at }, 0)
}

/// Writes what is left of a job; 0 or an error number. Where the file system wants
/// no writes past the page cache after all, they go through it from then on.
fn write_all(fd: i32, job: Job, mut written: usize) -> i32 {
    written -= written % PAGE;
    while written < job.len {
        // SAFETY: the job's pages are there until it is done.
        let n = unsafe {
            libc::pwrite(
                fd,
                (job.from + written) as *const libc::c_void,
                job.len - written,
                (job.at + written as u64) as i64,
            )
        };
        match n {
            0 => return libc::ENOSPC,
            n if n > 0 => {
                // The rest of a page that was written in part is written again.
                let n = n as usize;
                let whole = if written + n == job.len { n } else { n - n % PAGE };
                if whole == 0 {
                    return libc::ENOSPC;
                }
                written += whole;
            }
            _ => match sys::errno() {
                libc::EINTR => {}
                libc::EINVAL if through_cache(fd) => {}
                error => return error,
            },
        }
    }
    0
}

/// Has reads and writes go through the page cache; false if they do already.
pub(crate) fn through_cache(fd: i32) -> bool {
    // SAFETY: asks for and sets flags of a descriptor of ours.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0
            && flags & libc::O_DIRECT != 0
            && libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_DIRECT) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    /// By the ring, and without one as where the kernel refuses it.
    fn devices(fd: i32) -> [Device; 2] {
        [Device::new(fd), Device::none(fd)]
    }

    #[test]
    fn what_is_submitted_is_in_the_file_once_it_is_done() {
        let file = tempfile::tempfile().expect("a file");
        for mut device in devices(file.as_raw_fd()) {
            let at = sys::map_private(DEPTH * PAGE).expect("memory");
            // SAFETY: our own mapping.
            let pages = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, DEPTH * PAGE) };
            for (n, page) in pages.chunks_exact_mut(PAGE).enumerate() {
                page.fill(n as u8 + 1);
                // SAFETY: they stay until all is done.
                unsafe { device.submit(n, page, (DEPTH - 1 - n) as u64 * PAGE as u64) };
                assert!(!device.is_free(n));
            }
            let mut done: Vec<_> = std::iter::from_fn(|| device.wait()).collect();
            done.sort_unstable();
            assert_eq!(done, [(0, 0), (1, 0), (2, 0), (3, 0)]);
            let mut first = [0];
            file.read_exact_at(&mut first, 0).expect("a byte");
            assert_eq!(first, [DEPTH as u8]);
            assert!((0..DEPTH).all(|n| device.is_free(n)));
        }
    }

    /// `/dev/full` refuses every write as a full disk does.
    #[test]
    fn a_full_disk_is_an_error_and_not_a_write() {
        let file = std::fs::File::options().write(true).open("/dev/full").expect("there");
        for mut device in devices(file.as_raw_fd()) {
            let at = sys::map_private(PAGE).expect("memory");
            // SAFETY: our own mapping, which stays.
            unsafe { device.submit(2, core::slice::from_raw_parts(at as *const u8, PAGE), 0) };
            assert_eq!(device.wait(), Some((2, libc::ENOSPC)));
            assert_eq!(device.wait(), None);
        }
    }
}
