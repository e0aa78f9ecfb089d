//! The memories behind the caches: latency under load, and bandwidth.
//!
//! Two effects of load. A device cannot move more than its bandwidth: what is
//! asked for faster queues up, and waits. And from the knee on latency grows
//! with the share of the device's time that is in use, as in
//! [`Device`]; that share is measured over the last
//! microseconds.

use terrace_core::machine::TierFile;

use super::timeline::{BUCKETS, bucket};
use crate::device::{Device, Traffic};

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

/// One memory.
#[derive(Clone, Debug)]
pub struct Tier {
    device: Device,
    line: f64,
    /// Time that a line takes of the device's bandwidth.
    read_line: f64,
    write_line: f64,
    /// Reads and writes take turns; else each direction has its own time.
    shared: bool,
    /// Work that was asked for and is not done: reads (or both), writes.
    backlog: [f64; 2],
    /// Latest time at which backlog was worked off.
    at: f64,
    window_begin: f64,
    window: Traffic,
    load: f64,
    slowdown: f64,
    /// What it was asked for.
    pub counts: TierCounts,
    /// Reads by latency, if somebody asks.
    latencies: Option<Box<[u64; BUCKETS]>>,
}

impl Tier {
    /// The memory that a machine file describes.
    pub fn new(file: &TierFile) -> Self {
        let device = Device::new(file);
        let line = device.moved(LINE);
        let time = |read: f64, write: f64| device.load(Traffic { read, write });
        Self {
            line,
            read_line: time(line, 0.0),
            write_line: time(0.0, line),
            shared: file.combined_bandwidth.is_none(),
            device,
            backlog: [0.0; 2],
            at: 0.0,
            window_begin: 0.0,
            window: Traffic::default(),
            load: 0.0,
            slowdown: 1.0,
            counts: TierCounts::default(),
            latencies: None,
        }
    }

    /// Counts reads by latency from now on.
    pub(super) fn keep_latencies(&mut self) {
        self.latencies = Some(Box::new([0; BUCKETS]));
    }

    /// Reads by latency, if they were counted.
    pub(super) fn latencies(&self) -> Option<[u64; BUCKETS]> {
        self.latencies.as_deref().copied()
    }

    /// Share of the device's time in use, lately.
    pub fn load(&self) -> f64 {
        self.load
    }

    /// Latency of a read now, in nanoseconds.
    pub fn read_latency(&self) -> f64 {
        self.device.read_latency() * self.slowdown
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
            self.backlog[0] = (self.backlog[0] - passed).max(0.0);
            self.backlog[1] = (self.backlog[1] - passed).max(0.0);
            if now - self.window_begin >= WINDOW {
                self.measure(now);
            }
        }
    }

    #[cold]
    fn measure(&mut self, now: f64) {
        let time = now - self.window_begin;
        let traffic = Traffic { read: self.window.read / time, write: self.window.write / time };
        let load = self.device.load(traffic).min(1.0);
        // Long idle times make the newest interval the only one that counts.
        let weight = 1.0 - (1.0 - NEWEST).powf(time / WINDOW);
        self.load += (load - self.load) * weight;
        self.slowdown = self.device.slowdown(self.load.min(MOST_LOAD));
        self.window = Traffic::default();
        self.window_begin = now;
    }

    /// A read of a line that begins at `now`: its latency.
    #[inline]
    pub fn read(&mut self, now: f64, walk: bool) -> f64 {
        self.pass(now);
        let wait = self.backlog[0];
        self.backlog[0] += self.read_line;
        self.window.read += self.line;
        self.counts.bytes_read += self.line;
        if walk {
            self.counts.walk_reads += 1;
        } else {
            self.counts.reads += 1;
        }
        let latency = wait + self.device.read_latency() * self.slowdown;
        self.counts.latency += latency;
        if let Some(latencies) = &mut self.latencies {
            latencies[bucket(latency)] += 1;
        }
        latency
    }

    /// A line is written back at `now`; nobody waits for it.
    #[inline]
    pub fn write(&mut self, now: f64) {
        self.pass(now);
        let queue = usize::from(!self.shared);
        self.backlog[queue] += self.write_line;
        self.window.write += self.line;
        self.counts.bytes_written += self.line;
        self.counts.writes += 1;
    }

    /// A copy of pages uses the device.
    pub fn copy(&mut self, bytes: f64, write: bool) {
        let (read, written) = if write { (0.0, bytes) } else { (bytes, 0.0) };
        self.window.read += read;
        self.window.write += written;
        self.counts.bytes_read += read;
        self.counts.bytes_written += written;
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
            tier.read(f64::from(i) * interval, false);
        }
        let before = tier.counts.latency;
        for i in reads..2 * reads {
            tier.read(f64::from(i) * interval, false);
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

    #[test]
    fn a_line_takes_a_whole_unit_of_optane() {
        let mut optane = tier("optane-cascade-lake", 1);
        optane.read(0.0, false);
        assert!((optane.counts.bytes_read - 256.0).abs() < 1e-9);
    }
}
