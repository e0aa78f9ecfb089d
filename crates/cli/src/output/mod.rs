//! What the commands write.
//!
//! | file | concept |
//! |---|---|
//! | [`document`] | JSON for programs |
//! | [`text`] | tables and lines for people |
//! | [`streams`] | stdout and stderr |
//! | [`mod@file`] | files that options name |
//! | [`place`] | what the path of one stands for |
//! | [`argument`] | what an argument of a program may name |
//! | [`drafts`] | what is not complete when a command is interrupted |

mod argument;
mod document;
mod drafts;
mod file;
mod place;
mod streams;
mod text;

pub(crate) use self::document::{json, json_line};
pub(crate) use self::drafts::{Draft, remove_when_interrupted};
pub(crate) use self::file::{Files, Kind, Output};
pub(crate) use self::streams::{
    lines_lost, lost_row, outlive_limits, print, say, show, try_show, warn,
};
pub(crate) use self::text::{count, counted, facts, percent, plain, several, table};
