//! A thread that asks the kernel to put memory of a group out.
//!
//! The kernel does the work in the thread that asks, and under version 1 of control groups does
//! not return before the group has become as small as was asked for, however fast it grows
//! meanwhile. The engine must look at what comes back, and at the brake, all that time.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use terrace_core::{Bytes, Nanos};
use terrace_live::sys;

/// The way to ask the thread, for the engine and for the [`Guard`](super::guard::Guard).
#[derive(Clone, Debug)]
pub(super) struct Asking {
    requests: SyncSender<Bytes>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    busy: AtomicBool,
    /// Nobody asks any more.
    over: AtomicBool,
    /// Processor time in nanoseconds that nobody has taken yet.
    cpu: AtomicU64,
    /// How the last request failed.
    failed: Mutex<Option<io::Error>>,
}

impl Asking {
    /// Asks for so much, unless the thread is at work; whether it was asked. The error is that of
    /// the request before; nothing was asked for then.
    pub(super) fn ask(&self, bytes: Bytes) -> io::Result<bool> {
        if self.shared.busy.swap(true, Ordering::AcqRel) {
            return Ok(false);
        }
        let failed = self.shared.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let asked = match failed {
            Some(error) => Err(error),
            None => Ok(self.requests.try_send(bytes).is_ok()),
        };
        if !matches!(asked, Ok(true)) {
            self.shared.busy.store(false, Ordering::Release);
        }
        asked
    }

    /// The same, but an error stays for whoever calls [`Asking::ask`] next.
    pub(super) fn ask_unless_failed(&self, bytes: Bytes) -> bool {
        let has_failed =
            self.shared.failed.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        !has_failed && self.ask(bytes).unwrap_or(false)
    }
}

/// The thread, as its client has it. It ends with its client, which waits for what the kernel is
/// still at: no limit is set afterwards.
#[derive(Debug)]
pub(super) struct Reclaimer {
    /// `None` at the end only.
    asking: Option<Asking>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Reclaimer {
    /// Starts the thread, which asks the kernel in some way.
    pub(super) fn start(
        reclaim: impl Fn(Bytes) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (requests, asked) = sync_channel::<Bytes>(1);
        let shared = Arc::<Shared>::default();
        let told = Arc::clone(&shared);
        let builder = thread::Builder::new().name("terrace-reclaim".into());
        let thread = builder.spawn(move || {
            let mut spent = sys::thread_cpu();
            while let Ok(bytes) = asked.recv() {
                if told.over.load(Ordering::Acquire) {
                    break;
                }
                let done = reclaim(bytes);
                let now = sys::thread_cpu();
                told.cpu.fetch_add(now.saturating_sub(spent).get(), Ordering::Relaxed);
                spent = now;
                if let Err(error) = done {
                    *told.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
                told.busy.store(false, Ordering::Release);
            }
        })?;
        let asking = Some(Asking { requests, shared: Arc::clone(&shared) });
        Ok(Self { asking, shared, thread: Some(thread) })
    }

    /// The way to ask it. Whoever has one must let it go before the client does.
    pub(super) fn asking(&self) -> Asking {
        self.asking.clone().expect("it is taken when this is dropped")
    }

    /// Asks for so much, unless it is at work; whether it was asked. The error is that of the
    /// request before.
    pub(super) fn ask(&self, bytes: Bytes) -> io::Result<bool> {
        self.asking.as_ref().map_or(Ok(false), |asking| asking.ask(bytes))
    }

    /// Processor time since the last call, of requests that have come to their ends.
    pub(super) fn take_cpu(&self) -> Nanos {
        Nanos(self.shared.cpu.swap(0, Ordering::Relaxed))
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.asking = None;
        if let Some(thread) = self.thread.take() {
            // One that has panicked sets no limit either.
            let _ = thread.join();
        }
    }
}
