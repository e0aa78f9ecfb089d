//! What of the files that programs use has left lately, and is still out.
//!
//! When a page of a file leaves for want of room, the kernel keeps in its place how many had left
//! before it. `cachestat(2)` counts those of which so little has left since that they would be in
//! memory if it had what is in use now (`Documentation/mm/workingset`, `mm/workingset.c`). That is what
//! more room for files could hold; a stream that was read once is not in it for long.
//!
//! The files are the programs', and so are their names. So Terrace touches only
//! files of local file systems, holds a file without opening it (`O_PATH`) until it is known to be a
//! regular one, and leaves files with leases alone. A look has a bound.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use terrace_core::{Bytes, Nanos};

/// Files that are looked at, at most.
const FILES: usize = 512;
/// Descriptors and mappings that a look goes through, at most; the next one goes on from there.
const ENTRIES: usize = 4096;
/// File systems whose files lie on disks of this machine: others may keep whoever touches them
/// waiting for ever, and have no pages that the kernel's count of what left is about.
const LOCAL: [&str; 14] = [
    "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "iso9660", "ntfs3",
    "overlay", "squashfs", "vfat", "xfs",
];
/// File systems that hold no files: what is in them is memory of programs, or the kernel's.
const NO_FILES: [&str; 8] =
    ["devpts", "devtmpfs", "hugetlbfs", "mqueue", "proc", "ramfs", "sysfs", "tmpfs"];
/// How long a file is looked at after the last process has closed it: at least so long, and until a
/// round has not found it any more.
const KNOWN_FOR: Nanos = Nanos::seconds(60);

/// The answer of `cachestat(2)`, in pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

impl CacheStat {
    /// What has left lately and is out, of pages of this size.
    fn absent(&self, page: Bytes) -> Bytes {
        page * self.recently_evicted
    }
}

/// What a page of a file takes on this machine: 64 KiB on some.
fn page() -> Bytes {
    // SAFETY: it asks for a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Bytes(u64::try_from(size).expect("there are pages"))
}

/// `SYS_cachestat`, which is one number on all architectures.
const CACHESTAT: libc::c_long = 451;

/// `cachestat(2)` of a whole file, Linux 6.5.
fn cachestat(file: &File) -> io::Result<CacheStat> {
    let (range, mut stat) = ([0u64; 2], CacheStat::default());
    // SAFETY: both structures are of the sizes that the call takes, and live during it.
    let done =
        unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), &raw mut stat, 0) };
    if done == 0 { Ok(stat) } else { Err(io::Error::last_os_error()) }
}

/// Why this kernel cannot be asked; nothing if it can.
///
/// # Errors
/// The system's.
pub fn supported() -> Result<(), String> {
    let own = File::open("/proc/self/exe").map_err(|e| format!("/proc/self/exe: {e}"))?;
    match cachestat(&own) {
        // A file of somebody else's may not be asked about.
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(e) => Err(format!(
            "the kernel does not tell what has left of a file (cachestat, Linux 6.5): {e}"
        )),
    }
}

/// Which file: the device's number, and its own there.
type Which = (u64, u64);

/// A file that is looked at.
#[derive(Debug)]
struct Known {
    /// A descriptor or mapping of a process, which leads to the very file, also to one without a
    /// name.
    way: PathBuf,
    /// By which it can be opened when nobody has it open.
    path: PathBuf,
    /// When a process had it open last.
    used: Nanos,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// What has left lately and is out.
    pub absent: Bytes,
    /// Files that were looked at.
    pub files: usize,
    /// Files that could not be.
    pub unread: usize,
    /// Devices that they lie on.
    pub devices: Vec<u64>,
}

/// Files of programs.
#[derive(Debug, Default)]
pub struct Absent {
    known: BTreeMap<Which, Known>,
    round: Round,
}

/// All that processes have open and mapped, gone through once, over as many looks as that takes.
#[derive(Debug, Default)]
struct Round {
    /// Directories whose entries are still to be gone through.
    ahead: Vec<PathBuf>,
    /// The one that is gone through.
    here: Option<fs::ReadDir>,
    /// When it began, and when the one before did.
    begun: Nanos,
    before: Nanos,
    /// What could not be learnt of in this round, and files that were too many.
    unread: usize,
    beyond: BTreeSet<Which>,
    /// How many files were not learnt of in the last round as a whole.
    last: usize,
}

/// What a descriptor or mapping leads to.
enum Led {
    /// A file that may be looked at.
    To(Which, PathBuf),
    /// Nothing that counts: no file, or none any more.
    Nowhere,
    /// A file of which nothing can be learnt.
    Unread,
}

/// What kind of file system is at a place: that of the longest mount point that it is below.
fn kind_at<'a>(mounts: &'a [(PathBuf, String)], path: &Path) -> Option<&'a str> {
    let above = mounts.iter().filter(|(at, _)| path.starts_with(at));
    // Of those at the same place the last one is on top.
    above.max_by_key(|(at, _)| at.components().count()).map(|(_, kind)| kind.as_str())
}

/// Reads the text of `mountinfo`: mount points, and kinds of file systems.
fn mounts(text: &str) -> Vec<(PathBuf, String)> {
    let plain = |at: &str| {
        let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
        escapes.iter().fold(at.to_owned(), |at, (code, plain)| at.replace(code, plain))
    };
    let line = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        Some((plain(mount.split(' ').nth(4)?).into(), system.split(' ').next()?.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// Files that somebody has a lease on for writing, by their numbers, from the text of `/proc/locks`: to
/// open one would take that away. Their devices have other numbers there on some file systems.
fn leased(text: &str) -> BTreeSet<u64> {
    let line = |line: &str| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let is_lease = fields.contains(&"LEASE") || fields.contains(&"DELEG");
        let file = fields.iter().find_map(|field| field.splitn(3, ':').nth(2));
        if is_lease { file?.parse().ok() } else { None }
    };
    text.lines().filter_map(line).collect()
}

/// Whether nothing is known of a file because it is not there any more.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Holds what a descriptor or a mapping of a process leads to, without opening it.
fn hold(way: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(way)
}

/// `struct open_how` of `openat2(2)`.
#[repr(C)]
struct How {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// Holds what has a name now, without opening it or following a link, which somebody may have put
/// there.
fn hold_named(path: &Path) -> io::Result<File> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let flags = u64::from(flags.unsigned_abs());
    let how = How { flags, mode: 0, resolve: libc::RESOLVE_NO_SYMLINKS };
    // SAFETY: a string and a structure that live during the call, and the structure's size; the
    // descriptor is ours.
    unsafe {
        let fd = libc::syscall(
            libc::SYS_openat2,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw const how,
            size_of::<How>(),
        );
        match i32::try_from(fd) {
            Ok(fd) if fd >= 0 => Ok(File::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Which file it is that is held, if it is a regular one.
fn identity(held: &File) -> Option<Which> {
    let is = held.metadata().ok()?;
    is.is_file().then(|| (is.dev(), is.ino()))
}

/// Whether a file's pages are memory that is swapped, as those of shared memory are, and counted on the
/// program's side. `cachestat` says of those in swap that they have left.
fn is_memory(held: &File) -> bool {
    // SAFETY: plain data, which the call fills.
    let mut of: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor of ours, and a structure that lives during the call.
    let done = unsafe { libc::fstatfs(held.as_raw_fd(), &raw mut of) };
    // The type's width is the architecture's.
    let magic = of.f_type as u64;
    done == 0 && [libc::TMPFS_MAGIC as u64, libc::HUGETLBFS_MAGIC as u64].contains(&magic)
}

/// Opens a regular file that is held, so that nobody waits for it and nothing of it changes.
fn open(held: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    let open = |flags: i32| {
        OpenOptions::new()
            .read(true)
            .custom_flags(flags | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(&path)
    };
    // Only a file's owner may leave its times alone.
    open(libc::O_NOATIME).or_else(|_| open(0))
}

/// Follows a descriptor or a mapping. What it leads to is not touched before its name has told that
/// it is a local file's.
fn follow(way: &Path, mounts: &[(PathBuf, String)]) -> Led {
    let path = match fs::read_link(way) {
        Ok(path) => path,
        Err(e) if is_gone(&e) => return Led::Nowhere,
        Err(_) => return Led::Unread,
    };
    // Sockets and pipes have no path, and memory files (memfd) none that is anywhere.
    if !path.is_absolute() || path.as_os_str().as_bytes().starts_with(b"/memfd:") {
        return Led::Nowhere;
    }
    match kind_at(mounts, &path) {
        Some(kind) if LOCAL.contains(&kind) => {}
        Some(kind) if NO_FILES.contains(&kind) => return Led::Nowhere,
        _ => return Led::Unread,
    }
    match hold(way) {
        Ok(held) => match identity(&held) {
            Some(which) if !is_memory(&held) => Led::To(which, path),
            _ => Led::Nowhere,
        },
        Err(e) if is_gone(&e) => Led::Nowhere,
        Err(_) => Led::Unread,
    }
}

impl Round {
    /// The next of what these processes have open or mapped; `None` at the end of the round.
    fn next(&mut self) -> Option<PathBuf> {
        loop {
            if let Some(entry) = self.here.as_mut().and_then(Iterator::next) {
                // It has ended meanwhile.
                let Ok(entry) = entry else { continue };
                return Some(entry.path());
            }
            self.here = None;
            let directory = self.ahead.pop()?;
            match fs::read_dir(&directory) {
                Ok(entries) => self.here = Some(entries),
                Err(e) if is_gone(&e) => {}
                Err(_) => self.unread += 1,
            }
        }
    }

    /// Whether all was gone through.
    fn is_over(&self) -> bool {
        self.here.is_none() && self.ahead.is_empty()
    }

    fn begin(&mut self, now: Nanos, processes: &[u32]) {
        (self.before, self.begun) = (self.begun, now);
        let of = |process: &u32| ["map_files", "fd"].map(|name| format!("/proc/{process}/{name}"));
        self.ahead = processes.iter().rev().flat_map(of).map(PathBuf::from).collect();
        (self.unread, self.beyond) = (0, BTreeSet::new());
    }

    /// Files of which nothing was learnt, by this round or the last one as a whole.
    fn unread(&self) -> usize {
        (self.unread + self.beyond.len()).max(self.last)
    }
}

impl Absent {
    /// Looks at the files that these processes have open or mapped, and had lately. Of very many
    /// descriptors and mappings it goes through a part, and at the next look through the next one.
    pub fn look(&mut self, now: Nanos, processes: &[u32]) -> Found {
        self.look_at(now, processes, ENTRIES)
    }

    fn look_at(&mut self, now: Nanos, processes: &[u32], entries: usize) -> Found {
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        if self.round.is_over() {
            self.round.begin(now, processes);
        }
        // Processes see mounts of their own.
        let mut seen: Option<(PathBuf, Vec<(PathBuf, String)>)> = None;
        for _ in 0..entries {
            let Some(way) = self.round.next() else {
                self.round.last = self.round.unread + self.round.beyond.len();
                break;
            };
            let process = way.ancestors().nth(2).unwrap_or(&way).to_owned();
            let mounts = match &mut seen {
                Some((of, mounts)) if *of == process => mounts,
                seen => {
                    let found = mounts(&read(process.join("mountinfo")));
                    &mut seen.insert((process, found)).1
                }
            };
            match follow(&way, mounts) {
                Led::To(which, path) => {
                    if self.known.len() < FILES || self.known.contains_key(&which) {
                        self.known.insert(which, Known { way, path, used: now });
                    } else if self.round.beyond.len() < ENTRIES {
                        self.round.beyond.insert(which);
                    }
                }
                Led::Nowhere => {}
                Led::Unread => self.round.unread += 1,
            }
        }
        // What this round has not come to yet is as open as it was in the last one.
        let before = self.round.before;
        self.known.retain(|_, known| now < known.used + KNOWN_FOR || known.used >= before);
        let mut found = Found { unread: self.round.unread(), ..Found::default() };
        let leased = leased(&read("/proc/locks".into()));
        let page = page();
        for (file, known) in &self.known {
            let is_it = |held: &File| identity(held) == Some(*file);
            // By now it may lead elsewhere.
            let leads = fs::read_link(&known.way).is_ok_and(|path| path == known.path);
            let held = leads.then(|| hold(&known.way).ok()).flatten().filter(is_it);
            // It may have another name, or none, since it was closed.
            let Some(held) = held.or_else(|| hold_named(&known.path).ok().filter(is_it)) else {
                continue;
            };
            if leased.contains(&file.1) {
                found.unread += 1;
                continue;
            }
            match open(&held).and_then(|file| cachestat(&file)) {
                Ok(stat) => {
                    found.files += 1;
                    found.absent += stat.absent(page);
                    if !found.devices.contains(&file.0) {
                        found.devices.push(file.0);
                    }
                }
                Err(_) => found.unread += 1,
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// An open file is found, one that was closed is remembered for a while, and another one under
    /// its name is not taken for it.
    #[test]
    fn files_are_known_while_they_are_open_and_a_while_after() {
        if supported().is_err() {
            return;
        }
        let directory = tempfile::tempdir_in(".").unwrap();
        let path = directory.path().join("file");
        let mut file = File::create(&path).unwrap();
        file.write_all(&[1; 8192]).unwrap();
        let which = identity(&file).unwrap();
        let (mut absent, me) = (Absent::default(), [std::process::id()]);
        let found = absent.look(Nanos::ZERO, &me);
        assert!(found.files > 0, "{found:?}");
        assert!(found.devices.contains(&which.0));
        assert_eq!(absent.known[&which].path, fs::canonicalize(&path).unwrap());
        drop(file);
        absent.look(Nanos::seconds(59), &me);
        assert!(absent.known.contains_key(&which), "closed, and remembered");
        // Those of other tests come and go.
        absent.known.retain(|file, _| *file == which);
        assert_eq!(absent.look(Nanos::seconds(59), &[]).files, 1);
        fs::rename(&path, directory.path().join("kept")).unwrap();
        File::create(&path).unwrap();
        assert_eq!(absent.look(Nanos::seconds(59), &[]).files, 0);
        absent.look(Nanos::seconds(61), &[]);
        assert!(!absent.known.contains_key(&which), "it was used last a minute ago");
    }

    /// The kernel counts pages, which are not of one size on all machines.
    #[test]
    fn what_has_left_is_counted_in_pages_of_the_machine() {
        let stat = CacheStat { recently_evicted: 3, ..CacheStat::default() };
        assert_eq!(stat.absent(Bytes::kib(64)), Bytes::kib(192));
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let of_kernel = maps.lines().find_map(|line| line.strip_prefix("KernelPageSize:")).unwrap();
        let kib = of_kernel.trim().trim_end_matches(" kB").parse().unwrap();
        assert_eq!(page(), Bytes::kib(kib));
    }

    /// Of very many descriptors one round takes minutes.
    #[test]
    fn an_open_file_is_known_until_a_round_has_not_found_it() {
        if supported().is_err() {
            return;
        }
        let directory = tempfile::tempdir_in(".").unwrap();
        let file = File::create(directory.path().join("file")).unwrap();
        let which = identity(&file).unwrap();
        let (mut absent, me) = (Absent::default(), [std::process::id()]);
        absent.look(Nanos::ZERO, &me);
        assert!(absent.known.contains_key(&which));
        absent.look_at(Nanos::seconds(90), &me, 0);
        assert!(absent.known.contains_key(&which), "the second round has not come to it");
        drop(file);
        absent.look(Nanos::seconds(180), &me);
        absent.look(Nanos::seconds(181), &me);
        assert!(!absent.known.contains_key(&which), "the second round has not found it");
    }

    /// The parts of one round are put together, and what does not count is left out.
    #[test]
    fn many_descriptors_are_gone_through_part_by_part() {
        if supported().is_err() {
            return;
        }
        let directory = tempfile::tempdir_in(".").unwrap();
        let make = |n: u32| File::create(directory.path().join(n.to_string())).unwrap();
        let files: Vec<_> = (0..40).map(make).collect();
        let (mut absent, me) = (Absent::default(), [std::process::id()]);
        // Other tests open and close files meanwhile, so that one round may miss one of ours.
        let all = |absent: &Absent| {
            files.iter().all(|file| absent.known.contains_key(&identity(file).unwrap()))
        };
        absent.look_at(Nanos::ZERO, &me, 8);
        assert!(!all(&absent) && !absent.round.is_over());
        let looks = (0..10_000).take_while(|_| {
            absent.look_at(Nanos::ZERO, &me, 8);
            !all(&absent)
        });
        assert!(looks.count() < 10_000);
    }

    #[test]
    fn files_that_are_too_many_are_counted() {
        let file = tempfile::tempfile_in(".").unwrap();
        let other =
            |n| Known { way: "/x".into(), path: format!("/x/{n}").into(), used: Nanos::ZERO };
        let known = (0..FILES as u64).map(|n| ((u64::MAX, n), other(n))).collect();
        let mut absent = Absent { known, round: Round::default() };
        let found = absent.look(Nanos::ZERO, &[std::process::id()]);
        assert!(found.unread > 0, "{found:?}");
        assert!(absent.round.beyond.contains(&identity(&file).unwrap()));
    }

    /// What is in swap of shared memory is the program's, and is counted there.
    #[test]
    fn memory_is_no_file() {
        // SAFETY: a name that lives on; the descriptor is ours.
        let memory = unsafe { File::from_raw_fd(libc::memfd_create(c"m".as_ptr(), 0)) };
        assert!(is_memory(&memory));
        assert!(!is_memory(&File::open("/proc/self/stat").unwrap()));
        let way = format!("/proc/self/fd/{}", memory.as_raw_fd());
        assert!(matches!(follow(Path::new(&way), &[("/".into(), "ext4".into())]), Led::Nowhere));
    }

    /// Where a file was that is closed now, the program may have put a link to a device.
    #[test]
    fn links_that_somebody_has_put_are_not_followed() {
        let directory = tempfile::tempdir_in(".").unwrap();
        let directory = fs::canonicalize(directory.path()).unwrap();
        let link = directory.join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        // The link itself is held, which is no regular file.
        assert!(hold_named(&link).ok().and_then(|held| identity(&held)).is_none());
        std::os::unix::fs::symlink(&directory, directory.join("round")).unwrap();
        File::create(directory.join("file")).unwrap();
        assert!(hold_named(&directory.join("file")).is_ok());
        assert!(hold_named(&directory.join("round/file")).is_err());
    }

    #[test]
    fn only_files_of_local_file_systems_are_touched() {
        let text = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                    23 22 0:50 / /data\\040one rw shared:1 - nfs4 server:/ rw\nbroken\n\
                    24 22 0:51 / /tmp rw - tmpfs none rw\n";
        let mounts = mounts(text);
        let kind = |path: &str| kind_at(&mounts, Path::new(path)).unwrap();
        assert_eq!(kind("/data"), "ext4");
        assert_eq!(kind("/data one/file (deleted)"), "nfs4");
        assert_eq!(kind("/tmp/x"), "tmpfs");
        let file = tempfile::tempfile_in(".").unwrap();
        let way = format!("/proc/self/fd/{}", file.as_raw_fd());
        let of = |kind: &str| follow(Path::new(&way), &[("/".into(), kind.into())]);
        assert!(matches!(of("ext4"), Led::To(..)));
        assert!(matches!(of("fuse.sshfs"), Led::Unread));
        assert!(matches!(of("tmpfs"), Led::Nowhere));
        assert!(matches!(follow(Path::new(&way), &[]), Led::Unread));
    }

    #[test]
    fn files_with_leases_are_known() {
        let text = "1: FLOCK  ADVISORY  WRITE 5 fe:00:77 0 EOF\n\
                    2: LEASE  ACTIVE    WRITE 5 fe:00:78 0 EOF\n";
        assert_eq!(leased(text), BTreeSet::from([78]));
    }
}
