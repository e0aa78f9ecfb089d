//! `terrace calibrate`, and what `run`, `doctor` and `check` make of its file.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{is_supported, json, refused, run, terrace};

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

#[test]
fn what_is_measured_here_is_what_a_run_decides_by() {
    if !is_supported() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let (_, before) = stderr(state.path());
    assert!(before.contains("defaults; `terrace calibrate` measures"), "{before}");

    let command = terrace().env("XDG_STATE_HOME", state.path()).args(["calibrate", "--json"]);
    let document = json(command, 0);

    let file = state.path().join("terrace/costs.toml");
    assert_eq!(document["file"], file.to_str().unwrap());
    for price in ["user_fault", "take_out", "compress", "decompress", "copy_bandwidth"] {
        assert!(document["measured"][price].as_f64().unwrap() > 0.0, "{price}: {document}");
    }
    assert!(document["measured"]["parallelism"].as_f64().unwrap() >= 1.0);
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
