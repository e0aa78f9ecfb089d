//! Takes memory from a group in a thread of its own, and stops as soon as the group asks for more.
//!
//! Nothing bounds a group that is governed, so what is taken from it must not stand in its way. Under
//! version 1 of control groups the kernel is asked by a limit, and does not return before no more than
//! that is charged, however much the group asks for meanwhile. So memory is taken in steps of
//! [`STEP`], each from what is charged by then. Between them the thread looks whether the group has
//! grown; during one whoever governs does ([`Taker::is_at_work`]), and has the kernel give up by a signal.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrace_core::{Bytes, Nanos};

use crate::engine::processors;
use crate::engine::reclaimer::Reclaimer;
use crate::setup::group::Group;

/// What is asked for at once: at 5 µs a page that takes about a millisecond.
const STEP: Bytes = Bytes::mib(1);
/// A group has grown if it is charged with so much more than it was, and with what each processor
/// charges ahead (64 pages).
const GROWN: Bytes = Bytes::mib(1);
const CHARGED_AHEAD: Bytes = Bytes::kib(256);

/// Takes memory from one group.
#[derive(Debug)]
pub(super) struct Taker {
    group: Group,
    /// Started when memory is taken for the first time.
    reclaimer: Option<Reclaimer>,
    shared: Arc<Shared>,
}

/// What the thread shares with its client.
#[derive(Debug, Default)]
struct Shared {
    /// With how much the group may be charged before it counts as grown.
    most: AtomicU64,
    /// How much the kernel was asked for so far.
    asked: AtomicU64,
}

impl Taker {
    /// For a group that is the caller's, if it is one of version 1: a limit of it is changed.
    pub(super) fn new(group: Group) -> Self {
        Self { group, reclaimer: None, shared: Arc::default() }
    }

    /// Begins to take so much, unless it is at work; whether it has begun.
    ///
    /// # Errors
    /// Those of what was begun before: of kind `WouldBlock` if it found less, or has stopped since the
    /// group had grown. Nothing is begun then. Of kind `NotFound` if the group is gone.
    pub(super) fn take(&mut self, bytes: Bytes) -> io::Result<bool> {
        if self.reclaimer.is_none() {
            let (group, shared) = (self.group.clone(), Arc::clone(&self.shared));
            self.reclaimer = Some(Reclaimer::start(move |bytes, gives_up| {
                step_by_step(&group, bytes, &shared, gives_up)
            })?);
        }
        let Some(reclaimer) = &self.reclaimer else { return Ok(false) };
        if reclaimer.is_busy() {
            return Ok(false);
        }
        let charged = self.group.charged().ok_or(io::ErrorKind::NotFound)?;
        self.shared.most.store((charged + growth()).get(), Ordering::Release);
        reclaimer.ask(bytes)
    }

    /// Whether it is at work. If the group has grown since that began, it is stopped: to be asked often,
    /// for as long as it is.
    pub(super) fn is_at_work(&self) -> bool {
        let is_busy = self.reclaimer.as_ref().is_some_and(Reclaimer::is_busy);
        if is_busy && has_grown(&self.group, &self.shared) {
            self.stop();
        }
        is_busy
    }

    /// Has it stop what it is at.
    pub(super) fn stop(&self) {
        if let Some(reclaimer) = self.reclaimer.as_ref().filter(|reclaimer| reclaimer.is_busy()) {
            reclaimer.give_up();
        }
    }

    /// Stops for good, and waits until that is so: no limit is set afterwards.
    pub(super) fn end(&mut self) {
        self.reclaimer = None;
    }

    /// How much the kernel was asked for so far.
    pub(super) fn asked(&self) -> Bytes {
        Bytes(self.shared.asked.load(Ordering::Relaxed))
    }

    /// Processor time of the thread since the last call.
    pub(super) fn take_cpu(&self) -> Nanos {
        self.reclaimer.as_ref().map_or(Nanos::ZERO, Reclaimer::take_cpu)
    }
}

/// By how much a group may grow by the way.
fn growth() -> Bytes {
    GROWN + CHARGED_AHEAD * processors()
}

fn has_grown(group: &Group, shared: &Shared) -> bool {
    group.charged().is_some_and(|charged| charged.get() > shared.most.load(Ordering::Acquire))
}

/// Has so much put out, as long as the group does not grow and nobody says to stop.
fn step_by_step(
    group: &Group,
    bytes: Bytes,
    shared: &Shared,
    gives_up: &AtomicBool,
) -> io::Result<()> {
    let mut left = bytes;
    while !left.is_zero() {
        if gives_up.load(Ordering::Acquire) || has_grown(group, shared) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let step = left.min(STEP);
        // It counts whatever the kernel finds.
        shared.asked.fetch_add(step.get(), Ordering::Relaxed);
        group.reclaim(step)?;
        left -= step;
        // It grows from where it is now.
        if let Some(charged) = group.charged() {
            shared.most.fetch_min((charged + growth()).get(), Ordering::AcqRel);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::engine::Directory;

    const LIMIT: &str = "memory.limit_in_bytes";
    const CONTROL: &str = "memory.oom_control";

    /// Waits until something is so.
    fn until(mut is_so: impl FnMut() -> bool) {
        while !is_so() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Under version 1 a limit has to come down for that: by little each time, it is lifted each time,
    /// and nobody is killed at it meanwhile.
    #[test]
    fn memory_is_taken_in_small_steps_and_no_limit_stays() {
        let (directory, group) = Directory::new();
        directory.charge(Bytes::mib(64));
        let mut written = directory.listen(LIMIT);
        let mut taker = Taker::new(group);

        assert!(taker.take(STEP * 3 + Bytes::kib(256)).unwrap());
        until(|| !taker.is_at_work());

        let mut text = [0; 4096];
        let length = written.read(&mut text).unwrap();
        let text = String::from_utf8_lossy(&text[..length]).into_owned();
        // Nothing leaves here, so each step begins at the same.
        let (step, last) = (Bytes::mib(64) - STEP, Bytes::mib(64) - Bytes::kib(256));
        assert_eq!(text, format!("{0}-1{0}-1{0}-1{1}-1", step.get(), last.get()));
        assert_eq!(directory.peek(CONTROL), "0");
        assert_eq!(taker.asked(), STEP * 3 + Bytes::kib(256));
        assert!(taker.take(STEP).unwrap(), "all of it was found");
    }

    /// The kernel does not return as long as the group is larger than was asked for.
    #[test]
    fn what_is_taken_from_a_group_that_grows_is_given_up_at_once() {
        let (directory, group) = Directory::new();
        directory.charge(Bytes::mib(64));
        let _pipe = directory.hold_up(LIMIT);
        let mut taker = Taker::new(group);
        assert!(taker.take(Bytes::mib(8)).unwrap());
        until(|| directory.peek(CONTROL) == "1");
        assert!(taker.is_at_work() && !taker.take(Bytes::mib(8)).unwrap(), "the kernel is at it");
        // What lifts the limit is not held up.
        directory.put(LIMIT, "");

        directory.charge(Bytes::gib(64));
        until(|| !taker.is_at_work());

        assert_eq!(directory.peek(LIMIT), "-1", "and the rest is not asked for");
        assert_eq!(taker.asked(), STEP, "nor counted");
        assert_eq!(directory.peek(CONTROL), "0");
        let error = taker.take(Bytes::mib(8)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
    }

    /// Also between two steps, where no system call can be interrupted.
    #[test]
    fn nothing_is_taken_from_a_group_that_has_grown() {
        let (directory, group) = Directory::new();
        directory.charge(Bytes::gib(64));
        for (most, gives_up) in [(Bytes::gib(1).get(), false), (u64::MAX, true)] {
            let shared = Shared { most: AtomicU64::new(most), ..Shared::default() };
            let gives_up = AtomicBool::new(gives_up);
            let error = step_by_step(&group, STEP, &shared, &gives_up).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            assert_eq!(directory.peek(LIMIT), "");
            assert_eq!(shared.asked.into_inner(), 0);
        }
    }

    #[test]
    fn what_may_be_taken_no_longer_is_stopped_and_nothing_is_left_of_it() {
        for ends in [false, true] {
            let (directory, group) = Directory::new();
            directory.charge(Bytes::mib(64));
            let _pipe = directory.hold_up(LIMIT);
            let mut taker = Taker::new(group);
            assert!(taker.take(Bytes::mib(8)).unwrap());
            until(|| directory.peek(CONTROL) == "1");
            directory.put(LIMIT, "");
            if ends {
                taker.end();
            } else {
                until(|| {
                    taker.stop();
                    !taker.is_at_work()
                });
            }
            assert_eq!((&*directory.peek(LIMIT), &*directory.peek(CONTROL)), ("-1", "0"), "{ends}");
        }
    }

    #[test]
    fn of_a_group_that_is_gone_nothing_is_taken() {
        let (directory, group) = Directory::new();
        let mut taker = Taker::new(group);
        drop(directory);
        assert_eq!(taker.take(STEP).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
