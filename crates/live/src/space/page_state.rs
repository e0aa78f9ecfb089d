//! Where a page's content is: one atomic word a page.
//!
//! The word is also the page's lock. Whoever sets `BUSY` owns the page until
//! it stores a new word; everyone else waits or leaves the page alone.

use crate::spill::location::Location;

/// Where a page's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Nowhere: never touched, or discarded. Reads as zeros.
    Fresh,
    /// In the program's mapping.
    Resident,
    /// In the staging slot of this number: unmapped, not yet demoted.
    Staged(u32),
    /// In the store, LZ4-compressed, at this address.
    Compressed(usize),
    /// In the store, as it is, at this address.
    Raw(usize),
    /// One word repeated: stored at this address, or zero if the address is 0.
    Same(usize),
    /// In the spill file, there.
    Spilled(Location),
    /// The address is no longer mapped.
    Gone,
}

/// The page is owned by one of our threads.
pub const BUSY: u64 = 8;

impl PageState {
    /// The word that says so, not busy.
    pub const fn word(self) -> u64 {
        match self {
            Self::Fresh => 0,
            Self::Resident => 1,
            Self::Staged(slot) => 2 | (slot as u64) << 4,
            Self::Compressed(at) => 3 | (at as u64) << 4,
            Self::Raw(at) => 4 | (at as u64) << 4,
            Self::Same(at) => 5 | (at as u64) << 4,
            Self::Spilled(location) => 6 | location.bits() << 4,
            Self::Gone => 7,
        }
    }

    /// Whether Terrace has the content: a staged page's, too, which is nowhere else.
    pub const fn is_held(self) -> bool {
        !matches!(self, Self::Fresh | Self::Resident | Self::Gone)
    }

    /// What a word says; `BUSY` is ignored.
    pub const fn of(word: u64) -> Self {
        let payload = word >> 4;
        match word & 7 {
            0 => Self::Fresh,
            1 => Self::Resident,
            2 => Self::Staged(payload as u32),
            3 => Self::Compressed(payload as usize),
            4 => Self::Raw(payload as usize),
            5 => Self::Same(payload as usize),
            6 => Self::Spilled(Location::from_bits(payload)),
            _ => Self::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_was_put_in_even_while_busy() {
        for state in [
            PageState::Fresh,
            PageState::Resident,
            PageState::Staged(u32::MAX),
            PageState::Compressed(0x7fff_ffff_ffff),
            PageState::Raw(0x7fff_0000_0040),
            PageState::Same(0),
            PageState::Spilled(Location::new((1 << 50) - 16, 4097, true)),
            PageState::Gone,
        ] {
            assert_eq!(PageState::of(state.word()), state);
            assert_eq!(PageState::of(state.word() | BUSY), state);
            assert_eq!(state.word() & BUSY, 0);
        }
    }
}
