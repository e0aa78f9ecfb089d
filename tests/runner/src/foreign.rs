//! Test suites that others wrote: modules of `CPython`'s, units of redis's, and stress-ng
//! ([`crate::stress`]), each run on plain memory and under `terrace run` in less than it
//! needs. Every test must end the same way.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use terrace_core::Bytes;

use crate::harness::{Case, Verdict, number};
use crate::process;
use crate::programs::environment::{Engine, Environment};
use crate::{large, stress, terrace};

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

/// Tests that assert how long something takes, which says nothing in less memory than it needs and
/// beside others: 10 MB are searched within 0.1 s.
const TIMED: [&str; 1] = ["test_search_anchor_at_beginning"];

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
    let mut cases = Vec::new();
    for engine in Engine::asked_for_by("FOREIGN_ENGINES")? {
        let modules = MODULES.into_iter().filter(|&(_, quick)| quick || !short);
        cases.extend(modules.map(|(module, _)| {
            let (terrace, python) = (terrace.clone(), python.clone());
            Case {
                name: format!("foreign::cpython::{module}{}", engine.mark()),
                run: Box::new(move || match &python {
                    None => Verdict::Skipped("no python3 with its test suite".to_owned()),
                    Some(python) => match compare(module, python, &terrace, engine, limit) {
                        Ok(()) => Verdict::Passed,
                        Err(why) => Verdict::Failed(why),
                    },
                }),
            }
        }));
        cases.push(redis_case(&terrace, engine, short, limit));
        cases.extend(stress::cases(&terrace, engine, short, limit));
        cases.extend(large::cases(&terrace, engine, short, limit));
    }
    Ok(cases)
}

/// What of redis's own suite is run: data types, dumps, rewriting the log in a forked
/// child, scripts, expiry, several commands at once; `true`: in the short form, too.
const UNITS: [(&str, bool); 16] = [
    ("unit/type/hash", false),
    ("unit/dump", true),
    ("unit/type/string", false),
    ("unit/type/list", false),
    ("unit/type/set", false),
    ("unit/type/zset", false),
    ("unit/type/stream", false),
    ("unit/sort", false),
    ("unit/scan", false),
    ("unit/aofrw", false),
    ("unit/expire", false),
    ("unit/multi", false),
    ("unit/scripting", false),
    ("unit/bitops", false),
    ("integration/aof", false),
    ("integration/rdb", false),
];

/// What redis's servers and the suite's own interpreters have together: about half of
/// what they use.
const REDIS_BUDGET: Bytes = Bytes::mib(8);

/// Redis's own suite, under one `terrace run` as a whole: the suite, its servers, and
/// their children. `FOREIGN_REDIS` names the directory of `runtest`.
fn redis_case(terrace: &Path, engine: Engine, short: bool, limit: Duration) -> Case {
    let terrace = terrace.to_owned();
    let named = env::var_os("FOREIGN_REDIS").map(PathBuf::from);
    let suite = named.unwrap_or_else(|| terrace::target().join("redis-tests"));
    let run = move || {
        if !suite.join("runtest").exists() {
            let why = format!(
                "no test suite of redis's in {} (scripts/redis-tests.sh fetches it): NOT run",
                suite.display()
            );
            return Verdict::Skipped(why);
        }
        let units: Vec<_> = UNITS.iter().filter(|(_, quick)| *quick || !short).collect();
        let run = |environment: &Environment| run_redis(&suite, &units, environment);
        let compared = run(&Environment::plain(limit)).and_then(|expected| {
            let got = run(&Environment::managed(&terrace, engine, REDIS_BUDGET, &[], limit))?;
            same(&expected, &got)
        });
        match compared {
            Ok(()) => Verdict::Passed,
            Err(why) => Verdict::Failed(why),
        }
    };
    Case { name: format!("foreign::redis{}", engine.mark()), run: Box::new(run) }
}

/// Runs units of redis's suite; each test with its result.
fn run_redis(
    suite: &Path,
    units: &[&(&str, bool)],
    environment: &Environment,
) -> Result<BTreeSet<String>, String> {
    let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
    let directory = scratch.path();
    // It writes beside its own files.
    let mut copy = Command::new("cp");
    copy.args(["-r", "-P"]).arg(suite).arg(directory.join("redis"));
    if !copy.status().is_ok_and(|status| status.success()) {
        return Err(format!("{} cannot be copied", suite.display()));
    }
    let mut command = environment.command("sh", directory);
    let units = units.iter().map(|(unit, _)| *unit).collect::<Vec<_>>().join(" --single ");
    command.args(["-c", &format!("cd redis && exec ./runtest --clients 2 --single {units}")]);
    let finished =
        process::run(&mut command, directory, environment.limit).map_err(|e| e.to_string())?;
    if !finished.succeeded() {
        let text = String::from_utf8_lossy(&finished.stdout);
        let tail: Vec<_> = text.lines().rev().take(30).collect();
        let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
        return Err(format!("{tail}\n{}", finished.complaint()));
    }
    if let Some(why) = environment.report(directory)?.and_then(|report| report.shows_nothing()) {
        return Err(why);
    }
    Ok(redis_results(&String::from_utf8_lossy(&finished.stdout)))
}

/// Lines such as `[ok]: SAVE (12 ms)`, without times and colours.
fn redis_results(text: &str) -> BTreeSet<String> {
    let kinds = ["[ok]", "[err]", "[exception]", "[ignore]", "[skip]"];
    text.lines()
        .filter_map(|line| {
            let line = without_colours(line.trim());
            kinds.iter().any(|kind| line.starts_with(kind)).then_some(line)
        })
        .map(|line| match line.rsplit_once(" (") {
            Some((name, time)) if time.ends_with("ms)") => name.to_owned(),
            _ => line,
        })
        .collect()
}

fn compare(
    module: &str,
    python: &str,
    terrace: &Path,
    engine: Engine,
    limit: Duration,
) -> Result<(), String> {
    let expected = run(module, python, &Environment::plain(limit))?;
    let got = run(module, python, &Environment::managed(terrace, engine, BUDGET, &[], limit))?;
    same(&expected, &got)
}

/// Whether the same tests ended in the same ways.
fn same(expected: &BTreeSet<String>, got: &BTreeSet<String>) -> Result<(), String> {
    if expected.is_empty() {
        return Err("it ran no test".to_owned());
    }
    let lines = |a: &BTreeSet<String>, b: &BTreeSet<String>| {
        a.difference(b).take(8).fold(String::new(), |text, line| text + "  " + line + "\n")
    };
    if got != expected {
        return Err(format!(
            "on plain memory:\n{}managed:\n{}",
            lines(expected, got),
            lines(got, expected)
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
    command.args(["-m", "test", "--junit-xml", "results.xml"]);
    for name in TIMED {
        command.args(["--ignore", name]);
    }
    command.arg(module);
    let finished =
        process::run(&mut command, directory, environment.limit).map_err(|e| e.to_string())?;
    if finished.code().is_none() {
        return Err(finished.complaint());
    }
    if let Some(why) = environment.report(directory)?.and_then(|report| report.shows_nothing()) {
        return Err(why);
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

/// Text without a terminal's sequences (`ESC [ … m`).
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    plain.extend(parts.map(|part| part.split_once('m').map_or(part, |(_, rest)| rest)));
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stress::STRESSORS;

    /// The words in a section of the document that stand in backquotes and are names of tests.
    fn named(document: &str, section: &str, is_name: impl Fn(&str) -> bool) -> Vec<String> {
        let section = document.split("\n## ").find(|part| part.starts_with(section)).unwrap();
        // What follows says which are not run.
        let listed = section.split("That is ").next().unwrap();
        let words = listed.split('`').skip(1).step_by(2);
        words.filter(|word| is_name(word)).map(str::to_owned).collect()
    }

    /// The short form's come first; what is run and what is said to be run are the same.
    fn in_order(listed: &[(&str, bool)]) -> Vec<String> {
        let of = |quick| listed.iter().filter(move |(_, q)| *q == quick);
        of(true).chain(of(false)).map(|(name, _)| (*name).to_owned()).collect()
    }

    #[test]
    fn the_document_names_what_is_run() {
        let document = terrace::root().join("docs/reliability.md");
        let document = std::fs::read_to_string(document).unwrap();

        let modules = named(&document, "CPython's tests", |word| word.starts_with("test_"));
        let is_unit = |word: &str| word.starts_with("unit/") || word.starts_with("integration/");
        let units = named(&document, "Redis's tests", is_unit);
        let is_stressor = |word: &str| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        let options = |word: &str| word.starts_with("--");
        let stressors = named(&document, "stress-ng", |word| is_stressor(word) && !options(word));

        assert_eq!(modules, in_order(&MODULES));
        assert_eq!(units, in_order(&UNITS));
        assert_eq!(stressors, in_order(&STRESSORS));
    }

    /// How many run in `make test` stands in the table above.
    #[test]
    fn the_document_counts_what_is_run() {
        let document = terrace::root().join("docs/reliability.md");
        let document = std::fs::read_to_string(document).unwrap();
        let quick = |listed: &[(&str, bool)]| listed.iter().filter(|(_, quick)| *quick).count();

        let (modules, units, stressors) = (quick(&MODULES), quick(&UNITS), quick(&STRESSORS));
        let said = format!(
            "{modules} of {} modules, {units} of {} units, {stressors} of {} stressors",
            MODULES.len(),
            UNITS.len(),
            STRESSORS.len()
        );

        assert!(document.contains(&said), "{said}");
    }

    /// A line that is not recognised is a test that is not compared.
    #[test]
    fn results_of_redis_are_read_without_their_times() {
        let text = "Testing unit/dump\n[\x1b[0;32;49mok\x1b[0m]: DUMP (a (b)) (3 ms)\n\
                    [err]: RESTORE in tests/unit/dump.tcl\n[1/1 \x1b[0;32mdone\x1b[0m]: unit/dump\n";

        let results = redis_results(text);

        let expected = ["[ok]: DUMP (a (b))", "[err]: RESTORE in tests/unit/dump.tcl"];
        assert_eq!(results, expected.map(str::to_owned).into());
    }
}
