//! A thread that carries out steps, and can be interrupted.
//!
//! A write to a block's `state` does not return before the kernel has moved
//! every page away, however long that takes; in the meantime somebody has to
//! watch how much memory is left. A signal makes the kernel give up: it puts
//! back what it has isolated, and the block stays online.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use terrace_core::Nanos;

use super::actuator::{ActionError, Actuator};
use crate::action::Action;

/// The stack of the thread: it is locked into memory as a whole.
const STACK: usize = 256 << 10;
/// What interrupts a step. Nothing else in this process sends it.
const INTERRUPT: libc::c_int = libc::SIGUSR2;

/// Makes a descriptor readable, from any thread.
#[derive(Clone, Debug)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    /// A bell that has not rung.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Wakes whoever polls it.
    pub fn ring(&self) {
        // It can only be full, and rings then.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Silences it; whether it had rung.
    pub fn take(&self) -> bool {
        let mut count = [0; 8];
        rustix::io::read(&*self.0, &mut count).is_ok()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A step that is over.
#[derive(Debug)]
pub struct Done {
    /// The step.
    pub action: Action,
    /// Whether it was done.
    pub outcome: Result<(), ActionError>,
    /// How long it took.
    pub took: Nanos,
}

/// The thread.
#[derive(Debug)]
pub struct Worker {
    steps: Option<Sender<Action>>,
    done: Receiver<Done>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts the thread. `bell` rings when a step is over.
    pub fn start(mut actuator: Box<dyn Actuator>, bell: Bell) -> io::Result<Self> {
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: a handler that does nothing may interrupt anything. Without SA_RESTART, the
        // system call that it interrupts returns.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            if libc::sigaction(INTERRUPT, &raw const action, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let (steps, orders) = mpsc::channel::<Action>();
        let (tell, done) = mpsc::channel();
        let work = move || {
            for action in orders {
                let begun = Instant::now();
                let outcome = actuator.act(&action);
                let took = Nanos(begun.elapsed().as_nanos() as u64);
                if tell.send(Done { action, outcome, took }).is_err() {
                    break;
                }
                bell.ring();
            }
        };
        let thread = std::thread::Builder::new()
            .name("provision-worker".to_owned())
            .stack_size(STACK)
            .spawn(work)?;
        Ok(Self { steps: Some(steps), done, thread })
    }

    /// Has a step carried out, after those that were begun before.
    pub fn begin(&self, action: Action) {
        if let Some(steps) = &self.steps {
            // It fails only if the thread has panicked, and then `next` says so.
            let _ = steps.send(action);
        }
    }

    /// Interrupts the step that is under way. A signal that comes before the system call has
    /// begun is lost, so it is sent again until the step is over.
    pub fn interrupt(&self) {
        // SAFETY: the thread has not been joined, so that its handle is valid.
        unsafe {
            libc::pthread_kill(self.thread.as_pthread_t(), INTERRUPT);
        }
    }

    /// A step that is over, if there is one.
    pub fn next(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }

    /// Whether the thread has ended without having been told to.
    pub fn is_dead(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the step that is under way, and ends the thread.
    pub fn end(mut self) {
        self.steps = None;
        let _ = self.thread.join();
    }
}
