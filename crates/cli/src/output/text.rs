//! Tables and lines: what people read.

use comfy_table::{CellAlignment, Table, presets};

/// A table: the first column is text, the others are aligned to the right.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for row in rows {
        table.add_row(row);
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
            format!("{indent}{name}{pad}  {value}").trim_end().to_owned() + "\n"
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
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

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
