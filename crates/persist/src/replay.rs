//! Kindle's replay of a recording: what stands between two recorded accesses.
//!
//! Kindle does not run the program again. A generated `init.c` goes through ten
//! million records of 20 bytes in a buffer of DRAM, and makes for each the byte
//! access that it tells, folded into an array. A record costs it some two
//! hundred instructions and a share of the calls: each call replays 4 to 13
//! records in a frame of 256 KiB, at a depth of 1 to 4, and touches all pages of
//! its frame first, because the compiler's stack protection probes them. So
//! most of what reaches memory is the recording itself, and nearly every TLB
//! miss is a probe.
//!
//! None of the numbers here is fitted to a figure; they are counts of the
//! artifact's own unmodified runs, or stand in its source.

use terrace_sim::SimError;
use terrace_sim::exact::{Access, Batch, Source, SpaceEvent};
use terrace_sim::trace::Summary;

use crate::folded::{self, Folded};

/// What a recorded access costs the replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Instructions, calls and probes included.
    pub instructions: u64,
}

impl Pace {
    /// `Gapbs_pr`: 2974 million instructions (`stats.txt` of the vanilla run) for
    /// ten million records.
    pub const PAGERANK: Self = Self { instructions: 297 };
    /// `G500_sssp`: 1843 million.
    pub const SSSP: Self = Self { instructions: 184 };
    /// `Ycsb_mem`: 2516 million.
    pub const YCSB: Self = Self { instructions: 252 };
}

/// The recording's buffer, in DRAM. Kindle's holds 200 MB and is read once, in
/// order; so is this one, over and over: it is larger than all caches.
pub const RECORDING: (u64, u64) = (1 << 33, 16 << 20);
/// The frames of the calls, one below the other.
pub const STACK: (u64, u64) = (1 << 34, DEEPEST * (FRAME + CALL) / 4096 * 4096 + 4096);

/// Bytes of a record: `interval`, `offset`, `op`, `size`, `type` as `init.c`
/// reads them.
const RECORD: u64 = 20;
/// Bytes of a call's frame: the array that stands for the recorded stack.
const FRAME: u64 = 256 << 10;
/// What a call puts on the stack beside it: return address, saved registers and
/// small variables. Assumed: two lines. Without it the probes of all depths
/// would fall into the same few sets of the caches.
const CALL: u64 = 128;
/// Depths of calls.
const DEEPEST: u64 = 4;
/// Records that a call replays: 4 to 13.
const RECORDS: (u64, u64) = (4, 10);
/// Instructions of a probe (`sub`, `or`, `cmp` and `jne`), the access included.
const PROBE: u64 = 4;

/// A source at Kindle's pace.
pub struct Replay<S> {
    source: Folded<S>,
    pace: Pace,
    batch: Batch,
    /// Records replayed.
    position: u64,
    /// Records that are left of the call.
    left: u64,
    /// Instructions of the call that each of its records still takes.
    each: u64,
    /// First address of the call's frame.
    frame: u64,
    register: u32,
    /// Accesses of the source that initialise it, and are no records.
    unpaced: u64,
    initial: u64,
    mapped: bool,
}

impl<S: Source> Replay<S> {
    /// Replays a source; its first accesses initialise it and are no records.
    pub fn new(source: Folded<S>, initial: u64, pace: Pace) -> Self {
        Self {
            source,
            unpaced: initial,
            initial: initial + pages().count() as u64,
            pace,
            batch: Batch::default(),
            position: 0,
            left: 0,
            each: 0,
            frame: STACK.0,
            register: 0xace1,
            mapped: false,
        }
    }

    /// Accesses before the replay begins: the source's own initialisation, and
    /// one a page of the buffer and of the stack (Kindle populates both).
    pub fn initial(&self) -> u64 {
        self.initial
    }

    /// A number below `n` from a shift register, as `init.c` takes them.
    fn below(&mut self, n: u64) -> u64 {
        for _ in 0..16 {
            // Taps 16, 14, 13 and 11: all 65535 states are passed.
            let bits = self.register;
            let bit = (bits ^ bits >> 2 ^ bits >> 3 ^ bits >> 5) & 1;
            self.register = bits >> 1 | bit << 15;
        }
        u64::from(self.register) % n
    }

    /// A call begins: every page of its frame is probed.
    fn call(&mut self, out: &mut Vec<Access>) {
        let depth = self.below(DEEPEST);
        self.left = RECORDS.0 + self.below(RECORDS.1);
        self.frame = STACK.0 + (DEEPEST - 1 - depth) * (FRAME + CALL);
        for page in (0..FRAME / 4096).rev() {
            out.push(Access::store(self.frame + page * 4096).after(PROBE - 1));
        }
        let probes = FRAME / 4096 * PROBE;
        self.each = (self.pace.instructions * self.left).saturating_sub(probes) / self.left;
    }

    fn record(&mut self, access: Access, out: &mut Vec<Access>) {
        if self.left == 0 {
            self.call(out);
        }
        self.left -= 1;
        let at = RECORDING.0 + self.position * RECORD % RECORDING.1 / 4 * 4;
        self.position += 1;
        // What the recording has on the stack is in the frame of the call.
        let offset = access.address().wrapping_sub(folded::STACK.0);
        let access = if offset < folded::STACK.1 {
            Access::from_bits(access.bits() - access.address() + self.frame + offset)
        } else {
            access
        };
        // Half of the work finds out what the record says, the other half does it.
        let before = self.each / 2;
        out.push(Access::new(at, 4, terrace_core::Access::Read).after(before.saturating_sub(1)));
        out.push(access.after((self.each - before).saturating_sub(1)));
    }
}

/// First addresses of the pages that the replay adds.
fn pages() -> impl Iterator<Item = u64> {
    [RECORDING, STACK].into_iter().flat_map(|(start, len)| (start..start + len).step_by(4096))
}

impl<S: Source> Source for Replay<S> {
    fn describe(&self) -> String {
        format!(
            "{}, replayed at {} instructions a record",
            self.source.describe(),
            self.pace.instructions
        )
    }

    fn summary(&self) -> Option<Summary> {
        self.source.summary()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        let mut inner = std::mem::take(&mut self.batch);
        let more = self.source.next(&mut inner)?;
        // The replay has a pace of its own.
        inner.accesses.retain(|access| access.is_data());
        batch.clear();
        batch.thread = 0;
        batch.events.append(&mut inner.events);
        if !std::mem::replace(&mut self.mapped, true) {
            for (start, len) in [RECORDING, STACK] {
                batch.events.push(SpaceEvent::Map { start, len });
            }
            batch.accesses.extend(pages().map(Access::store));
        }
        let first = self.unpaced.min(inner.accesses.len() as u64);
        self.unpaced -= first;
        let (initial, records) = inner.accesses.split_at(first as usize);
        batch.accesses.extend_from_slice(initial);
        for access in records {
            self.record(*access, &mut batch.accesses);
        }
        self.batch = inner;
        Ok(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::Bytes;
    use terrace_sim::workload::catalog::{ProgramName, ProgramSpec};

    fn replayed(records: u64, pace: Pace) -> (Vec<Access>, u64) {
        let spec = ProgramSpec::new(ProgramName::Ycsb, Bytes::mib(4), records);
        let program = spec.build().expect("good parameters");
        let initial = program.initial();
        let mut replay = Replay::new(Folded::new(program), initial, pace);
        let (mut batch, mut all) = (Batch::default(), Vec::new());
        while replay.next(&mut batch).expect("no input") {
            all.extend_from_slice(&batch.accesses);
        }
        (all, replay.initial())
    }

    /// Kindle's counts: 297 instructions a record, one line of the recording for
    /// 3.2 records, 75 million probes for ten million records.
    #[test]
    fn instructions_probes_and_the_recording_itself_are_those_of_the_artifact() {
        let (all, initial) = replayed(100_000, Pace::PAGERANK);
        let measured = &all[initial as usize..];
        let within = |(start, len): (u64, u64)| {
            measured.iter().filter(|a| (start..start + len).contains(&a.address())).count() as f64
        };
        let records = within(RECORDING);
        assert!(records >= 100_000.0);
        let instructions: u64 = measured.iter().map(|a| a.instructions() + 1).sum();
        let each = instructions as f64 / records;
        assert!((each / 297.0 - 1.0).abs() < 0.02, "{each}");
        let probes = within(STACK) / records;
        assert!((probes / 7.5 - 1.0).abs() < 0.05, "{probes}");
        let in_recording = |a: &&Access| a.address() < STACK.0 && a.address() >= RECORDING.0;
        let mut lines: Vec<u64> = measured.iter().filter(in_recording).map(|a| a.line()).collect();
        lines.dedup();
        let per_line = records / lines.len() as f64;
        assert!((per_line / 3.2 - 1.0).abs() < 0.01, "{per_line}");
    }

    /// A record that got lost, or one that was replayed twice, would change what
    /// the program's own memory sees.
    #[test]
    fn the_program_s_own_accesses_come_in_order_and_unchanged() {
        let spec = ProgramSpec::new(ProgramName::Ycsb, Bytes::mib(4), 20_000);
        let mut plain = Folded::new(spec.build().expect("good parameters"));
        let (mut batch, mut expected) = (Batch::default(), Vec::new());
        while plain.next(&mut batch).expect("no input") {
            expected.extend(batch.accesses.iter().map(|a| (a.address(), a.is_store())));
        }
        let (all, _) = replayed(20_000, Pace::YCSB);
        let own = all.iter().filter(|a| a.address() < RECORDING.0);
        assert!(own.map(|a| (a.address(), a.is_store())).eq(expected));
    }
}
