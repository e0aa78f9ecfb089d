//! The hazard suite as a test: `cargo test -p terrace-tests --test hazards -- fork`.

use std::process::ExitCode;

use terrace_tests::harness::{self, Filter};
use terrace_tests::hazards::{self, Options};

fn main() -> ExitCode {
    let options = Options::from_environment();
    match hazards::cases(&options) {
        Ok(cases) => harness::run(cases, &Filter::from_arguments(), options.jobs),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
