//! Policies on kernel objects, on the one policy contract.
//!
//! | file | concept |
//! |---|---|
//! | `strategy` | the strategies of the paper's Table 5 and ours, by name |
//! | `fixed` | everything in one tier |
//! | `halves` | two policies, one for the program's pages and one for the kernel's |
//! | `objects` | kernel pages of active contexts in the fast memory, others out of it |

mod fixed;
mod halves;
mod objects;
mod strategy;

pub use fixed::Fixed;
pub use halves::Halves;
pub use objects::{KernelObjects, Leaving, ObjectsConfig};
pub use strategy::{Strategy, StrategyConfig};
