//! Reads the statistics pages of a run's processes, and writes their
//! decisions down while they run.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use terrace_core::{PageSize, RegionId};
use terrace_live::decide::event_ring::{DECISIONS_EXTENSION, DecisionRing, EXTENSION, EventRing};
use terrace_live::failsafe::dying::{self, Left};
use terrace_live::stats::opened::Opened;
use terrace_live::stats::process_page::{ProcessPage, RING};
use terrace_report::unread::UnreadProcess;
use terrace_report::{Moment, RunReport};

use super::ended::{Ended, MOST_ENDED, importance};
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::records::{Header, Record, RegionRecord, Residency, Writer};
use crate::residency;
use crate::runs;

/// Regions of a process that each moment tells of: those with the most faults.
const REGIONS: usize = 64;

/// Watches a run directory. Processes come as the program forks and starts
/// others; what stays when they end is in [`super::ended`].
pub(crate) struct Recorder {
    directory: Option<PathBuf>,
    /// The process that the run ends with.
    program: Option<u32>,
    ended: Option<Ended>,
    /// By file name: each file is mapped once.
    processes: BTreeMap<OsString, Process>,
    /// By file name: of those whose pages cannot be read.
    unread: BTreeMap<OsString, UnreadProcess>,
    /// By file name, too.
    events: BTreeMap<OsString, Events>,
    decisions: BTreeMap<OsString, Decisions>,
    file: Option<RecordFile>,
}

struct Process {
    page: Opened<ProcessPage>,
    /// The first decision that was not drained yet.
    next: u64,
    /// Regions as they were last written down.
    regions: BTreeSet<RegionRecord>,
}

/// Events of one process on their way into the recording.
struct Events {
    ring: Opened<EventRing>,
    /// Losses that are written down already.
    lost: u64,
}

/// Decisions of one process on their way there.
struct Decisions {
    ring: Opened<DecisionRing>,
    /// Losses that are written down already.
    lost: u64,
}

struct RecordFile {
    writer: Writer<BufWriter<Output>>,
    lost: u64,
    /// After an error nothing more is written.
    failed: bool,
}

impl Recorder {
    /// Watches a directory; writes decisions to a file, if one is given.
    pub(crate) fn new(directory: &Path, file: Option<(Output, Header)>) -> Result<Self, Failure> {
        let file = file.map(|(out, header)| RecordFile::begin(out, &header));
        let ended = Ended::new(directory).map_err(|e| runs::not_made(&e, directory))?;
        Ok(Self {
            directory: Some(directory.to_owned()),
            program: None,
            ended: Some(ended),
            processes: BTreeMap::new(),
            unread: BTreeMap::new(),
            events: BTreeMap::new(),
            decisions: BTreeMap::new(),
            file,
        })
    }

    /// Watches nothing: of a program that is not managed.
    pub(crate) fn none() -> Self {
        Self {
            directory: None,
            program: None,
            ended: None,
            processes: BTreeMap::new(),
            unread: BTreeMap::new(),
            events: BTreeMap::new(),
            decisions: BTreeMap::new(),
            file: None,
        }
    }

    /// Notes which process the run ends with.
    pub(crate) fn program_is(&mut self, program: u32) {
        self.program = Some(program);
    }

    /// The pages of every process that there has been, and one of those that have none any more.
    pub(crate) fn pages(&mut self) -> impl Iterator<Item = &ProcessPage> {
        self.look_for_processes();
        let own = self.processes.values().map(|process| &*process.page);
        own.chain(self.ended.as_ref().map(Ended::page))
    }

    /// Processes whose pages cannot be read.
    pub(crate) fn unread(&mut self) -> Vec<UnreadProcess> {
        self.look_for_processes();
        self.unread.values().copied().collect()
    }

    /// Helps processes that were killed to their end; whether any is on its way there. Of those
    /// that have ended, only so much is kept.
    pub(crate) fn look_after(&mut self) -> bool {
        self.look_for_processes();
        let (mut any, mut gone) = (false, Vec::new());
        for (name, process) in self.processes.iter().filter(|(_, p)| !p.page.has_ended()) {
            let pid = process.page.pid();
            match dying::hasten(pid) {
                // Its end is the run's: the report tells what it had then.
                Left::Nothing if self.program == Some(pid) => {}
                Left::Nothing => gone.push(name.clone()),
                left => any |= left == Left::Dying,
            }
        }
        for name in gone {
            self.has_ended(&name);
        }
        if let Some(ended) = &self.ended {
            ended.look(self.processes.values().map(|process| &*process.page));
        }
        self.forget_ended();
        any
    }

    /// The program, which is this process, has ended. Of processes that came and went since the
    /// last look nobody knows what they had at the same time.
    pub(crate) fn program_has_ended(&mut self, program: u32) {
        let before: BTreeSet<_> = self.processes.keys().cloned().collect();
        self.look_for_processes();
        let new = self.processes.iter().filter(|(name, process)| {
            let pid = process.page.pid();
            pid != program && !before.contains(*name) && dying::hasten(pid) == Left::Nothing
        });
        let new: Vec<_> = new.map(|(name, _)| name.clone()).collect();
        for name in new {
            self.has_ended(&name);
        }
    }

    /// Nothing is left of a process but its page, and what is to be written down.
    fn has_ended(&mut self, name: &OsString) {
        let (Some(ended), Some(directory)) = (&mut self.ended, &self.directory) else { return };
        if !self.processes.get(name).is_some_and(|process| ended.knows(&process.page)) {
            return;
        }
        let Some(mut process) = self.processes.remove(name) else { return };
        let pid = process.page.pid();
        if let Some(file) = &mut self.file {
            process.drain(file);
            self.events.retain(|name, events| {
                if events.ring.pid() != pid {
                    return true;
                }
                events.drain(file);
                fs::remove_file(directory.join(name)).is_err()
            });
            self.decisions.retain(|name, decisions| {
                if decisions.ring.pid() != pid {
                    return true;
                }
                decisions.drain(file);
                fs::remove_file(directory.join(name)).is_err()
            });
        }
        let renamed = ended.has_ended(&process.page, &directory.join(name));
        let name = renamed.as_deref().and_then(Path::file_name).unwrap_or(name);
        self.processes.insert(name.to_owned(), process);
    }

    /// Takes the figures of processes together that have ended and mattered least.
    fn forget_ended(&mut self) {
        let (Some(ended), Some(directory)) = (&self.ended, &self.directory) else { return };
        let all = self.processes.iter().filter(|(_, process)| process.page.has_ended());
        let mut all: Vec<_> =
            all.map(|(name, process)| (importance(&process.page), name.clone())).collect();
        let many = all.len().saturating_sub(MOST_ENDED);
        all.sort();
        for (_, name) in all.into_iter().take(many) {
            let Some(process) = self.processes.get(&name) else { continue };
            if ended.take_in(&process.page, &directory.join(&name)) {
                self.processes.remove(&name);
            }
        }
    }

    /// Decisions that were lost; `None` without a recording.
    pub(crate) fn lost(&self) -> Option<u64> {
        self.file.as_ref().map(|file| file.lost)
    }

    /// Writes down what was decided since the last time, and says whether that
    /// was so much that the next time should come soon.
    pub(crate) fn drain(&mut self) -> bool {
        if self.file.is_none() {
            return false;
        }
        self.look_for_processes();
        let Some(file) = &mut self.file else { return false };
        let mut busy = false;
        for process in self.processes.values_mut() {
            busy |= process.drain(file) > RING as u64 / 8;
        }
        // After the regions that they are about.
        for decisions in self.decisions.values_mut() {
            busy |= decisions.drain(file);
        }
        for events in self.events.values_mut() {
            busy |= events.drain(file);
        }
        busy
    }

    /// Writes down the figures at this moment.
    pub(crate) fn moment(&mut self, report: RunReport) {
        let Some(file) = &mut self.file else { return };
        let residency =
            report
                .processes
                .iter()
                .filter(|process| !process.ended)
                .flat_map(|process| {
                    residency::of(process).into_iter().take(REGIONS).map(|(start, parts)| {
                        Residency { process: process.pid, start, parts: parts.to_vec() }
                    })
                })
                .collect();
        let mut moment = Box::new(Moment::from(report));
        moment.processes.iter_mut().for_each(|process| process.regions.truncate(REGIONS));
        file.write(&Record::Moment { moment, residency });
    }

    /// Whether anything is written down.
    pub(crate) fn is_recording(&self) -> bool {
        self.file.is_some()
    }

    /// Writes down the last decisions and the report. Where the recording is then; `None` if it
    /// is in no file.
    pub(crate) fn finish(&mut self, report: RunReport) -> Option<PathBuf> {
        let file = self.file.as_mut()?;
        file.write(&Record::End { report: Box::new(report) });
        file.complete();
        file.output().path().map(Path::to_owned)
    }

    fn look_for_processes(&mut self) {
        let Some(directory) = &self.directory else { return };
        let Ok(entries) = fs::read_dir(directory) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let path = entry.path();
            let is = |extension: &str| path.extension().is_some_and(|e| e == extension);
            if is(EXTENSION)
                && !self.events.contains_key(&name)
                && let Ok(ring) = EventRing::open(&path)
            {
                self.events.insert(name.clone(), Events { ring, lost: 0 });
            }
            if is(DECISIONS_EXTENSION)
                && !self.decisions.contains_key(&name)
                && let Ok(ring) = DecisionRing::open(&path)
            {
                self.decisions.insert(name.clone(), Decisions { ring, lost: 0 });
            }
            if self.processes.contains_key(&name) || !runs::is_page(&entry.path()) {
                continue;
            }
            // A page that is being made is not valid yet; the next look finds it.
            if let Ok(page) = ProcessPage::open(&path) {
                self.unread.remove(&name);
                self.processes.insert(name, Process { page, next: 0, regions: BTreeSet::new() });
            } else if let Some(unread) = UnreadProcess::of(&path) {
                self.unread.insert(name, unread);
            }
        }
    }
}

impl Process {
    /// Returns how many decisions there were, lost ones included.
    fn drain(&mut self, file: &mut RecordFile) -> u64 {
        let begin = self.next;
        let process = self.page.pid.load(Relaxed);
        self.write_regions(process, file);
        let lost = self.page.drain_decisions(&mut self.next, |decision| {
            file.write(&Record::Decision { process, decision: Box::new(decision) });
        });
        if lost > 0 {
            file.lost += lost;
            file.write(&Record::Lost { process, count: lost });
        }
        self.next - begin
    }
}

impl Process {
    /// Writes down where regions lie, as far as that has changed: decisions
    /// name pages by region and number.
    fn write_regions(&mut self, process: u32, file: &mut RecordFile) {
        let size = PageSize::Base;
        let now: BTreeSet<_> = self
            .page
            .regions
            .iter()
            .filter(|line| line.start.load(Relaxed) != 0)
            .map(|line| RegionRecord {
                process,
                region: RegionId(line.id.load(Relaxed) as u32),
                start: line.start.load(Relaxed),
                pages: (line.len.load(Relaxed) >> size.shift()) as u32,
                page_size: size,
            })
            .collect();
        for region in now.difference(&self.regions) {
            file.write(&Record::Region(*region));
        }
        self.regions = now;
    }
}

impl Events {
    /// Writes down what has come, and says whether that was so much that the
    /// next time should come soon.
    fn drain(&mut self, file: &mut RecordFile) -> bool {
        let process = self.ring.pid();
        let busy = self.ring.fill() > 0.05;
        let mut bytes = Vec::new();
        if self.ring.drain(&mut bytes) > 0 {
            file.write(&Record::Events { process, bytes });
        }
        let lost = self.ring.lost();
        if lost > self.lost {
            file.write(&Record::EventsLost { process, count: lost - self.lost });
            self.lost = lost;
        }
        busy
    }
}

impl Decisions {
    /// The same of decisions.
    fn drain(&mut self, file: &mut RecordFile) -> bool {
        let process = self.ring.pid();
        let busy = self.ring.fill() > 0.02;
        let mut bytes = Vec::new();
        if self.ring.drain(&mut bytes) > 0 {
            file.write(&Record::Decisions { process, bytes });
        }
        let lost = self.ring.lost();
        if lost > self.lost {
            file.lost += lost - self.lost;
            file.write(&Record::Lost { process, count: lost - self.lost });
            self.lost = lost;
        }
        busy
    }
}

impl RecordFile {
    fn begin(out: Output, header: &Header) -> Self {
        let (writer, begun) = Writer::begin(BufWriter::new(out), header);
        let mut file = Self { writer, lost: 0, failed: false };
        file.note(begun);
        file
    }

    fn output(&mut self) -> &mut Output {
        self.writer.get_mut().get_mut()
    }

    fn write(&mut self, record: &Record) {
        if !self.failed {
            let written = self.writer.write(record);
            self.output().keep();
            self.note(written);
        }
    }

    fn complete(&mut self) {
        if !self.failed {
            let flushed = self.writer.flush().and_then(|()| self.writer.get_mut().flush());
            self.note(flushed);
        }
        if !self.failed
            && let Err(failure) = self.output().complete()
        {
            failure.report();
        }
    }

    /// An error is told at once. The program goes on: it is not the program's.
    fn note(&mut self, result: io::Result<()>) {
        if let Err(e) = result {
            self.failed = true;
            self.output().failure(&e).report();
            output::warn("nothing more is recorded; the program goes on");
        }
    }
}
