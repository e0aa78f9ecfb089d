//! The members of one context, in two ordered sets.

use terrace_core::context::{Allocator, Context, Cpu, ObjectId, State};
use terrace_core::{Bytes, ContextId, MAX_TIERS, ObjectKind, PageRef, TierId};

use crate::ordered::Ordered;

/// A kernel object that belongs to a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The page that it lies in.
    pub page: PageRef,
    /// Its kind.
    pub kind: ObjectKind,
    /// The tier that the page lies in.
    pub tier: TierId,
}

/// A context's table of contents.
///
/// Objects with pages of their own and slab objects are apart, as in the paper:
/// one tree of both is too deep, and they are moved in different ways.
#[derive(Clone, Debug)]
pub struct Knode {
    pub(crate) context: Context,
    pages: Ordered,
    slabs: Ordered,
    /// What members take in each tier, and how many of them have pages of their own: policies
    /// ask for both at each tick, and a file may have many thousand members.
    bytes: [Bytes; MAX_TIERS],
    page_count: [u32; MAX_TIERS],
    /// Passes of the LRU since it was used, as far as no per-CPU list knows better.
    pub(crate) age: u8,
    pub(crate) cpu: Cpu,
    /// How often it was opened.
    pub(crate) opened: u32,
}

impl Knode {
    pub(crate) fn new(context: Context, cpu: Cpu) -> Self {
        Self {
            context,
            pages: Ordered::default(),
            slabs: Ordered::default(),
            bytes: [Bytes::ZERO; MAX_TIERS],
            page_count: [0; MAX_TIERS],
            age: 0,
            cpu,
            opened: 0,
        }
    }

    /// The file or socket: identity, life, members by kind.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The number of its context.
    pub fn id(&self) -> ContextId {
        self.context.id
    }

    /// Whether somebody has it open (the paper's `inuse`).
    pub fn in_use(&self) -> bool {
        self.context.state == State::Active
    }

    /// How often it was opened since it was made.
    pub fn times_opened(&self) -> u32 {
        self.opened
    }

    /// Members with pages of their own, in the order in which they were made.
    pub fn page_objects(&self) -> impl Iterator<Item = (ObjectId, &Member)> {
        self.pages.iter()
    }

    /// Members that share pages with other objects, in the order in which they were made.
    pub fn slab_objects(&self) -> impl Iterator<Item = (ObjectId, &Member)> {
        self.slabs.iter()
    }

    /// Members with pages of their own, from the one after a given object on.
    pub fn page_objects_after(
        &self,
        object: ObjectId,
    ) -> impl Iterator<Item = (ObjectId, &Member)> {
        self.pages.after(object)
    }

    /// All members.
    pub fn members(&self) -> impl Iterator<Item = (ObjectId, &Member)> {
        self.page_objects().chain(self.slab_objects())
    }

    /// What its members take in a tier.
    pub fn bytes_in(&self, tier: TierId) -> Bytes {
        self.bytes[tier.index()]
    }

    /// What its members take in all tiers.
    pub fn bytes(&self) -> Bytes {
        self.bytes.iter().copied().sum()
    }

    /// How many of its members with pages of their own lie in a tier.
    pub fn page_objects_in(&self, tier: TierId) -> usize {
        self.page_count[tier.index()] as usize
    }

    /// How many of its members have pages of their own.
    pub fn page_object_count(&self) -> usize {
        self.pages.len()
    }

    /// A member, if it is one of this kind.
    pub fn get(&self, object: ObjectId, kind: ObjectKind) -> Option<&Member> {
        let set = match kind.allocator() {
            Allocator::Page => &self.pages,
            Allocator::Slab => &self.slabs,
        };
        set.get(object).filter(|member| member.kind == kind)
    }

    /// A member of any kind.
    pub fn member(&self, object: ObjectId) -> Option<&Member> {
        self.pages.get(object).or_else(|| self.slabs.get(object))
    }

    /// Passes of the LRU since it was used.
    pub(crate) fn age_of_own(&self) -> u8 {
        self.age
    }

    /// How many members it has.
    pub fn len(&self) -> usize {
        self.pages.len() + self.slabs.len()
    }

    /// Whether it has no members.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn set(&mut self, kind: ObjectKind) -> &mut Ordered {
        match kind.allocator() {
            Allocator::Page => &mut self.pages,
            Allocator::Slab => &mut self.slabs,
        }
    }

    /// Enters a member; false if it is one already.
    pub(crate) fn add(&mut self, object: ObjectId, member: Member) -> bool {
        let new = self.set(member.kind).insert(object, member);
        if new {
            self.bytes[member.tier.index()] += member.kind.size();
            self.page_count[member.tier.index()] += u32::from(member.kind.is_page());
        }
        new
    }

    pub(crate) fn remove(&mut self, object: ObjectId, kind: ObjectKind) -> Option<Member> {
        let set = self.set(kind);
        let gone = if set.get(object)?.kind == kind { set.remove(object) } else { None }?;
        self.bytes[gone.tier.index()] -= kind.size();
        self.page_count[gone.tier.index()] -= u32::from(kind.is_page());
        Some(gone)
    }

    /// A member's page lies in another tier now. Gives what the member was before.
    pub(crate) fn moved(&mut self, object: ObjectId, to: TierId) -> Option<Member> {
        let member = self.pages.get_mut(object).or_else(|| self.slabs.get_mut(object))?;
        let before = *member;
        member.tier = to;
        let (from, to) = (before.tier.index(), to.index());
        self.bytes[from] -= before.kind.size();
        self.bytes[to] += before.kind.size();
        let page = u32::from(before.kind.is_page());
        self.page_count[from] -= page;
        self.page_count[to] += page;
        Some(before)
    }

    /// Compares what is counted with the members. Visits all of them.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let (mut bytes, mut pages) = ([Bytes::ZERO; MAX_TIERS], [0; MAX_TIERS]);
        for (_, member) in self.members() {
            bytes[member.tier.index()] += member.kind.size();
            pages[member.tier.index()] += u32::from(member.kind.is_page());
        }
        if (bytes, pages) == (self.bytes, self.page_count) {
            Ok(())
        } else {
            Err(format!("context {} counts {:?} in its tiers", self.id().0, self.bytes))
        }
    }

    /// What its sets take on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.pages.heap_bytes() + self.slabs.heap_bytes()
    }
}
