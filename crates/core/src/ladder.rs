//! Ladder files: which memories of this machine form the tiers of a running
//! program, and how fast pages may move between them.
//!
//! ```toml
//! ladder = 1                # the version of this format
//!
//! [migration]
//! limit = "1GiB/s"
//!
//! [[tier]]                  # the fastest first
//! memory = "numa:0"
//! capacity = "4GiB"         # what the program may use of it
//!
//! [[tier]]
//! memory = "numa:1"
//!
//! [[tier]]
//! memory = "dax:dax0.0"     # a device that is the kernel's memory, by its name
//!
//! [[tier]]
//! memory = "swap"           # cold pages are given to the kernel's swap
//! ```

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use crate::by_kernel::{ByKernel, LadderEngine};
use crate::compressing::Compressing;
use crate::dax::{DaxDevice, ParseDaxError};
use crate::machine::{MachineError, Scalar, Value, field_at, find_field};
use crate::parse::{ParseUnitError, without_byte_order_mark};
use crate::telemetry::MAX_TIERS;
use crate::units::{Bytes, BytesPerSecond, Nanos};

/// A memory of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(into = "String")]
pub enum Memory {
    /// A NUMA node, by its number: DRAM or CXL.
    Numa(u32),
    /// The node that a DAX device became when it was handed to the kernel as memory.
    Dax(DaxDevice),
    /// The kernel's swap: zram, zswap, a partition, a file.
    Swap,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numa(node) => write!(f, "numa:{node}"),
            Self::Dax(device) => write!(f, "dax:{device}"),
            Self::Swap => f.write_str("swap"),
        }
    }
}

impl Memory {
    /// Whether pages stay mapped in it.
    pub const fn is_addressable(self) -> bool {
        !matches!(self, Self::Swap)
    }
}

/// Where the pages of a tier lie, once it is known which node a DAX device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In a NUMA node's memory.
    Node(u32),
    /// In the kernel's swap.
    Swap,
}

impl From<Memory> for String {
    fn from(memory: Memory) -> Self {
        memory.to_string()
    }
}

/// A text that is no memory, or no tier.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ParseTierError {
    /// Not a memory.
    #[error(
        "`{0}` is not a memory (there are `numa:N`, for instance `numa:0`, `dax:DEVICE` and `swap`)"
    )]
    Memory(String),
    /// Not a DAX device.
    #[error(transparent)]
    Dax(#[from] ParseDaxError),
    /// The capacity is not an amount.
    #[error("capacity: {0}")]
    Capacity(#[from] ParseUnitError),
}

impl FromStr for Memory {
    type Err = ParseTierError;
    fn from_str(text: &str) -> Result<Self, ParseTierError> {
        if text == "swap" {
            return Ok(Self::Swap);
        }
        if let Some(device) = text.strip_prefix("dax:") {
            return Ok(Self::Dax(device.parse()?));
        }
        text.strip_prefix("numa:")
            // `parse` alone would take `+1`.
            .filter(|number| number.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|number| number.parse().ok())
            .map(Self::Numa)
            .ok_or_else(|| ParseTierError::Memory(text.to_owned()))
    }
}

/// One rung of a ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LadderTier {
    /// Which memory.
    pub memory: Memory,
    /// What the program may use of it; `None` for what the memory has.
    pub capacity: Option<Bytes>,
    /// Idle latency of a load; `None` for what the firmware says.
    pub read_latency: Option<Nanos>,
    /// Idle latency of a store; `None` for what the firmware says.
    pub write_latency: Option<Nanos>,
}

impl LadderTier {
    /// A memory without limits of its own.
    pub const fn new(memory: Memory) -> Self {
        Self { memory, capacity: None, read_latency: None, write_latency: None }
    }
}

/// `numa:0`, or with a capacity `numa:0=4GiB`.
impl FromStr for LadderTier {
    type Err = ParseTierError;
    fn from_str(text: &str) -> Result<Self, ParseTierError> {
        let (memory, capacity) = match text.split_once('=') {
            Some((memory, capacity)) => (memory, Some(capacity.parse()?)),
            None => (text, None),
        };
        Ok(Self { capacity, ..Self::new(memory.parse()?) })
    }
}

/// Bounds on the traffic between tiers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Migration {
    /// Bytes moved a second, in all directions together.
    pub limit: BytesPerSecond,
    /// Pages that one system call moves at most. Readers of a page wait while
    /// it is moved, so a batch bounds how long the others wait for the shared
    /// lock on the mappings.
    pub batch: u32,
    /// Threads that move pages at once, at most; `None` for a quarter of the processors, four
    /// at most. More than one work only while that pays.
    pub threads: Option<u32>,
}

/// [`Migration::threads`] beyond this is a mistake.
const MOST_THREADS: u32 = 64;

impl Default for Migration {
    /// 1 GiB/s: a tenth of one memory channel. 512 base pages: what one huge
    /// page has.
    fn default() -> Self {
        Self { limit: BytesPerSecond((1u64 << 30) as f64), batch: 512, threads: None }
    }
}

/// Why memories are no tiers of one program.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct NoLadder {
    /// The tier that is wrong, if it is one.
    pub tier: Option<usize>,
    /// What is wrong with it.
    pub message: String,
}

/// The tiers of a running program, fastest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ladder {
    /// The tiers.
    pub tiers: Vec<LadderTier>,
    /// Bounds on the traffic between them.
    pub migration: Migration,
}

impl Ladder {
    /// The only version of the format.
    pub const VERSION: u32 = 1;

    /// A ladder of these tiers, if they make one.
    pub fn new(tiers: Vec<LadderTier>) -> Result<Self, NoLadder> {
        let ladder = Self { tiers, migration: Migration::default() };
        ladder.validate().map(|()| ladder).map_err(|(field, message)| {
            let (number, name) = match field.strip_prefix("tier[").map(|rest| rest.split_once("]."))
            {
                Some(Some((number, name))) => (number.parse().ok(), name),
                _ => (None, ""),
            };
            let message =
                if name == "capacity" { format!("its capacity {message}") } else { message };
            NoLadder { tier: number, message }
        })
    }

    /// Reads the text of a ladder file whose memories hold pages that stay mapped.
    /// `file` is only used in errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, MachineError> {
        match LadderFile::parse(file, text)? {
            LadderFile::InPlace(ladder) => Ok(ladder),
            LadderFile::ByKernel(_) => {
                let message = "the kernel serves the faults of these tiers; here pages stay mapped, \
                               in memories such as `numa:0`";
                Err(invalid(file, text, ("engine".to_owned(), message.to_owned())))
            }
            LadderFile::Compressing(ladder) => {
                let field = format!("tier[{}].memory", ladder.compressed());
                let message = "pages are compressed by `terrace run --tiers` only; here they stay \
                               mapped, in memories such as `numa:0`";
                Err(invalid(file, text, (field, message.to_owned())))
            }
        }
    }

    /// Checks what the types cannot: returns the field and what is wrong with it.
    fn validate(&self) -> Result<(), Invalid> {
        let bad = |field: String, message: &str| Err((field, message.to_owned()));
        if self.tiers.len() < 2 || self.tiers.len() > MAX_TIERS {
            return bad("tier".into(), "a ladder has two to eight tiers");
        }
        for (i, tier) in self.tiers.iter().enumerate() {
            let field = |name: &str| format!("tier[{i}].{name}");
            if self.tiers[..i].iter().any(|other| other.memory == tier.memory) {
                return bad(field("memory"), "another tier is this memory");
            }
            if tier.memory == Memory::Swap && i + 1 != self.tiers.len() {
                return bad(field("memory"), "swap can only be the slowest tier");
            }
            if tier.memory == Memory::Swap && i == 0 {
                return bad(field("memory"), "the fastest tier must be byte-addressable");
            }
            if tier.capacity.is_some_and(Bytes::is_zero) {
                return bad(field("capacity"), "must be above zero");
            }
            for (latency, name) in
                [(tier.read_latency, "read-latency"), (tier.write_latency, "write-latency")]
            {
                if latency.is_some_and(Nanos::is_zero) {
                    return bad(field(name), "must be above zero");
                }
            }
        }
        // Written so that a rate that is no number is refused as well.
        if !(self.migration.limit.get() > 0.0 && self.migration.limit.get().is_finite()) {
            return bad("migration.limit".into(), "must be above zero");
        }
        if self.migration.batch == 0 {
            return bad("migration.batch".into(), "must be at least 1");
        }
        if self.migration.threads.is_some_and(|threads| !(1..=MOST_THREADS).contains(&threads)) {
            return bad("migration.threads".into(), "must be 1 to 64");
        }
        Ok(())
    }

    /// Where each tier's pages lie. `node_of` finds the node that a DAX device is; its first
    /// error is ours.
    pub fn homes<E>(
        &self,
        mut node_of: impl FnMut(DaxDevice) -> Result<u32, E>,
    ) -> Result<Vec<Home>, E> {
        let home = |tier: &LadderTier| match tier.memory {
            Memory::Numa(node) => Ok(Home::Node(node)),
            Memory::Dax(device) => node_of(device).map(Home::Node),
            Memory::Swap => Ok(Home::Swap),
        };
        self.tiers.iter().map(home).collect()
    }

    /// Whether a text is meant as a ladder file, valid or not.
    pub fn is_meant(text: &str) -> bool {
        // Its version may be missing: no other file of ours has memories.
        without_byte_order_mark(text).lines().map(str::trim).any(|line| {
            ["ladder", "memory"].iter().any(|key| {
                line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
            })
        })
    }
}

/// A field, and what is wrong with it.
pub(crate) type Invalid = (String, String);

/// That, at the field's line.
fn invalid(file: &str, text: &str, (field, message): Invalid) -> MachineError {
    let offset = find_field(text, &field).unwrap_or(0);
    let line = line_at(text, offset);
    MachineError { file: file.to_owned(), line, field: Some(field), message }
}

fn line_at(text: &str, offset: usize) -> usize {
    text.char_indices().filter(|&(i, c)| i < offset && c == '\n').count() + 1
}

/// What a ladder file may be about.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum LadderFile {
    /// Memories in which pages stay mapped.
    InPlace(Ladder),
    /// DRAM, compressed RAM and a file.
    Compressing(Compressing),
    /// DRAM and swap, between which the kernel moves pages.
    ByKernel(ByKernel),
}

impl LadderFile {
    /// Reads a ladder file's text. `file` is only used in errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, MachineError> {
        let text = without_byte_order_mark(text);
        let written: WrittenLadder = toml::from_str(text).map_err(|e| {
            let line = line_at(text, e.span().map_or(text.len(), |span| span.start));
            let (field, message) = (field_at(text, line), e.message().trim().replace('\n', " "));
            MachineError { file: file.to_owned(), line, field, message }
        })?;
        written.understand().map_err(|what| invalid(file, text, what))
    }

    /// The tiers' names, fastest first.
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::InPlace(ladder) => ladder.tiers.iter().map(|t| t.memory.to_string()).collect(),
            Self::Compressing(ladder) => ladder.names(),
            Self::ByKernel(_) => vec!["dram".to_owned(), "swap".to_owned()],
        }
    }
}

/// A ladder file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct WrittenLadder {
    #[serde(default)]
    ladder: Optional<u32>,
    #[serde(default)]
    pub(crate) engine: Optional<LadderEngine>,
    #[serde(default)]
    pub(crate) migration: WrittenMigration,
    #[serde(default, rename = "tier")]
    pub(crate) tiers: Vec<WrittenTier>,
}

impl WrittenLadder {
    /// Refuses what bounds moves, for ladders whose pages come back when they are touched.
    pub(crate) fn refuse_migration(&self) -> Result<(), Invalid> {
        for (given, name) in [
            (self.migration.limit.0.is_some(), "migration.limit"),
            (self.migration.batch.0.is_some(), "migration.batch"),
            (self.migration.threads.0.is_some(), "migration.threads"),
        ] {
            if given {
                let what = "pages come back when they are touched, which cannot be limited";
                return Err((name.to_owned(), what.to_owned()));
            }
        }
        Ok(())
    }

    fn understand(&self) -> Result<LadderFile, Invalid> {
        match self.ladder.0 {
            Some(Ladder::VERSION) => {}
            None => {
                let what = "a ladder file begins with the line `ladder = 1`, which is missing";
                return Err(("ladder".to_owned(), what.to_owned()));
            }
            Some(version) => {
                let what = format!("is {version}; this version of Terrace reads ladder 1 only");
                return Err(("ladder".to_owned(), what));
            }
        }
        let engine = self.engine.0;
        if engine == Some(LadderEngine::Kernel) {
            return ByKernel::of(self).map(LadderFile::ByKernel);
        }
        if self.tiers.iter().any(|tier| !matches!(tier.memory.0, Named::InPlace(_))) {
            return Compressing::of(self).map(LadderFile::Compressing);
        }
        if engine.is_some() {
            let what = "no engine serves faults where pages stay mapped";
            return Err(("engine".to_owned(), what.to_owned()));
        }
        self.in_place(self.tiers.len()).map(LadderFile::InPlace)
    }

    /// The first so many tiers, whose pages stay mapped.
    pub(crate) fn in_place(&self, tiers: usize) -> Result<Ladder, Invalid> {
        let mut ladder = Vec::with_capacity(tiers);
        for (i, tier) in self.tiers[..tiers].iter().enumerate() {
            let Named::InPlace(memory) = tier.memory.0 else {
                return Err((format!("tier[{i}].memory"), "pages do not stay mapped".to_owned()));
            };
            if tier.path.is_some() {
                let what = "only a `file` or `dax` has one".to_owned();
                return Err((format!("tier[{i}].path"), what));
            }
            ladder.push(LadderTier {
                memory,
                capacity: tier.capacity.0,
                read_latency: tier.read_latency.0,
                write_latency: tier.write_latency.0,
            });
        }
        let defaults = Migration::default();
        let migration = Migration {
            limit: self.migration.limit.0.unwrap_or(defaults.limit),
            batch: self.migration.batch.0.unwrap_or(defaults.batch),
            threads: self.migration.threads.0,
        };
        let ladder = Ladder { tiers: ladder, migration };
        ladder.validate().map(|()| ladder)
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct WrittenMigration {
    pub(crate) limit: Optional<BytesPerSecond>,
    pub(crate) batch: Optional<u32>,
    pub(crate) threads: Optional<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct WrittenTier {
    pub(crate) memory: Value<Named>,
    #[serde(default)]
    pub(crate) capacity: Optional<Bytes>,
    #[serde(default)]
    pub(crate) read_latency: Optional<Nanos>,
    #[serde(default)]
    pub(crate) write_latency: Optional<Nanos>,
    #[serde(default)]
    pub(crate) path: Option<String>,
}

/// A quantity that may be left out.
pub(crate) struct Optional<T>(pub(crate) Option<T>);

impl<T> Default for Optional<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Scalar> Deserialize<'de> for Optional<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::<T>::deserialize(deserializer).map(|value| Self(Some(value.0)))
    }
}

/// A memory that a file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// One in which pages stay mapped.
    InPlace(Memory),
    Dram,
    Compressed,
    File,
    Dax,
}

impl Named {
    pub(crate) fn is_node(self) -> bool {
        matches!(self, Self::InPlace(memory) if memory.is_addressable())
    }
}

impl Scalar for Named {
    const EXPECTED: &'static str = "a memory such as \"numa:0\"";
    fn from_text(text: &str) -> Result<Self, String> {
        Ok(match text {
            "dram" => Self::Dram,
            "compressed" => Self::Compressed,
            "file" => Self::File,
            "dax" => Self::Dax,
            _ => Self::InPlace(text.parse().map_err(|what| match what {
                ParseTierError::Dax(what) => what.to_string(),
                _ => format!(
                    "`{text}` is not a memory (there are `numa:N`, `dax:DEVICE` and `swap`, or \
                     `dram`, `compressed`, `file` and `dax`)"
                ),
            })?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "ladder = 1\n\n[migration]\nlimit = \"200MB/s\"\n\n[[tier]]\nmemory = \
                        \"numa:0\"\ncapacity = \"4GiB\"\n\n[[tier]]\nmemory = \"numa:1\"\n\
                        read-latency = \"250ns\"\n\n[[tier]]\nmemory = \"swap\"\n";

    #[test]
    fn a_file_says_what_the_tiers_are() {
        let ladder = Ladder::parse("tiers.toml", GOOD).expect("a good file");

        assert_eq!(ladder.migration.limit, BytesPerSecond(200e6));
        assert_eq!(ladder.migration.batch, 512, "what is left out has its default");
        assert_eq!(ladder.migration.threads, None);
        let two = GOOD.replace("limit = \"200MB/s\"", "threads = 2");
        let two = Ladder::parse("tiers.toml", &two).expect("a good file");
        assert_eq!(two.migration.threads, Some(2));
        let memories: Vec<_> = ladder.tiers.iter().map(|tier| tier.memory).collect();
        assert_eq!(memories, [Memory::Numa(0), Memory::Numa(1), Memory::Swap]);
        assert_eq!(ladder.tiers[0].capacity, Some(Bytes::gib(4)));
        assert_eq!(ladder.tiers[1].read_latency, Some(Nanos(250)));
    }

    /// A key that is silently ignored is a limit that the operator believes in
    /// and that nobody keeps.
    #[test]
    fn what_is_wrong_is_named_with_its_line_and_field() {
        for (from, to, line, field) in [
            ("capacity", "capcity", 8, "tier[0].capcity"),
            ("\"4GiB\"", "\"4\"", 8, "tier[0].capacity"),
            ("\"4GiB\"", "4", 8, "tier[0].capacity"),
            ("\"4GiB\"", "\"0\"", 8, "tier[0].capacity"),
            ("numa:1", "numa:0", 11, "tier[1].memory"),
            ("numa:1", "node1", 11, "tier[1].memory"),
            ("numa:1", "numa:+1", 11, "tier[1].memory"),
            ("numa:1", "dax:1", 11, "tier[1].memory"),
            ("numa:0", "swap", 7, "tier[0].memory"),
            ("200MB/s", "0B/s", 4, "migration.limit"),
            ("limit = \"200MB/s\"", "threads = 0", 4, "migration.threads"),
            ("limit = \"200MB/s\"", "threads = 65", 4, "migration.threads"),
            ("limit = \"200MB/s\"", "threads = \"two\"", 4, "migration.threads"),
            ("ladder = 1", "ladder = 2", 1, "ladder"),
        ] {
            let error = Ladder::parse("tiers.toml", &GOOD.replace(from, to))
                .expect_err(&format!("{from} -> {to} was accepted"));
            assert_eq!((error.line, error.field.as_deref()), (line, Some(field)), "{error}");
        }
    }

    #[test]
    fn a_dax_device_is_a_memory_whose_node_is_found_later() {
        let named = GOOD.replace("numa:1", "dax:/dev/dax1.0");
        let ladder = Ladder::parse("tiers.toml", &named).expect("a good file");
        let device = DaxDevice { region: 1, instance: 0 };

        let homes = ladder.homes(|asked| if asked == device { Ok(2) } else { Err("another") });

        assert_eq!(ladder.tiers[1].memory.to_string(), "dax:dax1.0", "one name, however written");
        assert_eq!(homes, Ok(vec![Home::Node(0), Home::Node(2), Home::Swap]));
        assert_eq!(ladder.homes(|_| Err::<u32, _>("none")), Err("none"));
    }

    #[test]
    fn one_tier_is_no_ladder() {
        let fast: LadderTier = "numa:0=64MiB".parse().expect("a tier");
        assert_eq!(fast.capacity, Some(Bytes::mib(64)));
        assert!(Ladder::new(vec![fast]).is_err());
        assert!(Ladder::new(vec![fast, LadderTier::new(Memory::Numa(1))]).is_ok());
        assert!("numa:0=64".parse::<LadderTier>().is_err(), "an amount needs a unit");
        let slow: LadderTier = "dax:dax0.0=1GiB".parse().expect("a tier");
        assert_eq!(slow.capacity, Some(Bytes::gib(1)));
    }

    #[test]
    fn a_ladder_is_told_from_a_machine_file() {
        assert!(Ladder::is_meant(GOOD));
        assert!(Ladder::is_meant("# mine\nladder=1"));
        assert!(!Ladder::is_meant("schema = 1\n[[tier]]\n"));
    }
}
