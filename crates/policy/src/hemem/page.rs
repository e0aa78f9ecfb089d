//! What is remembered of one page: six bytes.

use bytemuck::Zeroable;
use terrace_core::{Access, MAX_TIERS, TierId};

use super::config::HeMemConfig;
use crate::fifo::Link;

/// What a page's counters say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Below both thresholds.
    Cold,
    /// At the threshold for loads, below that for stores.
    Hot,
    /// At the threshold for stores.
    WriteHeavy,
}

impl Class {
    pub(super) const ALL: [Self; 3] = [Self::Cold, Self::Hot, Self::WriteHeavy];
}

/// Where a page is, as far as migration is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It holds nothing and lies nowhere.
    Unplaced,
    /// It lies in a tier and is in the list of this class there.
    Listed(Class),
    /// It lies in a tier, and a proposal about it is under way: in no list.
    UnderWay,
}

/// The state of one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Zeroable)]
pub(super) struct Page {
    /// When the page was first placed, in units of the policy's tick, modulo 2^16.
    pub(super) since: u16,
    /// Sampled loads, halved at each cooling.
    pub(super) loads: u8,
    /// Sampled stores, halved at each cooling.
    pub(super) stores: u8,
    /// The last cooling that was applied, modulo 2^8.
    pub(super) cooled: u8,
    /// Bits 0 to 2: the tier. Bits 3 and up: the standing.
    flags: u8,
}

const _: () = assert!(MAX_TIERS <= 8, "a tier fits into three bits");
const _: () = assert!(size_of::<Page>() + size_of::<Link>() == 14, "the documented state per page");

impl Page {
    /// A page placed just now; its standing is set when it is listed.
    pub(super) fn placed(since: u16, clock: u8) -> Self {
        Self { since, cooled: clock, ..Self::default() }
    }

    /// The tier it lies in; meaningless while it is unplaced.
    pub(super) fn tier(self) -> TierId {
        TierId(self.flags & 7)
    }

    pub(super) fn standing(self) -> Standing {
        match self.flags >> 3 {
            0 => Standing::Unplaced,
            1 => Standing::Listed(Class::Cold),
            2 => Standing::Listed(Class::Hot),
            3 => Standing::Listed(Class::WriteHeavy),
            _ => Standing::UnderWay,
        }
    }

    pub(super) fn set(&mut self, tier: TierId, standing: Standing) {
        let standing = match standing {
            Standing::Unplaced => 0,
            Standing::Listed(class) => 1 + class as u8,
            Standing::UnderWay => 4,
        };
        self.flags = standing << 3 | tier.0;
    }

    /// Halves both counters for each cooling that has not been applied yet.
    pub(super) fn cool(&mut self, clock: u8) {
        let coolings = u32::from(clock.wrapping_sub(self.cooled));
        // A shift by the width or more is not defined; it would leave nothing.
        self.loads = self.loads.checked_shr(coolings).unwrap_or(0);
        self.stores = self.stores.checked_shr(coolings).unwrap_or(0);
        self.cooled = clock;
    }

    /// Counts an observed access; says whether the counter exceeds the
    /// threshold for cooling.
    pub(super) fn count(&mut self, access: Access, weight: u16, config: &HeMemConfig) -> bool {
        let counter = match access {
            Access::Read => &mut self.loads,
            Access::Write => &mut self.stores,
        };
        *counter = counter.saturating_add(u8::try_from(weight).unwrap_or(u8::MAX));
        *counter > config.cooling_threshold
    }

    /// What the counters say.
    pub(super) fn class(self, config: &HeMemConfig) -> Class {
        if self.stores >= config.hot_stores {
            Class::WriteHeavy
        } else if self.loads >= config.hot_loads {
            Class::Hot
        } else {
            Class::Cold
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If packing lost a bit, a page would be looked for in the wrong list.
    #[test]
    fn every_standing_survives_packing() {
        let mut page = Page::default();
        assert_eq!(page.standing(), Standing::Unplaced);
        let listed = Class::ALL.map(Standing::Listed);
        for standing in listed.into_iter().chain([Standing::Unplaced, Standing::UnderWay]) {
            for tier in 0..MAX_TIERS as u8 {
                page.set(TierId(tier), standing);
                assert_eq!((page.tier(), page.standing()), (TierId(tier), standing));
            }
        }
    }

    /// A page that is cooled late must end as if it had been cooled each time.
    #[test]
    fn cooling_late_equals_cooling_each_time() {
        for start in 0..=255u8 {
            for coolings in 0..=255u8 {
                let mut late =
                    Page { loads: start, stores: start / 2, cooled: 250, ..Page::default() };
                let mut each = late;
                late.cool(250u8.wrapping_add(coolings));
                for i in 1..=coolings {
                    each.cool(250u8.wrapping_add(i));
                }
                assert_eq!(late, each);
            }
        }
    }
}
