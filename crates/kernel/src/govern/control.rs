//! How much to put out next.

use terrace_core::{Bytes, PageSize};

use super::look::Look;

/// The most that is put out in an interval, as a part of what is resident. A program that has gone to
/// sleep has left in some five minutes. What one interval puts out wrongly comes back within the
/// target: at 8 µs a page, 1 % of 1 GiB takes 21 ms.
const MOST: f64 = 0.01;
/// The least that is worth asking for.
const LEAST: Bytes = Bytes::kib(256);
/// How many intervals nothing is put out after one above the target: at least, and, as it doubles
/// while it is exceeded again and again, at most.
const REST: (u32, u32) = (2, 64);
/// So many intervals below the target in a row, in which something was put out, show that it can
/// go on as before.
const CALM: u32 = 16;

/// Decides by the slowdown of the last interval.
#[derive(Clone, Debug)]
pub struct Control {
    target: f64,
    /// Intervals for which nothing is put out yet.
    rest: u32,
    /// How many those were the last time.
    last_rest: u32,
    calm: u32,
}

impl Control {
    /// With a target, a share.
    pub fn new(target: f64) -> Self {
        Self { target, rest: 0, last_rest: 0, calm: 0 }
    }

    /// The target.
    pub fn target(&self) -> f64 {
        self.target
    }

    /// What is to be put out now, after an interval that was slowed down by a share.
    ///
    /// Below the target the more, the further below. Above it nothing for a while: what has left
    /// too early comes back by itself. The while doubles where that happens time and again, or
    /// a program that walks through its memory once a minute would pay for it each time.
    pub fn next(&mut self, slowdown: f64, look: &Look) -> Bytes {
        if slowdown > self.target {
            self.calm = 0;
            self.last_rest = (self.last_rest * 2).clamp(REST.0, REST.1);
            self.rest = self.last_rest;
            return Bytes::ZERO;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return Bytes::ZERO;
        }
        let part = MOST * (1.0 - slowdown / self.target);
        let wanted = Bytes::from_f64(look.resident.as_f64() * part);
        let page = PageSize::Base.bytes().get();
        let wanted = Bytes(wanted.get() / page * page);
        let room = look.swap_free.map_or(wanted, |free| wanted.min(free));
        if room.is_zero() || room < LEAST.min(look.resident) {
            return Bytes::ZERO;
        }
        self.calm += 1;
        if self.calm >= CALM {
            self.calm = 0;
            self.last_rest /= 2;
        }
        room
    }
}
