//! This machine: memory blocks and DAX devices.

use std::path::PathBuf;

use terrace_core::{Bytes, Nanos};

use super::world::{LookError, World};
use crate::action::{Action, How, Target};
use crate::blocks::BlockState;
use crate::decision::Change;
use crate::discover::advice::metadata;
use crate::discover::{Device, Machine, Node};
use crate::view::{NodeId, NodeView};

/// A machine below a root directory.
#[derive(Debug)]
pub struct Host {
    root: PathBuf,
    page: Bytes,
    nodes: Option<Vec<NodeId>>,
    devices: bool,
    how: How,
    machine: Machine,
}

impl Host {
    /// Looks at the machine below `root`. Only slow memory of `nodes` is touched, where some are
    /// named; DAX devices only with `devices`.
    pub fn new(
        root: PathBuf,
        page: Bytes,
        nodes: Option<Vec<NodeId>>,
        devices: bool,
        how: How,
    ) -> Result<Self, LookError> {
        let machine = Machine::discover(&root, page)?;
        let mut host = Self { root, page, nodes, devices, how, machine };
        host.restrict();
        Ok(host)
    }

    /// The machine, without what is not to be touched.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    fn restrict(&mut self) {
        if let Some(nodes) = &self.nodes {
            self.machine.keep_only(nodes);
        }
        if !self.devices {
            self.machine.devices.clear();
            self.machine.bound.clear();
        }
    }

    fn node(&self, node: NodeId) -> Option<&Node> {
        self.machine.nodes.iter().find(|other| other.node == node)
    }

    fn free_but_of(&self, node: NodeId) -> Bytes {
        self.machine.nodes.iter().filter(|n| n.node != node).map(|n| n.memory.free).sum()
    }

    /// Pages are moved to other nodes than the block's, so that they need the room. What is free
    /// in the block itself is lost as well, to those who allocate.
    fn room_to_leave(
        &self,
        target: NodeId,
        block: Bytes,
        headroom: Bytes,
        begun: bool,
    ) -> Result<(), String> {
        let Some(node) = self.node(target) else {
            return Err(format!("{target} has gone"));
        };
        let cpu = self.machine.nearest_to(target).and_then(|cpu| self.node(cpu));
        let watermarks = cpu.map_or(Bytes::ZERO, |cpu| cpu.memory.watermarks.high);
        let stays = headroom + watermarks;
        let used = node.memory.managed.saturating_sub(node.memory.free);
        let others = self.free_but_of(target);
        // Slow memory in the processors' own node shares its zones' free pages with nobody that is
        // counted apart.
        let is_own = cpu.is_some_and(|cpu| cpu.node == target);
        let (moves, elsewhere) =
            if is_own { (Bytes::ZERO, node.memory.free) } else { (used.min(block), others) };
        let all = node.memory.free + others;
        if begun {
            // What has been moved is gone from where it was free; the rest may not be.
            let least = headroom / 2 + watermarks;
            if elsewhere < least || all < least {
                return Err(format!("only {} are free where pages move to", elsewhere.min(all)));
            }
            return Ok(());
        }
        if all < block + stays {
            return Err(format!("{all} are free, and {block} and {stays} have to be"));
        }
        if elsewhere < moves + stays {
            return Err(format!(
                "{moves} may have to move to other nodes, where {elsewhere} are free and {stays} \
                 have to stay so"
            ));
        }
        Ok(())
    }
}

impl World for Host {
    fn look(&mut self, thorough: bool) -> Result<(), LookError> {
        if thorough {
            self.machine = Machine::discover(&self.root, self.page)?;
            self.restrict();
        } else {
            self.machine.refresh_memory(&self.root, self.page)?;
        }
        Ok(())
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.machine.nodes.iter().filter(|node| node.has_cpu).map(|node| node.node).collect()
    }

    fn view(&self, node: NodeId, now: Nanos) -> Option<NodeView> {
        Some(self.machine.view(self.node(node)?, now))
    }

    fn elsewhere(&self, node: NodeId) -> Bytes {
        let others = self.machine.nodes.iter().filter(|n| n.has_cpu && n.node != node);
        others.map(|n| n.memory.free.saturating_sub(n.memory.watermarks.high)).sum()
    }

    fn steps(&self, node: NodeId, change: Change, may: &dyn Fn(&Target) -> bool) -> Vec<Action> {
        self.machine.steps(node, change, self.how, may)
    }

    fn room(&self, action: &Action, headroom: Bytes, begun: bool) -> Result<(), String> {
        match action {
            Action::Offline { node, size, .. } => self.room_to_leave(*node, *size, headroom, begun),
            // Its page descriptors are taken out of DRAM, below all watermarks: the kernel's own
            // objects must still find some.
            Action::Bind { size, memmap_on_memory: false, device, .. } if !begun => {
                let found = self.machine.devices.iter().find(|d| d.name == *device);
                let metadata = metadata(found.map_or(*size, |found| found.size));
                let near = found.and_then(|found| self.machine.place_of(found));
                let Some(node) = near.and_then(|near| self.node(near)) else { return Ok(()) };
                let (free, stays) = (node.memory.free, node.memory.watermarks.high);
                if free < metadata + stays {
                    return Err(format!(
                        "its page descriptors take {metadata} of DRAM, of which {free} are free and \
                         {stays} have to stay so"
                    ));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn idle(&self) -> Vec<Action> {
        let state = |number: u64| {
            let mut blocks = self.machine.pools.iter().flat_map(|pool| &pool.blocks);
            blocks.find(|block| block.number == number).map(|block| block.state)
        };
        let unbind = |device: &Device| Action::Unbind {
            device: device.name.clone(),
            blocks: device.blocks.clone(),
            size: device.memory(self.machine.block),
        };
        // While other slow memory near its node is in use, its own may be next.
        let is_unused = |device: &Device| {
            let node = self.machine.place_of(device);
            let mut near = self
                .machine
                .pools
                .iter()
                .filter(|p| self.machine.nearest_to(p.target_node) == node);
            near.all(|pool| pool.amount(BlockState::is_online).is_zero())
        };
        // One whose address is unknown is left as it is: its blocks are unknown, too.
        let is_idle = |device: &&Device| {
            let mut states = device.blocks.iter().map(|&block| state(block));
            !device.blocks.is_empty()
                && is_unused(device)
                && states
                    .all(|s| matches!(s, None | Some(BlockState::Hidden | BlockState::Refused)))
        };
        self.machine.bound.iter().filter(is_idle).map(unbind).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    fn host(fixture: &Fixture) -> Host {
        let root = fixture.root().to_owned();
        Host::new(root, Bytes::kib(4), None, true, How::default()).unwrap()
    }

    /// Free pages of DRAM and of slow memory, of which one block is online.
    fn free(fixture: &Fixture, dram: u64, slow: u64) {
        let zones = fixture.read("proc/zoneinfo");
        let zones = zones.replacen("free     262144", &format!("free     {dram}"), 1);
        fixture.write("proc/zoneinfo", &zones.replacen("16384", &slow.to_string(), 1));
    }

    fn room(fixture: &Fixture, begun: bool) -> Result<(), String> {
        let leaves = Action::Offline { block: 40, node: NodeId(2), size: Bytes::mib(128) };
        host(fixture).room(&leaves, Bytes::mib(64), begun)
    }

    #[test]
    fn a_block_leaves_only_where_its_pages_find_room() {
        assert_eq!(room(&Fixture::new(), false), Ok(()));
        // 64 MiB of the block are used and would move; 60 MiB are free in DRAM.
        let full = Fixture::new();
        free(&full, 15_360, 16_384);
        let why = room(&full, false).unwrap_err();
        assert_eq!(why, "124 MiB are free, and 128 MiB and 69.9 MiB have to be");
        // Enough is free in all, in the block itself: nothing would have to move.
        let empty = Fixture::new();
        free(&empty, 17_920, 32_768);
        assert_eq!(room(&empty, false), Ok(()));
        // Of two blocks, 139 MiB are used: all of one may have to move.
        let used = Fixture::new();
        free(&used, 28_160, 30_000);
        let zones = used.read("proc/zoneinfo").replace("managed  32768", "managed  65536");
        used.write("proc/zoneinfo", &zones);
        let why = room(&used, false).unwrap_err();
        assert_eq!(
            why,
            "128 MiB may have to move to other nodes, where 110 MiB are free and 69.9 MiB have to \
             stay so"
        );
    }

    #[test]
    fn a_node_that_fills_while_a_block_leaves_is_seen() {
        let fixture = Fixture::new();
        free(&fixture, 15_360, 16_384);
        assert_eq!(room(&fixture, true), Ok(()), "half of the headroom is still there");
        let fuller = Fixture::new();
        free(&fuller, 7680, 16_384);
        assert_eq!(room(&fuller, true).unwrap_err(), "only 30.0 MiB are free where pages move to");
    }

    #[test]
    fn page_descriptors_find_room_in_dram_or_the_device_stays_one() {
        let bind = |fixture: &Fixture, memmap_on_memory| {
            let device = "dax1.0".to_owned();
            let size = Bytes::mib(256);
            let bind = Action::Bind { device, driver: None, size, memmap_on_memory };
            host(fixture).room(&bind, Bytes::mib(64), false)
        };
        let fixture = Fixture::new();
        fixture.device();
        assert_eq!(bind(&fixture, false), Ok(()));
        free(&fixture, 2400, 16_384);
        let why = bind(&fixture, false).unwrap_err();
        assert!(
            why.starts_with("its page descriptors take 4.03 MiB of DRAM, of which 9.38"),
            "{why}"
        );
        assert_eq!(bind(&fixture, true), Ok(()), "they lie in itself");
    }
}
