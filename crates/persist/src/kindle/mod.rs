//! Kindle's measurements of process persistence, ours beside theirs (Kindle,
//! IISWC 2024: Figures 4a and 4b, Table 3).

pub mod beyond;
pub mod programs;
pub mod validation;

use core::fmt;

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use terrace_dram::{Memory, MemoryFile, Picos, presets};

use crate::clock::Clock;
use crate::costs::Costs;
use crate::fault::Fault;
use crate::pmem::{Persist, Pmem};
use crate::scheme::SchemeKind;
use crate::system::{Area, REGISTERS, System};

/// What Kindle published of one measurement, in milliseconds, by the persistent
/// and the rebuild scheme.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Published {
    /// The artifact's expected results, which the slides show.
    pub expected: [f64; 2],
    /// The rerun that is committed at its head.
    pub rerun: [f64; 2],
    /// The first set that was committed, where there is one.
    pub first: Option<[f64; 2]>,
}

/// A micro-benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Case {
    /// Four maps; each page is stored to (Figure 4a).
    Sequential(Bytes),
    /// Single pages at a stride, mapped, stored to and unmapped; pages at a
    /// time, and how often (Figure 4b).
    Stride(Bytes, u64, u64),
    /// A large area, of which parts are unmapped and mapped anew (Table 3).
    Churn(Bytes, Bytes),
}

impl Case {
    /// What it has allocated at most.
    pub fn size(&self) -> Bytes {
        match self {
            Self::Sequential(size) | Self::Churn(size, _) => *size,
            Self::Stride(_, pages, _) => Bytes(pages * 4096),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sequential(size) => write!(f, "sequential {size}"),
            Self::Stride(stride, ..) => write!(f, "stride {stride}"),
            Self::Churn(_, part) => write!(f, "alloc/free {part}"),
        }
    }
}

const MIB: u64 = 1 << 20;

/// The measurements and what was published of them.
pub fn published() -> Vec<(Case, Published)> {
    let row = |case, expected, rerun, first| (case, Published { expected, rerun, first });
    let (sequential, churn) = (
        |mib: u64| Case::Sequential(Bytes(mib * MIB)),
        |mib: u64| Case::Churn(Bytes(512 * MIB), Bytes(mib * MIB)),
    );
    vec![
        row(sequential(64), [145.0, 359.0], [145.0, 422.0], Some([150.0, 303.0])),
        row(sequential(128), [168.0, 1185.0], [171.0, 1573.0], Some([173.0, 814.0])),
        row(sequential(256), [144.0, 3960.0], [120.0, 5416.0], Some([164.0, 2532.0])),
        row(sequential(512), [214.0, 15893.0], [215.0, 23417.0], Some([214.0, 8706.0])),
        row(
            Case::Stride(Bytes(1 << 30), 10, 100),
            [156.0, 154.0],
            [155.0, 155.0],
            Some([156.0, 155.0]),
        ),
        row(
            Case::Stride(Bytes(2 * MIB), 256, 25),
            [707.0, 703.0],
            [707.0, 713.0],
            Some([770.0, 759.0]),
        ),
        row(
            Case::Stride(Bytes(4096), 512, 25),
            [583.0, 635.0],
            [585.0, 679.0],
            Some([798.0, 816.0]),
        ),
        row(churn(64), [325.0, 19377.0], [324.0, 30339.0], None),
        row(churn(128), [389.0, 23438.0], [388.0, 38694.0], None),
        row(churn(256), [517.0, 29376.0], [516.0, 50598.0], None),
    ]
}

/// What one run took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Run {
    /// Simulated time of the program with its checkpoints.
    pub time: Nanos,
    /// Checkpoints made.
    pub checkpoints: u64,
    /// Time of them.
    pub in_checkpoints: Nanos,
    /// Steps along the published list.
    pub visits: u64,
    /// Lines written to non-volatile memory.
    pub lines_written: u64,
    /// Simulated time from power-up to the process going on, after a failure at
    /// the program's end; the recovered mapping was compared. 0 with defects.
    pub recovery: Nanos,
}

/// How to run.
#[derive(Clone, Debug)]
pub struct KindleConfig {
    /// Time between the end of a checkpoint and the next: the timer is armed
    /// anew when the handler ends.
    pub interval: Nanos,
    /// What processors take.
    pub costs: Costs,
    /// Mistakes of the artifact to make, too. What they leave is not recovered.
    pub defects: &'static [Fault],
    /// The memory: DRAM, and a part that is not volatile.
    pub memory: MemoryFile,
    /// Cases that allocate more are left out.
    pub largest: Bytes,
}

/// What the artifact's process persistence gets wrong: removed entries are not
/// written back, replaced ones not logged, and mappings that are gone stay on the
/// list; bitmaps of frames are never flushed (commented out); and a table is
/// linked before it is zeroed.
pub const SHIPPED: &[Fault] =
    &[Fault::StaleMapping, Fault::BitmapNotPersisted, Fault::ParentBeforeChild];

/// What the largest cases allocate.
const LARGEST: Bytes = Bytes(512 * MIB);

impl Default for KindleConfig {
    fn default() -> Self {
        Self {
            interval: Nanos::millis(10),
            costs: Costs::KINDLE,
            defects: &[],
            memory: kindle_memory(),
            largest: LARGEST,
        }
    }
}

fn kindle_memory() -> MemoryFile {
    presets::builtin("kindle").expect("built in")
}

/// Frames of the simulated machine: 2 GiB, as Kindle maps.
const FRAMES: u64 = 1 << 19;

/// A program with a timer.
struct Timed {
    system: System,
    interval: Picos,
    armed: Picos,
    in_checkpoints: Picos,
}

impl Timed {
    fn new(kind: SchemeKind, config: &KindleConfig) -> Persist<Self> {
        let pmem = Pmem::used().with_faults(config.defects.iter().copied());
        let mut system = System::new(machine(pmem, config), FRAMES, kind.make())?;
        // One thread, whose registers each checkpoint saves.
        system.context.threads.push([0; REGISTERS]);
        let armed = system.nvm.pmem.now();
        Ok(Self {
            system: system.without_content(),
            interval: config.interval.into(),
            armed,
            in_checkpoints: Picos::ZERO,
        })
    }

    fn tick(&mut self) -> Persist {
        let now = self.system.nvm.pmem.now();
        if now - self.armed >= self.interval {
            self.system.checkpoint()?;
            self.armed = self.system.nvm.pmem.now();
            self.in_checkpoints = self.in_checkpoints + (self.armed - now);
        }
        Ok(())
    }

    fn map_and_touch(&mut self, start: u64, pages: u64) -> Persist {
        self.system.map(Area::nvm(start, pages))?;
        for page in start..start + pages {
            self.system.store(page, page)?;
            self.tick()?;
        }
        Ok(())
    }

    fn unmap(&mut self, start: u64, pages: u64) -> Persist {
        self.system.unmap(start, pages)?;
        self.tick()
    }

    fn execute(&mut self, case: Case) -> Persist {
        // Areas begin at 4 GiB, as gemOS has them in low virtual memory.
        let base = 1 << 20;
        match case {
            Case::Sequential(size) => {
                let quarter = size.get() / 4096 / 4;
                for i in 0..4 {
                    self.map_and_touch(base + i * quarter, quarter)?;
                }
            }
            Case::Stride(stride, pages, times) => {
                for _ in 0..times {
                    let place = |i: u64| base + i * (stride.get() / 4096);
                    for i in 0..pages {
                        self.system.map(Area::nvm(place(i), 1))?;
                    }
                    for i in 0..pages {
                        self.system.store(place(i), i)?;
                        self.tick()?;
                    }
                    for i in 0..pages {
                        self.unmap(place(i), 1)?;
                    }
                }
            }
            Case::Churn(size, part) => {
                let (all, part) = (size.get() / 4096, part.get() / 4096);
                self.map_and_touch(base, all)?;
                self.unmap(base, part)?;
                self.map_and_touch(base, part)?;
                self.unmap(base + part, part.min(all - part))?;
                self.map_and_touch(base + part, part.min(all - part))?;
                for page in base..base + all {
                    self.system.load(page);
                    self.tick()?;
                }
                for page in (base..base + all).step_by(512) {
                    self.unmap(page, 512)?;
                }
            }
        }
        Ok(())
    }
}

fn machine(pmem: Pmem, config: &KindleConfig) -> Pmem {
    let base = config.memory.nvm_begins().get();
    pmem.timed(Clock::new(Memory::new(&config.memory), base, config.costs))
}

/// Runs one case under one scheme, and recovers it.
///
/// Panics if what was recovered is not what was there.
pub fn run(case: Case, kind: SchemeKind, config: &KindleConfig) -> Run {
    let no_failure = "the power does not fail in this run";
    let mut timed = Timed::new(kind, config).expect(no_failure);
    let start = timed.system.nvm.pmem.now();
    timed.execute(case).expect(no_failure);
    let time = (timed.system.nvm.pmem.now() - start).nanos();
    let (checkpoints, counts) = (timed.system.epoch(), timed.system.nvm.pmem.counts());
    let in_checkpoints = timed.in_checkpoints.nanos();
    let recovery =
        if config.defects.is_empty() { recover(timed.system, kind, config) } else { Nanos::ZERO };
    Run {
        time,
        checkpoints,
        in_checkpoints,
        visits: counts.visits,
        lines_written: counts.flushes,
        recovery,
    }
}

/// One more checkpoint, outside of what is measured, then the power fails; the
/// simulated time until the process goes on.
fn recover(mut system: System, kind: SchemeKind, config: &KindleConfig) -> Nanos {
    system.checkpoint().expect("the power does not fail in this run");
    let lost = vec![0; system.nvm.pmem.choices().len()];
    let left = machine(system.nvm.pmem.after_failure(&lost), config);
    let mut again = System::recover(left, FRAMES, kind.make()).expect("recoverable");
    let recovery = again.nvm.pmem.now().nanos();
    let (before, _) = system.scheme.mappings(&mut system.nvm);
    let (after, _) = again.scheme.mappings(&mut again.nvm);
    assert!(before == after && system.context == again.context, "recovered something else");
    recovery
}

/// One case under the three schemes, beside what was published.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The case.
    pub case: Case,
    /// Ours, in the order of [`SchemeKind::MAPPING`].
    pub ours: [Run; 3],
    /// The persistent and the published rebuild scheme as shipped: with [`SHIPPED`].
    pub shipped: [Run; 2],
    /// Theirs.
    pub published: Published,
}

/// Of each case: the schemes, then two of them as shipped.
const RUNS: usize = 5;

/// All cases under all schemes, on as many threads as there are processors.
pub fn reproduce(config: &KindleConfig, progress: &(dyn Fn(usize, usize) + Sync)) -> Vec<Row> {
    let mut cases = published();
    cases.retain(|(case, _)| case.size() <= config.largest);
    // The longest first, so that no processor ends up with one of them alone.
    let mut jobs: Vec<(usize, usize)> =
        (0..cases.len()).flat_map(|case| (0..RUNS).map(move |kind| (case, kind))).collect();
    jobs.reverse();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let results = std::sync::Mutex::new(vec![None; jobs.len()]);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let job = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(&(case, kind)) = jobs.get(job) else { break };
                    let shipped = kind >= SchemeKind::MAPPING.len();
                    let defects = if shipped { SHIPPED } else { config.defects };
                    let scheme = SchemeKind::MAPPING[kind % SchemeKind::MAPPING.len()];
                    let result =
                        run(cases[case].0, scheme, &KindleConfig { defects, ..config.clone() });
                    let mut results =
                        results.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    results[job] = Some(result);
                    progress(results.iter().flatten().count(), jobs.len());
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let results: Vec<Run> = results.into_iter().rev().flatten().collect();
    cases
        .into_iter()
        .zip(results.chunks_exact(RUNS))
        .map(|((case, published), runs)| Row {
            case,
            ours: [runs[0], runs[1], runs[2]],
            shipped: [runs[3], runs[4]],
            published,
        })
        .collect()
}

/// A shape that must hold, and whether it does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shape {
    /// What was published.
    pub statement: &'static str,
    /// What counts as the same, fixed before anything was measured.
    pub criterion: &'static str,
    /// Ours.
    pub value: f64,
    /// Whether it holds.
    pub holds: bool,
}

/// The exponent of growth from the first to the last of some sizes.
fn exponent(rows: &[&Row], kind: usize, time: impl Fn(&Run) -> Nanos) -> f64 {
    let (first, last) = (rows[0], rows[rows.len() - 1]);
    let size = |row: &Row| match row.case {
        Case::Sequential(size) => size.as_f64(),
        _ => 1.0,
    };
    (time(&last.ours[kind]).as_f64() / time(&first.ours[kind]).as_f64()).ln()
        / (size(last) / size(first)).ln()
}

/// The shapes of Figures 4a and 4b and of Table 3; none if cases were left out.
pub fn shapes(rows: &[Row]) -> Vec<Shape> {
    if rows.len() < published().len() {
        return Vec::new();
    }
    let sequential: Vec<&Row> =
        rows.iter().filter(|row| matches!(row.case, Case::Sequential(_))).collect();
    let wide: Vec<&Row> = rows
        .iter()
        .filter(|row| matches!(row.case, Case::Stride(stride, ..) if stride.get() >= 2 * MIB))
        .collect();
    let churn: Vec<&Row> = rows.iter().filter(|row| matches!(row.case, Case::Churn(..))).collect();
    let shape = |statement, criterion, value: f64, range: core::ops::RangeInclusive<f64>| Shape {
        statement,
        criterion,
        value,
        holds: range.contains(&value),
    };
    let largest = sequential[sequential.len() - 1];
    let ratio = |row: &Row, a: usize, b: usize| row.ours[a].time / row.ours[b].time;
    vec![
        shape(
            "the persistent scheme's time is linear in size",
            "exponent of growth, 64 to 512 MB: 0.9 to 1.1",
            exponent(&sequential, 0, |r| r.time),
            0.9..=1.1,
        ),
        shape(
            "the published rebuild scheme's time is about quadratic in size",
            "exponent of growth, 64 to 512 MB: 1.7 to 2.3 (published: 1.8 expected, 1.9 rerun)",
            exponent(&sequential, 1, |r| r.time),
            1.7..=2.3,
        ),
        shape(
            "rebuild over persistent at 512 MB (published: 74 expected, 109 rerun, 41 first)",
            "30 to 120",
            ratio(largest, 1, 0),
            30.0..=120.0,
        ),
        shape(
            "our rebuild scheme, indexed and by what changed, is close to linear",
            "exponent of growth, 64 to 512 MB: 0.9 to 1.15",
            exponent(&sequential, 2, |r| r.time),
            0.9..=1.15,
        ),
        shape(
            "persistent is slightly slower on wide strides",
            "smallest ratio of persistent to published rebuild at 1 GB and 2 MB: 1.0 to 1.5",
            wide.iter().map(|row| ratio(row, 0, 1)).fold(f64::MAX, f64::min),
            1.0..=1.5,
        ),
        shape(
            "alloc/free: persistent grows with the part, 256 over 64 MB (published: 1.59)",
            "1.3 to 1.9",
            churn[2].ours[0].time / churn[0].ours[0].time,
            1.3..=1.9,
        ),
        shape(
            "alloc/free: published rebuild over persistent at 64 MB (published: 60, rerun 94)",
            "30 to 120",
            ratio(churn[0], 1, 0),
            30.0..=120.0,
        ),
    ]
}
