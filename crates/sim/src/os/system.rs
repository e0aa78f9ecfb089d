//! Zones, blocks, processes: allocation, and memory that is given back.
//!
//! An allocation goes through the zones of the fallback list twice, as Linux does: first each
//! zone gives what it has above its watermark `low`; only when none has, each gives what it has
//! above `min`. What still finds no room ends a process (there is no swap). Pages of programs
//! prefer the movable zone of a node to its other one; objects of the kernel never lie in a
//! movable zone. Each 512 pages of a process take a page table, which is such an object.

use std::collections::BTreeSet;

use serde::Serialize;
use terrace_core::{Bytes, Nanos, Pages};
use terrace_provision::view::Watermarks;
use terrace_provision::{Block, BlockState, NodeId, NodeView, Pool};

use super::fallback;
use super::setup::{Setup, ZoneKind};
use super::watermarks::{self, Marks};
use crate::error::SimError;

/// A base page.
pub const PAGE: Bytes = Bytes::kib(4);
/// Pages that a page table maps.
const TABLE: u64 = 512;
/// Zones of a node: for anything, and movable.
pub(super) const ZONES: [ZoneKind; 2] = [ZoneKind::Normal, ZoneKind::Movable];

/// Names a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ProcessId(pub usize);

/// Pages that lie in one block, in the order in which they were touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of the block.
    pub block: usize,
    /// How many pages.
    pub pages: u64,
}

/// Nothing was left in any zone that the allocation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: {pages} pages of {what} found no room")]
pub struct OutOfMemory {
    /// What found no room.
    pub what: &'static str,
    /// How much of it.
    pub pages: u64,
}

/// A zone of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Zone {
    pub(super) managed: u64,
    pub(super) free: u64,
    pub(super) marks: Marks,
    /// Its blocks with free pages.
    pub(super) open: BTreeSet<usize>,
}

/// A block of memory.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    /// Place of its node.
    pub(super) node: usize,
    /// Its zone while it is online.
    pub(super) zone: Option<ZoneKind>,
    /// Pages that can be allocated while it is online.
    pub(super) usable: u64,
    pub(super) free: u64,
    /// Pages of it that hold objects of the kernel.
    pub(super) kernel: u64,
    /// Where its page descriptors lie, if that is in other blocks.
    pub(super) descriptors: Vec<Run>,
}

#[derive(Clone, Debug)]
pub(super) struct Process {
    /// Place of the node whose processors run it.
    pub(super) node: usize,
    /// Places of nodes that it may use, a bit each (`cpuset.mems`).
    pub(super) allowed: u64,
    pub(super) pages: Vec<Run>,
    pub(super) tables: Vec<Run>,
    pub(super) held: u64,
}

/// A machine's memory, and who holds it.
#[derive(Clone, Debug)]
pub struct System {
    pub(super) setup: Setup,
    pub(super) zones: Vec<[Zone; 2]>,
    pub(super) blocks: Vec<Frames>,
    /// Slow memory by node, for the choice of blocks.
    pub(super) pools: Vec<Pool>,
    /// For each node the places of nodes in its fallback list.
    pub(super) orders: Vec<Vec<usize>>,
    pub(super) processes: Vec<Process>,
    /// Pages that were demoted.
    pub(super) demoted: u64,
    pub(super) now: Nanos,
}

/// Which pages an allocation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// A program.
    Program,
    /// The kernel.
    Kernel,
}

impl System {
    /// A machine that was booted, on which nothing runs.
    pub fn new(setup: Setup) -> Result<Self, SimError> {
        setup.check()?;
        let nodes = setup.nodes.len();
        let mut system = Self {
            zones: vec![Default::default(); nodes],
            blocks: Vec::new(),
            pools: Vec::new(),
            orders: vec![Vec::new(); nodes],
            processes: Vec::new(),
            demoted: 0,
            now: Nanos::ZERO,
            setup,
        };
        let size = system.setup.block.get() / PAGE.get();
        let count = |amount: Bytes, block: Bytes| (amount.get() / block.get()) as usize;
        for at in 0..nodes {
            let node = system.setup.nodes[at];
            let (booted, hidden) =
                (count(node.booted, system.setup.block), count(node.hidden, system.setup.block));
            let frames = Frames {
                node: at,
                zone: None,
                usable: size,
                free: 0,
                kernel: 0,
                descriptors: Vec::new(),
            };
            for _ in 0..booted {
                system.blocks.push(frames.clone());
                system.open(system.blocks.len() - 1, ZoneKind::Normal);
            }
            if hidden > 0 {
                let first = system.blocks.len();
                system.blocks.resize(first + hidden, frames);
                let distance = system.setup.nodes.iter().enumerate();
                system.pools.push(Pool {
                    name: format!("slow memory of {}", node.node),
                    target_node: node.node,
                    distance: distance
                        .filter(|(_, from)| from.processors > 0)
                        .map(|(from, setup)| (setup.node, system.setup.distance[from][at]))
                        .collect(),
                    block: system.setup.block,
                    blocks: (first..first + hidden)
                        .map(|number| Block { number: number as u64, state: BlockState::Hidden })
                        .collect(),
                });
            }
        }
        system.rebuild();
        // Page descriptors of what was booted, and what else the kernel holds of it.
        for at in 0..nodes {
            let booted = system.setup.nodes[at].booted;
            if booted.is_zero() {
                continue;
            }
            let held = super::costs::descriptors(booted, system.setup.page_descriptor)
                + system.setup.kernel;
            let mut runs = Vec::new();
            let left = system.take(at, u64::MAX, For::Kernel, pages_of(held), &mut runs);
            if left > 0 {
                let message = format!("{} has no room for the kernel", system.setup.nodes[at].node);
                return Err(SimError::parameter("nodes", message));
            }
        }
        Ok(system)
    }

    /// How it was set up.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The time on its clock.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Lets time pass.
    pub fn advance(&mut self, to: Nanos) {
        self.now = self.now.max(to);
    }

    /// Makes a block part of a zone, all of it free.
    pub(super) fn open(&mut self, block: usize, zone: ZoneKind) {
        let frames = &mut self.blocks[block];
        frames.zone = Some(zone);
        frames.free = frames.usable;
        let zone = &mut self.zones[frames.node][zone as usize];
        zone.managed += frames.usable;
        zone.free += frames.usable;
        if frames.usable > 0 {
            zone.open.insert(block);
        }
    }

    /// Watermarks and fallback lists anew: memory came or went.
    pub(super) fn rebuild(&mut self) {
        let all: Vec<(ZoneKind, Pages)> = self
            .zones
            .iter()
            .flat_map(|zones| ZONES.map(|kind| (kind, Pages(zones[kind as usize].managed))))
            .collect();
        let marks = watermarks::marks(&all, self.setup.marks);
        for (zones, marks) in self.zones.iter_mut().zip(marks.chunks(2)) {
            for (zone, marks) in zones.iter_mut().zip(marks) {
                zone.marks = *marks;
            }
        }
        let processors: Vec<bool> =
            self.setup.nodes.iter().map(|node| node.processors > 0).collect();
        let memory: Vec<bool> =
            self.zones.iter().map(|zones| zones.iter().any(|zone| zone.managed > 0)).collect();
        self.orders = fallback::orders(&self.setup.distance, &processors, &memory);
    }

    /// The zones that an allocation goes through, in order.
    pub(super) fn zonelist(&self, node: usize, allowed: u64, what: For) -> Vec<(usize, ZoneKind)> {
        let kinds: &[ZoneKind] = match what {
            For::Program => &[ZoneKind::Movable, ZoneKind::Normal],
            For::Kernel => &[ZoneKind::Normal],
        };
        let nodes = self.orders[node].iter().filter(|&&other| allowed >> other & 1 == 1);
        nodes.flat_map(|&other| kinds.iter().map(move |&kind| (other, kind))).collect()
    }

    /// Takes pages by a node's fallback list; how many found no room.
    pub(super) fn take(
        &mut self,
        node: usize,
        allowed: u64,
        what: For,
        pages: u64,
        runs: &mut Vec<Run>,
    ) -> u64 {
        let list = self.zonelist(node, allowed, what);
        let mut left = self.take_above(&list, |marks| marks.low, what, pages, runs);
        if left > 0 && self.setup.demotion {
            self.demote(&list, left);
        }
        if left > 0 {
            left = self.take_above(&list, |marks| marks.min, what, left, runs);
        }
        left
    }

    /// Takes pages for programs, only above the watermark `low`; how many found no room.
    pub(super) fn take_above_low(
        &mut self,
        node: usize,
        allowed: u64,
        pages: u64,
        runs: &mut Vec<Run>,
    ) -> u64 {
        let list = self.zonelist(node, allowed, For::Program);
        self.take_above(&list, |marks| marks.low, For::Program, pages, runs)
    }

    fn take_above(
        &mut self,
        list: &[(usize, ZoneKind)],
        mark: fn(&Marks) -> Pages,
        what: For,
        pages: u64,
        runs: &mut Vec<Run>,
    ) -> u64 {
        let mut left = pages;
        for &(at, kind) in list {
            let zone = &self.zones[at][kind as usize];
            let some = left.min(zone.free.saturating_sub(mark(&zone.marks).0));
            left -= self.take_of(at, kind, what, some, runs);
        }
        left
    }

    /// Takes pages of one zone, which has them; lowest block first.
    fn take_of(
        &mut self,
        node: usize,
        kind: ZoneKind,
        what: For,
        pages: u64,
        runs: &mut Vec<Run>,
    ) -> u64 {
        let mut left = pages;
        while left > 0 {
            let zone = &mut self.zones[node][kind as usize];
            let Some(&block) = zone.open.first() else { break };
            let frames = &mut self.blocks[block];
            let some = left.min(frames.free);
            frames.free -= some;
            zone.free -= some;
            if what == For::Kernel {
                frames.kernel += some;
            }
            if frames.free == 0 {
                zone.open.remove(&block);
            }
            push(runs, Run { block, pages: some });
            left -= some;
        }
        pages - left
    }

    /// Gives pages back.
    pub(super) fn give(&mut self, runs: &[Run], what: For) {
        for run in runs.iter().filter(|run| run.pages > 0) {
            let frames = &mut self.blocks[run.block];
            let kind = frames.zone.expect("pages lie in blocks that are online");
            frames.free += run.pages;
            if what == For::Kernel {
                frames.kernel -= run.pages;
            }
            let zone = &mut self.zones[frames.node][kind as usize];
            zone.free += run.pages;
            zone.open.insert(run.block);
        }
    }

    /// A process that runs on a node's processors and may use the memory of some nodes (of all,
    /// if none is named). It has none yet.
    pub fn process(&mut self, node: NodeId, allowed: &[NodeId]) -> ProcessId {
        let place = |node| self.setup.place(node).expect("a node of this machine");
        let bits = allowed.iter().fold(0_u64, |bits, &node| bits | 1 << place(node));
        let allowed = if allowed.is_empty() { u64::MAX } else { bits };
        let node = place(node);
        let (pages, tables) = (Vec::new(), Vec::new());
        self.processes.push(Process { node, allowed, pages, tables, held: 0 });
        ProcessId(self.processes.len() - 1)
    }

    /// A process touches pages for the first time.
    ///
    /// # Errors
    ///
    /// Where not all of them find room. The process keeps what it got; the caller decides who
    /// ends.
    pub fn touch(&mut self, process: ProcessId, pages: Pages) -> Result<(), OutOfMemory> {
        let Process { node, allowed, held, .. } = self.processes[process.0];
        let has: u64 = self.processes[process.0].tables.iter().map(|run| run.pages).sum();
        let tables = (held + pages.0).div_ceil(TABLE).saturating_sub(has);
        let mut runs = std::mem::take(&mut self.processes[process.0].tables);
        let left = self.take(node, allowed, For::Kernel, tables, &mut runs);
        self.processes[process.0].tables = runs;
        if left > 0 {
            return Err(OutOfMemory { what: "page tables", pages: left });
        }
        // Apart from the process's own, which demotion may change meanwhile.
        let mut runs = Vec::new();
        let left = self.take(node, allowed, For::Program, pages.0, &mut runs);
        let process = &mut self.processes[process.0];
        process.held += pages.0 - left;
        extend(&mut process.pages, runs);
        if left > 0 {
            return Err(OutOfMemory { what: "a program", pages: left });
        }
        Ok(())
    }

    /// A process gives back pages, those first that it touched last, with their page tables.
    pub fn free(&mut self, process: ProcessId, pages: Pages) {
        let process = &mut self.processes[process.0];
        let gone = pages.0.min(process.held);
        process.held -= gone;
        let pages = cut(&mut process.pages, gone);
        let has: u64 = process.tables.iter().map(|run| run.pages).sum();
        let tables = cut(&mut process.tables, has - process.held.div_ceil(TABLE));
        self.give(&pages, For::Program);
        self.give(&tables, For::Kernel);
    }

    /// A process ends.
    pub fn end(&mut self, process: ProcessId) {
        self.free(process, Pages(u64::MAX));
    }

    /// What a process holds, without its page tables.
    pub fn held(&self, process: ProcessId) -> Pages {
        Pages(self.processes[process.0].held)
    }

    /// Where a process's pages lie, in the order in which it touched them.
    pub fn placement(&self, process: ProcessId) -> Vec<(NodeId, Pages)> {
        let mut places: Vec<(NodeId, Pages)> = Vec::new();
        for run in &self.processes[process.0].pages {
            let node = self.setup.nodes[self.blocks[run.block].node].node;
            match places.last_mut().filter(|(last, _)| *last == node) {
                Some((_, pages)) => pages.0 += run.pages,
                None => places.push((node, Pages(run.pages))),
            }
        }
        places
    }

    /// What a node manages, and what of it is free.
    pub fn memory(&self, node: NodeId) -> (Bytes, Bytes) {
        let zones = &self.zones[self.setup.place(node).expect("a node of this machine")];
        let sum = |of: fn(&Zone) -> u64| PAGE * zones.iter().map(of).sum();
        (sum(|zone| zone.managed), sum(|zone| zone.free))
    }

    /// Page descriptors of slow memory that lie in a node.
    pub fn descriptors_in(&self, node: NodeId) -> Bytes {
        let at = self.setup.place(node).expect("a node of this machine");
        let runs = self.blocks.iter().flat_map(|block| &block.descriptors);
        PAGE * runs.filter(|run| self.blocks[run.block].node == at).map(|run| run.pages).sum()
    }

    /// Free pages and watermarks of a node's zone.
    pub fn zone(&self, node: NodeId, kind: ZoneKind) -> (Pages, Marks) {
        let at = self.setup.place(node).expect("a node of this machine");
        let zone = &self.zones[at][kind as usize];
        (Pages(zone.free), zone.marks)
    }

    /// Pages that were demoted so far.
    pub fn demoted(&self) -> Pages {
        Pages(self.demoted)
    }

    /// Pools of slow memory, with the state of their blocks.
    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// Nodes with processors.
    pub fn sockets(&self) -> Vec<NodeId> {
        let all = self.setup.nodes.iter();
        all.filter(|node| node.processors > 0).map(|node| node.node).collect()
    }

    /// What a policy is told about a node with processors: its DRAM, and the slow memory that
    /// is nearer to it than to any other.
    pub fn view(&self, node: NodeId) -> NodeView {
        let at = self.setup.place(node).expect("a node of this machine");
        let zones = &self.zones[at];
        let sum = |of: fn(&Zone) -> u64| PAGE * zones.iter().map(of).sum();
        let mut view = NodeView {
            node,
            now: self.now,
            dram: sum(|zone| zone.managed),
            dram_free: sum(|zone| zone.free),
            integrated: Bytes::ZERO,
            integrated_free: Bytes::ZERO,
            hidden: Bytes::ZERO,
            block: self.setup.block,
            watermarks: Watermarks {
                min: sum(|zone| zone.marks.min.0),
                low: sum(|zone| zone.marks.low.0),
                high: sum(|zone| zone.marks.high.0),
            },
        };
        for pool in self.near_pools(node) {
            view.integrated += pool.amount(|state| state != BlockState::Hidden);
            view.hidden += pool.amount(|state| state == BlockState::Hidden);
            view.integrated_free += self.memory(pool.target_node).1;
        }
        view
    }

    /// Pools that are nearer to a node than to any other with processors.
    pub(super) fn near_pools(&self, node: NodeId) -> impl Iterator<Item = &Pool> {
        self.pools.iter().filter(move |pool| {
            let nearest = pool.distance.iter().min_by_key(|(from, distance)| (*distance, *from));
            nearest.is_some_and(|(nearest, _)| *nearest == node)
        })
    }

    /// Looks that the books agree: what zones, blocks and processes say is the same.
    ///
    /// # Errors
    ///
    /// What does not agree.
    pub fn audit(&self) -> Result<(), String> {
        let mut held = vec![(0_u64, 0_u64); self.blocks.len()];
        for process in &self.processes {
            let pages: u64 = process.pages.iter().map(|run| run.pages).sum();
            if pages != process.held {
                return Err(format!("a process holds {} pages and has {pages}", process.held));
            }
            process.pages.iter().for_each(|run| held[run.block].0 += run.pages);
            process.tables.iter().for_each(|run| held[run.block].1 += run.pages);
        }
        for block in &self.blocks {
            block.descriptors.iter().for_each(|run| held[run.block].1 += run.pages);
        }
        let mut sums = vec![[(0_u64, 0_u64); 2]; self.zones.len()];
        for (number, block) in self.blocks.iter().enumerate() {
            let (pages, kernel) = held[number];
            let Some(zone) = block.zone else {
                if pages + kernel + block.free + block.kernel > 0 {
                    return Err(format!("block {number} is offline and holds pages"));
                }
                continue;
            };
            // What the kernel took at boot has no owner in the books.
            if kernel > block.kernel || block.free + pages + block.kernel != block.usable {
                return Err(format!(
                    "block {number}: {} free, {pages} of programs and {} of the kernel ({kernel} \
                     known) are not {}",
                    block.free, block.kernel, block.usable
                ));
            }
            if zone == ZoneKind::Movable && block.kernel > 0 {
                return Err(format!("block {number} is movable and holds pages of the kernel"));
            }
            let sum = &mut sums[block.node][zone as usize];
            *sum = (sum.0 + block.usable, sum.1 + block.free);
            let open = self.zones[block.node][zone as usize].open.contains(&number);
            if open != (block.free > 0) {
                return Err(format!("block {number} has {} free and is open: {open}", block.free));
            }
        }
        for (zones, sums) in self.zones.iter().zip(&sums) {
            for (zone, sum) in zones.iter().zip(sums) {
                if (zone.managed, zone.free) != *sum {
                    return Err(format!(
                        "a zone has {} of {}, its blocks {sum:?}",
                        zone.free, zone.managed
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Whole pages that hold an amount.
pub(super) fn pages_of(amount: Bytes) -> u64 {
    amount.get().div_ceil(PAGE.get())
}

/// Adds pages at the end.
pub(super) fn push(runs: &mut Vec<Run>, run: Run) {
    if run.pages == 0 {
        return;
    }
    match runs.last_mut().filter(|last| last.block == run.block) {
        Some(last) => last.pages += run.pages,
        None => runs.push(run),
    }
}

/// Adds runs at the end.
pub(super) fn extend(runs: &mut Vec<Run>, more: Vec<Run>) {
    for run in more {
        push(runs, run);
    }
}

/// Takes pages off the end.
fn cut(runs: &mut Vec<Run>, pages: u64) -> Vec<Run> {
    let (mut left, mut gone) = (pages, Vec::new());
    while left > 0 {
        let Some(last) = runs.last_mut() else { break };
        let some = left.min(last.pages);
        gone.push(Run { block: last.block, pages: some });
        last.pages -= some;
        left -= some;
        if last.pages == 0 {
            runs.pop();
        }
    }
    gone
}
