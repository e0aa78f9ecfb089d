//! Recorded memory accesses: our trace format, and those of others.
//!
//! | file | concept |
//! |---|---|
//! | [`mod@format`] | the file, byte by byte |
//! | `codec` | how accesses become bytes |
//! | [`writer`], [`reader`] | writing and reading it |
//! | [`partial`] | as much of a trace as can be read |
//! | [`raw`] | what the recorder sends while a program runs |
//! | [`import`] | formats of other tools |

mod codec;
pub mod format;
pub mod import;
pub mod partial;
pub mod raw;
pub mod reader;
pub mod writer;

pub use format::{TraceError, TraceHeader};
pub use import::Format;
pub use partial::Partial;
pub use raw::RawReader;
pub use reader::{TraceIndex, TraceReader};
pub use writer::TraceWriter;
