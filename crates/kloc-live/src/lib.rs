//! KLOCs on a stock kernel: contexts that eBPF observes, decided by the policy code of
//! `terrace-kloc`, acted on from user space.
//!
//! | room | concept |
//! |---|---|
//! | [`observe`] | what happens to files and sockets |
//! | [`decide`] | which files' pages leave, and why |
//! | [`act`] | what is done to their pages and extents |
//! | [`report`] | what is known of kernel objects: Table 1 and Figure 2 of the paper |
//! | [`service`] | the daemon, and what it is asked |

pub mod act;
pub mod decide;
pub mod observe;
pub mod report;
pub mod service;
