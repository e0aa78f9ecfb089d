//! A tier whose lines are timed by the commands that its memory's controller sends
//! (`terrace-dram`), because the machine file names a memory for it.
//!
//! A read has to be answered when it is asked for, while the controller decides later
//! what goes first. So a read is queued, and takes what it takes if nothing else is asked
//! for meanwhile: the channel's future is played on a copy of it. The channel itself goes
//! on with everything that is queued, so that rows, banks, refreshes and the bus are those
//! of all requests. A later request that overtakes a read delays others and not that read.
//!
//! The controller's time does not run backwards. A request that begins before the latest
//! one (a core that is behind; a data access behind its walk) takes what it would take if
//! it came now, as in the analytic model.

use core::ops::Range;
use std::collections::VecDeque;

use terrace_core::machine::TierFile;
use terrace_core::{Access, Bytes};
use terrace_dram::{Memory, MemoryFile, Picos};

/// Bytes of a cache line.
const LINE: u64 = terrace_core::detail::CACHE_LINE;
/// The part of a mean that the latest read has.
const LATEST: f64 = 1.0 / 64.0;

/// Lines of a page that is copied, spread evenly over the time that it takes.
#[derive(Clone, Copy, Debug)]
struct Copy {
    access: Access,
    line: u64,
    left: u64,
    at: f64,
    step: f64,
}

/// A memory behind a tier.
#[derive(Clone, Debug)]
pub(super) struct Timed {
    memory: Memory,
    /// The tier's first line, and how many lines the memory has.
    first: u64,
    lines: u64,
    bursts: u64,
    burst: u64,
    /// Time of a read's way between core and controller, in nanoseconds.
    path: f64,
    /// When something was asked for last.
    at: f64,
    copies: VecDeque<Copy>,
    mean: f64,
    /// What was read and when, for a test.
    #[cfg(test)]
    log: Vec<(f64, u64)>,
}

/// Nanoseconds of a read in an idle memory whose rows are closed.
fn idle(file: &MemoryFile) -> f64 {
    Memory::new(file).access(Access::Read, 0, Picos::ZERO).as_nanos()
}

/// What is wrong with a memory for a tier, if something is.
pub(crate) fn unfit(tier: &TierFile, file: &MemoryFile) -> Result<(), String> {
    let name = &file.name;
    if file.dram.is_some() && file.nvm.is_some() {
        return Err(format!("`{name}` is of two kinds of memory, and a tier is of one"));
    }
    let burst = file.channel.burst_bytes.value;
    if burst > Bytes(LINE) {
        return Err(format!("`{name}` moves {burst} at once, more than a line of {LINE} B"));
    }
    let (idle, whole) = (idle(file), tier.read_latency.value);
    if idle > whole.as_f64() {
        return Err(format!(
            "a read of `{name}` takes {idle:.1} ns, more than read-latency {whole}"
        ));
    }
    Ok(())
}

/// Bytes of a memory.
pub(crate) fn capacity(file: &MemoryFile) -> Bytes {
    file.channel_capacity() * u64::from(file.channel.channels.value)
}

impl Timed {
    /// The memory of a tier that begins with a line.
    pub(super) fn new(tier: &TierFile, file: &MemoryFile, first: u64) -> Self {
        let burst = file.channel.burst_bytes.value.get();
        let latency = tier.read_latency.value.as_f64();
        Self {
            memory: Memory::new(file),
            first,
            lines: capacity(file).get() / LINE,
            bursts: LINE / burst,
            burst,
            path: latency - idle(file),
            at: 0.0,
            copies: VecDeque::new(),
            mean: latency,
            #[cfg(test)]
            log: Vec::new(),
        }
    }

    /// Mean latency of the latest reads, in nanoseconds.
    pub(super) fn mean(&self) -> f64 {
        self.mean
    }

    /// Bursts of a line. A tier that is given more than its memory has, as under
    /// `all-dram` and while `plan` looks for what misses, goes around it.
    fn addresses(&self, line: u64) -> impl Iterator<Item = u64> + use<> {
        let (begin, burst) = ((line - self.first) % self.lines * LINE, self.burst);
        (0..self.bursts).map(move |i| begin + i * burst)
    }

    fn picos(&self) -> Picos {
        Picos((self.at * 1000.0).round() as u64)
    }

    /// Time goes on, and with it the copies that are under way.
    fn pass(&mut self, now: f64) {
        while let Some(next) = self.next_copy(now) {
            let Copy { access, line, at, .. } = self.copies[next];
            self.at = self.at.max(at);
            self.ask(access, line);
            let copy = &mut self.copies[next];
            (copy.line, copy.left, copy.at) = (line + 1, copy.left - 1, at + copy.step);
            if copy.left == 0 {
                self.copies.remove(next);
            }
        }
        self.at = self.at.max(now);
    }

    /// The copy whose next line comes first, if that is before `now`.
    fn next_copy(&self, now: f64) -> Option<usize> {
        let due = self.copies.iter().enumerate().filter(|(_, copy)| copy.at <= now);
        due.min_by(|(_, one), (_, other)| one.at.total_cmp(&other.at)).map(|(next, _)| next)
    }

    /// A request that nobody waits for.
    fn ask(&mut self, access: Access, line: u64) {
        let at = self.picos();
        for address in self.addresses(line) {
            self.memory.submit(access, address, at);
        }
        self.memory.forget_completions();
    }

    /// A read that begins at `now`: its latency.
    pub(super) fn read(&mut self, now: f64, line: u64) -> f64 {
        self.pass(now);
        let at = self.picos();
        let done = self
            .addresses(line)
            .fold(Picos::ZERO, |done, address| done.max(self.memory.foresee_read(address, at)));
        let latency = (done.as_nanos() - self.at).max(0.0) + self.path;
        self.mean += (latency - self.mean) * LATEST;
        #[cfg(test)]
        self.log.push((self.at, line));
        latency
    }

    /// A line is written back at `now`.
    pub(super) fn write(&mut self, now: f64, line: u64) {
        self.pass(now);
        self.ask(Access::Write, line);
    }

    /// A copy reads or writes lines from a time on, evenly over what it takes.
    pub(super) fn copy(&mut self, access: Access, lines: Range<u64>, begin: f64, time: f64) {
        let left = lines.end - lines.start;
        let step = time / left as f64;
        self.copies.push_back(Copy { access, line: lines.start, left, at: begin, step });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analytic::config::SimPolicy;
    use crate::exact::machine::ExactMachine;
    use crate::exact::report::{ExactReport, ExactTierReport};
    use crate::exact::setup::{self, ExactConfig};
    use crate::exact::source::{Stream, StreamKind};
    use crate::machines;
    use terrace_core::{Nanos, PageSize};
    use terrace_dram::presets;

    fn config(policy: &str, memory: Option<&str>) -> ExactConfig {
        let policy: SimPolicy = policy.parse().expect("a policy");
        let mut config = ExactConfig::new(machines::builtin("kindle").expect("built in"), policy);
        config.machine.tiers[0].memory_file = memory.map(str::to_owned);
        config.machine.cpu.llc.value = Bytes::kib(64);
        config
    }

    fn run(config: &ExactConfig, kind: StreamKind, accesses: u64) -> (ExactMachine, ExactReport) {
        let mut machine = ExactMachine::new(config).expect("set up");
        if machine.runtime.tick.is_some() {
            // Often enough for a run that is short.
            (machine.runtime.tick, machine.runtime.next_tick) =
                (Some(Nanos(500_000)), Nanos(500_000));
        }
        let mut source = Stream::new(kind, accesses, 16 << 20);
        let report = setup::run(&mut machine, config, &mut source, &mut |_, _| ());
        (machine, report.expect("it fits"))
    }

    /// What is counted without a clock must not depend on how memory is timed.
    #[test]
    fn a_memory_of_commands_changes_times_and_no_counts() {
        for kind in [StreamKind::Gups, StreamKind::Sequential] {
            let counts = |memory| {
                let (_, report) = run(&config("first-touch", memory), kind, 60_000);
                let of = |t: &ExactTierReport| (t.reads, t.walk_reads, t.writes);
                let tiers: Vec<_> = report.tiers.iter().map(of).collect();
                let counts = format!(
                    "{:?} {:?} {:?} {:?} {:?}",
                    report.llc, report.l1, report.tlb, report.faults.first_touches, tiers
                );
                (counts, report.time)
            };
            let (simple, detailed) = (counts(None), counts(Some("kindle-dram")));
            assert_eq!(simple.0, detailed.0);
            assert_ne!(simple.1, detailed.1);
            // Rows that are open and banks that are busy, not another memory.
            let ratio = detailed.1.as_f64() / simple.1.as_f64();
            assert!((0.5..2.0).contains(&ratio), "{kind:?}: {ratio}");
        }
    }

    /// Loads one after the other: each takes what the memory alone says for its address at
    /// its time, and what lies between core and controller.
    #[test]
    fn a_run_s_reads_take_what_the_memory_alone_says_for_their_addresses() {
        let mut config = config("all-dram", Some("kindle-dram"));
        config.page_size = PageSize::Huge;
        let (machine, report) = run(&config, StreamKind::Chase, 60_000);
        let tier = &machine.tiers[0];
        let timed = tier.timings().expect("it is timed");
        let file = presets::builtin("kindle-dram").expect("built in");
        let mut alone = Memory::new(&file);
        let path = 62.0 - idle(&file);
        let mut sum = 0.0;
        for &(at, line) in &timed.log {
            let begin = Picos((at * 1000.0).round() as u64);
            let done = alone.access(Access::Read, line * LINE, begin);
            sum += done.as_nanos() - at + path;
        }
        let reads = tier.counts.reads + tier.counts.walk_reads;
        assert!(reads > 50_000 && timed.log.len() as u64 == reads, "{reads} reads");
        assert_eq!(report.tiers[0].reads, tier.counts.reads);
        let ours = tier.counts.latency;
        assert!((ours / sum - 1.0).abs() < 1e-9, "{ours} ns, alone {sum} ns");
        // Some rows were open, and some banks were not ready: it is no constant.
        assert!((ours / reads as f64 - 62.0).abs() > 0.5, "{} ns a read", ours / reads as f64);
    }

    /// Pages that move are traffic of the memories that they come from and go to.
    #[test]
    fn copies_are_requests_of_the_memory() {
        let mut config = config("hemem", Some("kindle-dram"));
        config.fast = Some(Bytes::mib(1));
        config.sampler.period = 2;
        let (machine, report) = run(&config, StreamKind::Gups, 300_000);
        let moved = report.migrated.exchanges;
        assert!(moved > 20, "{moved} exchanged");
        let tier = &machine.tiers[0];
        let stats = tier.timings().expect("it is timed").memory.stats();
        let written: u64 = stats.channels.iter().map(|c| c.writes + c.coalesced).sum();
        // Some of the last writes may wait in the queue.
        let least = tier.counts.writes + 64 * moved - 64 - 64;
        assert!(written >= least, "{written} lines written, {moved} pages moved");
    }

    /// More than the memory can move is not moved, however many ask at once.
    #[test]
    fn reads_get_no_more_than_the_memory_s_bandwidth() {
        let machine = machines::builtin("kindle").expect("built in");
        let file = presets::builtin("kindle-dram").expect("built in");
        let mut timed = Timed::new(&machine.tiers[0], &file, 0);
        // 64 that each wait for their line, and ask for another.
        let mut ready = [0.0f64; 64];
        let mut line = 1u64;
        for _ in 0..40_000 {
            let next = (0..64).min_by(|&a, &b| ready[a].total_cmp(&ready[b])).expect("64");
            line = line.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1) % (1 << 25);
            ready[next] += timed.read(ready[next], line);
        }
        let rate = 40_000.0 * 64.0 / ready.iter().copied().fold(0.0, f64::max);
        assert!((6.0..19.21).contains(&rate), "{rate} GB/s of 19.2");
    }
}
