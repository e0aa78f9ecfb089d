//! A simulated operating system: nodes, zones, fallback lists, hotplug.
//!
//! It knows no pages, only amounts: what a policy sees of a real machine is
//! amounts, too. A processor's node allocates by its fallback list, in the order
//! of Linux on a machine whose slow memory is a node of its own near the
//! processor: DRAM of the node, slow memory near it, then the other nodes by
//! distance. Slow memory that is not online is in nobody's list.

use terrace_core::{Bytes, Nanos};

use crate::decision::{Change, Decision};
use crate::policy::Provisioner;
use crate::rotation::Rotation;
use crate::view::{NodeId, NodeView, Watermarks};

/// What a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSetup {
    /// The node.
    pub node: NodeId,
    /// Its DRAM.
    pub dram: Bytes,
    /// Slow memory near it.
    pub slow: Bytes,
    /// The part of the slow memory that is online from the start.
    pub online: Bytes,
}

/// Where an amount lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// DRAM of a node.
    Dram(NodeId),
    /// Slow memory near a node.
    Slow(NodeId),
}

/// Memory of one owner, by place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    parts: Vec<(Place, Bytes)>,
}

impl Holding {
    /// The amount in places of a kind.
    pub fn amount(&self, is: impl Fn(Place) -> bool) -> Bytes {
        self.parts.iter().filter(|(place, _)| is(*place)).map(|(_, amount)| *amount).sum()
    }

    /// All of it.
    pub fn total(&self) -> Bytes {
        self.amount(|_| true)
    }

    fn add(&mut self, place: Place, amount: Bytes) {
        match self.parts.iter_mut().find(|(at, _)| *at == place) {
            Some((_, held)) => *held += amount,
            None => self.parts.push((place, amount)),
        }
    }

    /// Takes up to `amount` away from a place; how much it was.
    fn take(&mut self, place: Place, amount: Bytes) -> Bytes {
        let Some((_, held)) = self.parts.iter_mut().find(|(at, _)| *at == place) else {
            return Bytes::ZERO;
        };
        let taken = amount.min(*held);
        *held -= taken;
        taken
    }
}

/// Names an owner of memory: a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnerId(pub usize);

#[derive(Clone, Debug)]
struct Node {
    setup: NodeSetup,
    online: Bytes,
    dram_used: Bytes,
    slow_used: Bytes,
    /// Nearest first, itself included.
    order: Vec<usize>,
    watermarks: Watermarks,
}

#[derive(Clone, Debug)]
struct Owner {
    node: usize,
    holding: Holding,
}

/// Nodes and their memory, and who holds it.
#[derive(Clone, Debug)]
pub struct System {
    nodes: Vec<Node>,
    owners: Vec<Owner>,
    block: Bytes,
    rotation: Rotation,
    now: Nanos,
}

/// Watermarks of a node with so much memory, by the kernel's formula.
///
/// `min` is 4 · √(lowmem in KiB) KiB, between 128 KiB and 256 MiB (`init_per_zone_wmark_min`);
/// the step to `low` and to `high` is the larger of a quarter of `min` and a thousandth of the
/// memory (`__setup_per_zone_wmarks` with `watermark_scale_factor` 10).
pub fn watermarks(memory: Bytes) -> Watermarks {
    let kib = (memory.0 / 1024 * 16).isqrt().clamp(128, 262_144);
    let min = Bytes::kib(kib);
    let step = (min / 4).max(memory / 1000);
    Watermarks { min, low: min + step, high: min + step + step }
}

/// Watermarks of a node with `to` of memory, where one with `from` has these: `min` grows as the
/// kernel's formula does, the steps above it with the memory, as far as they are more than the
/// formula's least.
pub fn scaled_watermarks(marks: Watermarks, from: Bytes, to: Bytes) -> Watermarks {
    if from == to || from.is_zero() {
        return marks;
    }
    let (known, wanted) = (watermarks(from), watermarks(to));
    let min = Bytes::from_f64(marks.min.as_f64() * (wanted.min / known.min));
    let share = to / from;
    let step = |step: Bytes| {
        let linear = Bytes::from_f64(step.as_f64() * share);
        // A quarter of `min` hides a smaller share of the memory: then it is the kernel's default.
        let linear = if step > marks.min / 4 { linear } else { linear.min(to / 1000) };
        linear.max(min / 4)
    };
    let low = min + step(marks.low - marks.min);
    Watermarks { min, low, high: low + step(marks.high - marks.low) }
}

impl System {
    /// A machine on which nothing runs yet. `distance(a, b)` is the firmware's table.
    pub fn new(
        setups: &[NodeSetup],
        block: Bytes,
        distance: impl Fn(NodeId, NodeId) -> u32,
    ) -> Self {
        let order = |of: NodeId| {
            let mut order: Vec<usize> = (0..setups.len()).collect();
            order.sort_by_key(|&other| {
                let other = setups[other].node;
                (other != of, distance(of, other))
            });
            order
        };
        let node = |setup: &NodeSetup| Node {
            setup: *setup,
            online: setup.online,
            dram_used: Bytes::ZERO,
            slow_used: Bytes::ZERO,
            order: order(setup.node),
            watermarks: watermarks(setup.dram),
        };
        Self {
            nodes: setups.iter().map(node).collect(),
            owners: Vec::new(),
            block,
            rotation: Rotation::new(setups.iter().map(|setup| setup.node).collect()),
            now: Nanos::ZERO,
        }
    }

    fn index(&self, node: NodeId) -> usize {
        let at = self.nodes.iter().position(|other| other.setup.node == node);
        at.expect("a node of this system")
    }

    /// Changes what a node's kernel keeps free.
    pub fn set_watermarks(&mut self, node: NodeId, watermarks: Watermarks) {
        let at = self.index(node);
        self.nodes[at].watermarks = watermarks;
    }

    /// The time on its clock.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Lets time pass.
    pub fn advance(&mut self, by: Nanos) {
        self.now += by;
    }

    /// A process that runs on a node's processors and has no memory yet.
    pub fn owner(&mut self, node: NodeId) -> OwnerId {
        let node = self.index(node);
        self.owners.push(Owner { node, holding: Holding::default() });
        OwnerId(self.owners.len() - 1)
    }

    /// What a process holds.
    pub fn holding(&self, owner: OwnerId) -> &Holding {
        &self.owners[owner.0].holding
    }

    fn free_at(&self, place: Place) -> Bytes {
        match place {
            Place::Dram(node) => {
                let node = &self.nodes[self.index(node)];
                node.setup.dram - node.dram_used
            }
            Place::Slow(node) => {
                let node = &self.nodes[self.index(node)];
                node.online - node.slow_used
            }
        }
    }

    fn used_at(&mut self, place: Place) -> &mut Bytes {
        match place {
            Place::Dram(node) => {
                let at = self.index(node);
                &mut self.nodes[at].dram_used
            }
            Place::Slow(node) => {
                let at = self.index(node);
                &mut self.nodes[at].slow_used
            }
        }
    }

    /// A node's fallback list.
    fn fallback(&self, node: usize) -> Vec<Place> {
        let order = self.nodes[node].order.iter();
        order
            .map(|&other| self.nodes[other].setup.node)
            .flat_map(|node| [Place::Dram(node), Place::Slow(node)])
            .collect()
    }

    /// Gives a process memory by its node's fallback list; how much could not be had.
    pub fn allocate(&mut self, owner: OwnerId, amount: Bytes) -> Bytes {
        let places = self.fallback(self.owners[owner.0].node);
        self.allocate_from(owner, amount, &places)
    }

    fn allocate_from(&mut self, owner: OwnerId, amount: Bytes, places: &[Place]) -> Bytes {
        let mut left = amount;
        for &place in places {
            let taken = left.min(self.free_at(place));
            if taken.is_zero() {
                continue;
            }
            *self.used_at(place) += taken;
            self.owners[owner.0].holding.add(place, taken);
            left -= taken;
        }
        left
    }

    /// Gives a process memory near its node; how much could not be had there.
    pub fn allocate_near(&mut self, owner: OwnerId, amount: Bytes) -> Bytes {
        let node = self.nodes[self.owners[owner.0].node].setup.node;
        self.allocate_from(owner, amount, &[Place::Dram(node), Place::Slow(node)])
    }

    /// Takes memory from a process: what lies farthest leaves first.
    pub fn free(&mut self, owner: OwnerId, amount: Bytes) {
        let mut left = amount;
        for place in self.fallback(self.owners[owner.0].node).into_iter().rev() {
            let taken = self.owners[owner.0].holding.take(place, left);
            let used = self.used_at(place);
            *used -= taken;
            left -= taken;
        }
    }

    /// What a policy is told about a node.
    pub fn view(&self, node: NodeId) -> NodeView {
        let Node { setup, online, dram_used, slow_used, watermarks, .. } =
            &self.nodes[self.index(node)];
        NodeView {
            node,
            now: self.now,
            dram: setup.dram,
            dram_free: setup.dram - *dram_used,
            integrated: *online,
            integrated_free: *online - *slow_used,
            hidden: setup.slow - *online,
            block: self.block,
            watermarks: *watermarks,
        }
    }

    /// Has a policy look at each node, and does what it decides.
    pub fn tick(&mut self, policy: &mut dyn Provisioner) -> Vec<Decision> {
        let turn: Vec<NodeId> = self.rotation.turn().collect();
        let mut decisions = Vec::new();
        for node in turn {
            let decision = policy.tick(&self.view(node));
            match decision.change {
                Change::Integrate(amount) => {
                    let at = self.index(node);
                    let node = &mut self.nodes[at];
                    node.online = (node.online + amount).min(node.setup.slow);
                }
                Change::Remove(amount) => self.remove(node, amount),
                Change::Nothing => {}
            }
            decisions.push(decision);
        }
        decisions
    }

    /// Takes slow memory offline. What is used of it moves into the node's DRAM; as much as
    /// finds no room there stays online.
    fn remove(&mut self, node: NodeId, amount: Bytes) {
        let at = self.index(node);
        let free = self.free_at(Place::Slow(node));
        let mut moved = amount.saturating_sub(free).min(self.free_at(Place::Dram(node)));
        let gone = amount.min(free + moved).min(self.nodes[at].online);
        self.nodes[at].online -= gone;
        self.nodes[at].dram_used += moved;
        self.nodes[at].slow_used -= moved;
        for owner in &mut self.owners {
            let taken = owner.holding.take(Place::Slow(node), moved);
            if !taken.is_zero() {
                owner.holding.add(Place::Dram(node), taken);
                moved -= taken;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::PolicyKind;

    fn two() -> System {
        let setup = |node, online| NodeSetup {
            node: NodeId(node),
            dram: Bytes::gib(4),
            slow: Bytes::gib(8),
            online: Bytes::gib(online),
        };
        let far = |a: NodeId, b: NodeId| if a == b { 10 } else { 21 };
        System::new(&[setup(0, 2), setup(1, 0)], Bytes::mib(128), far)
    }

    #[test]
    fn memory_is_taken_near_before_far_and_given_back_far_before_near() {
        let mut system = two();
        let owner = system.owner(NodeId(0));
        assert_eq!(system.allocate(owner, Bytes::gib(7)), Bytes::ZERO);
        let at = |system: &System, place| system.holding(owner).amount(|other| other == place);
        assert_eq!(at(&system, Place::Dram(NodeId(0))), Bytes::gib(4));
        assert_eq!(at(&system, Place::Slow(NodeId(0))), Bytes::gib(2));
        assert_eq!(at(&system, Place::Dram(NodeId(1))), Bytes::gib(1));
        system.free(owner, Bytes::gib(2));
        assert_eq!(at(&system, Place::Dram(NodeId(1))), Bytes::ZERO);
        assert_eq!(at(&system, Place::Slow(NodeId(0))), Bytes::gib(1));
        assert_eq!(system.allocate(owner, Bytes::gib(10)), Bytes::gib(5), "what is not online");
    }

    #[test]
    fn the_kernel_s_watermarks_of_a_known_machine() {
        // A zone of 16 GiB has min 16 MiB (16,384 KiB) by the formula's square root.
        let marks = watermarks(Bytes::gib(16));
        assert_eq!(marks.min, Bytes::mib(16));
        assert_eq!(marks.low - marks.min, Bytes::gib(16) / 1000);
        assert_eq!(watermarks(Bytes::gib(1 << 30)).min, Bytes::mib(256));
    }

    #[test]
    fn watermarks_of_another_size_follow_the_kernel_s_formula() {
        let near =
            |a: Bytes, b: Bytes| a.as_f64().max(b.as_f64()) <= 1.01 * a.as_f64().min(b.as_f64());
        for (from, to) in [(8, 24), (24, 8), (64, 16), (16, 1024), (4, 4)] {
            let (from, to) = (Bytes::gib(from), Bytes::gib(to));
            let (scaled, wanted) = (scaled_watermarks(watermarks(from), from, to), watermarks(to));
            let pairs =
                [(scaled.min, wanted.min), (scaled.low, wanted.low), (scaled.high, wanted.high)];
            assert!(pairs.iter().all(|&(a, b)| near(a, b)), "{from} to {to}: {pairs:?}");
        }
        // `watermark_scale_factor` of 500 is a twentieth of whatever there is.
        let gib = Bytes::gib(1);
        let marks = Watermarks { min: Bytes::mib(16), low: gib, high: gib + gib };
        let doubled = scaled_watermarks(marks, Bytes::gib(20), Bytes::gib(40));
        assert!(near(doubled.high - doubled.low, gib * 2), "{doubled:?}");
    }

    proptest! {
        /// Whatever is allocated, freed and changed, each place holds what its owners hold, and
        /// never more than it has.
        #[test]
        fn books_agree(
            steps in prop::collection::vec((0_usize..4, 0_u64..6000, any::<bool>()), 1..80),
            kind in prop::sample::select(PolicyKind::ALL.to_vec()),
        ) {
            let mut system = two();
            let owners = [0, 1, 0, 1].map(|node| system.owner(NodeId(node)));
            let mut policy = kind.build();
            for (owner, mib, frees) in steps {
                if frees {
                    system.free(owners[owner], Bytes::mib(mib));
                } else {
                    system.allocate(owners[owner], Bytes::mib(mib));
                }
                system.advance(Nanos::seconds(7));
                system.tick(policy.as_mut());
                for node in [NodeId(0), NodeId(1)] {
                    let held = |place| -> Bytes {
                        owners.iter().map(|&o| system.holding(o).amount(|p| p == place)).sum()
                    };
                    let state = &system.nodes[system.index(node)];
                    prop_assert_eq!(held(Place::Dram(node)), state.dram_used);
                    prop_assert_eq!(held(Place::Slow(node)), state.slow_used);
                    prop_assert!(state.dram_used <= state.setup.dram);
                    prop_assert!(state.slow_used <= state.online);
                    prop_assert!(state.online <= state.setup.slow);
                }
            }
        }
    }
}
