//! How much to bring in or to give back.
//!
//! | file | concept |
//! |---|---|
//! | `tables` | the paper's Tables 3 and 4 as rows |
//! | `literal` | both tables as they are written |
//! | `resolved` | targets instead of amounts, shares of the DRAM instead of watermarks |

mod literal;
mod resolved;
pub mod tables;

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::literal::{Capacity, Literal};
pub use self::resolved::{Resolved, Row, Settings};
use crate::decision::Decision;
use crate::view::NodeView;

/// Decides, node by node, how much slow memory is online.
pub trait Provisioner: fmt::Debug {
    /// Looks at one node. Called about once a second for each node, in the order of a
    /// [`crate::Rotation`].
    fn tick(&mut self, view: &NodeView) -> Decision;
}

/// The policies, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", try_from = "String")]
pub enum PolicyKind {
    /// Targets, hysteresis, shares of the node's DRAM.
    #[default]
    Resolved,
    /// The paper's tables; the capacity of Table 4 is what is installed.
    PaperLiteralInstalled,
    /// The paper's tables; the capacity of Table 4 is what is integrated.
    PaperLiteralIntegrated,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [Self; 3] =
        [Self::Resolved, Self::PaperLiteralInstalled, Self::PaperLiteralIntegrated];

    /// The name that people write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resolved => "resolved",
            Self::PaperLiteralInstalled => "paper-literal-installed",
            Self::PaperLiteralIntegrated => "paper-literal-integrated",
        }
    }

    /// A policy of this kind that has seen nothing yet.
    pub fn build(self) -> Box<dyn Provisioner + Send> {
        match self {
            Self::Resolved => Box::new(Resolved::default()),
            Self::PaperLiteralInstalled => Box::new(Literal::new(Capacity::Installed)),
            Self::PaperLiteralIntegrated => Box::new(Literal::new(Capacity::Integrated)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no policy has.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("no policy is named `{0}` (resolved, paper-literal-installed, paper-literal-integrated)")]
pub struct UnknownPolicy(pub String);

impl TryFrom<String> for PolicyKind {
    type Error = UnknownPolicy;
    fn try_from(text: String) -> Result<Self, UnknownPolicy> {
        text.parse()
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;
    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let named = Self::ALL.into_iter().find(|kind| kind.name() == text);
        named.ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}
