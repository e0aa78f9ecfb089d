//! The kernel's threads: reclaim, compaction, khugepaged, zeroing. Each has a processor of its own, as the
//! paper's machine has twenty and programs that keep few of them busy.

use terrace_core::Cycles;

use super::compaction::Compacted;
use super::costs::Costs;
use super::kcompactd::Kcompactd;
use super::kernel::Mm;
use super::physical::PAGES;
use super::policy::{AheadAsk, Background, Became, Candidate, ZeroAsk};
use super::reclaim::Shrinker;
use super::space::{Backing, Page, Watched};

/// The threads are looked at so often: a tenth of a millisecond or so.
const LOOK: u64 = 200_000;
/// How busy threads are is a mean of about so many looks.
const OF_LATE: f64 = 16.0;

/// What the threads are at.
#[derive(Clone, Debug, Default)]
pub struct Threads {
    background: Background,
    looked: Cycles,
    pub(super) shrinker: Shrinker,
    pub(super) kcompactd: Kcompactd,
    /// The reclaiming thread has work.
    awake: bool,
    priority: u32,
    reclaimed_until: Cycles,
    /// When khugepaged begins its next pass.
    next_pass: Cycles,
    /// Slot that a pass in order of addresses begins with.
    cursor: u32,
    /// Slots by rank, best last.
    queue: Vec<u32>,
    zeroed_until: Cycles,
    /// Zeroing was refused after so many first touches: without others nothing speaks for it.
    zeroing_refused: Option<u64>,
    /// What the threads had worked when they were looked at, and the share of their time since, of
    /// late.
    worked: Cycles,
    busy: f64,
    /// Up to when the thread that makes blocks ahead was paid, and what it may still work.
    made_until: Cycles,
    allowance: Cycles,
    /// Blocks that it has made, and partial huge pages that it has split for them.
    made: u64,
    split: u64,
}

/// What came of a pass of khugepaged.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    work: Cycles,
    /// All ranges were ranked, and none was worth it.
    found_none: bool,
}

impl Threads {
    /// Threads as a policy wants them.
    pub fn new(background: Background) -> Self {
        let next_pass = background.khugepaged.map_or(Cycles::MAX, |pass| pass.sleep);
        Self { background, next_pass, ..Self::default() }
    }

    /// Blocks that are zeroed before the program starts.
    pub fn warm_blocks(&self, costs: &Costs) -> u64 {
        let block = costs.prezero_base * u64::from(PAGES);
        self.background.prezero.map_or(0, |zero| zero.warm.get() / block.get().max(1))
    }
}

impl Mm {
    /// Threads work up to now.
    pub(super) fn background(&mut self) {
        if self.now - self.threads.looked < Cycles(LOOK) {
            return;
        }
        self.look_at_threads();
        self.look_at_watched();
        self.reclaim_in_background();
        self.compact_in_background();
        self.make_ahead();
        self.zero_in_background();
        // Passes in a row that ranked all ranges and took none. After the second no range has
        // misses any more and time stands still, so that any other finds the same.
        let mut idle = 0;
        let mut work = Cycles::ZERO;
        while self.threads.next_pass <= self.now {
            if idle < 2 {
                let pass = self.pass();
                work = pass.work;
                idle = if pass.found_none { idle + 1 } else { 0 };
            }
            self.counts.background += work;
            let sleep = self.threads.background.khugepaged.map_or(Cycles::MAX, |pass| pass.sleep);
            self.threads.next_pass = self.threads.next_pass + sleep + work;
        }
        let deciding = self.decided();
        self.counts.background += deciding;
    }

    /// How busy the processor is that the threads work on. Each is simulated as if it had its own; what
    /// they take from each other is in the price of what they do ahead.
    fn look_at_threads(&mut self) {
        let worked = (self.counts.background - self.threads.worked).as_f64();
        let busy = (worked / (self.now - self.threads.looked).as_f64()).min(1.0);
        self.threads.busy += (busy - self.threads.busy) / OF_LATE;
        self.threads.worked = self.counts.background;
        self.threads.looked = self.now;
    }

    /// The reclaiming thread: from the lower limit to the upper.
    fn reclaim_in_background(&mut self) {
        let limits = self.physical.watermarks;
        if !self.threads.awake {
            if self.physical.free() >= limits.low {
                return;
            }
            self.threads.awake = true;
            self.threads.priority = 12;
            self.threads.reclaimed_until = self.now - Cycles(LOOK);
        }
        while self.threads.reclaimed_until < self.now {
            if self.physical.free() >= limits.high {
                self.threads.awake = false;
                break;
            }
            let wanted = limits.high - self.physical.free();
            let before = self.physical.free();
            let (_, cycles) = self.shrink(self.threads.priority, wanted);
            self.counts.reclaim.background += 1;
            let cycles = cycles + self.costs.reclaim_call;
            self.counts.background += cycles;
            self.threads.reclaimed_until += cycles;
            // `balance_pgdat`: a turn that did not balance memory is followed by a harder one.
            self.threads.priority = match self.threads.priority {
                0 if self.physical.free() == before => {
                    // Nothing is left: it sleeps until somebody frees memory.
                    self.threads.awake = false;
                    break;
                }
                0 => 12,
                priority => priority - 1,
            };
        }
    }

    /// Free blocks are made before they are asked for, while the policy finds that this pays.
    fn make_ahead(&mut self) {
        let Some(ahead) = self.threads.background.ahead else { return };
        let budget = Cycles::from_f64((self.now - self.threads.made_until).as_f64() * ahead.share);
        self.threads.made_until = self.now;
        self.threads.allowance = (self.threads.allowance + budget).min(Cycles(LOOK * 50));
        while !self.threads.allowance.is_zero() && self.physical.free_huge() < ahead.blocks {
            let before = self.physical.free_huge();
            let blocks = ahead.blocks - before;
            let ask = AheadAsk {
                blocks,
                made: self.counts.compaction.made,
                moved: self.counts.compaction.moved,
                splits: self.splits_for(blocks),
                busy: self.threads.busy,
                now: self.now,
                memory: self.memory(),
            };
            if !self.policy.makes_ahead(&ask) {
                return;
            }
            let (how, mut cycles) = self.compact_to(ahead.blocks, self.threads.allowance);
            let made = self.physical.free_huge().saturating_sub(before);
            self.threads.made += made;
            if matches!(how, Compacted::Complete | Compacted::Skipped) {
                if self.physical.split_partial() {
                    self.counts.reclaim.split += 1;
                    self.threads.split += 1;
                    cycles += self.costs.split_huge;
                } else {
                    // Nothing more can be made for now.
                    self.threads.allowance = Cycles::ZERO;
                }
            }
            // Splitting may have set some free as well.
            let made = self.physical.free_huge().saturating_sub(before);
            self.policy.became(Became::Made { made, of: blocks, cost: cycles });
            self.counts.background += cycles;
            self.threads.allowance -= cycles;
        }
    }

    /// How many partial huge pages are likely to be split for so many blocks: one for each where
    /// nothing can be moved without, else as many as it took so far.
    fn splits_for(&self, blocks: u64) -> u64 {
        let Threads { made, split, .. } = self.threads;
        let likely = match made {
            _ if !self.can_compact() => blocks,
            0 => 0,
            made => (split * blocks).div_ceil(made),
        };
        likely.min(self.physical.unsplit())
    }

    /// The zeroing thread: so many base pages, then it sleeps.
    fn zero_in_background(&mut self) {
        let Some(zero) = self.threads.background.prezero else { return };
        let block = self.costs.prezero_base * u64::from(PAGES);
        // A block at a time, as often as its pages come to.
        let every = Cycles((zero.sleep.get() * u64::from(PAGES)).div_ceil(zero.pages.max(1)));
        while self.threads.zeroed_until + every <= self.now {
            self.threads.zeroed_until += every;
            if !self.zeroes_one() {
                self.threads.zeroed_until = self.now;
                break;
            }
            self.counts.prezeroed += 1;
            self.counts.background += block;
            self.policy.became(Became::Zeroed { cost: block });
        }
    }

    /// Zeroes a block, if there is one and the policy wants it.
    fn zeroes_one(&mut self) -> bool {
        let is_settled = self.threads.zeroing_refused == Some(self.counts.asked);
        if is_settled || self.physical.free_zeroed() == self.physical.free_huge() {
            return false;
        }
        let ask = ZeroAsk {
            zeroed: self.physical.free_zeroed(),
            busy: self.threads.busy,
            now: self.now,
            memory: self.memory(),
        };
        if !self.policy.zeroes_ahead(&ask) {
            self.threads.zeroing_refused = Some(self.counts.asked);
            return false;
        }
        let is_found = self.physical.zero_one();
        if !is_found {
            self.policy.became(Became::NotZeroed);
        }
        is_found
    }

    /// One pass of khugepaged.
    fn pass(&mut self) -> Pass {
        let Some(pass) = self.threads.background.khugepaged else { return Pass::default() };
        let slots = self.spaces.len();
        let mut work = Cycles::ZERO;
        if slots == 0 {
            return Pass::default();
        }
        if pass.ranked && self.threads.queue.is_empty() {
            work += self.rank();
            if self.threads.queue.is_empty() {
                return Pass { work, found_none: true };
            }
        }
        for _ in 0..pass.slots {
            let number = if pass.ranked {
                match self.threads.queue.pop() {
                    Some(number) => number,
                    None => break,
                }
            } else {
                let number = self.threads.cursor % slots;
                self.threads.cursor = (number + 1) % slots;
                number
            };
            work += self.costs.scan_table * u64::from(PAGES);
            let Some(candidate) = self.candidate(number) else { continue };
            if self.policy.collapse(&candidate) <= 0.0 {
                continue;
            }
            let before = self.counts.collapsed;
            let cost = self.collapse(number, pass.compact);
            let done = self.counts.collapsed > before;
            self.policy.became(Became::Collapsed { done, cost });
            work += cost;
        }
        Pass { work, found_none: false }
    }

    /// All slots with base pages, ranked by the policy.
    fn rank(&mut self) -> Cycles {
        let mut ranked = Vec::new();
        let mut looked = 0;
        let mut from = 0;
        while let Some(number) = self.spaces.next_with_base(from) {
            from = number + 1;
            if let Some(candidate) = self.candidate(number) {
                looked += 1;
                let rank = self.policy.collapse(&candidate);
                if rank > 0.0 {
                    ranked.push((rank, number));
                }
            }
        }
        self.spaces.ranked();
        // Best last; of equals, the lowest number last.
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        self.threads.queue = ranked.into_iter().map(|(_, number)| number).collect();
        self.costs.scan_table * u64::from(PAGES) * looked
    }

    fn candidate(&mut self, number: u32) -> Option<Candidate> {
        let slot = self.spaces.slot(number);
        if slot.present == 0 || slot.shared || slot.watched == Watched::HeldOut {
            return None;
        }
        if !matches!(slot.backing(), Backing::Base(_)) {
            return None;
        }
        let (present, address, process) = (slot.present, slot.address, slot.process);
        let used = self.spaces.coverage(number);
        let area = self.spaces.area(process, address)?;
        area.holds_huge(address).then(|| Candidate {
            process: area.process,
            section: area.section,
            offset: terrace_core::Bytes(address - area.start),
            address,
            advised: area.advised,
            present: u32::from(present),
            used,
            free_huge: self.physical.free_huge(),
            can_compact: self.can_compact(),
            now: self.now,
            made: self.counts.compaction.made,
            compacting: self.counts.compaction.cycles,
            memory: self.memory(),
        })
    }

    /// A slot's base pages become a huge page; returns the work.
    fn collapse(&mut self, number: u32, compact: bool) -> Cycles {
        let mut work = Cycles::ZERO;
        if !self.has_room_for_huge() || self.physical.free_huge() == 0 {
            let made = if compact {
                let (how, time) = self.compact(Cycles::MAX);
                work += time;
                how == Compacted::Made
            } else {
                false
            };
            if !made {
                self.counts.collapse_failed += 1;
                return work;
            }
        }
        let Some((frame, _)) = self.physical.take_huge(number) else {
            self.counts.collapse_failed += 1;
            return work;
        };
        let backing = self.spaces.back(number, Backing::Huge(frame));
        let slot = self.spaces.slot_mut(number);
        let present = u32::from(slot.present);
        slot.present = PAGES as u16;
        self.flushed(number);
        if let Backing::Base(pages) = backing {
            for page in pages.iter() {
                if let Some(frame) = page.frame() {
                    self.physical.give(frame);
                } else if *page == Page::SWAPPED {
                    self.swap.release();
                    work += self.costs.swap_in;
                }
            }
        }
        self.counts.collapsed += 1;
        self.counts.stalled += self.costs.collapse_stall;
        work + self.costs.collapse_of(present)
    }
}
