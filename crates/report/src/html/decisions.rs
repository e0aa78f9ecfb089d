//! What was decided, and why: sums over recorded decisions, and their table.

use std::collections::BTreeMap;

use terrace_core::{ActionClass, Cycles, Reason};
use terrace_economics::Decision;

use super::shell::{account_table, count, table};
use crate::run::AccountReport;

/// Decisions by what was decided, and why.
#[derive(Clone, Debug, Default)]
pub struct Decisions(BTreeMap<Group, Sums>);

/// Decisions of one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    /// The class of action.
    class: u8,
    /// The policy's reason.
    reason: String,
    /// What the economist said.
    verdict: &'static str,
}

impl Group {
    /// The class's name.
    fn class(&self) -> &'static str {
        ActionClass::ALL[usize::from(self.class)].name()
    }
}

/// What decisions of one kind come to together.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// How many.
    count: u64,
    /// Expected cost, cycles.
    cost: f64,
    /// Least benefit, cycles.
    benefit_low: f64,
    /// Expected benefit, cycles.
    benefit: f64,
}

impl Decisions {
    /// Takes in a decision.
    pub fn decided(&mut self, decision: &Decision) {
        let group = Group {
            class: decision.action.class().index() as u8,
            reason: reason(decision.reason),
            verdict: decision.verdict.name(),
        };
        let sums = self.0.entry(group).or_default();
        sums.count += 1;
        if decision.is_priced() {
            sums.cost += decision.cost.expected;
            sums.benefit_low += decision.benefit.low;
            sums.benefit += decision.benefit.expected;
        }
    }

    /// The section of a page, with the economist's accounts.
    pub(super) fn section(&self, accounts: &[AccountReport]) -> String {
        let mut text = String::from("<h2>Decisions</h2>\n");
        if accounts.is_empty() {
            return text + "<p class=\"empty\">none were taken</p>\n";
        }
        text += "<p class=\"sub\">The economist's accounts by class of action, in cycles: what was \
                 predicted, and what came of it.</p>\n";
        text += &account_table(accounts);
        if self.0.is_empty() {
            return text;
        }
        let mut groups: Vec<_> = self.0.iter().collect();
        groups.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.count));
        let rows = groups.into_iter().map(|(group, sums)| {
            let each = |cycles: f64| {
                let each = cycles / sums.count as f64;
                if each < 0.5 { "0".to_owned() } else { Cycles(each as u64).to_string() }
            };
            vec![
                format!("{}: {}", group.class(), group.reason),
                group.verdict.to_lowercase(),
                count(sums.count),
                each(sums.cost),
                each(sums.benefit),
                each(sums.benefit_low),
            ]
        });
        text + &table(
            &["proposed because", "verdict", "decisions", "cost each", "benefit each", "at least"],
            rows,
        )
    }
}

/// The policy's reason in words: its name as it is recorded.
fn reason(reason: Reason) -> String {
    let name = serde_json::to_value(reason).ok();
    let name = name.as_ref().and_then(serde_json::Value::as_str);
    name.map_or_else(|| "unknown".to_owned(), |name| name.replace('-', " "))
}
