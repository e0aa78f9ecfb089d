//! Limits that the program runs under (`ulimit`): whatever they leave to Terrace, the program
//! does what it would have done without.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{binary, compile, is_supported, preload};

/// 24 MiB, three times; says `ok` if it reads what it has written.
const FILL: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
int main(void) {
    const size_t size = 24 << 20;
    unsigned *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) { puts("no memory"); return 7; }
    for (unsigned round = 0; round < 3; round++)
        for (size_t i = 0; i < size / 4; i += 16) {
            if (round && at[i] != (unsigned)i * 2654435761u + round - 1) { puts("WRONG"); return 8; }
            at[i] = (unsigned)i * 2654435761u + round;
        }
    puts("ok");
    return 0;
}
"#;

/// 24 MiB that do not compress, three times; says `ok` if it reads what it has written. With an
/// argument it limits itself when the first MiB of it is written: to the private memory (`d`) or
/// the address space (`v`) that it has, or to no file at all (`f`).
const LOWER: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
static uint64_t word(uint64_t i, uint64_t round) {
    uint64_t x = i * 0x9e3779b97f4a7c15 + round;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    return x ^ (x >> 27);
}
static unsigned long pages(int field) {
    unsigned long values[7] = {0};
    FILE *file = fopen("/proc/self/statm", "r");
    for (int i = 0; i < 7; i++) if (fscanf(file, "%lu", &values[i]) != 1) break;
    fclose(file);
    return values[field];
}
int main(int count, char **arguments) {
    const uint64_t words = (24 << 20) / 8, first = (1 << 20) / 8;
    uint64_t *at = mmap(0, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) { puts("no memory"); return 7; }
    for (uint64_t round = 0; round < 3; round++)
        for (uint64_t i = 0; i < words; i++) {
            if (round == 0 && i == first && count > 1) {
                char which = arguments[1][0];
                int what = which == 'd' ? RLIMIT_DATA : which == 'v' ? RLIMIT_AS : RLIMIT_FSIZE;
                unsigned long most = which == 'f' ? 0 : pages(which == 'd' ? 5 : 0) * 4096;
                struct rlimit limit;
                getrlimit(what, &limit);
                limit.rlim_cur = most;
                if (setrlimit(what, &limit)) { perror("setrlimit"); return 9; }
            }
            if (round && at[i] != word(i, round - 1)) { puts("WRONG"); return 8; }
            at[i] = word(i, round);
        }
    puts("ok");
    return 0;
}
"#;

/// 17 000 pages of 34 000 move, each to where nothing is around it: as many regions.
const SCATTER: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
int main(void) {
    const long moves = 17000, page = 4096;
    char *far = (char *)0x200000000000;
    char *at = mmap(0, 2 * moves * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long i = 0; i < 2 * moves; i++) *(long *)(at + i * page) = i;
    for (long i = 0; i < moves; i++)
        if (mremap(at + (2 * i + 1) * page, page, page, MREMAP_MAYMOVE | MREMAP_FIXED,
                   far + 2 * i * page) == MAP_FAILED) { perror("mremap"); return 7; }
    for (long i = 0; i < moves; i++)
        if (*(long *)(at + 2 * i * page) != 2 * i || *(long *)(far + 2 * i * page) != 2 * i + 1) {
            puts("WRONG"); return 8;
        }
    puts("ok");
    return 0;
}
"#;

/// A program, in a directory that goes when it is dropped; `None` where nothing is managed.
fn compiled(source: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    if !is_supported() {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    compile(source, &program, &["-O1"]);
    Some((directory, program))
}

fn fill() -> Option<(tempfile::TempDir, PathBuf)> {
    compiled(FILL)
}

/// `terrace` in a shell that has limited it so.
fn terrace(limit: &str, arguments: &str) -> Output {
    let terrace = binary().display();
    let script = format!("ulimit {limit} && exec timeout 60 {terrace} {arguments}");
    let command = &mut Command::new("sh");
    command.args(["-c", &script]).env("TERRACE_PRELOAD", preload()).output().unwrap()
}

/// The program in 4 MiB, in such a shell.
fn limited(limit: &str, program: &Path) -> Output {
    let report = program.with_extension("json");
    let report = report.display();
    terrace(limit, &format!("--json run --fast 4MiB --report {report} -- {}", program.display()))
}

/// What the last run reports.
fn report(program: &Path) -> serde_json::Value {
    let text = std::fs::read(program.with_extension("json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Where a little less or more is left, another of our allocations fails: 52 MiB once made every
/// fault wait for 20 ms, and 50 ended the program by a signal.
#[test]
fn a_program_whose_address_space_is_limited_ends_as_it_does_without_us() {
    let Some((_directory, program)) = fill() else { return };

    // With less the command itself is not loaded; how much that is depends on the build.
    let loads = |mib: &u64| terrace(&format!("-v {}", mib << 10), "--version").status.success();
    let least = (20..400).step_by(4).find(loads).unwrap();

    // There is room for the command, and not for its threads: one that starts may not do without.
    let output = limited(&format!("-v {}", (least + 6) << 10), &program);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("ulimit -v") && err.lines().count() == 1, "{err}");

    for mib in (least..=least + 120).step_by(2) {
        let output = limited(&format!("-v {}", mib << 10), &program);

        let said = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => assert_eq!(said, "ok\n", "{mib} MiB: {err}"),
            // Its own mapping did not fit, as it would not have without us.
            Some(7) => assert_eq!(said, "no memory\n", "{mib} MiB: {err}"),
            // `terrace run` could not begin.
            Some(1) => {
                let says_why = err.contains("error") || err.contains("ulimit -v");
                assert!(said.is_empty() && says_why, "{mib} MiB: {err}");
            }
            other => panic!("{mib} MiB: {other:?}, {said}{err}"),
        }
    }
}

#[test]
fn with_address_space_to_spare_it_is_managed_and_with_little_the_report_says_why_not() {
    let Some((_directory, program)) = fill() else { return };

    let _ = limited("-v 400000", &program);
    let much = report(&program);
    let _ = limited("-v 80000", &program);
    let little = report(&program);

    assert!(much["total"]["demotions"].as_u64() > Some(1000), "{much}");
    let failure = little["processes"][0]["failure"].as_str().unwrap_or_default();
    assert!(failure.contains("ulimit -v"), "{little}");
}

/// To read the command line takes more stack than that: the command was once aborted.
#[test]
fn a_program_with_a_small_stack_is_managed_and_finds_the_limit_that_was_set() {
    let Some((_directory, program)) = fill() else { return };

    for kib in [64, 96, 1024] {
        let limit = format!("-s {kib}");
        let asks = "run --quiet --engine=pager --fast 4MiB -- sh -c 'ulimit -s'";
        let asked = terrace(&limit, asks);
        let output = limited(&limit, &program);

        assert_eq!(String::from_utf8_lossy(&asked.stdout), format!("{kib}\n"), "{asked:?}");
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{kib} KiB: {err}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{kib} KiB: {err}");
        let report = report(&program);
        assert!(report["total"]["demotions"].as_u64() > Some(1000), "{kib} KiB: {report}");
    }
}

/// The kernel counts the time of all threads of the process, and no other limit tells of ours.
#[test]
fn where_processor_time_is_limited_it_is_told_that_ours_counts() {
    let Some((_directory, program)) = fill() else { return };
    let program = program.display();
    let says = |limit: &str, option: &str| {
        let output =
            terrace(limit, &format!("run --engine=pager {option} --fast 4MiB -- {program}"));
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{limit}: {err}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{limit}: {err}");
        err.lines().filter(|line| line.contains("ulimit -t")).count()
    };

    assert_eq!(says("-t 5000", ""), 1);
    assert_eq!(says("-t 5000", "--quiet"), 0);
    // Of another limit there is nothing to say.
    assert_eq!(says("-n 1024", ""), 0);
}

/// Few descriptors: Terrace needs some, and must leave the program those that it may have.
#[test]
fn a_program_with_few_descriptors_ends_as_it_does_without_us() {
    let Some((_directory, program)) = fill() else { return };

    for descriptors in [4, 5, 6, 7, 8, 10, 12, 16, 20, 32] {
        let output = limited(&format!("-n {descriptors}"), &program);

        let said = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => assert_eq!(said, "ok\n", "{descriptors}: {err}"),
            // It was not started: its report could not be opened, or it itself.
            Some(1 | 2) => assert!(said.is_empty() && !err.is_empty(), "{descriptors}: {err}"),
            other => panic!("{descriptors}: {other:?}, {said}{err}"),
        }
    }
}

/// Where the table of regions was full, the program was aborted; where it changed more of its
/// address space while it was put on plain memory, too. The table grows since.
#[test]
fn a_program_whose_memory_is_in_many_thousand_parts_is_managed() {
    let Some((_directory, program)) = compiled(SCATTER) else { return };

    let output = limited("-n 1024", &program);

    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n");
    let report = report(&program);
    assert!(report["total"]["demotions"].as_u64() > Some(1000), "{}", report["total"]);
    assert!(report["processes"][0]["failure"].is_null(), "{}", report["processes"][0]["failure"]);
}

/// Where the store cannot grow, faults once tried in vain to put pages away: 20 to 100 a second
/// were served.
#[test]
fn a_program_whose_private_memory_is_limited_is_managed_or_not_and_never_crawls() {
    let Some((_directory, program)) = compiled(LOWER) else { return };

    for mib in [56, 64, 72, 80, 96, 112, 128] {
        let output = limited(&format!("-d {}", mib << 10), &program);

        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{mib} MiB: {err}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{mib} MiB: {err}");
    }
    let little = limited("-d 57344", &program);
    assert!(little.status.success());
    let report = report(&program);
    let failure = report["processes"][0]["failure"].as_str().unwrap_or_default();
    assert!(failure.contains("ulimit -d"), "{report}");
}

#[test]
fn a_limit_that_is_lowered_to_what_is_mapped_leaves_pages_where_they_are_and_is_told() {
    let Some((_directory, program)) = compiled(LOWER) else { return };
    let terrace = |which| {
        let report = program.with_extension("json");
        let (report, program) = (report.display(), program.display());
        terrace(
            "-n 1024",
            &format!("run --fast 4MiB --json --report {report} -- {program} {which}"),
        )
    };

    for which in ["d", "v"] {
        let output = terrace(which);

        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{which}: {err}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{which}: {err}");
        let report = report(&program);
        assert!(report["total"]["store"]["refused"].as_u64() > Some(0), "{which}: {report}");
        assert_eq!(report["budget_kept"], false, "{which}: {report}");
    }
}

/// Terrace's own files are in memory. A longer one than the limit once ended `terrace run`, and
/// with a recording the program, by a signal.
#[test]
fn a_program_that_may_write_no_files_is_managed_or_refused_and_not_ended_by_a_signal() {
    let Some((directory, program)) = compiled(LOWER) else { return };
    let recording = directory.path().join("recording");
    let (program, recording) = (program.display(), recording.display());

    for kib in [0, 1024, 4096, 8192] {
        for which in ["", "f"] {
            for record in [String::new(), format!("--record {recording}")] {
                let run = format!("run --fast 4MiB {record} -- {program} {which}");
                // A shell's unit is half a KiB.
                let output = terrace(&format!("-f {}", 2 * kib), &run);

                let case = format!("{kib} KiB, `{which}`, `{record}`");
                let err = String::from_utf8_lossy(&output.stderr);
                let said = String::from_utf8_lossy(&output.stdout);
                match output.status.code() {
                    // Where the limit may not be raised, not even for a moment.
                    Some(3) if kib < 8192 => {
                        assert!(said.is_empty() && err.contains("ulimit -f"), "{case}: {err}");
                    }
                    code => {
                        assert_eq!(said, "ok\n", "{case}: {code:?} {err}");
                        assert!(err.contains("  demotions  "), "{case}: {err}");
                        // Of the recording there is as much as the limit allows.
                        let cut_off = !record.is_empty() && err.contains("File too large");
                        assert!(code == Some(0) || code == Some(1) && cut_off, "{case}: {err}");
                    }
                }
            }
        }
    }
}
