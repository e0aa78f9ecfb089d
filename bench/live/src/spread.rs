//! A figure that was measured several times.

use std::fmt;

/// Median, least and greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle value, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Spread {
    /// Of some values; `None` of none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let (least, greatest) = (*values.first()?, *values.last()?);
        let median = f64::midpoint(values[(n - 1) / 2], values[n / 2]);
        Some(Self { median, least, greatest })
    }
}

impl fmt::Display for Spread {
    /// `1.32 (1.27-1.40)`, or the median alone where there is no spread.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, least, greatest } = self;
        let text = if greatest - least < f64::EPSILON {
            format!("{median:.2}")
        } else {
            format!("{median:.2} ({least:.2}-{greatest:.2})")
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        let spread = Spread::of([4.0, 1.0, 2.0, 8.0]).unwrap();
        assert_eq!(spread, Spread { median: 3.0, least: 1.0, greatest: 8.0 });
        assert_eq!(spread.to_string(), "3.00 (1.00-8.00)");
        assert_eq!(Spread::of([2.5]).unwrap().to_string(), "2.50");
        assert_eq!(Spread::of([]), None);
    }
}
