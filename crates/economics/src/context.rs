//! The model of demoting a file's or a socket's pages together.
//!
//! They are priced as one: each as a page of the context's mean heat, and what moving them takes
//! as one movement of all their bytes, with the fixed part of a demotion for each page (a page is
//! unmapped and entered anew by itself). So there is one ledger, one line for each item, and one
//! verdict for all.

use terrace_core::{
    Action, Heat, PageNo, PageRef, PageSize, PerSecond, Proposal, RegionId, TierId,
};

use crate::conditions::Conditions;
use crate::demote;
use crate::ledger::Ledger;

/// Prices the demotion of so many pages of one context. `heat` is that of all of them together.
/// Pure.
pub(crate) fn price(
    heat: &Heat,
    page: PageSize,
    pages: u32,
    route: (TierId, TierId),
    conditions: &Conditions<'_>,
) -> Ledger {
    demote::price(&mean(heat, pages), page, route, conditions).times(count(pages))
}

fn count(pages: u32) -> f64 {
    f64::from(pages.max(1))
}

/// The heat of one of so many pages.
fn mean(heat: &Heat, pages: u32) -> Heat {
    Heat {
        loads: PerSecond(heat.loads.get() / count(pages)),
        stores: PerSecond(heat.stores.get() / count(pages)),
        ..*heat
    }
}

/// The proposal for one page of mean heat, and of how many it is the mean; nothing for other
/// actions.
pub(crate) fn one_of(proposal: &Proposal) -> Option<(Proposal, f64)> {
    let Action::DemoteContext { pages, from, to, .. } = proposal.action else { return None };
    let page = PageRef { region: RegionId(0), page: PageNo(0) };
    let action = Action::Demote { page, from, to };
    Some((Proposal { action, heat: mean(&proposal.heat, pages), ..*proposal }, count(pages)))
}
