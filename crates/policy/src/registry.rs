//! Policies by name, so that every command and both worlds offer the same set.

use core::fmt;
use core::str::FromStr;

use crate::contract::Policy;
use crate::first_touch::FirstTouch;
use crate::hemem::{HeMem, HeMemConfig};
use crate::two_queue::TwoQueue;

/// A policy's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyName {
    /// [`FirstTouch`]
    FirstTouch,
    /// [`HeMem`] as in the paper.
    HeMem,
    /// [`crate::TwoQueue`].
    TwoQueue,
}

impl PolicyName {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::FirstTouch, Self::HeMem, Self::TwoQueue];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FirstTouch => "first-touch",
            Self::HeMem => "hemem",
            Self::TwoQueue => "2q",
        }
    }

    /// A new policy of this name, with its published parameters.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            Self::FirstTouch => Box::new(FirstTouch::new()),
            Self::HeMem => Box::new(HeMem::new(HeMemConfig::default())),
            Self::TwoQueue => Box::new(TwoQueue::new()),
        }
    }
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
