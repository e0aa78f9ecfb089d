//! Core dumps of managed programs: `terrace core`, and what `run` says of them.

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command as Process, Output, Stdio};

use common::{binary, compile, has_program, is_supported, json, preload, refused, terrace};
use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use serde_json::Value;
use snapbox::cmd::Command;
use terrace_sampler::ProcStat;

const PAGE: usize = 4096;
const PAGES: usize = 5 * 1024;

/// Fills memory with pages of each kind, says where, and does as its argument says.
const FILLER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define PAGES (5 * 1024ul)
static unsigned long word(unsigned long p, unsigned long i, unsigned long *x) {
    *x = *x * 6364136223846793005ul + 1442695040888963407ul;
    switch (p % 5) {
    case 0: return p * 1000 + i + 1;                     /* counts */
    case 1: return 0x0101010101010101ul * (p % 255 + 1); /* one word */
    case 2: return *x;                                   /* noise */
    case 3: return i % 16 == 0 ? p : 0;                  /* nearly empty */
    default: return 0;
    }
}
static void fill(unsigned long *m, unsigned long first, unsigned long seed) {
    for (unsigned long p = first; p < PAGES; p++) {
        unsigned long x = p + seed;
        for (unsigned long i = 0; i < 512; i++) m[p * 512 + i] = word(p + seed, i, &x);
    }
}
int main(int argc, char **argv) {
    (void)argc;
    unsigned long *m = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(m, 0, 0);
    printf("%p %d\n", (void *)m, getpid());
    fflush(stdout);
    if (!strcmp(argv[1], "abort")) abort();
    if (!strcmp(argv[1], "fork")) {
        pid_t child = fork();
        if (child == 0) {
            fill(m, PAGES / 2, 5);
            abort();
        }
        int status;
        waitpid(child, &status, 0);
        return WCOREDUMP(status) ? 0 : 9;
    }
    getchar();
    return 0;
}
"#;

/// The page of a number, as `fill` makes it.
fn page_of(number: usize, seed: usize) -> Vec<u8> {
    let (number, mut x) = (number as u64 + seed as u64, number as u64 + seed as u64);
    let mut word = |i: u64| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match number % 5 {
            0 => number * 1000 + i + 1,
            1 => 0x0101_0101_0101_0101 * (number % 255 + 1),
            2 => x,
            3 if i.is_multiple_of(16) => number,
            _ => 0,
        }
    };
    (0..512).flat_map(|i| word(i).to_le_bytes()).collect()
}

/// A dump, read anew from what its headers say.
struct Core {
    bytes: Vec<u8>,
    /// First address, bytes in the file, offset.
    segments: Vec<(u64, u64, u64)>,
}

impl Core {
    fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let header = FileHeader64::<LittleEndian>::parse(&bytes[..]).unwrap();
        let programs = header.program_headers(LittleEndian, &bytes[..]).unwrap();
        let loads = programs.iter().filter(|p| p.p_type(LittleEndian) == elf::PT_LOAD);
        let segments = loads.map(|program| {
            let (offset, stored) = program.file_range(LittleEndian);
            (program.p_vaddr(LittleEndian), stored, offset)
        });
        Self { segments: segments.collect(), bytes }
    }

    /// Memory that it has.
    fn memory(&self, at: u64, len: usize) -> Option<&[u8]> {
        let inside = |(start, stored, _): &&(u64, u64, u64)| {
            *start <= at && at + len as u64 <= *start + *stored
        };
        let (start, _, offset) = self.segments.iter().find(inside)?;
        let from = (offset + (at - start)) as usize;
        Some(&self.bytes[from..from + len])
    }

    /// How many of the filler's pages are right, and how many it does not have; none is wrong.
    fn right(&self, at: u64, seed: impl Fn(usize) -> usize) -> (usize, usize) {
        let (mut right, mut unreadable) = (0, 0);
        for number in 0..PAGES {
            match self.memory(at + (number * PAGE) as u64, PAGE) {
                None => unreadable += 1,
                Some(page) => {
                    assert!(page == page_of(number, seed(number)), "page {number} is wrong");
                    right += 1;
                }
            }
        }
        (right, unreadable)
    }

    /// How many of the filler's pages are zeros that should not be.
    fn zeros(&self, at: u64) -> usize {
        let is_zero = |number: &usize| {
            let page = self.memory(at + (number * PAGE) as u64, PAGE);
            number % 5 != 4 && page.is_some_and(|page| page.iter().all(|byte| *byte == 0))
        };
        (0..PAGES).filter(is_zero).count()
    }
}

/// Whether the kernel puts dumps where a test finds them: into the directory of the program.
fn kernel_dumps() -> bool {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let mut limit = Process::new("sh");
    let limit = limit.args(["-c", "ulimit -c unlimited"]).stderr(Stdio::null()).status().unwrap();
    let found = pattern.starts_with("core") && !pattern.contains('/') && limit.success();
    if !found {
        eprintln!("SKIPPED: the kernel's dumps go elsewhere ({})", pattern.trim());
    }
    found
}

/// Runs a program in a directory until it has ended, with dumps allowed.
fn run_in(directory: &Path, options: &[&str], program: &[&str]) -> Output {
    let program = program.join(" ");
    Process::new(binary())
        .env("TERRACE_PRELOAD", preload())
        .current_dir(directory)
        .args(["run", "--fast", "3MiB"])
        .args(options)
        .args(["--", "sh", "-c", &format!("ulimit -c unlimited; exec {program}")])
        .output()
        .unwrap()
}

/// The dump in a directory.
fn dump_in(directory: &Path) -> PathBuf {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut cores = entries.filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("core"))
    });
    let core = cores.next().expect("a core dump");
    assert!(cores.next().is_none(), "two of them");
    core
}

/// The address that the filler has said.
fn address(said: &str) -> u64 {
    let address = said.split_whitespace().next().unwrap().strip_prefix("0x").unwrap();
    u64::from_str_radix(address, 16).unwrap()
}

fn core_of(file: &Path, output: Option<&Path>) -> Command {
    let mut command = terrace().args(["--json", "core"]).arg(file);
    if let Some(output) = output {
        command = command.arg("--output").arg(output);
    }
    command
}

/// The filler, waiting.
struct Waiting {
    child: Child,
    stdout: BufReader<ChildStdout>,
    at: u64,
    pid: u32,
}

impl Waiting {
    fn start(directory: &Path, options: &[&str]) -> Self {
        compile(FILLER, &directory.join("filler"), &["-O2"]);
        let mut child = Process::new(binary())
            .env("TERRACE_PRELOAD", preload())
            .current_dir(directory)
            .args(["run", "--engine=pager", "--quiet", "--fast", "3MiB"])
            .args(options)
            .args(["--", "./filler", "wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        stdout.read_line(&mut said).unwrap();
        let pid = said.split_whitespace().nth(1).unwrap().parse().unwrap();
        Self { child, stdout, at: address(&said), pid }
    }

    fn end(mut self) {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(self.child.wait().unwrap().success());
        drop(self.stdout);
    }

    /// Writes a dump as a kernel does: zeros for what cannot be read.
    fn dump(&self, path: &Path) {
        self.stop();
        self.write_dump(path);
        self.signal("-CONT");
    }

    fn signal(&self, name: &str) {
        let status = Process::new("kill").args([name, &self.pid.to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// All its threads, ours included.
    fn stop(&self) {
        self.signal("-STOP");
        common::await_that(std::time::Duration::from_secs(10), "it stops", || {
            let mut threads = fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
            threads.all(|thread| {
                let stat = fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
                ProcStat::parse(&stat).is_some_and(|stat| stat.state() == Some('T'))
            })
        });
    }

    fn write_dump(&self, path: &Path) {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap();
        let memory = File::open(format!("/proc/{}/mem", self.pid)).unwrap();
        let range = |line: &str| {
            let mut fields = line.split_whitespace();
            let (start, end) = fields.next().unwrap().split_once('-').unwrap();
            let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).unwrap());
            let flags = fields.next().unwrap();
            // What is private, as a kernel does by default, or shared and without a name.
            let dumped = flags.contains('w') && flags.ends_with('p') || line.contains("(deleted)");
            (start, end, dumped && !line.contains("[v"))
        };
        let ranges: Vec<_> = maps.lines().map(range).filter(|range| range.2).collect();
        let out = File::create(path).unwrap();
        let mut header = vec![0; 64 + 56 * ranges.len()];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        let mut put = |at: usize, value: u64, len: usize| {
            header[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        };
        for (at, value, len) in
            [(16, 4, 2), (18, 62, 2), (20, 1, 4), (32, 64, 8), (52, 64, 2), (54, 56, 2)]
        {
            put(at, value, len);
        }
        put(56, ranges.len() as u64, 2);
        let mut offset = (64 + 56 * ranges.len() as u64).next_multiple_of(PAGE as u64);
        for (i, &(start, end, _)) in ranges.iter().enumerate() {
            let at = 64 + 56 * i;
            put(at, 1, 4);
            put(at + 4, 6, 4);
            for (field, value) in [(8, offset), (16, start), (32, end - start), (40, end - start)] {
                put(at + field, value, 8);
            }
            put(at + 48, PAGE as u64, 8);
            out.set_len(offset + (end - start)).unwrap();
            self.copy(&memory, start..end, &out, offset);
            offset += end - start;
        }
        out.write_all_at(&header, 0).unwrap();
    }

    /// Copies the pages that are there.
    fn copy(&self, memory: &File, range: std::ops::Range<u64>, out: &File, offset: u64) {
        let map = File::open(format!("/proc/{}/pagemap", self.pid)).unwrap();
        let pages = (range.end - range.start) as usize / PAGE;
        for first in (0..pages).step_by(1 << 16) {
            let count = (pages - first).min(1 << 16);
            let mut entries = vec![0; count * 8];
            let at = (range.start / PAGE as u64 + first as u64) * 8;
            map.read_exact_at(&mut entries, at).unwrap();
            for (i, entry) in entries.as_chunks::<8>().0.iter().enumerate() {
                let at = ((first + i) * PAGE) as u64;
                let mut page = [0; PAGE];
                // Present or swapped; the kernel gives an error for what is absent.
                if u64::from_le_bytes(*entry) >> 62 != 0
                    && memory.read_exact_at(&mut page, range.start + at).is_ok()
                {
                    out.write_all_at(&page, offset + at).unwrap();
                }
            }
        }
    }
}

fn count(document: &Value, what: &str) -> u64 {
    document["pages"][what].as_u64().unwrap_or_else(|| panic!("{what}: {document}"))
}

/// The reason for all of this: without it a debugger shows zeros.
#[test]
fn a_dump_of_the_kernels_is_completed_page_by_page() {
    if !is_supported() || !kernel_dumps() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    compile(FILLER, &path("filler"), &["-O2", "-g"]);
    let ran = run_in(directory.path(), &[], &["./filler", "abort"]);
    let at = address(&String::from_utf8(ran.stdout).unwrap());
    let core = dump_in(directory.path());
    let before = fs::read(&core).unwrap();
    assert!(Core::read(&core).zeros(at) > PAGES / 2, "they should be absent");

    let looked = json(core_of(&core, None), 0);
    let document = json(core_of(&core, Some(&path("full"))), 0);

    assert_eq!(Core::read(&path("full")).right(at, |_| 0), (PAGES, 0));
    assert_eq!(fs::read(&core).unwrap(), before, "the input is as it was");
    assert_eq!(looked["pages"], document["pages"]);
    for kind in ["compressed", "raw", "same"] {
        assert!(count(&document, kind) > 500, "{kind}: {document}");
    }
    assert_eq!(count(&document, "missing"), 0);
    let refusal = refused(core_of(&core, Some(&core)));
    assert!(refusal.contains("--output and FILE are the same file"), "{refusal}");

    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(said.contains("terrace core "), "{said}");

    if has_program("/usr/bin/gdb") {
        // The last page of counts: long absent in the dump.
        let wanted = at + 5 * PAGE as u64;
        let shown = |core: &Path| {
            let mut gdb = Process::new("gdb");
            gdb.args(["-nx", "-batch", "-ex", &format!("x/gx {wanted}")]);
            let output = gdb.arg(path("filler")).arg(core).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        assert!(shown(&core).contains("0x0000000000000000"), "{}", shown(&core));
        assert!(shown(&path("full")).contains("0x0000000000001389"), "{}", shown(&path("full")));
    }
}

/// What was forked has tables of its own, which are not its parent's any more.
#[test]
fn a_dump_of_a_forked_child_is_completed() {
    if !is_supported() || !kernel_dumps() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    compile(FILLER, &directory.path().join("filler"), &["-O2"]);
    let ran = run_in(directory.path(), &[], &["./filler", "fork"]);
    assert!(ran.status.success(), "{ran:?}");
    let at = address(&String::from_utf8(ran.stdout).unwrap());
    let full = directory.path().join("full");

    json(core_of(&dump_in(directory.path()), Some(&full)), 0);

    let seed = |number| if number < PAGES / 2 { 0 } else { 5 };
    assert_eq!(Core::read(&full).right(at, seed), (PAGES, 0));
}

/// What is in a file comes from there as long as it is there. Afterwards it is missing: said, and
/// not zeros.
#[test]
fn spilled_pages_come_from_the_file_or_cannot_be_read() {
    if !is_supported() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let waiting = Waiting::start(directory.path(), &["--spill", "spill", "--store-limit", "1MiB"]);
    let at = waiting.at;
    // While it runs on, what lies in its file is brought in, and the place used again.
    waiting.stop();
    waiting.write_dump(&path("dump"));

    let there = json(core_of(&path("dump"), Some(&path("full"))), 0);
    waiting.signal("-CONT");
    waiting.end();
    let gone = json(core_of(&path("dump"), Some(&path("part"))), 1);

    assert!(count(&there, "spilled") > 500, "{there}");
    assert_eq!(Core::read(&path("full")).right(at, |_| 0), (PAGES, 0));
    assert_eq!(count(&gone, "missing"), count(&there, "spilled"));
    assert_eq!(gone["marked"], true);
    let (right, unreadable) = Core::read(&path("part")).right(at, |_| 0);
    assert_eq!(right + unreadable, PAGES);
    assert_eq!(unreadable as u64, count(&gone, "missing"));
    let listed: u64 = gone["missing"]
        .as_array()
        .unwrap()
        .iter()
        .map(|range| {
            assert_eq!(range["why"], "spilled");
            range["end"].as_u64().unwrap() - range["start"].as_u64().unwrap()
        })
        .sum();
    assert_eq!(listed, unreadable as u64 * PAGE as u64);
    if has_program("/usr/bin/gdb") {
        let missing = gone["missing"][0]["start"].as_u64().unwrap();
        let mut gdb = Process::new("gdb");
        gdb.args(["-nx", "-batch", "-ex", &format!("x/gx {missing}")]);
        let output = gdb.arg(path("filler")).arg(path("part")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("Cannot access memory at address"), "{output:?}");
    }
    let again = json(core_of(&path("part"), None), 1);
    assert_eq!(count(&again, "missing"), unreadable as u64, "it still says so: {again}");
}

/// gdb leaves a mapping at the first page that it cannot read, and leaves resident pages behind it
/// out, too.
#[test]
fn a_dump_of_gcore_is_completed_or_says_what_it_lacks() {
    if !is_supported() {
        return;
    }
    if !has_program("/usr/bin/gcore") {
        eprintln!("SKIPPED: gcore is not installed");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let waiting = Waiting::start(directory.path(), &[]);
    let (at, pid) = (waiting.at, waiting.pid);
    let made = Process::new("gcore").arg("-o").arg(path("gdb")).arg(pid.to_string()).output();
    waiting.end();
    let made = made.unwrap();
    let dump = path(&format!("gdb.{pid}"));
    assert!(dump.exists(), "{made:?}");

    let output = core_of(&dump, Some(&path("full"))).output().unwrap();

    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["by_debugger"], true);
    let missing = count(&document, "missing");
    assert_eq!(output.status.code(), Some(i32::from(missing > 0)), "{document}");
    assert!(count(&document, "compressed") > 500, "{document}");
    let (right, unreadable) = Core::read(&path("full")).right(at, |_| 0);
    assert_eq!(right + unreadable, PAGES);
    assert!(unreadable as u64 <= missing && right > PAGES / 2, "{right} {document}");
}

/// Threads write while pages come and go, and the program dies at any moment: of each page that was
/// not being written all is there.
#[test]
fn pages_in_flight_are_whole() {
    const WRITERS: &str = r#"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#define PAGES 3072ul
static struct { _Atomic unsigned begun, done; } versions[PAGES];
static unsigned long *m;
static void *write_pages(void *seed) {
    unsigned long x = (unsigned long)seed;
    for (;;) {
        x = x * 6364136223846793005ul + 1442695040888963407ul;
        /* Each thread has pages of its own; pages nearby are often next. */
        unsigned long p = (x >> 40) % (PAGES / 2) * 2 + (unsigned long)seed % 2;
        unsigned v = versions[p].done + 1;
        versions[p].begun = v;
        for (unsigned long i = 0; i < 512; i++)
            m[p * 512 + i] = v % 7 == 0 ? 0 : v % 3 ? p << 32 | v : (p << 32 | v) * (i | 1);
        versions[p].done = v;
    }
    return 0;
}
int main(int argc, char **argv) {
    (void)argc;
    m = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("%p %p\n", (void *)m, (void *)versions);
    fflush(stdout);
    for (unsigned long p = 0; p < PAGES; p++) {
        versions[p].begun = versions[p].done = 1;
        for (unsigned long i = 0; i < 512; i++) m[p * 512 + i] = p << 32 | 1;
    }
    pthread_t thread;
    for (unsigned long i = 0; i < 2; i++) pthread_create(&thread, 0, write_pages, (void *)(i + 2));
    usleep(atoi(argv[1]));
    abort();
}
"#;
    const PAGES: usize = 3072;
    if !is_supported() || !kernel_dumps() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    compile(WRITERS, &path("writers"), &["-O2", "-pthread"]);
    let mut restored = 0;
    for round in 0..4u64 {
        let pause = 20_000 + round * 7_919;
        let ran = run_in(directory.path(), &["--quiet"], &["./writers", &pause.to_string()]);
        let said = String::from_utf8(ran.stdout).unwrap();
        let at = address(&said);
        let versions = address(said.split_whitespace().nth(1).unwrap());
        let core = dump_in(directory.path());
        let document = json(core_of(&core, Some(&path("full"))), 0);
        let kinds = ["compressed", "raw", "same", "staged"];
        restored += kinds.into_iter().map(|kind| count(&document, kind)).sum::<u64>();
        let full = Core::read(&path("full"));
        for number in 0..PAGES {
            let version = full.memory(versions + number as u64 * 8, 8).unwrap();
            let half = |i: usize| u32::from_le_bytes(version[i..i + 4].try_into().unwrap());
            let (begun, done) = (half(0), half(4));
            if begun != done {
                continue;
            }
            let v = u64::from(done);
            let base = (number as u64) << 32 | v;
            let word = |i: u64| match v {
                0 => 0,
                v if v.is_multiple_of(7) => 0,
                v if !v.is_multiple_of(3) => base,
                _ => base.wrapping_mul(i | 1),
            };
            let expected: Vec<u8> = (0..512).flat_map(|i| word(i).to_le_bytes()).collect();
            let page = full.memory(at + (number * PAGE) as u64, PAGE).unwrap();
            assert!(page == expected, "round {round}: page {number}, version {v}: {document}");
        }
        fs::remove_file(core).unwrap();
    }
    assert!(restored > 1000, "only {restored} pages were absent");
}

/// Whatever somebody takes for a dump of ours.
#[test]
fn what_is_no_dump_of_ours_is_refused_by_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let program = fs::read(binary()).unwrap();
    let mut other = program[..4096].to_vec();
    other[18] = 183;
    let mut small = program[..4096].to_vec();
    small[4] = 1;
    for (content, said) in [
        (&b""[..], "not a core dump: it is no ELF file"),
        (b"#!/bin/sh", "not a core dump: it is no ELF file"),
        (b"\x28\xb5\x2f\xfd....", "coredumpctl dump"),
        (b"\x7fELF\x02\x01\x01", "cut off"),
        (&program[..4096], "not a core dump"),
        (&other, "another kind of machine"),
        (&small, "32-bit"),
    ] {
        fs::write(path("file"), content).unwrap();
        let refusal = refused(core_of(&path("file"), Some(&path("out"))));
        assert!(refusal.contains(said), "{refusal}");
        assert!(!path("out").exists());
    }
    assert!(refused(core_of(&path("nothing"), None)).contains("No such file"));
    assert!(refused(core_of(directory.path(), None)).contains("not a regular file"));
}

/// A dump of a program that ran without Terrace, and ones that are cut off or of another version.
#[test]
fn dumps_without_tables_or_cut_off_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    if kernel_dumps() {
        let mut plain = Process::new("sh");
        plain.current_dir(directory.path());
        plain.args(["-c", "ulimit -c unlimited; exec sleep 60"]).process_group(0);
        let mut plain = plain.spawn().unwrap();
        // The shell becomes what it executes, and would end otherwise.
        common::await_that(std::time::Duration::from_secs(10), "sleep", || {
            fs::read_to_string(format!("/proc/{}/comm", plain.id())).is_ok_and(|c| c == "sleep\n")
        });
        assert!(Process::new("kill").args(["-ABRT", &plain.id().to_string()]).status().is_ok());
        plain.wait().unwrap();
        let core = dump_in(directory.path());
        let refusal = refused(core_of(&core, None));
        assert!(refusal.contains("no tables of Terrace's"), "{refusal}");
        let file = File::options().write(true).open(&core).unwrap();
        file.set_len(fs::metadata(&core).unwrap().len() / 2).unwrap();
        assert!(refused(core_of(&core, None)).contains("cut off"));
    }
    if !is_supported() {
        return;
    }
    let waiting = Waiting::start(directory.path(), &[]);
    waiting.dump(&path("dump"));
    waiting.end();
    let mut bytes = fs::read(path("dump")).unwrap();
    let magic = b"TERRACE CORE 1\n\0";
    let at = (0..bytes.len()).step_by(PAGE).find(|&at| bytes[at..].starts_with(magic)).unwrap();
    bytes[at + 16] = 99;
    fs::write(path("dump"), &bytes).unwrap();
    assert!(refused(core_of(&path("dump"), None)).contains("version 99"));
}
