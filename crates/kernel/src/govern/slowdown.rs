//! How much an interval was slowed down by memory that had to come back.

use serde::Serialize;
use terrace_core::Nanos;

use super::look::Look;

/// What a page that comes back from compressed memory takes of the thread that wants it:
/// `MADV_PAGEOUT`'s way back, see `docs/engines.md`.
pub const FAULT: Nanos = Nanos::micros(8);
/// The least part of an interval that a stall is held against: of a group that sleeps nearly
/// all the time a single fault would be everything.
const LEAST: u64 = 100;

/// Where a slowdown is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The kernel's pressure stall information of the group, which counts the waits themselves.
    Pressure,
    /// Pages that came back, each at [`FAULT`]: right for compressed memory, too little for a disk.
    Refaults,
}

/// How much of an interval was waiting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown {
    /// Waiting for memory, and at least as long as the pages that came back take.
    pub stalled: Nanos,
    /// Running, without that.
    pub ran: Nanos,
    /// Which of both is the greater.
    pub source: Source,
}

impl Slowdown {
    /// What lay between two looks.
    ///
    /// Waits of which the kernel tells are a share of the clock's time, in which some thread
    /// waited; pages that came back are a share of the processor time that the group had. Both
    /// are known too low at times (the one does not count short faults on compressed memory as
    /// waits, the other not what a disk takes), so the greater holds.
    pub fn between(before: &Look, after: &Look) -> Self {
        let time = after.at.saturating_sub(before.at);
        let cpu = after.cpu.saturating_sub(before.cpu);
        let refaults = after.refaults.saturating_sub(before.refaults);
        let least = time / LEAST;
        let back = Nanos(FAULT.get() * refaults);
        let by_refaults = Self {
            stalled: back,
            ran: cpu.saturating_sub(back).max(least),
            source: Source::Refaults,
        };
        let (Some(now), Some(then)) = (after.stalled, before.stalled) else { return by_refaults };
        let stalled = now.saturating_sub(then).min(time);
        let ran = time.saturating_sub(stalled).max(least);
        let by_pressure = Self { stalled, ran, source: Source::Pressure };
        if by_refaults.share() > by_pressure.share() { by_refaults } else { by_pressure }
    }

    /// By how much longer everything took, as a share of what it would have taken.
    pub fn share(&self) -> f64 {
        if self.ran.is_zero() { 0.0 } else { self.stalled / self.ran }
    }
}
