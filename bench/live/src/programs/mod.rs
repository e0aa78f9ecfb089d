//! Real programs: what they need, how they are run, and that they are right.

mod inputs;
pub mod redis;
pub mod touching;

use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use terrace_core::Bytes;

use crate::interrupt::{Finished, Running, Usage};
use crate::system::Ready;
use redis::{Beside, Keys};

/// How large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scale {
    /// Some 150 to 700 MiB each, and one to fifteen seconds on plain memory.
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
    /// valkey-server, as redis-zipf.
    ValkeyZipf,
    /// `PostgreSQL`: shared buffers, transactions, sorts.
    Postgresql,
    /// `MariaDB`: a table with an index, looked up, changed, grouped.
    Mariadb,
    /// `RocksDB`'s `db_bench`: random writes, and reads.
    DbBench,
    /// PHP: arrays of records.
    Php,
    /// polars: frames that are grouped, joined and sorted.
    Polars,
    /// Java with its G1 collector: a heap of records.
    JavaG1,
    /// The same with ZGC, whose heap is shared memory.
    JavaZgc,
    /// Node.js: the same, and typed arrays.
    Node,
    /// Chromium without a window: a page that computes in memory.
    Chromium,
    /// gcc: one large file, optimised.
    Gcc,
    /// `cargo build` of sixteen crates, two at a time.
    CargoBuild,
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
    /// Where packages are that no distribution has: `bin` of a Python environment.
    pub packages: PathBuf,
    /// How long a run may take.
    pub limit: Duration,
}

/// What a run of a program gave.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// What was timed.
    pub time: Duration,
    /// The most that the largest of its processes had resident.
    pub resident: Bytes,
    /// What all of its processes took of the kernel.
    pub usage: Usage,
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
            Self::ValkeyZipf => "valkey, zipf",
            Self::Postgresql => "postgresql",
            Self::Mariadb => "mariadb",
            Self::DbBench => "db_bench",
            Self::Php => "php",
            Self::Polars => "polars",
            Self::JavaG1 => "java, g1",
            Self::JavaZgc => "java, zgc",
            Self::Node => "node",
            Self::Chromium => "chromium",
            Self::Gcc => "gcc",
            Self::CargoBuild => "cargo build",
        }
    }

    /// What has to be installed and is not.
    pub fn lacks(self, packages: &Path) -> Option<&'static str> {
        let lacks = |command: &'static str| (!succeeds(&[command, "--version"])).then_some(command);
        match self {
            Self::RedisZipf | Self::RedisUniform | Self::RedisSnapshot => lacks("redis-server"),
            Self::Sqlite => lacks("sqlite3"),
            Self::Python => lacks("python3"),
            Self::Numpy => numpy_python().is_none().then_some("numpy"),
            Self::Sort => lacks("sort"),
            Self::Pagerank | Self::Bfs => None,
            Self::ValkeyZipf => inputs::valkey(packages).is_none().then_some("valkey-server"),
            Self::Postgresql => inputs::postgresql().is_none().then_some("postgresql's server"),
            Self::Mariadb => inputs::mariadb().is_none().then_some("mariadbd"),
            Self::DbBench => (!in_path("db_bench")).then_some("db_bench"),
            Self::Php => lacks("php"),
            Self::Polars => inputs::polars(packages).is_none().then_some("polars"),
            Self::JavaG1 | Self::JavaZgc => lacks("javac"),
            Self::Node => lacks("node"),
            Self::Chromium => lacks("chromium"),
            Self::Gcc => lacks("gcc"),
            Self::CargoBuild => lacks("cargo"),
        }
    }

    /// Runs it under a system.
    pub fn run(self, place: &Place, system: &Ready) -> io::Result<Outcome> {
        let redis = Path::new("redis-server");
        match self {
            Self::RedisZipf => {
                return redis::run(place, system, redis, Keys::Zipf, Beside::Nothing);
            }
            Self::RedisUniform => {
                return redis::run(place, system, redis, Keys::Uniform, Beside::Nothing);
            }
            Self::RedisSnapshot => {
                return redis::run(place, system, redis, Keys::Zipf, Beside::Snapshot);
            }
            Self::ValkeyZipf => {
                let valkey = inputs::valkey(&place.packages).unwrap_or_default();
                return redis::run(place, system, &valkey, Keys::Zipf, Beside::Nothing);
            }
            _ => {}
        }
        place.outcome(&mut self.command(place, system)?, self.name())
    }

    /// Its command under a system, in a directory of its own.
    fn command(self, place: &Place, system: &Ready) -> io::Result<Command> {
        let directory = place.fresh()?;
        let words = self.words(place, &directory)?;
        let program = Path::new(&words[0]);
        let mut command = if self == Self::Postgresql {
            system.command_as_nobody(program)
        } else {
            system.command(program)
        };
        command.args(&words[1..]).current_dir(&directory);
        Ok(command)
    }

    /// Its command line.
    fn words(self, place: &Place, directory: &Path) -> io::Result<Vec<String>> {
        let full = place.scale == Scale::Full;
        let choose = |large: &'static str, small: &'static str| if full { large } else { small };
        let script = |name: &str| place.scripts.join(name).display().to_string();
        let input = |name: &str| place.directory.join(name).display().to_string();
        let count = choose("20000000", "2000000");
        let words: Vec<String> = match self {
            Self::Sqlite => {
                let rows = format!(".parameter set @rows {}", choose("600000", "40000"));
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
            Self::Postgresql => {
                let bin = inputs::postgresql().unwrap_or_default().display().to_string();
                let data = place.copied(self, directory)?;
                ["sh", &script("postgresql.sh"), "run", &bin, &data, place.postgresql_scale()]
                    .map(String::from)
                    .into()
            }
            Self::Mariadb => {
                let data = place.copied(self, directory)?;
                ["sh", &script("mariadb.sh"), "run", &data, place.mariadb_rows()]
                    .map(String::from)
                    .into()
            }
            Self::DbBench => {
                ["sh", &script("db_bench.sh"), choose("300000", "40000")].map(String::from).into()
            }
            Self::Php => {
                ["php", &script("arrays.php"), choose("500000", "40000")].map(String::from).into()
            }
            Self::Polars => {
                let python = inputs::polars(&place.packages).unwrap_or_default();
                let python = python.display().to_string();
                [&python, &script("frames.py"), choose("3000000", "200000")]
                    .map(String::from)
                    .into()
            }
            Self::JavaG1 | Self::JavaZgc => {
                let (collector, heap) = if self == Self::JavaG1 {
                    ("-XX:+UseG1GC", "-Xmx400m")
                } else {
                    ("-XX:+UseZGC", "-Xmx640m")
                };
                let classes = input("java");
                let count = choose("500000", "40000");
                ["java", collector, heap, "-cp", &classes, "Heap", count].map(String::from).into()
            }
            Self::Node => {
                let script = script("heap.js");
                ["node", &script, choose("400000", "40000")].map(String::from).into()
            }
            Self::Chromium => {
                let page = format!("file://{}#{}", script("page.html"), choose("100", "20"));
                let profile = format!("--user-data-dir={}", directory.join("profile").display());
                let mut words = vec!["chromium".to_owned()];
                words.extend(inputs::CHROMIUM.map(String::from));
                words.extend([profile, page]);
                words
            }
            Self::Gcc => {
                let source = input("functions.c");
                ["gcc", "-O2", "-S", "-o", "-", &source].map(String::from).into()
            }
            Self::CargoBuild => {
                let script = "cargo build --offline --locked -q -j 2 -p \"$1\" \
                     --manifest-path \"$0\" --target-dir built && ls built/debug | grep -c '\\.d$'";
                let manifest = place.scripts.join("../../../Cargo.toml").canonicalize()?;
                let package = choose("terrace-core", "terrace-shown");
                ["sh", "-c", script, &manifest.display().to_string(), package]
                    .map(String::from)
                    .into()
            }
            Self::RedisZipf | Self::RedisUniform | Self::RedisSnapshot | Self::ValkeyZipf => {
                return Err(io::Error::other("servers are not run by their command line alone"));
            }
        };
        Ok(words)
    }
}

impl Place {
    /// Where a program's output is.
    fn output(&self) -> PathBuf {
        self.directory.join("output")
    }

    /// Where is what it said on standard error.
    fn errors(&self) -> PathBuf {
        self.directory.join("errors")
    }

    /// Runs a command to its end, however that is, bounded in some way.
    fn finish(
        &self,
        command: &mut Command,
        bounds: impl FnOnce(&mut Running),
    ) -> io::Result<(Duration, Finished)> {
        command.env("LC_ALL", "C").env("PYTHONHASHSEED", "0").env("POLARS_MAX_THREADS", "2");
        // Into files: who reads a pipe would take processor time beside it.
        command.stdin(Stdio::null()).stdout(File::create(self.output())?);
        command.stderr(File::create(self.errors())?);
        let began = Instant::now();
        let mut running = Running::start(command)?;
        bounds(&mut running);
        let finished = running.wait()?;
        Ok((began.elapsed(), finished))
    }

    /// Runs a program's command, which has to end well and to answer something.
    fn outcome(&self, command: &mut Command, name: &str) -> io::Result<Outcome> {
        let (time, finished) = self.finish(command, |running| running.bound(self.limit))?;
        if !finished.status.success() {
            return Err(io::Error::other(format!("{}: {}", finished.status, self.last_words())));
        }
        let checksum = checksum(File::open(self.output())?)?
            .ok_or_else(|| io::Error::other(format!("{name} wrote nothing")))?;
        Ok(Outcome { time, resident: finished.peak, usage: finished.usage, checksum })
    }

    /// What a program said last on standard error.
    fn last_words(&self) -> String {
        let said = std::fs::read(self.errors()).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        said.trim().lines().next_back().unwrap_or_default().to_owned()
    }
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
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
/// counts as its children's, see [`crate::interrupt::Finished::peak`]. `None` if it holds nothing.
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
