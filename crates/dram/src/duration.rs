//! Times as data sheets give them.

use core::fmt;
use core::ops::{Add, Sub};

use serde::{Serialize, Serializer};
use terrace_core::machine::Scalar;

/// A point or a span on a channel's clock, in clock cycles (`tCK`).
///
/// Sums saturate: "never" stays never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Clock(pub u64);

impl Clock {
    /// The start of time, or no time at all.
    pub const ZERO: Self = Self(0);
    /// Later than anything that happens.
    pub const NEVER: Self = Self(u64::MAX);

    /// The bare number of cycles.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Add for Clock {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}
impl Sub for Clock {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// A time as a data sheet gives it: a number of clock cycles, an absolute
/// time, or the longer of both.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClockTime {
    /// At least so many clock cycles.
    pub cycles: u64,
    /// At least so long, in nanoseconds.
    pub nanos: f64,
}

/// Cycles by which a time may be longer than a whole number of cycles and
/// still be rounded down to it: clock periods on data sheets are truncated
/// (0.833 ns for 1/1200 MHz), and JEDEC's rounding rule forgives that
/// (JESD79-4, 13.5 "Rounding algorithms": a correction of 2.5 %).
const GUARD_BAND: f64 = 0.025;

impl ClockTime {
    /// The time in whole cycles of a clock, rounded up as JEDEC does.
    pub fn cycles_of(self, period_ns: f64) -> u64 {
        let cycles = (self.nanos / period_ns - GUARD_BAND).ceil().max(0.0) as u64;
        cycles.max(self.cycles)
    }
}

impl fmt::Display for ClockTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cycles, self.nanos) {
            (cycles, 0.0) => write!(f, "{cycles}nCK"),
            (0, nanos) => write!(f, "{nanos}ns"),
            (cycles, nanos) => write!(f, "max({cycles}nCK, {nanos}ns)"),
        }
    }
}

impl Serialize for ClockTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Scalar for ClockTime {
    const EXPECTED: &'static str = "a time such as \"16nCK\", \"7.5ns\" or \"max(4nCK, 7.5ns)\"";

    fn from_text(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let inner = text.strip_prefix("max(").and_then(|rest| rest.strip_suffix(')'));
        let parts = inner.unwrap_or(text).split(',');
        let mut time = Self::default();
        for (i, part) in parts.enumerate() {
            if i > 0 && inner.is_none() {
                return Err(format!("`{text}` is not a time; expected {}", Self::EXPECTED));
            }
            let one = single(part.trim())
                .ok_or_else(|| format!("`{text}` is not a time; expected {}", Self::EXPECTED))?;
            time.cycles = time.cycles.max(one.cycles);
            time.nanos = time.nanos.max(one.nanos);
        }
        Ok(time)
    }
}

/// One time: cycles or nanoseconds. Bounded, so that sums of times cannot overflow.
fn single(text: &str) -> Option<ClockTime> {
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let (number, unit) = text.split_at(split);
    let value: f64 = number.parse().ok().filter(|v: &f64| *v <= 1e9)?;
    match unit.trim() {
        "nCK" if value.fract() == 0.0 => Some(ClockTime { cycles: value as u64, nanos: 0.0 }),
        "ps" => Some(ClockTime { cycles: 0, nanos: value / 1e3 }),
        "ns" => Some(ClockTime { cycles: 0, nanos: value }),
        "us" | "µs" => Some(ClockTime { cycles: 0, nanos: value * 1e3 }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> ClockTime {
        ClockTime::from_text(text).expect("a time")
    }

    #[test]
    fn times_round_to_cycles_as_jedec_rounds_them() {
        assert_eq!(time("14.16ns").cycles_of(0.833), 17, "16.999 cycles are 17");
        assert_eq!(time("7.5ns").cycles_of(0.833), 9, "9.004 cycles are 9, not 10");
        assert_eq!(time("7.8us").cycles_of(0.833), 9364);
        assert_eq!(time("13ns").cycles_of(0.833), 16);
        assert_eq!(time("0ns").cycles_of(0.833), 0);
    }

    #[test]
    fn the_longer_of_two_is_taken_whatever_the_clock() {
        let rtp = time("max(4nCK, 7.5ns)");

        assert_eq!(rtp.cycles_of(2.5), 4, "slow clock: four cycles are longer");
        assert_eq!(rtp.cycles_of(0.625), 12, "fast clock: 7.5 ns are longer");
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in
            ["", "16", "nCK", "1.5nCK", "16nCK, 4ns", "max(4nCK", "-1ns", "1e9ns", "9999999999ns"]
        {
            assert!(ClockTime::from_text(text).is_err(), "`{text}` was accepted");
        }
    }

    #[test]
    fn a_time_prints_as_it_is_read() {
        for text in ["16nCK", "7.5ns", "max(4nCK, 7.5ns)"] {
            assert_eq!(time(text).to_string(), text);
        }
    }
}
