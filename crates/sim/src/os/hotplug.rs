//! Blocks that come online and go offline.

use core::fmt;

use serde::Serialize;
use terrace_core::{Bytes, Pages};
use terrace_provision::BlockState;

use super::setup::{PageDescriptors, ZoneKind};
use super::system::{For, PAGE, Run, System, extend, pages_of, push};

/// Why a block stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// It is not one of slow memory, or not in the state that the change begins with.
    State,
    /// No zone for objects of the kernel has room for its page descriptors.
    Descriptors,
    /// It holds objects of the kernel.
    Kernel,
    /// Its pages, and what should stay free beside them, find no room elsewhere.
    NoRoom {
        /// What would have to find room.
        wanted: Bytes,
        /// The room there is above the watermarks.
        there: Bytes,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State => write!(f, "it is not in the state that the change begins with"),
            Self::Descriptors => write!(f, "there is no room for its page descriptors"),
            Self::Kernel => write!(f, "it holds objects of the kernel"),
            Self::NoRoom { wanted, there } => {
                write!(f, "{wanted} would have to find room, and there are {there}")
            }
        }
    }
}

/// Pages that left a block for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved(pub Pages);

impl System {
    /// The state of a block of slow memory.
    fn state(&mut self, number: usize) -> Option<&mut BlockState> {
        let all = self.pools.iter_mut().flat_map(|pool| &mut pool.blocks);
        all.into_iter().find(|block| block.number == number as u64).map(|block| &mut block.state)
    }

    /// What of a block is in use.
    pub fn used_in(&self, number: usize) -> Bytes {
        let frames = &self.blocks[number];
        if frames.zone.is_some() { PAGE * (frames.usable - frames.free) } else { Bytes::ZERO }
    }

    /// Brings a hidden block online.
    ///
    /// # Errors
    ///
    /// Why it stays hidden.
    pub fn online(&mut self, number: usize) -> Result<(), Refusal> {
        if self.state(number).map(|state| *state) != Some(BlockState::Hidden) {
            return Err(Refusal::State);
        }
        let held =
            pages_of(super::costs::descriptors(self.setup.block, self.setup.page_descriptor));
        let size = self.setup.block.get() / PAGE.get();
        let mut runs = Vec::new();
        match self.setup.page_descriptors {
            PageDescriptors::Itself => self.blocks[number].usable = size.saturating_sub(held),
            place @ (PageDescriptors::Elsewhere | PageDescriptors::Dram) => {
                let node = self.blocks[number].node;
                let has_processors = |at: &usize| self.setup.nodes[*at].processors > 0;
                let allowed = match place {
                    PageDescriptors::Dram => (0..self.setup.nodes.len())
                        .filter(has_processors)
                        .fold(0, |bits, at| bits | 1 << at),
                    _ => u64::MAX,
                };
                let left = self.take(node, allowed, For::Kernel, held, &mut runs);
                if left > 0 {
                    self.give(&runs, For::Kernel);
                    return Err(Refusal::Descriptors);
                }
                self.blocks[number].usable = size;
            }
        }
        self.blocks[number].descriptors = runs;
        let zone = self.setup.zone;
        self.open(number, zone);
        if let Some(state) = self.state(number) {
            *state = match zone {
                ZoneKind::Movable => BlockState::Movable,
                ZoneKind::Normal => BlockState::Kernel,
            };
        }
        self.rebuild();
        Ok(())
    }

    /// Takes a block offline: its pages move, by the fallback list of its node, and `headroom`
    /// stays free beside them above the watermarks.
    ///
    /// # Errors
    ///
    /// Why it stays online. Nothing has moved then.
    pub fn offline(&mut self, number: usize, headroom: Bytes) -> Result<Moved, Refusal> {
        let frames = &self.blocks[number];
        let Some(kind) = frames.zone else { return Err(Refusal::State) };
        let (node, free) = (frames.node, frames.free);
        if frames.kernel > 0 {
            return Err(Refusal::Kernel);
        }
        let used = frames.usable - free;
        if self.state(number).is_none() {
            return Err(Refusal::State);
        }
        // Isolated: nobody allocates of it any more.
        let zone = &mut self.zones[node][kind as usize];
        zone.free -= free;
        zone.open.remove(&number);
        let list = self.zonelist(node, u64::MAX, For::Program);
        let room = |&(at, kind): &(usize, ZoneKind)| {
            let zone = &self.zones[at][kind as usize];
            zone.free.saturating_sub(zone.marks.low.0)
        };
        let there = PAGE * list.iter().map(room).sum();
        let wanted = PAGE * used + headroom;
        if there < wanted {
            let zone = &mut self.zones[node][kind as usize];
            zone.free += free;
            if free > 0 {
                zone.open.insert(number);
            }
            return Err(Refusal::NoRoom { wanted, there });
        }
        for at in 0..self.processes.len() {
            if self.processes[at].pages.iter().all(|run| run.block != number) {
                continue;
            }
            let old = std::mem::take(&mut self.processes[at].pages);
            let mut new: Vec<Run> = Vec::with_capacity(old.len());
            for run in old {
                if run.block != number {
                    push(&mut new, run);
                    continue;
                }
                let mut runs = Vec::new();
                let left = self.take(node, u64::MAX, For::Program, run.pages, &mut runs);
                debug_assert_eq!(left, 0, "the room was looked for before");
                extend(&mut new, runs);
            }
            self.processes[at].pages = new;
        }
        let frames = &mut self.blocks[number];
        (frames.zone, frames.free) = (None, 0);
        let usable = frames.usable;
        let descriptors = std::mem::take(&mut frames.descriptors);
        self.zones[node][kind as usize].managed -= usable;
        self.give(&descriptors, For::Kernel);
        if let Some(state) = self.state(number) {
            *state = BlockState::Hidden;
        }
        self.rebuild();
        Ok(Moved(Pages(used)))
    }
}
