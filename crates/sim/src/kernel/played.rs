//! A recorded program in the simulated kernel: its accesses and its calls, in one run.
//!
//! The trace is read twice. The first time ([`Survey`]) tells what the kernel has to be made for:
//! threads, pages, files on the disk; a trace that is damaged is refused then. The second time
//! ([`Played`]) each thread does what its part of the trace says, always the one that is furthest
//! behind. What threads do to one file keeps the order that it has in the trace.
//!
//! An access to a mapping of a file is one to the page cache, until a page of a private mapping is
//! stored to: it is the program's own then. All other accesses are to the program's own pages.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use terrace_core::{Bytes, Machine, Nanos};

use super::call::{Call, Calls};
use super::kernel::{Kernel, KernelConfig, KernelReport, Refused};
use super::recorded::{RecordedFile, Recording, about, begins_or_ends};
use crate::error::SimError;
use crate::exact::{Access, Batch, Source, SpaceEvent};
use crate::trace::IoRecord;

const PAGE: u64 = 4096;
/// Steps that are kept for threads that are behind.
const AHEAD: usize = 1 << 20;
/// How long a thread waits before it looks again whether another one has made the call that its
/// own depends on, or whether it has something to do again.
const PATIENCE: Nanos = Nanos::micros(5);
/// Instructions that one step stands for at most.
const MOST_INSTRUCTIONS: u64 = u32::MAX as u64;

/// What a trace needs of a kernel.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Threads, and the last of the trace's batches that each has.
    threads: BTreeMap<u32, u64>,
    /// Numbers of the program's pages, by where they lie.
    pages: HashMap<u64, u32>,
    /// Files in the order of their numbers.
    pub files: Vec<RecordedFile>,
    /// How long each is at most, as far as the program wrote it.
    sizes: Vec<u64>,
    /// Accesses.
    pub accesses: u64,
    /// Calls.
    pub calls: u64,
}

impl Survey {
    /// Reads a trace to its end.
    ///
    /// # Errors
    ///
    /// What is wrong with the trace, or that it is of more threads than a kernel of ours has.
    pub fn of(source: &mut dyn Source) -> Result<Self, SimError> {
        let mut survey = Self::default();
        let mut batch = Batch::default();
        let mut number = 0;
        while source.next(&mut batch)? {
            number += 1;
            survey.threads.insert(batch.thread, number);
            for record in &batch.io {
                match record {
                    IoRecord::File(file) => {
                        survey.files.push(*file);
                        survey.sizes.push(file.bytes.get());
                    }
                    IoRecord::Call { call, .. } => {
                        survey.calls += 1;
                        lengthen(&mut survey.sizes, call);
                    }
                    IoRecord::Socket { .. } | IoRecord::Mapped { .. } => {}
                }
            }
            let mut last = u64::MAX;
            for access in batch.accesses.iter().filter(|access| access.is_data()) {
                survey.accesses += 1;
                let place = access.address() / PAGE;
                if place != last {
                    last = place;
                    let next = survey.pages.len() as u32;
                    survey.pages.entry(place).or_insert(next);
                }
            }
        }
        Ok(survey)
    }

    /// Threads of the program.
    pub fn threads(&self) -> usize {
        self.threads.len().max(1)
    }

    /// Memory that the program and its files can fill, with room for what the kernel has besides.
    pub fn memory(&self) -> Bytes {
        memory_for(self.pages(), self.threads(), &self.sizes)
    }

    /// Pages of the program that are accessed, files' among them.
    pub fn pages(&self) -> u32 {
        self.pages.len() as u32
    }

    /// A kernel for the program, with the files on its disk that were there before.
    ///
    /// # Errors
    ///
    /// A machine or a policy that cannot be.
    pub fn kernel(
        &self,
        config: &KernelConfig,
        policy: Box<dyn terrace_policy::Policy>,
    ) -> Result<Kernel, SimError> {
        let mut kernel = Kernel::new(config, policy, self.threads(), self.pages())?;
        for (number, file) in self.files.iter().enumerate().filter(|(_, file)| file.existed) {
            let put = kernel.put_on_disk(number as u32, file.bytes);
            put.map_err(|error| SimError::parameter("trace", error.to_string()))?;
        }
        Ok(kernel)
    }
}

/// A write may make a file longer.
fn lengthen(sizes: &mut [u64], call: &Call) {
    if let Call::Write { file, offset, bytes } = *call
        && let Some(size) = sizes.get_mut(file as usize)
    {
        *size = (*size).max(offset.saturating_add(u64::from(bytes)));
    }
}

fn memory_for(pages: u32, threads: usize, sizes: &[u64]) -> Bytes {
    let files: u64 = sizes.iter().map(|&size| size.saturating_add(PAGE)).sum();
    let own = u64::from(pages) * PAGE + threads as u64 * (256 << 10);
    // Index nodes, inodes, names, extents, buffer heads.
    Bytes(own.saturating_add(files.saturating_add(files / 4)) + (64 << 20))
}

/// Memory that a recording's files can fill, with room for what the kernel has besides.
pub fn memory_of_calls(recording: &Recording) -> Bytes {
    let mut sizes: Vec<u64> = recording.files.iter().map(|file| file.bytes.get()).collect();
    for made in &recording.calls {
        lengthen(&mut sizes, &made.call);
    }
    memory_for(0, recording.threads.max(1) as usize, &sizes)
}

/// Leaves each tier of a machine no more than sixteen times what a program can fill. It is never
/// short of memory there, nor are dirty pages ever a tenth of it, as on the whole machine; and state
/// is not kept for frames that nothing comes to lie in.
pub fn leave_room_for(machine: &mut Machine, memory: Bytes) {
    for tier in &mut machine.tiers {
        let capacity = &mut tier.capacity.value;
        *capacity = (*capacity).min(Bytes(memory.get().saturating_mul(16)));
    }
}

/// A mapping of a file.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    end: u64,
    file: u32,
    offset: u64,
    shared: bool,
}

/// What one batch comes to.
#[derive(Debug)]
struct Piece {
    /// Its number in the trace.
    number: u64,
    steps: VecDeque<Call>,
}

/// A thread's part.
#[derive(Debug, Default)]
struct Lane {
    pieces: VecDeque<Piece>,
    /// The last batch that it has in the trace.
    last: u64,
    /// The last that it has done.
    done: u64,
    /// Instructions since the last step that stood for some.
    instructions: u64,
    /// Whether it has made a call that was not counted yet.
    made: bool,
}

/// Calls on a file or socket that were read and not made yet: the batch, the thread, and whether
/// others stay behind it.
type Waiting = VecDeque<(u64, usize, bool)>;

/// The second reading.
pub struct Played<'a> {
    source: &'a mut dyn Source,
    survey: Survey,
    threads: BTreeMap<u32, usize>,
    lanes: Vec<Lane>,
    /// Steps in all lanes.
    steps: usize,
    read: u64,
    ended: bool,
    failed: Option<SimError>,
    mappings: BTreeMap<u64, Mapping>,
    /// Pages of private mappings that were stored to.
    copied: BTreeSet<u64>,
    /// How long each file is, as far as the trace was read.
    sizes: Vec<u64>,
    waiting: BTreeMap<(bool, u32), Waiting>,
    instruction: f64,
}

/// Why a program cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// The trace is damaged.
    #[error(transparent)]
    Trace(#[from] SimError),
    /// The kernel refused a call.
    #[error("the simulated kernel refuses {0}")]
    Refused(#[from] Refused),
}

/// Plays a trace that was surveyed, in a kernel that was made for it.
///
/// # Errors
///
/// What of the trace cannot be read or played.
pub fn play(
    kernel: &mut Kernel,
    config: &KernelConfig,
    source: &mut dyn Source,
    survey: Survey,
) -> Result<KernelReport, PlayError> {
    let lanes = survey.threads.values().map(|&last| Lane { last, ..Lane::default() });
    let mut lanes: Vec<Lane> = lanes.collect();
    if lanes.is_empty() {
        lanes.push(Lane::default());
    }
    let threads = survey.threads.keys().enumerate().map(|(lane, &thread)| (thread, lane)).collect();
    let mut played = Played {
        source,
        survey,
        threads,
        lanes,
        steps: 0,
        read: 0,
        ended: false,
        failed: None,
        mappings: BTreeMap::new(),
        copied: BTreeSet::new(),
        sizes: Vec::new(),
        waiting: BTreeMap::new(),
        instruction: config.instruction_time(),
    };
    let report = kernel.run(&mut played)?;
    match played.failed {
        Some(error) => Err(error.into()),
        None => Ok(report),
    }
}

impl Played<'_> {
    /// Reads a batch; false when there is none, or none fits.
    fn read(&mut self) -> bool {
        if self.ended || self.steps >= AHEAD {
            return false;
        }
        let mut batch = Batch::default();
        match self.source.next(&mut batch) {
            Ok(true) => {}
            Ok(false) => self.ended = true,
            Err(error) => {
                self.failed = Some(error);
                self.ended = true;
            }
        }
        if self.ended {
            return false;
        }
        self.read += 1;
        // The survey has seen every thread.
        let Some(&lane) = self.threads.get(&batch.thread) else { return true };
        let mut steps = VecDeque::with_capacity(batch.accesses.len() + batch.io.len());
        for event in &batch.events {
            self.space_changed(event, &mut steps);
        }
        for record in &batch.io {
            self.asked(lane, record, &mut steps);
        }
        for access in &batch.accesses {
            self.accessed(lane, *access, &mut steps);
        }
        self.steps += steps.len();
        self.lanes[lane].pieces.push_back(Piece { number: self.read, steps });
        true
    }

    fn space_changed(&mut self, event: &SpaceEvent, steps: &mut VecDeque<Call>) {
        let (SpaceEvent::Map { start, len } | SpaceEvent::Unmap { start, len }) = *event;
        let (start, end) = (start / PAGE, start.saturating_add(len).div_ceil(PAGE));
        self.forget_mappings(start * PAGE, end * PAGE);
        // What is mapped anew holds nothing, either.
        let copied: Vec<u64> = self.copied.range(start..end).copied().collect();
        for place in copied {
            self.copied.remove(&place);
        }
        let pages = &self.survey.pages;
        if end - start <= pages.len() as u64 {
            let known = (start..end).filter_map(|place| pages.get(&place));
            steps.extend(known.map(|&page| Call::Release { page, count: 1 }));
        } else {
            // A range of address space that is larger than all that is ever accessed.
            let within = pages.iter().filter(|(place, _)| (start..end).contains(*place));
            let mut known: Vec<u32> = within.map(|(_, &page)| page).collect();
            known.sort_unstable();
            steps.extend(known.into_iter().map(|page| Call::Release { page, count: 1 }));
        }
    }

    /// Files are not mapped in a range any more.
    fn forget_mappings(&mut self, start: u64, end: u64) {
        let touched: Vec<(u64, Mapping)> = self
            .mappings
            .range(..end)
            .rev()
            .take_while(|(_, mapping)| mapping.end > start)
            .map(|(&at, &mapping)| (at, mapping))
            .collect();
        for (at, mapping) in touched {
            self.mappings.remove(&at);
            if at < start {
                self.mappings.insert(at, Mapping { end: start, ..mapping });
            }
            if mapping.end > end {
                let offset = mapping.offset + (end - at);
                self.mappings.insert(end, Mapping { offset, ..mapping });
            }
        }
    }

    fn asked(&mut self, lane: usize, record: &IoRecord, steps: &mut VecDeque<Call>) {
        match *record {
            IoRecord::File(file) => {
                self.sizes.push(if file.existed { file.bytes.get() } else { 0 });
            }
            IoRecord::Socket { .. } => {}
            IoRecord::Mapped { file, start, len, offset, shared } => {
                let end = start.saturating_add(len.next_multiple_of(PAGE));
                self.forget_mappings(start, end);
                self.mappings.insert(start, Mapping { end, file, offset, shared });
            }
            IoRecord::Call { call, .. } => {
                lengthen(&mut self.sizes, &call);
                self.think(lane, steps);
                if let Some(object) = about(&call) {
                    let others_wait = begins_or_ends(&call) || matches!(call, Call::Write { .. });
                    let waiting = self.waiting.entry(object).or_default();
                    waiting.push_back((self.read, lane, others_wait));
                }
                steps.push_back(call);
            }
        }
    }

    /// Instructions that no step stands for yet become time.
    fn think(&mut self, lane: usize, steps: &mut VecDeque<Call>) {
        let time = self.lanes[lane].instructions as f64 * self.instruction;
        if time >= 1.0 {
            self.lanes[lane].instructions = 0;
            steps.push_back(Call::Compute { time: Nanos::from_f64(time) });
        }
    }

    fn accessed(&mut self, lane: usize, access: Access, steps: &mut VecDeque<Call>) {
        self.lanes[lane].instructions += access.counted();
        if !access.is_data() {
            return;
        }
        let (address, store) = (access.address(), access.is_store());
        let place = address / PAGE;
        if let Some((file, offset)) = self.in_file(address, store) {
            self.think(lane, steps);
            steps.push_back(Call::Access { file, offset, bytes: 1, store });
            return;
        }
        // The survey has seen every page.
        let Some(&page) = self.survey.pages.get(&place) else { return };
        let instructions = self.lanes[lane].instructions.min(MOST_INSTRUCTIONS);
        self.lanes[lane].instructions -= instructions;
        let line = (address % PAGE / 64) as u8;
        let instructions = instructions as u32;
        steps.push_back(Call::Use { page, line, store, instructions });
    }

    /// The file that an access goes to, and where in it.
    fn in_file(&mut self, address: u64, store: bool) -> Option<(u32, u64)> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        if address >= mapping.end {
            return None;
        }
        let place = address / PAGE;
        if !mapping.shared && (store || self.copied.contains(&place)) {
            self.copied.insert(place);
            return None;
        }
        let offset = mapping.offset + (address - start);
        // Behind the file's end there are zeros that are in no file.
        let size = self.sizes.get(mapping.file as usize).copied().unwrap_or(0);
        (offset < size).then_some((mapping.file, offset))
    }

    /// Whether calls that come before in the trace, on the same file or socket, were not made yet.
    fn is_blocked(&self, lane: usize, number: u64, call: &Call) -> bool {
        if matches!(call, Call::Unmap { .. }) {
            // Accesses to a mapping are made before it is gone.
            let before = |other: &Lane| other.pieces.front().is_some_and(|p| p.number < number);
            let mut others = self.lanes.iter().enumerate().filter(|(other, _)| *other != lane);
            if others.any(|(_, other)| before(other)) {
                return true;
            }
        }
        let Some(object) = about(call) else { return false };
        let Some(waiting) = self.waiting.get(&object) else { return false };
        let all = begins_or_ends(call);
        let mut before = waiting.iter().take_while(|(other, ..)| *other < number);
        before.any(|&(_, other, others_wait)| other != lane && (all || others_wait))
    }

    /// A call is made: nobody waits for it any more.
    fn is_made(&mut self, lane: usize, number: u64, call: &Call) {
        // Accesses are not waited for, but by what unmaps.
        if matches!(call, Call::Access { .. }) {
            return;
        }
        let Some(object) = about(call) else { return };
        if let Some(waiting) = self.waiting.get_mut(&object) {
            if let Some(at) = waiting.iter().position(|w| (w.0, w.1) == (number, lane)) {
                waiting.remove(at);
            }
            if waiting.is_empty() {
                self.waiting.remove(&object);
            }
        }
    }
}

impl Calls for Played<'_> {
    fn name(&self) -> &'static str {
        "a recorded program"
    }

    fn threads(&self) -> usize {
        self.lanes.len()
    }

    fn pages(&self) -> u32 {
        self.survey.pages()
    }

    fn next(&mut self, thread: usize) -> Option<Call> {
        if core::mem::take(&mut self.lanes[thread].made) {
            return Some(Call::Done);
        }
        loop {
            let lane = &mut self.lanes[thread];
            if let Some(piece) = lane.pieces.front_mut() {
                let number = piece.number;
                let Some(&call) = piece.steps.front() else {
                    lane.done = number;
                    lane.pieces.pop_front();
                    continue;
                };
                if about(&call).is_some() && self.is_blocked(thread, number, &call) {
                    return Some(Call::Compute { time: PATIENCE });
                }
                let lane = &mut self.lanes[thread];
                if let Some(piece) = lane.pieces.front_mut() {
                    piece.steps.pop_front();
                }
                self.steps -= 1;
                // A call is an operation, done after it was made.
                lane.made = call.is_kernel();
                self.is_made(thread, number, &call);
                return Some(call);
            }
            if lane.done >= lane.last {
                return None;
            }
            if !self.read() {
                // Its next batch is far: the others go on. At the end, or after an error, there
                // is none.
                return (!self.ended).then_some(Call::Compute { time: PATIENCE });
            }
        }
    }
}
