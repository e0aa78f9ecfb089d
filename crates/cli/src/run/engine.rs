//! Which engine serves a run's page faults.

/// An engine, as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// The pager; the kernel for programs that the pager cannot serve
    /// (`docs/decisions/0016-default-engine.md`).
    Auto,
    /// Terrace's library, loaded into the program.
    Pager,
    /// The kernel, with swap on compressed memory.
    Kernel,
}

impl Engine {
    /// Every one.
    pub(crate) const ALL: [Self; 3] = [Self::Auto, Self::Pager, Self::Kernel];

    /// What people call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Pager => "pager",
            Self::Kernel => "kernel",
        }
    }
}
