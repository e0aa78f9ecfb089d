//! `terrace run --engine kernel`: what the pager refuses runs, too, and nothing is left behind.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use common::{await_that, compile, has_kernel_engine, refused, terrace};
use serde_json::Value;

/// Fills 96 MiB, and reads all of it twice.
const FILLS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
    (void)argv;
    long words = 96L << 17;
    unsigned long *memory = malloc(words * 8);
    if (!memory) return 3;
    for (long i = 0; i < words; i++) memory[i] = i % 512 < 256 ? i * 2654435761u : 0;
    for (int round = 0; round < 2; round++)
        for (long i = 0; i < words; i += 64)
            if (memory[i] != (i % 512 < 256 ? i * 2654435761u : 0)) return 4;
    printf("%d %s\n", argc, geteuid() == 0 ? "root" : "user");
    return 7;
}
"#;

/// Swap areas, and control groups of runs.
fn left() -> (String, Vec<PathBuf>) {
    fn below(directory: &Path, found: &mut Vec<PathBuf>, depth: u32) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let is_group = entry.file_name().to_string_lossy().starts_with("terrace-");
            if is_group && !entry.file_name().to_string_lossy().contains("bench") {
                found.push(entry.path());
            } else if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                below(&entry.path(), found, depth - 1);
            }
        }
    }
    let mut groups = Vec::new();
    below(Path::new("/sys/fs/cgroup"), &mut groups, 4);
    // How full they are is others' affair as well.
    let areas = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let names = areas.lines().filter_map(|line| line.split_whitespace().next());
    (names.collect::<Vec<_>>().join(" "), groups)
}

/// Runs a command line with a budget of 40 MiB; its report, and what it printed.
fn run(words: &[&str], code: i32) -> (Value, String) {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report");
    let assert = terrace()
        .args(["run", "--json", "--engine", "kernel", "--fast", "40MiB", "--report"])
        .arg(&report)
        .arg("--")
        .args(words)
        .assert()
        .code(code);
    let document = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    (document, String::from_utf8(assert.get_output().stdout.clone()).unwrap())
}

/// One test, because what is left of a run is looked for on the whole machine.
#[test]
fn programs_that_the_pager_refuses_run_and_nothing_is_left_behind() {
    use std::os::unix::fs::PermissionsExt;
    if !has_kernel_engine() {
        return;
    }
    let before = left();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("fills");
    compile(FILLS, &program, &["-O1", "-static"]);
    let path = program.to_str().unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();

    // Static and setuid; its status passes through.
    let (report, printed) = run(&[path], 7);

    assert_eq!(printed.trim(), "1 root");
    assert_eq!(report["kind"], "terrace.kernel");
    assert_eq!(report["budget"], 40 << 20);
    assert!(report["resident_peak"].as_u64().unwrap() < 96 << 20, "{report}");
    assert!(report["store"]["peak"].as_u64().unwrap() > 1 << 20, "{report}");
    assert!(report["faults"].as_u64().unwrap() > 1000, "{report}");
    assert_eq!(report["chooser"], "kernel");

    // Left to Terrace, the kernel serves what the pager cannot; which is said.
    let out = directory.path().join("auto");
    let assert = terrace()
        .args(["run", "--json", "--fast", "40MiB", "--report"])
        .arg(&out)
        .args(["--", path])
        .assert()
        .code(7);
    let said = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(said.contains("--engine kernel: the pager cannot serve it"), "{said}");
    let report: Value = serde_json::from_str(&fs::read_to_string(out).unwrap()).unwrap();
    assert_eq!(report["kind"], "terrace.kernel");
    // With what only the pager has, it is refused as before.
    let error = refused(terrace().args(["run", "--fast=40MiB", "--huge-pages=always", path]));
    assert!(error.contains("is statically linked") || error.contains("is setuid"), "{error}");

    // The same from a ladder file, which names the engine.
    let ladder = directory.path().join("ladder.toml");
    let text = include_str!("../../../ladders/kernel.toml");
    fs::write(&ladder, text.replace("4GiB", "40MiB")).unwrap();
    let out = directory.path().join("by-ladder");
    terrace()
        .args(["run", "--json", "--tiers"])
        .arg(&ladder)
        .arg("--report")
        .arg(&out)
        .args(["--", path])
        .assert()
        .code(7);
    let report: Value = serde_json::from_str(&fs::read_to_string(out).unwrap()).unwrap();
    assert_eq!(
        (&report["kind"], &report["budget"]),
        (&"terrace.kernel".into(), &(40 << 20).into())
    );
    let error =
        refused(terrace().args(["run", "--min-region=1MiB", "--tiers"]).arg(&ladder).arg("true"));
    assert!(error.contains("--min-region: has no effect with --engine kernel"), "{error}");

    // A pipeline, whose parts share the budget; and a policy.
    let line = format!("{path} | cat; {path} x | cat");
    let words = ["--policy", "refault", "--", "sh", "-c", &line];
    let out = directory.path().join("policy");
    let assert = terrace()
        .args(["run", "--json", "--engine", "kernel", "--fast", "40MiB", "--report"])
        .arg(&out)
        .args(words)
        .assert()
        .code(0);
    let printed = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    assert_eq!(printed, "1 root\n2 root\n");
    let report: Value = serde_json::from_str(&fs::read_to_string(out).unwrap()).unwrap();
    assert_eq!(report["chooser"], "refault");
    assert!(report["put_out"].as_u64().unwrap() > 0, "{report}");

    await_that(Duration::from_mins(1), "nothing that is left", || left() == before);
    terrace().arg("clean").assert().code(0);
    what_is_shown_and_recorded();
    a_budget_is_changed_and_shared();
    a_broker_divides_its_budget_with_a_run_of_this_engine();
    programs_that_run_already_have_a_budget();
    await_that(Duration::from_mins(1), "nothing that is left", || left() == before);
    killed_runs_are_undone_by_clean(path, &before);
}

/// A program that touches 96 MiB again and again until it is killed.
const LASTS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **arguments) {
    long words = 96L << 17;
    // With an argument it goes on with a quarter of its memory.
    long used = count > 1 ? words / 4 : words;
    unsigned long *memory = malloc(words * 8);
    if (!memory) return 3;
    for (long i = 0; i < words; i++) memory[i] = i % 512 < 256 ? i * 2654435761u : 0;
    puts("filled");
    fflush(stdout);
    for (unsigned long at = 1;; at = at * 6364136223846793005ul + 1442695040888963407ul) {
        memory[(at >> 33) % used]++;
        if (at % 64 == 0) usleep(100);
    }
}
"#;

/// A command that runs until it is killed.
struct Lasting {
    child: std::process::Child,
    directory: tempfile::TempDir,
    ends: bool,
}

impl Lasting {
    fn start(words: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("lasts");
        compile(LASTS, &program, &["-O1", "-static"]);
        let bin = Path::new(snapbox::cmd::cargo_bin!("terrace"));
        let mut command = Process::new(if words.is_empty() { &program } else { bin });
        if words.is_empty() {
            // Nothing slows it down: what it goes on with must fit.
            command.arg("quarter");
        } else {
            command.args(words).arg("--").arg(&program);
        }
        let child = command
            .current_dir(directory.path())
            .stdout(std::process::Stdio::piped())
            .stderr(fs::File::create(directory.path().join("stderr")).unwrap())
            .spawn()
            .unwrap();
        let mut lasting = Self { child, directory, ends: false };
        let mut line = [0u8; 6];
        std::io::Read::read_exact(lasting.child.stdout.as_mut().unwrap(), &mut line).unwrap();
        lasting
    }

    fn id(&self) -> String {
        self.child.id().to_string()
    }

    /// Ends it in an orderly way; what it said.
    fn end(&mut self) -> String {
        self.ends = true;
        Process::new("kill").args(["-TERM", &self.id()]).status().unwrap();
        self.child.wait().unwrap();
        fs::read_to_string(self.directory.path().join("stderr")).unwrap()
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        if !self.ends {
            self.end();
        }
    }
}

/// What runs look like while they run, and what is recorded of them: as with the pager.
fn what_is_shown_and_recorded() {
    let mut run = Lasting::start(&[
        "run",
        "--engine",
        "kernel",
        "--fast=40MiB",
        "--policy=2q",
        "--record=record",
        "--report-html=page",
        "--watch=200ms",
        "--watch-to=lines",
    ]);
    let id = run.id();
    let mut top = Value::Null;
    await_that(Duration::from_mins(1), "what is in swap", || {
        top = common::json(terrace().args(["top", "--json", "--interval=300ms", &id]), 0);
        let shown = &top["attached"][0];
        let regions = shown["regions"].as_array();
        shown["kernel"]["swapped"].as_u64() > Some(1 << 20)
            && regions.is_some_and(|r| !r.is_empty())
    });
    let shown = &top["attached"][0];
    assert_eq!(shown["kernel"]["budget"], 40 << 20, "{shown}");
    assert_eq!(shown["tiers"][1]["memory"], "swap", "{shown}");
    assert!(shown["kernel"]["swapped"].as_u64().unwrap() > 1 << 20, "{shown}");
    assert!(!shown["regions"].as_array().unwrap().is_empty(), "{shown}");
    let metrics = terrace().args(["metrics", "--once", &id]).output().unwrap();
    let metrics = String::from_utf8(metrics.stdout).unwrap();
    for series in ["terrace_kernel_faults_total{", "terrace_budget_bytes{"] {
        assert!(metrics.contains(series), "{series}: {metrics}");
    }
    run.end();

    let path = |name: &str| run.directory.path().join(name);
    let lines = fs::read_to_string(path("lines")).unwrap();
    assert!(lines.contains("\"kind\":\"terrace.attach-watch\""), "{lines}");
    assert!(fs::read_to_string(path("page")).unwrap().contains("Residency over time"));
    let why = terrace().args(["why", "--last", "1"]).arg(path("record")).output().unwrap();
    let why = String::from_utf8(why.stdout).unwrap();
    assert!(why.contains("demote") && why.contains("dram->swap"), "{why}");
    let replay = common::json(terrace().args(["replay", "--json"]).arg(path("record")), 0);
    assert_eq!((&replay["ended"], &replay["policy"]), (&true.into(), &"2q".into()), "{replay}");
    assert!(replay["events"].as_u64().unwrap() > 1000, "{replay}");
    let report = common::json(terrace().args(["report", "--json"]).arg(path("record")), 0);
    assert_eq!(report["kernel"]["budget"], 40 << 20, "{report}");
}

fn budget(run: &str) -> u64 {
    let top = common::json(terrace().args(["top", "--json", "--interval=300ms", run]), 0);
    top["attached"][0]["kernel"]["budget"].as_u64().unwrap()
}

/// A budget is another one while the program runs, and two programs share one; whichever of them
/// lives keeps it.
fn a_budget_is_changed_and_shared() {
    let mut first = Lasting::start(&["run", "--engine", "kernel", "--fast=40MiB"]);
    let set = common::json(terrace().args(["set", &first.id(), "--fast=60MiB", "--json"]), 0);
    assert_eq!(set["before"], 40 << 20);
    // What is shown is what the run has told last.
    await_that(Duration::from_secs(20), "the new budget is shown", || {
        budget(&first.id()) == 60 << 20
    });

    let words = ["run", "--engine", "kernel", "--join", &first.id()];
    let mut second = Lasting::start(&words);
    await_that(Duration::from_secs(20), "both are of the run", || {
        let top =
            common::json(terrace().args(["top", "--json", "--interval=300ms", &first.id()]), 0);
        top["attached"][0]["processes"].as_array().unwrap().len() == 2
    });
    // A pager's program cannot share it.
    let error = refused(terrace().args(["run", "--join", &first.id(), "--", "true"]));
    assert!(error.contains("has no budget of its own"), "{error}");

    let said = first.end();
    assert!(said.contains("60.0 MiB"), "{said}");
    await_that(Duration::from_secs(20), "the other goes on in its place", || {
        let runs = common::json(terrace().args(["top", "--json", "--interval=50ms"]), 0);
        let runs = runs["attached"].as_array().unwrap().clone();
        runs.iter()
            .any(|run| run["run"] == second.child.id() && run["kernel"]["budget"] == 60 << 20)
    });
    let said = second.end();
    assert!(said.contains("its budget of 60.0 MiB is kept"), "{said}");
}

/// It has as much of it as it can use, and no more.
fn a_broker_divides_its_budget_with_a_run_of_this_engine() {
    let directory = tempfile::tempdir().unwrap();
    let stderr = directory.path().join("stderr");
    let mut broker = Process::new(snapbox::cmd::cargo_bin!("terrace"))
        .args(["broker", "--fast", "48MiB"])
        .stdout(std::process::Stdio::null())
        .stderr(fs::File::create(&stderr).unwrap())
        .spawn()
        .unwrap();
    await_that(Duration::from_secs(20), "the broker divides", || {
        fs::read_to_string(&stderr).unwrap().contains("dividing")
    });
    let id = broker.id().to_string();
    let mut run = Lasting::start(&["run", "--engine", "kernel", "--join", &id]);
    await_that(Duration::from_secs(20), "the run has nearly all of it", || {
        (40 << 20..=48 << 20).contains(&budget(&run.id()))
    });
    let said = run.end();
    assert!(said.contains("reclaimed") || said.contains("asked of the kernel"), "{said}");
    Process::new("kill").args(["-TERM", &id]).status().unwrap();
    broker.wait().unwrap();
}

/// Of a process, of what it has started, and of a control group.
fn programs_that_run_already_have_a_budget() {
    let program = Lasting::start(&[]);
    let resident = || {
        let path = format!("/proc/{}/statm", program.id());
        let text = fs::read_to_string(path).unwrap();
        text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    assert!(resident() > 90 << 20);
    let shell = std::process::id().to_string();
    for whom in [vec!["--pid", &program.id()], vec!["--tree", "--pid", &shell]] {
        let document = common::json(
            terrace()
                .args(["attach", "--engine", "kernel", "--fast=40MiB", "--for=4s", "--json"])
                .args(&whom),
            0,
        );
        assert_eq!(document["kind"], "terrace.kernel", "{document}");
        assert_eq!(document["chooser"], "refault", "{document}");
        assert_eq!(document["settled"], true, "{document}");
        assert!(document["put_out"].as_u64().unwrap() > 1000, "{document}");
    }
    let Some(group) = Some(Path::new("/sys/fs/cgroup/memory")).filter(|path| path.exists()) else {
        return;
    };
    let group = group.join("terrace-bench-attached");
    fs::create_dir(&group).unwrap();
    fs::write(group.join("cgroup.procs"), program.id()).unwrap();
    let document = common::json(
        terrace()
            .args(["attach", "--engine", "kernel", "--fast=40MiB", "--for=1s", "--json"])
            .arg("--cgroup")
            .arg(&group),
        0,
    );
    assert!(document["lacks"].to_string().contains("of a group of version 1"), "{document}");
    drop(program);
    fs::remove_dir(&group).unwrap();
}

/// The program goes on without its Terrace, and `clean` leaves what it needs.
fn killed_runs_are_undone_by_clean(program: &str, before: &(String, Vec<PathBuf>)) {
    let bin = snapbox::cmd::cargo_bin!("terrace");
    let script = format!("{program}; sleep 30; :");
    let mut run = Process::new(bin)
        .args(["run", "--quiet", "--engine", "kernel", "--fast", "40MiB", "--", "sh", "-c"])
        .arg(&script)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut byte = [0u8];
    std::io::Read::read_exact(run.stdout.as_mut().unwrap(), &mut byte).unwrap();
    run.kill().unwrap();
    run.wait().unwrap();

    let kept = common::json(terrace().args(["clean", "--json"]), 0);
    assert!(kept["kept"].to_string().contains("processes run in it"), "{kept}");
    assert_ne!(left().1, before.1);

    for process in members(&left().1, &before.1) {
        let _ = Process::new("kill").args(["-9", &process]).status().unwrap();
    }
    let limit = Duration::from_secs(30);
    await_that(limit, "the group is empty", || members(&left().1, &before.1).is_empty());
    common::json(terrace().args(["clean", "--json"]), 0);
    assert_eq!(left(), *before);
    terrace().arg("clean").assert().code(0).stdout_eq("nothing was left behind\n");
}

/// The processes of the groups that came.
fn members(all: &[PathBuf], before: &[PathBuf]) -> Vec<String> {
    let new = all.iter().filter(|group| !before.contains(group));
    let text = new.filter_map(|group| fs::read_to_string(group.join("cgroup.procs")).ok());
    text.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn what_this_engine_cannot_do_is_refused_by_name() {
    for (words, said) in [
        ("--fast 1KiB -- true", "--fast: the budget must be at least"),
        (
            "--fast 1GiB --sampler damon -- true",
            "--sampler: has no effect with --engine kernel and no",
        ),
        ("--fast 1GiB --best-effort -- true", "--best-effort: has no effect with --engine kernel"),
        ("--join no-such-run -- true", "no program `no-such-run` runs"),
        ("--fast 1GiB -- no-such-program", "not found in PATH"),
    ] {
        let error = refused(terrace().args(["run", "--engine", "kernel"]).args(words.split(' ')));
        assert!(error.contains(said), "{words}: {error}");
    }
}
