//! Completes core dumps of programs that ran under `terrace run`.
//!
//! The kernel and debuggers do not wait for a pager: what is absent reads as zeros in a dump. Most
//! of it is in the dump all the same, in the memory of Terrace's store. This crate finds Terrace's
//! tables in a dump ([`terrace_live::failsafe::core_tables`]), says which pages are absent, and writes a dump
//! in which they are where they belong.
//!
//! A dump is anybody's file: no length and no address in it is believed. A page that cannot be
//! brought back is told of, and is not readable in the completed dump: a debugger says so, instead
//! of showing zeros.
//!
//! | file | concept |
//! |---|---|
//! | [`source`] | where bytes are read from |
//! | [`image`] | the memory that a dump holds |
//! | [`tables`] | Terrace's tables in it |
//! | [`survey`](mod@survey) | which pages are absent, and which of them can be brought back |
//! | [`content`] | the content of a page that is absent |
//! | [`write`](mod@write) | the completed dump |
//! | `sample` | a small dump made by hand, for tests and for fuzzing to begin with |

#![forbid(unsafe_code)]

pub mod content;
pub mod image;
#[doc(hidden)]
pub mod sample;
pub mod source;
pub mod survey;
pub mod tables;
pub mod write;

pub use image::Image;
pub use source::Source;
pub use survey::{Lost, Missing, Survey, survey};
pub use write::{Sink, write};

use std::io;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Why a dump cannot be completed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is no core dump, or one of another kind of machine.
    #[error("{0}")]
    Format(String),
    /// It ends too early.
    #[error(
        "the dump is cut off: its segments need {needed} bytes, and it has {there}; was there a \
         limit (ulimit -c), or too little room?"
    )]
    Truncated {
        /// Bytes that the headers speak of.
        needed: u64,
        /// Bytes that there are.
        there: u64,
    },
    /// Nothing of Terrace's is in it.
    #[error(
        "no tables of Terrace's are in it: the program did not run under `terrace run`, or all \
         its memory was in DRAM (then nothing is missing), or the dump leaves anonymous memory out \
         (see coredump_filter in core(5))"
    )]
    NoTables,
    /// Written by another version of Terrace.
    #[error("its tables are of version {found}; this command reads version {known}")]
    Version {
        /// The dump's.
        found: u64,
        /// Ours.
        known: u64,
    },
    /// The tables contradict themselves.
    #[error("the tables in it are damaged: {0}")]
    Damaged(String),
}

impl Error {
    /// What is wrong with an ELF file, in words of its own.
    pub(crate) fn format(what: impl Into<String>) -> Self {
        Self::Format(what.into())
    }
    /// What contradicts what.
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }
}

#[cfg(test)]
mod tests;
