//! `terrace reproduce dapper`: options, recordings in place of the suite's programs, and what it
//! leaves behind. What becomes of recordings is tested where it is simulated (`terrace-sim`,
//! `reproduce::dapper`).

use std::fs;

mod common;

use common::{binary, terrace};

#[test]
fn a_recording_stands_for_one_program_of_the_suite_or_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let recording = directory.path().join("one.lackey");
    fs::write(&recording, "I  0400d7d4,8\n L 10000000,8\n").unwrap();
    let given = |program: &str| format!("--trace={program}={}", recording.display());
    for (options, message) in [
        (vec![given("chess")], "--trace: `chess` is none of perlbench, bzip2, "),
        (vec![given("bzip2"), given("bzip2")], "--trace: `bzip2` is given twice"),
        (vec!["--trace=bzip2".to_owned()], "--trace: `bzip2` is not of the form NAME=FILE"),
        (vec!["--trace=bzip2=nowhere".to_owned()], "--trace: nowhere: No such file"),
        (vec!["--only=volume".to_owned(), given("bzip2")], "--trace: for the part `memory` only"),
    ] {
        let output = terrace().args(["reproduce", "dapper"]).args(&options).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {stderr}");
        assert!(stderr.contains(message), "{options:?}: {stderr}");
    }
}

#[test]
fn options_of_parts_that_are_left_out_are_refused() {
    let measured = "for the parts `volume`, `served` and `files` only";
    for (only, option, message) in [
        ("memory", "--size=32MiB", measured),
        ("memory", "--rounds=5", measured),
        ("memory", "--directory=/dev/shm", measured),
        ("memory", "--turn=50ms", "for the parts `volume` and `served` only"),
        ("memory", "--tree=/usr/include", "for the part `files` only"),
        ("files", "--turn=50ms", "for the parts `volume` and `served` only"),
        ("served", "--tree=/usr/include", "for the part `files` only"),
        ("volume", "--tree=/usr/include", "for the part `files` only"),
        ("volume", "--quick", "for the part `memory` only"),
        ("volume", "--size=1B", "the least is 1.00 MiB"),
        ("volume", "--size=0", "the least is 1.00 MiB"),
        ("volume", "--turn=0", "must be longer than 0"),
    ] {
        let output =
            terrace().args(["reproduce", "dapper", "--only", only, option]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{only} {option}: {stderr}");
        let name = option.split('=').next().unwrap();
        assert_eq!(stderr, format!("terrace: {name}: {message}\n"), "{only} {option}");
    }
}

/// Files in memory are gigabytes.
#[test]
fn nothing_stays_when_it_is_told_to_end() {
    use std::time::{Duration, Instant};

    let directory = tempfile::tempdir().unwrap();
    let mut running = std::process::Command::new(binary())
        .args(["reproduce", "dapper", "--only=volume", "--size=16MiB", "--directory"])
        .arg(directory.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let has_begun = || {
        let made = fs::read_dir(directory.path()).unwrap().flatten().next();
        made.is_some_and(|made| {
            fs::read_dir(made.path()).is_ok_and(|mut in_it| in_it.next().is_some())
        })
    };
    let begun = Instant::now();
    while !has_begun() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&running);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = running.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15), "{status}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
