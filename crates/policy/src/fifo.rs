//! First-in first-out lists threaded through one array of links.
//!
//! A page is in at most one list, so all lists of a policy share one [`Link`]
//! per page. While a page is in no list its link is free to hold the number of
//! the proposal that is about it: that is how an outcome that comes after the
//! page was freed and placed again is told from the one that is waited for.

use bytemuck::Zeroable;
use terrace_core::OpId;

use crate::dense::PerPage;

/// No slot.
const NONE: u32 = u32::MAX;

/// A page's neighbours, or the number of the proposal about it.
#[derive(Clone, Copy, Debug, Zeroable)]
pub(crate) struct Link {
    /// Toward the old end.
    prev: u32,
    /// Toward the young end.
    next: u32,
}

/// One link for each slot.
#[derive(Debug, Default)]
pub(crate) struct Links(PerPage<Link>);

impl Links {
    /// Makes links for slots below `slots`.
    pub(crate) fn grow(&mut self, slots: usize) {
        self.0.grow(slots);
    }

    /// Heap memory.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }

    /// Notes the proposal about a page that is in no list.
    pub(crate) fn set_op(&mut self, slot: u32, op: OpId) {
        self.0[slot] = Link { prev: (op.0 >> 32) as u32, next: op.0 as u32 };
    }

    /// The proposal noted for a page that is in no list.
    pub(crate) fn op(&self, slot: u32) -> OpId {
        let Link { prev, next } = self.0[slot];
        OpId(u64::from(prev) << 32 | u64::from(next))
    }
}

/// A list of pages, oldest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fifo {
    oldest: u32,
    youngest: u32,
}

impl Fifo {
    /// A list without pages.
    pub(crate) const EMPTY: Self = Self { oldest: NONE, youngest: NONE };

    /// The page that came first.
    pub(crate) fn oldest(self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Adds a page at the young end.
    pub(crate) fn push(&mut self, links: &mut Links, slot: u32) {
        links.0[slot] = Link { prev: self.youngest, next: NONE };
        if self.youngest == NONE {
            self.oldest = slot;
        } else {
            links.0[self.youngest].next = slot;
        }
        self.youngest = slot;
    }

    /// Adds a page at the old end: it is the next to be taken.
    pub(crate) fn push_oldest(&mut self, links: &mut Links, slot: u32) {
        links.0[slot] = Link { prev: NONE, next: self.oldest };
        if self.oldest == NONE {
            self.youngest = slot;
        } else {
            links.0[self.oldest].prev = slot;
        }
        self.oldest = slot;
    }

    /// Takes a page out, wherever in the list it is.
    pub(crate) fn remove(&mut self, links: &mut Links, slot: u32) {
        let Link { prev, next } = links.0[slot];
        if prev == NONE {
            self.oldest = next;
        } else {
            links.0[prev].next = next;
        }
        if next == NONE {
            self.youngest = prev;
        } else {
            links.0[next].prev = prev;
        }
    }

    /// The pages, oldest first.
    pub(crate) fn iter(self, links: &Links) -> impl Iterator<Item = u32> {
        let mut at = self.oldest;
        core::iter::from_fn(move || {
            let slot = (at != NONE).then_some(at)?;
            at = links.0[slot].next;
            Some(slot)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// A broken link would lose pages, or hand one page out twice.
        #[test]
        fn a_fifo_behaves_like_a_queue(ops in prop::collection::vec((0u8..4, 0u32..16), 1..200)) {
            let (mut links, mut fifo, mut model) = (Links::default(), Fifo::EMPTY, VecDeque::new());
            links.grow(16);
            for (op, slot) in ops {
                let present = model.contains(&slot);
                match op {
                    0 if !present => {
                        fifo.push(&mut links, slot);
                        model.push_back(slot);
                    }
                    1 if !present => {
                        fifo.push_oldest(&mut links, slot);
                        model.push_front(slot);
                    }
                    2 if present => {
                        fifo.remove(&mut links, slot);
                        model.retain(|&s| s != slot);
                    }
                    _ => {
                        let oldest = fifo.oldest();
                        prop_assert_eq!(oldest, model.pop_front());
                        if let Some(slot) = oldest {
                            fifo.remove(&mut links, slot);
                        }
                    }
                }
                prop_assert_eq!(fifo.iter(&links).collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            }
        }
    }

    /// If the halves were mixed up, an outcome would be matched to the wrong proposal.
    #[test]
    fn a_link_holds_a_whole_op_number() {
        let mut links = Links::default();
        links.grow(1);
        links.set_op(0, OpId(0x1234_5678_9abc_def0));
        assert_eq!(links.op(0), OpId(0x1234_5678_9abc_def0));
    }
}
