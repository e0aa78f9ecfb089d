//! What was seen of memory whose pages stay mapped, look by look.

use std::collections::VecDeque;

use terrace_live::stats::process_page::PARTS;
use terrace_report::attach::RegionLine;
use terrace_report::{AttachRates, AttachReport};

use super::heat::MapRow;
use super::history::COLUMNS;
use crate::advice::{Advice, Signs};
use crate::runs::Manifest;

/// Regions that are kept of each look: the largest.
const REGIONS: usize = 64;

/// Advice for a run whose faults the kernel serves; none for another one. `thrashing` is the part of the
/// time in which it thrashed lately, `own` the number by which it is found.
pub(super) fn advice(report: &AttachReport, own: u32, thrashing: f64) -> Vec<Advice> {
    let Some(kernel) = &report.kernel else { return Vec::new() };
    let outside = kernel.too_much_outside();
    let by_kernel = Signs::by_kernel(kernel.run_level, kernel.short_of_swap, thrashing);
    let signs = Signs { outside, ..by_kernel };
    signs.all(kernel.budget_of.unwrap_or(own))
}

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

    /// Advice for the run as it is now; none unless the kernel serves its faults.
    pub(super) fn advice(&self) -> Vec<Advice> {
        let thrashing = self.rates.as_ref().map_or(0.0, |rates| rates.thrashing);
        advice(&self.report, self.manifest.pid, thrashing)
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
