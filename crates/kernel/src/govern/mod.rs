//! Takes memory from a control group without a budget: as much as its slowdown allows.
//!
//! | file | concept |
//! |---|---|
//! | [`look`] | what a group has and does, as the kernel counts it |
//! | [`beside`] | what it has that is neither resident nor out |
//! | [`slowdown`] | how much an interval was slowed down |
//! | [`control`] | whether memory may leave, and how much where its age is not known |
//! | [`ages`] | how old memory is when it leaves, and when that is looked at |
//! | `taker` | puts it out, and stops as soon as the group asks for more |
//! | `recent` | the mean of the last while |
//! | [`curves`] | measures that, time and again |
//! | [`working_set`] | how much is touched within a time, and what could be saved |
//! | [`touched`] | where that is read |
//! | here | one step: look, judge, put out |
//!
//! Nothing bounds the group: what it asks for it gets at once, and nobody is killed or slowed
//! down at a limit of ours. Only what it does not touch is put out, a little at a time. Where that
//! takes a limit (version 1 of control groups), it is lifted as soon as it is in force.

pub mod ages;
pub mod beside;
pub mod control;
pub mod curves;
pub mod look;
mod recent;
pub mod slowdown;
mod taker;
pub mod touched;
pub mod working_set;

#[cfg(test)]
mod tests;

use std::io;

use serde::Serialize;
use terrace_core::{Bytes, Nanos, PageSize};

use self::ages::Ages;
use self::beside::Beside;
use self::control::Control;
use self::look::Look;
use self::recent::Recent;
use self::slowdown::{Slowdown, Source};

/// What is out differs from one moment to the next where a program walks through its memory. This is
/// twice the longest time that a forecast looks at before memory is put out, so that such a walk counts
/// as often as it comes.
pub const LATELY: Nanos = Nanos::seconds(64);

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
    /// Whether what it has begun is under way.
    fn is_taking(&mut self) -> bool;
    /// Makes all memory equally old, for the kernel and for [`Governed::idle`]; the processor time that
    /// took. `None` if that cannot be done with all of it.
    fn forget(&mut self) -> Option<Nanos>;
    /// What is resident, has not been touched since [`Governed::forget`], and could leave.
    fn idle(&mut self) -> Bytes;
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
    /// What the group is charged for now beside what is resident: neither of these sums has it.
    pub beside: Beside,
    /// In swap of late: the mean of the last [`LATELY`], and of the time since anything was put out if that
    /// is shorter.
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
    /// For how long memory is idle that leaves now; `None` where memory is only looked at, or its age is
    /// not known, and the kernel chooses by itself.
    pub age: Option<Nanos>,
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
    ages: Ages,
    /// Whether memory leaves by its age. If that cannot be known once, the kernel chooses by itself from
    /// then on: marks that were taken off part of memory would mislead it.
    knows_ages: bool,
    /// Whether anything is put out.
    enforces: bool,
    last: Option<Look>,
    begin: Option<Nanos>,
    stalled: Nanos,
    ran: Nanos,
    lately: Recent,
    done: Governing,
}

impl<W: Governed> GroupGovernor<W> {
    /// For a group that is to be slowed down by no more than a target, a share.
    pub fn new(world: W, target: f64) -> Self {
        Self {
            world,
            control: Control::new(target),
            ages: Ages::new(target),
            knows_ages: true,
            enforces: true,
            last: None,
            begin: None,
            stalled: Nanos::ZERO,
            ran: Nanos::ZERO,
            lately: Recent::new(LATELY),
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

    /// Memory that leaves is to be idle for so long at first, as was forecast.
    pub fn start_at(&mut self, age: Nanos) {
        self.ages.start_at(age);
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
        let age = (self.enforces && self.knows_ages).then(|| self.ages.age());
        // Another thread asks, also after the last step.
        Governing { asked: self.world.asked(), age, ..self.done.clone() }
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
        done.beside = look.beside;
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
        let back = PageSize::Base.bytes() * back;
        let length = look.at.saturating_sub(last.at);
        if self.enforces {
            // What came back in the interval was out for half of it.
            self.lately.add(length, look.swapped + back / 2);
        }
        done.swapped_lately = self.lately.mean();
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
        self.begin_turn(look.at);
        let may = self.control.note(&slowdown, back);
        self.ages.note(&slowdown, length, back, look.resident);
        let wanted = if !may {
            Bytes::ZERO
        } else if !self.knows_ages {
            self.control.rate(&look)
        } else if self.ages.is_due(look.at) {
            let idle = self.world.idle();
            self.ages.end(look.at, idle)
        } else {
            Bytes::ZERO
        };
        let asked = control::asked(wanted, &look);
        let is_there = asked.is_zero() || self.reclaim(asked)?;
        self.begin_turn(look.at);
        Ok(is_there)
    }

    /// Begins to let memory grow old, unless it does already, or marks are needed for what is leaving. To
    /// be called also between two steps, for the sooner that begins the better it is known what is idle.
    pub fn begin_turn(&mut self, now: Nanos) {
        if !self.enforces || !self.knows_ages || self.ages.has_begun() || self.world.is_taking() {
            return;
        }
        match self.world.forget() {
            Some(took) => self.ages.begin(now, took),
            None => self.knows_ages = false,
        }
    }

    /// Has so much put out; false if the group is gone.
    fn reclaim(&mut self, bytes: Bytes) -> io::Result<bool> {
        let mut begun = self.world.reclaim(bytes);
        if matches!(&begun, Err(e) if e.kind() == io::ErrorKind::WouldBlock) {
            self.done.found_less += 1;
            // That is how the time before ended. What has grown old by now may leave nevertheless.
            if self.knows_ages {
                begun = self.world.reclaim(bytes);
            }
        }
        match begun {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(true),
            // It went away in this moment.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
}
