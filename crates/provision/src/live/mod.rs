//! Memory that really comes and goes: the daemon and what it acts by.
//!
//! | file | concept |
//! |---|---|
//! | [`kernel`] | small files of sysfs and procfs, written and read back |
//! | [`actuator`] | steps, carried out |
//! | [`worker`] | a thread that carries them out, and can be interrupted |
//! | [`world`] | what the daemon looks at and acts on |
//! | [`host`] | this machine: memory blocks and DAX devices |
//! | [`vm`], [`qmp`] | a virtual machine, by QEMU's socket |
//! | [`manager`] | decisions become steps, one at a time |
//! | [`guard`] | settings of the kernel that are made, and taken back |
//! | [`pressure`] | the kernel tells when programs have to wait for memory |
//! | [`state`] | lock, status and journal |
//! | [`reload`] | a namespace of persistent memory becomes a DAX device |
//! | [`mod@run`] | the loop of it all |

pub mod actuator;
pub mod guard;
pub mod host;
pub mod kernel;
pub mod manager;
pub mod pressure;
pub mod qmp;
pub mod reload;
pub mod run;
pub mod state;
pub mod vm;
pub mod worker;
pub mod world;

pub use actuator::{ActionError, Actuator, Sysfs};
pub use host::Host;
pub use kernel::{Files, Kernel};
pub use manager::{Counters, Manager, Order};
pub use run::{RunError, Setup, Stop, run};
pub use state::{DIRECTORY, NodeStatus, State, StateError, Status, lock_machine};
pub use vm::VirtualMachine;
pub use world::{LookError, World};

#[cfg(test)]
mod tests;
