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
    let hot = message(&["--hot", "600GiB"]);
    assert!(hot.starts_with("--hot: ") && hot.contains("the working set of 512 GiB"), "{hot}");
    assert!(message(&["--threads", "0"]).starts_with("--threads: must be at least 1"));
    let algorithm =
        |arguments: &[&str]| message(&[&["--algorithm", "gups"][..], arguments].concat());
    assert!(algorithm(&["--accesses", "0"]).starts_with("--accesses: must be above zero"));
    assert!(algorithm(&["--set", "hot=0"]).starts_with("--set: hot: must be above zero"));
    assert!(algorithm(&["--size", "1KiB"]).starts_with("--size: must be at least 1 MiB"));
    assert!(message(&["--duration", "0"]).contains("--duration"));
    assert!(message(&["--working-set", "4TiB", "--hot", "16GiB"]).contains("optane"));
}

/// For what no simulated machine holds, no memory of this one is asked for: a command that asks
/// for too much of it is aborted.
#[test]
fn sizes_that_cannot_be_simulated_are_refused_with_their_options() {
    let dir = tempfile::tempdir().unwrap();
    let lackey = dir.path().join("t.lackey");
    fs::write(&lackey, "I  04016b80,3\n L 1000,8\n").unwrap();
    let lackey = lackey.to_str().unwrap();
    let out = dir.path().join("out");
    let out = out.to_str().unwrap();
    let most = "less than 16.0 TiB";
    for (line, option, why) in [
        (vec!["sim", "--trace", lackey, "--fast", "999TiB"], "--fast: ", most),
        (vec!["sim", "--kernel", "klocs", "--trace", lackey, "--fast", "999TiB"], "--fast: ", most),
        (vec!["sim", "--working-set", "999TiB"], "--working-set: ", most),
        (vec!["sim", "--algorithm", "btree", "--size", "999TiB"], "--size: ", most),
        (
            vec!["sim", "--algorithm", "gups", "--cores", "18446744073709551615"],
            "--cores: ",
            "1 to",
        ),
        (vec!["plan", "--algorithm", "chase", "--size", "999TiB"], "--size: ", most),
        (
            vec!["plan", "--trace", lackey, "--slowdown", "-5"],
            "--slowdown: ",
            "zero or more (is -5)",
        ),
        (vec!["compare", "--working-set", "999TiB"], "--working-set: ", most),
        (vec!["sweep", "-o", out, "fast=999TiB"], "fast: ", most),
        (vec!["sweep", "-o", out, "size=999TiB"], "size: ", most),
    ] {
        let message = refused(terrace().args(&line));
        assert!(message.contains(option) && message.contains(why), "{line:?}: {message}");
    }
}

/// A machine file is found by its name wherever the command is run: here in the current
/// directory, and in the user's configuration.
#[test]
fn a_machine_file_is_found_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (work, settings) = (dir.path().join("work"), dir.path().join("settings"));
    for place in [work.join("machines"), settings.join("terrace/machines")] {
        fs::create_dir_all(&place).unwrap();
    }
    let run = |name: &str| {
        terrace()
            .current_dir(&work)
            .env("XDG_CONFIG_HOME", &settings)
            .args(["--json", "sim", "--machine", name, "--algorithm", "stream", "--size", "1MiB"])
            .args(["--accesses", "1000"])
    };

    let missing = refused(run("mine"));
    for place in ["./machines/mine.toml", "settings/terrace/machines/mine.toml", "share/terrace"] {
        assert!(missing.contains(place), "{missing}");
    }

    let text = include_str!("../../../machines/cxl.toml");
    let file = settings.join("terrace/machines/mine.toml");
    fs::write(&file, text.replace("name = \"cxl\"", "name = \"settings\"")).unwrap();
    assert_eq!(json(run("mine"), 0)["report"]["machine"], "settings");
    let file = work.join("machines/mine.toml");
    fs::write(&file, text.replace("name = \"cxl\"", "name = \"work\"")).unwrap();
    assert_eq!(json(run("mine"), 0)["report"]["machine"], "work");
    // An output must not take the place of what is read, by whichever name that goes.
    let message = refused(run("mine").arg("--html").arg(&file));
    assert!(message.contains("--html") && message.contains("--machine"), "{message}");
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

    // Sizes are plain numbers, and lists have no empty places.
    for found in decisions {
        assert!(found["decision"]["page_size"].is_u64(), "{found}");
        for list in ["terms", "alternatives"] {
            let list = found["decision"][list].as_array().unwrap();
            assert!(list.iter().all(serde_json::Value::is_object), "{found}");
        }
    }

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

/// Each class of action that policies propose is explained from a run in which it was proposed.
/// Those of the pager itself are in `huge.rs` and `spill.rs`, contexts in `kloc.rs`; placing is
/// proposed by the simulator.
#[test]
fn each_class_of_action_is_explained_from_a_run() {
    for (policy, classes) in [
        ("hemem", &["exchange", "place"][..]),
        ("tpp", &["demote"]),
        ("autonuma", &["promote", "observe"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("records");
        let output = sim(policy).arg("--record").arg(&file).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        for class in classes {
            let why = terrace().arg("why").arg(&file).args(["--class", class, "--last", "1"]);
            let text = String::from_utf8(why.output().unwrap().stdout).unwrap();
            assert!(
                text.contains("rule: ") && text.contains("benefit"),
                "{policy} {class}: {text}"
            );
            // What has to be done leaves no choice.
            let compares = text.contains("\n    instead:  ") || text.contains("): FORCED ");
            assert!(compares, "{policy} {class}: {text}");
        }
    }
}

/// To advise changes nothing but what is said.
#[test]
fn what_would_be_refused_is_told_where_the_economist_is_to_advise() {
    let text = |mode: &str| {
        let output = sim("hemem").args(["--economist", mode]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let (shadow, advise) = (text("shadow"), text("advise"));
    assert!(!shadow.contains("advice"), "{shadow}");
    assert!(advise.contains("  advice  "), "{advise}");
    assert!(advise.contains("`--economist enforce` would have refused "), "{advise}");
    let moved = |text: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with("migrated "));
        line.unwrap_or_default().trim().to_owned()
    };
    assert!(!moved(&shadow).is_empty(), "{shadow}");
    assert_eq!(moved(&shadow), moved(&advise));
}

/// Each proposal is in one column: actions for which the run was too short were in none.
#[test]
fn what_was_proposed_is_the_sum_of_what_became_of_it() {
    let report = json(sim("hemem").arg("--json"), 0)["report"].clone();
    let accounts = report["accounts"].as_array().unwrap();
    assert!(!accounts.is_empty(), "{report}");
    for line in accounts {
        let columns = ["vetoed", "held_out", "completed", "aborted", "unfinished"];
        let ends: u64 = columns.iter().map(|column| line[*column].as_u64().expect(column)).sum();
        assert_eq!(line["proposed"].as_u64(), Some(ends), "{line}");
    }
    let program = ["--algorithm", "gups", "--size", "8MiB", "--accesses", "100000"];
    let single = terrace().args(["sim", "--machine", "cxl", "--policy", "hemem"]).args(program);
    for output in [sim("hemem").output().unwrap(), single.output().unwrap()] {
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("  aborted  unfinished  cost"), "{text}");
    }
}

/// Placing says of many pages what one of them is worth. That is a part of the time that there is: it was
/// more than the machine has, when the first pages were promised all accesses.
#[test]
fn new_memory_is_not_promised_more_than_the_machine_has() {
    let document = json(sim("hemem").arg("--json"), 0);
    let report = &document["report"];
    let accounts = report["accounts"].as_array().unwrap();
    let place = accounts.iter().find(|it| it["class"] == "place").expect("memory is placed");
    let of = |field: &str| place[field].as_f64().expect(field);
    // 32 cores at 2.1 GHz (machines/cxl.toml).
    let all = 32.0 * 2.1 * report["time"].as_f64().unwrap();
    assert!(of("predicted_benefit") > 0.0 && of("predicted_benefit") < all, "{place}, {all}");
    // Nobody looks what it brings.
    assert!(place["realised_benefit"].is_null() && place["realised_harm"].is_null(), "{place}");
    let moves = accounts.iter().find(|it| it["class"] == "exchange").expect("pages change places");
    assert!(moves["realised_benefit"].is_u64(), "{moves}");
    // That none was refused at first is in the same accounts.
    assert!(of("completed") > 1.0, "{place}");
}

/// Huge pages are split where a policy is told which of their base pages are used, in the
/// simulation of single accesses; sampling becomes denser when the hot memory has moved.
#[test]
fn splits_and_sampling_rates_are_explained_from_a_run() {
    let split = "--policy memtis --machine cxl --algorithm ycsb --page-size 2MiB --size 512MiB \
                 --fast 32MiB --accesses 25000000 --sample-period 1";
    let rate = "--policy arms --machine cxl --working-set 192GiB --hot 64GiB --threads 8 \
                --warm-up 120s --duration 10s --shift-at 120s --scale 16384";
    for (class, run, told) in [
        (
            "split",
            split,
            [
                "split 1:",
                "(SkewedUse)",
                "+ freed memory",
                "- more page walks",
                "instead:  demote to ",
            ],
        ),
        (
            "rate",
            rate,
            [
                "sample one in 5003 accesses",
                "(Observes)",
                "+ knowledge",
                "- remapping",
                "instead:  one in 2501 accesses: benefit ",
            ],
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("records");
        let words = run.split_whitespace();
        let output = terrace().arg("sim").args(words).arg("--record").arg(&file).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let why = terrace().arg("why").arg(&file).args(["--class", class]).output().unwrap();
        let text = String::from_utf8(why.stdout).unwrap();
        for part in told.iter().chain(&["rule: "]) {
            assert!(text.contains(part), "{class}, {part}: {text}");
        }
    }
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

/// A tier whose memory is timed by commands: a run of single accesses takes another time,
/// and what cannot do that says so.
#[test]
fn a_machine_file_can_choose_the_detailed_memory_model() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("timed.toml");
    let kindle = include_str!("../../../machines/kindle.toml");
    let with = |memory: &str| {
        let key = format!("memory-file = \"{memory}\"\nkind = \"byte");
        fs::write(&file, kindle.replacen("kind = \"byte", &key, 1)).unwrap();
    };
    with("kindle-dram");
    terrace().arg("check").arg(&file).assert().success();
    let run = |machine: &Path| {
        let command = terrace().args(["sim", "--json", "--policy", "first-touch", "--machine"]);
        let program = ["--algorithm", "gups", "--size", "8MiB", "--accesses", "100000"];
        json(command.arg(machine).args(program), 0)["report"].clone()
    };
    let (simple, detailed) = (run(Path::new("kindle")), run(&file));
    assert_eq!(simple["llc"], detailed["llc"]);
    assert_ne!(simple["time"], detailed["time"]);
    let rates = refused(terrace().args(["sim", "--machine"]).arg(&file));
    assert!(rates.contains("only simulations of single accesses"), "{rates}");

    // Plans look at a machine with fast memory alone, as much as it takes.
    let plan = terrace().args(["plan", "--json", "--slowdown", "5", "--machine"]).arg(&file);
    let program = ["--algorithm", "gups", "--size", "8MiB", "--set", "accesses=100000"];
    assert!(json(plan.args(program), 0)["plan"]["all_slow"].as_f64().unwrap() > 0.0);

    with("kindel");
    for verb in [&["check"][..], &["sim", "--algorithm", "gups", "--machine"]] {
        let message = refused(terrace().args(verb).arg(&file));
        let place = format!("{}:22: field `tier[0].memory-file`: ", file.display());
        assert!(message.starts_with(&place), "{message}");
    }
}
