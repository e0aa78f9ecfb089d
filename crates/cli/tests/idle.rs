//! Terrace takes next to no processor time while there is nothing to do for it: the program
//! idles, or what it uses fits into its budget. No thread of ours may spin.
//!
//! Processor time, not wall time: what else the machine does is not in it.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use common::{binary, compile, is_supported, preload, terrace};
use terrace_sampler::ProcStat;

/// What is allowed, of one processor: what was promised. Measured: 0.1 %; a thread that
/// spins takes up to 100 %.
const SHARE: f64 = 0.05;
/// For how long it is measured. Ticks of the kernel's are 10 ms, so 5 % of it are 20.
const TIME: Duration = Duration::from_secs(4);
/// Until what was under way when the program had filled its memory is done.
const SETTLING: Duration = Duration::from_secs(1);

/// Fills so many MiB; then waits for its input to end, or (`busy`) updates pages at random
/// until then; then checks all of them. Its own thread is its only one.
const USER: &str = r#"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
int main(int argc, char **argv) {
    size_t pages = atol(argv[1]) * 256;
    size_t *m = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < pages; i++) m[i * 512] = m[i * 512 + 7] = i * 77;
    puts("ready");
    fflush(stdout);
    struct pollfd in = { 0, POLLIN, 0 };
    unsigned long x = 88172645463325252;
    while (poll(&in, 1, argc > 2 ? 0 : -1) == 0)
        for (int k = 0; k < 100000; k++) {
            x ^= x << 13; x ^= x >> 7; x ^= x << 17;
            m[x % pages * 512 + 9] += x;
        }
    for (size_t i = 0; i < pages; i++)
        if (m[i * 512] != i * 77 || m[i * 512 + 7] != i * 77) { puts("WRONG"); return 1; }
    puts("right");
    return 0;
}
"#;

/// A program under `terrace run`, which has filled its memory.
struct Run {
    directory: tempfile::TempDir,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Run {
    fn start(fast: &str, program: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        compile(USER, &directory.path().join("user"), &["-O2"]);
        let mut child = Command::new(binary())
            .env("TERRACE_PRELOAD", preload())
            .current_dir(directory.path())
            .args([
                "--json",
                "run",
                "--engine=pager",
                "--fast",
                fast,
                "--report",
                "report",
                "--",
                "./user",
            ])
            .args(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let input = child.stdin.take().unwrap();
        Self { directory, child, input, output }
    }

    /// The program: the only child.
    fn program(&self) -> u32 {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.trim().parse().unwrap_or_else(|_| panic!("children: {children}"))
    }

    /// Threads of Terrace's in the program: those that are not the program's only one.
    fn threads(&self) -> Vec<u32> {
        let program = self.program();
        let tasks = fs::read_dir(format!("/proc/{program}/task")).unwrap();
        let tasks = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
        tasks.filter(|&task| task != program).collect()
    }

    /// Processor time of the program's only own thread.
    fn programs_time(&self) -> Duration {
        let program = self.program();
        time_in(&format!("/proc/{program}/task/{program}/stat"))
    }

    /// Processor time of `terrace run` and of Terrace's threads in the program.
    fn our_time(&self) -> Duration {
        let program = self.program();
        let tasks = self.threads();
        let tasks = tasks.iter().map(|task| time_in(&format!("/proc/{program}/task/{task}/stat")));
        time_in(&format!("/proc/{}/stat", self.child.id())) + tasks.sum::<Duration>()
    }

    /// Measures what share of a processor is ours: what is still under way at first, on a busy machine,
    /// is over in a later window.
    fn our_share(&self) -> f64 {
        std::thread::sleep(SETTLING);
        let mut least = f64::INFINITY;
        for _ in 0..3 {
            let (before, threads) = (self.our_time(), self.threads());
            std::thread::sleep(TIME);
            let after = self.our_time();
            // A thread that has ended takes its time with it.
            if threads == self.threads() {
                least =
                    least.min((after.as_secs_f64() - before.as_secs_f64()) / TIME.as_secs_f64());
            }
            if least <= SHARE {
                break;
            }
        }
        assert!(least.is_finite(), "threads of ours come and go");
        least
    }

    /// Lets the program end; the report.
    fn end(self) -> serde_json::Value {
        let Self { directory, mut child, input, mut output } = self;
        drop(input);
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(rest, "right\n");
        serde_json::from_slice(&fs::read(directory.path().join("report")).unwrap()).unwrap()
    }
}

/// `utime` and `stime` of a process or a thread.
fn time_in(stat: &str) -> Duration {
    let text = fs::read_to_string(stat).unwrap();
    let ticks = ProcStat::parse(&text).unwrap().cpu_ticks().unwrap();
    Duration::from_secs_f64(ticks as f64 / TICKS)
}

/// Ticks a second in what procfs tells (`USER_HZ`): 100 on every x86-64 Linux.
const TICKS: f64 = 100.0;

fn assert_small(share: f64, when: &str) {
    assert!(share <= SHARE, "Terrace takes {:.1} % of a processor while {when}", share * 100.0);
}

#[test]
fn a_program_that_is_over_its_budget_and_idles_costs_next_to_nothing() {
    if !is_supported() {
        return;
    }
    let run = Run::start("8MiB", &["24"]);
    assert!(!run.threads().is_empty(), "nothing is managed");

    let share = run.our_share();

    assert_small(share, "the program idles");
    let report = run.end();
    assert!(report["total"]["demotions"].as_u64().unwrap() > 16 << 8, "{report:#}");
}

/// Before a program has ever had more than it may, it is not managed at all.
#[test]
fn a_program_that_has_always_fitted_costs_next_to_nothing() {
    if !is_supported() {
        return;
    }
    let run = Run::start("64MiB", &["24", "busy"]);

    let share = run.our_share();

    assert_small(share, "the program computes in what it may use");
    assert_eq!(run.end()["total"]["demotions"], 0);
}

/// One that was managed, and now fits.
#[test]
fn a_program_that_fits_again_costs_next_to_nothing() {
    if !is_supported() {
        return;
    }
    let run = Run::start("8MiB", &["24", "busy"]);
    let pid = run.child.id().to_string();
    terrace().args(["set", &pid, "--fast", "64MiB"]).assert().success();
    assert!(!run.threads().is_empty(), "nothing is managed");
    let before = run.programs_time();

    let share = run.our_share();

    let computed = run.programs_time().saturating_sub(before);
    assert!(computed > TIME / 100, "the program did not compute");
    assert_small(share, "the program computes in what it may use now");
    assert!(run.end()["total"]["demotions"].as_u64().unwrap() > 0);
}
