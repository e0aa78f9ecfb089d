//! Compressed pages in RAM.
//!
//! | file | concept |
//! |---|---|
//! | [`codec`] | compressing a page |
//! | [`density`] | how tightly |
//! | [`slabs`] | where compressed pages lie |
//! | [`zero_bytes`] | a codec that takes well under a microsecond |

pub mod codec;
pub(crate) mod density;
pub(crate) mod slabs;
pub(crate) mod zero_bytes;
