//! Hardware samples of the program's accesses, for policies that need to know them.
//!
//! The manager opens the events for the program's own threads and reads them as often as it
//! ticks; its own threads and the fault handlers are left out. Where there is no such
//! hardware, random pages are made to fault instead (`Worker::sample`).

use core::sync::atomic::Ordering::*;

use terrace_core::{Nanos, PageRef, Sample};
use terrace_sampler::perf::{PerfSampler, hardware_inside, page_faults};
use terrace_sampler::{Governor, Health, Pages, ProcessRange, Sampler, SamplerError};

use crate::config::Observer;
use crate::page_state::PageState;
use crate::pager::Pager;
use crate::shared::Text;
use crate::sys::{self, PAGE};

/// What the manager sees of the program's accesses.
pub(crate) struct Sight {
    sampler: Option<PerfSampler>,
    governor: Governor,
    /// The cap forbids to look before this moment.
    rest_until: Nanos,
    found: Vec<Sample>,
    /// What of its health is in the statistics.
    told: Health,
}

/// Managed memory, as a sampler asks for it.
struct Managed<'a> {
    pager: &'a Pager,
    process: u32,
}

impl Pages for Managed<'_> {
    fn page_at(&self, process: u32, address: u64) -> Option<PageRef> {
        let place =
            self.pager.regions.find(address as usize).filter(|_| process == self.process)?;
        let resident = place.word.load(Acquire) == PageState::Resident.word();
        resident.then(|| Pager::page_ref(&place))
    }

    fn pages_in(&self, range: ProcessRange, each: &mut dyn FnMut(PageRef)) {
        for (_, region) in self.pager.regions.iter() {
            let first = region.start() as u64;
            let end = (first + u64::from(region.pages()) * PAGE as u64).min(range.end);
            for address in (first.max(range.start)..end).step_by(PAGE) {
                self.page_at(range.process, address).into_iter().for_each(&mut *each);
            }
        }
    }

    fn ranges(&self) -> Vec<ProcessRange> {
        vec![ProcessRange { process: self.process, start: 0, end: u64::MAX }]
    }
}

impl Sight {
    /// Opens what there is, and says in the statistics what it is, and why.
    pub(crate) fn open(pager: &'static Pager) -> Self {
        let needs = pager.mind.lock().brain().needs();
        let (sampler, text) = choose(pager, needs.samples, needs.samples || needs.scans);
        pager.stats().set_text(Text::Sampler, &text);
        let mut sight = Self {
            sampler: None,
            governor: Governor::new(pager.config.sampling_cap),
            rest_until: Nanos::ZERO,
            found: Vec::with_capacity(256),
            told: Health::default(),
        };
        sight.set(pager, sampler);
        sight
    }

    /// Whether accesses are seen, so that no page need be made to fault.
    pub(crate) fn sees(&self) -> bool {
        self.sampler.is_some()
    }

    fn set(&mut self, pager: &Pager, sampler: Option<PerfSampler>) {
        pager.mind.lock().set_period(sampler.as_ref().map(Sampler::period));
        self.sampler = sampler;
    }

    /// Tells the policy what was sampled since the last look.
    pub(crate) fn look(&mut self, pager: &Pager) {
        let now = Nanos(sys::now());
        if now < self.rest_until {
            return;
        }
        let Some(sampler) = &mut self.sampler else { return };
        let cpu = sys::thread_cpu();
        let managed = Managed { pager, process: std::process::id() };
        let collected = sampler.collect(now, &managed, &mut self.found);
        let (health, period) = (sampler.health(), sampler.period());
        if !self.found.is_empty() {
            let mut mind = pager.mind.lock();
            mind.set_period(Some(period));
            mind.sampled(pager, &mut self.found);
            self.found.clear();
        }
        let counters = &pager.stats().counters;
        counters.samples_lost.fetch_add(health.lost - self.told.lost, Relaxed);
        counters.samples_throttled.fetch_add(health.throttled - self.told.throttled, Relaxed);
        let spent = sys::thread_cpu().saturating_sub(cpu).get();
        let spent = counters.sampling_ns.fetch_add(spent, Relaxed) + spent;
        self.told = health;
        let order = self.governor.judge(Nanos(sys::now()), Nanos(spent));
        sampler.set_rarity(order.rarity);
        self.rest_until = order.rest_until;
        if let Err(error) = collected {
            self.give_up(pager, &error);
        }
    }

    /// Goes on with pages that are made to fault.
    fn give_up(&mut self, pager: &Pager, error: &SamplerError) {
        self.set(pager, None);
        pager.stats().set_text(Text::Sampler, &faulting(&format!("given up: {error}")));
    }
}

/// What samples, and a sentence about it.
fn choose(pager: &'static Pager, samples: bool, observed: bool) -> (Option<PerfSampler>, String) {
    let ours = |thread| pager.workers.iter().any(|w| w.tid.load(Relaxed) as u32 == thread);
    let opened = match pager.config.observer {
        Observer::Hardware => hardware_inside(ours),
        Observer::Auto if samples => hardware_inside(ours),
        Observer::Auto => {
            let policy = pager.config.policy;
            let text = if observed {
                faulting(&format!("which {policy} asks for"))
            } else {
                format!("refaults ({policy} needs no samples)")
            };
            return (None, text);
        }
        Observer::PageFaults => page_faults().map(|sampler| sampler.without(ours)),
    };
    match opened {
        Ok(sampler) => {
            let text = format!("{}, one access in {}", sampler.name(), sampler.period());
            (Some(sampler), text)
        }
        Err(error) => (None, faulting(&format!("no {error}"))),
    }
}

fn faulting(why: &str) -> String {
    format!("hint faults on random resident pages, refaults ({why})")
}
