//! The trace file.
//!
//! ```text
//! header   "TERRTRC\0", u32 version, u32 length, then JSON: what was recorded
//! chunk    "CHNK", u32 entries, u32 batches, u32 compressed length,
//!          u32 length of each of four streams, then one zstd frame of them:
//!          batches, codes, distances, metas
//! …
//! index    "INDX", u32 chunks, then for each: u64 offset, u64 first access;
//!          u64 accesses of the whole trace
//! end      u64 offset of the index, "TERREND\0"
//! ```
//!
//! An entry is an access, or says how many instructions pass without one. The index
//! counts accesses only. Version 1 has no such entries: it loses instructions beyond
//! 255 between two accesses, and counts fetches where it has them. Up to version 2, each access
//! stands for an instruction, and up to 255 others may be before it; since version 3, at most 254,
//! and 255 says that the instruction of the access before makes this one, too. Since version 4, a
//! batch may have what its thread asked the kernel for before its accesses ([`super::io`]), behind
//! what happened to the address space. A trace without any differs in its version alone. Since version
//! 5, advice (`posix_fadvise`) may be among these calls.
//!
//! All numbers are little-endian. A chunk can be decoded by itself, so a reader
//! may begin at any; a zstd frame has a checksum of its content.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// First bytes of a trace.
pub(super) const MAGIC: [u8; 8] = *b"TERRTRC\0";
/// Last bytes of a trace that is complete.
pub(super) const END: [u8; 8] = *b"TERREND\0";
pub(super) const CHUNK: [u8; 4] = *b"CHNK";
pub(super) const INDEX: [u8; 4] = *b"INDX";
/// Version of the format that is written.
pub const VERSION: u32 = 5;
/// The oldest version that is read.
pub(super) const OLDEST: u32 = 1;
/// The first in which accesses may be of one instruction.
pub(super) const SHARED: u32 = 3;
/// The first with calls.
pub(super) const WITH_CALLS: u32 = 4;
/// Entries in a chunk: how much of the trace a reader holds at once.
pub(super) const CHUNK_ENTRIES: usize = 1 << 20;
/// Bytes of a chunk's batches after which it is closed: those of calls.
pub(super) const CHUNK_BATCHES: usize = 1 << 22;
/// No chunk of ours has more entries, nor longer streams; others are refused
/// before memory is taken for them.
pub(super) const MOST_ENTRIES: u32 = 1 << 22;
pub(super) const MOST_BYTES: u32 = 1 << 26;

/// Whether bytes are the beginning of a trace.
pub fn is_meant(begin: &[u8]) -> bool {
    begin.starts_with(&MAGIC)
}

/// What was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceHeader {
    /// The program with its arguments, or what the trace was made from.
    pub program: Vec<String>,
    /// What recorded or converted it.
    pub recorder: String,
    /// Whether instruction fetches are in it: version 1 may have them. They are
    /// passed over.
    #[serde(default)]
    pub fetches: bool,
}

/// Why a trace cannot be read on.
#[derive(Debug, Error)]
#[error("{}: {message}", file.display())]
pub struct TraceError {
    /// The file.
    pub file: PathBuf,
    /// Accesses that were readable before.
    pub readable: u64,
    /// What is wrong.
    pub message: String,
    /// What the system said.
    #[source]
    pub source: Option<io::Error>,
}
