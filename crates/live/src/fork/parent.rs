//! A fork from the parent's side: from the announcement to the child's own pager.

use core::sync::atomic::{AtomicBool, Ordering::*};

use crate::evict::reclaim::{Pace, Progress};
use crate::failsafe::inject::{self, Point};
use crate::failsafe::{give_up, seccomp};
use crate::fault::content::zeros;
use crate::fault::messages::Unkept;
use crate::fault::serve::Served;
use crate::fork::children::{CHILDREN, Child, Children};
use crate::fork::handover::{CHILD_PLAIN, CHILD_READY, Handover, NOTHING, RELEASED};
use crate::fork::wiped;
use crate::pager::Pager;
use crate::pager::freeze::Why;
use crate::space::deferred::Read;
use crate::space::page_state::PageState;
use crate::sys::spin::{backoff, give_way};
use crate::sys::uffd::{Message, Uffd};
use crate::sys::{self, PAGE};
use crate::workers::command::Command;
use crate::workers::worker::Worker;

/// How long a fork may wait for room at most (ns).
const ROOM_FOR_FORK: u64 = 50_000_000;
/// How long the parent waits for a child that makes no progress (a debugger holds
/// it, say) before it fills the child's memory and lets go of it (ns).
const PATIENCE: u64 = 2_000_000_000;

/// How long the parent's manager pauses at least, and at most, before it looks again what a child
/// wants (ns). It can wait for the child's word, which is soon there, or for its faults, of which
/// there mostly are none, but not for both.
const LEAST_PAUSE: u64 = 100_000;
const LONGEST_PAUSE: u64 = 1_000_000;

/// The number of a child whose fork was not announced: one at a time, under the lock for reading.
const UNANNOUNCED: usize = CHILDREN - 1;

/// How long the threads that change the address space may take to say so (ns). They are in the
/// kernel, between two steps; with that many at it that there is no moment without, what is known
/// by then has to do.
const SETTLES: u64 = 1_000_000_000;

/// How long who is about to change the address space waits for a child to have its memory, at most
/// (ns): whatever the thread that forks may wait for, it does not wait long.
const GATE: u64 = 1_000_000_000;
/// How long (ns) they wait for a fault at most, unless it is found to wait still.
const HOLD: u64 = 200_000;

/// Pages that are looked at to find one that was resident.
const LOOKED_AT: usize = 4096;

/// What is told of forks, once each: a program that forks so does it time and again.
static TOLD: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// What a program's user has to know of a fork.
#[derive(Clone, Copy)]
enum Tell {
    /// A child was made by a system call of the program's own, and is on plain memory.
    Unannounced,
    /// Other threads changed the address space for so long that what a child has of it was not
    /// found out ([`SETTLES`]).
    Unsettled,
}

/// What a look at the children found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// No child.
    Nobody,
    /// Nothing that they wait for.
    Quiet,
    /// Faults, now served.
    Served,
}

/// Whether a fork is accompanied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// The parent and the child have to say how it ended.
    Yes,
    /// The program is on plain memory.
    Unneeded,
}

impl Pager {
    /// In the thread that is about to fork, signals blocked. The error number
    /// if this process cannot be forked: `EMFILE` where it can be once it has retired.
    pub fn before_fork(&self) -> Result<Announced, i32> {
        if self.is_stopped() {
            self.await_plain_memory();
            return Ok(Announced::Unneeded);
        }
        let mut spins = 0;
        while self.fork.turn.swap(1, AcqRel) != 0 {
            backoff(&mut spins);
        }
        // SAFETY: asks for this process's number.
        self.fork.parent.store(unsafe { libc::getpid() }, Relaxed);
        self.fork.ended.store(0, Release);
        self.fork.done.store(0, Release);
        // Nonsense where a filter forbids to ask: a thread that the manager does not find.
        // SAFETY: asks for this thread's number.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as usize;
        let error = self.commands.ask(self, Command::ForkBegins, thread, 0);
        if self.is_stopped() {
            self.await_plain_memory();
            self.fork.turn.store(0, Release);
            return Ok(Announced::Unneeded);
        }
        if error != 0 {
            self.fork.turn.store(0, Release);
            return Err(error as i32);
        }
        Ok(Announced::Yes)
    }

    /// In a thread of the program's that is about to change the address space: lets a child have its
    /// memory first, or waits some time for that.
    pub fn await_child(&self) {
        let fork = &self.fork;
        if fork.gate.load(Acquire) == 0 && fork.hold_until.load(Acquire) == 0 {
            return;
        }
        let until = sys::now() + GATE;
        loop {
            let now = sys::now();
            let held = now < fork.hold_until.load(Acquire);
            if fork.gate.load(Acquire) == 0 && !held || now > until {
                break;
            }
            give_way();
        }
    }

    /// Has threads that are about to change the address space wait, since a fault waits for that in vain;
    /// or lets them go on.
    pub(crate) fn hold_changes(&self, now: Option<u64>) {
        let until = now.map_or(0, |now| now + HOLD);
        if self.fork.hold_until.load(Relaxed) != until {
            self.fork.hold_until.store(until, Release);
        }
    }

    /// Something of ours broke: waits until the program's memory is plain. A child that
    /// was forked before would wait for what its parent still has to bring in, and
    /// read zeros if the parent ends first, as daemons' parents do.
    pub(crate) fn await_plain_memory(&self) {
        while !self.phase.is_over() {
            sys::sleep(100_000);
        }
    }

    /// In the thread that forks, just before the copy is made: what was unmapped and moved, and has been
    /// read by now, is so in the child.
    pub fn copy_is_made(&self) {
        self.fork.copied.store(self.freeze.deferred.lock().noted(), Release);
    }

    /// In the parent, when `fork` has returned, with a child or without. Waits until the child has
    /// its memory: a parent that goes on at once may end at once, as daemons'
    /// parents do, and what the child touches next would read as zeros.
    pub fn after_fork_in_parent(&self) {
        self.fork.ended.store(1, Release);
        self.ring();
        while self.fork.done.load(Acquire) == 0 {
            sys::futex_wait(&self.fork.done, 0, None, false);
        }
        if self.is_stopped() {
            // The message of this fork was read before `fork` returned, by one who holds
            // the lock until the child has all its memory. Only then may this thread
            // go on, and the child.
            self.await_plain_memory();
            self.await_handles();
            if let Some(handover) = self.fork.any_handover() {
                handover.release();
            }
        }
        self.fork.turn.store(0, Release);
    }

    /// A fork was reported by the kernel; the child's memory waits on `uffd`.
    /// Called with the lock for reading held.
    pub fn forked(&self, worker: &mut Worker<'_>, uffd: Uffd) {
        self.stats().counters.forks.fetch_add(1, Relaxed);
        let child = Child { uffd, seen: self.freeze.deferred.lock().noted(), settled: false };
        if self.is_awaited(child) {
            return;
        }
        // Not announced. Freeze, fill, let go.
        self.freeze.begin(Why::RawFork);
        self.wait_quiet(worker.id);
        self.read_all_changes(worker);
        self.settle(UNANNOUNCED, child, (0, 0));
        self.fill_raw_child(worker, UNANNOUNCED, child.uffd);
        self.freeze.deferred.lock().forget_child(UNANNOUNCED);
        if !self.is_stopped() {
            self.stats().counters.forks_unmanaged.fetch_add(1, Relaxed);
            self.tell(Tell::Unannounced);
        }
        if self.freeze.is_only(Why::RawFork) && !self.is_stopped() {
            // Who serves faults meanwhile waits for the lock.
            self.carry_out_deferred();
        }
        self.freeze.end(Why::RawFork);
    }

    /// Whether a fork was announced, and so the manager takes care of this child.
    fn is_awaited(&self, child: Child) -> bool {
        let mut children = self.fork.children.lock();
        let is_awaited = children.announced && children.push(child);
        drop(children);
        if is_awaited {
            self.ring();
        }
        is_awaited
    }

    /// With the lock for reading, while frozen: reads until all changes of the address space that
    /// a child may have are noted.
    fn read_all_changes(&self, worker: &mut Worker<'_>) {
        let deadline = sys::now() + SETTLES;
        let mut unkept = Unkept::default();
        // Asked once each time: a moment later something else may be changing, which no child has.
        let settled = loop {
            if !self.uffd().is_changing() {
                break true;
            }
            if sys::now() > deadline {
                break false;
            }
            match self.uffd().read() {
                // Their threads fault again, but not in front of what is still to be read.
                Some(Message::Fault { page, .. }) => unkept.add(page),
                Some(Message::Fork { child }) => {
                    // Several at once: this one gets what can be known now.
                    let uffd = Uffd::from_raw(child);
                    let child =
                        Child { uffd, seen: self.freeze.deferred.lock().noted(), settled: false };
                    if self.is_awaited(child) {
                        continue;
                    }
                    self.settle(UNANNOUNCED, child, (0, 0));
                    self.fill_raw_child(worker, UNANNOUNCED, uffd);
                    self.stats().counters.forks_unmanaged.fetch_add(1, Relaxed);
                }
                Some(event) => self.freeze.deferred.lock().push(event),
                None => give_way(),
            }
        };
        unkept.wake(self.uffd());
        if !settled {
            self.tell(Tell::Unsettled);
        }
    }

    /// Tells of a fork what was not told yet.
    fn tell(&self, what: Tell) {
        if TOLD[what as usize].swap(true, Relaxed) {
            return;
        }
        match what {
            Tell::Unannounced if self.config.quiet => {}
            Tell::Unannounced => sys::complain(&[
                "a forked child goes on without Terrace: it was not made by the C library's fork",
            ]),
            Tell::Unsettled => sys::complain(&[
                "memory was unmapped, moved or discarded without a pause while the program forked: \
                 the child may have it as it was before",
            ]),
        }
    }

    /// Waits until all changes of the address space that a child may have are noted. Others read.
    fn await_changes(&self) {
        let deadline = sys::now() + SETTLES;
        while self.uffd().is_changing() && !self.is_stopped() {
            if sys::now() > deadline {
                return self.tell(Tell::Unsettled);
            }
            give_way();
        }
    }

    /// Finds out which of the deferred events hold for a child. Of so many it is sure; so many had been
    /// read when its copy was made.
    fn settle(&self, number: usize, child: Child, (sure, copied): (usize, usize)) {
        let uffd = child.uffd;
        let first_managed = |start: usize, end: usize| {
            self.regions.iter().find_map(|(_, region)| {
                let (from, to) = (start.max(region.start()), end.min(region.end()));
                let page = |at: usize| ((at - region.start()) / PAGE) as u32;
                let is_mapped = |at: &usize| {
                    let word = region.word(page(*at)).load(Acquire);
                    PageState::of(word) != PageState::Gone
                };
                (from < to).then(|| (from..to).step_by(PAGE).find(is_mapped)).flatten()
            })
        };
        // A page that was resident tells: either it is there, or zeros are right.
        let is_discarded = |start: usize, end: usize| {
            let resident = self.regions.iter().find_map(|(_, region)| {
                let (from, to) = (start.max(region.start()), end.min(region.end()));
                (from < to).then(|| {
                    (from..to).step_by(PAGE).take(LOOKED_AT).find(|at| {
                        let page = ((at - region.start()) / PAGE) as u32;
                        region.word(page).load(Acquire) == PageState::Resident.word()
                    })
                })?
            })?;
            match uffd.copy(resident, zeros(), PAGE).1 {
                0 => Some(true),
                libc::EEXIST => Some(false),
                _ => None,
            }
        };
        let is_registered = |page: usize| uffd.is_registered(page);
        let mut deferred = self.freeze.deferred.lock();
        let read = Read { sure, copied, seen: child.seen };
        deferred.settle(number, read, is_registered, first_managed, is_discarded);
    }

    /// A child runs as soon as the message of its birth is read. Whoever reads
    /// it holds the lock for reading until the handle is entered, or all memory is brought in if
    /// the fork was not announced; without
    /// waiting for that, the child would be told that it is on its own while
    /// its memory still waits for us.
    pub fn await_handles(&self) {
        drop(self.reading.lock());
    }

    /// Whether a forked child is to find an address empty (`MADV_WIPEONFORK`), or covered.
    pub fn is_wiped(&self, address: usize) -> bool {
        wiped::is_marked((address, address + 1))
            || self.fork.covered.lock().iter().any(|it| (it.start..it.end).contains(&address))
    }

    /// Brings in everything that is absent in a child, of which the only thread is in our wrapper.
    fn fill_child(&self, worker: &mut Worker<'_>, number: usize, child: Child) {
        for (_, origin) in self.absent_pages(|| !child.uffd.is_orphan()) {
            let place = self.freeze.deferred.lock().destination_in(Some(number), origin);
            if let Some(address) = place.filter(|&address| !self.is_wiped(address)) {
                worker.bring_to_child(number, child, address);
            }
        }
    }
}

impl Worker<'_> {
    /// The manager's part: from the announcement, by this thread of the program's, to the
    /// child's own pager.
    pub fn accompany_fork(&mut self, thread: i32) {
        let pager = self.pager;
        let fork = &pager.fork;
        // By the manager: the thread that forks may be forbidden to.
        if !pager.uffd().can_be_doubled() {
            return pager.commands.answer(libc::EMFILE as usize);
        }
        match fork.take_one() {
            Ok(page) => fork.handover.store(page, Release),
            Err(error) => return pager.commands.answer(error as usize),
        }
        let handover = fork.handover();
        fork.filtered.store(seccomp::differ(thread), Release);
        self.make_room_for_fork();
        pager.freeze.begin(Why::Fork);
        pager.wait_quiet(self.id);
        pager.budget.share.forks(pager);
        // SAFETY: a pager is never freed, and the page is forgotten when the fork is over.
        unsafe { fork.lives.take(&handover.alive) };
        fork.children.lock().announced = true;
        let noted = pager.freeze.deferred.lock().noted();
        fork.sure.store(noted, Release);
        fork.copied.store(noted, Release);
        pager.commands.answer(0);
        inject::at(Point::Fork);
        let mut released = false;
        let mut deadline = None;
        let mut progress = 0;
        let mut round = Round::Nobody;
        let mut pause = LEAST_PAUSE;
        loop {
            self.obey_while_forking();
            round = self.serve_children(match round {
                // What else comes is not this fork's child.
                _ if released => LONGEST_PAUSE,
                Round::Served => LEAST_PAUSE,
                Round::Quiet | Round::Nobody => 0,
            });
            let step = handover.step.load(Acquire);
            let now = handover.progress.load(Acquire);
            if core::mem::replace(&mut progress, now) != now {
                deadline = None;
            }
            if !released && (step == CHILD_READY || step == CHILD_PLAIN) {
                pager.await_handles();
                self.let_children_go(step == CHILD_PLAIN);
                handover.release();
                fork.gate.store(0, Release);
                released = true;
            }
            if fork.ended.load(Acquire) != 0 {
                if released {
                    break;
                }
                // The message of a child is read before `fork` returns: without one there is none.
                pager.await_handles();
                if fork.children.lock().all_ended() {
                    break;
                }
                let deadline = *deadline.get_or_insert_with(|| sys::now() + PATIENCE);
                // Only if the child has not asked just now.
                if sys::now() > deadline {
                    self.let_children_go(true);
                    if handover.step.swap(RELEASED, AcqRel) != NOTHING {
                        handover.release();
                    }
                    released = true;
                }
            }
            match round {
                Round::Nobody => pager.sleep_unless(LONGEST_PAUSE, || {
                    let asked = pager.commands.pending().is_some();
                    asked || fork.ended.load(Acquire) != 0 || fork.children.lock().any()
                }),
                Round::Quiet if !released => {
                    sys::futex_wait(&handover.step, NOTHING, Some(pause), true);
                    pause = LONGEST_PAUSE.min(pause * 2);
                }
                Round::Quiet => {}
                Round::Served => pause = LEAST_PAUSE,
            }
        }
        fork.children.lock().announced = false;
        // Of raw forks that came after the child was let go, or of a child
        // that has ended.
        pager.await_handles();
        self.let_children_go(true);
        // Who serves a raw fork may have read of the child, and has given it all its memory: it waits
        // for no more than that.
        if !released && handover.step.swap(RELEASED, AcqRel) != NOTHING {
            handover.release();
        }
        fork.lives.give_back(&handover.alive);
        fork.gate.store(0, Release);
        self.thaw();
        fork.forget_handover();
        fork.done.store(1, Release);
        sys::futex_wake(&fork.done, false);
        self.manage_late();
    }

    /// Does what other threads ask for meanwhile, or notes it: the one that forks may have to wait
    /// for them.
    fn obey_while_forking(&self) {
        let pager = self.pager;
        let Some((command, a, b)) = pager.commands.pending() else { return };
        match command {
            Command::Manage => {
                let count = pager.fork.late_count.load(Relaxed);
                if let Some((start, end)) = pager.fork.late.get(count) {
                    start.store(a, Relaxed);
                    end.store(b, Relaxed);
                    // A child's copy has it whole or not at all.
                    pager.fork.late_count.store(count + 1, Release);
                    pager.commands.answer(1);
                }
            }
            Command::Discard | Command::Unmapped => {
                let _reading = pager.reading.lock();
                let (start, end) = (a, b);
                let event = match command {
                    Command::Discard => Message::Remove { start, end },
                    _ => Message::Unmap { start, end },
                };
                // Its hook let no copy be made when that happened.
                pager.freeze.deferred.lock().push_between_copies(event);
                pager.commands.answer(usize::from(!pager.is_stopped()));
            }
            _ => {}
        }
    }

    /// Manages what was asked for while a fork was under way. In a child, too.
    pub(crate) fn manage_late(&mut self) {
        let fork = &self.pager.fork;
        let count = fork.late_count.swap(0, AcqRel);
        for (start, end) in &fork.late[..count] {
            // What cannot be managed is counted.
            let _ = self.manage_by_parts(start.load(Relaxed), end.load(Relaxed));
        }
    }

    /// Finds out of each child what holds for it, unless that is known.
    fn settle_children(&self) {
        let pager = self.pager;
        let all_settled =
            |children: &Children| children.handles.iter().flatten().all(|c| c.settled);
        if all_settled(&pager.fork.children.lock()) {
            return;
        }
        pager.fork.gate.store(1, Release);
        pager.await_changes();
        let children = pager.fork.children.lock().handles;
        for (number, child) in children.into_iter().enumerate() {
            if let Some(child) = child.filter(|child| !child.settled) {
                let read = (pager.fork.sure.load(Acquire), pager.fork.copied.load(Acquire));
                pager.settle(number, child, read);
                if let Some(child) = &mut pager.fork.children.lock().handles[number] {
                    child.settled = true;
                }
            }
        }
    }

    /// When something of ours broke: gives the children all their memory. The thread
    /// that forks goes on, and tells its child once it knows that this is so.
    pub fn abandon_fork(&mut self) {
        let fork = &self.pager.fork;
        fork.children.lock().announced = false;
        self.let_children_go(true);
        fork.done.store(1, Release);
        sys::futex_wake(&fork.done, false);
    }

    /// Closes the children's handles. All memory is brought in before if it is
    /// asked for, and if there are several: nothing says which of them is the
    /// one that will serve itself.
    fn let_children_go(&mut self, fill: bool) {
        let pager = self.pager;
        self.settle_children();
        let children = pager.fork.children.lock().handles;
        let several = children.iter().flatten().count() > 1;
        for (number, child) in children.into_iter().enumerate() {
            let Some(child) = child.filter(|child| child.settled) else { continue };
            // One that has all its memory, and no books of what has changed, is on its own.
            let handover = pager.fork.any_handover();
            let is_open = |page: &&Handover| page.step.load(Acquire) != RELEASED;
            let handed_over = !several
                && handover
                    .filter(is_open)
                    .is_some_and(|page| page.hand_over(&pager.freeze.deferred.lock(), number));
            if fill || !handed_over {
                pager.fill_child(self, number, child);
            }
            pager.fork.children.lock().handles[number] = None;
            pager.freeze.deferred.lock().forget_child(number);
            child.uffd.close();
        }
    }

    /// While frozen nothing leaves: makes some room beforehand, of what no child has, too.
    fn make_room_for_fork(&mut self) {
        let pager = self.pager;
        self.ask_for_more();
        let deadline = sys::now() + ROOM_FOR_FORK;
        while pager.resident() + (pager.budget() / 8).min(pager.may_come()) > pager.budget()
            && pager.resident() > pager.budget.share.common()
            && sys::now() < deadline
        {
            let Some(ring) = pager.evict.ring.try_lock() else {
                give_way();
                continue;
            };
            match self.make_room(ring, Pace::BATCH) {
                Progress::Nothing => return,
                Progress::Changing => give_way(),
                Progress::Unshared | Progress::Made => {}
            }
        }
    }

    /// Serves what children wait for; waits for that so long at most (ns).
    fn serve_children(&mut self, wait: u64) -> Round {
        self.settle_children();
        let children = self.pager.fork.children.lock().handles;
        let mut polls = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; CHILDREN];
        for (poll, child) in polls.iter_mut().zip(&children) {
            poll.fd = child.map_or(-1, |c| c.uffd.raw());
        }
        if polls.iter().all(|p| p.fd < 0) {
            return Round::Nobody;
        }
        sys::poll(&mut polls, Some(wait));
        let mut round = Round::Quiet;
        for (number, child) in children.into_iter().enumerate() {
            let Some(child) = child.filter(|child| child.settled) else { continue };
            while let Some(message) = child.uffd.read() {
                round = Round::Served;
                // Other events of the child cannot be followed here, and need
                // not be: it has one thread, and that is in our wrapper.
                if let Message::Fault { page, .. } = message {
                    self.bring_to_child(number, child, page);
                }
            }
        }
        round
    }

    /// Brings a page of a child's in, however long that takes.
    fn bring_to_child(&mut self, number: usize, child: Child, page: usize) {
        loop {
            match self.serve_child_page((number, child.uffd), page) {
                Served::Done => return,
                Served::Retry => give_way(),
                // It would read zeros.
                Served::Refused(error) => give_up::lost(self.pager, error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::MANAGER;
    use crate::pager::fixture::{START, hold, pager, state};

    /// Asks in a thread of the program's, and has the manager look until it is answered.
    fn asked(pager: &'static Pager, command: Command, a: usize, b: usize) -> usize {
        let worker = Worker::new(pager, MANAGER);
        std::thread::scope(|threads| {
            let thread = threads.spawn(move || pager.commands.ask(pager, command, a, b));
            while !thread.is_finished() {
                worker.obey_while_forking();
                std::thread::yield_now();
            }
            thread.join().expect("no panic")
        })
    }

    #[test]
    fn what_is_to_be_managed_while_a_fork_is_under_way_is_kept_for_afterwards() {
        let pager = pager(1);
        assert_eq!(asked(pager, Command::Manage, 0x10_0000, 0x20_0000), 1);
        assert_eq!(asked(pager, Command::Manage, 0x30_0000, 0x40_0000), 1);
        assert_eq!(pager.fork.late_count.load(Relaxed), 2);
        let late = |n: usize| {
            let (start, end) = &pager.fork.late[n];
            (start.load(Relaxed), end.load(Relaxed))
        };
        assert_eq!([late(0), late(1)], [(0x10_0000, 0x20_0000), (0x30_0000, 0x40_0000)]);
        Worker::new(pager, MANAGER).manage_late();
        assert_eq!(pager.fork.late_count.load(Relaxed), 0, "once");
    }

    /// The child's copy of the books has the page still: it must not be freed before.
    #[test]
    fn what_is_discarded_while_a_fork_is_under_way_is_noted_and_not_carried_out() {
        for command in [Command::Discard, Command::Unmapped] {
            let pager = pager(2);
            let held = hold(pager, 0, 3);
            pager.freeze.begin(Why::Fork);
            assert_eq!(asked(pager, command, START, START + PAGE), 1);
            assert_eq!(state(pager, 0), held);
            assert_eq!(pager.freeze.deferred.lock().noted(), 1);
            let origin = pager.freeze.deferred.lock().origin(START);
            assert_eq!(origin, None, "it reads zeros from now on");
        }
    }

    fn child(settled: bool) -> Child {
        Child { uffd: Uffd::from_raw(-1), seen: 0, settled }
    }

    #[test]
    fn one_child_that_asked_gets_the_events_and_of_two_neither_does() {
        for children in [1, 2] {
            let pager = pager(1);
            let page = pager.fork.take_one().expect("memory");
            pager.fork.handover.store(page, Release);
            for _ in 0..children {
                assert!(pager.fork.children.lock().push(child(true)));
            }
            Worker::new(pager, MANAGER).let_children_go(false);
            assert!(!pager.fork.children.lock().any());
            assert_eq!(pager.fork.handover().events().is_some(), children == 1, "{children}");
        }
    }

    /// Its memory would be missing.
    #[test]
    fn a_fork_of_plain_memory_is_not_accompanied() {
        let pager = pager(1);
        pager.stop();
        pager.phase.set_over();
        assert_eq!(pager.before_fork(), Ok(Announced::Unneeded));
        assert_eq!(pager.fork.turn.load(Relaxed), 0, "the next thread may fork");
    }
}
