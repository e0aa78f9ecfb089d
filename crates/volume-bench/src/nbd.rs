//! A client of a network block device that has one request under way, or several: the same for
//! every server that is compared, so that what differs is the server.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::measure::Way;
use crate::target::{Client, Queue, Target};

// Numbers of the protocol (`doc/proto.md` of the network block device project).
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const EXPORT_NAME: u32 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
/// Bytes of a reply in front of its data.
const HEAD: usize = 16;
/// The number of a request that is the only one under way.
const ONLY: u64 = 1;

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
    fn has_queues(&self) -> bool {
        true
    }
    fn client(&self) -> io::Result<Box<dyn Client + '_>> {
        let (stream, _) = connect(&self.socket)?;
        Ok(Box::new(Connection { stream, out: Vec::new() }))
    }
}

fn connect(socket: &Path) -> io::Result<(UnixStream, u64)> {
    let mut stream = terrace_sockets::connect(socket)?;
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
    fn request(
        &mut self,
        number: u64,
        command: u16,
        at: u64,
        length: usize,
        data: &[u8],
    ) -> io::Result<()> {
        self.out.clear();
        self.out.extend(REQUEST_MAGIC.to_be_bytes());
        self.out.extend(0u16.to_be_bytes());
        self.out.extend(command.to_be_bytes());
        self.out.extend(number.to_be_bytes());
        self.out.extend(at.to_be_bytes());
        self.out.extend((length as u32).to_be_bytes());
        self.out.extend(data);
        self.stream.write_all(&self.out)
    }

    /// Reads a reply, with so many bytes of data behind it, in one call where they come at once;
    /// the number of its request.
    fn reply(&mut self, data: &mut [u8]) -> io::Result<u64> {
        let mut head = [0; HEAD];
        let mut got = 0;
        let mut number = None;
        while got < HEAD + data.len() {
            let count = if let Some(inside) = got.checked_sub(HEAD) {
                self.stream.read(&mut data[inside..])?
            } else {
                let mut parts =
                    [io::IoSliceMut::new(&mut head[got..]), io::IoSliceMut::new(&mut *data)];
                self.stream.read_vectored(&mut parts)?
            };
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            got += count;
            // As soon as it can be: no data come behind a refusal.
            if number.is_none() && got >= HEAD {
                number = Some(number_of(&head)?);
            }
        }
        number.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// One request, and its reply.
    fn exchange(
        &mut self,
        command: u16,
        at: u64,
        length: usize,
        data: &[u8],
        read: &mut [u8],
    ) -> io::Result<()> {
        self.request(ONLY, command, at, length, data)?;
        match self.reply(read)? {
            ONLY => Ok(()),
            number => Err(io::Error::other(format!("the server answers request {number}"))),
        }
    }
}

/// The number of the request that a reply is to, unless it is a refusal.
fn number_of(head: &[u8; HEAD]) -> io::Result<u64> {
    let word = |at: usize| head[at..].first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
    if word(0) != REPLY_MAGIC || word(4) != 0 {
        let message = format!("the server answers {:#x}: {}", word(0), word(4));
        return Err(io::Error::other(message));
    }
    Ok(head.last_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes)))
}

impl Client for Connection {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.exchange(READ, at, bytes.len(), &[], bytes)
    }
    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.exchange(WRITE, at, bytes.len(), bytes, &mut [])
    }
    fn flush(&mut self) -> io::Result<()> {
        self.exchange(FLUSH, 0, 0, &[], &mut [])
    }
    fn queue(&mut self) -> Option<&mut dyn Queue> {
        Some(self)
    }
}

impl Queue for Connection {
    fn send(&mut self, number: u64, way: Way, at: u64, bytes: &[u8]) -> io::Result<()> {
        match way {
            Way::Read => self.request(number, READ, at, bytes.len(), &[]),
            Way::Write => self.request(number, WRITE, at, bytes.len(), bytes),
        }
    }
    fn receive(&mut self, way: Way, bytes: &mut [u8]) -> io::Result<u64> {
        match way {
            Way::Read => self.reply(bytes),
            Way::Write => self.reply(&mut []),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;
    use std::time::Duration;

    use super::*;
    use crate::measure::{Job, Order, Plan, measure};

    const SECTOR: usize = 512;

    /// A server that waits until so many requests are there and replies to them in the opposite
    /// order. From then on it replies to each as it comes. With an error, it refuses all.
    struct Backwards {
        depth: usize,
        error: u32,
    }

    impl Backwards {
        /// Serves so many connections at a path, one after the other.
        fn serve(self, socket: &std::path::Path, connections: usize) -> JoinHandle<io::Result<()>> {
            let listener = UnixListener::bind(socket).unwrap();
            std::thread::spawn(move || {
                for _ in 0..connections {
                    let (stream, _) = listener.accept()?;
                    // What is waited for in vain is an error, and no test that hangs.
                    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
                    match self.connection(stream) {
                        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {}
                        ended => ended?,
                    }
                }
                Ok(())
            })
        }

        fn connection(&self, mut stream: UnixStream) -> io::Result<()> {
            stream.write_all(&[0; 18])?;
            stream.read_exact(&mut [0; 20])?;
            let mut export = [0; 10];
            export[..8].copy_from_slice(&(1u64 << 20).to_be_bytes());
            stream.write_all(&export)?;
            let mut first = Vec::new();
            for _ in 0..self.depth {
                first.push(Self::request(&mut stream)?);
            }
            for (number, command) in first.into_iter().rev() {
                self.reply(&mut stream, number, command)?;
            }
            loop {
                let (number, command) = Self::request(&mut stream)?;
                self.reply(&mut stream, number, command)?;
            }
        }

        fn request(stream: &mut UnixStream) -> io::Result<(u64, u16)> {
            let mut head = [0; 28];
            stream.read_exact(&mut head)?;
            assert_eq!(head[..4], REQUEST_MAGIC.to_be_bytes());
            let command = u16::from_be_bytes([head[6], head[7]]);
            if command == WRITE {
                stream.read_exact(&mut [0; SECTOR])?;
            }
            Ok((u64::from_be_bytes(*head[8..].first_chunk().unwrap()), command))
        }

        fn reply(&self, stream: &mut UnixStream, number: u64, command: u16) -> io::Result<()> {
            let mut reply = Vec::new();
            reply.extend(REPLY_MAGIC.to_be_bytes());
            reply.extend(self.error.to_be_bytes());
            reply.extend(number.to_be_bytes());
            if command == READ && self.error == 0 {
                reply.extend([7; SECTOR]);
            }
            stream.write_all(&reply)
        }
    }

    /// With fewer requests under way the server would not reply at all.
    #[test]
    fn so_many_requests_are_under_way_and_their_replies_come_in_any_order() {
        let directory = tempfile::tempdir().unwrap();
        for depth in [1, 4, 16] {
            for way in [Way::Read, Way::Write] {
                let socket = directory.path().join(format!("{depth}-{way:?}"));
                let serving = Backwards { depth, error: 0 }.serve(&socket, 2);
                let server = Server::new("backwards", socket).unwrap();
                let order = Order::Random;
                let job = Job { way, order, bytes: SECTOR, threads: 1, depth };
                let turn = Duration::from_millis(5);
                let plan = Plan { rounds: 1, turn, processor_time: false };
                let rows = measure(&[&server], job, plan, &|_, _| ()).unwrap();
                assert!(rows[0].per_second.median > 0.0 && rows[0].p50_us.is_some());
                serving.join().unwrap().unwrap();
            }
        }
    }

    /// No data come behind a refusal; whoever waits for them waits for ever.
    #[test]
    fn a_refused_read_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("refuses");
        let serving = Backwards { depth: 1, error: 5 }.serve(&socket, 2);
        let server = Server::new("refuses", socket).unwrap();
        let mut client = server.client().unwrap();
        let refused = client.read(0, &mut [0; SECTOR]).unwrap_err();
        assert!(refused.to_string().contains(": 5"), "{refused}");
        drop(client);
        serving.join().unwrap().unwrap();
    }
}
