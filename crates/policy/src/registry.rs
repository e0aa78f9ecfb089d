//! Policies by name, so that every command and both worlds offer the same set.
//!
//! A new policy is a line in one of the lists at the end of this file.

use core::fmt;
use core::str::FromStr;

use crate::arms::{Arms, ArmsConfig};
use crate::autonuma::{AutoNuma, AutoNumaConfig};
use crate::colloid::{Colloid, ColloidConfig};
use crate::contract::Policy;
use crate::first_touch::FirstTouch;
use crate::hemem::{HeMem, HeMemConfig};
use crate::hscc::{Hscc, HsccConfig};
use crate::hybridtier::{HybridTier, HybridTierConfig};
use crate::memtis::{Memtis, MemtisConfig};
use crate::nimble::{Nimble, NimbleConfig};
use crate::oracle::{Oracle, OracleConfig};
use crate::refault::Refault;
use crate::tpp::{Tpp, TppConfig};
use crate::two_queue::TwoQueue;

macro_rules! policies {
    (
        live { $($(#[$live_doc:meta])* $live:ident, $live_name:literal, $live_new:expr;)* }
        compressed { $($(#[$comp_doc:meta])* $comp:ident, $comp_name:literal, $comp_new:expr;)* }
        simulated { $($(#[$sim_doc:meta])* $sim:ident, $sim_name:literal, $sim_new:expr;)* }
    ) => {
        /// A policy's name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum PolicyName {
            $($(#[$live_doc])* $live,)*
            $($(#[$comp_doc])* $comp,)*
            $($(#[$sim_doc])* $sim,)*
        }

        impl PolicyName {
            /// Every policy.
            pub const ALL: [Self; [$($live_name,)* $($comp_name,)* $($sim_name,)*].len()] =
                [$(Self::$live,)* $(Self::$comp,)* $(Self::$sim,)*];

            /// The policies that run live where memory is compressed.
            pub const LIVE: [Self; [$($live_name,)* $($comp_name,)*].len()] =
                [$(Self::$live,)* $(Self::$comp,)*];

            /// Those that run live where pages stay mapped, too; of them, some only where pages
            /// have to come back from the slower memory ([`crate::contract::Needs::refaults`]).
            pub const MAPPED: [Self; [$($live_name),*].len()] = [$(Self::$live),*];

            /// What people call it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$live => $live_name,)*
                    $(Self::$comp => $comp_name,)*
                    $(Self::$sim => $sim_name,)*
                }
            }

            /// A new policy of this name, with its published parameters.
            pub fn build(self) -> Box<dyn Policy> {
                match self {
                    $(Self::$live => Box::new($live_new),)*
                    $(Self::$comp => Box::new($comp_new),)*
                    $(Self::$sim => Box::new($sim_new),)*
                }
            }
        }
    };
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no policy's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy(pub String);

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a policy (there are", self.0)?;
        for (i, policy) in PolicyName::ALL.iter().enumerate() {
            write!(f, "{} `{policy}`", if i == 0 { "" } else { "," })?;
        }
        f.write_str(")")
    }
}

impl core::error::Error for UnknownPolicy {}

impl FromStr for PolicyName {
    type Err = UnknownPolicy;
    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|p| p.name() == text)
            .ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

policies! {
    live {
        /// [`FirstTouch`]
        FirstTouch, "first-touch", FirstTouch::new();
        /// [`HeMem`] as in the paper.
        HeMem, "hemem", HeMem::new(HeMemConfig::default());
        /// [`Refault`]
        Refault, "refault", Refault::new();
        /// [`TwoQueue`]
        TwoQueue, "2q", TwoQueue::new();
        /// [`Memtis`] as in the paper.
        Memtis, "memtis", Memtis::new(MemtisConfig::default());
        /// [`Nimble`] as its published launcher runs it.
        Nimble, "nimble", Nimble::new(NimbleConfig::default());
        /// [`HybridTier`] as in its artifact.
        HybridTier, "hybridtier", HybridTier::new(HybridTierConfig::default());
        /// [`Arms`] as in its artifact.
        Arms, "arms", Arms::new(ArmsConfig::default());
    }
    compressed {
        /// [`Tpp`] as in the paper.
        Tpp, "tpp", Tpp::new(TppConfig::default());
        /// [`AutoNuma`] in its mode for memory tiers, with demotion.
        AutoNuma, "autonuma", AutoNuma::new(AutoNumaConfig::tiering());
        /// [`Colloid`] as in the paper.
        Colloid, "colloid", Colloid::new(ColloidConfig::default());
    }
    simulated {
        /// [`Hscc`] as Kindle has it.
        Hscc, "hscc", Hscc::new(HsccConfig::default());
        /// [`Oracle`]
        Oracle, "oracle", Oracle::new(OracleConfig::default());
    }
}
