//! The limit of a run's group of version 1, a little above the budget: whoever allocates beyond it
//! puts memory out first, at the kernel's own pace, as `memory.high` has it under version 2.
//!
//! A limit kills where the kernel finds nothing to put out. So it is in force only where it will
//! find something, and what is left to chance harms nobody:
//!
//! - the killer is off (`memory.oom_control`): a thread that faults for a page waits instead;
//! - the kernel wakes the guard then, which raises the limit at once;
//! - before that, it is raised a little as soon as threads are at it and nothing leaves;
//! - it is taken off as swap comes to its end, which the guard looks for.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrace_core::{Bytes, Nanos};
use terrace_live::sys;

use crate::files::{named, number, write};
use crate::setup::group::Group;

/// Where it is, above the budget: below what is promised (5 %), and above what room is made for.
const ABOVE: f64 = 0.03;
/// It is no nearer than this: what processors have charged ahead (64 pages each) counts as used.
const LEAST_ABOVE: Bytes = Bytes::kib(512);
/// It is lowered only to so much above what is charged, so that the guard does not reclaim itself. Where
/// it belongs further down it follows what leaves, in steps as large. A processor charges as much
/// ahead, or a huge page, which is more: see [`Bound::is_kept_busy`].
const ABOVE_CHARGED: Bytes = Bytes::kib(256);
/// What is charged, and what lies in swap.
const BOTH: &str = "memory.memsw.usage_in_bytes";
/// Says whether the kernel kills at the limit: what turns that off, and on.
const CONTROL: &str = "memory.oom_control";
const KILLER: (&str, &str) = ("1", "0");
/// No limit, as a number of bytes.
const NONE: u64 = u64::MAX;

/// A limit below what is charged by now is not taken, and the one that was there stands: that is no
/// fault. What is asked next is told that not enough could be found.
fn no_fault(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::ResourceBusy => io::Error::new(io::ErrorKind::WouldBlock, error),
        _ => error,
    }
}

/// The limit.
#[derive(Debug)]
pub(super) struct Bound {
    group: Group,
    /// Where it is to be; [`NONE`] if nowhere. The truth: whoever has set another limit for a while
    /// goes back to this.
    at: AtomicU64,
    /// Whether the kernel has taken one: it may refuse what `at` says.
    on: AtomicBool,
    /// Since when (ns) the guard is setting one; 0 while it is not.
    since: AtomicU64,
}

impl Bound {
    /// Has the group's threads wait where they would be killed, and signals an event then. No limit
    /// is set yet.
    ///
    /// # Errors
    /// If this kernel cannot do both, or does not count swap, by which it is seen whether anything
    /// leaves; the killer is on then.
    pub(super) fn new(group: Group, waits: &OwnedFd) -> io::Result<Self> {
        let both = group.directory().join(BOTH);
        if number(&both).is_none() {
            let lack = io::Error::new(io::ErrorKind::Unsupported, "swap is not counted");
            return Err(named(&both, &lack));
        }
        let control = group.directory().join(CONTROL);
        let tell = || {
            let events = File::open(&control).map_err(|e| named(&control, &e))?;
            let (event, events) = (waits.as_raw_fd(), events.as_raw_fd());
            write(&group.directory().join("cgroup.event_control"), &format!("{event} {events}"))
        };
        tell()?;
        write(&control, KILLER.0)?;
        let (at, on, since) = (AtomicU64::new(NONE), AtomicBool::new(false), AtomicU64::new(0));
        Ok(Self { group, at, on, since })
    }

    /// Where it belongs, for a budget and files' pages beside it.
    pub(super) fn place(fast: Bytes, files: Bytes) -> Bytes {
        // Nobody is promised more than 5 %, however small the budget.
        let above = Bytes::from_f64(fast.as_f64() * ABOVE).max(LEAST_ABOVE.min(fast / 25));
        fast + above + files
    }

    /// How much above a place it is to be, as the kernel has taken it.
    pub(super) fn above(&self, place: Bytes) -> Bytes {
        Bytes(self.at.load(Ordering::Acquire)) - place
    }

    /// Whether it is in force.
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Has it at so much, or nowhere. If so much is charged already it is just above that, so that no
    /// more comes: files' pages that were dropped do not make room beside the budget. Whether it is in
    /// force.
    ///
    /// # Errors
    /// The system's. It is where it was then, and what is wanted is to be tried again.
    pub(super) fn set(&self, at: Option<Bytes>, charged: Bytes) -> io::Result<bool> {
        let old = self.at.load(Ordering::Acquire);
        // More may have come since the caller looked, who has read other files meanwhile.
        let is_lower = at.is_some_and(|at| at.get() < old);
        let now = if is_lower { self.group.charged() } else { None };
        let charged = now.map_or(charged, |now| now.max(charged));
        let near = (charged + ABOVE_CHARGED).get();
        let new = match at.map(Bytes::get) {
            Some(at) if near <= at || old <= at => at,
            Some(_) if old == NONE || near + ABOVE_CHARGED.get() <= old => near,
            Some(_) => old,
            None => NONE,
        };
        if new != old {
            self.change(old, new)?;
        }
        Ok(new != NONE)
    }

    /// Where it comes down to `place` with what is charged, and never up from where it is: room is made
    /// in small steps, and what has been gained stays.
    pub(super) fn following(&self, place: Bytes, charged: Bytes) -> Bytes {
        let near = charged + ABOVE_CHARGED * 2;
        match self.at.load(Ordering::Acquire) {
            NONE => place.max(near),
            old => place.max(near.min(Bytes(old))),
        }
    }

    /// Raises it by a step, and to so much at least. Where there is none there is none afterwards.
    ///
    /// # Errors
    /// As [`Bound::set`].
    pub(super) fn raise(&self, step: Bytes, least: Bytes) -> io::Result<()> {
        let old = self.at.load(Ordering::Acquire);
        // Whoever has lowered it for a while may not have gone back yet: it is written in any case.
        self.change(old, old.saturating_add(step.get()).max(least.get()))
    }

    /// Whether the kernel has been at a limit of the guard's for so long. One below what is charged
    /// it takes only once it has put the difference out, in the thread that sets it. As much as
    /// [`ABOVE_CHARGED`] and more can come just then, and faster than it leaves; and meanwhile the guard
    /// neither looks nor brakes. A signal has it give up.
    pub(super) fn is_kept_busy(&self, how_long: Nanos) -> bool {
        let since = self.since();
        since != 0 && sys::now().saturating_sub(since) > how_long.get()
    }

    /// Since when (ns) it is; 0 if it is not.
    pub(super) fn since(&self) -> u64 {
        self.since.load(Ordering::Acquire)
    }

    fn change(&self, old: u64, new: u64) -> io::Result<()> {
        self.since.store(sys::now(), Ordering::Release);
        let changed = self.try_to_change(old, new);
        self.since.store(0, Ordering::Release);
        changed
    }

    fn try_to_change(&self, old: u64, new: u64) -> io::Result<()> {
        self.at.store(new, Ordering::Release);
        if let Err(error) = self.group.limit_once(limit(new)) {
            let back =
                self.at.compare_exchange(new, old, Ordering::AcqRel, Ordering::Acquire).is_ok();
            if back {
                // A request that ended meanwhile may have set the new one. The error is the first.
                // What ended that is not to end this.
                self.since.store(sys::now(), Ordering::Release);
                let _ = self.group.limit_once(limit(old));
            }
            return Err(error);
        }
        self.on.store(new != NONE, Ordering::Release);
        Ok(())
    }

    /// Has the kernel put so much out, by a limit that is not in force before it is done.
    ///
    /// # Errors
    /// As [`Group::reclaim`]; of kind `WouldBlock`, too, if more was charged meanwhile than what is set
    /// allows.
    pub(super) fn reclaim(&self, bytes: Bytes) -> io::Result<()> {
        let lowered = self.group.lower(bytes);
        // What is set meanwhile must stand.
        let mut at = self.at.load(Ordering::Acquire);
        loop {
            let applied = self.apply(at);
            let now = self.at.load(Ordering::Acquire);
            if now == at {
                return applied.map_err(no_fault).and(lowered);
            }
            // What failed may have been no longer what was wanted: the guard had raised it.
            at = now;
        }
    }

    /// Takes it off for good, and has the kernel kill again where it must: nobody looks after it any more.
    ///
    /// # Errors
    /// The system's, the first one; what can be undone is.
    pub(super) fn end(&self) -> io::Result<()> {
        // Where nothing bounds it nothing waits.
        let off = self.set(None, Bytes::ZERO).map(|_| ());
        off.and(write(&self.group.directory().join(CONTROL), KILLER.1))
    }

    /// Times that a charge did not fit below it, and what lies in swap: where the one grows and the
    /// other stays, nothing is found to put out.
    /// Files' pages leave without lying in swap then: where they count, all pages that have left do.
    pub(super) fn progress(&self, files_count: bool) -> (u64, u64) {
        let of = |file: &str| number(&self.group.directory().join(file)).unwrap_or(0);
        if files_count {
            return (of("memory.failcnt"), self.group.uncharged().unwrap_or(0));
        }
        let used = of("memory.usage_in_bytes");
        (of("memory.failcnt"), of(BOTH).saturating_sub(used))
    }

    fn apply(&self, at: u64) -> io::Result<()> {
        self.group.limit(limit(at))
    }
}

/// What [`Bound::at`] says.
fn limit(at: u64) -> Option<Bytes> {
    (at != NONE).then_some(Bytes(at))
}

/// For how long charges have been refused at the limit while nothing left: from the first one on, since
/// a thread that comes to it after a quiet while has not waited yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// [`Bound::progress`] as something left last.
    was: (u64, u64),
    /// When the first charge after that was seen to be refused.
    refused: Option<Instant>,
}

impl Patience {
    /// Begins as something has left, or as nobody was at the limit.
    pub(super) fn since(is: (u64, u64)) -> Self {
        Self { was: is, refused: None }
    }

    /// Whether something has left since it began.
    pub(super) fn has_left(&self, is: (u64, u64)) -> bool {
        is.1 != self.was.1
    }

    /// Whether that has been so for as long as it may be; `is` is looked at again and again.
    pub(super) fn is_over(&mut self, is: (u64, u64), now: Instant, at_most: Duration) -> bool {
        is.0 > self.was.0 && now >= *self.refused.get_or_insert(now) + at_most
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;
    use crate::setup::group::event;

    /// A group of version 1 that is a directory.
    pub(crate) struct Directory(tempfile::TempDir);

    impl Directory {
        pub(crate) fn new() -> (Self, Group) {
            let directory = Self(tempfile::tempdir().unwrap());
            for file in ["memory.limit_in_bytes", "memory.oom_control", "cgroup.event_control"] {
                directory.put(file, "");
            }
            directory.put("memory.stat", "total_cache 0\ntotal_shmem 0\ntotal_unevictable 0\n");
            directory.put(BOTH, "0\n");
            directory.charge(Bytes::ZERO);
            let group = Group::at(directory.0.path()).unwrap();
            (directory, group)
        }

        pub(crate) fn put(&self, file: &str, text: &str) {
            // In one step, as the kernel's files change.
            let new = self.0.path().join("new");
            fs::write(&new, text).unwrap();
            fs::rename(new, self.0.path().join(file)).unwrap();
        }

        pub(crate) fn charge(&self, bytes: Bytes) {
            self.put("memory.usage_in_bytes", &format!("{}\n", bytes.get()));
        }

        /// Has whoever writes this file fail, or no longer.
        pub(crate) fn refuse(&self, file: &str, refuse: bool) {
            let path = self.0.path().join(file);
            if refuse {
                fs::remove_file(&path).unwrap();
                fs::create_dir(&path).unwrap();
            } else {
                fs::remove_dir(&path).unwrap();
                self.put(file, "");
            }
        }

        /// Has whoever writes this file wait until a signal comes, for as long as what is returned
        /// is there: a pipe that is full.
        pub(crate) fn hold_up(&self, file: &str) -> File {
            let mut pipe = self.listen(file);
            while let Ok(1..) = pipe.write(&[0; 4096]) {}
            pipe
        }

        /// What is written there is read from what is returned, one write after the other: a pipe.
        pub(crate) fn listen(&self, file: &str) -> File {
            let new = self.0.path().join("new");
            let path = CString::new(new.as_os_str().as_bytes()).unwrap();
            // SAFETY: a path of the test's.
            assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
            let mut options = File::options();
            options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
            let pipe = options.open(&new).unwrap();
            fs::rename(new, self.0.path().join(file)).unwrap();
            pipe
        }

        pub(crate) fn peek(&self, file: &str) -> String {
            fs::read_to_string(self.0.path().join(file)).unwrap()
        }

        /// What was written there since the last time.
        pub(crate) fn take(&self, file: &str) -> String {
            let path = self.0.path().join(file);
            let text = fs::read_to_string(&path).unwrap();
            self.put(file, "");
            text
        }
    }

    #[test]
    fn it_lies_above_the_budget_and_below_what_is_promised() {
        for fast in [Bytes::mib(8), Bytes::mib(22), Bytes::gib(1), Bytes::gib(512)] {
            let at = Bound::place(fast, Bytes::ZERO);
            let above = (at - fast).as_f64() / fast.as_f64();
            assert!((0.029..0.045).contains(&above), "{fast}: {above}");
            assert_eq!(
                Bound::place(fast, Bytes::mib(7)) - at,
                Bytes::mib(7),
                "files are beside it"
            );
        }
    }

    /// The killer is off before there is any limit.
    #[test]
    fn nobody_is_killed_at_it_and_who_waits_there_is_told_of() {
        let (directory, group) = Directory::new();
        let waits = event().unwrap();
        let bound = Bound::new(group.clone(), &waits).unwrap();
        assert_eq!(directory.take("memory.oom_control"), "1");
        let said = directory.take("cgroup.event_control");
        assert!(said.starts_with(&format!("{} ", waits.as_raw_fd())), "{said}");
        assert_eq!(directory.take("memory.limit_in_bytes"), "");
        assert!(!bound.is_on());
        // One that the program has made begins with what is above it.
        let below = directory.0.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join("memory.oom_control"), "1").unwrap();
        group.release().unwrap();
        assert_eq!(directory.take("memory.oom_control"), "0", "as it was made");
        assert_eq!(fs::read_to_string(below.join("memory.oom_control")).unwrap(), "0");
    }

    #[test]
    fn it_is_never_set_below_what_is_charged() {
        let (directory, group) = Directory::new();
        let bound = Bound::new(group, &event().unwrap()).unwrap();
        let at = |mib| Some(Bytes::mib(mib));
        let limit = |directory: &Directory| directory.take("memory.limit_in_bytes");

        assert!(bound.set(at(10), Bytes::mib(2)).unwrap());
        assert_eq!(limit(&directory), (10 << 20).to_string());
        // A lower budget: what is there has to leave first.
        assert!(bound.set(at(6), Bytes::mib(8)).unwrap());
        assert_eq!(
            limit(&directory),
            ((8 << 20) + ABOVE_CHARGED.get()).to_string(),
            "no more comes"
        );
        assert!(bound.set(at(6), Bytes::mib(8) - Bytes::kib(200)).unwrap());
        assert_eq!(limit(&directory), "", "not for so little");
        assert!(bound.set(at(6), Bytes::mib(5)).unwrap());
        assert_eq!(limit(&directory), (6 << 20).to_string());
        // Files' pages have come.
        assert!(bound.set(at(7), Bytes::mib(6)).unwrap());
        assert_eq!(limit(&directory), (7 << 20).to_string());
        assert!(!bound.set(None, Bytes::mib(6)).unwrap() && !bound.is_on());
        assert_eq!(limit(&directory), "-1");
        assert!(bound.set(at(7), Bytes::mib(9)).unwrap());
        assert_eq!(limit(&directory), ((9 << 20) + ABOVE_CHARGED.get()).to_string());
    }

    /// The guard reads what files' pages are between its look and this.
    #[test]
    fn what_has_come_since_the_look_counts() {
        let (directory, group) = Directory::new();
        let bound = Bound::new(group, &event().unwrap()).unwrap();
        let at = |mib| Some(Bytes::mib(mib));
        directory.charge(Bytes::mib(9));
        assert!(bound.set(at(7), Bytes::mib(6)).unwrap());
        let near = (Bytes::mib(9) + ABOVE_CHARGED).get().to_string();
        assert_eq!(directory.take("memory.limit_in_bytes"), near);
        assert_eq!(bound.since(), 0, "it is set");
    }

    #[test]
    fn it_follows_what_is_charged_down_to_its_place() {
        let (directory, group) = Directory::new();
        let bound = Bound::new(group, &event().unwrap()).unwrap();
        let mib = Bytes::mib;
        let at = bound.following(mib(10), mib(14));
        assert_eq!(at, mib(14) + ABOVE_CHARGED * 2, "there was none");
        bound.set(Some(at), mib(14)).unwrap();
        assert_eq!(bound.following(mib(10), mib(14) + ABOVE_CHARGED * 2), at, "not up");
        let lower = bound.following(mib(10), mib(12));
        assert_eq!(lower, mib(12) + ABOVE_CHARGED * 2);
        assert!(bound.set(Some(lower), mib(12)).unwrap());
        assert_eq!(bound.following(mib(10), mib(9)), mib(10));
        assert_eq!(bound.following(mib(20), mib(12)), mib(20), "a larger budget");
        assert!(directory.peek("memory.limit_in_bytes").starts_with(&lower.get().to_string()));
    }

    /// The kernel would have to reclaim at once otherwise, in the guard.
    #[test]
    fn it_is_raised_from_where_it_is_and_not_lowered() {
        let (directory, group) = Directory::new();
        let bound = Bound::new(group, &event().unwrap()).unwrap();
        let limit = |directory: &Directory| directory.take("memory.limit_in_bytes");
        bound.set(Some(Bytes::mib(10)), Bytes::mib(9)).unwrap();
        limit(&directory);
        // A lower budget, which belongs at 6 MiB, and is not there yet.
        bound.set(Some(Bytes::mib(6)), Bytes::mib(10) - ABOVE_CHARGED).unwrap();
        bound.raise(Bytes::mib(1), Bytes::mib(7)).unwrap();
        assert_eq!(limit(&directory), (11 << 20).to_string());
        bound.raise(Bytes::mib(1), Bytes::mib(20)).unwrap();
        assert_eq!(limit(&directory), (20 << 20).to_string());
        bound.set(None, Bytes::ZERO).unwrap();
        limit(&directory);
        bound.raise(Bytes::mib(1), Bytes::mib(20)).unwrap();
        assert_eq!(limit(&directory), "-1");
        assert!(!bound.is_on());
    }

    #[test]
    fn a_limit_that_the_kernel_refuses_is_not_in_force_and_is_tried_again() {
        let (directory, group) = Directory::new();
        let bound = Bound::new(group, &event().unwrap()).unwrap();
        directory.refuse("memory.limit_in_bytes", true);
        assert!(bound.set(Some(Bytes::mib(10)), Bytes::ZERO).is_err());
        assert!(!bound.is_on());
        directory.refuse("memory.limit_in_bytes", false);
        assert!(bound.set(Some(Bytes::mib(10)), Bytes::ZERO).unwrap() && bound.is_on());
        assert_eq!(directory.take("memory.limit_in_bytes"), (10 << 20).to_string());
        directory.refuse("memory.limit_in_bytes", true);
        assert!(bound.set(Some(Bytes::mib(6)), Bytes::ZERO).is_err());
        assert!(bound.is_on(), "where it was");
    }

    #[test]
    fn patience_is_counted_from_the_first_charge_that_is_refused() {
        let begin = Instant::now();
        let most = Duration::from_millis(5);
        let after = |ms| begin + Duration::from_millis(ms);
        let mut patience = Patience::since((7, 100));
        assert!(!patience.is_over((7, 100), after(900), most), "nobody is at it");
        assert!(!patience.is_over((8, 100), after(1000), most), "the first one");
        assert!(!patience.is_over((9, 100), after(1004), most));
        // A pass of the kernel's takes a while: not all looks see another charge refused.
        assert!(patience.is_over((9, 100), after(1005), most));
        assert!(!patience.has_left((9, 100)) && patience.has_left((9, 101)));
    }

    #[test]
    fn the_killer_is_on_again_after_its_end_even_if_the_limit_cannot_be_taken_off() {
        let (directory, group) = Directory::new();
        let bound = Bound::new(group, &event().unwrap()).unwrap();
        bound.set(Some(Bytes::mib(10)), Bytes::ZERO).unwrap();
        directory.take(CONTROL);
        directory.refuse("memory.limit_in_bytes", true);
        let error = bound.end().unwrap_err();
        assert!(error.to_string().contains("memory.limit_in_bytes"), "{error}");
        assert_eq!(directory.take(CONTROL), "0");
        directory.refuse("memory.limit_in_bytes", false);
        bound.end().unwrap();
        assert_eq!(directory.take("memory.limit_in_bytes"), "-1");
    }

    /// Nobody would see whether anything leaves.
    #[test]
    fn there_is_none_where_swap_is_not_counted() {
        let (directory, group) = Directory::new();
        fs::remove_file(directory.0.path().join(BOTH)).unwrap();
        let error = Bound::new(group, &event().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert_eq!(directory.take("memory.oom_control"), "", "the killer is on");
    }

    /// An error of any other kind ends the budget of the run.
    #[test]
    fn a_limit_that_more_was_charged_than_is_no_fault() {
        let failed = |number| {
            let error = io::Error::from_raw_os_error(number);
            no_fault(named(std::path::Path::new("memory.limit_in_bytes"), &error))
        };
        assert_eq!(failed(libc::EBUSY).kind(), io::ErrorKind::WouldBlock);
        assert_eq!(failed(libc::EACCES).kind(), io::ErrorKind::PermissionDenied);
        assert!(failed(libc::EBUSY).to_string().contains("memory.limit_in_bytes"));
    }

    #[test]
    fn who_lowers_it_for_a_while_goes_back_to_where_it_was() {
        let (directory, group) = Directory::new();
        let bound = Bound::new(group, &event().unwrap()).unwrap();
        bound.set(Some(Bytes::mib(10)), Bytes::ZERO).unwrap();
        directory.charge(Bytes::mib(9));
        bound.reclaim(Bytes::mib(2)).unwrap();
        // The file keeps what is longer, as the kernel's does not.
        let said = directory.take("memory.limit_in_bytes");
        assert!(said.starts_with(&(10 << 20).to_string()), "{said}");
    }
}
