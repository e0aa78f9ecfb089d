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
        text.split_ascii_whitespace().map(|n| n.parse::<u64>().map(|n| Bytes(n * 4096)));
    let mut next = || fields.next()?.ok();
    Some(Backed { held: next()?, read: next()?, written: next()? })
}

impl Tending {
    /// For a device that was set up by [`crate::setup`].
    pub fn new(root: Root, device: u32, recompresses: bool, limit: Option<Bytes>) -> Self {
        Self { root, device, recompresses, limit, ages: true }
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
                let ratio = held.original.as_f64() / held.memory.as_f64().max(1.0);
                let pages = (excess.as_f64() * ratio.max(1.0) / 4096.0).ceil() as u64;
                self.set("writeback_limit_enable", "1")?;
                self.set("writeback_limit", &pages.to_string())?;
                self.set("writeback", "idle")?;
            }
        }
        if !self.ages {
            self.set("idle", "all")?;
        }
        Ok(())
    }
}

/// A thread that takes turns until this is dropped.
#[derive(Debug)]
pub struct Keeper {
    /// `None` at the end only.
    stop: Option<SyncSender<()>>,
    cpu: Arc<AtomicU64>,
    failed: Arc<Mutex<Option<io::Error>>>,
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
        let (spent, wrong) = (Arc::clone(&cpu), Arc::clone(&failed));
        let builder = thread::Builder::new().name("terrace-store".into());
        let thread = builder.spawn(move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let begin = sys::thread_cpu();
                let done = tending.turn();
                spent.fetch_add(sys::thread_cpu().saturating_sub(begin).get(), Ordering::Relaxed);
                if let Err(error) = done {
                    *wrong.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    break;
                }
            }
        })?;
        Ok(Self { stop: Some(stop), cpu, failed, thread: Some(thread) })
    }

    /// Processor time since the last call.
    pub fn take_cpu(&self) -> Nanos {
        Nanos(self.cpu.swap(0, Ordering::Relaxed))
    }

    /// Why it goes on no more, once.
    pub fn take_failed(&self) -> Option<io::Error> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // What it began, it ends; the device is taken away afterwards.
            let _ = thread.join();
        }
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

    #[test]
    fn a_device_that_is_gone_is_an_error_that_names_the_file() {
        let (_directory, root) = device();
        let error = Tending::new(root, 9, true, None).turn().unwrap_err().to_string();
        assert!(error.contains("zram9/idle"), "{error}");
    }
}
