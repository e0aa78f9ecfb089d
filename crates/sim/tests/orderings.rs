//! The papers' orderings in their short form; `make validate-orderings` has the
//! whole one.

use terrace_sim::reproduce::{Length, orderings};

/// If one turned round, a policy or a simulator has changed its nature.
#[test]
fn policies_beat_each_other_as_their_papers_say() {
    let claims = orderings(Length::Short, &mut |_| ()).expect("valid");

    assert_eq!(claims.len(), 5);
    for claim in &claims {
        println!("{claim}");
    }
    let differs: Vec<_> = claims.iter().filter(|claim| !claim.holds).collect();
    assert!(differs.is_empty(), "{differs:#?}");
}
