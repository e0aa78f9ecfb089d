//! Processes that end while a run goes on: what they had, they have no longer, what happened to
//! them is not forgotten, and their files do not pile up.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use common::{await_that, binary, compile, is_supported, preload};
use serde_json::Value;

/// Fills 12 MiB, forks children one after the other that each touch new pages here and there, says so,
/// and waits for a file.
const PARENT: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define MAP(mib) mmap(0, (mib) << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
int main(int argc, char **argv) {
    volatile char *filled = MAP(12), *fresh = MAP(1);
    for (long i = 0; i < 12 << 20; i += 4096) filled[i] = i >> 12, filled[i + 9] = i >> 13;
    for (int n = atoi(argv[1]); n > 0; n--) {
        if (fork() == 0) {
            for (int i = 0; i < 16; i++) fresh[i * i * 13 % 256 * 4096] = i;
            _exit(0);
        }
        wait(0);
    }
    if (argc > 2) close(open("ready", O_CREAT | O_WRONLY, 0600));
    /* Two minutes at most, also if nobody is left to make the file. */
    for (int i = 0; argc > 2 && i < 24000 && access(argv[2], F_OK); i++) usleep(5000);
    return 0;
}
"#;

const MIB: u64 = 1 << 20;
const MINUTE: Duration = Duration::from_mins(1);
/// What `terrace run` keeps of those that have ended.
const KEPT: usize = 64;
const CHILDREN: u64 = 100;

struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        compile(PARENT, &directory.path().join("parent"), &["-O1"]);
        fs::create_dir(directory.path().join("runtime")).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start(&self, arguments: &[&str], script: &str) -> Child {
        Process::new(binary())
            .env("TERRACE_PRELOAD", preload())
            .env("XDG_RUNTIME_DIR", self.path("runtime"))
            .current_dir(self.directory.path())
            .args(["--json", "run", "--engine=pager", "--fast", "8MiB", "--report", "report"])
            .args(arguments)
            .args(["--", "sh", "-c", script])
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("report")).unwrap()).unwrap()
    }

    /// Files of the run under way whose names end so.
    fn files(&self, end: &str) -> Vec<PathBuf> {
        let list = |path: &Path| fs::read_dir(path).unwrap().flatten().map(|entry| entry.path());
        let mut runs = list(&self.path("runtime"));
        let Some(run) = runs.find(|path| path.join("run.json").exists()) else { return Vec::new() };
        list(&run).filter(|path| path.to_string_lossy().ends_with(end)).collect()
    }
}

fn first_touches(figures: &Value) -> u64 {
    let faults = figures["faults"].as_array().unwrap();
    faults.iter().find(|fault| fault["kind"] == "first-touch").unwrap()["count"].as_u64().unwrap()
}

#[test]
fn what_ended_processes_had_is_not_counted_and_what_they_did_is() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    let mut run = bench.start(&[], &format!("exec ./parent {CHILDREN} go"));
    // Its last children end while it runs on.
    await_that(MINUTE, "few files", || {
        bench.path("ready").exists() && {
            let of_processes = bench.files(".stats");
            let living = of_processes
                .iter()
                .filter(|path| !path.file_stem().unwrap().to_str().unwrap().contains('-'));
            of_processes.len() == KEPT + 1 && living.count() == 1
        }
    });
    let now = Process::new(binary())
        .env("XDG_RUNTIME_DIR", bench.path("runtime"))
        .args(["--json", "top"])
        .output()
        .unwrap();
    fs::write(bench.path("go"), "").unwrap();
    assert!(run.wait().unwrap().success());

    let report = bench.report();
    let processes = report["processes"].as_array().unwrap();
    assert_eq!(processes.len(), KEPT + 1);
    assert_eq!(report["ended_processes"].as_u64().unwrap() + processes.len() as u64, CHILDREN + 1);
    let total = &report["total"];
    let of_one = 13 * MIB;
    let mapped = |figure: &str| total[figure].as_u64().unwrap();
    assert!(mapped("mapped") >= of_one && mapped("mapped") < 2 * of_one, "{total}");
    assert!(mapped("mapped_peak") < 4 * of_one, "never more than two at once: {total}");
    assert!(total["store"]["occupied_peak"].as_u64().unwrap() < 2 * of_one, "{total}");
    let parent = processes.iter().find(|process| process["ended"] == false).unwrap();
    let by_children = first_touches(total) - first_touches(&parent["figures"]);
    assert!(by_children >= 8 * CHILDREN, "{by_children}");
    // Other commands see the same.
    let now: Value = serde_json::from_slice(&now.stdout).expect("one object");
    // Root is shown others' runs, too.
    let is_ours = |run: &&Value| {
        run["processes"].as_array().unwrap().iter().any(|process| process["command"] == "parent")
    };
    let ours = now["runs"].as_array().unwrap().iter().find(is_ours);
    let seen = &ours.expect("it is shown")["total"];
    assert_eq!(seen["mapped"], total["mapped"], "{now}");
    assert_eq!(first_touches(seen), first_touches(total), "{now}");
}

/// Each program that is executed has a ring of 4 MiB for what its policy is told.
#[test]
fn rings_of_ended_programs_are_written_down_and_removed() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    let script = "for i in 1 2 3 4 5 6; do ./parent 0; done; ./parent 1 go";

    let mut run = bench.start(&["--record", "recording"], script);
    await_that(MINUTE, "one ring", || {
        bench.path("ready").exists()
            && bench.files(".stats").len() == 8
            && bench.files(".events").len() == 1
    });
    fs::write(bench.path("go"), "").unwrap();
    assert!(run.wait().unwrap().success());

    let replayed = Process::new(binary())
        .current_dir(bench.directory.path())
        .args(["--json", "replay", "recording", "--policy", "2q"])
        .output()
        .unwrap();
    assert!(replayed.status.success(), "{replayed:?}");
    let replayed: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    assert_eq!(replayed["processes"], 7, "as many as had rings: {replayed}");
    assert_eq!(replayed["events_lost"], 0);
}
