//! What a context is: a file or a socket, and which.

use core::fmt;

use serde::{Deserialize, Serialize};

/// The entities that programs ask the kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContextKind {
    /// A file or a directory.
    File,
    /// A socket.
    Socket,
}

/// Which file or socket. No path is part of it, so a rename changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContextIdentity {
    /// A file, by what the file system calls it.
    File {
        /// The device that holds the file system (`st_dev`).
        device: u64,
        /// The inode's number (`st_ino`).
        inode: u64,
        /// The inode's generation (`FS_IOC_GETVERSION`): file systems give the number of a
        /// deleted inode to another file, with another generation.
        generation: u32,
    },
    /// A socket, by its cookie (`SO_COOKIE`), which the kernel gives once.
    Socket {
        /// The cookie.
        cookie: u64,
    },
}

impl ContextIdentity {
    /// Whether it is a file or a socket.
    pub const fn kind(self) -> ContextKind {
        match self {
            Self::File { .. } => ContextKind::File,
            Self::Socket { .. } => ContextKind::Socket,
        }
    }
}

impl fmt::Display for ContextIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { device, inode, generation } => {
                write!(f, "file {device}:{inode} (generation {generation})")
            }
            Self::Socket { cookie } => write!(f, "socket {cookie}"),
        }
    }
}
