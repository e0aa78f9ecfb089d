//! Huge pages: prepared ahead of walks through fresh memory, and made of base pages in use.
//!
//! | file | concept |
//! |---|---|
//! | [`collapse`] | base pages in use become one huge page |
//! | [`guide`] | what a profile of an earlier run says |
//! | [`fresh_walks`] | how far a program has walked through fresh memory |
//! | [`page_walk_cost`] | what a page walk costs here |
//! | [`prezero`] | huge pages of zeros, ahead of a walk |
//! | [`tlb_model`] | page walks, from how often pages are visited |

pub mod collapse;
pub(crate) mod fresh_walks;
pub(crate) mod guide;
pub(crate) mod page_walk_cost;
pub(crate) mod prezero;
pub(crate) mod tlb_model;
