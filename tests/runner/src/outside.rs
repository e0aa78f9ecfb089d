//! Hazards of the kernel engine: what happens around a program, and to what the engine has made.
//! Nothing is loaded into the program, so what can go wrong is outside of it.
//!
//! Each case runs `tests/outside/memory.c`, which knows what every page of its memory must hold, in
//! less than it has; and afterwards nothing of the run may be left.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Case, Verdict, number};
use crate::terrace;

/// When a case counts as hanging.
const LIMIT: Duration = Duration::from_mins(3);

/// What the cases share.
#[derive(Clone)]
struct Bench {
    terrace: PathBuf,
    program: PathBuf,
    /// How many short processes a swarm has, and how often Terrace is killed.
    swarm: usize,
    kills: usize,
}

type Run = fn(&Bench) -> Result<(), String>;

/// Every hazard, by its name.
const CASES: &[(&str, Run)] = &[
    ("forks", |b| b.survives(&["forks", "4"], 32, "24MiB", &[])),
    ("forks under a policy", |b| b.survives(&["forks", "4"], 32, "24MiB", &["--policy=refault"])),
    ("exec", |b| b.survives(&["exec", "5"], 48, "24MiB", &[])),
    ("exits", |b| b.survives(&["exits", "40"], 48, "24MiB", &[])),
    ("threads", |b| b.survives(&["threads", "16"], 48, "24MiB", &["--policy=2q"])),
    ("memory fills fast", fills_fast),
    ("memory is locked", locked),
    ("a swarm of processes", swarm),
    ("groups change", groups_change),
    ("swap is full", swap_is_full),
    ("the device is taken away", device_goes),
    ("out of memory is near", out_of_memory_is_near),
    ("two at once", two_at_once),
    ("a joined one goes on", joined_goes_on),
    ("killed at any moment", killed_anywhere),
    ("killed, and the program goes on", goes_on),
    ("stopped by a signal", stopped),
    ("another user's rights", setuid),
    ("a pipeline", pipeline),
];

/// Those that need a program that may not be here.
const WITH: &[(&str, &str, Run)] = &[("a static Go program", GO, static_go)];

const GO: &str = "go";

/// A program by its name; Go's own archive is unpacked to where no `PATH` has it.
fn found(program: &str) -> String {
    let unpacked = format!("/usr/local/go/bin/{program}");
    if Path::new(&unpacked).exists() { unpacked } else { program.to_owned() }
}

/// The hazards as cases.
///
/// # Errors
/// If the program cannot be compiled, or there is no `terrace`.
pub fn cases() -> Result<Vec<Case>, String> {
    let short = std::env::var("OUTSIDE").is_ok_and(|form| form == "short");
    let bench = Bench {
        terrace: terrace::executable()?,
        program: compile()?,
        swarm: number("OUTSIDE_SWARM", if short { 400 } else { 6000 }),
        kills: number("OUTSIDE_KILLS", if short { 4 } else { 60 }),
    };
    let case = |&(name, run): &(&str, Run)| {
        let bench = bench.clone();
        let run = move || match bench.lack() {
            Some(lack) => Verdict::Skipped(lack),
            None => match run(&bench).and_then(|()| bench.nothing_left()) {
                Ok(()) => Verdict::Passed,
                Err(why) => Verdict::Failed(why),
            },
        };
        Case { name: format!("outside::{name}"), run: Box::new(run) }
    };
    let with = |&(name, program, run): &(&str, &'static str, Run)| {
        let has = Command::new(found(program)).arg("version").output().is_ok();
        if has {
            return case(&(name, run));
        }
        let lack = format!("no `{program}` here: NOT run");
        let run = move || Verdict::Skipped(lack.clone());
        Case { name: format!("outside::{name}"), run: Box::new(run) }
    };
    Ok(CASES.iter().map(case).chain(WITH.iter().map(with)).collect())
}

fn compile() -> Result<PathBuf, String> {
    let directory = terrace::target().join("outside");
    fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let program = directory.join("memory");
    let source = terrace::root().join("tests/outside/memory.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let output = Command::new(&compiler)
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-static", "-o"])
        .arg(&program)
        .arg(&source)
        .output()
        .map_err(|e| format!("the C compiler `{compiler}` could not be started: {e}"))?;
    if output.status.success() {
        Ok(program)
    } else {
        Err(format!("{}:\n{}", source.display(), String::from_utf8_lossy(&output.stderr)))
    }
}

/// A run under way.
struct Running {
    child: Child,
    report: PathBuf,
    _directory: tempfile::TempDir,
}

impl Running {
    /// Waits until the program has its memory.
    fn until_filled(&mut self) -> Result<(), String> {
        let out = self.child.stdout.take().ok_or("stdout is taken already")?;
        let mut lines = BufReader::new(out);
        let mut line = String::new();
        lines.read_line(&mut line).map_err(|e| e.to_string())?;
        // Kept open: it has more to say.
        self.child.stdout = Some(lines.into_inner());
        if line.trim() == "filled" { Ok(()) } else { Err(format!("it said `{line}`")) }
    }

    /// Lets a program end that goes on until its input ends, see [`Bench::held`].
    fn let_go(&mut self) {
        self.child.stdin = None;
    }

    /// Waits until one of the messages on its `stderr`, which is piped, has these words. All of them
    /// are passed on.
    fn until_said(&mut self, words: &str) -> Result<(), String> {
        let messages = self.child.stderr.take().ok_or("stderr is not piped, or taken already")?;
        let (sender, said) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(messages).lines().map_while(Result::ok) {
                eprintln!("{line}");
                // Nobody waits for it any more.
                let _ = sender.send(line);
            }
        });
        let until = Instant::now() + LIMIT;
        while let Ok(line) = said.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if line.contains(words) {
                return Ok(());
            }
        }
        Err(format!("it did not say `{words}`"))
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, name: &str) {
        // Who has ended hears nothing.
        let _ = Command::new("kill").args([name, &self.id().to_string()]).status();
    }

    fn wait(&mut self) -> Result<std::process::ExitStatus, String> {
        let until = Instant::now() + LIMIT;
        loop {
            match self.child.try_wait().map_err(|e| e.to_string())? {
                Some(status) => return Ok(status),
                None if Instant::now() > until => {
                    self.signal("-KILL");
                    return Err(format!("not over after {LIMIT:?}"));
                }
                None => sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Its end, which has to be a good one; the report.
    fn ends_well(mut self) -> Result<Value, String> {
        let status = self.wait()?;
        let text = fs::read_to_string(&self.report).unwrap_or_default();
        if !status.success() {
            return Err(format!("it ended with {status}; its report: {text}"));
        }
        serde_json::from_str(&text).map_err(|e| format!("the report: {e}: `{text}`"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal("-TERM");
            let _ = self.child.wait();
        }
    }
}

/// Starts a run; `command` leads to `terrace`.
fn start_by(
    command: &mut Command,
    budget: &str,
    options: &[&str],
    words: &[&str],
) -> Result<Running, String> {
    let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
    let report = directory.path().join("report");
    command.args(["--json", "run", "--engine", "kernel", "--report"]).arg(&report);
    if !budget.is_empty() {
        command.args(["--fast", budget]);
    }
    let child = command
        .args(options)
        .arg("--")
        .args(words)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    Ok(Running { child, report, _directory: directory })
}

impl Bench {
    /// What this machine lacks for the engine.
    fn lack(&self) -> Option<String> {
        let output = Command::new(&self.terrace).args(["doctor", "--json"]).output().ok()?;
        let document: Value = serde_json::from_slice(&output.stdout).ok()?;
        let engine = &document["kernel_engine"];
        // A control group and zram, for what is done to them.
        let has = engine["parts"][1]["has"].is_string() && engine["works"] == true;
        (!has).then(|| format!("the kernel engine cannot be had here: {engine}"))
    }

    fn start(&self, budget: &str, options: &[&str], words: &[&str]) -> Result<Running, String> {
        start_by(&mut Command::new(&self.terrace), budget, options, words)
    }

    /// The command by which a run begins whose program may go on until it is let go: no machine is
    /// too slow for what is done meanwhile.
    fn held(&self) -> Command {
        let mut command = Command::new(&self.terrace);
        command.stdin(Stdio::piped());
        command
    }

    /// The program with so many MiB, which does something.
    fn words<'a>(&'a self, mib: &'a str, what: &[&'a str]) -> Vec<&'a str> {
        let program = self.program.to_str().expect("a path of ours is text");
        [program, mib].into_iter().chain(what.iter().copied()).collect()
    }

    /// It ends well, and something of it was put out.
    fn survives(
        &self,
        what: &[&str],
        mib: usize,
        budget: &str,
        options: &[&str],
    ) -> Result<(), String> {
        let mib = mib.to_string();
        let report = self.start(budget, options, &self.words(&mib, what))?.ends_well()?;
        let out = [&report["reclaimed"], &report["put_out"]].map(|n| n.as_u64().unwrap_or(0));
        if out == [0, 0] {
            return Err(format!("nothing was put out: {report}"));
        }
        Ok(())
    }

    fn clean(&self) -> Result<Value, String> {
        let output = Command::new(&self.terrace)
            .args(["clean", "--json"])
            .output()
            .map_err(|e| e.to_string())?;
        serde_json::from_slice(&output.stdout)
            .map_err(|e| format!("clean: {e}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Whatever is undone here was left behind.
    fn nothing_left(&self) -> Result<(), String> {
        match &self.clean()?["removed"] {
            Value::Array(removed) if removed.is_empty() => Ok(()),
            removed => Err(format!("left behind: {removed}")),
        }
    }
}

/// Two threads fill memory faster than anybody puts it out: the budget holds all the same, and nobody
/// is killed.
fn fills_fast(bench: &Bench) -> Result<(), String> {
    const BUDGET: u64 = 24 << 20;
    let report = bench.start("24MiB", &[], &bench.words("96", &["fill", "2"]))?.ends_well()?;
    let exceeded = report["exceeded"].as_u64().ok_or("the report has no `exceeded`")?;
    if exceeded > BUDGET / 20 || report["reclaimed"] == 0 {
        return Err(format!("it had {exceeded} bytes more than its budget: {report}"));
    }
    Ok(())
}

/// More is locked than the budget has: nothing of that can be put out, and a limit would have `mlock`
/// fail.
fn locked(bench: &Bench) -> Result<(), String> {
    bench.start("24MiB", &[], &bench.words("48", &["lock", "40"]))?.ends_well().map(|_| ())
}

fn swarm(bench: &Bench) -> Result<(), String> {
    let many = bench.swarm.to_string();
    bench.survives(&["swarm", &many], 48, "24MiB", &["--policy=refault"])
}

/// The groups of a run: those of this number.
fn groups_of(run: u32) -> Vec<PathBuf> {
    fn below(directory: &Path, name: &str, depth: u32, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_name() == name {
                found.push(entry.path());
            } else if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                below(&entry.path(), name, depth - 1, found);
            }
        }
    }
    let mut found = Vec::new();
    below(Path::new("/sys/fs/cgroup"), &format!("terrace-{run}"), 6, &mut found);
    found
}

/// Ends the processes of a group.
fn kill_members(group: &Path) {
    for process in fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
        let _ = Command::new("kill").args(["-KILL", process]).status();
    }
}

/// Removes a group. Processes that have ended may be in it for a moment.
fn remove(group: &Path) -> Result<(), String> {
    let until = Instant::now() + Duration::from_mins(1);
    loop {
        match fs::remove_dir(group) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(_) if Instant::now() < until => sleep(Duration::from_millis(10)),
            done => return done.map_err(|e| format!("{}: {e}", group.display())),
        }
    }
}

/// Moves the processes of a group to another one, which is made, and back, and away again; how many.
fn move_away(group: &Path, away: &Path) -> Result<usize, String> {
    fs::create_dir(away).map_err(|e| format!("{}: {e}", away.display()))?;
    let members = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for process in members.lines() {
        let put = |to: &Path| {
            fs::write(to.join("cgroup.procs"), process)
                .map_err(|e| format!("{}: {e}", to.display()))
        };
        put(away)?;
        sleep(Duration::from_millis(200));
        put(group)?;
        put(away)?;
    }
    Ok(members.lines().count())
}

/// Its processes are moved to another group, and back; and one of them stays away.
fn groups_change(bench: &Bench) -> Result<(), String> {
    let words = bench.words("48", &["until", "2500"]);
    let mut run = start_by(&mut bench.held(), "24MiB", &[], &words)?;
    run.until_filled()?;
    let groups = groups_of(run.id());
    let away = |group: &PathBuf| group.with_file_name(format!("away-{}", run.id()));
    let away: Vec<PathBuf> = groups.iter().map(away).collect();
    let moved: Result<usize, String> =
        groups.iter().zip(&away).map(|(group, away)| move_away(group, away)).sum();
    run.let_go();
    let ended = run.ends_well();
    let removed = away.iter().map(|away| remove(away)).fold(Ok(()), Result::and);
    let moved = moved?;
    ended?;
    removed?;
    if moved > 0 { Ok(()) } else { Err(format!("no process was found in {groups:?}")) }
}

/// A program that has another user's rights: nothing can be loaded into it.
fn setuid(bench: &Bench) -> Result<(), String> {
    use std::os::unix::fs::{PermissionsExt, chown};
    const NOBODY: u32 = 65534;
    let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))
        .map_err(|e| e.to_string())?;
    let program = directory.path().join("memory");
    fs::copy(&bench.program, &program)
        .and_then(|_| chown(&program, Some(NOBODY), None))
        .and_then(|()| fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)))
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let program = program.to_str().ok_or("a path that is no text")?;
    let words = [program, "48", "until", "1000"];
    let mut run = start_by(&mut bench.held(), "24MiB", &[], &words)?;
    run.until_filled()?;
    let users: Vec<String> = groups_of(run.id())
        .iter()
        .filter_map(|group| fs::read_to_string(group.join("cgroup.procs")).ok())
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|process| fs::read_to_string(format!("/proc/{process}/status")).ok())
        .filter_map(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
            line.split_whitespace().nth(1).map(str::to_owned)
        })
        .collect();
    run.let_go();
    let report = run.ends_well()?;
    if !users.contains(&NOBODY.to_string()) {
        return Err(format!("the program had no rights of another's: {users:?}"));
    }
    if !has_left(&report) {
        return Err(format!("nothing was put out: {report}"));
    }
    Ok(())
}

/// Whether anything was put out, by Terrace or by the program itself at the limit: of that version 1
/// counts nothing where there is no tracefs.
fn has_left(report: &serde_json::Value) -> bool {
    report["store"]["peak"].as_u64() > Some(0)
}

/// How many processes of these groups have so much memory, in DRAM and in swap.
fn have(groups: &[PathBuf], least: u64) -> usize {
    let has = |process: &String| {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let fields = ["VmRSS:", "VmSwap:"].map(|name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.split_whitespace().next());
            kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
        });
        fields.iter().sum::<u64>() >= least
    };
    let lists = groups.iter().map(|group| fs::read_to_string(group.join("cgroup.procs")));
    // Each is in a group of each hierarchy.
    let processes: BTreeSet<String> = lists
        .flatten()
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    processes.iter().filter(|process| has(process)).count()
}

/// All parts of a pipeline, and what a shell starts after it, share the budget.
fn pipeline(bench: &Bench) -> Result<(), String> {
    let program = bench.program.to_str().ok_or("a path that is no text")?;
    // Both parts have their memory at the same time: the second one goes on until the first one has
    // ended, and that one until it is let go.
    let line = format!(
        "{program} 32 until 1500 | {{ {program} 32 until 1000; cat; }} | grep -c filled && \
         {program} 32 hold 100"
    );
    let mut run = start_by(&mut bench.held(), "32MiB", &[], &["sh", "-c", &line])?;
    let id = run.id();
    until("there is no group", || !groups_of(id).is_empty())?;
    let groups = groups_of(id);
    until("two programs did not get their memory", || have(&groups, 31 << 20) == 2)?;
    run.let_go();
    let report = run.ends_well()?;
    if report["resident_peak"].as_u64() > Some(48 << 20) || !has_left(&report) {
        return Err(format!("64 MiB were not kept within 32: {report}"));
    }
    Ok(())
}

/// A program without a C library, whose runtime makes its own system calls.
fn static_go(bench: &Bench) -> Result<(), String> {
    let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
    let program = directory.path().join("memory");
    let source = terrace::root().join("tests/outside/memory.go");
    let output = Command::new(found(GO))
        .args(["build", "-o"])
        .arg(&program)
        .arg(&source)
        .envs([("CGO_ENABLED", "0"), ("GOFLAGS", "-mod=mod"), ("GOTOOLCHAIN", "local")])
        .env("GOCACHE", directory.path().join("cache"))
        .current_dir(directory.path())
        .output()
        .map_err(|e| format!("go: {e}"))?;
    if !output.status.success() {
        return Err(format!("go build: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let program = program.to_str().ok_or("a path that is no text")?;
    let report = bench.start("24MiB", &[], &[program, "48", "6"])?.ends_well()?;
    let peak = report["resident_peak"].as_u64();
    if peak > Some(27 << 20) || !has_left(&report) || report["faults"].as_u64() < Some(100) {
        return Err(format!("48 MiB were not kept within 24: {report}"));
    }
    Ok(())
}

/// A zram device of the test's own that is swap, and is taken away when this is dropped.
struct Swap(PathBuf);

impl Swap {
    /// So large, before all other swap.
    fn make(size: &str) -> Result<Self, String> {
        let number = fs::read_to_string("/sys/class/zram-control/hot_add")
            .map_err(|e| format!("zram: {e}"))?;
        let (node, control) =
            (format!("/dev/zram{}", number.trim()), format!("/sys/block/zram{}", number.trim()));
        fs::write(format!("{control}/disksize"), size).map_err(|e| format!("{control}: {e}"))?;
        let swap = Self(node.into());
        for command in [vec!["mkswap"], vec!["swapon", "-p", "32000"]] {
            let done = Command::new(command[0])
                .args(&command[1..])
                .arg(&swap.0)
                .stdout(Stdio::null())
                .status()
                .map_err(|e| e.to_string())?;
            if !done.success() {
                return Err(format!("{command:?}: {done}"));
            }
        }
        Ok(swap)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.0).status();
        let number = self.0.to_string_lossy().trim_start_matches("/dev/zram").to_owned();
        let _ = fs::write("/sys/class/zram-control/hot_remove", number);
    }
}

/// The command by which a run begins that can make no zram device, and has to do with the swap that is
/// there: its `sysfs` has no file that makes one. `nothing` is an empty directory.
fn without_zram_of_its_own(terrace: &Path, nothing: &Path) -> Command {
    let mut command = Command::new("unshare");
    let hide = "mount --bind \"$0\" /sys/class/zram-control && exec \"$@\"";
    command.args(["--mount", "--propagation", "private", "sh", "-c", hide]);
    command.arg(nothing).arg(terrace);
    command
}

/// Memory that does not compress, and swap for a part of what has to leave: the budget cannot be
/// kept, which is said, and nobody is killed for it.
fn swap_is_full(bench: &Bench) -> Result<(), String> {
    const IT: &str = "the budget cannot be kept";
    let _swap = Swap::make("18M")?;
    let nothing = tempfile::tempdir().map_err(|e| e.to_string())?;
    let words = bench.words("64", &["until", "3000"]);
    let mut command = without_zram_of_its_own(&bench.terrace, nothing.path());
    command.env("NOISE", "1").stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut run = start_by(&mut command, "16MiB", &[], &words)?;
    run.until_said(IT)?;
    run.let_go();
    let report = run.ends_well()?;
    if report["lacks"].to_string().contains(IT) {
        Ok(())
    } else {
        Err(format!("it was not said that swap is full: {report}"))
    }
}

/// Somebody ends the use of the device in the midst of a run.
fn device_goes(bench: &Bench) -> Result<(), String> {
    let words = bench.words("64", &["until", "3000"]);
    let mut run = start_by(&mut bench.held(), "24MiB", &[], &words)?;
    run.until_filled()?;
    let areas = fs::read_to_string("/proc/swaps").map_err(|e| e.to_string())?;
    let mut areas_used = areas.lines().filter_map(|line| line.split_whitespace().next());
    let Some(device) = areas_used.rfind(|area| area.starts_with("/dev/zram")) else {
        return Err(format!("no zram device is swapped to: {areas}"));
    };
    let off = Command::new("swapoff").arg(device).status().map_err(|e| e.to_string())?;
    if !off.success() {
        return Err(format!("swapoff {device}: {off}"));
    }
    run.let_go();
    run.ends_well().map(|_| ())
}

/// All of Terrace is in a group whose limit is below what the program has.
fn out_of_memory_is_near(bench: &Bench) -> Result<(), String> {
    let root = Path::new("/sys/fs/cgroup/memory");
    let (group, limit) = if root.join("memory.limit_in_bytes").exists() {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| line.split_once(":memory:")).map_or("/", |(_, p)| p);
        (root.join(own.trim_start_matches('/')), "memory.limit_in_bytes")
    } else {
        (PathBuf::from("/sys/fs/cgroup"), "memory.max")
    };
    let group = group.join(format!("near-{}", std::process::id()));
    fs::create_dir(&group).map_err(|e| format!("{}: {e}", group.display()))?;
    let limited = fs::write(group.join(limit), (80 << 20).to_string());
    let run = limited.map_err(|e| e.to_string()).and_then(|()| {
        let door = group.join("cgroup.procs");
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(&door).arg(&bench.terrace);
        start_by(&mut command, "48MiB", &[], &bench.words("128", &["hold", "500"]))
    });
    let ended = run.and_then(Running::ends_well);
    let removed = remove(&group);
    ended?;
    removed
}

/// Two runs, each with a budget, and `clean` in their midst.
fn two_at_once(bench: &Bench) -> Result<(), String> {
    let words = bench.words("48", &["until", "2000"]);
    let mut first = start_by(&mut bench.held(), "24MiB", &[], &words)?;
    let mut second = start_by(&mut bench.held(), "16MiB", &["--policy=refault"], &words)?;
    first.until_filled()?;
    second.until_filled()?;
    let kept = bench.clean()?["kept"].to_string();
    for run in [&first, &second] {
        if !kept.contains(&format!("run {} ", run.id())) {
            return Err(format!("run {} is not kept: {kept}", run.id()));
        }
    }
    first.let_go();
    second.let_go();
    first.ends_well()?;
    second.ends_well().map(|_| ())
}

/// The run whose budget is shared is killed: the one that has joined it keeps the budget.
fn joined_goes_on(bench: &Bench) -> Result<(), String> {
    let words = bench.words("32", &["until", "4000"]);
    let mut first = start_by(&mut bench.held(), "24MiB", &[], &words)?;
    first.until_filled()?;
    let id = first.id().to_string();
    let mut command = bench.held();
    command.stderr(Stdio::piped());
    let mut second = start_by(&mut command, "", &["--join", &id], &words)?;
    second.until_filled()?;
    first.signal("-KILL");
    first.wait()?;
    second.until_said("is kept for the rest of its programs")?;
    first.let_go();
    second.let_go();
    let report = second.ends_well()?;
    // Its first program has gone on, and may have ended with the other one or not.
    for group in groups_of(first.id()) {
        kill_members(&group);
    }
    undone(bench)?;
    if report["kind"] == "terrace.kernel" && report["budget"] == 24 << 20 {
        Ok(())
    } else {
        Err(format!("nobody kept the budget: {report}"))
    }
}

/// `clean` undoes everything within its time, and the next one finds nothing.
fn undone(bench: &Bench) -> Result<(), String> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let cleaned = bench.clean()?;
        if cleaned["kept"].as_array().is_some_and(Vec::is_empty) {
            return bench.nothing_left();
        }
        if Instant::now() > until {
            return Err(format!("not undone: {cleaned}"));
        }
        sleep(Duration::from_millis(100));
    }
}

/// Terrace is killed after a random while: before it has set anything up, meanwhile, while the
/// program fills its memory, and later. The program is ended, and `clean` undoes the rest.
fn killed_anywhere(bench: &Bench) -> Result<(), String> {
    let mut random = u64::from(std::process::id());
    for round in 0..bench.kills {
        let mut run = bench.start("24MiB", &[], &bench.words("48", &["hold", "60000"]))?;
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // A set-up takes some 30 ms.
        let wait = if round % 2 == 0 { (random >> 33) % 60 } else { (random >> 33) % 1500 };
        sleep(Duration::from_millis(wait));
        let id = run.id();
        run.signal("-KILL");
        run.wait()?;
        // Interrupted itself, it is run again.
        let mut interrupted = Command::new(&bench.terrace)
            .arg("clean")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| e.to_string())?;
        sleep(Duration::from_millis((random >> 50) % 20));
        let _ = interrupted.kill();
        let _ = interrupted.wait();
        for group in groups_of(id) {
            kill_members(&group);
        }
        undone(bench).map_err(|why| format!("killed after {wait} ms: {why}"))?;
    }
    Ok(())
}

/// Terrace is killed after a random while, and nobody calls `clean`: the program is bounded by nothing
/// from then on, ends as it would have without Terrace, and nothing is left when it has.
fn goes_on(bench: &Bench) -> Result<(), String> {
    let program = bench.program.to_str().ok_or("a path that is no text")?;
    let mut random = u64::from(std::process::id()) ^ 0x9e37_79b9;
    for _ in 0..bench.kills {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let wait = (random >> 33) % 800;
        let killed = |why: String| format!("killed after {wait} ms: {why}");
        let before = devices();
        // It fills five times its budget again and again, by two threads.
        let script = "echo begun; exec \"$0\" 96 fill 2";
        let mut run = bench.start("24MiB", &["--quiet"], &["sh", "-c", script, program])?;
        let id = run.id();
        let out = run.child.stdout.take().ok_or("stdout is taken already")?;
        sleep(Duration::from_millis(wait));
        run.signal("-KILL");
        run.wait()?;
        until("a limit stays", || groups_of(id).iter().all(|group| is_unbounded(group)))
            .map_err(killed)?;
        let (sender, said) = mpsc::channel();
        std::thread::spawn(move || sender.send(std::io::read_to_string(out)));
        let Ok(said) = said.recv_timeout(LIMIT) else {
            for group in groups_of(id) {
                kill_members(&group);
            }
            return Err(killed(format!("the program is not over after {LIMIT:?}")));
        };
        let said = said.map_err(|e| e.to_string())?;
        // Nothing where it was killed before it had started the program.
        if said.starts_with("begun") && !said.contains("intact") {
            return Err(killed(format!("the program said `{said}`")));
        }
        until("the group stays", || groups_of(id).is_empty()).map_err(killed)?;
        until("a device stays", || devices().is_subset(&before)).map_err(killed)?;
        bench.nothing_left().map_err(killed)?;
    }
    Ok(())
}

/// Waits until something is so.
fn until(otherwise: &str, is_so: impl Fn() -> bool) -> Result<(), String> {
    let until = Instant::now() + Duration::from_mins(1);
    while !is_so() {
        if Instant::now() > until {
            return Err(otherwise.to_owned());
        }
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Whether nothing of a group's bounds or slows it down; one that is gone has nothing.
fn is_unbounded(group: &Path) -> bool {
    let says = |file: &str, is_off: &dyn Fn(&str) -> bool| {
        fs::read_to_string(group.join(file)).map_or(true, |text| is_off(text.trim()))
    };
    // Without a limit there is the largest multiple of a page, or a word.
    says("memory.limit_in_bytes", &|text| text.parse().is_ok_and(|limit: u64| limit > 1 << 62))
        && says("memory.oom_control", &|text| text.starts_with("oom_kill_disable 0"))
        && says("cpu.cfs_quota_us", &|text| text == "-1")
        && says("memory.high", &|text| text == "max")
}

/// The zram devices that there are.
fn devices() -> BTreeSet<String> {
    let all = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let names = all.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with("zram")).collect()
}

/// A signal is the program's, and Terrace undoes everything when it has ended of it.
fn stopped(bench: &Bench) -> Result<(), String> {
    let mut run = bench.start("24MiB", &[], &bench.words("48", &["hold", "60000"]))?;
    run.until_filled()?;
    run.signal("-TERM");
    let status = run.wait()?;
    if status.code() == Some(128 + 15) { Ok(()) } else { Err(format!("it ended with {status}")) }
}
