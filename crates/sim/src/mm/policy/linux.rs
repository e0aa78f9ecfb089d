//! Linux's transparent huge pages.

use terrace_core::Cycles;

use super::{Ask, Background, Candidate, Choice, Effort, Khugepaged, MmPolicy};
use crate::mm::costs::Costs;

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
    Defer,
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

    /// `always`, and `defer+madvise` for defragmentation: a fault takes what is free; only
    /// where the program advises does it compact and reclaim.
    pub const fn defer() -> Self {
        Self(Setting::Defer)
    }
}

impl MmPolicy for Linux {
    fn name(&self) -> &'static str {
        match self.0 {
            Setting::Never => "never",
            Setting::Always => "always",
            Setting::Defer => "defer",
        }
    }

    fn background(&self) -> Background {
        let on = self.0 != Setting::Never;
        let pass = Khugepaged { sleep: SLEEP, slots: SLOTS, compact: true, ranked: false };
        Background { khugepaged: on.then_some(pass), ..Background::default() }
    }

    fn asking(&self, _costs: &Costs) -> Cycles {
        Cycles::ZERO
    }

    fn first_touch(&mut self, ask: &Ask<'_>) -> Choice {
        match self.0 {
            Setting::Never => Choice::Base,
            Setting::Always => Choice::Huge(Effort::Reclaim),
            Setting::Defer if ask.advised => Choice::Huge(Effort::Reclaim),
            Setting::Defer => Choice::Huge(Effort::Free),
        }
    }

    /// `max_ptes_none` is 511: one page present is enough.
    fn collapse(&mut self, candidate: &Candidate) -> f64 {
        if candidate.present > 0 { 1.0 } else { 0.0 }
    }
}
