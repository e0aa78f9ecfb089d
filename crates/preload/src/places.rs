//! Memory that the program wants at an address of its own choice: managed where it is.
//!
//! Run-time systems (Java's, JavaScript's, some allocators) reserve a range of
//! addresses without access and give themselves access to parts of it as they grow, by
//! `mprotect` or by a new mapping in the old one's place. While nothing is managed yet, such
//! ranges are noted here; once there is a pager, it is told of each as it is made. What such a
//! system gives back, by a mapping without access in the old one's place, is noted here, too, until it
//! is accessible again.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use terrace_live::failsafe::inject::{self, Point};
use terrace_live::pager::Pager;
use terrace_live::space::ranges::Ranges;
use terrace_live::space::regions::{in_window, is_gone};
use terrace_live::space::{proc_maps, reservations};
use terrace_live::sys::PAGE;
use terrace_live::sys::spin::SpinLock;
use terrace_live::workers::command::Command;

use crate::state;

/// What is to be managed once there is a pager.
static NOTED: List = List::new();
/// What has lost its access, and is not managed until it has some again.
static LEFT_OUT: List = List::new();
/// How many parts are left out at most: each may be a mapping of its own, of which a process may have
/// 65,530, where without Terrace it would be one with what is reserved beside it.
const MOST_LEFT_OUT: usize = 256;

/// Ranges that several threads change.
struct List {
    ranges: SpinLock<Ranges>,
    /// From the first to the last of them: most of what a program maps and unmaps lies elsewhere,
    /// and need not be looked up.
    span: [AtomicUsize; 2],
}

impl List {
    const fn new() -> Self {
        Self { ranges: SpinLock::new(Ranges::new()), span: [const { AtomicUsize::new(0) }; 2] }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Ranges) -> T) -> T {
        state::signals_blocked(|| {
            let mut ranges = self.ranges.lock();
            let result = work(&mut ranges);
            let (start, end) = ranges.span();
            self.span[0].store(start, Release);
            self.span[1].store(end, Release);
            result
        })
    }

    /// Whether any of a range may be in it. A child that was not made by a fork that we know of does
    /// not touch the list: it may have been changing.
    fn may_have(&self, start: usize, end: usize) -> bool {
        start < self.span[1].load(Acquire)
            && self.span[0].load(Acquire) < end
            && state::config().is_some()
    }

    fn overlaps(&self, start: usize, end: usize) -> bool {
        self.may_have(start, end) && self.with(|ranges| ranges.overlaps(start, end))
    }

    /// Takes a range out. Where there are too many parts, returns one beside it that is in the list no
    /// longer.
    fn remove(&self, start: usize, end: usize) -> Option<(usize, usize)> {
        if self.may_have(start, end) { self.with(|ranges| ranges.remove(start, end)) } else { None }
    }
}

/// Takes the lists for the thread that forks: no other changes them while the copy is made.
pub(crate) fn hold() {
    core::mem::forget(NOTED.ranges.lock());
    core::mem::forget(LEFT_OUT.ranges.lock());
    reservations::hold();
}

/// Gives them back, in whichever process.
///
/// # Safety
/// Once after [`hold`], in the same thread.
pub(crate) unsafe fn let_go() {
    // SAFETY: the caller's.
    unsafe {
        NOTED.ranges.force_unlock();
        LEFT_OUT.ranges.force_unlock();
        reservations::let_go();
    }
}

/// Private anonymous memory was mapped, in place of whatever was there.
pub(crate) fn mapped(start: usize, end: usize) {
    if let Some(pager) = state::pager() {
        forget_left_out(start, end);
        return ask(pager, start, end);
    }
    if state::is_broken() {
        return;
    }
    // What is in the window, or in a large reservation, is found by itself.
    if in_window(start) {
        // Whoever begins just now may have looked before.
        state::await_start();
        if let Some(pager) = state::pager() {
            ask(pager, start, end);
        }
        return;
    }
    if state::signals_blocked(|| reservations::overlap(start, end)) {
        return;
    }
    if !NOTED.with(|ranges| ranges.add(start, end)) {
        // So many that no more can be noted: the pager can manage more.
        state::begin_early();
        if state::pager().is_none() {
            // It does not begin while somebody forks.
            state::not_noted(start, end);
        }
    }
    if let Some(pager) = state::pager() {
        // It has just begun, and may have looked before.
        manage_all();
        ask(pager, start, end);
    }
}

/// The pager is to manage a range. If it cannot, its statistics say so.
fn ask(pager: &Pager, start: usize, end: usize) {
    state::signals_blocked(|| pager.commands.ask(pager, Command::Manage, start, end));
}

/// Memory without access was mapped, in place of whatever was there.
pub(crate) fn reserved(start: usize, end: usize) {
    if leave_out(start, end) {
        return;
    }
    let of_large = state::signals_blocked(|| reservations::overlap(start, end));
    if of_large {
        // A part of it was given back. If that part is managed, it is to stay so.
        if state::regions(|regions| regions.find(start).is_some()) == Some(true)
            && let Some(pager) = state::pager()
        {
            ask(pager, start, end);
        }
    } else if end - start < reservations::LARGE {
        mapped(start, end);
    } else {
        unmapped(start, end);
        if !state::signals_blocked(|| reservations::note(start, end)) {
            mapped(start, end);
        }
    }
}

/// Leaves out memory without access that was mapped where memory is managed; false if it is to be
/// managed as it is. So run-time systems give parts of their heaps back, by the thousand. Nobody can
/// touch them before they have access again, which a hook sees ([`take_back`]). To have the pager
/// manage them before would be a wait for it each time, and most often for nothing: what comes next
/// is a new mapping in their place.
fn leave_out(start: usize, end: usize) -> bool {
    let is_managed =
        state::regions(|regions| [start, end - PAGE].iter().all(|&at| regions.find(at).is_some()));
    // One more may make two of one.
    let is_room = |ranges: &Ranges| ranges.len() + 2 <= MOST_LEFT_OUT;
    is_managed == Some(true) && LEFT_OUT.with(|ranges| is_room(ranges) && ranges.add(start, end))
}

/// A range may be accessed from now on, or is about to be moved as one: what was left out of it is
/// managed again.
pub(crate) fn take_back(start: usize, end: usize) {
    while LEFT_OUT.may_have(start, end)
        && let Some(pager) = state::pager()
        && let Some((from, to)) = LEFT_OUT.with(|ranges| ranges.take(start, end))
    {
        ask(pager, from, to);
    }
}

/// A range may be accessed from now on. Of a large reservation, that part is to be managed.
pub(crate) fn now_accessible(start: usize, end: usize) {
    take_back(start, end);
    if !reservations::any() || !state::signals_blocked(|| reservations::overlap(start, end)) {
        return;
    }
    let all_managed = state::regions(|regions| {
        [start, end - PAGE].iter().all(|&at| regions.find(at).is_some_and(|at| !is_gone(&at)))
    });
    if all_managed == Some(false)
        && let Some(pager) = state::pager()
    {
        ask(pager, start, end);
    }
}

/// A range was unmapped, or is of another kind now.
pub(crate) fn unmapped(start: usize, end: usize) {
    forget_left_out(start, end);
    // A part beside it that can be noted no longer is as good as mapped just now.
    if !in_window(start)
        && let Some((from, to)) = NOTED.remove(start, end)
    {
        mapped(from, to);
    }
    if are_any_reserved()
        && let Some((from, to)) = state::signals_blocked(|| reservations::forget(start, end))
    {
        mapped(from, to);
    }
}

/// The same of a range of the window, in which nothing else is noted.
pub(crate) fn forget_left_out(start: usize, end: usize) {
    if let Some((from, to)) = LEFT_OUT.remove(start, end)
        && let Some(pager) = state::pager()
    {
        // It would not be known when it has access again: it is managed as it is.
        ask(pager, from, to);
    }
}

/// Whether any of a range is to be managed.
pub(crate) fn contains(start: usize, end: usize) -> bool {
    in_window(start)
        || NOTED.overlaps(start, end)
        || LEFT_OUT.overlaps(start, end)
        || are_any_reserved() && state::signals_blocked(|| reservations::overlap(start, end))
}

/// Whether there are large reservations. A child that was not made by a fork that we know of does not
/// look: they may have been changing.
fn are_any_reserved() -> bool {
    reservations::any() && state::config().is_some()
}

/// Bytes that the program can write to, of what is to be managed; `None` if the
/// kernel does not say (the program is out of descriptors, say).
pub(crate) fn accessible() -> Option<usize> {
    let mut bytes = 0;
    let told = proc_maps::for_each_mapping(|m| {
        if !m.is_ordinary() {
            return;
        }
        bytes += if in_window(m.start) {
            m.end - m.start
        } else {
            let large = || reservations::shared_with(m.start, m.end);
            let noted = NOTED.with(|ranges| ranges.shared_with(m.start, m.end));
            noted + state::signals_blocked(large)
        };
    });
    told.then_some(bytes)
}

/// There is a pager: it is to manage what was noted.
pub(crate) fn manage_all() {
    // One at a time: nobody waits for the lock while the manager works.
    while let Some((start, end)) = NOTED.with(Ranges::pop) {
        // Something of ours has broken: what is offered would only be noted once more.
        if state::pager().is_none() {
            return;
        }
        let mut at = start;
        while let Some((from, to)) = first_mapped(at, end) {
            mapped(from, to);
            at = to;
        }
    }
    let mut at = 0;
    loop {
        let Ok(first) = first_accessible_of_reservations(at) else {
            return reservations_are_not_known(at);
        };
        let Some((from, to)) = first else { return };
        if state::pager().is_none() {
            return;
        }
        mapped(from, to);
        at = to;
        // Mostly all of its part is managed now.
        if let Some((_, end)) = state::signals_blocked(|| reservations::part_of(from))
            && state::regions(|regions| regions.find(end - PAGE).is_some()) == Some(true)
        {
            at = at.max(end);
        }
    }
}

/// The kernel does not say what is mapped (the program is out of descriptors, say).
struct NotTold;

/// What large reservations have from an address on may be accessible by now, and so on plain memory. All of
/// it together is too much to be managed as if it were. The statistics say so.
fn reservations_are_not_known(mut at: usize) {
    while let Some((start, end)) = state::signals_blocked(|| reservations::next(at)) {
        state::not_noted(start, end);
        at = end;
    }
}

/// The first part of large reservations, from an address on, that may be accessed.
fn first_accessible_of_reservations(at: usize) -> Result<Option<(usize, usize)>, NotTold> {
    if !reservations::any() {
        return Ok(None);
    }
    if inject::refuses(Point::Mappings) {
        return Err(NotTold);
    }
    let mut first = None;
    let is_told = proc_maps::for_each_mapping(|m| {
        let start = m.start.max(at);
        if first.is_some() || start >= m.end || !m.is_ordinary() {
            return;
        }
        first = state::signals_blocked(|| {
            let mut from = start;
            while from < m.end {
                let until = reservations::until(from, m.end);
                if reservations::part_of(from).is_some() {
                    return Some((from, until));
                }
                from = until;
            }
            None
        });
    });
    if is_told || first.is_some() { Ok(first) } else { Err(NotTold) }
}

/// The first part of a range that is private anonymous memory, accessible or reserved. If the kernel
/// does not say what is mapped (the program is out of descriptors, say), that is all of the range, as it
/// was when it was noted. The pager tells of what it cannot manage.
fn first_mapped(start: usize, end: usize) -> Option<(usize, usize)> {
    if start >= end {
        return None;
    }
    let mut first = None;
    let is_told = proc_maps::for_each_mapping(|m| {
        let part = (start.max(m.start), end.min(m.end));
        if first.is_none() && part.0 < part.1 && m.is_manageable() {
            first = Some(part);
        }
    });
    if is_told { first } else { Some((start, end)) }
}
