//! What the daemon was told to look at alone, and of which of it nothing was seen.
//!
//! A filter that matches nothing looks like a daemon with nothing to do, so it is told. Devices and
//! groups are known from events. A path is known only of a file that is opened: until something was
//! found below it, files that are known are looked at, a few a second. What was not looked at may
//! be what the filter is about, so it is told, too.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrace_core::{ContextId, ContextIdentity};

use crate::act::handle::{Below, Mounts};

/// Files that are looked at for directories, at each look.
pub(super) const FILES: usize = 64;

/// Directories that files have to lie below, with what was found.
#[derive(Debug, Default)]
pub struct Paths {
    all: Vec<(Below, PathBuf, AtomicBool)>,
    looked: AtomicU64,
    gone: AtomicU64,
}

impl Paths {
    /// These directories, without links in them. With none, every file is touched.
    pub fn new(directories: Vec<PathBuf>) -> Self {
        let of = |path: PathBuf| (Below::new(path.clone()), path, AtomicBool::new(false));
        Self { all: directories.into_iter().map(of).collect(), ..Self::default() }
    }

    /// Whether a file lies where files are touched. Remembers where one was found.
    pub fn have(&self, mounts: &Mounts, file: &std::fs::File) -> bool {
        let mut is_below = self.all.is_empty();
        for (below, _, seen) in &self.all {
            if mounts.is_below(file, below) {
                seen.store(true, Ordering::Relaxed);
                is_below = true;
            }
        }
        is_below
    }

    /// The same for a file that is only looked at, which is counted; `None` if it could not be opened
    /// any more, so that nobody knows where it lay.
    pub fn look(&self, mounts: &Mounts, file: Option<&std::fs::File>) {
        let count = match file {
            Some(file) => {
                self.have(mounts, file);
                &self.looked
            }
            None => &self.gone,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there is a directory below which nothing was found.
    pub fn are_looked_for(&self) -> bool {
        self.all.iter().any(|(_, _, seen)| !seen.load(Ordering::Relaxed))
    }

    /// Files that were looked at.
    fn looked(&self) -> u64 {
        self.looked.load(Ordering::Relaxed)
    }

    /// Directories below which none of so many files lies.
    fn unseen(&self, looked: u64) -> impl Iterator<Item = String> {
        self.all.iter().filter(|(_, _, seen)| !seen.load(Ordering::Relaxed)).map(
            move |(_, path, _)| {
                let path = path.display();
                match looked {
                    0 => format!("--path {path}: no file was looked at, below it or elsewhere"),
                    1 => format!("--path {path}: the 1 file that was looked at lies elsewhere"),
                    _ => format!(
                        "--path {path}: all {looked} files that were looked at lie elsewhere"
                    ),
                }
            },
        )
    }
}

/// What there is that filters were not told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Untold {
    /// Files that are known or were.
    pub files: u64,
    /// Of them, those that are known still and were not handed over ([`Filters::waiting`]).
    pub waiting: u64,
    /// Events that were lost.
    pub lost: u64,
    /// Whether more events wait to be taken.
    pub behind: bool,
}

/// "1 file", "2 files".
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Filters, each with whether anything of it was seen.
#[derive(Debug)]
pub struct Filters {
    devices: Vec<(u64, bool)>,
    groups: Vec<(PathBuf, bool)>,
    paths: Arc<Paths>,
    /// The arrival of the youngest file that was handed over to be looked at for a path. Numbers of
    /// contexts come round, and then a younger file has a smaller one.
    youngest: u64,
    /// Files that were handed over.
    handed_over: u64,
}

impl Filters {
    /// Nothing of these was seen yet.
    pub fn new(devices: &[u64], groups: &[PathBuf], paths: Arc<Paths>) -> Self {
        Self {
            devices: devices.iter().map(|&device| (device, false)).collect(),
            groups: groups.iter().map(|group| (group.clone(), false)).collect(),
            paths,
            youngest: 0,
            handed_over: 0,
        }
    }

    /// An event was taken: of a file, by a program of a group that was named. A group belongs to
    /// those that it lies below.
    pub fn saw(&mut self, file: &ContextIdentity, group: Option<&Path>) {
        if let ContextIdentity::File { device, .. } = file {
            for (_, seen) in self.devices.iter_mut().filter(|(its, _)| its == device) {
                *seen = true;
            }
        }
        if let Some(group) = group {
            for (_, seen) in self.groups.iter_mut().filter(|(its, _)| group.starts_with(its)) {
                *seen = true;
            }
        }
    }

    /// Hands files over to be looked at, if a path is looked for: of those that are known, each with
    /// its arrival, in any order, the oldest that were not yet. `look` says whether a file will be
    /// looked at. One that there is no room for is the first the next time; otherwise it would pass
    /// for a file that lies elsewhere. Looks have time: as long as the worker has other things to do
    /// there are no more of them, which would take the room of what memory is short for.
    pub fn hand_over(
        &mut self,
        known: impl Iterator<Item = (u64, ContextId)>,
        mut look: impl FnMut(ContextId) -> bool,
    ) {
        if !self.paths.are_looked_for() || self.under_way() > 0 {
            return;
        }
        let mut new: Vec<_> = known.filter(|&(arrival, _)| arrival > self.youngest).collect();
        new.sort_unstable();
        for (arrival, id) in new.into_iter().take(FILES) {
            if !look(id) {
                return;
            }
            self.youngest = arrival;
            self.handed_over += 1;
        }
    }

    /// Files that the worker has, and has not looked at.
    fn under_way(&self) -> u64 {
        let gone = self.paths.gone.load(Ordering::Relaxed);
        self.handed_over.saturating_sub(self.paths.looked() + gone)
    }

    /// How many of the files that are known, by their arrivals, were not handed over to be looked at.
    pub fn waiting(&self, known: impl Iterator<Item = u64>) -> u64 {
        known.filter(|&arrival| arrival > self.youngest).count() as u64
    }

    /// Of what nothing was seen, a sentence each, with what may be otherwise for it.
    pub fn unseen(&self, untold: &Untold) -> Vec<String> {
        let looked = self.paths.looked();
        let gone = self.paths.gone.load(Ordering::Relaxed);
        let waiting = untold.waiting + self.under_way();
        let gone = gone + untold.files.saturating_sub(self.handed_over + untold.waiting);
        let of_events = [
            (untold.lost > 0).then(|| format!("{} lost", counted(untold.lost, "event"))),
            untold.behind.then(|| "more events wait to be taken".to_owned()),
        ];
        let of_files = [
            (waiting > 0).then(|| format!("{} not looked at yet", counted(waiting, "file"))),
            (gone > 0).then(|| format!("{} gone before that", counted(gone, "file"))),
        ];
        let with = |sentence: String, but: &[Option<String>]| {
            let but: Vec<_> = but.iter().flatten().map(String::as_str).collect();
            if but.is_empty() { sentence } else { format!("{sentence} ({})", but.join(", ")) }
        };
        let of_all = [&of_files[..], &of_events].concat();
        let groups = self.groups.iter().filter(|(_, seen)| !seen).map(|(group, _)| {
            let group = group.display();
            format!("--cgroup {group}: no program of it was seen to open or close a file")
        });
        let devices = self.devices.iter().filter(|(_, seen)| !seen).map(|&(device, _)| {
            let name = name(device);
            format!("--device {name}: nobody was seen to open or close a file on it")
        });
        let by_events = groups.chain(devices).map(|sentence| with(sentence, &of_events));
        by_events.chain(self.paths.unseen(looked).map(|sentence| with(sentence, &of_all))).collect()
    }
}

/// What a block device is called, or its numbers.
fn name(device: u64) -> String {
    let numbers = format!("{}:{}", libc::major(device), libc::minor(device));
    let link = Path::new("/dev/block").join(&numbers);
    std::fs::canonicalize(link).map_or(numbers, |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn file(device: u64) -> ContextIdentity {
        ContextIdentity::File { device, inode: 1, generation: 1 }
    }

    /// What is handed over of these files to a worker that has room for so many. They came in the
    /// order of their numbers.
    fn handed_over(
        filters: &mut Filters,
        known: impl Iterator<Item = ContextId>,
        room: usize,
    ) -> Vec<ContextId> {
        let mut files = Vec::new();
        filters.hand_over(known.map(|id| (id.0.into(), id)), |id| {
            let has_room = files.len() < room;
            files.extend(has_room.then_some(id));
            has_room
        });
        files
    }

    #[test]
    fn what_was_seen_of_a_filter_is_not_told_any_more() {
        let groups = ["/groups/web".into(), "/groups/job".into()];
        let mut filters = Filters::new(&[7, 9], &groups, Arc::default());
        assert_eq!(filters.unseen(&Untold::default()).len(), 4);
        filters.saw(&file(9), Some(Path::new("/groups/web/worker")));
        let unseen = filters.unseen(&Untold::default());
        assert_eq!(unseen.len(), 2, "{unseen:?}");
        assert!(unseen[0].starts_with("--cgroup /groups/job: "), "{unseen:?}");
        assert!(unseen[1].starts_with("--device 0:7: "), "{unseen:?}");
        filters.saw(&file(8), None);
        assert_eq!(filters.unseen(&Untold::default()), unseen, "another device, and no group");
        let all = Untold { files: 9, waiting: 1, lost: 1, behind: true };
        assert!(Filters::new(&[], &[], Arc::default()).unseen(&all).is_empty());
        for (sentence, plain) in filters.unseen(&all).iter().zip(&unseen) {
            let but = " (1 event lost, more events wait to be taken)";
            assert_eq!(sentence.strip_suffix(but), Some(plain.as_str()), "files say nothing of it");
        }
    }

    /// Each file once, a few at a time, and none once every path has been found.
    #[test]
    fn files_are_looked_at_for_a_path_until_one_lies_below_it() {
        let directory = tempfile::tempdir().unwrap();
        let (here, elsewhere) = (directory.path().join("here"), directory.path().join("elsewhere"));
        let paths = [&here, &elsewhere].map(|path| {
            std::fs::create_dir(path).unwrap();
            std::fs::canonicalize(path).unwrap()
        });
        let paths = Arc::new(Paths::new(paths.to_vec()));
        let mut filters = Filters::new(&[], &[], Arc::clone(&paths));
        let known = || (1..=100).rev().map(ContextId);
        let first = handed_over(&mut filters, known(), usize::MAX);
        assert_eq!(first, (1..=FILES as u32).map(ContextId).collect::<Vec<_>>());
        assert!(handed_over(&mut filters, known(), usize::MAX).is_empty(), "they are under way");
        (0..FILES).for_each(|_| paths.look(&Mounts::default(), None));
        let rest = handed_over(&mut filters, known(), usize::MAX);
        (FILES..100).for_each(|_| paths.look(&Mounts::default(), None));
        assert_eq!(rest, (FILES as u32 + 1..=100).map(ContextId).collect::<Vec<_>>());
        assert!(handed_over(&mut filters, known(), usize::MAX).is_empty());
        let unseen = filters.unseen(&Untold::default());
        assert!(unseen.iter().all(|text| text.contains("no file was looked at")), "{unseen:?}");

        let mounts = Mounts::default();
        std::fs::write(here.join("file"), "x").unwrap();
        assert_eq!(handed_over(&mut filters, (101..102).map(ContextId), 1), [ContextId(101)]);
        paths.look(&mounts, Some(&File::open(here.join("file")).unwrap()));
        let unseen = filters.unseen(&Untold::default());
        assert_eq!(unseen.len(), 1, "{unseen:?}");
        assert!(unseen[0].contains("elsewhere: the 1 file that was looked at"), "{unseen:?}");
        assert_eq!(handed_over(&mut filters, (102..103).map(ContextId), 1), [ContextId(102)]);
        std::fs::write(elsewhere.join("file"), "x").unwrap();
        assert!(paths.have(&mounts, &File::open(elsewhere.join("file")).unwrap()));
        assert!(filters.unseen(&Untold::default()).is_empty());
        assert!(handed_over(&mut filters, (103..104).map(ContextId), 1).is_empty());
    }

    /// While memory is short the worker has no room for looks.
    #[test]
    fn a_file_that_there_was_no_room_for_is_looked_at_the_next_time() {
        let paths = Arc::new(Paths::new(vec!["/no/such/place".into()]));
        let mut filters = Filters::new(&[], &[], Arc::clone(&paths));
        let known = || [3, 1, 4, 2].into_iter().map(ContextId);
        assert_eq!(handed_over(&mut filters, known(), 2), [ContextId(1), ContextId(2)]);
        (0..2).for_each(|_| paths.look(&Mounts::default(), None));
        assert!(handed_over(&mut filters, known(), 0).is_empty());
        assert_eq!(handed_over(&mut filters, known(), 9), [ContextId(3), ContextId(4)]);
    }

    /// After that the younger file has the smaller number.
    #[test]
    fn files_are_looked_at_when_their_numbers_have_come_round() {
        let paths = Arc::new(Paths::new(vec!["/no/such/place".into()]));
        let mut filters = Filters::new(&[], &[], Arc::clone(&paths));
        let last = u64::from(u32::MAX);
        let mut look_at = |known: &[(u64, u32)]| {
            let mut files = Vec::new();
            filters.hand_over(known.iter().map(|&(arrival, id)| (arrival, ContextId(id))), |id| {
                files.push(id.0);
                true
            });
            for _ in &files {
                paths.look(&Mounts::default(), None);
            }
            files
        };
        let old = [(last, u32::MAX), (last - 1, u32::MAX - 1)];
        assert_eq!(look_at(&old), [u32::MAX - 1, u32::MAX]);
        assert_eq!(look_at(&[(last, u32::MAX), (last + 1, 1)]), [1]);
        assert_eq!(filters.waiting([last, last + 1, last + 2].into_iter()), 1);
    }

    /// Thousands of files a second may be known, and few of them are looked at.
    #[test]
    fn what_was_not_looked_at_is_told_with_what_was() {
        let directory = tempfile::tempdir().unwrap();
        let (here, elsewhere) = (directory.path().join("here"), directory.path().join("elsewhere"));
        std::fs::create_dir(&here).unwrap();
        std::fs::write(&elsewhere, "x").unwrap();
        let paths = Arc::new(Paths::new(vec![std::fs::canonicalize(here).unwrap()]));
        let mut filters = Filters::new(&[], &[], Arc::clone(&paths));
        let only = |filters: &Filters, files: u64, known: &[u32]| {
            let waiting = filters.waiting(known.iter().copied().map(u64::from));
            let mut unseen = filters.unseen(&Untold { files, waiting, ..Untold::default() });
            assert_eq!(unseen.len(), 1, "{unseen:?}");
            unseen.remove(0)
        };
        // Of five files the first two are handed over; the third is forgotten.
        handed_over(&mut filters, (1..=5).map(ContextId), 2);
        let text = only(&filters, 5, &[1, 2, 4, 5]);
        let (but, none) = ("(4 files not looked at yet, 1 file gone before that)", "no file was");
        assert!(text.contains(none) && text.ends_with(but), "handed over is not looked at: {text}");
        for _ in 0..2 {
            paths.look(&Mounts::default(), Some(&File::open(&elsewhere).unwrap()));
        }
        let text = only(&filters, 5, &[1, 4, 5]);
        let but = "all 2 files that were looked at lie elsewhere (2 files not looked at yet, 1 file \
                   gone before that)";
        assert!(text.ends_with(but), "{text}");
        handed_over(&mut filters, [ContextId(4), ContextId(5)].into_iter(), 2);
        for _ in 0..2 {
            paths.look(&Mounts::default(), Some(&File::open(&elsewhere).unwrap()));
        }
        let text = only(&filters, 5, &[4, 5]);
        assert!(text.ends_with("lie elsewhere (1 file gone before that)"), "{text}");
    }
}
