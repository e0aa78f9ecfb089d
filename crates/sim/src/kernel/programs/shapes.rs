//! The numbers of the programs: a file in which each has its source.

use serde::Deserialize;
use terrace_core::machine::{Sourced, parse_document};
use terrace_core::{Bytes, MachineError, Nanos};

const BUILTIN: &str = include_str!("../../../data/io-programs.toml");

/// Shapes of all programs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shapes {
    schema: u32,
    /// What all have in common.
    pub data: Data,
    pub(super) filebench: Filebench,
    pub(super) rocksdb: Lsm,
    pub(super) redis: Redis,
    pub(super) cassandra: Lsm,
    pub(super) spark: Spark,
}

/// What all programs have in common.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// The large data set, at full scale.
    pub large: Sourced<Bytes>,
    /// The small one.
    pub small: Sourced<Bytes>,
    /// Threads.
    pub threads: Sourced<u32>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Filebench {
    pub(super) block: Sourced<Bytes>,
    pub(super) sequential: Sourced<f64>,
    pub(super) reads: Sourced<f64>,
    pub(super) program_pages: Sourced<u32>,
    pub(super) program_lines: Sourced<u32>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Lsm {
    pub(super) reads: Sourced<f64>,
    #[serde(default = "uniform")]
    pub(super) sequential: Sourced<f64>,
    pub(super) value: Sourced<Bytes>,
    pub(super) file: Sourced<Bytes>,
    pub(super) write_buffer: Sourced<Bytes>,
    pub(super) open_files: Sourced<f64>,
    pub(super) cache_hits: Sourced<f64>,
    pub(super) compute: Sourced<Nanos>,
    pub(super) lookup_pages: Sourced<u32>,
}

fn uniform() -> Sourced<f64> {
    Sourced { value: 0.0, source: "not given: no sequential reads".to_owned() }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Redis {
    pub(super) sets: Sourced<f64>,
    pub(super) value: Sourced<Bytes>,
    pub(super) saves_after: Sourced<f64>,
    pub(super) compute: Sourced<Nanos>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Spark {
    pub(super) block: Sourced<Bytes>,
    pub(super) partition: Sourced<Bytes>,
    pub(super) compute: Sourced<Nanos>,
}

impl Shapes {
    /// The numbers that come with Terrace.
    pub fn builtin() -> Self {
        Self::parse("io-programs.toml", BUILTIN).expect("a test parses it")
    }

    /// Reads a file's text. `file` is only used in errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, MachineError> {
        parse_document(file, text, |shapes: &Self| {
            let bad = |field: &str, message: &str| Err((field.to_owned(), message.to_owned()));
            if shapes.schema != 1 {
                return bad("schema", "this version reads schema 1 only");
            }
            if shapes.data.threads.value == 0 {
                return bad("data.threads", "must be at least 1");
            }
            Ok(())
        })
    }
}
