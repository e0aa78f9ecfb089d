//! Which of a few keys was used least recently: what a fully associative TLB
//! knows. Looking up, entering and giving up take a few steps each, however
//! many entries there are.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::pmem::LineHasher;

/// No place.
const NONE: usize = usize::MAX;

/// Keys in places, by when they were used last.
#[derive(Clone, Debug)]
pub(crate) struct Lru {
    places: HashMap<u64, usize, BuildHasherDefault<LineHasher>>,
    keys: Vec<u64>,
    /// Towards what was used earlier, and later.
    earlier: Vec<usize>,
    later: Vec<usize>,
    newest: usize,
    oldest: usize,
    free: Vec<usize>,
}

impl Lru {
    /// Room for so many keys, at least one.
    pub(crate) fn new(places: usize) -> Self {
        let places = places.max(1);
        Self {
            places: HashMap::default(),
            keys: vec![0; places],
            earlier: vec![NONE; places],
            later: vec![NONE; places],
            newest: NONE,
            oldest: NONE,
            free: (0..places).rev().collect(),
        }
    }

    /// Where a key stands, which is used now.
    #[inline]
    pub(crate) fn find(&mut self, key: u64) -> Option<usize> {
        if self.newest != NONE && self.keys[self.newest] == key {
            return Some(self.newest);
        }
        let place = *self.places.get(&key)?;
        self.unlink(place);
        self.link(place);
        Some(place)
    }

    /// Where a key stands, which is not used by that.
    pub(crate) fn place(&self, key: u64) -> Option<usize> {
        self.places.get(&key).copied()
    }

    /// Enters a key that is not there: its place, and the key that had to go.
    pub(crate) fn enter(&mut self, key: u64) -> (usize, Option<u64>) {
        let gone = if self.free.is_empty() {
            let place = self.oldest;
            let gone = self.keys[place];
            self.remove(gone);
            Some(gone)
        } else {
            None
        };
        let place = self.free.pop().unwrap_or(0);
        self.keys[place] = key;
        self.places.insert(key, place);
        self.link(place);
        (place, gone)
    }

    /// A key is there no more.
    pub(crate) fn remove(&mut self, key: u64) {
        if let Some(place) = self.places.remove(&key) {
            self.unlink(place);
            self.free.push(place);
        }
    }

    /// All keys with their places, in no particular order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.places.iter().map(|(key, place)| (*key, *place))
    }

    fn unlink(&mut self, place: usize) {
        let (earlier, later) = (self.earlier[place], self.later[place]);
        match later {
            NONE => self.newest = earlier,
            later => self.earlier[later] = earlier,
        }
        match earlier {
            NONE => self.oldest = later,
            earlier => self.later[earlier] = later,
        }
    }

    fn link(&mut self, place: usize) {
        (self.earlier[place], self.later[place]) = (self.newest, NONE);
        match self.newest {
            NONE => self.oldest = place,
            newest => self.later[newest] = place,
        }
        self.newest = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A list that is searched from its end decides alike; a link that is
        /// lost would give up a page that is in use.
        #[test]
        fn it_gives_up_what_was_used_least_recently(
            steps in prop::collection::vec((0u64..12, 0u8..8), 1..200),
            places in 1usize..6,
        ) {
            let mut lru = Lru::new(places);
            let mut list: Vec<u64> = Vec::new();
            for (key, step) in steps {
                if step == 0 {
                    lru.remove(key);
                    list.retain(|known| *known != key);
                    continue;
                }
                let known = list.contains(&key);
                prop_assert_eq!(lru.find(key).is_some(), known);
                list.retain(|other| *other != key);
                if !known {
                    let gone = (list.len() == places).then(|| list.remove(0));
                    prop_assert_eq!(lru.enter(key).1, gone);
                }
                list.push(key);
                let mut held: Vec<u64> = lru.all().map(|(key, _)| key).collect();
                let mut expected = list.clone();
                held.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(held, expected);
            }
        }
    }
}
