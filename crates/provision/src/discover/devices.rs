//! DAX devices and namespaces that could become memory.

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
}

/// Devices that are not memory yet.
pub(super) fn devices(files: &Files) -> Result<Vec<Device>, DiscoverError> {
    let mut found = Vec::new();
    for name in files.entries("sys/bus/dax/devices")? {
        let here = format!("sys/bus/dax/devices/{name}");
        // Its blocks are among the memory blocks.
        if files.link_name(&format!("{here}/driver")).as_deref() == Some("kmem") {
            continue;
        }
        found.push(Device {
            kind: DeviceKind::Dax,
            size: size(files, &here)?,
            target_node: node(files, &here, "target_node")?,
            name,
        });
    }
    for name in files.entries("sys/bus/nd/devices")? {
        let here = format!("sys/bus/nd/devices/{name}");
        if !name.starts_with("namespace") || files.optional(&format!("{here}/size"))?.is_none() {
            continue;
        }
        let size = size(files, &here)?;
        // A seed, from which namespaces can be made, has no size.
        if !size.is_zero() {
            let target_node = node(files, &here, "target_node")?;
            found.push(Device { kind: DeviceKind::Namespace, size, target_node, name });
        }
    }
    Ok(found)
}

fn size(files: &Files, device: &str) -> Result<Bytes, DiscoverError> {
    let path = format!("{device}/size");
    let text = files.text(&path)?;
    let size = text.trim().parse().map(Bytes);
    size.map_err(|_| files.content(&path, format!("`{}` is no size", text.trim())))
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
