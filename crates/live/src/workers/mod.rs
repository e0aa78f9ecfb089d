//! Terrace's own threads in the program.
//!
//! | file | concept |
//! |---|---|
//! | [`accounts`] | the statistics page is brought up to date |
//! | [`bell`] | the manager sleeps until somebody rings |
//! | [`bump_arena`] | memory for what the C library allocates in them |
//! | [`command`] | what the program's threads ask of the manager |
//! | [`credentials`] | changes of user and groups, which they make with the program's |
//! | [`early_handles`] | what managing will need, opened while the process still may |
//! | [`idle_priority`] | running only where nobody else wants to, unless somebody waits |
//! | [`manager`] | what happens in the background or on request |
//! | [`processors`] | where a thread may run |
//! | [`spawn`] | creating threads without the C library |
//! | [`stack`] | a stack of our own for a thread of the program's |
//! | [`threads`] | the manager and the handlers from beginning to end |
//! | [`tls`] | their thread-local storage |
//! | [`worker`] | what every one of them has |

pub(crate) mod accounts;
pub(crate) mod bell;
pub mod bump_arena;
pub mod command;
pub mod credentials;
pub mod early_handles;
pub mod idle_priority;
pub(crate) mod manager;
pub(crate) mod processors;
pub(crate) mod spawn;
pub mod stack;
pub mod threads;
pub mod tls;
pub(crate) mod worker;
