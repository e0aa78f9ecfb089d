//! What the running kernel and the simulated one take for the same calls.
//!
//! `fio` and `db_bench` run here, traced: their calls, and in the same run what the kernel adds
//! to and takes from the page cache, which slab objects it allocates and how many bios it makes for
//! them. The calls are made again in the simulated kernel, in the same order for each file.
//!
//! Counted are the files that they make, in a directory of their own. Sockets are not compared: a
//! program here would talk to another one over the loopback device, which clones what it sends, and
//! the simulated kernel's sockets talk to another host.

use std::fs;
use std::io;
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

/// A program that runs here.
struct Program {
    command: &'static str,
    /// The option that names the directory of its files, up to the name.
    place: &'static str,
    /// What all of its runs have.
    common: &'static [&'static str],
}

/// One of its runs.
struct Job {
    name: &'static str,
    program: &'static Program,
    arguments: &'static [&'static str],
    /// Rows that are known to differ: what ours was on 2026-11-27, and why.
    known: &'static [(&'static str, f64, &'static str)],
}

const NEGATIVE: &str = "fio asks whether the file is there before it makes it: that call, of \
                        which no tracepoint tells the file, allocates the name's dentry";
const METADATA: &str = "Linux also writes inodes and bitmaps, each in a bio of its own; ours has \
                        the journal's instead, which the file system here does not have";
const SYNCED: &str = "RocksDB syncs each file: of 345 bios that were no discards, 152 wrote inodes and \
                      bitmaps and 100 only emptied the disk's cache (block_bio_queue, 2026-11-28); \
                      ours are those of the files' pages";
const EXTENTS: &str = "ours are those of ext4 with a journal and blocks of 1 KiB \
                       (linux-6.18-ext4-journal.toml); blocks of 4 KiB without one take fewer";

const FIO: Program = Program {
    command: "fio",
    place: "--directory=",
    common: &[
        "--name=t",
        "--bs=4k",
        "--thread",
        "--ioengine=psync",
        "--fallocate=none",
        "--unlink=1",
        "--output-format=terse",
        "--randrepeat=1",
    ],
};
const DB_BENCH: Program = Program {
    command: "db_bench",
    place: "--db=",
    common: &[
        "--threads=4",
        "--value_size=4000",
        "--compression_type=none",
        // Tables are written, and merged, within a run.
        "--write_buffer_size=1048576",
    ],
};

/// Files of their own, read and written in blocks of 4 KiB by several threads, and a database half
/// read and half written, as in Table 3 of the KLOCs paper; small, since each call is written down.
const JOBS: [Job; 3] = [
    Job {
        name: "fio, random reads and writes",
        program: &FIO,
        arguments: &["--rw=randrw", "--end_fsync=1", "--numjobs=4", "--size=2m"],
        known: &[("dentries", 0.00097, NEGATIVE)],
    },
    Job {
        name: "fio, sequential writes",
        program: &FIO,
        arguments: &["--rw=write", "--end_fsync=1", "--numjobs=4", "--size=4m"],
        known: &[
            ("dentries", 0.00097, NEGATIVE),
            ("extents", 0.00291, EXTENTS),
            ("bios", 0.00485, METADATA),
        ],
    },
    Job {
        name: "db_bench, half reads",
        program: &DB_BENCH,
        arguments: &[
            "--benchmarks=fillrandom,readrandomwriterandom",
            "--num=1000",
            "--readwritepercent=50",
        ],
        known: &[("bios", 0.0095, SYNCED)],
    },
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
    let mut absent = Vec::new();
    for job in &JOBS {
        let scratch = Scratch::new()?;
        let Some(recording) = record(&tracefs, job, &scratch.0)? else {
            absent.push(job.program.command);
            continue;
        };
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
    absent.dedup();
    not_installed(lines, &absent)
}

/// What is not installed is told: beside the rows of the others, or as the reason why there are none.
fn not_installed(mut lines: Vec<Line>, absent: &[&str]) -> Result<Vec<Line>, NotRun> {
    if !absent.is_empty() {
        let what = format!("not installed: {}", absent.join(", "));
        if lines.is_empty() {
            return Err(NotRun::Missing(what));
        }
        for line in &mut lines {
            line.source += &format!("; {what}");
        }
    }
    Ok(lines)
}

/// Runs a job; nothing if its program is not installed.
fn record(tracefs: &Tracefs, job: &Job, place: &Path) -> Result<Option<Recording>, NotRun> {
    let Program { command: name, place: option, common } = *job.program;
    let mut command = Command::new(name);
    command.args(common).args(job.arguments).arg(format!("{option}{}", place.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut translator = Translator::new(None);
    let traced = tracefs.trace(&mut command, |line| translator.line(line));
    let traced = match traced {
        Ok(traced) => traced,
        Err(TracingError::Program { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(error) => return Err(NotRun::Missing(error.to_string())),
    };
    if !traced.status.success() {
        return Err(NotRun::Failed(format!("{name}: {}", traced.status)));
    }
    Ok(Some(translator.finish(vec![name.to_owned()], String::new(), String::new())))
}

/// Makes the calls in a simulated kernel with more memory than they need.
fn replay(recording: &Recording, costs: &Costs) -> Result<Counts, NotRun> {
    let failed = |what: String| NotRun::Failed(what);
    let mut machine = machines::load("cxl").map_err(|e| failed(e.to_string()))?;
    for tier in &mut machine.tiers {
        tier.capacity.value = Bytes::gib(1);
    }
    let mut program = Replay::new(recording, "recorded calls");
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
    use crate::kernel::recorded::{Counted, Made, RecordedFile};
    use crate::kernel::{Advice, Call};

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
        let job = Job { name: "x", program: &FIO, arguments: &[], known: &[] };
        let lines = compare(&job, &recording, &ours);
        lines.iter().map(|line| (line.what.clone(), line.state())).collect()
    }

    /// fio drops what it has laid out, and reads it again: a simulated kernel that keeps those pages
    /// adds half of the pages that Linux adds.
    #[test]
    fn what_a_program_drops_is_read_again() {
        let mut recording = written();
        let made = |at: u64, call| Made {
            thread: 0,
            cpu: 0,
            at: Nanos::millis(at),
            took: Nanos::micros(5),
            call,
        };
        let file = 0;
        let advise = Call::Advise { file, offset: 0, bytes: 0, advice: Advice::DontNeed };
        let end = recording.calls.split_off(66);
        recording.calls.push(made(10, advise));
        let reads = (0..64).map(|n| Call::Read { file, offset: n * 4096, bytes: 4096 });
        recording.calls.extend(reads.map(|read| made(11, read)));
        recording.calls.extend(end.into_iter().map(|last| made(50, last.call)));
        recording.check().expect("they can have been made");
        let ours = replay(&recording, &Costs::builtin()).expect("it fits");
        assert_eq!(ours.objects[ObjectKind::PageCachePage.index()], 2 * 64);
        assert_eq!(ours.class(Class::PageCache).lifetimes.freed, 2 * 64);
    }

    #[test]
    fn a_program_that_is_not_installed_is_told() {
        let recording = written();
        let ours = replay(&recording, &Costs::builtin()).expect("it fits");
        let job = Job { name: "x", program: &FIO, arguments: &[], known: &[] };
        let lines = compare(&job, &recording, &ours);
        let lines = not_installed(lines, &["db_bench"]).expect("there are rows");
        assert!(lines.iter().all(|line| line.source.ends_with("; not installed: db_bench")));
        match not_installed(Vec::new(), &["fio", "db_bench"]) {
            Err(NotRun::Missing(why)) => assert_eq!(why, "not installed: fio, db_bench"),
            other => panic!("{other:?}"),
        }
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
