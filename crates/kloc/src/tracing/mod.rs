//! What running programs ask the kernel for, and what the kernel does for them, by tracepoints.
//!
//! Needs root and a mounted tracefs, and no eBPF. Events are read as text: that takes a few
//! microseconds each, which a recording can afford, and is the one form that every kernel since
//! 4.x writes alike.
//!
//! | file | concept |
//! |---|---|
//! | `line` | one event, from its line |
//! | `tracefs` | a trace buffer of our own, and the program that is traced |

mod line;
mod tracefs;

pub use line::{Event, Inode, What};
pub use tracefs::{Counter, Traced, Tracefs, TracingError};
