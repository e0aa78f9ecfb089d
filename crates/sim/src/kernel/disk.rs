//! The disk: one request after the other, at the bandwidth of its kind.

use std::collections::VecDeque;

use super::costs::DeviceCosts;
use super::memory::PAGE;
use super::slab::Object;

/// A transfer of so much is sequential by itself: data sheets of `NVMe` drives give the sequential
/// bandwidth for requests of 128 KiB.
const LONG: u64 = 128 << 10;

/// A bio under way, with its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    /// When it will be done.
    pub(super) done: f64,
    pub(super) file: u32,
    /// The first page in the file, and how many.
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) write: bool,
    pub(super) bio: Object,
    /// Number of the request as an object.
    pub(super) request: u64,
}

/// The disk's queue.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) queue: VecDeque<Transfer>,
    /// When its bandwidth is free.
    idle_at: f64,
    latency: f64,
    /// Nanoseconds a byte.
    sequential: f64,
    random: f64,
    /// Where the last transfer ended: file and page.
    head: (u32, u32),
}

impl Disk {
    pub(super) fn new(costs: &DeviceCosts) -> Self {
        Self {
            queue: VecDeque::new(),
            idle_at: 0.0,
            latency: costs.latency.value.as_f64(),
            sequential: 1e9 / costs.sequential.value.get(),
            random: 1e9 / costs.random.value.get(),
            head: (u32::MAX, 0),
        }
    }

    /// When a transfer will be done that is asked for at `at`. It takes the disk's time from when
    /// that is idle, and not before the clock of the thread that is furthest behind: others can
    /// be served while a thread waits within its call.
    pub(super) fn submit(
        &mut self,
        behind: f64,
        at: f64,
        file: u32,
        first: u32,
        count: u32,
    ) -> f64 {
        let bytes = u64::from(count) * PAGE;
        let follows = self.head == (file, first) || bytes >= LONG;
        let rate = if follows { self.sequential } else { self.random };
        self.head = (file, first + count);
        let transfer = bytes as f64 * rate;
        self.idle_at = self.idle_at.max(behind) + transfer;
        self.idle_at.max(at + transfer) + self.latency
    }

    /// Enters a transfer among those under way, by when they will be done.
    pub(super) fn enter(&mut self, transfer: Transfer) {
        let later = self.queue.iter().rev().take_while(|other| other.done > transfer.done).count();
        self.queue.insert(self.queue.len() - later, transfer);
    }

    /// When all that was asked for will be done.
    pub(super) fn drained(&self) -> f64 {
        self.queue.back().map_or(0.0, |last| last.done)
    }
}
