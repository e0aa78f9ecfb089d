//! Members in the order of their objects' numbers, in blocks.
//!
//! Objects get ascending numbers, so a new member nearly always goes to the end, and blocks are
//! full there. A balanced tree splits its last node in half each time and stays half empty: it
//! took 41 bytes a member where this takes 24 (`tests/footprint.rs`).

use terrace_core::context::ObjectId;

use crate::knode::Member;

/// Members in a block at most.
const BLOCK: usize = 64;

/// Members of one knode.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ordered {
    /// No block is empty.
    blocks: Vec<Vec<(ObjectId, Member)>>,
    len: usize,
}

impl Ordered {
    /// Where a member is, or where it would be.
    fn find(&self, object: ObjectId) -> (usize, Result<usize, usize>) {
        let block =
            self.blocks.partition_point(|b| b.last().is_some_and(|&(last, _)| last < object));
        let place = self.blocks.get(block).map_or(Err(0), |b| b.binary_search_by_key(&object, key));
        (block, place)
    }

    /// Enters a member; false if it is there already.
    pub(crate) fn insert(&mut self, object: ObjectId, member: Member) -> bool {
        let (mut block, place) = self.find(object);
        let Err(mut place) = place else { return false };
        if block == self.blocks.len() {
            match self.blocks.last() {
                Some(last) if last.len() < BLOCK => (block, place) = (block - 1, last.len()),
                _ => self.blocks.push(Vec::new()),
            }
        } else if self.blocks[block].len() == BLOCK {
            let upper = self.blocks[block].split_off(BLOCK / 2);
            self.blocks.insert(block + 1, upper);
            if place > BLOCK / 2 {
                (block, place) = (block + 1, place - BLOCK / 2);
            }
        }
        self.blocks[block].insert(place, (object, member));
        self.len += 1;
        true
    }

    /// Takes a member out.
    pub(crate) fn remove(&mut self, object: ObjectId) -> Option<Member> {
        let (block, Ok(place)) = self.find(object) else { return None };
        let (_, member) = self.blocks[block].remove(place);
        self.len -= 1;
        let left = self.blocks[block].len();
        if left == 0 {
            self.blocks.remove(block);
        } else if self.blocks.get(block + 1).is_some_and(|next| left + next.len() <= BLOCK / 2) {
            let next = self.blocks.remove(block + 1);
            self.blocks[block].extend(next);
        }
        Some(member)
    }

    /// A member.
    pub(crate) fn get(&self, object: ObjectId) -> Option<&Member> {
        let (block, place) = self.find(object);
        place.ok().map(|place| &self.blocks[block][place].1)
    }

    /// A member, to be changed.
    pub(crate) fn get_mut(&mut self, object: ObjectId) -> Option<&mut Member> {
        let (block, place) = self.find(object);
        place.ok().map(|place| &mut self.blocks[block][place].1)
    }

    /// All members in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ObjectId, &Member)> {
        self.blocks.iter().flatten().map(|(object, member)| (*object, member))
    }

    /// Members in order, from the one after a given object on.
    pub(crate) fn after(&self, object: ObjectId) -> impl Iterator<Item = (ObjectId, &Member)> {
        let block =
            self.blocks.partition_point(|b| b.last().is_some_and(|&(last, _)| last <= object));
        self.blocks[block..]
            .iter()
            .flatten()
            .skip_while(move |&&(other, _)| other <= object)
            .map(|(object, member)| (*object, member))
    }

    /// How many members there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Memory on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let entries: usize = self.blocks.iter().map(Vec::capacity).sum();
        entries * size_of::<(ObjectId, Member)>()
            + self.blocks.capacity() * size_of::<Vec<(ObjectId, Member)>>()
    }
}

fn key(entry: &(ObjectId, Member)) -> ObjectId {
    entry.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use terrace_core::{ObjectKind, PageNo, PageRef, RegionId, TierId};

    use super::*;

    fn member(number: u32) -> Member {
        let page = PageRef { region: RegionId(0), page: PageNo(number) };
        Member { page, kind: ObjectKind::Bio, tier: TierId(0) }
    }

    proptest! {
        /// Few enough numbers that members are found, many enough that blocks split and merge.
        #[test]
        fn it_is_an_ordered_map(calls in prop::collection::vec((0u64..300, 0..5u8), 0..1500)) {
            let (mut ours, mut map) = (Ordered::default(), BTreeMap::new());
            for (number, call) in calls {
                let (object, value) = (ObjectId(number), member(number as u32));
                if call < 3 {
                    let new = !map.contains_key(&object);
                    map.entry(object).or_insert(value);
                    prop_assert_eq!(ours.insert(object, value), new);
                } else {
                    prop_assert_eq!(ours.remove(object), map.remove(&object));
                }
                prop_assert_eq!(ours.get(object), map.get(&object));
                prop_assert_eq!(ours.len(), map.len());
                prop_assert!(ours.blocks.iter().all(|b| !b.is_empty() && b.len() <= BLOCK));
            }
            prop_assert!(ours.iter().eq(map.iter().map(|(object, value)| (*object, value))));
            for from in [0, 77, 299] {
                let after = map.range(ObjectId(from + 1)..);
                prop_assert!(ours.after(ObjectId(from)).eq(after.map(|(o, value)| (*o, value))));
            }
        }
    }
}
