//! Sandboxes that idle: a control group is frozen and all its memory put out; before it goes on,
//! what it had in DRAM is brought back.
//!
//! A sandbox that waits for its user needs no memory, and is to answer at once when the user
//! comes. Paged out page by page it would come back by faults, one after the other; brought back
//! ahead, in the order of addresses, it comes at half their cost and before anybody waits.
//!
//! What was resident is written down beside the records of runs, for whoever thaws the group.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use terrace_core::Bytes;
use terrace_live::attach::host::is_gone;
use terrace_live::numa::moves::{Advice, ProcessHandle};
use terrace_live::space::proc_maps::{self, Mapping};
use terrace_sampler::pagemap::{Pagemap, Query, is};
use terrace_sampler::{ProcStat, proc_text};

use crate::files::{named, read, write};
use crate::setup::records::Records;

/// Version of the record.
const SCHEMA: u32 = 1;
/// How long a group may take to stand still: one of its processes may be in a long system call.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a group is frozen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freezer {
    directory: PathBuf,
    /// Whether it is a group of version 2.
    is_two: bool,
}

/// What a group had in DRAM when it was frozen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FrozenGroup {
    schema: u32,
    directory: PathBuf,
    processes: Vec<FrozenProcess>,
}

/// The same of a process, which is known by its number and when it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FrozenProcess {
    process: u32,
    started: u64,
    /// Start and length of what was resident.
    ranges: Vec<(u64, u64)>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Processes in the group.
    pub processes: usize,
    /// What they had in DRAM of what can be swapped; what is brought back.
    pub memory: Bytes,
    /// Processes that ended, or were exchanged for others, or cannot be dealt with.
    pub skipped: usize,
}

impl Freezer {
    /// That of a group, by its directory.
    ///
    /// # Errors
    /// If it is none that can be frozen.
    pub fn of(directory: &Path) -> Result<Self, String> {
        let is_two = directory.join("cgroup.freeze").exists();
        if !is_two && !directory.join("freezer.state").exists() {
            return Err(
                "is no group that can be frozen (under version 1 of control groups that is \
                        one of the freezer controller)"
                    .to_owned(),
            );
        }
        Ok(Self { directory: directory.to_owned(), is_two })
    }

    /// Whether the group stands still.
    ///
    /// # Errors
    /// If it is gone.
    pub fn is_frozen(&self) -> io::Result<bool> {
        if self.is_two {
            let events = read(&self.directory.join("cgroup.events"))?;
            return Ok(events.lines().any(|line| line == "frozen 1"));
        }
        Ok(read(&self.directory.join("freezer.state"))?.trim() == "FROZEN")
    }

    fn set(&self, frozen: bool) -> io::Result<()> {
        if self.is_two {
            let word = if frozen { "1" } else { "0" };
            return write(&self.directory.join("cgroup.freeze"), word);
        }
        let word = if frozen { "FROZEN" } else { "THAWED" };
        write(&self.directory.join("freezer.state"), word)
    }

    /// Whether a process is in the group or below it.
    pub fn holds(&self, process: u32) -> bool {
        self.members().contains(&process)
    }

    /// The processes in it and below it.
    fn members(&self) -> Vec<u32> {
        fn add(directory: &Path, all: &mut Vec<u32>) {
            let text = read(&directory.join("cgroup.procs")).unwrap_or_default();
            all.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
            let below = fs::read_dir(directory).into_iter().flatten().flatten();
            for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
                add(&entry.path(), all);
            }
        }
        let mut all = Vec::new();
        add(&self.directory, &mut all);
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The record's name: groups are told apart by their inodes.
    fn record(&self) -> io::Result<String> {
        let facts = fs::metadata(&self.directory).map_err(|e| named(&self.directory, &e))?;
        Ok(format!("frozen-{}.json", facts.ino()))
    }

    /// Freezes the group, writes down what it has in DRAM, and puts that out. If anything fails, it
    /// goes on.
    ///
    /// # Errors
    /// The system's; of kind `TimedOut` if it does not stand still.
    pub fn freeze(&self, records: &Path) -> io::Result<Moved> {
        let done = self.stand_still().and_then(|()| self.put_out(records));
        if done.is_err() {
            // The error is that of the freezing.
            let _ = self.set(false);
        }
        done
    }

    fn stand_still(&self) -> io::Result<()> {
        self.set(true)?;
        let until = Instant::now() + PATIENCE;
        while !self.is_frozen()? {
            if Instant::now() > until {
                let what = format!("{}: does not stand still", self.directory.display());
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn put_out(&self, records: &Path) -> io::Result<Moved> {
        let mut moved = Moved::default();
        let mut frozen = FrozenGroup {
            schema: SCHEMA,
            directory: self.directory.clone(),
            processes: Vec::new(),
        };
        for process in self.members() {
            moved.processes += 1;
            match (resident(process), started(process)) {
                (Ok(ranges), Some(started)) => {
                    frozen.processes.push(FrozenProcess { process, started, ranges });
                }
                (Err(e), _) if !is_gone(&e) => return Err(e),
                _ => moved.skipped += 1,
            }
        }
        // Before it leaves: whoever is killed in between leaves a group that can be thawed well.
        Records::open(records)?.write(&self.record()?, &frozen)?;
        for one in &frozen.processes {
            match ProcessHandle::open(one.process)
                .and_then(|handle| handle.advise(Advice::PageOut, &one.ranges))
            {
                Ok(()) => moved.memory += one.memory(),
                Err(e) if is_gone(&e) => moved.skipped += 1,
                Err(e) => return Err(e),
            }
        }
        Ok(moved)
    }

    /// Brings back what the group had in DRAM, and lets it go on. It goes on whatever happens; what was
    /// not brought back comes by faults.
    ///
    /// # Errors
    /// The system's.
    pub fn thaw(&self, records: &Path) -> io::Result<Moved> {
        let brought = self.bring_back(records);
        self.set(false)?;
        brought
    }

    fn bring_back(&self, records: &Path) -> io::Result<Moved> {
        let name = self.record()?;
        let mut moved = Moved { processes: self.members().len(), ..Moved::default() };
        let path = records.join(&name);
        if !path.exists() {
            // Frozen by somebody else, or not at all.
            return Ok(moved);
        }
        // The lock is held for reading and for removing alone: gibibytes take seconds to come back,
        // and everybody who begins or ends a run waits for it. Whoever is killed in between leaves the
        // record, and thawing again brings back the rest.
        let text = {
            let _lock = Records::open(records)?;
            read(&path)?
        };
        let frozen: FrozenGroup =
            serde_json::from_str(&text).map_err(|e| named(&path, &e.into()))?;
        let is_it = frozen.schema == SCHEMA && frozen.directory == self.directory;
        for one in frozen.processes.iter().filter(|_| is_it) {
            if started(one.process) != Some(one.started) {
                moved.skipped += 1;
                continue;
            }
            match ProcessHandle::open(one.process)
                .and_then(|handle| handle.advise(Advice::WillNeed, &one.ranges))
            {
                Ok(()) => moved.memory += one.memory(),
                Err(e) if is_gone(&e) => moved.skipped += 1,
                Err(e) => return Err(e),
            }
        }
        Records::open(records)?.remove(&name)?;
        Ok(moved)
    }
}

impl FrozenProcess {
    fn memory(&self) -> Bytes {
        Bytes(self.ranges.iter().map(|(_, length)| length).sum())
    }
}

/// When a process began, in ticks since the machine did.
fn started(process: u32) -> Option<u64> {
    ProcStat::parse(&proc_text(format!("/proc/{process}/stat")).ok()?)?.started()
}

/// What a process has in DRAM of what can be swapped: start and length, in order.
fn resident(process: u32) -> io::Result<Vec<(u64, u64)>> {
    let mut pagemap = Pagemap::open(process)?;
    let text = fs::read(format!("/proc/{process}/maps"))?;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let query = Query { any: is::PRESENT, tell: is::PRESENT | is::FILE | is::ZERO, protect: false };
    let maps = text.split(|&byte| byte == b'\n').filter_map(proc_maps::parse);
    for mapping in maps.filter(Mapping::is_ordinary) {
        pagemap.scan(mapping.start as u64, mapping.end as u64, query, &mut |run| {
            if run.flags & (is::FILE | is::ZERO) == 0 {
                match ranges.last_mut() {
                    Some((start, length)) if *start + *length == run.start => {
                        *length += run.end - run.start;
                    }
                    _ => ranges.push((run.start, run.end - run.start)),
                }
            }
        })?;
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_either_version_is_known_and_others_are_refused() {
        let root = tempfile::tempdir().unwrap();
        assert!(Freezer::of(root.path()).unwrap_err().contains("no group that can be frozen"));
        fs::write(root.path().join("freezer.state"), "THAWED\n").unwrap();
        let one = Freezer::of(root.path()).unwrap();
        assert!(!one.is_two && !one.is_frozen().unwrap());
        fs::write(root.path().join("cgroup.freeze"), "0").unwrap();
        fs::write(root.path().join("cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        let two = Freezer::of(root.path()).unwrap();
        assert!(two.is_two && two.is_frozen().unwrap());
    }

    /// A record of another group, or of processes that are others by now, moves nothing.
    #[test]
    fn what_is_not_known_again_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("group");
        fs::create_dir(&group).unwrap();
        fs::write(group.join("cgroup.freeze"), "1").unwrap();
        fs::write(group.join("cgroup.procs"), "").unwrap();
        let freezer = Freezer::of(&group).unwrap();
        let records = root.path().join("records");
        let us = std::process::id();
        let process = FrozenProcess { process: us, started: 1, ranges: vec![(4096, 4096)] };
        let frozen =
            FrozenGroup { schema: SCHEMA, directory: group.clone(), processes: vec![process] };
        Records::open(&records).unwrap().write(&freezer.record().unwrap(), &frozen).unwrap();

        let moved = freezer.thaw(&records).unwrap();

        assert_eq!((moved.memory, moved.skipped), (Bytes::ZERO, 1));
        assert_eq!(fs::read_to_string(group.join("cgroup.freeze")).unwrap(), "0");
        assert_eq!(freezer.thaw(&records).unwrap(), Moved::default(), "and the record is gone");
    }
}
