//! Slab caches: objects of one size share pages.
//!
//! A slab is one page, where Linux takes up to eight for large objects: a page is what is placed
//! and moved.

use terrace_core::ObjectKind;

/// Empty slabs that a cache keeps: `MIN_PARTIAL` of `mm/slub.c`.
const MIN_PARTIAL: u32 = 5;

/// A slab without room is in no list.
const UNLISTED: u32 = u32::MAX;

/// What slab caches there are: the kinds of Table 1 that are slab objects, and three that belong
/// to no context there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cache {
    /// Objects of a context.
    Of(ObjectKind),
    /// A node of a file's index of pages (`radix_tree_node`, 576 B in slabinfo).
    IndexNode,
    /// An open file (`filp`, 232 B).
    File,
    /// What describes the block of a page (`buffer_head`, 104 B).
    BufferHead,
}

impl Cache {
    const COUNT: usize = ObjectKind::COUNT + 3;

    fn index(self) -> usize {
        match self {
            Self::Of(kind) => kind.index(),
            Self::IndexNode => ObjectKind::COUNT,
            Self::File => ObjectKind::COUNT + 1,
            Self::BufferHead => ObjectKind::COUNT + 2,
        }
    }

    /// Whether there are as many of its objects however large a program's data are: those that
    /// live as long as a call, a transfer or a connection does. The others come with files and
    /// their pages.
    pub(super) fn is_fixed(self) -> bool {
        match self {
            Self::Of(kind) => match kind {
                ObjectKind::Bio
                | ObjectKind::BlkMqRequest
                | ObjectKind::Sock
                | ObjectKind::Skbuff
                | ObjectKind::SkbuffData
                | ObjectKind::ReceiveBuffer => true,
                ObjectKind::Inode
                | ObjectKind::Dentry
                | ObjectKind::Extent
                | ObjectKind::JournalBuffer
                | ObjectKind::PageCachePage => false,
            },
            Self::File => true,
            Self::IndexNode | Self::BufferHead => false,
        }
    }

    pub(super) fn size(self) -> u32 {
        match self {
            Self::Of(kind) => kind.size().get() as u32,
            Self::IndexNode => 576,
            Self::File => 232,
            Self::BufferHead => 104,
        }
    }
}

/// An object in a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Object {
    /// The slab.
    pub(super) slab: u32,
    /// Its place there.
    pub(super) slot: u8,
    /// Its number.
    pub(super) id: u64,
}

/// A slab.
#[derive(Clone, Debug)]
struct Slab {
    /// A bit for each object that is free.
    free: u128,
    page: u32,
    size: u32,
    used: u8,
    /// Where its cache's list has it; [`UNLISTED`] if it does not.
    at: u32,
}

/// All slabs.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    all: Vec<Slab>,
    unused: Vec<u32>,
    /// Slabs of each cache with room, the one used last at the end.
    partial: [Vec<u32>; Cache::COUNT],
    empty: [u32; Cache::COUNT],
}

impl Slabs {
    /// A place for an object, if a slab has one.
    pub(super) fn take(&mut self, cache: Cache) -> Option<(u32, u8)> {
        let list = &mut self.partial[cache.index()];
        let &number = list.last()?;
        let slab = &mut self.all[number as usize];
        let slot = slab.free.trailing_zeros() as u8;
        slab.free &= slab.free - 1;
        if slab.used == 0 {
            self.empty[cache.index()] -= 1;
        }
        slab.used += 1;
        if slab.free == 0 {
            list.pop();
            slab.at = UNLISTED;
        }
        Some((number, slot))
    }

    /// The number that the next slab will have.
    pub(super) fn next_slab(&self) -> u32 {
        self.unused.last().copied().unwrap_or(self.all.len() as u32)
    }

    /// Enters a new slab.
    pub(super) fn add(&mut self, cache: Cache, page: u32) {
        let size = cache.size();
        let objects = 4096 / size;
        let free = u128::MAX >> (128 - objects.min(128));
        let list = &mut self.partial[cache.index()];
        let slab = Slab { free, page, size, used: 0, at: list.len() as u32 };
        let number = self.unused.last().copied().unwrap_or(self.all.len() as u32);
        list.push(number);
        if self.unused.pop().is_some() {
            self.all[number as usize] = slab;
        } else {
            self.all.push(slab);
        }
        self.empty[cache.index()] += 1;
    }

    /// Frees an object; gives the page of its slab if nobody needs that any more.
    pub(super) fn free(&mut self, cache: Cache, slab: u32, slot: u8) -> Option<u32> {
        let number = slab;
        let slab = &mut self.all[number as usize];
        debug_assert!(slab.free >> slot & 1 == 0, "freed twice");
        slab.free |= 1 << slot;
        slab.used -= 1;
        let list = &mut self.partial[cache.index()];
        if slab.used == 0 {
            if self.empty[cache.index()] >= MIN_PARTIAL {
                let (page, at) = (slab.page, slab.at);
                if at != UNLISTED {
                    list.swap_remove(at as usize);
                    if let Some(&moved) = list.get(at as usize) {
                        self.all[moved as usize].at = at;
                    }
                }
                self.unused.push(number);
                return Some(page);
            }
            self.empty[cache.index()] += 1;
        }
        if slab.at == UNLISTED {
            slab.at = list.len() as u32;
            list.push(number);
        }
        None
    }

    /// The page of a slab, and the first line of an object in it.
    pub(super) fn place(&self, slab: u32, slot: u8) -> (u32, u32) {
        let slab = &self.all[slab as usize];
        (slab.page, u32::from(slot) * slab.size / 64)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.all.capacity() * size_of::<Slab>()
            + self.partial.iter().map(|list| list.capacity() * 4).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_share_pages_and_a_few_empty_slabs_are_kept() {
        let mut slabs = Slabs::default();
        let cache = Cache::Of(ObjectKind::Inode);
        let mut places = Vec::new();
        let mut pages = 0;
        for _ in 0..30 {
            let place = slabs.take(cache).unwrap_or_else(|| {
                slabs.add(cache, pages);
                pages += 1;
                slabs.take(cache).expect("it is new")
            });
            assert!(!places.contains(&place));
            places.push(place);
        }
        assert_eq!(pages, 10, "three of 1128 B fit into a page");
        let freed = places.iter().filter_map(|&(slab, slot)| slabs.free(cache, slab, slot));
        assert_eq!(freed.count(), 10 - MIN_PARTIAL as usize);
        assert!(slabs.take(cache).is_some());
    }
}
