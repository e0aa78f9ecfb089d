//! Prices every memory-management action in cycles.
//!
//! Scaffold of the interface; the models follow.

use terrace_core::{
    Action, ActionClass, Cycles, Done, Frequency, Heat, Machine, Nanos, OpId, PageRange, PageSize,
    PerSecond, Proposal, Reason, Sample, Telemetry, Urgency,
};
use serde::{Deserialize, Serialize};

/// What the economist does with its opinion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Nothing is priced.
    Off,
    /// Prices and records, lets everything pass.
    Shadow,
    /// Refuses voluntary actions that do not pay.
    #[default]
    Enforce,
}

/// A quantity that is not known exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// At least.
    pub low: f64,
    /// The best single guess.
    pub expected: f64,
    /// At most.
    pub high: f64,
}

/// One line of a decision's ledger.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// What it is for.
    pub kind: TermKind,
    /// Cycles; costs and benefits are both positive.
    pub cycles: Interval,
}

/// What a term is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TermKind {
    /// Copying the page's bytes.
    Copy,
}

/// The most terms a decision has.
pub const MAX_TERMS: usize = 10;

/// What the economist decided about a proposal, and why.
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
    /// The items; `None` past the last.
    pub terms: [Option<Term>; MAX_TERMS],
    /// All costs together, in cycles.
    pub cost: Interval,
    /// All benefits together, in cycles.
    pub benefit: Interval,
    /// The access rate of the page at which the decision would turn.
    pub flip: Option<PerSecond>,
    /// Whether it may be carried out.
    pub passes: bool,
}

/// Measured or assumed costs of the mechanisms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The clock that turns time into cycles.
    pub clock: Frequency,
}

impl Calibration {
    /// What a machine file says.
    pub fn from_machine(machine: &Machine) -> Self {
        Self { clock: machine.cpu.clock.value }
    }
}

/// What one class of action was predicted to cost and bring, and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// Proposals seen.
    pub proposed: u64,
    /// Refused.
    pub vetoed: u64,
    /// Carried out.
    pub completed: u64,
    /// Let pass but not carried out.
    pub aborted: u64,
    /// Predicted cost of what was carried out.
    pub predicted_cost: Cycles,
    /// What it cost.
    pub realised_cost: Cycles,
    /// Predicted benefit of what was carried out.
    pub predicted_benefit: Cycles,
    /// Benefit as far as it was observed afterwards.
    pub realised_benefit: Cycles,
}

/// Prices actions and keeps the accounts.
pub struct Economist {
    mode: Mode,
    calibration: Calibration,
    accounts: [Account; 4],
}

impl Economist {
    /// An economist with its prices.
    pub fn new(mode: Mode, calibration: Calibration) -> Self {
        Self { mode, calibration, accounts: Default::default() }
    }
    /// What it does with its opinion.
    pub fn mode(&self) -> Mode {
        self.mode
    }
    /// Its prices.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }
    /// Prices a proposal and says whether it passes. Does not allocate.
    pub fn decide(&mut self, proposal: &Proposal, telemetry: &Telemetry) -> Decision {
        Decision {
            op: proposal.op,
            at: telemetry.now,
            action: proposal.action,
            page_size: proposal.page_size,
            reason: proposal.reason,
            urgency: proposal.urgency,
            heat: proposal.heat,
            terms: [None; MAX_TERMS],
            cost: Interval::default(),
            benefit: Interval::default(),
            flip: None,
            passes: true,
        }
    }
    /// Accesses were observed: refines what carried-out actions brought.
    pub fn observe(&mut self, _samples: &[Sample]) {}
    /// Pages were given back: what was being observed about them ends.
    pub fn forget(&mut self, _range: PageRange) {}
    /// An action came to its end.
    pub fn settle(&mut self, _done: &Done, _telemetry: &Telemetry) {}
    /// The account of a class of action.
    pub fn account(&self, class: ActionClass) -> &Account {
        &self.accounts[class.index()]
    }
}
