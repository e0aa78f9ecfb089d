//! The broker's side: looks what the processes hold and miss, and divides the
//! budget among them.

use core::sync::atomic::Ordering::*;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::thread::JoinHandle;

use terrace_core::Bytes;

use super::control;
use super::lent::Lent;
use super::page::{BrokerPage, FILE, SLOTS, Slot, Summary};
use super::share::{Claim, LEAST, NEEDY, Pool, Relative, WHOLE, family_sizes, pool, share};
use crate::sys;
use crate::workers::processors;

/// How often shares move between processes (ns).
const PERIOD: u64 = 100_000_000;
/// How often the broker looks while memory is on its way from one process to
/// another (ns), and while there is only one process.
const SOON: u64 = 10_000_000;
const SELDOM: u64 = 1_000_000_000;
/// A process that asks for its first memory, while there is none, is kept waiting
/// for so long (ns) at most: others give back within a tick of their managers.
pub(super) const KEEPS_WAITING: u64 = 100_000_000;
/// The time over which refaults are averaged (s).
const MEMORY: f64 = 1.0;
/// How long (s) relatives lack memory until as much of what they have in common has to leave as
/// may: longer than a snapshot is written, and shorter than a service runs.
const ERODES_IN: f64 = 60.0;
/// A process that keeps changing what it wants while shares are lowered is looked
/// at again the next time.
const TRIES: usize = 4;

/// Divides a budget. Dropping it ends that: every process keeps its last share.
#[derive(Debug)]
pub struct Broker {
    page: &'static BrokerPage,
    thread: Option<JoinHandle<()>>,
}

impl Broker {
    /// Begins to divide a budget among the processes that find this directory,
    /// and to listen for those who may change it.
    pub fn start(directory: &Path, budget: Bytes) -> io::Result<Self> {
        let page = BrokerPage::create(&directory.join(FILE))?;
        page.budget.store(budget.get(), Relaxed);
        page.beat.store(sys::now(), Release);
        control::listen(directory, page)?;
        page.budget_peak.store(budget.get(), Relaxed);
        let thread = std::thread::Builder::new().name("broker".to_owned());
        let thread = thread.spawn(move || {
            processors::block_signals();
            Rounds::new(page).run();
        })?;
        Ok(Self { page, thread: Some(thread) })
    }

    /// What has happened so far.
    pub fn summary(&self) -> Summary {
        // What ended before the next look.
        self.page.slots().iter().for_each(|slot| note_single(self.page, slot));
        self.page.summary()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.page.closed.store(1, Release);
        self.page.ring();
        if let Some(thread) = self.thread.take() {
            // It cannot have anything to say that matters any more.
            let _ = thread.join();
        }
    }
}

/// A process, as followed from round to round.
struct Member {
    pid: u32,
    handle: OwnedFd,
    refaults: u64,
    /// Refaults a second, averaged.
    rate: f64,
    /// Since when (ns) it waits for its first memory; 0 if it does not.
    waits_since: u64,
    /// While it is not managed: what others have of its memory, too.
    lent: Lent,
}

struct Rounds {
    page: &'static BrokerPage,
    /// By slot.
    members: HashMap<usize, Member>,
    budget: Bytes,
    balanced: u64,
    /// How long relatives will be left what they have in common: 1 if they lack nothing, 0 if
    /// they have for [`ERODES_IN`].
    patience: f64,
}

impl Rounds {
    fn new(page: &'static BrokerPage) -> Self {
        let budget = Bytes(page.budget.load(Relaxed));
        page.common_scale.store(WHOLE, Relaxed);
        Self { page, members: HashMap::new(), budget, balanced: sys::now(), patience: 1.0 }
    }

    fn run(mut self) {
        while self.page.closed.load(Acquire) == 0 {
            let bell = self.page.bell.load(Acquire);
            let wait = self.round();
            sys::futex_wait(&self.page.bell, bell, Some(wait), true);
        }
    }

    /// Looks at everybody once; returns how long (ns) the next look can wait.
    fn round(&mut self) -> u64 {
        let now = sys::now();
        self.page.beat.store(now, Release);
        self.look_for_processes();
        let since = now.saturating_sub(self.balanced);
        let balance = since >= PERIOD;
        if balance {
            self.balanced = now;
            self.measure(since);
        }
        let asked: Vec<_> = self.slots().map(|(_, slot)| slot.ask.load(Acquire)).collect();
        let moving = self.divide(balance);
        for ((i, slot), asked) in self.slots().zip(asked) {
            if slot.answer.load(Relaxed) != asked && !self.keeps_waiting(i, slot, now) {
                slot.answer.store(asked, Release);
                sys::futex_wake(&slot.answer, true);
            }
        }
        self.summarise();
        match self.members.len() {
            0 | 1 if !moving => SELDOM,
            _ if moving => SOON,
            _ => PERIOD.saturating_sub(sys::now() - self.balanced).max(1_000_000),
        }
    }

    /// The slots of the processes, always in the same order.
    fn slots(&self) -> impl Iterator<Item = (usize, &'static Slot)> + use<> {
        let mut taken: Vec<_> = self.members.keys().copied().collect();
        taken.sort_unstable();
        let slots = self.page.slots();
        taken.into_iter().map(move |i| (i, &slots[i]))
    }

    /// Enters who has come, and empties the slots of those who have ended.
    fn look_for_processes(&mut self) {
        for i in 0..SLOTS {
            let slot = &self.page.slots()[i];
            let pid = slot.pid.load(Acquire);
            if pid == 0 {
                continue;
            }
            if self.members.get(&i).is_none_or(|member| member.pid != pid) {
                if let Ok(handle) = open_process(pid) {
                    let refaults = slot.refaults.load(Relaxed);
                    let lent = Lent::default();
                    let (rate, waits_since) = (0.0, 0);
                    let member = Member { pid, handle, refaults, rate, waits_since, lent };
                    self.members.insert(i, member);
                } else {
                    note_single(self.page, slot);
                    slot.clear();
                }
            }
            if self.members.get(&i).is_some_and(|member| has_ended(&member.handle)) {
                note_single(self.page, slot);
                self.members.remove(&i);
                slot.clear();
            }
        }
    }

    /// Whether a process had better wait for what others are giving back.
    fn keeps_waiting(&mut self, i: usize, slot: &Slot, now: u64) -> bool {
        let Some(member) = self.members.get_mut(&i) else { return false };
        let enough = slot.want.load(Relaxed).min(LEAST.get());
        if slot.grant.load(Relaxed) >= enough || slot.managed.load(Relaxed) != 0 {
            member.waits_since = 0;
            return false;
        }
        if member.waits_since == 0 {
            member.waits_since = now;
        }
        now - member.waits_since < KEEPS_WAITING
    }

    /// Averages refaults.
    fn measure(&mut self, since: u64) {
        let seconds = since as f64 / 1e9;
        let weight = 1.0 - (-seconds / MEMORY).exp();
        for (i, member) in &mut self.members {
            let now = self.page.slots()[*i].refaults.load(Relaxed);
            // Fewer than before: the process began another program.
            let rate = now.saturating_sub(member.refaults) as f64 / seconds;
            member.refaults = now;
            member.rate += (rate - member.rate) * weight;
        }
        let mut relatives = self.slots().filter(|(_, slot)| slot.relatives.load(Relaxed) > 0);
        let lack = relatives.any(|(i, _)| self.members[&i].rate > NEEDY);
        let step = seconds / ERODES_IN;
        self.patience = (self.patience + if lack { -step } else { step }).clamp(0.0, 1.0);
    }

    /// What the processes have in common.
    fn relatives(&self) -> Vec<Relative> {
        let relative = |(i, slot): (usize, &Slot)| Relative {
            family: slot.family.load(Relaxed),
            common: Bytes(slot.common.load(SeqCst)) + self.lent(i, slot),
            managed: slot.managed.load(Relaxed) != 0,
        };
        self.slots().map(relative).collect()
    }

    /// What of the memory of a process that is not managed its relatives have, too.
    fn lent(&self, i: usize, slot: &Slot) -> Bytes {
        let unmanaged = slot.managed.load(Relaxed) == 0 && slot.relatives.load(Relaxed) > 0;
        let held = Bytes(slot.held.load(Relaxed));
        if unmanaged { self.members[&i].lent.bytes.min(held) } else { Bytes::ZERO }
    }

    /// Looks how much that is.
    fn look_at_lent(&mut self) {
        for (i, member) in &mut self.members {
            let slot = &self.page.slots()[*i];
            if slot.managed.load(Relaxed) == 0 && slot.relatives.load(Relaxed) > 0 {
                member.lent.look(member.pid);
            } else {
                member.lent = Lent::default();
            }
        }
    }

    /// What a process had in common with relatives that are all gone becomes part of its share: it
    /// would give that back otherwise, and have it again a round later. So does what it has found
    /// to be its own meanwhile, and holds.
    fn inherit(&self) {
        for ((_, slot), size) in self.slots().zip(family_sizes(&self.relatives())) {
            if size == 0 && slot.relatives.load(Relaxed) > 0 {
                slot.grant.fetch_max(slot.held.load(SeqCst), SeqCst);
                slot.grant.fetch_add(slot.common.load(SeqCst), SeqCst);
            }
        }
    }

    fn claims(&self) -> Vec<Claim> {
        let sizes = family_sizes(&self.relatives());
        let claim = |((i, slot), size): ((usize, &Slot), u32)| {
            let common = Bytes(slot.common.load(SeqCst));
            // Who has no relatives any more has all of it for himself, and says so soon.
            let own = if size == 0 { common } else { Bytes::ZERO };
            // Who is not managed is told one number for all that he has mapped.
            let lent = self.lent(i, slot);
            Claim {
                grant: Bytes(slot.grant.load(Relaxed)) - lent,
                held: Bytes(slot.held.load(SeqCst)) + own - lent,
                want: Bytes(slot.want.load(SeqCst)) - (common - own) - lent,
                refaults: self.members[&i].rate,
                absent: Bytes(slot.absent.load(Relaxed)),
            }
        };
        self.slots().zip(sizes).map(claim).collect()
    }

    /// Tells processes how many relatives they have: of more before shares are lowered, of
    /// fewer after they have been raised.
    fn tell_relatives(&self, more: bool) {
        for ((_, slot), size) in self.slots().zip(family_sizes(&self.relatives())) {
            let relatives = size.saturating_sub(1);
            if (relatives > slot.relatives.load(Relaxed)) == more {
                slot.relatives.store(relatives, Release);
            }
        }
    }

    fn pool(&self) -> Pool {
        let pool = pool(self.budget, &self.relatives(), self.patience);
        self.page.common_scale.store(pool.scale, Release);
        pool
    }

    /// Changes the shares; whether memory is on its way from one process to another.
    fn divide(&mut self, balance: bool) -> bool {
        self.budget = Bytes(self.page.budget.load(Relaxed));
        self.tell_relatives(true);
        self.look_at_lent();
        self.inherit();
        let moving = self.share_out(balance);
        self.tell_relatives(false);
        moving
    }

    fn share_out(&self, balance: bool) -> bool {
        for attempt in 0..TRIES {
            let claims = self.claims();
            let shares = share(self.pool().others, &claims, balance && attempt == 0);
            let mut lowered = false;
            let told = |i, slot: &Slot, share: Bytes| (share + self.lent(i, slot)).get();
            for ((i, slot), (share, claim)) in self.slots().zip(shares.iter().zip(&claims)) {
                if *share < claim.grant {
                    slot.grant.store(told(i, slot, *share), SeqCst);
                    lowered = true;
                }
            }
            if lowered {
                // A process may have taken, just before, what it has no more:
                // look again before that is given to another.
                continue;
            }
            for ((i, slot), share) in self.slots().zip(&shares) {
                slot.grant.store(told(i, slot, *share), SeqCst);
            }
            return claims.iter().zip(&shares).any(|(claim, share)| claim.held > *share);
        }
        true
    }

    fn summarise(&self) {
        let page = self.page;
        let (mut granted, mut resident) = (0, self.pool().common.get());
        for (i, slot) in self.slots() {
            let lent = self.lent(i, slot).get();
            granted += slot.grant.load(Relaxed).saturating_sub(lent);
            resident += if slot.managed.load(Relaxed) == 0 {
                slot.held.load(Relaxed).saturating_sub(lent)
            } else {
                let relatives = slot.relatives.load(Relaxed) > 0;
                let common = if relatives { slot.common.load(Relaxed) } else { 0 };
                slot.resident.load(Relaxed).saturating_sub(common)
            };
        }
        page.processes_peak.fetch_max(self.members.len() as u32, Relaxed);
        page.granted_peak.fetch_max(granted, Relaxed);
        page.resident_now.store(resident, Relaxed);
        page.resident_peak.fetch_max(resident, Relaxed);
        page.budget_peak.fetch_max(self.budget.get(), Relaxed);
    }
}

/// Notes what a process had by itself: it may have come and gone between two looks.
fn note_single(page: &BrokerPage, slot: &Slot) {
    if slot.pid.load(Acquire) != 0 {
        let is_managed = slot.managed.load(Relaxed) != 0;
        let has = if is_managed { &slot.resident } else { &slot.held };
        page.resident_peak.fetch_max(has.load(Relaxed), Relaxed);
    }
}

/// A handle for a process, which stays that of this very process.
fn open_process(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: has no memory effects.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Whether it has ended, reaped or not.
fn has_ended(handle: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: handle.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor to look at.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A broker of which the rounds are made by hand, and processes that do nothing.
    struct Bench {
        rounds: Rounds,
        processes: Vec<Child>,
        _directory: tempfile::TempDir,
    }

    impl Bench {
        fn new(budget: u64) -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let page = BrokerPage::create(&directory.path().join(FILE)).expect("a page");
            page.budget.store(budget * MIB, Relaxed);
            Self { rounds: Rounds::new(page), processes: Vec::new(), _directory: directory }
        }

        /// A process of a family that has so many MiB mapped, so many of them in common with
        /// others, and the rest to itself.
        fn process(
            &mut self,
            managed: bool,
            family: u32,
            mapped: u64,
            common: u64,
        ) -> &'static Slot {
            let process = Command::new("sleep").arg("1000").spawn().expect("a process");
            let slot = self.rounds.page.claim(process.id()).expect("a slot");
            slot.family.store(family, Relaxed);
            slot.managed.store(u32::from(managed), Relaxed);
            slot.want.store(mapped * MIB, Relaxed);
            slot.common.store(common * MIB, Relaxed);
            slot.held.store((mapped - common) * MIB, Relaxed);
            slot.resident.store(mapped * MIB, Relaxed);
            self.processes.push(process);
            slot
        }

        fn end(&mut self, nth: usize) {
            let mut process = self.processes.remove(nth);
            process.kill().expect("killed");
            process.wait().expect("ended");
        }

        /// Rounds in which everybody does as he is told at once, all in so much time.
        fn settle(&mut self, seconds: f64) {
            for _ in 0..20 {
                self.rounds.balanced = sys::now() - (seconds / 20.0 * 1e9) as u64;
                self.rounds.round();
                for (_, slot) in self.rounds.slots() {
                    let own = slot.want.load(Relaxed) - slot.common.load(Relaxed);
                    slot.held.store(slot.grant.load(Relaxed).min(own), Relaxed);
                }
            }
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            while !self.processes.is_empty() {
                self.end(0);
            }
        }
    }

    fn grant(slot: &Slot) -> u64 {
        slot.grant.load(Relaxed) / MIB
    }

    fn relatives(slot: &Slot) -> u32 {
        slot.relatives.load(Relaxed)
    }

    #[test]
    fn a_family_has_beside_what_is_in_common_the_rest_of_the_budget() {
        let mut bench = Bench::new(100);
        let (a, b) = (bench.process(true, 7, 80, 60), bench.process(true, 7, 80, 60));

        bench.settle(1.0);

        assert_eq!((relatives(a), relatives(b)), (1, 1));
        assert_eq!(grant(a) + grant(b), 40, "60 are both's");
        assert!(bench.rounds.page.summary().resident <= Bytes::mib(100));
    }

    #[test]
    fn what_a_process_that_is_not_managed_has_in_common_counts_once_too() {
        let mut bench = Bench::new(100);
        let (parent, child) = (bench.process(false, 7, 60, 0), bench.process(true, 7, 90, 60));
        bench.rounds.look_for_processes();
        for member in bench.rounds.members.values_mut() {
            member.lent = Lent::always(Bytes::mib(60));
        }

        bench.settle(1.0);

        assert_eq!((relatives(parent), relatives(child)), (1, 1));
        assert!(grant(child) >= 30, "{} beside 60 that are the parent's, too", grant(child));
        assert!(bench.rounds.page.summary().resident <= Bytes::mib(101));
    }

    #[test]
    fn the_last_of_a_family_has_all_to_itself() {
        let mut bench = Bench::new(100);
        let (_, left) = (bench.process(true, 7, 80, 60), bench.process(true, 7, 80, 60));
        let other = bench.process(true, 8, 80, 0);
        bench.settle(1.0);
        let before = grant(left);

        bench.end(0);
        bench.rounds.round();

        assert_eq!(relatives(left), 0);
        assert!(grant(left) >= 60, "{} for {before} and 60", grant(left));
        // It has not said yet that nothing is in common any more: what it has so counts as its own,
        // and nobody is given the same memory.
        assert!(grant(left) + grant(other) <= 100);
        let (held, common) = (left.held.load(Relaxed), left.common.load(Relaxed));
        assert!(grant(other) * MIB + held + common <= 100 * MIB, "it had {before}");
        left.common.store(0, Relaxed);
        bench.settle(1.0);
        assert!(grant(left) + grant(other) >= 98, "all is given: {} {}", grant(left), grant(other));
    }

    /// It had looked at its page map before the broker looked at its relative.
    #[test]
    fn the_last_of_a_family_keeps_what_it_found_to_be_its_own() {
        let mut bench = Bench::new(100);
        let (_, left) = (bench.process(true, 7, 60, 60), bench.process(true, 7, 60, 60));
        bench.process(true, 8, 4, 0);
        bench.settle(1.0);
        left.common.store(0, Relaxed);
        left.held.store(60 * MIB, Relaxed);

        bench.end(0);
        bench.rounds.round();

        assert_eq!(relatives(left), 0);
        assert!(grant(left) >= 60, "{}", grant(left));
    }

    #[test]
    fn what_came_and_went_between_two_looks_is_told() {
        let mut bench = Bench::new(100);
        let slot = bench.process(false, 7, 60, 0);
        note_single(bench.rounds.page, slot);
        assert_eq!(bench.rounds.page.summary().resident, Bytes::mib(60));
        bench.end(0);
        slot.held.store(70 * MIB, Relaxed);
        bench.rounds.round();
        assert_eq!(slot.pid.load(Relaxed), 0, "it is known to have ended");
        assert_eq!(bench.rounds.page.summary().resident, Bytes::mib(70));
    }

    #[test]
    fn patience_is_lost_while_relatives_lack_memory_and_comes_back() {
        let mut bench = Bench::new(100);
        let (a, b) = (bench.process(true, 7, 200, 100), bench.process(true, 7, 200, 100));
        bench.settle(1.0);
        let at_first = bench.rounds.page.common_scale.load(Relaxed);

        for _ in 0..30 {
            a.refaults.fetch_add(100_000, Relaxed);
            b.refaults.fetch_add(100_000, Relaxed);
            bench.settle(ERODES_IN / 20.0);
        }
        let lacking = bench.rounds.page.common_scale.load(Relaxed);
        bench.settle(2.0 * ERODES_IN);
        let after = bench.rounds.page.common_scale.load(Relaxed);

        assert!(at_first > WHOLE / 2, "{at_first} of {WHOLE}");
        assert_eq!(lacking, 0, "two relatives can do without anything in common");
        assert_eq!(after, at_first);
    }
}
