//! The benchmarks in small: that they run, that programs give the same answers under
//! every system, and that the machine is left as it was. Nothing is measured.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The command as `make build` leaves it, beside the directory of this build; or
/// what `TERRACE_BIN` names.
fn terrace() -> Option<PathBuf> {
    let ours = Path::new(env!("CARGO_BIN_EXE_programs"));
    let built = ours.parent()?.with_file_name("release").join("terrace");
    let named = std::env::var_os("TERRACE_BIN").map_or(built, PathBuf::from);
    named.exists().then_some(named)
}

/// Pages that compress, as a program's do.
fn corpus(directory: &Path) -> PathBuf {
    let path = directory.join("corpus");
    let bytes: Vec<u8> = (0..4u32 << 20).flat_map(|i| (i / 3 % 9999).to_le_bytes()).collect();
    fs::write(&path, &bytes[..8 << 20]).unwrap();
    path
}

fn programs(terrace: &Path, directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_programs"));
    command.arg("--terrace").arg(terrace).arg("--corpus").arg(corpus(directory));
    command.arg("--scripts").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("programs"));
    command.args(["--scale", "smoke", "--json"]);
    command
}

/// It fails by itself if a program gives another answer under Terrace.
#[test]
fn every_program_of_the_set_runs_in_half_of_its_memory() {
    let Some(terrace) = terrace() else {
        terrace_shown::is_missing("a release build of terrace (make build)");
        return;
    };
    let directory = tempfile::tempdir().unwrap();

    let mut command = programs(&terrace, directory.path());
    // Not those that take long even in small: a database's server, a browser, a build.
    command.args(["--only", "redis-zipf,redis-uniform,redis-snapshot,sqlite,python,numpy,sort"]);
    command.args(["--only", "pagerank,bfs,php,java-g1,node,gcc"]);
    let output = command.args(["--no-peer", "--rounds", "1"]).output();

    let output = output.unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    for name in [
        "redis, zipf",
        "redis, uniform",
        "redis, snapshot",
        "sqlite3",
        "python3",
        "numpy",
        "sort",
        "pagerank",
        "bfs",
        "php",
        "java, g1",
        "node",
        "gcc",
    ] {
        let lines = out.lines().filter(|line| line.contains(&format!("\"{name}\"")));
        let lines: Vec<_> = lines.map(serde_json::from_str::<serde_json::Value>).collect();
        if err.contains(&format!("{name}: ")) {
            terrace_shown::is_missing(&format!("what the benchmark needs ({err})"));
            continue;
        }
        assert_eq!(lines.len(), 2, "{name}, plain and under Terrace: {out}");
        let managed =
            lines.into_iter().map(Result::unwrap).find(|line| line["system"] == "terrace");
        let demotions = managed.unwrap()["demotions"].as_u64();
        assert!(demotions > Some(0), "{name} had all its memory: it shows nothing");
    }
}

fn left_behind(process: u32) -> Vec<String> {
    let swap = format!("/var/tmp/terrace-swap-{process}");
    let groups = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"]
        .map(|root| format!("{root}/terrace-bench-{process}"));
    let mut left: Vec<String> = groups.into_iter().filter(|dir| Path::new(dir).exists()).collect();
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    left.extend((Path::new(&swap).exists() || swaps.contains(&swap)).then_some(swap));
    left
}

/// Somebody who loses patience must not be left with swap on a machine that had none.
#[test]
fn a_benchmark_that_is_told_to_end_leaves_the_machine_as_it_was() {
    let Some(terrace) = terrace() else {
        terrace_shown::is_missing("a release build of terrace (make build)");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let mut command = programs(&terrace, directory.path());
    command.args(["--only", "sort", "--peer", "file", "--rounds", "1000"]);
    let mut bench = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let process = bench.id();
    let until = Instant::now() + Duration::from_mins(1);
    while left_behind(process).len() < 2 {
        if let Some(status) = bench.try_wait().unwrap() {
            assert_eq!(status.code(), Some(3), "it is not allowed here, or it fails: {status}");
            terrace_shown::is_missing("swap, or a memory control group,");
            return;
        }
        assert!(Instant::now() < until, "it never began");
        std::thread::sleep(Duration::from_millis(1));
    }

    let sent = Command::new("kill").args(["-TERM", &process.to_string()]).status().unwrap();

    assert!(sent.success());
    assert_eq!(bench.wait().unwrap().code(), Some(1));
    assert_eq!(left_behind(process), Vec::<String>::new());
}

/// Two programs that take turns: if one were not waited for, its updates would count for nothing.
#[test]
fn where_all_fits_both_take_their_turns() {
    let Some(terrace) = terrace() else {
        terrace_shown::is_missing("a release build of terrace (make build)");
        return;
    };
    let directory = tempfile::tempdir().unwrap();

    let output = Command::new(env!("CARGO_BIN_EXE_fits"))
        .args(["--size", "16MiB", "--budget", "64MiB", "--hot", "4MiB"])
        .args(["--rounds", "2", "--turns", "3", "--seconds", "0.25", "--json"])
        .arg("--terrace")
        .arg(terrace)
        .arg("--corpus")
        .arg(corpus(directory.path()))
        .output()
        .unwrap();

    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rounds: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rounds.len(), 2, "{out}");
    for side in rounds.iter().flat_map(|round| [&round["plain"], &round["terrace"]]) {
        let rates = side["updates_per_second"].as_array().unwrap();
        assert!(rates.len() == 3 && rates.iter().all(|rate| rate.as_f64() > Some(0.0)), "{side}");
    }
}

/// The same answers under nothing and under something, with what shows of first touches from outside.
#[test]
fn runs_of_programs_that_touch_memory_are_told_and_put_into_tables() {
    let directory = tempfile::tempdir().unwrap();
    let corpus = corpus(directory.path());
    let results = directory.path().join("results");
    let touches = |verb: &str, program: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_touches"));
        command.args([verb, program, "--scale", "smoke", "--directory"]).arg(directory.path());
        command.arg("--scripts").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("programs"));
        command.arg("--corpus").arg(&corpus);
        command
    };
    let unders: [(&str, &[&str]); 2] = [("never", &[]), ("run", &["env"])];
    let mut ran = Vec::new();
    for program in ["redis", "sort", "python", "numpy", "xz", "sqlite", "pagerank", "bfs"] {
        for (under, before) in unders {
            let mut command = touches("run", program);
            command.args(["--memory", "as-it-is", "--under", under, "--blocks", "7", "--results"]);
            let output = command.arg(&results).arg("--").args(before).output().unwrap();
            let err = String::from_utf8_lossy(&output.stderr);
            if output.status.code() == Some(3) {
                terrace_shown::is_missing(&format!("a program of the benchmark ({err})"));
                continue;
            }
            assert!(output.status.success(), "{program}: {err}");
            ran.push(program);
        }
    }

    let text = fs::read_to_string(&results).unwrap();
    let rows: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), ran.len());
    for row in &rows {
        let run = &row["run"]["Ok"];
        assert!(run["minor"].as_u64() > Some(0), "{row}");
        let requests = &run["requests"];
        assert_eq!(requests.is_object(), row["program"] == "redis", "{row}");
        if let Some(below) = requests["below"].as_array() {
            let counted: u64 = below.iter().filter_map(|pair| pair[1].as_u64()).sum();
            assert_eq!((counted, requests["count"].as_u64()), (15_000, Some(15_000)), "{row}");
            assert!(requests["greatest"].as_u64() >= requests["p50"].as_u64(), "{row}");
        }
    }
    let mut table = Command::new(env!("CARGO_BIN_EXE_touches"));
    let output = table.arg("table").arg(&results).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.contains("| as it is | sort | - | - | "), "{out}");

    // A recorder ends the program, and goes on itself.
    for (seconds, much) in [("600", "all of it, "), ("0", "its beginning, ")] {
        let mut command = touches("record", "sort");
        let output = command
            .args(["--seconds", seconds, "--", "sh", "-c", "\"$@\"; exit 0", "sh"])
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && out.starts_with(much), "{output:?}");
    }
}
