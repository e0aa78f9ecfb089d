//! Predictions of `plan` beside simulations of inputs that the plan has not seen.

use std::thread;

use super::{Criterion, Line, Model, Reference};
use crate::error::SimError;
use crate::plan::PlanError;
use crate::plan::held_out::{MEASURED, PROGRAMS, measure};

/// The least share of predictions that have to be within a tenth of the run time: the
/// low end of what a published predictor reaches on real CXL memory (91 to 97 % of 265
/// programs).
const SHARE: f64 = 0.91;

/// Simulates the held-out programs: the share of good predictions, and whether the
/// figures that `plan` prints are those.
pub fn lines() -> Result<Vec<Line>, SimError> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let found = PlanError::of(&measure(&PROGRAMS, workers)?);
    let line = |what: &str, ours, reference, criterion, source: &str| Line {
        what: format!(
            "plan, {} predictions for {} programs: {what}",
            found.predictions, found.programs
        ),
        unit: "",
        ours,
        reference,
        criterion,
        // Both sides are ours; only the bound of the first is another's.
        kind: Reference::Ourselves,
        model: Model::Tiers,
        arithmetic: false,
        source: source.to_owned(),
    };
    let own = "the figures that `plan` prints; both sides are simulated";
    Ok(vec![
        line(
            "share within 10 % of the run time",
            found.share_within_tenth(),
            SHARE,
            Criterion::AtLeast,
            "a published predictor on real CXL memory; ours is measured on simulated memory",
        ),
        line(
            "within 10 %, as printed",
            found.within_tenth as f64,
            MEASURED.within_tenth as f64,
            Criterion::Within(0.0),
            own,
        ),
        line(
            "greatest error, as printed",
            found.worst,
            MEASURED.worst,
            Criterion::Within(0.01),
            own,
        ),
    ])
}
