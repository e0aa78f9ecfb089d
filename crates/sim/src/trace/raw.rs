//! What the recorder sends while the program runs: blocks of accesses as they
//! are, through a pipe.
//!
//! ```text
//! block   u32 kind, u32 thread, u64 count, then `count` words of eight bytes
//!
//! kind    its words
//! 1       accesses
//! 2       start and length of what was mapped, in turn
//! 3       start and length of what was unmapped
//! 4       none: the end
//! 5       where the memory of the next kind 2 comes from:
//!         0 anonymous, 1 only reserved, 2 a file, 3 the heap
//! 6       length and text of /proc/self/maps before the program's first instruction
//! 7       a system call for I/O that has ended, see below
//! 8       1: another program is about to take this one's place (execve);
//!         0: that came to nothing
//! 9       as 6, before the program was mapped: all of it is the recorder's own
//!
//! words   of a call, 20
//! 1       its number
//! 1       its result
//! 6       its arguments
//! 1       the processor
//! 2       begin and end, ns
//! 1       what its descriptor or path is:
//!         0 unknown, 1 a file, 2 a socket to other machines, 3 something else
//! 1       bits: 0 it was there before; 1 it had no other name;
//!         2 another file lost its name to it
//! 3       device, inode and length of the file; a socket's cookie stands for the inode
//! 1       where in the file data went or came from; all ones: not known
//! 3       device, inode and length of the file that lost its name
//! ```
//!
//! Among accesses there are entries that access nothing and say how many
//! instructions pass ([`Access::pass`]).

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use terrace_core::Nanos;
use terrace_kloc::tracing::Inode;

use super::format::TraceError;
use super::import::Importer;
use super::io::{IoCheck, IoRecord};
use super::summary::{Fate, Notes};
use crate::error::SimError;
use crate::exact::{Access, Batch, Image, Origin, SpaceEvent};
use crate::kernel::Call;
use crate::kernel::recorded::{Descriptor, Made, Object, Seen, Translator};

/// What is missing where the program was replaced.
const REPLACED: &str = "everything after the program put another one in its place (execve): run \
     that one itself";
/// Words in a block, at most.
const MOST: u64 = 1 << 20;
/// Words of a call.
const CALL: usize = 20;
/// `mmap`, and its flag that stores go to the file.
const MMAP: i64 = 9;
const MAP_SHARED: u64 = 1;

/// Reads what a recorder sends.
pub(super) struct RawReader<R> {
    from: R,
    name: PathBuf,
    program: String,
    events: Vec<SpaceEvent>,
    origins: Vec<(usize, Origin)>,
    images: Vec<Image>,
    /// Where the memory comes from that is mapped next.
    origin: Option<Origin>,
    bytes: Vec<u8>,
    read: u64,
    /// The recorder said that the program came to its end.
    ended: bool,
    /// It went away before: programs that are killed do not say so.
    cut: bool,
    /// What was mapped before the program was.
    before: Vec<(u64, u64)>,
    /// Another program was about to take its place.
    replaced: bool,
    calls: Calls,
}

/// From system calls to records.
#[derive(Default)]
struct Calls {
    translator: Translator,
    /// Files and sockets that were told of.
    files: usize,
    sockets: u32,
    check: IoCheck,
    /// Calls that cannot have been made in the order in which they were told: of threads at once.
    unfit: u64,
    /// The thread, the processor and the time of the last one.
    last: Option<(u32, u16, Nanos)>,
}

impl Calls {
    /// A call has ended; nothing if the words are none. Records go to `io`.
    fn seen(&mut self, thread: u32, words: &[u64; CALL], io: &mut Vec<IoRecord>) -> Option<()> {
        let [number, result, _, _, _, _, _, _, cpu, begin, end, what, bits, rest @ ..] = *words;
        let mut arguments = [0; 6];
        arguments.copy_from_slice(&words[2..8]);
        let [device, inode, bytes, offset, other_device, other_inode, other_bytes] = rest;
        // As glibc's `gnu_dev_major` and `gnu_dev_minor`.
        let of = |device: u64, number: u64| Inode {
            device: (
                ((device >> 8 & 0xfff) | (device >> 32 & !0xfff)) as u32,
                ((device & 0xff) | (device >> 12 & !0xff)) as u32,
            ),
            number,
        };
        let object = |descriptor| Object { descriptor, inode: of(device, inode), bytes };
        let seen = Seen {
            number: number as i64,
            arguments,
            result: result as i64,
            cpu: cpu as u16,
            time: (Nanos(begin), Nanos(end)),
            object: match what {
                0 => None,
                1 => Some(object(Descriptor::File)),
                2 => Some(object(Descriptor::Socket)),
                3 => Some(object(Descriptor::Other)),
                _ => return None,
            },
            existed: bits & 1 != 0,
            last_name: bits & 2 != 0,
            replaced: (bits & 4 != 0).then(|| (of(other_device, other_inode), other_bytes)),
            offset: (offset != u64::MAX).then_some(offset),
        };
        let made = self.translator.seen(thread, &seen);
        self.last = Some((thread, seen.cpu, seen.time.1));
        let [_, length, _, flags, _, from] = arguments;
        let mapping = (seen.number == MMAP).then_some((result, length, from, flags));
        self.tell(thread, inode, &made, mapping, io);
        Some(())
    }

    /// The program has ended: what it had open is closed, by the thread that called last.
    fn ended(&mut self, io: &mut Vec<IoRecord>) -> u32 {
        let Some((thread, cpu, at)) = self.last.take() else { return 0 };
        let made = self.translator.exited(thread, cpu, at);
        self.tell(thread, 0, &made, None, io);
        thread
    }

    /// Records of calls that were made, what they are about before them. `mapping` has the start,
    /// length, offset and flags of what `mmap` made.
    fn tell(
        &mut self,
        thread: u32,
        cookie: u64,
        made: &[Made],
        mapping: Option<(u64, u64, u64, u64)>,
        io: &mut Vec<IoRecord>,
    ) {
        let files = self.translator.files()[self.files..].iter();
        let files = files.map(|&file| IoRecord::File(file));
        let sockets =
            (self.sockets..self.translator.sockets()).map(|_| IoRecord::Socket { cookie });
        let objects: Vec<IoRecord> = files.chain(sockets).collect();
        self.files = self.translator.files().len();
        self.sockets = self.translator.sockets();
        let calls = made.iter().flat_map(|&Made { cpu, at, took, call, .. }| {
            let mapped = match (call, mapping) {
                (Call::Map { file }, Some((start, len, offset, flags))) => {
                    let shared = flags & MAP_SHARED != 0;
                    Some(IoRecord::Mapped { file, start, len, offset, shared })
                }
                _ => None,
            };
            [Some(IoRecord::Call { cpu, at, took, call }), mapped].into_iter().flatten()
        });
        for record in objects.into_iter().chain(calls) {
            match self.check.enter(thread, &record) {
                Ok(()) => io.push(record),
                Err(_) => self.unfit += 1,
            }
        }
    }
}

impl<R: Read> RawReader<R> {
    /// Begins to read; `program` is what it describes itself as.
    pub(super) fn new(from: R, program: &str) -> Self {
        Self {
            from,
            name: Path::new("the recorder").to_owned(),
            program: program.to_owned(),
            events: Vec::new(),
            origins: Vec::new(),
            images: Vec::new(),
            origin: None,
            bytes: Vec::new(),
            read: 0,
            ended: false,
            cut: false,
            before: Vec::new(),
            replaced: false,
            calls: Calls::default(),
        }
    }

    fn bad(&self, message: &str) -> SimError {
        TraceError {
            file: self.name.clone(),
            readable: self.read,
            message: message.to_owned(),
            source: None,
        }
        .into()
    }
}

impl<R: Read> Importer for RawReader<R> {
    fn describe(&self) -> String {
        self.program.clone()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        batch.clear();
        loop {
            let mut head = [0; 16];
            if self.ended {
                return Ok(false);
            }
            match self.from.read_exact(&mut head) {
                Ok(()) => {}
                // A program that was killed: what came so far counts.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    self.cut = true;
                    return Ok(false);
                }
                Err(e) => return Err(self.bad(&e.to_string())),
            }
            let word = |at: usize| {
                u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
            };
            let (kind, thread) = (word(0), word(4));
            let count = u64::from(word(8)) | u64::from(word(12)) << 32;
            if count > MOST || !(1..=9).contains(&kind) {
                return Err(self.bad("sent something that is no block"));
            }
            self.bytes.resize(count as usize * 8, 0);
            if self.from.read_exact(&mut self.bytes).is_err() {
                self.cut = true;
                return Ok(false);
            }
            let mut words = self.bytes.chunks_exact(8).map(|bytes| {
                let mut eight = [0; 8];
                eight.copy_from_slice(bytes);
                u64::from_le_bytes(eight)
            });
            match kind {
                1 => {
                    batch.thread = thread;
                    batch.events.append(&mut self.events);
                    batch.origins.append(&mut self.origins);
                    batch.images.append(&mut self.images);
                    batch.accesses.extend(words.map(Access::from_bits));
                    self.read += count;
                    return Ok(true);
                }
                4 => {
                    self.ended = true;
                    batch.thread = self.calls.ended(&mut batch.io);
                    if !batch.io.is_empty() {
                        return Ok(true);
                    }
                }
                7 => {
                    let words: Vec<u64> = words.collect();
                    let seen = <&[u64; CALL]>::try_from(&words[..])
                        .ok()
                        .and_then(|words| self.calls.seen(thread, words, &mut batch.io));
                    if seen.is_none() {
                        return Err(self.bad("sent something that is no call"));
                    }
                    if !batch.io.is_empty() {
                        batch.thread = thread;
                        batch.events.append(&mut self.events);
                        batch.origins.append(&mut self.origins);
                        batch.images.append(&mut self.images);
                        return Ok(true);
                    }
                }
                5 => {
                    self.origin = match words.next() {
                        Some(0) => Some(Origin::Anonymous),
                        Some(1) => Some(Origin::Reserved),
                        Some(2) => Some(Origin::File),
                        Some(3) => Some(Origin::Heap),
                        _ => return Err(self.bad("sent something that is no origin")),
                    };
                }
                6 | 9 => {
                    let len = words.next().unwrap_or(0) as usize;
                    let text = self.bytes.get(8..).unwrap_or_default();
                    let text = String::from_utf8_lossy(&text[..len.min(text.len())]);
                    if kind == 9 {
                        self.before = text.lines().filter_map(range).collect();
                    } else {
                        self.images = images(&added(&self.before, &text));
                    }
                }
                8 => self.replaced = words.next() == Some(1),
                _ => {
                    while let (Some(start), Some(len)) = (words.next(), words.next()) {
                        if kind == 2
                            && let Some(origin) = self.origin.take()
                        {
                            self.origins.push((self.events.len(), origin));
                        }
                        self.events.push(if kind == 2 {
                            SpaceEvent::Map { start, len }
                        } else {
                            SpaceEvent::Unmap { start, len }
                        });
                    }
                }
            }
        }
    }

    fn tell(&self, notes: &mut Notes) {
        let cut =
            "what threads had not sent when the program was killed (up to 4096 accesses each)";
        notes.whole(Fate::Dropped, self.cut && !self.replaced, cut);
        notes.whole(Fate::Dropped, self.cut && self.replaced, REPLACED);
        let unfit = "calls that do not fit the others (of threads at once)";
        notes.calls(self.calls.unfit, unfit);
        for (&why, &count) in self.calls.translator.skipped() {
            notes.calls(count, why);
        }
    }
}

/// The range of a line of `/proc/PID/maps`.
fn range(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// The lines of `maps` without what was mapped before, in order of addresses. The kernel makes one line of neighbours
/// alike, and several of one whose rights change: so ranges are compared, not lines.
fn added(before: &[(u64, u64)], maps: &str) -> String {
    let mut text = String::new();
    for line in maps.lines() {
        let (Some((mut start, end)), Some((_, rest))) = (range(line), line.split_once(' ')) else {
            continue;
        };
        for &(from, to) in before {
            if to <= start || end <= from {
                continue;
            }
            if start < from {
                text += &format!("{start:08x}-{from:08x} {rest}\n");
            }
            start = to;
        }
        if start < end {
            text += &format!("{start:08x}-{end:08x} {rest}\n");
        }
    }
    text
}

/// The parts of files in a text like `/proc/PID/maps`: what follows data without a name is of
/// the same file, zeros that are not in it.
fn images(maps: &str) -> Vec<Image> {
    let mut images: Vec<Image> = Vec::new();
    for line in maps.lines() {
        let mut words = line.splitn(6, ' ');
        let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
        let path = words.nth(3).unwrap_or_default().trim_start();
        let Some((start, end)) = range.split_once('-') else { continue };
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (Some(start), Some(end)) = (hex(start), hex(end)) else { continue };
        let (len, writable) = (end.saturating_sub(start), rights.contains('w'));
        match images.last_mut() {
            Some(last)
                if last.start + last.len == start
                    && last.writable == writable
                    && (path.is_empty() && writable || path == last.path) =>
            {
                last.len += len;
            }
            _ if path.starts_with('/') => {
                images.push(Image { start, len, path: path.to_owned(), writable });
            }
            _ => {}
        }
    }
    images
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Such a program ends well and has hardly accessed anything: who looks at what was recorded
    /// has to know why.
    #[test]
    fn what_was_mapped_before_the_program_is_not_the_program_s() {
        let before = "5000-9000 r-xp 00000000 08:01 7      /usr/bin/qemu\n\
                      9000-a000 rw-p 00000000 00:00 0 \n";
        let before: Vec<_> = before.lines().filter_map(range).collect();
        let now = "00001000-00002000 r-xp 00000000 08:01 8      /home/a program\n\
                   00005000-00006000 r--p 00000000 08:01 7      /usr/bin/qemu\n\
                   00006000-00009000 r-xp 00000000 08:01 7      /usr/bin/qemu\n\
                   00008000-0000c000 rw-p 00000000 00:00 0 \n\
                   nonsense\n";
        assert_eq!(
            added(&before, now),
            "00001000-00002000 r-xp 00000000 08:01 8      /home/a program\n\
             0000a000-0000c000 rw-p 00000000 00:00 0 \n"
        );
        assert_eq!(added(&[], now).lines().count(), 4, "all of it, where nothing was noted");
        let around = [(0x2000, 0x3000)];
        let cut = added(&around, "1000-4000 rw-p 0 00:00 0 \n");
        assert_eq!(cut, "00001000-00002000 rw-p 0 00:00 0 \n00003000-00004000 rw-p 0 00:00 0 \n");
    }

    #[test]
    fn a_program_that_another_one_replaces_is_told() {
        let told = |blocks: &[(u32, u64)]| {
            let mut bytes = Vec::new();
            for (kind, word) in blocks {
                bytes.extend(kind.to_le_bytes());
                bytes.extend([0; 4]);
                bytes.extend(1u64.to_le_bytes());
                bytes.extend(word.to_le_bytes());
            }
            let mut reader = RawReader::new(&bytes[..], "sh");
            let mut batch = Batch::default();
            while reader.next(&mut batch).expect("good blocks") {}
            let mut notes = Notes::default();
            reader.tell(&mut notes);
            notes.into_vec().iter().map(|note| note.what).collect::<Vec<_>>()
        };
        assert_eq!(told(&[(1, 64), (8, 1)]), [REPLACED]);
        assert_eq!(told(&[(1, 64), (8, 1), (8, 0), (4, 0)]), [""; 0], "it was in vain");
        let killed = told(&[(1, 64), (8, 1), (8, 0), (1, 64)]);
        assert!(killed.len() == 1 && killed[0].contains("killed"), "{killed:?}");
    }

    #[test]
    fn what_follows_data_without_a_name_is_the_file_s() {
        let maps = "00400000-00401000 r--p 00000000 08:01 12      /bin/prog name\n\
                    00401000-00402000 r-xp 00001000 08:01 12      /bin/prog name\n\
                    00404000-00405000 rw-p 00003000 08:01 12      /bin/prog name\n\
                    00405000-00805000 rw-p 00000000 00:00 0 \n\
                    7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n\
                    nonsense\n";
        let path = || "/bin/prog name".to_owned();
        assert_eq!(
            images(maps),
            [
                Image { start: 0x40_0000, len: 0x2000, path: path(), writable: false },
                Image { start: 0x40_4000, len: 0x40_1000, path: path(), writable: true },
            ]
        );
    }
}
