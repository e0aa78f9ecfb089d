//! Memory for a special purpose that the firmware tells of (NFIT, e820), by the kernel's map of
//! addresses (`/proc/iomem`).
//!
//! A range becomes a device once a driver has it. Without one, there is memory that nobody sees:
//! that is said, with the driver's name.

use serde::Serialize;
use terrace_core::Bytes;

use super::DiscoverError;
use super::files::Files;

/// What the firmware calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RangeKind {
    /// Persistent memory of the NFIT table (e820 type 7).
    Persistent,
    /// Persistent memory without a table of its own (e820 type 12), or of the boot argument
    /// `memmap=SIZE!START`.
    PersistentLegacy,
    /// Memory for a special purpose (EFI's attribute `SP`): CXL and high-bandwidth memory.
    SoftReserved,
}

impl RangeKind {
    /// By the kernel's words in `/proc/iomem`.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "Persistent Memory" => Self::Persistent,
            "Persistent Memory (legacy)" => Self::PersistentLegacy,
            "Soft Reserved" => Self::SoftReserved,
            _ => return None,
        })
    }

    /// What it is, in words.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Persistent => "persistent memory",
            Self::PersistentLegacy => "persistent memory (legacy, or memmap=)",
            Self::SoftReserved => "memory for a special purpose",
        }
    }

    /// The modules that make a device of it.
    pub const fn drivers(self) -> &'static str {
        match self {
            Self::Persistent => "modprobe -a nfit nd_pmem",
            Self::PersistentLegacy => "modprobe -a nd_e820 nd_pmem",
            Self::SoftReserved => "modprobe -a dax_hmem device_dax",
        }
    }
}

/// A range of memory for a special purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Range {
    /// What the firmware calls it.
    pub kind: RangeKind,
    /// Where it begins, bytes; `None` for who is not root: the kernel shows zeros.
    pub start: Option<u64>,
    /// Its size; `None` likewise.
    pub size: Option<Bytes>,
    /// Whether a driver has made a device of it, in use or not.
    pub has_device: bool,
}

/// All such ranges, in the order of their addresses.
pub(super) fn ranges(files: &Files) -> Result<Vec<Range>, DiscoverError> {
    // Containers have no such file, or an empty one.
    let Some(text) = files.optional("proc/iomem")? else { return Ok(Vec::new()) };
    let regions = regions(files)?;
    let mut found: Vec<Range> = Vec::new();
    // How deep the range lies that lines after it may lie in.
    let mut open: Option<usize> = None;
    for line in text.lines() {
        let depth = line.len() - line.trim_start().len();
        if let Some(outer) = open
            && depth > outer
        {
            // Something of a driver's lies in it.
            if let Some(last) = found.last_mut() {
                last.has_device = true;
            }
            continue;
        }
        open = None;
        let Some((addresses, name)) = line.trim_start().split_once(" : ") else { continue };
        let Some(kind) = RangeKind::named(name.trim()) else { continue };
        let wrong = || files.content("proc/iomem", format!("`{addresses}` is no range"));
        let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let (first, last) = addresses
            .split_once('-')
            .and_then(|(first, last)| Some((number(first)?, number(last)?)))
            // One of all addresses has more bytes than there are numbers for.
            .filter(|(first, last)| first <= last && last - first < u64::MAX)
            .ok_or_else(wrong)?;
        let shown = (first, last) != (0, 0);
        let has_device = shown && regions.iter().any(|&(start, end)| start <= first && last < end);
        found.push(Range {
            kind,
            start: shown.then_some(first),
            size: shown.then_some(Bytes(last - first + 1)),
            has_device,
        });
        open = Some(depth);
    }
    Ok(found)
}

/// Ranges of addresses that have a region of persistent memory, with a namespace or not.
fn regions(files: &Files) -> Result<Vec<(u64, u64)>, DiscoverError> {
    let mut found = Vec::new();
    for name in files.entries("sys/bus/nd/devices")? {
        if !name.starts_with("region") {
            continue;
        }
        let here = format!("sys/bus/nd/devices/{name}");
        // Only root may read where it begins.
        let start = files.optional(&format!("{here}/resource")).ok().flatten();
        let size = files.optional(&format!("{here}/size")).ok().flatten();
        let start = start.and_then(|text| {
            u64::from_str_radix(text.trim().strip_prefix("0x").unwrap_or(text.trim()), 16).ok()
        });
        let size = size.and_then(|text| text.trim().parse::<u64>().ok());
        if let (Some(start), Some(size)) = (start, size) {
            found.push((start, start.saturating_add(size)));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    const MAP: &str = "\
00001000-0009fbff : System RAM
100000000-13fffffff : Persistent Memory (legacy)
  100000000-13fffffff : namespace0.0
    100000000-13fffffff : dax0.0
140000000-17fffffff : Persistent Memory (legacy)
180000000-1bfffffff : Soft Reserved
1c0000000-1ffffffff : Persistent Memory
200000000-27fffffff : System RAM
  200000000-200ffffff : Kernel code
";

    #[test]
    fn a_range_without_a_driver_is_found_by_kind_and_address() {
        let fixture = Fixture::new();
        fixture.write("proc/iomem", MAP);
        // A region of persistent memory of which no namespace is in use.
        fixture.write("sys/bus/nd/devices/region1/resource", "0x1c0000000\n");
        fixture.write("sys/bus/nd/devices/region1/size", "1073741824\n");

        let found = ranges(&Files::below(fixture.root())).unwrap();

        let gib = Some(Bytes::gib(1));
        let range =
            |kind, start, has_device| Range { kind, start: Some(start), size: gib, has_device };
        assert_eq!(
            found,
            [
                range(RangeKind::PersistentLegacy, 0x1_0000_0000, true),
                range(RangeKind::PersistentLegacy, 0x1_4000_0000, false),
                range(RangeKind::SoftReserved, 0x1_8000_0000, false),
                range(RangeKind::Persistent, 0x1_c000_0000, true),
            ]
        );
    }

    #[test]
    fn who_is_not_root_sees_that_there_is_some_and_not_where() {
        let fixture = Fixture::new();
        fixture.write("proc/iomem", "00000000-00000000 : Soft Reserved\n  00000000-00000000 : dax0.0\n00000000-00000000 : Soft Reserved\n");
        let found = ranges(&Files::below(fixture.root())).unwrap();
        let seen: Vec<_> = found.iter().map(|range| (range.start, range.has_device)).collect();
        assert_eq!(seen, [(None, true), (None, false)]);
    }

    #[test]
    fn what_is_no_range_is_an_error_with_its_file() {
        let fixture = Fixture::new();
        for range in ["2-1", "0-ffffffffffffffff", "1", "0-10000000000000000"] {
            fixture.write("proc/iomem", &format!("{range} : Soft Reserved\n"));
            let error = ranges(&Files::below(fixture.root())).unwrap_err().to_string();
            assert!(error.ends_with(&format!("proc/iomem: `{range}` is no range")), "{error}");
        }
        fixture.write("proc/iomem", "1-ffffffffffffffff : Soft Reserved\n");
        let found = ranges(&Files::below(fixture.root())).unwrap();
        assert_eq!(found[0].size, Some(Bytes(u64::MAX)));
    }
}
