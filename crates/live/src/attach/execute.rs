//! Carries a plan out.
//!
//! Demotions first, because they make the room that promotions need; pages of
//! one process that go to one tier share system calls. An exchange is a
//! demotion and a promotion: the kernel has no such call, and both tiers keep
//! some room of their own.

use std::io;

use terrace_core::{
    Abort, Action, Done, FaultKind, Home, Nanos, Outcome, PageRef, PageSize, Plan, Proposal, TierId,
};
use terrace_sampler::pagemap::{Run, is};

use super::Attach;
use super::host::{Host, is_gone};
use crate::numa::moves::Place;

/// One page's way from tier to tier.
#[derive(Clone, Copy, Debug)]
struct Leg {
    /// The proposal's place in the plan.
    proposal: usize,
    process: u32,
    address: u64,
    size: PageSize,
    to: TierId,
}

/// What became of a leg: what it cost, or why it was not made.
type Fate = Result<Nanos, Abort>;

impl<H: Host> Attach<H> {
    /// Carries out what the economist has let pass, and reports back.
    pub(super) fn execute(&mut self, plan: &Plan) -> io::Result<()> {
        let proposals = plan.proposals();
        let mut fates: Vec<Option<Fate>> = vec![None; proposals.len()];
        let (mut down, mut up) = (Vec::new(), Vec::new());
        for (i, proposal) in proposals.iter().enumerate() {
            if let Err(abort) = self.accept(i, proposal, &mut down, &mut up) {
                fates[i] = Some(Err(abort));
            }
        }
        let result = self.travel(down, &mut fates).and_then(|()| {
            // Nobody goes up in exchange for a page that did not go down.
            let made_room = |leg: &Leg| !matches!(fates[leg.proposal], Some(Err(_)));
            up.retain(made_room);
            let exchanged: Vec<Option<Fate>> = fates.clone();
            let result = self.travel(up, &mut fates);
            for (i, before) in exchanged.iter().enumerate() {
                self.combine(&proposals[i], *before, &mut fates[i]);
            }
            result
        });
        let now = self.host.now();
        for (proposal, fate) in proposals.iter().zip(fates) {
            // After an error nobody knows; the next pass will.
            self.settle(now, proposal, fate.unwrap_or(Err(Abort::Busy)));
        }
        result
    }

    /// An exchange's fate is that of both its pages. If only the demotion was
    /// made, the exchange was not, and the demoted page is found again below.
    fn combine(&mut self, proposal: &Proposal, down: Option<Fate>, both: &mut Option<Fate>) {
        let Action::Exchange { demote, slow, .. } = proposal.action else { return };
        let (Some(Ok(first)), Some(second)) = (down, *both) else { return };
        if let Ok(cost) = second {
            *both = Some(Ok(first + cost));
            return;
        }
        let now = self.host.now();
        self.forget(demote);
        let kind = FaultKind::FirstTouch(terrace_core::Access::Write);
        self.placed(now, demote, kind, slow);
    }

    /// Whether a proposal can be begun: adds its legs, or says why not.
    fn accept(
        &mut self,
        i: usize,
        proposal: &Proposal,
        down: &mut Vec<Leg>,
        up: &mut Vec<Leg>,
    ) -> Result<(), Abort> {
        let legs = match proposal.action {
            Action::Promote { page, from, to } => [None, Some((page, from, to))],
            Action::Demote { page, from, to } => [Some((page, from, to)), None],
            Action::Exchange { promote, demote, fast, slow } => {
                [Some((demote, fast, slow)), Some((promote, slow, fast))]
            }
            _ => return Err(Abort::Unsupported),
        };
        let bytes: f64 = legs.iter().flatten().map(|_| proposal.page_size.bytes().as_f64()).sum();
        let mut made = [None; 2];
        for (leg, made) in legs.iter().zip(&mut made) {
            let Some((page, from, to)) = *leg else { continue };
            if self.space.word(page).tier() != Some(from) {
                return Err(Abort::Stale);
            }
            let Some(window) = self.space.window(page.region) else { return Err(Abort::Stale) };
            *made = Some(Leg {
                proposal: i,
                process: window.process,
                address: window.address(page.page),
                size: window.page_size,
                to,
            });
        }
        if self.options.dry_run || self.traffic.tokens < bytes {
            // In a dry run nothing is wrong with the page either: it keeps its
            // turn, so that what is shown is the whole plan.
            return Err(Abort::RateLimited);
        }
        self.traffic.tokens -= bytes;
        down.extend(made[0]);
        up.extend(made[1]);
        Ok(())
    }

    /// Moves pages, batch by batch; notes each one's fate.
    fn travel(&mut self, mut legs: Vec<Leg>, fates: &mut [Option<Fate>]) -> io::Result<()> {
        legs.sort_by_key(|leg| (leg.process, leg.to, leg.address));
        for group in legs.chunk_by(|a, b| (a.process, a.to) == (b.process, b.to)) {
            let mut rest = group;
            while !rest.is_empty() {
                let home = self.rooms[rest[0].to.index()].home;
                // Of as many batches as there are threads, each takes one.
                let threads = if home == Home::Swap { 1 } else { self.crew.threads() };
                let most = self.ladder.migration.batch as usize * threads as usize;
                let batch;
                (batch, rest) = rest.split_at(batch_of(rest, most));
                let begin = self.host.now();
                let made = match home {
                    Home::Node(node) => self.move_to_node(batch, node),
                    Home::Swap => self.give_to_swap(batch),
                };
                let time = self.host.now().saturating_sub(begin);
                self.stats.moving += time;
                let results = match made {
                    Ok(results) => results,
                    Err(error) if is_gone(&error) => vec![Some(Abort::Stale); batch.len()],
                    Err(error) => {
                        let what = format!("process {}: {error}", batch[0].process);
                        return Err(io::Error::new(error.kind(), what));
                    }
                };
                let each = time / batch.len() as u64;
                for (leg, abort) in batch.iter().zip(results) {
                    fates[leg.proposal] = Some(abort.map_or(Ok(each), Err));
                }
            }
        }
        Ok(())
    }

    /// Moves a batch to a node.
    fn move_to_node(&mut self, batch: &[Leg], node: u32) -> io::Result<Vec<Option<Abort>>> {
        let process = batch[0].process;
        let mut addresses = Vec::new();
        let mut starts = Vec::with_capacity(batch.len());
        for leg in batch {
            starts.push(addresses.len());
            // A huge page moves as a whole with its first part; what is mapped
            // in small pages moves one by one.
            let end = leg.address + leg.size.bytes().get();
            addresses.extend((leg.address..end).step_by(4096));
        }
        let mut places = Vec::with_capacity(addresses.len());
        let threads = self.crew.for_pages(addresses.len());
        let begin = self.host.now();
        self.host.relocate(process, &addresses, node, threads, &mut places)?;
        let end = self.host.now();
        self.crew.moved(end, addresses.len(), end.saturating_sub(begin));
        self.stats.movers = self.stats.movers.max(threads);
        Ok(starts
            .iter()
            .enumerate()
            .map(|(i, &start)| {
                let end = starts.get(i + 1).copied().unwrap_or(places.len());
                // Of a huge page, parts may be absent; any other part decides.
                let part = places[start..end]
                    .iter()
                    .find(|place| !matches!(place, Place::Absent))
                    .unwrap_or(&Place::Absent);
                part.abort(node)
            })
            .collect())
    }

    /// Gives a batch to swap, and looks what went.
    fn give_to_swap(&mut self, batch: &[Leg]) -> io::Result<Vec<Option<Abort>>> {
        let process = batch[0].process;
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for leg in batch {
            let bytes = leg.size.bytes().get();
            match ranges.last_mut() {
                Some((start, length)) if *start + *length == leg.address => *length += bytes,
                _ => ranges.push((leg.address, bytes)),
            }
        }
        self.host.page_out(process, &ranges)?;
        let mut runs: Vec<Run> = Vec::new();
        for &(start, length) in &ranges {
            self.host.content(process, start, start + length, &mut |run| runs.push(run))?;
        }
        let mut results = Vec::with_capacity(batch.len());
        for leg in batch {
            let end = leg.address + leg.size.bytes().get();
            // Legs and runs are both in the order of their addresses.
            let first = runs.partition_point(|run| run.end <= leg.address);
            let within = runs[first..].iter().take_while(|run| run.start < end);
            let flags = within.fold(0, |flags, run| flags | run.flags);
            results.push(match (flags & is::PRESENT != 0, flags & is::SWAPPED != 0) {
                (false, true) => None,
                // Touched meanwhile, or swap is full.
                (true, _) => Some(Abort::Busy),
                (false, false) => Some(Abort::Stale),
            });
        }
        Ok(results)
    }

    /// Enters one proposal's fate into the books, and tells the policy.
    fn settle(&mut self, now: Nanos, proposal: &Proposal, fate: Fate) {
        let outcome = match fate {
            Err(abort) => {
                self.stats.abort(abort);
                Outcome::Aborted(abort)
            }
            Ok(time) => {
                let mut moved = terrace_core::Bytes::ZERO;
                let mut move_one = |page: PageRef, to: TierId, up: bool| {
                    moved += proposal.page_size.bytes();
                    self.space.place(page, Some(to));
                    let back = self.space.note_moved(page, up);
                    self.stats.ping_pongs += u64::from(back);
                    *(if up { &mut self.stats.promotions } else { &mut self.stats.demotions }) += 1;
                };
                match proposal.action {
                    Action::Promote { page, to, .. } => move_one(page, to, true),
                    Action::Demote { page, to, .. } => move_one(page, to, false),
                    Action::Exchange { promote, demote, fast, slow } => {
                        move_one(demote, slow, false);
                        move_one(promote, fast, true);
                    }
                    _ => {}
                }
                self.stats.moved += moved;
                let cost = self.brain.economist().calibration().clock.cycles(time);
                Outcome::Completed { cost, moved }
            }
        };
        let telemetry = self.telemetry(now);
        self.brain.done(&Done { proposal: *proposal, outcome }, &telemetry);
    }
}

/// How many of these make a batch: so many base pages at most, and one leg at least.
fn batch_of(legs: &[Leg], most: usize) -> usize {
    let mut pages = 0;
    let fit = legs.iter().take_while(|leg| {
        pages += (leg.size.bytes().get() / 4096) as usize;
        pages <= most
    });
    fit.count().max(1)
}
