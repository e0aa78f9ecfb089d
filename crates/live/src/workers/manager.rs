//! The manager: what need not happen while a thread waits.
//!
//! It keeps some memory free, ticks the policy, looks at pages that nobody has
//! faulted on, answers the program's threads, and keeps the accounts. While
//! nothing happens it sleeps, for longer and longer.

use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering::*;

use terrace_core::{Abort, Action, Xorshift};

use crate::evict::staging::StagingRing;
use crate::failsafe::give_up::{self, Retires};
use crate::failsafe::inject::{self, Point};
use crate::failsafe::{reserve_memory, sharers};
use crate::fault::messages::Pending;
use crate::fault::wait::LOOK;
use crate::fault::walks_pay::Asker;
use crate::huge::collapse::Collapser;
use crate::observe::samples::Samplers;
use crate::pager::{MANAGER, Pager};
use crate::spill::priced::Showing;
use crate::sys;
use crate::workers::command::Command;
use crate::workers::idle_priority;
use crate::workers::worker::Worker;

/// The policy's tick: 10 ms, as HeMem's.
const TICK: u64 = 10_000_000;
/// The longest sleep while nothing happens.
const IDLE: u64 = 320_000_000;
/// The same where a share can change meanwhile: others wait for what is given back.
const IDLE_SHARED: u64 = 80_000_000;

/// Why a program is not managed any more that has used its address space up.
const NO_MEMORY: &str = "the kernel gives no memory for what is kept of each page (ulimit -v, ulimit -d, vm.max_map_count?)";

/// What the manager has beside what every worker has.
pub(crate) struct Tools {
    samplers: Samplers,
    collapser: Collapser,
}

impl Tools {
    /// They stay where they are from here on, as [`Worker::settle_down`].
    fn settle_down(&mut self, pager: &Pager) {
        pager.workers[MANAGER].beside.store(core::ptr::from_mut(self).expose_provenance(), Release);
    }

    /// In a forked child: gives back the memory of its parent's manager, which is not here.
    ///
    /// # Safety
    /// As of [`Worker::disband`], with what was noted as the manager's.
    pub(crate) unsafe fn disband(at: usize) {
        let at = core::ptr::with_exposed_provenance::<ManuallyDrop<Self>>(at);
        // SAFETY: the caller's.
        let mut tools = unsafe { at.read() };
        tools.samplers.give_back();
        tools.collapser.give_back();
    }
}

impl Worker<'static> {
    /// The manager's life.
    pub fn manage(&mut self) {
        let pager = self.pager;
        self.settle_down();
        let mut tools = Tools { samplers: Samplers::open(pager), collapser: Collapser::new(pager) };
        tools.settle_down(pager);
        let Tools { samplers, collapser } = &mut tools;
        let (mut asker, mut showing) = (Asker::new(pager), Showing::new(pager));
        let mut next_tick = sys::now() + TICK;
        let mut sleep = TICK;
        let mut last_activity = 0;
        let mut random = Xorshift::new(sys::now());
        let mut pending = Pending::new();
        while !pager.is_leaving() {
            if reserve_memory::runs_low() && !pager.is_stopped() {
                give_up::break_off(NO_MEMORY);
            }
            idle_priority::rest(self.id);
            self.obey(&mut pending);
            let giving = self.follow_share();
            self.guard(&mut pending);
            self.keep_headroom(&mut pending);
            let preparing = self.keep_huge_pages() | self.follow_profile();
            self.collapse(collapser);
            asker.look(pager);
            showing.look(pager);
            let commons_due = self.look_at_commons();
            let now = sys::now();
            if now >= next_tick {
                self.look(samplers);
                sharers::forget_dead();
                let activity = self.activity();
                if activity == last_activity {
                    sleep = (sleep * 2).min(if pager.budget.share.is_shared() {
                        IDLE_SHARED
                    } else {
                        IDLE
                    });
                } else {
                    sleep = TICK;
                    self.tick((!samplers.sees()).then_some(&mut random));
                }
                last_activity = activity;
                next_tick = sys::now() + sleep;
            }
            let due = next_tick.min(collapser.due).min(commons_due);
            let mut wait = due.saturating_sub(now);
            if pager.fault.handlers.needs_guard() || pending.is_any() {
                wait = wait.min(LOOK);
            }
            pager.sleep_unless(wait, || {
                let asked = pager.commands.pending().is_some() || sharers::are_asked_for();
                asked || giving || preparing || self.short_of_room()
            });
            if sleep > TICK && self.activity() != last_activity {
                next_tick = next_tick.min(sys::now());
            }
        }
    }

    /// Reads what was sampled.
    fn look(&mut self, samplers: &mut Samplers) {
        let pager = self.pager;
        if pager.enter(self.id) {
            samplers.look(pager, &self.pagemap);
        }
        pager.leave(self.id);
    }
}

impl Worker<'_> {
    /// Does what the program's threads ask for. Who forks may wait for a thread whose fault was
    /// read, and has been kept to be tried again.
    pub(crate) fn obey(&mut self, pending: &mut Pending) {
        let pager = self.pager;
        if sharers::are_asked_for() && !pager.is_stopped() && !pager.leave_to_sharers() {
            sharers::answer();
        }
        while let Some((command, a, b)) = pager.commands.pending() {
            match command {
                Command::Manage => {
                    let managed = self.manage_by_parts(a, b);
                    if managed.is_ok() {
                        self.guided(a, b);
                    }
                    pager.commands.answer(usize::from(managed.is_ok()));
                }
                Command::Discard => {
                    let _reading = pager.reading.lock();
                    pager.discarded(a, b);
                    // Not if everything was brought in before the lock was to be had.
                    pager.commands.answer(usize::from(!pager.is_stopped()));
                }
                Command::Unmapped => {
                    let _reading = pager.reading.lock();
                    pager.unmapped(a, b);
                    pager.commands.answer(usize::from(!pager.is_stopped()));
                }
                Command::Collapsed => {
                    pager.became_huge(a, b);
                    pager.commands.answer(1);
                }
                // Answers by itself.
                Command::ForkBegins => {
                    pending.let_go(pager.uffd());
                    self.accompany_fork(a as i32);
                }
                Command::Leave => {
                    if !pager.leave_to_sharers() {
                        pager.commands.answer(1);
                    }
                }
                // The end of it is the answer.
                Command::Retire => {
                    give_up::give_up(pager, self.id, Retires::why_of(a));
                }
            }
        }
    }

    /// With random numbers, pages are made to fault.
    fn tick(&mut self, random: Option<&mut Xorshift>) {
        inject::at(Point::Tick);
        let pager = self.pager;
        if pager.freeze.is_on() {
            return;
        }
        pager.regions.reclaim(pager.oldest_epoch());
        {
            // StagingRing before decider: the order in which making room takes them.
            let mut ring = pager.evict.ring.lock();
            let StagingRing { victims, hints, .. } = &mut *ring;
            let mut decider = pager.decide.decider.lock();
            decider.tick(pager, |proposal| {
                match proposal.action {
                    Action::Demote { .. } if victims.len() < victims.capacity() => {
                        victims.push_back(proposal);
                        Ok(())
                    }
                    Action::Demote { .. } => Err(Abort::RateLimited),
                    // What is sampled comes instead.
                    Action::Scan { .. } if random.is_none() => Err(Abort::Unsupported),
                    // Pages come up by being touched; bringing them up ahead
                    // of that is not done yet.
                    _ => hints.ask(proposal),
                }
            });
            decider.publish(pager.stats());
        }
        self.observe(random);
        self.disarm_old();
        self.account();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::fixture::{START, hold, pager, state};
    use crate::space::page_state::PageState;
    use crate::sys::PAGE;

    /// Asks in a thread of the program's, and has the manager look until it is answered.
    fn asked(pager: &'static Pager, command: Command, a: usize, b: usize) -> usize {
        let mut worker = Worker::new(pager, MANAGER);
        let mut pending = Pending::new();
        std::thread::scope(|threads| {
            let thread = threads.spawn(move || pager.commands.ask(pager, command, a, b));
            while !thread.is_finished() {
                worker.obey(&mut pending);
                std::thread::yield_now();
            }
            thread.join().expect("no panic")
        })
    }

    #[test]
    fn what_a_thread_discards_is_gone_when_it_goes_on() {
        let pager = pager(2);
        hold(pager, 0, 3);
        let kept = hold(pager, 1, 4);
        assert_eq!(asked(pager, Command::Discard, START, START + PAGE), 1);
        assert_eq!([state(pager, 0), state(pager, 1)], [PageState::Fresh, kept]);
        assert_eq!(pager.stats().counters.stored_pages.load(Relaxed), 1);
    }

    /// What is mapped there by then is nobody's page in the books, and what comes there later is fresh.
    #[test]
    fn what_a_thread_maps_something_over_is_gone_when_it_goes_on() {
        let pager = pager(2);
        hold(pager, 0, 3);
        let kept = hold(pager, 1, 4);
        assert_eq!(asked(pager, Command::Unmapped, START, START + PAGE), 1);
        assert_eq!([state(pager, 0), state(pager, 1)], [PageState::Gone, kept]);
        pager.cover(START, START + PAGE).expect("room");
        assert_eq!(state(pager, 0), PageState::Fresh);
    }

    /// It would read what it discarded.
    #[test]
    fn who_discards_after_everything_was_brought_in_is_told_to_do_it_itself() {
        let pager = pager(1);
        pager.stop();
        assert_eq!(asked(pager, Command::Discard, START, START + PAGE), 0);
    }

    #[test]
    fn what_cannot_be_managed_is_answered_and_counted() {
        let pager = pager(1);
        assert_eq!(asked(pager, Command::Manage, 0x7000_0000_0000, 0x7000_0040_0000), 0);
        assert_eq!(pager.stats().unmanaged.ranges().count(), 1);
    }

    #[test]
    fn the_policy_is_not_asked_while_a_child_is_given_the_books() {
        let pager = pager(64);
        (0..64).for_each(|page| crate::pager::fixture::touch(pager, page));
        pager.freeze.begin(crate::pager::freeze::Why::Fork);
        let mut worker = Worker::new(pager, MANAGER);
        worker.tick(None);
        assert!(pager.evict.ring.lock().victims.is_empty());
    }
}
