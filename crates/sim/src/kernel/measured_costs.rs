//! A file of costs for the kernel that was measured: the built-in file, with what was measured in
//! place of what was measured elsewhere.

use terrace_kloc::measure::{CALLS, Measured};

use super::costs::{BUILTIN, Costs};

/// A number of the file, and where it comes from.
struct Entry {
    table: &'static str,
    key: &'static str,
    value: String,
    source: String,
}

/// The file's text. What was not measured keeps the value and the source that it has in the
/// built-in file, and is given by name beside it.
pub fn text_of(measured: &Measured, day: &str) -> (String, Vec<String>) {
    let entries = entries(measured, day);
    let mut text = String::with_capacity(BUILTIN.len());
    let (mut table, mut kept) = (String::new(), Vec::new());
    for line in BUILTIN.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut table);
        }
        let key = line.split_once(" = {").map(|(key, _)| key);
        let entry = key.and_then(|key| entries.iter().find(|e| e.table == table && e.key == key));
        match (entry, key) {
            (Some(Entry { key, value, source, .. }), _) => {
                text += &format!("{key} = {{ value = {value}, source = \"{source}\" }}\n");
            }
            (None, key) => {
                if let Some(key) = key.filter(|_| matches!(&*table, "time" | "lines" | "objects")) {
                    kept.push(format!("{table}.{key}"));
                }
                text += line;
                text.push('\n');
            }
        }
    }
    debug_assert!(Costs::parse("measured", &text).is_ok(), "it has the built-in file's form");
    (text, kept)
}

fn entries(measured: &Measured, day: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let kernel = &measured.kernel;
    let run = format!("terrace calibrate kernel, {day}, Linux {kernel}");
    let time = |call: &str| measured.times.get(call).copied();
    let mut nanos = |key, value: Option<f64>, what: &str| {
        if let Some(value) = value {
            let value = format!("\"{}ns\"", value.max(1.0).round());
            entries.push(Entry { table: "time", key, value, source: format!("{run}: {what}") });
        }
    };
    let less = |a: &str, b: &str| Some((time(a)? - time(b)?).max(1.0));
    nanos("open-and-close", time("open-and-close"), "measured, open-and-close");
    nanos(
        "create-and-unlink",
        less("create-close-and-unlink", "open-and-close"),
        "derived, create-close-and-unlink without open-and-close",
    );
    nanos("read-page", time("read-4096"), "measured, read-4096");
    nanos("write-page", time("write-4096"), "measured, write-4096");
    nanos("new-page", less("append-4096", "write-4096"), "derived, append-4096 without write-4096");
    nanos("stat", time("stat"), "measured, stat");
    nanos("rename", time("rename"), "measured, rename");
    nanos("directory-entry", time("readdir-64").map(|t| t / 64.0), "derived, readdir-64 by entry");
    nanos(
        "connection",
        time("connect-accept-and-close"),
        "measured, connect-accept-and-close: both ends, with the handshake",
    );
    nanos(
        "message",
        time("send-and-recv-64").map(|t| t / 2.0),
        "derived, half of send-and-recv-64: one end",
    );

    let mut objects = |key, value: Option<String>, what: &str| {
        if let Some(value) = value {
            let source = format!("{run}: {what}, mean of {CALLS} calls");
            entries.push(Entry { table: "objects", key, value, source });
        }
    };
    let whole = |count: f64| format!("{}", count.round());
    // A file system without this cache says nothing of extents, of the journal or of buffers.
    let seen = |cache: &str| {
        let name = format!("kmem_cache_alloc.{cache}");
        measured.objects.values().any(|call| call.contains_key(&name))
    };
    let allocated = |call, cache: &str| measured.allocated(call, cache).filter(|_| seen(cache));
    objects(
        "extents-of-first-page",
        allocated("write-first-page", "extent_status").map(|count| whole(count.max(1.0))),
        "write-first-page, extent_status",
    );
    objects(
        "extents-of-placing",
        allocated("fsync-one-page", "extent_status").map(whole),
        "fsync-one-page, extent_status",
    );
    objects(
        "journal-buffers-of-create",
        measured.allocated("create", "jbd2_journal_head").map(|count| format!("{count:.2}")),
        "create, jbd2_journal_head",
    );
    objects(
        "buffer-heads-of-page",
        // One stands for all of a page: their number follows the file system's blocks.
        measured.allocated("write-first-page", "buffer_head").map(|count| whole(count.min(1.0))),
        "write-first-page, buffer_head, at most one for a page",
    );

    let mut lines = |key, caches: &[&str]| {
        let found = caches.iter().find_map(|cache| Some((cache, measured.sizes.get(*cache)?)));
        if let Some((cache, bytes)) = found {
            let value = bytes.div_ceil(64).to_string();
            let source = format!("{run}: /proc/slabinfo, {cache}: {bytes} B");
            entries.push(Entry { table: "lines", key, value, source });
        }
    };
    lines("extent", &["extent_status", "ext4_extent_status"]);
    lines("journal-buffer", &["jbd2_journal_head"]);
    lines("bio", &["bio-184", "bio-192", "bio-200", "bio-256"]);
    lines("skbuff", &["skbuff_head_cache"]);
    lines("buffer-head", &["buffer_head"]);
    entries
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn measured() -> Measured {
        let mut measured = Measured { kernel: "6.99".to_owned(), ..Measured::default() };
        measured.times = BTreeMap::from([("read-4096", 321.4), ("append-4096", 2000.0)]);
        let first = BTreeMap::from([("kmem_cache_alloc.extent_status".to_owned(), 0.98)]);
        measured.objects =
            BTreeMap::from([("write-first-page", first), ("create", BTreeMap::new())]);
        measured.sizes = BTreeMap::from([("buffer_head".to_owned(), 130)]);
        measured
    }

    #[test]
    fn what_was_measured_is_in_the_file_and_the_rest_is_named() {
        let (text, kept) = text_of(&measured(), "2026-11-27");
        let costs = Costs::parse("kernel.toml", &text).expect("a file of costs");
        assert_eq!(costs.time.read_page.value.get(), 321);
        assert!(costs.time.read_page.source.contains("Linux 6.99"));
        assert_eq!(costs.objects.extents_of_first_page.value, 1);
        assert_eq!(costs.lines.buffer_head.value, 3);
        // The journal was not seen: a file without it has none of its buffers.
        assert!(costs.objects.journal_buffers_of_create.value.abs() < 1e-9);
        // Of what a price is derived from, one part is missing.
        for name in ["time.new-page", "time.stat", "lines.inode", "time.epoll"] {
            assert!(kept.iter().any(|k| k == name), "{name}: {kept:?}");
        }
        assert!(!kept.iter().any(|k| k == "time.read-page"));
    }
}
