//! The page of examples does what it shows: docs/examples.md.
//!
//! Its blocks are shell scripts, so that what one block leaves the next finds: one of those up to the
//! kernel engine, and one of the rest, both with the page's first block, which makes the programs. They
//! run at the same time. Comments in front of a block say where it can run:
//!
//! | comment | |
//! |---|---|
//! | `<!-- needs: swap -->` | left out where there is none and none can be made |
//! | `<!-- needs: kernel-engine -->` | left out where the doctor says that it cannot be had |
//! | `<!-- needs: freezer -->` | left out without swap, or where no control group can be frozen |
//! | `<!-- guest: NAME -->` | runs in tests/guest/tests/NAME.sh: it must use the same options, and `make test` must run it |

mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Swap, binary, is_supported, preload};
use terrace_shown::is_missing;

/// How long either script may take; less than a minute is usual.
const SECONDS: &str = "270";

/// A fenced block of shell commands.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    /// The line that it begins in.
    line: usize,
    text: String,
    /// What stands in a comment in front of it: what it is, and the rest.
    mark: Option<(String, String)>,
}

/// The blocks of a page.
fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut mark = None;
    let mut open: Option<Block> = None;
    for (line, text) in page.lines().enumerate() {
        if let Some(block) = &mut open {
            if text == "```" {
                found.extend(open.take());
            } else {
                let _ = writeln!(block.text, "{text}");
            }
        } else if text == "```sh" {
            open = Some(Block { line: line + 2, text: String::new(), mark: mark.take() });
        } else if let Some(comment) = text.strip_prefix("<!-- ") {
            let (what, rest) = comment.trim_end_matches(" -->").split_once(": ").unwrap();
            mark = Some((what.to_owned(), rest.to_owned()));
        }
    }
    assert_eq!((&open, &mark), (&None, &None), "a block or a comment is not closed");
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> Vec<Block> {
    blocks(&fs::read_to_string(root().join("docs/examples.md")).unwrap())
}

/// The two scripts: where the page comes to the kernel engine, the second begins.
fn halves(mut page: Vec<Block>) -> [Vec<Block>; 2] {
    let first = page[0].clone();
    let engine = Some(("needs".to_owned(), "kernel-engine".to_owned()));
    let from =
        page.iter().position(|block| block.mark == engine).expect("it has the kernel engine");
    let mut second = page.split_off(from);
    second.insert(0, first);
    [page, second]
}

#[test]
fn every_example_before_the_kernel_engine_works() {
    if is_supported() {
        let [blocks, _] = halves(page());
        works(blocks, None, false);
    }
}

#[test]
fn every_example_from_the_kernel_engine_on_works() {
    if is_supported() {
        let [_, blocks] = halves(page());
        works(blocks, Swap::on().as_ref(), has_kernel_engine());
    }
}

/// Runs what can run here of some blocks.
fn works(blocks: Vec<Block>, swap: Option<&Swap>, has_kernel_engine: bool) {
    let directory = tempfile::tempdir().unwrap();
    // Errors are told with the line in the page.
    let mut script = "set -euo pipefail\ntrap 'echo \"failed at or after line $at\" >&2' ERR\n\
                      trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n\
                      trap 'echo \"not done, at or after line $at\" >&2; exit 124' TERM\n"
        .to_owned();
    let mut commands = 0;
    for block in blocks {
        match block.mark.as_ref().map(|(what, rest)| (what.as_str(), rest.as_str())) {
            Some(("guest", _)) => continue,
            Some(("needs", "swap")) if swap.is_none() => {
                is_missing("swap");
                continue;
            }
            Some(("needs", "kernel-engine")) if !has_kernel_engine => {
                is_missing("what the kernel engine needs");
                continue;
            }
            Some(("needs", "freezer")) if swap.is_none() || !has_freezer() => {
                is_missing("swap, and a control group that can be frozen");
                continue;
            }
            Some(("needs", "swap" | "kernel-engine" | "freezer")) | None => {}
            other => panic!("line {}: {other:?} is not known", block.line),
        }
        commands += block.text.matches("terrace ").count();
        let _ = write!(script, "at={}\n{}", block.line, block.text);
    }
    // So that a page that is read wrongly does not count as one that works.
    assert!(commands > 15, "only {commands} commands were found");
    let bin = binary().parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());

    // What waits for something that does not come is ended, and told.
    let output = Command::new("timeout")
        .args(["--foreground", "-k", "10", SECONDS, "bash", "-c", &script])
        .current_dir(&directory)
        .env("PATH", path)
        .env("TERRACE_PRELOAD", preload())
        .env("XDG_RUNTIME_DIR", directory.path())
        // What is measured there is no other run's.
        .env("XDG_STATE_HOME", directory.path())
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()
        .unwrap();

    let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}\n{}\n{}",
        output.status,
        show(&output.stdout),
        show(&output.stderr)
    );
}

/// Whether the doctor says that the kernel engine can be had, with a control group.
fn has_kernel_engine() -> bool {
    let bin = binary();
    let output = Command::new(bin).args(["doctor", "--json"]).output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let engine = &document["kernel_engine"];
    engine["works"] == true && engine["parts"][1]["has"].is_string()
}

/// Whether a control group that can be frozen can be made, where the page makes one.
fn has_freezer() -> bool {
    let freezer = Path::new("/sys/fs/cgroup/freezer");
    let groups = if freezer.is_dir() { freezer } else { Path::new("/sys/fs/cgroup") };
    let group = groups.join(format!("terrace-example-{}", std::process::id()));
    let is_made = fs::create_dir(&group).is_ok();
    let files = ["freezer.state", "cgroup.freeze"];
    let can_freeze = files.iter().any(|file| group.join(file).exists());
    if is_made {
        let _ = fs::remove_dir(&group);
    }
    is_made && can_freeze
}

/// What needs two nodes cannot run here; it must not become something that runs nowhere.
#[test]
fn what_the_guest_shows_is_what_it_tests() {
    let mut there = 0;
    let listed = guest_tests();
    let short: Vec<_> = listed.iter().filter(|(_, is_short)| *is_short).map(|(n, _)| n).collect();
    for block in page() {
        let Some((_, name)) = block.mark.filter(|(what, _)| what == "guest") else { continue };
        assert!(
            short.contains(&&name),
            "line {}: `make test` does not run {name} (tests/guest/tests.list)",
            block.line
        );
        let test = root().join(format!("tests/guest/tests/{name}.sh"));
        let test = fs::read_to_string(&test).unwrap_or_else(|e| panic!("{}: {e}", test.display()));
        for word in block.text.split_whitespace().filter(|word| word.len() > 2) {
            if word.starts_with("--") {
                assert!(test.contains(word), "line {}: {name}.sh has no {word}", block.line);
            }
        }
        there += 1;
    }
    assert!(there >= 3, "{there}");
}

/// The guest's tests, and whether `make test` runs them.
fn guest_tests() -> Vec<(String, bool)> {
    let list = fs::read_to_string(root().join("tests/guest/tests.list")).unwrap();
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let test = |line: &str| match &words(line)[..] {
        [name, when, _machine] if when == "short" => (name.clone(), true),
        [name, when, _machine] if when == "long" || when == "named" => (name.clone(), false),
        _ => panic!("tests.list: `{line}`"),
    };
    lines.map(test).collect()
}

/// A test that is in no list runs nowhere.
#[test]
fn every_test_of_the_guest_is_in_its_list() {
    let mut listed: Vec<_> = guest_tests().into_iter().map(|(name, _)| name).collect();
    listed.sort_unstable();
    let directory = fs::read_dir(root().join("tests/guest/tests")).unwrap();
    let stem = |path: PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
    let mut there: Vec<_> = directory.map(|entry| stem(entry.unwrap().path())).collect();
    there.sort_unstable();

    assert_eq!(listed, there);
}

#[test]
fn a_page_is_cut_into_its_blocks() {
    let page = "text\n```sh\na\nb\n```\n<!-- needs: swap -->\n```sh\nc\n```\n```\nno\n```\n";
    let block = |line, text: &str, mark: Option<(&str, &str)>| Block {
        line,
        text: text.to_owned(),
        mark: mark.map(|(what, rest)| (what.to_owned(), rest.to_owned())),
    };
    let (first, swap) = (block(3, "a\nb\n", None), block(8, "c\n", Some(("needs", "swap"))));
    assert_eq!(blocks(page), [first.clone(), swap.clone()]);
    let engine = block(11, "d\n", Some(("needs", "kernel-engine")));
    let all = vec![first.clone(), swap.clone(), engine.clone(), swap.clone()];
    assert_eq!(halves(all), [vec![first.clone(), swap.clone()], vec![first, engine, swap]]);
}
