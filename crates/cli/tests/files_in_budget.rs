//! `terrace run --files`: one budget for a program's memory and the page cache of its files.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{await_that, binary, compile, has_kernel_engine, is_root, refused, terrace};
use serde_json::Value;

/// Has a file of 48 MiB and a heap of 112 MiB. Reads pages of the file at random until there is a file
/// `heap` beside it, and then touches pages of the heap until there is a file `end`.
const WORKER: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define SIZE (112L << 20)
#define FILE_SIZE (48L << 20)
static unsigned long state = 88172645463325252UL;
static unsigned long next(void) {
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    return state;
}
int main(void) {
    int file = open("data", O_RDONLY);
    if (file < 0 || posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM)) return 2;
    unsigned char *heap = malloc(SIZE);
    if (!heap) return 3;
    for (long i = 0; i < SIZE; i += 8) *(unsigned long *)(heap + i) = i % 4096 < 2048 ? next() : 0;
    char page[4096];
    long reads = 0, touches = 0;
    while (access("heap", F_OK)) {
        for (int i = 0; i < 256; i++, reads++)
            if (pread(file, page, 4096, (next() % (FILE_SIZE / 4096)) * 4096) != 4096) return 4;
    }
    while (access("end", F_OK)) {
        for (int i = 0; i < 256; i++, touches++)
            heap[(next() % (SIZE / 4096)) * 4096]++;
    }
    printf("%ld %ld\n", reads, touches);
    return 0;
}
"#;

/// Whether this machine has what it takes; if not, says what is missing.
fn works() -> bool {
    if !is_root() {
        terrace_shown::is_missing("root");
        return false;
    }
    has_kernel_engine()
}

/// A run; its program ends with this.
struct Run(Child, PathBuf);

impl Drop for Run {
    fn drop(&mut self) {
        for name in ["heap", "end"] {
            let _ = fs::write(self.1.join(name), "");
        }
        let _ = self.0.wait();
    }
}

/// Begins a run with this budget.
fn start(directory: &Path, program: &Path, budget: [&str; 2]) -> Run {
    let child = Command::new(binary())
        .args(["run", "--json", "--files", "--report", "report"])
        .args(budget)
        .arg("--")
        .arg(program)
        .current_dir(directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    Run(child, directory.to_owned())
}

/// A file of 48 MiB, written and out of the page cache: the program's group is charged for what it
/// reads.
fn make_data(directory: &Path) {
    let made = Command::new("sh")
        .args([
            "-c",
            "head -c 50331648 /dev/urandom >data && sync data && \
                      dd if=data iflag=nocache count=0 status=none",
        ])
        .current_dir(directory)
        .status()
        .unwrap();
    assert!(made.success());
}

/// How the budget is divided, once there is a first report.
fn division(run: &Child) -> Option<Value> {
    let pid = run.id().to_string();
    let output = Command::new(binary())
        .args(["why", "--division", "--json", "--of", &pid])
        .output()
        .unwrap();
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// The file is hot first, and then the heap: the budget goes where it averts most, and is kept.
#[test]
fn a_budget_goes_to_the_files_and_back_as_the_program_needs_it() {
    if !works() {
        return;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| directory.path().join(name);
    compile(WORKER, &at("worker"), &["-O1"]);
    make_data(directory.path());
    let mut run = start(directory.path(), &at("worker"), ["--fast", "128MiB"]);
    let mut last = Value::Null;
    let mut follow = |what: &str, is_there: &dyn Fn(&Value) -> bool| {
        let begun = std::time::Instant::now();
        await_that(Duration::from_mins(3), what, || {
            assert!(begun.elapsed() < Duration::from_mins(2), "no {what}: {last}");
            if let Some(status) = run.0.try_wait().unwrap() {
                panic!("{status}: {last}");
            }
            last = division(&run.0).unwrap_or_default();
            is_there(&last)
        });
        last.clone()
    };
    follow("a first decision", &|last| {
        last["decisions"].as_array().is_some_and(|all| !all.is_empty())
    });
    // On a busy machine the kernel may have given it most of that before the first decision.
    let files = follow("more for the file", &|last| {
        last["files"].as_u64() >= Some(40 << 20) && last["to_files"][0].as_u64() > Some(0)
    });
    // What it decides on, it can explain.
    let why = Command::new(binary())
        .args(["why", "--division", "--of", &run_id(&files)])
        .output()
        .unwrap();
    let text = String::from_utf8(why.stdout).unwrap();
    assert!(text.contains("a MiB more for files would avert"), "{text}");
    assert!(text.contains("more for files (files ") && text.contains("PASSED"), "{text}");
    fs::write(at("heap"), "").unwrap();
    // It takes what the file does not need any more, by its share or since nobody reads the file.
    let program = follow("more for the heap", &|last| {
        last["program"].as_u64() >= files["program"].as_u64().map(|had| had + (6 << 20))
    });
    assert!(program["program_came_back"].as_u64() > files["program_came_back"].as_u64());
    fs::write(at("end"), "").unwrap();
    assert!(run.0.wait().unwrap().success());
    let report: Value = serde_json::from_str(&fs::read_to_string(at("report")).unwrap()).unwrap();
    assert_eq!(report["budget"], 128 << 20);
    // Both sides together, within what is promised of any budget. Version 1 raises its limit by up to
    // an eighth where nothing leaves in time, which on a busy machine it may not.
    let one = std::path::Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists();
    let most = (128 << 20) / if one { 6 } else { 20 };
    let exceeded = report["exceeded"].as_u64().unwrap();
    assert!(exceeded <= most, "{report}");
    let peak = report["charged_peak"].as_u64().unwrap();
    assert!(peak <= (128 << 20) + most + (2 << 20), "{report}");
    assert!(report["division"]["to_files"][0].as_u64().unwrap() > 0, "{report}");
}

/// A broker; ends with this.
struct Broker(Child);

impl Broker {
    fn start(directory: &Path, budget: &str) -> Self {
        let said = directory.join("broker");
        let child = Command::new(binary())
            .args(["broker", "--fast", budget])
            .stdout(Stdio::null())
            .stderr(fs::File::create(&said).unwrap())
            .spawn()
            .unwrap();
        let broker = Self(child);
        await_that(Duration::from_mins(1), "the broker divides", || {
            fs::read_to_string(&said).unwrap().contains("dividing")
        });
        broker
    }

    fn id(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.id()]).status();
        let _ = self.0.wait();
    }
}

/// The budget is what the broker leaves to the run, and it is divided anew when that changes.
#[test]
fn a_run_that_has_joined_a_broker_divides_its_share() {
    if !works() {
        return;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| directory.path().join(name);
    compile(WORKER, &at("shares"), &["-O1"]);
    make_data(directory.path());
    let broker = Broker::start(directory.path(), "96MiB");
    let mut run = start(directory.path(), &at("shares"), ["--join", &broker.id()]);
    let id = run.0.id().to_string();
    let mut last = Value::Null;
    let mut follow = |what: &str, is_there: &dyn Fn(u64, u64, &Value) -> bool| {
        await_that(Duration::from_mins(3), what, || {
            assert!(run.0.try_wait().unwrap().is_none(), "{what}: {last}");
            let top = terrace().args(["top", "--json", "--interval=300ms", &id]).output().unwrap();
            let top: Value = serde_json::from_slice(&top.stdout).unwrap_or_default();
            last = top["attached"][0]["kernel"].clone();
            let (budget, share) = (&last["budget"], &last["division"]["share"]);
            let (Some(budget), Some(share)) = (budget.as_u64(), share.as_u64()) else {
                return false;
            };
            // The program keeps an eighth, whatever the budget is.
            assert!(share <= budget - budget / 8, "{last}");
            is_there(budget, share, &last["division"])
        });
    };
    follow("its share divided", &|budget, share, division| {
        let decisions = division["decisions"].as_array();
        budget > 80 << 20 && share > 0 && decisions.is_some_and(|all| !all.is_empty())
    });
    let set = terrace().args(["set", &broker.id(), "--fast", "48MiB"]).output().unwrap();
    assert!(set.status.success(), "{set:?}");
    follow("a smaller share divided", &|budget, share, _| budget <= 48 << 20 && share > 0);
    for name in ["heap", "end"] {
        fs::write(at(name), "").unwrap();
    }
    assert!(run.0.wait().unwrap().success());
    let report: Value = serde_json::from_str(&fs::read_to_string(at("report")).unwrap()).unwrap();
    assert_eq!(report["budget_of"], broker.0.id(), "{report}");
    assert!(report["division"]["share"].as_u64().unwrap() <= 42 << 20, "{report}");
}

/// The run is found by its program's name as well.
fn run_id(_: &Value) -> String {
    "worker".to_owned()
}

#[test]
fn what_files_in_the_budget_do_not_go_with_is_refused() {
    for (line, expected) in [
        (
            &["run", "--fast=16MiB", "--files", "--engine=pager", "true"][..],
            "--files: not with --engine pager",
        ),
        (
            &["run", "--fast=16MiB", "--files", "--policy=refault", "true"],
            "--files: not with --policy",
        ),
        (&["run", "--fast=16MiB", "--files", "--slow=swap", "true"], "--files: not with --slow"),
        (&["why", "--division", "--of=no-such-program"], "no-such-program"),
        (&["why", "--division", "f"], "--division"),
        (&["why"], "<FILE|ADDRESS>"),
    ] {
        let refusal = refused(terrace().args(line));
        assert!(refusal.contains(expected), "{line:?}: {refusal}");
    }
}
