//! The soak: real programs at once under one budget that changes at random all
//! the time. Each has a checksum that it had on plain memory, and must have it
//! every time it runs.

use std::collections::VecDeque;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use terrace_core::Bytes;

use crate::harness::number;
use crate::process;
use crate::programs::data::{self, Numbers};
use crate::report::Report;
use crate::terrace;

/// A job: a name, and a shell command that prints something of what it computed.
/// `$D` holds the inputs, and the tests' own programs lie in `$P`.
const JOBS: [(&str, &str); 10] = [
    ("sort", "sort --parallel=2 -S 200M -k3,3 -k1,1n $D/text | cksum"),
    ("sqlite3", "sqlite3 -batch :memory: <$P/table.sql | cksum"),
    ("python3", "python3 $P/objects.py | cksum"),
    ("python3-fork", "python3 $P/forks.py | cksum"),
    ("node", "node $P/objects.js | cksum"),
    ("perl", "perl $P/hashes.pl | cksum"),
    ("zstd", "zstd -q -T2 -9 -c $D/text | zstd -q -d -c | cksum"),
    ("gcc", "cc -O1 -S -o - $D/source.c | cksum"),
    ("awk", "awk '{ n[$3 % 50000] += $1 } END { for (k in n) s += n[k]; print s, NR }' $D/text"),
    ("tac", "tac $D/text | tac | cksum"),
];

/// Between two changes of the budget.
const CHANGE: (u64, u64) = (50, 1500);
/// Budgets, MiB: from far too little for one of the programs to nearly enough for two.
const BUDGETS: (u64, u64) = (6, 192);

/// What programs have whose `terrace` is killed: it is not to take them minutes.
const ORPHANS: Bytes = Bytes::mib(64);

/// Where things are.
struct Place {
    terrace: PathBuf,
    directory: tempfile::TempDir,
    limit: Duration,
}

/// What a soak has done.
#[derive(Debug, Default)]
pub struct Soaked {
    /// Programs that ran to their end with the right result.
    pub programs: u64,
    /// Changes of a budget.
    pub changes: u64,
    /// Runs that were killed on purpose, `terrace` itself included.
    pub killed: u64,
    /// Pages that left DRAM.
    pub demotions: u64,
}

/// Runs for `SOAK_SECONDS` (1800) with the seed `SOAK_SEED` (the time).
pub fn run() -> Result<Soaked, String> {
    let seconds = number("SOAK_SECONDS", 1800) as u64;
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_secs());
    let seed = env::var("SOAK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(now);
    println!("soak: {seconds} s, SOAK_SEED={seed}");
    let place = Place {
        terrace: terrace::executable()?,
        directory: tempfile::tempdir().map_err(|e| e.to_string())?,
        limit: Duration::from_mins(8),
    };
    let inputs = place.directory.path();
    let write = |name: &str, content: &[u8]| {
        fs::write(inputs.join(name), content).map_err(|e| format!("{name}: {e}"))
    };
    write("text", &data::text(12 << 20, 1))?;
    write("source.c", data::c_source(120, 4).as_bytes())?;
    let expected = JOBS
        .iter()
        .map(|(name, command)| place.plain(command).map_err(|why| format!("{name}: {why}")))
        .collect::<Result<Vec<_>, _>>()?;

    let until = Instant::now() + Duration::from_secs(seconds);
    let mut random = Random(Numbers(seed));
    let mut soaked = Soaked::default();
    while Instant::now() < until || soaked.demotions == 0 {
        place.round(&mut random, &expected, until, &mut soaked)?;
        println!("soak: {soaked:?}");
    }
    Ok(soaked)
}

impl Place {
    /// What a job prints on plain memory.
    fn plain(&self, command: &str) -> Result<Vec<u8>, String> {
        let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
        let finished = process::run(&mut self.shell(command), scratch.path(), self.limit)
            .map_err(|e| e.to_string())?;
        if !finished.succeeded() || finished.stdout.is_empty() {
            return Err(finished.complaint());
        }
        Ok(finished.stdout)
    }

    fn shell(&self, command: &str) -> Command {
        let mut shell = Command::new("sh");
        self.prepare(&mut shell);
        shell.args(["-c", command]);
        shell
    }

    fn prepare(&self, command: &mut Command) {
        command
            .env("D", self.directory.path())
            .env("P", terrace::root().join("tests/programs"))
            .env("LC_ALL", "C")
            .env("PYTHONHASHSEED", "0")
            .env("PERL_HASH_SEED", "0");
    }

    /// One `terrace run` of a few programs at once, whose budget changes while
    /// they run. One round in eight ends by SIGKILL: of `terrace`, and then the
    /// programs have to come to their end without it.
    fn round(
        &self,
        random: &mut Random,
        expected: &[Vec<u8>],
        until: Instant,
        soaked: &mut Soaked,
    ) -> Result<(), String> {
        let jobs: Vec<usize> =
            (0..random.between(1, 3)).map(|_| random.below(JOBS.len())).collect();
        let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
        let scratch = scratch.path();
        let script = jobs.iter().enumerate().fold(String::new(), |script, (i, &job)| {
            script + &format!("( ( {} ) >out{i} 2>err{i}; echo $? >code{i} ) &\n", JOBS[job].1)
        }) + "wait\n";
        let first = random.budget();
        // Not the first: nobody reports what an orphan did.
        let orphan = random.below(8) == 0 && soaked.demotions > 0;
        let describe = || {
            let names: Vec<_> = jobs.iter().map(|&job| JOBS[job].0).collect();
            format!(
                "{} with {first} at first{}",
                names.join(" and "),
                if orphan { ", orphaned" } else { "" }
            )
        };
        let report = scratch.join("report.json");
        let spill = scratch.join("spill");
        let mut command = Command::new(&self.terrace);
        self.prepare(&mut command);
        command
            .current_dir(scratch)
            .args([
                "--json",
                "run",
                "--engine=pager",
                "--fast",
                &format!("{}B", first.get()),
                "--report",
            ])
            .arg(&report);
        if random.below(2) == 0 {
            let limit = format!("{}MiB", random.between(16, 64));
            command.args(["--store-limit", &limit, "--spill-size", "64MiB", "--spill"]).arg(&spill);
        }
        command.args(["--", "sh", "-c", &script]);

        let over = AtomicBool::new(false);
        let changes = AtomicU64::new(0);
        let budgets = Mutex::new(VecDeque::new());
        let seed = random.0.below(u64::MAX);
        let (over, changes, budgets) = (&over, &changes, &budgets);
        let finished = std::thread::scope(|scope| {
            let started = process::start(&mut command, scratch).map_err(|e| e.to_string())?;
            let pid = started.pid();
            scope.spawn(move || {
                let mut random = Random(Numbers(seed));
                let began = Instant::now();
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(random.between(CHANGE.0, CHANGE.1)));
                    if orphan && began.elapsed() > Duration::from_millis(random.between(500, 3000))
                    {
                        // Nobody changes it any more afterwards.
                        self.set(pid, ORPHANS);
                        let _ = kill_process(pid, Signal::KILL);
                        return;
                    }
                    // When the time is over, what is under way may end sooner.
                    let late = Instant::now() > until;
                    let budget = if late { Bytes::mib(512) } else { random.budget() };
                    // It may have ended meanwhile.
                    if self.set(pid, budget) {
                        changes.fetch_add(1, Ordering::Relaxed);
                        budgets.lock().expect("no panic").push_back(budget);
                    }
                }
            });
            let finished = started.wait(self.limit).map_err(|e| e.to_string());
            over.store(true, Ordering::Relaxed);
            finished
        })?;
        let failed = |why: String| {
            let budgets = budgets.lock().expect("no panic");
            format!("{}; budgets then {budgets:?}: {why}", describe())
        };
        if !orphan || finished.succeeded() {
            if !finished.succeeded() {
                return Err(failed(finished.complaint()));
            }
            let report = Report::read(&report).map_err(&failed)?;
            if let Some(complaint) = report.gave_up() {
                return Err(failed(complaint));
            }
            soaked.demotions += report.demotions();
        }
        soaked.killed += u64::from(orphan);
        soaked.changes += changes.load(Ordering::Relaxed);
        for (i, &job) in jobs.iter().enumerate() {
            self.await_end(&scratch.join(format!("code{i}"))).map_err(&failed)?;
            let read =
                |name: &str| fs::read(scratch.join(format!("{name}{i}"))).unwrap_or_default();
            let errors = read("err");
            if read("code") != b"0\n" || read("out") != expected[job] || !errors.is_empty() {
                return Err(failed(format!(
                    "{} gave {:?} instead of {:?}, and said {:?}",
                    JOBS[job].0,
                    String::from_utf8_lossy(&read("out")),
                    String::from_utf8_lossy(&expected[job]),
                    String::from_utf8_lossy(&errors),
                )));
            }
            soaked.programs += 1;
        }
        Ok(())
    }

    /// Changes a run's budget; whether that was possible.
    fn set(&self, run: Pid, budget: Bytes) -> bool {
        Command::new(&self.terrace)
            .args(["set", &run.as_raw_nonzero().to_string(), "--fast"])
            .arg(format!("{}B", budget.get()))
            .output()
            .is_ok_and(|set| set.status.success())
    }

    /// Waits for a program that goes on without `terrace`.
    fn await_end(&self, code: &Path) -> Result<(), String> {
        let until = Instant::now() + self.limit;
        while fs::read(code).is_ok_and(|code| !code.ends_with(b"\n")) || !code.exists() {
            if Instant::now() > until {
                return Err(format!("{} never came", code.display()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// What the soak draws by lot.
struct Random(Numbers);

impl Random {
    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.0.below(most - least + 1)
    }
    fn below(&mut self, end: usize) -> usize {
        self.between(0, end as u64 - 1) as usize
    }
    /// Small ones as often as large ones.
    fn budget(&mut self) -> Bytes {
        let (least, most) = BUDGETS;
        let octaves = u64::from((most / least).ilog2());
        let low = least << self.between(0, octaves);
        Bytes::kib(self.between(low * 1024, (low * 2).min(most) * 1024))
    }
}
