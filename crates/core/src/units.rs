//! Typed quantities.
//!
//! Integer quantities saturate instead of wrapping: a sum of costs that
//! overflows must stay "enormous", not become cheap.

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Div, Mul, Sub, SubAssign};

use serde::{Deserialize, Serialize};

macro_rules! integer_quantity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// None at all.
            pub const ZERO: Self = Self(0);
            /// The largest amount that can be expressed.
            pub const MAX: Self = Self(u64::MAX);

            /// The bare number, for formatting and for crossing into system calls.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The amount as a float, for ratios.
            pub const fn as_f64(self) -> f64 {
                self.0 as f64
            }

            /// The nearest amount to a float; negative and NaN become zero.
            pub const fn from_f64(value: f64) -> Self {
                // A float-to-integer `as` saturates and maps NaN to zero.
                Self(value.round() as u64)
            }

            /// Whether this is nothing at all.
            pub const fn is_zero(self) -> bool {
                self.0 == 0
            }

            /// The difference, or zero where `other` is larger.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }
        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }
        impl Mul<u64> for $name {
            type Output = Self;
            fn mul(self, factor: u64) -> Self {
                Self(self.0.saturating_mul(factor))
            }
        }
        /// Whole quotient; a division by zero is a caller's bug and panics.
        impl Div<u64> for $name {
            type Output = Self;
            fn div(self, divisor: u64) -> Self {
                Self(self.0 / divisor)
            }
        }
        /// How many times one amount fits into another, as a float.
        impl Div for $name {
            type Output = f64;
            fn div(self, other: Self) -> f64 {
                self.as_f64() / other.as_f64()
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }
    };
}

macro_rules! float_quantity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(transparent)]
        #[repr(transparent)]
        pub struct $name(pub f64);

        impl $name {
            /// None at all.
            pub const ZERO: Self = Self(0.0);

            /// The bare number.
            pub const fn get(self) -> f64 {
                self.0
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl Mul<f64> for $name {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }
        impl Div for $name {
            type Output = f64;
            fn div(self, other: Self) -> f64 {
                self.0 / other.0
            }
        }
    };
}

integer_quantity! {
    /// An amount of memory or of traffic, in bytes.
    Bytes
}
integer_quantity! {
    /// A number of pages: of base pages, where the place that counts does not say otherwise.
    Pages
}
integer_quantity! {
    /// A number of huge pages, or of blocks of their size. Not to be mixed up with what they are made
    /// of: 512 base pages each.
    HugePages
}
integer_quantity! {
    /// A duration, or a point on a world's clock, in nanoseconds.
    Nanos
}
integer_quantity! {
    /// Processor time, in cycles of the machine's nominal clock: the currency
    /// in which every action is priced.
    Cycles
}
float_quantity! {
    /// Events a second.
    PerSecond
}
float_quantity! {
    /// Bytes a second.
    BytesPerSecond
}
float_quantity! {
    /// Clock frequency in hertz; converts between [`Nanos`] and [`Cycles`].
    Frequency
}

impl Bytes {
    /// `n` KiB.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }
    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
    /// `n` GiB.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }
}

impl Nanos {
    /// One second.
    pub const SECOND: Self = Self(1_000_000_000);

    /// `n` microseconds.
    pub const fn micros(n: u64) -> Self {
        Self(n * 1_000)
    }
    /// `n` milliseconds.
    pub const fn millis(n: u64) -> Self {
        Self(n * 1_000_000)
    }
    /// `n` seconds.
    pub const fn seconds(n: u64) -> Self {
        Self(n * 1_000_000_000)
    }
    /// The duration in seconds.
    pub const fn as_secs(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl PerSecond {
    /// How many events a duration holds at this rate.
    pub fn over(self, duration: Nanos) -> f64 {
        self.0 * duration.as_secs()
    }
    /// The rate of `count` events in a duration; zero for an empty duration.
    pub fn from_count(count: f64, duration: Nanos) -> Self {
        if duration.is_zero() { Self::ZERO } else { Self(count / duration.as_secs()) }
    }
}

impl BytesPerSecond {
    /// How long moving `amount` takes at this bandwidth. Zero bandwidth takes forever.
    pub fn time_for(self, amount: Bytes) -> Nanos {
        if self.0 > 0.0 { Nanos::from_f64(amount.as_f64() / self.0 * 1e9) } else { Nanos::MAX }
    }
    /// How much moves in a duration.
    pub fn over(self, duration: Nanos) -> Bytes {
        Bytes::from_f64(self.0 * duration.as_secs())
    }
    /// The bandwidth that moved `amount` in a duration; zero for an empty duration.
    pub fn from_amount(amount: Bytes, duration: Nanos) -> Self {
        if duration.is_zero() { Self::ZERO } else { Self(amount.as_f64() / duration.as_secs()) }
    }
}

impl Frequency {
    /// A frequency in gigahertz.
    pub const fn ghz(value: f64) -> Self {
        Self(value * 1e9)
    }
    /// The cycles that pass in a duration.
    pub fn cycles(self, duration: Nanos) -> Cycles {
        Cycles::from_f64(duration.as_f64() * self.0 / 1e9)
    }
    /// The duration that a number of cycles takes.
    pub fn nanos(self, cycles: Cycles) -> Nanos {
        Nanos::from_f64(cycles.as_f64() / self.0 * 1e9)
    }
}

/// Scales a value into the largest unit that keeps it at or above one.
fn scaled(f: &mut fmt::Formatter<'_>, value: f64, step: f64, names: &[&str]) -> fmt::Result {
    let mut v = value;
    let mut i = 0;
    while v.abs() >= step && i + 1 < names.len() {
        v /= step;
        i += 1;
    }
    if i == 0 && v.fract() == 0.0 {
        write!(f, "{v:.0} {}", names[i])
    } else {
        let digits = if v.abs() >= 100.0 {
            0
        } else if v.abs() >= 10.0 {
            1
        } else {
            2
        };
        write!(f, "{v:.digits$} {}", names[i])
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.as_f64(), 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
    }
}
impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages", self.0)
    }
}
impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.as_f64(), 1000.0, &["ns", "µs", "ms", "s"])
    }
}
impl fmt::Display for Cycles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.as_f64(), 1000.0, &["cycles", "Kcycles", "Mcycles", "Gcycles", "Tcycles"])
    }
}
impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1000.0, &["/s", "K/s", "M/s", "G/s"])
    }
}
impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1000.0, &["B/s", "KB/s", "MB/s", "GB/s", "TB/s"])
    }
}
impl fmt::Display for Frequency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1000.0, &["Hz", "kHz", "MHz", "GHz"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate_so_that_a_huge_cost_never_becomes_cheap() {
        assert_eq!(Cycles::MAX + Cycles(1), Cycles::MAX);
        assert_eq!(Bytes(3) - Bytes(5), Bytes::ZERO);
        assert_eq!(Nanos::MAX * 2, Nanos::MAX);
    }

    #[test]
    fn floats_convert_without_wrapping() {
        assert_eq!(Cycles::from_f64(-1.0), Cycles::ZERO);
        assert_eq!(Cycles::from_f64(f64::NAN), Cycles::ZERO);
        assert_eq!(Cycles::from_f64(f64::INFINITY), Cycles::MAX);
    }

    #[test]
    fn bandwidth_and_clock_convert_both_ways() {
        assert_eq!(BytesPerSecond(2e9).time_for(Bytes(4096)), Nanos(2048));
        assert_eq!(BytesPerSecond::ZERO.time_for(Bytes(1)), Nanos::MAX);
        let clock = Frequency::ghz(2.2);
        assert_eq!(clock.cycles(Nanos(1000)), Cycles(2200));
        assert_eq!(clock.nanos(Cycles(2200)), Nanos(1000));
    }

    #[test]
    fn amounts_print_in_the_unit_a_person_would_use() {
        assert_eq!(Bytes::mib(256).to_string(), "256 MiB");
        assert_eq!(Nanos(1_500).to_string(), "1.50 µs");
        assert_eq!(Nanos(7).to_string(), "7 ns");
        assert_eq!(PerSecond(1_234.0).to_string(), "1.23 K/s");
        assert_eq!(BytesPerSecond(17.8e9).to_string(), "17.8 GB/s");
    }
}
