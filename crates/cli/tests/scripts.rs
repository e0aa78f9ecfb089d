//! The scripts that run tests: whatever fails is told, and who interrupts one leaves nothing behind.

mod common;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::await_that;
use rustix::process::{Pid, Signal, kill_process};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// What stands for a command in `tests/scripts`.
fn stand_in(name: &str) -> PathBuf {
    root().join("crates/cli/tests/scripts").join(name)
}

/// `scripts/phases.sh`, to be run in a directory, with a command in place of `make`.
fn phases(directory: &Path, phases: &[&str]) -> Command {
    let mut command = Command::new(root().join("scripts/phases.sh"));
    command.args(phases).current_dir(directory).env("MAKE", stand_in("make"));
    command.env_remove("PHASE_TRIES").stdin(Stdio::null());
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_target_that_fails_beside_others_is_a_failure_and_all_that_they_say_is_shown() {
    let directory = tempfile::tempdir().unwrap();
    for (phase, passed, failed) in [
        ("passes & passes", 2, 0),
        ("passes & fails", 1, 1),
        ("fails & passes", 1, 1),
        ("passes & fails & passes", 2, 1),
    ] {
        let output = phases(directory.path(), &[phase, "passes"]).output().unwrap();
        let said = stdout(&output);
        let code = if failed == 0 { 0 } else { 7 };
        assert_eq!(output.status.code(), Some(code), "{phase}: {said}");
        // No phase comes behind one that has failed.
        let behind = usize::from(failed == 0);
        assert_eq!(said.matches("it passes").count(), passed + behind, "{phase}: {said}");
        assert_eq!(said.matches("it fails").count(), failed, "{phase}: {said}");
    }
}

#[test]
fn what_is_made_beside_ends_with_the_script() {
    let directory = tempfile::tempdir().unwrap();
    let there = |name: &str| directory.path().join(name).exists();
    let mut child = phases(directory.path(), &["waits & lasts"])
        .env("TMPDIR", directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let both = || there("begun") && there("waiting");
    await_that(Duration::from_mins(1), "the beginning of both", both);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(!child.wait().unwrap().success());
    await_that(Duration::from_secs(30), "the end of it", || there("ended"));
    let left = directory.path().read_dir().unwrap().count();
    assert_eq!(left, 3, "beside what the targets leave: what the second has said");
}

#[test]
fn a_failure_in_either_lane_is_one_and_both_are_heard() {
    for (waits, computes) in [("0", "0"), ("0", "7"), ("7", "0")] {
        let mut command = Command::new(root().join("scripts/unit.sh"));
        command.arg(stand_in("cargo")).args([waits, computes]).stdin(Stdio::null());
        let output = command.output().unwrap();
        let said = stdout(&output);
        let passes = waits == "0" && computes == "0";
        assert_eq!(output.status.code(), Some(i32::from(!passes)), "{waits} {computes}: {said}");
        for lane in ["in the lane that waits", "in the lane that computes"] {
            assert!(said.contains(lane), "{waits} {computes}: {said}");
        }
    }
}

/// A program of tests that no lane has would be one that nobody runs.
#[test]
fn each_program_of_tests_is_run_in_one_lane_and_its_failure_told() {
    for (directory, its) in [("crates/core", "computes"), ("crates/live", "waits")] {
        for lane in ["computes", "waits"] {
            let mut command = Command::new(root().join("scripts/unit.sh"));
            command.args(["--lane", lane, "false"]).current_dir(root().join(directory));
            let output = command.output().unwrap();
            let code = i32::from(lane == its);
            assert_eq!(output.status.code(), Some(code), "{directory} {lane}: {output:?}");
        }
    }
}

/// One lane has that test, the other has the rest of its program, and there is a test of that name.
#[test]
fn the_longest_test_of_options_is_in_the_lane_that_computes() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("options-0123456789abcdef");
    symlink("/bin/echo", &program).unwrap();
    let told = |lane: &str| {
        let mut command = Command::new(root().join("scripts/unit.sh"));
        command.args(["--lane", lane]).arg(&program).current_dir(root().join("crates/cli"));
        stdout(&command.output().unwrap()).trim().to_owned()
    };
    let name = told("computes");
    assert_eq!(told("waits"), format!("--skip {name}"));
    let tests = include_str!("options.rs");
    assert!(tests.contains(&format!("#[test]\nfn {name}() {{")), "{name}");
}

/// What `make unit` names is what the tests of the command line run.
#[test]
fn the_command_under_test_is_the_one_that_is_named() {
    let named =
        std::env::var_os("TERRACE_BIN").filter(|named| !named.is_empty()).map(PathBuf::from);
    let built = snapbox::cmd::cargo_bin!("terrace");
    let expected = named.as_deref().unwrap_or(built).canonicalize().unwrap();
    assert_eq!(common::binary().canonicalize().unwrap(), expected);
}
