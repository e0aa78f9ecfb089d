//! `terrace doctor` on machines that were written down: each directory of
//! `tests/doctor` holds the procfs and sysfs files of one, and what the doctor
//! says about it. `SNAPSHOTS=overwrite` writes that down anew.

mod common;

use std::fs;
use std::path::Path;

use common::terrace;

fn diagnose(name: &str, exit_code: i32) {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doctor").join(name);

    let assert = terrace().arg("doctor").arg("--root").arg(&case).assert();

    assert.code(exit_code).stdout_eq(snapbox::Data::read_from(&case.join("expected.txt"), None));
}

#[test]
fn a_server_with_cxl_memory_is_all_that_is_wanted() {
    diagnose("01-bare-metal-cxl", 0);
}

#[test]
fn a_container_without_privileges_is_told_what_it_lacks() {
    diagnose("02-container", 3);
}

#[test]
fn a_kernel_that_is_too_old_is_told_which_would_do() {
    diagnose("03-old-kernel", 3);
}

#[test]
fn where_nothing_can_be_read_nothing_is_assumed() {
    diagnose("04-nothing", 3);
}

#[test]
fn every_machine_that_was_written_down_is_tested() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doctor");
    assert_eq!(fs::read_dir(directory).unwrap().count(), 4, "a case without a test");
}

#[test]
fn json_says_the_same() {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doctor/02-container");

    let document = common::json(terrace().arg("doctor").arg("--json").arg("--root").arg(case), 3);

    assert_eq!(document["kind"], "terrace.doctor");
    assert_eq!(document["works"], false);
    assert_eq!(document["facts"]["cgroup"]["limit"], 512 << 20);
    assert_eq!(document["facts"]["privileges"]["seccomp"], true);
}

#[test]
fn json_says_of_each_dax_device_whether_it_is_a_tier() {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doctor/01-bare-metal-cxl");

    let document = common::json(terrace().arg("doctor").arg("--json").arg("--root").arg(case), 0);

    let devices = &document["facts"]["dax"];
    assert_eq!(devices[0]["device"], "dax0.0");
    assert_eq!(devices[0]["node"], 2);
    assert_eq!(devices[0]["online"], 8_u64 << 30);
    assert!(devices[0]["lacks"].is_null() && devices[1]["lacks"].is_string(), "{devices}");
}

/// A doctor who finds nothing where there is something would have users believe it.
#[test]
fn on_this_machine_the_doctor_finds_what_a_probe_finds() {
    let probed = common::probe();

    let document = terrace().args(["doctor", "--json"]).output().unwrap();

    let document: serde_json::Value = serde_json::from_slice(&document.stdout).unwrap();
    assert_eq!(document["works"], probed.is_ok(), "{probed:?}\n{document:#}");
}

/// Dozens of tests begin with this question, and are over if the answer is no.
#[test]
#[should_panic(expected = "nothing would be tested")]
fn a_machine_that_must_be_supported_and_is_not_fails_the_tests() {
    common::is_supported_by(&Err("userfaultfd: Operation not permitted".to_owned()), true);
}

#[test]
fn elsewhere_a_machine_that_is_not_supported_leaves_tests_out() {
    assert!(!common::is_supported_by(&Err("userfaultfd: refused".to_owned()), false));
    assert!(common::is_supported_by(&Ok(()), true));
}

#[test]
fn on_this_machine_the_doctor_s_verdict_is_what_run_does() {
    let works = common::is_supported();
    let run = terrace().env("TERRACE_PRELOAD", common::preload());

    let output = run.args(["run", "--fast", "16MiB", "--quiet", "--", "true"]).output().unwrap();

    assert_eq!(output.status.code(), Some(if works { 0 } else { 3 }), "{output:?}");
}
