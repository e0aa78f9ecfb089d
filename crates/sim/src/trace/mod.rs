//! Recorded memory accesses: our trace format, and those of others.
//!
//! | file | concept |
//! |---|---|
//! | [`mod@format`] | the file, byte by byte |
//! | `codec` | how accesses become bytes |
//! | [`writer`], [`reader`] | writing and reading it |
//! | [`partial`] | as much of a trace as can be read |
//! | [`io`] | what the program asked the kernel for, between its accesses |
//! | `raw` | what the recorder sends while a program runs |
//! | [`import`] | formats of other tools |
//! | `summary` | what was read, and what of it was skipped, dropped or folded |

mod codec;
pub mod format;
pub mod import;
pub mod io;
pub mod partial;
mod raw;
pub mod reader;
mod summary;
pub mod writer;

pub use format::{TraceError, TraceHeader};
pub use import::Format;
pub use io::{IoCheck, IoRecord};
pub use partial::Partial;
pub use reader::{TraceIndex, TraceReader};
pub use summary::{Fate, Note, Summary};
pub use writer::TraceWriter;
