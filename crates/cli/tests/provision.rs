//! `terrace provision` on machines that were written down, and on this one.
//!
//! Each directory of `tests/provision` holds the procfs and sysfs files of a machine, and what the
//! plan says about it. `SNAPSHOTS=overwrite` writes that down anew.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{json, terrace};

fn machine(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/provision").join(name)
}

#[test]
fn a_node_that_is_short_is_given_the_nearest_blocks_and_traps_are_told() {
    let machine = machine("01-slow-node");

    let assert = terrace().args(["provision", "plan", "--root"]).arg(&machine).assert().success();

    assert.stdout_eq(snapbox::Data::read_from(&machine.join("expected.txt"), None));
}

#[test]
fn json_has_the_blocks_and_the_reason() {
    let plan = json(
        terrace().args(["provision", "plan", "--json", "--root"]).arg(machine("01-slow-node")),
        0,
    );

    assert_eq!(plan["kind"], "terrace.provision.plan");
    assert_eq!(plan["steps"][0]["change"]["integrate"], 128 << 20);
    assert_eq!(plan["steps"][0]["blocks"], serde_json::json!([41]));
    assert_eq!(plan["advice"].as_array().unwrap().len(), 4);
}

#[test]
fn a_machine_without_memory_hotplug_is_not_supported() {
    let nothing = tempfile::tempdir().unwrap();

    let assert = terrace().args(["provision", "plan", "--root"]).arg(nothing.path()).assert();

    assert.code(3).stderr_eq("terrace: memory that comes and goes: [..]block_size_bytes: [..]\n");
}

/// Two nodes for 100 s; the demand of the first rises from 1 to 5 GiB and falls again.
fn recorded(path: &Path) {
    let mut text =
        String::from("{\"format\":\"terrace.zoneinfo\",\"version\":1,\"block\":134217728}\n");
    let gib = 1_u64 << 30;
    for second in 1..=100_u64 {
        let used = if (20..60).contains(&second) { 5 * gib } else { gib };
        let node = |node: u64, used: u64| {
            format!(
                "{{\"node\":{node},\"memory\":{{\"managed\":{},\"free\":{},\"watermarks\":\
                 {{\"min\":1,\"low\":2,\"high\":3}}}}}}",
                8 * gib,
                8 * gib - used
            )
        };
        text += &format!(
            "{{\"at\":{}000000000,\"nodes\":[{},{}]}}\n",
            second,
            node(0, used),
            node(1, gib)
        );
    }
    fs::write(path, text).unwrap();
}

#[test]
fn a_recorded_demand_is_met_from_the_near_node_and_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("day.zones");
    recorded(&file);
    let replay = ["provision", "replay", "--json", "--decisions", "--dram", "4GiB"];

    let document = json(terrace().args(replay).arg(&file), 0);

    let resolved = &document["policies"][0];
    assert_eq!(resolved["policy"], "resolved");
    assert_eq!(resolved["unmet"], 0);
    let decisions = resolved["decisions"].as_array().unwrap();
    assert!(decisions.iter().any(|decision| decision["change"]["integrate"].is_u64()));
    // What the first node asks for all at once falls to the other node, for a second.
    let mut of_first = decisions.iter().filter(|decision| decision["node"] == 0);
    let removed = of_first.find(|decision| decision["change"]["remove"].is_u64()).unwrap();
    assert!(removed["at"].as_u64().unwrap() >= 50_000_000_000, "30 s later: {removed}");

    let check = terrace().arg("check").arg(&file).assert().success();
    check.stdout_eq("[..]day.zones: 100 looks at the nodes' memory in 99.0 s\n");
}

#[test]
fn a_recording_that_is_wrong_is_named_with_line_and_field() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("day.zones");
    recorded(&file);
    let text = fs::read_to_string(&file).unwrap();
    for (from, to, message) in [
        ("\"version\":1", "\"version\":7", "line 1: field `version`: 7 is not 1"),
        (
            "\"at\":5000000000",
            "\"at\":4000000000",
            "line 6: field `at`: 4.00 s is not after 4.00 s",
        ),
    ] {
        fs::write(&file, text.replacen(from, to, 1)).unwrap();
        for verb in [&["provision", "replay"][..], &["check"]] {
            let output = terrace().args(verb).arg(&file).output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{stderr}");
            assert!(stderr.contains(message), "{stderr}");
        }
    }
    fs::write(&file, &text[..text.len() - 9]).unwrap();
    let replay = |partial: &[&str]| {
        let command = terrace().args(["provision", "replay"]).args(partial).arg(&file);
        command.output().unwrap().status.code()
    };
    assert_eq!((replay(&[]), replay(&["--partial"])), (Some(2), Some(0)));
}

#[test]
fn values_that_cannot_work_are_refused_by_name() {
    for (line, message) in [
        (&["record", "-o", "x", "--every", "0"][..], "--every: the least is 1 ms"),
        (&["record", "-o", "x", "--for", "1s", "--every", "2s"], "--for: is shorter than --every"),
        (&["replay", "--slow", "0", "x"], "--slow: a node has more than none"),
        (&["replay", "nowhere"], "nowhere: No such file"),
        (&["plan", "--policy", "best"], "invalid value 'best' for '--policy <POLICY>'"),
    ] {
        let output = terrace().arg("provision").args(line).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line:?}: {stderr}");
        assert!(stderr.contains(message), "{line:?}: {stderr}");
        assert!(!Path::new("x").exists(), "{line:?}");
    }
}

#[test]
fn this_machine_is_recorded() {
    if !Path::new("/sys/devices/system/memory/block_size_bytes").exists() {
        terrace_shown::is_missing("memory blocks in sysfs");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("now.zones");
    let record = ["provision", "record", "--json", "--every", "20ms", "--for", "100ms", "-o"];

    let document = json(terrace().args(record).arg(&file), 0);

    assert!(document["samples"].as_u64().unwrap() >= 2, "{document}");
    terrace().arg("check").arg(&file).assert().success();
}
