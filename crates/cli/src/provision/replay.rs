//! `terrace provision replay`: what each policy would have done with a recorded demand.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Bytes, Nanos, PageSize};
use terrace_provision::economist::Figures;
use terrace_provision::replay::{Priced, Step};
use terrace_provision::{Hardware, PolicyKind, Prices, Recording, ReplayError, Replayed, replay};

use crate::args::one_of;
use crate::failure::Failure;
use crate::output::{self, table};

/// Play a recorded demand for memory to each policy: how often would it have acted?
///
/// The machine of the replay has the recorded nodes, with DRAM and slow memory as
/// given. Its slow memory is hidden at the beginning. With a machine file, what each policy cost
/// and saved is priced in joules.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace provision replay --dram 8GiB --slow 32GiB monday.zones")]
pub(crate) struct Args {
    /// What `terrace provision record` has written.
    file: PathBuf,

    /// DRAM of each node; without it what the node had when the recording began.
    #[arg(long, value_name = "SIZE")]
    dram: Option<Bytes>,

    /// Slow memory near each node; without it three times the DRAM.
    #[arg(long, value_name = "SIZE")]
    slow: Option<Bytes>,

    /// Only this policy.
    #[arg(long, value_name = "POLICY", value_parser = one_of(&PolicyKind::ALL, PolicyKind::name))]
    policy: Option<PolicyKind>,

    /// The machine file with the figures by which slow memory is priced, a name or a path:
    /// latencies (`[numa]`) and power (`[power]`); `four-node` has them.
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,

    /// How often each GiB is accessed in a second, at least and at most; a wide range if not given.
    #[arg(long, value_name = "LEAST,MOST", value_delimiter = ',', requires = "machine")]
    accesses: Vec<f64>,

    /// Print each decision that changes something, and why.
    #[arg(long)]
    decisions: bool,

    /// Use what can be read of a recording whose last line is cut off.
    #[arg(long)]
    partial: bool,
}

#[derive(Serialize)]
struct Row {
    policy: PolicyKind,
    #[serde(flatten)]
    result: Replayed,
    events_an_hour: f64,
    moved_an_hour: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    decisions: Option<Vec<Step>>,
}

#[derive(Serialize)]
struct Document {
    policies: Vec<Row>,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        for (option, size) in [("--dram", self.dram), ("--slow", self.slow)] {
            if size.is_some_and(Bytes::is_zero) {
                return Err(Failure::bad_input(format!("{option}: a node has more than none")));
            }
        }
        let name = self.file.display();
        let bad = |what: String| Failure::bad_input(format!("{name}: {what}"));
        let file = File::open(&self.file).map_err(|e| bad(e.to_string()))?;
        let recording =
            Recording::read(BufReader::new(file), self.partial).map_err(|e| bad(e.to_string()))?;
        if recording.samples.len() < 2 {
            return Err(bad("has a single moment, so that nothing happens in it".to_owned()));
        }
        let hardware = Hardware { dram: self.dram, slow: self.slow };
        let prices = self.prices()?;
        let kinds =
            PolicyKind::ALL.into_iter().filter(|&kind| self.policy.is_none_or(|p| p == kind));
        let policies: Result<Vec<Row>, ReplayError> = kinds
            .map(|policy| {
                let mut policy_of = policy.build();
                let mut result = replay(&recording, hardware, policy_of.as_mut(), prices.as_ref())?;
                Ok(Row {
                    policy,
                    events_an_hour: result.an_hour(result.events as f64),
                    moved_an_hour: Bytes::from_f64(result.an_hour(result.moved.as_f64())),
                    decisions: self.decisions.then(|| std::mem::take(&mut result.journal)),
                    result,
                })
            })
            .collect();
        let document = Document { policies: policies.map_err(|e| bad(e.to_string()))? };
        let text = if json {
            output::json("terrace.provision.replay", &document)?
        } else {
            render(&document)
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    /// What slow memory costs, where a machine is named.
    fn prices(&self) -> Result<Option<Prices>, Failure> {
        let Some(name) = &self.machine else { return Ok(None) };
        let accesses = match self.accesses[..] {
            [] => None,
            [least, most] if least >= 0.0 && least <= most && most.is_finite() => {
                Some([least, most])
            }
            _ => {
                return Err(Failure::bad_input("--accesses: must be two numbers, the least first"));
            }
        };
        let refused = |why: String| Failure::bad_input(format!("--machine: {why}"));
        let machine = terrace_sim::machines::load(name).map_err(|e| refused(e.to_string()))?;
        let figures = Figures::of(&machine, accesses)
            .map_err(|lacks| refused(format!("`{name}` {lacks}")))?;
        // What the daemon assumes if its configuration does not say otherwise.
        let stays = Nanos::seconds(30);
        Ok(Some(Prices { figures, page: PageSize::Base.bytes(), stays }))
    }
}

fn render(document: &Document) -> String {
    let rows: Vec<_> = document
        .policies
        .iter()
        .map(|row| {
            [
                row.policy.to_string(),
                row.result.events.to_string(),
                format!("{:.1}", row.events_an_hour),
                row.moved_an_hour.to_string(),
                row.result.online.to_string(),
                row.result.remote.to_string(),
                row.result.unmet.to_string(),
            ]
        })
        .collect();
    let header = [
        "policy",
        "changes",
        "an hour",
        "moved an hour",
        "online, mean",
        "remote, mean",
        "unmet, most",
    ];
    let mut text = table(header, &rows);
    text += &prices(&document.policies);
    for row in &document.policies {
        let Some(decisions) = &row.decisions else { continue };
        text += &format!("\n{}:\n", row.policy);
        for Step { decision, price } in decisions {
            text += &format!("  {:>8}  {decision}\n", seconds(decision.at));
            if let Some(price) = price {
                text += &format!("  {:>8}  {price}\n", "");
            }
        }
    }
    text
}

/// What each policy cost and saved in an hour.
fn prices(policies: &[Row]) -> String {
    let row = |row: &Row| {
        let Priced { bill, missed, verdicts } = row.result.prices.as_ref()?;
        let joules = |energy: f64| format!("{:.0}", row.result.an_hour(energy));
        let range = |[least, most]: [f64; 2]| format!("{} to {}", joules(least), joules(most));
        Some([
            row.policy.to_string(),
            joules(bill.memory),
            joules(bill.metadata),
            joules(bill.work),
            joules(bill.cost()),
            range(bill.saved),
            range(*missed),
            bill.pays_above.map_or("never".into(), |rate| format!("{rate:.0}")),
            verdicts.pays.to_string(),
            verdicts.may_pay.to_string(),
            verdicts.does_not_pay.to_string(),
            verdicts.forced.to_string(),
        ])
    };
    let rows: Vec<_> = policies.iter().filter_map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let header = [
        "joules an hour",
        "memory",
        "descriptors",
        "work",
        "cost",
        "saved waiting",
        "missed",
        "pays above",
        "pays",
        "may pay",
        "does not",
        "forced",
    ];
    format!(
        "\n{}pays above: accesses a second to each GiB. pays, may pay, does not: times that memory \
         came, by its price then; forced: no other node had room\n",
        table(header, &rows)
    )
}

fn seconds(at: Nanos) -> String {
    format!("{:.0} s", at.as_secs())
}
