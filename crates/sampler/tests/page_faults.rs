//! Sampling page faults for real: from `perf_event_open` to samples.
use std::ops::Range;
use std::sync::Mutex;

use terrace_core::{Nanos, PageNo, PageRef, RegionId, Sample};
use terrace_sampler::perf::page_faults;
use terrace_sampler::{Pages, ProcessRange, Sampler};

/// One test at a time: faults of other threads come into the same rings, and
/// events that come and go stop those of their neighbours for a moment.
static ALONE: Mutex<()> = Mutex::new(());

/// One mapping of this process as managed memory.
struct Own(ProcessRange);

impl Pages for Own {
    fn page_at(&self, process: u32, address: u64) -> Option<PageRef> {
        let range = self.0;
        (process == range.process && (range.start..range.end).contains(&address)).then(|| {
            let page = PageNo(((address - range.start) >> 12) as u32);
            PageRef { region: RegionId(0), page }
        })
    }
    fn pages_in(&self, range: ProcessRange, each: &mut dyn FnMut(PageRef, Range<u64>)) {
        for at in (range.start..range.end).step_by(4096) {
            if let Some(page) = self.page_at(range.process, at) {
                each(page, at..at + 4096);
            }
        }
    }
    fn ranges(&self) -> Vec<ProcessRange> {
        vec![self.0]
    }
}

/// A new mapping of this many pages.
fn map(pages: usize) -> (*mut u8, Own) {
    // SAFETY: a new mapping harms nothing; advice on it neither.
    let at = unsafe {
        let at = libc::mmap(
            core::ptr::null_mut(),
            pages << 12,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        libc::madvise(at, pages << 12, libc::MADV_NOHUGEPAGE);
        at.cast::<u8>()
    };
    let start = at as u64;
    let end = start + ((pages as u64) << 12);
    (at, Own(ProcessRange { process: std::process::id(), start, end }))
}

/// A sampler that has begun, and what it found by then; none where containers
/// forbid perf events (the parser is tested without).
fn started(own: &Own) -> Option<(impl Sampler, Vec<Sample>)> {
    let mut sampler = page_faults().expect("a sampler");
    let mut samples = Vec::new();
    match sampler.collect(Nanos::ZERO, own, &mut samples) {
        Ok(()) => Some((sampler, samples)),
        Err(e) => {
            terrace_shown::is_missing(&format!("a sampler of page faults ({e})"));
            None
        }
    }
}

/// The whole way from the kernel to a sample, by the only event with
/// addresses that every machine has: opening, the shared ring, its wrap,
/// identifiers, and the mapping of addresses to pages.
#[test]
fn every_page_that_is_touched_shows_up_once_and_as_itself() {
    const PAGES: usize = 20_000;
    let _alone = ALONE.lock();
    let (at, own) = map(PAGES);
    let Some((mut sampler, mut samples)) = started(&own) else { return };

    // More than one ring's worth, drained on the way, so that it wraps.
    for page in 0..PAGES {
        // SAFETY: within the mapping.
        unsafe { at.add(page << 12).write_volatile(1) };
        if page % 1000 == 999 {
            sampler.collect(Nanos::ZERO, &own, &mut samples).expect("a drain");
        }
    }
    sampler.collect(Nanos::ZERO, &own, &mut samples).expect("a drain");

    let health = sampler.health();
    assert_eq!(health.lost, 0, "{health:?}");
    let mut seen: Vec<u32> = samples.iter().map(|sample| sample.page.page.0).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..PAGES as u32).collect::<Vec<_>>());
    assert_eq!(health.delivered, PAGES as u64);
}

/// If losses were not counted, a policy would take a page for cold because
/// the ring was full.
#[test]
fn a_ring_that_nobody_drains_tells_what_it_lost() {
    const PAGES: usize = 30_000;
    let _alone = ALONE.lock();
    let (at, own) = map(PAGES);
    let Some((mut sampler, mut samples)) = started(&own) else { return };
    for page in 0..PAGES {
        // SAFETY: within the mapping.
        unsafe { at.add(page << 12).write_volatile(1) };
    }
    sampler.collect(Nanos::ZERO, &own, &mut samples).expect("a drain");
    // The kernel tells of a loss with the next record that fits.
    // SAFETY: a fault on a fresh page of our own.
    unsafe {
        libc::madvise(at.cast(), 4096, libc::MADV_DONTNEED);
        at.write_volatile(1);
    }
    sampler.collect(Nanos::ZERO, &own, &mut samples).expect("a drain");

    let health = sampler.health();
    assert!(health.lost > 0 && health.delivered < PAGES as u64, "{health:?}");
    let told = health.delivered + health.lost + health.foreign;
    assert!(told >= PAGES as u64, "{told} of {PAGES} accounted for: {health:?}");
}
