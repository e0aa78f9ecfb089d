//! The soak as a test: `SOAK_SECONDS=60 cargo test -p terrace-tests --test soak`.

use std::process::ExitCode;

use terrace_tests::harness::{self, Case, Filter, Verdict};
use terrace_tests::soak;

fn main() -> ExitCode {
    let run = || match soak::run() {
        Ok(soaked) if soaked.changes == 0 => Verdict::Failed("no budget was changed".to_owned()),
        Ok(soaked) if soaked.demotions == 0 => Verdict::Failed("no page left DRAM".to_owned()),
        Ok(_) => Verdict::Passed,
        Err(why) => Verdict::Failed(why),
    };
    let case = Case { name: "soak".to_owned(), run: Box::new(run) };
    harness::run(vec![case], &Filter::from_arguments(), 1)
}
