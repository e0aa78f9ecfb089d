//! Files by device, inode and generation.
//!
//! A path may be another file's by the time that it is opened. The kernel opens a file by the
//! handle that it would give to an NFS server, and refuses one whose inode has been given to
//! another file since: its generation differs.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use terrace_core::ContextIdentity;

use super::sys;

/// `EXT4_SUPER_MAGIC`, also that of ext2 and ext3.
pub const EXT4: u64 = 0xef53;
/// `XFS_SUPER_MAGIC`
pub const XFS: u64 = 0x5846_5342;
/// `OVERLAYFS_SUPER_MAGIC`
pub const OVERLAYFS: u64 = 0x794c_7630;

/// Names of file systems that people meet, by `f_type`.
pub fn file_system_name(magic: u64) -> String {
    let name = match magic {
        EXT4 => "ext4",
        XFS => "xfs",
        0x9123_683e => "btrfs",
        0x0102_1994 => "tmpfs",
        OVERLAYFS => "overlayfs",
        0xf2f5_2010 => "f2fs",
        0x6969 => "nfs",
        0x6573_5546 => "fuse",
        0x7371_7368 => "squashfs",
        0x6462_6720 => "debugfs",
        0x9fa0 => "proc",
        0x6265_6572 => "sysfs",
        0x0027_e0eb => "cgroup",
        0x6367_7270 => "cgroup2",
        other => return format!("a file system of type {other:#x}"),
    };
    name.to_owned()
}

/// Whether files of a file system can be opened by what hooks tell of them.
pub fn is_supported(magic: u64) -> bool {
    matches!(magic, EXT4 | XFS)
}

/// Why a file is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file is gone, or its inode is another file's now.
    #[error("the file is gone")]
    Gone,
    /// Files of this file system are left alone.
    #[error("{} is left alone: its files have other handles", file_system_name(*.0))]
    Unsupported(u64),
    /// The file system is not mounted where this process can see it.
    #[error("device {}:{} is not mounted here", libc::major(*.0), libc::minor(*.0))]
    NotMounted(u64),
    /// It is no file: sockets have no pages.
    #[error("it is no file")]
    NoFile,
    /// The kernel refuses.
    #[error("{0}")]
    Refused(#[from] io::Error),
}

/// Where a file system is mounted whose files can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The directory.
    pub path: PathBuf,
    /// The directory within the file system that is mounted there: its root, but for bind mounts.
    pub root: PathBuf,
    /// The file system's type.
    pub magic: u64,
}

/// Where file systems are mounted.
#[derive(Debug, Default)]
pub struct Mounts {
    at: HashMap<u64, Mount>,
}

impl Mounts {
    /// Opens a file for reading. Its times stay as they are.
    pub fn open(&mut self, file: &ContextIdentity, magic: u64) -> Result<File, OpenError> {
        let &ContextIdentity::File { device, inode, generation: its } = file else {
            return Err(OpenError::NoFile);
        };
        let mut handle = handle(magic, inode, its).ok_or(OpenError::Unsupported(magic))?;
        let mount = self.mount(device)?;
        let flags =
            libc::O_RDONLY | libc::O_NOATIME | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        let opened = sys::open_by_handle(mount.as_fd(), &mut handle, flags);
        let opened = opened.map_err(|e| match e.raw_os_error() {
            Some(libc::ESTALE | libc::ENOENT) => OpenError::Gone,
            _ => OpenError::Refused(e),
        })?;
        let is = opened.metadata()?;
        if !is.is_file() || (is.dev(), is.ino()) != (device, inode) {
            return Err(OpenError::Gone);
        }
        // To ext4, generation 0 in a handle is any; files that were put into an image have it.
        if sys::read_number(&opened, GENERATION)? != its {
            return Err(OpenError::Gone);
        }
        Ok(opened)
    }

    /// The directory that a file system is mounted at. It is held for one call: a mount that is
    /// held cannot be unmounted.
    fn mount(&mut self, device: u64) -> Result<File, OpenError> {
        for _ in 0..2 {
            if let Some(Mount { path, .. }) = self.at.get(&device) {
                let opened = open_directory(path);
                if let Ok(directory) = opened
                    && directory.metadata().is_ok_and(|is| is.dev() == device)
                {
                    return Ok(directory);
                }
            }
            self.at = Self::all()?;
        }
        Err(OpenError::NotMounted(device))
    }

    /// Where each file system is mounted whose files can be opened, by device.
    pub fn all() -> io::Result<HashMap<u64, Mount>> {
        Ok(mounted(&fs::read_to_string("/proc/self/mountinfo")?, Path::is_dir))
    }

    /// Whether a file that was opened here lies below this directory, by whichever mount that was
    /// named.
    pub fn is_below(&self, file: &File, directory: &Below) -> bool {
        // The name as it is now, for nothing but this comparison.
        let (Some(name), Ok(metadata)) = (Self::name(file), file.metadata()) else { return false };
        let device = metadata.dev();
        let within = self.at.get(&device).and_then(|Mount { path, root, .. }| {
            Some((device, root.join(name.strip_prefix(path).ok()?)))
        });
        let is_within = |below: &(u64, PathBuf)| {
            within
                .as_ref()
                .is_some_and(|(device, path)| *device == below.0 && path.starts_with(&below.1))
        };
        name.starts_with(&directory.path) || directory.within.as_ref().is_some_and(is_within)
    }

    /// A file's name, if it has one that the kernel knows: for people, never to open it.
    pub fn name(file: &File) -> Option<PathBuf> {
        use std::os::fd::AsRawFd;
        let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        // A file without a known directory is shown as if it lay in the root.
        let is = fs::symlink_metadata(&link).ok()?;
        let metadata = file.metadata().ok()?;
        ((is.dev(), is.ino()) == (metadata.dev(), metadata.ino())).then_some(link)
    }
}

/// A directory that files have to lie below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Below {
    path: PathBuf,
    /// Its file system's device, and where it is there, if its mount is known.
    within: Option<(u64, PathBuf)>,
}

impl Below {
    /// A directory by its path, without links in it.
    pub fn new(path: PathBuf) -> Self {
        let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self { within: within(&text, &path), path }
    }
}

/// On which device a path lies, and where there, from the text of `/proc/self/mountinfo`.
fn within(text: &str, path: &Path) -> Option<(u64, PathBuf)> {
    let mounts = text.lines().filter_map(line).map(|line| (unescaped(line.at), line));
    // Of mounts at one place, the last one is seen.
    let all = mounts.filter(|(at, _)| path.starts_with(at));
    let (at, line) = all.max_by_key(|(at, _)| at.components().count())?;
    Some((line.device, unescaped(line.root).join(path.strip_prefix(at).ok()?)))
}

fn open_directory(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)
}

/// Which file systems answer by themselves, and which wait for another machine or program: a
/// directory that lies below such a one may not be touched.
fn may_hang(kind: &str) -> bool {
    const REMOTE: [&str; 9] =
        ["nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "afs", "autofs", "virtiofs"];
    REMOTE.contains(&kind) || kind.starts_with("fuse")
}

/// A line of `/proc/self/mountinfo`.
struct Line<'a> {
    number: &'a str,
    parent: &'a str,
    device: u64,
    root: &'a str,
    at: &'a str,
    kind: &'a str,
}

fn line(text: &str) -> Option<Line<'_>> {
    let (mount, system) = text.split_once(" - ")?;
    let mut fields = mount.split(' ');
    let (number, parent) = (fields.next()?, fields.next()?);
    let (major, minor) = fields.next()?.split_once(':')?;
    let device = libc::makedev(major.parse().ok()?, minor.parse().ok()?);
    let (root, at) = (fields.next()?, fields.next()?);
    Some(Line { number, parent, device, root, at, kind: system.split(' ').next()? })
}

/// Whether neither a mount nor one of those that it lies below may hang: their numbers, with those
/// above them and their kinds.
fn answers<'a>(above: &HashMap<&'a str, (&'a str, &'a str)>, mut number: &'a str) -> bool {
    // No deeper than there are mounts.
    for _ in 0..above.len() {
        let Some(&(parent, kind)) = above.get(number) else { return true };
        if may_hang(kind) {
            return false;
        }
        number = parent;
    }
    true
}

/// Mount points of ext4 and XFS by device, from the text of `/proc/self/mountinfo`. Whole file
/// systems win over parts of them, which bind mounts are, and what was mounted last over what lies
/// under it. No other mount point is touched, and none that lies below one that may hang: that
/// another machine has stopped answering must not stop the daemon.
fn mounted(text: &str, is_directory: impl Fn(&Path) -> bool) -> HashMap<u64, Mount> {
    let lines: Vec<Line<'_>> = text.lines().filter_map(line).collect();
    let above: HashMap<&str, (&str, &str)> =
        lines.iter().map(|line| (line.number, (line.parent, line.kind))).collect();
    let mut found: HashMap<u64, (bool, Mount)> = HashMap::new();
    for line in &lines {
        let magic = match line.kind {
            "ext2" | "ext3" | "ext4" => EXT4,
            "xfs" => XFS,
            _ => continue,
        };
        if !answers(&above, line.number) {
            continue;
        }
        let is_whole = line.root == "/";
        let path = unescaped(line.at);
        match found.get(&line.device) {
            Some((true, _)) if !is_whole => {}
            _ if !is_directory(&path) => {}
            _ => {
                let root = unescaped(line.root);
                found.insert(line.device, (is_whole, Mount { path, root, magic }));
            }
        }
    }
    found.into_iter().map(|(device, (_, mount))| (device, mount)).collect()
}

/// Blanks and the like are written as `\040` there.
fn unescaped(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes
            .get(at + 1..at + 4)
            .filter(|_| bytes[at] == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(code) = code {
            out.push(code);
            at += 4;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    PathBuf::from(std::ffi::OsString::from(std::ffi::OsStr::from_bytes(&out)))
}

/// `FILEID_INO32_GEN` of `linux/exportfs.h`: inode and generation, four bytes each.
const SHORT: i32 = 1;
/// The same of XFS with an inode of eight bytes (`XFS_FILEID_TYPE_64FLAG`).
const LONG: i32 = 0x81;

/// The handle of a file; nothing if its file system has handles of another form.
fn handle(magic: u64, inode: u64, generation: u32) -> Option<sys::Handle> {
    let mut bytes = [0; sys::HANDLE];
    let (kind, length) = match (magic, u32::try_from(inode)) {
        (EXT4 | XFS, Ok(inode)) => {
            bytes[..4].copy_from_slice(&inode.to_ne_bytes());
            bytes[4..8].copy_from_slice(&generation.to_ne_bytes());
            (SHORT, 8)
        }
        (XFS, Err(_)) => {
            bytes[..8].copy_from_slice(&inode.to_ne_bytes());
            bytes[8..12].copy_from_slice(&generation.to_ne_bytes());
            (LONG, 12)
        }
        _ => return None,
    };
    Some(sys::Handle { bytes: length, kind, content: bytes })
}

/// `FS_IOC_GETVERSION`
const GENERATION: u64 = libc::FS_IOC_GETVERSION;

/// The generation of a file's inode; 0 where its file system tells none.
pub fn generation(file: &File) -> u32 {
    sys::read_number(file, GENERATION).unwrap_or(0)
}

/// Of which type the file system is that a path lies on.
pub fn file_system(path: &Path) -> io::Result<u64> {
    sys::kind_of_file_system(&CString::new(path.as_os_str().as_bytes())?)
}

/// The identity of a file by its path, as hooks tell it, with the type of its file system. The file is
/// not opened: that would look like a use of it.
pub fn identity(path: &Path) -> io::Result<(ContextIdentity, u64)> {
    let metadata = fs::metadata(path)?;
    let magic = file_system(path)?;
    let handle = sys::handle_of(&CString::new(path.as_os_str().as_bytes())?).ok();
    let generation = handle.filter(|_| is_supported(magic)).and_then(|handle| {
        let at = match handle.kind {
            SHORT => 4,
            LONG => 8,
            _ => return None,
        };
        Some(u32::from_ne_bytes(handle.content[at..at + 4].try_into().ok()?))
    });
    let (device, inode) = (metadata.dev(), metadata.ino());
    // Of other file systems no file is asked for by it.
    let generation = generation.unwrap_or(0);
    Ok((ContextIdentity::File { device, inode, generation }, magic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn whole_file_systems_win_over_bind_mounts() {
        let text = "21 1 8:1 /home /tmp rw - ext4 /dev/sda1 rw\n\
                    22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
                    23 1 8:1 /var /usr rw - ext4 /dev/sda1 rw\n\
                    24 1 8:2 / /no\\040such rw - xfs /dev/sda2 rw\nrubbish\n";
        let found = mounted(text, |path| path.ends_with("tmp") || path == Path::new("/"));
        let root = Mount { path: "/".into(), root: "/".into(), magic: EXT4 };
        assert_eq!(found, HashMap::from([(libc::makedev(8, 1), root)]));
        assert_eq!(unescaped("/a\\040b\\134"), PathBuf::from("/a b\\"));
    }

    proptest::proptest! {
        /// Names of mounts are whatever people call them.
        #[test]
        fn any_text_is_read(text in "([0-9]{1,3}|[:/ \\\\\n-]|ext4|nfs| - ){0,60}", any in ".*") {
            for text in [text, any] {
                mounted(&text, |_| true);
                within(&text, Path::new("/data/file"));
            }
        }
    }

    #[test]
    fn a_path_is_where_its_mount_has_it() {
        let text = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                    23 22 8:2 / /data rw - ext4 /dev/sda2 rw\n\
                    24 22 8:2 /deep/dir /bound rw - ext4 /dev/sda2 rw\n";
        let second = libc::makedev(8, 2);
        let of = |path: &str| within(text, Path::new(path));
        assert_eq!(of("/bound/a"), Some((second, "/deep/dir/a".into())));
        assert_eq!(of("/data/deep/dir/a"), Some((second, "/deep/dir/a".into())));
        assert_eq!(of("/bounds"), Some((libc::makedev(8, 1), "/bounds".into())));
    }

    /// `stat` of a mount point whose server is gone does not return.
    #[test]
    fn what_may_hang_is_not_touched() {
        let text = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                    23 22 0:40 / /mnt/nfs rw - nfs4 server:/ rw\n\
                    24 23 8:2 / /mnt/nfs/disk rw - ext4 /dev/sda2 rw\n\
                    25 22 0:41 / /mnt/fuse rw - fuse.sshfs host: rw\n\
                    26 25 8:3 / /mnt/fuse/disk rw - xfs /dev/sda3 rw\n\
                    27 22 8:3 / /data rw - xfs /dev/sda3 rw\n";
        let touched = std::cell::RefCell::new(Vec::new());
        let found = mounted(text, |path| {
            touched.borrow_mut().push(path.to_owned());
            true
        });
        assert_eq!(touched.into_inner(), [PathBuf::from("/"), PathBuf::from("/data")]);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn large_inodes_have_handles_on_xfs_alone() {
        assert_eq!(handle(EXT4, 12, 7).map(|h| (h.kind, h.bytes)), Some((1, 8)));
        assert_eq!(handle(XFS, 1 << 33, 7).map(|h| (h.kind, h.bytes)), Some((0x81, 12)));
        assert!(handle(0x0102_1994, 12, 7).is_none());
    }

    /// A path may lead to another file by then; a handle does not.
    #[test]
    fn a_handle_is_the_file_wherever_it_is_renamed_to_and_no_file_once_it_is_gone() {
        let directory = tempfile::tempdir_in(".").expect("a directory");
        let path = directory.path().join("a");
        fs::write(&path, "one").expect("written");
        let (file, magic) = identity(&path).expect("there");
        if !is_root() || !is_supported(magic) {
            return;
        }
        let mut mounts = Mounts::default();
        fs::rename(&path, directory.path().join("b")).expect("renamed");
        fs::write(&path, "two").expect("written");
        let opened = mounts.open(&file, magic).expect("it is there");
        assert_eq!(io::read_to_string(&opened).expect("read"), "one");
        let name = Mounts::name(&opened).expect("it has a name");
        assert!(name.ends_with("b"), "{name:?}");
        drop(opened);
        fs::remove_file(directory.path().join("b")).expect("removed");
        // A child that another test forks has all that is open until it executes its program, and
        // a file lives as long as anybody has it open.
        let is_gone = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            matches!(mounts.open(&file, magic), Err(OpenError::Gone))
        });
        assert!(is_gone);
        let ContextIdentity::File { device, inode, generation } = identity(&path).unwrap().0 else {
            unreachable!()
        };
        let told = super::generation(&File::open(&path).expect("there"));
        assert_eq!(generation, told, "by the handle and by the file");
        for generation in [generation ^ 1, 0] {
            let other = ContextIdentity::File { device, inode, generation };
            let opened = mounts.open(&other, magic);
            assert!(matches!(opened, Err(OpenError::Gone)), "generation {generation}: {opened:?}");
        }
    }
}
