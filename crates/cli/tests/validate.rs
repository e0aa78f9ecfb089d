//! `terrace validate`: what it compares is tested in the libraries; here that
//! parts can be chosen, and that what is printed says what was judged.

mod common;

use common::{json, refused, terrace};

#[test]
fn parts_are_run_when_they_are_asked_for_and_judged() {
    let document = json(terrace().args(["validate", "--json", "--only", "4"]), 0);

    assert_eq!(document["kind"], "terrace.validate");
    assert_eq!(document["failed"], 0);
    let parts = document["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 1);
    let lines = parts[0]["lines"].as_array().unwrap();
    assert!(lines.len() >= 6);
    for line in lines {
        assert!(line["ours"].as_f64().unwrap() > 0.0 && line["holds"].as_bool().unwrap(), "{line}");
    }

    let output = terrace().args(["validate", "--only", "4"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("reference: ChampSim") && text.contains("differs because: "), "{text}");
    assert!(text.ends_with("comparisons, 0 failed\n"), "{text}");
}

#[test]
fn there_are_six_parts() {
    assert!(refused(terrace().args(["validate", "--only", "7"])).contains('7'));
}
