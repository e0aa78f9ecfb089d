//! Possession of a page: one word a page says its state, and whether somebody has it. Who has it alone
//! may change it.

use core::sync::atomic::Ordering::*;

use terrace_core::PageRef;

use crate::pager::Pager;
use crate::space::page_state::{BUSY, PageState};
use crate::space::regions::Place;
use crate::sys::spin::backoff;

impl Pager {
    /// Whether a page is resident, and nobody is doing anything with it.
    pub fn is_resident(&self, page: PageRef) -> bool {
        let word = self.regions.get(page.region.0).and_then(|region| region.get(page.page.0));
        word.is_some_and(|word| word.load(Acquire) == PageState::Resident.word())
    }

    /// Takes possession of a page, waiting for who has it; returns its word.
    pub fn lock_page(&self, place: &Place<'_>) -> u64 {
        let mut spins = 0;
        loop {
            let word = place.word.load(Acquire);
            if word & BUSY == 0
                && place.word.compare_exchange_weak(word, word | BUSY, AcqRel, Relaxed).is_ok()
            {
                return word;
            }
            if spins > 64 && self.is_abandoned() {
                // Its owner is no more.
                return word & !BUSY;
            }
            backoff(&mut spins);
        }
    }

    /// Takes possession of a page if it is in this state and nobody has it.
    pub fn try_lock_page(&self, place: &Place<'_>, state: PageState) -> bool {
        let word = state.word();
        place.word.compare_exchange(word, word | BUSY, AcqRel, Relaxed).is_ok()
    }
}
