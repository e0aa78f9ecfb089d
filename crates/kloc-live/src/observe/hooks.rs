//! Which hooks there are, and which are used: chosen by trying.
//!
//! | set | open | close | inode goes |
//! |---|---|---|---|
//! | trampolines | `fexit/do_dentry_open` | `fentry/__fput` | `fentry/evict` |
//! | tracepoints | `tp_btf/sys_exit` | `tp_btf/kmem_cache_free` of a `filp` | `tp_btf/ext4_evict_inode` |
//! | fanotify | `FAN_OPEN` | `FAN_CLOSE` | none |
//! | polled | `iter/task_file`, and pages that are used | `iter/task_file` | `tp_btf/ext4_evict_inode` |
//!
//! The last set is only used where it is named. It has no hook that runs at each system call, or at each
//! object that is freed: see [`super::polls`]. No tracepoint of the kernel runs at opens and closes alone.
//!
//! Trampolines see each open. Tracepoints miss opens that `io_uring` makes, and inodes of file
//! systems other than ext4 that go. Some kernels refuse trampolines by policy. Kernels before 6.7
//! free a closed file's `filp` after a grace period, from whatever thread runs then: tracepoints are
//! not used there.
//!
//! Where other objects are counted, too, there are hooks on them in both sets, none of which is needed:
//!
//! | objects | hooks |
//! |---|---|
//! | names (trampolines) | `fexit/d_instantiate`, `fexit/d_splice_alias`, `fentry/dentry_unlink_inode` |
//! | journal | `raw_tp/ext4_journal_start_inode` by file, `raw_tp/jbd2_handle_start` of the machine |
//! | all others | `tp_btf`, `COUNTERS` |
//!
//! Without hooks on names, they are those of the last open or close.

use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use super::assembler::Code;
use super::btf::{BtfError, Types};
use super::event::Kind;
use super::layout::{
    BioLayout, DescriptorLayout, FileLayout, GroupLayout, JournalLayout, TaskLayout,
};
use super::object_file::Program;
use super::programs::{Build, Cast, Count, Own};

/// A set of hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookSet {
    /// Entries and exits of the kernel's functions.
    Trampolines,
    /// The kernel's tracepoints.
    Tracepoints,
    /// Notifications of file systems, without eBPF.
    Fanotify,
    /// Looks from time to time at which files are open, and tracepoints of the page cache.
    Polled,
}

impl HookSet {
    /// All.
    pub const ALL: [Self; 4] = [Self::Trampolines, Self::Tracepoints, Self::Fanotify, Self::Polled];
    /// Those that are tried where none is named, the best first.
    pub const TRIED: [Self; 3] = [Self::Trampolines, Self::Tracepoints, Self::Fanotify];

    /// What options call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trampolines => "trampolines",
            Self::Tracepoints => "tracepoints",
            Self::Fanotify => "fanotify",
            Self::Polled => "polled",
        }
    }

    /// Whether opens and closes are told one by one, but for those that no hook sees.
    pub const fn tells_each_open(self) -> bool {
        !matches!(self, Self::Polled)
    }

    /// What has to be said beside numbers of opens that are lower bounds; nothing of others.
    pub const fn bounds(self) -> Option<&'static str> {
        if self.tells_each_open() {
            return None;
        }
        Some(
            "numbers of opens and hits are lower bounds: which files are open is only looked at from \
             time to time",
        )
    }
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attach {
    /// To a tracepoint.
    Tracepoint,
    /// To a tracepoint, whose arguments are numbers to it; also to one of a module.
    RawTracepoint,
    /// To where a function begins.
    Entry,
    /// To where it ends.
    Exit,
    /// To nothing: it runs when user space reads from this iterator.
    Iterator,
}

impl Attach {
    const fn section(self) -> &'static str {
        match self {
            Self::Tracepoint => "tp_btf",
            Self::RawTracepoint => "raw_tp",
            Self::Entry => "fentry",
            Self::Exit => "fexit",
            Self::Iterator => "iter",
        }
    }
}

/// A program and its hook.
#[derive(Clone, Debug)]
pub(super) struct Hook {
    pub(super) program: Program,
    pub(super) attach: Attach,
    pub(super) target: &'static str,
    /// Whether the set is of no use without it.
    pub(super) needed: bool,
    /// What is not known without it.
    pub(super) gives: &'static str,
}

/// The hooks of a set, and what they tell.
#[derive(Debug)]
pub(super) struct Hooks {
    pub(super) there: Vec<Hook>,
    /// What this kernel has no hook for, and why.
    pub(super) missing: Vec<String>,
    /// Whether opens and closes tell how many names a file has in the kernel's cache.
    pub(super) has_names: bool,
    /// The same of extents, of files on ext4.
    pub(super) has_extents: bool,
}

/// The program that writes which files are open.
pub(super) const OPEN_FILES: &str = "kloc_files";

/// What is known by hooks on pages of the cache that are read or mapped.
pub const USED_IN_PLACE: &str = "uses of files that are in place";
/// What is known by hooks on names.
pub const NAMES: &str = "names as they come and go";
/// What is known by a hook on handles of the journal with their inode.
pub const JOURNAL_BY_FILE: &str = "blocks that files ask the journal for";
/// What is known by a hook on handles of any journal.
pub const JOURNAL: &str = "handles of journals";

/// System calls whose result is a descriptor of a file that was opened.
#[cfg(target_arch = "x86_64")]
const OPENING: [i32; 5] = [2, 85, 257, 304, 437];
/// The same: `openat`, `open_by_handle_at`, `openat2`.
#[cfg(not(target_arch = "x86_64"))]
const OPENING: [i32; 3] = [56, 265, 437];

/// What frees open files after a grace period, in kernels before 6.7.
const FREED_LATER: &str = "file_free_rcu";

/// What is wanted of the hooks.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Devices (`st_dev`) whose files are looked at; all if there are none.
    pub devices: Vec<u64>,
    /// Whether other objects than pages, inodes and extents are counted, too.
    pub objects: bool,
    /// This set, and no other.
    pub set: Option<HookSet>,
}

/// How addresses become files, if the kernel can do that.
fn cast(types: &Types) -> Option<Cast> {
    let (function, file) = ("bpf_rdonly_cast", "file");
    Some(Cast { function: types.function_number(function)?, file: types.structure_number(file)? })
}

/// This process, as programs in the kernel recognize it.
fn own() -> Own {
    let process = std::process::id();
    let namespace = std::fs::metadata("/proc/self/ns/pid").ok().map(|is| {
        (super::event::kernel_device(is.dev()), u32::try_from(is.ino()).unwrap_or_default())
    });
    Own { process, namespace: namespace.filter(|_| !super::is_first_process_namespace()) }
}

/// The hooks of a set, for the kernel with these types.
pub(super) fn hooks(set: HookSet, types: &Types, wanted: &Wanted) -> Result<Hooks, BtfError> {
    let build = Build {
        file: FileLayout::new(types)?,
        group: GroupLayout::new(types).ok(),
        cast: cast(types),
        own: own(),
        devices: wanted.devices.iter().map(|&d| super::event::kernel_device(d)).collect(),
    };
    let (mut hooks, mut missing) = (Vec::new(), Vec::new());
    // What is not known to be an inode is read field by field, and its names are not counted.
    let is_typed = matches!(set, HookSet::Trampolines | HookSet::Polled) || build.cast.is_some();
    let has_names = set != HookSet::Fanotify && is_typed && build.file.names.is_some();
    let has_extents = set != HookSet::Fanotify && build.file.extents.is_some();
    let mut add = |name, attach: Attach, target, needed, gives, code| {
        let program = Program { name, hook: attach.section(), code };
        hooks.push(Hook { program, attach, target, needed, gives });
    };
    match set {
        HookSet::Trampolines => {
            let open = first(types, &["do_dentry_open", "vfs_open"])?;
            // do_dentry_open(file, [inode,] open) and vfs_open(path, file): the result comes
            // behind the arguments.
            let (file, result) = if open == "vfs_open" {
                (1, 2)
            } else {
                (0, types.function_arguments(open)? as i16)
            };
            let code = build.file_argument(Kind::Opened, file, Some(result));
            add("kloc_open", Attach::Exit, open, true, "opens", code);
            let close = first(types, &["__fput", "security_file_free"])?;
            let code = build.file_argument(Kind::Closed, 0, None);
            add("kloc_close", Attach::Entry, close, true, "closes", code);
            if let Ok(evict) = first(types, &["evict", "clear_inode"]) {
                let gives = "inodes that the kernel drops";
                add("kloc_evict", Attach::Entry, evict, false, gives, build.evict());
            }
        }
        HookSet::Tracepoints => {
            // Whatever thread runs when the grace period ends frees it there: the close would be
            // told of that one's process and control group, and too late.
            if types.has_function(FREED_LATER) {
                return Err(BtfError::Unfit(format!(
                    "closed files are freed after a grace period (`{FREED_LATER}`), by whatever \
                     thread runs then"
                )));
            }
            let arguments = types.tracepoint_arguments("kmem_cache_free")?;
            if arguments.get(2).map(String::as_str) != Some("kmem_cache") {
                return Err(BtfError::Missing("cache in tracepoint kmem_cache_free".into()));
            }
            let cache =
                (types.offset("kmem_cache", "object_size")?, types.offset("kmem_cache", "name")?);
            let sizes: Vec<u32> = [types.size("file").ok(), types.size("backing_file").ok()]
                .into_iter()
                .flatten()
                .collect();
            let code = build.close_by_slab(cache, &sizes);
            add("kloc_close", Attach::Tracepoint, "kmem_cache_free", true, "closes", code);
            let code = build.open_by_call(&DescriptorLayout::new(types)?, &OPENING);
            add("kloc_open", Attach::Tracepoint, "sys_exit", true, "opens", code);
            if types.has_tracepoint("ext4_evict_inode") {
                let gives = "inodes that the kernel drops";
                add(
                    "kloc_evict",
                    Attach::Tracepoint,
                    "ext4_evict_inode",
                    false,
                    gives,
                    build.evict(),
                );
            }
        }
        HookSet::Polled => {
            if !types.has_function("bpf_iter_task_file") {
                return Err(BtfError::Missing("iterator task_file".into()));
            }
            let code = build.open_files(&TaskLayout::new(types)?);
            add(OPEN_FILES, Attach::Iterator, "task_file", true, "files that are open", code);
            // Without it, files that are opened and closed between two looks would never be known.
            begins_with(types, CAME, "folio")?;
            let code = build.used(Some(types.offset("folio", "mapping")?));
            add("kloc_came", Attach::Tracepoint, CAME, true, "files of which pages come", code);
            for (name, target) in USES {
                match begins_with(types, target, "address_space") {
                    Ok(()) => {
                        let code = build.used(None);
                        add(name, Attach::Tracepoint, target, false, USED_IN_PLACE, code);
                    }
                    Err(why) => missing.push(format!("{USED_IN_PLACE}: {why}")),
                }
            }
            if types.has_tracepoint("ext4_evict_inode") {
                let (target, gives) = ("ext4_evict_inode", "inodes that the kernel drops");
                add("kloc_evict", Attach::Tracepoint, target, false, gives, build.evict());
            }
        }
        HookSet::Fanotify => {}
    }
    if wanted.objects && set != HookSet::Fanotify {
        if let Ok(bio) = BioLayout::new(types) {
            let gives = "block transfers by file";
            let code = build.transfer(&bio);
            add("kloc_bio", Attach::Tracepoint, "block_bio_queue", false, gives, code);
        }
        match journal(types) {
            Ok(way) => {
                let (code, target) = (build.journaled(&way), JOURNAL_TRACEPOINT);
                let name = "kloc_journaled";
                add(name, Attach::RawTracepoint, target, false, JOURNAL_BY_FILE, code);
            }
            Err(why) => missing.push(format!("{JOURNAL_BY_FILE}: {why}")),
        }
        // That of a module has its types there, so whether it is there is tried.
        let (code, target) = (Build::counter(Count::Journal), "jbd2_handle_start");
        add("kloc_journal", Attach::RawTracepoint, target, false, JOURNAL, code);
        for (name, target, what, gives) in COUNTERS {
            if types.has_tracepoint(target) {
                add(name, Attach::Tracepoint, target, false, gives, Build::counter(what));
            }
        }
    }
    if wanted.objects && set == HookSet::Trampolines {
        match names(types, &build) {
            Ok(all) => {
                for (name, attach, target, code) in all {
                    add(name, attach, target, false, NAMES, code);
                }
            }
            Err(why) => missing.push(format!("{NAMES}: {why}")),
        }
    }
    if set != HookSet::Fanotify && !has_names {
        let why = "this kernel has no inode.i_dentry, or no bpf_rdonly_cast";
        missing.push(format!("names of files: {why}"));
    }
    Ok(Hooks { there: hooks, missing, has_names, has_extents })
}

/// The first of some functions that the kernel has.
fn first(types: &Types, names: &[&'static str]) -> Result<&'static str, BtfError> {
    let found = names.iter().copied().find(|name| types.has_function(name));
    found.ok_or_else(|| BtfError::Missing(format!("function {}", names.join(" or "))))
}

/// A page comes into the cache.
const CAME: &str = "mm_filemap_add_to_page_cache";
/// Pages that are in the cache are read, mapped, or looked for to be mapped.
const USES: [(&str, &str); 3] = [
    ("kloc_read", "mm_filemap_get_pages"),
    ("kloc_mapped", "mm_filemap_map_pages"),
    ("kloc_fault", "mm_filemap_fault"),
];

/// A tracepoint whose first argument points to such a structure.
fn begins_with(types: &Types, tracepoint: &str, structure: &str) -> Result<(), BtfError> {
    let arguments = types.tracepoint_arguments(tracepoint)?;
    if arguments.first().map(String::as_str) == Some(structure) {
        return Ok(());
    }
    Err(BtfError::Missing(format!("{structure} in tracepoint {tracepoint}")))
}

/// The tracepoint that tells for which inode a handle is started.
const JOURNAL_TRACEPOINT: &str = "ext4_journal_start_inode";

/// What is needed to tell for which file a handle of the journal is started.
fn journal(types: &Types) -> Result<JournalLayout, BtfError> {
    if !types.has_tracepoint(JOURNAL_TRACEPOINT) {
        return Err(BtfError::Missing(format!("tracepoint {JOURNAL_TRACEPOINT}")));
    }
    JournalLayout::new(types)
}

/// Hooks on names as they come and go: all of them or none, for a count that only grows would be
/// worse than that of the last open.
fn names(
    types: &Types,
    build: &Build,
) -> Result<[(&'static str, Attach, &'static str, Code); 3], BtfError> {
    let names = build.file.names.ok_or_else(|| BtfError::Missing("inode.i_dentry".into()))?;
    let found = first(types, &["d_splice_alias"])?;
    let result = types.function_arguments(found)? as i16;
    let inode = types.offset("dentry", "d_inode")?;
    // Both `__dentry_kill` and `d_delete` come through it.
    let gone = first(types, &["dentry_unlink_inode"])?;
    Ok([
        // d_instantiate(name, inode): a link, or what some file systems make.
        (
            "kloc_name_new",
            Attach::Exit,
            first(types, &["d_instantiate"])?,
            build.name_came(names, 1, None),
        ),
        // d_splice_alias(inode, name): what was looked up. With an error in place of an inode it
        // gives that error.
        ("kloc_name_found", Attach::Exit, found, build.name_came(names, 0, Some(result))),
        ("kloc_name_gone", Attach::Entry, gone, build.name_goes(names, inode)),
    ])
}

/// Tracepoints that are counted.
const COUNTERS: [(&str, &str, Count, &str); 6] = [
    ("kloc_request", "block_rq_issue", Count::Requests, "requests to block devices"),
    ("kloc_consumed", "consume_skb", Count::Packets, "packets that were used up"),
    ("kloc_freed", "kfree_skb", Count::Packets, "packets that were dropped"),
    ("kloc_held", "page_pool_state_hold", Count::ReceiveHeld, "receive buffers"),
    ("kloc_released", "page_pool_state_release", Count::ReceiveReleased, "receive buffers"),
    ("kloc_sockets", "inet_sock_set_state", Count::SocketStates, "states of connections"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// What is being tried out is had by who names it, and by nobody else.
    #[test]
    fn a_set_with_lower_bounds_is_used_only_where_it_is_named() {
        assert!(HookSet::TRIED.iter().all(|set| set.tells_each_open()));
        assert!(HookSet::TRIED.iter().all(|set| set.bounds().is_none()));
        let bounds = HookSet::Polled.bounds();
        assert!(bounds.is_some_and(|text| text.contains("lower bounds")), "{bounds:?}");
        let mut names: Vec<_> = HookSet::ALL.iter().map(|set| set.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), HookSet::ALL.len());
    }

    /// Hooks at each system call and at each free are what this set is there to do without.
    #[test]
    fn open_files_are_looked_for_without_a_hook_that_runs_at_each_call_or_free() {
        // The running kernel's types; a machine without them has no programs at all.
        let Ok(types) = Types::of_kernel(&[]) else { return };
        let Ok(hooks) = hooks(HookSet::Polled, &types, &Wanted::default()) else { return };
        let targets: Vec<_> = hooks.there.iter().map(|hook| hook.target).collect();
        assert!(targets.contains(&"task_file") && targets.contains(&CAME), "{targets:?}");
        assert!(!targets.iter().any(|&target| target == "sys_exit" || target == "kmem_cache_free"));
    }
}
