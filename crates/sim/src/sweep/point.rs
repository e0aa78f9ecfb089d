//! One combination of parameters: what is simulated, and what is measured.

use core::fmt;
use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use terrace_core::parse::without_byte_order_mark;
use terrace_core::{Bytes, Machine, PageSize};
use terrace_economics::Mode;

use crate::analytic::config::SimPolicy;
use crate::error::SimError;
use crate::exact::{ExactConfig, ExactReport, Source, setup};
use crate::machines;
use crate::trace::{Format, Summary, import};
use crate::workload::catalog::{ProgramName, ProgramSpec};

/// Parameters beside those of a program and of the machine.
const KNOWN: [&str; 9] = [
    "policy",
    "machine",
    "workload",
    "fast",
    "page-size",
    "cores",
    "economist",
    "sample-period",
    "skip",
];

/// Whether a sweep knows a parameter: one of its own, one of a program, or
/// `table.key` of the machine file (`cxl.read-latency`, `cpu.llc`, `costs.shootdown`).
pub(super) fn is_known(name: &str) -> bool {
    KNOWN.contains(&name)
        || ProgramSpec::PARAMETERS.contains(&name)
        || name.split_once('.').is_some_and(|(table, key)| !table.is_empty() && !key.is_empty())
}

/// One combination of parameters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Point {
    /// Names with values.
    pub parameters: BTreeMap<String, String>,
}

/// A measured figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Metric {
    /// A count, or a time in nanoseconds.
    Count(u64),
    /// Anything else.
    Real(f64),
}

/// What came of a point: figures in the order of [`METRICS`], or why it failed.
pub type PointResult = Result<Vec<Metric>, String>;

type Figure = fn(&ExactReport) -> Metric;

/// What is measured, by name.
pub const METRICS: [(&str, Figure); 31] = [
    ("measured_accesses", |r| Metric::Count(r.accesses)),
    ("instructions", |r| Metric::Count(r.instructions)),
    ("time_ns", |r| Metric::Count(r.time.get())),
    ("accesses_per_s", |r| Metric::Real(r.throughput.get())),
    ("ipc", |r| Metric::Real(r.instructions_per_cycle)),
    ("waited_ns", |r| Metric::Count(r.waited.get())),
    ("l1_misses", |r| Metric::Count(r.l1.load_misses + r.l1.store_misses)),
    ("l2_misses", |r| Metric::Count(r.l2.load_misses + r.l2.store_misses)),
    ("llc_misses", |r| Metric::Count(r.llc.load_misses + r.llc.store_misses)),
    ("tlb_walks", |r| Metric::Count(r.tlb.walks)),
    ("first_touches", |r| Metric::Count(r.faults.first_touches)),
    ("hint_faults", |r| Metric::Count(r.faults.hints)),
    ("fast_share", |r| Metric::Real(first(r).share)),
    ("fast_used_bytes", |r| Metric::Count(first(r).used.get())),
    ("fast_latency_ns", |r| Metric::Real(first(r).latency.as_f64())),
    ("fast_read_bytes_per_s", |r| Metric::Real(first(r).read_bandwidth.get())),
    ("fast_write_bytes_per_s", |r| Metric::Real(first(r).write_bandwidth.get())),
    ("slow_share", |r| Metric::Real(last(r).share)),
    ("slow_used_bytes", |r| Metric::Count(last(r).used.get())),
    ("slow_latency_ns", |r| Metric::Real(last(r).latency.as_f64())),
    ("slow_read_bytes_per_s", |r| Metric::Real(last(r).read_bandwidth.get())),
    ("slow_write_bytes_per_s", |r| Metric::Real(last(r).write_bandwidth.get())),
    ("promotions", |r| Metric::Count(r.migrated.promotions)),
    ("demotions", |r| Metric::Count(r.migrated.demotions)),
    ("exchanges", |r| Metric::Count(r.migrated.exchanges)),
    ("migrated_bytes", |r| Metric::Count(r.migrated.moved.get())),
    ("samples", |r| Metric::Count(r.samples.delivered)),
    ("ticks", |r| Metric::Count(r.ticks)),
    ("page_tables", |r| Metric::Count(r.page_tables)),
    ("policy_bytes", |r| Metric::Count(r.footprint.as_ref().map_or(0, |f| f.bytes.get()))),
    ("host_accesses_per_s", |r| Metric::Real(r.host_speed.get())),
];

fn first(report: &ExactReport) -> &crate::exact::report::ExactTierReport {
    &report.tiers[0]
}

fn last(report: &ExactReport) -> &crate::exact::report::ExactTierReport {
    &report.tiers[report.tiers.len() - 1]
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.parameters.iter().enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// What a point runs.
enum Input {
    Program(ProgramSpec),
    Trace(String),
}

impl Point {
    fn get(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    fn parsed<T: core::str::FromStr>(&self, name: &'static str) -> Result<Option<T>, SimError>
    where
        T::Err: fmt::Display,
    {
        let parse = |text: &str| {
            text.parse().map_err(|e: T::Err| SimError::parameter(name, format!("`{text}`: {e}")))
        };
        self.get(name).map(parse).transpose()
    }

    fn whole<T: core::str::FromStr>(&self, name: &'static str) -> Result<Option<T>, SimError> {
        let parse = |text: &str| {
            text.parse().map_err(|_| {
                SimError::parameter(name, format!("`{text}` is not a whole number that fits here"))
            })
        };
        self.get(name).map(parse).transpose()
    }

    /// The machine, with the values that the point gives its file.
    fn machine(&self) -> Result<Machine, SimError> {
        let name = self.get("machine").unwrap_or("cxl");
        let changes: Vec<_> =
            self.parameters.iter().filter(|(name, _)| name.contains('.')).collect();
        if changes.is_empty() {
            return machines::load(name);
        }
        let text = machines::text(name)?;
        let mut document: toml::Table = toml::from_str(without_byte_order_mark(&text))
            .map_err(|e| SimError::parameter("machine", e.message().to_owned()))?;
        for (path, value) in changes {
            change(&mut document, path, value)
                .map_err(|message| SimError::parameter("machine", format!("{path}: {message}")))?;
        }
        let text = toml::to_string(&document)
            .map_err(|e| SimError::parameter("machine", e.to_string()))?;
        let file = machines::file(name).map_or(name.to_owned(), |path| path.display().to_string());
        machines::parse(&file, &text)
    }

    fn input(&self) -> Result<Input, SimError> {
        let name = self.get("workload").unwrap_or("gups");
        if let Ok(name) = name.parse::<ProgramName>() {
            let mut spec = ProgramSpec::new(name, Bytes::mib(256), 20_000_000);
            for (name, value) in &self.parameters {
                if ProgramSpec::PARAMETERS.contains(&name.as_str()) {
                    spec.set(name, value)?;
                }
            }
            spec.threads = self.parsed("cores")?.unwrap_or(1);
            return Ok(Input::Program(spec));
        }
        if Path::new(name).is_file() {
            return Ok(Input::Trace(name.to_owned()));
        }
        let message = format!("`{name}` is neither an algorithm nor a file");
        Err(SimError::parameter("workload", message))
    }

    fn config(&self, input: &Input) -> Result<ExactConfig, SimError> {
        let policy: SimPolicy = self.parsed("policy")?.unwrap_or(SimPolicy::AllDram);
        let mut config = ExactConfig::new(self.machine()?, policy);
        config.fast = match (self.get("fast"), input) {
            (None, _) => None,
            (Some(text), Input::Program(spec)) if text.ends_with('%') => {
                Some(share(text, spec.size)?)
            }
            (Some(text), Input::Trace(_)) if text.ends_with('%') => {
                let message = format!("`{text}`: a share is possible for algorithms only");
                return Err(SimError::parameter("fast", message));
            }
            (Some(_), _) => self.parsed("fast")?,
        };
        if config.fast.is_some_and(Bytes::is_zero) {
            return Err(SimError::parameter("fast", "must be above zero"));
        }
        config.page_size = match self.get("page-size") {
            None | Some("4KiB") => PageSize::Base,
            Some("2MiB") => PageSize::Huge,
            Some(other) => {
                let message = format!("`{other}` is neither `4KiB` nor `2MiB`");
                return Err(SimError::parameter("page-size", message));
            }
        };
        let economist = self.get("economist").unwrap_or(Mode::Shadow.name());
        config.economist = Mode::of_name(economist).ok_or_else(|| {
            let names = Mode::ALL.map(|mode| format!("`{}`", mode.name())).join(", ");
            SimError::parameter("economist", format!("`{economist}` is none of {names}"))
        })?;
        config.cores = self.whole("cores")?.unwrap_or(1);
        if let Some(period) = self.whole::<core::num::NonZeroU64>("sample-period")? {
            config.sampler.period = period.get();
        }
        config.seed = self.whole("seed")?.unwrap_or(1);
        Ok(config)
    }

    /// Whether a parameter that it has can change anything.
    pub(super) fn uses(&self, name: &str) -> bool {
        let policy = || self.parsed::<SimPolicy>("policy").ok().flatten();
        let policy = || policy().unwrap_or(SimPolicy::AllDram);
        let program = || match self.input() {
            Ok(Input::Program(spec)) => Some(spec.name),
            _ => None,
        };
        match name {
            "sample-period" => policy().takes_samples(),
            "economist" => !policy().decides_nothing(),
            "hot" | "hot-percent" => program().is_some_and(ProgramName::has_hot_set),
            "size" | "accesses" => program().is_some(),
            // Nothing else in a simulation is drawn.
            "seed" => program().is_some_and(ProgramName::draws) || policy().takes_samples(),
            _ => true,
        }
    }

    /// The point without the parameters that change nothing in it: points that are the same then
    /// are one simulation.
    #[must_use]
    pub fn effective(&self) -> Self {
        let used = self.parameters.iter().filter(|(name, _)| self.uses(name));
        Self { parameters: used.map(|(name, value)| (name.clone(), value.clone())).collect() }
    }

    /// What is wrong with it, as far as that can be told without running it.
    pub(super) fn check(&self) -> Result<(), SimError> {
        let input = self.input()?;
        let config = self.config(&input)?;
        if let Input::Program(spec) = &input {
            spec.check()?;
        }
        self.whole::<u64>("skip")?;
        crate::exact::ExactMachine::check(&config)
    }

    /// Simulates it. Deterministic, but for the host's speed.
    pub fn simulate(&self) -> PointResult {
        self.simulate_input().0
    }

    /// The same, with what was read where it runs a trace.
    pub fn simulate_input(&self) -> (PointResult, Option<Summary>) {
        let run = || -> Result<ExactReport, SimError> {
            let input = self.input()?;
            let mut config = self.config(&input)?;
            let skip: Option<u64> = self.whole("skip")?;
            let mut source: Box<dyn Source> = match input {
                Input::Program(spec) => {
                    let program = spec.build()?;
                    config.warm_up = skip.unwrap_or(program.initial());
                    Box::new(program)
                }
                Input::Trace(path) => {
                    config.warm_up = skip.unwrap_or(0);
                    let path = Path::new(&path);
                    import::open(path, Format::of(path))?
                }
            };
            setup::simulate(&config, source.as_mut(), &mut |_, _| ())
        };
        match run() {
            Ok(report) => {
                let figures = METRICS.iter().map(|(_, figure)| figure(&report)).collect();
                (Ok(figures), report.input)
            }
            Err(error) => (Err(error.to_string()), None),
        }
    }
}

/// The largest share of an algorithm's size that can matter, in percent: it maps up to 1.3 times
/// that, and page tables come on top.
const ALL: f64 = 150.0;

/// A share of an amount: `25%`.
fn share(text: &str, of: Bytes) -> Result<Bytes, SimError> {
    let number = text.trim_end_matches('%').trim().parse::<f64>().ok();
    let percent =
        number.ok_or_else(|| SimError::parameter("fast", format!("`{text}` is no percentage")))?;
    if !(percent > 0.0 && percent <= ALL) {
        let message = format!(
            "`{text}`: must be above 0 % and at most {ALL} %, which is more than an algorithm maps"
        );
        return Err(SimError::parameter("fast", message));
    }
    // Whole huge pages, so that the share means the same with both page sizes.
    let page = PageSize::Huge.bytes().get();
    let bytes = (of.as_f64() * percent / 100.0) as u64;
    Ok(Bytes(bytes.next_multiple_of(page)))
}

/// Changes a value of a machine file: `TIER.KEY`, or `TABLE.KEY` with tables
/// within tables (`detail.l2.size`).
fn change(document: &mut toml::Table, path: &str, value: &str) -> Result<(), String> {
    let mut parts: Vec<&str> = path.split('.').collect();
    let key = parts.pop().unwrap_or_default();
    let no_table = || format!("the machine has no memory and no table `{}`", parts.join("."));
    let tier = match document.get_mut("tier") {
        Some(toml::Value::Array(tiers)) => tiers.iter_mut().find(|tier| {
            parts.len() == 1 && tier.get("name").and_then(toml::Value::as_str) == Some(parts[0])
        }),
        _ => None,
    };
    let table = if let Some(toml::Value::Table(tier)) = tier {
        tier
    } else {
        let mut table = document;
        for part in &parts {
            let inner = table.get_mut(*part).and_then(toml::Value::as_table_mut);
            table = inner.ok_or_else(no_table)?;
        }
        table
    };
    let sourced = table.get_mut(key).and_then(toml::Value::as_table_mut);
    let sourced = sourced.ok_or_else(|| format!("no value `{key}` there"))?;
    let number = value.parse::<f64>().ok().filter(|n| n.is_finite());
    let whole = value.parse::<i64>().ok();
    let new = match (whole, number) {
        (Some(whole), _) => toml::Value::Integer(whole),
        (None, Some(number)) => toml::Value::Float(number),
        (None, None) => toml::Value::String(value.to_owned()),
    };
    sourced.insert("value".into(), new);
    sourced.insert("source".into(), toml::Value::String("a parameter of the sweep".into()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(parameters: &[(&str, &str)]) -> Point {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Point { parameters: parameters.iter().map(owned).collect() }
    }

    #[test]
    fn a_parameter_changes_the_machine_and_nothing_else() {
        let plain = point(&[("machine", "cxl")]).machine().expect("built in");
        let changed = point(&[
            ("machine", "cxl"),
            ("cxl.read-latency", "400ns"),
            ("cpu.miss-slots", "4"),
            ("detail.stlb.entries", "1024"),
        ]);
        let mut machine = changed.machine().expect("changed");
        assert_eq!(machine.tiers[1].read_latency.value.get(), 400);
        assert!((machine.cpu.miss_slots.value - 4.0).abs() < f64::EPSILON);
        machine.tiers[1].read_latency = plain.tiers[1].read_latency.clone();
        machine.cpu.miss_slots = plain.cpu.miss_slots.clone();
        machine.detail = plain.detail.clone();
        assert_eq!(machine, plain);
    }

    #[test]
    fn a_point_repeats_and_depends_on_its_parameters() {
        let base = [("policy", "all-slow"), ("size", "4MiB"), ("accesses", "20000")];
        let slower = [base.as_slice(), &[("cxl.read-latency", "500ns")]].concat();
        let time = |parameters: &[(&str, &str)]| {
            let figures = point(parameters).simulate().expect("simulated");
            let index = METRICS.iter().position(|(name, _)| *name == "time_ns").expect("measured");
            match figures[index] {
                Metric::Count(time) => time,
                Metric::Real(_) => panic!("a time is a count"),
            }
        };
        assert_eq!(time(&base), time(&base));
        assert!(time(&slower) > time(&base));
    }

    /// Whoever repeats a simulation with several seeds wants to see how far it varies.
    #[test]
    fn a_seed_changes_what_is_drawn_and_is_told_to_change_nothing_where_nothing_is() {
        let speed = METRICS.iter().position(|(name, _)| *name == "host_accesses_per_s");
        let speed = speed.expect("measured");
        let figures = |point: &Point| {
            let mut figures = point.simulate().expect("simulated");
            figures.remove(speed);
            figures
        };
        let programs = ProgramName::ALL.map(|name| (name, "first-touch"));
        for (name, policy) in programs.into_iter().chain([(ProgramName::Stream, "hemem")]) {
            let with = |seed| {
                point(&[
                    ("workload", name.name()),
                    ("policy", policy),
                    ("size", "4MiB"),
                    ("fast", "2MiB"),
                    ("accesses", "400000"),
                    ("seed", seed),
                ])
            };
            let (one, two) = (with("1"), with("2"));
            if one.effective() == two.effective() {
                assert_eq!(figures(&one), figures(&two), "{name} under {policy}");
                assert!(!one.uses("seed"));
            } else if policy == "first-touch" {
                assert_ne!(figures(&one), figures(&two), "{name} under {policy}");
            }
        }
        assert!(!point(&[("workload", "stream")]).uses("seed"));
        assert!(point(&[("workload", "stream"), ("policy", "hemem")]).uses("seed"));
    }

    /// Two columns of one name cannot be read into a notebook.
    #[test]
    fn no_figure_is_called_as_a_parameter_is() {
        assert!(METRICS.iter().all(|(name, _)| !is_known(name)));
    }

    #[test]
    fn shares_of_fast_memory_are_of_the_program_s_memory() {
        assert_eq!(share("25%", Bytes::mib(64)).expect("a share"), Bytes::mib(16));
        for wrong in ["x%", "0%", "-5%", "200%", "NaN%"] {
            assert!(share(wrong, Bytes::mib(64)).is_err(), "{wrong}");
        }
        let error = point(&[("fast", "0B")]).check().expect_err("refused").to_string();
        assert!(error.contains("above zero"), "{error}");
    }
}
