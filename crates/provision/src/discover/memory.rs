//! The kernel's memory blocks.
//!
//! A block that is offline can be brought in. A block that is online in the
//! zone `Movable` can leave again; one in another zone cannot once the kernel
//! has put objects of its own into it. Blocks of a node with processors that
//! are online in another zone are the machine's DRAM, and nobody's pool.

use std::collections::BTreeMap;

use terrace_core::Bytes;

use super::files::Files;
use super::{DiscoverError, Node};
use crate::blocks::{Block, BlockState, Pool};
use crate::view::NodeId;

const DIRECTORY: &str = "sys/devices/system/memory";

/// The blocks that may come and go, by node.
pub(super) fn pools(
    files: &Files,
    block: Bytes,
    nodes: &[Node],
) -> Result<Vec<Pool>, DiscoverError> {
    let mut by_node: BTreeMap<NodeId, Vec<Block>> = BTreeMap::new();
    for number in files.numbered(DIRECTORY, "memory")? {
        let here = format!("{DIRECTORY}/memory{number}");
        let node = files.numbered(&here, "node")?.first().map(|&node| NodeId(node as u32));
        let path = format!("{here}/state");
        // One that has gone since the directory was read is no error.
        let Some(text) = files.optional(&path)? else { continue };
        let state = match text.trim() {
            "offline" => BlockState::Hidden,
            "online" => match zone(files, &here)? {
                Some(zone) if zone == "Movable" => BlockState::Movable,
                _ => BlockState::Kernel,
            },
            // On its way: what it becomes is seen at the next look.
            "going-offline" => BlockState::Movable,
            other => return Err(files.content(&path, format!("unknown state `{other}`"))),
        };
        // A block that was never online belongs to no node yet: sysfs links it to none.
        let node = node.unwrap_or_default();
        let has_cpu = nodes.iter().any(|other| other.node == node && other.has_cpu);
        if has_cpu && state == BlockState::Kernel {
            continue;
        }
        by_node.entry(node).or_default().push(Block { number, state });
    }
    let pool = |(node, blocks): (NodeId, Vec<Block>)| {
        let from = |other: &Node| {
            let far = other.distance.iter().find(|(to, _)| *to == node)?;
            Some((other.node, far.1))
        };
        Pool {
            name: format!("memory blocks of {node}"),
            target_node: node,
            distance: nodes.iter().filter(|node| node.has_cpu).filter_map(from).collect(),
            block,
            blocks,
        }
    };
    Ok(by_node.into_iter().map(pool).collect())
}

/// The zone that an online block is in: the first word of `valid_zones`.
fn zone(files: &Files, block: &str) -> Result<Option<String>, DiscoverError> {
    let zones = files.optional(&format!("{block}/valid_zones"))?;
    Ok(zones.and_then(|zones| zones.split_whitespace().next().map(str::to_owned)))
}
