//! The one parser for quantities that people write: `256MiB`, `10ms`,
//! `17.8GB/s`, `2.2GHz`, `1000/s`.
//!
//! A number without a unit is refused, except zero: `--fast 256` is a mistake
//! that must not mean 256 bytes. Decimal prefixes are powers of ten (`MB`),
//! binary ones powers of two (`MiB`); a bare `K`, `M`, `G`, `T` is binary for
//! memory, as every tool of this field has it.

use core::str::FromStr;

use thiserror::Error;

use crate::units::{Bytes, BytesPerSecond, Cycles, Frequency, Nanos, PerSecond};

/// A text without the byte-order mark that some editors put before it.
pub fn without_byte_order_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ParseUnitError {
    /// The text does not begin with a number.
    #[error("`{text}` is not a number with a unit (expected something like `{example}`)")]
    NotANumber {
        /// What was given.
        text: String,
        /// A text that would have been accepted.
        example: &'static str,
    },
    /// The number has no unit.
    #[error("`{text}` has no unit (expected something like `{example}`)")]
    NoUnit {
        /// What was given.
        text: String,
        /// A text that would have been accepted.
        example: &'static str,
    },
    /// The unit is not one of this quantity.
    #[error(
        "`{unit}` in `{text}` is not a unit of this quantity (expected something like `{example}`)"
    )]
    UnknownUnit {
        /// What was given.
        text: String,
        /// The part that was not understood.
        unit: String,
        /// A text that would have been accepted.
        example: &'static str,
    },
    /// The value is negative.
    #[error("`{text}` is negative; the least is 0 (expected something like `{example}`)")]
    Negative {
        /// What was given.
        text: String,
        /// A text that would have been accepted.
        example: &'static str,
    },
    /// The value is too large.
    #[error("`{text}` is out of range")]
    OutOfRange {
        /// What was given.
        text: String,
    },
}

/// Splits `text` into its number and its unit's factor.
fn quantity(
    text: &str,
    example: &'static str,
    factor_of: impl Fn(&str) -> Option<f64>,
) -> Result<f64, ParseUnitError> {
    let trimmed = text.trim();
    if trimmed
        .strip_prefix('-')
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
    {
        return Err(ParseUnitError::Negative { text: text.to_owned(), example });
    }
    let split = trimmed
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let value: f64 = number
        .replace('_', "")
        .parse()
        .map_err(|_| ParseUnitError::NotANumber { text: text.to_owned(), example })?;
    let unit = unit.trim();
    if unit.is_empty() {
        return if value == 0.0 {
            Ok(0.0)
        } else {
            Err(ParseUnitError::NoUnit { text: text.to_owned(), example })
        };
    }
    let factor = factor_of(unit).ok_or_else(|| ParseUnitError::UnknownUnit {
        text: text.to_owned(),
        unit: unit.to_owned(),
        example,
    })?;
    let value = value * factor;
    // Hundreds of digits are infinity.
    if value.is_finite() {
        Ok(value)
    } else {
        Err(ParseUnitError::OutOfRange { text: text.to_owned() })
    }
}

fn integer(text: &str, value: f64) -> Result<u64, ParseUnitError> {
    // 2^63 keeps sums of two parsed amounts inside u64.
    if (0.0..9.2e18).contains(&value) {
        Ok(value.round() as u64)
    } else {
        Err(ParseUnitError::OutOfRange { text: text.to_owned() })
    }
}

/// An amount in whole units. Whole numbers are read exactly: a floating-point number holds those
/// up to 2^53 only.
fn whole(
    text: &str,
    example: &'static str,
    factor_of: impl Fn(&str) -> Option<f64>,
) -> Result<u64, ParseUnitError> {
    let value = quantity(text, example, &factor_of)?;
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '_'));
    let (number, unit) = trimmed.split_at(digits.unwrap_or(trimmed.len()));
    // All factors of whole units are whole, and below 2^53.
    let exact = number
        .replace('_', "")
        .parse::<u64>()
        .ok()
        .zip(factor_of(unit.trim()))
        .and_then(|(number, factor)| number.checked_mul(factor as u64));
    let about = integer(text, value)?;
    Ok(exact.unwrap_or(about))
}

fn byte_factor(unit: &str) -> Option<f64> {
    Some(match unit {
        "B" => 1.0,
        "KiB" | "K" | "k" => 1024.0,
        "MiB" | "M" | "m" => 1_048_576.0,
        "GiB" | "G" | "g" => 1_073_741_824.0,
        "TiB" | "T" | "t" => 1_099_511_627_776.0,
        "KB" | "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        _ => return None,
    })
}

impl FromStr for Bytes {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        whole(text, "256MiB", byte_factor).map(Self)
    }
}

impl FromStr for Nanos {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        whole(text, "10ms", |unit| {
            Some(match unit {
                "ns" => 1.0,
                "us" | "µs" => 1e3,
                "ms" => 1e6,
                "s" => 1e9,
                "min" => 60e9,
                "h" => 3600e9,
                _ => return None,
            })
        })
        .map(Self)
    }
}

impl FromStr for Cycles {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let factor = |unit: &str| matches!(unit, "cycle" | "cycles").then_some(1.0);
        whole(text, "14cycles", factor).map(Self)
    }
}

impl FromStr for BytesPerSecond {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        quantity(text, "17.8GB/s", |unit| byte_factor(unit.strip_suffix("/s")?)).map(Self)
    }
}

impl FromStr for PerSecond {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        quantity(text, "1000/s", |unit| {
            Some(match unit.strip_suffix("/s")? {
                "" => 1.0,
                "K" | "k" => 1e3,
                "M" => 1e6,
                "G" => 1e9,
                _ => return None,
            })
        })
        .map(Self)
    }
}

impl FromStr for Frequency {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        quantity(text, "2.2GHz", |unit| {
            Some(match unit {
                "Hz" => 1.0,
                "kHz" => 1e3,
                "MHz" => 1e6,
                "GHz" => 1e9,
                _ => return None,
            })
        })
        .map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beyond 2^53 a floating-point number is a neighbour of what was written.
    #[test]
    fn whole_amounts_are_read_as_they_were_written() {
        for amount in [9_007_199_254_740_993, (1 << 62) + 1] {
            assert_eq!(format!("{amount}cycles").parse(), Ok(Cycles(amount)));
            assert_eq!(format!("{amount} B").parse(), Ok(Bytes(amount)));
            assert_eq!(format!("{amount}ns").parse(), Ok(Nanos(amount)));
        }
        assert_eq!("9007199254740993us".parse(), Ok(Nanos(9_007_199_254_740_993_000)));
        assert_eq!("1.5KiB".parse(), Ok(Bytes(1536)));
        assert!("9_300_000_000_000_000_000B".parse::<Bytes>().is_err());
    }

    #[test]
    fn every_quantity_reads_what_a_person_writes() {
        assert_eq!("256MiB".parse(), Ok(Bytes::mib(256)));
        assert_eq!("1.5 GiB".parse(), Ok(Bytes::mib(1536)));
        assert_eq!("192GB".parse(), Ok(Bytes(192_000_000_000)));
        assert_eq!("10ms".parse(), Ok(Nanos::millis(10)));
        assert_eq!("17.8GB/s".parse(), Ok(BytesPerSecond(17.8e9)));
        assert_eq!("2.2GHz".parse(), Ok(Frequency::ghz(2.2)));
        assert_eq!("8K/s".parse(), Ok(PerSecond(8000.0)));
        assert_eq!("14cycles".parse(), Ok(Cycles(14)));
        assert_eq!("0".parse(), Ok(Bytes::ZERO));
    }

    #[test]
    fn a_number_without_a_unit_is_refused_rather_than_guessed() {
        assert!(matches!("256".parse::<Bytes>(), Err(ParseUnitError::NoUnit { .. })));
        assert!(matches!("10".parse::<Nanos>(), Err(ParseUnitError::NoUnit { .. })));
    }

    #[test]
    fn nonsense_names_the_part_that_was_not_understood() {
        assert!(matches!("MiB".parse::<Bytes>(), Err(ParseUnitError::NotANumber { .. })));
        assert!(matches!("-MiB".parse::<Bytes>(), Err(ParseUnitError::NotANumber { .. })));
        let negative = "-1MiB".parse::<Bytes>().unwrap_err();
        assert!(negative.to_string().contains("the least is 0"), "{negative}");
        let error = "5 parsecs".parse::<Bytes>().unwrap_err();
        assert!(error.to_string().contains("parsecs"), "{error}");
        assert!(matches!(
            "99999999999TiB".parse::<Bytes>(),
            Err(ParseUnitError::OutOfRange { .. })
        ));
    }

    /// Found by fuzzing: an infinite clock made every price infinite.
    #[test]
    fn a_number_of_hundreds_of_digits_is_out_of_range() {
        let digits = "9".repeat(400);
        let refused = |error| matches!(error, ParseUnitError::OutOfRange { .. });
        assert!(format!("{digits}/s").parse::<PerSecond>().is_err_and(refused));
        assert!(format!("{digits}GHz").parse::<Frequency>().is_err_and(refused));
        assert!(format!("{digits}GB/s").parse::<BytesPerSecond>().is_err_and(refused));
        assert!(format!("{digits}B").parse::<Bytes>().is_err_and(refused));
    }
}
