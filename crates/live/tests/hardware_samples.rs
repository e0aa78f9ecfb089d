//! The way of hardware samples into a policy, with the one event that carries addresses on
//! every machine: page faults (see `terrace_live::config::Observer`).

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use terrace_core::{Bytes, EventRef, SampleSource};
use terrace_economics::{Economist, Mode};
use terrace_live::activate;
use terrace_live::config::{Observer, RunConfig};
use terrace_live::doctor::probe::UffdProbe;
use terrace_live::space::regions::WINDOW;
use terrace_live::stats::process_page::{ProcessPage, Text};
use terrace_live::sys;
use terrace_policy::{Brain, PolicyName};

const LEN: usize = 16 << 20;
const BUDGET: Bytes = Bytes::mib(4);

/// If samples did not find their way from the kernel's ring to pages, or found pages that are
/// not there, policies that need them would be blind on the machines that have such hardware.
#[test]
fn what_the_hardware_samples_reaches_the_policy_as_accesses_to_resident_pages() {
    if let Err(why) = UffdProbe::run().usable() {
        terrace_shown::is_missing(&format!("userfaultfd ({why})"));
        return;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a fresh mapping where nothing is.
    let at = unsafe { sys::mmap(WINDOW, LEN, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }
        .expect("the window is free");
    let (tell, told) = std::sync::mpsc::channel();
    let economist = Economist::new(Mode::Enforce, activate::calibrate());
    let mut brain = Brain::new(PolicyName::HeMem.build(), economist);
    brain.record(Some(Box::new(move |event: EventRef<'_>| {
        if let EventRef::Samples { samples } = event {
            // Nobody listens any more when the test is over.
            let _ = tell.send(samples.to_vec());
        }
    })));
    let mut config = RunConfig::new(BUDGET, PathBuf::new());
    config.observer = Observer::PageFaults;
    let stats = ProcessPage::anonymous().expect("memory");

    let pager = activate::activate_with(config, stats, brain, false).expect("userfaultfd");
    let until = Instant::now() + Duration::from_mins(1);
    let counters = &stats.counters;
    while counters.samples.load(Relaxed) < 2_000 && Instant::now() < until {
        for page in 0..LEN / sys::PAGE {
            let word = (at + page * sys::PAGE) as *mut u64;
            // SAFETY: within the mapping.
            unsafe { word.write_volatile(word.read_volatile() + 1) };
        }
    }

    // What was counted has been told then.
    drop(pager.decide.decider.lock());
    let samples: Vec<_> = told.try_iter().flatten().collect();
    assert!(samples.len() >= 2_000, "{} samples", samples.len());
    let pages = (LEN / sys::PAGE) as u32;
    assert!(samples.iter().all(|sample| sample.page.page.0 < pages));
    // Refaults are not told beside them: one is one access, a sample many.
    assert!(samples.iter().all(|sample| sample.source == SampleSource::HintFault));
    assert_eq!(stats.text(Text::Sampler), "page faults, one access in 1");
    assert_eq!(counters.armed.load(Relaxed), 0, "nothing was made to fault");
    assert!(counters.sampling_ns.load(Relaxed) > 0);
    assert!(pager.resident() * sys::PAGE as u64 <= BUDGET.get(), "the budget is kept");
}
