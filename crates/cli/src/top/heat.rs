//! The heat map: address downwards, time to the right.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::widgets::{Block, Widget};
use terrace_core::Bytes;
use terrace_live::stats::process_page::PARTS;

use super::draw::DIM;
use super::history::RegionKey;

/// A heat map of regions, a column a look.
pub(super) struct HeatMap<'a> {
    /// What it shows.
    pub(super) title: &'a str,
    /// The regions that there are, with their lengths.
    pub(super) regions: Vec<(RegionKey, Bytes)>,
    /// How many looks there were.
    pub(super) columns: usize,
    /// The largest value that there can be.
    pub(super) most: u32,
    /// The value of a row at a look; `None` where nothing is.
    pub(super) value: &'a dyn Fn(usize, &MapRow) -> Option<u32>,
}

/// Cells of the axis that names addresses.
const AXIS: u16 = 14;

impl Widget for HeatMap<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let block = Block::bordered().title(self.title);
        let inside = block.inner(area);
        block.render(area, buffer);
        if inside.width <= AXIS || inside.height == 0 {
            return;
        }
        let rows = rows(self.regions, usize::from(inside.height));
        let skip = self.columns.saturating_sub(usize::from(inside.width - AXIS));
        let mut named = None;
        for (y, row) in (inside.y..).zip(&rows) {
            if named != Some(row.key) {
                named = Some(row.key);
                buffer.set_string(inside.x, y, format!("{:x}", row.key.1), DIM);
            }
            for (x, column) in (inside.x + AXIS..).zip(skip..self.columns) {
                let Some(value) = (self.value)(column, row) else { continue };
                let heat = shade(value, self.most.max(1));
                if let Some(cell) = buffer.cell_mut((x, y)) {
                    cell.set_symbol(heat.0).set_fg(heat.1);
                }
            }
        }
    }
}

/// Which parts of which region a row stands for.
pub(super) struct MapRow {
    /// The region.
    pub(super) key: RegionKey,
    /// Its length.
    pub(super) length: Bytes,
    /// The first of its parts.
    pub(super) from: usize,
    /// The one behind the last.
    pub(super) to: usize,
}

/// Shares the rows out among the largest regions, by size, in the order of
/// their addresses.
fn rows(mut regions: Vec<(RegionKey, Bytes)>, height: usize) -> Vec<MapRow> {
    regions.sort_by_key(|&(key, length)| (std::cmp::Reverse(length), key));
    regions.truncate(height);
    regions.sort_by_key(|&(key, _)| key);
    let all: u64 = regions.iter().map(|(_, length)| length.get()).sum();
    let spare = height - regions.len();
    let mut given = 0;
    let mut seen = 0;
    let mut rows = Vec::with_capacity(height);
    for (key, length) in regions {
        // One row each, and of the others as many as its size is due.
        seen += length.get();
        let due = (spare as u128 * u128::from(seen) / u128::from(all.max(1))) as usize;
        let n = (1 + due - given).min(PARTS);
        given = due;
        rows.extend((0..n).map(|i| MapRow {
            key,
            length,
            from: PARTS * i / n,
            to: (PARTS * (i + 1) / n).max(PARTS * i / n + 1),
        }));
    }
    rows
}

/// How a value looks, beside the largest: by a symbol too, for terminals
/// without colours.
fn shade(value: u32, most: u32) -> (&'static str, Color) {
    if value == 0 {
        return ("·", Color::DarkGray);
    }
    // The square root, so that a little is seen beside a lot.
    let level = (f64::from(value) / f64::from(most)).sqrt();
    match (level * 4.0).ceil() as u32 {
        0 | 1 => ("░", Color::Blue),
        2 => ("▒", Color::Cyan),
        3 => ("▓", Color::Yellow),
        _ => ("█", Color::Red),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_every_region_is_in_the_map_once() {
        let large = (7, 0x1200_0000_0000);
        for height in [1, 2, 3, 7, 20, 33] {
            let regions = vec![(large, Bytes::mib(128)), ((7, 0x1200_0a00_0000), Bytes::mib(8))];

            let rows = rows(regions, height);

            assert!(rows.len() <= height, "{} rows in {height}", rows.len());
            let largest: Vec<_> = rows.iter().filter(|row| row.key == large).collect();
            assert_eq!((largest[0].from, largest[largest.len() - 1].to), (0, PARTS));
            assert!(largest.windows(2).all(|w| w[0].to == w[1].from), "gaps at {height}");
        }
    }
}
