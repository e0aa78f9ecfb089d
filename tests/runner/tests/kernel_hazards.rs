//! Hazards of the kernel engine as a test: `OUTSIDE=short cargo test -p terrace-tests --test
//! kernel_hazards`.

use std::process::ExitCode;

use terrace_tests::harness::{self, Filter};
use terrace_tests::outside;

fn main() -> ExitCode {
    match outside::cases() {
        // One at a time: what is left is looked for on the whole machine.
        Ok(cases) => harness::run(cases, &Filter::from_arguments(), 1),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
