//! Real-time signals: the kernel queues each that is sent, with what came with it, so they are
//! taken one by one. A handler that only notes what has come would lose most of many.
//!
//! They are blocked in the thread that begins to take them, and in those that it creates later; a
//! thread of their own waits for them. Of threads that were there before the kernel may choose one
//! that does not block them: a handler sends them on from there.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::*};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use libc::{c_int, c_void};

use super::{bit, mask, real_time, send};

/// The kernel's structure, as 64-bit systems have it of a signal that a process has sent.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Info {
    number: c_int,
    error: c_int,
    code: c_int,
    pad: c_int,
    sender: c_int,
    user: u32,
    value: u64,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<Info>() == size_of::<libc::siginfo_t>());

/// What a handler marks a signal with that it sends on: as the kernel's or another process's own,
/// nobody may send one. Its code is the value then, which these have none of.
const SENT_ON: c_int = -64;

/// What ends the thread: no program has a use for it, and unlike real-time signals it comes also
/// where no more may be queued (`ulimit -i`).
const END: c_int = libc::SIGSTKFLT;

/// Its stack: it does little, and where addresses are limited (`ulimit -v`) each MiB counts.
const STACK: usize = 256 << 10;

/// The thread that waits, for the handler.
static TAKER: AtomicI32 = AtomicI32::new(0);

/// A real-time signal that has come.
#[derive(Clone, Copy, Debug)]
pub struct RealTimeSignal(Info);

impl RealTimeSignal {
    /// Which one.
    pub fn number(&self) -> c_int {
        self.0.number
    }

    /// The process that has sent it, if one has.
    pub fn sender(&self) -> Option<c_int> {
        let by_process = [libc::SI_USER, libc::SI_QUEUE, libc::SI_TKILL, libc::SI_MESGQ];
        by_process.contains(&self.0.code).then_some(self.0.sender)
    }

    /// Sends it to the process that a handle refers to: with its value and its sender, if a value came
    /// with it (`sigqueue`); else as a new one, for of the others nobody may say that they are another's.
    ///
    /// # Errors
    /// The kernel's: `ESRCH` where the process has ended, `EAGAIN` where no more may be queued.
    pub fn hand_on(&self, process: BorrowedFd<'_>) -> io::Result<()> {
        if self.0.code != libc::SI_QUEUE {
            return send(process, self.0.number);
        }
        let info = &raw const self.0;
        // SAFETY: a handle that is open, and a structure of the kernel's length.
        let sent = unsafe {
            let process = process.as_raw_fd();
            libc::syscall(libc::SYS_pidfd_send_signal, process, self.0.number, info, 0)
        };
        if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Real-time signals are taken as long as there is one of these.
#[derive(Debug)]
pub struct RealTime {
    over: Arc<AtomicBool>,
    tid: c_int,
    thread: JoinHandle<()>,
}

impl RealTime {
    /// Takes them from now on: `each` is called with each, in a thread of their own.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn take(mut each: impl FnMut(RealTimeSignal) + Send + 'static) -> io::Result<Self> {
        let signals: u64 = real_time().map(bit).sum();
        let before = mask(libc::SIG_BLOCK, signals | bit(END));
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let (sender, started) = mpsc::channel();
        let waiter = thread::Builder::new().stack_size(STACK).spawn(move || {
            // SAFETY: asks for a number.
            let _ = sender.send(unsafe { libc::gettid() });
            while let Some(signal) = wait(signals | bit(END))
                && !is_over.load(Acquire)
            {
                if signal.number() != END {
                    each(signal);
                }
            }
        });
        // Only the thread blocks what ends it.
        let begun = waiter.and_then(|thread| {
            let tid = started.recv().map_err(io::Error::other)?;
            Ok(Self { over, tid, thread })
        });
        let after = before | if begun.is_ok() { signals } else { 0 };
        mask(libc::SIG_SETMASK, after);
        let begun = begun?;
        TAKER.store(begun.tid, Release);
        real_time().for_each(handle);
        Ok(begun)
    }

    /// Takes no more. What comes from now on stays where it is.
    pub fn end(self) {
        self.over.store(true, Release);
        // SAFETY: a signal to a thread of this process, which waits for it.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.tid, END) };
        // What it panicked with, it has said.
        let _ = self.thread.join();
    }
}

/// Waits for one of the signals; `None` if the kernel does not let it.
fn wait(signals: u64) -> Option<RealTimeSignal> {
    let mut info =
        Info { number: 0, error: 0, code: 0, pad: 0, sender: 0, user: 0, value: 0, rest: [0; 12] };
    loop {
        // SAFETY: the kernel's signal set is 8 bytes, and the structure as long as it writes.
        let number = unsafe {
            let (set, info) = (&raw const signals, &raw mut info);
            let for_ever = std::ptr::null::<libc::timespec>();
            libc::syscall(libc::SYS_rt_sigtimedwait, set, info, for_ever, size_of::<u64>())
        };
        if number > 0 {
            break;
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
    if info.code == SENT_ON {
        (info.code, info.value) = (info.value as c_int, 0);
    }
    Some(RealTimeSignal(info))
}

/// Has a signal be sent on to the thread that waits, from any that does not block it.
fn handle(signal: c_int) {
    // SAFETY: zeros are a valid structure, and the handler takes what its flags say.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction =
            send_on as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

extern "C" fn send_on(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel's structure, which is as long, and this thread's own variable. It makes
    // system calls only.
    unsafe {
        let error = libc::__errno_location();
        let before = *error;
        let mut info = info.cast::<Info>().read();
        if info.code >= 0 || info.code == libc::SI_TKILL {
            info.value = u64::from(info.code.cast_unsigned());
            info.code = SENT_ON;
            info.rest = [0; 12];
        }
        let (process, thread) = (libc::getpid(), TAKER.load(Acquire));
        let info = &raw const info;
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info);
        *error = before;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The thread that began before this test does not block them, and may be given any of them.
    #[test]
    fn each_comes_with_its_value_and_its_sender_however_many_there_are() {
        const MANY: usize = 64;
        let (sender, came) = mpsc::channel();
        let taken = RealTime::take(move |signal| sender.send(signal).unwrap()).unwrap();
        let (queued, sent) = (libc::SIGRTMIN() + 5, libc::SIGRTMIN() + 6);
        for value in 0..MANY {
            let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(value) };
            // SAFETY: signals to this process, which takes them.
            let told = unsafe {
                [libc::sigqueue(libc::getpid(), queued, value), libc::kill(libc::getpid(), sent)]
            };
            assert_eq!(told, [0, 0]);
        }

        let next = || came.recv_timeout(Duration::from_mins(1)).unwrap();
        let mut all: Vec<_> = (0..2 * MANY).map(|_| next()).collect();

        let own = std::process::id().cast_signed();
        assert!(all.iter().all(|signal| signal.sender() == Some(own)), "{all:?}");
        // Several threads may have sent some on: in order is only what one of them had.
        all.sort_by_key(|signal| (signal.number(), signal.0.value));
        let (with_value, without) = all.split_at(MANY);
        let is = |(i, signal): (usize, &RealTimeSignal)| {
            (signal.number(), signal.0.code, signal.0.value) == (queued, libc::SI_QUEUE, i as u64)
        };
        assert!(with_value.iter().enumerate().all(is), "{with_value:?}");
        assert!(without.iter().all(|signal| signal.number() == sent), "{without:?}");
        taken.end();
        assert!(came.try_recv().is_err(), "{came:?}");
    }
}
