//! `terrace run` backs memory with huge pages ahead of a walk through it.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command as Process;

use common::{compile, is_supported, preload};
use serde_json::Value;
use snapbox::cmd::cargo_bin;

/// Fills 96 of the 192 MiB that it maps, in pieces and with pauses, and checks them.
const WALK: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
int main(void) {
    size_t pages = 96 * 256;
    size_t *m = mmap(0, 2 * pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < pages; i++) {
        m[i * 512] = m[i * 512 + 7] = i * 77 + 1;
        if (i % 512 == 0) nanosleep(&(struct timespec){0, 1000000}, 0);
    }
    for (size_t i = 0; i < 2 * pages; i += i < pages ? 1 : 4096) {
        size_t want = i < pages ? i * 77 + 1 : 0;
        if (m[i * 512] != want || m[i * 512 + 7] != want) { puts("WRONG"); return 1; }
    }
    puts("right");
    return 0;
}
"#;

/// Runs it in 128 MiB; the report's figures for huge pages.
fn walk(directory: &Path, huge_pages: &str) -> Value {
    let output = Process::new(cargo_bin!("terrace"))
        .env("TERRACE_PRELOAD", preload())
        .current_dir(directory)
        .args(["--json", "run", "--fast", "128MiB", "--huge-pages", huge_pages])
        .args(["--report", "report", "--record", "decisions", "--", "./walk"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "right\n", "{output:?}");
    let report: Value =
        serde_json::from_slice(&fs::read(directory.join("report")).unwrap()).unwrap();
    report["total"]["huge"].clone()
}

fn kernel_has_huge_pages() -> bool {
    fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|text| !text.contains("[never]"))
}

#[test]
fn a_walk_finds_huge_pages_unless_they_are_forbidden() {
    if !is_supported() || !kernel_has_huge_pages() {
        eprintln!("SKIPPED: no userfaultfd, or no huge pages here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    compile(WALK, &directory.path().join("walk"), &["-O2"]);

    let auto = walk(directory.path(), "auto");
    let why = Process::new(cargo_bin!("terrace"))
        .current_dir(directory.path())
        .args(["why", "decisions", "--class", "prezero", "--last", "1"])
        .output()
        .unwrap();
    let never = walk(directory.path(), "never");

    assert!(auto["backed"].as_u64() > Some(0), "{auto}");
    assert!(auto["walked_through"].as_u64() > Some(0), "{auto}");
    let why = String::from_utf8_lossy(&why.stdout);
    assert!(why.contains("prezero 2.00 MiB") && why.contains("avoided fault"), "{why}");
    assert_eq!(never["zeroed"].as_u64(), Some(0), "{never}");
    assert_eq!(never["backed"].as_u64(), Some(0), "{never}");
}
