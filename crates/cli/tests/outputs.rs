//! Nothing of the user's is lost by an option that names an output: what is read is not written,
//! what was there stays until there is something better, and no two commands write one file.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use common::{await_that, binary_text, costs_of_this_machine, preload, recorder};
use rustix::process::{Pid, Signal, kill_process};

/// A directory with files that are worth something.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Self {
        let bench = Self(tempfile::tempdir().unwrap());
        for name in ["a.lackey", "b.lackey"] {
            bench.write(name, " L 1000,8\n S 2000,8\n L 3000,8\n");
        }
        bench.write("my file.txt", "one\n");
        bench.write("prog", "#!/bin/sh\nexit 0\n");
        fs::set_permissions(bench.path("prog"), fs::Permissions::from_mode(0o755)).unwrap();
        bench.write("tiers", "ladder = 1\n[[tier]]\nmemory = \"dram\"\ncapacity = \"16MiB\"\n\n[[tier]]\nmemory = \"compressed\"\n");
        fs::copy("/bin/true", bench.path("binary")).unwrap();
        symlink("a.lackey", bench.path("link")).unwrap();
        fs::hard_link(bench.path("a.lackey"), bench.path("hard")).unwrap();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.path(name)).unwrap()).into_owned()
    }

    /// A command in the directory.
    fn command(&self, arguments: &[&str]) -> Command {
        self.command_of(binary_text(), arguments)
    }

    /// A command that may start Terrace.
    fn command_of(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.0.path()).stdin(Stdio::null());
        command.env("TERRACE_PRELOAD", preload()).env("TERRACE_RECORDER", recorder());
        command
    }

    /// What a command says that ends with this status.
    fn says(&self, arguments: &[&str], status: i32) -> String {
        let output = self.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// The names of all files.
    fn names(&self) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap()
        };
        let mut names: Vec<_> = fs::read_dir(self.0.path()).unwrap().map(name).collect();
        names.sort();
        names
    }
}

/// Every verb that reads a file and writes one, with one file for both.
#[test]
fn what_is_read_is_never_what_is_written() {
    let bench = Bench::new();
    assert_eq!(bench.says(&["convert", "a.lackey", "good.trace"], 0), "");
    let run = ["run", "--best-effort", "--fast", "16MiB"];
    let recorded = [&run[..], &["--quiet", "--record", "good.rec", "--", "true"]].concat();
    assert_eq!(bench.says(&recorded, 0), "");
    let names = bench.names();
    let content = || names.iter().map(|name| bench.read(name)).collect::<Vec<_>>();
    let before = content();
    let with_run = |rest: &[&'static str]| [&run[..], rest].concat();

    let commands: Vec<(Vec<&str>, &str)> = vec![
        (vec!["convert", "a.lackey", "a.lackey"], "OUTPUT and INPUT"),
        (vec!["convert", "a.lackey", "link"], "OUTPUT and INPUT"),
        (vec!["convert", "hard", "a.lackey"], "OUTPUT and INPUT"),
        (vec!["sim", "--trace", "a.lackey", "--html", "./a.lackey"], "--html and --trace"),
        (vec!["plan", "--trace", "a.lackey", "--html", "hard"], "--html and --trace"),
        (vec!["report", "good.rec", "-o", "good.rec"], "--output and FILE"),
        (with_run(&["--record", "new", "--report", "new", "--", "true"]), "--record and --report"),
        (
            with_run(&["--report", "a.lackey", "--report-html", "link", "--", "true"]),
            "--report-html and --report",
        ),
        (
            with_run(&["--watch", "--watch-to", "hard", "--record", "link", "--", "true"]),
            "--watch-to and --record",
        ),
        (with_run(&["--record", "prog", "--", "./prog"]), "--record and the program"),
        (
            with_run(&["--report", "a.lackey", "--", "dd", "if=a.lackey", "of=/dev/null"]),
            "--report and argument 1 of the program",
        ),
        (
            with_run(&["--report", "hard", "--", "sh", "-c", "cat <./a.lackey"]),
            "--report and argument 2 of the program",
        ),
        (
            with_run(&["--metrics", "unix:new", "--report", "new", "--", "true"]),
            "--report and --metrics",
        ),
        (
            with_run(&["--metrics", "unix:new", "--report-html", "./new", "--", "true"]),
            "--report-html and --metrics",
        ),
        (
            with_run(&["--metrics", "unix:new", "--record", "new", "--", "true"]),
            "--record and --metrics",
        ),
        (
            with_run(&["--record", "link", "--", "cat", "-n", "a.lackey"]),
            "--record and argument 2 of the program",
        ),
        (
            vec!["run", "--best-effort", "--tiers", "tiers", "--report", "tiers", "--", "true"],
            "--report and --tiers",
        ),
        // Names with spaces, as shells and other languages write them, and braces.
        (
            with_run(&["--report", "my file.txt", "--", "sh", "-c", "sort \"my file.txt\""]),
            "--report and argument 2 of the program",
        ),
        (
            with_run(&["--report", "my file.txt", "--", "sh", "-c", "sort my\\ file.txt"]),
            "--report and argument 2 of the program",
        ),
        (
            with_run(&[
                "--record",
                "my file.txt",
                "--",
                "env",
                "python3",
                "-c",
                "print(open('my file.txt').read())",
            ]),
            "--record and argument 3 of the program",
        ),
        (
            with_run(&["--report", "my file.txt", "--", "sort", "my file.txt"]),
            "--report and argument 1 of the program",
        ),
        (
            with_run(&["--report", "hard", "--", "sh", "-c", "cat {a.lackey,none}"]),
            "--report and argument 2 of the program",
        ),
        (
            with_run(&["--report", "tiers", "--", "sh", "-c", "cat t{i,o}ers"]),
            "--report and argument 2 of the program",
        ),
        (vec!["record", "-o", "binary", "--", "./binary"], "--output and the program"),
        (vec!["record", "--calls", "-o", "prog", "--", "./prog"], "--output and the program"),
        (
            vec!["record", "--calls", "-o", "a.lackey", "--", "cat", "hard"],
            "--output and argument 1 of the program",
        ),
        (vec!["govern", "--report", "prog", "--", "./prog"], "--report and the program"),
        (
            vec!["govern", "--report", "a.lackey", "--", "cat", "hard"],
            "--report and argument 1 of the program",
        ),
        (
            vec!["record", "-o", "a.lackey", "--", "cat", "hard"],
            "--output and argument 1 of the program",
        ),
    ];
    for (arguments, both) in commands {
        let message = bench.says(&arguments, 2);
        let expected = format!("terrace: {both} are the same file: ");
        assert!(message.starts_with(&expected), "{arguments:?}: {message}");
    }
    assert_eq!((content(), bench.names()), (before, names));
}

/// What Terrace reads without being told, or by the name of something else.
#[test]
fn what_is_read_by_another_name_is_not_written_either() {
    let bench = Bench::new();
    fs::create_dir(bench.path("machines")).unwrap();
    bench.write("machines/my.toml", include_str!("../../../machines/laptop.toml"));
    let kindle = include_str!("../../../machines/kindle.toml");
    let timed = "memory-file = \"mem.toml\"\nkind = \"byte";
    bench.write("m.toml", &kindle.replacen("kind = \"byte", timed, 1));
    bench.write("mem.toml", include_str!("../../../machines/memory/kindle-dram.toml"));
    costs_of_this_machine(&bench.path("state"));
    fs::copy(preload(), bench.path("preload.so")).unwrap();
    fs::copy(recorder(), bench.path("recorder.so")).unwrap();

    let run = ["run", "--best-effort", "--fast", "16MiB"];
    let sim = ["sim", "--policy", "all-dram", "--trace", "a.lackey", "--machine", "m.toml"];
    let sweep = ["sweep", "policy=all-slow", "size=4MiB", "accesses=1000", "-o", "out"];
    fs::create_dir(bench.path("out")).unwrap();
    fs::hard_link(bench.path("mem.toml"), bench.path("out/results.csv")).unwrap();
    let commands: Vec<(Vec<&str>, &str, &str)> = vec![
        (
            vec!["profile", "record", "--machine", "my", "-o", "machines/my.toml", "--", "true"],
            "machines/my.toml",
            "--output and --machine",
        ),
        (
            [&sim[..], &["--html", "mem.toml"]].concat(),
            "mem.toml",
            "--html and a memory of --machine",
        ),
        ([&sim[..], &["--html", "m.toml"]].concat(), "m.toml", "--html and --machine"),
        (
            [&sweep[..], &["machine=m.toml"]].concat(),
            "out/results.csv",
            "--output and a memory of machine",
        ),
        (
            [&run[..], &["--record", "state/terrace/costs.toml", "--", "true"]].concat(),
            "state/terrace/costs.toml",
            "--record and the file of measured prices",
        ),
        (
            [&run[..], &["--report", "preload.so", "--", "true"]].concat(),
            "preload.so",
            "--report and Terrace's library",
        ),
        (
            vec!["record", "-o", "recorder.so", "--", "/bin/true"],
            "recorder.so",
            "--output and Terrace's recorder",
        ),
    ];
    for (arguments, file, both) in commands {
        let before = fs::read(bench.path(file)).unwrap();
        let mut command = bench.command(&arguments);
        command.env("XDG_STATE_HOME", bench.path("state"));
        command.env("TERRACE_PRELOAD", bench.path("preload.so"));
        command.env("TERRACE_RECORDER", bench.path("recorder.so"));
        let output = command.output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let expected = format!("terrace: {both} are the same file: {file}\n");
        assert!(message.ends_with(&expected), "{arguments:?}: {message}");
        assert!(fs::read(bench.path(file)).unwrap() == before, "{arguments:?}");
    }
}

/// The program may read what a shell has opened for it.
#[test]
fn descriptors_that_were_opened_before_are_not_written_by_an_option_too() {
    let bench = Bench::new();
    let script = "exec \"$0\" \"$@\" 3<a.lackey 9<b.lackey";
    let run = |option, file| {
        let run = ["run", "--best-effort", "--fast", "16MiB", "--quiet", option, file];
        let shell = ["-c", script, binary_text()];
        let words = [&shell[..], &run, &["--", "sh", "-c", "cat <&3"]];
        let output = bench.command_of("sh", &words.concat()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for option in ["--record", "--report"] {
        for (file, number) in [("hard", 3), ("b.lackey", 9)] {
            let both = format!("{option} and descriptor {number} are the same file: {file}");
            assert_eq!(run(option, file), (Some(2), format!("terrace: {both}\n")));
        }
    }
    assert_eq!(run("--report", "new"), (Some(0), String::new()));
    assert_eq!(bench.read("a.lackey"), bench.read("b.lackey"));
}

/// Where a program finds a file, Terrace does not know. A file whose name stands in its arguments is not
/// replaced, and others are, again and again.
#[test]
fn what_an_argument_seems_to_name_is_not_replaced() {
    let bench = Bench::new();
    let run = ["run", "--best-effort", "--fast", "16MiB", "--quiet", "--report"];
    let say =
        |to, words: &[&str], status| bench.says(&[&run[..], &[to, "--"], words].concat(), status);
    fs::create_dir(bench.path("within")).unwrap();
    let [from, to] = ["my file.txt", "within/my file.txt"].map(|name| bench.path(name));
    fs::rename(from, to).unwrap();
    for words in [
        &["sh", "-c", "cd \"$D\" && sort \"my file.txt\" "][..],
        &["sh", "-c", "sort \"$D/my file.txt\""],
        &["env", "D=nowhere/my file.txt", "true"],
        &["sh", "-c", "true", "sh", "nowhere/{my,your}\\ file.txt"],
    ] {
        let message = say("within/my file.txt", words, 2);
        let begin = "terrace: --report: within/my file.txt: would be replaced, and argument ";
        assert!(message.starts_with(begin), "{words:?}: {message}");
        let end = " of the program seems to name it: choose another name, or move the file away\n";
        assert!(message.ends_with(end), "{words:?}: {message}");
        assert_eq!(bench.read("within/my file.txt"), "one\n");
    }
    // An empty file has nothing to lose, and other names are other files.
    bench.write("empty", "");
    assert_eq!(say("empty", &["true", "nowhere/empty"], 0), "");
    for _ in 0..3 {
        let others = ["true", "myreport.json", "report.json.gz", "--report", "-json"];
        assert_eq!(say("report.json", &others, 0), "");
    }
    assert_ne!(bench.read("report.json"), "");
}

#[test]
fn standard_streams_are_not_written_by_an_option_too() {
    let bench = Bench::new();
    let run = ["run", "--best-effort", "--fast", "16MiB", "--report", "a.lackey", "--", "cat"];
    let file = || fs::File::options().append(true).read(true).open(bench.path("a.lackey")).unwrap();
    let say = |command: &mut Command| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let message = say(bench.command(&run).stdin(file()));
    assert!(message.contains("--report and standard input are the same file"), "{message}");
    let message = say(bench.command(&run).stdout(file()));
    assert!(message.contains("--report and standard output are the same file"), "{message}");
    assert_eq!(bench.read("a.lackey"), bench.read("b.lackey"));
}

#[test]
fn a_good_output_is_not_replaced_by_a_failed_one() {
    let bench = Bench::new();
    bench.write("bad.dramsim3", "0x40 READ 1\n0x80 READ\n");
    bench.write("old", "good");
    let before = bench.names();

    for to in ["old", "new"] {
        bench.says(&["convert", "bad.dramsim3", to], 2);
        bench.says(&["sim", "--trace", "bad.dramsim3", "--html", to], 2);
        bench.says(&["report", "bad.dramsim3", "-o", to], 2);
        bench.says(&["run", "--fast", "16MiB", "--report", to, "--", "/no/such/program"], 2);
    }

    assert_eq!((bench.read("old"), bench.names()), ("good".to_owned(), before));
}

/// What is replaced keeps its rights, its owner, its other names, and the link that led to it.
#[test]
fn a_file_that_is_replaced_stays_what_it_was() {
    let bench = Bench::new();
    let convert = |to: &str| assert_eq!(bench.says(&["convert", "b.lackey", to], 0), "");
    bench.write("old", "old");
    fs::set_permissions(bench.path("old"), fs::Permissions::from_mode(0o640)).unwrap();
    if common::is_root() {
        std::os::unix::fs::chown(bench.path("old"), Some(65534), Some(65534)).unwrap();
    }
    let facts = |name: &str| {
        let facts = fs::metadata(bench.path(name)).unwrap();
        (facts.uid(), facts.gid(), facts.mode())
    };
    let before = facts("old");
    convert("old");
    assert_eq!(facts("old"), before);
    let good = bench.read("old");
    assert_ne!(good, "old");

    convert("link");
    assert!(fs::symlink_metadata(bench.path("link")).unwrap().is_symlink());
    assert_eq!((bench.read("a.lackey"), bench.read("hard")), (good.clone(), good.clone()));

    symlink("not/yet", bench.path("nowhere")).unwrap();
    fs::create_dir(bench.path("not")).unwrap();
    convert("nowhere");
    assert_eq!(bench.read("not/yet"), good);
    // What is new has the rights that the user's mask allows.
    bench.write("plain", "");
    convert("new");
    assert_eq!(facts("new"), facts("plain"));
    assert!(!bench.names().iter().any(|name| name.contains("partial")), "{:?}", bench.names());
}

#[test]
fn what_is_no_file_is_written_to() {
    let bench = Bench::new();
    assert_eq!(bench.says(&["convert", "a.lackey", "good"], 0), "");
    let good = bench.read("good");
    let stdout = |to: &str| {
        let output = bench.command(&["convert", "a.lackey", to]).output().unwrap();
        assert!(output.status.success(), "{to}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("3 records"), "{to}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(stdout("/dev/null"), "");
    for to in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        assert_eq!(stdout(to), good, "{to}");
    }
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());

    let status = Command::new("mkfifo").arg(bench.path("fifo")).status().unwrap();
    assert!(status.success());
    let mut child =
        bench.command(&["convert", "a.lackey", "fifo"]).stdout(Stdio::null()).spawn().unwrap();
    assert_eq!(bench.read("fifo"), good);
    assert!(child.wait().unwrap().success());

    // A file that standard output goes to is written on, where it stands.
    let file = fs::File::create(bench.path("log")).unwrap();
    (&file).write_all(b"before\n").unwrap();
    let mut run = bench.command(&[
        "run",
        "--best-effort",
        "--fast",
        "16MiB",
        "--report",
        "/dev/stdout",
        "--",
        "echo",
        "middle",
    ]);
    assert!(run.stdout(file).status().unwrap().success());
    let text = bench.read("log");
    assert!(text.starts_with("before\nmiddle\nterrace: echo "), "{text}");
}

#[test]
fn what_may_not_be_written_is_said_before_anything_begins() {
    let bench = Bench::new();
    let message = bench.says(&["convert", "a.lackey", "no/such/directory"], 2);
    assert!(message.contains("OUTPUT: no/such/directory: No such file"), "{message}");
    let message = bench.says(&["convert", "a.lackey", "."], 2);
    assert!(message.contains("OUTPUT: .: is a directory"), "{message}");
}

/// A program that runs until its input ends.
fn start(command: &mut Command) -> Child {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

fn end(mut child: Child) -> ExitStatus {
    drop(child.stdin.take());
    child.wait().unwrap()
}

const READY: &str = "echo ready; cat";

#[test]
fn two_commands_never_write_one_file() {
    let bench = Bench::new();
    let run = |option: &'static str, script: &'static str| {
        [
            "run",
            "--best-effort",
            "--fast",
            "16MiB",
            "--quiet",
            option,
            "out",
            "--",
            "sh",
            "-c",
            script,
        ]
    };
    for option in ["--record", "--report"] {
        for old in [false, true] {
            if old {
                bench.write("out", "old");
            } else {
                let _ = fs::remove_file(bench.path("out"));
            }
            let first = start(&mut bench.command(&run(option, READY)));
            for option in ["--record", "--report"] {
                let message = bench.says(&run(option, "true"), 2);
                let expected = format!("{option}: out: another command is writing this file");
                assert!(message.contains(&expected), "{message}");
            }
            assert!(end(first).success());
            assert_ne!(bench.read("out"), "old");
            assert_eq!(bench.says(&run(option, "true"), 0), "");
        }
    }
}

#[test]
fn two_sweeps_never_share_a_directory() {
    let bench = Bench::new();
    bench.write("grid.toml", "schema = 1\n[grid]\nworkload = \"gups\"\nmachine = \"cxl\"\nsize = \"8MiB\"\naccesses = 1000\nseed = [1, 2]\n");
    let sweep = ["sweep", "grid.toml", "-o", "out"];
    bench.says(&sweep, 0);
    let journal = fs::File::open(bench.path("out/journal.jsonl")).unwrap();
    journal.lock().unwrap();
    for arguments in [&sweep[..], &[&sweep[..], &["--fresh"]].concat()] {
        let message = bench.says(arguments, 2);
        assert!(message.contains("--output: out: another sweep is writing there"), "{message}");
    }
    drop(journal);
    let fresh = bench.says(&[&sweep[..], &["--fresh"]].concat(), 0);
    assert!(fresh.starts_with("terrace: sweep: 2 of 2 points to simulate"), "{fresh}");
    // A grid that lies where results go is no result.
    fs::rename(bench.path("grid.toml"), bench.path("out/results.csv")).unwrap();
    let message = bench.says(&["sweep", "out/results.csv", "-o", "out"], 2);
    assert!(message.contains("are the same file"), "{message}");
}

/// A recording is of use as far as it goes, also if its command was killed.
#[test]
fn a_run_that_is_killed_leaves_a_recording() {
    if !common::is_supported() {
        return;
    }
    let bench = Bench::new();
    let run = ["run", "--fast", "16MiB", "--quiet", "--record", "out", "--", "sh", "-c", READY];
    for (old, left) in [(false, "out"), (true, "out.terrace-partial")] {
        if old {
            bench.write("out", "old");
        }
        let mut child = start(&mut bench.command(&run));
        await_that(Duration::from_mins(1), "a recording that can be read", || {
            let report = ["report", "--partial", left, "-o", "page.html"];
            bench.command(&report).output().unwrap().status.success()
        });
        child.kill().unwrap();
        child.wait().unwrap();
        drop(child.stdin.take());

        assert_eq!(bench.says(&["report", "--partial", left, "-o", "page.html"], 0), "", "{left}");
        assert!(bench.read("page.html").contains("killed, or still runs"));
        if old {
            assert_eq!(bench.read("out"), "old");
            let message = bench.says(&[&run[..9], &["true"]].concat(), 0);
            assert!(
                message.contains("already there, and left: out.terrace-partial ("),
                "{message}"
            );
            // It may be the only one there is.
            let report = ["report", "--partial", left, "-o", "page.html"];
            assert_eq!(bench.says(&report, 0), "", "{left}");
        }
        fs::remove_file(bench.path("out")).unwrap();
    }
}

/// What has the name already under which an output is begun is not known: it may be the only
/// recording of a killed run, or a file of the user's.
#[test]
fn what_is_there_under_the_name_of_a_draft_stays() {
    let bench = Bench::new();
    let convert = ["convert", "a.lackey", "out"];
    bench.write("out", "old");
    bench.write("out.terrace-partial", "mine");
    symlink("prog", bench.path("out.terrace-partial-2")).unwrap();
    fs::create_dir(bench.path("out.terrace-partial-3")).unwrap();
    let message = bench.says(&convert, 0);
    assert_eq!(message.matches("already there, and left: ").count(), 1, "{message}");
    assert!(message.contains("out.terrace-partial, "), "{message}");
    assert_eq!(bench.says(&["check", "out"], 0), "");
    assert_eq!(bench.read("out.terrace-partial"), "mine");
    assert!(bench.path("out.terrace-partial-2").is_symlink());
    assert!(bench.path("out.terrace-partial-3").is_dir());
    assert!(!bench.path("out.terrace-partial-4").exists());
    // The same where the output's own name is free.
    fs::remove_file(bench.path("out")).unwrap();
    bench.says(&convert, 0);
    assert_eq!(bench.read("out.terrace-partial"), "mine");

    for number in 4..10 {
        bench.write(&format!("out.terrace-partial-{number}"), "mine");
    }
    let message = bench.says(&convert, 2);
    assert!(message.contains("out.terrace-partial and 8 more"), "{message}");
}

/// Not every editor ends the last line, so that such a file of the user's is taken.
#[test]
fn a_file_whose_last_line_has_no_end_is_told_of() {
    let bench = Bench::new();
    assert_eq!(bench.says(&["check", "tiers"], 0), "");
    bench.write("tiers", bench.read("tiers").trim_end());
    let message = bench.says(&["check", "tiers"], 0);
    assert!(message.contains("warning: tiers: its last line has no end"), "{message}");
}

/// A recording command that is told to end ends its program, and finishes the file. One that is
/// killed leaves what `--partial` reads.
#[test]
fn a_trace_is_finished_when_its_command_is_interrupted_and_left_when_it_is_killed() {
    // Most of each is waiting.
    std::thread::scope(|scope| {
        for (signal, whole) in [(Signal::TERM, true), (Signal::INT, true), (Signal::KILL, false)] {
            scope.spawn(move || ends_by(signal, whole));
        }
    });
}

/// The same with one signal, which leaves a whole trace or not.
fn ends_by(signal: Signal, whole: bool) {
    let bench = Bench::new();
    let record = ["record", "-o", "out", "--", "/bin/cat"];
    // A script's background job, which this test may be, starts with SIGINT ignored; so would
    // the program, rightly.
    let mut child = bench
        .command_of("env", &[&["--default-signal", binary_text()][..], &record].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program takes up what is sent to it, so that there is something to record.
    let mut input = child.stdin.take().unwrap();
    // It is readable as far as it went a second ago.
    let (mut status, mut begun) = (None, None);
    await_that(Duration::from_mins(1), "a trace", || {
        status = child.try_wait().unwrap();
        let _ = input.write_all(b"a line\n");
        let length = fs::metadata(bench.path("out")).map_or(0, |file| file.len());
        if length > 1000 {
            begun.get_or_insert_with(Instant::now);
        }
        let is_readable = |begun: Instant| begun.elapsed() > Duration::from_millis(1500);
        status.is_some() || begun.is_some_and(is_readable)
    });
    if status.is_some_and(|status| status.code() == Some(3)) {
        eprintln!("SKIPPED: nothing here records");
        return;
    }
    assert_eq!(status, None, "it has ended by itself");
    kill_process(Pid::from_child(&child), signal).unwrap();
    let ended = child.wait().unwrap();
    drop(input);

    assert_eq!(ended.code(), whole.then(|| 128 + signal.as_raw()), "{signal:?}");
    let check = bench.command(&["check", "out"]).output().unwrap();
    assert_eq!(check.status.code(), Some(if whole { 0 } else { 2 }), "{check:?}");
    let sim = ["sim", "--policy", "all-dram", "--trace", "out"];
    if whole {
        bench.says(&sim, 0);
    } else {
        let message = bench.says(&sim, 2);
        assert!(message.contains("(--partial uses what comes before)"), "{message}");
        let message = bench.says(&[&sim[..], &["--partial"]].concat(), 0);
        assert!(message.contains("warning: only a part was used: out: truncated"), "{message}");
        let message = bench.says(&["convert", "--partial", "out", "whole"], 0);
        assert!(message.contains("warning: only a part was used"), "{message}");
        assert_eq!(bench.says(&["check", "whole"], 0), "");
    }
}

/// A profile of a run that was told to end is of what the program did until then.
#[test]
fn a_profile_is_finished_when_its_command_is_interrupted() {
    let bench = Bench::new();
    let record = ["profile", "record", "-o", "out", "--", "/bin/cat"];
    let mut child = bench
        .command(&record)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // What it gives back shows that it runs.
    let mut input = child.stdin.take().unwrap();
    let begun = input.write_all(b"a line\n");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        assert_eq!(child.wait().unwrap().code(), Some(3));
        eprintln!("SKIPPED: nothing here records");
        return;
    }
    begun.unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(input);

    assert_eq!(output.status.code(), Some(143), "{output:?}");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("signal 15 ended the program"), "{message}");
    assert_eq!(bench.says(&["check", "out"], 0), "");
}

/// What Terrace could not write is told, and is not the program's failure.
#[test]
fn a_program_s_status_is_its_own_whatever_cannot_be_written() {
    let bench = Bench::new();
    let run = ["run", "--best-effort", "--fast", "16MiB", "--quiet"];
    for (options, what) in [
        (&["--report", "/dev/full"][..], "--report: /dev/full: No space left"),
        (&["--watch=20ms", "--watch-to", "/dev/full"], "--watch-to: /dev/full: No space left"),
    ] {
        let program = ["--", "sh", "-c", "sleep 0.1; exit 7"];
        let message = bench.says(&[&run[..], options, &program].concat(), 7);
        assert!(message.contains(what), "{message}");
    }
    if !common::is_supported() {
        return;
    }
    // Not even its beginning can be written.
    let record = ["--record", "/dev/full", "--", "sh", "-c", "exit 7"];
    let message = bench.says(&[&run[..], &record].concat(), 7);
    assert!(message.contains("--record: /dev/full: No space left"), "{message}");
    // A file system of 32 KiB: a recording is longer. What was there stays.
    let lines: Vec<_> =
        (0..400_000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_string()).collect();
    bench.write("big", &lines.join("\n"));
    fs::create_dir(bench.path("small")).unwrap();
    let script = "mount -t tmpfs -o size=32k none small || exit 99
        echo good > small/old
        for to in old new; do
            \"$0\" run --fast 4MiB --quiet --record small/$to -- sort -S 64M -o /dev/null big
            echo \"$to: $?\"
            [ $to = old ] && cat small/old && ls small && rm small/old.terrace-partial
        done
        ls small";
    let mut command = Command::new("unshare");
    command.args(["--mount", "/bin/sh", "-c", script, binary_text()]).current_dir(bench.0.path());
    let output = command.env("TERRACE_PRELOAD", preload()).stdin(Stdio::null()).output().unwrap();
    if output.status.code() == Some(99) || !common::is_root() {
        eprintln!("SKIPPED: no small file system");
        return;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text, "old: 0\ngood\nold\nold.terrace-partial\nnew: 0\nnew\nold\n", "{errors}");
    for to in ["old", "new"] {
        let what = format!("--record: small/{to}: No space left on device (os error 28)");
        assert!(errors.contains(&what), "{errors}");
    }
    assert!(errors.contains("; what was written is in "), "{errors}");
}

/// A file with two names is not replaced but written over, for which room is had before.
#[test]
fn a_file_with_two_names_is_as_it_was_where_there_is_no_room_for_the_new_one() {
    const PAGE: u64 = 4096;
    let bench = Bench::new();
    let lines: Vec<_> = (0..20_000).map(|i| format!(" L {:x},8\n", 0x10_0000 + 64 * i)).collect();
    bench.write("long.lackey", &lines.concat());
    bench.says(&["convert", "long.lackey", "long.dramsim3"], 0);
    let length = fs::metadata(bench.path("long.dramsim3")).unwrap().len();
    // The new one and the old one have room beside each other, and no more than 64 KiB are left.
    let size = (length.div_ceil(PAGE) + 100_000_u64.div_ceil(PAGE) + 16) * PAGE;
    assert!(length > 250_000, "{length}");
    fs::create_dir(bench.path("small")).unwrap();
    let script = "mount -t tmpfs -o size=$1 none small || exit 99
        head -c 100000 /dev/zero | tr '\\0' x >small/old.dramsim3
        ln small/old.dramsim3 small/other
        \"$0\" convert long.lackey small/old.dramsim3
        echo \"status $?\"
        tr -d x <small/other | wc -c
        wc -c <small/other
        ls small
        \"$0\" convert a.lackey small/old.dramsim3 >/dev/null
        echo \"status $?\"
        cmp small/old.dramsim3 small/other && wc -l <small/other";
    let mut command = Command::new("unshare");
    command.args(["--mount", "/bin/sh", "-c", script, binary_text(), &size.to_string()]);
    let output = command.current_dir(bench.0.path()).stdin(Stdio::null()).output().unwrap();
    if output.status.code() == Some(99) || !common::is_root() {
        eprintln!("SKIPPED: no small file system");
        return;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let kept = "status 1\n0\n100000\nold.dramsim3\nother\n";
    assert_eq!(text, format!("{kept}status 0\n3\n"), "{errors}");
    let message = "OUTPUT: small/old.dramsim3: No space left on device (os error 28); the file that \
                   was there is as it was";
    assert!(errors.contains(message), "{errors}");
}
