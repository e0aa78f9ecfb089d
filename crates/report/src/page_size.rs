//! The size of a region's pages: in bytes where a program reads it, by its name in a table.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use terrace_core::{Bytes, PageSize};

/// A size's name, for tables.
pub(crate) const fn name(size: PageSize) -> &'static str {
    match size {
        PageSize::Base => "4 KiB",
        PageSize::Huge => "2 MiB",
    }
}

/// Writes a size in bytes, as JSON has all sizes.
// By reference: so it is called by what `derive` makes.
#[allow(clippy::trivially_copy_pass_by_ref)]
pub(crate) fn serialize<S: Serializer>(size: &PageSize, to: S) -> Result<S::Ok, S::Error> {
    size.bytes().serialize(to)
}

/// Reads a size. Recordings from before 30 November 2026 have its name.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PageSize, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Bytes(Bytes),
        Name(String),
    }
    let written = Written::deserialize(from)?;
    let is_it = |size: &PageSize| match &written {
        Written::Bytes(bytes) => size.bytes() == *bytes,
        Written::Name(text) => name(*size) == text,
    };
    let sizes = [PageSize::Base, PageSize::Huge];
    sizes.into_iter().find(is_it).ok_or_else(|| D::Error::custom("pages have no such size"))
}
