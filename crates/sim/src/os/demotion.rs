//! Pages that make room in DRAM: what `demotion_enabled` does.
//!
//! Where an allocation finds no zone above `low`, the kernel's reclaim is woken for the nodes in
//! its list. Without swap it can only move pages of programs to slow memory, until the
//! node is above `high`. Which pages: those that were touched first, process by process; a
//! kernel takes the coldest, which an operating system without accesses does not know.

use super::setup::ZoneKind;
use super::system::{For, Run, System, extend, push};

impl System {
    /// Makes room in the zones of a list that are nodes with processors.
    pub(super) fn demote(&mut self, list: &[(usize, ZoneKind)], wanted: u64) {
        for &(at, kind) in list {
            if self.setup.nodes[at].processors == 0 {
                continue;
            }
            let zone = &self.zones[at][kind as usize];
            if zone.free > zone.marks.low.0 {
                continue;
            }
            let goal = (zone.marks.high.0 + wanted).saturating_sub(zone.free);
            self.demote_from(at, kind, goal);
        }
    }

    fn demote_from(&mut self, node: usize, kind: ZoneKind, goal: u64) {
        // Slow memory in the order of the node's fallback list.
        let targets = self.orders[node].iter();
        let slow: u64 = targets
            .filter(|&&other| self.setup.nodes[other].processors == 0)
            .fold(0, |bits, &other| bits | 1 << other);
        let mut left = goal;
        for at in 0..self.processes.len() {
            let here = |run: &Run| {
                let frames = &self.blocks[run.block];
                frames.node == node && frames.zone == Some(kind)
            };
            if left == 0 || !self.processes[at].pages.iter().any(here) {
                continue;
            }
            let old = std::mem::take(&mut self.processes[at].pages);
            let mut new = Vec::with_capacity(old.len());
            for run in old {
                let frames = &self.blocks[run.block];
                let some = run.pages.min(left);
                if some == 0 || frames.node != node || frames.zone != Some(kind) {
                    push(&mut new, run);
                    continue;
                }
                let mut runs = Vec::new();
                let stays = self.take_above_low(node, slow, some, &mut runs);
                let gone = some - stays;
                self.give(&[Run { block: run.block, pages: gone }], For::Program);
                self.demoted += gone;
                left = if stays > 0 { 0 } else { left - gone };
                extend(&mut new, runs);
                push(&mut new, Run { block: run.block, pages: run.pages - gone });
            }
            self.processes[at].pages = new;
        }
    }
}
