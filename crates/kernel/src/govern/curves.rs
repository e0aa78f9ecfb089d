//! Measures working sets: one curve after the other.

use std::collections::VecDeque;
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
    /// When the one at hand began, and the processor time that the group had had by then.
    begun: Option<(Nanos, Nanos)>,
    at_hand: Curve,
    whole: Vec<Curve>,
    /// Processes of other users, of which nothing is seen.
    denied: usize,
    /// What was resident at the last looks, since a curve could begin.
    growing: VecDeque<Bytes>,
    /// How many looks that are.
    waited: usize,
}

/// No curve begins while memory grows by more than this part in a quarter of its time: what is new has been
/// touched, whatever becomes of it. A program that still reads in what it will work on, if slowly, touches
/// much in the time of a curve that it may never touch again.
const GROWTH: u64 = 20;
/// The most looks that are waited for to see that.
const STEADY: u64 = 8;
/// A program that has grown for so many looks may do so for ever.
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
            growing: VecDeque::new(),
            waited: 0,
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
        Some(if self.begun.is_none() && self.waited as u64 > self.looks() {
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
        let Some((begun, cpu_then)) = self.begun else {
            if self.still_grows(resident) && self.waited < PATIENCE {
                self.waited += 1;
                return;
            }
            self.waited = 0;
            self.denied = 0;
            for &process in processes {
                if let Err(e) = touched::forget(&self.root, process) {
                    self.denied += usize::from(!is_gone_or_missing(&e));
                }
            }
            self.begun = Some((now, cpu));
            self.at_hand = Curve::default();
            return;
        };
        let within = now.saturating_sub(begun);
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
            cpu: cpu.saturating_sub(cpu_then),
        });
        if self.at_hand.points.len() == times(self.longest).count() {
            if self.whole.len() == MOST_CURVES {
                self.whole.remove(0);
            }
            self.whole.push(std::mem::take(&mut self.at_hand));
            self.begun = None;
        }
    }

    /// Whether memory grows, or too little is known to say. A program that has nothing yet is about to begin.
    fn still_grows(&mut self, resident: Bytes) -> bool {
        self.growing.push_back(resident);
        if self.growing.len() as u64 <= self.looks() {
            return true;
        }
        let before = self.growing.pop_front().unwrap_or_default();
        before.is_zero() || resident > before + before / GROWTH
    }

    /// How many looks tell whether memory grows.
    fn looks(&self) -> u64 {
        (self.longest.get() / Nanos::SECOND.get() / 4).clamp(1, STEADY)
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
