//! A thread that looks at files: whatever it waits for there, nobody waits for it.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Instant;
use std::{io, mem};

use terrace_core::Nanos;

use super::absent::{Absent, Found};

/// No look begins before so many times as long as the last one took.
const REST: u64 = 50;

/// After this time without an answer, what was found before is none any more.
const LATE: Nanos = Nanos::seconds(60);

/// A look that was asked for.
type Asked = (Nanos, Vec<u32>);

/// What came of it: what was found, and how long it took, and of that on a processor.
type Answer = (Found, Nanos, Nanos);

/// Has looks made, one at a time. The thread ends after the look that it is at when this is dropped.
#[derive(Debug)]
pub(super) struct Looker {
    ask: SyncSender<Asked>,
    answers: Receiver<Answer>,
    /// When a look was asked for that is not made yet.
    under_way: Option<Nanos>,
    not_before: Nanos,
    cpu: Nanos,
}

impl Looker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start() -> io::Result<Self> {
        let mut absent = Absent::default();
        Self::start_with(move |now, processes| absent.look(now, processes))
    }

    fn start_with(
        mut look: impl FnMut(Nanos, &[u32]) -> Found + Send + 'static,
    ) -> io::Result<Self> {
        let (ask, asked) = sync_channel::<Asked>(1);
        let (answer, answers) = sync_channel(1);
        thread::Builder::new().name("terrace-files".into()).spawn(move || {
            while let Ok((now, processes)) = asked.recv() {
                let (begun, cpu) = (Instant::now(), terrace_live::sys::thread_cpu());
                let found = look(now, &processes);
                let cpu = terrace_live::sys::thread_cpu().saturating_sub(cpu);
                if answer.send((found, Nanos(begun.elapsed().as_nanos() as u64), cpu)).is_err() {
                    break;
                }
            }
        })?;
        let (under_way, not_before, cpu) = (None, Nanos::ZERO, Nanos::ZERO);
        Ok(Self { ask, answers, under_way, not_before, cpu })
    }

    /// Has these processes' files looked at, unless that is under way or was a short time ago.
    pub(super) fn ask(&mut self, now: Nanos, processes: &[u32]) {
        let may = self.under_way.is_none() && now >= self.not_before;
        if may && self.ask.try_send((now, processes.to_vec())).is_ok() {
            self.under_way = Some(now);
        }
    }

    /// Whether a look waits for something, or its thread has failed, so that nobody knows what is out by
    /// now.
    pub(super) fn is_late(&self, now: Nanos) -> bool {
        self.under_way.is_some_and(|at| now >= at + LATE)
    }

    /// What a look has found that was made since the last call.
    pub(super) fn take(&mut self, now: Nanos) -> Option<Found> {
        match self.answers.try_recv() {
            Ok((found, took, cpu)) => {
                self.under_way = None;
                self.not_before = now + took * REST;
                self.cpu += cpu;
                Some(found)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Processor time since the last call.
    pub(super) fn take_cpu(&mut self) -> Nanos {
        mem::take(&mut self.cpu)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn await_answer(looker: &mut Looker, now: Nanos) -> Found {
        loop {
            if let Some(found) = looker.take(now) {
                return found;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A process that is stuck may keep whoever looks at its mappings waiting.
    #[test]
    fn a_look_that_does_not_come_to_its_end_is_late() {
        let (go, gone) = sync_channel::<()>(0);
        let mut looker = Looker::start_with(move |_, _| {
            // The second time nobody lets it go on, and it fails.
            gone.recv().unwrap();
            Found::default()
        })
        .unwrap();
        assert!(!looker.is_late(Nanos::seconds(1000)), "none was asked for");
        looker.ask(Nanos::seconds(5), &[]);
        assert!(!looker.is_late(Nanos::seconds(5) + LATE - Nanos(1)));
        assert!(looker.is_late(Nanos::seconds(5) + LATE));
        go.send(()).unwrap();
        await_answer(&mut looker, Nanos::seconds(90));
        assert!(!looker.is_late(Nanos::seconds(1000)));
        let now = looker.not_before;
        looker.ask(now, &[]);
        drop(go);
        assert_eq!(looker.take(now), None);
        assert!(looker.is_late(now + LATE));
    }

    #[test]
    fn looks_are_made_one_at_a_time_and_rarely() {
        let (go, gone) = sync_channel::<()>(0);
        let mut looks = 0;
        let mut looker = Looker::start_with(move |_, processes| {
            assert_eq!(processes, [7]);
            gone.recv().unwrap();
            thread::sleep(Duration::from_millis(2));
            looks += 1;
            Found { files: looks, ..Found::default() }
        })
        .unwrap();
        looker.ask(Nanos::ZERO, &[7]);
        // Nobody waits for one that takes its time, and it is not asked again.
        looker.ask(Nanos::seconds(9), &[8]);
        assert_eq!(looker.take(Nanos::seconds(9)), None);
        go.send(()).unwrap();
        assert_eq!(await_answer(&mut looker, Nanos::seconds(10)).files, 1);
        let rest = Nanos::seconds(10) + Nanos::millis(2) * REST;
        assert!(looker.not_before >= rest, "{}", looker.not_before);
        looker.ask(Nanos::seconds(10), &[8]);
        assert_eq!(looker.under_way, None);
        let now = looker.not_before;
        looker.ask(now, &[7]);
        go.send(()).unwrap();
        assert_eq!(await_answer(&mut looker, now).files, 2);
    }
}
