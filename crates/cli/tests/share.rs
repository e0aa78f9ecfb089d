//! One budget for several processes: `run`, `run --join`, `broker`, `set`.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use common::{
    Group, await_that, binary, compile, has_program, is_root, is_supported, preload, refused,
    terrace,
};
use serde_json::Value;
use terrace_shown::is_missing;

/// Fills so many MiB, and checks pages at random for so many milliseconds.
const USER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
static long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000; }
int main(int argc, char **argv) {
    size_t pages = atol(argv[1]) * 256;
    long until = now() + atol(argv[2]);
    size_t *m = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < pages; i++) m[i * 512] = m[i * 512 + 7] = i * 77;
    unsigned long x = 88172645463325252;
    do {
        for (int k = 0; k < (argc > 3 ? 1 : 500); k++) {
            x ^= x << 13; x ^= x >> 7; x ^= x << 17;
            size_t i = x % pages;
            if (m[i * 512] != i * 77 || m[i * 512 + 7] != i * 77) { puts("WRONG"); return 1; }
        }
        if (argc > 3) nanosleep(&(struct timespec){0, 20000000}, 0);
    } while (now() < until);
    puts("right");
    return 0;
}
"#;

/// Fills so many MiB, and forks so many children, which read from the first 512 KiB of it, left long
/// ago, for so many milliseconds; if asked to, each fills so many MiB of its own before, and reads
/// from these, too.
const FAMILY: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000; }
int main(int argc, char **argv) {
    size_t pages = atol(argv[1]) * 256;
    int children = atoi(argv[2]), bad = 0, status;
    size_t *m = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < pages; i++) m[i * 512] = m[i * 512 + 7] = i * 77;
    for (int k = 0; k < children; k++) if (fork() == 0) {
        unsigned long x = 88172645463325252 + k;
        size_t own = argc > 4 ? atol(argv[4]) * 256 : 1;
        size_t *o = mmap(0, own * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t i = 0; i < own; i++) o[i * 512 + 9] = i * 99 + k;
        for (long until = now() + atol(argv[3]); now() < until; usleep(1000)) {
            x ^= x << 13; x ^= x >> 7; x ^= x << 17;
            size_t i = x % 128;
            if (m[i * 512] != i * 77 || m[i * 512 + 7] != i * 77) _exit(1);
            i = (x >> 7) % own;
            if (o[i * 512 + 9] != i * 99 + k) _exit(2);
        }
        _exit(0);
    }
    while (wait(&status) > 0) bad |= status;
    for (size_t i = 0; i < pages; i++) bad |= m[i * 512] != i * 77 || m[i * 512 + 7] != i * 77;
    puts(bad ? "WRONG" : "right");
    return bad != 0;
}
"#;

/// Fills so many MiB, and forks so many children one after the other.
const FORKER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    size_t pages = atol(argv[1]) * 256;
    int bad = 0, status;
    size_t *m = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < pages; i++) m[i * 512] = i * 77;
    for (int k = atoi(argv[2]); k > 0; k--) {
        if (fork() == 0) _exit(m[k * 512] != k * 77);
        wait(&status);
        bad |= status;
        usleep(300000);
    }
    puts(bad ? "WRONG" : "right");
    return bad != 0;
}
"#;

struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        compile(USER, &directory.path().join("user"), &["-O2"]);
        compile(FAMILY, &directory.path().join("family"), &["-O2"]);
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `terrace run` with these arguments on a shell script that calls `user`.
    fn start(&self, arguments: &[&str], report: &str, script: &str) -> Child {
        Process::new(binary())
            .env("TERRACE_PRELOAD", preload())
            .current_dir(self.directory.path())
            .args(["--json", "run", "--engine=pager", "--report", report])
            .args(arguments)
            .args(["--", "sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn report(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.path(name)).unwrap()).unwrap()
    }
}

fn output(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

const MIB: u64 = 1 << 20;

/// Shares never add up to more than the budget; a pager may go over its own by a
/// 64th for a moment, see `Pager::try_reserve_beyond`.
fn assert_kept(report: &Value, budget: u64) {
    let shared = &report["shared"];
    assert!(shared["granted_peak"].as_u64().unwrap() <= budget, "{shared}");
    let limit = budget + budget / 64;
    assert!(shared["resident_peak"].as_u64().unwrap() <= limit, "{shared}");
}

#[test]
fn processes_of_one_program_share_its_budget() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();

    let run = bench.start(&["--fast", "16MiB"], "r", "./user 24 1500 & ./user 20 1500 & wait");

    assert_eq!(output(run), "right\nright\n");
    let report = bench.report("r");
    assert_eq!(report["shared"]["processes"], 2);
    assert_kept(&report, 16 * MIB);
}

/// What children have in common with their parent is there once: they need not make room for it,
/// and pack none of it, which would take memory instead of giving any.
#[test]
fn forked_processes_keep_what_they_have_in_common() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();

    let run = bench.start(&["--fast", "32MiB"], "r", "./family 40 4 1500");

    assert_eq!(output(run), "right\n");
    let report = bench.report("r");
    assert_eq!(report["shared"]["processes"], 5);
    assert_kept(&report, 32 * MIB);
    let demotions = report["total"]["demotions"].as_u64().unwrap();
    let pages = 40 * 256;
    assert!(
        demotions < 5 * pages / 2,
        "the parent's own at the beginning and the end: {demotions}"
    );
}

/// Workers of a program that fits when it forks them: what they inherit counts once, and what
/// they add may leave.
#[test]
fn workers_forked_before_anything_is_managed_share_what_they_inherit() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();

    let run = bench.start(&["--fast", "32MiB"], "r", "./family 20 4 1500 6");

    assert_eq!(output(run), "right\n");
    let report = bench.report("r");
    assert_eq!(report["shared"]["processes"], 5);
    assert_kept(&report, 32 * MIB);
    let figure = |name: &str| report["total"][name].as_u64().unwrap();
    assert!(figure("demotions") > 0, "20 and 24 MiB do not fit: {report}");
    // Each page was tried time and again when none that was inherited could leave.
    assert!(figure("demotions_refused") < 5 * 20 * 256, "{report}");
}

/// Who is managed, has nothing absent and forks needs no room for it, however narrow its share is,
/// which of two processes is what each has mapped.
#[test]
fn what_fits_stays_when_a_managed_process_forks() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    compile(FORKER, &bench.path("forker"), &["-O2"]);

    let run = bench.start(&["--fast", "64MiB"], "r", "./user 4 2500 & ./forker 40 5; wait");

    assert_eq!(output(run), "right\nright\n");
    let report = bench.report("r");
    assert!(!report["processes"].as_array().unwrap().is_empty(), "{report}");
    assert_kept(&report, 64 * MIB);
    // 1,000 to 1,500 where room is made for what nobody can need.
    assert!(report["total"]["demotions"].as_u64().unwrap() < 768, "{report}");
}

/// They are managed, for who is not counts with all that he has mapped; but nothing leaves.
#[test]
fn workers_that_fit_with_what_they_inherit_counted_once_lose_nothing() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();

    let run = bench.start(&["--fast", "48MiB"], "r", "./family 20 4 1000 4");

    assert_eq!(output(run), "right\n");
    let report = bench.report("r");
    assert_kept(&report, 48 * MIB);
    assert!(report["total"]["demotions"].as_u64().unwrap() < 20 * 256, "{report}");
}

#[test]
fn memory_goes_to_who_needs_it_and_comes_back_from_who_ends() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    // The first hardly uses what it has; the second could use everything.
    let script = "./user 24 8300 idle & sleep 0.3; ./user 15 8000; wait; ./user 20 1000";

    let run = bench.start(&["--fast", "16MiB"], "r", script);

    assert_eq!(output(run), "right\nright\nright\n");
    let report = bench.report("r");
    assert_kept(&report, 16 * MIB);
    let mut peaks: Vec<u64> = report["processes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|process| process["command"] == "user")
        .map(|process| process["figures"]["resident_peak"].as_u64().unwrap())
        .collect();
    peaks.sort_unstable();
    assert!(peaks[0] > 9 * MIB, "the needy one has got most: {peaks:?}");
    assert!(peaks[2] > 14 * MIB, "one that is alone has everything: {peaks:?}");
}

#[test]
fn a_budget_changes_while_the_program_runs() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    let run = bench.start(&["--fast", "16MiB"], "r", "./user 12 8000");
    let pid = run.id().to_string();
    std::thread::sleep(Duration::from_secs(1));

    let smaller = terrace().args(["set", &pid, "--fast", "12KiB"]);
    assert!(refused(smaller).contains("at least 1.00 MiB"));
    let set = terrace().args(["--json", "set", &pid, "--fast", "4MiB"]).output().unwrap();

    let change: Value = serde_json::from_slice(&set.stdout).unwrap();
    assert_eq!((&change["before"], &change["after"]), (&(16 * MIB).into(), &(4 * MIB).into()));
    assert_eq!(output(run), "right\n");
    let report = bench.report("r");
    assert_eq!(report["budget"], 4 * MIB);
    assert_eq!(report["shared"]["changes"], 1);
}

#[test]
fn programs_that_join_a_broker_share_what_it_has() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    let mut broker = Process::new(binary())
        .args(["broker", "--fast", "16MiB"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = broker.id().to_string();
    // It says so when it can be joined.
    let mut line = String::new();
    let mut lines = std::io::BufReader::new(broker.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
    assert!(line.contains(&pid), "{line}");

    let one = bench.start(&["--join", &pid], "one", "./user 20 3000");
    let two = bench.start(&["--join", &pid], "two", "./user 20 3000");

    assert_eq!((output(one).as_str(), output(two).as_str()), ("right\n", "right\n"));
    assert_eq!(bench.report("one")["shared"]["processes"], 2);
    assert_kept(&bench.report("two"), 16 * MIB);
    Process::new("kill").arg(&pid).status().unwrap();
    assert!(output(broker).contains("in 2 processes at once"));
}

/// What somebody who is killed had, he cannot give back himself.
#[test]
fn a_process_that_is_killed_gives_its_share_back() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    let script = "./user 24 50000 & echo $! >one; ./user 24 50000 & echo $! >two; wait";
    let run = bench.start(&["--fast", "16MiB"], "r", script);
    await_file(&bench.path("two"));
    let mut pids = ["one", "two"].map(|name| {
        let pid = fs::read_to_string(bench.path(name)).unwrap();
        pid.trim().parse::<u64>().unwrap()
    });
    let until = |what: &str, reached: &dyn Fn() -> bool| {
        let until = Instant::now() + Duration::from_secs(30);
        while !reached() {
            assert!(Instant::now() < until, "{what} never came");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let all = || pids.map(|pid| resident(run.id(), pid));
    until("something for both", &|| all().iter().sum::<u64>() > 10 * MIB && !all().contains(&0));
    pids.sort_by_key(|&pid| resident(run.id(), pid));
    let [stays, killed] = pids;
    let before = resident(run.id(), stays);

    Process::new("kill").args(["-KILL", &killed.to_string()]).status().unwrap();

    assert!(before < 10 * MIB, "the share of the other was not half of it: {before}");
    until("the whole budget for who is left", &|| resident(run.id(), stays) > 14 * MIB);
    Process::new("kill").args(["-TERM", &stays.to_string()]).status().unwrap();
    // The shell has waited for both.
    assert_eq!(output(run), "");
    assert_kept(&bench.report("r"), 16 * MIB);
}

/// What a process of a run has resident; zero if it is not there.
fn resident(run: u32, process: u64) -> u64 {
    let top = ["top", &run.to_string(), "--json", "--interval", "100ms"];
    let seen = common::json(terrace().args(top), 0);
    let mut processes = seen["runs"][0]["processes"].as_array().unwrap().iter();
    let this = processes.find(|p| p["pid"] == process);
    this.map_or(0, |p| p["figures"]["resident"].as_u64().unwrap())
}

/// Sends a broker's socket a request, and prints the answer, or why there is none.
const ASK: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    strncpy(to.sun_path, argv[argc - 1], sizeof to.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(fd, (void *)&to, sizeof to)) { printf("%s\n", strerror(errno)); return 0; }
    char text[256];
    ssize_t n = write(fd, "budget 1048576\n", 15);
    n = read(fd, text, sizeof text);
    return n <= 0 || fwrite(text, 1, n, stdout) != (size_t)n;
}
"#;

/// Somebody who could change the budget could slow down any program. Neither our own command
/// nor the bare socket lets another user do that, even if the directory were open to him.
#[test]
fn nobody_but_the_owner_and_root_talks_to_a_broker() {
    if !has_program("/usr/bin/setpriv") || !is_root() {
        is_missing("setpriv, or root,");
        return;
    }
    let bench = Bench::new();
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    // Short, for a socket's address, and not closed by where it lies.
    open(bench.directory.path(), 0o755);
    let (runtime, ask) = (bench.path("rt"), bench.path("ask"));
    fs::create_dir(&runtime).unwrap();
    open(&runtime, 0o755);
    compile(ASK, &ask, &["-O1"]);
    // A copy, because the build directory may be closed to others.
    fs::copy(binary(), bench.path("terrace")).unwrap();
    let broker = Process::new(binary())
        .env("XDG_RUNTIME_DIR", &runtime)
        .args(["--json", "broker", "--fast", "16MiB"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let directory = await_directory(&runtime);
    let socket = directory.join("broker.sock");
    let said = |user: &str, program: &Path, arguments: &[&str]| {
        let output = Process::new("setpriv")
            .args(["--reuid", user, "--regid", user, "--clear-groups"])
            .arg(program)
            .args(arguments)
            .env("XDG_RUNTIME_DIR", &runtime)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let pid = broker.id().to_string();
    let set = || said("65534", &bench.path("terrace"), &["set", &pid, "--fast", "1MiB"]);
    let bare = |user| said(user, &ask, &[socket.to_str().unwrap()]);

    let (closed_set, closed_bare) = (set(), bare("65534"));
    open(&directory, 0o777);
    open(&socket, 0o777);
    let (open_set, open_bare) = (set(), bare("65534"));
    let roots = bare("0");

    Process::new("kill").arg(&pid).status().unwrap();
    let ended = broker.wait_with_output().unwrap();
    let divided: Value = serde_json::from_slice(&ended.stdout).unwrap();
    for (code, text) in [closed_set, open_set] {
        assert_eq!(code, Some(2), "{text}");
        assert!(text.starts_with("terrace: ") && !text.contains("instead of"), "{text}");
    }
    assert_eq!(closed_bare.1, "Permission denied\n");
    assert_eq!(open_bare.1, "error this broker belongs to somebody else\n");
    // The request was a good one, and the only one that was heard.
    assert_eq!(roots.1, format!("was {}\n", 16 * MIB));
    assert_eq!(divided["changes"], 1, "{divided}");
}

/// Waits for the one run in a directory for runs.
fn await_directory(runtime: &Path) -> PathBuf {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let runs = fs::read_dir(runtime).unwrap().flatten().map(|entry| entry.path());
        let mut complete = runs.filter(|path| path.join("run.json").exists());
        // It is renamed when it is complete.
        let named =
            |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("terrace-");
        if let Some(run) = complete.find(named) {
            return run;
        }
        assert!(Instant::now() < until, "the broker never came");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_broker_that_is_killed_leaves_the_programs_running() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    // A process that begins after the broker's end, too; and one that is forked.
    let script = "./user 20 4000 >a & echo >begun; until [ -e killed ]; do sleep 0.05; done; \
                  ./user 20 200 >b; wait; echo done >c";
    let mut run = bench.start(&["--fast", "8MiB"], "r", script);
    await_file(&bench.path("begun"));
    std::thread::sleep(Duration::from_millis(500));

    run.kill().unwrap();
    run.wait().unwrap();
    fs::write(bench.path("killed"), "").unwrap();

    await_file(&bench.path("c"));
    for name in ["a", "b"] {
        assert_eq!(fs::read_to_string(bench.path(name)).unwrap(), "right\n");
    }
}

/// The nearest group with a broker counts, and none counts outside.
#[test]
fn programs_of_a_control_group_find_its_broker_by_themselves() {
    let outside = refused(terrace().args(["run", "--join", "cgroup", "--", "true"]));
    assert!(outside.contains("no control group around this process"), "{outside}");
    let none = refused(terrace().args(["broker", "--fast", "8MiB", "--cgroup", "no-such-group"]));
    assert_eq!(none, "--cgroup: `no-such-group` is no control group");
    if !is_supported() {
        return;
    }
    let Some(group) = Group::new() else {
        is_missing("a control group");
        return;
    };
    let bench = Bench::new();
    let mut broker = Process::new(binary())
        .args(["--json", "broker", "--fast", "8MiB", "--cgroup"])
        .arg(&group.0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    await_broker(broker.id());

    let script = format!(
        "echo $$ >{}/cgroup.procs && exec \"$0\" run -q --join cgroup -- ./user 16 300",
        group.0.join("below").display()
    );
    let member = Process::new("sh")
        .args(["-c", &script])
        .arg(binary())
        .env("TERRACE_PRELOAD", preload())
        .current_dir(bench.directory.path())
        .output()
        .unwrap();

    let sent = Process::new("kill").args(["-TERM", &broker.id().to_string()]).status().unwrap();
    assert!(sent.success() && broker.wait().unwrap().success());
    assert_eq!(String::from_utf8_lossy(&member.stdout), "right\n", "{member:?}");
    let mut divided = String::new();
    std::io::Read::read_to_string(&mut broker.stdout.take().unwrap(), &mut divided).unwrap();
    let divided: Value = serde_json::from_str(&divided).unwrap();
    assert_eq!(divided["processes"], 1, "{divided}");
    let granted = divided["granted_peak"].as_u64().unwrap();
    assert!(granted > 0 && granted <= 8 * MIB, "{divided}");
}

/// Waits until a broker can be joined.
fn await_broker(pid: u32) {
    await_that(Duration::from_secs(20), "the broker", || {
        terrace().args(["top", &pid.to_string()]).output().unwrap().status.success()
    });
}

fn await_file(path: &Path) {
    await_that(Duration::from_secs(20), &path.display().to_string(), || {
        fs::read_to_string(path).is_ok_and(|text| !text.is_empty())
    });
}

#[test]
fn what_is_not_there_can_neither_be_joined_nor_changed() {
    let join = terrace().args(["run", "--join", "no-such-run", "--", "true"]);
    let message = refused(join);
    assert!(message.starts_with("--join: no program `no-such-run` runs"), "{message}");
    assert!(message.contains("`terrace top`"), "{message}");
    let join = |name: &str| refused(terrace().args(["run", "--join", name, "--", "true"]));
    assert!(join("1").starts_with("--join: no process `1` runs"));
    assert_eq!(join(""), "--join: the name is empty");
    let itself = "exec \"$0\" run --join $$ -- true";
    let itself = Process::new("sh").args(["-c", itself]).arg(binary()).output().unwrap();
    assert_eq!(itself.status.code(), Some(2), "{itself:?}");
    let message = String::from_utf8(itself.stderr).unwrap();
    assert!(message.starts_with("terrace: --join: "), "{message}");
    assert!(message.ends_with(" is this command itself\n"), "{message}");
    let set = terrace().args(["set", "1", "--fast", "1GiB"]);
    let message = refused(set);
    assert!(message.starts_with("PID|NAME: no process `1` runs"), "{message}");
    let both = terrace().args(["run", "--join", "x", "--fast", "1MiB", "--", "true"]);
    assert!(refused(both).contains("--fast"));
}
