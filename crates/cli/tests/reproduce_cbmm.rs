//! `terrace reproduce cbmm`, its short form with one program.

use std::fs;
use std::path::Path;

mod common;

use common::{json, terrace};

/// The document's table for some options beside `--quick --json`.
fn quick(options: &[&str]) -> serde_json::Value {
    let command = terrace().args(["reproduce", "cbmm", "--quick", "--json"]).args(options);
    json(command, 0)["table"].clone()
}

/// Every figure of a fixed seed. `SNAPSHOTS=overwrite` writes the file anew: look at the
/// difference before it is committed. Curves and profiles are long, and follow from the rest.
#[test]
fn the_short_form_gives_the_figures_that_it_gave() {
    let mut table = quick(&["--only", "mcf", "--seed", "1"]);
    for run in table["runs"].as_array_mut().expect("runs") {
        run.as_object_mut().expect("a run").remove("tail");
    }
    for program in table["programs"].as_array_mut().expect("programs") {
        program.as_object_mut().expect("a program").remove("profile");
    }
    let found = serde_json::to_string_pretty(&table).expect("it is JSON") + "\n";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/reproduce-cbmm-mcf.json");
    if std::env::var_os("SNAPSHOTS").is_some_and(|value| value == "overwrite") {
        fs::create_dir_all(file.parent().expect("a directory")).expect("it can be made");
        fs::write(&file, &found).expect("it can be written");
    }
    let expected = fs::read_to_string(&file).unwrap_or_default();
    let line = found.lines().zip(expected.lines()).position(|(a, b)| a != b);
    assert!(found == expected, "{} differs, first in line {line:?}", file.display());
}

/// A recording has a table of its own beside the paper's programs, the page has pictures, and what
/// the estimator decided for each of them can be explained.
#[test]
fn a_recording_is_run_under_every_policy() {
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("small.trace");
    let page = directory.path().join("cbmm.html");
    // An importer makes a trace of what lackey would print: stores to 8 MiB, page by page.
    let mut text = String::from("I  0400d7d4,8\n");
    for round in 0..2u64 {
        for at in 0..2048u64 {
            text += &format!("I  0400d7d4,8\n S {:08x},8\n", 0x1000_0000 + at * 4096 + round * 64);
        }
    }
    let lackey = directory.path().join("small.lackey");
    fs::write(&lackey, text).expect("it can be written");
    terrace().args(["convert", "--from", "lackey"]).arg(&lackey).arg(&trace).assert().success();
    let given = format!("small={}", trace.display());
    let html = page.display().to_string();

    // Costs that were measured, on another machine: zeroing takes no time to speak of.
    let costs = directory.path().join("mm.toml");
    let text =
        "mm-costs = 1\nclock = \"2GHz\"\n[machine]\nkernel = \"0.1\"\n[cycles]\nzero_huge = 7\n";
    fs::write(&costs, text).expect("it can be written");
    let costs = costs.display().to_string();

    let decisions = directory.path().join("decisions");
    let record = decisions.display().to_string();
    let others = ["--costs", &costs, "--html", &html, "--record", &record, "--hold-out", "16"];
    let table = quick(&[&["--only", "mcf", "--trace", &given][..], &others].concat());

    let zeroing = table["costs"].as_array().expect("costs").iter();
    let zeroing = zeroing.clone().find(|cost| cost["name"] == "zero_huge").expect("its cost");
    assert_eq!(zeroing["value"], 7, "{zeroing}");
    assert!(zeroing["source"].as_str().expect("a source").contains("calibrate mm"), "{zeroing}");

    let runs = table["runs"].as_array().expect("runs");
    let small: Vec<_> = runs.iter().filter(|run| run["program"] == "small").collect();
    assert_eq!(small.len(), 3 * 9, "states of memory and policies");
    for run in &small {
        let base = run["policy"] == "never";
        let faults = run["soft"]["count"].as_u64().expect("a number");
        assert!(if base { faults == 2048 } else { faults <= 2048 }, "{run}");
    }
    // What was predicted stands beside what came of it, and deciding costs something.
    let ours = runs.iter().find(|run| run["program"] == "mcf" && run["policy"] == "terrace");
    let ours = ours.expect("a run of ours");
    assert!(ours["deciding"].as_u64() > Some(0), "{ours}");
    let classes = ours["books"]["classes"].as_array().expect("classes");
    let touches =
        classes.iter().find(|book| book["class"] == "first-touch").expect("first touches");
    assert!(touches["account"]["held_out"].as_u64() > Some(0), "{touches}");
    assert!(touches["account"]["realised_benefit"].as_u64() > Some(0), "{touches}");
    let page = fs::read_to_string(page).expect("the page");
    assert!(page.contains("soft faults of small") && page.contains("<svg"));

    let why = |arguments: &[&str]| terrace().arg("why").arg(&decisions).args(arguments);
    let last = |process: &str, class: &str| {
        let wanted = ["--process", process, "--class", class, "--last", "1", "--json"];
        let answer = json(why(&wanted), 0);
        assert_eq!(answer["decisions"].as_array().map(Vec::len), Some(1), "{process} {class}");
        answer
    };
    // Three states of memory for each of both programs.
    for process in ["1", "2", "3"] {
        let answer = last(process, "first-touch");
        let programs = answer["header"]["program"].as_array().expect("programs");
        assert_eq!(programs.len(), 2 * 3, "{programs:?}");
        assert_eq!(programs[1], "2=mcf (fragmented, released)");
        assert_eq!(programs[5], "6=small (fragmented, unsplit)");
    }
    // Fragmented memory has too few free blocks, so they are made ahead.
    let compact = &last("2", "compact")["decisions"][0]["decision"];
    assert!(compact["action"].to_string().contains("within"), "{compact}");
    let text = why(&["--process", "2", "--class", "compact", "--last", "1"]).assert().success();
    let text = String::from_utf8_lossy(&text.get_output().stdout).into_owned();
    for part in ["policy terrace", "process 2", "compact ", " wanted, for ", "rule: "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let unknown = common::refused(why(&["--process", "7"]));
    assert!(unknown.contains("there is no process 7"), "{unknown}");
}

/// Whoever asks for one of Linux's settings gets it beside those that it is compared with, and no
/// judgement of what was not run.
#[test]
fn a_choice_of_policies_is_run_beside_never_and_always() {
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("small.trace");
    let lackey = directory.path().join("small.lackey");
    fs::write(&lackey, "I  0400d7d4,8\n S 10000000,8\n S 10001000,8\n").expect("written");
    terrace().args(["convert", "--from", "lackey"]).arg(&lackey).arg(&trace).assert().success();
    let given = format!("small={}", trace.display());
    let chosen = ["--only", "mcf", "--trace", &given, "--policies", "madvise,defer+madvise"];
    let table = quick(&chosen);
    let runs = table["runs"].as_array().expect("runs").iter();
    let of_small = runs.filter(|run| run["program"] == "small" && run["fragmentation"] == "none");
    let policies: Vec<_> = of_small.filter_map(|run| run["policy"].as_str()).collect();
    assert_eq!(policies, ["never", "always", "madvise", "defer+madvise"]);
    assert_eq!(table["claims"].as_array().map(Vec::len), Some(0));
}

/// Costs of another kernel are used as they are, and whoever reads the table has to know that.
#[test]
fn costs_of_another_machine_are_told_with_what_differs() {
    let directory = tempfile::tempdir().expect("a directory");
    let costs = directory.path().join("mm.toml");
    let text = "mm-costs = 1\nclock = \"2GHz\"\n[machine]\nkernel = \"0.1\"\n[cycles]\nfault = 7\n";
    fs::write(&costs, text).expect("it can be written");
    // It ends before anything is simulated.
    let command = terrace().args(["reproduce", "cbmm", "--trace", "a=/nowhere.trace", "--costs"]);
    let output = command.arg(&costs).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("mm.toml was measured on another machine or kernel ("), "{error}");
    assert!(error.contains("kernel `0.1`, here `"), "{error}");
}

/// Nobody else's decisions are recorded: the file would have a header alone, and whoever reads it would
/// take the run for one that was cut off.
#[test]
fn a_record_of_decisions_that_nobody_takes_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let record = directory.path().join("decisions");
    fs::write(&record, "another run's").expect("it can be written");
    let command = terrace();
    let command =
        command.args(["reproduce", "cbmm", "--quick", "--only", "mcf", "--policies", "never,cbmm"]);
    let error = common::refused(command.arg("--record").arg(&record));
    assert!(error.contains("--record") && error.contains("`terrace`"), "{error}");
    assert_eq!(fs::read_to_string(&record).expect("it is there"), "another run's");
}

#[test]
fn what_cannot_be_run_is_named() {
    for (options, named) in [
        (["--trace", "nothing"], "NAME=FILE"),
        (["--trace", "a=/nowhere.trace"], "/nowhere.trace"),
        (["--only", "firefox"], "firefox"),
        (["--policies", "sometimes"], "defer+madvise"),
    ] {
        let output = terrace().args(["reproduce", "cbmm"]).args(options).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(named), "{error}");
    }
}
