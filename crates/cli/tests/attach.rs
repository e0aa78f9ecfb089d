//! `terrace attach` as far as a machine with one node goes: what it refuses, and
//! a dry run. Moving pages is tested in a guest (`make guest`).

mod common;

use std::process::{Child, Command, Stdio};

use common::{refused, terrace};

/// A program to attach to.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        let child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn();
        Self(child.expect("sleep"))
    }
    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_that_is_not_there() {
    let message = refused(
        terrace().args(["attach", "--pid", "4194305", "--fast", "numa:0", "--slow", "swap"]),
    );
    assert_eq!(message, "--pid: there is no process 4194305");
}

#[test]
fn tiers_that_make_no_ladder() {
    let program = Sleeper::new();
    let attach = |arguments: &[&str]| {
        refused(terrace().args(["attach", "--pid", &program.pid()]).args(arguments))
    };
    let twice = attach(&["--fast", "numa:0", "--slow", "numa:0"]);
    assert!(twice.contains("another tier is this memory"), "{twice}");
    let unit = attach(&["--fast", "numa:0=64", "--slow", "numa:1"]);
    assert!(unit.contains("has no unit"), "{unit}");
    let share = attach(&["--fast", "numa:0", "--slow", "numa:1", "--sampling-cap", "3"]);
    assert!(share.contains("is not a share"), "{share}");
    let none = attach(&["--fast", "numa:0"]);
    assert!(none.contains("--slow"), "{none}");
}

#[test]
fn a_ladder_file_s_fault_has_a_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ladder.toml");
    std::fs::write(&file, "ladder = 1\n[[tier]]\nmemory = \"numa:0\"\nsize = \"1GiB\"\n").unwrap();
    let program = Sleeper::new();
    let name = file.display().to_string();

    let attach = refused(terrace().args(["attach", "--pid", &program.pid(), "--tiers"]).arg(&file));
    let check = refused(terrace().arg("check").arg(&file));

    assert!(attach.starts_with(&format!("{name}:4: field `tier[0].size`")), "{attach}");
    assert_eq!(attach, check, "both say the same");
}

#[test]
fn the_ladder_in_the_documentation_is_valid() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ladders/dram-cxl-swap.toml");
    terrace()
        .args(["check", file])
        .assert()
        .success()
        .stdout_eq("[..]: ladder file, tiers numa:0, numa:1, swap\n");
}

#[test]
fn a_node_that_is_not_there_is_not_supported_rather_than_wrong() {
    let program = Sleeper::new();
    terrace()
        .args(["attach", "--pid", &program.pid(), "--fast", "numa:0", "--slow", "numa:999"])
        .assert()
        .code(3)
        .stderr_eq("terrace: `numa:999`: this machine has no such node[..]\n");
}
