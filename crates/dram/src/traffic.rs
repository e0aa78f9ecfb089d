//! Request patterns whose result is known, from a formula or from others'
//! measurements.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_core::{Access, BytesPerSecond};

use crate::channel::{Accept, Channel};
use crate::command::Observer;
use crate::duration::Clock;
use crate::file::{DramFile, MemoryFile};

/// What a pattern measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Traffic of all requests.
    pub bandwidth: BytesPerSecond,
    /// Mean time from arrival to the last of the data of the requests in
    /// question, in nanoseconds.
    pub latency_ns: f64,
    /// Requests served.
    pub requests: u64,
    /// Mean number of requests in the system, sampled at regular times.
    pub in_system: f64,
    /// Time that passed.
    pub time_ns: f64,
}

/// A stream of a given rate, and a chain of dependent random reads whose
/// latency is measured: the pattern of Ramulator 2.1's
/// `tests/latency_throughput` (c5b1c3a, `latency_throughput_trace.cpp`).
#[derive(Clone, Copy, Debug)]
pub struct StreamAndProbe {
    /// Quarters of a cycle between two requests of the stream.
    pub interval_quarters: u64,
    /// Reads among the stream's requests, in percent.
    pub read_percent: u64,
    /// Random reads to measure.
    pub probes: u64,
    /// Cycles before measuring.
    pub warmup: u64,
    /// Where randomness comes from.
    pub seed: u64,
}

/// The identifier of a probe; streams count from 0.
const PROBE: u64 = u64::MAX;

impl StreamAndProbe {
    /// Runs the pattern on a channel.
    pub fn run<O: Observer>(&self, file: &MemoryFile, mut channel: Channel<O>) -> Measured {
        let dram = file.dram.as_ref().expect("the pattern addresses banks");
        let period = file.channel.clock.value.nanos;
        let burst = file.channel.burst_bytes.value.get();
        let columns = dram.row_bytes.value.get() / burst;
        let mut random = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let (mut sent, mut slot, mut held) = (0u64, 0u64, None::<(Access, u64)>);
        let mut probe_from = Some(self.warmup);
        let (mut probes, mut probe_cycles) = (0u64, 0u64);
        let mut served_before = None;
        while probes < self.probes {
            let stream_at = slot * self.interval_quarters / 4;
            let probe_at = probe_from.unwrap_or(u64::MAX);
            // Until the next slot of the stream the probe may complete and be sent anew.
            if probe_at <= stream_at {
                let at = Clock(probe_at).max(channel.now());
                let address = random_place(dram, &channel, &mut random);
                match channel.offer(PROBE, Access::Read, address, at) {
                    Accept::Queued => probe_from = None,
                    Accept::Full => {
                        channel.advance_until_room(Clock(stream_at.max(at.0)));
                        probe_from = Some(channel.now().0);
                        if channel.now().0 >= stream_at && !channel.has_room(Access::Read) {
                            // Let the stream have its slot before trying again.
                            probe_from = Some(stream_at + 1);
                        }
                    }
                    Accept::Forwarded(_) | Accept::Coalesced => probe_from = Some(at.0 + 1),
                }
                continue;
            }
            if served_before.is_none() && stream_at >= self.warmup {
                let stats = channel.stats();
                served_before = Some((stats.reads + stats.writes, stream_at));
            }
            channel.advance(Clock(stream_at));
            for done in channel.completions() {
                if done.id == PROBE {
                    probes += 1;
                    probe_cycles += (done.at - done.arrived).0;
                    probe_from = Some(done.at.0);
                }
            }
            if probe_from.is_some_and(|at| at <= stream_at) {
                continue;
            }
            let (access, address) = held.take().unwrap_or_else(|| {
                let read = random.next_u64() % 100 < self.read_percent;
                let access = if read { Access::Read } else { Access::Write };
                (access, stream_place(dram, &channel, columns, sent))
            });
            slot += 1;
            match channel.offer(sent, access, address, Clock(stream_at)) {
                Accept::Full => held = Some((access, address)),
                _ => sent += 1,
            }
        }
        let (before, since) = served_before.unwrap_or((0, 0));
        let stats = channel.stats();
        let requests = stats.reads + stats.writes - before;
        let time_ns = (channel.now().0 - since) as f64 * period;
        Measured {
            bandwidth: BytesPerSecond((requests * burst) as f64 / time_ns * 1e9),
            latency_ns: probe_cycles as f64 / probes as f64 * period,
            requests,
            in_system: 0.0,
            time_ns,
        }
    }
}

/// A random burst of a random bank and row.
fn random_place<O: Observer>(dram: &DramFile, channel: &Channel<O>, random: &mut impl Rng) -> u64 {
    let banks = dram.ranks.value * dram.bank_groups.value * dram.banks_per_group.value;
    let row = below(random, u64::from(dram.rows.value)) as u32;
    let bank = below(random, u64::from(banks)) as u32;
    channel.mapper().dram_address(bank, row, (below(random, 1 << 20)) as u32 & 0x7f)
}

/// The stream's n-th place: around all banks, group fastest, each bank a few
/// bursts ahead of the one before, so that not all change rows together.
fn stream_place<O: Observer>(
    dram: &DramFile,
    channel: &Channel<O>,
    columns: u64,
    index: u64,
) -> u64 {
    let (groups, in_group) =
        (u64::from(dram.bank_groups.value), u64::from(dram.banks_per_group.value));
    let banks = groups * in_group * u64::from(dram.ranks.value);
    let flat = index % banks;
    let place = index / banks + flat * columns / banks;
    let (group, bank, rank) = (flat % groups, flat / groups % in_group, flat / (groups * in_group));
    let bank = (rank * groups + group) * in_group + bank;
    let row = place / columns % u64::from(dram.rows.value);
    channel.mapper().dram_address(bank as u32, row as u32, (place % columns) as u32)
}

fn below(random: &mut impl Rng, limit: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(limit)) >> 64) as u64
}

/// Keeps a channel's queues full with `requests` requests whose addresses come
/// from `address` and of which `write_percent` are writes.
pub fn saturate<O: Observer>(
    file: &MemoryFile,
    channel: &mut Channel<O>,
    requests: u64,
    write_percent: u64,
    mut address: impl FnMut(u64) -> u64,
) -> Measured {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
    let start = channel.now();
    let (mut done, mut cycles) = (0u64, 0u64);
    for id in 0..requests {
        let write = write_percent > 0 && below(&mut random, 100) < write_percent;
        let access = if write { Access::Write } else { Access::Read };
        let address = address(id);
        loop {
            let now = channel.now();
            match channel.offer(id, access, address, now) {
                Accept::Full => {
                    channel.advance_until_room(Clock::NEVER);
                }
                Accept::Queued => break,
                Accept::Forwarded(_) | Accept::Coalesced => {
                    done += 1;
                    break;
                }
            }
        }
        for completion in channel.completions() {
            done += 1;
            cycles += (completion.at - completion.arrived).0;
        }
    }
    channel.drain();
    let mut last = channel.now();
    for completion in channel.completions() {
        done += 1;
        cycles += (completion.at - completion.arrived).0;
        last = last.max(completion.at);
    }
    let period = file.channel.clock.value.nanos;
    let time_ns = (last - start).0 as f64 * period;
    Measured {
        bandwidth: BytesPerSecond(
            (done * file.channel.burst_bytes.value.get()) as f64 / time_ns * 1e9,
        ),
        latency_ns: cycles as f64 / done as f64 * period,
        requests: done,
        in_system: 0.0,
        time_ns,
    }
}

/// Random reads over the channel's capacity, which arrive as a Poisson process
/// with a mean interval of `interval_ns`; `one_bank` sends all to one bank,
/// each to another row than the one before.
pub fn poisson<O: Observer>(
    file: &MemoryFile,
    mut channel: Channel<O>,
    requests: u64,
    interval_ns: f64,
    one_bank: bool,
) -> Measured {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(11);
    let period = file.channel.clock.value.nanos;
    let dram = file.dram.as_ref().expect("the pattern addresses banks");
    let (mut at, mut done, mut cycles) = (0.0f64, 0u64, 0u64);
    let mut completions: Vec<(u64, u64)> = Vec::with_capacity(requests as usize);
    let mut lost = 0;
    for id in 0..requests {
        let uniform = ((random.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        at -= uniform.ln() * interval_ns / period;
        let address = if one_bank {
            channel.mapper().dram_address(0, (id % u64::from(dram.rows.value)) as u32, 0)
        } else {
            random_place(dram, &channel, &mut random)
        };
        // A formula's queue is endless; ours is long enough at the loads in question.
        if channel.offer(id, Access::Read, address, Clock(at as u64)) == Accept::Full {
            lost += 1;
        }
        completions.extend(channel.completions().map(|c| (c.arrived.0, c.at.0)));
    }
    channel.drain();
    completions.extend(channel.completions().map(|c| (c.arrived.0, c.at.0)));
    assert_eq!(lost, 0, "the load is too high for this measurement");
    for (arrived, left) in &completions {
        done += 1;
        cycles += left - arrived;
    }
    let end = completions.iter().map(|(_, left)| *left).max().unwrap_or(1);
    Measured {
        bandwidth: BytesPerSecond(
            (done * file.channel.burst_bytes.value.get()) as f64 / (end as f64 * period) * 1e9,
        ),
        latency_ns: cycles as f64 / done as f64 * period,
        requests: done,
        in_system: sample_population(&completions, end),
        time_ns: end as f64 * period,
    }
}

/// The mean number of requests in the system, counted at regular times: by
/// counting, not by adding latencies, so that Little's law can be checked.
fn sample_population(spans: &[(u64, u64)], end: u64) -> f64 {
    const STEP: u64 = 61;
    let samples = (end / STEP) as usize + 1;
    let mut change = vec![0i64; samples + 1];
    for &(arrived, left) in spans {
        // Present at sample k if arrived <= k * STEP < left.
        change[arrived.div_ceil(STEP) as usize] += 1;
        change[left.div_ceil(STEP) as usize] -= 1;
    }
    let (mut present, mut sum) = (0, 0);
    for delta in change {
        present += delta;
        sum += present;
    }
    sum as f64 / samples as f64
}

/// A chain of dependent reads, each of which waits for the one before: the
/// mean latency of a load on an idle memory, by a whole [`crate::Memory`].
pub fn chase(file: &MemoryFile, reads: u64, mut address: impl FnMut(u64) -> u64) -> f64 {
    let mut memory = crate::Memory::new(file);
    let mut now = crate::Picos::ZERO;
    let start = now;
    for i in 0..reads {
        now = memory.access(Access::Read, address(i), now);
    }
    (now - start).as_nanos() / reads as f64
}

/// `threads` that each write `bytes` with `size` bytes at a time, each to
/// places of its own given by `address(thread, index)`: the bandwidth reached.
pub fn write_bandwidth(
    file: &MemoryFile,
    threads: u64,
    writes: u64,
    size: u64,
    mut address: impl FnMut(u64, u64) -> u64,
) -> BytesPerSecond {
    let mut memory = crate::Memory::new(file);
    let burst = file.channel.burst_bytes.value.get();
    let mut clocks = vec![crate::Picos::ZERO; threads as usize];
    for i in 0..writes {
        for thread in 0..threads {
            let base = address(thread, i);
            for offset in (0..size).step_by(burst as usize) {
                let at = clocks[thread as usize];
                clocks[thread as usize] = memory.submit(Access::Write, base + offset, at).released;
            }
        }
        memory.advance(clocks.iter().copied().min().unwrap_or_default());
    }
    memory.drain();
    let end = memory.channels().iter().map(|c| c.now().0).max().unwrap_or(1);
    let time = end as f64 * file.channel.clock.value.nanos;
    BytesPerSecond((threads * writes * size) as f64 / time * 1e9)
}
