//! Memory that the program wants at an address of its own choice: managed where it is.
//!
//! Run-time systems (Java's, JavaScript's, some allocators) reserve a range of
//! addresses without access and give themselves access to parts of it as they grow, by
//! `mprotect` or by a new mapping in the old one's place. While nothing is managed yet, such
//! ranges are noted here; once there is a pager, it is told of each as it is made.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use terrace_live::command::Command;
use terrace_live::presence;
use terrace_live::ranges::Ranges;
use terrace_live::regions::in_window;
use terrace_live::spin::SpinLock;

use crate::state;

static NOTED: SpinLock<Ranges> = SpinLock::new(Ranges::new());
/// How many there are, for those who only want to know whether there are any.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn noted<T>(work: impl FnOnce(&mut Ranges) -> T) -> T {
    state::signals_blocked(|| {
        let mut ranges = NOTED.lock();
        let result = work(&mut ranges);
        COUNT.store(ranges.len(), Release);
        result
    })
}

/// In a forked child, which has one thread: another of the parent's may have had the lock.
pub(crate) fn forked() {
    // SAFETY: nobody else exists; at worst a range that was just changing is lost, and
    // stays unmanaged.
    unsafe { NOTED.force_unlock() };
}

/// Private anonymous memory was mapped, in place of whatever was there.
pub(crate) fn mapped(start: usize, end: usize) {
    if let Some(pager) = state::pager() {
        state::signals_blocked(|| pager.commands.ask(pager, Command::Manage, start, end));
    } else if !in_window(start) {
        // What is in the window is found by itself.
        noted(|ranges| ranges.add(start, end));
        if state::pager().is_some() {
            // It has just begun, and may have looked before.
            manage_all();
        }
    }
}

/// A range was unmapped, or is of another kind now.
pub(crate) fn unmapped(start: usize, end: usize) {
    if COUNT.load(Acquire) != 0 && !in_window(start) {
        noted(|ranges| ranges.remove(start, end));
    }
}

/// Whether any of a range is to be managed.
pub(crate) fn contains(start: usize, end: usize) -> bool {
    in_window(start) || COUNT.load(Acquire) != 0 && noted(|ranges| ranges.overlaps(start, end))
}

/// Bytes that the program can write to, of what is to be managed; `None` if the
/// kernel does not say (the program is out of descriptors, say).
pub(crate) fn accessible() -> Option<usize> {
    let mut bytes = 0;
    let told = presence::for_each_mapping(|m| {
        if !m.is_ordinary() {
            return;
        }
        bytes += if in_window(m.start) {
            m.end - m.start
        } else {
            noted(|ranges| ranges.shared_with(m.start, m.end))
        };
    });
    told.then_some(bytes)
}

/// There is a pager: it is to manage what was noted.
pub(crate) fn manage_all() {
    // One at a time: nobody waits for the lock while the manager works.
    while let Some((start, end)) = noted(Ranges::pop) {
        let mut at = start;
        while let Some((from, to)) = first_mapped(at, end) {
            mapped(from, to);
            at = to;
        }
    }
}

/// The first part of a range that is private anonymous memory, accessible or reserved.
fn first_mapped(start: usize, end: usize) -> Option<(usize, usize)> {
    let mut first = None;
    presence::for_each_mapping(|m| {
        let part = (start.max(m.start), end.min(m.end));
        if first.is_none() && part.0 < part.1 && m.is_manageable() {
            first = Some(part);
        }
    });
    first
}
