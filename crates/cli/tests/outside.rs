//! Memory that no budget bounds is told: in the report, in `top` and in the metrics.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use common::{await_that, binary, compile, is_supported, preload};
use serde_json::Value;

/// Has 48 MiB of the kind that it is told, says so, and goes on for a moment, or until its input
/// ends.
const HOLDER: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#define RW (PROT_READ | PROT_WRITE)
static void fill(char *p, size_t n) {
    for (size_t i = 0; i < n; i += 4096) p[i] = i >> 12 | 1;
}
static void *deep(void *unused) {
    char stack[6 << 20];
    fill(stack, sizeof stack);
    pause();
    return unused;
}
static char data[48 << 20];
int main(int argc, char **argv) {
    size_t n = 48 << 20;
    const char *kind = argv[1];
    char *p = MAP_FAILED;
    int fd = -1, children = !strcmp(kind, "forked") ? 3 : 0;
    if (!strcmp(kind, "anon") || !strcmp(kind, "brief-children") || children) p = mmap(0, n, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!strcmp(kind, "memfd") || !strcmp(kind, "thrice")) fd = memfd_create("x", 0);
    int private = -1;
    if (!strcmp(kind, "zero")) private = open("/dev/zero", O_RDWR);
    if (!strcmp(kind, "memfd-copied") || !strcmp(kind, "memfd-read")) private = memfd_create("x", 0);
    if (!strcmp(kind, "shm-copied")) private = shm_open("/terrace-test-copied", O_CREAT | O_RDWR, 0600);
    if (!strcmp(kind, "shm-copied")) shm_unlink("/terrace-test-copied");
    if (!strcmp(kind, "file-copied")) private = open("copied", O_CREAT | O_RDWR, 0600);
    if (private >= 0) {
        if (strcmp(kind, "zero") && ftruncate(private, n)) return 2;
        p = mmap(0, n, RW, MAP_PRIVATE, private, 0);
    }
    if (!strcmp(kind, "memfd-read")) {
        // Its pages are read, and none is changed.
        char *written = mmap(0, n, RW, MAP_SHARED, private, 0);
        fill(written, n);
        munmap(written, n);
        volatile char sum = 0;
        for (size_t i = 0; i < n; i += 4096) sum += p[i];
        n = 0;
    }
    if (!strcmp(kind, "static")) p = data;
    if (!strcmp(kind, "stacks")) {
        pthread_t thread;
        for (int i = 0; i < 8; i++) pthread_create(&thread, 0, deep, 0);
        n = 0;
        p = 0;
    }
#ifdef SYS_memfd_secret
    if (!strcmp(kind, "secret")) fd = syscall(SYS_memfd_secret, 0);
#endif
    if (!strcmp(kind, "shm")) fd = shm_open("/terrace-test-outside", O_CREAT | O_RDWR, 0600);
    if (fd >= 0 && !ftruncate(fd, n)) p = mmap(0, n, RW, MAP_SHARED, fd, 0);
    if (!strcmp(kind, "shm")) shm_unlink("/terrace-test-outside");
    if (!strcmp(kind, "sysv")) {
        int id = shmget(IPC_PRIVATE, n, IPC_CREAT | 0600);
        p = shmat(id, 0, 0);
        shmctl(id, IPC_RMID, 0);
    }
#ifdef __x86_64__
    if (!strcmp(kind, "raw") || !strcmp(kind, "brief") || !strncmp(kind, "at-once", 7)) {
        // Between two looks.
        if (!strcmp(kind, "brief")) usleep(400000);
        register long flags asm("r10") = MAP_PRIVATE | MAP_ANONYMOUS, file asm("r8") = -1, at asm("r9") = 0;
        asm volatile("syscall" : "=a"(p) : "a"(SYS_mmap), "D"(0), "S"(n), "d"(RW), "r"(flags), "r"(file), "r"(at)
                     : "rcx", "r11", "memory");
    }
#endif
    if (!strcmp(kind, "rawbrk")) {
        // Later the C library's allocator would take the heap's end for where it was.
        char *volatile first = malloc(64);
        free(first);
        p = (char *)syscall(SYS_brk, 0);
        if ((char *)syscall(SYS_brk, p + n) != p + n) return 2;
    }
    if (!strcmp(kind, "sbrk")) p = sbrk(n);
    if (!strcmp(kind, "reserved")) {
        // More addresses than are managed at once, and the first of them may be used.
        p = mmap(0, 64ul << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED || mprotect(p, n, RW)) return 2;
    }
    if (!strcmp(kind, "none")) n = 0;
    else if (p == MAP_FAILED) return 2;
    fill(p, n);
    if (!strcmp(kind, "thrice"))
        for (int i = 0; i < 2; i++) fill(mmap(0, n, RW, MAP_SHARED, fd, 0), n);
    if (!strcmp(kind, "brief")) munmap(p, n);
    if (!strcmp(kind, "at-once")) return 0;
    if (!strcmp(kind, "at-once-quick")) _exit(0);
    if (!strcmp(kind, "brief-children"))
        // Each has what its parent has, and ends at once.
        for (int i = 0; i < 20; i++) {
            if (fork() == 0) {
                volatile char sum = 0;
                for (size_t j = 0; j < n; j += 4096) sum += p[j];
                _exit(0);
            }
            wait(0);
        }
    for (int i = 0; i < children; i++)
        if (fork() == 0) {
            volatile char sum = 0;
            for (size_t j = 0; j < n; j += 4096) sum += p[j];
            usleep(7000000);
            _exit(0);
        }
    puts("ready");
    fflush(stdout);
    struct pollfd in = { 0, POLLIN, 0 };
    // Mappings that change little are read again after five seconds.
    poll(&in, 1, argc > 2 ? 60000 : 7000);
    while (wait(0) > 0) {}
    return 0;
}
"#;

const MIB: u64 = 1 << 20;

struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        compile(HOLDER, &directory.path().join("holder"), &["-O1", "-Wall", "-Werror", "-pthread"]);
        fs::create_dir(directory.path().join("runtime")).unwrap();
        Self(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn start(&self, fast: &str, kind: &str, arguments: &[&str]) -> (Child, PathBuf) {
        let (mut run, report) = self.run(fast, kind, arguments);
        (run.spawn().unwrap(), report)
    }

    fn run(&self, fast: &str, kind: &str, arguments: &[&str]) -> (Process, PathBuf) {
        let report = self.path().join(format!("{kind}-{fast}.json"));
        let mut run = Process::new(binary());
        run.env("TERRACE_PRELOAD", preload())
            .env("XDG_RUNTIME_DIR", self.path().join("runtime"))
            .current_dir(self.path())
            .args(["--json", "run", "--engine=pager", "--fast", fast, "--report"])
            .arg(&report)
            .args(["--", "./holder", kind])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        (run, report)
    }

    fn other(&self, arguments: &[&str]) -> String {
        let output = Process::new(binary())
            .env("XDG_RUNTIME_DIR", self.path().join("runtime"))
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Whether a program may have so much memory of `memfd_secret`: it is locked, which has a limit, and kernels are
/// built, and started, without it.
fn has_secret_memory(bench: &Bench) -> bool {
    let mut holder = Process::new("./holder");
    holder.arg("secret").current_dir(bench.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let has = holder.output().unwrap().status.success();
    if !has {
        terrace_shown::is_missing("memory of memfd_secret");
    }
    has
}

/// What lies outside for a cause, MiB.
fn part(report: &Value, cause: &str) -> u64 {
    let causes = report["outside"]["causes"].as_array().into_iter().flatten();
    let part = causes.into_iter().find(|part| part["cause"] == cause);
    part.map_or(0, |part| part["peak"].as_u64().unwrap() / MIB)
}

#[test]
fn every_kind_of_memory_that_is_not_managed_is_told_for_what_it_is() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    let mut kinds = vec![
        ("16MiB", "anon", "shared"),
        ("16MiB", "memfd", "shared"),
        ("16MiB", "shm", "shared"),
        ("16MiB", "sysv", "shared"),
        ("16MiB", "forked", "shared"),
        ("16MiB", "brief-children", "shared"),
        ("16MiB", "thrice", "shared"),
        ("16MiB", "memfd-read", "shared"),
        ("16MiB", "zero", "file-copies"),
        ("16MiB", "memfd-copied", "file-copies"),
        ("16MiB", "shm-copied", "file-copies"),
        ("16MiB", "file-copied", "file-copies"),
        ("16MiB", "static", "not-asked"),
        ("16MiB", "stacks", "not-asked"),
        ("256MiB", "anon", "shared"),
        ("16MiB", "none", ""),
        ("16MiB", "sbrk", ""),
    ];
    if has_secret_memory(&bench) {
        kinds.push(("16MiB", "secret", "secret"));
    }
    if cfg!(target_arch = "x86_64") {
        kinds.push(("16MiB", "raw", "not-asked"));
        kinds.push(("16MiB", "rawbrk", "not-asked"));
        kinds.push(("16MiB", "at-once", "not-asked"));
        kinds.push(("16MiB", "at-once-quick", "not-asked"));
    }
    let runs: Vec<_> = kinds.iter().map(|(fast, kind, _)| bench.start(fast, kind, &[])).collect();

    for ((mut run, report), (fast, kind, cause)) in runs.into_iter().zip(kinds) {
        // Its input stays open.
        let input = run.stdin.take();
        assert!(run.wait().unwrap().success(), "{kind}");
        drop(input);
        let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();

        // The heap is managed however it grows through the C library; it may be filled faster than
        // room can be made.
        if kind == "sbrk" {
            assert!(report["outside"].is_null() && report["nothing_managed"].is_null(), "{report}");
            assert!(report["total"]["demotions"].as_u64().unwrap() > 1000, "{report}");
            continue;
        }
        assert_eq!(report["budget_kept_managed"], true, "{kind}: {report}");
        if kind == "none" {
            assert!(report["outside"].is_null(), "{report}");
            assert_eq!(
                (&report["budget_kept"], &report["nothing_managed"]),
                (&true.into(), &"fits".into())
            );
            continue;
        }
        // What children have, too, is there once.
        assert!((40..60).contains(&part(&report, cause)), "{kind}: {}", report["outside"]);
        assert_eq!(report["budget_kept"], fast == "256MiB", "{kind}: {}", report["outside"]);
        assert_eq!(report["nothing_managed"], "outside", "{kind}: {report}");
    }
}

/// Terrace begins to manage, and cannot read what is mapped: which part of a large reservation is
/// accessible by then nobody knows.
#[test]
fn what_is_used_of_a_large_reservation_is_told_where_the_kernel_does_not_say_what_is_mapped() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    let start = |fast, fault: Option<&str>| {
        let (mut run, report) = bench.run(fast, "reserved", &[]);
        run.envs(fault.map(|fault| ("TERRACE_INJECT", fault)));
        (run.spawn().unwrap(), report)
    };
    let runs = [start("16MiB", None), start("20MiB", Some("mappings:1:refuse"))];
    let [managed, told] = runs.map(|(mut run, report)| {
        // Its input stays open.
        let input = run.stdin.take();
        assert!(run.wait().unwrap().success());
        drop(input);
        serde_json::from_slice::<Value>(&fs::read(report).unwrap()).unwrap()
    });

    assert_eq!(part(&managed, "not-noted"), 0, "{managed}");
    assert!(managed["total"]["demotions"].as_u64().unwrap() > 1000, "{managed}");
    assert!((40..60).contains(&part(&told, "not-noted")), "{}", told["outside"]);
    assert_eq!(told["budget_kept"], false, "{told}");
}

/// What nobody has looked at in time is bounded by the kernel's own count.
#[test]
#[cfg(target_arch = "x86_64")]
fn what_came_and_went_between_two_looks_is_bounded() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    let (mut run, report) = bench.start("16MiB", "brief", &[]);
    let input = run.stdin.take();
    assert!(run.wait().unwrap().success());
    drop(input);
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();

    let seen = part(&report, "not-asked");
    let unseen = report["unseen_peak"].as_u64().unwrap() / MIB;
    assert!((40..60).contains(&(seen + unseen)), "{seen} and {unseen}: {report}");
    assert!(report["process_peak"].as_u64().unwrap() >= 48 * MIB, "{report}");
}

#[test]
fn others_see_it_while_the_program_runs() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    let (mut run, _) = bench.start("16MiB", "anon", &["stay"]);
    let mut line = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");

    let told = |metrics: &str| {
        let line = metrics.lines().find(|line| {
            line.starts_with("terrace_outside_bytes{") && line.contains("cause=\"shared\"")
        });
        line.is_some_and(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() > 40e6)
    };
    let mut metrics = String::new();
    await_that(Duration::from_mins(1), "the metrics", || {
        metrics = bench.other(&["metrics", "holder", "--once"]);
        told(&metrics)
    });
    let top: Value = serde_json::from_str(&bench.other(&["--json", "top", "holder"])).unwrap();
    let text = bench.other(&["top", "holder"]);

    drop(run.stdin.take());
    assert!(run.wait().unwrap().success());
    assert!(metrics.contains("terrace_outside_peak_bytes{"), "{metrics}");
    let seen = &top["runs"][0]["outside"];
    assert!(seen["now"].as_u64().unwrap() >= 40 * MIB, "{top}");
    assert!(text.contains("shared memory, 48."), "{text}");
}
