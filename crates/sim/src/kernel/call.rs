//! What programs ask the simulated kernel for.

use serde::{Deserialize, Serialize};
use terrace_core::Nanos;

/// How a program says that it will use a part of a file (`posix_fadvise`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Advice {
    /// As any file: it is read ahead for readers that go on where they ended.
    #[default]
    Normal,
    /// In no order: nothing is read ahead.
    Random,
    /// From its beginning to its end: twice as much is read ahead.
    Sequential,
    /// Soon: it is read ahead now.
    WillNeed,
    /// Not any more: what the disk has of it leaves the page cache.
    DontNeed,
}

impl Advice {
    /// Every advice, by its number on Linux (`POSIX_FADV_…`).
    pub const ALL: [Self; 5] =
        [Self::Normal, Self::Random, Self::Sequential, Self::WillNeed, Self::DontNeed];

    /// The advice with a number of Linux; nothing for what does not change the page cache
    /// (`POSIX_FADV_NOREUSE`).
    pub fn of_linux(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Its number on Linux.
    pub const fn linux(self) -> u8 {
        self as u8
    }
}

/// One call, or work of the program between calls.
///
/// Files and sockets have numbers that the program gives; offsets are explicit: `read` and
/// `write` are `pread` and `pwrite` at the position that the descriptor had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Call {
    /// `open` of a file that is not there yet; it is open then.
    Create {
        /// The file.
        file: u32,
    },
    /// `open` of a file that is there.
    Open {
        /// The file.
        file: u32,
    },
    /// `close` of a file.
    Close {
        /// The file.
        file: u32,
    },
    /// `read` or `pread`.
    Read {
        /// The file, which is open.
        file: u32,
        /// Where to begin, in bytes.
        offset: u64,
        /// How much, in bytes.
        bytes: u32,
    },
    /// `write` or `pwrite`.
    Write {
        /// The file, which is open.
        file: u32,
        /// Where to begin, in bytes.
        offset: u64,
        /// How much, in bytes.
        bytes: u32,
    },
    /// `fsync`.
    Fsync {
        /// The file, which is open.
        file: u32,
    },
    /// `posix_fadvise`.
    Advise {
        /// The file, which is open.
        file: u32,
        /// Where the part that it is about begins, in bytes. Only what is read or dropped now has
        /// a part; how the file will be read is said of all of it.
        offset: u64,
        /// How long that part is, in bytes; 0 for all up to the end.
        bytes: u64,
        /// What is said of it.
        advice: Advice,
    },
    /// `unlink`. A file that is open lives until it is closed.
    Unlink {
        /// The file.
        file: u32,
    },
    /// `rename`.
    Rename {
        /// The file.
        file: u32,
    },
    /// `stat`.
    Stat {
        /// The file.
        file: u32,
    },
    /// `getdents` of a directory.
    ReadDir {
        /// Names in it.
        entries: u32,
    },
    /// `mmap` of a whole file.
    Map {
        /// The file, which is open.
        file: u32,
    },
    /// `munmap` of it.
    Unmap {
        /// The file.
        file: u32,
    },
    /// Loads or stores to a file that is mapped.
    Access {
        /// The file.
        file: u32,
        /// Where to begin, in bytes.
        offset: u64,
        /// How much, in bytes.
        bytes: u32,
        /// Whether it is written.
        store: bool,
    },
    /// `socket`.
    Socket {
        /// The socket.
        socket: u32,
    },
    /// `connect`, to another host.
    Connect {
        /// The socket.
        socket: u32,
    },
    /// `accept`: a new socket to another host.
    Accept {
        /// The new socket.
        socket: u32,
    },
    /// The other host sends: packets come into the receive ring, and from there into the queue
    /// of the socket.
    Arrive {
        /// The socket.
        socket: u32,
        /// How much, in bytes.
        bytes: u32,
    },
    /// `epoll_wait`, for one socket to become ready.
    Epoll {
        /// The socket that is ready.
        socket: u32,
    },
    /// `recv` of all that has arrived.
    Recv {
        /// The socket.
        socket: u32,
    },
    /// `send`.
    Send {
        /// The socket.
        socket: u32,
        /// How much, in bytes.
        bytes: u32,
    },
    /// `close` of a socket.
    CloseSocket {
        /// The socket.
        socket: u32,
    },
    /// The program touches its own memory.
    Touch {
        /// A page of it.
        page: u32,
        /// Cache lines of the page.
        lines: u8,
        /// Whether they are written.
        store: bool,
    },
    /// The program makes one access to its own memory, after some instructions.
    Use {
        /// The page.
        page: u32,
        /// The cache line of it.
        line: u8,
        /// Whether it is written.
        store: bool,
        /// Instructions since the access before, this one's own among them.
        instructions: u32,
    },
    /// The program gives memory of its own back (`munmap`, `MADV_DONTNEED`).
    Release {
        /// The first page.
        page: u32,
        /// How many pages.
        count: u32,
    },
    /// The program computes.
    Compute {
        /// How long.
        time: Nanos,
    },
    /// An operation of the program is done: what its throughput counts.
    Done,
    /// What is measured begins now; what was before is preparation. Once a run.
    Measure,
}

impl Call {
    /// Whether the kernel has to do anything.
    pub const fn is_kernel(&self) -> bool {
        !matches!(
            self,
            Self::Touch { .. }
                | Self::Use { .. }
                | Self::Release { .. }
                | Self::Compute { .. }
                | Self::Arrive { .. }
                | Self::Access { .. }
                | Self::Done
                | Self::Measure
        )
    }
}

/// Why the kernel cannot do what it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No such file, or it was deleted.
    #[error("file {0} does not exist")]
    NoFile(u32),
    /// A file with this number exists.
    #[error("file {0} exists already")]
    FileExists(u32),
    /// The file is not open.
    #[error("file {0} is not open")]
    NotOpen(u32),
    /// The file is not mapped.
    #[error("file {0} is not mapped")]
    NotMapped(u32),
    /// Beyond what a file can have.
    #[error("file {0}: offset {1} is beyond 16 TiB")]
    TooFar(u32, u64),
    /// Beyond the file's end.
    #[error("file {0}: offset {1} is beyond its end")]
    BeyondEnd(u32, u64),
    /// No such socket.
    #[error("socket {0} does not exist")]
    NoSocket(u32),
    /// A socket with this number exists.
    #[error("socket {0} exists already")]
    SocketExists(u32),
    /// Nothing has arrived.
    #[error("socket {0} has nothing to receive")]
    NothingArrived(u32),
    /// A page that the program does not have.
    #[error("page {0} is beyond the program's memory")]
    NoPage(u32),
    /// A number above what the kernel takes.
    #[error("{0} is above {max}, the largest number of a file or socket", max = MOST)]
    Number(u32),
    /// A thread that was not announced.
    #[error("there is no thread {0}")]
    NoThread(usize),
    /// Nothing is left to be reclaimed.
    #[error("the machine is out of memory")]
    OutOfMemory,
}

/// The largest number of a file or socket.
pub const MOST: u32 = (1 << 24) - 1;

/// What a program does, thread by thread.
pub trait Calls {
    /// What people call it.
    fn name(&self) -> &'static str;
    /// Its threads.
    fn threads(&self) -> usize;
    /// Pages of its own memory.
    fn pages(&self) -> u32;
    /// What a thread does next; `None` when it is done.
    fn next(&mut self, thread: usize) -> Option<Call>;
}
