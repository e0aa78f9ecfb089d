//! The control group of a run: it says how much memory the run has, reclaims for it, and brakes
//! it above the budget.
//!
//! The group is a safety net and never a wall at the budget. So
//!
//! - under version 2 the brake is `memory.high` above the budget: who allocates beyond it
//!   reclaims and is slowed down, and nobody is killed;
//! - under version 1, which has nothing like it, the brake is a limit above the budget with the
//!   killer switched off (`engine/bound.rs`). Where there can be none it is processor time
//!   (`cpu.cfs_quota_us`), and only while memory is above the budget, or about to be.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos};

use crate::files::{Root, named, number, read, step, write};

/// Which interface the memory controller has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Version {
    /// One hierarchy for each controller.
    One,
    /// One for all.
    Two,
}

/// What has become of a group that was to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// It is gone.
    Gone {
        /// Groups below it, which had no process either.
        below: Vec<PathBuf>,
    },
    /// It is there: these groups, it or ones below it, have processes.
    Inhabited(Vec<(PathBuf, Vec<u32>)>),
}

/// Where the groups of this process are.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Here {
    version: Version,
    /// The mount point, and this process's group below it, of the memory controller.
    memory: (PathBuf, PathBuf),
    /// The same of the processor controller, under version 1.
    cpu: Option<(PathBuf, PathBuf)>,
}

/// A group that was made for a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    version: Version,
    directory: PathBuf,
    /// The group of the processor controller, under version 1.
    cpu: Option<PathBuf>,
}

/// What the brake of version 1 leaves of one processor: enough for a program to end or to be
/// stopped, and less than what one thread can page out (about 400 MB/s against 1 GB/s that a program
/// fills).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    /// A tenth.
    Tenth,
    /// A hundredth.
    Hundredth,
}

impl Pace {
    /// Quota and period in µs. The quota is the least that the kernel takes (`min_cfs_quota_period`
    /// of `kernel/sched/core.c`): what a program has before the brake is felt.
    const fn quota(self) -> (u64, u64) {
        match self {
            Self::Tenth => (1_000, 10_000),
            Self::Hundredth => (1_000, 100_000),
        }
    }
}

/// What the kernel is asked to put out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Pages of files.
    Files,
    /// What is swapped.
    Program,
}

/// `memory.swappiness` of version 1: program memory alone, the same on both sides, and files. Not 0 for
/// files: what is killed in between would leave a group that never swaps.
const WEIGHTS: (&str, &str, &str) = ("200", "100", "1");

/// The limit of version 1.
const LIMIT: &str = "memory.limit_in_bytes";
/// Below these a group of version 1 has no limit.
const UNLIMITED: &str = "-1";
/// Whether the kernel kills where a group of version 1 comes to its limit and nothing is found to put
/// out: what is written there to have it not, and to have it.
const CONTROL: &str = "memory.oom_control";
const KILLER: (&str, &str) = ("1", "0");
/// Of a budget, so much (a quarter) may be the kernel's own memory for the run: stacks of threads (16 KiB
/// and more each), page tables. None of it can be put out, so what is more lies beside the budget. Of a run
/// with thousands of threads it comes to more than a small budget has, and a limit there would be a wall:
/// what the run has itself could leave altogether, and system calls would fail all the same.
const KERNEL_PART: u64 = 4;
/// What bounds the swap of a group and of all below it, which matters wherever a program is. Beyond the
/// first nothing is swapped, and beyond the second the kernel holds up every thread that allocates. The
/// third is that of version 1, for memory and swap together: where it is reached nothing is swapped, as
/// that would not help.
const SWAP_BOUNDS: &[&str] =
    &["memory.swap.max", "memory.swap.high", "memory.memsw.limit_in_bytes"];
/// What else bounds a group of version 2 and all below it.
const BOUNDS: &[&str] = &["memory.max", "memory.high", "cpu.max"];
/// From here on a limit of version 1 is none: it shows the most bytes that are whole pages, of up to
/// 64 KiB.
const NO_LIMIT: u64 = u64::MAX / 2 - 0xffff;
/// How gladly anonymous memory of a group of version 1 is put out.
const SWAPPINESS: &str = "memory.swappiness";

/// What of a group's memory a budget does not cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beside {
    /// Files' pages, unless they count.
    pub(crate) files: Bytes,
    /// The kernel's own memory for the group, beyond its part of the budget ([`KERNEL_PART`]).
    pub(crate) kernel: Bytes,
    /// Pages that cannot be put out, which are in neither.
    pub(crate) locked: Bytes,
}

impl Beside {
    /// All that is beside the budget.
    pub(crate) fn all(&self) -> Bytes {
        self.files + self.kernel
    }
}

/// A setting of a group, as it is where nobody has set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The file.
    pub(crate) file: PathBuf,
    /// What is written there.
    pub(crate) text: String,
}

/// An amount of `memory.stat`.
fn amount(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).map(Bytes)
}

/// A limit of version 1 as it is written.
fn limit_text(at: Option<Bytes>) -> String {
    at.map_or(UNLIMITED.to_owned(), |at| at.get().to_string())
}

/// Whether a limit of either version, as it is read, bounds anything.
fn is_bound(limit: &str) -> bool {
    limit != "max" && !limit.parse::<u64>().is_ok_and(|bytes| bytes >= NO_LIMIT)
}

/// For how long some thread waited, of a file of pressure stall information.
fn waited(text: &str) -> Option<Nanos> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?;
    total.parse().ok().map(Nanos::micros)
}

/// Calls `each` with the directory of every group below one, those further up first.
fn each_below(directory: &Path, each: &mut dyn FnMut(&Path)) {
    let below = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        each(&entry.path());
        each_below(&entry.path(), each);
    }
}

/// Those of some groups, and of the groups below them, that have processes, with these.
fn inhabited<'a>(directories: impl IntoIterator<Item = &'a PathBuf>) -> Vec<(PathBuf, Vec<u32>)> {
    let mut all = Vec::new();
    let mut add = |directory: &Path| {
        let text = read(&directory.join("cgroup.procs")).unwrap_or_default();
        let members: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        if !members.is_empty() {
            all.push((directory.to_owned(), members));
        }
    };
    for directory in directories {
        add(directory);
        each_below(directory, &mut add);
    }
    all
}

/// Not as much could be found as was asked for.
fn busy(e: io::Error) -> io::Error {
    match e.raw_os_error() {
        Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => {
            io::Error::new(io::ErrorKind::WouldBlock, e)
        }
        _ => e,
    }
}

impl Here {
    fn find(root: &Root) -> Result<Self, String> {
        let mounts = root.read("/proc/self/mounts").map_err(|e| e.to_string())?;
        let groups = root.read("/proc/self/cgroup").map_err(|e| e.to_string())?;
        let mut found: (Option<_>, Option<_>, Option<_>) = (None, None, None);
        for line in mounts.lines() {
            let fields: Vec<_> = line.split(' ').collect();
            let &[_, at, kind, options, ..] = fields.as_slice() else { continue };
            let has = |controller: &str| options.split(',').any(|option| option == controller);
            match kind {
                "cgroup" if has("memory") => found.0 = Some(at),
                "cgroup" if has("cpu") => found.1 = Some(at),
                "cgroup2" => found.2 = Some(at),
                _ => {}
            }
        }
        let of = |wanted: &str| {
            groups.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let (controllers, path) = (fields.next()?, fields.next()?);
                let is_it = controllers.split(',').any(|controller| controller == wanted);
                is_it.then(|| path.to_owned())
            })
        };
        let place = |mount: &str, controller: &str| {
            let group = of(controller)?;
            let mount = root.path(mount);
            let group = mount.join(group.trim_start_matches('/'));
            // In a name space of its own a group may lie outside of what is mounted.
            Some((mount.clone(), if group.exists() { group } else { mount }))
        };
        if let Some(memory) = found.0.and_then(|mount| place(mount, "memory")) {
            let cpu = found.1.and_then(|mount| place(mount, "cpu"));
            return Ok(Self { version: Version::One, memory, cpu });
        }
        match found.2.and_then(|mount| place(mount, "")) {
            Some(memory) => Ok(Self { version: Version::Two, memory, cpu: None }),
            None => Err("no control groups are mounted".into()),
        }
    }

    /// Where a group can be made: under version 2, where the memory controller is handed down,
    /// which is never where processes are, but for the root.
    fn parent(&self) -> Result<&Path, String> {
        let (mount, own) = &self.memory;
        if self.version == Version::One {
            return Ok(own);
        }
        let hands_down = |group: &&Path| {
            read(&group.join("cgroup.subtree_control"))
                .is_ok_and(|text| text.split_ascii_whitespace().any(|c| c == "memory"))
        };
        own.ancestors().take_while(|group| group.starts_with(mount)).find(hands_down).ok_or_else(
            || "no control group above this process hands the memory controller down".into(),
        )
    }
}

/// An event that can be signalled and waited for (`eventfd(2)`), and is not inherited.
pub(crate) fn event() -> io::Result<OwnedFd> {
    // SAFETY: takes numbers; the descriptor is ours.
    match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } {
        fd if fd < 0 => Err(io::Error::last_os_error()),
        // SAFETY: as above.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// What keeps a group from being made for runs of this process; `None` if nothing does.
pub fn lack(root: &Root) -> Option<String> {
    let here = match Here::find(root) {
        Ok(here) => here,
        Err(lack) => return Some(lack),
    };
    match here.parent() {
        Ok(parent) => {
            let writes = File::options().write(true).open(parent.join("cgroup.procs"));
            writes.err().map(|e| format!("{}: {e}", parent.display()))
        }
        Err(lack) => Some(lack),
    }
}

/// A limit of this process that would not hold for a program in a group of its own, or a limit on swap
/// that would; `None` if there is neither. Under version 1 such a group lies below the group of this
/// process, under version 2 beside it or further up.
pub fn bounded(root: &Root) -> Option<String> {
    let here = Here::find(root).ok()?;
    let parent = here.parent().ok()?;
    let (mount, own) = &here.memory;
    own.ancestors().take_while(|group| group.starts_with(mount)).find_map(|group| {
        let is_left = group.starts_with(parent) && group != parent;
        // What is above the program's group bounds it there as well.
        let others: &[&str] = if is_left { BOUNDS } else { &[] };
        SWAP_BOUNDS.iter().chain(others).map(|file| group.join(file)).find_map(|file| {
            let text = read(&file).ok()?;
            // `cpu.max` has a period behind its quota.
            let bound = text.split_ascii_whitespace().next().filter(|word| is_bound(word))?;
            let why =
                if is_left { "would not bound it in a group of its own" } else { "bounds swap" };
            Some(format!("{} ({bound}) {why}", file.display()))
        })
    })
}

/// What keeps the kernel from telling of crossings here, under version 1; `None` if nothing does.
pub fn tells_of_crossings(root: &Root) -> Option<String> {
    let here = Here::find(root).ok()?;
    let control = here.memory.1.join("cgroup.event_control");
    (!control.exists()).then(|| format!("{} is missing", control.display()))
}

/// The version of the memory controller here; `None` without any.
pub fn version(root: &Root) -> Option<Version> {
    Here::find(root).ok().map(|here| here.version)
}

impl Group {
    /// The group that will be made under this name; nothing is made yet.
    ///
    /// # Errors
    /// What is missing.
    pub(super) fn plan(root: &Root, name: &str) -> Result<Self, String> {
        let here = Here::find(root)?;
        let directory = here.parent()?.join(name);
        let cpu = here.cpu.map(|(_, group)| group.join(name));
        Ok(Self { version: here.version, directory, cpu })
    }

    /// A group that is there, and somebody else's: it is neither made nor removed here.
    ///
    /// # Errors
    /// If the memory controller does not count for it.
    pub fn at(directory: &Path) -> Result<Self, String> {
        let has = |file: &str| directory.join(file).exists();
        let version = if has("memory.current") {
            Version::Two
        } else if has("memory.usage_in_bytes") {
            Version::One
        } else {
            return Err("the memory controller does not count for this group".into());
        };
        Ok(Self { version, directory: directory.to_owned(), cpu: None })
    }

    /// Whether memory of it can be put out without changing a limit of it.
    pub fn can_be_reclaimed(&self) -> bool {
        self.version == Version::Two && self.directory.join("memory.reclaim").exists()
    }

    /// Becomes the one who keeps the group within its budget, until what is returned is closed, as
    /// it is if its process ends in whatever way; `None` while somebody else is.
    ///
    /// # Errors
    /// If the group is gone.
    pub fn keep(&self) -> io::Result<Option<File>> {
        use std::fs::TryLockError;
        let directory = File::open(&self.directory).map_err(|e| named(&self.directory, &e))?;
        match directory.try_lock() {
            Ok(()) => Ok(Some(directory)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(named(&self.directory, &e)),
        }
    }

    /// Makes it, or nothing of it.
    pub(super) fn make(&self) -> io::Result<()> {
        let mut made = Vec::new();
        let done = self.make_all(&mut made);
        if done.is_err() {
            for directory in made {
                // The error is that of the making.
                let _ = fs::remove_dir(directory);
            }
        }
        done
    }

    fn make_all<'a>(&'a self, made: &mut Vec<&'a PathBuf>) -> io::Result<()> {
        for directory in self.directories() {
            step();
            fs::create_dir(directory).map_err(|e| named(directory, &e))?;
            made.push(directory);
        }
        self.prefer_swap()
    }

    /// Has the kernel put anonymous memory out first: files' pages are not in the budget. Under
    /// version 2 that is said each time that it is asked.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn prefer_swap(&self) -> io::Result<()> {
        let file = self.directory.join(SWAPPINESS);
        // The most that a kernel takes; before 5.8 that was 100.
        if self.version == Version::One && file.exists() && write(&file, "200").is_err() {
            write(&file, "100")?;
        }
        Ok(())
    }

    fn directories(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.directory).chain(&self.cpu)
    }

    /// Which interface it has.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Files through which a process joins it by writing `0`.
    pub(super) fn doors(&self) -> io::Result<Vec<File>> {
        self.directories()
            .map(|directory| {
                let path = directory.join("cgroup.procs");
                File::options().write(true).open(&path).map_err(|e| named(&path, &e))
            })
            .collect()
    }

    /// The processes in it; none if it is gone.
    pub fn members(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self
            .directories()
            .filter_map(|directory| read(&directory.join("cgroup.procs")).ok())
            .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>())
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The processes in it and in groups below it, which are charged to it as well.
    pub fn members_below(&self) -> Vec<u32> {
        Self::below([&self.directory])
    }

    /// The same, and those in its group of the processor controller: under version 1 a process that moves to
    /// another group moves in one hierarchy, and stays in the other with all that it starts.
    pub fn placed_below(&self) -> Vec<u32> {
        Self::below(self.directories())
    }

    fn below<'a>(directories: impl IntoIterator<Item = &'a PathBuf>) -> Vec<u32> {
        let mut all: Vec<u32> =
            inhabited(directories).into_iter().flat_map(|(_, members)| members).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// All memory that is charged to it; `None` if it is gone.
    pub fn charged(&self) -> Option<Bytes> {
        let file = match self.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        };
        number(&self.directory.join(file)).map(Bytes)
    }

    /// The most that ever was, where the kernel says so.
    pub fn charged_peak(&self) -> Option<Bytes> {
        let file = match self.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        };
        number(&self.directory.join(file)).map(Bytes)
    }

    /// Of it, the files' pages, which the kernel drops where it needs room: no part of the budget.
    pub fn files(&self) -> Option<Bytes> {
        let text = read(&self.directory.join("memory.stat")).ok()?;
        self.files_and_locked(&text).map(|(files, _)| files)
    }

    /// What its processes, or others, have in DRAM of what can be swapped; `None` if it is gone.
    pub fn anonymous(&self) -> Option<Bytes> {
        let text = read(&self.directory.join("memory.stat")).ok()?;
        let (own, shared) = match self.version {
            Version::One => ("total_rss", "total_shmem"),
            Version::Two => ("anon", "shmem"),
        };
        Some(amount(&text, own)? + amount(&text, shared).unwrap_or_default())
    }

    /// What of it cannot be put out: what is locked, and secret memory; `None` if it is gone.
    pub fn locked(&self) -> Option<Bytes> {
        let text = read(&self.directory.join("memory.stat")).ok()?;
        self.files_and_locked(&text).map(|(_, locked)| locked)
    }

    /// What of it is beside a budget; `files_count` says whether files' pages are in that.
    pub(crate) fn beside(&self, budget: Bytes, files_count: bool) -> Option<Beside> {
        let text = read(&self.directory.join("memory.stat")).ok()?;
        let (files, locked) = self.files_and_locked(&text)?;
        let files = if files_count { Bytes::ZERO } else { files };
        Some(Beside { files, kernel: self.kernel_memory(&text) - budget / KERNEL_PART, locked })
    }

    /// Files' pages, and what cannot be put out at all, by the text of `memory.stat`.
    fn files_and_locked(&self, text: &str) -> Option<(Bytes, Bytes)> {
        let (all, shared, locked) = match self.version {
            // Both hold shared memory, which is swapped as anonymous memory is.
            Version::One => ("total_cache", "total_shmem", "total_unevictable"),
            Version::Two => ("file", "shmem", "unevictable"),
        };
        let files = amount(text, all)? - amount(text, shared).unwrap_or_default();
        Some((files, amount(text, locked).unwrap_or_default()))
    }

    /// What the kernel has for its processes: stacks of threads, page tables, structures. What of them it
    /// can drop itself is left out where that is told (version 2). `text` is `memory.stat`.
    fn kernel_memory(&self, text: &str) -> Bytes {
        if self.version == Version::One {
            let used = number(&self.directory.join("memory.kmem.usage_in_bytes"));
            return used.map_or(Bytes::ZERO, Bytes);
        }
        let part = |name: &str| amount(text, name).unwrap_or_default();
        // Before Linux 5.18 it is not told as one number.
        let told = part("kernel") - part("slab_reclaimable");
        told.max(part("kernel_stack") + part("pagetables"))
    }

    /// Pages that it is not charged for any more, whatever has become of them, since it exists; `None`
    /// under version 2.
    pub(crate) fn uncharged(&self) -> Option<u64> {
        let text = read(&self.directory.join("memory.stat")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("total_pgpgout "));
        line.and_then(|value| value.trim().parse().ok())
    }

    /// What its own threads had to put out to go on, since it exists; `None` where the kernel does
    /// not tell that from what was asked for from outside (version 1, and before Linux 6.15).
    pub fn reclaimed_by_itself(&self) -> Option<Bytes> {
        let text = read(&self.directory.join("memory.stat")).ok()?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse::<u64>().ok())
        };
        field("pgsteal_proactive")?;
        Some(Bytes(field("pgsteal_direct")? * 4096))
    }

    /// How much of its memory that is swapped has left since it exists, whoever made room. What the kernel
    /// counts as reclaimed (`pgsteal`) has files' pages in it, which it does not count by themselves.
    /// It grows with each page that leaves, also where as many come back, and falls only where the program
    /// gives back what lies in swap. `None` where the kernel does not count that (version 1, before Linux
    /// 5.9, or without swap).
    pub(crate) fn put_out(&self) -> Option<Bytes> {
        if self.version == Version::One {
            return None;
        }
        let text = read(&self.directory.join("memory.stat")).ok()?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse::<u64>().ok())
        };
        let came_back = Bytes(field("workingset_refault_anon")? * 4096);
        // What has come back may still have its place in swap (Linux 5.12).
        let in_both = Bytes(field("swapcached").unwrap_or(0));
        Some((self.swapped()? + came_back).saturating_sub(in_both))
    }

    /// Pages that have left it for swap since it exists, whoever made room; `None` where the kernel does not
    /// count that (version 1, and before Linux 6.12).
    pub(crate) fn swapped_out(&self) -> Option<u64> {
        let text = read(&self.directory.join("memory.stat")).ok()?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse::<u64>().ok())
        };
        // Pages of zeros are written nowhere, nor is what zswap keeps; what that writes later has left before.
        let unwritten = field("swpout_zero").unwrap_or(0) + field("zswpout").unwrap_or(0);
        Some((field("pswpout")? + unwritten).saturating_sub(field("zswpwb").unwrap_or(0)))
    }

    /// What of its memory lies in swap; `None` where the kernel does not count that.
    pub fn swapped(&self) -> Option<Bytes> {
        if self.version == Version::Two {
            return number(&self.directory.join("memory.swap.current")).map(Bytes);
        }
        let text = read(&self.directory.join("memory.stat")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("total_swap "));
        line.and_then(|value| value.trim().parse().ok()).map(Bytes)
    }

    /// What its memory has of swap, also of what is in RAM again and has its place there still; `None` where the
    /// kernel does not count that.
    pub fn has_of_swap(&self) -> Option<Bytes> {
        if self.version == Version::Two {
            return self.swapped();
        }
        // Version 1 counts a page in swap no longer as soon as it is read. Both are read at once, as this is
        // asked every few milliseconds.
        let text = read(&self.directory.join("memory.stat")).ok()?;
        let in_both = amount(&text, "total_swapcached").unwrap_or_default();
        Some(amount(&text, "total_swap")? + in_both)
    }

    /// For how long some thread of it waited for memory, since it exists; `None` where the kernel does not
    /// say (version 1, or without pressure stall information).
    pub fn stalled(&self) -> Option<Nanos> {
        read(&self.directory.join("memory.pressure")).ok().and_then(|text| waited(&text))
    }

    /// Has the kernel put so much of the group's memory out, the least used first as far as it
    /// knows; the calling thread does the work.
    ///
    /// # Errors
    /// Of kind `WouldBlock` if not so much could be found, which is no fault.
    pub fn reclaim(&self, bytes: Bytes) -> io::Result<()> {
        match self.version {
            Version::Two => {
                // Anonymous memory only (Linux 6.16), mostly (6.9), or as it comes.
                let ways = [" swappiness=max", " swappiness=200", ""];
                let mut last = Ok(());
                for way in ways {
                    last = self.write_once("memory.reclaim", &format!("{}{way}", bytes.get()));
                    if !matches!(&last, Err(e) if e.raw_os_error() == Some(libc::EINVAL)) {
                        break;
                    }
                }
                last.map_err(busy)
            }
            Version::One => {
                self.switch_killer_off()?;
                let lowered = self.lower(bytes);
                // At one that could not be lifted nobody is to be killed either.
                self.limit(None)?;
                write(&self.directory.join(CONTROL), KILLER.1)?;
                lowered
            }
        }
    }

    /// Has nobody killed at a limit that is lifted again right after it has come into force. If this
    /// process is killed just then, who comes to the limit waits until the watchdog has lifted it.
    ///
    /// # Errors
    /// Of kind `WouldBlock` if that is not to be had: nothing is put out at that risk.
    fn switch_killer_off(&self) -> io::Result<()> {
        write(&self.directory.join(CONTROL), KILLER.0).map_err(|e| {
            // A group that is gone needs nothing.
            if self.directory.exists() { io::Error::new(io::ErrorKind::WouldBlock, e) } else { e }
        })
    }

    /// Has so much of one kind put out; `lower` asks for it under version 1, by a limit.
    ///
    /// # Errors
    /// As [`Group::reclaim`].
    pub(crate) fn reclaim_kind(
        &self,
        kind: Kind,
        bytes: Bytes,
        lower: impl FnOnce(Bytes) -> io::Result<()>,
    ) -> io::Result<()> {
        match (self.version, kind) {
            (Version::Two, Kind::Program) => self.reclaim(bytes),
            (Version::Two, Kind::Files) => {
                let order = format!("{} swappiness=0", bytes.get());
                self.write_once("memory.reclaim", &order).map_err(busy)
            }
            (Version::One, kind) => {
                let first = if kind == Kind::Files { WEIGHTS.2 } else { WEIGHTS.0 };
                self.write_once("memory.swappiness", first)?;
                let lowered = lower(bytes);
                self.balance()?;
                lowered
            }
        }
    }

    /// Has the kernel weigh files and program memory alike where the program itself makes room. Under
    /// version 2 a group has no such number.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn balance(&self) -> io::Result<()> {
        match self.version {
            Version::One => self.write_once("memory.swappiness", WEIGHTS.1),
            Version::Two => Ok(()),
        }
    }

    /// Whether `memory.reclaim` can be told which kind: nothing is put out by this.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn probe_swappiness(&self) -> io::Result<()> {
        self.write_once("memory.reclaim", "0 swappiness=0")
    }

    /// The same under version 1, by a limit below what is there. It is not in force before as much
    /// has gone, so that the program does not feel it until then, and is to be lifted at once.
    ///
    /// # Errors
    /// As [`Group::reclaim`].
    pub(crate) fn lower(&self, bytes: Bytes) -> io::Result<()> {
        let Some(charged) = self.charged() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let limit = (charged - bytes).max(Bytes::mib(1));
        self.write_once(LIMIT, &limit.get().to_string()).map_err(busy)
    }

    /// Sets the limit of version 1, or takes it off.
    pub(crate) fn limit(&self, at: Option<Bytes>) -> io::Result<()> {
        write(&self.directory.join(LIMIT), &limit_text(at))
    }

    /// The same, but a signal ends it. Where more is charged than a limit allows, the kernel puts
    /// that out first, in the calling thread, and may never come to the end of it.
    ///
    /// # Errors
    /// The system's; of kind `Interrupted` after a signal, and the limit is what it was.
    pub(crate) fn limit_once(&self, at: Option<Bytes>) -> io::Result<()> {
        step();
        let set = self.write_once(LIMIT, &limit_text(at));
        set.map_err(|e| named(&self.directory.join(LIMIT), &e))
    }

    /// Writes by one call, which a signal may end: `write_all` would begin the whole again.
    fn write_once(&self, file: &str, text: &str) -> io::Result<()> {
        use std::io::Write;
        let path = self.directory.join(file);
        let mut file = fs::OpenOptions::new().write(true).open(&path)?;
        let written = file.write(text.as_bytes())?;
        if written == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Sets the brake of version 2: the kernel slows down who allocates from so much memory on. What
    /// is above that already the group's own threads put out, or whoever is asked for it, and not the
    /// calling one (since Linux 6.16, which is told so by the flag).
    pub fn brake(&self, at: Bytes) -> io::Result<()> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        step();
        let path = self.directory.join("memory.high");
        let mut options = File::options();
        options.write(true).custom_flags(libc::O_NONBLOCK);
        let mut file = options.open(&path).map_err(|e| named(&path, &e))?;
        file.write_all(at.get().to_string().as_bytes()).map_err(|e| named(&path, &e))
    }

    /// Sets the brake of version 1, which is felt from now on; nothing without a `cpu` controller.
    pub fn slow_down(&self, pace: Pace) -> io::Result<()> {
        let Some(cpu) = &self.cpu else { return Ok(()) };
        let (quota, period) = pace.quota();
        write(&cpu.join("cpu.cfs_period_us"), &period.to_string())?;
        write(&cpu.join("cpu.cfs_quota_us"), &quota.to_string())
    }

    /// Takes the brake of version 1 off; a group that is gone has none.
    pub fn release_brake(&self) -> io::Result<()> {
        let Some(cpu) = &self.cpu else { return Ok(()) };
        match write(&cpu.join("cpu.cfs_quota_us"), UNLIMITED) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Has the kernel signal an event whenever what is charged crosses one of these amounts, for as
    /// long as the event is open. Version 1 only. It waits for the kernel, some milliseconds for
    /// each.
    ///
    /// # Errors
    /// If this kernel does not tell of crossings.
    pub fn tell_of_crossings(&self, event: &OwnedFd, marks: &[Bytes]) -> io::Result<()> {
        let usage = self.directory.join("memory.usage_in_bytes");
        let usage = File::open(&usage).map_err(|e| named(&usage, &e))?;
        let control = self.directory.join("cgroup.event_control");
        for mark in marks {
            let (event, usage) = (event.as_raw_fd(), usage.as_raw_fd());
            write(&control, &format!("{event} {usage} {}", mark.get()))?;
        }
        Ok(())
    }

    /// Whether there is anything to brake with.
    pub fn can_brake(&self) -> bool {
        self.version == Version::Two || self.cpu.is_some()
    }

    /// Takes the brake and all limits off, and sets back what else was set; a group that is gone has
    /// none. What cannot be set back keeps nothing else from it.
    ///
    /// # Errors
    /// The system's, the first one.
    pub fn release(&self) -> io::Result<()> {
        let mut done = Ok(());
        for Setting { file, text } in self.unset() {
            match write(&file, &text) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => done = done.and(Err(e)),
                _ => {}
            }
        }
        if self.version == Version::One {
            each_below(&self.directory, &mut |directory| {
                // A group that the program makes begins with what this one had. It may be gone.
                let _ = write(&directory.join(CONTROL), KILLER.1);
            });
        }
        done
    }

    /// Everything that is ever set on it, as the kernel makes groups. The limits are first.
    pub(crate) fn unset(&self) -> Vec<Setting> {
        let setting = |directory: &Path, file: &str, text: &str| Setting {
            file: directory.join(file),
            text: text.to_owned(),
        };
        if self.version == Version::Two {
            return vec![setting(&self.directory, "memory.high", "max")];
        }
        // Where nothing bounds it nothing waits.
        let mut all = vec![
            setting(&self.directory, LIMIT, UNLIMITED),
            setting(&self.directory, CONTROL, KILLER.1),
        ];
        all.extend(self.cpu.iter().map(|cpu| setting(cpu, "cpu.cfs_quota_us", UNLIMITED)));
        // A new group has what the one above it has.
        let above = self.directory.parent().and_then(|above| number(&above.join(SWAPPINESS)));
        all.extend(above.map(|n| setting(&self.directory, SWAPPINESS, &n.to_string())));
        all
    }

    /// Removes it with the groups below it, which its program has made, unless there are processes.
    pub(super) fn remove(&self) -> io::Result<Removal> {
        let lived = inhabited(self.directories());
        if !lived.is_empty() {
            return Ok(Removal::Inhabited(lived));
        }
        let mut below = Vec::new();
        for directory in self.directories() {
            let mut all = vec![directory.clone()];
            each_below(directory, &mut |group| all.push(group.to_owned()));
            // Those furthest down first.
            for group in all.into_iter().rev() {
                step();
                match fs::remove_dir(&group) {
                    Ok(()) if group == *directory => {}
                    Ok(()) => below.push(group),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                        let lived = inhabited(self.directories());
                        if !lived.is_empty() {
                            // Somebody came.
                            return Ok(Removal::Inhabited(lived));
                        }
                        let what = "the kernel has it in use, though no process is in it";
                        return Err(named(&group, &io::Error::new(e.kind(), what)));
                    }
                    Err(e) => return Err(named(&group, &e)),
                }
            }
        }
        Ok(Removal::Gone { below })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_those_of_some_thread() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.06 total=2355433\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=969048\n";
        assert_eq!(waited(text), Some(Nanos::micros(2_355_433)));
        assert_eq!(waited("full avg10=0.00 total=1\n"), None);
    }

    /// A page leaves, comes back, with its place in swap or without, and leaves again.
    #[test]
    fn what_has_left_grows_with_each_page_that_leaves_and_not_with_files() {
        let directory = tempfile::tempdir().unwrap();
        let put = |file: &str, text: String| fs::write(directory.path().join(file), text).unwrap();
        put("memory.current", "0\n".into());
        let group = Group::at(directory.path()).unwrap();
        assert_eq!(group.put_out(), None, "nothing is counted");
        let mut files = 0;
        let mut left = |in_swap: u64, in_both: u64, came_back: u64| {
            files += 1000;
            put("memory.swap.current", format!("{}\n", in_swap * 4096));
            put(
                "memory.stat",
                format!(
                    "file 9\nswapcached {}\nworkingset_refault_anon {came_back}\n\
                     workingset_refault_file {files}\npgsteal {files}\npgsteal_direct {files}\n",
                    in_both * 4096
                ),
            );
            group.put_out().unwrap().get() / 4096
        };
        assert_eq!(left(0, 0, 0), 0);
        assert_eq!(left(1, 1, 0), 0, "it has a place, and is still there");
        assert_eq!(left(1, 0, 0), 1);
        assert_eq!(left(1, 1, 1), 1, "it has come back");
        assert_eq!(left(1, 0, 1), 2);
        assert_eq!(left(0, 0, 2), 2, "it has come back, and its place is gone");
        assert_eq!(left(1, 0, 2), 3);
        assert_eq!(left(0, 0, 2), 2, "the program has ended");
    }

    #[test]
    fn the_kernels_own_memory_is_beside_a_budget_from_a_quarter_of_it_on() {
        let directory = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| fs::write(directory.path().join(file), text).unwrap();
        put("memory.current", "0\n");
        let group = Group::at(directory.path()).unwrap();
        let kernel = |budget| group.beside(Bytes(budget), false).unwrap().kernel;
        // What it can drop itself is not in the way.
        put("memory.stat", "file 0\nkernel 900\nkernel_stack 300\nslab_reclaimable 200\n");
        assert_eq!((kernel(400), kernel(4000)), (Bytes(600), Bytes::ZERO));
        put("memory.stat", "file 0\nkernel_stack 300\npagetables 100\n");
        assert_eq!(kernel(400), Bytes(300), "before Linux 5.18");
    }

    #[test]
    fn what_was_read_from_swap_has_its_place_there_until_it_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| fs::write(directory.path().join(file), text).unwrap();
        put("memory.usage_in_bytes", "0\n");
        put("memory.stat", "swap 1\ntotal_swap 8192\n");
        let group = Group::at(directory.path()).unwrap();
        assert_eq!(group.has_of_swap(), Some(Bytes(8192)), "not told");
        put("memory.stat", "swap 1\ntotal_swap 8192\ntotal_swapcached 4096\n");
        assert_eq!((group.swapped(), group.has_of_swap()), (Some(Bytes(8192)), Some(Bytes(12288))));
    }

    #[test]
    fn who_has_moved_in_one_hierarchy_is_in_the_other_still() {
        let above = tempfile::tempdir().unwrap();
        let put = |group: &str, members: &str| {
            fs::create_dir_all(above.path().join(group)).unwrap();
            fs::write(above.path().join(group).join("cgroup.procs"), members).unwrap();
        };
        put("memory", "11\n");
        put("memory/sub", "12\n");
        put("cpu", "11\n13\n");
        put("cpu/sub", "14\n");
        let group = Group {
            version: Version::One,
            directory: above.path().join("memory"),
            cpu: Some(above.path().join("cpu")),
        };
        assert_eq!(group.members_below(), [11, 12]);
        assert_eq!(group.placed_below(), [11, 12, 13, 14]);
    }

    #[test]
    fn what_cannot_be_set_back_keeps_nothing_else_from_it() {
        let above = tempfile::tempdir().unwrap();
        let at = above.path().join("group");
        fs::create_dir(&at).unwrap();
        fs::write(above.path().join(SWAPPINESS), "60\n").unwrap();
        // A directory cannot be written to, by root neither.
        fs::create_dir(at.join("memory.limit_in_bytes")).unwrap();
        for file in ["memory.usage_in_bytes", "memory.oom_control", SWAPPINESS] {
            fs::write(at.join(file), "1").unwrap();
        }
        let error = Group::at(&at).unwrap().release().unwrap_err();
        assert!(error.to_string().contains("memory.limit_in_bytes"), "{error}");
        assert_eq!(read(&at.join("memory.oom_control")).unwrap(), "0");
        assert_eq!(read(&at.join(SWAPPINESS)).unwrap(), "60");
    }
}
