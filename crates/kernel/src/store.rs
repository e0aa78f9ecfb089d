//! What is done for compressed pages that idle, where the kernel's zram can: compressed again by a
//! codec that packs more tightly, and written to a file while they take more memory than they may.
//!
//! The kernel does the work in the thread that asks. That of [`Keeper`] asks every [`EVERY`].

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos};
use terrace_live::sys;

use crate::files::{Root, write};
use crate::repack::{self, Idle, Permission, Repacked, Turns};
use crate::setup::zram;

/// How often idle pages are looked for.
const EVERY: Duration = Duration::from_secs(5);
/// A page that nobody has brought back for so many seconds is idle.
const IDLE: u64 = 30;
/// Size of a page, and of zram's units in `bd_stat`.
const PAGE: u64 = 4096;

/// What a device is asked to do for idle pages, and what it has done: a field each.
#[derive(Debug)]
pub struct Tending {
    root: Root,
    device: u32,
    /// Whether they are compressed again.
    recompresses: bool,
    /// The memory above which they are written to the device's file; `None` without one.
    limit: Option<Bytes>,
    /// Whether the kernel knows how long ago a page was stored or read
    /// (`CONFIG_ZRAM_TRACK_ENTRY_ACTIME`); if not, idle is what nobody has read since the last turn.
    ages: bool,
    /// Since when, ns.
    began: u64,
    /// What was written and is told already, and what the rest took of this thread's processor time.
    told: Bytes,
    took: Nanos,
    /// Bytes of the programs' pages for each byte of the store, when it was asked to write last.
    ratio: f64,
    /// The answer whether pages are compressed again in the next turn; `None` where nobody is asked, and
    /// they always are.
    permission: Option<Arc<Permission>>,
    /// Whether the budget is for what the store takes, too.
    in_budget: bool,
    /// What turns have set free.
    turns: Turns,
    /// What the last turn has compressed again, until it is told.
    repacked: Option<Repacked>,
}

/// Pages that were written to a device's file since it was told last, and what is known of those that lie
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// How many.
    pub pages: u64,
    /// Memory that they took compressed, by the mean ratio of all.
    pub bytes: Bytes,
    /// Processor time that writing them took of the thread that asked for it.
    pub took: Nanos,
    /// Memory that compressed pages may take.
    pub limit: Bytes,
    /// Memory that they take now.
    pub held: Bytes,
    /// Pages that have been read from the file, in all.
    pub returned: u64,
    /// Pages that lie there now.
    pub there: u64,
    /// For how long it has been looked after.
    pub window: Nanos,
}

/// What a device has written to its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backed {
    /// What lies there now.
    pub held: Bytes,
    /// What was read from there.
    pub read: Bytes,
    /// What was written to it.
    pub written: Bytes,
}

/// What a device has written to its file; `None` of one without.
pub fn backed(root: &Root, device: u32) -> Option<Backed> {
    let text = crate::files::read(&zram::control(root, device).join("bd_stat")).ok()?;
    // Numbers of pages of 4 KiB (`Documentation/admin-guide/blockdev/zram.rst`).
    let mut fields =
        text.split_ascii_whitespace().map(|n| n.parse::<u64>().map(|n| Bytes(n * PAGE)));
    let mut next = || fields.next()?.ok();
    Some(Backed { held: next()?, read: next()?, written: next()? })
}

impl Tending {
    /// For a device that was set up by [`crate::setup`].
    pub fn new(root: Root, device: u32, recompresses: bool, limit: Option<Bytes>) -> Self {
        Self {
            root,
            device,
            recompresses,
            limit,
            ages: true,
            began: sys::now(),
            told: Bytes::ZERO,
            took: Nanos::ZERO,
            ratio: 1.0,
            permission: None,
            in_budget: false,
            turns: Turns::begin(sys::now()),
            repacked: None,
        }
    }

    /// Somebody is asked before idle pages are compressed again ([`Keeper::take_question`]). `in_budget`
    /// says whether the run's budget is for what the store takes, too.
    #[must_use]
    pub fn priced(mut self, in_budget: bool) -> Self {
        self.permission = Some(Arc::default());
        self.in_budget = in_budget;
        self
    }

    fn set(&self, file: &str, text: &str) -> io::Result<()> {
        write(&zram::control(&self.root, self.device).join(file), text)
    }

    /// What lies in the device's file. zram counts these pages among those that it holds, though they take no
    /// memory.
    fn in_file(&self) -> Backed {
        backed(&self.root, self.device).unwrap_or_default()
    }

    /// Does what is to be done now.
    ///
    /// # Errors
    /// The system's.
    pub fn turn(&mut self) -> io::Result<()> {
        if self.ages {
            match self.set("idle", &IDLE.to_string()) {
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => self.ages = false,
                done => done?,
            }
        }
        if self.recompresses && self.permission.as_ref().is_none_or(|it| it.take()) {
            self.repack()?;
        }
        if let (Some(limit), Some(held)) = (self.limit, zram::held(&self.root, &[self.device])) {
            let excess = held.memory - limit.min(held.memory);
            if !excess.is_zero() {
                // A page that leaves sets free what it takes compressed.
                let inside = held.original - self.in_file().held;
                self.ratio = (inside.as_f64() / held.memory.as_f64().max(1.0)).max(1.0);
                let pages = (excess.as_f64() * self.ratio / PAGE as f64).ceil() as u64;
                self.set("writeback_limit_enable", "1")?;
                self.set("writeback_limit", &pages.to_string())?;
                let begin = sys::thread_cpu();
                self.set("writeback", "idle")?;
                self.took += sys::thread_cpu() - begin;
            }
        }
        if !self.ages {
            self.set("idle", "all")?;
        }
        Ok(())
    }

    /// Has idle pages compressed again.
    fn repack(&mut self) -> io::Result<()> {
        let (now, held) = (sys::now(), zram::held(&self.root, &[self.device]));
        let there = held.map_or(0, |held| (held.original - self.in_file().held).get() / PAGE);
        let pages = self.turns.due(now, self.idle(), there);
        let before = zram::packed(&self.root, self.device);
        let begin = sys::thread_cpu();
        self.set("recompress", "type=idle")?;
        let took = sys::thread_cpu() - begin;
        // Pages that come meanwhile make it less, and never more.
        let after = zram::packed(&self.root, self.device);
        let freed = before.zip(after).map_or(Bytes::ZERO, |(before, after)| before - after);
        self.turns.took(pages, freed);
        self.repacked = Some(Repacked { pages, freed, took });
        Ok(())
    }

    /// How long a page is not asked for before it is idle.
    fn idle(&self) -> Nanos {
        if self.ages { Nanos::seconds(IDLE) } else { Nanos(EVERY.as_nanos() as u64) }
    }

    /// What the last turn has compressed again, once.
    pub fn take_repacked(&mut self) -> Option<Repacked> {
        self.repacked.take()
    }

    /// Idle pages that may be compressed again in the next turn; `None` without any, and where nobody is
    /// to be asked. To be called once a turn.
    pub fn look(&mut self) -> Option<Idle> {
        self.permission.as_ref().filter(|_| self.recompresses)?;
        let held = zram::held(&self.root, &[self.device])?;
        let (now, idle, file) = (sys::now(), self.idle(), self.in_file());
        let there = (held.original - file.held).get() / PAGE;
        let (read, written) = repack::traffic(&self.root, self.device).unwrap_or((0, there));
        // Pages that were read from the file were not packed.
        let read = read.saturating_sub(file.read.get() / PAGE);
        self.turns.count(now, idle, (read, written));
        let pages = self.turns.due(now, idle, there);
        if pages == 0 {
            return None;
        }
        let each = Bytes(held.memory.get() / there.max(1));
        let room = match self.limit {
            Some(limit) => (limit, limit - held.memory),
            // What is taken there is missing in the budget.
            None if self.in_budget => (held.memory, Bytes::ZERO),
            None => machine(&self.root),
        };
        let (returned, window) = self.turns.returned(now, read);
        Some(Idle {
            pages,
            each,
            saves: self.turns.saves(pages, each),
            room,
            has_file: self.limit.is_some(),
            returned,
            there,
            window,
        })
    }

    /// What was written since the last call, if anything was.
    pub fn take_written(&mut self) -> Option<Written> {
        let (limit, backed) = (self.limit?, backed(&self.root, self.device)?);
        let pages = (backed.written - self.told).get() / PAGE;
        if pages == 0 {
            return None;
        }
        let held = zram::held(&self.root, &[self.device])?;
        self.told = backed.written;
        Some(Written {
            pages,
            bytes: Bytes::from_f64((pages * PAGE) as f64 / self.ratio),
            took: std::mem::take(&mut self.took),
            limit,
            held: held.memory,
            returned: backed.read.get() / PAGE,
            there: backed.held.get() / PAGE,
            window: Nanos(sys::now().saturating_sub(self.began)),
        })
    }
}

/// The machine's memory, and what of it is available; nothing where the kernel does not tell.
fn machine(root: &Root) -> (Bytes, Bytes) {
    let text = root.read("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_ascii_whitespace().next()?.parse().ok().map(Bytes::kib)
    };
    field("MemTotal:").zip(field("MemAvailable:")).unwrap_or_default()
}

/// A thread that takes turns until this is dropped.
#[derive(Debug)]
pub struct Keeper {
    /// `None` at the end only.
    stop: Option<SyncSender<()>>,
    cpu: Arc<AtomicU64>,
    failed: Arc<Mutex<Option<io::Error>>>,
    told: Arc<Mutex<Told>>,
    permission: Option<Arc<Permission>>,
    thread: Option<JoinHandle<()>>,
}

/// What turns have done since it was asked for last, and what is to be asked.
#[derive(Debug, Default)]
struct Told {
    written: Vec<Written>,
    repacked: Vec<Repacked>,
    question: Option<Idle>,
}

impl Keeper {
    /// Starts it.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub fn start(mut tending: Tending) -> io::Result<Self> {
        let (stop, stopped) = sync_channel::<()>(0);
        let (cpu, failed) = (Arc::<AtomicU64>::default(), Arc::<Mutex<_>>::default());
        let told = Arc::<Mutex<Told>>::default();
        let permission = tending.permission.clone();
        let (spent, wrong, tell) = (Arc::clone(&cpu), Arc::clone(&failed), Arc::clone(&told));
        let builder = thread::Builder::new().name("terrace-store".into());
        let thread = builder.spawn(move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let begin = sys::thread_cpu();
                let done = tending.turn();
                let (written, repacked) = (tending.take_written(), tending.take_repacked());
                let question = tending.look();
                let mut told = tell.lock().unwrap_or_else(PoisonError::into_inner);
                told.written.extend(written);
                told.repacked.extend(repacked);
                told.question = question;
                drop(told);
                spent.fetch_add(sys::thread_cpu().saturating_sub(begin).get(), Ordering::Relaxed);
                if let Err(error) = done {
                    *wrong.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    break;
                }
            }
        })?;
        Ok(Self { stop: Some(stop), cpu, failed, told, permission, thread: Some(thread) })
    }

    /// Processor time since the last call.
    pub fn take_cpu(&self) -> Nanos {
        Nanos(self.cpu.swap(0, Ordering::Relaxed))
    }

    /// What was written to the file since the last call, one entry a turn.
    pub fn take_written(&self) -> Vec<Written> {
        std::mem::take(&mut self.told().written)
    }

    /// What was compressed again since the last call, one entry a turn.
    pub fn take_repacked(&self) -> Vec<Repacked> {
        std::mem::take(&mut self.told().repacked)
    }

    /// Idle pages that are compressed again in the next turn if [`Keeper::answer`] says so by then; `None`
    /// if nothing is to be asked.
    pub fn take_question(&self) -> Option<Idle> {
        self.told().question.take()
    }

    /// Answers the last question.
    pub fn answer(&self, may: bool) {
        if let Some(permission) = &self.permission {
            permission.give(may);
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends its turns: what the last one has done is there to be taken.
    pub fn finish(&mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // What it began, it ends; the device is taken away afterwards.
            let _ = thread.join();
        }
    }

    /// Why it goes on no more, once.
    pub fn take_failed(&self) -> Option<io::Error> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const FILES: [&str; 5] =
        ["idle", "recompress", "writeback_limit_enable", "writeback_limit", "writeback"];

    /// A device that holds 64 MiB in 32.
    fn device() -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let control = zram::control(&root, 3);
        fs::create_dir_all(&control).unwrap();
        for file in FILES {
            fs::write(control.join(file), "").unwrap();
        }
        fs::write(control.join("mm_stat"), "67108864 30000000 33554432 0 33554432 0 0 0 0")
            .unwrap();
        (directory, root)
    }

    fn text(root: &Root, file: &str) -> String {
        fs::read_to_string(zram::control(root, 3).join(file)).unwrap()
    }

    #[test]
    fn idle_pages_are_written_back_as_far_as_the_limit_asks() {
        let (_directory, root) = device();
        Tending::new(root.clone(), 3, false, Some(Bytes::mib(24))).turn().unwrap();
        // 8 MiB too many, at 2 : 1.
        assert_eq!(text(&root, "writeback_limit"), "4096");
        assert_eq!(
            (text(&root, "writeback"), text(&root, "recompress")),
            ("idle".into(), String::new())
        );
        assert_eq!(text(&root, "idle"), "30");
    }

    /// Or the more had been written, the more would be written for the same room.
    #[test]
    fn pages_in_the_file_say_nothing_of_how_tightly_the_others_are_packed() {
        let (_directory, root) = device();
        // Of 64 MiB 16 take nothing of the 32.
        fs::write(zram::control(&root, 3).join("bd_stat"), "4096 0 4096\n").unwrap();
        Tending::new(root.clone(), 3, false, Some(Bytes::mib(24))).turn().unwrap();
        assert_eq!(text(&root, "writeback_limit"), "3072");
    }

    #[test]
    fn below_the_limit_they_are_only_compressed_again() {
        let (_directory, root) = device();
        Tending::new(root.clone(), 3, true, Some(Bytes::mib(32))).turn().unwrap();
        assert_eq!(text(&root, "recompress"), "type=idle");
        assert_eq!(text(&root, "writeback"), "");
    }

    /// Where somebody is asked, pages are compressed again in turns that were let pass, and told.
    #[test]
    fn pages_are_compressed_again_only_in_turns_that_were_let_pass() {
        let (_directory, root) = device();
        let stat = |file: &str, text: &str| fs::write(zram::control(&root, 3).join(file), text);
        fs::create_dir_all(root.path("/proc")).unwrap();
        fs::write(root.path("/proc/meminfo"), "MemTotal: 4096 kB\nMemAvailable: 1024 kB\n")
            .unwrap();
        let mut tending = Tending::new(root.clone(), 3, true, None).priced(false);
        let permission = tending.permission.clone().expect("it asks");
        // Idle is what nobody has read since the last turn.
        tending.ages = false;
        tending.turns = Turns::begin(0);
        let written = |pages: u64| format!("0 0 80 0 0 0 {} 0\n", pages * 8);
        stat("stat", &written(500)).unwrap();
        assert_eq!(tending.look(), None, "nothing is idle yet");
        tending.turns.count(0, Nanos::ZERO, (10, 500));
        let idle = tending.look().expect("pages that were written at the beginning");
        assert_eq!((idle.pages, idle.there, idle.each), (500, 16_384, Bytes(2048)));
        assert_eq!((idle.room, idle.has_file), ((Bytes::mib(4), Bytes::mib(1)), false));
        tending.turn().unwrap();
        assert_eq!((text(&root, "recompress"), tending.take_repacked()), (String::new(), None));

        permission.give(true);
        tending.turn().unwrap();
        assert_eq!(text(&root, "recompress"), "type=idle");
        let repacked = tending.take_repacked().expect("a turn");
        assert_eq!((repacked.pages, repacked.freed), (500, Bytes::ZERO));
        assert_eq!(tending.look(), None, "nothing is due any more");
        stat("recompress", "").unwrap();
        tending.turn().unwrap();
        assert_eq!(text(&root, "recompress"), "", "an answer holds for one turn");

        // What is in the budget is short of it; and a file has a limit of its own.
        for (limit, in_budget, room) in [
            (None, true, (Bytes::mib(32), Bytes::ZERO)),
            (Some(Bytes::mib(40)), true, (Bytes::mib(40), Bytes::mib(8))),
        ] {
            let mut tending = Tending::new(root.clone(), 3, true, limit).priced(in_budget);
            tending.ages = false;
            tending.turns.count(0, Nanos::ZERO, (10, 500));
            let idle = tending.look().expect("idle pages");
            assert_eq!((idle.room, idle.has_file), (room, limit.is_some()));
        }
    }

    #[test]
    fn what_lies_in_the_file_is_told_in_bytes() {
        let (_directory, root) = device();
        assert_eq!(backed(&root, 3), None);
        fs::write(zram::control(&root, 3).join("bd_stat"), "       2        1        5\n").unwrap();
        let expected = Backed { held: Bytes(8192), read: Bytes(4096), written: Bytes(20480) };
        assert_eq!(backed(&root, 3), Some(expected));
    }

    /// Each page once, with what is known of those that came back.
    #[test]
    fn what_was_written_is_told_with_what_it_took_in_memory() {
        let (_directory, root) = device();
        let stat = |text: &str| fs::write(zram::control(&root, 3).join("bd_stat"), text).unwrap();
        let mut tending = Tending::new(root.clone(), 3, false, Some(Bytes::mib(24)));
        stat("0 0 0\n");
        tending.turn().unwrap();
        assert_eq!(tending.take_written(), None, "the kernel has found nothing idle");
        stat("90 10 100\n");
        let written = tending.take_written().expect("a hundred pages");
        // At 2 : 1.
        assert_eq!((written.pages, written.bytes), (100, Bytes(50 * 4096)));
        assert_eq!((written.returned, written.there), (10, 90));
        assert_eq!((written.limit, written.held), (Bytes::mib(24), Bytes::mib(32)));
        assert_eq!(tending.take_written(), None, "nothing is new");
        stat("90 10 103\n");
        assert_eq!(tending.take_written().map(|written| written.pages), Some(3));

        let mut without = Tending::new(root.clone(), 3, true, None);
        assert_eq!(without.take_written(), None, "no file");
    }

    #[test]
    fn a_device_that_is_gone_is_an_error_that_names_the_file() {
        let (_directory, root) = device();
        let error = Tending::new(root, 9, true, None).turn().unwrap_err().to_string();
        assert!(error.contains("zram9/idle"), "{error}");
    }
}
