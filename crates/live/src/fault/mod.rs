//! A fault: a thread touches a page that is absent, and waits until a handler has brought it.
//!
//! # The path of a fault
//!
//! 1. `fault/wait.rs`: `handle`, `poll`: a handler sleeps or polls until the kernel has
//!    something to report
//! 2. `fault/messages.rs`: `serve_messages`, `take_messages`, `event`: what is reported is read
//!    in order; changes of the address space are carried out at once
//! 3. `fault/serve.rs`: `serve`: finds the page's region, and takes room of the budget
//! 4. `fault/readahead.rs`: `look_ahead`, `bring_ahead`: if the thread walks: the next pages
//!    come along
//! 5. `evict/reclaim.rs`: `reserve`: only if there is no room: the path of an eviction, in the
//!    thread that serves
//! 6. `pager/page_lock.rs`: `lock_page`: one word a page says its state and who owns it
//! 7. `fault/serve.rs`: `serve_reserved`, `first_touch`, `decompress`: fills with zeros, or
//!    decompresses
//! 8. `fault/content.rs`: `unpack`, `unstage`: the content, from the store or the spill file; or
//!    the frame moves back, if the page had not left for good
//! 9. `sys/uffd.rs`: `copy`, `move_frames`, `wake`: the kernel puts the page in place, and the
//!    thread runs
//! 10. `decide/notes.rs`: `push`: a note for the policy, which hears of it before it plans next
//!
//! # Files
//!
//! | file | concept |
//! |---|---|
//! | [`content`] | the content of an absent page, from store, spill file or staging slot |
//! | [`messages`] | what the kernel reports, in order |
//! | [`overhead`] | what a fault takes on top of being served |
//! | [`readahead`] | bringing pages in ahead of a walk |
//! | [`serve`] | the hot path |
//! | [`slow_path`] | faults off the hot path: while the books are frozen, of a child, of unknown memory |
//! | [`stalls`] | how long threads can have waited |
//! | [`streams`] | which pages a program will ask for next |
//! | [`wait`] | how handlers wait for faults: asleep, polling, parked |
//! | [`walks_pay`] | whether it pays to go ahead of walks |

pub(crate) mod content;
pub(crate) mod messages;
pub(crate) mod overhead;
pub(crate) mod readahead;
pub(crate) mod serve;
pub(crate) mod slow_path;
pub(crate) mod stalls;
pub(crate) mod streams;
pub(crate) mod wait;
pub(crate) mod walks_pay;

use crate::fault::stalls::Stalls;
use crate::fault::streams::Streams;
use crate::fault::wait::Handlers;
use crate::fault::walks_pay::WalksPay;

/// What serving faults takes, beside the pages.
#[derive(Default)]
pub(crate) struct Serving {
    /// How the handlers wait.
    pub(crate) handlers: Handlers,
    /// How long threads can have waited for them.
    pub(crate) stalls: Stalls,
    /// What the program is expected to touch next.
    pub(crate) streams: Streams,
    /// Whether it pays to bring that in.
    pub(crate) pays: WalksPay,
}
