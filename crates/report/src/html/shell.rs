//! What pages share: the frame, tables, numbers in words.

use std::fmt::Write as _;

use terrace_core::Nanos;

use super::chart::escape;
use crate::run::AccountReport;

const STYLE: &str = include_str!("style.css");

/// A page. `verb` names the command that wrote it.
pub(super) fn wrap(verb: &str, title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\
         <footer>Written by <code>terrace {verb}</code> {}.</footer>\n</main>\n</body>\n</html>\n",
        escape(title),
        env!("CARGO_PKG_VERSION"),
    )
}

/// The first answers, large: a value, and what it is.
pub(super) fn tiles(tiles: &[(String, String)]) -> String {
    let tiles = tiles.iter().fold(String::new(), |mut text, (value, what)| {
        let _ = writeln!(
            text,
            "<div class=\"tile\"><b>{}</b><span>{}</span></div>",
            escape(value),
            escape(what)
        );
        text
    });
    format!("<div class=\"tiles\">\n{tiles}</div>\n")
}

/// A share in percent.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The economist's accounts as a table, in cycles.
pub(super) fn account_table(lines: &[AccountReport]) -> String {
    let rows = lines.iter().map(|line| {
        vec![
            line.class.name().to_owned(),
            count(line.proposed),
            count(line.vetoed),
            count(line.completed),
            count(line.aborted),
            count(line.unfinished),
            line.predicted_cost.to_string(),
            line.realised_cost.to_string(),
            line.predicted_benefit.to_string(),
            line.realised_benefit
                .map_or_else(|| "not observed".to_owned(), |benefit| benefit.to_string()),
        ]
    });
    table(
        &[
            "class",
            "proposed",
            "vetoed",
            "completed",
            "aborted",
            "unfinished",
            "cost",
            "cost, realised",
            "benefit",
            "benefit, realised",
        ],
        rows,
    )
}

/// A table. A cell `\0class\0text` begins with a patch of colour.
pub(super) fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = String::from("<div class=\"scroll\"><table>\n");
    if head.iter().any(|name| !name.is_empty()) {
        let cells = head.iter().fold(String::new(), |mut cells, name| {
            let _ = write!(cells, "<th>{}</th>", escape(name));
            cells
        });
        let _ = writeln!(text, "<thead><tr>{cells}</tr></thead>");
    }
    for row in rows {
        let cells = row.iter().fold(String::new(), |mut cells, cell| {
            let _ = match cell.strip_prefix('\0').and_then(|rest| rest.split_once('\0')) {
                Some((class, rest)) => {
                    write!(cells, "<td><i class=\"{class}\"></i>{}</td>", escape(rest))
                }
                None => write!(cells, "<td>{}</td>", escape(cell)),
            };
            cells
        });
        let _ = writeln!(text, "<tr>{cells}</tr>");
    }
    text + "</table></div>\n"
}

/// Seconds.
pub(super) fn seconds(time: Nanos) -> f64 {
    time.get() as f64 / 1e9
}

/// A time on an axis.
pub(super) fn clock(seconds: f64) -> String {
    if seconds == 0.0 { "0".to_owned() } else { Nanos((seconds * 1e9) as u64).to_string() }
}

/// A count with its thousands set apart.
pub(super) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}
