//! What attach did, in numbers.

use std::collections::BTreeMap;

use serde::Serialize;
use terrace_core::{Abort, Bytes, MAX_TIERS, Nanos, TierId};

/// Counters of one attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Pages moved to a faster tier.
    pub promotions: u64,
    /// Pages moved to a slower tier.
    pub demotions: u64,
    /// Pages of these that had been moved the other way before.
    pub ping_pongs: u64,
    /// Migration traffic.
    pub moved: Bytes,
    /// Pages that somebody else had moved: the kernel, or the program itself.
    pub moved_by_others: u64,
    /// Pages that came back from swap.
    pub refaults: u64,
    /// Actions that were not carried out, by reason.
    pub aborted: BTreeMap<String, u64>,
    /// Time spent in the system calls that move pages.
    pub moving: Nanos,
    /// Threads that moved pages at once, the most.
    pub movers: u32,
    /// Processor time of ours, samplers aside.
    pub own_cpu: Nanos,
    /// Passes over the page tables.
    pub passes: u64,
    /// Samples that the policy was given.
    pub samples: u64,
    /// Of the accesses that were observed since the beginning, those in each tier.
    pub accesses: [u64; MAX_TIERS],
    /// The same over the last [`RECENT`].
    pub recent: [u64; MAX_TIERS],
}

/// What "recent" means.
pub const RECENT: Nanos = Nanos::seconds(2);

impl Stats {
    /// An action was not carried out.
    pub(super) fn abort(&mut self, abort: Abort) {
        let reason = match abort {
            Abort::Vetoed => "vetoed",
            Abort::Dirtied => "dirtied",
            Abort::Touched => "touched",
            Abort::Busy => "busy",
            Abort::NoMemory => "no-memory",
            Abort::Stale => "stale",
            Abort::RateLimited => "rate-limited",
            Abort::Unsupported => "unsupported",
        };
        *self.aborted.entry(reason.to_owned()).or_default() += 1;
    }

    /// The share of recent accesses that a tier served; `None` without any.
    pub fn recent_share(&self, tier: TierId) -> Option<f64> {
        let all: u64 = self.recent.iter().sum();
        (all > 0).then(|| self.recent[tier.index()] as f64 / all as f64)
    }
}
