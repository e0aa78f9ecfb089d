//! What is to be done to files, in a thread of its own: it takes its time, and events must not wait
//! for it.

use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel,
};
use std::thread::JoinHandle;
use std::time::Instant;

use terrace_core::Nanos;

use crate::act::handle::{EXT4, Mounts, OpenError};
use crate::act::residency::residency;
use crate::act::{extents, lease, pages, prefetch};
use crate::decide::decider::{Aim, Request};
use crate::decide::journal::Outcome;
use crate::observe::event::{FileEvent, Kind, page};
use crate::observe::now;
use crate::service::filters::Paths;
use crate::service::todo::{Slow, Todo, Turn};

/// Requests that wait at most, on either side of the channel; what does not fit is decided again
/// later.
const WAITING: usize = 1024;

/// The thread's name, by which other daemons know it, too.
const NAME: &str = "kloc-worker";

/// The same of a daemon's main thread, which opens files to tell their names. Notifications of file
/// systems name the main thread whichever one it was.
pub(super) const MAIN: &CStr = c"kloc-daemon";

/// The thread of `terrace run --files` that looks what of a program's files is cached.
const LOOKER: &str = "terrace-files";

/// Whether an event is of a daemon's work, this one's or another's: it opens files to see whether
/// anybody uses them, or what they are called, which is no use. An inode that goes is gone whoever
/// lets go of it last: a file may be deleted while it is being looked at.
pub fn is_work(event: &FileEvent) -> bool {
    let is = |name: &[u8]| {
        let (begin, rest) = event.command.split_at(name.len());
        begin == name && rest[0] == 0
    };
    let names = [NAME.as_bytes(), MAIN.to_bytes(), LOOKER.as_bytes()];
    event.kind != Kind::Evicted && names.into_iter().any(is)
}

/// What is done to a file whose pages are to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Its pages are dropped.
    Drop,
    /// They are moved to this node.
    Node(u32),
}

/// A request and how it is to be met.
#[derive(Clone, Debug)]
struct Job {
    request: Request,
    way: Way,
}

/// Why nothing was done at the end.
const ENDED: &str = "the worker has ended";

impl Job {
    /// The answer if it is not done, for this reason; `again` if it may be possible later. Nothing if
    /// no decision belongs to it.
    fn not_done(&self, reason: &str, again: bool) -> Option<Done> {
        let Request { decision, aim, .. } = self.request;
        let (outcome, at) = (Outcome::LeftAlone { reason: reason.to_owned() }, now());
        matches!(aim, Aim::Leave | Aim::ComeBack).then_some(Done { decision, outcome, again, at })
    }
}

/// What has become of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The decision's number.
    pub decision: u64,
    /// What was done.
    pub outcome: Outcome,
    /// Whether more may be possible later.
    pub again: bool,
    /// When: who opened the file before had closed it by then, if its pages have left.
    pub at: Nanos,
}

/// The thread, and how it is spoken to.
#[derive(Debug)]
pub struct Worker {
    jobs: Option<SyncSender<Job>>,
    done: Receiver<Done>,
    paths: Arc<Paths>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// With what it broke.
    broken: Option<String>,
}

impl Worker {
    /// Begins. Where directories are given, only files that lie below one of them are touched.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn new(below: Vec<PathBuf>) -> std::io::Result<Self> {
        lease::prepare();
        Self::doing(below, work)
    }

    /// Begins with this in its thread.
    fn doing(
        below: Vec<PathBuf>,
        work: impl FnOnce(&mut Receiver<Job>, &Sender<Done>, &Paths, &AtomicBool) + Send + 'static,
    ) -> std::io::Result<Self> {
        let paths = Arc::new(Paths::new(below));
        let (jobs, mut todo) = sync_channel(WAITING);
        let (tell, done) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, below) = (Arc::clone(&stop), Arc::clone(&paths));
        let thread = std::thread::Builder::new().name(NAME.to_owned()).spawn(move || {
            work(&mut todo, &tell, &below, &stopped);
        })?;
        Ok(Self { jobs: Some(jobs), done, paths, stop, thread: Some(thread), broken: None })
    }

    /// Why nothing is done any more, if it has ended without being told to.
    pub fn broken(&mut self) -> Option<&str> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            self.end();
        }
        self.broken.as_deref()
    }

    /// Directories that files have to lie below, and what was found there.
    pub fn paths(&self) -> Arc<Paths> {
        Arc::clone(&self.paths)
    }

    /// Has a file looked at, to see whether it lies below a directory that was named. Says whether
    /// there is room for that.
    pub fn look(&self, request: Request) -> bool {
        let job = Job { request, way: Way::Drop };
        self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok())
    }

    /// Has something done. Says so at once if there is no room for it.
    pub fn ask(&self, request: Request, way: Way) -> Option<Done> {
        let job = Job { request, way };
        let sent = match &self.jobs {
            Some(jobs) => jobs.try_send(job),
            None => Err(TrySendError::Disconnected(job)),
        };
        match sent {
            Ok(()) => None,
            Err(TrySendError::Full(job)) => job.not_done("too much is being done already", true),
            Err(TrySendError::Disconnected(job)) => job.not_done(ENDED, false),
        }
    }

    /// Ends it: what was begun comes to its end, and what waits is not done. [`Worker::done`] tells of
    /// all that was asked for then.
    pub fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.jobs = None;
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            let said = panic.downcast_ref::<&str>().copied();
            let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            self.broken = Some(said.unwrap_or("it does not say why").to_owned());
        }
    }

    /// What has been done since the last time.
    pub fn done(&self) -> Vec<Done> {
        self.done.try_iter().collect()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

fn work(asked: &mut Receiver<Job>, tell: &Sender<Done>, below: &Paths, stop: &AtomicBool) {
    let mut todo = Todo::new();
    until_end(asked, tell, below, stop, &mut todo);
    for job in todo.rest().chain(asked.try_iter()) {
        if let Some(done) = job.not_done(ENDED, false) {
            // Whoever asked may have gone.
            let _ = tell.send(done);
        }
    }
}

/// Does what is asked for until there is nobody to ask, or it is told to stop.
fn until_end(
    asked: &mut Receiver<Job>,
    tell: &Sender<Done>,
    below: &Paths,
    stop: &AtomicBool,
    todo: &mut Todo<Job>,
) {
    let mut mounts = Mounts::default();
    let add = |todo: &mut Todo<Job>, job: Job| match job.request.aim {
        Aim::Look => todo.add_question(job),
        Aim::Leave | Aim::ComeBack => todo.add(job),
    };
    loop {
        while todo.len() < WAITING
            && let Ok(job) = asked.try_recv()
        {
            add(todo, job);
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (job, slow) = match todo.next(Instant::now()) {
            Turn::New(job) => (job, None),
            Turn::Look(slow) => (slow.job.clone(), Some(slow)),
            Turn::Wait(time) => {
                let is_full = todo.len() >= WAITING;
                let waited = match time {
                    Some(time) if is_full => {
                        std::thread::sleep(time);
                        continue;
                    }
                    Some(time) => asked.recv_timeout(time),
                    None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
                };
                match waited {
                    Ok(job) => add(todo, job),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                continue;
            }
        };
        if job.request.aim == Aim::Look {
            let file = mounts.open(&job.request.file, job.request.magic);
            below.look(&mounts, file.ok().as_ref());
            continue;
        }
        let (decision, at) = (job.request.decision, now());
        let (outcome, again) = match meet(&mut mounts, job, below, slow, todo) {
            Ok(Some(met)) => met,
            Ok(None) => continue,
            Err(error) => {
                let again = matches!(error, OpenError::Refused(_) | OpenError::NotMounted(_));
                (Outcome::LeftAlone { reason: error.to_string() }, again)
            }
        };
        if tell.send(Done { decision, outcome, again, at }).is_err() {
            return;
        }
    }
}

/// Does it, and says whether more may be possible later. Nothing if its dirty pages are being
/// written: then it is with those that wait.
///
/// The file is opened anew for each look, so nobody finds it in use meanwhile, and who has opened it
/// since keeps it.
fn meet(
    mounts: &mut Mounts,
    job: Job,
    below: &Paths,
    slow: Option<Slow<Job>>,
    todo: &mut Todo<Job>,
) -> Result<Option<(Outcome, bool)>, OpenError> {
    let file = mounts.open(&job.request.file, job.request.magic)?;
    if !below.have(mounts, &file) {
        let reason = "it does not lie below --path".to_owned();
        return Ok(Some((Outcome::LeftAlone { reason }, false)));
    }
    if job.request.aim == Aim::ComeBack {
        let bytes = prefetch::prefetch(&file, job.request.bytes)?;
        return Ok(Some((Outcome::Prefetched { bytes }, false)));
    }
    match lease::nobody_else(&file) {
        Ok(true) => {}
        Ok(false) => return Ok(Some((Outcome::InUse, true))),
        // Nobody can say: nothing is lost if it is in use.
        Err(_) => {
            let left = pages::mark_cold(&file)?;
            return Ok(Some((Outcome::MarkedCold { bytes: page() * left.left }, false)));
        }
    }
    if let Way::Node(node) = job.way {
        let left = pages::move_to_node(&file, node)?;
        // The node may be full.
        let again = left.left < left.before;
        return Ok(Some((Outcome::Moved { bytes: page() * left.left, node }, again)));
    }
    let written = match (residency(&file)?.unwritten(), slow) {
        (Some(0), slow) => slow.map_or(0, |slow| slow.first),
        (Some(pages), None) => {
            // By parts: the kernel waits where more is to be written than a disk takes at once.
            let rest = pages::begin_write_back_part(&file, 0)?;
            todo.is_slow(job, pages, rest, Instant::now());
            return Ok(None);
        }
        (Some(pages), Some(mut slow)) => {
            if let Some(offset) = slow.rest {
                slow.rest = pages::begin_write_back_part(&file, offset)?;
            }
            match todo.is_still_slow(slow, pages, Instant::now()) {
                None => return Ok(None),
                Some(slow) => slow.first.saturating_sub(pages),
            }
        }
        // Where the kernel does not say what is dirty, what is clean by now leaves.
        (None, _) => {
            pages::begin_write_back(&file)?;
            0
        }
    };
    let left = pages::drop_clean(&file)?;
    if job.request.magic == EXT4 && left.before > 0 {
        // An older ext4, or one without extents, has no such call: they stay.
        let _ = extents::clear(&file);
    }
    let [bytes, written, stays] =
        [left.left, written, left.before.saturating_sub(left.left)].map(|pages| page() * pages);
    Ok(Some((Outcome::Dropped { bytes, written, stays }, !stays.is_zero())))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use terrace_core::{Bytes, ContextId, ContextIdentity};

    use super::*;
    use crate::act::handle::{identity, is_supported};
    use crate::act::residency::residency;
    use crate::service::filters::{Filters, Untold};

    /// What comes of a request that is repeated, as the daemon does, while a disk takes its time.
    fn outcome_of(worker: &Worker, request: &Request) -> Outcome {
        let begun = Instant::now();
        let mut gone = Bytes::ZERO;
        let mut answer = worker.ask(request.clone(), Way::Drop);
        loop {
            let Some(done) = answer.take().or_else(|| worker.done().pop()) else {
                assert!(begun.elapsed() < Duration::from_mins(1), "no answer");
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let again = match done.outcome {
                Outcome::InUse => true,
                Outcome::Dropped { stays, .. } => !stays.is_zero(),
                _ => false,
            };
            assert_eq!(done.again, again, "{done:?}");
            match done.outcome {
                Outcome::Dropped { bytes, .. } if again => {
                    gone += bytes;
                    answer = worker.ask(request.clone(), Way::Drop);
                }
                Outcome::Dropped { bytes, written, stays } => {
                    return Outcome::Dropped { bytes: gone + bytes, written, stays };
                }
                other => return other,
            }
        }
    }

    /// It would be known for ever otherwise.
    #[test]
    fn a_file_that_goes_while_the_worker_has_it_open_is_gone() {
        let event = |kind, command: &[u8; 16]| FileEvent {
            kind,
            at: Nanos(1),
            file: ContextIdentity::File { device: 1, inode: 1, generation: 1 },
            magic: EXT4,
            pages: 0,
            length: Bytes::ZERO,
            extents: None,
            links: 0,
            names: None,
            group: 0,
            process: 1,
            command: *command,
        };
        let is = |kind, command| is_work(&event(kind, command));
        let (ours, other) = (b"kloc-worker\0\0\0\0\0", b"kloc-workers\0\0\0\0");
        assert!(is(Kind::Opened, ours) && is(Kind::Closed, ours));
        assert!(!is(Kind::Evicted, ours) && !is(Kind::Opened, other));
        // What is opened to tell its name is no more in use than that.
        for ours in [b"kloc-daemon\0\0\0\0\0", b"terrace-files\0\0\0"] {
            assert!(is(Kind::Opened, ours) && is(Kind::Closed, ours) && !is(Kind::Evicted, ours));
        }
        assert!(!is(Kind::Opened, b"terrace\0\0\0\0\0\0\0\0\0"));
    }

    /// A look that was not taken on must not count as made.
    #[test]
    fn a_worker_without_room_says_so_of_a_look() {
        let (jobs, _asked) = sync_channel(1);
        let (done, paths, stop) = (channel().1, Arc::default(), Arc::default());
        let mut worker = Worker { jobs: Some(jobs), done, paths, stop, thread: None, broken: None };
        let file = ContextIdentity::File { device: 1, inode: 1, generation: 1 };
        let (context, bytes, aim) = (ContextId(1), Bytes::ZERO, Aim::Look);
        let request = Request { context, decision: 0, file, magic: EXT4, bytes, aim };
        assert!(worker.look(request.clone()));
        assert!(!worker.look(request.clone()));
        worker.jobs = None;
        assert!(!worker.look(request));
    }

    /// Whatever was decided: what is open stays, what is renamed is the same file, what is gone is
    /// no other one, and content is as it was.
    #[test]
    fn what_is_open_stays_and_what_is_closed_leaves_with_its_content_kept() {
        let directory = tempfile::tempdir_in(".").expect("a directory");
        let path = directory.path().join("file");
        let content: Vec<u8> = (0..1u32 << 20).map(|i| (i / 3) as u8).collect();
        std::fs::write(&path, &content).expect("written");
        let (file, magic) = identity(&path).expect("there");
        if !rustix::process::geteuid().is_root() || !is_supported(magic) {
            return;
        }
        let worker = Worker::new(Vec::new()).expect("a thread");
        let request = |decision| Request {
            context: ContextId(1),
            decision,
            file,
            magic,
            bytes: Bytes::mib(1),
            aim: Aim::Leave,
        };
        let open = std::fs::File::open(&path).expect("there");
        assert_eq!(outcome_of(&worker, &request(1)), Outcome::InUse);
        assert_eq!(residency(&open).expect("ours").cached, 256);
        drop(open);
        let moved = directory.path().join("moved");
        std::fs::rename(&path, &moved).expect("renamed");
        std::fs::write(&path, "another file").expect("written");
        let outcome = outcome_of(&worker, &request(2));
        let bytes = Bytes::mib(1);
        assert!(matches!(outcome, Outcome::Dropped { bytes: b, .. } if b == bytes), "{outcome:?}");
        let back = Request { aim: Aim::ComeBack, ..request(3) };
        assert_eq!(outcome_of(&worker, &back), Outcome::Prefetched { bytes });
        assert_eq!(std::fs::read(&moved).expect("there"), content);
        std::fs::remove_file(&moved).expect("removed");
        let gone = outcome_of(&worker, &request(4));
        assert_eq!(gone, Outcome::LeftAlone { reason: "the file is gone".into() });
    }

    /// Nobody knows where it lay.
    #[test]
    fn a_file_that_is_gone_when_it_is_looked_at_does_not_count_as_one_elsewhere() {
        let worker = Worker::new(vec!["/no/such/place".into()]).expect("a thread");
        let file = ContextIdentity::File { device: u64::MAX, inode: 1, generation: 1 };
        let (context, bytes, aim) = (ContextId(1), Bytes::ZERO, Aim::Look);
        let request = Request { context, decision: 0, file, magic: EXT4, bytes, aim };
        let paths = worker.paths();
        let mut filters = Filters::new(&[], &[], paths);
        filters.hand_over([(1, context)].into_iter(), |_| worker.look(request.clone()));
        let told = |filters: &Filters| filters.unseen(&Untold { files: 1, ..Untold::default() });
        let begun = Instant::now();
        while told(&filters)[0].contains("not looked at yet") {
            assert!(begun.elapsed() < Duration::from_secs(30), "no answer");
            std::thread::sleep(Duration::from_millis(1));
        }
        let text = told(&filters).remove(0);
        let end = "no file was looked at, below it or elsewhere (1 file gone before that)";
        assert!(text.ends_with(end), "{text}");
    }

    /// However much of it waits when the daemon ends: no decision stays without an outcome.
    #[test]
    fn all_that_was_asked_for_is_answered_at_the_end() {
        let mut worker = Worker::new(Vec::new()).expect("a thread");
        let file = ContextIdentity::File { device: u64::MAX, inode: 1, generation: 1 };
        let (context, bytes) = (ContextId(1), Bytes::ZERO);
        let request = |decision, aim| Request { context, decision, file, magic: EXT4, bytes, aim };
        let mut answers = Vec::new();
        for decision in 1..=300 {
            answers.extend(worker.ask(request(decision, Aim::Leave), Way::Drop));
            assert!(worker.look(request(0, Aim::Look)), "there is room");
        }
        worker.end();
        let late = worker.ask(request(301, Aim::Leave), Way::Drop);
        answers.extend(late.clone());
        answers.extend(worker.done());
        let mut numbers: Vec<_> = answers.iter().map(|done| done.decision).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=301).collect::<Vec<_>>());
        assert!(late.is_some_and(|done| !done.again), "nobody does it any more");
        assert!(!worker.look(request(0, Aim::Look)), "nor does anybody look");
    }

    /// Otherwise the daemon would run on, and nothing would ever leave.
    #[test]
    fn a_worker_that_breaks_is_told_of() {
        let mut worker = Worker::doing(Vec::new(), |_, _, _, stop| {
            let number = u32::from(stop.load(Ordering::Relaxed));
            panic!("job {number} is impossible");
        })
        .expect("a thread");
        let begun = Instant::now();
        while worker.broken().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(30), "it runs on");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(worker.broken(), Some("job 0 is impossible"));
        // The same where that is learnt at the end.
        let mut worker = Worker::doing(Vec::new(), |asked, _, _, _| {
            let ended = asked.recv().is_err();
            assert!(!ended, "nobody asks");
        })
        .expect("a thread");
        assert_eq!(worker.broken(), None);
        worker.end();
        assert_eq!(worker.broken(), Some("nobody asks"));
        let mut worker = Worker::new(Vec::new()).expect("a thread");
        assert_eq!(worker.broken(), None);
        worker.end();
        assert_eq!(worker.broken(), None, "it was told to end");
    }

    #[test]
    fn files_elsewhere_are_left_alone() {
        let directory = tempfile::tempdir_in(".").expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, [1; 4096]).expect("written");
        let (file, magic) = identity(&path).expect("there");
        if !rustix::process::geteuid().is_root() || !is_supported(magic) {
            return;
        }
        let bytes = Bytes(4096);
        let context = ContextId(1);
        let aim = Aim::Leave;
        let request = Request { context, decision: 1, file, magic, bytes, aim };
        let elsewhere = Worker::new(vec!["/no/such/place".into()]).expect("a thread");
        let outcome = outcome_of(&elsewhere, &request);
        assert!(matches!(outcome, Outcome::LeftAlone { .. }), "{outcome:?}");
        let here = std::fs::canonicalize(directory.path()).expect("there");
        let outcome = outcome_of(&Worker::new(vec![here]).expect("a thread"), &request);
        assert!(matches!(outcome, Outcome::Dropped { .. }), "{outcome:?}");
    }
}
