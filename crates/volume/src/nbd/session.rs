//! One connection: requests are answered in the order in which they come.

use std::io::{self, BufReader, Read, Write};

use super::negotiation::{Agreed, Offer, negotiate};
use super::wire::{
    ALLOCATION_ID, MOST, Number, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, breach,
    chunk, command, error,
};
use crate::error::VolumeError;
use crate::lane::Lane;
use crate::pm::Pm;
use crate::volume::Volume;

/// Replies that wait for more requests that are here already, up to so many bytes.
const WAITING: usize = 256 << 10;
/// Extents that a reply to a question for block status has at most.
const EXTENTS: usize = 1024;

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The client said so.
    InOrder,
    /// It went away.
    Gone,
}

/// Serves one client, until it ends the connection. A breach of the protocol is an error; so is a
/// write after which the volume takes no more.
pub fn session<P: Pm>(
    volume: &Volume<P>,
    input: impl Read,
    output: impl Write,
) -> io::Result<Ended> {
    session_of(volume, input, output, || Ok(()))
}

/// The same; `agreed` is called when the client has negotiated, and may take its time from then on.
pub(super) fn session_of<P: Pm>(
    volume: &Volume<P>,
    input: impl Read,
    mut output: impl Write,
    agreed: impl FnOnce() -> io::Result<()>,
) -> io::Result<Ended> {
    let mut input = BufReader::with_capacity(64 << 10, input);
    let offer = Offer {
        bytes: volume.capacity().0,
        sector: volume.sector_size().bytes(),
        read_only: volume.is_read_only(),
    };
    let ended = match negotiate(&mut input, &mut output, offer) {
        Ok(Some(parts)) => {
            agreed()?;
            // Who only connects takes no lane from others.
            let mut lane = match volume.lane() {
                Ok(lane) => Some(lane),
                Err(VolumeError::ReadOnly) => None,
                Err(e) => return Err(io::Error::other(e)),
            };
            let agreed = parts;
            let replies = Vec::with_capacity(WAITING);
            let mut session =
                Session { volume, lane: lane.as_mut(), agreed, replies, data: Vec::new() };
            session.requests(&mut input, &mut output)
        }
        Ok(None) => Ok(Ended::InOrder),
        Err(e) => Err(e),
    };
    match ended {
        Err(e) if is_gone(&e) => Ok(Ended::Gone),
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Err(breach("it has connected, and does not negotiate"))
        }
        ended => ended,
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

struct Session<'s, 'v, P: Pm> {
    volume: &'v Volume<P>,
    lane: Option<&'s mut Lane<'v, P>>,
    agreed: Agreed,
    /// Replies that have not been sent.
    replies: Vec<u8>,
    /// Bytes of the request.
    data: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Request {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    length: u32,
}

impl<P: Pm> Session<'_, '_, P> {
    fn requests<I: Read>(
        &mut self,
        input: &mut BufReader<I>,
        output: &mut impl Write,
    ) -> io::Result<Ended> {
        loop {
            // Nobody waits longer for a reply than for requests that are here already.
            if input.buffer().is_empty() || self.replies.len() >= WAITING {
                output.write_all(&self.replies)?;
                output.flush()?;
                self.replies.clear();
            }
            if u32::read(input)? != REQUEST_MAGIC {
                return Err(breach("a request without its magic number"));
            }
            let request = Request {
                flags: u16::read(input)?,
                command: u16::read(input)?,
                cookie: u64::read(input)?,
                offset: u64::read(input)?,
                length: u32::read(input)?,
            };
            match request.command {
                command::DISCONNECT => {
                    output.write_all(&self.replies)?;
                    output.flush()?;
                    return Ok(Ended::InOrder);
                }
                command::WRITE => {
                    if request.length > MOST {
                        // It would have to be read to find the next request.
                        return Err(breach(format!("a write of {} bytes", request.length)));
                    }
                    self.data.resize(request.length as usize, 0);
                    input.read_exact(&mut self.data)?;
                }
                _ => {}
            }
            match self.answer(request) {
                Ok(()) => {}
                Err(code) => self.refuse(request, code),
            }
        }
    }

    /// Does what was asked for; an error is the protocol's number.
    fn answer(&mut self, request: Request) -> Result<(), u32> {
        let known = match request.command {
            command::READ => command::FLAG_DONT_FRAGMENT,
            command::WRITE_ZEROES => command::FLAG_NO_HOLE,
            command::BLOCK_STATUS => command::FLAG_ONE,
            _ => 0,
        } | command::FLAG_FUA;
        if request.flags & !known != 0 {
            return Err(error::INVALID);
        }
        let end = request.offset.checked_add(u64::from(request.length));
        let inside = end.is_some_and(|end| end <= self.volume.capacity().0);
        let fua = request.flags & command::FLAG_FUA != 0;
        match request.command {
            command::READ => {
                if !inside || request.length == 0 {
                    return Err(error::INVALID);
                }
                if request.length > MOST {
                    return Err(error::TOO_LARGE);
                }
                self.read(request)
            }
            command::WRITE => {
                if !inside {
                    return Err(error::NO_SPACE);
                }
                let (lba, _) = self.sectors(request)?;
                let lane = self.lane.as_mut().ok_or(error::PERMISSION)?;
                lane.write(lba, &self.data, fua).map_err(|e| code(&e))?;
                self.done(request);
                Ok(())
            }
            command::TRIM | command::WRITE_ZEROES => {
                if !inside {
                    let is_trim = request.command == command::TRIM;
                    return Err(if is_trim { error::INVALID } else { error::NO_SPACE });
                }
                let (lba, count) = self.sectors(request)?;
                let lane = self.lane.as_mut().ok_or(error::PERMISSION)?;
                if request.flags & command::FLAG_NO_HOLE == 0 {
                    lane.zero(lba, count, fua).map_err(|e| code(&e))?;
                } else {
                    // The client wants blocks that are there, so they are written.
                    let zeros = vec![0; (1 << 20).min(request.length as usize)];
                    let size = u64::from(self.volume.sector_size().bytes());
                    let mut left = u64::from(request.length);
                    let mut lba = lba;
                    while left > 0 {
                        let part = left.min(zeros.len() as u64);
                        let last = part == left;
                        lane.write(lba, &zeros[..part as usize], false).map_err(|e| code(&e))?;
                        (left, lba) = (left - part, lba + part / size);
                        if last && fua {
                            lane.flush().map_err(|e| code(&e))?;
                        }
                    }
                }
                self.done(request);
                Ok(())
            }
            command::FLUSH => {
                if request.offset != 0 || request.length != 0 {
                    return Err(error::INVALID);
                }
                // Nothing is written to a volume that is mounted for reading.
                if let Some(lane) = &mut self.lane {
                    lane.flush().map_err(|e| code(&e))?;
                }
                self.done(request);
                Ok(())
            }
            command::BLOCK_STATUS => {
                if !self.agreed.block_status || !inside || request.length == 0 {
                    return Err(error::INVALID);
                }
                self.block_status(request)
            }
            _ => Err(error::INVALID),
        }
    }

    /// The sectors of a request that changes something: whole ones.
    fn sectors(&self, request: Request) -> Result<(u64, u64), u32> {
        let size = u64::from(self.volume.sector_size().bytes());
        let length = u64::from(request.length);
        if !request.offset.is_multiple_of(size) || !length.is_multiple_of(size) {
            return Err(error::INVALID);
        }
        Ok((request.offset / size, length / size))
    }

    /// Reads any bytes: clients that do not ask for the block size may read parts of sectors.
    fn read(&mut self, request: Request) -> Result<(), u32> {
        let size = u64::from(self.volume.sector_size().bytes());
        let end = request.offset + u64::from(request.length);
        let first = request.offset / size;
        let before = (request.offset - first * size) as usize;
        let whole = (end.div_ceil(size) - first) * size;
        let start = self.replies.len();
        if self.agreed.structured {
            let flags = chunk::FLAG_DONE;
            self.chunk(request, flags, chunk::OFFSET_DATA, 8 + request.length);
            self.replies.extend(request.offset.to_be_bytes());
        } else {
            self.simple(request, 0);
        }
        // Straight into the reply; what surrounds it is cut off.
        let data = self.replies.len();
        self.replies.resize(data + whole as usize, 0);
        if let Err(e) = self.volume.read(first, &mut self.replies[data..]) {
            self.replies.truncate(start);
            return Err(code(&e));
        }
        if before > 0 {
            self.replies.copy_within(data + before..data + before + request.length as usize, data);
        }
        self.replies.truncate(data + request.length as usize);
        Ok(())
    }

    fn block_status(&mut self, request: Request) -> Result<(), u32> {
        let size = u64::from(self.volume.sector_size().bytes());
        let (lba, count) = self.sectors(request)?;
        let most = if request.flags & command::FLAG_ONE == 0 { EXTENTS } else { 1 };
        let mut extents = Vec::new();
        let mut done = 0;
        while done < count && extents.len() < most {
            let (hole, sectors) =
                self.volume.extent(lba + done, count - done).map_err(|e| code(&e))?;
            // Bit 0: nothing is allocated; bit 1: it reads as zeros.
            extents.push(((sectors * size) as u32, if hole { 3u32 } else { 0 }));
            done += sectors;
        }
        let length = 4 + 8 * extents.len() as u32;
        self.chunk(request, chunk::FLAG_DONE, chunk::BLOCK_STATUS, length);
        self.replies.extend(ALLOCATION_ID.to_be_bytes());
        for (bytes, state) in extents {
            self.replies.extend(bytes.to_be_bytes());
            self.replies.extend(state.to_be_bytes());
        }
        Ok(())
    }

    fn done(&mut self, request: Request) {
        if self.agreed.structured {
            self.chunk(request, chunk::FLAG_DONE, chunk::NONE, 0);
        } else {
            self.simple(request, 0);
        }
    }

    fn refuse(&mut self, request: Request, code: u32) {
        if self.agreed.structured {
            self.chunk(request, chunk::FLAG_DONE, chunk::ERROR, 6);
            self.replies.extend(code.to_be_bytes());
            self.replies.extend(0u16.to_be_bytes());
        } else {
            self.simple(request, code);
        }
    }

    fn simple(&mut self, request: Request, code: u32) {
        self.replies.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
        self.replies.extend(code.to_be_bytes());
        self.replies.extend(request.cookie.to_be_bytes());
    }

    fn chunk(&mut self, request: Request, flags: u16, kind: u16, length: u32) {
        self.replies.extend(STRUCTURED_REPLY_MAGIC.to_be_bytes());
        self.replies.extend(flags.to_be_bytes());
        self.replies.extend(kind.to_be_bytes());
        self.replies.extend(request.cookie.to_be_bytes());
        self.replies.extend(length.to_be_bytes());
    }
}

/// The protocol's number for an error.
fn code(error: &VolumeError) -> u32 {
    match error {
        VolumeError::ReadOnly => error::PERMISSION,
        VolumeError::OutOfRange { .. } | VolumeError::Unaligned { .. } => error::INVALID,
        VolumeError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
            error::NO_SPACE
        }
        _ => error::IO,
    }
}
