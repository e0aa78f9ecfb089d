//! The items of a price.

use serde::{Deserialize, Serialize};

use crate::interval::Interval;

/// The most terms a decision has.
pub const MAX_TERMS: usize = 10;

/// What a term is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TermKind {
    /// Loads that will be served by a faster tier.
    SavedLoads,
    /// Stores that will be served by a faster tier.
    SavedStores,
    /// A fault that the page will not take, because it is already there.
    AvoidedFault,
    /// The memory that is given back, at its price.
    FreedMemory,
    /// System calls, write-protection and remapping.
    Fixed,
    /// Filling a page with zeros.
    Zero,
    /// Copying the bytes between addressable tiers.
    Copy,
    /// Bringing the page in from a tier that is not addressable.
    Fetch,
    /// Putting the page into a tier that is not addressable.
    Store,
    /// Translations that have to be invalidated on all processors.
    Shootdown,
    /// Program threads that touch the page while it is on its way.
    Stall,
    /// What the program waits in one go beyond what it should ever wait: a tail costs more than
    /// its time, since whoever waits for many waits for the slowest.
    Tail,
    /// Accesses of the program that wait behind the copied bytes.
    Interference,
    /// The place that the page takes from another one.
    Room,
    /// Moving in the page for which this one makes room.
    Successor,
    /// Loads that will be served by a slower tier.
    SlowerLoads,
    /// Stores that will be served by a slower tier.
    SlowerStores,
    /// Bringing the page back if it is touched again.
    Refault,
    /// Page walks that a larger page saves.
    SavedWalks,
    /// Page walks that smaller pages cost.
    MoreWalks,
    /// What is learnt about pages, as far as it changes where they lie.
    Knowledge,
    /// Accesses that wait less, since fewer bytes of ours are in their way.
    AvoidedInterference,
    /// Moves that are not made, or later.
    ForgoneMoves,
}

impl TermKind {
    /// Whether it speaks for the action.
    pub const fn is_benefit(self) -> bool {
        matches!(
            self,
            Self::SavedLoads
                | Self::SavedStores
                | Self::AvoidedFault
                | Self::FreedMemory
                | Self::SavedWalks
                | Self::Knowledge
                | Self::AvoidedInterference
        )
    }

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SavedLoads => "saved loads",
            Self::SavedStores => "saved stores",
            Self::AvoidedFault => "avoided fault",
            Self::FreedMemory => "freed memory",
            Self::Fixed => "remapping",
            Self::Zero => "zeroing",
            Self::Copy => "copy",
            Self::Fetch => "fetch",
            Self::Store => "store",
            Self::Shootdown => "TLB shootdown",
            Self::Stall => "stalled accesses",
            Self::Tail => "tail",
            Self::Interference => "bandwidth taken",
            Self::Room => "room taken",
            Self::Successor => "successor's move",
            Self::SlowerLoads => "slower loads",
            Self::SlowerStores => "slower stores",
            Self::Refault => "refault",
            Self::SavedWalks => "saved page walks",
            Self::MoreWalks => "more page walks",
            Self::Knowledge => "knowledge",
            Self::AvoidedInterference => "bandwidth spared",
            Self::ForgoneMoves => "forgone moves",
        }
    }
}

/// One line of a decision's ledger. Stored in single precision, since six
/// digits of a price are more than anybody can know and decisions are kept by
/// the thousand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// What it is for.
    pub kind: TermKind,
    low: f32,
    expected: f32,
    high: f32,
}

impl Term {
    /// A line of a ledger, in cycles. Costs and benefits are both positive.
    pub fn new(kind: TermKind, cycles: Interval) -> Self {
        Self {
            kind,
            low: cycles.low as f32,
            expected: cycles.expected as f32,
            high: cycles.high as f32,
        }
    }

    /// The amount in cycles; costs and benefits are both positive.
    pub fn cycles(&self) -> Interval {
        Interval::new(f64::from(self.low), f64::from(self.expected), f64::from(self.high))
    }
}

/// An itemised price under construction: what a model returns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ledger {
    terms: [Option<Term>; MAX_TERMS],
    count: usize,
    /// All costs together, in cycles.
    pub cost: Interval,
    /// All benefits together, in cycles.
    pub benefit: Interval,
    /// The part of the expected cost that is processor time of the mechanism
    /// itself, at full price and as the calibration has it: what a world will
    /// report as the cost paid. In cycles.
    pub processor: f64,
    /// How long a page is on its way, in seconds.
    pub duration: f64,
    /// What the page's own accesses are expected to gain by the action, in cycles.
    pub gain: f64,
    /// What the accesses to the page that goes down are expected to lose, in cycles.
    pub harm: f64,
}

impl Ledger {
    /// Enters a term; one that is zero for certain is left out.
    ///
    /// # Panics
    /// If a model has more than [`MAX_TERMS`] terms, which is a bug of the model.
    pub(crate) fn enter(&mut self, kind: TermKind, cycles: Interval) {
        if cycles == Interval::ZERO {
            return;
        }
        assert!(self.count < MAX_TERMS, "a ledger has at most {MAX_TERMS} terms");
        self.terms[self.count] = Some(Term::new(kind, cycles));
        self.count += 1;
        if kind.is_benefit() {
            self.benefit += cycles;
            if kind != TermKind::FreedMemory {
                self.gain += cycles.expected;
            }
        } else {
            self.cost += cycles;
        }
        if matches!(kind, TermKind::SlowerLoads | TermKind::SlowerStores | TermKind::Refault) {
            self.harm += cycles.expected;
        }
    }

    /// The price of so many such actions together, each on its own page, one after the other.
    #[must_use]
    pub(crate) fn times(mut self, count: f64) -> Self {
        for term in self.terms.iter_mut().flatten() {
            *term = Term::new(term.kind, term.cycles().scale(count));
        }
        self.cost = self.cost.scale(count);
        self.benefit = self.benefit.scale(count);
        self.processor *= count;
        self.gain *= count;
        self.harm *= count;
        // How long one page is on its way stays what it is.
        self
    }

    /// The items; `None` past the last.
    pub fn terms(&self) -> &[Option<Term>; MAX_TERMS] {
        &self.terms
    }

    /// By how many cycles the action surely pays: the least benefit less the
    /// expected cost times `hurdle`. It is taken if this is above zero.
    pub fn margin(&self, hurdle: f64) -> f64 {
        self.benefit.low - hurdle * self.cost.expected
    }
}
