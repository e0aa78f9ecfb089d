//! Messages that say what helps: the option or the file, the value, and what is expected.

mod common;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{binary, binary_text, is_supported, preload, recorder};

struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).current_dir(self.0.path()).stdin(Stdio::null());
        command.env("TERRACE_PRELOAD", preload()).env("TERRACE_RECORDER", recorder());
        command
    }

    /// What a command says that is refused with this exit code: one line, and nothing on stdout.
    fn refused(&self, arguments: &[&str], code: i32) -> String {
        let output = self.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}: {output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        let line = stderr.strip_suffix('\n').unwrap_or_default();
        assert!(!line.contains('\n'), "{arguments:?}: {line}");
        line.strip_prefix("terrace: ").unwrap_or_else(|| panic!("{arguments:?}: {line}")).to_owned()
    }
}

/// A command line, and what its refusal (exit code 2) must contain.
#[test]
fn bad_usage_names_the_option_and_what_is_expected() {
    let bench = Bench::new();
    bench.write("empty", "");
    bench.write("text", "no recording\n");
    bench.write("twice", "ladder = 1\n[[tier]]\nmemory = \"dram\"\ncapacity = \"16MiB\"\n[[tier]]\nmemory = \"dram\"\n[[tier]]\nmemory = \"file\"\npath = \"x\"\n");
    bench.write(
        "versionless",
        "[[tier]]\nmemory = \"dram\"\ncapacity = \"16MiB\"\n[[tier]]\nmemory = \"compressed\"\n",
    );
    bench.write("newer", "ladder = 2\n[[tier]]\nmemory = \"dram\"\ncapacity = \"16MiB\"\n[[tier]]\nmemory = \"compressed\"\n");
    bench.write("grid", "schema = 1\n[grid]\nworkload = \"gups\"\nsize = \"8\"\n");
    bench.write("other", "{\"schema\":6,\"kind\":\"terrace.records\"}\n");
    bench.write("document", "{\"schema\":1,\"kind\":\"terrace.doctor\"}\n");
    bench.write("binary", [0xff, 0xfe, 0, 1]);
    bench.write("good.lackey", " L 1000,8\n S 2000,8\n");
    bench.write("none.lackey", "");
    bench.write("script", "exit 0\n");
    fs::set_permissions(bench.path("script"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::create_dir(bench.path("directory")).unwrap();
    let done = bench.command(&["convert", "good.lackey", "good.trace"]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let mut long = fs::read(bench.path("good.trace")).unwrap();
    let end = long.len();
    long.extend_from_slice(b"garbage");
    bench.write("long.trace", long);
    let _listener = UnixListener::bind(bench.path("socket")).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = port.local_addr().map(|address| (port, address.port())).unwrap();
    let taken = port.1.to_string();
    let longer = format!("the trace ends at byte {end}, but the file goes on");

    let attach = ["attach", "--pid", "1", "--fast"];
    let run = ["run", "--engine=pager", "--best-effort", "--fast", "16MiB"];
    let rows: Vec<(Vec<&str>, &str)> = vec![
        (
            [&attach[..], &["numa:0=0", "--slow", "numa:1"]].concat(),
            "--fast: `numa:0=0`: its capacity must be above zero",
        ),
        ([&attach[..], &["swap", "--slow", "numa:1"]].concat(), "--fast: `swap`: "),
        (
            [&attach[..], &["numa:0", "--slow", "numa:1=0"]].concat(),
            "--slow: `numa:1=0`: its capacity",
        ),
        (
            [&attach[..], &["numa:0", "--slow", "numa:0"]].concat(),
            "--slow: `numa:0`: another tier is this memory",
        ),
        (
            [&attach[..], &["numa:0", "--slow", "swap", "--for", "0"]].concat(),
            "--for: must be above zero",
        ),
        (
            [&attach[..], &["numa:0", "--slow", "swap", "--for", "-1s"]].concat(),
            "`-1s` is negative; the least is 0",
        ),
        (
            vec!["run", "--tiers", "twice", "--", "true"],
            "twice:6: field `tier[1].memory`: another tier is this memory",
        ),
        (
            vec!["run", "--tiers", "versionless", "--", "true"],
            "begins with the line `ladder = 1`, which is missing",
        ),
        (
            vec!["run", "--tiers", "empty", "--", "true"],
            "begins with the line `ladder = 1`, which is missing",
        ),
        (
            vec!["run", "--tiers", "newer", "--", "true"],
            "newer:1: field `ladder`: is 2; this version of Terrace reads ladder 1 only",
        ),
        (vec!["check", "versionless"], "begins with the line `ladder = 1`, which is missing"),
        (vec!["check", "empty"], "empty: the file is empty"),
        (vec!["check", "/dev/zero"], "/dev/zero: is a device, not a file"),
        (vec!["check", "binary"], "neither a machine, ladder or memory file"),
        (
            vec!["run", "--tiers", "/dev/zero", "--", "true"],
            "--tiers: /dev/zero: is longer than 16 MiB",
        ),
        (vec!["why", "/dev/zero"], "/dev/zero:1: the line has no end"),
        ([&run[..], &["--spill", "", "--", "true"]].concat(), "--spill: the path is empty"),
        ([&run[..], &["--", ""]].concat(), "the program's name is empty"),
        (vec!["record", "-o", "x", "--", ""], "the program's name is empty"),
        (vec!["sim", "--", "./script"], "script: is not executable"),
        (vec!["sim", "--", "./directory"], "directory: is a directory"),
        (vec!["metrics", "--listen", "unix:directory"], "--listen: unix:directory: is a directory"),
        (
            vec!["metrics", "--listen", "unix:text"],
            "--listen: unix:text: a file that is no socket is there",
        ),
        (
            vec!["metrics", "--listen", "unix:socket"],
            "--listen: unix:socket: another program listens there",
        ),
        (vec!["metrics", "--listen", &taken], "another program listens there"),
        (
            vec!["record", "-o", "x", "--limit", "-1", "--", "true"],
            "invalid value '-1' for '--limit <COUNT>': expected a whole number from 1 to ",
        ),
        (
            vec!["record", "-o", "x", "--limit", "0", "--", "true"],
            "invalid value '0' for '--limit <COUNT>': expected a whole number from 1 to ",
        ),
        (
            vec!["attach", "--cgroup", "none", "--tree", "--engine", "kernel", "--fast", "1GiB"],
            "--tree: has no effect with --cgroup",
        ),
        (vec!["govern", "--each", "x", "--", "true"], "--each: has no effect with a program"),
        (
            vec!["profile", "refine", "-o", "x", "--processor", "A", "text", "--", "true"],
            "--processor: has no effect with a program",
        ),
        (vec!["sweep", "grid", "-o", "x", "--jobs", "-1"], "-1 is not in 1..=1024"),
        (vec!["run", "--fast", "-1MiB", "--", "true"], "`-1MiB` is negative; the least is 0"),
        (vec!["why", "text", "--op", "x"], "'--op <NUMBER>': expected a whole number from 0 to "),
        (
            vec!["replay", "text", "--process", "x"],
            "'--process <PID>': expected a whole number from 0 to ",
        ),
        (vec!["sweep", "grid", "-o", "x"], "grid:4: field `grid.size`: `8` has no unit"),
        (
            vec!["report", "good.trace"],
            "is a trace of memory accesses, not a recording of decisions",
        ),
        (vec!["why", "good.trace"], "`terrace sim`, `plan`, `convert` and `check` read it"),
        (
            vec!["replay", "good.trace"],
            "is a trace of memory accesses, not a recording of decisions",
        ),
        (vec!["report", "binary"], "binary:1: not text, so not a recording"),
        (
            vec!["report", "other"],
            "field `schema`: is 6; this version of Terrace reads schemas 1 to 5 only",
        ),
        (
            vec!["report", "document"],
            "is `terrace.doctor` of schema 1, not a file of recorded decisions",
        ),
        (
            vec!["sim", "--trace", "document"],
            "(recorded decisions are read by `terrace report`, `why` and `replay`)",
        ),
        (vec!["convert", "none.lackey", "x"], "none.lackey"),
        (vec!["sim", "--trace", "none.lackey"], "n"),
        (vec!["sim", "--trace", "long.trace"], &longer),
        (vec!["convert", "long.trace", "x"], &longer),
        (vec!["check", "long.trace"], &longer),
    ];
    for (arguments, expected) in rows {
        let message = bench.refused(&arguments, 2);
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
    let trace = bench.command(&["check", "good.trace"]).output().unwrap();
    let text = String::from_utf8(trace.stdout).unwrap();
    assert!(text.contains("2 accesses of "), "{text}");
}

#[test]
fn who_cannot_be_attached_to_is_said_alone() {
    let bench = Bench::new();
    let attach = |pid: &str| {
        ["attach", "--pid", pid, "--fast", "numa:0", "--slow", "swap"].map(str::to_owned)
    };
    let refused = |pid: &str, code| {
        let arguments = attach(pid);
        bench.refused(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), code)
    };
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        let message = refused("2", 2);
        assert!(
            message.contains("--pid: process 2, `kthreadd`, is a thread of the kernel"),
            "{message}"
        );
    }
    // `exec` gives the command the number of the shell.
    let output = Command::new("/bin/sh")
        .args(["-c", "exec \"$0\" attach --pid $$ --fast numa:0 --slow swap", binary_text()])
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains(" is this command itself"), "{message}");
    if common::is_root() && common::has_program("/usr/bin/setpriv") {
        let mut other = Command::new("/usr/bin/setpriv");
        other
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", binary_text()])
            .args(attach("1"));
        other.current_dir("/").stdin(Stdio::null());
        let output = other.output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        if message.contains("Permission denied") && !message.contains("terrace: ") {
            eprintln!("SKIPPED: another user cannot run {}", binary_text());
            return;
        }
        assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0), "{message}");
        let expected =
            "--pid: process 1 is of user 0, and this is user 65534: CAP_SYS_PTRACE is needed";
        assert_eq!(message, format!("terrace: {expected}\n"));
    }
}

#[test]
fn what_is_not_the_library_is_not_loaded() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    bench.write("text", "not a library");
    for (file, what) in [
        ("text", "is not terrace's library"),
        ("none", "no such file"),
        ("/bin/true", "is not terrace's library"),
    ] {
        let output = bench
            .command(&["run", "--fast", "16MiB", "--", "touch", "was-started"])
            .env("TERRACE_PRELOAD", file)
            .output()
            .unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(&format!("TERRACE_PRELOAD: {file}: {what}")), "{message}");
        assert!(!bench.path("was-started").exists());
    }
}

#[test]
fn a_runtime_directory_that_cannot_be_written_is_done_without() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    // Not even root writes there.
    let output = bench
        .command(&["run", "--fast", "16MiB", "--quiet", "--", "sh", "-c", "exit 7"])
        .env("XDG_RUNTIME_DIR", "/proc")
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(7), "{message}");
    assert!(message.contains("XDG_RUNTIME_DIR: /proc: "), "{message}");
}

#[test]
fn a_recording_may_have_any_name() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    let name = std::ffi::OsStr::from_bytes(b"odd-\xff");
    let mut run = bench.command(&["run", "--fast", "16MiB", "--quiet", "--record"]);
    let output = run.arg(name).args(["--", "true"]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(bench.0.path().join(name).exists());
}

#[test]
fn the_slow_recorder_is_not_taken_without_a_word() {
    if !common::has_program("/usr/bin/valgrind") {
        eprintln!("SKIPPED: no valgrind");
        return;
    }
    let bench = Bench::new();
    fs::create_dir(bench.path("bin")).unwrap();
    std::os::unix::fs::symlink("/usr/bin/valgrind", bench.path("bin/valgrind")).unwrap();
    let mut record = bench.command(&["record", "-o", "out", "--limit", "1", "--", "/bin/true"]);
    let output = record.env("PATH", bench.path("bin")).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    let expected =
        "warning: qemu-x86_64 is not installed (package qemu-user): valgrind records instead";
    assert!(message.contains(expected), "{message}");
}
