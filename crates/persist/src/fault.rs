//! Faults that are seeded on purpose: what published systems got wrong. The
//! tests ask that crashes find each of them.

use core::fmt;
use core::str::FromStr;

/// A mistake in the order or the target of what is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A table's entry is durable before the table it points to is zeroed
    /// (Kindle, `install_page_table`).
    ParentBeforeChild,
    /// A mapping that was removed or replaced keeps its durable entry
    /// (Kindle: cleared entries are not flushed, V2P entries never removed).
    StaleMapping,
    /// Metadata are stored, but a flush hits another line (Kindle,
    /// `clflush_multiline` flushes the pointer's stack slot).
    WrongFlush,
    /// The allocator's bitmap is never written back (Kindle: commented out).
    BitmapNotPersisted,
    /// Data are stored, but a flush at the checkpoint hits another line
    /// (Kindle's SSP and HSCC kernels flush the pointer's stack slot).
    WrongDataFlush,
    /// Pages are committed one by one, without a journal that holds all of
    /// them together (Kindle's SSP: its commit loop stores bitmap by bitmap).
    NoJournal,
    /// The data log is declared done before what it says is durable.
    EarlyTruncation,
    /// Data that no checkpoint has committed overwrite committed ones: a page
    /// is consolidated, or written home, while its interval is not over.
    UncommittedOverwrite,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::ParentBeforeChild,
        Self::StaleMapping,
        Self::WrongFlush,
        Self::BitmapNotPersisted,
        Self::WrongDataFlush,
        Self::NoJournal,
        Self::EarlyTruncation,
        Self::UncommittedOverwrite,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::ParentBeforeChild => "parent-before-child",
            Self::StaleMapping => "stale-mapping",
            Self::WrongFlush => "wrong-flush",
            Self::BitmapNotPersisted => "bitmap-not-persisted",
            Self::WrongDataFlush => "wrong-data-flush",
            Self::NoJournal => "no-journal",
            Self::EarlyTruncation => "early-truncation",
            Self::UncommittedOverwrite => "uncommitted-overwrite",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|f| f.name() == text)
            .ok_or_else(|| format!("`{text}` is none of {}", Self::ALL.map(Self::name).join(", ")))
    }
}
