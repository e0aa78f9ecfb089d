//! The spill file: `run --spill`.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command as Process, Output};

use common::{binary, compile, is_supported, preload};
use serde_json::Value;
use terrace_shown::is_missing;

/// Fills memory with what compresses by half, forks, and checks all of it in both
/// processes, twice over.
const USER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static unsigned long word(size_t page, size_t i, unsigned seed) {
    unsigned long x = (page * 512 + i) * 0x9E3779B97F4A7C15ul + seed;
    x ^= x >> 29; x *= 0xBF58476D1CE4E5B9ul; x ^= x >> 32;
    return i % 2 ? x : page;
}
static void fill(unsigned long *m, size_t pages, unsigned seed) {
    for (size_t p = 0; p < pages; p++)
        for (size_t i = 0; i < 512; i++) m[p * 512 + i] = word(p, i, seed);
}
static void check(unsigned long *m, size_t pages, unsigned seed) {
    for (size_t p = 0; p < pages; p++)
        for (size_t i = 0; i < 512; i++)
            if (m[p * 512 + i] != word(p, i, seed)) { puts("WRONG"); exit(1); }
}
int main(int argc, char **argv) {
    size_t pages = atol(argv[1]) * 256;
    unsigned long *m = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)argc;
    fill(m, pages, 1);
    check(m, pages, 1);
    pid_t child = fork();
    check(m, pages, 1);
    fill(m, pages, child ? 2 : 3);
    check(m, pages, child ? 2 : 3);
    if (!child) _exit(0);
    int status;
    waitpid(child, &status, 0);
    if (status) { puts("WRONG CHILD"); return 1; }
    puts("right");
    return 0;
}
"#;

/// Runs it in a shell, which may change limits first.
fn run(directory: &Path, before: &str, arguments: &[&str]) -> (Output, Value) {
    compile(USER, &directory.join("user"), &["-O2"]);
    let report = directory.join("report");
    let output = Process::new(binary())
        .env("TERRACE_PRELOAD", preload())
        .current_dir(directory)
        .args(["--json", "run", "--engine=pager", "--fast", "2MiB", "--report"])
        .arg(&report)
        .args(arguments)
        .args(["--", "sh", "-c", &format!("{before} exec ./user 12")])
        .output()
        .unwrap();
    let report = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    (output, report)
}

/// What `terrace why` says of the last decision of a class in what was recorded.
fn why(directory: &Path, class: &str) -> String {
    let output = Process::new(binary())
        .current_dir(directory)
        .args(["why", "decisions", "--class", class, "--last", "1"])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn assert_right(output: &Output) {
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"right\n", "{output:?}");
}

/// Of every process, by what its page says at the end: the parent's is the largest.
fn most(report: &Value, what: &[&str]) -> u64 {
    let processes = report["processes"].as_array().unwrap().iter();
    let figure = |process: &Value| {
        what.iter().fold(&process["figures"], |value, key| &value[*key]).as_u64().unwrap()
    };
    processes.map(figure).max().unwrap()
}

#[test]
fn what_the_store_may_not_hold_lies_in_a_file_that_nobody_sees() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--spill", "spilled", "--store-limit", "1MiB"];

    let (output, report) = run(directory.path(), "", &arguments);

    assert_right(&output);
    assert!(output.stderr.is_empty(), "{output:?}");
    assert!(most(&report, &["store", "spilled"]) > 2 << 20, "{report:#}");
    let files = fs::read_dir(directory.path()).unwrap().flatten();
    let left: Vec<_> = files.map(|file| file.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("spilled")), "{left:?}");
    // A child that brings its parent's file in counts that on a page of its own: neither
    // has more pages than there are, nor fewer than none.
    assert!(most(&report, &["store", "compressed_pages"]) <= 13 << 8, "{report:#}");
}

/// What the writer had to put there is priced all the same.
#[test]
fn what_goes_to_the_file_is_priced_and_explained() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--spill", "spilled", "--store-limit", "1MiB", "--record", "decisions"];

    let (output, _) = run(directory.path(), "", &arguments);
    let why = why(directory.path(), "reclaim");

    assert_right(&output);
    for part in
        ["reclaim ", " packed, compressed->", "(StoreFull): FORCED", "- refault", "came back"]
    {
        assert!(why.contains(part), "{part}: {why}");
    }
}

/// Whether it pays is a question of the machine; that it is asked, and on what grounds, is not.
#[test]
fn the_economist_is_asked_about_going_ahead_of_walks() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();

    let (output, report) = run(directory.path(), "", &["--record", "decisions"]);
    let why = why(directory.path(), "prefetch");

    assert_right(&output);
    let parts = ["prefetch ", "+ avoided fault", " asked for that w", " come at once"];
    for part in parts {
        assert!(why.contains(part), "{part}: {why}\n{report:#}");
    }
}

#[test]
fn the_file_never_holds_more_than_it_may() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--spill", "spilled", "--store-limit", "64KiB", "--spill-size", "1MiB"];

    let (output, report) = run(directory.path(), "", &arguments);

    assert_right(&output);
    // At the end nothing may be left in it: what the program read last came from there.
    assert!(most(&report, &["store", "spill_written"]) > 0, "{report:#}");
    assert!(most(&report, &["store", "spilled"]) <= 1 << 20, "{report:#}");
    // What has no place in the file stays in RAM, although that is over its limit.
    assert!(most(&report, &["store", "occupied_peak"]) > 2 << 20, "{report:#}");
    // Which is told: by how much at most, and for how long.
    let peak = most(&report, &["store", "occupied_peak"]);
    let over = most(&report, &["store", "over_limit_peak"]);
    assert!(over > (2 << 20) - (64 << 10) && over <= peak - (64 << 10), "{report:#}");
    assert!(most(&report, &["store", "over_limit"]) > 0, "{report:#}");
}

/// Records die as pages come back: the file is written several times over, and what is
/// left of segments is moved together. Without that it would be full after the first.
#[test]
fn the_file_is_used_again_and_again() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--spill", "spilled", "--store-limit", "512KiB", "--spill-size", "14MiB"];

    let (output, report) = run(directory.path(), "", &arguments);

    assert_right(&output);
    assert!(output.stderr.is_empty(), "{output:?}");
    let written = most(&report, &["store", "spill_written"]);
    assert!(written > 14 << 20, "{written} bytes were written");
    assert!(most(&report, &["store", "spill_read"]) > 2 << 20, "{report:#}");
}

/// A file that is used as memory. This machine may have no DAX; then it is the page cache's.
#[test]
fn the_file_may_be_memory() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let size = ["--spill-size", "14MiB", "--store-limit", "512KiB"];

    let (output, report) =
        run(directory.path(), "", &[&["--spill", "dax:spilled"], &size[..]].concat());

    assert_right(&output);
    assert!(output.stderr.is_empty(), "{output:?}");
    let written = most(&report, &["store", "spill_written"]);
    assert!(written > 14 << 20, "{written} bytes were written");
    assert!(most(&report, &["store", "spill_read"]) > 2 << 20, "{report:#}");
}

/// The kernel refuses to let the file grow (`EFBIG`): as on a full disk, nothing is
/// lost, and it is said once by each process what is wrong.
#[test]
fn when_the_file_cannot_grow_nothing_is_lost_and_the_user_is_told() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--spill", "spilled", "--store-limit", "64KiB"];

    // 4 or 8 MiB, as the shell counts: room for the statistics, not for all.
    let (output, report) = run(directory.path(), "ulimit -f 8192;", &arguments);

    assert_right(&output);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the spill file refuses more"), "{said}");
    assert!(said.lines().count() <= 2, "once a process: {said}");
    assert!(most(&report, &["store", "occupied_peak"]) > 2 << 20, "{report:#}");
}

/// Files of Terrace's are files of the program's to the kernel: it sends a signal
/// that kills when they grow beyond what the program may write.
#[test]
fn a_program_that_may_hardly_write_lives() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--spill", "spilled", "--store-limit", "64KiB"];

    let (output, _) = run(directory.path(), "ulimit -f 8;", &arguments);

    assert_right(&output);
}

/// A file system without room. Needs root to mount one.
#[test]
fn on_a_full_file_system_nothing_is_lost_and_the_user_is_told() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let small = directory.path().join("small");
    fs::create_dir(&small).unwrap();
    let mounted = Process::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(&small)
        .output()
        .is_ok_and(|mount| mount.status.success());
    if !mounted {
        is_missing("a file system of our own");
        return;
    }
    let runs = ["small/spilled", "dax:small/spilled"]
        .map(|file| run(directory.path(), "", &["--spill", file, "--store-limit", "64KiB"]));

    let unmounted = Process::new("umount").arg(&small).status().unwrap();
    assert!(unmounted.success());
    for (output, report) in runs {
        assert_right(&output);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("the spill file refuses more: No space left on device"), "{said}");
        assert!(most(&report, &["store", "occupied_peak"]) > 2 << 20, "{report:#}");
    }
}

/// Without a file there is nowhere for pages beyond a limit to go. Were it taken and
/// ignored, its user would believe in a bound that there is none.
#[test]
fn a_limit_of_the_store_wants_a_file_below_it() {
    let run = |more: &[&str]| {
        let run = common::terrace().args(["run", "--fast", "2MiB"]).args(more);
        common::refused(run.args(["--", "true"]))
    };
    let directory = tempfile::tempdir().unwrap();
    let tiers = directory.path().join("tiers.toml");
    let text = "ladder = 1\n[[tier]]\nmemory = \"dram\"\ncapacity = \"2MiB\"\n\
                [[tier]]\nmemory = \"compressed\"\ncapacity = \"1MiB\"\n";
    fs::write(&tiers, text).unwrap();
    let check = common::terrace().arg("check").arg(&tiers);

    for option in ["--store-limit", "--spill-size"] {
        let said = run(&[option, "1MiB"]);
        assert!(said.contains("--spill <[dax:]FILE>"), "{said}");
    }
    let said = common::refused(check);
    assert!(said.contains("`tier[1].capacity`: what does not fit needs a `file`"), "{said}");
}

/// What that leaves: compressed pages take as much as they take.
#[test]
fn without_a_file_the_store_has_no_limit() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();

    let (output, report) = run(directory.path(), "", &[]);

    assert_right(&output);
    // 12 MiB that compress by half, and 2 of them resident: more than the 2 MiB that would
    // go to a file, were there one.
    assert!(most(&report, &["store", "occupied_peak"]) > 4 << 20, "{report:#}");
    assert_eq!(most(&report, &["store", "spill_written"]), 0);
}

#[test]
fn a_device_is_no_spill_file() {
    let output = Process::new(binary())
        .args(["run", "--fast", "2MiB", "--spill", "dax:/dev/null", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("is a device"), "{output:?}");
}

#[test]
fn a_ladder_file_says_the_same_as_options() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tiers.toml");
    let tiers = "ladder = 1\n[[tier]]\nmemory = \"dram\"\ncapacity = \"CAPACITY\"\n\
                 [[tier]]\nmemory = \"compressed\"\ncapacity = \"1MiB\"\n\
                 [[tier]]\nmemory = \"file\"\npath = \"cold\"\n";
    let run = |capacity: &str, more: &[&str]| {
        fs::write(&file, tiers.replace("CAPACITY", capacity)).unwrap();
        let command = common::terrace().env("TERRACE_PRELOAD", common::preload());
        command.current_dir(dir.path()).args(["run", "--tiers", "tiers.toml"]).args(more)
    };
    let few = common::refused(run("4KiB", &["--", "true"]));
    assert_eq!(few, "tiers.toml: field `tier[0].capacity`: must be at least 1.00 MiB");
    let both = common::refused(run("8MiB", &["--fast", "8MiB", "--", "true"]));
    assert!(both.contains("--fast"), "{both}");
    let other = common::refused(run("8MiB\"\nsize = \"1", &["--", "true"]));
    assert!(other.starts_with("tiers.toml:5: field `tier[0].size`"), "{other}");
    if !common::is_supported() {
        return;
    }

    compile(USER, &dir.path().join("user"), &["-O2"]);
    let output = run("2MiB", &["--json", "--report", "r", "--", "./user", "16"]).output().unwrap();

    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&fs::read(dir.path().join("r")).unwrap()).unwrap();
    assert_eq!(report["budget"], 2 << 20);
    let spilled = report["total"]["store"]["spill_written"].as_u64().unwrap();
    assert!(spilled > 1 << 20, "little reached the file: {spilled}");
}
