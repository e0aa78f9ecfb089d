//! What to simulate.

use core::fmt;
use core::str::FromStr;

use serde::{Serialize, Serializer};
use terrace_core::{Machine, Nanos};
use terrace_economics::Mode;
use terrace_policy::PolicyName;

use crate::analytic::memory_mode::Frames;
use crate::analytic::migration::MigrationConfig;
use crate::analytic::sampler::SamplerConfig;
use crate::workload::Workload;

/// What decides where pages lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SimPolicy {
    /// A policy, under the economist.
    Policy(PolicyName),
    /// Nobody: the first tier is a hardware cache in front of the last.
    MemoryMode,
    /// Nobody: the first tier is made large enough for everything.
    AllDram,
    /// Nobody: everything lies in the last tier.
    AllSlow,
    /// A policy of one's own, by its name; it is handed over when the
    /// simulation is set up.
    Custom(&'static str),
}

impl SimPolicy {
    /// Everything there is by name, policies first.
    pub const ALL: [Self; PolicyName::ALL.len() + 3] = {
        let mut all = [Self::MemoryMode; PolicyName::ALL.len() + 3];
        let mut i = 0;
        while i < PolicyName::ALL.len() {
            all[i] = Self::Policy(PolicyName::ALL[i]);
            i += 1;
        }
        all[i + 1] = Self::AllDram;
        all[i + 2] = Self::AllSlow;
        all
    };

    /// Whether it is told of samples, whose period can be chosen. HSCC's hardware counts.
    pub fn takes_samples(self) -> bool {
        match self {
            Self::Policy(PolicyName::Hscc) => false,
            Self::Policy(name) => name.build().needs().samples,
            _ => false,
        }
    }

    /// Whether nobody decides: nothing is proposed that the economist could price, and a recording
    /// would have nothing in it. Under a policy that moves nothing, new memory is placed.
    pub const fn decides_nothing(self) -> bool {
        matches!(self, Self::MemoryMode) || self.is_one_memory()
    }

    /// Whether everything lies in one memory, however large another one is.
    pub const fn is_one_memory(self) -> bool {
        matches!(self, Self::AllDram | Self::AllSlow)
    }

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Policy(policy) => policy.name(),
            Self::MemoryMode => "memory-mode",
            Self::AllDram => "all-dram",
            Self::AllSlow => "all-slow",
            Self::Custom(name) => name,
        }
    }
}

impl fmt::Display for SimPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for SimPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A name that is nothing that a simulation could run under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownSimPolicy(pub String);

impl fmt::Display for UnknownSimPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = SimPolicy::ALL.iter().map(|p| format!("`{p}`")).collect();
        write!(f, "`{}` cannot be simulated (there are {})", self.0, names.join(", "))
    }
}

impl core::error::Error for UnknownSimPolicy {}

impl FromStr for SimPolicy {
    type Err = UnknownSimPolicy;
    fn from_str(text: &str) -> Result<Self, UnknownSimPolicy> {
        Self::ALL
            .into_iter()
            .find(|p| p.name() == text)
            .ok_or_else(|| UnknownSimPolicy(text.to_owned()))
    }
}

/// How long something lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Span {
    /// So many accesses of all threads together.
    Accesses(u64),
    /// So many accesses of each thread: until the last thread has made them. A
    /// thread that has made its own waits for the others, as published
    /// benchmarks do that start threads and join them.
    AccessesEach(u64),
    /// So much simulated time.
    Time(Nanos),
}

/// The parts of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Phases {
    /// What comes before anything is measured.
    pub warm_up: Span,
    /// How many times it is measured.
    pub runs: u32,
    /// How long each time.
    pub run: Span,
}

impl Phases {
    /// As in HeMem's evaluation: a warm-up of 1 billion updates by each thread,
    /// then three measured runs of as many.
    pub const fn hemem() -> Self {
        let round = Span::AccessesEach(1_000_000_000);
        Self { warm_up: round, runs: 3, run: round }
    }
}

/// What to simulate.
pub struct SimConfig {
    /// The machine.
    pub machine: Machine,
    /// The program.
    pub workload: Box<dyn Workload>,
    /// What decides where its pages lie.
    pub policy: SimPolicy,
    /// What the economist does with its opinion.
    pub economist: Mode,
    /// Warm-up and measured runs.
    pub phases: Phases,
    /// The hardware sampler.
    pub sampler: SamplerConfig,
    /// The migration engine.
    pub migration: MigrationConfig,
    /// Order of physical frames, which matters in Memory Mode.
    pub frames: Frames,
    /// Real accesses that each simulated access stands for. Time, traffic and
    /// sampling run at full scale; only the number of random draws shrinks.
    pub scale: u32,
    /// Where all randomness comes from.
    pub seed: u64,
}

impl SimConfig {
    /// A simulation with HeMem's parameters, every access simulated.
    pub fn new(machine: Machine, workload: Box<dyn Workload>, policy: SimPolicy) -> Self {
        Self {
            machine,
            workload,
            policy,
            economist: Mode::Shadow,
            phases: Phases::hemem(),
            sampler: SamplerConfig::hemem(),
            migration: MigrationConfig::hemem(),
            frames: Frames::default(),
            scale: 1,
            seed: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_found_by_the_name_it_prints() {
        for policy in SimPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let error = "hemen".parse::<SimPolicy>().expect_err("no such policy").to_string();
        assert!(error.contains("`hemem`") && error.contains("`memory-mode`"), "{error}");
    }
}
