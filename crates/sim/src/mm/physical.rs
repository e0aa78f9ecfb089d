//! Physical memory: frames, who holds each, and blocks of 2 MiB.
//!
//! Free frames are in the buddy allocator of the exact engine
//! ([`crate::exact::frames`]). What compaction needs to know beyond that is here: the owner of
//! each frame, and for each block of 512 frames what it holds.

use std::collections::VecDeque;

use rand_xoshiro::rand_core::Rng;
use serde::Serialize;
use terrace_core::{Bytes, PageSize, TierId};

use crate::exact::frames::Frames;
use crate::workload::SimRng;

/// The one memory that there is.
const MEMORY: TierId = TierId::FASTEST;
/// Order of a huge page's block.
pub const HUGE_ORDER: u32 = PageSize::Huge.shift() - PageSize::Base.shift();
/// Base pages of a huge page.
pub const PAGES: u32 = 1 << HUGE_ORDER;

/// Who holds a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// Nobody.
    pub const NOBODY: Self = Self(0);
    /// A page that the fragmenter keeps; it can be moved.
    pub const FRAGMENT: Self = Self(1);
    /// The kernel itself: tables and structures, which cannot be moved.
    pub const KERNEL: Self = Self(2);
    /// A clean page of a file, which can be moved and dropped.
    pub const FILE: Self = Self(3);
    /// A page that only a child still has, since its parent stored to it.
    pub const CHILD: Self = Self(4);
    const FIRST: u32 = 16;

    /// The base page `index` of a slot.
    pub const fn page(slot: u32, index: u32) -> Self {
        Self(Self::FIRST + slot * PAGES + index)
    }

    /// Slot and index, if it is a program's page.
    pub const fn as_page(self) -> Option<(u32, u32)> {
        match self.0.checked_sub(Self::FIRST) {
            Some(page) => Some((page / PAGES, page % PAGES)),
            None => None,
        }
    }

    const fn can_move(self) -> bool {
        self.0 != Self::KERNEL.0 && self.0 != Self::NOBODY.0
    }
}

/// Whether a block is one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whole {
    /// It is not.
    #[default]
    No,
    /// It is the huge page of a slot.
    Huge(u32),
    /// It is a huge page of which one base page is still mapped, and which nobody has split yet:
    /// none of it is free.
    Partial,
}

/// 512 frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Block {
    /// Frames whose pages can be moved.
    pub movable: u16,
    /// Frames that the kernel holds.
    pub kernel: u16,
    /// Whether it is one page.
    pub whole: Whole,
    /// Compaction found nothing here and need not look again.
    pub skip: bool,
    /// It is free, and was zeroed since.
    pub zeroed: bool,
}

/// Limits of free memory at which reclaim begins and ends, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Watermarks {
    /// Below it whoever allocates reclaims.
    pub min: u64,
    /// Below it the kernel's thread begins.
    pub low: u64,
    /// Above it the thread stops.
    pub high: u64,
}

impl Watermarks {
    /// For so many frames: `init_per_zone_wmark_min` and `__setup_per_zone_wmarks` of Linux 5.5
    /// (recalled), without what khugepaged adds.
    pub fn of(frames: u64) -> Self {
        let kib = frames * 4;
        let min = ((kib as f64 * 16.0).sqrt() as u64).clamp(128, 65_536) / 4;
        let step = (min / 4).max(frames / 1000);
        Self { min, low: min + step, high: min + 2 * step }
    }
}

/// How memory was fragmented before the program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fragmentation {
    /// Not at all.
    None,
    /// The fragmenter had base pages: of each block one is left, 511 are free.
    Released,
    /// The fragmenter had huge pages: 511 of 512 base pages are unmapped, but the kernel frees
    /// them only when it splits the page, which it does under pressure.
    Deferred,
}

impl Fragmentation {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Released, Self::Deferred];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "unfragmented",
            Self::Released => "fragmented, released",
            Self::Deferred => "fragmented, unsplit",
        }
    }
}

/// All frames.
#[derive(Clone, Debug)]
pub struct Physical {
    frames: Frames,
    owners: Vec<Owner>,
    blocks: Vec<Block>,
    /// Blocks that may be zeroed and free.
    zeroed: Vec<u32>,
    zeroed_free: u64,
    /// Partial huge pages that wait for being split.
    unsplit: VecDeque<u32>,
    /// The block that the kernel's own pages come from, and which frame of it is next.
    kernel_block: Option<(u64, u32)>,
    files: u64,
    /// Where to look for the next page of a file.
    file_hand: u64,
    /// Limits of free memory.
    pub watermarks: Watermarks,
}

impl Physical {
    /// Memory of so many bytes (whole blocks of it), all free.
    pub fn new(size: Bytes) -> Self {
        let blocks = size.get() >> PageSize::Huge.shift();
        let frames = blocks * u64::from(PAGES);
        Self {
            frames: Frames::new(&[Bytes(blocks << PageSize::Huge.shift())]),
            owners: vec![Owner::NOBODY; frames as usize],
            blocks: vec![Block::default(); blocks as usize],
            zeroed: Vec::new(),
            zeroed_free: 0,
            unsplit: VecDeque::new(),
            kernel_block: None,
            files: 0,
            file_hand: 0,
            watermarks: Watermarks::of(frames),
        }
    }

    /// How many frames there are.
    pub fn len(&self) -> u64 {
        self.owners.len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Free frames.
    pub fn free(&self) -> u64 {
        self.frames.free(MEMORY).get() >> PageSize::Base.shift()
    }

    /// Free blocks of the size of a huge page.
    pub fn free_huge(&self) -> u64 {
        self.frames.free_in(MEMORY, HUGE_ORDER).get() >> PageSize::Huge.shift()
    }

    /// Of those, blocks that were zeroed.
    pub fn free_zeroed(&self) -> u64 {
        self.zeroed_free
    }

    /// Clean pages of files.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Partial huge pages that wait for being split.
    pub fn unsplit(&self) -> u64 {
        self.unsplit.len() as u64
    }

    /// All blocks.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    pub(super) fn block_mut(&mut self, block: u64) -> &mut Block {
        &mut self.blocks[block as usize]
    }

    /// Who holds a frame.
    pub fn owner(&self, frame: u64) -> Owner {
        self.owners[frame as usize]
    }

    /// Free frames of a block that is not one page.
    pub fn free_in_block(&self, block: u64) -> u32 {
        let block = &self.blocks[block as usize];
        match block.whole {
            Whole::No => PAGES - u32::from(block.movable) - u32::from(block.kernel),
            Whole::Huge(_) | Whole::Partial => 0,
        }
    }

    fn unzero(&mut self, block: u64) {
        let block = &mut self.blocks[block as usize];
        if std::mem::take(&mut block.zeroed) {
            self.zeroed_free -= 1;
        }
    }

    fn hold(&mut self, frame: u64, owner: Owner) {
        let block = frame >> HUGE_ORDER;
        self.unzero(block);
        self.owners[frame as usize] = owner;
        let block = &mut self.blocks[block as usize];
        block.skip = false;
        if owner.can_move() {
            block.movable += 1;
        } else {
            block.kernel += 1;
        }
        self.files += u64::from(owner == Owner::FILE);
    }

    fn let_go(&mut self, frame: u64) {
        let owner = std::mem::take(&mut self.owners[frame as usize]);
        let block = &mut self.blocks[(frame >> HUGE_ORDER) as usize];
        block.skip = false;
        if owner.can_move() {
            block.movable -= 1;
        } else {
            block.kernel -= 1;
        }
        self.files -= u64::from(owner == Owner::FILE);
    }

    /// Takes a free frame.
    pub fn take(&mut self, owner: Owner) -> Option<u64> {
        let frame = self.frames.take(MEMORY, 0)?;
        self.hold(frame, owner);
        Some(frame)
    }

    /// Takes a frame for the kernel itself: of a block of its own while there is one, as Linux
    /// groups pages by whether they can be moved; else of the block with the largest free part,
    /// which is the kernel's from then on.
    pub fn take_kernel(&mut self) -> Option<u64> {
        loop {
            while let Some((first, next)) = &mut self.kernel_block
                && *next < PAGES
            {
                let frame = *first + u64::from(*next);
                *next += 1;
                if self.frames.take_at(frame, 0) {
                    self.hold(frame, Owner::KERNEL);
                    return Some(frame);
                }
            }
            let largest = (0..=HUGE_ORDER).rev().find_map(|order| self.frames.next(MEMORY, order));
            self.kernel_block = Some((largest? >> HUGE_ORDER << HUGE_ORDER, 0));
        }
    }

    /// Takes that very frame, if it is free.
    pub(super) fn take_at(&mut self, frame: u64, owner: Owner) -> bool {
        let taken = self.frames.take_at(frame, 0);
        if taken {
            self.hold(frame, owner);
        }
        taken
    }

    /// Gives a frame back.
    pub fn give(&mut self, frame: u64) {
        self.let_go(frame);
        self.frames.give(frame, 0);
    }

    /// Takes a block for a slot's huge page, a zeroed one if there is one; says whether it is.
    pub fn take_huge(&mut self, slot: u32) -> Option<(u64, bool)> {
        while let Some(block) = self.zeroed.pop() {
            let frame = u64::from(block) << HUGE_ORDER;
            if self.blocks[block as usize].zeroed && self.frames.take_at(frame, HUGE_ORDER) {
                self.unzero(u64::from(block));
                self.blocks[block as usize].whole = Whole::Huge(slot);
                return Some((frame, true));
            }
        }
        let frame = self.frames.take(MEMORY, HUGE_ORDER)?;
        let block = frame >> HUGE_ORDER;
        self.unzero(block);
        self.blocks[block as usize].whole = Whole::Huge(slot);
        Some((frame, false))
    }

    /// Gives a huge page's block back.
    pub fn give_huge(&mut self, frame: u64) {
        let block = &mut self.blocks[(frame >> HUGE_ORDER) as usize];
        block.whole = Whole::No;
        block.skip = false;
        self.frames.give(frame, HUGE_ORDER);
    }

    /// A slot's huge page becomes 512 base pages in the same frames.
    pub fn split_huge(&mut self, frame: u64) {
        let block = &mut self.blocks[(frame >> HUGE_ORDER) as usize];
        let Whole::Huge(slot) = std::mem::take(&mut block.whole) else { return };
        for index in 0..PAGES {
            self.hold(frame + u64::from(index), Owner::page(slot, index));
        }
    }

    /// A frame passes from one owner to another that can be moved as well.
    pub fn hand_over(&mut self, frame: u64, to: Owner) {
        debug_assert!(self.owner(frame).can_move() && to.can_move());
        self.owners[frame as usize] = to;
    }

    /// Marks a free block as zeroed; false if there is none that is not.
    pub fn zero_one(&mut self) -> bool {
        // The block that is handed out next is the one that is wanted zeroed soonest; blocks
        // inside larger free ones are found by walking from a free block upwards.
        if self.zeroed_free == self.free_huge() {
            return false;
        }
        let Some(first) = self.frames.next(MEMORY, HUGE_ORDER) else { return false };
        let start = first >> HUGE_ORDER;
        let all = self.blocks.len() as u64;
        for step in 0..all.min(4096) {
            let block = (start + step) % all;
            if !self.blocks[block as usize].zeroed
                && self.free_in_block(block) == PAGES
                && self.frames.is_free(block << HUGE_ORDER)
            {
                self.blocks[block as usize].zeroed = true;
                self.zeroed_free += 1;
                self.zeroed.push(block as u32);
                return true;
            }
        }
        false
    }

    /// Zeroes up to so many free blocks at once, from the highest address down.
    pub fn zero_many(&mut self, most: u64) -> u64 {
        let mut done = 0;
        for block in (0..self.blocks.len() as u64).rev() {
            if done == most {
                break;
            }
            if !self.blocks[block as usize].zeroed && self.free_in_block(block) == PAGES {
                self.blocks[block as usize].zeroed = true;
                self.zeroed_free += 1;
                self.zeroed.push(block as u32);
                done += 1;
            }
        }
        done
    }

    /// Drops up to so many clean pages of files; returns how many.
    pub fn drop_files(&mut self, most: u64) -> u64 {
        let mut dropped = 0;
        let all = self.len();
        let mut looked = 0;
        while dropped < most && self.files > 0 && looked < all {
            let frame = self.file_hand;
            self.file_hand = (self.file_hand + 1) % all;
            looked += 1;
            if self.owner(frame) == Owner::FILE {
                self.give(frame);
                dropped += 1;
            }
        }
        dropped
    }

    /// Splits the oldest partial huge page: 511 frames become free. False if there is none.
    pub fn split_partial(&mut self) -> bool {
        let Some(block) = self.unsplit.pop_front() else { return false };
        let first = u64::from(block) << HUGE_ORDER;
        self.blocks[block as usize].whole = Whole::No;
        self.leave_last(first);
        true
    }

    /// Of a block that is in use as a whole, the last frame stays with the fragmenter.
    fn leave_last(&mut self, first: u64) {
        self.hold(first + u64::from(PAGES) - 1, Owner::FRAGMENT);
        let mut frame = first;
        for order in (0..HUGE_ORDER).rev() {
            self.frames.give(frame, order);
            frame += 1 << order;
        }
    }

    /// Fragments memory as the paper's program does (`fragment_memory.c` of its runner, read):
    /// 99 % of free memory is populated, and of each 2 MiB all but the last 4 KiB unmapped. Free
    /// blocks come in random order, as the runner shuffles the free lists first.
    pub fn fragment(&mut self, how: Fragmentation, rng: &mut SimRng) {
        if how == Fragmentation::None {
            return;
        }
        let many = self.free() * 99 / 100 / u64::from(PAGES);
        let mut taken = Vec::new();
        while let Some((first, _)) = self.take_huge(0) {
            self.blocks[(first >> HUGE_ORDER) as usize].whole = Whole::No;
            taken.push(first);
        }
        for last in (1..taken.len()).rev() {
            taken.swap(last, (rng.next_u64() % (last as u64 + 1)) as usize);
        }
        let rest = taken.split_off(taken.len().min(many as usize));
        for first in rest {
            self.frames.give(first, HUGE_ORDER);
        }
        for first in taken {
            if how == Fragmentation::Released {
                self.leave_last(first);
            } else {
                self.blocks[(first >> HUGE_ORDER) as usize].whole = Whole::Partial;
                self.unsplit.push_back((first >> HUGE_ORDER) as u32);
            }
        }
    }

    /// What the books say, counted anew: frames by owner. For tests.
    pub fn audit(&self) -> Audit {
        let mut audit = Audit::default();
        for (number, block) in self.blocks.iter().enumerate() {
            let first = (number as u64) << HUGE_ORDER;
            match block.whole {
                Whole::Huge(_) => audit.huge += u64::from(PAGES),
                Whole::Partial => audit.partial += u64::from(PAGES),
                Whole::No => {
                    let (mut movable, mut kernel) = (0, 0);
                    for frame in first..first + u64::from(PAGES) {
                        let owner = self.owner(frame);
                        if owner == Owner::NOBODY {
                            audit.free += u64::from(self.frames.is_free(frame));
                            audit.lost += u64::from(!self.frames.is_free(frame));
                        } else if owner.can_move() {
                            movable += 1;
                        } else {
                            kernel += 1;
                        }
                    }
                    audit.wrong += u64::from(movable != block.movable || kernel != block.kernel);
                    audit.movable += u64::from(movable);
                    audit.kernel += u64::from(kernel);
                }
            }
        }
        audit
    }
}

/// Frames by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Free ones.
    pub free: u64,
    /// Neither free nor anybody's: must be none.
    pub lost: u64,
    /// Those of base pages that can be moved.
    pub movable: u64,
    /// Those of the kernel.
    pub kernel: u64,
    /// Those of huge pages.
    pub huge: u64,
    /// Those of partial huge pages.
    pub partial: u64,
    /// Blocks whose counters are not what they hold: must be none.
    pub wrong: u64,
}

impl Audit {
    /// All frames.
    pub fn sum(&self) -> u64 {
        self.free + self.lost + self.movable + self.kernel + self.huge + self.partial
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand_xoshiro::rand_core::SeedableRng;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Take,
        Kernel,
        Huge,
        Give(usize),
        Split(usize),
        Zero,
        Drop,
        Unsplit,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            8 => Just(Op::Take),
            2 => Just(Op::Kernel),
            4 => Just(Op::Huge),
            6 => (0usize..1000).prop_map(Op::Give),
            1 => (0usize..1000).prop_map(Op::Split),
            2 => Just(Op::Zero),
            1 => Just(Op::Drop),
            3 => Just(Op::Unsplit),
        ]
    }

    proptest! {
        /// A frame that is lost shrinks memory for good; one that is handed out twice makes two
        /// pages share their content.
        #[test]
        fn frames_are_neither_lost_nor_doubled(
            ops in prop::collection::vec(op(), 1..400),
            how in 0usize..3,
        ) {
            let mut physical = Physical::new(Bytes::mib(32));
            let all = physical.len();
            for _ in 0..100 {
                physical.take(Owner::FILE);
            }
            physical.fragment(Fragmentation::ALL[how], &mut SimRng::seed_from_u64(how as u64));
            let (mut base, mut huge) = (Vec::new(), Vec::new());
            let mut held = std::collections::HashSet::new();
            let mut next = 0;
            for op in ops {
                match op {
                    Op::Take | Op::Kernel => {
                        let owner = Owner::page(next, 0);
                        let frame = match op {
                            Op::Take => physical.take(owner),
                            _ => physical.take_kernel(),
                        };
                        next += 1;
                        if let Some(frame) = frame {
                            prop_assert!(held.insert(frame), "frame {frame} twice");
                            base.push(frame);
                        } else {
                            prop_assert_eq!(physical.free(), 0);
                        }
                    }
                    Op::Huge => {
                        if let Some((frame, _)) = physical.take_huge(next) {
                            for frame in frame..frame + 512 {
                                prop_assert!(held.insert(frame), "frame {frame} twice");
                            }
                            huge.push(frame);
                        } else {
                            prop_assert_eq!(physical.free_huge(), 0);
                        }
                        next += 1;
                    }
                    Op::Give(pick) if !base.is_empty() => {
                        let frame = base.swap_remove(pick % base.len());
                        held.remove(&frame);
                        physical.give(frame);
                    }
                    Op::Split(pick) if !huge.is_empty() => {
                        let frame = huge.swap_remove(pick % huge.len());
                        physical.split_huge(frame);
                        base.extend(frame..frame + 512);
                    }
                    Op::Zero => { physical.zero_one(); }
                    Op::Drop => { physical.drop_files(7); }
                    Op::Unsplit => { physical.split_partial(); }
                    Op::Give(_) | Op::Split(_) => {}
                }
                let zeroed = physical.blocks().iter().filter(|block| block.zeroed).count();
                prop_assert_eq!(physical.free_zeroed(), zeroed as u64);
                prop_assert!(physical.free_zeroed() <= physical.free_huge());
            }
            let audit = physical.audit();
            prop_assert_eq!((audit.sum(), audit.lost, audit.wrong), (all, 0, 0));
            prop_assert_eq!(audit.free, physical.free());
            for frame in base {
                physical.give(frame);
            }
            for frame in huge {
                physical.give_huge(frame);
            }
            let audit = physical.audit();
            let files = physical.files();
            let fragments = audit.movable - files;
            prop_assert_eq!(audit.kernel + audit.huge, 0);
            prop_assert_eq!(audit.free + files + fragments + audit.partial, all);
        }
    }

    /// `fragment_memory.c`: one base page of each block stays.
    #[test]
    fn a_fragmented_memory_is_nearly_free_and_has_no_huge_block() {
        let mut rng = SimRng::seed_from_u64(1);
        let mut physical = Physical::new(Bytes::gib(1));
        physical.fragment(Fragmentation::Released, &mut rng);
        let blocks = 512 * 99 / 100;
        assert_eq!(physical.free(), 512 * 512 - blocks);
        assert_eq!(physical.free_huge(), 512 - blocks);

        let mut physical = Physical::new(Bytes::gib(1));
        physical.fragment(Fragmentation::Deferred, &mut rng);
        assert_eq!(physical.free(), (512 - blocks) * 512);
        assert_eq!(physical.unsplit(), blocks);
        assert!(physical.split_partial());
        assert_eq!(physical.free(), (512 - blocks) * 512 + 511);
    }
}
