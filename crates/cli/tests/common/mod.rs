//! What the tests of the command line share.

// Each test binary uses its own part.
#![allow(dead_code)]

pub(crate) mod kloc;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use snapbox::cmd::Command;
use terrace_core::{BytesPerSecond, Nanos};
use terrace_live::costs::{CostsFile, Fingerprint, Measured};

/// Writes a file of prices as `terrace calibrate` does, for who has this directory as its state.
pub(crate) fn costs_of_this_machine(state: &Path) {
    let measured = Measured {
        user_fault: Nanos(7000),
        bring_in: Nanos(900),
        take_out: Nanos(1100),
        compress: Nanos(3000),
        decompress: Nanos(1200),
        copy_bandwidth: BytesPerSecond(7.25e9),
        parallelism: 7.0,
        interference: 0.25,
    };
    let file = CostsFile { machine: Fingerprint::of_this_machine(), measured };
    std::fs::create_dir_all(state.join("terrace")).unwrap();
    std::fs::write(state.join("terrace/costs.toml"), file.text()).unwrap();
}

/// A profile's file as if it had no rules.
pub(crate) fn without_rules(profile: &str) -> String {
    let profile = profile.replace("\nrules 1\n", "\nrules 0\n");
    profile.split_inclusive('\n').filter(|line| !line.starts_with("rule ")).collect()
}

/// The command under test: the one that `TERRACE_BIN` names, as `make` has built it, which is what users
/// get; where there is none, the one that Cargo has built for these tests.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if !is_set("TERRACE_BIN") {
            return snapbox::cmd::cargo_bin!("terrace").to_owned();
        }
        let named = PathBuf::from(std::env::var_os("TERRACE_BIN").unwrap());
        // Many tests run it in a directory of their own.
        named.canonicalize().unwrap_or_else(|e| panic!("TERRACE_BIN: {}: {e}", named.display()))
    })
}

/// The same as a word of a command line.
pub(crate) fn binary_text() -> &'static str {
    binary().to_str().unwrap()
}

/// The command under test, without the settings of whoever runs the tests.
pub(crate) fn terrace() -> Command {
    Command::new(binary())
        .env_remove("TERRACE_ROOT")
        .env_remove("LD_PRELOAD")
        .env_remove("TERRACE_PRELOAD")
        // Help is as wide as the terminal; without one it is the same everywhere.
        .env_remove("COLUMNS")
        .stdin("")
}

/// A run by the pager. Where memory cannot be managed, the program runs all the same: most of what
/// is tested holds then, too.
const RUN: [&str; 3] = ["run", "--engine=pager", "--best-effort"];

/// `terrace run` with the library that belongs to it.
pub(crate) fn run(fast: &str) -> Command {
    terrace().env("TERRACE_PRELOAD", preload()).args(RUN).args(["--fast", fast])
}

/// The same in 16 MiB as words, for tests that start the command in a way of their own: up to
/// where the program begins.
pub(crate) fn run_words<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&RUN[..], &["--fast", "16MiB"], options, &["--"]].concat()
}

/// Asks the kernel for what managing memory takes, in the way of the manual page and not in
/// ours: a handle that serves system calls, too, with forks and `UFFDIO_MOVE`. The numbers
/// are those of Linux 6.8's `linux/userfaultfd.h`, for older headers.
const PROBE: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    int uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
    if (uffd == -1) {
        int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
        if (device != -1) uffd = ioctl(device, 0xAA00 /* USERFAULTFD_IOC_NEW */, O_CLOEXEC);
    }
    if (uffd == -1) { printf("userfaultfd: %s\n", strerror(errno)); return 3; }
    struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_EVENT_FORK };
    if (ioctl(uffd, UFFDIO_API, &api)) { printf("forks: %s\n", strerror(errno)); return 3; }
    if (!(api.features & 1 << 16)) { puts("no UFFDIO_MOVE"); return 3; }
    return 0;
}
"#;

/// Why memory cannot be managed on this machine, by a probe of our own: were it the doctor
/// who is asked, a doctor who is wrong would have all these tests pass.
pub(crate) fn probe() -> &'static Result<(), String> {
    static PROBED: OnceLock<Result<(), String>> = OnceLock::new();
    PROBED.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("probe");
        compile(PROBE, &program, &["-Wall", "-Werror"]);
        let output = Process::new(program).output().unwrap();
        match output.status.code() {
            Some(0) => Ok(()),
            Some(3) => Err(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            _ => panic!("{output:?}"),
        }
    })
}

/// Whether memory can be managed on this machine. Where that is taken for granted, it is a
/// failure that it cannot: in continuous integration (`CI`), and under `make unit`
/// (`TERRACE_BIN`), which sees to the rights.
pub(crate) fn is_supported() -> bool {
    let granted = is_set("CI") || is_set("TERRACE_BIN");
    is_supported_by(probe(), granted && !is_unsupported_allowed())
}

/// The same by what a probe found, and whether that may be nothing.
pub(crate) fn is_supported_by(probed: &Result<(), String>, must_be: bool) -> bool {
    match probed {
        Ok(()) => true,
        Err(why) => {
            assert!(
                !must_be,
                "memory cannot be managed here ({why}), so that nothing would be tested; \
                 TERRACE_UNSUPPORTED_OK=1 allows that"
            );
            eprintln!("SKIPPED: memory cannot be managed here: {why}");
            false
        }
    }
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

fn is_unsupported_allowed() -> bool {
    std::env::var_os("TERRACE_UNSUPPORTED_OK").is_some_and(|value| value == "1")
}

/// Whether this is root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether the doctor says that the kernel's engine can be had; if not, says what is missing.
pub(crate) fn has_kernel_engine() -> bool {
    let output = terrace().args(["doctor", "--json"]).output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let support = &document["kernel_engine"];
    if support["works"] == true && support["parts"][1]["has"].is_string() {
        return true;
    }
    terrace_shown::is_missing(&format!("what the kernel's engine needs: {support}"));
    false
}

/// What tests call that use a terminal or another user.
pub(crate) fn has_program(path: &str) -> bool {
    Path::new(path).exists()
}

/// Waits until something is so.
pub(crate) fn await_that(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < until, "it never came: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The library that `run` loads into programs.
pub(crate) fn preload() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| library("terrace-preload", "libterrace_preload.so"))
}

/// The plugin that records programs under QEMU.
pub(crate) fn recorder() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| library("terrace-recorder", "libterrace_recorder.so"))
}

/// A library of another crate: what lies beside the command that `TERRACE_BIN` names, as `make`
/// has built it. Cargo builds none for a test, so that it is built on first use where there is
/// no such command: into the directory and profile of the command under test, with most of what
/// it depends on once more, for other features of that are wanted then.
fn library(package: &str, file: &str) -> PathBuf {
    let made = std::env::var_os("TERRACE_BIN").map(|bin| Path::new(&bin).with_file_name(file));
    if let Some(made) = made.filter(|made| made.exists()) {
        return made;
    }
    let directory = snapbox::cmd::cargo_bin!("terrace").parent().unwrap();
    let mut cargo = Process::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", package]);
    cargo.arg("--target-dir").arg(directory.parent().unwrap());
    if directory.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "{package} does not build");
    directory.join(file)
}

/// Runs a command that must print one JSON document of ours on stdout.
pub(crate) fn json(command: Command, exit_code: i32) -> serde_json::Value {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(exit_code), "{output:?}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["schema"], 1);
    document
}

/// Runs a command that must refuse its input: exit code 2, nothing on stdout,
/// and on stderr one line of ours, which is returned without its prefix.
pub(crate) fn refused(command: Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    let line = stderr.strip_suffix('\n').unwrap();
    assert!(!line.contains('\n'), "more than one line: {line}");
    line.strip_prefix("terrace: ").unwrap_or_else(|| panic!("no prefix: {line}")).to_owned()
}

/// Builds a C program.
pub(crate) fn compile(source: &str, to: &Path, flags: &[&str]) {
    let from = to.with_extension("c");
    std::fs::write(&from, source).unwrap();
    let done = Process::new("cc").args(flags).arg("-o").arg(to).arg(&from).status().unwrap();
    assert!(done.success(), "cc failed on {}", from.display());
}

/// A document of ours.
pub(crate) fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The commands of a document that stand behind `<!-- example: NAME -->`.
pub(crate) fn example(document: &str, name: &str) -> String {
    let text = page(document);
    let begin = format!("<!-- example: {name} -->\n```sh\n");
    let rest = text.split_once(&begin).map(|(_, rest)| rest);
    let block = rest.and_then(|rest| rest.split_once("```")).map(|(block, _)| block);
    block.unwrap_or_else(|| panic!("docs/{document} has no example `{name}`")).to_owned()
}

/// A shell that runs commands as a document shows them, in a directory of their own. It ends with
/// the first that fails.
pub(crate) fn shell(script: &str, directory: &Path) -> Process {
    let bin = binary().parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let begin = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n";
    let mut shell = Process::new("timeout");
    shell.args(["--foreground", "-k", "10", "200", "bash", "-c", &format!("{begin}{script}")]);
    shell.current_dir(directory).env("PATH", path).stdin(Stdio::null());
    for setting in ["TERRACE_ROOT", "TERRACE_PRELOAD", "LD_PRELOAD"] {
        shell.env_remove(setting);
    }
    shell
}

/// The standard output of commands of a document, which must all succeed.
pub(crate) fn shown_works(shell: &mut Process) -> String {
    let output = shell.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{shell:?}\n{}\n{out}\n{err}", output.status);
    out
}

/// A file that the kernel swaps to, until it is dropped.
pub(crate) struct Swap(PathBuf);

impl Swap {
    /// A file of our own, of 96 MiB; `None` where that is not possible.
    pub(crate) fn on() -> Option<Self> {
        // Tests of one program run at the same time.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (us, number) = (std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let path = PathBuf::from(format!("/var/tmp/terrace-test-swap-{us}-{number}"));
        let swap = Self(path.clone());
        let did = |command: &mut Process| {
            command.arg(&path).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let on = did(Process::new("fallocate").args(["-l", "96MiB"]))
            && did(Process::new("chmod").arg("600"))
            && did(&mut Process::new("mkswap"))
            && did(&mut Process::new("swapon"));
        on.then_some(swap)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Process::new("swapoff").arg(&self.0).stderr(Stdio::null()).status();
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A control group with one below it, of either version.
pub(crate) struct Group(pub(crate) PathBuf);

impl Group {
    /// Empty groups; `None` where they cannot be made.
    pub(crate) fn new() -> Option<Self> {
        let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
        let name = format!("terrace-test-{}", std::process::id());
        let path = roots.into_iter().map(|root| Path::new(root).join(&name));
        let group =
            path.into_iter().find(|path| std::fs::create_dir_all(path.join("below")).is_ok())?;
        let group = Self(group);
        group.0.join("below/cgroup.procs").exists().then_some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for path in [self.0.join("below"), self.0.clone()] {
            let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
            while path.exists()
                && std::fs::remove_dir(&path).is_err()
                && std::time::Instant::now() < until
            {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}

/// Holds 24 MiB, of which it touches one again and again; checks all of it when its
/// input ends.
pub(crate) const HOLDER: &str = r#"
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
int main(void) {
    size_t pages = 24 * 256;
    size_t *m = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < pages * 512; i++) m[i] = i * 77;
    puts("ready");
    fflush(stdout);
    struct pollfd in = { 0, POLLIN, 0 };
    while (poll(&in, 1, 10) == 0)
        for (size_t i = 0; i < 256; i++) (*(volatile size_t *)&m[i * 512])++, m[i * 512]--;
    for (size_t i = 0; i < pages * 512; i++)
        if (m[i] != i * 77) { puts("wrong"); return 1; }
    puts("right");
    return 0;
}
"#;

/// Asks for a path; gives the status line and the body.
pub(crate) fn ask(mut connection: impl Read + Write, path: &str) -> (String, String) {
    write!(connection, "GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}
