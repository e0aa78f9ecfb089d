//! A program folded into few megabytes, as Kindle's generated replays do:
//! offsets are taken modulo the size of the array that stands for an area.

use terrace_sim::SimError;
use terrace_sim::full::{Access, Batch, Source, SpaceEvent};

/// The folded areas: one for the first area of the program, one for all others,
/// and one for what lies in no area (Kindle: heap 1 of 2 MB, heap 2 of 4 MB, a
/// stack of 256 kB). A recorder is not told of what the loader mapped, which is
/// the first stack, and the executable's own data.
const SIZES: [u64; 3] = [2 << 20, 4 << 20, STACK.1];
/// Where they begin.
const STARTS: [u64; 3] = [1 << 32, (1 << 32) + (1 << 30), STACK.0];
/// Start and length of the folded stack.
pub const STACK: (u64, u64) = ((1 << 32) + (2 << 30), 256 << 10);

/// A source whose accesses are folded.
pub struct Folded<S> {
    source: S,
    /// Areas of the program.
    areas: Vec<(u64, u64)>,
    /// The area found last: accesses come in runs.
    last: usize,
    mapped: bool,
}

impl<S: Source> Folded<S> {
    /// Folds a source.
    pub fn new(source: S) -> Self {
        Self { source, areas: Vec::new(), last: 0, mapped: false }
    }

    fn fold(&mut self, access: Access) -> Access {
        let address = access.address();
        let holds = |&(start, len): &(u64, u64)| (start..start + len).contains(&address);
        let last = self.last;
        let area = if self.areas.get(last).is_some_and(holds) {
            Some(last)
        } else {
            self.areas.iter().position(holds)
        };
        self.last = area.unwrap_or(last);
        let which = match area {
            Some(0) => 0,
            Some(_) => 1,
            None => 2,
        };
        let offset = address - area.map_or(0, |area| self.areas[area].0);
        // An access keeps its place in its line: sizes are multiples of lines.
        let folded = STARTS[which] + offset % SIZES[which];
        Access::from_bits(access.bits() - address + folded)
    }
}

impl<S: Source> Source for Folded<S> {
    fn describe(&self) -> String {
        format!("{}, folded into 6.25 MiB", self.source.describe())
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        let more = self.source.next(batch)?;
        for event in batch.events.drain(..) {
            match event {
                SpaceEvent::Map { start, len } => self.areas.push((start, len)),
                SpaceEvent::Unmap { start, .. } => self.areas.retain(|area| area.0 != start),
            }
        }
        if !std::mem::replace(&mut self.mapped, true) {
            batch.events.extend(
                STARTS.iter().zip(SIZES).map(|(&start, len)| SpaceEvent::Map { start, len }),
            );
        }
        for access in &mut batch.accesses {
            *access = self.fold(*access);
        }
        Ok(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::Bytes;
    use terrace_sim::workload::catalog::{ProgramName, ProgramSpec};

    /// An access outside would fault in pages that the folded program has not.
    #[test]
    fn everything_lies_in_the_two_areas_and_keeps_its_kind() {
        let spec = ProgramSpec::new(ProgramName::Ycsb, Bytes::mib(16), 50_000);
        let mut plain = spec.build().expect("good parameters");
        let mut folded = Folded::new(spec.build().expect("good parameters"));
        let (mut a, mut b) = (Batch::default(), Batch::default());
        while plain.next(&mut a).expect("no input") {
            assert!(folded.next(&mut b).expect("no input"));
            for (one, other) in a.accesses.iter().zip(&b.accesses) {
                let inside =
                    |i: usize| (STARTS[i]..STARTS[i] + SIZES[i]).contains(&other.address());
                assert!(inside(0) || inside(1), "{:x}", other.address());
                assert_eq!(one.is_store(), other.is_store());
                assert_eq!(one.instructions(), other.instructions());
                assert_eq!(one.address() % 64, other.address() % 64);
            }
        }
    }
}
