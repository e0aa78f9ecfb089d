//! `terrace plan`: the command around the planner, whose answers are tested in
//! `crates/sim/tests/plan.rs`.

mod common;

use common::{json, refused, terrace};
use snapbox::cmd::Command;

fn small(machine: &str) -> Command {
    let command = terrace().args(["plan", "--machine", machine, "--algorithm", "gups"]);
    let command = command.args(["--size", "4MiB", "--accesses", "50000"]);
    // A laptop's slow memory brings pages in by itself.
    if machine == "laptop" { command } else { command.args(["--policies", ""]) }
}

#[test]
fn a_plan_gives_its_curve_as_json_and_as_a_picture() {
    let dir = tempfile::tempdir().unwrap();
    let html = dir.path().join("plan.html");
    let command = small("laptop").args(["--json", "--slowdown", "100", "--html"]).arg(&html);

    let plan = json(command, 0)["plan"].clone();

    assert_eq!(plan["slow_tier"], "lz4");
    assert_eq!(plan["page_size"], 4096, "sizes are bytes");
    let part = &plan["parts"][0];
    assert_eq!(part["how"]["how"].as_str().or(part["how"].as_str()), Some("lru"));
    let points = part["points"].as_array().unwrap();
    let slowdown = |i: usize| points[i]["slowdown"].as_f64().unwrap();
    assert!(slowdown(0) > 1.0 && slowdown(points.len() - 1) == 0.0);
    let smallest = part["answers"]["smallest"]["slowdown"].as_f64().unwrap();
    assert!(smallest <= 1.0, "{smallest}");
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("Slowdown by fast memory") && page.contains("<svg"));
    assert!(!page.contains("http://") && !page.contains("https://"), "a page by itself");
}

#[test]
fn a_plan_names_its_memories_and_what_is_wrong_with_the_question() {
    let output = small("cxl").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("dram as fast memory, cxl as slow memory"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("best placement")), "{text}");

    let message = |arguments: &[&str]| refused(small("cxl").args(arguments));
    assert!(message(&["--tier", "tape"]).contains("`tape`"));
    assert!(message(&["--price", "dram=1"]).contains("both memories"));
    assert!(message(&["--price", "dram=1,tape=2"]).contains("`dram` and `cxl`"));
    assert!(message(&["--budget", "5"]).contains("budget"));
    assert!(message(&["--slowdown=-3"]).contains("slowdown"));
    assert!(message(&["--set", "hot"]).contains("name=value"));
    assert!(message(&["--set", "colour=red"]).contains("`colour`"));
    let nothing = refused(terrace().args(["plan", "--machine", "cxl"]));
    assert!(nothing.contains("--trace"), "{nothing}");
}

#[test]
fn a_simulated_run_is_drawn_as_a_page_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let html = dir.path().join("run.html");
    let command = terrace().args(["sim", "--json", "--machine", "cxl", "--algorithm", "gups"]);
    let command = command.args(["--size", "8MiB", "--accesses", "300000", "--fast", "4MiB"]);
    json(command.args(["--policy", "first-touch", "--page-size", "4KiB", "--html"]).arg(&html), 0);

    let page = std::fs::read_to_string(&html).unwrap();
    for part in ["Over time", "Where and when", "Latency of reads", "Where the cycles went"] {
        assert!(page.contains(part), "no {part}");
    }
    assert!(page.contains("data:image/png;base64,") && !page.contains("https://"));
    let refused = refused(terrace().args(["sim", "--html", "/tmp/x.html"]));
    assert!(refused.contains("--html: has no effect without a trace"), "{refused}");
}
