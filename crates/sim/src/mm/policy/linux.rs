//! Linux's transparent huge pages.
//!
//! | policy | `enabled` | `defrag` | a fault that finds no free block |
//! |---|---|---|---|
//! | `never` | `never` | | asks for none |
//! | `always` | `always` | `always` | compacts and reclaims |
//! | `madvise` | `madvise` | `madvise` | the same where the program has advised huge pages; elsewhere it asks for none |
//! | `defer` | `always` | `defer` | wakes the compacting thread, also where the program has advised |
//! | `defer+madvise` | `always` | `defer+madvise` | compacts and reclaims where the program has advised, else wakes the thread |
//!
//! As `alloc_hugepage_direct_gfpmask` of Linux 5.5 has it (recalled).

use terrace_core::Cycles;

use super::{Ask, Background, Candidate, Choice, Effort, Khugepaged, MmPolicy};

/// Between passes of khugepaged: 1 s, as the paper's runner sets it (`turn_on_thp`, read), at
/// 2.2 GHz.
const SLEEP: Cycles = Cycles(2_200_000_000);
/// Ranges of a pass: `pages_to_scan` is 4096 base pages.
const SLOTS: u32 = 8;

/// What is written to `transparent_hugepage/enabled` and `defrag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    Never,
    Always,
    Madvise,
    Defer,
    DeferMadvise,
}

/// Linux with one of its settings.
#[derive(Clone, Copy, Debug)]
pub struct Linux(Setting);

impl Linux {
    /// Base pages only.
    pub const fn never() -> Self {
        Self(Setting::Never)
    }

    /// `always` for both, as the paper's runner sets them: a fault compacts and reclaims.
    pub const fn always() -> Self {
        Self(Setting::Always)
    }

    /// `madvise` for both, as most distributions have it: huge pages only where the program
    /// advises them, and there a fault compacts and reclaims.
    pub const fn madvise() -> Self {
        Self(Setting::Madvise)
    }

    /// `always`, and `defer` for defragmentation: a fault takes what is free; if nothing is, it
    /// wakes the compacting thread for those who come later.
    pub const fn defer() -> Self {
        Self(Setting::Defer)
    }

    /// `always`, and `defer+madvise` for defragmentation: as [`defer`](Self::defer), but where the
    /// program advises a fault compacts and reclaims.
    pub const fn defer_madvise() -> Self {
        Self(Setting::DeferMadvise)
    }
}

impl MmPolicy for Linux {
    fn name(&self) -> &'static str {
        match self.0 {
            Setting::Never => "never",
            Setting::Always => "always",
            Setting::Madvise => "madvise",
            Setting::Defer => "defer",
            Setting::DeferMadvise => "defer+madvise",
        }
    }

    fn background(&self) -> Background {
        let on = self.0 != Setting::Never;
        let pass = Khugepaged { sleep: SLEEP, slots: SLOTS, compact: true, ranked: false };
        Background { khugepaged: on.then_some(pass), ..Background::default() }
    }

    fn first_touch(&mut self, ask: &Ask<'_>) -> Choice {
        match (self.0, ask.advised) {
            (Setting::Never, _) | (Setting::Madvise, false) => Choice::Base,
            (Setting::Always, _) | (Setting::Madvise | Setting::DeferMadvise, true) => {
                Choice::Huge(Effort::Reclaim)
            }
            (Setting::Defer, _) | (Setting::DeferMadvise, false) => Choice::Huge(Effort::Wake),
        }
    }

    /// `max_ptes_none` is 511: one page present is enough. With `madvise`, khugepaged looks only
    /// at what the program has advised.
    fn collapse(&mut self, candidate: &Candidate) -> f64 {
        let wanted = self.0 != Setting::Madvise || candidate.advised;
        if wanted && candidate.present > 0 { 1.0 } else { 0.0 }
    }
}
