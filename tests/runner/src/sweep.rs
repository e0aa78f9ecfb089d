//! Something of Terrace's breaks at a random moment in a random hazard, over and over: what
//! [`hazards`] injects at chosen places, everywhere.
//!
//! Each case runs for a minute with a seed of its own, which its name tells; a failure names
//! the program and what was injected, so that it can be tried again.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use terrace_live::failsafe::inject;

use crate::harness::{Case, Verdict};
use crate::hazards::{self, Options, SKIPPED};
use crate::programs::data::Numbers;

/// How long a case takes. Who watches for hangs waits for a line.
const CASE: Duration = Duration::from_mins(1);

/// Programs that rest on being managed to their end, which is over when something breaks: what
/// they show is a limit of managed memory, or that pages left it. One leaves its parent. One asks for
/// what the kernel refuses a process with several threads, and threads of ours that broke stay.
const LEFT_OUT: &[&str] = &[
    "daemonize",
    "eviction_happens",
    "mremap_several_raw",
    "namespaces_left",
    "oom_cgroup",
    "sys_proc_mem",
    "sys_ptrace",
];

/// Cases for so long, as many at a time as there are jobs.
pub(crate) fn cases(
    programs: &[PathBuf],
    terrace: &Path,
    options: &Options,
    length: Duration,
    seed: u64,
) -> Vec<Case> {
    let programs: Vec<PathBuf> = programs
        .iter()
        .filter(|program| !LEFT_OUT.contains(&hazards::name(program).as_str()))
        .cloned()
        .collect();
    let rounds = length.as_secs().div_ceil(CASE.as_secs()) * options.jobs.max(1) as u64;
    let case = |round| {
        let (programs, terrace) = (programs.clone(), terrace.to_owned());
        let options = options.clone();
        let seed = seed.wrapping_add(round);
        Case {
            name: format!("sweep [HAZARD_SEED={seed}]"),
            run: Box::new(move || sweep(&programs, &terrace, &options, length.min(CASE), seed)),
        }
    };
    (0..rounds).map(case).collect()
}

fn sweep(
    programs: &[PathBuf],
    terrace: &Path,
    options: &Options,
    length: Duration,
    seed: u64,
) -> Verdict {
    let mut random = Numbers(seed);
    let points: Vec<&str> = inject::names().collect();
    let until = Instant::now() + length;
    while Instant::now() < until {
        let program = &programs[random.below(programs.len() as u64) as usize];
        let point = points[random.below(points.len() as u64) as usize];
        // Early passages as often as late ones.
        let within = 1 << random.below(9);
        let passage = 1 + random.below(within);
        let what = if random.below(4) == 0 { "stall" } else { "panic" };
        let spilled = if random.below(4) == 0 { hazards::SPILLED } else { "" };
        let broken = format!("{point}:{passage}:{what}");
        let fault = format!("{spilled}{broken}");
        if let Some(why) = failure(program, terrace, options, &fault) {
            let name = hazards::name(program);
            let again = format!(
                "again: TERRACE_INJECT={broken} terrace run --fast 1MiB -- {name}{}",
                if spilled.is_empty() { "" } else { " (with --spill and --store-limit 64KiB)" }
            );
            return Verdict::Failed(format!("{name} [{fault}]: {why}\n{again}"));
        }
    }
    Verdict::Passed
}

/// Whether the message of an injected panic is all that was said.
fn says_what_broke_alone(stderr: &str) -> bool {
    let mut lines = stderr.lines();
    let place =
        |line: &str| line.starts_with("terrace: panicked at crates/live/src/failsafe/inject.rs:");
    lines.next().is_some_and(place)
        && lines.next().is_some_and(|line| line.starts_with("injected at "))
        && lines.next().is_none()
}

/// Why a run is no good. One in which nothing broke is good.
fn failure(program: &Path, terrace: &Path, options: &Options, fault: &str) -> Option<String> {
    match hazards::injected_once(program, terrace, options, fault) {
        Err(error) => Some(error.to_string()),
        Ok((finished, _)) if finished.code() == Some(SKIPPED) => None,
        Ok((finished, _)) if !finished.succeeded() => Some(finished.complaint()),
        // A process that ended between saying what broke and saying what it does about it.
        Ok((finished, _)) if says_what_broke_alone(&finished.stderr) => None,
        Ok((finished, _)) if hazards::says_what_is_right(program, &finished.stderr) => None,
        Ok((finished, _)) if !finished.stderr.is_empty() => {
            Some(format!("it passed, but said:\n{}", finished.stderr))
        }
        Ok(_) => None,
    }
}
