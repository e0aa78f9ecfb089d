//! What the path of an output stands for: a file, one of our descriptors, or something else that
//! can be written to.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

/// As deep as Linux follows symbolic links.
const LINKS: u32 = 40;

/// Where an output goes.
#[derive(Debug)]
pub(super) enum Place {
    /// A file, or nothing yet. Links are followed: the file itself is replaced, not the link.
    File {
        /// Its own path.
        path: PathBuf,
        /// What is there.
        there: Option<Metadata>,
    },
    /// A descriptor that the command was started with: it is written to where it stands. To
    /// open its file anew would begin at the file's begin.
    Descriptor(OwnedFd),
    /// A device, a FIFO: it is opened and written to.
    Stream(PathBuf),
}

impl Place {
    /// What a path stands for; `-` is standard output.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return descriptor(1).map(Self::Descriptor);
        }
        // An empty name, or one that ends with a slash, is no file's.
        let name = path.as_os_str().as_encoded_bytes();
        if name.is_empty() {
            return Err(io::Error::other("an empty path"));
        }
        let mut path = path.to_owned();
        for _ in 0..LINKS {
            if let Some(number) = descriptor_of(&path) {
                return descriptor(number).map(Self::Descriptor);
            }
            match fs::symlink_metadata(&path) {
                Ok(there) if there.is_symlink() => {
                    let to = fs::read_link(&path)?;
                    path = path.parent().unwrap_or(Path::new("/")).join(to);
                }
                Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
                Ok(there) if there.is_file() => {
                    return Ok(Self::File { path, there: Some(there) });
                }
                Ok(there) if there.file_type().is_socket() => {
                    return Err(io::Error::other("is a socket"));
                }
                Ok(_) => return Ok(Self::Stream(path)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    return missing(path);
                }
                Err(e) => return Err(e),
            }
        }
        Err(rustix::io::Errno::LOOP.into())
    }
}

/// A file that is to be made: its directory must be there.
fn missing(path: PathBuf) -> io::Result<Place> {
    let named = path.file_name().is_some() && !path.as_os_str().as_encoded_bytes().ends_with(b"/");
    if !named {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !fs::metadata(directory(&path))?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(Place::File { path, there: None })
}

/// The directory that a file is in.
pub(super) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The number of the descriptor that a path names, as `/dev/stdout` and `/dev/fd/N` do in the end.
fn descriptor_of(path: &Path) -> Option<i32> {
    let number = path.file_name()?.to_str()?.parse().ok()?;
    let parent = fs::canonicalize(path.parent()?).ok()?;
    let ours = Path::new("/proc").join(std::process::id().to_string());
    let inside = parent.strip_prefix(ours).ok()?;
    (inside.components().next_back() == Some(Component::Normal("fd".as_ref()))).then_some(number)
}

/// Another descriptor of the same open file.
fn descriptor(number: i32) -> io::Result<OwnedFd> {
    let fd = match number {
        0 => io::stdin().as_fd().try_clone_to_owned()?,
        1 => io::stdout().as_fd().try_clone_to_owned()?,
        2 => io::stderr().as_fd().try_clone_to_owned()?,
        _ => {
            let us = rustix::process::pidfd_open(
                Pid::from_raw(std::process::id() as i32).ok_or(io::ErrorKind::NotFound)?,
                PidfdFlags::empty(),
            )?;
            rustix::process::pidfd_getfd(us, number, PidfdGetfdFlags::empty())?
        }
    };
    if rustix::fs::fcntl_getfl(&fd)? & OFlags::RWMODE == OFlags::RDONLY {
        return Err(io::Error::other("is open for reading only"));
    }
    Ok(fd)
}

/// Which file it is, under whatever name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub(super) fn new(device: u64, inode: u64) -> Self {
        Self { device, inode }
    }
}

impl From<&Metadata> for Identity {
    fn from(there: &Metadata) -> Self {
        Self { device: there.dev(), inode: there.ino() }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_stands_for_the_file_that_it_leads_to_also_for_one_that_is_not_there_yet() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, link_to_it) =
            (dir.path().join("file"), dir.path().join("link"), dir.path().join("other"));
        symlink("file", &link).unwrap();
        symlink(&link, &link_to_it).unwrap();
        let place = |path: &Path| match Place::of(path) {
            Ok(Place::File { path, there }) => (path, there.is_some()),
            other => panic!("{other:?}"),
        };

        assert_eq!(place(&link_to_it), (file.clone(), false));
        fs::write(&file, "content").unwrap();
        assert_eq!(place(&link_to_it), (file, true));
    }

    #[test]
    fn descriptors_and_devices_are_not_files() {
        for path in ["-", "/dev/stdout", "/dev/stderr", "/dev/fd/2", "/proc/self/fd/1"] {
            let place = Place::of(Path::new(path));
            assert!(matches!(place, Ok(Place::Descriptor(_))), "{path}: {place:?}");
        }
        assert!(matches!(Place::of(Path::new("/dev/null")), Ok(Place::Stream(_))));
        assert!(Place::of(Path::new("/dev/fd/987")).is_err());
    }

    #[test]
    fn what_cannot_be_a_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let around = dir.path().join("around");
        symlink("around", &around).unwrap();
        let below = dir.path().join("none/file");
        let slash = dir.path().join("file/");

        for path in [dir.path(), &around, &below, &slash, Path::new("")] {
            assert!(Place::of(path).is_err(), "{}", path.display());
        }
    }
}
