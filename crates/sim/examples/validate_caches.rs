//! Our miss counts beside cachegrind's, for real programs, from runs made here
//! and now. Every counter must be identical; exit code 1 if one is not, 3 where
//! valgrind is missing.
//!
//! Both tools of valgrind run the same program at the same addresses. Cachegrind
//! counts; lackey prints every access, which goes through our caches: L1 for
//! instructions and data, one last level below. A reference of several lines
//! counts at most one miss in a level and refers to all of its lines there, as
//! in cachegrind.

use std::fs;
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use terrace_core::Inclusion;
use terrace_sim::full::hierarchy::{
    CacheGeometry, Hierarchy, HierarchyGeometry, Level, Request, WriteBacks,
};
use terrace_sim::full::{Access, Batch};
use terrace_sim::trace::{Format, import};

/// Misses: instructions, loads, stores; first level, last level.
type Misses = [[u64; 3]; 2];

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
    fn new(geometry: &Geometry) -> Self {
        let first = CacheGeometry::lru(geometry.first.0, geometry.first.1);
        Self {
            caches: Hierarchy::new(&HierarchyGeometry {
                cores: 1,
                l1: first,
                l1i: Some(first),
                l2: None,
                llc: CacheGeometry::lru(geometry.last.0, geometry.last.1),
                inclusion: Inclusion::NonInclusive,
            }),
            misses: Misses::default(),
        }
    }

    fn reference(&mut self, access: Access) {
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
fn ours(geometry: &Geometry, program: &[&str]) -> Option<Misses> {
    let arguments = ["--trace-mem=yes", "--basic-counts=no"].map(str::to_owned);
    let mut child = valgrind("lackey", &arguments, program).stderr(Stdio::piped()).spawn().ok()?;
    let lines = BufReader::new(child.stderr.take()?);
    let mut source = import::read(lines, Path::new("lackey"), Format::Lackey);
    let mut caches = Caches::new(geometry);
    let mut batch = Batch::default();
    while source.next(&mut batch).expect("lackey's own lines") {
        batch.accesses.iter().for_each(|&access| caches.reference(access));
    }
    child.wait().ok()?;
    Some(caches.misses)
}

fn main() -> ExitCode {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("valgrind is not installed: nothing was validated");
        return ExitCode::from(3);
    }
    let directory = std::env::temp_dir().join(format!("terrace-validate-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a temporary directory");
    let input = directory.join("input");
    let lines: Vec<String> =
        (0..3000u64).map(|i| (i.wrapping_mul(0x9e37_79b9) % 100_003).to_string()).collect();
    let lines = lines.join("\n");
    fs::write(&input, lines).expect("the temporary directory can be written to");
    let input = input.display().to_string();
    let programs: [&[&str]; 4] = [
        &["/usr/bin/sort", "-n", &input],
        &["/usr/bin/gzip", "-c", &input],
        &["/bin/ls", "-l", "/etc"],
        &["/usr/bin/sha256sum", &input],
    ];
    println!(
        "{:10} {:12} {:>10} {:>22} {:>22} {:>22}",
        "program", "caches", "", "instructions", "loads", "stores"
    );
    let mut identical = true;
    for program in programs {
        for geometry in &GEOMETRIES {
            let theirs = cachegrind(geometry, program, &directory);
            let (Some(theirs), Some(ours)) = (theirs, ours(geometry, program)) else {
                eprintln!("{}: valgrind failed", program[0]);
                identical = false;
                continue;
            };
            for (level, name) in ["L1", "LL"].into_iter().enumerate() {
                let cell = |i: usize| format!("{} / {}", ours[level][i], theirs[level][i]);
                println!(
                    "{:10} {:12} {:>10} {:>22} {:>22} {:>22}",
                    program[0].rsplit('/').next().unwrap_or_default(),
                    geometry.name,
                    name,
                    cell(0),
                    cell(1),
                    cell(2)
                );
            }
            identical &= ours == theirs;
        }
    }
    let _ = fs::remove_dir_all(&directory);
    println!("ours / cachegrind's; misses {}", if identical { "identical" } else { "DIFFER" });
    ExitCode::from(u8::from(!identical))
}
