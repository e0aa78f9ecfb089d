//! What the mechanisms cost on a machine, and how cautious to be with it.

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, BytesPerSecond, Frequency, MAX_TIERS, Machine, Nanos, TierKind};
use thiserror::Error;

use crate::conditions::{self, harmonic_mean};
use crate::interval::Interval;

/// Measured or assumed costs of the mechanisms.
///
/// The simulated world takes it from a machine file
/// ([`Calibration::from_machine`]); the live world fills it by timing the
/// operations. Latencies of addressable tiers are not in it: they change with
/// load and come with [`terrace_core::Telemetry`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Calibration {
    /// The clock that turns time into cycles.
    pub clock: Frequency,
    /// Processors that run the program.
    pub cpus: u32,
    /// Memory accesses that one processor has in flight while it waits: at least
    /// (1, a chase of pointers), expected if telemetry does not tell, and at
    /// most (independent accesses). Without it, a page of a pointer chase and
    /// one of a stream look alike although an access to the former is worth ten
    /// times as much.
    pub mlp: Interval,
    /// Bandwidth of one processor that copies pages.
    pub copy_bandwidth: BytesPerSecond,
    /// A promotion, without copy, write-protection and shootdown.
    pub promote_fixed: Nanos,
    /// A demotion, without copy, write-protection and shootdown.
    pub demote_fixed: Nanos,
    /// An exchange, without copies, write-protection and shootdown.
    pub exchange_fixed: Nanos,
    /// Write-protecting or unprotecting one page.
    pub write_protect: Nanos,
    /// A TLB shootdown: the initiator's part.
    pub shootdown: Nanos,
    /// A TLB shootdown: what each other processor pays.
    pub shootdown_per_cpu: Nanos,
    /// Pages that share one shootdown; at least 1.
    pub shootdown_batch: u32,
    /// What an access waits for a page walk for a base page, while nothing else is under
    /// way; zero where nobody knows, and then a huge page saves none.
    pub page_walk: Nanos,
    /// A fault on memory that was never touched, without the page's content: of a program under
    /// the pager one that is resolved in user space, else the kernel's.
    pub user_fault: Nanos,
    /// Base pages that come in with one such fault of a walk. The pager brings 32 along
    /// (`docs/decisions/0005-ahead.md`), the kernel none.
    #[serde(default = "with_a_fault")]
    pub fault_pages: f64,
    /// What mapping a base page takes that is filled together with others in a kernel's fault,
    /// beside its zeros. Zero where a call of its own fills them, at
    /// [`promote_fixed`](Self::promote_fixed) each.
    #[serde(default)]
    pub fill_fixed: Nanos,
    /// Putting one base page into a tier that is not addressable, where
    /// telemetry does not say.
    pub compress: Nanos,
    /// Bringing one base page in from a tier that is not addressable, where
    /// telemetry does not say.
    pub decompress: Nanos,
    /// By which factor a mechanism's cost may be wrong before any action was
    /// timed; 1 for exactly known. Narrowed by outcomes.
    pub cost_spread: f64,
    /// Peak bandwidths of the tiers, fastest first; zero where unknown.
    pub tiers: [TierCalibration; MAX_TIERS],
    /// How to decide on it.
    pub parameters: Parameters,
}

/// The pager's.
const fn with_a_fault() -> f64 {
    FAULT_PAGES
}

/// Base pages that are filled in for one fault of a walk by the pager: the one that was asked for,
/// and 32 ahead of it (`docs/decisions/0005-ahead.md`).
pub const FAULT_PAGES: f64 = 33.0;

/// What telemetry does not say of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TierCalibration {
    /// Peak read bandwidth; zero if unknown.
    pub read_bandwidth: BytesPerSecond,
    /// Peak write bandwidth; zero if unknown.
    pub write_bandwidth: BytesPerSecond,
    /// Share of the peak above which latency grows with load, 0 to 1.
    pub load_knee: f64,
}

/// Horizon and caution. Each has a default with its source.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Parameters {
    /// How long a page that is in use stays in use, until pages that were
    /// watched say otherwise; also, how long prices of memory are remembered.
    /// 10 s is CBMM's accounting period ("long time unit", `estimator.c`).
    pub idle: Nanos,
    /// How long the program is expected to run on; `None` if nobody knows.
    pub exit: Option<Nanos>,
    /// Standard errors between an expected rate and its bounds: 1. A rate that
    /// is uncertain counts for less, but an action that is likely to pay is not
    /// refused for lack of proof.
    pub z: f64,
    /// By how much the benefit must exceed the cost, as a share of the cost:
    /// 0.5 as in ARMS, which takes a migration at 1.5 times its cost.
    pub hysteresis: f64,
    /// Share of a tier that has to be free before its memory costs nothing:
    /// 0.02, the lower watermark of MEMTIS.
    pub ample_free: f64,
    /// One in so many refusals for mere want of evidence is let pass, so that a
    /// price that nobody ever paid is learnt; 0 for none. 64 are 1.6 %, the
    /// low end of the 1-5 % that randomised hold-outs usually take.
    pub explore: u32,
    /// What those may cost: a share of one processor's time. 0.01 is a third of what looking
    /// for collapses may take.
    pub explore_budget: f64,
    /// One in so many actions that pay is held out at random, so that there is something to
    /// compare with; 0 for none, as where a world can be run twice (simulation).
    pub hold_out: u32,
    /// How long a program's thread may wait in one go before each further cycle counts more: 1 ms.
    /// Assumed: a request of a service is to be answered in a few of them.
    pub stall_budget: Nanos,
    /// What each cycle beyond that counts besides itself: 9, so ten times in all. Assumed: a tail
    /// costs whoever waits for the slowest of many.
    pub tail: f64,
    /// Whether a class of action that costs more than it brings stands still for a while. Where
    /// policies are to be compared as they are (simulation), it does not.
    pub kill_switch: bool,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            idle: Nanos::seconds(10),
            exit: None,
            z: 1.0,
            hysteresis: 0.5,
            ample_free: 0.02,
            explore: 64,
            explore_budget: 0.01,
            hold_out: 0,
            stall_budget: Nanos::millis(1),
            tail: 9.0,
            kill_switch: false,
        }
    }
}

/// A price list that cannot be right.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("field `{field}`: {message}")]
pub struct CalibrationError {
    /// The field, as it is written in files.
    pub field: &'static str,
    /// What is wrong with it.
    pub message: &'static str,
}

impl Calibration {
    /// Misses, and so page walks, that are under way at the same time where nothing was observed:
    /// what a sum of their times is divided by to get the time that is lost. At least 1.
    pub fn parallelism(&self) -> f64 {
        conditions::expected(self.mlp)
    }

    /// What a machine file says.
    ///
    /// A machine file has no cost of a whole move: its fixed part is taken to
    /// be a kernel fault for each mapping that is made (one, or two for an
    /// exchange). No number of it was timed on the machine at hand, so they may
    /// be wrong by a factor of two until outcomes say more.
    pub fn from_machine(machine: &Machine) -> Self {
        let costs = &machine.costs;
        let mapping = costs.kernel_fault.value;
        let slots = machine.cpu.miss_slots.value.max(1.0);
        let unmapped = machine.tiers.iter().find(|t| t.kind != TierKind::ByteAddressable);
        let mut tiers = [TierCalibration::default(); MAX_TIERS];
        for (tier, file) in tiers.iter_mut().zip(&machine.tiers) {
            *tier = TierCalibration {
                read_bandwidth: file.read_bandwidth.value,
                write_bandwidth: file.write_bandwidth.value,
                load_knee: file.load_knee.value,
            };
        }
        Self {
            clock: machine.cpu.clock.value,
            cpus: machine.cpu.cores.value,
            mlp: Interval::new(1.0, harmonic_mean(1.0, slots), slots),
            copy_bandwidth: costs.copy_bandwidth.value,
            promote_fixed: mapping,
            demote_fixed: mapping,
            exchange_fixed: mapping * 2,
            write_protect: costs.write_protect.value,
            shootdown: costs.shootdown.value,
            shootdown_per_cpu: costs.shootdown_per_core.value,
            shootdown_batch: 1,
            // The upper levels lie in the processor's own caches, the last mostly in memory.
            page_walk: machine.tiers.first().map_or(Nanos::ZERO, |t| t.read_latency.value),
            user_fault: costs.user_fault.value,
            fault_pages: FAULT_PAGES,
            fill_fixed: Nanos::ZERO,
            compress: unmapped.map_or_else(
                || costs.copy_bandwidth.value.time_for(Bytes::kib(4)),
                |t| t.write_latency.value,
            ),
            decompress: unmapped.map_or_else(
                || costs.copy_bandwidth.value.time_for(Bytes::kib(4)),
                |t| t.read_latency.value,
            ),
            cost_spread: 2.0,
            tiers,
            parameters: Parameters::default(),
        }
    }

    /// Base pages that come with one fault of a walk; at least one.
    pub(crate) fn a_fault(&self) -> f64 {
        if self.fault_pages.is_finite() { self.fault_pages.max(1.0) } else { 1.0 }
    }

    /// Checks what the types cannot. An unchecked calibration makes no price
    /// infinite, only wrong.
    pub fn check(&self) -> Result<(), CalibrationError> {
        let fail = |field, message| Err(CalibrationError { field, message });
        let p = &self.parameters;
        let mlp_in_order = 1.0 <= self.mlp.low
            && self.mlp.low <= self.mlp.expected
            && self.mlp.expected <= self.mlp.high
            && self.mlp.high.is_finite();
        if !(self.clock.get() > 0.0 && self.clock.get().is_finite()) {
            return fail("clock", "must be above zero");
        }
        if self.cpus == 0 {
            return fail("cpus", "must be at least 1");
        }
        if !mlp_in_order {
            return fail("mlp", "must be at least 1, and low, expected, high in order");
        }
        if !(self.copy_bandwidth.get() > 0.0 && self.copy_bandwidth.get().is_finite()) {
            return fail("copy-bandwidth", "must be above zero");
        }
        if !(1.0..=1e6).contains(&self.fault_pages) {
            return fail("fault-pages", "must be at least 1");
        }
        if !(p.tail >= 0.0 && p.tail.is_finite()) {
            return fail("parameters.tail", "must not be negative");
        }
        if self.shootdown_batch == 0 {
            return fail("shootdown-batch", "must be at least 1");
        }
        if !(self.cost_spread >= 1.0 && self.cost_spread.is_finite()) {
            return fail("cost-spread", "must be at least 1");
        }
        if !self.tiers.iter().all(|t| (0.0..1.0).contains(&t.load_knee)) {
            return fail("tiers.load-knee", "must be at least 0 and below 1");
        }
        if p.idle.is_zero() {
            return fail("parameters.idle", "must be above zero");
        }
        if p.exit.is_some_and(Nanos::is_zero) {
            return fail("parameters.exit", "must be above zero");
        }
        if !(p.z >= 0.0 && p.z.is_finite()) {
            return fail("parameters.z", "must not be negative");
        }
        if !(p.hysteresis >= 0.0 && p.hysteresis.is_finite()) {
            return fail("parameters.hysteresis", "must not be negative");
        }
        if !(0.0..=1.0).contains(&p.ample_free) {
            return fail("parameters.ample-free", "must be a share, 0 to 1");
        }
        Ok(())
    }
}
