//! `--mode`: whether a verb that governs a machine's memory acts, or only says what it would do.

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing is changed: what would come of it is measured.
    Observe,
    /// Memory is freed.
    Enforce,
}

impl Mode {
    /// Every mode, the default first.
    pub(crate) const ALL: [Self; 2] = [Self::Observe, Self::Enforce];

    /// Its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Enforce => "enforce",
        }
    }
}
