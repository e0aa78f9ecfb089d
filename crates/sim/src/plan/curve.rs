//! Slowdown by fast memory, and the knee of such a curve.

use serde::Serialize;
use terrace_core::Bytes;

use crate::analytic::config::SimPolicy;

/// How a curve came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "how", content = "policy")]
pub enum How {
    /// The best placement that never moves a page: misses exact at every size,
    /// time simulated at some and taken to fall with the misses in between.
    BestPlacement,
    /// LRU over pages that are brought in on a fault: exact at every size.
    Lru,
    /// A simulation at each point.
    Simulated(SimPolicy),
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Fast memory, page tables included.
    pub fast: Bytes,
    /// Share of the misses that fast memory serves; of the accesses that do not
    /// fault, for a paged memory. 0 to 1.
    pub share: f64,
    /// The slowdown: 0.05 for 5 %.
    pub slowdown: f64,
}

/// Slowdown by fast memory, by rising amounts of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanCurve {
    /// How it came about.
    #[serde(flatten)]
    pub how: How,
    /// Its points.
    pub points: Vec<Point>,
}

impl PlanCurve {
    /// The point of least fast memory from which on no point is slower than so
    /// much. Policies' curves need not fall everywhere.
    pub fn smallest(&self, slowdown: f64) -> Option<&Point> {
        let beyond = self.points.iter().rposition(|point| point.slowdown > slowdown);
        self.points.get(beyond.map_or(0, |i| i + 1))
    }

    /// The slowdown at any size: on the line between the points beside it.
    pub fn at(&self, fast: Bytes) -> f64 {
        let known = self.points.iter().map(|point| (point.fast.as_f64(), point.slowdown));
        between(&known.collect::<Vec<_>>(), fast.as_f64())
    }
}

/// The value at `x` of a line through points by rising x.
pub(super) fn between(points: &[(f64, f64)], x: f64) -> f64 {
    let next = points.partition_point(|point| point.0 < x);
    match (next.checked_sub(1).map(|i| points[i]), points.get(next)) {
        (Some((x0, y0)), Some(&(x1, y1))) if x1 > x0 => y0 + (y1 - y0) * (x - x0) / (x1 - x0),
        (_, Some(&(_, y))) | (Some((_, y)), None) => y,
        (None, None) => 0.0,
    }
}

/// The knee: the point farthest below the line between the curve's ends, both
/// axes taken from 0 to 1 (Satopää et al., "Finding a Kneedle in a Haystack",
/// 2011, without its smoothing: our curves have no noise). None for a curve
/// that never bends below that line by at least a twentieth.
pub fn knee(points: &[Point]) -> Option<&Point> {
    let (first, last) = (points.first()?, points.last()?);
    let wide = last.fast.as_f64() - first.fast.as_f64();
    let tall = first.slowdown - last.slowdown;
    if wide <= 0.0 || tall <= 0.0 {
        return None;
    }
    let below = |point: &Point| {
        let x = (point.fast.as_f64() - first.fast.as_f64()) / wide;
        let y = (point.slowdown - last.slowdown) / tall;
        1.0 - x - y
    };
    points.iter().max_by(|a, b| below(a).total_cmp(&below(b))).filter(|point| below(point) > 0.05)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(values: &[(u64, f64)]) -> Vec<Point> {
        let point = |&(mib, slowdown)| Point { fast: Bytes::mib(mib), share: 0.0, slowdown };
        values.iter().map(point).collect()
    }

    #[test]
    fn the_knee_of_a_curve_with_one_corner_is_the_corner() {
        let curve = points(&[(0, 1.0), (10, 0.55), (20, 0.1), (60, 0.06), (100, 0.0)]);
        assert_eq!(knee(&curve).map(|point| point.fast), Some(Bytes::mib(20)));
    }

    #[test]
    fn a_straight_line_and_a_flat_one_have_no_knee() {
        assert_eq!(knee(&points(&[(0, 1.0), (50, 0.5), (100, 0.0)])), None);
        assert_eq!(knee(&points(&[(0, 0.0), (100, 0.0)])), None);
        assert_eq!(knee(&[]), None);
    }

    /// A policy that is lucky at one small size must not make that the answer.
    #[test]
    fn the_smallest_is_within_the_bound_and_everything_above_it_too() {
        let curve = PlanCurve {
            how: How::Lru,
            points: points(&[(0, 1.0), (10, 0.04), (20, 0.2), (30, 0.05), (40, 0.0)]),
        };
        assert_eq!(curve.smallest(0.05).map(|p| p.fast), Some(Bytes::mib(30)));
        assert_eq!(curve.smallest(2.0).map(|p| p.fast), Some(Bytes::ZERO));
        assert_eq!(curve.smallest(-1.0), None);
    }
}
