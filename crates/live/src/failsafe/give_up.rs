//! When something of ours breaks: the program goes on, on plain memory.
//!
//! A thread that panics may have left anything half done, page words busy
//! among it. So nothing is repaired: the books are frozen, the other threads
//! finish what they are at, and every page that is absent is brought in from
//! wherever its content is, whatever the budget. Then nothing is managed any
//! more. Content is never where it cannot be found: a page that leaves is named
//! by its slot before it moves, and a slot or blob is given up only after the
//! page is in place.

use core::any::Any;
use core::sync::atomic::Ordering::*;

use terrace_core::Nanos;

use crate::evict::staging::{NOBODY, ORPHAN, owner};
use crate::fault::messages::Unkept;
use crate::fault::serve::Served;
use crate::pager::freeze;
use crate::pager::{MANAGER, Pager};
use crate::space::page_state::PageState;
use crate::space::proc_maps::{self, Mapping, Pagemap};
use crate::space::regions::{Region, in_window};
use crate::stats::process_page::{State, Text};
use crate::sys::spin::give_way;
use crate::sys::uffd::{Message, Uffd};
use crate::sys::{self, PAGE};
use crate::workers::command::Command;
use crate::workers::spawn;
use crate::workers::worker::Worker;

/// How long the others may take to finish what they are at (ns). Whoever waits
/// for a page that the broken thread left busy takes it after half of that.
pub const GRACE: u64 = 2_000_000_000;

/// How long registering the program's memory may take (ns): longer than the manager
/// waits for a parent that is being killed.
const BEGINNING: u64 = 30_000_000_000;

/// How long the end of a change of the address space is looked for without a pause (ns): a thread
/// on another processor that was woken is there sooner.
const BETWEEN_CHANGES: u64 = 50_000;

/// How long a manager that broke sleeps at a time (ns): other threads read messages sooner.
const REST: u64 = 320_000_000;

/// Puts the program on plain memory. Called by the thread that broke; returns
/// when it is done, or at once if another one is at it.
pub fn give_up(pager: &Pager, who: usize, why: &str) {
    // First: who sees that this thread has ended its work sees why.
    let already = pager.stop();
    pager.workers[who].busy.store(0, SeqCst);
    if already {
        return;
    }
    // What is registered afterwards would wait for nobody, and what is not yet could
    // not be filled.
    let deadline = sys::now() + BEGINNING;
    while pager.phase.is_beginning() && sys::now() < deadline {
        sys::sleep(100_000);
    }
    pager.stats().state.store(State::Failed as u32, Relaxed);
    pager.stats().set_text(Text::Failure, why);
    pager.freeze.begin(freeze::Why::Broken);
    // Who changes the address space without a pause would keep us from filling it.
    pager.fork.gate.store(1, Release);
    // What they are at must not wait for a processor that nobody wants.
    crate::workers::idle_priority::call_all();
    let deadline = sys::now() + GRACE;
    let others = || pager.workers.iter().any(|w| w.busy.load(SeqCst) != 0);
    while others() && sys::now() < deadline {
        sys::sleep(100_000);
    }
    // Whoever carries out an event has this; it is let go of by a panic, too.
    let mut reading = pager.reading.try_lock();
    while reading.is_none() && sys::now() < deadline + GRACE {
        sys::sleep(100_000);
        reading = pager.reading.try_lock();
    }
    let mut worker = Worker::new(pager, who);
    let brought_in = bring_everything_in(pager, &mut worker);
    let resident = (pager.resident() + brought_in) * PAGE as u64;
    pager.stats().counters.given_up_bytes.store(resident, Relaxed);
    worker.abandon_fork();
    unregister_all(pager);
    pager.phase.set_over();
    pager.fork.gate.store(0, Release);
    pager.commands.stop();
}

/// Unregisters what is managed. Rather than to close the handle: a handler that
/// sleeps on it keeps it open. Whoever waits for a page there is woken.
pub(crate) fn unregister_all(pager: &Pager) {
    let mut ranges: Vec<_> = pager.regions.iter().map(|(_, r)| (r.start(), r.end())).collect();
    ranges.push(pager.fork.watched());
    ranges.push(pager.evict.staging.range());
    ranges.extend(pager.freeze.deferred.lock().moved().into_iter().map(|(at, len)| (at, at + len)));
    unregister_mappings(pager, |m| {
        let known = ranges.iter().any(|&(start, end)| start <= m.end && m.start <= end);
        known || in_window(m.start)
    });
    for (start, end) in ranges {
        if let Err(error @ (libc::EPERM | libc::EACCES | libc::ENOSYS)) =
            pager.uffd().unregister(start, end - start)
        {
            // What was never touched would wait for us for ever.
            lost(pager, error);
        }
    }
}

/// Why the program is on plain memory, where nobody knows better.
const INTERNAL: &str = "internal error";

/// Why a thread broke off what it was at, where that is known.
struct Why(&'static str);

/// Breaks off, in a thread of ours: the program is put on plain memory, and its report says why.
/// Nothing may be half done that others cannot tell.
pub(crate) fn break_off(why: &'static str) -> ! {
    // Not a panic: it is no defect of ours, and nothing is said of where it happened.
    std::panic::resume_unwind(Box::new(Why(why)))
}

/// What [`break_off`] was given, of what a thread broke with.
pub(crate) fn reason(payload: &(dyn Any + Send)) -> &'static str {
    payload.downcast_ref::<Why>().map_or(INTERNAL, |why| why.0)
}

/// The kernel refuses what serving a fault needs: nothing can be managed any more.
pub(crate) fn refused(error: i32) -> ! {
    panic!("the kernel refuses to fill a page: {}", std::io::Error::from_raw_os_error(error));
}

/// Even what would put the program on plain memory is refused: it would read zeros where its
/// content was, or wait for ever.
pub(crate) fn lost(pager: &Pager, error: i32) -> ! {
    const WHY: &str = "absent memory cannot be brought in; the program cannot go on";
    pager.stats().state.store(State::Failed as u32, Relaxed);
    pager.stats().set_text(Text::Failure, WHY);
    sys::complain(&[WHY, ": ", &std::io::Error::from_raw_os_error(error).to_string()]);
    std::process::abort();
}

/// What a program does for which Terrace leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Retires {
    /// It puts a filter on all its threads ([`crate::failsafe::seccomp`]): ours could do nothing any more.
    Filter = 0,
    /// It registers managed memory with a userfaultfd of its own; the kernel gives a range to one
    /// only.
    Userfaultfd = 1,
    /// It asks for memory that its limits leave only without what managing takes.
    Limit = 2,
    /// It leaves a namespace, which the kernel allows processes of one thread.
    Namespace = 3,
    /// It forks, and may open no descriptor any more: the kernel tells of a fork by one.
    Descriptors = 4,
    /// It ends, and leaves its memory to another process (`CLONE_VM`).
    Sharers = 5,
    /// It has as many mappings as a process may have, with those that managing takes.
    Mappings = 6,
}

impl Retires {
    /// Why, in words, by its number.
    pub(crate) fn why_of(number: usize) -> &'static str {
        let known = [
            Self::Filter,
            Self::Userfaultfd,
            Self::Limit,
            Self::Namespace,
            Self::Descriptors,
            Self::Sharers,
            Self::Mappings,
        ];
        known.iter().find(|&&known| known as usize == number).map_or(INTERNAL, |known| known.why())
    }

    /// Whether it is for what managing takes, which is given back afterwards.
    pub const fn gives_back(self) -> bool {
        matches!(self, Self::Limit | Self::Mappings)
    }

    /// Why a program that does is not managed any more.
    pub fn why(self) -> &'static str {
        match self {
            Self::Filter => "it put a filter on the system calls of all its threads",
            Self::Userfaultfd => "it uses userfaultfd itself, on memory that was managed",
            Self::Sharers => "it ended, and another process goes on with its memory (CLONE_VM)",
            Self::Mappings => {
                "it has as many mappings as the kernel allows (vm.max_map_count), with Terrace's"
            }
            Self::Limit => {
                "what it asks for fits its limits only without Terrace (ulimit -v, ulimit -d)"
            }
            Self::Namespace => "it changed its namespace, which only a process of one thread may",
            Self::Descriptors => {
                "it forks and may open no file any more (ulimit -n), which forking takes with Terrace"
            }
        }
    }
}

impl Pager {
    /// In a thread of the program's, signals blocked: puts the program on plain memory, and
    /// returns when none of our threads is left, or too long has passed.
    pub fn retire(&self, because: Retires) {
        // Nobody answers: who puts it on plain memory stops the commands.
        self.commands.ask(self, Command::Retire, because as usize, 0);
        self.await_plain_memory();
        self.leave_program();
        self.ring();
        // Where memory is to be given back afterwards, it cannot be while one is left; on a busy
        // machine, with a file, they take their time.
        let grace = if because.gives_back() { 10 * GRACE } else { GRACE };
        let deadline = sys::now() + grace;
        let threads = || self.workers.iter().map(|w| w.tid.load(Acquire)).filter(|&tid| tid != 0);
        while threads().any(sys::is_thread) && sys::now() < deadline {
            sys::sleep(50_000);
        }
    }
}

/// Ends the calling thread, one of ours. With the last of them the handles close.
pub(crate) fn leave(pager: &Pager) -> ! {
    pager.say_farewell();
    spawn::end()
}

/// Unregisters mappings rather than regions, and up to the next one: a mapping may have
/// grown beyond its region, and may grow while this runs. For the kernel it would be in
/// two parts, of which `mremap` takes one: the program's would fail with `EFAULT`.
fn unregister_mappings(pager: &Pager, wanted: impl Fn(&Mapping) -> bool) {
    // All are read before one is changed: what is merged while it is read comes twice.
    let mut mappings: Vec<(usize, usize, usize)> = Vec::new();
    let mut open = false;
    proc_maps::for_each_mapping(|m| {
        if open && let Some(last) = mappings.last_mut() {
            last.2 = m.start;
        }
        open = wanted(&m);
        if open {
            mappings.push((m.start, m.end, m.end));
        }
    });
    for (start, end, next) in mappings {
        // Something that cannot be registered may have come to lie between them.
        if pager.uffd().unregister(start, next - start).is_err() {
            let _ = pager.uffd().unregister(start, end - start);
        }
    }
}

/// What remains to be done until our threads are to end: messages that were on their way. Whoever
/// unmaps or forks waits until his is read.
pub(crate) fn remain(worker: &mut Worker<'_>) {
    let pager = worker.pager;
    while !pager.is_leaving() {
        if worker.id != MANAGER {
            afterwards(worker, None);
            continue;
        }
        // It is the one that a thread of the program's can wake, to have all of them end: the
        // others sleep at a descriptor of ours. So it does not sleep there.
        pager.sleep_unless(REST, || pager.is_leaving() || pager.uffd().has_message());
        afterwards(worker, Some(Nanos::ZERO));
    }
}

/// Reads a message, if there is one; waits for one so long (`None`: for ever).
fn afterwards(worker: &mut Worker<'_>, wait: Option<Nanos>) {
    let pager = worker.pager;
    pager.await_message(wait);
    let _reading = pager.reading.lock();
    match pager.uffd().read() {
        Some(Message::Fork { child }) => pager.forked(worker, Uffd::from_raw(child)),
        // What had moved when the mappings were listed is not among them.
        Some(Message::Remap { to, .. }) => unregister_mapping(pager, to),
        Some(Message::Fault { page, .. }) => {
            unregister_mapping(pager, page);
            let _ = pager.uffd().wake(page, PAGE);
        }
        _ => {}
    }
}

fn unregister_mapping(pager: &Pager, address: usize) {
    unregister_mappings(pager, |m| (m.start..m.end).contains(&address));
}

/// Brings in what is absent; how many pages that were.
fn bring_everything_in(pager: &Pager, worker: &mut Worker<'_>) -> u64 {
    let mut brought_in = 0;
    let pagemap = Pagemap::open();
    // Pages whose frames are in slots, whatever their words say.
    let staging = &pager.evict.staging;
    let staged: Vec<(u64, u32)> = (0..staging.slots())
        .map(|slot| (staging.owner_of(slot).load(Acquire), slot))
        .filter(|&(owner, slot)| {
            owner != NOBODY
                && owner != ORPHAN
                // Where the kernel does not say, what the page's own place holds decides.
                && pagemap.is_present(staging.address(slot)) != Some(false)
        })
        .collect();
    for (id, region) in pager.regions.iter() {
        region.for_each_touched(0, region.pages(), |first, count| {
            for page in first..first + count {
                let who = owner(id, page);
                let slot = staged.iter().find(|&&(o, _)| o == who).map(|&(_, slot)| slot);
                if let Some(slot) = slot
                    && PageState::of(region.word(page).load(Acquire)) == PageState::Resident
                {
                    // It has moved out, and its word did not say so yet: a child's memory
                    // is filled by the words alone.
                    region.word(page).store(PageState::Staged(slot).word(), Release);
                }
                brought_in += u64::from(bring_in(pager, worker, &pagemap, region, page));
            }
        });
    }
    brought_in
}

/// Brings in a page, if it is absent; whether it was.
fn bring_in(
    pager: &Pager,
    worker: &mut Worker<'_>,
    pagemap: &Pagemap,
    region: &Region,
    page: u32,
) -> bool {
    let origin = region.start() + page as usize * PAGE;
    loop {
        // Asked each time, too: a thread that had no processor for all of its grace ends
        // what it was at now, and what was in a slot is in the store.
        let state = PageState::of(region.word(page).load(Acquire));
        if !state.is_held() {
            return false;
        }
        // Asked each time: the messages read below may move or discard it.
        let Some(address) = pager.freeze.deferred.lock().destination(origin) else { return false };
        // What is there is newer than what we hold, and what we hold may be
        // half freed.
        if pagemap.is_present(address) == Some(true) {
            return false;
        }
        match worker.fill_in(address, state) {
            Served::Done => return true,
            Served::Retry => {}
            Served::Refused(error) => lost(pager, error),
        }
        // The address space is changing: that waits for its message to be read, and is over when
        // the thread that was told so has run.
        let mut unkept = Unkept::default();
        let mut is_awaited = false;
        while let Some(message) = pager.uffd().read() {
            is_awaited = true;
            match message {
                Message::Fault { page, .. } => unkept.add(page),
                Message::Fork { child } => pager.forked(worker, Uffd::from_raw(child)),
                event => pager.freeze.deferred.lock().push(event),
            }
        }
        unkept.wake(pager.uffd());
        // It may begin the next change at once: whoever lets it have our processor finds it there.
        let until = sys::now() + if is_awaited { BETWEEN_CHANGES } else { 0 };
        while pager.uffd().is_changing() {
            if sys::now() >= until {
                give_way();
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::fixture::pager;

    /// What managing takes could not be given back: the others slept where only one of ours could
    /// have woken them.
    #[test]
    fn a_manager_that_broke_ends_when_a_thread_of_the_program_s_rings() {
        let pager = pager(1);
        let manager = std::thread::spawn(move || remain(&mut Worker::new(pager, MANAGER)));
        while !pager.bell.is_asleep() {
            std::thread::yield_now();
        }
        pager.leave_program();
        pager.ring();
        manager.join().expect("no panic");
    }

    #[test]
    fn each_reason_to_leave_has_a_number_and_words_of_its_own() {
        let all = [
            Retires::Filter,
            Retires::Userfaultfd,
            Retires::Limit,
            Retires::Namespace,
            Retires::Descriptors,
            Retires::Sharers,
            Retires::Mappings,
        ];
        for retires in all {
            assert_eq!(Retires::why_of(retires as usize), retires.why());
        }
        assert_eq!(Retires::why_of(99), INTERNAL);
    }

    #[test]
    fn why_a_thread_broke_off_is_known_and_a_panic_is_an_internal_error() {
        let broke = std::panic::catch_unwind(|| break_off("the kernel gave no memory"));
        assert_eq!(reason(&*broke.unwrap_err()), "the kernel gave no memory");
        let panicked = std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new("oops")));
        assert_eq!(reason(&*panicked.unwrap_err()), INTERNAL);
    }
}
