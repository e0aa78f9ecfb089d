//! A process's side: what it may use, and what it says of itself.
//!
//! Called from the program's own threads (when they map memory) and by the
//! manager. Nothing here allocates or locks; a process waits for the broker only
//! when it maps more than its share while it is not managed yet, and then for 200
//! ms at most.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use super::ending;
use super::keeper::KEEPS_WAITING;
use super::number;
use super::page::{BrokerPage, Slot};
use super::share::{LEAST, WHOLE};
use crate::config::RunConfig;
use crate::evict::reclaim::{Pace, Progress};
use crate::pager::Pager;
use crate::sys::spin::backoff;
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// The broker's page of this process, and the process's slot in it.
static BROKER: AtomicPtr<BrokerPage> = AtomicPtr::new(core::ptr::null_mut());
static SLOT: AtomicPtr<Slot> = AtomicPtr::new(core::ptr::null_mut());
/// What a process may use that has no share, bytes.
static ALONE: AtomicU64 = AtomicU64::new(u64::MAX);
/// What was mapped when this process was forked: most of it is its parent's.
static INHERITED: AtomicUsize = AtomicUsize::new(0);
/// Of what is mapped while the process is not managed, as much was there when it last forked,
/// or was forked, bytes: its relatives may have the same frames.
static COMMON: AtomicUsize = AtomicUsize::new(0);
/// When (ns) that was; 0 if never.
static FORKED_AT: AtomicU64 = AtomicU64::new(0);
/// The process that began this program: the same in all that are forked from it.
static FAMILY: AtomicU32 = AtomicU32::new(0);
/// The number of the run that this program is of.
static RUN: AtomicU64 = AtomicU64::new(0);
/// Until when (ns) the broker is not asked, for it has not answered.
static SILENT_UNTIL: AtomicU64 = AtomicU64::new(0);

/// How long a process waits for an answer (ns), and for how long it does not ask
/// again if there is none. The broker answers at once, unless others have to give
/// back first so that a new process can have anything at all.
const PATIENCE: u64 = 2 * KEEPS_WAITING;
const SILENCE: u64 = 1_000_000_000;
/// The same of a managed process that has mapped more, for which there is room made otherwise:
/// what an answer takes on a busy machine; and for how long it does not ask again if it got nothing.
const HASTE: u64 = 2_000_000;
const MODESTY: u64 = 100_000_000;
/// The least that a pager can work with, pages: what the ring of pages on their
/// way out needs, and three times as much for what one instruction touches.
pub(crate) const FLOOR: u64 = 128;
/// A forked child gives nothing back for so long (ns): mostly it begins another
/// program or ends before that, and its pages are its parent's anyway.
pub(crate) const CHILDHOOD: u64 = 200_000_000;
/// While a share shrinks, the program may take so many pages between two batches
/// that leave: about what faults take in the time of one.
const SLACK: u64 = 64;
/// For how long it does not try again after nothing could leave (ns).
const STUCK: u64 = 20_000_000;
/// The longest that the manager gives memory back at a stretch (ns).
const STRETCH: u64 = 1_000_000;

pub(super) fn broker() -> Option<&'static BrokerPage> {
    // SAFETY: only set from `&'static`.
    unsafe { BROKER.load(Acquire).as_ref() }
}

/// A little of the budget that all share, pages: what several may hold beyond their shares for a
/// moment.
fn little() -> u64 {
    let budget = broker().map_or(0, |page| page.budget.load(Relaxed));
    (budget / 64).min(LEAST.get()) / PAGE as u64
}

/// The run that this process is of.
pub(super) fn run() -> u64 {
    RUN.load(Relaxed)
}

/// The process that began this program.
pub(super) fn family() -> u32 {
    FAMILY.load(Relaxed)
}

/// At the start of a program: finds the broker.
pub fn init(config: &RunConfig) {
    let fast = config.fast.get();
    ALONE.store(fast, Relaxed);
    number::init(config);
    FAMILY.store(number::shown(), Relaxed);
    RUN.store(ending::run_number(&config.dir), Relaxed);
    let Some(path) = &config.broker else { return };
    let (Ok(page), Some(own)) = (BrokerPage::open(path), number::own()) else {
        // Out of its reach (another root or user): a modest part, for the others
        // know nothing of this process.
        ALONE.store((fast / 8).max(LEAST.get()), Relaxed);
        return;
    };
    BROKER.store(core::ptr::from_ref(page).cast_mut(), Release);
    // What was said of the program that this process ran before is over.
    if let Some(slot) = page.own(own) {
        slot.forget();
        slot.family.store(own, Relaxed);
        SLOT.store(core::ptr::from_ref(slot).cast_mut(), Release);
        page.ring();
    }
}

/// The process's slot, taken when it is first needed.
fn slot(page: &'static BrokerPage) -> Option<&'static Slot> {
    // SAFETY: only set from `&'static`.
    if let Some(slot) = unsafe { SLOT.load(Acquire).as_ref() } {
        return Some(slot);
    }
    let slot = page.claim(number::own()?)?;
    slot.family.store(FAMILY.load(Relaxed), Relaxed);
    SLOT.store(core::ptr::from_ref(slot).cast_mut(), Release);
    Some(slot)
}

/// Whether so many mapped bytes of an unmanaged process are within its share;
/// asks for more if they are not.
pub fn fits(mapped: usize) -> bool {
    let alone = mapped as u64 <= ALONE.load(Relaxed);
    let Some(page) = broker() else { return alone };
    let known = !SLOT.load(Relaxed).is_null();
    if !known && mapped.saturating_sub(INHERITED.load(Relaxed)) as u64 <= LEAST.get() {
        return true;
    }
    let Some(slot) = slot(page) else { return alone };
    slot.want.store(mapped as u64, SeqCst);
    if takes(slot, mapped as u64) {
        return true;
    }
    ask(page, slot, PATIENCE);
    takes(slot, mapped as u64) || (alone && is_left_alone(page, slot))
}

/// Whether nobody gives shares any more, and this process was given none.
fn is_left_alone(page: &BrokerPage, slot: &Slot) -> bool {
    slot.grant.load(Relaxed) == 0 && !page.is_kept()
}

/// The same of a share as it is: nobody is asked for more.
pub fn is_within(mapped: usize) -> bool {
    let alone = mapped as u64 <= ALONE.load(Relaxed);
    let Some(page) = broker() else { return alone };
    // SAFETY: only set from `&'static`.
    match unsafe { SLOT.load(Acquire).as_ref() } {
        Some(slot) => takes(slot, mapped as u64) || (alone && is_left_alone(page, slot)),
        None => {
            mapped.saturating_sub(INHERITED.load(Relaxed)) as u64 <= LEAST.get()
                || (alone && !page.has_free_slot())
        }
    }
}

/// Takes so much if the share is large enough.
fn takes(slot: &Slot, mapped: u64) -> bool {
    if slot.grant.load(SeqCst) < mapped {
        return false;
    }
    // The broker lowers a share first and then looks what is held; so one of us
    // sees what the other did.
    slot.held.store(mapped, SeqCst);
    slot.grant.load(SeqCst) >= mapped
}

/// So much is mapped in a process that is not managed, after some was unmapped.
pub fn shrank(mapped: usize) {
    COMMON.fetch_min(mapped, Relaxed);
}

/// Asks the broker, and waits for its answer, so long at most (ns).
fn ask(page: &BrokerPage, slot: &Slot, patience: u64) {
    let mut now = sys::now();
    if now < SILENT_UNTIL.load(Relaxed) || page.closed.load(Relaxed) != 0 {
        return;
    }
    let number = put_question(page, slot);
    let until = now + patience;
    loop {
        let answered = slot.answer.load(Acquire);
        if answers(answered, number) {
            return;
        }
        if now >= until {
            SILENT_UNTIL.store(now + SILENCE, Relaxed);
            return;
        }
        sys::futex_wait(&slot.answer, answered, Some(until - now), true);
        now = sys::now();
    }
}

/// Has the broker look at once; the question's number.
fn put_question(page: &BrokerPage, slot: &Slot) -> u32 {
    let number = slot.ask.fetch_add(1, AcqRel).wrapping_add(1);
    page.ring();
    number
}

/// Whether the last answer is to this question, or to a later one.
fn answers(last: u32, question: u32) -> bool {
    last.wrapping_sub(question).cast_signed() >= 0
}

/// Whether this process, which is not managed and has so many mapped bytes, can fork and stay so.
pub fn fork_fits(mapped: usize) -> bool {
    match broker() {
        Some(page) => page.has_room_for_fork(number::shown(), FAMILY.load(Relaxed), mapped as u64),
        None => (mapped as u64).saturating_mul(2) <= ALONE.load(Relaxed),
    }
}

/// In a process that is not managed and is about to fork: the child will have all of it, too.
pub fn forks_unmanaged(mapped: usize) {
    COMMON.store(mapped, Relaxed);
    FORKED_AT.store(sys::now(), Relaxed);
}

/// In a forked child that is not managed, with what it has inherited.
pub fn forked_unmanaged(mapped: usize) {
    SLOT.store(core::ptr::null_mut(), Release);
    SILENT_UNTIL.store(0, Relaxed);
    INHERITED.store(mapped, Relaxed);
    COMMON.store(mapped, Relaxed);
    FORKED_AT.store(sys::now(), Relaxed);
}

/// A pager's share.
#[derive(Debug, Default)]
pub struct Share {
    slot: AtomicPtr<Slot>,
    /// Until when (ns) nothing is given back.
    wait_until: AtomicU64,
    /// Resident pages in frames that relatives have, too, as far as is known.
    common: AtomicU64,
    /// What of them the limit contains, pages.
    allowed: AtomicU64,
    /// Whether it has been looked up since the last fork.
    known: AtomicBool,
    /// What of `common` was taken for this process's alone since, for there were no relatives.
    forgotten: AtomicU64,
    /// Whether there are pages of which the policy knows nothing, see [`crate::fork::shared_frames`].
    apart: AtomicBool,
    /// Whether the policy has asked for one of them to leave since the last round began: it knew
    /// of it nevertheless.
    met_apart: AtomicBool,
    /// When (ns) this process last forked, or was forked.
    forked_at: AtomicU64,
    /// When (ns) it was forked.
    born_at: AtomicU64,
    /// Until when (ns) the broker is not asked for more, for there was none.
    modest_until: AtomicU64,
    /// The question by which the broker was last told that less is in common than it thought, and
    /// until when (ns) nothing is given back for want of its answer.
    told: AtomicU32,
    told_until: AtomicU64,
}

impl Share {
    /// That of a process which begins to be managed, and what it may hold now, bytes.
    pub fn begin(fast: u64) -> (Self, u64) {
        let Some((page, slot)) = broker().and_then(|page| Some((page, slot(page)?))) else {
            return (Self::default(), fast.min(ALONE.load(Relaxed)));
        };
        let grant = if page.is_kept() || slot.grant.load(Relaxed) > 0 {
            slot.grant.load(Relaxed)
        } else {
            // Nobody shares anything any more.
            (fast / 8).max(LEAST.get())
        };
        let held = grant.max(slot.held.load(Relaxed)).max(FLOOR * PAGE as u64);
        let share = Self::default();
        share.slot.store(core::ptr::from_ref(slot).cast_mut(), Release);
        let common = (COMMON.load(Relaxed) / PAGE) as u64;
        if common > 0 {
            // It forked, or was forked, before it was managed.
            share.note_fork(common, FORKED_AT.load(Relaxed));
            if INHERITED.load(Relaxed) > 0 {
                share.born_at.store(share.forked_at(), Relaxed);
            }
            share.allowed.store(share.allowance(), Relaxed);
            slot.common.store(common * PAGE as u64, SeqCst);
        }
        slot.held.store(held, SeqCst);
        slot.managed.store(1, Release);
        page.ring();
        let limit = held + share.allowed() * PAGE as u64;
        (share, limit)
    }

    /// In a forked child: a share of its own. For now it may hold what it has, which is its
    /// parent's, and a little.
    pub fn forked(&self, pager: &Pager) {
        SLOT.store(core::ptr::null_mut(), Release);
        SILENT_UNTIL.store(0, Relaxed);
        self.slot.store(core::ptr::null_mut(), Release);
        let Some((page, slot)) = broker().and_then(|page| Some((page, slot(page)?))) else {
            return;
        };
        self.wait_until.store(sys::now() + CHILDHOOD, Relaxed);
        self.told_until.store(0, Relaxed);
        let resident = pager.resident();
        self.note_fork(resident, sys::now());
        self.born_at.store(self.forked_at(), Relaxed);
        let limit = pager.granted().min(pager.held() + little());
        pager.grant(limit);
        self.allowed.store(resident, Relaxed);
        slot.held.store(limit.saturating_sub(resident) * PAGE as u64, Relaxed);
        self.tell_in(slot, pager);
        slot.managed.store(1, Release);
        self.slot.store(core::ptr::from_ref(slot).cast_mut(), Release);
        page.ring();
    }

    /// In a forked child: so many pages more are resident than its books had. They came in after the
    /// books were frozen for the fork, and are its parent's like the others. Without room for them it
    /// began beyond its limit, with nothing that could leave.
    pub(crate) fn inherited_more(&self, pager: &Pager, pages: u64) {
        let Some(slot) = self.slot() else { return };
        self.common.fetch_add(pages, Relaxed);
        self.allowed.fetch_add(pages, Relaxed);
        pager.grant(pager.granted() + pages);
        self.tell_in(slot, pager);
    }

    /// In a process that is about to fork: the child will have what is resident, too.
    pub(crate) fn forks(&self, pager: &Pager) {
        if !self.is_shared() {
            return;
        }
        self.note_fork(pager.resident(), sys::now());
        self.tell(pager);
        // As the child, it keeps what it has and a little: what was granted beyond that is for
        // whichever of them first needs it, and a parent that waits gives nothing back for long.
        pager.grant(pager.granted().min(pager.held() + little()));
        self.hold(pager.granted());
        if let Some(page) = broker() {
            page.ring();
        }
    }

    fn note_fork(&self, resident: u64, at: u64) {
        self.forgotten.store(0, Relaxed);
        self.common.store(resident, Relaxed);
        self.known.store(false, Relaxed);
        self.forked_at.store(at, Relaxed);
    }

    /// When (ns) this process last forked, or was forked; 0 if never.
    pub(crate) fn forked_at(&self) -> u64 {
        self.forked_at.load(Relaxed)
    }

    /// Whether it is worth while to look what is in common now. A child that needs room is not
    /// about to begin another program; its parent may have many that are.
    pub(crate) fn should_learn(&self) -> bool {
        self.common() != 0
            && !self.knows_common()
            && self.has_relatives()
            && (self.born_at.load(Relaxed) == self.forked_at()
                || sys::now() >= self.forked_at() + CHILDHOOD)
    }

    /// Processes of this one's family besides it, as the broker has seen them.
    fn relatives(&self) -> u32 {
        self.slot().map_or(0, |slot| slot.relatives.load(Acquire))
    }

    /// Whether there are any. A child that has just been forked may not be known yet.
    pub(crate) fn has_relatives(&self) -> bool {
        self.relatives() > 0
            || self.common() != 0 && self.is_shared() && sys::now() < self.forked_at() + CHILDHOOD
    }

    /// Resident pages in frames that relatives have, too, as far as is known.
    pub(crate) fn common(&self) -> u64 {
        self.common.load(Relaxed)
    }

    /// So many of them were found.
    pub(crate) fn found_common(&self, pages: u64) {
        self.common.store(pages, Relaxed);
        self.known.store(true, Relaxed);
    }

    /// Whether they have been looked up since the last fork.
    pub(crate) fn knows_common(&self) -> bool {
        self.known.load(Relaxed)
    }

    /// Pages that a child may hold beyond its limit: as long as it is not known what is in
    /// common, nearly all that could leave would free nothing.
    pub(crate) fn slack(&self) -> u64 {
        let child = self.common() != 0 && self.born_at.load(Relaxed) == self.forked_at();
        if child && !self.knows_common() { little() } else { 0 }
    }

    /// Whether there are pages of which the policy knows nothing.
    pub(crate) fn has_apart(&self) -> bool {
        self.apart.load(Relaxed) || self.met_apart.load(Relaxed)
    }

    /// The policy asked for one of them to leave.
    pub(crate) fn met_apart(&self) {
        self.met_apart.store(true, Relaxed);
    }

    /// All pages are going to be looked at.
    pub(crate) fn begin_round(&self) {
        self.met_apart.store(false, Relaxed);
    }

    /// What a round has found.
    pub(crate) fn set_apart(&self, apart: bool) {
        self.apart.store(apart, Relaxed);
    }

    /// One of them is this process's alone now.
    pub(crate) fn unshared(&self) {
        let _ = self.common.fetch_update(Relaxed, Relaxed, |pages| pages.checked_sub(1));
    }

    /// What of them this process may hold beside its share, pages.
    pub(crate) fn allowance(&self) -> u64 {
        if self.relatives() == 0 { 0 } else { self.common() - self.excess() }
    }

    /// The same, as the limit that is in force contains it.
    pub(crate) fn allowed(&self) -> u64 {
        self.allowed.load(Relaxed)
    }

    /// What of them has to leave nevertheless, pages.
    pub(crate) fn excess(&self) -> u64 {
        let scale = broker().map_or(0, |page| page.common_scale.load(Acquire)).min(WHOLE);
        let common = self.common();
        common - common * u64::from(scale) / u64::from(WHOLE)
    }

    /// Whether there is a broker.
    pub fn is_shared(&self) -> bool {
        !self.slot.load(Relaxed).is_null()
    }

    fn slot(&self) -> Option<&Slot> {
        // SAFETY: only set from `&'static`.
        unsafe { self.slot.load(Acquire).as_ref() }
    }

    /// What the broker grants now, pages; `None` if nobody says.
    fn goal(&self) -> Option<u64> {
        let slot = self.slot()?;
        // Taken for dead, or not known by any number: on with what we have.
        if number::own() != Some(slot.pid.load(Relaxed)) {
            return None;
        }
        let grant = slot.grant.load(Relaxed);
        if grant == 0 && !broker()?.is_kept() {
            return None;
        }
        Some((grant / PAGE as u64).max(FLOOR))
    }

    /// The same, and what of the pages in common may be held beside, of which letting go would free
    /// nothing. Both from one round of the broker's. It raises a share by what was in common, and
    /// then says that there is nobody left to have it in common with. Who read the share before the
    /// one and the relatives after the other would give all of it back.
    fn goal_and_allowance(&self) -> Option<(u64, u64)> {
        let mut goal = self.goal()?;
        loop {
            let common = self.allowance();
            let again = self.goal()?;
            if again == goal {
                return Some((goal, common));
            }
            goal = again;
        }
    }

    /// Tells the broker at once that much less than before is in common.
    ///
    /// Its share is what it had beside its relatives, so it would have to give back what it has found
    /// to be its own. Mostly they are gone, and the broker finds that when it looks.
    fn say_less(&self) {
        let (Some(page), Some(slot)) = (broker(), self.slot()) else { return };
        self.told.store(put_question(page, slot), Relaxed);
        self.told_until.store(sys::now() + KEEPS_WAITING, Relaxed);
    }

    /// Whether the broker's word on that is still to come.
    fn awaits_word(&self, now: u64) -> bool {
        let told = self.told.load(Relaxed);
        now < self.told_until.load(Relaxed)
            && self.slot().is_some_and(|slot| !answers(slot.answer.load(Acquire), told))
    }

    /// Says what the pager may hold from now on, without what counts as common.
    fn hold(&self, pages: u64) {
        if let Some(slot) = self.slot() {
            let common = if self.relatives() == 0 { self.common() } else { self.allowance() };
            slot.held.store(pages.saturating_sub(common) * PAGE as u64, SeqCst);
        }
    }

    /// Without relatives, all is this process's alone.
    fn forget_relatives(&self, pager: &Pager) {
        if self.common() != 0 && !self.has_relatives() {
            self.forgotten.store(self.common.swap(0, Relaxed), Relaxed);
            // Before the broker is told so: never less than it is.
            self.hold(pager.granted());
        }
    }

    /// On a busy machine a child may begin, and be seen by the broker, after its childhood: when its
    /// parent has taken all for its own again, and would make room for what both have. So it is in
    /// common again, until the page map has been asked.
    fn remember_relatives(&self, pager: &Pager) {
        if self.relatives() > 0 && self.forgotten.load(Relaxed) > 0 {
            let common = self.forgotten.swap(0, Relaxed).min(pager.resident());
            self.common.store(common, Relaxed);
            self.known.store(false, Relaxed);
        }
    }

    /// Says how the pager does.
    fn tell(&self, pager: &Pager) {
        if let Some(slot) = self.slot() {
            self.tell_in(slot, pager);
        }
    }

    fn tell_in(&self, slot: &Slot, pager: &Pager) {
        let counters = &pager.stats().counters;
        let page = PAGE as u64;
        let absent = counters.stored_pages.load(Relaxed) + counters.same_pages.load(Relaxed);
        slot.absent.store(absent * page + counters.spill_bytes.load(Relaxed), Relaxed);
        slot.resident.store(pager.held() * page, Relaxed);
        slot.want.store(counters.mapped_bytes.load(Relaxed), Relaxed);
        slot.common.store(self.common() * page, SeqCst);
        slot.refaults.store(counters.faults_absent.load(Relaxed), Relaxed);
    }
}

impl Worker<'_> {
    /// After more was mapped: if that is more than this process may hold, the broker is asked at
    /// once. It looks ten times a second, and meanwhile pages would leave for which there is room.
    pub fn ask_for_more(&self) {
        let (pager, share) = (self.pager, &self.pager.budget.share);
        let (Some(page), Some(slot)) = (broker(), share.slot()) else { return };
        let mapped = pager.stats().counters.mapped_bytes.load(Relaxed) / PAGE as u64;
        if mapped <= pager.granted() || sys::now() < share.modest_until.load(Relaxed) {
            return;
        }
        share.tell(pager);
        ask(page, slot, HASTE);
        let (goal, common) = share.goal_and_allowance().unwrap_or((0, 0));
        let goal = goal + common;
        if goal > pager.granted() {
            share.allowed.store(common, Relaxed);
            pager.grant(goal);
            share.hold(goal);
        } else {
            share.modest_until.store(sys::now() + MODESTY, Relaxed);
        }
    }

    /// Keeps to the share that the broker grants: more at once, less by giving
    /// memory back in the background, a little at a time, so that no fault has to
    /// make the room that is missing all of a sudden. True while there is more to
    /// give back.
    pub fn follow_share(&mut self) -> bool {
        let pager = self.pager;
        let share = &pager.budget.share;
        let now = sys::now();
        // Asked before the share is read: the answer comes after it.
        let waits = share.awaits_word(now);
        share.remember_relatives(pager);
        share.forget_relatives(pager);
        let Some((goal, common)) = share.goal_and_allowance() else { return false };
        let before = share.allowed.swap(common, Relaxed);
        let goal = goal + common;
        share.tell(pager);
        if goal >= pager.granted() {
            pager.grant(goal);
            share.hold(goal);
            return false;
        }
        if before > common + SLACK {
            share.hold(pager.granted());
            share.say_less();
            return false;
        }
        if waits {
            return false;
        }
        if now < share.wait_until.load(Relaxed) || pager.freeze.is_on() {
            return false;
        }
        let mut spins = 0;
        loop {
            let next = (pager.held() + SLACK).min(pager.granted()).max(goal);
            pager.grant(next);
            share.hold(next);
            if next == goal || self.stuck_until > now {
                return false;
            }
            if sys::now() > now + STRETCH || pager.commands.pending().is_some() {
                return true;
            }
            if pager.huge.drop_one(pager) {
                continue;
            }
            pager.throttle();
            let Some(ring) = pager.evict.ring.try_lock() else {
                backoff(&mut spins);
                continue;
            };
            let progress = self.make_room(ring, Pace::BATCH);
            if progress == Progress::Changing {
                // It goes on when that is read, perhaps by this thread.
                return true;
            }
            if !self.gets_on(progress, STUCK) {
                // Pinned, or a fork begins: again after a while.
                return false;
            }
        }
    }
}

#[cfg(test)]
impl Share {
    /// Gives it a slot of its own, in which this process has so many relatives.
    pub(crate) fn join(&self, relatives: u32) -> &'static Slot {
        // SAFETY: a slot is numbers, and zero is one of each.
        let slot: &'static Slot = Box::leak(Box::new(unsafe { core::mem::zeroed() }));
        slot.pid.store(number::shown(), Relaxed);
        slot.relatives.store(relatives, Relaxed);
        self.slot.store(core::ptr::from_ref(slot).cast_mut(), Release);
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::page::FILE;
    use crate::pager::fixture;

    const KIB4: u64 = PAGE as u64;

    #[test]
    fn memory_beyond_the_share_is_not_taken() {
        let slot = Share::default().join(0);
        slot.grant.store(10 * KIB4, Relaxed);
        assert!(takes(slot, 10 * KIB4));
        assert_eq!(slot.held.load(Relaxed), 10 * KIB4);
        assert!(!takes(slot, 10 * KIB4 + 1));
        assert_eq!(slot.held.load(Relaxed), 10 * KIB4, "and not said to be held");
    }

    /// Otherwise the kernel's list of mappings would be read at each call.
    #[test]
    fn who_is_given_nothing_by_nobody_has_what_it_may_have_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let page = BrokerPage::create(&directory.path().join(FILE)).expect("a page");
        let slot = page.claim(number::shown()).expect("a slot");
        assert!(page.has_free_slot());
        page.beat.store(sys::now(), Relaxed);
        page.closed.store(1, Relaxed);
        assert!(is_left_alone(page, slot));
        slot.grant.store(KIB4, Relaxed);
        assert!(!is_left_alone(page, slot));
        slot.grant.store(0, Relaxed);
        page.closed.store(0, Relaxed);
        page.beat.store(u64::MAX, Relaxed);
        assert!(!is_left_alone(page, slot), "it can ask");
        page.slots().iter().for_each(|slot| slot.pid.store(1, Relaxed));
        assert!(!page.has_free_slot());
    }

    #[test]
    fn an_answer_is_to_its_question_and_to_all_before() {
        assert!(answers(7, 7) && answers(8, 7) && answers(0, u32::MAX));
        assert!(!answers(6, 7) && !answers(u32::MAX, 0));
        let share = Share::default();
        let slot = share.join(0);
        share.told.store(3, Relaxed);
        assert!(!share.awaits_word(1), "nothing was told");
        share.told_until.store(10, Relaxed);
        assert!(share.awaits_word(9) && !share.awaits_word(10), "not for ever");
        slot.answer.store(3, Relaxed);
        assert!(!share.awaits_word(9));
    }

    /// All of it in one test: who was not answered asks nobody in this process for a while.
    #[test]
    fn a_question_waits_for_its_own_answer_and_one_that_nobody_answers_is_not_repeated_at_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let page = BrokerPage::create(&directory.path().join(FILE)).expect("a page");
        let slot = page.claim(number::shown()).expect("a slot");
        // The next number is 0: less than what was answered last, and newer.
        slot.ask.store(u32::MAX, Relaxed);
        slot.answer.store(u32::MAX, Relaxed);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while slot.ask.load(Acquire) != 0 {
                    std::thread::yield_now();
                }
                slot.grant.store(7, Relaxed);
                slot.answer.store(0, Release);
                sys::futex_wake(&slot.answer, true);
            });
            ask(page, slot, 60_000_000_000);
            assert_eq!(slot.grant.load(Relaxed), 7, "it has the answer");
        });
        ask(page, slot, 1);
        assert_eq!(slot.ask.load(Relaxed), 1);
        ask(page, slot, 1);
        assert_eq!(slot.ask.load(Relaxed), 1, "the broker is silent");
        SILENT_UNTIL.store(0, Relaxed);
        page.closed.store(1, Relaxed);
        ask(page, slot, 1);
        assert_eq!(slot.ask.load(Relaxed), 1, "there is nobody to ask");
    }

    #[test]
    fn what_relatives_have_too_is_not_held_twice_once_the_broker_knows_them() {
        let (share, held) = (Share::default(), |slot: &Slot| slot.held.load(Relaxed) / KIB4);
        let slot = share.join(0);
        share.note_fork(50, sys::now());
        share.hold(200);
        assert_eq!(held(slot), 150, "the relative has not been seen yet");
        slot.relatives.store(1, Relaxed);
        // Without a broker's word, none of it may be held beside the share.
        assert_eq!((share.excess(), share.allowance()), (50, 0));
        share.hold(200);
        assert_eq!(held(slot), 200);
        share.hold(0);
        assert_eq!(held(slot), 0);
    }

    #[test]
    fn frames_in_common_are_looked_up_anew_after_each_fork_and_forgotten_with_the_last_relative() {
        let pager = fixture::pager(1);
        let share = &pager.budget.share;
        let slot = share.join(1);
        share.note_fork(30, 1);
        assert!(share.has_relatives() && !share.knows_common());
        assert!(share.should_learn(), "its childhood is over");
        share.found_common(20);
        share.unshared();
        assert_eq!((share.common(), share.knows_common()), (19, true));
        assert!(!share.should_learn());
        share.forget_relatives(pager);
        assert_eq!(share.common(), 19, "there is one");
        slot.relatives.store(0, Relaxed);
        share.forget_relatives(pager);
        assert_eq!(share.common(), 0);
        share.unshared();
        assert_eq!(share.common(), 0, "less than none is not in common");
        // A child that was long in coming.
        fixture::touch(pager, 0);
        share.note_fork(30, 1);
        share.found_common(20);
        share.forget_relatives(pager);
        share.remember_relatives(pager);
        assert_eq!(share.common(), 0, "nobody has seen it");
        slot.relatives.store(1, Relaxed);
        share.remember_relatives(pager);
        assert_eq!((share.common(), share.knows_common()), (1, false), "what is resident");
        share.found_common(7);
        share.remember_relatives(pager);
        assert_eq!(share.common(), 7, "once");
        slot.relatives.store(0, Relaxed);
        // Just forked (so just that it is to come), and the broker has not seen it.
        share.note_fork(30, sys::now() + 3_600_000_000_000);
        share.forget_relatives(pager);
        assert_eq!(share.common(), 30);
        assert!(!share.should_learn(), "a child may begin another program");
    }

    #[test]
    fn a_share_that_grows_is_followed_at_once_and_one_that_shrinks_by_what_is_not_used_first() {
        let pager = fixture::pager(400);
        let (share, mut worker) = (&pager.budget.share, Worker::new(pager, 0));
        assert!(!worker.follow_share(), "nobody says anything");
        assert_eq!(pager.granted(), 2048);
        let slot = share.join(0);
        let follow = |worker: &mut Worker<'_>, pages: u64| {
            slot.grant.store(pages * KIB4, Relaxed);
            worker.stuck_until = 0;
            // Whether there is more to do depends on how long this has taken.
            let _ = worker.follow_share();
            assert_eq!(slot.held.load(Relaxed), pager.granted() * KIB4, "what it says");
            pager.granted()
        };
        assert_eq!(follow(&mut worker, 5000), 5000);
        (0..300).for_each(|page| fixture::touch(pager, page));
        assert_eq!(follow(&mut worker, 400), 400, "nothing has to leave");
        // The fixture's kernel lets no page leave.
        assert_eq!(follow(&mut worker, 200), 300 + SLACK);
        assert_eq!(slot.resident.load(Relaxed), 300 * KIB4);
        share.wait_until.store(u64::MAX, Relaxed);
        assert_eq!(follow(&mut worker, 1), 300 + SLACK, "a child waits");
        share.wait_until.store(0, Relaxed);
        // Taken for dead: on with what it has.
        slot.pid.store(number::shown() + 1, Relaxed);
        assert_eq!(follow(&mut worker, 9000), 300 + SLACK);
    }

    #[test]
    fn a_share_is_never_less_than_a_pager_can_work_with() {
        let share = Share::default();
        assert_eq!(share.goal(), None, "there is no slot");
        let slot = share.join(0);
        assert_eq!(share.goal(), None, "nobody has granted anything, and there is no broker");
        slot.grant.store(1, Relaxed);
        assert_eq!(share.goal(), Some(FLOOR));
        slot.grant.store(1000 * KIB4, Relaxed);
        assert_eq!(share.goal(), Some(1000));
    }

    /// Its limit was what its books had and a little: with more than that found present, all its
    /// parent's, each of its faults looked in vain for what could leave.
    #[test]
    fn a_child_has_room_for_what_came_in_while_its_books_were_frozen() {
        let pager = fixture::pager(64);
        let share = &pager.budget.share;
        let slot = share.join(1);
        let inherited = 40;
        (0..40).for_each(|page| fixture::touch(pager, page));
        share.note_fork(inherited, 1);
        share.allowed.store(inherited, Relaxed);
        let little = 4;
        pager.grant(inherited + little);

        (40..60).for_each(|page| fixture::touch(pager, page));
        assert!(!pager.try_reserve(1), "beyond its limit");
        share.inherited_more(pager, 20);

        assert!((0..little).all(|_| pager.try_reserve(1)), "the little is its own");
        assert!(!pager.try_reserve(1));
        assert_eq!((share.common(), share.allowed()), (60, 60));
        assert_eq!(slot.common.load(Relaxed), 60 * PAGE as u64, "the broker is told");
    }
}
