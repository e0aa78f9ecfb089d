//! The kernel thread that carries out plans: one page after the other, at its own pace.

use std::collections::VecDeque;

use terrace_core::machine::Costs;
use terrace_core::{
    Abort, Access, Action, Bytes, Done, Nanos, Outcome, PageRange, PageRef, PageSize, Proposal,
    Sample, SampleSource, TierId,
};

use super::memory::{ACCESSED, ObjectMemory, PageId, READING, Role, WRITEBACK};

/// What the thread has to do, and what that takes.
#[derive(Debug)]
pub(super) struct Mover {
    queue: VecDeque<(Proposal, f64)>,
    /// When it is done with what it began.
    idle_at: f64,
    /// Nanoseconds to copy a byte.
    copy: f64,
    /// Nanoseconds to take a page out of its mappings and put it back.
    remap: f64,
    /// Nanoseconds to look at one page.
    scan: f64,
    /// Whether slab pages can be moved.
    relocatable: bool,
}

impl Mover {
    pub(super) fn new(costs: &Costs, scan: Nanos, relocatable: bool) -> Self {
        let remap = costs.write_protect.value + costs.shootdown.value;
        Self {
            queue: VecDeque::new(),
            idle_at: 0.0,
            copy: 1e9 / costs.copy_bandwidth.value.get(),
            remap: remap.as_f64(),
            scan: scan.as_f64(),
            relocatable,
        }
    }

    /// What may be planned in a tick: what can be carried out until the next, without what is
    /// waiting.
    pub(super) fn budget(&self, tick: Nanos) -> Bytes {
        let page = PageSize::Base.bytes();
        let pages = tick.as_f64() / (self.remap + page.as_f64() * self.copy);
        let waiting = page * self.queue.len() as u64;
        (page * (pages.ceil() as u64).max(2)).saturating_sub(waiting)
    }
}

impl ObjectMemory {
    /// The thread gets what was planned at `at`.
    pub(super) fn hand_over_plan(&mut self, at: f64) {
        self.mover.queue.extend(self.plan.proposals().iter().map(|proposal| (*proposal, at)));
    }

    /// The thread works until `now`.
    pub(super) fn move_pages(&mut self, now: f64) {
        while self.mover.idle_at < now {
            let Some((proposal, asked)) = self.mover.queue.pop_front() else { return };
            let at = self.mover.idle_at.max(asked);
            if at >= now && at > asked {
                self.mover.queue.push_front((proposal, asked));
                return;
            }
            let (time, outcome) = match self.carry_out(&proposal, at) {
                Ok((time, moved)) => {
                    let cost = self.clock.cycles(Nanos::from_f64(time));
                    (time, Outcome::Completed { cost, moved })
                }
                Err(abort) => {
                    self.counts.refused += 1;
                    (0.0, Outcome::Aborted(abort))
                }
            };
            self.mover.idle_at = at + time;
            self.telemetry.now = Nanos::from_f64(self.mover.idle_at);
            self.brain.done(&Done { proposal, outcome }, &self.telemetry);
        }
    }

    fn carry_out(&mut self, proposal: &Proposal, at: f64) -> Result<(f64, Bytes), Abort> {
        let page = PageSize::Base.bytes();
        let (copy, remap) = (self.mover.copy, self.mover.remap);
        match proposal.action {
            Action::Promote { page: name, from, to } | Action::Demote { page: name, from, to } => {
                let id = self.movable(name, from)?;
                let time = self.copy(id, to, at, copy).ok_or(Abort::NoMemory)?;
                Ok((time + remap, page))
            }
            Action::Exchange { promote, demote, fast, slow } => {
                let (up, down) = (self.movable(promote, slow)?, self.movable(demote, fast)?);
                Ok((self.swap(up, down, at, copy) + 2.0 * remap, page * 2))
            }
            Action::Scan { range } => Ok((self.scan(range), Bytes::ZERO)),
            Action::Arm { range } => {
                let looked = self.arm(range);
                Ok((f64::from(looked) * self.mover.scan, Bytes::ZERO))
            }
            _ => Err(Abort::Unsupported),
        }
    }

    /// A page that lies where it is said to lie and can be moved.
    fn movable(&mut self, name: PageRef, from: TierId) -> Result<PageId, Abort> {
        let id = PageId::named(name);
        let relocatable = self.mover.relocatable;
        let page = self.placed(id).ok_or(Abort::Stale)?;
        if page.tier != from {
            return Err(Abort::Stale);
        }
        match page.role {
            Role::Program | Role::Cache if !page.has(WRITEBACK | READING) => Ok(id),
            Role::Slab if relocatable => Ok(id),
            _ => Err(Abort::Busy),
        }
    }

    /// Reads and clears accessed bits, and gives the time that takes.
    fn scan(&mut self, range: PageRange) -> f64 {
        let mut found = Vec::new();
        let mut looked = 0;
        for name in range.pages() {
            let Some(page) = self.placed(PageId::named(name)) else { continue };
            looked += 1;
            if page.has(ACCESSED) {
                page.flags &= !ACCESSED;
                let (access, source) = (Access::Read, SampleSource::AccessedBit);
                found.push(Sample { page: name, access, source, weight: 1 });
            }
        }
        if !found.is_empty() {
            self.brain.samples(&found);
        }
        f64::from(looked) * self.mover.scan
    }
}
