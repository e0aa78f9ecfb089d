//! How much is touched within a time, and what could be saved.
//!
//! What is touched within a time `T` is the working set `W(T)` (Denning, *The working set model
//! for program behavior*, 1968). Two things follow from it:
//!
//! - What was not touched for `T` could be put out: all that there is, less `W(T)`.
//! - Pages would come back at the rate at which `W` still grows at `T`. What a longer time adds to the
//!   working set is what was touched again after just that time (section 3 there: the miss rate is
//!   the slope).

use serde::Serialize;
use terrace_core::{Bytes, Nanos, PageSize};

use super::slowdown::FAULT;

/// What was touched within a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Point {
    /// The time.
    pub within: Nanos,
    /// What was touched in it.
    pub touched: Bytes,
    /// What there was at its end.
    pub resident: Bytes,
    /// Processor time that the program had in it.
    pub cpu: Nanos,
}

/// A curve: points at ever longer times from one beginning.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Curve {
    /// The points, the shortest time first.
    pub points: Vec<Point>,
}

/// What could be saved at a slowdown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Saving {
    /// The slowdown, a share.
    pub slowdown: f64,
    /// What would be out: what was not touched for as long as it takes.
    pub out: Bytes,
    /// What would be left in DRAM.
    pub left: Bytes,
    /// For how long memory is not touched that would be out.
    pub idle: Nanos,
}

impl Curve {
    /// What could be saved if the program were slowed down by a share at most. `None` if less than
    /// two points are known, or if more pages come back at every time that was looked at.
    pub fn saving(&self, slowdown: f64) -> Option<Saving> {
        let mut best = None;
        // From the longest time to the shortest, as long as few enough come back.
        for pair in self.points.windows(2).rev() {
            let (short, long) = (pair[0], pair[1]);
            if returned(short, long) > slowdown {
                break;
            }
            best = Some(Saving {
                slowdown,
                // Memory that was not touched for the shorter time: what came between is what
                // would come back, at the rate that was judged.
                out: short.resident.saturating_sub(short.touched),
                left: short.touched,
                idle: short.within,
            });
        }
        best
    }

    /// How much of what there was had not been touched at the end of each time.
    pub fn idle(&self) -> impl Iterator<Item = (Nanos, Bytes)> {
        self.points.iter().map(|p| (p.within, p.resident.saturating_sub(p.touched)))
    }
}

/// The slowdown if memory were out that was not touched for the shorter of two times.
fn returned(short: Point, long: Point) -> f64 {
    // Memory that is new was touched, too, and would not have come back.
    let new = long.resident.saturating_sub(short.resident);
    let again = long.touched.saturating_sub(short.touched).saturating_sub(new);
    let pages = again.get() / PageSize::Base.bytes().get();
    let ran = long.cpu.saturating_sub(short.cpu);
    let time = long.within.saturating_sub(short.within);
    // As for what is measured: a group that sleeps is not slowed down without bound.
    Nanos(FAULT.get() * pages) / ran.max(time / 100).max(Nanos(1))
}

/// The least, the middle and the most that several curves say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// At this slowdown, a share.
    pub slowdown: f64,
    /// What would be out, at least.
    pub least: Bytes,
    /// The median.
    pub middle: Bytes,
    /// At most.
    pub most: Bytes,
    /// What DRAM would have to hold: the median.
    pub left: Bytes,
}

/// What curves forecast at a slowdown; `None` without any that says something. A curve by which
/// nothing could be saved counts as that.
pub fn forecast(curves: &[Curve], slowdown: f64) -> Option<Forecast> {
    let known = curves.iter().filter(|curve| curve.points.len() >= 2);
    let mut all: Vec<(Bytes, Bytes)> = known
        .map(|curve| match curve.saving(slowdown) {
            Some(saving) => (saving.out, saving.left),
            None => (Bytes::ZERO, curve.points.last().map_or(Bytes::ZERO, |p| p.resident)),
        })
        .collect();
    all.sort_unstable();
    let (&(least, _), &(most, _)) = (all.first()?, all.last()?);
    let (middle, left) = all[all.len() / 2];
    Some(Forecast { slowdown, least, middle, most, left })
}
