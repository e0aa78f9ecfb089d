//! HeMem's parameters, with the source of each.

use serde::{Deserialize, Serialize};
use terrace_core::{BytesPerSecond, Nanos};

/// HeMem's parameters.
///
/// "The paper" is Raybuck et al., *HeMem: Scalable Tiered Memory Management
/// for Big Data Applications and Real NVM*, SOSP 2021. The published code has
/// branches with different constants; those that go with the paper's
/// thresholds are in the branch `sosp24ae` of the mirror `webglider/hemem`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct HeMemConfig {
    /// Sampled loads that make a page hot. 8 in the paper.
    pub hot_loads: u8,
    /// Sampled stores that make a page hot, and write-heavy. 4 in the paper.
    pub hot_stores: u8,
    /// All pages are cooled when one of some page's counters exceeds this.
    /// 18 in `sosp24ae`, whose hot thresholds are the paper's 8 and 4; the
    /// older branches' 10 belongs to thresholds of 4 and 4 or other periods.
    pub cooling_threshold: u8,
    /// All pages are cooled when they have not been for this long, so that a
    /// page that was hot does not stay hot when samples become rare.
    ///
    /// Ours: the published code cools by samples alone. A minute is above the
    /// cooling period that samples bring about at the paper's rates (tens of
    /// seconds at most for a hot set that fits), so that it acts only where
    /// they are too few.
    pub cooling_interval: Nanos,
    /// A cold page gives way to a hot one only if the hot one's counters are
    /// above the threshold by at least so many times the cold one's; 0 to
    /// exchange whatever is hot for whatever is cold. A page that was not seen
    /// used gives way to any hot page in any case.
    ///
    /// Ours: halving makes pages cold for a moment that are as hot as all
    /// others, and where the hot set does not fit they would be exchanged for
    /// their likes after each cooling, for ever. The published code stops
    /// migrating there only because it also stops cooling, which is what lets
    /// it wedge. Of two pages that are equally hot one shows 8 loads more than
    /// three times the other's in fewer than 1 of 200 cases (binomial, of
    /// their samples together); `docs/policies/hemem.md` has the measurement.
    pub exchange_ratio: u8,
    /// How often the policy runs. 10 ms in the paper.
    pub tick: Nanos,
    /// Migration traffic that may be proposed in a second. The published code
    /// has the constant 10 GiB, but applies it to each pass of a loop that
    /// never sleeps; we take it for what it is named, a rate a second.
    pub migration_limit: BytesPerSecond,
    /// Pages looked at in a tick, while a cooling has not reached all of them.
    /// 8192, as the published code looks at so many pages of each hot list a
    /// pass; where that would take more than 128 ticks, as many as finish in
    /// 128.
    pub sweep_pages: u32,
}

impl Default for HeMemConfig {
    fn default() -> Self {
        Self {
            hot_loads: 8,
            hot_stores: 4,
            cooling_threshold: 18,
            cooling_interval: Nanos::seconds(60),
            exchange_ratio: 3,
            tick: Nanos::millis(10),
            migration_limit: BytesPerSecond((10u64 << 30) as f64),
            sweep_pages: 8192,
        }
    }
}
