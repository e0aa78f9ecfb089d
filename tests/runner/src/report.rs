//! Reads what `terrace run --json` says about a run.

use std::fs;
use std::path::Path;

use serde_json::Value;
use terrace_core::{Bytes, Nanos};

/// The parts of a run's report that tests look at.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// DRAM that each process was allowed.
    pub budget: Bytes,
    /// Each process that loaded the library.
    pub processes: Vec<Process>,
    /// Whether the kernel served the faults: all processes are one then.
    by_kernel: bool,
}

/// One process of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// Its command's name.
    pub command: String,
    /// `dormant`, `managed` or `failed`.
    pub state: String,
    /// Why it was given up, if it was.
    pub failure: Option<String>,
    /// The most managed memory that it had resident at once.
    pub resident_peak: Bytes,
    /// The most managed memory that it had mapped at once; zero where the kernel serves the faults,
    /// and nobody counts that.
    pub mapped_peak: Bytes,
    /// The most memory that held what was not resident.
    pub store_peak: Bytes,
    /// Pages that left DRAM.
    pub demotions: u64,
    /// Pages that came back.
    pub promotions: u64,
    /// Time that its threads waited for Terrace, which the kernel engine has none wait for.
    pub waited: Nanos,
}

impl Report {
    /// Reads a report from a file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::parse(&text).map_err(|e| format!("{}: {e}\n{text}", path.display()))
    }

    /// Reads a report.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if value["schema"] == 1 && value["kind"] == "terrace.kernel" {
            return Self::of_kernel(&value);
        }
        if value["schema"] != 1 || value["kind"] != "terrace.run" {
            return Err("this is no report of a run in schema 1".to_owned());
        }
        let processes = value["processes"].as_array().ok_or("no `processes`")?;
        Ok(Self {
            budget: Bytes(number(&value, &["budget"])?),
            processes: processes.iter().map(Process::read).collect::<Result<_, _>>()?,
            by_kernel: false,
        })
    }

    /// A run whose faults the kernel served: all its processes as one.
    fn of_kernel(value: &Value) -> Result<Self, String> {
        const PAGE: u64 = 4096;
        let put_out = number(value, &["put_out"])? + number(value, &["reclaimed"])? / PAGE;
        let program = value["program"][0].as_str().ok_or("no `program`")?;
        let all = Process {
            command: program.to_owned(),
            state: "managed".to_owned(),
            failure: None,
            resident_peak: Bytes(number(value, &["resident_peak"])?),
            mapped_peak: Bytes::ZERO,
            // Absent where the swap is no zram.
            store_peak: Bytes(value["store"]["peak"].as_u64().unwrap_or_default()),
            demotions: put_out,
            promotions: number(value, &["faults"])?,
            waited: Nanos::ZERO,
        };
        let budget = Bytes(number(value, &["budget"])?);
        Ok(Self { budget, processes: vec![all], by_kernel: true })
    }

    /// Whether the kernel served the faults.
    pub fn is_by_kernel(&self) -> bool {
        self.by_kernel
    }

    /// Pages that left DRAM, in all processes.
    pub fn demotions(&self) -> u64 {
        self.processes.iter().map(|process| process.demotions).sum()
    }

    /// The most managed memory that any one process had resident.
    pub fn resident_peak(&self) -> Bytes {
        self.processes.iter().map(|process| process.resident_peak).max().unwrap_or_default()
    }

    /// The most that any one process's store occupied.
    pub fn store_peak(&self) -> Bytes {
        self.processes.iter().map(|process| process.store_peak).max().unwrap_or_default()
    }

    /// A process that went on without Terrace, and why.
    pub fn gave_up(&self) -> Option<String> {
        let process = self.processes.iter().find(|process| process.state == "failed")?;
        let why = process.failure.as_deref().unwrap_or("no reason given");
        Some(format!("process {} was given up: {why}", process.command))
    }

    /// Why a managed run shows nothing of how programs fare: a process was given up, or no page
    /// ever left DRAM.
    pub fn shows_nothing(&self) -> Option<String> {
        let idle = || "no page ever left DRAM: this run shows nothing".to_owned();
        self.gave_up().or_else(|| (self.demotions() == 0).then(idle))
    }

    /// What is wrong with the run as such: a process that was given up, or a
    /// budget exceeded by more than `slack` (0.05 is 5 %).
    pub fn complaint(&self, slack: f64) -> Option<String> {
        if self.processes.is_empty() {
            return Some("no process loaded the library".to_owned());
        }
        let limit = Bytes::from_f64(self.budget.as_f64() * (1.0 + slack));
        self.gave_up().or_else(|| {
            let over = self.processes.iter().find(|process| process.resident_peak > limit)?;
            Some(format!(
                "process {} had {} resident, the budget is {}",
                over.command, over.resident_peak, self.budget
            ))
        })
    }
}

impl Process {
    fn read(value: &Value) -> Result<Self, String> {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        Ok(Self {
            command: text("command").ok_or("no `command`")?,
            state: text("state").ok_or("no `state`")?,
            failure: text("failure"),
            resident_peak: Bytes(number(value, &["figures", "resident_peak"])?),
            mapped_peak: Bytes(number(value, &["figures", "mapped_peak"])?),
            store_peak: Bytes(number(value, &["figures", "store", "occupied_peak"])?),
            demotions: number(value, &["figures", "demotions"])?,
            promotions: number(value, &["figures", "promotions"])?,
            waited: Nanos(number(value, &["figures", "waited"])?),
        })
    }
}

fn number(value: &Value, path: &[&str]) -> Result<u64, String> {
    let found = path.iter().fold(value, |value, key| &value[*key]);
    found.as_u64().ok_or_else(|| format!("`{}` is not a number", path.join(".")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(state: &str, resident_peak: u64) -> Report {
        let text = format!(
            r#"{{"schema": 1, "kind": "terrace.run", "budget": 1000, "processes": [{{
                "command": "sort", "state": "{state}", "failure": null,
                "figures": {{"resident_peak": {resident_peak}, "mapped_peak": 5000,
                    "demotions": 7, "promotions": 3, "waited": 12,
                    "store": {{"occupied_peak": 400}}}}}}]}}"#
        );
        Report::parse(&text).unwrap()
    }

    #[test]
    fn a_budget_kept_within_the_slack_is_no_complaint() {
        assert_eq!(report("managed", 1050).complaint(0.05), None);
        assert_eq!(report("managed", 1050).demotions(), 7);
    }

    /// Of the kernel engine's, too.
    #[test]
    fn a_report_of_the_kernel_engine_is_read() {
        let text = r#"{"schema": 1, "kind": "terrace.kernel", "program": ["sort", "f"],
            "budget": 1000, "resident_peak": 1100, "put_out": 3, "reclaimed": 8192, "faults": 4,
            "store": {"peak": 70}}"#;
        let report = Report::parse(text).unwrap();
        assert_eq!((report.demotions(), report.store_peak()), (5, Bytes(70)));
        assert!(report.complaint(0.05).unwrap().contains("sort"));
        assert!(Report::parse(&text.replace("\"faults\": 4,", "")).unwrap_err().contains("faults"));
    }

    #[test]
    fn an_exceeded_budget_and_a_given_up_process_are() {
        assert!(report("managed", 1051).complaint(0.05).unwrap().contains("resident"));
        assert!(report("failed", 10).complaint(0.05).unwrap().contains("given up"));
    }

    #[test]
    fn a_report_without_what_is_asked_for_is_refused() {
        let head = r#""schema": 1, "kind": "terrace.run""#;
        let none = format!("{{{head}}}");
        assert!(Report::parse(&none).unwrap_err().contains("processes"));
        let some = format!("{{{head}, \"processes\": []}}");
        assert!(Report::parse(&some).unwrap_err().contains("budget"));
        assert!(Report::parse("{}").unwrap_err().contains("schema"));
        assert!(Report::parse("not json").is_err());
    }
}
