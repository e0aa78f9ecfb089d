//! Pictures as SVG text. Colours are classes of the page's style sheet, so that
//! they follow the reader's light or dark theme.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Width of every picture, in its own units.
const WIDTH: f64 = 900.0;
/// Room for the vertical axis.
const LEFT: f64 = 80.0;
/// Room at the right.
const RIGHT: f64 = 16.0;
/// Room for the horizontal axis.
const BOTTOM: f64 = 26.0;
/// Room above.
const TOP: f64 = 8.0;

/// One line, or one layer, of a picture.
pub(super) struct Series<'a> {
    /// What it shows.
    pub(super) name: &'a str,
    /// Its class in the style sheet.
    pub(super) class: &'a str,
    /// Its values, one a column.
    pub(super) values: Vec<f64>,
}

/// An axis.
pub(super) struct Axis<'a> {
    /// Whether round values are powers of two (bytes) instead of ten.
    pub(super) binary: bool,
    /// The largest value.
    pub(super) most: f64,
    /// A value in words.
    pub(super) words: &'a dyn Fn(f64) -> String,
}

/// Text that has a meaning in HTML, without it.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn open(height: f64, label: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n",
        escape(label)
    )
}

/// Grid lines and numbers for both axes.
fn axes(svg: &mut String, height: f64, x: &Axis<'_>, y: &Axis<'_>) {
    let (width, tall) = (WIDTH - LEFT - RIGHT, height - TOP - BOTTOM);
    let vertical = if y.binary { steps(y.most, 4, 2.0, &[1.0, 2.0]) } else { ticks(y.most, 4) };
    for tick in vertical {
        let at = TOP + tall * (1.0 - tick / y.most);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            escape(&(y.words)(tick)),
        );
    }
    let across = if x.binary { steps(x.most, 8, 2.0, &[1.0, 2.0]) } else { ticks(x.most, 8) };
    for tick in across {
        let at = LEFT + width * tick / x.most;
        let _ = writeln!(
            svg,
            "<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            height - 8.0,
            escape(&(x.words)(tick)),
        );
    }
}

/// Round values from zero up to the largest, about so many.
fn ticks(most: f64, about: u32) -> Vec<f64> {
    steps(most, about, 10.0, &[1.0, 2.0, 5.0, 10.0])
}

/// Values at round steps: powers of a base, times one of these.
fn steps(most: f64, about: u32, base: f64, times: &[f64]) -> Vec<f64> {
    if most <= 0.0 || !most.is_finite() {
        return vec![0.0];
    }
    let rough = most / f64::from(about);
    let decade = base.powf(rough.log(base).floor());
    let step = times.iter().map(|step| step * decade).find(|&step| step >= rough);
    let step = step.unwrap_or(rough);
    let last = (most / step * 1.0001) as u32;
    (0..=last).map(|n| f64::from(n) * step).collect()
}

/// A little above the largest value, for the top of an axis.
pub(super) fn above(most: f64) -> f64 {
    if most <= 0.0 { 1.0 } else { most * 1.08 }
}

fn points(values: &[f64], times: &[f64], x: &Axis<'_>, most: f64, height: f64) -> Vec<(f64, f64)> {
    let (width, tall) = (WIDTH - LEFT - RIGHT, height - TOP - BOTTOM);
    values
        .iter()
        .zip(times)
        .map(|(value, time)| {
            let y = TOP + tall * (1.0 - (value / most).clamp(0.0, 1.0));
            (LEFT + width * time / x.most, y)
        })
        .collect()
}

fn path(points: &[(f64, f64)]) -> String {
    points.iter().fold(String::new(), |mut text, (x, y)| {
        let _ = write!(text, "{}{x:.1} {y:.1}", if text.is_empty() { "M" } else { "L" });
        text
    })
}

/// Lines over time.
pub(super) fn lines(
    label: &str,
    height: f64,
    times: &[f64],
    x: &Axis<'_>,
    y: &Axis<'_>,
    series: &[Series<'_>],
) -> String {
    let mut svg = open(height, label);
    axes(&mut svg, height, x, y);
    for line in series {
        let points = points(&line.values, times, x, y.most, height);
        let _ = writeln!(
            svg,
            "<path class=\"line {}\" d=\"{}\"><title>{}</title></path>",
            line.class,
            path(&points),
            escape(line.name)
        );
    }
    svg + "</svg>\n" + &legend(series)
}

/// Layers over time, each on top of those before, and a line across.
pub(super) fn layers(
    label: &str,
    height: f64,
    times: &[f64],
    x: &Axis<'_>,
    y: &Axis<'_>,
    series: &[Series<'_>],
    across: Option<(f64, &str)>,
) -> String {
    let mut svg = open(height, label);
    axes(&mut svg, height, x, y);
    let mut base = vec![0.0; times.len()];
    for layer in series {
        let top: Vec<f64> = base.iter().zip(&layer.values).map(|(a, b)| a + b).collect();
        let mut outline = points(&top, times, x, y.most, height);
        outline.extend(points(&base, times, x, y.most, height).into_iter().rev());
        let _ = writeln!(
            svg,
            "<path class=\"area {}\" d=\"{}Z\"><title>{}</title></path>",
            layer.class,
            path(&outline),
            escape(layer.name)
        );
        base = top;
    }
    if let Some((value, name)) = across {
        let at = TOP + (height - TOP - BOTTOM) * (1.0 - value / y.most);
        let _ = writeln!(
            svg,
            "<line class=\"across\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"note\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            WIDTH - RIGHT - 4.0,
            at - 5.0,
            escape(name)
        );
    }
    svg + "</svg>\n" + &legend(series)
}

/// What the colours mean.
fn legend(series: &[Series<'_>]) -> String {
    let items = series.iter().fold(String::new(), |mut items, one| {
        let (class, name) = (one.class, escape(one.name));
        let _ = write!(items, "<span><i class=\"{class}\"></i>{name}</span> ");
        items
    });
    format!("<p class=\"legend\">{items}</p>\n")
}

/// Columns side by side over named places, one series behind the other.
pub(super) fn bars(
    label: &str,
    height: f64,
    places: &[String],
    y: &Axis<'_>,
    series: &[Series<'_>],
) -> String {
    let mut svg = open(height, label);
    let x = Axis { binary: false, most: 0.0, words: &|_| String::new() };
    axes(&mut svg, height, &x, y);
    let (width, tall) = (WIDTH - LEFT - RIGHT, height - TOP - BOTTOM);
    let step = width / places.len().max(1) as f64;
    let each = step * 0.84 / series.len().max(1) as f64;
    for (s, one) in series.iter().enumerate() {
        for (i, value) in one.values.iter().enumerate().filter(|(_, value)| **value > 0.0) {
            let high = (tall * (value / y.most).clamp(0.0, 1.0)).max(1.0);
            let _ = writeln!(
                svg,
                "<rect class=\"bar {}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{each:.1}\" \
                 height=\"{high:.1}\"><title>{}, up to {}: {}</title></rect>",
                one.class,
                LEFT + step * (i as f64 + 0.08) + each * s as f64,
                TOP + tall - high,
                escape(one.name),
                escape(&places[i]),
                escape(&(y.words)(*value)),
            );
        }
    }
    // Every place a number would be crowded.
    for (i, place) in places.iter().enumerate().filter(|(i, _)| i % 2 == 1) {
        let _ = writeln!(
            svg,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            LEFT + step * (i as f64 + 1.0),
            height - 8.0,
            escape(place),
        );
    }
    svg + "</svg>\n" + &legend(series)
}

/// Columns side by side over named places, one series beside the other, and a
/// line across. What is higher than the axis is cut off and says how high it is.
pub(super) fn columns(
    label: &str,
    height: f64,
    places: &[String],
    y: &Axis<'_>,
    series: &[Series<'_>],
    across: Option<f64>,
) -> String {
    let mut svg = open(height, label);
    let x = Axis { binary: false, most: 0.0, words: &|_| String::new() };
    axes(&mut svg, height, &x, y);
    let (width, tall) = (WIDTH - LEFT - RIGHT, height - TOP - BOTTOM);
    let step = width / places.len().max(1) as f64;
    let each = step * 0.84 / series.len().max(1) as f64;
    for (s, one) in series.iter().enumerate() {
        for (i, value) in one.values.iter().enumerate().filter(|(_, value)| **value > 0.0) {
            let high = (tall * (value / y.most).clamp(0.0, 1.0)).max(1.0);
            let (left, words) =
                (LEFT + step * (i as f64 + 0.08) + each * s as f64, (y.words)(*value));
            let _ = writeln!(
                svg,
                "<rect class=\"bar {}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{each:.1}\" \
                 height=\"{high:.1}\"><title>{}, {}: {}</title></rect>",
                one.class,
                TOP + tall - high,
                escape(one.name),
                escape(&places[i]),
                escape(&words),
            );
            if *value > y.most {
                // Upwards, for columns are narrow.
                let middle = left + each / 2.0 + 4.0;
                let _ = writeln!(
                    svg,
                    "<text class=\"cut\" transform=\"translate({middle:.1} {:.1}) rotate(-90)\" \
                     text-anchor=\"end\">{}</text>",
                    TOP + 6.0,
                    escape(&words),
                );
            }
        }
    }
    if let Some(value) = across.filter(|value| (0.0..y.most).contains(value)) {
        let at = TOP + tall * (1.0 - value / y.most);
        let _ = writeln!(
            svg,
            "<line class=\"across\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
            WIDTH - RIGHT
        );
    }
    for (i, place) in places.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            LEFT + step * (i as f64 + 0.5),
            height - 8.0,
            escape(place),
        );
    }
    svg + "</svg>\n" + &legend(series)
}

/// A curve over values that are not time.
pub(super) struct Curve<'a> {
    /// What it shows.
    pub(super) name: &'a str,
    /// Its class in the style sheet.
    pub(super) class: &'a str,
    /// Whether its points are drawn.
    pub(super) dots: bool,
    /// Its points, by rising x.
    pub(super) points: Vec<(f64, f64)>,
}

/// A point that is named.
pub(super) struct Mark {
    /// Where, in the axes' units.
    pub(super) x: f64,
    /// Where, in the axes' units.
    pub(super) y: f64,
    /// What it says.
    pub(super) text: String,
}

/// Curves, a line across with its name, and named points.
pub(super) fn curves(
    label: &str,
    height: f64,
    x: &Axis<'_>,
    y: &Axis<'_>,
    curves: &[Curve<'_>],
    across: &(f64, String),
    marks: &[Mark],
) -> String {
    let (width, tall) = (WIDTH - LEFT - RIGHT, height - TOP - BOTTOM);
    let place = |(px, py): (f64, f64)| {
        (LEFT + width * px / x.most, TOP + tall * (1.0 - (py / y.most).min(1.0)))
    };
    let mut svg = open(height, label);
    axes(&mut svg, height, x, y);
    let (_, at) = place((0.0, across.0));
    let _ = writeln!(
        svg,
        "<line class=\"across\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
         <text class=\"note\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        WIDTH - RIGHT,
        WIDTH - RIGHT - 4.0,
        at - 5.0,
        escape(&across.1)
    );
    for curve in curves {
        let points: Vec<_> = curve.points.iter().map(|&point| place(point)).collect();
        let _ = writeln!(
            svg,
            "<path class=\"line {}\" d=\"{}\"><title>{}</title></path>",
            curve.class,
            path(&points),
            escape(curve.name)
        );
        for ((cx, cy), (px, py)) in points.iter().zip(&curve.points).filter(|_| curve.dots) {
            let _ = writeln!(
                svg,
                "<circle class=\"bar {}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3.2\"><title>{}: \
                 {}, {}</title></circle>",
                curve.class,
                escape(curve.name),
                escape(&(x.words)(*px)),
                escape(&(y.words)(*py)),
            );
        }
    }
    // Names above each other where points are close, from the top down.
    let mut lowest = TOP + 14.0;
    let mut marks: Vec<_> = marks.iter().collect();
    marks.sort_by(|a, b| a.x.total_cmp(&b.x));
    for mark in marks {
        let (cx, cy) = place((mark.x, mark.y));
        let right = cx > LEFT + width * 0.6;
        let (tx, anchor) = if right { (cx - 5.0, "end") } else { (cx + 5.0, "start") };
        let _ = writeln!(
            svg,
            "<line class=\"across\" x1=\"{cx:.1}\" x2=\"{cx:.1}\" y1=\"{:.1}\" \
             y2=\"{cy:.1}\"/><circle class=\"mark\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4.5\"/>\
             <text class=\"note\" x=\"{tx:.1}\" y=\"{lowest:.1}\" text-anchor=\"{anchor}\">{}</text>",
            lowest - 10.0,
            escape(&mark.text)
        );
        lowest += 17.0;
    }
    let series: Vec<Series<'_>> = curves
        .iter()
        .map(|curve| Series { name: curve.name, class: curve.class, values: Vec::new() })
        .collect();
    svg + "</svg>\n" + &legend(&series)
}

/// Shares of a whole in one bar.
pub(super) fn shares(label: &str, parts: &[(&str, &str, f64, String)]) -> String {
    const HEIGHT: f64 = 34.0;
    let all: f64 = parts.iter().map(|(_, _, value, _)| value).sum();
    let mut svg = open(HEIGHT, label);
    let mut x = 0.0;
    for (name, class, value, words) in parts {
        let width = if all > 0.0 { WIDTH * value / all } else { 0.0 };
        let _ = writeln!(
            svg,
            "<rect class=\"bar {class}\" x=\"{x:.1}\" y=\"0\" width=\"{width:.1}\" \
             height=\"{HEIGHT}\"><title>{}: {}</title></rect>",
            escape(name),
            escape(words)
        );
        x += width;
    }
    svg + "</svg>\n"
}

/// A table of values as an image: rows downwards, columns over time.
pub(super) struct Grid {
    /// Values from 0 to 255, row by row.
    pub(super) cells: Vec<u8>,
    /// Columns.
    pub(super) columns: usize,
    /// Rows.
    pub(super) rows: usize,
    /// Names of rows: at which row, and what.
    pub(super) names: Vec<(usize, String)>,
}

/// From dark to bright: colours that keep their order for the colour-blind and
/// on paper (the points of the `viridis` map, S. van der Walt and N. Smith, CC0).
const COLOURS: [[u8; 3]; 9] = [
    [68, 1, 84],
    [71, 44, 122],
    [59, 81, 139],
    [44, 113, 142],
    [33, 144, 141],
    [39, 173, 129],
    [92, 200, 99],
    [170, 220, 50],
    [253, 231, 37],
];

/// The colour of each value.
fn palette() -> Vec<u8> {
    let between = |value: usize| -> [u8; 3] {
        let at = value as f64 / 255.0 * (COLOURS.len() - 1) as f64;
        let (from, part) = (at.floor() as usize, at.fract());
        let to = (from + 1).min(COLOURS.len() - 1);
        std::array::from_fn(|c| {
            let (a, b) = (f64::from(COLOURS[from][c]), f64::from(COLOURS[to][c]));
            (a + (b - a) * part).round() as u8
        })
    };
    (0..256).flat_map(between).collect()
}

fn png(grid: &Grid) -> Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, grid.columns as u32, grid.rows as u32);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(palette());
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&grid.cells)?;
    writer.finish()?;
    Ok(bytes)
}

/// A heat map. The image lies in the page itself.
pub(super) fn heat_map(label: &str, grid: &Grid, x: &Axis<'_>, ends: (&str, &str)) -> String {
    const ROW: f64 = 4.0;
    let image = match png(grid) {
        Ok(bytes) if grid.rows > 0 && grid.columns > 0 => STANDARD.encode(bytes),
        _ => return "<p class=\"empty\">nothing to draw</p>\n".to_owned(),
    };
    let left = 150.0;
    let tall = (ROW * grid.rows as f64).clamp(120.0, 420.0);
    let height = tall + TOP + BOTTOM;
    let width = WIDTH - left - RIGHT;
    let mut svg = open(height, label);
    let _ = writeln!(
        svg,
        "<image x=\"{left}\" y=\"{TOP}\" width=\"{width}\" height=\"{tall:.1}\" \
         preserveAspectRatio=\"none\" href=\"data:image/png;base64,{image}\"/>"
    );
    let mut free = f64::MIN;
    for (row, name) in &grid.names {
        let at = TOP + tall * *row as f64 / grid.rows as f64;
        let _ = writeln!(
            svg,
            "<line class=\"border\" x1=\"{left}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
            WIDTH - RIGHT
        );
        if at >= free {
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 6.0,
                at + 10.0,
                escape(name)
            );
            free = at + 12.0;
        }
    }
    for tick in ticks(x.most, 8) {
        let at = left + width * tick / x.most;
        let _ = writeln!(
            svg,
            "<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            height - 8.0,
            escape(&(x.words)(tick)),
        );
    }
    let stops: Vec<_> = COLOURS.iter().map(|[r, g, b]| format!("rgb({r},{g},{b})")).collect();
    let _ = write!(
        svg,
        "</svg>\n<p class=\"legend\"><span>{}</span><i class=\"scale\" \
         style=\"background:linear-gradient(90deg,{})\"></i><span>{}</span></p>\n",
        escape(ends.0),
        stops.join(","),
        escape(ends.1)
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        assert_eq!(ticks(10.0, 4), [0.0, 5.0, 10.0]);
        assert_eq!(ticks(0.7, 4).len(), 4);
        assert_eq!(ticks(0.0, 4), [0.0]);
        assert_eq!(ticks(f64::INFINITY, 4), [0.0]);
    }

    #[test]
    fn a_name_cannot_become_markup() {
        let series = [Series { name: "<script>\"&", class: "a", values: vec![1.0] }];
        let axis = Axis { binary: false, most: 1.0, words: &|value| value.to_string() };

        let svg = lines("x", 100.0, &[0.5], &axis, &axis, &series);

        assert!(!svg.contains("<script>") && svg.contains("&lt;script&gt;&quot;&amp;"), "{svg}");
    }

    #[test]
    fn a_heat_map_without_cells_is_words_and_no_broken_image() {
        let grid = Grid { cells: vec![], columns: 0, rows: 0, names: vec![] };
        let axis = Axis { binary: false, most: 1.0, words: &|value| value.to_string() };

        assert!(heat_map("x", &grid, &axis, ("a", "b")).contains("nothing to draw"));
    }
}
