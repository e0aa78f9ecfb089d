//! The pager's smallest shared structures, compiled from the very files of
//! `terrace-live`, with atomics and threads that [`shuttle`] schedules: it tries orders
//! of the threads' steps, and repeats the one that failed by its seed. All steps are
//! sequentially consistent there; weaker orders are what `make miri` looks at.

/// What the files find under `crate::atomic`.
pub mod atomic {
    pub use shuttle::sync::atomic::*;
}

/// What of `terrace_live::aside` the files need.
pub mod aside {
    /// Nobody stands aside here.
    pub fn call_all() {}
}

/// What of `terrace_live::sys` the files need.
pub mod sys {
    /// Base page size, bytes.
    pub const PAGE: usize = 4096;
    /// No time passes: nobody is ever gone for long.
    pub fn now() -> u64 {
        0
    }
    /// Lets others run.
    pub fn yield_now() {
        shuttle::thread::yield_now();
    }
}

#[path = "../../../crates/live/src/page_state.rs"]
pub mod page_state;
#[path = "../../../crates/live/src/queue.rs"]
pub mod queue;
#[path = "../../../crates/live/src/spin.rs"]
pub mod spin;

/// Of `terrace_live::spill`.
#[path = "../../../crates/live/src/spill"]
pub mod spill {
    pub mod location;
    pub mod publish;
}
