//! Statistics in files that outlive the process.
//!
//! | file | concept |
//! |---|---|
//! | [`freed_regions`] | regions that are no longer there |
//! | [`histogram`] | latencies |
//! | [`opened`] | such a file, mapped to be read |
//! | [`process_page`] | the statistics page of a process |

pub mod freed_regions;
pub mod histogram;
pub mod opened;
pub mod process_page;
