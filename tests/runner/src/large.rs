//! Large programs as their users start them: a database with shared buffers, a browser that
//! reserves a tebibyte, a virtual machine whose heap is shared memory, a compiler with an allocator
//! of its own. Each must print the same under `terrace run` as on plain memory, and the report must
//! be true: what lies outside of the budget is in it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use terrace_core::Bytes;

use crate::harness::{Case, Verdict};
use crate::process;
use crate::programs::environment::{Engine, Environment};
use crate::terrace;

/// One of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    PostgreSql,
    Chromium,
    JavaZgc,
    Cargo,
}
use Program::*;

/// Each with its name, and whether it is in the short form, too.
const PROGRAMS: [(Program, &str, bool); 4] = [
    (PostgreSql, "postgresql", true),
    (Chromium, "chromium", false),
    (JavaZgc, "java-zgc", false),
    (Cargo, "cargo-build", false),
];

/// A case for each.
pub(crate) fn cases(terrace: &Path, engine: Engine, short: bool, limit: Duration) -> Vec<Case> {
    let case = |(program, name, _): (Program, &str, bool)| {
        let terrace = terrace.to_owned();
        let run = move || {
            if let Some(missing) = program.missing() {
                return Verdict::Skipped(format!("{missing} is not here: NOT run"));
            }
            match program.compare(&terrace, engine, limit) {
                Ok(()) => Verdict::Passed,
                Err(why) => Verdict::Failed(why),
            }
        };
        Case { name: format!("foreign::large::{name}{}", engine.mark()), run: Box::new(run) }
    };
    PROGRAMS.into_iter().filter(|&(_, _, quick)| quick || !short).map(case).collect()
}

/// Where Debian's packages put what `PostgreSQL`'s server consists of.
fn postgresql() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<_> = versions.flatten().map(|entry| entry.path().join("bin")).collect();
    found.retain(|bin| bin.join("postgres").exists() && bin.join("initdb").exists());
    found.sort();
    found.pop()
}

impl Program {
    /// A fraction of what it has unmanaged.
    fn budget(self) -> Bytes {
        match self {
            PostgreSql => Bytes::mib(24),
            Chromium | JavaZgc => Bytes::mib(96),
            Cargo => Bytes::mib(64),
        }
    }

    /// What it needs and this machine lacks.
    fn missing(self) -> Option<&'static str> {
        let lacks = |program: &str| Command::new(program).arg("--version").output().is_err();
        match self {
            PostgreSql => postgresql().is_none().then_some("PostgreSQL's server"),
            Chromium => lacks("chromium").then_some("chromium"),
            JavaZgc => lacks("javac").then_some("javac"),
            Cargo => lacks("cargo").then_some("cargo"),
        }
    }

    fn compare(self, terrace: &Path, engine: Engine, limit: Duration) -> Result<(), String> {
        let expected = self.run(&Environment::plain(limit))?;
        let got = self.run(&Environment::managed(terrace, engine, self.budget(), &[], limit))?;
        if expected == got {
            Ok(())
        } else {
            Err(format!("on plain memory:\n{expected}\nmanaged:\n{got}"))
        }
    }

    /// Runs it; what it printed.
    fn run(self, environment: &Environment) -> Result<String, String> {
        let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
        let directory = scratch.path();
        // For programs that refuse to run as root.
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777))
            .map_err(|e| e.to_string())?;
        let mut command = self.command(environment, directory)?;
        let finished =
            process::run(&mut command, directory, environment.limit).map_err(|e| e.to_string())?;
        if !finished.succeeded() {
            let text = String::from_utf8_lossy(&finished.stdout);
            return Err(format!("{text}\n{}", finished.complaint()));
        }
        let report = directory.join("report.json");
        if report.exists() {
            let text = fs::read_to_string(report).map_err(|e| e.to_string())?;
            is_true(&text)?;
        }
        Ok(String::from_utf8_lossy(&finished.stdout).into_owned())
    }

    fn command(self, environment: &Environment, directory: &Path) -> Result<Command, String> {
        let inputs = terrace::root().join("tests/large");
        Ok(match self {
            PostgreSql => {
                let bin = postgresql().ok_or("no PostgreSQL")?;
                if environment.engine() == Some(Engine::Kernel) && is_root() {
                    // Root makes swap and a group, and the program is somebody else's.
                    let mut command = environment.command("setpriv", directory);
                    command.args(NOBODY).args(["--", "sh"]);
                    command.arg(inputs.join("postgresql.sh")).arg(bin);
                    return Ok(command);
                }
                let mut command = environment.command("sh", directory);
                command.arg(inputs.join("postgresql.sh")).arg(bin);
                as_nobody(&command)
            }
            Chromium => {
                let mut command = environment.command("chromium", directory);
                command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]);
                command.args(["--no-first-run", "--disable-background-networking"]);
                command.args(["--disable-component-update", "--disable-sync", "--dump-dom"]);
                command.arg(format!("--user-data-dir={}", directory.join("profile").display()));
                command.arg("--virtual-time-budget=600000");
                command.arg(format!("file://{}", inputs.join("page.html").display()));
                command
            }
            JavaZgc => {
                let source = terrace::root().join("tests/programs/Objects.java");
                let compiled = Command::new("javac").arg("-d").arg(directory).arg(source).status();
                if !compiled.is_ok_and(|status| status.success()) {
                    return Err("javac failed".to_owned());
                }
                let mut command = environment.command("java", directory);
                command.args(["-XX:+UseZGC", "-Xmx512m", "-cp", "."]).args(["Objects"]);
                command
            }
            Cargo => {
                // Sixteen crates, of which several have macros and build scripts.
                let mut command = environment.command("sh", directory);
                let script = "cargo build --offline --locked -q -j 2 -p terrace-core \
                     --manifest-path \"$0/Cargo.toml\" --target-dir built && \
                     ls built/debug | grep -c '^libterrace_core'";
                command.arg("-c").arg(script).arg(terrace::root());
                command
            }
        })
    }
}

/// `setpriv`'s options for a user who is not root.
const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

fn is_root() -> bool {
    // SAFETY: asks for this process's user.
    unsafe { libc::geteuid() == 0 }
}

/// The same command as a user who is not root, but may still use userfaultfd.
fn as_nobody(command: &Command) -> Command {
    if !is_root() {
        let mut same = Command::new(command.get_program());
        copy(command, &mut same);
        return same;
    }
    let mut wrapped = Command::new("setpriv");
    wrapped.args(NOBODY);
    wrapped.args(["--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace", "--"]);
    wrapped.arg(command.get_program());
    copy(command, &mut wrapped);
    wrapped
}

fn copy(from: &Command, to: &mut Command) {
    to.args(from.get_args());
    for (name, value) in from.get_envs() {
        match value {
            Some(value) => to.env(name, value),
            None => to.env_remove(name),
        };
    }
    if let Some(directory) = from.get_current_dir() {
        to.current_dir(directory);
    }
}

/// Whether a report says what there was: either everything fitted or pages left, and no process was
/// given up.
fn is_true(text: &str) -> Result<(), String> {
    let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    if value["kind"] == "terrace.kernel" {
        let out = ["reclaimed", "put_out"].map(|name| value[name].as_u64().unwrap_or(0));
        let fits = value["resident_peak"].as_u64() < value["budget"].as_u64();
        return if fits || out != [0, 0] {
            Ok(())
        } else {
            Err(format!("nothing was put out, and not everything fits: {text}"))
        };
    }
    let processes = value["processes"].as_array().ok_or("no `processes`")?;
    if let Some(failed) = processes.iter().find(|process| process["state"] == "failed") {
        return Err(format!("a process was given up: {failed}"));
    }
    // What maps nothing that can be managed is told as lying outside, or as not managed.
    if processes.is_empty() && value["outside"].is_null() && value["plain"].is_null() {
        return Err(format!("the report tells of no memory at all: {text}"));
    }
    Ok(())
}
