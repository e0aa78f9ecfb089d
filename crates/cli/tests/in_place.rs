//! What a person or a program sees of memory whose pages stay mapped: of `terrace
//! attach` and `terrace run --slow`, as far as a machine with one node goes. The same
//! with two nodes is tested in a guest (`make guest`).

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{HOLDER, Swap, ask, binary, compile, refused, terrace};
use serde_json::Value;
use terrace_shown::is_missing;

/// A program of 24 MiB, of which 8 MiB may stay in memory, with a runtime directory of
/// its own and files for what is shown of it.
struct Holder {
    child: Child,
    directory: tempfile::TempDir,
}

impl Holder {
    /// Starts it by the command line that `command` makes of the program's path.
    fn start(command: impl Fn(&Path, &Path) -> Command) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("runtime")).unwrap();
        let program = directory.path().join("holder");
        compile(HOLDER, &program, &["-O1"]);
        let mut child = command(&program, directory.path())
            .env("XDG_RUNTIME_DIR", directory.path().join("runtime"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.as_mut().unwrap();
        BufReader::with_capacity(1, out).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, directory }
    }

    /// Under `terrace run` with swap as the slower memory, and shown in every way.
    fn run() -> Self {
        Self::start(|program, directory| {
            let mut command = Command::new(binary());
            command.args(["run", "--quiet", "--fast", "8MiB", "--slow", "swap", "--json"]);
            command.args(["--limit", "300MiB/s", "--sampling-cap", "2%"]);
            command.args(shown(directory)).arg("--").arg(program);
            command
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Another command that looks for runs where this one is.
    fn terrace(&self) -> snapbox::cmd::Command {
        terrace().env("XDG_RUNTIME_DIR", self.path("runtime"))
    }

    /// Lets it end; what it says of its content.
    fn end(&mut self) -> String {
        drop(self.child.stdin.take());
        let mut said = String::new();
        self.child.stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success());
        said
    }

    /// What `terrace top` sees of this run, or of the attachment to this program, beside whatever
    /// else runs on the machine; nothing before there is one.
    fn look(&self) -> Value {
        let top = self.terrace().args(["top", "--json", "--interval", "300ms"]);
        let top = common::json(top, 0);
        let process = self.child.id();
        let is_it = |seen: &&Value| {
            let of_program = seen["processes"].as_array();
            seen["run"] == process
                || of_program.is_some_and(|all| all.iter().any(|one| one["process"] == process))
        };
        top["attached"].as_array().unwrap().iter().find(is_it).cloned().unwrap_or_default()
    }

    /// Waits until `terrace top` sees what is expected.
    fn until(&self, what: &str, expected: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + Duration::from_mins(1);
        loop {
            let seen = self.look();
            if expected(&seen) {
                return seen;
            }
            assert!(Instant::now() < until, "{what} never came: {seen}");
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Options that show everything in files of a directory.
fn shown(directory: &Path) -> Vec<String> {
    let file = |name: &str| directory.join(name).display().to_string();
    let options = [
        vec!["--watch=100ms".to_owned()],
        vec!["--watch-to".to_owned(), file("watch.jsonl")],
        vec!["--metrics".to_owned(), format!("unix:{}", file("metrics"))],
        vec!["--report-html".to_owned(), file("page.html")],
        vec!["--report".to_owned(), file("report")],
        vec!["--record".to_owned(), file("recording")],
    ];
    options.concat()
}

/// Much has left, and `top` has looked before: who finds an attachment at its second look only
/// has no rates of it yet.
fn has_demoted(seen: &Value) -> bool {
    seen["demotions"].as_u64().is_some_and(|demotions| demotions > 3_000)
        && seen["rates"].is_object()
}

/// Asserts that the lines are documents of a kind whose counters never go back; the last.
fn check_lines(text: &str) -> Value {
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() >= 4, "{} lines", lines.len());
    let demotions = |line: &Value| line["demotions"].as_u64().unwrap();
    assert!(lines.windows(2).all(|w| demotions(&w[0]) <= demotions(&w[1])), "counters went back");
    for line in &lines {
        assert_eq!((&line["schema"], &line["kind"]), (&1.into(), &"terrace.attach-watch".into()));
        assert!(line["rates"]["interval"].as_u64().unwrap() > 0, "{line}");
    }
    // What was moved since the line before makes up what was moved at all.
    let moved: f64 = lines
        .iter()
        .map(|line| {
            let rates = &line["rates"];
            rates["demotions"].as_f64().unwrap() * rates["interval"].as_f64().unwrap() / 1e9
        })
        .sum();
    let last = lines.last().unwrap();
    assert!((moved - demotions(last) as f64).abs() < 1.0, "{moved} of {last}");
    last.clone()
}

fn check_page(page: &str) {
    for outside in ["http:", "https:", "<script", "<link", "@import", "src="] {
        assert!(!page.contains(outside), "the page needs {outside}");
    }
    for title in ["Residency over time", "Where and when", "What happened when", "Decisions"] {
        assert!(page.contains(title), "no {title}");
    }
    assert_eq!(page.matches("data:image/png;base64,").count(), 2);
    // Decisions by reason, beside the accounts.
    assert!(page.contains("proposed because") && page.contains("demote: "), "no reasons");
}

/// Asserts that a recording says the same as the report.
fn check_recording(run: &Holder, report: &Value) {
    let recording = run.path("recording");
    let terrace = |verb: &str| run.terrace().arg(verb).arg(&recording);

    let again = run.path("again.html");
    assert!(terrace("report").arg("-o").arg(&again).output().unwrap().status.success());
    check_page(&run.read("again.html"));
    let told = common::json(terrace("report").arg("--json"), 0);
    assert_eq!((&told["kind"], &told["complete"]), (&"terrace.attach-report".into(), &true.into()));
    assert_eq!((&told["demotions"], &told["tiers"]), (&report["demotions"], &report["tiers"]));
    let why = common::json(terrace("why").args(["--class", "demote", "--last", "1", "--json"]), 0);
    let done = report["demotions"].as_u64().unwrap();
    assert!(why["decisions_recorded"].as_u64().unwrap() >= done, "{why}");
    let replay = refused(terrace("replay"));
    assert!(replay.contains(": a recording of memory that stays mapped"), "{replay}");
}

#[test]
fn a_run_with_swap_is_shown_like_one_with_compressed_memory() {
    let Some(swap) = Swap::on() else {
        is_missing("swap");
        return;
    };
    let mut run = Holder::run();

    let seen = run.until("what is too much in swap", has_demoted);

    assert_eq!(seen["run"], run.child.id());
    assert_eq!(seen["limit"].as_f64(), Some(f64::from(300 << 20)), "{seen}");
    assert_eq!(seen["sampling_cap"].as_f64(), Some(0.02), "{seen}");
    assert!(seen["rates"]["interval"].as_u64().unwrap() > 0, "{seen}");
    let names: Vec<_> = seen["tiers"].as_array().unwrap().iter().map(|t| &t["memory"]).collect();
    assert_eq!(names[1], "swap");
    let region = &seen["regions"][0];
    let fastest = region["fastest"].as_array().unwrap();
    assert!(fastest.iter().any(|part| part.as_u64().is_some_and(|n| n < 100)), "{region}");
    assert!(fastest.iter().any(Value::is_null), "24 of 64 MiB are there: {region}");

    let (status, metrics) = ask(UnixStream::connect(run.path("metrics")).unwrap(), "/metrics");
    assert_eq!(status, "HTTP/1.1 200 OK");
    let families = openmetrics_parser::openmetrics::parse_openmetrics(&metrics)
        .unwrap_or_else(|e| panic!("{metrics}\n{e}"))
        .families;
    for name in ["terrace_demotions", "terrace_tier_bytes", "terrace_sampling_seconds"] {
        assert!(families.contains_key(name), "{name} is missing:\n{metrics}");
    }
    let who = format!("{{run=\"{}\",program=", run.child.id());
    assert!(metrics.contains(&format!("terrace_tier_bytes{who}")), "{metrics}");
    assert!(metrics.contains("tier=\"swap\""), "{metrics}");
    let once = run.terrace().args(["metrics", "--once", "holder"]).output().unwrap();
    let once = String::from_utf8(once.stdout).unwrap();
    assert!(once.contains(&format!("terrace_demotions_total{who}")), "{once}");

    // Another one on the machine may be called like it.
    let id = run.child.id().to_string();
    let top = run.terrace().args(["top", &id]).output().unwrap();
    let top = String::from_utf8(top.stdout).unwrap();
    assert!(top.starts_with("terrace: attached to holder ("), "{top}");
    let start = region["start"].as_u64().unwrap();
    let page = run.terrace().args(["why", &format!("{start:#x}"), "--of", &id]).output();
    let page = String::from_utf8(page.unwrap().stdout).unwrap();
    let expected =
        format!("{start:#x} is in process {} (holder), in the region", region["process"]);
    assert!(page.starts_with(&expected), "{page}");
    assert!(page.contains("\nit ") && page.contains("decisions about it (recording)"), "{page}");
    // It has no budget that could be divided.
    let set = refused(run.terrace().args(["set", &id, "--fast", "16MiB"]));
    assert!(set.ends_with("has no budget of its own to share or change"), "{set}");

    assert_eq!(run.end(), "right\n");
    let last = check_lines(&run.read("watch.jsonl"));
    let report: Value = serde_json::from_str(&run.read("report")).unwrap();
    // Not the one for compressed memory, which takes no samples.
    assert_eq!(report["policy"], "hemem");
    for field in ["demotions", "refaults", "moved", "samples", "tiers"] {
        assert_eq!(last[field], report[field], "{field}");
    }
    check_page(&run.read("page.html"));
    check_recording(&run, &report);
    assert!(!run.path("metrics").exists(), "the socket was left");
    assert_eq!(fs::read_dir(run.path("runtime")).unwrap().count(), 0, "a directory was left");
    drop(swap);
}

#[test]
fn an_attachment_is_found_by_the_program_that_it_is_about() {
    let Some(swap) = Swap::on() else {
        is_missing("swap");
        return;
    };
    let mut program = Holder::start(|program, _| Command::new(program));
    let mut attach = Command::new(binary())
        .args(["attach", "--quiet", "--json", "--fast", "numa:0=8MiB", "--slow", "swap"])
        .args(["--pid", &program.child.id().to_string()])
        .args(shown(program.directory.path()))
        .env("XDG_RUNTIME_DIR", program.path("runtime"))
        .spawn()
        .unwrap();

    let seen = program.until("what is too much in swap", has_demoted);
    let process = program.child.id().to_string();
    let lines = ["top", &process, "--watch", "--count", "2", "--interval", "300ms"];
    let lines = program.terrace().args(lines).output().unwrap();

    assert_eq!((&seen["run"], &seen["program"][0]), (&attach.id().into(), &"holder".into()));
    let lines = String::from_utf8(lines.stdout).unwrap();
    assert_eq!(lines.lines().count(), 2, "{lines}");
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["kind"], "terrace.top");
        assert_eq!(line["attached"][0]["processes"][0]["process"], program.child.id());
        assert_eq!(line["runs"].as_array().map(Vec::len), Some(0), "{line}");
    }
    assert_eq!(program.end(), "right\n");
    assert!(attach.wait().unwrap().success());
    check_lines(&program.read("watch.jsonl"));
    check_page(&program.read("page.html"));
    drop(swap);
}

#[test]
fn options_that_mean_nothing_for_a_kind_of_run_are_refused() {
    let run = |options: &[&str]| refused(terrace().arg("run").args(options).args(["--", "true"]));
    for (option, value, named) in
        [("--limit", "1GiB/s", "--limit"), ("--sampler", "damon", "--sampler damon")]
    {
        let message = run(&["--fast", "16MiB", option, value]);
        let expected = "only where pages stay mapped, with --slow or such memories in --tiers";
        assert_eq!(message, format!("{named}: {expected}"));
    }
    let quiet = &["--quiet-windows", "never"];
    for option in [&["--best-effort"][..], &["--spill", "cold"], &["--huge-pages", "auto"], quiet] {
        let message = run(&[&["--fast", "16MiB", "--slow", "numa:1"], option].concat());
        let expected = "not where pages stay mapped, as in the memories of --slow";
        assert_eq!(message, format!("{}: {expected}", option[0]));
    }
    let policy = run(&["--fast", "16MiB", "--slow", "numa:1", "--policy", "colloid"]);
    assert!(policy.starts_with("--policy colloid: not where pages stay mapped"), "{policy}");
    for learns_by_faults in ["refault", "2q"] {
        let tiers = ["--fast", "16MiB", "--slow", "numa:1"];
        let policy = run(&[&tiers[..], &["--policy", learns_by_faults]].concat());
        let expected = "not where pages stay mapped: it learns by pages that come back, and from \
                        `numa:1` none has to";
        assert_eq!(policy, format!("--policy {learns_by_faults}: {expected}"));
    }
    let zero = run(&["--fast", "16MiB", "--slow", "numa:1", "--limit", "0GiB/s"]);
    assert_eq!(zero, "--limit: must be above zero");
}
