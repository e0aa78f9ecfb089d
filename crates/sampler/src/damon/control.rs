//! DAMON's files (`Documentation/admin-guide/mm/damon/usage.rst`).

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the files are, below the root.
pub const ADMIN: &str = "sys/kernel/mm/damon/admin/kdamonds";

/// DAMON's own default intervals: a look every 5 ms, a picture every 100 ms.
const SAMPLE_US: u64 = 5_000;
const LOOKS_A_PICTURE: u64 = 20;
/// How often DAMON looks for mappings that came or went: its default, 1 s.
const UPDATE_US: u64 = 1_000_000;
/// A look is never rarer than this, or the intervals would outlast the program.
const RAREST_SAMPLE_US: u64 = 500_000;

/// Regions a process. DAMON's defaults are 10 and 1000. Ten give a coarse
/// picture of a large program for a long time; a hundred cost a tenth of the
/// upper bound, which is what DAMON's overhead is bounded by in any case.
const REGIONS: (u64, u64) = (100, 1000);

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
    processes: Vec<u32>,
    rarity: u32,
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
        if (0..kdamonds)
            .any(|i| read(&admin.join(format!("{i}/state"))).is_ok_and(|state| state == "on"))
        {
            return Some("DAMON is in use by another program".into());
        }
        // The kernel tells which operations it has only within a context; that
        // a set exists that is not ours to touch was ruled out above.
        if kdamonds == 0 && !virtual_addresses(&admin) {
            return Some("this kernel's DAMON cannot watch processes (CONFIG_DAMON_VADDR)".into());
        }
        None
    }

    /// Starts DAMON for these processes.
    pub fn start(admin: &Path, processes: &[u32]) -> Result<Self, String> {
        write(&admin.join("nr_kdamonds"), processes.len())?;
        let control = Self { admin: admin.to_owned(), processes: processes.to_vec(), rarity: 1 };
        for (i, process) in processes.iter().enumerate() {
            control.configure(i, *process)?;
        }
        Ok(control)
    }

    fn context(&self, i: usize) -> PathBuf {
        self.admin.join(format!("{i}/contexts/0"))
    }

    fn configure(&self, i: usize, process: u32) -> Result<(), String> {
        write(&self.admin.join(format!("{i}/contexts/nr_contexts")), 1)?;
        let context = self.context(i);
        write(&context.join("operations"), "vaddr")?;
        self.write_intervals(i)?;
        let bounds = context.join("monitoring_attrs/nr_regions");
        // The upper bound first: the lower must not exceed it at any moment.
        write(&bounds.join("max"), REGIONS.1)?;
        write(&bounds.join("min"), REGIONS.0)?;
        write(&context.join("targets/nr_targets"), 1)?;
        write(&context.join("targets/0/pid_target"), process)?;
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
        write(&self.admin.join(format!("{i}/state")), "on")
    }

    fn write_intervals(&self, i: usize) -> Result<(), String> {
        let intervals = self.context(i).join("monitoring_attrs/intervals");
        let sample = (SAMPLE_US * u64::from(self.rarity)).min(RAREST_SAMPLE_US);
        let aggregate = sample * LOOKS_A_PICTURE;
        write(&intervals.join("sample_us"), sample)?;
        write(&intervals.join("aggr_us"), aggregate)?;
        write(&intervals.join("update_us"), UPDATE_US.max(aggregate))
    }

    /// The processes, in the order of their numbers here.
    pub fn processes(&self) -> &[u32] {
        &self.processes
    }

    /// Makes looks so many times as rare as they are by default.
    pub fn set_rarity(&mut self, rarity: u32) -> Result<(), String> {
        let rarity = rarity.max(1);
        if self.rarity == rarity {
            return Ok(());
        }
        self.rarity = rarity;
        for i in 0..self.processes.len() {
            self.write_intervals(i)?;
            // A DAMON that ended with its process takes no orders.
            if self.is_on(i) {
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

/// Whether the kernel has the operations for processes: asked by making a
/// context for a moment.
fn virtual_addresses(admin: &Path) -> bool {
    let ask = || -> Result<bool, String> {
        write(&admin.join("nr_kdamonds"), 1)?;
        write(&admin.join("0/contexts/nr_contexts"), 1)?;
        let operations = read(&admin.join("0/contexts/0/avail_operations"))?;
        Ok(operations.split_ascii_whitespace().any(|name| name == "vaddr"))
    };
    let has = ask().unwrap_or(false);
    let _ = write(&admin.join("nr_kdamonds"), 0);
    has
}

impl Drop for Control {
    fn drop(&mut self) {
        for i in 0..self.processes.len() {
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

    /// The files that the kernel makes for one process.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        let context = root.path().join(ADMIN).join("0/contexts/0");
        for directory in [
            "monitoring_attrs/intervals",
            "monitoring_attrs/nr_regions",
            "targets/0",
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
        let total = context.join("schemes/0/tried_regions/total_bytes");
        fs::write(total, "12288\n").expect("a file");
        root
    }

    #[test]
    fn it_asks_for_what_was_accessed_in_one_process_and_reads_the_answer() {
        let root = tree();
        let admin = root.path().join(ADMIN);
        let context = admin.join("0/contexts/0");

        let control = Control::start(&admin, &[4711]).expect("a start");
        let at = |path: &str| read(&context.join(path)).expect("a file");
        assert_eq!(at("operations"), "vaddr");
        assert_eq!(at("targets/0/pid_target"), "4711");
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

    #[test]
    fn rarer_looks_keep_the_number_of_looks_in_a_picture() {
        let root = tree();
        let admin = root.path().join(ADMIN);
        let mut control = Control::start(&admin, &[4711]).expect("a start");

        control.set_rarity(4).expect("new intervals");

        let intervals = admin.join("0/contexts/0/monitoring_attrs/intervals");
        let at = |name: &str| number::<u64>(&intervals.join(name)).expect("a number");
        assert_eq!((at("sample_us"), at("aggr_us")), (20_000, 400_000));
        assert_eq!(read(&admin.join("0/state")).as_deref(), Ok("commit"));
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
            Some("DAMON is in use by another program")
        );
        assert!(Control::obstacle(Path::new("/nowhere")).is_some());
    }
}
