//! Memories that can be short: control groups that have a limit, the machine, and a slow node that
//! pages are moved to.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use terrace_core::{Bytes, Nanos};

use super::decider::Fill;
use super::marks::Marks;
use super::nodes::{fast_nodes, free_and_all, kept_by_the_kernel, meminfo_of};
use crate::observe;

/// Which memory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// A control group's: its directory, and that directory's inode number. A group that is made
    /// anew under the same name has another number.
    Group(PathBuf, u64),
    /// The machine's: where pages are moved to a slow node, that of the other nodes.
    Machine,
    /// That of the slow node.
    Node(u32),
}

/// A memory, with the files that tell its use. They stay open: reading one that is open takes a
/// tenth of the time.
#[derive(Debug)]
struct Memory {
    place: Place,
    name: String,
    files: Vec<File>,
    /// As of the last look at limits.
    limit: Option<Bytes>,
    /// As of the last look at it.
    fill: Option<Fill>,
    /// What of it was in use at the last pause.
    paused: Option<Bytes>,
    /// It cannot be short before.
    due: Nanos,
}

/// A memory that is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Its place, which another memory may have from the next look on.
    pub scope: usize,
    /// The memory that it lay in.
    pub to: usize,
}

/// Memories, and which group's files belong to which.
#[derive(Debug)]
pub struct Scopes {
    root: Option<PathBuf>,
    all: Vec<Option<Memory>>,
    /// From the inode number of a group's directory to the place of its memory in `all`; `None`
    /// for groups of none that is looked at.
    of: HashMap<u64, Option<usize>>,
    /// The places of the memories that lie within each.
    below: Vec<Vec<usize>>,
    /// Groups that were asked for; without any, all that have a limit, and the machine.
    only: bool,
    marks: Marks,
    fastest: f64,
    /// Groups of which events told that were not known, and that were looked for.
    sought: HashSet<u64>,
    /// No group is looked for because of an event before.
    not_before: Nanos,
}

/// How fast one processor fills memory at most, in bytes a second: what `write(2)` copies to the
/// page cache on this kind of machine.
const FASTEST: f64 = (1u64 << 30) as f64;
/// Groups are not looked for because of an event before so many times as long as the last look took:
/// one of a thousand groups takes some 10 ms.
const REST: u64 = 20;
/// Groups that were looked for that are remembered at most.
const SOUGHT: usize = 4096;
/// A memory is looked at at least so often.
const SELDOM: Nanos = Nanos::seconds(1);
/// From this share of where pages stop leaving on it is looked at each time: a program fills a
/// tenth of a group of 256 MiB in 25 ms.
const NEAR: f64 = 0.95;

/// Where the memory controller's groups are: of version 1, or of version 2.
fn memory_root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let find = |kind: &str, has: &str| {
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (at, is, options) = (fields.next()?, fields.next()?, fields.next()?);
            let fits = is == kind && (has.is_empty() || options.split(',').any(|o| o == has));
            fits.then(|| PathBuf::from(at))
        })
    };
    find("cgroup", "memory").or_else(|| find("cgroup2", ""))
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The limit of a group, if it has one.
fn limit(group: &Path) -> Option<Bytes> {
    // Version 1 has a huge number where there is no limit; version 2 has `max`.
    let limit = number(&group.join("memory.limit_in_bytes"))
        .filter(|&limit| limit < 1 << 62)
        .or_else(|| {
            let number_of = |file: &str| number(&group.join(file));
            // The kernel already reclaims at `high`.
            match (number_of("memory.high"), number_of("memory.max")) {
                (Some(high), Some(max)) => Some(high.min(max)),
                (high, max) => high.or(max),
            }
        })?;
    Some(Bytes(limit))
}

/// The file that tells a group's use.
fn usage(group: &Path) -> Option<File> {
    let open = |name: &str| File::open(group.join(name)).ok();
    open("memory.usage_in_bytes").or_else(|| open("memory.current"))
}

/// The text of a small file of the kernel's, from its beginning.
fn text(file: &File) -> Option<String> {
    let mut buffer = vec![0; 8 << 10];
    let length = file.read_at(&mut buffer, 0).ok()?;
    buffer.truncate(length);
    String::from_utf8(buffer).ok()
}

impl Memory {
    fn new(place: Place, root: Option<&Path>) -> Self {
        let (name, files) = match &place {
            Place::Group(group, _) => {
                let within = root.and_then(|root| group.strip_prefix(root).ok());
                (within.unwrap_or(group).display().to_string(), usage(group).into_iter().collect())
            }
            Place::Machine => ("machine".to_owned(), Vec::new()),
            Place::Node(node) => (format!("node {node}"), meminfo_of(&[*node])),
        };
        let due = Nanos::ZERO;
        Self { place, name, files, limit: None, fill: None, paused: None, due }
    }

    /// The nodes whose memory it is; all where there are none.
    fn machine(slow: Option<u32>) -> Self {
        let mut memory = Self::new(Place::Machine, None);
        memory.files = match slow {
            Some(slow) => meminfo_of(&fast_nodes(slow)),
            None => File::open("/proc/meminfo").into_iter().collect(),
        };
        memory
    }

    fn group(&self) -> Option<&Path> {
        match &self.place {
            Place::Group(path, _) => Some(path),
            _ => None,
        }
    }

    fn look_at_limit(&mut self, slow: Option<u32>) {
        let of_nodes = |files: &[File], nodes: Option<&[u32]>| {
            let all = free_and_all(files.iter().filter_map(text))?.1;
            let zones = fs::read_to_string("/proc/zoneinfo").unwrap_or_default();
            Some(all.saturating_sub(kept_by_the_kernel(&zones, nodes)))
        };
        self.limit = match (&self.place, slow) {
            (Place::Group(path, _), _) => limit(path),
            (Place::Machine, None) => of_nodes(&self.files, None),
            (Place::Machine, Some(slow)) => of_nodes(&self.files, Some(&fast_nodes(slow))),
            (Place::Node(node), _) => of_nodes(&self.files, Some(&[*node])),
        };
    }

    fn used(&self) -> Option<Bytes> {
        if self.group().is_some() {
            return text(self.files.first()?)?.trim().parse().ok().map(Bytes);
        }
        let (free, all) = free_and_all(self.files.iter().filter_map(text))?;
        Some(all.saturating_sub(free))
    }

    fn look(&self, marks: Marks) -> Option<Fill> {
        let (used, limit) = (self.used()?, self.limit?);
        let (high, low) = marks.of(limit);
        let charged = self.group().is_some();
        Some(Fill { name: self.name.clone(), used, limit, high, low, charged })
    }
}

impl Scopes {
    /// These groups; or, where none is named, all groups that have a limit, and the machine: where
    /// pages are moved to a slow node, its fast nodes and that one.
    ///
    /// # Errors
    /// A group that has no limit, or that the memory controller does not count for.
    pub fn new(groups: &[PathBuf], marks: Marks, slow: Option<u32>) -> Result<Self, String> {
        let only = !groups.is_empty();
        let mut all = Vec::new();
        if !only {
            all.push(Some(Memory::machine(slow)));
            all.extend(slow.map(|node| Some(Memory::new(Place::Node(node), None))));
        }
        let mut scopes = Self { all, ..Self::empty(memory_root(), only, marks) };
        for group in groups {
            let name = group.display();
            if usage(group).is_none() {
                return Err(format!("{name}: the memory controller does not count for this group"));
            }
            if limit(group).is_none() {
                return Err(format!("{name}: this group has no limit, so it is never full"));
            }
            scopes.add_named(group);
        }
        scopes.look();
        Ok(scopes)
    }

    fn empty(root: Option<PathBuf>, only: bool, marks: Marks) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let fastest = FASTEST * processors as f64;
        Self {
            root,
            all: Vec::new(),
            of: HashMap::new(),
            below: Vec::new(),
            only,
            marks,
            fastest,
            sought: HashSet::new(),
            not_before: Nanos::ZERO,
        }
    }

    fn add_named(&mut self, group: &Path) {
        let inode = fs::metadata(group).map_or(0, |metadata| metadata.ino());
        let place = Place::Group(group.to_owned(), inode);
        self.all.push(Some(Memory::new(place, self.root.as_deref())));
    }

    /// Looks at which groups there are, and at limits. Groups that came since the last time are
    /// found; those that went are given. A named group that went is waited for.
    pub fn look(&mut self) -> Vec<Gone> {
        let begun = observe::now();
        let mut seen = HashMap::new();
        if let Some(root) = self.root.clone() {
            let mut of = HashMap::new();
            let begin = if self.only { None } else { Some(0) };
            self.descend(&root, begin, &mut of, &mut seen, 0);
            self.of = of;
        }
        self.below = self.lie_within(&seen);
        let gone = if self.only { Vec::new() } else { self.gone(&seen) };
        for gone in &gone {
            self.all[gone.scope] = None;
        }
        self.look_at_limits();
        let now = observe::now();
        self.not_before = now + now.saturating_sub(begun) * REST;
        gone
    }

    /// Looks at limits alone: others may change them.
    pub fn look_at_limits(&mut self) {
        let slow = self.slow().map(|(node, _)| node);
        for memory in self.all.iter_mut().flatten() {
            memory.look_at_limit(slow);
        }
    }

    /// The memories within each, from the one around each.
    fn lie_within(&self, around: &HashMap<usize, Option<usize>>) -> Vec<Vec<usize>> {
        let mut below = vec![Vec::new(); self.all.len()];
        for (&scope, &its) in around {
            let mut next = its;
            while let Some(within) = next {
                below[within].push(scope);
                next = around.get(&within).copied().flatten();
            }
        }
        // What a group is charged for is not less when it is on another node: no memory of a group
        // is one of nodes.
        if self.slow().is_some() {
            below[0].clear();
        }
        for memories in &mut below {
            memories.sort_unstable();
        }
        below
    }

    /// The places of the memories that lie within each memory, as of the last look: what is in use
    /// of those is in use of it, too.
    pub fn below(&self) -> &[Vec<usize>] {
        &self.below
    }

    fn gone(&self, seen: &HashMap<usize, Option<usize>>) -> Vec<Gone> {
        let is_group = |scope: &usize| self.group(*scope).is_some();
        let all = (0..self.all.len()).filter(is_group).filter(|scope| !seen.contains_key(scope));
        all.map(|scope| {
            let above = self.group(scope).into_iter().flat_map(Path::ancestors).skip(1);
            let within = above.filter_map(|path| {
                seen.keys().copied().find(|&other| self.group(other) == Some(path))
            });
            Gone { scope, to: within.chain([0]).next().unwrap_or_default() }
        })
        .collect()
    }

    /// The directory of a group's memory.
    pub fn group(&self, scope: usize) -> Option<&Path> {
        self.all.get(scope)?.as_ref()?.group()
    }

    /// The place of a group's memory, if it is looked at.
    fn place_of(&mut self, path: &Path, inode: u64) -> Option<usize> {
        let only = self.only;
        let is_it = |memory: &Memory| match &memory.place {
            Place::Group(its, number) => its == path && (only || *number == inode),
            _ => false,
        };
        let known = self.all.iter().position(|memory| memory.as_ref().is_some_and(is_it));
        if self.only {
            let memory = self.all.get_mut(known?)?.as_mut()?;
            // A service that was begun anew has a group of the same name.
            if memory.place != Place::Group(path.to_owned(), inode) {
                *memory = Memory::new(Place::Group(path.to_owned(), inode), self.root.as_deref());
            }
            return known;
        }
        limit(path)?;
        known.or_else(|| {
            let place = Place::Group(path.to_owned(), inode);
            let memory = Some(Memory::new(place, self.root.as_deref()));
            Some(if let Some(free) = self.all.iter().position(Option::is_none) {
                self.all[free] = memory;
                free
            } else {
                self.all.push(memory);
                self.all.len() - 1
            })
        })
    }

    /// Goes through a group and those within it: which memory each group's files belong to, and which
    /// memories were seen, each with the one that it lies within.
    fn descend(
        &mut self,
        group: &Path,
        within: Option<usize>,
        of: &mut HashMap<u64, Option<usize>>,
        seen: &mut HashMap<usize, Option<usize>>,
        depth: usize,
    ) {
        let Ok(metadata) = fs::metadata(group) else { return };
        let mut own = within;
        if (depth > 0 || self.only)
            && let Some(place) = self.place_of(group, metadata.ino())
        {
            seen.insert(place, within);
            own = Some(place);
        }
        of.insert(metadata.ino(), own);
        // Deeper ones than anybody has belong to what they lie in.
        if depth > 16 {
            return;
        }
        for entry in fs::read_dir(group).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.descend(&entry.path(), own, of, seen, depth + 1);
            }
        }
    }

    /// The memory that files of a group belong to, by its place; `None` if it is not looked at.
    /// A group that is not known is the machine's until the next look.
    pub fn of(&self, group: u64) -> Option<usize> {
        match self.of.get(&group) {
            Some(&scope) => scope,
            None if self.only => None,
            None => Some(0),
        }
    }

    /// Whether a memory is the machine's, or that of its fast nodes.
    pub fn is_machine(&self, scope: usize) -> bool {
        self.all.get(scope).and_then(Option::as_ref).is_some_and(|m| m.place == Place::Machine)
    }

    /// The slow node that the machine's pages are moved to, and the place of its memory.
    pub fn slow(&self) -> Option<(u32, usize)> {
        self.all.iter().enumerate().find_map(|(scope, memory)| match memory.as_ref()?.place {
            Place::Node(node) => Some((node, scope)),
            _ => None,
        })
    }

    /// Whether a group has been seen.
    pub fn knows(&self, group: u64) -> bool {
        self.of.contains_key(&group)
    }

    /// Whether groups are to be looked at before a file of this one is decided on: nobody knows yet
    /// which memory it belongs to. Once for each group, for some have gone by then.
    pub fn is_to_be_found(&mut self, group: u64, now: Nanos) -> bool {
        if self.knows(group) || now < self.not_before || self.sought.contains(&group) {
            return false;
        }
        if self.sought.len() >= SOUGHT {
            self.sought.clear();
        }
        self.sought.insert(group)
    }

    /// How many places for memories there are; some may be free.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Looks how full a memory is, if it can be short by now. Nothing if it cannot, is gone, or has
    /// no limit any more.
    pub fn look_at(&mut self, scope: usize, now: Nanos) -> Option<&Fill> {
        // What leaves the slow node is gone from memory: no option makes it leave earlier.
        let (marks, fastest) = (self.marks, self.fastest);
        let memory = self.all.get_mut(scope)?.as_mut()?;
        if now < memory.due {
            return None;
        }
        let marks = if matches!(memory.place, Place::Node(_)) { Marks::default() } else { marks };
        memory.fill = memory.look(marks);
        memory.due = match &memory.fill {
            None => now + SELDOM,
            Some(fill) if fill.is_near() => now,
            Some(fill) => now + SELDOM.min(Nanos::from_f64(fill.until_near() / fastest * 1e9)),
        };
        memory.fill.as_ref()
    }

    /// How full a memory was when it was looked at last.
    pub fn fill(&self, scope: usize) -> Option<&Fill> {
        self.all.get(scope)?.as_ref()?.fill.as_ref()
    }

    /// A pause begins: how long it may be until memories are looked at again; nothing if that makes no
    /// difference. Where one that is nearly short has changed since the last pause, it is as long as programs
    /// take to fill half of what it keeps free, within these bounds; where it has not, the longer one.
    /// Where another has changed, until it can be nearly short: a small group can be full soon.
    pub fn pause(&mut self, (least, most): (Nanos, Nanos)) -> Option<Nanos> {
        let fastest = self.fastest;
        let near = self.all.iter_mut().flatten().filter_map(|memory| {
            let fill = memory.fill.as_ref()?;
            // Between two pauses it may have been looked at several times, in next to no time.
            let has_changed = memory.paused.replace(fill.used) != Some(fill.used);
            if !fill.is_near() {
                let left = fill.until_near();
                let time = || Nanos::from_f64(left / fastest * 1e9).max(least);
                return has_changed.then(time);
            }
            if !has_changed {
                return Some(most);
            }
            let free = fill.limit.saturating_sub(fill.high).as_f64();
            Some(Nanos::from_f64(free / 2.0 / fastest * 1e9).max(least).min(most))
        });
        near.min()
    }

    /// Whether a memory is nearly short.
    pub fn are_near(&self) -> bool {
        self.all.iter().flatten().filter_map(|memory| memory.fill.as_ref()).any(Fill::is_near)
    }
}

impl Fill {
    /// Whether it is to be looked at each time.
    fn is_near(&self) -> bool {
        self.until_near() < 0.0
    }

    /// How many bytes more are in use when it is.
    fn until_near(&self) -> f64 {
        NEAR * self.low.as_f64() - self.used.as_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(root: &Path, name: &str, limit: &str) -> PathBuf {
        let path = root.join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("memory.max"), limit).unwrap();
        fs::write(path.join("memory.high"), "max\n").unwrap();
        fs::write(path.join("memory.current"), "4096\n").unwrap();
        path
    }

    /// Of a made-up tree of groups.
    fn scopes(root: &Path) -> Scopes {
        let all = vec![Some(Memory::machine(None))];
        Scopes { all, ..Scopes::empty(Some(root.to_owned()), false, Marks::default()) }
    }

    fn used(scopes: &mut Scopes, scope: usize, at: Nanos) -> Option<u64> {
        scopes.look_at(scope, at).map(|fill| fill.used.get())
    }

    #[test]
    fn groups_with_a_limit_are_memories_and_what_lies_in_them_belongs_to_them() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "free", "max\n");
        let limited = group(root.path(), "limited", "8192\n");
        let inner = group(root.path(), "limited/inner", "max\n");
        let mut all = scopes(root.path());
        all.look();
        assert_eq!(all.len(), 2);
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        assert_eq!(all.of(inode(&root.path().join("free"))), Some(0), "the machine's");
        assert_eq!((all.of(inode(&limited)), all.of(inode(&inner))), (Some(1), Some(1)));
        let fill = all.look_at(1, Nanos(1)).unwrap().clone();
        assert_eq!((fill.used, fill.limit), (Bytes(4096), Bytes(8192)));
        assert_eq!((fill.name.as_str(), fill.charged), ("limited", true));
        let mut only = Scopes::empty(Some(root.path().to_owned()), true, Marks::default());
        only.add_named(&inner);
        only.look();
        assert_eq!((only.of(inode(&inner)), only.of(inode(&limited))), (Some(0), None));
        assert!(only.look_at(0, Nanos(1)).is_none(), "it has no limit");
    }

    /// Otherwise a machine all of whose programs have groups of their own would be full, and nothing
    /// would leave.
    #[test]
    fn a_memory_is_told_with_those_that_lie_within_it() {
        let root = tempfile::tempdir().unwrap();
        let outer = group(root.path(), "outer", "8192\n");
        group(root.path(), "outer/free", "max\n");
        let deep = group(root.path(), "outer/free/deep", "4096\n");
        let beside = group(root.path(), "beside", "4096\n");
        let mut all = scopes(root.path());
        all.look();
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let [outer_at, deep_at, beside_at] =
            [&outer, &deep, &beside].map(|path| all.of(inode(path)).unwrap());
        assert_eq!(all.below()[0], [1, 2, 3], "all of them lie within the machine");
        assert_eq!(all.below()[outer_at], [deep_at]);
        assert!(all.below()[deep_at].is_empty() && all.below()[beside_at].is_empty());
        fs::remove_dir_all(&deep).unwrap();
        all.look();
        assert!(all.below()[outer_at].is_empty());
        // On a machine with a slow node, its memory is that of the other nodes.
        all.all.push(Some(Memory::new(Place::Node(7), None)));
        all.look();
        assert!(all.below()[0].is_empty());
    }

    /// Whoever names a group means those within it, too, limit or not.
    #[test]
    fn files_of_groups_within_a_named_one_belong_to_it() {
        let root = tempfile::tempdir().unwrap();
        let outer = group(root.path(), "outer", "8192\n");
        let free = group(root.path(), "outer/free", "max\n");
        let limited = group(root.path(), "outer/free/limited", "4096\n");
        let beside = group(root.path(), "beside", "4096\n");
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let mut only = Scopes::empty(Some(root.path().to_owned()), true, Marks::default());
        only.add_named(&outer);
        only.look();
        let of = |only: &Scopes| [&outer, &free, &limited, &beside].map(|g| only.of(inode(g)));
        assert_eq!(of(&only), [Some(0), Some(0), Some(0), None]);
        // One of them that is named, too, has a queue of its own, from which the outer one takes.
        only.add_named(&limited);
        only.look();
        assert_eq!(of(&only), [Some(0), Some(0), Some(1), None]);
        assert_eq!(only.below(), [vec![1], Vec::new()]);
    }

    /// A job that ends before the next look would have none of its files looked at.
    #[test]
    fn a_group_is_found_before_its_first_file_is_decided_on() {
        let root = tempfile::tempdir().unwrap();
        let mut all = scopes(root.path());
        all.look();
        let job = fs::metadata(group(root.path(), "job", "4096\n")).unwrap().ino();
        assert_eq!(all.of(job), Some(0), "nobody knows better");
        assert!(!all.is_to_be_found(job, Nanos::ZERO), "groups were looked at just now");
        let late = Nanos(u64::MAX);
        assert!(all.is_to_be_found(job, late));
        all.look();
        assert_eq!(all.of(job), Some(1));
        assert!(!all.is_to_be_found(job, late));
        let gone = u64::MAX;
        assert!(all.is_to_be_found(gone, late));
        all.look();
        assert!(!all.is_to_be_found(gone, late), "once");
        for other in 0..2 * SOUGHT as u64 {
            all.is_to_be_found(gone - other, late);
            assert!(all.sought.len() <= SOUGHT);
        }
    }

    /// A machine that begins and ends services all day: each has a group with a limit.
    #[test]
    fn groups_that_went_make_room_for_others_and_their_files_are_their_parents() {
        let root = tempfile::tempdir().unwrap();
        let outer = group(root.path(), "outer", "8192\n");
        let mut all = scopes(root.path());
        assert_eq!(all.look(), []);
        for round in 0..50 {
            let name = format!("outer/job{round}");
            let job = group(root.path(), &name, "4096\n");
            all.look();
            assert_eq!(all.of(fs::metadata(&job).unwrap().ino()), Some(2));
            fs::remove_dir_all(&job).unwrap();
            assert_eq!(all.look(), [Gone { scope: 2, to: 1 }]);
        }
        assert_eq!(all.len(), 3);
        fs::write(outer.join("memory.max"), "max\n").unwrap();
        assert_eq!(all.look(), [Gone { scope: 1, to: 0 }], "it has no limit any more");
    }

    /// A service that was named and is begun anew.
    #[test]
    fn a_named_group_is_the_same_when_it_comes_again() {
        let root = tempfile::tempdir().unwrap();
        let path = group(root.path(), "service", "8192\n");
        let mut only = Scopes::empty(Some(root.path().to_owned()), true, Marks::default());
        only.add_named(&path);
        only.look();
        let second = Nanos::seconds(1);
        assert_eq!(used(&mut only, 0, second), Some(4096));
        // It stays elsewhere, so that the new one has another inode number, as control groups have.
        fs::rename(&path, root.path().join("gone")).unwrap();
        assert_eq!(only.look(), [], "it is waited for");
        group(root.path(), "service", "4096\n");
        fs::write(path.join("memory.current"), "100\n").unwrap();
        only.look();
        assert_eq!(only.of(fs::metadata(&path).unwrap().ino()), Some(0));
        assert_eq!(used(&mut only, 0, second * 3), Some(100));
    }

    /// What is far from short is not looked at each time: with many groups that would never end.
    #[test]
    fn a_memory_is_looked_at_when_it_can_be_short() {
        let root = tempfile::tempdir().unwrap();
        let path = group(root.path(), "large", "8589934592\n");
        let mut all = scopes(root.path());
        all.look();
        assert_eq!(used(&mut all, 1, Nanos(1)), Some(4096));
        assert_eq!(used(&mut all, 1, Nanos(1000)), None, "it has 7 GiB to go");
        assert!(all.look_at(1, Nanos::seconds(2)).is_some());
        fs::write(path.join("memory.current"), "8589930000\n").unwrap();
        assert!(used(&mut all, 1, Nanos::seconds(4)).is_some());
        assert_eq!(used(&mut all, 1, Nanos::seconds(4) + Nanos(1)), Some(8_589_930_000));
        assert!(all.are_near());
    }

    /// A small group is full before others would be looked at again.
    #[test]
    fn memories_that_are_nearly_short_are_looked_at_as_often_as_they_can_be_full() {
        let root = tempfile::tempdir().unwrap();
        let bounds = (Nanos::micros(200), Nanos::millis(2));
        let small = group(root.path(), "small", "25165824\n");
        let mut all = scopes(root.path());
        all.look();
        let mut now = Nanos::seconds(5);
        let mut look = |used: u64| {
            fs::write(small.join("memory.current"), format!("{used}\n")).unwrap();
            // Events come in batches, and memories are looked at after each.
            for _ in 0..2 {
                // What is far from short is not looked at before.
                now += SELDOM;
                all.look_at(1, now);
            }
            all.pause(bounds)
        };
        let far = look(1 << 20).expect("it may be short soon");
        assert!(far >= bounds.0, "{far}");
        assert_eq!(look(1 << 20), None, "nothing happens to it");
        let nearer = look(10 << 20).expect("it may be short soon");
        assert!(nearer < far || far == bounds.0, "{nearer} {far}");
        // A tenth is kept free, and half of that may be filled by all processors.
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let half = Nanos::from_f64(0.05 * 25_165_824.0 / (FASTEST * processors) * 1e9);
        let expected = half.max(bounds.0).min(bounds.1).get();
        let near = look(24_000_000).expect("it is near").get();
        assert!(near.abs_diff(expected) <= 1, "{near} {expected}");
        assert_eq!(look(24_000_000), Some(bounds.1), "nothing happens to it");
        assert!(look(23_900_000).is_some_and(|pause| pause.get().abs_diff(expected) <= 1));
    }
}
