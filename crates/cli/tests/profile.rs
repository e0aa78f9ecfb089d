//! `terrace profile`: from one run of a program to a profile, and what can be done with it.

mod common;

use std::fs;
use std::path::Path;

use common::{compile, example, json, recorder, refused, shell, shown_works, without_rules};
use snapbox::cmd::Command;
use terrace_shown::is_missing;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../profile/tests/golden");

/// Touches 64 MiB at random and 32 MiB in order, both by the allocator.
const WALKER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    size_t n = 64 << 20, m = 32 << 20, x = 88172645463325252ull;
    char *random = malloc(n), *ordered = malloc(m);
    for (size_t i = 0; i < 400000; i++) {
        x ^= x << 13; x ^= x >> 7; x ^= x << 17;
        random[x % n]++;
    }
    for (size_t i = 0; i < m; i += 64) ordered[i]++;
    printf("%d\n", random[5] + ordered[64]);
    return 3;
}
"#;

fn terrace() -> Command {
    common::terrace().env("TERRACE_RECORDER", recorder())
}

#[test]
fn one_run_makes_a_profile_that_matches_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let (program, profile) = (dir.path().join("walker"), dir.path().join("a.profile"));
    compile(WALKER, &program, &["-O1"]);
    let command = |more: &[&str]| {
        terrace()
            .args(["--json", "profile", "record", "--output"])
            .arg(&profile)
            .args(more)
            .arg("--")
            .arg(&program)
    };
    let output = command(&["--again"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(3) && !profile.exists() {
        assert!(said.contains("qemu"), "{said}");
        is_missing("qemu-user");
        return;
    }
    assert_eq!(output.status.code(), Some(3), "the program's own: {said}");
    // Of the 64 MiB alone: a walk is followed.
    let told = said.matches("touched for the first time in random order").count();
    assert_eq!(told, 1, "{said}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let document: serde_json::Value =
        serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    let at_random = document["walks"]["touched_at_random"].as_u64().unwrap();
    assert!((63 << 20..66 << 20).contains(&at_random), "{document}");
    let share = document["again"]["matched_share"].as_f64().unwrap();
    assert!(share > 0.95, "addresses are random, and nothing else is: {document}");

    let shown = json(terrace().args(["--json", "profile", "show"]).arg(&profile), 0);
    let of = |class: u64| {
        let regions = shown["region"].as_array().unwrap();
        regions.iter().find(|region| region["class"] == class).unwrap().clone()
    };
    let (random, ordered) = (of(27), of(26));
    let averted = |region: &serde_json::Value| region["averted"].as_u64().unwrap();
    assert!(averted(&random) > 8 * averted(&ordered), "{random} {ordered}");
    assert!(ordered["touched"].as_f64().unwrap() > 0.9);
    assert!(json(terrace().arg("--json").arg("check").arg(&profile), 0)["content"] == "profile");

    // Another machine has other walks: not its name and clock alone are others in the file. What is
    // touched is the program's own affair.
    let places = || {
        let text = fs::read_to_string(&profile).unwrap();
        let of = |field: &str| -> Vec<String> {
            let ranges = text.lines().filter(|line| line.starts_with("range "));
            let words = ranges.flat_map(str::split_ascii_whitespace);
            words.filter(|word| word.starts_with(field)).map(str::to_owned).collect()
        };
        let sum: u64 = of("averted=")
            .iter()
            .filter_map(|word| {
                word.trim_end_matches("cycles").split_once('=')?.1.parse::<u64>().ok()
            })
            .sum();
        (sum, of("touched=").len())
    };
    let (before, touched) = places();
    let other = command(&["--machine=kindle"]).output().unwrap();
    assert_eq!(other.status.code(), Some(3), "{}", String::from_utf8_lossy(&other.stderr));
    let (after, touched_there) = places();
    assert!(before > 0 && after > 0 && touched > 0 && touched_there > 0);
    assert!(before.abs_diff(after) * 20 > before, "another TLB, other walks: {before} {after}");
}

/// The page's commands, as they stand there.
#[test]
fn the_example_of_the_page_works() {
    let dir = tempfile::tempdir().unwrap();
    let probe = terrace().args(["profile", "record", "-o"]).arg(dir.path().join("probe"));
    if probe.args(["--", "true"]).output().unwrap().status.code() == Some(3) {
        is_missing("qemu-user");
        return;
    }
    let commands = example("profile.md", "profile");
    let said = shown_works(shell(&commands, dir.path()).env("TERRACE_RECORDER", recorder()));

    assert!(said.contains("averted, first"), "{said}");
    let csv = fs::read_to_string(dir.path().join("both.csv")).unwrap();
    let again = fs::read_to_string(dir.path().join("again.profile")).unwrap();
    let rules = again.lines().filter(|line| line.starts_with("rule ")).count();
    assert!(rules > 0 && rules == csv.lines().count(), "{csv}\n{again}");
}

/// QEMU and its libraries are in the same address space. What is theirs is not the program's, and a
/// program that puts another one in its place has hardly anything to show.
#[test]
fn only_the_program_itself_is_recorded_and_what_is_missing_is_told() {
    const DATA: &str = r"
static char data[16 << 20];
int main(void) {
    for (unsigned i = 0; i < sizeof data; i += 4096) data[i]++;
    return 0;
}
";
    let dir = tempfile::tempdir().unwrap();
    let (program, profile) = (dir.path().join("data"), dir.path().join("a.profile"));
    let id = "0123456789abcdef";
    for flags in [&["-static"][..], &["-pie", "-fPIE"]] {
        compile(DATA, &program, &[&["-Wl,--build-id=0x0123456789abcdef"], flags].concat());
        let record =
            terrace().args(["profile", "record", "-o"]).arg(&profile).arg("--").arg(&program);
        let output = record.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(3) {
            assert!(said.contains("qemu"), "{said}");
            is_missing("qemu-user");
            return;
        }
        assert_eq!(output.status.code(), Some(0), "{said}");
        let text = fs::read_to_string(&profile).unwrap();
        let ids: Vec<_> =
            text.split_ascii_whitespace().filter(|w| w.starts_with("build-id=")).collect();
        assert_eq!(ids, [format!("build-id={id}")], "{text}");
        fs::remove_file(&profile).unwrap();
    }
    let script = format!("exec {}", program.display());
    let exec = terrace().args(["profile", "record", "-o"]).arg(&profile);
    let output = exec.args(["--", "sh", "-c", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("put another one in its place"), "{said}");
}

#[test]
fn profiles_go_to_cbmm_s_format_and_back_and_merge() {
    let dir = tempfile::tempdir().unwrap();
    let golden = |name: &str| Path::new(GOLDEN).join(name);
    let imported = dir.path().join("imported");
    let import = |horizon: &str| {
        terrace()
            .args(["profile", "import", "--horizon", horizon, "--output"])
            .arg(&imported)
            .arg(golden("cbmm.csv"))
    };
    import("10s").assert().success();
    assert_eq!(fs::read(&imported).unwrap(), fs::read(golden("cbmm.profile")).unwrap());

    let csv = dir.path().join("again.csv");
    terrace().args(["profile", "export", "--output"]).arg(&csv).arg(&imported).assert().success();
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), 7);

    // What the CSV cannot hold is told to people and programs alike.
    let recorded = golden("recorded.profile");
    let export = terrace().args(["--json", "profile", "export", "--output"]);
    let output = export.arg(dir.path().join("lossy.csv")).arg(&recorded).output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    for (field, words) in [
        ("uneven_mappings", "more in one part than in another"),
        ("deviations_lost", "has no deviations"),
        ("touched_lost", "lost how much is touched"),
    ] {
        let lost = document[field].as_u64().unwrap();
        assert_eq!(lost > 0, said.contains(words), "{field}: {document} {said}");
    }
    assert!(document["deviations_lost"].as_u64() > Some(0), "{document}");

    let plain = dir.path().join("plain");
    let recorded = fs::read_to_string(golden("recorded.profile")).unwrap();
    fs::write(&plain, without_rules(&recorded)).unwrap();
    let merged = dir.path().join("merged");
    let merge = terrace().args(["--json", "profile", "merge", "--output"]).arg(&merged);
    let copy = dir.path().join("copy");
    fs::copy(&plain, &copy).unwrap();
    let output = merge.arg(&plain).arg(&copy).output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["runs"], 4);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("copy says the same as"), "{said}");
    let diff = terrace().args(["--json", "profile", "diff"]).arg(&plain).arg(&merged);
    assert_eq!(json(diff, 0)["matched_share"], 1.0);

    // Cycles of both kinds beside each other look like a difference of what is averted.
    let counted = dir.path().join("counted");
    let text = fs::read_to_string(&plain).unwrap();
    fs::write(&counted, text.replacen("runs 2\n", "runs 2\nwalk-time elapsed\n", 1)).unwrap();
    let warning = |other: &Path| {
        let diff = terrace().args(["profile", "diff"]).arg(&plain).arg(other).output().unwrap();
        String::from_utf8_lossy(&diff.stderr).into_owned()
    };
    assert!(warning(&counted).contains("walks of different kinds"), "{}", warning(&counted));
    assert_eq!(warning(&merged), "");

    // What is read is not written, and what is bad is refused with its place.
    let refuses = |command: Command, why: &str| {
        let said = refused(command);
        assert!(said.contains(why), "{said}");
    };
    let onto_itself = terrace().args(["profile", "merge", "-o"]).arg(&plain);
    refuses(onto_itself.arg(&plain).arg(&merged), "same file");
    let twice = terrace().args(["profile", "merge", "-o"]).arg(dir.path().join("twice"));
    refuses(twice.arg(&plain).arg(dir.path().join("./plain")), "is the same file as");
    let rules = terrace().args(["profile", "diff"]).arg(&plain).arg(&imported);
    refuses(rules, "rules alone, which are not compared");
    let shown = terrace().args(["profile", "show"]).arg(&imported).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("not known of a run") && !shown.contains("0.0 %"), "{shown}");
    fs::write(&csv, "huge,mmap,7,len,>,10,len,<,5\nhuge,mmap,7\nhuge,mmap,8\n").unwrap();
    let idle = terrace().args(["--json", "profile", "import", "--horizon=1s", "-o"]).arg(&copy);
    let document = json(idle.arg(&csv), 0);
    assert_eq!((&document["never"], &document["hidden"]), (&vec![1].into(), &vec![3].into()));
    assert_eq!(document["not_in_a_run"], serde_json::json!([]));
    // What holds for no mapping of a run is named, and by what.
    fs::write(&csv, "huge,mmap,7,prot,=,3\nhuge,mmap,7,prot,=,1\nhuge,mmap,8,off,>,0\n").unwrap();
    let nowhere = |json: &[&str]| {
        let import = terrace().args(json).args(["profile", "import", "--horizon=1s", "-o"]);
        import.arg(&copy).arg(&csv).output().unwrap()
    };
    let document: serde_json::Value = serde_json::from_slice(&nowhere(&["--json"]).stdout).unwrap();
    assert_eq!(document["not_in_a_run"], serde_json::json!([2, 3]));
    let said = String::from_utf8_lossy(&nowhere(&[]).stderr).into_owned();
    assert!(said.contains("rule 2 by `prot` (") && said.contains("rule 3 by `off` ("), "{said}");

    // What a file says of a program does not command the terminal.
    let bare = fs::read_to_string(&plain).unwrap();
    fs::write(&copy, bare.replacen("./walk", "./w%1b[2J", 1)).unwrap();
    for verb in [&["check"][..], &["profile", "show"]] {
        let output = terrace().args(verb).arg(&copy).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(r"./w\u{1b}[2J") && !text.contains('\u{1b}'), "{text:?}");
    }
    refuses(import("0s"), "--horizon");
    refuses(import("1s").arg("--clock=99999999GHz"), "--clock: must be 1Hz to 100GHz");
    let other = without_rules(&recorded).replacen("laptop", "server", 1);
    fs::write(&copy, other).unwrap();
    let unlike = terrace().args(["profile", "merge", "-o"]).arg(dir.path().join("unlike"));
    refuses(unlike.arg(&plain).arg(&copy), "copy counts cycles of another machine or clock than");
    fs::write(&copy, b"terrace-profile 1\nprogram \xff\n").unwrap();
    refuses(terrace().args(["profile", "show"]).arg(&copy), "copy: line 2: is not text (UTF-8)");
    refuses(terrace().arg("check").arg(&copy), "copy: line 2: is not text (UTF-8)");
    fs::write(&csv, "huge,heap,1\neager,heap,7\n").unwrap();
    let import = terrace().args(["profile", "import", "--horizon", "1s", "-o"]).arg(&imported);
    refuses(import.arg(&csv), "again.csv:2: field `benefit`");
    fs::write(&plain, recorded.replacen("touched=512", "touched=600", 1)).unwrap();
    refuses(terrace().args(["profile", "show"]).arg(&plain), "plain:10: field `touched`");
    fs::write(&plain, recorded.strip_suffix("6cycles\n").unwrap()).unwrap();
    refuses(terrace().arg("check").arg(&plain), "plain:16: field `rule`: its line has no end");
    // Without its last line, which is its only rule.
    fs::write(&plain, without_rules(&recorded).replace("rules 0", "rules 1")).unwrap();
    refuses(terrace().arg("check").arg(&plain), "plain:15: field `rules`: is not the number");
    terrace().arg("check").arg(golden("recorded-1.profile")).assert().success();
}

/// What counters say of a run brings a simulated profile to the machine that they are of. Without
/// counters that is said; with what `perf` wrote elsewhere none are needed.
#[test]
fn counted_walks_take_the_place_of_simulated_ones() {
    let dir = tempfile::tempdir().unwrap();
    let golden = |name: &str| Path::new(GOLDEN).join(name);
    let (simulated, refined) = (dir.path().join("simulated"), dir.path().join("refined"));
    let recorded = fs::read_to_string(golden("recorded.profile")).unwrap();
    let plain = without_rules(&recorded);
    // 743 580 245 cycles were counted: twice as many as these.
    fs::write(&simulated, plain.replace("runs 2\n", "runs 2\nwalks 371790122cycles\n")).unwrap();
    let refine = |from: &Path| {
        terrace()
            .args(["--json", "profile", "refine", "--processor", "A Processor", "--perf-stat"])
            .arg(golden("perf-stat.csv"))
            .arg("--output")
            .arg(&refined)
            .arg(from)
    };
    let nameless = terrace().args(["profile", "refine", "--processor", "", "--perf-stat"]);
    let nameless = nameless.arg(golden("perf-stat.csv")).arg("--output").arg(&refined);
    assert!(refused(nameless.arg(&simulated)).contains("--processor: is empty"));
    let document = json(refine(&simulated), 0);
    assert_eq!((&document["counted"], &document["by"]), (&743_580_245.into(), &"cycles".into()));
    let text = fs::read_to_string(&refined).unwrap();
    assert!(text.contains("machine A%20Processor\n") && text.contains("averted=2000000cycles"));
    assert!(text.contains("horizon 4012345678ns") && text.contains("walks 743580245cycles"));

    let before = dir.path().join("before");
    fs::write(&before, plain).unwrap();
    let said = refused(refine(&before));
    assert!(said.contains("record it anew"), "{said}");
    let said = refused(terrace().args(["profile", "refine", "-o", "x"]).arg(&simulated));
    assert!(said.contains("PROGRAM"), "{said}");

    let output = terrace()
        .args(["profile", "refine", "--output"])
        .arg(dir.path().join("counted"))
        .arg(&simulated)
        .args(["--", "true"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        // Of other arguments than the profile, which is said.
        Some(0) => assert!(said.contains("other arguments"), "{said}"),
        // A machine without a PMU, as most virtual ones are. No test asks for one: what the counters
        // say is tested above, on what `perf` wrote.
        Some(3) => assert!(said.contains("perf_event_open"), "{said}"),
        // `true` may be over before it walks.
        Some(2) => assert!(said.contains("no page walk was counted"), "{said}"),
        other => panic!("{other:?}: {said}"),
    }
}
