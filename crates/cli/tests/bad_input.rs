//! Bad input: one clear line on stderr, exit code 2, and nothing was started.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{compile, refused, terrace};

/// `terrace run` of a program that must be refused. The program's argument is
/// a file that it would create if it were started after all.
fn run_refused(program: &Path) -> String {
    refused_by("auto", program)
}

/// The same with an engine.
fn refused_by(engine: &str, program: &Path) -> String {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("was-started");

    let run = ["run", "--engine", engine, "--fast", "16MiB", "--"];
    let message = refused(terrace().args(run).arg(program).arg(&trace));

    assert!(!trace.exists(), "the program was started");
    message
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_missing_program() {
    assert_eq!(
        run_refused(Path::new("no-such-program")),
        "program `no-such-program` not found in PATH"
    );
    assert_eq!(run_refused(Path::new("/no/such/program")), "program `/no/such/program` not found");
}

#[test]
fn a_file_that_may_not_be_executed_and_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::copy("/usr/bin/touch", &file).unwrap();
    set_mode(&file, 0o644);

    for (path, what) in [
        (file.as_path(), "not executable"),
        (dir.path(), "a directory"),
        // Each directory of the search path has it, too.
        (Path::new("."), "a directory"),
    ] {
        let expected = format!("program `{}` is {what}", path.display());
        assert_eq!(run_refused(path), expected);
    }
}

#[test]
fn a_static_binary() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    for flags in [["-static"].as_slice(), ["-static-pie"].as_slice()] {
        compile("int main(void) { return 0; }", &program, flags);

        let expected = format!(
            "program `{}` is statically linked: there is no dynamic linker to load terrace's library",
            program.display()
        );
        assert_eq!(refused_by("pager", &program), expected, "{flags:?}");
    }
}

#[test]
fn a_setuid_binary_and_a_script_for_one() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    fs::copy("/usr/bin/touch", &program).unwrap();
    set_mode(&program, 0o4755);
    let script = dir.path().join("script");
    fs::write(&script, format!("#!{}\n", program.display())).unwrap();
    set_mode(&script, 0o755);

    let expected = format!(
        "program `{}` is setuid: the dynamic linker ignores preloaded libraries for it",
        program.display()
    );
    assert_eq!(refused_by("pager", &program), expected);
    assert_eq!(refused_by("pager", &script), expected);
}

#[test]
fn a_text_without_an_interpreter_line() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    fs::write(&text, "touch \"$1\"\n").unwrap();
    set_mode(&text, 0o755);

    let expected = format!(
        "program `{}` is neither an ELF binary nor a script that begins with `#!`",
        text.display()
    );
    assert_eq!(run_refused(&text), expected);
}

#[test]
fn budgets_that_are_none() {
    let message = |budget: &str| refused(terrace().args(["run", "--fast", budget, "--", "true"]));

    assert_eq!(message("0"), "--fast: the budget must be at least 1.00 MiB");
    assert_eq!(message("512KiB"), "--fast: the budget must be at least 1.00 MiB");
    assert_eq!(
        message("256"),
        "invalid value '256' for '--fast <SIZE>': `256` has no unit \
         (expected something like `256MiB`)"
    );
    assert_eq!(
        message("256parsec"),
        "invalid value '256parsec' for '--fast <SIZE>': `parsec` in `256parsec` is not a unit \
         of this quantity (expected something like `256MiB`)"
    );
}

#[test]
fn usage_that_makes_no_sense_is_one_line_too() {
    assert_eq!(
        refused(terrace().args(["run", "--", "true"])),
        "the following required arguments were not provided: --fast <SIZE>"
    );
    assert_eq!(
        refused(terrace().args(["run", "--fast", "16MiB"])),
        "the following required arguments were not provided: <PROGRAM>..."
    );
    let message = refused(terrace().args(["run", "--quick", "16MiB", "--", "true"]));
    assert!(message.starts_with("unexpected argument '--quick' found"), "{message}");
    let message =
        refused(terrace().args(["run", "--fast", "16MiB", "--policy", "lru", "--", "true"]));
    assert!(message.contains("'lru'") && message.contains("hemem"), "{message}");
    for (arguments, said) in [
        ("run --fast 1GiB --spill f --spill-size 0B -- true", "--spill-size: the file must be at"),
        ("replay --fast 1KiB /no/such/file", "--fast: the budget must be at least 1.00 MiB"),
        ("sim --algorithm chase --set hot=1MiB", "--set: hot: has no effect on chase"),
        ("sim --shift-at 500s --warm-up 1s --duration 1s", "--shift-at: has no effect at 500 s"),
        ("plan --algorithm gups --sample-period 5 --policies=", "--sample-period: has no effect"),
        ("convert in out.lackey", "OUTPUT: out.lackey: is named as a trace of lackey is"),
        ("top --watch --count 0", "invalid value '0' for '--count <N>'"),
        ("why f --last 0", "invalid value '0' for '--last <COUNT>'"),
        ("man /dev/null", "DIR: /dev/null: "),
        ("provision replay /dev/zero", "/dev/zero: line 1: longer than 1 MiB"),
    ] {
        let message = refused(terrace().args(arguments.split(' ')));
        assert!(message.starts_with(said), "{arguments}: {message}");
    }
    let message = refused(terrace().args(["run", "--fast", "1GiB", "--spill-size", "1", "true"]));
    assert!(message.contains("--spill-size"), "{message}");
}

#[test]
fn files_that_cannot_be_written_are_known_before_the_program_starts() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("was-started");
    for option in ["--report", "--record"] {
        let command = common::run("16MiB").arg(option);

        let message = refused(command.args(["/no/such/dir/file", "--", "touch"]).arg(&trace));

        assert!(message.starts_with(&format!("{option}: /no/such/dir/file: ")), "{message}");
        assert!(!trace.exists(), "the program was started");
    }
}

#[test]
fn a_spill_file_that_cannot_be_made_is_known_before_the_program_starts() {
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("was-started");
    let spill = dir.path().join("not/there/spill");

    let command = common::run("16MiB").arg("--spill").arg(&spill).args(["--", "touch"]);
    let message = refused(command.arg(&started));

    assert!(message.starts_with("--spill: no file can be made in "), "{message}");
    assert!(!started.exists(), "the program was started");
}

fn check(content: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, content).unwrap();

    let message = refused(terrace().arg("check").arg(&file));

    // Relative, so that expectations need not know the directory.
    message.replace(&format!("{}/", dir.path().display()), "")
}

const MACHINE: &str = include_str!("../../../machines/optane-cascade-lake.toml");

#[test]
fn a_truncated_machine_file_names_file_and_line() {
    // Cut in the middle of a line in the middle of the file.
    let cut = &MACHINE[..MACHINE.len() / 2];
    let line = cut.lines().count();

    let message = check(cut);

    assert!(message.starts_with("file:"), "{message}");
    let named: usize = message.split(':').nth(1).unwrap().parse().unwrap();
    assert!(named <= line, "line {named} of {line}: {message}");
}

#[test]
fn an_unknown_key_names_file_line_and_field() {
    let text = MACHINE.replacen("clock =", "clok =", 1);
    let line = text.lines().position(|line| line.starts_with("clok")).unwrap() + 1;

    let message = check(&text);

    assert!(message.starts_with(&format!("file:{line}: field `cpu.clok`: ")), "{message}");
}

#[test]
fn a_file_of_an_unknown_kind_and_one_that_is_not_there() {
    assert_eq!(
        check("[package]\nname = \"x\"\n"),
        "file: neither a machine, ladder or memory file, nor a profile, nor recorded decisions, events, accesses, calls or nodes' memory, nor a configuration (`provision = 1`) or journal of `terrace provision`"
    );
    let message = refused(terrace().args(["check", "/no/such/file"]));
    assert!(message.starts_with("/no/such/file: "), "{message}");
}

#[test]
fn damaged_records_name_file_and_line() {
    let header = r#"{"schema":1,"kind":"terrace.records","world":"sim","program":["gups"],"policy":"hemem","economist":"off","machine":{"name":"m","clock":null,"tiers":["dram"]}}"#;

    assert_eq!(check(&header[..header.len() - 4]), "file:1: the line is cut off");
    assert_eq!(check(&format!("{header}\n{{\"record\":\"deci")), "file:2: the line is cut off");
    let message = check(&format!("{header}\n{{\"record\":\"lost\",\"process\":1}}\n"));
    assert_eq!(message, "file:2: missing field `count`");
}
