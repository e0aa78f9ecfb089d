//! `terrace attach` as far as a machine with one node goes: what it refuses, a dry
//! run, and cold pages of a control group to swap. Moving pages between nodes is
//! tested in a guest (`make guest`).

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Group, HOLDER, Swap, binary, compile, refused, terrace};
use terrace_shown::is_missing;

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
    let policy = attach(&["--fast", "numa:0", "--slow", "numa:1", "--policy", "2q"]);
    assert!(policy.starts_with("--policy 2q: not where pages stay mapped"), "{policy}");
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

/// The same file that a list of options stands for must choose the same.
#[test]
fn a_ladder_file_with_swap_alone_needs_no_sampler() {
    let Some(swap) = Swap::on() else {
        is_missing("swap");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ladder.toml");
    let tiers = "ladder = 1\n[[tier]]\nmemory = \"numa:0\"\n[[tier]]\nmemory = \"swap\"\n";
    fs::write(&file, tiers).unwrap();
    let program = Sleeper::new();

    let attach = terrace().args(["attach", "--pid", &program.pid(), "--for", "200ms", "--tiers"]);
    let report = attach.arg(&file).output().unwrap();
    assert!(report.status.success());
    let report = String::from_utf8(report.stdout).unwrap();
    assert!(report.lines().any(|line| line.trim().starts_with("costs  ")), "{report}");

    let run = terrace().args(["run", "--quiet", "--tiers"]).arg(&file);
    run.args(["--", "sh", "-c", "exit 7"]).assert().code(7);
    let library = ["run", "--best-effort", "--tiers"];
    let library = refused(terrace().args(library).arg(&file).args(["--", "true"]));
    assert!(library.starts_with("--best-effort: not where pages stay mapped"), "{library}");
    drop(swap);
}

/// Programs that attach to others do not compress their memory.
#[test]
fn a_ladder_with_compressed_memory_is_for_run() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ladders/dram-compressed-file.toml");
    let program = Sleeper::new();
    let attach = refused(terrace().args(["attach", "--pid", &program.pid(), "--tiers", file]));
    assert!(attach.contains("field `tier[1].memory`: pages are compressed by"), "{attach}");
    terrace()
        .args(["check", file])
        .assert()
        .success()
        .stdout_eq("[..]: ladder file, tiers dram, compressed, file\n");
}

/// A ladder file is found by its name, and what is found nowhere was looked for in each place.
#[test]
fn a_ladder_file_is_found_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let run = || {
        let command = ["run", "--best-effort", "--tiers", "far", "--", "true"];
        terrace().current_dir(directory.path()).args(command)
    };
    let missing = refused(run());
    assert!(missing.starts_with("--tiers: far: no such file; looked for ./ladders/far.toml, "));

    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ladders/numa-compressed.toml");
    let text = fs::read_to_string(file).unwrap().replace("numa:1", "numa:77");
    fs::create_dir(directory.path().join("ladders")).unwrap();
    fs::write(directory.path().join("ladders/far.toml"), text).unwrap();

    run().assert().code(3).stderr_eq("[..]`numa:77`: this machine has no such node[..]\n");
}

/// Nothing is started where a memory of the ladder is missing. What it does where there
/// are two nodes, the guest shows (`tests/guest/tests/nodes_and_compressed.sh`).
#[test]
fn nodes_above_compressed_memory_must_be_there() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ladders/numa-compressed.toml");
    terrace()
        .args(["check", file])
        .assert()
        .success()
        .stdout_eq("[..]: ladder file, tiers numa:0, numa:1, compressed\n");
    let text = std::fs::read_to_string(file).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let ladder = directory.path().join("far.toml");
    std::fs::write(&ladder, text.replace("numa:1", "numa:77")).unwrap();

    let run = terrace().args(["run", "--tiers"]).arg(&ladder).args(["--", "echo", "x"]).assert();

    run.code(3).stdout_eq("").stderr_eq("[..]`numa:77`: this machine has no such node[..]\n");
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

/// What a device lacks that is there, the guest shows (`tests/guest/tests/dax_device.sh`).
#[test]
fn a_dax_device_must_be_there_and_be_a_device() {
    let program = Sleeper::new();
    let slow = |tier| {
        let attach = ["attach", "--pid", &program.pid(), "--fast", "numa:0", "--slow", tier];
        refused(terrace().args(attach))
    };
    let missing = slow("dax:/dev/dax77.0");
    assert!(missing.contains("`dax:dax77.0`: there is no such device"), "{missing}");
    let file = slow("dax:/mnt/pmem/cold");
    assert!(file.contains("`/mnt/pmem/cold` is not a DAX device"), "{file}");
    let started = refused(terrace().args([
        "run",
        "--fast",
        "64MiB",
        "--slow",
        "dax:dax77.0",
        "--",
        "echo",
        "started",
    ]));
    assert!(started.contains("there is no such device"), "{started}");
}

/// A program of a group; killed when it is dropped.
struct Member(Child);

impl Member {
    fn start(program: &Path, group: &Path) -> Self {
        let procs = group.join("cgroup.procs");
        let script = format!("echo $$ >{} && exec {}", procs.display(), program.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut member = Self(command.spawn().unwrap());
        assert_eq!(member.line(), "ready\n");
        member
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        // One byte at a time: what is read ahead would be lost.
        let out = self.0.stdout.as_mut().unwrap();
        BufReader::with_capacity(1, out).read_line(&mut line).unwrap();
        line
    }

    /// KiB of it in swap.
    fn swapped(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let swapped = status.lines().find_map(|line| line.strip_prefix("VmSwap:"));
        swapped.and_then(|kib| kib.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Nothing is loaded into the programs. Together they have 8 MiB, so 40 of their 48 MiB
/// have to leave, also of the one that comes when we are attached already, to a group
/// below.
#[test]
fn cold_pages_of_a_control_group_leave_for_swap_newcomers_included() {
    let (Some(swap), Some(group)) = (Swap::on(), Group::new()) else {
        is_missing("swap, or a control group,");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("holder");
    compile(HOLDER, &program, &["-O1"]);
    let first = Member::start(&program, &group.0);
    let mut attach = Command::new(binary())
        .args(["attach", "--cgroup"])
        .arg(&group.0)
        .args(["--fast", "numa:0=8MiB", "--slow", "swap"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut wait_for = |what: &str, reached: &dyn Fn() -> bool| {
        let until = Instant::now() + Duration::from_mins(1);
        while !reached() {
            assert_eq!(attach.try_wait().unwrap(), None, "it ended before {what}");
            assert!(Instant::now() < until, "{what} never came");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for("the first's pages in swap", &|| first.swapped() > 14 << 10);

    let second = Member::start(&program, &group.0.join("below"));
    wait_for("all but the budget in swap", &|| first.swapped() + second.swapped() > 38 << 10);

    let sent = Command::new("kill").args(["-TERM", &attach.id().to_string()]).status().unwrap();
    assert!(sent.success() && attach.wait().unwrap().success());
    for mut member in [first, second] {
        drop(member.0.stdin.take());
        assert_eq!(member.line(), "right\n");
    }
    drop((group, swap));
}
