//! Looks for processes of the run that run on plain memory: nothing tells of those by itself.
//!
//! A statically linked program, one with a set-id bit, or one that was started as another user
//! cannot be managed, and says nothing. Its memory would be missing in a report that says that a
//! budget was kept.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use terrace_core::Bytes;
use terrace_report::plain::{PlainProgram, PlainReport};

use super::memory::Memory;
use super::program;

/// What counts: a budget's sixteenth, or so much if that is less.
const LEAST: Bytes = Bytes::mib(16);
const PART: u64 = 16;
/// Programs that the report names.
const NAMED: usize = 16;

/// What the run's processes are looked through for.
pub(super) struct PlainWatch {
    /// The file name of what is loaded into them.
    library: String,
    least: Bytes,
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
    pub(super) fn new(library: &Path, budget: Bytes) -> Self {
        let name = library.file_name().unwrap_or_default();
        Self {
            library: name.to_string_lossy().into_owned(),
            least: LEAST.min(budget / PART),
            known: BTreeMap::new(),
            seen: BTreeMap::new(),
            peak: Bytes::ZERO,
        }
    }

    /// Looks at all processes of the run, but at those that are managed, or may come to be: they
    /// tell for themselves.
    pub(super) fn look(
        &mut self,
        processes: &BTreeMap<u32, Memory>,
        managed: impl Fn(u32) -> bool,
    ) {
        let mut sum = Bytes::ZERO;
        for (&process, memory) in processes {
            let resident = Bytes(memory.private);
            if resident < self.least || managed(process) {
                continue;
            }
            let Some(name) = self.judge(process) else { continue };
            sum += resident;
            let (_, peak) = self.seen.entry(name).or_default();
            *peak = resident.max(*peak);
        }
        self.known.retain(|process, _| processes.contains_key(process));
        self.peak = self.peak.max(sum);
    }

    /// Whether a process was found to run without the library.
    pub(super) fn is_plain(&self, process: u32) -> bool {
        self.known.get(&process).is_some_and(|found| found.plain.is_some())
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

    /// The most that all of them had at once.
    pub(super) fn peak(&self) -> Bytes {
        self.peak
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
