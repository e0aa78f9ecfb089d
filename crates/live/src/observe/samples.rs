//! Samples of the program's accesses, for policies that need to know them.
//!
//! By hardware: the manager opens the events for the program's own threads and reads them as
//! often as it ticks; its own threads and the fault handlers are left out. Where there is no
//! such hardware, by protecting random pages ([`crate::observe::protection`]); and where the kernel lets
//! only stores be seen in that way, random pages are made to fault besides (`Worker::sample`).

use core::ops::Range;
use core::sync::atomic::Ordering::*;

use terrace_core::{Nanos, PageRef, Sample, Xorshift};
use terrace_policy::Needs;
use terrace_sampler::choose::hardware_lacks;
use terrace_sampler::perf::{PerfSampler, hardware_inside, page_faults};
use terrace_sampler::{Governor, Health, Pages, ProcessRange, Sampler, SamplerError};

use crate::config::Observer;
use crate::observe::protection::{self, Kernel, Tracker, Tracks};
use crate::pager::Pager;
use crate::space::page_state::PageState;
use crate::space::proc_maps::Pagemap;
use crate::stats::process_page::Text;
use crate::sys::{self, PAGE};

/// What the manager sees of the program's accesses.
pub(crate) struct Samplers {
    sampler: Option<PerfSampler>,
    tracker: Option<Tracker>,
    random: Xorshift,
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

    fn pages_in(&self, range: ProcessRange, each: &mut dyn FnMut(PageRef, Range<u64>)) {
        for (_, region) in self.pager.regions.iter() {
            let first = region.start() as u64;
            let end = (first + u64::from(region.pages()) * PAGE as u64).min(range.end);
            for address in (first.max(range.start)..end).step_by(PAGE) {
                if let Some(page) = self.page_at(range.process, address) {
                    each(page, address..address + PAGE as u64);
                }
            }
        }
    }

    fn ranges(&self) -> Vec<ProcessRange> {
        vec![ProcessRange { process: self.process, start: 0, end: u64::MAX }]
    }
}

impl Samplers {
    /// Opens what there is, and says in the statistics what it is, and why.
    pub(crate) fn open(pager: &'static Pager) -> Self {
        let needs = pager.decide.decider.lock().brain().needs();
        let tracks = pager.tracks();
        let (sampler, text) = match hardware(pager, &needs) {
            Ok(sampler) => {
                let text = format!("{}, one access in {}", sampler.name(), sampler.period());
                (Some(sampler), text)
            }
            Err(lack) => (None, describe(pager, &needs, &lack)),
        };
        pager.stats().set_text(Text::Sampler, &text);
        let tracker = tracks.filter(|_| sampler.is_none()).map(Tracker::new);
        let mut samplers = Self {
            sampler: None,
            tracker,
            random: Xorshift::new(sys::now()),
            governor: Governor::new(pager.config.sampling_cap),
            rest_until: Nanos::ZERO,
            found: Vec::with_capacity(512),
            told: Health::default(),
        };
        samplers.set(pager, sampler);
        samplers
    }

    /// In a forked child, of its parent's manager. A sampler's memory is not copied, and its
    /// descriptors are the parent's.
    pub(crate) fn give_back(&mut self) {
        drop(core::mem::take(&mut self.found));
    }

    /// Whether accesses are seen, so that no page need be made to fault.
    pub(crate) fn sees(&self) -> bool {
        let tracked = self.tracker.as_ref().map(Tracker::tracks);
        self.sampler.is_some() || tracked == Some(Tracks::Accesses)
    }

    fn set(&mut self, pager: &Pager, sampler: Option<PerfSampler>) {
        pager.decide.decider.lock().set_period(sampler.as_ref().map(Sampler::period));
        self.sampler = sampler;
    }

    /// Tells the policy what was sampled since the last look.
    pub(crate) fn look(&mut self, pager: &Pager, pagemap: &Pagemap) {
        let now = Nanos(sys::now());
        if now < self.rest_until || self.sampler.is_none() && self.tracker.is_none() {
            return;
        }
        let cpu = sys::thread_cpu();
        let collected = self.collect(pager, now);
        let faults = self.track(pager, pagemap, now);
        if !self.found.is_empty() {
            let mut decider = pager.decide.decider.lock();
            // What is not the hardware's is one access each, like a fault.
            decider.set_period(self.sampler.as_ref().map(Sampler::period));
            decider.sampled(pager, &mut self.found);
            self.found.clear();
        }
        let counters = &pager.stats().counters;
        // A fault that the kernel resolves takes its thread no longer than one that we serve
        // takes it beside the waiting.
        let theirs = faults * counters.fault_own_ns.load(Relaxed);
        let spent = sys::thread_cpu().saturating_sub(cpu).get() + theirs;
        let spent = counters.sampling_ns.fetch_add(spent, Relaxed) + spent;
        let order = self.governor.judge(Nanos(sys::now()), Nanos(spent));
        if let Some(sampler) = &mut self.sampler {
            sampler.set_rarity(order.rarity);
        }
        if let Some(tracker) = &mut self.tracker {
            tracker.set_rarity(order.rarity);
        }
        self.rest_until = order.rest_until;
        if let Err(error) = collected {
            self.give_up(pager, &error);
        }
    }

    /// Reads what the hardware has sampled.
    fn collect(&mut self, pager: &Pager, now: Nanos) -> Result<(), SamplerError> {
        let Some(sampler) = &mut self.sampler else { return Ok(()) };
        let managed = Managed { pager, process: std::process::id() };
        let collected = sampler.collect(now, &managed, &mut self.found);
        let health = sampler.health();
        let counters = &pager.stats().counters;
        counters.samples_lost.fetch_add(health.lost - self.told.lost, Relaxed);
        counters.samples_throttled.fetch_add(health.throttled - self.told.throttled, Relaxed);
        self.told = health;
        collected
    }

    /// Asks which of the protected pages were touched; returns how many. Others are protected
    /// unless memory is so far from short that nothing will be asked of the policy soon.
    fn track(&mut self, pager: &Pager, pagemap: &Pagemap, now: Nanos) -> u64 {
        let Some(tracker) = &mut self.tracker else { return 0 };
        let short = pager.resident() >= pager.budget() / 2;
        let mut kernel = Kernel { tracks: tracker.tracks(), uffd: pager.uffd(), pagemap };
        let mut memory = protection::Managed { pager, random: &mut self.random };
        tracker.look(now, short, &mut kernel, &mut memory, &mut self.found)
    }

    /// Goes on with pages that are made to fault.
    fn give_up(&mut self, pager: &Pager, error: &SamplerError) {
        self.set(pager, None);
        let needs = pager.decide.decider.lock().brain().needs();
        let text = describe(pager, &needs, &format!("given up: {error}"));
        pager.stats().set_text(Text::Sampler, &text);
    }
}

/// The sampler of hardware events, if that is what samples; else why not.
fn hardware(pager: &'static Pager, needs: &Needs) -> Result<PerfSampler, String> {
    let ours = |thread| pager.workers.iter().any(|w| w.tid.load(Relaxed) as u32 == thread);
    let policy = pager.config.policy;
    match pager.config.observer {
        Observer::Auto if !needs.samples => Err(format!("which {policy} asks for")),
        Observer::Auto | Observer::Hardware => hardware_inside(ours).map_err(|e| format!("no {e}")),
        Observer::PageFaults => {
            page_faults().map(|sampler| sampler.without(ours)).map_err(|e| format!("no {e}"))
        }
        Observer::Rwp => Err("which was asked for".to_owned()),
    }
}

/// What of the program's memory is to be tracked by protection, in a kernel with these features.
pub(crate) fn tracks(pager: &Pager, features: u64) -> Option<Tracks> {
    let observer = pager.config.observer;
    let needs = pager.decide.decider.lock().brain().needs();
    let hardware = observer == Observer::Auto
        && needs.samples
        && protection::choose(observer, &needs, features, false).is_some()
        && hardware_lacks(std::path::Path::new("/")).is_none();
    protection::choose(observer, &needs, features, hardware).filter(|_| Pagemap::open().scans())
}

/// What samples where hardware does not, and why not what is better.
fn describe(pager: &Pager, needs: &Needs, why: &str) -> String {
    let asked = pager.config.observer == Observer::Rwp;
    if !asked && !needs.samples && !needs.scans && pager.config.observer == Observer::Auto {
        return format!("refaults ({} needs no samples)", pager.config.policy);
    }
    let lack = Tracks::Accesses
        .lack(pager.handle.features.load(Relaxed))
        .unwrap_or("PAGEMAP_SCAN does not answer here");
    match pager.tracks() {
        Some(Tracks::Accesses) => {
            format!("rwp, read-write protection of random resident pages, and refaults ({why})")
        }
        Some(Tracks::Stores) => format!(
            "hint faults on random resident pages, write protection of others, refaults \
             ({why}; no rwp: {lack})"
        ),
        None => {
            format!("hint faults on random resident pages, refaults ({why}; no rwp: {lack})")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::fixture::{START, hold, pager, touch};

    /// What has left is nothing that a policy could move, and other processes have other memory at
    /// the same addresses.
    #[test]
    fn a_sample_is_of_a_page_of_this_process_that_is_in_memory() {
        let pager = pager(8);
        for page in [1, 3, 7] {
            touch(pager, page);
        }
        hold(pager, 2, 5);
        let managed = Managed { pager, process: 77 };
        let number = |page: PageRef| page.page.0;
        let at = |process, page: usize| {
            managed.page_at(process, (START + page * PAGE + 100) as u64).map(number)
        };
        assert_eq!([at(77, 1), at(77, 2), at(77, 4), at(77, 8)], [Some(1), None, None, None]);
        assert_eq!(at(78, 1), None);
        let within = |process, start: usize, end: usize| {
            let range = ProcessRange {
                process,
                start: (START + start * PAGE) as u64,
                end: (START + end * PAGE) as u64,
            };
            let mut found = Vec::new();
            managed.pages_in(range, &mut |page, at| {
                assert_eq!(at.start, (START + number(page) as usize * PAGE) as u64);
                assert_eq!(at.end - at.start, PAGE as u64);
                found.push(number(page));
            });
            found
        };
        assert_eq!(within(77, 0, 8), [1, 3, 7]);
        assert_eq!(within(77, 2, 7), [3]);
        assert!(within(78, 0, 8).is_empty());
        let [all] = &managed.ranges()[..] else { panic!("one range") };
        let mut found = 0;
        managed.pages_in(*all, &mut |_, _| found += 1);
        assert_eq!(found, 3);
    }
}
