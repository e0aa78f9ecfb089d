//! What programs do, as the kernel's memory management sees it.

use terrace_core::Bytes;

use super::space::Section;
use crate::error::SimError;
use crate::exact::{Access, Batch, Source, SpaceEvent};

/// A step of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Memory is mapped.
    Map {
        /// First address.
        start: u64,
        /// How much.
        len: Bytes,
        /// Which section it belongs to.
        section: Section,
    },
    /// Memory is unmapped.
    Unmap {
        /// First address.
        start: u64,
        /// How much.
        len: Bytes,
    },
    /// Huge pages are advised for the area of an address.
    Advise {
        /// The address.
        address: u64,
    },
    /// Each page of a range is stored to, in order.
    Populate {
        /// First address.
        start: u64,
        /// How much.
        len: Bytes,
        /// What the program does meanwhile, in nanoseconds for each base page.
        work: f64,
    },
    /// The accesses in the buffer are made.
    Work {
        /// Instructions that they stand for; `None` for themselves.
        stand_for: Option<f64>,
    },
}

/// One or several programs that run at the same time, each on a core of its own.
pub trait MmProgram {
    /// What it is, in a phrase.
    fn describe(&self) -> String;

    /// How many run.
    fn processes(&self) -> u32 {
        1
    }

    /// The next step of one of them; `None` at its end. Accesses of [`Step::Work`] are put into
    /// the buffer, which is empty before.
    ///
    /// # Errors
    ///
    /// Where a recording cannot be read.
    fn next(&mut self, process: u32, accesses: &mut Vec<Access>) -> Result<Option<Step>, SimError>;
}

/// A recorded program, or an algorithm that is observed: every access once.
///
/// All of its threads run on one core, one after the other; what it touches without having
/// mapped it is mapped around the address.
pub struct Recorded {
    source: Box<dyn Source>,
    batch: Batch,
    pending: Vec<Step>,
    mapped: Vec<(u64, u64)>,
}

/// What an access outside of all mappings brings into being.
const IMPLIED: u64 = 64 << 20;

impl Recorded {
    /// From a trace's reader, or an observed algorithm.
    pub fn new(source: Box<dyn Source>) -> Self {
        Self { source, batch: Batch::default(), pending: Vec::new(), mapped: Vec::new() }
    }

    fn is_mapped(&self, address: u64) -> bool {
        let at = self.mapped.partition_point(|&(start, _)| start <= address);
        at > 0 && address < self.mapped[at - 1].1
    }

    /// Notes a mapping in place of what lay there.
    fn map(&mut self, start: u64, end: u64) {
        self.unmap(start, end);
        let at = self.mapped.partition_point(|&(other, _)| other < start);
        self.mapped.insert(at, (start, end));
    }

    fn unmap(&mut self, start: u64, end: u64) {
        let mut left = Vec::with_capacity(self.mapped.len() + 1);
        for &(from, to) in &self.mapped {
            if to <= start || from >= end {
                left.push((from, to));
                continue;
            }
            if from < start {
                left.push((from, start));
            }
            if to > end {
                left.push((end, to));
            }
        }
        self.mapped = left;
    }
}

impl MmProgram for Recorded {
    fn describe(&self) -> String {
        self.source.describe()
    }

    fn next(
        &mut self,
        _process: u32,
        accesses: &mut Vec<Access>,
    ) -> Result<Option<Step>, SimError> {
        loop {
            if let Some(step) = self.pending.pop() {
                return Ok(Some(step));
            }
            if !self.batch.accesses.is_empty() {
                accesses.append(&mut self.batch.accesses);
                return Ok(Some(Step::Work { stand_for: None }));
            }
            if !self.source.next(&mut self.batch)? {
                return Ok(None);
            }
            let mut steps = Vec::new();
            for event in std::mem::take(&mut self.batch.events) {
                match event {
                    SpaceEvent::Map { start, len } => {
                        let (from, to) = (start & !4095, (start + len).next_multiple_of(4096));
                        self.map(from, to);
                        let len = Bytes(to - from);
                        steps.push(Step::Unmap { start: from, len });
                        steps.push(Step::Map { start: from, len, section: Section::Mmap });
                    }
                    SpaceEvent::Unmap { start, len } => {
                        let (from, to) = (start & !4095, (start + len).next_multiple_of(4096));
                        self.unmap(from, to);
                        steps.push(Step::Unmap { start: from, len: Bytes(to - from) });
                    }
                }
            }
            let mut last = u64::MAX;
            for access in &self.batch.accesses {
                let page = access.address() >> 12;
                if !access.is_data() || page == last {
                    continue;
                }
                last = page;
                if !self.is_mapped(page << 12) {
                    let (mut from, mut to) = ((page << 12) & !(IMPLIED - 1), 0);
                    to += from + IMPLIED;
                    // As much of the neighbourhood as nothing else lies in.
                    for &(start, end) in &self.mapped {
                        if end <= page << 12 {
                            from = from.max(end);
                        } else if start > page << 12 {
                            to = to.min(start);
                        }
                    }
                    let at = self.mapped.partition_point(|&(start, _)| start < from);
                    self.mapped.insert(at, (from, to));
                    let len = Bytes(to - from);
                    steps.push(Step::Map { start: from, len, section: Section::Mmap });
                }
            }
            steps.reverse();
            self.pending = steps;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::{Stream, StreamKind};

    #[test]
    fn what_is_touched_is_mapped_before() {
        let stream = Stream::new(StreamKind::Gups, 10_000, 4 << 20);
        let mut program = Recorded::new(Box::new(stream));
        let mut accesses = Vec::new();
        let mut steps = Vec::new();
        while let Some(step) = program.next(0, &mut accesses).expect("it does not fail") {
            steps.push(step);
            if matches!(step, Step::Work { .. }) {
                assert!(accesses.iter().all(|access| program.is_mapped(access.address())));
                accesses.clear();
            }
        }
        assert!(matches!(steps[1], Step::Map { len, .. } if len == Bytes::mib(4)));
        assert!(matches!(steps[2], Step::Work { stand_for: None }));
    }

    #[test]
    fn a_hole_in_what_is_mapped_is_filled_and_no_more() {
        struct Two(u32);
        impl Source for Two {
            fn describe(&self) -> String {
                "two".into()
            }
            fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
                batch.clear();
                self.0 += 1;
                if self.0 == 1 {
                    batch.events.push(SpaceEvent::Map { start: 0x40_0000, len: 0x1000 });
                }
                batch.accesses.push(Access::load(0x40_2000));
                Ok(self.0 < 3)
            }
        }
        let mut program = Recorded::new(Box::new(Two(0)));
        let mut accesses = Vec::new();
        let mut maps = Vec::new();
        while let Some(step) = program.next(0, &mut accesses).expect("it does not fail") {
            accesses.clear();
            if let Step::Map { start, .. } = step {
                maps.push(start);
            }
        }
        assert_eq!(maps, [0x40_0000, 0x40_1000]);
    }
}
