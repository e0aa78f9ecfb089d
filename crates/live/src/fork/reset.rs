//! What a forked child does with each thing of ours that it inherits.
//!
//! A child is a copy of everything, made while the parent's other threads were at anything. It has
//! none of them: a lock that one of them held would never be given back, a phase that one of them
//! was in never end. So everything of ours that changes is in one of two lists, here for this crate
//! and in the preloaded library's `fork_reset.rs` for its own: what a child resets, and what it keeps,
//! with the reason why that is right. A test looks for statics, and for fields of the pager, that are
//! in neither.
//!
//! Resetting a lock is right only where what it guards cannot be half changed:
//!
//! - What Terrace's own threads guard is at rest: a fork is announced, and nothing of ours
//!   changes until it is over ([`Pager::before_fork`]).
//! - What threads of the program's change (in hooks), and would be torn, is locked by the thread
//!   that forks, from just before the copy is made until just after, in both processes.

use core::sync::atomic::Ordering::*;

use super::children::Children;
use super::wiped;
use crate::broker::number;
use crate::failsafe::sharers;
use crate::pager::Pager;
use crate::space::reservations;
use crate::workers::idle_priority;
use crate::workers::worker::Worker;

/// Statics, by file and name, that a child resets, and how.
#[cfg(test)]
const RESET: &[(&str, &str, &str)] = &[
    ("workers/idle_priority.rs", "IDLE", "no thread of ours is here yet"),
    ("workers/idle_priority.rs", "THREAD", "the same"),
    ("workers/idle_priority.rs", "CALLED", "the same"),
    ("workers/idle_priority.rs", "OWNER", "the same"),
    ("workers/idle_priority.rs", "ENDING", "its parent ends, not the child"),
    ("failsafe/sharers.rs", "KNOWN", "nobody shares a child's memory"),
    ("failsafe/sharers.rs", "MAKING", "the same"),
    ("failsafe/sharers.rs", "OTHERS", "the same"),
    ("failsafe/sharers.rs", "SILENT", "who asks is not here"),
    ("broker/member.rs", "SLOT", "it is the parent's: `Share::forked`, `forked_unmanaged`"),
    ("broker/member.rs", "SILENT_UNTIL", "the same"),
    ("broker/number.rs", "KNOWN", "the child has another number"),
    ("workers/credentials.rs", "TURN", "held by the thread that forks, which gives it back"),
    ("decide/event_ring.rs", "DECISIONS", "it is the parent's: `forked`"),
    ("decide/event_ring.rs", "RING", "it is the parent's: `forked`"),
    ("workers/early_handles.rs", "HELD", "it is of the parent's memory: `forget`"),
    ("space/reservations.rs", "CHANGING", "held by the thread that forks, which gives it back"),
    ("space/reservations.rs", "NOTED", "lock; nothing changes it while somebody forks"),
    ("fork/wiped.rs", "WIPED", "lock; nothing changes it while somebody forks"),
];

/// Statics that a child keeps as they are, and why that is right.
#[cfg(test)]
const UNCHANGED: &[(&str, &str, &str)] = &[
    ("workers/idle_priority.rs", "HOME", "set anew by each thread of ours when it begins"),
    (
        "workers/idle_priority.rs",
        "WAY_BACK",
        "a child has its parent's rights, and assesses changes",
    ),
    ("workers/idle_priority.rs", "LEFT_ALONE", "a filter on system calls is inherited"),
    ("broker/member.rs", "ALONE", "set once"),
    ("broker/member.rs", "BROKER", "set once; the page is shared"),
    ("broker/member.rs", "COMMON", "one number, set anew where the child has no pager"),
    ("broker/member.rs", "FAMILY", "the same in all that are forked from one process"),
    ("broker/member.rs", "FORKED_AT", "one number, set anew where the child has no pager"),
    ("broker/member.rs", "RUN", "the child is of the same run"),
    ("broker/number.rs", "ELSEWHERE", "the child is where its parent is, or further away"),
    ("broker/number.rs", "RUN", "set once; the child is of the same run"),
    ("broker/member.rs", "INHERITED", "one number, set anew where the child has no pager"),
    ("workers/credentials.rs", "CALL", "set by who asks, who is not here"),
    ("workers/credentials.rs", "ERROR", "the same"),
    ("workers/credentials.rs", "LEFT", "the same"),
    ("fork/parent.rs", "TOLD", "told once is enough"),
    ("fork/wiped.rs", "EVER", "whether to look; looked up under the lock"),
    ("decide/event_ring.rs", "TOLD", "the same"),
    ("failsafe/inject.rs", "ARMED", "a fault strikes in one process: whichever comes first"),
    ("failsafe/inject.rs", "LEFT", "the same"),
    ("failsafe/inject.rs", "STALLS", "set once"),
    (
        "evict/pinned_pages.rs",
        "PINNED",
        "pages that stay, for the child too; entries are valid with their value",
    ),
    ("fault/overhead.rs", "PROBED", "nothing is mapped there when a fork is accompanied"),
    ("workers/early_handles.rs", "FEATURES", "of the kernel"),
    ("workers/early_handles.rs", "INODE", "without a meaning where nothing is held"),
    ("evict/quiet_window.rs", "PREPARED", "set once; the page is the run's"),
    ("space/reservations.rs", "COUNT", "whether to look; looked up under the lock"),
    ("space/sealed.rs", "SEALED", "seals are inherited; nothing is sealed while somebody forks"),
    ("workers/bump_arena.rs", "ARENA", "what was handed out is in use, or of no use to anybody"),
    ("workers/bump_arena.rs", "USED", "one number, changed in one step"),
    ("fault/content.rs", "ZEROS", "does not change"),
    ("failsafe/reserve_memory.rs", "GIVEN", "one number, changed in one step"),
    ("failsafe/reserve_memory.rs", "START", "the mapping is the child's, too"),
    ("sys/addresses.rs", "OWN_START", "set once; what is the parent's is the child's, too"),
    ("sys/addresses.rs", "WINDOW_START", "the same"),
    ("sys/mod.rs", "FREED", "each entry changes in one step"),
    ("sys/mod.rs", "OWN_NEXT", "one number, changed in one step"),
    ("workers/threads.rs", "ROOM", "the same"),
    ("workers/threads.rs", "STACKS", "set once; the child's threads have them, emptied: `resume`"),
    ("workers/tls.rs", "LAYOUT", "set once"),
    ("sys/symbols.rs", "LOADED", "the loader's"),
    ("sys/symbols.rs", "C_LIBRARY", "set once; who is at it sets the same"),
    ("sys/uffd.rs", "PAGE_OF_ZEROS", "does not change"),
];

/// Fields of [`Pager`], and of what it consists of ([`PARTS`]), that a child resets
/// ([`Pager::reset`], or as is said).
#[cfg(test)]
const RESET_FIELDS: &[(&str, &str)] = &[
    ("bell.asleep", "the manager is not here"),
    ("budget.late", "no search of its own was in vain: `Budget::forked`"),
    ("budget.locked", "locks are not inherited: `Budget::forked`"),
    ("budget.nothing_leaves", "the same"),
    ("budget.pinned_for", "the same"),
    ("budget.share", "a share of its own: `Share::forked`"),
    ("commands", "nor is who asked"),
    ("decide.decider", "lock"),
    ("evict.ring", "lock"),
    ("evict.unsharing", "taken by a handler that is not here"),
    ("fault.handlers", "no thread of ours waits"),
    ("fault.stalls", "nobody waits"),
    ("fork.children", "lock; the parent's children are not its own"),
    ("fork.gate", "nobody waits for the parent's fork"),
    ("fork.hold_until", "nor for the parent's faults"),
    ("fork.handover", "forgotten: `forget_handover`"),
    ("fork.inherited", "unmapped: `count_on`"),
    ("fork.interim", "unmapped: `count_on`"),
    ("fork.reserve", "it is the parent's, too: `keep_apart`"),
    ("fork.late_count", "what was asked for is managed: `manage_late`"),
    ("fork.turn", "taken by the thread that forked"),
    ("fork.covered", "lock; nothing changes it while somebody forks; then they are discarded"),
    ("freeze.brought_in", "lock; what it noted is in the parent"),
    ("freeze.deferred", "lock; events that hold for the child are carried out"),
    ("freeze.reasons", "the child's own threads may change everything"),
    ("handle.farewell", "opened anew: `open_handles`"),
    ("handle.tracks", "with the handle: `open_handles`"),
    ("handle.uffd", "a handle of its own: `open_handles`"),
    ("huge", "pages of the parent's: `after_fork`"),
    ("reading", "lock"),
    ("regions", "lock"),
    ("stats", "a page of its own: `count_on`"),
    ("store", "lock"),
    ("workers", "no worker is here"),
];

/// Fields that a child keeps.
#[cfg(test)]
const UNCHANGED_FIELDS: &[(&str, &str)] = &[
    ("anchor", "one page, emptied by the kernel, and written anew when the child manages"),
    ("bell.rings", "only counted up"),
    ("budget.granted", "what the parent may hold, until the child has a share of its own"),
    ("budget.pinned_up_to", "set anew by each rest"),
    ("budget.resident", "the child has the same pages"),
    ("clock", "set once"),
    ("config", "set once"),
    ("decide.notes", "at rest: notes are made by who has entered"),
    ("evict.density", "measured; numbers changed in one step"),
    ("evict.quiet", "a page of the run's; numbers changed in one step"),
    ("evict.staging", "the child has the same frames, in slots registered anew: `open_handles`"),
    ("evict.wants_samples", "set once"),
    ("fault.pays", "what was learnt of walks; numbers changed in one step"),
    ("fault.streams", "hints; numbers changed in one step"),
    ("fork.copied", "set anew by each fork"),
    ("fork.done", "set anew by each fork"),
    ("fork.ended", "set anew by each fork"),
    ("fork.filtered", "set anew by each fork"),
    ("fork.late", "by its count"),
    ("fork.lives", "of the parent's manager; the child's takes it anew when it forks"),
    ("fork.parent", "set anew by each fork"),
    ("fork.sentinel", "the child has inherited the page"),
    ("fork.sure", "set anew by each fork"),
    ("handle.departed", "hints; numbers changed in one step"),
    ("handle.features", "of the kernel"),
    ("phase.beginning", "no fork is announced before it is over"),
    ("phase.leaving", "never set where a fork is announced"),
    ("phase.over", "of a pager that broke: the child is on plain memory, too"),
    ("phase.stopped", "of a pager that broke: the child is on plain memory, too"),
    ("spill", "a file of its own: `adopt_spilled`"),
];

/// What a pager consists of of which each field is listed: field, file and structure.
#[cfg(test)]
const PARTS: &[(&str, &str, &str)] = &[
    ("bell", "workers/bell.rs", "Bell"),
    ("budget", "pager/budget.rs", "Budget"),
    ("decide", "decide/mod.rs", "Deciding"),
    ("evict", "evict/mod.rs", "Eviction"),
    ("fault", "fault/mod.rs", "Serving"),
    ("fork", "fork/mod.rs", "ForkState"),
    ("freeze", "pager/freeze.rs", "Freeze"),
    ("handle", "pager/handle.rs", "Handle"),
    ("phase", "pager/phase.rs", "Phase"),
];

/// In a forked child, before anything else of ours: statics that name threads which are not here.
///
/// # Safety
/// Only the calling thread may exist.
pub unsafe fn statics() {
    idle_priority::reset();
    sharers::reset();
    number::forked();
    // SAFETY: nobody else exists, in a child.
    unsafe {
        reservations::after_fork();
        wiped::reset();
    }
}

impl Pager {
    /// In a forked child that goes on with its parent's books.
    ///
    /// # Safety
    /// Only the calling thread may exist, and the fork was announced ([`Pager::before_fork`]).
    pub(super) unsafe fn reset(&self) {
        // SAFETY: the caller's: the holders are threads of the parent, and
        // while frozen they leave what the locks guard as it is.
        unsafe {
            self.reading.force_unlock();
            self.decide.decider.force_unlock();
            self.evict.ring.force_unlock();
            self.fork.children.force_unlock();
            self.regions.after_fork();
            self.store.after_fork();
        }
        // SAFETY: the caller's; new threads have not begun.
        unsafe { Worker::disband(self) };
        for worker in &self.workers {
            worker.busy.store(0, Relaxed);
            worker.tid.store(0, Relaxed);
            worker.lives.store(0, Relaxed);
            worker.serving_since.store(0, Relaxed);
        }
        // No thread uses what was taken out.
        self.regions.reclaim(u64::MAX);
        self.evict.unsharing.store(0, Relaxed);
        self.budget.forked();
        self.huge.after_fork(self);
        self.decide.decider.lock().forked(self);
        *self.fork.children.lock() = Children::new();
        self.commands.reset();
        self.fault.handlers.reset();
        self.fault.stalls.reset();
        self.bell.reset();
        self.fork.gate.store(0, Release);
        self.fork.hold_until.store(0, Release);
        self.fork.turn.store(0, Release);
        // SAFETY: the caller's. Last: the child's own threads may change everything from here on.
        unsafe { self.freeze.reset() };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// The C library would allocate for it.
    const FORBIDDEN: &str = concat!("thread_", "local!");

    fn sources(directory: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory).expect("a directory of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                found.extend(sources(&path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
        found
    }

    /// The name of the static that a line declares.
    fn declared(line: &str) -> Option<&str> {
        let line = line.trim_start();
        let line = match line.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
            Some(rest) => rest.trim_start(),
            None => line,
        };
        let name = line.strip_prefix("static ")?;
        let name = name.strip_prefix("mut ").unwrap_or(name);
        Some(name.split([':', ' ']).next().expect("a first part"))
    }

    /// Statics of a crate, by file and name, without those of its tests, which come last in a file.
    fn statics_of(krate: &str) -> BTreeSet<(String, String)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(krate).join("src");
        let mut found = BTreeSet::new();
        for path in sources(&root) {
            let file = path.strip_prefix(&root).expect("below it").display().to_string();
            if file.ends_with("tests.rs") || file.ends_with("fixture.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).expect("a source");

            assert!(!text.contains(FORBIDDEN), "{file}: {FORBIDDEN}");
            let mut ours = &text[..];
            for tests in ["#[cfg(test)]\nmod tests", "#[cfg(test)]\npub(crate) mod tests"] {
                ours = ours.split(tests).next().expect("a first part");
            }
            found.extend(ours.lines().filter_map(declared).map(|name| (file.clone(), name.into())));
        }
        found
    }

    fn listed(lists: &[&[(&str, &str, &str)]]) -> BTreeSet<(String, String)> {
        let all: Vec<_> = lists.iter().flat_map(|list| list.iter()).collect();
        assert!(all.iter().all(|(.., why)| !why.is_empty()));
        let set: BTreeSet<_> = all.iter().map(|(f, n, _)| ((*f).into(), (*n).into())).collect();
        assert_eq!(set.len(), all.len(), "one of them is in both lists");
        set
    }

    /// A static that is in neither list would be inherited as it happens to be.
    #[test]
    fn a_child_knows_what_to_do_with_each_static() {
        assert_eq!(statics_of("live"), listed(&[RESET, UNCHANGED]));
    }

    /// The preloaded library's lists, which its own tests could not look at: it interposes the
    /// allocator that they would run on.
    #[test]
    fn a_child_knows_what_to_do_with_each_static_of_the_preloaded_library() {
        let list = include_str!("../../../preload/src/fork_reset.rs");
        // An entry may be in one line or in several.
        let entry = |text: &str| {
            let mut strings = text.split('"').skip(1).step_by(2).map(str::to_owned);
            let entry = (strings.next()?, strings.next()?);
            strings.next().filter(|why| !why.is_empty()).map(|_| entry)
        };
        let lists = list.split("const _: ").skip(1).map(|list| list.split("];").next());
        let all: Vec<_> = lists.flatten().flat_map(|list| list.split('(').skip(2)).collect();
        let all: Vec<_> = all.into_iter().map(|text| entry(text).expect("an entry")).collect();
        let set: BTreeSet<_> = all.iter().cloned().collect();
        assert_eq!(set.len(), all.len(), "one of them is in both lists");
        assert_eq!(statics_of("preload"), set);
    }

    /// Nobody would run them, for the same reason: what can be tested apart is in this crate.
    #[test]
    fn the_preloaded_library_has_no_tests_of_its_own() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/src");
        for path in sources(&root) {
            let text = fs::read_to_string(&path).expect("a source");
            assert!(!text.contains("#[test]"), "{}", path.display());
        }
    }

    /// What else runs in the program's process has none that change.
    #[test]
    fn other_crates_of_ours_have_no_statics() {
        for krate in ["core", "economics", "policy", "sampler"] {
            let found = statics_of(krate);
            let constant = |(_, name): &(String, String)| name == "NO_TIER";
            assert!(found.iter().all(constant), "{krate}: {found:?}");
        }
    }

    /// Of crates that are not ours, those that the preloaded library is made of were looked at.
    #[test]
    fn crates_of_others_in_the_process_are_known() {
        /// With no statics that change, or none that are used.
        const LOOKED_AT: &[&str] = &[
            "bitflags",
            "bytemuck",
            "cfg-if",
            "cobs",
            "dlmalloc",
            "io-uring",
            "itoa",
            "libc",
            "lz4-sys",
            "memchr",
            "postcard",
            "serde",
            "serde_core",
            "serde_json",
            "serde_spanned",
            "thiserror",
            "toml",
            "toml_datetime",
            "toml_parser",
            "toml_writer",
            "winnow",
            "zmij",
        ];
        /// Run when others are built, or only where the system is another one.
        const NOT_IN_IT: &[&str] = &[
            "allocator-api2",
            "cc",
            "equivalent",
            "foldhash",
            "hashbrown",
            "indexmap",
            "rand_core",
            "wasi",
            "find-msvc-tools",
            "jobserver",
            "getrandom",
            "shlex",
            "proc-macro2",
            "quote",
            "syn",
            "unicode-ident",
            "serde_derive",
            "thiserror-impl",
            "bytemuck_derive",
            "embedded-io",
            "windows-sys",
            "windows-link",
            "r-efi",
            "wasip2",
            "wit-bindgen",
        ];
        let lock = include_str!("../../../../Cargo.lock");
        let packages: Vec<_> = lock.split("[[package]]").skip(1).collect();
        let field = |package: &str, name: &str| {
            let prefix = format!("{name} = \"");
            let line = package.lines().find_map(|line| line.strip_prefix(&prefix))?;
            Some(line.trim_end_matches('"').to_owned())
        };
        let mut reached = BTreeSet::from(["terrace-preload".to_owned()]);
        let mut todo = vec!["terrace-preload".to_owned()];
        while let Some(name) = todo.pop() {
            let manifest = name.strip_prefix("terrace-").map(|ours| {
                let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(ours);
                fs::read_to_string(ours.join("Cargo.toml")).expect("a manifest")
            });
            // Only what tests and builds need does not run in the process.
            let needed = |other: &str| {
                manifest.as_ref().is_none_or(|manifest| {
                    let section = manifest.split("[dependencies]").nth(1).unwrap_or("");
                    let section = section.split("\n[").next().unwrap_or("");
                    section.lines().any(|line| {
                        line.strip_prefix(other).is_some_and(|rest| rest.starts_with([' ', '.']))
                    })
                })
            };
            for package in packages.iter().filter(|p| field(p, "name").as_ref() == Some(&name)) {
                let list = package.split("dependencies = [").nth(1).unwrap_or("");
                for other in list.split(']').next().unwrap_or("").lines() {
                    let other = other.trim().trim_matches(['"', ',']);
                    let other = other.split(' ').next().expect("a name");
                    if !other.is_empty() && needed(other) && reached.insert(other.to_owned()) {
                        todo.push(other.to_owned());
                    }
                }
            }
        }
        let is_ours = |name: &String| name.starts_with("terrace-");
        let known = |name: &&String| {
            LOOKED_AT.contains(&name.as_str()) || NOT_IN_IT.contains(&name.as_str())
        };
        let unknown: Vec<_> = reached.iter().filter(|n| !is_ours(n) && !known(n)).collect();
        assert!(unknown.is_empty(), "look for statics that change in {unknown:?}");
    }

    #[test]
    fn a_child_knows_what_to_do_with_each_field_of_the_pager() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let fields = |file: &str, structure: &str| -> Vec<String> {
            let text = fs::read_to_string(root.join(file)).expect("a source");
            let name = |line: &str| {
                let line = line.strip_prefix("    ")?;
                let line = line.strip_prefix("pub(crate) ").unwrap_or(line);
                let (name, _) = line.strip_prefix("pub ").unwrap_or(line).split_once(':')?;
                let plain = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
                plain.then(|| name.to_owned())
            };
            let begin = format!("struct {structure} {{\n");
            let rest = text.split(&begin).nth(1).unwrap_or_else(|| panic!("{file}: {structure}"));
            rest.split("\n}").next().expect("its end").lines().filter_map(name).collect()
        };
        let mut found: BTreeSet<String> = fields("pager/mod.rs", "Pager").into_iter().collect();
        for (part, file, structure) in PARTS {
            assert!(found.remove(*part), "{part} is no field of the pager");
            found.extend(fields(file, structure).iter().map(|name| format!("{part}.{name}")));
        }
        let all: Vec<_> = RESET_FIELDS.iter().chain(UNCHANGED_FIELDS).collect();
        let set: BTreeSet<_> = all.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(set.len(), all.len(), "one of them is in both lists");
        assert_eq!(found, set);
    }
}
