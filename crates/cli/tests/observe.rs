//! What a person or a program sees of a run that is under way.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{ask, binary, compile, has_program, is_supported, preload, run};
use terrace_core::Xorshift;
use terrace_shown::is_missing;

/// Uses four times a budget of 16 MiB, most of it rarely, until its standard
/// input ends. Says when it has touched everything. Computes as well: of a program that
/// does nothing but wait, nobody can tell how long it would have taken. With `HEADLESS` its main
/// thread ends at once, and another one does all that.
const BUSY: &str = r#"
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static int work(void) {
    size_t words = (64u << 20) / sizeof(uint64_t);
    uint64_t *memory = malloc(words * sizeof *memory), x = 88172645463325252u;
    if (!memory) return 3;
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < words; i++) memory[i] += i / 64;
    puts("ready");
    fflush(stdout);
    struct pollfd input = { 0, POLLIN, 0 };
    while (poll(&input, 1, 0) == 0)
        for (int i = 0; i < 2000; i++) {
            for (int j = 0; j < 512; j++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; }
            memory[(x >> 8) % ((x >> 60) < 15 ? words / 6 : words)]++;
        }
    return 0;
}
#ifdef HEADLESS
static void *thread(void *nothing) { exit(work()); return nothing; }
int main(void) {
    pthread_t other;
    if (pthread_create(&other, NULL, thread, NULL)) return 4;
    pthread_exit(NULL);
}
#else
int main(void) { return work(); }
#endif
"#;

/// A run of [`BUSY`] in a runtime directory of its own.
struct Run {
    child: Child,
    runtime: PathBuf,
    _directory: tempfile::TempDir,
}

impl Run {
    fn start(options: &[&str]) -> Self {
        Self::start_built(&[], options)
    }

    /// The same of a program that is compiled with these options.
    fn start_built(flags: &[&str], options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let busy = directory.path().join("busy");
        compile(BUSY, &busy, &[&["-O1", "-pthread"], flags].concat());
        let runtime = directory.path().join("runtime");
        fs::create_dir(&runtime).unwrap();
        let mut child = Command::new(binary())
            .args(["run", "--engine=pager", "--quiet", "--fast", "16MiB"])
            .args(options)
            .arg("--")
            .arg(&busy)
            .env("TERRACE_PRELOAD", preload())
            .env("XDG_RUNTIME_DIR", &runtime)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, runtime, _directory: directory }
    }

    /// Another command that looks for runs where this one is.
    fn terrace(&self) -> snapbox::cmd::Command {
        common::terrace().env("XDG_RUNTIME_DIR", &self.runtime)
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Lets the program end, and waits for it.
    fn end(&mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // A test that failed must not leave its program running.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn watch_tells_the_counters_again_and_again_and_at_the_end() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("watch");
    let mut run = Run::start(&["--watch=50ms", "--watch-to", file.to_str().unwrap()]);
    std::thread::sleep(Duration::from_millis(400));
    run.end();

    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();

    assert!(lines.len() >= 4, "{} lines", lines.len());
    for line in &lines {
        assert_eq!((&line["schema"], &line["kind"]), (&1.into(), &"terrace.watch".into()));
    }
    let faults = |line: &serde_json::Value| line["total"]["promotions"].as_u64().unwrap();
    assert!(lines.windows(2).all(|w| faults(&w[0]) <= faults(&w[1])), "counters went back");
    let command = |line: &serde_json::Value| line["command_cpu"].as_u64().unwrap();
    assert!(lines.windows(2).all(|w| command(&w[0]) < command(&w[1])), "a look costs something");
    let last = lines.last().unwrap();
    assert!(faults(last) > 0 && last["total"]["waited"].as_u64().unwrap() > 0, "{last}");
    assert_eq!(last["processes"][0]["command"], "busy");
    assert_eq!(last["run_level"]["budget"], 16 << 20, "{last}");
    assert!(last["run_level"]["resident_peak"].as_u64() > Some(8 << 20), "{last}");
}

#[test]
fn the_parts_of_the_stall_time_make_up_the_whole() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report");
    let run = || {
        Run::start(&["--json", "--report", report.to_str().unwrap()]).end();
        serde_json::from_slice::<serde_json::Value>(&fs::read(&report).unwrap()).unwrap()
    };
    // Where a thread waited for a processor while it was counted, that is taken off copies and
    // wake-ups; on a busy machine it may be all of them.
    let is_measured = |report: &serde_json::Value| {
        let part = |name: &str| report["total"]["stall"][name].as_u64() > Some(0);
        part("copy") && part("wake_up")
    };
    let report =
        (0..10).map(|_| run()).find(is_measured).expect("copies and wake-ups are measured");

    let total = &report["total"];
    let waited = total["waited"].as_u64().unwrap();
    let part = |name: &str| total["stall"][name].as_u64().unwrap();
    assert!(part("decompress") > 0, "{total}");
    let parts: u64 = ["wake_up", "reclaim", "decompress", "copy", "other"].map(part).iter().sum();
    assert_eq!(parts, waited, "{total}");
    let slowdown = &report["slowdown"];
    assert_eq!(slowdown["stalled"], waited);
    assert!(slowdown["without"].as_u64() < report["elapsed"].as_u64(), "{slowdown}");
    assert!(slowdown["plain_faults"].as_u64().unwrap() > 0, "{slowdown}");
    assert!(slowdown["threads"].as_f64().unwrap() >= 1.0, "{slowdown}");
}

#[test]
fn metrics_can_be_scraped_and_are_what_the_format_asks_for() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("metrics");
    let mut run = Run::start(&["--metrics", &format!("unix:{}", socket.display())]);
    let connect = || UnixStream::connect(&socket).unwrap();

    // At first it has done nothing but wait: there is no estimate then of how much slower it is.
    let until = Instant::now() + Duration::from_secs(20);
    let (status, text) = loop {
        let (status, text) = ask(connect(), "/metrics");
        if text.contains("\nterrace_slowdown_ratio{") || Instant::now() > until {
            break (status, text);
        }
        std::thread::sleep(Duration::from_millis(50));
    };

    assert_eq!(status, "HTTP/1.1 200 OK");
    let families = openmetrics_parser::openmetrics::parse_openmetrics(&text)
        .unwrap_or_else(|e| panic!("{text}\n{e}"))
        .families;
    for name in [
        "terrace_resident_bytes",
        "terrace_promotions",
        "terrace_demotions",
        "terrace_ping_pongs",
        "terrace_stall_seconds",
        "terrace_thrashing_seconds",
        "terrace_fault_duration_seconds",
        "terrace_decisions",
        "terrace_own_cpu_seconds",
        "terrace_command_cpu_seconds",
        "terrace_slowdown_ratio",
        "terrace_slowdown_at_least_ratio",
        "terrace_run_resident_bytes",
        "terrace_run_resident_peak_bytes",
        "terrace_budget_exceeded_peak_bytes",
    ] {
        assert!(families.contains_key(name), "{name} is missing:\n{text}");
    }
    let value = |series: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(series)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(value("terrace_promotions_total{") > 0.0, "{text}");
    assert_eq!(value("terrace_budget_bytes{") as u64, 16 << 20, "{text}");
    let (now, peak) =
        (value("terrace_run_resident_bytes{"), value("terrace_run_resident_peak_bytes{"));
    assert!(now > 0.0 && now <= peak, "{text}");
    assert!(text.contains("command=\"busy\""), "{text}");
    assert_eq!(ask(connect(), "/").0, "HTTP/1.1 404 Not Found");
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "others may ask: {mode:o}");
    run.end();
    assert!(!socket.exists(), "the socket was left");
}

#[test]
fn metrics_of_all_runs_are_served_on_the_loopback_address() {
    if !is_supported() {
        return;
    }
    let mut run = Run::start(&[]);
    let mut server = Command::new(binary())
        .args(["metrics", &run.pid(), "--listen", "0"])
        .env("XDG_RUNTIME_DIR", &run.runtime)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();

    let during = ask(TcpStream::connect(&address).unwrap(), "/metrics").1;
    let pid = run.pid();
    run.end();
    let after = ask(TcpStream::connect(&address).unwrap(), "/metrics").1;
    server.kill().unwrap();
    server.wait().unwrap();

    assert!(address.starts_with("127.0.0.1:"), "{address}");
    assert!(during.contains(&format!("run=\"{pid}\"")), "{during}");
    assert!(!after.contains("run="), "a run that is over is still told of: {after}");
}

#[test]
fn somebody_who_asks_slowly_does_not_keep_others_from_asking() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("metrics");
    let _run = Run::start(&["--metrics", &format!("unix:{}", socket.display())]);
    let mut slow = UnixStream::connect(&socket).unwrap();
    slow.write_all(b"GET /met").unwrap();
    let asked = Instant::now();

    let (status, _) = ask(UnixStream::connect(&socket).unwrap(), "/metrics");

    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
}

/// Kills a run's command; what of its program is found as long as it lives, and is removed then.
fn leave_an_orphan(flags: &[&str]) {
    if !is_supported() {
        return;
    }
    let mut run = Run::start_built(flags, &[]);
    let left = |runtime: &Path| fs::read_dir(runtime).unwrap().count();
    // As long as this end of the pipe is open the program goes on. `Child::wait` would close it.
    let input = run.child.stdin.take();
    Command::new("kill").args(["-KILL", &run.pid()]).status().unwrap();
    run.child.wait().unwrap();

    // Never for a moment it is not.
    for _ in 0..5 {
        let orphan = run.terrace().args(["metrics", &run.pid(), "--once"]).output().unwrap();
        assert_eq!(orphan.status.code(), Some(0), "{orphan:?}");
        assert_eq!(left(&run.runtime), 1);
    }
    drop(input);

    let deadline = Instant::now() + Duration::from_mins(1);
    while left(&run.runtime) > 0 && Instant::now() < deadline {
        run.terrace().args(["metrics", "--once"]).output().unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(left(&run.runtime), 0, "nobody cleaned up");
}

#[test]
fn what_a_killed_run_leaves_is_found_while_its_program_lives_and_removed_then() {
    leave_an_orphan(&[]);
}

/// The process's line in `/proc` says that it has ended then.
#[test]
fn a_program_without_its_main_thread_is_found_too_when_its_run_was_killed() {
    leave_an_orphan(&["-DHEADLESS"]);
}

#[test]
fn a_run_that_is_not_there_and_an_interval_that_is_too_short_are_refused() {
    let error = common::refused(common::terrace().args(["metrics", "no-such-program", "--once"]));
    assert_eq!(error, "no program `no-such-program` runs under `terrace run` or is attached to");
    if is_supported() {
        let error = common::refused(run("16MiB").args(["--watch=1ms", "--", "true"]));
        assert_eq!(error, "--watch: at least 10.0 ms");
    }
}

#[test]
fn top_gives_json_lines_with_rates_until_the_program_ends() {
    if !is_supported() {
        return;
    }
    let run = Run::start(&[]);

    let top = run.terrace().args(["top", &run.pid(), "--watch", "--interval=200ms", "--count=2"]);
    let output = top.output().unwrap();

    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let looks: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(looks.len(), 2, "{text}");
    for look in &looks {
        assert_eq!((&look["schema"], &look["kind"]), (&1.into(), &"terrace.top".into()));
        let seen = &look["runs"][0];
        assert_eq!(seen["run"], run.child.id());
        assert!(seen["rates"]["promotions"].as_f64().unwrap() > 0.0, "{seen}");
        assert!(seen["rates"]["faults"][1]["p99"].as_u64().unwrap() > 0, "{seen}");
        assert!(seen["total"]["resident"].as_u64().unwrap() > 0, "{seen}");
        assert_eq!(
            (&seen["budget"], &seen["run_level"]["budget"]),
            (&(16 << 20).into(), &(16 << 20).into())
        );
        assert_eq!(seen["run_level"]["resident"], seen["total"]["resident"], "{seen}");
    }
}

#[test]
fn top_without_a_terminal_prints_a_report() {
    if !is_supported() {
        return;
    }
    let run = Run::start(&[]);

    let output = run.terrace().args(["top", &run.pid()]).output().unwrap();

    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("terrace: busy has run for "), "{text}");
    assert!(text.contains("  slowdown "), "{text}");
}

#[test]
fn top_on_a_terminal_draws_and_quits_with_q_and_leaves_the_terminal_as_it_was() {
    if !is_supported() {
        return;
    }
    if !has_program("/usr/bin/script") {
        is_missing("script");
        return;
    }
    let run = Run::start(&[]);
    let command = format!(
        "stty rows 40 cols 110; {} top busy --interval 100ms; echo status $?; stty -a",
        binary().display()
    );
    let mut terminal = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env("XDG_RUNTIME_DIR", &run.runtime)
        .env("TERM", "xterm-256color")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = terminal.stdout.take().unwrap();
    let mut seen = Vec::new();
    let mut part = [0; 4096];
    let shows = |seen: &[u8], what: &str| String::from_utf8_lossy(seen).contains(what);
    while !shows(&seen, "hottest") {
        let length = output.read(&mut part).unwrap();
        assert_ne!(length, 0, "ended early: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&part[..length]);
    }

    terminal.stdin.as_mut().unwrap().write_all(b"hq").unwrap();

    output.read_to_end(&mut seen).unwrap();
    terminal.wait().unwrap();
    let text = String::from_utf8_lossy(&seen);
    assert!(text.contains("status 0"), "{text}");
    // Entered and left the alternate screen; echo is on again.
    assert!(text.contains("\x1b[?1049h") && text.contains("\x1b[?1049l"), "{text}");
    assert!(text.rsplit("status 0").next().unwrap().contains(" echo "), "{text}");
}

/// A recording of a run, made once.
fn recording(directory: &Path) -> (PathBuf, PathBuf) {
    let (file, page) = (directory.join("run.terrace"), directory.join("run.html"));
    let mut run =
        Run::start(&["--record", file.to_str().unwrap(), "--report-html", page.to_str().unwrap()]);
    std::thread::sleep(Duration::from_millis(500));
    run.end();
    (file, page)
}

#[test]
fn a_recorded_run_becomes_a_page_that_needs_nothing_else() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (file, at_once) = recording(dir.path());
    let page = dir.path().join("page.html");
    let report = common::terrace().arg("report").arg(&file).arg("-o").arg(&page);
    report.assert().success();

    let facts = common::json(common::terrace().args(["report", "--json"]).arg(&file), 0);
    let text = fs::read_to_string(&page).unwrap();

    assert_eq!(text, fs::read_to_string(at_once).unwrap(), "--report-html draws another page");
    for outside in ["http:", "https:", "<script", "<link", "@import", "src="] {
        assert!(!text.contains(outside), "the page needs {outside}");
    }
    for title in ["Residency over time", "Where and when", "Fault latency", "Where the time went"] {
        assert!(text.contains(title), "no {title}");
    }
    assert_eq!(text.matches("data:image/png;base64,").count(), 2);
    assert_eq!(facts["complete"], true);
    let promotions = facts["total"]["promotions"].as_u64().unwrap();
    assert!(promotions > 0, "{facts}");
    // The numbers are there as text.
    let digits: String = text.replace('\u{202f}', "");
    assert!(digits.contains(&format!("<b>{promotions}</b>")), "{promotions} is not in the page");
}

#[test]
fn a_recording_that_is_cut_off_or_damaged_says_what_can_be_read() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = recording(dir.path());
    let bytes = fs::read(&file).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let cut = write("cut", &bytes[..bytes.len() - 100]);
    let mut changed = bytes.clone();
    let end = changed.len() - 200;
    changed[end] ^= 0x55;
    let damaged = write("damaged", &changed);

    for (path, what) in [(&cut, "the recording is cut off"), (&damaged, "the recording is damaged")]
    {
        let error = common::refused(common::terrace().arg("report").arg(path));
        assert!(error.contains(what) && error.contains(" records"), "{error}");
        let partial = common::terrace().args(["report", "--partial"]).arg(path).output().unwrap();
        let page = String::from_utf8(partial.stdout).unwrap();
        assert!(page.contains(what) && page.contains("Fault latency"), "{what}: {page}");
    }
}

#[test]
fn why_explains_a_page_of_a_running_program() {
    if !is_supported() {
        return;
    }
    let run = Run::start(&[]);
    let top =
        common::json(run.terrace().args(["top", &run.pid(), "--json", "--interval=200ms"]), 0);
    let region = &top["runs"][0]["processes"][0]["regions"][0];
    // In the part that is used all the time.
    let address = region["start"].as_u64().unwrap() + (5 << 20);
    let hex = format!("{address:#x}");

    // A page that is not moved while somebody looks has no decisions.
    let why = run.terrace().args(["why", &hex, "--of", &run.pid(), "--for=1s", "--json"]);
    let answer = common::json(why, 0);
    // By its number: programs of other tests may manage the same address.
    let text = run.terrace().args(["why", &hex, "--of", &run.pid(), "--for=100ms"]);
    let text = text.output().unwrap();
    let nowhere = common::refused(run.terrace().args(["why", "0x1000", "--of", "busy"]));

    assert_eq!(answer["kind"], "terrace.why-page");
    assert_eq!(answer["address"], address);
    assert_eq!(answer["page"], 5 << 8);
    assert_eq!(answer["region"]["page_size"], 4096);
    assert!(["dram", "elsewhere"].contains(&answer["where"].as_str().unwrap()), "{answer}");
    for found in answer["decisions"].as_array().unwrap() {
        assert_eq!(found["address"], address, "about another page: {found}");
    }
    let begin = format!("{hex} is page 0:1280 of process ");
    assert!(text.stdout.starts_with(begin.as_bytes()), "{text:?}");
    assert_eq!(nowhere, "0x1000 is not managed in any running program");
}

#[test]
fn why_knows_the_whole_history_of_a_page_where_the_run_is_recorded() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.terrace");
    let run = Run::start(&["--record", file.to_str().unwrap()]);
    // What is recorded can be read a second later.
    std::thread::sleep(Duration::from_millis(2500));
    let why = common::json(
        common::terrace()
            .args(["why", "--json", "--partial", "--class=demote", "--last=1"])
            .arg(&file),
        0,
    );
    let address = why["decisions"][0]["address"].as_u64().unwrap();

    let answer = run.terrace().args(["why", &format!("{address:#x}"), "--json"]);
    let answer = common::json(answer, 0);

    assert_eq!(answer["source"], "recording");
    let decisions = answer["decisions"].as_array().unwrap();
    assert!(!decisions.is_empty(), "{answer}");
    assert!(decisions.iter().all(|found| found["address"] == address), "{answer}");
    assert!(decisions[0]["decision"]["cost"]["expected"].is_number(), "{answer}");
}

#[test]
fn a_recorded_run_can_be_replayed_under_another_policy_and_another_budget() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = recording(dir.path());
    let replay = |more: &[&str]| {
        let command = common::terrace().args(["replay", "--json"]).arg(&file).args(more);
        common::json(command, 0)
    };

    let answer = replay(&["--policy", "first-touch"]);
    let ample = replay(&["--policy", "hemem", "--fast", "1GiB"]);
    let text = common::terrace().arg("replay").arg(&file).output().unwrap();

    let line = |answer: &serde_json::Value, n: usize| answer["lines"][n].clone();
    let number = |line: &serde_json::Value, field: &str| line[field].as_u64().unwrap();
    let (recorded, control, other) = (line(&answer, 0), line(&answer, 1), line(&answer, 2));
    assert_eq!(recorded["what"], "recorded");
    assert_eq!((&control["what"], &control["control"]), (&"refault".into(), &true.into()));
    assert_eq!(other["what"], "first-touch");
    // The same touches in every line.
    for line in [&recorded, &control, &other] {
        assert!(number(line, "misses") > 0 && number(line, "demotions") > 0, "{line}");
        assert_eq!(number(line, "unknown"), 0, "{line}");
        assert!(number(line, "stall") > 0, "{line}");
    }
    if answer["events_lost"] == 0 {
        let touches = |line| {
            let seen = number(line, "misses") - number(line, "unseen");
            number(line, "first_touches") + number(line, "hits") + seen
        };
        assert_eq!(touches(&control), touches(&recorded), "{answer}");
        assert_eq!(touches(&other), touches(&recorded), "{answer}");
    }
    // The control had five times the stall once.
    let (told, modelled) = (number(&recorded, "stall") as f64, number(&control, "stall") as f64);
    assert!(modelled > told * 0.5 && modelled < told * 2.0, "{answer}");
    // What fits never leaves.
    assert_eq!(number(&line(&ample, 2), "demotions"), 0, "{ample}");
    assert_eq!(number(&line(&ample, 2), "misses"), 0, "{ample}");
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("refault (control)") && text.contains("first-touch"), "{text}");
}

/// Every example of the document that is about `sort` does what it shows, in
/// the order in which it stands there.
#[test]
fn the_documented_examples_work() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut numbers = String::new();
    let mut random = Xorshift::new(88_172_645_463_325_252);
    for _ in 0..700_000 {
        numbers += &format!("{}\n", random.draw() >> 32);
    }
    fs::write(dir.path().join("numbers.txt"), numbers).unwrap();
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/observability.md");
    let document = fs::read_to_string(document).unwrap();
    let examples: Vec<_> = document
        .lines()
        .filter(|line| line.starts_with("terrace ") && line.contains("sort"))
        .collect();

    assert!(examples.len() >= 7, "{examples:?}");
    for example in examples {
        let arguments: Vec<_> = example.split_whitespace().skip(1).collect();
        let command = common::terrace().env("TERRACE_PRELOAD", preload());
        let output = command.current_dir(dir.path()).args(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{example}: {output:?}");
    }
    for made in ["sort.html", "sort.terrace", "watch.jsonl", "sorted.txt"] {
        assert!(fs::metadata(dir.path().join(made)).unwrap().len() > 0, "{made}");
    }
}
