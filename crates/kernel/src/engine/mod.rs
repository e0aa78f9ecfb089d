//! Keeps a run within its budget.
//!
//! | file | concept |
//! |---|---|
//! | [`world`] | what is asked of the system |
//! | [`linux`] | this machine |
//! | `books` | what a policy knows of the run, and what it puts out |
//! | `streams` | walks, ahead of which pages are brought back |
//! | `ahead` | whether that pays |
//! | `desk` | what the engine does by itself, priced |
//! | `reclaimer` | the thread that asks the kernel to put memory out |
//! | `guard` | the thread that the kernel wakes near the budget, under version 1 of control groups |
//! | `bound` | the limit above the budget there |
//! | `brake` | what slows a run down there without it |
//! | `thrash` | a run that needs more than it may have |
//! | [`stats`] | what was done |
//! | here | one step: look, make room |
//!
//! Room is made *ahead*: as soon as less than [`LOW`] of the budget is free, and until half as
//! much again is. So the program finds memory free when it needs some, and hardly ever reclaims
//! for itself, which is where the long waits of plain swap come from. Who chooses what leaves is
//! the kernel by its own lists, or a policy.

mod ahead;
mod books;
mod bound;
mod brake;
mod desk;
mod guard;
pub mod linux;
pub(crate) mod reclaimer;
pub mod stats;
mod streams;
mod thrash;
pub mod world;

#[cfg(test)]
pub(crate) use self::bound::tests::Directory;
#[cfg(test)]
mod tests;

use std::io;

use terrace_core::{ActionClass, Bytes, BytesPerSecond, Cycles, Nanos, PageSize};
use terrace_economics::{Account, Decision, Economist};
use terrace_live::attach::host::is_gone;
use terrace_live::attach::space::Space;
use terrace_policy::Brain;
use terrace_sampler::{Governor, Health, Sampler, SamplerError, Watchers};

use self::ahead::{Pays, Window};
use self::books::{Books, Room};
use self::bound::Bound;
use self::desk::Desk;
pub use self::desk::calibration;
pub(crate) use self::guard::processors;
use self::stats::Stats;
use self::streams::Walks;
use self::thrash::{Moment, Thrash};
use self::world::{Advice, World};
use crate::govern::slowdown::FAULT;
use crate::repack::{Idle, Repacked};
use crate::store::{Keeper, Written};

/// Room is made when less than this part of the budget is free: 24 MiB of 1 GiB, as measured in
/// `docs/engines.md`.
const LOW: f64 = 0.024;
/// It is made until so much more is free.
const BATCH: f64 = 0.048;
/// The least and the most of either, but no more than an eighth of the budget: a program fills
/// 2 MiB in 2 ms, and a thread that wakes up may have to wait as long for a processor.
const BOUNDS: (Bytes, Bytes) = (Bytes::mib(2), Bytes::mib(128));
/// What is asked of the kernel at once: at 5 µs a page the engine looks up each 1 to 5 ms.
const CHUNK: (Bytes, Bytes) = (Bytes::kib(512), Bytes::mib(4));
/// How long making room may take before faults are looked at, and how long going ahead of walks may. Either
/// ends with the chunk that it is at.
const TURN: Nanos = Nanos::millis(4);
/// How long the engine sleeps: while memory is short, while pages come back, and at most.
const SLEEP: (Nanos, Nanos, Nanos) = (Nanos::micros(300), Nanos::millis(2), Nanos::millis(50));
/// How fast a program fills memory: a thread that touches base pages for the first time.
const FILL: BytesPerSecond = BytesPerSecond((1u64 << 30) as f64);
/// How often processes are looked for.
const LOOK: Nanos = Nanos::millis(50);
/// The least time from one pass over the page tables to the next.
const PASS: Nanos = Nanos::millis(200);
/// How often swap is read.
const REFRESH: Nanos = Nanos::millis(200);
/// What came back in so long, or twice as long, is what was touched lately.
const RECENT: Nanos = Nanos::seconds(2);
/// What is brought back in one step without room for it, at a limit that nothing goes beyond: at least
/// what a walk begins with, and at most its largest chunk. Beyond a 64th of the budget it would put out
/// what other threads use.
const BEYOND: (Bytes, Bytes) = (Bytes::kib(128), Bytes::mib(2));
/// Of a chunk that does not fit, what does is brought back, but no less than a walk begins with: near a
/// full budget the engine would look often for the sake of a few pages.
const FITS: Bytes = BEYOND.0;
/// For how long nothing is after that limit had to be raised: the kernel found nothing to put out.
const RAISED: Nanos = Nanos::millis(200);
/// The least of swap that is to be free, or an eighth of the budget: below half of it the limit above the
/// budget of version 1 of control groups is taken off.
const SWAP_SHORT: Bytes = Bytes::mib(32);
/// The time that it takes to put a page out, whoever does it (`docs/engines.md`).
const OUT: Nanos = Nanos::micros(5);
/// Size of a page.
const PAGE: u64 = PageSize::Base.bytes().get();
/// How long nothing may leave before the engine gives up for now, and the least and the most that
/// it sleeps then.
const PATIENCE: Nanos = Nanos::seconds(1);
/// The same where the kernel says that it has found what it was asked for: that may be files' pages.
const IN_VAIN: Nanos = Nanos::seconds(10);
const REST: (Nanos, Nanos) = (Nanos::millis(2), Nanos::seconds(1));

/// What can be chosen.
pub struct Options {
    /// What the run may have in DRAM.
    pub fast: Bytes,
    /// The policy that chooses what leaves; `None` for the kernel's own lists.
    pub policy: Option<Brain>,
    /// What observes accesses for the policy, beside what comes back: the best first.
    pub samplers: Vec<Box<dyn Sampler>>,
    /// Whether pages are brought back ahead of walks.
    pub ahead: bool,
    /// What prices that, and what zram does for idle pages ([`calibration`]); `None` where nobody is to.
    pub economist: Option<Economist>,
    /// Mappings smaller than this are left to the kernel's choice.
    pub min_region: Bytes,
    /// The most of one processor that observing may use.
    pub observing_cap: f64,
    /// The most of one processor that making room may use, while the budget holds.
    pub acting_cap: f64,
}

/// The engine. Drive it by [`Engine::step`].
///
/// Its parts, and what it remembers from one step to the next: a field each.
pub struct Engine<W> {
    world: W,
    fast: Bytes,
    books: Option<Books>,
    walks: Option<Walks>,
    /// Whether that pays, where it is priced.
    pays: Option<Pays>,
    desk: Option<Desk>,
    observing: Governor,
    acting: Governor,
    stats: Stats,
    thrash: Thrash,
    processes: Vec<u32>,
    looked: Option<Nanos>,
    swap: ((Bytes, Bytes), Option<Nanos>),
    /// Whether room is being made.
    making: bool,
    /// Whether memory grew lately by more than what came back.
    fills: bool,
    /// What was brought back ahead of walks since the run was weighed last.
    unweighed: Bytes,
    /// Whether the engine slows the run down.
    brakes: bool,
    /// Of `own_cpu`, that of making room.
    acting_cpu: Nanos,
    /// When what was seen became what was seen before.
    recent: Nanos,
    /// When the limit above the budget was raised last, as far as is known.
    raised: Option<Nanos>,
    /// Why faults are not seen any more.
    blind: Option<io::Error>,
    /// What becomes of memory above the budget.
    excess: Excess,
    /// What the guard lacks, once.
    lack: Option<String>,
}

/// A part of a budget, within the bounds of what is made room of.
fn part(fast: Bytes, part: f64) -> Bytes {
    let part = Bytes::from_f64(fast.as_f64() * part);
    part.max(BOUNDS.0).min(BOUNDS.1).min(fast / 8)
}

/// What of a budget is kept free at most: where memory is at most so much below it, it is full.
pub(crate) fn room_ahead(fast: Bytes) -> Bytes {
    part(fast, LOW) + part(fast, BATCH)
}

/// Memory above the budget, and whether it leaves.
#[derive(Debug, Default)]
struct Excess {
    /// Since when nothing has left; `None` within the budget.
    since: Option<Nanos>,
    /// How much was resident then, and what a policy had put out, and what had left in all, or was put
    /// out by the programs themselves.
    mark: (Bytes, u64, Bytes),
    /// Since when nothing has left, whatever the kernel says that it has found.
    stays: Option<Nanos>,
    /// More than none after the kernel found less than it was asked for, until it has found as
    /// much again: what is asked next is not answered before it is asked for the time after.
    refused: u8,
    /// While it is given up: how long the engine sleeps, and whether for want of swap.
    given_up: Option<(Nanos, bool)>,
    told: bool,
    /// That is still to be told.
    is_news: bool,
}

impl<W: World> Engine<W> {
    /// An engine for the run that a world is.
    pub fn new(world: W, options: Options) -> Self {
        let cap = options.observing_cap;
        let watchers = Watchers::new(options.samplers, cap);
        // What samplers use is not for passes.
        let rest = watchers.rest(cap);
        Self {
            world,
            fast: options.fast,
            books: options.policy.map(|brain| Books::new(brain, options.min_region, watchers)),
            walks: options.ahead.then(Walks::default),
            pays: (options.ahead && options.economist.is_some()).then(Pays::new),
            desk: options.economist.map(Desk::new),
            observing: Governor::new(rest),
            acting: Governor::new(options.acting_cap),
            stats: Stats::default(),
            thrash: Thrash::default(),
            processes: Vec::new(),
            looked: None,
            swap: ((Bytes::ZERO, Bytes::ZERO), None),
            making: false,
            fills: false,
            unweighed: Bytes::ZERO,
            brakes: false,
            acting_cpu: Nanos::ZERO,
            recent: Nanos::ZERO,
            raised: None,
            blind: None,
            excess: Excess::default(),
            lack: None,
        }
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The policy and the economist, if one chooses.
    pub fn brain(&self) -> Option<&Brain> {
        self.books.as_ref().map(Books::brain)
    }

    /// What a class of action was predicted to cost and bring, and did; `None` where nobody prices it.
    pub fn account(&self, class: ActionClass) -> Option<&Account> {
        let economist = match class {
            ActionClass::Prefetch | ActionClass::Reclaim | ActionClass::Recompress => {
                self.desk.as_ref().map(Desk::economist)
            }
            _ => self.brain().map(Brain::economist),
        };
        economist.map(|economist| economist.account(class))
    }

    /// What deciding has cost, for a policy and by itself.
    pub fn deciding(&self) -> Cycles {
        let policys = self.brain().map(Brain::economist);
        let own = self.desk.as_ref().map(Desk::economist);
        let costs = policys.into_iter().chain(own).map(Economist::own_cost);
        costs.fold(Cycles::ZERO, |sum, cost| sum + cost)
    }

    /// What observes, each with how it fares.
    pub fn samplers(&self) -> Vec<(&'static str, Health)> {
        self.books.as_ref().map(|books| books.watchers().each().collect()).unwrap_or_default()
    }

    /// Samplers that stopped working since the last call.
    pub fn take_degraded(&mut self) -> Vec<SamplerError> {
        self.books.as_mut().map(Books::take_degraded).unwrap_or_default()
    }

    /// The budget.
    pub fn fast(&self) -> Bytes {
        self.fast
    }

    /// Another budget from now on.
    ///
    /// # Errors
    /// If the run had been let go above the old one, and cannot be held again.
    pub fn set_fast(&mut self, fast: Bytes) -> io::Result<()> {
        // What it has told so far was about the budget before.
        self.guarded(self.stats.settled);
        // What was above a larger budget has to leave first.
        self.stats.settled &= self.stats.resident <= fast;
        self.fast = fast;
        let excess = std::mem::take(&mut self.excess);
        if excess.given_up.is_some() { self.world.let_go(false) } else { Ok(()) }
    }

    /// The system.
    pub fn world(&mut self) -> &mut W {
        &mut self.world
    }

    /// The processes of the run, as they were at the last look.
    pub fn processes(&self) -> &[u32] {
        &self.processes
    }

    /// What is known of where pages lie, if a policy chooses. Tier 0 is DRAM, tier 1 swap.
    pub fn space(&self) -> Option<&Space> {
        self.books.as_ref().map(Books::space)
    }

    /// Tells a recorder all that the policy is told, from now on. To be called before the first
    /// step.
    pub fn record(&mut self, recorder: terrace_policy::brain::Recorder) {
        if let Some(books) = &mut self.books {
            books.record(recorder);
        }
    }

    /// Whether decisions are kept for [`Engine::take_decided`].
    pub fn keep_decisions(&mut self, keep: bool) {
        if let Some(books) = &mut self.books {
            books.keep_decisions(keep);
        }
        if let Some(desk) = &mut self.desk {
            desk.keep_decisions(keep);
        }
    }

    /// The decisions since the last call, each with the process that it is about: 0 where it is about
    /// pages of several.
    pub fn take_decided(&mut self) -> Vec<(u32, Decision)> {
        let mut decided = self.books.as_mut().map(Books::take_decided).unwrap_or_default();
        let own = self.desk.as_mut().map(Desk::take_decided).unwrap_or_default();
        decided.extend(own.into_iter().map(|decision| (0, decision)));
        decided
    }

    /// Pages went to the file below zram, which somebody else looks after.
    pub fn wrote_back(&mut self, written: &Written) {
        let room = self.room();
        if let Some(desk) = &mut self.desk {
            desk.wrote_back(&mut self.world, &room, written);
        }
    }

    /// Takes over what was done for idle compressed pages, and answers what is asked about them.
    pub fn tend(&mut self, keeper: &Keeper) {
        self.charge(keeper.take_cpu());
        keeper.take_written().iter().for_each(|written| self.wrote_back(written));
        keeper.take_repacked().iter().for_each(|repacked| self.recompressed(repacked));
        if let Some(idle) = keeper.take_question() {
            keeper.answer(self.may_recompress(&idle));
        }
    }

    /// Whether idle compressed pages are to be compressed again: always, where nobody prices it.
    pub fn may_recompress(&mut self, idle: &Idle) -> bool {
        let room = self.room();
        let Some(desk) = &mut self.desk else { return true };
        desk.may_recompress(&mut self.world, &room, idle)
    }

    /// Idle compressed pages have been compressed again, by somebody else.
    pub fn recompressed(&mut self, repacked: &Repacked) {
        let room = self.room();
        if let Some(desk) = &mut self.desk {
            desk.recompressed(&mut self.world, &room, repacked);
        }
    }

    /// Time that was spent for the run beside the steps.
    pub fn charge(&mut self, time: Nanos) {
        self.stats.own_cpu += time;
    }

    /// Free swap, if that is too little to keep the budget for long; `None` otherwise. A run that has
    /// not used its budget up needs no swap.
    pub fn short_of_swap(&self) -> Option<Bytes> {
        let ((_, free), looked) = self.swap;
        let is_full = self.stats.resident + room_ahead(self.fast) + self.fast / 128 >= self.fast;
        let least = SWAP_SHORT.max(self.fast / 8);
        (looked.is_some() && is_full && free < least).then_some(free)
    }

    /// Why faults are not seen any more, once.
    pub fn take_blind(&mut self) -> Option<io::Error> {
        self.blind.take()
    }

    /// Whether the budget was given up since the last call, as nothing leaves.
    pub fn take_given_up(&mut self) -> bool {
        std::mem::take(&mut self.excess.is_news)
    }

    /// Whether it is given up now. When a program ends it has nothing, and no step comes that would see it.
    pub fn has_given_up(&self) -> bool {
        self.excess.given_up.is_some() && self.stats.resident > self.fast
    }

    /// What of the machine's swap was free at the last look.
    pub fn free_swap(&self) -> Bytes {
        self.swap.0.1
    }

    /// What the kernel does not tell of the run, once.
    pub fn take_lack(&mut self) -> Option<String> {
        self.lack.take()
    }

    fn part(&self, of: f64) -> Bytes {
        part(self.fast, of)
    }

    fn room(&self) -> Room {
        let free = self.fast - self.stats.resident.min(self.fast);
        Room { dram: (self.fast, free), swap: self.swap.0 }
    }

    /// One step; when the next one is due, from now.
    ///
    /// # Errors
    /// The system's, if memory cannot be put out any more. The run goes on; call
    /// [`Engine::finish`].
    pub fn step(&mut self) -> io::Result<Nanos> {
        let (now, cpu) = (self.world.now(), self.world.cpu());
        let (before, faults) = (self.stats.resident, self.stats.faults);
        let ahead = self.unweighed;
        self.look(now);
        self.faults(now)?;
        if let Some(books) = &mut self.books {
            books.sample(now, &mut self.stats);
        }
        let came_back = Bytes((self.stats.faults - faults) * PageSize::Base.bytes().get());
        self.fills = self.stats.resident - before.min(self.stats.resident) > came_back * 2 + ahead;
        self.count_thrashing(now);
        let result = self.make_room(now).and_then(|()| self.pass(now, false));
        self.stats.own_cpu += self.world.cpu().saturating_sub(cpu);
        result?;
        Ok(self.sleep(self.stats.faults > faults))
    }

    /// The run is over, or is left alone: takes the brake and all limits off, and completes the
    /// accounts.
    ///
    /// # Errors
    /// If they cannot be taken off.
    pub fn finish(&mut self) -> io::Result<()> {
        let now = self.world.now();
        let room = self.room();
        if let Some(books) = &mut self.books {
            books.finish(now);
        }
        if let (Some(pays), Some(desk)) = (&mut self.pays, &mut self.desk) {
            pays.finish(desk, &mut self.world, &room);
        }
        // Before the brake, so that what is still being put out comes to its end.
        let released = self.world.release();
        let off = self.brake(false);
        // Both to the end.
        self.guarded(self.stats.settled);
        self.count_direct();
        off.and(released)
    }

    /// Looks at the processes, and at what they have.
    fn look(&mut self, now: Nanos) {
        if self.looked.is_none_or(|at| now >= at + LOOK) {
            self.looked = Some(now);
            self.processes = self.world.processes();
        }
        if self.swap.1.is_none_or(|at| now >= at + REFRESH) {
            self.swap = (self.world.swap(), Some(now));
        }
        if let Some(books) = self.books.as_mut().filter(|_| now >= self.recent + RECENT) {
            self.recent = now;
            books.age_accesses();
        }
        // What the guard has seen above the budget was there before this look.
        let settled = self.stats.settled;
        self.weigh();
        self.guarded(settled);
    }

    /// Takes over what the guard has done since the last step; `settled` says whether the run had been
    /// within its budget by then.
    fn guarded(&mut self, settled: bool) {
        let done = self.world.take_guarded();
        self.count_braking();
        self.stats.lifted += done.lifted;
        if done.lifted > 0 {
            self.raised = Some(self.world.now());
        }
        self.stats.reclaimed += done.asked;
        self.stats.own_cpu += done.cpu;
        if settled {
            self.stats.exceeded = self.stats.exceeded.max(done.exceeded);
        }
        if !done.exceeded.is_zero() {
            self.stats.resident_peak = self.stats.resident_peak.max(self.fast + done.exceeded);
        }
        // It asks for room before the engine would.
        self.making |= done.brakes;
        if let Some(lack) = done.lack {
            self.lack.get_or_insert(format!(
                "the kernel does not tell when the budget is near, which is looked for every 4 ms: \
                 {lack}"
            ));
        }
    }

    /// Takes over how the run was slowed down, by the engine or the guard.
    fn count_braking(&mut self) {
        let braked = self.world.take_braked();
        self.stats.braked += braked.times;
        self.stats.braked_time += braked.time;
    }

    /// Takes over what the programs have put out themselves.
    fn count_direct(&mut self) {
        let stats = &mut self.stats;
        self.world.direct_reclaims(&self.processes, &mut |reclaim| {
            stats.direct += 1;
            stats.direct_bytes += reclaim.bytes;
        });
    }

    /// Takes over for how long the run has thrashed, if it is time to judge that.
    fn count_thrashing(&mut self, now: Nanos) {
        if !self.thrash.is_due(now) {
            return;
        }
        let put_out = self.stats.direct_bytes.get() / PAGE;
        let waited = FAULT * self.stats.faults + OUT * put_out + self.stats.braked_time;
        let stalled = self.world.stalled();
        self.stats.thrashing += self.thrash.look(Moment { at: now, waited, stalled });
    }

    /// Looks at what the run has now; each step does so by itself.
    pub fn weigh(&mut self) {
        self.unweighed = Bytes::ZERO;
        self.stats.resident = self.world.resident(&self.processes);
        self.stats.resident_peak = self.stats.resident_peak.max(self.stats.resident);
        let kernel = self.world.kernel_beside();
        self.stats.kernel_beside_peak = self.stats.kernel_beside_peak.max(kernel);
        if self.stats.resident <= self.fast {
            self.stats.settled = true;
        } else if self.stats.settled {
            self.stats.exceeded = self.stats.exceeded.max(self.stats.resident - self.fast);
        }
    }

    /// What came back since the last step: the policy is told, and walks are gone ahead of.
    fn faults(&mut self, now: Nanos) -> io::Result<()> {
        let cpu = self.world.cpu();
        let mut seen = Vec::new();
        if let Err(e) = self.world.faults(&self.processes, &mut |fault| seen.push(fault)) {
            // Room is made all the same.
            self.blind = Some(e);
        }
        self.stats.faults += seen.len() as u64;
        self.count_direct();
        let room = self.room();
        for fault in seen {
            self.thrash.fault(fault.process, fault.address);
            if let Some(books) = &mut self.books {
                books.fault(now, &room, fault);
            }
            if let Some(pays) = &mut self.pays {
                pays.fault(fault.process, fault.address);
            }
            if let Some(walks) = &mut self.walks {
                walks.fault(fault.process, fault.address);
            }
        }
        if let Some(walks) = &mut self.walks {
            walks.told();
        }
        self.stats.observing_cpu += self.world.cpu().saturating_sub(cpu);
        self.go_ahead(now, &room)
    }

    /// Brings back what walks will want, as far as there are room and time and the economist is for it.
    fn go_ahead(&mut self, now: Nanos, room: &Room) -> io::Result<()> {
        // What is brought back takes room of its own, which is made first. A program at its limit hardly
        // ever has any: what a walk brings back then puts out what is oldest, as its faults would.
        let (mut free, mut beyond) = (room.dram.1, self.beyond(now));
        let (budget, until) = (self.fast.get() / PAGE, self.world.now() + TURN);
        while self.world.now() < until {
            let next = self.walks.as_mut().and_then(|walks| walks.next_chunk(budget));
            let Some(chunk) = next else { break };
            let (process, (start, end)) = (chunk.process, chunk.range);
            let mut bytes = Bytes(end - start);
            let fits = if free < FITS { beyond } else { free.max(beyond) };
            let fits = Bytes(fits.get() / PAGE * PAGE);
            if bytes > fits {
                bytes = fits;
                if let Some(walks) = &mut self.walks {
                    walks.cut(&chunk, start + bytes.get());
                }
            }
            if bytes.is_zero() {
                continue;
            }
            let range = (start, start + bytes.get());
            let window = match &mut self.pays {
                Some(pays) => pays.ask(&mut self.world, process, range),
                None => Window::of(process, range),
            };
            // The program was faster.
            if window.is_there() {
                continue;
            }
            if let Some(pays) = self.pays.as_mut().filter(|pays| pays.refuses(&window)) {
                pays.wait(&mut self.world, &window);
                self.stats.ahead_refused += window.away();
                continue;
            }
            if bytes > free {
                beyond -= bytes;
            }
            let (ranges, cpu) = (window.ranges(), self.world.cpu());
            match self.world.advise(process, Advice::WillNeed, &ranges) {
                Ok(()) => {
                    free = free.saturating_sub(bytes);
                    let asked = Bytes(ranges.iter().map(|(_, length)| length).sum());
                    self.stats.ahead += asked;
                    self.unweighed += asked;
                    let took = self.world.cpu().saturating_sub(cpu);
                    if let Some(walks) = &mut self.walks {
                        walks.went_ahead();
                    }
                    if let Some(pays) = &mut self.pays {
                        pays.came(&mut self.world, &window, took);
                    }
                }
                // It has ended, or is somebody else's: it waits for its pages as without us.
                Err(e) if is_gone(&e) || e.kind() == io::ErrorKind::PermissionDenied => {}
                Err(e) => return Err(e),
            }
        }
        if let (Some(pays), Some(desk)) = (&mut self.pays, &mut self.desk) {
            pays.look(desk, &mut self.world, room);
        }
        Ok(())
    }

    /// What may be brought back in one step at the cost of what is there.
    fn beyond(&self, now: Nanos) -> Bytes {
        let is_raised = self.raised.is_some_and(|at| now < at + RAISED);
        // A program at its limit is above its budget all the time. Beyond where the limit belongs (the
        // budget has become smaller), what is there has to leave first.
        let is_above = self.stats.resident > Bound::place(self.fast, Bytes::ZERO);
        if !self.world.has_hard_limit() || is_above || is_raised {
            return Bytes::ZERO;
        }
        (self.fast / 64).max(BEYOND.0).min(BEYOND.1)
    }

    /// Puts memory out until enough is free.
    fn make_room(&mut self, begin: Nanos) -> io::Result<()> {
        let (low, batch) = (self.part(LOW), self.part(BATCH));
        let mut free = self.room().dram.1;
        if free < low {
            self.making = true;
        }
        let cpu = self.world.cpu();
        let acting = self.acting.judge(begin, self.acting_cpu);
        let mut result = Ok(());
        while self.making {
            let now = self.world.now();
            if free >= low + batch {
                self.making = false;
                break;
            }
            // One that fills memory for the first time is faster than anybody puts memory out.
            let is_short = self.stats.resident > self.fast || self.fills && free < low / 2;
            let given_up = self.excess.given_up.is_some();
            if is_short {
                if !given_up {
                    self.brake(true)?;
                }
            } else if now < acting.rest_until {
                break;
            }
            let over = self.stats.resident - self.fast.min(self.stats.resident);
            let wanted = low + batch + over - free;
            let chunk = Bytes(self.fast.get() / 256).max(CHUNK.0).min(CHUNK.1);
            let left = match &mut self.books {
                None => Bytes::ZERO,
                Some(_) => match self.choose(wanted.min(chunk)) {
                    Ok(left) => left,
                    Err(e) => {
                        result = Err(e);
                        break;
                    }
                },
            };
            // The kernel chooses where no policy does, and helps one out that knows of less, or
            // does not keep up.
            if self.books.is_none() || left < wanted.min(chunk) / 2 || is_short {
                let ask = if self.books.is_none() { wanted } else { chunk };
                result = self.reclaim(ask);
            }
            self.weigh();
            free = self.room().dram.1;
            let is_over = given_up || self.world.now() >= begin + TURN;
            if self.books.is_none() || result.is_err() || is_over {
                break;
            }
        }
        let now = self.world.now();
        if free >= low {
            self.brake(false)?;
        }
        self.judge_excess(now)?;
        let helped = self.world.take_helped();
        self.stats.own_cpu += helped;
        self.acting_cpu += self.world.cpu().saturating_sub(cpu) + helped;
        result
    }

    /// Gives the budget up for now where nothing leaves: swap may be full, or memory locked. A
    /// program that stays slowed down would never end.
    fn judge_excess(&mut self, now: Nanos) -> io::Result<()> {
        let (resident, put_out, swap) = (self.stats.resident, self.stats.put_out, self.swap.0.1);
        let is_above = resident > self.fast;
        let left = is_above.then(|| self.world.left()).flatten();
        let counted = || is_above.then(|| self.world.reclaimed_by_itself()).flatten();
        let gone = left.or_else(counted).unwrap_or(self.stats.direct_bytes);
        let is_full = swap < CHUNK.0;
        let is_refused = self.excess.refused > 0 || !self.world.can_reclaim();
        let much = CHUNK.0.min(self.fast / 64);
        let fell = resident + much <= self.excess.mark.0;
        let given_up = self.excess.given_up;
        self.excess.mark.2 = self.excess.mark.2.min(gone);
        // At its limit a program stays above the budget while it puts as much out as it brings in. With
        // swap full what it puts out are files' pages.
        let passes = !is_full
            && match left {
                // A page every now and then has nothing held again.
                Some(_) if given_up.is_some() => gone >= self.excess.mark.2 + much,
                Some(_) => gone > self.excess.mark.2,
                None => self.world.is_bound() && gone > self.excess.mark.2,
            };
        let leaves = fell || passes || put_out > self.excess.mark.1;
        // Before Linux 6.16 the kernel cannot be told to leave files' pages where they are. As long as
        // the program is not slowed down, which it is from 3 % on, that does no harm.
        let is_in_vain = left.is_some()
            && resident > self.fast + self.fast / 32
            && self.excess.stays.is_some_and(|since| now >= since + IN_VAIN);
        let may_leave = !is_refused && !is_full && !is_in_vain
            // What there was no swap for can leave now, or cannot for another reason.
            || given_up.is_some_and(|(_, was_full)| was_full && !is_full);
        let excess = &mut self.excess;
        if !is_above || leaves || excess.stays.is_none() {
            excess.stays = is_above.then_some(now);
        }
        if !is_above || leaves || may_leave || excess.since.is_none() {
            excess.since = is_above.then_some(now);
            excess.mark = (resident, put_out, gone);
            return match excess.given_up.take() {
                Some(_) => self.world.let_go(false),
                None => Ok(()),
            };
        }
        if let Some((wait, _)) = &mut excess.given_up {
            *wait = Nanos(wait.get() * 2).min(REST.1);
            return Ok(());
        }
        if excess.since.is_some_and(|since| now < since + PATIENCE) {
            return Ok(());
        }
        excess.given_up = Some((REST.0, is_full));
        if !std::mem::replace(&mut excess.told, true) {
            self.excess.is_news = true;
        }
        self.brake(false)?;
        self.world.let_go(true)
    }

    /// Has the policy choose so much that leaves; what has left.
    fn choose(&mut self, bytes: Bytes) -> io::Result<Bytes> {
        let room = self.room();
        let Some(books) = &mut self.books else { return Ok(Bytes::ZERO) };
        books.tick(&mut self.world, &room, &mut self.stats)?;
        // Of what came lately it knows nothing yet.
        if books.known() < self.stats.resident / 2 {
            let now = self.world.now();
            self.pass(now, true)?;
        }
        let Some(books) = &mut self.books else { return Ok(Bytes::ZERO) };
        let cold = books.leave_cold(&mut self.world, &room, bytes, &mut self.stats)?;
        if cold >= bytes {
            return Ok(cold);
        }
        let left = books.leave(&mut self.world, &room, bytes - cold, &mut self.stats)?;
        Ok(cold + left)
    }

    /// Asks the kernel to put so much out.
    fn reclaim(&mut self, bytes: Bytes) -> io::Result<()> {
        if !self.world.can_reclaim() {
            return Ok(());
        }
        match self.world.reclaim(bytes) {
            Ok(true) => {
                self.stats.reclaimed += bytes;
                self.excess.refused = self.excess.refused.saturating_sub(1);
            }
            Ok(false) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.stats.short += 1;
                self.excess.refused = 2;
            }
            // The run has ended.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    fn brake(&mut self, on: bool) -> io::Result<()> {
        match (self.brakes, on) {
            (false, true) => self.brakes = self.world.brake(true)?,
            (true, false) => {
                match self.world.brake(false) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                    // Done, or the run has ended.
                    _ => {}
                }
                self.brakes = false;
            }
            _ => {}
        }
        Ok(())
    }

    /// A pass for the policy, within the cap.
    fn pass(&mut self, now: Nanos, urgent: bool) -> io::Result<()> {
        let room = self.room();
        let Some(books) = &mut self.books else { return Ok(()) };
        let order = self.observing.judge(now, self.stats.observing_cpu);
        if !urgent && now < order.rest_until {
            return Ok(());
        }
        let passes = self.stats.passes;
        let took = books.pass(&mut self.world, &self.processes, &room, urgent, &mut self.stats)?;
        self.stats.observing_cpu += took;
        if self.stats.passes > passes {
            books.rest_until(now + PASS);
        }
        Ok(())
    }

    /// How long nothing has to be done: until half of what is free would be taken by a program
    /// that fills memory as fast as it can.
    fn sleep(&self, saw_faults: bool) -> Nanos {
        if let Some((wait, _)) = self.excess.given_up {
            return wait;
        }
        // A walk is gone ahead of while it is there, or not at all.
        if self.walks.as_ref().is_some_and(Walks::are_under_way) {
            return SLEEP.0;
        }
        let free = self.room().dram.1;
        let filled = FILL.time_for(free / 2).max(SLEEP.0);
        let most = match (self.making, saw_faults) {
            // A policy is asked again at once. The kernel is at its lists for some 100 ms, and whoever
            // looks meanwhile takes the processor from the program.
            (true, _) if self.books.is_some() => SLEEP.0,
            // What came back may be the beginning of a walk.
            (true, _) | (false, true) => SLEEP.1,
            (false, false) => SLEEP.2,
        };
        filled.min(most)
    }
}
