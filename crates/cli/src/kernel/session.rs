//! Programs that are kept within their budget, and shown meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace_core::{ActionClass, Bytes, Frequency, Nanos, PageSize};
use terrace_economics::{Economist, Mode};
use terrace_kernel::division;
use terrace_kernel::engine::linux::{LinuxWorld, Whose};
use terrace_kernel::engine::stats::Stats;
use terrace_kernel::engine::{Engine, Options, calibration};
use terrace_kernel::files::Root;
use terrace_kernel::left::Left;
use terrace_kernel::setup::group::Group;
use terrace_kernel::setup::{SwapUse, zram};
use terrace_kernel::store::{Keeper, Tending, backed};
use terrace_kernel::support::may_advise;
use terrace_live::broker::control;
use terrace_live::doctor::facts::Facts;
use terrace_live::sys::thread_cpu;
use terrace_policy::Brain;
use terrace_policy::packed::Packer;
use terrace_report::attach::Head;
use terrace_report::kernel::KernelReport;
use terrace_report::run::AccountReport;
use terrace_report::{AttachReport, End, RunLevel};
use terrace_sampler::Choice;

use super::chooser::{Chooser, Seeing};
use super::given_up::GivenUp;
use super::made::Made;
use super::member::Member;
use super::outside::OutsideWatch;
use super::render;
use super::stored::{Parts, Stored};
use super::total::{self, Store, Total};
use crate::advice::Signs;
use crate::args::mode_name;
use crate::attach::recorder::{self, Recorder};
use crate::attach::session::names;
use crate::attach::showing::Showing;
use crate::calibrate::Source;
use crate::failure::Failure;
use crate::observing::Observing;
use crate::output::{self, Files, Output, count, facts};
use crate::procs;
use crate::records::{Header, LiveFacts, MachineFacts, World};
use crate::run::absolute;
use crate::run::child::Watch;
use crate::run::render::advice;
use crate::run::warning::Warnings;
use crate::runs::{KernelRun, Manifest};

/// How often names of processes are looked for.
const NAMES: Nanos = Nanos::millis(500);
/// Processes whose names are kept: a run may have thousands.
const NAMED: usize = 1024;
/// How often what lies in swap is looked at, where only that tells what has left.
const LEFT: Duration = Duration::from_millis(500);
/// With `--total`, how often it is looked at what the store takes.
const SHARE: Duration = Duration::from_millis(2);

/// What is to be kept within a budget.
pub(crate) struct How {
    /// The command that it is of.
    pub(crate) verb: &'static str,
    /// The program with its arguments, or the control group.
    pub(crate) program: Vec<String>,
    /// The budget.
    pub(crate) fast: Bytes,
    /// Whether that is for what the compressed pages take, too.
    pub(crate) holds_store: bool,
    /// How the budget is divided, if files' pages are in it.
    pub(crate) division: Option<division::Keeper>,
    /// Whose memory it is.
    pub(crate) whose: Whose,
    /// What chooses what leaves; `None` for the kernel's own lists.
    pub(crate) chooser: Option<Chooser>,
    /// What observes accesses for it.
    pub(crate) seeing: Seeing,
    /// What the economist does with its opinion.
    pub(crate) economist: Mode,
    /// Smaller mappings are left to the kernel's choice.
    pub(crate) min_region: Bytes,
    /// The most of one processor that observing may use.
    pub(crate) observing_cap: f64,
    /// How much memory compressed pages may take before idle ones are written to a file, if there
    /// is one.
    pub(crate) store_limit: Option<Bytes>,
    /// The run's part in a budget that others share, which is its budget then.
    pub(crate) member: Option<Member>,
    /// What is known to be missing.
    pub(crate) lacks: Vec<String>,
    /// Whether reports are documents.
    pub(crate) json: bool,
    /// Whether warnings are kept back.
    pub(crate) quiet: bool,
}

/// What is written, and how it is shown.
pub(crate) struct Shown {
    /// Where decisions are written down.
    pub(crate) record: Option<Output>,
    /// How it is shown.
    pub(crate) observing: Observing,
    /// What is read and written.
    pub(crate) files: Files,
}

/// Programs that are kept within their budget. More than twenty fields: what bounds them, what is seen of them
/// and what is shown goes on side by side, and one step drives all of it.
pub(crate) struct Session {
    engine: Engine<LinuxWorld>,
    how: Told,
    started: Instant,
    showing: Showing,
    recorder: Option<Recorder>,
    /// What the policy was told and is not written down yet.
    events: Option<Arc<Mutex<Vec<u8>>>>,
    /// The budget as it was asked for last.
    budget: Arc<AtomicU64>,
    budget_seen: Bytes,
    /// Since when that is kept.
    kept_since: Option<Nanos>,
    /// When the store's part of `--total` is looked at next.
    share_due: Instant,
    /// The figures of a budget that covers the store, too; `None` of another one.
    total: Option<Total>,
    /// Counts the pages that left, and when that is looked at next where it has to be.
    left: Left,
    left_due: Instant,
    names: BTreeMap<u32, String>,
    named: Option<Instant>,
    lacks: Vec<String>,
    /// Whether the budget was ever given up, as nothing left.
    given_up: bool,
    at_begin: Option<Bytes>,
    /// Divides the budget, if files' pages are in it.
    division: Option<division::Keeper>,
    /// Looks after idle compressed pages, where the run's device can do something for them.
    keeper: Option<Keeper>,
    /// Tells a broker what the run has, and is told what it may have.
    member: Option<Member>,
    /// Looks for processes that leave the run's control group; `None` where it has none of its own.
    outside: Option<OutsideWatch>,
    /// What its compressed pages take.
    stored: Stored,
    /// What is warned of while it goes on; `None` where nobody is to be told.
    warnings: Option<Warnings>,
    /// After an error the programs go on alone.
    failed: Option<Failure>,
    /// Undone after everything else.
    made: Made,
}

/// What stays of [`How`].
struct Told {
    observing: Choice,
    program: Vec<String>,
    economist: Mode,
    /// Where the prices come from, if a policy chooses by any.
    costs: Option<Source>,
    observing_cap: f64,
    json: bool,
    quiet: bool,
}

/// The report with what only the command knows.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    report: &'a KernelReport,
    /// Where the economist's prices come from, if a policy chooses by any.
    #[serde(skip_serializing_if = "Option::is_none")]
    costs: Option<&'a Source>,
    /// Lines of the command's own that stderr did not take.
    #[serde(skip_serializing_if = "Option::is_none")]
    lines_lost: Option<u64>,
}

impl Session {
    /// Opens everything. Nothing is put out yet.
    pub(crate) fn new(how: How, shown: Shown, made: Made) -> Result<Self, Failure> {
        let How { chooser, seeing, mut lacks, fast, economist, quiet, .. } = how;
        let (brain, costs) = chooser.map(|it| (it.brain, it.costs)).unzip();
        let Seeing { choice, samplers } = seeing;
        let Shown { record, observing, mut files } = shown;
        lacks.extend(made.swap().scarce.as_ref().map(|scarce| {
            format!(
                "{scarce}: if a program has more than that beyond its budget, the budget cannot be kept"
            )
        }));
        if made.group().is_some_and(|group| !group.can_brake()) {
            lacks.push(
                "nothing slows the program down above its budget: no `cpu` controller".into(),
            );
        }
        let outside = match &how.whose {
            Whose::Run(group) => Some(OutsideWatch::new(group.clone(), how.division.is_some())),
            Whose::Group(_) | Whose::Processes(_) | Whose::Started => None,
        };
        let (mut world, sees) = LinuxWorld::new(how.whose);
        if let Some(keeper) = &how.division {
            world.divide(keeper.division());
        }
        if let Err(error) = world.hold(fast, brain.is_some()) {
            lacks.push(not_held(&error));
        }
        if !may_advise() {
            lacks.push("walks are not gone ahead of: CAP_SYS_NICE is needed for that".into());
        }
        let counts = made.group().is_some_and(|group| group.reclaimed_by_itself().is_some());
        if let Some(error) = world.lacks_direct().filter(|_| !counts) {
            lacks.push(format!("what the program has to put out itself is not counted: {error}"));
        }
        if let Err(error) = sees {
            lacks.push(format!(
                "what comes back is not seen (perf_event_open: {error}): walks are not gone ahead \
                 of, and faults are not counted"
            ));
        }
        let policy = brain.as_ref().map_or("kernel", Brain::name);
        // Of what the engine does by itself.
        let own = (economist != Mode::Off)
            .then(|| Economist::new(economist, calibration(made.swap().kind)));
        let header = record.is_some().then(|| {
            let clock = own.as_ref().map(|own| own.calibration().clock);
            header(&how.program, economist, fast, brain.as_ref(), clock)
        });
        let mut recorder =
            record.zip(header.as_ref()).map(|(out, header)| Recorder::create(out, header));
        let recording = recorder.as_mut().and_then(Recorder::path).map(absolute);
        let mut manifest = Manifest::new(
            how.program.clone(),
            policy,
            mode_name(economist),
            fast,
            Nanos::ZERO,
            tiers(),
            recording,
        );
        (manifest.in_place, manifest.holds_store) = (true, how.holds_store);
        manifest.kernel = Some(KernelRun {
            group: made.group().cloned(),
            swap: made.swap().clone(),
            with_files: how.division.is_some(),
        });
        let showing = Showing::new(how.verb, &manifest, &observing, &mut files, quiet)?;
        let budget = Arc::new(AtomicU64::new(fast.get()));
        // What a broker divides is changed there.
        if let Some(directory) = showing.directory().filter(|_| how.member.is_none()) {
            let budget = Arc::clone(&budget);
            control::listen_for(directory, move |fast| Bytes(budget.swap(fast.get(), AcqRel)))
                .map_err(|e| Failure::failed(format!("the budget cannot be changed: {e}")))?;
        }
        let left = Left::begin(Root::machine(), made.swap(), world.group());
        let mut engine = Engine::new(
            world,
            Options {
                fast,
                policy: brain,
                samplers,
                ahead: may_advise(),
                economist: own,
                min_region: how.min_region,
                observing_cap: how.observing_cap,
                acting_cap: 1.0,
            },
        );
        engine.keep_decisions(recorder.is_some() || showing.wants_decisions());
        let events = recorder.as_ref().map(|_| listen_to(&mut engine));
        let priced = (economist != Mode::Off).then_some(how.holds_store);
        let keeper = keeper(made.swap(), how.store_limit, priced)?;
        if !quiet {
            lacks.iter().for_each(output::warn);
        }
        Ok(Self {
            engine,
            division: how.division,
            keeper,
            member: how.member,
            how: Told {
                observing: choice,
                program: how.program,
                economist,
                costs,
                observing_cap: how.observing_cap,
                json: how.json,
                quiet,
            },
            started: Instant::now(),
            showing,
            recorder,
            events,
            budget,
            budget_seen: fast,
            kept_since: None,
            share_due: Instant::now(),
            total: how.holds_store.then(Total::default),
            left,
            left_due: Instant::now(),
            names: BTreeMap::new(),
            named: None,
            lacks,
            given_up: false,
            at_begin: None,
            outside,
            stored: Stored::default(),
            warnings: (!quiet).then(Warnings::new),
            failed: None,
            made,
        })
    }

    /// Whether any process is left. Not before the first step.
    pub(crate) fn is_over(&self) -> bool {
        self.engine.processes().is_empty()
    }

    /// One step; how long to wait for the next.
    pub(crate) fn step(&mut self) -> Duration {
        const IDLE: Duration = Duration::from_secs(1);
        if self.failed.is_some() {
            return IDLE;
        }
        let stepped = self.follow_budget().and_then(|()| self.engine.step());
        let wait = match stepped {
            Ok(wait) => Duration::from_nanos(wait.get()),
            Err(error) => {
                let also = self.engine.finish().err();
                let also = also.map_or(String::new(), |e| format!("; {e}"));
                self.failed = Some(Failure::failed(format!(
                    "the program goes on without a budget: {error}{also}"
                )));
                IDLE
            }
        };
        self.at_begin.get_or_insert(self.engine.stats().resident);
        self.note_kept();
        if let Some(division) = &mut self.division {
            division.step(Nanos(terrace_live::sys::now()), self.engine.processes());
            self.engine.charge(division.take_cpu());
        }
        if self.outside.as_ref().is_some_and(OutsideWatch::is_due) {
            self.look_outside();
        }
        if self.stored.is_due() && self.made.group().is_some() {
            let cpu = thread_cpu();
            self.look_at_store(None);
            self.engine.charge(thread_cpu().saturating_sub(cpu));
        }
        if self.left.is_derived() && Instant::now() >= self.left_due {
            self.left_due = Instant::now() + LEFT;
            let cpu = thread_cpu();
            self.count_left();
            self.engine.charge(thread_cpu().saturating_sub(cpu));
        }
        self.complain();
        self.warn();
        self.write_down();
        self.show();
        wait.min(self.due_in())
    }

    /// Takes another budget over, as it was asked for, or as the store leaves of `--total`.
    fn follow_budget(&mut self) -> std::io::Result<()> {
        if let Some(member) = self.member.as_mut().filter(|member| member.is_due()) {
            let processes = self.engine.processes().to_vec();
            let swapped = self.engine.world().swapped(&processes);
            let share = member.follow(self.engine.stats(), swapped, self.division.as_ref());
            self.budget.store(share.get(), Release);
        }
        let asked = Bytes(self.budget.load(Acquire));
        let now = Instant::now();
        let is_due = self.total.is_some() && now >= self.share_due;
        if asked == self.budget_seen && !is_due {
            return Ok(());
        }
        let is_new = asked != self.budget_seen;
        if let Some(total) = self.total.as_mut().filter(|_| is_new) {
            total.set_budget(asked);
        }
        if asked < self.budget_seen {
            // What was allowed until now is no more than that.
            self.kept_since = None;
        }
        self.budget_seen = asked;
        let mut fast = asked;
        let cpu = thread_cpu();
        if let Some(store) = self.look_at_total() {
            self.engine.charge(thread_cpu().saturating_sub(cpu));
            self.share_due = now + SHARE;
            fast = store.leaves(asked, self.engine.stats().resident);
            // With each new budget the engine forgets for how long nothing has left.
            if !is_new && !total::is_far(fast, self.engine.fast(), asked) {
                return Ok(());
            }
        }
        if fast != self.engine.fast() {
            self.engine.set_fast(fast)?;
            if let Some(division) = &mut self.division {
                division.set_budget(fast);
            }
            let policy = self.engine.brain().is_some();
            match self.engine.world().hold(fast, policy) {
                // The run has ended.
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    self.tell(not_held(&error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// With `--total`, what is resident and what is compressed at one moment. In this order: a page that
    /// leaves in between is in both and not in neither.
    fn look_at_total(&mut self) -> Option<Store> {
        let total = self.total.as_mut()?;
        self.engine.weigh();
        let store = Store::of(&Root::machine(), self.made.swap(), self.made.group());
        total.look(self.engine.stats().resident, store.memory, self.budget_seen);
        Some(store)
    }

    /// What its compressed pages take. Without a group the run has so much in swap as `swapped` says.
    fn look_at_store(&mut self, swapped: Option<Bytes>) -> Parts {
        let swapped = self.made.group().and_then(Group::has_of_swap).or(swapped);
        self.stored.look(&Root::machine(), self.made.swap(), swapped)
    }

    /// Notes since when the budget is kept: what was above it before has to leave first.
    fn note_kept(&mut self) {
        let is_kept = self.total.map_or(self.engine.stats().settled, |total| total.settled);
        let now = Nanos(self.started.elapsed().as_nanos() as u64);
        self.kept_since = is_kept.then(|| self.kept_since.unwrap_or(now));
    }

    /// Compares the processes with those of the group.
    fn look_outside(&mut self) {
        let covered = self.total.map_or(self.engine.stats().resident, |total| total.now);
        if let Some(outside) = &mut self.outside {
            self.engine.charge(outside.look(covered));
        }
    }

    /// Pages that have left for swap by now, and what lies there; `None` for either where it is not known.
    fn count_left(&mut self) -> (Option<u64>, Option<Bytes>) {
        let processes = self.engine.processes().to_vec();
        let swapped = self.engine.world().swapped(&processes);
        let stats = self.engine.stats();
        let came_back = stats.faults + stats.ahead.get() / PageSize::Base.bytes().get();
        (self.left.look(came_back, swapped), swapped)
    }

    /// Says once what is missing; the run goes on.
    fn tell(&mut self, lack: String) {
        if self.lacks.contains(&lack) {
            return;
        }
        if !self.how.quiet {
            output::warn(&lack);
        }
        self.lacks.push(lack);
    }

    /// Says what stopped working.
    fn complain(&mut self) {
        let blind = self.engine.take_blind();
        let blind = blind.map(|e| format!("not all that comes back is seen: {e}"));
        let keeper = self.keeper.as_ref();
        if let Some(keeper) = keeper {
            self.engine.tend(keeper);
        }
        let idle = keeper.and_then(Keeper::take_failed);
        let idle = idle.map(|e| format!("nothing is done for idle compressed pages any more: {e}"));
        let degraded =
            self.engine.take_degraded().into_iter().map(|e| format!("{e}; the rest goes on"));
        let lack = self.engine.take_lack();
        for what in blind.into_iter().chain(idle).chain(degraded).chain(lack) {
            self.tell(what);
        }
        // Its figures change: the report has those of its moment.
        let is_new = self.engine.take_given_up() && !std::mem::replace(&mut self.given_up, true);
        if is_new && !self.how.quiet {
            output::warn(self.not_kept());
        }
    }

    /// That the budget was given up, with the figures of now.
    fn not_kept(&self) -> String {
        let stats = self.engine.stats();
        let given_up = GivenUp {
            is_now: self.engine.has_given_up(),
            resident: (stats.resident, stats.resident_peak),
            free: self.engine.free_swap(),
        };
        given_up.told(&Root::machine(), self.made.swap())
    }

    /// Says what goes wrong while it does, if it is time to look, with the command that helps.
    fn warn(&mut self) {
        if !self.warnings.as_ref().is_some_and(Warnings::is_due) {
            return;
        }
        let cpu = thread_cpu();
        let elapsed = Nanos(self.started.elapsed().as_nanos() as u64);
        let times = (elapsed, self.engine.stats().thrashing);
        let (level, swap) = (self.level(), self.engine.short_of_swap());
        let run = self.member.as_ref().map_or(std::process::id(), Member::run);
        let outside = self.outside.as_ref().map_or(Bytes::ZERO, OutsideWatch::now);
        let has = self.total.map_or(self.engine.stats().resident, |total| total.now);
        let is_too_much = !outside.is_zero() && has + outside > self.budget_seen;
        let outside = is_too_much.then_some(outside);
        let signs = |thrashing| Signs { outside, ..Signs::by_kernel(level, swap, thrashing) };
        let told = self.warnings.as_mut().map(|warnings| warnings.look(times, signs, run));
        told.into_iter().flatten().for_each(output::warn);
        self.engine.charge(thread_cpu().saturating_sub(cpu));
    }

    /// Writes decisions down, and what the policy was told.
    fn write_down(&mut self) {
        let decided = self.engine.take_decided();
        self.showing.decided(&decided);
        let Some(recorder) = &mut self.recorder else { return };
        recorder.decisions(self.engine.space(), &decided);
        if let Some(events) = &self.events {
            let bytes = std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner));
            // One policy has seen all processes.
            recorder.events(std::process::id(), bytes);
        }
    }

    /// How long it is until figures have to be shown or written down.
    fn due_in(&self) -> Duration {
        let recorder = self.recorder.as_ref().map_or(Duration::MAX, Recorder::due_in);
        self.showing.due_in().min(recorder)
    }

    /// Shows what is due to be shown. That is work for these programs, too.
    fn show(&mut self) {
        if !self.due_in().is_zero() {
            return;
        }
        let cpu = thread_cpu();
        let report = self.figures_in_place(None);
        self.showing.show(&report);
        if let Some(recorder) = &mut self.recorder {
            recorder.moment(&report);
        }
        self.engine.charge(thread_cpu().saturating_sub(cpu));
    }

    /// Looks for names of processes that have come.
    fn look_for_names(&mut self) {
        let now = Instant::now();
        let every = Duration::from_nanos(NAMES.get());
        if self.named.is_some_and(|at| now < at + every) {
            return;
        }
        self.named = Some(now);
        let room = NAMED.saturating_sub(self.names.len());
        let processes = self.engine.processes().iter().copied();
        let (known, new): (Vec<u32>, Vec<u32>) =
            processes.partition(|process| self.names.contains_key(process));
        let new = new.into_iter().take(room);
        // A process may have executed another program since the last look.
        let looked: Vec<u32> = known.into_iter().chain(new).collect();
        self.names.extend(names(&looked));
    }

    /// The figures as those of memory whose tiers are DRAM and swap.
    fn figures_in_place(&mut self, end: Option<End>) -> AttachReport {
        self.look_for_names();
        let report = self.figures(end);
        let head = Head {
            processes: self.names.iter().map(|(id, name)| (*id, name.clone())).collect(),
            elapsed: report.elapsed,
            dry_run: false,
            economist: mode_name(self.how.economist).to_owned(),
            sampler_reason: self.how.observing.reason.clone(),
            // It moves nothing up, and what is put out has to leave.
            no_kill_switch: None,
            sampling_cap: self.how.observing_cap,
            limit: None,
        };
        AttachReport::of_kernel(head, &self.engine, self.at_begin, report)
    }

    /// The figures now.
    fn figures(&mut self, end: Option<End>) -> KernelReport {
        // All that is told is of this moment, at the end of one when the program has gone.
        if self.look_at_total().is_none() {
            self.engine.weigh();
        }
        self.note_kept();
        if end.is_some() {
            self.look_outside();
        }
        let mut lacks = self.lacks.clone();
        lacks.extend(self.given_up.then(|| self.not_kept()));
        match self.engine.world().unwatched() {
            0 => {}
            threads => lacks.push(format!("faults of {} threads were not seen", count(threads))),
        }
        let (demotions, swapped) = self.count_left();
        let store = self.look_at_store(swapped);
        let direct = self.engine.world().lacks_direct().is_none();
        let direct = direct.then_some(self.engine.stats().direct_bytes);
        let brain = self.engine.brain();
        let mut stats = self.engine.stats().clone();
        if let Some(total) = self.total {
            // Of the whole budget, and not of what is left of it at the moment.
            (stats.settled, stats.exceeded) = (total.settled, total.exceeded);
        }
        let mut report = KernelReport {
            program: self.how.program.clone(),
            end,
            elapsed: Nanos(self.started.elapsed().as_nanos() as u64),
            budget: self.budget_seen,
            budget_kept: false,
            kept_since: self.kept_since,
            budget_of: self.member.as_ref().map(Member::run),
            run_level: self.level(),
            division: self.division.as_ref().map(|division| Box::new(division.report())),
            holds_store: self.total.is_some(),
            total_peak: self.total.map(|total| total.peak),
            outside: self.outside.as_ref().and_then(OutsideWatch::report),
            left_group: self.outside.as_ref().map(OutsideWatch::left),
            swap: self.made.swap().clone(),
            tables: own_device(self.made.swap())
                .and_then(|device| zram::tables(&Root::machine(), device)),
            backed: own_device(self.made.swap())
                .and_then(|device| backed(&Root::machine(), device)),
            store: store.run,
            store_of_all: store.all,
            swapped,
            short_of_swap: self.engine.short_of_swap(),
            observing: self.how.observing.clone(),
            chooser: brain.map_or("kernel", Brain::name).to_owned(),
            policy_bytes: brain.map_or(Bytes::ZERO, |brain| brain.footprint().bytes),
            stats,
            demotions,
            charged_peak: self.made.group().and_then(Group::charged_peak),
            reclaimed_by_itself: self.made.group().and_then(Group::reclaimed_by_itself).or(direct),
            faults_lost: self.engine.world().lost(),
            direct_lost: self.engine.world().direct_lost(),
            lacks,
        };
        report.budget_kept = report.keeps_budget();
        report
    }

    /// The budget beside what is there of it; of one that is shared, what all have of it.
    fn level(&self) -> RunLevel {
        if let Some(level) = self.member.as_ref().and_then(Member::level) {
            return level;
        }
        let Stats { resident, resident_peak, exceeded, .. } = *self.engine.stats();
        let own = (resident, resident_peak, exceeded);
        let of_total = |total: Total| (total.now, total.peak.both(), total.exceeded);
        let (now, peak, exceeded) = self.total.map_or(own, of_total);
        RunLevel {
            budget: self.budget_seen,
            resident: now,
            // Both together are looked at more rarely.
            resident_peak: peak.max(resident_peak),
            exceeded: now - self.budget_seen,
            exceeded_peak: exceeded,
        }
    }

    /// The accounts of all classes of which anything was proposed.
    fn accounts(&self) -> Vec<AccountReport> {
        let of = |class| Some(AccountReport::new(class, self.engine.account(class)?));
        let all = ActionClass::ALL.into_iter().filter_map(of);
        all.filter(|line| line.proposed > 0).collect()
    }

    /// The report as it is now.
    pub(crate) fn text(&mut self, end: Option<End>) -> Result<String, Failure> {
        let report = self.figures(end);
        let costs = self.how.costs.as_ref();
        if self.how.json {
            let lines_lost = output::lines_lost();
            let document = Document { report: &report, costs, lines_lost };
            return output::json("terrace.kernel", &document);
        }
        let mut rows = Vec::new();
        rows.extend(advice(mode_name(self.how.economist), &self.accounts()));
        rows.extend(costs.map(|costs| ("costs", costs.line())));
        rows.extend(output::lost_row());
        Ok(render(&report) + &facts("  ", &rows))
    }

    /// Leaves the programs alone, and completes what was begun: the recording, the page, and the
    /// report, which `tell` is given. Says what did not go well.
    pub(crate) fn conclude(
        mut self,
        end: Option<End>,
        tell: impl FnOnce(&str) -> Result<(), Failure>,
    ) -> bool {
        let stopped = self.engine.finish().map_err(Failure::failed);
        // What it has begun with the device has to end before that is taken away.
        if let Some(mut keeper) = self.keeper.take() {
            keeper.finish();
            self.engine.tend(&keeper);
        }
        self.write_down();
        let report = self.figures_in_place(end);
        let shown = self.showing.finish(&report);
        let recorded = self.recorder.as_mut().map_or(Ok(()), |recorder| recorder.finish(&report));
        let told = self.text(end).and_then(|text| tell(&text));
        let wrong = self
            .failed
            .take()
            .into_iter()
            .chain([stopped, shown, recorded, told].into_iter().filter_map(Result::err));
        let mut well = true;
        for failure in wrong {
            failure.report();
            well = false;
        }
        well
    }
}

impl Watch for Session {
    fn poll(&mut self) -> Duration {
        self.step()
    }

    /// Asked for by SIGUSR1, so printed even under `--quiet`.
    fn report(&mut self) {
        match self.text(None) {
            Ok(text) => output::show(&text),
            Err(failure) => {
                failure.report();
            }
        }
    }
}

/// The device that was made for a run.
fn own_device(swap: &SwapUse) -> Option<u32> {
    swap.devices.first().copied().filter(|_| swap.own)
}

/// Who looks after the idle pages of a device that was made for the run, and can do something for
/// them. Where what it does has a price, `priced` says whether the budget is for the store, too.
fn keeper(
    swap: &SwapUse,
    limit: Option<Bytes>,
    priced: Option<bool>,
) -> Result<Option<Keeper>, Failure> {
    let Some(device) = own_device(swap).filter(|_| swap.recompresses || swap.writes_back) else {
        return Ok(None);
    };
    let limit = limit.filter(|_| swap.writes_back);
    let tending = Tending::new(Root::machine(), device, swap.recompresses, limit);
    let tending = match priced {
        Some(in_budget) => tending.priced(in_budget),
        None => tending,
    };
    Keeper::start(tending).map(Some).map_err(Failure::failed)
}

/// That nothing of the kernel's holds a program near its budget, as far as this error says.
fn not_held(error: &std::io::Error) -> String {
    format!("the kernel does not hold the program near its budget, only Terrace does: {error}")
}

/// The tiers' names, fastest first; and what else decisions are about: what zram writes to, and where
/// files and memory that processes share are mapped from.
fn tiers() -> Vec<String> {
    ["dram", "swap", "file", "mapped"].map(str::to_owned).to_vec()
}

/// What a recording begins with.
fn header(
    program: &[String],
    mode: Mode,
    budget: Bytes,
    brain: Option<&Brain>,
    clock: Option<Frequency>,
) -> Header {
    let tiers = tiers();
    let Some(brain) = brain else {
        let name = Facts::read(Path::new("/")).cpu.model;
        let machine = MachineFacts { name, clock, tiers };
        let policy = "kernel".to_owned();
        return Header::new(World::Live, program.to_vec(), policy, mode, machine)
            .of_kernel_engine();
    };
    let calibration = *brain.economist().calibration();
    let live = LiveFacts { budget, plain_fault: procs::plain_fault(), calibration };
    recorder::header(program.to_vec(), mode, tiers, brain).of_live_run(live).of_kernel_engine()
}

/// Has what a policy is told packed.
fn listen_to(engine: &mut Engine<LinuxWorld>) -> Arc<Mutex<Vec<u8>>> {
    let events = Arc::<Mutex<Vec<u8>>>::default();
    let (kept, mut packer) = (Arc::clone(&events), Packer::new());
    engine.record(Box::new(move |event| {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        packer.pack(event, |item, _| {
            kept.extend_from_slice(item);
            true
        });
    }));
    events
}
