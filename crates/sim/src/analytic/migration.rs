//! The migration engine: carries out plans and charges what they cost.
//!
//! As in HeMem: one page after the other. A page is write-protected (readers
//! go on, writers wait until the move is done), copied by several threads in
//! parallel, mapped at its new place, and unprotected; both changes of the
//! mapping need a TLB shootdown, which interrupts every thread. The copy uses
//! bandwidth of both tiers and is slowed down by their load. An exchange is
//! two such moves, and takes effect when both are done.

use std::collections::VecDeque;

use rand_xoshiro::rand_core::Rng;
use serde::Serialize;
use terrace_core::machine::Costs;
use terrace_core::{
    Abort, Action, Bytes, BytesPerSecond, Cycles, Done, Frequency, MAX_TIERS, Nanos, Outcome,
    PageRef, Proposal, TierId,
};

use crate::analytic::balance::{Balance, Copying};
use crate::analytic::pages::Pages;
use crate::analytic::threads::Thread;
use crate::workload::{SimRng, Workload};

/// Parameters of the migration engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MigrationConfig {
    /// Threads that copy a page together.
    pub copy_threads: u32,
    /// Migration traffic that may be started in a second.
    pub limit: BytesPerSecond,
    /// Whether pages are copied by the program's own core, which does nothing
    /// else meanwhile; only the exact engine can do that.
    pub in_line: bool,
}

impl MigrationConfig {
    /// As in HeMem: 4 copy threads ("if a DMA engine is not available, HeMem
    /// uses 4 additional threads"; no bandwidth of the DMA engine is published
    /// that could be used here), and at most 10 GiB a second
    /// (`PEBS_KSWAPD_MIGRATE_RATE` in the published code).
    pub fn hemem() -> Self {
        Self { copy_threads: 4, limit: BytesPerSecond((10u64 << 30) as f64), in_line: false }
    }
}

impl MigrationConfig {
    /// As in Kindle: the only core copies, at any rate.
    pub fn kindle() -> Self {
        Self { copy_threads: 1, limit: BytesPerSecond(1e15), in_line: true }
    }
}

/// What was migrated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MigrationCounts {
    /// Pages promoted; those of exchanges not included.
    pub promotions: u64,
    /// Pages demoted; those of exchanges not included.
    pub demotions: u64,
    /// Pairs of pages exchanged.
    pub exchanges: u64,
    /// Actions that were let pass but not carried out.
    pub aborted: u64,
    /// Bytes of all pages that were moved.
    pub moved: Bytes,
    /// Time that threads waited for write-protected pages, all together.
    pub stalled: Nanos,
    /// Time that threads lost to TLB shootdowns, all together.
    pub interrupted: Nanos,
    /// Time in which the engine was at work.
    pub busy: Nanos,
}

impl MigrationCounts {
    /// What was added since an earlier count.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        since!(self, earlier, { promotions, demotions, exchanges, aborted, moved, stalled, interrupted, busy })
    }
}

/// Ticks whose unused budget may be used later, and whose work may wait.
const SAVED_TICKS: u64 = 4;
/// An exchange of two huge pages has to fit into any budget.
const LEAST_BUDGET: f64 = (4u64 << 20) as f64;

/// What the migration engine works on: pages, threads, the time.
pub(crate) struct MigrationContext<'a> {
    pub(crate) pages: &'a mut Pages,
    pub(crate) threads: &'a mut [Thread],
    pub(crate) workload: &'a dyn Workload,
    pub(crate) balance: &'a Balance,
    /// Real accesses each thread makes in a nanosecond.
    pub(crate) rates: &'a [f64],
    pub(crate) now: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Move {
    page: u32,
    from: TierId,
    to: TierId,
}

#[derive(Debug)]
struct Active {
    proposal: Proposal,
    moves: [Option<Move>; 2],
    /// Which of `moves` is under way.
    step: usize,
    /// Mapping work of this step that is left, in nanoseconds.
    fixed_left: f64,
    /// Bytes of this step that are left to copy.
    bytes_left: f64,
    /// Processor time spent so far, in nanoseconds.
    spent: f64,
}

#[derive(Debug)]
pub(crate) struct MigrationEngine {
    config: MigrationConfig,
    clock: Frequency,
    /// Mapping work of one move, in nanoseconds.
    fixed: f64,
    interrupt: f64,
    fault: f64,
    /// Bytes a nanosecond of all copy threads, on idle tiers.
    copy_rate: f64,
    queue: VecDeque<Proposal>,
    active: Option<Active>,
    /// Bytes of queued and active moves, by source and target.
    backlog: [[f64; MAX_TIERS]; MAX_TIERS],
    /// Moves that these bytes make up.
    waiting: u64,
    /// Until when it has worked.
    until: f64,
    budget: f64,
    rng: SimRng,
    pub(crate) counts: MigrationCounts,
}

impl MigrationEngine {
    pub(crate) fn new(
        config: MigrationConfig,
        costs: &Costs,
        clock: Frequency,
        rng: SimRng,
    ) -> Self {
        let mapping = costs.write_protect.value.as_f64() + costs.shootdown.value.as_f64();
        Self {
            config,
            clock,
            fixed: 2.0 * mapping,
            interrupt: 2.0 * costs.shootdown_per_core.value.as_f64(),
            fault: costs.user_fault.value.as_f64(),
            copy_rate: f64::from(config.copy_threads) * costs.copy_bandwidth.value.get() / 1e9,
            queue: VecDeque::new(),
            active: None,
            backlog: [[0.0; MAX_TIERS]; MAX_TIERS],
            waiting: 0,
            until: 0.0,
            budget: 0.0,
            rng,
            counts: MigrationCounts::default(),
        }
    }

    fn most_budget(&self, tick: Nanos) -> f64 {
        (self.config.limit.get() * (tick * SAVED_TICKS).as_secs()).max(LEAST_BUDGET)
    }

    /// A tick went by.
    pub(crate) fn earn_budget(&mut self, tick: Nanos) {
        let earned = self.config.limit.get() * tick.as_secs();
        self.budget = (self.budget + earned).min(self.most_budget(tick));
    }

    /// What may be planned now: what the rate allows, less what waits already
    /// because the engine cannot keep up.
    pub(crate) fn budget(&self, tick: Nanos) -> Bytes {
        let waiting: f64 = self.backlog.iter().flatten().sum();
        Bytes::from_f64(self.budget.min(self.most_budget(tick) - waiting))
    }

    /// The shootdown after entries of many pages were changed at once: every
    /// thread answers it. Returns the processor time of it all.
    pub(crate) fn shoot_down(&mut self, costs: &Costs, threads: &mut [Thread]) -> Cycles {
        let each = costs.shootdown_per_core.value;
        for thread in threads.iter_mut() {
            thread.clock += each.as_f64();
        }
        let interrupted = each * threads.len() as u64;
        self.counts.interrupted += interrupted;
        let own = costs.write_protect.value + costs.shootdown.value;
        self.clock.cycles(own + interrupted)
    }

    /// Actions that wait, or are under way.
    pub(crate) fn unfinished(&self) -> u64 {
        self.queue.len() as u64 + u64::from(self.active.is_some())
    }

    pub(crate) fn set_limit(&mut self, limit: BytesPerSecond) {
        self.config.limit = limit;
    }

    /// The copying to expect from now on, and for how many nanoseconds the
    /// expectation holds, at most `longest`.
    ///
    /// While a page is copied, tiers are loaded by the full rate of the copy.
    /// An average over a longer time would hide that, so a quantum ends when
    /// the page is copied. Copies that are shorter than the shortest quantum
    /// are averaged over it.
    pub(crate) fn forecast(
        &self,
        longest: f64,
        shortest: f64,
        balance: &Balance,
    ) -> (Vec<Copying>, f64) {
        let Some(active) = &self.active else { return (Vec::new(), longest) };
        let Some(m) = active.moves[active.step] else { return (Vec::new(), longest) };
        let rate = self.copy_rate;
        let mut copying = Copying { from: m.from.index(), to: m.to.index(), rate, time_share: 1.0 };
        let copy_time = active.bytes_left / copying.rate_at(&balance.slowdown);
        let left = active.fixed_left + copy_time;
        if left >= shortest {
            copying.time_share = copy_time / left;
            return (vec![copying], left.min(longest));
        }
        let mut copies = Vec::new();
        let mut needed = self.fixed * self.waiting as f64;
        for (from, row) in self.backlog.iter().enumerate() {
            for (to, &bytes) in row.iter().enumerate().filter(|(_, b)| **b > 0.0) {
                let mut copying = Copying { from, to, rate, time_share: 0.0 };
                copying.time_share = bytes / copying.rate_at(&balance.slowdown);
                needed += copying.time_share;
                copies.push(copying);
            }
        }
        let length = needed.clamp(shortest.min(longest), longest);
        // More work than the quantum holds: the engine is busy all the time.
        let scale = 1.0 / needed.max(length);
        for copying in &mut copies {
            copying.time_share *= scale;
        }
        (copies, length)
    }

    /// Takes up the next queued proposal if none is under way.
    pub(crate) fn begin(&mut self, context: &mut MigrationContext<'_>, done: &mut Vec<Done>) {
        if self.active.is_none() {
            self.start_next(context, done);
        }
    }

    fn moves_of(proposal: &Proposal, pages: &Pages) -> Result<[Option<Move>; 2], Abort> {
        let find = |page: PageRef, from: TierId, to: TierId| {
            let number = pages.number(page).ok_or(Abort::Stale)?;
            if pages.size(number) != proposal.page_size || pages.tier(number) != Some(from) {
                return Err(Abort::Stale);
            }
            if pages.is_moving(number) {
                return Err(Abort::Busy);
            }
            Ok(Some(Move { page: number, from, to }))
        };
        match proposal.action {
            Action::Promote { page, from, to } | Action::Demote { page, from, to } => {
                Ok([find(page, from, to)?, None])
            }
            Action::Exchange { promote, demote, fast, slow } => {
                Ok([find(demote, fast, slow)?, find(promote, slow, fast)?])
            }
            _ => Err(Abort::Unsupported),
        }
    }

    fn note(&mut self, moves: &[Option<Move>; 2], bytes: f64) {
        for m in moves.iter().flatten() {
            let entry = &mut self.backlog[m.from.index()][m.to.index()];
            *entry += bytes;
            self.waiting += 1;
        }
    }

    /// Takes one proposal of a plan. `Err` says why it will not be carried out.
    pub(crate) fn accept(&mut self, proposal: &Proposal, pages: &Pages) -> Result<(), Abort> {
        let moves = Self::moves_of(proposal, pages).inspect_err(|_| self.counts.aborted += 1)?;
        let size = proposal.page_size.bytes().as_f64();
        let bytes = size * moves.iter().flatten().count() as f64;
        if bytes > self.budget {
            self.counts.aborted += 1;
            return Err(Abort::RateLimited);
        }
        self.budget -= bytes;
        self.note(&moves, size);
        self.queue.push_back(*proposal);
        Ok(())
    }

    /// Works until `end`; what came to its end goes to `done`.
    pub(crate) fn advance(
        &mut self,
        end: f64,
        context: &mut MigrationContext<'_>,
        done: &mut Vec<Done>,
    ) {
        loop {
            if self.active.is_none() && !self.start_next(context, done) {
                // Nothing to do: idle time is gone.
                self.until = end;
                return;
            }
            if self.until >= end {
                return;
            }
            self.work(end, context);
            self.finish_step(context, done);
        }
    }

    /// Starts the next queued proposal that is still valid.
    fn start_next(&mut self, context: &mut MigrationContext<'_>, done: &mut Vec<Done>) -> bool {
        while let Some(proposal) = self.queue.pop_front() {
            let size = proposal.page_size.bytes().as_f64();
            let moves = Self::moves_of(&proposal, context.pages).and_then(|moves| {
                // An exchange needs no room of its own: it uses a frame in hand.
                let needs_room = moves[1].is_none();
                let target = moves[0].map(|m| m.to).filter(|_| needs_room);
                match target {
                    Some(to) if !context.pages.has_room(to, proposal.page_size) => {
                        Err(Abort::NoMemory)
                    }
                    _ => Ok(moves),
                }
            });
            match moves {
                Ok(moves) => {
                    for m in moves.iter().flatten() {
                        context.pages.set_moving(m.page, true);
                    }
                    let mut active = Active {
                        proposal,
                        moves,
                        step: 0,
                        fixed_left: self.fixed,
                        bytes_left: size,
                        spent: 0.0,
                    };
                    self.stall_writers(&mut active, context);
                    self.active = Some(active);
                    return true;
                }
                Err(abort) => {
                    // What it was taken for when it was accepted is known from
                    // the proposal alone.
                    self.forget(&proposal, size);
                    self.counts.aborted += 1;
                    done.push(Done { proposal, outcome: Outcome::Aborted(abort) });
                }
            }
        }
        false
    }

    fn forget(&mut self, proposal: &Proposal, bytes: f64) {
        let pairs = match proposal.action {
            Action::Promote { from, to, .. } | Action::Demote { from, to, .. } => {
                [Some((from, to)), None]
            }
            Action::Exchange { fast, slow, .. } => [Some((fast, slow)), Some((slow, fast))],
            _ => [None, None],
        };
        for (from, to) in pairs.into_iter().flatten() {
            let entry = &mut self.backlog[from.index()][to.index()];
            *entry = (*entry - bytes).max(0.0);
            self.waiting -= 1;
        }
    }

    /// Threads that store to the page while it moves wait until it has moved.
    ///
    /// When a thread's next store to the page comes is drawn from its rate,
    /// not taken from the simulated accesses: of these only one in `scale` is
    /// simulated, but a real thread runs into the page with every one of them,
    /// and waits only once.
    fn stall_writers(&mut self, active: &mut Active, context: &mut MigrationContext<'_>) {
        let Some(m) = active.moves[active.step] else { return };
        let copying = Copying {
            from: m.from.index(),
            to: m.to.index(),
            rate: self.copy_rate,
            time_share: 1.0,
        };
        let duration = self.fixed + active.bytes_left / copying.rate_at(&context.balance.slowdown);
        for (index, thread) in context.threads.iter_mut().enumerate() {
            let share = context.workload.store_share(index, m.page, context.now);
            if share <= 0.0 {
                continue;
            }
            let uniform = ((self.rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
            let until_store = -uniform.ln() / (share * context.rates[index]);
            if until_store < duration {
                let stall = duration - until_store + self.fault;
                thread.clock += stall;
                active.spent += self.fault;
                self.counts.stalled += Nanos::from_f64(stall);
            }
        }
    }

    /// Spends time on the active move, up to `end`.
    fn work(&mut self, end: f64, context: &MigrationContext<'_>) {
        let Some(active) = &mut self.active else { return };
        let Some(m) = active.moves[active.step] else { return };
        let begin = self.until;
        let mapping = active.fixed_left.min(end - self.until);
        active.fixed_left -= mapping;
        self.until += mapping;
        let copying = Copying {
            from: m.from.index(),
            to: m.to.index(),
            rate: self.copy_rate,
            time_share: 1.0,
        };
        let rate = copying.rate_at(&context.balance.slowdown);
        let copying_time = (active.bytes_left / rate).min(end - self.until).max(0.0);
        active.bytes_left -= copying_time * rate;
        self.until += copying_time;
        active.spent += mapping + copying_time * f64::from(self.config.copy_threads);
        self.counts.busy += Nanos::from_f64(self.until - begin);
    }

    /// Ends the active step if nothing of it is left.
    fn finish_step(&mut self, context: &mut MigrationContext<'_>, done: &mut Vec<Done>) {
        let Some(active) = &mut self.active else { return };
        // Half a byte: what rounding may leave of two megabytes.
        if active.fixed_left > 0.0 || active.bytes_left > 0.5 {
            return;
        }
        for thread in context.threads.iter_mut() {
            thread.clock += self.interrupt;
        }
        let interrupted = self.interrupt * context.threads.len() as f64;
        active.spent += interrupted;
        self.counts.interrupted += Nanos::from_f64(interrupted);
        if active.step == 0 && active.moves[1].is_some() {
            active.step = 1;
            active.fixed_left = self.fixed;
            active.bytes_left = active.proposal.page_size.bytes().as_f64();
            let mut active = self.active.take().expect("it is there");
            self.stall_writers(&mut active, context);
            self.active = Some(active);
            return;
        }
        let active = self.active.take().expect("it is there");
        done.push(self.complete(&active, context.pages));
    }

    fn complete(&mut self, active: &Active, pages: &mut Pages) -> Done {
        let size = active.proposal.page_size.bytes();
        for m in active.moves.iter().flatten() {
            pages.set_moving(m.page, false);
        }
        let moved = match active.moves {
            [Some(a), Some(b)] => {
                pages.swap(a.page, b.page);
                self.counts.exchanges += 1;
                size * 2
            }
            [Some(m), _] => {
                pages.put(m.page, m.to);
                if m.to < m.from {
                    self.counts.promotions += 1;
                } else {
                    self.counts.demotions += 1;
                }
                size
            }
            [None, _] => Bytes::ZERO,
        };
        self.forget(&active.proposal, size.as_f64());
        self.counts.moved += moved;
        let cost: Cycles = self.clock.cycles(Nanos::from_f64(active.spent));
        Done { proposal: active.proposal, outcome: Outcome::Completed { cost, moved } }
    }
}
