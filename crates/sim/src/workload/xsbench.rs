//! The look-ups of `XSBench` (Tramm et al., 2014), the memory-bound kernel of
//! Monte Carlo neutron transport: for a random energy and material, the cross
//! sections of every nuclide in the material, found through one grid of all
//! nuclides' energies.
//!
//! 68 nuclides and twelve materials, as in its small problem; the number of
//! energies follows from the memory. Cross sections decide nothing, so they
//! have no content; energies and the positions that follow from them do.

use rand_xoshiro::rand_core::Rng;
use terrace_core::Bytes;

use super::SimRng;
use super::observed::{Array, Kernel, Observer, Span, Step};
use super::share::generators;
use super::updates::below;

/// Nuclides of the small problem.
const NUCLIDES: u64 = 68;
/// Nuclides of each material, fuel first.
const MATERIALS: [u64; 12] = [34, 5, 4, 4, 27, 21, 21, 21, 21, 21, 9, 9];
/// How probable each material is, in thousandths (`pick_mat`).
const SHARES: [u64; 12] = [140, 52, 275, 134, 154, 64, 66, 55, 8, 15, 25, 13];
/// Bytes of a grid point of a nuclide: an energy and five cross sections.
const POINT: u64 = 48;
/// Bytes of the grid of all energies for one of them: a position for each nuclide.
const ROW: u64 = NUCLIDES * 4;

/// Grids.
pub struct XsBench {
    /// All energies, rising.
    energies: Array<f64>,
    /// For each energy the position in each nuclide's grid.
    positions: Span,
    /// Grid points, nuclide by nuclide.
    points: Span,
    /// Energies of each nuclide, rising: the content of `points` that matters.
    grids: Vec<Vec<f64>>,
    /// One a thread.
    rngs: Vec<SimRng>,
}

impl XsBench {
    /// Grids of about so many bytes.
    pub fn new(size: Bytes, seed: u64, threads: usize, observer: &mut Observer) -> Self {
        let each = (size.get() / (8 + ROW + POINT) / NUCLIDES).max(2);
        let mut rngs = generators(seed, threads);
        let rng = &mut rngs[0];
        let grids: Vec<Vec<f64>> = (0..NUCLIDES)
            .map(|_| {
                let mut grid: Vec<f64> = (0..each).map(|_| unit(rng)).collect();
                grid.sort_by(f64::total_cmp);
                grid
            })
            .collect();
        let mut energies: Vec<f64> = grids.iter().flatten().copied().collect();
        energies.sort_by(f64::total_cmp);
        let all = energies.len() as u64;
        Self {
            energies: observer.array(energies),
            positions: observer.allocate(all * ROW),
            points: observer.allocate(all * POINT),
            grids,
            rngs,
        }
    }

    /// The last energy that is not above one, by bisection.
    fn search(&self, energy: f64, observer: &mut Observer) -> usize {
        let (mut low, mut high) = (0, self.energies.len() - 1);
        while high - low > 1 {
            let middle = usize::midpoint(low, high);
            observer.work(3);
            if self.energies.follow(middle, observer) > energy {
                high = middle;
            } else {
                low = middle;
            }
        }
        low
    }

    /// The position in a nuclide's grid that the grid of all energies holds.
    fn position(&self, nuclide: u64, found: usize) -> u64 {
        let grid = &self.grids[nuclide as usize];
        let energy = self.energies.unseen()[found];
        // The last point has no next one to interpolate with.
        let below = grid.partition_point(|&point| point <= energy).saturating_sub(1);
        below.min(grid.len() - 2) as u64
    }
}

/// A random number from 0 to 1.
fn unit(rng: &mut SimRng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

impl Kernel for XsBench {
    fn describe(&self) -> String {
        let bytes = self.positions.bytes() + self.points.bytes() + self.energies.len() as u64 * 8;
        let each = self.grids[0].len();
        format!("xsbench, {NUCLIDES} nuclides of {each} points, {}", Bytes(bytes))
    }

    fn threads(&self) -> usize {
        self.rngs.len()
    }

    fn step(&mut self, thread: usize, observer: &mut Observer) -> Step {
        let rng = &mut self.rngs[thread];
        let energy = unit(rng);
        let mut dice = below(rng, SHARES.iter().sum());
        let mut material = 0;
        while dice >= SHARES[material] {
            dice -= SHARES[material];
            material += 1;
        }
        observer.work(20);
        let found = self.search(energy, observer);
        let each = self.grids[0].len() as u64;
        for i in 0..MATERIALS[material] {
            // Materials have nuclides of their own, strewn over all.
            let nuclide = (i * 7 + material as u64 * 11) % NUCLIDES;
            self.positions.load((found as u64 * ROW + nuclide * 4) & !7, observer);
            let position = self.position(nuclide, found);
            // The point and the next one, six doubles each.
            let point = (nuclide * each + position) * POINT;
            self.points.load_all(point, 2 * POINT, observer);
            observer.work(30);
        }
        Step::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::rand_core::SeedableRng;

    #[test]
    fn positions_enclose_the_energy_in_every_nuclide() {
        let mut observer = Observer::default();
        let bench = XsBench::new(Bytes::mib(2), 9, 1, &mut observer);
        let mut rng = SimRng::seed_from_u64(4);
        for _ in 0..200 {
            let energy = unit(&mut rng);
            let found = bench.search(energy, &mut observer);
            let energies = bench.energies.unseen();
            assert!(found == 0 || energies[found] <= energy);
            assert!(found + 2 >= energies.len() || energies[found + 1] > energy);
            for nuclide in 0..NUCLIDES {
                let grid = &bench.grids[nuclide as usize];
                let at = bench.position(nuclide, found) as usize;
                assert!(at == 0 || grid[at] <= energy);
                assert!(at + 2 == grid.len() || grid[at + 1] > energy, "nuclide {nuclide}");
            }
        }
    }

    #[test]
    fn a_material_names_no_nuclide_twice() {
        for (material, &count) in MATERIALS.iter().enumerate() {
            let nuclides: std::collections::HashSet<u64> =
                (0..count).map(|i| (i * 7 + material as u64 * 11) % NUCLIDES).collect();
            assert_eq!(nuclides.len() as u64, count, "material {material}");
        }
    }
}
