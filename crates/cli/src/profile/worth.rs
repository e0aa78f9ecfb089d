//! Whether memory that fits is managed for a profile's sake, and what says so.

use serde::Serialize;
use terrace_core::{Cycles, Nanos};
use terrace_economics::managing::{Managing, PLAIN_FAULT};
use terrace_economics::{Calibration, Mode};
use terrace_profile::{Estimate, Key, Policy, Profile, SLOT, WalkTime, live};

/// Base pages of a huge page.
const BASES: u64 = 512;

/// The decision, with both of its sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Worth {
    /// Waiting for page walks that huge pages avert at least.
    averts: Nanos,
    /// What first touches take more in managed memory, at most.
    costs: Nanos,
    /// Base pages that these are.
    pages: u64,
    /// What a first touch took without Terrace when it was measured, before the run.
    plain_fault: Nanos,
    /// Whether that cannot be right, and a built-in time counts in its place.
    plain_fault_assumed: bool,
    /// Whether the first surely outweighs the second.
    pays: bool,
    /// Whether memory is managed from the first large mapping on. Otherwise as without a profile: as soon
    /// as it does not fit.
    pub(crate) at_once: bool,
}

impl Worth {
    /// Asks it of a profile: of all large mappings that it knows, or of one huge page of a rule, whichever
    /// speaks more for it. A rule does not say how much memory it will be about.
    pub(crate) fn of(
        profile: &Profile,
        mode: Mode,
        plain_fault: Nanos,
        prices: &Calibration,
    ) -> Self {
        let scale = prices.clock / profile.clock;
        let here = |cycles: f64, time: WalkTime| {
            let waited = cycles * scale / time.overlap(prices.parallelism());
            Cycles::from_f64(if waited.is_finite() { waited } else { 0.0 })
        };
        let known = {
            let (averted, pages) = of_mappings(profile);
            let averted = here(averted, profile.walk_time);
            (Managing::new(averted, pages, plain_fault, prices), pages)
        };
        // A rule that an earlier one hides brings nothing, however much it says.
        let rules = live::in_force(&profile.rules).into_iter();
        let rules = rules.filter(|rule| rule.policy == Policy::Huge);
        let ruled = rules.filter_map(|rule| rule.averted).max().map(|averted| {
            let of_one =
                Estimate::new(averted, Cycles::ZERO, 1, profile.horizon, WalkTime::Elapsed);
            let averted = here(of_one.low.as_f64(), WalkTime::Elapsed);
            (Managing::new(averted, BASES, plain_fault, prices), BASES)
        });
        let (managing, pages) =
            ruled.filter(|(one, _)| !known.0.pays(prices) || one.pays(prices)).unwrap_or(known);
        let pays = managing.pays(prices);
        let time = |cycles: Cycles| prices.clock.nanos(cycles);
        Self {
            averts: time(managing.brings),
            costs: time(managing.costs),
            pages,
            plain_fault,
            plain_fault_assumed: managing.assumed,
            pays,
            at_once: pays || mode != Mode::Enforce,
        }
    }

    /// What is said of it.
    pub(crate) fn line(&self) -> String {
        let Self { averts, costs, pages, plain_fault, .. } = self;
        let assumed = if self.plain_fault_assumed {
            format!(
                " (the kernel's own took {plain_fault} when it was measured, too long beside one in managed \
                 memory: {PLAIN_FAULT} at most are assumed)"
            )
        } else {
            String::new()
        };
        let sides = format!(
            "huge pages avert {averts} of page walks at least, and managing {} takes {costs} more at \
             most{assumed}",
            crate::output::counted(*pages, "page that is touched", "pages that are touched")
        );
        match (self.at_once, self.pays) {
            (true, true) => format!("used from the first large mapping on: {sides}"),
            (true, false) => {
                format!("used from the first large mapping on, as nothing is refused: {sides}")
            }
            (false, _) => format!("not used while memory fits without it: {sides}"),
        }
    }
}

/// The decision, and what came of it: memory may become short later on.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Outcome<'a> {
    #[serde(flatten)]
    worth: &'a Worth,
    /// Whether the run has managed a mapping that the profile knows.
    used: bool,
}

impl<'a> Outcome<'a> {
    /// Of a run that has managed so many mappings that the profile knows.
    pub(crate) fn new(worth: &'a Worth, mappings_known: u64) -> Self {
        Self { worth, used: mappings_known > 0 }
    }

    /// What is said of it.
    pub(crate) fn line(&self) -> String {
        let line = self.worth.line();
        if self.used && !self.worth.at_once { line + "; used once memory was short" } else { line }
    }
}

/// What the large mappings of a profiled run avert at least, in the profile's cycles, and how many of
/// their base pages are touched.
fn of_mappings(profile: &Profile) -> (f64, u64) {
    let (mut averted, mut pages) = (0.0, 0.0);
    for region in &profile.regions {
        let Key::Mapping { class, .. } = region.key else { continue };
        if 1u64 << class < SLOT.get() {
            continue;
        }
        let times = f64::from(region.instances) / f64::from(region.seen.max(1));
        for range in &region.ranges {
            let of_one = Estimate::new(
                range.averted,
                range.deviation,
                profile.runs,
                profile.horizon,
                profile.walk_time,
            );
            let slots = range.slots() as f64 * times;
            averted += of_one.low.as_f64() * slots;
            pages += f64::from(range.touched) * slots;
        }
    }
    (averted, pages as u64)
}

#[cfg(test)]
mod tests {
    use terrace_core::{Frequency, Machine};
    use terrace_profile::cbmm;

    use super::*;

    /// 2 GHz, three misses at a time, and 8 µs more for a first touch than the kernel takes.
    fn prices() -> (Calibration, Nanos) {
        let machine = include_str!("../../../../machines/laptop.toml");
        let machine = Machine::parse("laptop", machine).expect("a machine");
        let prices = Calibration {
            user_fault: Nanos::micros(10),
            clock: Frequency::ghz(2.0),
            mlp: terrace_economics::Interval::exact(3.0),
            ..Calibration::from_machine(&machine)
        };
        let content = prices.copy_bandwidth.time_for(terrace_core::PageSize::Base.bytes());
        (prices, content + Nanos::micros(2))
    }

    /// 16 huge pages, all of which are touched, in a run on a machine of 1 GHz.
    fn recorded(averted: u64, time: &str) -> Profile {
        let text = format!(
            "terrace-profile 1\nprogram /opt/walk 7\nmachine laptop\nclock 1000000000Hz\n\
             horizon 1000000000ns\nruns 1\n{time}\
             region mmap class=28 order=0 len=201326592B seen=1\n\
             range offset=0B len=33554432B averted={averted}cycles deviation=0cycles touched=512\n\
             region heap len=9437184B seen=1\n\
             range offset=0B len=2097152B averted=900000000cycles deviation=0cycles touched=512\n"
        );
        Profile::parse("a.profile", &text).expect("good")
    }

    fn worth(profile: &Profile, mode: Mode) -> Worth {
        let (prices, plain_fault) = prices();
        Worth::of(profile, mode, plain_fault, &prices)
    }

    #[test]
    fn walks_are_counted_by_their_least_in_cycles_here_and_memory_that_is_not_managed_is_left_out()
    {
        let summed = worth(&recorded(6_000_000, ""), Mode::Enforce);
        // A quarter, twice as many cycles here, three walks at a time, 16 huge pages; at 2 GHz.
        assert_eq!(summed.averts, Nanos::millis(8));
        assert_eq!((summed.pages, summed.costs), (8192, Nanos::micros(8 * 8192)));
        assert!(!summed.pays && !summed.at_once);
        assert!(summed.line().contains("not used while memory fits"), "{}", summed.line());
        let counted = worth(&recorded(6_000_000, "walk-time elapsed\n"), Mode::Enforce);
        assert_eq!(counted.averts, Nanos::millis(24));
    }

    #[test]
    fn it_is_used_at_once_where_that_pays_and_where_nothing_is_refused() {
        // 98.3 ms are half as much again as 65.5.
        let least = worth(&recorded(73_800_000, ""), Mode::Enforce);
        assert!(least.pays && least.at_once, "{least:?}");
        let less = worth(&recorded(73_600_000, ""), Mode::Enforce);
        assert!(!less.pays && !less.at_once, "{less:?}");
        let shadow = worth(&recorded(73_600_000, ""), Mode::Shadow);
        assert!(!shadow.pays && shadow.at_once && shadow.line().contains("nothing is refused"));
    }

    /// A machine that is busy for a moment must not have a profile used that does not pay.
    #[test]
    fn a_plain_fault_that_cannot_be_right_is_told() {
        let (prices, plain_fault) = prices();
        let profile = recorded(6_000_000, "");
        let of = |plain_fault| Worth::of(&profile, Mode::Enforce, plain_fault, &prices);
        let busy = of(Nanos(15_156));
        assert!(
            busy.plain_fault_assumed && !busy.pays && busy.costs > Nanos::millis(60),
            "{busy:?}"
        );
        assert!(busy.line().contains("are assumed"), "{}", busy.line());
        assert!(!of(plain_fault).line().contains("assumed"));
    }

    #[test]
    fn a_report_says_whether_it_was_used_after_all() {
        let waits = worth(&recorded(6_000_000, ""), Mode::Enforce);
        let used = Outcome::new(&waits, 1);
        assert!(used.line().ends_with("; used once memory was short"), "{}", used.line());
        assert_eq!(Outcome::new(&waits, 0).line(), waits.line());
        let document = serde_json::to_value(used).expect("a document");
        assert_eq!((&document["used"], &document["at_once"]), (&true.into(), &false.into()));
        let pays = worth(&recorded(73_800_000, ""), Mode::Enforce);
        assert_eq!(Outcome::new(&pays, 1).line(), pays.line(), "it was to be used in any case");
    }

    #[test]
    fn a_rule_is_asked_of_one_huge_page() {
        let of = |averted: u64| {
            let text = format!("huge,mmap,{averted}\n");
            let profile = cbmm::import("a.csv", &text, Nanos::SECOND, Frequency::ghz(2.0));
            worth(&profile.expect("good"), Mode::Enforce)
        };
        // 512 first touches of 8 µs more are 8.2 Mcycles; a quarter counts.
        assert!(!of(49_000_000).at_once);
        let pays = of(49_300_000);
        assert!(pays.at_once && pays.pages == 512, "{pays:?}");
    }

    #[test]
    fn a_rule_that_never_comes_to_anything_brings_nothing() {
        for text in [
            "huge,mmap,0\neager,mmap,1\nhuge,mmap,900000000\n",
            "huge,mmap,5\nhuge,mmap,900000000,prot,=,1\n",
            "huge,mmap,5\nhuge,mmap,900000000,addr,>,0\n",
            "huge,mmap,5,flags,=,34\nhuge,mmap,900000000,len,>,9\n",
        ] {
            let profile = cbmm::import("a.csv", text, Nanos::SECOND, Frequency::ghz(2.0));
            let worth = worth(&profile.expect("good"), Mode::Enforce);
            assert!(!worth.at_once && worth.averts < Nanos(5), "{text}: {worth:?}");
        }
    }
}
