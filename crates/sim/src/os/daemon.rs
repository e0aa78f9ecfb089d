//! A policy at work: looks at the nodes by turns, decisions, and what became of them.
//!
//! The policies and the choice of blocks are those of [`terrace_provision`]. One worker changes
//! one block after the other; a node whose changes are under way is not looked at.

use std::collections::VecDeque;

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use terrace_provision::blocks::{to_integrate, to_remove};
use terrace_provision::{Change, Decision, NodeId, Provisioner, Rotation};

use super::hotplug::{Moved, Refusal};
use super::system::{PAGE, System};

/// Something that a daemon did or met.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A decision to change something.
    Decided(Decision),
    /// A block came online.
    Online {
        /// When.
        at: Nanos,
        /// The block.
        block: usize,
    },
    /// A block went offline.
    Offline {
        /// When.
        at: Nanos,
        /// The block.
        block: usize,
        /// What was in it, and lies elsewhere now.
        moved: Bytes,
    },
    /// A block stayed as it was.
    Refused {
        /// When.
        at: Nanos,
        /// The block.
        block: usize,
        /// Why.
        why: Refusal,
    },
}

/// One change of one block.
#[derive(Clone, Copy, Debug)]
struct Work {
    node: NodeId,
    block: usize,
    online: bool,
}

/// A policy, and the worker that does what it decides.
#[derive(Debug)]
pub struct Daemon {
    policy: Box<dyn Provisioner + Send>,
    rotation: Rotation,
    every: Nanos,
    /// Room that stays free when a block leaves.
    headroom: Bytes,
    look_at: Nanos,
    work: VecDeque<Work>,
    /// When the worker is done with the first piece of work.
    done_at: Nanos,
    /// What happened, in order.
    pub journal: Vec<Event>,
}

impl Daemon {
    /// A daemon that looks at each node of a system every so often.
    pub fn new(policy: Box<dyn Provisioner + Send>, system: &System, every: Nanos) -> Self {
        Self {
            policy,
            rotation: Rotation::new(system.sockets()),
            every,
            headroom: system.setup().block,
            look_at: system.now(),
            work: VecDeque::new(),
            done_at: Nanos::ZERO,
            journal: Vec::new(),
        }
    }

    /// Does what is due until a time, and lets the system's clock pass to it.
    pub fn run(&mut self, system: &mut System, until: Nanos) {
        loop {
            let work = self.work.front().map(|_| self.done_at);
            let next = work.map_or(self.look_at, |done| done.min(self.look_at));
            if next > until {
                break;
            }
            system.advance(next);
            if work == Some(next) {
                self.finish(system);
            } else {
                self.look(system);
                self.look_at = next + self.every;
            }
        }
        system.advance(until);
    }

    fn look(&mut self, system: &System) {
        for node in self.rotation.turn() {
            if self.work.iter().any(|work| work.node == node) {
                continue;
            }
            let decision = self.policy.tick(&system.view(node));
            let near: Vec<_> = system.near_pools(node).cloned().collect();
            let (chosen, online) = match decision.change {
                Change::Integrate(amount) => (to_integrate(&near, node, amount), true),
                Change::Remove(amount) => (to_remove(&near, node, amount), false),
                Change::Nothing => continue,
            };
            self.journal.push(Event::Decided(decision));
            let is_idle = self.work.is_empty();
            let blocks = chosen.into_iter().map(|chosen| chosen.block as usize);
            self.work.extend(blocks.map(|block| Work { node, block, online }));
            if is_idle {
                self.begin(system);
            }
        }
    }

    /// The worker begins with the first piece of work.
    fn begin(&mut self, system: &System) {
        let Some(work) = self.work.front() else { return };
        let setup = system.setup();
        let takes = if work.online {
            setup.online
        } else {
            setup.offline + setup.copy.time_for(system.used_in(work.block))
        };
        self.done_at = system.now() + takes;
    }

    fn finish(&mut self, system: &mut System) {
        let Some(Work { block, online, .. }) = self.work.pop_front() else { return };
        let at = system.now();
        let event = if online {
            system.online(block).map(|()| Event::Online { at, block })
        } else {
            let moved = system.offline(block, self.headroom);
            moved.map(|Moved(pages)| Event::Offline { at, block, moved: PAGE * pages.0 })
        };
        self.journal.push(event.unwrap_or_else(|why| Event::Refused { at, block, why }));
        self.begin(system);
    }

    /// Decisions that changed something.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.journal.iter().filter_map(|event| match event {
            Event::Decided(decision) => Some(decision),
            _ => None,
        })
    }

    /// Memory that changed its state, both ways together.
    pub fn moved(&self, block: Bytes) -> Bytes {
        let changed =
            |event: &&Event| matches!(event, Event::Online { .. } | Event::Offline { .. });
        block * self.journal.iter().filter(changed).count() as u64
    }
}
