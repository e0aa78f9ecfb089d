//! Which memory gets huge pages: one contract, several policies.
//!
//! A policy is asked on the first touch of a range that a huge page could back, and about
//! ranges that khugepaged comes to. It says how the kernel's threads work. It never touches
//! memory itself.
//!
//! | file | policy |
//! |---|---|
//! | [`linux`] | `never`, `always`, `madvise`, `defer` and `defer+madvise` |
//! | [`hawkeye`] | `HawkEye`: by coverage of accesses |
//! | [`cbmm`] | CBMM with a program's profile, or with its general one |
//! | [`economist`] | ours: every way to a huge page has its price, by the code of live runs |

pub mod cbmm;
pub mod economist;
pub mod hawkeye;
pub mod linux;

use core::fmt;
use core::str::FromStr;

use serde::{Serialize, Serializer};
use terrace_core::{ActionClass, Bytes, Cycles, Frequency};
use terrace_economics::Account;

use super::benefit::{Place, Profile};
use super::costs::Costs;
use super::space::Section;
use crate::analytic::listeners::OnDecisions;
use crate::error::SimError;

/// How much memory there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The machine's.
    pub all: Bytes,
    /// Of it, free.
    pub free: Bytes,
}

/// What is known on the first touch of a range that a huge page could back.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Whose memory.
    pub process: u32,
    /// Its section.
    pub section: Section,
    /// Distance from the begin of its mapping.
    pub offset: Bytes,
    /// First address of the range.
    pub address: u64,
    /// Whether the program advised huge pages.
    pub advised: bool,
    /// Free blocks.
    pub free_huge: u64,
    /// Of those, zeroed ones.
    pub free_zeroed: u64,
    /// Partial huge pages that could be split.
    pub unsplit: u64,
    /// Whether there is room for compaction.
    pub can_compact: bool,
    /// Time since the program started.
    pub now: Cycles,
    /// Blocks that compaction made so far.
    pub made: u64,
    /// What it took for that.
    pub compacting: Cycles,
    /// The machine's memory.
    pub memory: Memory,
    /// What work costs.
    pub costs: &'a Costs,
}

impl Ask<'_> {
    /// Where it is.
    pub const fn place(&self) -> Place {
        let (process, section) = (self.process, self.section);
        Place { process, section, offset: self.offset, address: self.address }
    }
}

/// What is known when blocks could be made before they are asked for.
#[derive(Clone, Copy, Debug)]
pub struct AheadAsk {
    /// How many are wanting.
    pub blocks: u64,
    /// Blocks that compaction made so far.
    pub made: u64,
    /// Pages that it moved for them.
    pub moved: u64,
    /// Partial huge pages that are likely to be split for the blocks.
    pub splits: u64,
    /// The share of its time that the processor of the kernel's threads is at work, 0 to 1.
    pub busy: f64,
    /// Time since the program started.
    pub now: Cycles,
    /// The machine's memory.
    pub memory: Memory,
}

/// What is known when a free block could be zeroed before it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct ZeroAsk {
    /// Blocks that are free and zeroed.
    pub zeroed: u64,
    /// The share of its time that the processor of the kernel's threads is at work, 0 to 1.
    pub busy: f64,
    /// Time since the program started.
    pub now: Cycles,
    /// The machine's memory.
    pub memory: Memory,
}

/// What is known of a range with base pages that khugepaged comes to.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Whose memory.
    pub process: u32,
    /// Its section.
    pub section: Section,
    /// Distance from the begin of its mapping.
    pub offset: Bytes,
    /// First address of the range.
    pub address: u64,
    /// Whether the program advised huge pages.
    pub advised: bool,
    /// Base pages that are present.
    pub present: u32,
    /// Base pages that were used since ranges were ranked last, about.
    pub used: u32,
    /// Free blocks.
    pub free_huge: u64,
    /// Whether there is room for compaction.
    pub can_compact: bool,
    /// Time since the program started.
    pub now: Cycles,
    /// Blocks that compaction made so far.
    pub made: u64,
    /// What it took for that.
    pub compacting: Cycles,
    /// The machine's memory.
    pub memory: Memory,
}

impl Candidate {
    /// Where it is.
    pub const fn place(&self) -> Place {
        let (process, section) = (self.process, self.section);
        Place { process, section, offset: self.offset, address: self.address }
    }
}

/// How far a fault may go for a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Only if one is free.
    Free,
    /// Only if one is free; else the compacting thread is woken for those who come later.
    Wake,
    /// Compaction, for at most so long.
    Compact(Cycles),
    /// Compaction and reclaim, whatever they take.
    Reclaim,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Base pages.
    Base,
    /// Base pages, although a huge one would pay: to see what it would have averted.
    HeldOut,
    /// A huge page, if so much effort can make one.
    Huge(Effort),
}

/// What came of something that a policy has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    /// A first touch has a huge page, or there was none after all; it took so long.
    Touched {
        /// Whether it has one.
        huge: bool,
        /// What the program waited.
        cost: Cycles,
    },
    /// Base pages became a huge one, or there was no block for it.
    Collapsed {
        /// Whether they did.
        done: bool,
        /// What the thread worked.
        cost: Cycles,
    },
    /// Blocks were made ahead: all that were wanted, or as many as there was time for.
    Made {
        /// How many there are.
        made: u64,
        /// How many were wanted.
        of: u64,
        /// What the thread worked.
        cost: Cycles,
    },
    /// A block was zeroed.
    Zeroed {
        /// What the thread worked.
        cost: Cycles,
    },
    /// No block was found that could be.
    NotZeroed,
    /// Somebody has taken a zeroed block.
    ZerosTaken,
}

/// What became of a range in base pages that was held out, since its first touch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// The range.
    pub place: Place,
    /// How long it was looked at.
    pub time: Cycles,
    /// Base pages that were touched.
    pub touched: u32,
    /// Cycles of page walks beyond those that a huge page has on the mean.
    pub walks: f64,
}

/// What a policy that prices its decisions has in its books.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Books {
    /// Of each class of action that was proposed.
    pub classes: Vec<ClassBook>,
    /// What deciding has cost.
    pub deciding: Cycles,
}

/// What was predicted of a class of action, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClassBook {
    /// The class.
    pub class: ActionClass,
    /// By which factor its real cost differs from the built-in one.
    pub correction: f64,
    /// The account.
    pub account: Account,
    /// Let pass, and waiting for its end when the run was over ([`Account::unfinished`]).
    pub unfinished: u64,
}

/// How khugepaged works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Khugepaged {
    /// Between two passes.
    pub sleep: Cycles,
    /// Ranges of a pass.
    pub slots: u32,
    /// Whether it may compact.
    pub compact: bool,
    /// In the order of the policy's rank, not of addresses.
    pub ranked: bool,
}

/// How the zeroing thread works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Prezero {
    /// Time that it had before the program, for itself.
    pub warm: Cycles,
    /// Base pages at a time.
    pub pages: u64,
    /// Between two times.
    pub sleep: Cycles,
}

/// The kernel's threads as a policy wants them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Background {
    /// Whether and how base pages become huge ones.
    pub khugepaged: Option<Khugepaged>,
    /// Whether and how free blocks are zeroed.
    pub prezero: Option<Prezero>,
    /// Whether and how free blocks are made before they are asked for.
    pub ahead: Option<Ahead>,
}

/// How a thread makes free blocks before they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ahead {
    /// Free blocks that are enough.
    pub blocks: u64,
    /// The share of a processor that it may take.
    pub share: f64,
}

/// Decides about huge pages.
pub trait MmPolicy: Send {
    /// What people call it.
    fn name(&self) -> &'static str;
    /// How the kernel's threads work.
    fn background(&self) -> Background;
    /// What deciding has taken since this was asked last.
    fn spent(&mut self, _costs: &Costs) -> Cycles {
        Cycles::ZERO
    }
    /// The first touch of a range that a huge page could back.
    fn first_touch(&mut self, ask: &Ask<'_>) -> Choice;
    /// Whether khugepaged should collapse a range: not at 0 and below; where ranges are ranked,
    /// the highest first.
    fn collapse(&mut self, candidate: &Candidate) -> f64;
    /// Whether it ever fills memory when it is mapped: only then is it asked about places.
    fn fills_mappings(&self) -> bool {
        false
    }
    /// Whether memory is filled with pages when it is mapped, before anybody touches it.
    fn fills_when_mapped(&mut self, _place: Place) -> bool {
        false
    }
    /// Whether the base pages of a range are filled some at a time, each with the first touch of a
    /// neighbour. Asked at the first touch, when the range gets base pages.
    fn fills_when_touched(&mut self, _ask: &Ask<'_>) -> bool {
        false
    }
    /// Whether blocks made ahead are likely to be asked for, and worth it.
    fn makes_ahead(&mut self, _ask: &AheadAsk) -> bool {
        false
    }
    /// Whether one more free block is zeroed in the background.
    fn zeroes_ahead(&mut self, _ask: &ZeroAsk) -> bool {
        true
    }
    /// What came of what it has asked for last.
    fn became(&mut self, _became: Became) {}
    /// What became of a range that was held out.
    fn seen(&mut self, _seen: &Seen) {}
    /// Of so many pages of a range that were filled ahead, so many were touched.
    fn filled(&mut self, _place: Place, _filled: u32, _used: u32) {}
    /// Its books, if it keeps any.
    fn books(&self) -> Option<Books> {
        None
    }
    /// From now on somebody hears of its decisions, if it is a policy that prices them.
    fn hear(&mut self, _decisions: OnDecisions) {}
}

/// A policy's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MmPolicyName {
    /// Base pages only.
    Never,
    /// Linux: huge pages always, with direct compaction and reclaim.
    Always,
    /// Linux: huge pages only where the program advises, with direct compaction and reclaim there.
    Madvise,
    /// Linux: huge pages if one is free, else the compacting thread is woken.
    Defer,
    /// Linux: the same, but direct compaction and reclaim where the program advises.
    DeferMadvise,
    /// `HawkEye`.
    HawkEye,
    /// CBMM with the program's profile.
    Cbmm,
    /// CBMM with its general profile.
    CbmmGeneral,
    /// Terrace's estimator, with the program's profile.
    Economist,
}

impl MmPolicyName {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Never,
        Self::Always,
        Self::Madvise,
        Self::Defer,
        Self::DeferMadvise,
        Self::HawkEye,
        Self::Cbmm,
        Self::CbmmGeneral,
        Self::Economist,
    ];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Always => "always",
            Self::Madvise => "madvise",
            Self::Defer => "defer",
            Self::DeferMadvise => "defer+madvise",
            Self::HawkEye => "hawkeye",
            Self::Cbmm => "cbmm",
            Self::CbmmGeneral => "cbmm-general",
            Self::Economist => "terrace",
        }
    }

    /// Whether it needs a program's profile.
    pub const fn needs_profile(self) -> bool {
        matches!(self, Self::Cbmm | Self::Economist)
    }

    /// The policy, on a kernel with such costs and a processor with such a clock. One in so many
    /// huge pages that would pay is held out, if it is a policy that does that; none for 0.
    ///
    /// # Errors
    ///
    /// Where it needs a profile and there is none.
    pub fn build(
        self,
        profile: Option<&Profile>,
        costs: &Costs,
        clock: Frequency,
        hold_out: u32,
    ) -> Result<Box<dyn MmPolicy>, SimError> {
        let needed = || {
            let message = format!("`{self}` needs a profile of the program");
            profile.cloned().ok_or_else(|| SimError::parameter("policy", message))
        };
        Ok(match self {
            Self::Never => Box::new(linux::Linux::never()),
            Self::Always => Box::new(linux::Linux::always()),
            Self::Madvise => Box::new(linux::Linux::madvise()),
            Self::Defer => Box::new(linux::Linux::defer()),
            Self::DeferMadvise => Box::new(linux::Linux::defer_madvise()),
            Self::HawkEye => Box::new(hawkeye::HawkEye),
            Self::Cbmm => Box::new(cbmm::Cbmm::new(self.name(), needed()?)),
            Self::CbmmGeneral => Box::new(cbmm::Cbmm::new(self.name(), Profile::general())),
            Self::Economist => {
                Box::new(economist::Economist::new(needed()?, costs, clock).holding_out(hold_out))
            }
        })
    }
}

impl fmt::Display for MmPolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for MmPolicyName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl FromStr for MmPolicyName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|name| name.name() == text).ok_or_else(|| {
            let names: Vec<String> = Self::ALL.iter().map(|name| format!("`{name}`")).collect();
            format!("`{text}` is not a huge-page policy (there are {})", names.join(", "))
        })
    }
}
