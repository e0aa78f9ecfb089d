//! `terrace kloc` while files are made and deleted as fast as the machine can. In a program of its own: each
//! daemon on the machine is told of these files, and tests beside it count the events that theirs has lost.

mod common;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::kloc::{Daemon, Disk, Group, place};
use common::{await_that, compile, is_root};

/// The group's size. Files leave when more than a tenth is in use, which the known file alone is.
const GROUP: u64 = 160 << 20;
/// The size of the file whose content is known.
const KNOWN: u64 = 32 << 20;
/// For how long files are made and deleted.
const SECONDS: &str = "3";

/// `maker DIRECTORY SECONDS THREADS`: each thread makes files in a directory of its own, writes one page,
/// closes and deletes them. One of 64 is deleted only 32768 files later, when its page may have left and its
/// content is compared. Prints how many files were made and deleted, and how many that is a second.
const MAKER: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
enum { WORDS = 512, EVERY = 64, KEPT = 512, THREADS = 256 };
static double end;
static _Atomic uint64_t made;
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static void fail(const char *what) {
    perror(what);
    exit(1);
}
static void fill(uint64_t *page, uint64_t number) {
    for (size_t i = 0; i < WORDS; i++) page[i] = (number << 9 | i) * 0x9e3779b97f4a7c15u;
}
static void make(int directory, const char *name, uint64_t number) {
    uint64_t page[WORDS];
    fill(page, number);
    int file = openat(directory, name, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (file < 0) fail("create");
    if (write(file, page, sizeof page) != (ssize_t)sizeof page) fail("write");
    if (close(file)) fail("close");
}
static void take(int directory, const char *name, uint64_t number) {
    uint64_t page[WORDS], wanted[WORDS];
    fill(wanted, number);
    int file = openat(directory, name, O_RDONLY);
    if (file < 0) fail("open");
    if (read(file, page, sizeof page) != (ssize_t)sizeof page) fail("read");
    if (memcmp(page, wanted, sizeof page)) {
        fprintf(stderr, "the content of file %llu has changed\n", (unsigned long long)number);
        exit(1);
    }
    close(file);
    if (unlinkat(directory, name, 0)) fail("unlink");
}
static void *work(void *at) {
    int directory = *(int *)at;
    uint64_t kept[KEPT] = {0}, first = (uint64_t)directory << 32, number = 1;
    char name[32];
    for (; number % 256 || now() < end; number++) {
        if (number % EVERY) {
            snprintf(name, sizeof name, "x%d", (int)(number % EVERY));
            make(directory, name, first + number);
            if (unlinkat(directory, name, 0)) fail("unlink");
        } else {
            size_t slot = number / EVERY % KEPT;
            snprintf(name, sizeof name, "kept%d", (int)slot);
            if (kept[slot]) take(directory, name, kept[slot]);
            make(directory, name, kept[slot] = first + number);
        }
    }
    for (size_t slot = 0; slot < KEPT; slot++) {
        snprintf(name, sizeof name, "kept%d", (int)slot);
        if (kept[slot]) take(directory, name, kept[slot]);
    }
    atomic_fetch_add(&made, number - 1);
    return 0;
}
int main(int count, char **arguments) {
    if (count != 4 || chdir(arguments[1])) return 2;
    int threads = atoi(arguments[3]);
    pthread_t thread[THREADS];
    int directory[THREADS];
    if (threads < 1 || threads > THREADS) return 2;
    for (int i = 0; i < threads; i++) {
        char name[32];
        snprintf(name, sizeof name, "maker%d", i);
        if (mkdir(name, 0700)) fail("mkdir");
        directory[i] = open(name, O_RDONLY | O_DIRECTORY);
        if (directory[i] < 0) fail("directory");
    }
    double begin = now();
    end = begin + atof(arguments[2]);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], 0, work, &directory[i])) fail("thread");
    for (int i = 0; i < threads; i++) pthread_join(thread[i], 0);
    uint64_t all = made;
    printf("%llu %.0f\n", (unsigned long long)all, all / (now() - begin));
    return 0;
}
"#;

/// Files made and deleted faster than anybody could look at each, in a group that is always short: the
/// daemon answers, follows or says how many events it has lost, and its table does not grow. No content
/// changes, neither of those files nor of one that waits beside them; and that one leaves in the end.
#[test]
fn a_flood_of_files_is_followed_or_told() {
    if !is_root() {
        return;
    }
    let directory = place();
    let (Some(disk), Some(group)) = (Disk::new("ext4"), Group::new("flood", GROUP)) else { return };
    let maker = directory.path().join("maker");
    compile(MAKER, &maker, &["-O2", "-Wall", "-Werror", "-pthread"]);
    let group_path = group.0.to_str().unwrap().to_owned();
    let arguments = ["--mode", "enforce", "--cgroup", &group_path, "--high", "10%", "--low", "2%"];
    let arguments = [&arguments[..], &["--contexts", "1000"]].concat();
    let Some(daemon) = Daemon::new(&directory.path().join("state"), &arguments) else { return };

    let content: Vec<u8> =
        (0..KNOWN / 8).flat_map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes()).collect();
    fs::write(directory.path().join("original"), &content).unwrap();
    let known = disk.path().join("known");
    let copy = format!("dd if=original of={} bs=1M conv=fsync status=none", known.display());
    group.run(&copy, directory.path());

    let threads = std::thread::available_parallelism().map_or(2, |count| count.get().clamp(2, 256));
    let join = format!(
        "echo $$ >{group_path}/cgroup.procs; exec {} {} {SECONDS} {threads}",
        maker.display(),
        disk.path().display()
    );
    let mut child = Command::new("bash")
        .args(["-c", &join])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let status = || daemon.ask(&["top", "--times", "1"])["status"].clone();
    while child.try_wait().unwrap().is_none() {
        // It answers meanwhile.
        assert_eq!(status()["enforce"], true);
        std::thread::sleep(Duration::from_millis(500));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let figures: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [made, rate] = figures[..] else { panic!("{text}") };

    let mut last = serde_json::Value::Null;
    let mut told = (0, 0);
    await_that(Duration::from_mins(1), "an open and a close of each file, or their loss", || {
        last = status();
        told = (last["totals"]["events"].as_u64().unwrap(), last["lost"].as_u64().unwrap());
        // By fanotify, a full queue counts as one event, and whoever has ended is in no group.
        let least = if last["hooks"] == "fanotify" { 1 } else { 2 * made };
        told.0 + told.1 >= least
    });
    eprintln!(
        "{made} files made and deleted, {rate} a second by {threads} threads; {} events followed, {} \
         lost; {} files had left",
        told.0, told.1, last["totals"]["left"]
    );
    assert!(last["contexts"].as_u64().unwrap() <= 1000, "{last}");

    // Its close may be among what was lost, or it was forgotten: it is known by a use of it.
    group.run(&format!("cat {} >/dev/null", known.display()), directory.path());
    await_that(Duration::from_mins(2), "the known file to leave", || {
        last = daemon.ask(&["why", known.to_str().unwrap()]);
        last["cached"] == 0
    });
    assert!(fs::read(&known).unwrap() == content, "the content of the known file has changed");
    assert_eq!(daemon.end()["enforce"], true);
}
