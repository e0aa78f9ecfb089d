//! What a process says of its memory when it ends: what `terrace run` would otherwise have seen of
//! it at its last look, which may be some time ago.
//!
//! A process that fills memory and ends at once would not be seen at all. It enters the kernel's
//! own count into the broker's page, in a ring; whoever looks takes out what is of its run.

use core::sync::atomic::{AtomicU64, Ordering::*};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;

use super::member;
use super::number;
use super::page::BrokerPage;
use crate::stats::process_page::State;
use crate::sys::{self, limits};

/// How many are kept: more than end between two looks, mostly.
const LINES: u64 = 256;
/// Who never had more in RAM, bytes, says nothing: that is what a process has that does little,
/// and less than is ever told.
const LITTLE: u64 = 8 << 20;
/// A line that is not written after so many others is left out: its writer was killed.
const LATE: u64 = 16;

/// What a process had when it ended. Bytes, as `/proc/PID/status` has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Of which run ([`run_number`]).
    pub run: u64,
    /// The process.
    pub process: u32,
    /// The one that it was forked from, and the one that began its program: itself, where it did.
    pub parent: u32,
    /// See there.
    pub family: u32,
    /// How far its pager had come ([`State`], as a number).
    pub state: u32,
    /// What it had mapped that is to be managed, and was not.
    pub mapped: u64,
    /// `RssAnon`
    pub private: u64,
    /// `RssShmem`
    pub shared: u64,
    /// `RssFile`
    pub file: u64,
    /// `VmHWM`
    pub most: u64,
}

const WORDS: usize = 8;

impl Ending {
    fn words(&self) -> [u64; WORDS] {
        let pair = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
        [
            self.run,
            pair(self.process, self.parent),
            pair(self.family, self.state),
            self.mapped,
            self.private,
            self.shared,
            self.file,
            self.most,
        ]
    }

    fn from_words(words: [u64; WORDS]) -> Self {
        let [run, processes, kind, mapped, private, shared, file, most] = words;
        let pair = |word: u64| ((word >> 32) as u32, word as u32);
        let ((process, parent), (family, state)) = (pair(processes), pair(kind));
        Self { run, process, parent, family, state, mapped, private, shared, file, most }
    }

    /// Takes the kernel's count over; `None` if something is missing.
    fn counted(self, count: Count) -> Option<Self> {
        let [private, shared, file, most] = count.0;
        Some(Self { private: private?, shared: shared?, file: file?, most: most?, ..self })
    }
}

/// What is found in `/proc/PID/status`, bytes, in the order of [`NAMES`].
#[derive(Clone, Copy, Debug, Default)]
struct Count([Option<u64>; NAMES.len()]);

const NAMES: [&str; 4] = ["RssAnon:", "RssShmem:", "RssFile:", "VmHWM:"];

impl Count {
    /// Reads one line.
    fn line(&mut self, line: &[u8]) {
        for (name, found) in NAMES.iter().zip(&mut self.0) {
            let Some(line) = line.strip_prefix(name.as_bytes()) else { continue };
            let digits = line.iter().skip_while(|byte| !byte.is_ascii_digit());
            let mut digits = digits.take_while(|byte| byte.is_ascii_digit()).peekable();
            if digits.peek().is_some() {
                let kib = digits.fold(0u64, |n, &digit| n * 10 + u64::from(digit - b'0'));
                *found = Some(kib << 10);
            }
        }
    }
}

/// By what a run is told from others that share its budget: of its directory.
pub fn run_number(directory: &Path) -> u64 {
    // The same in every process: its keys are fixed.
    let mut hasher = DefaultHasher::new();
    directory.hash(&mut hasher);
    hasher.finish()
}

/// The ring: a part of the broker's page.
#[repr(C)]
pub struct Endings {
    count: AtomicU64,
    lines: [Line; LINES as usize],
}

#[repr(C)]
struct Line {
    /// The number of what is in it, plus one; 0 while it is written.
    number: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Endings {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Acquire)
    }

    /// Enters what a process has that ends.
    pub fn push(&self, ending: &Ending) {
        let number = self.count.fetch_add(1, AcqRel);
        let line = &self.lines[(number % LINES) as usize];
        line.number.store(0, Release);
        for (to, word) in line.words.iter().zip(ending.words()) {
            to.store(word, Release);
        }
        line.number.store(number + 1, Release);
    }

    /// Those from a number on, and how far that went. Of what has been written over nothing is
    /// known.
    pub fn since(&self, next: u64) -> (Vec<Ending>, u64) {
        let count = self.count();
        let mut found = Vec::new();
        for number in next.max(count.saturating_sub(LINES))..count {
            let line = &self.lines[(number % LINES) as usize];
            let before = line.number.load(Acquire);
            let words = core::array::from_fn(|i| line.words[i].load(Acquire));
            if before == number + 1 && line.number.load(Acquire) == before {
                found.push(Ending::from_words(words));
            } else if count - number < LATE {
                // It comes.
                return (found, number);
            }
        }
        (found, count)
    }
}

/// In a process that ends, in whichever thread ends it, also in a signal's handler: says what it
/// has. `mapped` are bytes that are to be managed, and are not.
pub fn tell(state: State, mapped: usize) {
    let Some(page) = member::broker() else { return };
    if most_resident() < LITTLE {
        return;
    }
    let Some(process) = number::own() else { return };
    // In another namespace it is another's number here.
    let parent = if number::is_elsewhere() {
        0
    } else {
        // SAFETY: asks for a number.
        unsafe { libc::getppid() as u32 }
    };
    let ending = Ending {
        run: member::run(),
        process,
        parent,
        family: member::family(),
        state: state as u32,
        mapped: mapped as u64,
        ..Ending::default()
    };
    let mut count = Count::default();
    // What it says before has no bound: groups are many, for some.
    limits::with_more_descriptors(|| {
        sys::for_each_line(c"/proc/self/status", |line| count.line(line));
    });
    if let Some(ending) = ending.counted(count) {
        enter(page, &ending);
    }
}

fn enter(page: &BrokerPage, ending: &Ending) {
    page.endings().push(ending);
}

/// The most that this process ever had in RAM, that of programs before it included.
fn most_resident() -> u64 {
    // SAFETY: writes into a plain structure.
    unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        (usage.ru_maxrss as u64) << 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endings() -> Box<Endings> {
        // SAFETY: every field is an atomic integer, valid for zero bytes.
        unsafe { Box::new_zeroed().assume_init() }
    }

    fn of(process: u32) -> Ending {
        let numbers = Ending { run: 1, parent: 2, family: 3, state: 2, ..Ending::default() };
        Ending { process, mapped: 4, private: 5, shared: 6, file: 7, most: u64::MAX, ..numbers }
    }

    #[test]
    fn what_was_entered_is_read_once_in_order() {
        let ring = endings();
        for process in 1..=3 {
            ring.push(&of(process));
        }
        let (found, next) = ring.since(0);
        assert_eq!(found, [of(1), of(2), of(3)]);
        ring.push(&of(u32::MAX));
        assert_eq!(ring.since(next), (vec![of(u32::MAX)], 4));
        for process in 0..2 * LINES as u32 {
            ring.push(&of(process));
        }
        let (found, next) = ring.since(4);
        assert_eq!((found.len() as u64, next), (LINES, 4 + 2 * LINES));
        assert_eq!(found.last(), Some(&of(2 * LINES as u32 - 1)));
    }

    #[test]
    fn a_line_that_is_being_written_is_waited_for_but_not_for_ever() {
        let ring = endings();
        ring.push(&of(1));
        ring.count.fetch_add(1, AcqRel);
        for process in 3..LATE as u32 {
            ring.push(&of(process));
        }
        assert_eq!(ring.since(0), (vec![of(1)], 1));
        for process in 0..LATE as u32 {
            ring.push(&of(process));
        }
        assert_eq!(ring.since(1).1, ring.count());
    }

    #[test]
    fn the_kernel_s_count_is_read() {
        let status = b"Name:\tRssAnon: 9\nVmHWM:\t    99 kB\nRssAnon:\t     116 kB\n\
                       RssFile:\t 1664 kB\nRssShmem:\t 8 kB\n";
        let count = |status: &[u8]| {
            let mut count = Count::default();
            status.split(|&byte| byte == b'\n').for_each(|line| count.line(line));
            of(1).counted(count)
        };
        let counted = count(status).unwrap();
        let kib = [counted.private, counted.shared, counted.file, counted.most].map(|n| n >> 10);
        assert_eq!(kib, [116, 8, 1664, 99]);
        assert_eq!(count(b"VmHWM:\t 1 kB\nRssAnon:\t\n"), None);
        let mut own = Count::default();
        assert!(sys::for_each_line(c"/proc/self/status", |line| own.line(line)));
        assert!(of(1).counted(own).is_some_and(|own| own.most >= own.private));
    }
}
