//! Forces between particles that are near each other: 435.gromacs, 444.namd.

use rand_xoshiro::rand_core::SeedableRng;
use terrace_core::Bytes;

use crate::exact::Access;
use crate::workload::SimRng;
use crate::workload::observed::{Kernel, Observer, Span, Step};
use crate::workload::updates::below;

/// Bytes of a particle: position, charge, force, kind.
const PARTICLE: u64 = 64;
/// Particles near each. Assumed: a cut-off of a nanometre in water has some hundred.
const NEAR: u64 = 64;
/// How far apart near particles lie in memory: they are sorted by cells.
const CELLS: u64 = 2048;
/// Operations for a pair: distance, its root, both forces.
const WORK: u64 = 40;

/// Particles, and lists of those that are near each other.
pub struct Neighbours {
    particles: Span,
    lists: Span,
    count: u64,
    at: u64,
    rng: SimRng,
}

impl Neighbours {
    /// As many particles as fit into so many bytes, lists included.
    pub fn new(size: Bytes, seed: u64, observer: &mut Observer) -> Self {
        let count = (size.get() / (PARTICLE + NEAR * 4)).max(256);
        Self {
            particles: observer.allocate(count * PARTICLE),
            lists: observer.allocate(count * NEAR * 4),
            count,
            at: 0,
            rng: SimRng::seed_from_u64(seed),
        }
    }
}

impl Kernel for Neighbours {
    fn describe(&self) -> String {
        format!("forces between {} particles", self.count)
    }

    fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
        self.particles.load(self.at * PARTICLE, observer);
        for i in 0..NEAR {
            self.lists.load(((self.at * NEAR + i) * 4) & !7, observer);
            let other = (self.at + below(&mut self.rng, CELLS)) % self.count;
            observer.access(Access::load(self.particles.address(other * PARTICLE)).dependent());
            self.particles.load(other * PARTICLE + 16, observer);
            observer.work(WORK);
            self.particles.store(other * PARTICLE + 32, observer);
        }
        self.particles.store(self.at * PARTICLE + 32, observer);
        self.at = (self.at + 1) % self.count;
        Step::More
    }
}
