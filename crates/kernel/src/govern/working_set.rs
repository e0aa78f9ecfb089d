//! How much is touched within a time, and what could be saved.
//!
//! What is touched within a time `T` is the working set `W(T)` (Denning, *The working set model
//! for program behavior*, 1968). Two things follow from it:
//!
//! - What was not touched for `T` could be put out: all that there is, less `W(T)`. If that happens every
//!   `T` ([`ages`](super::ages)), what is out falls until the next time by what comes back.
//! - What comes back until then is what was not touched for `T` and is touched within the next: by how much
//!   `W` grows from `T` to `2T` (section 3 there: the miss rate is the slope of `W`).

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
    /// What would be out, as a mean.
    pub out: Bytes,
    /// What would be left in DRAM.
    pub left: Bytes,
    /// For how long memory is idle that leaves. More than all times that were looked at where only a part
    /// of what is idle may leave: twice the longest if that is half of it.
    pub idle: Nanos,
}

/// What becomes of it if time and again what was not touched for a time leaves, and all else stays.
#[derive(Clone, Copy, Debug)]
struct Turns {
    slowdown: f64,
    out: f64,
    left: f64,
    /// The time, in nanoseconds.
    age: f64,
}

impl Turns {
    /// Of the shorter of two times. What is touched between them has left at the first and comes back by
    /// the second. So what is out falls meanwhile, from what was idle at the first to what still is.
    fn between(short: Point, long: Point) -> Self {
        let resident = f64::midpoint(short.resident.as_f64(), long.resident.as_f64());
        let out = mean_of_decay(idle(short).as_f64(), idle(long).as_f64());
        let left = (resident - out).max(0.0);
        Self { slowdown: returned(short, long), out, left, age: short.within.as_f64() }
    }

    /// A part of the time like this, and otherwise like another.
    fn mixed(self, other: Self, share: f64) -> Self {
        let mix = |this: f64, other: f64| this + (other - this) * share;
        Self {
            slowdown: mix(self.slowdown, other.slowdown),
            out: mix(self.out, other.out),
            left: mix(self.left, other.left),
            age: mix(self.age, other.age),
        }
    }

    fn saving(self, slowdown: f64) -> Saving {
        Saving {
            slowdown,
            out: Bytes::from_f64(self.out),
            left: Bytes::from_f64(self.left),
            idle: Nanos::from_f64(self.age),
        }
    }
}

/// The mean of what falls from one amount to another, in each moment by the same part: half-way it is the
/// geometric mean, and between these three points Simpson's rule is near enough.
fn mean_of_decay(from: f64, to: f64) -> f64 {
    (from + 4.0 * (from * to).sqrt() + to) / 6.0
}

/// What had not been touched by then.
fn idle(point: Point) -> Bytes {
    point.resident.saturating_sub(point.touched)
}

impl Curve {
    /// What could be saved if the program were slowed down by a share at most. `None` if less than
    /// two points are known.
    ///
    /// The shortest time at which few enough pages come back, there and at all longer times, and the
    /// next shorter one, at which too many do, are mixed so that the slowdown is as wanted. Where too
    /// many come back even at the longest, a part of what is idle is out.
    pub fn saving(&self, slowdown: f64) -> Option<Saving> {
        let mut best: Option<Turns> = None;
        for pair in self.points.windows(2).rev() {
            let turns = Turns::between(pair[0], pair[1]);
            if turns.slowdown <= slowdown {
                best = Some(turns);
                continue;
            }
            let few = best.unwrap_or_else(|| Turns {
                slowdown: 0.0,
                out: 0.0,
                left: turns.left + turns.out,
                // Mixed with what is below, the age becomes that of which the part leaves.
                age: turns.age * (1.0 + turns.slowdown / slowdown),
            });
            let share = (slowdown - few.slowdown) / (turns.slowdown - few.slowdown);
            return Some(few.mixed(turns, share).saving(slowdown));
        }
        best.map(|turns| turns.saving(slowdown))
    }

    /// How much of what there was had not been touched at the end of each time.
    pub fn idle(&self) -> impl Iterator<Item = (Nanos, Bytes)> {
        self.points.iter().map(|&point| (point.within, idle(point)))
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

/// What curves forecast at a slowdown; `None` without any that says something.
pub fn forecast(curves: &[Curve], slowdown: f64) -> Option<Forecast> {
    let savings = curves.iter().filter_map(|curve| curve.saving(slowdown));
    let mut all: Vec<(Bytes, Bytes)> = savings.map(|saving| (saving.out, saving.left)).collect();
    all.sort_unstable();
    let (&(least, _), &(most, _)) = (all.first()?, all.last()?);
    let (middle, left) = all[all.len() / 2];
    Some(Forecast { slowdown, least, middle, most, left })
}
