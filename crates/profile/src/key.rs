//! What a place in memory is called in every run of a program.
//!
//! Addresses change from run to run. What stays: the file that a mapping is of (its build
//! identifier), that the heap is the heap, and the order in which mappings of one class of
//! size come.

use core::fmt;

use serde::Serialize;
use terrace_core::Bytes;

/// A part of an address space, by CBMM's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Section {
    /// Mapped from a file, not writable.
    Code,
    /// Mapped from a file, writable, and what follows it (`.bss`).
    Data,
    /// What `brk` grows.
    Heap,
    /// Anonymous mappings.
    Mmap,
}

impl Section {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Code, Self::Data, Self::Heap, Self::Mmap];

    /// What files call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Data => "data",
            Self::Heap => "heap",
            Self::Mmap => "mmap",
        }
    }

    /// The section of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.name() == name)
    }
}

/// The name of a region that survives address randomisation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A part of an executable or a library.
    Image {
        /// The file's build identifier, in hexadecimal.
        build_id: String,
        /// Code or data.
        section: Section,
    },
    /// The heap that `brk` grows.
    Heap,
    /// An anonymous mapping.
    Mapping {
        /// Class of size: the length is above `2^(class-1)` bytes and at most `2^class`.
        class: u8,
        /// How many mappings of the class came before it.
        order: u32,
    },
}

impl Key {
    /// The smallest class: a page.
    pub const LEAST_CLASS: u8 = 12;
    /// The largest class: the user half of an address space.
    pub const MOST_CLASS: u8 = 48;

    /// The class of a mapping's length.
    pub fn class_of(len: Bytes) -> u8 {
        let rounded = len.get().max(1).checked_next_power_of_two().unwrap_or(1 << 63);
        (rounded.trailing_zeros() as u8).clamp(Self::LEAST_CLASS, Self::MOST_CLASS)
    }

    /// The section that it lies in.
    pub const fn section(&self) -> Section {
        match self {
            Self::Image { section, .. } => *section,
            Self::Heap => Section::Heap,
            Self::Mapping { .. } => Section::Mmap,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image { build_id, section } => {
                let short = build_id.get(..8).unwrap_or(build_id);
                write!(f, "{} of {short}", section.name())
            }
            Self::Heap => f.write_str("heap"),
            Self::Mapping { class, order } => {
                write!(f, "mmap up to {} #{order}", Bytes(1 << (*class).min(63)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_differ_by_a_header_are_of_one_class() {
        let class = |len| Key::class_of(Bytes(len));
        assert_eq!(class(128 << 20), 27);
        assert_eq!(class((128 << 20) - 4096), 27);
        assert_eq!(class((128 << 20) + 4096), 28, "classes end at powers of two");
        assert_eq!((class(0), class(1), class(4096), class(4097)), (12, 12, 12, 13));
        assert_eq!(class(u64::MAX), Key::MOST_CLASS);
    }
}
