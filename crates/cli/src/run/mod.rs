//! run
pub(crate) mod program;
