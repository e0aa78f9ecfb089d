//! Speed of the exact engine, in accesses a second of processor time, with
//! everything on: caches, TLBs, page walks, tiers, faults, HeMem.
//!
//! `exact_speed [STREAM [GIB [MILLIONS [PAGE [CORES]]]]]`: with several cores each
//! has a stream and a part of the memory of its own.

use std::env;

use terrace_clocks::thread_time;
use terrace_core::{Bytes, PageSize};
use terrace_policy::PolicyName;
use terrace_sim::exact::{
    Access, Batch, ExactConfig, ExactMachine, Source, SpaceEvent, Stream, StreamKind, setup,
};
use terrace_sim::{SimError, SimPolicy, machines};

/// Streams of several threads, in memory that lies side by side.
struct Threads {
    streams: Vec<Stream>,
    bytes: u64,
    turn: usize,
}

impl Threads {
    fn new(kind: StreamKind, accesses: u64, bytes: u64, threads: u64) -> Self {
        let bytes = (bytes / threads).next_multiple_of(2 << 20);
        let streams = (0..threads).map(|_| Stream::new(kind, accesses / threads, bytes));
        Self { streams: streams.collect(), bytes, turn: 0 }
    }
}

impl Source for Threads {
    fn describe(&self) -> String {
        self.streams[0].describe()
    }
    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        let thread = self.turn % self.streams.len();
        self.turn += 1;
        let more = self.streams[thread].next(batch)?;
        batch.thread = thread as u32;
        let offset = thread as u64 * self.bytes;
        if offset > 0 {
            for access in &mut batch.accesses {
                *access = Access::from_bits(access.bits() + offset);
            }
            for event in &mut batch.events {
                if let SpaceEvent::Map { start, .. } = event {
                    *start += offset;
                }
            }
        }
        Ok(more)
    }
}

fn main() {
    let mut args = env::args().skip(1);
    let wanted = args.next();
    let gib: u64 = args.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    let millions: u64 = args.next().and_then(|text| text.parse().ok()).unwrap_or(100);
    let huge = args.next().is_some_and(|text| text == "2MiB");
    let cores: u64 = args.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    for kind in StreamKind::ALL {
        if wanted.as_deref().is_some_and(|name| name != kind.name() && name != "all") {
            continue;
        }
        let machine = machines::optane_cascade_lake();
        let mut config = ExactConfig::new(machine, SimPolicy::Policy(PolicyName::HeMem));
        config.page_size = if huge { PageSize::Huge } else { PageSize::Base };
        config.cores = cores as usize;
        config.fast = Some(Bytes::gib(gib) / 4);
        let mut machine = ExactMachine::new(&config).expect("the configuration is right");
        let source = || Threads::new(kind, millions * 1_000_000, gib << 30, cores);
        let (mut source, mut generated) = (source(), source());
        // What the generator takes is taken off; it is not the simulator.
        let begin = thread_time().as_secs_f64();
        let mut batch = Batch::default();
        while generated.next(&mut batch).expect("a stream does not fail") {}
        let generator = thread_time().as_secs_f64() - begin;
        let begin = thread_time().as_secs_f64();
        let report = setup::run(&mut machine, &config, &mut source, &mut |_, _| {})
            .expect("the stream fits");
        let all = thread_time().as_secs_f64() - begin;
        let accesses = report.accesses as f64;
        println!(
            "{:6} {:5.1} M/s ({:5.1} with the generator); {:.2} misses, {:.3} walks an access; {} simulated, {} a second; {} promoted; faults {}",
            kind.name(),
            accesses / (all - generator) / 1e6,
            accesses / all / 1e6,
            (report.llc.load_misses + report.llc.store_misses) as f64 / accesses,
            report.tlb.walks as f64 / accesses,
            report.time,
            report.throughput,
            report.migrated.promotions,
            report.faults.first_touches,
        );
    }
}
