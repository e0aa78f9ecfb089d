//! DAX devices and namespaces that could become memory, and devices that are memory.

use serde::Serialize;
use terrace_core::Bytes;

use super::DiscoverError;
use super::files::Files;
use crate::view::NodeId;

/// What a device is, and so what must be done to make it memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A DAX device without the driver `kmem`: binding it makes it memory blocks.
    Dax,
    /// A namespace of persistent memory that is a block device now.
    Namespace,
}

/// A device that could become memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// The kernel's name: `dax0.0`, `namespace0.0`.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Its size.
    pub size: Bytes,
    /// The node that its memory would belong to; `None` where the kernel names none.
    pub target_node: Option<NodeId>,
    /// The online node that the kernel says is nearest to it, by which its place is known before
    /// the node of its memory exists.
    pub near: Option<NodeId>,
    /// Its driver; `None` where it has none.
    pub driver: Option<String>,
    /// Numbers of the memory blocks that it would be, as far as its address is known.
    pub blocks: Vec<u64>,
}

impl Device {
    /// How much memory it would be: whole blocks only.
    pub fn memory(&self, block: Bytes) -> Bytes {
        let known = self.blocks.len() as u64;
        block * if known == 0 { self.size.0 / block.0 } else { known }
    }
}

/// The driver that makes a DAX device memory.
pub const KMEM: &str = "kmem";

/// DAX devices and namespaces, those that are memory already apart.
pub(super) fn devices(
    files: &Files,
    block: Bytes,
) -> Result<(Vec<Device>, Vec<Device>), DiscoverError> {
    let (mut found, mut bound) = (Vec::new(), Vec::new());
    for name in files.entries("sys/bus/dax/devices")? {
        let here = format!("sys/bus/dax/devices/{name}");
        // One that has gone since the directory was read is no error.
        let Some(size) = size(files, &here)? else { continue };
        let driver = files.link_name(&format!("{here}/driver"));
        let device = Device {
            kind: DeviceKind::Dax,
            size,
            target_node: node(files, &here, "target_node")?,
            near: node(files, &here, "numa_node")?,
            blocks: blocks(files, &here, block)?,
            driver,
            name,
        };
        // Its blocks are among the memory blocks.
        let is_memory = device.driver.as_deref() == Some(KMEM);
        if is_memory { bound.push(device) } else { found.push(device) }
    }
    for name in files.entries("sys/bus/nd/devices")? {
        let here = format!("sys/bus/nd/devices/{name}");
        if !name.starts_with("namespace") {
            continue;
        }
        let Some(size) = size(files, &here)? else { continue };
        // A seed, from which namespaces can be made, has no size. One that is a DAX device
        // already is not counted twice.
        let driver = files.link_name(&format!("{here}/driver"));
        let holder = files.optional(&format!("{here}/holder"))?.unwrap_or_default();
        let is_dax = holder.starts_with("dax");
        if !size.is_zero() && !is_dax {
            found.push(Device {
                kind: DeviceKind::Namespace,
                size,
                target_node: node(files, &here, "target_node")?,
                near: node(files, &here, "numa_node")?,
                driver,
                blocks: Vec::new(),
                name,
            });
        }
    }
    Ok((found, bound))
}

fn size(files: &Files, device: &str) -> Result<Option<Bytes>, DiscoverError> {
    let path = format!("{device}/size");
    let Some(text) = files.optional(&path)? else { return Ok(None) };
    let size = text.trim().parse().map(|size| Some(Bytes(size)));
    size.map_err(|_| files.content(&path, format!("`{}` is no size", text.trim())))
}

/// The memory blocks that lie within a device's ranges of addresses; none where they may not be
/// read.
fn blocks(files: &Files, device: &str, block: Bytes) -> Result<Vec<u64>, DiscoverError> {
    let mut found = Vec::new();
    for name in files.entries(device)?.iter().filter(|name| name.starts_with("mapping")) {
        let address = |end: &str| -> Result<Option<u64>, DiscoverError> {
            let path = format!("{device}/{name}/{end}");
            let Some(text) = files.optional(&path)? else { return Ok(None) };
            let digits = text.trim().strip_prefix("0x").unwrap_or_default();
            let parsed = u64::from_str_radix(digits, 16).map(Some);
            parsed.map_err(|_| files.content(&path, format!("`{}` is no address", text.trim())))
        };
        if let (Some(first), Some(last)) = (address("start")?, address("end")?) {
            found.extend(first.div_ceil(block.0)..last.saturating_add(1) / block.0);
        }
    }
    Ok(found)
}

/// A node's number; the kernel writes -1 for none.
fn node(files: &Files, device: &str, file: &str) -> Result<Option<NodeId>, DiscoverError> {
    let path = format!("{device}/{file}");
    let Some(text) = files.optional(&path)? else { return Ok(None) };
    let number: i64 = text
        .trim()
        .parse()
        .map_err(|_| files.content(&path, format!("`{}` is no node", text.trim())))?;
    Ok(u32::try_from(number).ok().map(NodeId))
}
