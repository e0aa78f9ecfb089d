//! From what tracepoints say to calls: which file a descriptor stands for, and what is not told.

use std::collections::{BTreeMap, BTreeSet};

use terrace_core::{Bytes, Nanos};
use terrace_kloc::tracing::{Event, Inode, What};

use super::{Counted, Made, RecordedFile, Recording};
use crate::kernel::{Advice, Call, MOST};

/// System calls of x86-64 that a recording is about.
mod number {
    pub(super) const READ: i64 = 0;
    pub(super) const WRITE: i64 = 1;
    pub(super) const OPEN: i64 = 2;
    pub(super) const CLOSE: i64 = 3;
    pub(super) const STAT: i64 = 4;
    pub(super) const FSTAT: i64 = 5;
    pub(super) const LSTAT: i64 = 6;
    pub(super) const LSEEK: i64 = 8;
    pub(super) const MMAP: i64 = 9;
    pub(super) const MUNMAP: i64 = 11;
    pub(super) const PREAD: i64 = 17;
    pub(super) const PWRITE: i64 = 18;
    pub(super) const READV: i64 = 19;
    pub(super) const WRITEV: i64 = 20;
    pub(super) const DUP: i64 = 32;
    pub(super) const DUP2: i64 = 33;
    pub(super) const SOCKET: i64 = 41;
    pub(super) const CONNECT: i64 = 42;
    pub(super) const ACCEPT: i64 = 43;
    pub(super) const SENDTO: i64 = 44;
    pub(super) const RECVFROM: i64 = 45;
    pub(super) const SENDMSG: i64 = 46;
    pub(super) const RECVMSG: i64 = 47;
    pub(super) const EXECVE: i64 = 59;
    pub(super) const EXIT: i64 = 60;
    pub(super) const FCNTL: i64 = 72;
    pub(super) const FSYNC: i64 = 74;
    pub(super) const FDATASYNC: i64 = 75;
    pub(super) const TRUNCATE: i64 = 76;
    pub(super) const FTRUNCATE: i64 = 77;
    pub(super) const GETDENTS: i64 = 78;
    pub(super) const RENAME: i64 = 82;
    pub(super) const CREAT: i64 = 85;
    pub(super) const UNLINK: i64 = 87;
    pub(super) const GETDENTS64: i64 = 217;
    pub(super) const EXIT_GROUP: i64 = 231;
    pub(super) const OPENAT: i64 = 257;
    pub(super) const NEWFSTATAT: i64 = 262;
    pub(super) const UNLINKAT: i64 = 263;
    pub(super) const RENAMEAT: i64 = 264;
    pub(super) const ACCEPT4: i64 = 288;
    pub(super) const DUP3: i64 = 292;
    pub(super) const PREADV: i64 = 295;
    pub(super) const PWRITEV: i64 = 296;
    pub(super) const RENAMEAT2: i64 = 316;
    pub(super) const PREADV2: i64 = 327;
    pub(super) const PWRITEV2: i64 = 328;
    pub(super) const STATX: i64 = 332;
    pub(super) const IO_URING_ENTER: i64 = 426;
    pub(super) const OPENAT2: i64 = 437;
    pub(super) const CLOSE_RANGE: i64 = 436;
    pub(super) const IO_SUBMIT: i64 = 209;
    pub(super) const FADVISE: i64 = 221;
    pub(super) const SENDFILE: i64 = 40;
    pub(super) const SENDMMSG: i64 = 307;
    pub(super) const RECVMMSG: i64 = 299;
    pub(super) const COPY_FILE_RANGE: i64 = 326;
    pub(super) const SPLICE: i64 = 275;
}

/// `CLONE_FILES` and `CLONE_THREAD`: the child has the same descriptors.
const CLONE_FILES: u64 = 0x400;
/// `O_CLOEXEC`.
const CLOSE_ON_EXEC: u64 = 0o2_000_000;
/// `O_TRUNC`.
const TRUNCATE: u64 = 0o1000;
/// `O_DIRECTORY`.
const DIRECTORY: u64 = 0o200_000;
/// `O_DIRECT`.
const DIRECT: u64 = 0o40_000;
/// `F_DUPFD`, `F_DUPFD_CLOEXEC`.
const DUPLICATE: [u64; 2] = [0, 1030];
/// `AF_INET`, `AF_INET6`.
const INTERNET: [u64; 2] = [2, 10];
/// `AT_FDCWD` and other negative descriptors are those of no file.
const MOST_DESCRIPTORS: u64 = 1 << 20;

/// What a descriptor stands for. Several descriptors may stand for one.
#[derive(Clone, Copy, Debug)]
struct Description {
    kind: Kind,
    /// Where `read` and `write` go on.
    position: u64,
    /// Descriptors that stand for it.
    holders: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File(u32),
    Socket(u32),
    /// Pipes, directories, sockets of one machine.
    Other,
}

/// Descriptors of a process, and its mappings of files.
#[derive(Debug, Default)]
struct Process {
    /// Number of the description, and whether `execve` closes it.
    descriptors: BTreeMap<u64, (usize, bool)>,
    mappings: BTreeMap<u64, u32>,
    threads: u32,
}

/// What a descriptor or a path stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descriptor {
    /// A regular file.
    File,
    /// A socket to other machines.
    Socket,
    /// A directory, a pipe, a terminal, a socket of one machine.
    Other,
}

/// What a recorder that runs in the program's own process sees of a call's file or socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    /// What it is.
    pub(crate) descriptor: Descriptor,
    /// Which file.
    pub(crate) inode: Inode,
    /// How long the file was before the call.
    pub(crate) bytes: u64,
}

/// A call that such a recorder has seen from its beginning to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The system call.
    pub(crate) number: i64,
    pub(crate) arguments: [u64; 6],
    pub(crate) result: i64,
    pub(crate) cpu: u16,
    /// From when to when.
    pub(crate) time: (Nanos, Nanos),
    /// What it is about: its descriptor, the one that it gives back, or its path.
    pub(crate) object: Option<Object>,
    /// Whether a file that is opened was there before.
    pub(crate) existed: bool,
    /// Whether a name that is deleted was the file's last.
    pub(crate) last_name: bool,
    /// The file whose name another one takes, and how long it is.
    pub(crate) replaced: Option<(Inode, u64)>,
    /// Where data went to or came from.
    pub(crate) offset: Option<u64>,
}

/// A call under way.
#[derive(Clone, Copy, Debug)]
struct Pending {
    number: i64,
    arguments: [u64; 6],
    at: Nanos,
    /// What the kernel told meanwhile.
    touched: Option<Inode>,
    written_at: Option<u64>,
    made: Option<Inode>,
    unlinked: Option<Inode>,
    /// What the recorder has seen of it: nothing where tracepoints tell.
    object: Option<Object>,
    replaced: Option<(Inode, u64)>,
    last_name: bool,
}

impl Pending {
    fn new(number: i64, arguments: [u64; 6], at: Nanos) -> Self {
        Self {
            number,
            arguments,
            at,
            touched: None,
            written_at: None,
            made: None,
            unlinked: None,
            object: None,
            replaced: None,
            last_name: true,
        }
    }

    /// The descriptor that it is about, if it needs one that is open.
    fn descriptor(&self) -> Option<u64> {
        match self.number {
            number::READ
            | number::READV
            | number::RECVFROM
            | number::RECVMSG
            | number::WRITE
            | number::WRITEV
            | number::SENDTO
            | number::SENDMSG
            | number::PREAD
            | number::PREADV
            | number::PREADV2
            | number::PWRITE
            | number::PWRITEV
            | number::PWRITEV2
            | number::FSYNC
            | number::FDATASYNC
            | number::FADVISE
            | number::FSTAT => Some(self.arguments[0]),
            number::MMAP => Some(self.arguments[4]),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Thread {
    process: usize,
    /// Its number in the recording, once it has made a call.
    number: Option<u32>,
    pending: Option<Pending>,
    /// What the kernel did in the call under way.
    allocated: Vec<String>,
    bios: u64,
}

impl Thread {
    fn new(process: usize) -> Self {
        Self { process, number: None, pending: None, allocated: Vec::new(), bios: 0 }
    }
}

/// Takes events, gives a recording.
#[derive(Debug, Default)]
pub struct Translator {
    threads: BTreeMap<u32, Thread>,
    processes: Vec<Process>,
    descriptions: Vec<Description>,
    /// Files by what the kernel calls them.
    inodes: BTreeMap<Inode, u32>,
    /// Those that the program made.
    of_program: BTreeSet<Inode>,
    files: Vec<RecordedFile>,
    /// A file that turned out to be another, under the number of its own.
    same_as: Vec<u32>,
    /// How far each file was written.
    written: Vec<u64>,
    sockets: u32,
    recorded: u32,
    begin: Option<Nanos>,
    calls: Vec<Made>,
    skipped: BTreeMap<&'static str, u64>,
    counted: Counted,
    lost: u64,
    limit: Option<u64>,
}

impl Translator {
    /// A translator that keeps at most so many calls.
    pub fn new(limit: Option<u64>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Enters a line of `trace_pipe`.
    pub fn line(&mut self, line: &str) {
        if let Some(event) = Event::parse(line) {
            self.event(&event);
        } else if let Some(lost) = Event::lost(line) {
            self.lost += lost;
        }
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.len() as u64
    }

    /// Whether the program made a file. It may be deleted by now, and its pages leave after that.
    fn is_made(&self, inode: &Inode) -> bool {
        self.of_program.contains(inode)
    }

    /// Whether a call makes or deletes a file of the program's, or is about one that is open.
    fn is_about_made(&self, process: usize, call: &Pending) -> bool {
        let open = || match self.kind(process, call.arguments[0]) {
            Some(Kind::File(file)) => !self.files[self.file_of(file) as usize].existed,
            _ => false,
        };
        call.made.is_some() || call.unlinked.is_some_and(|inode| self.is_made(&inode)) || open()
    }

    fn skip(&mut self, why: &'static str) {
        *self.skipped.entry(why).or_default() += 1;
    }

    fn thread(&mut self, id: u32) -> &mut Thread {
        let processes = &mut self.processes;
        self.threads.entry(id).or_insert_with(|| {
            processes.push(Process { threads: 1, ..Process::default() });
            Thread::new(processes.len() - 1)
        })
    }

    /// Enters an event.
    pub fn event(&mut self, event: &Event) {
        self.begin.get_or_insert(event.at);
        let known = self.thread(event.thread);
        let (process, pending) = (known.process, &mut known.pending);
        match &event.what {
            What::Enter { number, arguments } => {
                let number = *number;
                *pending = Some(Pending::new(number, *arguments, event.at));
                if number == number::EXIT || number == number::EXIT_GROUP {
                    self.exit(event, number == number::EXIT_GROUP);
                }
            }
            What::Exit { number, result } => {
                let call = pending.take().filter(|pending| pending.number == *number);
                let allocated = core::mem::take(&mut known.allocated);
                let bios = core::mem::take(&mut known.bios);
                if let Some(call) = call {
                    if self.is_about_made(process, &call) {
                        self.counted.bios += bios;
                        for cache in allocated {
                            *self.counted.allocated.entry(cache).or_default() += 1;
                        }
                    }
                    self.ended(event, process, &call, *result);
                }
            }
            What::Forked { child, flags } => self.forked(process, *child, *flags),
            What::PagesRead { inode, .. } => {
                if let Some(pending) = pending {
                    pending.touched.get_or_insert(*inode);
                }
            }
            What::Written { inode, offset } => {
                if let Some(pending) = pending {
                    pending.touched.get_or_insert(*inode);
                    pending.written_at.get_or_insert(*offset);
                }
            }
            What::PagesAdded { inode, pages } => {
                if let Some(pending) = pending {
                    pending.touched.get_or_insert(*inode);
                }
                if self.is_made(inode) {
                    self.counted.pages_added += u64::from(*pages);
                }
            }
            What::PagesRemoved { inode, pages } => {
                if self.is_made(inode) {
                    self.counted.pages_removed += u64::from(*pages);
                }
            }
            What::Made { inode } => {
                if let Some(pending) = pending {
                    pending.made = Some(*inode);
                }
                self.of_program.insert(*inode);
            }
            What::Unlinked { inode } => {
                if let Some(pending) = pending {
                    pending.unlinked = Some(*inode);
                }
            }
            What::PageFaulted { inode, offset } => self.faulted(event, process, *inode, *offset),
            What::Allocated { cache } if pending.is_some() => known.allocated.push(cache.clone()),
            What::BioQueued if pending.is_some() => known.bios += 1,
            // Outside of calls: faults.
            What::Allocated { .. } | What::BioQueued => {}
        }
    }

    /// Enters a call that a recorder in the program's process has seen; the threads of a program
    /// share their descriptors. Gives what it comes to.
    pub(crate) fn seen(&mut self, thread: u32, seen: &Seen) -> Vec<Made> {
        self.begin.get_or_insert(seen.time.0);
        if !self.threads.contains_key(&thread) {
            match self.threads.values().next().map(|known| known.process) {
                Some(process) => self.forked(process, thread, CLONE_FILES),
                None => drop(self.thread(thread)),
            }
        }
        let process = self.thread(thread).process;
        let file = seen.object.filter(|object| object.descriptor == Descriptor::File);
        let opens = [number::OPEN, number::OPENAT, number::CREAT, number::OPENAT2];
        let unlinks = [number::UNLINK, number::UNLINKAT];
        let inode_if = |is: bool| file.filter(|_| is).map(|file| file.inode);
        let pending = Pending {
            touched: inode_if(true),
            written_at: seen.offset,
            made: inode_if(opens.contains(&seen.number) && !seen.existed),
            unlinked: inode_if(unlinks.contains(&seen.number)),
            object: seen.object,
            replaced: seen.replaced,
            last_name: seen.last_name,
            ..Pending::new(seen.number, seen.arguments, seen.time.0)
        };
        let what = What::Exit { number: seen.number, result: seen.result };
        let event = Event { thread, cpu: seen.cpu, at: seen.time.1, what };
        self.ended(&event, process, &pending, seen.result);
        core::mem::take(&mut self.calls)
    }

    /// The program that such a recorder watched has ended: what it had open is closed.
    pub(crate) fn exited(&mut self, thread: u32, cpu: u16, at: Nanos) -> Vec<Made> {
        let what = What::Enter { number: number::EXIT_GROUP, arguments: [0; 6] };
        self.exit(&Event { thread, cpu, at, what }, true);
        core::mem::take(&mut self.calls)
    }

    /// Files that appeared so far.
    pub(crate) fn files(&self) -> &[RecordedFile] {
        &self.files
    }

    /// Sockets that appeared so far.
    pub(crate) fn sockets(&self) -> u32 {
        self.sockets
    }

    /// Calls that are not among the calls, by why.
    pub(crate) fn skipped(&self) -> &BTreeMap<&'static str, u64> {
        &self.skipped
    }

    /// Enters a call that was made.
    fn made(&mut self, thread: u32, cpu: u16, (at, end): (Nanos, Nanos), call: Call) {
        if self.limit.is_some_and(|limit| self.calls() >= limit) {
            self.skip("after the limit");
            return;
        }
        let begin = self.begin.unwrap_or(at);
        let recorded = &mut self.recorded;
        let number = self.threads.get_mut(&thread).map_or(0, |thread| {
            *thread.number.get_or_insert_with(|| {
                *recorded += 1;
                *recorded - 1
            })
        });
        let took = end.saturating_sub(at);
        self.calls.push(Made { thread: number, cpu, at: at.saturating_sub(begin), took, call });
    }

    // --- files ------------------------------------------------------------------

    fn new_file(&mut self, inode: Option<Inode>, existed: bool) -> u32 {
        let number = self.files.len() as u32;
        let known = inode.map(|inode| (inode.device, inode.number));
        self.files.push(RecordedFile { inode: known, existed, bytes: Bytes::ZERO });
        self.same_as.push(number);
        self.written.push(0);
        if let Some(inode) = inode {
            self.inodes.insert(inode, number);
        }
        number
    }

    /// The file that a recorder in the process has seen.
    fn seen_file(&mut self, object: Object) -> u32 {
        if let Some(&known) = self.inodes.get(&object.inode) {
            return self.file_of(known);
        }
        let file = self.new_file(Some(object.inode), true);
        self.files[file as usize].bytes = Bytes(object.bytes);
        file
    }

    /// A descriptor was open before the recording began, or came another way than by a call.
    fn adopt(&mut self, event: &Event, process: usize, call: &Pending) {
        let (Some(object), Some(descriptor)) = (call.object, call.descriptor()) else { return };
        if descriptor >= MOST_DESCRIPTORS || self.described(process, descriptor).is_some() {
            return;
        }
        let time = (call.at, call.at);
        let kind = match object.descriptor {
            Descriptor::File => {
                let file = self.seen_file(object);
                self.made(event.thread, event.cpu, time, Call::Open { file });
                Kind::File(file)
            }
            Descriptor::Socket if self.sockets < MOST => {
                let socket = self.sockets;
                self.sockets += 1;
                self.made(event.thread, event.cpu, time, Call::Socket { socket });
                Kind::Socket(socket)
            }
            Descriptor::Socket | Descriptor::Other => Kind::Other,
        };
        let description = self.new_description(kind);
        self.describe(event, process, descriptor, (description, false));
    }

    fn file_of(&self, number: u32) -> u32 {
        let mut number = number;
        while self.same_as[number as usize] != number {
            number = self.same_as[number as usize];
        }
        number
    }

    /// The kernel has told which file one is.
    fn identify(&mut self, number: u32, inode: Inode) {
        let number = self.file_of(number);
        if self.files[number as usize].inode.is_some() {
            return;
        }
        if let Some(other) = self.inodes.get(&inode).copied() {
            let other = self.file_of(other);
            self.same_as[number as usize] = other;
            let bytes = self.files[number as usize].bytes;
            let known = &mut self.files[other as usize].bytes;
            *known = (*known).max(bytes);
        } else {
            self.files[number as usize].inode = Some((inode.device, inode.number));
            self.inodes.insert(inode, number);
        }
    }

    // --- processes --------------------------------------------------------------

    fn forked(&mut self, parent: usize, child: u32, flags: u64) {
        let process = if flags & CLONE_FILES != 0 {
            self.processes[parent].threads += 1;
            parent
        } else {
            let descriptors = self.processes[parent].descriptors.clone();
            for (description, _) in descriptors.values() {
                self.descriptions[*description].holders += 1;
            }
            self.processes.push(Process { descriptors, threads: 1, ..Process::default() });
            self.processes.len() - 1
        };
        self.threads.insert(child, Thread::new(process));
    }

    /// A thread ends, or all of its process: the last one takes the descriptors with it.
    fn exit(&mut self, event: &Event, group: bool) {
        let Some(thread) = self.threads.get(&event.thread) else { return };
        let process = thread.process;
        let threads = &mut self.processes[process].threads;
        *threads = if group { 0 } else { threads.saturating_sub(1) };
        if *threads == 0 {
            self.unmap_all(event, process);
            let descriptors = core::mem::take(&mut self.processes[process].descriptors);
            for (description, _) in descriptors.into_values() {
                self.let_go(event, (event.at, event.at), description);
            }
        }
    }

    fn unmap_all(&mut self, event: &Event, process: usize) {
        let mappings = core::mem::take(&mut self.processes[process].mappings);
        for file in mappings.into_values() {
            self.made(event.thread, event.cpu, (event.at, event.at), Call::Unmap { file });
        }
    }

    /// A descriptor is gone.
    fn let_go(&mut self, event: &Event, time: (Nanos, Nanos), description: usize) {
        let known = &mut self.descriptions[description];
        known.holders = known.holders.saturating_sub(1);
        if known.holders > 0 {
            return;
        }
        match known.kind {
            Kind::File(file) => self.made(event.thread, event.cpu, time, Call::Close { file }),
            Kind::Socket(socket) => {
                self.made(event.thread, event.cpu, time, Call::CloseSocket { socket });
            }
            Kind::Other => {}
        }
    }

    fn faulted(&mut self, event: &Event, process: usize, inode: Inode, offset: u64) {
        let Some(&file) = self.inodes.get(&inode) else {
            self.skip("faults of mappings that nobody was seen to make");
            return;
        };
        let file = self.file_of(file);
        let mapped =
            self.processes[process].mappings.values().any(|&other| self.file_of(other) == file);
        if !mapped {
            self.skip("faults of mappings that nobody was seen to make");
            return;
        }
        self.needs(file, offset + 1);
        let call = Call::Access { file, offset, bytes: 1, store: false };
        self.made(event.thread, event.cpu, (event.at, event.at), call);
    }

    /// A file was at least so long before the program wrote to it.
    fn needs(&mut self, file: u32, bytes: u64) {
        let file = self.file_of(file) as usize;
        if bytes > self.written[file] {
            let known = &mut self.files[file].bytes;
            *known = (*known).max(Bytes(bytes));
        }
    }

    // --- calls --------------------------------------------------------------------

    fn described(&self, process: usize, descriptor: u64) -> Option<usize> {
        self.processes[process].descriptors.get(&descriptor).map(|&(description, _)| description)
    }

    fn describe(&mut self, event: &Event, process: usize, descriptor: u64, what: (usize, bool)) {
        if let Some((old, _)) = self.processes[process].descriptors.insert(descriptor, what) {
            // `dup2` closes what was there; a close that was not seen comes to the same.
            self.let_go(event, (event.at, event.at), old);
        }
    }

    fn new_description(&mut self, kind: Kind) -> usize {
        self.descriptions.push(Description { kind, position: 0, holders: 1 });
        self.descriptions.len() - 1
    }

    /// A system call has ended.
    fn ended(&mut self, event: &Event, process: usize, call: &Pending, result: i64) {
        let [first, second, third, fourth, ..] = call.arguments;
        let time = (call.at, event.at);
        // Errors are small negative numbers; addresses may be negative.
        if (-4095..0).contains(&result) {
            return;
        }
        self.adopt(event, process, call);
        match call.number {
            number::OPEN | number::OPENAT | number::CREAT | number::OPENAT2 => {
                let flags = match call.number {
                    number::OPEN => second,
                    number::OPENAT => third,
                    // The flags of `openat2` lie in memory.
                    _ => 0,
                };
                self.opened(event, process, call, result as u64, flags);
            }
            number::CLOSE => {
                if let Some((description, _)) = self.processes[process].descriptors.remove(&first) {
                    self.let_go(event, time, description);
                }
            }
            number::CLOSE_RANGE => {
                let open: Vec<u64> = self.processes[process]
                    .descriptors
                    .range(first..)
                    .map(|(&descriptor, _)| descriptor)
                    .take_while(|&descriptor| descriptor <= second)
                    .collect();
                for descriptor in open {
                    // CLOSE_RANGE_CLOEXEC
                    if third & 4 != 0 {
                        if let Some(known) =
                            self.processes[process].descriptors.get_mut(&descriptor)
                        {
                            known.1 = true;
                        }
                    } else if let Some((description, _)) =
                        self.processes[process].descriptors.remove(&descriptor)
                    {
                        self.let_go(event, time, description);
                    }
                }
            }
            number::DUP | number::DUP2 | number::DUP3 | number::FCNTL => {
                let duplicates = call.number != number::FCNTL || DUPLICATE.contains(&second);
                if duplicates && result as u64 != first {
                    let closes = match call.number {
                        number::FCNTL => second == DUPLICATE[1],
                        number::DUP3 => third & CLOSE_ON_EXEC != 0,
                        _ => false,
                    };
                    if let Some(description) = self.described(process, first) {
                        self.descriptions[description].holders += 1;
                        self.describe(event, process, result as u64, (description, closes));
                    }
                }
            }
            number::READ | number::READV | number::RECVFROM | number::RECVMSG => {
                self.transfer(event, process, call, result, None, false);
            }
            number::WRITE | number::WRITEV | number::SENDTO | number::SENDMSG => {
                self.transfer(event, process, call, result, None, true);
            }
            number::PREAD | number::PREADV | number::PREADV2 => {
                self.transfer(event, process, call, result, Some(fourth), false);
            }
            number::PWRITE | number::PWRITEV | number::PWRITEV2 => {
                self.transfer(event, process, call, result, Some(fourth), true);
            }
            number::LSEEK => {
                if let Some(description) = self.described(process, first) {
                    self.descriptions[description].position = result as u64;
                }
            }
            number::FSYNC | number::FDATASYNC => {
                if let Some(Kind::File(file)) = self.kind(process, first) {
                    self.made(event.thread, event.cpu, time, Call::Fsync { file });
                }
            }
            number::FSTAT => {
                if let Some(Kind::File(file)) = self.kind(process, first) {
                    self.made(event.thread, event.cpu, time, Call::Stat { file });
                }
            }
            number::STAT | number::LSTAT | number::NEWFSTATAT | number::STATX => {
                // Tracepoints do not tell of which file.
                if let Some(object) = call.object.filter(|o| o.descriptor == Descriptor::File) {
                    let file = self.seen_file(object);
                    self.made(event.thread, event.cpu, time, Call::Stat { file });
                }
            }
            number::TRUNCATE | number::FTRUNCATE => {
                self.skip("files cut or grown (truncate)");
            }
            number::MMAP => {
                // The fifth argument is the descriptor.
                if let Some(Kind::File(file)) = self.kind(process, call.arguments[4]) {
                    self.made(event.thread, event.cpu, time, Call::Map { file });
                    // A mapping in the place of another one replaces it.
                    let old = self.processes[process].mappings.insert(result as u64, file);
                    if let Some(file) = old {
                        self.made(event.thread, event.cpu, time, Call::Unmap { file });
                    }
                }
            }
            number::MUNMAP => {
                if let Some(file) = self.processes[process].mappings.remove(&first) {
                    self.made(event.thread, event.cpu, time, Call::Unmap { file });
                }
            }
            number::SOCKET | number::ACCEPT | number::ACCEPT4 => {
                self.new_socket(event, process, call, result as u64);
            }
            number::CONNECT => {
                if let Some(Kind::Socket(socket)) = self.kind(process, first) {
                    self.made(event.thread, event.cpu, time, Call::Connect { socket });
                }
            }
            number::UNLINK | number::UNLINKAT => match call.unlinked {
                Some(_) if !call.last_name => self.skip("names of files that have others"),
                Some(inode) => {
                    let bytes = call.object.map_or(0, |object| object.bytes);
                    self.unlinked(event, time, inode, bytes);
                }
                // A directory.
                None if call.object.is_some() => {}
                None => self.skip("deletions on file systems that do not tell of which file"),
            },
            number::RENAME | number::RENAMEAT | number::RENAMEAT2 if call.object.is_some() => {
                let file = call.object.filter(|o| o.descriptor == Descriptor::File);
                if let Some(object) = file {
                    if let Some((inode, bytes)) = call.replaced.filter(|o| o.0 != object.inode) {
                        self.unlinked(event, time, inode, bytes);
                    }
                    let file = self.seen_file(object);
                    self.made(event.thread, event.cpu, time, Call::Rename { file });
                }
            }
            number::RENAME | number::RENAMEAT | number::RENAMEAT2 => {
                self.skip("renames: no tracepoint tells of which file");
            }
            number::GETDENTS | number::GETDENTS64 if result > 0 => {
                // An entry takes some 32 bytes.
                let entries = (result as u64 / 32).max(1) as u32;
                self.made(event.thread, event.cpu, time, Call::ReadDir { entries });
            }
            number::EXECVE => {
                self.unmap_all(event, process);
                let closed: Vec<u64> = self.processes[process]
                    .descriptors
                    .iter()
                    .filter(|(_, known)| known.1)
                    .map(|(&descriptor, _)| descriptor)
                    .collect();
                for descriptor in closed {
                    if let Some((description, _)) =
                        self.processes[process].descriptors.remove(&descriptor)
                    {
                        self.let_go(event, time, description);
                    }
                }
            }
            number::IO_URING_ENTER | number::IO_SUBMIT => {
                self.skip("asynchronous I/O (io_uring, libaio)");
            }
            number::SENDFILE | number::COPY_FILE_RANGE | number::SPLICE => {
                self.skip("copies within the kernel (sendfile, splice, copy_file_range)");
            }
            number::FADVISE => {
                let (offset, bytes) = (second, third);
                match (self.kind(process, first), Advice::of_linux(fourth)) {
                    (None, _) => self.skip("advice on descriptors that were open before"),
                    (Some(_), None) => {
                        self.skip("advice that changes nothing (POSIX_FADV_NOREUSE)");
                    }
                    (Some(Kind::File(file)), Some(advice)) => {
                        let call = Call::Advise { file, offset, bytes, advice };
                        self.made(event.thread, event.cpu, time, call);
                    }
                    (Some(_), Some(_)) => {}
                }
            }
            number::SENDMMSG | number::RECVMMSG => self.skip("several messages in one call"),
            _ => {}
        }
    }

    /// A file's last name is gone.
    fn unlinked(&mut self, event: &Event, time: (Nanos, Nanos), inode: Inode, bytes: u64) {
        let file = self.inodes.remove(&inode).map(|file| self.file_of(file));
        let file = file.unwrap_or_else(|| {
            let file = self.new_file(Some(inode), true);
            self.files[file as usize].bytes = Bytes(bytes);
            file
        });
        // The inode's number may be another file's soon.
        self.inodes.remove(&inode);
        self.made(event.thread, event.cpu, time, Call::Unlink { file });
    }

    fn kind(&self, process: usize, descriptor: u64) -> Option<Kind> {
        if descriptor >= MOST_DESCRIPTORS {
            return None;
        }
        self.described(process, descriptor).map(|description| self.descriptions[description].kind)
    }

    fn opened(
        &mut self,
        event: &Event,
        process: usize,
        call: &Pending,
        descriptor: u64,
        flags: u64,
    ) {
        let time = (call.at, event.at);
        let other = call.object.is_some_and(|object| object.descriptor != Descriptor::File);
        let kind = if flags & DIRECTORY != 0 || self.files.len() as u32 >= MOST || other {
            Kind::Other
        } else if let Some(object) = call.object.filter(|_| call.made.is_none()) {
            let file = self.seen_file(object);
            if flags & TRUNCATE != 0 && object.bytes > 0 {
                self.skip("files cut when they were opened (O_TRUNC): their pages stay");
            }
            if flags & DIRECT != 0 {
                self.skip("files opened past the page cache (O_DIRECT), recorded as others");
            }
            self.made(event.thread, event.cpu, time, Call::Open { file });
            Kind::File(file)
        } else {
            let file = self.new_file(call.made, call.made.is_none());
            let what =
                if call.made.is_some() { Call::Create { file } } else { Call::Open { file } };
            if flags & DIRECT != 0 {
                self.skip("files opened past the page cache (O_DIRECT), recorded as others");
            }
            self.made(event.thread, event.cpu, time, what);
            Kind::File(file)
        };
        let description = self.new_description(kind);
        let closes = flags & CLOSE_ON_EXEC != 0;
        self.describe(event, process, descriptor, (description, closes));
    }

    fn new_socket(&mut self, event: &Event, process: usize, call: &Pending, descriptor: u64) {
        let accepted = call.number != number::SOCKET;
        let internet = if accepted {
            matches!(self.kind(process, call.arguments[0]), Some(Kind::Socket(_)))
        } else {
            INTERNET.contains(&call.arguments[0])
        };
        let kind = if internet && self.sockets < MOST {
            let socket = self.sockets;
            self.sockets += 1;
            let what = if accepted { Call::Accept { socket } } else { Call::Socket { socket } };
            self.made(event.thread, event.cpu, (call.at, event.at), what);
            Kind::Socket(socket)
        } else {
            Kind::Other
        };
        let description = self.new_description(kind);
        self.describe(event, process, descriptor, (description, false));
    }

    /// Data went through a descriptor.
    fn transfer(
        &mut self,
        event: &Event,
        process: usize,
        call: &Pending,
        result: i64,
        at: Option<u64>,
        write: bool,
    ) {
        let time = (call.at, event.at);
        let Some(description) = self.described(process, call.arguments[0]) else {
            self.skip("transfers through descriptors that were open before");
            return;
        };
        let bytes = u32::try_from(result).unwrap_or(u32::MAX);
        match self.descriptions[description].kind {
            Kind::File(file) => {
                if let Some(inode) = call.touched {
                    self.identify(file, inode);
                }
                // Where it went at the end of the file, whatever the position was.
                let offset = call.written_at.filter(|_| at.is_none());
                let offset = offset.or(at).unwrap_or(self.descriptions[description].position);
                let end = offset.saturating_add(u64::from(bytes));
                if at.is_none() {
                    self.descriptions[description].position = end;
                }
                let file = self.file_of(file);
                if write {
                    let written = &mut self.written[file as usize];
                    *written = (*written).max(end);
                    let call = Call::Write { file, offset, bytes };
                    self.made(event.thread, event.cpu, time, call);
                } else {
                    if bytes > 0 {
                        self.needs(file, end);
                    }
                    let call = Call::Read { file, offset, bytes };
                    self.made(event.thread, event.cpu, time, call);
                }
            }
            Kind::Socket(socket) if bytes > 0 => {
                if write {
                    let call = Call::Send { socket, bytes };
                    self.made(event.thread, event.cpu, time, call);
                } else {
                    // It came in before it was received.
                    let arrived = Call::Arrive { socket, bytes };
                    self.made(event.thread, event.cpu, (call.at, call.at), arrived);
                    self.made(event.thread, event.cpu, time, Call::Recv { socket });
                }
            }
            Kind::Socket(_) | Kind::Other => {}
        }
    }

    /// The recording, checked: calls that cannot have been made, because the kernel lost events,
    /// are left out and counted.
    pub fn finish(mut self, program: Vec<String>, recorder: String, kernel: String) -> Recording {
        let mut calls = core::mem::take(&mut self.calls);
        for made in &mut calls {
            made.call = self.renumbered(made.call);
        }
        // They were entered when they ended.
        calls.sort_by_key(|made| made.at);
        let mut recording = Recording {
            program,
            recorder,
            kernel,
            threads: self.recorded,
            lost: self.lost,
            skipped: named(core::mem::take(&mut self.skipped)),
            counted: core::mem::take(&mut self.counted),
            files: core::mem::take(&mut self.files),
            sockets: self.sockets,
            calls: Vec::new(),
        };
        let mut kept = Vec::with_capacity(calls.len());
        let mut check = super::recording::Check::new(&recording);
        let mut unfit = 0;
        for made in calls {
            match check.enter(&made) {
                Ok(()) => kept.push(made),
                Err(_) => unfit += 1,
            }
        }
        recording.calls = kept;
        if unfit > 0 {
            let why = "calls that do not fit the others (of threads at once, or events lost)";
            *recording.skipped.entry(why.to_owned()).or_default() += unfit;
        }
        recording
    }

    fn renumbered(&self, mut call: Call) -> Call {
        match &mut call {
            Call::Create { file }
            | Call::Open { file }
            | Call::Close { file }
            | Call::Read { file, .. }
            | Call::Write { file, .. }
            | Call::Fsync { file }
            | Call::Unlink { file }
            | Call::Rename { file }
            | Call::Stat { file }
            | Call::Map { file }
            | Call::Unmap { file }
            | Call::Access { file, .. }
            | Call::Advise { file, .. } => *file = self.file_of(*file),
            _ => {}
        }
        call
    }
}

fn named(skipped: BTreeMap<&'static str, u64>) -> BTreeMap<String, u64> {
    skipped.into_iter().map(|(why, calls)| (why.to_owned(), calls)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as the kernel writes them: a program makes a file, writes it at two places, reads it
    /// back through a second descriptor, and deletes it.
    #[test]
    fn descriptors_become_files() {
        let mut translator = Translator::new(None);
        let mut micros = 0;
        let mut line = |text: &str| {
            micros += 10;
            translator.line(&format!(" x-7 [001] ..... 5.{micros:06}: {text}"));
        };
        line("sys_enter: NR 257 (ffffff9c, 1, 42, 0, 0, 0)");
        line("ext4_allocate_inode: dev 254,0 ino 99 dir 2 mode 0100644");
        line("sys_exit: NR 257 = 3");
        for pos in [0, 4096] {
            line("sys_enter: NR 1 (3, 1, 1000, 0, 0, 0)");
            line(&format!("ext4_da_write_begin: dev 254,0 ino 99 pos {pos} len 4096"));
            line("mm_filemap_add_to_page_cache: dev 254:0 ino 63 pfn=0x1 ofs=0 order=0");
            line("sys_exit: NR 1 = 4096");
        }
        line("sys_enter: NR 257 (ffffff9c, 1, 0, 0, 0, 0)");
        line("sys_exit: NR 257 = 4");
        line("sys_enter: NR 17 (4, 1, 1000, 1000, 0, 0)");
        line("mm_filemap_get_pages: dev=254:0 ino=63 ofs=4096-8191");
        line("sys_exit: NR 17 = 4096");
        // `POSIX_FADV_DONTNEED` of the second page; `POSIX_FADV_NOREUSE` is none of ours.
        line("sys_enter: NR 221 (4, 1000, 1000, 4, 0, 0)");
        line("sys_exit: NR 221 = 0");
        line("sys_enter: NR 221 (4, 0, 0, 5, 0, 0)");
        line("sys_exit: NR 221 = 0");
        line("sys_enter: NR 263 (ffffff9c, 1, 0, 0, 0, 0)");
        line("ext4_unlink_enter: dev 254,0 ino 99 size 8192 parent 2");
        line("sys_exit: NR 263 = 0");
        line("sys_enter: NR 231 (0, 0, 0, 0, 0, 0)");
        let recording = translator.finish(vec![], String::new(), String::new());
        let calls: Vec<Call> = recording.calls.iter().map(|made| made.call).collect();
        assert_eq!(
            calls,
            [
                Call::Create { file: 0 },
                Call::Write { file: 0, offset: 0, bytes: 4096 },
                Call::Write { file: 0, offset: 4096, bytes: 4096 },
                Call::Open { file: 0 },
                Call::Read { file: 0, offset: 4096, bytes: 4096 },
                Call::Advise { file: 0, offset: 4096, bytes: 4096, advice: Advice::DontNeed },
                Call::Unlink { file: 0 },
                Call::Close { file: 0 },
                Call::Close { file: 0 },
            ]
        );
        assert_eq!(recording.counted.pages_added, 2);
        let skipped: Vec<_> = recording.skipped.into_iter().collect();
        let noreuse = "advice that changes nothing (POSIX_FADV_NOREUSE)".to_owned();
        assert_eq!(skipped, [(noreuse, 1)]);
        assert_eq!(recording.files[0].bytes, Bytes::ZERO, "it was written before it was read");
    }

    /// A child has descriptors of its own; a thread shares them.
    #[test]
    fn what_a_child_closes_stays_open_in_its_parent() {
        let mut translator = Translator::new(None);
        let mut micros = 0;
        let mut line = |thread: u32, text: &str| {
            micros += 10;
            translator.line(&format!(" x-{thread} [000] ..... 5.{micros:06}: {text}"));
        };
        line(7, "sys_enter: NR 2 (1, 0, 0, 0, 0, 0)");
        line(7, "sys_exit: NR 2 = 3");
        line(7, "task_newtask: pid=8 comm=x clone_flags=1200000 oom_score_adj=0");
        line(8, "sys_enter: NR 3 (3, 0, 0, 0, 0, 0)");
        line(8, "sys_exit: NR 3 = 0");
        line(7, "task_newtask: pid=9 comm=x clone_flags=3d0f00 oom_score_adj=0");
        line(9, "sys_enter: NR 3 (3, 0, 0, 0, 0, 0)");
        line(9, "sys_exit: NR 3 = 0");
        let recording = translator.finish(vec![], String::new(), String::new());
        let calls: Vec<(u32, Call)> =
            recording.calls.iter().map(|made| (made.thread, made.call)).collect();
        assert_eq!(calls, [(0, Call::Open { file: 0 }), (1, Call::Close { file: 0 })]);
    }
}
