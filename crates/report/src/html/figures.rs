//! Published figures, ours beside theirs, as one page.

use std::fmt::Write as _;

use super::chart::{self, Axis, Series, escape};
use super::shell::{table, wrap};

/// A figure: values of some series at named places.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What it shows.
    pub title: String,
    /// What has to be known to read it, and where ours differs and why.
    pub note: String,
    /// What a value is measured in.
    pub unit: &'static str,
    /// Whether equal distances are equal factors.
    pub logarithmic: bool,
    /// The places, from left to right.
    pub places: Vec<String>,
    /// The series: a name, and a value for each place; 0 where there is none.
    pub series: Vec<(String, Vec<f64>)>,
    /// More columns of the table, in words: a name, and a cell for each place.
    pub also: Vec<(String, Vec<String>)>,
    /// A value to compare with, as a line across.
    pub across: Option<f64>,
    /// Where the picture ends: columns that are higher are cut off and say how
    /// high they are, so that the others can be told apart.
    pub top: Option<f64>,
}

/// Classes of the style sheet, one a series.
const CLASSES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A page of figures. `verb` names the command that wrote it.
pub fn figures_page(verb: &str, title: &str, intro: &str, figures: &[Figure]) -> String {
    let mut body = format!("<h1>{}</h1>\n<p class=\"sub\">{}</p>\n", escape(title), escape(intro));
    for figure in figures {
        body += &section(figure);
    }
    wrap(verb, title, &body)
}

fn words(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn section(figure: &Figure) -> String {
    let mut text = format!("<section>\n<h2>{}</h2>\n", escape(&figure.title));
    let _ = writeln!(text, "<p>{}</p>", escape(&figure.note));
    let most = figure.series.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
    // Of a logarithmic picture, heights are exponents above the smallest decade.
    let least = figure
        .series
        .iter()
        .flat_map(|(_, values)| values)
        .copied()
        .filter(|value| *value > 0.0)
        .fold(f64::MAX, f64::min);
    let floor = least.log10().floor();
    let height = |value: f64| match (figure.logarithmic, value > 0.0) {
        (true, true) => value.log10() - floor,
        _ => value,
    };
    let back = |height: f64| if figure.logarithmic { 10f64.powf(height + floor) } else { height };
    let axis_words = |height: f64| words(back(height));
    let top = figure.top.filter(|top| *top < most);
    let most = top.map_or_else(|| chart::above(height(most)), height);
    let axis = Axis { binary: false, most, words: &axis_words };
    // The smallest value may lie on the floor of its decade, and must be seen.
    let least_height = |value: f64| {
        if figure.logarithmic && value > 0.0 { 0.03 * axis.most } else { 0.0 }
    };
    let series: Vec<Series<'_>> = figure
        .series
        .iter()
        .zip(CLASSES.iter().cycle())
        .map(|((name, values), class)| Series {
            name,
            class,
            values: values.iter().map(|value| height(*value).max(least_height(*value))).collect(),
        })
        .collect();
    let across = figure.across.map(height);
    text += &chart::columns(&figure.title, 280.0, &figure.places, &axis, &series, across);
    let mut head = vec![figure.unit];
    head.extend(figure.series.iter().map(|(name, _)| name.as_str()));
    head.extend(figure.also.iter().map(|(name, _)| name.as_str()));
    let rows = figure.places.iter().enumerate().map(|(i, place)| {
        let values = figure.series.iter().map(|(_, values)| match values.get(i) {
            Some(value) if *value > 0.0 => words(*value),
            _ => "–".to_owned(),
        });
        let also = figure.also.iter().map(|(_, cells)| match cells.get(i) {
            Some(cell) if !cell.is_empty() => cell.clone(),
            _ => "–".to_owned(),
        });
        std::iter::once(place.clone()).chain(values).chain(also).collect()
    });
    text += &table(&head, rows);
    text + "</section>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        Figure {
            title: "Figure 5 <SSP>".into(),
            note: "time over time".into(),
            unit: "ratio",
            logarithmic: true,
            places: vec!["1 ms".into(), "10 ms".into()],
            series: vec![("ours".into(), vec![3.5, 0.0]), ("published".into(), vec![350.0, 35.0])],
            also: vec![("rerun".into(), vec![String::new(), "77.0/78.0".into()])],
            across: None,
            top: None,
        }
    }

    #[test]
    fn every_value_stands_in_the_table_and_needs_nothing_from_outside() {
        let page = figures_page("reproduce kindle", "Kindle", "intro", &[figure()]);
        for text in ["3.50", "350", "35.0", "1 ms", "10 ms", "published", "–", "&lt;SSP&gt;"] {
            assert!(page.contains(text), "{text}");
        }
        assert!(!page.contains("<script") && !page.contains("http://") && !page.contains("src="));
    }

    /// One column a hundred times as high as the others would leave nothing of them.
    #[test]
    fn what_is_cut_off_says_how_high_it_is_and_leaves_room_for_the_others() {
        let cut = Figure { logarithmic: false, top: Some(50.0), across: Some(10.0), ..figure() };
        let page = figures_page("x", "x", "", &[cut]);
        assert!(page.contains("class=\"cut\"") && page.contains(">350</text>"), "{page}");
        assert!(page.contains("class=\"across\""), "{page}");
        let second = page.split("<rect class=\"bar b\"").nth(2).expect("35 of 50");
        let height = &second[second.find("height=\"").expect("a height") + 8..];
        let height: f64 = height[..height.find('"').expect("its end")].parse().expect("a number");
        assert!((height / (280.0 - 34.0) - 0.7).abs() < 0.01, "{height}");
    }

    /// One line that is written thousands of times is what wears a memory out.
    #[test]
    fn a_value_on_the_floor_of_a_logarithmic_picture_is_seen() {
        let mut figure = figure();
        figure.series = vec![("lines".into(), vec![1.0, 1000.0])];
        let page = figures_page("x", "x", "", &[figure]);
        assert_eq!(page.matches("<rect class=\"bar").count(), 2);
    }

    #[test]
    fn what_is_for_the_table_alone_has_no_columns() {
        let page = figures_page("x", "x", "", &[figure()]);
        assert!(page.contains("<th>rerun</th>") && page.contains("<td>77.0/78.0</td>"));
        assert_eq!(page.matches("<i class=").count(), 2, "the legend has two");
    }

    /// On a logarithmic axis a tenfold value is one step higher, not ten times as high.
    #[test]
    fn a_logarithmic_picture_has_equal_steps_for_equal_factors() {
        let page = figures_page("x", "x", "", &[figure()]);
        let heights: Vec<f64> = page
            .split("<rect class=\"bar ")
            .skip(1)
            .map(|bar| {
                let bar = &bar[bar.find("height=\"").expect("a height") + 8..];
                bar[..bar.find('"').expect("its end")].parse().expect("a number")
            })
            .collect();
        assert_eq!(heights.len(), 3, "what has no value has no bar");
        let step = heights[1] - heights[2];
        assert!((heights[1] - heights[0] - 2.0 * step).abs() < 1.0, "{heights:?}");
    }
}
