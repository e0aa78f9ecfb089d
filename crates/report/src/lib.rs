//! What Terrace shows of a run: figures, estimates, pictures, OpenMetrics.
//!
//! Everything here is made from what the pagers publish in their statistics
//! pages ([`terrace_live::stats::process_page`]), or what an engine outside of the program knows
//! ([`terrace_live::attach`]); nothing here asks a running program.
//!
//! | file | concept |
//! |---|---|
//! | [`attach`] | the report of memory whose pages stay mapped, and its rates |
//! | `gather` | puts statistics pages together into a report |
//! | [`govern`] | the report of a group that was governed |
//! | [`html`] | a recorded run as one page |
//! | [`in_place`] | how much slower a program ran whose pages stay mapped |
//! | [`kernel`] | the report of a run in which the kernel served the faults |
//! | [`openmetrics`] | figures as OpenMetrics text |
//! | [`outside`] | memory of a run's processes that no budget bounds |
//! | `page_size` | the size of a region's pages, in bytes and by its name |
//! | [`plain`] | processes of a run that nothing was loaded into |
//! | [`run`] | the report of a run: every process's figures, and their sums |
//! | [`rates`] | what happened between two looks at a run |
//! | [`share`] | times of several threads, processors or processes, as shares |
//! | [`table`] | results as CSV and Parquet |
//! | [`slowdown`] | how much slower the program ran than on plain memory |
//! | [`unread`] | processes of a run whose figures cannot be read |

pub mod attach;
mod gather;
pub mod govern;
pub mod html;
pub mod in_place;
pub mod kernel;
pub mod openmetrics;
pub mod outside;
mod page_size;
pub mod plain;
pub mod rates;
pub mod run;
pub mod share;
pub mod slowdown;
pub mod table;
pub mod unread;

pub use attach::{AttachRates, AttachReport, RegionLine};
pub use in_place::InPlaceSlowdown;
pub use rates::Rates;
pub use run::{End, Figures, Head, Moment, RunLevel, RunReport, SharedReport, Usage};
pub use slowdown::Slowdown;
