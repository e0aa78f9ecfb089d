//! A recorded run as one HTML page that needs nothing else: no script, no
//! network, no font.
//!
//! | file | concept |
//! |---|---|
//! | [`story`] | what the page tells of, in bounded memory |
//! | [`chart`] | pictures as SVG |
//! | [`page`](mod@page) | the page |

mod chart;
mod page;
mod story;

pub use page::page;
pub use story::{Column, Group, RegionColumn, RegionKey, Story, Sums};
