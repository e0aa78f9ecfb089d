//! `terrace run`: the program must not be able to tell, and whoever started it
//! neither, but for the report.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{
    binary, binary_text, compile, has_program, is_root, is_supported, preload, run, run_words,
    terrace,
};
use terrace_shown::is_missing;

/// `terrace run` of a shell script, as a process that can be signalled. The
/// script must print a line when it is ready; it is ready on return.
fn start(script: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    // Under `nohup`, say, the tests begin with a signal ignored, and a shell
    // cannot trap what was ignored when it began.
    let mut child = Command::new("env")
        .args(["--default-signal", "--"])
        .arg(binary())
        .args(run_words(&[]))
        .args(["sh", "-c", script])
        .env("TERRACE_PRELOAD", preload())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, stdout)
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status();
    assert!(sent.unwrap().success());
}

fn stderr_of(mut child: Child) -> (Option<i32>, String) {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    (child.wait().unwrap().code(), text)
}

#[test]
fn the_exit_status_passes_through() {
    for (script, status) in [("exit 0", 0), ("exit 37", 37), ("exit 255", 255)] {
        let output = run("16MiB").args(["--", "sh", "-c", script]).output().unwrap();

        assert_eq!(output.status.code(), Some(status), "{script}: {output:?}");
    }
}

#[test]
fn a_death_by_signal_is_reported_as_shells_do() {
    for (name, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11)] {
        let script = format!("kill -{name} $$");
        let output = run("16MiB").args(["--", "sh", "-c", &script]).output().unwrap();

        assert_eq!(output.status.code(), Some(128 + number), "{output:?}");
    }
}

/// Begins what it is told with an environment that no shell would make.
const ODD_ENVIRONMENT: &str = r#"
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
    static char preload[4096] = "TERRACE_PRELOAD=";
    for (char *to = preload + 16, *from = getenv("TERRACE_PRELOAD"); (*to++ = *from++);) {}
    char *odd[] = { "Z=1", "bare", "A=2", "=x", "A=3", "LD_PRELOAD=", preload, "B=", "\xff=\xfe",
                    "ASAN_OPTIONS=a", "PATH=/usr/bin:/bin", "LD_PRELOAD=", "C=\n", 0 };
    execve(argv[1], argv + 1, odd);
    return 9;
}
"#;

#[test]
fn a_program_finds_the_environment_that_it_would_have_entry_by_entry() {
    let directory = tempfile::tempdir().unwrap();
    let odd = directory.path().join("odd");
    compile(ODD_ENVIRONMENT, &odd, &["-O1", "-Wall", "-Werror"]);
    let entries = |through: &[&str]| {
        let output = Command::new(&odd)
            .args(through)
            .args(["/bin/cat", "/proc/self/environ"])
            .env("TERRACE_PRELOAD", preload())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let entries = output.stdout.split(|&byte| byte == 0).map(<[u8]>::to_vec);
        entries.collect::<Vec<_>>()
    };
    let terrace = binary_text();
    let plain = entries(&[]);
    assert_eq!(plain.len(), 14, "{plain:?}");

    let mut found = entries(&[&[terrace][..], &run_words(&["--quiet"])].concat());

    // Where nothing can be managed nothing is added.
    if is_supported() {
        // One variable is new, and is the last; the rest stays where it is.
        assert!(found.remove(plain.len() - 1).starts_with(b"TERRACE="), "{found:?}");
    }
    assert_eq!(found.len(), plain.len(), "{found:?}");
    for (found, plain) in found.iter().zip(&plain) {
        let is_ours =
            [&b"LD_PRELOAD="[..], b"ASAN_OPTIONS="].iter().any(|ours| plain.starts_with(ours));
        if is_ours && is_supported() {
            assert!(found.starts_with(plain) && found.len() > plain.len(), "{found:?}");
        } else {
            assert_eq!(found, plain);
        }
    }
}

/// A library of the user's that takes the program's calls and looks for the next functions by the
/// loader in the middle of them. With `MORE` it takes several, under a lock of its own.
const INTERPOSER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
long interposed;
void free(void *block) {
    static void (*next)(void *);
    if (!next) next = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    pthread_mutex_lock(&lock);
    interposed++;
    next(block);
    pthread_mutex_unlock(&lock);
}
#ifdef MORE
void *malloc(size_t bytes) {
    static void *(*next)(size_t);
    if (!next) next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    pthread_mutex_lock(&lock);
    void *block = next(bytes);
    pthread_mutex_unlock(&lock);
    return block;
}
void *mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset) {
    static void *(*next)(void *, size_t, int, int, int, off_t);
    if (!next) next = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
    pthread_mutex_lock(&lock);
    void *mapped = next(at, bytes, access, flags, file, offset);
    pthread_mutex_unlock(&lock);
    return mapped;
}
#endif
"#;

/// 40 MB in small blocks, three times; asks first whether the loader has an error for it.
const SMALL_BLOCKS: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { BLOCKS = 400, BYTES = 100000 };
int main(void) {
    static unsigned char *blocks[BLOCKS];
    const char *error = dlerror();
    if (error) { puts(error); return 3; }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            if (!(blocks[i] = malloc(BYTES))) return 4;
            memset(blocks[i], i + round, BYTES);
        }
        for (int i = 0; i < BLOCKS; i++) {
            for (int at = 0; at < BYTES; at += 1000)
                if (blocks[i][at] != (unsigned char)(i + round)) return 5;
            free(blocks[i]);
        }
    }
    puts("ok");
    return 0;
}
"#;

/// The library's `free` was called by the loader, which freed an error of ours, while it looked
/// for the next `free`: again and again, until the stack was full.
#[test]
fn a_library_that_the_user_preloads_may_look_for_the_next_functions_in_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    compile(SMALL_BLOCKS, &program, &["-O1", "-fno-builtin"]);
    for more in [&[][..], &["-DMORE"]] {
        let library = directory.path().join(format!("interposer{}.so", more.len()));
        compile(INTERPOSER, &library, &[&["-O1", "-shared", "-fPIC", "-pthread"], more].concat());
        let report = directory.path().join("report.json");
        let in_report = report.to_str().unwrap();

        let output = run("16MiB")
            .env("LD_PRELOAD", &library)
            .args(["--json", "--report", in_report, "--"])
            .arg(&program)
            .output()
            .unwrap();

        assert_eq!(output.status.code(), Some(0), "{more:?}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{more:?}");
        if is_supported() {
            let report: serde_json::Value =
                serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
            assert!(report["total"]["demotions"].as_u64() > Some(1000), "{more:?}: {report}");
        }
    }
}

#[test]
fn input_output_and_arguments_pass_through() {
    let text = "some\ntext\n";
    let output = run("16MiB").args(["--quiet", "--", "cat"]).stdin(text).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), text);
    assert!(output.stderr.is_empty(), "{output:?}");

    // What follows the program is its own, whether or not it looks like ours.
    let output = run("16MiB").args(["--quiet", "echo", "--json", "--fast", "--"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "--json --fast --\n");
}

#[test]
fn the_program_sees_the_name_it_was_called_by() {
    let output = run("16MiB").args(["--quiet", "--", "sh", "-c", "echo $0"]).output().unwrap();

    assert_eq!(String::from_utf8_lossy(&output.stdout), "sh\n");
}

#[test]
fn signals_sent_to_us_reach_the_program() {
    for name in ["TERM", "HUP", "QUIT", "USR2", "INT"] {
        let script = format!(
            "trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.05; done"
        );
        let (child, mut stdout) = start(&script);

        signal(&child, name);

        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, format!("got {name}\n"));
        assert_eq!(stderr_of(child).0, Some(5));
    }
}

/// Counts its interrupts for a second. Not a shell: those take two that come
/// close together for one.
const COUNTER: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static volatile sig_atomic_t interrupts;
static void count(int signal) { (void)signal; interrupts++; }
int main(void) {
    signal(SIGINT, count);
    puts("ready");
    fflush(stdout);
    for (int i = 0; i < 6000 && !interrupts; i++) usleep(10000);
    // A second one would come by now.
    struct timespec left = { 1, 0 };
    while (nanosleep(&left, &left) != 0) {}
    printf("interrupts: %d\n", (int)interrupts);
    return 0;
}
"#;

#[test]
fn an_interrupt_typed_at_the_terminal_reaches_the_program_once() {
    // The terminal signals the whole foreground group: us and the program.
    if !has_program("/usr/bin/script") {
        is_missing("script");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let counter = dir.path().join("counter");
    compile(COUNTER, &counter, &["-O1"]);
    // `exec`: a shell that stays would be interrupted too, and end with 130.
    let command = format!(
        "exec {} run --best-effort --quiet --fast 16MiB -- {}",
        binary().display(),
        counter.display()
    );
    let mut terminal = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env("TERRACE_PRELOAD", preload())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(terminal.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("ready") {
        assert_ne!(output.read_line(&mut text).unwrap(), 0, "ended early: {text}");
    }

    let mut keyboard = terminal.stdin.take().unwrap();
    keyboard.write_all(b"\x03").unwrap();
    keyboard.flush().unwrap();

    output.read_to_string(&mut text).unwrap();
    assert!(text.contains("interrupts: 1"), "{text}");
    assert_eq!(terminal.wait().unwrap().code(), Some(0));
}

#[test]
fn a_signal_that_was_ignored_before_us_is_ignored_in_the_program() {
    // As under nohup. A handler of ours would be reset to the default action.
    let script = format!(
        "trap '' HUP; exec {} run --best-effort --quiet --fast 16MiB -- \
         sh -c 'kill -HUP $$; echo alive'",
        binary().display()
    );
    let output = Command::new("sh")
        .args(["-c", &script])
        .env("TERRACE_PRELOAD", preload())
        .output()
        .unwrap();

    assert_eq!(String::from_utf8_lossy(&output.stdout), "alive\n", "{output:?}");
}

#[test]
fn the_program_ignores_and_blocks_the_signals_that_it_would_without_us() {
    // CHLD: the kernel would not tell us how the program has ended. PIPE: Rust's runtime
    // ignores it, and has its children take it. The others we handle.
    let signals =
        ["--ignore-signal=CHLD,HUP,INT,PIPE,QUIT,USR1", "--block-signal=TERM,INT,USR1,USR2,WINCH"];
    let shown = |program: &[&str]| {
        let output = Command::new("env")
            .args(signals)
            .args(program)
            .args(["sh", "-c", "grep -E 'Sig(Ign|Blk)' /proc/self/status; exit 7"])
            .env("TERRACE_PRELOAD", preload())
            .output()
            .unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.code())
    };
    let terrace = binary_text();

    let with_us = shown(&[&[terrace][..], &run_words(&["--quiet"])].concat());

    assert_eq!(with_us, shown(&[]));
    assert!(with_us.0.starts_with("SigBlk:") && with_us.1 == Some(7), "{with_us:?}");
}

/// Ends with 7 at the first of the signals that are handed on. Blocks them until it is ready.
const TAKES_ALL: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static void end(int signal) { (void)signal; _exit(7); }
int main(void) {
    int signals[] = { SIGTERM, SIGHUP, SIGQUIT, SIGINT, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF,
                      SIGWINCH, SIGURG, SIGIO, SIGRTMIN, SIGRTMIN + 3, SIGRTMAX };
    sigset_t set;
    sigemptyset(&set);
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++) {
        signal(signals[i], end);
        sigaddset(&set, signals[i]);
    }
    puts("ready");
    fflush(stdout);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    sleep(20);
    return 0;
}
"#;

/// A script's background job begins with SIGINT and SIGQUIT ignored, and may be a server that
/// is to be shut down by them.
#[test]
fn a_signal_that_was_ignored_or_blocked_before_us_reaches_a_program_that_takes_it() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("takes_all");
    compile(TAKES_ALL, &program, &["-O1"]);
    for before in ["--ignore-signal", "--block-signal"] {
        let names =
            ["TERM", "HUP", "QUIT", "USR2", "INT", "ALRM", "VTALRM", "PROF", "WINCH", "URG"];
        for name in names.into_iter().chain(["IO", "RTMIN", "RTMIN+3", "RTMIN+30"]) {
            let mut child = Command::new("env")
                .arg(format!("{before}={name}"))
                .arg(binary())
                .args(run_words(&["--quiet"]))
                .arg(&program)
                .env("TERRACE_PRELOAD", preload())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();

            signal(&child, name);

            assert_eq!(child.wait().unwrap().code(), Some(7), "{before}={name}");
        }
    }
}

/// Sends a process so many signals of two kinds: `SIGRTMIN + 1` with a value, and `SIGRTMIN + 2`.
/// Without a process it takes as many, in that order, and looks at what comes with them.
const QUEUES: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
enum { MANY = 100 };
static int take(int signal, siginfo_t *info) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    return sigwaitinfo(&one, info) != signal;
}
int main(int argc, char **argv) {
    if (argc > 1) {
        pid_t to = atoi(argv[1]);
        for (int i = 0; i < MANY; i++) {
            union sigval value = { .sival_ptr = (void *)(0x123400000000 + i) };
            while (sigqueue(to, SIGRTMIN + 1, value)) usleep(1000);
            if (kill(to, SIGRTMIN + 2)) return 9;
        }
        return 0;
    }
    sigset_t both;
    sigemptyset(&both);
    sigaddset(&both, SIGRTMIN + 1);
    sigaddset(&both, SIGRTMIN + 2);
    sigprocmask(SIG_BLOCK, &both, NULL);
    puts("ready");
    fflush(stdout);
    alarm(60);
    siginfo_t info;
    for (int i = 0; i < MANY; i++) {
        if (take(SIGRTMIN + 1, &info)) return 2;
        if (info.si_value.sival_ptr != (void *)(0x123400000000 + i)) return 3;
        if (info.si_code != SI_QUEUE || info.si_pid == getppid()) return 4;
    }
    for (int i = 0; i < MANY; i++) if (take(SIGRTMIN + 2, &info)) return 5;
    return 7;
}
"#;

/// Of more than five at once the rest was lost.
#[test]
fn real_time_signals_reach_the_program_one_by_one_with_their_values() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("queues");
    compile(QUEUES, &program, &["-O1", "-Wall", "-Werror"]);
    let mut child = Command::new(binary())
        .args(run_words(&["--quiet"]))
        .arg(&program)
        .env("TERRACE_PRELOAD", preload())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");

    // As many are there at once as the kernel lets wait.
    signal(&child, "STOP");
    let sent = Command::new(&program).arg(child.id().to_string()).status().unwrap();
    signal(&child, "CONT");

    assert!(sent.success(), "{sent}");
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

/// Signals its whole group, which `terrace` is in, and counts what comes.
const SIGNALS_ITS_GROUP: &str = r"
#include <signal.h>
#include <unistd.h>
static volatile sig_atomic_t count;
static void one(int signal) { (void)signal; count++; }
int main(void) {
    signal(SIGTERM, one);
    kill(0, SIGTERM);
    for (int i = 0; i < 5; i++) usleep(50000);
    return count;
}
";

#[test]
fn a_program_that_signals_its_group_gets_its_signal_once() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("signals_its_group");
    compile(SIGNALS_ITS_GROUP, &program, &["-O1"]);
    let mut command = Command::new(binary());
    command.args(run_words(&["--quiet"])).arg(&program);
    // In a group of its own, and not in this test's.
    command.env("TERRACE_PRELOAD", preload()).process_group(0);

    assert_eq!(command.status().unwrap().code(), Some(1));
}

#[test]
fn sigusr1_prints_the_report_and_the_program_goes_on() {
    // It ends when its output is closed, and not before.
    let (mut child, stdout) =
        start("trap '' PIPE; echo ready; while echo on 2>/dev/null; do sleep 0.05; done; exit 4");
    let mut stderr = BufReader::new(child.stderr.take().unwrap());

    signal(&child, "USR1");

    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.starts_with("terrace: sh has run for "), "{line}");
    drop(stdout);
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("terrace: sh ended with status 4 after "), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

#[test]
fn the_report_goes_where_it_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.json");

    let output =
        run("16MiB").args(["--json", "--report"]).arg(&file).args(["--", "true"]).output().unwrap();

    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(report["schema"], 1);
    assert_eq!(report["kind"], "terrace.run");
    assert_eq!(report["program"], serde_json::json!(["true"]));
    assert_eq!(report["end"], serde_json::json!({"exited": 0}));
    assert_eq!(report["budget"], 16 << 20);

    // On stderr it is as good, after whatever the program wrote there.
    let output = run("16MiB").args(["--json", "--", "sh", "-c", "exit 3"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(report["end"], serde_json::json!({"exited": 3}));
}

#[test]
fn nothing_is_left_in_the_runtime_directory() {
    let dir = tempfile::tempdir().unwrap();
    let during = dir.path().join("during");
    let runtime = dir.path().join("runtime");
    fs::create_dir(&runtime).unwrap();
    let script = format!("ls -ld {}/* > {}", runtime.display(), during.display());

    let output = run("16MiB")
        .env("XDG_RUNTIME_DIR", &runtime)
        .args(["--quiet", "--", "sh", "-c", &script])
        .output()
        .unwrap();

    // Where nothing is managed there is no such directory to list.
    assert_eq!(output.status.code() == Some(0), is_supported(), "{output:?}");
    if is_supported() {
        let listing = fs::read_to_string(during).unwrap();
        assert!(listing.starts_with("drwx------"), "others may look into it: {listing}");
    }
    assert_eq!(fs::read_dir(runtime).unwrap().count(), 0);
}

#[test]
fn where_userfaultfd_is_refused_it_says_so_or_runs_unmanaged() {
    // Only root can become somebody with fewer rights.
    if !has_program("/usr/bin/setpriv") || !is_root() {
        is_missing("setpriv, or root,");
        return;
    }
    // Copies, because the build directory may be closed to others.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for file in [binary(), preload()] {
        fs::copy(file, dir.path().join(file.file_name().unwrap())).unwrap();
    }
    let as_nobody = |arguments: &[&str]| {
        Command::new("/usr/bin/setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"])
            .arg(dir.path().join("terrace"))
            .args(arguments)
            .output()
            .unwrap()
    };
    let refused = as_nobody(&["doctor"]).status.code() == Some(3);

    let strict = as_nobody(&["run", "--fast", "16MiB", "--", "echo", "hello"]);
    let lenient = as_nobody(&[&run_words(&[])[..], &["echo", "hello"]].concat());

    assert_eq!(lenient.status.code(), Some(0), "{lenient:?}");
    assert_eq!(String::from_utf8_lossy(&lenient.stdout), "hello\n");
    if refused {
        assert_eq!(strict.status.code(), Some(3), "{strict:?}");
        assert!(strict.stdout.is_empty(), "the program was started: {strict:?}");
        let error = String::from_utf8_lossy(&strict.stderr);
        assert!(error.starts_with("terrace: memory cannot be managed here: "), "{error}");
        let warning = String::from_utf8_lossy(&lenient.stderr);
        assert!(warning.starts_with("terrace: warning: running unmanaged: "), "{warning}");
        assert!(warning.contains("not managed: "), "{warning}");
    } else {
        assert_eq!(strict.status.code(), Some(0), "{strict:?}");
    }
}

/// Fills more memory than the budget twice over, and checks every word of it.
const HOG: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    size_t words = (64u << 20) / sizeof(uint64_t);
    uint64_t *memory = malloc(words * sizeof *memory);
    if (!memory) return 3;
    for (int round = 1; round <= 2; round++) {
        for (size_t i = 0; i < words; i++) memory[i] = i / 64 * round;
        for (size_t i = 0; i < words; i++) if (memory[i] != i / 64 * round) return 1;
    }
    puts("intact");
    return 0;
}
"#;

#[test]
fn a_program_larger_than_its_budget_keeps_to_it_and_says_what_it_cost() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (hog, report_file) = (dir.path().join("hog"), dir.path().join("report"));
    compile(HOG, &hog, &["-O1"]);

    let output = run("16MiB").args(["--json", "--report"]).arg(&report_file).arg("--").arg(&hog);
    let output = output.output().unwrap();

    assert_eq!(String::from_utf8_lossy(&output.stdout), "intact\n", "{output:?}");
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(&report_file).unwrap()).unwrap();
    let total = &report["total"];
    let number = |field: &str| total[field].as_u64().unwrap();
    let budget = 16 << 20;
    assert!(number("resident_peak") <= budget + budget / 20, "budget not kept: {total}");
    assert!(number("mapped_peak") >= 64 << 20, "{total}");
    assert!(number("demotions") >= (48 << 20) / 4096, "{total}");
    assert!(number("promotions") > 0 && number("waited") > 0 && number("own_cpu") > 0, "{total}");
    // What `terrace run` takes itself (quiet windows, the broker) is told apart.
    assert!(report["command_cpu"].as_u64().unwrap() > 0, "{report}");
    let absent = &total["faults"][1];
    assert_eq!(absent["kind"], "absent");
    assert!(absent["p50"].as_u64() <= absent["p99"].as_u64(), "{absent}");
    assert!(absent["p99"].as_u64() <= absent["max"].as_u64(), "{absent}");
    assert!(!report["processes"][0]["regions"].as_array().unwrap().is_empty(), "{report}");
    assert!(!report["processes"][0]["sampler"].as_str().unwrap().is_empty(), "{report}");
}

/// Whoever asks for a sampler that the kernel lacks is told so, before the program starts; who
/// asks for none gets the best that there is, and reads why it is not a better one.
#[test]
fn what_observes_a_program_is_what_the_kernel_has() {
    if !is_supported() {
        return;
    }
    let doctor = common::json(terrace().args(["doctor", "--json"]), 0);
    let lacks = |name: &str| {
        let samplers = doctor["samplers"].as_array().unwrap();
        let sampler = samplers.iter().find(|sampler| sampler["name"] == name).unwrap();
        sampler["missing"].as_str().map(str::to_owned)
    };
    let dir = tempfile::tempdir().unwrap();
    let hog = dir.path().join("hog");
    compile(HOG, &hog, &["-O1"]);
    let sampler = |options: &[&str]| {
        let output = run("16MiB").args(["--json", "--policy", "hemem"]).args(options);
        let output = output.arg("--").arg(&hog).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        report["processes"][0]["sampler"].as_str().unwrap().to_owned()
    };

    let (rwp, pmu) = (lacks("RWP"), lacks("PEBS or IBS"));
    match &rwp {
        None => assert!(sampler(&["--sampler", "rwp"]).starts_with("rwp, ")),
        Some(lack) => {
            let asked = run("16MiB").args(["--sampler", "rwp", "--", "true"]).output().unwrap();
            assert_eq!(asked.status.code(), Some(3), "{asked:?}");
            let message = String::from_utf8(asked.stderr).unwrap();
            assert!(message.contains(&format!("--sampler rwp: {lack}")), "{message}");
        }
    }
    let chosen = sampler(&[]);
    match (pmu, rwp) {
        (None, _) => assert!(chosen.contains("one access in"), "{chosen}"),
        (Some(_), None) => assert!(chosen.starts_with("rwp, "), "{chosen}"),
        (Some(_), Some(lack)) => {
            assert!(chosen.starts_with("hint faults"), "{chosen}");
            assert!(chosen.ends_with(&format!("no rwp: {lack})")), "{chosen}");
            let tracked = lacks("stores, beside faults").is_none();
            assert_eq!(chosen.contains("write protection of others"), tracked, "{chosen}");
        }
    }
}

#[test]
fn decisions_are_recorded_while_the_program_runs_and_can_be_explained() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (hog, record) = (dir.path().join("hog"), dir.path().join("record"));
    compile(HOG, &hog, &["-O1"]);
    let output = run("16MiB").args(["--quiet", "--record"]).arg(&record).arg("--").arg(&hog);
    assert_eq!(output.output().unwrap().status.code(), Some(0));

    let checked = common::json(terrace().args(["check", "--json"]).arg(&record), 0);
    let why = terrace().arg("why").arg(&record).args(["--class", "demote", "--last", "1"]);
    let explained = why.output().unwrap();

    assert_eq!(checked["content"], "records");
    assert!(checked["decisions"].as_u64().unwrap() > 0, "{checked}");
    let text = String::from_utf8_lossy(&explained.stdout);
    assert!(text.contains("\n  demote ") && text.contains("dram->compressed"), "{text}");
    // The address that it names leads back to decisions about that page.
    let address = text.split("at 0x").nth(1).unwrap().split_whitespace().next().unwrap();
    let why = terrace().arg("why").arg(&record).args(["--json", "--page"]);
    let about = common::json(why.arg(format!("0x{address}")), 0);
    let pages: Vec<_> = about["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| found["decision"]["action"].as_object().unwrap().values().next().unwrap())
        .map(|action| action["page"].clone())
        .collect();
    assert!(!pages.is_empty() && pages.iter().all(|page| *page == pages[0]), "{about}");
}

/// Keepers take processors from other programs, too. Who says `never` has none, and a program
/// that is as right.
#[test]
fn no_processor_is_held_where_quiet_windows_are_forbidden() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let hog = dir.path().join("hog");
    compile(HOG, &hog, &["-O1"]);
    // The shell's parent is `terrace run`, whose threads have their names by then.
    let script = format!("{} && cat /proc/$PPID/task/*/comm", hog.display());
    let keepers = |when: &str| {
        let command = run("16MiB").args(["--quiet", "--quiet-windows", when]);
        let output = command.args(["--", "sh", "-c", &script]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.starts_with("intact\n") && said.contains("broker"), "{said}");
        said.lines().filter(|name| name.starts_with("quiet-")).count()
    };

    let (kept, forbidden) = (keepers("auto"), keepers("never"));

    assert_eq!(forbidden, 0);
    let processors = std::process::Command::new("nproc").output().unwrap().stdout;
    let processors: usize = String::from_utf8_lossy(&processors).trim().parse().unwrap();
    assert_eq!(kept, if (2..=4).contains(&processors) { processors } else { 0 });
}

#[test]
fn every_process_of_a_family_is_in_the_report() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (hog, report_file) = (dir.path().join("hog"), dir.path().join("report"));
    compile(HOG, &hog, &["-O1"]);
    let script = format!("{hog} && {hog}", hog = hog.display());

    let output = run("16MiB").args(["--json", "--report"]).arg(&report_file);
    let output = output.args(["--", "sh", "-c", &script]).output().unwrap();

    assert_eq!(String::from_utf8_lossy(&output.stdout), "intact\nintact\n", "{output:?}");
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(&report_file).unwrap()).unwrap();
    let hogs: Vec<_> = report["processes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|process| process["command"] == "hog")
        .collect();
    assert_eq!(hogs.len(), 2, "{report}");
    assert!(hogs.iter().all(|hog| hog["state"] == "managed"), "{report}");
}

/// Fills 64 MiB.
const FILLS: &str = "#include <stdlib.h>\n#include <string.h>\nint main(void) {\n\
    volatile char *p = malloc(64 << 20); memset((char *)p, 1, 64 << 20);\n\
    return p[1 << 20] - 1; }\n";

/// A service has a user of its own, and from root no more than it needs.
#[test]
fn an_ordinary_user_with_one_capability_is_managed() {
    if !is_supported() {
        return;
    }
    if !is_root() || !has_program("/usr/bin/setpriv") {
        is_missing("setpriv, or root,");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for (from, name) in
        [(binary().to_owned(), "terrace"), (preload().into(), "libterrace_preload.so")]
    {
        fs::copy(from, path(name)).unwrap();
    }
    compile(FILLS, &path("program"), &["-O0"]);
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();

    let as_nobody = |more: &[&str]| {
        Command::new("/usr/bin/setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .args(more)
            .arg(path("terrace"))
            .args(["run", "--fast", "16MiB", "--"])
            .arg(path("program"))
            .env_remove("TERRACE_PRELOAD")
            .current_dir("/")
            .output()
            .unwrap()
    };
    let capability = ["--inh-caps", "+sys_ptrace", "--ambient-caps", "+sys_ptrace"];
    let (with, without) = (as_nobody(&capability), as_nobody(&[]));

    let said = String::from_utf8_lossy(&with.stderr);
    assert!(with.status.success(), "{with:?}");
    assert!(said.contains("resident at most") && !said.contains("unmanaged"), "{said}");
    assert_eq!(without.status.code(), Some(3), "{without:?}");
}

/// A service that is started by root, and has become somebody else before it has much memory.
const SERVICE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    if (setgid(65534) || setuid(65534) || !setuid(0)) return 1;
    size_t pages = atol(argv[1]) * 256, bad = 0;
    size_t *m = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < pages; i++) m[i * 512] = i * 77;
    for (size_t i = 0; i < pages; i++) bad |= m[i * 512] != i * 77;
    puts(bad ? "WRONG" : "right");
    return bad;
}
"#;

/// `terrace run` of a program in a directory, and its report.
fn reported(
    directory: &Path,
    fast: &str,
    program: &[&str],
) -> (snapbox::cmd::OutputAssert, serde_json::Value) {
    let report = directory.join("report");
    let run = terrace()
        .env("TERRACE_PRELOAD", preload())
        .current_dir(directory)
        .args(["--json", "run", "--engine=pager", "--fast", fast, "--report"])
        .arg(&report)
        .arg("--")
        .args(program)
        .assert();
    (run, serde_json::from_slice(&fs::read(report).unwrap()).unwrap())
}

/// What such a program has done is in the report, though the run's directory was out of its reach.
#[test]
fn who_has_changed_his_user_is_managed_and_reported() {
    if !is_supported() || !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let service = directory.path().join("service");
    compile(SERVICE, &service, &["-O2"]);
    let run = |mib: &str| {
        let (run, report) = reported(directory.path(), "8MiB", &["./service", mib]);
        run.success().stdout_eq("right\n").stderr_eq("");
        report
    };

    let (small, large) = (run("2"), run("24"));

    assert_eq!(small["processes"][0]["state"], "dormant", "{small}");
    assert_eq!(large["processes"][0]["state"], "managed", "{large}");
    assert!(large["total"]["demotions"].as_u64().unwrap() > 16 * 256, "{large}");
    assert!(large["total"]["resident_peak"].as_u64().unwrap() <= (8 << 20) + (1 << 17), "{large}");
}

/// Keeps so many MiB for a second.
const KEEPER: &str = r"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    size_t bytes = (size_t)atol(argv[1]) << 20;
    char *m = malloc(bytes);
    memset(m, 7, bytes);
    sleep(1);
    return m[bytes / 2] != 7;
}
";

/// The dynamic linker loads nothing into a static program, which says nothing of itself: the
/// report does, also where others are managed.
#[test]
fn what_ran_on_plain_memory_is_in_the_report() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    compile(KEEPER, &directory.path().join("plain"), &["-O2", "-static"]);
    compile(KEEPER, &directory.path().join("managed"), &["-O2"]);
    let run = |script: &str| {
        let (run, report) = reported(directory.path(), "32MiB", &["sh", "-c", script]);
        run.success().stderr_eq("");
        report
    };

    let alone = run("./plain 24; true");
    let both = run("./plain 24 & ./plain 25 & ./managed 48; wait");
    let small = run("./plain 1; ./managed 12");

    assert_eq!(alone["plain"]["processes"], 1, "{alone}");
    let program = &alone["plain"]["programs"][0];
    assert_eq!(
        (&program["command"], &program["why"]),
        (&"plain".into(), &"statically linked".into())
    );
    let peak =
        |report: &serde_json::Value| report["plain"]["resident_peak"].as_u64().unwrap() >> 20;
    assert!((24..28).contains(&peak(&alone)), "{alone}");
    assert!((49..56).contains(&peak(&both)), "{both}");
    assert_eq!(both["processes"][0]["command"], "managed", "{both}");
    assert!(small["plain"].is_null(), "{small}");
}

/// Its statistics would be those of the program that changed its user and then began it.
#[test]
fn a_program_that_another_starts_as_another_user_is_in_the_report() {
    if !is_supported() || !is_root() || !has_program("/usr/bin/setpriv") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    compile(KEEPER, &directory.path().join("keeper"), &["-O2"]);

    let keeper = ["setpriv", "--reuid", "65534", "--clear-groups", "./keeper", "24"];
    let (run, report) = reported(directory.path(), "8MiB", &keeper);

    run.success();
    assert_eq!(report["plain"]["programs"][0]["command"], "keeper", "{report}");
}
