//! Children whose memory waits for their parent's pager: by the handles that the kernel reports.

use crate::sys::uffd::Uffd;

/// Children whose memory waits on us at once: one through the wrapper, and
/// those of raw forks meanwhile.
pub(super) const CHILDREN: usize = 8;

/// Handles of children, as the kernel reports them.
pub(super) struct Children {
    /// Whether a fork through our wrapper is under way.
    pub(super) announced: bool,
    pub(super) handles: [Option<Child>; CHILDREN],
}

/// A child's memory.
#[derive(Clone, Copy)]
pub(super) struct Child {
    pub(super) uffd: Uffd,
    /// How many events were deferred when the fork was reported.
    pub(super) seen: usize,
    /// Whether it is settled which of them hold for the child.
    pub(super) settled: bool,
}

impl Children {
    pub(super) const fn new() -> Self {
        Self { announced: false, handles: [None; CHILDREN] }
    }
    pub(super) fn any(&self) -> bool {
        self.handles.iter().any(Option::is_some)
    }
    /// Whether the memory of each is gone, if there are any.
    pub(super) fn all_ended(&self) -> bool {
        self.handles.iter().flatten().all(|child| child.uffd.is_orphan())
    }
    pub(super) fn push(&mut self, child: Child) -> bool {
        // The last number is for forks that were not announced.
        let free = self.handles[..CHILDREN - 1].iter_mut().find(|h| h.is_none());
        free.map(|slot| *slot = Some(child)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_left_to_forks_that_nobody_announced() {
        let mut children = Children::new();
        assert!(!children.any());
        let child = Child { uffd: Uffd::from_raw(-1), seen: 0, settled: false };
        let entered = (0..CHILDREN).take_while(|_| children.push(child)).count();
        assert_eq!(entered, CHILDREN - 1);
        assert!(children.any() && children.handles[CHILDREN - 1].is_none());
    }
}
