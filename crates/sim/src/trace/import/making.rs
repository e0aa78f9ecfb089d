//! What importers make accesses with: nothing that a trace says is wrapped, cut
//! or lost on the way.

use crate::exact::Access;
use crate::exact::access::ADDRESSES;
use crate::trace::summary::{Fate, Notes};

/// Bytes of a cache line.
const LINE: u64 = terrace_core::detail::CACHE_LINE;
/// The largest access that an instruction of any processor makes, with room.
const LARGEST: u64 = 1 << 16;

/// Instructions of one thread between its accesses.
///
/// An access stands for the instruction that makes it, the further ones of the same instruction
/// for none. A trace that tells of no instructions has one for each access.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Instructions since the access before, the one that makes the next included.
    passed: u64,
    /// Whether instructions were told of.
    told: bool,
    /// Whether an access was made.
    begun: bool,
}

impl Pace {
    /// Instructions were executed; the last of them makes the accesses that follow.
    pub(super) fn instructions(&mut self, count: u64) {
        self.passed = self.passed.saturating_add(count);
        self.told |= count > 0;
    }

    /// Adds an access with the instructions before it.
    pub(super) fn push(&mut self, access: Access, out: &mut Vec<Access>) {
        if self.passed == 0 && self.told && self.begun {
            out.push(access.of_same_instruction());
            return;
        }
        self.begun = true;
        access.push_after(out, std::mem::take(&mut self.passed).saturating_sub(1));
    }

    /// Adds what passed after the last access.
    pub(super) fn end(&mut self, out: &mut Vec<Access>) {
        if self.passed > 0 {
            out.push(Access::pass(self.passed));
        }
        *self = Self::default();
    }
}

/// Checks addresses and sizes, and counts what had to be changed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Checks {
    upper: u64,
    large: u64,
}

impl Checks {
    /// A virtual address: of 48 bits, or of the upper half, whose upper 16 bits
    /// are all set and say nothing more.
    pub(super) fn address(&mut self, address: u64) -> Result<u64, String> {
        const UPPER: u64 = !(ADDRESSES - 1) | ADDRESSES >> 1;
        if address < ADDRESSES {
            return Ok(address);
        }
        if address & UPPER == UPPER {
            self.upper += 1;
            return Ok(address & (ADDRESSES - 1));
        }
        Err(format!("the address {address:#x} is beyond 48 bits"))
    }

    /// The accesses that an instruction makes to `size` bytes: one, or one for each
    /// line where it is larger than a line. `make` is told address and size.
    pub(super) fn pieces(
        &mut self,
        address: u64,
        size: u64,
        mut make: impl FnMut(u64, u64),
    ) -> Result<(), String> {
        let address = self.address(address)?;
        if size == 0 || size > LARGEST {
            return Err(format!("no instruction accesses {size} bytes"));
        }
        if size > ADDRESSES - address {
            return Err(format!("{size} bytes at {address:#x} end beyond 48 bits"));
        }
        if size <= LINE {
            make(address, size);
            return Ok(());
        }
        self.large += 1;
        let end = address + size;
        let mut at = address;
        while at < end {
            let next = (at - at % LINE + LINE).min(end);
            make(at, next - at);
            at = next;
        }
        Ok(())
    }

    pub(super) fn tell(&self, notes: &mut Notes) {
        let upper = "addresses of the kernel's half into 48 bits";
        notes.counted(Fate::Folded, self.upper, upper);
        let large = "accesses of more than a line into one a line";
        notes.counted(Fate::Folded, self.large, large);
    }
}

/// A physical address.
pub(super) fn physical(address: u64) -> Result<u64, String> {
    if address >= ADDRESSES {
        return Err(format!("the address {address:#x} is beyond 48 bits"));
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(entries: &[Access]) -> u64 {
        entries.iter().map(|entry| entry.counted()).sum()
    }

    /// Ten instructions of which two make two accesses each are ten.
    #[test]
    fn instructions_that_make_several_accesses_count_once() {
        let (mut pace, mut out) = (Pace::default(), Vec::new());
        for instruction in 1..=10 {
            pace.instructions(1);
            if instruction == 3 || instruction == 5 {
                pace.push(Access::load(64), &mut out);
                pace.push(Access::store(64), &mut out);
            }
        }
        pace.end(&mut out);
        assert_eq!(counted(&out), 10);
        assert_eq!(out.iter().filter(|entry| entry.is_data()).count(), 4);
        assert_eq!(out[0].instructions(), 2);
    }

    /// However many of them make several: nothing that follows can make up for it.
    #[test]
    fn a_trace_whose_every_instruction_makes_two_accesses_has_half_as_many() {
        let (mut pace, mut out) = (Pace::default(), Vec::new());
        for _ in 0..1000 {
            pace.instructions(1);
            pace.push(Access::load(64), &mut out);
            pace.push(Access::store(128), &mut out);
        }
        pace.end(&mut out);
        assert_eq!((counted(&out), out.len()), (1000, 2000));
    }

    #[test]
    fn a_trace_without_instructions_has_one_for_each_access() {
        let (mut pace, mut out) = (Pace::default(), Vec::new());
        for _ in 0..10 {
            pace.push(Access::load(64), &mut out);
        }
        pace.end(&mut out);
        assert_eq!(counted(&out), 10);
    }

    #[test]
    fn addresses_are_refused_rather_than_cut() {
        let mut checks = Checks::default();
        assert_eq!(checks.address(0xffff_ffff_ffff), Ok(0xffff_ffff_ffff));
        assert_eq!(checks.address(0xffff_8880_0000_1000), Ok(0x8880_0000_1000));
        assert!(checks.address(1 << 48).is_err());
        assert!(checks.address(0xfedc_ba98_7654_3210).is_err());
        assert!(checks.address(0xffff_7fff_ffff_ffff).is_err(), "bit 47 is not set");
        assert!(physical(0xffff_8880_0000_1000).is_err());
    }

    #[test]
    fn a_large_access_touches_each_of_its_lines() {
        let mut checks = Checks::default();
        let mut pieces = |address, size| {
            let mut found = Vec::new();
            checks.pieces(address, size, |at, len| found.push((at, len))).map(|()| found)
        };
        assert_eq!(pieces(60, 8), Ok(vec![(60, 8)]), "crossing is told of by the access");
        assert_eq!(pieces(32, 160), Ok(vec![(32, 32), (64, 64), (128, 64)]));
        assert!(pieces(0, 0).is_err() && pieces(0, 1 << 20).is_err());
        assert!(pieces(ADDRESSES - 4, 8).is_err());
        assert_eq!(checks.large, 1);
    }
}
