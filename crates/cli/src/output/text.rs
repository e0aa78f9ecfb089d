//! Tables and lines: what people read.

use comfy_table::{CellAlignment, Table, presets};

/// A table: the first column is text, the others are aligned to the right.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for row in rows {
        table.add_row(row.iter().map(|cell| plain(cell)));
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if i > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    lines(&table)
}

/// Lines of `name  value`, the values aligned to the left.
pub(crate) fn facts(indent: &str, rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter()
        .map(|(name, value)| {
            let pad = " ".repeat(width - name.chars().count());
            format!("{indent}{name}{pad}  {}", plain(value)).trim_end().to_owned() + "\n"
        })
        .collect()
}

fn lines(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// A count with its thousands set apart, as people read them.
pub(crate) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A share as a percentage.
pub(crate) fn percent(share: f64) -> String {
    // A sum of nothing is minus zero; with a positive one it is not.
    format!("{:.1} %", share * 100.0 + 0.0)
}

/// How many there are of something that is called otherwise where there is one.
pub(crate) fn several(count: usize, one: &str, more: &str) -> String {
    counted(count as u64, one, more)
}

/// The same of what a report counts.
pub(crate) fn counted(number: u64, one: &str, more: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { more })
}

/// A text that somebody else may have written, so that a terminal only shows it: without what moves
/// its cursor or clears it, and without signs that turn a line's direction. It keeps its lines.
pub(crate) fn plain(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' || turns(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_does_not_reach_the_terminal_as_commands() {
        assert_eq!(plain("./w\x1b[2J ü\u{202e}x\r\n"), "./w\\u{1b}[2J ü\\u{202e}x\\r\n");
        assert_eq!(facts("", &[("program", "./w\x1b[2J".into())]), "program  ./w\\u{1b}[2J\n");
    }

    #[test]
    fn a_share_of_nothing_has_no_sign() {
        assert_eq!(percent(-0.0), "0.0 %");
        assert_eq!(several(1, "rule", "rules"), "1 rule");
        assert_eq!(several(0, "rule", "rules"), "0 rules");
    }

    #[test]
    fn columns_of_numbers_end_at_the_same_place_whatever_their_unit() {
        let text = table(
            ["fault", "p50"],
            &[["first touch".into(), "7 ns".into()], ["absent".into(), "12.5 µs".into()]],
        );

        let ends: Vec<_> = text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(ends, [ends[0]; 3], "ragged right edge:\n{text}");
    }

    #[test]
    fn counts_are_grouped_by_thousands() {
        assert_eq!(count(7), "7");
        assert_eq!(count(1_000), "1 000");
        assert_eq!(count(1_234_567), "1 234 567");
    }
}
