//! `terrace provision plan`: what slow memory there is, and what would happen to it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use terrace_provision::action::How;
use terrace_provision::blocks::BlockState;
use terrace_provision::discover::advice::{Advice, advice};
use terrace_provision::discover::{DeviceKind, DiscoverError, Machine};
use terrace_provision::{Action, Decision, NodeId, PolicyKind};

use crate::args::one_of;
use crate::failure::Failure;
use crate::output::{self, table};

/// Say what slow memory this machine has, and what a policy would do with it now.
///
/// Exit code 3 where there is none that could come or go.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace provision plan")]
pub(crate) struct Args {
    /// Who decides.
    #[arg(long, value_name = "POLICY", default_value = "resolved",
          value_parser = one_of(&PolicyKind::ALL, PolicyKind::name))]
    policy: PolicyKind,

    /// Read the procfs and sysfs below this directory instead of this machine's.
    #[arg(long, env = "TERRACE_ROOT", hide = true)]
    root: Option<PathBuf>,
}

/// What is decided about one node, and the blocks that would change.
#[derive(Serialize)]
struct Step {
    #[serde(flatten)]
    decision: Decision,
    /// Memory blocks that would change, by the kernel's numbers.
    blocks: Vec<u64>,
    /// Devices that would have to become memory first, for blocks alone would not do.
    devices: Vec<String>,
}

#[derive(Serialize)]
struct Document {
    policy: PolicyKind,
    machine: Machine,
    steps: Vec<Step>,
    advice: Vec<Advice>,
}

/// The size of a base page.
pub(super) fn page() -> Bytes {
    Bytes(rustix::param::page_size() as u64)
}

/// The machine below a root directory, or this one.
pub(super) fn discover(root: Option<&Path>) -> Result<Machine, Failure> {
    let root = root.unwrap_or(Path::new("/"));
    Machine::discover(root, page()).map_err(|error| match error {
        // A kernel without memory hotplug, or a container without sysfs.
        DiscoverError::Io { .. } => {
            Failure::unsupported(format!("memory that comes and goes: {error}"))
        }
        DiscoverError::Content { .. } | DiscoverError::Zones { .. } => Failure::failed(error),
    })
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let machine = discover(self.root.as_deref())?;
        let mut policy = self.policy.build();
        let steps = machine
            .nodes
            .iter()
            .filter(|node| node.has_cpu)
            .map(|node| {
                let decision = policy.tick(&machine.view(node, Nanos::ZERO));
                let steps = machine.steps(node.node, decision.change, How::default(), |_| true);
                let block = |action: &Action| match action {
                    Action::Online { block, .. } | Action::Offline { block, .. } => Some(*block),
                    _ => None,
                };
                let device = |action: &Action| match action {
                    Action::Bind { device, .. } => Some(device.clone()),
                    _ => None,
                };
                Step {
                    decision,
                    blocks: steps.iter().filter_map(block).collect(),
                    devices: steps.iter().filter_map(device).collect(),
                }
            })
            .collect();
        let advice = advice(&machine);
        let document = Document { policy: self.policy, machine, steps, advice };
        let text = if json {
            output::json("terrace.provision.plan", &document)?
        } else {
            render(&document)
        };
        output::print(&text)?;
        if !document.machine.has_any() {
            return Err(nothing(&document.machine));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// That a machine has no slow memory that could come or go, and what it has instead.
pub(super) fn nothing(machine: &Machine) -> Failure {
    let what = "there is no slow memory that could come or go: no memory block is offline or \
                movable, and there is no DAX device";
    let namespaces = namespaces(machine, None);
    if namespaces.is_empty() {
        return Failure::unsupported(what);
    }
    Failure::unsupported(format!("{what} yet; {namespaces}"))
}

/// Which devices, of a node or of all, are block devices, and how they become DAX devices; empty
/// where none is.
pub(super) fn namespaces(machine: &Machine, node: Option<NodeId>) -> String {
    let namespaces = machine.devices.iter().filter(|device| {
        device.kind == DeviceKind::Namespace && (node.is_none() || device.target_node == node)
    });
    let names: Vec<_> = namespaces.map(|device| device.name.as_str()).collect();
    if names.is_empty() {
        return String::new();
    }
    format!(
        "of {}, `terrace provision reload` makes a DAX device, and destroys what is on it",
        names.join(", ")
    )
}

fn render(document: &Document) -> String {
    let machine = &document.machine;
    let nodes: Vec<_> = machine
        .nodes
        .iter()
        .map(|node| {
            [
                node.node.to_string(),
                if node.has_cpu { "yes" } else { "no" }.to_owned(),
                node.memory.managed.to_string(),
                node.memory.free.to_string(),
            ]
        })
        .collect();
    let mut text = table(["node", "processors", "memory", "free"], &nodes);
    let distances = |distance: &[(NodeId, u32)]| {
        let each = distance.iter().map(|(node, far)| format!("{far} from {node}"));
        each.collect::<Vec<_>>().join(", ")
    };
    let mut pools: Vec<_> = machine
        .pools
        .iter()
        .map(|pool| {
            [
                pool.name.clone(),
                pool.amount(|state| state == BlockState::Hidden).to_string(),
                pool.amount(|state| state == BlockState::Movable).to_string(),
                pool.amount(|s| matches!(s, BlockState::Kernel | BlockState::Stuck)).to_string(),
                distances(&pool.distance),
            ]
        })
        .collect();
    pools.extend(machine.devices.iter().map(|device| {
        let node = device.target_node.map_or("no node".to_owned(), |node| node.to_string());
        let zero = Bytes::ZERO.to_string();
        if device.kind == DeviceKind::Namespace {
            // No policy counts on it.
            let none = "-".to_owned();
            let name = format!("{} ({node}), a block device", device.name);
            return [name, none.clone(), none.clone(), none, String::new()];
        }
        [
            format!("{} ({node})", device.name),
            device.memory(machine.block).to_string(),
            zero.clone(),
            zero,
            String::new(),
        ]
    }));
    if !pools.is_empty() {
        text.push('\n');
        text += &table(["slow memory", "hidden", "online", "never leaves", "distance"], &pools);
        let has_any = machine.has_any();
        if has_any {
            let _ = writeln!(text, "\n{} would decide:", document.policy);
        }
        for step in document.steps.iter().filter(|_| has_any) {
            let _ = writeln!(text, "  {}", step.decision);
            if !step.blocks.is_empty() {
                let blocks: Vec<_> = step.blocks.iter().map(u64::to_string).collect();
                let _ = writeln!(text, "    memory blocks {}", blocks.join(", "));
            }
            if !step.devices.is_empty() {
                let devices = step.devices.join(", ");
                let _ = writeln!(text, "    devices that have to become memory: {devices}");
            }
        }
    }
    if !document.advice.is_empty() {
        text += "\nIn the way:\n";
        for Advice { what, remedy } in &document.advice {
            let _ = writeln!(text, "  {what}\n    {remedy}");
        }
    }
    text
}
