//! What a parent and the child of one fork share, and nobody else: a page of its own for each fork.

use core::sync::atomic::{AtomicU32, Ordering::*};

use crate::space::deferred::Deferred;
use crate::sys::uffd::Message;
use crate::sys::{self, PAGE, robust_futex};

pub(super) const NOTHING: u32 = 0;
pub(super) const CHILD_READY: u32 = 1;
pub(super) const RELEASED: u32 = 2;
/// The child cannot manage itself: it asks for everything to be brought in.
pub(super) const CHILD_PLAIN: u32 = 3;

/// Of a handover: for the events, and how many there is room for.
pub(super) const HANDOVER: usize = 128 << 10;
const EVENTS: usize = (HANDOVER - PAGE) / size_of::<Message>();

/// What a parent and the child of one fork share, and nobody else: a page of
/// its own for each fork, since both may fork again at once.
pub(super) struct Handover {
    /// How far the handover is.
    pub(super) step: AtomicU32,
    /// Counted up by a child that has to read much before it is ready.
    pub(super) progress: AtomicU32,
    /// Held by the parent's manager: the kernel marks it when its
    /// holder dies, in whatever way. (The child cannot ask for its parent's
    /// number instead: the parent may be gone before it asks, and in a PID
    /// namespace of its own it has none.)
    pub(super) alive: robust_futex::Held,
    /// Address-space events that hold for the child, which lie behind this, plus one; 0 if the child
    /// has got all its memory instead.
    pub(super) events: AtomicU32,
}

const _: () = assert!(size_of::<Handover>() <= PAGE);

impl Handover {
    /// Maps one.
    pub(super) fn map() -> Result<*mut Self, i32> {
        sys::map_shared(HANDOVER).map(|at| at as *mut Self)
    }
    /// In the child: whether the parent's manager has died while it held on.
    pub(super) fn parent_died(&self) -> bool {
        self.alive.is_orphan()
    }
    pub(super) fn event(&self, n: usize) -> *mut Message {
        core::ptr::from_ref(self)
            .cast_mut()
            .wrapping_byte_add(PAGE)
            .cast::<Message>()
            .wrapping_add(n)
    }
    /// In the parent's manager: hands events over; false if there are too many.
    pub(super) fn hand_over(&self, deferred: &Deferred, child: usize) -> bool {
        let mut count = 0;
        let complete = deferred.for_each_in(child, |event| {
            let room = count < EVENTS;
            if room {
                // SAFETY: within the mapping; the child reads when it is told to.
                unsafe { self.event(count).write(event) };
                count += 1;
            }
            room
        });
        self.events.store(if complete { count as u32 + 1 } else { 0 }, Release);
        complete
    }
    /// In the child: what was handed over.
    pub(super) fn events(&self) -> Option<&[Message]> {
        let count = (self.events.load(Acquire) as usize).checked_sub(1)?;
        // SAFETY: the parent has written so many before it said so, and both run the same program.
        Some(unsafe { core::slice::from_raw_parts(self.event(0), count.min(EVENTS)) })
    }
    pub(super) fn release(&self) {
        self.step.store(RELEASED, Release);
        sys::futex_wake(&self.step, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::deferred::Read;

    fn handover() -> &'static Handover {
        // SAFETY: mapped just now, never unmapped; zero bytes are a valid value.
        unsafe { &*Handover::map().expect("memory") }
    }

    /// Events that all hold for child 0.
    fn deferred(count: usize) -> (Deferred, Vec<Message>) {
        let events: Vec<_> =
            (0..count).map(|n| Message::Unmap { start: n * PAGE, end: (n + 1) * PAGE }).collect();
        let mut deferred = Deferred::new();
        for event in &events {
            deferred.push(*event);
        }
        let read = Read { sure: count, copied: count, seen: count };
        deferred.settle(0, read, |_| false, |_, _| None, |_, _| None);
        (deferred, events)
    }

    #[test]
    fn a_child_gets_the_events_that_hold_for_it_in_order() {
        let handover = handover();
        assert!(handover.events().is_none(), "nothing was handed over yet");
        let (deferred, events) = deferred(3);
        assert!(handover.hand_over(&deferred, 0));
        assert_eq!(handover.events(), Some(&events[..]));
        assert!(handover.hand_over(&Deferred::new(), 0));
        assert_eq!(handover.events(), Some(&[][..]), "no event is an answer, too");
    }

    #[test]
    fn of_more_events_than_fit_none_is_handed_over() {
        let handover = handover();
        let (deferred, _) = deferred(EVENTS + 1);
        assert!(!handover.hand_over(&deferred, 0));
        assert!(handover.events().is_none());
    }

    #[test]
    fn a_parent_that_is_at_work_has_not_died() {
        let handover = handover();
        assert!(!handover.parent_died());
        handover.release();
        assert_eq!(handover.step.load(Acquire), RELEASED);
    }
}
