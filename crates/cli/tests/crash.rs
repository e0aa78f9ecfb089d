//! `terrace crash`: a sound scheme gives exit code 0, a seeded fault a schedule
//! and exit code 1, a wrong program its line.

mod common;

use std::fs;

use common::{json, terrace};
use serde_json::Value;

const PROGRAM: &str = "# maps, unmaps, and maps anew\nmap 0 2\nstore 0 1\ncheckpoint\nunmap 0 1\n\
                       checkpoint\nstore 1 2\n";

#[test]
fn a_sound_scheme_is_recovered_from_every_crash() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("program.txt");
    fs::write(&path, PROGRAM).unwrap();

    let document = json(terrace().args(["crash", "--json"]).arg(&path), 0);

    let schemes = document["schemes"].as_array().unwrap();
    assert_eq!(schemes.len(), 5);
    for scheme in schemes {
        assert!(scheme["finding"].is_null(), "{scheme}");
        assert!(scheme["points"].as_u64().unwrap() > 5, "{scheme}");
        assert!(scheme["second_failures"].as_u64().unwrap() > 0, "{scheme}");
    }
}

#[test]
fn a_seeded_fault_gives_the_shortest_schedule_and_exit_code_1() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("program.txt");
    fs::write(&path, PROGRAM).unwrap();

    let output = terrace()
        .args(["crash", "--scheme", "rebuild-list", "--fault", "stale-mapping"])
        .arg(&path)
        .output()
        .unwrap();

    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("unmap 0 1"), "the step that leaves it stale:\n{text}");
    assert!(!text.contains("store 1 2"), "a step that is not needed:\n{text}");
    assert!(text.contains("lies in no area"), "{text}");
}

#[test]
fn a_step_that_is_not_understood_is_named_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("program.txt");
    fs::write(&path, "map 0 2\nunmapp 0 1\n").unwrap();

    let output = terrace().arg("crash").arg(&path).output().unwrap();

    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains("program.txt:2: `unmapp 0 1` is no step"), "{text}");
}

#[test]
fn a_program_runs_under_a_scheme_and_says_what_it_cost() {
    let sim = |scheme: &[&str]| {
        let arguments = "sim --algorithm ycsb --size 2MiB --accesses 50000 --json";
        let output = terrace()
            .args(arguments.split(' '))
            .arg("--persist")
            .args(scheme)
            .output()
            .expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        value["report"].clone()
    };
    let (plain, ssp) = (sim(&["none"]), sim(&["ssp", "--interval", "1ms"]));
    assert_eq!(plain["checkpoints"], 0);
    assert!(ssp["checkpoints"].as_u64() > Some(0), "{ssp}");
    assert!(ssp["time"].as_f64() > plain["time"].as_f64());
    assert!(ssp["recovery"].as_f64() > Some(0.0));
}

#[test]
fn what_cannot_run_under_a_scheme_is_refused_by_name() {
    for (arguments, message) in [
        ("sim --persist ssp", "--persist: needs single accesses"),
        ("sim --persist ssp --algorithm ycsb --interval 1ns", "--interval"),
        ("sim --persist ssp --algorithm ycsb --memory ddr4-2400", "ddr4-2400"),
        ("sim --persist ssp --algorithm ycsb --memory nosuch.toml", "nosuch.toml"),
        ("reproduce kindle --memory ddr4-2400", "--memory: `ddr4-2400` needs"),
        ("reproduce kindle --memory nosuch.toml", "nosuch.toml"),
        ("reproduce kindle --largest 1MiB", "--largest: must be at least 64"),
    ] {
        let output = terrace().args(arguments.split(' ')).output().expect("runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {text}");
        assert!(text.contains(message), "{arguments}: {text}");
    }
}

/// A part of `reproduce kindle` alone, in a short form.
fn kindle(part: &str, arguments: &[&str]) -> Value {
    let command = ["reproduce", "kindle", "--json", "--only", part];
    json(terrace().args(command).args(arguments), 0)
}

#[test]
fn ssp_has_a_row_for_each_program_footprint_and_interval_and_a_picture() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("kindle.html");

    let document =
        kindle("ssp", &["--size", "4MiB", "--accesses", "5000", "--html", page.to_str().unwrap()]);

    let rows = document["ssp"].as_array().unwrap();
    assert_eq!(rows.len(), 3 * 2 * 3);
    assert!(document["rows"].as_array().unwrap().is_empty(), "one part alone");
    for row in rows {
        assert!(row["ours"].as_f64() > Some(1.0), "persistence is not free: {row}");
        assert!(row["published"].as_f64() > Some(1.0), "{row}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 2, "a picture a footprint");
    assert!(page.contains("Figure 5") && page.contains("YCSB 10 ms"));
    assert!(!page.contains("<script") && !page.contains("http"), "needs nothing else");
}

/// Figure 4a at its smallest, the strides, and recovery, with pictures. What the
/// artifact leaves out makes its schemes cheaper, and nothing else is left out.
#[test]
fn persistence_has_a_row_for_each_case_beside_what_was_shipped_and_published() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("kindle.html");

    let document = kindle("persistence", &["--largest", "64MiB", "--html", page.to_str().unwrap()]);

    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1 + 3, "sequential 64 MiB, and three strides");
    assert!(document["shapes"].as_array().unwrap().is_empty(), "they need the others");
    for row in rows {
        let of = |of: &str, scheme: usize, what: &str| row[of][scheme][what].as_f64().unwrap();
        let ratio = |scheme, what| of("shipped", scheme, what) / of("ours", scheme, what);
        // No undo log, no flush of what is unmapped, none of the bitmap: tables in
        // NVM are cheaper for it.
        assert!(ratio(0, "lines_written") < 0.99 && ratio(1, "lines_written") < 1.0, "{row}");
        assert!(ratio(0, "time") < 0.999, "{row}");
        // But not by much: the defects explain no shape. The list is searched all
        // the same, at other moments.
        assert!(ratio(0, "time") > 0.7 && (0.95..1.05).contains(&ratio(1, "time")), "{row}");
        assert_eq!(row["shipped"][0]["recovery"], 0, "what it leaves is not recovered");
        for scheme in 0..3 {
            assert!(row["ours"][scheme]["recovery"].as_f64() > Some(0.0), "{row}");
        }
    }
    let html = fs::read_to_string(page).unwrap();
    assert_eq!(html.matches("<svg").count(), 3, "4a, 4b, recovery; no case of Table 3");
}

/// Figure 6 in a form of so many accesses: rows for both footprints, and the
/// shapes that must hold.
fn hscc(arguments: &[&str]) -> Vec<Value> {
    let document = kindle("hscc", arguments);

    let rows = document["hscc"].as_array().unwrap().clone();
    assert_eq!(rows.len(), 2 * 3 * 3);
    let (folded, own) = rows.split_at(9);
    assert!(folded.iter().all(|row| row["folded"] == true));
    assert!(own.iter().all(|row| row["folded"] == false));
    for row in folded {
        assert!(
            row["pages"].as_u64() > Some(0) && row["unflushed_pages"].as_u64() > Some(0),
            "{row}"
        );
        assert!(row["copy"].as_f64() > Some(90.0) && row["copy"].as_f64() < Some(100.0), "{row}");
        assert!(row["time"].as_f64() > Some(1.0), "moving pages is not free: {row}");
        // Each page is copied by 64 flushes of 28 ns more cheaply: a run that flushed
        // in both columns, or in neither, or was charged for something else, would
        // differ by another number.
        let copy = |which: usize| row["page_copy"][which].as_f64().unwrap();
        assert!((copy(0) - copy(1) - 64.0 * 28.0).abs() < 2.0, "{row}");
        // And that is what the run pays for each page that it moves; so where no
        // fewer pages move, and flushes are left out, no time is added.
        let fewer = row["unflushed_pages"].as_u64() <= row["pages"].as_u64();
        assert!(!fewer || row["unflushed"].as_f64() < row["time"].as_f64(), "{row}");
    }
    rows
}

#[test]
fn hscc_moves_pages_and_the_copy_is_nearly_all_of_it() {
    hscc(&["--size", "4MiB", "--accesses", "120000"]);
}

#[test]
#[ignore = "takes a minute; `make test-long` runs it"]
fn hscc_moves_fewer_pages_the_higher_the_threshold() {
    let rows = hscc(&["--size", "4MiB", "--accesses", "300000"]);

    let ycsb: Vec<u64> = rows[6..9].iter().map(|row| row["pages"].as_u64().unwrap()).collect();
    assert!(ycsb[0] > ycsb[1] && ycsb[1] > ycsb[2], "{ycsb:?}");
}

/// Every scheme and every policy on every memory, with pictures, in a form of so
/// many accesses.
fn beyond(size: &str, accesses: &str, largest: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("beyond.html");
    let html = page.to_str().unwrap();
    let sizes = ["--size", size, "--accesses", accesses, "--largest", largest];

    let document = kindle("beyond", &[&sizes[..], &["--html", html]].concat());

    let schemes = document["schemes"].as_array().unwrap();
    assert_eq!(schemes.len(), 4 * 3 * 6);
    for row in schemes {
        let wear = &row["run"]["wear"];
        let lines = wear["histogram"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap());
        assert_eq!(lines.sum::<u64>(), wear["lines"].as_u64().unwrap(), "{row}");
        // Its log is written as data are stored; others may never leave the caches.
        let writes = row["run"]["scheme"] == "softwrap";
        assert!(!writes || row["run"]["energy"]["nvm_writes"].as_f64() > Some(0.0), "{row}");
    }
    let years = |memory: &str| {
        let row = |row: &&Value| row["memory"] == memory && row["run"]["scheme"] == "softwrap";
        schemes.iter().find(row).unwrap()["run"]["wear"]["years_levelled"].as_f64()
    };
    assert!(years("stt-ram") > years("kindle"), "10^15 writes and 10^8");
    let policies = document["policies"].as_array().unwrap();
    for policy in ["oracle", "hscc", "hemem", "all-dram"] {
        assert_eq!(
            policies.iter().filter(|row| row["policy"] == policy).count(),
            4 * 3,
            "{policy}"
        );
    }
    let html = fs::read_to_string(page).unwrap();
    // Allocation; and of each program time, energy and wear of schemes, and policies.
    assert_eq!(html.matches("<svg").count(), 1 + 3 * 4);
    assert!(html.contains("Beyond: wear of ycsb") && html.contains("Beyond: energy of sssp"));
    document
}

#[test]
fn beyond_has_every_scheme_and_every_policy_on_every_memory() {
    let document = beyond("1MiB", "4000", "64MiB");

    let rows = document["allocation"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "one size on each memory");
    for row in rows {
        let time = |scheme: usize| row["runs"][scheme]["time"].as_f64().unwrap();
        assert!(time(1) > 2.0 * time(0), "the list is searched for every page: {row}");
    }
}

#[test]
#[ignore = "takes a minute; `make test-long` runs it"]
fn beyond_at_a_larger_size() {
    let document = beyond("4MiB", "5000", "512MiB");

    // Figure 4a on every memory: the list's time grows out of proportion everywhere.
    let rows = document["allocation"].as_array().unwrap();
    assert_eq!(rows.len(), 4 * 4);
    for rows in rows.chunks(4) {
        let time = |row: usize, scheme: usize| rows[row]["runs"][scheme]["time"].as_f64().unwrap();
        assert!(time(3, 1) > 16.0 * time(0, 1), "{}", rows[3]);
        assert!(time(3, 0) < 9.0 * time(0, 0), "{}", rows[3]);
        assert!(rows[3]["runs"][2]["recovery"].as_f64() > Some(0.0), "{}", rows[3]);
    }
}
