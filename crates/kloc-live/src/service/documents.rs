//! What the daemon answers.

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, ContextIdentity, Nanos};

use crate::decide::contexts::Doubts;
use crate::decide::decider::Totals;
use crate::decide::journal::Decision;
use crate::observe::hooks::HookSet;
use crate::observe::sockets::Socket;
use crate::report::footprint::Footprint;
use crate::report::lifetimes::Lifetimes;
use crate::report::table::Row;

/// A memory, and what waits to leave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Its name.
    pub name: String,
    /// What of it is in use.
    pub used: Bytes,
    /// What of it can be in use before the kernel takes pages away.
    pub limit: Bytes,
    /// Files leave when more than this is in use.
    pub high: Bytes,
    /// Files that wait to leave, with places in the queue that are void.
    pub waiting: u64,
}

/// What the daemon does.
///
/// One field for each line of `kloc top`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its process.
    pub process: u32,
    /// How long it has been running.
    pub running: Nanos,
    /// Whether pages leave, or it is only said which would.
    pub enforce: bool,
    /// Where events come from.
    pub hooks: HookSet,
    /// Why not from better ones.
    pub refused: Vec<String>,
    /// What is not known, and why.
    pub lacks: Vec<String>,
    /// Rights that it has kept.
    pub rights: Vec<String>,
    /// Whether its memory is locked.
    pub locked: bool,
    /// Where pages go.
    pub way: String,
    /// Memories.
    pub memories: Vec<MemoryStatus>,
    /// Files that are known.
    pub contexts: u64,
    /// Files that somebody has open.
    pub active: u64,
    /// What the files' pages take, as of their last events.
    pub cached: Bytes,
    /// Events that were lost.
    pub lost: u64,
    /// How often the tables of transfers, of the journal, of names and of uses had no room for a file.
    pub full: u64,
    /// What could not be told exactly.
    pub doubts: Doubts,
    /// What was done.
    pub totals: Totals,
    /// File systems whose files are left alone, with how many of them were seen.
    pub left_alone: Vec<(String, u64)>,
    /// Filters of which nothing was seen, a sentence each.
    #[serde(default)]
    pub unseen: Vec<String>,
    /// Processor time of the daemon.
    pub processor: Nanos,
}

/// A file that is known.
///
/// One field for each column of `kloc list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct File {
    /// Its name now, if the kernel knows one.
    pub name: Option<String>,
    /// Which file.
    pub file: ContextIdentity,
    /// The kind of its file system.
    pub file_system: String,
    /// Whether somebody has it open.
    pub active: bool,
    /// How often it is open now, as far as hooks tell.
    pub opens: u32,
    /// How often it was opened since it is known.
    pub opened: u64,
    /// How often it came back while its pages were in place.
    pub hits: u32,
    /// What its pages take, as of its last event.
    pub cached: Bytes,
    /// Its length.
    pub length: Bytes,
    /// Extents that the kernel holds of it.
    pub extents: Option<u32>,
    /// Names of it in the kernel's cache (dentries), no more than 64; `None` if it is not known.
    #[serde(default)]
    pub names: Option<u32>,
    /// Block transfers for it.
    pub transfers: u64,
    /// What they moved.
    pub transferred: Bytes,
    /// Handles of the journal that were started for it.
    #[serde(default)]
    pub journal_handles: u64,
    /// Blocks that they asked for, which are no fewer than they changed.
    #[serde(default)]
    pub journal_blocks: u64,
    /// For how long nobody has had it open.
    pub closed_for: Option<Nanos>,
    /// Whether its pages have left, or would have.
    pub gone: bool,
    /// The memory that it belongs to.
    pub memory: String,
    /// The thread that used it last.
    pub command: String,
}

/// Files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct List {
    /// How many are known.
    pub known: u64,
    /// Those that were asked for.
    pub files: Vec<File>,
    /// Whether there are fewer of them than were asked for: a list has an end, and so has the time
    /// that it takes.
    #[serde(default)]
    pub cut: bool,
    /// Where numbers of opens are lower bounds, that they are.
    #[serde(default)]
    pub bounds: Option<String>,
    /// Filters of which nothing was seen, a sentence each.
    #[serde(default)]
    pub unseen: Vec<String>,
}

/// Why a file is where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Why {
    /// The file; `None` if no event has told of it.
    pub file: Option<File>,
    /// What of it is cached at this moment, as the kernel says.
    pub cached: Option<Bytes>,
    /// What holds for it, in sentences.
    pub because: Vec<String>,
    /// Decisions about it, the youngest first.
    pub decisions: Vec<Decision>,
}

/// Kernel objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Objects {
    /// Where events come from.
    pub hooks: Option<HookSet>,
    /// How long was looked.
    pub observed: Nanos,
    /// Table 1.
    pub table: Vec<Row>,
    /// Figure 2: what they take.
    pub footprint: Option<Footprint>,
    /// Figure 2: how long contexts live.
    pub lifetimes: Lifetimes,
    /// What is missing, and why.
    pub lacks: Vec<String>,
    /// Filters of which nothing was seen, a sentence each.
    #[serde(default)]
    pub unseen: Vec<String>,
}

/// Sockets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sockets {
    /// How many there are.
    pub known: u64,
    /// What their queues take.
    pub memory: Bytes,
    /// Those that were asked for.
    pub sockets: Vec<Socket>,
    /// Whether there are fewer of them than were asked for: a list has an end.
    #[serde(default)]
    pub cut: bool,
}
