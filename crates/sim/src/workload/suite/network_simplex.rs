//! The primal network simplex with arcs priced in groups: what 429.mcf does.
//!
//! A transport problem of as many sources as sinks, arcs without upper bounds. Records have the
//! sizes of mcf's (arcs 64 bytes, nodes 104), pricing goes through arcs with its strides (every
//! *n*-th arc is of one group) and keeps a basket of candidates. What an arc is made of is
//! a function of its number, so that a gibibyte of arcs takes no memory here.

use terrace_core::{Bytes, splitmix64};

use crate::exact::Access;
use crate::workload::observed::{Kernel, Observer, Span, Step};

/// Bytes of an arc and of a node: mcf's records on 64-bit machines.
const ARC: u64 = 64;
const NODE: u64 = 104;
/// Arcs for a node. Recalled: some 60 000 nodes in the reference input, and records in 1682 MB.
const ARCS: u64 = 400;
/// Arcs of a group, and candidates that are kept (mcf's K and B).
const GROUP: u64 = 300;
const BASKET: usize = 50;
/// Cost of an arc to the root that stands for what no other arc can carry.
const BIG: i64 = 1 << 40;
const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

/// Places of a node's fields.
mod field {
    pub(super) const POTENTIAL: u64 = 0;
    pub(super) const CHILD: u64 = 16;
    pub(super) const PARENT: u64 = 24;
    pub(super) const SIBLING: u64 = 32;
    pub(super) const SIBLING_BEFORE: u64 = 40;
    pub(super) const ARC: u64 = 48;
    pub(super) const FLOW: u64 = 80;
    pub(super) const DEPTH: u64 = 88;
}

#[derive(Clone, Copy, Debug)]
struct Node {
    potential: i64,
    child: u32,
    parent: u32,
    next: u32,
    before: u32,
    /// The arc to the parent, and whether it leads there.
    arc: u64,
    up: bool,
    flow: i64,
    depth: u32,
}

/// The problem, its spanning tree, and how far it is solved.
pub struct NetworkSimplex {
    arcs: Span,
    records: Span,
    count: u64,
    salt: u64,
    nodes: Vec<Node>,
    basket: Vec<u64>,
    group: u64,
    solved: bool,
}

impl NetworkSimplex {
    /// A problem of about so many bytes.
    pub fn new(size: Bytes, seed: u64, observer: &mut Observer) -> Self {
        let nodes = (size.get() / (ARCS * ARC + NODE)).max(4) / 2 * 2;
        Self::with(nodes as u32, nodes * ARCS, seed, observer)
    }

    fn with(nodes: u32, count: u64, seed: u64, observer: &mut Observer) -> Self {
        let records = observer.allocate((u64::from(nodes) + 1) * NODE);
        let arcs = observer.allocate((count + u64::from(nodes)) * ARC);
        let root = Node {
            potential: 0,
            child: NONE,
            parent: NONE,
            next: NONE,
            before: NONE,
            arc: 0,
            up: false,
            flow: 0,
            depth: 0,
        };
        let mut problem = Self {
            arcs,
            records,
            count,
            salt: splitmix64(seed),
            nodes: vec![root; nodes as usize + 1],
            basket: Vec::new(),
            group: 0,
            solved: false,
        };
        for node in 1..=nodes {
            let up = Self::supply(node) > 0;
            let potential = if up { BIG } else { -BIG };
            let arc = count + u64::from(node) - 1;
            let hung = Node { potential, parent: ROOT, arc, up, flow: 1, depth: 1, ..root };
            problem.nodes[node as usize] = hung;
            problem.hang(node, ROOT);
        }
        problem
    }

    /// One unit leaves each odd node and arrives at each even one.
    fn supply(node: u32) -> i64 {
        if node % 2 == 1 { 1 } else { -1 }
    }

    /// Tail, head and cost of an arc.
    fn arc(&self, arc: u64) -> (u32, u32, i64) {
        let nodes = self.nodes.len() as u64 - 1;
        if arc >= self.count {
            let node = (arc - self.count) as u32 + 1;
            let up = Self::supply(node) > 0;
            return if up { (node, ROOT, BIG) } else { (ROOT, node, BIG) };
        }
        let (one, two) = (splitmix64(arc ^ self.salt), splitmix64(arc.wrapping_add(self.salt)));
        let tail = 1 + (one >> 32) % nodes;
        let head = 1 + (tail - 1 + 1 + (two >> 32) % (nodes - 1)) % nodes;
        (tail as u32, head as u32, 1 + (one & 0xffff) as i64 % 10_000)
    }

    fn load(&self, node: u32, field: u64, observer: &mut Observer) {
        let address = self.records.address(u64::from(node) * NODE + field);
        observer.access(Access::load(address).dependent());
    }

    fn store(&self, node: u32, field: u64, observer: &mut Observer) {
        observer.access(Access::store(self.records.address(u64::from(node) * NODE + field)));
    }

    /// An arc's reduced cost; negative for one that should carry more.
    fn price(&self, arc: u64, observer: &mut Observer) -> i64 {
        let (tail, head, cost) = self.arc(arc);
        // Whether it is basic, its cost, and both ends: fields of one line.
        for at in [24, 0, 8] {
            self.arcs.load(arc * ARC + at, observer);
        }
        self.load(tail, field::POTENTIAL, observer);
        self.arcs.load(arc * ARC + 16, observer);
        self.load(head, field::POTENTIAL, observer);
        observer.work(6);
        cost - self.nodes[tail as usize].potential + self.nodes[head as usize].potential
    }

    /// The arc that enters the tree; `None` if none would lower the cost.
    fn enter(&mut self, observer: &mut Observer) -> Option<u64> {
        let mut best: Option<(i64, u64)> = None;
        let mut kept = std::mem::take(&mut self.basket);
        let consider = |reduced: i64, arc: u64, best: &mut Option<(i64, u64)>| {
            if best.is_none_or(|(least, _)| reduced < least) {
                *best = Some((reduced, arc));
            }
        };
        kept.retain(|&arc| {
            let reduced = self.price(arc, observer);
            if reduced < 0 {
                consider(reduced, arc, &mut best);
            }
            reduced < 0
        });
        let groups = self.count.div_ceil(GROUP).max(1);
        let mut looked = 0;
        while looked < groups && kept.len() < BASKET {
            let mut arc = self.group;
            while arc < self.count {
                let reduced = self.price(arc, observer);
                observer.work(2);
                if reduced < 0 {
                    consider(reduced, arc, &mut best);
                    if kept.len() < BASKET {
                        kept.push(arc);
                    }
                }
                arc += groups;
            }
            self.group = (self.group + 1) % groups;
            looked += 1;
            if best.is_some() {
                break;
            }
        }
        kept.retain(|&arc| best.is_none_or(|(_, entering)| arc != entering));
        self.basket = kept;
        best.map(|(_, arc)| arc)
    }

    fn unhang(&mut self, node: u32, observer: &mut Observer) {
        let Node { next, before, parent, .. } = self.nodes[node as usize];
        self.load(node, field::SIBLING, observer);
        if before == NONE {
            self.nodes[parent as usize].child = next;
            self.store(parent, field::CHILD, observer);
        } else {
            self.nodes[before as usize].next = next;
            self.store(before, field::SIBLING, observer);
        }
        if next != NONE {
            self.nodes[next as usize].before = before;
            self.store(next, field::SIBLING_BEFORE, observer);
        }
    }

    fn hang(&mut self, node: u32, parent: u32) {
        let first = std::mem::replace(&mut self.nodes[parent as usize].child, node);
        if first != NONE {
            self.nodes[first as usize].before = node;
        }
        let hung = &mut self.nodes[node as usize];
        (hung.parent, hung.next, hung.before) = (parent, first, NONE);
    }

    /// One pivot; false when the problem is solved.
    fn pivot(&mut self, observer: &mut Observer) -> bool {
        let Some(entering) = self.enter(observer) else { return false };
        let (tail, head, _) = self.arc(entering);
        // The cycle: both ends up to their common ancestor. The flow goes down where an arc
        // leads from the tail's side up, or down the head's side.
        let (mut delta, mut leaving, mut on_tail) = (i64::MAX, NONE, true);
        let (mut a, mut b) = (tail, head);
        while a != b {
            let is_tail = self.nodes[a as usize].depth >= self.nodes[b as usize].depth;
            let side = if is_tail { &mut a } else { &mut b };
            let node = *side;
            for at in [field::DEPTH, field::FLOW, field::PARENT] {
                self.load(node, at, observer);
            }
            observer.work(6);
            let Node { up, flow, parent, .. } = self.nodes[node as usize];
            if is_tail && up && flow < delta || !is_tail && !up && flow <= delta {
                (delta, leaving, on_tail) = (flow, node, is_tail);
            }
            *side = parent;
        }
        let top = a;
        for (from, is_tail) in [(tail, true), (head, false)] {
            let mut node = from;
            while node != top {
                self.load(node, field::PARENT, observer);
                self.store(node, field::FLOW, observer);
                observer.work(4);
                let at = &mut self.nodes[node as usize];
                at.flow += if at.up == is_tail { -delta } else { delta };
                node = at.parent;
            }
        }
        // What hung on the leaving arc hangs on the entering one.
        let (first, mut parent) = if on_tail { (tail, head) } else { (head, tail) };
        let (mut node, mut arc, mut up, mut flow) = (first, entering, on_tail, delta);
        loop {
            let old = self.nodes[node as usize];
            self.unhang(node, observer);
            self.hang(node, parent);
            for at in [field::PARENT, field::SIBLING, field::ARC, field::FLOW] {
                self.store(node, at, observer);
            }
            self.store(parent, field::CHILD, observer);
            observer.work(8);
            let hung = &mut self.nodes[node as usize];
            (hung.arc, hung.up, hung.flow) = (arc, up, flow);
            if node == leaving {
                break;
            }
            (parent, arc, up, flow) = (node, old.arc, !old.up, old.flow);
            node = old.parent;
        }
        self.renew(first, observer);
        true
    }

    /// Potentials and depths of a subtree anew.
    fn renew(&mut self, first: u32, observer: &mut Observer) {
        let mut node = first;
        loop {
            let Node { parent, arc, up, child, .. } = self.nodes[node as usize];
            let (_, _, cost) = self.arc(arc);
            for at in [field::ARC, field::PARENT, field::CHILD] {
                self.load(node, at, observer);
            }
            observer.access(Access::load(self.arcs.address(arc * ARC)).dependent());
            self.store(node, field::POTENTIAL, observer);
            self.store(node, field::DEPTH, observer);
            observer.work(6);
            let above = self.nodes[parent as usize];
            let at = &mut self.nodes[node as usize];
            at.potential = if up { above.potential + cost } else { above.potential - cost };
            at.depth = above.depth + 1;
            if child != NONE {
                node = child;
                continue;
            }
            while node != first && self.nodes[node as usize].next == NONE {
                self.load(node, field::PARENT, observer);
                node = self.nodes[node as usize].parent;
            }
            if node == first {
                return;
            }
            self.load(node, field::SIBLING, observer);
            node = self.nodes[node as usize].next;
        }
    }
}

impl Kernel for NetworkSimplex {
    fn describe(&self) -> String {
        format!("network simplex, {} nodes and {} arcs", self.nodes.len() - 1, self.count)
    }

    fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
        if self.solved || !self.pivot(observer) {
            self.solved = true;
            return Step::Over;
        }
        Step::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(problem: &NetworkSimplex) -> i64 {
        let hung = problem.nodes.iter().skip(1);
        hung.map(|node| node.flow * problem.arc(node.arc).2).sum()
    }

    /// The least cost by shortest augmenting paths (Bellman and Ford), one unit at a time.
    fn least(problem: &NetworkSimplex) -> i64 {
        let nodes = problem.nodes.len();
        let all = problem.count + nodes as u64 - 1;
        let mut flow = vec![0_i64; all as usize];
        let mut excess: Vec<i64> = (0..nodes as u32)
            .map(|node| if node == ROOT { 0 } else { NetworkSimplex::supply(node) })
            .collect();
        let mut sum = 0;
        while let Some(source) = (1..nodes).find(|&node| excess[node] > 0) {
            let mut far = vec![i64::MAX / 2; nodes];
            let mut by = vec![(0_u64, true); nodes];
            far[source] = 0;
            let mut changed = true;
            while std::mem::take(&mut changed) {
                for arc in 0..all {
                    let (tail, head, cost) = problem.arc(arc);
                    let (tail, head) = (tail as usize, head as usize);
                    if far[tail] + cost < far[head] {
                        (far[head], by[head], changed) = (far[tail] + cost, (arc, true), true);
                    }
                    if flow[arc as usize] > 0 && far[head] - cost < far[tail] {
                        (far[tail], by[tail], changed) = (far[head] - cost, (arc, false), true);
                    }
                }
            }
            let sink = (1..nodes).filter(|&node| excess[node] < 0).min_by_key(|&node| far[node]);
            let sink = sink.expect("as many sinks as sources");
            sum += far[sink];
            let mut node = sink;
            while node != source {
                let (arc, along) = by[node];
                flow[arc as usize] += if along { 1 } else { -1 };
                let (tail, head, _) = problem.arc(arc);
                node = if along { tail as usize } else { head as usize };
            }
            excess[source] -= 1;
            excess[sink] += 1;
        }
        sum
    }

    #[test]
    fn it_ends_at_the_least_cost_with_a_tree_that_carries_it() {
        for (nodes, arcs, seed) in [(8, 40, 1), (20, 60, 2), (40, 900, 3), (30, 20, 4)] {
            let mut observer = Observer::default();
            let mut problem = NetworkSimplex::with(nodes, arcs, seed, &mut observer);
            while problem.step(0, &mut observer) == Step::More {}
            assert_eq!(cost(&problem), least(&problem), "{nodes} nodes, {arcs} arcs");
            let mut leaves: Vec<i64> = vec![0; nodes as usize + 1];
            for node in problem.nodes.iter().skip(1) {
                assert!(node.flow >= 0);
                let (tail, head, _) = problem.arc(node.arc);
                leaves[tail as usize] += node.flow;
                leaves[head as usize] -= node.flow;
            }
            for node in 1..=nodes {
                assert_eq!(leaves[node as usize], NetworkSimplex::supply(node), "node {node}");
            }
        }
    }
}
