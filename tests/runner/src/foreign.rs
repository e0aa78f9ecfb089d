//! A test suite that others wrote: modules of CPython's, each run on plain
//! memory and under `terrace run` in less than it needs. Every test must end the
//! same way.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use terrace_core::Bytes;

use crate::harness::{Case, Verdict, number};
use crate::process;
use crate::programs::environment::Environment;
use crate::terrace;

/// An eighth to a third of what the modules use.
const BUDGET: Bytes = Bytes::mib(8);

/// What is run: memory itself (`mmap`, arrays, buffers), large objects, forks,
/// threads, signals, files, child processes, foreign functions, a database.
/// `true`: in the short form, too.
const MODULES: [(&str, bool); 32] = [
    ("test_list", true),
    ("test_sort", true),
    ("test_mmap", true),
    ("test_zlib", true),
    ("test_re", true),
    ("test_fork1", true),
    ("test_memoryview", true),
    ("test_sqlite3", true),
    ("test_dict", false),
    ("test_array", false),
    ("test_bytes", false),
    ("test_set", false),
    ("test_pickle", false),
    ("test_json", false),
    ("test_gc", false),
    ("test_io", false),
    ("test_struct", false),
    ("test_deque", false),
    ("test_posix", false),
    ("test_thread", false),
    ("test_threading", false),
    ("test_signal", false),
    ("test_select", false),
    ("test_subprocess", false),
    ("test_tempfile", false),
    ("test_hashlib", false),
    ("test_bz2", false),
    ("test_lzma", false),
    ("test_ctypes", false),
    ("test_weakref", false),
    ("test_itertools", false),
    ("test_mailbox", false),
];

/// A Python whose own test suite is installed: `FOREIGN_PYTHON`, or the first
/// that has it.
fn python() -> Option<String> {
    let has_tests = |python: &String| {
        let mut command = Command::new(python);
        command.args(["-c", "import test.test_mmap"]);
        command.output().is_ok_and(|output| output.status.success())
    };
    let named = env::var("FOREIGN_PYTHON").ok();
    let usual = ["python3", "/usr/bin/python3"].map(str::to_owned);
    named.into_iter().chain(usual).find(has_tests)
}

/// A case for each module; `FOREIGN=short` for a quarter of them.
pub fn cases() -> Result<Vec<Case>, String> {
    let terrace = terrace::executable()?;
    let python = python();
    let limit = Duration::from_secs(number("FOREIGN_TIMEOUT", 600) as u64);
    let short = env::var("FOREIGN").as_deref() == Ok("short");
    let modules = MODULES.into_iter().filter(|&(_, quick)| quick || !short);
    Ok(modules
        .map(|(module, _)| {
            let (terrace, python) = (terrace.clone(), python.clone());
            Case {
                name: format!("foreign::cpython::{module}"),
                run: Box::new(move || match &python {
                    None => Verdict::Skipped("no python3 with its test suite".to_owned()),
                    Some(python) => match compare(module, python, &terrace, limit) {
                        Ok(()) => Verdict::Passed,
                        Err(why) => Verdict::Failed(why),
                    },
                }),
            }
        })
        .collect())
}

fn compare(module: &str, python: &str, terrace: &Path, limit: Duration) -> Result<(), String> {
    let expected = run(module, python, &Environment::plain(limit))?;
    let got = run(module, python, &Environment::managed(terrace, BUDGET, &[], limit))?;
    if expected.is_empty() {
        return Err("it ran no test".to_owned());
    }
    let lines = |a: &BTreeSet<String>, b: &BTreeSet<String>| {
        a.difference(b).take(8).fold(String::new(), |text, line| text + "  " + line + "\n")
    };
    if got != expected {
        return Err(format!(
            "on plain memory:\n{}managed:\n{}",
            lines(&expected, &got),
            lines(&got, &expected)
        ));
    }
    Ok(())
}

/// Runs a module; each test with its result.
fn run(module: &str, python: &str, environment: &Environment) -> Result<BTreeSet<String>, String> {
    let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
    let directory = directory.path();
    let mut command = environment.command(python, directory);
    // Some tests are about hashing itself, and start interpreters of their own.
    command.env_remove("PYTHONHASHSEED");
    command.args(["-m", "test", "--junit-xml", "results.xml", module]);
    let finished =
        process::run(&mut command, directory, environment.limit).map_err(|e| e.to_string())?;
    if finished.code().is_none() {
        return Err(finished.complaint());
    }
    if let Some(report) = environment.report(directory)? {
        if let Some(complaint) = report.gave_up() {
            return Err(complaint);
        }
        if report.demotions() == 0 {
            return Err("no page ever left DRAM: this run shows nothing".to_owned());
        }
    }
    let lines = Command::new(python)
        .arg(terrace::root().join("tests/programs/junit_lines.py"))
        .arg(directory.join("results.xml"))
        .output()
        .map_err(|e| format!("{python}: {e}"))?;
    if !lines.status.success() {
        return Err(format!(
            "there are no results: {}\n{}",
            String::from_utf8_lossy(&finished.stdout),
            finished.complaint()
        ));
    }
    Ok(String::from_utf8_lossy(&lines.stdout).lines().map(str::to_owned).collect())
}
