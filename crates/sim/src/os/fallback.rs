//! In which order a node's processors allocate.
//!
//! Source: `build_zonelists` and `find_next_best_node` in `mm/page_alloc.c`, Linux 6.12: the
//! nearest node first, with a small preference for nodes with a higher number and for nodes
//! without processors, and by turns among nodes that are equally far.

/// `MAX_NUMNODES`: no sum of turns outweighs a step of distance.
const MOST: u64 = 1024;

/// The orders of all nodes, by their places. Nodes without memory are in nobody's, but each
/// node's own list begins with the node itself if it has some.
pub fn orders(distance: &[Vec<u32>], processors: &[bool], memory: &[bool]) -> Vec<Vec<usize>> {
    let count = distance.len();
    let mut turns = vec![0_u64; count];
    let mut all = Vec::with_capacity(count);
    for node in 0..count {
        let mut order: Vec<usize> = Vec::new();
        let mut before = node;
        loop {
            let next = if memory[node] && order.is_empty() {
                Some(node)
            } else {
                let left = (0..count).filter(|other| memory[*other] && !order.contains(other));
                left.filter(|&other| other != node).min_by_key(|&other| {
                    let far = u64::from(distance[node][other])
                        + u64::from(other < node)
                        + u64::from(processors[other]);
                    (far * MOST + turns[other], other)
                })
            };
            let Some(next) = next else { break };
            if distance[node][next] != distance[node][before] {
                turns[next] += 1;
            }
            order.push(next);
            before = next;
        }
        all.push(order);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets (0, 1) and slow memory near each (2 near 1, 3 near 0), as in a guest of ours,
    /// where a stock kernel printed "0 3 1".
    #[test]
    fn near_slow_memory_comes_before_far_dram() {
        let distance = vec![
            vec![10, 21, 28, 17],
            vec![21, 10, 17, 28],
            vec![28, 17, 10, 28],
            vec![17, 28, 28, 10],
        ];
        let processors = [true, true, false, false];
        let orders = orders(&distance, &processors, &[true; 4]);
        assert_eq!(orders[0], [0, 3, 1, 2]);
        assert_eq!(orders[1], [1, 2, 0, 3]);
        let hidden = super::orders(&distance, &processors, &[true, true, false, false]);
        assert_eq!(hidden[0], [0, 1]);
        assert_eq!(hidden[3], [0, 1], "descriptors of hidden memory lie in the nearest DRAM");
    }

    #[test]
    fn equally_far_nodes_are_first_by_turns() {
        let far = |a: usize, b: usize| if a == b { 10 } else { 21 };
        let distance: Vec<Vec<u32>> = (0..4).map(|a| (0..4).map(|b| far(a, b)).collect()).collect();
        let orders = orders(&distance, &[true; 4], &[true; 4]);
        let seconds: Vec<usize> = orders.iter().map(|order| order[1]).collect();
        assert_eq!(orders[0], [0, 1, 2, 3]);
        let mut sorted = seconds.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert!(sorted.len() >= 3, "{seconds:?}");
    }
}
