//! Byte-addressable tiers: NUMA nodes, and pages that move between them while
//! they stay mapped.
//!
//! | file | concept |
//! |---|---|
//! | [`nodes`] | what a node holds, and how far away it is |
//! | [`moves`] | `move_pages`, `process_madvise`: each page's result is honoured |

pub mod moves;
pub mod nodes;
