//! A client of a network block device that has one request under way: the same for every server
//! that is compared, so that what differs is the server.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use crate::target::{Client, Target};

// Numbers of the protocol (`doc/proto.md` of the network block device project).
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const EXPORT_NAME: u32 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// A server that listens on a UNIX socket.
#[derive(Debug)]
pub struct Server {
    name: String,
    socket: PathBuf,
    capacity: u64,
}

impl Server {
    /// Connects once, to learn how large the device is.
    pub fn new(name: &str, socket: PathBuf) -> io::Result<Self> {
        let (_, capacity) = connect(&socket)?;
        Ok(Self { name: name.into(), socket, capacity })
    }
}

impl Target for Server {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn capacity(&self) -> u64 {
        self.capacity
    }
    fn client(&self) -> io::Result<Box<dyn Client + '_>> {
        let (stream, _) = connect(&self.socket)?;
        Ok(Box::new(Connection { stream, out: Vec::new() }))
    }
}

fn connect(socket: &PathBuf) -> io::Result<(UnixStream, u64)> {
    let mut stream = UnixStream::connect(socket)?;
    let mut hello = [0; 18];
    stream.read_exact(&mut hello)?;
    let mut option = Vec::new();
    // Fixed newstyle, without zeroes; the export without a name.
    option.extend(3u32.to_be_bytes());
    option.extend(OPTION_MAGIC.to_be_bytes());
    option.extend(EXPORT_NAME.to_be_bytes());
    option.extend(0u32.to_be_bytes());
    stream.write_all(&option)?;
    let mut export = [0; 10];
    stream.read_exact(&mut export)?;
    let size = export.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    Ok((stream, size))
}

struct Connection {
    stream: UnixStream,
    out: Vec<u8>,
}

impl Connection {
    fn request(&mut self, command: u16, at: u64, length: usize, data: &[u8]) -> io::Result<()> {
        self.out.clear();
        self.out.extend(REQUEST_MAGIC.to_be_bytes());
        self.out.extend(0u16.to_be_bytes());
        self.out.extend(command.to_be_bytes());
        self.out.extend(1u64.to_be_bytes());
        self.out.extend(at.to_be_bytes());
        self.out.extend((length as u32).to_be_bytes());
        self.out.extend(data);
        self.stream.write_all(&self.out)
    }

    /// Reads a reply, with so many bytes of data behind it, in one call where they come at once.
    fn reply(&mut self, data: &mut [u8]) -> io::Result<()> {
        let mut head = [0; 16];
        let mut parts = [io::IoSliceMut::new(&mut head), io::IoSliceMut::new(data)];
        let mut parts = &mut parts[..];
        while !parts.is_empty() {
            let count = self.stream.read_vectored(parts)?;
            if count == 0 && parts.iter().any(|part| !part.is_empty()) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            io::IoSliceMut::advance_slices(&mut parts, count);
            if parts.iter().all(|part| part.is_empty()) {
                break;
            }
        }
        let word = |at: usize| head[at..].first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
        if word(0) != REPLY_MAGIC || word(4) != 0 {
            return Err(io::Error::other(format!(
                "the server answers {:#x}: {}",
                word(0),
                word(4)
            )));
        }
        Ok(())
    }
}

impl Client for Connection {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.request(READ, at, bytes.len(), &[])?;
        self.reply(bytes)
    }
    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.request(WRITE, at, bytes.len(), bytes)?;
        self.reply(&mut [])
    }
    fn flush(&mut self) -> io::Result<()> {
        self.request(FLUSH, 0, 0, &[])?;
        self.reply(&mut [])
    }
}
