//! Hardware sampling by `perf_event_open`: every so many accesses the
//! processor notes the address of one (Intel PEBS, AMD IBS).
//!
//! | file | concept |
//! |---|---|
//! | [`event`] | which event to sample on which processor |
//! | [`record`] | what the kernel writes, parsed: pure, bytes in, records out |
//! | [`ring`] | the buffer that is shared with the kernel, and its descriptor |
//! | [`major`] | faults that a page had to be brought in for |
//! | [`direct`] | memory that programs had to put out themselves |
//! | [`tracepoint`] | where a tracepoint has its fields |
//! | [`walks`] | page walks, counted and not sampled |
//! | `threads` | the threads of a process |
//! | here | the sampler |

pub mod direct;
pub mod event;
pub mod major;
pub mod record;
pub mod ring;
mod threads;
pub mod tracepoint;
pub mod walks;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use terrace_core::{Access, Nanos, Sample, SampleSource};

use crate::sampler::{Health, Pages, Sampler, SamplerError};
use crate::sys::thread_cpu;
use event::EventSpec;
use record::{Record, SampleRecord};
use ring::{Scope, Source};

/// Pages of the data of a processor's ring buffer: 256 KiB, some 5,000 samples. The kernel
/// counts it as locked memory.
const RING_PAGES: usize = 64;
/// The same of a thread's: there are more of them, and the kernel lets a user lock half a
/// mebibyte a processor (`kernel.perf_event_mlock_kb`).
const THREAD_RING_PAGES: usize = 16;

/// Samples by perf events.
pub struct PerfSampler {
    name: &'static str,
    events: Vec<EventSpec>,
    scope: WatchScope,
    /// By processor, or by thread.
    sources: Vec<Source>,
    /// Which event an identifier in a record belongs to.
    by_id: BTreeMap<u64, usize>,
    rarity: u32,
    /// Threads that are not watched.
    but: Box<dyn Fn(u32) -> bool + Send>,
    /// When threads were last looked for.
    looked: Option<Nanos>,
    health: Health,
}

/// Whose accesses are sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchScope {
    /// Everybody's, on every processor; what is not managed is dropped. Needs
    /// `CAP_PERFMON`, and sees threads from their first instruction on.
    Machine,
    /// The threads of the processes that pages belong to.
    Processes,
}

/// How often new threads are looked for.
const LOOK: Nanos = Nanos::millis(500);

impl PerfSampler {
    /// A sampler of these events. With [`WatchScope::Machine`] it samples from
    /// now on; with [`WatchScope::Processes`] from the first collection on.
    pub fn open(
        name: &'static str,
        events: Vec<EventSpec>,
        scope: WatchScope,
    ) -> Result<Self, SamplerError> {
        let mut sampler = Self {
            name,
            events,
            scope,
            sources: Vec::new(),
            by_id: BTreeMap::new(),
            rarity: 1,
            but: Box::new(|_| false),
            looked: None,
            health: Health::default(),
        };
        if sampler.scope == WatchScope::Machine {
            for cpu in ring::online_processors() {
                sampler.add(Scope::Processor(cpu)).map_err(|e| {
                    SamplerError::new(name, format!("processor {cpu}: perf_event_open: {e}"))
                })?;
            }
        }
        Ok(sampler)
    }

    /// Leaves threads alone for which `but` says so. (Of those that are watched one by one;
    /// by processor, nobody asks whose accesses they are.)
    #[must_use]
    pub fn without(mut self, but: impl Fn(u32) -> bool + Send + 'static) -> Self {
        self.but = Box::new(but);
        self
    }

    /// Opens all events for one processor or thread, in one ring.
    fn add(&mut self, scope: Scope) -> io::Result<()> {
        let pages = match scope {
            Scope::Processor(_) => RING_PAGES,
            Scope::Thread(_) => THREAD_RING_PAGES,
        };
        let source = Source::open(&self.events, scope, pages)?;
        for (event, id) in source.ids().iter().enumerate() {
            self.by_id.insert(*id, event);
        }
        if self.rarity > 1 {
            source.set_rarity(&self.events, self.rarity)?;
        }
        source.enable()?;
        self.sources.push(source);
        Ok(())
    }

    /// Adds threads that came, drops those that went.
    fn look_for_threads(&mut self, now: Nanos, pages: &dyn Pages) -> Result<(), SamplerError> {
        if self.looked.is_some_and(|at| now < at + LOOK) {
            return Ok(());
        }
        self.looked = Some(now);
        let mut processes: Vec<_> = pages.ranges().iter().map(|r| r.process).collect();
        processes.dedup();
        let mut threads = Vec::new();
        for process in processes {
            // Of one that is gone there are none.
            let _ = threads::of(process, |thread| {
                if !(self.but)(thread) {
                    threads.push(thread);
                }
            });
        }
        let is_there = |source: &Source| matches!(source.scope(), Scope::Thread(thread) if threads.contains(&thread));
        self.sources.retain(is_there);
        for thread in threads {
            if self.sources.iter().any(|source| source.scope() == Scope::Thread(thread)) {
                continue;
            }
            if let Err(e) = self.add(Scope::Thread(thread)) {
                // A thread may end between being listed and being opened.
                if e.raw_os_error() != Some(libc::ESRCH) {
                    let what = format!("thread {thread}: perf_event_open: {e}");
                    return Err(SamplerError::new(self.name, what));
                }
            }
        }
        Ok(())
    }

    fn sample(&self, record: &SampleRecord, pages: &dyn Pages) -> Option<Sample> {
        let event = &self.events[*self.by_id.get(&record.id)?];
        let access = record.access().or(event.access).unwrap_or(Access::Read);
        let page = pages.page_at(record.process, record.address)?;
        Some(Sample { page, access, source: event.source, weight: 1 })
    }
}

impl Sampler for PerfSampler {
    fn name(&self) -> &'static str {
        self.name
    }

    fn period(&self) -> u64 {
        self.events.first().map_or(0, |event| event.period) * u64::from(self.rarity)
    }

    fn collect(
        &mut self,
        now: Nanos,
        pages: &dyn Pages,
        out: &mut Vec<Sample>,
    ) -> Result<(), SamplerError> {
        let cpu = thread_cpu();
        if self.scope == WatchScope::Processes {
            self.look_for_threads(now, pages)?;
        }
        let mut health = self.health;
        for source in &self.sources {
            let corrupt = source.drain(|record| match record {
                Record::Sample(record) => match self.sample(&record, pages) {
                    Some(sample) => {
                        out.push(sample);
                        health.delivered += 1;
                    }
                    // An operation that touched no memory has no address.
                    None => health.foreign += u64::from(record.address != 0),
                },
                Record::Lost(count) => health.lost += count,
                Record::Throttled => health.throttled += 1,
                Record::Tracepoint(_) | Record::Other => {}
            });
            // What could not be read is lost as well; how much is not known.
            health.lost += u64::from(corrupt);
        }
        health.cpu += thread_cpu().saturating_sub(cpu);
        self.health = health;
        Ok(())
    }

    fn set_rarity(&mut self, factor: u32) {
        if self.rarity != factor {
            self.rarity = factor;
            for source in &self.sources {
                // A thread that has ended keeps its last period.
                let _ = source.set_rarity(&self.events, factor);
            }
        }
    }

    fn health(&self) -> Health {
        self.health
    }
}

/// A sampler of the threads of the process that it is opened in, but for some. For who lives
/// inside of a program: it keeps away from the C library's allocator.
///
/// # Errors
/// If there is no such hardware, or it may not be used.
pub fn hardware_inside(
    but: impl Fn(u32) -> bool + Send + 'static,
) -> Result<PerfSampler, SamplerError> {
    const NAME: &str = "pmu";
    let events =
        EventSpec::for_machine(Path::new("/")).map_err(|lack| SamplerError::new(NAME, lack))?;
    // What cannot be opened for this thread cannot be for others.
    Source::open(&events, Scope::CALLER, 1).map_err(|e| SamplerError::new(NAME, e))?;
    Ok(PerfSampler::open(NAME, events, WatchScope::Processes)?.without(but))
}

/// A sampler of page faults: their addresses come with a software event, so it
/// works on every machine. What faults are observations depends on the kernel:
/// with its NUMA balancing on, pages are made to fault on purpose.
pub fn page_faults() -> Result<PerfSampler, SamplerError> {
    let event = EventSpec::page_faults(SampleSource::HintFault);
    PerfSampler::open("page faults", vec![event], WatchScope::Processes)
}
