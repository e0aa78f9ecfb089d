//! What is done for compressed pages that idle, where the kernel's zram can: compressed again by a
//! codec that packs more tightly, and written to a file while they take more memory than they may.
//!
//! The kernel does the work in the thread that asks. That of [`Keeper`] asks every [`EVERY`].

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos};
use terrace_live::sys;

use crate::files::{Root, write};
use crate::setup::zram;

/// How often idle pages are looked for.
const EVERY: Duration = Duration::from_secs(5);
/// A page that nobody has brought back for so many seconds is idle.
const IDLE: u64 = 30;
/// Size of a page, and of zram's units in `bd_stat`.
const PAGE: u64 = 4096;

/// What a device is asked to do for idle pages.
#[derive(Clone, Debug)]
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
        }
    }

    fn set(&self, file: &str, text: &str) -> io::Result<()> {
        write(&zram::control(&self.root, self.device).join(file), text)
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
        if self.recompresses {
            self.set("recompress", "type=idle")?;
        }
        if let (Some(limit), Some(held)) = (self.limit, zram::held(&self.root, &[self.device])) {
            let excess = held.memory - limit.min(held.memory);
            if !excess.is_zero() {
                // A page that leaves sets free what it takes compressed.
                self.ratio = (held.original.as_f64() / held.memory.as_f64().max(1.0)).max(1.0);
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

/// A thread that takes turns until this is dropped.
#[derive(Debug)]
pub struct Keeper {
    /// `None` at the end only.
    stop: Option<SyncSender<()>>,
    cpu: Arc<AtomicU64>,
    failed: Arc<Mutex<Option<io::Error>>>,
    written: Arc<Mutex<Vec<Written>>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts it.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub fn start(mut tending: Tending) -> io::Result<Self> {
        let (stop, stopped) = sync_channel::<()>(0);
        let (cpu, failed) = (Arc::<AtomicU64>::default(), Arc::<Mutex<_>>::default());
        let written = Arc::<Mutex<Vec<Written>>>::default();
        let (spent, wrong, told) = (Arc::clone(&cpu), Arc::clone(&failed), Arc::clone(&written));
        let builder = thread::Builder::new().name("terrace-store".into());
        let thread = builder.spawn(move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let begin = sys::thread_cpu();
                let done = tending.turn();
                if let Some(written) = tending.take_written() {
                    told.lock().unwrap_or_else(PoisonError::into_inner).push(written);
                }
                spent.fetch_add(sys::thread_cpu().saturating_sub(begin).get(), Ordering::Relaxed);
                if let Err(error) = done {
                    *wrong.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    break;
                }
            }
        })?;
        Ok(Self { stop: Some(stop), cpu, failed, written, thread: Some(thread) })
    }

    /// Processor time since the last call.
    pub fn take_cpu(&self) -> Nanos {
        Nanos(self.cpu.swap(0, Ordering::Relaxed))
    }

    /// What was written to the file since the last call, one entry a turn.
    pub fn take_written(&self) -> Vec<Written> {
        std::mem::take(&mut *self.written.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends it; what was written to the file since that was asked for last.
    pub fn finish(mut self) -> Vec<Written> {
        self.end();
        self.take_written()
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

    #[test]
    fn below_the_limit_they_are_only_compressed_again() {
        let (_directory, root) = device();
        Tending::new(root.clone(), 3, true, Some(Bytes::mib(32))).turn().unwrap();
        assert_eq!(text(&root, "recompress"), "type=idle");
        assert_eq!(text(&root, "writeback"), "");
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
        tending.turn().unwrap();
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
