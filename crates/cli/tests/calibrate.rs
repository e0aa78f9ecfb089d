//! `terrace calibrate`, and what `run`, `doctor` and `check` make of its file.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{example, is_supported, json, refused, run, terrace};

/// A file of another machine, as `terrace calibrate` writes it.
const FIXTURE: &str = r#"costs = 1

[machine]
processor = "A processor that nobody has"
processors = 3
kernel = "6.8.0"
memory = "7GiB"

[measured]
user-fault = "7000ns"
bring-in = "900ns"
take-out = "1100ns"
compress = "3000ns"
decompress = "1200ns"
copy-bandwidth = "8GB/s"
parallelism = 7.0
interference = 0.25
"#;

fn with(state: &Path, content: &str) -> PathBuf {
    fs::create_dir_all(state.join("terrace")).unwrap();
    let file = state.join("terrace/costs.toml");
    fs::write(&file, content).unwrap();
    file
}

fn stderr(state: &Path) -> (Option<i32>, String) {
    let output = run("16MiB").env("XDG_STATE_HOME", state).args(["--", "true"]).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Prices of another machine must not pass for measured ones.
#[test]
fn costs_of_another_machine_are_stale_and_a_run_says_so() {
    let state = tempfile::tempdir().unwrap();
    let file = with(state.path(), FIXTURE);

    terrace().arg("check").arg(&file).assert().code(0);
    let doctor = terrace().env("XDG_STATE_HOME", state.path()).arg("doctor").output().unwrap();
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert!(doctor.contains("stale") && doctor.contains("kernel `6.8.0`"), "{doctor}");
    // An attachment decides by the same file; this one has no node to move to.
    let own = std::process::id().to_string();
    let attach = ["attach", "--pid", &own, "--fast", "numa:0", "--slow", "numa:999"];
    let attach = terrace().env("XDG_STATE_HOME", state.path()).args(attach).output().unwrap();
    let attach = String::from_utf8(attach.stderr).unwrap();
    assert!(attach.contains("warning: measured costs are stale"), "{attach}");
    if is_supported() {
        let (status, text) = stderr(state.path());
        assert_eq!(status, Some(0));
        assert!(text.contains("warning: measured costs are stale"), "{text}");
        assert!(text.contains("nobody has`, here `"), "{text}");
        assert!(text.contains("costs  ") && text.contains("another machine or kernel"), "{text}");
    }
}

#[test]
fn a_file_that_is_wrong_is_refused_with_file_line_and_field() {
    let state = tempfile::tempdir().unwrap();
    let file = with(state.path(), &FIXTURE.replace("parallelism = 7.0", "parallelism = 0.1"));
    let place = format!("{}:16: field `measured.parallelism`: must be", file.display());

    assert!(refused(terrace().arg("check").arg(&file)).contains(&place));
    let doctor = terrace().env("XDG_STATE_HOME", state.path()).arg("doctor").output().unwrap();
    assert!(String::from_utf8(doctor.stdout).unwrap().contains(&place));
    if is_supported() {
        let message = refused(run("16MiB").env("XDG_STATE_HOME", state.path()).args(["true"]));
        assert!(message.contains(&place) && message.contains("terrace calibrate"), "{message}");
    }
}

/// It is the user's own and was damaged: defaults in its place would go unnoticed.
#[test]
fn a_file_that_is_no_text_is_refused_and_not_passed_over() {
    let state = tempfile::tempdir().unwrap();
    let file = with(state.path(), FIXTURE);
    let mut content = FIXTURE.as_bytes().to_vec();
    content.splice(12..12, [0xff, 0xfe]);
    fs::write(&file, content).unwrap();
    let line = 1 + FIXTURE[..12].matches('\n').count();
    let what = format!("{}: line {line}: is not text (UTF-8)", file.display());

    let doctor = terrace().env("XDG_STATE_HOME", state.path()).arg("doctor").output().unwrap();
    assert!(String::from_utf8(doctor.stdout).unwrap().contains(&what));
    if is_supported() {
        let message = refused(run("16MiB").env("XDG_STATE_HOME", state.path()).args(["true"]));
        assert!(message.contains(&what) && message.contains("terrace calibrate"), "{message}");
    }
}

/// What a busy machine shows is the other programs' doing.
#[test]
fn what_is_measured_beside_other_programs_is_not_kept() {
    if !is_supported() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let output = std::thread::scope(|threads| {
        threads.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let command = terrace().env("XDG_STATE_HOME", state.path()).arg("calibrate");
        let output = command.output().unwrap();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        output
    });
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(" meanwhile, which") && said.contains("--busy"), "{said}");
    let left = fs::read_dir(state.path().join("terrace")).unwrap().count();
    assert_eq!(left, 0, "nothing is kept");
}

#[test]
fn what_is_measured_here_is_what_a_run_decides_by() {
    if !is_supported() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let (_, before) = stderr(state.path());
    assert!(before.contains("defaults; `terrace calibrate` measures"), "{before}");

    let command =
        terrace().env("XDG_STATE_HOME", state.path()).args(["calibrate", "--busy", "--json"]);
    let document = json(command, 0);

    let file = state.path().join("terrace/costs.toml");
    assert_eq!(document["file"], file.to_str().unwrap());
    for price in ["user_fault", "take_out", "compress", "decompress", "copy_bandwidth"] {
        assert!(document["measured"][price].as_f64().unwrap() > 0.0, "{price}: {document}");
    }
    assert!(document["measured"]["parallelism"].as_f64().unwrap() >= 1.0);
    let numbers = [&document["machine"]["memory"], &document["elapsed"]];
    assert!(numbers.iter().all(|number| number.as_u64() > Some(1 << 20)), "{document}");
    let (status, after) = stderr(state.path());
    assert_eq!(status, Some(0));
    assert!(after.contains("measured on this machine") && !after.contains("warning"), "{after}");
    let doctor = json(terrace().env("XDG_STATE_HOME", state.path()).args(["doctor", "--json"]), 0);
    assert_eq!(doctor["costs"]["measured"], true);
    // A recording says by which prices was decided: by these.
    let record = state.path().join("record");
    let recorded = run("16MiB").env("XDG_STATE_HOME", state.path());
    recorded.arg("--record").arg(&record).args(["--", "true"]).assert().code(0);
    let header = fs::read(&record).unwrap();
    let header = header.split(|&byte| byte == b'\n').next().unwrap();
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let written = fs::read_to_string(&file).unwrap();
    let fault = &header["live"]["calibration"]["user-fault"];
    assert!(written.contains(&format!("user-fault = \"{fault}ns\"")), "{fault}: {written}");
}

/// The file of costs is one that the simulated kernel reads, and says where its numbers come from.
/// Without root or tracefs nothing is measured, and that is told. The commands are the page's, with
/// a directory of the test's own.
#[test]
fn what_calls_take_on_this_kernel_is_written_down() {
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = place.path().join("kernel.toml");
    let shown = example("kloc.md", "calibrate-kernel");
    let shown = shown.replace("/var/tmp", place.path().to_str().unwrap());
    let mut commands = shown.lines().map(|line| {
        let words = line.strip_prefix("terrace ").unwrap().split(' ');
        terrace().current_dir(place.path()).args(words)
    });

    let measure = commands.next().unwrap();
    let output = measure.arg("--json").output().unwrap();

    if output.status.code() == Some(3) {
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("tracefs") || text.contains("tracing"), "{text}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["times"]["read-4096"].as_f64().unwrap() > 50.0);
    assert!(document["objects"]["open"]["kmem_cache_alloc.filp"].as_f64().unwrap() >= 0.9);
    commands.next().unwrap().assert().code(0);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("source = \"terrace calibrate kernel, "), "{text}");
    // Nothing of it is left in the directory, and what is there is not overwritten unasked.
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
}

#[test]
fn a_directory_that_is_none_and_costs_that_are_wrong_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let nowhere = place.path().join("nowhere");
    let output = terrace()
        .args(["calibrate", "kernel", "--output"])
        .arg(place.path().join("kernel.toml"))
        .arg("--directory")
        .arg(&nowhere)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--directory: "));
    let wrong = place.path().join("wrong.toml");
    let costs = include_str!("../../sim/data/kernel-calls.toml");
    let text = costs.replace("\"478ns\"", "\"fast\"");
    let line = text.lines().position(|line| line.contains("fast")).unwrap() + 1;
    fs::write(&wrong, text).unwrap();
    let sim = ["sim", "--kernel", "klocs", "--shape", "redis", "--machine", "cxl", "--costs"];
    for verb in [&["check"][..], &["reproduce", "klocs", "--costs"][..], &sim[..]] {
        let output = terrace().args(verb).arg(&wrong).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(&format!("wrong.toml:{line}")), "{text}");
    }
}

/// The file of the kernel's memory management is one that a simulation reads. What could not be
/// measured is named, and what is of another machine is told.
#[test]
fn what_memory_management_costs_is_measured_for_the_simulation() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("mm.toml");
    let mut command = terrace();
    command = command.args(["calibrate", "mm", "--busy", "--json", "--output"]).arg(&file);
    let document = json(command, 0);
    let numbers = [&document["machine"]["memory"], &document["elapsed"]];
    assert!(numbers.iter().all(|number| number.as_u64() > Some(1 << 20)), "{document}");
    let measured = document["cycles"].as_object().unwrap();
    assert!(measured["fault"].as_u64() > Some(50), "{document}");
    for name in ["zero_base", "copy_base", "free_base"] {
        assert!(measured.contains_key(name), "{name}: {document}");
    }
    // A machine of one node does not move pages unasked.
    let moved = measured.contains_key("move_page");
    let why = document["unmeasured"]["move_page"].as_str();
    assert!(moved || why.is_some_and(|why| why.contains("--compaction")), "{document}");
    let built_in = document["built_in"].as_array().unwrap();
    assert!(built_in.iter().any(|name| name == "swap_in"), "{document}");

    let check = terrace().arg("check").arg(&file).output().unwrap();
    assert_eq!(check.status.code(), Some(0), "{}", String::from_utf8_lossy(&check.stderr));
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("fault = ", "faults = ")).unwrap();
    let wrong = refused(terrace().args(["reproduce", "cbmm", "--costs"]).arg(&file));
    assert!(wrong.contains("--costs: ") && wrong.contains("cycles.faults"), "{wrong}");
}
