//! DAMON's files (`Documentation/admin-guide/mm/damon/usage.rst`).

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::pagemap::PAGE;
use crate::sampler::ProcessRange;

/// Where the files are, below the root.
pub const ADMIN: &str = "sys/kernel/mm/damon/admin/kdamonds";

/// DAMON's own default intervals: a look every 5 ms, a picture every 100 ms.
const SAMPLE_US: u64 = 5_000;
const LOOKS_A_PICTURE: u32 = 20;
/// How often DAMON looks for mappings that came or went: its default, 1 s.
const UPDATE_US: u64 = 1_000_000;
/// A picture takes no longer than this as long as it has [`FEWEST_LOOKS`]: who has to know that
/// the hot set has moved cannot wait for long. And DAMON divides regions once a picture.
const PICTURE_US: u64 = 1_000_000;
/// Fewer looks would not tell a page that is used once in a while from one that is used all the
/// time.
const FEWEST_LOOKS: u32 = 5;

/// Regions a process. DAMON's defaults are 10 and 1000. Ten give a coarse
/// picture of a large program for a long time; a hundred cost a tenth of the
/// upper bound, which is what DAMON's overhead is bounded by in any case.
const REGIONS: (u64, u64) = (100, 1000);
/// What the upper bound may fall to. With fewer, a hot part of a hundredth is not found.
const FEWEST_REGIONS: u64 = 100;

/// The most ranges that DAMON is told of a program: half of the regions that it has at least, so
/// that it can divide each.
const MOST_RANGES: usize = 50;

/// What DAMON watches of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The process.
    pub process: u32,
    /// Where its memory is, in order. Left to DAMON's own idea, which is everything between the
    /// first and the last mapping but for the two widest gaps, its regions would mostly be of
    /// nothing: a program with 144 MiB had hundreds of GB of them.
    pub ranges: Vec<(u64, u64)>,
}

impl Target {
    /// What is to be watched, by processes. Of ranges that are more than DAMON can be told the
    /// nearest become one.
    pub fn all(ranges: &[ProcessRange]) -> Vec<Self> {
        let of_process = |group: &[ProcessRange]| {
            let mut ranges: Vec<_> = group.iter().map(|range| (range.start, range.end)).collect();
            if ranges.len() > MOST_RANGES {
                let gap = |i: &usize| ranges[*i].0 - ranges[*i - 1].1;
                let mut widest: Vec<usize> = (1..ranges.len()).collect();
                widest.sort_by_key(|i| std::cmp::Reverse(gap(i)));
                widest.truncate(MOST_RANGES - 1);
                widest.sort_unstable();
                let starts = std::iter::once(0).chain(widest.iter().copied());
                let ends = widest.iter().copied().chain([ranges.len()]);
                ranges = starts.zip(ends).map(|(a, b)| (ranges[a].0, ranges[b - 1].1)).collect();
            }
            Self { process: group[0].process, ranges }
        };
        ranges.chunk_by(|a, b| a.process == b.process).map(of_process).collect()
    }
}

/// What DAMON is told for being so many times as rare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    /// Time between two looks at a region.
    sample_us: u64,
    /// Looks in a picture.
    looks: u32,
    /// The least and the most regions.
    regions: (u64, u64),
}

impl Pace {
    /// First looks become rarer, then fewer for a picture, then regions fewer, and only then
    /// does a picture take longer: in the order of what that loses.
    fn of(rarity: u32) -> Self {
        let rarity = u64::from(rarity.max(1));
        let rarest_us = PICTURE_US / u64::from(FEWEST_LOOKS);
        let by_looks = rarity.min(rarest_us / SAMPLE_US);
        let most = (REGIONS.1 * by_looks / rarity).max(FEWEST_REGIONS);
        let sample_us = SAMPLE_US * rarity * most / REGIONS.1;
        let looks = (PICTURE_US / sample_us) as u32;
        Self {
            sample_us,
            looks: looks.clamp(FEWEST_LOOKS, LOOKS_A_PICTURE),
            regions: (REGIONS.0.min(most / 2), most),
        }
    }

    fn picture_us(&self) -> u64 {
        self.sample_us * u64::from(self.looks)
    }
}

/// Consecutive pages that are used alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamonRegion {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// In how many of a picture's looks an access was found.
    pub accesses: u32,
}

/// A DAMON that runs for some processes; stopped when dropped.
#[derive(Debug)]
pub struct Control {
    admin: PathBuf,
    targets: Vec<Target>,
    pace: Pace,
}

fn write(path: &Path, value: impl Display + Copy) -> Result<(), String> {
    fs::write(path, format!("{value}")).map_err(|e| format!("{}: {e}", path.display()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .map_err(|e| format!("{}: {e}", path.display()))
}

fn number<T: std::str::FromStr>(path: &Path) -> Result<T, String> {
    let text = read(path)?;
    text.parse().map_err(|_| format!("{}: `{text}` is not a number", path.display()))
}

impl Control {
    /// What keeps DAMON from being used by us; `None` if nothing does.
    pub fn obstacle(root: &Path) -> Option<String> {
        let admin = root.join(ADMIN);
        let Ok(kdamonds) = number::<u32>(&admin.join("nr_kdamonds")) else {
            return Some(
                "this kernel has no DAMON in sysfs (CONFIG_DAMON_SYSFS), or it needs root".into(),
            );
        };
        let state = |i| admin.join(format!("{i}/state"));
        if let Some(i) = (0..kdamonds).find(|i| read(&state(*i)).is_ok_and(|state| state == "on")) {
            // The kernel changes none of them while one is on.
            let what = "DAMON is in use by another program";
            return Some(format!("{what} (/{ADMIN}/{i}/state is on)"));
        }
        // The kernel tells which operations it has only within a context; that
        // a set exists that is not ours to touch was ruled out above.
        if kdamonds == 0 && !virtual_addresses(&admin) {
            return Some("this kernel's DAMON cannot watch processes (CONFIG_DAMON_VADDR)".into());
        }
        None
    }

    /// Starts DAMON for these processes.
    pub fn start(admin: &Path, targets: Vec<Target>) -> Result<Self, String> {
        write(&admin.join("nr_kdamonds"), targets.len())?;
        let control = Self { admin: admin.to_owned(), targets, pace: Pace::of(1) };
        for i in 0..control.targets.len() {
            control.configure(i)?;
        }
        Ok(control)
    }

    fn context(&self, i: usize) -> PathBuf {
        self.admin.join(format!("{i}/contexts/0"))
    }

    fn configure(&self, i: usize) -> Result<(), String> {
        write(&self.admin.join(format!("{i}/contexts/nr_contexts")), 1)?;
        let context = self.context(i);
        // Ranges of ours where the kernel takes them (since 5.19), else DAMON's own.
        let operations = context.join("avail_operations");
        let fixed = read(&operations).is_ok_and(|names| has_operations(&names, "fvaddr"));
        write(&context.join("operations"), if fixed { "fvaddr" } else { "vaddr" })?;
        self.write_pace(i)?;
        write(&context.join("targets/nr_targets"), 1)?;
        write(&context.join("targets/0/pid_target"), self.targets[i].process)?;
        if fixed {
            self.write_ranges(i, &divided(&self.targets[i].ranges))?;
        }
        // A scheme that changes nothing and matches what was accessed: its
        // matches are the picture.
        write(&context.join("schemes/nr_schemes"), 1)?;
        let scheme = context.join("schemes/0");
        write(&scheme.join("action"), "stat")?;
        let pattern = scheme.join("access_pattern");
        for (what, least, most) in [
            ("sz", 0, u64::MAX),
            ("nr_accesses", 1, u64::from(u32::MAX)),
            ("age", 0, u64::from(u32::MAX)),
        ] {
            write(&pattern.join(what).join("min"), least)?;
            write(&pattern.join(what).join("max"), most)?;
        }
        write(&self.admin.join(format!("{i}/state")), "on")?;
        // What it is to look at from now on; that it was divided at first is DAMON's affair.
        if fixed { self.write_ranges(i, &self.targets[i].ranges) } else { Ok(()) }
    }

    fn write_ranges(&self, i: usize, ranges: &[(u64, u64)]) -> Result<(), String> {
        let regions = self.context(i).join("targets/0/regions");
        write(&regions.join("nr_regions"), ranges.len())?;
        for (number, (start, end)) in ranges.iter().enumerate() {
            let region = regions.join(number.to_string());
            write(&region.join("start"), start)?;
            write(&region.join("end"), end)?;
        }
        Ok(())
    }

    fn write_pace(&self, i: usize) -> Result<(), String> {
        let attrs = self.context(i).join("monitoring_attrs");
        let (intervals, bounds) = (attrs.join("intervals"), attrs.join("nr_regions"));
        let picture = self.pace.picture_us();
        write(&intervals.join("sample_us"), self.pace.sample_us)?;
        write(&intervals.join("aggr_us"), picture)?;
        write(&intervals.join("update_us"), UPDATE_US.max(picture))?;
        // They are looked at together when DAMON is started or told to take them.
        write(&bounds.join("min"), self.pace.regions.0)?;
        write(&bounds.join("max"), self.pace.regions.1)
    }

    /// How many looks a picture has, and how long it takes, at present.
    pub fn picture_of(&self) -> (u32, Duration) {
        (self.pace.looks, Duration::from_micros(self.pace.picture_us()))
    }

    /// What is watched, in the order of their numbers here.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Makes looks so many times as rare as they are by default, and has DAMON look at other
    /// memory of the same processes.
    pub fn set(&mut self, rarity: u32, targets: &[Target]) -> Result<(), String> {
        let pace = Pace::of(rarity);
        let another_pace = self.pace != pace;
        self.pace = pace;
        for i in 0..self.targets.len() {
            let wanted = targets.iter().find(|wanted| wanted.process == self.targets[i].process);
            let wanted = wanted.filter(|wanted| wanted.ranges != self.targets[i].ranges);
            if another_pace {
                self.write_pace(i)?;
            }
            if let Some(wanted) = wanted {
                self.targets[i].clone_from(wanted);
                let operations = self.context(i).join("operations");
                if read(&operations).is_ok_and(|name| name == "fvaddr") {
                    self.write_ranges(i, &self.targets[i].ranges)?;
                }
            }
            // A DAMON that ended with its process takes no orders.
            if (another_pace || wanted.is_some()) && self.is_on(i) {
                write(&self.admin.join(format!("{i}/state")), "commit")?;
            }
        }
        Ok(())
    }

    /// Whether it still runs for a process.
    pub fn is_on(&self, i: usize) -> bool {
        read(&self.admin.join(format!("{i}/state"))).is_ok_and(|state| state == "on")
    }

    /// The kernel thread that works for a process.
    pub fn thread(&self, i: usize) -> Option<u32> {
        number::<i64>(&self.admin.join(format!("{i}/pid")))
            .ok()
            .and_then(|pid| u32::try_from(pid).ok())
    }

    /// Waits for the next picture of a process, and returns it.
    pub fn picture(&self, i: usize) -> Result<Vec<DamonRegion>, String> {
        write(&self.admin.join(format!("{i}/state")), "update_schemes_tried_regions")?;
        let regions = self.context(i).join("schemes/0/tried_regions");
        let entries = fs::read_dir(&regions).map_err(|e| format!("{}: {e}", regions.display()))?;
        let mut picture = Vec::new();
        for entry in entries.flatten().filter(|e| e.file_name().as_encoded_bytes()[0] != b't') {
            let path = entry.path();
            picture.push(DamonRegion {
                start: number(&path.join("start"))?,
                end: number(&path.join("end"))?,
                accesses: number(&path.join("nr_accesses"))?,
            });
        }
        picture.sort_by_key(|region| region.start);
        Ok(picture)
    }
}

/// Ranges in pieces, as many as DAMON has regions at least: it takes ranges for regions, and
/// would divide each in two only once a picture.
fn divided(ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let total: u64 = ranges.iter().map(|(start, end)| end - start).sum();
    let piece = (total / REGIONS.0).next_multiple_of(PAGE).max(PAGE);
    let pieces = |&(start, end): &(u64, u64)| {
        (start..end).step_by(piece as usize).map(move |at| (at, (at + piece).min(end)))
    };
    ranges.iter().flat_map(pieces).collect()
}

fn has_operations(names: &str, name: &str) -> bool {
    names.split_ascii_whitespace().any(|other| other == name)
}

/// Whether the kernel has the operations for processes: asked by making a
/// context for a moment.
fn virtual_addresses(admin: &Path) -> bool {
    let ask = || -> Result<bool, String> {
        write(&admin.join("nr_kdamonds"), 1)?;
        write(&admin.join("0/contexts/nr_contexts"), 1)?;
        let operations = read(&admin.join("0/contexts/0/avail_operations"))?;
        Ok(has_operations(&operations, "vaddr"))
    };
    let has = ask().unwrap_or(false);
    let _ = write(&admin.join("nr_kdamonds"), 0);
    has
}

impl Drop for Control {
    fn drop(&mut self) {
        for i in 0..self.targets.len() {
            if self.is_on(i) {
                let _ = write(&self.admin.join(format!("{i}/state")), "off");
            }
        }
        let _ = write(&self.admin.join("nr_kdamonds"), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(ranges: &[(u64, u64)]) -> Vec<Target> {
        vec![Target { process: 4711, ranges: ranges.to_vec() }]
    }

    #[test]
    fn memory_that_came_is_looked_at_too() {
        let root = tree();
        let admin = root.path().join(ADMIN);
        let mut control = Control::start(&admin, targets(&[(4096, 8192)])).expect("a start");

        control.set(1, &targets(&[(4096, 8192)])).expect("nothing to do");
        assert_eq!(read(&admin.join("0/state")).as_deref(), Ok("on"));
        control.set(1, &targets(&[(4096, 20480)])).expect("another range");

        let region = admin.join("0/contexts/0/targets/0/regions/0");
        assert_eq!(read(&region.join("end")).as_deref(), Ok("20480"));
        assert_eq!(read(&admin.join("0/state")).as_deref(), Ok("commit"));
    }

    /// From two regions it took DAMON six pictures to have a hundred.
    #[test]
    fn it_begins_with_as_many_regions_as_it_has_at_least() {
        let ranges = [(0, 90 << 20), (1 << 30, (1 << 30) + (10 << 20) + 4096)];
        let pieces = divided(&ranges);
        assert!((90..=102).contains(&pieces.len()), "{}", pieces.len());
        assert!(pieces.windows(2).all(|pair| pair[0].1 <= pair[1].0), "in order");
        let bytes = |of: &[(u64, u64)]| of.iter().map(|(start, end)| end - start).sum::<u64>();
        assert_eq!(bytes(&pieces), bytes(&ranges), "all of it");
        assert_eq!(divided(&[(4096, 8192)]), [(4096, 8192)], "no less than a page");
    }

    /// A program with a thousand mappings: DAMON is told of the clusters.
    #[test]
    fn ranges_that_are_too_many_become_one_with_their_neighbours() {
        let range = |process, start: u64| ProcessRange { process, start, end: start + 4096 };
        let clusters = (0..20u64).flat_map(|c| (0..40).map(move |i| (c << 40) + i * 8192));
        let mut ranges: Vec<_> = clusters.map(|start| range(7, start)).collect();
        ranges.push(range(8, 4096));

        let targets = Target::all(&ranges);

        assert_eq!(targets.len(), 2);
        assert_eq!(targets[1], Target { process: 8, ranges: vec![(4096, 8192)] });
        let told = &targets[0].ranges;
        assert_eq!(told.len(), MOST_RANGES);
        assert!(told.iter().all(|(start, end)| end - start <= 40 * 8192), "no gap of a cluster's");
        assert!(told.windows(2).all(|pair| pair[0].1 < pair[1].0));
        let held = |r: &ProcessRange| told.iter().any(|t| t.0 <= r.start && r.end <= t.1);
        assert!(ranges.iter().filter(|r| r.process == 7).all(held), "nothing is left out");
    }

    /// The files that the kernel makes for one process.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        let context = root.path().join(ADMIN).join("0/contexts/0");
        for directory in [
            "monitoring_attrs/intervals",
            "monitoring_attrs/nr_regions",
            "targets/0/regions/0",
            "targets/0/regions/1",
            "targets/0/regions/2",
            "schemes/0/access_pattern/sz",
            "schemes/0/access_pattern/nr_accesses",
            "schemes/0/access_pattern/age",
        ] {
            fs::create_dir_all(context.join(directory)).expect("directories");
        }
        for (i, (start, end, accesses)) in
            [(8192u64, 16384u64, 3u32), (4096, 8192, 20)].into_iter().enumerate()
        {
            let region = context.join(format!("schemes/0/tried_regions/{i}"));
            fs::create_dir_all(&region).expect("a directory");
            for (name, value) in
                [("start", start), ("end", end), ("nr_accesses", accesses.into()), ("age", 1)]
            {
                fs::write(region.join(name), format!("{value}\n")).expect("a file");
            }
        }
        fs::write(context.join("avail_operations"), "vaddr\nfvaddr\npaddr\n").expect("a file");
        let total = context.join("schemes/0/tried_regions/total_bytes");
        fs::write(total, "12288\n").expect("a file");
        root
    }

    #[test]
    fn it_asks_for_what_was_accessed_in_one_process_and_reads_the_answer() {
        let root = tree();
        let admin = root.path().join(ADMIN);
        let context = admin.join("0/contexts/0");

        let control =
            Control::start(&admin, targets(&[(4096, 8192), (12288, 16384)])).expect("a start");
        let at = |path: &str| read(&context.join(path)).expect("a file");
        assert_eq!(at("operations"), "fvaddr", "the memory that is ours to place, no gaps");
        assert_eq!(at("targets/0/pid_target"), "4711");
        assert_eq!(at("targets/0/regions/nr_regions"), "2");
        assert_eq!(
            (at("targets/0/regions/1/start"), at("targets/0/regions/1/end")),
            ("12288".into(), "16384".into())
        );
        assert_eq!(at("schemes/0/access_pattern/nr_accesses/min"), "1", "not what lies idle");
        assert_eq!(read(&admin.join("0/state")).as_deref(), Ok("on"));

        let picture = control.picture(0).expect("a picture");
        assert_eq!(
            picture,
            [
                DamonRegion { start: 4096, end: 8192, accesses: 20 },
                DamonRegion { start: 8192, end: 16384, accesses: 3 },
            ]
        );
    }

    /// Orders of the kernel's that took effect only with the next picture, and pictures of ten
    /// seconds, kept a program's new hot set out of DRAM for as long.
    #[test]
    fn looks_become_rarer_without_a_picture_taking_long() {
        let root = tree();
        let admin = root.path().join(ADMIN);
        let mut control =
            Control::start(&admin, targets(&[(4096, 8192), (12288, 16384)])).expect("a start");

        control.set(16, &[]).expect("new intervals");

        let attrs = admin.join("0/contexts/0/monitoring_attrs");
        let at = |name: &str| number::<u64>(&attrs.join(name)).expect("a number");
        let intervals = (at("intervals/sample_us"), at("intervals/aggr_us"));
        assert_eq!(intervals, (80_000, 960_000), "12 looks");
        assert_eq!(control.picture_of(), (12, Duration::from_millis(960)));
        assert_eq!((at("nr_regions/min"), at("nr_regions/max")), (100, 1000));
        assert_eq!(read(&admin.join("0/state")).as_deref(), Ok("commit"));
    }

    /// What DAMON costs is its looks by its regions, a second.
    #[test]
    fn whatever_the_rarity_it_costs_as_much_less() {
        let cost = |pace: Pace| pace.regions.1 as f64 / pace.sample_us as f64;
        let mut last = Pace::of(1);
        for rarity in (0..=16).map(|power| 1 << power) {
            let pace = Pace::of(rarity);
            let cheaper = cost(Pace::of(1)) / cost(pace);
            let expected = f64::from(rarity);
            assert!((0.7..=1.4).contains(&(cheaper / expected)), "{rarity}: {cheaper}");
            assert!((FEWEST_LOOKS..=LOOKS_A_PICTURE).contains(&pace.looks), "{rarity}: {pace:?}");
            assert!(pace.regions.0 * 2 <= pace.regions.1, "{rarity}: {pace:?}");
            // But for what is lost by whole numbers.
            assert!(pace.picture_us() * 101 >= last.picture_us() * 100, "{rarity}: {pace:?}");
            last = pace;
        }
        assert_eq!(Pace::of(400).picture_us(), PICTURE_US, "a second until there is no other way");
    }

    /// Taking DAMON away from whoever uses it would blind an operator's own
    /// monitoring without a word.
    #[test]
    fn a_damon_that_somebody_uses_is_left_alone() {
        let root = tree();
        let admin = root.path().join(ADMIN);
        fs::write(admin.join("nr_kdamonds"), "1\n").expect("a file");
        fs::write(admin.join("0/state"), "on\n").expect("a file");
        assert_eq!(
            Control::obstacle(root.path()).as_deref(),
            Some(
                "DAMON is in use by another program \
                 (/sys/kernel/mm/damon/admin/kdamonds/0/state is on)"
            )
        );
        assert!(Control::obstacle(Path::new("/nowhere")).is_some());
    }
}
