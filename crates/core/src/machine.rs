//! Machine files: TOML that describes processors, tiers and what the
//! operating system's mechanisms cost, with the source of every number.
//!
//! ```toml
//! schema = 1
//! name = "two-tier"
//! description = "an example"
//!
//! [cpu]
//! cores = { value = 24, source = "HeMem §3" }
//! clock = { value = "2.2GHz", source = "HeMem §3" }
//! # …
//! ```
//!
//! Unknown keys are fatal: a misspelt parameter that is silently replaced by a
//! default gives results that look right.

use core::fmt;
use core::marker::PhantomData;
use core::str::FromStr;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::detail::Detail;
use crate::dram_cache::DramCache;
use crate::numa::{Numa, Power};
use crate::parse::without_byte_order_mark;
use crate::tier::{TierKind, TierSpec};
use crate::units::{Bytes, BytesPerSecond, Cycles, Frequency, Nanos};

/// A number together with where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sourced<T> {
    /// The number.
    pub value: T,
    /// Where it comes from: a paper's section, a datasheet, a measurement's command.
    pub source: String,
}

/// A machine, as described by its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Machine {
    /// Version of the file format; 1.
    pub schema: u32,
    /// What the machine is called.
    pub name: String,
    /// What it is, in a sentence.
    pub description: String,
    /// Its processors.
    pub cpu: Cpu,
    /// Its memories, fastest first.
    #[serde(rename = "tier")]
    pub tiers: Vec<TierFile>,
    /// What the operating system's mechanisms cost on it.
    pub costs: Costs,
    /// Cores, caches and TLBs in detail; the exact engine needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Detail>,
    /// Several sockets, and slow memory that can be hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<Numa>,
    /// Two sockets whose memory lies behind caches of DRAM (Memory Mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dram_cache: Option<DramCache>,
    /// What the machine draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Power>,
}

/// Processors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cpu {
    /// Cores that programs may use.
    pub cores: Sourced<u32>,
    /// Nominal clock: the cycles in which actions are priced.
    pub clock: Sourced<Frequency>,
    /// Last-level cache, shared.
    pub llc: Sourced<Bytes>,
    /// Last-level cache hit latency.
    pub llc_latency: Sourced<Nanos>,
    /// Memory accesses one core keeps in flight when they do not depend on each other.
    pub miss_slots: Sourced<f64>,
}

/// A tier's part of a machine file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TierFile {
    /// What the tier is called.
    pub name: String,
    /// How it is reached.
    pub kind: TierKind,
    /// What it holds.
    pub capacity: Sourced<Bytes>,
    /// Idle latency of a random load.
    pub read_latency: Sourced<Nanos>,
    /// Idle latency of a random store that has to reach the device.
    pub write_latency: Sourced<Nanos>,
    /// Peak read bandwidth.
    pub read_bandwidth: Sourced<BytesPerSecond>,
    /// Peak write bandwidth.
    pub write_bandwidth: Sourced<BytesPerSecond>,
    /// Peak of reads and writes together, for a device whose directions do not
    /// share one bus (a CXL link). Without it reads and writes take turns: each
    /// uses its share of the device's time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub combined_bandwidth: Option<Sourced<BytesPerSecond>>,
    /// Smallest amount the device moves.
    pub granularity: Sourced<Bytes>,
    /// Share of the peak bandwidth, 0 to 1, above which latency grows with load.
    pub load_knee: Sourced<f64>,
    /// A memory file: the name of one that comes with Terrace, or a path beside the machine
    /// file. Runs of single accesses then time each line by the commands of that memory's
    /// controller. Without it the tier is what the values above say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_file: Option<String>,
}

/// The most processors that Linux on x86-64 can be built for (`NR_CPUS_RANGE_END`,
/// `arch/x86/Kconfig`).
const MOST_CORES: u32 = 8192;

/// What the mechanisms cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Costs {
    /// A page fault that is resolved by the kernel alone.
    pub kernel_fault: Sourced<Nanos>,
    /// A page fault that is resolved in user space, without the page's content.
    pub user_fault: Sourced<Nanos>,
    /// Write-protecting or unprotecting one page, without the shootdown.
    pub write_protect: Sourced<Nanos>,
    /// A TLB shootdown: the initiator's fixed part.
    pub shootdown: Sourced<Nanos>,
    /// A TLB shootdown: what each further core pays.
    pub shootdown_per_core: Sourced<Nanos>,
    /// Bandwidth of one core that copies pages, where the tiers do not limit it.
    pub copy_bandwidth: Sourced<BytesPerSecond>,
    /// What the sampled core pays for one hardware sample.
    pub sample: Sourced<Nanos>,
}

impl TierFile {
    /// The tier as policies see it.
    pub fn spec(&self) -> TierSpec {
        TierSpec {
            name: self.name.clone(),
            kind: self.kind,
            capacity: self.capacity.value,
            read_latency: self.read_latency.value,
            write_latency: self.write_latency.value,
            read_bandwidth: self.read_bandwidth.value,
            write_bandwidth: self.write_bandwidth.value,
            granularity: self.granularity.value,
        }
    }
}

/// Why a machine file was refused. Names the file, the line and the field.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{file}:{line}: {}{message}", field.as_ref().map(|f| format!("field `{f}`: ")).unwrap_or_default())]
pub struct MachineError {
    /// The file, as the user named it.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The field, with the table it stands in.
    pub field: Option<String>,
    /// What is wrong.
    pub message: String,
}

impl Machine {
    /// Reads a machine file's text. `file` is only used in errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, MachineError> {
        parse_document(file, text, Self::validate)
    }

    /// Checks what the types cannot: returns the field and what is wrong with it.
    fn validate(&self) -> Result<(), (String, String)> {
        let bad = |field: String, message: &str| Err((field, message.to_owned()));
        if self.schema != 1 {
            return bad("schema".into(), "this version reads schema 1 only");
        }
        if self.cpu.cores.value == 0 {
            return bad("cpu.cores".into(), "must be at least 1");
        }
        if self.cpu.cores.value > MOST_CORES {
            let message = format!("must be at most {MOST_CORES}, as many as Linux can have");
            return Err(("cpu.cores".into(), message));
        }
        if self.cpu.llc_latency.value.is_zero() {
            return bad("cpu.llc-latency".into(), "must be above zero");
        }
        if self.cpu.clock.value.get() <= 0.0 {
            return bad("cpu.clock".into(), "must be above zero");
        }
        if self.cpu.miss_slots.value.is_nan() || self.cpu.miss_slots.value < 1.0 {
            return bad("cpu.miss-slots".into(), "must be at least 1");
        }
        if self.tiers.len() < 2 || self.tiers.len() > crate::MAX_TIERS {
            return bad("tier".into(), "a machine has two to eight tiers");
        }
        for (i, tier) in self.tiers.iter().enumerate() {
            let field = |name: &str| format!("tier[{i}].{name}");
            if self.tiers[..i].iter().any(|other| other.name == tier.name) {
                return bad(field("name"), "another tier has this name");
            }
            if i == 0 && tier.kind != TierKind::ByteAddressable {
                return bad(field("kind"), "the fastest tier must be byte-addressable");
            }
            if tier.capacity.value.is_zero() {
                return bad(field("capacity"), "must be above zero");
            }
            if tier.read_latency.value.is_zero() {
                return bad(field("read-latency"), "must be above zero");
            }
            if tier.write_latency.value.is_zero() {
                return bad(field("write-latency"), "must be above zero");
            }
            if tier.read_bandwidth.value.get() <= 0.0 {
                return bad(field("read-bandwidth"), "must be above zero");
            }
            if tier.write_bandwidth.value.get() <= 0.0 {
                return bad(field("write-bandwidth"), "must be above zero");
            }
            if let Some(combined) = &tier.combined_bandwidth {
                let of = [&tier.read_bandwidth, &tier.write_bandwidth].map(|b| b.value.get());
                let combined = combined.value.get();
                if combined < of[0] || combined < of[1] {
                    let message = "is less than read-bandwidth or write-bandwidth, which is \
                                   reached without the other direction";
                    return bad(field("combined-bandwidth"), message);
                }
                // Files give rounded figures.
                if combined > (of[0] + of[1]) * 1.01 {
                    let message = "is more than read-bandwidth and write-bandwidth together";
                    return bad(field("combined-bandwidth"), message);
                }
            }
            if tier.memory_file.is_some() && tier.kind != TierKind::ByteAddressable {
                return bad(
                    field("memory-file"),
                    "only a byte-addressable tier is timed by a memory",
                );
            }
            if tier.granularity.value.is_zero() {
                return bad(field("granularity"), "must be above zero");
            }
            if !(0.0..1.0).contains(&tier.load_knee.value) {
                return bad(field("load-knee"), "must be at least 0 and below 1");
            }
        }
        if self.costs.copy_bandwidth.value.get() <= 0.0 {
            return bad("costs.copy-bandwidth".into(), "must be above zero");
        }
        self.numa.as_ref().map_or(Ok(()), |numa| numa.validate(self.tiers.len()))?;
        self.power.as_ref().map_or(Ok(()), Power::validate)?;
        let tiers = &self.tiers;
        self.dram_cache.as_ref().map_or(Ok(()), |cache| cache.validate(tiers))?;
        self.detail.as_ref().map_or(Ok(()), |detail| detail.validate(self.cpu.llc.value))
    }
}

/// Reads a TOML file of ours: unknown keys are fatal, and every error names the
/// file, the line and the field.
///
/// `validate` checks what types cannot; it answers with the field (as
/// `table.key`, or `tier[0].key`) and what is wrong with it.
pub fn parse_document<T: de::DeserializeOwned>(
    file: &str,
    text: &str,
    validate: impl FnOnce(&T) -> Result<(), (String, String)>,
) -> Result<T, MachineError> {
    let text = without_byte_order_mark(text);
    let at = |offset: usize, field: Option<String>, message: String| {
        let line = text.char_indices().filter(|&(i, c)| i < offset && c == '\n').count() + 1;
        MachineError {
            file: file.to_owned(),
            line,
            field: field.or_else(|| field_at(text, line)),
            message,
        }
    };
    let document: T = toml::from_str(text).map_err(|e| {
        let offset = e.span().map_or(text.len(), |s| s.start);
        at(offset, None, e.message().trim().replace('\n', " "))
    })?;
    match validate(&document) {
        Ok(()) => Ok(document),
        Err((field, message)) => {
            let offset = find_field(text, &field).unwrap_or(0);
            Err(at(offset, Some(field), message))
        }
    }
}

/// Refuses a file that a command writes if its last line has no end: it was cut, and a number
/// there may have lost digits.
pub fn refuse_cut(file: &str, text: &str) -> Result<(), MachineError> {
    if text.ends_with('\n') {
        return Ok(());
    }
    let line = text.lines().count().max(1);
    Err(MachineError {
        file: file.to_owned(),
        line,
        field: field_at(text, line),
        message: "its line has no end: the file was cut".to_owned(),
    })
}

/// The key that stands on a line, with its table's name before it.
pub(crate) fn field_at(text: &str, line: usize) -> Option<String> {
    let mut table = String::new();
    let mut tiers = 0usize;
    for (number, content) in text.lines().enumerate().take(line) {
        let content = content.trim();
        if content == "[[tier]]" {
            table = format!("tier[{tiers}].");
            tiers += 1;
        } else if let Some(name) = content.strip_prefix('[').and_then(|c| c.strip_suffix(']')) {
            table = format!("{name}.");
        } else if number + 1 == line {
            let key = content.split_once('=')?.0.trim();
            return (!key.is_empty() && !key.starts_with('#')).then(|| format!("{table}{key}"));
        }
    }
    None
}

/// The number of the line that a field (`table.key`) stands in.
pub fn line_of(text: &str, field: &str) -> Option<usize> {
    let lines = text.lines().count();
    (1..=lines).find(|&line| field_at(text, line).as_deref() == Some(field))
}

/// Where the line of a field begins.
pub(crate) fn find_field(text: &str, field: &str) -> Option<usize> {
    let mut offset = 0;
    for (number, content) in text.split_inclusive('\n').enumerate() {
        if field_at(text, number + 1).as_deref() == Some(field) {
            return Some(offset);
        }
        offset += content.len();
    }
    // All tables of a name together are where the first of them begins.
    text.find(&format!("[[{field}]]"))
}

/// A quantity that a file may give, as `{ value = …, source = "…" }`.
pub trait Scalar: Sized {
    /// What the value looks like, for errors.
    const EXPECTED: &'static str;
    /// Reads a text.
    fn from_text(_text: &str) -> Result<Self, String> {
        Err(format!("expected {}", Self::EXPECTED))
    }
    /// Reads a bare number.
    fn from_number(_number: f64) -> Result<Self, String> {
        Err(format!("expected {}", Self::EXPECTED))
    }
}

macro_rules! text_scalar {
    ($($type:ty => $expected:literal),*) => {$(
        impl Scalar for $type {
            const EXPECTED: &'static str = $expected;
            fn from_text(text: &str) -> Result<Self, String> {
                <$type>::from_str(text).map_err(|e| e.to_string())
            }
        }
    )*};
}
text_scalar! {
    Bytes => "an amount of memory such as \"192GiB\"",
    Cycles => "a number of cycles such as \"14cycles\"",
    Nanos => "a duration such as \"81ns\"",
    BytesPerSecond => "a bandwidth such as \"39.4GB/s\"",
    Frequency => "a frequency such as \"2.2GHz\""
}
impl Scalar for u32 {
    const EXPECTED: &'static str = "a whole number";
    fn from_number(number: f64) -> Result<Self, String> {
        if number.fract() == 0.0 && (0.0..=f64::from(Self::MAX)).contains(&number) {
            Ok(number as Self)
        } else {
            Err(format!("expected {}", Self::EXPECTED))
        }
    }
}
impl Scalar for f64 {
    const EXPECTED: &'static str = "a number";
    fn from_number(number: f64) -> Result<Self, String> {
        if number.is_finite() { Ok(number) } else { Err("must be finite".into()) }
    }
}

/// A scalar, written as text or as a number.
pub(crate) struct Value<T>(pub(crate) T);

impl<'de, T: Scalar> Deserialize<'de> for Value<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V<T>(PhantomData<T>);
        impl<T: Scalar> Visitor<'_> for V<T> {
            type Value = Value<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Value<T>, E> {
                T::from_text(text).map(Value).map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Value<T>, E> {
                self.visit_f64(number as f64)
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Value<T>, E> {
                self.visit_f64(number as f64)
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Value<T>, E> {
                T::from_number(number).map(Value).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(V(PhantomData))
    }
}

impl<'de, T: Scalar> Deserialize<'de> for Sourced<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V<T>(PhantomData<T>);
        impl<'de, T: Scalar> Visitor<'de> for V<T> {
            type Value = Sourced<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{{ value = …, source = \"…\" }} with {}", T::EXPECTED)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Sourced<T>, A::Error> {
                let (mut value, mut source) = (None, None);
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "value" => value = Some(map.next_value::<Value<T>>()?.0),
                        "source" => source = Some(map.next_value::<String>()?),
                        other => return Err(de::Error::unknown_field(other, &["value", "source"])),
                    }
                }
                let source = source.ok_or_else(|| de::Error::missing_field("source"))?;
                if source.trim().is_empty() {
                    return Err(de::Error::custom("`source` must say where the number comes from"));
                }
                Ok(Sourced {
                    value: value.ok_or_else(|| de::Error::missing_field("value"))?,
                    source,
                })
            }
        }
        deserializer.deserialize_map(V(PhantomData))
    }
}
