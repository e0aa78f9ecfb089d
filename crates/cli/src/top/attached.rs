//! What was seen of memory whose pages stay mapped, look by look.

use std::collections::VecDeque;

use terrace_live::stats::process_page::PARTS;
use terrace_report::attach::RegionLine;
use terrace_report::{AttachRates, AttachReport};

use super::heat::MapRow;
use super::history::COLUMNS;
use crate::runs::Manifest;

/// Regions that are kept of each look: the largest.
const REGIONS: usize = 64;

/// One attachment.
pub(super) struct AttachHistory {
    /// What it says of itself.
    pub(super) manifest: Manifest,
    /// Its figures at the last look.
    pub(super) report: AttachReport,
    /// What happened since the look before.
    pub(super) rates: Option<AttachRates>,
    /// Columns of the heat map, oldest first: the regions at a look.
    pub(super) columns: VecDeque<Vec<RegionLine>>,
}

impl AttachHistory {
    /// An attachment after another look.
    pub(super) fn after(before: Option<Self>, manifest: Manifest, report: AttachReport) -> Self {
        let rates = before.as_ref().and_then(|before| {
            // Figures are published a few times a second; if there are no new ones, the
            // rates are what they were.
            AttachRates::between(Some(&before.report), &report).or_else(|| before.rates.clone())
        });
        let mut columns = before.map(|before| before.columns).unwrap_or_default();
        columns.push_back(report.regions.iter().take(REGIONS).cloned().collect());
        if columns.len() > COLUMNS {
            columns.pop_front();
        }
        Self { manifest, report, rates, columns }
    }

    /// What lay at the addresses of a row at a look, part by part. Regions grow and merge,
    /// so it is the addresses that count.
    pub(super) fn at(
        &self,
        column: usize,
        row: &MapRow,
    ) -> impl Iterator<Item = (&RegionLine, usize)> {
        let regions = self.columns.get(column).map_or(&[][..], Vec::as_slice);
        let ((process, start), length) = (row.key, row.length.get());
        (row.from..row.to).filter_map(move |part| {
            // In its middle.
            let address = start + length * (2 * part as u64 + 1) / (2 * PARTS as u64);
            let find = |region: &RegionLine| region.part_at(process, address);
            regions.iter().find_map(|region| Some((region, find(region)?)))
        })
    }
}
