//! What the daemon looks at and acts on: this machine, or a virtual one.

use terrace_core::{Bytes, Nanos};
use thiserror::Error;

use crate::action::{Action, Target};
use crate::decision::Change;
use crate::discover::DiscoverError;
use crate::view::{NodeId, NodeView};

/// Why a look failed.
#[derive(Debug, Error)]
pub enum LookError {
    /// A file of the machine could not be read.
    #[error(transparent)]
    Files(#[from] DiscoverError),
    /// QEMU did not answer.
    #[error("QEMU: {0}")]
    Qemu(String),
}

/// Nodes with memory that comes and goes.
pub trait World {
    /// Looks anew at how much is free; with `thorough`, also at which memory there is.
    fn look(&mut self, thorough: bool) -> Result<(), LookError>;

    /// The nodes with processors.
    fn nodes(&self) -> Vec<NodeId>;

    /// What a policy is told about a node; `None` where it has gone.
    fn view(&self, node: NodeId, now: Nanos) -> Option<NodeView>;

    /// Free DRAM of other nodes with processors.
    fn elsewhere(&self, node: NodeId) -> Bytes;

    /// The steps of a change, in their order, without those that `may` forbids.
    fn steps(&self, node: NodeId, change: Change, may: &dyn Fn(&Target) -> bool) -> Vec<Action>;

    /// Whether memory may be acted on so now, and with `begun`, may go on to be; why not.
    fn room(&self, action: &Action, headroom: Bytes, begun: bool) -> Result<(), String>;

    /// The steps that give back the metadata of memory that is not in use at all.
    fn idle(&self) -> Vec<Action>;
}
