//! Notifications of file systems: where eBPF cannot be had. They cost each open and close some
//! microseconds, and tell of no inode that goes.
//!
//! A notification has no time, and nothing of what was cached: both are as of when it is read, up to
//! some 20 ms later, and later where many wait. So a file may count as one that came back in place
//! though it was read from the disk just before, or as one that came back too soon though its pages
//! left just after. The kernel tells of what one process does to one file as one notification while
//! that waits: of two opens and a close, one open is left. It is the lease that keeps what is open.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use terrace_core::{Bytes, ContextIdentity};

use super::event::{FileEvent, Kind};
use crate::act::handle::{self, Mount, Mounts};
use crate::act::residency::residency;

/// A group of notifications.
#[derive(Debug)]
pub struct Fanotify {
    group: OwnedFd,
    waiting: VecDeque<FileEvent>,
    /// Types of file systems by device.
    marked: BTreeMap<u64, u64>,
    lacks: Vec<String>,
    lost: u64,
}

/// Bytes that are read at once: 170 events.
const READ: usize = 4096;

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Fanotify {
    /// Asks for notifications of these devices; of all file systems whose files can be acted on,
    /// if there are none.
    ///
    /// # Errors
    /// Why there can be none.
    pub fn new(devices: &[u64]) -> Result<Self, String> {
        let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        let files = libc::O_RDONLY | libc::O_NOATIME | libc::O_CLOEXEC | libc::O_LARGEFILE;
        // SAFETY: takes numbers; the descriptor is nobody else's.
        let group = unsafe {
            let fd = libc::fanotify_init(flags, files as u32);
            OwnedFd::from_raw_fd(
                checked(fd).map_err(|e| format!("fanotify_init: {e}{}", lack(&e)))?,
            )
        };
        let (mut marked, mut lacks) = (BTreeMap::new(), Vec::new());
        let all = Mounts::all().map_err(|e| format!("/proc/self/mountinfo: {e}"))?;
        for (device, Mount { path, magic, .. }) in all {
            if !(devices.is_empty() || devices.contains(&device)) {
                continue;
            }
            match mark(&group, &path) {
                Ok(()) => {
                    marked.insert(device, magic);
                }
                Err(e) => lacks.push(format!("{}: {e}{}", path.display(), lack(&e))),
            }
        }
        if marked.is_empty() {
            let why =
                if lacks.is_empty() { String::new() } else { format!(": {}", lacks.join("; ")) };
            return Err(format!("no file system that can be watched is mounted here{why}"));
        }
        if !super::is_first_process_namespace() {
            lacks.push(
                "whose files are that processes outside this process namespace use: fanotify \
                 does not name them here"
                    .to_owned(),
            );
        }
        lacks.push("inodes that the kernel drops: fanotify does not tell of them".to_owned());
        lacks.push(
            "files of other file systems than ext4 and XFS, and before Linux 6.5 what is used \
             through overlayfs: they are not watched, and left alone"
                .to_owned(),
        );
        Ok(Self { group, waiting: VecDeque::new(), marked, lacks, lost: 0 })
    }

    /// What is not known, and why.
    pub fn lacks(&self) -> &[String] {
        &self.lacks
    }

    /// Events that were lost since the queue was full, or the kernel could not open their files for this
    /// process: at least so many.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The next event that waits.
    pub fn next_event(&mut self) -> Option<FileEvent> {
        // What was read may all be of this process: behind it others may wait.
        while self.waiting.is_empty() && self.fill() {}
        self.waiting.pop_front()
    }

    /// Reads what waits, as far as there is room for it. Says whether there was anything.
    fn fill(&mut self) -> bool {
        let mut buffer = [0u8; READ];
        // SAFETY: the buffer has room for so much.
        let read = unsafe { libc::read(self.group.as_raw_fd(), buffer.as_mut_ptr().cast(), READ) };
        let Ok(length) = usize::try_from(read) else {
            // An event whose file cannot be opened, for want of descriptors say, is gone by that.
            let waits = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
            self.lost += u64::from(!waits.contains(&io::Error::last_os_error().kind()));
            return false;
        };
        self.take(&buffer[..length]);
        length > 0
    }

    /// Takes events as the kernel gives them.
    fn take(&mut self, mut rest: &[u8]) {
        // `struct fanotify_event_metadata`: length, version, …, mask, descriptor, process.
        while let Some(head) = rest.get(..24) {
            let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four"));
            let mask = u64::from_le_bytes(head[8..16].try_into().expect("eight"));
            let (descriptor, process) = (word(16) as i32, word(20));
            if mask & libc::FAN_Q_OVERFLOW != 0 || descriptor < 0 {
                self.lost += 1;
            } else {
                // SAFETY: the kernel has opened it for this process, and it is nobody else's.
                let file = unsafe { File::from_raw_fd(descriptor) };
                if process != std::process::id() {
                    let kinds = [
                        (libc::FAN_OPEN, Kind::Opened),
                        (libc::FAN_CLOSE_WRITE | libc::FAN_CLOSE_NOWRITE, Kind::Closed),
                    ];
                    // Events of one file that follow each other are told as one.
                    for (_, kind) in kinds.iter().filter(|(bits, _)| mask & bits != 0) {
                        let event = self.event(&file, *kind, process);
                        self.waiting.extend(event);
                    }
                }
            }
            rest = rest.get(word(0) as usize..).unwrap_or_default();
        }
    }

    fn event(&self, file: &File, kind: Kind, process: u32) -> Option<FileEvent> {
        let metadata = file.metadata().ok().filter(fs::Metadata::is_file)?;
        let (device, inode) = (metadata.dev(), metadata.ino());
        let command = fs::read(format!("/proc/{process}/comm")).unwrap_or_default();
        let mut name = [0; 16];
        let command = command.trim_ascii_end();
        let length = command.len().min(15);
        name[..length].copy_from_slice(&command[..length]);
        Some(FileEvent {
            kind,
            at: super::now(),
            file: ContextIdentity::File { device, inode, generation: handle::generation(file) },
            magic: self.marked.get(&device).copied().unwrap_or(0),
            pages: residency(file).map_or(0, |residency| residency.cached),
            length: Bytes(metadata.len()),
            extents: None,
            links: metadata.nlink() as u32,
            names: None,
            group: group_of(process),
            process,
            command: name,
        })
    }
}

/// The memory control group of a process, by its directory's inode number; 0 if it has ended.
fn group_of(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
    let find = |controller: &str| {
        text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let is_it = controllers.split(',').any(|one| one == controller);
            is_it.then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let in_one = find("memory").map(|path| PathBuf::from("/sys/fs/cgroup/memory").join(path));
    let in_two = || find("").map(|path| PathBuf::from("/sys/fs/cgroup").join(path));
    let path = in_one.or_else(in_two);
    path.and_then(|path| fs::metadata(path).ok()).map_or(0, |metadata| metadata.ino())
}

/// Which right is missing, where one is.
fn lack(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => " (it needs CAP_SYS_ADMIN)",
        _ => "",
    }
}

fn mark(group: &OwnedFd, path: &std::path::Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM;
    let mask = libc::FAN_OPEN | libc::FAN_CLOSE_WRITE | libc::FAN_CLOSE_NOWRITE;
    // SAFETY: the name ends, and lives during the call.
    let done = unsafe {
        libc::fanotify_mark(group.as_raw_fd(), flags, mask, libc::AT_FDCWD, name.as_ptr())
    };
    checked(done).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::IntoRawFd;

    use super::*;

    fn fanotify(group: File) -> Fanotify {
        let (waiting, marked, lacks) = (VecDeque::new(), BTreeMap::new(), Vec::new());
        Fanotify { group: group.into(), waiting, marked, lacks, lost: 0 }
    }

    #[test]
    fn events_that_cannot_be_had_are_counted_as_lost() {
        // Nothing can be read of a directory this way.
        let mut broken = fanotify(File::open(".").unwrap());
        assert!(broken.next_event().is_none());
        assert_eq!(broken.lost(), 1);
        let mut none = fanotify(File::open("/dev/null").unwrap());
        assert!(none.next_event().is_none());
        assert_eq!(none.lost(), 0, "nothing waits");
        let event = |mask: u64, descriptor: i32| {
            let mut event = [0u8; 24];
            event[..4].copy_from_slice(&24u32.to_le_bytes());
            event[8..16].copy_from_slice(&mask.to_le_bytes());
            event[16..20].copy_from_slice(&descriptor.to_le_bytes());
            event
        };
        none.take(&[event(libc::FAN_OPEN, -1), event(libc::FAN_Q_OVERFLOW, -1)].concat());
        assert_eq!((none.lost(), none.waiting.len()), (2, 0));
    }

    /// The worker opens a file for each look: what others do would wait behind that, and be lost.
    #[test]
    fn what_this_process_does_holds_up_nothing() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut fanotify = fanotify(File::from(OwnedFd::from(reader)));
        let mut tell = |process: u32| {
            let mut event = [0u8; 32];
            let file = tempfile::tempfile().unwrap();
            event[..4].copy_from_slice(&32u32.to_le_bytes());
            event[8..16].copy_from_slice(&libc::FAN_OPEN.to_le_bytes());
            event[16..20].copy_from_slice(&file.into_raw_fd().to_le_bytes());
            event[20..24].copy_from_slice(&process.to_le_bytes());
            writer.write_all(&event).unwrap();
        };
        // As much as is read at once.
        (0..READ / 32).for_each(|_| tell(std::process::id()));
        let other = std::os::unix::process::parent_id();
        tell(other);
        let event = fanotify.next_event().expect("it is there");
        assert_eq!((event.kind, event.process), (Kind::Opened, other));
    }
}
