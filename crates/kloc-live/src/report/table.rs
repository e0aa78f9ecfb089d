//! Kinds of objects: what is known of each on this kernel, and how.

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, ObjectKind};

use crate::observe::hooks::HookSet;

/// How exactly a kind of objects is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Knowledge {
    /// Of each context.
    Exact,
    /// Of the whole machine.
    Aggregate,
    /// Not at all.
    None,
}

impl Knowledge {
    /// What people read.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Aggregate => "aggregate",
            Self::None => "not to be had",
        }
    }
}

/// A row of Table 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The kind.
    pub kind: ObjectKind,
    /// What the paper calls it.
    pub paper: String,
    /// How exactly it is known.
    pub knowledge: Knowledge,
    /// By what.
    pub by: String,
    /// How many there are now, of contexts that are known or of the whole machine; or how many
    /// there were since the daemon began, where they live too shortly to be counted.
    pub count: Option<u64>,
    /// What they take now.
    pub bytes: Option<Bytes>,
    /// What can be done to them.
    pub action: String,
}

/// What the observer knows, for the table.
///
/// One field for each source of a row.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Which hooks are used.
    pub set: Option<HookSet>,
    /// Contexts that are known.
    pub contexts: u64,
    /// Pages of theirs, as of their last events.
    pub pages: u64,
    /// Extents of theirs; `None` if the kernel does not say.
    pub extents: Option<u64>,
    /// Whether other objects are counted, too.
    pub objects: bool,
    /// Names in the machine's cache of names.
    pub dentries: Option<u64>,
    /// Those of contexts, as of their last events; `None` if hooks do not tell.
    pub names: Option<u64>,
    /// Whether they are also told when one comes or goes.
    pub names_live: bool,
    /// Block transfers for files since the beginning.
    pub transfers: Option<u64>,
    /// Requests to block devices since then.
    pub requests: Option<u64>,
    /// Handles of journals that were started since then.
    pub journal: Option<u64>,
    /// Blocks that files asked the journal for since then; `None` if no hook tells for which file.
    pub journal_blocks: Option<u64>,
    /// Sockets now, and what their buffers take.
    pub sockets: Option<(u64, Bytes)>,
    /// Packets that were freed since then.
    pub packets: Option<u64>,
    /// Receive buffers that drivers hold now.
    pub receive: Option<u64>,
}

/// Table 1 for what is known, on a machine with pages of this size.
pub fn table(known: &Known, page: Bytes) -> Vec<Row> {
    let looks = known.set.is_some_and(|set| !set.tells_each_open());
    let inodes = match known.set {
        Some(_) if looks => "looks at open files, uses, evictions",
        Some(HookSet::Fanotify) | None => "opens, closes",
        Some(_) => "opens, closes, evictions",
    };
    let at = |told: &'static str, looked: &'static str| if looks { looked } else { told };
    let objects = |by: &str, count: Option<u64>, how: Knowledge| {
        if count.is_some() {
            (how, by.to_owned())
        } else if known.objects {
            (Knowledge::None, "no hook that tells can be had".to_owned())
        } else {
            (Knowledge::None, "not asked for (--objects)".to_owned())
        }
    };
    ObjectKind::ALL
        .into_iter()
        .map(|kind| {
            let exact = |by: &str| (Knowledge::Exact, by.to_owned());
            let sized = |count: u64| (Some(count), Some(kind.size() * count));
            let paged = |count: u64| (Some(count), Some(page * count));
            let ((knowledge, by), (count, bytes), action) = match kind {
                ObjectKind::PageCachePage => (
                    exact(at(
                        "pages of the file at each open and close",
                        "pages of the file at each look, and when it was found closed",
                    )),
                    paged(known.pages),
                    "drop, move to a slow node, mark cold, prefetch",
                ),
                ObjectKind::Inode => (
                    exact(inodes),
                    sized(known.contexts),
                    "none; an inode without pages is pruned sooner",
                ),
                ObjectKind::Dentry => {
                    let how = match (known.names, known.names_live) {
                        (Some(_), true) => exact("names of the file, as they come and go"),
                        (Some(_), false) => exact(at(
                            "names of the file at each open and close",
                            "names of the file when a look or a use told that it is open",
                        )),
                        (None, _) => (Knowledge::Aggregate, "/proc/sys/fs/dentry-state".to_owned()),
                    };
                    let count = known.names.or(known.dentries).map_or((None, None), sized);
                    (how, count, "none")
                }
                ObjectKind::Extent => {
                    let how = if known.extents.is_some() {
                        exact(at(
                            "ext4's count at each open and close",
                            "ext4's count when a look or a use told that the file is open",
                        ))
                    } else {
                        (Knowledge::None, "no file of ext4, or its types are not known".to_owned())
                    };
                    let count = known.extents.map_or((None, None), sized);
                    (how, count, "free (EXT4_IOC_CLEAR_ES_CACHE)")
                }
                // The buffers themselves are of the block device, which all of its files share.
                ObjectKind::JournalBuffer => {
                    let (by, count, how) = match known.journal_blocks {
                        Some(blocks) => {
                            ("blocks that files asked for", Some(blocks), Knowledge::Exact)
                        }
                        None => ("handles that were started", known.journal, Knowledge::Aggregate),
                    };
                    (objects(by, count, how), (count, None), "none")
                }
                ObjectKind::Bio => (
                    objects("transfers by file", known.transfers, Knowledge::Exact),
                    (known.transfers, None),
                    "none: it lives for one transfer",
                ),
                ObjectKind::BlkMqRequest => (
                    objects("requests that were issued", known.requests, Knowledge::Aggregate),
                    (known.requests, None),
                    "none",
                ),
                ObjectKind::Sock => {
                    let how = if known.sockets.is_some() {
                        exact("iter/tcp, with each socket's age")
                    } else {
                        (Knowledge::None, "the kernel's iterator cannot be had".to_owned())
                    };
                    let count = known.sockets.map_or((None, None), |(count, _)| sized(count));
                    (how, count, "none: observed only")
                }
                ObjectKind::Skbuff => (
                    objects("packets that were freed", known.packets, Knowledge::Aggregate),
                    (known.packets, None),
                    "none",
                ),
                ObjectKind::SkbuffData => {
                    let how = if known.sockets.is_some() {
                        exact("memory of each socket's queues")
                    } else {
                        (Knowledge::None, "the kernel's iterator cannot be had".to_owned())
                    };
                    (how, (None, known.sockets.map(|(_, bytes)| bytes)), "none: observed only")
                }
                ObjectKind::ReceiveBuffer => (
                    objects("pages of page pools", known.receive, Knowledge::Aggregate),
                    known.receive.map_or((None, None), paged),
                    "none",
                ),
            };
            let action = action.to_owned();
            Row { kind, paper: kind.paper_name().to_owned(), knowledge, by, count, bytes, action }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_row_and_what_is_not_counted_says_why() {
        let known = Known { set: Some(HookSet::Tracepoints), pages: 3, ..Known::default() };
        let rows = table(&known, Bytes::kib(4));
        assert_eq!(rows.len(), ObjectKind::COUNT);
        let of = |kind| rows.iter().find(|row| row.kind == kind).expect("a row");
        assert_eq!(of(ObjectKind::PageCachePage).bytes, Some(Bytes(3 * 4096)));
        let bio = of(ObjectKind::Bio);
        assert_eq!((bio.knowledge, bio.count), (Knowledge::None, None));
        assert!(bio.by.contains("--objects"));
        let rows = table(&Known { objects: true, transfers: Some(7), ..known }, Bytes::kib(4));
        let bio = rows.iter().find(|row| row.kind == ObjectKind::Bio).expect("a row");
        assert_eq!((bio.knowledge, bio.count), (Knowledge::Exact, Some(7)));
    }

    /// What is known of each file is not to be taken for what is known of the machine, nor the other
    /// way round.
    #[test]
    fn names_and_the_journal_are_of_contexts_only_where_hooks_tell() {
        let of = |known: &Known, kind| {
            let row = table(known, Bytes::kib(4)).into_iter().find(|row| row.kind == kind);
            let row = row.expect("a row");
            (row.knowledge, row.count, row.by)
        };
        let machine = Known {
            set: Some(HookSet::Trampolines),
            objects: true,
            dentries: Some(9000),
            journal: Some(40),
            ..Known::default()
        };
        let (dentry, journal) = (ObjectKind::Dentry, ObjectKind::JournalBuffer);
        let state = "/proc/sys/fs/dentry-state".to_owned();
        assert_eq!(of(&machine, dentry), (Knowledge::Aggregate, Some(9000), state));
        let handles = "handles that were started".to_owned();
        assert_eq!(of(&machine, journal), (Knowledge::Aggregate, Some(40), handles));
        let known = Known { names: Some(7), journal_blocks: Some(0), ..machine.clone() };
        let (how, count, by) = of(&known, dentry);
        assert_eq!((how, count), (Knowledge::Exact, Some(7)));
        assert!(by.contains("open and close"), "{by}");
        let (_, _, by) = of(&Known { names_live: true, ..known.clone() }, dentry);
        assert!(by.contains("come and go"), "{by}");
        let (how, count, by) = of(&known, journal);
        assert_eq!((how, count), (Knowledge::Exact, Some(0)), "nothing was asked for");
        assert!(by.contains("blocks"), "{by}");
        let (how, _, why) = of(&Known { journal: None, ..machine.clone() }, journal);
        assert!(how == Knowledge::None && why.contains("no hook"), "{why}");
        let (how, _, why) = of(&Known { journal: None, objects: false, ..machine }, journal);
        assert!(how == Knowledge::None && why.contains("--objects"), "{why}");
    }

    /// Opens and closes that nobody was told of are not to be named.
    #[test]
    fn what_looks_tell_is_not_said_to_be_of_each_open() {
        let (names, extents) = (Some(1), Some(1));
        let by = |set| {
            let known = Known { set: Some(set), names, extents, ..Known::default() };
            let rows = table(&known, Bytes::kib(4)).into_iter();
            rows.map(|row| row.by).filter(|by| by.contains("each open")).count()
        };
        assert_eq!((by(HookSet::Tracepoints), by(HookSet::Polled)), (3, 0));
    }

    /// The kernel counts pages, which are not of one size on all machines.
    #[test]
    fn pages_are_as_large_as_the_machines() {
        let known = Known { pages: 3, receive: Some(2), ..Known::default() };
        let rows = table(&known, Bytes::kib(64));
        let of = |kind| rows.iter().find(|row| row.kind == kind).and_then(|row| row.bytes);
        assert_eq!(of(ObjectKind::PageCachePage), Some(Bytes::kib(192)));
        assert_eq!(of(ObjectKind::ReceiveBuffer), Some(Bytes::kib(128)));
    }
}
