//! Which pages of files leave a limited memory: the running kernel's choice and the simulated one's.
//!
//! A program reads a file through, again and again, and between its reads some pages of another one
//! at random: what streams, and a hot set. It runs here in a memory group with a limit, and asks
//! before each read of the hot set whether the page is cached (`RWF_NOWAIT`). The same calls are
//! made in the simulated kernel, with as much memory as the group's page cache had.
//!
//! Small hot sets stay in memory. Larger ones do not: the inactive list may not become shorter than
//! the active one, so that a part of them leaves again and again, and a steady share of their reads
//! misses. The stream is larger than the memory in all of them. Pages of a stream that all but fits come
//! back so soon that Linux takes them for hot (`mm/workingset.c`), and then what is kept depends on
//! how it began; nothing steady can be measured there.

use std::fs::{self, File};
use std::io::{self, IoSliceMut, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rustix::fs::{Advice, fadvise, statfs};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use terrace_core::Bytes;
use terrace_policy::FirstTouch;

use super::kernel_objects::NotRun;
use super::{Criterion, Line, Model, Reference};
use crate::kernel::{Call, Costs, FileReplacement, Kernel, KernelConfig};
use crate::machines;
use crate::workload::SimRng;

/// Names the directory that a process of ours reads in, which was started to be measured.
const READER: &str = "TERRACE_VALIDATE_READER";
/// What the group may hold.
const LIMIT: Bytes = Bytes::mib(64);
/// What streams through.
const STREAM: Bytes = Bytes::mib(96);
/// Bytes of a read of the stream.
const CHUNK: u64 = 128 << 10;
const PAGE: u64 = 4096;
/// Reads of the hot set for each read of the stream.
const HOT_READS: u64 = 16;
/// Times that the stream's file is read through.
const ROUNDS: usize = 14;
/// Rounds at the end that are taken as steady.
const STEADY: usize = 4;
/// The running kernel is steady if its rounds differ by no more, in percentage points.
const SPREAD: f64 = 2.0;
/// Ours agrees within so many percentage points.
const POINTS: f64 = 3.0;
/// Sizes of the hot set, in MiB, and what `terrace validate --only 10` measured of each, if it was
/// recorded: percent of misses once it was steady, and bytes in the page cache. That was on 2026-11-27
/// (Linux 6.18, ext4, a control group of version 1, beside other load). The third was not steady then,
/// and the last two are not recorded yet.
const HOT: [(u64, Option<(f64, u64)>); 5] = [
    (16, Some((0.0, 62_500_000))),
    (24, Some((0.0122, 62_500_000))),
    (32, None),
    (38, None),
    (44, None),
];

/// What the running kernel did with a hot set.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The hot set.
    pub hot: Bytes,
    /// Reads of it that missed, in percent, in each round.
    pub rounds: Vec<f64>,
    /// What the group's page cache held at the end.
    pub cached: Bytes,
}

/// Gives each read to `stream` or to `hot`, as the program makes them; `hot` says whether it
/// missed. Gives the share of misses of each round, in percent.
fn program<E>(
    hot_bytes: u64,
    mut stream: impl FnMut(u64) -> Result<(), E>,
    mut hot: impl FnMut(u64) -> Result<bool, E>,
) -> Result<Vec<f64>, E> {
    let mut rng = SimRng::seed_from_u64(1);
    let pages = hot_bytes / PAGE;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let (mut missed, mut all) = (0u64, 0u64);
        for offset in (0..STREAM.get()).step_by(CHUNK as usize) {
            stream(offset)?;
            for _ in 0..HOT_READS {
                let page = ((u128::from(rng.next_u64()) * u128::from(pages)) >> 64) as u64;
                missed += u64::from(hot(page * PAGE)?);
                all += 1;
            }
        }
        rounds.push(missed as f64 * 100.0 / all as f64);
    }
    Ok(rounds)
}

/// If this process was started to be measured: reads, prints the misses of each round, and says so.
///
/// # Errors
///
/// Files that cannot be read.
pub fn read_if_asked() -> io::Result<bool> {
    let Some(place) = std::env::var_os(READER).map(PathBuf::from) else { return Ok(false) };
    let (hot_file, stream_file) =
        (File::open(place.join("hot"))?, File::open(place.join("stream"))?);
    // Pages are read alone, as they are asked for.
    fadvise(&hot_file, 0, None, Advice::Random)?;
    let hot_bytes = hot_file.metadata()?.len();
    let mut chunk = vec![0u8; CHUNK as usize];
    let mut page = vec![0u8; PAGE as usize];
    let rounds = program(
        hot_bytes,
        |offset| stream_file.read_exact_at(&mut chunk, offset),
        |offset| {
            let mut buffer = [IoSliceMut::new(&mut page)];
            match preadv2(&hot_file, &mut buffer, offset, ReadWriteFlags::NOWAIT) {
                Ok(read) if read == PAGE as usize => Ok(false),
                Ok(_) | Err(Errno::AGAIN) => {
                    hot_file.read_exact_at(&mut page, offset)?;
                    Ok(true)
                }
                Err(error) => Err(error.into()),
            }
        },
    )?;
    let text: Vec<String> = rounds.iter().map(|percent| format!("{percent:.4}")).collect();
    println!("{}", text.join(" "));
    Ok(true)
}

/// A control group with a limit; removed at the end.
struct Group(PathBuf);

impl Group {
    /// Version 1 or 2, wherever memory is controlled.
    fn new() -> Result<Self, NotRun> {
        let name = format!("terrace-validate-{}", std::process::id());
        let limit = LIMIT.get().to_string();
        let places =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        for (place, file) in places {
            let group = Path::new(place).join(&name);
            if !Path::new(place).join("cgroup.procs").exists() || fs::create_dir(&group).is_err() {
                continue;
            }
            let group = Self(group);
            if fs::write(group.0.join(file), &limit).is_ok() {
                return Ok(group);
            }
        }
        Err(NotRun::Missing("no control group with a limit of memory can be made".to_owned()))
    }

    /// What its page cache holds.
    fn cached(&self) -> Option<Bytes> {
        let text = fs::read_to_string(self.0.join("memory.stat")).ok()?;
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line?.parse().ok()
        };
        value("total_cache").or_else(|| value("file")).map(Bytes)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // One that is left behind is no reason to fail.
        let _ = fs::remove_dir(&self.0);
    }
}

/// A directory of ours, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, NotRun> {
        let place =
            std::env::temp_dir().join(format!("terrace-validate-lru-{}", std::process::id()));
        let failed = |e| NotRun::Failed(format!("{}: {e}", place.display()));
        fs::create_dir(&place).map_err(failed)?;
        Ok(Self(place))
    }

    /// A file on the disk, of which nothing is cached.
    fn file(&self, name: &str, bytes: u64) -> Result<(), NotRun> {
        let failed = |e: io::Error| NotRun::Failed(format!("{}: {e}", self.0.display()));
        self.write(name, bytes).map_err(failed)?;
        let file = File::open(self.0.join(name)).map_err(failed)?;
        self.leaves_the_cache(&file, bytes)
    }

    fn write(&self, name: &str, bytes: u64) -> io::Result<()> {
        let mut file = File::create(self.0.join(name))?;
        let mut rng = SimRng::seed_from_u64(bytes);
        let mut block = vec![0u8; 1 << 20];
        for _ in 0..bytes >> 20 {
            for word in block.chunks_exact_mut(8) {
                word.copy_from_slice(&rng.next_u64().to_le_bytes());
            }
            file.write_all(&block)?;
        }
        file.sync_all()?;
        Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
    }

    /// Pages of some file systems never leave the page cache, and some do not tell whether a page
    /// is cached: on these nothing can be measured, and no read would ever miss.
    fn leaves_the_cache(&self, file: &File, bytes: u64) -> Result<(), NotRun> {
        let here = |why: &str| {
            let what = match statfs(&self.0).map(|known| known.f_type as u64) {
                Ok(TMPFS) => "a tmpfs".to_owned(),
                Ok(RAMFS) => "a ramfs".to_owned(),
                Ok(kind) => format!("a file system of type {kind:#x}"),
                Err(error) => format!("a file system that does not say which ({error})"),
            };
            let place = self.0.parent().unwrap_or(&self.0).display();
            NotRun::Missing(format!(
                "not measurable here: {place} is on {what}, {why}; TMPDIR names another directory"
            ))
        };
        let (mut cached, mut looked) = (0u64, 0u64);
        let mut page = vec![0u8; PAGE as usize];
        for offset in (0..bytes).step_by(1 << 20) {
            let mut buffer = [IoSliceMut::new(&mut page)];
            match preadv2(file, &mut buffer, offset, ReadWriteFlags::NOWAIT) {
                Ok(read) => cached += u64::from(read > 0),
                Err(Errno::AGAIN) => {}
                Err(Errno::OPNOTSUPP) => {
                    return Err(here("which does not tell whether a page is cached"));
                }
                Err(error) => {
                    let error = io::Error::from(error);
                    return Err(NotRun::Failed(format!("{}: {error}", self.0.display())));
                }
            }
            looked += 1;
        }
        // Single pages may be in use by somebody else just then.
        if cached * 2 > looked {
            return Err(here("whose pages do not leave the page cache"));
        }
        Ok(())
    }
}

/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of linux/magic.h.
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory that is left behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the kernel that runs here does with each hot set.
///
/// # Errors
///
/// Where nothing can be measured, and why.
pub fn measure() -> Result<Vec<Measured>, NotRun> {
    HOT.into_iter().map(|(mib, _)| measure_one(Bytes::mib(mib))).collect()
}

fn measure_one(hot: Bytes) -> Result<Measured, NotRun> {
    let group = Group::new()?;
    let scratch = Scratch::new()?;
    let failed = |e: io::Error| NotRun::Failed(format!("{}: {e}", scratch.0.display()));
    scratch.file("hot", hot.get())?;
    scratch.file("stream", STREAM.get())?;
    let own = std::env::current_exe().map_err(failed)?;
    // A process is in the group before it has any memory of its own.
    let join = format!("echo $$ > '{}' && exec \"$@\"", group.0.join("cgroup.procs").display());
    let output = Command::new("sh")
        .args(["-c", &join, "sh"])
        .arg(own)
        .args(["validate", "--only", "10"])
        .env(READER, &scratch.0)
        .stdin(Stdio::null())
        .output()
        .map_err(failed)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rounds: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    if !output.status.success() || rounds.len() != ROUNDS {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(NotRun::Failed(format!("the reader: {}, {}", output.status, said.trim())));
    }
    let cached = group.cached();
    let cached = cached.ok_or_else(|| NotRun::Failed("memory.stat names no page cache".into()))?;
    Ok(Measured { hot, rounds, cached })
}

/// The same in the simulated kernel.
fn simulate(
    hot: Bytes,
    cached: Bytes,
    costs: &Costs,
    replacement: FileReplacement,
) -> Result<Vec<f64>, NotRun> {
    let failed = |what: String| NotRun::Failed(what);
    let mut machine = machines::load("cxl").map_err(|e| failed(e.to_string()))?;
    // What it keeps free for a call, and its own objects.
    let besides = Bytes::kib(1400);
    machine.tiers[0].capacity.value = cached + besides;
    machine.tiers[1].capacity.value = Bytes::kib(4);
    let config = KernelConfig { costs: costs.clone(), replacement, ..KernelConfig::new(machine) };
    let kernel = Kernel::new(&config, Box::new(FirstTouch::new()), 1, 0);
    let mut kernel = kernel.map_err(|e| failed(e.to_string()))?;
    for (file, bytes) in [(0, hot), (1, STREAM)] {
        kernel.put_on_disk(file, bytes).map_err(|e| failed(e.to_string()))?;
        kernel.call(0, Call::Open { file }).map_err(|e| failed(e.to_string()))?;
    }
    let kernel = std::cell::RefCell::new(kernel);
    let read = |file, offset, bytes| {
        let mut kernel = kernel.borrow_mut();
        let before = kernel.counts().cache_misses;
        kernel.call(0, Call::Read { file, offset, bytes }).map_err(|e| failed(e.to_string()))?;
        Ok(kernel.counts().cache_misses > before)
    };
    program(
        hot.get(),
        |offset| read(1, offset, CHUNK as u32).map(|_| ()),
        |offset| read(0, offset, PAGE as u32),
    )
}

fn mean(rounds: &[f64]) -> f64 {
    rounds.iter().sum::<f64>() / rounds.len().max(1) as f64
}

/// Simulates what was measured, and compares.
///
/// # Errors
///
/// Where no measurement can be judged, and why.
pub fn lines(
    measured: &[Measured],
    costs: &Costs,
    replacement: FileReplacement,
) -> Result<Vec<Line>, NotRun> {
    let (mut lines, mut restless) = (Vec::new(), Vec::new());
    for Measured { hot, rounds, cached } in measured {
        let ours = simulate(*hot, *cached, costs, replacement)?;
        let judged = compare(*hot, rounds, &ours, *cached);
        if judged.is_empty() {
            restless.push(format!("{hot}"));
        }
        lines.extend(judged);
    }
    if !restless.is_empty() {
        // What is left out is told.
        for line in &mut lines {
            let sizes = restless.join(", ");
            line.source += &format!("; not judged, for the kernel was not steady: {sizes}");
        }
    }
    if lines.is_empty() {
        let what = "the kernel came to no steady state: the machine is too busy";
        return Err(NotRun::Missing(what.to_owned()));
    }
    Ok(lines)
}

fn compare(hot: Bytes, measured: &[f64], ours: &[f64], cached: Bytes) -> Vec<Line> {
    let steady = &measured[measured.len() - STEADY.min(measured.len())..];
    let most = steady.iter().copied().fold(0.0, f64::max);
    let least = steady.iter().copied().fold(100.0, f64::min);
    let line = |what: &str, reference: f64, ours: f64| Line {
        what: format!("hot set of {hot} in {LIMIT}, {what}: misses"),
        unit: "%",
        ours,
        reference,
        criterion: Criterion::Between(reference - POINTS, reference + POINTS),
        kind: Reference::Here,
        model: Model::Kernel,
        arithmetic: false,
        source: format!(
            "reads of the same program that were not cached, with {} B of page cache",
            cached.get()
        ),
    };
    let mut lines = Vec::new();
    if most - least <= SPREAD {
        let of = &ours[ours.len() - STEADY.min(ours.len())..];
        lines.push(line("steady", mean(steady), mean(of)));
    }
    lines
}

/// What was measured and recorded: what tests compare with, so that they need no rights and no quiet
/// machine.
#[doc(hidden)]
pub fn recorded() -> Vec<Measured> {
    HOT.into_iter()
        .filter_map(|(mib, recorded)| {
            let (percent, cached) = recorded?;
            let rounds = vec![percent; ROUNDS];
            Some(Measured { hot: Bytes::mib(mib), rounds, cached: Bytes(cached) })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    /// The fault of part 10.
    #[test]
    fn a_kernel_whose_oldest_pages_leave_however_often_they_were_used_fails() {
        let (measured, costs) = (recorded(), Costs::builtin());
        let states = |replacement| -> Vec<State> {
            let lines = lines(&measured, &costs, replacement).expect("they are steady");
            lines.iter().map(Line::state).collect()
        };
        assert_eq!(states(FileReplacement::TwoLists), [State::Holds; 2]);
        assert_eq!(states(FileReplacement::FirstCome), [State::Fails; 2]);
    }

    /// The fault in the other direction, which small hot sets cannot show. What the running kernel does
    /// with a large one is not recorded: the sound model stands in for it.
    #[test]
    fn a_kernel_whose_hot_pages_never_leave_fails() {
        let (hot, cached, costs) = (Bytes::mib(44), Bytes(62_500_000), Costs::builtin());
        let rounds = |replacement| simulate(hot, cached, &costs, replacement).expect("it fits");
        let sound = rounds(FileReplacement::TwoLists);
        let steady = mean(&sound[ROUNDS - STEADY..]);
        assert!((5.0..40.0).contains(&steady), "{sound:?}");
        let measured = Measured { hot, rounds: sound, cached };
        let states = |replacement| -> Vec<State> {
            let measured = core::slice::from_ref(&measured);
            let lines = lines(measured, &costs, replacement).expect("it is steady");
            lines.iter().map(Line::state).collect()
        };
        assert_eq!(states(FileReplacement::TwoLists), [State::Holds]);
        assert_eq!(states(FileReplacement::HotStays), [State::Fails]);
    }

    #[test]
    fn a_file_system_whose_pages_do_not_leave_is_named() {
        let Some(place) = tmpfs() else { return };
        let scratch = Scratch(place.join(format!("terrace-lru-{}", std::process::id())));
        fs::create_dir(&scratch.0).expect("it is writable");
        let NotRun::Missing(why) = scratch.file("hot", 4 << 20).expect_err("nothing leaves") else {
            panic!("it is a lack, not a failure");
        };
        assert!(why.contains("not measurable here") && why.contains("tmpfs"), "{why}");
    }

    /// A tmpfs that everybody may write to, where there is one.
    fn tmpfs() -> Option<PathBuf> {
        let place = PathBuf::from("/dev/shm");
        (statfs(&place).ok()?.f_type as u64 == TMPFS).then_some(place)
    }

    /// The simulated kernel keeps a hot set that is used twice while it lies in the inactive list.
    #[test]
    fn a_hot_set_that_fits_is_kept() {
        let costs = Costs::builtin();
        let rounds = simulate(Bytes::mib(16), Bytes::mib(62), &costs, FileReplacement::TwoLists);
        let rounds = rounds.expect("it fits");
        assert_eq!(rounds.len(), ROUNDS);
        assert!(rounds[0] > 10.0, "{rounds:?}");
        assert!(mean(&rounds[ROUNDS - STEADY..]) < POINTS, "{rounds:?}");
    }

    #[test]
    fn a_difference_is_seen_and_what_is_not_steady_is_not_judged() {
        let flat = [1.0; ROUNDS];
        let states = |ours: f64| -> Vec<State> {
            let lines = compare(Bytes::mib(16), &flat, &[ours; ROUNDS], LIMIT);
            lines.iter().map(Line::state).collect()
        };
        assert_eq!(states(3.5), [State::Holds]);
        assert_eq!(states(9.0), [State::Fails]);
        let mut restless = flat;
        restless[ROUNDS - 2] = 40.0;
        assert!(compare(Bytes::mib(16), &restless, &flat, LIMIT).is_empty());
    }
}
