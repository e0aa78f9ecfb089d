//! `terrace plan`: how much fast memory a program needs.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use serde::Serialize;
use terrace_core::{Machine, PageSize};
use terrace_economics::Mode;
use terrace_sim::SimPolicy;
use terrace_sim::plan::{Choice, How, PlanConfig, PlanPart, PlanReport, plan};

use crate::args::one_of;
use crate::failure::Failure;
use crate::output::{self, Files, Kind, count, facts, percent, table};
use crate::progress::Progress;
use crate::sim::full::Shared;
use crate::sim::input::{Input, failure, tell, told};
use crate::sim::setup::{PAGE_SIZES, POLICIES, page_size_name};

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
    /// A machine that comes with Terrace (optane-cascade-lake, cxl, laptop), or a machine file.
    #[arg(long, value_name = "NAME|FILE", default_value = "cxl")]
    machine: String,

    /// The slow memory, by its name in the machine file; the second if not given.
    #[arg(long, value_name = "NAME")]
    tier: Option<String>,

    /// The slowdown that is accepted, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    slowdown: f64,

    /// Policies to simulate; none with `--policies ""`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "first-touch,hemem")]
    policies: Vec<String>,

    /// Sizes at which each policy is simulated, before those around the answer.
    #[arg(long, value_name = "COUNT", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(2..=64))]
    points: u32,

    /// What a GiB of each memory costs: `dram=8,cxl=3`, in any currency.
    #[arg(long, value_name = "NAME=PRICE", value_delimiter = ',')]
    price: Vec<String>,

    /// What all memory may cost, in the same currency.
    #[arg(long, value_name = "PRICE")]
    budget: Option<f64>,

    /// The size in which memory is placed.
    #[arg(long, value_name = "SIZE", default_value = "4KiB",
          value_parser = one_of(PAGE_SIZES, |size| page_size_name(size)))]
    page_size: PageSize,

    /// Where all randomness comes from.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Draw the curves as one HTML page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    #[command(flatten)]
    input: Input,
}

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
        files.reads("--machine", &self.machine);
        let html = self.html.as_deref();
        let html = html.map(|path| files.writes("--html", path, Kind::Whole)).transpose()?;
        output::remove_when_interrupted();
        let input = self.input.repeatable(self.seed)?;
        let bar = Progress::new().bar("plan");
        let report = plan(&config, &|| input.open(), &|progress| {
            let done = progress.done as f64 / progress.total.max(1) as f64;
            bar.set(done, format!("{}/{} simulations", progress.done, progress.total));
        });
        bar.finish();
        let report = report.map_err(failure)?;
        tell(&report.workload, report.input.as_ref());
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

    fn config(&self) -> Result<PlanConfig, Failure> {
        let shared = Shared {
            machine: &self.machine,
            policy: SimPolicy::AllDram,
            economist: Mode::Shadow,
            page_size: self.page_size,
            seed: self.seed,
        };
        let base = self.input.config(&shared)?;
        let slow = tier(&base.machine, self.tier.as_deref())?;
        let policies = self
            .policies
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
            grid: self.points as usize,
            prices: prices(&self.price, &names)?,
            budget: self.budget,
            workers: thread::available_parallelism().map_or(1, usize::from),
            base,
        })
    }
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
        rows.push(("in slow memory", format!("{} slower", percent(slowdown))));
    }
    if let Some(fault) = report.fault {
        rows.push(("a fault", format!("{} and {} for the content", fault.fault, fault.content)));
    }
    text.push_str(&facts("  ", &rows));
    text.push('\n');
    let cell = |choice: Option<Choice>, also: bool| {
        choice.map_or("-".to_owned(), |choice| {
            let mut text = choice.fast.to_string();
            if also {
                let _ = write!(text, " ({} slower)", percent(choice.slowdown));
            }
            text
        })
    };
    let within = format!("within {}", percent(report.slowdown));
    let line = |part: &PlanPart| {
        let answers = &part.answers;
        [
            how(part.curve.how),
            cell(answers.smallest, false),
            answers.smallest.map_or("-".into(), |choice| percent(choice.slowdown)),
            cell(answers.knee, true),
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
    text
}

/// What prices say.
fn priced(report: &PlanReport) -> String {
    let cell = |choice: Option<Choice>| {
        choice.map_or("-".to_owned(), |choice| {
            format!(
                "{} + {}, {} slower, {:.2}",
                choice.fast,
                choice.slow,
                percent(choice.slowdown),
                choice.price.unwrap_or(0.0)
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
                cell(answers.smallest),
                cell(answers.within_budget),
                cell(answers.cheapest_work),
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
            [point.fast.to_string(), percent(part), percent(point.share), percent(point.slowdown)]
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
