//! The report of a run with the kernel's engine: the kernel served the faults, Terrace made room.

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos, PageSize};
use terrace_kernel::division::Divided;
use terrace_kernel::engine::stats::Stats;
use terrace_kernel::observe::Choice;
use terrace_kernel::setup::SwapUse;
use terrace_kernel::setup::zram::Held;
use terrace_kernel::store::Backed;

use crate::outside::OutsideReport;
use crate::run::{End, RunLevel, most_allowed};

/// From so much on it is told that most of what was asked for stayed.
const MUCH: Bytes = Bytes::mib(1);

/// What a device takes at most with nothing in it but the header of a swap area: 20 KiB were seen.
const HEADER_TAKES: Bytes = Bytes::kib(64);

/// What a run had, did and cost.
///
/// As many fields as there are figures: it is what `--json` prints, flat for who reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelReport {
    /// The program with its arguments.
    pub program: Vec<String>,
    /// How it ended; `None` while it runs.
    pub end: Option<End>,
    /// How long it ran, or has been running.
    pub elapsed: Nanos,
    /// DRAM that all its processes together may have, of what can be swapped.
    pub budget: Bytes,
    /// Whether they stayed within it, as [`KernelReport::keeps_budget`] has it.
    #[serde(default)]
    pub budget_kept: bool,
    /// For how long it had run when it was within the budget for the first time since that was made smaller,
    /// or since the beginning; `None` while it was not.
    #[serde(default)]
    pub kept_since: Option<Nanos>,
    /// The process of the broker, or of the run, of whose budget this is a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_of: Option<u32>,
    /// The budget beside what is there of it, compressed pages included where it is for them, too. Where
    /// it is a share, those of all runs together.
    #[serde(default)]
    pub run_level: RunLevel,
    /// How the budget is divided, if files' pages are in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub division: Option<Box<Divided>>,
    /// What pages are swapped to.
    pub swap: SwapUse,
    /// What zram devices of it hold for the run, all of them.
    pub store: Option<Held>,
    /// Where others swap to them, too: what they hold for everybody. What they hold for the run is estimated
    /// then, by the mean of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_of_all: Option<Held>,
    /// What the run's own device has written to a file, where it has one.
    #[serde(default)]
    pub backed: Option<Backed>,
    /// What of the programs lies in swap; `None` where the kernel does not tell.
    #[serde(default)]
    pub swapped: Option<Bytes>,
    /// Free swap, if that is too little for programs that have used their budget up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_of_swap: Option<Bytes>,
    /// Whether the budget is for what the compressed pages take, too.
    #[serde(default)]
    pub holds_store: bool,
    /// Where it is: the most that was resident and compressed at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_peak: Option<AtOnce>,
    /// About what the kernel's tables for a device of the run's own take, whatever lies in it. They are in no
    /// budget, and the store does not have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tables: Option<Bytes>,
    /// Memory of the run's processes that its budget does not bound; `None` if none was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<Box<OutsideReport>>,
    /// Processes that have left the run's control group, of all that there were; `None` of a run without one of
    /// its own, where nobody looks.
    #[serde(default)]
    pub left_group: Option<u64>,
    /// What observes accesses for the policy beside what comes back, and why that.
    #[serde(default)]
    pub observing: Choice,
    /// Who chooses what leaves: `kernel`, or a policy.
    pub chooser: String,
    /// Memory of the policy's own.
    pub policy_bytes: Bytes,
    /// What was done.
    #[serde(flatten)]
    pub stats: Stats,
    /// Pages that left DRAM for swap, whoever put them out; `None` where that is not known. What the kernel
    /// was asked for is more where pages stay.
    #[serde(default)]
    pub demotions: Option<u64>,
    /// The most that was charged to the run's control group, files' pages included, as the kernel says.
    pub charged_peak: Option<Bytes>,
    /// What the programs' own threads had to put out to go on; `None` where the kernel does not tell.
    #[serde(default)]
    pub reclaimed_by_itself: Option<Bytes>,
    /// Major faults that the kernel could not tell of.
    pub faults_lost: u64,
    /// Times that they put memory out to go on that the kernel could not tell of.
    #[serde(default)]
    pub direct_lost: u64,
    /// What could not be done on this machine, or for this user.
    pub lacks: Vec<String>,
}

/// What was resident and what compressed pages took at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtOnce {
    /// In DRAM as the programs have it.
    pub resident: Bytes,
    /// Memory that compressed pages took.
    pub store: Bytes,
}

impl AtOnce {
    /// Both together.
    pub fn both(self) -> Bytes {
        self.resident + self.store
    }
}

impl KernelReport {
    /// By how much the budget was exceeded at most, as a share of it; zero if it was not.
    pub fn exceeded(&self) -> f64 {
        if self.budget.is_zero() { 0.0 } else { self.most_above() / self.budget }
    }

    /// The most above the budget. What the engine keeps the programs within is less where that is for
    /// compressed pages, too, and never less than a quarter of it, however much those take.
    pub(crate) fn most_above(&self) -> Bytes {
        if self.holds_store { self.run_level.exceeded_peak } else { self.stats.exceeded }
    }

    /// Whether the programs stayed within their budget since they were within it for the first time, as
    /// with the pager: where it is for compressed pages, too, up to a 32nd above it counts as kept. What
    /// lies outside has to fit into it as well.
    pub fn keeps_budget(&self) -> bool {
        let most = most_allowed(self.budget, self.holds_store);
        self.keeps_covered() && self.outside.as_ref().is_none_or(|o| o.with_managed_peak <= most)
    }

    /// The same of what the budget covers.
    pub fn keeps_covered(&self) -> bool {
        let is_there = self.stats.settled || self.stats.resident_peak <= self.budget;
        is_there && self.budget + self.most_above() <= most_allowed(self.budget, self.holds_store)
    }

    /// When the run was within its budget for the first time, if it had the most before that.
    pub fn peak_before(&self) -> Option<Nanos> {
        let both = self.total_peak.map(AtOnce::both).filter(|_| self.holds_store);
        let peak = both.unwrap_or(self.stats.resident_peak);
        self.kept_since.filter(|_| peak > self.budget + self.most_above())
    }

    /// What lies outside of the budget now, if that is more than is left of it.
    pub fn too_much_outside(&self) -> Option<Bytes> {
        let now = self.outside.as_ref()?.now;
        let has = if self.holds_store { self.run_level.resident } else { self.stats.resident };
        (!now.is_zero() && has + now > self.budget).then_some(now)
    }

    /// Whether most of what was asked for is still there: less than half of it left for swap. `None` where
    /// too little was asked for, or it is not known what left.
    pub fn most_stayed(&self) -> Option<bool> {
        let page = PageSize::Base.bytes();
        let asked = self.stats.reclaimed + page * self.stats.put_out;
        let left = page * self.demotions?;
        (asked >= MUCH).then_some(left < asked / 2)
    }

    /// What zram holds of programs; `None` where nothing ever was there but the headers that make devices swap
    /// areas.
    pub fn stored(&self) -> Option<Held> {
        let devices = self.swap.devices.len().max(1) as u64;
        let held = self.store?;
        // What is estimated of devices that others swap to is pages of the run's.
        let headers = if self.store_of_all.is_some() { 0 } else { devices };
        let original = held.original - PageSize::Base.bytes() * headers;
        let is_used = !original.is_zero() || held.peak > HEADER_TAKES * devices;
        let memory = if original.is_zero() { Bytes::ZERO } else { held.memory };
        is_used.then_some(Held { original, memory, ..held })
    }

    /// How well what lies in zram is compressed; `None` where nothing does but the header that makes
    /// a device a swap area.
    pub fn ratio(&self) -> Option<f64> {
        let headers = PageSize::Base.bytes() * self.swap.devices.len().max(1) as u64;
        let held = self.store.filter(|held| !held.memory.is_zero() && held.original > headers)?;
        Some(held.original.as_f64() / held.memory.as_f64())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use terrace_kernel::setup::SwapKind;

    use super::*;

    pub(crate) fn report() -> KernelReport {
        KernelReport {
            program: vec!["prog".into()],
            end: Some(End::Exited(0)),
            elapsed: Nanos::seconds(2),
            budget: Bytes::mib(100),
            budget_kept: true,
            kept_since: None,
            budget_of: None,
            run_level: RunLevel::default(),
            division: None,
            swap: SwapUse {
                kind: SwapKind::Zram,
                what: "zram0".into(),
                devices: vec![0],
                own: true,
                recompresses: false,
                writes_back: false,
                scarce: None,
            },
            store: None,
            store_of_all: None,
            backed: None,
            swapped: None,
            short_of_swap: None,
            holds_store: false,
            total_peak: None,
            outside: None,
            left_group: None,
            tables: None,
            observing: Choice::default(),
            chooser: "kernel".into(),
            policy_bytes: Bytes::ZERO,
            stats: Stats {
                resident_peak: Bytes::mib(90),
                own_cpu: Nanos::millis(100),
                ..Stats::default()
            },
            demotions: None,
            charged_peak: None,
            reclaimed_by_itself: None,
            faults_lost: 0,
            direct_lost: 0,
            lacks: Vec::new(),
        }
    }

    #[test]
    fn a_budget_is_exceeded_by_what_lies_above_it() {
        let mut report = report();
        assert!(report.exceeded() < 1e-9, "below it");
        report.stats.exceeded = Bytes::mib(4);
        assert!((report.exceeded() - 0.04).abs() < 1e-9);
    }

    #[test]
    fn a_budget_is_kept_until_it_is_exceeded_and_not_before_it_is_reached() {
        let mut report = report();
        assert!(report.keeps_budget(), "nothing was ever above it");
        report.stats.resident_peak = Bytes::mib(110);
        assert!(!report.keeps_budget(), "it had more at first, and was never within it");
        report.stats.settled = true;
        assert!(report.keeps_budget());
        report.stats.exceeded = Bytes(4096);
        assert!(!report.keeps_budget());
    }

    /// The engine takes no more than three quarters off for compressed pages.
    #[test]
    fn a_total_is_exceeded_by_what_is_resident_and_compressed_together() {
        let mut report = report();
        report.holds_store = true;
        report.stats.settled = true;
        // Of the moment's smaller budget.
        report.stats.exceeded = Bytes::mib(9);
        assert!(report.keeps_budget() && report.exceeded() < 1e-9);
        report.run_level.exceeded_peak = Bytes::mib(3);
        assert!(report.keeps_budget(), "a page is there twice while it leaves");
        report.run_level.exceeded_peak = Bytes::mib(50);
        assert!(!report.keeps_budget());
        assert!((report.exceeded() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_budget_that_processes_have_left_is_kept_only_if_they_fit_into_it() {
        let mut report = report();
        report.stats.resident = Bytes::mib(80);
        let outside = |with, now| {
            let (with_managed_peak, now) = (Bytes::mib(with), Bytes::mib(now));
            Some(Box::new(OutsideReport { now, with_managed_peak, ..OutsideReport::default() }))
        };
        report.outside = outside(99, 9);
        assert!(report.keeps_budget() && report.too_much_outside().is_none());
        report.outside = outside(130, 40);
        assert!(report.keeps_covered() && !report.keeps_budget());
        assert_eq!(report.too_much_outside(), Some(Bytes::mib(40)));
    }

    #[test]
    fn what_was_asked_for_is_held_against_what_left() {
        let mut report = report();
        report.stats.reclaimed = Bytes::gib(20);
        assert_eq!(report.most_stayed(), None, "nobody knows what left");
        report.demotions = Some(3_660);
        assert_eq!(report.most_stayed(), Some(true));
        // More than was asked for: the program's own threads put it out.
        (report.stats.reclaimed, report.stats.put_out) = (Bytes::mib(10), 256);
        assert_eq!(report.most_stayed(), Some(false));
        report.stats.reclaimed = Bytes::ZERO;
        (report.stats.put_out, report.demotions) = (10, Some(0));
        assert_eq!(report.most_stayed(), None, "a few pages");
    }

    #[test]
    fn what_was_there_before_the_budget_was_kept_is_known_as_such() {
        let mut report = report();
        (report.stats.settled, report.kept_since) = (true, Some(Nanos::seconds(1)));
        assert_eq!(report.peak_before(), None, "90 MiB of 100");
        report.stats.resident_peak = Bytes::mib(110);
        assert_eq!(report.peak_before(), Some(Nanos::seconds(1)));
        report.stats.exceeded = Bytes::mib(10);
        assert_eq!(report.peak_before(), None, "that was above it");
        report.holds_store = true;
        report.run_level.exceeded_peak = Bytes::mib(3);
        let peak = |store| Some(AtOnce { resident: Bytes::mib(60), store: Bytes::mib(store) });
        report.total_peak = peak(43);
        assert_eq!(report.peak_before(), None);
        report.total_peak = peak(44);
        assert_eq!(report.peak_before(), Some(Nanos::seconds(1)));
    }

    #[test]
    fn the_header_of_a_swap_area_is_nothing_that_a_program_has_there() {
        let mut report = report();
        assert_eq!(report.stored(), None, "nobody knows");
        let (original, memory) = (Bytes::kib(4), Bytes::kib(20));
        report.store = Some(Held { original, memory, peak: memory });
        assert_eq!(report.stored(), None);
        let (peak, none) = (Bytes::mib(4), Bytes::ZERO);
        report.store = Some(Held { original, memory, peak });
        assert_eq!(report.stored(), Some(Held { original: none, memory: none, peak }));
        report.store = Some(Held { original: Bytes::kib(44), memory, peak: memory });
        let original = Bytes::kib(40);
        assert_eq!(report.stored(), Some(Held { original, memory, peak: memory }));
        (report.store, report.store_of_all) = (report.stored(), report.store);
        assert_eq!(
            report.stored().map(|held| held.original),
            Some(original),
            "a share has no header"
        );
    }

    #[test]
    fn nothing_is_compressed_at_no_ratio() {
        let mut report = report();
        assert_eq!(report.ratio(), None);
        report.store = Some(Held::default());
        assert_eq!(report.ratio(), None);
        let (original, memory) = (Bytes::kib(4), Bytes::kib(20));
        report.store = Some(Held { original, memory, peak: memory });
        assert_eq!(report.ratio(), None, "the header of the swap area");
        let (original, memory) = (Bytes::mib(30), Bytes::mib(10));
        report.store = Some(Held { original, memory, peak: memory });
        assert_eq!(report.ratio(), Some(3.0));
    }

    /// The figures are fields of the report and not of something within it.
    #[test]
    fn the_document_is_flat() {
        let document = serde_json::to_value(report()).unwrap();
        assert_eq!(document["resident_peak"], 90 << 20);
        assert_eq!(document["swap"]["kind"], "zram");
    }
}
