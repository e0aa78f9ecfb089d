//! `terrace run --engine kernel`: what the pager refuses runs, too, and nothing is left behind.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Output, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use common::{
    await_that, binary, compile, costs_of_this_machine, has_kernel_engine, is_root, is_supported,
    preload, refused, terrace,
};
use serde_json::Value;
use terrace_kernel::setup::directory_of_records;

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

/// The runs that this test has begun, by their processes, and the devices that were made for them.
/// Other runs of the machine begin and end meanwhile.
static BEGUN: Mutex<(BTreeSet<u32>, BTreeSet<u64>)> =
    Mutex::new((BTreeSet::new(), BTreeSet::new()));

/// The command under test, without the settings of whoever runs the tests.
fn command(words: &[&str]) -> Process {
    let mut command = Process::new(binary());
    for setting in ["TERRACE_ROOT", "LD_PRELOAD", "TERRACE_PRELOAD"] {
        command.env_remove(setting);
    }
    command.args(words).stdin(Stdio::null());
    command
}

/// Remembers a run, and the devices that it needs now: what it leaves behind is looked for.
fn has_begun(run: u32) {
    let devices = records().into_iter().filter(|(process, _)| *process == run);
    let mut begun = BEGUN.lock().unwrap();
    begun.1.extend(devices.flat_map(|(_, devices)| devices));
    begun.0.insert(run);
}

/// Runs a command that must end with this status; what it printed, and its document: what it wrote to
/// the report's file, where there is one.
fn ended(mut command: Process, code: i32, report: Option<&Path>) -> (Output, Value) {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let run = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let document: Value = match report {
        Some(report) => serde_json::from_slice(&fs::read(report).unwrap()).unwrap(),
        None => serde_json::from_slice(&output.stdout).unwrap(),
    };
    has_begun(run);
    if document["swap"]["own"] == true {
        let devices = document["swap"]["devices"].as_array().unwrap();
        BEGUN.lock().unwrap().1.extend(devices.iter().filter_map(Value::as_u64));
    }
    (output, document)
}

/// What is written down of runs: the process of each, and the devices of Terrace's that it needs.
fn records() -> Vec<(u32, Vec<u64>)> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.as_deref().filter(|path| path.is_absolute());
    let directory = directory_of_records(rustix::process::geteuid().as_raw(), runtime);
    let record = |entry: fs::DirEntry| {
        let path = entry.path();
        let is_run = entry.file_name().to_string_lossy().starts_with("run-");
        if !is_run || path.extension().is_none_or(|extension| extension != "json") {
            return None;
        }
        // It may be gone by now.
        let record: Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
        let devices = record["devices"].as_array()?.iter().filter_map(Value::as_u64).collect();
        Some((record["owner"]["process"].as_u64()? as u32, devices))
    };
    fs::read_dir(directory).into_iter().flatten().flatten().filter_map(record).collect()
}

/// The control groups of a run.
fn groups(run: u32) -> Vec<PathBuf> {
    fn below(directory: &Path, name: &str, found: &mut Vec<PathBuf>, depth: u32) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy() == name {
                found.push(entry.path());
            } else if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                below(&entry.path(), name, found, depth - 1);
            }
        }
    }
    let mut groups = Vec::new();
    below(Path::new("/sys/fs/cgroup"), &format!("terrace-{run}"), &mut groups, 4);
    groups
}

/// What is left of the runs that this test has begun: control groups, devices that no other run needs,
/// and what is written down of them.
fn left() -> Vec<String> {
    let (runs, devices) = BEGUN.lock().unwrap().clone();
    let groups = runs.iter().flat_map(|run| groups(*run));
    let mut left: Vec<_> = groups.map(|group| group.display().to_string()).collect();
    let areas = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let records = records();
    let of_others = records.iter().filter(|(process, _)| !runs.contains(process));
    // One that came second may swap to it as well, or it has a number that was free again.
    let needed: BTreeSet<u64> = of_others.flat_map(|(_, devices)| devices).copied().collect();
    for device in devices.difference(&needed) {
        let area = format!("/dev/zram{device}");
        if areas.lines().any(|line| line.split_whitespace().next() == Some(area.as_str())) {
            left.push(area);
        }
    }
    let ours = records.iter().filter(|(process, _)| runs.contains(process));
    left.extend(ours.map(|(process, _)| format!("the record of run {process}")));
    left
}

/// Undoes what nobody needs; what was undone and what was kept. Others' leftovers are no fault.
fn clean() -> Value {
    let output = command(&["clean", "--json"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a command line with a budget of 40 MiB; its report, and what it printed.
fn run(words: &[&str], code: i32) -> (Value, String) {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report");
    let mut command = command(&["run", "--json", "--engine", "kernel", "--fast", "40MiB"]);
    command.arg("--report").arg(&report).arg("--").args(words);
    let (output, document) = ended(command, code, Some(&report));
    (document, String::from_utf8(output.stdout).unwrap())
}

/// One test, because each part begins with what the one before has left: nothing.
#[test]
fn programs_that_the_pager_refuses_run_and_nothing_is_left_behind() {
    use std::os::unix::fs::PermissionsExt;
    if !has_kernel_engine() {
        return;
    }
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
    assert!(report["costs"].is_null(), "the kernel's lists have no prices: {report}");

    // Left to Terrace, the kernel serves what the pager cannot; which is said.
    let out = directory.path().join("auto");
    let mut auto = command(&["run", "--json", "--fast", "40MiB", "--report"]);
    auto.arg(&out).args(["--", path]);
    let (output, report) = ended(auto, 7, Some(&out));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--engine kernel: the pager cannot serve it"), "{said}");
    assert_eq!(report["kind"], "terrace.kernel");
    // With what only the pager has, it is refused as before.
    let error = refused(terrace().args(["run", "--fast=40MiB", "--huge-pages=always", path]));
    assert!(error.contains("is statically linked") || error.contains("is setuid"), "{error}");

    // The same from a ladder file, which names the engine.
    let ladder = directory.path().join("ladder.toml");
    let text = include_str!("../../../ladders/kernel.toml");
    fs::write(&ladder, text.replace("4GiB", "40MiB")).unwrap();
    let out = directory.path().join("by-ladder");
    let mut by_ladder = command(&["run", "--json", "--tiers"]);
    by_ladder.arg(&ladder).arg("--report").arg(&out).args(["--", path]);
    let (_, report) = ended(by_ladder, 7, Some(&out));
    assert_eq!(
        (&report["kind"], &report["budget"]),
        (&"terrace.kernel".into(), &(40 << 20).into())
    );
    let error =
        refused(terrace().args(["run", "--min-region=1MiB", "--tiers"]).arg(&ladder).arg("true"));
    assert!(error.contains("--min-region: has no effect with --engine kernel"), "{error}");

    // A pipeline, whose parts share the budget; and a policy, which decides by what was measured here.
    costs_of_this_machine(directory.path());
    let record = directory.path().join("decisions");
    let line = format!("{path} | cat; {path} x | cat");
    let words = ["--policy", "refault", "--", "sh", "-c", &line];
    let out = directory.path().join("policy");
    let mut policy = command(&["run", "--json", "--engine", "kernel", "--fast", "40MiB"]);
    policy.env("XDG_STATE_HOME", directory.path());
    policy.arg("--report").arg(&out).arg("--record").arg(&record).args(words);
    let (output, report) = ended(policy, 0, Some(&out));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed, "1 root\n2 root\n");
    assert_eq!(report["chooser"], "refault");
    assert!(report["put_out"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["costs"]["prices"], "measured", "{report}");
    let header = fs::read(&record).unwrap();
    let header = header.split(|&byte| byte == b'\n').next().unwrap();
    let header: Value = serde_json::from_slice(header).unwrap();
    let calibration = &header["live"]["calibration"];
    assert_eq!(calibration["copy-bandwidth"].as_f64(), Some(7.25e9), "{header}");
    assert!(calibration["parameters"]["hold-out"].as_u64() > Some(0), "{header}");

    going_ahead_of_walks_is_explained(path);
    what_the_kernel_has_for_threads_is_beside_the_budget();
    nothing_is_left();
    clean();
    what_is_shown_and_recorded();
    a_budget_is_changed_and_shared();
    a_broker_divides_its_budget_with_a_run_of_this_engine();
    a_total_that_is_exceeded_is_told_meanwhile_and_in_the_end();
    programs_that_run_already_have_a_budget();
    a_program_that_leaves_the_control_group_is_told();
    nothing_is_left();
    killed_runs_are_undone_by_clean(path);
}

/// No policy has proposed it, and there is none. Whether it pays is a question of how busy the machine is.
fn going_ahead_of_walks_is_explained(program: &str) {
    let directory = tempfile::tempdir().unwrap();
    let (record, out) = (directory.path().join("record"), directory.path().join("report"));
    let mut run = command(&["run", "--json", "--engine", "kernel", "--fast", "40MiB"]);
    run.arg("--record").arg(&record).arg("--report").arg(&out).args(["--", program]);
    let (_, report) = ended(run, 7, Some(&out));
    if report["lacks"].to_string().contains("walks are not gone ahead") {
        return terrace_shown::is_missing("what going ahead of walks takes");
    }
    // Before anything is known they are.
    assert!(report["ahead"].as_u64().unwrap() > 0, "{report}");
    let why = terrace().args(["why", "--class", "prefetch"]).arg(&record).output().unwrap();
    let why = String::from_utf8(why.stdout).unwrap();
    let parts = ["prefetch ", "from swap (WalksUsedMemory)", "+ avoided fault", " come at once"];
    for part in parts {
        assert!(why.contains(part), "{part}: {why}\n{report:#}");
    }
    let report = common::json(terrace().args(["report", "--json"]).arg(&record), 0);
    let accounts = report["accounts"].as_array().unwrap();
    let account = accounts.iter().find(|account| account["class"] == "prefetch");
    let proposed = account.and_then(|account| account["proposed"].as_u64());
    assert!(proposed.is_some_and(|proposed| proposed > 0), "{report:#}");
}

/// 1200 threads with 128 KiB each, all of them at once.
const THREADS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
enum { THREADS = 1200, LEN = 128 << 10 };
static pthread_barrier_t all;
static void *work(void *number) {
    long seed = (long)number;
    volatile long words[LEN / sizeof(long)];
    for (unsigned i = 0; i < LEN / sizeof(long); i++) words[i] = seed * 31 + i;
    pthread_barrier_wait(&all);
    long wrong = 0;
    for (unsigned i = 0; i < LEN / sizeof(long); i++) wrong += words[i] != (long)(seed * 31 + i);
    return (void *)wrong;
}
int main(void) {
    static pthread_t threads[THREADS];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, LEN + (64 << 10));
    pthread_barrier_init(&all, NULL, THREADS + 1);
    for (long i = 0; i < THREADS; i++) {
        int error = pthread_create(&threads[i], &attributes, work, (void *)i);
        if (error) { fprintf(stderr, "%s\n", strerror(error)); return 3; }
    }
    pthread_barrier_wait(&all);
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        if (pthread_join(threads[i], &wrong) || wrong) return 4;
    }
    return 7;
}
"#;

/// It is more than such a budget, and cannot be put out: at a limit that had no room for it the program
/// died by SIGSEGV.
fn what_the_kernel_has_for_threads_is_beside_the_budget() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("threads");
    compile(THREADS, &program, &["-O1", "-pthread"]);
    let out = directory.path().join("report");
    let mut run = command(&["run", "--json", "--engine", "kernel", "--fast", "24MiB", "--report"]);
    run.arg(&out).arg("--").arg(&program);
    let (_, report) = ended(run, 7, Some(&out));
    assert!(report["kernel_beside_peak"].as_u64().unwrap() > 4 << 20, "{report}");
}

/// Waits until it is so: who outlives a run undoes what that has made a moment later.
fn nothing_is_left() {
    await_that(Duration::from_mins(1), "nothing that is left", || {
        let left = left();
        if !left.is_empty() {
            eprintln!("left: {left:?}");
        }
        left.is_empty()
    });
}

/// A program that touches 96 MiB again and again until it is killed. It takes 64 MiB more as soon as there is a
/// file `more`.
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
    char *more = 0;
    for (unsigned long at = 1;; at = at * 6364136223846793005ul + 1442695040888963407ul) {
        memory[(at >> 33) % used]++;
        if (at % 64) continue;
        usleep(100);
        if (!more && !access("more", F_OK) && (more = malloc(64 << 20)))
            for (long i = 0; i < 64 << 20; i += 4096) more[i] = 1;
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
        let bin = binary();
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
        has_begun(lasting.child.id());
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
    assert!(shown["demotions"].as_u64().unwrap() > 0, "{shown}");
    assert!(shown["moved_by_others"].is_null(), "{shown}");
    assert!(!shown["regions"].as_array().unwrap().is_empty(), "{shown}");
    let metrics = terrace().args(["metrics", "--once", &id]).output().unwrap();
    let metrics = String::from_utf8(metrics.stdout).unwrap();
    for series in [
        "terrace_kernel_faults_total{",
        "terrace_kernel_budget_kept{",
        "terrace_budget_bytes{",
        "terrace_budget_exceeded_peak_bytes{",
        "terrace_run_resident_bytes{",
    ] {
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
    for unseen in ["hits", "ping_pongs"] {
        assert!(replay["lines"][0][unseen].is_null(), "{unseen} is not recorded: {replay}");
    }
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
    // What chooses and is shown is the first one's.
    for option in ["--policy=2q", "--economist=off", "--record=record", "--watch"] {
        let words = ["run", "--engine", "kernel", "--join", &first.id(), option, "--", "true"];
        let error = refused(terrace().args(words));
        let name = option.split('=').next().unwrap();
        let expected = format!("{name}: has no effect with --engine kernel and --join");
        assert!(error.starts_with(&expected), "{error}");
    }
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
    let mut broker = Process::new(binary())
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

/// Half of its memory does not compress, and has to be somewhere.
fn a_total_that_is_exceeded_is_told_meanwhile_and_in_the_end() {
    let mut run = Lasting::start(&["run", "--engine", "kernel", "--total=16MiB"]);
    let id = run.id();
    let look = || {
        let top = common::json(terrace().args(["top", "--json", "--interval=300ms", &id]), 0);
        top["attached"][0].clone()
    };
    let mut seen = Value::Null;
    await_that(Duration::from_mins(1), "the run is shown", || {
        seen = look();
        seen["kernel"]["swap"]["kind"].is_string()
    });
    if seen["kernel"]["swap"]["kind"] == "disk" {
        return terrace_shown::is_missing("swap that is compressed memory");
    }
    await_that(Duration::from_mins(1), "more than the total is shown", || {
        seen = look();
        seen["kernel"]["run_level"]["exceeded"].as_u64() > Some(8 << 20)
    });
    assert_eq!(seen["kernel"]["budget_kept"], false, "{seen}");
    let told = format!("are resident in a budget of 16.0 MiB; `terrace set {id} --fast ");
    assert!(seen["advice"].to_string().contains(&told), "{seen}");
    let stderr = run.directory.path().join("stderr");
    await_that(Duration::from_mins(1), "a warning", || {
        fs::read_to_string(&stderr).unwrap().contains(&told)
    });
    let said = run.end();
    assert!(said.contains("16.0 MiB with the store, exceeded by "), "{said}");
}

/// Nothing bounds what it takes there, and its budget was told as held.
fn a_program_that_leaves_the_control_group_is_told() {
    let mut run = Lasting::start(&["run", "--engine", "kernel", "--fast=40MiB"]);
    let id = run.id();
    let counts = |group: &PathBuf| {
        let files = ["memory.current", "memory.usage_in_bytes"];
        files.iter().any(|file| group.join(file).exists())
    };
    let Some(group) = groups(run.child.id()).into_iter().find(counts) else {
        return terrace_shown::is_missing("a control group of the run's own");
    };
    let above = group.parent().unwrap().join("cgroup.procs");
    let members = fs::read_to_string(group.join("cgroup.procs")).unwrap();
    for process in members.lines() {
        // Under version 2 a group that hands controllers down takes no processes.
        if fs::write(&above, process).is_err() {
            return terrace_shown::is_missing("a control group above that takes processes");
        }
    }
    fs::write(run.directory.path().join("more"), "").unwrap();
    let mut kernel = Value::Null;
    await_that(Duration::from_mins(1), "what the program has outside", || {
        let top = common::json(terrace().args(["top", "--json", "--interval=300ms", &id]), 0);
        kernel = top["attached"][0]["kernel"].clone();
        kernel["outside"]["peak"].as_u64() > Some(48 << 20)
    });
    assert_eq!(kernel["outside"]["causes"][0]["cause"], "left-group", "{kernel}");
    assert_eq!((&kernel["left_group"], &kernel["budget_kept"]), (&1.into(), &false.into()));
    let metrics = terrace().args(["metrics", "--once", &id]).output().unwrap();
    let metrics = String::from_utf8(metrics.stdout).unwrap();
    assert!(metrics.contains("cause=\"left-group\""), "{metrics}");
    let said = run.end();
    assert!(said.contains("processes that have left the control group, "), "{said}");
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
        let words = ["attach", "--engine", "kernel", "--fast=40MiB", "--for=4s", "--json"];
        let mut attach = command(&words);
        attach.args(&whom);
        let (_, document) = ended(attach, 0, None);
        assert_eq!(document["kind"], "terrace.kernel", "{document}");
        assert_eq!(document["chooser"], "refault", "{document}");
        assert_eq!(document["settled"], true, "{document}");
        assert!(document["put_out"].as_u64().unwrap() > 1000, "{document}");
    }
    let Some(group) = Some(Path::new("/sys/fs/cgroup/memory")).filter(|path| path.exists()) else {
        return;
    };
    let group = group.join(format!("terrace-bench-attached-{}", std::process::id()));
    fs::create_dir(&group).unwrap();
    fs::write(group.join("cgroup.procs"), program.id()).unwrap();
    let words = ["attach", "--engine", "kernel", "--fast=40MiB", "--for=1s", "--json"];
    let mut attach = command(&words);
    attach.arg("--cgroup").arg(&group);
    let (_, document) = ended(attach, 0, None);
    assert!(document["lacks"].to_string().contains("of a group of version 1"), "{document}");
    drop(program);
    fs::remove_dir(&group).unwrap();
}

/// The program goes on without its Terrace, and `clean` leaves what it needs.
fn killed_runs_are_undone_by_clean(program: &str) {
    let script = format!("{program}; sleep 30; :");
    let words =
        ["run", "--quiet", "--engine", "kernel", "--fast", "40MiB", "--", "sh", "-c", &script];
    let mut run = command(&words).stdout(Stdio::piped()).spawn().unwrap();
    let mut byte = [0u8];
    std::io::Read::read_exact(run.stdout.as_mut().unwrap(), &mut byte).unwrap();
    let id = run.id();
    has_begun(id);
    run.kill().unwrap();
    run.wait().unwrap();

    let name = format!("terrace-{id}");
    let cleaned = clean();
    let kept = cleaned["kept"].as_array().unwrap();
    let ours = kept.iter().find(|kept| kept["what"].to_string().contains(&name));
    let why = ours.map_or(String::new(), |ours| ours["why"].to_string());
    assert!(why.contains("processes run in it"), "{cleaned}");
    assert!(!groups(id).is_empty());

    for process in members(id) {
        let _ = Process::new("kill").args(["-9", &process]).status().unwrap();
    }
    await_that(Duration::from_secs(30), "the group is empty", || members(id).is_empty());
    clean();
    // Whoever was to do it by itself may be at it.
    nothing_is_left();
    let output = command(&["clean"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let is_clean = said == "nothing was left behind\n";
    // Of other runs there may be something to say.
    assert!(is_clean || !said.is_empty() && !said.contains(&name), "{said}");
}

/// The processes of a run.
fn members(run: u32) -> Vec<String> {
    let groups = groups(run);
    let text =
        groups.iter().filter_map(|group| fs::read_to_string(group.join("cgroup.procs")).ok());
    text.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Shows a command a machine on which `auto` is the kernel's engine: zswap is on in front of much swap.
/// What a run of this engine makes cannot be written down there, so nothing is made.
const CANNOT_BE_SET_UP: &str = "
    {
        mkdir -p -m 700 /run/terrace.kernel &&
        mount -t tmpfs none /sys/module &&
        mkdir -p /sys/module/zswap/parameters &&
        echo Y >/sys/module/zswap/parameters/enabled &&
        mount --bind swaps /proc/swaps &&
        mount -t tmpfs -o ro,mode=700 none /run/terrace.kernel
    } || exit 99
    exec \"$0\" \"$@\"
";

/// The guest's test `engine_auto` shows the same where no group can be made.
#[test]
fn auto_is_the_pager_where_the_kernel_s_engine_cannot_be_set_up() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let swaps = "Filename Type Size Used Priority\n/dev/none partition 4294967296 0 -2\n";
    fs::write(directory.path().join("swaps"), swaps).unwrap();
    let there = |words: &[&str]| {
        let mut command = Process::new("unshare");
        for setting in ["TERRACE_ROOT", "LD_PRELOAD"] {
            command.env_remove(setting);
        }
        command.args(["--mount", "/bin/sh", "-c", CANNOT_BE_SET_UP]);
        command.arg(binary()).args(words);
        command.env("TERRACE_PRELOAD", preload()).current_dir(directory.path());
        command.stdin(Stdio::null()).output().unwrap()
    };
    let auto = is_root().then(|| there(&["doctor", "--json"]));
    let auto = auto.and_then(|doctor| serde_json::from_slice::<Value>(&doctor.stdout).ok());
    let auto = auto.map_or(Value::Null, |doctor| doctor["auto"].clone());
    if auto["engine"] != "kernel" {
        // A group around this process may bound swap, too.
        eprintln!(
            "SKIPPED: no machine can be shown on which `auto` is the kernel's engine: {auto}"
        );
        return;
    }
    let sh = ["--", "sh", "-c", "exit 7"];
    let why = "the kernel's could not be set up: /run/terrace.kernel: ";

    let run = ["run", "--fast=16MiB", "--json", "--report=report"];
    let output = there(&[&run[..], &sh].concat());

    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let told: Vec<_> = said.lines().filter(|line| line.contains("--engine")).collect();
    assert!(told.len() == 1, "{said}");
    assert!(told[0].starts_with(&format!("terrace: --engine pager: {why}")), "{said}");
    let report = fs::read(directory.path().join("report")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["kind"], "terrace.run");
    let engine = report["engine"].as_str().unwrap_or_default();
    assert!(engine.starts_with(&format!("pager: {why}")), "{report}");
    let output = there(&[&["run", "--fast=16MiB"][..], &sh].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("  engine  pager: {why}")), "{said}");

    // Asked for, or with what only this engine has, it is that or none.
    for option in ["--engine=kernel", "--files"] {
        let output = there(&[&["run", "--fast=16MiB", option][..], &sh].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("terrace: /run/terrace.kernel: "), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
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
