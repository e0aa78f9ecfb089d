//! Our miss counts beside cachegrind's, for real programs. Every counter must be
//! identical.
//!
//! Both tools of valgrind run the same program at the same addresses. Cachegrind
//! counts; lackey prints every access, which goes through our caches: L1 for
//! instructions and data, one last level below. A reference of several lines
//! counts at most one miss in a level and refers to all of its lines there, as
//! in cachegrind.

use std::fs;
use std::io::{self, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;
use terrace_core::{Inclusion, Replacement};

use crate::exact::hierarchy::{
    CacheGeometry, Hierarchy, HierarchyGeometry, Level, Request, WriteBacks,
};
use crate::exact::{Access, Batch, Source as _};
use crate::trace::import;

use super::{Criterion, Line, Model, Reference};

/// Misses: instructions, loads, stores; first level, last level.
pub type Misses = [[u64; 3]; 2];

struct Geometry {
    name: &'static str,
    first: (u64, u32),
    last: (u64, u32),
}

const GEOMETRIES: [Geometry; 2] = [
    Geometry { name: "32K/8 2M/16", first: (32 << 10, 8), last: (2 << 20, 16) },
    Geometry { name: "4K/2 64K/4", first: (4 << 10, 2), last: (64 << 10, 4) },
];

fn valgrind(tool: &str, arguments: &[String], program: &[&str]) -> Command {
    let mut command = Command::new("setarch");
    // The same environment and no randomised addresses: the same stack.
    command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C");
    command.args(["-R", "valgrind", &format!("--tool={tool}")]).args(arguments);
    command.args(program).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// What cachegrind counts.
fn cachegrind(geometry: &Geometry, program: &[&str], directory: &Path) -> Option<Misses> {
    let out = directory.join("cachegrind.out");
    let level = |(size, ways): (u64, u32)| format!("{size},{ways},64");
    let arguments = [
        format!("--I1={}", level(geometry.first)),
        format!("--D1={}", level(geometry.first)),
        format!("--LL={}", level(geometry.last)),
        "--cache-sim=yes".to_owned(),
        format!("--cachegrind-out-file={}", out.display()),
    ];
    valgrind("cachegrind", &arguments, program).stderr(Stdio::null()).status().ok()?;
    let text = fs::read_to_string(out).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("summary:"))?;
    let n: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw
    (n.len() == 9).then(|| [[n[1], n[4], n[7]], [n[2], n[5], n[8]]])
}

struct Caches {
    caches: Hierarchy,
    misses: Misses,
}

impl Caches {
    fn new(geometry: &Geometry, replacement: Replacement) -> Self {
        let level = |(size, ways): (u64, u32)| CacheGeometry {
            replacement,
            ..CacheGeometry::lru(size, ways)
        };
        let first = level(geometry.first);
        Self {
            caches: Hierarchy::new(&HierarchyGeometry {
                cores: 1,
                l1: first,
                l1i: Some(first),
                l2: None,
                llc: level(geometry.last),
                inclusion: Inclusion::NonInclusive,
            }),
            misses: Misses::default(),
        }
    }

    fn reference(&mut self, access: Access) {
        if access.is_pass() {
            return;
        }
        let (request, kind) = match (access.is_fetch(), access.is_store()) {
            (true, _) => (Request::Fetch, 0),
            (_, false) => (Request::Load, 1),
            (_, true) => (Request::Store, 2),
        };
        let mut out = WriteBacks::default();
        let line = access.line();
        let lines = if access.crosses() { line..=line + 1 } else { line..=line };
        let levels: Vec<Level> =
            lines.clone().map(|line| self.caches.access(0, line, request, &mut out)).collect();
        if levels.iter().all(|level| *level == Level::L1) {
            return;
        }
        self.misses[0][kind] += 1;
        let mut missed = levels.contains(&Level::Memory);
        // The line that hit the first level is looked up in the last as well.
        for (line, level) in lines.zip(&levels) {
            if *level == Level::L1 {
                missed |= !self.caches.refer_to_last(line);
            }
        }
        self.misses[1][kind] += u64::from(missed);
    }
}

/// What our caches count.
fn ours(geometry: &Geometry, program: &[&str], replacement: Replacement) -> Option<Misses> {
    let arguments = ["--trace-mem=yes", "--basic-counts=no"].map(str::to_owned);
    let mut child = valgrind("lackey", &arguments, program).stderr(Stdio::piped()).spawn().ok()?;
    let lines = BufReader::new(child.stderr.take()?);
    let mut source = import::lackey_with_fetches(lines, Path::new("lackey"));
    let mut caches = Caches::new(geometry, replacement);
    let mut batch = Batch::default();
    while source.next(&mut batch).expect("lackey's own lines") {
        batch.accesses.iter().for_each(|&access| caches.reference(access));
    }
    child.wait().ok()?;
    Some(caches.misses)
}

/// One program with one geometry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// The program.
    pub program: String,
    /// Both levels' sizes and ways.
    pub caches: &'static str,
    /// Ours: instructions, loads, stores; first level, last level.
    pub ours: Misses,
    /// Cachegrind's.
    pub theirs: Misses,
}

/// Whether valgrind is there.
pub fn is_possible() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Runs four programs under both tools, with two geometries.
pub fn compare() -> io::Result<Vec<Comparison>> {
    in_directory(|directory| {
        let input = directory.join("input");
        let lines: Vec<String> =
            (0..3000u64).map(|i| (i.wrapping_mul(0x9e37_79b9) % 100_003).to_string()).collect();
        fs::write(&input, lines.join("\n"))?;
        let input = input.display().to_string();
        let programs: [&[&str]; 4] = [
            &["/usr/bin/sort", "-n", &input],
            &["/usr/bin/gzip", "-c", &input],
            &["/bin/ls", "-l", "/etc"],
            &["/usr/bin/sha256sum", &input],
        ];
        let mut comparisons = Vec::new();
        for program in programs {
            for geometry in &GEOMETRIES {
                comparisons.push(one(program, geometry, directory, Replacement::Lru)?);
            }
        }
        Ok(comparisons)
    })
}

fn in_directory<T>(work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let directory = std::env::temp_dir().join(format!("terrace-validate-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let result = work(&directory);
    let _ = fs::remove_dir_all(&directory);
    result
}

fn one(
    program: &[&str],
    geometry: &Geometry,
    directory: &Path,
    replacement: Replacement,
) -> io::Result<Comparison> {
    let failed = || io::Error::other(format!("{}: valgrind failed", program[0]));
    Ok(Comparison {
        program: program[0].rsplit('/').next().unwrap_or_default().to_owned(),
        caches: geometry.name,
        theirs: cachegrind(geometry, program, directory).ok_or_else(failed)?,
        ours: ours(geometry, program, replacement).ok_or_else(failed)?,
    })
}

/// A line for each counter.
pub fn lines(comparisons: &[Comparison]) -> Vec<Line> {
    let mut lines = Vec::new();
    for one in comparisons {
        for (level, name) in ["first level", "last level"].into_iter().enumerate() {
            for (kind, what) in ["instructions", "loads", "stores"].into_iter().enumerate() {
                lines.push(Line {
                    what: format!("{} {}, {name}: {what}", one.program, one.caches),
                    unit: "",
                    ours: one.ours[level][kind] as f64,
                    reference: one.theirs[level][kind] as f64,
                    criterion: Criterion::Within(0.0),
                    kind: Reference::Simulator,
                    model: Model::Caches,
                    arithmetic: false,
                    source: "cachegrind, run now".to_owned(),
                });
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::Tally;

    /// One small program is enough here; `make validate` has four. Where valgrind is
    /// missing there is nothing to compare with, and the part says that it did not run.
    #[test]
    fn caches_that_do_not_replace_the_least_recently_used_line_fail() {
        if !is_possible() {
            eprintln!("valgrind is not installed");
            return;
        }
        let with = |replacement| {
            let program: &[&str] = &["/bin/true"];
            in_directory(|directory| one(program, &GEOMETRIES[1], directory, replacement))
                .expect("valgrind runs")
        };
        let tally = |replacement| Tally::of(&lines(&[with(replacement)]));
        assert_eq!(tally(Replacement::Lru).fails, 0);
        assert!(tally(Replacement::Fifo).fails > 0);
    }
}
