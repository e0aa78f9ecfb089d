//! `terrace run` backs memory with huge pages ahead of a walk through it, and makes huge
//! pages of memory that is in use.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command as Process, Output};

use common::{binary, compile, is_supported, preload};
use serde_json::Value;
use terrace_shown::is_missing;

/// Fills 96 of the 192 MiB that it maps, in pieces and with pauses, and checks them.
const WALK: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
int main(void) {
    size_t pages = 96 * 256;
    size_t *m = mmap(0, 2 * pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // Time for whoever prepares memory, also where others want the processors.
    nanosleep(&(struct timespec){0, 300000000}, 0);
    for (size_t i = 0; i < pages; i++) {
        m[i * 512] = m[i * 512 + 7] = i * 77 + 1;
        if (i % 512 == 0) nanosleep(&(struct timespec){0, 10000000}, 0);
    }
    for (size_t i = 0; i < 2 * pages; i += i < pages ? 1 : 4096) {
        size_t want = i < pages ? i * 77 + 1 : 0;
        if (m[i * 512] != want || m[i * 512 + 7] != want) { puts("WRONG"); return 1; }
    }
    puts("right");
    return 0;
}
"#;

/// Fills 32 of the 192 MiB that it maps, here and there so that nothing looks like a walk,
/// and updates it at random until half of it is in huge pages, for so many seconds at most.
/// Says how much was.
const HOT: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
static long huge_kib(void) {
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    long kib = 0;
    while (file && fgets(line, sizeof line, file)) sscanf(line, "AnonHugePages: %ld", &kib);
    if (file) fclose(file);
    return kib;
}
int main(int count, char **arguments) {
    size_t pages = 32 * 256;
    uint64_t *m = mmap(0, 6 * pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < pages; i++) {
        size_t page = i * 7919 % pages;
        m[page * 512] = page * 77 + 1;
    }
    uint64_t x = 88172645463325252u;
    time_t end = time(0) + (count > 1 ? atoi(arguments[1]) : 1);
    long most = 0;
    while (most < 16 << 10 && time(0) < end) {
        for (int i = 0; i < 1000000; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            m[x % pages * 512 + 8 + (x >> 40) % 500] += x;
        }
        if (huge_kib() > most) most = huge_kib();
    }
    for (size_t page = 0; page < pages; page++)
        if (m[page * 512] != page * 77 + 1) { puts("WRONG"); return 1; }
    printf("right %ld\n", most);
    return 0;
}
"#;

/// Runs it in 128 MiB, for so many seconds at most; how much of it was in huge pages (KiB),
/// and the report's figures for them.
fn hot(directory: &Path, huge_pages: &str, seconds: &str) -> (u64, Value) {
    let (output, huge) = run(directory, huge_pages, "enforce", &["./hot", seconds]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let kib = text.trim().strip_prefix("right ").and_then(|kib| kib.parse().ok());
    (kib.unwrap_or_else(|| panic!("{output:?}")), huge)
}

/// Runs it in 128 MiB; the report's figures for huge pages. Whether zeroing ahead pays is a question
/// of how busy the processors are: the economist is asked, and not obeyed.
fn walk(directory: &Path, huge_pages: &str) -> Value {
    let (output, huge) = run(directory, huge_pages, "shadow", &["./walk"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "right\n", "{output:?}");
    huge
}

fn run(directory: &Path, huge_pages: &str, economist: &str, program: &[&str]) -> (Output, Value) {
    let output = Process::new(binary())
        .env("TERRACE_PRELOAD", preload())
        .current_dir(directory)
        .args(["--json", "run", "--engine=pager", "--fast", "128MiB", "--huge-pages", huge_pages])
        .args(["--economist", economist])
        .args(["--report", "report", "--record", "decisions", "--"])
        .args(program)
        .output()
        .unwrap();
    let report: Value =
        serde_json::from_slice(&fs::read(directory.join("report")).unwrap()).unwrap();
    (output, report["total"]["huge"].clone())
}

/// What `terrace why` says of the last decisions of a class.
fn why(directory: &Path, class: &str) -> String {
    why_last(directory, class, "1")
}

fn why_last(directory: &Path, class: &str, count: &str) -> String {
    let output = Process::new(binary())
        .current_dir(directory)
        .args(["why", "decisions", "--class", class, "--last", count])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether there is a block that a huge page fits in, after the kernel has tried to make
/// some.
fn has_room_for_huge_pages() -> bool {
    let _ = fs::write("/proc/sys/vm/compact_memory", "1");
    kernel_has_huge_pages() && terrace_live::space::proc_maps::free_huge_pages()
}

fn kernel_has_huge_pages() -> bool {
    fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|text| !text.contains("[never]"))
}

#[test]
fn a_walk_finds_huge_pages_unless_they_are_forbidden() {
    if !is_supported() {
        return;
    }
    if !kernel_has_huge_pages() {
        is_missing("huge pages");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    compile(WALK, &directory.path().join("walk"), &["-O2"]);

    let auto = walk(directory.path(), "auto");
    let why = why(directory.path(), "prezero");
    let never = walk(directory.path(), "never");

    assert!(auto["backed"].as_u64() > Some(0), "{auto}");
    assert!(auto["walked_through"].as_u64() > Some(0), "{auto}");
    assert!(why.contains("prezero 2.00 MiB") && why.contains("avoided fault"), "{why}");
    assert_eq!(never["zeroed"].as_u64(), Some(0), "{never}");
    assert_eq!(never["backed"].as_u64(), Some(0), "{never}");
}

#[test]
fn memory_in_use_becomes_huge_pages_if_that_is_asked_for_and_none_if_it_is_forbidden() {
    if !is_supported() {
        return;
    }
    if !has_room_for_huge_pages() {
        is_missing("huge pages");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    compile(HOT, &directory.path().join("hot"), &["-O2"]);

    let (kib, always) = hot(directory.path(), "always", "30");
    let why = why(directory.path(), "collapse");
    let (none, never) = hot(directory.path(), "never", "1");

    assert!(kib >= 16 << 10, "{kib} KiB, {always}");
    assert!(always["collapsed"].as_u64() >= Some(8), "{always}");
    assert!(why.contains("collapse 512 pages") && why.contains("(AskedFor): FORCED"), "{why}");
    assert_eq!((none, never["collapsed"].as_u64()), (0, Some(0)), "{never}");
}

/// Whether it pays depends on the machine; that it is asked, and on what grounds, does not.
#[test]
fn the_economist_is_asked_before_memory_in_use_becomes_huge_pages() {
    if !is_supported() {
        return;
    }
    if !has_room_for_huge_pages() {
        is_missing("huge pages");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    compile(HOT, &directory.path().join("hot"), &["-O2"]);

    let (_, auto) = hot(directory.path(), "auto", "20");
    let why = why(directory.path(), "collapse");

    assert!(why.contains("collapse 512 pages"), "{auto} {why}");
    assert!(why.contains("(PageWalksEstimated)") || why.contains("(PageWalksCounted)"), "{why}");
    assert!(why.contains("saved page walks") && why.contains("stalled accesses"), "{why}");
    let paid = why.contains("PASSED");
    assert!(!paid || auto["collapsed"].as_u64() > Some(0), "{auto} {why}");
}

/// The walker's mapping by the name that a recording gives it. Of its 192 MiB, huge pages pay in
/// the first 32; the next 32 are touched and the rest is not.
const PROFILE: &str = "terrace-profile 1
program ./walk
machine laptop
clock 3000000000Hz
horizon 1000000000ns
runs 1
region mmap class=28 order=0 len=201326592B seen=1
range offset=0B len=33554432B averted=900000000cycles deviation=0cycles touched=512
range offset=33554432B len=33554432B averted=0cycles deviation=0cycles touched=512
";

#[test]
fn a_profile_puts_huge_pages_where_they_pay_before_memory_is_touched() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    compile(WALK, &directory.join("walk"), &["-O1"]);
    fs::write(directory.join("walk.profile"), PROFILE).unwrap();
    let output = Process::new(binary())
        .env("TERRACE_PRELOAD", preload())
        .current_dir(directory)
        .args(["--json", "run", "--engine=pager", "--fast", "256MiB", "--profile", "walk.profile"])
        .args(["--report", "report", "--record", "decisions", "--", "./walk"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "right\n", "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("the simulated machine `laptop`"), "{told}");
    assert!(!told.contains("is of `./walk`"), "it is the program: {told}");
    assert!(told.contains("used from the first large mapping on"), "{told}");
    let report: Value =
        serde_json::from_slice(&fs::read(directory.join("report")).unwrap()).unwrap();
    let huge = &report["total"]["huge"];
    assert_eq!(huge["mappings_known"], 1, "{huge}");
    // The mapping is there as in the profiled run, so all that the profile says comes to be asked about.
    assert_eq!(huge["profile_matched"], 16 * 900_000_000_u64, "{huge}");
    assert_eq!(huge["profile_matched"], huge["profile_benefit"], "{huge}");
    assert!(huge["profile_mapped"].as_u64() >= Some(192 << 20), "{huge}");
    assert!(huge["profile_unknown"].as_u64() < huge["profile_mapped"].as_u64(), "{huge}");
    let profiled = huge["profiled"].as_u64().unwrap();
    if profiled == 0 && !has_room_for_huge_pages() {
        // No kernel gives huge pages at will.
        is_missing("huge pages");
        return;
    }
    // How many depends on how many were zeroed in time.
    assert!(profiled >= 1, "{huge}");
    // Also of the range that has walks to avert, which was touched first.
    let decisions = why_last(directory, "first-touch", "1000");
    let instead = "instead:  base pages filled ahead: benefit ";
    for part in ["huge page first at", "saved page walks", "a profile: ", instead] {
        assert!(decisions.contains(part), "{part}: {decisions}");
    }
}

/// Maps six times 3 MiB: the last part of each is smaller than a huge page.
const PARTS: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
int main(void) {
    char *m[6];
    for (int i = 0; i < 6; i++)
        m[i] = mmap(0, 3 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    nanosleep(&(struct timespec){2, 0}, 0);
    for (int i = 0; i < 6; i++)
        for (size_t at = 2 << 20; at < 3 << 20; at += 4096)
            if (m[i][at]++) { puts("WRONG"); return 1; }
    puts("right");
    return 0;
}
"#;

/// Where no huge page fits and all will be touched, base pages are filled ahead; `why` tells it.
#[test]
fn a_profile_fills_base_pages_where_a_huge_page_does_not_fit() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    compile(PARTS, &directory.join("parts"), &["-O1"]);
    let mut profile = PROFILE.split("region").next().unwrap().replace("./walk", "./parts");
    for order in 0..6 {
        profile += &format!(
            "region mmap class=22 order={order} len=3145728B seen=1\n\
             range offset=2097152B len=2097152B averted=0cycles deviation=0cycles touched=512\n"
        );
    }
    fs::write(directory.join("parts.profile"), profile).unwrap();
    let output = Process::new(binary())
        .env("TERRACE_PRELOAD", preload())
        .current_dir(directory)
        .args(["--json", "run", "--engine=pager", "--fast", "64MiB", "--profile", "parts.profile"])
        // No page walk is averted: by its price it would not be used while memory fits.
        .args(["--economist", "shadow"])
        .args(["--report", "report", "--record", "decisions", "--", "./parts"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "right\n", "{output:?}");
    let report: Value =
        serde_json::from_slice(&fs::read(directory.join("report")).unwrap()).unwrap();
    let huge = &report["total"]["huge"];
    assert_eq!(huge["mappings_known"], 6, "{huge}");
    // One of 64 is held out; not all six.
    assert!(huge["populated"].as_u64() >= Some(256), "{huge}");
    let decisions = why_last(directory, "populate", "10");
    for part in ["populate 256 pages", "256 of 256 pages will be touched", "avoided fault"] {
        assert!(decisions.contains(part), "{part}: {decisions}");
    }
}

/// First touches take longer in managed memory. A profile whose huge pages avert less than that must not
/// make a program slower whose memory fits; where it does not fit there is a pager anyway.
#[test]
fn a_profile_that_does_not_pay_is_used_only_where_memory_is_short() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    compile(WALK, &directory.join("walk"), &["-O1"]);
    let profile = PROFILE.replace("averted=900000000cycles", "averted=1000cycles");
    fs::write(directory.join("walk.profile"), profile).unwrap();
    let run = |fast: &str| {
        let output = Process::new(binary())
            .env("TERRACE_PRELOAD", preload())
            .current_dir(directory)
            .args(["--json", "run", "--engine=pager", "--fast", fast, "--profile", "walk.profile"])
            .args(["--report", "report", "--", "./walk"])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "right\n", "{output:?}");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = fs::read(directory.join("report")).unwrap();
        (told, serde_json::from_slice::<Value>(&report).unwrap())
    };

    let (told, fits) = run("256MiB");
    let (_, short) = run("128MiB");

    assert!(told.contains("not used while memory fits without it"), "{told}");
    assert_eq!(fits["profile"]["at_once"], false, "{fits}");
    assert_eq!(fits["profile"]["used"], false, "{fits}");
    assert_eq!(
        (&short["profile"]["at_once"], &short["profile"]["used"]),
        (&false.into(), &true.into())
    );
    assert_eq!(fits["total"]["huge"]["mappings_known"], 0, "{fits}");
    assert_eq!(short["total"]["huge"]["mappings_known"], 1, "{short}");
}

#[test]
fn a_profile_that_cannot_be_used_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("bad"), PROFILE.replace("touched=512", "touched=x")).unwrap();
    let refused = |more: &[&str]| {
        let output = Process::new(binary())
            .env("TERRACE_PRELOAD", preload())
            .current_dir(directory.path())
            .args(["run", "--fast", "16MiB"])
            .args(more)
            .args(["--", "true"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let never = refused(&["--profile", "bad", "--huge-pages", "never"]);
    assert!(never.contains("--profile: has no effect"), "{never}");
    if is_supported() {
        let bad = refused(&["--profile", "bad"]);
        assert!(bad.contains("bad:8: field `touched`"), "{bad}");
        let heap = PROFILE.replace("mmap class=28 order=0", "heap");
        fs::write(directory.path().join("bad"), heap).unwrap();
        let heap = refused(&["--profile", "bad"]);
        assert!(heap.contains("--profile: bad: would have no effect"), "{heap}");
    }
}
