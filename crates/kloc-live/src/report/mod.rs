//! What is known of kernel objects, as the paper's Table 1 and Figure 2 show it.
//!
//! | file | concept |
//! |---|---|
//! | `table` | kinds of objects: what is known of each, and how |
//! | `footprint` | what they take on this machine |
//! | `lifetimes` | how long contexts are open, idle, and live |

pub mod footprint;
pub mod lifetimes;
pub mod table;
