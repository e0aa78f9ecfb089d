//! Decisions and regions as JSON documents have them: sizes as plain numbers, and lists without
//! the empty places that records have.

use serde::{Serialize, Serializer};
use terrace_core::{
    Action, Bytes, Heat, Nanos, OpId, PerSecond, Reason, RegionId, TierId, Urgency,
};
use terrace_economics::{Alternative, Decision, Interval, Term, Verdict};

use crate::records::RegionRecord;

/// A [`Decision`].
#[derive(Serialize)]
struct DecisionDocument {
    op: OpId,
    at: Nanos,
    action: Action,
    page_size: Bytes,
    reason: Reason,
    urgency: Urgency,
    heat: Heat,
    victim_heat: Heat,
    terms: Vec<Term>,
    cost: Interval,
    benefit: Interval,
    hurdle: f64,
    flip: Option<PerSecond>,
    verdict: Verdict,
    passes: bool,
    alternatives: Vec<Choice>,
}

/// What could have been done instead, with its price.
#[derive(Serialize)]
#[serde(untagged)]
enum Choice {
    Without(Without),
    Priced(Alternative),
}

/// What is there without the action. All prices are against it, so that it has none.
#[derive(Serialize)]
struct Without {
    instead: Left,
    benefit: [f32; 3],
    cost: [f32; 3],
}

/// What that is called.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Left {
    Nothing,
    /// What is placed has to be somewhere.
    To(TierId),
}

impl Left {
    fn by(action: &Action) -> Self {
        match *action {
            Action::Place { instead, .. } => Self::To(instead),
            _ => Self::Nothing,
        }
    }
}

impl From<&Decision> for DecisionDocument {
    fn from(decision: &Decision) -> Self {
        // Nothing else could be done about what had to be done; and where nothing is priced,
        // nothing is compared.
        let is_compared = decision.is_priced() && decision.verdict != Verdict::Forced;
        let without = is_compared.then(|| {
            let (benefit, cost) = ([0.0; 3], [0.0; 3]);
            Choice::Without(Without { instead: Left::by(&decision.action), benefit, cost })
        });
        let priced = decision.alternatives.into_iter().flatten().map(Choice::Priced);
        Self {
            op: decision.op,
            at: decision.at,
            action: decision.action,
            page_size: decision.page_size.bytes(),
            reason: decision.reason,
            urgency: decision.urgency,
            heat: decision.heat,
            victim_heat: decision.victim_heat,
            terms: decision.terms.into_iter().flatten().collect(),
            cost: decision.cost,
            benefit: decision.benefit,
            hurdle: decision.hurdle,
            flip: decision.flip,
            verdict: decision.verdict,
            passes: decision.passes,
            alternatives: without.into_iter().chain(priced).collect(),
        }
    }
}

/// Writes a decision.
pub(super) fn decision<S: Serializer>(decision: &Decision, to: S) -> Result<S::Ok, S::Error> {
    DecisionDocument::from(decision).serialize(to)
}

/// A [`RegionRecord`].
#[derive(Serialize)]
pub(super) struct RegionDocument {
    process: u32,
    region: RegionId,
    start: u64,
    pages: u32,
    page_size: Bytes,
}

impl From<RegionRecord> for RegionDocument {
    fn from(record: RegionRecord) -> Self {
        let RegionRecord { process, region, start, pages, page_size } = record;
        Self { process, region, start, pages, page_size: page_size.bytes() }
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::{PageNo, PageRange, PageSize, Proposal, Telemetry};
    use terrace_economics::{Economist, Mode};

    use super::*;

    /// The document of a decision about pages that are filled ahead.
    fn document(mode: Mode, urgency: Urgency) -> serde_json::Value {
        let range = PageRange { region: RegionId(1), start: PageNo(0), count: 512 };
        let proposal = Proposal {
            op: OpId(1),
            action: Action::Populate { range, touched: 512, unsure: 0 },
            page_size: PageSize::Huge,
            heat: Heat::default(),
            victim_heat: Heat::default(),
            urgency,
            reason: Reason::Profiled,
        };
        let mut economist = Economist::new(mode, terrace_live::activate::calibrate());
        let decided = economist.decide(&proposal, &Telemetry::default());
        serde_json::to_value(DecisionDocument::from(&decided)).expect("JSON")
    }

    #[test]
    fn nothing_is_among_the_alternatives_and_no_list_has_empty_places() {
        let shown = document(Mode::Shadow, Urgency::Voluntary);
        assert_eq!(shown["page_size"], 2 << 20, "{shown}");
        assert_eq!(shown["alternatives"][0]["instead"], "nothing", "{shown}");
        assert_eq!(shown["alternatives"][0]["cost"], serde_json::json!([0.0, 0.0, 0.0]));
        let terms = shown["terms"].as_array().expect("a list");
        assert!(!terms.is_empty(), "{shown}");
        for list in ["terms", "alternatives"] {
            let list = shown[list].as_array().expect("a list");
            assert!(list.iter().all(serde_json::Value::is_object), "{shown}");
        }
        let unpriced = document(Mode::Off, Urgency::Voluntary);
        assert_eq!(unpriced["alternatives"], serde_json::json!([]), "nothing is compared");
        let forced = document(Mode::Shadow, Urgency::Forced);
        assert_eq!(forced["alternatives"], serde_json::json!([]), "it had to be done");
    }
}
