//! Searches for ways on a map by a wave from the goal, as 473.astar does.

use rand_xoshiro::rand_core::SeedableRng;
use terrace_core::Bytes;

use crate::workload::SimRng;
use crate::workload::observed::{Array, Kernel, Observer, Step};
use crate::workload::updates::below;

/// One place in so many cannot be entered. Assumed.
const WALLS: u64 = 8;

/// A square map, and the wave that goes over it.
pub struct PathSearch {
    /// For each place: number of the search that reached it last, and its distance; a wall has
    /// the largest number.
    places: Array<(u32, u32)>,
    /// The wave's front, and the next one.
    front: Array<u32>,
    next: Array<u32>,
    width: usize,
    at: usize,
    len: usize,
    next_len: usize,
    search: u32,
    distance: u32,
    rng: SimRng,
}

impl PathSearch {
    /// A map of about so many bytes, both fronts included.
    pub fn new(size: Bytes, seed: u64, observer: &mut Observer) -> Self {
        let width = (((size.get() / 9) as f64).sqrt() as usize).max(8);
        let mut rng = SimRng::seed_from_u64(seed);
        let places = (0..width * width)
            .map(|_| if below(&mut rng, WALLS) == 0 { (u32::MAX, 0) } else { (0, 0) })
            .collect();
        let front = vec![0; (width * width / 8).max(64)];
        Self {
            places: observer.array(places),
            front: observer.array(front.clone()),
            next: observer.array(front),
            width,
            at: 0,
            len: 0,
            next_len: 0,
            search: 0,
            distance: 0,
            rng,
        }
    }

    fn begin(&mut self, observer: &mut Observer) {
        self.search += 1;
        let places = self.places.unseen();
        let goal = loop {
            let place = below(&mut self.rng, places.len() as u64) as usize;
            if places[place].0 != u32::MAX {
                break place;
            }
        };
        self.places.set(goal, (self.search, 0), observer);
        self.front.set(0, goal as u32, observer);
        (self.at, self.len, self.next_len, self.distance) = (0, 1, 0, 0);
    }
}

impl Kernel for PathSearch {
    fn describe(&self) -> String {
        format!("ways on a map of {} by {} places", self.width, self.width)
    }

    fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
        if self.at == self.len {
            std::mem::swap(&mut self.front, &mut self.next);
            (self.at, self.len, self.next_len) = (0, self.next_len, 0);
            self.distance += 1;
            if self.len == 0 {
                self.begin(observer);
            }
        }
        let place = self.front.get(self.at, observer) as usize;
        self.at += 1;
        let (x, y) = (place % self.width, place / self.width);
        let mut first = true;
        for (dx, dy) in [(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)] {
            let (x, y) = (x as i64 + dx, y as i64 + dy);
            let width = self.width as i64;
            observer.work(4);
            if !(0..width).contains(&x) || !(0..width).contains(&y) {
                continue;
            }
            let other = (y * width + x) as usize;
            // All addresses come from the front's place, which the first has waited for.
            let (seen, _) = if std::mem::take(&mut first) {
                self.places.follow(other, observer)
            } else {
                self.places.get(other, observer)
            };
            if seen < self.search && self.next_len < self.next.len() {
                self.places.set(other, (self.search, self.distance + 1), observer);
                self.next.set(self.next_len, other as u32, observer);
                self.next_len += 1;
            }
        }
        Step::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_one_step_farther_than_its_nearest_neighbour() {
        let mut observer = Observer::default();
        let mut kernel = PathSearch::new(Bytes::kib(64), 5, &mut observer);
        kernel.begin(&mut observer);
        while kernel.at < kernel.len || kernel.next_len > 0 {
            kernel.step(0, &mut observer);
        }
        let (width, places) = (kernel.width, kernel.places.unseen());
        let reached = |at: usize| places[at].0 == 1;
        let mut count = 0;
        for at in (0..places.len()).filter(|&at| reached(at)) {
            let (x, y) = (at % width, at / width);
            let near = (y.saturating_sub(1)..(y + 2).min(width))
                .flat_map(|y| (x.saturating_sub(1)..(x + 2).min(width)).map(move |x| y * width + x))
                .filter(|&other| other != at && places[other].0 != u32::MAX);
            for other in near.clone() {
                assert!(reached(other), "the wave went around a place");
            }
            let least = near.map(|other| places[other].1).min();
            assert!(places[at].1 == 0 || least == Some(places[at].1 - 1));
            count += 1;
        }
        assert!(count > places.len() / 2, "{count} of {}", places.len());
    }
}
