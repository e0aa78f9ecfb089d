//! Where the time of a fault went in real runs, beside what it takes at least.

use terrace_core::Nanos;
use terrace_report::RunReport;

use crate::limits::Limits;

/// The mean fault of some runs, by parts. The parts are those of `terrace run`'s own
/// report, over all faults: first touches and hint faults cost less than a miss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Breakdown {
    faults: u64,
    misses: u64,
    wake_up: Nanos,
    reclaim: Nanos,
    decompress: Nanos,
    copy: Nanos,
    other: Nanos,
}

/// The table's head.
pub const HEAD: &str = "    faults  misses   wake-up  making room  decompress  copy and wake    other      all   by limit";

impl Breakdown {
    /// Adds a run.
    pub fn add(&mut self, report: &RunReport) {
        let (stall, faults) = (report.total.stall, &report.total.faults);
        self.faults += faults.iter().map(|kind| kind.count).sum::<u64>();
        self.misses += faults
            .iter()
            .filter(|kind| kind.kind == terrace_report::run::FaultClass::Absent)
            .map(|kind| kind.count)
            .sum::<u64>();
        self.wake_up += stall.wake_up;
        self.reclaim += stall.reclaim;
        self.decompress += stall.decompress;
        self.copy += stall.copy;
        self.other += stall.other;
    }

    /// All parts, of one fault, in microseconds; `None` without faults.
    pub fn each(&self) -> Option<[f64; 5]> {
        let parts = [self.wake_up, self.reclaim, self.decompress, self.copy, self.other];
        let faults = self.faults as f64;
        (self.faults > 0).then(|| parts.map(|part| part.get() as f64 / 1e3 / faults))
    }

    /// A line of the table.
    pub fn line(&self, limits: Limits) -> Option<String> {
        let each = self.each()?;
        let [wake_up, reclaim, decompress, copy, other] = each;
        let all: f64 = each.iter().sum();
        let share = self.misses as f64 / self.faults as f64 * 100.0;
        let by = all / (limits.total().get() as f64 / 1e3);
        Some(format!(
            "{:>10}  {share:>4.0} %  {wake_up:>8.2}  {reclaim:>11.2}  {decompress:>10.2}  \
             {copy:>13.2}  {other:>7.2}  {all:>7.2}  {by:>7.1} x",
            self.faults
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_s_parts_add_up_and_are_held_against_the_limit() {
        let breakdown = Breakdown {
            faults: 1000,
            misses: 500,
            wake_up: Nanos(4_000_000),
            reclaim: Nanos(1_000_000),
            decompress: Nanos(2_000_000),
            copy: Nanos(2_000_000),
            other: Nanos(1_000_000),
        };
        let limits = Limits { zero_fill: Nanos(1500), decompress: Nanos(500) };
        assert_eq!(breakdown.each(), Some([4.0, 1.0, 2.0, 2.0, 1.0]));
        let line = breakdown.line(limits).unwrap();
        assert!(line.ends_with("10.00      5.0 x") && line.contains("50 %"), "{line}");
        assert_eq!(line.len(), HEAD.len(), "{line}\n{HEAD}");
        assert_eq!(Breakdown::default().line(limits), None);
    }
}
