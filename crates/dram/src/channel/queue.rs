//! Requests that wait for a DRAM bank, in order of arrival, a list for each
//! bank and direction. Nothing is allocated after the start.

use crate::file::MAX_BANKS;

const BANKS: usize = MAX_BANKS as usize;
/// The end of a list.
pub(super) const NIL: u16 = u16::MAX;

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The caller's name for it.
    pub(super) id: u64,
    /// When it arrived.
    pub(super) arrived: u64,
    /// Its place in the order of arrival over all requests of the channel.
    pub(super) order: u64,
    pub(super) row: u32,
    pub(super) column: u32,
    previous: u16,
    next: u16,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u16,
    tail: u16,
}

/// All lists, with entries from one slab.
#[derive(Clone, Debug)]
pub(super) struct Queues {
    entries: Vec<Entry>,
    free: Vec<u16>,
    lists: [[List; BANKS]; 2],
}

impl Queues {
    pub(super) fn new(capacity: usize) -> Self {
        let empty =
            Entry { id: 0, arrived: 0, order: 0, row: 0, column: 0, previous: NIL, next: NIL };
        Self {
            entries: vec![empty; capacity],
            free: (0..capacity as u16).rev().collect(),
            lists: [[List { head: NIL, tail: NIL }; BANKS]; 2],
        }
    }

    /// Appends a request. The caller has made sure that there is room.
    pub(super) fn push(&mut self, direction: usize, bank: usize, mut entry: Entry) {
        let index = self.free.pop().expect("the channel counts its entries");
        let list = &mut self.lists[direction][bank];
        (entry.previous, entry.next) = (list.tail, NIL);
        match list.tail {
            NIL => list.head = index,
            tail => self.entries[usize::from(tail)].next = index,
        }
        list.tail = index;
        self.entries[usize::from(index)] = entry;
    }

    /// Takes a request out of its list.
    pub(super) fn remove(&mut self, direction: usize, bank: usize, index: u16) -> Entry {
        let entry = self.entries[usize::from(index)];
        let list = &mut self.lists[direction][bank];
        match entry.previous {
            NIL => list.head = entry.next,
            previous => self.entries[usize::from(previous)].next = entry.next,
        }
        match entry.next {
            NIL => list.tail = entry.previous,
            next => self.entries[usize::from(next)].previous = entry.previous,
        }
        self.free.push(index);
        entry
    }

    /// The oldest request, or [`NIL`].
    pub(super) fn head(&self, direction: usize, bank: usize) -> u16 {
        self.lists[direction][bank].head
    }

    pub(super) fn entry(&self, index: u16) -> &Entry {
        &self.entries[usize::from(index)]
    }

    /// The oldest request for a row, or [`NIL`].
    pub(super) fn first_in_row(&self, direction: usize, bank: usize, row: u32) -> u16 {
        let mut index = self.head(direction, bank);
        while index != NIL {
            let entry = self.entry(index);
            if entry.row == row {
                return index;
            }
            index = entry.next;
        }
        NIL
    }

    /// Whether a request for this very burst waits.
    pub(super) fn holds(&self, direction: usize, bank: usize, row: u32, column: u32) -> bool {
        let mut index = self.head(direction, bank);
        while index != NIL {
            let entry = self.entry(index);
            if (entry.row, entry.column) == (row, column) {
                return true;
            }
            index = entry.next;
        }
        false
    }
}

impl Entry {
    /// A request that is in no list yet.
    pub(super) fn new(id: u64, arrived: u64, order: u64, row: u32, column: u32) -> Self {
        Self { id, arrived, order, row, column, previous: NIL, next: NIL }
    }
}
