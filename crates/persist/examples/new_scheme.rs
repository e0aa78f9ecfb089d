//! A new persistence scheme, start to finish: the whole mapping is written at
//! each checkpoint, into one of two areas that take turns.
//!
//! `docs/persistence.md` walks through this file.
//! `cargo run -p terrace-persist --example new_scheme`

use std::collections::BTreeMap;
use std::process::ExitCode;

use terrace_persist::nvm::layout;
use terrace_persist::{Effort, Frame, Nvm, Op, Persist, Scheme, explore};

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

/// Crashes the scheme everywhere.
pub(crate) fn main() -> ExitCode {
    let program = [
        Op::Map(0, 2),
        Op::Store(0, 1),
        Op::Checkpoint,
        Op::Unmap(0, 1),
        Op::Map(0, 1),
        Op::Store(0, 2),
        Op::Checkpoint,
        Op::Store(1, 3),
    ];
    let make = || Box::new(TwoCopies::default()) as Box<dyn Scheme>;
    let (tried, finding) = explore(&program, &make, None, Effort::EXHAUSTIVE);
    println!("{} points, {} states, {} second failures", tried.points, tried.states, tried.second);
    match finding {
        None => {
            println!("the process was recovered from each");
            ExitCode::SUCCESS
        }
        Some(finding) => {
            println!("{finding}");
            ExitCode::FAILURE
        }
    }
}
