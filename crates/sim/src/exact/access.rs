//! One memory access, in eight bytes.
//!
//! Two further kinds of entries stand among accesses: fetches of instructions,
//! which only a comparison with cachegrind looks at, and entries that access
//! nothing and say how many instructions pass. [`Access::is_data`] tells accesses
//! of data from both.

use terrace_core::Access as Kind;

/// The highest address that can be expressed, plus one: the user half of a
/// 48-bit address space, with room.
pub const ADDRESSES: u64 = 1 << 48;

/// In place of how many instructions came before: none did, nor does this access stand for one.
const SAME: u64 = 0xff;

/// Bytes of a cache line.
const LINE: u64 = terrace_core::detail::CACHE_LINE;

/// One access to memory.
///
/// | bits | content |
/// |---|---|
/// | 0–47 | virtual address |
/// | 48–55 | instructions since the access before, without this one, at most 254; 255: the instruction of the access before makes this one, too |
/// | 56 | it is a store |
/// | 57 | its address depends on what the load before it loaded |
/// | 58 | it touches two lines |
/// | 59 | it fetches instructions |
/// | 57 and 59 | it accesses nothing: bits 0–47 are instructions that pass |
/// | 60–63 | log2 of its size in bytes, rounded up |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Access(u64);

const STORE: u32 = 56;
const DEPENDS: u32 = 57;
const CROSSES: u32 = 58;
const FETCH: u32 = 59;
const SIZE: u32 = 60;
/// Together they are an entry that accesses nothing: fetches do not depend.
const PASSES: u64 = 1 << DEPENDS | 1 << FETCH;

impl Access {
    /// An access of `size` bytes (at least 1).
    pub fn new(address: u64, size: u64, kind: Kind) -> Self {
        let address = address & (ADDRESSES - 1);
        let size = size.clamp(1, 1 << 15);
        let crosses = address % LINE + size.min(LINE) > LINE;
        let log2 = u64::from(size.next_power_of_two().trailing_zeros());
        Self(
            address
                | u64::from(kind == Kind::Write) << STORE
                | u64::from(crosses) << CROSSES
                | log2 << SIZE,
        )
    }

    /// A load of eight bytes.
    pub fn load(address: u64) -> Self {
        Self::new(address, 8, Kind::Read)
    }

    /// A store of eight bytes.
    pub fn store(address: u64) -> Self {
        Self::new(address, 8, Kind::Write)
    }

    /// A fetch of an instruction.
    pub fn fetch(address: u64, size: u64) -> Self {
        Self(Self::new(address, size, Kind::Read).0 | 1 << FETCH)
    }

    /// The most instructions that an access can have before it.
    pub const MOST_BEFORE: u64 = SAME - 1;

    /// The same with so many other instructions before it, at most
    /// [`MOST_BEFORE`](Self::MOST_BEFORE); [`push_after`](Self::push_after) has
    /// no such limit.
    #[must_use]
    pub fn after(self, instructions: u64) -> Self {
        Self(self.0 & !(0xff << 48) | instructions.min(Self::MOST_BEFORE) << 48)
    }

    /// The same, made by the instruction that made the access before: both stand for one.
    #[must_use]
    pub const fn of_same_instruction(self) -> Self {
        Self(self.0 | SAME << 48)
    }

    /// An entry that accesses nothing: so many instructions pass.
    pub fn pass(instructions: u64) -> Self {
        Self(PASSES | instructions.min(ADDRESSES - 1))
    }

    /// Adds it to accesses, with however many instructions before it.
    #[inline]
    pub fn push_after(self, accesses: &mut Vec<Self>, instructions: u64) {
        if instructions > Self::MOST_BEFORE {
            accesses.push(Self::pass(instructions));
            accesses.push(self);
        } else {
            accesses.push(self.after(instructions));
        }
    }

    /// The same, its address depending on the load before it.
    #[must_use]
    pub fn dependent(self) -> Self {
        Self(self.0 | 1 << DEPENDS)
    }

    /// The eight bytes.
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// An access from its eight bytes.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
    /// Virtual address.
    #[inline]
    pub const fn address(self) -> u64 {
        self.0 & (ADDRESSES - 1)
    }
    /// Number of the cache line in virtual memory.
    #[inline]
    pub const fn line(self) -> u64 {
        self.address() / LINE
    }
    /// Instructions since the access before, without this one.
    #[inline]
    pub const fn instructions(self) -> u64 {
        let before = self.0 >> 48 & 0xff;
        if before == SAME { 0 } else { before }
    }
    /// Whether the instruction of the access before makes it, too.
    #[inline]
    pub const fn is_of_same_instruction(self) -> bool {
        self.0 >> 48 & 0xff == SAME
    }
    /// Instructions up to and with an access of data, since the one before it: 0 if that one's
    /// instruction makes it, too.
    #[inline]
    pub(crate) const fn instructions_with(self) -> u64 {
        // As many as came before and one; of the same, around to zero.
        (self.0 >> 48).wrapping_add(1) & 0xff
    }
    /// Whether it is a store.
    #[inline]
    pub const fn is_store(self) -> bool {
        self.0 >> STORE & 1 != 0
    }
    /// Whether its address depends on the load before it.
    #[inline]
    pub const fn is_dependent(self) -> bool {
        self.0 >> DEPENDS & 1 != 0
    }
    /// Whether it touches two lines.
    #[inline]
    pub const fn crosses(self) -> bool {
        self.0 >> CROSSES & 1 != 0
    }
    /// Whether it accesses data: neither a fetch nor an entry that accesses
    /// nothing.
    #[inline]
    pub const fn is_data(self) -> bool {
        self.0 >> FETCH & 1 == 0
    }
    /// Whether it fetches instructions.
    #[inline]
    pub const fn is_fetch(self) -> bool {
        self.0 & PASSES == 1 << FETCH
    }
    /// Whether it accesses nothing, and only says that instructions pass.
    #[inline]
    pub const fn is_pass(self) -> bool {
        self.0 & PASSES == PASSES
    }
    /// Instructions that it stands for, the one that makes the access included.
    /// A fetch stands for none: accesses and passes tell of its instruction.
    #[inline]
    pub const fn counted(self) -> u64 {
        if self.is_data() {
            self.instructions_with()
        } else if self.is_pass() {
            self.0 & (ADDRESSES - 1)
        } else {
            0
        }
    }
    /// Whether anything but address, kind and distance needs a look.
    #[inline]
    pub(crate) const fn is_special(self) -> bool {
        self.0 >> DEPENDS & 0b111 != 0
    }
    /// Whether it is the same kind of access to the same line as another.
    #[inline]
    pub(crate) const fn repeats(self, other: Self) -> bool {
        const SAME: u64 = (ADDRESSES - LINE) | 0b1111 << STORE;
        (self.0 ^ other.0) & SAME == 0
    }
    /// Its size, rounded up to a power of two.
    pub const fn size(self) -> u64 {
        1 << (self.0 >> SIZE)
    }
    /// Load or store.
    pub const fn kind(self) -> Kind {
        if self.is_store() { Kind::Write } else { Kind::Read }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bit that leaked into the address would send accesses to other pages.
    #[test]
    fn every_field_comes_back() {
        let access = Access::new(0x7fff_ffff_fff8, 16, Kind::Write).after(300).dependent();
        assert_eq!(access.address(), 0x7fff_ffff_fff8);
        assert_eq!((access.size(), access.instructions()), (16, 254));
        assert!(access.is_store() && access.is_dependent() && access.crosses());
        assert!(!access.is_fetch() && access.is_special());
        assert_eq!(Access::from_bits(access.bits()), access);
        let plain = Access::load(0x1000).after(3);
        assert!(!plain.is_special() && !plain.is_store() && plain.instructions() == 3);
    }

    /// What is no access must neither be taken for one nor lose instructions.
    #[test]
    fn any_number_of_instructions_can_pass_before_an_access() {
        for between in [0, 1, 254, 255, 256, 999, 1 << 40] {
            let mut entries = Vec::new();
            Access::store(0x1000).dependent().push_after(&mut entries, between);
            let counted: u64 = entries.iter().map(|entry| entry.counted()).sum();
            assert_eq!(counted, between + 1);
            let data: Vec<_> = entries.iter().filter(|entry| entry.is_data()).collect();
            assert_eq!(data.len(), 1);
            assert!(data[0].is_store() && data[0].is_dependent() && data[0].address() == 0x1000);
        }
        let same = Access::store(0x1000).dependent().of_same_instruction();
        assert!(same.is_of_same_instruction() && same.is_data() && same.is_dependent());
        assert_eq!((same.counted(), same.instructions(), same.address()), (0, 0, 0x1000));
        let (pass, fetch) = (Access::pass(7), Access::fetch(0x1000, 4));
        assert!(pass.is_pass() && !pass.is_fetch() && !pass.is_store() && pass.is_special());
        assert!(fetch.is_fetch() && !fetch.is_pass() && !fetch.is_data());
        assert_eq!((pass.counted(), fetch.counted()), (7, 0));
    }

    #[test]
    fn an_access_crosses_only_where_its_last_byte_is_in_another_line() {
        assert!(!Access::new(56, 8, Kind::Read).crosses());
        assert!(Access::new(57, 8, Kind::Read).crosses());
        assert!(!Access::new(64, 512, Kind::Read).crosses(), "a large one counts as one line");
    }
}
