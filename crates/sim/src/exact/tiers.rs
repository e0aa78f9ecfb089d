//! The memories behind the caches: latency under load, and bandwidth.
//!
//! Two effects of load. A device cannot move more than its bandwidth: what is
//! asked for faster queues up, and waits. And from the knee on latency grows
//! with the share of the device's time that is in use, as in
//! [`Device`]; that share is measured over the last
//! microseconds.
//!
//! Bandwidth is one, whatever the traffic is a mix of. Reads and writes take
//! turns on a device, so each line takes its time of the same lane (`lanes`). A device
//! that names a combined bandwidth (a link) has a lane for each direction, too: a
//! line takes time of its direction's lane and of the one for both. Copies of
//! pages take turns with the program's lines on every lane.
//!
//! A tier that names a memory is timed by that memory's commands instead
//! ([`timed_memory`](super::timed_memory)). Its load, and what a copy takes, come from its bandwidth all
//! the same.

#![allow(clippy::inline_always)] // measured: a call for each line costs 1 % of a run and more

use core::ops::Range;

use terrace_core::Access;
use terrace_core::machine::TierFile;
use terrace_dram::MemoryFile;

use super::lanes::{Lanes, Work};
use super::timed_memory::Timed;
use super::timeline::{BUCKETS, bucket};
use crate::analytic::device::{Device, Traffic};

/// Length of the interval over which load is measured, in nanoseconds.
const WINDOW: f64 = 4_000.0;
/// Weight of the newest interval in the load.
const NEWEST: f64 = 0.25;
/// Bytes of a cache line.
const LINE: f64 = terrace_core::detail::CACHE_LINE as f64;

/// What a memory was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct TierCounts {
    /// Lines read because the program missed.
    pub reads: u64,
    /// Lines read by the page walker.
    pub walk_reads: u64,
    /// Dirty lines written back.
    pub writes: u64,
    /// Bytes moved for all of it and for migration, in units of the device.
    pub bytes_read: f64,
    /// Bytes written, likewise.
    pub bytes_written: f64,
    /// Nanoseconds that reads took altogether.
    pub latency: f64,
}

/// What a memory has that few have.
#[derive(Clone, Debug, Default)]
struct Rare {
    /// Reads by latency, if somebody asks.
    latencies: Option<Box<[u64; BUCKETS]>>,
    /// The memory whose commands time its lines, if it has one.
    timed: Option<Timed>,
}

/// One memory.
#[derive(Clone, Debug)]
pub struct Tier {
    device: Device,
    line: f64,
    lanes: Lanes,
    /// Time that a line takes of each lane.
    read_line: Work,
    write_line: Work,
    /// Latest time at which work was done.
    at: f64,
    window_begin: f64,
    load: f64,
    slowdown: f64,
    /// What it was asked for.
    pub counts: TierCounts,
    /// One pointer, so that the hot path looks once.
    rare: Option<Box<Rare>>,
}

impl Rare {
    /// The latency of a read that would be `latency` where nothing times it; counted.
    #[cold]
    fn read(&mut self, now: f64, line: u64, latency: f64) -> f64 {
        let latency = self.timed.as_mut().map_or(latency, |timed| timed.read(now, line));
        if let Some(latencies) = &mut self.latencies {
            latencies[bucket(latency)] += 1;
        }
        latency
    }
}

impl Tier {
    /// The memory that a machine file describes by latency, bandwidth and knee.
    pub fn new(file: &TierFile) -> Self {
        let device = Device::new(file);
        let line = device.moved(LINE);
        Self {
            line,
            read_line: Work::new(device.time(Traffic { read: line, write: 0.0 })),
            write_line: Work::new(device.time(Traffic { read: 0.0, write: line })),
            device,
            lanes: Lanes::default(),
            at: 0.0,
            window_begin: 0.0,
            load: 0.0,
            slowdown: 1.0,
            counts: TierCounts::default(),
            rare: None,
        }
    }

    /// The same, its lines timed by the commands of a memory; the tier's memory begins with
    /// line `first`.
    pub(super) fn timed(file: &TierFile, memory: &MemoryFile, first: u64) -> Self {
        let timed = Some(Timed::new(file, memory, first));
        Self { rare: Some(Box::new(Rare { timed, ..Rare::default() })), ..Self::new(file) }
    }

    /// Counts reads by latency from now on.
    pub(super) fn keep_latencies(&mut self) {
        self.rare.get_or_insert_default().latencies = Some(Box::new([0; BUCKETS]));
    }

    /// Reads by latency, if they were counted.
    pub(super) fn latencies(&self) -> Option<[u64; BUCKETS]> {
        self.rare.as_ref()?.latencies.as_deref().copied()
    }

    /// Share of the device's time in use, lately.
    pub fn load(&self) -> f64 {
        self.load
    }

    /// Latency of a read now, in nanoseconds.
    pub fn read_latency(&self) -> f64 {
        self.timings().map_or(self.device.read_latency() * self.slowdown, Timed::mean)
    }

    /// Latency of a write now, in nanoseconds.
    pub fn write_latency(&self) -> f64 {
        self.device.write_latency() * self.slowdown
    }

    #[inline]
    fn pass(&mut self, now: f64) {
        if now > self.at {
            let passed = now - self.at;
            self.at = now;
            self.lanes.pass(passed);
            if now - self.window_begin >= WINDOW {
                self.measure(now);
            }
        }
    }

    #[cold]
    fn measure(&mut self, now: f64) {
        let time = now - self.window_begin;
        let load = (self.lanes.take_window() / time).min(1.0);
        // Long idle times make the newest interval the only one that counts.
        let weight = 1.0 - (1.0 - NEWEST).powf(time / WINDOW);
        self.load += (load - self.load) * weight;
        self.slowdown = self.device.slowdown(self.load.min(MOST_LOAD));
        self.window_begin = now;
    }

    /// A read of a line that begins at `now`: its latency.
    #[inline(always)]
    pub fn read(&mut self, now: f64, line: u64, walk: bool) -> f64 {
        self.pass(now);
        let wait = self.lanes.wait();
        self.lanes.ask(self.read_line);
        self.counts.bytes_read += self.line;
        if walk {
            self.counts.walk_reads += 1;
        } else {
            self.counts.reads += 1;
        }
        let mut latency = wait + self.device.read_latency() * self.slowdown;
        if let Some(rare) = &mut self.rare {
            latency = rare.read(now, line, latency);
        }
        self.counts.latency += latency;
        latency
    }

    /// A line is written back at `now`; nobody waits for it.
    #[inline]
    pub fn write(&mut self, now: f64, line: u64) {
        self.pass(now);
        if let Some(timed) = self.timed_mut() {
            timed.write(now, line);
        }
        self.lanes.ask(self.write_line);
        self.counts.bytes_written += self.line;
        self.counts.writes += 1;
    }

    /// A copy of pages uses the device.
    pub fn copy(&mut self, bytes: f64, write: bool) {
        let (read, written) = if write { (0.0, bytes) } else { (bytes, 0.0) };
        self.lanes.copy(Work::new(self.device.time(Traffic { read, write: written })));
        self.counts.bytes_read += read;
        self.counts.bytes_written += written;
    }

    /// The lines of a copy that begins at a time, and takes a time, where they are timed.
    pub(super) fn copy_lines(&mut self, access: Access, lines: Range<u64>, begin: f64, time: f64) {
        if let Some(timed) = self.timed_mut() {
            timed.copy(access, lines, begin, time);
        }
    }

    /// The memory that times its lines, if one does.
    pub(super) fn timings(&self) -> Option<&Timed> {
        self.rare.as_ref()?.timed.as_ref()
    }

    #[inline]
    fn timed_mut(&mut self) -> Option<&mut Timed> {
        self.rare.as_mut()?.timed.as_mut()
    }

    /// Whether its lines are timed by a memory's commands.
    pub(super) fn is_timed(&self) -> bool {
        self.timings().is_some()
    }

    /// Time that a copy of so many bytes takes of the device.
    pub fn copy_time(&self, bytes: f64, write: bool) -> f64 {
        let (read, written) = if write { (0.0, bytes) } else { (bytes, 0.0) };
        self.device.load(Traffic { read, write: written }) * self.slowdown
    }
}

/// The load that latency is taken at is bounded: beyond it the queue of work
/// that is not done makes accesses wait, and would be counted twice.
const MOST_LOAD: f64 = 0.95;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines;

    fn tier(machine: &str, index: usize) -> Tier {
        Tier::new(&machines::builtin(machine).expect("built in").tiers[index])
    }

    /// Reads that begin every `interval` nanoseconds: mean latency.
    fn mean_latency(tier: &mut Tier, interval: f64) -> f64 {
        let reads = 200_000;
        for i in 0..reads {
            tier.read(f64::from(i) * interval, 0, false);
        }
        let before = tier.counts.latency;
        for i in reads..2 * reads {
            tier.read(f64::from(i) * interval, 0, false);
        }
        (tier.counts.latency - before) / f64::from(reads)
    }

    #[test]
    fn an_idle_memory_answers_at_its_idle_latency() {
        assert!((mean_latency(&mut tier("cxl", 0), 50.0) - 106.0).abs() < 1e-6);
        assert!((mean_latency(&mut tier("cxl", 1), 50.0) - 250.0).abs() < 1e-6);
    }

    #[test]
    fn latency_grows_beyond_the_knee_and_without_bound_beyond_the_roof() {
        // 64 B at 17.8 GB/s are 3.6 ns.
        let at = |load: f64| mean_latency(&mut tier("cxl", 1), 64.0 / 17.8 / load);
        assert!((at(0.6) - 250.0).abs() < 1.0, "{}", at(0.6));
        assert!(at(0.9) > 300.0, "{}", at(0.9));
        assert!(at(1.2) > 10_000.0, "{}", at(1.2));
    }

    /// Traffic in GB/s, both directions together, of reads as fast as they come
    /// with a write for every so many of them; copies besides, in GB/s.
    fn most_traffic(tier: &mut Tier, reads_a_write: u32, copies: f64) -> f64 {
        let (mut now, mut copied) = (0.0, 0.0);
        let reads = 400_000u32;
        for i in 0..reads {
            // A read begins when what is asked for before it is done: no faster.
            now += (tier.read(now, 0, false) - tier.read_latency()).max(0.0);
            if i % reads_a_write == 0 {
                tier.write(now, 0);
            }
            while copied < now * copies {
                tier.copy(4096.0, true);
                copied += 4096.0;
            }
        }
        (tier.counts.bytes_read + tier.counts.bytes_written) / now
    }

    /// A link of 27.2 GB/s that carried 17.8 each way would make every mixed
    /// workload a third faster than it is.
    #[test]
    fn reads_and_writes_together_get_one_bandwidth() {
        let near = |ours: f64, bound: f64| {
            assert!((ours / bound - 1.0).abs() < 0.01, "{ours} GB/s of {bound}");
        };
        near(most_traffic(&mut tier("cxl", 1), 1, 0.0), 27.2);
        // Three reads a write: the reads' direction is the limit, at 17.8.
        near(most_traffic(&mut tier("cxl", 1), 3, 0.0), 17.8 * 4.0 / 3.0);
        near(most_traffic(&mut tier("cxl", 1), u32::MAX, 0.0), 17.8);
        // Optane has one time for both: a unit read and one written take this.
        let both = 256.0 / 39.4 + 256.0 / 13.9;
        near(most_traffic(&mut tier("optane-cascade-lake", 1), 1, 0.0), 512.0 / both);
    }

    /// Copies of pages are traffic like any other.
    #[test]
    fn copies_leave_the_program_less() {
        for machine in ["cxl", "optane-cascade-lake"] {
            let alone = most_traffic(&mut tier(machine, 1), 1, 0.0);
            let mut shared = tier(machine, 1);
            let all = most_traffic(&mut shared, 1, 2.0);
            assert!(all < alone * 1.05, "{machine}: {all} GB/s with copies, {alone} without");
            assert!(shared.counts.reads == 400_000);
        }
    }

    #[test]
    fn a_line_takes_a_whole_unit_of_optane() {
        let mut optane = tier("optane-cascade-lake", 1);
        optane.read(0.0, 0, false);
        assert!((optane.counts.bytes_read - 256.0).abs() < 1e-9);
    }
}
