//! A volume as a network block device (NBD), for `nbd-client`, qemu, libnbd and fio.
//!
//! The protocol is that of `doc/proto.md` of the network block device project: fixed newstyle
//! negotiation, structured replies, block status, several connections. A sector that a client
//! writes is never torn; a flush on one connection covers completed writes on all.
//!
//! No maintained crate serves NBD from a synchronous Rust program under a permissive licence, so
//! the few messages stand here.
//!
//! | file | concept |
//! |---|---|
//! | [`negotiation`] | what is agreed on before requests |
//! | [`mod@session`] | requests and replies |
//! | [`server`] | sockets and connections |
//! | [`wire`] | numbers of the protocol, and how they are read |

mod negotiation;
pub mod server;
mod session;
mod wire;

pub use server::{Listener, Stop, serve};
pub use session::{Ended, session};
