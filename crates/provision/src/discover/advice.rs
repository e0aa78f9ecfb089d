//! What stands in the way, with its remedy.
//!
//! Each was observed on a stock kernel (docs/provision.md has how).

use serde::Serialize;
use terrace_core::Bytes;

use super::{DeviceKind, Machine};
use crate::blocks::BlockState;

/// Something about a machine that its operator should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What is so, and what follows from it.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

/// Page descriptors for so much memory: 64 bytes for each page of 4 KiB.
pub fn metadata(memory: Bytes) -> Bytes {
    memory / 64
}

/// What stands in the way of memory that comes and goes on this machine.
pub fn advice(machine: &Machine) -> Vec<Advice> {
    let mut all = Vec::new();
    let mut say = |what: String, remedy: &str| {
        all.push(Advice { what, remedy: remedy.to_owned() });
    };
    for range in machine.firmware.iter().filter(|range| !range.has_device) {
        let much = match (range.size, range.start) {
            (Some(size), Some(start)) => format!("{size} of {} at {start:#x}", range.kind.what()),
            _ => range.kind.what().to_owned(),
        };
        say(format!("{much}: no driver has made a device of it"), range.kind.drivers());
    }
    let settings = &machine.settings;
    let hidden: Bytes = machine.pools.iter().map(|p| p.amount(|s| s == BlockState::Hidden)).sum();
    let bindable: Bytes = machine.devices.iter().map(|device| device.size).sum();
    if hidden.is_zero() && bindable.is_zero() && machine.pools.is_empty() {
        return all;
    }
    let scale = settings.watermark_scale_factor.unwrap_or(10);
    if settings.demotion != Some(true) && scale < 100 {
        say(
            "DRAM may fill up with pages that cannot leave while slow memory is free: the kernel \
             then kills a program, because its own objects need DRAM"
                .to_owned(),
            "echo 1 > /sys/kernel/mm/numa/demotion_enabled, or sysctl vm.watermark_scale_factor=500",
        );
    }
    for pool in &machine.pools {
        let is_local = machine.nodes.iter().any(|n| n.node == pool.target_node && n.has_cpu);
        if is_local {
            say(
                format!(
                    "slow memory of {} belongs to the processors' own node, so that the kernel \
                     uses it before DRAM",
                    pool.target_node
                ),
                "have the firmware (SRAT, or `numa=fake` in a guest) give it a node without \
                 processors",
            );
        }
    }
    if settings.auto_online.as_deref().is_some_and(|auto| auto != "offline") {
        say(
            "the kernel brings new memory blocks online by itself, before anybody has decided it"
                .to_owned(),
            "echo offline > /sys/devices/system/memory/auto_online_blocks, or boot with \
             memhp_default_state=offline",
        );
    }
    if settings.memmap_on_memory != Some(true) {
        say(
            format!(
                "page descriptors of slow memory lie in DRAM: {} for all that is hidden",
                metadata(hidden + bindable)
            ),
            "boot with memory_hotplug.memmap_on_memory=1",
        );
    }
    if settings.overcommit.is_some_and(|mode| mode != 1) {
        say(
            "a program that asks for more than there is now is refused, before any memory can be \
             brought in for it"
                .to_owned(),
            "sysctl vm.overcommit_memory=1",
        );
    }
    for device in machine.devices.iter().filter(|d| d.kind == DeviceKind::Namespace) {
        say(
            format!("{} ({}) is a block device, not memory", device.name, device.size),
            "`terrace provision reload NAME --destroy`, or ndctl create-namespace --force \
             --mode=devdax --reconfig=NAME, destroys what is on it and makes it a DAX device",
        );
    }
    all
}
