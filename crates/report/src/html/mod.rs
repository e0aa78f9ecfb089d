//! HTML pages that need nothing else: no script, no network, no font.
//!
//! | file | concept |
//! |---|---|
//! | [`story`] | what the page tells of, in bounded memory |
//! | [`decisions`] | what was decided, and why |
//! | [`chart`] | pictures as SVG |
//! | [`page`](mod@page) | the page of a recorded run |
//! | [`attach`] | the page of memory whose pages stay mapped |
//! | `figures` | published figures, ours beside theirs |
//! | `plan` | the page of a plan |
//! | `sim` | the page of a simulated run |
//! | `shell` | what pages share |

mod attach;
mod chart;
mod decisions;
mod figures;
mod page;
mod plan;
mod shell;
mod sim;
mod story;

pub use attach::{AttachStory, attach_page};
pub use decisions::Decisions;
pub use figures::{Figure, figures_page};
pub use page::page;
pub use plan::plan_page;
pub use sim::sim_page;
pub use story::{Column, RegionColumn, RegionKey, Story};
