//! All of it as text.

use core::fmt;

use super::{CbmmTable, find, paper, short};
use crate::mm::policy::ClassBook;
use crate::mm::stand_ins::StandIn;
use crate::mm::{Fragmentation, MmPolicyName, RunReport};
use terrace_core::{ActionClass, Cycles, Frequency, Nanos};

const CLOCK: Frequency = Frequency(2.2e9);

fn time(cycles: Cycles) -> String {
    short(CLOCK.nanos(cycles))
}

fn beside(pair: [Option<f64>; 2], digits: usize) -> String {
    pair.map(|value| value.map_or("-".into(), |value| format!("{value:.digits$}"))).join(" / ")
}

impl fmt::Display for CbmmTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "On {} of memory: {}", self.memory, self.machine)?;
        if self.size.smaller > 1 {
            writeln!(f, "Memory and work are a {}th of the paper's.", self.size.smaller)?;
        }
        writeln!(f, "\nPrograms; ours / paper's counters with base pages")?;
        writeln!(
            f,
            "  {:10} {:>10} {:>15} {:>13} {:>13} {:>6} {:>16}",
            "", "memory", "walks/1000", "cycles each", "huge/base", "rules", "median benefit"
        )?;
        for row in &self.programs {
            writeln!(
                f,
                "  {:10} {:>10} {:>15} {:>13} {:>13} {:>6} {:>16}",
                row.program,
                row.memory.to_string(),
                beside(row.walks_per_thousand, 2),
                beside(row.cycles_per_walk, 0),
                beside(row.huge_over_base, 2),
                row.rules,
                row.median_benefit.to_string(),
            )?;
            writeln!(f, "  {:10} {}", "", row.what)?;
        }
        for state in Fragmentation::ALL {
            self.state(f, state)?;
        }
        self.outcomes(f)?;
        self.books(f)?;
        if self.claims.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nStatements")?;
        for judged in &self.claims {
            writeln!(f, "{}", judged.claim)?;
            if let Some(cause) = judged.cause {
                writeln!(f, "         cause:    {cause}")?;
            }
        }
        Ok(())
    }
}

impl CbmmTable {
    fn state(&self, f: &mut fmt::Formatter<'_>, state: Fragmentation) -> fmt::Result {
        writeln!(f, "\n{}: run time over Linux's, huge pages, soft faults", state.name())?;
        writeln!(
            f,
            "  {:10} {:13} {:>10} {:>13} {:>13} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "",
            "",
            "time",
            "/ always (paper)",
            "huge (paper)",
            "faults",
            "p50",
            "p99",
            "p99.9",
            "max",
            "walks %"
        )?;
        for row in &self.programs {
            let Some(linux) = find(&self.runs, &row.program, state, MmPolicyName::Always) else {
                continue;
            };
            let stand_in = StandIn::ALL.into_iter().find(|one| one.name() == row.program);
            for policy in MmPolicyName::ALL {
                if let Some(run) = find(&self.runs, &row.program, state, policy) {
                    line(f, run, linux, stand_in)?;
                }
            }
        }
        Ok(())
    }

    /// What Terrace's estimator had predicted, and what came of it.
    fn books(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.runs.iter().all(|run| run.books.is_none()) {
            return Ok(());
        }
        writeln!(
            f,
            "\nWhat terrace decided: cost and benefit of what was completed, predicted and realised; \
             cost of what was aborted"
        )?;
        writeln!(
            f,
            "  {:10} {:22} {:11} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "",
            "",
            "",
            "proposed",
            "completed",
            "aborted",
            "held out",
            "cost",
            "realised",
            "in vain",
            "benefit",
            "realised"
        )?;
        for run in &self.runs {
            let Some(books) = &run.books else { continue };
            for ClassBook { class, account, .. } in &books.classes {
                let brought = if benefit_is_seen(*class, account.held_out > 0) {
                    time(account.realised_benefit)
                } else {
                    "-".to_owned()
                };
                writeln!(
                    f,
                    "  {:10} {:22} {:11} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}",
                    run.program,
                    run.fragmentation.name(),
                    class.name(),
                    account.proposed,
                    account.completed,
                    account.aborted,
                    account.held_out,
                    time(account.predicted_cost),
                    time(account.realised_cost),
                    time(account.aborted_cost),
                    time(account.predicted_benefit),
                    brought,
                )?;
            }
            writeln!(
                f,
                "  {:10} {:22} deciding {}; base pages filled ahead {}, touched {}",
                run.program,
                run.fragmentation.name(),
                time(books.deciding),
                run.filled,
                run.filled_used,
            )?;
        }
        Ok(())
    }

    /// Ways that faults took under Linux on unsplit memory, all programs together by row.
    fn outcomes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nHow faults ended, by the state of memory and policy")?;
        writeln!(
            f,
            "  {:10} {:22} {:13} {:40} {:>11} {:>9} {:>9} {:>9}",
            "", "", "", "", "faults", "p50", "p99", "max"
        )?;
        let shown = [MmPolicyName::Always, MmPolicyName::Cbmm, MmPolicyName::Economist];
        for run in self.runs.iter().filter(|run| shown.contains(&run.policy)) {
            for row in &run.outcomes {
                writeln!(
                    f,
                    "  {:10} {:22} {:13} {:40} {:>11} {:>9} {:>9} {:>9}",
                    run.program,
                    run.fragmentation.name(),
                    run.policy,
                    row.outcome.name(),
                    row.latency.count,
                    time(row.latency.p50),
                    time(row.latency.p99),
                    time(row.latency.max),
                )?;
            }
        }
        Ok(())
    }
}

/// Whether the simulated kernel sees what a class brings; of huge pages at first touches it does where
/// some were held out.
const fn benefit_is_seen(class: ActionClass, held_out: bool) -> bool {
    match class {
        ActionClass::FirstTouch => held_out,
        ActionClass::Prezero | ActionClass::Populate => true,
        _ => false,
    }
}

fn line(
    f: &mut fmt::Formatter<'_>,
    run: &RunReport,
    linux: &RunReport,
    stand_in: Option<StandIn>,
) -> fmt::Result {
    let fragmented = run.fragmentation != Fragmentation::None;
    let published = stand_in.and_then(|program| paper::published(program, run.policy));
    let theirs =
        published.and_then(|of| if fragmented { Some(of.time_fragmented) } else { of.time });
    let share = match (published, stand_in, run.policy) {
        (Some(of), ..) if fragmented => Some(of.share_fragmented),
        (Some(of), ..) => of.share,
        (None, Some(program), MmPolicyName::Always) => {
            Some(paper::linux_shares(program)[usize::from(fragmented)])
        }
        _ => None,
    };
    let paren = |value: Option<f64>| value.map_or(String::new(), |value| format!(" ({value:.2})"));
    let name = if run.policy == MmPolicyName::ALL[0] { run.program.as_str() } else { "" };
    write!(
        f,
        "  {:10} {:13} {:>10} {:>16} {:>13} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9.1}",
        name,
        run.policy,
        short(Nanos(run.time.get())),
        format!("{:.3}{}", run.time.as_f64() / linux.time.as_f64(), paren(theirs)),
        format!("{:.2}{}", run.huge_share, paren(share)),
        run.soft.count,
        time(run.soft.p50),
        time(run.soft.p99),
        time(run.soft.p999),
        time(run.soft.max),
        run.walk_share() * 100.0,
    )?;
    if run.killed {
        write!(f, "  out of memory")?;
    }
    writeln!(f)
}
