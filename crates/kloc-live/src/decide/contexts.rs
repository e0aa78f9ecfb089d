//! The files that are known.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use terrace_core::context::{Context, Cpu, State};
use terrace_core::{Bytes, ContextChange, ContextEvent, ContextId, ContextIdentity, Nanos};

use crate::observe::event::{FileEvent, Kind, page};
use crate::observe::load::{Journaled, Names};
use crate::report::lifetimes::Lifetimes;

/// Why a file's pages have left, or would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    /// When.
    pub at: Nanos,
    /// How much.
    pub bytes: Bytes,
}

/// A file that is known.
///
/// One field for each fact that `kloc list` and `kloc why` show of it.
#[derive(Clone, Debug)]
pub struct Tracked {
    /// Identity and life.
    pub context: Context,
    /// The type of its file system.
    pub magic: u64,
    /// Pages in the page cache, as of the last event.
    pub pages: u64,
    /// Its length.
    pub length: Bytes,
    /// Extents that the kernel holds of it.
    pub extents: Option<u32>,
    /// Names of it in the kernel's cache; `None` if they were not counted.
    pub names: Option<Names>,
    /// How often it was opened since it is known.
    pub opened: u64,
    /// How often it was opened while nobody had it open and pages of it were in place.
    pub hits: u32,
    /// The memory control group of whoever used it last.
    pub group: u64,
    /// The name of that thread.
    pub command: [u8; 16],
    /// When its pages were dropped last, or would have been, if nobody has opened it since.
    pub gone: Option<Departure>,
    /// When it was opened by somebody while nobody had it open.
    pub activated: Nanos,
    /// Block transfers for it.
    pub transfers: u64,
    /// What they moved.
    pub transferred: Bytes,
    /// What it asked of the journal.
    pub journaled: Journaled,
    /// The memory that it belongs to, by its place in the list of memories.
    pub scope: usize,
    /// How often it could not leave since it was closed.
    pub refusals: u32,
    /// How many files have become known until it did, it among them. Unlike its number, nothing
    /// else ever has this one.
    pub arrival: u64,
}

impl Tracked {
    /// What its pages take.
    pub fn bytes(&self) -> Bytes {
        page() * self.pages
    }

    /// Whether somebody has it open.
    pub fn is_active(&self) -> bool {
        self.context.state == State::Active
    }

    /// Enters how many names it had, unless they were counted later than that.
    fn enter_names(&mut self, names: Names) {
        if self.names.is_none_or(|before| names.at >= before.at) {
            self.names = Some(names);
        }
    }
}

/// What an event has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Somebody has opened it; nobody had it open before.
    Activated {
        /// Whether pages of it were in place.
        resident: bool,
        /// Its pages had left before.
        came_back: Option<Departure>,
    },
    /// The last one who had it open has closed it.
    Deactivated,
    /// The kernel has dropped its inode, or it is deleted.
    Ended {
        /// What was known of when its pages left.
        gone: Option<Departure>,
    },
    /// It is as it was.
    Nothing,
}

/// How often something could not be told exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubts {
    /// Files that were forgotten since there was no room for more.
    pub forgotten: u64,
    /// Closes of files that were opened before the daemon began, or by a way that no hook sees.
    pub opened_unseen: u64,
    /// Ends of files that somebody seemed to have open.
    pub closes_unseen: u64,
}

/// All files that are known.
#[derive(Debug)]
pub struct Contexts {
    capacity: usize,
    by_identity: HashMap<ContextIdentity, ContextId>,
    all: HashMap<ContextId, Tracked>,
    next: u32,
    ever: u64,
    doubts: Doubts,
    lifetimes: Lifetimes,
}

impl Contexts {
    /// A table of at most so many files.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            by_identity: HashMap::new(),
            all: HashMap::new(),
            next: 1,
            ever: 0,
            doubts: Doubts::default(),
            lifetimes: Lifetimes::default(),
        }
    }

    /// How long contexts were open, and were not, and lived.
    pub fn lifetimes(&self) -> &Lifetimes {
        &self.lifetimes
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many there are and were.
    pub fn ever(&self) -> u64 {
        self.ever
    }

    /// What could not be told exactly.
    pub fn doubts(&self) -> Doubts {
        self.doubts
    }

    /// A file by its number.
    pub fn get(&self, id: ContextId) -> Option<&Tracked> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ContextId) -> Option<&mut Tracked> {
        self.all.get_mut(&id)
    }

    /// A file by its identity.
    pub fn find(&self, file: &ContextIdentity) -> Option<&Tracked> {
        self.all.get(self.by_identity.get(file)?)
    }

    /// All files, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Tracked> {
        self.all.values()
    }

    /// Adds what was transferred for a file; hooks on transfers do not know its generation.
    pub fn transferred(&mut self, of: &HashMap<(u64, u64), (u64, Bytes)>) {
        self.enter_all(of, |tracked, (count, bytes)| {
            tracked.transfers += count;
            tracked.transferred += bytes;
        });
    }

    /// Adds what files asked of the journal; the hook does not know their generation.
    pub fn journaled(&mut self, of: &HashMap<(u64, u64), Journaled>) {
        self.enter_all(of, |tracked, journaled| {
            tracked.journaled.handles += journaled.handles;
            tracked.journaled.blocks += journaled.blocks;
        });
    }

    /// Enters how many names files had when one came or went. What an event has told since then holds.
    pub fn named(&mut self, of: &HashMap<(u64, u64), Names>) {
        self.enter_all(of, |tracked, names| {
            // Before it was known, another file may have had its number.
            if names.at >= tracked.context.created {
                tracked.enter_names(names);
            }
        });
    }

    /// Enters how many pages of files that are open are cached, where that is known by now.
    pub fn counted(&mut self, pages: impl Fn(&ContextIdentity) -> Option<u64>) {
        for tracked in self.all.values_mut().filter(|tracked| tracked.is_active()) {
            if let Some(pages) = pages(&tracked.context.identity) {
                tracked.pages = pages;
            }
        }
    }

    fn enter_all<T: Copy>(
        &mut self,
        of: &HashMap<(u64, u64), T>,
        mut enter: impl FnMut(&mut Tracked, T),
    ) {
        // Most looks have nothing to tell, and there may be many files.
        if of.is_empty() {
            return;
        }
        for tracked in self.all.values_mut() {
            let ContextIdentity::File { device, inode, .. } = tracked.context.identity else {
                continue;
            };
            if let Some(&what) = of.get(&(device, inode)) {
                enter(tracked, what);
            }
        }
    }

    /// Takes all files that seem to be open as closed; gives them, each with its memory, those that
    /// were opened first first.
    pub(super) fn close_all(&mut self, now: Nanos) -> Vec<(ContextId, usize)> {
        let mut open: Vec<_> =
            self.all.values_mut().filter(|tracked| tracked.is_active()).collect();
        open.sort_unstable_by_key(|tracked| (tracked.context.active, tracked.context.id));
        let close = |tracked: &mut Tracked| {
            let (context, change) = (tracked.context.id, ContextChange::Closed);
            let at = now.max(tracked.context.active);
            while tracked.is_active()
                && tracked.context.apply(&ContextEvent { at, cpu: Cpu(0), context, change }).is_ok()
            {
            }
            tracked.refusals = 0;
            (context, tracked.scope)
        };
        open.into_iter().map(close).collect()
    }

    /// Makes room for one more: the file that was closed first goes, or, where all are open, the
    /// one that was used first. Gives who went.
    ///
    /// One in sixteen goes at once, so that a full table does not have to be searched for each new
    /// file.
    fn make_room(&mut self) -> Vec<(ContextId, usize)> {
        if self.all.len() < self.capacity {
            return Vec::new();
        }
        let mut ages: Vec<_> = self
            .all
            .values()
            .map(|t| {
                let used = t.context.last_close.unwrap_or_default().max(t.context.active);
                (t.is_active(), used, t.context.id)
            })
            .collect();
        // Only which ones they are matters, not their order among each other.
        let count = (self.capacity / 16).max(1);
        ages.select_nth_unstable(count - 1);
        ages.truncate(count);
        self.doubts.forgotten += ages.len() as u64;
        ages.into_iter()
            .filter_map(|(_, _, id)| {
                let tracked = self.all.remove(&id)?;
                self.by_identity.remove(&tracked.context.identity);
                Some((id, tracked.scope))
            })
            .collect()
    }

    /// Enters what happened to a file of a memory. Gives its number, what has changed, and who had
    /// to be forgotten for it.
    pub fn enter(
        &mut self,
        event: &FileEvent,
        scope: usize,
    ) -> (ContextId, Change, Vec<(ContextId, usize)>) {
        let mut forgotten = Vec::new();
        let id = match self.by_identity.get(&event.file) {
            Some(&id) => id,
            // Of a file that was deleted while it was open, tracepoints tell that its inode goes
            // before they tell of the close.
            None if event.kind == Kind::Evicted
                || (event.kind == Kind::Closed && event.links == 0) =>
            {
                return (ContextId(0), Change::Nothing, forgotten);
            }
            None => {
                forgotten = self.make_room();
                self.insert(event, scope)
            }
        };
        let Some(tracked) = self.all.get_mut(&id) else {
            return (id, Change::Nothing, forgotten);
        };
        // Processors tell of what they did in an order that is not always that of time.
        let seen = tracked.context.active.max(tracked.context.last_close.unwrap_or_default());
        let at = event.at.max(seen);
        let apply = |tracked: &mut Tracked, change| {
            let event = ContextEvent { at, cpu: Cpu(0), context: id, change };
            tracked.context.apply(&event)
        };
        let was_active = tracked.is_active();
        let closed = tracked.context.last_close;
        let before = tracked.pages;
        // It waited while the pages left: whoever used the file then had closed it before they did.
        let is_before = tracked.gone.is_some_and(|gone| event.at < gone.at);
        if !is_before {
            tracked.pages = event.pages;
        }
        tracked.length = event.length;
        tracked.extents = event.extents.or(tracked.extents);
        // At the close of a file that has no link left, its inode may be gone already, and its list of
        // names be something else.
        let is_whole = event.kind == Kind::Opened || event.links > 0;
        if let Some(count) = event.names.filter(|_| is_whole) {
            tracked.enter_names(Names { count, at: event.at });
        }
        if event.kind != Kind::Evicted {
            tracked.group = event.group;
            tracked.command = event.command;
            tracked.magic = event.magic;
        }
        let change = match event.kind {
            Kind::Opened => {
                let _ = apply(tracked, ContextChange::Opened);
                tracked.opened += 1;
                if was_active {
                    Change::Nothing
                } else {
                    if let Some(closed) = closed {
                        self.lifetimes.idle.add(at.saturating_sub(closed));
                    }
                    tracked.activated = at;
                    let came_back = tracked.gone.take_if(|_| !is_before);
                    // What would have left by now is taken as if it had.
                    let resident = event.pages > 0 && came_back.is_none();
                    tracked.hits += u32::from(resident);
                    Change::Activated { resident, came_back }
                }
            }
            Kind::Closed => {
                if !was_active {
                    self.doubts.opened_unseen += 1;
                    let _ = apply(tracked, ContextChange::Opened);
                }
                let _ = apply(tracked, ContextChange::Closed);
                if tracked.is_active() {
                    Change::Nothing
                } else {
                    tracked.scope = scope;
                    tracked.refusals = 0;
                    if was_active {
                        self.lifetimes.open.add(at.saturating_sub(tracked.activated));
                    }
                    Change::Deactivated
                }
            }
            Kind::Evicted => {
                if was_active && event.links > 0 {
                    self.doubts.closes_unseen += 1;
                }
                self.lifetimes.whole.add(at.saturating_sub(tracked.context.created));
                let gone = tracked.gone.map(|gone| Departure { bytes: page() * before, ..gone });
                self.by_identity.remove(&event.file);
                self.all.remove(&id);
                Change::Ended { gone }
            }
        };
        (id, change, forgotten)
    }

    fn insert(&mut self, event: &FileEvent, scope: usize) -> ContextId {
        // Numbers come round after four thousand million files: in half a day, if each second has
        // 100 000 new ones. A file that is known all the time has its own still.
        while self.all.contains_key(&ContextId(self.next)) {
            self.next = self.next.wrapping_add(1).max(1);
        }
        let id = ContextId(self.next);
        self.next = self.next.wrapping_add(1).max(1);
        self.ever += 1;
        let created = ContextEvent {
            at: event.at,
            cpu: Cpu(0),
            context: id,
            change: ContextChange::Created { identity: event.file },
        };
        let context = Context::from_event(&created).expect("it is a creation");
        let tracked = Tracked {
            context,
            magic: event.magic,
            pages: event.pages,
            length: event.length,
            extents: event.extents,
            names: None,
            opened: 0,
            hits: 0,
            group: event.group,
            command: event.command,
            gone: None,
            activated: event.at,
            transfers: 0,
            transferred: Bytes::ZERO,
            journaled: Journaled::default(),
            scope,
            refusals: 0,
            arrival: self.ever,
        };
        self.by_identity.insert(event.file, id);
        self.all.insert(id, tracked);
        id
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::decide) fn event(kind: Kind, inode: u64, at: u64, pages: u64) -> FileEvent {
        FileEvent {
            kind,
            at: Nanos(at),
            file: ContextIdentity::File { device: 1, inode, generation: 1 },
            magic: 0xef53,
            pages,
            length: page() * pages,
            extents: Some(1),
            links: 1,
            names: Some(1),
            group: 0,
            process: 1,
            command: *b"test\0\0\0\0\0\0\0\0\0\0\0\0",
        }
    }

    fn enter(contexts: &mut Contexts, kind: Kind, inode: u64, at: u64, pages: u64) -> Change {
        contexts.enter(&event(kind, inode, at, pages), 0).1
    }

    #[test]
    fn only_the_first_open_and_the_last_close_change_a_context() {
        let mut contexts = Contexts::new(8);
        let first = enter(&mut contexts, Kind::Opened, 1, 1, 0);
        assert_eq!(first, Change::Activated { resident: false, came_back: None });
        assert_eq!(enter(&mut contexts, Kind::Opened, 1, 2, 4), Change::Nothing);
        assert_eq!(enter(&mut contexts, Kind::Closed, 1, 3, 4), Change::Nothing);
        assert_eq!(enter(&mut contexts, Kind::Closed, 1, 4, 4), Change::Deactivated);
        let again = enter(&mut contexts, Kind::Opened, 1, 5, 4);
        assert_eq!(again, Change::Activated { resident: true, came_back: None });
        assert_eq!(contexts.iter().next().map(|t| (t.hits, t.opened)), Some((1, 3)));
    }

    /// A file that was opened before the daemon began is known from its close on.
    #[test]
    fn a_close_without_an_open_is_a_last_close_and_is_counted() {
        let mut contexts = Contexts::new(8);
        assert_eq!(enter(&mut contexts, Kind::Closed, 1, 1, 4), Change::Deactivated);
        assert_eq!(contexts.doubts().opened_unseen, 1);
    }

    #[test]
    fn a_full_table_forgets_what_was_closed_first_and_counts_it() {
        let mut contexts = Contexts::new(16);
        enter(&mut contexts, Kind::Opened, 100, 1, 0);
        for inode in 0..40 {
            enter(&mut contexts, Kind::Closed, inode, 10 + inode, 1);
        }
        assert!(contexts.len() <= 16);
        assert_eq!(contexts.len() as u64 + contexts.doubts().forgotten, 41);
        assert_eq!(contexts.ever(), 41);
        let open = ContextIdentity::File { device: 1, inode: 100, generation: 1 };
        assert!(contexts.find(&open).is_some(), "what is open stays");
        let last = ContextIdentity::File { device: 1, inode: 39, generation: 1 };
        assert!(contexts.find(&last).is_some());
    }

    #[test]
    fn a_file_keeps_its_number_when_numbers_come_round() {
        let mut contexts = Contexts::new(8);
        enter(&mut contexts, Kind::Opened, 1, 1, 4);
        contexts.next = u32::MAX;
        for inode in 2..=4 {
            enter(&mut contexts, Kind::Opened, inode, inode, 4);
        }
        let number = |inode| {
            let file = ContextIdentity::File { device: 1, inode, generation: 1 };
            contexts
                .find(&file)
                .map(|tracked| (tracked.context.id.0, tracked.context.identity == file))
        };
        let numbers = [1, 2, 3, 4].map(number);
        assert_eq!(numbers, [1, u32::MAX, 2, 3].map(|number| Some((number, true))));
    }

    /// The table of names is looked at once a second, and events meanwhile.
    #[test]
    fn names_are_those_that_were_counted_last() {
        let mut contexts = Contexts::new(8);
        enter(&mut contexts, Kind::Opened, 1, 10, 0);
        let names = |contexts: &Contexts| {
            contexts.iter().next().and_then(|tracked| tracked.names).map(|names| names.count)
        };
        assert_eq!(names(&contexts), Some(1));
        for (at, count, expected, why) in [
            (9, 5, 1, "another file had the number"),
            (20, 3, 3, "it is younger"),
            (15, 2, 3, "it is older"),
        ] {
            let counted = Names { count, at: Nanos(at) };
            contexts.named(&HashMap::from([((1, 1), counted), ((1, 2), counted)]));
            assert_eq!(names(&contexts), Some(expected), "{why}");
        }
        contexts.enter(&FileEvent { names: Some(2), ..event(Kind::Closed, 1, 30, 0) }, 0);
        assert_eq!(names(&contexts), Some(2));
        let unknown = FileEvent { names: None, ..event(Kind::Opened, 1, 40, 0) };
        contexts.enter(&unknown, 0);
        assert_eq!(names(&contexts), Some(2), "what is not known changes nothing");
        let deleted = FileEvent { names: Some(64), links: 0, ..event(Kind::Closed, 1, 50, 0) };
        contexts.enter(&deleted, 0);
        assert_eq!(names(&contexts), Some(2), "what is left of an inode has no names");
    }

    /// Who looks which files are open sees what is cached of them, too. What is closed has left, perhaps.
    #[test]
    fn pages_are_counted_anew_while_a_file_is_open() {
        let mut contexts = Contexts::new(8);
        for inode in 1..=3 {
            enter(&mut contexts, Kind::Opened, inode, 1, 4);
        }
        enter(&mut contexts, Kind::Closed, 2, 2, 4);
        contexts.counted(|file| {
            matches!(file, ContextIdentity::File { inode: 1 | 2, .. }).then_some(9)
        });
        let pages = [1, 2, 3].map(|inode| {
            let file = ContextIdentity::File { device: 1, inode, generation: 1 };
            contexts.find(&file).map(|tracked| tracked.pages)
        });
        assert_eq!(pages, [Some(9), Some(4), Some(4)]);
    }

    /// A hook on handles of the journal tells device and number of an inode.
    #[test]
    fn what_is_asked_of_the_journal_adds_up_by_file() {
        let mut contexts = Contexts::new(8);
        enter(&mut contexts, Kind::Opened, 1, 1, 0);
        enter(&mut contexts, Kind::Opened, 2, 1, 0);
        for _ in 0..2 {
            let asked = Journaled { handles: 1, blocks: 8 };
            contexts.journaled(&HashMap::from([((1, 1), asked), ((2, 2), asked)]));
        }
        let of = |inode| {
            let file = ContextIdentity::File { device: 1, inode, generation: 1 };
            contexts.find(&file).map(|tracked| tracked.journaled)
        };
        assert_eq!(of(1), Some(Journaled { handles: 2, blocks: 16 }));
        assert_eq!(of(2), Some(Journaled::default()), "another device's");
    }

    /// A file that is deleted while it is open goes before its close is told.
    #[test]
    fn a_deleted_file_does_not_come_back_by_its_close() {
        let mut contexts = Contexts::new(8);
        enter(&mut contexts, Kind::Opened, 1, 1, 4);
        for kind in [Kind::Evicted, Kind::Closed] {
            contexts.enter(&FileEvent { links: 0, ..event(kind, 1, 2, 0) }, 0);
        }
        assert!(contexts.is_empty());
        assert_eq!(contexts.doubts(), Doubts::default());
    }

    /// The number of an inode is given to another file, with another generation.
    #[test]
    fn what_has_ended_is_another_file_when_it_comes_again() {
        let mut contexts = Contexts::new(8);
        enter(&mut contexts, Kind::Closed, 1, 1, 4);
        assert_eq!(enter(&mut contexts, Kind::Evicted, 1, 2, 0), Change::Ended { gone: None });
        assert_eq!(contexts.len(), 0);
        assert_eq!(enter(&mut contexts, Kind::Evicted, 1, 3, 0), Change::Nothing);
        let new = enter(&mut contexts, Kind::Opened, 1, 4, 0);
        assert_eq!(new, Change::Activated { resident: false, came_back: None });
    }
}
