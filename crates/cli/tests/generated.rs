//! Help, manual pages and completions come from the same definitions.
//! `SNAPSHOTS=overwrite` writes the golden files anew.

mod common;

use std::fs;

use common::{json, terrace};
use snapbox::file;

const VERBS: [&str; 28] = [
    "run",
    "set",
    "broker",
    "attach",
    "top",
    "report",
    "replay",
    "metrics",
    "record",
    "convert",
    "sim",
    "compare",
    "sweep",
    "plan",
    "provision",
    "kloc",
    "crash",
    "reproduce",
    "validate",
    "volume",
    "calibrate",
    "doctor",
    "clean",
    "why",
    "core",
    "check",
    "completions",
    "man",
];

#[test]
fn help_reads_as_agreed() {
    let help = |verb: &str| {
        let command = if verb.is_empty() { terrace() } else { terrace().arg(verb) };
        command.arg("--help").assert().success()
    };

    help("").stdout_eq(file!["help/terrace.txt"].raw());
    help("run").stdout_eq(file!["help/run.txt"].raw());
    help("set").stdout_eq(file!["help/set.txt"].raw());
    help("broker").stdout_eq(file!["help/broker.txt"].raw());
    help("attach").stdout_eq(file!["help/attach.txt"].raw());
    help("top").stdout_eq(file!["help/top.txt"].raw());
    help("replay").stdout_eq(file!["help/replay.txt"].raw());
    help("report").stdout_eq(file!["help/report.txt"].raw());
    help("metrics").stdout_eq(file!["help/metrics.txt"].raw());
    help("record").stdout_eq(file!["help/record.txt"].raw());
    help("convert").stdout_eq(file!["help/convert.txt"].raw());
    help("sim").stdout_eq(file!["help/sim.txt"].raw());
    help("compare").stdout_eq(file!["help/compare.txt"].raw());
    help("sweep").stdout_eq(file!["help/sweep.txt"].raw());
    help("plan").stdout_eq(file!["help/plan.txt"].raw());
    help("provision").stdout_eq(file!["help/provision.txt"].raw());
    help("kloc").stdout_eq(file!["help/kloc.txt"].raw());
    help("crash").stdout_eq(file!["help/crash.txt"].raw());
    help("reproduce").stdout_eq(file!["help/reproduce.txt"].raw());
    help("validate").stdout_eq(file!["help/validate.txt"].raw());
    help("volume").stdout_eq(file!["help/volume.txt"].raw());
    help("calibrate").stdout_eq(file!["help/calibrate.txt"].raw());
    help("doctor").stdout_eq(file!["help/doctor.txt"].raw());
    help("why").stdout_eq(file!["help/why.txt"].raw());
    help("core").stdout_eq(file!["help/core.txt"].raw());
    help("check").stdout_eq(file!["help/check.txt"].raw());
    help("completions").stdout_eq(file!["help/completions.txt"].raw());
    help("man").stdout_eq(file!["help/man.txt"].raw());
}

#[test]
fn without_a_verb_the_help_goes_to_stderr_with_exit_code_2() {
    let output = terrace().output().unwrap();

    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("Usage: terrace"));
}

#[test]
fn there_is_a_manual_page_for_every_verb() {
    let dir = tempfile::tempdir().unwrap();

    let document = json(terrace().args(["man", "--json"]).arg(dir.path().join("man1")), 0);

    let mut names: Vec<_> = fs::read_dir(dir.path().join("man1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut expected: Vec<_> = VERBS.iter().map(|verb| format!("terrace-{verb}.1")).collect();
    expected.extend([
        "terrace.1".to_owned(),
        "terrace-govern.1".to_owned(),
        "terrace-freeze.1".to_owned(),
        "terrace-thaw.1".to_owned(),
        "terrace-profile.1".to_owned(),
        "terrace-reproduce-hemem.1".to_owned(),
        "terrace-reproduce-kindle.1".to_owned(),
        "terrace-reproduce-dapper.1".to_owned(),
        "terrace-reproduce-klocs.1".to_owned(),
        "terrace-reproduce-cbmm.1".to_owned(),
        "terrace-calibrate-kernel.1".to_owned(),
        "terrace-calibrate-mm.1".to_owned(),
    ]);
    let provision = ["plan", "hide", "reload", "run", "status", "why", "record", "replay"];
    expected.extend(provision.map(|what| format!("terrace-provision-{what}.1")));
    let profile = ["record", "refine", "show", "diff", "merge", "import", "export"];
    expected.extend(profile.map(|what| format!("terrace-profile-{what}.1")));
    let kloc = ["run", "top", "list", "why", "report"];
    expected.extend(kloc.map(|what| format!("terrace-kloc-{what}.1")));
    let volume = ["create", "info", "check", "dump", "grow", "serve", "bench"];
    expected.extend(volume.map(|what| format!("terrace-volume-{what}.1")));
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(document["files"].as_array().unwrap().len(), expected.len());
    let page = fs::read_to_string(dir.path().join("man1/terrace-run.1")).unwrap();
    assert!(page.starts_with(".ie"), "not roff: {page}");
    assert!(page.contains("terrace\\-run") && page.contains("\\-\\-fast"), "{page}");
}

#[test]
fn the_main_page_goes_to_stdout() {
    let output = terrace().arg("man").output().unwrap();

    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains(".TH terrace 1"));
}

#[test]
fn completions_know_the_verbs_the_options_and_the_policies() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = terrace().args(["completions", shell]).output().unwrap();

        assert_eq!(output.status.code(), Some(0));
        let script = String::from_utf8(output.stdout).unwrap();
        for word in ["reproduce", "best-effort"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
        // The other shells' scripts hold no values.
        for word in ["first-touch", "shadow"].iter().filter(|_| "bash zsh fish".contains(shell)) {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
    let document = json(terrace().args(["completions", "bash", "--json"]), 0);
    assert!(document["script"].as_str().unwrap().contains("_terrace"));
}

#[test]
fn bash_accepts_its_script() {
    let script = terrace().args(["completions", "bash"]).output().unwrap().stdout;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("terrace.bash");
    fs::write(&file, script).unwrap();

    snapbox::cmd::Command::new("bash").arg("-n").arg(&file).assert().success().stderr_eq("");
}

/// A sample of a report is one of today's: of the default policy, unless its command names
/// another, and with what a report says of our processors.
#[test]
fn the_sample_of_a_report_is_of_the_default_policy() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/cli.md")).unwrap();
    let samples: Vec<_> = page
        .split("\n```\n")
        .filter(|block| block.contains("$ terrace run ") && block.contains("\n  our processors "))
        .collect();
    assert!(!samples.is_empty(), "no sample of a report");
    for sample in samples {
        let line = |name: &str| sample.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(!sample.contains("--policy"), "{sample}");
        assert!(line("  policy ").contains(" refault, "), "{sample}");
        assert!(line("  our processors ").contains(" in the program, "), "{sample}");
        assert!(line("  our processors ").ends_with(" in `terrace run`"), "{sample}");
    }
}
