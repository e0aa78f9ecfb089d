//! An entry of the map: eight bytes, so that one aligned store replaces it.
//!
//! | bits | meaning |
//! |---|---|
//! | 63 | the sector's content is in a block |
//! | 62 | the sector reads as zeros |
//! | 61 | the sector was lost |
//! | 60–40 | sequence number, one more with each change |
//! | 39–0 | the block |
//!
//! Bits 63 and 61 together are an entry whose block a repair has found to be named twice: no content, as
//! for every word with more than one of the three bits, and no other entry may name its block.
//!
//! An entry that is all zeros is a sector that was never written; it reads as zeros.

use core::fmt;

const USED: u64 = 1 << 63;
const ZERO: u64 = 1 << 62;
const LOST: u64 = 1 << 61;
const SEQUENCE_SHIFT: u32 = 40;
const SEQUENCE_MASK: u64 = (1 << 21) - 1;
const BLOCK_MASK: u64 = (1 << SEQUENCE_SHIFT) - 1;

/// The most blocks that an entry can tell apart.
pub const MOST_BLOCKS: u64 = 1 << SEQUENCE_SHIFT;

/// A physical block of the data area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(pub u64);

/// What a sector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// It was never written.
    Unwritten,
    /// It reads as zeros.
    Zero,
    /// Its bytes are in a block.
    In(Block),
    /// They were lost.
    Lost,
}

/// An entry of the map, as it is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry(pub u64);

impl Entry {
    /// A sector that was never written.
    pub const UNWRITTEN: Self = Self(0);

    /// From its bytes in the map.
    #[inline]
    pub(crate) fn of(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes))
    }

    /// What it says; `None` for a word that no volume writes.
    #[inline]
    pub fn content(self) -> Option<Content> {
        let block = self.0 & BLOCK_MASK;
        match self.0 & (USED | ZERO | LOST) {
            0 if self.0 == 0 => Some(Content::Unwritten),
            USED => Some(Content::In(Block(block))),
            ZERO if block == 0 => Some(Content::Zero),
            LOST if block == 0 => Some(Content::Lost),
            _ => None,
        }
    }

    /// The block that holds the sector, if one does.
    #[inline]
    pub fn block(self) -> Option<Block> {
        match self.content() {
            Some(Content::In(block)) => Some(block),
            _ => None,
        }
    }

    /// The block that it names and that another entry named, too, if a repair was stopped between
    /// saying so and giving the sectors up.
    #[inline]
    pub fn disputed(self) -> Option<Block> {
        (self.0 & (USED | ZERO | LOST) == USED | LOST).then_some(Block(self.0 & BLOCK_MASK))
    }

    /// This entry, which names a block, as one whose block is disputed.
    #[must_use]
    pub(crate) fn dispute(self) -> Self {
        Self(self.0 | LOST)
    }

    /// Its sequence number.
    #[inline]
    pub fn sequence(self) -> u64 {
        (self.0 >> SEQUENCE_SHIFT) & SEQUENCE_MASK
    }

    /// The entry that follows this one when the content changes. The sequence number makes it
    /// differ from every entry that a reader can have seen shortly before, also if the same block
    /// comes back.
    #[must_use]
    #[inline]
    pub fn next(self, content: Content) -> Self {
        let sequence = ((self.sequence() + 1) & SEQUENCE_MASK) << SEQUENCE_SHIFT;
        Self(match content {
            Content::Unwritten => 0,
            Content::Zero => ZERO | sequence,
            Content::Lost => LOST | sequence,
            Content::In(block) => USED | sequence | block.0,
        })
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// Has the block copied that a sector's entry leads to, and once more if a write has replaced the
/// entry meanwhile: so what was copied last is what one write has left. Blocks are those below
/// `blocks`. If the entry leads to none of them, gives the entry.
///
/// What `load` gives after `copy` must not be older than what that has copied.
#[inline]
pub(crate) fn copy_block<E>(
    blocks: u64,
    load: impl Fn() -> Entry,
    mut copy: impl FnMut(u64) -> Result<(), E>,
) -> Result<Option<Entry>, E> {
    let mut entry = load();
    while let Some(Block(block)) = entry.block()
        && block < blocks
    {
        copy(block)?;
        // While the entry stays, its block is not given to another write. The sequence number
        // tells an entry that came back from one that stayed.
        let now = load();
        if now == entry {
            return Ok(None);
        }
        entry = now;
    }
    Ok(Some(entry))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn an_entry_says_what_was_put_into_it_and_changes_each_time() {
        let last = Block(MOST_BLOCKS - 1);
        let mut entry = Entry::UNWRITTEN;
        for content in [Content::In(last), Content::In(last), Content::Zero, Content::Lost] {
            let next = entry.next(content);
            assert_eq!(next.content(), Some(content));
            assert_ne!(next, entry);
            entry = next;
        }
        assert_eq!(entry.sequence(), 4);
    }

    #[test]
    fn a_sequence_number_that_wraps_does_not_reach_into_the_flags() {
        let full = Entry(USED | (SEQUENCE_MASK << SEQUENCE_SHIFT) | 7);
        assert_eq!(full.next(Content::In(Block(7))).0, USED | 7);
    }

    /// The blocks that are copied, of eight, where the entry is one after the other of these.
    fn copied(entries: &[Entry]) -> (Vec<u64>, Result<Option<Entry>, Infallible>) {
        let loads = Cell::new(0);
        let load = || {
            loads.set(loads.get() + 1);
            entries[loads.get() - 1]
        };
        let mut blocks = Vec::new();
        let left = copy_block(8, load, |block| {
            blocks.push(block);
            Ok(())
        });
        (blocks, left)
    }

    #[test]
    fn a_block_is_copied_until_its_entry_stays_meanwhile() {
        let entry = Entry::UNWRITTEN.next(Content::In(Block(3)));
        let same_block = entry.next(Content::In(Block(3)));
        let zero = entry.next(Content::Zero);
        let beyond = entry.next(Content::In(Block(8)));
        assert_eq!(copied(&[entry, entry]), (vec![3], Ok(None)));
        assert_eq!(copied(&[entry, same_block, same_block]), (vec![3, 3], Ok(None)));
        assert_eq!(copied(&[entry, zero]), (vec![3], Ok(Some(zero))));
        assert_eq!(copied(&[beyond]), (vec![], Ok(Some(beyond))), "there is no such block");
        let damaged = copy_block(8, || entry, |_| Err("it cannot be read"));
        assert_eq!(damaged, Err("it cannot be read"));
    }

    /// Whoever reads it must find the block, to doubt all others that name it.
    #[test]
    fn a_disputed_entry_has_no_content_and_keeps_its_block() {
        let named = Entry::UNWRITTEN.next(Content::In(Block(9)));
        assert_eq!(named.disputed(), None);
        assert_eq!(named.dispute().content(), None);
        assert_eq!(named.dispute().disputed(), Some(Block(9)));
    }

    /// Such a word is damage; to take it for a sector would be to invent its content.
    #[test]
    fn words_that_no_volume_writes_have_no_content() {
        for word in [1, 5 << SEQUENCE_SHIFT, USED | ZERO, ZERO | 1, LOST | 9, USED | LOST, u64::MAX]
        {
            assert_eq!(Entry(word).content(), None, "{word:#x}");
        }
    }
}
