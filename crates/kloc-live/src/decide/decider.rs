//! From events and pressure to what is to be done.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

use serde::{Deserialize, Serialize};
use terrace_core::context::Context;
use terrace_core::{Bytes, ContextId, ContextIdentity, Nanos};
use terrace_kloc::{GuardConfig, ReuseGuard};

use super::contexts::{Change, Contexts, Departure, Tracked};
use super::journal::{Decision, Journal, Outcome};
use crate::observe::event::{FileEvent, page};
use crate::observe::load::{Journaled, Names};

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeciderConfig {
    /// A file that came back in place more often than this stays.
    pub hits: u32,
    /// Files that are known at most.
    pub capacity: usize,
    /// Whether pages leave, or it is only said which would.
    pub enforce: bool,
    /// A file that is opened again so soon after its pages have left counts as regretted. One
    /// minute: what is read once a minute is not what memory is short for.
    pub regret: Nanos,
}

impl Default for DeciderConfig {
    fn default() -> Self {
        Self {
            hits: GuardConfig::default().hits,
            capacity: 64 << 10,
            enforce: false,
            regret: Nanos::seconds(60),
        }
    }
}

/// A memory as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fill {
    /// What people call it.
    pub name: String,
    /// What of it is in use.
    pub used: Bytes,
    /// What of it can be in use before the kernel takes pages away.
    pub limit: Bytes,
    /// Files leave when more than this is in use,
    pub high: Bytes,
    /// until no more than this is.
    pub low: Bytes,
    /// Whether who reads a file is charged for its pages: a control group's.
    pub charged: bool,
}

/// A file that something is to be done to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub context: ContextId,
    /// The decision's number.
    pub decision: u64,
    /// Which file.
    pub file: ContextIdentity,
    /// The type of its file system.
    pub magic: u64,
    /// How much of it is cached, or is to come back.
    pub bytes: Bytes,
    /// What for.
    pub aim: Aim,
}

/// What is to be done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Its pages are to leave.
    Leave,
    /// They left and are to come back.
    ComeBack,
    /// Whether it lies below a directory that was named is to be known. No decision belongs to it.
    Look,
}

/// What was done since the beginning.
///
/// One field for each of the daemon's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Events.
    pub events: u64,
    /// Times that a memory was short.
    pub pressure: u64,
    /// Files whose pages left, or would have.
    pub left: u64,
    /// What they were.
    pub left_bytes: Bytes,
    /// What was dirty when it was to leave, and was written first.
    pub written_bytes: Bytes,
    /// Files that were opened again soon after.
    pub regretted: u64,
    /// What of them had left.
    pub regretted_bytes: Bytes,
    /// Files that somebody had open after all.
    pub in_use: u64,
    /// Files that were left alone for other reasons.
    pub left_alone: u64,
    /// Files that could not leave, and were put back to the front of the queue.
    pub put_back: u64,
    /// Files whose pages came back before they were asked for.
    pub prefetched: u64,
    /// What they were.
    pub prefetched_bytes: Bytes,
}

/// Pages that would have left. They are there in truth, so the memory is fuller than it would be.
///
/// Files may be deleted as fast as they are made, so each one is found by when it would have left.
#[derive(Debug, Default)]
struct Imagined {
    by_time: BTreeMap<(Nanos, ContextId), Bytes>,
    bytes: Bytes,
}

impl Imagined {
    fn add(&mut self, context: ContextId, gone: Departure) {
        self.forget(context, gone.at);
        self.by_time.insert((gone.at, context), gone.bytes);
        self.bytes += gone.bytes;
    }

    /// A file that would have left at this time is used again, or is no more.
    fn forget(&mut self, context: ContextId, at: Nanos) {
        self.take(context, at);
    }

    /// What stands for a file that would have left at this time, if anything does still.
    fn take(&mut self, context: ContextId, at: Nanos) -> Option<Departure> {
        let bytes = self.by_time.remove(&(at, context))?;
        self.bytes -= bytes;
        Some(Departure { at, bytes })
    }

    /// What would have left so long ago has left by itself, or is in use.
    fn forget_older(&mut self, age: Nanos, now: Nanos) {
        while let Some(first) = self.by_time.first_entry()
            && now.saturating_sub(first.key().0) > age
        {
            self.bytes -= first.remove();
        }
    }

    fn append(&mut self, mut other: Self) {
        self.by_time.append(&mut other.by_time);
        self.bytes += other.bytes;
    }
}

/// One memory.
#[derive(Debug)]
struct Memory {
    guard: ReuseGuard,
    /// What was asked for, and has not been done yet.
    under_way: Bytes,
    /// What would have left, where nothing is done.
    imagined: Imagined,
    /// See [`Fill::charged`].
    charged: bool,
}

impl Memory {
    fn new(hits: u32) -> Self {
        Self {
            guard: ReuseGuard::new(GuardConfig { hits, ..GuardConfig::default() }),
            under_way: Bytes::ZERO,
            imagined: Imagined::default(),
            charged: false,
        }
    }
}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    context: ContextId,
    scope: usize,
    bytes: Bytes,
    /// The number of the file's last close.
    close: u64,
    /// What its uses were then.
    uses: Uses,
    /// It was closed again, and its turn has come since: the memory, and the number of that close.
    turn: Option<(usize, u64)>,
}

/// By what it is seen whether a file was used since: how often it was opened, and when it was closed
/// last. A close may be seen without its open.
type Uses = (u64, Option<Nanos>);

fn uses(tracked: &Tracked) -> Uses {
    (tracked.opened, tracked.context.last_close)
}

/// A file whose turn it is to leave: of several, the one that was closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    closed: Nanos,
    scope: usize,
    context: ContextId,
    /// The number of its last close.
    close: u64,
}

/// A file that could not leave is asked for again after this time, after twice this time, and so
/// on, until it leaves or is opened.
const AGAIN: Nanos = Nanos::seconds(1);
/// Doublings of it at most: once in about a minute.
const DOUBLINGS: u32 = 6;

/// Decides.
#[derive(Debug)]
pub struct Decider {
    config: DeciderConfig,
    contexts: Contexts,
    memories: Vec<Memory>,
    /// The memories within each.
    below: Vec<Vec<usize>>,
    journal: Journal,
    totals: Totals,
    asked: HashMap<u64, Asked>,
    /// The decision by which a file is leaving.
    leaving: HashMap<ContextId, u64>,
    /// What could not leave, by when it is put back; with the decision's number.
    refused: BTreeMap<(Nanos, u64), Asked>,
    /// The memory that moved pages are in then.
    slow: Option<usize>,
    now: Nanos,
}

impl Decider {
    /// Knows nothing yet.
    pub fn new(config: DeciderConfig) -> Self {
        Self {
            config,
            contexts: Contexts::new(config.capacity),
            memories: Vec::new(),
            below: Vec::new(),
            journal: Journal::default(),
            totals: Totals::default(),
            asked: HashMap::new(),
            leaving: HashMap::new(),
            refused: BTreeMap::new(),
            slow: None,
            now: Nanos::ZERO,
        }
    }

    /// Pages that are moved are in this memory then, and wait there to be dropped.
    #[must_use]
    pub fn moving_to(mut self, slow: Option<usize>) -> Self {
        self.slow = slow;
        self
    }

    /// These memories lie within each one, by its place: what is in use of one of them is in use of
    /// that one, too, and so their files leave where it is short.
    pub fn lie_within(&mut self, below: Vec<Vec<usize>>) {
        self.below = below;
    }

    /// The memory that a known file belongs to.
    pub fn scope_of(&self, file: &ContextIdentity) -> Option<usize> {
        self.contexts.find(file).map(|tracked| tracked.scope)
    }

    /// The files.
    pub fn contexts(&self) -> &Contexts {
        &self.contexts
    }

    /// Adds what was transferred for files.
    pub fn transferred(&mut self, of: &HashMap<(u64, u64), (u64, Bytes)>) {
        self.contexts.transferred(of);
    }

    /// Adds what files asked of the journal.
    pub fn journaled(&mut self, of: &HashMap<(u64, u64), Journaled>) {
        self.contexts.journaled(of);
    }

    /// Enters how many names files had when one came or went.
    pub fn named(&mut self, of: &HashMap<(u64, u64), Names>) {
        self.contexts.named(of);
    }

    /// Enters how many pages of files that are open are cached, where that is known by now.
    pub fn counted(&mut self, pages: impl Fn(&ContextIdentity) -> Option<u64>) {
        self.contexts.counted(pages);
    }

    /// The decisions.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// What was done.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Parameters.
    pub fn config(&self) -> &DeciderConfig {
        &self.config
    }

    fn memory(&mut self, scope: usize) -> &mut Memory {
        while self.memories.len() <= scope {
            self.memories.push(Memory::new(self.config.hits));
        }
        &mut self.memories[scope]
    }

    /// Enters what happened to a file that belongs to a memory. Gives what is to come back.
    pub fn event(&mut self, event: &FileEvent, scope: usize) -> Option<Request> {
        self.totals.events += 1;
        self.now = self.now.max(event.at);
        if !self.config.enforce {
            self.take_back(event);
        }
        // A file stays where it was until it is closed.
        let known = self.contexts.find(&event.file).map(|tracked| tracked.scope);
        let (id, change, forgotten) = self.contexts.enter(event, scope);
        for (id, scope) in forgotten {
            self.memory(scope).guard.ended(id);
        }
        let before = known.unwrap_or(scope);
        match change {
            Change::Activated { resident, came_back } => {
                self.memory(before).guard.opened(id, resident);
                came_back.and_then(|gone| self.came_back(id, event, gone, before))
            }
            Change::Deactivated => {
                self.change_memory(id, before, scope);
                self.memory(scope).guard.closed(id);
                None
            }
            Change::Ended { gone } => {
                let memory = self.memory(before);
                memory.guard.ended(id);
                if let Some(gone) = gone {
                    memory.imagined.forget(id, gone.at);
                }
                None
            }
            Change::Nothing => None,
        }
    }

    /// A file goes to another memory. That one takes over how often the file was used, and what stands
    /// for the file's pages that would have left. Both are looked up there from now on.
    fn change_memory(&mut self, id: ContextId, from: usize, to: usize) {
        if from == to {
            return;
        }
        let hits = self.memory(from).guard.hits(id);
        self.memory(from).guard.ended(id);
        self.memory(to).guard.take_over(id, hits);
        let Some(tracked) = self.contexts.get_mut(id) else { return };
        tracked.scope = to;
        let gone = tracked.gone;
        if let Some(gone) = gone.and_then(|gone| self.memory(from).imagined.take(id, gone.at)) {
            self.memory(to).imagined.add(id, gone);
        }
    }

    /// Events were lost. The last closes of files may be among them, and such files would stay for ever.
    /// So each file that seems to be open waits to leave as if it had been closed now. If it is open in
    /// truth, no lease can be had on it, and it stays. A decider that only observes asks for no lease, and
    /// does nothing here.
    pub fn doubt(&mut self) {
        if !self.config.enforce {
            return;
        }
        for (id, scope) in self.contexts.close_all(self.now) {
            self.memory(scope).guard.closed(id);
        }
    }

    /// A memory is no more: its files belong to another one, those that were closed first first. What
    /// is leaving, or would have left, does not leave that one once more.
    pub fn merge(&mut self, from: usize, to: usize) {
        let memory = self.memory(from);
        let (under_way, imagined) = (memory.under_way, std::mem::take(&mut memory.imagined));
        let memory = self.memory(to);
        memory.under_way += under_way;
        memory.imagined.append(imagined);
        let mut leaving = HashSet::new();
        for asked in self.asked.values_mut().chain(self.refused.values_mut()) {
            // Below it has a place of its own there.
            asked.turn = asked.turn.filter(|&(scope, _)| scope != from);
            if asked.scope != from {
                continue;
            }
            // Its number was that of another guard. The one there has seen no close of it; who has
            // used it since it was asked for has given it a place of its own.
            let tracked = self.contexts.get(asked.context);
            let is_leaving = tracked.is_some_and(|tracked| uses(tracked) == asked.uses);
            (asked.scope, asked.close) = (to, if is_leaving { 0 } else { u64::MAX });
            leaving.extend(is_leaving.then_some(asked.context));
        }
        let enforce = self.config.enforce;
        let its = self.contexts.iter().filter(|tracked| tracked.scope == from);
        let mut its: Vec<_> = its
            .map(|t| {
                let has_left = leaving.contains(&t.context.id) || t.gone.is_some() && !enforce;
                let closed = t.context.last_close.unwrap_or_default();
                (closed, t.context.id, t.is_active(), has_left)
            })
            .collect();
        its.sort_unstable();
        for (_, id, is_active, has_left) in its {
            self.change_memory(id, from, to);
            if is_active {
                self.memory(to).guard.opened(id, false);
            } else if !has_left {
                self.memory(to).guard.closed(id);
            }
        }
        self.memories[from] = Memory::new(self.config.hits);
    }

    /// Who only observes decides on a file by what it was told until then. What waited to be told
    /// meanwhile, and is older, says that the file would not have left.
    fn take_back(&mut self, event: &FileEvent) {
        let Some(tracked) = self.contexts.find(&event.file) else { return };
        let (id, scope) = (tracked.context.id, tracked.scope);
        let Some(gone) = tracked.gone.filter(|gone| event.at < gone.at) else { return };
        self.memory(scope).imagined.forget(id, gone.at);
        if let Some(tracked) = self.contexts.get_mut(id) {
            tracked.gone = None;
        }
    }

    /// A file whose pages had left is opened again.
    fn came_back(
        &mut self,
        id: ContextId,
        event: &FileEvent,
        gone: Departure,
        scope: usize,
    ) -> Option<Request> {
        self.memory(scope).imagined.forget(id, gone.at);
        if !self.regret(&event.file, gone, event.at) {
            return None;
        }
        // It is about to be read again. What the daemon reads would be charged to its own group, so
        // a program with a group of its own reads for itself.
        if !self.config.enforce || event.pages > 0 || self.memory(scope).charged {
            return None;
        }
        let tracked = self.contexts.get(id)?;
        let bytes = gone.bytes.min(tracked.length);
        let (context, magic) = (id, tracked.magic);
        let decision = self.enter(id, &Fill::nothing(), bytes, Outcome::UnderWay)?;
        let file = event.file;
        Some(Request { context, decision, file, magic, bytes, aim: Aim::ComeBack })
    }

    /// A file whose pages had left was opened again at this time: says whether that was soon.
    fn regret(&mut self, file: &ContextIdentity, gone: Departure, at: Nanos) -> bool {
        self.journal.came_back(file, at);
        let is_soon = at.saturating_sub(gone.at) <= self.config.regret;
        if is_soon {
            self.totals.regretted += 1;
            self.totals.regretted_bytes += gone.bytes;
        }
        is_soon
    }

    fn enter(&mut self, id: ContextId, fill: &Fill, bytes: Bytes, outcome: Outcome) -> Option<u64> {
        let tracked = self.contexts.get(id)?;
        let closed_for = tracked.context.last_close.map(|at| self.now.saturating_sub(at));
        Some(self.journal.enter(Decision {
            number: 0,
            at: self.now,
            file: tracked.context.identity,
            used: fill.used,
            limit: fill.limit,
            memory: fill.name.clone(),
            closed_for: closed_for.unwrap_or_default(),
            hits: tracked.hits,
            bytes,
            outcome,
            came_back: None,
        }))
    }

    /// Takes the files of these memories that were closed first out of their queues, until no more
    /// than `low` of what is in use is left.
    fn turns(&mut self, scopes: &[usize], mut used: Bytes, low: Bytes) -> Vec<Turn> {
        let mut turns = Vec::new();
        // The first of each queue, but of the one whose first was taken last.
        let mut firsts: BinaryHeap<Reverse<Turn>> = BinaryHeap::new();
        let mut taken = None;
        for &scope in scopes {
            firsts.extend(self.take_first(scope));
        }
        while used > low {
            firsts.extend(taken.and_then(|scope| self.take_first(scope)));
            let Some(Reverse(turn)) = firsts.pop() else { break };
            taken = Some(turn.scope);
            let Some(tracked) = self.contexts.get(turn.context).filter(|t| t.pages > 0) else {
                continue;
            };
            let bytes = tracked.bytes();
            // Asked for twice, it would count as two files, and be two of the worker's jobs.
            let decision = self.leaving.get(&turn.context);
            if let Some(asked) = decision.and_then(|decision| self.asked.get_mut(decision)) {
                asked.turn = Some((turn.scope, turn.close));
            } else {
                used -= bytes;
                turns.push(turn);
            }
        }
        for Reverse(Turn { scope, context, close, .. }) in firsts {
            self.memory(scope).guard.put_back(context, close);
        }
        turns
    }

    /// Takes the file of a memory that was closed first out of its queue.
    fn take_first(&mut self, scope: usize) -> Option<Reverse<Turn>> {
        let guard = &mut self.memory(scope).guard;
        let context = guard.take_first()?;
        let close = guard.last_close(context)?;
        let closed = self.contexts.get(context)?.context.last_close.unwrap_or_default();
        Some(Reverse(Turn { closed, scope, context, close }))
    }

    /// So much of a memory is in use: gives the files whose pages are to leave now.
    pub fn relieve(&mut self, scope: usize, fill: &Fill, now: Nanos) -> Vec<Request> {
        self.now = self.now.max(now);
        let DeciderConfig { enforce, regret, .. } = self.config;
        self.put_back();
        self.memory(scope).charged = fill.charged;
        let mut scopes = vec![scope];
        scopes.extend(self.below.get(scope).into_iter().flatten());
        let mut leaves_already = Bytes::ZERO;
        for &scope in &scopes {
            let memory = self.memory(scope);
            memory.imagined.forget_older(regret, now);
            leaves_already += memory.under_way + memory.imagined.bytes;
        }
        let used = fill.used.saturating_sub(leaves_already);
        let leaving =
            if used > fill.high { self.turns(&scopes, used, fill.low) } else { Vec::new() };
        self.totals.pressure += u64::from(used > fill.high);
        let mut requests = Vec::new();
        for Turn { context: id, scope, close, .. } in leaving {
            let Some(tracked) = self.contexts.get_mut(id) else { continue };
            let (bytes, file, magic) = (tracked.bytes(), tracked.context.identity, tracked.magic);
            let uses = uses(tracked);
            if enforce {
                let Some(decision) = self.enter(id, fill, bytes, Outcome::UnderWay) else {
                    continue;
                };
                self.memories[scope].under_way += bytes;
                let asked = Asked { context: id, scope, bytes, close, uses, turn: None };
                self.asked.insert(decision, asked);
                self.leaving.insert(id, decision);
                let aim = Aim::Leave;
                requests.push(Request { context: id, decision, file, magic, bytes, aim });
            } else {
                let gone = Departure { at: self.now, bytes };
                let before = tracked.gone.replace(gone);
                let imagined = &mut self.memories[scope].imagined;
                if let Some(before) = before {
                    imagined.forget(id, before.at);
                }
                imagined.add(id, gone);
                self.enter(id, fill, bytes, Outcome::Observed);
                self.totals.left += 1;
                self.totals.left_bytes += bytes;
            }
        }
        requests
    }

    /// What was asked for has been done, or not, at this time; `again` if it may be possible later.
    pub fn done(&mut self, decision: u64, outcome: Outcome, again: bool, at: Nanos) {
        let asked = self.asked.remove(&decision);
        if let Some(Asked { context, scope, bytes, .. }) = asked {
            self.leaving.remove(&context);
            let memory = self.memory(scope);
            memory.under_way = memory.under_way.saturating_sub(bytes);
        }
        match &outcome {
            Outcome::Dropped { bytes, written, .. } => {
                self.totals.left += u64::from(!bytes.is_zero());
                self.totals.left_bytes += *bytes;
                self.totals.written_bytes += *written;
                self.departed(asked, *bytes, at);
            }
            Outcome::Moved { bytes, .. } => {
                self.totals.left += u64::from(!bytes.is_zero());
                self.totals.left_bytes += *bytes;
                self.moved(asked.filter(|_| !again));
            }
            Outcome::MarkedCold { bytes } => {
                self.totals.left += 1;
                self.totals.left_bytes += *bytes;
            }
            Outcome::Prefetched { bytes } => {
                self.totals.prefetched += 1;
                self.totals.prefetched_bytes += *bytes;
            }
            Outcome::InUse => self.totals.in_use += 1,
            Outcome::LeftAlone { .. } => self.totals.left_alone += 1,
            Outcome::Observed | Outcome::UnderWay => {}
        }
        if let Some(entry) = self.journal.get_mut(decision) {
            entry.outcome = outcome;
        }
        // Who has used it since has given it a place of its own.
        if let Some(asked) = asked.filter(|_| again)
            && let Some(tracked) = self.contexts.get_mut(asked.context)
            && uses(tracked) == asked.uses
        {
            let after = AGAIN * (1 << tracked.refusals.min(DOUBLINGS));
            tracked.refusals += 1;
            self.refused.insert((self.now + after, decision), asked);
        }
        if let Some(Asked { context, turn: Some((scope, close)), .. }) = asked {
            self.memory(scope).guard.put_back(context, close);
        }
    }

    /// Puts what could not leave, and may by now, back to where it was.
    fn put_back(&mut self) {
        while let Some(first) = self.refused.first_entry().filter(|f| f.key().0 <= self.now) {
            let Asked { context, scope, close, .. } = first.remove();
            if self.memory(scope).guard.put_back(context, close) {
                self.totals.put_back += 1;
            }
        }
    }

    /// Pages have left at this time; nobody had the file open then. What was told of it may be of
    /// later times, and earlier ones may still wait to be told.
    fn departed(&mut self, asked: Option<Asked>, bytes: Bytes, at: Nanos) {
        let context = asked.filter(|_| !bytes.is_zero()).map(|asked| asked.context);
        let Some(tracked) = context.and_then(|id| self.contexts.get_mut(id)) else { return };
        let gone = Departure { at, bytes };
        let Context { identity, active, last_close, .. } = tracked.context;
        if !tracked.is_active() && active.max(last_close.unwrap_or_default()) <= at {
            tracked.gone = Some(gone);
            tracked.pages = tracked.pages.saturating_sub(bytes.get() / page().get());
        } else if tracked.activated >= at {
            // It came back before it was known to be gone. What its events told of its pages is younger.
            let back = tracked.activated;
            self.regret(&identity, gone, back);
        }
    }

    /// Pages are still cached, in another memory, and leave that when it is short.
    fn moved(&mut self, asked: Option<Asked>) {
        let (Some(Asked { context, scope, close, .. }), Some(slow)) = (asked, self.slow) else {
            return;
        };
        // Who opened it meanwhile has it in the memory that he has.
        if self.memory(scope).guard.last_close(context) == Some(close) {
            self.change_memory(context, scope, slow);
            self.memory(slow).guard.closed(context);
        }
    }

    /// Contexts that wait to leave a memory, with places that are void.
    pub fn waiting(&self, scope: usize) -> usize {
        self.memories.get(scope).map_or(0, |memory| memory.guard.waiting())
    }
}

impl Fill {
    /// No memory: of decisions that are not made for one.
    pub fn nothing() -> Self {
        let zero = Bytes::ZERO;
        Self { name: String::new(), used: zero, limit: zero, high: zero, low: zero, charged: false }
    }
}

#[cfg(test)]
mod tests {
    use super::super::contexts::tests::event;
    use super::*;
    use crate::observe::event::Kind;

    fn fill(pages: u64) -> Fill {
        let [used, limit, high, low] = [pages, 1000, 900, 820].map(|pages| page() * pages);
        Fill { name: "memory".into(), used, limit, high, low, charged: false }
    }

    fn only(mut requests: Vec<Request>) -> Request {
        assert_eq!(requests.len(), 1);
        requests.remove(0)
    }

    fn dropped(request: &Request) -> Outcome {
        let (bytes, none) = (request.bytes, Bytes::ZERO);
        Outcome::Dropped { bytes, written: none, stays: none }
    }

    fn decider(enforce: bool) -> Decider {
        Decider::new(DeciderConfig { enforce, ..DeciderConfig::default() })
    }

    fn cycle(decider: &mut Decider, inode: u64, at: u64, pages: u64) -> Option<Request> {
        let back = decider.event(&event(Kind::Opened, inode, at, pages), 0);
        decider.event(&event(Kind::Closed, inode, at + 1, 50), 0);
        back
    }

    fn inode(request: &Request) -> u64 {
        let ContextIdentity::File { inode, .. } = request.file else { unreachable!() };
        inode
    }

    /// Asking for a file twice would count its pages as freed twice.
    #[test]
    fn what_is_under_way_is_not_asked_for_again() {
        let mut decider = decider(true);
        for file in 1..=4 {
            cycle(&mut decider, file, 10 * file, 0);
        }
        let first = decider.relieve(0, &fill(910), Nanos(100));
        assert_eq!(first.iter().map(inode).collect::<Vec<_>>(), [1, 2], "910 to 820 takes two");
        assert!(decider.relieve(0, &fill(910), Nanos(101)).is_empty());
        for request in &first {
            decider.done(request.decision, dropped(request), false, Nanos(101));
        }
        assert!(decider.relieve(0, &fill(810), Nanos(102)).is_empty());
        assert_eq!(decider.totals().left_bytes, page() * 100);
        let more = decider.relieve(0, &fill(950), Nanos(103));
        assert_eq!(more.iter().map(inode).collect::<Vec<_>>(), [3, 4]);
    }

    /// In `observe` the pages stay, and yet the same files are named as in `enforce`.
    #[test]
    fn observing_names_what_enforcing_would_drop_and_each_once() {
        let mut decider = decider(false);
        for file in 1..=4 {
            cycle(&mut decider, file, 10 * file, 0);
        }
        for at in 100..110 {
            assert!(decider.relieve(0, &fill(910), Nanos(at)).is_empty(), "nothing is done");
        }
        assert_eq!(decider.totals().left, 2);
        assert_eq!(decider.totals().left_bytes, page() * 100);
        let files: Vec<_> = decider.journal().last().map(|d| d.outcome.clone()).collect();
        assert_eq!(files, [Outcome::Observed, Outcome::Observed]);
    }

    /// Regret: a file that comes back soon after it has left.
    #[test]
    fn what_comes_back_soon_is_regretted_and_fetched_and_what_comes_late_is_not() {
        for enforce in [false, true] {
            let mut decider = decider(enforce);
            cycle(&mut decider, 1, 10, 0);
            cycle(&mut decider, 2, 20, 0);
            for request in decider.relieve(0, &fill(910), Nanos(100)) {
                decider.done(request.decision, dropped(&request), false, Nanos(100));
            }
            assert_eq!(decider.totals().left, 2);
            let soon = cycle(&mut decider, 1, 1_000, if enforce { 0 } else { 50 });
            assert_eq!(soon.is_some_and(|request| request.aim == Aim::ComeBack), enforce);
            assert_eq!(
                (decider.totals().regretted, decider.totals().regretted_bytes.get()),
                (1, 50 * page().get())
            );
            let late = Nanos::seconds(100).get();
            assert!(cycle(&mut decider, 2, late, 0).is_none());
            assert_eq!(decider.totals().regretted, 1);
        }
    }

    /// The policy that two failures led to: what comes back in place stays.
    #[test]
    fn a_file_that_is_used_again_and_again_in_place_stays() {
        let mut decider = decider(true);
        cycle(&mut decider, 1, 10, 0);
        for at in 2..6 {
            cycle(&mut decider, 1, 10 * at, 50);
        }
        cycle(&mut decider, 2, 100, 0);
        let leaving = decider.relieve(0, &fill(990), Nanos(200));
        assert_eq!(leaving.iter().map(inode).collect::<Vec<_>>(), [2]);
    }

    /// Programs that have groups of their own fill the machine, too, and the group around theirs.
    #[test]
    fn where_a_memory_is_short_files_of_those_within_it_leave_in_the_order_of_their_closes() {
        for enforce in [false, true] {
            let mut decider = decider(enforce);
            decider.lie_within(vec![vec![1, 2], vec![2], Vec::new(), Vec::new()]);
            for (file, scope) in [(1, 2), (2, 0), (3, 3), (4, 1), (5, 2), (6, 0)] {
                decider.event(&event(Kind::Opened, file, 10 * file, 0), scope);
                decider.event(&event(Kind::Closed, file, 10 * file + 1, 50), scope);
            }
            let asked = decider.relieve(0, &fill(1020), Nanos(100));
            let named = |decider: &Decider| {
                let files = decider.journal().last().map(|decision| decision.file);
                let inode = |file| match file {
                    ContextIdentity::File { inode, .. } => inode,
                    ContextIdentity::Socket { .. } => unreachable!(),
                };
                files.map(inode).collect::<Vec<_>>()
            };
            assert_eq!(named(&decider), [5, 4, 2, 1], "3 lies elsewhere, and 6 was closed last");
            assert_eq!(asked.len(), if enforce { 4 } else { 0 });
            // What leaves counts for each memory that it is in.
            for scope in [0, 1, 2] {
                assert!(decider.relieve(scope, &fill(950), Nanos(101)).is_empty(), "{scope}");
            }
            assert_eq!(named(&decider).len(), 4);
            if enforce {
                // One that could not leave waits where it was.
                decider.done(asked[0].decision, Outcome::InUse, true, Nanos(102));
                let again = decider.relieve(2, &fill(990), Nanos(102) + AGAIN);
                assert_eq!(again.iter().map(inode).collect::<Vec<_>>(), [1]);
            }
            assert_eq!(decider.waiting(0), 1, "the last one is in its queue still");
        }
    }

    /// A file that another group closes belongs to that one from then on.
    #[test]
    fn a_file_leaves_the_memory_of_who_closed_it_last() {
        let mut decider = decider(true);
        cycle(&mut decider, 1, 10, 0);
        decider.event(&event(Kind::Opened, 1, 20, 0), 1);
        decider.event(&event(Kind::Closed, 1, 21, 50), 1);
        assert!(decider.relieve(0, &fill(990), Nanos(30)).is_empty());
        assert_eq!(decider.relieve(1, &fill(990), Nanos(31)).len(), 1);
    }

    /// Full queues, files in use and disks that are too slow are all over some time.
    #[test]
    fn what_could_not_leave_is_asked_for_again_ever_more_seldom() {
        let mut decider = decider(true);
        cycle(&mut decider, 1, 10, 0);
        let mut at = Nanos(100);
        for round in 0..9 {
            let asked = decider.relieve(0, &fill(990), at);
            assert_eq!(asked.iter().map(inode).collect::<Vec<_>>(), [1], "round {round}");
            decider.done(asked[0].decision, Outcome::InUse, true, at);
            assert!(decider.relieve(0, &fill(990), at + Nanos(1)).is_empty(), "not at once");
            let wait = AGAIN * (1 << round.min(DOUBLINGS));
            assert!(decider.relieve(0, &fill(990), at + wait.saturating_sub(Nanos(1))).is_empty());
            at += wait;
        }
        // Whoever opens and closes it gives it a place of its own.
        let asked = only(decider.relieve(0, &fill(990), at));
        decider.done(asked.decision, Outcome::InUse, true, at);
        cycle(&mut decider, 1, at.get(), 0);
        let asked = only(decider.relieve(0, &fill(990), at + Nanos(2)));
        decider.done(asked.decision, dropped(&asked), false, at + Nanos(2));
        let late = at + Nanos::seconds(1000);
        assert!(decider.relieve(0, &fill(990), late).is_empty(), "the older place is void");
        assert_eq!(decider.totals().put_back, 9);
    }

    /// The answer is about the pages that there were before, not about those that were read since.
    #[test]
    fn what_was_used_again_while_it_was_leaving_leaves_once_more() {
        for opens in [true, false] {
            let mut decider = decider(true);
            cycle(&mut decider, 1, 10, 0);
            let asked = only(decider.relieve(0, &fill(990), Nanos(100)));
            if opens {
                decider.event(&event(Kind::Opened, 1, 110, 0), 0);
            }
            decider.event(&event(Kind::Closed, 1, 111, 50), 0);
            decider.done(asked.decision, dropped(&asked), false, Nanos(105));
            let tracked = decider.contexts().find(&asked.file).expect("it is known");
            assert_eq!((tracked.pages, tracked.gone), (50, None), "opens: {opens}");
            let again = only(decider.relieve(0, &fill(990), Nanos(120)));
            assert_eq!((inode(&again), again.bytes), (1, page() * 50));
            // That it was in use before says nothing of how long it is waited for now.
            cycle(&mut decider, 1, 130, 0);
            decider.done(again.decision, Outcome::InUse, true, Nanos(130));
            assert_eq!(decider.contexts().find(&asked.file).map(|t| t.refusals), Some(0));
            assert_eq!(decider.relieve(0, &fill(990), Nanos(140)).len(), 1);
        }
    }

    /// A file that is truncated and written again each moment, on a slow disk.
    #[test]
    fn a_file_whose_turn_comes_while_it_is_leaving_is_asked_for_after_that() {
        // Whether it was closed again before its pages left, or after.
        for (left_at, again) in [(105, vec![1]), (115, Vec::new())] {
            let mut decider = decider(true);
            cycle(&mut decider, 1, 10, 0);
            let first = only(decider.relieve(0, &fill(990), Nanos(100)));
            cycle(&mut decider, 1, 110, 0);
            cycle(&mut decider, 2, 120, 0);
            let second = only(decider.relieve(0, &fill(990), Nanos(130)));
            assert_eq!(inode(&second), 2);
            assert!(decider.relieve(0, &fill(990), Nanos(131)).is_empty(), "100 pages are leaving");
            decider.done(first.decision, dropped(&first), false, Nanos(left_at));
            let asked = decider.relieve(0, &fill(990), Nanos(140));
            assert_eq!(asked.iter().map(inode).collect::<Vec<_>>(), again, "left at {left_at}");
        }
    }

    /// A group goes while files of it are leaving whose turn has come again.
    #[test]
    fn a_turn_in_a_memory_that_is_gone_is_one_in_the_memory_around_it() {
        let mut decider = decider(true);
        for at in [10, 110] {
            decider.event(&event(Kind::Opened, 1, at, 0), 1);
            decider.event(&event(Kind::Closed, 1, at + 1, 50), 1);
            let asked = decider.relieve(1, &fill(990), Nanos(at + 50));
            assert_eq!(asked.len(), usize::from(at == 10), "it is leaving already");
        }
        decider.merge(1, 0);
        decider.done(1, Outcome::InUse, true, Nanos(170));
        let asked = decider.relieve(0, &fill(990), Nanos(180));
        assert_eq!(asked.iter().map(inode).collect::<Vec<_>>(), [1]);
        assert!(decider.relieve(0, &fill(1200), Nanos(190)).is_empty(), "once");
    }

    /// The ring and the worker's answers are two ways: what comes by one may be older.
    #[test]
    fn a_file_that_was_used_before_its_pages_left_is_no_regret() {
        for open_is_first in [false, true] {
            let mut decider = decider(true);
            cycle(&mut decider, 1, 10, 0);
            let asked = only(decider.relieve(0, &fill(990), Nanos(100)));
            let use_it = |decider: &mut Decider| {
                let opened = event(Kind::Opened, 1, 120, 50);
                assert_eq!(decider.event(&opened, 0), None);
                decider.event(&event(Kind::Closed, 1, 121, 50), 0);
            };
            if open_is_first {
                use_it(&mut decider);
            }
            decider.done(asked.decision, dropped(&asked), false, Nanos(150));
            if !open_is_first {
                use_it(&mut decider);
            }
            assert_eq!(decider.totals().regretted, 0);
            let tracked = decider.contexts().find(&asked.file).expect("it is known");
            let gone = Departure { at: Nanos(150), bytes: page() * 50 };
            assert_eq!((tracked.pages, tracked.gone), (0, Some(gone)));
            assert!(decider.relieve(0, &fill(990), Nanos(160)).is_empty(), "it has left");
            let back = cycle(&mut decider, 1, 200, 0);
            assert_eq!(back.map(|request| request.aim), Some(Aim::ComeBack));
            assert_eq!(decider.totals().regretted, 1);
        }
    }

    #[test]
    fn a_file_that_came_back_before_it_was_known_to_be_gone_is_regretted() {
        for regret in [true, false] {
            let mut decider = decider(true);
            cycle(&mut decider, 1, 10, 0);
            let asked = only(decider.relieve(0, &fill(990), Nanos(100)));
            let back = if regret { 140 } else { Nanos::seconds(61).get() };
            cycle(&mut decider, 1, back, 0);
            decider.done(asked.decision, dropped(&asked), false, Nanos(130));
            let expected = if regret { (1, page() * 50) } else { (0, Bytes::ZERO) };
            let totals = decider.totals();
            assert_eq!((totals.regretted, totals.regretted_bytes), expected);
            let decision = decider.journal().last().next().expect("one");
            assert_eq!(decision.came_back, Some(Nanos(back - 100)));
            let tracked = decider.contexts().find(&asked.file).expect("it is known");
            assert_eq!((tracked.pages, tracked.gone), (50, None));
        }
    }

    /// What was in use when it was decided on would have stayed.
    #[test]
    fn who_observes_regrets_nothing_that_was_in_use_already() {
        let mut decider = decider(false);
        cycle(&mut decider, 1, 10, 0);
        decider.relieve(0, &fill(910), Nanos(150));
        assert_eq!(decider.totals().left, 1);
        cycle(&mut decider, 1, 120, 50);
        assert_eq!(decider.totals().regretted, 0);
        decider.relieve(0, &fill(910), Nanos(160));
        assert_eq!(decider.totals().left, 2, "it is there still, and nobody has it open by now");
        cycle(&mut decider, 1, 200, 50);
        assert_eq!(decider.totals().regretted, 1);
    }

    /// What stands for pages that would have left goes with the file, is as large as they are, and is
    /// there once.
    #[test]
    fn what_would_have_left_is_the_sum_of_the_files_that_would_have() {
        let mut decider = decider(false);
        for file in 1..=4 {
            cycle(&mut decider, file, 10 * file, 0);
        }
        decider.relieve(0, &fill(1020), Nanos(100));
        let imagined = |decider: &Decider| {
            let imagined = &decider.memories[0].imagined;
            assert_eq!(imagined.by_time.values().copied().sum::<Bytes>(), imagined.bytes);
            imagined.bytes.get() / page().get()
        };
        assert_eq!((imagined(&decider), decider.totals().left), (200, 4));
        decider.event(&event(Kind::Evicted, 1, 110, 0), 0);
        assert_eq!(imagined(&decider), 150, "it is no more");
        decider.event(&event(Kind::Opened, 2, 120, 50), 0);
        assert_eq!(imagined(&decider), 100, "it came back");
        // Opened by a way that no hook sees, and closed.
        decider.event(&event(Kind::Closed, 3, 130, 70), 0);
        decider.relieve(0, &fill(1020), Nanos(140));
        assert_eq!(imagined(&decider), 120, "it would leave once more, instead of before");
        decider.merge(0, 1);
        assert_eq!(imagined(&decider), 0);
        decider.relieve(1, &fill(0), Nanos(140) + Nanos::seconds(61));
        assert!(decider.memories[1].imagined.by_time.is_empty(), "that is long ago");
    }

    /// Somebody in another group opens it by a way that no hook sees, and closes it.
    #[test]
    fn what_would_have_left_goes_where_its_file_goes() {
        let none = Bytes::ZERO;
        for used_again in [Some(Kind::Opened), Some(Kind::Evicted), None] {
            let mut decider = decider(false);
            cycle(&mut decider, 1, 10, 0);
            decider.relieve(0, &fill(990), Nanos(100));
            let imagined = |decider: &Decider| {
                [0, 1].map(|scope| {
                    decider.memories.get(scope).map_or(none, |memory| memory.imagined.bytes)
                })
            };
            assert_eq!(imagined(&decider), [page() * 50, none]);
            decider.event(&event(Kind::Closed, 1, 110, 70), 1);
            assert_eq!(imagined(&decider), [none, page() * 50]);
            if let Some(kind) = used_again {
                decider.event(&event(kind, 1, 120, 70), 1);
                assert_eq!(imagined(&decider), [none, none], "it came back, or is no more");
            } else {
                decider.relieve(1, &fill(990), Nanos(120));
                assert_eq!(imagined(&decider), [none, page() * 70], "instead of before");
            }
        }
    }

    /// What cannot ever be is not asked for again.
    #[test]
    fn what_is_left_alone_for_good_is_not_asked_for_again() {
        let mut decider = decider(true);
        cycle(&mut decider, 1, 10, 0);
        let asked = only(decider.relieve(0, &fill(990), Nanos(100)));
        let outcome = Outcome::LeftAlone { reason: "it does not lie below --path".into() };
        decider.done(asked.decision, outcome, false, Nanos(100));
        assert!(decider.relieve(0, &fill(990), Nanos::seconds(1000)).is_empty());
    }

    /// What the daemon reads is charged to its own group, not to who needs it.
    #[test]
    fn nothing_is_fetched_for_a_group() {
        let mut decider = decider(true);
        cycle(&mut decider, 1, 10, 0);
        let group = Fill { charged: true, ..fill(990) };
        let asked = only(decider.relieve(0, &group, Nanos(100)));
        decider.done(asked.decision, dropped(&asked), false, Nanos(100));
        assert!(cycle(&mut decider, 1, 1000, 0).is_none());
        assert_eq!(decider.totals().regretted, 1);
    }

    /// Moved pages wait in the slow memory until that is short; an open brings the file back.
    #[test]
    fn what_was_moved_leaves_the_slow_memory_when_that_is_short() {
        let mut decider = decider(true).moving_to(Some(1));
        for file in 1..=2 {
            cycle(&mut decider, file, 10 * file, 0);
        }
        for asked in decider.relieve(0, &fill(910), Nanos(100)) {
            let moved = Outcome::Moved { bytes: asked.bytes, node: 1 };
            decider.done(asked.decision, moved, false, Nanos(100));
        }
        assert!(decider.relieve(0, &fill(990), Nanos(101)).is_empty(), "they are elsewhere");
        assert!(decider.relieve(1, &fill(800), Nanos(102)).is_empty(), "there is room");
        cycle(&mut decider, 1, 200, 50);
        let asked = decider.relieve(1, &fill(990), Nanos(300));
        assert_eq!(asked.iter().map(inode).collect::<Vec<_>>(), [2]);
        let asked = decider.relieve(0, &fill(990), Nanos(301));
        assert_eq!(asked.iter().map(inode).collect::<Vec<_>>(), [1]);
    }

    /// The ring has room for so many events only.
    #[test]
    fn a_file_whose_close_was_lost_leaves_unless_somebody_has_it_open() {
        for enforce in [false, true] {
            let mut decider = decider(enforce);
            for inode in [1, 2] {
                decider.event(&event(Kind::Opened, inode, inode, 50), 0);
                decider.event(&event(Kind::Opened, inode, 2 + inode, 50), 0);
            }
            decider.event(&event(Kind::Closed, 2, 5, 50), 0);
            cycle(&mut decider, 3, 10, 0);
            decider.doubt();
            let asked = decider.relieve(0, &fill(990), Nanos(100));
            if !enforce {
                assert_eq!(decider.totals().left, 1, "what is open stays");
                continue;
            }
            assert_eq!(asked.iter().map(inode).collect::<Vec<_>>(), [3, 1, 2]);
            decider.done(asked[1].decision, dropped(&asked[1]), false, Nanos(100));
            decider.done(asked[2].decision, Outcome::InUse, true, Nanos(100));
            // Whoever has it closes it in the end.
            decider.event(&event(Kind::Closed, 2, 110, 50), 0);
            let next = decider.relieve(0, &fill(990), Nanos(120));
            assert_eq!(next.iter().map(inode).collect::<Vec<_>>(), [2]);
            decider.doubt();
            let again = decider.relieve(0, &fill(1200), Nanos(130));
            assert!(again.is_empty(), "nothing seems to be open any more: {again:?}");
        }
    }

    /// A control group that is gone: its pages are its parent's, and so are its files.
    #[test]
    fn files_of_a_memory_that_is_gone_leave_the_one_around_it() {
        let mut decider = decider(true);
        for file in 1..=4 {
            decider.event(&event(Kind::Opened, file, 10 * file, 0), 1);
            decider.event(&event(Kind::Closed, file, 10 * file + 1, 50), 1);
        }
        let leaving = decider.relieve(1, &fill(901), Nanos(50));
        assert_eq!(leaving.iter().map(inode).collect::<Vec<_>>(), [1, 2]);
        let asked = &leaving[0];
        decider.event(&event(Kind::Opened, 3, 60, 50), 1);
        decider.merge(1, 0);
        decider.done(asked.decision, dropped(asked), false, Nanos(65));
        let next = decider.relieve(0, &fill(990), Nanos(70));
        let files: Vec<_> = next.iter().map(inode).collect();
        assert_eq!(files, [4], "1 has left, 2 is leaving, 3 is open");
        assert!(decider.relieve(1, &fill(990), Nanos(71)).is_empty());
    }

    /// A service that ends while its memory is short.
    #[test]
    fn what_is_leaving_a_memory_that_is_gone_leaves_the_one_around_it_once() {
        for enforce in [false, true] {
            let mut decider = decider(enforce);
            for file in 1..=4 {
                decider.event(&event(Kind::Opened, file, 10 * file, 0), 1);
                decider.event(&event(Kind::Closed, file, 10 * file + 1, 50), 1);
            }
            let mut asked = decider.relieve(1, &fill(910), Nanos(100));
            decider.merge(1, 0);
            asked.extend(decider.relieve(0, &fill(910), Nanos(101)));
            assert_eq!(asked.len(), if enforce { 2 } else { 0 });
            // The pages are there still.
            let more = decider.relieve(0, &fill(1010), Nanos(102));
            if !enforce {
                assert_eq!((decider.totals().left, decider.totals().left_bytes), (4, page() * 200));
                continue;
            }
            assert_eq!(more.iter().map(inode).collect::<Vec<_>>(), [3, 4]);
            // One that could not leave is asked for again there.
            decider.done(asked[0].decision, Outcome::InUse, true, Nanos(102));
            let later = Nanos(102) + AGAIN;
            let again = decider.relieve(0, &fill(1200), later);
            assert_eq!(again.iter().map(inode).collect::<Vec<_>>(), [1]);
        }
    }

    #[test]
    fn what_is_open_or_gone_does_not_leave() {
        let mut decider = decider(true);
        for file in 1..=3 {
            cycle(&mut decider, file, 10 * file, 0);
        }
        decider.event(&event(Kind::Opened, 1, 90, 50), 0);
        decider.event(&event(Kind::Evicted, 2, 91, 0), 0);
        let leaving = decider.relieve(0, &fill(990), Nanos(100));
        assert_eq!(leaving.iter().map(inode).collect::<Vec<_>>(), [3]);
    }
}
