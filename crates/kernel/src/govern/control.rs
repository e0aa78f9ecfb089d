//! Whether memory may leave, and how much where nobody knows how old it is.

use terrace_core::{Bytes, PageSize};

use super::look::Look;
use super::slowdown::Slowdown;

/// The most that is put out in an interval beside what came back, as a part of what is resident, where
/// the kernel chooses. A program that has gone to sleep has left in some three minutes.
const MOST: f64 = 0.02;
/// The least that is worth asking for.
pub(super) const LEAST: Bytes = Bytes::kib(256);
/// Intervals after which what happened counts a 2.7th. A target is a mean: who walks through memory
/// once a minute waits in one second for all of it, and not in the others.
const WINDOW: f64 = 30.0;

/// Decides by the slowdown of the last intervals.
#[derive(Clone, Debug)]
pub struct Control {
    target: f64,
    /// Of the last intervals, each the less the longer ago it was.
    lately: Sums,
    /// Of all.
    all: Sums,
}

/// What intervals had, in nanoseconds and bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    stalled: f64,
    ran: f64,
    back: f64,
    intervals: f64,
}

impl Sums {
    /// After one more interval, before which what is known counts so much of what it did.
    fn add(&mut self, keep: f64, slowdown: &Slowdown, back: Bytes) {
        self.stalled = self.stalled * keep + slowdown.stalled.as_f64();
        self.ran = self.ran * keep + slowdown.ran.as_f64();
        self.back = self.back * keep + back.as_f64();
        self.intervals = self.intervals * keep + 1.0;
    }

    fn share(&self) -> f64 {
        if self.ran > 0.0 { self.stalled / self.ran } else { 0.0 }
    }
}

impl Control {
    /// With a target, a share.
    pub fn new(target: f64) -> Self {
        Self { target, lately: Sums::default(), all: Sums::default() }
    }

    /// The target.
    pub fn target(&self) -> f64 {
        self.target
    }

    /// Takes note of an interval, in which so much came back; whether anything may leave after it.
    ///
    /// Nothing may where the slowdown is above the target: in this interval, of late, or on the whole.
    /// What has left too early comes back by itself.
    pub fn note(&mut self, slowdown: &Slowdown, back: Bytes) -> bool {
        self.lately.add((-1.0 / WINDOW).exp(), slowdown, back);
        self.all.add(1.0, slowdown, back);
        slowdown.share() <= self.target
            && self.lately.share() < self.target
            && self.all.share() <= self.target
    }

    /// What is to be put out now if anything may, where nobody knows how old memory is.
    ///
    /// As much as came back lately, or less and less would be out; and more, the further the slowdown
    /// is below the target.
    pub fn rate(&self, look: &Look) -> Bytes {
        if self.lately.intervals <= 0.0 {
            return Bytes::ZERO;
        }
        let lately = self.lately.share();
        let more = look.resident.as_f64() * MOST * (1.0 - lately / self.target).max(0.0);
        Bytes::from_f64(self.lately.back / self.lately.intervals + more)
    }
}

/// What is asked for of what is wanted: whole pages that there is room for in swap, or nothing if that is
/// not worth it.
pub fn asked(wanted: Bytes, look: &Look) -> Bytes {
    let page = PageSize::Base.bytes().get();
    let wanted = Bytes(wanted.get() / page * page);
    let room = look.swap_free.map_or(wanted, |free| wanted.min(free));
    if room < LEAST.min(look.resident) { Bytes::ZERO } else { room }
}
