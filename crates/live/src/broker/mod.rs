//! One budget for several processes.
//!
//! `terrace run` (or `terrace broker`, for programs that have nothing to do with
//! each other) is the *broker*. It divides the budget among the processes by
//! need, some ten times a second. Processes and broker share a page of memory
//! and nothing else: each process has a slot in it, says there what it holds and
//! how often it misses what it does not, and reads its share there. So no fault
//! ever waits for the broker, and a broker that dies leaves every process with
//! the share that it had.
//!
//! Shares move in two steps. A process whose share was lowered gives memory
//! back in the background and says how far it has come; only what has been given
//! back is granted to others. So shares never add up to more than the budget, and
//! neither does what processes may hold, except for frames that a forked child
//! shares with its parent.
//!
//! | file | concept |
//! |---|---|
//! | [`share`] | who gets how much: a pure function |
//! | [`page`] | the page that broker and processes share |
//! | [`member`] | a process's side |
//! | [`ending`] | what a process says of its memory when it ends |
//! | [`lent`] | what a process that is not managed has in common with its relatives |
//! | [`outsider`] | the side of a run whose faults the kernel serves |
//! | [`keeper`] | the broker's side |
//! | [`control`] | changing the budget from outside, by a socket |
//! | [`number`] | under which number a process is known |

pub mod control;
pub mod ending;
pub mod keeper;
mod lent;
pub mod member;
pub(crate) mod number;
pub mod outsider;
pub mod page;
pub mod share;
