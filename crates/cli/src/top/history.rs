//! What was seen, look by look.

use std::collections::{BTreeMap, VecDeque};

use terrace_live::stats::process_page::PARTS;
use terrace_report::{Rates, RunReport};

use super::attached::AttachHistory;
use crate::advice::{self, Advice, Signs};
use crate::residency::{self, Parts};
use crate::runs::{self, LiveRun, Manifest};

/// Looks that the heat map can show.
pub(super) const COLUMNS: usize = 512;

/// Every run that is under way.
pub(super) struct History {
    runs: Vec<Seen>,
    is_new: bool,
}

/// A run of either kind.
pub(super) enum Seen {
    /// Its memory is compressed.
    Run(Box<RunHistory>),
    /// Its pages stay mapped.
    Attached(Box<AttachHistory>),
}

impl Seen {
    fn manifest(&self) -> &Manifest {
        match self {
            Self::Run(run) => &run.manifest,
            Self::Attached(run) => &run.manifest,
        }
    }

    /// A run after another look; `None` if there was nothing to be seen of it yet.
    fn after(before: Option<Self>, run: &LiveRun) -> Option<Self> {
        let manifest = run.manifest.clone();
        if manifest.in_place {
            let before = match before {
                Some(Self::Attached(before)) => Some(*before),
                _ => None,
            };
            let history = AttachHistory::after(before, manifest, run.attached()?);
            return Some(Self::Attached(Box::new(history)));
        }
        let before = match before {
            Some(Self::Run(before)) => Some(*before),
            _ => None,
        };
        Some(Self::Run(Box::new(RunHistory::after(before, manifest, run.report()))))
    }
}

/// One run whose memory is compressed.
pub(super) struct RunHistory {
    /// What it says of itself.
    pub(super) manifest: Manifest,
    /// Its figures at the last look.
    pub(super) report: RunReport,
    /// What happened since the look before.
    pub(super) rates: Option<Rates>,
    /// Columns of the heat map, oldest first.
    pub(super) columns: VecDeque<Column>,
}

/// Which region: its process and its first address.
pub(super) type RegionKey = (u32, u64);

/// One look: each region's parts.
#[derive(Default)]
pub(super) struct Column {
    pub(super) regions: BTreeMap<RegionKey, Cells>,
}

/// A region's parts at one look.
pub(super) struct Cells {
    /// What of each is in DRAM, percent.
    pub(super) resident: Parts,
    /// Faults in each since the region began.
    total: [u32; PARTS],
    /// Faults in each since the look before.
    pub(super) faults: [u32; PARTS],
}

impl History {
    /// Nothing was seen yet.
    pub(super) fn new() -> Self {
        Self { runs: Vec::new(), is_new: true }
    }

    /// Whether nothing was looked at yet.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// The runs, oldest first.
    pub(super) fn runs(&self) -> &[Seen] {
        &self.runs
    }

    /// Looks at the chosen runs; forgets those that are over.
    pub(super) fn look(&mut self, choice: Option<&str>) {
        self.is_new = false;
        let mut before = std::mem::take(&mut self.runs);
        for run in runs::choose(choice).unwrap_or_default() {
            let same = before.iter().position(|old| *old.manifest() == run.manifest);
            let old = same.map(|at| before.swap_remove(at));
            self.runs.extend(Seen::after(old, &run));
        }
    }
}

impl RunHistory {
    /// A run after another look.
    fn after(before: Option<Self>, manifest: Manifest, report: RunReport) -> Self {
        let mut column = Column::default();
        for process in &report.processes {
            let resident: BTreeMap<u64, Parts> = residency::of(process).into_iter().collect();
            for region in &process.regions {
                let key = (process.pid, region.start);
                let last = before.as_ref().and_then(|run| run.columns.back()?.regions.get(&key));
                let cells = Cells {
                    resident: resident.get(&region.start).copied().unwrap_or([0; PARTS]),
                    total: region.parts,
                    faults: std::array::from_fn(|i| {
                        let last = last.map_or(region.parts[i], |cells| cells.total[i]);
                        region.parts[i].saturating_sub(last)
                    }),
                };
                column.regions.insert(key, cells);
            }
        }
        let rates = before.as_ref().and_then(|before| Rates::between(&before.report, &report));
        let mut columns = before.map(|before| before.columns).unwrap_or_default();
        columns.push_back(column);
        if columns.len() > COLUMNS {
            columns.pop_front();
        }
        Self { manifest, report, rates, columns }
    }

    /// What the last look says of how the run is.
    pub(super) fn signs(&self) -> Signs {
        Signs::of(&self.report, self.rates.as_ref().map_or(0.0, |rates| rates.thrashing))
    }

    /// What would help the run now.
    pub(super) fn advice(&self) -> Vec<Advice> {
        self.signs().all(advice::whose(&self.report, self.manifest.pid))
    }

    /// Faults in a region since the look before.
    pub(super) fn faults(&self, key: RegionKey) -> u64 {
        let cells = self.columns.back().and_then(|column| column.regions.get(&key));
        cells.map_or(0, |cells| cells.faults.iter().map(|&n| u64::from(n)).sum())
    }

    #[cfg(test)]
    pub(super) fn of_looks(manifest: &Manifest, reports: Vec<RunReport>) -> Self {
        let mut run: Option<Self> = None;
        for report in reports {
            run = Some(Self::after(run, manifest.clone(), report));
        }
        run.expect("at least one look")
    }
}
