//! `terrace sweep`: grids, resumption after a kill, results in both formats.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{binary, json, refused, terrace};

const GRID: [&str; 5] = [
    "workload=gups,stream",
    "policy=first-touch,all-slow",
    "size=4MiB",
    "accesses=60000",
    "cxl.read-latency=200ns,400ns",
];

fn sweep(directory: &Path, grid: &[&str]) -> snapbox::cmd::Command {
    terrace().args(["sweep", "--json", "-o"]).arg(directory).args(grid)
}

/// Rows without the host's own speed, which differs from run to run.
fn rows(directory: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(directory.join("results.csv")).unwrap();
    let mut rows: Vec<Vec<String>> =
        text.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect();
    let speed = rows[0].iter().position(|name| name == "host_accesses_per_s").unwrap();
    for row in &mut rows {
        row.remove(speed);
    }
    rows
}

#[test]
fn a_sweep_simulates_every_combination_once_and_extends_to_more() {
    let dir = tempfile::tempdir().unwrap();
    let first = json(sweep(dir.path(), &GRID), 0);
    assert_eq!(first["points"], 8);
    assert_eq!(first["simulated"], 8);
    let rows_first = rows(dir.path());
    assert_eq!(rows_first.len(), 9);
    let parquet = fs::read(dir.path().join("results.parquet")).unwrap();
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));

    let again = json(sweep(dir.path(), &GRID), 0);
    assert_eq!((again["simulated"].as_u64(), again["resumed"].as_u64()), (Some(0), Some(8)));
    assert_eq!(rows(dir.path()), rows_first);

    let mut more = GRID;
    more[4] = "cxl.read-latency=200ns,400ns,600ns";
    let extended = json(sweep(dir.path(), &more), 0);
    assert_eq!((extended["simulated"].as_u64(), extended["resumed"].as_u64()), (Some(4), Some(8)));
}

/// A seed in front of a program and a policy that draw nothing is no repetition of a measurement.
#[test]
fn points_that_are_one_simulation_are_run_once_and_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let grid = ["workload=gups,stream", "policy=first-touch", "size=4MiB", "accesses=30000"];
    let grid = [&grid[..], &["seed=1,2,3"]].concat();
    let output = sweep(dir.path(), &grid).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let line = "2 points differ from another only in what changes nothing there (seed)";
    assert_eq!(said.matches(line).count(), 1, "{said}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for (figure, count) in [("points", 6), ("simulated", 4), ("resumed", 0), ("alike", 2)] {
        assert_eq!(document[figure], count, "{figure}: {document}");
    }
    assert_eq!(rows(dir.path()).len(), 7, "each of them has its row");

    // A fourth seed of what is known needs no simulation.
    let more = [&grid[..4], &["seed=1,2,3,4"]].concat();
    let document = json(sweep(dir.path(), &more), 0);
    for (figure, count) in [("simulated", 1), ("resumed", 6), ("alike", 1)] {
        assert_eq!(document[figure], count, "{figure}: {document}");
    }
}

#[test]
fn a_killed_sweep_goes_on_where_it_was() {
    let (killed, whole) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let grid = ["workload=gups", "size=4MiB", "accesses=400000", "seed=1,2,3,4,5,6,7,8"];
    let journal = killed.path().join("journal.jsonl");
    let mut child = Command::new(binary())
        .args(["sweep", "--jobs", "1", "-o"])
        .arg(killed.path())
        .args(grid)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let lines = || fs::read_to_string(&journal).map_or(0, |text| text.lines().count());
    let begun = Instant::now();
    while lines() < 3 && begun.elapsed() < Duration::from_mins(1) {
        sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = lines();
    assert!(kept >= 3, "nothing was noted before the kill");

    let resumed = json(sweep(killed.path(), &grid), 0);

    // The header is a line; the last line may be half a one.
    let known = resumed["resumed"].as_u64().unwrap();
    assert!((2..=kept as u64).contains(&known), "{known} of {kept} lines");
    json(sweep(whole.path(), &grid), 0);
    assert_eq!(rows(killed.path()), rows(whole.path()), "as if it had never been killed");
}

#[test]
fn a_grid_file_is_the_grid_and_its_errors_have_lines() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = dir.path().join("grid.toml");
    let file_name = file.display().to_string();
    fs::write(&file, "schema = 1\n[grid]\nsize = \"4MiB\"\naccesses = 20000\nseed = [1, 2]\n")
        .unwrap();
    // What the command line says replaces what the file says.
    let done = json(sweep(out.path(), &[&file_name, "accesses=30000"]), 0);
    assert_eq!(done["points"], 2);
    assert_eq!(rows(out.path())[1][0], "30000");

    fs::write(&file, "schema = 1\n[grid]\nsiez = \"4MiB\"\n").unwrap();
    let message = refused(sweep(out.path(), &[&file_name]));
    assert!(message.contains("grid.toml:3") && message.contains("siez"), "{message}");
    let message = refused(sweep(out.path(), &["policy=hemen"]));
    assert!(message.contains("`hemen`"), "{message}");
    let message = refused(sweep(out.path(), &["policy=memory-mode"]));
    assert!(message.contains("memory-mode"), "{message}");
}

#[test]
fn a_point_that_fails_is_a_row_and_an_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    // 8 MiB do not fit into two memories of a megabyte.
    let grid =
        ["size=8MiB", "accesses=1000", "policy=first-touch", "fast=1MiB", "cxl.capacity=1MiB,1GiB"];
    let output = sweep(dir.path(), &grid).output().unwrap();

    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("1 of 2 points failed") && message.contains("no memory left"));
    let rows = rows(dir.path());
    assert!(rows[1].last().unwrap().contains("no memory left"), "{rows:?}");
    assert_eq!(rows[2].last().unwrap(), "");
}

/// A file of somebody's is no journal, also if it is to be begun anew.
#[test]
fn what_is_no_journal_is_never_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal.jsonl");
    let grid = ["size=4MiB", "accesses=1000"];
    for content in ["notes of mine", "notes of mine\nand more\n"] {
        for fresh in [None, Some("--fresh")] {
            fs::write(&journal, content).unwrap();
            let words: Vec<_> = grid.into_iter().chain(fresh).collect();
            let message = refused(sweep(dir.path(), &words));
            let expected = format!("--output: {}:1: is no journal of a sweep", journal.display());
            assert!(message.starts_with(&expected), "{message}");
            assert!(message.contains("choose another directory"), "{message}");
            assert_eq!(fs::read_to_string(&journal).unwrap(), content);
        }
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

    // A trace that is simulated, and the grid.
    let lackey = dir.path().join("a.lackey");
    fs::write(&lackey, " L 1000,8\n S 2000,8\n").unwrap();
    terrace().args(["convert", "--to", "terrace"]).arg(&lackey).arg(&journal).assert().success();
    let before = fs::read(&journal).unwrap();
    let workload = format!("workload={}", journal.display());
    for fresh in [None, Some("--fresh")] {
        let words: Vec<_> =
            ["policy=first-touch", workload.as_str()].into_iter().chain(fresh).collect();
        let message = refused(sweep(dir.path(), &words));
        assert!(message.starts_with("--output and workload are the same file"), "{message}");
        assert_eq!(fs::read(&journal).unwrap(), before);
    }
    let toml = "schema = 1\n[grid]\nsize = \"4MiB\"\naccesses = 1000\n";
    fs::write(&journal, toml).unwrap();
    let message = refused(sweep(dir.path(), &["--fresh", journal.to_str().unwrap()]));
    assert!(message.starts_with("--output and GRID.toml are the same file"), "{message}");
    assert_eq!(fs::read_to_string(&journal).unwrap(), toml);
}

#[test]
fn what_was_done_is_forgotten_only_when_a_fresh_sweep_begins() {
    let dir = tempfile::tempdir().unwrap();
    let grid = ["size=4MiB", "accesses=1000", "policy=first-touch,all-slow"];
    json(sweep(dir.path(), &grid), 0);
    let [journal, csv] = ["journal.jsonl", "results.csv"].map(|name| dir.path().join(name));
    let done = fs::read(&journal).unwrap();
    fs::remove_file(&csv).unwrap();
    fs::create_dir(&csv).unwrap();
    let fresh: Vec<_> = grid.into_iter().chain(Some("--fresh")).collect();

    let message = refused(sweep(dir.path(), &fresh));
    assert!(message.contains("results.csv: is a directory"), "{message}");
    refused(sweep(dir.path(), &["--fresh", "policy=nonsense"]));
    assert_eq!(fs::read(&journal).unwrap(), done);

    fs::remove_dir(&csv).unwrap();
    // Results are no journal, either.
    fs::hard_link(&journal, &csv).unwrap();
    let message = refused(sweep(dir.path(), &fresh));
    assert!(message.starts_with("--output and its journal are the same file"), "{message}");
    assert_eq!(fs::read(&journal).unwrap(), done);
    fs::remove_file(&csv).unwrap();
    assert_eq!(json(sweep(dir.path(), &grid), 0)["resumed"], 2);
    let again = json(sweep(dir.path(), &fresh), 0);
    assert_eq!((again["simulated"].as_u64(), again["resumed"].as_u64()), (Some(2), Some(0)));
    assert_eq!(json(sweep(dir.path(), &grid), 0)["resumed"], 2);
    // A sweep that is refused leaves no journal of its own.
    let new = tempfile::tempdir().unwrap();
    fs::create_dir(new.path().join("results.csv")).unwrap();
    refused(sweep(new.path(), &grid));
    assert!(!new.path().join("journal.jsonl").exists());
}

#[test]
fn a_parameter_that_is_given_twice_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let message = refused(sweep(dir.path(), &["fast=10%", "fast=20%"]));
    assert!(message.starts_with("fast: is given twice"), "{message}");
}
