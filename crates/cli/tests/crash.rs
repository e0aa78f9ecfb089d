//! `terrace crash`: a sound scheme gives exit code 0, a seeded fault a schedule
//! and exit code 1, a wrong program its line.

mod common;

use std::fs;

use common::{json, terrace};

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
    let sim = |scheme: &str| {
        let arguments = "sim --algorithm ycsb --size 2MiB --accesses 50000 --interval 1ms --json";
        let output = terrace()
            .args(arguments.split(' '))
            .args(["--persist", scheme])
            .output()
            .expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        value["report"].clone()
    };
    let (plain, ssp) = (sim("none"), sim("ssp"));
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
    ] {
        let output = terrace().args(arguments.split(' ')).output().expect("runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {text}");
        assert!(text.contains(message), "{arguments}: {text}");
    }
}

/// A part of `reproduce kindle` alone, in a short form.
fn kindle(part: &str, arguments: &[&str]) -> serde_json::Value {
    let command = ["reproduce", "kindle", "--json", "--size", "4MiB", "--only", part];
    json(terrace().args(command).args(arguments), 0)
}

#[test]
fn ssp_has_a_row_for_each_program_footprint_and_interval_and_a_picture() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("kindle.html");

    let document = kindle("ssp", &["--accesses", "5000", "--html", page.to_str().unwrap()]);

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

#[test]
#[ignore = "takes a minute; `make test-long` runs it"]
fn hscc_moves_pages_and_the_copy_is_nearly_all_of_it() {
    let document = kindle("hscc", &["--accesses", "300000"]);

    let rows = document["hscc"].as_array().unwrap();
    assert_eq!(rows.len(), 3 * 3);
    for row in rows {
        assert!(row["copy"].as_f64() > Some(90.0) && row["copy"].as_f64() < Some(100.0), "{row}");
        assert!(row["time"].as_f64() > Some(1.0), "moving pages is not free: {row}");
        assert!(row["unflushed"].as_f64() > Some(1.0), "{row}");
    }
    let ycsb: Vec<u64> = rows[6..].iter().map(|row| row["pages"].as_u64().unwrap()).collect();
    assert!(ycsb[0] > ycsb[1] && ycsb[1] > ycsb[2], "{ycsb:?}");
}

#[test]
#[ignore = "takes a minute; `make test-long` runs it"]
fn beyond_has_every_scheme_and_every_policy_on_every_memory() {
    let document = kindle("beyond", &["--accesses", "5000"]);

    let schemes = document["schemes"].as_array().unwrap();
    assert_eq!(schemes.len(), 4 * 3 * 6);
    let years = |memory: &str| {
        let row = |row: &&serde_json::Value| {
            row["memory"] == memory && row["run"]["scheme"] == "softwrap"
        };
        schemes.iter().find(row).unwrap()["run"]["wear"]["years_levelled"].as_f64()
    };
    assert!(years("stt-ram") > years("kindle"), "10^15 writes and 10^8");
    let policies = document["policies"].as_array().unwrap();
    for policy in ["oracle", "hscc", "hemem", "all-dram"] {
        assert!(policies.iter().any(|row| row["policy"] == policy), "{policy}");
    }
}
