//! The kernel engine at work: the kernel serves the faults, Terrace makes room. For a program that
//! is started (`run --engine kernel`), and for programs that run already (`attach --engine kernel`).
//!
//! | file | concept |
//! |---|---|
//! | [`session`] | programs that are kept within their budget, and shown |
//! | [`made`] | what was made for them, and is undone whatever happens |
//! | [`joined`] | a program that shares the budget of another run |
//! | [`member`] | its part in a budget that runs of either engine share |
//! | [`chooser`] | which policy chooses what leaves |
//! | [`outside`] | memory of its processes that the control group does not count |
//! | [`stored`] | what its compressed pages take of devices that others swap to, too |
//! | [`given_up`] | why a budget was given up |
//! | [`total`] | a budget that is for compressed pages as well |
//! | [`render`](mod@render) | the report as people read it |

pub(crate) mod chooser;
mod given_up;
pub(crate) mod joined;
pub(crate) mod made;
pub(crate) mod member;
mod outside;
mod render;
pub(crate) mod session;
mod stored;
pub(crate) mod total;

use std::fs;

use terrace_core::Bytes;
use terrace_live::config::RunConfig;

pub(crate) use self::render::{division, render};

/// The least budget.
pub(crate) const LEAST: Bytes = RunConfig::MIN_FAST;

/// What the machine has.
pub(crate) fn machine_memory() -> Bytes {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok())
        .map_or(Bytes::gib(4), Bytes::kib)
}
