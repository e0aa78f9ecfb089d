//! Contexts: files and sockets, with everything that becomes hot and cold with them.
//!
//! A context groups the kernel objects of one file or one socket (the *knode* of
//! Kannan, Ren and Bhattacharjee, *KLOCs*, ASPLOS 2021). Its identity survives
//! renames, its life has a few marked points, and its members are counted by
//! kind. Worlds tell of all that by [`ContextEvent`]s.
//!
//! | file | concept |
//! |---|---|
//! | `identity` | what a context is: a file or a socket, and which |
//! | `object` | the kinds of kernel objects, with size, allocator, mobility |
//! | `life` | a context from its creation to its end, and the rules of that |
//! | `event` | what happens to contexts, as data |

mod event;
mod identity;
mod life;
mod object;

pub use event::{ContextChange, ContextEvent, Cpu};
pub use identity::{ContextIdentity, ContextKind};
pub use life::{Context, ContextError, Members, State};
pub use object::{Allocator, Mobility, ObjectId, ObjectKind, Subsystem};
