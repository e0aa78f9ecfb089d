//! What papers say of HeMem's figure and of one policy against another, judged by
//! the criteria of `reproduce hemem` and of the orderings' page.

use super::{Criterion, Known, Line, Model, Reference};
use crate::error::SimError;
use crate::reproduce::hemem::STOPS;
use crate::reproduce::orderings::TPP_OVER_BALANCING;
use crate::reproduce::{Bound, Claim, HememConfig, Length, hemem, orderings as claims_of_papers};

/// HeMem at 512 GiB, in MiB/s.
const MIGRATES_ON: Known = Known {
    ours: 352.0,
    within: 0.25,
    cause: "threads whose memory lies in DRAM end first; then their pages turn cold, and HeMem \
            promotes those of the threads that still run (docs/reproduce-hemem.md); the paper \
            does not say when it looked",
};

/// TPP over NUMA balancing.
const LARGER_MARGIN: Known = Known {
    ours: 1.54,
    within: 0.05,
    cause: "the program does nothing but wait for memory, and four fifths of what it uses begins \
            in the slow tier; services compute, and only a part of theirs does \
            (docs/policies/orderings.md)",
};

/// HeMem's figure.
pub fn of_hemem(config: &HememConfig) -> Result<Vec<Line>, SimError> {
    let table = hemem(config, &|_| ())?;
    Ok(table.claims.iter().map(|claim| judged(claim, "HeMem: ", "HeMem, SOSP 2021")).collect())
}

/// Orderings.
pub fn orderings(length: Length) -> Result<Vec<Line>, SimError> {
    let claims = claims_of_papers(length, &mut |_| ())?;
    let mut lines: Vec<Line> =
        claims.iter().map(|claim| judged(claim, "", "docs/policies/orderings.md")).collect();
    // The order is the paper's; by how much is not. The short form is another situation.
    let tpp = claims.iter().find(|claim| claim.paper == TPP_OVER_BALANCING);
    if let (Some(tpp), Length::Whole) = (tpp, length) {
        lines.push(Line {
            what: "TPP over NUMA balancing: by how much (published: 1.05 to 1.17)".to_owned(),
            unit: "",
            ours: tpp.value,
            reference: 1.17,
            criterion: Criterion::Differs(LARGER_MARGIN),
            kind: Reference::Hardware,
            model: Model::Policies,
            arithmetic: false,
            source: "TPP, ASPLOS 2023".to_owned(),
        });
    }
    Ok(lines)
}

fn judged(claim: &Claim, whose: &str, source: &str) -> Line {
    let (reference, criterion) = match claim.bound {
        Bound::AtLeast(least) => (least, Criterion::AtLeast),
        Bound::Below(most) => (most, Criterion::AtMost),
        Bound::Between(least, most) => {
            (f64::midpoint(least, most), Criterion::Between(least, most))
        }
    };
    let migrates_on = claim.paper == STOPS && !claim.holds;
    Line {
        what: format!("{whose}{} ({})", claim.paper, claim.criterion),
        unit: "",
        ours: claim.value,
        reference,
        criterion: if migrates_on { Criterion::Differs(MIGRATES_ON) } else { criterion },
        kind: Reference::Hardware,
        model: Model::Policies,
        arithmetic: false,
        source: format!("{source}; measured: {}", claim.measured),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analytic::migration::MigrationConfig;
    use crate::reproduce::orderings::tpp_over_numa_balancing;
    use crate::validation::State;
    use terrace_core::BytesPerSecond;

    /// If it did, the part would say nothing of policies at all. (`tests/orderings.rs`
    /// has the same with an engine that works.)
    #[test]
    fn an_engine_that_moves_nothing_bears_no_paper_out() {
        let still = MigrationConfig { limit: BytesPerSecond(1.0), ..MigrationConfig::hemem() };
        let claims = tpp_over_numa_balancing(still, Length::Short, &mut |_| ()).expect("valid");
        let states: Vec<State> = claims.iter().map(|claim| judged(claim, "", "").state()).collect();
        assert!(states.contains(&State::Fails), "{claims:#?}");
    }

    #[test]
    fn a_claim_that_does_not_hold_fails_unless_the_difference_is_known() {
        let claim = |paper, value: f64| {
            Claim::new(paper, "below 100", Bound::Below(100.0), value, String::new())
        };
        let state = |claim| judged(&claim, "", "").state();
        assert_eq!(state(claim("another", 350.0)), State::Fails);
        assert_eq!(state(claim(STOPS, 350.0)), State::Differs);
        assert_eq!(state(claim(STOPS, 3500.0)), State::Fails);
        assert_eq!(state(claim(STOPS, 50.0)), State::Holds);
    }
}
