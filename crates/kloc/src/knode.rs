//! The members of one context, in two ordered sets.

use terrace_core::context::{Allocator, Context, Cpu, ObjectId, State};
use terrace_core::{Bytes, ContextId, ObjectKind, PageRef, TierId};

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
    /// Passes of the LRU since it was used, as far as no per-CPU list knows better.
    pub(crate) age: u8,
    pub(crate) cpu: Cpu,
}

impl Knode {
    pub(crate) fn new(context: Context, cpu: Cpu) -> Self {
        Self { context, pages: Ordered::default(), slabs: Ordered::default(), age: 0, cpu }
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

    /// Members with pages of their own, in the order in which they were made.
    pub fn page_objects(&self) -> impl Iterator<Item = (ObjectId, &Member)> {
        self.pages.iter()
    }

    /// Members that share pages with other objects, in the order in which they were made.
    pub fn slab_objects(&self) -> impl Iterator<Item = (ObjectId, &Member)> {
        self.slabs.iter()
    }

    /// All members.
    pub fn members(&self) -> impl Iterator<Item = (ObjectId, &Member)> {
        self.page_objects().chain(self.slab_objects())
    }

    /// What its members take in a tier.
    pub fn bytes_in(&self, tier: TierId) -> Bytes {
        self.members().filter(|(_, m)| m.tier == tier).map(|(_, m)| m.kind.size()).sum()
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
        self.set(member.kind).insert(object, member)
    }

    pub(crate) fn remove(&mut self, object: ObjectId, kind: ObjectKind) -> Option<Member> {
        let set = self.set(kind);
        if set.get(object)?.kind == kind { set.remove(object) } else { None }
    }

    pub(crate) fn get_mut(&mut self, object: ObjectId) -> Option<&mut Member> {
        self.pages.get_mut(object).or_else(|| self.slabs.get_mut(object))
    }

    /// What its sets take on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.pages.heap_bytes() + self.slabs.heap_bytes()
    }
}
