//! `terrace plan`: how much fast memory a program needs.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace_core::{Bytes, Machine, PageSize};
use terrace_economics::Mode;
use terrace_sim::SimPolicy;
use terrace_sim::plan::{
    Choice, How, PlanConfig, PlanPart, PlanProgress, PlanReport, is_used_in_place, plan,
};

use crate::args::one_of;
use crate::failure::Failure;
use crate::output::{self, Files, Kind, count, facts, percent, table};
use crate::progress::{Progress, about};
use crate::sim::exact::Shared;
use crate::sim::input::{Input, failure, tell, tell_calls, told};
use crate::sim::setup::{PAGE_SIZES, POLICIES, names_machine, page_size_name};

/// Say how much fast memory a program needs.
///
/// The smallest fast memory that keeps the slowdown within a bound, as a curve
/// with its knee; with prices also the best split for a budget. For a slow
/// memory that is used in place (CXL, NVM) the curve of the best placement is
/// computed from one run, and policies are simulated; for one from which pages
/// are brought in (compressed memory, a file) one pass gives the curve of LRU.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: terrace plan --machine cxl --slowdown 5 --price dram=8,cxl=3 --html plan.html -- sort -n numbers.txt"
)]
pub(crate) struct Args {
    /// A machine that comes with Terrace (optane-cascade-lake, cxl, kindle, laptop), or a
    /// machine file by its path or its name.
    #[arg(long, value_name = "NAME|FILE", default_value = "cxl")]
    machine: String,

    /// The slow memory, by its name in the machine file; the second if not given.
    #[arg(long, value_name = "NAME")]
    tier: Option<String>,

    /// The slowdown that is accepted, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    slowdown: f64,

    /// Policies to simulate, for a slow memory that is used in place; first-touch and hemem if
    /// not given, none with `--policies ""`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    policies: Option<Vec<String>>,

    /// Sizes at which each policy is simulated, before those around the answer; 8 if not given.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..=64))]
    points: Option<u32>,

    /// What a GiB of each memory costs, in any one currency: `dram=8,cxl=3`.
    #[arg(long, value_name = "NAME=PRICE", value_delimiter = ',')]
    price: Vec<String>,

    /// What all memory that the program needs may cost, in the same currency.
    #[arg(long, value_name = "PRICE")]
    budget: Option<f64>,

    /// The size in which memory is placed.
    #[arg(long, value_name = "SIZE", default_value = "4KiB",
          value_parser = one_of(PAGE_SIZES, |size| page_size_name(size)))]
    page_size: PageSize,

    /// Where all randomness comes from [default: 1].
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Draw the curves as one HTML page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    #[command(flatten)]
    input: Input,
}

/// Sizes at which each policy is simulated.
const POINTS: u32 = 8;

#[derive(Serialize)]
struct Document<'a> {
    plan: &'a PlanReport,
    /// Why a trace was not read to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let config = self.config()?;
        let mut files = Files::new();
        self.input.names(&mut files);
        names_machine(&mut files, "--machine", &self.machine);
        let html = self.html.as_deref();
        let html = html.map(|path| files.writes("--html", path, Kind::Whole)).transpose()?;
        output::remove_when_interrupted();
        let input = self.input.repeatable(self.seed())?;
        let bar = Progress::new().bar("plan");
        let estimate = Estimate::new(input.accesses(), config.workers);
        let report = plan(&config, &|| input.open(), &|progress| {
            let done = progress.done as f64 / progress.total.max(1) as f64;
            bar.set(done, format!("{}/{} simulations", progress.done, progress.total));
            if let Some(line) = estimate.at(progress) {
                bar.above(|| output::say(format_args!("plan: {line}")));
            }
        });
        bar.finish();
        let report = report.map_err(failure)?;
        tell(&report.workload, report.input.as_ref());
        tell_calls(&report.workload, report.input.as_ref());
        let cut = told(input.cut());
        if let Some(html) = html {
            html.write_whole(terrace_report::html::plan_page(&report).as_bytes())?;
        }
        let text = if json {
            output::json("terrace.plan", &Document { plan: &report, cut })?
        } else {
            render(&report)
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// Whether a seed was given, and only policies could use it.
    fn is_seed_for_nothing(&self) -> bool {
        self.seed.is_some() && self.input.is_recorded()
    }

    /// Options about simulated policies have no effect where none is simulated.
    fn check_simulated(&self, in_place: bool) -> Result<(), Failure> {
        let refuse = |option: &str, why: &str| {
            Err(Failure::bad_input(format!("{option}: has no effect {why}")))
        };
        let paged = "where pages are brought in from the slow memory (--tier): no policy is \
                     simulated";
        match (&self.policies, self.points) {
            (Some(_), _) if !in_place => refuse("--policies", paged),
            (_, Some(_)) if !in_place => refuse("--points", paged),
            _ if !in_place && self.input.samples() => refuse("--sample-period", paged),
            // What was recorded is as it was.
            _ if !in_place && self.is_seed_for_nothing() => refuse("--seed", paged),
            (Some(names), Some(_)) if names.iter().all(String::is_empty) => {
                refuse("--points", "without policies")
            }
            (Some(names), _) if self.input.samples() && names.iter().all(String::is_empty) => {
                refuse("--sample-period", "without policies")
            }
            (Some(names), _)
                if self.is_seed_for_nothing() && names.iter().all(String::is_empty) =>
            {
                refuse("--seed", "without policies")
            }
            _ => Ok(()),
        }
    }

    fn config(&self) -> Result<PlanConfig, Failure> {
        // Before a program is run for it.
        if !(self.slowdown >= 0.0 && self.slowdown.is_finite()) {
            let what = format!("--slowdown: must be zero or more (is {})", self.slowdown);
            return Err(Failure::bad_input(what));
        }
        let shared = Shared {
            machine: &self.machine,
            policy: SimPolicy::AllDram,
            economist: Mode::Shadow,
            page_size: self.page_size,
            seed: Some(self.seed()),
        };
        let base = self.input.config(&shared)?;
        let slow = tier(&base.machine, self.tier.as_deref())?;
        self.check_simulated(base.machine.tiers.get(slow).is_none_or(is_used_in_place))?;
        let default = ["first-touch", "hemem"].map(str::to_owned);
        let policies = self.policies.as_deref().unwrap_or(&default);
        let policies = policies
            .iter()
            .filter(|name| !name.is_empty())
            .map(|name| {
                let policy =
                    name.parse().map_err(|e| Failure::bad_input(format!("--policies: {e}")))?;
                match policy {
                    SimPolicy::Policy(_) if POLICIES.contains(&policy) => Ok(policy),
                    _ => Err(Failure::bad_input(format!(
                        "--policies: {policy} moves nothing between the two memories"
                    ))),
                }
            })
            .collect::<Result<_, _>>()?;
        let names = [base.machine.tiers[0].name.clone(), base.machine.tiers[slow].name.clone()];
        Ok(PlanConfig {
            slow,
            policies,
            slowdown: self.slowdown / 100.0,
            grid: self.points.unwrap_or(POINTS) as usize,
            prices: prices(&self.price, &names)?,
            budget: self.budget,
            workers: thread::available_parallelism().map_or(1, usize::from),
            base,
        })
    }
}

/// How long a plan takes, told once, as soon as that can be known: when a part of the
/// first simulation shows how fast this machine simulates, at the latest when it ended.
struct Estimate {
    /// Accesses of one simulation, if they are known.
    length: Option<u64>,
    workers: usize,
    /// Until it was told.
    begun: Mutex<Option<Instant>>,
}

impl Estimate {
    /// Less of the first simulation says little of the rest.
    const ENOUGH: Duration = Duration::from_millis(500);

    fn new(length: Option<u64>, workers: usize) -> Self {
        Self { length, workers, begun: Mutex::new(Some(Instant::now())) }
    }

    fn at(&self, progress: PlanProgress) -> Option<String> {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = (*begun)?.elapsed();
        let one = match (progress.done, self.length) {
            (0, Some(length)) if elapsed >= Self::ENOUGH && progress.accesses > 0 => {
                elapsed.mul_f64(length as f64 / progress.accesses as f64)
            }
            (0, _) => return None,
            _ => elapsed,
        };
        *begun = None;
        Some(how_long(one, progress.total, self.workers))
    }
}

/// One simulation comes first; the others run side by side.
fn how_long(one: Duration, total: usize, workers: usize) -> String {
    let workers = workers.max(1);
    let rounds = 1 + total.saturating_sub(1).div_ceil(workers);
    format!(
        "{}: up to {total} simulations of {} each, {workers} side by side",
        about(one * rounds as u32),
        about(one)
    )
}

/// The slow memory's number.
fn tier(machine: &Machine, name: Option<&str>) -> Result<usize, Failure> {
    let Some(name) = name else { return Ok(1) };
    machine.tiers.iter().skip(1).position(|tier| tier.name == name).map(|i| i + 1).ok_or_else(
        || {
            let names: Vec<_> =
                machine.tiers.iter().skip(1).map(|tier| format!("`{}`", tier.name)).collect();
            Failure::bad_input(format!(
                "--tier: `{name}` is no slow memory of `{}` (there are {})",
                machine.name,
                names.join(", ")
            ))
        },
    )
}

/// Prices of the fast and the slow memory.
fn prices(given: &[String], names: &[String; 2]) -> Result<Option<[f64; 2]>, Failure> {
    if given.is_empty() {
        return Ok(None);
    }
    let mut prices = [None; 2];
    for text in given {
        let bad = |what: &str| Failure::bad_input(format!("--price: `{text}`: {what}"));
        let (name, price) = text.split_once('=').ok_or_else(|| bad("is not name=price"))?;
        let which = names.iter().position(|known| known == name);
        let which = which
            .ok_or_else(|| bad(&format!("the memories are `{}` and `{}`", names[0], names[1])))?;
        let price: f64 = price.parse().map_err(|_| bad("the price is not a number"))?;
        if !(price > 0.0 && price.is_finite()) {
            return Err(bad("the price must be above zero"));
        }
        prices[which] = Some(price);
    }
    match prices {
        [Some(fast), Some(slow)] => Ok(Some([fast, slow])),
        _ => Err(Failure::bad_input(format!(
            "--price: both memories need one: {}=…,{}=…",
            names[0], names[1]
        ))),
    }
}

/// From this slowdown on, a program is said to take so many times as long.
const THRASHING: f64 = 10.0;

/// A slowdown in words: in percent as long as that says something.
fn slower(slowdown: f64) -> String {
    if slowdown < THRASHING { format!("{} slower", percent(slowdown)) } else { cell(slowdown) }
}

/// A slowdown in a column of slowdowns.
fn cell(slowdown: f64) -> String {
    if slowdown < THRASHING {
        percent(slowdown)
    } else {
        format!("{}x the time", count((1.0 + slowdown) as u64))
    }
}

/// A sum of money, to a hundredth and to three digits.
fn money(sum: f64) -> String {
    let digits = if sum > 0.0 { (2.0 - sum.log10().floor()).clamp(2.0, 9.0) } else { 2.0 };
    format!("{sum:.*}", digits as usize)
}

fn how(how: How) -> String {
    match how {
        How::BestPlacement => "best placement".to_owned(),
        How::Lru => "LRU".to_owned(),
        How::Simulated(policy) => policy.name().to_owned(),
    }
}

fn render(report: &PlanReport) -> String {
    let mut text = format!(
        "{} on {}: {} as fast memory, {} as slow memory\n",
        report.workload, report.machine, report.fast_tier, report.slow_tier
    );
    let mut rows = vec![
        ("accesses", count(report.accesses)),
        ("footprint", format!("{}, page tables included", report.footprint)),
        ("in fast memory", report.fast_time.to_string()),
    ];
    if let Some(slowdown) = report.all_slow {
        rows.push(("in slow memory", slower(slowdown)));
    }
    if let Some(fault) = report.fault {
        rows.push(("a fault", format!("{} and {} for the content", fault.fault, fault.content)));
    }
    if let Some([fast, slow]) = report.prices {
        let unit = format!(
            "{} {} a GiB, {} {} a GiB; sums are for {}, in the currency of --price",
            report.fast_tier,
            money(fast),
            report.slow_tier,
            money(slow),
            report.footprint
        );
        rows.push(("prices", unit));
    }
    rows.push(("error", error(report)));
    text.push_str(&facts("  ", &rows));
    text.push('\n');
    let chosen = |choice: Option<Choice>, also: bool| {
        choice.map_or("-".to_owned(), |choice| {
            let mut text = choice.fast.to_string();
            if also {
                let _ = write!(text, " ({})", slower(choice.slowdown));
            }
            text
        })
    };
    let within = format!("within {}", percent(report.slowdown));
    let line = |part: &PlanPart| {
        let answers = &part.answers;
        [
            how(part.curve.how),
            chosen(answers.smallest, false),
            answers.smallest.map_or("-".into(), |choice| cell(choice.slowdown)),
            chosen(answers.knee, true),
        ]
    };
    let lines: Vec<_> = report.parts.iter().map(line).collect();
    text.push_str(&table(["placement", &within, "slower", "knee"], &lines));
    if report.prices.is_some() {
        text.push('\n');
        text.push_str(&priced(report));
    }
    text.push('\n');
    text.push_str(&curve(report));
    if let Some(least) = thrashes_below(report) {
        let _ = write!(
            text,
            "\nWith less than about {least} the program thrashes: most of its time it waits for \
             memory, and\nhow many times as long it takes says no more than that.\n"
        );
    }
    text
}

/// How far off plans are: measured, or why it is not.
fn error(report: &PlanReport) -> String {
    report.error.map_or_else(
        || {
            "not measured: faults are exact for this input, their price is the machine file's"
                .to_owned()
        },
        |error| {
            format!(
                "within 10 % of the run time in {} of {} predictions for {} other programs, each \
                 measured with another input; {} at most",
                error.within_tenth,
                error.predictions,
                error.programs,
                percent(error.worst)
            )
        },
    )
}

/// The size below which the program takes many times as long, if the first curve comes there.
fn thrashes_below(report: &PlanReport) -> Option<Bytes> {
    let curve = &report.parts.first()?.curve;
    let thrashes = |point: &&terrace_sim::plan::Point| point.slowdown >= THRASHING;
    curve.points.iter().rev().find(thrashes)?;
    curve.smallest(THRASHING).map(|point| point.fast)
}

/// What prices say.
fn priced(report: &PlanReport) -> String {
    let chosen = |choice: Option<Choice>| {
        choice.map_or("-".to_owned(), |choice| {
            format!(
                "{} + {}, {}, {} in all",
                choice.fast,
                choice.slow,
                slower(choice.slowdown),
                money(choice.price.unwrap_or(0.0))
            )
        })
    };
    let rows: Vec<_> = report
        .parts
        .iter()
        .map(|part| {
            let answers = &part.answers;
            [
                how(part.curve.how),
                chosen(answers.smallest),
                chosen(answers.within_budget),
                chosen(answers.cheapest_work),
            ]
        })
        .collect();
    table(["placement", "within the slowdown", "within the budget", "least price x time"], &rows)
}

/// The first curve at about ten sizes.
fn curve(report: &PlanReport) -> String {
    let points = &report.parts[0].curve.points;
    let step = (points.len() / 10).max(1);
    let last = points.len() - 1;
    let rows: Vec<_> = points
        .iter()
        .enumerate()
        .filter(|(i, _)| i % step == 0 || *i == last)
        .map(|(_, point)| {
            let part = point.fast.as_f64() / report.footprint.as_f64().max(1.0);
            [point.fast.to_string(), percent(part), percent(point.share), cell(point.slowdown)]
        })
        .collect();
    let name = how(report.parts[0].curve.how);
    let share = if report.fault.is_some() { "without a fault" } else { "misses served" };
    format!("{name}\n") + &table([&report.fast_tier, "of the footprint", share, "slower"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slowdown_of_many_times_is_no_percentage_and_a_small_sum_is_not_zero() {
        assert_eq!(slower(0.05), "5.0 % slower");
        assert_eq!(slower(34_755.92), "34 756x the time");
        assert_eq!(cell(9.99), "999.0 %");
        assert_eq!(cell(10.0), "11x the time");
        assert_eq!(money(0.0312), "0.0312");
        assert_eq!(money(8.0), "8.00");
        assert_eq!(money(1234.5), "1234.50");
    }

    #[test]
    fn the_estimate_comes_once_and_counts_rounds_of_simulations() {
        let second = Duration::from_secs(1);
        let line = how_long(second, 41, 2);
        assert_eq!(line, "about 21 s: up to 41 simulations of about 1 s each, 2 side by side");

        let progress = |done, accesses| PlanProgress { done, total: 3, accesses };
        let estimate = Estimate::new(None, 2);
        assert_eq!(estimate.at(progress(0, 1 << 20)), None, "its length is not known");
        assert!(estimate.at(progress(1, 0)).expect("told").contains("up to 3 simulations"));
        assert_eq!(estimate.at(progress(2, 0)), None, "told again");
    }

    #[test]
    fn prices_go_to_the_memory_that_they_name() {
        let names = ["dram".to_owned(), "cxl".to_owned()];
        let given = |texts: &[&str]| {
            prices(&texts.iter().map(ToString::to_string).collect::<Vec<_>>(), &names)
        };
        assert_eq!(given(&["cxl=3", "dram=8"]).unwrap(), Some([8.0, 3.0]));
        assert_eq!(given(&[]).unwrap(), None);
        for bad in [&["dram=8"][..], &["dram=8", "nvm=1"], &["dram=0", "cxl=1"], &["dram", "cxl=1"]]
        {
            assert!(given(bad).is_err(), "{bad:?}");
        }
    }
}
