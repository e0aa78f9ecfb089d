//! Numbers of the protocol, and how they are read and written: big-endian.

use std::io::{self, Read};

pub(super) const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(super) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The most bytes of a request. A client that asks for the block sizes is told.
pub(super) const MOST: u32 = 32 << 20;
/// The most bytes of an option.
pub(super) const MOST_OPTION: u32 = 16 << 10;
/// The one context of block status that there is.
pub(super) const ALLOCATION: &[u8] = b"base:allocation";
/// Its number.
pub(super) const ALLOCATION_ID: u32 = 1;

pub(super) mod option {
    pub(in crate::nbd) const EXPORT_NAME: u32 = 1;
    pub(in crate::nbd) const ABORT: u32 = 2;
    pub(in crate::nbd) const LIST: u32 = 3;
    pub(in crate::nbd) const INFO: u32 = 6;
    pub(in crate::nbd) const GO: u32 = 7;
    pub(in crate::nbd) const STRUCTURED_REPLY: u32 = 8;
    pub(in crate::nbd) const LIST_META_CONTEXT: u32 = 9;
    pub(in crate::nbd) const SET_META_CONTEXT: u32 = 10;
}

pub(super) mod option_reply {
    pub(in crate::nbd) const ACK: u32 = 1;
    pub(in crate::nbd) const SERVER: u32 = 2;
    pub(in crate::nbd) const INFO: u32 = 3;
    pub(in crate::nbd) const META_CONTEXT: u32 = 4;
    pub(in crate::nbd) const UNSUPPORTED: u32 = 0x8000_0001;
    pub(in crate::nbd) const INVALID: u32 = 0x8000_0003;
    pub(in crate::nbd) const UNKNOWN: u32 = 0x8000_0006;
    pub(in crate::nbd) const TOO_BIG: u32 = 0x8000_0009;
}

pub(super) mod command {
    pub(in crate::nbd) const READ: u16 = 0;
    pub(in crate::nbd) const WRITE: u16 = 1;
    pub(in crate::nbd) const DISCONNECT: u16 = 2;
    pub(in crate::nbd) const FLUSH: u16 = 3;
    pub(in crate::nbd) const TRIM: u16 = 4;
    pub(in crate::nbd) const WRITE_ZEROES: u16 = 6;
    pub(in crate::nbd) const BLOCK_STATUS: u16 = 7;
    pub(in crate::nbd) const FLAG_FUA: u16 = 1;
    pub(in crate::nbd) const FLAG_NO_HOLE: u16 = 2;
    pub(in crate::nbd) const FLAG_DONT_FRAGMENT: u16 = 4;
    pub(in crate::nbd) const FLAG_ONE: u16 = 8;
}

pub(super) mod error {
    pub(in crate::nbd) const PERMISSION: u32 = 1;
    pub(in crate::nbd) const IO: u32 = 5;
    pub(in crate::nbd) const INVALID: u32 = 22;
    pub(in crate::nbd) const NO_SPACE: u32 = 28;
    pub(in crate::nbd) const TOO_LARGE: u32 = 75;
}

pub(super) mod chunk {
    pub(in crate::nbd) const NONE: u16 = 0;
    pub(in crate::nbd) const OFFSET_DATA: u16 = 1;
    pub(in crate::nbd) const BLOCK_STATUS: u16 = 5;
    pub(in crate::nbd) const ERROR: u16 = 0x8001;
    pub(in crate::nbd) const FLAG_DONE: u16 = 1;
}

/// A big-endian number of a stream.
pub(super) trait Number: Sized {
    fn read(from: &mut impl Read) -> io::Result<Self>;
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn read(from: &mut impl Read) -> io::Result<Self> {
                let mut bytes = [0; size_of::<$type>()];
                from.read_exact(&mut bytes)?;
                Ok(Self::from_be_bytes(bytes))
            }
        }
    )*};
}
number!(u16, u32, u64);

/// A broken promise of the other side.
pub(super) fn breach(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}
