//! What this kernel and machine allow.
//!
//! | file | concept |
//! |---|---|
//! | [`facts`] | what procfs and sysfs say |
//! | [`probe`] | what only a system call can tell |

pub mod facts;
pub mod probe;
