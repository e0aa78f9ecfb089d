//! Where a run keeps its figures: the directory may be full, become full, and have a path of any length.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{HOLDER, binary_text, compile, is_root, is_supported, preload};

/// Runs a script in which `small` is a file system in memory of so much, and `$0` the command; `None`
/// where none can be had.
fn in_small(directory: &Path, size: &str, script: &str) -> Option<Output> {
    let mount = format!("mkdir small; mount -t tmpfs -o size={size} none small || exit 99");
    let script = format!("{mount}\nexport XDG_RUNTIME_DIR=$PWD/small\n{script}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "/bin/sh", "-c", &script, binary_text()]).current_dir(directory);
    let output = command.env("TERRACE_PRELOAD", preload()).stdin(Stdio::null()).output().unwrap();
    let is_there = directory.join("small").exists() && output.status.code() != Some(99);
    if !is_there || !is_root() {
        eprintln!("SKIPPED: no small file system");
        return None;
    }
    Some(output)
}

/// It was killed: its files had a length, and no room.
#[test]
fn a_directory_without_room_is_an_error_that_names_it() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "head -c 1M /dev/zero >small/other 2>/dev/null
        truncate -s 48k small/other
        exec \"$0\" run --engine=pager --quiet --fast 16MiB -- touch was-started";
    let Some(output) = in_small(directory.path(), "64k", script) else { return };
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    let lines: Vec<_> = message.lines().collect();
    let [line] = lines[..] else { panic!("{message}") };
    assert!(line.contains("/small") && line.contains(": there is no room for "), "{line}");
    assert!(line.ends_with("; XDG_RUNTIME_DIR can name another place"), "{line}");
    assert!(!directory.path().join("was-started").exists());
}

#[test]
fn a_program_goes_on_and_is_told_of_where_the_directory_has_become_full() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    compile(HOLDER, &directory.path().join("holder"), &["-O1"]);
    let script = "\"$0\" run --engine=pager --fast 4MiB --record record --report report -- \
            sh -c 'head -c 100M /dev/zero >small/other 2>/dev/null; ./holder; exit $?'";
    let Some(output) = in_small(directory.path(), "2M", script) else { return };
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert_eq!(output.stdout, b"ready\nright\n");
    for what in ["what a process does is not reported", "what is decided in a process is not"] {
        let told = message.lines().find(|line| line.contains(what));
        assert!(told.is_some_and(|line| line.contains("there is no room in ")), "{message}");
    }
    let report = fs::read_to_string(directory.path().join("report")).unwrap();
    assert!(report.contains(": its figures could not be kept"), "{report}");
    assert!(!report.contains("nothing was managed"), "{report}");
}

#[test]
fn a_directory_may_have_a_longer_path_than_a_socket_can() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let long = directory.path().join("x".repeat(200));
    fs::create_dir(&long).unwrap();
    // Who changes the budget connects to the run's socket.
    let script = "\"$0\" set $PPID --fast 8MiB && exit 6";
    let mut command = Command::new(binary_text());
    command.args(["run", "--engine=pager", "--fast", "16MiB", "--", "sh", "-c", script]);
    command.arg(binary_text()).stdin(Stdio::null());
    command.env("TERRACE_PRELOAD", preload()).env("XDG_RUNTIME_DIR", &long);
    let output = command.output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(6), "{message}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "sh: 8.00 MiB instead of 16.0 MiB\n", "{message}");
}
