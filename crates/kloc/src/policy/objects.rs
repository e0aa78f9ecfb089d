//! Kernel pages of active contexts in the fast memory, others out of it.
//!
//! A page is placed in the fast memory if the context that it is made for is active. When the
//! last program has closed a context, its pages may leave together, at once or when memory is
//! short; when it is opened again, they may come back. Where even the active contexts do not
//! fit, those that were used least recently leave. The program's own pages come before all of them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use terrace_core::context::{ContextChange, Mobility, ObjectId};
use terrace_core::{
    Abort, Action, Bytes, ContextEvent, ContextId, Done, FaultKind, Heat, Nanos, ObjectKind,
    Outcome, PageRange, PageRef, PageSize, PerSecond, Plan, Reason, Region, Sample, Telemetry,
    TierId,
};
use terrace_policy::roster::{Candidate, End, Next, PerPage, Raised, Roster, Standing};
use terrace_policy::{Footprint, Needs, Policy};

use super::fixed::has_room;
use crate::{GuardConfig, Kmap, KmapConfig, KmapError, Knode, ReuseGuard};

/// When the pages of a context that nobody has open leave the fast memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Leaving {
    /// Never (*KLOCs-nomigration*).
    Never,
    /// When the last program closes it (*KLOCs*).
    AtClose,
    /// When memory is short, and unless it was opened again before ([`ReuseGuard`]). One that was
    /// never opened again, neither while its pages were in place nor within a pass of the LRU
    /// after it was closed, leaves at once.
    UnderPressure(GuardConfig),
}

/// Parameters of the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ObjectsConfig {
    /// What a kmap is made for. Kinds that are not included are placed in the fast memory and
    /// stay there.
    pub kmap: KmapConfig,
    /// When pages of closed contexts leave.
    pub leaving: Leaving,
    /// How often plans are made.
    pub tick: Nanos,
    /// From one pass of the LRU over the knodes to the next.
    pub pass: Nanos,
    /// Passes after which an open context that was not used is cold.
    pub cold: u8,
    /// A page that was moved so often stays in the fast memory (KLOCs, section 4.5, which does
    /// not say how often).
    pub retain: u8,
    /// Contexts that were used least recently leave when less than this share of the fast
    /// memory is free, so that new pages of active ones find room.
    pub headroom: f64,
    /// Whether the objects of contexts that processors use now come to the fastest tier from
    /// wherever they lie, without being opened anew: where tiers are the memories of sockets, they
    /// follow a program that was moved to another one (KLOCs, section 4.5). The contexts are
    /// those of the processors' lists.
    pub follows: bool,
    /// Whether the program's pages come first (KLOCs, section 4.2.2). Pages of files are not placed in the
    /// last of the fast memory that is kept free (`headroom`): the program's are. When they have
    /// taken half of it, pages of files leave, those first that were placed first, though the files
    /// are in use.
    pub yields: bool,
    /// Whether read-ahead says which pages come back. A file's slab objects come when it is
    /// opened; its pages come as a reader gets near them ([`ContextChange::Ahead`]), and not all
    /// at once (KLOCs, sections 4.4 and 7.3).
    pub prefetches: bool,
}

impl ObjectsConfig {
    /// The paper's structures on so many processors. Times and shares that it does not give
    /// are ours: plans each millisecond, a pass each 5 s (as Nimble scans), cold after two
    /// passes (as its inactive pages are), pages retained after eight moves, 2 % kept free.
    pub fn new(cpus: usize, leaving: Leaving) -> Self {
        Self {
            kmap: KmapConfig::new(cpus, 64),
            leaving,
            tick: Nanos::millis(1),
            pass: Nanos::seconds(5),
            cold: 2,
            retain: 8,
            headroom: 0.02,
            follows: false,
            yields: true,
            prefetches: false,
        }
    }
}

/// A context of which pages are moved, and how far that has come.
#[derive(Clone, Copy, Debug)]
struct Moving {
    context: ContextId,
    /// Its last page object that was looked at.
    after: ObjectId,
    /// Whether its slab objects were looked at.
    slabs: bool,
}

impl Moving {
    fn new(context: ContextId) -> Self {
        Self { context, after: ObjectId(0), slabs: false }
    }
}

/// Contexts that leave or come back, each once: one that is closed again and again while it
/// waits is looked at once, and counted once in what is about to be free.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Moving>,
    /// Whether each of them begins again from its first member: it was asked for once more.
    again: BTreeMap<ContextId, bool>,
}

impl Queue {
    fn push(&mut self, context: ContextId) {
        match self.again.entry(context) {
            Entry::Occupied(mut entry) => *entry.get_mut() = true,
            Entry::Vacant(entry) => {
                entry.insert(false);
                self.waiting.push_back(Moving::new(context));
            }
        }
    }

    fn pop(&mut self) -> Option<Moving> {
        let moving = self.waiting.pop_front()?;
        let again = self.again.remove(&moving.context).unwrap_or(false);
        Some(if again { Moving::new(moving.context) } else { moving })
    }

    /// What was not all proposed goes on first.
    fn put_back(&mut self, moving: Moving) {
        self.again.insert(moving.context, false);
        self.waiting.push_front(moving);
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn contexts(&self) -> impl Iterator<Item = ContextId> {
        self.waiting.iter().map(|moving| moving.context)
    }
}

/// What could not leave because it was being written is asked for again after so long.
const RETRY: Nanos = Nanos::millis(10);

/// Members that read-ahead has named and that have not been proposed: 16 readers, each with the
/// largest window that Linux has by default.
const MOST_AHEAD: usize = 512;

/// Pages that cannot leave are passed over when room is made for the program, so many at a time.
const MOST_PASSED: u32 = 256;

/// The one list of each tier.
const LIST: usize = 0;

/// The policy.
pub struct KernelObjects {
    config: ObjectsConfig,
    kmap: Kmap,
    guard: Option<ReuseGuard>,
    roster: Roster<1>,
    /// The context of a page that one object has for itself, and that object.
    holder: PerPage<u32>,
    object: PerPage<u64>,
    /// Objects in pages that several share.
    shared: HashMap<u32, Vec<(ContextId, ObjectId)>>,
    /// Moves of each page.
    moves: PerPage<u8>,
    leaving: Queue,
    returning: Queue,
    /// Members that a reader comes to soon, where read-ahead says so.
    ahead: VecDeque<(ContextId, ObjectId)>,
    /// Open contexts that are cold since the last pass of the LRU, the one used longest ago
    /// first. Nothing grows cold between two passes.
    cold: VecDeque<ContextId>,
    /// Contexts with pages that could not leave because the disk was busy with them.
    busy: BTreeSet<ContextId>,
    next_retry: Nanos,
    next_pass: Nanos,
    refused: Option<KmapError>,
}

impl KernelObjects {
    /// A policy that knows no context.
    pub fn new(config: ObjectsConfig) -> Self {
        let guard = match config.leaving {
            Leaving::UnderPressure(guard) => Some(ReuseGuard::new(guard)),
            Leaving::Never | Leaving::AtClose => None,
        };
        Self {
            config,
            kmap: Kmap::new(config.kmap),
            guard,
            roster: Roster::new(),
            holder: PerPage::default(),
            object: PerPage::default(),
            shared: HashMap::new(),
            moves: PerPage::default(),
            leaving: Queue::default(),
            returning: Queue::default(),
            ahead: VecDeque::new(),
            cold: VecDeque::new(),
            busy: BTreeSet::new(),
            next_retry: Nanos::ZERO,
            next_pass: config.pass,
            refused: None,
        }
    }

    /// The knodes.
    pub fn kmap(&self) -> &Kmap {
        &self.kmap
    }

    /// Checks all books. Visits everything. An event that was refused is an error, too.
    pub fn audit(&self) -> Result<(), String> {
        if let Some(error) = self.refused {
            return Err(error.to_string());
        }
        self.roster.audit()?;
        self.kmap.audit()?;
        for knode in self.kmap.knodes() {
            for (object, member) in knode.members() {
                let slot = self.roster.slot(member.page);
                let tier = slot.and_then(|slot| self.roster.tier(slot));
                if tier.is_some_and(|tier| tier != member.tier) {
                    return Err(format!("object {} is not in tier {}", object.0, member.tier.0));
                }
            }
        }
        Ok(())
    }

    /// Whether a context is in use, or was never closed: it is just being made.
    fn is_active(knode: &Knode) -> bool {
        knode.in_use() || knode.context().last_close.is_none()
    }

    fn is_active_context(&self, context: ContextId) -> bool {
        self.kmap.knode(context).is_some_and(Self::is_active)
    }

    /// Whether what shares a page is of inactive contexts alone.
    fn all_inactive(&self, slot: u32) -> bool {
        let objects = self.shared.get(&slot);
        objects.is_some_and(|objects| objects.iter().all(|&(c, _)| !self.is_active_context(c)))
    }

    /// The objects of a page lie in another tier.
    fn lies_in(&mut self, slot: u32, tier: TierId) {
        let holder = ContextId(self.holder[slot]);
        let alone = [(holder, ObjectId(self.object[slot]))];
        let objects: &[_] = match self.shared.get(&slot) {
            Some(objects) => objects,
            None if holder == ContextId::ANONYMOUS => &[],
            None => &alone,
        };
        for &(context, object) in objects {
            let moved = self.kmap.moved(context, object, tier);
            if let Err(error) = moved {
                self.refused.get_or_insert(error);
            }
        }
    }

    fn added(&mut self, context: ContextId, object: ObjectId, kind: ObjectKind, page: PageRef) {
        let Some(slot) = self.roster.slot(page) else { return };
        // Where the page lies is known, unless it is new; then it is told when it is placed.
        if let Some(tier) = self.roster.tier(slot)
            && tier != TierId::FASTEST
            && let Err(error) = self.kmap.moved(context, object, tier)
        {
            self.refused.get_or_insert(error);
        }
        // Requests share pages, too, though nobody moves those.
        if kind.is_page() && kind != ObjectKind::BlkMqRequest {
            (self.holder[slot], self.object[slot]) = (context.0, object.0);
        } else {
            self.shared.entry(slot).or_default().push((context, object));
        }
    }

    fn removed(&mut self, context: ContextId, object: ObjectId, page: PageRef) {
        let Some(slot) = self.roster.slot(page) else { return };
        if let Some(objects) = self.shared.get_mut(&slot) {
            if let Some(place) = objects.iter().position(|&other| other == (context, object)) {
                objects.swap_remove(place);
            }
            if objects.is_empty() {
                self.shared.remove(&slot);
            }
        } else {
            self.holder[slot] = ContextId::ANONYMOUS.0;
        }
    }

    /// Proposes to move what is left of a context. True when that is all proposed.
    fn move_on(
        &mut self,
        moving: &mut Moving,
        up: bool,
        telemetry: &Telemetry,
        plan: &mut Plan,
    ) -> bool {
        let Some(knode) = self.kmap.knode(moving.context) else { return true };
        let relocatable = self.config.kmap.relocatable;
        let movable = |kind: ObjectKind| match kind.mobility() {
            Mobility::Movable => true,
            Mobility::Relocatable => relocatable,
            Mobility::Pinned => false,
        };
        let slabs: Vec<PageRef> = if moving.slabs {
            Vec::new()
        } else {
            knode.slab_objects().filter(|(_, m)| movable(m.kind)).map(|(_, m)| m.page).collect()
        };
        moving.slabs = true;
        for page in slabs {
            if let Some(slot) = self.roster.slot(page)
                && (up || self.all_inactive(slot))
            {
                // What finds no room or budget stays; the page objects are what matters.
                self.propose(slot, up, telemetry, plan);
            }
        }
        if up && self.config.prefetches {
            return true;
        }
        let Some(knode) = self.kmap.knode(moving.context) else { return true };
        let mut pages: Vec<(ObjectId, PageRef)> = Vec::new();
        let most = (self.roster.budget().get() / 4096 + 1) as usize;
        let mut last = true;
        for (object, member) in knode.page_objects_after(moving.after) {
            if pages.len() >= most {
                last = false;
                break;
            }
            if movable(member.kind) {
                pages.push((object, member.page));
            }
        }
        for (object, page) in pages {
            let Some(slot) = self.roster.slot(page) else { continue };
            if !self.propose(slot, up, telemetry, plan) {
                return false;
            }
            moving.after = object;
        }
        last
    }

    /// Proposes, as one decision, to move down what is left of a context. True when that is all
    /// proposed.
    fn leave(&mut self, moving: &mut Moving, telemetry: &Telemetry, plan: &mut Plan) -> bool {
        let context = moving.context;
        let Some(knode) = self.kmap.knode(context) else { return true };
        let of = knode.page_objects_in(TierId::FASTEST) as u32;
        let heat = heat_of(knode, telemetry.now);
        let mut all = true;
        plan.group(context, of, heat, Reason::ContextClosed, |plan| {
            all = self.move_on(moving, false, telemetry, plan);
        });
        all
    }

    /// Brings up what readers come to soon.
    fn bring_ahead(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        while let Some((context, object)) = self.ahead.pop_front() {
            let Some(knode) = self.kmap.knode(context).filter(|knode| knode.in_use()) else {
                continue;
            };
            let Some(slot) = knode.member(object).and_then(|m| self.roster.slot(m.page)) else {
                continue;
            };
            if !self.propose(slot, true, telemetry, plan) {
                // Without room or budget now, the reader is faster than the move.
                self.ahead.clear();
                return;
            }
        }
    }

    /// Proposes to move a page, if it is not there already. False if nothing more can be
    /// planned.
    fn propose(&mut self, slot: u32, up: bool, telemetry: &Telemetry, plan: &mut Plan) -> bool {
        let Standing::Listed(tier, _) = self.roster.standing(slot) else { return true };
        let page = Candidate { slot, heat: Heat::default() };
        if up {
            if tier == TierId::FASTEST {
                return true;
            }
            let reason = Reason::ContextOpened;
            let fast = TierId::FASTEST;
            let raised = self.roster.raise(page, fast, reason, telemetry, plan, |_| None);
            raised != Raised::NoBudget && raised != Raised::NoRoom
        } else {
            if tier != TierId::FASTEST || self.moves[slot] >= self.config.retain {
                return true;
            }
            self.roster.demote(page, Reason::ContextClosed, telemetry, plan)
        }
    }

    /// The guard and the LRU say which contexts leave because memory is short.
    fn relieve(&mut self, telemetry: &Telemetry) {
        let fast = telemetry.tier(TierId::FASTEST);
        let headroom = self.headroom(telemetry);
        let leaving = self.roster.leaving(TierId::FASTEST);
        let queued: Bytes =
            self.leaving.contexts().filter_map(|c| self.kmap.knode(c)).map(left_in_fast).sum();
        let used = (fast.capacity.saturating_sub(fast.free)).saturating_sub(leaving + queued);
        let kmap = &self.kmap;
        let queue = &mut self.leaving;
        if let Some(guard) = &mut self.guard {
            guard.relieve(used, fast.capacity, |context| {
                let bytes = kmap.knode(context).map_or(Bytes::ZERO, left_in_fast);
                queue.push(context);
                bytes
            });
        }
        if fast.free + leaving + queued >= headroom || !queue.is_empty() {
            return;
        }
        // Closed contexts have left already, or are the guard's business.
        while let Some(context) = self.cold.pop_front() {
            if self.is_cold(context) {
                self.leaving.push(context);
                return;
            }
        }
    }

    /// How much of the fast memory is kept free.
    fn headroom(&self, telemetry: &Telemetry) -> Bytes {
        let fast = telemetry.tier(TierId::FASTEST);
        Bytes::from_f64(fast.capacity.as_f64() * self.config.headroom)
    }

    /// Pages of files leave where the program's have taken the room that is kept for them, though
    /// the files are in use. Those of one file that follow each other leave by one decision.
    fn make_way(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        let headroom = self.headroom(telemetry);
        let free = telemetry.tier(TierId::FASTEST).free + self.roster.leaving(TierId::FASTEST);
        // Not a page at a time.
        if !self.config.yields || free >= headroom / 2 {
            return;
        }
        let mut missing = headroom - free;
        let mut passed = 0;
        while let Some((_, context)) = self.placed_first(&mut passed)
            && let Some(knode) = self.kmap.knode(context)
            && !missing.is_zero()
        {
            let of = knode.page_objects_in(TierId::FASTEST) as u32;
            let heat = heat_of(knode, telemetry.now);
            let mut proposed = true;
            plan.group(context, of, heat, Reason::YieldsToProgram, |plan| {
                while proposed
                    && !missing.is_zero()
                    && let Some((slot, next)) = self.placed_first(&mut passed)
                    && next == context
                {
                    let page = Candidate { slot, heat: Heat::default() };
                    let reason = Reason::YieldsToProgram;
                    proposed = self.roster.demote(page, reason, telemetry, plan);
                    missing -= PageSize::Base.bytes();
                }
            });
            if !proposed {
                return;
            }
        }
    }

    /// The page of a file in the fast memory that was placed there first, and its context.
    fn placed_first(&mut self, passed: &mut u32) -> Option<(u32, ContextId)> {
        while *passed < MOST_PASSED {
            let slot = self.roster.oldest(TierId::FASTEST, LIST)?;
            let context = ContextId(self.holder[slot]);
            if self.moves[slot] < self.config.retain && self.is_of_file(slot) {
                return Some((slot, context));
            }
            *passed += 1;
            self.roster.relist(slot, LIST, End::Young);
        }
        None
    }

    /// Whether a page is a file's, and no other object.
    fn is_of_file(&self, slot: u32) -> bool {
        let object = ObjectId(self.object[slot]);
        let knode = self.kmap.knode(ContextId(self.holder[slot]));
        !self.shared.contains_key(&slot)
            && knode.is_some_and(|knode| knode.get(object, ObjectKind::PageCachePage).is_some())
    }

    /// Whether an open context was not used for long and has pages in the fast memory.
    fn is_cold(&self, context: ContextId) -> bool {
        self.kmap.knode(context).is_some_and(|knode| {
            // Its own age first: the lists of all processors are asked for few only.
            knode.in_use()
                && knode.age_of_own() >= self.config.cold
                && knode.page_objects_in(TierId::FASTEST) > 0
                && self.kmap.age(context).is_some_and(|age| age >= self.config.cold)
        })
    }

    /// Contexts that a processor used lately and of which something lies elsewhere come.
    fn follow(&mut self) {
        let Self { kmap, returning, .. } = self;
        for context in kmap.per_cpu().contexts() {
            let Some(knode) = kmap.knode(context).filter(|knode| knode.in_use()) else { continue };
            if knode.bytes() > knode.bytes_in(TierId::FASTEST) {
                returning.push(context);
            }
        }
    }

    /// A pass of the LRU: open contexts grow older.
    fn pass(&mut self) {
        self.kmap.pass();
        let cold = self.kmap.knodes().filter(|knode| self.is_cold(knode.id()));
        let mut cold: Vec<_> = cold.map(|knode| (knode.context().active, knode.id())).collect();
        cold.sort_unstable();
        self.cold = cold.into_iter().map(|(_, context)| context).collect();
    }
}

/// How much a context's objects are used: by how often it was opened while it lived, each time
/// taken to read through all of it, a line at a time. What a reader leaves out makes that too
/// much; it is evidence for keeping, so a context is not demoted too easily.
fn heat_of(knode: &Knode, now: Nanos) -> Heat {
    let window = now.saturating_sub(knode.context().created).max(Nanos(1));
    let lines = knode.bytes_in(TierId::FASTEST).as_f64() / 64.0;
    let loads = f64::from(knode.times_opened()) * lines / window.as_secs();
    Heat { loads: PerSecond(loads), stores: PerSecond::ZERO, samples: knode.times_opened(), window }
}

/// What a context has in the fast memory.
fn left_in_fast(knode: &Knode) -> Bytes {
    knode.bytes_in(TierId::FASTEST)
}

impl Policy for KernelObjects {
    fn name(&self) -> &'static str {
        match self.config.leaving {
            Leaving::AtClose if self.config.prefetches => "klocs-prefetch",
            Leaving::Never if self.config.follows => "klocs-follow",
            Leaving::Never => "klocs-nomigration",
            Leaving::AtClose => "klocs",
            Leaving::UnderPressure(_) => "klocs-guarded",
        }
    }

    fn needs(&self) -> Needs {
        Needs { tick: Some(self.config.tick), ..Needs::default() }
    }

    fn alloc(&mut self, region: &Region) {
        let slots = self.roster.alloc(region);
        self.holder.grow(slots);
        self.object.grow(slots);
        self.moves.grow(slots);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        let size = self.roster.page_size(page);
        let Some(slot) = self.roster.slot(page) else {
            return self.roster.fault(page, kind, telemetry, |_, _, _| LIST);
        };
        self.moves[slot] = 0;
        let context = ContextId(self.holder[slot]);
        let slowest = TierId(telemetry.tier_count - 1);
        let cold = match self.shared.get(&slot) {
            Some(_) => self.all_inactive(slot),
            // Nobody told of what is in it: no member of a context.
            None if context == ContextId::ANONYMOUS => false,
            None => !self.is_active_context(context),
        };
        let kind_of = |o: ObjectId| {
            let knode = self.kmap.knode(context)?;
            knode.member(o).map(|member| member.kind)
        };
        let limited = self.kmap.is_limited(TierId::FASTEST)
            && kind_of(ObjectId(self.object[slot]))
                .is_some_and(|kind| !self.kmap.may_place(TierId::FASTEST, kind));
        let yields = self.config.yields
            && telemetry.tier(TierId::FASTEST).free < self.headroom(telemetry)
            && self.is_of_file(slot);
        let tier = if (cold || limited || yields) && has_room(telemetry, slowest, size) {
            self.roster.place(slot, slowest, LIST, telemetry);
            slowest
        } else {
            self.roster.fault(page, kind, telemetry, |_, _, _| LIST)
        };
        if tier != TierId::FASTEST {
            self.lies_in(slot, tier);
        }
        tier
    }

    fn samples(&mut self, _samples: &[Sample]) {}

    fn context(&mut self, event: &ContextEvent) {
        let context = event.context;
        let before = self.kmap.knode(context).map(|knode| {
            let life = knode.context();
            let soon = life.last_close.is_some_and(|at| event.at - at <= self.config.pass);
            (life.opens, life.last_close.is_some(), soon)
        });
        let soon = before.is_some_and(|(_, _, soon)| soon);
        let page = match event.change {
            ContextChange::Removed { object, kind } => {
                let knode = self.kmap.knode(context);
                knode.and_then(|knode| knode.get(object, kind)).map(|member| member.page)
            }
            _ => None,
        };
        if let Err(error) = self.kmap.event(event) {
            self.refused.get_or_insert(error);
            return;
        }
        match event.change {
            ContextChange::Added { object, kind, page } if self.config.kmap.includes(kind) => {
                self.added(context, object, kind, page);
            }
            ContextChange::Removed { object, .. } => {
                if let Some(page) = page {
                    self.removed(context, object, page);
                }
            }
            ContextChange::Opened if matches!(before, Some((0, true, _))) => {
                let knode = self.kmap.knode(context);
                let fast = knode.map_or(0, |knode| knode.page_objects_in(TierId::FASTEST));
                let away = knode.is_some_and(|knode| knode.page_object_count() > fast);
                if let Some(guard) = &mut self.guard {
                    // What left is evidence, too, if it is wanted again within a pass.
                    guard.opened(context, fast > 0 || soon);
                }
                if away && (self.config.leaving != Leaving::Never || self.config.follows) {
                    self.returning.push(context);
                }
            }
            ContextChange::Closed if matches!(before, Some((1, ..))) => {
                let reused = self.guard.as_mut().is_some_and(|guard| {
                    guard.closed(context);
                    guard.hits(context) > 0
                });
                // Nothing says that it will be used again: it need not wait for pressure.
                if self.config.leaving != Leaving::Never && !reused {
                    self.leaving.push(context);
                }
            }
            ContextChange::Ahead { object } if self.config.prefetches => {
                if self.ahead.len() == MOST_AHEAD {
                    // The reader has passed it long ago.
                    self.ahead.pop_front();
                }
                self.ahead.push_back((context, object));
            }
            ContextChange::Deleted | ContextChange::Evicted => {
                if let Some(guard) = &mut self.guard {
                    guard.ended(context);
                }
            }
            _ => {}
        }
    }

    fn free(&mut self, range: PageRange, whole: bool) {
        let Self { roster, shared, holder, .. } = self;
        roster.free(range, whole, |slot| {
            shared.remove(&slot);
            holder[slot] = ContextId::ANONYMOUS.0;
        });
    }

    fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        self.roster.survey(telemetry);
        if telemetry.now >= self.next_pass {
            self.next_pass = telemetry.now + self.config.pass;
            self.pass();
        }
        if self.config.follows && self.returning.is_empty() {
            self.follow();
        }
        if self.config.leaving == Leaving::Never && self.returning.is_empty() {
            return;
        }
        if telemetry.now >= self.next_retry && !self.busy.is_empty() {
            self.next_retry = telemetry.now + RETRY;
            for context in core::mem::take(&mut self.busy) {
                self.leaving.push(context);
            }
        }
        if self.config.leaving != Leaving::Never {
            self.relieve(telemetry);
        }
        self.bring_ahead(telemetry, plan);
        while let Some(mut moving) = self.leaving.pop() {
            // Open again since: it stays, unless it leaves because it was not used for long.
            let stays = self
                .kmap
                .knode(moving.context)
                .is_none_or(|knode| knode.in_use() && knode.age_of_own() < self.config.cold);
            if !stays && !self.leave(&mut moving, telemetry, plan) {
                self.leaving.put_back(moving);
                break;
            }
        }
        self.make_way(telemetry, plan);
        while let Some(mut moving) = self.returning.pop() {
            let stays = self.kmap.knode(moving.context).is_some_and(Knode::in_use);
            if stays && !self.move_on(&mut moving, true, telemetry, plan) {
                // For lack of budget it goes on in the next tick; for lack of room it does not.
                if self.roster.budget() < Bytes::kib(4) {
                    self.returning.put_back(moving);
                    break;
                }
            }
        }
    }

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        self.roster.relieve(tier, bytes, telemetry, plan, |roster| {
            let slot = roster.oldest(tier, LIST)?;
            Some((Candidate { slot, heat: Heat::default() }, Reason::PressureOldest))
        });
    }

    fn done(&mut self, done: &Done) {
        let mut moved = [None; 2];
        let mut count = 0;
        let demotes = matches!(done.proposal.action, Action::Demote { .. });
        let Self { roster, holder, busy, .. } = self;
        roster.done(done, |ended| {
            if demotes && ended.outcome == Outcome::Aborted(Abort::Busy) {
                busy.insert(ContextId(holder[ended.slot]));
            }
            if ended.outcome.is_completed() {
                moved[count.min(1)] = Some((ended.slot, ended.tier));
                count += 1;
            }
            Next::List(LIST, ended.usual_end())
        });
        for (slot, tier) in moved.into_iter().flatten() {
            self.moves[slot] = self.moves[slot].saturating_add(1);
            self.lies_in(slot, tier);
        }
    }

    fn footprint(&self) -> Footprint {
        let shared: usize = self.shared.values().map(|objects| objects.capacity() * 16 + 40).sum();
        let heap = self.roster.heap_bytes()
            + self.holder.heap_bytes()
            + self.object.heap_bytes()
            + self.moves.heap_bytes()
            + shared
            + self.kmap.footprint().total.get() as usize;
        Footprint::of(size_of::<Self>(), heap, self.roster.slots())
    }
}
