//! The pager's smallest shared structures, compiled from the very files of
//! `terrace-live`, with atomics and threads that [`shuttle`] schedules: it tries orders
//! of the threads' steps, and repeats the one that failed by its seed. All steps are
//! sequentially consistent there; weaker orders are what `make miri` looks at.

/// What the files find under `crate::atomic`.
pub mod atomic {
    pub use shuttle::sync::atomic::*;
}

/// What of `terrace_live::workers` the files need.
pub mod workers {
    /// Its threads that run only where nobody else wants to.
    pub mod idle_priority {
        /// There are none here.
        pub fn call_all() {}
    }
}

/// What of `terrace_live::sys` the files need, and one that is tried itself.
#[path = "../../../crates/live/src/sys"]
pub mod sys {
    pub mod spin;

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

/// Of `terrace_live::space`.
#[path = "../../../crates/live/src/space"]
pub mod space {
    pub mod page_state;
}

/// Of `terrace_live::fork`.
#[path = "../../../crates/live/src/fork"]
pub mod fork {
    pub mod turns;
}

/// Of `terrace_live::decide`.
#[path = "../../../crates/live/src/decide"]
pub mod decide {
    pub mod notes;
}

/// Of `terrace_live::spill`.
#[path = "../../../crates/live/src/spill"]
pub mod spill {
    pub mod location;
    pub mod publish;
}
