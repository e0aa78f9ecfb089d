//! Recorded memory accesses: our trace format, and those of others.
//!
//! | file | concept |
//! |---|---|
//! | [`mod@format`] | the file, byte by byte |
//! | `codec` | how accesses become bytes |
//! | [`writer`], [`reader`] | writing and reading it |
//! | [`raw`] | what the recorder sends while a program runs |
//! | [`import`] | formats of other tools |

mod codec;
pub mod format;
pub mod import;
pub mod raw;
pub mod reader;
pub mod writer;

pub use format::{TraceError, TraceHeader};
pub use import::Format;
pub use raw::RawReader;
pub use reader::{TraceIndex, TraceReader};
pub use writer::TraceWriter;
