//! The daemon, and what it is asked.
//!
//! | file | concept |
//! |---|---|
//! | `daemon` | events, pressure, questions: one loop |
//! | `worker` | what is to be done to files, in a thread of its own |
//! | `todo` | in which order the worker does it |
//! | `filters` | what it was told to look at alone, and of which of it nothing was seen |
//! | `listing` | a list of files, part by part |
//! | `source` | where events come from |
//! | `state` | the daemon's directory: who runs, and the socket it is asked through |
//! | `documents` | answers |

pub mod daemon;
pub mod documents;
pub mod filters;
mod listing;
pub mod source;
pub mod state;
mod todo;
pub mod worker;
