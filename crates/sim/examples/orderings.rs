//! Which policy beats which, beside what papers say: `make validate-orderings`.

use terrace_sim::reproduce::{Length, orderings};

fn main() -> Result<(), terrace_sim::SimError> {
    let claims = orderings(Length::Whole, &mut |policy| eprintln!("simulating {policy}"))?;
    for claim in &claims {
        println!("{claim}\n");
    }
    std::process::exit(i32::from(!claims.iter().all(|claim| claim.holds)));
}
