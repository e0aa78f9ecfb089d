//! Stores behind loads: what a hint fault does not show, because the first access decides what
//! it is, write protection does (see `terrace_live::observe::protection`).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use terrace_core::{Access, Bytes, EventRef, SampleSource};
use terrace_economics::{Economist, Mode};
use terrace_live::activate;
use terrace_live::config::RunConfig;
use terrace_live::doctor::probe::UffdProbe;
use terrace_live::space::regions::WINDOW;
use terrace_live::stats::process_page::{ProcessPage, Text};
use terrace_live::sys;
use terrace_live::sys::uffd::feature;
use terrace_policy::{Brain, PolicyName};

const LEN: usize = 16 << 20;
const PAGES: usize = LEN / sys::PAGE;
const BUDGET: Bytes = Bytes::mib(8);
const ENOUGH: usize = 500;

/// If a page that is only loaded from counted as stored to, or the other way round, HeMem would
/// keep the wrong pages in the memory that is better at stores. Half of the program's memory is
/// stored to, each word after it was loaded; the other half is loaded from. Pages leave and come
/// back all the time, which makes them look stored to.
#[test]
fn a_page_that_is_stored_to_is_told_from_one_that_is_loaded_from() {
    let probe = UffdProbe::run();
    if let Err(why) = probe.usable() {
        terrace_shown::is_missing(&format!("userfaultfd ({why})"));
        return;
    }
    if probe.features & feature::RWP != 0 {
        terrace_shown::is_missing("a kernel without RWP");
        return;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a fresh mapping where nothing is.
    let at = unsafe { sys::mmap(WINDOW, LEN, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }
        .expect("the window is free");
    let word = |page: usize| (at + page * sys::PAGE) as *mut u64;
    // All pages have content, so that a load is not of the kernel's page of zeros.
    // SAFETY: within the mapping.
    (0..PAGES).for_each(|page| unsafe { word(page).write_volatile(page as u64 + 1) });
    let (tell, told) = std::sync::mpsc::channel();
    let economist = Economist::new(Mode::Enforce, activate::calibrate());
    let mut brain = Brain::new(PolicyName::HeMem.build(), economist);
    brain.record(Some(Box::new(move |event: EventRef<'_>| {
        if let EventRef::Samples { samples } = event {
            // Nobody listens any more when the test is over.
            let _ = tell.send(samples.to_vec());
        }
    })));
    let config = RunConfig::new(BUDGET, PathBuf::new());
    let stats = ProcessPage::anonymous().expect("memory");

    let pager = activate::activate_with(config, stats, brain, false).expect("userfaultfd");
    let until = Instant::now() + Duration::from_mins(1);
    let mut samples = Vec::new();
    let mut stores = 0;
    let mut rounds = 0u64;
    while stores < ENOUGH && Instant::now() < until {
        rounds += 1;
        for page in 0..PAGES {
            // SAFETY: within the mapping.
            unsafe {
                let value = word(page).read_volatile();
                if page < PAGES / 2 {
                    word(page).write_volatile(core::hint::black_box(value) + 1);
                }
            }
        }
        samples.extend(told.try_iter().flatten());
        let tracked = |s: &&terrace_core::Sample| s.source == SampleSource::WriteTrack;
        stores = samples.iter().filter(tracked).count();
    }

    let tracked: BTreeSet<usize> = samples
        .iter()
        .filter(|sample| sample.source == SampleSource::WriteTrack)
        .map(|sample| sample.page.page.0 as usize)
        .collect();
    assert!(stores >= ENOUGH, "{stores} of {} samples", samples.len());
    assert!(tracked.iter().all(|page| *page < PAGES / 2), "only loaded from: {tracked:?}");
    // Faults alone see the load that comes first, but where the page left again before the store: a
    // thread that has to wait for a processor in between is rare.
    let seen = |sample: &&terrace_core::Sample| {
        sample.source != SampleSource::WriteTrack && sample.access == Access::Write
    };
    let (seen, all) = (samples.iter().filter(seen).count(), samples.len());
    assert!(seen * 20 <= all, "{seen} stores of {all} samples are told by faults");
    let text = stats.text(Text::Sampler);
    assert!(text.contains("write protection of others"), "{text}");
    assert!(text.ends_with("read-write protection)"), "cut: {text}");
    let counters = &stats.counters;
    assert!(counters.demotions.load(Relaxed) > 0 && counters.sampling_ns.load(Relaxed) > 0);
    assert!(pager.resident() * sys::PAGE as u64 <= BUDGET.get(), "the budget is kept");
    for page in 0..PAGES {
        let expected = page as u64 + 1 + if page < PAGES / 2 { rounds } else { 0 };
        // SAFETY: within the mapping.
        assert_eq!(unsafe { word(page).read_volatile() }, expected, "page {page} kept its content");
    }
}
