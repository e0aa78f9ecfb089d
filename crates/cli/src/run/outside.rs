//! Memory of a run's processes that lies outside of the budget, by what the kernel counts of them.
//!
//! What Terrace manages it knows; what it was never asked for it does not: shared memory, what is
//! mapped by system calls past the C library, processes without the library. A report that says
//! that a budget was kept would be silent about it. So all processes are looked at from outside:
//! often and cheaply in sum (`/proc/PID/status`), and mapping by mapping (`smaps`), which takes
//! longer, where the sum shows that there is something to be told apart.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use terrace_core::{Bytes, PageSize};
use terrace_live::attach::targets;
use terrace_live::broker::page::{BrokerPage, Slot};
use terrace_live::shared::{ProcessPage, State, Text, process_namespace};
use terrace_report::outside::{Cause, OutsideCause, OutsideReport};

use super::memory::{ByCause, Known, Mappings, Memory};
use super::plain::PlainWatch;
use crate::runs::{self, Beside};

/// How often it is looked: often at first, for many programs do not run for long; less often where
/// looking takes long, so that it takes a fiftieth of a processor at most.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));
/// One look for so many parts of the time that has passed.
const PACE: u32 = 8;
const COST: u32 = 50;
/// What reading mappings may take: so much at first, and a twentieth of a processor.
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
/// What is told: so much, or a budget's 64th if that is more. Every process has a few MiB that
/// are not managed.
const LEAST: Bytes = Bytes::mib(8);
const PART: u64 = 64;
/// A file system in memory (`linux/magic.h`).
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Looks at all processes of a run.
pub(super) struct OutsideWatch {
    plain: PlainWatch,
    /// Where processes that are, or may come to be, managed say what they have.
    slots: Option<&'static BrokerPage>,
    /// The run's directory, and whether its files lie in memory.
    directory: PathBuf,
    in_memory: bool,
    /// The name space of process numbers that is ours.
    namespace: u64,
    min_region: Bytes,
    least: u64,
    started: Instant,
    due: Instant,
    /// Spent on reading mappings.
    reading: Duration,
    seen: BTreeMap<u32, Seen>,
    sharing: Sharing,
    now: ByCause,
    /// Whether much has come since the look before.
    grows: bool,
    found: Found,
    /// What others have been told.
    published: (ByCause, u64, u64),
}

/// The most that was seen.
#[derive(Default)]
struct Found {
    causes: ByCause,
    peak: u64,
    with_managed: u64,
    own: u64,
}

/// A process that was seen before.
struct Seen {
    since: Instant,
    /// Since when it is managed.
    managed: Option<Instant>,
    read: Option<Read>,
}

/// What reading its mappings has shown.
struct Read {
    at: Instant,
    mappings: Mappings,
    /// What the sum then said to be outside, and private.
    estimate: u64,
    /// Who had shared memory then.
    sharing: Sharing,
}

/// Shared memory of all processes in sum: as it comes and goes, so do the parts of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sharing {
    processes: u64,
    resident: u64,
}

impl Sharing {
    /// Whether parts that were read then are right now: there is one that has all, or little has
    /// changed.
    fn is_like(self, now: Self) -> bool {
        now.processes <= 1
            || self.processes == now.processes
                && self.resident.abs_diff(now.resident) <= now.resident / 8
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
        min_region: Bytes,
    ) -> Self {
        let now = Instant::now();
        let slots = broker.and_then(|page| BrokerPage::open(page).ok());
        Self {
            plain: PlainWatch::new(library, budget),
            slots,
            directory: directory.join(""),
            in_memory: rustix::fs::statfs(directory).is_ok_and(|fs| fs.f_type == TMPFS),
            namespace: process_namespace(),
            min_region,
            least: least(budget).get(),
            started: now,
            due: now + INTERVAL.0,
            reading: Duration::ZERO,
            seen: BTreeMap::new(),
            sharing: Sharing::default(),
            now: ByCause::default(),
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
        self.look(&pages());
        let read = self.reading.saturating_sub(reading);
        let took = started.elapsed().saturating_sub(read);
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

    fn look(&mut self, pages: &[&ProcessPage]) {
        let here = self.namespace;
        let living = |page: &&&ProcessPage| {
            !page.has_ended() && page.pid() != 0 && page.namespace.load(Relaxed) == here
        };
        let pages: BTreeMap<u32, &ProcessPage> =
            pages.iter().filter(living).map(|page| (page.pid(), *page)).collect();
        let mut processes: BTreeSet<u32> = pages.keys().copied().collect();
        processes.extend(targets::started(std::process::id()));
        let memory: BTreeMap<u32, Memory> = processes
            .into_iter()
            .filter_map(|process| Some((process, Memory::of(process)?)))
            .collect();
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
                Look::new(process, memory, page, slot(process), plain, settled)
            })
            .collect();
        self.seen.retain(|process, _| memory.contains_key(process));
        self.add_up(&looks, &memory);
    }

    fn add_up(&mut self, looks: &[Look<'_>], memory: &BTreeMap<u32, Memory>) {
        let started = Instant::now();
        for look in looks {
            let new = || Seen { since: started, managed: None, read: None };
            let seen = self.seen.entry(look.process).or_insert_with(new);
            match look.kind {
                Kind::Managed | Kind::Beginning => {
                    seen.managed.get_or_insert(started);
                }
                _ => seen.managed = None,
            }
        }
        let grown: Vec<_> = looks.iter().filter(|look| !self.is_young(look, memory)).collect();
        let shared = grown.iter().map(|look| look.memory.shared).filter(|&bytes| bytes >= LITTLE);
        self.sharing = Sharing { processes: shared.clone().count() as u64, resident: shared.sum() };
        let estimate: u64 = grown.iter().map(|look| look.private() + look.memory.shared).sum();
        let managed: u64 = looks.iter().map(|look| look.managed).sum();
        let (mut now, mut own) = (ByCause::default(), 0);
        // As long as there is little in sum nothing has to be told apart.
        if estimate >= self.least {
            for look in grown {
                let (causes, of_ours) = self.told_apart(look);
                now.iter_mut().zip(causes).for_each(|(now, bytes)| *now += bytes);
                own += of_ours;
            }
        }
        let sum: u64 = now.iter().sum();
        // What grows fast is looked at often.
        self.grows = sum >= self.now.iter().sum::<u64>() + self.least;
        self.now = now;
        self.found.own = self.found.own.max(own);
        if sum >= self.least {
            self.found.peak = self.found.peak.max(sum);
            self.found.with_managed = self.found.with_managed.max(sum + managed);
            for (most, now) in self.found.causes.iter_mut().zip(now) {
                *most = now.max(*most);
            }
        }
    }

    /// Whether a process is a child that was just forked.
    fn is_young(&self, look: &Look<'_>, memory: &BTreeMap<u32, Memory>) -> bool {
        let program = |process| fs::read_link(format!("/proc/{process}/exe")).ok();
        let parent = look.memory.parent;
        !matches!(look.kind, Kind::Managed | Kind::Beginning)
            && look.private() >= LITTLE
            && self.seen.get(&look.process).is_some_and(|seen| seen.since.elapsed() < CHILDHOOD)
            && memory.contains_key(&parent)
            && program(parent) == program(look.process)
    }

    /// What of a process lies outside, by cause, and how much of it is Terrace's own.
    fn told_apart(&mut self, look: &Look<'_>) -> (ByCause, u64) {
        if look.private() + look.memory.shared >= LITTLE && self.should_read(look) {
            self.read(look);
        }
        let read = self.seen.get(&look.process).and_then(|seen| seen.read.as_ref());
        let mut causes = ByCause::default();
        // As if all had the same, as long as it is not known who has what.
        let even = look.memory.shared / self.sharing.processes.max(1);
        let Some(Read { mappings, estimate, sharing, .. }) = read else {
            causes[look.cause_of_private(Cause::NotAsked) as usize] += look.private();
            causes[look.cause_of_private(Cause::Shared) as usize] += even;
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
        let of_ours = if self.in_memory { mappings.own_files } else { 0 };
        let shared = if sharing.is_like(self.sharing) {
            mappings.part_of_shared(look.memory.shared.saturating_sub(of_ours))
        } else {
            even
        };
        causes[look.cause_of_private(Cause::Shared) as usize] += shared;
        (causes, mappings.own)
    }

    fn should_read(&self, look: &Look<'_>) -> bool {
        let allowed = READING + self.started.elapsed() / READING_COST;
        let read = self.seen.get(&look.process).and_then(|seen| seen.read.as_ref());
        self.reading < allowed
            && read.is_none_or(|read| {
                let changed = read.estimate.abs_diff(look.private());
                read.at.elapsed() >= READ_AGAIN
                    || changed > CHANGED.max(read.estimate / 4)
                    || look.memory.shared >= LITTLE && !read.sharing.is_like(self.sharing)
            })
    }

    /// Reads a process's mappings.
    fn read(&mut self, look: &Look<'_>) {
        let started = Instant::now();
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
        let mappings = Mappings::of(look.process, &known);
        if let Some(seen) = self.seen.get_mut(&look.process)
            && let Ok(mappings) = mappings
        {
            let (estimate, sharing) = (look.private(), self.sharing);
            seen.read = Some(Read { at: started, mappings, estimate, sharing });
        }
        self.reading += started.elapsed();
    }

    /// What is told, MiB: by cause, the most, and that of processes without the library.
    fn told(&self) -> (ByCause, u64, u64) {
        let now = if self.found.peak == 0 { ByCause::default() } else { self.now };
        (now.map(|bytes| bytes >> 20), self.found.peak >> 20, self.plain.peak().get() >> 20)
    }

    /// What was found.
    pub(super) fn report(&self) -> Beside {
        Beside { plain: self.plain.report(), outside: self.outside() }
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

/// What is told of a run with this budget.
fn least(budget: Bytes) -> Bytes {
    LEAST.max(budget / PART)
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
        Self { process, memory, page, kind, inside, managed }
    }

    /// Private memory that is neither inside nor, as far as its statistics say, Terrace's own.
    fn private(&self) -> u64 {
        let managed = matches!(self.kind, Kind::Managed | Kind::Beginning);
        let own = self.page.filter(|_| managed).map_or(0, |page| {
            let counters = &page.counters;
            let absent = counters.stored_pages.load(Relaxed) + counters.same_pages.load(Relaxed);
            let bytes = self.inside + counters.spill_bytes.load(Relaxed);
            let touched = absent + bytes / PageSize::Base.bytes().get();
            OWN + counters.store_bytes.load(Relaxed) + touched * OWN_A_PAGE
        });
        self.memory.private.saturating_sub(self.inside + own)
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
