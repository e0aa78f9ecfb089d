//! Standard output and standard error do not decide what becomes of a command: both may be full,
//! closed, or a pipe whose reader has gone.

mod common;

use std::fs;
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{binary, binary_text, compile, is_supported, preload, run_words};

/// A command, with the library that belongs to it.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).stdin(Stdio::null()).env("TERRACE_PRELOAD", preload());
    command
}

fn full() -> Stdio {
    fs::File::options().write(true).open("/dev/full").unwrap().into()
}

/// A pipe whose reader has gone.
fn abandoned() -> PipeWriter {
    pipe().unwrap().1
}

/// What a command does with standard error as it should be, full, without a reader, and closed.
fn statuses(arguments: &[&str]) -> [Option<i32>; 4] {
    let status = |stderr: Stdio| {
        command(arguments).stdout(Stdio::null()).stderr(stderr).status().unwrap().code()
    };
    let mut closed = Command::new("/bin/sh");
    closed.args(["-c", "exec \"$@\" 2>&-", "sh", binary_text()]).args(arguments);
    closed.stdin(Stdio::null()).stdout(Stdio::null()).env("TERRACE_PRELOAD", preload());
    let closed = closed.status().unwrap().code();
    [status(Stdio::null()), status(full()), status(abandoned().into()), closed]
}

#[test]
fn nobody_s_exit_status_depends_on_standard_error() {
    let (machine, none) = ("../../machines/cxl.toml", "/no/such/file");
    let plain = [&run_words(&[])[..], &["sh", "-c", "exit 7"]].concat();
    let watched = [&run_words(&["--watch=10ms"])[..], &["sleep", "0.1"]].concat();
    let commands: [(&[&str], i32); 9] = [
        (&plain, 7),
        (&watched, 0),
        (&["run", "--fast", "16MiB", "--", none], 2),
        (&["run"], 2),
        (&[], 2),
        (&["check", machine], 0),
        (&["check", none], 2),
        (&["why", none], 2),
        (&["record", "-o", none, "--", none], 2),
    ];
    for (arguments, expected) in commands {
        assert_eq!(statuses(arguments), [Some(expected); 4], "{arguments:?}");
    }
}

/// A pipe that has no room, and its reader, which does not read.
fn unread() -> (PipeReader, PipeWriter) {
    let (reader, writer) = pipe().unwrap();
    // The handle that commands get waits, as pipes do; this is another.
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let mut own = fs::File::options();
    let mut own = own.write(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
    while own.write_all(&[b'x'; 4096]).is_ok() {}
    (reader, writer)
}

/// A command that said something never ended, although its program had. Here it would be ended by
/// `timeout`.
#[test]
fn a_reader_of_standard_error_who_does_not_read_holds_nobody_up() {
    let (_reader, writer) = unread();
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report");
    let report_to = report.to_str().unwrap();
    let (none, program) = ("/no/such/file", ["sh", "-c", "sleep 0.1; exit 7"]);
    let run = |options: &[&str]| -> Vec<String> {
        let words = [&run_words(options)[..], &program].concat();
        words.into_iter().map(str::to_owned).collect()
    };
    let commands = [
        (run(&[]), 7),
        (run(&["--report", report_to]), 7),
        (run(&["--watch=10ms", "--json", "--report", report_to]), 7),
        (vec!["check".to_owned(), none.to_owned()], 2),
        (vec!["run".to_owned()], 2),
    ];
    for (arguments, expected) in commands {
        let has = |option: &str| arguments.iter().any(|word| word == option);
        let mut limited = Command::new("timeout");
        limited.args(["-k", "1", "300", binary_text()]).args(&arguments);
        // Without a place for its figures, or where nothing can be managed, a run says so before it
        // begins.
        limited.env("TERRACE_PRELOAD", preload()).env("XDG_RUNTIME_DIR", "/proc");
        limited.stdin(Stdio::null()).stdout(Stdio::null());
        let stderr = writer.try_clone().unwrap();
        let status = limited.stderr(stderr).status().unwrap();
        assert_eq!(status.code(), Some(expected), "{arguments:?}");
        if has("--json") {
            let text = fs::read_to_string(&report).unwrap();
            assert!(text.contains("\"lines_lost\":"), "{text}");
        } else if has("--report") {
            let text = fs::read_to_string(&report).unwrap();
            assert!(text.contains("not taken by standard error\n"), "{text}");
        }
    }
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure_but_not_one_that_nobody_reads() {
    let arguments: [&[&str]; 4] =
        [&["check", "../../machines/cxl.toml"], &["--version"], &["run", "--help"], &["man"]];
    for arguments in arguments {
        let output = command(arguments).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("terrace: stdout: No space left"), "{arguments:?}: {stderr}");
        let output = command(arguments).stdout(abandoned()).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

/// Uses more memory than it has; writes a line to standard error before and after that, if it has
/// an argument.
const WRITER: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    size_t size = 8 << 20;
    if (argc > 1) fputs("begin\n", stderr);
    char *m = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int turn = 0; turn < 40; turn++) {
        for (size_t i = 0; i < size; i += 4096) m[i] = turn;
        usleep(5000);
    }
    if (argc > 1) fputs("end\n", stderr);
    return 5;
}
"#;

fn written(directory: &Path, arguments: &[&str], stderr: Stdio) -> Option<i32> {
    let program = directory.join("writer");
    if !program.exists() {
        compile(WRITER, &program, &["-O1"]);
    }
    // A thread of Terrace's dies, on purpose, and Terrace says so from within the program.
    let mut run = command(&["run", "--engine=pager", "--quiet", "--fast", "4MiB", "--"]);
    run.arg(&program).args(arguments).env("TERRACE_INJECT", "tick:1:panic").stderr(stderr);
    run.status().unwrap().code()
}

/// A descriptor that is opened anew has a position of its own: the program's next line would be
/// written over Terrace's.
#[test]
fn what_terrace_says_from_within_a_program_stays_in_the_file() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stderr");

    let to = fs::File::create(&file).unwrap().into();
    assert_eq!(written(directory.path(), &["aloud"], to), Some(5));

    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let [first, panic, injected, consequence, last] = lines[..] else { panic!("{text}") };
    assert_eq!((first, injected, last), ("begin", "injected at Tick", "end"), "{text}");
    assert!(panic.starts_with("terrace: panicked at "), "{text}");
    assert!(consequence.starts_with("terrace: internal error"), "{text}");
}

#[test]
fn a_program_outlives_what_terrace_says_to_nobody() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(written(directory.path(), &[], abandoned().into()), Some(5));
    assert_eq!(written(directory.path(), &[], full()), Some(5));
}
