//! The manager: what need not happen while a thread waits.
//!
//! It keeps some memory free, ticks the policy, looks at pages that nobody has
//! faulted on, answers the program's threads, and keeps the accounts. While
//! nothing happens it sleeps, for longer and longer.

use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicUsize, Ordering::*};

use terrace_core::{Abort, Action, Nanos};

use crate::aside;
use crate::collapse::Collapser;
use crate::command::Command;
use crate::duty::{LOOK, Pending};
use crate::give_up::{self, Retires};
use crate::inject::{self, Point};
use crate::limbo::Limbo;
use crate::limits;
use crate::pager::{MANAGER, Pager};
use crate::presence;
use crate::reclaim::Pace;
use crate::reservations;
use crate::serve::Worker;
use crate::sight::Sight;
use crate::spare;
use crate::spin::give_way;
use crate::sys::{self, PAGE};
use crate::unmanaged::Unmanaged;

/// The policy's tick: 10 ms, as HeMem's.
const TICK: u64 = 10_000_000;
/// The longest sleep while nothing happens.
const IDLE: u64 = 320_000_000;
/// The same where a share can change meanwhile: others wait for what is given back.
const IDLE_SHARED: u64 = 80_000_000;

/// How long (ns) the manager leaves making room when the writer of the spill file is far behind.
const HOLD_BACK: u64 = 1_000_000;
/// How long the background rests when nothing could leave.
const STUCK: u64 = 5_000_000;
/// Address space that is left to the program and to our books when more of its memory is managed.
const SPARE_SPACE: u64 = 16 << 20;
/// Where faults are timed; 0 before that was done.
static PROBED: AtomicUsize = AtomicUsize::new(0);
/// Why a program is not managed any more that has used its address space up.
const NO_MEMORY: &str =
    "the kernel gives no memory for what is kept of each page (ulimit -v, ulimit -d?)";

/// What the manager has beside what every worker has.
pub(crate) struct Tools {
    sight: Sight,
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
        tools.sight.give_back();
        tools.collapser.give_back();
    }
}

impl Worker<'static> {
    /// The manager's life.
    pub fn manage(&mut self) {
        let pager = self.pager;
        self.settle_down();
        let mut tools = Tools { sight: Sight::open(pager), collapser: Collapser::new(pager) };
        tools.settle_down(pager);
        let Tools { sight, collapser } = &mut tools;
        let mut next_tick = sys::now() + TICK;
        let mut sleep = TICK;
        let mut last_activity = 0;
        let mut random = sys::now() | 1;
        let mut pending = Pending::new();
        while !pager.is_leaving() {
            if spare::runs_low() && !pager.is_stopped() {
                give_up::break_off(NO_MEMORY);
            }
            aside::rest(self.id);
            self.obey();
            let giving = self.follow_share();
            self.guard(&mut pending);
            self.keep_headroom();
            let preparing = self.keep_huge_pages();
            self.collapse(collapser);
            let commons_due = self.look_at_commons();
            let now = sys::now();
            if now >= next_tick {
                self.look(sight);
                let activity = self.activity();
                if activity == last_activity {
                    sleep =
                        (sleep * 2).min(if pager.share.is_shared() { IDLE_SHARED } else { IDLE });
                } else {
                    sleep = TICK;
                    self.tick((!sight.sees()).then_some(&mut random));
                }
                last_activity = activity;
                next_tick = sys::now() + sleep;
            }
            let due = next_tick.min(collapser.due).min(commons_due);
            let mut wait = due.saturating_sub(now);
            if pager.duty.needs_guard() || pending.count > 0 {
                wait = wait.min(LOOK);
            }
            pager.sleep_unless(wait, || {
                let asked = pager.commands.pending().is_some();
                asked || giving || preparing || self.short_of_room()
            });
            if sleep > TICK && self.activity() != last_activity {
                next_tick = next_tick.min(sys::now());
            }
        }
    }

    /// Reads what was sampled.
    fn look(&mut self, sight: &mut Sight) {
        let pager = self.pager;
        if pager.enter(self.id) {
            sight.look(pager, &self.pagemap);
        }
        pager.leave(self.id);
    }
}

impl Worker<'_> {
    /// A number that changes whenever something happened.
    pub(crate) fn activity(&self) -> u64 {
        let c = &self.pager.stats().counters;
        [&c.faults_first_touch, &c.faults_absent, &c.faults_hint, &c.demotions, &c.samples]
            .iter()
            .map(|n| n.load(Relaxed))
            .sum()
    }

    /// Does what the program's threads ask for.
    fn obey(&mut self) {
        let pager = self.pager;
        while let Some((command, a, b)) = pager.commands.pending() {
            match command {
                Command::Manage => {
                    let managed = self.manage_by_parts(a, b);
                    pager.commands.answer(usize::from(managed.is_ok()));
                }
                Command::Discard => {
                    let _reading = pager.reading.lock();
                    pager.discarded(a, b);
                    // Not if everything was brought in before the lock was to be had.
                    pager.commands.answer(usize::from(!pager.is_stopped()));
                }
                Command::Collapsed => {
                    pager.became_huge(a, b);
                    pager.commands.answer(1);
                }
                // Answers by itself.
                Command::ForkBegins => self.accompany_fork(a as i32),
                // The end of it is the answer.
                Command::Retire => {
                    give_up::give_up(pager, self.id, Retires::why_of(a));
                }
            }
        }
    }

    /// Begins to manage a range that is mapped; of a reservation that is too large to be managed
    /// as a whole, all of the parts that it is in. If that cannot be done it is on plain memory,
    /// and the statistics say why.
    pub fn manage_by_parts(&mut self, start: usize, end: usize) -> Result<(), Unmanaged> {
        let mut result = Ok(());
        let mut at = start;
        while at < end {
            let mut until = reservations::until(at, end);
            if let Some((first, last)) = reservations::part_of(at) {
                until = last.min(until);
                if self.pager.regions.find(at).is_none()
                    && presence::is_anonymous(first, last)
                    && self.try_to_manage(first, last).is_ok()
                {
                    at = until;
                    continue;
                }
            }
            result = result.and(self.manage_range(at, until));
            at = until;
        }
        result
    }

    /// Begins to manage a range that is mapped. If that cannot be done it is on plain memory, and
    /// the statistics say why.
    pub fn manage_range(&mut self, start: usize, end: usize) -> Result<(), Unmanaged> {
        self.try_to_manage(start, end)
            .inspect_err(|&why| self.pager.stats().unmanaged.enter(why, start, end))
    }

    fn try_to_manage(&mut self, start: usize, end: usize) -> Result<(), Unmanaged> {
        let pager = self.pager;
        // It is on plain memory if what leaves it could not be kept anywhere (`ulimit -v`, `ulimit -d`).
        let needed = (end - start) as u64 + SPARE_SPACE;
        if limits::address_space_left().is_some_and(|left| left < needed) {
            return Err(Unmanaged::NoMemory);
        }
        // What was there before has been unmapped, and the message read; the
        // lock makes sure that it has also been carried out.
        let reading = pager.reading.lock();
        // Whoever puts the program on plain memory has the lock, and then it is too late.
        if pager.is_stopped() {
            return Err(Unmanaged::GivenUp);
        }
        pager.register(start, end - start).map_err(|error| match error {
            libc::ENOMEM => Unmanaged::NoMemory,
            _ => Unmanaged::Refused,
        })?;
        let covered = pager.cover(start, end);
        if covered.is_err() {
            pager.unregister_gaps(start, end);
        }
        drop(reading);
        self.ask_for_more();
        // What was touched before belongs into the books.
        let pagemap = presence::Pagemap::open();
        pagemap.for_each_present(start, end, |first, count| {
            for i in 0..count {
                if let Some(place) = pager.regions.find(first + i * PAGE) {
                    crate::reclaim::adopt(pager, &place, &pagemap);
                }
            }
        });
        covered
    }

    fn short_of_room(&self) -> bool {
        self.lacks_headroom() && self.pager.duty.has_spare_processor()
    }

    fn lacks_headroom(&self) -> bool {
        let pager = self.pager;
        pager.resident() + pager.headroom().min(pager.may_come()) > pager.budget()
            && self.pager.frozen.load(Relaxed) == 0
            && !self.nothing_leaves()
    }

    /// Makes some room, if that is wanted and nobody else is doing it; whether it did. The
    /// manager's work, and that of a handler with time to spare.
    pub(crate) fn make_headroom(&mut self) -> bool {
        if !self.lacks_headroom() || self.pager.should_hold_back() {
            return false;
        }
        let Some(mut limbo) = self.pager.limbo.try_lock() else { return false };
        let progress = self.make_room(&mut limbo, Pace::SPARE);
        drop(limbo);
        if !progress {
            self.stuck_until = sys::now() + STUCK;
        }
        progress
    }

    /// Whether making room has failed a moment ago.
    fn nothing_leaves(&self) -> bool {
        self.stuck_until > sys::now() || !self.pager.may_leave()
    }

    /// Makes room until a fault finds some.
    fn keep_headroom(&mut self) {
        let pager = self.pager;
        while self.short_of_room() {
            if pager.huge.drop_one(pager) {
                continue;
            }
            if pager.should_hold_back() {
                // Faults wait for the writer; the manager has other things to do.
                sys::sleep(HOLD_BACK);
                break;
            }
            if !self.make_headroom() {
                give_way();
            }
            if pager.commands.pending().is_some() {
                self.obey();
            }
        }
    }

    /// With random numbers, pages are made to fault.
    fn tick(&mut self, random: Option<&mut u64>) {
        inject::at(Point::Tick);
        let pager = self.pager;
        if pager.frozen.load(Relaxed) != 0 {
            return;
        }
        pager.regions.reclaim(pager.oldest_epoch());
        {
            // Limbo before mind: the order in which making room takes them.
            let mut limbo = pager.limbo.lock();
            let Limbo { victims, hints, .. } = &mut *limbo;
            let mut mind = pager.mind.lock();
            mind.tick(pager, |proposal| {
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
            mind.publish(pager.stats());
        }
        self.observe(random);
        self.settle_old();
        self.account();
    }

    /// Brings the statistics page up to date.
    fn account(&mut self) {
        let pager = self.pager;
        let stats = pager.stats();
        let now = sys::now();
        stats.counters.updated_ns.store(now, Relaxed);
        let own: u64 = pager
            .workers
            .iter()
            .map(|w| w.tid.load(Relaxed))
            .filter(|&t| t != 0)
            .map(sys::cpu_of_thread)
            .sum();
        stats.counters.own_cpu_ns.store(own, Relaxed);
        let own = Nanos(stats.counters.fault_own_ns.load(Relaxed));
        let beyond = pager.waits.settle(own);
        stats.counters.overcounted_ns.fetch_add(beyond.get(), Relaxed);
        stats.counters.store_bytes.store(pager.store.occupied(), Relaxed);
        pager.account_spill();
        let mut lines = stats.regions.iter();
        for (id, region) in pager.regions.iter() {
            let Some(line) = lines.next() else { break };
            line.id.store(u64::from(id), Relaxed);
            line.start.store(region.start() as u64, Relaxed);
            line.len.store(u64::from(region.pages()) * PAGE as u64, Relaxed);
            line.resident.store(u64::from(region.resident.load(Relaxed)) * PAGE as u64, Relaxed);
            line.faults.store(region.faults.load(Relaxed), Relaxed);
            for (to, from) in line.parts.iter().zip(&region.parts) {
                to.store(from.load(Relaxed), Relaxed);
            }
        }
        for line in lines {
            line.start.store(0, Relaxed);
        }
    }

    /// Times faults on memory of ours, from touch to return, so that the
    /// report can add what the program pays beyond our own service time, and of that what it
    /// pays in processor time. After some faults handlers poll: what that takes is told apart.
    pub fn measure_fault_overhead(&mut self) {
        const FAULTS: usize = 32;
        /// Too far for a stream: each touch is to be a fault of its own.
        const APART: usize = 32;
        /// A handler is done with a fault after the thread runs again, soon.
        const SOON: u64 = 10_000_000;
        let pager = self.pager;
        // Always at the same place, which is managed and must be nothing else's.
        let Ok(at) = sys::map_private_at(&PROBED, FAULTS * APART * PAGE) else { return };
        if self.manage_range(at, at + FAULTS * APART * PAGE).is_ok() {
            // By handlers that sleep, and by those that poll.
            let mut overheads = [[0; FAULTS]; 2];
            let mut n = [0; 2];
            let mut own = [Nanos::ZERO; FAULTS];
            for (i, own) in own.iter_mut().enumerate() {
                let polling = pager.duty.is_polling();
                let page = at + i * APART * PAGE;
                pager.duty.probe(page);
                let ran = sys::thread_cpu();
                let start = sys::now();
                // SAFETY: our own mapping. The handlers serve the fault.
                unsafe { (page as *mut u8).write_volatile(1) };
                let runs = sys::now();
                let fault = sys::thread_cpu();
                *own = (fault - ran) - (sys::thread_cpu() - fault);
                let mut spins = 0;
                while pager.duty.probed().is_none() && sys::now() - start < SOON {
                    crate::spin::backoff(&mut spins);
                }
                if let Some((began, done)) = pager.duty.probed()
                    && pager.duty.is_polling() == polling
                {
                    let how = usize::from(polling);
                    // Whoever wakes a thread may still be at it when that one runs: then
                    // the service took longer than anybody waited, and the way back nothing.
                    overheads[how][n[how]] =
                        began.saturating_sub(start) + runs.saturating_sub(done);
                    n[how] += 1;
                }
            }
            let [sleeping, polling] = &mut overheads;
            let (sleeping, polling) = (&mut sleeping[..n[0]], &mut polling[..n[1]]);
            sleeping.sort_unstable();
            polling.sort_unstable();
            pager.duty.set_overheads(sleeping, polling);
            // Interrupts and cold caches only add to it.
            own.sort_unstable();
            pager.stats().counters.fault_own_ns.store(own[FAULTS / 4].get(), Relaxed);
        }
        // SAFETY: nobody else knows of it. The handlers take the message.
        unsafe { sys::munmap_managed(at, FAULTS * APART * PAGE) };
    }
}
