//! What the engine did, in numbers.

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos};

/// Counters of one run. Each field is a figure of the report of its own; none depends on another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// What the run had in DRAM last, of what can be swapped.
    pub resident: Bytes,
    /// The most that was found.
    pub resident_peak: Bytes,
    /// The most above the budget of the moment. What a run had before it was within its budget
    /// for the first time does not count, nor what it had when the budget was lowered.
    #[serde(default)]
    pub exceeded: Bytes,
    /// Whether it has been within the budget since that was set.
    #[serde(default)]
    pub settled: bool,
    /// The most of the kernel's own memory for the run (stacks of threads, page tables) that lay beside
    /// the budget: what was more than a quarter of that. It cannot be put out.
    #[serde(default)]
    pub kernel_beside_peak: Bytes,
    /// Major faults: the program waited for a page.
    pub faults: u64,
    /// Times that the programs' own threads had to put memory out to go on, where that can be seen.
    #[serde(default)]
    pub direct: u64,
    /// What they put out then.
    #[serde(default)]
    pub direct_bytes: Bytes,
    /// Memory that the kernel was asked to put out, by its own choice of pages.
    pub reclaimed: Bytes,
    /// Times that it found less than it was asked for.
    pub short: u64,
    /// Parts of 2 MiB that were put out as a whole, since no access to them was seen lately.
    #[serde(default)]
    pub cold_parts: u64,
    /// Accesses that samplers have told of.
    #[serde(default)]
    pub samples: u64,
    /// What samplers cost, their threads in the kernel included; those are not in `own_cpu`.
    #[serde(default)]
    pub sampling_cpu: Nanos,
    /// Pages that a policy put out.
    pub put_out: u64,
    /// Pages that it wanted to, and that stayed: touched meanwhile, or gone.
    pub stayed: u64,
    /// Memory that was asked for ahead of walks.
    pub ahead: Bytes,
    /// Memory that walks would have been gone ahead with, and were not, as it does not pay.
    #[serde(default)]
    pub ahead_refused: Bytes,
    /// Times that the run was slowed down since it was above its budget, and for how long.
    pub braked: u64,
    /// How long that was.
    pub braked_time: Nanos,
    /// Time in which the run thrashed: most of the pages that came back had just left, and it waited for
    /// them half of the time, all threads together.
    #[serde(default)]
    pub thrashing: Nanos,
    /// Times that the limit above the budget was raised (version 1 of control groups), as the
    /// kernel found nothing to put out.
    #[serde(default)]
    pub lifted: u64,
    /// Passes over the page tables.
    pub passes: u64,
    /// Processor time of the engine, all of it.
    pub own_cpu: Nanos,
    /// Of it, that of observing: faults and passes.
    pub observing_cpu: Nanos,
}
