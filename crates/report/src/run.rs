//! The report of a run: what every process's statistics page says, and the
//! sums over them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use terrace_core::{ActionClass, Bytes, Cycles, Nanos, PageSize};
use terrace_economics::account::{benefit_is_observed, harm_is_observed};
use terrace_economics::{Account, Balance};
use terrace_live::broker::page::Summary;
use terrace_live::stats::process_page::PARTS;

use crate::attach::AttachReport;
use crate::outside::{OutsideReport, given_up_beside, least};
use crate::plain::PlainReport;
use crate::slowdown::Slowdown;
use crate::unread::UnreadProcess;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// It exited with this status.
    Exited(u8),
    /// A signal killed it.
    Killed(u8),
}

/// What a core dump lacks: absent pages read as zeros in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreDumpReport {
    /// The process that was dumped.
    pub process: u32,
    /// Pages that were held compressed or as one word, and are in the dump as that.
    pub absent: u64,
    /// Pages that were in the spill file, which is gone.
    #[serde(default)]
    pub spilled_pages: u64,
    /// What these took in it.
    pub spilled: Bytes,
}

/// What a run used, did and cost.
///
/// As many fields as there are figures: it is what `--json` prints, flat for who reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// The program with its arguments.
    pub program: Vec<String>,
    /// How it ended; `None` while it runs.
    pub end: Option<End>,
    /// How long it has run, by the clock on the wall.
    pub elapsed: Nanos,
    /// The policy's name.
    pub policy: String,
    /// What the economist did with its opinion.
    pub economist: String,
    /// The most of one processor that observing might take, in each process; `None` where a
    /// recording does not say.
    #[serde(default)]
    pub sampling_cap: Option<f64>,
    /// DRAM that all processes together were allowed (each of them, where there
    /// is no [`RunReport::shared`]).
    pub budget: Bytes,
    /// Whether it was for what was compressed, too.
    #[serde(default)]
    pub budget_holds_store: bool,
    /// Whether they stayed within it: what is managed, and what lies outside of it (see
    /// [`RunReport::outside`]) together.
    pub budget_kept: bool,
    /// The same of what is managed alone.
    #[serde(default)]
    pub budget_kept_managed: bool,
    /// How the budget was shared; `None` where every process had it for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedReport>,
    /// Whose budget it is: the process of another run, or of a broker, that this run has joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_of: Option<u32>,
    /// Why nothing was managed, if nothing was.
    pub unmanaged: Option<String>,
    /// How much slower the program ran than it would have on plain memory;
    /// `None` where nothing was managed.
    pub slowdown: Option<Slowdown>,
    /// All processes together. Peaks are the most that was seen at once.
    pub total: Figures,
    /// Processor time of the `terrace run` process itself since it was started: keepers of
    /// quiet windows, the broker, and whatever records, watches and shows. Not in
    /// [`Figures::own_cpu`], which is of the threads inside the program.
    #[serde(default)]
    pub command_cpu: Nanos,
    /// Each process that loaded the library, in the order of their numbers.
    pub processes: Vec<ProcessReport>,
    /// Further processes, which have ended: their figures are in [`RunReport::total`] alone.
    #[serde(default)]
    pub ended_processes: u64,
    /// Processes that have the library, and of which nothing more is known: their figures cannot be
    /// read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread_processes: Vec<UnreadProcess>,
    /// Decisions that were taken faster than they could be recorded; `None`
    /// without a recording.
    pub decisions_lost: Option<u64>,
    /// Where what is resident lies, and how that came; `None` where there is DRAM alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Box<AttachReport>>,
    /// What the program's core dump lacks; `None` if there is none, or nothing was absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_dump: Option<CoreDumpReport>,
    /// Processes that ran on plain memory, of which no page tells; `None` if none was seen that
    /// had much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain: Option<Box<PlainReport>>,
    /// Memory that no budget bounds; `None` if there was too little to be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<Box<OutsideReport>>,
    /// The most that one process had in RAM, by the kernel's count: what is managed, what lies
    /// outside, compressed pages and Terrace's own, and pages of files. 0 while it is not known.
    #[serde(default)]
    pub process_peak: Bytes,
    /// The most that one process had in RAM, by the kernel's count, beyond all that was seen of it
    /// at any look and is in the books: what came and went between two looks. It may have been a
    /// file's, or have lain outside of the budget.
    #[serde(default)]
    pub unseen_peak: Bytes,
    /// Why nothing was managed although it could be, or that nobody knows; `None` where something was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nothing_managed: Option<NothingManaged>,
}

/// Why nothing was managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NothingManaged {
    /// Everything that could be managed fits into the budget.
    Fits,
    /// The programs ran without Terrace, see [`RunReport::plain`].
    OtherProcesses,
    /// What was used cannot be managed, see [`RunReport::outside`].
    Outside,
    /// Whether anything was is not known, see [`RunReport::unread_processes`].
    Unknown,
}

/// How several processes shared the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedReport {
    /// Processes that had a share, the most at once.
    pub processes: u32,
    /// The most that was granted at once.
    pub granted_peak: Bytes,
    /// The most that was resident at once in all of them, as the broker saw it
    /// ten times a second. Frames that a forked child still had in common with its
    /// parent count once; processes that were not managed yet, with all that they
    /// had mapped.
    pub resident_peak: Bytes,
    /// What is resident in all of them now, counted likewise.
    #[serde(default)]
    pub resident: Bytes,
    /// The largest budget that was in force.
    pub budget_peak: Bytes,
    /// How often the budget was changed.
    pub changes: u32,
}

impl From<Summary> for SharedReport {
    fn from(summary: Summary) -> Self {
        Self {
            processes: summary.processes,
            granted_peak: summary.granted,
            resident_peak: summary.resident,
            resident: summary.resident_now,
            budget_peak: summary.budget_peak,
            changes: summary.changes,
        }
    }
}

/// The budget beside what all processes together have of it: neither can be had by adding up
/// processes, which share the one, and frames of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLevel {
    /// The budget in force.
    pub budget: Bytes,
    /// What is resident now.
    pub resident: Bytes,
    /// The most that was resident at once.
    pub resident_peak: Bytes,
    /// How much of what is resident now is beyond the budget.
    #[serde(default)]
    pub exceeded: Bytes,
    /// How much of the most that was resident was beyond the largest budget that was in force.
    pub exceeded_peak: Bytes,
}

impl From<Summary> for RunLevel {
    fn from(summary: Summary) -> Self {
        Self {
            budget: summary.budget,
            resident: summary.resident_now,
            resident_peak: summary.resident,
            exceeded: summary.resident_now - summary.budget,
            exceeded_peak: summary.resident - summary.budget_peak,
        }
    }
}

impl RunLevel {
    /// Whether what is resident now is beyond the budget, by more than faults may take while
    /// others make room ([`terrace_live::pager::Pager::try_reserve_beyond`]).
    pub fn exceeds(&self) -> bool {
        self.resident > self.budget + self.budget / SLACK
    }
}

/// One part of so many of a budget, at most, is taken beyond it for a moment as a matter of course;
/// twice that is told.
const SLACK: u64 = 32;

/// What may be held at once under a budget that counts as kept. Where it is for compressed pages,
/// too, pages on their way out are there twice for a moment, as they are and compressed.
pub(crate) fn most_allowed(budget: Bytes, holds_store: bool) -> Bytes {
    if holds_store { budget + budget / SLACK } else { budget }
}

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Its number.
    pub pid: u32,
    /// Its command's name.
    pub command: String,
    /// Whether it has ended while the run went on: what it had, it has no longer.
    #[serde(default)]
    pub ended: bool,
    /// Whether its memory was managed.
    pub state: ProcessState,
    /// Why it was given up, if it was.
    pub failure: Option<String>,
    /// How accesses were observed, and why in this way.
    pub sampler: String,
    /// Its figures.
    pub figures: Figures,
    /// Its regions, most faults first.
    pub regions: Vec<RegionReport>,
    /// Regions that it has no longer: those with the most faults, most first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub freed_regions: Vec<FreedRegionReport>,
}

/// How far a process's pager came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessState {
    /// Nothing had to be managed.
    Dormant,
    /// Managed.
    Managed,
    /// Given up; it went on on plain memory.
    Failed,
}

/// Figures of one process, or of all together.
///
/// As many fields as there are figures, as above.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Managed memory mapped now.
    pub mapped: Bytes,
    /// The most of it at once.
    pub mapped_peak: Bytes,
    /// Managed memory resident in DRAM now.
    pub resident: Bytes,
    /// The most of it at once.
    pub resident_peak: Bytes,
    /// The most that one process had resident and compressed at once, where the budget is for both;
    /// else 0.
    #[serde(default)]
    pub held_peak: Bytes,
    /// What a process had when it was put on plain memory, all that had left included; of several
    /// the one with the most. 0 if none was.
    #[serde(default)]
    pub given_up: Bytes,
    /// Faults by kind.
    pub faults: Vec<FaultReport>,
    /// Faults that found their page already there.
    pub faults_spurious: u64,
    /// Faults that had to make room themselves.
    pub direct_reclaims: u64,
    /// Pages brought in from a slower tier.
    pub promotions: u64,
    /// Pages brought in, or filled with zeros, ahead of their first touch, because
    /// the program walks through memory.
    #[serde(default)]
    pub ahead: u64,
    /// Huge pages.
    #[serde(default)]
    pub huge: HugeReport,
    /// Pages that left for a slower tier.
    pub demotions: u64,
    /// Pages that the kernel moved, out or back, without saying so (a defect of
    /// Linux 6.18), and that were found to have moved.
    #[serde(default)]
    pub moves_uncounted: u64,
    /// Demotions given up because the program touched the page in time.
    pub demotions_cancelled: u64,
    /// Demotions that the kernel refused (page locked, pinned or shared).
    pub demotions_refused: u64,
    /// Forked children that went on on plain memory: they were not made by the C library's `fork`.
    #[serde(default)]
    pub forks_unmanaged: u64,
    /// What slower tiers hold.
    pub store: StoreReport,
    /// Promotions of pages that had left only a second before: both ways were
    /// for nothing.
    pub ping_pongs: u64,
    /// Time in which the program thrashed: most of the pages that it missed had just left,
    /// and it waited for them half of the time. Of several processes, all together.
    #[serde(default)]
    pub thrashing: Nanos,
    /// Time that threads of the program waited for Terrace (stall time).
    pub waited: Nanos,
    /// Of that, what they spent in the kernel, as processor time of their own.
    #[serde(default)]
    pub waited_running: Nanos,
    /// Where that time went.
    pub stall: StallReport,
    /// Processor time of Terrace's own threads in the program's processes.
    pub own_cpu: Nanos,
    /// Samples that the policy was given.
    pub samples: u64,
    /// Samples that the kernel or the hardware lost.
    pub samples_lost: u64,
    /// Times that the kernel throttled hardware samples.
    #[serde(default)]
    pub samples_throttled: u64,
    /// What observing took: processor time spent on hardware samples, outside of interrupts,
    /// and on making pages fault, and what threads waited in these faults.
    #[serde(default)]
    pub sampling: Nanos,
    /// The policy's own memory.
    pub policy_bytes: Bytes,
    /// The pages that it is about.
    pub policy_pages: u64,
    /// The economist's accounts by class of action.
    pub accounts: Vec<AccountReport>,
    /// What deciding on actions has cost.
    #[serde(default)]
    pub deciding: Cycles,
    /// Gains and costs of the actions whose gain is known.
    #[serde(default)]
    pub balance: Balance,
}

/// Which faults a figure is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultClass {
    /// On memory never touched before.
    FirstTouch,
    /// On pages that had left DRAM.
    Absent,
    /// On resident pages that were made to fault on purpose.
    Hint,
}

impl FaultClass {
    /// In the order of the statistics page's histograms.
    pub const ALL: [Self; 3] = [Self::FirstTouch, Self::Absent, Self::Hint];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FirstTouch => "first-touch",
            Self::Absent => "absent",
            Self::Hint => "hint",
        }
    }
}

/// Where the time that threads waited in faults went. The parts are measured
/// one by one; `other` is what they leave of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallReport {
    /// The kernel's part: from the touch to our handler, and from its answer
    /// back to the thread. Measured once for a process, times its faults, less what
    /// was counted while the threads ran.
    pub wake_up: Nanos,
    /// Making room while the thread waits, because the background could not keep up.
    pub reclaim: Nanos,
    /// Decompressing.
    pub decompress: Nanos,
    /// Handing stored pages' content to the kernel, less the same.
    pub copy: Nanos,
    /// Everything else: filling fresh pages with zeros, moving pages back from
    /// staging, looking up, waiting for locks.
    pub other: Nanos,
}

/// Faults of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultReport {
    /// The kind.
    pub kind: FaultClass,
    /// How many.
    pub count: u64,
    /// Half of them took at most this long to serve.
    pub p50: Nanos,
    /// 99 in 100.
    pub p99: Nanos,
    /// 999 in 1000.
    pub p999: Nanos,
    /// The longest.
    pub max: Nanos,
    /// All of them together.
    pub total: Nanos,
    /// How many took up to which time, and longer than the one before: the
    /// counts that are not zero.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histogram: Vec<(Nanos, u64)>,
}

/// Huge pages (2 MiB): those that backed memory ahead of its first touch, and others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugeReport {
    /// Zeroed ahead of need.
    pub zeroed: u64,
    /// Of these, put where the program was going to walk.
    pub backed: u64,
    /// Of these, walked through since.
    pub walked_through: u64,
    /// Split again because a part of them left.
    pub split: u64,
    /// Made of base pages that were in use.
    #[serde(default)]
    pub collapsed: u64,
    /// Of those that backed memory ahead, put by a profile.
    #[serde(default)]
    pub profiled: u64,
    /// Base pages filled ahead of their first touch by a profile.
    #[serde(default)]
    pub populated: u64,
    /// Large mappings that the profile knows.
    #[serde(default)]
    pub mappings_known: u64,
    /// Large mappings that the profile does not know.
    #[serde(default)]
    pub mappings_unknown: u64,
    /// What large mappings had, and of that what is unknown to the profile.
    #[serde(default)]
    pub profile_mapped: Bytes,
    /// See there.
    #[serde(default)]
    pub profile_unknown: Bytes,
    /// What the profile averts in a run, in its own cycles; nothing of rules.
    #[serde(default)]
    pub profile_benefit: Cycles,
    /// Of that, what it averts in memory that this run has mapped, too. Of several processes that of the one
    /// that has most.
    #[serde(default)]
    pub profile_matched: Cycles,
    /// Processes that could not read the profile.
    #[serde(default)]
    pub profile_unread: u64,
}

/// The slower tiers: compressed RAM, and the spill file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreReport {
    /// Pages held compressed.
    pub compressed_pages: u64,
    /// Pages held as one repeated word.
    pub same_filled_pages: u64,
    /// Bytes of the compressed pages' content.
    pub compressed: Bytes,
    /// Bytes of memory used for it.
    pub occupied: Bytes,
    /// The most of it at once.
    pub occupied_peak: Bytes,
    /// The most of it beyond `--store-limit`: the disk was slower than the program, or full.
    #[serde(default)]
    pub over_limit_peak: Bytes,
    /// Time in which it was beyond the limit. Of several processes, all together.
    #[serde(default)]
    pub over_limit: Nanos,
    /// Bytes in the spill file.
    pub spilled: Bytes,
    /// Bytes read from it since the start.
    #[serde(default)]
    pub spill_read: Bytes,
    /// Bytes written to it, those that were moved within it included.
    #[serde(default)]
    pub spill_written: Bytes,
    /// Pages compressed since the start.
    pub compressions: u64,
    /// Time spent on it.
    pub compress_time: Nanos,
    /// Pages decompressed since the start.
    pub decompressions: u64,
    /// Time spent on it.
    pub decompress_time: Nanos,
    /// Of the pages compressed, those packed tightly: room was worth the time.
    #[serde(default)]
    pub packed_tightly: u64,
    /// Pages that did not compress.
    pub incompressible: u64,
    /// Pages that stayed in DRAM since the kernel gave no memory for what they are packed into: a
    /// limit of the process's.
    #[serde(default)]
    pub refused: u64,
}

impl StoreReport {
    /// Uncompressed by compressed size of what is held; `None` while nothing is.
    pub fn ratio(&self) -> Option<f64> {
        let content = PageSize::Base.bytes() * self.compressed_pages;
        (!self.compressed.is_zero()).then(|| content / self.compressed)
    }

    /// Memory used beyond the compressed content itself.
    pub fn overhead(&self) -> Bytes {
        self.occupied - self.compressed
    }
}

/// One class's account.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccountReport {
    /// The class of action.
    pub class: ActionClass,
    /// Proposals seen.
    pub proposed: u64,
    /// Refused by the economist.
    pub vetoed: u64,
    /// Carried out.
    pub completed: u64,
    /// Let pass but not carried out.
    pub aborted: u64,
    /// Let pass, and waiting or under way when this was written.
    #[serde(default)]
    pub unfinished: u64,
    /// Predicted cost of what was carried out.
    pub predicted_cost: Cycles,
    /// What it cost, with what came to nothing.
    pub realised_cost: Cycles,
    /// Predicted benefit of what was carried out.
    pub predicted_benefit: Cycles,
    /// Benefit as far as it was observed; `None` where nobody observes what such actions bring.
    pub realised_benefit: Option<Cycles>,
    /// What was tried out, and how far the predictions held.
    #[serde(default)]
    pub checks: CheckReport,
    /// What would have been refused; nothing where the economist refuses it.
    #[serde(default)]
    pub advice: AdviceReport,
}

/// What the economist would have refused in one class of action, where it does not refuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AdviceReport {
    /// How many proposals.
    pub refusals: u64,
    /// What they were expected to cost the program.
    pub cost: Cycles,
    /// What they were expected to bring.
    pub benefit: Cycles,
}

impl AdviceReport {
    /// That of several classes together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            refusals: self.refusals + other.refusals,
            cost: self.cost + other.cost,
            benefit: self.benefit + other.benefit,
        }
    }
}

/// What the economist has tried out in one class of action, and how far its predictions held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckReport {
    /// Let pass for the sake of what they teach.
    pub explored: u64,
    /// Left out at random, though they would have paid.
    pub held_out: u64,
    /// Predicted benefit of those that were watched to the end.
    pub judged_predicted_benefit: Cycles,
    /// What they brought.
    pub judged_realised_benefit: Cycles,
    /// Predicted loss of accesses: mostly of those to pages that went down.
    pub predicted_harm: Cycles,
    /// Regret: that loss as far as it was observed; `None` where nobody observes it.
    pub realised_harm: Option<Cycles>,
    /// Predicted gain of what was held out, for the time in which it was watched: pages whose moves were,
    /// blocks that were not made, pages that were left out of walks.
    pub held_out_predicted: Cycles,
    /// What it would have brought, as far as that was observed.
    pub held_out_observed: Cycles,
}

impl CheckReport {
    /// Whether there is anything to tell.
    pub fn is_any(&self) -> bool {
        let realised_harm = self.realised_harm.filter(|harm| !harm.is_zero());
        Self { realised_harm, ..*self } != Self::default()
    }

    /// What was brought of what was predicted, of actions that were watched to the end.
    pub fn came_true(&self) -> Option<f64> {
        let predicted = self.judged_predicted_benefit;
        (!predicted.is_zero()).then(|| self.judged_realised_benefit / predicted)
    }

    /// The same of what was held out: what it would have brought of what was predicted.
    pub fn held_out_came_true(&self) -> Option<f64> {
        let predicted = self.held_out_predicted;
        (!predicted.is_zero()).then(|| self.held_out_observed / predicted)
    }
}

impl AccountReport {
    /// What a report says of an account.
    pub fn new(class: ActionClass, account: &Account) -> Self {
        Self {
            class,
            proposed: account.proposed,
            vetoed: account.vetoed,
            completed: account.completed,
            aborted: account.aborted,
            unfinished: account.unfinished(),
            predicted_cost: account.predicted_cost,
            realised_cost: account.whole_cost(),
            predicted_benefit: account.predicted_benefit,
            realised_benefit: benefit_is_observed(class).then_some(account.realised_benefit),
            checks: CheckReport {
                explored: account.explored,
                held_out: account.held_out,
                judged_predicted_benefit: account.judged_predicted_benefit,
                judged_realised_benefit: account.judged_realised_benefit,
                predicted_harm: account.predicted_harm,
                realised_harm: harm_is_observed(class).then_some(account.realised_harm),
                held_out_predicted: account.held_out_predicted,
                held_out_observed: account.held_out_observed,
            },
            advice: AdviceReport {
                refusals: account.would_veto,
                cost: account.would_veto_cost,
                benefit: account.would_veto_benefit,
            },
        }
    }
}

/// One region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionReport {
    /// Its first address.
    pub start: u64,
    /// Its length.
    pub length: Bytes,
    /// What of it is resident in DRAM.
    pub resident: Bytes,
    /// Faults in it.
    pub faults: u64,
    /// The same by equal parts, first address first.
    pub parts: [u32; PARTS],
}

/// A region that its process unmapped, or moved elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreedRegionReport {
    /// Its first address.
    pub start: u64,
    /// Its length.
    pub length: Bytes,
    /// Faults in it; where the same range came and went several times, all together.
    pub faults: u64,
    /// The same by equal parts, first address first.
    pub parts: [u32; PARTS],
    /// How often it went.
    pub times: u64,
    /// When it went last, since the library was loaded into its process.
    pub after: Nanos,
}

impl RunReport {
    /// The budget of all processes together, and what they have of it; where it is another
    /// run's, that of all that have joined that one.
    pub fn level(&self) -> RunLevel {
        let living = self.processes.iter().filter(|process| !process.ended).count();
        let most = |figures: &Figures| figures.resident_peak.max(figures.held_peak);
        let peaks = self.processes.iter().map(|process| most(&process.figures));
        let peak = self.shared.map_or(Bytes::ZERO, |shared| shared.resident_peak);
        let resident_peak = peaks.fold(peak, Bytes::max);
        let resident = match self.shared {
            // The broker of one process looks rarely.
            Some(shared) if shared.processes > 1 || living == 0 => shared.resident,
            _ if self.budget_holds_store => self.total.resident + self.total.store.occupied,
            _ => self.total.resident,
        };
        let largest = self.shared.map_or(self.budget, |shared| shared.budget_peak);
        RunLevel {
            budget: self.budget,
            resident,
            resident_peak,
            exceeded: resident - self.budget,
            exceeded_peak: resident_peak - largest,
        }
    }

    /// The report with what was seen of the processes from outside.
    #[must_use]
    pub fn beside(
        mut self,
        plain: Option<Box<PlainReport>>,
        outside: Option<Box<OutsideReport>>,
    ) -> Self {
        let largest = self.shared.map_or(self.budget, |shared| shared.budget_peak);
        let most = most_allowed(largest, self.budget_holds_store);
        let kept = |outside: &OutsideReport| outside.with_managed_peak <= most;
        let outside = given_up_beside(outside, self.total.given_up, self.budget);
        self.budget_kept = self.budget_kept_managed && outside.as_deref().is_none_or(kept);
        self.plain = plain;
        self.outside = outside;
        let dormant = |process: &ProcessReport| process.state == ProcessState::Dormant;
        let nothing = self.unmanaged.is_none() && self.processes.iter().all(dormant);
        self.nothing_managed = nothing.then_some(match (&self.plain, &self.outside) {
            _ if !self.unread_processes.is_empty() => NothingManaged::Unknown,
            (Some(_), _) => NothingManaged::OtherProcesses,
            (None, Some(_)) => NothingManaged::Outside,
            (None, None) => NothingManaged::Fits,
        });
        self
    }

    /// What of [`RunReport::process_peak`] the other figures do not show, if that is enough to be
    /// told.
    pub fn not_shown(&self) -> Option<Bytes> {
        let outside = self.outside.as_ref().map_or(Bytes::ZERO, |outside| outside.peak);
        let shown = self.level().resident_peak + self.total.store.occupied_peak + outside;
        let more = self.process_peak - shown;
        (more >= least(self.budget)).then_some(more)
    }

    /// [`RunReport::unseen_peak`], if that is enough to be told.
    pub fn unseen(&self) -> Option<Bytes> {
        (self.unseen_peak >= least(self.budget)).then_some(self.unseen_peak)
    }

    /// Processor time of all that is Terrace's: threads in the program, and `terrace run`.
    pub fn all_own_cpu(&self) -> Nanos {
        self.total.own_cpu + self.command_cpu
    }
}

/// A run's figures at one moment: what is told again and again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// How long the program had run.
    pub elapsed: Nanos,
    /// How much slower it was until then than it would have been.
    pub slowdown: Option<Slowdown>,
    /// The budget beside what all processes have of it.
    #[serde(default)]
    pub run_level: RunLevel,
    /// All processes together.
    pub total: Figures,
    /// Processor time of the `terrace run` process itself, as in [`RunReport::command_cpu`].
    #[serde(default)]
    pub command_cpu: Nanos,
    /// Each process. Without histograms: they are in the last report.
    pub processes: Vec<ProcessReport>,
    /// Where what is resident lies; `None` where there is DRAM alone, and in recordings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Box<AttachReport>>,
    /// Memory that no budget bounds; `None` as long as there is too little to be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<Box<OutsideReport>>,
}

impl From<RunReport> for Moment {
    fn from(report: RunReport) -> Self {
        let mut moment = Self {
            elapsed: report.elapsed,
            slowdown: report.slowdown,
            run_level: report.level(),
            total: report.total,
            command_cpu: report.command_cpu,
            processes: report.processes,
            nodes: report.nodes,
            outside: report.outside,
        };
        let figures = moment.processes.iter_mut().map(|process| &mut process.figures);
        for figures in figures.chain([&mut moment.total]) {
            figures.faults.iter_mut().for_each(|fault| fault.histogram.clear());
        }
        moment
    }
}

impl Moment {
    /// The report that the run would have given at this moment.
    pub fn into_report(
        self,
        program: Vec<String>,
        policy: String,
        economist: String,
        budget: Bytes,
    ) -> RunReport {
        let kept = |process: &ProcessReport| process.figures.resident_peak <= budget;
        let kept = self.processes.iter().all(kept);
        let report = RunReport {
            program,
            end: None,
            elapsed: self.elapsed,
            policy,
            economist,
            sampling_cap: None,
            budget,
            // A recording does not say.
            budget_holds_store: false,
            budget_kept: kept,
            budget_kept_managed: kept,
            shared: None,
            budget_of: None,
            unmanaged: None,
            slowdown: self.slowdown,
            total: self.total,
            command_cpu: self.command_cpu,
            processes: self.processes,
            ended_processes: 0,
            unread_processes: Vec::new(),
            decisions_lost: None,
            nodes: self.nodes,
            core_dump: None,
            plain: None,
            outside: None,
            process_peak: Bytes::ZERO,
            unseen_peak: Bytes::ZERO,
            nothing_managed: None,
        };
        report.beside(None, self.outside)
    }
}

/// What `run` itself knows of the run.
#[derive(Clone, Debug)]
pub struct Head {
    /// The program with its arguments.
    pub program: Vec<String>,
    /// How it ended; `None` while it runs.
    pub end: Option<End>,
    /// How long it has run, by the clock on the wall.
    pub elapsed: Nanos,
    /// The policy's name.
    pub policy: String,
    /// What the economist does with its opinion.
    pub economist: String,
    /// The most of one processor that observing may take, in each process; `None` if
    /// that is not known.
    pub sampling_cap: Option<f64>,
    /// DRAM that all processes together may use, or each where nothing is shared.
    pub budget: Bytes,
    /// How it is shared.
    pub shared: Option<SharedReport>,
    /// The process whose budget it is, if it is not this run's own.
    pub budget_of: Option<u32>,
    /// Whether the budget is for what is compressed, too.
    pub holds_store: bool,
    /// Why nothing is managed, if nothing is.
    pub unmanaged: Option<String>,
    /// Processes whose figures cannot be read.
    pub unread: Vec<UnreadProcess>,
}

/// What the statistics pages do not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time of the program with all its processes, Terrace's threads
    /// in them included.
    pub cpu: Nanos,
    /// What the first touch of a page takes on plain memory.
    pub plain_fault: Nanos,
    /// Processor time of the `terrace run` process itself.
    pub command_cpu: Nanos,
}

impl Figures {
    /// Decisions that the economist took: one on each proposal.
    pub fn decisions(&self) -> u64 {
        self.accounts.iter().map(|account| account.proposed).sum()
    }

    /// The policy's memory a page; zero without pages.
    pub fn policy_bytes_per_page(&self) -> f64 {
        if self.policy_pages == 0 {
            0.0
        } else {
            self.policy_bytes.as_f64() / self.policy_pages as f64
        }
    }
}

impl StallReport {
    /// Less what was counted beyond what threads can have waited. It lies in what is estimated,
    /// and in what was timed by a handler that no longer ran: in proportion.
    pub(crate) fn without(mut self, mut beyond: Nanos) -> Self {
        let uncertain = self.wake_up + self.copy;
        if !uncertain.is_zero() {
            let copy = Nanos(((self.copy / uncertain) * beyond.as_f64()) as u64).min(self.copy);
            let wake_up = (beyond - copy).min(self.wake_up);
            self.copy -= copy;
            self.wake_up -= wake_up;
            beyond -= copy + wake_up;
        }
        for part in [&mut self.other, &mut self.reclaim, &mut self.decompress] {
            let less = beyond.min(*part);
            *part -= less;
            beyond -= less;
        }
        self
    }
}

impl std::ops::AddAssign for StallReport {
    fn add_assign(&mut self, more: Self) {
        self.wake_up += more.wake_up;
        self.reclaim += more.reclaim;
        self.decompress += more.decompress;
        self.copy += more.copy;
        self.other += more.other;
    }
}

/// The duration that a share of all did not exceed; zero of none.
pub(crate) fn percentile(counts: &BTreeMap<Nanos, u64>, share: f64) -> Nanos {
    let all: u64 = counts.values().sum();
    let rank = ((all as f64 * share).ceil() as u64).max(1);
    let mut seen = 0;
    counts
        .iter()
        .find(|&(_, count)| {
            seen += count;
            seen >= rank
        })
        .map_or(Nanos::ZERO, |(&upper, _)| upper)
}
