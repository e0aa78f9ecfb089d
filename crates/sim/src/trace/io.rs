//! What a program asked the kernel for, between its accesses.
//!
//! A trace since version 4 has these records in the order in which they happened; advice is in those
//! since version 5. Files and sockets have numbers in the order in which they appear; what they were
//! on the machine of the recording is told once, before the first call on them.
//!
//! ```text
//! record   u8 tag, then its numbers in groups of seven bits (0 and 1 are what happens to
//!          the address space):
//!          2 file: device's major, minor, inode, existed (0, 1), bytes
//!          3 socket: cookie
//!          4 mapped: file, start, length, offset in the file, shared (0, 1)
//!          16… a call: processor, begin, duration (both in ns), then what is its own
//! ```

use std::collections::BTreeMap;

use terrace_core::{Bytes, Nanos};

use super::codec::{read_varint, varint};
use crate::kernel::recorded::{Check, RecordedFile, Unfit};
use crate::kernel::{Advice, Call, MOST};

/// One thing that a program's recorder tells of I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoRecord {
    /// A file that later calls name by its number: the next one, from 0.
    File(RecordedFile),
    /// A socket that later calls name by its number: the next one, from 0.
    Socket {
        /// What the kernel calls it (`SO_COOKIE`); 0 where it did not tell.
        cookie: u64,
    },
    /// Where the mapping lies that the call before made.
    Mapped {
        /// Of this file.
        file: u32,
        /// The first address.
        start: u64,
        /// How many bytes.
        len: u64,
        /// Where in the file it begins.
        offset: u64,
        /// Whether stores go to the file; if not, a page that is stored to is the program's own.
        shared: bool,
    },
    /// A call that was made.
    Call {
        /// The processor.
        cpu: u16,
        /// When it began, since the recording did.
        at: Nanos,
        /// How long it took there.
        took: Nanos,
        /// What was asked for.
        call: Call,
    },
}

/// Tags below this are not of records.
pub(super) const FIRST: u8 = FILE;
const FILE: u8 = 2;
const SOCKET: u8 = 3;
const MAPPED: u8 = 4;
/// The first tag of a call.
const CALLS: u8 = 16;

impl IoRecord {
    /// Appends the record; false for a call that no recorder writes.
    pub fn encode(&self, out: &mut Vec<u8>) -> bool {
        match *self {
            Self::File(RecordedFile { inode, existed, bytes }) => {
                let ((major, minor), inode) = inode.unwrap_or_default();
                let (major, minor) = (u64::from(major), u64::from(minor));
                put(out, FILE, &[major, minor, inode, u64::from(existed), bytes.get()]);
            }
            Self::Socket { cookie } => put(out, SOCKET, &[cookie]),
            Self::Mapped { file, start, len, offset, shared } => {
                put(out, MAPPED, &[u64::from(file), start, len, offset, u64::from(shared)]);
            }
            Self::Call { cpu, at, took, call } => {
                let Some((tag, own, count)) = numbers(&call) else { return false };
                put(out, CALLS + tag, &[u64::from(cpu), at.get(), took.get()]);
                for &number in &own[..count] {
                    varint(out, number);
                }
            }
        }
        true
    }

    /// Reads a record; `None` where there is none.
    pub fn decode(from: &mut &[u8]) -> Option<Self> {
        let (&tag, rest) = from.split_first()?;
        *from = rest;
        let flag = |from: &mut &[u8]| match read_varint(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        let small = |from: &mut &[u8]| u32::try_from(read_varint(from)?).ok();
        match tag {
            FILE => {
                let (major, minor) = (small(from)?, small(from)?);
                let number = read_varint(from)?;
                let inode = Some(((major, minor), number));
                let (existed, bytes) = (flag(from)?, Bytes(read_varint(from)?));
                return Some(Self::File(RecordedFile { inode, existed, bytes }));
            }
            SOCKET => return Some(Self::Socket { cookie: read_varint(from)? }),
            MAPPED => {
                return Some(Self::Mapped {
                    file: small(from)?,
                    start: read_varint(from)?,
                    len: read_varint(from)?,
                    offset: read_varint(from)?,
                    shared: flag(from)?,
                });
            }
            _ => {}
        }
        let cpu = u16::try_from(read_varint(from)?).ok()?;
        let (at, took) = (Nanos(read_varint(from)?), Nanos(read_varint(from)?));
        let call = match tag.checked_sub(CALLS)? {
            0 => Call::Create { file: small(from)? },
            1 => Call::Open { file: small(from)? },
            2 => Call::Close { file: small(from)? },
            3 => Call::Read { file: small(from)?, offset: read_varint(from)?, bytes: small(from)? },
            4 => {
                Call::Write { file: small(from)?, offset: read_varint(from)?, bytes: small(from)? }
            }
            5 => Call::Fsync { file: small(from)? },
            6 => Call::Unlink { file: small(from)? },
            7 => Call::Rename { file: small(from)? },
            8 => Call::Stat { file: small(from)? },
            9 => Call::ReadDir { entries: small(from)? },
            10 => Call::Map { file: small(from)? },
            11 => Call::Unmap { file: small(from)? },
            12 => Call::Socket { socket: small(from)? },
            13 => Call::Connect { socket: small(from)? },
            14 => Call::Accept { socket: small(from)? },
            15 => Call::Arrive { socket: small(from)?, bytes: small(from)? },
            16 => Call::Epoll { socket: small(from)? },
            17 => Call::Recv { socket: small(from)? },
            18 => Call::Send { socket: small(from)?, bytes: small(from)? },
            19 => Call::CloseSocket { socket: small(from)? },
            20 => Call::Advise {
                file: small(from)?,
                offset: read_varint(from)?,
                bytes: read_varint(from)?,
                advice: Advice::of_linux(read_varint(from)?)?,
            },
            _ => return None,
        };
        Some(Self::Call { cpu, at, took, call })
    }
}

fn put(out: &mut Vec<u8>, tag: u8, numbers: &[u64]) {
    out.push(tag);
    for &number in numbers {
        varint(out, number);
    }
}

/// A call's tag, counted from [`CALLS`], and how many of the numbers are its own; nothing for what
/// no recorder writes.
fn numbers(call: &Call) -> Option<(u8, [u64; 4], usize)> {
    let one = |tag: u8, number: u32| (tag, [u64::from(number), 0, 0, 0], 1);
    let two = |tag: u8, a: u32, b: u32| (tag, [u64::from(a), u64::from(b), 0, 0], 2);
    let range = |tag: u8, file: u32, offset: u64, bytes: u32| {
        (tag, [u64::from(file), offset, u64::from(bytes), 0], 3)
    };
    Some(match *call {
        Call::Create { file } => one(0, file),
        Call::Open { file } => one(1, file),
        Call::Close { file } => one(2, file),
        Call::Read { file, offset, bytes } => range(3, file, offset, bytes),
        Call::Write { file, offset, bytes } => range(4, file, offset, bytes),
        Call::Fsync { file } => one(5, file),
        Call::Unlink { file } => one(6, file),
        Call::Rename { file } => one(7, file),
        Call::Stat { file } => one(8, file),
        Call::ReadDir { entries } => one(9, entries),
        Call::Map { file } => one(10, file),
        Call::Unmap { file } => one(11, file),
        Call::Socket { socket } => one(12, socket),
        Call::Connect { socket } => one(13, socket),
        Call::Accept { socket } => one(14, socket),
        Call::Arrive { socket, bytes } => two(15, socket, bytes),
        Call::Epoll { socket } => one(16, socket),
        Call::Recv { socket } => one(17, socket),
        Call::Send { socket, bytes } => two(18, socket, bytes),
        Call::CloseSocket { socket } => one(19, socket),
        Call::Advise { file, offset, bytes, advice } => {
            (20, [u64::from(file), offset, bytes, u64::from(advice.linux())], 4)
        }
        Call::Access { .. }
        | Call::Touch { .. }
        | Call::Use { .. }
        | Call::Release { .. }
        | Call::Compute { .. }
        | Call::Done
        | Call::Measure => return None,
    })
}

/// Why a record cannot stand where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnfitRecord {
    /// The call cannot have been made then.
    #[error(transparent)]
    Call(#[from] Unfit),
    /// A thread makes one call after the other.
    #[error("begins before the call of its thread that stands before it")]
    Order,
    /// More files or sockets than a kernel of ours has.
    #[error("there are more than {max} {0}", max = MOST)]
    TooMany(&'static str),
    /// A file that is not mapped then, or a range that no address space has.
    #[error("file {0} is not mapped as it is said to be")]
    Mapped(u32),
}

/// What must hold of the records of a trace, one after the other.
#[derive(Clone, Debug, Default)]
pub struct IoCheck {
    check: Check,
    /// When the last call of each thread began.
    begun: BTreeMap<u32, Nanos>,
    calls: u64,
}

impl IoCheck {
    /// Calls that were entered.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Enters what a thread's record says, if it can be so. After an error all is as before.
    pub fn enter(&mut self, thread: u32, record: &IoRecord) -> Result<(), UnfitRecord> {
        match *record {
            IoRecord::File(file) => {
                if !self.check.add_file(file.existed) {
                    return Err(UnfitRecord::TooMany("files"));
                }
            }
            IoRecord::Socket { .. } => {
                if !self.check.add_socket() {
                    return Err(UnfitRecord::TooMany("sockets"));
                }
            }
            IoRecord::Mapped { file, start, len, .. } => {
                let fits = start.checked_add(len).is_some_and(|end| end <= 1 << 48);
                if !fits || len == 0 || !self.check.is_mapped(file) {
                    return Err(UnfitRecord::Mapped(file));
                }
            }
            IoRecord::Call { at, call, .. } => {
                if self.begun.get(&thread).is_some_and(|&begun| at < begun) {
                    return Err(UnfitRecord::Order);
                }
                self.check.call(&call)?;
                self.begun.insert(thread, at);
                self.calls += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn calls() -> Vec<Call> {
        vec![
            Call::Create { file: 1 },
            Call::Open { file: u32::MAX },
            Call::Close { file: 3 },
            Call::Read { file: 4, offset: u64::MAX, bytes: 5 },
            Call::Write { file: 6, offset: 7, bytes: u32::MAX },
            Call::Fsync { file: 8 },
            Call::Unlink { file: 9 },
            Call::Rename { file: 10 },
            Call::Stat { file: 11 },
            Call::ReadDir { entries: 12 },
            Call::Map { file: 13 },
            Call::Unmap { file: 14 },
            Call::Socket { socket: 15 },
            Call::Connect { socket: 16 },
            Call::Accept { socket: 17 },
            Call::Arrive { socket: 18, bytes: 19 },
            Call::Epoll { socket: 20 },
            Call::Recv { socket: 21 },
            Call::Send { socket: 22, bytes: 23 },
            Call::CloseSocket { socket: 24 },
            Call::Advise { file: 25, offset: u64::MAX, bytes: 26, advice: Advice::DontNeed },
        ]
    }

    #[test]
    fn every_record_comes_back_as_it_was() {
        let file = RecordedFile { inode: Some(((8, 1), 77)), existed: true, bytes: Bytes(5) };
        let mut records = vec![
            IoRecord::File(file),
            IoRecord::Socket { cookie: u64::MAX },
            IoRecord::Mapped { file: 1, start: 1 << 40, len: 4096, offset: 8192, shared: true },
        ];
        records.extend(calls().into_iter().enumerate().map(|(number, call)| IoRecord::Call {
            cpu: number as u16,
            at: Nanos(number as u64 * 1000),
            took: Nanos(9),
            call,
        }));
        let mut bytes = Vec::new();
        for record in &records {
            assert!(record.encode(&mut bytes));
        }
        let mut from = &bytes[..];
        for record in &records {
            assert_eq!(IoRecord::decode(&mut from), Some(*record));
        }
        assert!(from.is_empty());
        let (cpu, at, took) = (0, Nanos::ZERO, Nanos::ZERO);
        let own = IoRecord::Call { cpu, at, took, call: Call::Done };
        assert!(!own.encode(&mut Vec::new()), "no program asks a kernel for that");
    }

    proptest! {
        /// What is decoded of any bytes is what those bytes say: nothing else decodes to it, but
        /// for numbers that are written longer than they need be.
        #[test]
        fn what_is_decoded_is_encoded_again(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut from = &bytes[..];
            if let Some(record) = IoRecord::decode(&mut from) {
                let mut again = Vec::new();
                prop_assert!(record.encode(&mut again));
                prop_assert!(again.len() <= bytes.len() - from.len());
                prop_assert_eq!(IoRecord::decode(&mut &again[..]), Some(record));
            }
        }
    }
}
