//! What `terrace kloc run` costs, and what it keeps: `bench/kloc/run.sh` prepares and calls it.
//!
//!     kloc_bench costs TERRACE DIRECTORY
//!     kloc_bench misses TERRACE DIRECTORY GROUP
//!
//! `costs`: nanoseconds of an open and close, and of a cached read of 4 KiB, without hooks, with
//! each set, and with fanotify. The least of interleaved rounds, for others disturb this machine.
//!
//! `misses`: a hot file A, read at random 4 KiB a time, beside streaming files B in a control
//! group that is too small for both. B writes a file of 4 MiB, reads the one that it wrote 8
//! cycles ago, and closes; or (`scan`) only reads files in turn. A and B take turns by count, not
//! by time, so load of others changes no eviction. A read is a miss if its page is not in the page
//! cache (`mincore`). Where A is opened each time, nobody has it open or mapped in between. `KLOC_POLICIES`
//! names some rows, with commas between them.

use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use terrace_core::Xorshift;

const PAGE: usize = 4096;
/// What a file of B takes, as a part of the group: 4 MiB of 256.
const FILES: usize = 64;
/// The group for which the reads of a mix are given, in bytes.
const GROUP: usize = 256 << 20;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[1..] {
        ["costs", terrace, directory] => costs(Path::new(terrace), Path::new(directory)),
        ["misses", terrace, directory, group] => {
            misses(Path::new(terrace), Path::new(directory), Path::new(group));
        }
        ["cell", directory, group, policy, mix] => {
            cell(Path::new(directory), Path::new(group), policy, mix);
        }
        _ => {
            eprintln!("kloc_bench costs TERRACE DIRECTORY | misses TERRACE DIRECTORY GROUP");
            std::process::exit(2);
        }
    }
}

/// The daemon; it ends with this.
struct Daemon(Child);

impl Daemon {
    fn new(terrace: &Path, state: &Path, arguments: &[&str]) -> Option<Self> {
        let child = Command::new(terrace)
            .args(["kloc", "run", "--json", "--state"])
            .arg(state)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("terrace runs");
        let mut daemon = Self(child);
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            if daemon.0.try_wait().expect("waited").is_some() {
                return None;
            }
            let asked = Command::new(terrace)
                .args(["kloc", "top", "--times", "1", "--state"])
                .arg(state)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if asked.is_ok_and(|status| status.success()) {
                return Some(daemon);
            }
            assert!(Instant::now() < until, "the daemon does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Nanoseconds an operation, the least of some rounds.
fn least(times: usize, mut operation: impl FnMut()) -> f64 {
    let round = |operation: &mut dyn FnMut()| {
        let begun = Instant::now();
        for _ in 0..times {
            operation();
        }
        begun.elapsed().as_nanos() as f64 / times as f64
    };
    (0..5).map(|_| round(&mut operation)).fold(f64::INFINITY, f64::min)
}

fn costs(terrace: &Path, directory: &Path) {
    let path = directory.join("cached");
    fs::write(&path, vec![1; 1 << 20]).expect("written");
    let file = File::open(&path).expect("there");
    let mut buffer = [0u8; PAGE];
    let sets: [(&str, Option<&[&str]>); 6] = [
        ("no hooks", None),
        ("trampolines", Some(&["--hooks", "trampolines"])),
        ("tracepoints", Some(&["--hooks", "tracepoints"])),
        ("tracepoints, --objects", Some(&["--hooks", "tracepoints", "--objects"])),
        ("fanotify", Some(&["--hooks", "fanotify"])),
        ("polled", Some(&["--hooks", "polled"])),
    ];
    let mut best = [[f64::INFINITY; 3]; 6];
    let mut refused = [false; 6];
    for round in 0..6 {
        for (index, (name, arguments)) in sets.iter().enumerate() {
            let state = directory.join(format!("state-{index}"));
            let daemon = arguments.map(|arguments| Daemon::new(terrace, &state, arguments));
            if matches!(daemon, Some(None)) {
                refused[index] = true;
                continue;
            }
            let open = least(20_000, || drop(black_box(File::open(&path).expect("there"))));
            let read = least(50_000, || {
                file.read_at(&mut buffer, 0).expect("read");
            });
            // SAFETY: takes and gives numbers.
            let call = least(100_000, || unsafe {
                black_box(libc::syscall(libc::SYS_getppid));
            });
            for (best, measured) in best[index].iter_mut().zip([open, read, call]) {
                *best = best.min(measured);
            }
            eprintln!("round {round}, {name}: {open:.0} {read:.0} {call:.0} ns");
            drop(daemon);
        }
    }
    println!("| hooks | open and close | read of 4 KiB | system call |");
    println!("|---|---|---|---|");
    for (index, (name, _)) in sets.iter().enumerate() {
        if refused[index] {
            println!("| {name} | refused by this kernel | | |");
            continue;
        }
        let cells: Vec<_> = (0..3)
            .map(|i| match index {
                0 => format!("{:.0} ns", best[0][i]),
                _ => format!("{:+.0} ns", best[index][i] - best[0][i]),
            })
            .collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
}

/// What B does to leave A alone.
const POLICIES: [(&str, bool); 6] = [
    ("kernel", false),
    ("drop-on-close of B", false),
    ("O_DIRECT of B", false),
    ("ours", true),
    ("drop-on-close of all, A opens each time", false),
    ("ours, A opens each time", true),
];
/// Reads of A a cycle in a group of [`GROUP`], and whether B only scans.
const MIXES: [(&str, usize, bool); 3] =
    [("300 mixed", 300, false), ("300 scan", 300, true), ("1250 mixed", 1250, false)];

fn misses(terrace: &Path, directory: &Path, group: &Path) {
    println!("| who protects A | {} |", MIXES.map(|(name, ..)| name).join(" | "));
    println!("|---|---|---|---|");
    let own = std::env::current_exe().expect("a path");
    let named = std::env::var("KLOC_POLICIES").ok();
    let hooks = std::env::var("KLOC_HOOKS").ok();
    let is_named =
        |policy: &str| named.as_ref().is_none_or(|all| all.split(',').any(|one| one == policy));
    for (policy, ours) in POLICIES.into_iter().filter(|(policy, _)| is_named(policy)) {
        let mut cells = Vec::new();
        for (mix, ..) in MIXES {
            let state = directory.join("state");
            let path = group.to_str().expect("a path");
            let mut arguments = vec!["--mode", "enforce", "--cgroup", path];
            arguments.extend(hooks.iter().flat_map(|hooks| ["--hooks", hooks.as_str()]));
            let daemon = ours.then(|| Daemon::new(terrace, &state, &arguments));
            if matches!(daemon, Some(None)) {
                cells.push("no hooks here".to_owned());
                continue;
            }
            let output = Command::new(&own)
                .arg("cell")
                .args([directory, group])
                .args([policy, mix])
                .stderr(Stdio::inherit())
                .output()
                .expect("it runs");
            let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            eprintln!("{policy}, {mix}: {text}");
            cells.push(if output.status.success() { text } else { "failed".to_owned() });
            drop(daemon);
        }
        println!("| {policy} | {} |", cells.join(" | "));
    }
}

/// A buffer for `O_DIRECT`: aligned to pages.
fn aligned(buffer: &mut [u8], length: usize) -> &mut [u8] {
    let skip = buffer.as_ptr().align_offset(PAGE);
    &mut buffer[skip..skip + length]
}

/// Which pages of a part of a file are in the cache. A read that must not wait (`RWF_NOWAIT`) does not
/// tell: of memory as a disk (pmem, brd) it is served at once from there.
struct Cached {
    at: *mut libc::c_void,
    length: usize,
}

impl Cached {
    /// Maps it and touches nothing, so that no page is kept for it.
    fn of(file: &File, offset: usize, length: usize) -> Self {
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: the kernel chooses where.
        let at = unsafe {
            let offset = offset as libc::off_t;
            libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), offset)
        };
        assert_ne!(at, libc::MAP_FAILED, "mapped");
        Self { at, length }
    }

    /// Whether the page is that begins so many bytes behind the part's beginning.
    fn has(&self, offset: usize) -> bool {
        assert!(offset + PAGE <= self.length, "within the part");
        let mut is_there = 0u8;
        // SAFETY: the page is mapped, as was just checked; one byte is written.
        let failed = unsafe { libc::mincore(self.at.byte_add(offset), PAGE, &raw mut is_there) };
        assert_eq!(failed, 0, "mincore");
        is_there & 1 == 1
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nobody has a reference into it.
        unsafe { libc::munmap(self.at, self.length) };
    }
}

/// One cell of the table: misses of A in percent, and how long B's reading again takes.
fn cell(directory: &Path, group: &Path, policy: &str, mix: &str) {
    let &(_, reads, scan) = MIXES.iter().find(|(name, ..)| *name == mix).expect("a mix");
    let limit = fs::read_to_string(group.join("memory.limit_in_bytes"))
        .or_else(|_| fs::read_to_string(group.join("memory.max")))
        .expect("a limit");
    let limit: usize = limit.trim().parse().expect("a number");
    // As 300 MiB are to 512 MiB, with files in turn that fill three quarters.
    let size = (limit / FILES).next_multiple_of(PAGE);
    let hot = limit * 6 / 10 / size * size;
    // A smaller group has a smaller A. As often as before, a page of it is read again.
    let reads = (reads * limit / GROUP).max(1);
    let scanned = limit * 3 / 4 / size;
    fs::write(group.join("cgroup.procs"), "0").expect("joined");
    let direct = policy.starts_with("O_DIRECT");
    let drops_b = policy.starts_with("drop-on-close");
    let reopens = policy.ends_with("opens each time");
    let drops_a = drops_b && reopens;
    let a = directory.join("a");
    fs::write(&a, vec![1; hot]).expect("written");
    let name = |n: usize| -> PathBuf { directory.join(format!("b{n}")) };
    let mut memory = vec![2u8; size + PAGE];
    let content = aligned(&mut memory, size);
    let open = |path: &Path, write: bool| {
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let mut options = OpenOptions::new();
        options.read(!write).write(write).create(write).truncate(write).custom_flags(flags);
        options.open(path).expect("opened")
    };
    let close = |file: File, drops: bool| {
        if drops {
            // SAFETY: takes numbers.
            unsafe {
                libc::fdatasync(file.as_raw_fd());
                libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
            }
        }
        drop(file);
    };
    let write = |n: usize, content: &mut [u8]| {
        use std::io::Write;
        let mut file = open(&name(n), true);
        file.write_all(content).expect("written");
        close(file, drops_b);
    };
    let read = |n: usize, content: &mut [u8]| {
        let begun = Instant::now();
        let file = open(&name(n), false);
        let mut offset = 0;
        while offset < size {
            offset += file.read_at(&mut content[offset..], offset as u64).expect("read");
        }
        let took = begun.elapsed();
        close(file, drops_b);
        took
    };
    // What is open or mapped stays: held here, a file that is opened each time would be in no danger.
    // Before the job's own files are made, or A would be the oldest file that nobody has open meanwhile.
    let kept = (!reopens).then(|| File::open(&a).expect("there"));
    let mapped = kept.as_ref().map(|file| Cached::of(file, 0, hot));
    if scan {
        (0..scanned).for_each(|n| write(n, content));
    }
    let mut random = Xorshift::new(88_172_645_463_325_252);
    let mut page = [0u8; PAGE];
    let (mut missed, mut total) = (0u64, 0u64);
    let mut again = Vec::new();
    for cycle in 0..250 {
        let measured = cycle >= 150;
        if cycle == 100 {
            // By chance a third of A is not read before it is measured. In a small group some of that left
            // while A was written, which is nothing that a job does to it.
            let whole = File::open(&a).expect("there");
            for offset in (0..hot).step_by(PAGE) {
                whole.read_at(&mut page, offset as u64).expect("read");
            }
        }
        let took = if scan {
            read(cycle % scanned, content)
        } else {
            write(cycle, content);
            if cycle < 8 { Duration::ZERO } else { read(cycle - 8, content) }
        };
        if measured {
            again.push(took);
        }
        if !scan && cycle >= 32 {
            // Files of long ago are deleted, for the disk is not endless.
            fs::remove_file(name(cycle - 32)).expect("removed");
        }
        for _ in 0..reads {
            let offset = (random.draw() % (hot / PAGE) as u64) as usize * PAGE;
            let opened = reopens.then(|| File::open(&a).expect("there"));
            let file = opened.as_ref().or(kept.as_ref()).expect("it is one of both");
            let hit = match &mapped {
                Some(all) => all.has(offset),
                None => Cached::of(file, offset, PAGE).has(0),
            };
            file.read_at(&mut page, offset as u64).expect("read");
            if measured {
                missed += u64::from(!hit);
                total += 1;
            }
            if let Some(opened) = opened {
                close(opened, drops_a);
            }
        }
    }
    again.sort_unstable();
    let median = again[again.len() / 2].as_secs_f64() * 1e3;
    println!("{:.2} % ({median:.1} ms)", missed as f64 / total as f64 * 100.0);
    // The next cell begins with an empty cache.
    for entry in fs::read_dir(directory).expect("there").flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
