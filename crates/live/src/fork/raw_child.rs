//! A child of a fork that was not announced gets all its memory from its parent, and runs meanwhile.
//!
//! It may unmap, move and discard memory, and fork in turn. The kernel lets it wait for each of that until
//! its parent has read of it, and brings in no page before: who did not read it would wait for the child, and
//! the child for him. So its events are read and noted here. Where a page belongs then follows from what
//! its parent's events say of its copy, and its own say of what it did since.

use crate::failsafe::give_up;
use crate::fault::serve::Served;
use crate::pager::Pager;
use crate::space::deferred::Deferred;
use crate::sys::PAGE;
use crate::sys::spin::give_way;
use crate::sys::uffd::{Message, Uffd};
use crate::workers::worker::Worker;

/// A child that is being given its memory.
struct RawChild {
    uffd: Uffd,
    /// By which its parent's deferred events know it.
    number: usize,
    /// What it has done since its copy was made.
    events: Deferred,
}

impl Pager {
    /// Brings in everything that is absent in a child of a fork that was not announced, and in children
    /// that it makes meanwhile, and lets go of them. Its number is settled. While frozen, with the lock for
    /// reading held.
    pub(super) fn fill_raw_child(&self, worker: &mut Worker<'_>, number: usize, uffd: Uffd) {
        let mut children = vec![RawChild { uffd, number, events: Deferred::none() }];
        while let Some(mut child) = children.pop() {
            let uffd = child.uffd;
            for (_, origin) in self.absent_pages(|| !uffd.is_orphan()) {
                worker.bring_in(&mut child, origin, &mut children);
            }
            // A copy that it makes of itself just now has all only if that was begun from here on.
            while child.uffd.is_changing() {
                worker.follow(&mut child, &mut children);
                give_way();
            }
            worker.follow(&mut child, &mut children);
            child.uffd.close();
        }
    }
}

impl Worker<'_> {
    /// Brings in the page that was at an address of the parent's, if the child has it still.
    fn bring_in(&mut self, child: &mut RawChild, origin: usize, children: &mut Vec<RawChild>) {
        let deferred = &self.pager.freeze.deferred;
        let copied = deferred.lock().destination_in(Some(child.number), origin);
        let Some(copied) = copied.filter(|&address| !self.pager.is_wiped(address)) else { return };
        loop {
            self.follow(child, children);
            let Some(address) = child.events.destination(copied) else { return };
            if self.give(child, address) {
                return;
            }
            give_way();
        }
    }

    /// Reads what the child does, and serves what it waits for.
    fn follow(&mut self, child: &mut RawChild, children: &mut Vec<RawChild>) {
        while let Some(message) = child.uffd.read() {
            match message {
                // While it is changing it comes again; then it has been read what that was.
                Message::Fault { page, .. } => {
                    if !self.give(child, page) {
                        let _ = child.uffd.wake(page, PAGE);
                    }
                }
                Message::Fork { child: copy } => children.push(RawChild {
                    uffd: Uffd::from_raw(copy),
                    number: child.number,
                    events: child.events.clone(),
                }),
                event => child.events.push(event),
            }
        }
    }

    /// Fills a page of the child's with what belongs there; false if that has to be tried again.
    fn give(&mut self, child: &RawChild, address: usize) -> bool {
        let pager = self.pager;
        let copied = child.events.origin(address).filter(|&copied| !pager.is_wiped(copied));
        let origin = copied
            .and_then(|copied| pager.freeze.deferred.lock().origin_in(Some(child.number), copied));
        match self.serve_from(child.uffd, address, origin) {
            Served::Done => true,
            Served::Retry => false,
            // It would read zeros.
            Served::Refused(error) => give_up::lost(pager, error),
        }
    }
}
