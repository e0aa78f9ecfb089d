//! `terrace record`, `convert` and `sim --trace` with real programs. Recording
//! needs QEMU's user mode, or valgrind; where neither is there the command says
//! so with exit code 3, which is then what is tested. The plugin is built.

mod common;

use std::path::Path;

use common::{json, recorder, refused};
use snapbox::cmd::Command;
use terrace_shown::is_missing;
use terrace_sim::full::SpaceEvent;
use terrace_sim::trace::TraceReader;

/// A program of every system, short: the `ChampSim` file has 64 bytes an
/// instruction.
const PROGRAM: [&str; 3] = ["--", "/bin/echo", "hello"];

/// The command under test, with the plugin that belongs to it: without it QEMU
/// would never be used here, whatever is installed.
fn terrace() -> Command {
    common::terrace().env("TERRACE_RECORDER", recorder())
}

/// Records into a file; false where nothing here can record.
fn record(trace: &Path) -> bool {
    let output = terrace().args(["record", "-o"]).arg(trace).args(PROGRAM).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(3) {
        assert!(errors.contains("install qemu-user or valgrind"), "{errors}");
        is_missing("qemu-user");
        return false;
    }
    assert!(output.status.success(), "{errors}");
    let plain = std::process::Command::new(PROGRAM[1]).args(&PROGRAM[2..]).output().unwrap();
    assert!(output.stdout == plain.stdout, "the program's own output passes through unchanged");
    true
}

#[test]
fn a_recorded_program_can_be_simulated_and_converted() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("od.trace");
    if !record(&trace) {
        return;
    }

    let sim = |file: &Path| {
        let command = terrace().args(["sim", "--json", "--policy", "all-dram", "--trace"]);
        json(command.arg(file), 0)["report"].clone()
    };
    let report = sim(&trace);
    let accesses = report["accesses"].as_u64().unwrap();
    let bytes = std::fs::metadata(&trace).unwrap().len();
    assert!(accesses > 10_000, "{accesses}");
    // The promise for real programs.
    assert!(bytes < 2 * accesses, "{bytes} bytes for {accesses} accesses");
    assert!(report["instructions"].as_u64().unwrap() > accesses);

    let champsim = dir.path().join("od.champsim");
    terrace()
        .arg("convert")
        .arg(&trace)
        .arg(&champsim)
        .args(["--to", "champsim"])
        .assert()
        .success();
    let converted = sim(&champsim);
    assert_eq!(converted["accesses"].as_u64(), Some(accesses), "nothing is lost on the way");
}

#[test]
fn a_program_is_simulated_as_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    if !record(&dir.path().join("probe")) {
        return;
    }

    let command = terrace().args(["sim", "--json", "--policy", "first-touch", "--", "/bin/true"]);
    let document = json(command, 0);

    assert_eq!(document["kind"], "terrace.sim.full");
    assert!(document["report"]["accesses"].as_u64().unwrap() > 1_000);
}

/// Kindle's recordings lack the heap of `brk`, data, files, other threads' stacks
/// and what lies 4 GiB into an area. Each place here was stored to by the program
/// that printed it; a recording without it has lost that area.
#[test]
fn a_recording_has_every_kind_of_area_and_runs_under_a_scheme() {
    let dir = tempfile::tempdir().unwrap();
    let (program, trace) = (dir.path().join("areas"), dir.path().join("areas.trace"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/areas.c");
    let compiler = std::process::Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .status()
        .expect("a C compiler");
    assert!(compiler.success());

    // Lackey tells neither mappings nor threads.
    let output = terrace()
        .args(["record", "--via", "qemu", "-o"])
        .arg(&trace)
        .arg("--")
        .arg(&program)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(3) {
        // QEMU is all that may be missing.
        assert!(errors.contains("qemu-x86_64 is not installed"), "{errors}");
        is_missing("qemu-user");
        return;
    }

    assert!(output.status.success(), "{errors}");
    let mut reader = TraceReader::open(&trace).unwrap();
    let (mut stored, mut mapped) = (std::collections::HashSet::new(), Vec::new());
    let mut threads = std::collections::HashSet::new();
    while let Some(batch) = reader.next_batch().unwrap() {
        threads.insert(batch.thread);
        stored.extend(batch.accesses.iter().filter(|a| a.is_store()).map(|a| a.address()));
        mapped.extend(batch.events);
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let places: Vec<(&str, u64)> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, place)| (name, u64::from_str_radix(place, 16).unwrap()))
        .collect();
    let names: Vec<&str> = places.iter().map(|(name, _)| *name).collect();
    let all = [
        "data",
        "bss",
        "stack",
        "brk",
        "beyond-4GiB",
        "file",
        "first-thread",
        "brk-in-first",
        "second-thread",
        "brk-in-second",
    ];
    assert_eq!(names, all);
    for (name, place) in places {
        assert!(stored.contains(&place), "{name}: no store to {place:#x} in the recording");
        // The loader, not the program, maps data and the first stack.
        let told = mapped.iter().any(|event| {
            matches!(event, SpaceEvent::Map { start, len } if (*start..start + len).contains(&place))
        });
        assert!(told || ["data", "bss", "stack"].contains(&name), "{name} was never mapped");
    }
    assert!(threads.len() >= 2, "{threads:?}");

    let run = ["sim", "--json", "--persist", "ssp", "--interval", "100us", "--trace"];
    let report = json(terrace().args(run).arg(&trace), 0)["report"].clone();
    assert_eq!(report["accesses"].as_u64(), Some(reader.accesses()));
    assert!(report["checkpoints"].as_u64() > Some(0) && report["recovery"].as_f64() > Some(0.0));
}

#[test]
fn bad_traces_and_programs_are_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.trace");
    std::fs::write(&file, "no trace at all").unwrap();
    let script = dir.path().join("script");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();

    let message = refused(terrace().args(["sim", "--trace"]).arg(&file));
    assert!(message.contains("x.trace: not a trace of Terrace"), "{message}");
    let message = refused(terrace().args(["sim", "--trace", "/no/such"]));
    assert!(message.starts_with("/no/such: "), "{message}");
    let message = refused(terrace().args(["record", "-o", "/tmp/x", "--"]).arg(&script));
    assert!(message.contains("is a script; record its interpreter"), "{message}");
}
