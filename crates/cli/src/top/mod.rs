//! `terrace top`: running programs, again and again.
//!
//! | file | concept |
//! |---|---|
//! | [`history`] | what was seen, look by look |
//! | [`attached`] | the same of memory whose pages stay mapped |
//! | [`draw`], [`draw_attached`] | one look as a screen |
//! | [`heat`] | the heat map |
//! | [`screen`] | the terminal: keys, sizes, and leaving it as it was |

mod attached;
mod draw;
mod draw_attached;
mod heat;
mod history;
mod screen;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use terrace_core::Nanos;
use terrace_report::{AttachRates, AttachReport, Moment, Rates};

use self::history::{History, Seen};
use crate::advice::{self, Signs};
use crate::failure::Failure;
use crate::output;
use crate::runs::{self, LiveRun};

/// Watch running programs.
///
/// Shows what lies in which tier, fault rates and latencies, pages moved and
/// moved in vain, time lost, the hottest regions, and a heat map of address
/// over time; of programs under `terrace run`, and of those that `terrace
/// attach` is attached to. On a terminal: q quits, Tab shows the next program,
/// h turns the heat map between residency and faults (or accesses), + and -
/// change the interval, space holds. Elsewhere it prints one report, or JSON.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace top redis-server")]
pub(crate) struct Args {
    /// Only this run: a process's number or a program's name.
    #[arg(value_name = "PID|NAME")]
    run: Option<String>,

    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: Nanos,

    /// Print JSON lines, one a look, instead of drawing.
    #[arg(long)]
    watch: bool,

    /// Stop after so many looks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// The least interval: a look reads the page map of everything managed.
const MIN_INTERVAL: Nanos = Nanos::millis(50);

/// One look as a document.
#[derive(Serialize)]
struct Look {
    /// Whose memory is compressed.
    runs: Vec<RunLook>,
    /// Whose pages stay mapped.
    attached: Vec<AttachLook>,
}

/// One attachment in it.
#[derive(Serialize)]
struct AttachLook {
    run: u32,
    program: Vec<String>,
    rates: Option<AttachRates>,
    /// Advice for it, where the kernel serves its faults.
    advice: Vec<String>,
    #[serde(flatten)]
    report: AttachReport,
}

/// One run in it.
#[derive(Serialize)]
struct RunLook {
    run: u32,
    program: Vec<String>,
    policy: String,
    budget: terrace_core::Bytes,
    /// Whose it is, if not the run's own.
    budget_of: Option<u32>,
    rates: Option<Rates>,
    /// What would help it.
    advice: Vec<String>,
    #[serde(flatten)]
    moment: Moment,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if self.interval < MIN_INTERVAL {
            return Err(Failure::bad_input(format!("--interval: at least {MIN_INTERVAL}")));
        }
        let interval = Duration::from_nanos(self.interval.get());
        let choice = self.run.as_deref();
        runs::choose(choice)?;
        if self.watch {
            return self.print_lines(interval);
        }
        if json {
            let look = Self::look(&mut History::new(), choice, interval);
            output::print(&output::json("terrace.top", &look)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        if io::stdout().is_terminal() && io::stdin().is_terminal() {
            screen::show(choice, interval, self.count)?;
            return Ok(ExitCode::SUCCESS);
        }
        let text: Vec<_> = runs::choose(choice)?.iter().filter_map(report).collect();
        if text.is_empty() {
            return output::print("no program runs under `terrace run` or is attached to\n")
                .map(|()| ExitCode::SUCCESS);
        }
        output::print(&text.join("\n")).map(|()| ExitCode::SUCCESS)
    }

    /// JSON lines until nobody reads them, or the run that was asked for is over.
    fn print_lines(&self, interval: Duration) -> Result<ExitCode, Failure> {
        let mut history = History::new();
        let choice = self.run.as_deref();
        for n in 0.. {
            if self.count.is_some_and(|count| n >= count) {
                break;
            }
            let look = Self::look(&mut history, choice, interval);
            if choice.is_some() && look.runs.is_empty() && look.attached.is_empty() {
                break;
            }
            output::print(&output::json_line("terrace.top", &look)?)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Two looks an interval apart, the first one only if there was none before.
    fn look(history: &mut History, choice: Option<&str>, interval: Duration) -> Look {
        if history.is_new() {
            history.look(choice);
        }
        std::thread::sleep(interval);
        history.look(choice);
        let (mut runs, mut attached) = (Vec::new(), Vec::new());
        for run in history.runs() {
            match run {
                Seen::Run(run) => runs.push(RunLook {
                    run: run.manifest.pid,
                    program: run.manifest.program.clone(),
                    policy: run.manifest.policy.clone(),
                    budget: run.report.budget,
                    budget_of: run.report.budget_of,
                    rates: run.rates.clone(),
                    advice: run.advice().iter().map(ToString::to_string).collect(),
                    moment: run.report.clone().into(),
                }),
                Seen::Attached(run) => attached.push(AttachLook {
                    run: run.manifest.pid,
                    program: run.manifest.program.clone(),
                    rates: run.rates.clone(),
                    advice: run.advice().iter().map(ToString::to_string).collect(),
                    report: run.report.clone(),
                }),
            }
        }
        Look { runs, attached }
    }
}

/// A run's report as text; `None` before there is one.
fn report(run: &LiveRun) -> Option<String> {
    if run.manifest.in_place {
        let report = run.attached()?;
        let mut text = match &report.kernel {
            Some(kernel) => crate::kernel::render(kernel) + &crate::attach::render::body(&report),
            None => crate::attach::render::render(&report),
        };
        // One look does not tell whether it thrashes now.
        for advice in attached::advice(&report, run.manifest.pid, 0.0) {
            text += &format!("\n  {advice}\n");
        }
        Some(text)
    } else {
        let report = run.report();
        let mut text = crate::run::render(&report);
        // One look does not tell whether it thrashes now.
        for advice in Signs::of(&report, 0.0).all(advice::whose(&report, run.manifest.pid)) {
            text += &format!("\n  {advice}\n");
        }
        Some(text)
    }
}
