//! Faults of our own, on purpose: for tests.
//!
//! `TERRACE_INJECT=POINT:N:WHAT` makes the N-th passage through a point panic
//! (`panic`) or hang for 300 ms (`stall`), or has what is asked of the kernel there refused
//! (`refuse`, at `register` and `mappings` only); the preloaded library reads it. At `listed`, where
//! management begins, a passage can only hang. What
//! must hold whatever is injected: the program goes on with its content intact.
//! The points stand where most is half done. Without the variable a point is
//! one load of a constant zero.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use crate::sys;

/// The variable's name.
pub const VARIABLE: &str = "TERRACE_INJECT";

/// Where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Point {
    /// A fault was read, nothing is done yet.
    Fault = 1,
    /// A page is ours and its content is where it was.
    Promote = 2,
    /// A page's content is in place, the books do not say so.
    Promoted = 3,
    /// Pages have moved out, the books do not say so.
    Stage = 4,
    /// A page is compressed, the books do not say so.
    Settle = 5,
    /// An address-space event was read and is not carried out.
    Event = 6,
    /// A fork is announced.
    Fork = 7,
    /// The manager's tick.
    Tick = 8,
    /// A page's content is in the spill file, its word does not say so.
    Write = 9,
    /// Every page of a range is ours, to become one huge page.
    Collapse = 10,
    /// A forked child registers a range of its memory.
    Register = 11,
    /// Pages that are shared with a child are about to become this process's alone.
    Unshare = 12,
    /// As management begins, the kernel is asked which parts of large reservations are accessible.
    Mappings = 13,
    /// As management begins, it is known what is mapped, and nothing of that is registered.
    Listed = 14,
}

const NAMES: [(&str, Point); 11] = [
    ("fault", Point::Fault),
    ("promote", Point::Promote),
    ("promoted", Point::Promoted),
    ("stage", Point::Stage),
    ("settle", Point::Settle),
    ("event", Point::Event),
    ("fork", Point::Fork),
    ("tick", Point::Tick),
    ("write", Point::Write),
    ("collapse", Point::Collapse),
    ("unshare", Point::Unshare),
];

/// Calls that a passage asks for, and does not get.
const REFUSED: [(&str, Point); 2] = [("register", Point::Register), ("mappings", Point::Mappings)];

/// Passages that can take long, and where nobody would catch a panic.
const HELD_UP: [(&str, Point); 1] = [("listed", Point::Listed)];

/// What the points are called at which something of ours can break.
pub fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, _)| *name)
}

/// The point that is armed; 0: none.
static ARMED: AtomicU32 = AtomicU32::new(0);
static LEFT: AtomicU64 = AtomicU64::new(0);
static STALLS: AtomicU32 = AtomicU32::new(0);
/// How long a stall lasts, ns.
const STALL: u64 = 300_000_000;

/// Arms a point, as the variable's value says; false if it cannot be read.
pub fn arm(text: &str) -> bool {
    let mut parts = text.split(':');
    let (Some(point), Some(n), Some(what), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let known = if what == "refuse" { &REFUSED[..] } else { &NAMES[..] };
    let held_up = HELD_UP.iter().filter(|_| what == "stall");
    let point = known.iter().chain(held_up).find(|(name, _)| *name == point);
    let (Some(&(_, point)), Ok(n @ 1..)) = (point, n.parse()) else { return false };
    let stall = match what {
        "stall" => 1,
        "panic" | "refuse" => 0,
        _ => return false,
    };
    LEFT.store(n, Relaxed);
    STALLS.store(stall, Relaxed);
    ARMED.store(point as u32, Release);
    true
}

/// Passes a point.
#[inline]
pub fn at(point: Point) {
    if ARMED.load(Relaxed) == point as u32 {
        strike(point);
    }
}

/// Passes a point where the kernel is asked for something; whether it is to be refused.
#[inline]
pub fn refuses(point: Point) -> bool {
    let refused = ARMED.load(Relaxed) == point as u32 && LEFT.fetch_sub(1, AcqRel) == 1;
    if refused {
        ARMED.store(0, Release);
    }
    refused
}

#[cold]
fn strike(point: Point) {
    if LEFT.fetch_sub(1, AcqRel) != 1 {
        return;
    }
    ARMED.store(0, Release);
    if STALLS.load(Relaxed) != 0 {
        sys::sleep(STALL);
        return;
    }
    panic!("injected at {point:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_nth_passage_strikes() {
        assert!(!arm("stage:0:panic") && !arm("stage:1") && !arm("nowhere:1:panic"));
        assert!(!arm("stage:1:panic:2") && !arm("stage:1:explode"));
        assert!(!arm("listed:1:panic") && !arm("listed:1:refuse") && arm("listed:1:stall"));
        assert!(arm("tick:3:panic"));
        at(Point::Tick);
        at(Point::Stage);
        at(Point::Tick);
        assert!(std::panic::catch_unwind(|| at(Point::Tick)).is_err());
        at(Point::Tick);

        assert!(!arm("register:2:panic") && !arm("tick:2:refuse"));
        assert!(arm("mappings:1:refuse"));
        assert!(arm("register:2:refuse"));
        let passages = [(); 3].map(|()| refuses(Point::Register));
        assert_eq!(passages, [false, true, false]);
    }
}
