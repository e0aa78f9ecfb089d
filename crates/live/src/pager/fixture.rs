//! A pager for tests: without threads, and with nothing registered. Its books change as those of any
//! pager; the kernel refuses whatever would change a mapping.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use std::path::PathBuf;

use terrace_core::{Action, Bytes, Heat, OpId, PageRef, PageSize, Proposal, Reason, Urgency};
use terrace_economics::Economist;
use terrace_policy::Brain;

use crate::activate::calibrate;
use crate::config::RunConfig;
use crate::decide::decider::{COMPRESSED, DRAM, Decider};
use crate::pager::Pager;
use crate::space::page_state::PageState;
use crate::space::regions::{CHUNK, Place, WINDOW, WINDOW_LEN};
use crate::stats::process_page::ProcessPage;
use crate::sys::uffd::{Uffd, feature};
use crate::sys::{self, PAGE};

/// Where its regions begin.
pub(crate) const START: usize = WINDOW;

/// One whose budget is 8 MiB, with a region of so many fresh pages at [`START`].
pub(crate) fn pager(pages: usize) -> &'static Pager {
    configured(pages, |_| {})
}

/// The same with another configuration.
pub(crate) fn configured(pages: usize, change: impl FnOnce(&mut RunConfig)) -> &'static Pager {
    let mut config = RunConfig::new(Bytes::mib(8), PathBuf::from("/nonexistent"));
    change(&mut config);
    let calibration = calibrate();
    let brain = Brain::new(config.policy.build(), Economist::new(config.economist, calibration));
    let stats = ProcessPage::anonymous().expect("memory");
    let pager = Pager::new(config, stats, Decider::new(brain), calibration.clock).expect("memory");
    let pager: &'static Pager = Box::leak(Box::new(pager));
    pager.enter_region(START, START + pages * PAGE).expect("room for a region");
    pager
}

/// A page of the region, by its number.
pub(crate) fn place(pager: &Pager, page: usize) -> Place<'_> {
    pager.regions.find(START + page * PAGE).expect("a page of the region")
}

/// The state of a page of the region.
pub(crate) fn state(pager: &Pager, page: usize) -> PageState {
    PageState::of(place(pager, page).word.load(Acquire))
}

/// Enters a page as resident, as a first touch does.
pub(crate) fn touch(pager: &Pager, page: usize) {
    enter_resident(pager, &place(pager, page));
}

fn enter_resident(pager: &Pager, place: &Place<'_>) {
    pager.reserve_over(1);
    place.region.resident.fetch_add(1, Relaxed);
    place.word.store(PageState::Resident.word(), Release);
}

/// Enters a page as one that has left, with this content, incompressible.
pub(crate) fn hold(pager: &Pager, page: usize, content: u8) -> PageState {
    let counters = &pager.stats().counters;
    let blob = pager.store.put(&[content; PAGE]).expect("memory");
    let state = PageState::Raw(blob.0);
    counters.stored_pages.fetch_add(1, Relaxed);
    counters.incompressible.fetch_add(1, Relaxed);
    counters.blob_bytes.fetch_add(PAGE as u64, Relaxed);
    place(pager, page).word.store(state.word(), Release);
    state
}

/// Real memory in the window, at a place that no other test uses, beside a pager that knows nothing
/// of it yet. No forked process has it. It is unmapped when this is dropped.
pub(crate) struct Memory {
    start: usize,
    pub(crate) pager: &'static Pager,
}

impl Memory {
    /// Pages that a test may use.
    pub(crate) const PAGES: usize = 16;
    /// What memory may be used for that a program uses.
    pub(crate) const USABLE: i32 = libc::PROT_READ | libc::PROT_WRITE;

    /// Nothing is mapped yet.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(WINDOW + WINDOW_LEN / 2);
        Self { start: NEXT.fetch_add(CHUNK, Relaxed), pager: pager(1) }
    }

    /// A page's address.
    pub(crate) fn at(&self, page: usize) -> usize {
        self.start + page * PAGE
    }

    /// A page's place in the books.
    pub(crate) fn place(&self, page: usize) -> Place<'_> {
        self.pager.regions.find(self.at(page)).expect("a page of a region")
    }

    /// Maps pages that may be used so.
    pub(crate) fn map(&self, pages: Range<usize>, rights: i32) {
        let (at, len) = (self.at(pages.start), pages.len() * PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: replaces nothing.
        let mapped = unsafe { sys::mmap(at, len, rights, flags, -1, 0) };
        assert_eq!(mapped, Ok(at));
        // SAFETY: changes nothing for this process.
        unsafe { libc::madvise(at as *mut libc::c_void, len, libc::MADV_DONTFORK) };
    }

    /// Begins a region.
    pub(crate) fn enter(&self, pages: Range<usize>) {
        let (start, end) = (self.at(pages.start), self.at(pages.end));
        self.pager.enter_region(start, end).expect("room for a region");
    }

    /// Registers all of it, and the slots of the staging ring, as a program's; `None` where the kernel
    /// does not let us. To be dropped before the memory: who unmaps what is registered waits until
    /// that is read.
    pub(crate) fn register(&self) -> Option<Registered> {
        // Not forks: other tests make some, and nobody would read of them.
        let features = feature::EVENT_REMAP | feature::EVENT_REMOVE | feature::EVENT_UNMAP;
        let (uffd, _) = Uffd::open().ok()?;
        let registered = Registered(uffd);
        uffd.handshake(features | feature::MOVE).ok()?;
        self.pager.set_uffd(uffd, None);
        self.pager.evict.staging.register(uffd).expect("slots of ours");
        for (_, region) in self.pager.regions.iter().filter(|(_, r)| r.start() >= self.start) {
            let len = region.pages() as usize * PAGE;
            self.pager.register(region.start(), len).expect("memory of ours");
        }
        Some(registered)
    }

    /// Fills a page that is registered, and enters it, as a first touch does.
    pub(crate) fn fill(&self, page: usize, byte: u8) {
        let content = [byte; PAGE];
        let filled = self.pager.uffd().copy(self.at(page), content.as_ptr() as usize, PAGE);
        assert_eq!(filled, (PAGE, 0));
        enter_resident(self.pager, &self.place(page));
    }

    /// A demotion of a page.
    pub(crate) fn demotion(&self, page: usize) -> Proposal {
        demotion_of(&self.place(page))
    }

    /// Sets what the books say of a page.
    pub(crate) fn set(&self, page: usize, state: PageState) {
        let place = self.place(page);
        place.word.store(state.word(), Release);
        if state == PageState::Gone {
            place.region.count_gone(1);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nobody else's place.
        let _ = unsafe { sys::munmap(self.start, Self::PAGES * PAGE) };
    }
}

/// A handle that closes when it is dropped.
pub(crate) struct Registered(Uffd);

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A demotion of a page of the region.
pub(crate) fn demotion(pager: &Pager, page: usize) -> Proposal {
    demotion_of(&place(pager, page))
}

fn demotion_of(place: &Place<'_>) -> Proposal {
    let page: PageRef = Pager::page_ref(place);
    Proposal {
        op: OpId(page.page.0.into()),
        action: Action::Demote { page, from: DRAM, to: COMPRESSED },
        page_size: PageSize::Base,
        heat: Heat::default(),
        victim_heat: Heat::default(),
        urgency: Urgency::Forced,
        reason: Reason::Observes,
    }
}
