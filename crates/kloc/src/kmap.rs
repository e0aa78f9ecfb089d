//! All knodes of a kernel.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use terrace_core::context::{
    Context, ContextChange, ContextError, ContextEvent, ContextIdentity, Cpu, Mobility, ObjectId,
};
use terrace_core::{Bytes, ContextId, MAX_TIERS, Nanos, ObjectKind, TierId};

use crate::knode::{Knode, Member};
use crate::per_cpu::PerCpuLists;

/// What a kmap is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KmapConfig {
    /// Processors.
    pub cpus: usize,
    /// Knodes in the list of each processor at most.
    pub list_capacity: usize,
    /// Kinds of objects that become members, one bit each ([`ObjectKind::index`]).
    pub kinds: u16,
    /// Whether slab objects can be moved ([`Mobility::Relocatable`]).
    pub relocatable: bool,
}

impl KmapConfig {
    /// All kinds, with the paper's allocator for slab objects.
    pub const fn new(cpus: usize, list_capacity: usize) -> Self {
        Self { cpus, list_capacity, kinds: (1 << ObjectKind::COUNT) - 1, relocatable: true }
    }

    /// Whether objects of a kind become members.
    pub const fn includes(&self, kind: ObjectKind) -> bool {
        self.kinds & 1 << kind.index() != 0
    }
}

/// Why something cannot be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KmapError {
    /// It breaks the rules of a context's life.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// The object is a member of the context already.
    #[error("object {} of context {} is a member already", .1.0, .0.0)]
    AddedTwice(ContextId, ObjectId),
    /// The object is no member of the context.
    #[error("object {} is no member of context {}", .1.0, .0.0)]
    NoMember(ContextId, ObjectId),
    /// Another context that lives has this identity.
    #[error("{} has two contexts, {} and {}", .1, .0.0, .2.0)]
    TwoContexts(ContextId, ContextIdentity, ContextId),
}

/// Memory that the structures take: our Table 6.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Footprint {
    /// Bytes of one knode without members, at most.
    pub knode: Bytes,
    /// Bytes of one member, on average.
    pub member: f64,
    /// At most so much is in use now.
    pub total: Bytes,
}

/// All knodes, the lists of each processor, and the limits of each tier.
#[derive(Clone, Debug)]
pub struct Kmap {
    config: KmapConfig,
    enabled: BTreeSet<u32>,
    knodes: BTreeMap<ContextId, Knode>,
    by_identity: HashMap<ContextIdentity, ContextId>,
    /// Inactive knodes by the time of their last close.
    closed: BTreeSet<(Nanos, ContextId)>,
    per_cpu: PerCpuLists,
    used: [Bytes; MAX_TIERS],
    limits: [Option<Bytes>; MAX_TIERS],
    members: usize,
}

impl Kmap {
    /// A kmap without knodes.
    pub fn new(config: KmapConfig) -> Self {
        Self {
            config,
            enabled: BTreeSet::new(),
            knodes: BTreeMap::new(),
            by_identity: HashMap::new(),
            closed: BTreeSet::new(),
            per_cpu: PerCpuLists::new(config.cpus, config.list_capacity),
            used: [Bytes::ZERO; MAX_TIERS],
            limits: [None; MAX_TIERS],
            members: 0,
        }
    }

    /// Contexts of this process are tracked from now on (`sys_enable_kloc`).
    pub fn enable(&mut self, process: u32) {
        self.enabled.insert(process);
    }

    /// Whether contexts of a process are tracked.
    pub fn is_enabled(&self, process: u32) -> bool {
        self.enabled.contains(&process)
    }

    /// Makes the knode of a new inode (`map_knode`) and enters it (`add_to_kmap`).
    pub fn map_knode(
        &mut self,
        context: ContextId,
        identity: ContextIdentity,
        cpu: Cpu,
        at: Nanos,
    ) -> Result<(), KmapError> {
        self.event(&ContextEvent { at, cpu, context, change: ContextChange::Created { identity } })
            .map(|_| ())
    }

    fn insert(&mut self, context: Context, cpu: Cpu) -> Result<(), KmapError> {
        let (id, identity) = (context.id, context.identity);
        if self.knodes.contains_key(&id) {
            return Err(ContextError::CreatedTwice(id).into());
        }
        if let Some(&other) = self.by_identity.get(&identity) {
            return Err(KmapError::TwoContexts(id, identity, other));
        }
        self.by_identity.insert(identity, id);
        self.closed.insert((context.active, id));
        self.knodes.insert(id, Knode::new(context, cpu));
        Ok(())
    }

    /// Enters what happened to a context. Objects are taken to lie in the fastest tier until
    /// [`Kmap::moved`] says otherwise. Says whether the processor's own list had the knode.
    ///
    /// After an error everything is as it was before.
    pub fn event(&mut self, event: &ContextEvent) -> Result<bool, KmapError> {
        self.event_in(event, TierId::FASTEST)
    }

    /// The same, for an object that lies in a given tier.
    pub fn event_in(&mut self, event: &ContextEvent, tier: TierId) -> Result<bool, KmapError> {
        let id = event.context;
        if let Some(context) = Context::from_event(event) {
            self.insert(context, event.cpu)?;
            return Ok(self.per_cpu.used(event.cpu, id, false));
        }
        let knode = self.knodes.get_mut(&id).ok_or(ContextError::Unknown(id))?;
        let key = (closed_at(&knode.context), id);
        let mut context = knode.context;
        context.apply(event)?;
        match event.change {
            ContextChange::Added { object, kind, page } if self.config.includes(kind) => {
                if !knode.add(object, Member { page, kind, tier }) {
                    return Err(KmapError::AddedTwice(id, object));
                }
                self.used[tier.index()] += kind.size();
                self.members += 1;
            }
            ContextChange::Removed { object, kind } if self.config.includes(kind) => {
                let gone = knode.remove(object, kind).ok_or(KmapError::NoMember(id, object))?;
                self.used[gone.tier.index()] -= kind.size();
                self.members -= 1;
            }
            ContextChange::Evicted | ContextChange::Deleted => {
                let identity = context.identity;
                self.knodes.remove(&id);
                self.by_identity.remove(&identity);
                self.closed.remove(&key);
                self.per_cpu.forget(id);
                return Ok(false);
            }
            ContextChange::Opened => knode.opened = knode.opened.saturating_add(1),
            _ => {}
        }
        let was_in_use = knode.in_use();
        knode.context = context;
        knode.age = 0;
        knode.cpu = event.cpu;
        let in_use = knode.in_use();
        if was_in_use != in_use {
            self.per_cpu.set_in_use(id, in_use);
        }
        let now = (closed_at(&context), id);
        if was_in_use != in_use || (!in_use && now != key) {
            self.closed.remove(&key);
            if !in_use {
                self.closed.insert(now);
            }
        }
        Ok(self.per_cpu.used(event.cpu, id, in_use))
    }

    /// Adds an object that lies in a tier to a knode (`knode_add_obj`).
    pub fn add_object(
        &mut self,
        context: ContextId,
        object: ObjectId,
        member: Member,
        cpu: Cpu,
        at: Nanos,
    ) -> Result<(), KmapError> {
        let change = ContextChange::Added { object, kind: member.kind, page: member.page };
        self.event_in(&ContextEvent { at, cpu, context, change }, member.tier).map(|_| ())
    }

    /// A member's page lies in another tier now.
    pub fn moved(
        &mut self,
        context: ContextId,
        object: ObjectId,
        to: TierId,
    ) -> Result<(), KmapError> {
        let knode = self.knodes.get_mut(&context).ok_or(ContextError::Unknown(context))?;
        let before = knode.moved(object, to).ok_or(KmapError::NoMember(context, object))?;
        self.used[before.tier.index()] -= before.kind.size();
        self.used[to.index()] += before.kind.size();
        Ok(())
    }

    /// Members of a context that lie in a tier and can be moved out of it now. None of a
    /// context that has ended: its objects are freed, not moved.
    pub fn movable(
        &self,
        context: ContextId,
        tier: TierId,
    ) -> impl Iterator<Item = (ObjectId, &Member)> {
        let relocatable = self.config.relocatable;
        self.knodes.get(&context).into_iter().flat_map(Knode::members).filter(move |(_, member)| {
            member.tier == tier
                && match member.kind.mobility() {
                    Mobility::Movable => true,
                    Mobility::Relocatable => relocatable,
                    Mobility::Pinned => false,
                }
        })
    }

    /// The LRU passes over the per-CPU lists: knodes that were not used meanwhile age.
    pub fn pass(&mut self) {
        for knode in self.knodes.values_mut() {
            knode.age = knode.age.saturating_add(1);
        }
        self.per_cpu.pass();
    }

    /// Passes of the LRU since a knode was used.
    pub fn age(&self, context: ContextId) -> Option<u8> {
        let own = self.knodes.get(&context)?.age;
        Some(self.per_cpu.age(context).map_or(own, |age| age.min(own)))
    }

    /// Knodes, least recently used first (`get_LRU_knodes`): those that nobody has open by
    /// their last close, then those in use that were not used for `cold` passes or more, oldest
    /// first.
    pub fn least_recently_used(&self, most: usize, cold: u8) -> Vec<ContextId> {
        let mut found: Vec<_> = self.closed.iter().take(most).map(|&(_, id)| id).collect();
        if found.len() < most {
            let mut open: Vec<_> = self
                .knodes
                .values()
                .filter(|knode| knode.in_use())
                .filter_map(|knode| Some((self.age(knode.id())?, knode.context.active, knode.id())))
                .filter(|&(age, ..)| age >= cold)
                .collect();
            open.sort_unstable_by_key(|&(age, active, id)| (u8::MAX - age, active, id));
            let room = most - found.len();
            found.extend(open.into_iter().map(|(.., id)| id).take(room));
        }
        found
    }

    /// The processor that used a knode last (`find_cpu`).
    pub fn find_cpu(&self, context: ContextId) -> Option<Cpu> {
        self.knodes.get(&context).map(|knode| knode.cpu)
    }

    /// Bounds what members take in a tier (`sys_kloc_memsize`); `None` for no bound.
    pub fn limit(&mut self, tier: TierId, limit: Option<Bytes>) {
        self.limits[tier.index()] = limit;
    }

    /// Whether an object of a kind may be placed in a tier without passing its limit.
    pub fn may_place(&self, tier: TierId, kind: ObjectKind) -> bool {
        self.limits[tier.index()].is_none_or(|limit| self.used[tier.index()] + kind.size() <= limit)
    }

    /// Whether a tier has a limit.
    pub fn is_limited(&self, tier: TierId) -> bool {
        self.limits[tier.index()].is_some()
    }

    /// What members take in a tier.
    pub fn used(&self, tier: TierId) -> Bytes {
        self.used[tier.index()]
    }

    /// A context's knode.
    pub fn knode(&self, context: ContextId) -> Option<&Knode> {
        self.knodes.get(&context)
    }

    /// The context of a file or a socket.
    pub fn find(&self, identity: ContextIdentity) -> Option<ContextId> {
        self.by_identity.get(&identity).copied()
    }

    /// Every knode.
    pub fn knodes(&self) -> impl Iterator<Item = &Knode> {
        self.knodes.values()
    }

    /// The lists of the processors.
    pub fn per_cpu(&self) -> &PerCpuLists {
        &self.per_cpu
    }

    /// What the structures take. Visits all knodes.
    pub fn footprint(&self) -> Footprint {
        // Entries in the standard library's trees and tables, which are half full at least.
        let knode = size_of::<(ContextId, Knode)>()
            + size_of::<(ContextIdentity, ContextId)>()
            + size_of::<(Nanos, ContextId)>();
        let knode = Bytes(2 * knode as u64);
        let sets: usize = self.knodes.values().map(Knode::heap_bytes).sum();
        let member = if self.members == 0 { 0.0 } else { sets as f64 / self.members as f64 };
        let total =
            knode * self.knodes.len() as u64 + Bytes((sets + self.per_cpu.heap_bytes()) as u64);
        Footprint { knode, member, total }
    }

    /// Checks all books against each other. Visits everything.
    pub fn audit(&self) -> Result<(), String> {
        let mut used = [Bytes::ZERO; MAX_TIERS];
        let (mut objects, mut pages) = (BTreeSet::new(), BTreeSet::new());
        for (id, knode) in &self.knodes {
            knode.audit()?;
            for (object, member) in knode.members() {
                used[member.tier.index()] += member.kind.size();
                if !objects.insert(object) {
                    return Err(format!("object {} has two contexts", object.0));
                }
                if member.kind == ObjectKind::PageCachePage && !pages.insert(member.page) {
                    return Err(format!("page {} is in two files", member.page));
                }
            }
            let closed = self.closed.contains(&(closed_at(&knode.context), *id));
            if closed == knode.in_use() {
                return Err(format!("context {} is in use and closed, or neither", id.0));
            }
            if self.by_identity.get(&knode.context.identity) != Some(id) {
                return Err(format!("context {} is not found by its identity", id.0));
            }
            if self.per_cpu.in_use(*id).is_some_and(|in_use| in_use != knode.in_use()) {
                return Err(format!("a processor's list is wrong about context {}", id.0));
            }
        }
        if let Some(gone) = self.per_cpu.contexts().find(|id| !self.knodes.contains_key(id)) {
            return Err(format!("a processor's list has context {}, which has ended", gone.0));
        }
        let in_use = self.knodes.values().filter(|knode| knode.in_use()).count();
        if self.closed.len() + in_use != self.knodes.len() || objects.len() != self.members {
            return Err("counts differ".to_owned());
        }
        if used == self.used { Ok(()) } else { Err(format!("{used:?} is not {:?}", self.used)) }
    }
}

/// Since when a context is closed: since its creation if it was never open.
fn closed_at(context: &Context) -> Nanos {
    context.last_close.unwrap_or(context.created)
}
