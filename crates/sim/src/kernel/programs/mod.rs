//! Calls of the programs that the KLOCs paper evaluates, made up in their documented shape.
//!
//! They are no recordings: what the programs do is as in the file of shapes
//! (`crates/sim/data/io-programs.toml`), which has a source for each number.
//!
//! | file | programs |
//! |---|---|
//! | `shapes` | the numbers |
//! | `queues` | what each thread does next |
//! | `filebench` | Filebench, which is fio's pattern |
//! | `lsm` | log-structured merge trees: RocksDB, Cassandra |
//! | `redis` | Redis with checkpoints |
//! | `terasort` | Spark's TeraSort |

mod filebench;
mod lsm;
mod queues;
mod redis;
mod shapes;
mod terasort;

use core::fmt;

use terrace_core::{Bytes, Nanos};

use super::Calls;
pub use shapes::Shapes;

/// A program, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Program {
    /// Reads and writes blocks of files.
    Filebench,
    /// A log-structured merge tree.
    RocksDb,
    /// A key-value store in memory, behind sockets, with checkpoints.
    Redis,
    /// A log-structured merge tree with a large cache, behind sockets.
    Cassandra,
    /// `TeraSort`.
    Spark,
}

/// How much a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// Its data.
    pub data: Bytes,
    /// By how much data and machine are smaller than what they stand for.
    pub scale: u64,
    /// Operations of each thread that are measured.
    pub operations: u64,
    /// Where its randomness comes from.
    pub seed: u64,
}

impl Program {
    /// Every program, in the order of the paper's Table 3.
    pub const ALL: [Self; 5] =
        [Self::RocksDb, Self::Redis, Self::Filebench, Self::Cassandra, Self::Spark];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Filebench => "filebench",
            Self::RocksDb => "rocksdb",
            Self::Redis => "redis",
            Self::Cassandra => "cassandra",
            Self::Spark => "spark",
        }
    }

    /// What a thread of it computes in an operation, by its shape; nothing where that has no such
    /// number.
    pub fn own_time(self, shapes: &Shapes) -> Nanos {
        match self {
            Self::Filebench => Nanos::ZERO,
            Self::RocksDb => shapes.rocksdb.compute.value,
            Self::Redis => shapes.redis.compute.value,
            Self::Cassandra => shapes.cassandra.compute.value,
            Self::Spark => shapes.spark.compute.value,
        }
    }

    /// Its calls.
    pub fn calls(self, shapes: &Shapes, amount: &Amount) -> Box<dyn Calls> {
        match self {
            Self::Filebench => Box::new(filebench::Filebench::new(shapes, amount)),
            Self::RocksDb => Box::new(lsm::Lsm::rocksdb(shapes, amount)),
            Self::Cassandra => Box::new(lsm::Lsm::cassandra(shapes, amount)),
            Self::Redis => Box::new(redis::Redis::new(shapes, amount)),
            Self::Spark => Box::new(terasort::TeraSort::new(shapes, amount)),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use terrace_policy::FirstTouch;

    use super::*;
    use crate::kernel::{Kernel, KernelConfig};

    /// Each program runs to its end on a machine that holds it, and does what it was asked for.
    #[test]
    fn every_program_runs() {
        let shapes = Shapes::builtin();
        let mut machine = crate::machines::load("cxl").expect("built in");
        for tier in &mut machine.tiers {
            tier.capacity.value = Bytes::mib(24);
        }
        for program in Program::ALL {
            let amount = Amount { data: Bytes::mib(16), scale: 2048, operations: 300, seed: 1 };
            let mut calls = program.calls(&shapes, &amount);
            let config = KernelConfig::new(machine.clone());
            let policy = Box::new(FirstTouch::new());
            let mut kernel =
                Kernel::new(&config, policy, calls.threads(), calls.pages()).expect("fits");
            let report = kernel.run(calls.as_mut()).unwrap_or_else(|e| panic!("{program}: {e}"));
            // TeraSort's operations are blocks of its data.
            assert!(report.operations >= 200, "{program}: {}", report.operations);
            assert!(report.throughput() > 0.0);
            kernel.audit().expect("consistent");
        }
    }
}
