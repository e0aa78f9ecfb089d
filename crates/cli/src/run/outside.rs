//! Memory of a run's processes that lies outside of the budget, by what the kernel counts of them.
//!
//! What Terrace manages it knows; what it was never asked for it does not: shared memory, what is
//! mapped by system calls past the C library, processes without the library. A report that says
//! that a budget was kept would be silent about it. So all processes are looked at from outside:
//! often and cheaply in sum (`/proc/PID/status`), and mapping by mapping (`smaps`), which takes
//! longer, where the sum shows that there is something to be told apart.
//!
//! Between two looks memory may come and go. What a process had when it ended it says itself
//! ([`terrace_live::broker::ending`]); for the rest there is a bound, the most that the kernel has
//! ever counted of the process (`VmHWM`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use terrace_core::{Bytes, PageSize};
use terrace_live::attach::targets;
use terrace_live::broker::ending::{Ending, run_number};
use terrace_live::broker::page::{BrokerPage, Slot};
use terrace_live::broker::share;
use terrace_live::stats::process_page::{Counters, ProcessPage, State, Text, process_namespace};
use terrace_live::sys;
use terrace_report::outside::{Cause, OutsideCause, OutsideReport, least};

use super::memory::{ByCause, FileSystems, Known, Mappings, Memory};
use super::plain::PlainWatch;
use super::secret::Secrets;
use super::shared_files::{Part, resident_once};
use crate::runs::{self, Beside};

/// How often it is looked: often at first, for many programs do not run for long; less often where
/// looking takes long, so that it takes a fiftieth of a processor at most.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));
/// One look for so many parts of the time that has passed.
const PACE: u32 = 8;
const COST: u32 = 50;
/// What reading mappings may take: so much at first, and a twentieth of a processor. Its time
/// counts, not the wall's: beside busy programs that is many times as long, and nothing would be
/// read when most changes.
const READING: Duration = Duration::from_millis(20);
const READING_COST: u32 = 20;
/// Mappings are read again after so long, or when a quarter, and so much, has come or gone.
const READ_AGAIN: Duration = Duration::from_secs(5);
const CHANGED: u64 = 4 << 20;
/// Less is worth no look at a process's mappings.
const LITTLE: u64 = 1 << 20;
/// What of a managed process is Terrace's own, beside compressed pages: stacks, tables, buffers,
/// and the books of each page that was touched.
const OWN: u64 = 2 << 20;
const OWN_A_PAGE: u64 = 18;
/// Who begins to be managed has all of it in the books after so long.
const SETTLED: Duration = Duration::from_millis(200);
/// A child that was just forked has its parent's memory, and nothing of its own that tells.
const CHILDHOOD: Duration = Duration::from_millis(200);

/// Looks at all processes of a run. More than twenty fields: what is seen once a second has to be kept
/// until the processes that it was seen of have ended.
pub(super) struct OutsideWatch {
    plain: PlainWatch,
    /// Where processes that are, or may come to be, managed say what they have.
    slots: Option<&'static BrokerPage>,
    /// The run's directory.
    directory: PathBuf,
    /// The name space of process numbers that is ours.
    namespace: u64,
    /// Whether the budget is for what is compressed, too.
    holds_store: bool,
    min_region: Bytes,
    least: u64,
    started: Instant,
    due: Instant,
    /// Spent on reading mappings.
    reading: Duration,
    seen: BTreeMap<u32, Seen>,
    secrets: Secrets,
    systems: FileSystems,
    /// Shared memory as it was when it was last told apart.
    round: Round,
    /// How much there is of it, if each file counts once, for each byte of the sum: at the last look,
    /// once anything was told apart.
    once: Option<f64>,
    /// The number of the run, and of the next process that will have ended.
    run: u64,
    next_ending: u64,
    now: ByCause,
    /// Managed memory at the last look.
    managed: u64,
    /// Whether much has come since the look before.
    grows: bool,
    found: Found,
    /// What others have been told.
    published: Told,
}

/// What is told, MiB: by cause, and the most of all, of processes without the library, and of what
/// was not seen; and how large the largest process was, more roughly.
type Told = (ByCause, [u64; 3], u64);

/// The most that was seen.
#[derive(Default)]
struct Found {
    causes: ByCause,
    peak: u64,
    with_managed: u64,
    own: u64,
    /// The most that one process had in RAM.
    most: u64,
    /// The most that one process had beyond what was seen of it.
    unseen: u64,
}

/// A process that was seen before.
struct Seen {
    since: Instant,
    /// Since when it is managed.
    managed: Option<Instant>,
    read: Option<Read>,
    /// What it had at the last look: outside and private, shared, and managed.
    had: Had,
    /// The most of its private memory.
    private: u64,
    extent: Extent,
}

#[derive(Default)]
struct Had {
    private: ByCause,
    shared: u64,
    managed: u64,
}

/// The most that was seen of a process, and that there was of it.
#[derive(Default)]
struct Extent {
    /// All that it had in RAM; of it what was managed, and what is compressed of that.
    seen: u64,
    /// The value of [`Extent::seen`] that the look before the last one left.
    before: u64,
    inside: u64,
    store: u64,
    /// The most that it had, by the kernel's count.
    most: u64,
}

/// What reading its mappings has shown.
struct Read {
    at: Instant,
    mappings: Mappings,
    /// What the sum then said to be outside, and private.
    estimate: u64,
}

/// Shared memory of all processes in sum, and how much of it there is if each file counts once.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    at: Option<Instant>,
    processes: usize,
    sum: u64,
    once: Once,
}

/// What there is of files in memory, each counted once.
#[derive(Clone, Copy, Debug, Default)]
struct Once {
    /// All of them, and those that only processes without Terrace have mapped.
    shared: u64,
    plain: u64,
    /// Huge pages of the pool.
    pool: u64,
}

impl Round {
    /// Whether what was told apart then is about right now.
    fn is_like(&self, processes: usize, sum: u64) -> bool {
        self.at.is_some()
            && self.processes == processes
            && self.sum.abs_diff(sum) <= LITTLE.max(sum / 8)
    }

    /// What there is now, by what was told apart.
    fn now(&self, processes: usize, sum: u64) -> Once {
        let once = self.once;
        if self.is_like(processes, sum) {
            let scale = sum as f64 / self.sum.max(1) as f64;
            let scaled = |bytes: u64| (bytes as f64 * scale) as u64;
            return Once {
                shared: scaled(once.shared),
                plain: scaled(once.plain),
                pool: scaled(once.pool),
            };
        }
        // What has come since may be the same memory once more.
        Once { shared: once.shared.min(sum), plain: once.plain.min(sum), pool: once.pool.min(sum) }
    }
}

/// One look at a process.
struct Look<'a> {
    process: u32,
    memory: Memory,
    page: Option<&'a ProcessPage>,
    kind: Kind,
    /// Of its private memory in RAM, what it has its share for.
    inside: u64,
    /// The same in RAM, of which frames that relatives have count in part.
    managed: u64,
    /// What it may have mapped without having been given a share; `None` where that is not known.
    free: Option<u64>,
}

/// How a process stands to Terrace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Managed,
    /// It has just begun to be: not all that is to be managed is so yet.
    Beginning,
    /// Everything that was mapped fits, so far.
    Dormant,
    GivenUp,
    Plain,
}

impl OutsideWatch {
    pub(super) fn new(
        library: &Path,
        directory: &Path,
        broker: Option<&Path>,
        budget: Bytes,
        holds_store: bool,
        min_region: Bytes,
    ) -> Self {
        let now = Instant::now();
        let slots = broker.and_then(|page| BrokerPage::open(page).ok());
        Self {
            plain: PlainWatch::new(library, budget),
            slots,
            directory: directory.join(""),
            namespace: process_namespace(),
            holds_store,
            min_region,
            least: least(budget).get(),
            started: now,
            due: now + INTERVAL.0,
            reading: Duration::ZERO,
            seen: BTreeMap::new(),
            secrets: Secrets::default(),
            systems: FileSystems::new(),
            round: Round::default(),
            once: None,
            run: run_number(directory),
            next_ending: slots.map_or(0, |page| page.endings().count()),
            now: ByCause::default(),
            managed: 0,
            grows: false,
            found: Found::default(),
            published: Default::default(),
        }
    }

    /// Looks, if it is time to; how long the next look can wait.
    pub(super) fn poll<'a>(&mut self, pages: impl FnOnce() -> Vec<&'a ProcessPage>) -> Duration {
        let started = Instant::now();
        if started < self.due {
            return self.due - started;
        }
        let reading = self.reading;
        let used = own_time();
        self.look(&pages());
        let read = self.reading.saturating_sub(reading);
        let took = own_time().saturating_sub(used + read);
        let pace = if self.grows { INTERVAL.0 } else { self.started.elapsed() / PACE };
        let next = pace.clamp(INTERVAL.0, INTERVAL.1).max(took * COST);
        self.due = started + next;
        next
    }

    /// Lets other commands know what was found, unless they do.
    pub(super) fn publish(&mut self) -> io::Result<()> {
        let told = self.told();
        if told == self.published {
            return Ok(());
        }
        self.published = told;
        runs::publish_beside(&self.directory, &self.report())
    }

    /// The program has ended: what is there to be seen at last.
    pub(super) fn complete(&mut self, pages: &[&ProcessPage]) {
        self.look(pages);
    }

    fn look(&mut self, pages: &[&ProcessPage]) {
        self.look_by(pages, Memory::of);
    }

    /// The same by what is asked for a process's memory.
    fn look_by(&mut self, all: &[&ProcessPage], memory_of: impl Fn(u32) -> Option<Memory>) {
        let here = self.namespace;
        let living = |page: &&&ProcessPage| {
            !page.has_ended() && page.pid() != 0 && page.namespace.load(Relaxed) == here
        };
        let pages: BTreeMap<u32, &ProcessPage> =
            all.iter().filter(living).map(|page| (page.pid(), *page)).collect();
        let mut processes: BTreeSet<u32> = pages.keys().copied().collect();
        processes.extend(targets::started(std::process::id()));
        let memory: BTreeMap<u32, Memory> = processes
            .into_iter()
            .filter_map(|process| Some((process, memory_of(process)?)))
            .collect();
        // A process says what it has before it has it no longer. So who is not among those any more has
        // said it by now, and what was seen of it is still known.
        self.take_endings(all);
        let slots = self.slots;
        let slot = |process| slots.and_then(|page| page.own(process));
        self.plain.look(&memory, |process| {
            // A dormant one's may be of a program that has since begun another.
            let page = pages.get(&process).filter(|page| page.state() != State::Dormant);
            slot(process).is_some() || page.is_some()
        });
        let looks: Vec<_> = memory
            .iter()
            .map(|(&process, &memory)| {
                let page = pages.get(&process).copied();
                let seen = self.seen.get(&process).and_then(|seen| seen.managed);
                let settled = seen.is_some_and(|since| since.elapsed() >= SETTLED);
                let plain = self.plain.is_plain(process);
                let mut look = Look::new(process, memory, page, slot(process), plain, settled);
                if let Some(page) = page.filter(|_| self.holds_store && look.managed > 0) {
                    look.managed += page.counters.store_bytes.load(Relaxed);
                }
                // A forked child that has no page yet has what its parent had.
                let knows =
                    || page.is_some() || memory.private < LITTLE || !is_copy(process, &memory);
                look.free = (slots.is_some() && knows()).then_some(share::LEAST.get());
                look
            })
            .collect();
        self.seen.retain(|process, _| memory.contains_key(process));
        self.secrets.keep(|process| memory.contains_key(&process));
        self.add_up(&looks, &memory);
    }

    fn add_up(&mut self, looks: &[Look<'_>], memory: &BTreeMap<u32, Memory>) {
        let started = Instant::now();
        for look in looks {
            let seen = self.seen.entry(look.process).or_insert_with(|| Seen::new(started));
            match look.kind {
                Kind::Managed | Kind::Beginning => {
                    seen.managed.get_or_insert(started);
                }
                _ => seen.managed = None,
            }
            seen.private = seen.private.max(look.memory.private);
            self.found.unseen = self.found.unseen.max(seen.extent.take(look));
            self.found.most = self.found.most.max(look.memory.most);
        }
        let (young, grown): (Vec<_>, Vec<_>) =
            looks.iter().partition(|look| self.is_young(look, memory));
        let estimate: u64 = grown.iter().map(|look| look.private() + look.common()).sum();
        let managed: u64 = looks.iter().map(|look| look.managed).sum();
        let (mut now, mut own) = (ByCause::default(), 0);
        // As long as there is little in sum nothing has to be told apart.
        if estimate >= self.least {
            self.tell_shared_apart(&grown, started, &mut now);
            for look in grown {
                let (causes, of_ours) = self.told_apart(look, Some(started));
                add(&mut now, &causes);
                own += of_ours;
                self.had(look, causes);
            }
        } else {
            for look in grown {
                self.had(look, ByCause::default());
            }
        }
        for look in young {
            let mut causes = ByCause::default();
            let parent = self.seen.get(&look.memory.parent).map_or(0, |seen| seen.private);
            let more = look.beyond(parent);
            if more >= LITTLE {
                causes[look.cause_of_private(Cause::NotAsked) as usize] = more;
            }
            add(&mut now, &causes);
            self.had(look, causes);
        }
        now[Cause::Secret as usize] = self.secret(looks);
        let sum: u64 = now.iter().sum();
        // What grows fast is looked at often.
        self.grows = sum >= self.now.iter().sum::<u64>() + self.least;
        (self.now, self.managed) = (now, managed);
        self.found.own = self.found.own.max(own);
        self.note(&now, managed);
    }

    /// Secret memory, which the sums have among files' pages.
    fn secret(&mut self, looks: &[Look<'_>]) -> u64 {
        let mut sum = 0;
        for look in looks.iter().filter(|look| look.memory.locked > 0) {
            let (used, may_read) = (own_time(), self.may_read());
            sum += self.secrets.of(look.process, &look.memory, may_read);
            self.reading += own_time().saturating_sub(used);
        }
        sum
    }

    /// Notes what was there at one time.
    fn note(&mut self, now: &ByCause, managed: u64) {
        let sum: u64 = now.iter().sum();
        if sum >= self.least {
            self.found.peak = self.found.peak.max(sum);
            self.found.with_managed = self.found.with_managed.max(sum + managed);
            for (most, now) in self.found.causes.iter_mut().zip(now) {
                *most = (*now).max(*most);
            }
        }
    }

    /// Notes what a process has at this look.
    fn had(&mut self, look: &Look<'_>, private: ByCause) {
        if let Some(seen) = self.seen.get_mut(&look.process) {
            seen.had = Had { private, shared: look.common(), managed: look.managed };
        }
    }

    /// Takes out what processes have said that have ended since the last look.
    fn take_endings(&mut self, pages: &[&ProcessPage]) {
        let Some(slots) = self.slots else { return };
        let (endings, next) = slots.endings().since(self.next_ending);
        self.next_ending = next;
        let run = self.run;
        for ending in endings.iter().filter(|ending| ending.run == run) {
            self.take_ending(ending, pages);
        }
    }

    /// What a process had at its end, beside what others had at the last look. It may share
    /// memory with them.
    fn take_ending(&mut self, ending: &Ending, pages: &[&ProcessPage]) {
        let is_active = ending.state == State::Active as u32;
        let page = pages.iter().copied().find(|page| {
            page.pid() == ending.process && page.namespace.load(Relaxed) == self.namespace
        });
        if is_active && page.is_none() {
            return;
        }
        let mut look = Look::of_ending(ending, page.filter(|_| is_active));
        let seen = self.seen.entry(ending.process).or_insert_with(|| Seen::new(Instant::now()));
        self.found.unseen = self.found.unseen.max(seen.extent.take(&look));
        self.found.most = self.found.most.max(ending.most);
        let is_copy = ending.family != ending.process && seen.read.is_none();
        let before = std::mem::take(&mut seen.had);
        if is_copy {
            // Most of it may be its parent's.
            let known = [ending.parent, ending.family].map(|process| self.seen.get(&process));
            let known = known.into_iter().flatten().map(|seen| seen.private).max();
            look.memory.private = look.inside + known.map_or(0, |of_parent| look.beyond(of_parent));
        }
        let (causes, _) = self.told_apart(&look, None);
        let mut now = self.now;
        now.iter_mut().zip(before.private).for_each(|(now, was)| *now = now.saturating_sub(was));
        add(&mut now, &causes);
        let once = self.once.filter(|_| before.shared >= LITTLE).unwrap_or(1.0);
        let shared = (look.memory.shared as f64 * once) as u64;
        let kind = look.cause_of_private(Cause::Shared) as usize;
        now[kind] = now[kind].max(shared);
        self.note(&now, self.managed.saturating_sub(before.managed) + look.managed);
    }

    /// Whether a process is a child that was just forked.
    fn is_young(&self, look: &Look<'_>, memory: &BTreeMap<u32, Memory>) -> bool {
        !matches!(look.kind, Kind::Managed | Kind::Beginning)
            && look.private() >= LITTLE
            && self.seen.get(&look.process).is_some_and(|seen| seen.since.elapsed() < CHILDHOOD)
            && memory.contains_key(&look.memory.parent)
            && is_copy(look.process, &look.memory)
    }

    /// Shared memory, which counts once for all processes.
    fn tell_shared_apart(&mut self, looks: &[&Look<'_>], at: Instant, now: &mut ByCause) {
        let sharing: Vec<_> = looks.iter().filter(|look| look.common() >= LITTLE).collect();
        let (processes, sum) = (sharing.len(), sharing.iter().map(|look| look.common()).sum());
        if processes == 0 {
            return;
        }
        let is_old = self.round.at.is_none_or(|at| at.elapsed() >= READ_AGAIN);
        if (is_old || !self.round.is_like(processes, sum)) && self.may_read() {
            // All of them, so that what they share is seen at the same time.
            for look in &sharing {
                self.read(look, at);
            }
            // Of one that has ended meanwhile nothing was read: as often as it had mapped the same, so
            // often that would count. It says itself what it had.
            if sharing.iter().all(|look| Memory::of(look.process).is_some()) {
                let once = self.told_once(&sharing, at);
                // Read a moment later, there may be more of it. Counted once it is never more than in
                // sum.
                let sum = sum.max(once.shared + once.pool);
                self.round = Round { at: Some(at), processes, sum, once };
            }
        }
        let once = self.round.now(processes, sum);
        if self.round.at.is_some() && sum > 0 {
            self.once = Some(once.shared as f64 / sum as f64);
        }
        now[Cause::Shared as usize] += once.shared - once.plain;
        now[Cause::OtherProcesses as usize] += once.plain;
        now[Cause::HugePool as usize] += once.pool;
    }

    /// What there is of files in memory, by what was just read.
    fn told_once(&self, looks: &[&&Look<'_>], at: Instant) -> Once {
        let (mut shared, mut of_managed, mut pool): (Vec<Part>, Vec<Part>, Vec<Part>) =
            Default::default();
        // Of a process that cannot be read it is not known what it has.
        let (mut unread, mut unread_plain) = (0, 0);
        let mut changed = 0;
        for look in looks {
            let read = self.seen.get(&look.process).and_then(|seen| seen.read.as_ref());
            let is_plain = look.kind == Kind::Plain;
            match read.filter(|read| read.at == at) {
                Some(Read { mappings, .. }) => {
                    let after = Memory::of(look.process).map_or(0, |memory| memory.shared);
                    changed += after.abs_diff(look.memory.shared);
                    shared.extend(&mappings.files);
                    if !is_plain {
                        of_managed.extend(&mappings.files);
                    }
                    pool.extend(&mappings.pool);
                }
                None if is_plain => unread_plain = look.memory.shared.max(unread_plain),
                None => unread = look.memory.shared.max(unread),
            }
        }
        let all = resident_once(&shared, changed).max(unread).max(unread_plain);
        let of_managed = resident_once(&of_managed, changed).max(unread);
        Once { shared: all, plain: all - of_managed.min(all), pool: resident_once(&pool, 0) }
    }

    /// What of a process's private memory lies outside, by cause, and how much is Terrace's own. Its
    /// mappings are read if that pays at a look at this time; without one they cannot be.
    fn told_apart(&mut self, look: &Look<'_>, at: Option<Instant>) -> (ByCause, u64) {
        if let Some(at) = at
            && look.private() >= LITTLE
            && self.should_read(look)
        {
            self.read(look, at);
        }
        let read = self.seen.get(&look.process).and_then(|seen| seen.read.as_ref());
        let mut causes = ByCause::default();
        let Some(Read { mappings, estimate, .. }) = read else {
            causes[look.cause_of_private(Cause::NotAsked) as usize] += look.private();
            return (causes, 0);
        };
        // What has come since is as what was there.
        let private = look.of_private(mappings);
        let was: u64 = private.iter().sum();
        let is = (was + look.private()).saturating_sub(*estimate);
        // Some may have come between the sum and the mappings.
        let is = is.min(look.memory.private.saturating_sub(look.inside));
        if was > 0 {
            let scaled = |bytes: u64| (bytes as f64 * (is as f64 / was as f64)) as u64;
            causes.iter_mut().zip(private).for_each(|(to, bytes)| *to = scaled(bytes));
        } else {
            causes[look.cause_of_private(Cause::NotAsked) as usize] += is;
        }
        (causes, mappings.own)
    }

    /// Whether there is time for reading mappings.
    fn may_read(&self) -> bool {
        self.reading < READING + self.started.elapsed() / READING_COST
    }

    fn should_read(&self, look: &Look<'_>) -> bool {
        let read = self.seen.get(&look.process).and_then(|seen| seen.read.as_ref());
        self.may_read()
            && read.is_none_or(|read| {
                let changed = read.estimate.abs_diff(look.private());
                read.at.elapsed() >= READ_AGAIN || changed > CHANGED.max(read.estimate / 4)
            })
    }

    /// Reads a process's mappings, at a look at this time.
    fn read(&mut self, look: &Look<'_>, at: Instant) {
        let used = own_time();
        let unmanaged: Vec<_> = look
            .page
            .into_iter()
            .flat_map(|page| page.unmanaged.ranges())
            .map(|(start, end, why)| (start, end, Cause::from(why)))
            .collect();
        let known = Known {
            min_region: self.min_region.get(),
            unmanaged: &unmanaged,
            directory: &self.directory.to_string_lossy(),
        };
        let mappings = Mappings::of(look.process, &known, &mut self.systems);
        if let Some(seen) = self.seen.get_mut(&look.process)
            && let Ok(mappings) = mappings
        {
            // What went between the sum and the mappings nobody has told apart.
            let gone = look.gone(&mappings);
            if gone >= CHANGED {
                self.found.unseen = self.found.unseen.max(seen.extent.went(look, gone));
            }
            seen.read = Some(Read { at, mappings, estimate: look.private() });
        }
        self.reading += own_time().saturating_sub(used);
    }

    fn told(&self) -> Told {
        let now = if self.found.peak == 0 { ByCause::default() } else { self.now };
        let peaks = [self.found.peak, self.plain.peak().get(), self.found.unseen];
        // The largest process grows all the time.
        let most = self.found.most / self.least;
        (now.map(|bytes| bytes >> 20), peaks.map(|bytes| bytes >> 20), most)
    }

    /// What was found.
    pub(super) fn report(&self) -> Beside {
        Beside {
            plain: self.plain.report(),
            outside: self.outside(),
            process_peak: Bytes(self.found.most),
            unseen_peak: Bytes(self.found.unseen),
        }
    }

    /// `None` if it was never enough to be told.
    fn outside(&self) -> Option<OutsideReport> {
        if self.found.peak == 0 {
            return None;
        }
        let cause = |cause: Cause| OutsideCause {
            cause,
            now: Bytes(self.now[cause as usize]),
            peak: Bytes(self.found.causes[cause as usize]),
        };
        let mut causes: Vec<_> = Cause::ALL.into_iter().map(cause).collect();
        causes.retain(|cause| !cause.peak.is_zero());
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.peak));
        Some(OutsideReport {
            now: Bytes(self.now.iter().sum()),
            peak: Bytes(self.found.peak),
            with_managed_peak: Bytes(self.found.with_managed),
            causes,
            own_peak: Bytes(self.found.own),
        })
    }
}

/// Whether a process runs its parent's program: it was forked, and has begun none of its own.
fn is_copy(process: u32, memory: &Memory) -> bool {
    let program = |process| fs::read_link(format!("/proc/{process}/exe")).ok();
    program(memory.parent) == program(process)
}

fn add(to: &mut ByCause, more: &ByCause) {
    to.iter_mut().zip(more).for_each(|(to, more)| *to += more);
}

impl Seen {
    fn new(since: Instant) -> Self {
        Self {
            since,
            managed: None,
            read: None,
            had: Had::default(),
            private: 0,
            extent: Extent::default(),
        }
    }
}

impl Extent {
    /// Takes a look; how much more there was, at the most, than was seen and is known.
    fn take(&mut self, look: &Look<'_>) -> u64 {
        if look.memory.most < self.most {
            // Another program.
            *self = Self::default();
        }
        self.most = look.memory.most;
        self.before = self.seen;
        self.seen = self.seen.max(look.memory.all());
        self.beyond(look)
    }

    fn beyond(&mut self, look: &Look<'_>) -> u64 {
        let counter = |of: fn(&Counters) -> &AtomicU64| {
            look.page.map_or(0, |page| of(&page.counters).load(Relaxed))
        };
        self.inside = self.inside.max(look.inside);
        self.store = self.store.max(counter(|counters| &counters.store_bytes));
        // What was managed is in the books.
        let managed = counter(|counters| &counters.resident_peak_bytes).saturating_sub(self.inside);
        let store = counter(|counters| &counters.store_peak_bytes).saturating_sub(self.store);
        self.most.saturating_sub(self.seen + managed + store)
    }

    /// So much of the last look's sum went before it was told apart: it was not seen. How much more
    /// there was then, as for [`Extent::take`].
    fn went(&mut self, look: &Look<'_>, bytes: u64) -> u64 {
        self.seen = self.before.max(look.memory.all().saturating_sub(bytes));
        self.beyond(look)
    }
}

/// Processor time of this thread.
fn own_time() -> Duration {
    Duration::from_nanos(sys::thread_cpu().get())
}

impl<'a> Look<'a> {
    fn new(
        process: u32,
        memory: Memory,
        page: Option<&'a ProcessPage>,
        slot: Option<&Slot>,
        is_plain: bool,
        is_settled: bool,
    ) -> Self {
        let state = page.map(ProcessPage::state);
        let active = slot.map_or(state == Some(State::Active), |slot| {
            // Statistics may be of a program that has since begun another.
            state == Some(State::Active) && slot.managed.load(Relaxed) != 0
        });
        let kind = match state {
            _ if is_plain => Kind::Plain,
            Some(State::Active) if active && is_settled => Kind::Managed,
            Some(State::Active) if active => Kind::Beginning,
            Some(State::Failed) if page.is_some_and(|page| is_of(page, process)) => Kind::GivenUp,
            _ => Kind::Dormant,
        };
        let resident = page.map_or(0, |page| page.counters.resident_bytes.load(Relaxed));
        let held = slot.map_or(0, |slot| slot.held.load(Relaxed));
        let inside = match kind {
            Kind::Managed => resident,
            Kind::Beginning => resident.max(held).min(memory.private),
            Kind::Dormant => held.min(memory.private),
            Kind::GivenUp | Kind::Plain => 0,
        };
        let managed = match (kind, slot) {
            (Kind::Managed | Kind::Beginning, Some(slot)) => {
                let relatives = u64::from(slot.relatives.load(Relaxed));
                inside.saturating_sub(slot.common.load(Relaxed) / (relatives + 1) * relatives)
            }
            _ => inside,
        };
        Self { process, memory, page, kind, inside, managed, free: None }
    }

    /// What a process said of itself when it ended. `page` is that of one that was managed.
    fn of_ending(ending: &Ending, page: Option<&'a ProcessPage>) -> Self {
        let &Ending { process, parent, private, shared, file, most, .. } = ending;
        let memory = Memory { parent, private, shared, file, most, pool: 0, locked: 0 };
        let resident = page.map_or(0, |page| page.counters.resident_bytes.load(Relaxed));
        let (kind, inside) = match ending.state {
            state if state == State::Active as u32 => (Kind::Managed, resident),
            state if state == State::Failed as u32 => (Kind::GivenUp, 0),
            _ => (Kind::Dormant, ending.mapped.min(private)),
        };
        Self { process, memory, page, kind, inside, managed: inside, free: None }
    }

    /// Memory that others can have, too: a page as often as it is mapped.
    fn common(&self) -> u64 {
        self.memory.shared + self.memory.pool
    }

    /// What a forked child has of its own at least, whose parent had so much private memory: that
    /// is outside, but for what it may have mapped without a share.
    fn beyond(&self, of_parent: u64) -> u64 {
        let more = self.memory.private.saturating_sub(of_parent);
        more.min(self.private()).saturating_sub(share::LEAST.get())
    }

    /// Private memory that is neither inside nor, as far as its statistics say, Terrace's own.
    fn private(&self) -> u64 {
        self.memory.private.saturating_sub(self.inside + self.own())
    }

    /// Its statistics, while they tell what it has.
    fn books(&self) -> Option<&Counters> {
        let managed = matches!(self.kind, Kind::Managed | Kind::Beginning);
        self.page.filter(|_| managed).map(|page| &page.counters)
    }

    /// About what of its private memory is Terrace's own.
    fn own(&self) -> u64 {
        self.books().map_or(0, |counters| {
            let absent = counters.stored_pages.load(Relaxed) + counters.same_pages.load(Relaxed);
            let bytes = self.inside + counters.spill_bytes.load(Relaxed);
            let touched = absent + bytes / PageSize::Base.bytes().get();
            OWN + counters.store_bytes.load(Relaxed) + touched * OWN_A_PAGE
        })
    }

    /// Private memory that the sum had and its mappings, which were read later, have not: the program
    /// gave it back in between. Managed memory may have gone to where Terrace keeps it.
    fn gone(&self, mappings: &Mappings) -> u64 {
        let inside = match (self.kind, self.books()) {
            (Kind::Managed, _) => self.inside,
            // What it only may have is among its mappings, as long as it is not managed.
            (_, Some(counters)) => counters.resident_bytes.load(Relaxed),
            (_, None) => 0,
        };
        let own = self.own().max(mappings.own_anonymous);
        self.memory.private.saturating_sub(inside + mappings.anonymous + own)
    }

    /// Its private memory by cause, as its mappings tell.
    fn of_private(&self, mappings: &Mappings) -> ByCause {
        let mut causes = ByCause::default();
        for cause in Cause::ALL {
            causes[self.cause_of_private(cause) as usize] += mappings.causes[cause as usize];
        }
        match self.kind {
            // Nobody has told of it.
            Kind::Managed => causes[Cause::NotAsked as usize] += mappings.expected,
            // It has its share for that. Ranges at places of the program's own choice are in it,
            // too, and look as others do.
            Kind::Dormant | Kind::Beginning => {
                // Of the heap it knows only what the C library does: that may have grown by the
                // system call.
                if let Some(free) = self.free {
                    let more = mappings.expected.saturating_sub(self.inside.max(free));
                    causes[Cause::NotAsked as usize] += more;
                }
                let mut known = self.inside.saturating_sub(mappings.expected);
                for cause in [Cause::NotAsked, Cause::TooLarge, Cause::Small] {
                    let less = known.min(causes[cause as usize]);
                    causes[cause as usize] -= less;
                    known -= less;
                }
            }
            Kind::GivenUp | Kind::Plain => {
                causes[self.cause_of_private(Cause::GivenUp) as usize] += mappings.expected;
            }
        }
        causes
    }

    /// Why memory lies outside that would be outside for another cause in a managed process.
    fn cause_of_private(&self, cause: Cause) -> Cause {
        match (self.kind, cause) {
            (Kind::Plain, _) => Cause::OtherProcesses,
            (Kind::GivenUp, Cause::NotAsked | Cause::Small | Cause::TooLarge) => Cause::GivenUp,
            _ => cause,
        }
    }
}

/// Whether a page is of the program that its process runs now.
fn is_of(page: &ProcessPage, process: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    name.trim_end() == page.text(Text::Command)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    /// No process has this number.
    const NOBODY: u32 = u32::MAX - 1;

    /// What looks at the processes of a run in a directory, one of which has a page with this number.
    fn watch(directory: &Path) -> (OutsideWatch, &'static BrokerPage, &'static ProcessPage) {
        let file = directory.join("budget");
        let slots = BrokerPage::create(&file).unwrap();
        let (library, budget, region) = (Path::new("library"), Bytes::mib(16), Bytes::kib(64));
        let watch = OutsideWatch::new(library, directory, Some(&file), budget, false, region);
        let page = ProcessPage::anonymous().unwrap();
        page.pid.store(NOBODY, Relaxed);
        page.namespace.store(process_namespace(), Relaxed);
        (watch, slots, page)
    }

    /// It had mapped the same 48 MiB three times, and counted for 144 MiB: its end came between the two
    /// questions of one look, what processes have said and which there are.
    #[test]
    fn who_ends_during_a_look_has_what_it_mapped_several_times_once() {
        let directory = tempfile::tempdir().unwrap();
        let (mut watch, slots, page) = watch(directory.path());
        let (shared, most) = (144 * MIB, 150 * MIB);
        let once = Once { shared: 48 * MIB, ..Once::default() };
        watch.round = Round { at: Some(Instant::now()), processes: 1, sum: shared, once };
        let memory = Memory { shared, most, ..Memory::default() };
        let found = |watch: &OutsideWatch| watch.found.causes[Cause::Shared as usize] / MIB;
        watch.look_by(&[page], |process| (process == NOBODY).then_some(memory));
        assert_eq!(found(&watch), 48);

        let (process, family, run) = (NOBODY, NOBODY, run_number(directory.path()));
        let ending = Ending { run, process, family, shared, most, ..Ending::default() };
        watch.look_by(&[page], |process| {
            if process == NOBODY {
                slots.endings().push(&ending);
            }
            None
        });
        watch.look_by(&[], |_| None);

        assert_eq!((found(&watch), watch.next_ending), (48, 1));
    }

    /// Nothing can be read of it any more: that it is three times the same does not show.
    #[test]
    fn who_ends_before_its_mappings_were_read_is_not_taken_for_one_that_cannot_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let (mut watch, _, page) = watch(directory.path());
        let memory = Memory { shared: 144 * MIB, most: 150 * MIB, ..Memory::default() };

        watch.look_by(&[page], |process| (process == NOBODY).then_some(memory));

        assert_eq!((watch.found.peak, watch.round.at), (0, None));
    }

    /// Terrace's own counted twice, and hid as much of what had gone; what relatives have, too, counted
    /// in part, and seemed to have gone.
    #[test]
    fn what_went_before_its_mappings_were_read_is_what_none_of_them_has() {
        let page = ProcessPage::anonymous().expect("memory");
        page.counters.store_bytes.store(30 * MIB, Relaxed);
        page.counters.resident_bytes.store(60 * MIB, Relaxed);
        let mappings = |outside: u64| Mappings {
            expected: outside * MIB / 2,
            own: 20 * MIB,
            anonymous: outside * MIB,
            own_anonymous: 40 * MIB,
            ..Mappings::default()
        };
        let look = |kind, inside: u64| Look {
            process: 1,
            memory: Memory { private: 200 * MIB, ..Memory::default() },
            page: Some(page),
            kind,
            inside: inside * MIB,
            managed: 0,
            free: None,
        };
        let gone = |kind, inside, outside| look(kind, inside).gone(&mappings(outside)) / MIB;
        assert_eq!(gone(Kind::Managed, 70, 90), 0);
        assert_eq!(gone(Kind::Managed, 70, 40), 50);
        assert_eq!(gone(Kind::Managed, 70, 190), 0, "some has come");
        assert_eq!(gone(Kind::Beginning, 100, 90), 10, "it has a share for more than is managed");
        assert_eq!(gone(Kind::Dormant, 100, 90), 70, "its share is for what is in its mappings");
        assert_eq!(gone(Kind::Plain, 0, 160), 0);
    }
}
