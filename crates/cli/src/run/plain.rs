//! Looks for processes of the run that run on plain memory: nothing tells of those by itself.
//!
//! A statically linked program, one with a set-id bit, or one that was started as another user
//! cannot be managed, and says nothing. Its memory would be missing in a report that says that a
//! budget was kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::param::page_size;
use terrace_core::Bytes;
use terrace_live::attach::targets;
use terrace_live::broker::page::BrokerPage;
use terrace_report::plain::{PlainProgram, PlainReport};

use super::program;

/// How often it is looked; less often where looking takes long, so that it takes a fiftieth of a
/// processor at most.
const INTERVAL: Duration = Duration::from_millis(200);
const COST: u32 = 50;
/// What counts: a budget's sixteenth, or so much if that is less.
const LEAST: Bytes = Bytes::mib(16);
const PART: u64 = 16;
/// Programs that the report names.
const NAMED: usize = 16;

/// What the run's processes are looked through for.
pub(super) struct PlainWatch {
    /// The file name of what is loaded into them.
    library: String,
    /// Where processes that are, or may come to be, managed have a slot.
    slots: Option<&'static BrokerPage>,
    least: Bytes,
    due: Instant,
    /// By process: the program that it ran when it was first found, and its name.
    known: BTreeMap<u32, Found>,
    /// By name and reason: processes, and the most that one of them had.
    seen: BTreeMap<(String, String), (u64, Bytes)>,
    peak: Bytes,
}

/// A process that has much memory and no slot.
struct Found {
    /// What `/proc/PID/exe` names.
    program: String,
    /// Its name and why it is not managed; `None` if it may yet be.
    plain: Option<(String, String)>,
}

impl PlainWatch {
    pub(super) fn new(library: &Path, broker: Option<&Path>, budget: Bytes) -> Self {
        let name = library.file_name().unwrap_or_default();
        Self {
            library: name.to_string_lossy().into_owned(),
            slots: broker.and_then(|page| BrokerPage::open(page).ok()),
            least: LEAST.min(budget / PART),
            due: Instant::now() + INTERVAL,
            known: BTreeMap::new(),
            seen: BTreeMap::new(),
            peak: Bytes::ZERO,
        }
    }

    /// Looks, if it is time to. Processes that have statistics tell for themselves.
    pub(super) fn poll(&mut self, managed: impl FnOnce() -> BTreeSet<u32>) {
        let started = Instant::now();
        if started < self.due {
            return;
        }
        self.look(&managed());
        self.due = started + INTERVAL.max(started.elapsed() * COST);
    }

    fn look(&mut self, managed: &BTreeSet<u32>) {
        let processes = targets::started(std::process::id());
        let mut sum = Bytes::ZERO;
        for process in processes.iter().copied() {
            let slot = self.slots.is_some_and(|page| page.own(process).is_some());
            if slot || managed.contains(&process) {
                continue;
            }
            let Some(resident) = anonymous(process).filter(|&bytes| bytes >= self.least) else {
                continue;
            };
            let Some(name) = self.judge(process) else { continue };
            sum += resident;
            let (_, peak) = self.seen.entry(name).or_default();
            *peak = resident.max(*peak);
        }
        self.known.retain(|process, _| processes.binary_search(process).is_ok());
        self.peak = self.peak.max(sum);
    }

    /// The name of a process's program, and why it is not managed.
    fn judge(&mut self, process: u32) -> Option<(String, String)> {
        let link = format!("/proc/{process}/exe");
        let program = fs::read_link(&link).ok()?.to_string_lossy().into_owned();
        if let Some(found) = self.known.get(&process).filter(|found| found.program == program) {
            return found.plain.clone();
        }
        let plain = program::why_plain(process, &self.library).map(|why| {
            let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
            (name.trim_end().to_owned(), why)
        });
        if let Some(name) = &plain {
            self.seen.entry(name.clone()).or_default().0 += 1;
        }
        self.known.insert(process, Found { program, plain: plain.clone() });
        plain
    }

    /// What was found; `None` if nothing was.
    pub(super) fn report(&self) -> Option<PlainReport> {
        let program = |((command, why), (processes, peak)): (&(String, String), &(u64, Bytes))| {
            let (command, why) = (command.clone(), why.clone());
            PlainProgram { command, why, processes: *processes, resident_peak: *peak }
        };
        let mut programs: Vec<_> = self.seen.iter().map(program).collect();
        programs.sort_by_key(|program| std::cmp::Reverse(program.resident_peak));
        let processes = programs.iter().map(|program| program.processes).sum();
        programs.truncate(NAMED);
        let report = PlainReport { processes, resident_peak: self.peak, programs };
        (!report.programs.is_empty()).then_some(report)
    }
}

/// Resident memory of a process that is no file's and not shared (`proc_pid_statm(5)`).
fn anonymous(process: u32) -> Option<Bytes> {
    let text = fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let mut fields = text.split_ascii_whitespace().skip(1).map_while(|field| field.parse().ok());
    let (resident, shared): (u64, u64) = (fields.next()?, fields.next()?);
    Some(Bytes(resident.saturating_sub(shared) * page_size() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_private_and_resident_is_known_of_every_process() {
        let before = anonymous(std::process::id()).unwrap();
        let memory = std::hint::black_box(vec![1u8; 32 << 20]);

        let with = anonymous(std::process::id()).unwrap();

        assert!(with >= before + Bytes::mib(24), "{before} {with}");
        drop(memory);
        assert_eq!(anonymous(u32::MAX), None);
    }
}
