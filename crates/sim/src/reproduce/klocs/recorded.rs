//! A recorded program in place of calls that are made up.
//!
//! All of a recording's calls are made again. The first half of them is preparation: files come
//! into being, and into memory. Of the second half as many calls are measured as a made-up program
//! has operations.
//!
//! Files of the recording stand for the paper's data, so memories are as much smaller as these
//! files are. Between two calls a thread computes as long as it did when it was recorded, but no
//! longer than the shape of its program says: where 16 threads share two processors, the rest of
//! such a gap is a wait for a processor. Without these waits nothing would hold a thread back that
//! sleeps until others have made its work, so calls also keep the recording's order, roughly.
//!
//! A recording of calls has no accesses to the program's own memory, and so has its replay.

use core::fmt;
use std::collections::HashSet;

use serde::Serialize;
use terrace_core::{Bytes, Nanos};

use crate::error::SimError;
use crate::kernel::programs::{Program, Shapes};
use crate::kernel::recorded::{Recording, Replay, Unfit, about};
use crate::kernel::{Call, Calls, Kernel};

const PAGE: u64 = 4096;
/// Memories are not made smaller than this: 1 MiB would be left of the fast one.
const MOST_SCALE: u64 = 8192;
/// A call waits until all calls were made that stand so many before it in the recording: as many
/// as 16 threads make while one of them waits for the disk.
const WINDOW: u32 = 8192;
/// How long a thread waits before it looks again whether the others have come so far.
const PATIENCE: Nanos = Nanos::micros(5);
/// What a call takes at least where 16 threads make calls: a thread waits so long for each call
/// that it waits for.
const LEAST_CALL: Nanos = Nanos(20);
/// Characters of a command that are shown.
const SHOWN: usize = 60;

/// Why a recording cannot stand for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// There is nothing to replay.
    #[error("it has no calls")]
    NoCalls,
    /// A call cannot have been made.
    #[error("call {call}: {why}")]
    Unfit {
        /// Which, counted from 1.
        call: usize,
        /// Why.
        why: Unfit,
    },
    /// The machine would have next to no memory.
    #[error(
        "it uses {used} of files at once; with less than {least} the machine's memories would be \
         smaller than what a kernel needs"
    )]
    TooSmall {
        /// What it uses.
        used: Bytes,
        /// What it has to use.
        least: Bytes,
    },
}

/// What was recorded of a program, and what of that is replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// The command, without directories.
    pub command: String,
    /// The kernel on which it ran.
    pub kernel: String,
    /// Its threads.
    pub threads: u32,
    /// Calls of the recording.
    pub calls: u64,
    /// Of them, calls that are measured.
    pub measured: u64,
    /// The most that its files had at once: pages that were read or written, of files that were
    /// not deleted.
    pub footprint: Bytes,
    /// Events that the kernel lost while it was recorded: calls may be missing.
    pub lost: u64,
    /// Accesses to mappings that are left out: no write of that part of the file was recorded.
    pub left_out: u64,
}

/// A recording that stands for a program.
#[derive(Clone, Debug)]
pub struct Recorded {
    program: Program,
    recording: Recording,
    /// For each thread, which of the calls are its own.
    order: Vec<Vec<u32>>,
    /// Whether any call is about each file.
    named: Vec<bool>,
    footprint: Bytes,
    scale: u64,
    left_out: u64,
}

impl Recorded {
    /// Has a recording stand for a program.
    pub fn new(program: Program, mut recording: Recording) -> Result<Self, Unusable> {
        if let Err((number, why)) = recording.check() {
            return Err(Unusable::Unfit { call: number + 1, why });
        }
        if recording.calls.is_empty() {
            return Err(Unusable::NoCalls);
        }
        let shapes = Shapes::builtin();
        let mut files = Files::of(&recording);
        let before = recording.calls.len();
        recording.calls.retain(|made| files.enter(&made.call));
        let left_out = (before - recording.calls.len()) as u64;
        let data = shapes.data.large.value;
        let (used, least) = (Bytes(files.most * PAGE), Bytes(data.get().div_ceil(MOST_SCALE)));
        if used < least {
            return Err(Unusable::TooSmall { used, least });
        }
        pace(&mut recording, program.own_time(&shapes));
        let mut order = vec![Vec::new(); recording.threads.max(1) as usize];
        for (number, made) in recording.calls.iter().enumerate() {
            order[made.thread as usize].push(number as u32);
        }
        Ok(Self {
            program,
            order,
            named: files.named,
            footprint: used,
            scale: ((data / used).round() as u64).max(1),
            left_out,
            recording,
        })
    }

    /// The program that it stands for.
    pub fn program(&self) -> Program {
        self.program
    }

    /// By how much memories are smaller than the paper's, so that the fast memory is the same part
    /// of the files as there.
    pub fn scale(&self) -> u64 {
        self.scale
    }

    /// Calls that are preparation, and those up to which is measured, if `most` are.
    fn parts(&self, most: u64) -> (u32, u32) {
        let all = self.recording.calls.len() as u64;
        let prepared = all / 2;
        (prepared as u32, (prepared + (all - prepared).min(most)) as u32)
    }

    /// What was recorded, and what is replayed if at most `most` calls are measured.
    pub(super) fn facts(&self, most: u64) -> Facts {
        let recording = &self.recording;
        let name = |word: &String| word.rsplit('/').next().unwrap_or_default().to_owned();
        let words: Vec<String> = recording.program.iter().map(name).collect();
        let (prepared, end) = self.parts(most);
        Facts {
            command: words.join(" ").chars().take(SHOWN).collect(),
            kernel: recording.kernel.clone(),
            threads: recording.threads,
            calls: recording.calls.len() as u64,
            measured: u64::from(end - prepared),
            footprint: self.footprint,
            lost: recording.lost,
            left_out: self.left_out,
        }
    }

    /// Its calls, of which at most `most` are measured.
    pub(super) fn calls(&self, most: u64) -> Excerpt<'_> {
        let (prepared, end) = self.parts(most);
        let threads = self.order.len();
        Excerpt {
            replay: Replay::new(&self.recording, self.program.name()),
            order: &self.order,
            made: vec![0; threads],
            owes: vec![false; threads],
            is_made: vec![false; self.recording.calls.len()],
            first: 0,
            done: 0,
            prepared,
            end,
            measures: false,
        }
    }

    /// Puts files on a kernel's disk that were there before the program.
    pub(super) fn put_on_disk(&self, kernel: &mut Kernel) -> Result<(), SimError> {
        for (number, file) in self.recording.files.iter().enumerate() {
            if file.existed && self.named[number] {
                let put = kernel.put_on_disk(number as u32, file.bytes);
                put.map_err(|error| self.refused(error))?;
            }
        }
        Ok(())
    }

    /// The kernel refuses a call of it.
    pub(super) fn refused(&self, why: impl fmt::Display) -> SimError {
        SimError::parameter("trace", format!("{}: {why}", self.program))
    }
}

/// Shortens the time between two calls of a thread to what the program computes at most. Calls
/// keep their order in the recording; their times are now counted by thread.
fn pace(recording: &mut Recording, own: Nanos) {
    let threads = recording.threads.max(1) as usize;
    let mut ended = vec![Nanos::ZERO; threads];
    let mut clock = vec![Nanos::ZERO; threads];
    for made in &mut recording.calls {
        let thread = made.thread as usize;
        let gap = made.at.saturating_sub(ended[thread]).min(own);
        ended[thread] = ended[thread].max(made.at + made.took);
        clock[thread] += gap;
        (made.at, made.took) = (clock[thread], Nanos::ZERO);
    }
}

/// What is known of files while calls are entered, one after the other.
struct Files {
    sizes: Vec<u64>,
    /// Pages that were read or written, of files that were not deleted.
    pages: Vec<HashSet<u64>>,
    named: Vec<bool>,
    now: u64,
    most: u64,
}

impl Files {
    fn of(recording: &Recording) -> Self {
        let files = &recording.files;
        let size = |known: u64, existed: bool| if existed { known } else { 0 };
        Self {
            sizes: files.iter().map(|file| size(file.bytes.get(), file.existed)).collect(),
            pages: vec![HashSet::new(); files.len()],
            named: vec![false; files.len()],
            now: 0,
            most: 0,
        }
    }

    /// Enters a call. False for one that a kernel would refuse: an access to a mapping beyond what
    /// is known to have been written.
    fn enter(&mut self, call: &Call) -> bool {
        let Some((true, number)) = about(call) else { return true };
        let file = number as usize;
        self.named[file] = true;
        match *call {
            Call::Create { .. } => self.sizes[file] = 0,
            Call::Unlink { .. } => {
                self.now -= core::mem::take(&mut self.pages[file]).len() as u64;
            }
            Call::Read { offset, bytes, .. } => {
                let end = offset.saturating_add(u64::from(bytes)).min(self.sizes[file]);
                self.used(file, offset, end);
            }
            Call::Write { offset, bytes, .. } => {
                let end = offset.saturating_add(u64::from(bytes));
                self.sizes[file] = self.sizes[file].max(end);
                self.used(file, offset, end);
            }
            Call::Access { offset, bytes, .. } => {
                let end = offset.saturating_add(u64::from(bytes));
                if end > self.sizes[file] {
                    return false;
                }
                self.used(file, offset, end);
            }
            _ => {}
        }
        true
    }

    fn used(&mut self, file: usize, offset: u64, end: u64) {
        if offset < end {
            let pages = &mut self.pages[file];
            for page in offset / PAGE..end.div_ceil(PAGE) {
                self.now += u64::from(pages.insert(page));
            }
            self.most = self.most.max(self.now);
        }
    }
}

/// A thread waits until the others have made so many calls, or nearly.
fn wait_for(calls: u32) -> Call {
    Call::Compute { time: PATIENCE.max(LEAST_CALL * u64::from(calls)) }
}

/// A recording's calls up to some, with [`Call::Measure`] between its halves.
#[derive(Debug)]
pub(super) struct Excerpt<'a> {
    replay: Replay,
    /// For each thread, which of the calls are its own.
    order: &'a [Vec<u32>],
    /// Calls that each thread has made.
    made: Vec<usize>,
    /// Whether each has made a call that it has not said to be done.
    owes: Vec<bool>,
    is_made: Vec<bool>,
    /// The first call that was not made.
    first: u32,
    /// Calls that were said to be done.
    done: u32,
    /// So many calls are preparation.
    prepared: u32,
    /// Here it ends.
    end: u32,
    measures: bool,
}

impl Calls for Excerpt<'_> {
    fn name(&self) -> &'static str {
        self.replay.name()
    }
    fn threads(&self) -> usize {
        self.replay.threads()
    }
    fn pages(&self) -> u32 {
        self.replay.pages()
    }
    fn next(&mut self, thread: usize) -> Option<Call> {
        if core::mem::take(&mut self.owes[thread]) {
            self.done += 1;
            return self.replay.next(thread);
        }
        let number = *self.order[thread].get(self.made[thread])?;
        if number >= self.end {
            return None;
        }
        if number >= self.prepared && !self.measures {
            if self.done < self.prepared {
                return Some(wait_for(self.prepared - self.done));
            }
            self.measures = true;
            return Some(Call::Measure);
        }
        let ahead = number - self.first;
        if ahead >= WINDOW {
            return Some(wait_for(ahead));
        }
        let call = self.replay.next(thread)?;
        if !matches!(call, Call::Compute { .. }) {
            self.owes[thread] = true;
            self.made[thread] += 1;
            self.is_made[number as usize] = true;
            while self.is_made.get(self.first as usize).is_some_and(|&made| made) {
                self.first += 1;
            }
        }
        Some(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::recorded::{Made, RecordedFile};

    const MIB: u32 = 1 << 20;

    /// Calls a microsecond apart, each made by a thread and gone at once.
    fn recording(threads: u32, existed: &[u64], made: u32, calls: &[(u32, Call)]) -> Recording {
        let there = |&mib: &u64| RecordedFile {
            existed: true,
            bytes: Bytes::mib(mib),
            ..RecordedFile::default()
        };
        let mut files: Vec<RecordedFile> = existed.iter().map(there).collect();
        files.extend((0..made).map(|_| RecordedFile::default()));
        let enter = |(at, &(thread, call)): (usize, &(u32, Call))| Made {
            thread,
            cpu: 0,
            at: Nanos::micros(at as u64),
            took: Nanos::ZERO,
            call,
        };
        Recording {
            program: ["/usr/bin/dd", "if=/tmp/file"].map(str::to_owned).to_vec(),
            threads,
            files,
            calls: calls.iter().enumerate().map(enter).collect(),
            ..Recording::default()
        }
    }

    fn write(file: u32, mib: u64) -> (u32, Call) {
        (0, Call::Write { file, offset: mib << 20, bytes: MIB })
    }

    /// Pages count once however often they are used, no longer than their file lives, and not
    /// beyond its end.
    #[test]
    fn memories_are_scaled_by_what_files_have_at_once() {
        let [first, second, there] = [1, 2, 0];
        let mut calls = vec![(0, Call::Create { file: first }), (0, Call::Create { file: second })];
        // 12 MiB, half of them twice.
        calls.extend((0..12).chain(0..6).map(|mib| write(first, mib)));
        calls.extend([(0, Call::Close { file: first }), (0, Call::Unlink { file: first })]);
        calls.extend((0..4).map(|mib| write(second, mib)));
        calls.push((0, Call::Open { file: there }));
        // 16 MiB are asked for of a file of 7.
        calls.push((0, Call::Read { file: there, offset: 0, bytes: 16 * MIB }));
        let recorded = Recorded::new(Program::Spark, recording(1, &[7], 2, &calls)).expect("fits");
        let facts = recorded.facts(1000);
        assert_eq!(facts.footprint, Bytes::mib(12), "{facts:?}");
        assert_eq!(facts.command, "dd file");
        // 40 GB by 12 MiB.
        assert_eq!(recorded.scale(), 3179);
        let half = calls.len() as u64 / 2;
        assert_eq!((facts.calls, facts.measured), (calls.len() as u64, half));
        assert_eq!(recorded.facts(3).measured, 3);
    }

    #[test]
    fn what_cannot_stand_for_a_program_is_refused() {
        let refused = |recording| Recorded::new(Program::Redis, recording).expect_err("unusable");
        assert_eq!(refused(Recording::default()), Unusable::NoCalls);
        let create = (0, Call::Create { file: 0 });
        let small = refused(recording(1, &[], 1, &[create, write(0, 0)]));
        assert!(matches!(small, Unusable::TooSmall { used, .. } if used == Bytes::mib(1)));
        let unfit = refused(recording(1, &[], 1, &[create, (0, Call::Close { file: 3 })]));
        assert_eq!(unfit.to_string(), "call 2: file 3 is unknown");
    }

    /// A mapping beyond what was written would make the kernel refuse all of it.
    #[test]
    fn accesses_beyond_what_is_known_of_a_file_are_left_out() {
        let access = |offset: u64| Call::Access { file: 0, offset, bytes: 1, store: false };
        let mut calls = vec![(0, Call::Create { file: 0 })];
        calls.extend((0..5).map(|mib| write(0, mib)));
        calls.push((0, Call::Map { file: 0 }));
        calls.extend([u64::from(5 * MIB - 1), u64::from(5 * MIB)].map(|at| (0, access(at))));
        let recorded = Recorded::new(Program::Spark, recording(1, &[], 1, &calls)).expect("fits");
        let facts = recorded.facts(1000);
        assert_eq!((facts.calls, facts.left_out), (calls.len() as u64 - 1, 1));
    }

    /// The longest that a thread computes between two calls is what its program's shape has.
    #[test]
    fn waits_for_a_processor_are_not_replayed() {
        let calls: Vec<(u32, Call)> =
            [0, 0, 1, 0].map(|thread| (thread, Call::ReadDir { entries: 1 })).to_vec();
        let mut recording = recording(2, &[], 0, &calls);
        for (made, at) in recording.calls.iter_mut().zip([1, 3, 1000, 2000]) {
            made.at = Nanos::micros(at);
        }
        pace(&mut recording, Nanos::micros(3));
        let times: Vec<u64> = recording.calls.iter().map(|made| made.at.get() / 1000).collect();
        assert_eq!(times, [1, 3, 3, 6]);
    }

    /// The second half is measured when all of the first is done, and a thread that waits for
    /// nobody does not run away from the others.
    #[test]
    fn calls_keep_their_order_roughly_and_the_second_half_is_measured() {
        let window = u64::from(WINDOW);
        let mut calls = vec![(0, Call::Create { file: 0 })];
        calls.extend((0..5).map(|mib| write(0, mib)));
        calls.extend((0..2 * window).map(|_| (0, Call::Stat { file: 0 })));
        calls.extend((0..10).map(|_| (1, Call::ReadDir { entries: 1 })));
        calls.extend((0..2 * window + 100).map(|_| (0, Call::Stat { file: 0 })));
        let recorded =
            Recorded::new(Program::Filebench, recording(2, &[], 1, &calls)).expect("fits");
        let mut excerpt = recorded.calls(100);
        let (mut done, mut measured, mut listed, mut waits) = (0, None, 0, 0);
        let mut over = [false; 2];
        while over != [true; 2] {
            for thread in [1, 0] {
                match excerpt.next(thread) {
                    None => over[thread] = true,
                    Some(Call::Done) => done += 1,
                    Some(Call::Measure) => assert_eq!(measured.replace(done), None),
                    Some(Call::Compute { time }) => {
                        assert!(!time.is_zero());
                        waits += 1;
                    }
                    Some(Call::ReadDir { .. }) => {
                        listed += 1;
                        assert!(u64::from(excerpt.first) > window, "{} were made", excerpt.first);
                    }
                    Some(_) => {}
                }
            }
        }
        let half = calls.len() / 2;
        assert_eq!(measured, Some(half));
        assert_eq!((done, listed), (half + 100, 10));
        assert!(waits > 100, "{waits}");
    }
}
