//! What calls cost and touch: a file in which each number has its source.

use serde::Deserialize;
use terrace_core::machine::{Sourced, parse_document};
use terrace_core::{Bytes, BytesPerSecond, MachineError, Nanos};

/// The file that comes with Terrace.
pub(super) const BUILTIN: &str = include_str!("../../data/kernel-calls.toml");

/// What a simulated kernel's calls cost.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    schema: u32,
    /// Time of calls that miss no cache.
    pub time: Times,
    /// Cache lines of an object that are touched when it is used.
    pub lines: Lines,
    /// Objects that calls take beyond those that their meaning implies.
    pub objects: Objects,
    /// How often the kernel's own threads work.
    pub pace: Pace,
    /// The disk, and how far the network's other end is.
    pub device: DeviceCosts,
}

/// Time of calls that miss no cache.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Times {
    /// Opening and closing a file; charged when it is opened.
    pub open_and_close: Sourced<Nanos>,
    /// Creating and deleting a file; half of it each.
    pub create_and_unlink: Sourced<Nanos>,
    /// Reading a page that is in the page cache.
    pub read_page: Sourced<Nanos>,
    /// Writing a page that is in the page cache.
    pub write_page: Sourced<Nanos>,
    /// What a page that has to be added to the page cache takes beyond that.
    pub new_page: Sourced<Nanos>,
    /// Asking for a file's attributes.
    pub stat: Sourced<Nanos>,
    /// Giving a file another name.
    pub rename: Sourced<Nanos>,
    /// Listing a directory, by entry.
    pub directory_entry: Sourced<Nanos>,
    /// A connection from its first packet to its last, both ends; a third of it for each of
    /// connect or accept, the socket itself, and its close.
    pub connection: Sourced<Nanos>,
    /// Sending or receiving a message.
    pub message: Sourced<Nanos>,
    /// Waiting for sockets.
    pub epoll: Sourced<Nanos>,
    /// Mapping or unmapping a file.
    pub map: Sourced<Nanos>,
    /// A page fault.
    pub fault: Sourced<Nanos>,
    /// Reading and clearing the accessed bit of a page.
    pub scan_page: Sourced<Nanos>,
}

/// Cache lines of an object that are touched when it is used.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(missing_docs)] // the names are those of the objects
pub struct Lines {
    pub inode: Sourced<u32>,
    pub dentry: Sourced<u32>,
    pub extent: Sourced<u32>,
    pub journal_buffer: Sourced<u32>,
    pub bio: Sourced<u32>,
    pub blk_mq_request: Sourced<u32>,
    pub sock: Sourced<u32>,
    pub skbuff: Sourced<u32>,
    pub skbuff_data: Sourced<u32>,
    pub index_node: Sourced<u32>,
    pub file: Sourced<u32>,
    pub buffer_head: Sourced<u32>,
}

/// Objects that calls take beyond those that their meaning implies.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Objects {
    /// Extents that the first page of a file takes.
    pub extents_of_first_page: Sourced<u32>,
    /// Extents that are made and dropped when new pages get their places on the disk.
    pub extents_of_placing: Sourced<u32>,
    /// Journal buffers of a new file, on average: files share blocks of inodes.
    pub journal_buffers_of_create: Sourced<f64>,
    /// Buffer heads of a page that was written.
    pub buffer_heads_of_page: Sourced<u32>,
    /// Consecutive pages in one extent at most.
    pub pages_of_extent: Sourced<u32>,
    /// Bytes in one packet at most.
    pub segment: Sourced<u32>,
}

/// How often the kernel's own threads work.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Pace {
    /// From one commit of the journal to the next, if nobody asks for one.
    pub commit_interval: Sourced<Nanos>,
    /// From one look for dirty pages to the next.
    pub write_back_interval: Sourced<Nanos>,
    /// Pages that have been dirty for longer are written.
    pub dirty_expires: Sourced<Nanos>,
    /// With more of the memory dirty, pages are written at once.
    pub dirty_background: Sourced<f64>,
    /// With more of the memory dirty, writers wait.
    pub dirty_limit: Sourced<f64>,
    /// Pages that are read ahead at most.
    pub read_ahead: Sourced<Bytes>,
    /// What one bio transfers at most.
    pub largest_bio: Sourced<Bytes>,
}

/// The disk, and how far the network's other end is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DeviceCosts {
    /// Bandwidth of transfers that go on where the one before ended, or are long.
    pub sequential: Sourced<BytesPerSecond>,
    /// Bandwidth of other transfers.
    pub random: Sourced<BytesPerSecond>,
    /// From a request to its completion on an idle device, without the transfer.
    pub latency: Sourced<Nanos>,
    /// From a packet to its acknowledgement.
    pub round_trip: Sourced<Nanos>,
}

impl Costs {
    /// The numbers that come with Terrace.
    pub fn builtin() -> Self {
        Self::parse("kernel-calls.toml", BUILTIN).expect("a test parses it")
    }

    /// Reads a file's text. `file` is only used in errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, MachineError> {
        parse_document(file, text, Self::validate)
    }

    /// Whether a text is meant to be such a file, however wrong.
    pub fn is_meant(text: &str) -> bool {
        let has = |table: &str| text.lines().any(|line| line.trim() == table);
        has("[time]") && (has("[pace]") || has("[lines]"))
    }

    fn validate(&self) -> Result<(), (String, String)> {
        let bad = |field: &str, message: &str| Err((field.to_owned(), message.to_owned()));
        if self.schema != 1 {
            return bad("schema", "this version reads schema 1 only");
        }
        if self.objects.pages_of_extent.value == 0 || self.objects.segment.value == 0 {
            return bad("objects", "pages-of-extent and segment must be at least 1");
        }
        if self.objects.buffer_heads_of_page.value > 1 {
            return bad("objects.buffer-heads-of-page", "must be 0 or 1: blocks of 4 KiB");
        }
        if self.device.random.value.get() <= 0.0 || self.device.sequential.value.get() <= 0.0 {
            return bad("device", "sequential and random must be above zero");
        }
        let pace = &self.pace;
        for (field, value) in [
            ("pace.commit-interval", pace.commit_interval.value),
            ("pace.write-back-interval", pace.write_back_interval.value),
        ] {
            if value.is_zero() {
                return bad(field, "must be above zero");
            }
        }
        for (field, value) in [
            ("pace.read-ahead", pace.read_ahead.value),
            ("pace.largest-bio", pace.largest_bio.value),
        ] {
            if value < Bytes::kib(4) {
                return bad(field, "must be at least one page");
            }
        }
        Ok(())
    }

    /// The same kernel for a memory of an n-th: what it does from time to time it does n times
    /// as often, since the memory fills in an n-th of the time.
    #[must_use]
    pub fn scaled(mut self, n: u64) -> Self {
        let pace = &mut self.pace;
        for interval in
            [&mut pace.commit_interval, &mut pace.write_back_interval, &mut pace.dirty_expires]
        {
            interval.value = Nanos((interval.value.get() / n.max(1)).max(1));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_builtin_file_is_right_and_a_wrong_one_is_refused_with_its_line() {
        assert_eq!(Costs::builtin().time.read_page.value, Nanos(478));
        let wrong = BUILTIN.replace("value = 1448", "value = 0");
        let error = Costs::parse("x.toml", &wrong).expect_err("no packet is empty").to_string();
        assert!(error.contains("x.toml:"), "{error}");
        let unknown = BUILTIN.replace("segment =", "segments =");
        let error = Costs::parse("x.toml", &unknown).expect_err("misspelt").to_string();
        assert!(error.contains("segments"), "{error}");
    }
}
