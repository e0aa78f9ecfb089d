//! What each piece of the kernel's work costs, in cycles, with the source of each number.
//!
//! "measured" is this project's own figure: median in a 2.0 GHz guest with nested paging, Linux
//! 6.18. "derived" is arithmetic on named numbers, "recalled" is from memory, "assumed" rests
//! on judgement.

use serde::Serialize;
use terrace_core::Cycles;

macro_rules! costs {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $source:literal;)*) => {
        /// Costs of memory management.
        ///
        /// One field for each piece of work, because a fault is the sum of the pieces that it
        /// went through and nothing else.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        pub struct Costs { $($(#[$doc])* pub $name: Cycles,)* }

        impl Costs {
            /// The numbers that come with Terrace.
            pub const fn builtin() -> Self {
                Self { $($name: Cycles($value),)* }
            }

            /// Name, value and source of each.
            pub fn sources(&self) -> Vec<Sourced> {
                let builtin = Self::builtin();
                let of = |now: Cycles, then: Cycles, source| if now == then { source } else { SET };
                vec![$(Sourced {
                    name: stringify!($name),
                    value: self.$name,
                    source: of(self.$name, builtin.$name, $source),
                },)*]
            }

            /// Sets one by its name; false if there is none of that name.
            pub fn set(&mut self, name: &str, value: Cycles) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => return false,
                }
                true
            }
        }
    };
}

/// Where numbers come from that are not the built-in ones.
const SET: &str = "given: measured by `terrace calibrate mm`, or set";

/// A cost with where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sourced {
    /// The field.
    pub name: &'static str,
    /// Its value.
    pub value: Cycles,
    /// Where it comes from.
    pub source: &'static str,
}

costs! {
    /// A fault without the page: trap, the mapping's lookup, the entry, the way back.
    fault = 2_430, "derived: a 4 KiB fault, measured 3 000 to 3 400, less zeroing";
    /// Zeroing a base page.
    zero_base = 770, "derived: a 512th of zeroing 2 MiB, measured 393 000 (memset)";
    /// Copying a base page.
    copy_base = 1_280, "derived: a 512th of copying 2 MiB, measured 656 000";
    /// Taking a base page from the free lists.
    take_base = 100, "assumed: a list of the processor's own";
    /// Zeroing a huge page.
    zero_huge = 526_000, "derived: a 2 MiB fault in host-warm memory, measured 532 000, less the rest of the fault";
    /// What a huge fault takes beside `fault` and zeroing: the table that is set aside, counters.
    map_huge = 3_000, "assumed: a base page is taken and zeroed for the table, and accounts of 2 MiB";
    /// Mapping a base page that is filled ahead of its touch, together with others.
    populate = 1_630, "derived: MADV_POPULATE_WRITE of a base page, measured 2 500, less taking and zeroing it";
    /// Telling the other processors of a program that a translation is gone.
    flush = 4_100, "derived: MADV_DONTNEED of a page, measured 6 600 with a remote thread and 2 500 alone";
    /// Looking at a page of a block while compaction looks for something to move, or for room.
    scan_page = 20, "assumed: a page descriptor is a line that is read in order, at some 10 GB/s";
    /// Passing over a block that compaction cannot use.
    skip_block = 150, "assumed: one line of the descriptor that memory must bring (81 ns)";
    /// Moving a page to another frame: unmapping, copying, mapping, without telling others.
    move_page = 8_000, "recalled: 3 to 5 us for a base page with move_pages(2) on Xeons";
    /// Splitting a huge page that is mapped in part, and freeing what is not mapped.
    split_huge = 100_000, "assumed: 512 descriptors set up and 511 pages freed at 100 cycles each";
    /// Looking at a page of the lists while memory is reclaimed.
    scan_lru = 200, "assumed: two lines of the descriptor and the reverse mapping's first line";
    /// Dropping a clean page of a file.
    drop_page = 1_500, "assumed: half of a base fault";
    /// Writing a page to the swap device.
    swap_out = 66_000, "assumed: 30 us, a page of a SATA disk's bandwidth and the request";
    /// Reading a page from it, waited for.
    swap_in = 220_000, "recalled: 100 us for a 4 KiB read of a SATA SSD";
    /// What a call of direct reclaim takes whatever it finds.
    reclaim_call = 20_000, "assumed: the walk over zones, control groups and shrinkers";
    /// Putting base pages together to a huge one, all of them present.
    collapse = 1_340_000, "measured: MADV_COLLAPSE of 512 present pages";
    /// The same with a page present.
    collapse_sparse = 663_000, "measured: MADV_COLLAPSE of one present page";
    /// What a thread of the program loses when its pages are collapsed.
    collapse_stall = 6_600, "derived: the interrupt of a flush, measured with a remote thread";
    /// Looking at a page of a table while khugepaged looks for candidates.
    scan_table = 15, "assumed: entries are read in order, and a descriptor for each";
    /// Zeroing a base page in the background, around the caches.
    prezero_base = 450, "derived: a 512th of zeroing 2 MiB with non-temporal stores, measured 230 000";
    /// One question to CBMM's estimator.
    estimate = 300, "assumed: a red-black tree's walk";
    /// One decision of Terrace's economist, without the point where it would turn.
    quote = 2_200, "measured: 1.1 us and more a decision with it (docs/economist.md, self-cost)";
    /// Unmapping a base page and giving it back.
    free_base = 250, "assumed: a tenth of a fault";
    /// Unmapping a huge page and giving it back.
    free_huge = 3_000, "assumed: one entry and one block";
}

impl Costs {
    /// A base page that is filled ahead of its touch.
    pub fn filled_base(&self) -> Cycles {
        self.populate + self.take_base + self.zero_base
    }

    /// A fault that maps a zeroed base page.
    pub fn base_fault(&self) -> Cycles {
        self.fault + self.take_base + self.zero_base
    }

    /// A fault that maps a huge page, zeroed now or before.
    pub fn huge_fault(&self, prezeroed: bool) -> Cycles {
        let zero = if prezeroed { Cycles::ZERO } else { self.zero_huge };
        self.fault + self.map_huge + zero
    }

    /// Collapsing, by how many base pages are present: linear between what was measured.
    pub fn collapse_of(&self, present: u32) -> Cycles {
        let all = self.collapse.saturating_sub(self.collapse_sparse);
        self.collapse_sparse + Cycles(all.get() * u64::from(present) / 512)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole must be what was measured, however it was cut into pieces.
    #[test]
    fn pieces_add_up_to_what_was_measured() {
        let costs = Costs::builtin();
        assert!((3_000..=3_400).contains(&costs.base_fault().get()));
        let huge = costs.huge_fault(false).get();
        assert!(huge.abs_diff(532_000) < 1_000, "{huge}");
        assert_eq!(costs.filled_base(), Cycles(2_500));
        assert_eq!(costs.collapse_of(512), costs.collapse);
        assert_eq!(costs.collapse_of(0), costs.collapse_sparse);
    }

    #[test]
    fn each_cost_has_a_source_and_can_be_set() {
        let mut costs = Costs::builtin();
        for sourced in costs.sources() {
            assert!(sourced.source.contains(": "), "{}", sourced.name);
            assert!(costs.set(sourced.name, Cycles(7)));
        }
        assert!(costs.sources().iter().all(|sourced| sourced.value == Cycles(7)));
        assert!(!costs.set("nothing", Cycles(1)));
    }
}
