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
    /// Whether it meets the criterion.
    pub holds: bool,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds { "pass   " } else { "differs" };
        writeln!(f, "{verdict}  paper:    {}", self.paper)?;
        writeln!(f, "         check:    {}", self.criterion)?;
        write!(f, "         measured: {}", self.measured)
    }
}
