//! What can be done to a file's kernel objects from user space.
//!
//! | file | concept |
//! |---|---|
//! | `handle` | a file by device, inode and generation, never by its path |
//! | `lease` | the proof that nobody else has it open |
//! | `residency` | what of it is cached, and dirty |
//! | `pages` | its pages leave: dropped, moved to a slow node, or marked cold |
//! | `extents` | its extents leave; the kernel reads them again when it needs them |
//! | `prefetch` | its pages come back |
//! | `privileges` | what of the daemon's rights is needed, and what is dropped |
//! | `sys` | system calls that no library has |
//!
//! Nothing here writes to a file, and nothing that is dirty is dropped: it is written back first,
//! as the kernel would.

pub mod extents;
pub mod handle;
pub mod lease;
pub mod pages;
pub mod prefetch;
pub mod privileges;
pub mod residency;
mod sys;
