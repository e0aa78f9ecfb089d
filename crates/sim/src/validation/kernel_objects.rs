//! What the running kernel and the simulated one take for the same calls.
//!
//! fio runs here, traced: its calls, and in the same run what the kernel adds to and takes from
//! the page cache, which slab objects it allocates and how many bios it makes for them. The calls
//! are made again in the simulated kernel, in the same order for each file.
//!
//! Counted are the files that fio makes, in a directory of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use terrace_core::{Bytes, ObjectKind};
use terrace_kloc::tracing::{Tracefs, TracingError};
use terrace_policy::FirstTouch;

use super::{Criterion, Known, Line, Model, Reference};
use crate::kernel::recorded::{Recording, Replay, Translator};
use crate::kernel::{Class, Costs, Counts, Kernel, KernelConfig};
use crate::machines;

/// Why there is nothing to compare.
#[derive(Debug, thiserror::Error)]
pub enum NotRun {
    /// Something is missing here.
    #[error("{0}")]
    Missing(String),
    /// It was tried, and failed.
    #[error("{0}")]
    Failed(String),
}

/// A run of fio.
struct Job {
    name: &'static str,
    arguments: &'static [&'static str],
    /// Rows that are known to differ: what ours was on 2026-11-27, and why.
    known: &'static [(&'static str, f64, &'static str)],
}

const ADVICE: &str = "fio drops the files that it has laid out from the page cache \
                      (posix_fadvise), and reads them again; advice is not recorded";
const NEGATIVE: &str = "fio asks whether the file is there before it makes it: that call, of \
                        which no tracepoint tells the file, allocates the name's dentry";
const METADATA: &str = "Linux also writes inodes and bitmaps, each in a bio of its own; ours has \
                        the journal's instead, which the file system here does not have";
const EXTENTS: &str = "ours are those of ext4 with a journal and blocks of 1 KiB \
                       (linux-6.18-ext4-journal.toml); blocks of 4 KiB without one take fewer";

/// Files of their own, read and written in blocks of 4 KiB by several threads, as in Table 3 of
/// the KLOCs paper; small, since each call is written down.
const JOBS: [Job; 2] = [
    Job {
        name: "fio, random reads and writes",
        arguments: &["--rw=randrw", "--end_fsync=1", "--numjobs=4", "--size=2m"],
        known: &[
            ("pages added", 0.4966, ADVICE),
            ("pages removed", 0.4966, ADVICE),
            ("bios", 0.1254, ADVICE),
            ("dentries", 0.00097, NEGATIVE),
        ],
    },
    Job {
        name: "fio, sequential writes",
        arguments: &["--rw=write", "--end_fsync=1", "--numjobs=4", "--size=4m"],
        known: &[
            ("dentries", 0.00097, NEGATIVE),
            ("extents", 0.00291, EXTENTS),
            ("bios", 0.00485, METADATA),
        ],
    },
];
const COMMON: [&str; 9] = [
    "--name=t",
    "--bs=4k",
    "--thread",
    "--ioengine=psync",
    "--fallocate=none",
    "--unlink=1",
    // Else it drops its files from the page cache first, and advice is not recorded.
    "--invalidate=0",
    "--output-format=terse",
    "--randrepeat=1",
];

/// A directory of ours, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, NotRun> {
        let place = std::env::temp_dir().join(format!("terrace-validate-{}", std::process::id()));
        let failed = |e| NotRun::Failed(format!("{}: {e}", place.display()));
        fs::create_dir(&place).map_err(failed)?;
        Ok(Self(place))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory that is left behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs all jobs, and compares.
pub fn lines(costs: &Costs) -> Result<Vec<Line>, NotRun> {
    let tracefs = Tracefs::find().map_err(|e| NotRun::Missing(e.to_string()))?;
    let mut lines = Vec::new();
    for job in &JOBS {
        let scratch = Scratch::new()?;
        let recording = record(&tracefs, job, &scratch.0)?;
        if recording.lost > 0 {
            return Err(NotRun::Failed(format!("the kernel lost {} events", recording.lost)));
        }
        if recording.files.iter().all(|file| file.existed) {
            let place = scratch.0.display();
            return Err(NotRun::Missing(format!("{place} is not on ext4: TMPDIR says where")));
        }
        let recording = recording.of_made_files();
        lines.extend(compare(job, &recording, &replay(&recording, costs)?));
    }
    Ok(lines)
}

fn record(tracefs: &Tracefs, job: &Job, place: &Path) -> Result<Recording, NotRun> {
    let mut command = Command::new("fio");
    command.args(COMMON).args(job.arguments).arg(format!("--directory={}", place.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut translator = Translator::new(None);
    let traced = tracefs.trace(&mut command, |line| translator.line(line));
    let traced = traced.map_err(|error| match error {
        TracingError::Program { .. } => NotRun::Missing("fio is not installed".to_owned()),
        TracingError::NotMounted | TracingError::File { .. } => NotRun::Missing(error.to_string()),
    })?;
    if !traced.status.success() {
        return Err(NotRun::Failed(format!("fio: {}", traced.status)));
    }
    Ok(translator.finish(vec!["fio".to_owned()], String::new(), String::new()))
}

/// Makes the calls in a simulated kernel with more memory than they need.
fn replay(recording: &Recording, costs: &Costs) -> Result<Counts, NotRun> {
    let failed = |what: String| NotRun::Failed(what);
    let mut machine = machines::load("cxl").map_err(|e| failed(e.to_string()))?;
    for tier in &mut machine.tiers {
        tier.capacity.value = Bytes::gib(1);
    }
    let mut program = Replay::new(recording, "fio");
    let config = KernelConfig { costs: costs.clone(), ..KernelConfig::new(machine) };
    let policy = Box::new(FirstTouch::new());
    let threads = recording.threads.max(1) as usize;
    let kernel = Kernel::new(&config, policy, threads, 0);
    let mut kernel = kernel.map_err(|e| failed(e.to_string()))?;
    for (number, file) in recording.files.iter().enumerate().filter(|(_, file)| file.existed) {
        let put = kernel.put_on_disk(number as u32, file.bytes);
        put.map_err(|e| failed(e.to_string()))?;
    }
    let report = kernel.run(&mut program).map_err(|e| failed(e.to_string()))?;
    Ok(report.all)
}

fn compare(job: &Job, recording: &Recording, ours: &Counts) -> Vec<Line> {
    let counted = &recording.counted;
    let calls = recording.calls.len().max(1) as f64;
    let slab = |name: &str| counted.allocated.get(name).copied().unwrap_or(0);
    let object = |kind: ObjectKind| ours.objects[kind.index()];
    let left = ours.class(Class::PageCache).lifetimes.freed;
    [
        ("pages added", object(ObjectKind::PageCachePage), counted.pages_added),
        ("pages removed", left, counted.pages_removed),
        // The journal's own inode is there before.
        ("inodes", object(ObjectKind::Inode).saturating_sub(1), slab("ext4_inode_cache")),
        ("dentries", object(ObjectKind::Dentry), slab("dentry")),
        ("extents", object(ObjectKind::Extent), slab("extent_status")),
        ("bios", object(ObjectKind::Bio), counted.bios),
    ]
    .into_iter()
    .map(|(what, ours, reference)| Line {
        what: format!("{}: {what} a call", job.name),
        unit: "",
        ours: ours as f64 / calls,
        reference: reference as f64 / calls,
        criterion: match job.known.iter().find(|(row, ..)| *row == what) {
            Some(&(_, ours, cause)) => Criterion::Differs(Known { ours, within: 0.1, cause }),
            None => Criterion::Within(0.1),
        },
        kind: Reference::Here,
        model: Model::Kernel,
        arithmetic: false,
        source: "tracepoints of the same run".to_owned(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrace_core::Nanos;

    use super::super::State;
    use super::*;
    use crate::kernel::Call;
    use crate::kernel::recorded::{Counted, Made, RecordedFile};

    /// A file of 64 pages is written, flushed and deleted. Counts are those of
    /// `linux-6.18-ext4-journal.toml` for these calls, with a bio for the data and one for the
    /// journal.
    fn written() -> Recording {
        let mut calls = vec![Call::Create { file: 0 }];
        calls.extend((0..64).map(|n| Call::Write { file: 0, offset: n * 4096, bytes: 4096 }));
        calls.extend([Call::Fsync { file: 0 }, Call::Close { file: 0 }, Call::Unlink { file: 0 }]);
        let made = |(at, call)| {
            let at = Nanos::micros(10 * at as u64);
            Made { thread: 0, cpu: 0, at, took: Nanos::micros(5), call }
        };
        let allocated = [("ext4_inode_cache", 1), ("dentry", 1), ("extent_status", 3)];
        let allocated: BTreeMap<String, u64> =
            allocated.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
        Recording {
            threads: 1,
            counted: Counted { pages_added: 64, pages_removed: 64, bios: 2, allocated },
            files: vec![RecordedFile::default()],
            calls: calls.into_iter().enumerate().map(made).collect(),
            ..Recording::default()
        }
    }

    fn states(costs: &Costs) -> Vec<(String, State)> {
        let recording = written();
        let ours = replay(&recording, costs).expect("it fits");
        let job = Job { name: "x", arguments: &[], known: &[] };
        let lines = compare(&job, &recording, &ours);
        lines.iter().map(|line| (line.what.clone(), line.state())).collect()
    }

    /// A simulated kernel that takes extents which Linux does not take is seen.
    #[test]
    fn a_wrong_count_fails() {
        let right = states(&Costs::builtin());
        assert!(right.iter().all(|(_, state)| *state == State::Holds), "{right:?}");
        let mut costs = Costs::builtin();
        costs.objects.extents_of_first_page.value = 9;
        let wrong = states(&costs);
        let failed = wrong.iter().filter(|(_, state)| *state == State::Fails);
        assert_eq!(
            failed.map(|(what, _)| what.as_str()).collect::<Vec<_>>(),
            ["x: extents a call"]
        );
    }
}
