//! The model of demoting a file's or a socket's pages together.
//!
//! They are priced as one: each as a page of the context's mean heat, and what moving them takes
//! as one movement of all their bytes, with the fixed part of a demotion for each page (a page is
//! unmapped and entered anew by itself). So there is one ledger, one line for each item, and one
//! verdict for all.

use terrace_core::{Heat, PageSize, PerSecond, TierId};

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
    let count = f64::from(pages.max(1));
    let mean = Heat {
        loads: PerSecond(heat.loads.get() / count),
        stores: PerSecond(heat.stores.get() / count),
        ..*heat
    };
    demote::price(&mean, page, route, conditions).times(count)
}
