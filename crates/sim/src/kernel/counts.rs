//! What came of a run: pages, references, lifetimes, moves, by what pages hold.

use serde::Serialize;
use terrace_core::{MAX_TIERS, TierId};

use super::memory::Role;

/// What a page holds, as counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Memory of the program.
    Program,
    /// Pages of files.
    PageCache,
    /// Slab objects.
    Slab,
    /// Buffers of devices: receive rings and requests.
    Buffers,
}

impl Class {
    /// Every class, in the order of its index.
    pub const ALL: [Self; 4] = [Self::Program, Self::PageCache, Self::Slab, Self::Buffers];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::PageCache => "page cache",
            Self::Slab => "slab",
            Self::Buffers => "device buffers",
        }
    }

    pub(super) const fn of(role: Role) -> Self {
        match role {
            Role::Free | Role::Program => Self::Program,
            Role::Cache => Self::PageCache,
            Role::Slab => Self::Slab,
            Role::Receive | Role::Requests => Self::Buffers,
        }
    }
}

/// How long something lived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Lifetimes {
    /// How many have been freed.
    pub freed: u64,
    /// Their ages together, in nanoseconds.
    pub nanos: f64,
    /// How many live at the end.
    pub living: u64,
    /// Their ages then, in nanoseconds.
    pub living_nanos: f64,
}

impl Lifetimes {
    /// Mean age of what was freed, in milliseconds; `None` if nothing was.
    pub fn mean_ms(&self) -> Option<f64> {
        (self.freed > 0).then(|| self.nanos / self.freed as f64 / 1e6)
    }
    /// Mean age of all, what lives counted by its age at the end, in milliseconds.
    pub fn mean_with_living_ms(&self) -> Option<f64> {
        let all = self.freed + self.living;
        (all > 0).then(|| (self.nanos + self.living_nanos) / all as f64 / 1e6)
    }
}

/// What is counted of one class of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ClassCounts {
    /// Pages that were placed, by tier.
    pub placed: [u64; MAX_TIERS],
    /// Lines that were touched.
    pub references: u64,
    /// Of them, lines that no cache had, by tier.
    pub misses: [u64; MAX_TIERS],
    /// Moves to a slower tier.
    pub demoted: u64,
    /// Moves to a faster tier.
    pub promoted: u64,
    /// How long its pages lived.
    pub lifetimes: Lifetimes,
}

impl ClassCounts {
    /// Pages that were placed.
    pub fn pages(&self) -> u64 {
        self.placed.iter().sum()
    }
}

/// What is counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    /// By class, in the order of [`Class::ALL`].
    pub classes: [ClassCounts; 4],
    /// Objects that were allocated, by [`terrace_core::ObjectKind::index`].
    pub objects: [u64; terrace_core::ObjectKind::COUNT],
    /// Reads of pages that were in the page cache.
    pub cache_hits: u64,
    /// Reads of pages that were not.
    pub cache_misses: u64,
    /// Pages that were read ahead.
    pub read_ahead: u64,
    /// Pages that reclaim took from the page cache.
    pub reclaimed: u64,
    /// Inodes that the shrinker evicted.
    pub evicted: u64,
    /// Pages that were written to the disk.
    pub written_back: u64,
    /// Commits of the journal.
    pub commits: u64,
    /// Proposals that were not carried out.
    pub refused: u64,
}

impl Counts {
    /// One class.
    pub fn class(&self, class: Class) -> &ClassCounts {
        &self.classes[class as usize]
    }

    pub(super) fn placed(&mut self, class: Class, tier: TierId) {
        self.classes[class as usize].placed[tier.index()] += 1;
    }

    pub(super) fn freed(&mut self, class: Class, _tier: TierId, age: f64) {
        let lifetimes = &mut self.classes[class as usize].lifetimes;
        lifetimes.freed += 1;
        lifetimes.nanos += age;
    }

    pub(super) fn forget_living(&mut self) {
        for class in &mut self.classes {
            (class.lifetimes.living, class.lifetimes.living_nanos) = (0, 0.0);
        }
    }

    pub(super) fn living(&mut self, class: Class, age: f64) {
        let lifetimes = &mut self.classes[class as usize].lifetimes;
        lifetimes.living += 1;
        lifetimes.living_nanos += age;
    }

    pub(super) fn referenced(&mut self, class: Class, tier: TierId, lines: u32, missed: u32) {
        let class = &mut self.classes[class as usize];
        class.references += u64::from(lines);
        class.misses[tier.index()] += u64::from(missed);
    }

    pub(super) fn moved(&mut self, class: Class, from: TierId, to: TierId) {
        let class = &mut self.classes[class as usize];
        *(if to > from { &mut class.demoted } else { &mut class.promoted }) += 1;
    }

    /// What was counted since an earlier look.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut counts = self.clone();
        for (class, before) in counts.classes.iter_mut().zip(&earlier.classes) {
            for tier in 0..MAX_TIERS {
                class.placed[tier] -= before.placed[tier];
                class.misses[tier] -= before.misses[tier];
            }
            class.references -= before.references;
            class.demoted -= before.demoted;
            class.promoted -= before.promoted;
            class.lifetimes.freed -= before.lifetimes.freed;
            class.lifetimes.nanos -= before.lifetimes.nanos;
        }
        for (count, before) in counts.objects.iter_mut().zip(&earlier.objects) {
            *count -= before;
        }
        for (count, before) in [
            (&mut counts.cache_hits, earlier.cache_hits),
            (&mut counts.cache_misses, earlier.cache_misses),
            (&mut counts.read_ahead, earlier.read_ahead),
            (&mut counts.reclaimed, earlier.reclaimed),
            (&mut counts.evicted, earlier.evicted),
            (&mut counts.written_back, earlier.written_back),
            (&mut counts.commits, earlier.commits),
            (&mut counts.refused, earlier.refused),
        ] {
            *count -= before;
        }
        counts
    }
}
