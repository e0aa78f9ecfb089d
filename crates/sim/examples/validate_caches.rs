//! Our miss counts beside cachegrind's, for real programs, from runs made here
//! and now. Exit code 1 if a counter is not identical, 3 where valgrind is missing.

use std::process::ExitCode;

use terrace_sim::validation::cachegrind;

fn main() -> ExitCode {
    if !cachegrind::is_possible() {
        eprintln!("valgrind is not installed: nothing was validated");
        return ExitCode::from(3);
    }
    let comparisons = match cachegrind::compare() {
        Ok(comparisons) => comparisons,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!(
        "{:10} {:12} {:>4} {:>22} {:>22} {:>22}",
        "program", "caches", "", "instructions", "loads", "stores"
    );
    for c in &comparisons {
        for (level, name) in ["L1", "LL"].into_iter().enumerate() {
            let cell = |i: usize| format!("{} / {}", c.ours[level][i], c.theirs[level][i]);
            let (a, b, d) = (cell(0), cell(1), cell(2));
            println!("{:10} {:12} {name:>4} {a:>22} {b:>22} {d:>22}", c.program, c.caches);
        }
    }
    let identical = comparisons.iter().all(|c| c.ours == c.theirs);
    println!("ours / cachegrind's; misses {}", if identical { "identical" } else { "DIFFER" });
    ExitCode::from(u8::from(!identical))
}
