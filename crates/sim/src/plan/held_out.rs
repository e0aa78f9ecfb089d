//! How far off a plan is on inputs that it has not seen.
//!
//! A plan is made from one run of a program, and used for others. So each program is
//! planned with one input and measured with another (its seed gives other data, another
//! graph, other keys), at sizes that the plan did not simulate. The planner's constants
//! were chosen on GUPS, which therefore is not among the programs.
//!
//! Both sides are simulations: the figure says what interpolation and another input
//! cost, not how far the simulated machine is from a real one (`docs/validation.md`).

use serde::Serialize;
use terrace_core::{Bytes, Machine};

use super::{PlanConfig, in_place, plan};
use crate::analytic::config::SimPolicy;
use crate::error::SimError;
use crate::exact::{ExactConfig, Source};
use crate::machines;
use crate::workload::catalog::{ProgramName, ProgramSpec};

/// Programs, none of which the planner was made with.
pub const PROGRAMS: [ProgramName; 8] = [
    ProgramName::Chase,
    ProgramName::Stream,
    ProgramName::PageRank,
    ProgramName::Sssp,
    ProgramName::Ycsb,
    ProgramName::Bfs,
    ProgramName::BTree,
    ProgramName::XsBench,
];

/// A slowdown that is next to none.
const NOTHING: f64 = 0.01;
/// Where predictions are compared: shares of the fast memory with which the plan says
/// that the program is next to not slower.
const SIZES: [f64; 5] = [0.11, 0.29, 0.51, 0.73, 0.91];
/// Inputs: of the plan, and of the run that it is compared with.
const SEEDS: [u64; 2] = [1, 2];
/// An error that counts as small: as a share of the run time.
const SMALL: f64 = 0.10;

/// How far predictions of run time were off, on programs and inputs that were held out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PlanError {
    /// Programs.
    pub programs: u64,
    /// Predictions.
    pub predictions: u64,
    /// Those that were off by at most a tenth of the run time.
    pub within_tenth: u64,
    /// The error in the middle, as a share of the run time.
    pub median: f64,
    /// The greatest.
    pub worst: f64,
}

/// What [`measure`] gave on [`PROGRAMS`]; `terrace validate` measures it again and
/// fails where the two differ.
pub const MEASURED: PlanError = PlanError {
    programs: 8,
    predictions: 40,
    within_tenth: 39,
    median: 0.001_766,
    worst: 0.102_235,
};

/// One prediction beside what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The program.
    pub program: ProgramName,
    /// Fast memory.
    pub fast: Bytes,
    /// What the plan said: 0.05 for 5 % slower.
    pub predicted: f64,
    /// What the other input's run gave.
    pub measured: f64,
}

impl Prediction {
    /// By which share of the run time the prediction was off.
    pub fn error(&self) -> f64 {
        ((1.0 + self.predicted) / (1.0 + self.measured) - 1.0).abs()
    }
}

impl PlanError {
    /// Of some predictions.
    pub fn of(predictions: &[Prediction]) -> Self {
        let mut errors: Vec<f64> = predictions.iter().map(Prediction::error).collect();
        errors.sort_by(f64::total_cmp);
        let mut programs: Vec<_> = predictions.iter().map(|p| p.program.name()).collect();
        programs.dedup();
        Self {
            programs: programs.len() as u64,
            predictions: errors.len() as u64,
            within_tenth: errors.partition_point(|error| *error <= SMALL) as u64,
            median: errors.get(errors.len() / 2).copied().unwrap_or(0.0),
            worst: errors.last().copied().unwrap_or(0.0),
        }
    }

    /// Share of the predictions that were off by at most a tenth.
    pub fn share_within_tenth(&self) -> f64 {
        self.within_tenth as f64 / self.predictions.max(1) as f64
    }
}

/// The machine of these runs: CXL with caches that small programs miss.
///
/// # Errors
///
/// The built-in machine file cannot be read.
pub fn machine() -> Result<Machine, SimError> {
    let mut machine = machines::load("cxl")?;
    machine.cpu.llc.value = Bytes::mib(1);
    if let Some(detail) = &mut machine.detail {
        detail.llc.ways.value = 16;
        detail.l2 = None;
    }
    Ok(machine)
}

/// Plans each program with one input, on the machine that is given, and measures it with
/// another on [`machine`]. Only a test of this comparison gives another machine.
///
/// # Errors
///
/// A simulation failed.
pub fn measure(
    programs: &[ProgramName],
    workers: usize,
    planned_on: &Machine,
) -> Result<Vec<Prediction>, SimError> {
    let on = |machine: Machine| PlanConfig {
        base: ExactConfig::new(machine, SimPolicy::AllDram),
        slow: 1,
        policies: Vec::new(),
        slowdown: 0.05,
        grid: 2,
        prices: None,
        budget: None,
        workers,
    };
    let (planning, config) = (on(planned_on.clone()), on(machine()?));
    let mut predictions = Vec::new();
    for &program in programs {
        let spec =
            |seed| ProgramSpec { seed, ..ProgramSpec::new(program, Bytes::mib(16), 400_000) };
        let open = |seed| {
            let program = spec(seed).build()?;
            let initial = program.initial();
            Ok((Box::new(program) as Box<dyn Source>, initial))
        };
        let report = plan(&planning, &|| open(SEEDS[0]), &|_| ())?;
        let curve = &report.parts[0].curve;
        // Beyond it every prediction is 0, and right.
        let needed = curve.smallest(NOTHING).map_or(report.footprint, |point| point.fast);
        let page = config.base.page_size.bytes().get();
        let sizes: Vec<Bytes> = SIZES
            .iter()
            .map(|share| Bytes((needed.as_f64() * share) as u64 / page * page))
            .collect();
        let measured = in_place::measured(&config, &|| open(SEEDS[1]), sizes)?;
        predictions.extend(measured.iter().map(|point| Prediction {
            program,
            fast: point.fast,
            predicted: curve.at(point.fast),
            measured: point.slowdown,
        }));
    }
    Ok(predictions)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A figure that nobody measures again would stay when the planner gets worse. All
    /// programs are measured by `terrace validate`; here one, the one that is farthest off.
    #[test]
    fn predictions_hold_for_an_input_that_the_plan_has_not_seen() {
        let machine = machine().expect("built in");
        let found = measure(&[ProgramName::Chase], 2, &machine).expect("simulated");
        let error = PlanError::of(&found);
        assert_eq!((error.programs, error.predictions), (1, 5));
        assert!((error.worst - MEASURED.worst).abs() < 1e-4, "{found:?}");
        assert!(found.iter().all(|p| p.measured > 0.05), "nothing to predict: {found:?}");
    }

    #[test]
    fn an_error_is_a_share_of_the_run_time() {
        let one = |predicted, measured| Prediction {
            program: ProgramName::Bfs,
            fast: Bytes::ZERO,
            predicted,
            measured,
        };
        assert!((one(1.2, 1.0).error() - 0.1).abs() < 1e-12);
        let error = PlanError::of(&[one(0.0, 0.0), one(0.05, 0.0), one(0.2, 0.0)]);
        assert_eq!((error.predictions, error.within_tenth), (3, 2));
        assert!((error.median - 0.05).abs() < 1e-12 && (error.worst - 0.2).abs() < 1e-12);
    }
}
