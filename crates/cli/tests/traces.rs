//! `terrace record`, `convert` and `sim --trace` with real programs. Recording
//! needs QEMU's user mode, or valgrind; where neither is there the command says
//! so with exit code 3, which is then what is tested. The plugin is built.

mod common;

use std::path::Path;

use common::{json, recorder, refused};
use snapbox::cmd::Command;
use terrace_core::{Bytes, Nanos};
use terrace_shown::is_missing;
use terrace_sim::exact::{Access, Batch, SpaceEvent};
use terrace_sim::kernel::recorded::RecordedFile;
use terrace_sim::kernel::{Advice, Call};
use terrace_sim::trace::{IoRecord, TraceHeader, TraceReader, TraceWriter};

/// A program of every system, short: the `ChampSim` file has 64 bytes an
/// instruction.
const PROGRAM: [&str; 3] = ["--", "/bin/echo", "hello"];

/// The command under test, with the plugin that belongs to it: without it QEMU
/// would never be used here, whatever is installed.
fn terrace() -> Command {
    common::terrace().env("TERRACE_RECORDER", recorder())
}

/// Whether a recording succeeded; false where what is needed for it is all that is missing, which
/// the error names so.
fn is_recorded(output: &std::process::Output, named: &str, missing: &str) -> bool {
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) {
        assert!(errors.contains(named), "{errors}");
        is_missing(missing);
        return false;
    }
    assert!(output.status.success(), "{errors}");
    true
}

/// Records into a file; false where nothing here can record.
fn record(trace: &Path) -> bool {
    let output = terrace().args(["record", "-o"]).arg(trace).args(PROGRAM).output().unwrap();
    if !is_recorded(&output, "install qemu-user or valgrind", "qemu-user") {
        return false;
    }
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

/// A trace may come from a pipe, and its name says the format as an input's does.
#[test]
fn an_output_s_name_says_its_format_and_a_dash_is_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let champsim = dir.path().join("out.champsim");
    let lines = "I  1000,4\n M 2000,8\n".repeat(10);
    let command = terrace().args(["--json", "convert", "--from", "lackey", "-"]);
    let document = json(command.arg(&champsim).stdin(lines), 0);
    assert_eq!(
        (document["records"].as_u64(), std::fs::metadata(&champsim).unwrap().len()),
        (Some(10), 640)
    );
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
    if !is_recorded(&output, "qemu-x86_64 is not installed", "qemu-user") {
        return;
    }
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
    // A trace of ours that somebody has compressed.
    let packed = dir.path().join("x.trace.gz");
    std::fs::write(&packed, b"\x1f\x8b\x08\0\0\0\0\0\0\x03 and more").unwrap();
    let out = dir.path().join("out.trace");
    for command in [
        terrace().arg("check").arg(&packed),
        terrace().args(["sim", "--trace"]).arg(&packed),
        terrace().arg("convert").arg(&packed).arg(&out),
    ] {
        let message = refused(command);
        let expected = "x.trace.gz: is compressed by gzip: decompress it first (gzip -d)";
        assert!(message.contains(expected), "{message}");
    }
    let message = refused(terrace().args(["sim", "--trace", "/no/such"]));
    assert!(message.starts_with("/no/such: "), "{message}");
    let message = refused(terrace().args(["record", "-o", "/tmp/x", "--"]).arg(&script));
    assert!(message.contains("is a script; record its interpreter"), "{message}");
}

/// Calls are recorded by the kernel's tracepoints: of a file that is made, written, read and
/// deleted, in that order.
#[test]
fn calls_of_a_program_are_recorded_or_what_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.calls");
    let script = "head -c 8192 /dev/zero >made; cat made >/dev/null; rm made";
    let output = terrace()
        .args(["record", "--json", "--calls", "-o"])
        .arg(&file)
        .args(["--", "sh", "-c", script])
        .current_dir(dir.path())
        .output()
        .unwrap();
    if !is_recorded(&output, "tracefs", "tracefs") {
        return;
    }
    let recording = terrace_sim::kernel::recorded::read("x", std::fs::File::open(&file).unwrap());
    let recording = recording.unwrap();
    assert!(recording.calls.len() > 5, "{:?}", recording.calls);
    let checked = json(terrace().arg("check").arg("--json").arg(&file), 0);
    assert_eq!(checked["calls"], recording.calls.len());
    // Only ext4 tells which files are made.
    if let Some(made) = recording.files.iter().position(|file| !file.existed) {
        let text = format!("{:?}", recording.of_made_files().calls);
        let at = |call: &str| text.find(&format!("{call} {{ file: {made}")).expect(call);
        assert!(at("Create") < at("Write"), "{text}");
        assert!(at("Write") < at("Read"), "{text}");
        assert!(at("Read") < at("Unlink"), "{text}");
    }
    let cut = dir.path().join("cut.calls");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    assert!(refused(terrace().arg("check").arg(&cut)).contains("cut.calls:"));
}

/// A C program's calls lie between its accesses, where they were made, and each says of which
/// file: also after a rename, and through another descriptor. The simulated kernel makes them.
#[test]
fn calls_are_recorded_between_accesses_and_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let (program, trace) = (dir.path().join("io"), dir.path().join("io.trace"));
    common::compile(include_str!("common/io.c"), &program, &["-O1"]);
    std::fs::write(dir.path().join("there"), [1; 5000]).unwrap();
    let output = terrace()
        .args(["record", "--json", "--via", "qemu", "-o"])
        .arg(&trace)
        .arg("--")
        .arg(&program)
        .current_dir(dir.path())
        .output()
        .unwrap();
    if !is_recorded(&output, "qemu-x86_64 is not installed", "qemu-user") {
        return;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let touched: Vec<(String, u64)> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, at)| Some((name.to_owned(), u64::from_str_radix(at, 16).ok()?)))
        .collect();
    assert_eq!(touched.len(), 8, "{text}");

    // What was asked for on the file that was made, with what was touched in between.
    let mut reader = TraceReader::open(&trace).unwrap();
    let (mut files, mut story) = (Vec::new(), Vec::new());
    let mut all = Vec::new();
    while let Some(batch) = reader.next_batch().unwrap() {
        for record in &batch.io {
            match *record {
                IoRecord::File(file) => files.push(file),
                IoRecord::Call { at, call, .. } => {
                    all.push(at);
                    story.push(Ok(call));
                }
                _ => {}
            }
        }
        for access in batch.accesses.iter().filter(|access| access.is_store()) {
            if let Some((name, _)) = touched.iter().find(|(_, at)| *at == access.address()) {
                story.push(Err(name.as_str()));
            }
        }
    }
    assert!(all.is_sorted(), "one thread makes one call after the other");
    assert_eq!(reader.calls() as usize, all.len());
    let created = story.iter().find_map(|step| match step {
        Ok(Call::Create { file }) => Some(*file),
        _ => None,
    });
    let made = created.expect("it made a file");
    let lost = story.iter().find_map(|step| match step {
        Ok(Call::Unlink { file }) if *file != made => Some(*file),
        _ => None,
    });
    let there = lost.expect("the file that was there loses its name");
    assert_eq!((files[there as usize].existed, files[there as usize].bytes), (true, Bytes(5000)));
    assert!(!files[made as usize].existed && files[made as usize].inode.is_some());
    let is_about = |call: &Call| match *call {
        Call::Create { file }
        | Call::Open { file }
        | Call::Close { file }
        | Call::Read { file, .. }
        | Call::Write { file, .. }
        | Call::Fsync { file }
        | Call::Map { file }
        | Call::Unmap { file }
        | Call::Advise { file, .. }
        | Call::Rename { file }
        | Call::Unlink { file } => file == made || file == there,
        _ => false,
    };
    story.retain(|step| step.as_ref().map_or(true, is_about));
    let write = |at: u64| Ok(Call::Write { file: made, offset: at * 4096, bytes: 4096 });
    let mut expected = vec![Ok(Call::Create { file: made }), Err("create")];
    expected.extend((0..8).map(write));
    expected.extend([
        Err("write"),
        Ok(Call::Fsync { file: made }),
        Err("fsync"),
        Ok(Call::Read { file: made, offset: 3 * 4096, bytes: 100 }),
        Err("read"),
        Ok(Call::Map { file: made }),
        Ok(Call::Unmap { file: made }),
        Err("map"),
        Ok(Call::Close { file: made }),
        Ok(Call::Open { file: made }),
        Ok(Call::Advise { file: made, offset: 4096, bytes: 0, advice: Advice::Random }),
        Ok(Call::Close { file: made }),
        Err("again"),
        Ok(Call::Unlink { file: there }),
        Ok(Call::Rename { file: made }),
        Err("rename"),
        Ok(Call::Unlink { file: made }),
        Err("unlink"),
    ]);
    assert_eq!(story, expected);

    let checked = json(terrace().arg("check").arg("--json").arg(&trace), 0);
    assert_eq!(checked["calls"].as_u64(), Some(reader.calls()));
    let command = terrace().args(["sim", "--json", "--machine", "cxl", "--kernel", "klocs"]);
    let played = json(command.arg("--trace").arg(&trace), 0);
    assert_eq!(played["caches"], true);
    assert_eq!(played["accesses"].as_u64(), Some(reader.accesses()));
    let counts = &played["report"]["all"];
    // The eight pages that were written were found when they were read and mapped.
    assert!(counts["cache_hits"].as_u64() > Some(8), "{counts}");
    assert!(counts["commits"].as_u64() >= Some(1), "{counts}");
    // Another engine says that it passes them over.
    let output = terrace()
        .args(["sim", "--policy", "all-dram", "--machine", "cxl", "--trace"])
        .arg(&trace)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("calls for I/O are passed over"), "{errors}");
}

/// A trace of one thread with accesses and these records, one batch each.
fn trace_of(records: &[IoRecord]) -> Vec<u8> {
    let header = TraceHeader { program: vec!["prog".to_owned()], ..TraceHeader::default() };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    for (number, record) in records.iter().enumerate() {
        let accesses = vec![Access::load(0x1000 + 64 * number as u64); 10];
        writer.write(&Batch { io: vec![*record], accesses, ..Batch::default() }).unwrap();
    }
    writer.finish().unwrap()
}

fn call(at: u64, call: Call) -> IoRecord {
    IoRecord::Call { cpu: 0, at: Nanos(at), took: Nanos(1), call }
}

/// What is wrong with calls is one line that names the file and the place; what comes before is
/// used with `--partial`.
#[test]
fn calls_that_cannot_have_been_made_are_refused_with_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.trace");
    let known = RecordedFile { inode: Some(((8, 1), 7)), existed: true, bytes: Bytes(8192) };
    let (open, close) = (Call::Open { file: 0 }, Call::Close { file: 0 });
    let read = Call::Read { file: 0, offset: 0, bytes: 4096 };
    let begin = [IoRecord::File(known), call(10, open), call(20, read)];
    let with = |more: &[IoRecord]| [&begin[..], more].concat();
    for (records, kept, what) in [
        (with(&[call(30, close), call(40, close)]), 3, "call 4 (in the chunk at byte "),
        (with(&[call(30, close), call(40, close)]), 3, "file 0 is not open"),
        (with(&[call(30, Call::Open { file: 3 })]), 2, "file 3 is unknown"),
        (with(&[call(15, close)]), 2, "begins before the call of its thread"),
        (with(&[call(30, Call::Send { socket: 0, bytes: 1 })]), 2, "socket 0 is unknown"),
        (with(&[call(30, Call::Create { file: 0 })]), 2, "file 0 exists already"),
    ] {
        std::fs::write(&file, trace_of(&records)).unwrap();
        let check = refused(terrace().arg("check").arg(&file));
        assert!(check.contains("x.trace: damaged after ") && check.contains(what), "{check}");
        assert!(check.contains(&format!(" and {kept} calls")), "{check}");
        let sim = ["sim", "--json", "--machine", "cxl", "--kernel", "naive", "--trace"];
        let message = refused(terrace().args(sim).arg(&file));
        assert!(message.contains(what) && message.contains("--partial"), "{message}");
        let played = json(terrace().args(sim).arg(&file).arg("--partial"), 0);
        assert_eq!(played["report"]["kernel_calls"].as_u64(), Some(kept), "{what}");
        assert!(played["cut"].as_str().unwrap().contains(what), "{played}");
    }
    // Cut anywhere: an error, and never a panic; what was whole is used.
    let whole = trace_of(&with(&[call(30, close)]));
    for end in (0..whole.len()).step_by(7) {
        std::fs::write(&file, &whole[..end]).unwrap();
        let message = refused(terrace().arg("check").arg(&file));
        assert!(message.contains("x.trace"), "{end}: {message}");
    }
    std::fs::write(&file, &whole[..whole.len() - 20]).unwrap();
    let command = terrace().args(["sim", "--json", "--kernel", "naive", "--partial"]);
    let played = json(command.args(["--machine", "cxl", "--trace"]).arg(&file), 0);
    assert_eq!(played["report"]["kernel_calls"], 3);
    assert!(played["cut"].as_str().unwrap().contains("truncated within the index"), "{played}");
}

/// Decisions of a simulated kernel are recorded, and explained with the file that they are about.
#[test]
fn a_decision_about_a_context_is_explained_with_its_life() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("record");
    let run = ["sim", "--kernel", "klocs", "--shape", "rocksdb", "--machine", "kloc-two-tier"];
    terrace().args(run).arg("--record").arg(&record).assert().success();
    let why = |more: &[&str]| {
        let command = terrace().arg("why").arg(&record).arg("--json").args(more);
        json(command, 0)["decisions"].as_array().unwrap().clone()
    };
    let found = why(&["--class", "demote-context", "--last", "1"]);
    let [one] = &found[..] else { panic!("{found:?}") };
    let number = one["context"]["context"].as_u64().unwrap();
    assert!(one["context"]["opened"].as_u64() >= Some(1), "{one}");
    // Pages of files do not leave one by one.
    assert!(why(&["--class", "demote"]).iter().all(|decision| decision["context"].is_null()));
    let context = number.to_string();
    let of_it = why(&["--context", &context]);
    assert!(!of_it.is_empty());
    assert!(of_it.iter().all(|decision| decision["context"]["context"] == number), "{of_it:?}");
    let output = terrace().arg("why").arg(&record).args(["--context", &context]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("context {number}: file ")), "{text}");
    assert!(
        refused(terrace().arg("why").arg(&record).args(["--context", "99999999"]))
            .contains("--context: there is no file or socket 99999999")
    );
    // Nothing is priced, and so nothing explained, without an economist.
    terrace()
        .args(run)
        .args(["--economist", "off", "--record"])
        .arg(dir.path().join("off"))
        .assert()
        .success();
}
