//! The kernel's engine: the kernel serves the faults, Terrace decides.
//!
//! What a program has beyond its budget lies in swap that is compressed memory (zram, zswap).
//! Nothing is loaded into the program, and nothing of it waits for Terrace: a page that it
//! touches comes back by the kernel's own fault. Terrace makes room ahead of need, chooses what
//! leaves, and brings back what will be wanted. If it ends, in whatever way, the program goes on, bounded by
//! nothing.
//!
//! | file | concept |
//! |---|---|
//! | [`setup`] | swap and a control group: made, and undone |
//! | [`engine`] | keeps a run within its budget: observes, decides, acts |
//! | [`division`] | one budget for a program's memory and its files' pages |
//! | [`govern`] | takes memory from a group as far as its slowdown allows |
//! | [`frozen`] | sandboxes that idle: frozen and put out, brought back and thawed |
//! | [`store`] | idle compressed pages: packed more tightly, written to a file |
//! | [`left`] | how many pages of a run have left |
//! | [`repack`] | what packing them more tightly takes and sets free |
//! | [`observe`] | what observes accesses for a policy |
//! | [`support`] | what of all that there is here |
//! | [`files`] | the kernel's files below a root directory |

pub mod division;
pub mod engine;
pub mod files;
pub mod frozen;
pub mod govern;
pub mod left;
pub mod observe;
pub mod repack;
pub mod setup;
pub mod store;
pub mod support;
