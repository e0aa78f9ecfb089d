//! `terrace run --total`: one budget for what is in DRAM and for what is compressed.

mod common;

use std::fs;
use std::path::Path;

use common::{compile, is_supported, preload, terrace};

/// Holds 64 MiB of records, zeros for the most part and otherwise of few words, so that
/// they compress quickly and much better if given time, and goes through them three times.
const RECORDS: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const char *words[8] = {
    "administrator", "organisational", "representation", "characteristic",
    "responsibility", "transformation", "administration", "recommendation",
};
int main(void) {
    size_t count = (64u << 20) / 64;
    char (*records)[64] = malloc(count * 64);
    if (!records) return 3;
    uint64_t x = 1;
    for (size_t i = 0; i < count; i++) {
        x = x * 6364136223846793005u + 1;
        memset(records[i], 0, 64);
        memcpy(records[i], words[x >> 61], 12);
        memcpy(records[i] + 16, words[x >> 58 & 7], 10);
        records[i][63] = (char)i;
    }
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < count; i++)
            if (records[i][63] != (char)i || records[i][0] < 'a') return 1;
    puts("intact");
    return 0;
}
"#;

/// 48 MiB that do not compress, and an end at once.
const RANDOM: &str = r#"
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    const uint64_t words = (48 << 20) / 8;
    uint64_t *at = mmap(0, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t x = 88172645463325252ul;
    for (uint64_t i = 0; i < words; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        at[i] = x;
    }
    write(1, "intact\n", 7);
    _exit(0);
}
"#;

/// Runs the program with so much DRAM, and returns its report.
fn report(dir: &Path, option: &str, size: &str) -> serde_json::Value {
    report_of(RECORDS, dir, option, size)
}

fn report_of(source: &str, dir: &Path, option: &str, size: &str) -> serde_json::Value {
    let (program, file) = (dir.join("records"), dir.join("report"));
    compile(source, &program, &["-O1"]);
    let command = terrace().env("TERRACE_PRELOAD", preload());
    let command = command.args(["--json", "run", option, size, "--report"]).arg(&file);
    let output = command.arg("--").arg(&program).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "intact\n", "{output:?}");
    serde_json::from_slice(&fs::read(&file).unwrap()).unwrap()
}

/// What is compressed would otherwise come on top: a container with this limit would be
/// killed.
#[test]
fn what_is_compressed_counts_against_a_total() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();

    let report = report(dir.path(), "--total", "32MiB");

    let shared = &report["shared"];
    let held = shared["resident_peak"].as_u64().unwrap();
    let budget = 32 << 20;
    assert_eq!(report["budget_holds_store"], true, "{shared}");
    assert!(held <= budget + budget / 20, "budget not kept: {shared}");
    let store = report["total"]["store"]["occupied_peak"].as_u64().unwrap();
    assert!(store > 4 << 20, "hardly anything was compressed, so this shows nothing: {store}");
}

/// Nobody looks at so short a run in time: the processes themselves know what they had.
#[test]
fn a_total_that_was_exceeded_is_not_told_as_kept() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();

    let report = report_of(RANDOM, dir.path(), "--total", "16MiB");

    let store = report["total"]["store"]["occupied_peak"].as_u64().unwrap();
    assert!(store > 32 << 20, "what does not compress has to be somewhere: {store}");
    assert_eq!(report["budget_kept"], false, "{report}");
    assert!(report["shared"]["resident_peak"].as_u64().unwrap() >= store, "{report}");
}

/// Room is worth something there alone: packing tightly where there is enough of it
/// would cost time for nothing.
#[test]
fn pages_are_packed_tightly_only_where_room_is_worth_it() {
    if !is_supported() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tightly =
        |report: serde_json::Value| report["total"]["store"]["packed_tightly"].as_u64().unwrap();

    let scarce = tightly(report(dir.path(), "--total", "32MiB"));
    let free = tightly(report(dir.path(), "--fast", "16MiB"));

    assert_eq!(free, 0);
    // Elsewhere there is one way to pack alone.
    if std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default().contains("avx512_vbmi2") {
        assert!(scarce > 1000, "{scarce}");
    }
}
