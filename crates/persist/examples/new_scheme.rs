//! A new persistence scheme, start to finish: the whole mapping is written at
//! each checkpoint, into one of two areas that take turns.
//!
//! It is crashed everywhere, and then runs a program beside two other schemes.
//!
//! `docs/persistence-schemes.md` walks through this file.
//! `cargo run -p terrace-persist --example new_scheme`

use std::collections::BTreeMap;
use std::process::ExitCode;

use terrace_core::{Bytes, Nanos};
use terrace_dram::presets;
use terrace_persist::crash::random_program;
use terrace_persist::nvm::layout;
use terrace_persist::run::{RunConfig, RunReport, Survival, run};
use terrace_persist::{Effort, Frame, Nvm, Op, Persist, Scheme, SchemeKind, explore, minimise};
use terrace_sim::workload::catalog::{ProgramName, ProgramSpec};

/// The mapping in DRAM; copies of it in two areas.
#[derive(Debug, Default)]
struct TwoCopies {
    table: BTreeMap<u64, u64>,
}

/// Where the copy of a checkpoint lies: even and odd ones take turns, so that
/// writing one never touches the one that a failure leads back to.
fn copy_of(epoch: u64) -> u64 {
    layout::LIST + (epoch % 2) * (1 << 24)
}

impl Scheme for TwoCopies {
    fn name(&self) -> &'static str {
        "two-copies"
    }

    fn lookup(&mut self, _: &mut Nvm, page: u64) -> u64 {
        self.table.get(&page).copied().unwrap_or(0)
    }

    fn set(&mut self, _: &mut Nvm, page: u64, entry: u64) -> Persist {
        if entry == 0 {
            self.table.remove(&page);
        } else {
            self.table.insert(page, entry);
        }
        Ok(())
    }

    fn prepare(&mut self, nvm: &mut Nvm, epoch: u64, _: &mut dyn Iterator<Item = u64>) -> Persist {
        let copy = copy_of(epoch);
        nvm.pmem.store(copy, self.table.len() as u64);
        nvm.pmem.flush(copy);
        for (i, (page, entry)) in self.table.iter().enumerate() {
            let address = copy + 64 + i as u64 * 16;
            nvm.pmem.store(address, *page);
            nvm.pmem.store(address + 8, *entry);
            nvm.pmem.flush(address);
        }
        // Durable before the commit, which comes next.
        nvm.pmem.fence()
    }

    fn committed(&mut self, _: &mut Nvm, _: u64) -> Persist {
        Ok(())
    }

    fn recover(&mut self, nvm: &mut Nvm, epoch: u64) -> Persist {
        self.table.clear();
        if epoch == 0 {
            return Ok(());
        }
        let copy = copy_of(epoch);
        for i in 0..nvm.pmem.load(copy) {
            let address = copy + 64 + i * 16;
            let (page, entry) = (nvm.pmem.load(address), nvm.pmem.load(address + 8));
            self.table.insert(page, entry);
        }
        Ok(())
    }

    fn mappings(&mut self, _: &mut Nvm) -> (Vec<(u64, u64)>, Vec<Frame>) {
        (self.table.iter().map(|(page, entry)| (*page, *entry)).collect(), Vec::new())
    }
}

/// The scheme, for each life anew.
fn make() -> Box<dyn Scheme> {
    Box::new(TwoCopies::default())
}

/// Crashes the scheme everywhere: a program written for it, then random ones.
fn crash() -> Result<(), String> {
    let chosen = vec![
        Op::Map(0, 2),
        Op::Store(0, 1),
        Op::Checkpoint,
        Op::Unmap(0, 1),
        Op::Map(0, 1),
        Op::Store(0, 2),
        Op::Checkpoint,
        Op::Store(1, 3),
    ];
    let mut programs = vec![chosen];
    programs.extend((0..4).map(|seed| random_program(25, seed)));
    for program in &programs {
        let (tried, finding) = explore(program, &make, None, Effort::EXHAUSTIVE);
        if let Some(finding) = finding {
            let least = minimise(finding, &make, None, Effort::SHORT);
            return Err(format!("two-copies:\n{least}"));
        }
        println!(
            "{:3} points, {:5} states, {:4} second failures: recovered from each",
            tried.points, tried.states, tried.second
        );
    }
    Ok(())
}

/// Runs a program under a scheme on Kindle's memory.
fn measure(survival: Survival) -> Result<RunReport, String> {
    let memory = presets::load("kindle")?;
    let mut program = ProgramSpec::new(ProgramName::Ycsb, Bytes::mib(8), 200_000)
        .build()
        .map_err(|e| e.to_string())?;
    let mut config = RunConfig::new(survival, memory);
    (config.interval, config.skip) = (Nanos::millis(1), program.initial());
    run(&mut program, &config, &mut |_| {}).map_err(|e| e.to_string())
}

/// The same program under this scheme and under two others.
fn compare() -> Result<(), String> {
    let plain = measure(Survival::None)?;
    for survival in [
        Survival::Other("two-copies", make),
        Survival::Scheme(SchemeKind::Persistent),
        Survival::Scheme(SchemeKind::RebuildIndexed),
    ] {
        let run = measure(survival)?;
        println!(
            "{:16} {:.3} of the time without, {} checkpoints, {} lines to NVM, recovery in {}",
            run.scheme,
            run.time / plain.time,
            run.checkpoints,
            run.nvm_lines[1],
            run.recovery.ok_or("nothing survives")?,
        );
    }
    Ok(())
}

pub(crate) fn main() -> ExitCode {
    match crash().and_then(|()| compare()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
