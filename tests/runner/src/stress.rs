//! stress-ng's stressors of memory, each on plain memory and under `terrace run` in less than it
//! uses. They check what they have written, and must find the same.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use terrace_core::Bytes;

use crate::harness::{Case, Verdict, number};
use crate::process;
use crate::programs::environment::{Engine, Environment};

/// For two copies of a stressor, which use some hundred MiB each; `pthread` the least.
const BUDGET: Bytes = Bytes::mib(16);

/// Those that use more memory than that, of ordinary kinds, and check it. `true`: in the short
/// form, too.
pub(crate) const STRESSORS: [(&str, bool); 16] = [
    ("vm", true),
    ("vm-rw", true),
    ("mremap", true),
    ("malloc", true),
    ("mmap", false),
    ("vm-addr", false),
    ("bigheap", false),
    ("mlock", false),
    ("mmaphuge", false),
    ("memthrash", false),
    ("pthread", false),
    ("randlist", false),
    ("shm", false),
    ("stream", false),
    ("tree", false),
    ("userfaultfd", false),
];

/// Of which Terrace leaves the program at once, and says so.
const LEAVES: &str = "userfaultfd";

/// A case for each.
pub(crate) fn cases(terrace: &Path, engine: Engine, short: bool, limit: Duration) -> Vec<Case> {
    let stressors = STRESSORS.into_iter().filter(move |&(_, quick)| quick || !short);
    let seconds = number("FOREIGN_STRESS_SECONDS", if short { 1 } else { 4 });
    let case = |stressor: &'static str| {
        let terrace = terrace.to_owned();
        let run = move || match compare(stressor, seconds, &terrace, engine, limit) {
            Ok(verdict) => verdict,
            Err(why) => Verdict::Failed(why),
        };
        Case {
            name: format!("foreign::stress-ng::{stressor}{}", engine.mark()),
            run: Box::new(run),
        }
    };
    stressors.map(|(stressor, _)| case(stressor)).collect()
}

fn compare(
    stressor: &str,
    seconds: usize,
    terrace: &Path,
    engine: Engine,
    limit: Duration,
) -> Result<Verdict, String> {
    if Command::new("stress-ng").arg("--version").output().is_err() {
        return Ok(Verdict::Skipped("no stress-ng here: NOT run".to_owned()));
    }
    run(stressor, seconds, &Environment::plain(limit))
        .map_err(|why| format!("on plain memory: {why}"))?;
    run(stressor, seconds, &Environment::managed(terrace, engine, BUDGET, &[], limit))?;
    Ok(Verdict::Passed)
}

/// Runs a stressor; what it complains of.
fn run(stressor: &str, seconds: usize, environment: &Environment) -> Result<(), String> {
    let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
    let directory = scratch.path();
    let mut command = environment.command("stress-ng", directory);
    command.args([&format!("--{stressor}"), "2", "--verify", "--no-rand-seed", "--metrics-brief"]);
    // It leaves a stressor alone that has not ended by then: what has to come in takes longer.
    command.args(["--timeout", &seconds.to_string()]);
    let finished =
        process::run(&mut command, directory, environment.limit).map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&finished.stdout).into_owned() + &finished.stderr;
    if !finished.succeeded() || complains(&text) {
        return Err(format!("{text}\n{}", finished.complaint()));
    }
    if let Some(report) = environment.report(directory)? {
        // The kernel engine has nothing in the program that would have to leave.
        let why = if stressor == LEAVES && !report.is_by_kernel() {
            report.gave_up().is_none().then(|| "Terrace stayed: this run shows nothing".to_owned())
        } else {
            report.shows_nothing()
        };
        if let Some(why) = why {
            return Err(why);
        }
    }
    Ok(())
}

/// Whether stress-ng found something wrong: `stress-ng: fail:  [7] vm: …`. It ends well
/// all the same where only some of many checks failed.
fn complains(text: &str) -> bool {
    let own = text.lines().filter_map(|line| line.strip_prefix("stress-ng: "));
    own.into_iter().any(|line| line.starts_with("fail:") || line.starts_with("error:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stress_ng_finds_is_seen() {
        assert!(!complains("stress-ng: info:  [9] successful run completed in 1.00s\n"));
        assert!(complains("stress-ng: fail:  [9] vm: detected 3 bit errors\n"));
    }
}
