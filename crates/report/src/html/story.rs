//! A recorded run as its pictures need it, in bounded memory however long the
//! run was: columns are thinned out as they become too many.

use std::collections::BTreeMap;

use terrace_core::{Bytes, Nanos, PageSize};
use terrace_live::stats::process_page::PARTS;

use super::decisions::Decisions;
use crate::run::{FaultClass, Moment, RunReport};

/// Columns that a picture has at most; beyond twice as many, pairs are merged.
const COLUMNS: usize = 300;
/// Regions whose parts are kept: those with the most faults.
const REGIONS: usize = 24;

/// Which region: its process and its first address.
pub type RegionKey = (u32, u64);

/// Everything that a page tells of.
#[derive(Debug, Default)]
pub struct Story {
    /// The machine, in words.
    pub machine: String,
    /// The report at the end; at the last moment, if the recording has no end.
    pub report: Option<RunReport>,
    /// Whether the recording was finished.
    pub complete: bool,
    /// What was lost or cut off, in words.
    pub notes: Vec<String>,
    /// Moments, in order.
    pub columns: Vec<Column>,
    /// Decisions by what was decided, and why.
    pub decisions: Decisions,
}

/// A moment, reduced to what is drawn.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// When.
    pub at: Nanos,
    /// In DRAM.
    pub resident: Bytes,
    /// The content, uncompressed, of what is compressed.
    pub stored: Bytes,
    /// The memory that it takes.
    pub store: Bytes,
    /// In the spill file.
    pub spilled: Bytes,
    /// Faults until then, by kind.
    pub faults: [u64; 3],
    /// Pages moved until then: promotions, demotions, ping-pongs.
    pub moved: [u64; 3],
    /// Stall time until then.
    pub stalled: Nanos,
    /// Regions.
    pub regions: BTreeMap<RegionKey, RegionColumn>,
}

/// A region at a moment.
#[derive(Clone, Debug)]
pub struct RegionColumn {
    /// Its length.
    pub length: Bytes,
    /// What of its parts is in DRAM, percent.
    pub resident: [u8; PARTS],
    /// Faults in its parts until then.
    pub faults: [u32; PARTS],
}

impl Story {
    /// Takes in a moment, with the residency of regions' parts.
    pub fn moment(&mut self, moment: &Moment, residency: &BTreeMap<RegionKey, Vec<u8>>) {
        let total = &moment.total;
        let fault = |kind| total.faults.iter().filter(move |fault| fault.kind == kind);
        let mut column = Column {
            at: moment.elapsed,
            resident: total.resident,
            stored: PageSize::Base.bytes()
                * (total.store.compressed_pages + total.store.same_filled_pages),
            store: total.store.occupied,
            spilled: total.store.spilled,
            faults: FaultClass::ALL.map(|kind| fault(kind).map(|fault| fault.count).sum()),
            moved: [total.promotions, total.demotions, total.ping_pongs],
            stalled: total.waited,
            regions: BTreeMap::new(),
        };
        let mut regions: Vec<_> = moment
            .processes
            .iter()
            .flat_map(|process| process.regions.iter().map(move |region| (process.pid, region)))
            .collect();
        regions.sort_by_key(|(_, region)| std::cmp::Reverse((region.faults, region.length)));
        for (pid, region) in regions.into_iter().take(REGIONS) {
            let key = (pid, region.start);
            let parts = residency.get(&key).and_then(|parts| parts.as_slice().try_into().ok());
            let resident = parts.unwrap_or([0; PARTS]);
            let (length, faults) = (region.length, region.parts);
            column.regions.insert(key, RegionColumn { length, resident, faults });
        }
        self.columns.push(column);
        thin_out(&mut self.columns);
    }

    /// Regions worth drawing: those that had faults, most first, and then in
    /// the order of their addresses.
    pub fn regions(&self, most: usize) -> Vec<(RegionKey, Bytes)> {
        let mut faults = BTreeMap::<RegionKey, (u64, Bytes)>::new();
        for column in &self.columns {
            for (key, region) in &column.regions {
                let count = region.faults.iter().map(|&n| u64::from(n)).sum::<u64>();
                let entry = faults.entry(*key).or_default();
                *entry = (entry.0.max(count), entry.1.max(region.length));
            }
        }
        let mut all: Vec<_> = faults.into_iter().collect();
        all.sort_by_key(|(_, (count, length))| std::cmp::Reverse((*count, *length)));
        all.truncate(most);
        all.sort_by_key(|(key, _)| *key);
        all.into_iter().map(|(key, (_, length))| (key, length)).collect()
    }
}

/// Drops every other column when there are too many: counters are totals, so the later
/// of two says what both came to.
pub(super) fn thin_out<T>(columns: &mut Vec<T>) {
    if columns.len() >= 2 * COLUMNS {
        let mut n = 0;
        columns.retain(|_| {
            n += 1;
            n % 2 == 0
        });
    }
}
