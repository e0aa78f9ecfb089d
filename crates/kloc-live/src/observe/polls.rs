//! Which files are open, by looking from time to time: for kernels without trampolines, where a hook on
//! opens runs at each system call of the machine, and one on closes at each object that is freed.
//!
//! A look reads the kernel's iterator over the files that processes have open. A file that it finds, and
//! the look before did not, was opened; a file that it does not find any more was closed. Many files are
//! opened and closed between two looks. Tracepoints of the page cache tell of them: a file whose pages
//! are read, or come into the cache, is taken for open from then on, until a look does not find it. Such
//! a use is told once, and again after the file was found closed. So a file is open once or not at all,
//! and the numbers of opens that come of it are lower bounds.
//!
//! A close is told at the next look, so what was closed leaves later than with other sets. A file may be
//! in use without being in a process's table: it is mapped, the kernel itself has it, or overlayfs has it
//! for a file of its own. Then it is closed and opened again as its pages are used, and the lease keeps it.
//!
//! **What it costs.** A look takes time for each descriptor of each process, also that of a socket. The
//! pause after it is 99 times as long as the processor time that it took, or longer. So looks take a
//! hundredth of a processor at most, however many files are open; the more there are, the later a close
//! is told. To that come, for each file that was used or closed and not for each look, the events, and
//! some microseconds to count what is still cached of it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{HashMap as Table, MapData, RingBuf};
use aya::programs::{Iter, ProgramError};
use terrace_clocks::thread_time;
use terrace_core::{Bytes, ContextIdentity, Nanos};

use super::event::{FileEvent, Kind, Record};
use super::hooks::OPEN_FILES;
use super::load::full;
use super::now;
use super::programs::{RING, used_key};
use crate::act::handle::{self, Mounts, OpenError};
use crate::act::residency::residency;

/// A file that somebody seems to have open.
#[derive(Debug)]
struct Open {
    /// What was told of it last.
    last: FileEvent,
    /// When a use of it was told last; or when it was found open first, if none was.
    used: Nanos,
    /// Whether the last look found it.
    is_listed: bool,
    /// The same of the look that is being made.
    is_found: bool,
}

/// Files that somebody seems to have open.
#[derive(Debug, Default)]
pub struct OpenFiles {
    open: HashMap<ContextIdentity, Open>,
    has_looked: bool,
}

impl OpenFiles {
    /// Whether somebody seems to have a file open.
    pub fn has(&self, file: &ContextIdentity) -> bool {
        self.open.contains_key(file)
    }

    /// Pages of a file that the last look found open.
    pub fn pages(&self, file: &ContextIdentity) -> Option<u64> {
        self.open.get(file).filter(|open| open.is_listed).map(|open| open.last.pages)
    }

    /// Files of which a use was told, and that the last look did not find.
    fn unlisted(&self) -> impl Iterator<Item = &ContextIdentity> {
        self.open.iter().filter(|(_, open)| !open.is_listed).map(|(file, _)| file)
    }

    /// Enters what a hook has told: a use, or that an inode goes. Gives it if that changes something.
    pub fn told(&mut self, event: FileEvent) -> Option<FileEvent> {
        if event.kind != Kind::Opened {
            self.open.remove(&event.file);
            return Some(event);
        }
        match self.open.entry(event.file) {
            Entry::Occupied(mut open) => {
                let open = open.get_mut();
                open.used = open.used.max(event.at);
                None
            }
            Entry::Vacant(place) => {
                let (last, used) = (event.clone(), event.at);
                place.insert(Open { last, used, is_listed: false, is_found: false });
                Some(event)
            }
        }
    }

    /// Enters which files a look has found that began at this time; one that several have open may be
    /// there more than once. All that hooks have told until its end is entered before. Gives what has
    /// changed: opens, then closes, those that were used first first.
    pub fn looked(
        &mut self,
        begun: Nanos,
        found: impl IntoIterator<Item = FileEvent>,
    ) -> Vec<FileEvent> {
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        let mut events = Vec::new();
        for event in found {
            match self.open.entry(event.file) {
                Entry::Occupied(mut open) => {
                    let open = open.get_mut();
                    open.is_found = true;
                    open.last = event;
                }
                Entry::Vacant(place) => {
                    // What was open before anybody looked has not come back.
                    let pages = if is_first { 0 } else { event.pages };
                    events.push(FileEvent { pages, ..event.clone() });
                    let (is_listed, is_found) = (true, true);
                    place.insert(Open { last: event, used: begun, is_listed, is_found });
                }
            }
        }
        let mut closed = Vec::new();
        self.open.retain(|_, open| {
            open.is_listed = std::mem::take(&mut open.is_found);
            // What was used meanwhile may have been opened behind the look's back.
            let stays = open.is_listed || open.used >= begun;
            if !stays {
                let event = FileEvent { kind: Kind::Closed, at: begun, ..open.last.clone() };
                closed.push((open.used, event));
            }
            stays
        });
        closed.sort_by_key(|(used, _)| *used);
        events.extend(closed.into_iter().map(|(_, event)| event));
        events
    }
}

/// The least pause between two looks where a memory is nearly short, and where none is.
const NEAR: Nanos = Nanos::millis(2);
const FAR: Nanos = Nanos::seconds(1);
/// Looks take this part of the time at most.
const SHARE: u64 = 100;

/// How long is paused after a look that took so much of the processor.
fn pause(took: Nanos, is_near: bool) -> Nanos {
    let least = if is_near { NEAR } else { FAR };
    least.max(took * (SHARE - 1))
}

/// What is told of looks that are so far apart.
fn sentence(apart: Option<Nanos>) -> String {
    let apart = apart.map_or_else(String::new, |apart| format!(", {apart} apart now"));
    format!(
        "opens and closes between two looks{apart}: files are taken for open from a look or a use until \
         a look finds them closed, and numbers of opens are lower bounds"
    )
}

/// Looks, and what they tell.
pub(super) struct Polls {
    /// Files whose use was told. Programs tell no further use of them.
    used: Table<MapData, [u64; 2], u64>,
    files: OpenFiles,
    waiting: VecDeque<FileEvent>,
    /// Whether an event is no use of a file.
    is_work: fn(&FileEvent) -> bool,
    mounts: Mounts,
    /// What a look reads.
    bytes: Vec<u8>,
    /// When the last look began and ended, and what it took of the processor.
    last: Option<(Nanos, Nanos, Nanos)>,
    /// How far the last two were apart.
    apart: Option<Nanos>,
    /// Why the last one failed.
    failed: Option<String>,
}

impl Polls {
    pub(super) fn new(used: Table<MapData, [u64; 2], u64>) -> Self {
        Self {
            used,
            files: OpenFiles::default(),
            waiting: VecDeque::new(),
            is_work: |_| false,
            mounts: Mounts::default(),
            bytes: Vec::new(),
            last: None,
            apart: None,
            failed: None,
        }
    }

    pub(super) fn leave_out(&mut self, is_work: fn(&FileEvent) -> bool) {
        self.is_work = is_work;
    }

    pub(super) fn files(&self) -> &OpenFiles {
        &self.files
    }

    /// What is not known, and why.
    pub(super) fn lacks(&self) -> Vec<String> {
        let mut lacks = vec![sentence(self.apart)];
        lacks.extend(self.failed.iter().map(|why| format!("what the last look would tell: {why}")));
        if !super::is_first_process_namespace() {
            lacks.push(
                "files that processes outside this process namespace have open: the iterator does \
                 not tell of them here"
                    .to_owned(),
            );
        }
        lacks
    }

    /// Looks, if that is due.
    pub(super) fn poll(&mut self, programs: &mut Ebpf, ring: &mut RingBuf<MapData>, is_near: bool) {
        let begun = now();
        let is_due = self
            .last
            .is_none_or(|(_, ended, took)| begun.saturating_sub(ended) >= pause(took, is_near));
        // What the last look has told is taken first, or there would be ever more of it.
        if !is_due || !self.waiting.is_empty() {
            return;
        }
        let clock = thread_time();
        // This look may find them closed. So a use from here on has to be told.
        for file in self.files.unlisted() {
            forget(&mut self.used, file);
        }
        let read = self.read(programs);
        let mut took = thread_time().saturating_sub(clock);
        // Of a file that was found open, only a use tells that its pages were not in place before: so
        // uses come first. Their time is not the look's, for they are taken in any case.
        for _ in 0..RING as usize / Record::SIZE {
            let Some(item) = ring.next() else { break };
            let event = Record::read(&item).and_then(|event| self.told(event));
            self.waiting.extend(event);
        }
        let clock = thread_time();
        // Of one that failed, nobody knows what it did not come to.
        if read.is_ok() {
            self.enter(begun);
        }
        took += thread_time().saturating_sub(clock);
        self.failed = read.err();
        self.apart = self.last.map(|(before, ..)| begun.saturating_sub(before));
        self.last = Some((begun, now(), nanos(took)));
    }

    /// Reads which files are open.
    fn read(&mut self, programs: &mut Ebpf) -> Result<(), String> {
        let program: &mut Iter = programs
            .program_mut(OPEN_FILES)
            .ok_or("no program")?
            .try_into()
            .map_err(|e: ProgramError| full(&e))?;
        let link = program.attach().map_err(|e| full(&e))?;
        let link = program.take_link(link).map_err(|e| full(&e))?;
        let mut file = link.into_file().map_err(|e| full(&e))?;
        self.bytes.clear();
        // Where a million files follow each other that are none of ours, the kernel wants to be asked
        // again.
        while let Err(error) = file.read_to_end(&mut self.bytes) {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error.to_string());
            }
        }
        Ok(())
    }

    /// Enters what was read by a look that began at this time.
    fn enter(&mut self, begun: Nanos) {
        let is_work = self.is_work;
        let (records, _) = self.bytes.as_chunks::<{ Record::SIZE }>();
        let found = records
            .iter()
            .filter_map(|record| Record::read(record))
            .filter(|event| !is_work(event))
            .map(|event| FileEvent { at: begun, ..event });
        for event in self.files.looked(begun, found) {
            // If it is used again, that is to be told.
            if event.kind == Kind::Closed {
                forget(&mut self.used, &event.file);
            }
            self.waiting.push_back(event);
        }
    }

    /// Enters what a hook has told; gives it if it is news.
    pub(super) fn told(&mut self, event: FileEvent) -> Option<FileEvent> {
        let is_work = (self.is_work)(&event);
        // No file is taken for open by this event, so no look would ask for its next use.
        if is_work || (event.kind == Kind::Evicted && self.files.has(&event.file)) {
            forget(&mut self.used, &event.file);
        }
        if is_work { None } else { self.files.told(event) }
    }

    /// The next event of those that looks have told.
    pub(super) fn next_event(&mut self) -> Option<FileEvent> {
        let event = self.waiting.pop_front()?;
        if event.kind != Kind::Closed || !handle::is_supported(event.magic) {
            return Some(event);
        }
        // What the last look, or a use, told of its pages is older than the close.
        Some(match self.mounts.open(&event.file, event.magic) {
            Ok(file) => FileEvent {
                pages: residency(&file).map_or(event.pages, |residency| residency.cached),
                length: file.metadata().map_or(event.length, |is| Bytes(is.len())),
                ..event
            },
            Err(OpenError::Gone) => {
                FileEvent { kind: Kind::Evicted, pages: 0, links: 0, names: None, ..event }
            }
            Err(_) => event,
        })
    }
}

/// Has programs tell the next use of a file.
fn forget(used: &mut Table<MapData, [u64; 2], u64>, file: &ContextIdentity) {
    if let Some(key) = used_key(file) {
        // It may not be there, since no use of it was told.
        let _ = used.remove(&key);
    }
}

fn nanos(time: Duration) -> Nanos {
    Nanos(time.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, inode: u64, at: u64, pages: u64) -> FileEvent {
        FileEvent {
            kind,
            at: Nanos(at),
            file: ContextIdentity::File { device: 1, inode, generation: 1 },
            magic: handle::EXT4,
            pages,
            length: Bytes::kib(4),
            extents: None,
            links: 1,
            names: None,
            group: 0,
            process: 1,
            command: *b"test\0\0\0\0\0\0\0\0\0\0\0\0",
        }
    }

    /// What a look at this time tells that finds these files, with seven pages each.
    fn look(files: &mut OpenFiles, at: u64, found: &[u64]) -> Vec<(Kind, u64, u64)> {
        let found = found.iter().map(|&inode| event(Kind::Opened, inode, at, 7));
        let events = files.looked(Nanos(at), found.collect::<Vec<_>>());
        let inode = |event: &FileEvent| match event.file {
            ContextIdentity::File { inode, .. } => inode,
            ContextIdentity::Socket { .. } => unreachable!(),
        };
        events.iter().map(|event| (event.kind, inode(event), event.pages)).collect()
    }

    fn told(files: &mut OpenFiles, inode: u64, at: u64, pages: u64) -> bool {
        files.told(event(Kind::Opened, inode, at, pages)).is_some()
    }

    #[test]
    fn what_one_look_finds_and_the_other_does_not_was_opened_or_closed() {
        let mut files = OpenFiles::default();
        let first = look(&mut files, 10, &[1, 2]);
        assert_eq!(first, [(Kind::Opened, 1, 0), (Kind::Opened, 2, 0)], "open since before");
        assert_eq!(files.pages(&event(Kind::Opened, 1, 0, 0).file), Some(7));
        // Three processes have the third one open.
        let second = look(&mut files, 20, &[2, 3, 3, 3]);
        assert_eq!(second, [(Kind::Opened, 3, 7), (Kind::Closed, 1, 7)]);
        assert!(look(&mut files, 30, &[3, 2]).is_empty());
        assert_eq!(look(&mut files, 40, &[3]), [(Kind::Closed, 2, 7)]);
        assert_eq!(look(&mut files, 50, &[3, 2]), [(Kind::Opened, 2, 7)], "it came back in place");
    }

    /// A backup has each file open for less time than lies between two looks.
    #[test]
    fn a_file_that_no_look_ever_finds_is_open_from_its_use_to_the_next_look() {
        let mut files = OpenFiles::default();
        look(&mut files, 10, &[]);
        assert!(told(&mut files, 2, 12, 0) && told(&mut files, 1, 15, 0));
        assert!(!told(&mut files, 2, 16, 7), "it seems to be open already");
        let used: Vec<_> = files.unlisted().copied().collect();
        assert_eq!(used.len(), 2, "the next use of either is told");
        let closed = look(&mut files, 20, &[]);
        assert_eq!(closed, [(Kind::Closed, 1, 0), (Kind::Closed, 2, 0)], "in the order of uses");
        assert!(look(&mut files, 30, &[]).is_empty());
        assert!(told(&mut files, 2, 35, 7), "it is used again");
    }

    /// A program may open a file behind the back of a look that has passed its table already.
    #[test]
    fn what_is_used_during_a_look_is_not_closed_by_it() {
        let mut files = OpenFiles::default();
        look(&mut files, 10, &[1]);
        told(&mut files, 1, 21, 7);
        told(&mut files, 2, 22, 0);
        assert!(look(&mut files, 20, &[]).is_empty());
        assert_eq!(files.pages(&event(Kind::Opened, 1, 0, 0).file), None, "that look found it not");
        assert_eq!(files.unlisted().count(), 2, "if it is used again, that is told");
        assert_eq!(look(&mut files, 30, &[]), [(Kind::Closed, 1, 7), (Kind::Closed, 2, 0)]);
    }

    #[test]
    fn a_use_and_a_look_tell_of_one_open() {
        let mut files = OpenFiles::default();
        look(&mut files, 10, &[]);
        assert!(told(&mut files, 1, 15, 0));
        assert!(look(&mut files, 20, &[1]).is_empty());
        assert!(!told(&mut files, 1, 25, 7), "it is open");
        assert_eq!(files.unlisted().count(), 0, "no use of it is asked for");
        assert_eq!(look(&mut files, 30, &[]), [(Kind::Closed, 1, 7)]);
    }

    #[test]
    fn an_inode_that_goes_is_not_closed_afterwards() {
        let mut files = OpenFiles::default();
        look(&mut files, 10, &[]);
        told(&mut files, 1, 15, 0);
        let gone = event(Kind::Evicted, 1, 16, 0);
        assert_eq!(files.told(gone.clone()), Some(gone.clone()));
        assert!(!files.has(&gone.file));
        assert!(look(&mut files, 20, &[]).is_empty());
    }

    /// With 100,000 open files, a look takes tens of milliseconds.
    #[test]
    fn looks_take_a_hundredth_of_the_time_at_most() {
        assert_eq!(pause(Nanos::micros(1), true), NEAR);
        assert_eq!(pause(Nanos::micros(1), false), FAR);
        for is_near in [true, false] {
            for took in [Nanos::millis(5), Nanos::millis(30), Nanos::seconds(2)] {
                let all = took + pause(took, is_near);
                assert!(took * SHARE <= all, "{took} of {all}");
            }
        }
        assert_eq!(pause(Nanos::millis(30), true), Nanos::millis(2970));
    }

    #[test]
    fn what_is_told_of_looks_says_that_opens_are_lower_bounds() {
        let text = sentence(Some(Nanos::seconds(1)));
        assert!(text.contains("lower bounds") && text.contains(", 1.00 s apart now"), "{text}");
        assert!(sentence(None).starts_with("opens and closes between two looks: "));
    }
}
