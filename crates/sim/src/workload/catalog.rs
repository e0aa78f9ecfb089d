//! Observed algorithms by name, with the parameters that a command line gives.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};
use terrace_core::Bytes;

use super::bfs::Bfs;
use super::btree::BTree;
use super::chase::Chase;
use super::observed::{Kernel, Observer, Program};
use super::pagerank::PageRank;
use super::sssp::Sssp;
use super::stream::Streams;
use super::updates::{Pattern, Updates};
use super::xsbench::XsBench;
use super::ycsb::Ycsb;
use crate::error::SimError;
use crate::host::has_room;
use crate::machines::MOST_MEMORY;

/// An observed algorithm's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProgramName {
    /// [`Pattern::HotSet`]
    Gups,
    /// [`Pattern::Shifting`]
    GupsShifting,
    /// [`Pattern::Warm`]
    GupsWarm,
    /// [`Pattern::Sparse`]
    GupsSparse,
    /// [`Chase`]
    Chase,
    /// [`Streams`]
    Stream,
    /// [`PageRank`]
    PageRank,
    /// [`Sssp`]
    Sssp,
    /// [`Ycsb`]
    Ycsb,
    /// [`Bfs`]
    Bfs,
    /// [`BTree`]
    BTree,
    /// [`XsBench`]
    XsBench,
}

impl ProgramName {
    /// Every algorithm.
    pub const ALL: [Self; 12] = [
        Self::Gups,
        Self::GupsShifting,
        Self::GupsWarm,
        Self::GupsSparse,
        Self::Chase,
        Self::Stream,
        Self::PageRank,
        Self::Sssp,
        Self::Ycsb,
        Self::Bfs,
        Self::BTree,
        Self::XsBench,
    ];

    /// Whether a part of its memory is used more than the rest: whether `hot` and `hot-percent` say
    /// anything.
    pub const fn has_hot_set(self) -> bool {
        matches!(self, Self::Gups | Self::GupsShifting | Self::GupsWarm | Self::GupsSparse)
    }

    /// Whether anything in it is drawn at random: whether `seed` says anything.
    pub const fn draws(self) -> bool {
        !matches!(self, Self::Stream)
    }

    /// How much of the memory of the machine that simulates its data take, about.
    fn data(self, size: Bytes) -> Bytes {
        match self {
            // What is read decides nothing, so that the memory has no content.
            Self::Gups | Self::GupsShifting | Self::GupsWarm | Self::GupsSparse | Self::Stream => {
                Bytes::ZERO
            }
            // Four bytes for each line, and no more of them than those can number.
            Self::Chase => (size / 16).min(Bytes::gib(16)),
            // Energies alone, and each twice: the rest of a grid has no content.
            Self::XsBench => size / 20,
            _ => size,
        }
    }

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gups => "gups",
            Self::GupsShifting => "gups-shifting",
            Self::GupsWarm => "gups-warm",
            Self::GupsSparse => "gups-sparse",
            Self::Chase => "chase",
            Self::Stream => "stream",
            Self::PageRank => "pagerank",
            Self::Sssp => "sssp",
            Self::Ycsb => "ycsb",
            Self::Bfs => "bfs",
            Self::BTree => "btree",
            Self::XsBench => "xsbench",
        }
    }
}

impl fmt::Display for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for ProgramName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for ProgramName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl FromStr for ProgramName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|name| name.name() == text).ok_or_else(|| {
            let names: Vec<String> = Self::ALL.iter().map(|name| format!("`{name}`")).collect();
            format!("`{text}` is not a program (there are {})", names.join(", "))
        })
    }
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProgramSpec {
    /// Which algorithm.
    pub name: ProgramName,
    /// About how much memory it uses.
    pub size: Bytes,
    /// The part of it that is used most, where the algorithm has one; a tenth if
    /// not given.
    pub hot: Option<Bytes>,
    /// Share of the updates that go there, in percent.
    pub hot_percent: u64,
    /// Accesses after initialisation.
    pub accesses: u64,
    /// Where its randomness comes from.
    pub seed: u64,
    /// Threads that divide the work; the accesses are those of all together.
    pub threads: usize,
}

impl ProgramSpec {
    /// An algorithm in so much memory, with 90 % of the updates in a tenth of it.
    pub fn new(name: ProgramName, size: Bytes, accesses: u64) -> Self {
        Self { name, size, hot: None, hot_percent: 90, accesses, seed: 1, threads: 1 }
    }

    /// Parameters of algorithms with a hot set.
    pub const OF_HOT_SET: [&str; 2] = ["hot", "hot-percent"];
    /// Parameters that [`ProgramSpec::set`] knows.
    pub const PARAMETERS: [&str; 5] = ["size", "accesses", "hot", "hot-percent", "seed"];

    /// Sets a parameter by name, from text.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SimError> {
        let number = |parameter| {
            let bad = |_| {
                SimError::parameter(
                    parameter,
                    format!("`{value}` is not a whole number, 0 or more"),
                )
            };
            value.parse::<u64>().map_err(bad)
        };
        let bytes = |parameter| {
            let bad = |e| SimError::parameter(parameter, format!("{e}"));
            value.parse::<Bytes>().map_err(bad)
        };
        match name {
            "size" => self.size = bytes("size")?,
            "accesses" => self.accesses = number("accesses")?,
            "hot" => self.hot = Some(bytes("hot")?),
            "hot-percent" => self.hot_percent = number("hot-percent")?,
            "seed" => self.seed = number("seed")?,
            _ => {
                let known = Self::PARAMETERS.join(", ");
                let message = format!("`{name}` is no parameter of a program (there are {known})");
                return Err(SimError::parameter("set", message));
            }
        }
        Ok(())
    }

    /// What is wrong with it.
    pub fn check(&self) -> Result<(), SimError> {
        if self.size < Bytes::mib(1) {
            return Err(SimError::parameter("size", "must be at least 1 MiB"));
        }
        if self.size >= MOST_MEMORY {
            let message =
                format!("must be less than {MOST_MEMORY}, which no simulated machine holds");
            return Err(SimError::parameter("size", message));
        }
        if self.accesses == 0 {
            return Err(SimError::parameter("accesses", "must be above zero"));
        }
        if self.hot_percent > 100 {
            return Err(SimError::parameter("hot-percent", "must be at most 100"));
        }
        if self.threads == 0 {
            return Err(SimError::parameter("threads", "must be above zero"));
        }
        let hot = self.hot_bytes();
        if hot > self.size || hot.is_zero() {
            return Err(SimError::parameter("hot", "must be above zero and within the memory"));
        }
        Ok(())
    }

    fn hot_bytes(&self) -> Bytes {
        self.hot.unwrap_or(self.size / 10)
    }

    /// The program, set up and not begun.
    pub fn build(&self) -> Result<Program, SimError> {
        self.check()?;
        has_room("size", self.name.data(self.size), "the algorithm's data")?;
        let hot = self.hot_bytes();
        let (size, seed, threads) = (self.size, self.seed, self.threads);
        let mut observer = Observer::default();
        let updates = |pattern, observer: &mut Observer| -> Box<dyn Kernel> {
            let percent = self.hot_percent;
            Box::new(Updates::new(pattern, size, hot, percent, (seed, threads), observer))
        };
        let kernel: Box<dyn Kernel> = match self.name {
            ProgramName::Gups => updates(Pattern::HotSet, &mut observer),
            // Eight moves in the whole run.
            ProgramName::GupsShifting => {
                let every = (self.accesses / 2 / 9).max(1);
                updates(Pattern::Shifting { every }, &mut observer)
            }
            ProgramName::GupsWarm => updates(Pattern::Warm, &mut observer),
            ProgramName::GupsSparse => updates(Pattern::Sparse, &mut observer),
            ProgramName::Chase => Box::new(Chase::new(size, seed, threads, &mut observer)),
            ProgramName::Stream => Box::new(Streams::new(size, threads, &mut observer)),
            ProgramName::PageRank => Box::new(PageRank::new(size, seed, threads, &mut observer)),
            ProgramName::Sssp => Box::new(Sssp::new(size, seed, threads, &mut observer)),
            ProgramName::Ycsb => Box::new(Ycsb::new(size, seed, threads, &mut observer)),
            ProgramName::Bfs => Box::new(Bfs::new(size, seed, threads, &mut observer)),
            ProgramName::BTree => Box::new(BTree::new(size, seed, threads, &mut observer)),
            ProgramName::XsBench => Box::new(XsBench::new(size, seed, threads, &mut observer)),
        };
        Ok(Program::new(kernel, observer, self.accesses))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::{Batch, Source, SpaceEvent};

    fn every_access(spec: &ProgramSpec, mut see: impl FnMut(&[SpaceEvent], &crate::exact::Access)) {
        let mut program = spec.build().expect("good parameters");
        let mut batch = Batch::default();
        let mut maps = Vec::new();
        while program.next(&mut batch).expect("no input") {
            maps.extend_from_slice(&batch.events);
            for access in &batch.accesses {
                see(&maps, access);
            }
        }
    }

    /// Accesses of each thread, after initialisation.
    fn by_thread(spec: &ProgramSpec) -> Vec<Vec<u64>> {
        let mut program = spec.build().expect("good parameters");
        let (mut batch, mut left) = (Batch::default(), program.initial() as usize);
        let mut threads = vec![Vec::new(); spec.threads];
        while program.next(&mut batch).expect("no input") {
            let initial = left.min(batch.accesses.len());
            left -= initial;
            let accesses = batch.accesses[initial..].iter().map(|access| access.address());
            threads[batch.thread as usize].extend(accesses);
        }
        threads
    }

    /// A number of cores that changes nothing would be taken for a machine that does
    /// not scale.
    #[test]
    fn every_program_is_divided_over_threads() {
        for name in ProgramName::ALL {
            let spec = ProgramSpec { threads: 4, ..ProgramSpec::new(name, Bytes::mib(8), 400_000) };
            let threads = by_thread(&spec);
            let all: usize = threads.iter().map(Vec::len).sum();
            assert!(all >= 400_000, "{name}: {all} accesses");
            for (i, one) in threads.iter().enumerate() {
                let share = one.len() as f64 / all as f64;
                assert!((0.1..0.45).contains(&share), "{name}: thread {i} has {share} of it");
                let other = &threads[(i + 1) % 4];
                assert_ne!(one[..one.len().min(999)], other[..other.len().min(999)], "{name}");
            }
        }
    }

    /// An access outside would be mapped by the simulator, and nobody would see
    /// that the algorithm computes wrong addresses.
    #[test]
    fn every_program_stays_in_its_memory_uses_about_what_it_was_given_and_repeats() {
        for name in ProgramName::ALL {
            let spec = ProgramSpec::new(name, Bytes::mib(8), 200_000);
            let (mut first, mut count, mut mapped) = (0u64, 0u64, 0);
            every_access(&spec, |maps, access| {
                let inside = maps.iter().any(|event| {
                    let SpaceEvent::Map { start, len } = *event else { return false };
                    (start..start + len).contains(&access.address())
                });
                assert!(inside, "{name}: {:x} is outside", access.address());
                first = first.rotate_left(5) ^ access.bits();
                count += 1;
                mapped = maps.iter().fold(0, |sum, event| match event {
                    SpaceEvent::Map { len, .. } => sum + len,
                    SpaceEvent::Unmap { .. } => sum,
                });
            });
            let share = mapped as f64 / spec.size.as_f64();
            assert!((0.5..1.3).contains(&share), "{name}: {share} of what it was given");
            assert!(count >= 200_000, "{name}: {count} accesses");
            let mut again = 0u64;
            every_access(&spec, |_, access| again = again.rotate_left(5) ^ access.bits());
            assert_eq!(first, again, "{name} does not repeat");
        }
    }

    #[test]
    fn a_seed_changes_the_accesses_of_a_program_that_draws_and_of_no_other() {
        for name in ProgramName::ALL {
            let hash = |seed| {
                let spec = ProgramSpec { seed, ..ProgramSpec::new(name, Bytes::mib(4), 400_000) };
                let mut hash = 0u64;
                every_access(&spec, |_, access| hash = hash.rotate_left(5) ^ access.bits());
                hash
            };
            assert_eq!(hash(1) != hash(2), name.draws(), "{name}");
        }
    }

    #[test]
    fn parameters_that_make_no_sense_are_refused_by_name() {
        let spec = ProgramSpec::new(ProgramName::Gups, Bytes::mib(8), 1000);
        let error = |spec: ProgramSpec| spec.build().err().expect("refused").to_string();
        assert!(error(ProgramSpec { hot: Some(Bytes::mib(9)), ..spec.clone() }).contains("hot"));
        assert!(error(ProgramSpec { accesses: 0, ..spec.clone() }).contains("accesses"));
        assert!(error(ProgramSpec { size: Bytes(5), ..spec.clone() }).contains("size"));
        for name in ProgramName::ALL {
            for size in [MOST_MEMORY, Bytes(u64::MAX)] {
                let error = error(ProgramSpec { name, size, ..spec.clone() });
                assert!(error.starts_with("size: must be less than 16"), "{name}: {error}");
            }
        }
    }
}
