//! `terrace sim`, `compare`, `reproduce` and `why`, on small simulations.

mod common;

use std::fs;
use std::path::Path;

use common::{json, refused, terrace};
use snapbox::cmd::Command;

/// A simulation that takes a fraction of a second.
const SMALL: [&str; 14] = [
    "--working-set",
    "192GiB",
    "--hot",
    "16GiB",
    "--machine",
    "cxl",
    "--threads",
    "4",
    "--warm-up",
    "5s",
    "--duration",
    "2s",
    "--scale",
    "1024",
];

fn sim(policy: &str) -> Command {
    terrace().args(["sim", "--policy", policy]).args(SMALL)
}

/// The only figure that differs from run to run is the computer's own speed.
fn without_host_speed(mut document: serde_json::Value) -> serde_json::Value {
    document["report"]["host_speed"] = serde_json::Value::Null;
    document
}

#[test]
fn a_simulation_repeats_exactly_and_differs_by_seed() {
    let once = without_host_speed(json(sim("hemem").args(["--json", "--seed", "7"]), 0));
    let again = without_host_speed(json(sim("hemem").args(["--json", "--seed", "7"]), 0));
    let other = without_host_speed(json(sim("hemem").args(["--json", "--seed", "8"]), 0));

    assert_eq!(once["kind"], "terrace.sim");
    assert_eq!(once, again);
    assert_ne!(once["report"]["runs"], other["report"]["runs"]);
}

#[test]
fn what_compare_says_of_a_policy_is_what_sim_says() {
    let alone = without_host_speed(json(sim("hemem").arg("--json"), 0));

    let compare = terrace().args(["compare", "--json", "--policies", "all-dram,hemem"]);
    let table = json(compare.args(SMALL), 0);

    let reports = table["reports"].as_array().unwrap();
    assert_eq!(reports.len(), 2);
    assert_eq!(reports[0]["policy"], "all-dram");
    assert_eq!(reports[1]["policy"], "hemem");
    assert_eq!(reports[1]["throughput"], alone["report"]["throughput"]);
    assert_eq!(reports[1]["migrated"], alone["report"]["migrated"]);
}

#[test]
fn compare_shows_every_policy_by_default_and_says_what_is_impossible() {
    let output = terrace().arg("compare").args(SMALL).output().unwrap();

    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "progress where there is no terminal: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for policy in ["first-touch", "hemem", "all-dram"] {
        assert!(text.lines().any(|line| line.starts_with(policy)), "no {policy} in:\n{text}");
    }
    // The working set is larger than the slow tier, and so than Memory Mode's memory.
    for policy in ["memory-mode", "all-slow"] {
        let expected = format!("\nwithout {policy}: the workload needs 192 GiB");
        assert!(text.contains(&expected), "{text}");
    }
    let by_name = terrace().args(["compare", "--policies", "all-slow"]).args(SMALL);
    assert!(refused(by_name).contains("192 GiB"));
}

#[test]
fn a_machine_by_file_is_the_machine_by_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/cxl.toml");
    let mut by_file: Vec<String> = SMALL.iter().map(ToString::to_string).collect();
    by_file[5] = root.display().to_string();

    let file = json(terrace().args(["sim", "--json"]).args(by_file), 0);
    let name = json(sim("hemem").arg("--json"), 0);

    assert_eq!(without_host_speed(file), without_host_speed(name));
}

#[test]
fn parameters_that_make_no_sense_are_refused_with_their_names() {
    let message = |arguments: &[&str]| refused(terrace().arg("sim").args(arguments));

    let unknown = message(&["--machine", "abacus"]);
    assert!(unknown.contains("`abacus`") && unknown.contains("`cxl`"), "{unknown}");
    assert!(message(&["--hot", "600GiB"]).contains("hot set"), "hot set above working set");
    assert!(message(&["--threads", "0"]).contains("threads"));
    assert!(message(&["--duration", "0"]).contains("--duration"));
    assert!(message(&["--working-set", "64TiB", "--hot", "16GiB"]).contains("optane"));
}

#[test]
fn a_truncated_machine_file_is_refused_as_check_does() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cut.toml");
    let whole = include_str!("../../../machines/cxl.toml");
    fs::write(&file, &whole[..whole.len() / 3]).unwrap();

    let by_sim = refused(terrace().args(["sim", "--machine"]).arg(&file));
    let by_check = refused(terrace().arg("check").arg(&file));

    assert_eq!(by_sim, by_check);
}

#[test]
fn decisions_of_a_simulation_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("records");
    let output = sim("hemem").arg("--record").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let why = |arguments: &[&str]| terrace().arg("why").arg(&file).args(arguments);

    let all = json(why(&["--json"]), 0);
    let decisions = all["decisions"].as_array().unwrap();
    assert!(!decisions.is_empty(), "the hot set moved without a decision");
    assert_eq!(all["decisions_recorded"].as_u64(), Some(decisions.len() as u64));

    // Each filter finds what the whole list holds.
    let op = decisions[0]["decision"]["op"].as_u64().unwrap();
    let one = json(why(&["--json", "--op", &op.to_string()]), 0);
    assert_eq!(one["decisions"].as_array().unwrap(), &decisions[..1]);
    let last = json(why(&["--json", "--last", "2"]), 0);
    assert_eq!(last["decisions"].as_array().unwrap(), &decisions[decisions.len() - 2..]);
    let none = json(why(&["--json", "--page", "77:1"]), 0);
    assert_eq!(none["decisions"].as_array().unwrap().len(), 0);

    let text = String::from_utf8(why(&["--last", "1"]).output().unwrap().stdout).unwrap();
    assert!(text.contains("evidence: ") && text.contains("cycles"), "{text}");
}

#[test]
fn the_reproduction_prints_each_claim_beside_what_was_measured() {
    // One size instead of fifteen, and coarser: what the numbers are is tested elsewhere.
    let arguments = ["reproduce", "hemem", "--json", "--hot", "64GiB", "--scale", "32768"];

    let document = json(terrace().args(arguments), 0);

    let rows = document["table"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["hot_set"].as_u64(), Some(64 << 30));
    let claims = document["table"]["claims"].as_array().unwrap();
    assert!(claims.len() >= 3, "{claims:?}");
    for claim in claims {
        assert!(claim["paper"].is_string() && claim["measured"].is_string(), "{claim}");
    }
}
