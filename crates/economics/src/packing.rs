//! How tightly a page that leaves is packed: time for room.
//!
//! A page that is packed more tightly takes longer to pack and to unpack, once for each
//! time that it leaves and comes back; and for that time it leaves some room to others.
//! What that room is worth is what would fill it: a part of a page that could stay in
//! the faster memory, and would be missed there as often as this one is missed (accesses
//! to what is out being uniform, as in the division of a budget among processes). So
//! how often that is cancels out, and what remains is the time of one miss.

use terrace_core::{Bytes, Nanos};

/// What it takes to pack a page in some way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// Packing and unpacking.
    pub time: Nanos,
    /// What it takes packed.
    pub size: Bytes,
}

/// What room for packed pages is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Room {
    /// There is enough: nothing.
    Free,
    /// So much room keeps one page from being missed, which takes so long.
    Scarce {
        /// Room of one page that would stay.
        page: Bytes,
        /// What missing it costs.
        miss: Nanos,
    },
}

/// Whether the tighter packing pays.
#[must_use]
pub fn tighter_pays(quick: Packing, tight: Packing, room: Room) -> bool {
    let Room::Scarce { page, miss } = room else { return false };
    let saved = quick.size.as_f64() - tight.size.as_f64();
    let longer = tight.time.as_f64() - quick.time.as_f64();
    saved > 0.0 && saved / page.as_f64().max(1.0) * miss.as_f64() > longer
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Packing = Packing { time: Nanos(1_000), size: Bytes(2_048) };
    const TIGHT: Packing = Packing { time: Nanos(5_000), size: Bytes(1_024) };

    fn scarce(miss: u64) -> Room {
        Room::Scarce { page: Bytes(4_096), miss: Nanos(miss) }
    }

    #[test]
    fn a_quarter_of_a_page_is_worth_a_quarter_of_a_miss() {
        assert!(!tighter_pays(QUICK, TIGHT, scarce(15_900)));
        assert!(tighter_pays(QUICK, TIGHT, scarce(16_100)));
    }

    #[test]
    fn where_there_is_room_nothing_pays() {
        assert!(!tighter_pays(QUICK, TIGHT, Room::Free));
    }

    #[test]
    fn what_is_not_smaller_does_not_pay_however_quick() {
        assert!(!tighter_pays(QUICK, Packing { size: QUICK.size, ..TIGHT }, scarce(1 << 40)));
        let quicker = Packing { time: Nanos(1), size: QUICK.size };
        assert!(!tighter_pays(QUICK, quicker, scarce(1)));
    }
}
