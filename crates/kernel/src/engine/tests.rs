//! A run that exists only here: pages that it has touched are in memory until somebody puts them
//! out, and its clock goes on by what is asked for.

use std::collections::BTreeMap;

use terrace_core::{Access, Action, Cycles, Frequency, Sample, SampleSource, TierId, Urgency};
use terrace_economics::walks::PLACES;
use terrace_economics::{Calibration, Mode, Verdict};
use terrace_policy::PolicyName;
use terrace_sampler::pagemap::is;
use terrace_sampler::{Health, Pages, ProcessRange, Sampler, SamplerError};

use super::brake::{Braked, Slowed};
use super::world::{Advice, DirectReclaim, Guarded, MajorFault, Run};
use super::*;
use crate::setup::SwapKind;

const PAGE: u64 = 4096;
const PROCESS: u32 = 7;
const START: u64 = 1 << 32;

/// What a page of the fake takes to be put out, and to come back ahead of a walk, as it does with zram.
const OUT: Nanos = Nanos::micros(8);
const BACK: Nanos = Nanos::micros(5);

/// A run without a kernel. It has a field for each thing that one of the tests asks for or looks at.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools)] // each is asked for by another test
struct Fake {
    now: Nanos,
    cpu: Nanos,
    /// Pages with content, in the order of their numbers: whether each is in memory, and when it
    /// was touched last.
    pages: BTreeMap<u64, (bool, u64)>,
    touched: u64,
    faults: Vec<MajorFault>,
    reclaims: bool,
    braked: bool,
    brakes: u32,
    slowed: Slowed,
    asked_ahead: Vec<(u64, u64)>,
    /// Pages that came back by that.
    brought: u64,
    broken: bool,
    /// Nothing can be put out.
    locked: bool,
    let_go: bool,
    /// Somebody else slows the run down.
    guard_brakes: bool,
    released: bool,
    /// The brake cannot be taken off.
    jammed: bool,
    /// A limit above the budget is in force.
    bound: bool,
    /// And nothing goes beyond it.
    hard: bool,
    /// The guard has raised it so often since it was asked.
    lifted: u64,
    /// It has seen so much above the budget since then.
    exceeded: Bytes,
    /// The run puts so much out itself between two looks.
    by_itself: Bytes,
    /// The sum, where the kernel counts that.
    counted: Option<Bytes>,
    /// What has left of what is swapped, where the kernel counts that.
    left: Option<Bytes>,
    /// The kernel finds what it is asked for, but nothing of what is swapped.
    finds_files: bool,
    /// What of swap is not free.
    swap_used: Bytes,
    /// Pages of a file, by their numbers: whether each is mapped, and whether it was read.
    mapped: BTreeMap<u64, (bool, bool)>,
}

impl Fake {
    /// Touches pages of a file. What was not read yet faults.
    fn touch_file(&mut self, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            let before = self.mapped.insert(page, (true, true));
            if before.is_none_or(|(_, read)| !read) {
                let fault = MajorFault { process: PROCESS, address: START + page * PAGE + 9 };
                self.faults.push(fault);
            }
        }
    }

    /// Flags of a page, as the page table has them; `None` of what is not in it.
    fn flags(&self, page: u64) -> Option<u64> {
        if self.mapped.get(&page).is_some_and(|(mapped, _)| *mapped) {
            return Some(is::PRESENT | is::FILE);
        }
        let (present, _) = self.pages.get(&page)?;
        Some(if *present { is::PRESENT } else { is::SWAPPED })
    }

    /// Touches pages by their numbers.
    fn touch(&mut self, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            self.touched += 1;
            let known = self.pages.insert(page, (true, self.touched));
            if known.is_some_and(|(present, _)| !present) {
                let fault = MajorFault { process: PROCESS, address: START + page * PAGE + 9 };
                self.faults.push(fault);
            }
        }
    }

    fn present(&self, page: u64) -> bool {
        self.pages.get(&page).is_some_and(|(present, _)| *present)
    }

    fn put_out(&mut self, page: u64) {
        if let Some((present, _)) = self.pages.get_mut(&page).filter(|(present, _)| *present) {
            *present = false;
            self.now += OUT;
            self.cpu += OUT;
        }
    }
}

impl World for Fake {
    fn now(&mut self) -> Nanos {
        self.now
    }
    fn cpu(&mut self) -> Nanos {
        // Whatever is done between two looks takes some.
        self.cpu += Nanos(10);
        self.cpu
    }
    fn processes(&mut self) -> Vec<u32> {
        vec![PROCESS]
    }
    fn resident(&mut self, _: &[u32]) -> Bytes {
        Bytes(self.pages.values().filter(|(present, _)| *present).count() as u64 * PAGE)
    }
    fn mappings(&mut self, _: u32) -> io::Result<Vec<(u64, u64)>> {
        let last = self.pages.keys().last().copied().unwrap_or(0);
        Ok(vec![(START, START + (last + 1).max(64) * PAGE)])
    }
    fn content(
        &mut self,
        _: u32,
        start: u64,
        end: u64,
        each: &mut dyn FnMut(Run),
    ) -> io::Result<()> {
        let range = (start - START) / PAGE..(end - START) / PAGE;
        for page in range {
            if let Some(flags) = self.flags(page) {
                each(Run { start: START + page * PAGE, end: START + (page + 1) * PAGE, flags });
            }
        }
        Ok(())
    }
    fn advise(&mut self, _: u32, advice: Advice, ranges: &[(u64, u64)]) -> io::Result<()> {
        if self.broken {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        for &(start, length) in ranges {
            let first = (start - START) / PAGE;
            if advice == Advice::WillNeed {
                self.asked_ahead.push((first, length / PAGE));
            }
            for page in first..first + length / PAGE {
                match advice {
                    Advice::PageOut => self.put_out(page),
                    Advice::WillNeed if !self.pages.contains_key(&page) => {
                        let known = self.mapped.entry(page).or_default();
                        if !std::mem::replace(&mut known.1, true) {
                            self.brought += 1;
                            self.now += BACK;
                            self.cpu += BACK;
                        }
                    }
                    Advice::WillNeed => {
                        let known = self.pages.get_mut(&page);
                        if let Some((present, _)) = known.filter(|(present, _)| !*present) {
                            *present = true;
                            self.brought += 1;
                            self.now += BACK;
                            self.cpu += BACK;
                        }
                    }
                    Advice::Cold => {}
                }
            }
        }
        Ok(())
    }
    fn can_reclaim(&self) -> bool {
        self.reclaims
    }
    fn is_bound(&self) -> bool {
        self.bound
    }
    fn has_hard_limit(&self) -> bool {
        self.hard
    }
    fn take_guarded(&mut self) -> Guarded {
        let (lifted, exceeded) =
            (std::mem::take(&mut self.lifted), std::mem::take(&mut self.exceeded));
        Guarded { exceeded, lifted, ..Guarded::default() }
    }
    fn take_helped(&mut self) -> Nanos {
        Nanos::ZERO
    }
    fn reclaim(&mut self, bytes: Bytes) -> io::Result<bool> {
        if self.finds_files {
            return Ok(true);
        }
        if self.locked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut present: Vec<(u64, u64)> =
            self.pages.iter().filter(|(_, p)| p.0).map(|(page, p)| (p.1, *page)).collect();
        present.sort_unstable();
        let wanted = bytes.get().div_ceil(PAGE) as usize;
        for (_, page) in present.iter().take(wanted) {
            self.put_out(*page);
        }
        if present.len() < wanted { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(true) }
    }
    fn brake(&mut self, on: bool) -> io::Result<bool> {
        if self.jammed && !on {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.brakes += u32::from(on && !self.braked);
        self.braked = on;
        self.slowed.set(on || self.guard_brakes, self.now);
        Ok(true)
    }
    fn take_braked(&mut self) -> Braked {
        self.slowed.take(self.now)
    }
    fn let_go(&mut self, go: bool) -> io::Result<()> {
        self.let_go = go;
        Ok(())
    }
    fn release(&mut self) -> io::Result<()> {
        self.released = true;
        Ok(())
    }
    fn swap(&mut self) -> (Bytes, Bytes) {
        (Bytes::gib(1), Bytes::gib(1) - self.swap_used)
    }
    fn left(&mut self) -> Option<Bytes> {
        self.left
    }
    fn reclaimed_by_itself(&mut self) -> Option<Bytes> {
        self.counted
    }
    fn direct_reclaims(&mut self, _: &[u32], each: &mut dyn FnMut(DirectReclaim)) {
        let bytes = self.by_itself;
        match &mut self.counted {
            Some(counted) => *counted += bytes,
            None => each(DirectReclaim { process: PROCESS, bytes }),
        }
    }
    fn faults(&mut self, _: &[u32], each: &mut dyn FnMut(MajorFault)) -> io::Result<()> {
        self.faults.drain(..).for_each(each);
        Ok(())
    }
}

/// 16 MiB, 4,096 pages.
const FAST: Bytes = Bytes::mib(16);

fn engine(policy: Option<PolicyName>, reclaims: bool) -> Engine<Fake> {
    engine_that_sees(policy, reclaims, Vec::new())
}

fn engine_that_sees(
    policy: Option<PolicyName>,
    reclaims: bool,
    samplers: Vec<Box<dyn Sampler>>,
) -> Engine<Fake> {
    let world = Fake { reclaims, ..Fake::default() };
    Engine::new(world, options(policy, samplers))
}

fn options(policy: Option<PolicyName>, samplers: Vec<Box<dyn Sampler>>) -> Options {
    let economist = || Economist::new(Mode::Enforce, terrace_live::activate::calibrate());
    Options {
        fast: FAST,
        policy: policy.map(|name| Brain::new(name.build(), economist())),
        samplers,
        ahead: true,
        economist: None,
        min_region: Bytes::kib(64),
        observing_cap: 0.5,
        acting_cap: 1.0,
    }
}

/// Steps, as much later as each step asks for.
fn step(engine: &mut Engine<Fake>, times: u32) {
    for _ in 0..times {
        let wait = engine.step().expect("a step");
        engine.world().now += wait;
    }
}

/// The kernel chooses, or a policy does; with and without a group that can be asked.
#[test]
fn a_program_that_grows_beyond_its_budget_stays_within_five_percent() {
    for (policy, reclaims) in
        [(None, true), (Some(PolicyName::Refault), true), (Some(PolicyName::TwoQueue), false)]
    {
        let mut engine = engine(policy, reclaims);
        // 32 MiB, 64 KiB at a time: where it is slowed down it waits.
        for part in 0..512u64 {
            if !engine.world().braked {
                engine.world().touch(part * 16..(part + 1) * 16);
            }
            step(&mut engine, 1);
        }

        let stats = engine.stats().clone();
        let most = Bytes::from_f64(FAST.as_f64() * 1.05);
        assert!(stats.resident_peak <= most, "{policy:?}: {}", stats.resident_peak);
        assert!(stats.resident <= FAST, "{policy:?}: {}", stats.resident);
        assert_eq!(stats.put_out > 0, policy.is_some(), "{policy:?}: who chose");
        assert!(stats.own_cpu > Nanos::ZERO);
        let deciding = engine.brain().map(|brain| brain.economist().own_cost());
        assert!(deciding.is_none_or(|cost| !cost.is_zero()), "deciding itself is charged");
        assert_eq!(deciding.is_some(), policy.is_some());
        engine.finish().expect("the end");
        assert!(!engine.world().braked && engine.world().released);
    }
}

#[test]
fn as_long_as_everything_fits_nothing_is_done() {
    let mut engine = engine(Some(PolicyName::Refault), true);
    engine.world().touch(0..2048);
    step(&mut engine, 200);

    let stats = engine.stats();
    assert_eq!((stats.reclaimed, stats.put_out, stats.braked), (Bytes::ZERO, 0, 0));
    assert_eq!(engine.world().brakes, 0);
}

/// What `--min-region` says.
#[test]
fn a_policy_puts_nothing_out_of_mappings_that_are_too_small() {
    for (min_region, puts_out) in [(Bytes::mib(1), true), (Bytes::mib(33), false)] {
        let world = Fake { reclaims: true, ..Fake::default() };
        let options = Options { min_region, ..options(Some(PolicyName::Refault), Vec::new()) };
        let mut engine = Engine::new(world, options);
        // 32 MiB in one mapping.
        for part in 0..512u64 {
            if !engine.world().braked {
                engine.world().touch(part * 16..(part + 1) * 16);
            }
            step(&mut engine, 1);
        }
        assert_eq!(engine.stats().put_out > 0, puts_out, "{min_region}");
    }
}

/// A hot set that comes back again and again is not what a policy chooses.
#[test]
fn a_policy_is_told_of_what_comes_back_and_keeps_it() {
    let mut engine = engine(Some(PolicyName::Refault), false);
    let hot = 0..1024u64;
    let mut cold = (1024..16_384u64).cycle();
    for _ in 0..300 {
        let cold: Vec<u64> = cold.by_ref().take(64).collect();
        engine.world().touch(hot.clone().chain(cold));
        step(&mut engine, 2);
    }
    let away =
        |engine: &mut Engine<Fake>| hot.clone().filter(|p| !engine.world().present(*p)).count();
    let before = engine.stats().faults;
    let mut missing = 0;
    for _ in 0..50 {
        let cold: Vec<u64> = cold.by_ref().take(64).collect();
        engine.world().touch(cold);
        step(&mut engine, 2);
        missing += away(&mut engine);
        engine.world().touch(hot.clone());
    }
    step(&mut engine, 1);
    assert!(engine.stats().faults > before, "the cold ones come back");
    // A quarter of what fits is hot: first in, first out would miss all of it once a round
    // through memory, some 20 times here.
    assert!(missing < 50 * 1024 / 20, "{missing} were missing");
}

#[test]
fn pages_come_back_ahead_of_a_walk_as_far_as_there_is_room() {
    let mut engine = engine(None, true);
    engine.world().touch(0..4096);
    step(&mut engine, 50);
    engine.world().reclaim(Bytes::mib(12)).expect("as much is there");
    step(&mut engine, 1);

    engine.world().touch(0..6);
    step(&mut engine, 1);
    assert_eq!(engine.world().asked_ahead, [(6, 32)]);
    assert!(engine.world().present(37));
    assert_eq!(engine.stats().ahead, Bytes(32 * PAGE));

    // Without room nothing is brought back at the cost of what is there.
    engine.world().touch(0..4096);
    engine.world().asked_ahead.clear();
    let all: Vec<u64> = (4096..8192).collect();
    engine.world().touch(all);
    step(&mut engine, 1);
    assert_eq!(engine.world().asked_ahead, []);

    // Nor at `memory.high`, beyond which a run only becomes slower.
    engine.world().bound = true;
    engine.world().touch(8192..12_288);
    engine.world().touch(0..6);
    step(&mut engine, 1);
    assert_eq!(engine.world().asked_ahead, []);
}

/// In a small budget a chunk may be longer than what is free.
#[test]
fn of_a_chunk_that_does_not_fit_as_much_comes_back_as_does() {
    for (free, asked) in [(64, vec![(64, 64)]), (50, vec![(64, 50)]), (20, vec![])] {
        let mut engine = engine(None, true);
        engine.world().touch(0..8192);
        // And 64 pages that the program brings back.
        let out = Bytes((4096 + free + 64) * PAGE);
        engine.world().reclaim(out).expect("as much is there");
        engine.world().touch(0..64);
        step(&mut engine, 1);
        assert_eq!(engine.world().asked_ahead, asked, "{free} pages are free");
    }
}

/// A program at its limit never has room.
#[test]
fn at_a_limit_a_walk_goes_on_at_the_cost_of_what_is_oldest() {
    // Pages of several walks in swap, and the budget used up but for eight pages.
    let prepared = || {
        let mut engine = engine(None, true);
        engine.world().touch(0..8192);
        engine.world().reclaim(Bytes(4104 * PAGE)).expect("as much is there");
        engine.world().bound = true;
        engine.world().hard = true;
        engine
    };
    let ask = |engine: &mut Engine<Fake>, pages: &[u64]| {
        for &first in pages {
            engine.world().touch(first..first + 4);
        }
        step(engine, 1);
        std::mem::take(&mut engine.world().asked_ahead)
    };
    assert_eq!(ask(&mut prepared(), &[0]), [(4, 32)]);

    // A 64th in one step: 64 pages of 4,096.
    let mut several = prepared();
    several.world().reclaim(Bytes(8 * PAGE)).expect("as much is there");
    assert_eq!(ask(&mut several, &[0, 1000, 2000]), [(4, 32), (1004, 32)]);

    // A program at its limit lies between the budget and the limit, 512 KiB above it here; but not
    // beyond that, and not where the kernel found nothing to put out lately.
    assert_eq!(ask(&mut prepared(), &[0, 1000, 2000]), [(4, 32), (1004, 32)]);
    let many: Vec<u64> = (0..40).map(|walk| walk * 100).collect();
    assert_eq!(ask(&mut prepared(), &many), []);
    let mut raised = prepared();
    raised.world().lifted = 1;
    assert_eq!(ask(&mut raised, &[0]), []);
    raised.world().now += RAISED;
    raised.world().reclaim(Bytes(8 * PAGE)).expect("as much is there");
    assert_eq!(ask(&mut raised, &[1000]), [(1004, 32)]);
}

/// Meanwhile nobody looks at faults, and no room is made for a program that fills memory.
#[test]
fn a_step_goes_ahead_of_walks_for_a_turn_and_the_next_one_goes_on() {
    let mut engine = engine(None, true);
    engine.world().touch(0..8192);
    engine.world().reclaim(Bytes(8192 * PAGE)).expect("as much is there");
    step(&mut engine, 1);
    // Chunks of 64 pages each.
    let walks = 0..16u64;
    walks.clone().for_each(|walk| engine.world().touch(walk * 500..walk * 500 + 64));
    let begin = engine.world().now;
    let wait = engine.step().expect("a step");
    let took = engine.world().now - begin;
    assert!(took >= TURN && took < TURN + BACK * 64, "{took}");
    let first = engine.world().asked_ahead.len();
    assert!((1..16).contains(&first), "{first}");
    // Of the others nobody faults meanwhile.
    engine.world().now += wait;
    step(&mut engine, 1);
    let all: Vec<_> = walks.map(|walk| (walk * 500 + 64, 64)).collect();
    assert_eq!(engine.world().asked_ahead, all);
}

/// One whose pages lie in swap, with prices that do not depend on this machine. Its processors are busy.
fn engine_that_prices(mode: Option<Mode>, pages: u64) -> Engine<Fake> {
    let prices = || Calibration {
        clock: Frequency::ghz(2.0),
        cpus: 2,
        copy_bandwidth: BytesPerSecond(1e10),
        ..calibration(SwapKind::Zram)
    };
    let pages = (0..pages).map(|page| (page, (false, 0))).collect();
    let world = Fake { reclaims: true, pages, ..Fake::default() };
    let economist = mode.map(|mode| Economist::new(mode, prices()));
    let mut engine = Engine::new(world, Options { economist, ..options(None, Vec::new()) });
    engine.keep_decisions(true);
    engine
}

/// Of so many pages that were left out, so many were asked for: used, known.
fn evidence(decision: &Decision) -> Option<(u32, u32)> {
    match decision.action {
        Action::Prefetch { from: Some(TierId(1)), used, known, .. } => Some((used, known)),
        _ => None,
    }
}

/// The same of pages of files and memory that processes share.
fn evidence_of_mapped(decision: &Decision) -> Option<(u32, u32)> {
    match decision.action {
        Action::Prefetch { from: Some(TierId(3)), used, known, .. } => Some((used, known)),
        _ => None,
    }
}

/// The page table does not say where a file's pages lie; what became of those that were left out does.
#[test]
fn walks_through_files_have_a_price_of_their_own() {
    let mut engine = engine_that_prices(Some(Mode::Enforce), 1 << 13);
    let file = 1 << 20;
    // Four pages in a row, and then no more.
    let mut first = file;
    let begin = |engine: &mut Engine<Fake>, first: &mut u64| {
        engine.world().touch_file(*first..*first + 4);
        step(engine, 1);
        engine.world().now += Nanos::millis(300);
        *first += 128;
        std::mem::take(&mut engine.world().asked_ahead)
    };
    assert_eq!(begin(&mut engine, &mut first), [(file + 4, 32)], "nothing speaks against it");
    while engine.account(ActionClass::Prefetch).is_some_and(|account| account.vetoed == 0) {
        assert!(first < file + (1 << 13), "it goes on");
        begin(&mut engine, &mut first);
    }
    let ahead = engine.stats().ahead;
    assert_eq!(begin(&mut engine, &mut first), [], "the answer is obeyed");
    assert_eq!(engine.stats().ahead, ahead);
    assert!(engine.stats().ahead_refused >= Bytes(32 * PAGE), "{:?}", engine.stats());
    // It is about files, and the program's own pages come as before.
    engine.world().touch(0..4);
    step(&mut engine, 1);
    assert_eq!(std::mem::take(&mut engine.world().asked_ahead), [(4, 32)]);
    let decided: Vec<_> = engine.take_decided().into_iter().map(|(_, decision)| decision).collect();
    let refused = decided.iter().find(|decision| decision.verdict == Verdict::Vetoed);
    let refused = refused.expect("it was refused");
    assert!(evidence_of_mapped(refused).is_some_and(|(used, known)| used < known), "{refused}");
    assert!(decided.iter().any(|decision| evidence(decision).is_some()), "{decided:?}");
}

/// A page of a file that was left out may be mapped beside others, or read with them: only a fault on it
/// says that it would have been of use.
#[test]
fn a_page_of_a_file_was_asked_for_if_its_fault_was_told() {
    for (faults, there) in [(true, true), (false, true), (false, false)] {
        let mut engine = engine_that_prices(Some(Mode::Shadow), 0);
        for first in [0, 1000] {
            engine.world().touch_file(first..first + 4);
            step(&mut engine, 1);
        }
        // The 62nd page that would have come.
        assert_eq!(engine.world().asked_ahead, [(4, 32), (1004, 29), (1034, 2)]);
        engine.world().now += Nanos::SECOND;
        if faults {
            engine.world().touch_file(1033..1034);
        } else {
            engine.world().mapped.insert(1033, (there, there));
        }
        engine.world().touch_file(2000..2004);
        step(&mut engine, 1);
        let decided = engine.take_decided();
        let last = decided.last().and_then(|(_, decision)| evidence_of_mapped(decision));
        assert_eq!(last, Some((u32::from(faults), 1)), "{faults} {there}");
    }
}

/// Nobody wants what comes back ahead of them, and it takes the processor from the program.
#[test]
fn walks_that_waste_are_not_gone_ahead_of_until_they_are_better() {
    let mut engine = engine_that_prices(Some(Mode::Enforce), 1 << 16);
    let account = |engine: &Engine<Fake>| *engine.account(ActionClass::Prefetch).expect("priced");
    // Four pages in a row, as a walk begins, and then no more.
    let mut first = 0;
    let begin = |engine: &mut Engine<Fake>, first: &mut u64| {
        engine.world().touch(*first..*first + 4);
        step(engine, 1);
        *first += 128;
        std::mem::take(&mut engine.world().asked_ahead)
    };
    assert_eq!(begin(&mut engine, &mut first), [(4, 32)], "nothing speaks against it");
    assert_eq!((account(&engine).proposed, account(&engine).vetoed), (1, 0));
    while account(&engine).vetoed == 0 {
        assert!(first < 1 << 13, "it goes on: {:?}", account(&engine));
        engine.world().now += Nanos::millis(300);
        begin(&mut engine, &mut first);
    }
    let ahead = engine.stats().ahead;
    for _ in 0..3 {
        assert_eq!(begin(&mut engine, &mut first), [], "the answer is obeyed");
    }
    assert_eq!(engine.stats().ahead, ahead);
    assert!(engine.stats().ahead_refused >= Bytes(3 * 32 * PAGE), "{:?}", engine.stats());
    assert!(account(&engine).realised_benefit.is_zero(), "nothing of it was of use");

    // One that goes on: pages that were waited for are asked for.
    let mut asked = Vec::new();
    while asked.is_empty() {
        assert!(first < 1 << 15, "it is not gone ahead of: {:?}", account(&engine));
        engine.world().touch(first..first + 64);
        step(&mut engine, 1);
        first += 64;
        asked = std::mem::take(&mut engine.world().asked_ahead);
    }
    let decided: Vec<_> = engine.take_decided().into_iter().map(|(_, decision)| decision).collect();
    let passed = decided.iter().rfind(|decision| decision.passes).expect("it was let pass");
    assert!(evidence(passed).is_some_and(|(used, known)| used > 2 && used < known), "{passed}");
    assert!(decided.iter().any(|decision| decision.verdict == Verdict::Vetoed), "{decided:?}");
}

#[test]
fn going_ahead_of_walks_has_an_account_to_the_end_of_the_run() {
    let mut engine = engine_that_prices(Some(Mode::Enforce), 1 << 13);
    for part in 0..40 {
        engine.world().touch(part * 64..(part + 1) * 64);
        step(&mut engine, 1);
        // The program works on what it has, and more than one question is asked.
        engine.world().now += Nanos::millis(3);
    }
    engine.finish().expect("the end");
    let account = *engine.account(ActionClass::Prefetch).expect("priced");
    assert!(account.completed > 0 && account.vetoed == 0, "{account:?}");
    assert_eq!(account.completed + account.aborted, account.proposed, "the last one, too");
    // All that came took as long as the fake says; and each time that it is asked takes 10 ns.
    let clock = Frequency::ghz(2.0);
    let cost = clock.cycles(BACK) * engine.world().brought;
    let looks = clock.cycles(Nanos(10)) * engine.world().asked_ahead.len() as u64;
    let apart = account.realised_cost.get().abs_diff(cost.get());
    assert!(apart <= looks.get(), "{} of {cost}", account.realised_cost);
    assert!(account.predicted_cost > Cycles::ZERO, "{account:?}");
    assert!(account.realised_benefit > Cycles::ZERO, "{account:?}");
    assert!(account.held_out_ratio().is_some_and(|ratio| ratio > 1.0), "{account:?}");
    let last = engine.take_decided().last().and_then(|(_, decision)| evidence(decision));
    assert!(last.is_some_and(|(used, known)| known > 2 && used == known), "{last:?}");
}

/// What `--economist off` says: nothing is priced, and no page is left out to see what it is worth.
#[test]
fn without_an_economist_all_of_a_walk_comes_back() {
    for (mode, asked) in [
        (None, vec![(64, 64)]),
        // The 62nd page that would have come.
        (Some(Mode::Shadow), vec![(64, 61), (126, 2)]),
    ] {
        let mut engine = engine_that_prices(mode, 1 << 13);
        engine.world().touch(0..64);
        step(&mut engine, 1);
        assert_eq!(engine.world().asked_ahead, asked);
        assert!((64..125).chain(126..128).all(|page| engine.world().present(page)));
        assert_eq!(engine.world().present(125), mode.is_none());
        assert_eq!(engine.account(ActionClass::Prefetch).is_some(), mode.is_some());
        assert_eq!(engine.take_decided().is_empty(), mode.is_none());
    }
}

/// The kernel's buffer was full, or a thread could not be watched.
#[test]
fn a_page_that_is_there_in_time_was_asked_for_whether_its_fault_was_told_or_not() {
    for comes in [true, false] {
        let mut engine = engine_that_prices(Some(Mode::Shadow), 1 << 13);
        for first in [0, 1000] {
            engine.world().touch(first..first + 4);
            step(&mut engine, 1);
        }
        // The 62nd page that would have come.
        assert_eq!(engine.world().asked_ahead, [(4, 32), (1004, 29), (1034, 2)]);
        assert!(!engine.world().present(1033) && engine.world().present(1034));
        engine.world().pages.insert(1033, (comes, 0));
        engine.world().now += Nanos::SECOND;
        engine.world().touch(2000..2004);
        step(&mut engine, 1);
        let last = engine.take_decided().last().and_then(|(_, decision)| evidence(decision));
        assert_eq!(last, Some((u32::from(comes), 1)));
    }
}

/// What is asked for at once would else be all that is ever known.
#[test]
fn no_page_is_left_out_that_there_is_no_place_to_wait_for() {
    let mut engine = engine_that_prices(Some(Mode::Shadow), 1 << 13);
    let mut begun = 0;
    let mut begin = |engine: &mut Engine<Fake>| {
        engine.world().touch(begun * 128..begun * 128 + 4);
        begun += 1;
        step(engine, 1);
        let asked = std::mem::take(&mut engine.world().asked_ahead);
        asked.into_iter().map(|(_, pages)| pages).sum::<u64>()
    };
    // Of each second one a page is left out, and none of these is asked for.
    let asked: Vec<u64> = (0..50).map(|_| begin(&mut engine)).collect();
    assert_eq!(asked.iter().filter(|&&pages| pages == 31).count(), PLACES);
    assert_eq!(asked[2 * PLACES..], [32; 50 - 2 * PLACES]);
    engine.world().now += Nanos::SECOND;
    begin(&mut engine);
    let last = engine.take_decided().last().and_then(|(_, decision)| evidence(decision));
    assert_eq!(last, Some((0, PLACES as u32)), "each had its time");
}

/// A program may be faster than the engine looks.
#[test]
fn what_is_there_already_is_not_asked_for() {
    let mut engine = engine_that_prices(Some(Mode::Enforce), 1 << 13);
    // It has brought back what comes next, and nobody was told yet.
    let comes = |engine: &mut Engine<Fake>, pages: std::ops::Range<u64>| {
        engine.world().pages.extend(pages.map(|page| (page, (true, 0))));
    };
    comes(&mut engine, 4..40);
    engine.world().touch(0..4);
    step(&mut engine, 1);
    assert_eq!(engine.world().asked_ahead, [], "nothing is away");
    assert!(engine.take_decided().is_empty());
    comes(&mut engine, 41..50);
    engine.world().touch(40..41);
    step(&mut engine, 1);
    assert_eq!(engine.world().asked_ahead, [(41, 64)]);
    let decided = engine.take_decided();
    let (process, decision) = decided.first().expect("it was asked about");
    assert_eq!(*process, 0, "of whichever processes");
    // What was there does not count as asked for.
    assert!(
        matches!(decision.action, Action::Prefetch { pages: 55, window: 55, .. }),
        "{decision}"
    );
}

/// No program is slowed down for what the engine itself brings back.
#[test]
fn what_comes_back_ahead_of_walks_is_not_what_a_program_fills() {
    let mut engine = engine(None, true);
    engine.world().touch(0..8192);
    // 560 pages are free, and 512 are to be.
    engine.world().reclaim(Bytes((4096 + 560) * PAGE)).expect("as much is there");
    step(&mut engine, 1);
    for walk in 0..9u64 {
        engine.world().touch(walk * 100..walk * 100 + 4);
    }
    step(&mut engine, 1);
    assert_eq!(engine.world().brought, 9 * 32);
    // Less than half of these are free now, and a program that fills memory would be slowed down.
    step(&mut engine, 1);
    assert_eq!(engine.world().brakes, 0);
    // As this one is.
    let free = FAST - engine.world().resident(&[]);
    engine.world().touch(10_000..10_000 + free.get() / PAGE - 200);
    step(&mut engine, 1);
    assert_eq!(engine.world().brakes, 1);
}

/// Looking takes the processor from the program.
#[test]
fn the_engine_looks_often_only_while_it_goes_ahead_of_walks() {
    // With room, and without; there is none at `memory.high`.
    for (pages, goes_ahead) in [(2048, true), (8192, false)] {
        let mut engine = engine(None, true);
        engine.world().bound = true;
        engine.world().touch(0..pages);
        engine.world().reclaim(Bytes(1024 * PAGE)).expect("as much is there");
        engine.world().touch(0..4);
        let wait = engine.step().expect("a step");
        assert_eq!(!engine.world().asked_ahead.is_empty(), goes_ahead, "{pages}");
        assert_eq!(wait == SLEEP.0, goes_ahead, "{pages}: {wait}");
    }
}

/// The user bounds what compressed pages take.
#[test]
fn what_zram_writes_to_its_file_is_priced_and_not_refused() {
    let mut engine = engine_that_prices(Some(Mode::Enforce), 0);
    let written = Written {
        pages: 100,
        bytes: Bytes::kib(100),
        took: Nanos::micros(300),
        limit: Bytes::mib(24),
        held: Bytes::mib(25),
        returned: 3,
        there: 90,
        window: Nanos::seconds(30),
    };
    engine.wrote_back(&written);
    let account = *engine.account(ActionClass::Reclaim).expect("priced");
    assert_eq!((account.proposed, account.forced, account.completed), (1, 1, 1));
    assert_eq!(account.realised_cost, Cycles(600_000));
    // Three pages came back, at 265 µs each.
    let harm = |engine: &Engine<Fake>| {
        engine.account(ActionClass::Reclaim).map(|account| account.realised_harm)
    };
    assert_eq!(harm(&engine), Some(Cycles(1_590_000)));
    engine.wrote_back(&Written { returned: 4, ..written });
    assert_eq!(harm(&engine), Some(Cycles(2_120_000)), "each once");
    let decided = engine.take_decided();
    let (_, decision) = decided.first().expect("just decided");
    let (from, to) = (TierId(1), TierId(2));
    let wanted = Action::Reclaim { from, to, pages: 100, bytes: Bytes::kib(100) };
    assert_eq!((decision.action, decision.urgency), (wanted, Urgency::Forced));
    assert!(decision.cost.expected > 0.0 && decision.benefit.expected > 0.0, "{decision}");
    assert_eq!(decision.heat.samples, 3);
}

/// Pages of which this is known: a thousand are due, and each page that lies there comes back once in so
/// many seconds.
fn idle(every: u64, has_file: bool, free: Bytes) -> Idle {
    Idle {
        pages: 1000,
        each: Bytes(1600),
        saves: [560_000, 600_000, 640_000].map(Bytes),
        room: (Bytes::mib(24), free),
        has_file,
        returned: 30_000 / every,
        there: 1000,
        window: Nanos::seconds(30),
    }
}

/// It takes the processor from the program, and pays where the room keeps others near.
#[test]
fn idle_pages_are_compressed_again_where_the_room_is_worth_it() {
    for (every, has_file, free, pays) in [
        // A page that comes back from a file costs a read; from memory a fault, and its unpacking.
        (2, true, Bytes::ZERO, true),
        (2, false, Bytes::ZERO, false),
        (2, true, Bytes::mib(12), false),
        // Nothing comes back.
        (30_001, true, Bytes::ZERO, false),
    ] {
        for mode in [Mode::Enforce, Mode::Advise] {
            let mut engine = engine_that_prices(Some(mode), 0);
            let may = engine.may_recompress(&idle(every, has_file, free));
            assert_eq!(may, pays || mode == Mode::Advise, "{every} {has_file} {free} {mode:?}");
            let account = *engine.account(ActionClass::Recompress).expect("priced");
            let (vetoed, would_veto) = (account.vetoed, account.would_veto);
            let refused = u64::from(!pays);
            let expected = if mode == Mode::Enforce { (refused, 0) } else { (0, refused) };
            assert_eq!((account.proposed, (vetoed, would_veto)), (1, expected));
            let decided = engine.take_decided();
            let (_, decision) = decided.first().expect("just decided");
            assert_eq!(decision.urgency, Urgency::Voluntary);
            assert!(decision.cost.expected > 0.0, "{decision}");
        }
    }
    let mut off = engine_that_prices(None, 0);
    assert!(off.may_recompress(&idle(2, false, Bytes::ZERO)), "nobody prices it");
    assert!(off.account(ActionClass::Recompress).is_none());
}

#[test]
fn what_compressing_again_took_is_in_its_account() {
    let mut engine = engine_that_prices(Some(Mode::Enforce), 0);
    let asked = idle(2, true, Bytes::ZERO);
    let done = Repacked { pages: 2000, freed: Bytes::kib(600), took: Nanos::millis(60) };
    engine.recompressed(&done);
    let account = |engine: &Engine<Fake>| *engine.account(ActionClass::Recompress).expect("priced");
    assert_eq!(account(&engine).completed, 0, "nobody has let it pass");
    // An answer that came too late is none.
    assert!(engine.may_recompress(&asked) && engine.may_recompress(&asked));
    assert_eq!(account(&engine).aborted, 1);
    engine.recompressed(&done);
    let account = account(&engine);
    assert_eq!((account.completed, account.realised_cost), (1, Cycles(120_000_000)));
    // Twice as many pages as were asked about, at 30 µs each.
    let apart = account.predicted_cost.get().abs_diff(120_000_000);
    assert!(apart < 1_000_000, "{account:?}");
    assert!(account.realised_benefit.is_zero(), "freed memory is no benefit of an account");
}

/// Twice as much as it may have is used all the time.
#[test]
fn a_run_thrashes_when_what_leaves_comes_back_at_once() {
    // Seven times all of it, or not even once what has been in swap for long.
    for (pages, thrashes) in [(8192, true), (65_536, false)] {
        let mut engine = engine(None, true);
        engine.world().pages = (0..pages).map(|page| (page, (false, 0))).collect();
        for part in 0..120 {
            // No walk, which would be gone ahead of.
            engine.world().touch((part * 512..(part + 1) * 512).map(|n| n * 40_503 % pages));
            step(&mut engine, 1);
        }
        let stats = engine.stats();
        assert!(stats.faults > 50_000, "{stats:?}");
        assert_eq!(stats.thrashing >= Nanos::millis(250), thrashes, "{stats:?}");
        assert_eq!(stats.thrashing.is_zero(), !thrashes, "{stats:?}");
    }
}

/// What cannot be done any more is an error once, and no program stays slowed down for it.
#[test]
fn an_engine_that_fails_lets_the_program_go() {
    let mut engine = engine(Some(PolicyName::Refault), false);
    engine.world().touch(0..2000);
    step(&mut engine, 50);
    engine.world().broken = true;
    engine.world().touch(2000..6000);
    let mut failed = false;
    for _ in 0..50 {
        failed |= engine.step().is_err();
        engine.world().now += Nanos::millis(1);
    }
    assert!(failed);
    assert!(engine.world().brakes > 0, "it was above its budget");
    engine.finish().expect("the end");
    assert!(!engine.world().braked);
}

/// Locked memory, or full swap: the program is not slowed down for ever, and nobody works in vain.
#[test]
fn a_budget_that_cannot_be_kept_is_given_up_until_memory_leaves_again() {
    let mut engine = engine(None, true);
    engine.world().touch(0..6000);
    engine.world().locked = true;
    step(&mut engine, 10);
    assert!(engine.world().braked && !engine.take_given_up());
    while engine.world().now < Nanos::seconds(2) {
        step(&mut engine, 1);
    }
    assert!(!engine.world().braked && engine.world().let_go);
    assert!(engine.take_given_up() && engine.has_given_up());
    step(&mut engine, 20);
    assert_eq!(engine.step().expect("a step"), Nanos::seconds(1));
    assert!(!engine.take_given_up() && engine.has_given_up(), "told once");

    engine.world().locked = false;
    step(&mut engine, 50);
    assert!(engine.stats().resident <= FAST, "{}", engine.stats().resident);
    assert!(!engine.world().let_go && !engine.world().braked && !engine.has_given_up());
}

/// At a limit, of either version of control groups, a program stays above the budget while it puts as
/// much out as it brings in. Where the kernel counts that, and where it only tells of it.
#[test]
fn a_budget_is_not_given_up_while_the_program_itself_puts_memory_out_at_its_limit() {
    for counted in [None, Some(Bytes::ZERO)] {
        let mut engine = engine(None, true);
        engine.world().counted = counted;
        engine.world().bound = true;
        engine.world().by_itself = Bytes::kib(64);
        engine.world().touch(0..4200);
        engine.world().locked = true;
        while engine.world().now < Nanos::seconds(3) {
            step(&mut engine, 1);
        }
        assert!(!engine.world().let_go && !engine.take_given_up(), "{counted:?}");

        engine.world().by_itself = Bytes::ZERO;
        while engine.world().now < Nanos::seconds(5) {
            step(&mut engine, 1);
        }
        assert!(engine.world().let_go && engine.take_given_up(), "{counted:?}");
    }
}

/// Locked memory, and a program that reads files: what it puts out then is theirs.
#[test]
fn files_pages_that_leave_do_not_keep_a_budget_that_cannot_be_kept() {
    let mut engine = engine(None, true);
    engine.world().bound = true;
    engine.world().by_itself = Bytes::kib(64);
    engine.world().counted = Some(Bytes::ZERO);
    engine.world().left = Some(Bytes::mib(1));
    engine.world().touch(0..4400);
    engine.world().locked = true;
    // As long as any page of it leaves and another one comes back the budget is kept.
    while engine.world().now < Nanos::seconds(3) {
        engine.step().expect("a step");
        engine.world().now += Nanos::millis(50);
        let left = engine.world().left.expect("it is counted") + Bytes(PAGE);
        engine.world().left = Some(left);
    }
    assert!(!engine.world().let_go && !engine.take_given_up());
    // What the program gives back in swap was no page that came back.
    engine.world().left = Some(Bytes::ZERO);
    while engine.world().now < Nanos::seconds(5) {
        engine.step().expect("a step");
        engine.world().now += Nanos::millis(50);
    }
    assert!(engine.world().let_go && engine.take_given_up());
    // Not for a page every now and then.
    engine.world().bound = false;
    engine.world().left = Some(Bytes(PAGE));
    step(&mut engine, 1);
    assert!(engine.world().let_go);
    engine.world().left = Some(FAST / 64);
    step(&mut engine, 1);
    assert!(!engine.world().let_go);
}

/// A kernel that cannot be told to leave files' pages alone finds those.
#[test]
fn what_the_kernel_finds_among_files_keeps_a_budget_for_a_while_only() {
    for (left, pages, gives_up) in [
        (Some(Bytes::mib(1)), 4400, true),
        // It is not slowed down.
        (Some(Bytes::mib(1)), 4200, false),
        // Nobody knows what it was.
        (None, 4400, false),
    ] {
        let mut engine = engine(None, true);
        engine.world().bound = true;
        engine.world().left = left;
        engine.world().touch(0..pages);
        engine.world().finds_files = true;
        let until = |engine: &mut Engine<Fake>, end: Nanos| {
            while engine.world().now < end {
                engine.step().expect("a step");
                engine.world().now += Nanos::millis(100);
            }
        };
        until(&mut engine, Nanos::seconds(9));
        assert!(!engine.world().let_go && !engine.take_given_up(), "{left:?} {pages}");
        until(&mut engine, Nanos::seconds(13));
        assert_eq!(engine.world().let_go, gives_up, "{left:?} {pages}");
        assert_eq!(engine.take_given_up(), gives_up, "{left:?} {pages}");
    }
}

/// The budget of a program that fits does not depend on it.
#[test]
fn swap_that_comes_to_its_end_is_told_while_it_is_needed() {
    let mut engine = engine(None, true);
    let look = |engine: &mut Engine<Fake>| {
        engine.world().now += REFRESH;
        step(engine, 1);
        engine.short_of_swap()
    };
    assert_eq!(engine.short_of_swap(), None, "nobody has looked");
    engine.world().touch(0..2000);
    engine.world().swap_used = Bytes::gib(1) - Bytes::mib(5);
    assert_eq!(look(&mut engine), None, "it is not needed");
    engine.world().touch(2000..4000);
    assert_eq!(look(&mut engine), Some(Bytes::mib(5)));
    engine.world().swap_used = Bytes::mib(500);
    assert_eq!(look(&mut engine), None, "there is enough again");
}

/// What the report calls `slowed down` is time that the program lost.
#[test]
fn time_in_which_the_engine_and_the_guard_brake_is_told_once() {
    let mut engine = engine(None, true);
    engine.world().touch(0..6000);
    engine.world().locked = true;
    step(&mut engine, 1);
    assert!(engine.world().braked, "the engine brakes");
    let begin = engine.world().now;
    engine.world().guard_brakes = true;
    engine.world().slowed.set(true, begin);
    step(&mut engine, 20);
    let elapsed = engine.world().now;
    engine.world().guard_brakes = false;
    engine.finish().expect("the end");
    let stats = engine.stats();
    assert_eq!(stats.braked, 1);
    assert!(stats.braked_time > Nanos::ZERO && stats.braked_time <= elapsed, "{stats:?} {elapsed}");
}

/// The guard tells of it together with the first look at which the lower budget is kept.
#[test]
fn what_a_run_had_when_its_budget_was_lowered_is_not_above_it() {
    let mut engine = engine(None, true);
    engine.world().touch(0..3000);
    step(&mut engine, 1);
    assert!(engine.stats().settled);
    engine.world().exceeded = Bytes::mib(5);
    engine.set_fast(FAST / 2).expect("nothing was let go");
    // That was above the larger budget.
    assert_eq!(engine.stats().exceeded, Bytes::mib(5));
    assert_eq!(engine.stats().resident_peak, FAST + Bytes::mib(5));
    assert!(!engine.stats().settled);
    (0..2000).for_each(|page| engine.world().put_out(page));
    engine.world().exceeded = Bytes::mib(7);
    step(&mut engine, 1);
    assert!(engine.stats().settled);
    assert_eq!(engine.stats().exceeded, Bytes::mib(5), "it came from above");
    engine.world().exceeded = Bytes::mib(6);
    step(&mut engine, 1);
    assert_eq!(engine.stats().exceeded, Bytes::mib(6));
}

#[test]
fn a_brake_that_could_not_be_taken_off_is_taken_off_the_next_time() {
    let mut engine = engine(None, true);
    engine.world().touch(0..6000);
    engine.world().locked = true;
    step(&mut engine, 1);
    engine.world().jammed = true;
    assert!(engine.world().braked && engine.finish().is_err());

    engine.world().jammed = false;
    engine.finish().expect("the end");
    assert!(!engine.world().braked);
}

/// Sees the accesses that a test says there are: whole ranges of addresses, each time it is asked.
struct Eyes {
    hot: std::ops::Range<u64>,
    health: Health,
}

impl Sampler for Eyes {
    fn name(&self) -> &'static str {
        "eyes"
    }
    fn period(&self) -> u64 {
        1
    }
    fn collect(
        &mut self,
        _: Nanos,
        pages: &dyn Pages,
        out: &mut Vec<Sample>,
    ) -> Result<(), SamplerError> {
        let (start, end) = (self.hot.start, self.hot.end);
        let range = ProcessRange { process: PROCESS, start, end };
        pages.pages_in(range, &mut |page, _| {
            let (access, source) = (Access::Read, SampleSource::Pmu);
            out.push(Sample { page, access, source, weight: 1 });
        });
        self.health.delivered += out.len() as u64;
        Ok(())
    }
    fn set_rarity(&mut self, _: u32) {}
    fn health(&self) -> Health {
        self.health
    }
}

/// 8 MiB in use, of which nothing ever came back, beside 3 that are not: a policy that learns by what
/// comes back would have to try them all.
#[test]
fn parts_that_nobody_is_seen_to_use_leave_first_and_as_a_whole() {
    let hot = 0..2048u64;
    let address = |page: u64| START + page * PAGE;
    let eyes = Eyes { hot: address(hot.start)..address(hot.end), health: Health::default() };
    let mut engine = engine_that_sees(Some(PolicyName::Refault), false, vec![Box::new(eyes)]);
    engine.world().touch(0..2900);
    // What is new counts as used for some seconds.
    while engine.world().now < Nanos::seconds(10) {
        step(&mut engine, 1);
    }
    for part in 0..16u64 {
        engine.world().touch(4096 + part * 64..4096 + (part + 1) * 64);
        step(&mut engine, 2);
    }
    let stats = engine.stats().clone();
    assert!(stats.cold_parts >= 2, "{stats:?}");
    assert!(stats.samples > 2048, "{stats:?}");
    let gone = hot.filter(|page| !engine.world().present(*page)).count();
    assert_eq!(gone, 0, "what is in use stays: {stats:?}");
}

/// One that sees nothing at all makes nothing cold.
#[test]
fn without_samples_nothing_is_taken_for_cold() {
    let eyes = Eyes { hot: 0..0, health: Health::default() };
    let mut engine = engine_that_sees(Some(PolicyName::Refault), false, vec![Box::new(eyes)]);
    engine.world().touch(0..3800);
    while engine.world().now < Nanos::seconds(10) {
        step(&mut engine, 1);
    }
    engine.world().touch(4096..6000);
    step(&mut engine, 20);
    assert_eq!(engine.stats().cold_parts, 0);
    assert!(engine.stats().put_out > 0);
}
