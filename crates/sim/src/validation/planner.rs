//! Predictions of `plan` beside simulations of inputs that the plan has not seen.

use std::thread;

use terrace_core::Machine;

use super::{Criterion, Line, Model, Reference};
use crate::error::SimError;
use crate::plan::PlanError;
use crate::plan::held_out::{MEASURED, measure};
use crate::workload::catalog::ProgramName;

/// The least share of predictions that have to be within a tenth of the run time: the
/// low end of what a published predictor reaches on real CXL memory (91 to 97 % of 265
/// programs).
const SHARE: f64 = 0.91;

/// Plans held-out programs on a machine and simulates them on
/// [`machine`](crate::plan::held_out::machine): the share of good predictions, and whether
/// the figures that `plan` prints are those.
///
/// # Errors
///
/// A simulation failed.
pub fn lines(programs: &[ProgramName], planned_on: &Machine) -> Result<Vec<Line>, SimError> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let found = PlanError::of(&measure(programs, workers, planned_on)?);
    let line = |what: &str, ours, reference, criterion, source: &str| Line {
        what: format!("{} predictions for {} programs: {what}", found.predictions, found.programs),
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
        // Earlier output of ours is the reference: what is printed is right, and that is all.
        line(
            "within 10 %, as printed",
            found.within_tenth as f64,
            MEASURED.within_tenth as f64,
            Criterion::Within(0.0),
            own,
        )
        .arithmetic_only(),
        line(
            "greatest error, as printed",
            found.worst,
            MEASURED.worst,
            Criterion::Within(0.01),
            own,
        )
        .arithmetic_only(),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::held_out::machine;
    use crate::validation::State;
    use terrace_core::Nanos;

    /// A comparison that no wrong plan fails would say nothing. One program suffices to
    /// see it; the figures that are printed are those of all.
    #[test]
    fn plans_for_a_slow_memory_that_is_faster_than_it_is_fail() {
        let share =
            |machine: &Machine| lines(&[ProgramName::Bfs], machine).expect("simulated")[0].state();
        let sound = machine().expect("built in");
        assert_eq!(share(&sound), State::Holds);
        let mut faulty = sound;
        faulty.tiers[1].read_latency.value = Nanos(120);
        assert_eq!(share(&faulty), State::Fails);
    }
}
