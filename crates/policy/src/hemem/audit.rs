//! Checks on `HeMem`'s own state, for tests and for worlds in debugging.

use terrace_core::{MAX_TIERS, PageRef, TierId};

use super::HeMem;
use super::page::{Class, Standing};
use super::state::State;

impl HeMem {
    /// Where the policy takes a page to lie; `None` while it lies nowhere.
    /// A world that disagrees has lost or invented an event.
    pub fn tier_of(&self, page: PageRef) -> Option<TierId> {
        let page = self.state.page(self.state.regions.slot(page)?);
        (page.standing() != Standing::Unplaced).then(|| page.tier())
    }

    /// Whether a proposal about a page is under way.
    pub fn is_under_way(&self, page: PageRef) -> bool {
        self.state
            .regions
            .slot(page)
            .is_some_and(|slot| self.state.page(slot).standing() == Standing::UnderWay)
    }

    /// Checks that every placed page is in exactly the list that its tier and
    /// counters name, or under way and in none. Visits all pages.
    pub fn audit(&self) -> Result<(), String> {
        self.state.audit()
    }
}

impl State {
    fn audit(&self) -> Result<(), String> {
        let mut listed = 0;
        for tier in (0..MAX_TIERS as u8).map(TierId) {
            for class in Class::ALL {
                for slot in self.list(tier, class) {
                    listed += 1;
                    if listed > self.len() {
                        return Err("a list has a loop".into());
                    }
                    self.audit_listed(slot, tier, class)?;
                }
            }
        }
        let expected = (0..self.len() as u32)
            .filter(|&s| matches!(self.page(s).standing(), Standing::Listed(_)));
        let expected = expected.count();
        if listed != expected {
            return Err(format!("{expected} pages should be in lists, {listed} are"));
        }
        Ok(())
    }

    fn audit_listed(&self, slot: u32, tier: TierId, class: Class) -> Result<(), String> {
        let page = self.page(slot);
        let wrong =
            |what: &str| Err(format!("slot {slot} in {class:?} of {tier:?}: {what}: {page:?}"));
        if page.tier() != tier || page.standing() != Standing::Listed(class) {
            return wrong("says it is elsewhere");
        }
        if page.class(&self.config) != class {
            return wrong("its counters say otherwise");
        }
        if self.regions.page(slot).is_none() {
            return wrong("belongs to no region");
        }
        if self.is_swept() && self.class(slot) != class {
            return wrong("a finished sweep left it behind");
        }
        Ok(())
    }
}
