//! Real programs: what they need, how they are run, and that they are right.

pub mod redis;

use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use terrace_core::Bytes;

use crate::interrupt::{self, Running};
use crate::system::Ready;
use redis::{Beside, Keys};

/// How large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scale {
    /// Some 150 to 300 MiB each, and one to five seconds on plain memory.
    Full,
    /// A tenth or less: shows that everything works, measures nothing.
    Smoke,
}

/// A program of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Program {
    /// redis-server, keys by YCSB's Zipfian distribution.
    RedisZipf,
    /// redis-server, all keys alike.
    RedisUniform,
    /// The first one, with a snapshot written by a forked child meanwhile.
    RedisSnapshot,
    /// sqlite3: a table with an index in memory, filled, looked up, joined.
    Sqlite,
    /// python3: passes over an array of numbers, by the standard library.
    Python,
    /// The same by numpy.
    Numpy,
    /// GNU sort with two threads.
    Sort,
    /// `PageRank` on a Kronecker graph.
    Pagerank,
    /// Breadth-first searches through the same graph.
    Bfs,
}

/// Inputs, made once and read by every run.
#[derive(Debug)]
pub struct Place {
    /// Where they and the runs' own files are.
    pub directory: PathBuf,
    /// Where the scripts are.
    pub scripts: PathBuf,
    /// Where the benchmark's own programs are.
    pub binaries: PathBuf,
    /// Pages of a real program.
    pub corpus: Vec<u8>,
    /// How large.
    pub scale: Scale,
}

/// What a run of a program gave.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// What was timed.
    pub time: Duration,
    /// The most that the largest of its processes had resident.
    pub resident: Bytes,
    /// Of all that it answered; the same in every run.
    pub checksum: u64,
}

impl Program {
    /// What a table calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RedisZipf => "redis, zipf",
            Self::RedisUniform => "redis, uniform",
            Self::RedisSnapshot => "redis, snapshot",
            Self::Sqlite => "sqlite3",
            Self::Python => "python3",
            Self::Numpy => "numpy",
            Self::Sort => "sort",
            Self::Pagerank => "pagerank",
            Self::Bfs => "bfs",
        }
    }

    /// What has to be installed and is not.
    pub fn lacks(self) -> Option<&'static str> {
        let lacks = |command: &'static str| (!succeeds(&[command, "--version"])).then_some(command);
        match self {
            Self::RedisZipf | Self::RedisUniform | Self::RedisSnapshot => lacks("redis-server"),
            Self::Sqlite => lacks("sqlite3"),
            Self::Python => lacks("python3"),
            Self::Numpy => numpy_python().is_none().then_some("numpy"),
            Self::Sort => lacks("sort"),
            Self::Pagerank | Self::Bfs => None,
        }
    }

    /// Makes the inputs that are missing.
    pub fn prepare(self, place: &Place) -> io::Result<()> {
        interrupt::check()?;
        match self {
            Self::Sort => place.text(),
            Self::Pagerank | Self::Bfs => place.graph(),
            Self::RedisZipf
            | Self::RedisUniform
            | Self::RedisSnapshot
            | Self::Sqlite
            | Self::Python
            | Self::Numpy => Ok(()),
        }
    }

    /// Runs it under a system.
    pub fn run(self, place: &Place, system: &Ready) -> io::Result<Outcome> {
        let full = place.scale == Scale::Full;
        let rows = if full { "600000" } else { "40000" };
        let count = if full { "20000000" } else { "2000000" };
        let script = |name: &str| place.scripts.join(name).display().to_string();
        let input = |name: &str| place.directory.join(name).display().to_string();
        let words: Vec<String> = match self {
            Self::RedisZipf => return redis::run(place, system, Keys::Zipf, Beside::Nothing),
            Self::RedisUniform => return redis::run(place, system, Keys::Uniform, Beside::Nothing),
            Self::RedisSnapshot => return redis::run(place, system, Keys::Zipf, Beside::Snapshot),
            Self::Sqlite => {
                let rows = format!(".parameter set @rows {rows}");
                let read = format!(".read '{}'", script("table.sql"));
                ["sqlite3", "-batch", ":memory:", &rows, &read].map(String::from).into()
            }
            Self::Python => {
                ["python3", &script("passes.py"), "array", count].map(String::from).into()
            }
            Self::Numpy => {
                let python = numpy_python().unwrap_or("python3");
                [python, &script("passes.py"), "numpy", count].map(String::from).into()
            }
            Self::Sort => {
                let flags = ["sort", "--parallel=2", "-S", "1G", "-k3,3", "-k1,1n"];
                flags.map(String::from).into_iter().chain([input("text")]).collect()
            }
            Self::Pagerank | Self::Bfs => {
                let graph = place.binaries.join("graph").display().to_string();
                let kernel = if self == Self::Bfs { "bfs" } else { "pagerank" };
                vec![graph, kernel.to_owned(), input("graph")]
            }
        };
        let mut command = system.command(Path::new(&words[0]));
        command.args(&words[1..]).env("LC_ALL", "C").env("PYTHONHASHSEED", "0");
        // Into a file: who reads a pipe would take processor time beside it.
        let output = place.directory.join("output");
        command.stdin(Stdio::null()).stdout(File::create(&output)?);
        let began = Instant::now();
        let finished = Running::start(&mut command)?.wait()?;
        let time = began.elapsed();
        if !finished.status.success() {
            return Err(io::Error::other(format!("{}: {}", self.name(), finished.status)));
        }
        let checksum = checksum(File::open(output)?)?
            .ok_or_else(|| io::Error::other(format!("{} wrote nothing", self.name())))?;
        Ok(Outcome { time, resident: finished.peak, checksum })
    }
}

/// A Python that has numpy: a distribution's package is for its own Python, which need not be the
/// first one in the path.
fn numpy_python() -> Option<&'static str> {
    ["python3", "/usr/bin/python3"]
        .into_iter()
        .find(|python| succeeds(&[python, "-c", "import numpy"]))
}

fn succeeds(words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Of all that a file holds, read piece by piece: what this process has resident at any time
/// counts as its children's, see [`interrupt::Finished::peak`]. `None` if it holds nothing.
fn checksum(mut file: File) -> io::Result<Option<u64>> {
    let (mut hasher, mut any) = (DefaultHasher::new(), false);
    let mut piece = vec![0; 64 << 10];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(any.then(|| hasher.finish())),
            n => hasher.write(&piece[..n]),
        }
        any = true;
    }
}

impl Place {
    /// Lines to be sorted: a number, words, a number in hexadecimal.
    fn text(&self) -> io::Result<()> {
        const WORDS: [&str; 8] =
            ["memory", "page", "tier", "latency", "promote", "demote", "region", "fault"];
        let path = self.directory.join("text");
        if path.exists() {
            return Ok(());
        }
        let lines = if self.scale == Scale::Full { 1_500_000 } else { 120_000 };
        let mut random = redis::random(3);
        let mut below = |n: u64| redis::below(&mut random, n);
        let mut out = BufWriter::new(File::create(path)?);
        for _ in 0..lines {
            write!(out, "{:09}", below(1_000_000_000))?;
            for _ in 0..2 + below(5) {
                write!(out, " {}", WORDS[below(8) as usize])?;
            }
            writeln!(out, " {:x}", below(u64::MAX))?;
        }
        out.flush()
    }

    fn graph(&self) -> io::Result<()> {
        let path = self.directory.join("graph");
        if path.exists() {
            return Ok(());
        }
        let scale = if self.scale == Scale::Full { "20" } else { "17" };
        let mut command = std::process::Command::new(self.binaries.join("graph"));
        let made = interrupt::run(command.arg("make").arg(&path).args(["--scale", scale]))?;
        if made.status.success() { Ok(()) } else { Err(io::Error::other("no graph was made")) }
    }
}
