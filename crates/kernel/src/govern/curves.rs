//! Measures working sets: one curve after the other.

use std::io;

use terrace_core::{Bytes, Nanos};
use terrace_live::attach::host::is_gone;

use super::touched::{self, Marked};
use super::working_set::{Curve, Point};
use crate::files::Root;

/// Times at which is looked what was touched: each twice the one before.
fn times(longest: Nanos) -> impl Iterator<Item = Nanos> {
    const SHORTEST: Nanos = Nanos::seconds(1);
    let doubled = std::iter::successors(Some(SHORTEST), |time| Some(Nanos(time.get() * 2)));
    doubled.take_while(move |time| *time <= longest)
}

/// The curves of a group.
#[derive(Debug)]
pub struct Curves {
    root: Root,
    longest: Nanos,
    /// When the one at hand began.
    begun: Option<Begun>,
    at_hand: Curve,
    whole: Vec<Curve>,
    /// Processes of other users, of which nothing is seen.
    denied: usize,
    /// What was resident at the last look.
    resident: Bytes,
    /// How often none began, or one anew, since memory grew.
    waited: usize,
    /// Whether anything was ever resident; `None` before the first look.
    had: Option<bool>,
}

/// The beginning of a curve.
#[derive(Clone, Copy, Debug)]
struct Begun {
    at: Nanos,
    /// Processor time that the group had had by then.
    cpu: Nanos,
    /// What was resident.
    resident: Bytes,
}

/// No curve begins while memory grows by more than this part from one look to the next, and it begins
/// anew if memory grows by more in the first quarter of its time: what is new has been touched, whatever
/// becomes of it. A program that still reads in what it will work on, if slowly, touches much in the time
/// of a curve that it may never touch again.
const GROWTH: u64 = 20;
/// The longest time that counts as the first quarter.
const SETTLING: Nanos = Nanos::seconds(8);
/// A program that has grown so often may do so for ever.
const PATIENCE: usize = 32;

/// The most curves that are kept: what was long ago says little.
const MOST_CURVES: usize = 16;

impl Curves {
    /// None yet. The longest time that is looked at is a power of two in seconds.
    pub fn new(root: Root, longest: Nanos) -> Self {
        Self {
            root,
            longest,
            begun: None,
            at_hand: Curve::default(),
            whole: Vec::new(),
            denied: 0,
            resident: Bytes::ZERO,
            waited: 0,
            had: None,
        }
    }

    /// Whole curves; without one, what is known of the first.
    pub fn known(&self) -> &[Curve] {
        if self.whole.is_empty() { std::slice::from_ref(&self.at_hand) } else { &self.whole }
    }

    /// How many are whole.
    pub fn whole(&self) -> usize {
        self.whole.len()
    }

    /// Why nothing can be forecast from what is known; `None` if it can.
    pub fn lack(&self) -> Option<&'static str> {
        if self.known().iter().any(|curve| curve.points.len() > 1) {
            return None;
        }
        if self.had == Some(false) {
            return Some("it had nothing in DRAM that can be swapped, whenever it was looked at");
        }
        Some(if self.begun.is_none() && self.waited > 1 {
            "memory grew all the time, and what is new has been touched whatever becomes of it"
        } else {
            "it ended before two times were looked at"
        })
    }

    /// How many processes could not be looked at the last time.
    pub fn denied(&self) -> usize {
        self.denied
    }

    /// For how long memory is idle that leaves at a slowdown: the median of all curves.
    pub fn age(&self, slowdown: f64) -> Option<Nanos> {
        let savings = self.known().iter().filter_map(|curve| curve.saving(slowdown));
        let mut ages: Vec<Nanos> = savings.map(|saving| saving.idle).collect();
        ages.sort_unstable();
        ages.get(ages.len() / 2).copied()
    }

    /// Looks if it is time to, at these processes, which have had so much processor time together,
    /// and have so much in DRAM.
    pub fn step(&mut self, now: Nanos, processes: &[u32], cpu: Nanos, resident: Bytes) {
        let before = std::mem::replace(&mut self.resident, resident);
        self.had = Some(self.had == Some(true) || !resident.is_zero());
        let Some(begun) = self.begun else {
            // A program that has nothing yet is about to begin.
            if resident.is_zero() {
                return;
            }
            let grows = resident > before + before / GROWTH;
            if grows && self.waited < PATIENCE {
                self.waited += 1;
            } else {
                self.begin(now, processes, cpu, resident);
            }
            return;
        };
        let within = now.saturating_sub(begun.at);
        if self.has_grown(within, begun.resident, resident) {
            self.waited += 1;
            self.begin(now, processes, cpu, resident);
            return;
        }
        let Some(due) = times(self.longest).nth(self.at_hand.points.len()) else { return };
        // Who looks once a second looks a little early at times.
        if within + due / 16 < due {
            return;
        }
        let mut sum = Marked::default();
        for &process in processes {
            if let Ok(marked) = touched::since(&self.root, process) {
                sum.touched += marked.touched;
                sum.resident += marked.resident;
            }
        }
        self.at_hand.points.push(Point {
            within,
            touched: sum.touched,
            resident: sum.resident,
            cpu: cpu.saturating_sub(begun.cpu),
        });
        if self.at_hand.points.len() == times(self.longest).count() {
            if self.whole.len() == MOST_CURVES {
                self.whole.remove(0);
            }
            self.whole.push(std::mem::take(&mut self.at_hand));
            self.begun = None;
            self.waited = 0;
        }
    }

    /// Whether a curve that began so long ago with so much is to begin anew, for much is new since.
    fn has_grown(&self, within: Nanos, before: Bytes, resident: Bytes) -> bool {
        within <= (self.longest / 4).min(SETTLING)
            && resident > before + before / GROWTH
            && self.waited < PATIENCE
    }

    /// Takes all marks off: a curve begins.
    fn begin(&mut self, now: Nanos, processes: &[u32], cpu: Nanos, resident: Bytes) {
        self.denied = 0;
        for &process in processes {
            if let Err(e) = touched::forget(&self.root, process) {
                self.denied += usize::from(!is_gone_or_missing(&e));
            }
        }
        self.begun = Some(Begun { at: now, cpu, resident });
        self.at_hand = Curve::default();
    }

    /// What was idle for at least these times at the last look: the median of all curves.
    pub fn idle(&self) -> Vec<(Nanos, Bytes)> {
        times(self.longest)
            .enumerate()
            .filter_map(|(i, time)| {
                let mut all: Vec<Bytes> = self
                    .known()
                    .iter()
                    .filter_map(|curve| curve.idle().nth(i))
                    .map(|p| p.1)
                    .collect();
                all.sort_unstable();
                all.get(all.len() / 2).map(|idle| (time, *idle))
            })
            .collect()
    }
}

fn is_gone_or_missing(error: &io::Error) -> bool {
    is_gone(error) || error.kind() == io::ErrorKind::NotFound
}
