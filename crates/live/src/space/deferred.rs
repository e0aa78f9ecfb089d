//! Address-space events that were read and cannot be carried out yet: a fork is under
//! way, and nothing of ours changes.

use crate::sys::uffd::Message;

const NOTHING: Message = Message::Remove { start: 0, end: 0 };

/// For so many there is room from the beginning; with more, it becomes larger. Whoever forks may
/// have to wait for a message behind any number of events, so they are always read.
const ROOM: usize = 8192;

/// An event, and for which children of the forks under way it does not hold.
#[derive(Clone, Copy)]
struct Entry {
    event: Message,
    /// By bit: it came after this child's copy was made.
    lacks: u8,
    /// Whether no copy was being made when it happened: the hook that told of it has seen to that.
    between_copies: bool,
}

const EMPTY: Entry = Entry { event: NOTHING, lacks: 0, between_copies: false };

/// Address-space events in the order in which they were read.
#[derive(Clone)]
pub(crate) struct Deferred {
    events: Vec<Entry>,
    /// The first that has not been carried out; 0 where none has.
    first: usize,
    count: usize,
    /// Whether the first is carried out in part.
    torn: bool,
    /// Children of which it is settled which events hold for them: what is read from then on
    /// does not.
    settled: u8,
}

/// How many events had been read, at three moments of a fork.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// When it was announced: all of these hold for its child.
    pub(crate) sure: usize,
    /// Just before the copy was made: so do those of what was unmapped and moved, unless its mappings
    /// say otherwise. The kernel tells of that when it is done.
    pub(crate) copied: usize,
    /// When the message of it was read.
    pub(crate) seen: usize,
}

/// Whether something is so; `None` where it cannot be told.
pub(crate) type Known = Option<bool>;

impl Deferred {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self { events: Vec::with_capacity(ROOM), first: 0, count: 0, torn: false, settled: 0 }
    }
    /// The same without room for any.
    pub(crate) fn none() -> Self {
        Self { events: Vec::new(), first: 0, count: 0, torn: false, settled: 0 }
    }
    /// In a child: those that hold for it, as its parent has handed them over, instead of what
    /// was copied while it may have been changing.
    pub(crate) fn take_over(&mut self, events: &[Message]) {
        (self.first, self.count, self.torn, self.settled) = (0, 0, false, 0);
        for &event in events {
            self.push(event);
        }
    }
    /// How many have been noted since there were none.
    pub(crate) fn noted(&self) -> usize {
        self.count
    }
    /// Notes an event.
    pub(crate) fn push(&mut self, event: Message) {
        self.note(event, false);
    }
    /// Notes an event that a hook tells of, which let no copy be made when it happened. So it holds for
    /// the children whose messages come later, whatever their pages look like.
    pub(crate) fn push_between_copies(&mut self, event: Message) {
        self.note(event, true);
    }
    fn note(&mut self, event: Message, between_copies: bool) {
        let entry = Entry { event, lacks: self.settled, between_copies };
        match self.events.get_mut(self.count) {
            Some(place) => *place = entry,
            None => self.events.push(entry),
        }
        self.count += 1;
    }
    /// Takes the oldest, to carry it out.
    pub(crate) fn pop(&mut self) -> Option<Message> {
        if self.first == self.count {
            (self.first, self.count) = (0, 0);
            return None;
        }
        self.first += 1;
        self.torn = false;
        Some(self.events[self.first - 1].event)
    }
    /// Puts one back that was taken, or would have been, and may be carried out in part: who
    /// did so broke. What our books have of its pages may be of before, or of after.
    pub(crate) fn tear(&mut self, event: Message) {
        self.torn = true;
        if self.first == 0 {
            let last = self.count;
            self.push(NOTHING);
            self.events[last].lacks = 0;
            self.events.copy_within(..last, 1);
            self.events[0] = EMPTY;
            self.first = 1;
        }
        self.first -= 1;
        self.events[self.first].event = event;
    }
    /// Whether one may be carried out in part.
    pub(crate) fn is_torn(&self) -> bool {
        self.torn
    }
    /// Where the content of an address is now; `None` if it has been discarded.
    pub(crate) fn destination(&self, address: usize) -> Option<usize> {
        self.destination_in(None, address)
    }
    /// The same in a child.
    pub(crate) fn destination_in(&self, child: Option<usize>, mut address: usize) -> Option<usize> {
        for event in self.events[self.first..self.count].iter().filter(|e| e.holds_for(child)) {
            match event.event {
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
    pub(crate) fn moved(&self) -> Vec<(usize, usize)> {
        let moved = |entry: &Entry| match entry.event {
            Message::Remap { to, len, .. } => Some((to, len)),
            _ => None,
        };
        self.events[self.first..self.count].iter().filter_map(moved).collect()
    }
    /// Whether any memory has moved.
    pub(crate) fn has_moved(&self) -> bool {
        let events = &self.events[self.first..self.count];
        events.iter().any(|entry| matches!(entry.event, Message::Remap { .. }))
    }
    /// Where the content of an address was when the freeze began; `None` if it
    /// has been discarded since.
    pub(crate) fn origin(&self, address: usize) -> Option<usize> {
        self.origin_in(None, address)
    }
    /// The same for an address of a child. None has been carried out then.
    pub(crate) fn origin_in(&self, child: Option<usize>, address: usize) -> Option<usize> {
        self.trace_back(self.count, child, address)
    }
    fn trace_back(&self, before: usize, child: Option<usize>, mut address: usize) -> Option<usize> {
        for event in self.events[..before].iter().rev().filter(|e| e.holds_for(child)) {
            match event.event {
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
    /// Calls `each` with the events that hold for a child, in order; stops where it says false.
    pub(crate) fn for_each_in(&self, child: usize, mut each: impl FnMut(Message) -> bool) -> bool {
        let events = self.events[self.first..self.count].iter();
        events.filter(|e| e.holds_for(Some(child))).all(|entry| each(entry.event))
    }
    /// A child's handle is closed.
    pub(crate) fn forget_child(&mut self, child: usize) {
        self.settled &= !(1 << child);
    }

    /// Finds out which events hold for a child, that is, changed the address space before its copy
    /// was made. Of those that were read before its parent began to fork it is known that they do, and
    /// of most that were read before the copy ([`Read`]). That another was read before the child's
    /// message, or after it, says nothing certain: the kernel tells of what has happened when the lock
    /// on the address space is free again, and so in another order. What is certain is what
    /// the child has: `is_registered` says whether an address of it is. `was_managed` says
    /// whether the books have a page; `is_discarded` finds out, of a range of which an event
    /// says that it is about to be discarded, whether it is in the child.
    ///
    /// All events whose changes the child may have are to be noted. Where both would look the
    /// same, either is right: nothing that the child can see says otherwise.
    pub(crate) fn settle(
        &mut self,
        child: usize,
        read: Read,
        is_registered: impl Fn(usize) -> bool,
        first_managed: impl Fn(usize, usize) -> Option<usize>,
        is_discarded: impl Fn(usize, usize) -> Known,
    ) {
        let bit = 1u8 << child;
        self.settled |= bit;
        for i in 0..self.count {
            self.events[i].lacks &= !bit;
        }
        for i in (read.sure..self.count).rev() {
            let by_order = i < read.seen;
            // What the child had at an address just after event `i`, undoing what came later.
            let had = |address: usize| -> Known {
                for entry in &self.events[i + 1..self.count] {
                    if entry.lacks & bit != 0 {
                        continue;
                    }
                    match entry.event {
                        Message::Remap { from, len, .. } if address.wrapping_sub(from) < len => {
                            return Some(true);
                        }
                        Message::Remap { to, len, .. } if address.wrapping_sub(to) < len => {
                            return None;
                        }
                        Message::Unmap { start, end } if (start..end).contains(&address) => {
                            return None;
                        }
                        _ => {}
                    }
                }
                Some(is_registered(address))
            };
            let arrived = |address: usize| {
                self.events[..i].iter().any(|entry| match entry.event {
                    Message::Remap { to, len, .. } => address.wrapping_sub(to) < len,
                    _ => false,
                })
            };
            let holds = match self.events[i].event {
                _ if self.events[i].between_copies => by_order,
                Message::Remap { from, to, len } => match (had(to), had(from)) {
                    (Some(false), _) => false,
                    (_, Some(false)) => true,
                    (Some(true), _)
                        if first_managed(to, to + crate::sys::PAGE).is_none() && !arrived(to) =>
                    {
                        true
                    }
                    _ if i < read.copied => true,
                    // The kernel tells of what was left behind, too, unless it stays mapped.
                    _ => self.left_behind(i, from, len, bit).unwrap_or(by_order),
                },
                Message::Unmap { start, end } => {
                    let page =
                        first_managed(start, end).or_else(|| arrived(start).then_some(start));
                    match page.and_then(had) {
                        Some(is_there) => !is_there,
                        None if i < read.copied => true,
                        None => self.made_room(i, start..end, bit).unwrap_or(by_order),
                    }
                }
                // What is discarded is so after the event was read.
                Message::Remove { start, end } => {
                    by_order && is_discarded(start, end).unwrap_or(true)
                }
                _ => true,
            };
            if !holds {
                self.events[i].lacks |= bit;
            }
        }
    }

    /// Whether the move holds for a child for which event `i` unmapped what was in its way; `None` if
    /// it did not.
    fn made_room(&self, i: usize, range: core::ops::Range<usize>, bit: u8) -> Known {
        match self.events[..self.count].get(i + 1)? {
            Entry { event: Message::Remap { to, .. }, lacks, .. } if range.contains(to) => {
                Some(lacks & bit == 0)
            }
            _ => None,
        }
    }

    /// Whether the event that memory was unmapped from which event `i` moved content holds for
    /// a child; `None` if there is none.
    fn left_behind(&self, i: usize, from: usize, len: usize, bit: u8) -> Known {
        for entry in &self.events[i + 1..self.count] {
            match entry.event {
                Message::Unmap { start, end } if start <= from && from + len <= end => {
                    return Some(entry.lacks & bit == 0);
                }
                Message::Remap { from: other, to, len: l }
                    if from.wrapping_sub(other) < l || from.wrapping_sub(to) < l =>
                {
                    return None;
                }
                _ => {}
            }
        }
        None
    }
}

impl Entry {
    fn holds_for(&self, child: Option<usize>) -> bool {
        child.is_none_or(|child| self.lacks & (1 << child) == 0)
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
        assert_eq!(deferred.trace_back(2, None, 0x4000), None, "left behind before it came");
        assert_eq!(deferred.trace_back(1, None, 0x4000), Some(0x4000), "moved later");
        assert_eq!(deferred.trace_back(0, None, 0x1000), Some(0x1000), "discarded later");
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
        let moved = |n| Message::Remap { from: page(n), to: page(n + 100_000), len: 0x1000 };
        for n in 0..=ROOM {
            deferred.push(moved(n));
        }
        deferred.tear(Message::Remap { from: page(90_000), to: 0, len: 0x1000 });

        assert_eq!(deferred.noted(), ROOM + 2);
        assert_eq!(
            deferred.destination(page(90_000)),
            Some(page(100_000)),
            "the torn one is first"
        );
        assert_eq!(
            deferred.destination(page(ROOM)),
            Some(page(ROOM + 100_000)),
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

    /// All of them came after the copy, as far as is known; so many before the child's message.
    fn late(seen: usize) -> Read {
        Read { sure: 0, copied: 0, seen }
    }

    /// Where a child has content that its parent's books have at 0x1000, of which moves were under
    /// way: by what it has, whatever was read when.
    #[test]
    fn what_a_child_has_says_which_moves_came_before_its_copy() {
        let (a, b, len) = (0x10_0000, 0x20_0000, 0x4000);
        let forth = Message::Remap { from: a, to: b, len };
        let back = Message::Remap { from: b, to: a, len };
        let left = |at| Message::Unmap { start: at, end: at + len };
        let within = |at: usize, address: usize| address.wrapping_sub(at) < len;
        let books = |start: usize, end: usize| (start < a + len && a < end).then_some(start.max(a));
        for events in [
            &[forth, left(a)][..],
            &[forth, left(a), back, left(b)],
            &[forth, left(a), back, left(b), forth, left(a)],
        ] {
            for seen in 0..=events.len() {
                for at in [a, b] {
                    let mut deferred = Deferred::new();
                    for &event in events {
                        deferred.push(event);
                    }
                    deferred.settle(3, late(seen), |page| within(at, page), books, |_, _| None);
                    let place = (events.len(), seen, at);
                    assert_eq!(
                        deferred.origin_in(Some(3), at + 0x1000),
                        Some(a + 0x1000),
                        "{place:?}"
                    );
                    assert_eq!(deferred.destination_in(Some(3), a), Some(at), "{place:?}");
                    // What is read from then on came later.
                    deferred.push(left(at));
                    assert_eq!(deferred.origin_in(Some(3), at), Some(a));
                }
            }
        }
    }

    /// With `MREMAP_DONTUNMAP` a child has both places, and what they look like says nothing.
    #[test]
    fn what_was_moved_and_read_before_the_copy_has_moved_in_the_child() {
        let (a, b, len) = (0x10_0000, 0x20_0000, 0x4000);
        let books = |start: usize, end: usize| (start < a + len && a < end).then_some(start.max(a));
        let both = |page: usize| page.wrapping_sub(a) < len || page.wrapping_sub(b) < len;
        let mut deferred = Deferred::new();
        deferred.push(Message::Remap { from: a, to: b, len });
        deferred.push(Message::Unmap { start: a, end: a + len });
        deferred.push(Message::Remap { from: b, to: a, len });
        let read = Read { sure: 0, copied: deferred.noted(), seen: deferred.noted() + 1 };
        // What its parent unmaps later the child still has.
        deferred.push(Message::Unmap { start: b, end: b + len });

        deferred.settle(1, read, both, books, |_, _| None);

        assert_eq!(deferred.origin_in(Some(1), a), Some(a), "forth and back");
        assert_eq!(deferred.origin_in(Some(1), b), None, "left behind");
        assert_eq!(deferred.destination_in(Some(1), a), Some(a));
    }

    #[test]
    fn what_a_child_still_has_was_not_unmapped_before_its_copy() {
        let (start, end) = (0x10_0000, 0x10_4000);
        for (has, seen) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
            let mut deferred = Deferred::new();
            deferred.push(Message::Unmap { start, end });
            deferred.settle(0, late(seen), |_| has, |start, _| Some(start), |_, _| None);
            assert_eq!(deferred.origin_in(Some(0), start), has.then_some(start));
        }
    }

    #[test]
    fn what_was_only_about_to_be_discarded_may_still_be_there() {
        let (start, end) = (0x10_0000, 0x10_4000);
        for (seen, discarded, content) in [
            (1, Some(true), false),
            (1, Some(false), true),
            (0, Some(true), true),
            (1, None, false),
        ] {
            let mut deferred = Deferred::new();
            deferred.push(Message::Remove { start, end });
            deferred.settle(0, late(seen), |_| true, |start, _| Some(start), |_, _| discarded);
            assert_eq!(deferred.origin_in(Some(0), start), content.then_some(start));
        }
    }

    /// Guards look like pages that are there.
    #[test]
    fn what_was_discarded_between_copies_is_gone_whatever_its_pages_look_like() {
        let (start, end) = (0x10_0000, 0x10_4000);
        for seen in [0, 1] {
            let mut deferred = Deferred::new();
            deferred.push_between_copies(Message::Remove { start, end });
            deferred.settle(0, late(seen), |_| true, |start, _| Some(start), |_, _| Some(false));
            assert_eq!(deferred.origin_in(Some(0), start), (seen == 0).then_some(start));
        }
    }
}
