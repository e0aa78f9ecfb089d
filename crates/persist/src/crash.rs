//! The power fails at every point at which it can, and what is left is
//! recovered and compared.
//!
//! For each fence of a program: the program runs up to it; each state that the
//! lines which were not durable can be left in (all of them if they are few,
//! else the extremes and a sample) is recovered; and recovery itself fails in
//! front of its own fences and is recovered again. What was recovered must be
//! the last complete checkpoint (or the one that was being made), must hold the
//! invariants of [`System::audit`], and must be able to go on.

use core::fmt;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::fault::Fault;
use crate::pmem::{Persist, Pmem};
use crate::program::{Model, Op, step};
use crate::scheme::Scheme;
use crate::system::{System, Unrecoverable};

/// Frames of the machines that are crashed.
const FRAMES: u64 = 192;

/// How thoroughly crashes are tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// States that are tried at each point; if there are no more, all are.
    pub states: usize,
    /// States at each point for which recovery is cut short, too.
    pub second: usize,
    /// Every n-th point is tried; 1: all.
    pub stride: u64,
    /// Where the samples come from.
    pub seed: u64,
}

impl Effort {
    /// Every point, with up to 64 states, and second failures for two of them.
    pub const EXHAUSTIVE: Self = Self { states: 64, second: 2, stride: 1, seed: 1 };
    /// Every point, with a few states.
    pub const SHORT: Self = Self { states: 8, second: 1, stride: 1, seed: 1 };
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Points at which the power failed.
    pub points: u64,
    /// States that were recovered.
    pub states: u64,
    /// Recoveries that were cut short and recovered again.
    pub second: u64,
}

/// A crash that leads to a wrong state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The program.
    pub program: Vec<Op>,
    /// The step in which the power failed.
    pub step: usize,
    /// In front of which fence of the program, counted from 1.
    pub fence: u64,
    /// Stores that had become durable, of each line that was not.
    pub durable: Vec<usize>,
    /// In front of which fence of the recovery the power failed again.
    pub second: Option<u64>,
    /// What was wrong.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.program.is_empty() {
            writeln!(f, "the power fails before the first step")?;
        }
        for (i, op) in self.program.iter().enumerate() {
            if i == self.step {
                writeln!(
                    f,
                    "{op}    <- the power fails in here, in front of fence {}",
                    self.fence
                )?;
            } else if i < self.step {
                writeln!(f, "{op}")?;
            }
        }
        let lines: Vec<String> = self.durable.iter().map(usize::to_string).collect();
        writeln!(f, "stores durable, by line that was not: {}", lines.join(" "))?;
        if let Some(fence) = self.second {
            writeln!(f, "the power fails again in front of fence {fence} of the recovery")?;
        }
        write!(f, "then: {}", self.message)
    }
}

/// Makes a scheme, for each life anew.
pub type MakeScheme<'a> = &'a dyn Fn() -> Box<dyn Scheme>;

/// Runs a program until it ends or the power fails; returns the step reached.
fn run(
    program: &[Op],
    make: MakeScheme,
    fault: Option<Fault>,
    fail_at: Option<u64>,
) -> (System, Model, usize, Persist) {
    let pmem = Pmem::used().with_faults(fault);
    let mut system = System::new(pmem, FRAMES, make()).expect("the power is not to fail yet");
    let mut model = Model::default();
    system.nvm.pmem.fail_at(fail_at);
    for (i, op) in program.iter().enumerate() {
        if let Err(failure) = step(&mut system, &mut model, *op) {
            return (system, model, i, Err(failure));
        }
    }
    (system, model, program.len().saturating_sub(1), Ok(()))
}

/// Recovers a memory and compares it; `Ok(None)` if the power failed again.
fn recover(
    pmem: Pmem,
    model: &Model,
    make: MakeScheme,
    fail_at: Option<u64>,
) -> Result<Option<Pmem>, String> {
    let mut pmem = pmem;
    pmem.fail_at(fail_at);
    let mut system = match System::recover(pmem, FRAMES, make()) {
        Ok(system) => system,
        Err(Unrecoverable::PowerFailure(unfinished)) => return Ok(Some(unfinished.0)),
        Err(Unrecoverable::NotFormatted) => return Err("the memory is not formatted".into()),
        Err(Unrecoverable::Context) => {
            return Err("the context of the last complete checkpoint is damaged".into());
        }
    };
    system.nvm.pmem.fail_at(None);
    model.check(&mut system)?;
    resume(&mut system, make).map_err(|message| {
        let steps: Vec<String> = RESUME.iter().map(Op::to_string).collect();
        format!(
            "recovered; it goes on with {}, and the power fails after that; then: {message}",
            steps.join(", ")
        )
    })?;
    Ok(None)
}

/// What a recovered process does.
const RESUME: [Op; 5] =
    [Op::Map(40, 3), Op::Store(40, 1), Op::Store(41, 2), Op::Checkpoint, Op::Store(42, 3)];

/// The recovered process goes on: it maps, stores, makes a checkpoint, loses
/// power once more, and must be found as it was.
fn resume(system: &mut System, make: MakeScheme) -> Result<(), String> {
    let mut model = Model::resumed(system);
    let program =
        [Op::Map(40, 3), Op::Store(40, 1), Op::Store(41, 2), Op::Checkpoint, Op::Store(42, 3)];
    for op in program {
        step(system, &mut model, op).map_err(|_| "the power failed".to_owned())?;
    }
    system.audit()?;
    let nothing = vec![0; system.nvm.pmem.choices().len()];
    let pmem = system.nvm.pmem.after_failure(&nothing);
    let mut again = System::recover(pmem, FRAMES, make()).map_err(|e| format!("{e:?}"))?;
    model.check(&mut again)
}

/// Crashes a program everywhere.
pub fn explore(
    program: &[Op],
    make: MakeScheme,
    fault: Option<Fault>,
    effort: Effort,
) -> (Tried, Option<Finding>) {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(effort.seed);
    let mut tried = Tried::default();
    let mut fence = 1 + if effort.stride > 1 { random.next_u64() % effort.stride } else { 0 };
    loop {
        let (system, model, step, outcome) = run(program, make, fault, Some(fence));
        tried.points += 1;
        let pmem = &system.nvm.pmem;
        for (i, durable) in pmem.failures(effort.states, &mut random).into_iter().enumerate() {
            tried.states += 1;
            let found = |second, message| {
                let program = program.to_vec();
                Some(Finding { program, step, fence, durable: durable.clone(), second, message })
            };
            if let Err(message) = recover(pmem.after_failure(&durable), &model, make, None) {
                return (tried, found(None, message));
            }
            if i >= effort.second {
                continue;
            }
            for cut in 1.. {
                match recover(pmem.after_failure(&durable), &model, make, Some(cut)) {
                    Err(message) => return (tried, found(Some(cut), message)),
                    Ok(None) => break,
                    Ok(Some(cut_short)) => {
                        for state in cut_short.failures(4, &mut random) {
                            tried.second += 1;
                            let again = cut_short.after_failure(&state);
                            if let Err(message) = recover(again, &model, make, None) {
                                return (tried, found(Some(cut), message));
                            }
                        }
                    }
                }
            }
        }
        if outcome.is_ok() {
            return (tried, None);
        }
        fence += effort.stride;
    }
}

/// The shortest program, by leaving out steps, in which a crash is still found.
pub fn minimise(
    finding: Finding,
    make: MakeScheme,
    fault: Option<Fault>,
    effort: Effort,
) -> Finding {
    let mut best = finding;
    best.program.truncate(best.step + 1);
    loop {
        let before = best.program.len();
        // From the end, where leaving out shortens what has to be tried most.
        let mut place = before;
        while place > 0 {
            place = (place - 1).min(best.program.len() - 1);
            let mut program = best.program.clone();
            program.remove(place);
            if let (_, Some(mut found)) = explore(&program, make, fault, effort) {
                found.program.truncate(found.step + 1);
                best = found;
                if best.program.is_empty() {
                    return best;
                }
            }
        }
        if best.program.len() == before {
            return best;
        }
    }
}

/// A random program; it begins with a map, for without one nothing happens.
pub fn random_program(steps: usize, seed: u64) -> Vec<Op> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let rest = (1..steps).map(|i| Op::random(&mut random, i as u64));
    std::iter::once(Op::Map(0, 4)).chain(rest).collect()
}
