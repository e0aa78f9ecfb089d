//! Real programs as a test: `cargo test -p terrace-tests --test programs -- redis`.

use std::process::ExitCode;
use std::sync::Mutex;

use terrace_tests::harness::{self, Filter};
use terrace_tests::programs::{self, Row};

fn main() -> ExitCode {
    static ROWS: Mutex<Vec<Row>> = Mutex::new(Vec::new());
    match programs::cases(&ROWS) {
        Ok(cases) => {
            // One at a time, unless told otherwise: their times are compared.
            let jobs = harness::number("PROGRAM_JOBS", 1);
            let code = harness::run(cases, &Filter::from_arguments(), jobs);
            let rows = ROWS.lock().expect("rows are only pushed");
            if !rows.is_empty() {
                println!("{}", programs::table(&rows));
            }
            code
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
