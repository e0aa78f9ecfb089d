//! A simulation of events, as 471.omnetpp does: a binary heap of what comes next, messages, and
//! the modules that take them.

use rand_xoshiro::rand_core::SeedableRng;
use terrace_core::Bytes;

use crate::exact::Access;
use crate::workload::SimRng;
use crate::workload::observed::{Array, Kernel, Observer, Span, Step};
use crate::workload::updates::below;

/// Bytes of a message and of a module's state. Assumed: a few fields and a packet's head, and
/// queues with counters.
const MESSAGE: u64 = 192;
const MODULE: u64 = 256;
/// Instructions of a module for a message beside its accesses. Assumed.
const WORK: u64 = 120;

/// A heap of events.
pub struct EventQueue {
    /// Time and number of the message.
    heap: Array<(u64, u64)>,
    messages: Span,
    modules: Span,
    count: u64,
    rng: SimRng,
}

impl EventQueue {
    /// As many events as fit into so many bytes.
    pub fn new(size: Bytes, seed: u64, observer: &mut Observer) -> Self {
        let count = (size.get() / (16 + MESSAGE + MODULE)).max(16);
        let mut rng = SimRng::seed_from_u64(seed);
        let mut events: Vec<(u64, u64)> =
            (0..count).map(|message| (below(&mut rng, count * 16), message)).collect();
        // An array in order is a heap.
        events.sort_unstable();
        Self {
            heap: observer.array(events),
            messages: observer.allocate(count * MESSAGE),
            modules: observer.allocate(count * MODULE),
            count,
            rng,
        }
    }

    /// Puts an event in the place of the first, and brings it to where it belongs.
    fn replace_first(&mut self, event: (u64, u64), observer: &mut Observer) {
        let (mut at, len) = (0, self.heap.len());
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            if left >= len {
                break;
            }
            let mut child = (left, self.heap.follow(left, observer));
            if right < len {
                let other = self.heap.get(right, observer);
                if other < child.1 {
                    child = (right, other);
                }
            }
            observer.work(5);
            if event <= child.1 {
                break;
            }
            self.heap.set(at, child.1, observer);
            at = child.0;
        }
        self.heap.set(at, event, observer);
    }
}

impl Kernel for EventQueue {
    fn describe(&self) -> String {
        format!("events, a heap of {}", self.count)
    }

    fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
        let (now, message) = self.heap.get(0, observer);
        let head = self.messages.address(message * MESSAGE);
        observer.access(Access::load(head).dependent());
        observer.access(Access::load(head + 128));
        let module = below(&mut self.rng, self.count) * MODULE;
        observer.access(Access::load(self.modules.address(module)).dependent());
        for at in [64, 128] {
            self.modules.load(module + at, observer);
            self.modules.store(module + at, observer);
        }
        observer.work(WORK);
        self.messages.store(message * MESSAGE, observer);
        let later = now + 1 + below(&mut self.rng, self.count * 2);
        self.replace_first((later, message), observer);
        Step::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_their_times() {
        let mut observer = Observer::default();
        let mut queue = EventQueue::new(Bytes::kib(256), 3, &mut observer);
        let mut before = 0;
        for _ in 0..5000 {
            let now = queue.heap.unseen()[0].0;
            assert!(now >= before);
            assert_eq!(now, queue.heap.unseen().iter().map(|event| event.0).min().unwrap());
            before = now;
            queue.step(0, &mut observer);
        }
    }
}
