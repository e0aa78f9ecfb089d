//! Calls in the order in which they were made, and the files that they are about.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos};

use super::replay::about;
use crate::kernel::{Call, MOST};

/// A file of a recording; its number is its place in [`Recording::files`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedFile {
    /// Device and inode on the machine where it was recorded, as far as the kernel told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<((u32, u32), u64)>,
    /// Whether it was there before.
    pub existed: bool,
    /// How long it was then, at least.
    pub bytes: Bytes,
}

/// What the running kernel did for the recorded calls, in the threads that made them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Counted {
    /// Pages that were added to the page cache, of files that the program made.
    pub pages_added: u64,
    /// Pages of them that left it.
    pub pages_removed: u64,
    /// Bios that were handed to devices in calls on these files.
    pub bios: u64,
    /// Objects that were allocated in these calls, by slab cache.
    pub allocated: BTreeMap<String, u64>,
}

/// A call that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Made {
    /// The thread, counted from 0 in the order in which they appeared.
    pub thread: u32,
    /// The processor.
    pub cpu: u16,
    /// When it began, since the recording did.
    pub at: Nanos,
    /// How long it took.
    pub took: Nanos,
    /// What was asked for.
    pub call: Call,
}

/// A recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// The program with its arguments.
    pub program: Vec<String>,
    /// What recorded it.
    pub recorder: String,
    /// The kernel on which it ran.
    pub kernel: String,
    /// Threads.
    pub threads: u32,
    /// Events that the kernel lost: calls may be missing.
    pub lost: u64,
    /// Calls for I/O that are not among the calls, by why.
    #[serde(default)]
    pub skipped: BTreeMap<String, u64>,
    /// What the kernel did.
    #[serde(default)]
    pub counted: Counted,
    /// Files.
    pub files: Vec<RecordedFile>,
    /// Sockets: they have the numbers below this.
    pub sockets: u32,
    /// Calls, by the time at which they began.
    #[serde(skip)]
    pub calls: Vec<Made>,
}

/// Why a call of a recording cannot have been made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It has no such thread.
    #[error("thread {0} is beyond the recording's threads")]
    Thread(u32),
    /// It came before the one that stands before it.
    #[error("begins before the call that stands before it")]
    Order,
    /// It is about a file that the recording does not have.
    #[error("file {0} is unknown")]
    UnknownFile(u32),
    /// It is about a socket that the recording does not have.
    #[error("socket {0} is unknown")]
    UnknownSocket(u32),
    /// The file or socket is not open (any more).
    #[error("{0} {1} is not open")]
    NotOpen(&'static str, u32),
    /// It exists already, or does not.
    #[error("{0} {1} {2}")]
    Existence(&'static str, u32, &'static str),
    /// A call that no recorder writes.
    #[error("`{0}` is no call that is recorded")]
    Kind(&'static str),
}

/// What is known of files and sockets while calls are checked one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Check {
    threads: u32,
    at: Nanos,
    /// Whether each file exists, how often it is open, and how often mapped.
    files: Vec<(bool, u32, u32)>,
    sockets: Vec<bool>,
}

impl Check {
    pub(super) fn new(recording: &Recording) -> Self {
        let files = recording.files.iter().map(|file| (file.existed, 0, 0)).collect();
        let sockets = vec![false; recording.sockets.min(MOST) as usize];
        Self { threads: recording.threads, at: Nanos::ZERO, files, sockets }
    }

    /// One file more; false if there are too many.
    pub(crate) fn add_file(&mut self, existed: bool) -> bool {
        let fits = self.files.len() < MOST as usize;
        if fits {
            self.files.push((existed, 0, 0));
        }
        fits
    }

    /// One socket more; false if there are too many.
    pub(crate) fn add_socket(&mut self) -> bool {
        let fits = self.sockets.len() < MOST as usize;
        if fits {
            self.sockets.push(false);
        }
        fits
    }

    /// Whether a file is mapped.
    pub(crate) fn is_mapped(&self, file: u32) -> bool {
        self.files.get(file as usize).is_some_and(|known| known.2 > 0)
    }

    /// Enters a call, if it can have been made.
    pub(super) fn enter(&mut self, made: &Made) -> Result<(), Unfit> {
        if made.thread >= self.threads {
            return Err(Unfit::Thread(made.thread));
        }
        if made.at < self.at {
            return Err(Unfit::Order);
        }
        self.call(&made.call)?;
        self.at = made.at;
        Ok(())
    }

    fn file(&mut self, number: u32) -> Result<&mut (bool, u32, u32), Unfit> {
        self.files.get_mut(number as usize).ok_or(Unfit::UnknownFile(number))
    }

    fn socket(&mut self, number: u32) -> Result<&mut bool, Unfit> {
        self.sockets.get_mut(number as usize).ok_or(Unfit::UnknownSocket(number))
    }

    /// Enters a call of whichever thread, if it can have been made.
    pub(crate) fn call(&mut self, call: &Call) -> Result<(), Unfit> {
        match *call {
            Call::Create { file } => {
                let known = self.file(file)?;
                if known.0 {
                    return Err(Unfit::Existence("file", file, "exists already"));
                }
                *known = (true, 1, 0);
            }
            Call::Open { file } => {
                let known = self.file(file)?;
                if !known.0 {
                    return Err(Unfit::Existence("file", file, "does not exist"));
                }
                known.1 += 1;
            }
            Call::Close { file } => {
                let known = self.file(file)?;
                known.1 = known.1.checked_sub(1).ok_or(Unfit::NotOpen("file", file))?;
            }
            Call::Map { file } => {
                let known = self.file(file)?;
                if known.1 == 0 {
                    return Err(Unfit::NotOpen("file", file));
                }
                known.2 += 1;
            }
            Call::Unmap { file } => {
                let known = self.file(file)?;
                known.2 = known.2.checked_sub(1).ok_or(Unfit::NotOpen("mapping of file", file))?;
            }
            Call::Access { file, .. } => {
                if self.file(file)?.2 == 0 {
                    return Err(Unfit::NotOpen("mapping of file", file));
                }
            }
            Call::Read { file, .. }
            | Call::Write { file, .. }
            | Call::Fsync { file }
            | Call::Advise { file, .. } => {
                if self.file(file)?.1 == 0 {
                    return Err(Unfit::NotOpen("file", file));
                }
            }
            Call::Unlink { file } | Call::Rename { file } | Call::Stat { file } => {
                let known = self.file(file)?;
                if !known.0 {
                    return Err(Unfit::Existence("file", file, "does not exist"));
                }
                if matches!(call, Call::Unlink { .. }) {
                    known.0 = false;
                }
            }
            Call::Socket { socket } | Call::Accept { socket } => {
                let open = self.socket(socket)?;
                if core::mem::replace(open, true) {
                    return Err(Unfit::Existence("socket", socket, "exists already"));
                }
            }
            Call::CloseSocket { socket } => {
                let open = self.socket(socket)?;
                if !core::mem::replace(open, false) {
                    return Err(Unfit::NotOpen("socket", socket));
                }
            }
            Call::Connect { socket }
            | Call::Recv { socket }
            | Call::Arrive { socket, .. }
            | Call::Send { socket, .. }
            | Call::Epoll { socket } => {
                if !*self.socket(socket)? {
                    return Err(Unfit::NotOpen("socket", socket));
                }
            }
            Call::ReadDir { .. } => {}
            Call::Touch { .. } => return Err(Unfit::Kind("touch")),
            Call::Use { .. } => return Err(Unfit::Kind("use")),
            Call::Release { .. } => return Err(Unfit::Kind("release")),
            Call::Compute { .. } => return Err(Unfit::Kind("compute")),
            Call::Done => return Err(Unfit::Kind("done")),
            Call::Measure => return Err(Unfit::Kind("measure")),
        }
        Ok(())
    }
}

impl Recording {
    /// The recording without calls on files that were there before, and on sockets: what of it
    /// does not depend on what the running kernel had in memory.
    #[must_use]
    pub fn of_made_files(&self) -> Self {
        let made = |call: &Call| {
            let (is_file, number) = about(call)?;
            Some(is_file && !self.files.get(number as usize)?.existed)
        };
        let calls = self.calls.iter().filter(|m| made(&m.call) == Some(true)).copied().collect();
        Self { calls, ..self.clone() }
    }

    /// Checks all calls; says which cannot have been made, counted from 0, and why.
    pub fn check(&self) -> Result<(), (usize, Unfit)> {
        let mut check = Check::new(self);
        let mut calls = self.calls.iter().enumerate();
        calls.try_for_each(|(number, made)| check.enter(made).map_err(|unfit| (number, unfit)))
    }
}
