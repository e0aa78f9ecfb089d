//! Decisions: the policy and the economist of one process, what they are told, and what the
//! run hears of it.
//!
//! | file | concept |
//! |---|---|
//! | [`event_ring`] | what the policy was told, on its way out |
//! | [`decider`] | policy and economist, and their books |
//! | [`notes`] | what handlers leave for them |
//! | [`ping_pong`] | pages that left for nothing |
//! | [`processors`] | how busy the machine is |
//! | [`thrash`] | a program that needs more than it may have |

pub mod decider;
pub mod event_ring;
pub mod notes;
pub(crate) mod ping_pong;
pub mod processors;
pub(crate) mod thrash;

use crate::decide::decider::Decider;
use crate::decide::notes::{Note, Queue};
use crate::pager::Pager;
use crate::sys::spin::{SpinLock, backoff};

/// The policy, and what it is told.
pub struct Deciding {
    /// Notes for the policy.
    pub(crate) notes: Queue,
    /// The policy.
    pub decider: SpinLock<Decider>,
}

impl Deciding {
    /// Nothing told yet.
    pub(crate) fn new(decider: Decider) -> Self {
        Self { notes: Queue::new(), decider: SpinLock::new(decider) }
    }
}

impl Pager {
    /// In a forked child that has statistics of its own: says in its recording where what it has
    /// inherited lies.
    pub fn tell_places(&self) {
        // Whoever holds the decider writes to the ring.
        let _held = self.decide.decider.lock();
        decider::tell_places(self);
    }

    /// Leaves a note for the policy; reads the notes itself if the queue is full.
    pub fn note(&self, note: Note) {
        let mut spins = 0;
        while !self.decide.notes.push(note) {
            if let Some(mut decider) = self.decide.decider.try_lock() {
                decider.listen(self);
            } else {
                backoff(&mut spins);
            }
        }
    }
}
