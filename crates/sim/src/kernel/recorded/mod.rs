//! Calls that programs made on a running kernel: recorded, kept in a file, and made again.
//!
//! | file | concept |
//! |---|---|
//! | `translate` | from what tracepoints say to calls |
//! | `recording` | calls with the files they are about, and what must hold of them |
//! | `file` | their file |
//! | `replay` | a recording as a program |

mod file;
mod recording;
mod replay;
mod translate;

pub use file::{CallsError, is_meant, read, read_text, write};
pub(crate) use recording::Check;
pub use recording::{Counted, Made, RecordedFile, Recording, Unfit};
pub use replay::Replay;
pub(crate) use replay::{about, begins_or_ends};
pub use translate::Translator;
pub(crate) use translate::{Descriptor, Object, Seen};
