//! What the economist decided about a proposal, and why.

use serde::{Deserialize, Serialize};
use terrace_core::{Action, Heat, Nanos, OpId, PageSize, PerSecond, Proposal, Reason, Urgency};

use crate::alternative::{Alternative, MAX_ALTERNATIVES};
use crate::interval::Interval;
use crate::ledger::{Ledger, MAX_TERMS, Term};
use crate::mode::Verdict;
use crate::model;

/// What the economist decided about a proposal, and why. Holds everything that
/// its explanation needs, and no memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The proposal's number.
    pub op: OpId,
    /// When.
    pub at: Nanos,
    /// What was proposed.
    pub action: Action,
    /// The page's size.
    pub page_size: PageSize,
    /// The policy's reason.
    pub reason: Reason,
    /// Whether it could be refused.
    pub urgency: Urgency,
    /// The policy's evidence.
    pub heat: Heat,
    /// The policy's evidence about the page that an exchange demotes.
    pub victim_heat: Heat,
    /// The items; `None` past the last.
    pub terms: [Option<Term>; MAX_TERMS],
    /// All costs together, in cycles.
    pub cost: Interval,
    /// All benefits together, in cycles.
    pub benefit: Interval,
    /// The least benefit that was asked for a cycle of cost.
    pub hurdle: f64,
    /// The access rate of the page (of an exchange: the promoted one) at which
    /// the decision would turn; `None` if no rate turns it, as where it was forced.
    pub flip: Option<PerSecond>,
    /// What it came to.
    pub verdict: Verdict,
    /// Whether it may be carried out.
    pub passes: bool,
    /// What else could have been done, best first; `None` past the last. That nothing is done is
    /// none of them: an action's price is against that. Of what had to be done there are none. The
    /// last field: recordings of before 29 November 2026 end without it.
    #[serde(default)]
    pub alternatives: [Option<Alternative>; MAX_ALTERNATIVES],
}

impl Decision {
    /// A decision without a price.
    pub(crate) fn unpriced(proposal: &Proposal, at: Nanos, verdict: Verdict) -> Self {
        let price = Interval::ZERO;
        Self {
            op: proposal.op,
            at,
            action: proposal.action,
            page_size: proposal.page_size,
            reason: proposal.reason,
            urgency: proposal.urgency,
            heat: proposal.heat,
            victim_heat: proposal.victim_heat,
            terms: [None; MAX_TERMS],
            cost: price,
            benefit: price,
            hurdle: 1.0,
            flip: None,
            verdict,
            passes: verdict.passes(),
            alternatives: [None; MAX_ALTERNATIVES],
        }
    }

    /// A decision on a price.
    pub(crate) fn priced(
        proposal: &Proposal,
        at: Nanos,
        ledger: &Ledger,
        hurdle: f64,
        flip: Option<PerSecond>,
        verdict: Verdict,
    ) -> Self {
        Self {
            terms: *ledger.terms(),
            cost: ledger.cost,
            benefit: ledger.benefit,
            hurdle,
            flip,
            ..Self::unpriced(proposal, at, verdict)
        }
    }

    /// By how many cycles the action pays: the benefit that counts less the expected cost times
    /// the hurdle.
    pub fn margin(&self) -> f64 {
        self.counted() - self.hurdle * self.cost.expected
    }

    /// The benefit that counts: the least one, or the expected one of what is done to learn.
    pub fn counted(&self) -> f64 {
        if model::counts_expected(&self.action) { self.benefit.expected } else { self.benefit.low }
    }

    /// Whether it pays.
    pub fn pays(&self) -> bool {
        model::pays(&self.action, self.benefit, self.cost, self.hurdle)
    }

    /// Whether it was priced at all.
    pub const fn is_priced(&self) -> bool {
        !matches!(self.verdict, Verdict::Off)
    }
}
