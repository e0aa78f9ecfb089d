//! What the commands write.
//!
//! | file | concept |
//! |---|---|
//! | [`document`] | JSON for programs |
//! | [`text`] | tables and lines for people |
//! | [`streams`] | stdout and stderr |

mod document;
mod streams;
mod text;

pub(crate) use self::document::{json, json_line};
pub(crate) use self::streams::{print, say, show, warn};
pub(crate) use self::text::{count, facts, percent, table};
use crate::failure::Failure;

/// Whether a file can be written, before the work is done that fills it.
pub(crate) fn writable(option: &str, path: &std::path::Path) -> Result<(), Failure> {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map(drop)
        .map_err(|e| Failure::bad_input(format!("{option}: {}: {e}", path.display())))
}
