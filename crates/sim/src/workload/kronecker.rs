//! Kronecker graphs as Graph500 generates them: few vertices with very many
//! edges, most with few, labels in random order.

use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::SimRng;
use super::updates::below;

/// Edges a vertex, before each is entered in both directions: Graph500's.
pub const EDGE_FACTOR: u64 = 16;

/// A graph by rows: the neighbours of vertex `v` are
/// `targets[offsets[v]..offsets[v + 1]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// Where the neighbours of each vertex begin, and where the last's end.
    pub offsets: Vec<u64>,
    /// Neighbours.
    pub targets: Vec<u32>,
}

impl Graph {
    /// A graph of 2^`scale` vertices, undirected: every edge stands in both
    /// rows. Self-loops and multiple edges stay, as in Graph500's edge list.
    pub fn kronecker(scale: u32, seed: u64) -> Self {
        let vertices = 1u64 << scale;
        let edges = vertices * EDGE_FACTOR;
        let mut rng = SimRng::seed_from_u64(seed);
        let mut labels: Vec<u32> = (0..vertices as u32).collect();
        for i in (1..labels.len()).rev() {
            labels.swap(i, below(&mut rng, i as u64 + 1) as usize);
        }
        let mut pairs = Vec::with_capacity(edges as usize);
        let mut offsets = vec![0u64; vertices as usize + 1];
        for _ in 0..edges {
            let (mut from, mut to) = (0usize, 0usize);
            for _ in 0..scale {
                // Quadrants with probabilities A = 0.57, B = C = 0.19.
                let dice = rng.next_u64() >> 40;
                let share = |part: f64| (part * (1u64 << 24) as f64) as u64;
                let (a, b, c) = (share(0.57), share(0.76), share(0.95));
                let (down, right) = (dice >= b, (a..b).contains(&dice) || dice >= c);
                from = from << 1 | usize::from(down);
                to = to << 1 | usize::from(right);
            }
            let (from, to) = (labels[from], labels[to]);
            pairs.push((from, to));
            offsets[from as usize + 1] += 1;
            offsets[to as usize + 1] += 1;
        }
        for v in 1..offsets.len() {
            offsets[v] += offsets[v - 1];
        }
        let mut next = offsets.clone();
        let mut targets = vec![0u32; 2 * edges as usize];
        for (from, to) in pairs {
            for (a, b) in [(from, to), (to, from)] {
                let place = &mut next[a as usize];
                targets[*place as usize] = b;
                *place += 1;
            }
        }
        Self { offsets, targets }
    }

    /// The largest scale whose graph takes at most so many bytes, at so many
    /// bytes a vertex and a directed edge.
    pub fn scale_within(bytes: u64, vertex: u64, edge: u64) -> u32 {
        let each = vertex + 2 * EDGE_FACTOR * edge;
        (bytes / each).max(2).ilog2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_edge_stands_in_both_rows_and_few_vertices_have_most() {
        let graph = Graph::kronecker(10, 7);
        let degree = |v: usize| graph.offsets[v + 1] - graph.offsets[v];
        let row = |v: usize| &graph.targets[graph.offsets[v] as usize..][..degree(v) as usize];
        assert_eq!(graph.targets.len(), 2 * 16 * 1024);
        for v in 0..1024 {
            for &w in row(v) {
                assert!(row(w as usize).contains(&(v as u32)), "{w} does not know {v}");
            }
        }
        let mut degrees: Vec<u64> = (0..1024).map(degree).collect();
        degrees.sort_unstable();
        let top: u64 = degrees[1024 - 102..].iter().sum();
        assert!(top * 2 > 2 * 16 * 1024, "a tenth of the vertices has {top} of 32768 ends");
    }
}
