//! Takes memory from a control group without a budget: as much as its slowdown allows.
//!
//! | file | concept |
//! |---|---|
//! | [`look`] | what a group has and does, as the kernel counts it |
//! | [`slowdown`] | how much an interval was slowed down |
//! | [`control`] | how much to put out next |
//! | `taker` | puts it out, and stops as soon as the group asks for more |
//! | [`curves`] | measures that, time and again |
//! | [`working_set`] | how much is touched within a time, and what could be saved |
//! | [`touched`] | where that is read |
//! | here | one step: look, judge, put out |
//!
//! Nothing bounds the group: what it asks for it gets at once, and nobody is killed or slowed
//! down at a limit of ours. Only what it does not touch is put out, a little at a time. Where that
//! takes a limit (version 1 of control groups), it is lifted as soon as it is in force.

pub mod control;
pub mod curves;
pub mod look;
pub mod slowdown;
mod taker;
pub mod touched;
pub mod working_set;

#[cfg(test)]
mod tests;

use std::io;

use serde::Serialize;
use terrace_core::{Bytes, Nanos, PageSize};

use self::control::Control;
use self::look::Look;
use self::slowdown::{Slowdown, Source};

/// What is out differs from one moment to the next where a program walks through its memory. This is
/// about as long as the longest time that a forecast looks at before memory is put out.
pub const LATELY: Nanos = Nanos::seconds(30);

/// What is asked of the system.
pub trait Governed {
    /// What the group has and does now; `None` if it is gone.
    fn look(&mut self) -> Option<Look>;
    /// Has the kernel begin to put so much of the group's memory out, unless it is still at what it was
    /// asked for before; whether it was asked.
    ///
    /// # Errors
    /// Those of what was asked before; nothing is asked for now. Of kind `WouldBlock` if not so much was
    /// found, or the group grew meanwhile, which is no fault.
    fn reclaim(&mut self, bytes: Bytes) -> io::Result<bool>;
    /// How much the kernel was asked for so far. What was given up before it was asked for is no part of it.
    fn asked(&self) -> Bytes;
    /// Ends what [`Governed::reclaim`] has begun.
    fn stop(&mut self) {}
}

/// What was done, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Governing {
    /// How long the group was governed.
    pub elapsed: Nanos,
    /// What can be swapped and is in DRAM: at the beginning, at most, now.
    pub resident_begin: Bytes,
    /// The most.
    pub resident_peak: Bytes,
    /// Now.
    pub resident: Bytes,
    /// In swap now.
    pub swapped: Bytes,
    /// In swap of late: the mean, in which what was the time [`LATELY`] ago counts a 2.7th.
    pub swapped_lately: Bytes,
    /// What the kernel was asked to put out; what was given up before it was asked for is no part of it.
    pub asked: Bytes,
    /// How often it found less than was wanted, or the rest was given up since the group grew.
    pub found_less: u64,
    /// Pages that came back.
    pub refaults: u64,
    /// The slowdown over all: stalls of all intervals by what they were a share of.
    pub slowdown: Option<f64>,
    /// That of the last interval.
    pub slowdown_now: Option<f64>,
    /// The most of any interval.
    pub slowdown_peak: Option<f64>,
    /// Where it comes from.
    pub source: Option<Source>,
    /// Intervals in all, and those above the target.
    pub intervals: u64,
    /// Those above the target.
    pub above: u64,
}

impl Governing {
    /// The part of all that the group has which is in swap; `None` if it has nothing.
    pub fn saved_share(&self) -> Option<f64> {
        let all = self.resident + self.swapped;
        (!all.is_zero()).then(|| self.swapped.as_f64() / all.as_f64())
    }
}

/// Governs one group. Drive it by [`GroupGovernor::step`], once an interval.
#[derive(Debug)]
pub struct GroupGovernor<W> {
    world: W,
    control: Control,
    /// Whether anything is put out.
    enforces: bool,
    last: Option<Look>,
    begin: Option<Nanos>,
    stalled: Nanos,
    ran: Nanos,
    done: Governing,
}

impl<W: Governed> GroupGovernor<W> {
    /// For a group that is to be slowed down by no more than a target, a share.
    pub fn new(world: W, target: f64) -> Self {
        Self {
            world,
            control: Control::new(target),
            enforces: true,
            last: None,
            begin: None,
            stalled: Nanos::ZERO,
            ran: Nanos::ZERO,
            done: Governing::default(),
        }
    }

    /// The system.
    pub fn world(&mut self) -> &mut W {
        &mut self.world
    }

    /// Only looks from now on, or puts out what may go.
    pub fn enforce(&mut self, yes: bool) {
        self.enforces = yes;
    }

    /// Whether anything is put out.
    pub fn enforces(&self) -> bool {
        self.enforces
    }

    /// The last look.
    pub fn last(&self) -> Option<Look> {
        self.last
    }

    /// What was done.
    pub fn done(&self) -> Governing {
        // Another thread asks, also after the last step.
        Governing { asked: self.world.asked(), ..self.done.clone() }
    }

    /// Looks at what the last interval brought, and puts out what may go. False if the group is gone.
    ///
    /// # Errors
    /// The system's, if memory cannot be put out.
    pub fn step(&mut self) -> io::Result<bool> {
        let Some(look) = self.world.look() else { return Ok(false) };
        let begin = *self.begin.get_or_insert(look.at);
        let done = &mut self.done;
        done.elapsed = look.at.saturating_sub(begin);
        done.resident = look.resident;
        done.swapped = look.swapped;
        done.resident_peak = done.resident_peak.max(look.resident);
        let Some(last) = self.last.replace(look) else {
            done.resident_begin = look.resident;
            return Ok(true);
        };
        let slowdown = Slowdown::between(&last, &look);
        self.stalled += slowdown.stalled;
        self.ran += slowdown.ran;
        let back = look.refaults.saturating_sub(last.refaults);
        done.refaults += back;
        let weight = 1.0 - (-(look.at.saturating_sub(last.at) / LATELY)).exp();
        let change = (look.swapped.as_f64() - done.swapped_lately.as_f64()) * weight;
        done.swapped_lately = Bytes::from_f64(done.swapped_lately.as_f64() + change);
        done.intervals += 1;
        done.source = Some(slowdown.source);
        let share = slowdown.share();
        done.slowdown_now = Some(share);
        done.slowdown_peak = Some(done.slowdown_peak.map_or(share, |peak| peak.max(share)));
        done.slowdown = Some(Slowdown { stalled: self.stalled, ran: self.ran, ..slowdown }.share());
        let is_above = share > self.control.target();
        done.above += u64::from(is_above);
        if is_above {
            self.world.stop();
        }
        if !self.enforces {
            return Ok(true);
        }
        let back = PageSize::Base.bytes() * back;
        let wanted = self.control.next(&slowdown, back, &look);
        if wanted.is_zero() {
            return Ok(true);
        }
        match self.world.reclaim(wanted) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => done.found_less += 1,
            // It went away in this moment.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        }
        Ok(true)
    }
}
