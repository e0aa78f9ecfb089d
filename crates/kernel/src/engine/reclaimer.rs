//! A thread that asks the kernel to put memory of a group out.
//!
//! The kernel does the work in the thread that asks, and under version 1 of control groups does
//! not return before the group has become as small as was asked for, however fast it grows
//! meanwhile. The engine must look at what comes back, and at the brake, all that time.
//!
//! Where processes outlive the run, or its budget has become larger, nothing bounds them below what was
//! asked for, and the kernel may never come to that. A signal has it give up.
//!
//! A panic in it is the error of that request. The thread stays: were it to end, a request that was sent
//! just then would have nobody to come to its end.

use std::any::Any;
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use terrace_core::{Bytes, Nanos};
use terrace_live::sys;

/// What interrupts the thread. Nothing else in this process sends it, and it is none of those that are
/// handed on to a program.
pub(super) const INTERRUPT: libc::c_int = libc::SIGPWR;
/// How often it is sent in the end: one that comes before a system call has begun is lost.
pub(super) const EACH: Duration = Duration::from_millis(1);

/// Has the signal do nothing but interrupt a system call, from now on; whether it does.
pub(super) fn interrupts() -> bool {
    extern "C" fn nothing(_: libc::c_int) {}
    static INTERRUPTS: OnceLock<bool> = OnceLock::new();
    // SAFETY: a handler that does nothing may interrupt anything; the structure is plain data. Without
    // SA_RESTART the system call that it interrupts returns.
    *INTERRUPTS.get_or_init(|| unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(INTERRUPT, &raw const action, std::ptr::null_mut()) == 0
    })
}

/// Has the calling thread be interrupted, although the signal may have been blocked when this process was
/// started.
pub(super) fn unblock() {
    // SAFETY: a set of signals is plain data, which the first call makes an empty one.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, INTERRUPT);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const signals, std::ptr::null_mut());
    }
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> &str {
    let said = panic.downcast_ref::<&str>().copied();
    said.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("nothing was said")
}

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
    /// The client does not want any more what it asked for.
    gives_up: AtomicBool,
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
        self.shared.gives_up.store(false, Ordering::Release);
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

/// The thread, as its client has it. It ends with its client, which interrupts what the kernel is still
/// at, and waits for that: no limit is set afterwards.
#[derive(Debug)]
pub(crate) struct Reclaimer {
    /// `None` at the end only.
    asking: Option<Asking>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Whether it can be interrupted.
    interrupts: bool,
}

impl Reclaimer {
    /// Starts the thread, which asks the kernel in some way. Whoever does that in several steps is to
    /// take no other one once the flag is set.
    pub(crate) fn start(
        reclaim: impl Fn(Bytes, &AtomicBool) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (requests, asked) = sync_channel::<Bytes>(1);
        let shared = Arc::<Shared>::default();
        let told = Arc::clone(&shared);
        let interrupts = interrupts();
        let builder = thread::Builder::new().name("terrace-reclaim".into());
        let thread = builder.spawn(move || {
            if interrupts {
                unblock();
            }
            let mut spent = sys::thread_cpu();
            while let Ok(bytes) = asked.recv() {
                if told.over.load(Ordering::Acquire) {
                    break;
                }
                // What it shares with others is atomic, or lies with the kernel. What it may have left there
                // is undone by whoever is told.
                let done = catch_unwind(AssertUnwindSafe(|| reclaim(bytes, &told.gives_up)));
                let done = done.unwrap_or_else(|panic| {
                    let said = said(&*panic);
                    Err(io::Error::other(format!(
                        "the thread that asks the kernel panicked: {said}"
                    )))
                });
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
        Ok(Self { asking, shared, thread: Some(thread), interrupts })
    }

    /// The way to ask it. Whoever has one must let it go before the client does.
    pub(super) fn asking(&self) -> Asking {
        self.asking.clone().expect("it is taken when this is dropped")
    }

    /// Asks for so much, unless it is at work; whether it was asked. The error is that of the
    /// request before.
    pub(crate) fn ask(&self, bytes: Bytes) -> io::Result<bool> {
        self.asking.as_ref().map_or(Ok(false), |asking| asking.ask(bytes))
    }

    /// Whether it is at work.
    pub(crate) fn is_busy(&self) -> bool {
        self.shared.busy.load(Ordering::Acquire)
    }

    /// Has it give up what it is at. To be called again for as long as it is at work: a signal that comes
    /// before a system call has begun is lost.
    pub(crate) fn give_up(&self) {
        self.shared.gives_up.store(true, Ordering::Release);
        if let Some(thread) = self.thread.as_ref().filter(|_| self.interrupts) {
            // SAFETY: the thread has not been joined, so that its handle is valid.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), INTERRUPT) };
        }
    }

    /// Processor time since the last call, of requests that have come to their ends.
    pub(crate) fn take_cpu(&self) -> Nanos {
        Nanos(self.shared.cpu.swap(0, Ordering::Relaxed))
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.shared.gives_up.store(true, Ordering::Release);
        self.asking = None;
        let goes_on = |thread: &JoinHandle<()>| self.interrupts && !thread.is_finished();
        while self.thread.as_ref().is_some_and(goes_on) {
            thread::sleep(EACH);
            self.give_up();
        }
        if let Some(thread) = self.thread.take() {
            // Nothing in it panics but what is told.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon that was started goes on without a limit, and may grow faster than the kernel puts out.
    #[test]
    fn what_may_have_no_end_is_interrupted_when_nobody_asks_any_more() {
        let (begins, begun) = sync_channel(1);
        let reclaimer = Reclaimer::start(move |_, _| {
            let _ = begins.send(());
            // SAFETY: waits for a signal, of no descriptor.
            unsafe { libc::poll(std::ptr::null_mut(), 0, -1) };
            Err(io::Error::last_os_error())
        })
        .unwrap();
        assert!(reclaimer.ask(Bytes(4096)).unwrap());
        begun.recv().unwrap();
        drop(reclaimer);
    }

    /// A budget has become larger, or a group that nothing bounds asks for its memory back.
    #[test]
    fn what_is_not_wanted_any_more_is_interrupted_and_the_next_request_is_not() {
        let (begins, begun) = sync_channel(1);
        let reclaimer = Reclaimer::start(move |bytes, gives_up| {
            let _ = begins.send(gives_up.load(Ordering::Acquire));
            if bytes == Bytes(4096) {
                // SAFETY: waits for a signal, of no descriptor.
                unsafe { libc::poll(std::ptr::null_mut(), 0, -1) };
            }
            let given_up = gives_up.load(Ordering::Acquire);
            if given_up { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        })
        .unwrap();
        assert!(!reclaimer.is_busy());
        assert!(reclaimer.ask(Bytes(4096)).unwrap());
        assert!(!begun.recv().unwrap() && reclaimer.is_busy());
        while reclaimer.is_busy() {
            reclaimer.give_up();
            thread::sleep(EACH);
        }
        assert_eq!(reclaimer.ask(Bytes(8192)).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(reclaimer.ask(Bytes(8192)).unwrap());
        assert!(!begun.recv().unwrap(), "that was for the one before");
    }

    /// The engine would take it for at work for ever, and make room no more.
    #[test]
    fn a_panic_is_told_once_and_nobody_waits_for_its_end() {
        let reclaimer = Reclaimer::start(|bytes, _| {
            assert!(bytes != Bytes(4096), "on purpose, at {bytes}");
            Ok(())
        })
        .unwrap();
        let wait = || {
            let is_there = |thread: &JoinHandle<()>| !thread.is_finished();
            while reclaimer.is_busy() && reclaimer.thread.as_ref().is_some_and(is_there) {
                thread::sleep(EACH);
            }
            assert!(!reclaimer.is_busy());
        };
        assert!(reclaimer.ask(Bytes(4096)).unwrap());
        wait();
        assert!(!reclaimer.asking().ask_unless_failed(Bytes(8192)), "the engine is told first");
        let told = reclaimer.ask(Bytes(8192)).unwrap_err().to_string();
        assert!(told.contains("panicked: on purpose, at "), "{told}");
        // It works on.
        for _ in 0..2 {
            assert!(reclaimer.ask(Bytes(8192)).unwrap());
            wait();
        }
    }
}
