//! What the economist does with its opinion, and what it came to.

use serde::{Deserialize, Serialize};

/// What the economist does with its opinion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Nothing is priced.
    Off,
    /// Prices and records, lets everything pass.
    Shadow,
    /// The same, and reports say what would have been refused.
    Advise,
    /// Refuses voluntary actions that do not pay.
    #[default]
    Enforce,
}

impl Mode {
    /// All of them, by how much they change.
    pub const ALL: [Self; 4] = [Self::Off, Self::Shadow, Self::Advise, Self::Enforce];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Shadow => "shadow",
            Self::Advise => "advise",
            Self::Enforce => "enforce",
        }
    }

    /// The mode of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// Whether what does not pay is refused.
    pub const fn refuses(self) -> bool {
        matches!(self, Self::Enforce)
    }
}

/// What became of a proposal at the economist's desk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The economist is off: passes, not priced.
    Off,
    /// Pays, and passes.
    Passed,
    /// Had to be done whether it pays or not: priced, and passes.
    Forced,
    /// Does not surely pay, but passes once in a while for the sake of what
    /// its outcome teaches (see [`Parameters::explore`](crate::Parameters::explore)).
    Explored,
    /// Does not pay; passes because the economist only watches, or advises.
    ShadowVeto,
    /// Does not pay, and is refused.
    Vetoed,
    /// Pays, and is refused all the same: drawn at random to learn what becomes of its page
    /// without it.
    HeldOut,
    /// Its class has cost more than it brought of late, and stands still.
    Stopped,
}

impl Verdict {
    /// Whether the action may be carried out.
    pub const fn passes(self) -> bool {
        !matches!(self, Self::Vetoed | Self::HeldOut | Self::Stopped)
    }

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "PASSED (economist off)",
            Self::Passed => "PASSED",
            Self::Forced => "FORCED",
            Self::Explored => "PASSED (exploring)",
            Self::ShadowVeto => "PASSED (would be vetoed)",
            Self::Vetoed => "VETOED",
            Self::HeldOut => "HELD OUT",
            Self::Stopped => "STOPPED",
        }
    }
}
