//! Byte-addressable tiers: NUMA nodes, and pages that move between them while
//! they stay mapped.
//!
//! | file | concept |
//! |---|---|
//! | [`nodes`] | what a node holds, and how far away it is |
//! | [`dax`] | DAX devices: which node each is, or what keeps it from being one |
//! | [`moves`] | `move_pages`, `process_madvise`: each page's result is honoured |

pub mod dax;
pub mod moves;
pub mod nodes;
