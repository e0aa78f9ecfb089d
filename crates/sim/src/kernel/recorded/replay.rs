//! A recording as a program for the simulated kernel.

use std::collections::BTreeMap;

use terrace_core::Nanos;

use super::Recording;
use crate::kernel::{Advice, Call, Calls};

/// How long a thread waits before it looks again whether another one has made the call that its
/// own depends on.
const PATIENCE: Nanos = Nanos::micros(5);

/// A call of a thread.
#[derive(Clone, Copy, Debug)]
struct Next {
    call: Call,
    /// Time of the program's own before it.
    think: Nanos,
    /// Calls of other threads that have to be made first: where they are in [`Replay::before`].
    after: (u32, u32),
}

/// Makes a recording's calls: each thread its own, with the time between them that the program
/// took. A call waits for those before it that its file depends on; other calls of several
/// threads overtake each other as the simulated machine has it.
#[derive(Debug)]
pub struct Replay {
    name: &'static str,
    threads: Vec<Vec<Next>>,
    /// Calls that others have to wait for.
    before: Vec<Place>,
    /// Calls that each thread has made.
    made: Vec<u32>,
    /// Whether each has taken its own time before its next call.
    thought: Vec<bool>,
    /// Whether each has made a call that was not counted yet.
    received: Vec<bool>,
}

/// The file or socket that a call is about.
pub(crate) fn about(call: &Call) -> Option<(bool, u32)> {
    Some(match *call {
        Call::Create { file }
        | Call::Open { file }
        | Call::Close { file }
        | Call::Read { file, .. }
        | Call::Write { file, .. }
        | Call::Fsync { file }
        | Call::Unlink { file }
        | Call::Rename { file }
        | Call::Stat { file }
        | Call::Map { file }
        | Call::Unmap { file }
        | Call::Access { file, .. }
        | Call::Advise { file, .. } => (true, file),
        Call::Socket { socket }
        | Call::Connect { socket }
        | Call::Accept { socket }
        | Call::Arrive { socket, .. }
        | Call::Epoll { socket }
        | Call::Recv { socket }
        | Call::Send { socket, .. }
        | Call::CloseSocket { socket } => (false, socket),
        _ => return None,
    })
}

/// Whether a call begins or ends something: calls on the same file stay before it or after it. Which
/// pages leave a file that is not needed depends on what was read and written before.
pub(crate) fn begins_or_ends(call: &Call) -> bool {
    matches!(
        call,
        Call::Create { .. }
            | Call::Open { .. }
            | Call::Close { .. }
            | Call::Unlink { .. }
            | Call::Map { .. }
            | Call::Unmap { .. }
            | Call::Socket { .. }
            | Call::Accept { .. }
            | Call::Connect { .. }
            | Call::CloseSocket { .. }
            // What has arrived can be received once.
            | Call::Arrive { .. }
            | Call::Recv { .. }
            | Call::Advise { advice: Advice::DontNeed, .. }
    )
}

/// A call of a thread: which thread, and how many calls of it have been made with it.
type Place = (u32, u32);

/// Calls on one file or socket so far.
#[derive(Debug, Default)]
struct Sofar {
    /// The last that others stay behind: one that begins or ends something, or a write.
    barrier: Option<Place>,
    /// The last one of each thread.
    last: BTreeMap<u32, u32>,
}

impl Replay {
    /// A program that makes the calls of a recording which was checked.
    pub fn new(recording: &Recording, name: &'static str) -> Self {
        let count = recording.threads.max(1) as usize;
        let mut threads: Vec<Vec<Next>> = vec![Vec::new(); count];
        let mut ended = vec![Nanos::ZERO; count];
        let mut sofar: BTreeMap<(bool, u32), Sofar> = BTreeMap::new();
        let mut before: Vec<Place> = Vec::new();
        for made in &recording.calls {
            let thread = made.thread as usize;
            let own = threads[thread].len() as u32 + 1;
            let begin = before.len();
            if let Some(object) = about(&made.call) {
                let known = sofar.entry(object).or_default();
                if begins_or_ends(&made.call) {
                    before.extend(known.last.iter().map(|(&thread, &calls)| (thread, calls)));
                } else {
                    before.extend(known.barrier);
                }
                // A thread's own calls are in order anyway.
                let others = before[begin..].iter().copied().filter(|p| p.0 != made.thread);
                let others: Vec<Place> = others.collect();
                before.truncate(begin);
                before.extend(others);
                known.last.insert(made.thread, own);
                if begins_or_ends(&made.call) || matches!(made.call, Call::Write { .. }) {
                    known.barrier = Some((made.thread, own));
                }
            }
            let after = (begin as u32, before.len() as u32);
            let think = made.at.saturating_sub(ended[thread]);
            ended[thread] = made.at + made.took;
            threads[thread].push(Next { call: made.call, think, after });
        }
        Self {
            name,
            made: vec![0; count],
            thought: vec![false; count],
            received: vec![false; count],
            before,
            threads,
        }
    }
}

impl Calls for Replay {
    fn name(&self) -> &'static str {
        self.name
    }
    fn threads(&self) -> usize {
        self.threads.len()
    }
    fn pages(&self) -> u32 {
        0
    }
    fn next(&mut self, thread: usize) -> Option<Call> {
        if core::mem::take(&mut self.received[thread]) {
            return Some(Call::Done);
        }
        let next = *self.threads[thread].get(self.made[thread] as usize)?;
        if !core::mem::replace(&mut self.thought[thread], true) && !next.think.is_zero() {
            return Some(Call::Compute { time: next.think });
        }
        let mut after = self.before[next.after.0 as usize..next.after.1 as usize].iter();
        if after.any(|&(other, calls)| self.made[other as usize] < calls) {
            return Some(Call::Compute { time: PATIENCE });
        }
        self.thought[thread] = false;
        self.made[thread] += 1;
        // Each call is an operation, done after it was made.
        self.received[thread] = true;
        Some(next.call)
    }
}
