//! Why a simulation cannot be set up.

use std::path::PathBuf;

use terrace_core::{Bytes, MachineError};
use thiserror::Error;

use crate::trace::TraceError;

/// Why a simulation cannot be set up. Every message names what to change.
#[derive(Debug, Error)]
pub enum SimError {
    /// Neither a built-in machine nor a file.
    #[error(
        "`{name}` is neither a machine file nor a built-in machine (there are {builtin}): {missing}"
    )]
    UnknownMachine {
        /// What was asked for.
        name: String,
        /// The names there are.
        builtin: String,
        /// Where it was looked for.
        missing: terrace_core::NotFound,
    },
    /// The machine file cannot be read.
    #[error("cannot read the machine file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The machine file is wrong.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A trace is wrong.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The workload's memory does not fit into the machine's.
    #[error("the workload needs {needed}, but `{machine}` holds {available} for it")]
    DoesNotFit {
        /// The workload's memory.
        needed: Bytes,
        /// What the machine has for it.
        available: Bytes,
        /// The machine.
        machine: String,
    },
    /// A parameter makes no sense.
    #[error("{parameter}: {message}")]
    Parameter {
        /// Which.
        parameter: &'static str,
        /// What is wrong with it.
        message: String,
    },
}

impl SimError {
    /// A parameter makes no sense, for a reason.
    pub fn parameter(parameter: &'static str, message: impl Into<String>) -> Self {
        Self::Parameter { parameter, message: message.into() }
    }
}
