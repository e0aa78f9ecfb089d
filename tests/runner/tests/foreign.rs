//! Others' test suites as a test: `cargo test -p terrace-tests --test foreign -- mmap`.

use std::process::ExitCode;

use terrace_tests::foreign;
use terrace_tests::harness::{self, Filter};

fn main() -> ExitCode {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    match foreign::cases() {
        Ok(cases) => harness::run(cases, &Filter::from_arguments(), jobs),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
