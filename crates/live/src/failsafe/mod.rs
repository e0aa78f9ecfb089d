//! What happens when something of Terrace's breaks, or the program ends.
//!
//! | file | concept |
//! |---|---|
//! | [`core_tables`] | where a core dump has what completes it |
//! | [`dying`] | helping killed programs to their end |
//! | [`give_up`] | the program goes on, on plain memory |
//! | [`hand_back`] | what managing took of the address space |
//! | [`inject`] | breaking it for tests |
//! | [`reserve_memory`] | memory for when the kernel gives no more |
//! | [`seccomp`] | programs that forbid themselves system calls |
//! | [`sharers`] | processes that share the program's memory, and may outlive it |
//! | [`valgrind`] | programs that run on no processor that we know |

pub mod core_tables;
pub mod dying;
pub mod give_up;
pub mod hand_back;
pub mod inject;
pub mod reserve_memory;
pub(crate) mod seccomp;
pub mod sharers;
pub mod valgrind;
