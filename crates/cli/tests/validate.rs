//! `terrace validate`: what it compares is tested in the libraries; here that
//! parts can be chosen, and that what is printed says what was judged.

mod common;

use common::{json, refused, terrace};

#[test]
fn parts_are_run_when_they_are_asked_for_and_judged() {
    let document = json(terrace().args(["validate", "--json", "--only", "4"]), 0);

    assert_eq!(document["kind"], "terrace.validate");
    assert_eq!(document["fails"], 0);
    assert_eq!(document["differs"], 4);
    let parts = document["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 1);
    let lines = parts[0]["lines"].as_array().unwrap();
    assert!(lines.len() >= 6);
    for line in lines {
        let state = line["state"].as_str().unwrap();
        assert!(line["ours"].as_f64().unwrap() > 0.0, "{line}");
        assert!(state == "holds" || state == "differs", "{line}");
    }

    let output = terrace().args(["validate", "--only", "4"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("reference: ChampSim") && text.contains("differs because: "), "{text}");
    assert!(text.ends_with("4 differ as known, 0 check arithmetic only\n"), "{text}");
}

/// Checks of arithmetic are no agreement with a device and must not be counted as one.
#[test]
fn checks_of_arithmetic_are_counted_apart() {
    let document = json(terrace().args(["validate", "--json", "--only", "5"]), 0);

    assert_eq!((&document["fails"], &document["differs"]), (&0.into(), &2.into()));
    assert_eq!((&document["holds"], &document["arithmetic"]), (&7.into(), &16.into()));
    // Of hardware there are Optane's writes of 4 KiB, two mixes over CXL and two numbers of
    // writers: stand-ins that were made by the same counters are no measurement of their own.
    let by_reference = document["by_reference"].as_array().unwrap();
    let of = |reference: &str| by_reference.iter().find(|row| row["reference"] == reference);
    assert_eq!(of("hardware").unwrap()["holds"], 5, "{document}");
    let lines = document["parts"][0]["lines"].as_array().unwrap();
    let state = |program: &str| {
        let is_it = |line: &&serde_json::Value| {
            line["what"].as_str().unwrap().starts_with(&format!("{program}: run time in huge"))
        };
        lines.iter().find(is_it).unwrap()["state"].clone()
    };
    assert_eq!((state("canneal"), state("mcf")), ("arithmetic".into(), "arithmetic".into()));
    assert_eq!(state("xz"), "differs");
}

#[test]
fn there_are_ten_parts() {
    assert!(refused(terrace().args(["validate", "--only", "11"])).contains("11"));
}
