//! Programs that a sanitizer checks, or that Valgrind runs, run to the same end, and find the same faults.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{binary_text, compile, preload, run_words};
use terrace_shown::is_missing;

/// Large blocks and a thread, which a sanitizer and we both want to know of. With an argument it
/// has the fault that the sanitizer is for.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
enum { BLOCK = 2 << 20, BLOCKS = 32 };
/* Often enough that a checker which misses two accesses at the very same time finds others. */
static volatile int shared;
static void race(void) {
    for (int i = 0; i < 1000; i++) shared++;
}
static char **volatile kept;
static void *others(void *fault) {
    char *block = malloc(BLOCK);
    memset(block, 1, BLOCK);
    free(block);
    if (fault) race();
    return NULL;
}
int main(int argc, char **argv) {
    char **blocks = malloc(BLOCK);
    char *map = mmap(NULL, 4 * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(map, 7, 4 * BLOCK);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(BLOCK);
        memset(blocks[i], i, BLOCK);
        blocks[BLOCKS + i] = strdup("only known in a large block");
    }
    pthread_t thread;
    pthread_create(&thread, NULL, others, argc > 1 ? &shared : NULL);
    if (argc > 1) race();
    pthread_join(thread, NULL);
    if (argc > 1) {
        volatile char *block = blocks[3];
        if (argv[1][0] == 'a') block[BLOCK] = 1;
        volatile int large = 0x7fffffff;
        if (argv[1][0] == 'u') large += shared;
    }
    for (int i = 0; i < BLOCKS; i++)
        for (int at = 0; at < BLOCK; at += 4096)
            if (blocks[i][at] != i) return 9;
    kept = blocks;
    if (argc > 1 && argv[1][0] == 'l') memset(blocks, 0, BLOCKS / 2 * sizeof *blocks);
    puts("done");
    return 0;
}
"#;

/// A program that is built with a sanitizer; `None` if the compiler has not got it.
fn build(directory: &Path, flags: &[&str]) -> Option<PathBuf> {
    let program = directory.join("checked").with_extension(flags.join("").replace('=', ""));
    let source = directory.join("probe.c");
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    let probed = Command::new("cc").args(flags).arg(&source).arg("-o").arg(&program).output();
    if !probed.unwrap().status.success() {
        return None;
    }
    compile(PROGRAM, &program, &[&["-O1", "-pthread"], flags].concat());
    Some(program)
}

/// What is told of leaks. How many blocks are lost depends on what registers and stacks hold still.
const LEAKS: &str = "LeakSanitizer:";

/// The status, and what stands in the sanitizer's last line: which fault it has found.
fn outcome(command: &[&str], options: Option<&str>) -> (Option<i32>, String, String) {
    let mut process = Command::new(command[0]);
    process.args(&command[1..]).env("TERRACE_PRELOAD", preload());
    match options {
        Some(options) => process.env("ASAN_OPTIONS", options),
        None => process.env_remove("ASAN_OPTIONS"),
    };
    let output = process.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let tells = |line: &&str| line.starts_with("SUMMARY:") || line.contains("runtime error:");
    let summary = text.lines().find(tells).unwrap_or_default();
    // Without addresses and places.
    let mut summary = summary.split(" (").next().unwrap_or_default().to_owned();
    if let Some(at) = summary.find(LEAKS) {
        summary.truncate(at + LEAKS.len());
    }
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), summary)
}

#[test]
fn what_a_sanitizer_checks_starts_and_its_faults_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let terrace = binary_text();
    let run = [&[terrace][..], &run_words(&["--quiet"])].concat();
    let kinds: [&[&str]; 4] = [
        &["-fsanitize=address"],
        &["-fsanitize=thread"],
        &["-fsanitize=leak"],
        &["-fsanitize=undefined"],
    ];
    for flags in kinds {
        let Some(program) = build(directory.path(), flags) else {
            is_missing(&format!("a compiler that knows {}", flags.join(" ")));
            continue;
        };
        let program = program.to_str().unwrap();
        let letter = &flags[0]["-fsanitize=".len()..][..1];
        for command in [&[program][..], &[program, letter]] {
            let expected = outcome(command, None);
            assert_eq!(command.len() == 1, expected.2.is_empty(), "{flags:?}: {expected:?}");

            let got = outcome(&[&run[..], command].concat(), None);
            assert_eq!(got, expected, "{flags:?} {command:?}");

            // As a test suite starts it.
            let shell = ["sh", "-c", "\"$@\"; exit $?", "sh"];
            let got = outcome(&[&run[..], &shell, command].concat(), Some("detect_leaks=1"));
            assert_eq!(got, expected, "{flags:?} {command:?} of a shell's");
        }
    }
}

/// Opens a library that is there already. What the loader allocates for that is reached from its own
/// notes of the library alone, which are older than any allocator, and which no checker searches.
const OPENING_PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    if (!dlopen("libm.so.6", RTLD_NOW)) {
        puts(dlerror());
        return 9;
    }
    puts("done");
    return 0;
}
"#;

/// A leak checker knows what the loader keeps by who has called the allocator. Where that was a library
/// of ours, it told of 56 bytes.
#[test]
fn what_the_loader_keeps_is_not_told_as_a_leak() {
    let directory = tempfile::tempdir().unwrap();
    let terrace = binary_text();
    let run = [&[terrace][..], &run_words(&["--quiet"])].concat();
    for kind in ["-fsanitize=address", "-fsanitize=leak"] {
        if build(directory.path(), &[kind]).is_none() {
            is_missing(&format!("a compiler that knows {kind}"));
            continue;
        }
        let program = directory.path().join(kind);
        compile(OPENING_PROGRAM, &program, &["-O1", kind, "-Wl,--no-as-needed", "-lm", "-ldl"]);
        let program = program.to_str().unwrap();
        let expected = (Some(0), "done\n".to_owned(), String::new());

        let without = outcome(&[program], Some("detect_leaks=1"));
        assert_eq!(without, expected, "{kind} without Terrace");

        let got = outcome(&[&run[..], &[program]].concat(), Some("detect_leaks=1"));
        assert_eq!(got, expected, "{kind}");
    }
}

#[test]
fn a_program_that_a_sanitizer_checks_is_told_of() {
    if !common::is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = build(directory.path(), &["-fsanitize=address"]) else {
        is_missing("a compiler that knows -fsanitize=address");
        return;
    };

    let output = common::run("16MiB").arg("--").arg(&program).output().unwrap();

    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("went on unmanaged: a sanitizer checks it"), "{text}");
}

/// More memory than fits, a word of each page; with an argument it writes behind its block.
const SMALL_PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    size_t bytes = 48 << 20;
    volatile char *block = malloc(bytes);
    for (int round = 0; round < 2; round++)
        for (size_t at = 0; at < bytes; at += 4096)
            block[at] = (char)(round + at / 4096);
    if (argc > 1)
        block[bytes] = 1;
    for (size_t at = 0; at < bytes; at += 4096)
        if (block[at] != (char)(1 + at / 4096))
            return 1;
    puts("done");
    return 0;
}
"#;

/// Valgrind's processor runs none of our threads: a program that was managed once waited for ever.
#[test]
fn a_program_under_valgrind_runs_as_without_us_and_is_told_of() {
    if !common::is_supported() {
        return;
    }
    if !common::has_program("/usr/bin/valgrind") {
        is_missing("valgrind");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    compile(SMALL_PROGRAM, &program, &["-O1", "-g"]);
    let program = program.to_str().unwrap();

    // The last has a fault: it writes behind a large block.
    for (tool, arguments) in [("none", &[][..]), ("memcheck", &[]), ("memcheck", &["a"])] {
        let tool = format!("--tool={tool}");
        let valgrind =
            ["-k", "5", "300", "/usr/bin/valgrind", "--error-exitcode=77", &tool, program];
        let plain = Command::new("timeout").args(valgrind).args(arguments).output().unwrap();

        let run = common::run("16MiB").args(["--", "timeout"]).args(valgrind).args(arguments);
        let output = run.output().unwrap();

        let text = String::from_utf8_lossy(&output.stderr);
        let expected = if arguments.is_empty() { 0 } else { 77 };
        assert_eq!(plain.status.code(), Some(expected), "{plain:?}");
        assert_eq!(output.status.code(), Some(expected), "{tool}: {text}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{tool}: {text}");
        assert!(text.contains("went on unmanaged: Valgrind runs it"), "{tool}: {text}");
    }
}
