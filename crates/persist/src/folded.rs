//! A program folded into few megabytes, as Kindle's generated replays do:
//! offsets are taken modulo the size of the array that stands for an area.

use terrace_sim::SimError;
use terrace_sim::exact::{Access, Batch, Source, SpaceEvent};
use terrace_sim::trace::Summary;

/// The folded areas: one for the first area of the program, one for all others,
/// and one for what lies in no area (Kindle: heap 1 of 2 MB, heap 2 of 4 MB, a
/// stack of 256 kB). A recorder is not told of what the loader mapped, which is
/// the first stack, and the executable's own data.
///
/// An area that begins where another ends is part of it: a heap grows piece by
/// piece, and pieces that were folded each from its own start would all lie on
/// top of each other.
const SIZES: [u64; 3] = [2 << 20, 4 << 20, STACK.1];
/// Where they begin.
const STARTS: [u64; 3] = [1 << 32, (1 << 32) + (1 << 30), STACK.0];
/// Start and length of the folded stack.
pub const STACK: (u64, u64) = ((1 << 32) + (2 << 30), 256 << 10);

/// Areas of a recording that are smaller are none of its heaps, but libraries,
/// buffers of the loader, or a heap that has just begun.
const LEAST_HEAP: u64 = 4 << 20;

/// A source whose accesses are folded.
pub struct Folded<S> {
    source: S,
    /// Areas of the program, in the order in which they were mapped: start and
    /// length.
    areas: Vec<(u64, u64)>,
    /// Smaller ones are not the first.
    least: u64,
    /// The first area of at least that length.
    first: Option<usize>,
    /// The area found last: accesses come in runs.
    last: usize,
    mapped: bool,
}

impl<S: Source> Folded<S> {
    /// Folds a source.
    pub fn new(source: S) -> Self {
        Self { source, areas: Vec::new(), least: 0, first: None, last: 0, mapped: false }
    }

    /// The source is a recorded program, which has areas beside its heaps.
    #[must_use]
    pub fn of_recording(self) -> Self {
        Self { least: LEAST_HEAP, ..self }
    }

    fn event(&mut self, event: SpaceEvent) {
        match event {
            SpaceEvent::Map { start, len } => {
                match self.areas.iter_mut().find(|area| area.0 + area.1 == start) {
                    Some(area) => area.1 += len,
                    None => self.areas.push((start, len)),
                }
            }
            SpaceEvent::Unmap { start, len } => {
                let end = start + len;
                for (from, len) in std::mem::take(&mut self.areas) {
                    let to = from + len;
                    let pieces = [(from, to.min(start)), (from.max(end), to)];
                    let kept = pieces.iter().filter(|(from, to)| from < to);
                    self.areas.extend(kept.map(|(from, to)| (*from, to - from)));
                }
            }
        }
        self.first = self.areas.iter().position(|area| area.1 >= self.least);
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
            Some(_) if area == self.first => 0,
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

    fn summary(&self) -> Option<Summary> {
        self.source.summary()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        let more = self.source.next(batch)?;
        for event in std::mem::take(&mut batch.events) {
            self.event(event);
        }
        if !std::mem::replace(&mut self.mapped, true) {
            batch.events.extend(
                STARTS.iter().zip(SIZES).map(|(&start, len)| SpaceEvent::Map { start, len }),
            );
        }
        for access in batch.accesses.iter_mut().filter(|access| access.is_data()) {
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

    /// A source of one batch.
    struct Once(Option<(Vec<SpaceEvent>, Vec<Access>)>);

    impl Source for Once {
        fn describe(&self) -> String {
            "once".into()
        }
        fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
            batch.clear();
            let Some((events, accesses)) = self.0.take() else { return Ok(false) };
            (batch.events, batch.accesses) = (events, accesses);
            Ok(true)
        }
    }

    fn folded(events: Vec<SpaceEvent>, places: &[u64]) -> Vec<u64> {
        let accesses = places.iter().map(|&place| Access::store(place)).collect();
        let mut source = Folded::new(Once(Some((events, accesses)))).of_recording();
        let mut batch = Batch::default();
        assert!(source.next(&mut batch).expect("no input"));
        batch.accesses.iter().map(|access| access.address()).collect()
    }

    /// The heap of `brk` comes in pieces of 132 KiB: a program of 16 MiB would
    /// become one of 132 KiB, which no cache ever misses.
    #[test]
    fn a_heap_that_grows_in_pieces_is_one_area() {
        let (base, piece) = (0x5555_0000_0000u64, 132 << 10);
        let pieces = (0..64).map(|i| SpaceEvent::Map { start: base + i * piece, len: piece });
        let library = SpaceEvent::Map { start: 0x7f00_0000_0000, len: 2 << 20 };
        let events = std::iter::once(library).chain(pieces).collect();
        let places: Vec<u64> = (0..64).map(|i| base + i * piece).collect();

        let folded = folded(events, &places);

        let expected = (0..64).map(|i| STARTS[0] + i * piece % SIZES[0]);
        assert!(folded.iter().copied().eq(expected), "{folded:x?}");
    }

    /// What is left of an area that was unmapped in part keeps being one, and what
    /// is gone does not catch the accesses of what is mapped there next.
    #[test]
    fn an_area_can_be_unmapped_in_part() {
        let base = 0x10_0000_0000u64;
        let events = vec![
            SpaceEvent::Map { start: base, len: 32 << 20 },
            SpaceEvent::Unmap { start: base + (8 << 20), len: 8 << 20 },
        ];

        let folded = folded(events, &[base, base + (8 << 20), base + (16 << 20)]);

        assert_eq!(folded, [STARTS[0], STARTS[2], STARTS[1]]);
    }
}
