//! The model of a huge page at the first touch of memory, or ahead of it, by a profile.
//!
//! It saves what a profile of an earlier run says of its page walks, as far as they come about
//! in the time that is left, and the faults on its base pages. It costs what a huge page of zeros
//! does that backs memory ahead of a walk ([`crate::prezero`]); where the program waits for it,
//! that time in full, and the more so beyond what it should ever wait.

use terrace_core::{Cycles, Nanos, PageSize};

use crate::conditions::Conditions;
use crate::interval::Interval;
use crate::ledger::{Ledger, TermKind};
use crate::prezero;

/// What a profile says of a huge page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    /// Base pages that will be touched.
    pub(crate) touched: u16,
    /// By how many more or fewer.
    pub(crate) unsure: u16,
    /// Cycles of page walks that it averts: at least, expected, at most.
    pub(crate) averted: [Cycles; 3],
    /// The time in which they come about.
    pub(crate) within: Nanos,
    /// What of it is still to come.
    pub(crate) left: Nanos,
    /// What the program waits for the page.
    pub(crate) waits: Cycles,
}

/// Prices one page. Pure.
pub(crate) fn price(evidence: &Evidence, page: PageSize, conditions: &Conditions<'_>) -> Ledger {
    let mut ledger = Ledger::default();
    let within = evidence.within.as_secs();
    // What the profile says is of the time after the page's first touch, so it all comes about
    // unless the run is at its end. A run that has outlived its profile's goes on for a horizon, as
    // far as anybody knows. A benefit without a time would be none.
    let time = conditions.horizon().max(evidence.left.as_secs());
    let part = if within > 0.0 { (time / within).min(1.0) } else { 0.0 };
    // What is not touched averts no walks: there, too, the profile is as good as it was elsewhere.
    let true_of = conditions.touched();
    let part = part * true_of.min(1.0);
    let [least, averted, most] = evidence.averted.map(|cycles| cycles.as_f64() * part);
    // Walks that are under way at the same time share their time, as misses do.
    let walks = Interval::new(least, averted, most);
    ledger.enter(TermKind::SavedWalks, walks.scale(conditions.shared(1.0)));
    let share = prezero::share(evidence.touched, evidence.unsure, prezero::bases(page), true_of);
    prezero::back(&mut ledger, share, page, evidence.waits, conditions);
    ledger
}
