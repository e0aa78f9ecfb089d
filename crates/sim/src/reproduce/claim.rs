//! A statement of a paper, and what we measured of it.

use core::fmt;

use serde::Serialize;

/// A statement of a paper, turned into a criterion and judged by our numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// What the paper says.
    pub paper: &'static str,
    /// What we take for its confirmation; fixed before anything was measured.
    pub criterion: String,
    /// What we measured, with its unit.
    pub measured: String,
    /// The number in `measured` that the criterion judges.
    pub value: f64,
    /// The criterion's number.
    pub bound: Bound,
    /// Whether `value` is within `bound`.
    pub holds: bool,
}

/// The number of a criterion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// At least this.
    AtLeast(f64),
    /// Less than this.
    Below(f64),
    /// Neither less nor more.
    Between(f64, f64),
}

impl Bound {
    /// Whether a value is within it.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::Below(most) => value < most,
            Self::Between(least, most) => (least..=most).contains(&value),
        }
    }
}

impl Claim {
    /// A statement, judged.
    pub fn new(
        paper: &'static str,
        criterion: impl Into<String>,
        bound: Bound,
        value: f64,
        measured: String,
    ) -> Self {
        let (criterion, holds) = (criterion.into(), bound.holds(value));
        Self { paper, criterion, measured, value, bound, holds }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds { "pass   " } else { "differs" };
        writeln!(f, "{verdict}  paper:    {}", self.paper)?;
        writeln!(f, "         check:    {}", self.criterion)?;
        write!(f, "         measured: {}", self.measured)
    }
}
