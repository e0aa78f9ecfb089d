//! Starts the program, hands signals on to it, and waits for it.
//!
//! The program must see what it would see without us: it keeps the terminal,
//! the foreground process group and the signals that we were started with
//! ignored or blocked, and its exit status becomes ours. Whether it goes on ignoring
//! them is its own affair: they are handed on like all others.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags};
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGURG, SIGUSR1, SIGUSR2, SIGVTALRM,
    SIGWINCH,
};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::Cause;
use terrace_report::End;
use terrace_signals::{Environment, RealTime, RealTimeSignal};

/// How long real-time signals wait that the program has no more room for, until they are tried again.
const AGAIN: Duration = Duration::from_millis(10);

/// The signals that we take while the program runs, beside the real-time signals, of which none may
/// be lost ([`RealTime`]). SIGUSR1 is a question to us, the others are the program's: whoever starts a
/// program through us knows our number, and not always the program's. What stops and continues a
/// process is for us as for any other, and what tells of a fault or of a limit of our own is ours.
const TAKEN: [i32; 12] = [
    SIGTERM, SIGHUP, SIGQUIT, SIGINT, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGWINCH,
    SIGURG, SIGIO,
];

/// How a program ended, from what its parent is told.
fn end_of(status: ExitStatus) -> End {
    match status.code() {
        Some(code) => End::Exited(code as u8),
        None => End::Killed(status.signal().unwrap_or_default() as u8),
    }
}

/// How a program's run came out.
pub(crate) struct Outcome {
    /// How it ended.
    pub(crate) end: End,
    /// How long it took.
    pub(crate) elapsed: Duration,
    /// Whether the kernel wrote a core dump of it, or gave one to a program that keeps them.
    pub(crate) dumped_core: bool,
}

/// The status with which a shell would report an end.
pub(crate) fn exit_code(end: End) -> ExitCode {
    match end {
        End::Exited(code) => ExitCode::from(code),
        End::Killed(signal) => ExitCode::from(128 + signal),
    }
}

/// What goes on while the program runs.
pub(crate) trait Watch {
    /// Called again and again until the program has ended; returns how long
    /// it may wait for the next time.
    fn poll(&mut self) -> Duration;
    /// Somebody sent us SIGUSR1.
    fn report(&mut self);
}

/// A program that runs.
pub(crate) struct Running {
    id: u32,
    /// Refers to this very process even after its number is used again.
    handle: OwnedFd,
    threads: Threads,
    started: Instant,
}

/// What waits for the program's end, and for signals.
struct Threads {
    happened: Receiver<Happened>,
    stop: Handle,
    signals: JoinHandle<()>,
    real_time: RealTime,
    waiter: JoinHandle<()>,
}

impl Threads {
    /// Starts them, and says where the program goes that is to be waited for. Before there is
    /// one: where no threads can be had, nothing has been started.
    fn start(mut signals: SignalsInfo<WithOrigin>) -> io::Result<(Self, Sender<Child>)> {
        let (sender, happened) = mpsc::channel();
        let (program, started) = mpsc::channel::<Child>();
        let stop = signals.handle();
        let (signal_sender, real_time_sender) = (sender.clone(), sender.clone());
        // First, so that the others do not take any themselves: of those that several threads send on
        // the order is lost.
        let real_time = RealTime::take(move |signal| {
            // The receiver outlives this thread, too.
            let _ = real_time_sender.send(Happened::Queued(signal));
        })?;
        let waiter = thread::Builder::new().spawn(move || {
            let Ok(mut child) = started.recv() else { return };
            let status = child.wait();
            // The receiver outlives us: it waits for exactly this.
            let _ = sender.send(Happened::Ended(status));
        })?;
        let signals = thread::Builder::new().spawn(move || {
            for origin in signals.forever() {
                let happened = Happened::Signal {
                    number: origin.signal,
                    // The kernel also sends what a timer has run out for, to us alone.
                    from_terminal: origin.cause == Cause::Kernel
                        && [SIGINT, SIGQUIT, SIGHUP, SIGWINCH].contains(&origin.signal),
                    sender: origin.process.map(|process| process.pid),
                };
                if signal_sender.send(happened).is_err() {
                    break;
                }
            }
        })?;
        Ok((Self { happened, stop, signals, real_time, waiter }, program))
    }

    /// Ends them; the program has ended, or never began.
    fn end(self) {
        self.stop.close();
        self.real_time.end();
        let _ = (self.waiter.join(), self.signals.join());
    }
}

enum Happened {
    Ended(io::Result<ExitStatus>),
    Signal { number: i32, from_terminal: bool, sender: Option<i32> },
    Queued(RealTimeSignal),
}

impl Running {
    /// Starts a program in the environment that we were started in.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        Self::start_in(command, &Environment::inherited())
    }

    /// Starts a program in an environment.
    pub(crate) fn start_in(command: &mut Command, environment: &Environment) -> io::Result<Self> {
        // Before the program starts, so that no signal finds us without handlers.
        let signals = SignalsInfo::<WithOrigin>::new(TAKEN)?;
        terrace_signals::unblock(&TAKEN);
        let (threads, program) = Threads::start(signals)?;
        let started = Instant::now();
        match spawn(command, environment) {
            Ok((child, handle)) => {
                let id = child.id();
                // Its receiver is there until it has got it.
                let _ = program.send(child);
                Ok(Self { id, handle, threads, started })
            }
            Err(error) => {
                drop(program);
                threads.end();
                Err(error)
            }
        }
    }

    /// The program's process.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Waits for the program's end.
    pub(crate) fn wait(self, watch: &mut dyn Watch) -> io::Result<Outcome> {
        let mut interval = watch.poll();
        let mut queued = Vec::new();
        let status = loop {
            let patience = if queued.is_empty() { interval } else { interval.min(AGAIN) };
            match self.threads.happened.recv_timeout(patience) {
                Ok(Happened::Ended(status)) => break status,
                Ok(Happened::Signal { number: SIGUSR1, .. }) => watch.report(),
                // A terminal signals the whole foreground group, the program
                // included; a second one from us would be one too many.
                Ok(Happened::Signal { from_terminal: true, .. }) => {}
                // One that signals its whole group (`kill 0`) has had its own.
                Ok(Happened::Signal { sender: Some(sender), .. }) if self.is(sender) => {}
                Ok(Happened::Queued(signal)) if signal.sender().is_some_and(|s| self.is(s)) => {}
                Ok(Happened::Queued(signal)) => queued.push(signal),
                Ok(Happened::Signal { number, .. }) => {
                    // It may have ended in this moment; then there is nobody to tell.
                    let _ = terrace_signals::send(self.handle.as_fd(), number);
                }
                Err(RecvTimeoutError::Timeout) => interval = watch.poll(),
                Err(RecvTimeoutError::Disconnected) => {
                    break Err(io::Error::other("lost track of the program"));
                }
            }
            self.hand_on(&mut queued);
        };
        let elapsed = self.started.elapsed();
        self.threads.end();
        let status = status?;
        Ok(Outcome { end: end_of(status), elapsed, dumped_core: status.core_dumped() })
    }

    /// Whether a process is the program's.
    fn is(&self, process: i32) -> bool {
        u32::try_from(process) == Ok(self.id)
    }

    /// Hands real-time signals on. Those stay for which the kernel queues no more, in their order;
    /// their sender would have been told.
    fn hand_on(&self, queued: &mut Vec<RealTimeSignal>) {
        let mut full = BTreeSet::new();
        queued.retain(|signal| {
            let stays = full.contains(&signal.number())
                // One that has ended in this moment nobody has to tell.
                || signal
                    .hand_on(self.handle.as_fd())
                    .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            if stays {
                full.insert(signal.number());
            }
            stays
        });
    }
}

fn spawn(command: &mut Command, environment: &Environment) -> io::Result<(Child, OwnedFd)> {
    let mut child = terrace_signals::spawn(command, environment)?;
    match rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(handle) => Ok((child, handle)),
        Err(error) => {
            // A program that nobody can signal must not be left running.
            child.kill()?;
            child.wait()?;
            Err(error.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(u32);
    impl Watch for Count {
        fn poll(&mut self) -> Duration {
            self.0 += 1;
            Duration::from_millis(5)
        }
        fn report(&mut self) {}
    }

    fn run_to_end(script: &str) -> End {
        let running = Running::start(Command::new("/bin/sh").args(["-c", script])).unwrap();
        running.wait(&mut Count(0)).unwrap().end
    }

    #[test]
    fn an_end_by_status_and_an_end_by_signal_are_told_apart() {
        assert_eq!(run_to_end("exit 143"), End::Exited(143));
        assert_eq!(run_to_end("kill -9 $$"), End::Killed(9));
    }

    #[test]
    fn the_watch_is_polled_while_the_program_runs() {
        let running = Running::start(Command::new("/bin/sleep").arg("0.2")).unwrap();
        let mut count = Count(0);

        let elapsed = running.wait(&mut count).unwrap().elapsed;

        assert!(elapsed >= Duration::from_millis(200));
        assert!(count.0 >= 5, "polled {} times in {elapsed:?}", count.0);
    }
}
