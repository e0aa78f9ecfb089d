//! Pages that are shared since a fork, perhaps before Terrace managed them, do not move (`EBUSY`).
//! They are made this process's alone first, and leave then.
//!
//! A write fault does it (`MADV_POPULATE_WRITE`): the kernel makes a copy, or nothing if the child is
//! gone. If the program discards the page at this very moment, that fault is an ordinary one, and
//! another of Terrace's threads has to serve it. That thread may need the ring to make room, or it may
//! read a fork and wait until nobody is at work. So the thread that unshares holds nothing
//! meanwhile, and is not at work: otherwise both would wait for ever.

use core::sync::atomic::Ordering::*;

use libc::EBUSY;
use terrace_core::{Action, Proposal};

use crate::evict::reclaim::BATCH;
use crate::evict::stage::Victim;
use crate::evict::staging::StagingRing;
use crate::failsafe::inject::{self, Point};
use crate::pager::{HANDLERS, MANAGER};
use crate::space::page_state::PageState;
use crate::sys::spin::SpinGuard;
use crate::sys::{self, PAGE};
use crate::workers::idle_priority;
use crate::workers::worker::Worker;

/// The most pages of which it is known that they are shared; others are refused for now.
pub(crate) const KNOWN: usize = 8 * BATCH;

/// Notes a page that did not move since it is shared; false if that is not why, or there is no room
/// for it. The page is nobody's.
pub(super) fn note_shared(ring: &mut StagingRing, staged: &Victim, error: i32) -> bool {
    let noted = error == EBUSY && !staged.unshared && ring.shared.len() < KNOWN;
    if noted {
        ring.shared.push_back(staged.proposal);
    }
    noted
}

impl Worker<'_> {
    /// Makes some of the pages that are shared this process's alone, and lets go of the ring for it;
    /// whether there were any.
    pub(super) fn unshare(&self, ring: SpinGuard<'_, StagingRing>) -> bool {
        let evict = &self.pager.evict;
        // A copy takes memory at once: not where nothing can leave afterwards, for want of memory.
        if ring.shared.is_empty()
            || !self.pager.may_leave()
            || !self.may_fault()
            || evict.unsharing.swap(1, AcqRel) != 0
        {
            return false;
        }
        let done = self.unshare_some(ring);
        evict.unsharing.store(0, Release);
        done
    }

    /// Whether another thread would serve a fault of the calling one. The manager is to call handlers
    /// back that are at idle priority: it cannot while it waits for one of them.
    fn may_fault(&self) -> bool {
        let pager = self.pager;
        let tid = |id: usize| pager.workers[id].tid.load(Relaxed);
        let handlers = (1..=HANDLERS).filter(|&id| tid(id) != 0).count();
        if self.id != MANAGER {
            return handlers >= 2;
        }
        let any_idle = || (1..=HANDLERS).any(|id| idle_priority::is_idle(id, tid(id)));
        handlers >= 1 && !pager.fault.handlers.is_polling() && !any_idle()
    }

    fn unshare_some(&self, ring: SpinGuard<'_, StagingRing>) -> bool {
        let pager = self.pager;
        let count = ring.shared.len().min(BATCH).min(KNOWN - ring.unshared.len());
        let mut pages = [0; BATCH];
        let entered = pager.enter(self.id);
        if entered {
            for (at, proposal) in pages.iter_mut().zip(ring.shared.iter().take(count)) {
                *at = self.resident_at(proposal).unwrap_or(0);
            }
        }
        pager.leave(self.id);
        if !entered {
            return false;
        }
        // They stay noted: a child that is forked now has them in its ring, too.
        drop(ring);
        pages.sort_unstable();
        let pages = &pages[pages.partition_point(|&at| at == 0)..];
        inject::at(Point::Unshare);
        // Mapped here and nowhere else already: of a child that is gone, or something else holds it,
        // which only the attempt tells. It is not in common with relatives.
        let common = |at: &&usize| !self.pagemap.all_exclusive::<1>(**at);
        let common = pages.iter().filter(common).count();
        let alone: usize = pages.chunk_by(|a, b| a + PAGE == *b).map(populate).sum();
        (0..alone.min(common)).for_each(|_| pager.budget.share.unshared());

        let mut ring = pager.evict.ring.lock();
        let entered = pager.enter(self.id);
        if entered {
            for _ in 0..count {
                // Whatever has become of it meanwhile: it is looked up once more before it leaves.
                let Some(proposal) = ring.shared.pop_front() else { break };
                ring.unshared.push_back(proposal);
            }
        }
        drop(ring);
        pager.leave(self.id);
        entered && count > 0
    }

    /// The address of a page that is to leave, if it is still there.
    fn resident_at(&self, proposal: &Proposal) -> Option<usize> {
        let Action::Demote { page, .. } = proposal.action else { return None };
        let region = self.pager.regions.get(page.region.0)?;
        let word = region.get(page.page.0)?;
        (word.load(Relaxed) == PageState::Resident.word())
            .then(|| region.start() + page.page.0 as usize * PAGE)
    }
}

/// Writes to consecutive pages without a change of their content; of how many it is certain.
fn populate(pages: &[usize]) -> usize {
    let write = |at: usize, count: usize| {
        // SAFETY: changes no content.
        unsafe { sys::madvise(at, count * PAGE, libc::MADV_POPULATE_WRITE) }.is_ok()
    };
    match pages {
        [] => 0,
        &[at] => usize::from(write(at, 1)),
        &[at, ..] if write(at, pages.len()) => pages.len(),
        // One of them may be unmapped by now.
        _ => pages.iter().filter(|&&at| write(at, 1)).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::fixture::{Memory, demotion, pager, touch};
    use crate::pager::{Pager, freeze};

    fn noted(pager: &Pager, pages: &[usize]) {
        let mut ring = pager.evict.ring.lock();
        for &page in pages {
            let staged = Victim::of(demotion(pager, page));
            assert!(!note_shared(&mut ring, &staged, libc::EAGAIN), "it may only be locked");
            assert!(note_shared(&mut ring, &staged, EBUSY));
        }
    }

    /// The manager, beside a handler that is no thread.
    fn manager(pager: &Pager) -> Worker<'_> {
        pager.workers[1].tid.store(i32::MAX, Relaxed);
        Worker::new(pager, MANAGER)
    }

    fn queues(pager: &Pager) -> (usize, usize) {
        let ring = pager.evict.ring.lock();
        (ring.shared.len(), ring.unshared.len())
    }

    #[test]
    fn a_page_is_made_this_process_s_alone_once_and_then_leaves_first() {
        let pager = pager(4);
        (0..4).for_each(|page| touch(pager, page));
        noted(pager, &[1, 2]);
        let worker = manager(pager);
        let last = demotion(pager, 3);
        pager.evict.ring.lock().victims.push_back(last);

        assert!(worker.unshare(pager.evict.ring.lock()));
        assert_eq!(queues(pager), (0, 2));
        assert!(!worker.unshare(pager.evict.ring.lock()), "there is no more of them");

        let mut ring = pager.evict.ring.lock();
        let mut batch = Vec::new();
        worker.choose(&mut ring, &mut batch, 8);
        let found: Vec<_> = batch.iter().flatten().map(|v| (v.proposal.op.0, v.unshared)).collect();
        assert_eq!(found, [(1, true), (2, true), (3, false)]);
        let again = batch[0].take().expect("a victim");
        assert!(!note_shared(&mut ring, &again, EBUSY), "something else holds it");
    }

    /// The page may be discarded just then: that fault is served by one who may need the ring, or
    /// waits for whoever is at work.
    #[test]
    fn nothing_is_held_while_the_kernel_makes_a_page_this_process_s_alone() {
        let memory = Memory::new();
        memory.map(0..2, Memory::USABLE);
        memory.enter(0..2);
        let pager = memory.pager;
        let (worker, place) = (manager(pager), memory.place(0));
        memory.set(0, PageState::Resident);
        let mut proposal = demotion(pager, 0);
        proposal.action = match proposal.action {
            Action::Demote { from, to, .. } => {
                Action::Demote { page: Pager::page_ref(&place), from, to }
            }
            other => other,
        };
        pager.evict.ring.lock().shared.push_back(proposal);
        assert_eq!(worker.pagemap.is_present(memory.at(0)), Some(false));

        let ring = pager.evict.ring.lock();
        assert!(worker.unshare(ring));

        assert!(pager.evict.ring.try_lock().is_some());
        assert_eq!(pager.workers[MANAGER].busy.load(Relaxed), 0);
        assert_eq!(worker.pagemap.is_present(memory.at(0)), Some(true), "it was written to");
        assert_eq!(worker.pagemap.is_present(memory.at(1)), Some(false), "nothing else was");
    }

    #[test]
    fn one_thread_at_a_time_may_fault_and_no_handler_that_is_alone() {
        let pager = pager(2);
        touch(pager, 0);
        noted(pager, &[0]);
        let handler = Worker::new(pager, 1);
        pager.workers[1].tid.store(77, Relaxed);
        assert!(!handler.unshare(pager.evict.ring.lock()), "nobody would serve it");
        pager.workers[2].tid.store(78, Relaxed);
        pager.evict.unsharing.store(1, Relaxed);
        assert!(!handler.unshare(pager.evict.ring.lock()), "another is at it");
        assert_eq!(queues(pager), (1, 0));
        pager.evict.unsharing.store(0, Relaxed);
        assert!(handler.unshare(pager.evict.ring.lock()));
        assert_eq!((queues(pager), pager.evict.unsharing.load(Relaxed)), ((0, 1), 0));
    }

    /// A fault of the manager's would wait for a handler that nobody calls back meanwhile.
    #[test]
    fn the_manager_faults_only_beside_handlers_that_it_need_not_look_after() {
        let pager = pager(2);
        touch(pager, 0);
        noted(pager, &[0]);
        let worker = Worker::new(pager, MANAGER);
        assert!(!worker.unshare(pager.evict.ring.lock()), "there is none");
        let worker = manager(pager);
        pager.fault.handlers.begin_polling();
        assert!(!worker.unshare(pager.evict.ring.lock()));
        assert_eq!(queues(pager), (1, 0));
        pager.fault.handlers.end_polling();
        assert!(worker.unshare(pager.evict.ring.lock()));
    }

    /// A copy would take memory just where there is none.
    #[test]
    fn no_page_is_copied_where_nothing_can_leave() {
        let pager = pager(2);
        touch(pager, 0);
        noted(pager, &[0]);
        let worker = manager(pager);
        pager.budget.rest(u64::MAX / 2);
        assert!(!worker.unshare(pager.evict.ring.lock()));
        assert_eq!(queues(pager), (1, 0));
    }

    /// The child has a copy of the ring.
    #[test]
    fn the_ring_stays_as_it_is_while_a_fork_copies_the_books() {
        let pager = pager(2);
        touch(pager, 0);
        noted(pager, &[0]);
        pager.freeze.begin(freeze::Why::Fork);
        let worker = manager(pager);
        assert!(!worker.unshare(pager.evict.ring.lock()));
        assert_eq!(queues(pager), (1, 0));
        pager.freeze.end(freeze::Why::Fork);
        assert!(worker.unshare(pager.evict.ring.lock()));
        assert_eq!(queues(pager), (0, 1));
    }

    #[test]
    fn of_pages_that_cannot_all_be_written_to_the_others_are() {
        let memory = Memory::new();
        memory.map(0..1, Memory::USABLE);
        memory.map(2..3, Memory::USABLE);
        let pages = [memory.at(0), memory.at(1), memory.at(2)];
        assert_eq!(populate(&pages), 2);
        assert_eq!(populate(&pages[..1]), 1);
        assert_eq!(populate(&[]), 0);
    }
}
