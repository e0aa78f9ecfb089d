//! Address-space events that were read and cannot be carried out yet: a fork is under
//! way, and nothing of ours changes.

use crate::uffd::Message;

const NOTHING: Message = Message::Remove { start: 0, end: 0 };

/// So many are read ahead while a fork is under way; then who changes the address space waits.
const ROOM: usize = 1024;

/// Address-space events in the order in which they were read.
pub struct Deferred {
    /// More than `ROOM` of them only while the program is put on plain memory: nothing can be
    /// brought in as long as there is an event that nobody has read.
    events: Vec<Message>,
    /// The first that has not been carried out; 0 where none has.
    first: usize,
    count: usize,
    /// Whether the first is carried out in part.
    torn: bool,
}

impl Deferred {
    /// None yet.
    pub fn new() -> Self {
        Self { events: vec![NOTHING; ROOM], first: 0, count: 0, torn: false }
    }
    /// Whether another one fits.
    pub fn has_room(&self) -> bool {
        self.count < ROOM
    }
    /// How many have been noted since there were none.
    pub fn noted(&self) -> usize {
        self.count
    }
    /// Notes an event.
    pub fn push(&mut self, event: Message) {
        match self.events.get_mut(self.count) {
            Some(place) => *place = event,
            None => self.events.push(event),
        }
        self.count += 1;
    }
    /// Takes the oldest, to carry it out.
    pub fn pop(&mut self) -> Option<Message> {
        if self.first == self.count {
            (self.first, self.count) = (0, 0);
            return None;
        }
        self.first += 1;
        self.torn = false;
        Some(self.events[self.first - 1])
    }
    /// Puts one back that was taken, or would have been, and may be carried out in part: who
    /// did so broke. What our books have of its pages may be of before, or of after.
    pub fn tear(&mut self, event: Message) {
        self.torn = true;
        if self.first == 0 {
            let last = self.count;
            self.push(NOTHING);
            self.events.copy_within(..last, 1);
            self.first = 1;
        }
        self.first -= 1;
        self.events[self.first] = event;
    }
    /// Whether one may be carried out in part.
    pub fn is_torn(&self) -> bool {
        self.torn
    }
    /// Where the content of an address is now; `None` if it has been discarded.
    pub fn destination(&self, mut address: usize) -> Option<usize> {
        for event in &self.events[self.first..self.count] {
            match *event {
                Message::Remap { from, to, len } if address.wrapping_sub(from) < len => {
                    address = to + (address - from);
                }
                Message::Remove { start, end } | Message::Unmap { start, end }
                    if (start..end).contains(&address) =>
                {
                    return None;
                }
                _ => {}
            }
        }
        Some(address)
    }
    /// Where memory has moved to: first addresses and lengths.
    pub fn moved(&self) -> Vec<(usize, usize)> {
        let moved = |event: &Message| match *event {
            Message::Remap { to, len, .. } => Some((to, len)),
            _ => None,
        };
        self.events[self.first..self.count].iter().filter_map(moved).collect()
    }
    /// Where the content of an address was when the freeze began; `None` if it
    /// has been discarded since.
    pub fn origin(&self, address: usize) -> Option<usize> {
        self.origin_before(self.count, address)
    }
    /// The same for a child that was forked when so many had been noted: what its
    /// parent does later is no concern of its. None has been carried out then.
    pub fn origin_before(&self, events: usize, mut address: usize) -> Option<usize> {
        for event in self.events[..events.min(self.count)].iter().rev() {
            match *event {
                Message::Remap { from, to, len } if address.wrapping_sub(to) < len => {
                    address = from + (address - to);
                }
                // What it left behind is empty, where it is still mapped (`MREMAP_DONTUNMAP`)
                // or mapped again.
                Message::Remap { from, len, .. } if address.wrapping_sub(from) < len => {
                    return None;
                }
                Message::Remove { start, end } | Message::Unmap { start, end }
                    if (start..end).contains(&address) =>
                {
                    return None;
                }
                _ => {}
            }
        }
        Some(address)
    }
}

impl Default for Deferred {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_events_are_undone_newest_first() {
        let mut deferred = Deferred::new();
        deferred.push(Message::Remove { start: 0x1000, end: 0x2000 });
        deferred.push(Message::Remap { from: 0x3000, to: 0x8000, len: 0x2000 });
        deferred.push(Message::Remap { from: 0x1000, to: 0x4000, len: 0x1000 });
        assert_eq!(deferred.origin(0x1000), None);
        assert_eq!(deferred.origin(0x8000), Some(0x3000));
        assert_eq!(deferred.origin(0x9000), Some(0x4000), "before something else moved there");
        assert_eq!(deferred.origin(0x4000), None, "discarded, then moved");
        assert_eq!(deferred.origin(0x7000), Some(0x7000));
        assert_eq!(deferred.destination(0x3000), Some(0x8000));
        assert_eq!(deferred.destination(0x1000), None);
        assert_eq!(deferred.moved(), [(0x8000, 0x2000), (0x4000, 0x1000)]);
        assert_eq!(deferred.origin(0x3000), None, "left behind");
        assert_eq!(deferred.origin_before(2, 0x4000), None, "left behind, moved to after the fork");
        assert_eq!(deferred.origin_before(1, 0x4000), Some(0x4000), "moved after the fork");
        assert_eq!(deferred.origin_before(0, 0x1000), Some(0x1000), "discarded after the fork");
    }

    #[test]
    fn what_is_carried_out_counts_no_more() {
        let mut deferred = Deferred::new();
        deferred.push(Message::Unmap { start: 0x8000, end: 0x9000 });
        deferred.push(Message::Remap { from: 0x3000, to: 0x8000, len: 0x1000 });

        // Half of the second was carried out when its thread broke.
        let first = deferred.pop();
        let second = deferred.pop().unwrap();
        deferred.tear(second);

        assert_eq!(first, Some(Message::Unmap { start: 0x8000, end: 0x9000 }));
        assert_eq!(deferred.destination(0x8000), Some(0x8000), "has arrived");
        assert_eq!(deferred.destination(0x3000), Some(0x8000), "has not yet");
        assert!(deferred.is_torn());
        assert_eq!(deferred.pop(), Some(second));
        assert_eq!(deferred.pop(), None);
        assert_eq!(deferred.noted(), 0);
    }

    #[test]
    fn what_comes_when_there_is_no_room_is_kept_all_the_same() {
        // A program that moved its memory about while it was put on plain memory was aborted.
        let mut deferred = Deferred::new();
        let page = |n: usize| n * 0x1000;
        let moved = |n| Message::Remap { from: page(n), to: page(n + 10_000), len: 0x1000 };
        for n in 0..=ROOM {
            deferred.push(moved(n));
        }
        deferred.tear(Message::Remap { from: page(9_000), to: 0, len: 0x1000 });

        assert!(!deferred.has_room());
        assert_eq!(deferred.noted(), ROOM + 2);
        assert_eq!(deferred.destination(page(9_000)), Some(page(10_000)), "the torn one is first");
        assert_eq!(
            deferred.destination(page(ROOM)),
            Some(page(ROOM + 10_000)),
            "and the last kept"
        );
    }

    #[test]
    fn what_was_under_way_comes_before_what_was_deferred() {
        let mut deferred = Deferred::new();
        deferred.push(Message::Remap { from: 0x3000, to: 0x8000, len: 0x1000 });
        deferred.tear(Message::Unmap { start: 0x8000, end: 0x9000 });
        assert_eq!(deferred.destination(0x8000), None, "what was there is gone");
        assert_eq!(deferred.destination(0x3000), Some(0x8000));
    }
}
