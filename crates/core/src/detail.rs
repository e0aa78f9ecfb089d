//! The part of a machine file that the exact engine needs: caches, TLBs and how
//! far a core runs ahead of a miss. Optional, because the model of independent
//! accesses does without it.
//!
//! ```toml
//! [detail]
//! issue-width = { value = 4, source = "…" }
//! reorder-buffer = { value = 224, source = "…" }
//! [detail.l1]
//! size = { value = "32KiB", source = "…" }
//! ways = { value = 8, source = "…" }
//! latency = { value = "4cycles", source = "…" }
//! ```

use serde::{Deserialize, Serialize};

use crate::machine::Sourced;
use crate::units::{Bytes, Cycles};

/// Bytes of a cache line, on every machine that is modelled.
pub const CACHE_LINE: u64 = 64;

/// The most ways that a set of a cache or a TLB may have.
pub const MAX_WAYS: u32 = 16;

/// Cores, caches and TLBs in detail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Detail {
    /// Instructions that a core completes in a cycle when nothing misses.
    pub issue_width: Sourced<f64>,
    /// Instructions that a core runs ahead of the oldest that waits.
    pub reorder_buffer: Sourced<u32>,
    /// First-level data cache, one a core.
    pub l1: CacheFile,
    /// Second-level cache, one a core; without it misses go to the last level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l2: Option<CacheFile>,
    /// What `cpu.llc` and `cpu.llc-latency` do not say of the last level.
    pub llc: LastLevelFile,
    /// First-level data TLB for 4 KiB pages.
    pub dtlb_4k: TlbFile,
    /// First-level data TLB for 2 MiB pages.
    pub dtlb_2m: TlbFile,
    /// First-level data TLB for 1 GiB pages.
    pub dtlb_1g: TlbFile,
    /// Second-level TLB for 4 KiB and 2 MiB pages.
    pub stlb: TlbFile,
    /// Second-level TLB for 1 GiB pages.
    pub stlb_1g: TlbFile,
    /// What a hit of a second-level TLB takes longer than one of the first.
    pub stlb_latency: Sourced<Cycles>,
    /// Page-walk cache of entries that point to page tables.
    pub walk_pde: TlbFile,
    /// Page-walk cache of entries that point to page directories.
    pub walk_pdpte: TlbFile,
    /// Page-walk cache of entries of the topmost table.
    pub walk_pml4e: TlbFile,
}

/// A private cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CacheFile {
    /// What it holds.
    pub size: Sourced<Bytes>,
    /// Its associativity.
    pub ways: Sourced<u32>,
    /// Load-to-use latency of a hit.
    pub latency: Sourced<Cycles>,
    /// Which line a full set gives up.
    #[serde(default)]
    pub replacement: Replacement,
}

/// The shared cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LastLevelFile {
    /// Its associativity.
    pub ways: Sourced<u32>,
    /// Which lines it holds.
    #[serde(default)]
    pub inclusion: Inclusion,
    /// Which line a full set gives up.
    #[serde(default)]
    pub replacement: Replacement,
}

/// A TLB or a page-walk cache. One set is fully associative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TlbFile {
    /// Translations that it holds.
    pub entries: Sourced<u32>,
    /// Its associativity.
    pub ways: Sourced<u32>,
}

/// Which line a full set gives up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// The one that was not used for longest.
    #[default]
    Lru,
    /// The one that came first.
    Fifo,
    /// Any, with equal probability.
    Random,
    /// What a binary tree of "the other half was used last" bits points to.
    TreePlru,
    /// Static re-reference interval prediction with two bits (Jaleel et al., ISCA'10).
    Srrip,
}

/// Which lines a last-level cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Inclusion {
    /// Every line that a private cache holds: what it gives up, they give up.
    Inclusive,
    /// Lines that were fetched, until it gives them up; private caches keep theirs.
    #[default]
    NonInclusive,
    /// Lines that a second-level cache gave up; a hit moves the line back.
    Victim,
}

impl Detail {
    /// Checks what the types cannot: returns the field and what is wrong with it.
    pub(crate) fn validate(&self, llc: Bytes) -> Result<(), (String, String)> {
        if self.issue_width.value.is_nan() || self.issue_width.value <= 0.0 {
            return Err(("detail.issue-width".into(), "must be above zero".into()));
        }
        if self.reorder_buffer.value == 0 {
            return Err(("detail.reorder-buffer".into(), "must be at least 1".into()));
        }
        cache("detail.l1", self.l1.size.value, self.l1.ways.value, self.l1.replacement)?;
        let sets = self.l1.size.value.get() / CACHE_LINE / u64::from(self.l1.ways.value);
        if !sets.is_power_of_two() {
            let message = format!("gives {sets} sets, which must be a power of two");
            return Err(("detail.l1.size".into(), message));
        }
        if let Some(l2) = &self.l2 {
            cache("detail.l2", l2.size.value, l2.ways.value, l2.replacement)?;
        } else if self.llc.inclusion == Inclusion::Victim {
            let message = "a victim cache needs an l2 to take lines from".into();
            return Err(("detail.llc.inclusion".into(), message));
        }
        cache("detail.llc", llc, self.llc.ways.value, self.llc.replacement)?;
        for (name, tlb) in [
            ("dtlb-4k", &self.dtlb_4k),
            ("dtlb-2m", &self.dtlb_2m),
            ("dtlb-1g", &self.dtlb_1g),
            ("stlb", &self.stlb),
            ("stlb-1g", &self.stlb_1g),
            ("walk-pde", &self.walk_pde),
            ("walk-pdpte", &self.walk_pdpte),
            ("walk-pml4e", &self.walk_pml4e),
        ] {
            let (entries, ways) = (tlb.entries.value, tlb.ways.value);
            ways_of(&format!("detail.{name}"), ways)?;
            if entries == 0 || entries % ways != 0 || !(entries / ways).is_power_of_two() {
                let field = format!("detail.{name}.entries");
                return Err((field, "must be `ways` times a power of two".into()));
            }
        }
        if self.dtlb_4k.entries.value / self.dtlb_4k.ways.value < 8 {
            return Err(("detail.dtlb-4k.entries".into(), "must make at least 8 sets".into()));
        }
        if self.stlb.entries.value / self.stlb.ways.value < 32 {
            return Err(("detail.stlb.entries".into(), "must make at least 32 sets".into()));
        }
        Ok(())
    }
}

fn ways_of(table: &str, ways: u32) -> Result<(), (String, String)> {
    if (1..=MAX_WAYS).contains(&ways) {
        Ok(())
    } else {
        Err((format!("{table}.ways"), format!("must be 1 to {MAX_WAYS}")))
    }
}

/// A cache whose number of sets is a power of two times a small odd number
/// (the slices of a last-level cache), at least 64.
fn cache(
    table: &str,
    size: Bytes,
    ways: u32,
    replacement: Replacement,
) -> Result<(), (String, String)> {
    ways_of(table, ways)?;
    let set = CACHE_LINE * u64::from(ways);
    let bad = |message: String| Err((format!("{table}.ways"), message));
    if size.is_zero() || !size.get().is_multiple_of(set) {
        return bad(format!("{size} is no whole number of sets of {ways} lines"));
    }
    let sets = size.get() / set;
    if sets & sets.wrapping_neg() < 64 {
        return bad(format!("{sets} sets are not a multiple of 64"));
    }
    if replacement == Replacement::TreePlru && !ways.is_power_of_two() {
        return bad("tree-plru needs a power of two".into());
    }
    Ok(())
}
