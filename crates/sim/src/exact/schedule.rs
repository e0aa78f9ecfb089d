//! Which core's turn it is: several cores share time.
//!
//! A core's accesses go through their first stage ahead of time, for that touches
//! nothing that other cores see. What is left (misses, faults, ends of turns) is
//! done in the order of time: always by the core whose next such access may begin
//! first, the lower number where two are equal. So what cores share (the last
//! level, the memories, page tables, the policy) sees one order of things, which
//! depends on what each thread does and on nothing else.
//!
//! Threads run on cores by their number. Several on one core take turns there, as
//! under a scheduler with time slices.

#![allow(clippy::inline_always)] // measured: a call on the hot path costs more than the work

use super::access::Access;
use super::beyond_first::{Deferred, NEXT, What};
use super::first_levels::instructions_of;
use super::host_arrays::for_this_processor;
use super::machine::{ExactMachine, TURN};
use super::source::SpaceEvent;
use super::threads::{Step, Threads};
use crate::error::SimError;

/// How long a thread runs while others wait for its core, in nanoseconds: the base
/// slice of Linux on one processor.
const SLICE: f64 = 750_000.0;

/// What a core is at.
#[derive(Debug, Default)]
pub(super) struct Runner {
    /// Threads that run on this core, by their number in the source.
    threads: Vec<usize>,
    /// The one that runs, and when its slice ends.
    current: Option<usize>,
    slice_ends: f64,
    /// The one that ran last.
    last: Option<usize>,
    /// The turn under way: its accesses from `from` to `end`, of which those from
    /// `at` on have not begun.
    turn: Vec<Access>,
    from: usize,
    at: usize,
    end: usize,
    /// Whether the turn has begun in the order of time.
    begun: bool,
    /// Accesses that wait for their second stage, from `head` on.
    waiting: Vec<Deferred>,
    head: usize,
    /// Whether the next access has to wait for its time with its first stage, too.
    blocked: bool,
    /// Whether the filter is in use in this turn, and what it did not know.
    filter: bool,
    unknown: usize,
}

/// Times that are compared at once.
const LANES: usize = 4;

/// The end of a stretch in which one core need not look at the others: when the
/// next one is due, and which that is.
#[derive(Clone, Copy, Debug)]
struct Until {
    time: f64,
    core: usize,
}

impl Until {
    /// Whether what a core does at a time comes before.
    #[inline]
    fn is_after(self, time: f64, core: usize) -> bool {
        time < self.time || time <= self.time && core < self.core
    }
}

/// Cores and threads.
pub(super) struct Schedule<'a> {
    threads: Threads<'a>,
    runners: Vec<Runner>,
    /// When each core does something next; never, if it has nothing to do. By
    /// themselves, and as many as [`LANES`] divides: they are looked through at each
    /// change from core to core.
    times: Vec<f64>,
    /// Threads that wait at a barrier.
    at_barrier: Vec<usize>,
    /// When the policy is told next what is to come, in ticks.
    told: u64,
    /// Accesses up to which turns end where they are to be counted.
    counted: u64,
}

impl<'a> Schedule<'a> {
    /// Threads that run on so many cores. No turn begins before access `counted` and
    /// ends after it, where one core is in use.
    pub(super) fn new(threads: Threads<'a>, cores: usize, counted: u64) -> Self {
        Self {
            threads,
            runners: (0..cores).map(|_| Runner::default()).collect(),
            times: vec![f64::INFINITY; cores.next_multiple_of(LANES)],
            at_barrier: Vec::new(),
            told: 0,
            counted,
        }
    }

    /// How often a thread was taken to sleep, and came again.
    pub(super) fn slept(&self) -> u64 {
        self.threads.slept()
    }

    /// The core that is due first; the lowest number where several are.
    #[inline(always)]
    fn first(&self) -> Until {
        let mut least = [f64::INFINITY; LANES];
        for times in self.times.chunks_exact(LANES) {
            for (least, &time) in least.iter_mut().zip(times) {
                *least = if time < *least { time } else { *least };
            }
        }
        let time = least.into_iter().fold(f64::INFINITY, f64::min);
        let core = if time < f64::INFINITY {
            self.times.iter().position(|&other| other <= time).unwrap_or(usize::MAX)
        } else {
            usize::MAX
        };
        Until { time, core }
    }

    /// The thread that a core runs from now on.
    fn choose(&mut self, core: usize, now: f64) -> Option<usize> {
        let runner = &mut self.runners[core];
        if let Some(current) = runner.current
            && (runner.threads.len() == 1 || now < runner.slice_ends)
        {
            return Some(current);
        }
        // The one after it, by number; it itself comes last.
        let at = runner.last.and_then(|last| runner.threads.iter().position(|&t| t == last));
        let next = at.map_or(0, |at| at + 1);
        let threads = &runner.threads;
        let found = (0..threads.len())
            .map(|i| threads[(next + i) % threads.len()])
            .find(|thread| self.threads.is_awake(*thread) && !self.at_barrier.contains(thread));
        runner.current = found;
        runner.last = found.or(runner.last);
        runner.slice_ends = now + SLICE;
        found
    }

    /// Threads that were read for the first time, or again, have a core.
    fn assign(&mut self, thread: usize) -> usize {
        let core = self.threads.id(thread) as usize % self.runners.len();
        let runner = &mut self.runners[core];
        if !runner.threads.contains(&thread) {
            runner.threads.push(thread);
            runner.threads.sort_by_key(|&thread| self.threads.id(thread));
        }
        core
    }
}

impl ExactMachine {
    /// Runs threads to their end. `after` is called after every turn.
    pub(super) fn run_all(
        &mut self,
        schedule: &mut Schedule<'_>,
        after: &mut dyn FnMut(&mut Self),
    ) -> Result<(), SimError> {
        schedule.threads.begin()?;
        self.wake(schedule, 0.0)?;
        let mut next = schedule.first();
        loop {
            let Until { time, core } = next;
            if core == usize::MAX {
                if schedule.at_barrier.is_empty() {
                    return Ok(());
                }
                // The thread that others wait for has not been read yet, or is over.
                let now = self.now().as_f64();
                if schedule.threads.read_more()? {
                    self.wake(schedule, now)?;
                } else {
                    self.release(schedule, now)?;
                }
                next = schedule.first();
                continue;
            }
            // The core that is next, if this one did nothing: it goes on until that.
            schedule.times[core] = f64::INFINITY;
            let until = schedule.first();
            schedule.times[core] = time;
            let runner = &mut schedule.runners[core];
            let over = if until.time < f64::INFINITY || runner.begun {
                let (over, time) = self.advance(core, runner, until);
                schedule.times[core] = time;
                over
            } else {
                self.run_some(core, &runner.turn[runner.from..runner.end]);
                true
            };
            if let Some(error) = self.error.take() {
                return Err(error);
            }
            next = until;
            if over {
                self.settle(core, &runner.turn[runner.from..runner.end]);
                if let Some(error) = self.error.take() {
                    return Err(error);
                }
                after(self);
                self.end_turn(schedule, core)?;
                next = schedule.first();
            }
        }
    }

    for_this_processor! {
        /// What a core does before others are due: whether its turn is over, and when it
        /// does something next.
        fn advance | advance_modern (&mut self, core: usize, runner: &mut Runner, until: Until) -> (bool, f64)
            = advance_here
    }

    #[inline(always)]
    fn advance_here(&mut self, core: usize, runner: &mut Runner, until: Until) -> (bool, f64) {
        if !runner.begun {
            runner.begun = true;
            runner.filter = self.cores[core].filter.in_use();
            runner.unknown = 0;
        }
        loop {
            if runner.head == runner.waiting.len() {
                self.run_ahead(core, runner);
            }
            let time = self.due(core, runner);
            if !until.is_after(time, core) {
                return (false, time);
            }
            if let Some(&(mut access)) = runner.waiting.get(runner.head) {
                // All that one access does is done at once.
                loop {
                    if let Some(next) = runner.waiting.get(runner.head + NEXT) {
                        self.prefetch_victim(core, next);
                    }
                    self.second_stage(core, access);
                    runner.head += 1;
                    match runner.waiting.get(runner.head) {
                        Some(&next) if next.what.is(What::REST) => access = next,
                        _ => break,
                    }
                }
            } else if runner.at < runner.end {
                let known =
                    runner.filter && self.skim(core, &runner.turn[runner.at..=runner.at]) > 0;
                if !known {
                    let access = runner.turn[runner.at];
                    if self.fault_alone(core, access) {
                        if self.error.is_some() {
                            return (true, time);
                        }
                        // The access itself waits for its time.
                        runner.blocked = false;
                        continue;
                    }
                    runner.unknown += 1;
                    self.alone(core, access);
                }
                runner.at += 1;
                runner.blocked = false;
                if self.error.is_some() {
                    return (true, time);
                }
            } else {
                self.turn_over(core, runner.end - runner.from, runner.filter, runner.unknown);
                return (true, time);
            }
        }
    }

    /// When a core does something next, as far as its own accesses say.
    #[inline(always)]
    fn due(&self, core: usize, runner: &Runner) -> f64 {
        let me = &self.cores[core];
        if let Some(next) = runner.waiting.get(runner.head) {
            return me.clock.would_begin(next.instruction, next.is_dependent());
        }
        if runner.at < runner.end {
            let next = runner.turn[runner.at];
            if next.is_data() {
                let instruction = me.instructions + instructions_of(next);
                return me.clock.would_begin(instruction, next.is_dependent());
            }
            // It uses nothing that cores share, and the access after it may be of this instruction.
        }
        me.clock.time(me.instructions)
    }

    /// The first stage of a core's next accesses, up to one that has to wait for its
    /// time. Nothing of the core waits for its second stage.
    #[inline(always)]
    fn run_ahead(&mut self, core: usize, runner: &mut Runner) {
        runner.waiting.clear();
        runner.head = 0;
        if runner.blocked || runner.at == runner.end || self.queue.in_order {
            return;
        }
        self.ahead = true;
        core::mem::swap(&mut self.queue.waiting, &mut runner.waiting);
        let accesses = &runner.turn[runner.at..runner.end];
        let (done, unknown) = self.first_stage::<true>(core, accesses, runner.filter);
        core::mem::swap(&mut self.queue.waiting, &mut runner.waiting);
        self.ahead = false;
        runner.at += done;
        runner.unknown += unknown;
        runner.blocked = core::mem::take(&mut self.blocked);
        for next in runner.waiting.iter().take(NEXT) {
            self.prefetch_victim(core, next);
        }
    }

    fn end_turn(&mut self, schedule: &mut Schedule<'_>, core: usize) -> Result<(), SimError> {
        let runner = &mut schedule.runners[core];
        if let Some(thread) = runner.current {
            schedule.threads.give_back(thread, std::mem::take(&mut runner.turn), runner.end);
        }
        let me = &self.cores[core];
        let now = me.clock.time(me.instructions);
        self.next_turn(schedule, core, now)?;
        self.wake(schedule, now)
    }

    /// Cores whose threads woke go on at this time.
    fn wake(&mut self, schedule: &mut Schedule<'_>, now: f64) -> Result<(), SimError> {
        loop {
            let mut woken = schedule.threads.woken();
            self.areas.expect(schedule.threads.maps());
            if woken.is_empty() {
                return Ok(());
            }
            woken.sort_by_key(|&thread| schedule.threads.id(thread));
            // Each has a core before the first of them begins.
            let cores: Vec<usize> = woken.iter().map(|&thread| schedule.assign(thread)).collect();
            for core in cores {
                self.go_on(schedule, core, now)?;
            }
        }
    }

    /// A core that had nothing to do has something now.
    fn go_on(
        &mut self,
        schedule: &mut Schedule<'_>,
        core: usize,
        now: f64,
    ) -> Result<(), SimError> {
        if schedule.times[core] < f64::INFINITY {
            return Ok(());
        }
        let me = &mut self.cores[core];
        me.used = true;
        me.clock.sleep_until(me.instructions, now);
        self.next_turn(schedule, core, now)
    }

    /// Gives a core its next turn, if any thread of it has something to do.
    fn next_turn(
        &mut self,
        schedule: &mut Schedule<'_>,
        core: usize,
        now: f64,
    ) -> Result<(), SimError> {
        loop {
            let Some(thread) = schedule.choose(core, now) else {
                schedule.times[core] = f64::INFINITY;
                return Ok(());
            };
            // Where one core runs, the warm-up ends with a turn.
            let before = schedule.counted.saturating_sub(self.accesses());
            let most = if before == 0 { TURN } else { before.min(TURN as u64) as usize };
            schedule.threads.know(thread, most)?;
            self.tell(schedule, thread);
            match schedule.threads.next(thread, most) {
                Step::Turn(turn, range) => {
                    let me = &self.cores[core];
                    let runner = &mut schedule.runners[core];
                    runner.turn = turn;
                    (runner.from, runner.at, runner.end) = (range.start, range.start, range.end);
                    runner.begun = false;
                    schedule.times[core] = me.clock.time(me.instructions);
                    return Ok(());
                }
                Step::Events(events) => events.iter().for_each(|event| self.apply(event)),
                Step::Barrier(count) => {
                    schedule.runners[core].current = None;
                    schedule.at_barrier.push(thread);
                    if schedule.at_barrier.len() >= count as usize {
                        // Until its own turn is found, this core has nothing to do.
                        schedule.times[core] = f64::INFINITY;
                        return self.release(schedule, now);
                    }
                }
                Step::Sleep => schedule.runners[core].current = None,
            }
        }
    }

    /// Those who wait at a barrier go on.
    fn release(&mut self, schedule: &mut Schedule<'_>, now: f64) -> Result<(), SimError> {
        let mut threads = std::mem::take(&mut schedule.at_barrier);
        threads.sort_by_key(|&thread| schedule.threads.id(thread));
        for thread in threads {
            let core = schedule.assign(thread);
            self.go_on(schedule, core, now)?;
        }
        Ok(())
    }

    /// Tells a policy that asks for it what is to come, once a tick.
    fn tell(&mut self, schedule: &mut Schedule<'_>, thread: usize) {
        if self.runtime.ticks >= schedule.told
            && schedule.threads.accesses_next(thread)
            && let Some(ahead) = schedule.threads.ahead()
        {
            schedule.told = self.runtime.ticks + 1;
            self.tell_future(ahead);
        }
    }

    /// The address space changes.
    fn apply(&mut self, event: &SpaceEvent) {
        match *event {
            SpaceEvent::Map { start, len } => self.map(start, len),
            SpaceEvent::Unmap { start, len } => self.unmap(start, len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analytic::config::SimPolicy;
    use crate::exact::setup::{self, ExactConfig};
    use crate::exact::source::{Batch, Source};
    use crate::machines;
    use proptest::prelude::*;
    use terrace_core::{Bytes, Inclusion, Nanos, PageSize};

    const START: u64 = 0x20_0000;

    /// Threads that take turns with batches of given lengths.
    struct Cut {
        threads: Vec<Vec<Access>>,
        lengths: Vec<usize>,
        at: Vec<usize>,
        turn: usize,
    }

    impl Cut {
        fn new(threads: &[Vec<Access>], lengths: &[usize]) -> Self {
            let at = vec![0; threads.len()];
            Self { threads: threads.to_vec(), lengths: lengths.to_vec(), at, turn: 0 }
        }
    }

    impl Source for Cut {
        fn describe(&self) -> String {
            "a test".into()
        }
        fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
            batch.clear();
            if self.turn == 0 {
                batch.events.push(SpaceEvent::Map { start: START, len: 64 << 20 });
            }
            for _ in 0..self.threads.len() {
                let thread = self.turn % self.threads.len();
                let length = self.lengths[self.turn % self.lengths.len()];
                self.turn += 1;
                let rest = &self.threads[thread][self.at[thread]..];
                let some = &rest[..rest.len().min(length)];
                if !some.is_empty() {
                    self.at[thread] += some.len();
                    batch.thread = thread as u32;
                    batch.accesses.extend_from_slice(some);
                    return Ok(true);
                }
            }
            Ok(!batch.events.is_empty())
        }
    }

    fn config(cores: usize, policy: &str) -> ExactConfig {
        let policy: SimPolicy = policy.parse().expect("a policy");
        let mut config = ExactConfig::new(machines::builtin("cxl").expect("built in"), policy);
        config.cores = cores;
        config.fast = Some(Bytes::mib(8));
        config.sampler.period = 7;
        config
    }

    /// Everything that a run says, but the host's speed.
    fn said(machine: &mut ExactMachine, config: &ExactConfig, source: &mut dyn Source) -> String {
        let report = setup::run(machine, config, source, &mut |_, _| ()).expect("it fits");
        let mut value = serde_json::to_value(report).expect("serialises");
        value["host_speed"] = serde_json::Value::Null;
        let times: Vec<f64> =
            machine.cores.iter().map(|core| core.clock.time(core.instructions)).collect();
        format!("{value:#} {times:?}")
    }

    /// Loads and stores of a few pages and of few lines, that several threads share.
    fn thread() -> impl Strategy<Value = Vec<Access>> {
        let one = (0u64..96, 0u64..8, 0u64..64, prop::bool::ANY, 0u64..60);
        prop::collection::vec(one, 1..4000).prop_map(|draws| {
            let access = |(page, line, byte, store, rare)| {
                let address = START + page * 0x9_1000 + line * 0x840 + byte;
                let access = if store { Access::store(address) } else { Access::load(address) };
                match rare {
                    0 => access.dependent(),
                    1 => Access::new(address | 63, 8, terrace_core::Access::Read),
                    _ => access.after(rare * 4),
                }
            };
            draws.into_iter().map(access).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(8), ..ProptestConfig::default() })]

        /// Batches are how accesses travel. A program that took twice as long with
        /// shorter batches would say nothing about the machine.
        #[test]
        fn results_do_not_depend_on_the_length_of_batches(
            threads in prop::collection::vec(thread(), 1..7),
            cores in 1usize..5,
            huge in prop::bool::ANY,
            policy in prop::sample::select(vec!["first-touch", "hemem", "tpp", "oracle", "all-slow"]),
            lengths in prop::collection::vec(1usize..700, 1..9),
        ) {
            let mut config = config(cores, policy);
            config.page_size = if huge { PageSize::Huge } else { PageSize::Base };
            let run = |lengths: &[usize]| {
                let mut machine = ExactMachine::new(&config).expect("set up");
                // Often enough for a run that is short.
                if machine.runtime.tick.is_some() {
                    machine.runtime.tick = Some(Nanos(20_000));
                    machine.runtime.next_tick = Nanos(20_000);
                }
                said(&mut machine, &config, &mut Cut::new(&threads, lengths))
            };
            let whole = run(&[usize::MAX]);
            prop_assert_eq!(&run(&lengths), &whole);
            prop_assert_eq!(&run(&[1024]), &whole);
        }

        /// Running the first stage ahead of time changes nothing: the same comes out
        /// where every access waits for its time.
        #[test]
        fn running_ahead_changes_nothing(
            threads in prop::collection::vec(thread(), 2..5),
            huge in prop::bool::ANY,
            slow in prop::bool::ANY,
            inclusion in prop::sample::select(vec![Inclusion::NonInclusive, Inclusion::Victim]),
        ) {
            let mut config = config(threads.len(), if slow { "all-slow" } else { "first-touch" });
            config.page_size = if huge { PageSize::Huge } else { PageSize::Base };
            let detail = config.machine.detail.as_mut().expect("it has caches");
            detail.llc.inclusion = inclusion;
            let run = |in_order: bool| {
                let mut machine = ExactMachine::new(&config).expect("set up");
                if in_order {
                    machine.queue.in_order = true;
                    machine.modern = false;
                    machine.cores.iter_mut().for_each(|core| core.filter.stop());
                }
                said(&mut machine, &config, &mut Cut::new(&threads, &[500]))
            };
            prop_assert_eq!(run(false), run(true));
        }
    }

    /// Loads of so many lines, each once.
    fn loads(first: u64, lines: u64) -> Vec<Access> {
        (first..first + lines).map(|line| Access::load(START + line * 64)).collect()
    }

    fn time(cores: usize, source: &mut dyn Source) -> f64 {
        let config = config(cores, "all-slow");
        let report = setup::simulate(&config, source, &mut |_, _| ()).expect("it fits");
        report.time.as_f64()
    }

    #[test]
    fn cores_run_at_the_same_time_and_threads_of_one_core_take_turns() {
        let one = vec![loads(0, 20_000)];
        let four: Vec<_> = (0..4).map(|i| loads(i * 20_000, 20_000)).collect();
        let alone = time(1, &mut Cut::new(&one, &[4096]));
        let together = time(4, &mut Cut::new(&four, &[4096]));
        let in_turn = time(1, &mut Cut::new(&four, &[4096]));
        assert!((1.0..1.3).contains(&(together / alone)), "{together} ns, {alone} ns alone");
        assert!((3.9..4.1).contains(&(in_turn / alone)), "{in_turn} ns, {alone} ns alone");
    }

    /// A source of batches as they are.
    struct Batches(std::vec::IntoIter<Batch>);

    impl Source for Batches {
        fn describe(&self) -> String {
            "a test".into()
        }
        fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
            let next = self.0.next();
            Ok(next.map(|next| *batch = next).is_some())
        }
    }

    fn batches(of: &[(u32, u32, Vec<Access>)]) -> Batches {
        let batch = |(thread, barrier, accesses): &(u32, u32, Vec<Access>)| Batch {
            thread: *thread,
            barrier: *barrier,
            accesses: accesses.clone(),
            ..Batch::default()
        };
        Batches(of.iter().map(batch).collect::<Vec<_>>().into_iter())
    }

    /// A thread that begins late begins when the others have come there, not at the
    /// beginning of time.
    #[test]
    fn a_thread_that_sleeps_is_not_behind() {
        let half = |thread, first: u64| {
            (0..20).map(move |i| (thread, 0, loads(first + i * 1000, 1000))).collect::<Vec<_>>()
        };
        let alone = time(2, &mut batches(&half(0, 0)));
        let later = time(2, &mut batches(&[half(0, 0), half(1, 20_000)].concat()));
        assert!((1.7..2.01).contains(&(later / alone)), "{later} ns, {alone} ns for half");
    }

    /// Turns that are longer than what is read ahead: threads sleep and wake all the time. What they
    /// ask the memory for, they ask for now.
    #[test]
    fn a_memory_that_is_idle_answers_at_once_however_threads_sleep() {
        let mut source = Vec::new();
        for round in 0..4 {
            for thread in 0..4u32 {
                for piece in 0..3 {
                    let first = u64::from(thread) * 60_000 + round * 12_000 + piece * 4_000;
                    source.push((thread, 0, loads(first, 4_000)));
                }
            }
        }
        let mut config = config(4, "all-dram");
        config.fast = None;
        config.page_size = PageSize::Huge;
        let report =
            setup::simulate(&config, &mut batches(&source), &mut |_, _| ()).expect("it fits");
        assert_eq!(report.tiers[0].latency, Nanos(106));
    }

    /// The second line of such an access lies beyond all addresses.
    #[test]
    fn an_access_to_where_no_memory_can_be_ends() {
        let mut source = Vec::new();
        for thread in 0..2 {
            let last = Access::new(0xffff_ffff_ffff, 8, terrace_core::Access::Write);
            source.push((thread, 0, vec![Access::load(START), last, Access::load(START + 64)]));
        }
        assert!(time(2, &mut batches(&source)) > 0.0);
    }

    #[test]
    fn threads_at_a_barrier_wait_for_the_last_of_them() {
        let (long, short) = (loads(0, 20_000), loads(20_000, 20));
        let after = |thread| (thread, 2, loads(30_000 + u64::from(thread) * 20_000, 20_000));
        let once = time(2, &mut batches(&[(0, 0, long.clone()), (1, 0, short.clone())]));
        let source = [(0, 0, long), (1, 0, short), after(0), after(1)];
        let twice = time(2, &mut batches(&source));
        assert!((1.9..2.3).contains(&(twice / once)), "{twice} ns, {once} ns to the at_barrier");
        // A thread that waits for one that is over goes on in the end.
        assert!(time(2, &mut batches(&[after(0)])) > 0.0);
    }
}
