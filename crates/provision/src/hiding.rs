//! Boot arguments that keep slow memory out of the kernel's sight.
//!
//! Memory that the firmware calls ordinary is hidden by `memmap=SIZE!START`: the
//! kernel then takes the range for persistent memory, makes no page descriptors
//! for it, and shows it as a region that `nd_e820` finds. Memory that the
//! firmware calls persistent, or for a special purpose, is hidden already.

use terrace_core::Bytes;
use thiserror::Error;

/// A range of physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its first address.
    pub start: u64,
    /// Its size.
    pub size: Bytes,
}

/// What a list of blocks cannot be hidden for.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HidingError {
    /// The node has none.
    #[error("has no memory")]
    Empty,
    /// The kernel itself is in the lowest memory.
    #[error("has the memory that the kernel is started in")]
    Lowest,
}

/// The ranges that blocks make, by their numbers in ascending order.
pub fn ranges(blocks: &[u64], block: Bytes) -> Result<Vec<Range>, HidingError> {
    let mut ranges: Vec<Range> = Vec::new();
    for &number in blocks {
        let start = number * block.0;
        match ranges.last_mut() {
            Some(last) if last.start + last.size.0 == start => last.size += block,
            _ => ranges.push(Range { start, size: block }),
        }
    }
    match ranges.first() {
        None => Err(HidingError::Empty),
        // Below 4 GiB lie the kernel, the firmware, and what old devices can reach.
        Some(first) if first.start < 4 << 30 => Err(HidingError::Lowest),
        Some(_) => Ok(ranges),
    }
}

/// An amount as the kernel's command line takes it, exactly.
fn exact(amount: u64) -> String {
    match amount {
        0 => "0".to_owned(),
        n if n.is_multiple_of(1 << 30) => format!("{}G", n >> 30),
        n if n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        n => format!("{n:#x}"),
    }
}

/// The arguments: those that hide ranges, and those without which memory that comes in would be
/// online at once. `memmap_on_memory`: page descriptors lie in the memory that they describe.
pub fn arguments(ranges: &[Range], memmap_on_memory: bool) -> Vec<String> {
    let hides = |range: &Range| format!("memmap={}!{}", exact(range.size.0), exact(range.start));
    let mut all: Vec<String> = ranges.iter().map(hides).collect();
    all.push("memhp_default_state=offline".to_owned());
    if memmap_on_memory {
        all.push("memory_hotplug.memmap_on_memory=1".to_owned());
    }
    all
}

/// The first line of a file of boot arguments that is ours.
pub const MARK: &str = "# Written by `terrace provision hide`.";

/// A file for `/etc/default/grub.d`.
pub fn grub(arguments: &[String]) -> String {
    // The shell that reads it must not see `!` or `$` in anything but single quotes.
    format!(
        "{MARK}\n# After a change: update-grub, and reboot.\n\
         GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX \"'{}'\n",
        arguments.join(" ")
    )
}

/// Those that the kernel was not booted with.
pub fn lacking<'a>(arguments: &'a [String], command_line: &str) -> Vec<&'a String> {
    let has = |wanted: &str| command_line.split_whitespace().any(|word| word == wanted);
    arguments.iter().filter(|argument| !has(argument)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_lie_side_by_side_are_one_range() {
        let block = Bytes::mib(128);
        let found = ranges(&[32, 33, 34, 40], block).unwrap();
        assert_eq!(
            arguments(&found, true),
            [
                "memmap=384M!4G",
                "memmap=128M!5G",
                "memhp_default_state=offline",
                "memory_hotplug.memmap_on_memory=1"
            ]
        );
        assert_eq!(ranges(&[], block), Err(HidingError::Empty));
        assert_eq!(ranges(&[0, 1], block), Err(HidingError::Lowest));
    }

    #[test]
    fn a_file_for_grub_adds_to_what_is_there() {
        let arguments = ["memmap=1G!4G".to_owned(), "memhp_default_state=offline".to_owned()];
        let text = grub(&arguments);
        assert!(text.starts_with(MARK));
        assert!(text.ends_with(
            "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX \"'memmap=1G!4G memhp_default_state=offline'\n"
        ));
        assert_eq!(lacking(&arguments, "quiet memmap=1G!4G"), [&arguments[1]]);
    }
}
